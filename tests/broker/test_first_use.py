"""Topics, apps and subscriptions made on first use, many at once: a turn makes some of them, the next ones the rest."""

import json
from dataclasses import asdict

import pytest

from broker.fix_broker import TOKEN, BrokerLife
from lakemq.broker.access import MADE_IN_TURN_MAX
from lakemq.cluster.metadata import Metadata
from lakemq.message import Qos
from lakemq.storage.config import StorageConfig
from lakemq.wire.session import AddConnection, AddProducer

ROOMY = StorageConfig(segment_bytes=16 << 20, record_bytes_max=8 << 20, checkpoint_bytes=64 << 20)
MADE_AT_ONCE = 3  # by one request: a topic, an app and a subscription


def made(life):
    metadata = life.broker.ledger.metadata
    return len(metadata.topics) + len(metadata.apps) + len(metadata.subscriptions)


@pytest.fixture
def life():
    return BrokerLife(creates_missing=True, storage=ROOMY)


@pytest.mark.parametrize("qos", [Qos.FLUSH, Qos.WRITE])
def test_a_turn_makes_a_bounded_number_and_the_others_wait_for_the_next(life, qos):
    peers = [life.peer(app=f"app{number}", introduces=False) for number in range(300)]
    asked = [
        (
            peer,
            peer.send_all(
                AddConnection(app=peer.app, token=TOKEN),
                AddProducer((f"topic{number}",), peer.app),
                peer.produce_command(b"x", topic=f"topic{number}", qos=qos),
            )[2],
        )
        for number, peer in enumerate(peers)
    ]
    turns, before = 0, made(life)
    assert before <= MADE_IN_TURN_MAX + MADE_AT_ONCE
    while life.broker.sessions.choked or life.broker.needs_turn:
        life.engine.end_turn()
        turns += 1
        assert made(life) - before <= MADE_IN_TURN_MAX + MADE_AT_ONCE
        before = made(life)
    assert turns >= 300 * MADE_AT_ONCE // (MADE_IN_TURN_MAX + MADE_AT_ONCE)
    life.settle()
    life.sync()
    assert [peer.received(request).body.topics[0].code for peer, request in asked] == [0] * 300
    assert {life.appended(f"topic{number}") for number in range(300)} == {1}
    assert life.capped["made_in_turn"] > 0


def test_who_is_held_back_is_served_when_everything_has_settled(life):
    peers = [life.peer(app=f"app{number}") for number in range(100)]
    asked = [(peer, peer.send(peer.produce_command(b"x", topic=f"topic{at}"))) for at, peer in enumerate(peers)]
    life.settle()
    assert all(peer.received(request) is not None for peer, request in asked)


def test_a_strict_broker_holds_nobody_back_for_it():
    life = BrokerLife(storage=ROOMY)
    for number in range(2 * MADE_IN_TURN_MAX):
        life.ask("create_topic", name=f"topic{number}")
    assert not life.capped["made_in_turn"]


def test_a_new_topic_is_no_reason_to_look_at_the_consumers_of_all_others(life, monkeypatch):
    peers = [life.peer(app=f"app{number}") for number in range(50)]
    for number, peer in enumerate(peers):
        peer.consumes(f"topic{number}")
        peer.send(peer.fetch_command(f"topic{number}", wait_ms=60_000))
    life.settle()
    looked_at = []
    offer_all = life.broker.consuming.offer_all
    monkeypatch.setattr(life.broker.consuming, "offer_all", lambda one: (looked_at.append(one.topic), offer_all(one)))
    assert peers[0].produce(b"x", topic="another")[0] == 0
    assert looked_at == []
    life.ask("set_topic", name="topic7", partitions=9)
    assert looked_at == ["topic7"]
    life.ask("drop_topic", name="topic8")
    assert len(looked_at) == 50, "after one that is dropped, all that are left"


def test_a_waiting_fetch_sees_that_its_subscription_is_gone_whatever_else_was_made_in_that_turn(life):
    peer, other = life.peer(app="first"), life.peer(app="second")
    peer.consumes("orders")
    waiting = peer.send(peer.fetch_command("orders", wait_ms=60_000))
    life.settle()
    other.send(other.produce_command(b"x", topic="another"))
    life.ask("unsubscribe", topic="orders", app="first")
    assert peer.fetched(peer.received(waiting)) == 136


def test_the_snapshot_of_the_metadata_has_the_fields_of_its_parts(life):
    peer = life.peer()
    peer.produce(b"x")
    peer.consumes("orders")
    metadata = life.broker.ledger.metadata
    packed = metadata.pack()
    assert Metadata.unpack(packed) == metadata
    said = json.loads(packed)
    for name in ("topics", "apps", "subscriptions"):
        there = [asdict(one) for one in getattr(metadata, name).values()]
        assert said[name] == json.loads(json.dumps(there)), name
