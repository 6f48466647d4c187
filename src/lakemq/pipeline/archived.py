"""Ranges that have left the broker, read from the lake instead."""

from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa

from lakemq.pipeline import schema
from lakemq.pipeline.errors import DataLossError
from lakemq.pipeline.lake import MESSAGES, Lake, PartitionKey
from lakemq.pipeline.lake.place import Place
from lakemq.pipeline.lake.rows import of_partition, read_rows
from lakemq.pipeline.planning import Range


def find_archived(uri: str, one: Range, topic_id: int) -> list[Range]:
    """The same range, with the files that hold it; DataLossError where the lake has not all of it."""
    lake = Lake.open(uri)
    key = PartitionKey(topic_id, one.partition)
    span = lake.snapshot().spans[MESSAGES].get(key)
    if span is None or one.first < span.first or one.end > span.end:
        held = "nothing" if span is None else f"offsets {span.first} to {span.end - 1}"
        raise DataLossError(
            f"{one.topic}, partition {one.partition}: of offsets {one.first} to {one.end - 1} the lake has {held}",
            "Start at an offset that it has, or go on without them with failOnDataLoss=false.",
        )
    files = lake.files(MESSAGES, topic=one.topic, key=key, offsets=(one.first, one.end))
    return [replace(one, topic_id=topic_id, files=tuple(files))]


def archived_end(uri: str, key: PartitionKey) -> int:
    """Up to which offset the lake has a partition; 0 where it has nothing of it."""
    span = Lake.open(uri).snapshot().spans[MESSAGES].get(key)
    return 0 if span is None else span.end


def read_archived(one: Range, types: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of such a range, with those of the source's columns."""
    wanted = pa.schema([field for field in schema.MESSAGES if field.name not in ("topic", "dt")])
    for uri in one.files:
        directory, _, name = uri.rpartition("/")
        for batch in read_rows(Place.of(directory), name, wanted):
            rows = of_partition(batch, PartitionKey(one.topic_id, one.partition), one.first, one.end)
            if rows.num_rows:
                topic = pa.repeat(pa.scalar(one.topic, pa.string()), rows.num_rows)
                columns = [topic if name == "topic" else rows.column(name) for name in types.names]
                yield pa.RecordBatch.from_arrays(columns, schema=types)
