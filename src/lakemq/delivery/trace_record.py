"""What happened to messages as bytes: a block of events, which is the body of one message of the topic of events.

Little-endian, and its rows are of one width, so that whoever reads millions of them need not take them apart one by
one. A row stands for a run of consecutive indexes of one partition to which the same happened.

    magic 2 · version 1 · zero 1 · row count 4 · string count 2 · strings · rows

A string is its length in 2 bytes and UTF-8. Rows name strings by their number; string 0 is empty.
"""

import struct
from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import NamedTuple

from lakemq.errors import SerializationError

EVENTS_TOPIC = "__events"
"""The topic that blocks are messages of; only the broker writes to it."""

MAGIC = b"LE"
VERSION = 1
HEAD = struct.Struct("<2sBBIH")
_ROW_FORMAT = "qqIiiHHHHHHB3x"
ROW = struct.Struct("<" + _ROW_FORMAT)
ROW_FIELDS = (
    ("time_ms", "<i8"),  # when it happened to the first, wall time
    ("first_index", "<i8"),
    ("count", "<u4"),
    ("topic_number", "<i4"),
    (
        "elapsed_ms",
        "<i4",
    ),  # produced: since it was sent; delivered: since stored; acked, failed: since delivered; or -1
    ("partition", "<u2"),
    ("attempt", "<u2"),  # the how manieth delivery to that app; 0 where there is none
    ("topic", "<u2"),  # these four are numbers of strings
    ("app", "<u2"),  # who sent, or whose delivery it is
    ("client", "<u2"),  # instance@address
    ("reason", "<u2"),
    ("kind", "u1"),
    ("zero", "V3"),
)
"""A row as numpy has it: `numpy.dtype(list(ROW_FIELDS))`; `rows_offset` says where they begin."""

STRINGS_MAX = 0xFFFF
UNKNOWN_MS = -1
NO_INDEX = -1  # of what was refused
NO_PARTITION = 0xFFFF  # of what was refused, where the broker was to choose
_STRING = struct.Struct("<H")
_ELAPSED_MAX = 0x7FFFFFFF
_U16_MAX = 0xFFFF


class EventKind(IntEnum):
    """What happened."""

    PRODUCED = 1
    DELIVERED = 2
    ACKED = 3
    FAILED = 4
    RETRY = 5  # to be delivered again, later
    DEAD = 6
    RESENT = 7
    EXPIRED = 8
    REFUSED = 9  # a send that was not taken: its messages have no index


class Event(NamedTuple):
    """One row, its strings in place."""

    time_ms: int
    first_index: int
    index_count: int
    topic_number: int
    elapsed_ms: int
    partition: int
    attempt: int
    topic: str
    app: str
    client: str
    reason: str
    kind: int


def pack_blocks(events: Iterable[Event], rows_max: int, bytes_max: int) -> Iterator[tuple[int, bytes]]:
    """Events as blocks of at most so many rows and bytes, but one row in any case: how many are in each, and it."""
    block = _Block()
    for event in events:
        texts = event[7:11]
        places = block.places.get(texts)
        if places is None or block.row_count >= rows_max or block.size + ROW.size > bytes_max:
            if block.row_count and not block.has_room(texts, rows_max, bytes_max):
                yield block.row_count, block.pack()
                block = _Block()
            places = block.name(texts)
        block.add(event, places)
    if block.row_count:
        yield block.row_count, block.pack()


Texts = tuple[str, str, str, str]


class _Block:
    """Rows as numbers, packed in one go."""

    def __init__(self) -> None:
        self.places: dict[Texts, tuple[int, ...]] = {}
        self.row_count = 0
        self.size = HEAD.size + _STRING.size
        self._numbers: dict[str, int] = {"": 0}
        self._strings: list[bytes] = [_STRING.pack(0)]
        self._values: list[int] = []

    def has_room(self, texts: Texts, rows_max: int, bytes_max: int) -> bool:
        more = {text for text in texts if text not in self._numbers}
        size = self.size + ROW.size + sum([_STRING.size + len(_encoded(text)) for text in more])
        return self.row_count < rows_max and size <= bytes_max and len(self._numbers) + len(more) <= STRINGS_MAX

    def name(self, texts: Texts) -> tuple[int, ...]:
        for text in texts:
            if text not in self._numbers:
                self._numbers[text] = len(self._numbers)
                data = _encoded(text)
                self._strings.append(_STRING.pack(len(data)) + data)
                self.size += _STRING.size + len(data)
        places = self.places[texts] = tuple([self._numbers[text] for text in texts])
        return places

    def add(self, event: Event, places: tuple[int, ...]) -> None:
        time_ms, first, count, number, elapsed_ms, partition, attempt, _, _, _, _, kind = event
        if not UNKNOWN_MS <= elapsed_ms <= _ELAPSED_MAX:  # clocks differ, and are set
            elapsed_ms = UNKNOWN_MS if elapsed_ms < 0 else _ELAPSED_MAX
        self._values += (time_ms, first, count, number, elapsed_ms, partition, min(attempt, _U16_MAX), *places, kind)
        self.row_count += 1
        self.size += ROW.size

    def pack(self) -> bytes:
        head = HEAD.pack(MAGIC, VERSION, 0, self.row_count, len(self._strings))
        return b"".join((head, *self._strings, struct.pack("<" + _ROW_FORMAT * self.row_count, *self._values)))


def _encoded(text: str) -> bytes:
    return text.encode(errors="replace")[:_U16_MAX]


def rows_offset(block: bytes | memoryview) -> tuple[int, int, list[str]]:
    """Where the rows of a block begin, how many there are, and its strings; SerializationError if it is none."""
    if len(block) < HEAD.size:
        raise SerializationError(f"a block of events of {len(block)} bytes")
    magic, version, zero, row_count, string_count = HEAD.unpack_from(block)
    if magic != MAGIC or zero:
        raise SerializationError("not a block of events")
    if version != VERSION:
        raise SerializationError(f"a block of events of version {version}; {VERSION} is known")
    at = HEAD.size
    texts = []
    for _ in range(string_count):
        if at + _STRING.size > len(block):
            raise SerializationError("a block of events ends within its strings")
        at += _STRING.size
        size = _STRING.unpack_from(block, at - _STRING.size)[0]
        if at + size > len(block):
            raise SerializationError("a block of events ends within its strings")
        texts.append(str(block[at : at + size], "utf-8", errors="replace"))
        at += size
    if not texts or texts[0]:
        raise SerializationError("the first string of a block of events is not empty")
    if at + row_count * ROW.size != len(block):
        raise SerializationError(f"{row_count} rows do not fill the block of events from byte {at} to {len(block)}")
    return at, row_count, texts


def unpack_events(block: bytes | memoryview) -> list[Event]:
    """The events of a block; SerializationError if it is none."""
    at, _, texts = rows_offset(block)
    events = []
    for row in ROW.iter_unpack(memoryview(block)[at:]):
        numbers = row[7:11]
        if max(numbers) >= len(texts):
            raise SerializationError(f"an event names string {max(numbers)}; there are {len(texts)}")
        events.append(Event._make((*row[:7], *(texts[number] for number in numbers), row[11])))
    return events
