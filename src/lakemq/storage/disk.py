"""Disk, a protocol: the few things we ask of a file system.

The engine knows only this; `world/disk.py` keeps the promises with system calls, `testing/disk.py` in memory.

What a power loss leaves:
* a file's bytes, length included: as of the last `sync()` that returned. What came later may be there whole, in part,
  out of order, or as zeros or rubbish; bytes that were synced and not written since stay as they are.
* a name (new, renamed, removed): once `sync_dir()` of its directory has returned. A file can be synced and still be
  gone because its name was not. The name of a new directory is in its parent. A rename is whole or not at all; between
  two directories, sync both.
* A failed `sync()` is final (R3): the kernel may have dropped the unsynced bytes and called them clean, so a second
  sync would report success for data that is nowhere. Never call it again on that file.

When a process dies without a power loss, everything written is still there, but no more durable than before.

Paths are relative to the disk's root, with '/' between names; "" is the root itself. A path that could leave the root
or be spelled in two ways is refused with ValueError. Whatever the file system refuses is an OSError.
"""

import errno
from collections.abc import Sequence
from typing import Protocol

OUT_OF_FILES = frozenset({errno.EMFILE, errno.ENFILE})
"""Errors of a process or machine that has as many open files as it may have."""
_SHORTAGES = OUT_OF_FILES | {errno.ENOMEM}

Buffer = bytes | bytearray | memoryview
"""What can be written; a memoryview must be of single bytes."""


def is_shortage(error: BaseException) -> bool:
    """Tell a lack of memory or of open files from what a disk says: it tells nothing about the bytes stored."""
    return isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno in _SHORTAGES)


class DirectoryLockedError(Exception):
    """Another owner, in this process or another one, holds this lock: do not touch the directory (F07)."""


class Lock(Protocol):
    """Held until released, or until its process ends, however it ends."""

    def release(self) -> None:
        """Let go; a second call does nothing. The lock's file stays, for removing it would race with the next owner."""
        ...


class File(Protocol):
    """An open file, read and written by position. One thread may sync while another reads and writes.

    Nobody may close it while a sync is running. Any other use after `close` is an OSError.
    """

    path: str
    """As it was opened; a rename does not change it."""

    def size(self) -> int:
        """Length in bytes."""
        ...

    def write_at(self, position: int, buffers: Sequence[Buffer]) -> int:
        """Write the buffers one after the other and return their total length: all of it, or an OSError.

        After an error any prefix may have been written. Past the end the file grows; a gap reads as zeros.
        """
        ...

    def read_at(self, position: int, size: int) -> bytes:
        """Read `size` bytes, fewer only where the file ends."""
        ...

    def data_end(self) -> int:
        """A place behind which there are only zeros: the end of the last bytes written, where that can be told.

        The length of the file where it cannot. Reading reserved space may make it look written.
        """
        ...

    def map(self) -> memoryview:
        """A read-only view of the whole file at its present size, which shows later writes in that range too.

        Where there is no room for a mapping it fails as a shortage, and `read_at` may do (`is_shortage`).

        It lives as long as it or a slice of it is referred to, also after `close` and `remove`. Each call makes a new
        mapping (which may hold a file descriptor): keep the view. A bad sector kills the process that looks at it
        through a view, and so does a look past a truncation; where that may happen (F17), use `read_at`.
        """
        ...

    def forget_cached(self, position: int) -> None:
        """Let reads from there on come from the device, as far as that can be had.

        After a failed sync memory may go on showing bytes that are nowhere else; a start must not believe it (F16).
        What was written and not synced yet stays as it is.
        """
        ...

    def will_need(self, position: int, size: int) -> None:
        """These bytes are to be read soon: let the device bring them meanwhile. A hint, which changes nothing else."""
        ...

    def sync(self) -> None:
        """Make all bytes durable that were written before the call began. An OSError is final (R3)."""
        ...

    def truncate(self, size: int) -> None:
        """Make the file exactly this long; new bytes read as zeros."""
        ...

    def preallocate(self, size: int) -> None:
        """Make the file at least this long, with space reserved: writes inside will not find the disk full.

        New bytes read as zeros. After an error the file may have grown part of the way.
        """
        ...

    def close(self) -> None:
        """Give the handle back, without a sync; a second call does nothing. Views of `map` stay valid."""
        ...


class Disk(Protocol):
    """A directory tree of our own."""

    place: str
    """Where it is, for people."""

    def open(self, path: str, *, create: bool = False) -> File:
        """Open for reading and writing. Missing: FileNotFoundError, or an empty new file if `create`."""
        ...

    def names(self, directory: str) -> list[str]:
        """What is in a directory, sorted; nothing if there is no such directory."""
        ...

    def exists(self, path: str) -> bool:
        """Whether there is a file or a directory of that name."""
        ...

    def is_dir(self, path: str) -> bool:
        """Whether there is a directory of that name."""
        ...

    def make_dir(self, path: str) -> None:
        """Make a directory and those above it; fine if it is there. FileExistsError if a file is."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Give a file or directory another name; a file of the target's name is replaced in the same instant."""
        ...

    def remove(self, path: str) -> None:
        """Remove a file, or a directory that is empty. Open handles and views of the file keep working."""
        ...

    def sync_dir(self, directory: str) -> None:
        """Make durable what was created, renamed and removed in this directory (not below it)."""
        ...

    def sync_all(self) -> None:
        """Make everything durable, contents and names, in one go: for many files of which none is urgent."""
        ...

    def free_bytes(self) -> int:
        """Room left for us."""
        ...

    def lock(self, path: str) -> Lock:
        """Take an exclusive lock, by a file that is created if missing. DirectoryLockedError if it is held."""
        ...


def split_path(path: str) -> list[str]:
    """The names in a path, none for the root. ValueError for '..', '.', an empty name, an absolute path or a NUL."""
    if not path:
        return []
    names = path.split("/")
    if "\0" in path or any(name in ("", ".", "..") for name in names):
        raise ValueError(f"not a path below the root: {path!r}")
    return names
