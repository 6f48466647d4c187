"""What the broker says of deliveries, as ranges that do not overlap: every offset has one state per group.

Pure. Below the ack index and in runs beyond it a message is acked, unless it is to be tried again or dead.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

STATES_DDL = (
    "topic string, topicId int, partition int, group string, first bigint, end bigint, state string, attempts int, "
    "reason string, due timestamp"
)


class State(NamedTuple):
    """One range of one partition, for one group."""

    topic: str
    topic_id: int
    partition: int
    group: str
    first: int
    end: int
    state: str
    attempts: int | None = None
    reason: str | None = None
    due: datetime | None = None


def states_of(topic: str, topic_id: int, said: Mapping[str, Any]) -> list[State]:
    """All ranges of a topic, from what INSPECT "deliveries" answers."""
    return [
        state for app in said["apps"] for one in app["partitions"] for state in _of_partition(topic, topic_id, app, one)
    ]


def _of_partition(topic: str, topic_id: int, app: Mapping[str, Any], one: Mapping[str, Any]) -> Iterator[State]:
    group, partition = app["app"], one["partition"]
    end = one["visible_index"]
    singles: dict[int, State] = {}
    for row in app["retries"]:
        if row["partition"] == partition:
            due = datetime.fromtimestamp(row["due_ms"] / 1000, UTC)
            at = row["index"]
            singles[at] = State(topic, topic_id, partition, group, at, at + 1, "retrying", row["attempts"], None, due)
    for row in app["dead"]:
        if row["partition"] == partition:
            at = row["index"]
            reason = row["reason"] or row["cause"]
            singles[at] = State(topic, topic_id, partition, group, at, at + 1, "dead", row["attempts"], reason)
    ordered = sorted(singles)
    for first, stop, state in _runs(one, end):
        at = first
        for single in ordered[bisect_left(ordered, first) : bisect_left(ordered, stop)]:
            if at < single:
                yield State(topic, topic_id, partition, group, at, single, state)
            yield singles[single]
            at = single + 1
        if at < stop:
            yield State(topic, topic_id, partition, group, at, stop, state)


def _runs(one: Mapping[str, Any], end: int) -> list[tuple[int, int, str]]:
    """From 0 to the end: acked, delivered (lent, or acked by its holder later) or pending."""
    marks = [(0, min(max(one["ack_index"], 0), end), "acked")]
    marks += [(first, min(stop, end), "acked") for first, stop in one["done"]]
    marks += [(first, min(stop, end), "delivered") for first, stop in one["lent"]]
    found: list[tuple[int, int, str]] = []
    at = 0
    for first, stop, state in sorted(marks):
        first = max(first, at)
        if first >= stop:
            continue
        if at < first:
            found.append((at, first, "pending"))
        found.append((first, stop, state))
        at = stop
    if at < end:
        found.append((at, end, "pending"))
    return found
