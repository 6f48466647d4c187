"""What can go wrong on the client's side of the wire; what the broker answers is in `lakemq.errors`.

None of these travels, so none has a status. `retriable` and `maybe_written` mean what they mean there.
"""

from lakemq.errors import LakeMQError


class ClientError(LakeMQError):
    """Family of all that the client itself raises, to catch by."""

    in_seed = False


class BrokerUnreachableError(ClientError):
    retriable = True
    cause = "No connection to the broker could be opened."
    fix = "Check host and port of the URL (LAKEMQ_URL), that the broker runs, and the network in between."


class WrongPortError(BrokerUnreachableError):
    retriable = False
    cause = "What answers there is no broker's port for clients."
    fix = "Connect to the port for clients, 50088 unless it was set otherwise; the broker's banner has it."


class LeftAloneError(BrokerUnreachableError):
    cause = "The broker could not be reached a moment ago, and is not asked again just yet."

    def __init__(self, detail: str = "", left_ms: int = 0) -> None:
        super().__init__(detail)
        self.left_ms = left_ms  # until it may be asked


def not_frames(address: object, data: bytes, error: LakeMQError) -> LakeMQError:
    """What to tell of a peer whose bytes are no frames: web servers are known by how they begin."""
    if not data.startswith(b"HTTP/"):
        return ConnectionLostError(f"{address}: {error}")
    return WrongPortError(
        f"{address} speaks HTTP: this is LakeMQ's port for operators (50090 unless set otherwise), or a web server"
    )


class ConnectionLostError(ClientError):
    retriable = True
    maybe_written = True
    cause = "The connection broke while an answer was awaited."
    fix = "Try again; if it happens often, look at the broker's log and the network in between."


class RequestTimeoutError(ClientError):
    retriable = True
    maybe_written = True
    cause = "The broker did not answer in time."
    fix = "Check the broker's load and disk, or allow more time (timeout=)."


class NotSentError(RequestTimeoutError):
    maybe_written = False
    cause = "The request never left: too many others were waiting for answers, or the network took no more."
    fix = "Slow down, or allow more time; check what keeps the broker busy."


class SendTimeoutError(ClientError):
    retriable = True
    maybe_written = True
    cause = "The message was not confirmed within the time-out; it may be stored all the same."
    fix = "Check the broker's load, or allow more time; with uniq_id= a second send makes no second copy."


class BufferFullError(ClientError):
    retriable = True
    cause = "The buffer of send_soon is full: messages come faster than the broker takes them."
    fix = "Let send_soon wait (leave out timeout=0), slow down, or raise buffer_bytes and buffer_count."


class ClosedError(ClientError):
    cause = "The client, consumer or reader has been closed."
    fix = "Use it inside its `with` block, or open a new one."


class ForkedError(ClientError):
    cause = "This belongs to the process that was forked from; its sockets and messages stay with that one."
    fix = "Open consumers and readers, and keep futures, in the process that uses them."


class OutboxFullError(ClientError):
    retriable = True
    cause = "The outbox holds as much as it may; the message was not taken."
    fix = "Wait until the broker can be reached again, or raise outbox_bytes_max."


class OutboxLockedError(ClientError):
    cause = "Another process uses this outbox directory."
    fix = "Give every process a directory of its own; a forked child needs one, too."


def made_unknown(error: LakeMQError) -> LakeMQError:
    """That error, saying that an earlier try may have stored the message: this one tells nothing about that."""
    if not error.maybe_written:
        error.maybe_written = True
        error.args = (f"{error}; an earlier try had no answer, so it may be stored all the same",)
    return error


class AdminError(ClientError):
    cause = "The administration interface did not answer as expected."
    fix = "Check admin_url and the token, and that the broker was started with an administration port."


class HandlerError(ClientError, TypeError):
    cause = "This function cannot be a handler here."
    fix = "Use a plain function with this client; for `async def`, connect with lakemq.aio.connect()."

    def __init__(self, detail: str = "", fix: str = "") -> None:
        super().__init__(detail)
        if fix:
            self.fix = fix  # type: ignore[misc]
