"""Ranges of offsets: what a batch offers, how far a table has come, and what of the one fits on the other.

Pure. `first` is included, `end` is not.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from lakemq.pipeline.lake.errors import HalfArchivedError, NotNextError
from lakemq.pipeline.lake.layout import MESSAGES


class PartitionKey(NamedTuple):
    """A partition of one incarnation of a topic: a topic of the same name made later has another id."""

    topic_id: int
    partition: int


class Span(NamedTuple):
    """What a table holds of a partition: from the first offset that was archived, and not retired, to the position."""

    first: int
    end: int


@dataclass(frozen=True, slots=True)
class Range:
    """Offsets of one partition that a batch has read and now offers. `table` is `messages` or `events`."""

    topic: str
    topic_id: int
    partition: int
    first: int
    end: int
    table: str = MESSAGES

    @property
    def key(self) -> PartitionKey:
        return PartitionKey(self.topic_id, self.partition)


@dataclass(frozen=True, slots=True)
class Gap:
    """Offsets that the lake will never have, and why. `timestamp` is when that was found; None stands for now."""

    topic: str
    topic_id: int
    partition: int
    first: int
    end: int
    reason: str
    timestamp: datetime | None = None

    @property
    def key(self) -> PartitionKey:
        return PartitionKey(self.topic_id, self.partition)


@dataclass(frozen=True, slots=True)
class Plan:
    """Which of the offered ranges a table takes, and how far it then has come."""

    taken: tuple[Range, ...]
    skipped: tuple[Range, ...]
    spans: dict[PartitionKey, Span]  # only those that move


def fit(offered: Iterable[Range], held: Mapping[PartitionKey, Span]) -> Plan:
    """Take the ranges that start where the table ends, skip those it has; raise on a hole or on half a range.

    A partition that the table knows nothing of may start anywhere.
    """
    taken, skipped = [], []
    spans: dict[PartitionKey, Span] = {}
    for one in sorted(offered, key=lambda one: (one.key, one.first, one.end)):
        if one.first > one.end:
            raise NotNextError(f"{_name(one)} ends before it begins")
        span = spans.get(one.key, held.get(one.key))
        if span is None:
            span = Span(one.first, one.first)
        elif one.end <= span.end:
            skipped.append(one)
            continue
        if one.first < span.end:
            raise HalfArchivedError(f"{_name(one)} was offered, but all before {span.end} is archived already")
        if one.first > span.end:
            raise NotNextError(f"{_name(one)} was offered, but offset {span.end} is the next to be archived")
        taken.append(one)
        spans[one.key] = Span(span.first, one.end)
    return Plan(tuple(taken), tuple(skipped), spans)


def _name(one: Range) -> str:
    return f"{one.topic} (id {one.topic_id}), partition {one.partition}, offsets {one.first} to {one.end}"
