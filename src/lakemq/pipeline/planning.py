"""Ranges of partitions shared out among tasks. Pure.

A task costs some ten milliseconds whatever it does, so small ranges go together in one; a range that is large is cut,
which is exact because offsets have no gaps.
"""

import heapq
from dataclasses import dataclass, field
from itertools import islice, pairwise

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
    shares = (
        _turns(start, lags, offsets_max) if offsets_max < sum(map(bool, lags.values())) else _shares(lags, offsets_max)
    )
    return {place: start.get(place, 0) + shares.get(place, 0) for place in end}


def _shares(lags: dict[Place, int], left: int) -> dict[Place, int]:
    """By lag, and one at least. The small first: what they leave is the others'."""
    total = sum(lags.values())
    shares: dict[Place, int] = {}
    for place, lag in sorted(lags.items(), key=lambda entry: entry[1]):
        if lag:
            shares[place] = min(lag, left, max(1, -(-left * lag // total)))
            left -= shares[place]
            total -= lag
    return shares


def _turns(start: Positions, lags: dict[Place, int], count: int) -> dict[Place, int]:
    """One each for as many as there are, and others next time.

    Each such batch moves the sum of all offsets by `count`; so a beginning that is that sum goes round, with nothing to
    be remembered, and everybody who waits is among the first `count` once in a round.
    """
    places = sorted(lags)
    first = sum(start.get(place, 0) for place in places) % len(places)
    waiting = (place for place in [*places[first:], *places[:first]] if lags[place])
    return dict.fromkeys(islice(waiting, count), 1)


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


def pack(ranges: list[Range], partitions_min: int | None, records_max: int | None = None) -> list[tuple[Range, ...]]:
    """Tasks of about equal size, none larger than `records_max`."""
    total = sum(one.count for one in ranges)
    tasks = max(min(-(-total // _TASK_OFFSETS), len(ranges)), partitions_min or 1)
    if records_max:
        tasks = max(tasks, -(-total // records_max))
    tasks = min(tasks, len(ranges))
    if tasks == len(ranges):
        return [(one,) for one in ranges]
    bins: list[list[Range]] = [[] for _ in range(tasks)]
    sizes = [(0, number) for number in range(tasks)]  # a heap: the emptiest first
    for one in sorted(ranges, key=lambda one: -one.count):
        size, least = sizes[0]
        if records_max and size and size + one.count > records_max:
            heapq.heappush(sizes, (one.count, len(bins)))
            bins.append([one])
        else:
            bins[least].append(one)
            heapq.heapreplace(sizes, (size + one.count, least))
    return [tuple(sorted(some, key=lambda one: (one.topic, one.partition, one.first))) for some in bins if some]


def places(ranges: list[Range]) -> set[Place]:
    """The partitions they are of."""
    return {(one.topic, one.partition) for one in ranges}
