"""Acks, and where an app stands: by message, by index, by time.

An ack is a record in the journal and is answered once that is written. Whatever moves an app in a partition also
decides what becomes of the lease on it.
"""

from collections.abc import Callable
from functools import partial

from lakemq.broker.access import Access
from lakemq.broker.answers import answer, code_of, encode
from lakemq.broker.config import BrokerConfig
from lakemq.broker.consume import Consuming, Lending
from lakemq.broker.events import Now
from lakemq.broker.ledger import Ledger
from lakemq.broker.metrics import Metrics
from lakemq.broker.sessions import Connection
from lakemq.broker.waiters import Buffers, CommandReply, Waiters
from lakemq.delivery.ack_index import AckRow
from lakemq.errors import (
    AckError,
    IndexAboveRangeError,
    IndexBelowRangeError,
    IndexOutOfRangeError,
    LakeMQError,
    RetryStoreError,
)
from lakemq.message import AckType
from lakemq.wire.commands import Ack
from lakemq.wire.consume import (
    NEWEST_INDEX,
    OLDEST_INDEX,
    RETRY_PARTITION,
    CommitAck,
    CommitAckAck,
    CommitAckIndex,
    CommitAckIndexAck,
    FetchAckIndex,
    FetchAckIndexAck,
    FetchIndex,
    FetchIndexAck,
    FoundIndex,
    PartitionAcks,
    PartitionCode,
    TopicCodes,
    TopicFoundIndexes,
)
from lakemq.wire.dialect import Dialect
from lakemq.wire.header import Header
from lakemq.wire.own import (
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

    # --- acks --------------------------------------------------------------------------------------------------

    def commit_ack(self, connection: Connection, header: Header, command: CommitAck, now: Now) -> None:
        """Take acks; answered when they are written."""
        connection.check_app(command.app, self._config.admin_app)
        woken: dict[Lending, None] = {}
        entries = []
        for said in command.topics:
            ack = partial(self._ack, connection, said.topic, command.app, woken, now)
            codes = [PartitionCode(one.partition, self._code(ack, one)) for one in said.partitions]
            entries.append(TopicCodes(said.topic, tuple(codes)))
        self._after_write(connection, header, CommitAckAck(tuple(entries)), now)
        for lending in woken:
            self._consuming.wake(lending, now)

    def _ack(
        self,
        connection: Connection,
        name: str,
        app: str,
        woken: dict[Lending, None],
        now: Now,
        said: PartitionAcks,
    ) -> None:
        full = connection.full_topic(name)
        topic, subscription = self._access.subscription(full, app, now)
        if said.partition == RETRY_PARTITION:
            raise RetryStoreError("this version of the broker keeps no retries")
        self._consuming.check_leads(topic, said.partition)
        if not said.acks:
            return
        lending = self._consuming.lending(topic, subscription)
        low, high = _run_of(said)
        if high >= self._group.visible_index(topic.number, said.partition):
            raise IndexOutOfRangeError(f"index {high} was never handed out")
        lease = lending.owners.lease(said.partition)
        is_mine = lease is not None and lease.consumer == connection.port.id
        if any(one.type != AckType.SUCCESS for one in said.acks):
            if is_mine:
                lending.owners.release(said.partition)
                woken[lending] = None
            assert subscription.consumer is not None
            if subscription.consumer.is_retry:
                raise RetryStoreError("this version of the broker keeps no retries: the messages come again at once")
            self._metrics.settled[full, app, "released"] += len(said.acks)
            return
        before = self._ledger.state.acks.get(subscription.number, said.partition)
        if low > max(before, self._group.first_index(topic.number, said.partition)):
            if connection.dialect is Dialect.JOYQUEUE:
                return  # its server changes nothing and says so to nobody
            raise AckError(f"index {before} comes before {low} and is not acked: the lease was lost, or acks left out")
        if high < before:
            return  # a late double
        after = high + 1
        end = self._ledger.move_acks([AckRow(subscription.number, said.partition, after)], now.wall_ms)
        # Not acked after all: lend it again, and end a lease that begins behind it.
        self._ledger.undo_with(end, partial(lending.owners.release, said.partition))
        self._metrics.settled[full, app, "ack"] += after - before
        if lease is None:
            lending.owners.offer(said.partition)
        elif after >= lease.next_index or (is_mine and connection.dialect is Dialect.JOYQUEUE):
            lending.owners.release(said.partition)  # JoyQueue's clients ack all they want to, then ask again
        elif is_mine:
            lease.first_index = after
        woken[lending] = None

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
        self._ledger.undo_with(end, partial(lending.owners.release, partition))
        lending.owners.release(partition)
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
        owners = self._consuming.lending(topic, subscription).owners
        if not owners.extend(partition, connection.port.id, now.monotonic_ms + lease_ms):
            raise AckError(f"partition {partition} of topic {name!r} is not lent to this connection")

    # --- where an app stands -------------------------------------------------------------------------------------

    def fetch_index(
        self, connection: Connection, header: Header, command: FetchIndex | FetchAckIndex, now: Now
    ) -> None:
        """The next index the app will get, the oldest kept, and the end of what can be read."""
        connection.check_app(command.app, self._config.admin_app)
        entries = []
        for wish in command.topics:
            found = []
            for partition in wish.partitions:
                try:
                    found.append(self._stand(connection.full_topic(wish.topic), command.app, partition, now))
                except LakeMQError as error:
                    found.append(FoundIndex(partition, code=code_of(error)))
            entries.append(TopicFoundIndexes(wish.topic, tuple(found)))
        of = FetchIndexAck if isinstance(command, FetchIndex) else FetchAckIndexAck
        answer(connection, header, of(tuple(entries)), now)

    def _stand(self, name: str, app: str, partition: int, now: Now) -> FoundIndex:
        topic, subscription = self._access.subscription(name, app, now)
        self._consuming.check_leads(topic, partition)
        first = self._group.first_index(topic.number, partition)
        index = max(self._ledger.state.acks.get(subscription.number, partition), first)
        visible = self._group.visible_index(topic.number, partition)
        return FoundIndex(partition, index, 0, first, visible)

    def fetch_range(self, connection: Connection, header: Header, command: FetchRange, now: Now) -> None:
        """How far partitions reach, and which index a moment has."""
        connection.check_app(command.app, self._config.admin_app)
        entries = []
        for wish in command.topics:
            try:
                entries.append(self._ranges(connection, wish, command.app, now))
            except LakeMQError as error:
                entries.append(TopicRanges(wish.topic, code=code_of(error)))
        answer(connection, header, FetchRangeAck(tuple(entries)), now)

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
            at = -1 if one.time_ms == NO_TIME else self._group.index_of_time(topic.number, one.partition, one.time_ms)
            found.append(PartitionRange(one.partition, stand.index, stand.left_index, stand.right_index, at))
        return TopicRanges(wish.topic, tuple(found))

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
            return encode(connection, header, _all_failed(ack, code_of(error)), now, None)

        self._waiters.park(
            CommandReply(
                connection,
                self._ledger.end_position,
                encode(connection, header, ack, now, None),
                refused,
                waits_for_sync=False,
            )
        )


def _run_of(said: PartitionAcks) -> tuple[int, int]:
    """First and last of the acked indexes; AckError unless they are a run without gaps and doubles."""
    indexes = [one.index for one in said.acks]
    low, high = min(indexes), max(indexes)
    if high - low + 1 != len(indexes) or len(set(indexes)) != len(indexes):
        raise AckError(f"the indexes of partition {said.partition} are not a run without gaps and doubles")
    return low, high


def _all_failed(ack: Ack, code: int) -> Ack:
    topics = tuple(
        TopicCodes(topic.topic, tuple(PartitionCode(one.partition, one.code or code) for one in topic.partitions))
        for topic in ack.topics
    )
    return type(ack)(topics)
