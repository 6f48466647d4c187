"""Sending answers: in the connection's dialect, and with an eye on whether the peer still reads."""

from lakemq.broker.events import Now
from lakemq.broker.sessions import Connection
from lakemq.broker.waiters import Buffers
from lakemq.errors import (
    DatabaseError,
    LakeMQError,
    ServiceUnavailableError,
    TopicNotReadableError,
    TopicNotWritableError,
    UnknownError,
    WriteError,
)
from lakemq.wire.commands import Ack, encode_error, encode_response
from lakemq.wire.dialect import Dialect
from lakemq.wire.header import Header
from lakemq.wire.session import presumed

# What a client that has only the protocol's description is told instead of a number that is not in it.
_DESCRIBED: dict[int | None, type[LakeMQError]] = {
    74: ServiceUnavailableError,
    94: WriteError,
    192: TopicNotReadableError,
    193: TopicNotWritableError,
    240: DatabaseError,
}


def send(connection: Connection, buffers: Buffers, now: Now) -> None:
    """Send what is ready; a peer that does not read is read from no more until it does."""
    if connection.is_closing or not buffers:
        return
    if not connection.port.send(buffers):
        hold_up(connection, now)


def hold_up(connection: Connection, now: Now) -> None:
    """Its port says that it does not read fast enough."""
    if not connection.is_output_full:
        connection.is_output_full = True
        connection.output_full_since_ms = now.monotonic_ms
        connection.port.pause()


def encode(connection: Connection, header: Header, ack: Ack | None, now: Now, error: LakeMQError | None) -> Buffers:
    """An answer as bytes, in the connection's dialect."""
    dialect = dialect_of(connection, header)
    error = known_to(connection, error) if error is not None else None
    return encode_response(ack, header, dialect=dialect, send_time_ms=now.wall_ms, error=error)


def answer(connection: Connection, header: Header, ack: Ack | None, now: Now, error: LakeMQError | None = None) -> None:
    """Send an answer at once."""
    send(connection, encode(connection, header, ack, now, error), now)


def refusal(connection: Connection, header: Header, error: LakeMQError, now: Now) -> Buffers:
    """The answer to a request that failed as a whole. What does not travel is told as unknown."""
    told = known_to(connection, error) if error.status is not None else UnknownError(str(error))
    return [encode_error(told, header, dialect=dialect_of(connection, header), send_time_ms=now.wall_ms)]


def dialect_of(connection: Connection, header: Header) -> Dialect:
    """The connection's dialect, or the likely one before it has introduced itself."""
    return connection.dialect if connection.dialect is not None else presumed(header.version)


def code_of(error: LakeMQError) -> int:
    """The code of an error inside a payload; that of its family if it has none of its own."""
    for kind in type(error).__mro__:
        status = getattr(kind, "status", None)
        if status is not None:
            return int(status)
    return UnknownError.status or 0


def known_to(connection: Connection, error: LakeMQError) -> LakeMQError:
    """An error as that peer can know it: JoyQueue's clients and ours know numbers that the description has not."""
    if error.in_seed or connection.is_ours or connection.dialect is not Dialect.DOCUMENTED:
        return error
    described = _DESCRIBED.get(error.status)
    return described(str(error)) if described is not None else error


def code_for(connection: Connection, error: LakeMQError) -> int:
    """The code of an error inside a payload for that peer."""
    return code_of(known_to(connection, error))
