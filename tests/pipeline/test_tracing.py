"""What happened to messages, found without Spark: in the broker, in the lake, and in what lies between."""

import time
from datetime import UTC, datetime, timedelta

import pytest

pytest.importorskip("deltalake", reason="needs the extra spark")

import lakemq
from fix_live import strict_broker  # noqa: F401 - a fixture
from lakemq.client.admin import AdminClient
from lakemq.pipeline import tracing
from lakemq.pipeline.lake import Lake
from lakemq.pipeline.options import Server
from lakemq.pipeline.tracing import Search, trace_messages
from pipeline.archive_by_hand import archive


@pytest.fixture
def orders(topics, tmp_path):
    """Twenty messages, ten of them archived with what billing did; the rest, and audit, are only at the broker."""
    topic = topics.make(partitions=1, is_archived=True)
    topics.fill(topic, 9)
    topics.mq.send(topic, b"9", key=f"special {topic}", uniq_id=f"{topic} order-9")
    settle(topics, topic, "billing", 10)
    archive(topics.url, tmp_path, topic)
    topics.fill(topic, 9, first=10)
    topics.mq.send(topic, b"19", key=f"special {topic}", uniq_id=f"{topic} order-19")
    settle(topics, topic, "audit", 20)
    return topic


def settle(topics, topic, group, count):
    with lakemq.connect(topics.url, app="shop") as mq, mq.consumer(topic, group=group, auto_ack=False) as consumer:
        done = 0
        while done < count:
            for message in consumer.receive(count - done):
                message.ack()
                done += 1


def steps(topics, lake, limit=None, **search):
    """What was found, with the events that the broker writes a moment later."""
    return trace_messages(Server(topics.url), str(lake), Search(**search), limit)


def kinds(trace, offset):
    return [(row["group"], row["kind"]) for row in trace.rows if row["offset"] == offset]


def wait_for_events(topics, lake, topic):
    """The broker tells of events after some milliseconds."""
    deadline_s = time.monotonic() + 30
    while ("shop.audit", "acked") not in kinds(steps(topics, lake, message_id=f"{topic}/0/19"), 19):
        assert time.monotonic() < deadline_s, "the events did not come"


ALL = [
    *((None, "sent"), (None, "stored")),
    *(("shop.billing", "delivered"), ("shop.billing", "acked")),
    *(("shop.audit", "delivered"), ("shop.audit", "acked")),
]


def test_a_message_is_found_by_its_place_wherever_it_is(topics, tmp_path, orders):
    wait_for_events(topics, tmp_path, orders)
    archived = steps(topics, tmp_path, message_id=f"{orders}/0/3")
    assert sorted(kinds(archived, 3), key=ALL.index) == ALL
    assert [row["offset"] for row in archived.rows] == [3] * 6
    live = steps(topics, tmp_path, message_id=f"{orders}/0/15")
    assert kinds(live, 15) == [(None, "sent"), (None, "stored"), ("shop.audit", "delivered"), ("shop.audit", "acked")]
    assert all(row["at"].tzinfo is not None for row in live.rows)


def test_a_message_is_found_by_its_own_id_or_its_key(topics, tmp_path, orders):
    wait_for_events(topics, tmp_path, orders)
    for offset, id in ((9, f"{orders} order-9"), (19, f"{orders} order-19")):
        found = steps(topics, tmp_path, message_id=id)
        assert ({row["offset"] for row in found.rows}, {row["messageId"] for row in found.rows}) == ({offset}, {id})
    both = steps(topics, tmp_path, key=f"special {orders}")
    assert (both.messages, both.is_more) == (2, False)
    one = steps(topics, tmp_path, key=f"special {orders}", limit=1)
    assert (one.messages, one.is_more) == (1, True)
    assert steps(topics, tmp_path, message_id="nobody's").rows == []
    archive(topics.url, tmp_path, orders)
    topics.mq.send(orders, b"20")
    assert steps(topics, tmp_path, message_id="nobody's").rows == [], "one that is alone at the broker is no place"
    assert steps(topics, tmp_path, message_id=f"{orders}/0/4711").rows == []
    assert steps(topics, tmp_path / "no lake", message_id=f"{orders} order-19").messages == 1
    before, after = (datetime.now(UTC) + timedelta(minutes=minutes) for minutes in (-5, 5))
    assert steps(topics, tmp_path, key=f"special {orders}", start=before, end=after).messages == 2
    for span in ({"start": after}, {"end": before}):
        assert steps(topics, tmp_path, key=f"special {orders}", **span).messages == 0


def test_a_send_that_was_refused_is_found_by_its_key_and_its_id(topics, tmp_path, orders):
    """At the broker, then in the lake; it has no place, and says why."""
    message = {"key": f"late {orders}", "uniq_id": f"{orders} late-1", "tags": ["red"], "headers": {"DELIVER_AT": "x"}}
    with pytest.raises(lakemq.LakeMQError):
        topics.mq.send(orders, b"x", **message)
    deadline_s = time.monotonic() + 30
    while not steps(topics, tmp_path, key=f"late {orders}").rows:
        assert time.monotonic() < deadline_s, "the event did not come"
    for is_archived in (False, True):
        if is_archived:
            archive(topics.url, tmp_path, orders)
        for search in ({"key": f"late {orders}"}, {"message_id": f"{orders} late-1"}):
            (row,) = steps(topics, tmp_path, **search).rows
            assert (row["kind"], row["offset"], row["key"], row["tags"]) == ("refused", None, f"late {orders}", ["red"])
            assert row["reason"].startswith("6:")


def test_only_what_may_hold_it_is_read(topics, tmp_path, monkeypatch):
    """Of many files those whose statistics allow the place, of the events those of the topic."""
    topic, other = (topics.make(partitions=2, is_archived=True) for _ in range(2))
    for round in range(4):
        for partition in (0, 1):
            topics.fill(topic, 10, first=10 * round, partition=partition)
            topics.fill(other, 10, partition=partition)
        archive(topics.url, tmp_path, topic, other)
    opened = []
    parquet = tracing.pq.ParquetFile
    monkeypatch.setattr(tracing.pq, "ParquetFile", lambda source: opened.append(source) or parquet(source))
    found = steps(topics, tmp_path, message_id=f"{topic}/1/25")
    assert (found.messages, found.rows[0]["messageId"]) == (1, f"{topic}/1/25")
    lake = Lake.open(tmp_path)
    assert len(lake.table("meta").at().files(topic=topic)) == 8
    assert len(opened) <= 2 + len(lake.table("events").at().files(topic=topic))


def test_an_app_is_told_which_topics_it_may_not_read(topics, tmp_path, orders, monkeypatch):
    cluster = tracing.cluster_of

    def partly(server):
        found = cluster(server)
        return {**found, "topics": [{**one, "is_readable": one["name"] == orders} for one in found["topics"]]}

    monkeypatch.setattr(tracing, "cluster_of", partly)
    found = steps(topics, tmp_path, message_id=f"{orders} order-19")
    assert found.messages == 1
    assert orders not in found.left_out
    assert len(found.left_out) >= 1


@pytest.mark.spark
def test_spark_tells_the_same(spark, topics, tmp_path, orders):
    from lakemq import spark as lm
    from lakemq.pipeline.transforms import timeline
    from lakemq.pipeline.transforms.trace import COLUMNS

    wait_for_events(topics, tmp_path, orders)
    views = lm.open_views(spark, str(tmp_path), servers=topics.url)
    for search in ({"message_id": f"{orders} order-9"}, {"message_id": f"{orders}/0/12"}, {"key": f"special {orders}"}):
        wanted = [tuple(row) for row in timeline(views.meta, views.events, **search).collect()]
        found = lm.trace(spark, str(tmp_path), servers=topics.url, **search)
        assert found.columns == list(COLUMNS)
        assert [tuple(row) for row in found.collect()] == wanted


def test_on_a_strict_broker_the_archives_app_traces_what_it_may_read_and_names_the_rest(strict_broker, tmp_path):  # noqa: F811
    """Before, one topic that it may not read was the end of it: error: topic copy, app lakemq-archive."""
    url = f"lakemq://127.0.0.1:{strict_broker.port}"
    admin = AdminClient(f"http://127.0.0.1:{strict_broker.admin_port}", strict_broker.admin_token)
    admin.create_app("shop")
    admin.ensure_topic("orders", partitions=1, is_archived=True)
    admin.ensure_topic("copy", partitions=1)
    tokens = {app: admin.create_token(app)["token"] for app in ("shop", "lakemq-archive")}
    admin.subscribe("orders", "shop", producer=True)
    with lakemq.connect(url, app="shop", token=tokens["shop"]) as mq:
        mq.send("orders", b"1", uniq_id="o-1")
    server = Server(url, "lakemq-archive", tokens["lakemq-archive"])
    for id in ("orders/0/0", "o-1"):
        found = trace_messages(server, str(tmp_path / "lake"), Search(id))
        assert (found.messages, found.left_out) == (1, ["copy"])
