"""Null is null all the way: sink, broker, source, archive, replay."""

import pyarrow as pa
import pytest

pytest.importorskip("deltalake", reason="needs the extra spark")

from lakemq.pipeline import schema
from lakemq.pipeline.fetching import read_range
from lakemq.pipeline.lake import verify
from lakemq.pipeline.lake.rows import read_rows
from lakemq.pipeline.options import Server
from lakemq.pipeline.planning import Range
from lakemq.pipeline.replaying import _message
from lakemq.pipeline.rows import messages_of
from pipeline.archive_by_hand import archive


def fill(topics):
    """A topic with bodies, an empty one, and two tombstones, alone and in a batch."""
    topic = topics.make(partitions=1, is_archived=True)
    topics.mq.send(topic, None, key="gone")
    topics.mq.send(topic, b"", key="empty")
    values = pa.array([b"a", None, b"b"], pa.binary())
    batch = pa.RecordBatch.from_arrays([values, pa.array(["x", "y", "z"])], ["value", "key"])
    topics.mq.send_many(topic, [message for _, message in messages_of(batch, topic)]).raise_if_failed()
    return topic


WANTED = [("gone", None), ("empty", b""), ("x", b"a"), ("y", None), ("z", b"b")]


@pytest.mark.parametrize("columns", [("key", "value"), schema.LIVE.names], ids=["few", "all"])
def test_a_tombstone_is_null_in_the_source_and_nothing_else_is(topics, columns):
    topic = fill(topics)
    types = pa.schema([schema.LIVE.field(name) for name in columns])
    (batch,) = read_range(Server(topics.url), Range(topic, 0, 0, 5), types)
    assert [(row["key"], row["value"]) for row in batch.to_pylist()] == WANTED
    if "headers" in columns:
        assert all(row["headers"] == [] for row in batch.to_pylist()), "the mark is not shown among headers"


def test_a_tombstone_is_null_in_the_archive_which_is_whole_and_comes_back_by_a_replay(topics, tmp_path):
    topic = fill(topics)
    lake = archive(topics.url, tmp_path, topic)
    view = lake.table("messages").at()
    wanted = pa.schema([field for field in schema.MESSAGES if field.name not in ("topic", "dt")])
    rows = [
        {**row, "topic": topic, "headers": dict(row["headers"])}
        for file in view.files(topic=topic)
        for batch in read_rows(view.place, file.path, wanted)
        for row in batch.to_pylist()
    ]
    assert [(row["key"], row["value"]) for row in rows] == WANTED
    report = verify(lake)
    assert (report.problems, report.unsummed) == ([], 0)
    assert [_message(row, "again").body for row in rows] == [None, b"", b"a", None, b"b"]


@pytest.mark.spark
def test_null_goes_through_sparks_sink_and_source(spark, topics):
    from lakemq import spark as lm

    for once in ("false", "true"):
        topic = topics.make(partitions=1)
        frame = spark.createDataFrame([("a", None), ("b", ""), ("c", "x")], "key string, value string")
        writer = frame.coalesce(1).write.format("lakemq").options(servers=topics.url, topic=topic, exactlyOnce=once)
        writer.mode("append").save()
        read = topics.read(spark, subscribe=topic)
        assert [(row["key"], row["value"]) for row in read.orderBy("key").collect()] == [
            ("a", None),
            ("b", b""),
            ("c", b"x"),
        ]
        assert read.where("value is null").count() == 1
        (row,) = lm.decode_json(read.where("key = 'a'"), "id bigint").collect()
        assert (row["body"], row["_corrupt"]) == (None, None)
