"""One SQL over live, archive and delivery state: nothing twice, nothing missing at the seam."""

import json

import pytest

pytest.importorskip("pyspark", reason="needs the extra spark")

from lakemq import spark as lm
from lakemq.pipeline.archiving import ARCHIVE_APP, Archive, ArchiveSettings
from lakemq.pipeline.options import Server


@pytest.fixture(scope="module")
def orders(spark, topics, tmp_path_factory):
    """A topic: 600 messages archived, 200 only live; of the first 100 ten failed and one is dead."""
    lake = str(tmp_path_factory.mktemp("lake"))
    topic = topics.make(partitions=2, is_archived=True)
    consumer = {"retry_first_ms": 3_600_000, "retry_times": 2}
    topics.mq.admin.subscribe(topic, "shop.billing", consumer=consumer, start="earliest")
    topics.fill(topic, 600, body=lambda n: json.dumps({"id": n}).encode())
    count = 0
    with topics.mq.consumer(topic, group="billing", auto_ack=False) as consumer:
        while count < 100:
            for message in consumer.receive(100 - count, timeout="5s"):
                count += 1
                if count == 50:
                    message.dead_letter("hopeless")
                elif count % 10 == 0:
                    message.retry(reason="not yet")
                else:
                    message.ack()
    Archive(spark, ArchiveSettings(Server(topics.url, ARCHIVE_APP), lake)).run()
    topics.fill(topic, 200, first=600, body=lambda n: json.dumps({"id": n}).encode())
    lm.register_views(spark, lake, servers=topics.url)
    return topic, lake


def ask(spark, text):
    return [tuple(row) for row in spark.sql(text).collect()]


def test_live_and_archived_messages_are_one_without_a_seam(spark, orders):
    topic, _ = orders
    assert ask(spark, f"select _source, count(*) from lake.{topic} group by 1 order by 1") == [
        ("archive", 600),
        ("live", 200),
    ]
    ids = "from_json(string(value), 'id int').id"
    assert ask(spark, f"select count(*), count(distinct {ids}), min({ids}), max({ids}) from lake.{topic}") == [
        (800, 800, 0, 799)
    ]


def test_more_that_is_archived_meanwhile_is_not_there_twice(spark, topics, orders):
    topic, lake = orders
    Archive(spark, ArchiveSettings(Server(topics.url, ARCHIVE_APP), lake)).run()
    assert ask(spark, f"select count(*), count(distinct messageId) from lake.{topic}") == [(800, 800)]
    lm.register_views(spark, lake, servers=topics.url)
    assert ask(spark, f"select count(*), count(distinct messageId) from lake.{topic}") == [(800, 800)]


def test_each_message_has_its_state_for_each_group(spark, orders):
    topic, _ = orders
    states = ask(
        spark,
        f"select state, count(*) from lake.deliveries where topic = '{topic}' and `group` = 'shop.billing' "
        "group by 1 order by 1",
    )
    assert states == [("acked", 90), ("dead", 1), ("pending", 700), ("retrying", 9)]


def test_state_and_content_join(spark, orders):
    topic, _ = orders
    found = ask(
        spark,
        f"select d.reason, count(*) from lake.{topic} o join lake.deliveries d using (messageId) "
        "where d.state = 'dead' group by 1",
    )
    assert found == [("hopeless", 1)]


def test_lag_is_what_a_group_has_not_been_given(spark, orders):
    topic, _ = orders
    (total,) = ask(spark, f"select sum(lag) from lake.lag where topic = '{topic}' and `group` = 'shop.billing'")
    assert total == (700,)


def test_the_lag_of_a_report_ends_with_that_of_the_group(spark, topics, orders):
    """Counted from the events alone it is 709: nine messages that are to be tried again are no lag any more."""
    from lakemq.pipeline.transforms import lag_history

    topic, lake = orders
    views = lm.open_views(spark, lake, servers=topics.url)
    rows = lag_history(views.events, "1 minute", views.lag).where(f"topic = '{topic}'").orderBy("at").collect()
    last = [row["lag"] for row in rows if row["group"] == "shop.billing"][-1]
    assert last == sum(topics.lag(topic, "billing", app="shop")) == 700


def test_events_tell_what_happened(spark, orders):
    topic, _ = orders
    counts = dict(ask(spark, f"select kind, sum(count) from lake.events where topic = '{topic}' group by 1"))
    assert counts["produced"] == 800
    assert counts["acked"] == 90
    assert counts["failed"] == 10
    assert counts["dead"] == 1


def test_a_trace_goes_from_the_producer_to_the_dead_letter(spark, topics, orders):
    topic, lake = orders
    ((id,),) = ask(spark, f"select messageId from lake.deliveries where topic = '{topic}' and state = 'dead'")
    rows = lm.trace(spark, lake, message_id=id, servers=topics.url).collect()
    assert [row["kind"] for row in rows] == ["sent", "stored", "delivered", "failed", "dead"]
    assert all(row["sinceSentMs"] >= 0 for row in rows)


def test_a_replay_sends_what_a_condition_chooses_once(spark, topics, orders):
    topic, _ = orders
    target = topics.make()
    chosen = spark.sql(f"select * from lake.{topic} where from_json(string(value), 'id int').id % 100 = 7")
    dry = lm.replay(chosen, to=target, servers=topics.url)
    assert (dry.messages, dry.sent, len(dry.samples)) == (8, 0, 5)
    for sent, skipped in ((8, 0), (0, 8)):
        done = lm.replay(chosen, to=target, servers=topics.url, dry_run=False, id=f"again {target}")
        assert (done.sent, done.skipped) == (sent, skipped)
    rows = topics.read(spark, subscribe=target).collect()
    assert sorted(json.loads(row["value"])["id"] for row in rows) == list(range(7, 800, 100))
    assert all(row["headers"]["replayTopic"] == topic for row in rows)


def test_a_body_that_is_not_json_is_null_and_the_rest_is_read(spark, topics, orders):
    _, lake = orders
    topic = topics.make(partitions=1)
    topics.mq.send(topic, b"not json")
    topics.mq.send(topic, b'{"id": 3}')
    lm.register_views(spark, lake, servers=topics.url)
    rows = ask(spark, f"select from_json(string(value), 'id int').id from lake.{topic} order by offset")
    assert rows == [(None,), (3,)]
