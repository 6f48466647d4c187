"""Rows of messages as Arrow columns, only those that are wanted.

What repeats is made once: attributes are read once for each different text of a block, and taken from there; columns
in which all rows are alike are kept for the next blocks.
"""

from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakemq.attributes import TAGS as TAGS_NAME
from lakemq.attributes import TOMBSTONE, UNIQ_ID, decode_attributes
from lakemq.errors import BadParameterError, LakeMQError
from lakemq.pipeline import schema
from lakemq.pipeline.columns import BODIES, IDS, REST, Opened, Rows, Sums, Sweep, crcs, gather, sweep

DAMAGED = "LAKEMQ_DAMAGED"  # a header of messages that could not be opened
DAMAGED_BODY = "LAKEMQ_BODY"  # and another: the body as it was carried, in base64
_ATTEMPT = "LAKEMQ_ATTEMPT"
_OURS = "LAKEMQ_"
_TAG_SEPARATOR = ","
_FIRST_ATTEMPT = 1
_ALIKE_STEP = 4096  # rows: blocks of about the same size share what is kept
_ALIKE_ROWS_MAX = 64 << 10  # of a column that is kept: blocks have fewer, unless they are well compressed
_ALIKE_MAX = 32  # columns that are kept
# Which columns need more of a sweep than indexes and times.
_SWEPT = {"value": BODIES, "messageId": IDS, "priority": REST, "flag": REST, "term": REST}


class Columns:
    """The columns of some opened messages of one partition, each made when it is asked for."""

    def __init__(self, opened: Opened, topic: str, partition: int, topic_id: int = 0) -> None:
        self._rows: Rows = opened.rows
        self._arena = opened.arena
        self._topic = topic
        self._partition = partition
        self._topic_id = topic_id
        self._parts: frozenset[str] = frozenset()
        self._swept: Sweep | None = None

    def batch(self, names: Sequence[str], types: pa.Schema = schema.SOURCE) -> pa.RecordBatch:
        """Those columns, in that order."""
        return self.all_of(pa.schema([types.field(name) for name in names]))

    def all_of(self, types: pa.Schema) -> pa.RecordBatch:
        """The columns of that schema."""
        self._parts |= {_SWEPT[name] for name in types.names if name in _SWEPT}
        return pa.RecordBatch.from_arrays([_MAKE[name](self) for name in types.names], schema=types)

    def __len__(self) -> int:
        return len(self._rows)

    # How each column is made

    def key(self) -> pa.Array:
        if not self._sums.key:
            return _alike(None, pa.string(), len(self))
        is_none = self._rows["key_bytes"] == 0  # empty and none are the same on the wire
        keys = self._part("key", pa.string())
        return keys if not is_none.any() else pc.if_else(pa.array(is_none), pa.scalar(None, pa.string()), keys)

    def value(self) -> pa.Array:
        found = self._sweep(BODIES)
        values = self._texts(pa.binary(), "body_ends", "body", found.sums.body)
        if self._sums.damaged:  # what could not be opened is no value: it is among the headers
            is_damaged = pa.array(self._rows["is_damaged"] != 0)
            values = pc.if_else(is_damaged, pa.scalar(None, pa.binary()), values)
        if not self._may_have_tombstones:
            return values
        is_none = self._attributes.tombstones()
        return values if is_none is None else pc.if_else(is_none, pa.scalar(None, pa.binary()), values)

    def topic(self) -> pa.Array:
        return _alike(self._topic, pa.string(), len(self))

    def partition(self) -> pa.Array:
        return _alike(self._partition, pa.int32(), len(self))

    def offset(self) -> pa.Array:
        return self._numbers("index", pa.int64())

    def timestamp(self) -> pa.Array:
        return self._numbers("stored", schema.TIMESTAMP)

    def send_time(self) -> pa.Array:
        return self._numbers("sent", schema.TIMESTAMP)

    def headers(self) -> pa.Array:
        return self._attributes.headers()

    def tags(self) -> pa.Array:
        own, shared = self._attributes, self._carriers
        if not shared.has_any:
            return own.tags()
        own_tags = own.tags()
        return pc.if_else(pc.equal(pc.list_value_length(own_tags), 0), shared.tags(), own_tags)

    def app(self) -> pa.Array:
        if self._sweep().is_app_alike:
            at, size = int(self._rows[0]["app_at"]), int(self._rows[0]["app_bytes"])
            of_all = bytes(memoryview(self._arena)[at : at + size])
            if of_all.isascii():
                return _alike(of_all.decode(), pa.string(), len(self))
        return self._part("app", pa.string())

    def message_id(self) -> pa.Array:
        found = self._texts(pa.string(), "id_ends", "ids", self._sweep(IDS).ids_bytes)
        given = self._attributes.uniq_ids()
        return found if given is None else pc.coalesce(given, found)

    def attempt(self) -> pa.Array:
        found = self._attributes.attempts()
        return _alike(_FIRST_ATTEMPT, pa.int32(), len(self)) if found is None else found

    def priority(self) -> pa.Array:
        return self._numbers("priority", pa.int8(), REST)

    def flag(self) -> pa.Array:
        return self._numbers("flag", pa.int16(), REST)

    def term(self) -> pa.Array:
        return self._numbers("term", pa.int32(), REST)

    def topic_id(self) -> pa.Array:
        return _alike(self._topic_id, pa.int32(), len(self))

    def crc(self) -> pa.Array:
        return pa.array(crcs(self._arena, self._rows))

    def value_bytes(self) -> pa.Array:
        sizes = np.ascontiguousarray(self._rows["body_bytes"])
        return pa.Array.from_buffers(pa.int32(), len(self), [None, pa.py_buffer(sizes)])

    # Inside

    def _sweep(self, *parts: str) -> Sweep:
        """One pass over the rows for all that is wanted, and another only if more is, later."""
        found = self._swept
        if found is None or not found.parts.issuperset(parts):
            self._parts |= frozenset(parts)
            found = self._swept = sweep(self._arena, self._rows, f"{self._topic}/{self._partition}/", self._parts)
            self._memory = pa.py_buffer(found.memory)
        return found

    def _numbers(self, piece: str, kind: pa.DataType, *parts: str) -> pa.Array:
        start, count = self._sweep(*parts).starts[piece], len(self)
        return pa.Array.from_buffers(kind, count, [None, self._memory.slice(start, count * kind.bit_width // 8)])

    def _texts(self, kind: pa.DataType, ends: str, values: str, size: int) -> pa.Array:
        """Values of any length out of a sweep, `size` bytes together."""
        starts, memory = self._sweep().starts, self._memory
        buffers = [None, memory.slice(starts[ends], 4 * (len(self) + 1)), memory.slice(starts[values], size)]
        return pa.Array.from_buffers(kind, len(self), buffers)

    @property
    def _sums(self) -> Sums:
        return self._sweep().sums

    @property
    def _may_have_tombstones(self) -> bool:
        """Whether the mark is anywhere in the attributes: asked of all bytes at once, before texts are taken apart."""
        if not self._sums.attributes:
            return False
        return bool(pc.any(pc.match_substring(self._part("attributes", pa.binary()), TOMBSTONE)).as_py())

    @cached_property
    def _attributes(self) -> "_Attributes":
        if not self._sums.attributes and not self._sums.damaged:
            return _Attributes(len(self), None, None)
        rows, view = self._rows, memoryview(self._arena)
        damaged = {
            row: bytes(view[int(rows["body_at"][row]) :][: int(rows["body_bytes"][row])])
            for row in np.flatnonzero(rows["is_damaged"]).tolist()
        }
        return _Attributes(len(self), self._part("attributes", pa.binary()), damaged)

    @cached_property
    def _carriers(self) -> "_Attributes":
        if not self._sums.carrier:
            return _Attributes(len(self), None, None)
        return _Attributes(len(self), self._part("carrier", pa.binary()), None)

    def _part(self, name: str, kind: pa.DataType) -> pa.Array:
        is_text = kind == pa.string()
        offsets, values, bad = gather(self._arena, self._rows, name, getattr(self._sums, name), is_text)
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(values)]
        if not bad:
            return pa.Array.from_buffers(kind, len(self), buffers)
        # Messages inside a batch are not looked at by the broker: what is no text is shown as near as can be.
        raw = pa.Array.from_buffers(pa.binary(), len(self), buffers)
        return pa.array([value.decode("utf-8", "replace") for value in raw.to_pylist()], kind)


class _Attributes:
    """The attributes of many messages: each different text is read once. `texts` is None where there are none."""

    def __init__(self, count: int, texts: pa.Array | None, damaged: dict[int, bytes] | None) -> None:
        self._count = count
        self.has_any = texts is not None
        if texts is None:
            return
        encoded = texts.dictionary_encode()
        self._places = encoded.indices
        self._read = [_read(text) for text in encoded.dictionary.to_pylist()]
        if damaged:
            places = self._places.to_numpy().copy()
            for row, body in damaged.items():
                entries = {DAMAGED: "the body could not be opened", DAMAGED_BODY: b64encode(body).decode()}
                self._read.append({**self._read[places[row]], **entries})
                places[row] = len(self._read) - 1
            self._places = pa.array(places)

    def headers(self) -> pa.Array:
        if not self.has_any:
            return _alike((), schema.HEADERS, self._count)
        shown = [[pair for pair in entries.items() if _is_header(pair[0])] for entries in self._read]
        return pa.array(shown, schema.HEADERS).take(self._places)

    def tags(self) -> pa.Array:
        if not self.has_any:
            return _alike((), schema.TAGS, self._count)
        texts = [entries.get(TAGS_NAME) for entries in self._read]
        return pa.array([text.split(_TAG_SEPARATOR) if text else [] for text in texts], schema.TAGS).take(self._places)

    def uniq_ids(self) -> pa.Array | None:
        return self._value(UNIQ_ID, lambda text: text or None, pa.string())

    def tombstones(self) -> pa.Array | None:
        """Which were sent without a value; None where all have one."""
        if not self.has_any or not any(TOMBSTONE in entries for entries in self._read):
            return None
        return pa.array([TOMBSTONE in entries for entries in self._read], pa.bool_()).take(self._places)

    def attempts(self) -> pa.Array | None:
        return self._value(_ATTEMPT, _number_of, pa.int32())

    def _value(self, name: str, read: Callable[[str], object], kind: pa.DataType) -> pa.Array | None:
        if not self.has_any or not any(name in entries for entries in self._read):
            return None
        return pa.array([read(entries.get(name, "")) for entries in self._read], kind).take(self._places)


def _read(text: bytes) -> dict[str, str]:
    try:
        return decode_attributes(text)
    except LakeMQError as error:
        return {DAMAGED: f"attributes: {error}"}


def check_opened(headers: Mapping[str, str], where: str) -> None:
    """BadParameterError for a message whose body could not be opened: sent on, it would have no value."""
    if DAMAGED_BODY in headers:
        raise BadParameterError(
            f"{where}: the body could not be opened when it was read, so there is no value to send; "
            f"leave such rows out: WHERE headers['{DAMAGED}'] IS NULL"
        )


def _is_header(name: str) -> bool:
    return name in (DAMAGED, DAMAGED_BODY) or (name not in (TAGS_NAME, UNIQ_ID) and not name.startswith(_OURS))


def _number_of(text: str) -> int:
    return int(text) if text.isdecimal() and len(text) < 10 else _FIRST_ATTEMPT


_ALIKE: dict[tuple[object, pa.DataType], pa.Array] = {}


def _alike(value: object, kind: pa.DataType, count: int) -> pa.Array:
    """A column in which all rows have that value; what is sent of it is a slice of the one that is kept."""
    if count > _ALIKE_ROWS_MAX:
        return _repeat(value, kind, count)
    found = _ALIKE.get((value, kind))
    if found is None or len(found) < count:
        if len(_ALIKE) >= _ALIKE_MAX:
            _ALIKE.clear()
        found = _ALIKE[value, kind] = _repeat(value, kind, -(-count // _ALIKE_STEP) * _ALIKE_STEP)
    return found[:count]


def _repeat(value: object, kind: pa.DataType, count: int) -> pa.Array:
    """Made anew. `()` stands for an empty list or map."""
    if value != ():
        return pa.nulls(count, kind) if value is None else pa.repeat(pa.scalar(value, kind), count)
    offsets = pa.py_buffer(np.zeros(count + 1, np.int32))
    inside = pa.struct([kind.key_field, kind.item_field]) if pa.types.is_map(kind) else kind.value_type
    return pa.Array.from_buffers(kind, count, [None, offsets], children=[pa.array([], inside)])


_MAKE: dict[str, Callable[[Columns], pa.Array]] = {
    "key": Columns.key,
    "value": Columns.value,
    "topic": Columns.topic,
    "partition": Columns.partition,
    "offset": Columns.offset,
    "timestamp": Columns.timestamp,
    "sendTime": Columns.send_time,
    "headers": Columns.headers,
    "tags": Columns.tags,
    "app": Columns.app,
    "messageId": Columns.message_id,
    "attempt": Columns.attempt,
    "priority": Columns.priority,
    "flag": Columns.flag,
    "term": Columns.term,
    "topicId": Columns.topic_id,
    "crc": Columns.crc,
    "valueBytes": Columns.value_bytes,
}
