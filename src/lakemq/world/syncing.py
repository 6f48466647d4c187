"""Syncs and checkpoints beside the loop: a ticket goes out, and how it went comes back on the loop.

Nearly every sync is of one file, the journal's last. Where it could be compiled, a thread without Python does those
(`_sync.c`); all else, and everything without a compiler, runs in two threads of Python.
"""

import asyncio
import contextlib
import errno
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from lakemq.storage.disk import File
from lakemq.world.disk import RealFile

try:
    from lakemq._sync import Syncer
except ImportError:  # no compiler when it was installed, or no eventfd on this system
    Syncer = None  # type: ignore[assignment, misc]  # its threads of Python are used

Done = Callable[[OSError | None], None]
PYTHON_THREADS = 2  # a sync of several files and a checkpoint beside it
THREADS_MAX = PYTHON_THREADS + 1  # each comes with its first work and stays


class Ticket(Protocol):
    """Work for the disk."""

    def run(self) -> None:
        """Block until it is done; OSError if it cannot be."""
        ...


class FileTicket(Ticket, Protocol):
    """A sync."""

    @property
    def only_file(self) -> File | None:
        """The file, if to sync it is all there is to do."""
        ...


class DiskWork:
    """At most one sync at a time; all methods are called on the loop."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(PYTHON_THREADS, "lakemq-disk")
        self._syncer = Syncer() if Syncer is not None else None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._synced: Done | None = None  # who waits for the syncer
        self._tickets = 0

    def open(self, loop: asyncio.AbstractEventLoop) -> None:
        """Bring results back to this loop."""
        self._loop = loop
        if self._syncer is not None:
            loop.add_reader(self._syncer.fileno(), self._sync_ended)

    @property
    def is_busy(self) -> bool:
        """Whether a ticket is out."""
        return self._tickets > 0

    def sync(self, ticket: FileTicket, done: Done) -> None:
        """Run it; `done` is told how it went."""
        file = ticket.only_file
        if self._syncer is None or not isinstance(file, RealFile):
            self.run(ticket, done)
            return
        try:
            self._syncer.begin(file.fileno())
        except OSError:  # a closed file, or no thread for it: another thread has its own word on that
            self.run(ticket, done)
            return
        self._tickets += 1
        self._synced = done

    def _sync_ended(self) -> None:
        assert self._syncer is not None
        outcome = self._syncer.end()
        if outcome is not None:
            self._tell_synced(OSError(outcome, os.strerror(outcome)) if outcome else None)

    def _tell_synced(self, error: OSError | None) -> None:
        done, self._synced = self._synced, None
        self._tickets -= 1
        assert done is not None
        done(error)

    def run(self, ticket: Ticket, done: Done) -> None:
        """Run it in a thread of Python; `done` is told how it went."""
        loop = self._loop
        assert loop is not None
        claim = threading.Lock()  # of a refused start the work stays in the queue, and a thread may come to it

        def work() -> None:
            if not claim.acquire(blocking=False):
                return
            failure = None
            try:
                ticket.run()
            except OSError as error:
                failure = error
            except BaseException as error:  # a bug must not leave everybody waiting (F08)
                failure = OSError(f"{type(error).__name__}: {error}")
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(ended, failure)

        def ended(failure: OSError | None) -> None:
            self._tickets -= 1
            done(failure)

        self._tickets += 1
        try:
            self._threads.submit(work)
        except (RuntimeError, MemoryError) as error:  # no thread can be started: nothing has begun
            if claim.acquire(blocking=False):
                loop.call_soon(ended, OSError(errno.EAGAIN, f"no thread for the disk: {error}"))

    def stop_telling(self) -> None:
        """The loop ends: nobody is told any more."""
        if self._syncer is not None and self._loop is not None:
            self._loop.remove_reader(self._syncer.fileno())

    def close(self) -> None:
        """Wait for what is out; blocks."""
        self._threads.shutdown()
        if self._syncer is not None:
            self._syncer.close()
