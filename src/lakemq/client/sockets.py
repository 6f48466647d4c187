"""TCP for the blocking client: non-blocking sockets, and one poll for all of them."""

import os
import select
import socket
from collections import deque
from itertools import islice
from time import perf_counter, sleep

from lakemq.client.address import Address
from lakemq.client.channel import Channel
from lakemq.client.errors import BrokerUnreachableError, ConnectionLostError, not_frames
from lakemq.client.readiness import IN, OUT, core_count, make_bell, make_poll
from lakemq.errors import BadFrameError
from lakemq.wire.buffer import Buffer
from lakemq.wire.frame import FrameDecoder

_CHUNK_BYTES = (2 << 20) + (64 << 10)  # as much as a broker answers to a fetch, so that it need not be copied together
_JOINED_BYTES_MAX = 16 << 10  # so little is copied faster than several buffers are handed over
_BUFFERS_MAX = 512  # in one call; the system takes 1024
_yield = getattr(os, "sched_yield", lambda: sleep(0))


class SocketChannel:
    """One TCP connection."""

    def __init__(self, owner: "SocketConnector", sock: socket.socket, address: Address, frame_bytes_max: int) -> None:
        self._owner = owner
        self._socket = sock
        self._address = address
        self._decoder = FrameDecoder(frame_bytes_max, _CHUNK_BYTES)
        self._unsent: deque[memoryview] = deque()
        self._unsent_bytes = 0
        self.number = sock.fileno()

    def send(self, buffers: list[Buffer]) -> int:
        """Send what the system takes; the rest when it takes more."""
        had_none = not self._unsent
        if had_none and sum(map(len, buffers)) < _JOINED_BYTES_MAX:
            buffers = [b"".join(buffers)]
            try:
                sent = self._socket.send(buffers[0])
                if sent == len(buffers[0]):
                    return 0
                buffers = [memoryview(buffers[0])[sent:]]
            except BlockingIOError:
                pass
            except OSError as error:
                raise ConnectionLostError(f"{self._address}: {error}") from None
        for buffer in buffers:
            view = memoryview(buffer)
            if len(view):
                self._unsent.append(view)
                self._unsent_bytes += len(view)
        if had_none:
            self._send_more()
            if self._unsent:
                self._owner.watch(self, is_writing=True)
        return self._unsent_bytes

    def _send_more(self) -> None:
        """Go on with what could not leave."""
        try:
            while self._unsent:
                sent = self._send_some()
                self._unsent_bytes -= sent
                while sent:
                    first = self._unsent.popleft()
                    if sent < len(first):
                        self._unsent.appendleft(first[sent:])
                        break
                    sent -= len(first)
        except BlockingIOError:
            return
        except OSError as error:
            raise ConnectionLostError(f"{self._address}: {error}") from None

    def _send_some(self) -> int:
        if hasattr(self._socket, "sendmsg"):
            return self._socket.sendmsg(islice(self._unsent, _BUFFERS_MAX))
        return self._socket.send(self._unsent[0])  # Windows

    def receive(self, timeout_ms: int) -> list[memoryview]:
        """Whole frames of what has arrived; what could not be sent is sent, too, if there is room now."""
        if self._unsent:
            self._send_more()
            if not self._unsent:
                self._owner.watch(self, is_writing=False)
        if timeout_ms and not select.select([self._socket], [], [], timeout_ms / 1000)[0]:
            return []
        room = self._decoder.room()
        try:
            size = self._socket.recv_into(room)
        except BlockingIOError:
            return []
        except OSError as error:
            raise ConnectionLostError(f"{self._address}: {error}") from None
        if not size:
            raise ConnectionLostError(f"{self._address} closed the connection")
        try:
            return self._decoder.received(size)
        except BadFrameError as error:
            raise not_frames(self._address, bytes(room[:16]), error) from None

    def close(self) -> None:
        """Close the socket."""
        self._owner.forget(self)
        self._socket.close()


class SocketConnector:
    """Opens TCP connections and waits for them."""

    def __init__(self, frame_bytes_max: int, spin_us: int = 0) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._spin_us = spin_us
        # On a single core the broker could not work while we look.
        self._spin_s = spin_us / 1e6 if core_count() > 1 else 0.0
        self._is_brisk = False  # the last news came within that time
        self._channels: dict[int, SocketChannel] = {}
        self._poll = make_poll()
        self._bell = make_bell()
        self._poll.register(self._bell.number, IN)

    def connect(self, address: Address, timeout_ms: int) -> SocketChannel:
        """Open a TCP connection."""
        try:
            sock = socket.create_connection(address, timeout_ms / 1000)
        except OSError as error:
            raise BrokerUnreachableError(f"{address}: {error}") from None
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setblocking(False)
        channel = SocketChannel(self, sock, address, self._frame_bytes_max)
        self._channels[channel.number] = channel
        self._poll.register(channel.number, IN)
        return channel

    def wait(self, timeout_ms: int | None) -> list[Channel]:
        """Those with something to receive, or with room to send more."""
        ready: list[Channel] = []
        for number, _ in self._events(timeout_ms):
            if number == self._bell.number:
                self._bell.hear()
                continue
            channel = self._channels.get(number)
            if channel is not None:
                ready.append(channel)
        return ready

    def _events(self, timeout_ms: int | None) -> list[tuple[int, int]]:
        """Sleep until there is news. If the last came so soon that waking up took longer, look again and again first.

        A core that has gone to sleep wakes up in 50 to 100 us, on a virtual machine above all: more than a broker
        takes to answer. Whoever else wants the core gets it between two looks.
        """
        poll, timeout_s = self._poll.poll, None if timeout_ms is None else timeout_ms / 1000
        if not self._spin_s:
            return poll(timeout_s)
        began = perf_counter()
        if self._is_brisk:
            until = began + (self._spin_s if timeout_s is None else min(self._spin_s, timeout_s))
            while perf_counter() < until:
                if events := poll(0):
                    return events
                _yield()
        events = poll(timeout_s)
        self._is_brisk = perf_counter() - began < self._spin_s
        return events

    def wake(self) -> None:
        """Ring the bell."""
        self._bell.ring()

    def watch(self, channel: SocketChannel, is_writing: bool) -> None:
        """Wait for room to write, too, or no more."""
        self._poll.modify(channel.number, IN | (OUT if is_writing else 0))

    def forget(self, channel: SocketChannel) -> None:
        """It is about to be closed."""
        if self._channels.pop(channel.number, None) is not None:
            self._poll.unregister(channel.number)

    def forked(self) -> "SocketConnector":
        """A new one; closing the child's copies of the sockets does not disturb the parent."""
        for channel in self._channels.values():
            channel._socket.close()
        self._channels.clear()
        self._poll.close()  # not unregistered before: what it watches is shared with the parent
        self._bell.close()
        return SocketConnector(self._frame_bytes_max, self._spin_us)

    def close(self) -> None:
        """Close all."""
        for channel in list(self._channels.values()):
            channel.close()
        if not self._poll.closed:
            self._poll.close()
            self._bell.close()
