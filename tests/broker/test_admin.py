"""What operators ask for: each action, that an answer means durable, caps, and that what fails leaves nothing."""

import json

import pytest

from broker.fix_broker import EIO, FULL, TOKEN, BrokerLife, make_broker
from lakemq.broker.admin import ACTIONS
from lakemq.broker.delivery_admin import DELIVERY_ACTIONS
from lakemq.broker.events import AdminAsked
from lakemq.errors import (
    BadParameterError,
    ConsumerNotFoundError,
    DiskIOError,
    NameTakenError,
    TopicNotFoundError,
    UnknownNameError,
    WriteError,
)
from lakemq.message import AckType, Qos

ENDS = ["restart", "kill", "lose_power"]


def begin(life, action, **arguments):
    """Ask, and no more: the list that the answer will be in."""
    answers = []
    life.engine.handle(AdminAsked(action, arguments, lambda result, error: answers.append((result, error))))
    return answers


# --- topics ----------------------------------------------------------------------------------------------------------


def test_a_topic_is_made_shown_and_dropped():
    life = BrokerLife(partitions_default=3)
    assert life.ask("create_topic", name="orders")["partitions"] == 3
    made = life.ask("create_topic", name="north.steps", partitions=5, type="ordered", is_readable=False)
    assert made == {
        "name": "north.steps",
        "type": "ordered",
        "partitions": 5,
        "write_partitions": 5,
        "read_partitions": 5,
        "is_writable": True,
        "is_readable": False,
        "is_archived": False,
    }
    assert [one["name"] for one in life.ask("list_topics")] == ["orders", "north.steps"]
    assert life.ask("drop_topic", name="orders") == {"dropped": "orders"}
    assert [one["name"] for one in life.ask("list_topics")] == ["north.steps"]


def test_a_topic_is_shown_with_how_far_it_goes_and_who_uses_it():
    life = make_broker(partitions=2)
    life.peer().produce(b"x", b"y", partition=1)
    shown = life.ask("show_topic", name="orders")
    assert [(one["partition"], one["first_offset"], one["end_offset"]) for one in shown["partition_offsets"]] == [
        (0, 0, 0),
        (1, 0, 2),
    ]
    assert [one["app"] for one in shown["subscriptions"]] == ["shop"]


def test_a_topic_may_grow_and_keeps_what_it_has():
    life = make_broker(partitions=2)
    life.peer().produce(b"x")
    assert life.ask("set_topic", name="orders", partitions=4)["partitions"] == 4
    assert life.peer().produce(b"y", partition=3)[0] == 0
    assert (life.stored(), life.stored(partition=3)) == ([b"x"], [b"y"])
    with pytest.raises(BadParameterError, match="only grow"):
        life.ask("set_topic", name="orders", partitions=3)


def test_a_topic_that_is_made_again_under_its_name_is_another():
    life = make_broker(partitions=1)
    life.peer().produce(b"old")
    life.ask("drop_topic", name="orders")
    life.ask("create_topic", name="orders", partitions=1)
    life.ask("subscribe", topic="orders", app="shop", producer={}, consumer={}, start="earliest")
    peer = life.peer().consumes()
    assert (life.stored(), peer.fetch()) == ([], [])
    assert peer.produce(b"new")[1][0].index == 0
    for _ in range(2):
        assert life.stored() == [b"new"]
        life.kill()


def test_nothing_that_is_dropped_is_left_in_the_metrics():
    life = make_broker()
    peer = life.peer().consumes()
    peer.produce(b"x")
    peer.fetch()
    peer.ack([0])
    metrics = life.broker.metrics
    assert metrics.messages_in
    life.ask("drop_topic", name="orders")
    counters = metrics.messages_in, metrics.bytes_in, metrics.messages_out, metrics.bytes_out, metrics.settled
    assert not any(counters)


# --- apps and tokens -------------------------------------------------------------------------------------------------


def test_an_app_is_made_shown_and_dropped_with_all_it_may_do():
    life = make_broker()
    life.ask("subscribe", topic="orders", app="shop.b", consumer={})
    shown = life.ask("show_app", name="shop")
    assert (shown["name"], shown["is_open"], shown["tokens"]) == ("shop", False, [{"id": "first", "expires_ms": 0}])
    assert [one["app"] for one in shown["subscriptions"]] == ["shop", "shop.b"]
    life.ask("create_app", name="bank")
    assert [one["name"] for one in life.ask("list_apps")] == ["shop", "bank"]
    life.ask("drop_app", name="shop")
    assert life.ask("list_subscriptions") == []
    assert life.peer(introduces=False).introduce().status == 2


def test_no_answer_and_no_record_has_a_token_in_it():
    life = make_broker()
    secret = "very secret indeed"
    answer = life.ask("add_token", name="shop", token_id="2", token=secret)
    shown = [life.ask("show_app", name="shop"), life.ask("list_apps"), life.ask("show_broker"), answer]
    assert secret not in json.dumps(shown)
    assert TOKEN not in json.dumps(shown)
    journal = life.disk.open("journal/00000000000000000000.journal")
    assert secret.encode() not in journal.read_at(0, journal.size())


@pytest.mark.parametrize(
    ("action", "arguments", "error"),
    [
        ("create_topic", {"name": "orders"}, NameTakenError),
        ("create_topic", {"name": "a b"}, BadParameterError),
        ("create_topic", {"name": ""}, BadParameterError),
        ("create_topic", {"name": "a.b.c"}, BadParameterError),
        ("create_topic", {"name": 5}, BadParameterError),
        ("create_topic", {"name": "../etc"}, BadParameterError),
        ("create_topic", {"name": "bills", "partitions": 0}, BadParameterError),
        ("create_topic", {"name": "bills", "partitions": 32767}, BadParameterError),
        ("create_topic", {"name": "bills", "partitions": True}, BadParameterError),
        ("create_topic", {"name": "bills", "partitions": "4"}, BadParameterError),
        ("create_topic", {"name": "bills", "type": "odd"}, BadParameterError),
        ("create_topic", {"name": "bills", "is_readable": 1}, BadParameterError),
        ("create_topic", {"name": "bills", "nonsense": True}, BadParameterError),
        ("create_topic", {}, BadParameterError),
        ("set_topic", {"name": "none", "is_readable": True}, TopicNotFoundError),
        ("set_topic", {"name": "orders", "type": "ordered"}, BadParameterError),
        ("set_topic", {"name": "orders", "is_writable": False, "partitions": 0}, BadParameterError),
        ("drop_topic", {"name": "none"}, TopicNotFoundError),
        ("show_topic", {"name": "none"}, TopicNotFoundError),
        ("create_app", {"name": "shop"}, NameTakenError),
        ("create_app", {"name": "shop.b"}, BadParameterError),
        ("create_app", {"name": "ä"}, BadParameterError),
        ("show_app", {"name": "none"}, UnknownNameError),
        ("drop_app", {"name": "none"}, UnknownNameError),
        ("set_app", {"name": "none", "fetch_per_second": 1}, UnknownNameError),
        ("add_token", {"name": "shop", "token_id": "2", "token": "short"}, BadParameterError),
        ("add_token", {"name": "shop", "token_id": "2", "token": 12345678}, BadParameterError),
        ("add_token", {"name": "shop", "token_id": "first", "token": "long enough"}, NameTakenError),
        ("add_token", {"name": "shop", "token_id": "2", "token": "long enough", "expires_ms": 1}, BadParameterError),
        ("add_token", {"name": "none", "token_id": "2", "token": "long enough"}, UnknownNameError),
        ("drop_token", {"name": "shop", "token_id": "none"}, UnknownNameError),
        ("subscribe", {"topic": "none", "app": "shop", "consumer": {}}, TopicNotFoundError),
        ("subscribe", {"topic": "orders", "app": "none", "consumer": {}}, UnknownNameError),
        ("subscribe", {"topic": "orders", "app": "shop.b"}, BadParameterError),
        ("subscribe", {"topic": "orders", "app": "shop.b.c", "consumer": {}}, BadParameterError),
        ("subscribe", {"topic": "orders", "app": "shop.b", "consumer": {}, "start": "middle"}, BadParameterError),
        ("unsubscribe", {"topic": "orders", "app": "shop.b"}, UnknownNameError),
        ("unsubscribe", {"topic": "orders", "app": "shop", "role": "boss"}, BadParameterError),
        ("lag", {"topic": "none", "app": "shop"}, TopicNotFoundError),
        ("lag", {"topic": "orders", "app": "none"}, ConsumerNotFoundError),
        ("seek", {"topic": "orders", "app": "shop", "to": "middle", "execute": True}, BadParameterError),
        ("seek", {"topic": "orders", "app": "shop", "to": "time", "execute": True}, BadParameterError),
        ("seek", {"topic": "orders", "app": "shop", "to": True, "execute": True}, BadParameterError),
        ("seek", {"topic": "orders", "app": "shop", "to": 1.5, "execute": True}, BadParameterError),
        ("seek", {"topic": "orders", "app": "shop", "to": 0, "partition": 9, "execute": True}, BadParameterError),
        ("set_broker", {"readable": "no"}, BadParameterError),
        ("set_broker", {"nonsense": True}, BadParameterError),
        ("nonsense", {}, BadParameterError),
        ("_topic", {}, BadParameterError),
        ("ask", {}, BadParameterError),
    ],
    ids=lambda one: one if isinstance(one, str) else str(one) if isinstance(one, dict) else one.__name__,
)
def test_what_cannot_be_is_refused_and_changes_nothing(action, arguments, error):
    life = make_broker()
    before = life.facts()
    with pytest.raises(error):
        life.ask(action, **arguments)
    assert life.facts() == before
    assert life.broker.metrics.bugs == 0


def test_tokens_of_one_app_are_capped():
    life = make_broker()
    for number in range(15):
        life.ask("add_token", name="shop", token_id=str(number), token="long enough")
    with pytest.raises(BadParameterError, match="16 are allowed"):
        life.ask("add_token", name="shop", token_id="more", token="long enough")
    life.ask("drop_token", name="shop", token_id="0")
    life.ask("add_token", name="shop", token_id="more", token="long enough")


@pytest.mark.parametrize(
    ("cap", "action", "arguments"),
    [
        ({"topics_max": 1}, "create_topic", {"name": "bills"}),
        ({"partitions_total_max": 5}, "create_topic", {"name": "bills", "partitions": 4}),
        ({"partitions_total_max": 5}, "set_topic", {"name": "orders", "partitions": 6}),
        ({"apps_max": 1}, "create_app", {"name": "bank"}),
        ({"subscriptions_max": 1}, "subscribe", {"topic": "orders", "app": "shop.b", "consumer": {}}),
    ],
    ids=str,
)
def test_there_are_no_more_of_anything_than_the_limits_say(cap, action, arguments):
    life = make_broker(partitions=2, limits_of=cap)
    before = life.facts()
    with pytest.raises(BadParameterError, match="allowed"):
        life.ask(action, **arguments)
    assert life.facts() == before
    life.ask("set_topic", name="orders", is_writable=False)
    life.ask("subscribe", topic="orders", app="shop", consumer={"batch_size": 5})


def test_clients_that_make_what_is_missing_run_into_the_same_caps():
    life = BrokerLife(creates_missing=True, limits_of={"topics_max": 2, "apps_max": 2, "subscriptions_max": 3})
    peer = life.peer()
    assert [peer.produce(b"x", topic=topic)[0] for topic in ("a", "b", "c")] == [0, 0, 6]
    peer.consumes("a", app="shop.b")
    assert peer.produce(b"x", topic="a", app="shop.c")[0] == 6
    life.peer("second")
    assert life.peer("third", introduces=False).introduce().status == 6


# --- subscriptions ---------------------------------------------------------------------------------------------------


def test_subscriptions_are_listed_by_topic_and_app():
    life = make_broker(topics=("orders", "bills"))
    life.ask("subscribe", topic="orders", app="shop.b", producer={"timeout_ms": 5})
    every = life.ask("list_subscriptions")
    assert [(one["topic"], one["app"]) for one in every] == [
        ("orders", "shop"),
        ("bills", "shop"),
        ("orders", "shop.b"),
    ]
    assert every[2]["producer"]["timeout_ms"] == 5
    assert every[2]["consumer"] is None
    assert len(life.ask("list_subscriptions", topic="orders")) == 2
    assert len(life.ask("list_subscriptions", topic="orders", app="shop")) == 1


def test_a_role_may_be_given_and_taken_one_at_a_time():
    life = make_broker()
    peer = life.peer().consumes()
    peer.produce(b"x")
    peer.ack([0])
    life.ask("unsubscribe", topic="orders", app="shop", role="producer")
    assert (peer.produce(b"y")[0], peer.stand()) == (134, 1), "where it stands is not forgotten"
    life.ask("subscribe", topic="orders", app="shop", producer={})
    assert (peer.produce(b"y")[0], peer.stand()) == (0, 1)
    life.ask("unsubscribe", topic="orders", app="shop", role="consumer")
    assert (peer.produce(b"z")[0], peer.fetch()) == (0, 136)
    life.ask("subscribe", topic="orders", app="shop", consumer={}, start="earliest")
    assert peer.stand() == 0, "a consumer that comes back is another one"


# --- where apps stand ------------------------------------------------------------------------------------------------


def test_the_lag_is_what_lies_between_an_app_and_the_end():
    life = make_broker(partitions=2)
    peer = life.peer()
    peer.produce(*[b"x"] * 5)
    peer.ack([0, 1])
    assert life.ask("lag", topic="orders", app="shop") == [
        {"partition": 0, "offset": 2, "first_offset": 0, "end_offset": 5, "lag": 3},
        {"partition": 1, "offset": 0, "first_offset": 0, "end_offset": 0, "lag": 0},
    ]


@pytest.mark.parametrize(
    ("where", "target"),
    [
        ({"to": "earliest"}, 0),
        ({"to": "latest"}, 5),
        ({"to": 3}, 3),
        ({"to": 99}, 5),
        ({"to": -7}, 0),
        ({"to": "time", "time_ms": 3}, 0),
        ({"to": "time", "time_ms": 1 << 60}, 5),
    ],
    ids=str,
)
def test_a_seek_is_a_plan_until_it_is_executed(where, target):
    life = make_broker(partitions=1)
    peer = life.peer().consumes()
    peer.produce(*[b"x"] * 5)
    peer.ack([0])
    (plan,) = life.ask("seek", topic="orders", app="shop", **where)
    assert (plan["offset"], plan["target"], plan["change"]) == (1, target, target - 1)
    assert life.ack_index() == 1
    life.ask("seek", topic="orders", app="shop", **where, execute=True)
    assert life.ack_index() == target
    life.lose_power()
    assert life.ack_index() == target


def test_a_seek_may_be_of_one_partition():
    life = make_broker(partitions=3)
    peer = life.peer()
    for partition in range(3):
        peer.produce(b"x", partition=partition)
        peer.ack([0], partition=partition)
    life.ask("seek", topic="orders", app="shop", to="earliest", partition=1, execute=True)
    assert [life.ack_index(partition=one) for one in range(3)] == [1, 0, 1]


# --- the broker ------------------------------------------------------------------------------------------------------


def test_the_broker_is_shown_as_it_is():
    life = make_broker(broker_id=3)
    life.peer()
    shown = life.ask("show_broker")
    assert (shown["broker"], shown["mode"], shown["connections"], shown["topics"]) == (3, "strict", 1, 1)
    assert (shown["readable"], shown["writable"], shown["draining"]) == (True, True, False)
    assert life.ask("set_broker", writable=False)["writable"] is False
    assert life.ask("set_broker")["writable"] is False
    life.restart()
    assert life.ask("show_broker")["writable"] is True, "until the next start"


def test_connections_are_listed_with_what_they_do():
    life = make_broker()
    peer = life.peer(host="10.0.0.9", version="1.2").consumes()
    peer.send(peer.fetch_command(wait_ms=1000))
    (shown,) = life.ask("list_connections")
    assert (shown["host"], shown["app"], shown["dialect"], shown["version"]) == (
        "10.0.0.9",
        "shop",
        "documented",
        "1.2",
    )
    assert (shown["consumers"], shown["parked_polls"]) == (["orders"], 1)
    assert json.dumps(shown)


def test_every_answer_can_be_told_as_json():
    life = make_broker()
    life.ask("subscribe", topic="orders", app="shop", consumer={"retry_times": 0})
    peer = life.peer().consumes()
    peer.produce(b"x")
    peer.fetch()
    peer.ack([0], kind=AckType.EXCEPTION)  # a dead letter
    job = life.ask("resend_range", topic="orders", partition=0, first=0, by="somebody", execute=True)["job"]
    questions = {
        "show_topic": {"name": "orders"},
        "show_app": {"name": "shop"},
        "lag": {"topic": "orders", "app": "shop"},
        "seek": {"topic": "orders", "app": "shop", "to": 0},
        "show_dead": {"id": 1},
        "show_job": {"id": job["id"]},
        "list_retries": {"topic": "orders", "app": "shop"},
    }
    for action in ACTIONS:
        if action.startswith(("list_", "show_")) or action in questions:
            assert json.dumps(life.ask(action, **questions.get(action, {})))


# --- answered means durable ------------------------------------------------------------------------------------------

CHANGES = [
    ("create_topic", {"name": "bills", "partitions": 3}),
    ("set_topic", {"name": "orders", "is_writable": False}),
    ("set_topic", {"name": "orders", "partitions": 9}),
    ("drop_topic", {"name": "orders"}),
    ("create_app", {"name": "bank"}),
    ("set_app", {"name": "shop", "produce_per_second": 5}),
    ("drop_app", {"name": "shop"}),
    ("add_token", {"name": "shop", "token_id": "2", "token": "long enough"}),
    ("drop_token", {"name": "shop", "token_id": "first"}),
    ("subscribe", {"topic": "orders", "app": "shop.b", "producer": {}, "consumer": {"batch_size": 3}}),
    ("unsubscribe", {"topic": "orders", "app": "shop"}),
    ("unsubscribe", {"topic": "orders", "app": "shop", "role": "consumer"}),
    ("seek", {"topic": "orders", "app": "shop", "to": 1, "execute": True}),
]
changes = pytest.mark.parametrize(("action", "arguments"), CHANGES, ids=lambda one: str(one))


def test_every_action_that_changes_something_is_in_the_table():
    asks = {action for action in ACTIONS if action.startswith(("list_", "show_"))} | {"lag", "set_broker"}
    asks |= set(DELIVERY_ACTIONS)  # test_dead_letters.py has those
    assert ACTIONS.keys() - asks == {action for action, _ in CHANGES}


@pytest.fixture
def filled():
    life = make_broker(partitions=1)
    life.peer().produce(b"x", b"y")
    return life


@changes
def test_a_change_is_answered_when_it_is_synced_and_then_stays(filled, action, arguments):
    filled.sync()
    before = filled.facts()
    answers = begin(filled, action, **arguments)
    assert answers == []
    filled.engine.end_turn()
    assert answers == [], "written is not enough"
    after = filled.facts()
    assert after != before
    filled.settle()
    ((_, error),) = answers
    assert error is None
    for end in ENDS:
        getattr(filled, end)()
        assert filled.facts() == after


@changes
@pytest.mark.parametrize("failure", [FULL, EIO], ids=["full disk", "broken disk"])
def test_a_change_that_cannot_be_written_is_undone(filled, action, arguments, failure):
    filled.sync()
    before = filled.facts()
    filled.disk.fail("write", failure, path_contains="journal/", wrote=40)
    with pytest.raises(WriteError if failure is FULL else DiskIOError):
        filled.ask(action, **arguments)
    assert filled.facts() == before
    assert filled.engine.is_stopped is (failure is EIO)
    if failure is FULL:
        filled.ask(action, **arguments)
        assert filled.facts() != before
        after = filled.facts()
        filled.kill()
        assert filled.facts() == after, "numbers and versions that were taken back are given again"
    else:
        filled.kill()
        assert filled.facts() == before


def test_several_changes_of_one_turn_are_undone_together():
    life = make_broker()
    life.sync()
    before = life.facts()
    life.disk.fail("write", FULL, path_contains="journal/")
    answers = [
        begin(life, "create_topic", name="bills"),
        begin(life, "subscribe", topic="bills", app="shop", consumer={}),
        begin(life, "set_topic", name="bills", is_writable=False),
        begin(life, "drop_topic", name="orders"),
    ]
    life.settle()
    assert [type(error) for ((_, error),) in answers] == [WriteError] * 4
    assert life.facts() == before
    peer = life.peer()
    assert peer.produce(b"x")[0] == 0


def test_a_change_that_changes_nothing_writes_nothing():
    life = make_broker()
    end_position = life.journal.end_position
    assert life.ask("set_topic", name="orders", is_writable=True)["is_writable"] is True
    assert life.journal.end_position == end_position


def test_a_change_that_was_made_before_is_durable_when_it_is_answered():
    """It says how things are: what it rests on must not be lost with the power."""
    life = BrokerLife()
    life.sync()
    made = begin(life, "create_topic", name="orders")
    life.engine.end_turn()
    same = begin(life, "set_topic", name="orders", is_writable=True)
    assert (made, same) == ([], [])
    life.settle()
    assert len(made) == len(same) == 1


def test_a_topic_made_by_its_first_message_is_durable_with_it():
    for qos in (Qos.FLUSH, Qos.WRITE):
        life = BrokerLife(creates_missing=True)
        peer = life.peer()
        assert peer.produce(b"x", topic="new", qos=qos)[0] == 0
        if qos is Qos.FLUSH:
            life.lose_power()
        else:
            life.kill()
        assert life.stored("new") == [b"x"]
        assert life.broker.ledger.metadata.subscription("new", "shop").producer is not None


def test_who_does_not_own_the_metadata_changes_none():
    life = BrokerLife(owns_metadata=False)
    for action, arguments in CHANGES:
        if action != "seek":
            with pytest.raises(BadParameterError, match="first worker"):
                life.ask(action, **arguments)
