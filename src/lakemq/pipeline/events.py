"""Blocks of events, as the broker keeps them, made rows: many at a time, the strings once per block."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from lakemq.delivery.trace_record import EVENTS_TOPIC, HEAD, MAGIC, ROW_FIELDS, VERSION, EventKind
from lakemq.errors import SerializationError
from lakemq.pipeline import schema
from lakemq.pipeline.columns import Opened

__all__ = ["EVENTS_TOPIC", "event_rows"]

_ROW = np.dtype(list(ROW_FIELDS))
_KINDS = pa.array([""] + [kind.name.lower() for kind in EventKind], pa.string())
_COLUMNS = pa.schema([field for field in schema.EVENTS if field.name != "dt"])


def event_rows(opened: Opened, partition: int) -> pa.RecordBatch:
    """All events of some messages of the topic of events, with the columns of the table but `dt`."""
    view = memoryview(opened.arena)
    found = [
        _block(bytes(view[at : at + size]), partition, index)
        for at, size, index in zip(
            opened.rows["body_at"].tolist(),
            opened.rows["body_bytes"].tolist(),
            opened.rows["index"].tolist(),
            strict=True,
        )
    ]
    table = pa.Table.from_batches(found, _COLUMNS).combine_chunks()
    batches = table.to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], _COLUMNS)


def _block(data: bytes, partition: int, index: int) -> pa.RecordBatch:
    strings, start, count = _strings(data, index)
    rows = np.frombuffer(data, _ROW, count, start)
    texts = pa.array(strings, pa.string())

    def text(name: str) -> pa.Array:
        return texts.take(pa.array(rows[name].astype(np.int32)))

    kinds = np.where(rows["kind"] < len(_KINDS), rows["kind"], 0).astype(np.int32)
    columns: dict[str, Any] = {
        "topic": text("topic"),
        "topicId": _numbers(rows["topic_number"], np.int32),
        "partition": _numbers(rows["partition"], np.int32),
        "offset": _numbers(rows["first_index"], np.int64),
        "count": _numbers(rows["count"], np.int32),
        "timestamp": pa.array(rows["time_ms"] * 1000).view(schema.TIMESTAMP),
        "kind": _KINDS.take(pa.array(kinds)),
        "app": text("app"),
        "client": text("client"),
        "attempt": _numbers(rows["attempt"], np.int32),
        "elapsedMs": pa.array(rows["elapsed_ms"].astype(np.int32), mask=rows["elapsed_ms"] < 0),
        "reason": text("reason"),
        "eventPartition": pa.repeat(pa.scalar(partition, pa.int32()), count),
        "eventOffset": pa.repeat(pa.scalar(index, pa.int64()), count),
    }
    return pa.RecordBatch.from_arrays([columns[name] for name in _COLUMNS.names], schema=_COLUMNS)


def _strings(data: bytes, index: int) -> tuple[Sequence[str], int, int]:
    """The strings of a block, where its rows begin, and how many they are."""
    try:
        magic, version, _, row_count, string_count = HEAD.unpack_from(data)
        if magic != MAGIC or version != VERSION:
            raise SerializationError(f"the block of events at offset {index} is of version {version}, not {VERSION}")
        at, strings = HEAD.size, []
        for _ in range(string_count):
            size = int.from_bytes(data[at : at + 2], "little")
            strings.append(data[at + 2 : at + 2 + size].decode())
            at += 2 + size
    except (ValueError, IndexError) as error:
        raise SerializationError(f"the block of events at offset {index} cannot be read: {error}") from None
    if len(data) - at != row_count * _ROW.itemsize:
        raise SerializationError(f"the block of events at offset {index} has {len(data)} bytes, which do not add up")
    return strings, at, row_count


def _numbers(values: Any, kind: Any) -> pa.Array:
    return pa.array(values.astype(kind))
