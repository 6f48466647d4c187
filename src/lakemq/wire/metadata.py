"""FETCH_CLUSTER: topics with their policies, partition groups and leaders, and the brokers they live on."""

from dataclasses import dataclass, replace
from enum import IntEnum

from lakemq.policy import ConsumerPolicy, ProducerPolicy
from lakemq.wire.buffer import Reader, Writer
from lakemq.wire.fields import (
    BOOLEAN,
    BYTE,
    INT,
    SHORT,
    STRING,
    Array,
    ByDialect,
    JoyqueueOnly,
    Pair,
    Present,
    Struct,
)

# Marks in the id of a partition group towards our own clients: its partitions only hand out messages, or only take
# them. To others each partition is in its group, or not there.
READ_ONLY_GROUP = 1 << 30
WRITE_ONLY_GROUP = 1 << 29
GROUP_MARKS = READ_ONLY_GROUP | WRITE_ONLY_GROUP
NO_LEADER = -1
READABLE, WRITABLE = 1, 2
READABLE_AND_WRITABLE = READABLE | WRITABLE


class TopicType(IntEnum):
    """How a topic is consumed."""

    NONE = -1
    NORMAL = 0
    BROADCAST = 1
    ORDERED = 2


@dataclass(frozen=True, slots=True)
class FetchCluster:
    """Where do these topics live, and what may the app do with them?"""

    topics: tuple[str, ...] = ()
    app: str = ""


@dataclass(frozen=True, slots=True)
class ClusterPartitionGroup:
    """One partition group, with the broker that leads it."""

    id: int = 0
    leader: int = NO_LEADER
    partitions: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ClusterTopic:
    """One topic; None for a policy the app has no subscription for."""

    topic: str = ""
    producer_policy: ProducerPolicy | None = None
    consumer_policy: ConsumerPolicy | None = None
    type: int = TopicType.NORMAL
    partition_groups: tuple[ClusterPartitionGroup, ...] = ()
    code: int = 0
    params: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class ClusterBroker:
    """One broker and how to reach it."""

    id: int = 0
    host: str = ""
    port: int = 0
    data_center: str = ""
    is_nearby: bool = False
    weight: int = 0
    system_code: int = 0
    permission: int = READABLE_AND_WRITABLE


@dataclass(frozen=True, slots=True)
class FetchClusterAck:
    """One entry per topic asked for, and every broker those name."""

    topics: tuple[ClusterTopic, ...] = ()
    brokers: tuple[ClusterBroker, ...] = ()


class _ConsumerPolicyField(Struct[ConsumerPolicy]):
    """A consumer policy. JoyQueue has a flag that is always 0 and a degree of parallelism, where 1 means none."""

    def read(self, reader: Reader) -> ConsumerPolicy:
        policy = super().read(reader)
        if reader.form.is_joyqueue:
            return replace(policy, is_concurrent=policy.concurrent_prefetch_size > 1)
        return policy

    def write(self, writer: Writer, value: ConsumerPolicy) -> None:
        if writer.form.is_joyqueue:
            size = value.concurrent_prefetch_size
            size = size if value.is_concurrent else min(size, 1)
            value = replace(value, is_concurrent=False, concurrent_prefetch_size=size)
        super().write(writer, value)


class _ClusterTopicField(Struct[ClusterTopic]):
    """A topic; JoyQueue knows no ordered type, there it is normal with a sequential policy, nor one without a type."""

    def write(self, writer: Writer, value: ClusterTopic) -> None:
        if writer.form.is_joyqueue and value.type not in (TopicType.NORMAL, TopicType.BROADCAST):
            policy = value.consumer_policy
            if value.type == TopicType.ORDERED and policy is not None:
                policy = replace(policy, is_sequential=True)
            value = replace(value, type=TopicType.NORMAL, consumer_policy=policy)
        super().write(writer, value)


PRODUCER_POLICY = Struct(
    ProducerPolicy,
    is_nearby=BOOLEAN,
    is_single=BOOLEAN,
    is_archive=BOOLEAN,
    weights=Array(Pair(STRING, SHORT)),
    black_list=Array(STRING),
    timeout_ms=INT,
)
CONSUMER_POLICY = _ConsumerPolicyField(
    ConsumerPolicy,
    is_nearby=BOOLEAN,
    is_paused=BOOLEAN,
    is_archive=BOOLEAN,
    is_retry=BOOLEAN,
    is_sequential=BOOLEAN,
    ack_timeout_ms=INT,
    batch_size=SHORT,
    is_concurrent=BOOLEAN,
    concurrent_prefetch_size=INT,
    delay_ms=INT,
    black_list=Array(STRING),
    error_times=INT,
    partitions_max=INT,
    retry_read_probability=INT,
)
CLUSTER_PARTITION_GROUP = Struct(
    ClusterPartitionGroup, id=INT, leader=INT, partitions=Array(ByDialect(documented=INT, joyqueue=SHORT))
)
CLUSTER_TOPIC = _ClusterTopicField(
    ClusterTopic,
    topic=STRING,
    producer_policy=Present(PRODUCER_POLICY),
    consumer_policy=Present(CONSUMER_POLICY),
    type=ByDialect(documented=INT, joyqueue=BYTE),
    partition_groups=Array(CLUSTER_PARTITION_GROUP),
    code=INT,
    params=JoyqueueOnly(Array(Pair(STRING, STRING)), (), since=4),
)
CLUSTER_BROKER = Struct(
    ClusterBroker,
    id=INT,
    host=STRING,
    port=INT,
    data_center=STRING,
    is_nearby=BOOLEAN,
    weight=INT,
    system_code=JoyqueueOnly(INT, 0, since=2),
    permission=JoyqueueOnly(INT, READABLE_AND_WRITABLE, since=2),
)
FETCH_CLUSTER = Struct(FetchCluster, topics=Array(STRING), app=STRING)
FETCH_CLUSTER_ACK = Struct(FetchClusterAck, topics=Array(CLUSTER_TOPIC), brokers=Array(CLUSTER_BROKER))
