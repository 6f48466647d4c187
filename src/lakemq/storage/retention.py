"""Which segments may go: the oldest first, never the last, and none that somebody still needs.

Needs are positions: whoever holds one (the archive's mark, an open delay, retry or transaction) keeps the segment it
is in and all after it. Nothing goes that a durable checkpoint does not cover, and none before the head of the segment
behind it is covered too: should the checkpoint be lost, a start begins with that head.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """How much is kept; None means no such limit. Both together: a segment goes when either says so."""

    age_ms: int | None = None
    size_bytes: int | None = None


class SegmentFacts(NamedTuple):
    """One segment; `ended_ms` is when the one after it began."""

    base: int
    end: int
    ended_ms: int


def count_droppable(
    finished: list[SegmentFacts],
    end_position: int,
    policy: RetentionPolicy,
    now_ms: int,
    held_positions: Iterable[int],
    covered_position: int,
) -> int:
    """How many of the finished segments, oldest first, may go now."""
    needed = min(held_positions, default=end_position)
    count = 0
    for segment in finished:
        is_free = segment.end <= needed and segment.end < covered_position
        if not is_free or not _is_over(segment, end_position, policy, now_ms):
            break
        count += 1
    return count


def _is_over(segment: SegmentFacts, end_position: int, policy: RetentionPolicy, now_ms: int) -> bool:
    # A wall clock that was set back makes ages negative: then nothing is old, and nothing goes (F41).
    is_old = policy.age_ms is not None and now_ms - segment.ended_ms > policy.age_ms
    is_too_much = policy.size_bytes is not None and end_position - segment.end >= policy.size_bytes
    return is_old or is_too_much
