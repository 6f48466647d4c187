"""Stopping in peace: what is begun is finished, nothing new is taken, and the next start finds all of it."""

import pytest

from broker.fix_broker import DOCUMENTED, EIO, JOYQUEUE, make_broker
from lakemq.broker.events import StopAsked
from lakemq.errors import ServiceUnavailableError
from lakemq.message import Qos
from lakemq.wire.metadata import FetchCluster
from lakemq.wire.session import FetchHealth, Heartbeat

both = pytest.mark.parametrize("dialect", [DOCUMENTED, JOYQUEUE], ids=lambda one: one.value)


def stop(life):
    life.engine.handle(StopAsked())


@both
def test_what_waits_for_a_sync_is_answered_before_the_end(dialect):
    life = make_broker()
    peer = life.peer(dialect=dialect)
    life.sync()
    asked = peer.send(peer.produce_command(b"x"))
    life.engine.end_turn()
    stop(life)
    life.engine.tick()
    assert not life.engine.is_stopped, "a sync is under way"
    life.settle()
    assert peer.received(asked).body.topics[0].code == 0
    assert not peer.is_closed
    life.engine.tick()
    assert life.engine.is_stopped
    assert life.engine.failure is None
    assert peer.is_closed


@both
def test_polls_are_answered_empty_and_no_new_one_waits(dialect):
    life = make_broker()
    peer = life.peer(dialect=dialect).consumes()
    waiting = [peer.send(peer.fetch_command(wait_ms=60_000)) for _ in range(3)]
    stop(life)
    assert [peer.fetched(peer.received(one)) for one in waiting] == [[], [], []]
    assert peer.fetch(wait_ms=60_000) == []
    assert life.broker.consuming.deadlines.waiting == 0


@both
def test_sending_is_refused_and_all_else_goes_on(dialect):
    life = make_broker(partitions=1)
    peer = life.peer(dialect=dialect).consumes()
    peer.produce(b"x", b"y")
    stop(life)
    assert peer.produce(b"z")[0] == 3
    asked = peer.send_all(*[peer.produce_command(b"z") for _ in range(3)])
    life.settle()
    assert [peer.received(one).body.topics[0].code for one in asked] == [3, 3, 3], "a run too"
    assert peer.fetch() == [b"x", b"y"]
    assert peer.ack([0, 1]) == 0
    assert peer.ask(Heartbeat()).status == 0
    assert peer.ask(FetchHealth()).body.point == 0.0
    assert peer.ask(FetchCluster(("orders",), "shop")).body.topics[0].code == 0
    life.engine.tick()
    life.restart()
    assert (life.stored(), life.ack_index()) == ([b"x", b"y"], 2)


def test_nobody_new_is_let_in():
    life = make_broker()
    life.peer()
    stop(life)
    late = life.peer(introduces=False)
    assert (late.is_closed, late.connection) == (True, None)
    life.engine.tick()
    with pytest.raises(ServiceUnavailableError):
        life.peer(introduces=False)


def test_nothing_is_made_any_more():
    life = make_broker(creates_missing=True)
    peer = life.peer()
    stop(life)
    (topic,) = peer.ask(FetchCluster(("new",), "shop")).body.topics
    assert topic.code == 3, "to be asked for again, of the broker that comes after"
    assert peer.produce(b"x", topic="new")[0] == 3
    assert "new" not in life.broker.ledger.metadata.topics


def test_what_was_only_written_is_synced_on_the_way():
    life = make_broker()
    peer = life.peer()
    life.sync()
    asked = peer.send(peer.produce_command(b"x", qos=Qos.WRITE))
    life.engine.end_turn()
    assert peer.received(asked).body.topics[0].code == 0
    life.engine.close()
    life.lose_power()
    assert life.stored() == [b"x"]


def test_a_sync_that_does_not_end_is_not_waited_for_for_ever():
    life = make_broker(drain_timeout_ms=3000)
    peer = life.peer()
    life.sync()
    asked = peer.send(peer.produce_command(b"x", timeout_ms=600_000))
    life.engine.end_turn()
    stop(life)
    life.clock.pass_ms(2999)
    life.engine.tick()
    assert not life.engine.is_stopped
    life.clock.pass_ms(1)
    life.engine.tick()
    assert life.engine.is_stopped
    assert peer.is_closed
    assert peer.received(asked) is None, "its outcome is unknown"


def test_a_sync_that_fails_on_the_way_is_told_as_ever():
    life = make_broker()
    peer = life.peer()
    life.sync()
    life.disk.fail("sync", EIO, path_contains="journal/")
    asked = peer.send(peer.produce_command(b"x"))
    stop(life)
    life.settle()
    assert peer.received(asked).body.topics[0].code == 91
    assert life.engine.failure is not None


def test_to_be_asked_twice_changes_nothing():
    life = make_broker(drain_timeout_ms=3000)
    peer = life.peer()
    life.sync()
    peer.send(peer.produce_command(b"x"))
    life.engine.end_turn()
    stop(life)
    life.clock.pass_ms(2000)
    stop(life)
    life.clock.pass_ms(1000)
    life.engine.tick()
    assert life.engine.is_stopped, "the time is counted from the first"


def test_after_the_end_nothing_happens():
    life = make_broker()
    peer = life.peer()
    stop(life)
    life.engine.tick()
    before = life.facts()
    asked = peer.send(peer.produce_command(b"x"))
    life.settle()
    assert peer.received(asked) is None
    assert life.facts() == before


def test_the_next_start_is_clean_and_short():
    life = make_broker()
    life.peer().produce(b"x")
    life.engine.close()
    done = life.disk.trace = []
    life.start()
    assert life.stored() == [b"x"]
    assert life.engine.group.notes == []
    changed = [one for one in done if one[0] in ("write", "truncate", "remove") and one[1][:5] in ("journ", "index")]
    assert changed == [], "nothing had to be mended"
