"""Runs of offsets against plain sets of numbers."""

from collections import Counter
from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lakemq.pipeline.lake.offset_runs import Runs

OFFSETS = st.lists(st.integers(0, 30), max_size=40)
PAIRS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=8)


def numbers(runs):
    return [offset for first, end in runs for offset in range(first, end)]


@given(OFFSETS)
def test_offsets_become_runs_that_know_what_is_there_and_what_is_doubled(offsets):
    runs = Runs.of_offsets(np.array(offsets, np.int64))
    assert numbers(runs.once()) == sorted(set(offsets))
    assert numbers(runs.doubled()) == sorted(offset for offset, count in Counter(offsets).items() if count > 1)


@given(OFFSETS)
def test_runs_are_as_few_as_can_be(offsets):
    pairs = list(Runs.of_offsets(np.array(offsets, np.int64)).once())
    assert all(end < first for (_, end), (first, _) in pairwise(pairs))


@given(PAIRS, PAIRS)
def test_set_operations(mine, theirs):
    a, b = Runs.of(mine), Runs.of(theirs)
    ours, other = set(numbers(a)), set(numbers(b))
    assert numbers(a.without(b)) == sorted(ours - other)
    assert numbers(a.common(b)) == sorted(ours & other)
    assert numbers((a + b).once()) == sorted(ours | other)


@given(PAIRS)
def test_doubled_counts_overlaps(pairs):
    counts = Counter(numbers(Runs.of(pairs)))
    assert numbers(Runs.of(pairs).doubled()) == sorted(offset for offset, count in counts.items() if count > 1)
    assert Runs.of(pairs).total == sum(counts.values())
