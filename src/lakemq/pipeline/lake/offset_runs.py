"""Sets of offsets as runs, in numpy: what is there, what is missing, what is there twice.

A run is [start, end). `Runs` may overlap, and then say how often an offset is there; set operations ask only whether.
"""

from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

Offsets = npt.NDArray[np.int64]


class Runs:
    """Runs of offsets; empty ones are left out."""

    def __init__(self, starts: Offsets, ends: Offsets) -> None:
        kept = ends > starts
        self.starts: Offsets = starts[kept]
        self.ends: Offsets = ends[kept]

    @classmethod
    def of(cls, pairs: Iterable[tuple[int, int]]) -> "Runs":
        array = np.array(list(pairs), dtype=np.int64).reshape(-1, 2)
        return cls(array[:, 0], array[:, 1])

    @classmethod
    def of_offsets(cls, offsets: Offsets) -> "Runs":
        """The runs of single offsets in any order; one that is there twice is in two runs."""
        if len(offsets) == 0:
            return cls(offsets, offsets)
        steps = np.diff(offsets)
        if (steps > 0).all():  # as they are archived
            return cls._of_ascending(offsets, steps)
        distinct, counts = np.unique(offsets, return_counts=True)
        once = cls._of_ascending(distinct, np.diff(distinct))
        return once + cls(doubles := distinct[counts > 1], doubles + 1)

    @classmethod
    def _of_ascending(cls, offsets: Offsets, steps: Offsets) -> "Runs":
        breaks = np.flatnonzero(steps != 1)
        return cls(offsets[np.concatenate([[0], breaks + 1])], offsets[np.concatenate([breaks, [-1]])] + 1)

    def __add__(self, other: "Runs") -> "Runs":
        """Both, with what overlaps counted twice."""
        return Runs(np.concatenate([self.starts, other.starts]), np.concatenate([self.ends, other.ends]))

    def __len__(self) -> int:
        """How many runs, not how many offsets."""
        return len(self.starts)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(zip(self.starts.tolist(), self.ends.tolist(), strict=True))

    @property
    def total(self) -> int:
        """How many offsets, those that are there twice counted twice."""
        return int((self.ends - self.starts).sum())

    def once(self) -> "Runs":
        """Every offset once, in order, in the fewest runs."""
        return self._chosen(self, 1)

    def doubled(self) -> "Runs":
        """The offsets that are there more than once."""
        return self._chosen(self, 2)

    def without(self, other: "Runs") -> "Runs":
        """The offsets that are here and not in the other."""
        mine, theirs = self.once(), other.once()
        # Subtracting each of the other's runs once leaves 1 just where only ours lies.
        return _sweep(
            np.concatenate([mine.starts, mine.ends, theirs.starts, theirs.ends]),
            np.concatenate([_ones(mine), -_ones(mine), -_ones(theirs), _ones(theirs)]),
            1,
        )

    def common(self, other: "Runs") -> "Runs":
        """The offsets that are in both."""
        return (self.once() + other.once()).doubled()

    @staticmethod
    def _chosen(runs: "Runs", depth: int) -> "Runs":
        return _sweep(np.concatenate([runs.starts, runs.ends]), np.concatenate([_ones(runs), -_ones(runs)]), depth)


EMPTY = Runs.of(())


def _ones(runs: Runs) -> Offsets:
    return np.ones(len(runs), dtype=np.int64)


def _sweep(points: Offsets, steps: Offsets, depth: int) -> Runs:
    """Where the sum of the steps so far is at least `depth`."""
    if len(points) == 0:
        return EMPTY
    order = np.argsort(points, kind="stable")
    points, deep = points[order], np.cumsum(steps[order]) >= depth
    last_here = np.append(points[1:] != points[:-1], True)  # of several steps at one point only their sum counts
    points, deep = points[last_here], deep[last_here]
    turns = np.flatnonzero(np.diff(deep.astype(np.int8), prepend=0))
    edges = points[turns]
    return Runs(edges[0::2], edges[1::2])
