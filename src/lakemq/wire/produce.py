"""Sending: PRODUCE_MESSAGE, and the transactions around it."""

from dataclasses import dataclass

from lakemq.errors import SerializationError
from lakemq.wire.buffer import Reader, Writer
from lakemq.wire.fields import BYTE, INT, LONG, SHORT, STRING, Array, Struct
from lakemq.wire.messages import EMPTY, MESSAGES, MessageBlock

UNKNOWN_INDEX = -1
FEEDBACK_COUNT_DEFAULT = 10  # JoyQueue's clients have no field to ask for a number
TIMEOUT_DEFAULT_MS = 0  # the server's own


@dataclass(slots=True)
class TopicProduce:
    """Messages for one topic; they are stored all or not at all."""

    topic: str = ""
    tx_id: str = ""
    timeout_ms: int = 0
    qos_level: int = 0  # as the dialect numbers it: see dialect.qos_of_level
    messages: MessageBlock = EMPTY


@dataclass(frozen=True, slots=True)
class ProduceMessage:
    """Store these messages."""

    topics: tuple[TopicProduce, ...] = ()
    app: str = ""


@dataclass(slots=True)
class ProduceResult:
    """Where one MESSAGE was stored; a batch has one result, with its first index."""

    partition: int = -1
    index: int = UNKNOWN_INDEX
    start_time_ms: int = -1


@dataclass(frozen=True, slots=True)
class TopicProduceResults:
    """How it went for one topic."""

    topic: str = ""
    code: int = 0
    results: tuple[ProduceResult, ...] = ()


@dataclass(frozen=True, slots=True)
class ProduceMessageAck:
    """One entry per topic of the request."""

    topics: tuple[TopicProduceResults, ...] = ()


@dataclass(frozen=True, slots=True)
class ProduceMessagePrepare:
    """Begin a transaction; with a transaction id of its own it can be asked about later."""

    topic: str = ""
    app: str = ""
    sequence: int = 0
    transaction_id: str = ""
    timeout_ms: int = TIMEOUT_DEFAULT_MS


@dataclass(frozen=True, slots=True)
class ProduceMessagePrepareAck:
    """The transaction's id at the server."""

    tx_id: str = ""
    code: int = 0


@dataclass(frozen=True, slots=True)
class ProduceMessageCommit:
    """Let the transaction's messages be seen."""

    topic: str = ""
    app: str = ""
    tx_id: str = ""


@dataclass(frozen=True, slots=True)
class ProduceMessageCommitAck:
    """How it went."""

    code: int = 0


@dataclass(frozen=True, slots=True)
class ProduceMessageRollback:
    """Forget the transaction's messages."""

    topic: str = ""
    app: str = ""
    tx_id: str = ""


@dataclass(frozen=True, slots=True)
class ProduceMessageRollbackAck:
    """How it went."""

    code: int = 0


@dataclass(frozen=True, slots=True)
class FetchProduceFeedback:
    """Which transactions of ours are neither committed nor rolled back?"""

    app: str = ""
    topic: str = ""
    status: int = 0
    count: int = FEEDBACK_COUNT_DEFAULT
    long_poll_timeout_ms: int = 0


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """One that nobody decided."""

    topic: str = ""
    tx_id: str = ""
    transaction_id: str = ""


@dataclass(frozen=True, slots=True)
class FetchProduceFeedbackAck:
    """Those that wait for a decision."""

    transactions: tuple[OpenTransaction, ...] = ()
    code: int = 0


class _PrepareTimeout:
    """A time-out that documented clients may leave out and JoyQueue's always send."""

    bytes_min = 0

    def read(self, reader: Reader) -> int:
        return reader.integer() if reader.left >= 4 else TIMEOUT_DEFAULT_MS

    def write(self, writer: Writer, value: int) -> None:
        if writer.form.is_joyqueue or value != TIMEOUT_DEFAULT_MS:
            writer.integer(value)


class _FeedbackField:
    """FETCH_PRODUCE_FEEDBACK: what follows the status is told by how much does."""

    bytes_min = 2 + 2 + 1 + 4

    def read(self, reader: Reader) -> FetchProduceFeedback:
        app, topic, status = reader.string(2), reader.string(2), reader.byte()
        if reader.left >= 12:
            return FetchProduceFeedback(app, topic, status, reader.integer(), reader.long())
        if reader.left >= 8:
            return FetchProduceFeedback(app, topic, status, reader.integer(), reader.integer())
        if reader.left >= 4:
            return FetchProduceFeedback(app, topic, status, FEEDBACK_COUNT_DEFAULT, reader.integer())
        raise SerializationError(f"byte {reader.position}: a long poll time-out wanted, {reader.left} bytes are left")

    def write(self, writer: Writer, value: FetchProduceFeedback) -> None:
        writer.string(value.app, 2)
        writer.string(value.topic, 2)
        writer.byte(value.status)
        if writer.form.is_joyqueue:
            writer.integer(value.long_poll_timeout_ms)
        else:
            writer.integer(value.count)
            writer.long(value.long_poll_timeout_ms)


_PRODUCE_RESULT = Struct(ProduceResult, partition=SHORT, index=LONG, start_time_ms=LONG)

PRODUCE_MESSAGE = Struct(
    ProduceMessage,
    topics=Array(Struct(TopicProduce, topic=STRING, tx_id=STRING, timeout_ms=INT, qos_level=BYTE, messages=MESSAGES)),
    app=STRING,
)
PRODUCE_MESSAGE_ACK = Struct(
    ProduceMessageAck,
    topics=Array(Struct(TopicProduceResults, topic=STRING, code=INT, results=Array(_PRODUCE_RESULT))),
)
PRODUCE_MESSAGE_PREPARE = Struct(
    ProduceMessagePrepare,
    topic=STRING,
    app=STRING,
    sequence=LONG,
    transaction_id=STRING,
    timeout_ms=_PrepareTimeout(),
)
PRODUCE_MESSAGE_PREPARE_ACK = Struct(ProduceMessagePrepareAck, tx_id=STRING, code=INT)
PRODUCE_MESSAGE_COMMIT = Struct(ProduceMessageCommit, topic=STRING, app=STRING, tx_id=STRING)
PRODUCE_MESSAGE_COMMIT_ACK = Struct(ProduceMessageCommitAck, code=INT)
PRODUCE_MESSAGE_ROLLBACK = Struct(ProduceMessageRollback, topic=STRING, app=STRING, tx_id=STRING)
PRODUCE_MESSAGE_ROLLBACK_ACK = Struct(ProduceMessageRollbackAck, code=INT)
FETCH_PRODUCE_FEEDBACK = _FeedbackField()
FETCH_PRODUCE_FEEDBACK_ACK = Struct(
    FetchProduceFeedbackAck,
    transactions=Array(Struct(OpenTransaction, topic=STRING, tx_id=STRING, transaction_id=STRING)),
    code=INT,
)
