"""A set of whole numbers kept as runs: [first, next) after [first, next), sorted, never touching.

Cheap while it has few runs, however many numbers they hold. Every change says how to take it back, for what a failed
write takes back.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence

Undo = Callable[[], None]


class Intervals:
    """Some numbers. The bounds of all runs lie in one flat list, so a place in it tells by its parity what it is."""

    __slots__ = ("_bounds",)

    def __init__(self, runs: Iterable[tuple[int, int]] = ()) -> None:
        self._bounds: list[int] = []
        for first, after in runs:
            self.add(first, after)

    def __bool__(self) -> bool:
        return bool(self._bounds)

    def __len__(self) -> int:
        """How many runs there are."""
        return len(self._bounds) // 2

    def __iter__(self) -> Iterator[tuple[int, int]]:
        bounds = iter(self._bounds)
        return zip(bounds, bounds, strict=True)

    def __contains__(self, number: int) -> bool:
        return bool(bisect_right(self._bounds, number) % 2)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Intervals) and self._bounds == other._bounds

    __hash__ = None  # type: ignore[assignment]  # it changes

    @property
    def count(self) -> int:
        """How many numbers there are."""
        return sum(self._bounds[1::2]) - sum(self._bounds[::2])

    @property
    def first_run(self) -> tuple[int, int] | None:
        """The lowest run."""
        return (self._bounds[0], self._bounds[1]) if self._bounds else None

    def add(self, first: int, after: int) -> Undo:
        """Put in all from `first` up to `after`."""
        return self._replace(first, after, is_in=True)

    def remove(self, first: int, after: int) -> Undo:
        """Take out all from `first` up to `after`."""
        return self._replace(first, after, is_in=False)

    def _replace(self, first: int, after: int, *, is_in: bool) -> Undo:
        if first >= after:
            return _nothing
        bounds = self._bounds
        # Runs that touch what is put in become one with it; runs that touch what is taken out stay as they are.
        low = bisect_left(bounds, first)
        high = bisect_right(bounds, after)
        old = bounds[low:high]
        new = []
        if low % 2 == (0 if is_in else 1):
            new.append(first)
        if high % 2 == (0 if is_in else 1):
            new.append(after)
        if old == new:
            return _nothing
        bounds[low:high] = new

        def undo() -> None:
            self._bounds[low : low + len(new)] = old

        return undo

    def add_all(self, runs: Iterable[tuple[int, int]]) -> Undo:
        """Put in many runs; taken back together."""
        bounds = self._bounds
        steps: list[tuple[int, int, Sequence[int]]] = []
        for first, after in runs:
            low = bisect_left(bounds, first)
            if low == len(bounds) or bounds[low] > after:  # it touches no other run, unless it is within one
                if not low % 2:
                    bounds[low:low] = (first, after)
                    steps.append((low, low + 2, ()))
                continue
            high = bisect_right(bounds, after, low)
            new = ([first] if not low % 2 else []) + ([after] if not high % 2 else [])
            steps.append((low, low + len(new), bounds[low:high]))
            bounds[low:high] = new

        def undo() -> None:
            for low, high, old in reversed(steps):
                bounds[low:high] = old

        return undo

    def cut_all(self, runs: Iterable[tuple[int, int]]) -> None:
        """`remove` for many runs, and those who never take it back."""
        bounds = self._bounds
        for first, after in runs:
            low = bisect_left(bounds, first)
            if low % 2 and bounds[low] > after:  # from the middle of a run, as nearly always
                bounds[low:low] = (first, after)
                continue
            high = bisect_right(bounds, after, low)
            bounds[low:high] = ([first] if low % 2 else []) + ([after] if high % 2 else [])

    def gap_from(self, number: int) -> tuple[int, int | None]:
        """The first number not in it from there on, and where the next run begins behind that; None if none does."""
        bounds = self._bounds
        at = bisect_right(bounds, number)
        if at % 2:
            number = bounds[at]
            at += 1
        return number, bounds[at] if at < len(bounds) else None

    def within(self, first: int, after: int) -> list[tuple[int, int]]:
        """Its runs between these, cut at both ends."""
        runs = []
        bounds = self._bounds
        at = bisect_right(bounds, first) & ~1
        while at < len(bounds) and bounds[at] < after:
            runs.append((max(bounds[at], first), min(bounds[at + 1], after)))
            at += 2
        return [run for run in runs if run[0] < run[1]]

    def touches_any(self, runs: Iterable[tuple[int, int]]) -> bool:
        """Whether any number of these runs, which are in order, is in it."""
        bounds = self._bounds
        count = len(bounds)
        at = 0
        for first, after in runs:
            at = bisect_right(bounds, first, at)
            if at % 2 or (at < count and bounds[at] < after):
                return True
        return False

    def drop_below(self, number: int) -> None:
        """Forget what is below."""
        self.remove(min(self._bounds[0], number) if self._bounds else number, number)

    def clear(self) -> None:
        """Forget all."""
        self._bounds.clear()


def runs_of(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """The runs that some numbers form, in order; doubles count once."""
    runs: list[tuple[int, int]] = []
    first = after = None
    for number in sorted(set(numbers)):
        if number != after:
            if first is not None and after is not None:
                runs.append((first, after))
            first = number
        after = number + 1
    if first is not None and after is not None:
        runs.append((first, after))
    return runs


def _nothing() -> None:
    """Nothing was changed."""
