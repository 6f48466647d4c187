"""Stored messages as columns: many taken apart at once, none made an object.

A `Block` finds the parts of each message; what is compressed or a batch is opened into an arena behind the block's own
bytes (`Opened`), so that afterwards every row is alike: numbers, and places in one run of bytes. `sweep` takes what
nearly every read wants from rows, by one pass over them; the rest is gathered part by part. Columns are made of that
by `arrow.py`. The loops have compiled twins in `_columns.c`; what is written here is the definition.

A body that cannot be opened does not stop the others: its rows have no value but the first, which has the bytes as
they were carried, and each is marked as damaged.
"""

import struct
import zlib
from collections.abc import Iterator
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
_OPENED_BYTES_MAX = 32 << 20  # opened at once: a worker has memory for some of these
_OPENED_ROWS_MAX = 1 << 18  # the same of messages, which have some hundred bytes each beside their bodies
_SHORT = struct.Struct(">h")
_INT = struct.Struct(">i")


class Opened(NamedTuple):
    """Rows, and the bytes that they speak of."""

    rows: Rows
    arena: Buffer
    next_index: int  # of the message after them


class Block:
    """The messages of an answer, laid out; SerializationError if it is none."""

    def __init__(self, data: Buffer) -> None:
        self._data = data
        plain = None if _columns is None else _columns.open_plain(data)
        if plain is not None:  # nothing is compressed: its batches are opened already
            self._rows: Rows | None = np.frombuffer(plain, ROW)
            self.first_index, self.next_index = int(self._rows[0]["index"]), int(self._rows[-1]["index"]) + 1
            return
        self._rows = None
        self._carriers = lay(data)
        self.first_index, self.next_index = int(self._carriers[0]["index"]), _end_of(self._carriers)

    def opened(self, bytes_max: int = _OPENED_BYTES_MAX) -> Iterator[Opened]:
        """All messages, batches and compressed bodies opened, once; in pieces if they are far larger than before."""
        if self._rows is not None:
            yield Opened(self._rows, self._data, self.next_index)
            return
        carriers = self._carriers
        while len(carriers):
            arena, count = _expand(self._data, carriers[: _within_rows(carriers)], bytes_max)
            some, carriers = carriers[:count], carriers[count:]
            is_batch = (some["code"] & BATCH_BIT) != 0
            piece = Opened(_split(arena, some, is_batch) if is_batch.any() else some, arena, _end_of(some))
            del arena, some  # while it is looked at, and when the next one is opened, only whoever looks has it
            yield piece
            del piece


def _end_of(carriers: Rows) -> int:
    last = carriers[-1]
    return int(last["index"]) + (max(int(last["flag"]), 1) if last["code"] & BATCH_BIT else 1)


def _within_rows(carriers: Rows) -> int:
    """How many carriers, one at least, have no more messages than may be laid out at once: batches say how many they
    have, and a few bytes can say much.
    """
    counts = np.where(carriers["code"] & BATCH_BIT, np.maximum(carriers["flag"], 1), 1)
    return max(int(np.searchsorted(np.cumsum(counts, dtype=np.int64), _OPENED_ROWS_MAX, side="right")), 1)


def _expand(data: Buffer, carriers: Rows, bytes_max: int) -> tuple[Buffer, int]:
    """Open the compressed bodies, so that they lie behind the block's own bytes, and tell of how many carriers: it ends
    when there are enough, for few bytes can be made of very many.
    """
    places = np.flatnonzero(carriers["code"] & COMPRESSED_BIT)
    if not len(places):
        return data, len(carriers)
    view = memoryview(data)
    pieces: list[Buffer] = [view]
    end, end_max = len(view), len(view) + bytes_max
    starts, sizes = carriers["body_at"], carriers["body_bytes"]
    for place, at, size, code in zip(
        places.tolist(), starts[places].tolist(), sizes[places].tolist(), carriers["code"][places].tolist(), strict=True
    ):
        is_first = end == len(view)
        if end >= end_max:
            return b"".join(pieces), place
        try:
            body = decompress(_kind(code), view[at : at + size], EXPANDED_BYTES_MAX if is_first else end_max - end)
        except LakeMQError:
            if not is_first:  # damaged, or too large to come with the others: it is the first one of the next piece
                return b"".join(pieces), place
            carriers["is_damaged"][place] = 1
            continue
        pieces.append(body)
        starts[place], sizes[place] = end, len(body)
        end += len(body)
    return b"".join(pieces), len(carriers)


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


# What can be had of a sweep beside numbers: the pieces of each.
BODIES, IDS, REST = "bodies", "ids", "rest"
_PIECES = {
    "": ("index", "stored", "sent"),
    BODIES: ("body_ends", "body"),
    IDS: ("id_ends", "ids"),
    REST: ("term", "flag", "priority"),
}
# In this order they lie in memory; the last two are as long as they turn out to be.
_ORDER = ("index", "stored", "sent", "body_ends", "id_ends", "term", "flag", "priority", "ids", "body")
_NOT_WANTED = -1


class Sweep(NamedTuple):
    """What one pass over rows has found, one piece behind the other in one run of memory."""

    parts: frozenset[str]
    memory: npt.NDArray[np.uint8]
    starts: dict[str, int]
    sums: Sums
    is_app_alike: bool  # the same in all rows, as nearly always: who sends much is one app
    ids_bytes: int


def sweep(arena: Buffer, rows: Rows, prefix: str, parts: frozenset[str]) -> Sweep:
    """Indexes and times of all rows, and as `parts` say bodies, ids (the prefix and the index, as text) and the rest.

    Rows are wide: going over them costs more than what is taken from them, so that it is done once.
    """
    start, count = prefix.encode(), len(rows)
    ends_bytes = 4 * (count + 1)
    sizes = {
        "index": 8 * count, "stored": 8 * count, "sent": 8 * count, "body_ends": ends_bytes, "id_ends": ends_bytes,
        "term": 4 * count, "flag": 2 * count, "priority": count,
        "ids": count * (len(start) + _INDEX_DIGITS), "body": len(memoryview(arena)),
    }  # fmt: skip
    wanted = {piece for part in ("", *parts) for piece in _PIECES[part]}
    starts, end = {}, 0
    for piece in _ORDER:
        starts[piece] = end if piece in wanted else _NOT_WANTED
        end += -(-sizes[piece] // 8) * 8 if piece in wanted else 0
    memory = np.empty(end, np.uint8)
    take = sweep_python if _columns is None else _columns.sweep
    *found, is_app_alike, ids_bytes = take(arena, rows, start, memory, tuple(starts.values()))
    assert ids_bytes >= 0, "rows speak of bytes that are there, each of them once"
    return Sweep(parts, memory, starts, Sums(*found), is_app_alike, ids_bytes)


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


def _place(name: str) -> int:
    assert ROW.fields is not None
    return int(ROW.fields[name][1])


# Where in a row the place and the size of each part are.
_PARTS = {
    part: (_place(f"{part}_at"), _place(f"{part}_bytes")) for part in ("body", "key", "attributes", "carrier", "app")
}


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


def sweep_python(
    arena: Buffer, rows: Rows, start: bytes, memory: npt.NDArray[np.uint8], starts: tuple[int, ...]
) -> tuple[Any, ...]:
    """The definition of `sweep`: the sums of the parts' bytes, how many are damaged, whether apps are alike, and the
    length of all ids; -1 for that if a body lies outside of the arena or there is no room for it.
    """
    count, at = len(rows), dict(zip(_ORDER, starts, strict=True))

    def piece(name: str, kind: str, length: int) -> Any:
        return np.ndarray(length, kind, memory, at[name]) if at[name] != _NOT_WANTED else np.empty(length, kind)

    piece("index", "<i8", count)[:] = rows["index"]
    piece("stored", "<i8", count)[:] = rows["stored_ms"] * 1000
    piece("sent", "<i8", count)[:] = rows["sent_ms"] * 1000
    piece("term", "<i4", count)[:] = rows["term"]
    piece("flag", "<i2", count)[:] = rows["flag"]
    piece("priority", "i1", count)[:] = rows["priority"]
    sums = [int(rows[f"{part}_bytes"].sum(dtype=np.int64)) for part in _PARTS]
    ids_bytes = 0
    if at["id_ends"] != _NOT_WANTED:
        texts = [start + b"%d" % max(index, 0) for index in rows["index"].tolist()]
        ids_bytes = _put(texts, piece("id_ends", "<i4", count + 1), memory[at["ids"] :])
    if at["body_ends"] != _NOT_WANTED:
        bodies = _parts_python(arena, rows, "body")
        if [len(body) for body in bodies] != rows["body_bytes"].tolist() or sums[0] > len(memory) - at["body"]:
            ids_bytes = -1
        else:
            _put(bodies, piece("body_ends", "<i4", count + 1), memory[at["body"] :])
    is_app_alike = len(set(_parts_python(arena, rows, "app"))) == 1
    return *sums, int(np.count_nonzero(rows["is_damaged"])), is_app_alike, ids_bytes


def _parts_python(arena: Buffer, rows: Rows, part: str) -> list[bytes]:
    view = memoryview(arena)
    places = zip(rows[f"{part}_at"].tolist(), rows[f"{part}_bytes"].tolist(), strict=True)
    return [bytes(view[at : at + size]) for at, size in places]


def _put(values: list[bytes], ends: Any, to: npt.NDArray[np.uint8]) -> int:
    """One behind the other, and where each ends; how long they are all together."""
    ends[0] = 0
    ends[1:] = np.cumsum([len(value) for value in values])
    total = int(ends[-1])
    to[:total] = np.frombuffer(b"".join(values), np.uint8)
    return total


def gather_python(
    arena: Buffer, rows: Rows, part: str, offsets: npt.NDArray[np.int32], values: Any, is_text: bool
) -> int:
    """The definition of `gather`."""
    found = _parts_python(arena, rows, part)
    _put(found, offsets, values)
    return sum(not _is_text(value) for value in found) if is_text else 0


def _is_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def crcs_python(arena: Buffer, rows: Rows, found: npt.NDArray[np.int64]) -> None:
    """The definition of `crcs`."""
    view = memoryview(arena)
    for place, (at, size) in enumerate(zip(rows["body_at"].tolist(), rows["body_bytes"].tolist(), strict=True)):
        found[place] = zlib.crc32(view[at : at + size])
