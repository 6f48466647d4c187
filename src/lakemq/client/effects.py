"""What the core asks of the world: open, send, close, keep, and tell the user's log."""

from dataclasses import dataclass
from typing import NamedTuple

from lakemq.client.promise import Promise
from lakemq.client.session import Session
from lakemq.wire.buffer import Buffer


@dataclass(frozen=True, slots=True)
class Connect:
    """Open a connection; report `opened`, or `lost` with why it could not be."""

    session: Session
    timeout_ms: int


class Send(NamedTuple):
    """Write these bytes, in one go. There is one for every turn, hence the cheaper kind of class."""

    session: Session
    buffers: list[Buffer]


@dataclass(frozen=True, slots=True)
class Close:
    """Close a connection; nothing is reported."""

    session: Session


@dataclass(frozen=True, slots=True)
class Store:
    """Append these bytes to the outbox and sync it, then keep the promise; `rewrite` replaces the file by them."""

    data: bytes
    done: Promise[None]
    is_synced: bool = True
    rewrite: bool = False


@dataclass(frozen=True, slots=True)
class Note:
    """A line for the log; `level` is the name of one of logging's."""

    level: str
    text: str


Effect = Connect | Send | Close | Store | Note
