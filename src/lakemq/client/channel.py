"""The doors: how a client reaches brokers, by sockets or inside the process. Protocols only.

`sockets.py` and asyncio's transports fulfil them for TCP; a broker inside the process and tests bring their own.
"""

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from lakemq.client.address import Address
from lakemq.wire.buffer import Buffer

if TYPE_CHECKING:  # the blocking client does without
    import asyncio


class Channel(Protocol):
    """One connection of the blocking client."""

    def send(self, buffers: list[Buffer]) -> int:
        """Send without waiting; how many bytes could not leave yet. They leave during a later `receive`.

        The buffers are not changed until they have left. Raises ConnectionLostError.
        """
        ...

    def receive(self, timeout_ms: int) -> list[memoryview]:
        """Whole frames; none if nothing came in that time. Raises ConnectionLostError when it is gone."""
        ...

    def close(self) -> None:
        """Give it up; nothing is received any more."""
        ...


class Connector(Protocol):
    """Opens channels and waits for all of them at once."""

    def connect(self, address: Address, timeout_ms: int) -> Channel:
        """Open a channel; BrokerUnreachableError if that fails. May be called from any thread."""
        ...

    def wait(self, timeout_ms: int | None) -> list[Channel]:
        """Those of the open channels that `receive` should be called on; None waits without end.

        They have something to receive, have room again for what could not leave, or are gone. Called by one thread at
        a time, without a lock; ended early by `wake`.
        """
        ...

    def wake(self) -> None:
        """End a `wait` that is under way, or the next one. May be called from any thread."""
        ...

    def forked(self) -> "Connector":
        """In the child after a fork: a connector of its own. The parent's channels are left to the parent."""
        ...

    def close(self) -> None:
        """Close whatever is open."""
        ...


class Transport(Protocol):
    """What the asyncio client needs of an asyncio.Transport."""

    def write(self, data: Buffer) -> None:
        """Send."""
        ...

    def writelines(self, list_of_data: list[Buffer]) -> None:
        """Send several buffers, in one go if possible."""
        ...

    def close(self) -> None:
        """Send what is left, then close."""
        ...

    def abort(self) -> None:
        """Close at once."""
        ...


class AsyncConnector(Protocol):
    """Opens connections of the asyncio client."""

    async def connect(
        self, address: Address, protocol_factory: "Callable[[], asyncio.BufferedProtocol]", timeout_ms: int
    ) -> Transport:
        """Open a connection: the protocol's `connection_made` has been called. BrokerUnreachableError if it fails."""
        ...


def embedded(name: str, directory: str | None) -> Any:
    """A connector to a broker inside this process, by the name of its maker; loaded only when somebody wants one."""
    return getattr(importlib.import_module("lakemq.embedded_door"), name)(directory)
