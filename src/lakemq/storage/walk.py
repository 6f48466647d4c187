"""A walk over the journal's records as they lie on disk, from a position to where they end, and why they end there.

Used by recovery and by the operator's tools. Reads in large blocks; every header and payload is checked.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from lakemq.storage.disk import is_shortage
from lakemq.storage.journal_record import (
    HEADER_BYTES,
    MAGIC_BYTES,
    RecordHeader,
    RecordType,
    is_payload_whole,
    unpack_header,
)
from lakemq.storage.tables import DamagedRange, Tables

BLOCK_BYTES = 8 << 20
_MAGIC_OFFSET = 4  # of the magic in a header
_SECTOR_BYTES = 4096


class Readable(Protocol):
    """What a walk asks of a file."""

    def read_at(self, position: int, size: int) -> bytes:
        """Read `size` bytes, fewer only where the file ends."""
        ...


class Segment(NamedTuple):
    """One file of the journal: its bytes are those of positions `base` to `end`."""

    base: int
    end: int
    file: Readable
    # Behind it there are only zeros: a record may end in those, but none begins there.
    data_end: int | None = None


class Found(NamedTuple):
    """A whole record."""

    position: int
    header: RecordHeader
    payload: memoryview


@dataclass(slots=True)
class Stop:
    """Where the walk found no record any more.

    `resume` is where the next whole record is, if one behind it shows that these bytes were synced: they are damaged
    then. None: nothing shows that, and this is the end.
    """

    position: int
    resume: int | None


class Walk:
    """Walks over whole records; `stop` says afterwards why it ended, None if it came to the end of the last segment.

    `search_bytes` is how far behind a hole records may lie that were written in the same breath and not synced.
    `accept` may refuse a record that is whole but cannot be the next one.
    """

    def __init__(
        self, segments: list[Segment], search_bytes: int, accept: Callable[[int, RecordHeader], bool] | None = None
    ) -> None:
        self._segments = segments
        self._search_bytes = search_bytes
        self._accept = accept
        self.stop: Stop | None = None
        self.end_position = 0
        self._proven = 0  # known to have been synced up to there, whatever records say

    def records_past_damage(
        self, position: int, end: int | None, proven: int, note: Callable[[DamagedRange], None]
    ) -> Iterator[Found]:
        """Every whole record from `position` up to `end`, or to where they end: `end_position`, afterwards.

        What is before `proven`, or has a record behind it that says so, was synced: a hole there is damage, which is
        noted and left out. Any other hole is the end.
        """
        self._proven = proven
        while end is None or position < end:
            for found in self.records(position):
                if end is not None and found.position >= end:
                    self.end_position = end
                    return
                yield found
                position = found.position + found.header.length
            stop = self.stop
            if stop is None or (end is not None and stop.position >= end):
                break
            position = stop.position
            if stop.resume is None and position >= proven:
                break
            resume = stop.resume if stop.resume is not None else proven
            note(DamagedRange(position, resume))
            position = resume
        self.end_position = position

    def records(self, position: int) -> Iterator[Found]:
        """Every whole record from `position` on, which must be where one begins."""
        self.stop = None
        for segment in self._segments:
            if segment.end <= position:
                continue
            if position < segment.base:  # the segment before ended too early
                self.stop = Stop(position, self._resume_after(position, position + 1))
                return
            yield from self._segment_records(segment, position)
            if self.stop is not None:
                return
            position = segment.end

    def _segment_records(self, segment: Segment, position: int) -> Iterator[Found]:
        block, block_position = b"", position
        while position < segment.end:
            offset = position - block_position
            header = unpack_header(block, offset, position)
            if header is None or offset + header.length > len(block):
                block, block_position, offset = _read_block(segment, position), position, 0
                header = unpack_header(block, 0, position)
            if (
                header is None
                or offset + header.length > len(block)
                or not is_payload_whole(header, block, offset)
                or (self._accept is not None and not self._accept(position, header))
            ):
                # What lies inside of a record whose header is whole came from a client and is none, whatever it says.
                search_from = position + (header.length if header is not None else 1)
                self.stop = Stop(position, self._resume_after(position, search_from))
                return
            yield Found(position, header, memoryview(block)[offset + HEADER_BYTES : offset + header.length])
            position += header.length

    def _resume_after(self, position: int, search_from: int) -> int | None:
        """The first whole record from there on, if `position` is known, or by one of them shown, to be synced."""
        first = None
        for segment in self._segments:
            start = max(search_from, segment.base)
            end = segment.end if segment.data_end is None else min(segment.end, segment.data_end)
            for found, header in candidates(segment, start, min(end, start + self._search_bytes)):
                first = found if first is None else first
                if header.synced_position > position or position < self._proven:
                    return first
        return None


def _read_block(segment: Segment, position: int) -> bytes:
    """The bytes from `position` on, many at once; if a record begins there, all of it at least."""
    bytes_left = segment.end - position
    block = read_what_can_be(segment.file, position - segment.base, min(BLOCK_BYTES, bytes_left))
    header = unpack_header(block, 0, position)
    if header is not None and header.length > len(block):
        block = read_what_can_be(segment.file, position - segment.base, min(header.length, bytes_left))
    return block


def read_what_can_be(file: Readable, position: int, size: int) -> bytes:
    """The bytes there, with zeros for those that the disk will not give (F17).

    A lack of memory is not the disk's: its OSError goes on, for zeros would make sound records damaged ones.
    """
    try:
        return file.read_at(position, size)
    except OSError as error:
        if is_shortage(error):
            raise
        if size <= _SECTOR_BYTES:
            return bytes(size)
    half = size // 2 // _SECTOR_BYTES * _SECTOR_BYTES or _SECTOR_BYTES
    return read_what_can_be(file, position, half) + read_what_can_be(file, position + half, size - half)


def candidates(segment: Segment, start: int, end: int) -> Iterator[tuple[int, RecordHeader]]:
    """Whole records that begin anywhere between two positions of a segment."""
    step = 1 << 20
    at = start
    while at < end:
        block = read_what_can_be(segment.file, at - segment.base, step + HEADER_BYTES)
        offset = block.find(MAGIC_BYTES)
        while offset >= 0:
            begin = at + offset - _MAGIC_OFFSET
            if begin >= start and offset - _MAGIC_OFFSET < step:
                head = read_what_can_be(segment.file, begin - segment.base, HEADER_BYTES)
                header = unpack_header(head, 0, begin)
                if header is not None and begin < end:
                    whole = read_what_can_be(segment.file, begin - segment.base, header.length)
                    if is_payload_whole(header, whole, 0):
                        yield begin, header
            offset = block.find(MAGIC_BYTES, offset + 1)
        at += step


def first_indexes_of(segment: Segment) -> dict[tuple[int, int], int] | None:
    """Where each (topic, partition) begins in a segment, by the table at its head; None if that cannot be read."""
    header = unpack_header(read_what_can_be(segment.file, 0, HEADER_BYTES), 0, segment.base)
    if header is None or header.type != RecordType.TABLE:
        return None
    data = read_what_can_be(segment.file, 0, header.length)
    if not is_payload_whole(header, data, 0):
        return None
    return {(row.topic, row.partition): row.next_index for row in Tables.unpack(data[HEADER_BYTES:]).partitions}
