"""Dead letters, as operators have them: how a message becomes one, finding, changing, resending and deleting them.

Also what else is done with messages that failed or wait: retries, delays, copies of a range, and the jobs that do it.
"""

import base64
import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from broker.fix_broker import DOCUMENTED, FULL, JOYQUEUE, TINY, BrokerLife, make_broker
from lakemq.broker.admin import CHANGES
from lakemq.broker.delivery_admin import DELIVERY_ACTIONS
from lakemq.broker.events import AdminAsked
from lakemq.broker.opening import Opening
from lakemq.errors import (
    BadParameterError,
    ConsumerNotFoundError,
    ReadError,
    TopicNotFoundError,
    TopicNotWritableError,
    UnknownNameError,
    WriteError,
)
from lakemq.message import Qos
from lakemq.storage.journal_record import RecordType
from lakemq.storage.retention import RetentionPolicy
from lakemq.wire.own import Settle, Settlement, TopicSettlements

DONE, RETRY, DEAD = 0, 1, 2
ENDS = ["restart", "kill", "lose_power"]
ends = pytest.mark.parametrize("end", ENDS)


def settle(peer, message, outcome, reason="", after_ms=-1, topic="orders"):
    """What a consumer says of one message that it was lent."""
    said = Settlement(message.partition, message.index, outcome, after_ms, reason)
    answer = peer.ask(Settle((TopicSettlements(topic, (said,)),), peer.app))
    return answer.status or answer.body.topics[0].settled[0].code


def fetch(peer, topic="orders"):
    """The messages lent, whole."""
    return peer.messages(peer.ask(peer.fetch_command(topic)))


def bury(life, *bodies, reason="no such customer", topic="orders", **details):
    """A consumer gives each of these up at once: they are dead letters with cause `asked`."""
    peer = life.peer().consumes(topic)
    peer.produce(*bodies, topic=topic, **details)
    for message in fetch(peer, topic):
        assert settle(peer, message, DEAD, reason, topic=topic) == 0
    peer.pipe.hang_up()


def letters(life, **wish):
    return life.ask("list_dead", order="oldest", **wish)["rows"]


def ids(life, **wish):
    return [row["id"] for row in letters(life, **wish)]


def bodies(life, **wish):
    return [base64.b64decode(row["body"]) for row in letters(life, with_bodies=True, **wish)]


def finish(life, job, seconds=60):
    """Let time pass until a job has ended."""
    for _ in range(seconds * 10):
        shown = life.ask("show_job", id=job["id"])
        if shown["state"] != "running":
            return shown
        life.pass_ms(100)
    raise AssertionError(f"it does not end: {shown}")


def limited(life, *, parks=True, per_second=1):
    life.ask("set_app", name="shop", produce_per_second=per_second)
    life.ask("subscribe", topic="orders", app="shop", producer={"parks_over_rate": parks})


# --- each cause ------------------------------------------------------------------------------------------------------


def test_a_message_that_its_app_gives_up_is_a_dead_letter_with_the_reason():
    life = make_broker(partitions=1)
    bury(life, b"x", reason="no such customer", business_id="customer 7", attributes={"TAGS": "new"})
    (row,) = letters(life)
    assert {**row, "first_ms": 0, "died_ms": 0} == {
        "id": 1,
        "cause": "asked",
        "reason": "no such customer",
        "topic": "orders",
        "app": "shop",
        "partition": 0,
        "offset": 0,
        "attempts": 1,
        "first_ms": 0,
        "died_ms": 0,
        "key": "customer 7",
        "tags": "new",
        "size": 1,
    }
    assert row["died_ms"] == life.clock.wall_ms()


def test_a_message_that_failed_as_often_as_the_policy_allows_is_a_dead_letter():
    life = make_broker(partitions=1)
    life.ask("subscribe", topic="orders", app="shop", consumer={"retry_times": 2})
    peer = life.peer().consumes()
    peer.produce(b"x")
    for attempt in range(3):
        assert letters(life) == []
        (message,) = fetch(peer)
        settle(peer, message, RETRY, f"attempt {attempt + 1} failed", after_ms=0)
    (row,) = letters(life)
    assert (row["cause"], row["attempts"], row["reason"]) == ("exhausted", 3, "attempt 3 failed")


def test_a_message_that_nobody_got_before_its_time_was_over_is_a_dead_letter():
    life = make_broker(partitions=1)
    peer = life.peer().consumes()
    peer.produce(b"x", attributes={"EXPIRE": str(life.clock.wall_ms() + 1000)})
    life.pass_ms(2000)
    assert peer.fetch() == []
    (row,) = letters(life)
    assert (row["cause"], row["offset"]) == ("expired", 0)


@pytest.mark.parametrize("dialect", [DOCUMENTED, JOYQUEUE], ids=lambda one: one.value)
def test_what_is_over_a_rate_is_a_dead_letter_where_the_policy_says_so(dialect):
    life = make_broker(partitions=1)
    limited(life)
    peer = life.peer(dialect=dialect)
    assert peer.produce(b"x")[1][0].index == 0
    code, (result,) = peer.produce(b"y")
    assert (code, result.partition, result.index) == (0, 0, -1)
    (row,) = letters(life)
    assert (row["cause"], row["app"], row["offset"], row["attempts"]) == ("rate", "shop", None, 0)
    assert (life.stored(), bodies(life)) == ([b"x"], [b"y"])
    assert life.capped["app_rate"] == 1


@pytest.mark.parametrize("qos", [Qos.FLUSH, Qos.WRITE, Qos.RECEIVE], ids=lambda qos: qos.value)
def test_runs_of_requests_go_past_no_rate(qos):
    life = make_broker(partitions=1)
    limited(life, per_second=3)
    peer = life.peer()
    commands = [peer.produce_command(b"%d" % number, qos=qos) for number in range(10)]
    requests = [request for command in commands for request in peer.send_all(command)]
    life.settle()
    assert all(peer.received(one).body.topics[0].code == 0 for one in requests)
    life.sync()
    assert life.stored() == [b"0", b"1", b"2"]
    assert bodies(life) == [b"%d" % number for number in range(3, 10)]


def test_a_batch_that_is_over_a_rate_is_one_dead_letter_for_each_of_its_messages():
    life = make_broker(partitions=2)
    limited(life)
    peer = life.peer()
    peer.produce(b"x")
    assert peer.produce((b"a", b"b"), b"c", partition=1)[0] == 0
    assert bodies(life) == [b"a", b"b", b"c"]
    assert [row["partition"] for row in letters(life)] == [1, 1, 1]


@pytest.mark.parametrize(
    ("wish", "details"),
    [("no policy", {}), ("a delay", {"attributes": {"DELIVER_AT": str(1 << 45)}}), ("no room", {})],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_what_cannot_be_parked_is_refused_as_ever(wish, details):
    life = make_broker(partitions=1, **({"dead_letters_max": 1} if wish == "no room" else {}))
    limited(life, parks=wish != "no policy")
    peer = life.peer()
    peer.produce(b"x")
    if "attributes" in details:
        details = {"attributes": {"DELIVER_AT": str(life.clock.wall_ms() + 60_000)}}
    before = life.facts()
    assert peer.produce(b"y", **details)[0] == 74
    assert life.facts() == before


def test_what_is_over_a_rate_takes_half_of_the_room_and_leaves_the_rest_to_others():
    life = make_broker(partitions=1, dead_letters_max=6)
    limited(life)
    peer = life.peer()
    assert [peer.produce(b"%d" % number)[0] for number in range(6)] == [0, 0, 0, 0, 74, 74]
    life.pass_ms(60_000)
    bury(life, b"x")
    assert [row["cause"] for row in letters(life)][:4] == ["rate", "rate", "rate", "asked"]


def test_a_repeated_send_that_is_over_a_rate_is_answered_as_the_first():
    life = make_broker(partitions=1)
    limited(life)
    peer = life.peer()
    details = {"attributes": {"UNIQ_ID": "one"}}
    first = peer.produce(b"x", **details)
    again = peer.produce(b"x", **details)
    assert (again[0], again[1][0].index) == (0, first[1][0].index)
    assert letters(life) == []


# --- finding and looking ---------------------------------------------------------------------------------------------


@pytest.fixture
def many():
    """Six dead letters of two topics, a minute apart, one of them over a rate."""
    life = make_broker(partitions=1, topics=("orders", "bills"))
    for number, (topic, reason) in enumerate(
        [
            ("orders", "time-out"),
            ("bills", "no such customer"),
            ("orders", "time-out"),
            ("bills", "Time-Out"),
            ("orders", ""),
        ]
    ):
        bury(life, b"%d" % number, topic=topic, reason=reason, business_id=f"key {number}")
        life.pass_ms(60_000)
    limited(life)
    life.peer().produce(b"first")
    life.peer().produce(b"5", business_id="key 5")
    return life


def test_dead_letters_are_found_by_what_is_known_of_them(many):
    died = [row["died_ms"] for row in letters(many)]
    assert ids(many) == [1, 2, 3, 4, 5, 6]
    assert ids(many, topic="orders") == [1, 3, 5, 6]
    assert ids(many, topic="bills", app="shop") == [2, 4]
    assert ids(many, app="bank") == []
    assert ids(many, cause="rate") == [6]
    assert ids(many, cause="asked", first_id=2, last_id=4) == [2, 3, 4]
    assert ids(many, from_ms=died[1], until_ms=died[3]) == [2, 3, 4]
    assert ids(many, text="time-out") == [1, 3, 4]
    assert ids(many, text="KEY 5") == [6]
    assert ids(many, text="key", topic="bills") == [2, 4]


@pytest.mark.parametrize("order", ["newest", "oldest"])
@pytest.mark.parametrize("limit", [1, 2, 5, 6, 7])
def test_pages_follow_each_other_without_gap_or_overlap(many, order, limit):
    found, after = [], None
    for _ in range(10):
        page = many.ask("list_dead", order=order, limit=limit, after=after)
        assert page["count"] == 6
        assert len(page["rows"]) <= limit
        found += [row["id"] for row in page["rows"]]
        after = page["next"]
        if after is None:
            break
    assert found == sorted(range(1, 7), reverse=order == "newest")


def test_a_page_ends_early_rather_than_hold_up_the_broker():
    life = make_broker(partitions=1)
    for number in range(4):
        bury(life, bytes(200_000), reason=str(number))
    import lakemq.broker.dead_letter_view as view

    before, view._BYTES_MAX = view._BYTES_MAX, 600_000
    try:
        page = life.ask("list_dead", order="oldest")
        assert [row["id"] for row in page["rows"]] == [1, 2]
        assert [row["id"] for row in life.ask("list_dead", order="oldest", after=page["next"])["rows"]] == [3, 4]
    finally:
        view._BYTES_MAX = before


def test_a_dead_letter_is_shown_whole():
    life = make_broker(partitions=2)
    bury(life, "grün".encode(), partition=1, business_id="k", attributes={"TAGS": "a", "colour": "ü"}, priority=3)
    shown = life.ask("show_dead", id=1)
    assert (shown["text"], base64.b64decode(shown["body"])) == ("grün", "grün".encode())
    assert shown["attributes"] == {"TAGS": "a", "colour": "ü"}
    assert (shown["key"], shown["partition"], shown["offset"], shown["priority"]) == ("k", 1, 0, 3)
    assert shown["sent_ms"] == 5
    assert shown["stored_ms"] > 5
    assert shown["trouble"] == ""


def test_bytes_that_are_no_text_are_shown_as_base64_alone():
    life = make_broker(partitions=1)
    bury(life, b"\xff\x00")
    shown = life.ask("show_dead", id=1)
    assert (shown["text"], shown["body"]) == (None, "/wA=")


def test_a_message_of_a_batch_is_shown_by_itself_with_what_the_batch_says():
    life = make_broker(partitions=1)
    peer = life.peer().consumes()
    peer.produce((b"a", b"b", b"c"), attributes={"TAGS": "t"})
    (batch,) = fetch(peer)
    assert settle(peer, batch.messages()[1], DEAD, "b is bad") == 0
    (row,) = letters(life, with_bodies=True)
    assert (row["text"], row["offset"], row["tags"]) == ("b", 1, "t")


def test_one_that_cannot_be_read_says_so_and_can_still_be_deleted():
    life = make_broker(partitions=1)
    bury(life, b"x")
    state = life.broker.ledger.state.dead_letters
    state._rows[1] = state._rows[1]._replace(position=3)  # nothing begins there
    shown = life.ask("show_dead", id=1)
    assert (shown["body"], shown["key"]) == (None, None)
    assert shown["trouble"]
    assert letters(life)[0]["key"] is None
    with pytest.raises(ReadError):
        life.ask("resend_dead", id=1, by="ann")
    job = life.ask("resend_dead_many", by="ann", to="topic", execute=True)["job"]
    assert finish(life, job)["failed"] == 1
    life.ask("delete_dead", id=1, by="ann")
    assert ids(life) == []


# --- changing --------------------------------------------------------------------------------------------------------


@ends
def test_what_is_edited_stays_so_and_is_resent_so(end):
    life = make_broker(partitions=2)
    bury(life, b"bad", partition=1, business_id="old", attributes={"TAGS": "a", "gone": "1"})
    edited = life.ask(
        "edit_dead", id=1, by="ann", text="good", key="new", attributes={"gone": None, "TAGS": "b", "more": "2"}
    )
    getattr(life, end)()
    shown = life.ask("show_dead", id=1)
    assert shown == edited
    assert (shown["text"], shown["key"], shown["attributes"]) == ("good", "new", {"TAGS": "b", "more": "2"})
    assert (shown["partition"], shown["offset"], shown["reason"]) == (1, 0, "no such customer")
    life.ask("resend_dead", id=1, by="ann")
    (message,) = fetch(life.peer().consumes())
    assert (message.body, message.business_id, message.attributes["more"]) == (b"good", "new", "2")
    assert (message.attributes["LAKEMQ_PARTITION"], message.attributes["LAKEMQ_INDEX"]) == ("1", "0")


def test_what_was_edited_can_be_given_to_clients_of_joyqueue():
    life = make_broker(partitions=1)
    bury(life, b"bad")
    life.ask("edit_dead", id=1, by="ann", text="good")
    life.ask("resend_dead", id=1, by="ann")
    assert life.peer(dialect=JOYQUEUE).consumes().fetch() == [b"good"]


def test_each_worker_has_its_own_and_whoever_owns_the_metadata_does_not_matter():
    life = BrokerLife(owns_metadata=False)
    assert life.ask("list_dead")["count"] == 0
    assert life.ask("delete_dead_many", by="ann", execute=True)["job"] is None
    assert not set(DELIVERY_ACTIONS) & CHANGES


def test_a_part_may_be_edited_and_the_rest_stays():
    life = make_broker(partitions=1)
    bury(life, b"x", business_id="k", attributes={"a": "1"}, priority=2)
    life.ask("edit_dead", id=1, by="ann", body=base64.b64encode(b"\xff").decode())
    life.ask("edit_dead", id=1, by="bob", key="l")
    shown = life.ask("show_dead", id=1)
    assert (shown["body"], shown["key"], shown["attributes"], shown["priority"]) == ("/w==", "l", {"a": "1"}, 2)


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"body": "no base64!"},
        {"body": 5},
        {"text": "a", "body": "YQ=="},
        {"attributes": {"a": 1}},
        {"attributes": {"": "1"}},
        {"attributes": ["a"]},
        {"key": 7},
        {"key": "k" * 101},
        {"text": "x" * (5 << 20)},
        {"nonsense": 1},
        {"text": "x", "by": ""},
        {"text": "x", "by": "a\nb"},
    ],
    ids=lambda one: str(one)[:40],
)
def test_a_wrong_edit_changes_nothing(change):
    life = make_broker(partitions=1)
    bury(life, b"x")
    before = life.facts()
    with pytest.raises(BadParameterError):
        life.ask("edit_dead", id=1, **{"by": "ann", **change})
    assert life.facts() == before
    assert life.broker.metrics.bugs == 0


# --- resending to the app --------------------------------------------------------------------------------------------


@ends
def test_a_resent_letter_goes_to_the_app_that_failed_and_to_no_other(end):
    life = make_broker(partitions=1)
    bury(life, b"x")
    life.ask("subscribe", topic="orders", app="shop.b", consumer={}, start="latest")
    assert life.ask("resend_dead", id=1, by="ann") == {"id": 1, "outcome": "resent to the app"}
    getattr(life, end)()
    assert ids(life) == []
    peer, other = life.peer().consumes(), life.peer(app="shop").consumes(app="shop.b")
    (message,) = fetch(peer)
    assert (message.body, message.attributes["LAKEMQ_ATTEMPT"]) == (b"x", "1")
    assert other.fetch(app="shop.b") == []
    assert settle(peer, message, DONE) == 0
    getattr(life, end)()
    assert (life.ask("list_retries", topic="orders", app="shop")["count"], ids(life)) == (0, [])
    assert life.stored() == [b"x"]


def test_a_resent_letter_begins_with_all_its_attempts():
    life = make_broker(partitions=1)
    life.ask("subscribe", topic="orders", app="shop", consumer={"retry_times": 1})
    bury(life, b"x")
    life.ask("resend_dead", id=1, by="ann")
    peer = life.peer().consumes()
    for _ in range(2):
        (message,) = fetch(peer)
        settle(peer, message, RETRY, "again", after_ms=0)
    (row,) = letters(life)
    assert (row["id"], row["cause"], row["attempts"]) == (2, "exhausted", 2)


def test_a_consumer_that_waits_gets_it_at_once():
    life = make_broker(partitions=1)
    bury(life, b"x")
    peer = life.peer().consumes()
    request = peer.send(peer.fetch_command(wait_ms=10_000))
    life.settle()
    assert peer.received(request) is None
    life.ask("resend_dead", id=1, by="ann")
    assert [one.body for one in peer.messages(peer.received(request))] == [b"x"]


def test_one_that_has_expired_is_delivered_all_the_same_when_it_is_resent():
    life = make_broker(partitions=1)
    peer = life.peer().consumes()
    peer.produce(b"x", attributes={"EXPIRE": str(life.clock.wall_ms() + 1000), "a": "1"})
    life.pass_ms(2000)
    assert peer.fetch() == []
    life.ask("resend_dead", id=1, by="ann")
    life.pass_ms(2000)
    (message,) = fetch(peer)
    assert (message.body, message.attributes["a"], "EXPIRE" in message.attributes) == (b"x", "1", False)
    assert ids(life) == []


def test_an_app_that_was_subscribed_anew_gets_its_old_letters():
    life = make_broker(partitions=1)
    bury(life, b"x")
    life.ask("unsubscribe", topic="orders", app="shop", role="consumer")
    life.ask("subscribe", topic="orders", app="shop", consumer={}, start="latest")
    assert life.ask("resend_dead", id=1, by="ann")["outcome"] == "resent to the app"
    assert life.peer().consumes().fetch() == [b"x"]


# --- resending to the topic ------------------------------------------------------------------------------------------


@ends
def test_a_letter_may_go_to_its_topic_where_all_get_it_as_a_new_message(end):
    life = make_broker(partitions=2)
    life.ask("subscribe", topic="orders", app="shop.b", consumer={}, start="latest")
    bury(life, b"x", partition=1, business_id="k", attributes={"a": "1"})
    assert life.ask("resend_dead", id=1, by="ann", to="topic")["outcome"] == "resent to the topic"
    getattr(life, end)()
    assert (ids(life), life.stored(partition=1)) == ([], [b"x", b"x"])
    (message,) = fetch(life.peer().consumes())
    assert (message.index, message.business_id) == (1, "k")
    assert (message.attributes["LAKEMQ_RESENT"], message.attributes["a"]) == ("orders/1/0", "1")


@ends
def test_what_was_over_its_rate_is_sent_when_an_operator_says_so(end):
    life = make_broker(partitions=1)
    limited(life)
    peer = life.peer()
    peer.produce(b"x")
    peer.produce(b"y", attributes={"UNIQ_ID": "one", "a": "1"})
    getattr(life, end)()
    assert life.ask("resend_dead", id=1, by="ann")["outcome"] == "resent to the topic"
    getattr(life, end)()
    assert (life.stored(), ids(life)) == ([b"x", b"y"], [])
    _, message = fetch(life.peer().consumes())
    assert (message.attributes["UNIQ_ID"], "LAKEMQ_RESENT" in message.attributes) == ("one", False)
    life.pass_ms(60_000)
    assert life.peer().produce(b"y", attributes={"UNIQ_ID": "one"})[1][0].index == 1, "the producer tries again"
    assert life.stored() == [b"x", b"y"]


def test_what_was_over_its_rate_and_sent_again_by_its_producer_is_not_stored_twice():
    life = make_broker(partitions=1)
    limited(life)
    peer = life.peer()
    peer.produce(b"x")
    peer.produce(b"y", attributes={"UNIQ_ID": "one"})
    life.pass_ms(10_000)
    assert peer.produce(b"y", attributes={"UNIQ_ID": "one"})[1][0].index == 1
    assert life.ask("resend_dead", id=1, by="ann")["outcome"] == "was stored before"
    assert (life.stored(), ids(life)) == ([b"x", b"y"], [])


def test_a_letter_of_an_app_that_is_gone_goes_to_the_topic():
    life = make_broker(partitions=1)
    bury(life, b"x")
    life.ask("unsubscribe", topic="orders", app="shop", role="consumer")
    assert life.ask("resend_dead", id=1, by="ann")["outcome"] == "resent to the topic"
    assert life.stored() == [b"x", b"x"]


def test_a_letter_of_a_topic_that_is_gone_stays_until_it_is_deleted():
    life = make_broker(partitions=1)
    bury(life, b"x")
    life.ask("drop_topic", name="orders")
    for to in ("app", "topic"):
        with pytest.raises(TopicNotFoundError):
            life.ask("resend_dead", id=1, by="ann", to=to)
    assert bodies(life) == [b"x"]
    life.ask("delete_dead", id=1, by="ann")


def test_a_letter_goes_to_a_topic_that_was_made_again_under_its_name():
    life = make_broker(partitions=2)
    bury(life, b"x", partition=1)
    life.ask("drop_topic", name="orders")
    life.ask("create_topic", name="orders", partitions=1)
    assert life.ask("resend_dead", id=1, by="ann")["outcome"] == "resent to the topic"
    assert life.stored() == [b"x"]


def test_nothing_is_sent_to_a_topic_that_takes_nothing():
    life = make_broker(partitions=1)
    bury(life, b"x")
    life.ask("set_topic", name="orders", is_writable=False)
    with pytest.raises(TopicNotWritableError):
        life.ask("resend_dead", id=1, by="ann", to="topic")
    assert ids(life) == [1]


# --- deleting, and the audit -----------------------------------------------------------------------------------------


@ends
def test_what_is_deleted_is_gone_and_the_audit_says_who_did_what(end):
    life = make_broker(partitions=1)
    for number in range(4):
        bury(life, b"%d" % number)
    life.ask("delete_dead", id=2, by="ann")
    life.pass_ms(1000)
    life.ask("edit_dead", id=3, by="bob", text="z")
    life.ask("resend_dead", id=3, by="cli")
    life.ask("resend_dead", id=4, by="cli", to="topic")
    getattr(life, end)()
    assert ids(life) == [1]
    audit = life.ask("list_dead_audit")
    assert [(one["id"], one["action"], one["by"]) for one in audit] == [
        (4, "resent to the topic", "cli"),
        (3, "resent to the app", "cli"),
        (3, "edited", "bob"),
        (2, "deleted", "ann"),
    ]
    assert audit[0]["time_ms"] - audit[3]["time_ms"] == 1000
    assert len(life.ask("list_dead_audit", limit=2)) == 2


@pytest.mark.parametrize(
    ("action", "arguments", "error"),
    [
        ("show_dead", {"id": 7}, UnknownNameError),
        ("show_dead", {"id": "1"}, UnknownNameError),
        ("edit_dead", {"id": 7, "by": "ann", "text": ""}, UnknownNameError),
        ("delete_dead", {"id": 7, "by": "ann"}, UnknownNameError),
        ("delete_dead", {"id": 1}, BadParameterError),
        ("delete_dead", {"id": 1, "by": 5}, BadParameterError),
        ("resend_dead", {"id": 7, "by": "ann"}, UnknownNameError),
        ("resend_dead", {"id": 1, "by": "ann", "to": "moon"}, BadParameterError),
        ("resend_dead_many", {"by": "ann", "to": "moon"}, BadParameterError),
        ("resend_dead_many", {"by": "ann", "cause": "none"}, BadParameterError),
        ("resend_dead_many", {"by": "ann", "per_second": -1}, BadParameterError),
        ("resend_dead_many", {"by": "ann", "nonsense": 1}, BadParameterError),
        ("delete_dead_many", {"by": "ann", "first_id": "1"}, BadParameterError),
        ("delete_dead_many", {}, BadParameterError),
        ("delete_dead_many", {"by": "ann", "execute": "no"}, BadParameterError),
        ("resend_range", {"topic": "orders", "by": "a", "partition": 0, "first": 0, "execute": 1}, BadParameterError),
        ("retry_now", {"topic": "orders", "app": "shop", "by": "ann", "execute": "no"}, BadParameterError),
        ("list_dead", {"with_bodies": "no"}, BadParameterError),
        ("list_dead", {"limit": 0}, BadParameterError),
        ("list_dead", {"limit": 1001}, BadParameterError),
        ("list_dead", {"order": "odd"}, BadParameterError),
        ("list_dead", {"text": ""}, BadParameterError),
        ("list_dead", {"text": "x" * 201}, BadParameterError),
        ("list_dead", {"after": "x"}, BadParameterError),
        ("list_dead_audit", {"limit": 0}, BadParameterError),
        ("list_retries", {"topic": "none", "app": "shop"}, TopicNotFoundError),
        ("list_retries", {"topic": "orders", "app": "none"}, ConsumerNotFoundError),
        ("retry_now", {"topic": "orders", "app": "shop", "by": "ann", "ids": [5], "execute": True}, UnknownNameError),
        ("retry_now", {"topic": "orders", "app": "shop", "by": "ann", "ids": [], "execute": True}, BadParameterError),
        ("give_up_retries", {"topic": "orders", "app": "shop", "by": "ann", "ids": ["1"]}, UnknownNameError),
        ("list_delays", {"topic": "none"}, TopicNotFoundError),
        ("list_delays", {"limit": 0}, BadParameterError),
        ("cancel_delay", {"id": 5, "by": "ann"}, UnknownNameError),
        ("cancel_delay", {"id": "5", "by": "ann"}, BadParameterError),
        ("resend_range", {"topic": "none", "by": "ann", "partition": 0, "first": 0}, TopicNotFoundError),
        ("resend_range", {"topic": "orders", "by": "ann"}, BadParameterError),
        ("resend_range", {"topic": "orders", "by": "ann", "first": 0, "last": 1}, BadParameterError),
        ("resend_range", {"topic": "orders", "by": "ann", "partition": 9, "first": 0}, BadParameterError),
        ("resend_range", {"topic": "orders", "by": "ann", "partition": 0, "first": -1}, BadParameterError),
        ("resend_range", {"topic": "orders", "by": "ann", "partition": 0, "first": 0, "from_ms": 0}, BadParameterError),
        (
            "resend_range",
            {"topic": "orders", "by": "ann", "partition": 0, "first": 0, "to_topic": "none"},
            TopicNotFoundError,
        ),
        ("show_job", {"id": 1}, UnknownNameError),
        ("cancel_job", {"id": 1, "by": "ann"}, UnknownNameError),
    ],
    ids=lambda one: one if isinstance(one, str) else str(one) if isinstance(one, dict) else one.__name__,
)
def test_what_cannot_be_is_refused_and_changes_nothing(action, arguments, error):
    life = make_broker(partitions=1)
    bury(life, b"x")
    before = life.facts()
    with pytest.raises(error):
        life.ask(action, **arguments)
    assert life.facts() == before
    assert life.broker.metrics.bugs == 0


# --- many at a time --------------------------------------------------------------------------------------------------


def test_many_are_a_preview_until_it_is_executed(many):
    preview = many.ask("resend_dead_many", by="ann", topic="orders")
    assert preview == {
        "count": 4,
        "is_complete": True,
        "groups": [
            {"topic": "orders", "app": "shop", "cause": "asked", "count": 3},
            {"topic": "orders", "app": "shop", "cause": "rate", "count": 1},
        ],
        "job": None,
    }
    assert many.ask("delete_dead_many", by="ann", text="time-out")["count"] == 3
    many.pass_ms(10_000)
    assert len(ids(many)) == 6


def test_many_are_resent_by_a_job_each_once(many):
    job = many.ask("resend_dead_many", by="ann", execute=True)["job"]
    assert (job["state"], job["total"], job["done"], job["by"]) == ("running", 6, 0, "ann")
    ended = finish(many, job)
    assert (ended["state"], ended["done"], ended["failed"]) == ("done", 6, 0)
    assert ids(many) == []
    assert sorted(many.peer().consumes().fetch("orders")) == [b"5", b"first"], "the one over its rate is new"
    peer = many.peer().consumes("orders", "bills")
    got = peer.fetch("orders") + peer.fetch("bills")
    assert sorted(got) == [b"0", b"1", b"2", b"3", b"4"]


def test_many_are_deleted_by_a_job(many):
    job = many.ask("delete_dead_many", by="ann", text="time-out", execute=True)["job"]
    assert finish(many, job)["done"] == 3
    assert ids(many) == [2, 5, 6]
    assert {one["by"] for one in many.ask("list_dead_audit")} == {"ann"}


def test_a_rate_is_kept():
    life = make_broker(partitions=1)
    bury(life, *[b"%d" % number for number in range(40)])
    job = life.ask("resend_dead_many", by="ann", to="topic", per_second=10, execute=True)["job"]
    counts = []
    for _ in range(6):
        for _ in range(10):
            life.pass_ms(100)
        counts.append(life.ask("show_job", id=job["id"])["done"])
    assert counts[:4] == pytest.approx([10, 20, 30, 40], abs=2)
    assert counts[-1] == 40


def test_a_job_may_be_cancelled_and_what_is_done_stays_done():
    life = make_broker(partitions=1)
    bury(life, *[b"%d" % number for number in range(20)])
    job = life.ask("delete_dead_many", by="ann", per_second=5, execute=True)["job"]
    life.pass_ms(1000)
    cancelled = life.ask("cancel_job", id=job["id"], by="bob")
    assert cancelled["state"] == "cancelled"
    assert 0 < cancelled["done"] < 20
    life.pass_ms(60_000)
    assert len(ids(life)) == 20 - cancelled["done"]
    assert [one["id"] for one in life.ask("list_jobs")] == [job["id"]]


@ends
def test_a_restart_ends_a_job_and_loses_none(end):
    life = make_broker(partitions=1)
    bury(life, *[b"%02d" % number for number in range(30)])
    job = life.ask("resend_dead_many", by="ann", to="topic", per_second=10, execute=True)["job"]
    life.pass_ms(1000)
    getattr(life, end)()
    life.pass_ms(5000)
    assert life.ask("list_jobs") == []
    with pytest.raises(UnknownNameError, match="restart"):
        life.ask("show_job", id=job["id"])
    left, sent = bodies(life), life.stored()[30:]
    assert sorted(left + sent) == [b"%02d" % number for number in range(30)]
    again = life.ask("resend_dead_many", by="ann", to="topic", execute=True)["job"]
    assert again["id"] > job["id"]
    finish(life, again)
    assert sorted(life.stored()[30:]) == [b"%02d" % number for number in range(30)]


def test_what_is_gone_meanwhile_is_passed_over():
    life = make_broker(partitions=1)
    bury(life, *[b"%d" % number for number in range(10)])
    job = life.ask("resend_dead_many", by="ann", per_second=1, execute=True)["job"]
    for number in (9, 10):
        life.ask("delete_dead", id=number, by="bob")
    ended = finish(life, job)
    assert (ended["done"], ended["skipped"], ended["failed"]) == (8, 2, 0)


def test_jobs_are_capped_and_the_last_that_ended_are_remembered():
    life = make_broker(partitions=1)
    bury(life, *[b"%d" % number for number in range(20)])
    for _ in range(8):
        life.ask("delete_dead_many", by="ann", per_second=1, execute=True)
    with pytest.raises(BadParameterError, match="8 jobs"):
        life.ask("delete_dead_many", by="ann", execute=True)
    for job in life.ask("list_jobs"):
        life.ask("cancel_job", id=job["id"], by="ann")
    life.ask("delete_dead_many", by="ann", execute=True)
    assert [job["state"] for job in life.ask("list_jobs")] == ["running", *["cancelled"] * 8]


def test_a_job_waits_while_there_is_no_room_and_goes_on():
    life = make_broker(partitions=1, retries_max=3)
    bury(life, *[b"%d" % number for number in range(5)])
    job = life.ask("resend_dead_many", by="ann", execute=True)["job"]
    life.pass_ms(100)
    shown = life.ask("show_job", id=job["id"])
    assert (shown["state"], shown["done"]) == ("running", 3)
    assert "wait to be tried again" in shown["trouble"]
    peer = life.peer().consumes()
    for message in fetch(peer):
        settle(peer, message, DONE)
    ended = finish(life, job)
    assert (ended["done"], ended["trouble"]) == (5, "")


def test_a_job_of_a_broker_that_stops_ends():
    life = make_broker(partitions=1)
    bury(life, *[b"%d" % number for number in range(5)])
    life.ask("delete_dead_many", by="ann", per_second=1, execute=True)
    life.restart()
    assert len(ids(life)) == 5


# --- what cannot be written did not happen ---------------------------------------------------------------------------

ACTS = [
    ("delete_dead", {"id": 1, "by": "ann"}),
    ("resend_dead", {"id": 1, "by": "ann"}),
    ("resend_dead", {"id": 1, "by": "ann", "to": "topic"}),
    ("edit_dead", {"id": 1, "by": "ann", "text": "new"}),
]


@pytest.mark.parametrize(("action", "arguments"), ACTS, ids=lambda one: str(one))
def test_what_the_disk_does_not_take_has_not_happened(action, arguments):
    life = make_broker(partitions=1)
    bury(life, b"x")
    before = life.facts()
    life.disk.fail("write", FULL, path_contains="journal/")
    with pytest.raises(WriteError):
        life.ask(action, **arguments)
    assert life.facts() == before
    assert life.facts_on_disk() == before
    life.ask(action, **arguments)
    assert life.facts() != before


@pytest.mark.parametrize(("action", "arguments"), ACTS, ids=lambda one: str(one))
def test_an_answer_means_that_it_outlives_a_power_cut(action, arguments):
    life = make_broker(partitions=1)
    bury(life, b"x")
    life.ask(action, **arguments)
    after = life.facts()
    life.lose_power()
    assert life.facts() == after


def test_a_job_goes_back_to_before_what_could_not_be_written():
    life = make_broker(partitions=1)
    bury(life, *[b"%d" % number for number in range(10)])
    life.sync()
    job = life.ask("delete_dead_many", by="ann", execute=True)["job"]
    life.disk.fail("write", FULL, path_contains="journal/")
    life.pass_ms(20)
    shown = life.ask("show_job", id=job["id"])
    assert (shown["state"], shown["done"], len(ids(life))) == ("running", 0, 10)
    assert finish(life, job)["done"] == 10
    assert ids(life) == []


# Where a message is: dead, to be tried again, or a further time in its topic. One of these, whatever happens.


def places(life):
    state = life.broker.ledger.state
    found = [("dead", row.message_index) for row in state.dead_letters.rows()]
    found += [("retry", row.message_index) for row in state.retries.rows()]
    number = life.topic_number("orders")
    for index in range(10, life.engine.group.next_index(number, 0)):
        message, _ = life.broker.references.read(life.engine.group.locate(number, 0, index), index)
        found.append(("topic", int(message.attributes["LAKEMQ_RESENT"].rpartition("/")[2])))
    return sorted(index for _, index in found)


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.parametrize("to", ["app", "topic"])
def test_a_power_cut_in_the_middle_loses_no_letter_and_doubles_none(seed, to):
    life = make_broker(partitions=1)
    bury(life, *[b"%d" % number for number in range(10)])
    life.sync()
    assert places(life) == list(range(10))
    life.ask("resend_dead_many", by="ann", to=to, execute=True)
    life.engine.tick()  # written, not synced: any part of it may be there afterwards
    life.disk.lose_power(random.Random(seed))
    life.start()
    left = len(ids(life))
    job = life.ask("resend_dead_many", by="ann", to=to, execute=True)["job"]
    if left:
        finish(life, job)
    assert ids(life) == []
    assert places(life) == list(range(10))


@pytest.mark.parametrize("seed", range(30))
def test_a_power_cut_during_an_edit_leaves_the_old_message_or_the_new_one(seed):
    life = make_broker(partitions=1)
    bury(life, b"old")
    life.sync()
    life.engine.handle(AdminAsked("edit_dead", {"id": 1, "by": "ann", "text": "new"}, lambda *_: None))
    life.engine.end_turn()
    life.disk.lose_power(random.Random(seed))
    life.start()
    assert life.ask("show_dead", id=1)["text"] in ("old", "new")


def test_what_is_just_being_written_is_not_read_and_not_lost():
    life = make_broker(partitions=1)
    bury(life, b"old")
    answers = []
    for action, arguments in (("edit_dead", {"text": "new"}), ("resend_dead", {}), ("resend_dead", {"to": "topic"})):
        event = AdminAsked(action, {"id": 1, "by": "ann", **arguments}, lambda *said: answers.append(said))
        life.engine.handle(event)  # all in one turn
    life.settle()
    assert sorted(type(error).__name__ for _, error in answers) == [
        "NoneType",
        "ServiceUnavailableError",
        "ServiceUnavailableError",
    ]
    life.ask("resend_dead", id=1, by="ann")
    assert life.peer().consumes().fetch() == [b"new"]


# --- retries ---------------------------------------------------------------------------------------------------------


def failing(life, *bodies, reason="time-out"):
    """Messages of which the first attempt failed; they are due in an hour."""
    peer = life.peer().consumes()
    peer.produce(*bodies)
    for message in fetch(peer):
        assert settle(peer, message, RETRY, reason, after_ms=3_600_000) == 0
    return peer


def retries(life, **wish):
    return life.ask("list_retries", topic="orders", app="shop", **wish)


def test_what_waits_to_be_tried_again_is_listed():
    life = make_broker(partitions=1)
    failing(life, b"a", b"b", b"c")
    page = retries(life, limit=2)
    assert (page["count"], page["next"], [row["id"] for row in page["rows"]]) == (3, 2, [1, 2])
    row = page["rows"][0]
    assert (row["offset"], row["attempts"], row["reason"], row["is_lent"]) == (0, 1, "time-out", False)
    assert row["due_ms"] == life.clock.wall_ms() + 3_600_000
    assert [row["id"] for row in retries(life, after=2)["rows"]] == [3]


@ends
@pytest.mark.parametrize("chosen", [None, [2]], ids=["all", "one"])
def test_retries_are_tried_at_once_when_an_operator_says_so(end, chosen):
    life = make_broker(partitions=1)
    peer = failing(life, b"a", b"b", b"c")
    wish = {"topic": "orders", "app": "shop", "by": "ann"} | ({"ids": chosen} if chosen else {})
    count = len(chosen or "abc")
    assert life.ask("retry_now", **wish) == {"count": count, "lent": 0, "done": 0, "job": None}
    assert peer.fetch() == []
    done = life.ask("retry_now", **wish, execute=True)
    if done["job"] is not None:
        assert finish(life, done["job"])["done"] == count
    getattr(life, end)()
    got = life.peer().consumes().fetch()
    assert sorted(got) == ([b"b"] if chosen else [b"a", b"b", b"c"])


@ends
@pytest.mark.parametrize("chosen", [None, [2]], ids=["all", "one"])
def test_retries_that_are_given_up_are_dead_letters(end, chosen):
    life = make_broker(partitions=1)
    failing(life, b"a", b"b", b"c")
    wish = {"topic": "orders", "app": "shop", "by": "ann"} | ({"ids": chosen} if chosen else {})
    assert life.ask("give_up_retries", **wish)["done"] == 0
    assert retries(life)["count"] == 3
    done = life.ask("give_up_retries", **wish, execute=True)
    if done["job"] is not None:
        finish(life, done["job"])
    getattr(life, end)()
    assert bodies(life) == ([b"b"] if chosen else [b"a", b"b", b"c"])
    assert retries(life)["count"] == (2 if chosen else 0)
    row = letters(life)[0]
    assert (row["cause"], row["attempts"], row["reason"]) == ("asked", 1, "given up by ann; before: time-out")


def test_a_retry_that_a_consumer_has_in_hand_is_left_alone():
    life = make_broker(partitions=1)
    failing(life, b"a", b"b")
    life.pass_ms(3_600_000)
    peer = life.peer().consumes()
    (message,) = peer.messages(peer.ask(peer.fetch_command(count=1)))
    assert [row["is_lent"] for row in retries(life)["rows"]] == [True, False]
    for action in ("retry_now", "give_up_retries"):
        plan = life.ask(action, topic="orders", app="shop", by="ann")
        assert (plan["count"], plan["lent"]) == (1, 1)
    done = life.ask("give_up_retries", topic="orders", app="shop", by="ann", ids=[1, 2], execute=True)
    assert (done["done"], done["lent"]) == (1, 1)
    assert settle(peer, message, DONE) == 0
    assert (bodies(life), retries(life)["count"]) == ([b"b"], 0)


# --- delays ----------------------------------------------------------------------------------------------------------


def test_what_waits_for_its_time_is_listed_and_may_be_cancelled():
    life = make_broker(partitions=1)
    peer = life.peer().consumes()
    due_ms = life.clock.wall_ms() + 60_000
    for body in (b"a", b"b", b"c"):
        details = {"business_id": body.decode(), "attributes": {"DELIVER_AT": str(due_ms), "TAGS": "t"}}
        assert peer.produce(body, **details)[0] == 0
    life.sync()
    page = life.ask("list_delays", topic="orders", limit=2)
    assert [(row["topic"], row["due_ms"], row["key"], row["tags"]) for row in page["rows"]] == [
        ("orders", due_ms, "a", "t"),
        ("orders", due_ms, "b", "t"),
    ]
    (third,) = life.ask("list_delays", after=page["next"])["rows"]
    assert life.ask("cancel_delay", id=third["id"], by="ann")["outcome"] == "cancelled"
    with pytest.raises(UnknownNameError):
        life.ask("cancel_delay", id=third["id"], by="ann")
    life.pass_ms(61_000)
    life.sync()
    assert sorted(peer.fetch()) == [b"a", b"b"]


# --- copies of a range -----------------------------------------------------------------------------------------------


@pytest.fixture
def filled():
    """Ten messages, a second apart, the last three in a batch; a second topic with one partition."""
    life = make_broker(partitions=2)
    life.ask("create_topic", name="copies", partitions=1)
    peer = life.peer()
    for number in range(7):
        peer.produce(b"%d" % number, partition=1, business_id=f"k{number}", attributes={"UNIQ_ID": str(number)})
        life.pass_ms(1000)
    peer.produce((b"7", b"8", b"9"), partition=1, attributes={"TAGS": "t"})
    return life


def copied(life, topic="orders", partition=1):
    number = life.topic_number(topic)
    group = life.engine.group
    found = []
    for index in range(group.visible_index(number, partition)):
        message, _ = life.broker.references.read(group.locate(number, partition, index), index)
        if "LAKEMQ_RESENT" in message.attributes:
            found.append(message)
    return found


def test_a_range_is_a_preview_until_it_is_executed(filled):
    plan = filled.ask("resend_range", topic="orders", by="ann", partition=1, first=2, last=8)
    assert plan["partitions"] == [{"partition": 1, "first": 2, "last": 8, "count": 7}]
    assert (plan["count"], plan["to_topic"], plan["job"]) == (7, "orders", None)
    assert plan["bytes"] > 7 * 57
    filled.pass_ms(5000)
    assert len(filled.stored(partition=1)) == 10


def test_a_range_is_copied_to_its_own_topic_and_ends_where_the_topic_ended(filled):
    job = filled.ask("resend_range", topic="orders", by="ann", partition=1, first=5, execute=True)["job"]
    ended = finish(filled, job)
    assert (ended["state"], ended["total"], ended["done"], ended["failed"]) == ("done", 5, 5, 0)
    filled.sync()
    assert filled.stored(partition=1)[10:] == [b"5", b"6", b"7", b"8", b"9"]
    found = copied(filled)
    assert [one.attributes["LAKEMQ_RESENT"] for one in found] == [f"orders/1/{index}" for index in range(5, 10)]
    assert found[0].business_id == "k5"
    assert "UNIQ_ID" not in found[0].attributes
    assert [one.attributes.get("TAGS") for one in found] == [None, None, "t", "t", "t"]


@ends
def test_a_range_may_be_copied_to_another_topic(filled, end):
    job = filled.ask(
        "resend_range", topic="orders", by="ann", partition=1, first=0, last=7, to_topic="copies", execute=True
    )["job"]
    finish(filled, job)
    filled.sync()
    getattr(filled, end)()
    assert filled.stored("copies") == [b"%d" % number for number in range(8)], "of a batch only what is wanted"
    assert len(filled.stored(partition=1)) == 10


def test_a_range_may_be_one_of_time_over_all_partitions(filled):
    life = filled
    life.peer().produce(b"other", partition=0)
    life.pass_ms(1000)
    number = life.topic_number("orders")
    slices = life.engine.group.read(number, 1, 0, 10, 1 << 20)
    from_ms, until_ms = slices[2].store_time_ms, slices[4].store_time_ms
    plan = life.ask("resend_range", topic="orders", by="ann", from_ms=from_ms, until_ms=until_ms, to_topic="copies")
    assert plan["partitions"] == [{"partition": 1, "first": 2, "last": 4, "count": 3}]
    every = life.ask("resend_range", topic="orders", by="ann", from_ms=0, to_topic="copies", execute=True)
    assert [one["count"] for one in every["partitions"]] == [1, 10]
    finish(life, every["job"])
    life.sync()
    assert sorted(life.stored("copies")) == sorted([b"other", *(b"%d" % one for one in range(10))])


def test_an_empty_range_is_no_job(filled):
    plan = filled.ask("resend_range", topic="orders", by="ann", partition=1, first=50, execute=True)
    assert (plan["count"], plan["partitions"], plan["job"]) == (0, [], None)


def test_a_range_is_copied_no_faster_than_was_said(filled):
    wish = {"topic": "orders", "partition": 1, "first": 0, "to_topic": "copies"}
    job = filled.ask("resend_range", by="ann", **wish, per_second=2, execute=True)["job"]
    for second in range(1, 4):
        for _ in range(10):
            filled.pass_ms(100)
        assert filled.ask("show_job", id=job["id"])["done"] == pytest.approx(2 * second, abs=1)


def test_messages_with_an_id_that_were_copied_are_still_stored_once(filled):
    finish(filled, filled.ask("resend_range", topic="orders", by="a", partition=1, first=0, execute=True)["job"])
    filled.sync()
    before = filled.stored(partition=1)
    assert filled.peer().produce(b"3", partition=1, attributes={"UNIQ_ID": "3"})[1][0].index == 3
    assert filled.stored(partition=1) == before


def test_a_copy_that_would_be_too_large_is_told_and_the_others_are_made():
    life = make_broker(partitions=1)
    long = {"a": "x" * 32_760}
    life.peer().produce(b"0")
    life.peer().produce(b"1", attributes=long)
    life.peer().produce(b"2")
    job = life.ask("resend_range", topic="orders", by="ann", partition=0, first=0, execute=True)["job"]
    ended = finish(life, job)
    assert (ended["state"], ended["done"], ended["failed"]) == ("done", 2, 1)
    assert ended["failures"][0]["what"] == "orders/0/1"
    life.sync()
    assert life.stored() == [b"0", b"1", b"2", b"0", b"2"]


def test_a_job_whose_goal_is_gone_fails_and_says_why(filled):
    wish = {"topic": "orders", "partition": 1, "first": 0, "to_topic": "copies"}
    job = filled.ask("resend_range", by="ann", **wish, per_second=2, execute=True)["job"]
    filled.ask("drop_topic", name="copies")
    ended = finish(filled, job)
    assert ended["state"] == "failed"
    assert "there is no topic 'copies'" in ended["trouble"]


# --- whatever is done in whatever order ------------------------------------------------------------------------------


class DeadLetterModel(RuleBasedStateMachine):
    """Beside the broker: where each message should be by now. Restarts and power cuts come in between."""

    @initialize()
    def begin(self):
        self.life = make_broker(partitions=1)
        self.texts = {}  # id of a dead letter -> its text
        self.given = []  # texts that the app must still get
        self.number = 0

    def _is_any(self):
        return bool(self.texts)

    @rule(count=st.integers(1, 3))
    def die(self, count):
        self.receive()
        made = [f"message {self.number + nth}" for nth in range(count)]
        self.number += count
        next_id = self.life.broker.ledger.state.dead_letters.next_id
        bury(self.life, *(text.encode() for text in made))
        self.texts |= {next_id + nth: text for nth, text in enumerate(made)}

    @precondition(_is_any)
    @rule(data=st.data())
    def edit(self, data):
        chosen = data.draw(st.sampled_from(sorted(self.texts)))
        self.texts[chosen] += " edited"
        self.life.ask("edit_dead", id=chosen, by="ann", text=self.texts[chosen])

    @precondition(_is_any)
    @rule(data=st.data(), to=st.sampled_from(["app", "topic"]))
    def resend(self, data, to):
        chosen = data.draw(st.sampled_from(sorted(self.texts)))
        self.life.ask("resend_dead", id=chosen, by="ann", to=to)
        self.given.append(self.texts.pop(chosen))

    @precondition(_is_any)
    @rule(data=st.data())
    def delete(self, data):
        chosen = data.draw(st.sampled_from(sorted(self.texts)))
        self.life.ask("delete_dead", id=chosen, by="ann")
        del self.texts[chosen]

    @precondition(_is_any)
    @rule(data=st.data(), to=st.sampled_from(["app", "topic", "nowhere"]))
    def do_with_a_range(self, data, to):
        first, last = sorted(data.draw(st.lists(st.sampled_from(sorted(self.texts)), min_size=2, max_size=2)))
        wish = {"by": "ann", "execute": True, "first_id": first, "last_id": last}
        done = (
            self.life.ask("delete_dead_many", **wish)
            if to == "nowhere"
            else self.life.ask("resend_dead_many", to=to, **wish)
        )
        finish(self.life, done["job"])
        for chosen in [one for one in self.texts if first <= one <= last]:
            text = self.texts.pop(chosen)
            if to != "nowhere":
                self.given.append(text)

    @rule(end=st.sampled_from(ENDS))
    def end(self, end):
        self.life.sync()
        getattr(self.life, end)()

    @rule()
    def receive(self):
        """The app gets what it was given, each once, and is done with it."""
        self.life.sync()
        peer = self.life.peer().consumes()
        got = []
        while messages := fetch(peer):
            for message in messages:
                got.append(message.body.decode())
                assert settle(peer, message, DONE) == 0
        peer.pipe.hang_up()
        assert sorted(got) == sorted(self.given)
        self.given = []

    @invariant()
    def all_letters_are_there_and_no_others(self):
        if hasattr(self, "life"):
            rows = letters(self.life, with_bodies=True)
            assert {row["id"]: row["text"] for row in rows} == self.texts
            assert json.dumps(rows)

    def teardown(self):
        if hasattr(self, "life"):
            self.receive()
            assert self.life.broker.metrics.bugs == 0


TestDeadLetterModel = DeadLetterModel.TestCase
TestDeadLetterModel.settings = settings(max_examples=25, stateful_step_count=20, deadline=None)


@settings(max_examples=60, deadline=None)
@given(
    requests=st.lists(
        st.lists(st.one_of(st.just(1), st.integers(1, 5)), min_size=1, max_size=4), min_size=1, max_size=6
    ),
    order=st.randoms(use_true_random=False),
)
def test_messages_are_opened_as_references_find_them(requests, order):
    life = make_broker(partitions=1)
    peer = life.peer()
    number = 0
    for sizes in requests:
        sent = []
        for size in sizes:
            made = [b"%d" % (number + nth) for nth in range(size)]
            number += size
            sent.append(made[0] if size == 1 else tuple(made))
        peer.produce(*sent, attributes={"TAGS": "t"})
    group, opening = life.engine.group, Opening(life.engine.group)
    places = [(group.locate(life.topic_number("orders"), 0, index), index) for index in range(number)]
    order.shuffle(places)
    for position, index in places:
        assert opening.read(position, index) == life.broker.references.read(position, index)
    for position, index in [(places[0][0], number), (places[0][0], -1), (life.journal.end_position, 0), (3, 0)]:
        with pytest.raises(ReadError):
            opening.read(position, index)


def test_a_reference_to_what_is_no_message_is_refused():
    life = make_broker(partitions=1)
    bury(life, b"x")
    opening = Opening(life.engine.group)
    others = [
        found.position
        for found in life.engine.group.records(0, life.journal.written_position)
        if found.header.type not in (RecordType.MESSAGES, RecordType.KEPT)
    ]
    assert len(others) > 3
    for position in others:
        with pytest.raises(ReadError):
            opening.read(position, 0)


def test_dead_letters_outlive_the_segments_they_were_in():
    life = make_broker(partitions=1, storage=TINY, retention=RetentionPolicy(size_bytes=1), retention_every_ms=100)
    bury(life, b"as it was", attributes={"a": "1"})
    bury(life, b"bad")
    life.ask("edit_dead", id=2, by="ann", text="edited")
    limited(life)
    life.peer().produce(b"x")
    life.peer().produce((b"over", b"the"), b"rate", attributes={"b": "2"})
    before = letters(life, with_bodies=True)
    assert [row["text"] for row in before] == ["as it was", "edited", "over", "the", "rate"]
    life.ask("set_app", name="shop", produce_per_second=0)
    for _ in range(40):
        life.peer().produce(bytes(2000))
        life.pass_ms(2000)
    assert life.journal.first_position > 0
    assert letters(life, with_bodies=True) == before
    for end in ENDS:
        life.sync()
        getattr(life, end)()
        assert letters(life, with_bodies=True) == before
    finish(life, life.ask("resend_dead_many", by="ann", execute=True)["job"])
    life.sync()
    peer = life.peer().consumes()
    got = [message.body for _ in range(60) for message in fetch(peer)]
    assert {b"as it was", b"edited"} <= set(got)
    assert life.stored()[-3:] == [b"over", b"the", b"rate"]
