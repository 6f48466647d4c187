"""Rows of the lake's tables, written out: seconds after noon stand for times."""

from datetime import UTC, datetime, timedelta

import pytest

pa = pytest.importorskip("pyarrow", reason="the lake needs pip install 'lakemq[spark]'")
schema = pytest.importorskip("lakemq.pipeline.schema")

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
_SQL = {
    pa.string(): "string",
    pa.int8(): "tinyint",
    pa.int16(): "smallint",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.date32(): "date",
    schema.TIMESTAMP: "timestamp",
    schema.TAGS: "array<string>",
}


def columns(table):
    """A table's columns as Spark takes them: the tests follow the agreed schema."""
    return ", ".join(f"`{one.name}` {_SQL[one.type]}" for one in table)


META_COLUMNS = columns(schema.META)
EVENT_COLUMNS = columns(schema.EVENTS)
STATE_COLUMNS = (
    "topic string, partition int, group string, first bigint, end bigint, state string, "
    "attempts int, reason string, due timestamp"
)


def at(seconds):
    """A moment so many seconds after noon."""
    return NOON + timedelta(seconds=seconds)


def message(offset=0, stored=0.0, *, sent=None, key=None, topic="orders", partition=0, app="shop", bytes_=100, crc=1,
            topic_id=1, message_id=None):  # fmt: skip
    time = at(stored)
    return (
        *(key, topic, partition, offset, time, at(stored if sent is None else sent), None, app),
        *(message_id or f"{topic}-{partition}-{offset}", 1, 0, 0, 1, topic_id, crc, bytes_, time.date()),
    )


def event(kind="produced", offset=0, count=1, when=0.0, *, app=None, client=None, attempt=None, elapsed=None,
          reason=None, topic="orders", partition=0, topic_id=1):  # fmt: skip
    app = app or ("shop" if kind == "produced" else "shop.billing")
    attempt = 1 if attempt is None and kind in ("delivered", "acked", "failed") else attempt
    time = at(when)
    return (
        *(topic, topic_id, partition, offset, count, time, kind, app, client, attempt, elapsed, reason),
        *(0, 0, time.date()),
    )


def state(first, end, state="acked", *, group="shop.billing", topic="orders", partition=0, attempts=1, reason=None,
          due=None):  # fmt: skip
    return (topic, partition, group, first, end, state, attempts, reason, due)


def told(frame, *names):
    """The rows of a frame as tuples in an order that does not depend on Spark; times as seconds after noon."""
    rows = [tuple(_plain(row[name]) for name in names or frame.columns) for row in frame.collect()]
    return sorted(rows, key=lambda row: tuple((value is not None, value) for value in row))


def _plain(value):
    return (value.astimezone(UTC) - NOON).total_seconds() if isinstance(value, datetime) else value
