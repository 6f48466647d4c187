"""Archived topics: the archive's subscription, its mark, and that retention waits for it."""

import pytest

from broker.fix_archive import ARCHIVE, archive_of, archived_broker, events_of, told
from broker.fix_broker import DOCUMENTED, JOYQUEUE, NEVER, TINY, TOKEN, BrokerLife, make_broker
from lakemq.broker.config import ArchiveConfig
from lakemq.broker.events import Tick
from lakemq.delivery.trace_record import EVENTS_TOPIC
from lakemq.errors import BadParameterError
from lakemq.storage.retention import RetentionPolicy
from lakemq.wire.metadata import FetchCluster

BAD_PARAMETER, ABOVE = 6, 92
both = pytest.mark.parametrize("dialect", [DOCUMENTED, JOYQUEUE], ids=lambda one: one.value)


def tiny(**details):
    """Retention takes all it may."""
    return archived_broker(storage=TINY, retention=RetentionPolicy(size_bytes=1), **details)


def fill(life, peer, rounds=12):
    for number in range(rounds):
        assert peer.produce(b"%4d" % number * 700)[0] == 0


def retain(life, times=4):
    for _ in range(times):
        life.pass_ms(life.config.retention_every_ms)
        life.pass_ms(1500)


def subscriptions(life, app=ARCHIVE):
    return sorted(one["topic"] for one in life.ask("list_subscriptions", app=app))


def first_index(life, topic="orders"):
    return life.engine.group.first_index(life.topic_number(topic), 0)


def archive_all(life):
    """The archive has everything, events too."""
    archive = archive_of(life)
    events_of(life)
    for topic in ("orders", EVENTS_TOPIC):
        assert archive.seek(-1, topic=topic) == 0
    life.pass_ms(25)


# --- what becoming archived takes --------------------------------------------------------------------------------


def test_an_archived_topic_has_its_archive_and_the_topic_of_events():
    life = make_broker(partitions=1)
    life.ask("set_topic", name="orders", is_archived=True)
    assert subscriptions(life) == [EVENTS_TOPIC, "orders"]
    events = life.ask("show_topic", name=EVENTS_TOPIC)
    assert (events["partitions"], events["is_archived"]) == (1, True)


def test_all_of_it_is_one_record():
    life = make_broker(partitions=1)
    before = life.journal.end_position
    life.ask("set_topic", name="orders", is_archived=True)
    records = list(life.engine.group.records(before, life.journal.end_position))
    assert len(records) == 1
    life.kill()
    assert subscriptions(life) == [EVENTS_TOPIC, "orders"]


def test_a_topic_may_be_made_archived():
    life = make_broker(topics=())
    life.ask("create_topic", name="orders", is_archived=True)
    assert subscriptions(life) == [EVENTS_TOPIC, "orders"]


def test_in_strict_mode_the_archive_needs_a_token():
    life = make_broker(partitions=1)
    life.ask("set_topic", name="orders", is_archived=True)
    assert life.peer(ARCHIVE, introduces=False).introduce(token="anything at all").status != 0
    life.ask("add_token", name=ARCHIVE, token_id="1", token=TOKEN)
    archive_of(life)


def test_in_dev_mode_it_is_open():
    life = BrokerLife(creates_missing=True)
    life.peer().produce(b"x")
    life.ask("set_topic", name="orders", is_archived=True)
    assert life.peer(ARCHIVE, token="any").read(index=0) == [b"x"]


def test_the_archive_begins_at_the_oldest_message():
    life = make_broker(partitions=1)
    life.peer().produce(b"before")
    life.ask("set_topic", name="orders", is_archived=True)
    life.ask("add_token", name=ARCHIVE, token_id="1", token=TOKEN)
    assert archive_of(life).read(index=-1) == [b"before"]


def test_an_archived_topic_of_an_earlier_version_gets_what_it_lacks():
    life = make_broker(partitions=1)
    topic = life.broker.ledger.metadata.topics["orders"]
    change = {"op": "put_topic", "topic": {**{n: getattr(topic, n) for n in topic.__slots__}, "is_archived": True}}
    life.broker.ledger.change(change, life.engine.now().wall_ms)
    life.settle()
    life.restart()
    assert subscriptions(life) == [EVENTS_TOPIC, "orders"]


def test_the_archive_may_have_another_name():
    life = make_broker(archive=ArchiveConfig(app="copier.lake"))
    life.ask("set_topic", name="orders", is_archived=True)
    assert subscriptions(life, "copier.lake") == [EVENTS_TOPIC, "orders"]


@pytest.mark.parametrize(
    ("action", "arguments"),
    [
        ("unsubscribe", {"topic": "orders", "app": ARCHIVE}),
        ("drop_app", {"name": ARCHIVE}),
        ("drop_topic", {"name": EVENTS_TOPIC}),
        ("create_topic", {"name": EVENTS_TOPIC}),
    ],
)
def test_what_archiving_needs_cannot_be_taken_away(action, arguments):
    life = archived_broker()
    with pytest.raises(BadParameterError):
        life.ask(action, **arguments)


def test_no_client_makes_the_topic_of_events():
    life = BrokerLife(creates_missing=True)
    assert life.peer().read(topic=EVENTS_TOPIC) == 189
    assert EVENTS_TOPIC not in life.broker.ledger.metadata.topics


# --- the mark ----------------------------------------------------------------------------------------------------


def test_nothing_is_lent_to_the_archive():
    life = archived_broker()
    life.peer().produce(b"x")
    archive = archive_of(life).consumes()
    assert archive.fetch() == BAD_PARAMETER
    assert archive.ack([0]) == BAD_PARAMETER
    assert archive.read(index=0) == [b"x"]


def test_the_mark_moves_forwards_only():
    life = archived_broker()
    life.peer().produce(b"a", b"b", b"c")
    archive = archive_of(life)
    assert archive.seek(2) == 0
    for index in (1, 0, -2):
        assert archive.seek(index) == 0
        assert life.ack_index(app=ARCHIVE) == 2
    assert archive.seek(4) == ABOVE
    assert archive.seek(-1) == 0
    assert life.ack_index(app=ARCHIVE) == 3


def test_another_app_may_still_go_back():
    life = archived_broker()
    peer = life.peer()
    peer.produce(b"a", b"b")
    assert peer.seek(2) == 0
    assert peer.seek(0) == 0
    assert life.ack_index() == 0


# --- retention ---------------------------------------------------------------------------------------------------


def test_retention_waits_for_the_archive():
    life = tiny()
    fill(life, life.peer())
    retain(life)
    assert first_index(life) == 0
    archive_all(life)
    retain(life)
    assert first_index(life) > 0


def test_it_waits_for_the_events_too():
    life = tiny()
    fill(life, life.peer(), 1)
    assert len(events_of(life)) == 1
    fill(life, life.peer())
    archive = archive_of(life)
    assert archive.seek(-1) == 0
    events_of(life)
    retain(life)
    assert first_index(life, EVENTS_TOPIC) == 0
    archive_all(life)
    retain(life)
    assert first_index(life, EVENTS_TOPIC) > 0


def test_it_keeps_what_lies_behind_the_mark():
    life = tiny()
    fill(life, life.peer())
    archive_all(life)
    fill(life, life.peer(), 6)
    end = life.appended("orders")
    retain(life)
    archive = archive_of(life)
    assert len(archive.read(index=12)) == end - 12
    assert first_index(life) <= 12


def test_a_mark_that_a_power_loss_may_take_back_does_not_count():
    life = tiny(lazy_sync_ms=NEVER)
    fill(life, life.peer())
    life.ask("set_topic", name="orders", is_writable=True)  # which is synced
    archive = archive_of(life)
    assert archive.seek(-1) == 0
    assert life.ack_index(app=ARCHIVE) == 12
    life.clock.pass_ms(life.config.retention_every_ms)
    life.engine.handle(Tick())
    assert first_index(life) == 0
    life.lose_power()
    assert life.ack_index(app=ARCHIVE) == 0
    assert first_index(life) == 0


def test_a_topic_that_is_archived_no_more_is_free():
    life = tiny()
    fill(life, life.peer())
    retain(life)
    assert first_index(life) == 0
    life.ask("set_topic", name="orders", is_archived=False)
    assert subscriptions(life) == [EVENTS_TOPIC]
    retain(life)
    assert first_index(life) > 0


def test_a_restart_waits_as_well():
    life = tiny()
    fill(life, life.peer())
    life.kill()
    retain(life)
    assert first_index(life) == 0


def test_further_behind_than_allowed_it_is_not_waited_for():
    life = tiny(archive=ArchiveConfig(lag_bytes_max=20 << 10))
    fill(life, life.peer(), 30)
    retain(life)
    kept = life.journal.end_position - life.journal.first_position
    assert first_index(life) > 0
    assert kept >= 20 << 10, "so much is kept for it all the same"
    assert life.capped["archive_lag"] > 0
    warnings = [text for level, text in life.engine.notes if level == "warning" and "archive" in text]
    assert 1 <= len(warnings) <= 5, "once a minute at most"


def test_the_warning_comes_once_a_minute_at_most():
    life = tiny(archive=ArchiveConfig(lag_bytes_max=1000), retention_every_ms=1000)
    fill(life, life.peer())
    for _ in range(50):
        life.pass_ms(1000)
    assert len([text for level, text in life.engine.notes if level == "warning"]) == 1


def test_the_lag_is_told_by_topic():
    life = archived_broker()
    life.peer().produce(b"a", b"b", b"c")
    events_of(life)
    archive_of(life).seek(1)
    assert life.broker.archiving.lags() == {"orders": 2, EVENTS_TOPIC: 1}


# --- policies that say is_archive ------------------------------------------------------------------------------------


def test_a_producer_policy_that_says_so_has_its_topic_archived():
    life = make_broker()
    life.ask("subscribe", topic="orders", app="shop", producer={"is_archive": True})
    assert life.ask("show_topic", name="orders")["is_archived"] is True
    peer = life.peer()
    peer.produce(b"kept for the archive")
    assert [(topic.name, mark) for topic, _, mark in life.broker.archiving.marks() if topic.name == "orders"]
    assert life.broker.archiving.lags()["orders"] == 1
    with pytest.raises(BadParameterError, match="app 'shop' sends to it with is_archive"):
        life.ask("set_topic", name="orders", is_archived=False)
    life.ask("subscribe", topic="orders", app="shop", producer={"is_archive": False})
    assert life.ask("show_topic", name="orders")["is_archived"] is True, "an operator ends it"
    life.ask("set_topic", name="orders", is_archived=False)
    life.kill()
    assert life.ask("show_topic", name="orders")["is_archived"] is False


def test_a_consumer_policy_that_says_so_has_what_its_group_does_told_and_nothing_else():
    life = make_broker(partitions=1)
    life.ask("subscribe", topic="orders", app="shop", consumer={"is_archive": True})
    life.ask("subscribe", topic="orders", app="shop.other", consumer={}, start="earliest")
    assert life.ask("show_topic", name="orders")["is_archived"] is False
    peer, other = life.peer().consumes(), life.peer().consumes(app="shop.other")
    peer.produce(b"x")
    assert (peer.fetch(), other.fetch(app="shop.other")) == ([b"x"], [b"x"])
    assert (peer.ack([0]), other.ack([0], app="shop.other")) == (0, 0)
    assert told(events_of(life)) == [("delivered", "shop", 1, [0]), ("acked", "shop", 1, [0])]
    assert list(life.broker.archiving.lags()) == [EVENTS_TOPIC], "the events are what is archived"
    with pytest.raises(BadParameterError, match="or any group told of"):
        life.ask("drop_topic", name=EVENTS_TOPIC)
    life.ask("subscribe", topic="orders", app="shop", consumer={"is_archive": False})
    before = len(events_of(life))
    peer.produce(b"y")
    assert peer.fetch() == [b"y"]
    assert len(events_of(life)) == before


@both
def test_clients_are_told_whether_they_are_archived(dialect):
    life = make_broker(topics=("orders", "bills"))
    life.ask("set_topic", name="orders", is_archived=True)
    life.ask("subscribe", topic="bills", app="shop", consumer={"is_archive": True})
    orders, bills = life.peer(dialect=dialect).ask(FetchCluster(("orders", "bills"), "shop")).body.topics
    found = [(one.producer_policy.is_archive, one.consumer_policy.is_archive) for one in (orders, bills)]
    assert found == [(True, True), (False, True)]
