"""The stream source as Spark calls it, without Spark: where it stands, and what it does when topics change under it."""

import pytest

pytest.importorskip("pyspark", reason="needs the extra spark")

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import LongType, StructField, StructType

import lakemq
from lakemq.pipeline.errors import DataLossError, OptionError
from lakemq.pipeline.source import LakeMQSource

ALL = ReadAllAvailable()
OFFSET = StructType([StructField("offset", LongType())])


def stream(topics, **options):
    given = {"servers": topics.url, "columns": "offset", "startingOffsets": "earliest", **options}
    return LakeMQSource(given).streamReader(OFFSET)


def read(reader, start, end):
    """How many messages lie between, as the tasks would read them."""
    tasks = reader.partitions(start, end)
    return sum(batch.num_rows for task in tasks for batch in reader.read(task))


def make_anew(topics, topic, count, partitions=2):
    topics.mq.admin.delete_topic(topic)
    topics.mq.admin.ensure_topic(topic, partitions=partitions)
    if count:
        topics.fill(topic, count)


def drained(reader, start):
    """All there is from `start` on: how many, and where it ends."""
    end = reader.latestOffset(start, ALL)
    return read(reader, start, end), end


@pytest.mark.parametrize("count", [40, 240], ids=["shorter than before", "longer than before"])
def test_a_topic_that_was_made_anew_is_data_loss_and_not_a_place_to_go_on(topics, count):
    topic = topics.make()
    topics.fill(topic, 200)
    first = stream(topics, subscribe=topic)
    found, end = drained(first, first.initialOffset())
    assert found == 200
    make_anew(topics, topic, count)
    with pytest.raises(DataLossError, match=rf"{topic} was dropped and made anew.*new checkpoint"):
        stream(topics, subscribe=topic).latestOffset(end, ALL)
    with pytest.raises(DataLossError, match="was dropped and made anew"):  # the same stream, which goes on
        first.latestOffset(end, ALL)
    lenient = stream(topics, subscribe=topic, failOnDataLoss="false")
    found, end = drained(lenient, end)
    assert found == count, "all of the new one, from its first message on"
    topics.fill(topic, 5)
    assert drained(lenient, end)[0] == 5


@pytest.mark.parametrize("loss", ["true", "false"])
def test_a_batch_that_was_planned_before_a_topic_was_made_anew_does_not_read_the_new_one(topics, loss):
    """As when Spark runs its last batch again after a restart: nobody asks for the latest offsets then."""
    topic = topics.make(partitions=1)
    topics.fill(topic, 20)
    reader = stream(topics, subscribe=topic, failOnDataLoss=loss)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    make_anew(topics, topic, 30, partitions=1)
    if loss == "true":
        with pytest.raises(DataLossError, match="was dropped and made anew"):
            reader.partitions(start, end)
        return
    assert read(reader, start, end) == 0
    assert drained(reader, end)[0] == 30


def test_a_topic_that_goes_away_under_a_pattern_is_data_loss(topics):
    stays, goes = topics.make(), topics.make()
    topics.fill(stays, 10)
    topics.fill(goes, 10)
    pattern = f"{stays}|{goes}"
    reader = stream(topics, subscribePattern=pattern)
    found, end = drained(reader, reader.initialOffset())
    assert found == 20
    topics.mq.admin.delete_topic(goes)
    with pytest.raises(DataLossError, match=f"topic {goes} is gone.*failOnDataLoss=false"):
        reader.latestOffset(end, ALL)
    lenient = stream(topics, subscribePattern=pattern, failOnDataLoss="false")
    topics.fill(stays, 3)
    found, end = drained(lenient, end)
    assert (found, goes in end) == (3, False)
    topics.mq.admin.ensure_topic(goes, partitions=2)
    topics.fill(goes, 7)
    assert drained(lenient, end)[0] == 7


def test_a_named_topic_that_goes_away_is_told_and_not_made_again(topics):
    """A broker in dev mode makes topics for whoever asks."""
    topic = topics.make()
    topics.fill(topic, 10)
    reader = stream(topics, subscribe=topic)
    _, end = drained(reader, reader.initialOffset())
    topics.mq.admin.delete_topic(topic)
    with pytest.raises(DataLossError, match=f"topic {topic} is gone"):
        reader.latestOffset(end, ALL)
    assert drained(stream(topics, subscribe=topic, failOnDataLoss="false"), end) == (0, {})
    assert topic not in {one["name"] for one in topics.mq.inspect("cluster")["topics"]}


def test_what_is_left_of_an_old_topic_is_read_from_the_lake_and_then_the_new_one(topics, monkeypatch):
    from lakemq.pipeline import reads
    from lakemq.pipeline.planning import Range

    topic = topics.make(partitions=1)
    topics.fill(topic, 100)
    number = {one["name"]: one["number"] for one in topics.mq.inspect("cluster")["topics"]}[topic]
    reader = stream(topics, subscribe=topic, failOnDataLoss="archive", lake="/nowhere")
    start = reader.initialOffset()
    half = reader.latestOffset(start, ReadMaxRows(60))
    make_anew(topics, topic, 30, partitions=1)
    monkeypatch.setattr(reads, "archived_end", lambda uri, key: {(number, 0): 80}.get(tuple(key), 0))
    found = []
    monkeypatch.setattr(reads, "find_archived", lambda uri, one, number: found.append((one, number)) or [])
    end = reader.latestOffset(half, ALL)
    assert reader.partitions(half, end) == []
    assert found == [(Range(topic, 0, 60, 80), number)]
    assert drained(reader, end)[0] == 30


def test_an_end_that_lies_before_the_place_where_a_stream_stands_is_data_loss(topics):
    """The same topic, but shorter: the broker's data are older than the query's."""
    topic = topics.make(partitions=1)
    topics.fill(topic, 10)
    reader = stream(topics, subscribe=topic)
    end = reader.latestOffset(reader.initialOffset(), ALL)
    end[topic]["0"] = 50
    with pytest.raises(DataLossError, match="ends at offset 10, before 50"):
        reader.latestOffset(end, ALL)
    lenient = stream(topics, subscribe=topic, failOnDataLoss="false")
    back = lenient.latestOffset(end, ALL)
    assert read(lenient, end, back) == 0
    topics.fill(topic, 5)
    assert drained(lenient, back)[0] == 5


def test_a_checkpoint_from_before_topics_had_ids_is_gone_on_with(topics):
    topic = topics.make(partitions=1)
    topics.fill(topic, 10)
    reader = stream(topics, subscribe=topic)
    assert drained(reader, {topic: {"0": 4}})[0] == 6


def test_the_group_of_a_stream_is_not_told_positions_of_an_old_topic(topics):
    topic = topics.make(partitions=1)
    topics.fill(topic, 100)
    reader = stream(topics, subscribe=topic, group="watch", failOnDataLoss="false")
    _, end = drained(reader, reader.initialOffset())
    reader.commit(end)
    assert topics.lag(topic, "watch") == [0]
    make_anew(topics, topic, 120, partitions=1)
    new = reader.latestOffset(end, ALL)
    reader.commit(end)
    assert topics.lag(topic, "watch") == [120]
    reader.latestOffset(new, ALL)
    assert topics.lag(topic, "watch") == [0]


def test_the_archive_does_not_wait_for_a_broker_that_has_less_than_the_lake(topics):
    """It would take messages that come later for ones that it has."""
    from lakemq.pipeline.errors import PipelineError

    topic = topics.make(partitions=1)
    topics.fill(topic, 10)
    number = {one["name"]: one["number"] for one in topics.mq.inspect("cluster")["topics"]}[topic]
    options = {"servers": topics.url, "view": "files", "lake": "x", "subscribe": topic, "startingOffsets": "{}"}
    reader = LakeMQSource(options).streamReader(OFFSET)
    tag = f"{topic}#{number}"
    assert reader.latestOffset({tag: {"0": 4}}, ALL) == {tag: {"0": 10}}
    with pytest.raises(PipelineError, match=f"{topic}, partition 0 ends at offset 10 at the broker, and the lake has"):
        reader.latestOffset({tag: {"0": 50}}, ALL)


def test_new_partitions_are_seen_at_once(topics):
    """By a batch that is planned now, by its tasks, and by a stream that runs, though routes are kept for a while."""
    topic = topics.make(partitions=1)
    topics.fill(topic, 10)
    source = LakeMQSource({"servers": topics.url, "columns": "offset", "subscribe": topic})
    reader, running = source.reader(OFFSET), stream(topics, subscribe=topic)
    assert sum(one.count for task in reader.partitions() for one in task.ranges) == 10
    start = running.latestOffset(running.initialOffset(), ALL)
    topics.mq.admin.call("PUT", f"topics/{topic}", {"partitions": 3})
    with lakemq.connect(topics.url, app="shop") as mq:
        for partition in (1, 2):
            mq.send(topic, b"x", partition=partition)
    again = source.reader(OFFSET).partitions()
    assert sum(one.count for task in again for one in task.ranges) == 12
    assert drained(running, start)[0] == 2


@pytest.mark.parametrize("option", ["endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"])
def test_a_stream_is_given_no_end(topics, option):
    text = '{"x": {"0": 17}}' if option.endswith("ByTimestamp") else "-10m"
    with pytest.raises(OptionError, match=f"a stream has no end, so {option} says nothing"):
        stream(topics, subscribe="x", **{option: text})


def test_a_batch_that_could_only_be_empty_is_refused(topics):
    for option, word in (("startingOffsets", "latest"), ("endingOffsets", "earliest")):
        with pytest.raises(OptionError, match=f"{option}={word} leaves a batch nothing to read. Did you mean"):
            LakeMQSource({"servers": topics.url, "subscribe": "x", option: word}).reader(OFFSET)


def test_a_group_that_is_not_there_is_refused_and_not_made(topics):
    topic = topics.make()
    topics.fill(topic, 3)
    with topics.mq.consumer(topic, group="billing") as consumer:
        consumer.receive(1)
    with pytest.raises(OptionError, match=f"app shop has no group 'biling' on {topic}. Did you mean 'group:billing'"):
        stream(topics, subscribe=topic, app="shop", startingOffsets="group:biling").initialOffset()
    with pytest.raises(OptionError, match=f"startingOffsets: app spark has no group 'nothere' on {topic}. See"):
        stream(topics, subscribe=topic, startingOffsets="group:nothere").initialOffset()
    assert topics.mq.inspect("groups", topic)["groups"] == ["shop.billing"]
    stream(topics, subscribe=topic, app="shop", startingOffsets="group:billing").initialOffset()


def test_offsets_that_say_of_which_topic_they_are_are_refused_for_another(topics):
    """As those of a view that was made before its topic was dropped and made anew."""
    import json

    topic = topics.make(partitions=1)
    topics.fill(topic, 10)
    end = stream(topics, subscribe=topic).latestOffset({}, ALL)

    def read_from(offsets):
        options = {"servers": topics.url, "subscribe": topic, "columns": "offset", "failOnDataLoss": "false"}
        reader = LakeMQSource({**options, "startingOffsets": json.dumps(offsets)}).reader(OFFSET)
        return sum(one.count for task in reader.partitions() for one in task.ranges)

    start = {topic: {**end[topic], "0": 4}}
    assert read_from(start) == 6
    assert read_from({topic: {**end[topic], "0": 400}}) == 0, "with failOnDataLoss=false it is cut"
    topics.mq.admin.call("PUT", f"topics/{topic}", {"partitions": 2})
    with lakemq.connect(topics.url, app="shop") as mq:
        mq.send(topic, b"x", partition=1)
    assert read_from(start) == 7, "a partition that has come since is read from its first message on"
    make_anew(topics, topic, 20, partitions=1)
    with pytest.raises(DataLossError, match=f"startingOffsets: topic {topic} was dropped and made anew"):
        read_from(start)
