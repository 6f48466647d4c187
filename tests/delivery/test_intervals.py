"""A set of numbers as runs behaves as the set does, and every change can be taken back."""

from hypothesis import given
from hypothesis import strategies as st

from lakemq.delivery.intervals import Intervals, runs_of

BOUND = st.integers(0, 30)
CHANGES = st.lists(st.tuples(st.booleans(), BOUND, BOUND), max_size=30)


def numbers_of(intervals: Intervals) -> set[int]:
    return {number for first, after in intervals for number in range(first, after)}


@given(CHANGES)
def test_it_is_the_set(changes):
    intervals, model = Intervals(), set()
    for is_in, first, after in changes:
        (intervals.add if is_in else intervals.remove)(first, after)
        model = model | set(range(first, after)) if is_in else model - set(range(first, after))
        assert numbers_of(intervals) == model
        assert list(intervals) == runs_of(model)
        assert intervals.count == len(model)
        assert len(intervals) == len(runs_of(model))
        for number in range(-1, 32):
            assert (number in intervals) == (number in model)
            free, following = intervals.gap_from(number)
            assert free == next(n for n in range(number, 99) if n not in model)
            assert following == min((n for n in model if n > free), default=None)
        for runs in ([(5, 20)], [(3, 5), (7, 8), (20, 22)], [(0, 1), (1, 2), (29, 40)]):
            wanted = {number for run in runs for number in range(*run)}
            assert intervals.touches_any(runs) == bool(model & wanted)
        assert {n for a, b in intervals.within(5, 20) for n in range(a, b)} == model & set(range(5, 20))


@given(CHANGES)
def test_without_a_way_back_it_does_the_same(changes):
    intervals, other = Intervals(), Intervals()
    for is_in, first, after in changes:
        if first < after:
            before = list(other)
            if is_in:
                undo = other.add_all([(first, after)])
                undo()
                assert list(other) == before
                other.add_all([(first, after)])
            else:
                other.cut_all([(first, after)])
            (intervals.add if is_in else intervals.remove)(first, after)
        assert intervals == other


@given(CHANGES, st.lists(st.sets(BOUND), max_size=4))
def test_many_runs_are_put_in_and_taken_back_together(changes, sets):
    intervals = Intervals()
    for is_in, first, after in changes:
        (intervals.add if is_in else intervals.remove)(first, after)
    undos, before = [], []
    for numbers in sets:
        before.append(numbers_of(intervals))
        undos.append(intervals.add_all(runs_of(numbers)))
        assert list(intervals) == runs_of(before[-1] | numbers)
    for undo, then in zip(reversed(undos), reversed(before), strict=True):
        undo()
        assert list(intervals) == runs_of(then)
    for numbers in sets:
        then = numbers_of(intervals)
        intervals.cut_all(runs_of(numbers))
        assert list(intervals) == runs_of(then - numbers)


@given(CHANGES)
def test_changes_are_taken_back_in_reverse(changes):
    intervals, undos, before = Intervals(), [], []
    for is_in, first, after in changes:
        before.append(list(intervals))
        undos.append((intervals.add if is_in else intervals.remove)(first, after))
    for undo, then in zip(reversed(undos), reversed(before), strict=True):
        undo()
        assert list(intervals) == then


@given(CHANGES, BOUND)
def test_what_is_below_is_forgotten(changes, number):
    intervals = Intervals()
    for is_in, first, after in changes:
        (intervals.add if is_in else intervals.remove)(first, after)
    expected = {one for one in numbers_of(intervals) if one >= number}
    intervals.drop_below(number)
    assert numbers_of(intervals) == expected


def test_runs_of_numbers():
    assert runs_of([5, 1, 2, 2, 9, 3]) == [(1, 4), (5, 6), (9, 10)]
    assert runs_of([]) == []
