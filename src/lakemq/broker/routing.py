"""FETCH_CLUSTER, FIND_COORDINATOR and FETCH_ASSIGNED_PARTITION: where topics live, and whose partitions are whose.

Brokers beside this one on the same machine are told of through `neighbours`. One of them all coordinates an app; which
one, each of them knows by itself.
"""

from collections.abc import Hashable
from dataclasses import replace

from lakemq.broker.access import Access
from lakemq.broker.answers import answer, code_of
from lakemq.broker.config import ASSIGNOR, BrokerConfig
from lakemq.broker.events import Now
from lakemq.broker.ledger import Ledger
from lakemq.broker.sessions import Connection
from lakemq.cluster.assignment import MEMBERS_MAX, Assignment, coordinator_of
from lakemq.cluster.metadata import Topic
from lakemq.errors import (
    AssignmentError,
    AssignorNotFoundError,
    CoordinatorUnavailableError,
    LakeMQError,
    NoAssignablePartitionError,
    NoPartitionGroupError,
    NoPermissionError,
)
from lakemq.policy import ConsumerPolicy, ProducerPolicy
from lakemq.wire.coordinate import (
    AssignmentWish,
    FetchAssignedPartition,
    FetchAssignedPartitionAck,
    FindCoordinator,
    FindCoordinatorAck,
    TopicAssignment,
    TopicCoordinator,
)
from lakemq.wire.dialect import Dialect
from lakemq.wire.header import Header
from lakemq.wire.metadata import (
    GROUP_MARKS,
    NO_LEADER,
    READ_ONLY_GROUP,
    READABLE,
    WRITABLE,
    WRITE_ONLY_GROUP,
    ClusterBroker,
    ClusterPartitionGroup,
    ClusterTopic,
    FetchCluster,
    FetchClusterAck,
)

_SESSION_GRACE_MS = 60_000  # JoyQueue's members ask about once per session time-out, so they are given a little more


class Routing:
    """Tells clients where to go."""

    def __init__(self, ledger: Ledger, config: BrokerConfig, access: Access) -> None:
        self._ledger = ledger
        self._config = config
        self._access = access
        self._assignments: dict[tuple[str, str], Assignment] = {}
        self.neighbours: dict[int, tuple[int, str, int]] = {}  # group id → broker id, host, port

    # --- metadata ----------------------------------------------------------------------------------------------

    def fetch_cluster(self, connection: Connection, header: Header, command: FetchCluster, now: Now) -> None:
        """Topics with their policies, and the brokers they live on."""
        connection.check_app(command.app, self._config.admin_app)
        topics = [self._cluster_topic(connection, name, command.app, now) for name in command.topics]
        named = {group.leader for topic in topics for group in topic.partition_groups if group.leader != NO_LEADER}
        brokers = [broker for broker in self._brokers(connection) if broker.id in named or not topics]
        answer(connection, header, FetchClusterAck(tuple(topics), tuple(brokers)), now)

    def _cluster_topic(self, connection: Connection, name: str, app: str, now: Now) -> ClusterTopic:
        full = connection.full_topic(name)
        try:
            topic = self._access.topic(full, now)
        except LakeMQError as error:
            return ClusterTopic(name, code=code_of(error))
        subscription = self._ledger.metadata.subscription(full, app)
        producer = subscription.producer if subscription is not None else None
        consumer = subscription.consumer if subscription is not None else None
        if self._config.creates_missing:  # what the first use will make
            producer = producer or ProducerPolicy()
            consumer = consumer or ConsumerPolicy(batch_size=self._config.batch_size_default)
        if producer is None and consumer is None:
            return ClusterTopic(name, code=NoPermissionError.status or 1)
        if topic.is_archived:  # which both are told of, whatever their policies say
            producer = replace(producer, is_archive=True) if producer is not None else None
            consumer = replace(consumer, is_archive=True) if consumer is not None else None
        groups = self._partition_groups(topic, producer is not None, consumer is not None, connection.is_ours)
        code = 0
        if all(group.leader == NO_LEADER for group in groups):
            code = NoPartitionGroupError.status or 0
        return ClusterTopic(name, producer, consumer, topic.type_number, groups, code)

    def _partition_groups(
        self, topic: Topic, sends: bool, receives: bool, is_ours: bool
    ) -> tuple[ClusterPartitionGroup, ...]:
        """Producers see partitions that take messages, consumers those that hand them out, who is both all of them.

        Our own clients are told which are which: these are in groups of their own, marked in their ids.
        """
        groups: dict[int, list[int]] = {}
        for partition, group in enumerate(topic.groups):
            takes, gives = partition < topic.writable_count, partition < topic.readable_count
            if not ((sends and takes) or (receives and gives)):
                continue
            mark = 0
            if is_ours and takes != gives:
                mark = READ_ONLY_GROUP if gives else WRITE_ONLY_GROUP
            groups.setdefault(group | mark, []).append(partition)
        return tuple(
            ClusterPartitionGroup(group, self._leader_of(group & ~GROUP_MARKS), tuple(partitions))
            for group, partitions in sorted(groups.items())
        )

    def _leader_of(self, group: int) -> int:
        if group == self._config.group_id:
            return self._config.broker_id
        neighbour = self.neighbours.get(group)
        return neighbour[0] if neighbour is not None else NO_LEADER

    def _brokers(self, connection: Connection) -> list[ClusterBroker]:
        data_center = self._config.data_center
        is_nearby = not connection.region or not data_center or connection.region.lower() == data_center.lower()
        permission = READABLE * self._access.is_readable | WRITABLE * self._access.is_writable
        here = self._config.broker_id, *self._address(connection)
        brokers = [ClusterBroker(*here, data_center, is_nearby, permission=permission)]
        for broker_id, host, port in self.neighbours.values():
            told = host or self._address(connection)[0]
            brokers.append(ClusterBroker(broker_id, told, port, data_center, is_nearby))
        return brokers

    def _address(self, connection: Connection) -> tuple[str, int]:
        host = self._config.advertised_host or connection.port.local_host
        return host, self._config.advertised_port or connection.port.local_port

    # --- the coordinator ---------------------------------------------------------------------------------------

    def find_coordinator(self, connection: Connection, header: Header, command: FindCoordinator, now: Now) -> None:
        """The broker that shares out an app's partitions: one for each app, whichever broker is asked."""
        connection.check_app(command.app, self._config.admin_app)
        brokers = {broker.id: broker for broker in self._brokers(connection)}
        broker = brokers[coordinator_of(command.app, brokers)]
        entries = []
        for name in command.topics:
            code = 0
            if self._access.is_draining and broker.id == self._config.broker_id:
                code = CoordinatorUnavailableError.status or 0
            else:
                try:
                    self._access.topic(connection.full_topic(name), now)
                except LakeMQError as error:
                    code = code_of(error)
            if code:
                entries.append(TopicCoordinator(name, code=code))
                continue
            entries.append(
                TopicCoordinator(
                    name, broker.id, broker.host, broker.port, broker.data_center, broker.is_nearby, broker.weight
                )
            )
        answer(connection, header, FindCoordinatorAck(tuple(entries)), now)

    def fetch_assigned(self, connection: Connection, header: Header, command: FetchAssignedPartition, now: Now) -> None:
        """The partitions that are this member's."""
        connection.check_app(command.app, self._config.admin_app)
        if self._access.is_draining:
            raise CoordinatorUnavailableError("the broker is stopping")
        coordinator = coordinator_of(
            command.app, [self._config.broker_id, *(one[0] for one in self.neighbours.values())]
        )
        if coordinator != self._config.broker_id:
            raise CoordinatorUnavailableError(
                f"broker {coordinator} coordinates app {command.app!r}, this is {self._config.broker_id}"
            )
        if self._config.assignor != ASSIGNOR:
            raise AssignorNotFoundError(f"assignor {self._config.assignor!r} is not known; {ASSIGNOR!r} is")
        entries = []
        for wish in command.topics:
            try:
                partitions = self._assign(connection, wish, command.app, now)
                entries.append(TopicAssignment(wish.topic, tuple(partitions)))
            except LakeMQError as error:
                entries.append(TopicAssignment(wish.topic, code=code_of(error)))
        answer(connection, header, FetchAssignedPartitionAck(tuple(entries)), now)

    def _assign(self, connection: Connection, wish: AssignmentWish, app: str, now: Now) -> list[int]:
        full = connection.full_topic(wish.topic)
        if full not in self._ledger.metadata.topics:
            raise AssignmentError(f"there is no topic {wish.topic!r}")
        topic, subscription = self._access.subscription(full, app, now)
        policy = subscription.consumer
        is_nearby = wish.is_nearby or (policy is not None and policy.is_nearby)
        if is_nearby and not self._brokers(connection)[0].is_nearby:
            raise NoAssignablePartitionError(f"no partition of topic {wish.topic!r} is in region {connection.region!r}")
        session_ms = wish.session_timeout_ms if wish.session_timeout_ms > 0 else self._config.session_timeout_ms
        member: Hashable = connection.port.id
        if connection.dialect is Dialect.JOYQUEUE:  # it asks over a new connection each time
            member = connection.port.host
            session_ms += _SESSION_GRACE_MS
        assignment = self._assignments.setdefault((full, app), Assignment())
        if not assignment.has_room(member, now.monotonic_ms, MEMBERS_MAX):
            raise AssignmentError(f"app {app!r} has {MEMBERS_MAX} members on topic {wish.topic!r}: no more")
        return assignment.join(member, range(topic.readable_count), now.monotonic_ms, session_ms)

    def gone(self, connection: Connection) -> None:
        """A connection is over; what it was assigned goes to the others."""
        for key in list(self._assignments):
            assignment = self._assignments[key]
            assignment.leave(connection.port.id)
            if not assignment.member_count:
                del self._assignments[key]
