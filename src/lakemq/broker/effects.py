"""What a broker asks of the world, as calls: cheap, and the same for a socket, a simulation and a test."""

from collections.abc import Sequence
from typing import Any, Protocol

from lakemq.storage.checkpoint import CheckpointTicket
from lakemq.storage.disk import Buffer
from lakemq.storage.journal import SyncTicket


class Port(Protocol):
    """The world's end of one connection."""

    id: int  # given once, never again
    host: str  # the peer's address as text
    address: bytes  # the same in 16 bytes, as a record's header has it
    is_ipv6: bool
    local_host: str  # what the peer connected to
    local_port: int
    session: Any  # what the core keeps for this connection; None until it was told of it

    def send(self, buffers: Sequence[Buffer]) -> bool:
        """Send these in order, at the end of the turn. False: the peer reads too slowly, wait for OutputDrained."""
        ...

    def pause(self) -> None:
        """Read no more from it for now; a second call does nothing."""
        ...

    def resume(self) -> None:
        """Read on."""
        ...

    def close(self) -> None:
        """Close it after what was sent; ConnectionClosed follows."""
        ...


class World(Protocol):
    """Everything else."""

    def sync(self, ticket: SyncTicket) -> None:
        """Run it elsewhere, then hand in JournalSynced."""
        ...

    def checkpoint(self, ticket: CheckpointTicket) -> None:
        """Run it elsewhere, then hand in CheckpointWritten."""
        ...

    def stop(self, failure: str | None) -> None:
        """The broker is done: in peace, or because of something it must not go on after (R3)."""
        ...

    def note(self, level: str, text: str) -> None:
        """A line for the log."""
        ...
