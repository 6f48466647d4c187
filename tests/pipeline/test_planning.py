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
    tasks = pack(split(between(start, end), least, most), least, most)
    covered = offsets_of(one for task in tasks for one in task)
    wanted = {place: (start.get(place, 0), stop) for place, stop in end.items() if stop > start.get(place, 0)}
    assert covered.keys() == wanted.keys()
    for place, pieces in covered.items():
        assert is_seamless(pieces)
        assert (pieces[0][0], pieces[-1][1]) == wanted[place]
        assert most is None or all(b - a <= most for a, b in pieces)
    assert most is None or all(sum(one.count for one in task) <= most for task in tasks)


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


def test_the_most_of_a_task_holds_for_small_ranges_too():
    tasks = pack(split([Range("t", p, 0, 1500) for p in range(4)], None, 100), None, 100)
    assert [sum(one.count for one in task) for task in tasks] == [100] * 60


@given(
    arriving=st.lists(st.integers(0, 3), min_size=2, max_size=7),
    behind=st.lists(st.integers(0, 50), min_size=7, max_size=7),
    most=st.integers(1, 6),
)
def test_a_limit_below_the_number_of_partitions_starves_none_for_ever(arriving, behind, most):
    """Partitions that get new messages all the time, and one that is given nothing new, only what it has."""
    places = [("t", p) for p in range(len(arriving))]
    start = dict.fromkeys(places, 0)
    end = {place: behind[place[1]] + 1 for place in places}
    waited = dict.fromkeys(places, 0)
    for _ in range(60):
        limited = limit(start, end, most)
        assert sum(limited.values()) - sum(start.values()) == min(most, sum(end.values()) - sum(start.values()))
        for place in places:
            is_behind = end[place] > start[place]
            waited[place] = waited[place] + 1 if is_behind and limited[place] == start[place] else 0
        assert max(waited.values()) <= len(places), "each has its turn in a round"
        start = limited
        end = {place: end[place] + arriving[place[1]] for place in places}
