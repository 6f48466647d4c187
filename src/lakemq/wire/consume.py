"""Receiving: fetch by topic or by partition, acks by message or by index, and where an app stands."""

from dataclasses import dataclass

from lakemq.wire.fields import BYTE, INT, LONG, SHORT, STRING, Array, JoyqueueOnly, Struct
from lakemq.wire.messages import EMPTY, MESSAGES, MessageBlock

ACK_INDEX = -1  # in FETCH_PARTITION_MESSAGE: from where the app has got to
NEWEST_INDEX = -1  # in COMMIT_ACK_INDEX
OLDEST_INDEX = -2
UNKNOWN_INDEX = -1
RETRY_PARTITION = 32767  # what JoyQueue's clients see of retries


@dataclass(frozen=True, slots=True)
class TopicFetch:
    """How many messages of one topic are wanted."""

    topic: str = ""
    count: int = 0


@dataclass(frozen=True, slots=True)
class FetchTopicMessage:
    """Lend me messages: the server picks the partition and the index."""

    topics: tuple[TopicFetch, ...] = ()
    app: str = ""
    ack_timeout_ms: int = 0
    long_poll_timeout_ms: int = 0


@dataclass(slots=True)
class TopicMessages:
    """The messages of one topic. The code travels in JoyQueue's dialect only."""

    topic: str = ""
    messages: MessageBlock = EMPTY
    code: int = 0


@dataclass(frozen=True, slots=True)
class FetchTopicMessageAck:
    """One entry per topic asked for."""

    topics: tuple[TopicMessages, ...] = ()


@dataclass(slots=True)
class PartitionFetch:
    """Where in one partition to read from, and how much."""

    partition: int = 0
    count: int = 0
    index: int = ACK_INDEX


@dataclass(frozen=True, slots=True)
class TopicPartitionFetch:
    """The partitions of one topic to read."""

    topic: str = ""
    partitions: tuple[PartitionFetch, ...] = ()


@dataclass(frozen=True, slots=True)
class FetchPartitionMessage:
    """Give me messages from these places: nothing is lent."""

    topics: tuple[TopicPartitionFetch, ...] = ()
    app: str = ""


@dataclass(frozen=True, slots=True)
class PartitionMessages:
    """The messages of one partition."""

    partition: int = 0
    messages: MessageBlock = EMPTY
    code: int = 0


@dataclass(frozen=True, slots=True)
class TopicPartitionMessages:
    """The partitions of one topic."""

    topic: str = ""
    partitions: tuple[PartitionMessages, ...] = ()


@dataclass(frozen=True, slots=True)
class FetchPartitionMessageAck:
    """One entry per topic and partition asked for."""

    topics: tuple[TopicPartitionMessages, ...] = ()


@dataclass(slots=True)
class MessageAck:
    """How the consumer was done with one message; `type` is an AckType."""

    partition: int = 0
    index: int = 0
    type: int = 0


@dataclass(frozen=True, slots=True)
class PartitionAcks:
    """The acks of one partition."""

    partition: int = 0
    acks: tuple[MessageAck, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicAcks:
    """The acks of one topic."""

    topic: str = ""
    partitions: tuple[PartitionAcks, ...] = ()


@dataclass(frozen=True, slots=True)
class CommitAck:
    """I am done with these messages."""

    topics: tuple[TopicAcks, ...] = ()
    app: str = ""


@dataclass(slots=True)
class PartitionCode:
    """How it went for one partition."""

    partition: int = 0
    code: int = 0


@dataclass(frozen=True, slots=True)
class TopicCodes:
    """How it went for one topic."""

    topic: str = ""
    partitions: tuple[PartitionCode, ...] = ()


@dataclass(frozen=True, slots=True)
class CommitAckAck:
    """One entry per topic and partition."""

    topics: tuple[TopicCodes, ...] = ()


@dataclass(slots=True)
class PartitionIndex:
    """An index in one partition."""

    partition: int = 0
    index: int = 0


@dataclass(frozen=True, slots=True)
class TopicIndexes:
    """Indexes of one topic."""

    topic: str = ""
    partitions: tuple[PartitionIndex, ...] = ()


@dataclass(frozen=True, slots=True)
class CommitAckIndex:
    """Set the ack index directly."""

    topics: tuple[TopicIndexes, ...] = ()
    app: str = ""


@dataclass(frozen=True, slots=True)
class CommitAckIndexAck:
    """One entry per topic and partition."""

    topics: tuple[TopicCodes, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicPartitions:
    """Some partitions of one topic."""

    topic: str = ""
    partitions: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class FetchIndex:
    """Where does the app stand?"""

    topics: tuple[TopicPartitions, ...] = ()
    app: str = ""


@dataclass(frozen=True, slots=True)
class FoundIndex:
    """The next index the app will get; left and right are the oldest kept and the next to be written."""

    partition: int = 0
    index: int = UNKNOWN_INDEX
    code: int = 0
    left_index: int = UNKNOWN_INDEX
    right_index: int = UNKNOWN_INDEX


@dataclass(frozen=True, slots=True)
class TopicFoundIndexes:
    """Where the app stands in one topic."""

    topic: str = ""
    partitions: tuple[FoundIndex, ...] = ()


@dataclass(frozen=True, slots=True)
class FetchIndexAck:
    """One entry per topic and partition asked for."""

    topics: tuple[TopicFoundIndexes, ...] = ()


@dataclass(frozen=True, slots=True)
class FetchAckIndex:
    """The same question under the number the description reserves for it."""

    topics: tuple[TopicPartitions, ...] = ()
    app: str = ""


@dataclass(frozen=True, slots=True)
class FetchAckIndexAck:
    """One entry per topic and partition asked for."""

    topics: tuple[TopicFoundIndexes, ...] = ()


TOPIC_CODES = Struct(TopicCodes, topic=STRING, partitions=Array(Struct(PartitionCode, partition=SHORT, code=INT)))
_TOPIC_PARTITIONS = Struct(TopicPartitions, topic=STRING, partitions=Array(SHORT))
_FOUND_INDEX = Struct(
    FoundIndex,
    partition=SHORT,
    index=LONG,
    code=INT,
    left_index=JoyqueueOnly(LONG, UNKNOWN_INDEX, since=3),
    right_index=JoyqueueOnly(LONG, UNKNOWN_INDEX, since=3),
)
_TOPIC_FOUND_INDEXES = Struct(TopicFoundIndexes, topic=STRING, partitions=Array(_FOUND_INDEX))

FETCH_TOPIC_MESSAGE = Struct(
    FetchTopicMessage,
    topics=Array(Struct(TopicFetch, topic=STRING, count=SHORT)),
    app=STRING,
    ack_timeout_ms=INT,
    long_poll_timeout_ms=INT,
)
FETCH_TOPIC_MESSAGE_ACK = Struct(
    FetchTopicMessageAck,
    topics=Array(Struct(TopicMessages, topic=STRING, messages=MESSAGES, code=JoyqueueOnly(INT, 0))),
)
FETCH_PARTITION_MESSAGE = Struct(
    FetchPartitionMessage,
    topics=Array(
        Struct(
            TopicPartitionFetch,
            topic=STRING,
            partitions=Array(Struct(PartitionFetch, partition=SHORT, count=INT, index=LONG)),
        )
    ),
    app=STRING,
)
FETCH_PARTITION_MESSAGE_ACK = Struct(
    FetchPartitionMessageAck,
    topics=Array(
        Struct(
            TopicPartitionMessages,
            topic=STRING,
            partitions=Array(Struct(PartitionMessages, partition=SHORT, messages=MESSAGES, code=INT)),
        )
    ),
)
COMMIT_ACK = Struct(
    CommitAck,
    topics=Array(
        Struct(
            TopicAcks,
            topic=STRING,
            partitions=Array(
                Struct(
                    PartitionAcks,
                    partition=SHORT,
                    acks=Array(Struct(MessageAck, partition=SHORT, index=LONG, type=BYTE)),
                )
            ),
        )
    ),
    app=STRING,
)
COMMIT_ACK_ACK = Struct(CommitAckAck, topics=Array(TOPIC_CODES))
COMMIT_ACK_INDEX = Struct(
    CommitAckIndex,
    topics=Array(
        Struct(TopicIndexes, topic=STRING, partitions=Array(Struct(PartitionIndex, partition=SHORT, index=LONG)))
    ),
    app=STRING,
)
COMMIT_ACK_INDEX_ACK = Struct(CommitAckIndexAck, topics=Array(TOPIC_CODES))
FETCH_INDEX = Struct(FetchIndex, topics=Array(_TOPIC_PARTITIONS), app=STRING)
FETCH_INDEX_ACK = Struct(FetchIndexAck, topics=Array(_TOPIC_FOUND_INDEXES))
FETCH_ACK_INDEX = Struct(FetchAckIndex, topics=Array(_TOPIC_PARTITIONS), app=STRING)
FETCH_ACK_INDEX_ACK = Struct(FetchAckIndexAck, topics=Array(_TOPIC_FOUND_INDEXES))
