"""Waiting for sockets and for other threads: epoll and an eventfd where the system has them, select elsewhere."""

import contextlib
import os
import select
import selectors
import socket
from typing import Protocol

IN: int = getattr(select, "EPOLLIN", 1)
OUT: int = getattr(select, "EPOLLOUT", 4)


class Poll(Protocol):
    """As much of epoll as the client uses."""

    @property
    def closed(self) -> bool: ...

    def register(self, number: int, events: int) -> None: ...

    def modify(self, number: int, events: int) -> None: ...

    def unregister(self, number: int) -> None: ...

    def poll(self, timeout_s: float | None) -> list[tuple[int, int]]: ...

    def close(self) -> None: ...


def make_poll() -> Poll:
    """The best that this system has."""
    if hasattr(select, "epoll"):
        made: Poll = select.epoll()
        return made
    return SelectorPoll()


class SelectorPoll:
    """A poll by what `selectors` finds: kqueue, poll, or select alone."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self.closed = False

    def register(self, number: int, events: int) -> None:
        """Wait for that one, too."""
        self._selector.register(number, _kinds(events))

    def modify(self, number: int, events: int) -> None:
        """Wait for other news of it."""
        self._selector.modify(number, _kinds(events))

    def unregister(self, number: int) -> None:
        """Wait for it no more."""
        self._selector.unregister(number)

    def poll(self, timeout_s: float | None) -> list[tuple[int, int]]:
        """Those with news, and which."""
        found = self._selector.select(timeout_s)
        return [(key.fd, (IN if kinds & 1 else 0) | (OUT if kinds & 2 else 0)) for key, kinds in found]

    def close(self) -> None:
        """Wait for nothing any more."""
        self.closed = True
        self._selector.close()


def _kinds(events: int) -> int:
    return (selectors.EVENT_READ if events & IN else 0) | (selectors.EVENT_WRITE if events & OUT else 0)


class Bell(Protocol):
    """What one thread rings to wake another that polls."""

    number: int

    def ring(self) -> None: ...

    def hear(self) -> None: ...

    def close(self) -> None: ...


def make_bell() -> Bell:
    """An eventfd, or two sockets."""
    return EventBell() if hasattr(os, "eventfd") else SocketBell()


class EventBell:
    """One descriptor that counts."""

    def __init__(self) -> None:
        self.number = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def ring(self) -> None:
        """Make it readable."""
        os.eventfd_write(self.number, 1)

    def hear(self) -> None:
        """Make it silent again."""
        os.eventfd_read(self.number)

    def close(self) -> None:
        """Give it back."""
        os.close(self.number)


class SocketBell:
    """A byte from one socket to another."""

    def __init__(self) -> None:
        self._hearing, self._ringing = socket.socketpair()
        for one in (self._hearing, self._ringing):
            one.setblocking(False)
        self.number = self._hearing.fileno()

    def ring(self) -> None:
        """Make it readable; if it is full it rings already."""
        with contextlib.suppress(BlockingIOError):
            self._ringing.send(b"\0")

    def hear(self) -> None:
        """Make it silent again."""
        with contextlib.suppress(BlockingIOError):
            while self._hearing.recv(4096):
                pass

    def close(self) -> None:
        """Give both back."""
        self._hearing.close()
        self._ringing.close()


def core_count() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
