"""Sessions: who may say what, from the first frame to the last."""

import pytest

from broker.fix_broker import DOCUMENTED, JOYQUEUE, TOKEN, VERSIONS, BrokerLife, make_broker
from lakemq.wire.commands import encode_response
from lakemq.wire.coordinate import AssignmentWish, FetchAssignedPartition
from lakemq.wire.dialect import Form
from lakemq.wire.header import Header
from lakemq.wire.metadata import FetchCluster
from lakemq.wire.session import (
    AddConnection,
    AddConnectionAck,
    AddConsumer,
    AddProducer,
    FetchHealth,
    Heartbeat,
    RemoveConnection,
    RemoveConsumer,
    RemoveProducer,
)

both = pytest.mark.parametrize("dialect", [DOCUMENTED, JOYQUEUE], ids=lambda one: one.value)


# --- the first frame -------------------------------------------------------------------------------------------------


@both
def test_a_heartbeat_and_a_question_for_health_are_answered_before_the_introduction(dialect):
    peer = make_broker().peer(dialect=dialect, introduces=False)
    assert peer.ask(Heartbeat()).status == 0
    assert peer.ask(FetchHealth()).body.point == 100.0
    assert peer.introduce().status == 0


@pytest.mark.parametrize("number", [0, -1, 9, 77, 127, -128])
def test_a_first_frame_of_an_unknown_type_ends_the_connection_unanswered(number):
    peer = make_broker().peer(introduces=False)
    peer.pipe.feed(Header(number, 1).pack(0))
    peer.life.settle()
    assert (peer.is_closed, peer.received(1)) == (True, None)


def test_a_first_frame_that_is_a_response_ends_the_connection_unanswered():
    peer = make_broker().peer(introduces=False)
    request = Header(1, 1)
    peer.pipe.feed(b"".join(encode_response(AddConnectionAck(), request, dialect=DOCUMENTED, send_time_ms=0)))
    peer.life.settle()
    assert (peer.is_closed, peer.received(1)) == (True, None)


@both
def test_a_later_response_is_dropped_and_harms_nobody(dialect):
    peer = make_broker().peer(dialect=dialect)
    request = Header(7, 99, VERSIONS[dialect])
    peer.pipe.feed(b"".join(encode_response(None, request, dialect=dialect, send_time_ms=0)))
    peer.life.settle()
    assert peer.received(99) is None
    assert peer.ask(Heartbeat()).status == 0


@pytest.mark.parametrize(
    "junk",
    [b"GET / HTTP/1.1\r\n", bytes(32), Header(7, 1).pack(0)[:4] + b"junk" + bytes(15), (9 << 20).to_bytes(4, "big")],
    ids=["another protocol", "zeros", "wrong magic", "too long"],
)
def test_bytes_that_are_no_frames_end_the_connection_and_what_came_before_is_served(junk):
    peer = make_broker().peer()
    stored = peer.frame(peer.produce_command(b"x"))
    peer.pipe.feed(stored + junk)
    peer.life.settle()
    assert peer.is_closed
    assert peer.life.stored() == [b"x"]
    assert peer.life.capped["bad_frames"] == 1


@both
@pytest.mark.parametrize("version", [0, 1, 2, 3, 4, 9, 127])
def test_the_dialect_is_told_by_the_payload_and_the_version_is_echoed(dialect, version):
    peer = make_broker().peer(dialect=dialect, introduces=False)
    peer.form = Form(dialect, version)
    assert peer.introduce().status == 0
    assert peer.connection.dialect is dialect
    assert peer.ask(Heartbeat()).type == (-7 if dialect is DOCUMENTED else -128)


def test_both_dialects_are_served_at_once_over_the_same_topic():
    life = make_broker()
    documented, joyqueue = life.peer(), life.peer(dialect=JOYQUEUE)
    documented.produce(b"from documented")
    joyqueue.produce(b"from joyqueue")
    for peer in (documented, joyqueue):
        assert peer.read(index=0) == [b"from documented", b"from joyqueue"]


def test_who_does_not_introduce_himself_in_time_is_closed():
    life = make_broker()
    silent, talking = life.peer(introduces=False), life.peer(introduces=False)
    life.pass_ms(life.config.limits.introduction_ms)
    assert talking.introduce().status == 0
    assert not silent.is_closed
    life.pass_ms(1000)
    assert (silent.is_closed, talking.is_closed) == (True, False)
    assert life.capped["introduction"] == 1


def test_who_says_nothing_for_long_is_closed_unless_he_waits_for_messages():
    life = make_broker(long_poll_max_ms=10**9)
    silent, waiting, beating = life.peer(), life.peer().consumes(), life.peer()
    waiting.send(waiting.fetch_command(wait_ms=10**9))
    life.pass_ms(life.config.limits.idle_ms - 1000)
    beating.ask(Heartbeat())
    assert not silent.is_closed
    life.pass_ms(2000)
    assert (silent.is_closed, waiting.is_closed, beating.is_closed) == (True, False, False)


# --- introduced again ------------------------------------------------------------------------------------------------


def test_a_second_introduction_from_joyqueue_checks_the_token_again_and_keeps_the_first_identity():
    """joyqueue-python does so when the broker it began with leads a partition."""
    life = make_broker()
    life.ask("create_app", name="bank")
    life.ask("add_token", name="bank", token_id="1", token="a token of bank")
    peer = life.peer(dialect=JOYQUEUE, introduces=False)
    first = peer.introduce(namespace="north", region="here").body.connection_id
    assert first
    assert peer.introduce(token="wrong").status == 2
    assert peer.introduce(app="bank", token="a token of bank", namespace="south").body.connection_id == first
    assert (peer.connection.app, peer.connection.region) == ("shop", "here")
    assert peer.ask(FetchCluster((), "shop")).status == 0
    assert peer.ask(FetchCluster((), "bank")).status == 132


def test_ids_of_connections_are_given_once():
    life = make_broker()
    ids = [life.peer().connection.name for _ in range(5)]
    assert len(set(ids)) == 5


def test_a_token_that_is_dropped_lets_nobody_in_and_nobody_out():
    life = make_broker()
    peer = life.peer()
    life.ask("drop_token", name="shop", token_id="first")
    assert peer.produce(b"x")[0] == 0
    assert life.peer(introduces=False).introduce().status == 2


def test_any_of_the_tokens_will_do():
    life = make_broker()
    life.ask("add_token", name="shop", token_id="second", token="another token")
    assert life.peer(token="another token").connection.app == "shop"
    assert life.peer(token=TOKEN).connection.app == "shop"


def test_an_app_without_a_token_is_nobodys_but_an_open_one_is_everybodys():
    life = BrokerLife()
    life.ask("create_app", name="shop")
    assert life.peer(introduces=False).introduce(token="").status == 2
    life = BrokerLife(creates_missing=True)
    assert life.peer(token="whatever").connection.app == "shop"
    assert life.peer(token="").connection.app == "shop"


# --- authorisation by app --------------------------------------------------------------------------------------------


@both
def test_a_connection_speaks_for_the_groups_of_its_app(dialect):
    life = make_broker()
    life.ask("subscribe", topic="orders", app="shop.left", consumer={}, start="earliest")
    life.ask("subscribe", topic="orders", app="shop.right", consumer={}, start="earliest")
    peer = life.peer(dialect=dialect)
    peer.produce(b"x")
    for app in ("shop.left", "shop.right"):
        peer.consumes(app=app)
        assert peer.fetch(app=app) == [b"x"], "each group gets its own"
    assert peer.ack([0], app="shop.left") == 0
    assert (life.ack_index(app="shop.left"), life.ack_index(app="shop.right")) == (1, 0)
    assert peer.ask(FetchCluster((), "shopping")).status == 132
    assert peer.ask(FetchCluster((), "")).status == 132


@both
def test_who_connects_as_a_group_is_the_app(dialect):
    life = make_broker()
    peer = life.peer("shop.left", dialect=dialect)
    assert peer.connection.app == "shop"
    assert peer.ask(FetchCluster(("orders",), "shop")).body.topics[0].code == 0


@both
def test_the_admin_app_speaks_for_every_app_and_no_other_does(dialect):
    life = make_broker(admin_app="root")
    life.ask("create_app", name="root")
    life.ask("add_token", name="root", token_id="1", token="a token of root")
    admin = life.peer("root", dialect=dialect, token="a token of root")
    assert admin.ask(FetchCluster(("orders",), "shop")).body.topics[0].code == 0
    assert admin.produce(b"x", app="shop")[0] == 0
    assert life.peer(dialect=dialect).ask(FetchCluster((), "root")).status == 132


def test_without_an_admin_app_nobody_is_it():
    life = BrokerLife(creates_missing=True)
    for name in ("joyqueue", "admin"):
        assert life.peer(name).ask(FetchCluster((), "shop")).status == 132


# --- namespaces ------------------------------------------------------------------------------------------------------


def test_a_namespace_goes_before_topics_that_name_none_and_answers_name_what_was_asked():
    life = make_broker(topics=("orders", "north.orders"))
    north, plain = life.peer(namespace="north"), life.peer()
    answer = north.ask(north.produce_command(b"north"))
    assert answer.body.topics[0].topic == "orders"
    plain.produce(b"plain")
    assert (life.stored("north.orders"), life.stored("orders")) == ([b"north"], [b"plain"])
    plain.produce(b"by its full name", topic="north.orders")
    assert north.read(index=0) == [b"north", b"by its full name"]
    north.consumes()
    assert north.fetch() == [b"north", b"by its full name"]
    assert north.ack([0, 1]) == 0
    assert (life.ack_index("north.orders"), life.ack_index("orders")) == (2, 0)
    assert north.stand() == 2
    (topic,) = north.ask(FetchCluster(("orders",), "shop")).body.topics
    assert (topic.topic, topic.code) == ("orders", 0)


@pytest.mark.parametrize("namespace", ["abc", "a.b", "what is this?"])
def test_from_a_joyqueue_client_a_namespace_means_nothing(namespace):
    """joyqueue-python sends its consumer group there, and means `orders` by `orders`."""
    life = make_broker(topics=("orders", "abc.orders"))
    peer = life.peer(dialect=JOYQUEUE, namespace=namespace)
    assert peer.produce(b"x")[0] == 0
    assert (life.stored("orders"), life.stored("abc.orders")) == ([b"x"], [])
    assert peer.consumes().fetch() == [b"x"]


# --- roles -----------------------------------------------------------------------------------------------------------


@both
def test_adding_a_role_again_gives_the_same_id_and_another_topic_another(dialect):
    life = make_broker(topics=("a", "b", "c"))
    peer = life.peer(dialect=dialect)
    first = peer.ask(AddConsumer(("a", "b"), "shop")).body.consumers
    assert [one.topic for one in first] == ["a", "b"]
    assert peer.ask(AddConsumer(("b", "a"), "shop")).body.consumers == first[::-1]
    sends = peer.ask(AddProducer(("a", "b"), "shop")).body.producers
    assert peer.ask(AddProducer(("a",), "shop")).body.producers == sends[:1]
    peer.ask(RemoveConsumer(("a",), "shop"))
    third = peer.ask(AddConsumer(("c",), "shop")).body.consumers
    ids = [one.consumer_id for one in (*first, *third)] + [one.producer_id for one in sends]
    assert len(set(ids)) == len(ids), "an id is given once"


def test_a_role_that_is_there_may_be_added_again_when_no_more_are_allowed():
    life = make_broker(topics=("a", "b", "c"), limits_of={"roles_per_connection_max": 2})
    peer = life.peer()
    assert peer.ask(AddConsumer(("a", "b"), "shop")).status == 0
    assert peer.ask(AddConsumer(("a", "b", "a"), "shop")).status == 0
    assert peer.ask(AddConsumer(("c",), "shop")).status == 6
    peer.ask(RemoveConsumer(("a",), "shop"))
    assert peer.ask(AddConsumer(("c",), "shop")).status == 0


@both
def test_removing_roles_that_were_never_added_is_fine(dialect):
    peer = make_broker().peer(dialect=dialect)
    assert peer.ask(RemoveConsumer(("orders", "nothing"), "shop")).status == 0
    assert peer.ask(RemoveProducer(("orders", "nothing"), "shop")).status == 0


@both
def test_removing_a_consumer_gives_back_what_it_had_and_answers_what_it_waits_for(dialect):
    life = make_broker(topics=("orders", "bills"))
    peer, other = life.peer(dialect=dialect).consumes("orders", "bills"), life.peer(dialect=dialect).consumes()
    peer.produce(b"x")
    assert peer.fetch() == [b"x"]
    waiting = peer.send(peer.fetch_command(wait_ms=10_000))
    elsewhere = peer.send(peer.fetch_command("bills", wait_ms=10_000))
    others = other.send(other.fetch_command(wait_ms=10_000))
    assert peer.ask(RemoveConsumer(("orders",), "shop")).status == 0
    assert peer.fetched(peer.received(waiting)) == []
    assert other.fetched(other.received(others)) == [b"x"], "at once, to who waits"
    assert peer.received(elsewhere) is None, "the other topic's goes on"
    assert peer.fetch() == 136


@both
def test_a_producer_that_was_removed_may_send_all_the_same(dialect):
    """PRODUCE_MESSAGE needs a subscription and no ADD_PRODUCER."""
    peer = make_broker().peer(dialect=dialect)
    peer.ask(AddProducer(("orders",), "shop"))
    peer.ask(RemoveProducer(("orders",), "shop"))
    assert peer.produce(b"x")[0] == 0


# --- the end ---------------------------------------------------------------------------------------------------------


def leaves_by_command(peer):
    assert peer.ask(RemoveConnection()).status == 0


def leaves_by_hanging_up(peer):
    peer.pipe.hang_up()


def leaves_by_nonsense(peer):
    peer.pipe.feed(bytes(32))


leaving = pytest.mark.parametrize(
    "leave", [leaves_by_command, leaves_by_hanging_up, leaves_by_nonsense], ids=lambda one: one.__name__
)


@both
@leaving
def test_whoever_leaves_leaves_nothing_behind(dialect, leave):
    life = make_broker(partitions=4)
    gone, other = life.peer(dialect=dialect).consumes(), life.peer(dialect=dialect).consumes()
    gone.produce(b"x")
    assert gone.fetch() == [b"x"]
    for _ in range(3):
        gone.send(gone.fetch_command(wait_ms=10_000))
    waiting = other.send(other.fetch_command(wait_ms=10_000))
    leave(gone)
    life.settle()
    assert other.fetched(other.received(waiting)) == [b"x"]
    assert life.broker.consuming.deadlines.waiting == 0
    assert gone.connection.parked_polls == 0
    assert (gone.connection.consumers, gone.connection.producers) == ({}, {})


@leaving
def test_what_was_assigned_to_who_leaves_goes_to_the_others(leave):
    life = make_broker(partitions=4)
    gone, other = life.peer(), life.peer()

    def assigned(peer):
        answer = peer.ask(FetchAssignedPartition((AssignmentWish("orders", 60_000),), "shop"))
        return answer.body.topics[0].partitions

    assigned(gone)
    assert len(assigned(other)) == 2
    leave(gone)
    life.settle()
    assert len(assigned(other)) == 4


@both
def test_after_remove_connection_the_socket_stays_and_may_be_introduced_anew(dialect):
    life = make_broker()
    life.ask("create_app", name="bank")
    life.ask("add_token", name="bank", token_id="1", token="a token of bank")
    peer = life.peer(dialect=dialect)
    life.pass_ms(life.config.limits.introduction_ms * 2)
    peer.ask(Heartbeat())
    leaves_by_command(peer)
    assert peer.ask(FetchCluster((), "shop")).status == 132
    assert peer.ask(Heartbeat()).status == 0
    life.pass_ms(1000)
    assert not peer.is_closed, "it has as long as a new one"
    assert peer.ask(AddConnection(app="bank", token="a token of bank")).status == 0
    assert peer.connection.app == "bank"


def test_a_produce_request_from_before_the_end_is_stored_and_answered_to_nobody():
    life = make_broker()
    peer = life.peer()
    peer.send(peer.produce_command(b"x"))
    peer.pipe.hang_up()
    life.settle()
    assert life.stored() == [b"x"]
    assert life.broker.sessions.connections == {}


def test_health_falls_with_what_the_broker_cannot_do():
    life = make_broker()
    peer = life.peer()
    assert peer.ask(FetchHealth()).body.point == 100.0
    life.ask("set_broker", writable=False)
    assert peer.ask(FetchHealth()).body.point == 50.0
    life.ask("set_broker", writable=True)
    assert peer.ask(FetchHealth()).body.point == 100.0
