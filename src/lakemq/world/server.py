"""The sockets: bytes in, frames out to whoever serves them, answers back in one call per connection and turn.

Knows frames and nothing of what is in them. `SocketPort` is one connection, `Acceptor` what it asks of its owner.
This is how the loop itself serves them, and the definition of what `polled.py` does faster.
"""

import asyncio
import socket
from collections.abc import Sequence
from ipaddress import IPv6Address, ip_address
from typing import Any, Protocol, cast

from lakemq.errors import BadFrameError, LakeMQError
from lakemq.wire.frame import FrameDecoder
from lakemq.wire.joyqueue_message import client_address

Buffer = bytes | bytearray | memoryview

LINGER_SECONDS = 10  # how long a closed connection may take to read its last answers


class ClientPort(Protocol):
    """A connection as those who serve it see it; the core knows more of it."""

    id: int
    session: Any
    frame_began_ms: int  # when the first byte of a frame came that is not whole yet; 0 if there is none

    @property
    def held_bytes(self) -> int:
        """What has arrived of a frame that is not whole."""
        ...

    def close(self) -> None:
        """Close after what was sent."""
        ...

    def abort(self) -> None:
        """Close now, whatever waits."""
        ...


class Acceptor(Protocol):
    """Who serves the connections."""

    frame_bytes_max: int
    output_bytes_max: int

    def opened(self, port: ClientPort) -> None:
        """A peer is there."""
        ...

    def received(self, port: "SocketPort", frames: memoryview) -> None:
        """Whole frames have arrived."""
        ...

    def broken(self, port: ClientPort, error: LakeMQError) -> None:
        """What it sends are no frames."""
        ...

    def drained(self, port: ClientPort) -> None:
        """It has read what was sent, or most of it."""
        ...

    def closed(self, port: ClientPort) -> None:
        """It is gone."""
        ...

    def wants_flush(self, port: "SocketPort") -> None:
        """It has something to send: call `flush` at the end of the turn."""
        ...

    def now_ms(self) -> int:
        """Monotonic time."""
        ...

    @property
    def is_ending(self) -> bool:
        """Whether a peer gets time to see the end of its connection, so that its last answers arrive."""
        ...


class SocketPort(asyncio.BufferedProtocol):
    """One connection over a socket."""

    __slots__ = (
        "_acceptor",
        "_decoder",
        "_is_done",
        "_is_full",
        "_is_paused",
        "_linger",
        "_out",
        "_out_bytes",
        "_transport",
        "address",
        "frame_began_ms",
        "host",
        "id",
        "is_ipv6",
        "local_host",
        "local_port",
        "session",
    )

    def __init__(self, number: int, acceptor: Acceptor) -> None:
        self.id = number
        self.host = self.local_host = ""
        self.local_port = 0
        self.address = bytes(16)
        self.is_ipv6 = False
        self.session: Any = None
        self.frame_began_ms = 0  # when the first byte of a frame came that is not whole yet; 0 if there is none
        self._acceptor = acceptor
        self._decoder = FrameDecoder(acceptor.frame_bytes_max)
        self._out: list[Buffer] = []
        self._out_bytes = 0
        self._is_paused = False
        self._is_full = False
        self._is_done = False  # what still comes is not looked at
        self._transport: asyncio.Transport | None = None
        self._linger: asyncio.TimerHandle | None = None

    @property
    def held_bytes(self) -> int:
        """What has arrived of a frame that is not whole."""
        return self._decoder.held_bytes

    # --- from the loop -----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=self._acceptor.output_bytes_max)
        peer, local = transport.get_extra_info("peername"), transport.get_extra_info("sockname")
        if peer:
            self.host, self.is_ipv6, self.address = peer_facts(peer)
        if local:
            self.local_host, self.local_port = host_of(local), local[1]
        raw = transport.get_extra_info("socket")
        if raw is not None and raw.family in (socket.AF_INET, socket.AF_INET6):
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._acceptor.opened(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._decoder.room()

    def buffer_updated(self, nbytes: int) -> None:
        if self._is_done:
            return
        try:
            frames = self._decoder.received_run(nbytes)
        except BadFrameError as error:
            self._acceptor.broken(self, error)
            return
        if frames is not None:
            self.frame_began_ms = 0
            self._acceptor.received(self, frames)
        if self._decoder.is_broken:
            self._acceptor.broken(self, BadFrameError("what follows is no frame"))
        elif self._decoder.held_bytes and not self.frame_began_ms:
            self.frame_began_ms = self._acceptor.now_ms()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._out = []
        if self._linger is not None:
            self._linger.cancel()  # else all that it had stays in memory until then
        self._acceptor.closed(self)

    def pause_writing(self) -> None:
        self._is_full = True

    def resume_writing(self) -> None:
        self._is_full = False
        self._acceptor.drained(self)

    # --- for the core ------------------------------------------------------------------------------------------

    def send(self, buffers: Sequence[Buffer]) -> bool:
        """Send these at the end of the turn; False if the peer does not read fast enough."""
        if self._transport is None or self._is_done:
            return True
        if not self._out:
            self._acceptor.wants_flush(self)
        self._out += buffers
        self._out_bytes += sum(map(len, buffers))
        return not self._is_full and self._out_bytes <= self._acceptor.output_bytes_max

    def flush(self) -> None:
        """Hand all of this turn to the socket in one call."""
        out, self._out = self._out, []
        was_over = self._out_bytes > self._acceptor.output_bytes_max
        self._out_bytes = 0
        if not out or self._is_done or self._transport is None or self._transport.is_closing():
            return
        if len(out) == 1:
            self._transport.write(out[0])
        else:
            self._transport.writelines(out)
        if was_over and not self._is_full:  # the socket took all of it, so nobody else will say so
            self._acceptor.drained(self)

    def pause(self) -> None:
        """Read no more for now."""
        if not self._is_paused and self._transport is not None and not self._transport.is_closing():
            self._is_paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read on."""
        if self._is_paused:
            self._is_paused = False
            if self._transport is not None and not self._transport.is_closing():
                self._transport.resume_reading()

    def close(self) -> None:
        """Close after what was sent."""
        if self._transport is not None:
            if self._out:
                self.flush()
            if self._is_full:  # it does not read: there is nothing to wait for
                self._transport.abort()
                return
            if self._acceptor.is_ending and self._transport.can_write_eof():
                self._say_goodbye()
            else:
                self._transport.close()
            if self._linger is None:
                self._linger = asyncio.get_running_loop().call_later(LINGER_SECONDS, self.abort)

    def _say_goodbye(self) -> None:
        """To close with requests unread would reset the connection, and the peer might never see its last answers."""
        if not self._is_done and self._transport is not None:
            self._is_done = True
            self._transport.write_eof()
            self.resume()

    def abort(self) -> None:
        """Close now, whatever waits."""
        if self._transport is not None:
            self._transport.abort()


def peer_facts(peer: Any) -> tuple[str, bool, bytes]:
    """Of a peer's address: its host as text, whether that is IPv6, and both with the port as a record has them."""
    host = host_of(peer)
    try:
        parsed = ip_address(host)
    except ValueError:
        return host, False, bytes(16)
    return host, isinstance(parsed, IPv6Address), client_address(parsed.packed, peer[1])


def host_of(address: Any) -> str:
    """The host of a socket's address, as IPv4 if it is that in an IPv6 dress."""
    host = str(address[0])
    return host[7:] if host.startswith("::ffff:") and "." in host else host
