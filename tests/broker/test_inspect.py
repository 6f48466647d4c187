"""INSPECT: topics, and what has become of the messages of one, in pages; everybody sees what is theirs."""

import asyncio
import json

import pytest

from broker.fix_archive import ARCHIVE, archive_of, archived_broker
from broker.fix_broker import TOKEN, BrokerLife, make_broker
from lakemq.broker.config import ArchiveConfig
from lakemq.testing.broker import TestBroker
from lakemq.wire.own import Inspect

BAD_PARAMETER, NO_CONSUMER, NO_TOPIC = 6, 136, 189


def page(peer, what, topic="", after="", count=0, app=None):
    answer = peer.ask(Inspect(what, topic, app or peer.app, after, count))
    return (json.loads(answer.body.body), answer.body.next) if answer.body is not None else answer.status


def whole(peer, what, topic="", count=0):
    """All pages."""
    pages, after = [], ""
    while True:
        found, after = page(peer, what, topic, after, count)
        pages.append(found)
        if not after:
            return pages


def app_of(peer, app="shop", topic="orders"):
    (found,) = whole(peer, "deliveries", topic)
    return next(one for one in found["apps"] if one["app"] == app)


# --- cluster -----------------------------------------------------------------------------------------------------


def test_topics_are_told_with_all_that_can_be_said_of_them():
    life = BrokerLife(creates_missing=True, cluster_id="abc")
    life.ask("create_topic", name="orders", partitions=3, type="ordered")
    (found,) = whole(life.peer(), "cluster")
    number = life.topic_number("orders")
    topic = {"name": "orders", "number": number, "type": "ordered", "partitions": 3, "is_archived": False}
    topic["is_readable"] = True
    assert found == {"cluster": "abc", "archive_app": "lakemq-archive", "topics": [topic]}


def test_the_id_of_the_data_is_given_once():
    life = BrokerLife(cluster_id="first")
    life.config = life.engine.config.__class__(cluster_id="second")
    life.restart()
    assert life.broker.ledger.metadata.cluster == "first"


def test_without_an_id_there_is_none():
    assert BrokerLife().broker.ledger.metadata.cluster == ""


def test_whose_progress_the_archive_mark_is_is_told():
    assert whole(BrokerLife(creates_missing=True).peer(), "cluster")[0]["archive_app"] == "lakemq-archive"
    life = BrokerLife(creates_missing=True, archive=ArchiveConfig(app="copier"))
    assert whole(life.peer(), "cluster")[0]["archive_app"] == "copier"


def test_topics_come_in_pages_each_once():
    life = BrokerLife(creates_missing=True)
    names = [f"t{number:02}" for number in range(25)]
    for name in names:
        life.ask("create_topic", name=name)
    pages = whole(life.peer(), "cluster", count=10)
    assert [len(one["topics"]) for one in pages] == [10, 10, 5]
    assert [topic["name"] for one in pages for topic in one["topics"]] == names


def test_the_groups_of_a_topic_are_told_by_name_in_pages_and_asking_makes_none():
    life = BrokerLife(creates_missing=True)
    life.ask("create_topic", name="orders")
    life.ask("create_app", name="desk")
    names = [f"desk.g{number}" for number in range(5)]
    for name in names:
        life.ask("subscribe", topic="orders", app=name, consumer={})
    pages = whole(life.peer(), "groups", "orders", count=2)
    assert [one["groups"] for one in pages] == [names[:2], names[2:4], names[4:]]
    assert page(life.peer(), "groups", "nowhere") == NO_TOPIC


# --- deliveries --------------------------------------------------------------------------------------------------


def test_where_an_app_stands():
    life = make_broker(partitions=2)
    life.ask("subscribe", topic="orders", app="shop", consumer={"is_concurrent": True, "concurrent_prefetch_size": 9})
    peer = life.peer().consumes()
    peer.produce(*[b"x"] * 9)
    for _ in range(3):
        peer.fetch(count=2)
    peer.ack([0, 1])
    peer.ack([4, 5])
    assert app_of(peer)["partitions"] == [
        {"partition": 0, "first_index": 0, "visible_index": 9, "ack_index": 2, "done": [[4, 6]], "lent": [[2, 4]]},
        {"partition": 1, "first_index": 0, "visible_index": 0, "ack_index": 0, "done": [], "lent": []},
    ]


def test_what_failed_and_what_is_dead():
    life = make_broker(partitions=1)
    life.ask("subscribe", topic="orders", app="shop", consumer={"retry_first_ms": 5000})
    peer = life.peer().consumes()
    peer.produce(b"a", b"b")
    peer.fetch()
    peer.ack([0, 1], kind=2)
    life.ask("give_up_retries", topic="orders", app="shop", by="me", ids=[2], execute=True)
    found = app_of(peer)
    now_ms = life.engine.now().wall_ms
    assert found["retries"] == [{"partition": 0, "index": 0, "attempts": 1, "due_ms": now_ms + 5000}]
    (dead,) = found["dead"]
    reason = dead.pop("reason")
    assert reason.startswith("given up by me")
    assert dead == {"id": 1, "partition": 0, "index": 1, "cause": "asked", "attempts": 1, "died_ms": now_ms}


def test_pages_of_any_size_have_the_same_rows():
    life = make_broker(partitions=2)
    life.ask("subscribe", topic="orders", app="shop", consumer={"is_concurrent": True, "concurrent_prefetch_size": 9})
    life.ask("subscribe", topic="orders", app="shop.other", consumer={}, start="earliest")
    peer = life.peer().consumes()
    peer.produce(*[b"x"] * 20)
    for _ in range(6):
        peer.fetch(count=2)
    for index in (3, 5, 9):
        peer.ack([index])
    peer.ack([7, 8], kind=2)
    (expected,) = whole(peer, "deliveries", "orders")
    for count in (1, 2, 3, 7):
        rows = {"done": [], "lent": [], "retries": []}
        for one in whole(peer, "deliveries", "orders", count):
            for app in one["apps"]:
                for partition in app["partitions"]:
                    rows["done"] += partition["done"]
                    rows["lent"] += partition["lent"]
                rows["retries"] += app["retries"]
        shop = expected["apps"][0]
        assert rows["done"] == shop["partitions"][0]["done"]
        assert rows["lent"] == shop["partitions"][0]["lent"]
        assert rows["retries"] == shop["retries"]


def test_an_app_that_leaves_between_two_pages_is_left_out():
    life = make_broker(partitions=1)
    for app in ("shop.a", "shop.b"):
        life.ask("subscribe", topic="orders", app=app, consumer={})
    peer = life.peer()
    _, after = page(peer, "deliveries", "orders", count=2)
    assert after.startswith("shop.a:")
    life.ask("unsubscribe", topic="orders", app="shop.a")
    found, after = page(peer, "deliveries", "orders", after)
    assert ([one["app"] for one in found["apps"]], after) == (["shop.b"], "")


def test_the_archive_is_no_consumer():
    life = archived_broker()
    (found,) = whole(archive_of(life), "deliveries", "orders")
    assert [one["app"] for one in found["apps"]] == ["shop"]


# --- who may see what --------------------------------------------------------------------------------------------


def strict():
    life = archived_broker(topics=("orders", "secret"), admin_app="root")
    for app in ("root", "other"):
        life.ask("create_app", name=app)
        life.ask("add_token", name=app, token_id="1", token=TOKEN)
    life.ask("subscribe", topic="orders", app="other.g", consumer={})
    return life


def test_an_app_sees_its_own_topics_and_groups():
    life = strict()
    (found,) = whole(life.peer("other"), "cluster")
    assert [topic["name"] for topic in found["topics"]] == ["orders"]
    (found,) = whole(life.peer("other"), "deliveries", "orders")
    assert [one["app"] for one in found["apps"]] == ["other.g"]
    assert page(life.peer("other"), "deliveries", "secret") == NO_CONSUMER


@pytest.mark.parametrize("app", [ARCHIVE, "root"])
def test_the_archive_and_the_admin_see_all(app):
    life = strict()
    (found,) = whole(life.peer(app), "cluster")
    assert [topic["name"] for topic in found["topics"]] == ["__events", "orders", "secret"]
    (found,) = whole(life.peer(app), "deliveries", "orders")
    assert [one["app"] for one in found["apps"]] == ["other.g", "shop"]


def test_in_dev_mode_all_see_all():
    life = BrokerLife(creates_missing=True)
    life.peer("one").consumes("orders")
    (found,) = whole(life.peer("two"), "deliveries", "orders")
    assert [one["app"] for one in found["apps"]] == ["one"]


# --- what is refused ---------------------------------------------------------------------------------------------


def test_what_cannot_be_inspected_is_refused_with_what_can():
    answer = make_broker().peer().ask(Inspect("weather", "", "shop"))
    assert answer.status == BAD_PARAMETER
    assert "cluster" in answer.error
    assert "deliveries" in answer.error


def test_a_topic_that_is_not_there_is_refused_and_not_made():
    life = BrokerLife(creates_missing=True)
    assert page(life.peer(), "deliveries", "nowhere") == NO_TOPIC
    assert "nowhere" not in life.broker.ledger.metadata.topics


@pytest.mark.parametrize("after", ["x", "shop:1", "shop:1:2:x", "shop:1:2:3:4"])
def test_a_place_that_no_page_ended_at_is_refused(after):
    assert page(make_broker().peer(), "deliveries", "orders", after) == BAD_PARAMETER


def test_nobody_asks_for_another_app():
    assert page(strict().peer("other"), "cluster", app="shop") != 0


# --- the clients -------------------------------------------------------------------------------------------------


def test_the_client_puts_the_pages_together():
    with TestBroker() as broker, broker.connect(app="shop") as mq:
        for number in range(30):
            mq.send("orders", b"%d" % number, partition=0)
        with mq.consumer("orders", count=5, auto_ack=False) as consumer:
            next(iter(consumer))
            pieces = mq.inspect("deliveries", "orders", count=1)
            assert pieces == mq.inspect("deliveries", "orders")
        (app,) = pieces["apps"]
        assert app["partitions"][0] == {
            "partition": 0,
            "first_index": 0,
            "visible_index": 30,
            "ack_index": 0,
            "done": [],
            "lent": [[0, 5]],
        }
        assert [one["partition"] for one in app["partitions"]] == [0, 1, 2, 3]
        assert mq.inspect("cluster")["cluster"] == "test-0"


def test_the_asyncio_client_does_the_same():
    async def ask(broker):
        async with broker.aio_connect(app="shop") as mq:
            await mq.send("orders", b"x")
            return await mq.inspect("cluster"), await mq.inspect("deliveries", "orders", count=1)

    with TestBroker() as broker:
        cluster, deliveries = asyncio.run(ask(broker))
    assert [one["name"] for one in cluster["topics"]] == ["orders"]
    assert deliveries == {"topic": "orders", "apps": []}
