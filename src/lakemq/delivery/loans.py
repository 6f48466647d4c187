"""Which messages of a topic are lent to which consumers of one app.

Normally a lent partition is given to nobody, not even its holder, until all that was lent is settled, or it is given
back, or its lease has run out. In parallel consumption several leases may be out in one partition at a time, each with
messages of its own. What comes back unsettled is lent again before anything newer. Partitions that may have something
to lend stand in a queue, so a fetch never looks at the others, and whoever was served goes to the back.

Pure and in memory only: after a restart nothing is lent, and what was not acked is lent again (at least once).
"""

import heapq
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Sequence
from itertools import count
from operator import attrgetter, itemgetter

from lakemq.delivery.intervals import Intervals

Runs = list[tuple[int, int]]
Key = bytes | None
ANY_KEY: Key = None  # of a batch: the keys of its members, whatever they are
KeyedRun = tuple[int, int, Key]  # messages that follow one another and share a key


class Lease:
    """What one consumer has in hand of one partition: the messages from `first_index` up to `next_index`."""

    __slots__ = ("consumer", "end_ms", "first_index", "is_over", "keyed", "next_index", "open", "partition", "trace")

    def __init__(
        self,
        consumer: int,
        partition: int,
        first_index: int,
        next_index: int,
        end_ms: int,
        keyed: Sequence[KeyedRun] = (),
    ) -> None:
        self.consumer = consumer
        self.partition = partition
        self.first_index = first_index
        self.next_index = next_index
        self.end_ms = end_ms  # monotonic
        self.keyed = keyed  # the keys of its messages, where messages of one key must keep their order
        self.open = Intervals([(first_index, next_index)])  # not settled yet
        self.is_over = False
        self.trace: object = None  # what whoever traces it has to remember

    def open_keys(self) -> set[Key]:
        """The keys of the messages that are not settled yet."""
        return {key for first, after, key in self.keyed if self.open.within(first, after)}

    def open_behind(self, index: int) -> Runs:
        """The unsettled messages from that one on which share its key, or may."""
        at = bisect_right(self.keyed, index, key=itemgetter(0)) - 1
        key = self.keyed[at][2] if at >= 0 else ANY_KEY
        return [
            run
            for first, after, other in self.keyed
            if after > index and (key is ANY_KEY or other is ANY_KEY or other == key)
            for run in self.open.within(max(first, index), after)
        ]


Share = tuple[Lease | None, Runs]  # some of the messages that a lease was given
_first_index = attrgetter("first_index")


class _Partition:
    __slots__ = ("leases", "pull_index", "returned")

    def __init__(self) -> None:
        self.leases: list[Lease] = []
        self.returned = Intervals()  # was lent, came back, and is to be lent again
        self.pull_index = 0  # all below was lent or settled


class Loans:
    """The leases of one app on one topic."""

    def __init__(self, partitions: Iterable[int] = ()) -> None:
        self._partitions: dict[int, _Partition] = {}
        self._ready: dict[int, None] = dict.fromkeys(partitions)  # used as a queue without repeats
        self._held: dict[int, dict[Lease, None]] = {}  # by consumer
        self._ends: list[tuple[int, int, Lease]] = []  # heap by end; entries may be out of date
        self._deferred: list[tuple[int, int]] = []  # heap of (until, partition)
        self._numbers = count()
        self.lent_count = 0  # leases that are out

    @property
    def has_ready(self) -> bool:
        """Whether any partition may have something to lend."""
        return bool(self._ready)

    def offer(self, partition: int) -> None:
        """There may be something to lend in that partition."""
        self._ready[partition] = None

    def offer_seen(self) -> None:
        """The same for every partition that was looked at before."""
        self._ready.update(dict.fromkeys(self._partitions))

    def take_ready(self) -> int | None:
        """The partition whose turn it is; it is to be offered again if it has something left."""
        for partition in self._ready:
            del self._ready[partition]
            return partition
        return None

    def defer(self, partition: int, until_ms: int) -> None:
        """There will be something to lend, not before that (monotonic) time."""
        self._ready.pop(partition, None)
        heapq.heappush(self._deferred, (until_ms, partition))

    def offer_deferred(self, now_ms: int) -> None:
        """Time has passed."""
        while self._deferred and self._deferred[0][0] <= now_ms:
            self.offer(heapq.heappop(self._deferred)[1])

    # --- asking ------------------------------------------------------------------------------------------------

    def leases(self, partition: int) -> list[Lease]:
        """Who has something of that partition; not to be changed."""
        known = self._partitions.get(partition)
        return known.leases if known is not None else []

    def open_count(self, partition: int) -> int:
        """How many messages of that partition are in consumers' hands."""
        return sum(lease.open.count for lease in self.leases(partition))

    def lease_of(self, partition: int, index: int) -> Lease | None:
        """The lease that has that message and has not settled it."""
        known = self._partitions.get(partition)
        if known is None:
            return None
        behind = bisect_right(known.leases, index, key=_first_index)
        if behind and index in known.leases[behind - 1].open:  # as nearly always
            return known.leases[behind - 1]
        return next((lease for lease in _overlapping(known, index, index + 1) if index in lease.open), None)

    def touched(self, partition: int, consumer: int, runs: Runs) -> list[Lease]:
        """The leases of that consumer that were given any of these messages, settled or not."""
        known = self._partitions.get(partition)
        if known is None:
            return []
        found = [lease for first, after in runs for lease in _overlapping(known, first, after)]
        return list(dict.fromkeys(lease for lease in found if lease.consumer == consumer))

    def begins_lease(self, partition: int, consumer: int, index: int) -> bool:
        """Whether that is the first message which that consumer has in a lease and has not settled."""
        lease = self.lease_of(partition, index)
        if lease is None or lease.consumer != consumer:
            return False
        first_run = lease.open.first_run
        return first_run is not None and first_run[0] == index

    def shares(self, partition: int, runs: Runs) -> list[Share]:
        """Runs in order, those within one lease together; alone, and with None, one that is not within any."""
        known = self._partitions.get(partition)
        leases = known.leases if known is not None else []
        shares: list[Share] = []
        at = 0
        while at < len(runs):
            first, after = runs[at]
            behind = bisect_right(leases, first, key=_first_index)
            lease = leases[behind - 1] if behind else None
            stop = at + 1
            if lease is None or after > lease.next_index:
                shares.append((None, runs[at:stop]))
                at = stop
                continue
            limit = lease.next_index
            if behind < len(leases) and leases[behind].first_index < limit:
                limit = leases[behind].first_index
            stop = bisect_left(runs, (limit,), stop)
            if runs[stop - 1][1] > lease.next_index:
                stop -= 1
            shares.append((lease, runs[at:stop]))
            at = stop
        return shares

    def held_count(self, consumer: int) -> int:
        """How many partitions one consumer has something of."""
        return len({lease.partition for lease in self._held.get(consumer, ())})

    def not_to_settle(
        self, partition: int, consumer: int, shares: list[Share], base: int, beyond: Intervals
    ) -> tuple[int, int] | None:
        """The first run that begins above `base` and is not this consumer's to settle.

        It is if all of its messages are in that consumer's hands, or were lent and are nobody's now, or are settled.
        """
        for lease, runs in shares:
            if lease is not None and lease.consumer == consumer:
                continue  # as nearly always
            for first, after in runs:
                if first > base and not self._is_free(partition, consumer, first, after, beyond):
                    return first, after
        return None

    def _is_free(self, partition: int, consumer: int, first: int, after: int, beyond: Intervals) -> bool:
        left = Intervals([(first, after)])
        for run in beyond.within(first, after):
            left.remove(*run)
        known = self._partitions.get(partition)
        if known is not None:
            for run in known.returned.within(first, after):
                left.remove(*run)
            for lease in known.leases:
                if lease.consumer == consumer:
                    left.remove(lease.first_index, lease.next_index)
        return not left

    def next_run(self, partition: int, ack_index: int, beyond: Intervals) -> tuple[int, int | None]:
        """What is to be lent next: from where, and up to where if there is such an end.

        `beyond` is what may not be lent above the ack index: it is settled, or has to wait.
        """
        known = self._partitions.setdefault(partition, _Partition())
        known.returned.drop_below(ack_index)
        for first, after in known.returned:
            free, following = beyond.gap_from(first)
            if free < after:
                return free, after if following is None else min(after, following)
        known.pull_index = max(known.pull_index, ack_index)
        return beyond.gap_from(known.pull_index)

    # --- lending -----------------------------------------------------------------------------------------------

    def lend(self, lease: Lease) -> None:
        """Give messages to a consumer."""
        known = self._partitions.setdefault(lease.partition, _Partition())
        insort(known.leases, lease, key=_first_index)
        known.returned.remove(lease.first_index, lease.next_index)
        known.returned.add(known.pull_index, lease.first_index)  # what had to wait is lent later
        known.pull_index = max(known.pull_index, lease.next_index)
        self._held.setdefault(lease.consumer, {})[lease] = None
        self.lent_count += 1
        self._note_end(lease)

    def settle(self, partition: int, first: int, after: int) -> None:
        """These messages are done with, whoever had them."""
        self.settle_shares(partition, self.shares(partition, [(first, after)]))

    def settle_shares(self, partition: int, shares: list[Share]) -> None:
        """The same for all of these runs; nothing may have been lent or settled since they were shared out."""
        known = self._partitions.get(partition)
        if known is None:
            return
        for lease, runs in shares:
            if known.returned:
                known.returned.cut_all(runs)
            if lease is not None:  # as nearly always
                self._settle_in(lease, runs)
                continue
            ((first, after),) = runs
            if first <= known.pull_index < after:
                known.pull_index = after
            for part in _overlapping(known, first, after):
                self._settle_in(part, runs)

    def _settle_in(self, lease: Lease, runs: Runs) -> None:
        lease.open.cut_all(runs)
        if not lease.open and not lease.is_over:
            self._end(lease)

    def reopen(self, partition: int, first: int, after: int) -> None:
        """These messages are not settled after all: who has their lease has them still, the others are lent again."""
        known = self._partitions.setdefault(partition, _Partition())
        left = Intervals([(first, after)])
        for lease in _overlapping(known, first, after):
            for run in left.within(lease.first_index, lease.next_index):
                lease.open.add(*run)
                left.remove(*run)
        for run in left:
            self.lend_again(partition, *run)

    def lend_again(self, partition: int, first: int, after: int) -> None:
        """These messages are in nobody's hands and not settled."""
        known = self._partitions.setdefault(partition, _Partition())
        known.returned.add(first, after)
        known.pull_index = max(known.pull_index, after)
        self.offer(partition)

    def take_out(self, partition: int, first: int, after: int) -> None:
        """What is not settled of these leaves its lease, to be lent again; who has that lease keeps the rest of it."""
        known = self._partitions.setdefault(partition, _Partition())
        for lease in _overlapping(known, first, after):
            for run in lease.open.within(first, after):
                known.returned.add(*run)
            lease.open.remove(first, after)
            if not lease.open:
                self._end(lease)
        self.offer(partition)

    def give_back(self, partition: int, first: int, after: int) -> None:
        """Whoever has these messages does not want them, nor what else is in the lease: lend them again."""
        known = self._partitions.setdefault(partition, _Partition())
        for lease in _overlapping(known, first, after):
            self.release(lease)
        self.lend_again(partition, first, after)

    def extend(self, partition: int, consumer: int, end_ms: int) -> bool:
        """Move the end of what a consumer has of a partition; False if that is nothing."""
        mine = [lease for lease in self.leases(partition) if lease.consumer == consumer]
        for lease in mine:
            lease.end_ms = end_ms
            self._note_end(lease)
        return bool(mine)

    def release(self, lease: Lease) -> None:
        """What is not settled of it may be lent again."""
        if lease.is_over:
            return
        known = self._partitions[lease.partition]
        for run in lease.open:
            known.returned.add(*run)
        self._end(lease)

    def release_partition(self, partition: int) -> None:
        """The same for all that is lent of a partition."""
        for lease in list(self.leases(partition)):
            self.release(lease)
        self.offer(partition)

    def release_all(self, consumer: int) -> bool:
        """That consumer is gone; True if it had something."""
        held = list(self._held.get(consumer, ()))
        for lease in held:
            self.release(lease)
        return bool(held)

    def take_expired(self, now_ms: int) -> list[Lease]:
        """Take back what was not acked in time."""
        expired = []
        while self._ends and self._ends[0][0] <= now_ms:
            lease = heapq.heappop(self._ends)[2]
            if not lease.is_over and lease.end_ms <= now_ms:
                self.release(lease)
                expired.append(lease)
        return expired

    def move(self, partition: int, index: int) -> None:
        """The app goes on from that index, whatever was lent."""
        for lease in list(self.leases(partition)):
            self._end(lease)
        known = self._partitions.setdefault(partition, _Partition())
        known.returned.clear()
        known.pull_index = index
        self.offer(partition)

    def _end(self, lease: Lease) -> None:
        lease.is_over = True
        self._partitions[lease.partition].leases.remove(lease)
        held = self._held[lease.consumer]
        del held[lease]
        if not held:
            del self._held[lease.consumer]
        self.lent_count -= 1
        self.offer(lease.partition)

    def _note_end(self, lease: Lease) -> None:
        heapq.heappush(self._ends, (lease.end_ms, next(self._numbers), lease))
        if len(self._ends) > 2 * self.lent_count + 64:  # settled and extended leases leave entries behind
            current = {id(entry[2]): entry for entry in self._ends if not entry[2].is_over}
            self._ends = [(entry[2].end_ms, entry[1], entry[2]) for entry in current.values()]
            heapq.heapify(self._ends)


def _overlapping(known: _Partition, first: int, after: int) -> list[Lease]:
    return [lease for lease in known.leases if lease.first_index < after and first < lease.next_index]
