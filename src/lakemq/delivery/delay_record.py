"""The bytes of delays in the journal: DELAY records by kind, and the note of a NOTED record that releases some.

Each says all that the fold needs, so that nothing has to be read again to put it in force. Big-endian, as all of ours.
"""

import struct
import sys
from array import array
from collections.abc import Iterable, Sequence
from typing import NamedTuple

Buffer = bytes | bytearray | memoryview
Row = tuple[int, int]
"""When it is due, and the position of its ADD record. Rows are ordered by both."""

ADD = 1  # messages that are to wait
BLOCK = 2  # rows that need not be in memory any more
CANCEL = 3  # rows that will not be released
PASS = 4  # rows whose time has come and that went nowhere: their topic is gone, or their record is damaged
REWIND = 5  # time was set back: due times that were passed may come again

NOTE_MARK = b"D"
NO_SHARE = 255
SHARES_MAX = 64

# kind, share count, topic, partition, due, message count, index count, client; where it was: share, due, position
_ADD = struct.Struct(">BBihqii16sBqq")
ADD_BYTES = _ADD.size
_RELEASE = struct.Struct(">BBiqqI")  # kind or mark, share, topic, the watermark's due time and position, rows
_ROW = struct.Struct(">qq")
_BLOCK = struct.Struct(">BBqII")  # kind, share, position of the block that it replaces or -1, rows, rows gone
_CANCEL = struct.Struct(">BB")  # kind, nothing
_CANCELLED = struct.Struct(">Biqq")  # share, topic, due, position
_IS_LITTLE = sys.byteorder == "little"

# A message that could be stored as a delay must have room in a record when it is released alone.
assert 4 + _RELEASE.size + _ROW.size <= ADD_BYTES


class Add(NamedTuple):
    """The head of an ADD record; its messages follow. `moved_share` is NO_SHARE unless it was written before."""

    share_count: int
    topic: int
    partition: int
    due_ms: int
    message_count: int
    index_count: int
    client_address: bytes
    moved_share: int = NO_SHARE
    moved_due_ms: int = 0
    moved_position: int = 0


class Released(NamedTuple):
    """Rows of one topic that wait no more. All rows of the share up to the watermark are done with then."""

    share: int
    topic: int
    watermark: Row
    rows: list[Row]


class Filed(NamedTuple):
    """Rows of a share that wait, in order, which the record itself keeps from now on.

    They were unfiled before, or in the block that this one replaces; of that one `gone` are in neither any more.
    """

    share: int
    replaces: int
    dues: "array[int]"
    positions: "array[int]"
    gone: "array[int]"


class Cancelled(NamedTuple):
    """One row that will not be released."""

    share: int
    topic: int
    due_ms: int
    position: int


def pack_add(head: Add, messages: Buffer) -> bytes:
    """An ADD record's payload."""
    return b"".join((_ADD.pack(ADD, *head), messages))


def unpack_add(payload: Buffer) -> Add:
    """The head of what `pack_add` gave; the messages begin at ADD_BYTES."""
    return Add._make(_ADD.unpack_from(payload)[1:])


def pack_note(released: Released) -> bytes:
    """The note of messages that have waited."""
    return _pack_release(NOTE_MARK[0], released)


def pack_pass(released: Released) -> bytes:
    """A PASS record's payload."""
    return _pack_release(PASS, released)


def _pack_release(mark: int, released: Released) -> bytes:
    share, topic, watermark, rows = released
    head = _RELEASE.pack(mark, share, topic, *watermark, len(rows))
    return head + b"".join([_ROW.pack(*row) for row in rows])


def unpack_release(data: Buffer) -> Released:
    """What `pack_note` or `pack_pass` gave."""
    _, share, topic, due_ms, position, count = _RELEASE.unpack_from(data)
    start = _RELEASE.size
    rows = list(_ROW.iter_unpack(memoryview(data)[start : start + count * _ROW.size]))
    return Released(share, topic, (due_ms, position), rows)


def pack_block(filed: Filed) -> bytes:
    """A BLOCK record's payload."""
    share, replaces, dues, positions, gone = filed
    head = _BLOCK.pack(BLOCK, share, replaces, len(dues), len(gone))
    return b"".join((head, pack_numbers(dues), pack_numbers(positions), pack_numbers(gone)))


def unpack_block(payload: Buffer) -> Filed:
    """What `pack_block` gave."""
    _, share, replaces, count, gone_count = _BLOCK.unpack_from(payload)
    at = _BLOCK.size
    dues = unpack_numbers(payload, at, count)
    positions = unpack_numbers(payload, at + 8 * count, count)
    return Filed(share, replaces, dues, positions, unpack_numbers(payload, at + 16 * count, gone_count))


def pack_cancel(rows: Iterable[Cancelled]) -> bytes:
    """A CANCEL record's payload."""
    return _CANCEL.pack(CANCEL, 0) + b"".join([_CANCELLED.pack(*row) for row in rows])


def unpack_cancel(payload: Buffer) -> list[Cancelled]:
    """What `pack_cancel` gave."""
    return [Cancelled._make(row) for row in _CANCELLED.iter_unpack(memoryview(payload)[_CANCEL.size :])]


def pack_rewind() -> bytes:
    """A REWIND record's payload."""
    return bytes([REWIND])


def pack_numbers(numbers: "array[int]") -> bytes:
    """Eight bytes each."""
    if _IS_LITTLE:
        numbers = numbers[:]
        numbers.byteswap()
    return numbers.tobytes()


def unpack_numbers(data: Buffer, at: int, count: int) -> "array[int]":
    """What `pack_numbers` gave."""
    numbers = array("q", bytes(memoryview(data)[at : at + 8 * count]))
    if len(numbers) != count:
        raise ValueError(f"{count} numbers were announced, {len(numbers)} are there")
    if _IS_LITTLE:
        numbers.byteswap()
    return numbers


def numbers_of(values: Sequence[int]) -> "array[int]":
    """Numbers as all of these functions have them."""
    return array("q", values)
