"""Who may do what: every check that stands before a request touches a topic, in the protocol's order."""

from collections.abc import Sequence

from lakemq.broker.changes import Changes, owner_name
from lakemq.broker.config import BrokerConfig
from lakemq.broker.events import Now
from lakemq.broker.ledger import Ledger
from lakemq.broker.sessions import Connection
from lakemq.cluster.metadata import Subscription, Topic
from lakemq.delivery.trace_record import EVENTS_TOPIC
from lakemq.errors import (
    BadParameterError,
    BrokerNotReadableError,
    BrokerNotWritableError,
    ConsumedElsewhereError,
    ConsumeForbiddenError,
    ConsumePausedError,
    ConsumerNotFoundError,
    InitializationError,
    NotLeaderError,
    ProducerNotFoundError,
    SendForbiddenError,
    ServiceUnavailableError,
    TopicNotFoundError,
    TopicNotReadableError,
    TopicNotWritableError,
)
from lakemq.policy import ConsumerPolicy, ProducerPolicy
from lakemq.wire.dialect import Dialect

MADE_IN_TURN_MAX = 16  # topics, apps and subscriptions on first use: each copies a table


class Access:
    """Says yes by returning what was asked for, or raises the error that says no."""

    def __init__(self, ledger: Ledger, config: BrokerConfig, changes: Changes) -> None:
        self._ledger = ledger
        self._config = config
        self._changes = changes
        self.is_readable = True
        self.is_writable = True
        self.is_draining = False
        self.has_metadata = config.owns_metadata or ledger.metadata.version > 0
        self._made_in_turn = 0

    def check_initialised(self) -> None:
        """InitializationError, or DatabaseError, while it is not known yet who may connect."""
        if not self.has_metadata:
            self._changes.check_store()
            raise InitializationError("the broker has not got the topics and apps from the first worker yet")

    def begin_turn(self) -> None:
        """A turn has ended."""
        self._made_in_turn = 0

    @property
    def has_made_enough(self) -> bool:
        """Tell whether this turn has made so much on first use that the rest must wait for the next one."""
        return self._made_in_turn >= MADE_IN_TURN_MAX

    def topic(self, name: str, now: Now) -> Topic:
        """A topic that exists, or does now."""
        topic = self._ledger.metadata.topics.get(name)
        if topic is None:
            if not self._config.creates_missing or name == EVENTS_TOPIC:
                raise TopicNotFoundError(f"there is no topic {name!r}")
            if self.is_draining:  # to be asked for again, of the broker that comes after
                raise ServiceUnavailableError("the broker is stopping and makes no topic")
            topic = self._changes.create_topic(name, now)
            self._made_in_turn += 1
        return topic

    def may_introduce(self, app: str, token: str, now: Now) -> bool:
        """Whether a client may connect as that app."""
        if self._ledger.metadata.is_token_good(app, token, now.wall_ms):
            return True
        owner = owner_name(app)
        if not self._config.creates_missing or owner in self._ledger.metadata.apps:
            return False
        self._changes.create_app(owner, now, is_open=True)
        self._made_in_turn += 1
        return True

    def producer(self, connection: Connection, topic_name: str, app: str, now: Now) -> tuple[Topic, ProducerPolicy]:
        """A topic that this app may send to from there."""
        if self.is_draining:
            raise ServiceUnavailableError("the broker is stopping")
        if not self.is_writable:
            raise BrokerNotWritableError("the broker was set to take no messages")
        check_writable(topic_name)
        topic = self.topic(topic_name, now)
        subscription = self._ledger.metadata.subscription(topic_name, app)
        if subscription is None or subscription.producer is None:
            if not self._config.creates_missing:
                raise ProducerNotFoundError(f"app {app!r} may not send to topic {topic_name!r}")
            self._make_app(app, now)
            subscription = self._changes.subscribe(topic_name, app, now, producer={})
            self._made_in_turn += 1
        policy = subscription.producer
        assert policy is not None
        if not topic.is_writable:
            raise TopicNotWritableError(f"topic {topic_name!r} was set to take no messages")
        if policy.is_forbidden:
            raise TopicNotWritableError(f"app {app!r} was forbidden to send to topic {topic_name!r}")
        if connection.port.host in policy.black_list:
            forbidden = TopicNotWritableError if connection.dialect is Dialect.JOYQUEUE else SendForbiddenError
            raise forbidden(f"{connection.port.host} may not send to topic {topic_name!r}")
        return topic, policy

    def subscription(self, topic_name: str, app: str, now: Now) -> tuple[Topic, Subscription]:
        """A topic that this app is a consumer of, whether or not it may receive now."""
        topic = self.topic(topic_name, now)
        subscription = self._ledger.metadata.subscription(topic_name, app)
        if subscription is None or subscription.consumer is None:
            if not self._config.creates_missing:
                raise ConsumerNotFoundError(f"app {app!r} may not receive from topic {topic_name!r}")
            self._make_app(app, now)
            subscription = self._changes.subscribe(topic_name, app, now, consumer={}, start="earliest")
            self._made_in_turn += 1
        return topic, subscription

    def consumer(
        self, connection: Connection, topic_name: str, app: str, now: Now
    ) -> tuple[Topic, Subscription, ConsumerPolicy]:
        """A topic that this app may receive from there, now."""
        if not self.is_readable:
            raise BrokerNotReadableError("the broker was set to hand out no messages")
        topic, subscription = self.subscription(topic_name, app, now)
        policy = subscription.consumer
        assert policy is not None
        if policy.is_paused:
            raise ConsumePausedError(f"app {app!r} is paused on topic {topic_name!r}")
        if not topic.is_readable:
            raise TopicNotReadableError(f"topic {topic_name!r} was set to hand out no messages")
        if policy.is_forbidden:
            raise TopicNotReadableError(f"app {app!r} was forbidden to receive from topic {topic_name!r}")
        if connection.port.host in policy.black_list:
            forbidden = TopicNotReadableError if connection.dialect is Dialect.JOYQUEUE else ConsumeForbiddenError
            raise forbidden(f"{connection.port.host} may not receive from topic {topic_name!r}")
        if policy.only_region and connection.region.lower() != policy.only_region.lower():
            raise ConsumedElsewhereError(
                f"app {app!r} receives topic {topic_name!r} in region {policy.only_region!r} only, "
                f"and this consumer says {connection.region!r}"
            )
        return topic, subscription, policy

    def is_archive(self, topic: Topic, app: str) -> bool:
        """Whether that app is on that topic as the archive: it reads by partition, and its ack index is a mark."""
        return topic.is_archived and app == self._config.archive.app

    def check_lends(self, topic: Topic, app: str) -> None:
        """BadParameterError if nothing is lent to that app."""
        if self.is_archive(topic, app):
            raise BadParameterError(f"app {app!r} is the archive of topic {topic.name!r}: it reads by partition")

    def led_partitions(self, topic: Topic) -> Sequence[int]:
        """The partitions of a topic that this broker holds."""
        group_id = self._config.group_id
        if topic.groups.count(group_id) == topic.partition_count:
            return range(topic.partition_count)  # asked for membership by every request
        return tuple(partition for partition, group in enumerate(topic.groups) if group == group_id)

    def writable_partitions(self, topic: Topic) -> Sequence[int]:
        """Those of them that take messages."""
        return _below(self.led_partitions(topic), topic.writable_count)

    def readable_partitions(self, topic: Topic) -> Sequence[int]:
        """Those of them that hand out messages."""
        return _below(self.led_partitions(topic), topic.readable_count)

    def check_takes(self, topic: Topic, partition: int) -> None:
        """NotLeaderError unless that partition is here and takes messages: whoever sends asks anew where to go."""
        if not self.leads(topic, partition):
            raise NotLeaderError(f"partition {partition} of topic {topic.name!r} is not at this broker")
        if partition >= topic.writable_count:
            raise NotLeaderError(
                f"partition {partition} of topic {topic.name!r} takes no messages: the first {topic.writable_count} do"
            )

    def leads(self, topic: Topic, partition: int) -> bool:
        """Whether this broker holds that partition."""
        return 0 <= partition < topic.partition_count and topic.groups[partition] == self._config.group_id

    def _make_app(self, app: str, now: Now) -> None:
        owner = owner_name(app)
        if owner not in self._ledger.metadata.apps:
            self._changes.create_app(owner, now, is_open=True)


def _below(partitions: Sequence[int], count: int) -> Sequence[int]:
    if isinstance(partitions, range):
        return partitions[:count]
    return tuple(one for one in partitions if one < count)


def check_writable(topic: str) -> None:
    """TopicNotWritableError if only the broker itself writes there."""
    if topic == EVENTS_TOPIC:
        raise TopicNotWritableError(f"only the broker writes to topic {topic!r}")
