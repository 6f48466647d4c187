"""Which partitions of a topic are lent to which consumers of one app.

A lent partition is given to nobody, not even its holder, until all that was lent is acked, or it is released, or its
lease has run out. Those that may have something to lend stand in a queue, so a fetch never looks at the others, and
whoever was served goes to the back.

Pure and in memory only: after a restart nothing is lent, and what was not acked is lent again (at least once).
"""

import heapq
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(slots=True)
class Lease:
    """What one consumer has in hand: the messages from `first_index` up to `next_index`."""

    consumer: int
    first_index: int
    next_index: int
    end_ms: int  # monotonic


class Owners:
    """The leases of one app on one topic."""

    def __init__(self, partitions: Iterable[int] = ()) -> None:
        self._ready: dict[int, None] = dict.fromkeys(partitions)  # used as a queue without repeats
        self._leases: dict[int, Lease] = {}
        self._held: dict[int, dict[int, None]] = {}  # partitions by consumer
        self._ends: list[tuple[int, int]] = []  # heap of (end, partition); entries may be out of date

    @property
    def lent_count(self) -> int:
        """How many partitions are out."""
        return len(self._leases)

    @property
    def has_ready(self) -> bool:
        """Whether any partition may have something to lend."""
        return bool(self._ready)

    def lease(self, partition: int) -> Lease | None:
        """Who has that partition."""
        return self._leases.get(partition)

    def held_count(self, consumer: int) -> int:
        """How many partitions one consumer has."""
        return len(self._held.get(consumer, ()))

    def offer(self, partition: int) -> None:
        """There may be something to lend in that partition."""
        if partition not in self._leases:
            self._ready[partition] = None

    def take_ready(self) -> int | None:
        """The partition whose turn it is; it is offered again if it turns out to have something left."""
        for partition in self._ready:
            del self._ready[partition]
            return partition
        return None

    def lend(self, partition: int, lease: Lease) -> None:
        """Give it to a consumer."""
        assert partition not in self._leases, "lent twice"
        self._ready.pop(partition, None)
        self._leases[partition] = lease
        self._held.setdefault(lease.consumer, {})[partition] = None
        self._note_end(lease.end_ms, partition)

    def extend(self, partition: int, consumer: int, end_ms: int) -> bool:
        """Move the end of a lease; False if that consumer has none."""
        lease = self._leases.get(partition)
        if lease is None or lease.consumer != consumer:
            return False
        lease.end_ms = end_ms
        self._note_end(end_ms, partition)
        return True

    def release(self, partition: int) -> None:
        """It may be lent again, whoever had it."""
        lease = self._leases.pop(partition, None)
        if lease is not None:
            held = self._held[lease.consumer]
            del held[partition]
            if not held:
                del self._held[lease.consumer]
        self._ready[partition] = None

    def release_all(self, consumer: int) -> bool:
        """That consumer is gone; True if it had something."""
        held = list(self._held.get(consumer, ()))
        for partition in held:
            self.release(partition)
        return bool(held)

    def release_expired(self, now_ms: int) -> list[int]:
        """Take back what was not acked in time."""
        expired = []
        while self._ends and self._ends[0][0] <= now_ms:
            _, partition = heapq.heappop(self._ends)
            lease = self._leases.get(partition)
            if lease is not None and lease.end_ms <= now_ms:
                self.release(partition)
                expired.append(partition)
        return expired

    def _note_end(self, end_ms: int, partition: int) -> None:
        heapq.heappush(self._ends, (end_ms, partition))
        if len(self._ends) > 2 * len(self._leases) + 64:  # acked and extended leases leave entries behind
            self._ends = [(lease.end_ms, number) for number, lease in self._leases.items()]
            heapq.heapify(self._ends)
