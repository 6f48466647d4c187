"""Rows that Spark hands to the sink, as messages to send."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.types import BinaryType, DataType, MapType, StringType, StructType, TimestampType

from lakemq.client.outgoing import Message
from lakemq.pipeline.arrow import check_opened
from lakemq.pipeline.errors import OptionError

_WANTED: dict[str, str] = {
    "value": "binary or string",
    "topic": "string",
    "key": "string",
    "partition": "int",
    "headers": "map<string,string>",
    "tags": "array<string>",
    "priority": "a whole number",
    "uniqId": "string",
    "deliverAt": "timestamp",
}


def check_rows(schema: StructType, topic: str) -> None:
    """Refuse before the first row what no row could be sent as."""
    names = schema.fieldNames()
    if "value" not in names:
        raise OptionError("there is no column value", "Make one, e.g. with to_json(struct(*)) as value.")
    unknown = [name for name in names if name not in _WANTED]
    if unknown:
        known = ", ".join(_WANTED)
        raise OptionError(f"column {unknown[0]} cannot be sent", f"Columns are {known}; put the rest into value.")
    if not topic and "topic" not in names:
        raise OptionError("it is not said where to send", "Give option topic, or a column topic.")
    for field in schema.fields:
        if not _fits(field.name, field.dataType):
            said = field.dataType.simpleString()
            raise OptionError(f"column {field.name} is {said}, not {_WANTED[field.name]}", "Cast it before writing.")


def _fits(name: str, kind: DataType) -> bool:
    if name == "value":
        return isinstance(kind, BinaryType | StringType)
    if name in ("topic", "key", "uniqId"):
        return isinstance(kind, StringType)
    if name in ("partition", "priority"):
        return kind.simpleString() in ("tinyint", "smallint", "int", "bigint")
    if name == "deliverAt":
        return isinstance(kind, TimestampType)
    if name == "headers":
        return isinstance(kind, MapType) and kind.simpleString() == _WANTED["headers"]
    return kind.simpleString() == _WANTED["tags"]


def messages_of(batch: pa.RecordBatch, topic: str) -> Iterator[tuple[str, Message]]:
    """Topic and message of each row; a value of null is a tombstone."""
    columns: dict[str, list[Any]] = {name: batch.column(name).to_pylist() for name in batch.schema.names}
    none = [None] * batch.num_rows
    rows = zip(
        columns["value"],
        *(columns.get(name, none) for name in _WANTED if name != "value"),
        strict=True,
    )
    for value, to, key, partition, headers, tags, priority, uniq_id, deliver_at in rows:
        if headers:
            check_opened(dict(headers), f"a row for {to or topic}")
        yield (
            to or topic,
            Message(
                body=value,
                key=key,
                tags=tags or None,
                headers=dict(headers) if headers else None,
                partition=partition,
                priority=priority or 0,
                uniq_id=uniq_id,
                deliver_at=deliver_at,
            ),
        )
