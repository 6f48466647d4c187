"""Stored messages as columns: many taken apart at once, none made an object.

`lay` finds the parts of each message of a block; what is compressed or a batch is opened into an arena behind the
block's own bytes (`Opened`), so that afterwards every row is alike: numbers, and places in one run of bytes.
Columns are gathered from there by `arrow.py`. The loops have compiled twins in `_columns.c`; what is written here is
the definition.

A body that cannot be opened does not stop the others: its rows have no value but the first, which has the bytes as
they were carried, and each is marked as damaged.
"""

import struct
import zlib
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lakemq.batch import read_items
from lakemq.compression import EXPANDED_BYTES_MAX, decompress
from lakemq.errors import LakeMQError, SerializationError
from lakemq.record import BATCH_BIT, COMPRESSED_BIT, FIXED, FIXED_BYTES, MESSAGE_BYTES_MIN, Buffer, SystemCode, measure

try:
    import lakemq._columns as _columns
except ImportError:  # no compiler when it was installed
    _columns = None  # type: ignore[assignment]  # the definitions below are used

ROW = np.dtype(
    [
        ("index", "<i8"),
        ("sent_ms", "<i8"),
        ("stored_ms", "<i8"),
        ("crc", "<i8"),  # as the sender gave it: of the body as carried
        ("body_at", "<i8"),
        ("key_at", "<i8"),
        ("attributes_at", "<i8"),
        ("carrier_at", "<i8"),  # the attributes of the batch that it is in
        ("app_at", "<i8"),
        ("body_bytes", "<i4"),
        ("key_bytes", "<i4"),
        ("attributes_bytes", "<i4"),
        ("carrier_bytes", "<i4"),
        ("app_bytes", "<i4"),
        ("term", "<i4"),
        ("flag", "<i2"),
        ("code", "<i2"),
        ("priority", "i1"),
        ("is_damaged", "i1"),
        ("unused", "V2"),
    ]
)
Rows = npt.NDArray[Any]

_INDEX_DIGITS = 20
_SHORT = struct.Struct(">h")
_INT = struct.Struct(">i")


class Opened(NamedTuple):
    """Rows, and the bytes that they speak of."""

    rows: Rows
    arena: Buffer
    next_index: int  # of the message after them


def open_block(data: Buffer) -> Opened:
    """The messages of a block, batches and compressed bodies opened; SerializationError if it is none."""
    carriers = lay(data)
    codes = carriers["code"]
    last = carriers[-1]
    next_index = int(last["index"]) + (int(last["flag"]) if last["code"] & BATCH_BIT else 1)
    if not (codes & (BATCH_BIT | COMPRESSED_BIT)).any():
        return Opened(carriers, data, next_index)
    arena = _expand(data, carriers)
    is_batch = (codes & BATCH_BIT) != 0
    if not is_batch.any():
        return Opened(carriers, arena, next_index)
    return Opened(_split(arena, carriers, is_batch), arena, next_index)


def _expand(data: Buffer, carriers: Rows) -> Buffer:
    """Open the compressed bodies; their rows then lie behind the block's own bytes."""
    places = np.flatnonzero(carriers["code"] & COMPRESSED_BIT)
    if not len(places):
        return data
    view = memoryview(data)
    pieces: list[Buffer] = [view]
    end = len(view)
    starts, sizes = carriers["body_at"], carriers["body_bytes"]
    for place, at, size, code in zip(
        places.tolist(), starts[places].tolist(), sizes[places].tolist(), carriers["code"][places].tolist(), strict=True
    ):
        try:
            body = decompress(_kind(code), view[at : at + size], EXPANDED_BYTES_MAX)
        except LakeMQError:
            carriers["is_damaged"][place] = 1
            continue
        pieces.append(body)
        starts[place], sizes[place] = end, len(body)
        end += len(body)
    return b"".join(pieces)


_KINDS: dict[int, Any] = {}


def _kind(code: int) -> Any:
    kind = _KINDS.get(code)
    if kind is None:
        kind = _KINDS[code] = SystemCode.unpack(code & 0xFFFF).compression
    return kind


def _split(arena: Buffer, carriers: Rows, is_batch: npt.NDArray[np.bool_]) -> Rows:
    """One row for each message of a batch."""
    counts = np.where(is_batch, np.maximum(carriers["flag"], 1), 1)
    rows = np.empty(int(counts.sum(dtype=np.int64)), ROW)
    if _columns is None:
        split_python(arena, carriers, counts, rows)
    else:
        is_whole = _columns.split(arena, carriers, rows)
        assert is_whole, "there is room for just as many"
    return rows


def lay(data: Buffer) -> Rows:
    """One row for each message as it is carried."""
    view = memoryview(data)
    # Counted before: room for the shortest messages would be larger than a block of usual ones, and all of it cleared.
    rows = np.zeros(count_python(view) if _columns is None else _columns.count(view), ROW)
    count = lay_python(view, rows) if _columns is None else _columns.lay(view, rows)
    if count < 0:
        lay_python(view, rows)  # which says why
    if count <= 0:
        raise SerializationError("a block without messages")
    return rows[:count]


class Sums(NamedTuple):
    """How many bytes the parts of all rows have together, and how many rows are damaged."""

    body: int
    key: int
    attributes: int
    carrier: int
    app: int
    damaged: int


def sums(rows: Rows) -> Sums:
    """What there is at all: columns of nothing need not be gathered."""
    return sums_python(rows) if _columns is None else Sums(*_columns.sums(rows))


class Numbers(NamedTuple):
    """The numbers of all rows, each in a run of its own."""

    indexes: npt.NDArray[np.int64]
    stored_us: npt.NDArray[np.int64]
    sent_us: npt.NDArray[np.int64]
    term: npt.NDArray[np.int32]
    flag: npt.NDArray[np.int16]
    priority: npt.NDArray[np.int8]


def numbers(rows: Rows) -> Numbers:
    """All at once: rows are wide, and going over them costs more than what is taken from them."""
    count = len(rows)
    longs = np.empty((3, count), np.int64)
    shorts = np.empty(count, np.int32), np.empty(count, np.int16), np.empty(count, np.int8)
    found = Numbers(longs[0], longs[1], longs[2], *shorts)
    if _columns is None:
        numbers_python(rows, found)
    else:
        has_room = _columns.numbers(rows, *found)
        assert has_room, "there is room for all"
    return found


def gather(arena: Buffer, rows: Rows, part: str, size: int, is_text: bool) -> tuple[npt.NDArray[np.int32], Any, int]:
    """One part of all rows, `size` bytes together: where each ends, the bytes, and how many are not text but should."""
    offsets = np.empty(len(rows) + 1, np.int32)
    values = np.empty(size, np.uint8)
    if _columns is None:
        return offsets, values, gather_python(arena, rows, part, offsets, values, is_text)
    at_in_row, bytes_in_row = _PARTS[part]
    bad = _columns.gather(arena, rows, at_in_row, bytes_in_row, offsets, values, is_text)
    assert bad >= 0, "rows speak of bytes that are there"
    return offsets, values, bad


def value_of_all(arena: Buffer, rows: Rows, part: str) -> bytes | None:
    """One part, if it is the same in all rows; None if it is not."""
    is_alike = is_alike_python(arena, rows, part) if _columns is None else _columns.is_alike(arena, rows, *_PARTS[part])
    if not is_alike:
        return None
    at, size = int(rows[0][f"{part}_at"]), int(rows[0][f"{part}_bytes"])
    return bytes(memoryview(arena)[at : at + size])


def _place(name: str) -> int:
    assert ROW.fields is not None
    return int(ROW.fields[name][1])


# Where in a row the place and the size of each part are.
_PARTS = {
    part: (_place(f"{part}_at"), _place(f"{part}_bytes")) for part in ("body", "key", "attributes", "carrier", "app")
}


def places(prefix: str, rows: Rows) -> tuple[npt.NDArray[np.int32], Any]:
    """The prefix and the index of each row as text: where each ends, and the bytes."""
    start = prefix.encode()
    offsets = np.empty(len(rows) + 1, np.int32)
    values = np.empty(len(rows) * (len(start) + _INDEX_DIGITS), np.uint8)
    if _columns is None:
        places_python(start, rows, offsets, values)
    else:
        end = _columns.places(start, rows, offsets, values)
        assert end >= 0, "there is room for the longest"
    return offsets, values


def crcs(arena: Buffer, rows: Rows) -> npt.NDArray[np.int64]:
    """The CRC-32 of each body as it was before it was compressed."""
    found = np.empty(len(rows), np.int64)
    if _columns is None:
        crcs_python(arena, rows, found)
    else:
        is_good = _columns.crcs(arena, rows, found)
        assert is_good, "rows speak of bytes that are there"
    return found


def count_python(view: memoryview) -> int:
    """How many messages there are, by their lengths alone; of what is no message, `lay` says so."""
    at = count = 0
    while len(view) - at >= MESSAGE_BYTES_MIN:
        count += 1
        length = _INT.unpack_from(view, at)[0]
        if length < MESSAGE_BYTES_MIN:
            break
        at += length
    return count


def lay_python(view: memoryview, rows: Rows) -> int:
    """The definition of `lay`: how many messages there are."""
    at = count = 0
    while at < len(view):
        measure(view, at, len(view), 1)
        length, _, index, term, code, priority, sent, delta, crc, flag, body_bytes = FIXED.unpack_from(view, at)
        body_bytes = max(body_bytes, 0)
        key = at + FIXED_BYTES + body_bytes + 2
        key_bytes = max(_SHORT.unpack_from(view, key - 2)[0], 0)
        attributes = key + key_bytes + 2
        attributes_bytes = max(_SHORT.unpack_from(view, attributes - 2)[0], 0)
        extension_bytes = max(_INT.unpack_from(view, attributes + attributes_bytes)[0], 0)
        app = attributes + attributes_bytes + 4 + extension_bytes + 2
        row = rows[count]
        row["index"], row["sent_ms"], row["stored_ms"], row["crc"] = index, sent, sent + delta, crc
        row["body_at"], row["body_bytes"] = at + FIXED_BYTES, body_bytes
        row["key_at"], row["key_bytes"] = key, key_bytes
        row["attributes_at"], row["attributes_bytes"] = attributes, attributes_bytes
        row["carrier_at"], row["carrier_bytes"] = attributes, 0
        row["app_at"], row["app_bytes"] = app, at + length - app
        row["term"], row["flag"], row["code"], row["priority"] = term, flag, code, priority
        at += length
        count += 1
    return count


def split_python(arena: Buffer, carriers: Rows, counts: npt.NDArray[Any], rows: Rows) -> None:
    """The definition of `_split`: rows of messages in batches that are not whole are all marked as damaged."""
    rows[:] = np.repeat(carriers, counts)
    starts = np.cumsum(counts) - counts
    for place in np.flatnonzero(carriers["code"] & BATCH_BIT).tolist():
        carrier, first, count = carriers[place], int(starts[place]), int(counts[place])
        inside = rows[first : first + count]
        at, size = int(carrier["body_at"]), int(carrier["body_bytes"])
        if carrier["is_damaged"] or not _items_python(arena, at, size, inside):
            inside[:] = carrier
            inside["index"] += np.arange(count)
            inside["body_bytes"][1:] = 0
            inside["is_damaged"] = 1


def _items_python(arena: Buffer, start: int, size: int, rows: Rows) -> bool:
    """Make rows that are copies of a batch's those of the messages inside; False if it is not whole."""
    body = bytes(memoryview(arena)[start : start + size])
    try:
        found = read_items(body, len(rows))
    except SerializationError:
        return False
    at = start + 6
    for place, item in enumerate(found):
        row = rows[place]
        row["index"] += place
        row["carrier_at"], row["carrier_bytes"] = row["attributes_at"], row["attributes_bytes"]
        row["priority"], row["flag"] = item.priority, item.flag
        row["body_at"], row["body_bytes"] = at + 11, len(item.body)
        row["key_at"], row["key_bytes"] = at + 15 + len(item.body), len(item.business_id)
        attributes = at + 17 + len(item.body) + len(item.business_id)
        row["attributes_at"], row["attributes_bytes"] = attributes, len(item.attributes)
        at = attributes + len(item.attributes)
    return True


def sums_python(rows: Rows) -> Sums:
    """The definition of `sums`."""
    parts = {part: int(rows[f"{part}_bytes"].sum(dtype=np.int64)) for part in _PARTS}
    return Sums(**parts, damaged=int(np.count_nonzero(rows["is_damaged"])))


def numbers_python(rows: Rows, found: Numbers) -> None:
    """The definition of `numbers`."""
    found.indexes[:], found.term[:] = rows["index"], rows["term"]
    found.stored_us[:], found.sent_us[:] = rows["stored_ms"] * 1000, rows["sent_ms"] * 1000
    found.flag[:], found.priority[:] = rows["flag"], rows["priority"]


def gather_python(
    arena: Buffer, rows: Rows, part: str, offsets: npt.NDArray[np.int32], values: Any, is_text: bool
) -> int:
    """The definition of `gather`."""
    view, bad, to = memoryview(arena), 0, 0
    offsets[0] = 0
    for place, (at, size) in enumerate(
        zip(rows[f"{part}_at"].tolist(), rows[f"{part}_bytes"].tolist(), strict=True), start=1
    ):
        piece = bytes(view[at : at + size])
        values[to : to + size] = np.frombuffer(piece, np.uint8)
        if is_text:
            try:
                piece.decode()
            except UnicodeDecodeError:
                bad += 1
        to += size
        offsets[place] = to
    return bad


def is_alike_python(arena: Buffer, rows: Rows, part: str) -> bool:
    """The definition of `is_alike`."""
    view = memoryview(arena)
    places = zip(rows[f"{part}_at"].tolist(), rows[f"{part}_bytes"].tolist(), strict=True)
    return len({bytes(view[at : at + size]) for at, size in places}) == 1


def places_python(start: bytes, rows: Rows, offsets: npt.NDArray[np.int32], values: Any) -> None:
    """The definition of `places`."""
    to = 0
    offsets[0] = 0
    for place, index in enumerate(rows["index"].tolist(), start=1):
        text = start + b"%d" % max(index, 0)
        values[to : to + len(text)] = np.frombuffer(text, np.uint8)
        to += len(text)
        offsets[place] = to


def crcs_python(arena: Buffer, rows: Rows, found: npt.NDArray[np.int64]) -> None:
    """The definition of `crcs`."""
    view = memoryview(arena)
    for place, (at, size) in enumerate(zip(rows["body_at"].tolist(), rows["body_bytes"].tolist(), strict=True)):
        found[place] = zlib.crc32(view[at : at + size])
