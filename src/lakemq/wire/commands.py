"""The table: type number to command and back, and whole frames in both directions.

A request's answer is laid out in the request's form. What goes wrong is said in the dialect's way: a header alone with
the negated type (documented), or a BOOLEAN_ACK (JoyQueue, whose clients cannot take anything else).
"""

from dataclasses import dataclass
from typing import Any

from lakemq.errors import BadFrameError, LakeMQError, UnsupportedCommandError
from lakemq.wire import consume, coordinate, metadata, own, produce, session
from lakemq.wire.buffer import Buffer, Reader, Writer
from lakemq.wire.dialect import Dialect, Form, form_of, status_of
from lakemq.wire.fields import FieldType
from lakemq.wire.header import BOOLEAN_ACK, Header, read_header


@dataclass(frozen=True, slots=True)
class CommandKind:
    """One row of the catalogue; `ack` is None where the answer is a header alone."""

    number: int
    name: str
    request_class: type
    request: FieldType[Any]
    ack_class: type | None = None
    ack: FieldType[Any] | None = None
    is_documented_only: bool = False


def _kind(
    number: int, name: str, request_class: type, ack_class: type | None, module: Any, **more: bool
) -> CommandKind:
    ack = getattr(module, f"{name}_ACK") if ack_class is not None else None
    return CommandKind(number, name, request_class, getattr(module, name), ack_class, ack, **more)


KINDS = (
    _kind(1, "ADD_CONNECTION", session.AddConnection, session.AddConnectionAck, session),
    _kind(2, "REMOVE_CONNECTION", session.RemoveConnection, None, session),
    _kind(3, "ADD_CONSUMER", session.AddConsumer, session.AddConsumerAck, session),
    _kind(4, "REMOVE_CONSUMER", session.RemoveConsumer, None, session),
    _kind(5, "ADD_PRODUCER", session.AddProducer, session.AddProducerAck, session),
    _kind(6, "REMOVE_PRODUCER", session.RemoveProducer, None, session),
    _kind(7, "HEARTBEAT", session.Heartbeat, None, session),
    _kind(8, "FETCH_HEALTH", session.FetchHealth, session.FetchHealthAck, session),
    _kind(10, "FETCH_CLUSTER", metadata.FetchCluster, metadata.FetchClusterAck, metadata),
    _kind(20, "FIND_COORDINATOR", coordinate.FindCoordinator, coordinate.FindCoordinatorAck, coordinate),
    _kind(
        21,
        "FETCH_ASSIGNED_PARTITION",
        coordinate.FetchAssignedPartition,
        coordinate.FetchAssignedPartitionAck,
        coordinate,
    ),
    _kind(30, "FETCH_TOPIC_MESSAGE", consume.FetchTopicMessage, consume.FetchTopicMessageAck, consume),
    _kind(31, "FETCH_PARTITION_MESSAGE", consume.FetchPartitionMessage, consume.FetchPartitionMessageAck, consume),
    _kind(32, "COMMIT_ACK", consume.CommitAck, consume.CommitAckAck, consume),
    _kind(33, "COMMIT_ACK_INDEX", consume.CommitAckIndex, consume.CommitAckIndexAck, consume),
    _kind(34, "FETCH_ACK_INDEX", consume.FetchAckIndex, consume.FetchAckIndexAck, consume, is_documented_only=True),
    _kind(35, "FETCH_INDEX", consume.FetchIndex, consume.FetchIndexAck, consume),
    _kind(50, "PRODUCE_MESSAGE", produce.ProduceMessage, produce.ProduceMessageAck, produce),
    _kind(51, "PRODUCE_MESSAGE_PREPARE", produce.ProduceMessagePrepare, produce.ProduceMessagePrepareAck, produce),
    _kind(52, "PRODUCE_MESSAGE_COMMIT", produce.ProduceMessageCommit, produce.ProduceMessageCommitAck, produce),
    _kind(53, "PRODUCE_MESSAGE_ROLLBACK", produce.ProduceMessageRollback, produce.ProduceMessageRollbackAck, produce),
    _kind(54, "FETCH_PRODUCE_FEEDBACK", produce.FetchProduceFeedback, produce.FetchProduceFeedbackAck, produce),
    _kind(60, "FETCH_RANGE", own.FetchRange, own.FetchRangeAck, own, is_documented_only=True),
    _kind(61, "EXTEND_LEASE", own.ExtendLease, own.ExtendLeaseAck, own, is_documented_only=True),
    _kind(62, "SETTLE", own.Settle, own.SettleAck, own, is_documented_only=True),
    _kind(63, "SET_FILTER", own.SetFilter, own.SetFilterAck, own, is_documented_only=True),
    _kind(own.TRANSACT_NUMBER, "TRANSACT", own.Transact, own.TransactAck, own, is_documented_only=True),
    _kind(65, "FETCH_TRANSACTIONS", own.FetchTransactions, own.FetchTransactionsAck, own, is_documented_only=True),
    _kind(66, "INSPECT", own.Inspect, own.InspectAck, own, is_documented_only=True),
)
_BY_NUMBER = {kind.number: kind for kind in KINDS}
_BY_REQUEST = {kind.request_class: kind for kind in KINDS}
_BY_ACK = {kind.ack_class: kind for kind in KINDS if kind.ack_class is not None}

ADD_CONNECTION_NUMBER = 1

Command = Any  # one of the request classes of KINDS; a handler matches on the class
Ack = Any


def kind_of(number: int, dialect: Dialect) -> CommandKind:
    """The catalogue's row for a request type; UnsupportedCommandError where that dialect has none."""
    kind = _BY_NUMBER.get(number)
    if kind is None or (kind.is_documented_only and dialect is Dialect.JOYQUEUE):
        raise UnsupportedCommandError(f"type {number} is not a command of the {dialect.value} dialect")
    return kind


def check_first(header: Header) -> None:
    """The first frame of a connection must be a request we know: BadFrameError tells another protocol's early."""
    if header.is_response or header.type not in _BY_NUMBER:
        raise BadFrameError(f"the first frame is of type {header.type}, which is no request of this protocol")


def encode_request(
    command: Command, *, form: Form, request_id: int, send_time_ms: int, qos_bits: int = 1
) -> list[Buffer]:
    """A request as buffers to send one after the other."""
    kind = _BY_REQUEST[type(command)]
    header = Header(kind.number, request_id, form.version, qos_bits, send_time_ms)
    return _frame(header, kind.request, command, form)


def decode_request(frame: Buffer, dialect: Dialect) -> tuple[Header, Command]:
    """What a peer asks for.

    SerializationError or UnsupportedCommandError concern this request only: answer with `encode_error`. A
    BadFrameError ends the connection.
    """
    header, start = read_header(frame)
    if header.is_response:
        raise UnsupportedCommandError("a response came where only requests are served: drop it")
    return header, read_payload(kind_of(header.type, dialect), header, frame, start, dialect)


def read_payload(kind: CommandKind, header: Header, frame: Buffer, start: int, dialect: Dialect) -> Command:
    """The same for a request whose header was read, up to `start`, and looked up."""
    return kind.request.read(Reader(frame, form_of(dialect, header.version), start))


def encode_response(
    ack: Ack | None, request: Header, *, dialect: Dialect, send_time_ms: int, error: LakeMQError | None = None
) -> list[Buffer]:
    """The answer to a request, in its version; None for a command that is answered by a header alone.

    `error` beside an ack is how a documented FETCH_TOPIC_MESSAGE names the first topic that failed.
    """
    if ack is None:
        return [_header_alone(request, dialect, send_time_ms, error)]
    kind = _BY_ACK[type(ack)]
    status = status_of(error, dialect) if error is not None else 0
    text = str(error) if error is not None else ""
    form = form_of(dialect, request.version)
    header = Header(
        -kind.number, request.request_id, request.version, request.qos_bits, send_time_ms, True, status, text
    )
    assert kind.ack is not None
    return _frame(header, kind.ack, ack, form)


def encode_error(error: LakeMQError, request: Header, *, dialect: Dialect, send_time_ms: int) -> bytes:
    """The answer to a request that failed as a whole."""
    return _header_alone(request, dialect, send_time_ms, error)


def encode_notice(notice: str, request: Header, *, dialect: Dialect, send_time_ms: int) -> bytes:
    """The answer to a command that is answered by a header alone, with something to say in it."""
    return _header_alone(request, dialect, send_time_ms, None, notice)


def decode_response(frame: Buffer, dialect: Dialect) -> tuple[Header, Ack | None]:
    """What a peer answered; None where it is a header alone, as every error that concerns the whole request is."""
    header, start = read_header(frame)
    if header.type == BOOLEAN_ACK or start == len(frame):
        return header, None
    kind = kind_of(-header.type, dialect)
    if kind.ack is None:  # bytes behind the last known field are room to grow
        return header, None
    return header, kind.ack.read(Reader(frame, form_of(dialect, header.version), start))


def _frame(header: Header, layout: FieldType[Any], value: Any, form: Form) -> list[Buffer]:
    writer = Writer(form)
    layout.write(writer, value)
    return [header.pack(len(writer)), *writer.parts()]


def _header_alone(
    request: Header, dialect: Dialect, send_time_ms: int, error: LakeMQError | None, notice: str = ""
) -> bytes:
    return Header(
        BOOLEAN_ACK if dialect is Dialect.JOYQUEUE else _negated(request.type),
        request.request_id,
        request.version,
        request.qos_bits,
        send_time_ms,
        is_response=True,
        status=status_of(error, dialect) if error is not None else 0,
        error=str(error) if error is not None else notice,
    ).pack(0)


def _negated(number: int) -> int:
    """The type of an answer; -128 is its own, in a byte."""
    return -number if number > -128 else number
