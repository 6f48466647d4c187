"""Files that survive a crash of the machine, and a lock against other processes: on Linux, macOS and Windows."""

import os
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_FLAGS = os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_MODE = 0o600


def open_file(path: Path, *, is_emptied: bool = False) -> int:
    """A descriptor for reading and writing; the file is made if it is missing."""
    return os.open(path, _FLAGS | (os.O_TRUNC if is_emptied else 0), _MODE)


def sync_data(file: int) -> None:
    """Make its bytes durable."""
    getattr(os, "fdatasync", os.fsync)(file)


def sync_directory(path: Path) -> None:
    """Make the names in it durable; Windows has no such call, and does it by itself."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def lock(path: Path) -> int:
    """A descriptor that carries a lock until it is closed; OSError if another process has it."""
    file = open_file(path)
    try:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        elif os.name == "nt":
            import msvcrt

            msvcrt.locking(file, msvcrt.LK_NBLCK, 1)
    except OSError:
        os.close(file)
        raise
    return file
