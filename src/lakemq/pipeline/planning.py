"""Ranges of partitions shared out among tasks. Pure.

A task costs some ten milliseconds whatever it does, so small ranges go together in one; a range that is large is cut,
which is exact because offsets have no gaps.
"""

from dataclasses import dataclass, field
from itertools import pairwise

from lakemq.pipeline.positions import Place, Positions

_TASK_OFFSETS = 50_000  # below this it is not worth a task of its own


@dataclass(frozen=True, slots=True)
class Range:
    """Messages of one partition. `files`: they are in the lake, in these files, and no longer at the broker."""

    topic: str
    partition: int
    first: int
    end: int
    topic_id: int = 0
    files: tuple[str, ...] = field(default=(), repr=False)

    @property
    def count(self) -> int:
        return self.end - self.first


def between(start: Positions, end: Positions) -> list[Range]:
    """What lies between two positions; a partition that is new begins at 0."""
    return [
        Range(topic, partition, start.get((topic, partition), 0), stop)
        for (topic, partition), stop in sorted(end.items())
        if start.get((topic, partition), 0) < stop
    ]


def limit(start: Positions, end: Positions, offsets_max: int) -> Positions:
    """An end that is at most so many offsets away, each partition with its share, none left out for ever."""
    lags = {place: max(stop - start.get(place, 0), 0) for place, stop in end.items()}
    total = sum(lags.values())
    if total <= offsets_max:
        return dict(end)
    limited: Positions = {}
    left = offsets_max
    for place, lag in sorted(
        lags.items(), key=lambda entry: entry[1]
    ):  # the small first: what they leave is the others'
        share = _share(lag, total, left)
        limited[place] = start.get(place, 0) + share
        left -= share
        total -= lag
    return limited


def _share(lag: int, total: int, left: int) -> int:
    if lag == 0 or left <= 0:
        return 0
    return min(lag, left, max(1, -(-left * lag // total)))


def split(ranges: list[Range], partitions_min: int | None, records_max: int | None) -> list[Range]:
    """Large ranges cut, so that there are enough tasks and none is too large."""
    size = records_max or 0
    if partitions_min is not None and partitions_min > len(ranges):
        total = sum(one.count for one in ranges)
        even = max(1, -(-total // partitions_min))
        size = min(size, even) if size else even
    return [piece for one in ranges for piece in _cut(one, size)]


def _cut(one: Range, size: int) -> list[Range]:
    if not size or one.count <= size:
        return [one]
    pieces = -(-one.count // size)
    edges = [one.first + one.count * k // pieces for k in range(pieces + 1)]
    return [Range(one.topic, one.partition, a, b, one.topic_id, one.files) for a, b in pairwise(edges)]


def pack(ranges: list[Range], partitions_min: int | None) -> list[tuple[Range, ...]]:
    """Tasks of about equal size."""
    total = sum(one.count for one in ranges)
    tasks = max(min(-(-total // _TASK_OFFSETS), len(ranges)), partitions_min or 1)
    tasks = min(tasks, len(ranges))
    if tasks == len(ranges):
        return [(one,) for one in ranges]
    bins: list[list[Range]] = [[] for _ in range(tasks)]
    sizes = [0] * tasks
    for one in sorted(ranges, key=lambda one: -one.count):
        least = sizes.index(min(sizes))
        bins[least].append(one)
        sizes[least] += one.count
    return [tuple(sorted(some, key=lambda one: (one.topic, one.partition, one.first))) for some in bins if some]


def places(ranges: list[Range]) -> set[Place]:
    """The partitions they are of."""
    return {(one.topic, one.partition) for one in ranges}
