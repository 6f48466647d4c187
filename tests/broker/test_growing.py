"""A topic gets more partitions while it is written; an ordered one keeps the order of each key."""

import pytest

from broker.fix_broker import TINY, make_broker
from lakemq.errors import BadParameterError
from lakemq.storage.retention import RetentionPolicy


def grow(life, partitions):
    life.ask("set_topic", name="orders", partitions=partitions)


def ordered(life_partitions=2, **details):
    life = make_broker(partitions=1, topics=(), **details)
    life.ask("create_topic", name="orders", partitions=life_partitions, type="ordered")
    life.ask("subscribe", topic="orders", app="shop", producer={}, consumer={"batch_size": 1}, start="earliest")
    return life


def test_a_normal_topic_is_written_at_once_where_it_grew():
    life = make_broker(partitions=1)
    peer = life.peer().consumes()
    peer.produce(b"old")
    grow(life, 3)
    code, (result,) = peer.produce(b"new", partition=2)
    assert (code, result.partition) == (0, 2)
    assert sorted(peer.fetch() + peer.fetch()) == [b"new", b"old"]


def test_it_only_grows():
    life = make_broker(partitions=3)
    with pytest.raises(BadParameterError, match="only grow"):
        grow(life, 2)


def test_each_key_of_an_ordered_topic_is_received_in_the_order_it_was_sent():
    life = ordered(2)
    peer = life.peer().consumes()
    keys = [f"k{number}" for number in range(6)]
    sent = {key: [] for key in keys}

    def send(round_number):
        for key in keys:
            body = f"{key} {round_number}".encode()
            code, _ = peer.produce(body, business_id=key, partition=0)
            assert code == 0
            sent[key].append(body)

    send(0)
    send(1)
    grow(life, 5)
    send(2)
    grow(life, 7)
    send(3)
    received = {key: [] for key in keys}
    for _ in range(200):
        answer = peer.ask(peer.fetch_command())
        for message in peer.messages(answer):
            received[message.business_id].append(message.body)
            assert peer.ack([message.index], partition=message.partition) == 0
    assert received == sent


def test_what_came_after_the_growth_waits_for_what_came_before():
    life = ordered(1)
    peer, other = life.peer().consumes(), life.peer().consumes()
    peer.produce(b"old", business_id="a")
    assert peer.fetch() == [b"old"]
    grow(life, 4)
    for key in "abcdefgh":
        peer.produce(b"new " + key.encode(), business_id=key)
    waiting = other.send(other.fetch_command(wait_ms=10_000))
    life.settle()
    assert other.received(waiting) is None, "the old one is not settled"
    assert peer.ack([0]) == 0
    life.settle()
    assert other.fetched(other.received(waiting))[0].startswith(b"new"), "who waits gets it at once"


def test_a_client_that_did_not_hear_of_the_growth_does_not_spread_a_key():
    life = ordered(1)
    peer = life.peer()
    peer.produce(b"0", business_id="key", partition=0)
    grow(life, 8)
    places = {peer.produce(b"1", business_id="key", partition=wanted)[1][0].partition for wanted in (0, 3, -1)}
    assert len(places) == 1


def test_a_new_app_need_not_wait():
    life = ordered(1)
    life.peer().produce(b"old", business_id="a")
    grow(life, 4)
    life.ask("subscribe", topic="orders", app="shop.new", consumer={}, start="latest")
    peer = life.peer(app="shop.new").consumes(app="shop.new")
    life.peer().produce(b"new", business_id="a")
    assert peer.fetch(app="shop.new") == [b"new"]


def test_growth_survives_a_kill():
    life = ordered(1)
    peer = life.peer()
    peer.produce(b"old", business_id="a")
    grow(life, 4)
    for key in "abcdefgh":
        peer.produce(b"new", business_id=key)
    life.kill()
    peer = life.peer().consumes()
    assert peer.fetch() == [b"old"]
    assert peer.fetch() == []
    peer.ack([0])
    assert peer.fetch() == [b"new"]


def receive_all(*peers):
    """Bodies in the order they come, each acked."""
    received = []
    for _ in range(100):
        for peer in peers:
            for message in peer.messages(peer.ask(peer.fetch_command())):
                received.append(message.body)
                assert peer.ack([message.index], partition=message.partition) == 0
    return received


def test_nobody_waits_for_what_retention_has_taken():
    """The app's place moves behind the growth by itself: nobody acks what would free the new partitions."""
    life = ordered(1, storage=TINY, retention=RetentionPolicy(size_bytes=1))
    peer, other = life.peer().consumes(), life.peer().consumes()
    for number in range(12):
        peer.produce(b"old %2d" % number * 500, business_id="a")
    grow(life, 4)
    for key in "abcdefgh":
        peer.produce(b"new " + key.encode() * 2000, business_id=key)
    assert peer.fetch(lease_ms=1000)[0].startswith(b"old  0")
    assert other.fetch() == [], "all partitions were looked at"
    life.pass_ms(life.config.retention_every_ms)
    life.pass_ms(1000)  # what says that the lease has run out must be synced before the segment goes
    stored = [body for partition in range(4) for body in life.stored(partition=partition)]
    assert stored
    assert all(body.startswith(b"new") for body in stored)
    assert sorted(receive_all(peer, other)) == sorted(stored)


def test_nobody_waits_for_what_a_filter_leaves_out():
    """The same where the last from before the growth is not for this app, and the one before it has expired."""
    life = ordered(1)
    life.ask("subscribe", topic="orders", app="shop", consumer={"filter": "red"})
    peer, other = life.peer().consumes(), life.peer().consumes()
    expires = str(life.engine.now().wall_ms + 500)
    peer.produce(b"old", business_id="a", attributes={"TAGS": "red", "EXPIRE": expires})
    peer.produce(b"old", business_id="a", attributes={"TAGS": "blue"})
    grow(life, 4)
    _, (result,) = peer.produce(b"new", business_id="b", attributes={"TAGS": "red"})
    assert result.partition > 0
    assert peer.fetch(lease_ms=1000) == [b"old"]
    assert other.fetch() == [], "all partitions were looked at"
    life.pass_ms(1000)
    assert receive_all(peer, other) == [b"new"]
