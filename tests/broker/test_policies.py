"""Policies and limits: each does what it says, and a change is in force at once, for connections that are there."""

import dataclasses

import pytest

from broker.fix_broker import DOCUMENTED, JOYQUEUE, make_broker
from lakemq.errors import BadParameterError
from lakemq.message import Qos
from lakemq.policy import ConsumerPolicy, ProducerPolicy
from lakemq.wire.metadata import FetchCluster

both = pytest.mark.parametrize("dialect", [DOCUMENTED, JOYQUEUE], ids=lambda one: one.value)

PRODUCER_CHANGES = {
    "is_nearby": True,
    "is_single": True,
    "is_archive": True,
    "weights": (("0", 3),),
    "black_list": ("10.9.9.9",),
    "timeout_ms": 77,
}
CONSUMER_CHANGES = {
    "is_nearby": True,
    "is_paused": True,
    "is_archive": True,
    "is_retry": False,
    "is_sequential": True,
    "ack_timeout_ms": 77,
    "batch_size": 7,
    "is_concurrent": True,
    "concurrent_prefetch_size": 9,
    "delay_ms": 5,
    "black_list": ("10.9.9.9",),
    "error_times": 9,
    "partitions_max": 2,
    "retry_read_probability": 50,
}


def set_consumer(life, **policy):
    life.ask("subscribe", topic="orders", app="shop", consumer=policy)


def set_producer(life, **policy):
    life.ask("subscribe", topic="orders", app="shop", producer=policy)


def told(policy):
    return {one.name for one in dataclasses.fields(policy) if one.metadata.get("on_wire", True)}


def test_every_policy_that_clients_are_told_is_in_the_tables_here():
    assert told(ProducerPolicy) == PRODUCER_CHANGES.keys()
    assert told(ConsumerPolicy) == CONSUMER_CHANGES.keys()


@both
@pytest.mark.parametrize("name", PRODUCER_CHANGES)
def test_a_producers_policy_is_told_as_soon_as_it_is_set(dialect, name):
    life = make_broker()
    peer = life.peer(dialect=dialect)
    set_producer(life, **{name: PRODUCER_CHANGES[name]})
    (topic,) = peer.ask(FetchCluster(("orders",), "shop")).body.topics
    assert getattr(topic.producer_policy, name) == PRODUCER_CHANGES[name]


@both
@pytest.mark.parametrize("name", CONSUMER_CHANGES)
def test_a_consumers_policy_is_told_as_soon_as_it_is_set(dialect, name):
    life = make_broker()
    peer = life.peer(dialect=dialect)
    changes = {name: CONSUMER_CHANGES[name]}
    if dialect is JOYQUEUE and name in ("is_concurrent", "concurrent_prefetch_size"):
        changes = {"is_concurrent": True, "concurrent_prefetch_size": 9}
    set_consumer(life, **changes)
    (topic,) = peer.ask(FetchCluster(("orders",), "shop")).body.topics
    assert getattr(topic.consumer_policy, name) == CONSUMER_CHANGES[name]


def test_what_is_not_named_stays_as_it_was():
    life = make_broker()
    set_consumer(life, batch_size=7, ack_timeout_ms=1000)
    set_consumer(life, batch_size=8)
    set_producer(life, timeout_ms=99)
    subscription = life.broker.ledger.metadata.subscription("orders", "shop")
    assert (subscription.consumer.batch_size, subscription.consumer.ack_timeout_ms) == (8, 1000)
    assert subscription.producer.timeout_ms == 99


@pytest.mark.parametrize(
    ("role", "settings"),
    [
        ("consumer", {"batch_size": 0}),
        ("consumer", {"batch_size": 32768}),
        ("consumer", {"batch_size": True}),
        ("consumer", {"batch_size": "10"}),
        ("consumer", {"batch_size": 1.5}),
        ("consumer", {"ack_timeout_ms": 0}),
        ("consumer", {"ack_timeout_ms": 86_400_001}),
        ("consumer", {"partitions_max": 0}),
        ("consumer", {"error_times": -1}),
        ("consumer", {"retry_read_probability": 101}),
        ("consumer", {"concurrent_prefetch_size": 0}),
        ("consumer", {"delay_ms": -1}),
        ("consumer", {"is_paused": 1}),
        ("consumer", {"is_paused": None}),
        ("consumer", {"black_list": "10.0.0.1"}),
        ("consumer", {"black_list": [""]}),
        ("consumer", {"black_list": [5]}),
        ("consumer", {"nonsense": 1}),
        ("consumer", {"timeout_ms": 1}),
        ("producer", {"timeout_ms": 0}),
        ("producer", {"timeout_ms": 600_001}),
        ("producer", {"weights": {"0": 32768}}),
        ("producer", {"weights": {"0": -1}}),
        ("producer", {"weights": {"0": "much"}}),
        ("producer", {"weights": 5}),
        ("producer", {"weights": None}),
        ("producer", {"batch_size": 5}),
        ("producer", []),
        ("producer", 5),
    ],
    ids=str,
)
def test_a_policy_that_cannot_be_is_refused_and_nothing_changes(role, settings):
    life = make_broker()
    before = life.facts()
    with pytest.raises(BadParameterError):
        life.ask("subscribe", topic="orders", app="shop", **{role: settings})
    assert life.facts() == before


# --- those that the broker itself obeys ------------------------------------------------------------------------------


@both
def test_the_size_of_a_batch_may_be_changed(dialect):
    life = make_broker(partitions=1)
    peer = life.peer(dialect=dialect).consumes()
    peer.produce(*[b"x"] * 20)
    set_consumer(life, batch_size=3)
    assert len(peer.fetch()) == 3
    peer.ack(range(3))
    assert len(peer.fetch(count=10)) == 3, "who asks for more gets no more"
    peer.ack(range(3, 6))
    set_consumer(life, batch_size=8)
    assert len(peer.fetch(count=10)) == 8


@both
def test_a_poll_that_waits_gets_what_the_policy_says_by_then(dialect):
    life = make_broker(partitions=1)
    peer = life.peer(dialect=dialect).consumes()
    waiting = peer.send(peer.fetch_command(wait_ms=10_000))
    set_consumer(life, batch_size=2)
    peer.produce(*[b"x"] * 5)
    assert len(peer.fetched(peer.received(waiting))) == 2


@both
def test_the_length_of_leases_may_be_changed_and_counts_from_the_next(dialect):
    life = make_broker(partitions=2)
    set_consumer(life, ack_timeout_ms=1000)
    peer = life.peer(dialect=dialect).consumes()
    peer.produce(b"a", partition=0)
    peer.produce(b"b", partition=1)
    first = peer.fetch()
    set_consumer(life, ack_timeout_ms=50_000)
    second = peer.fetch()
    life.pass_ms(1000)
    assert peer.fetch() == first
    life.pass_ms(48_999)
    assert peer.fetch() == []
    life.pass_ms(1)
    assert peer.fetch() == second


@both
@pytest.mark.parametrize("host", ["10.0.0.1", "::1"])
def test_an_address_may_be_shut_out_and_let_in_again(dialect, host):
    life = make_broker()
    peer = life.peer(dialect=dialect, host=host).consumes()
    assert peer.produce(b"x")[0] == 0
    set_producer(life, black_list=[host])
    assert peer.produce(b"x")[0] == (146 if dialect is DOCUMENTED else 144)
    assert peer.fetch() == [b"x"], "sending and receiving are two things"
    peer.ack([0])
    set_producer(life, black_list=[])
    assert peer.produce(b"y")[0] == 0
    set_consumer(life, black_list=["10.9.9.9", host])
    assert peer.fetch() == (147 if dialect is DOCUMENTED else 145)
    set_consumer(life, black_list=["10.9.9.9"])
    assert peer.fetch() == [b"y"]


@both
def test_a_pause_stops_lending_but_not_acks(dialect):
    life = make_broker(partitions=1)
    peer = life.peer(dialect=dialect).consumes()
    peer.produce(b"x")
    peer.fetch()
    set_consumer(life, is_paused=True)
    assert (peer.fetch(), peer.read(), peer.ack([0]), peer.stand()) == (186, 186, 0, 1)
    peer.produce(b"y")
    set_consumer(life, is_paused=False)
    assert peer.fetch() == [b"y"]


def test_a_pause_is_of_one_app_on_one_topic():
    life = make_broker(topics=("orders", "bills"))
    life.ask("subscribe", topic="orders", app="shop.b", consumer={}, start="earliest")
    set_consumer(life, is_paused=True)
    peer = life.peer().consumes("orders", "bills").consumes(app="shop.b")
    peer.produce(b"x")
    peer.produce(b"y", topic="bills")
    assert (peer.fetch(), peer.fetch("bills"), peer.fetch(app="shop.b")) == (186, [b"y"], [b"x"])


@both
def test_retries_may_be_switched_off(dialect):
    life = make_broker(partitions=1)
    peer = life.peer(dialect=dialect).consumes()
    peer.produce(b"x")
    peer.fetch()
    set_consumer(life, is_retry=False)
    assert peer.ack([0], kind=2) == 0
    assert (life.ack_index(), peer.fetch()) == (0, [b"x"]), "it comes again at once"
    set_consumer(life, is_retry=True)
    assert peer.ack([0], kind=2) == 0
    assert (life.ack_index(), peer.fetch()) == (1, []), "it comes again later"


@both
def test_how_many_partitions_one_consumer_has_may_be_changed(dialect):
    life = make_broker(partitions=3)
    peer = life.peer(dialect=dialect).consumes()
    for partition in range(3):
        peer.produce(b"x", partition=partition)
    set_consumer(life, partitions_max=1)
    assert [len(peer.fetch()) for _ in range(2)] == [1, 0]
    set_consumer(life, partitions_max=2)
    assert [len(peer.fetch()) for _ in range(2)] == [1, 0]


@both
def test_a_topic_may_be_closed_and_opened(dialect):
    life = make_broker()
    peer = life.peer(dialect=dialect).consumes()
    peer.produce(b"x")
    life.ask("set_topic", name="orders", is_writable=False)
    assert (peer.produce(b"y")[0], peer.fetch()) == (144, [b"x"])
    peer.ack([0])
    life.ask("set_topic", name="orders", is_writable=True, is_readable=False)
    assert (peer.produce(b"y")[0], peer.fetch()) == (0, 145)
    life.ask("set_topic", name="orders", is_readable=True)
    assert peer.fetch() == [b"y"]


# --- limits of an app ------------------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize("limit", ["produce_per_second", "produce_bytes_per_second"])
def test_an_app_may_send_so_much_in_a_second_over_all_its_connections(dialect, limit):
    life = make_broker()
    peers = [life.peer(dialect=dialect) for _ in range(2)]
    amount = 10 if limit == "produce_per_second" else 10 * len(peers[0].produce_entry(b"x").messages)
    life.ask("set_app", name="shop", **{limit: amount})

    def sent_now():
        count = 0
        while peers[count % 2].produce(b"x", qos=Qos.WRITE)[0] == 0:
            count += 1
        return count

    assert sent_now() == 10
    life.pass_ms(500)
    assert sent_now() == 5
    life.pass_ms(60_000)
    assert sent_now() == 10, "no more than a second's worth is saved up"
    assert life.capped["app_rate"] == 3
    life.ask("set_app", name="shop", **{limit: 0})
    assert [peers[0].produce(b"x")[0] for _ in range(50)] == [0] * 50, "0 is no limit"
    life.sync()
    assert len(life.stored()) == 10 + 5 + 10 + 50, "what was refused is not there"


def test_a_run_counts_as_many_messages_as_it_has():
    life = make_broker()
    peer = life.peer()
    life.ask("set_app", name="shop", produce_per_second=100)
    for _ in range(2):
        peer.produce(b"x", qos=Qos.WRITE)
    peer.send_all(*[peer.produce_command(b"x", b"y", qos=Qos.WRITE) for _ in range(100)])
    life.settle()
    assert peer.produce(b"x", qos=Qos.WRITE)[0] == 74
    life.pass_ms(1010)
    assert peer.produce(b"x", qos=Qos.WRITE)[0] == 74, "202 messages are two seconds' worth"
    life.pass_ms(20)
    assert peer.produce(b"x", qos=Qos.WRITE)[0] == 0


@both
def test_the_limit_of_an_app_counts_for_its_groups_and_for_nobody_else(dialect):
    life = make_broker()
    life.ask("subscribe", topic="orders", app="shop.b", producer={})
    life.ask("create_app", name="bank")
    life.ask("add_token", name="bank", token_id="1", token="a token of bank")
    life.ask("subscribe", topic="orders", app="bank", producer={})
    life.ask("set_app", name="shop", produce_per_second=1)
    shop, bank = life.peer(dialect=dialect), life.peer("bank", dialect=dialect, token="a token of bank")
    assert shop.produce(b"x")[0] == 0
    assert shop.produce(b"x", app="shop.b")[0] == 74
    assert [bank.produce(b"x")[0] for _ in range(5)] == [0] * 5


@both
@pytest.mark.parametrize("limit", ["fetch_per_second", "fetch_bytes_per_second"])
def test_an_app_that_has_received_enough_gets_nothing_for_a_while(dialect, limit):
    """A limited fetch is answered empty and without an error, as JoyQueue does it."""
    life = make_broker(partitions=4)
    peer = life.peer(dialect=dialect).consumes()
    for partition in range(4):
        peer.produce(b"x", b"y", partition=partition)
    size = sum(len(one.messages) for one in peer.ask(peer.fetch_command()).body.topics)
    life.ask("set_app", name="shop", **{limit: 2 if limit == "fetch_per_second" else size})
    assert len(peer.fetch()) == 2
    assert (peer.fetch(), peer.read(index=0)) == ([], [])
    assert life.capped["app_rate"] == 2
    waiting = peer.send(peer.fetch_command(wait_ms=10_000))
    life.pass_ms(0)
    assert peer.received(waiting) is None
    life.pass_ms(1)
    assert len(peer.fetched(peer.received(waiting))) == 2, "who waits is served when there is room"
    life.ask("set_app", name="shop", **{limit: 0})
    assert len(peer.fetch()) == 2


@pytest.mark.parametrize(
    "limits",
    [{"produce_per_second": -1}, {"fetch_per_second": "5"}, {"nonsense": 5}, {"produce_per_second": True}],
    ids=str,
)
def test_a_limit_that_cannot_be_is_refused(limits):
    life = make_broker()
    before = life.facts()
    with pytest.raises(BadParameterError):
        life.ask("set_app", name="shop", **limits)
    assert life.facts() == before


@both
def test_messages_may_be_held_back_until_they_have_an_age(dialect):
    life = make_broker(partitions=1)
    set_consumer(life, delay_ms=5000)
    peer = life.peer(dialect=dialect).consumes()
    peer.produce(b"first")
    life.pass_ms(3000)
    peer.produce(b"second")
    waiting = peer.send(peer.fetch_command(wait_ms=10_000))
    life.settle()
    assert peer.received(waiting) is None
    life.pass_ms(2100)
    assert peer.fetched(peer.received(waiting)) == [b"first"], "who waits gets it when it is old enough"
    assert peer.ack([0]) == 0
    assert peer.fetch() == []
    life.pass_ms(3000)
    assert peer.fetch() == [b"second"]
