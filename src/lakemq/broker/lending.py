"""Which messages a fetch gets: the next of a partition, or some that are to be tried again.

Everything that decides on it is here: whose turn it is, what is lent already, what waits (a delay, a message that
others must wait for, a key that is busy), what a filter leaves out, what has expired. What is left out or expired is
settled here, too, for nobody will ack it.
"""

from collections import deque
from collections.abc import Iterable
from functools import lru_cache, partial

from lakemq.attributes import encode_attributes
from lakemq.broker.answers import code_of
from lakemq.broker.config import BrokerConfig
from lakemq.broker.events import Now
from lakemq.broker.ledger import Ledger
from lakemq.broker.metrics import Metrics
from lakemq.broker.outcomes import Outcomes
from lakemq.broker.references import References, with_attempts
from lakemq.broker.sessions import AppRates, Connection, Sessions
from lakemq.broker.waiters import Poll
from lakemq.cluster.metadata import Subscription, Topic
from lakemq.delivery.filters import Filter, parse_filter
from lakemq.delivery.guarded_clock import GuardedClock
from lakemq.delivery.intervals import Intervals
from lakemq.delivery.loans import Key, KeyedRun, Lease, Loans
from lakemq.delivery.retry_queue import RetryQueue
from lakemq.delivery.selection import is_expired, select, until_conflict
from lakemq.delivery.settlement import Acked, DeadLetter, Entry, Retry, Stuck
from lakemq.errors import LakeMQError, OrderedStateError, ReadError
from lakemq.policy import ConsumerPolicy
from lakemq.storage.fetch import RecordSlice
from lakemq.wire.dialect import Dialect
from lakemq.wire.messages import EMPTY, MessageBlock, join

Slices = list[RecordSlice]
_ROUNDS_MAX = 32  # looks at partitions where all is left out, in one fetch
_EVERYTHING = 1 << 62
_WRITE_AGAIN_MS = 1000
_TAGS_LOOKED_AT = 20_000  # entries of an index in one look

filter_of = lru_cache(4096)(parse_filter)


class Lending:
    """One app on one topic: what is lent, and who waits for more."""

    __slots__ = (
        "_credit",
        "app",
        "growths",
        "is_ordered",
        "loans",
        "number",
        "parked",
        "readable_count",
        "retries",
        "topic",
        "topic_number",
    )

    def __init__(
        self, topic: Topic, subscription: Subscription, partitions: Iterable[int], retries: Iterable[Retry]
    ) -> None:
        self.topic = topic.name
        self.topic_number = topic.number
        self.is_ordered = topic.type == "ordered"
        self.growths = topic.growths  # those that are not past yet
        self.readable_count = topic.readable_count
        self.app = subscription.app
        self.number = subscription.number
        self.loans = Loans(partitions)
        self.retries = RetryQueue(retries)
        self.parked: deque[Poll] = deque()
        self._credit = 0

    def is_retry_turn(self, probability: int) -> bool:
        """Whether this fetch looks at the retries first: so many of a hundred do, evenly spread."""
        self._credit += probability
        if self._credit < 100:
            return False
        self._credit -= 100
        return True

    def has_ready(self, now_ms: int) -> bool:
        """Whether there may be something to lend now, by the guarded clock."""
        due_ms = self.retries.next_due_ms()
        return self.loans.has_ready or (due_ms is not None and due_ms <= now_ms)


class Lender:
    """Picks messages and lends them."""

    def __init__(
        self,
        ledger: Ledger,
        config: BrokerConfig,
        sessions: Sessions,
        metrics: Metrics,
        references: References,
        outcomes: Outcomes,
        clock: GuardedClock,
    ) -> None:
        self._ledger = ledger
        self._group = ledger.group
        self._config = config
        self._sessions = sessions
        self._metrics = metrics
        self._references = references
        self._outcomes = outcomes
        self._clock = clock

    def lend(
        self,
        connection: Connection,
        lending: Lending,
        policy: ConsumerPolicy,
        count: int,
        ack_timeout_ms: int,
        bytes_max: int,
        now: Now,
    ) -> MessageBlock:
        """Messages for one fetch, lent to this consumer; none if there are none, or it may not have more."""
        if bytes_max <= 0 or not lending.has_ready(self._clock.read(now)):
            return EMPTY
        rates = self._sessions.rates_of(lending.app, self._ledger.metadata, now.monotonic_ms)
        if rates is not None and not self.may_fetch(rates, now):
            return EMPTY
        count = min(count, policy.batch_size) if count > 0 else policy.batch_size
        end_ms = now.monotonic_ms + (ack_timeout_ms if ack_timeout_ms > 0 else policy.ack_timeout_ms)
        is_retry_turn = lending.is_retry_turn(policy.retry_read_probability)
        block = EMPTY
        if is_retry_turn:
            block = self._lend_retries(connection, lending, policy, count, end_ms, bytes_max, now)
        index_count = block.count
        if not block:
            block, index_count = self._lend_fresh(connection, lending, policy, count, end_ms, bytes_max, now)
        if not block and not is_retry_turn:
            block = self._lend_retries(connection, lending, policy, count, end_ms, bytes_max, now)
            index_count = block.count
        self.count_out(lending.topic, lending.app, index_count, block, rates, now)
        return block

    # --- retries -----------------------------------------------------------------------------------------------

    def _lend_retries(
        self,
        connection: Connection,
        lending: Lending,
        policy: ConsumerPolicy,
        count: int,
        end_ms: int,
        bytes_max: int,
        now: Now,
    ) -> MessageBlock:
        """Messages that failed and are due. JoyQueue's clients take them one at a time."""
        blocks: list[MessageBlock] = []
        size = 0
        if connection.dialect is Dialect.JOYQUEUE:
            count = 1
        now_ms = self._clock.read(now)
        while len(blocks) < count and size < bytes_max:
            retry_id = lending.retries.take_due(now_ms)
            if retry_id is None:
                break
            row = self._ledger.state.retries.get(retry_id)
            if row is None:
                continue
            if row.position >= self._group.journal.written_position:  # it moved in this very turn
                lending.retries.put(retry_id, now_ms + 1)
                continue
            try:
                block = self._retry_block(connection, lending, policy, row, now)
            except LakeMQError as error:  # what became of it cannot be written: it waits here
                self._metrics.errors[code_of(error)] += 1
                lending.retries.put(retry_id, now_ms + _WRITE_AGAIN_MS)
                break
            if block is not None:
                lending.retries.lend(retry_id, connection.port.id, end_ms)
                blocks.append(block)
                size += len(block)
        return join(blocks, connection.dialect or Dialect.DOCUMENTED) if blocks else EMPTY

    def _retry_block(
        self, connection: Connection, lending: Lending, policy: ConsumerPolicy, row: Retry, now: Now
    ) -> MessageBlock | None:
        """A retry as this client takes it; None if it has expired, or cannot be handed out this time."""
        try:
            message, address = self._references.read(row.position, row.message_index)
            attributes = encode_attributes(message.attributes)
            is_over = is_expired(attributes, self._clock.read(now), message.stored_at_ms)
            data = self._references.as_retry(message, row.id, row.attempts + 1, tells_origin=connection.is_ours)
            block = MessageBlock(1, (data,), client_address=address)
            if connection.dialect is Dialect.JOYQUEUE:
                block = join([block], Dialect.JOYQUEUE)
        except LakeMQError as error:  # not to be read, or not to be given to this client
            self._metrics.errors[code_of(error)] += 1
            self._outcomes.try_again(lending, policy, row, f"it could not be handed out: {error}", now)
            return None
        if is_over:
            self._outcomes.die(lending, row, "expired", "its EXPIRE has passed", now)
            return None
        self._ledger.tracing.retry_delivered(lending, row, message, connection, now)
        return block

    # --- the next of a partition -----------------------------------------------------------------------------------

    def _lend_fresh(
        self,
        connection: Connection,
        lending: Lending,
        policy: ConsumerPolicy,
        count: int,
        end_ms: int,
        bytes_max: int,
        now: Now,
    ) -> tuple[MessageBlock, int]:
        loans = lending.loans
        if loans.held_count(connection.port.id) >= policy.partitions_max:
            return EMPTY, 0
        unreadable: LakeMQError | None = None
        tried: list[int] = []
        block, lease = EMPTY, None
        for _ in range(_ROUNDS_MAX):
            partition = loans.take_ready()
            if partition is None:
                break
            try:
                block, lease = self._lend_partition(
                    connection, lending, policy, partition, count, end_ms, bytes_max, now
                )
            except LakeMQError as error:
                unreadable = unreadable or error
                tried.append(partition)
                continue
            except Exception:  # a bug: whoever comes next may have more luck
                loans.offer(partition)
                raise
            if lease is not None:
                break
        for partition in tried:  # the damage stays until somebody seeks past it; the others go on
            loans.offer(partition)
        if lease is None:
            if unreadable is not None:
                raise unreadable
            return EMPTY, 0
        loans.lend(lease)
        if policy.is_concurrent:
            loans.offer(lease.partition)
        return block, lease.open.count

    def _lend_partition(
        self,
        connection: Connection,
        lending: Lending,
        policy: ConsumerPolicy,
        partition: int,
        count: int,
        end_ms: int,
        bytes_max: int,
        now: Now,
    ) -> tuple[MessageBlock, Lease | None]:
        """A lease on the next messages of that partition, if there is something to lend."""
        loans = lending.loans
        leases = loans.leases(partition)
        if partition >= lending.readable_count:
            return EMPTY, None
        room = self._room(lending, policy, partition)
        if room <= 0:
            return EMPTY, None
        count = min(count, room)
        is_ordered = lending.is_ordered or policy.is_sequential
        not_now = self._not_now(lending, partition, is_ordered and not policy.is_concurrent, now)
        if not_now is None:
            return EMPTY, None
        first, stop = loans.next_run(partition, self._ack_index(lending, partition, now), not_now)
        visible = self._group.visible_index(lending.topic_number, partition)
        end = visible if stop is None else min(stop, visible)
        if lending.growths:
            end = min(end, self._growth_end(lending, partition))
        if first >= end:
            return EMPTY, None
        wanted = filter_of(policy.filter)
        if wanted.tag_hashes is not None:
            first = self._skip_by_tag(lending, partition, first, end, wanted.tag_hashes, now)
            if first >= end:
                if end < visible or lending.growths:
                    loans.offer(partition)  # there may be more behind it, or in those that waited for it
                return EMPTY, None
        slices = self._group.read(lending.topic_number, partition, first, min(count, end - first), bytes_max)
        if policy.delay_ms:
            slices = self._old_enough(lending, partition, slices, policy.delay_ms, now)
        keyed: list[KeyedRun] = []
        if is_ordered and policy.is_concurrent:
            slices, keyed = self._without_busy_keys(lending, partition, first, slices, now)
        if not slices:
            return EMPTY, None
        lease = Lease(connection.port.id, partition, first, slices[-1].next_index, end_ms, keyed)
        for taken in (not_now, *(other.open for other in leases)):  # a batch comes whole, whoever has a part of it
            for run in taken.within(lease.first_index, lease.next_index):
                lease.open.remove(*run)
        if not wanted.is_all or (lending.topic_number, partition) in self._ledger.state.expiring:
            slices = self._selected(lending, slices, wanted, lease, now)
        if not slices or not lease.open:
            loans.offer(partition)  # there may be more behind what was left out
            return EMPTY, None
        if is_ordered and connection.is_ours:
            slices = self._counted(lending, partition, slices)
        try:
            block = self.joined(connection, slices)
            self._ledger.tracing.delivered(lending, lease, slices[0].store_time_ms, connection, now)
            return block, lease
        except ReadError:  # one of them cannot be given to this client: those before it come alone
            if count == 1:
                raise
        return self._lend_partition(connection, lending, policy, partition, 1, end_ms, bytes_max, now)

    def _room(self, lending: Lending, policy: ConsumerPolicy, partition: int) -> int:
        """How many messages of a partition may be lent now: in parallel so many at a time, else one lease."""
        if policy.is_concurrent:
            return policy.concurrent_prefetch_size - lending.loans.open_count(partition)
        return 0 if lending.loans.leases(partition) else _EVERYTHING

    def _ack_index(self, lending: Lending, partition: int, now: Now) -> int:
        """Where the app goes on: not before the oldest message kept."""
        index = self._ledger.state.acks.get(lending.number, partition)
        first = self._group.first_index(lending.topic_number, partition)
        if index < first:
            self._settle(lending, [Acked(lending.number, partition, index, first)], now)
            return first
        return index

    def _not_now(self, lending: Lending, partition: int, is_strict: bool, now: Now) -> Intervals | None:
        """What may not be lent above the ack index; None if nothing of the partition may."""
        state = self._ledger.state
        beyond = state.acks.beyond(lending.number, partition)
        stuck = state.setbacks.stuck(lending.number, partition)
        if not stuck:
            return beyond
        now_ms = self._clock.read(now)
        waiting = [row for row in stuck.values() if row.due_ms > now_ms]
        if not waiting:
            return beyond
        wait_ms = min(row.due_ms for row in waiting) - now_ms
        lending.loans.defer(partition, now.monotonic_ms + wait_ms)
        if is_strict:
            return None
        return Intervals([*beyond, *((row.message_index, row.message_index + 1) for row in waiting)])

    def _growth_end(self, lending: Lending, partition: int) -> int:
        """How far an ordered topic may be handed out: all from before it grew must be settled first."""
        acks = self._ledger.state.acks
        while lending.growths:
            ends = lending.growths[0]
            if any(acks.get(lending.number, one) < end for one, end in enumerate(ends)):
                return ends[partition] if partition < len(ends) else 0
            lending.growths = lending.growths[1:]
            lending.loans.offer_seen()  # who waited for this: nobody else says so if retention moved the app
        return _EVERYTHING

    def _old_enough(self, lending: Lending, partition: int, slices: Slices, delay_ms: int, now: Now) -> Slices:
        """Cut at the first message that is younger than the consumer wants."""
        for place, one in enumerate(slices):
            wait_ms = one.store_time_ms + delay_ms - now.wall_ms
            if wait_ms > 0:
                lending.loans.defer(partition, now.monotonic_ms + min(wait_ms, delay_ms))
                return slices[:place]
        return slices

    def _without_busy_keys(
        self, lending: Lending, partition: int, first: int, slices: Slices, now: Now
    ) -> tuple[Slices, list[KeyedRun]]:
        """Cut at the first message whose key somebody has in hand, or is stuck before it: order is per key."""
        busy: set[Key] = set()
        for lease in lending.loans.leases(partition):
            busy |= lease.open_keys()
        state, now_ms = self._ledger.state, self._clock.read(now)
        waits = _EVERYTHING  # the next that is not due: of a batch nothing is handed out before all of it may be
        for row in state.setbacks.stuck(lending.number, partition).values():
            if state.acks.is_acked(lending.number, partition, row.message_index):
                continue
            if row.message_index < first:
                busy.add(self._stuck_key(lending, partition, row.message_index))
            elif row.due_ms > now_ms:
                waits = min(waits, row.message_index)
        taken: list[KeyedRun] = []
        kept: Slices = []
        for one in slices:
            count = one.message_count - (one.next_index > waits)
            picked, keyed = until_conflict(one.messages, count, busy)
            taken += keyed
            if picked is not None:
                kept.append(
                    one._replace(
                        messages=one.messages[: picked.stop],
                        message_count=picked.message_count,
                        next_index=picked.next_index,
                    )
                )
            if picked is None or picked.message_count < one.message_count:
                break
        return kept, taken

    def _counted(self, lending: Lending, partition: int, slices: Slices) -> Slices:
        """With the number of the attempt where a message comes again at its own place; a batch counts as a whole."""
        stuck = self._ledger.state.setbacks.stuck(lending.number, partition)
        if not stuck:
            return slices
        attempts = {index: row.attempts + 1 for index, row in stuck.items()}
        return [
            one._replace(messages=with_attempts(one.messages, one.message_count, attempts))
            if any(one.first_index <= index < one.next_index for index in attempts)
            else one
            for one in slices
        ]

    def _stuck_key(self, lending: Lending, partition: int, index: int) -> bytes:
        """The key that waits for a message; without it nobody knows what may be handed out before it."""
        try:
            position = self._group.locate(lending.topic_number, partition, index)
            message, _ = self._references.read(position, index)
        except ReadError as error:
            raise OrderedStateError(f"others wait for the message at {index}, which cannot be read: {error}") from error
        return message.business_id.encode()

    # --- filters and expiry --------------------------------------------------------------------------------------

    def _skip_by_tag(
        self, lending: Lending, partition: int, first: int, end: int, hashes: frozenset[int], now: Now
    ) -> int:
        """Settle what the index alone shows to be left out; where the first is that must be looked at."""
        found = self._group.find_tag(lending.topic_number, partition, first, end, hashes, _TAGS_LOOKED_AT)
        if found > first:
            self._settle(lending, [Acked(lending.number, partition, first, found)], now)
            self._metrics.settled[lending.topic, lending.app, "filtered"] += found - first
            if found < end:
                lending.loans.offer(partition)
        return found

    def _selected(self, lending: Lending, slices: Slices, wanted: Filter, lease: Lease, now: Now) -> Slices:
        """Without what the filter leaves out and what has expired; both are settled as far as they are open."""
        entries: list[Entry] = []
        kept: Slices = []
        now_ms = self._clock.read(now)
        for one in slices:
            chosen = select(one.messages, one.message_count, wanted, now_ms, one.store_time_ms)
            if not chosen.left_out and not chosen.expired:
                kept.append(one)
                continue
            for picked in chosen.picked:
                kept.append(
                    one._replace(
                        messages=one.messages[picked.start : picked.stop],
                        message_count=picked.message_count,
                        first_index=picked.first_index,
                        next_index=picked.next_index,
                    )
                )
            left_out, expired = (
                [part for run in runs for part in lease.open.within(*run)]  # a batch may be settled or lent in part
                for runs in (chosen.left_out, chosen.expired)
            )
            for name, runs in (("filtered", left_out), ("expired", expired)):
                for first, after in runs:
                    entries.append(Acked(lending.number, lease.partition, first, after))
                    self._metrics.settled[lending.topic, lending.app, name] += after - first
            for first, after in expired:
                taken = sum(isinstance(entry, DeadLetter) for entry in entries)
                entries += self._outcomes.dead_entries(
                    lending, lease.partition, first, after, "expired", "its EXPIRE has passed", now, taken=taken
                )
        if entries:
            self._settle(lending, entries, now)
            for entry in entries:
                if isinstance(entry, Acked):
                    lease.open.remove(entry.first_index, entry.next_index)
        return kept

    def _settle(self, lending: Lending, entries: list[Entry], now: Now) -> None:
        """What nobody will ack; nobody waits for it, either."""
        stuck: dict[int, Stuck] = {}
        for entry in entries:
            if isinstance(entry, Acked):
                rows = self._ledger.state.setbacks.stuck(lending.number, entry.partition)
                stuck |= {index: row for index, row in rows.items() if entry.first_index <= index < entry.next_index}
        entries = [*entries, *(row._replace(attempts=0) for row in stuck.values())]
        end = self._ledger.settle(entries, now.wall_ms)
        self._ledger.tracing.settled(lending, entries, {}, now)
        for entry in entries:
            if isinstance(entry, Acked):
                _, partition, first, after = entry
                lending.loans.settle(partition, first, after)
                self._ledger.undo_with(end, partial(lending.loans.lend_again, partition, first, after))

    # --- reading -----------------------------------------------------------------------------------------------

    def read_block(
        self, connection: Connection, topic: int, partition: int, index: int, count: int, bytes_max: int
    ) -> tuple[Slices, MessageBlock]:
        """Messages as this client takes them; those before one that cannot be given to it come alone."""
        slices = self._group.read(topic, partition, index, count, bytes_max)
        try:
            return slices, self.joined(connection, slices)
        except ReadError:
            slices = self._group.read(topic, partition, index, 1, bytes_max)
            return slices, self.joined(connection, slices)

    def joined(self, connection: Connection, slices: Slices) -> MessageBlock:
        """As the client's dialect has them."""
        if connection.dialect is Dialect.JOYQUEUE:
            blocks = [
                MessageBlock(one.message_count, (one.messages,), client_address=one.client_address) for one in slices
            ]
            return join(blocks, Dialect.JOYQUEUE)
        return MessageBlock(sum([one.message_count for one in slices]), tuple([one.messages for one in slices]))

    def may_fetch(self, rates: AppRates, now: Now) -> bool:
        """Whether the app has not used up its rate."""
        if rates.fetch.take(0, now.monotonic_ms) and rates.fetch_bytes.take(0, now.monotonic_ms):
            return True
        self._metrics.capped["app_rate"] += 1
        return False

    def count_out(
        self, topic: str, app: str, index_count: int, block: MessageBlock, rates: AppRates | None, now: Now
    ) -> None:
        """Messages leave."""
        if not block:
            return
        if rates is not None:
            rates.fetch.take(index_count, now.monotonic_ms)
            rates.fetch_bytes.take(len(block), now.monotonic_ms)
        self._metrics.messages_out[topic, app] += index_count
        self._metrics.bytes_out[topic, app] += len(block)
