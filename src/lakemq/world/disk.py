"""The real disk: storage.disk's promises kept with Linux system calls.

Nothing is buffered here: after `write_at` the bytes are in the page cache, after `sync` on the device.
"""

import ctypes
import errno
import fcntl
import mmap
import os
import sys
import threading
from collections.abc import Sequence
from typing import Any

from lakemq.storage.disk import OUT_OF_FILES, Buffer, DirectoryLockedError, Disk, File, Lock, split_path

_BUFFERS_MAX = 1024  # Linux' IOV_MAX: what one vectored call takes
_FILE_MODE = 0o640
_DIRECTORY_MODE = 0o750
_SPARE_FILES = 4  # for a new segment and the sync of its directory, and as much again
# A mapping needs no file of its own; before Python 3.13 each takes one.
_MAP_OPTIONS: dict[str, Any] = {"trackfd": False} if sys.version_info >= (3, 13) else {}


class RealDisk(Disk):
    """The tree below one directory. The directory itself may be missing until `make_dir("")`."""

    def __init__(self, root: str | os.PathLike[str], *, is_read_only: bool = False) -> None:
        self.place = self._root = os.path.abspath(os.fspath(root))
        self._access = os.O_RDONLY if is_read_only else os.O_RDWR
        self._spares = _SpareFiles()

    def open(self, path: str, *, create: bool = False) -> File:
        return RealFile(path, self._open(path, os.O_CREAT if create else 0))

    def names(self, directory: str) -> list[str]:
        try:
            return sorted(os.listdir(self._full(directory)))
        except FileNotFoundError:
            return []

    def exists(self, path: str) -> bool:
        return os.path.exists(self._full(path))

    def is_dir(self, path: str) -> bool:
        return os.path.isdir(self._full(path))

    def make_dir(self, path: str) -> None:
        missing, directory = [], self._full(path)
        while not os.path.isdir(directory):
            missing.append(directory)
            directory = os.path.dirname(directory)
        for directory in reversed(missing):
            _make_directory(directory)
            if len(directory) <= len(self._root):  # the root or above: its name lies where no sync_dir reaches
                self._sync_directory(os.path.dirname(directory))

    def rename(self, source: str, target: str) -> None:
        os.replace(self._below_root(source), self._below_root(target))

    def remove(self, path: str) -> None:
        full = self._below_root(path)
        if os.path.isdir(full) and not os.path.islink(full):
            os.rmdir(full)
        else:
            os.unlink(full)

    def sync_dir(self, directory: str) -> None:
        self._sync_directory(self._full(directory))

    def sync_all(self) -> None:
        _sync_file_system(self._root)

    def free_bytes(self) -> int:
        status = os.statvfs(self._root)
        return status.f_bavail * status.f_frsize

    def lock(self, path: str) -> Lock:
        fd = self._open(path, os.O_CREAT)
        try:
            # flock belongs to the open file, not to the process: a second open in this process is refused as well.
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            raise DirectoryLockedError(f"{path} is locked by another owner") from None
        except BaseException:
            os.close(fd)
            raise
        self._spares.fill()
        return RealLock(fd, self._spares)

    def _open(self, path: str, flags: int) -> int:
        return self._open_full(self._full(path), self._access | os.O_CLOEXEC | flags)

    def _open_full(self, full: str, flags: int) -> int:
        """Open, if need be with one of the files that were kept back for this (F26)."""
        while True:
            try:
                fd = os.open(full, flags, _FILE_MODE)
            except OSError as error:
                if error.errno not in OUT_OF_FILES or not self._spares.give_one():
                    raise
            else:
                self._spares.refill()
                return fd

    def _sync_directory(self, full: str) -> None:
        fd = self._open_full(full, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
            self._spares.refill()

    def _full(self, path: str) -> str:
        return os.path.join(self._root, *split_path(path))

    def _below_root(self, path: str) -> str:
        if not path:
            raise ValueError("the root itself is neither renamed nor removed")
        return self._full(path)


class RealFile(File):
    """A file descriptor; -1 once closed, which every system call refuses with EBADF."""

    def __init__(self, path: str, fd: int) -> None:
        self.path = path
        self._fd = fd

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def write_at(self, position: int, buffers: Sequence[Buffer]) -> int:
        total = sum(map(len, buffers))
        written = os.pwritev(self._fd, buffers, position) if len(buffers) <= _BUFFERS_MAX else 0
        if written < total:
            self._write_rest(position, buffers, written, total)
        return total

    def read_at(self, position: int, size: int) -> bytes:
        data = os.pread(self._fd, size, position)
        while 0 < len(data) < size:  # the end of the file, a signal, or more than one call may return
            more = os.pread(self._fd, size - len(data), position + len(data))
            if not more:
                break
            data += more
        return data

    def map(self) -> memoryview:
        if not self.size():  # the system refuses to map nothing; also, a closed file must fail here, not map memory
            return memoryview(b"")
        # Only the view holds the mapping, so it goes when the last slice of it does and close() need not know of it.
        return memoryview(mmap.mmap(self._fd, 0, access=mmap.ACCESS_READ, **_MAP_OPTIONS))

    def fileno(self) -> int:
        """The descriptor; OSError once it is closed, as for a sync."""
        self._check_open()
        return self._fd

    def sync(self) -> None:
        self._check_open()
        os.fdatasync(self._fd)

    def _check_open(self) -> None:
        if self._fd < 0:  # Python would say ValueError here, which nobody takes for a failed sync
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), self.path)

    def data_end(self) -> int:
        size, at = self.size(), 0
        try:
            while at < size:
                at = os.lseek(self._fd, os.lseek(self._fd, at, os.SEEK_DATA), os.SEEK_HOLE)
        except OSError as error:
            if error.errno == errno.ENXIO:  # nothing but holes from there on
                return at
            if error.errno == errno.EINVAL:  # a file system that cannot tell
                return size
            raise
        return size

    def forget_cached(self, position: int) -> None:
        page_start = position // mmap.PAGESIZE * mmap.PAGESIZE
        os.posix_fadvise(self._fd, page_start, 0, os.POSIX_FADV_DONTNEED)

    def will_need(self, position: int, size: int) -> None:
        os.posix_fadvise(self._fd, position, size, os.POSIX_FADV_WILLNEED)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def preallocate(self, size: int) -> None:
        self._check_open()
        if size:  # the system calls a length of zero an error
            os.posix_fallocate(self._fd, 0, size)

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _write_rest(self, position: int, buffers: Sequence[Buffer], written: int, total: int) -> None:
        """Go on after a short write (F19), or with more buffers than one call takes."""
        first, skip = 0, written  # buffers before `first` are written, and `skip` bytes from there on
        while written < total:
            while skip >= len(buffers[first]):
                skip -= len(buffers[first])
                first += 1
            group = [memoryview(buffers[first])[skip:], *buffers[first + 1 : first + _BUFFERS_MAX]]
            count = os.pwritev(self._fd, group, position + written)
            if not count:
                raise OSError(errno.EIO, "the file takes no more bytes and gives no reason", self.path)
            written += count
            skip += count


class RealLock(Lock):
    """The open file that carries a flock."""

    def __init__(self, fd: int, spares: "_SpareFiles") -> None:
        self._fd = fd
        self._spares = spares

    def release(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)  # the last close of an open file ends its flock
            self._spares.empty()


class _SpareFiles:
    """Descriptors that an owner of the directory keeps back: what it opens when there are no others takes their place.

    Any thread may use it. Between the giving and the open another thread may be faster; then the next one is given.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: list[int] = []
        self._wanted = 0

    def fill(self) -> None:
        """Begin to keep some back."""
        self._wanted = _SPARE_FILES
        self.refill()

    def refill(self) -> None:
        """Get back what was given, as far as there are files again."""
        if len(self._held) >= self._wanted:
            return
        with self._lock:
            try:
                while len(self._held) < self._wanted:
                    self._held.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
            except OSError:  # there are none: later, then
                return

    def give_one(self) -> bool:
        """Close one; False if all are given."""
        with self._lock:
            if not self._held:
                return False
            os.close(self._held.pop())
            return True

    def empty(self) -> None:
        """Keep none back any more."""
        with self._lock:
            self._wanted = 0
            for fd in self._held:
                os.close(fd)
            self._held.clear()


def _make_directory(full: str) -> None:
    try:
        os.mkdir(full, _DIRECTORY_MODE)
    except FileExistsError:
        if not os.path.isdir(full):  # else another process was faster: that is as good
            raise


def _sync_file_system(path: str) -> None:
    """syncfs(2), which Python does not offer; where the C library has none, all file systems are synced."""
    syncfs = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
    if syncfs is None:
        os.sync()
        return
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if syncfs(descriptor):
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), path)
    finally:
        os.close(descriptor)
