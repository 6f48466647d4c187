"""`spark.read.format("lakemq")` and `readStream`: every message once, with what it was sent with."""

import json
from datetime import UTC, datetime, timedelta

import pytest

pytest.importorskip("pyspark", reason="needs the extra spark")

from pyspark.errors import AnalysisException, PySparkException, StreamingQueryException
from pyspark.sql import functions as F

KAFKA = ["key", "value", "topic", "partition", "offset", "timestamp"]


def numbers(frame):
    """The numbers in the bodies, sorted."""
    return sorted(int(row["value"]) for row in frame.select(F.col("value").cast("string")).collect())


def test_a_batch_read_has_every_message_with_all_that_was_sent(spark, topics):
    topic = topics.make()
    began = datetime.now(UTC) - timedelta(seconds=1)
    topics.mq.send(topic, b"one", key="k", tags=["a", "b"], headers={"v": "2"}, uniq_id="u-1", priority=3)
    topics.mq.send(topic, b"two")
    rows = {row["value"].decode(): row for row in topics.read(spark, subscribe=topic, columns="*").collect()}
    one, two = rows["one"], rows["two"]
    assert (one["key"], one["tags"], one["headers"], one["messageId"]) == ("k", ["a", "b"], {"v": "2"}, "u-1")
    assert (one["topic"], one["app"], one["priority"], one["attempt"]) == (topic, "shop", 3, 1)
    assert began.replace(tzinfo=None) <= one["sendTime"] <= one["timestamp"] <= datetime.now(UTC).replace(tzinfo=None)
    assert (two["key"], two["tags"], two["headers"]) == (None, [], {})
    assert two["messageId"] == f"{topic}/{two['partition']}/{two['offset']}"


def test_the_first_columns_are_those_of_sparks_kafka_source(spark, topics):
    topic = topics.make()
    assert topics.read(spark, subscribe=topic).columns[:6] == KAFKA


def test_batches_and_compression_come_out_as_single_messages(spark, topics):
    topic = topics.make(partitions=3)
    topics.fill(topic, 5000, body=lambda n: b"%d" % n + b" " * 300)
    frame = topics.read(spark, subscribe=topic)
    assert numbers(frame.select(F.trim(F.col("value").cast("string")).cast("binary").alias("value"))) == list(
        range(5000)
    )
    assert frame.select("partition", "offset").distinct().count() == 5000


def test_start_and_end_cut_exactly_also_inside_a_batch(spark, topics):
    topic = topics.make(partitions=1)
    topics.fill(topic, 1000)
    cut = {"startingOffsets": json.dumps({topic: {"0": 123}}), "endingOffsets": json.dumps({topic: {"0": 457}})}
    assert numbers(topics.read(spark, subscribe=topic, **cut)) == list(range(123, 457))


def test_more_tasks_than_partitions_read_each_message_once(spark, topics):
    topic = topics.make(partitions=1)
    topics.fill(topic, 1000)
    frame = topics.read(spark, subscribe=topic, minPartitions="4")
    assert frame.rdd.getNumPartitions() == 4
    assert numbers(frame) == list(range(1000))


def test_a_pattern_finds_topics_and_never_the_brokers_own(spark, topics):
    first, second = topics.make(), topics.make()
    topics.fill(first, 3)
    topics.fill(second, 3, first=3)
    assert numbers(topics.read(spark, subscribePattern=f"{first}|{second}")) == list(range(6))


def test_columns_that_are_named_are_all_that_is_read(spark, topics):
    topic = topics.make()
    topics.fill(topic, 10)
    frame = spark.read.format("lakemq").options(servers=topics.url, subscribe=topic).schema("offset bigint, key string")
    assert frame.load().columns == ["offset", "key"]
    assert frame.load().count() == 10


def test_a_read_has_the_usual_columns_and_others_when_they_are_asked_for(spark, topics):
    topic = topics.make()
    topics.mq.send(topic, b"one", priority=3)
    usual = topics.read(spark, subscribe=topic)
    assert usual.columns == [*KAFKA, "sendTime", "headers", "tags", "app", "messageId", "attempt"]
    everything = topics.read(spark, subscribe=topic, columns="*")
    assert everything.columns == [*usual.columns, "priority", "flag", "term"]
    some = topics.read(spark, subscribe=topic, columns="priority, value , offset")
    assert [tuple(row) for row in some.collect()] == [(3, b"one", 0)]
    assert [field.nullable for field in some.schema] == [False, True, False]
    assert "headers" not in topics.read(spark, subscribe=topic, includeHeaders="false").columns
    assert topics.read(spark, subscribe=topic, includeHeaders="true").columns == usual.columns
    stream = spark.readStream.format("lakemq").options(servers=topics.url, subscribe=topic, columns="term,key").load()
    assert stream.columns == ["term", "key"]


def test_columns_named_in_two_ways_must_agree(spark, topics):
    topic = topics.make()
    topics.fill(topic, 2)
    reader = spark.read.format("lakemq").options(servers=topics.url, subscribe=topic, columns="offset,key")
    assert reader.schema("offset bigint, key string").load().count() == 2
    with pytest.raises(AnalysisException, match=r"columns says offset, key, and \.schema\(…\) something else"):
        reader.schema("key string").load().count()


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ("offset,ofset", "there is no column 'ofset'. Did you mean 'offset'?"),
        ("total", "there is no column 'total'. The columns are key, value, "),
        ("key,key", "columns='key,key' names a column twice or none"),
        ("key,,offset", "columns='key,,offset' names a column twice or none"),
    ],
    ids=["typo", "unknown", "twice", "none"],
)
def test_columns_that_make_no_sense_are_refused(spark, topics, columns, said):
    topic = topics.make()
    with pytest.raises(AnalysisException) as caught:
        topics.read(spark, subscribe=topic, columns=columns)
    assert said in str(caught.value)


def test_only_keys_and_values_may_be_null_unless_rows_come_from_the_lake(spark, topics, tmp_path):
    topic = topics.make()
    topics.mq.send(topic, b"", key=None)
    frame = topics.read(spark, subscribe=topic)
    assert [field.name for field in frame.schema if field.nullable] == ["key", "value"]
    (row,) = frame.collect()
    assert [name for name in frame.columns if row[name] is None] == ["key"]
    stream = spark.readStream.format("lakemq").options(servers=topics.url, subscribe=topic).load()
    assert stream.schema == frame.schema
    mixed = topics.read(spark, subscribe=topic, failOnDataLoss="archive", lake=str(tmp_path))
    assert all(field.nullable for field in mixed.schema)
    assert mixed.collect() == [row]


def test_columns_may_be_named_with_and_without_not_null_but_a_key_may_be_missing(spark, topics):
    topic = topics.make()
    topics.fill(topic, 10)
    reader = spark.read.format("lakemq").options(servers=topics.url, subscribe=topic)
    frame = reader.schema("offset bigint NOT NULL, partition int").load()
    assert [field.nullable for field in frame.schema] == [False, True]
    assert frame.distinct().count() == 10
    with pytest.raises(AnalysisException, match=r"column key may be null. Name it without NOT NULL"):
        reader.schema("key string NOT NULL").load().count()


def test_filters_on_offset_and_partition_are_pushed_down(spark, topics):
    topic = topics.make(partitions=2)
    for partition in (0, 1):
        topics.fill(topic, 100, partition=partition)
    frame = topics.read(spark, subscribe=topic, pushdown="true")
    kept = frame.where("partition = 1 and offset >= 10 and offset < 20")
    assert [row["offset"] for row in kept.orderBy("offset").collect()] == list(range(10, 20))
    assert frame.where("topic = 'other'").count() == 0


def test_a_stream_to_parquet_has_each_message_once_in_batches_of_the_limit(spark, topics, tmp_path):
    topic = topics.make(partitions=3)
    topics.fill(topic, 1000)
    query = copy(spark, topics, topic, tmp_path, maxOffsetsPerTrigger="300", group="copier")
    assert [progress["numInputRows"] for progress in query.recentProgress] == [300, 300, 300, 100]
    topics.fill(topic, 10, first=1000)
    copy(spark, topics, topic, tmp_path, maxOffsetsPerTrigger="300", group="copier")
    assert numbers(spark.read.parquet(str(tmp_path / "out"))) == list(range(1010))
    assert topics.lag(topic, "copier") == [0, 0, 0], "the group's lag is shown also after the last batch"


def copy(spark, topics, topic, tmp_path, **options):
    source = spark.readStream.format("lakemq").options(servers=topics.url, subscribe=topic, startingOffsets="earliest")
    writer = source.options(**options).load().writeStream.format("parquet").option("path", str(tmp_path / "out"))
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination(120)
    return query


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"subscribe": "nowhere"}, "there is no topic 'nowhere'"),
        ({"subscribe": "x", "startingOfsets": "earliest"}, "Did you mean 'startingOffsets'"),
        ({}, "Give one of subscribe, subscribePattern and assign"),
    ],
)
def test_what_cannot_be_read_is_said_in_one_clear_line(spark, topics, options, text):
    with pytest.raises(PySparkException, match=text):
        topics.read(spark, **options).count()


def test_offsets_beyond_the_end_are_refused(spark, topics):
    topic = topics.make(partitions=1)
    topics.fill(topic, 5)
    end = json.dumps({topic: {"0": 50}})
    with pytest.raises(PySparkException, match="ends at offset 5, before 50"):
        topics.read(spark, subscribe=topic, endingOffsets=end).count()
    assert topics.read(spark, subscribe=topic, endingOffsets=end, failOnDataLoss="false").count() == 5


def test_a_column_that_is_not_there_is_named(spark, topics):
    topic = topics.make()
    reader = spark.read.format("lakemq").options(servers=topics.url, subscribe=topic).schema("offset bigint, total int")
    with pytest.raises(AnalysisException, match="there is no column 'total'"):
        reader.load().count()


def test_no_broker_is_one_clear_line(spark):
    reader = spark.read.format("lakemq").options(servers="127.0.0.1:1", subscribe="x", timeout="1s")
    with pytest.raises(PySparkException, match=r"no broker at lakemq://127\.0\.0\.1:1"):
        reader.load().count()


def test_a_stream_whose_topic_is_gone_ends_with_the_reason(spark, topics, tmp_path):
    with pytest.raises(StreamingQueryException, match="there is no topic"):
        copy(spark, topics, "never_there", tmp_path)


def test_a_stream_on_a_topic_that_was_made_anew_ends_with_the_reason_and_skips_nothing(spark, topics, tmp_path):
    topic = topics.make()
    topics.fill(topic, 200)
    copy(spark, topics, topic, tmp_path)
    topics.mq.admin.delete_topic(topic)
    topics.mq.admin.ensure_topic(topic, partitions=2)
    topics.fill(topic, 240, first=200)
    with pytest.raises(StreamingQueryException, match=f"topic {topic} was dropped and made anew"):
        copy(spark, topics, topic, tmp_path)
    copy(spark, topics, topic, tmp_path, failOnDataLoss="false")
    assert numbers(spark.read.parquet(str(tmp_path / "out"))) == list(range(440))


def test_the_session_spares_arrow_its_checks_and_what_the_user_gives_to_java_comes_last(spark):
    given = spark.conf.get("spark.driver.extraJavaOptions")
    assert given.index("-Darrow.") < given.index("-XX:TieredStopAtLevel=1")
    assert spark._jvm.java.lang.System.getProperty("arrow.enable_unsafe_memory_access") == "true"
    assert "-Darrow." in spark.conf.get("spark.executor.extraJavaOptions")
