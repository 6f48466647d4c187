"""`df.write.format("lakemq")` and `writeStream`: at least once, or with exactlyOnce once."""

import os

import pytest

pytest.importorskip("pyspark", reason="needs the extra spark")

from pyspark.errors import PySparkException, StreamingQueryException

import lakemq


def rows(spark, count):
    return spark.range(count).selectExpr(
        "cast(id as string) value", "concat('k', id % 5) key", "map('h', cast(id as string)) headers", "array('a') tags"
    )


def send(frame, topics, **options):
    frame.write.format("lakemq").options(servers=topics.url, **options).mode("append").save()


def values(topics, spark, topic):
    return sorted(int(row["value"]) for row in topics.read(spark, subscribe=topic).collect())


@pytest.mark.parametrize("once", ["false", "true"])
def test_every_row_is_a_message_with_its_key_headers_and_tags(spark, topics, once):
    topic = topics.make()
    send(rows(spark, 3000), topics, topic=topic, exactlyOnce=once)
    found = topics.read(spark, subscribe=topic).collect()
    assert sorted(int(row["value"]) for row in found) == list(range(3000))
    assert all(row["key"] == f"k{int(row['value']) % 5}" for row in found)
    assert all(row["headers"] == {"h": row["value"].decode()} and row["tags"] == ["a"] for row in found)


def test_rows_may_say_themselves_where_they_go(spark, topics):
    first, second = topics.make(), topics.make()
    frame = spark.range(10).selectExpr("cast(id as string) value", f"if(id < 4, '{first}', '{second}') topic")
    send(frame, topics)
    assert (len(values(topics, spark, first)), len(values(topics, spark, second))) == (4, 6)


def stream(spark, topics, source, target, checkpoint, **more):
    frame = spark.readStream.format("lakemq").options(servers=topics.url, subscribe=source, startingOffsets="earliest")
    frame = frame.option("maxOffsetsPerTrigger", 400).load().select("key", "value")
    options = {"servers": topics.url, "topic": target, "exactlyOnce": "true", "name": f"copy {target}", **more}
    writer = frame.writeStream.format("lakemq").options(**options).option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination(120)


def test_a_batch_that_is_run_again_is_sent_once(spark, topics, tmp_path):
    source, target = topics.make(), topics.make()
    topics.fill(source, 1000)
    stream(spark, topics, source, target, tmp_path)
    forget_last_commit(tmp_path)
    stream(spark, topics, source, target, tmp_path)
    assert values(topics, spark, target) == list(range(1000))
    with lakemq.connect(topics.url, app="spark") as mq:
        assert mq.session(target).tpc_recover() == [], "what the second run prepared was rolled back"


def forget_last_commit(checkpoint):
    """As if the driver had died between the sink's commit and Spark's own note of it."""
    directory = checkpoint / "commits"
    last = max(int(name) for name in os.listdir(directory) if name.isdigit())
    for name in (str(last), f".{last}.crc"):
        (directory / name).unlink(missing_ok=True)


def test_a_name_belongs_to_a_checkpoint_and_nothing_is_dropped_in_silence(spark, topics, tmp_path):
    first, second, target = topics.make(), topics.make(), topics.make()
    topics.fill(first, 200)
    topics.fill(second, 200, first=200)
    stream(spark, topics, first, target, tmp_path / "a")
    with pytest.raises(StreamingQueryException, match=r"belongs to another checkpoint.*takeOver"):
        stream(spark, topics, second, target, tmp_path / "b")
    with lakemq.connect(topics.url, app="spark") as mq:
        assert mq.session(target).tpc_recover() == [], "what was refused is rolled back"
    stream(spark, topics, second, target, tmp_path / "b", takeOver="true")
    assert values(topics, spark, target) == list(range(400))
    topics.fill(first, 1, first=400)
    with pytest.raises(StreamingQueryException, match="belongs to another checkpoint"):
        stream(spark, topics, first, target, tmp_path / "a")


def test_each_batch_of_foreach_batch_belongs_to_its_checkpoint_too(spark, topics, tmp_path):
    source, target = topics.make(), topics.make()
    topics.fill(source, 20)

    def run(checkpoint):
        def act(frame, _):
            send(frame.select("value"), topics, topic=target, exactlyOnce="true", name=f"each {target}")

        frame = spark.readStream.format("lakemq").options(servers=topics.url, subscribe=source)
        writer = frame.option("startingOffsets", "earliest").load().writeStream.foreachBatch(act)
        writer = writer.option("checkpointLocation", str(tmp_path / checkpoint)).trigger(availableNow=True)
        writer.start().awaitTermination(120)

    run("a")
    with pytest.raises(StreamingQueryException, match="belongs to another checkpoint"):
        run("b")
    assert values(topics, spark, target) == list(range(20))


def test_a_name_that_is_taken_over_leaves_nothing_half_done(topics):
    """Of the other, decisions are committed, the rest is rolled back, and later decisions are void."""
    from lakemq.client.outgoing import Message
    from lakemq.pipeline.errors import PipelineError
    from lakemq.pipeline.sink import end_history, prepare_messages, roll_back_rest
    from lakemq.pipeline.sink_log import SinkLog

    topic, name = topics.make(partitions=1), "taken"
    mq = topics.mq
    old, new = SinkLog(mq, name, "old"), SinkLog(mq, name, "new")
    decided = prepare_messages(mq, iter([(topic, Message(b"decided"))]), name, 6, checkpoint="old")
    old.decide(6, decided.transactions)
    prepare_messages(mq, iter([(topic, Message(b"prepared"))]), name, 7, checkpoint="old")
    with pytest.raises(PipelineError, match=r"name 'taken' belongs to another checkpoint, .* batch 6"):
        new.decide(0, [])
    end_history(mq, new)
    roll_back_rest(mq, name, "new", 0, {topic})
    with mq.reader(topic, start="earliest", stop="now") as reader:
        assert [message.body for message in reader] == [b"decided"]
    assert mq.session(topic).tpc_recover() == []
    with pytest.raises(PipelineError, match="belongs to another checkpoint"):
        old.decide(7, [[topic, "x", "y"]])
    assert new.decide(0, [[topic, "x", "y"]]).transactions == [[topic, "x", "y"]]
    end_history(mq, SinkLog(mq, name, "new"))  # its own already: nothing to end
    assert old.decide(6, []).is_done, "what was decided before is found by its checkpoint"


def test_a_decision_behind_a_take_over_is_void_even_if_it_was_on_its_way(topics, monkeypatch):
    """Two drivers at once: the order of the log decides, and both see the same."""
    from lakemq.pipeline.errors import PipelineError
    from lakemq.pipeline.sink import end_history
    from lakemq.pipeline.sink_log import SinkLog

    name = "raced"
    old, new = SinkLog(topics.mq, name, "old"), SinkLog(topics.mq, name, "new")
    old.decide(0, [])
    note = SinkLog._note

    def taken_meanwhile(self, *args, **more):
        if self is old:
            monkeypatch.undo()
            end_history(topics.mq, new)
        note(self, *args, **more)

    monkeypatch.setattr(SinkLog, "_note", taken_meanwhile)
    with pytest.raises(PipelineError, match="belongs to another checkpoint"):
        old.decide(1, [["t", "x", "y"]])


def test_what_a_dead_task_left_is_not_seen_and_is_cleaned_up(spark, topics, tmp_path):
    from lakemq.client.outgoing import Message
    from lakemq.pipeline.sink import prepare_messages

    source, target = topics.make(), topics.make()
    topics.fill(source, 10)
    with lakemq.connect(topics.url, app="spark") as mq:
        prepare_messages(mq, iter([(target, Message(b"999"))]), f"copy {target}", 0, "0.1")
        stream(spark, topics, source, target, tmp_path)
        assert values(topics, spark, target) == list(range(10))
        assert mq.session(target).tpc_recover() == []


def test_a_decision_that_is_too_old_to_be_sure_of_is_an_error_and_not_a_guess(topics):
    """The broker rolls back what stays prepared for a day; whether that happened cannot be told afterwards."""
    from lakemq.pipeline.errors import PipelineError
    from lakemq.pipeline.sink import commit_decided
    from lakemq.pipeline.sink_log import Decision, SinkLog

    topic = topics.make()
    gone = [[topic, "no such", "1"]]
    log = SinkLog(topics.mq, f"old {topic}")
    with pytest.raises(PipelineError, match="13 hours ago"):
        commit_decided(topics.mq, log, Decision(gone, 13 * 3_600_000), 4)
    commit_decided(topics.mq, log, Decision(gone, 13 * 3_600_000, is_done=True), 4)
    commit_decided(topics.mq, log, Decision(gone, 3_600_000), 4)  # committed by whoever decided, a moment ago
    assert log.decide(4, [["other", "x", "2"]]).is_done


@pytest.mark.parametrize(
    ("frame", "options", "text"),
    [
        (lambda s: s.range(3), {"topic": "x"}, "there is no column value"),
        (lambda s: s.range(3).selectExpr("cast(id as string) value"), {}, "Give option topic, or a column topic"),
        (lambda s: s.range(3).selectExpr("id value"), {"topic": "x"}, "column value is bigint"),
        (
            lambda s: s.range(3).selectExpr("cast(id as string) value", "id total"),
            {"topic": "x"},
            "column total cannot",
        ),
    ],
)
def test_rows_that_cannot_be_sent_are_refused_before_the_first(spark, topics, frame, options, text):
    with pytest.raises(PySparkException, match=text):
        send(frame(spark), topics, **options)


def test_a_topic_cannot_be_overwritten(spark, topics):
    writer = rows(spark, 1).write.format("lakemq").options(servers=topics.url, topic=topics.make())
    with pytest.raises(PySparkException, match="cannot be overwritten"):
        writer.mode("overwrite").save()
