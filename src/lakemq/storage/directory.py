"""Whether a directory is ours: the format file says so, and of which format the data are.

A directory that is not, or that a newer program wrote, is left as it is (F07).
"""

from lakemq.storage import files
from lakemq.storage.disk import Disk
from lakemq.storage.state_file import read_state, write_state

FORMAT_VERSION = 1
_FORMAT_NAME = b"lakemq-data "


class ForeignDirectoryError(Exception):
    """This directory is not ours to touch: a newer format, or files without one."""


class BrokenFormatError(ForeignDirectoryError):
    """The format file is there and cannot be read: nobody can tell whose directory it is."""


def is_new(disk: Disk) -> bool:
    """True for a directory with nothing in it yet, False for one of ours; ForeignDirectoryError for any other."""
    state = read_state(disk, files.FORMAT)
    if state is not None:
        name, _, version = state[1].partition(b" ")
        if name + b" " != _FORMAT_NAME or not version.isdigit():
            raise ForeignDirectoryError(f"the format file says {state[1]!r}")
        if int(version) > FORMAT_VERSION:
            raise ForeignDirectoryError(f"the data are of format {int(version)}, this program knows {FORMAT_VERSION}")
        return False
    names = disk.names("")
    if files.FORMAT in names:
        raise BrokenFormatError("its bytes are damaged, or were never written whole")
    strangers = [name for name in names if name not in (files.LOCK, files.GITIGNORE, files.FORMAT + ".new")]
    if any(disk.names(name) if disk.is_dir(name) else True for name in strangers):
        raise ForeignDirectoryError(f"there is no format file, but there are {', '.join(strangers[:5])}")
    return True


def begin(disk: Disk) -> None:
    """Directories first, durably; the format file says that they are there."""
    for name in (files.JOURNAL_DIRECTORY, files.INDEX_DIRECTORY, files.QUARANTINE_DIRECTORY):
        disk.make_dir(name)
    disk.sync_dir("")
    write_state(disk, files.FORMAT, 1, _FORMAT_NAME + str(FORMAT_VERSION).encode())
