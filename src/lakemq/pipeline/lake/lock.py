"""One archive job at a time: a lock that ends with its process, however that ends.

The lake stays right with two jobs (commits are compare-and-set), but they would do all work twice.
In an object store there is no lock: there the commits alone keep two jobs from doing harm.
"""

import fcntl
import json
import os
import socket
import time
from types import TracebackType

from lakemq.pipeline.lake.errors import ArchiveRunningError
from lakemq.pipeline.lake.layout import LOCK_FILE, REPAIR_LOCK_FILE
from lakemq.pipeline.lake.place import Place


class ArchiveLock:
    """Held from `take` to `release`, or as a context; taking it while another holds it raises ArchiveRunningError."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._descriptor: int | None = None

    def take(self) -> None:
        if not self._place.is_local:
            return
        descriptor = _open(self._place, LOCK_FILE)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 4096, 0)
            os.close(descriptor)
            raise ArchiveRunningError(f"{_describe(holder)} archives into {self._place.uri}") from None
        started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        mark = json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "start": started}).encode()
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, mark + b"\n", 0)
        self._descriptor = descriptor

    def release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> "ArchiveLock":
        self.take()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.release()


class RepairLock:
    """Held for the moment in which torn files are looked for and removed; waits for another that does so."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def __enter__(self) -> None:
        self._descriptor = _open(self._place, REPAIR_LOCK_FILE)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        os.close(self._descriptor)


def _open(place: Place, name: str) -> int:
    place.make_directory(os.path.dirname(name))
    return os.open(place.path(name), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)


def _describe(mark: bytes) -> str:
    try:
        holder = json.loads(mark)
        return f"process {holder['pid']} on {holder['host']} (since {holder['start']})"
    except (ValueError, KeyError, TypeError):  # the other is between taking the lock and signing it
        return "another process"
