"""What keeps an app from going on in a partition: messages that others must wait for, and leases that ran out.

A fold over SETTLE records, so that a restart neither forgives an attempt nor counts it twice.
"""

import json
from collections.abc import Container

from lakemq.delivery.intervals import Undo
from lakemq.delivery.settlement import LeaseEnded, Stuck

_Key = tuple[int, int]  # subscription, partition


class Setbacks:
    """Stuck messages by place, and how often leases ran out, by the first message that they had."""

    def __init__(self) -> None:
        self._stuck: dict[_Key, dict[int, Stuck]] = {}
        self._ended: dict[_Key, dict[int, tuple[int, int]]] = {}  # first index -> next index, how often

    def stuck(self, subscription: int, partition: int) -> dict[int, Stuck]:
        """The messages of a partition that others wait for, by index; not to be changed."""
        return self._stuck.get((subscription, partition), {})

    def put(self, row: Stuck) -> Undo:
        """A message failed, or (0 attempts) others need not wait for it any more."""
        key = row.subscription, row.partition
        rows = self._stuck.setdefault(key, {})
        before = rows.get(row.message_index)
        if row.attempts:
            rows[row.message_index] = row
        else:
            rows.pop(row.message_index, None)
        if not rows:
            del self._stuck[key]

        def undo() -> None:
            rows = self._stuck.setdefault(key, {})
            rows.pop(row.message_index, None)
            if before is not None:
                rows[row.message_index] = before
            if not rows:
                del self._stuck[key]

        return undo

    def ended(self, row: LeaseEnded) -> Undo:
        """A lease ran out."""
        key = row.subscription, row.partition
        before = self._ended.get(key, {})
        times = 1 + self.times_ended(*row)
        after = {
            first: kept
            for first, kept in before.items()
            if kept[0] <= row.first_index or first >= row.next_index  # what overlaps is counted in the new one
        }
        after[row.first_index] = (row.next_index, times)
        self._ended[key] = after
        return lambda: self._ended.__setitem__(key, before)

    def times_ended(self, subscription: int, partition: int, first: int, after: int) -> int:
        """How often a lease ran out that had any of these messages."""
        ended = self._ended.get((subscription, partition))
        if not ended:
            return 0
        return max((times for begin, (end, times) in ended.items() if begin < after and first < end), default=0)

    @property
    def has_ended(self) -> bool:
        """Whether any lease is known to have run out."""
        return bool(self._ended)

    def forget_below(self, subscription: int, partition: int, index: int) -> Undo:
        """The app is past it."""
        key = subscription, partition
        ended = self._ended.get(key)
        if not ended:
            return lambda: None
        left = {first: kept for first, kept in ended.items() if kept[0] > index}
        if left:
            self._ended[key] = left
        else:
            del self._ended[key]
        return lambda: self._ended.__setitem__(key, ended)

    def pack(self, kept: Container[int]) -> bytes:
        """Of these subscriptions."""
        stuck = [row for key, rows in self._stuck.items() if key[0] in kept for row in rows.values()]
        ended = [
            [*key, first, *row] for key, rows in self._ended.items() if key[0] in kept for first, row in rows.items()
        ]
        return json.dumps([stuck, ended], separators=(",", ":")).encode() if stuck or ended else b""

    def restore(self, data: bytes) -> None:
        """Begin from what `pack` gave."""
        self._stuck, self._ended = {}, {}
        stuck, ended = json.loads(data) if data else ([], [])
        for row in stuck:
            self.put(Stuck(*row))
        for subscription, partition, first, after, times in ended:
            self._ended.setdefault((subscription, partition), {})[first] = (after, times)
