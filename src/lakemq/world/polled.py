"""The sockets by our own poller: all that arrived in a turn with one call, all its answers with another.

What a port does is what `server.SocketPort` does; here it costs less per connection. The bytes are handled in
`_poll.c`; what happens seldom (a connection begins, ends, is closed) is here. Without the compiled part this module
cannot be imported, and connections are served by the loop's own protocol.
"""

import asyncio
import errno
import logging
import os
import socket
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any, Protocol

from lakemq import _poll
from lakemq.wire.frame import out_of_step
from lakemq.world.server import LINGER_SECONDS, Acceptor, host_of, peer_facts

_LOG = logging.getLogger("lakemq.broker")
_SPIN_US = 100
_BRISK_US = 400  # from answer to answer
_LONG_AGO_NS = -(1 << 62)
_SPIN_ARRIVALS_MAX = 4  # of more clients there is nearly always one that has sent something
_ACCEPTS_MAX = 64  # at once: those who are connected are to be served, too
_ACCEPT_AGAIN_SECONDS = 0.2
_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class PolledAcceptor(Acceptor, Protocol):
    """Who serves polled connections."""

    def polled(self, arrivals: list[tuple[Any, memoryview]], happened: list[tuple[Any, int]] | None) -> None:
        """Sessions with their frames, then ports with what `PolledPort.note` is to be told: one turn."""
        ...

    @property
    def is_waiting_for_disk(self) -> bool:
        """Whether something is being synced or written beside the loop."""
        ...

    def begin_turn(self) -> None:
        """Something is to be sent: call `PolledServer.flush` at the end of the turn."""
        ...


class PolledPort(_poll.Link):
    """One connection."""

    __slots__ = (
        "_acceptor",
        "_is_goodbye",
        "_linger",
        "_socket",
        "address",
        "host",
        "id",
        "is_ipv6",
        "local_host",
        "local_port",
    )

    def __init__(self, number: int, acceptor: Acceptor, connected: socket.socket, peer: Any) -> None:
        self.id = number
        self.host, self.is_ipv6, self.address = peer_facts(peer)
        local = connected.getsockname()
        self.local_host, self.local_port = host_of(local), local[1]
        self._acceptor = acceptor
        self._socket = connected
        self._is_goodbye = False
        self._linger: asyncio.TimerHandle | None = None

    def note(self, what: int) -> None:
        """What the poller says of it."""
        if not self.is_open:
            return
        if what == _poll.DRAINED:
            self._acceptor.drained(self)
        elif what == _poll.BROKEN:
            self.is_done = False  # what the core has to say of it still leaves
            self._acceptor.broken(self, out_of_step(self.broken_word, "what follows is no frame"))
            self.is_done = True
        elif what == _poll.ENDED:
            self._is_goodbye = False
            self._finish()
        elif what == _poll.EMPTY and self._is_goodbye:
            self.tells_empty = False
            self._end_sending()
        else:  # all is sent, or nothing can be any more
            self.abort()

    # --- for the core; send, pause and resume are compiled -----------------------------------------------------

    def close(self) -> None:
        """Close after what was sent."""
        if not self.is_open:
            return
        if (self.unsent_bytes and not self.push()) or self.is_full:  # it does not read: there is nothing to wait for
            self.abort()
            return
        if self._acceptor.is_ending:
            self._say_goodbye()
        else:
            self._finish()
        if self.is_open and self._linger is None:
            self._linger = asyncio.get_running_loop().call_later(LINGER_SECONDS, self.abort)

    def _finish(self) -> None:
        """Read no more, and go when all is sent."""
        self.is_done = True
        self.pause()
        if self.unsent_bytes:
            self.tells_empty = True
        else:
            self.abort()

    def _say_goodbye(self) -> None:
        """To close with requests unread would reset the connection, and the peer might never see its last answers."""
        if self._is_goodbye:
            return
        self._is_goodbye = self.is_done = True
        if self.unsent_bytes:
            self.tells_empty = True
        else:
            self._end_sending()
        if self.is_open:
            self.resume()

    def _end_sending(self) -> None:
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:  # it is gone already
            self.abort()

    def abort(self) -> None:
        """Close now, whatever waits."""
        if self.is_open:
            self.shut()
            self._socket.close()
            if self._linger is not None:
                self._linger.cancel()  # else all that it had stays in memory until then
            # Later: whoever closes it is in the middle of something.
            asyncio.get_running_loop().call_soon(self._acceptor.closed, self)


class PolledServer:
    """Takes connections from a listening socket, and hands in what arrives on them."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        listener: socket.socket,
        acceptor: PolledAcceptor,
        next_number: Callable[[], int],
        backlog: int,
    ) -> None:
        self._loop = loop
        self._listener = listener
        self._acceptor = acceptor
        self._next_number = next_number
        self._poller = _poll.Poller(acceptor.frame_bytes_max, acceptor.output_bytes_max, acceptor.begin_turn)
        self._again: asyncio.TimerHandle | None = None
        self._is_closed = False
        self._spin_us = _SPIN_US if len(os.sched_getaffinity(0)) > 1 else 0  # the client needs a core, too
        self._brisk_ns = _BRISK_US * 1000
        self._answered_ns = _LONG_AGO_NS
        self.flush = self._poller.flush
        listener.setblocking(False)
        listener.listen(backlog)
        loop.add_reader(listener.fileno(), self._accept)
        loop.add_reader(self._poller.fileno(), self._receive)

    @property
    def port(self) -> int:
        """Where clients connect to."""
        number: int = self._listener.getsockname()[1]
        return number

    def close(self) -> None:
        """Take no more connections; those that are there stay."""
        if not self._is_closed:
            self._is_closed = True
            if self._again is None:
                self._loop.remove_reader(self._listener.fileno())
            else:
                self._again.cancel()
            self._listener.close()

    def end(self) -> None:
        """Shut what is still there."""
        self.close()
        self._loop.remove_reader(self._poller.fileno())
        self._poller.close()

    def _receive(self) -> None:
        arrivals, happened = self._poller.receive(self._acceptor.now_ms())
        if arrivals or happened:
            self._acceptor.polled(arrivals, happened)
            if self._spin_us and len(arrivals) <= _SPIN_ARRIVALS_MAX:
                self._look_for_more()

    def _look_for_more(self) -> None:
        """A few clients that ask again as soon as they are answered are not slept for: waking up would take longer.

        Only while they come that fast, and while no answer waits for the disk, whose word comes through the loop. What
        is found is received when the loop comes round, so whatever else is due has its turn.
        """
        ended = perf_counter_ns()
        is_brisk, self._answered_ns = ended - self._answered_ns < self._brisk_ns, ended
        if is_brisk and not self._acceptor.is_waiting_for_disk and not self._poller.look(self._spin_us):
            self._answered_ns = _LONG_AGO_NS  # they have become slower: sleep

    def _accept(self) -> None:
        for _ in range(_ACCEPTS_MAX):
            try:
                connected, peer = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _NO_ROOM:
                    raise
                _LOG.error("no connection can be taken: %s", error)
                self._loop.remove_reader(self._listener.fileno())
                self._again = self._loop.call_later(_ACCEPT_AGAIN_SECONDS, self._accept_again)
                return
            self._open(connected, peer)

    def _accept_again(self) -> None:
        self._again = None
        self._loop.add_reader(self._listener.fileno(), self._accept)

    def _open(self, connected: socket.socket, peer: Any) -> None:
        try:
            connected.setblocking(False)
            if connected.family in (socket.AF_INET, socket.AF_INET6):
                connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            port = PolledPort(self._next_number(), self._acceptor, connected, peer)
            port.open(self._poller, connected.fileno())
        except OSError:  # it is gone already
            connected.close()
            return
        self._acceptor.opened(port)
