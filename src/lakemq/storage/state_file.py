"""Small state written whole: temp file, sync, rename, sync the directory. The version before stays beside it.

A reader gets the newest copy that is whole, so a crash at any moment, or damage to one copy, means the older one and
never a mixture.
"""

import errno
import struct

from lakemq.checksum import crc32
from lakemq.storage.disk import Disk, is_shortage

MAGIC = b"LMQS"
_HEAD = struct.Struct(">4sQII")  # magic, sequence, size, CRC of sequence, size and content
_CRC_OF = struct.Struct(">QI")
_NOT_OURS = (errno.EROFS, errno.EACCES, errno.EPERM)  # true of both copies, and no fault of either
_OLD_SUFFIX = ".old"
_NEW_SUFFIX = ".new"


def write_state(disk: Disk, path: str, sequence: int, content: bytes) -> None:
    """Replace the state; durable when this returns. `sequence` must be higher than that of the one before."""
    crc = crc32(content, crc32(_CRC_OF.pack(sequence, len(content))))
    new = path + _NEW_SUFFIX
    file = disk.open(new, create=True)
    try:
        file.truncate(0)
        file.write_at(0, [_HEAD.pack(MAGIC, sequence, len(content), crc), content])
        file.sync()
    finally:
        file.close()
    if disk.exists(path):
        disk.rename(path, path + _OLD_SUFFIX)
    disk.rename(new, path)
    disk.sync_dir(path.rpartition("/")[0])


def read_state(disk: Disk, path: str) -> tuple[int, bytes] | None:
    """Sequence and content of the newest whole copy; None if there is none."""
    copies = [read_copy(disk, path + suffix) for suffix in ("", _OLD_SUFFIX)]
    return max((copy for copy in copies if copy is not None), default=None, key=lambda copy: copy[0])


def read_copy(disk: Disk, path: str) -> tuple[int, bytes] | None:
    """Sequence and content of one copy; None if it is missing or not whole.

    OSError for want of memory, files or permission.
    """
    try:
        file = disk.open(path)
        try:
            data = file.read_at(0, file.size())
        finally:
            file.close()
    except OSError as error:  # missing, or a disk that will not give it: the other copy may do
        if is_shortage(error) or error.errno in _NOT_OURS:
            raise
        return None
    if len(data) < _HEAD.size:
        return None
    magic, sequence, size, crc = _HEAD.unpack_from(data)
    content = data[_HEAD.size : _HEAD.size + size]
    if magic != MAGIC or len(content) != size or crc != crc32(content, crc32(_CRC_OF.pack(sequence, size))):
        return None
    return sequence, content
