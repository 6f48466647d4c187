"""A copy of a data directory that a broker may have open: a state that the journal was in, as a power cut leaves one.

Only the journal is copied. Everything else is derived from it: each segment begins with a table and a snapshot of all
before it (decisions 0014, 0017), index files and the checkpoint are made again by the first start. That is also why no
order of copying plain files would do: an index or a checkpoint of a later moment than the journal speaks of messages
that the copy does not have.

Bytes that are written are never changed, so what is copied are the whole records up to an end that is looked for first.
What lies behind may be half written; copied as it is, it could look like damage. The format file comes last: until then
the copy is no data directory.
"""

from collections.abc import Callable
from typing import NamedTuple

from lakemq.storage import directory, files
from lakemq.storage.disk import Disk, File
from lakemq.storage.walk import Segment, Walk

_BLOCK_BYTES = 8 << 20

Progress = Callable[[int, int], None]


class BackupError(Exception):
    """The copy cannot be made; what there is of it is no data directory."""


class Copied(NamedTuple):
    """What a copy has."""

    segments: int
    copied_bytes: int
    end_position: int


def back_up(source: Disk, target: Disk, progress: Progress = lambda done, total: None) -> Copied:
    """Copy `source`, which may be in use, into `target`, which must be empty."""
    if directory.is_new(source):
        raise BackupError("there is nothing in it yet")
    if target.names(""):
        raise BackupError("the target is not empty")
    bases = _bases(source)
    if not bases:
        raise BackupError("there is no segment of the journal")
    end = _end_of_records(source, bases[-1])
    for name in (files.JOURNAL_DIRECTORY, files.INDEX_DIRECTORY, files.QUARANTINE_DIRECTORY):
        target.make_dir(name)
    ends = [*bases[1:], end]
    copied: list[int] = []
    done = 0
    for base, stop in zip(bases, ends, strict=True):
        try:
            file = source.open(_path(base))
        except FileNotFoundError:  # retention was faster, and drops the oldest first: they are gone together
            for gone in copied:
                target.remove(_path(gone))
            copied = []
            continue
        try:
            _copy(file, target, base, stop - base)
        finally:
            file.close()
        copied.append(base)
        done += stop - base
        progress(done, end - bases[0])
    if not copied or copied[-1] != bases[-1]:
        raise BackupError("the journal was dropped while it was copied: retention is shorter than a copy takes")
    target.sync_dir(files.JOURNAL_DIRECTORY)
    directory.begin(target)
    return Copied(len(copied), end - copied[0], end)


def _bases(disk: Disk) -> list[int]:
    found = (files.segment_base(name) for name in disk.names(files.JOURNAL_DIRECTORY))
    return sorted(base for base in found if base is not None)


def _end_of_records(disk: Disk, base: int) -> int:
    """Where the whole records of the last segment end, now."""
    file = disk.open(_path(base))
    try:
        segment = Segment(base, base + file.size(), file)
        end = base
        for found in Walk([segment], search_bytes=0).records(base):
            end = found.position + found.header.length
        return end
    finally:
        file.close()


def _copy(file: File, target: Disk, base: int, size: int) -> None:
    copy = target.open(_path(base), create=True)
    try:
        at = 0
        while at < size:
            data = file.read_at(at, min(_BLOCK_BYTES, size - at))
            if not data:
                raise BackupError(f"segment {base} ends at {at}, {size} bytes were expected")
            copy.write_at(at, [data])
            at += len(data)
        copy.sync()
    finally:
        copy.close()


def _path(base: int) -> str:
    return f"{files.JOURNAL_DIRECTORY}/{files.segment_name(base)}"
