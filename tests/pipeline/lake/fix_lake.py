"""Lakes for tests: messages by their offsets, and a lake that takes them."""

import zlib
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakemq.pipeline import schema
from lakemq.pipeline.lake import EVENTS, MESSAGES, Lake, Range

NOON = datetime(2025, 3, 1, 12, tzinfo=UTC)
TOPIC = "shop.orders"


def message_batch(first, end, *, partition=0, topic_id=7, start=NOON, step=timedelta(seconds=1), keys=5, absent=()):
    """Messages with offsets from `first` to before `end`; the one at offset n was stored n steps after `start`."""
    offsets = [offset for offset in range(first, end) if offset not in absent]
    values = [b"body %d of partition %d" % (offset, partition) for offset in offsets]
    count = len(offsets)
    return pa.RecordBatch.from_pydict(
        {
            "key": [f"key-{offset % keys}" for offset in offsets],
            "value": values,
            "partition": [partition] * count,
            "offset": offsets,
            "timestamp": [start + offset * step for offset in offsets],
            "sendTime": [start + offset * step for offset in offsets],
            "headers": [[("n", str(offset))] for offset in offsets],
            "tags": [["red", "blue"]] * count,
            "app": ["shop"] * count,
            "messageId": [f"id-{partition}-{offset}" for offset in offsets],
            "attempt": [0] * count,
            "priority": [4] * count,
            "flag": [0] * count,
            "term": [1] * count,
            "topicId": [topic_id] * count,
            "crc": [zlib.crc32(value) for value in values],
        },
        schema=pa.schema([field for field in schema.MESSAGES if field.name not in ("topic", "dt")]),
    )


def event_batch(first, end, *, topics=(TOPIC,), start=NOON, partition=0):
    """One event for each offset of `__events`, about the topics in turn."""
    count = end - first
    columns = {
        "topic": [topics[offset % len(topics)] for offset in range(first, end)],
        "topicId": [7] * count,
        "partition": [0] * count,
        "offset": [offset * 10 for offset in range(first, end)],
        "count": [10] * count,
        "timestamp": [start + timedelta(seconds=offset) for offset in range(first, end)],
        "kind": ["acked"] * count,
        "eventPartition": [partition] * count,
        "eventOffset": list(range(first, end)),
    }
    return pa.RecordBatch.from_pydict(
        columns, schema=pa.schema([field for field in schema.EVENTS if field.name in columns])
    )


class Killed(BaseException):
    """What kill -9 is to the code that was running."""


def killed(*_, **__):
    raise Killed


class Archive:
    """A lake, and what an archive job does with it."""

    def __init__(self, path, cluster="c1"):
        self.path = path
        self.lake = Lake.open(path, cluster, create=True)

    def stage(self, first, end, *, topic=TOPIC, topic_id=7, partition=0, **kind):
        """Write the files of a range and do not commit them."""
        with self.lake.writer(topic, topic_id, partition, first) as writer:
            writer.write(message_batch(first, end, partition=partition, topic_id=topic_id, **kind))
            return writer.finish(end), Range(topic, topic_id, partition, first, end)

    def put(self, first, end, *, gaps=(), **kind):
        files, offered = self.stage(first, end, **kind)
        return self.lake.commit(files, gaps, [offered])

    def put_but_die_before(self, table, files, gaps, ranges):
        """Commit, and be killed before the commit of one of the tables."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(self.lake.table(table), "change", killed)
            with pytest.raises(Killed):
                self.lake.commit(files, gaps, ranges)

    def put_events(self, first, end, **kind):
        with self.lake.writer("__events", 1, 0, first, EVENTS) as writer:
            writer.write(event_batch(first, end, **kind))
            files = writer.finish(end)
        return self.lake.commit(files, [], [Range("__events", 1, 0, first, end, EVENTS)])

    def rows(self, table=MESSAGES, **chosen):
        """All rows, as a reader finds them: in the files that the lake names."""
        found = []
        for uri in self.lake.files(table, **chosen):
            found += pq.ParquetFile(uri.removeprefix("file://")).read().to_pylist()
        return found

    def offsets(self, table=MESSAGES, **chosen):
        return sorted(row["offset"] for row in self.rows(table, **chosen))

    def paths(self, table=MESSAGES):
        return [uri.removeprefix("file://") for uri in self.lake.files(table)]

    def log(self, table=MESSAGES):
        """The entries of a table's log, oldest first."""
        return sorted((self.path / table / "_delta_log").glob("*.json"))
