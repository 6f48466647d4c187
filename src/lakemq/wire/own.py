"""LakeMQ's own additions, types 60 to 99: what its client needs and the description has no command for.

FETCH_RANGE: how far a partition reaches, where the app stands in it, and which index a moment has: for seeks and
broadcast. EXTEND_LEASE: a consumer is still at work on what it was lent. SETTLE: how a consumer was done with single
messages, when to deliver them again, and why not. SET_FILTER: which messages an app wants of a topic.
TRANSACT: a transaction in one request, or a piece of one. FETCH_TRANSACTIONS: those that are open. INSPECT: which
topics there are, and what has become of the messages of one.
"""

import struct
from dataclasses import dataclass
from enum import IntEnum

from lakemq.errors import LakeMQError
from lakemq.record import measure
from lakemq.wire.buffer import Reader
from lakemq.wire.consume import TOPIC_CODES, UNKNOWN_INDEX, TopicCodes, TopicPartitions
from lakemq.wire.fields import BYTE, BYTES, INT, LONG, SHORT, STRING, Array, Struct
from lakemq.wire.messages import MESSAGES, MessageBlock

NO_TIME = -1
_TRANSACT_NUMBERS = struct.Struct(">iibh")  # time-out, number, outcome, parts
_PARTS_IN_ONE_GO = 1000
BY_POLICY = -1  # after_ms of SETTLE: as the consumer policy says


GIVE_BACK = -1  # as the time of an EXTEND_LEASE


class SettleOutcome(IntEnum):
    """How a consumer was done with a message, in SETTLE."""

    DONE = 0
    RETRY = 1
    DEAD_LETTER = 2


TRANSACT_NUMBER = 64


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
    """Leave these partitions with me for `ack_timeout_ms` from now; 0 for as long as the policy says.

    With GIVE_BACK it is the opposite: what this connection has of them may be lent to others at once.
    """

    topics: tuple[TopicPartitions, ...] = ()
    app: str = ""
    ack_timeout_ms: int = 0


@dataclass(frozen=True, slots=True)
class ExtendLeaseAck:
    """One code per partition; 140 where nothing is lent to this connection."""

    topics: tuple[TopicCodes, ...] = ()


@dataclass(frozen=True, slots=True)
class Settlement:
    """How one message was done with; `outcome` is a SettleOutcome. The reason is kept with a dead letter."""

    partition: int = 0
    index: int = 0
    outcome: int = 0
    after_ms: int = BY_POLICY
    reason: str = ""


@dataclass(frozen=True, slots=True)
class TopicSettlements:
    """Messages of one topic; of a retried one partition and index are those it was delivered with."""

    topic: str = ""
    settlements: tuple[Settlement, ...] = ()


@dataclass(frozen=True, slots=True)
class Settle:
    """I am done with these messages, each in its own way."""

    topics: tuple[TopicSettlements, ...] = ()
    app: str = ""


@dataclass(slots=True)
class SettledCode:
    """How it went for one message."""

    partition: int = 0
    index: int = 0
    code: int = 0


@dataclass(frozen=True, slots=True)
class TopicSettledCodes:
    """The messages of one topic."""

    topic: str = ""
    settled: tuple[SettledCode, ...] = ()


@dataclass(frozen=True, slots=True)
class SettleAck:
    """One code per message; 140 where it is not lent to this connection."""

    topics: tuple[TopicSettledCodes, ...] = ()


@dataclass(frozen=True, slots=True)
class SetFilter:
    """From now on this app wants those messages of the topic that the filter lets through; none for all."""

    topic: str = ""
    app: str = ""
    filter: str = ""


@dataclass(frozen=True, slots=True)
class SetFilterAck:
    """How it went. A filter that does not parse is a header with 6, whose text names the column."""

    code: int = 0


class TransactOutcome(IntEnum):
    """What becomes of the transaction of a TRANSACT."""

    OPEN = 0  # it waits for PRODUCE_MESSAGE_COMMIT or _ROLLBACK
    COMMIT = 1


@dataclass(frozen=True, slots=True)
class Transact:
    """Begin a transaction under an id of the sender's choice, or go on with it; `outcome` is a TransactOutcome.

    `number` counts the requests of one transaction from 0. One that was taken before is answered and not taken again.
    """

    topic: str = ""
    app: str = ""
    tx_id: str = ""
    transaction_id: str = ""
    timeout_ms: int = 0
    number: int = 0
    outcome: int = 0
    parts: tuple[MessageBlock, ...] = ()  # each of one partition


@dataclass(frozen=True, slots=True)
class TransactAck:
    """Done, and durable."""

    code: int = 0


@dataclass(frozen=True, slots=True)
class FetchTransactions:
    """Which transactions of ours are open? Those with an id of our own that sorts after `after`."""

    topic: str = ""
    app: str = ""
    after: str = ""
    count: int = 0


@dataclass(frozen=True, slots=True)
class TransactionFound:
    """One that is open, whether or not its time is over."""

    tx_id: str = ""
    transaction_id: str = ""
    began_ms: int = 0
    timeout_ms: int = 0
    message_count: int = 0


@dataclass(frozen=True, slots=True)
class FetchTransactionsAck:
    """By their own ids, in order."""

    transactions: tuple[TransactionFound, ...] = ()
    code: int = 0


@dataclass(frozen=True, slots=True)
class Inspect:
    """What does the broker know? `what` is "cluster", or "deliveries" of one topic; `after` is where to go on."""

    what: str = ""
    topic: str = ""
    app: str = ""
    after: str = ""
    count: int = 0


@dataclass(frozen=True, slots=True)
class InspectAck:
    """A page of it as JSON; `next` is what to go on after, "" at the end."""

    code: int = 0
    next: str = ""
    body: bytes = b""


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
SETTLE = Struct(
    Settle,
    topics=Array(
        Struct(
            TopicSettlements,
            topic=STRING,
            settlements=Array(
                Struct(Settlement, partition=SHORT, index=LONG, outcome=BYTE, after_ms=LONG, reason=STRING)
            ),
        )
    ),
    app=STRING,
)
SETTLE_ACK = Struct(
    SettleAck,
    topics=Array(
        Struct(
            TopicSettledCodes,
            topic=STRING,
            settled=Array(Struct(SettledCode, partition=SHORT, index=LONG, code=INT)),
        )
    ),
)
SET_FILTER = Struct(SetFilter, topic=STRING, app=STRING, filter=STRING)
SET_FILTER_ACK = Struct(SetFilterAck, code=INT)


class _TransactLayout(Struct[Transact]):
    """Read in one go where nothing is out of the ordinary: transactions come by the thousand."""

    def read(self, reader: Reader) -> Transact:
        view, at, end = reader.view, reader.position, reader.end
        texts = []
        try:
            for _ in range(4):
                size = view[at] << 8 | view[at + 1]
                at += 2 + size
                texts.append(str(view[at - size : at], "utf-8"))
            timeout_ms, number, outcome, part_count = _TRANSACT_NUMBERS.unpack_from(view, at)
            at += _TRANSACT_NUMBERS.size
            parts = []
            for _ in range(part_count):
                count = view[at] << 8 | view[at + 1]
                stop = measure(view, at + 2, end, count)
                parts.append(MessageBlock(count, (view[at + 2 : stop],) if count else ()))
                at = stop
        except (IndexError, struct.error, UnicodeDecodeError, LakeMQError):
            return super().read(reader)  # which says what is wrong
        if at > end or part_count < 0 or part_count > _PARTS_IN_ONE_GO:
            return super().read(reader)
        reader.position = at
        return Transact(texts[0], texts[1], texts[2], texts[3], timeout_ms, number, outcome, tuple(parts))


TRANSACT = _TransactLayout(
    Transact,
    topic=STRING,
    app=STRING,
    tx_id=STRING,
    transaction_id=STRING,
    timeout_ms=INT,
    number=INT,
    outcome=BYTE,
    parts=Array(MESSAGES),
)
TRANSACT_ACK = Struct(TransactAck, code=INT)
FETCH_TRANSACTIONS = Struct(FetchTransactions, topic=STRING, app=STRING, after=STRING, count=INT)
FETCH_TRANSACTIONS_ACK = Struct(
    FetchTransactionsAck,
    transactions=Array(
        Struct(
            TransactionFound,
            tx_id=STRING,
            transaction_id=STRING,
            began_ms=LONG,
            timeout_ms=INT,
            message_count=INT,
        )
    ),
    code=INT,
)
INSPECT = Struct(Inspect, what=STRING, topic=STRING, app=STRING, after=STRING, count=INT)
INSPECT_ACK = Struct(InspectAck, code=INT, next=STRING, body=BYTES)
