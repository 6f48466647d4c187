"""Ranges shared out among tasks: nothing twice, nothing left out, whatever the limits."""

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from lakemq.pipeline.planning import Range, between, limit, pack, split

PLACES = st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 3))
POSITIONS = st.dictionaries(PLACES, st.integers(0, 200_000), max_size=8)


def offsets_of(ranges):
    """How often each partition's offsets are covered, as sorted pieces."""
    found = {}
    for one in ranges:
        found.setdefault((one.topic, one.partition), []).append((one.first, one.end))
    return {place: sorted(pieces) for place, pieces in found.items()}


def is_seamless(pieces):
    return all(a[1] == b[0] for a, b in pairwise(pieces))


@given(
    start=POSITIONS, moved=POSITIONS, least=st.none() | st.integers(1, 20), most=st.none() | st.integers(1000, 90_000)
)
def test_cut_and_packed_every_offset_is_in_one_task(start, moved, least, most):
    end = {place: start.get(place, 0) + more for place, more in moved.items()}
    tasks = pack(split(between(start, end), least, most), least)
    covered = offsets_of(one for task in tasks for one in task)
    wanted = {place: (start.get(place, 0), stop) for place, stop in end.items() if stop > start.get(place, 0)}
    assert covered.keys() == wanted.keys()
    for place, pieces in covered.items():
        assert is_seamless(pieces)
        assert (pieces[0][0], pieces[-1][1]) == wanted[place]
        assert most is None or all(b - a <= most for a, b in pieces)


@settings(deadline=None)
@given(start=POSITIONS, moved=POSITIONS, most=st.integers(1, 300_000))
def test_a_limit_is_kept_and_never_stands_still(start, moved, most):
    end = {place: start.get(place, 0) + more for place, more in moved.items()}
    limited = limit(start, end, most)
    counts = {place: stop - start.get(place, 0) for place, stop in limited.items()}
    lags = {place: stop - start.get(place, 0) for place, stop in end.items()}
    assert all(0 <= counts[place] <= lags[place] for place in end)
    assert sum(counts.values()) == min(most, sum(lags.values()))


def test_small_ranges_share_a_task_and_large_ones_have_their_own():
    small = [Range("t", p, 0, 100) for p in range(64)]
    assert len(pack(small, None)) == 1
    assert len(pack([Range("t", p, 0, 1_000_000) for p in range(4)], None)) == 4


def test_more_partitions_than_there_are_cut_large_ranges_evenly():
    tasks = pack(split([Range("t", 0, 0, 1000)], 4, None), 4)
    assert [task[0].count for task in tasks] == [250, 250, 250, 250]
