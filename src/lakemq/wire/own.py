"""LakeMQ's own additions, types 60 to 99: what its client needs and the description has no command for.

FETCH_RANGE: how far a partition reaches, where the app stands in it, and which index a moment has: for seeks and
broadcast. EXTEND_LEASE: a consumer is still at work on what it was lent.
"""

from dataclasses import dataclass

from lakemq.wire.consume import TOPIC_CODES, UNKNOWN_INDEX, TopicCodes, TopicPartitions
from lakemq.wire.fields import INT, LONG, SHORT, STRING, Array, Struct

NO_TIME = -1


@dataclass(slots=True)
class PartitionTime:
    """One partition, and the store time to look up in it; NO_TIME if none."""

    partition: int = 0
    time_ms: int = NO_TIME


@dataclass(frozen=True, slots=True)
class TopicTimes:
    """Some partitions of one topic; none at all asks for every one that this broker has."""

    topic: str = ""
    partitions: tuple[PartitionTime, ...] = ()


@dataclass(frozen=True, slots=True)
class FetchRange:
    """How far do these partitions reach?"""

    topics: tuple[TopicTimes, ...] = ()
    app: str = ""


@dataclass(slots=True)
class PartitionRange:
    """One partition: the app's ack index, the oldest index kept, the end of what may be read, and that of the time."""

    partition: int = 0
    ack_index: int = UNKNOWN_INDEX
    first_index: int = UNKNOWN_INDEX
    visible_index: int = UNKNOWN_INDEX
    time_index: int = UNKNOWN_INDEX
    code: int = 0


@dataclass(frozen=True, slots=True)
class TopicRanges:
    """The partitions of one topic."""

    topic: str = ""
    partitions: tuple[PartitionRange, ...] = ()
    code: int = 0


@dataclass(frozen=True, slots=True)
class FetchRangeAck:
    """One entry per topic asked for."""

    topics: tuple[TopicRanges, ...] = ()


@dataclass(frozen=True, slots=True)
class ExtendLease:
    """Leave these partitions with me for `ack_timeout_ms` from now; 0 for as long as the policy says."""

    topics: tuple[TopicPartitions, ...] = ()
    app: str = ""
    ack_timeout_ms: int = 0


@dataclass(frozen=True, slots=True)
class ExtendLeaseAck:
    """One code per partition; 140 where nothing is lent to this connection."""

    topics: tuple[TopicCodes, ...] = ()


FETCH_RANGE = Struct(
    FetchRange,
    topics=Array(
        Struct(TopicTimes, topic=STRING, partitions=Array(Struct(PartitionTime, partition=SHORT, time_ms=LONG)))
    ),
    app=STRING,
)
FETCH_RANGE_ACK = Struct(
    FetchRangeAck,
    topics=Array(
        Struct(
            TopicRanges,
            topic=STRING,
            partitions=Array(
                Struct(
                    PartitionRange,
                    partition=SHORT,
                    ack_index=LONG,
                    first_index=LONG,
                    visible_index=LONG,
                    time_index=LONG,
                    code=INT,
                )
            ),
            code=INT,
        )
    ),
)
EXTEND_LEASE = Struct(
    ExtendLease,
    topics=Array(Struct(TopicPartitions, topic=STRING, partitions=Array(SHORT))),
    app=STRING,
    ack_timeout_ms=INT,
)
EXTEND_LEASE_ACK = Struct(ExtendLeaseAck, topics=Array(TOPIC_CODES))
