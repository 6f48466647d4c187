"""What can happen to a broker. The world makes these; `Broker.handle` is the only one who reads them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from lakemq.broker.effects import Port
from lakemq.errors import LakeMQError
from lakemq.storage.checkpoint import CheckpointTicket
from lakemq.storage.journal import SyncTicket


class Now(NamedTuple):
    """The time, as the world tells it: wall time for users, monotonic time for durations (R10)."""

    wall_ms: int
    monotonic_ms: int


@dataclass(slots=True)
class ConnectionOpened:
    """A peer is there; it has said nothing yet."""

    port: Port


@dataclass(slots=True)
class FramesReceived:
    """Whole frames of one connection, back to back in memory that is theirs to change."""

    connection: int
    frames: memoryview


@dataclass(slots=True)
class StreamBroken:
    """What a peer sends cannot be cut into frames any more; those before it were handed in."""

    connection: int
    error: LakeMQError


@dataclass(slots=True)
class OutputDrained:
    """A peer that read too slowly has caught up."""

    connection: int


@dataclass(slots=True)
class ConnectionClosed:
    """A peer is gone, however that came."""

    connection: int


@dataclass(slots=True)
class TurnEnded:
    """All that had arrived was handed in: write it, answer, sync."""


@dataclass(slots=True)
class JournalSynced:
    """A sync that was asked for has ended."""

    ticket: SyncTicket
    error: OSError | None = None


@dataclass(slots=True)
class CheckpointWritten:
    """A checkpoint that was asked for has ended."""

    ticket: CheckpointTicket
    error: OSError | None = None


@dataclass(slots=True)
class Tick:
    """Some time has passed: see what is due."""


@dataclass(slots=True)
class MetadataGiven:
    """The broker whose word on metadata counts has spoken."""

    packed: bytes


@dataclass(slots=True)
class MetadataStoreFailed:
    """The store through which brokers of a machine share metadata cannot be written or read; empty: it can again."""

    reason: str


@dataclass(slots=True)
class AdminAsked:
    """An operator wants something; `answer` gets what was done once it is durable, or why not."""

    action: str
    arguments: dict[str, Any]
    answer: Callable[[Any, LakeMQError | None], None]


@dataclass(slots=True)
class StopAsked:
    """Finish what is begun, take nothing new, then say so through `World.stop`."""


Event = (
    ConnectionOpened
    | FramesReceived
    | StreamBroken
    | OutputDrained
    | ConnectionClosed
    | TurnEnded
    | JournalSynced
    | CheckpointWritten
    | Tick
    | MetadataGiven
    | MetadataStoreFailed
    | AdminAsked
    | StopAsked
)
