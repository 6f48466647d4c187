"""The directory of a broker's data: made so that git leaves it alone, and what it means if it cannot be opened."""

import errno
import os
from pathlib import Path
from typing import NamedTuple

from lakemq.storage import files
from lakemq.storage.directory import BrokenFormatError, ForeignDirectoryError

_MIB = 1 << 20


class Trouble(NamedTuple):
    """Why a directory cannot be opened, and what to do about it."""

    detail: str
    fix: str


def make_directory(path: Path) -> None:
    """Make it if it is missing; inside a repository, git does not see what is in it."""
    if path.exists():
        return
    path.mkdir(parents=True, exist_ok=True)
    if any((parent / ".git").exists() for parent in path.absolute().parents):
        (path / files.GITIGNORE).write_text("*\n", encoding="ascii")


def trouble_with(path: Path, error: BaseException, segment_bytes: int) -> Trouble:
    """An error of a start, in words for whoever started it."""
    if isinstance(error, BrokenFormatError):
        return Trouble(
            f"the file {path / files.FORMAT} is broken: {error}",
            f"copy `{files.FORMAT}` from a backup or from any other data directory of this version; "
            "it says which format the data are of, and no more",
        )
    if isinstance(error, ForeignDirectoryError):
        return Trouble(f"{path} is not a data directory of ours: {error}", "choose an empty or new directory: --data")
    if isinstance(error, MemoryError):
        return Trouble(f"{path} cannot be opened: there is not enough memory", "stop other programs, or allow it more")
    assert isinstance(error, OSError)
    said = f"{path} cannot be opened: {error}"
    if error.errno == errno.EROFS:
        return Trouble(said, "mount that file system for writing, or choose another directory: --data")
    if error.errno in (errno.EACCES, errno.EPERM):
        return Trouble(said, f"let user {os.getuid()} write there (chown, chmod), or choose another directory: --data")
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return _no_room(path, error, segment_bytes)
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return Trouble(said, "raise the limit of open files: ulimit -n, or LimitNOFILE= in a systemd unit")
    if error.errno == errno.ENOMEM:
        return Trouble(said, "stop other programs, or raise the limit of memory")
    return Trouble(said, "look at that directory and at the kernel's log; `lakemq storage verify` reads all of it")


def _no_room(path: Path, error: OSError, segment_bytes: int) -> Trouble:
    try:
        status = os.statvfs(path)
        free = f", {status.f_bavail * status.f_frsize / _MIB:.1f} MiB are free"
    except OSError:
        free = ""
    needed = f"{segment_bytes / _MIB:.0f} MiB are needed for a segment of the journal"
    return Trouble(
        f"the disk of {path} is full: {needed}{free} ({error.strerror or error})",
        "free space there, choose another directory (--data), or a smaller storage.segment_bytes",
    )
