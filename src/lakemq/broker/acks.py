"""Acks, and where an app stands: by message, by index, by time.

An ack is a record in the journal and is answered once that is written; whoever asks where an app stands is told of it
no sooner. Whatever moves an app in a partition also decides what becomes of the lease on it.
"""

from collections.abc import Callable
from functools import partial

from lakemq.broker.access import Access
from lakemq.broker.answers import answer, code_for, code_of, encode, refusal, send
from lakemq.broker.config import BrokerConfig
from lakemq.broker.consume import Consuming
from lakemq.broker.events import Now
from lakemq.broker.ledger import Ledger
from lakemq.broker.lending import Lending
from lakemq.broker.metrics import Metrics
from lakemq.broker.sessions import Connection
from lakemq.broker.waiters import Buffers, CommandReply, Waiters
from lakemq.delivery.ack_index import AckRow
from lakemq.errors import (
    AckError,
    IndexAboveRangeError,
    IndexBelowRangeError,
    LakeMQError,
)
from lakemq.wire.commands import Ack
from lakemq.wire.consume import (
    NEWEST_INDEX,
    OLDEST_INDEX,
    RETRY_PARTITION,
    CommitAckIndex,
    CommitAckIndexAck,
    FetchAckIndex,
    FetchAckIndexAck,
    FetchIndex,
    FetchIndexAck,
    FoundIndex,
    PartitionCode,
    TopicCodes,
    TopicFoundIndexes,
)
from lakemq.wire.header import Header
from lakemq.wire.own import (
    GIVE_BACK,
    NO_TIME,
    ExtendLease,
    ExtendLeaseAck,
    FetchRange,
    FetchRangeAck,
    PartitionRange,
    PartitionTime,
    TopicRanges,
    TopicTimes,
)


class Acking:
    """Takes acks in, and moves apps."""

    def __init__(
        self,
        ledger: Ledger,
        config: BrokerConfig,
        access: Access,
        waiters: Waiters,
        metrics: Metrics,
        consuming: Consuming,
    ) -> None:
        self._ledger = ledger
        self._group = ledger.group
        self._config = config
        self._access = access
        self._waiters = waiters
        self._metrics = metrics
        self._consuming = consuming

    def commit_index(self, connection: Connection, header: Header, command: CommitAckIndex, now: Now) -> None:
        """Set ack indexes; answered when they are written."""
        connection.check_app(command.app, self._config.admin_app)
        entries = []
        for said in command.topics:
            seek = partial(self.seek, connection.full_topic(said.topic), command.app, now)
            codes = [
                PartitionCode(one.partition, self._code(seek, one.partition, one.index)) for one in said.partitions
            ]
            entries.append(TopicCodes(said.topic, tuple(codes)))
        self._after_write(connection, header, CommitAckIndexAck(tuple(entries)), now)

    def seek(self, name: str, app: str, now: Now, partition: int, index: int) -> int:
        """Move an app to an index of one partition, whoever has it in hand; returns where that is."""
        topic, subscription = self._access.subscription(name, app, now)
        self._consuming.check_leads(topic, partition)
        first = self._group.first_index(topic.number, partition)
        visible = self._group.visible_index(topic.number, partition)
        mark = self._ledger.state.acks.get(subscription.number, partition)
        if self._access.is_archive(topic, app) and (index == OLDEST_INDEX or 0 <= index <= mark):
            return mark  # what is archived stays so
        if index == NEWEST_INDEX:
            index = visible
        elif index == OLDEST_INDEX:
            index = first
        elif index < first:
            raise IndexBelowRangeError(f"index {index} is below {first}, the oldest that is kept")
        elif index > visible:
            raise IndexAboveRangeError(f"index {index} is above {visible}, the end of what can be read")
        end = self._ledger.move_acks([AckRow(subscription.number, partition, index)], now.wall_ms)
        lending = self._consuming.lending(topic, subscription)
        self._ledger.undo_with(end, partial(lending.loans.move, partition, 0))
        lending.loans.move(partition, index)
        self._consuming.wake(lending, now)
        return index

    def extend_lease(self, connection: Connection, header: Header, command: ExtendLease, now: Now) -> None:
        """A consumer is still at work."""
        connection.check_app(command.app, self._config.admin_app)
        entries = []
        for said in command.topics:
            extend = partial(self._extend, connection, said.topic, command, now)
            codes = [PartitionCode(partition, self._code(extend, partition)) for partition in said.partitions]
            entries.append(TopicCodes(said.topic, tuple(codes)))
        answer(connection, header, ExtendLeaseAck(tuple(entries)), now)

    def _extend(self, connection: Connection, name: str, command: ExtendLease, now: Now, partition: int) -> None:
        topic, subscription = self._access.subscription(connection.full_topic(name), command.app, now)
        policy = subscription.consumer
        assert policy is not None
        lease_ms = command.ack_timeout_ms if command.ack_timeout_ms > 0 else policy.ack_timeout_ms
        lending = self._consuming.lending(topic, subscription)
        if command.ack_timeout_ms == GIVE_BACK and partition != RETRY_PARTITION:
            self._give_back(lending, partition, connection.port.id, now)
            return
        consumer, end_ms = connection.port.id, now.monotonic_ms + lease_ms
        if partition == RETRY_PARTITION:
            is_extended = lending.retries.extend(consumer, end_ms)
        else:
            is_extended = lending.loans.extend(partition, consumer, end_ms)
        if not is_extended:
            raise AckError(f"partition {partition} of topic {name!r} is not lent to this connection")

    def _give_back(self, lending: Lending, partition: int, consumer: int, now: Now) -> None:
        """A consumer wants no more of what it has of a partition; that it has nothing is no error, it may ask twice."""
        for lease in [one for one in lending.loans.leases(partition) if one.consumer == consumer]:
            lending.loans.release(lease)
        lending.loans.offer(partition)
        self._consuming.wake(lending, now)

    # --- where an app stands -------------------------------------------------------------------------------------

    def fetch_index(
        self, connection: Connection, header: Header, command: FetchIndex | FetchAckIndex, now: Now
    ) -> None:
        """The next index the app will get, the oldest kept, and the end of what can be read."""
        connection.check_app(command.app, self._config.admin_app)
        self._tell_written(connection, header, partial(self._found_indexes, connection, command, now), now)

    def _found_indexes(self, connection: Connection, command: FetchIndex | FetchAckIndex, now: Now) -> Ack:
        entries = []
        for wish in command.topics:
            found = []
            for partition in wish.partitions:
                try:
                    found.append(self._stand(connection.full_topic(wish.topic), command.app, partition, now))
                except LakeMQError as error:
                    found.append(FoundIndex(partition, code=code_for(connection, error)))
            entries.append(TopicFoundIndexes(wish.topic, tuple(found)))
        of = FetchIndexAck if isinstance(command, FetchIndex) else FetchAckIndexAck
        return of(tuple(entries))

    def _stand(self, name: str, app: str, partition: int, now: Now) -> FoundIndex:
        topic, subscription = self._access.subscription(name, app, now)
        self._consuming.check_leads(topic, partition)
        first, index, _ = self._ledger.stand(topic.number, partition, subscription.number)
        # Those who ask keep the end they are told (the archive, a stream of Spark), and go on from there.
        return FoundIndex(partition, index, 0, first, self._group.synced_index(topic.number, partition))

    def fetch_range(self, connection: Connection, header: Header, command: FetchRange, now: Now) -> None:
        """How far partitions reach, and which index a moment has."""
        connection.check_app(command.app, self._config.admin_app)
        self._tell_written(connection, header, partial(self._found_ranges, connection, command, now), now)

    def _found_ranges(self, connection: Connection, command: FetchRange, now: Now) -> FetchRangeAck:
        entries = []
        for wish in command.topics:
            try:
                entries.append(self._ranges(connection, wish, command.app, now))
            except LakeMQError as error:
                entries.append(TopicRanges(wish.topic, code=code_of(error)))
        return FetchRangeAck(tuple(entries))

    def _ranges(self, connection: Connection, wish: TopicTimes, app: str, now: Now) -> TopicRanges:
        name = connection.full_topic(wish.topic)
        topic, _ = self._access.subscription(name, app, now)
        wanted = wish.partitions or tuple(PartitionTime(one) for one in self._access.led_partitions(topic))
        found = []
        for one in wanted:
            try:
                stand = self._stand(name, app, one.partition, now)
            except LakeMQError as error:
                found.append(PartitionRange(one.partition, code=code_of(error)))
                continue
            at = -1
            if one.time_ms != NO_TIME:
                at = min(self._group.index_of_time(topic.number, one.partition, one.time_ms), stand.right_index)
            found.append(PartitionRange(one.partition, stand.index, stand.left_index, stand.right_index, at))
        return TopicRanges(wish.topic, tuple(found))

    def _tell_written(self, connection: Connection, header: Header, find: Callable[[], Ack], now: Now) -> None:
        """Answer with what is found once it is written: else an app would fall back when its turn is not (I05)."""
        found = encode(connection, header, find(), now, None)  # which may subscribe the app: that waits as well
        end = self._ledger.unwritten_end
        if end is None:
            send(connection, found, now)
            return

        def look_again(error: LakeMQError) -> Buffers:
            """The turn was taken back, and what it was taken back to can be told, if that is all there is now."""
            if self._ledger.unwritten_end is None:
                left = encode(connection, header, find(), now, None)
                if self._ledger.unwritten_end is None:
                    return left
            return refusal(connection, header, error, now)

        self._waiters.park(CommandReply(connection, end, found, look_again, waits_for_sync=False))

    # --- inside ----------------------------------------------------------------------------------------------------

    def _code(self, act: Callable[..., object], *arguments: object) -> int:
        """0 if that goes well, or the code of what did not."""
        try:
            act(*arguments)
        except LakeMQError as error:
            self._metrics.errors[code_of(error)] += 1
            return code_of(error)
        return 0

    def _after_write(self, connection: Connection, header: Header, ack: Ack, now: Now) -> None:
        """Answer once what was appended in this turn is written."""

        def refused(error: LakeMQError) -> Buffers:
            return encode(connection, header, _all_failed(ack, code_for(connection, error)), now, None)

        self._waiters.park(
            CommandReply(
                connection,
                self._ledger.end_position,
                encode(connection, header, ack, now, None),
                refused,
                waits_for_sync=False,
            )
        )


def _all_failed(ack: Ack, code: int) -> Ack:
    topics = tuple(
        TopicCodes(topic.topic, tuple(PartitionCode(one.partition, one.code or code) for one in topic.partitions))
        for topic in ack.topics
    )
    return type(ack)(topics)
