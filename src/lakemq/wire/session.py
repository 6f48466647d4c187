"""Connections, heartbeats and health: ADD_CONNECTION to FETCH_HEALTH, and how the dialect is told."""

from dataclasses import dataclass

from lakemq.errors import SerializationError
from lakemq.wire.buffer import Buffer, Reader, Writer
from lakemq.wire.dialect import VERSION_OURS, Dialect, Form
from lakemq.wire.fields import BYTE, DOUBLE, LONG, SHORT_STRING, STRING, Array, JoyqueueOnly, Struct

LANGUAGE_OTHER = 8  # 0 Java, 1 C, 2 C++, 3 Python, 4 Ruby, 5 .NET, 6 Erlang, 7 Go


@dataclass(frozen=True, slots=True)
class AddConnection:
    """The first request of every connection: who is there."""

    username: str = ""
    password: str = ""
    app: str = ""
    token: str = ""
    region: str = ""
    namespace: str = ""
    language: int = LANGUAGE_OTHER
    version: str = ""
    ip: str = ""
    time_ms: int = 0
    sequence: int = 0


@dataclass(frozen=True, slots=True)
class AddConnectionAck:
    """The connection's id, and a word for the user's log."""

    connection_id: str = ""
    notification: str = ""


@dataclass(frozen=True, slots=True)
class RemoveConnection:
    """Said before the socket is closed."""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Keeps a connection that has nothing to say."""


@dataclass(frozen=True, slots=True)
class FetchHealth:
    """How well is this broker?"""


@dataclass(frozen=True, slots=True)
class FetchHealthAck:
    """0.0 unusable to 100.0 healthy."""

    point: float = 0.0


@dataclass(frozen=True, slots=True)
class AddConsumer:
    """This connection will receive from those topics."""

    topics: tuple[str, ...] = ()
    app: str = ""
    sequence: int = 0


@dataclass(frozen=True, slots=True)
class TopicConsumer:
    """The id a consumer got for one topic."""

    topic: str = ""
    consumer_id: str = ""


@dataclass(frozen=True, slots=True)
class AddConsumerAck:
    """One id per topic asked for."""

    consumers: tuple[TopicConsumer, ...] = ()


@dataclass(frozen=True, slots=True)
class RemoveConsumer:
    """This connection is done receiving from those topics."""

    topics: tuple[str, ...] = ()
    app: str = ""


@dataclass(frozen=True, slots=True)
class AddProducer:
    """This connection will send to those topics."""

    topics: tuple[str, ...] = ()
    app: str = ""
    sequence: int = 0


@dataclass(frozen=True, slots=True)
class TopicProducer:
    """The id a producer got for one topic."""

    topic: str = ""
    producer_id: str = ""


@dataclass(frozen=True, slots=True)
class AddProducerAck:
    """One id per topic asked for."""

    producers: tuple[TopicProducer, ...] = ()


@dataclass(frozen=True, slots=True)
class RemoveProducer:
    """This connection is done sending to those topics."""

    topics: tuple[str, ...] = ()
    app: str = ""


class _Language:
    """A client's language; what nobody knows counts as other."""

    bytes_min = 1

    def read(self, reader: Reader) -> int:
        language = reader.byte()
        return language if 0 <= language <= LANGUAGE_OTHER else LANGUAGE_OTHER

    def write(self, writer: Writer, value: int) -> None:
        writer.byte(value)


_ADD_CONNECTION_AS_SENT = Struct(
    AddConnection,
    username=SHORT_STRING,
    password=SHORT_STRING,
    app=SHORT_STRING,
    token=SHORT_STRING,
    region=SHORT_STRING,
    namespace=SHORT_STRING,
    language=JoyqueueOnly(BYTE, LANGUAGE_OTHER),
    version=SHORT_STRING,
    ip=SHORT_STRING,
    time_ms=LONG,
    sequence=LONG,
)
ADD_CONNECTION = Struct(
    AddConnection,
    **{**_ADD_CONNECTION_AS_SENT.types, "language": JoyqueueOnly(_Language(), LANGUAGE_OTHER)},
)
ADD_CONNECTION_ACK = Struct(AddConnectionAck, connection_id=SHORT_STRING, notification=STRING)
REMOVE_CONNECTION = Struct(RemoveConnection)
HEARTBEAT = Struct(Heartbeat)
FETCH_HEALTH = Struct(FetchHealth)
FETCH_HEALTH_ACK = Struct(FetchHealthAck, point=DOUBLE)
ADD_CONSUMER = Struct(AddConsumer, topics=Array(STRING), app=STRING, sequence=LONG)
ADD_CONSUMER_ACK = Struct(AddConsumerAck, consumers=Array(Struct(TopicConsumer, topic=STRING, consumer_id=STRING)))
REMOVE_CONSUMER = Struct(RemoveConsumer, topics=Array(STRING), app=STRING)
ADD_PRODUCER = Struct(AddProducer, topics=Array(STRING), app=STRING, sequence=LONG)
ADD_PRODUCER_ACK = Struct(AddProducerAck, producers=Array(Struct(TopicProducer, topic=STRING, producer_id=STRING)))
REMOVE_PRODUCER = Struct(RemoveProducer, topics=Array(STRING), app=STRING)


def recognise(payload: Buffer, version: int) -> Dialect:
    """The dialect of an ADD_CONNECTION payload: the one whose form uses up exactly all of it.

    SerializationError if neither does: answer it in the documented form, then close.
    """
    for dialect in (Dialect.JOYQUEUE, Dialect.DOCUMENTED):
        reader = Reader(payload, Form(dialect, version))
        try:
            command = _ADD_CONNECTION_AS_SENT.read(reader)
        except SerializationError:
            continue
        if reader.left == 0 and 0 <= command.language <= LANGUAGE_OTHER:
            return dialect
    raise SerializationError("the first payload is an ADD_CONNECTION of neither dialect")


def presumed(version: int) -> Dialect:
    """The dialect to answer in before the first ADD_CONNECTION: only JoyQueue's clients send other versions than 2."""
    return Dialect.DOCUMENTED if version == VERSION_OURS else Dialect.JOYQUEUE
