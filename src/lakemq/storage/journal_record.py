"""One record of the journal: a fixed header, then the payload. Messages of one partition, or one control fact.

Two checksums: the header's covers its own position too, so that bytes which once were a record elsewhere are not one
here; the payload's covers every byte a consumer will get. Each record also says how much of the journal was known to
be synced when it was made: a later record that is whole thereby proves that damage before it is damage, and not the
torn tail of a crash.
"""

import struct
from enum import IntEnum
from typing import NamedTuple

from lakemq.checksum import crc32

try:
    import lakemq._hot as _hot
except ImportError:  # no compiler when it was installed
    _hot = None  # type: ignore[assignment]

Buffer = bytes | bytearray | memoryview

SURVIVES_BAD_SECTORS = _hot is not None  # whether `whole_records` may be asked about mapped files
MAGIC = 0x4C4D5152  # "LMQR"
MAGIC_BYTES = MAGIC.to_bytes(4, "big")
FORMAT_VERSION = 1
NO_ADDRESS = bytes(16)

# length, magic, format version, type, partition, term, topic, message count, first index, index count, store time,
# synced position, client address, payload CRC
_HEADER = struct.Struct(">IIBBhiiiqiqq16sI")
_CRC = struct.Struct(">I")
_NOTE = struct.Struct(">I")
_POSITION = struct.Struct(">q")
# Of a header: length, partition, topic, first index, index count, store time, client address
_FACTS = struct.Struct(">I6xh4xi4xqiq8x16s")
HEADER_BYTES = _HEADER.size + _CRC.size
_CRC_OFFSET = _HEADER.size


class RecordType(IntEnum):
    """What a payload is. The engine reads MESSAGES, NOTED, TABLE and SNAPSHOT; the others are its users'."""

    MESSAGES = 1
    TABLE = 2  # at the head of each segment: how far every partition and term had come
    TOPIC = 3
    ACK = 4
    DELAY = 6
    TRANSACTION = 8
    POLICY = 9
    SNAPSHOT = 10  # behind the table of a segment: a part of what its users made of all before it
    NOTED = 11  # messages, behind a note of the engine's users: where they come from
    SETTLE = 12  # what became of messages that were lent: acked out of order, to be tried again, dead
    KEPT = 13  # a message that something refers to, written again because its segment had to go


class RecordHeader(NamedTuple):
    """A record's header; `length` is the whole record's, header included."""

    length: int
    type: int
    partition: int
    term: int
    topic: int
    message_count: int
    first_index: int
    index_count: int
    store_time_ms: int
    synced_position: int
    client_address: bytes
    payload_crc: int


MESSAGE_RECORDS = frozenset((RecordType.MESSAGES, RecordType.NOTED))


def with_note(note: bytes, messages: Buffer) -> bytearray:
    """The payload of a NOTED record."""
    return bytearray().join((_NOTE.pack(len(note)), note, messages))


def note_bytes(kind: int, payload: Buffer) -> int:
    """How many bytes stand before the messages of a record."""
    return _NOTE.size + _NOTE.unpack_from(payload)[0] if kind == RecordType.NOTED else 0


def note_of(payload: Buffer) -> memoryview:
    """The note of a NOTED record."""
    return memoryview(payload)[_NOTE.size : note_bytes(RecordType.NOTED, payload)]


def pack_header(header: RecordHeader, position: int) -> bytes:
    """The header's bytes for a record at that position of the journal."""
    data = _HEADER.pack(header.length, MAGIC, FORMAT_VERSION, *header[1:])
    return data + _CRC.pack(crc32(_POSITION.pack(position), crc32(data)))


def unpack_header(data: Buffer, offset: int, position: int) -> RecordHeader | None:
    """The header at `offset`, if that is one of a record at `position`; its payload is not looked at."""
    if len(data) - offset < HEADER_BYTES:
        return None
    length, magic, version, *rest = _HEADER.unpack_from(data, offset)
    if magic != MAGIC or version != FORMAT_VERSION or length < HEADER_BYTES:
        return None
    crc = _CRC.unpack_from(data, offset + _CRC_OFFSET)[0]
    if crc != crc32(_POSITION.pack(position), crc32(memoryview(data)[offset : offset + _CRC_OFFSET])):
        return None
    return RecordHeader(length, *rest)


def is_payload_whole(header: RecordHeader, data: Buffer, offset: int) -> bool:
    """Whether the payload of the record at `offset` is all there and matches its CRC."""
    payload = memoryview(data)[offset + HEADER_BYTES : offset + header.length]
    return len(payload) == header.length - HEADER_BYTES and crc32(payload) == header.payload_crc


def whole_records(data: Buffer, position: int) -> int:
    """How many of these bytes, which are those of the journal from `position` on, are whole records one by one.

    -1 if they are mapped and the disk would not give them: only the compiled twin survives that.
    """
    if _hot is not None:
        return _hot.whole_records(data, position)
    return whole_records_python(data, position)


def whole_records_python(data: Buffer, position: int) -> int:
    """The definition of `whole_records`."""
    at = 0
    while True:
        header = unpack_header(data, at, position + at)
        if header is None or not is_payload_whole(header, data, at):
            return at
        at += header.length


def facts_of(data: Buffer, offset: int) -> tuple[int, int, int, int, int, int, bytes]:
    """Of the whole record at `offset`: length, partition, topic, first index, index count, store time, client."""
    facts: tuple[int, int, int, int, int, int, bytes] = _FACTS.unpack_from(data, offset)
    return facts
