"""Caps, and what happens at each (R11): who comes too fast waits, who reads too slowly is not served."""

from dataclasses import replace
from pathlib import Path

import pytest

from broker.fix_broker import DOCUMENTED, EIO, JOYQUEUE, make_broker
from lakemq.broker.limits import BrokerLimits
from lakemq.message import Qos
from lakemq.storage.config import StorageConfig
from lakemq.storage.sync_policy import SyncPolicy
from lakemq.wire.consume import FetchPartitionMessage, PartitionFetch, TopicPartitionFetch
from lakemq.wire.session import Heartbeat

both = pytest.mark.parametrize("dialect", [DOCUMENTED, JOYQUEUE], ids=lambda one: one.value)
ROOMY = StorageConfig(segment_bytes=8 << 20, record_bytes_max=2 << 20, unsynced_bytes_max=4 << 20)


# --- connections -----------------------------------------------------------------------------------------------------


def test_a_connection_too_many_is_closed_at_once_and_the_next_may_come_when_one_has_gone():
    life = make_broker(limits_of={"connections_max": 2})
    first, second = life.peer(), life.peer()
    third = life.peer(introduces=False)
    assert (third.is_closed, third.connection) == (True, None)
    assert life.capped["connections"] == 1
    assert first.ask(Heartbeat()).status == 0
    second.pipe.hang_up()
    assert life.peer().ask(Heartbeat()).status == 0


def test_a_frame_longer_than_allowed_ends_its_connection_before_it_is_there():
    life = make_broker(limits_of={"frame_bytes_max": 2000})
    peer = life.peer()
    assert peer.produce(bytes(1500))[0] == 0
    peer.pipe.feed(peer.frame(peer.produce_command(bytes(2000)))[:8])
    assert peer.is_closed
    assert life.appended() == 1


def test_every_limit_is_about_something():
    """A limit that nobody reads is a promise that nobody keeps."""
    sources = Path(__file__).parents[2] / "src" / "lakemq"
    text = "".join(path.read_text() for path in sources.rglob("*.py") if path.name != "limits.py")
    unused = [name for name in BrokerLimits.__slots__ if f"limits.{name}" not in text and f".{name}" not in text]
    assert unused == []


# --- polls that wait -------------------------------------------------------------------------------------------------


@both
def test_polls_beyond_the_cap_are_answered_at_once_and_empty(dialect):
    life = make_broker(limits_of={"parked_polls_max": 3})
    peers = [life.peer(dialect=dialect).consumes() for _ in range(2)]
    waiting = [peers[nth % 2].send(peers[nth % 2].fetch_command(wait_ms=1000)) for nth in range(3)]
    assert peers[0].fetch(wait_ms=1000) == []
    assert life.capped["parked_polls"] == 1
    assert [peers[nth % 2].received(one) for nth, one in enumerate(waiting)] == [None] * 3
    life.pass_ms(1000)
    peers[1].send(peers[1].fetch_command(wait_ms=1000))
    assert life.broker.consuming.deadlines.waiting == 1


@both
def test_polls_of_one_connection_are_capped_on_their_own(dialect):
    life = make_broker(limits_of={"parked_polls_per_connection_max": 2})
    peer, other = life.peer(dialect=dialect).consumes(), life.peer(dialect=dialect).consumes()
    for _ in range(2):
        peer.send(peer.fetch_command(wait_ms=1000))
    assert peer.fetch(wait_ms=1000) == []
    assert life.capped["parked_polls_per_connection"] == 1
    waiting = other.send(other.fetch_command(wait_ms=1000))
    assert other.received(waiting) is None
    life.pass_ms(1000)
    assert peer.connection.parked_polls == 0
    waiting = peer.send(peer.fetch_command(wait_ms=1000))
    assert peer.received(waiting) is None


# --- producers that are faster than the disk -------------------------------------------------------------------------


def commands(peer, count, size=1000, qos=Qos.FLUSH, **details):
    return [peer.produce_command(b"%4d" % number + bytes(size), qos=qos, **details) for number in range(count)]


def order_stored(life):
    return [int(body[:4]) for body in life.stored()]


@both
@pytest.mark.parametrize("qos", [Qos.FLUSH, Qos.WRITE], ids=lambda qos: qos.value)
def test_a_producer_is_not_read_from_while_too_much_waits_for_the_sync(dialect, qos):
    life = make_broker(storage=ROOMY, limits_of={"unsynced_bytes_high": 20_000})
    peer, other = life.peer(dialect=dialect), life.peer(dialect=dialect)
    life.sync()
    asked = []
    for command in commands(peer, 60, qos=qos):  # they arrive one by one, in turns
        asked.append(peer.send(command))
        life.engine.end_turn()
    assert peer.pipe.is_paused
    assert peer.connection.is_choked
    assert life.journal.unsynced_bytes < 25_000
    beat = other.send(Heartbeat())
    assert other.received(beat).status == 0, "others are served, but for sending"
    assert life.capped["unsynced_bytes"] >= 1
    life.settle()
    assert not peer.pipe.is_paused, "reading goes on"
    life.sync()
    assert order_stored(life) == list(range(60)), "in the order sent"
    assert all(peer.received(one).body.topics[0].code == 0 for one in asked)
    assert life.journal.unsynced_bytes == 0


@both
@pytest.mark.parametrize("high", [20_000, ROOMY.unsynced_bytes_max])
def test_a_policy_puts_no_sync_off_until_there_is_no_room(dialect, high):
    storage = replace(ROOMY, sync_policy=SyncPolicy(every_ms=5000))
    life = make_broker(storage=storage, limits_of={"unsynced_bytes_high": high})
    peer = life.peer(dialect=dialect)
    life.pass_ms(5000)
    count = 2 * ROOMY.unsynced_bytes_max // 50_000
    asked = []
    for command in commands(peer, count, size=50_000, qos=Qos.WRITE):
        asked.append(peer.send(command))
        life.settle()
    assert [peer.received(one).body.topics[0].code for one in asked] == [0] * count
    assert life.journal.unsynced_bytes <= high // 2 + 60_000
    life.pass_ms(5000)
    assert order_stored(life) == list(range(count))


@both
def test_reading_goes_on_when_half_of_it_is_synced(dialect):
    life = make_broker(storage=ROOMY, limits_of={"unsynced_bytes_high": 20_000})
    peer = life.peer(dialect=dialect)
    life.sync()
    for command in commands(peer, 30):
        peer.send(command)
        life.engine.end_turn()
    assert peer.pipe.is_paused
    stored = life.appended()
    life.engine.run_ticket()
    assert life.journal.unsynced_bytes > 10_000, "this sync began with the first request"
    assert life.appended() == stored
    assert peer.pipe.is_paused
    life.engine.run_ticket()
    assert life.appended() > stored
    life.settle()
    assert order_stored(life) == list(range(30))


@both
def test_a_connection_with_too_much_in_flight_waits_alone(dialect):
    life = make_broker(storage=ROOMY, limits_of={"in_flight_bytes_max": 10_000})
    peer, other = life.peer(dialect=dialect), life.peer(dialect=dialect)
    life.sync()
    asked = []
    for command in commands(peer, 30):
        asked.append(peer.send(command))
        life.engine.end_turn()
    assert peer.pipe.is_paused
    assert life.capped["in_flight_bytes"] >= 1
    assert peer.connection.in_flight_bytes < 13_000
    request = other.send(other.produce_command(b"  77", qos=Qos.WRITE, partition=1))
    life.engine.end_turn()
    assert other.received(request).body.topics[0].code == 0
    life.settle()
    assert all(peer.received(one).body.topics[0].code == 0 for one in asked)
    assert (peer.connection.in_flight_bytes, life.broker._waiters.in_flight_bytes) == (0, 0)
    assert order_stored(life) == list(range(30))


def test_all_connections_together_have_a_cap_too():
    life = make_broker(storage=ROOMY, limits_of={"in_flight_bytes_total_max": 10_000})
    peers = [life.peer() for _ in range(4)]
    life.sync()
    for nth in range(40):
        peer = peers[nth % 4]
        peer.send(peer.produce_command(b"%4d" % nth + bytes(1000)))
        life.engine.end_turn()
    assert life.capped["in_flight_bytes_total"] >= 1
    assert life.broker._waiters.in_flight_bytes < 16_000
    assert any(peer.pipe.is_paused for peer in peers)
    life.settle()
    assert sorted(order_stored(life)) == list(range(40))
    assert not any(peer.pipe.is_paused for peer in peers)
    assert life.broker._waiters.in_flight_bytes == 0


@both
def test_what_comes_behind_a_held_up_request_keeps_its_place(dialect):
    """Heartbeats, fetches and acks behind a produce request that must wait are served after it, in their order."""
    life = make_broker(partitions=1, storage=ROOMY, limits_of={"unsynced_bytes_high": 5000})
    peer = life.peer(dialect=dialect).consumes()
    peer.produce(b"   0")
    life.sync()
    frames = []
    for number in range(1, 20):
        frames.append(peer.frame(peer.produce_command(b"%4d" % number + bytes(900))))
        frames.append(peer.frame(Heartbeat()))
    first = peer.stray[-1] + 1
    data = b"".join(frames)
    for at in range(0, len(data), 777):
        peer.pipe.feed(data[at : at + 777])
        life.engine.end_turn()
    assert peer.connection.backlog
    life.settle()
    assert not peer.connection.backlog
    peer.received(0)
    beats = [one for one in peer.stray if one >= first and (one - first) % 2]
    sends = [one for one in peer.stray if one >= first and not (one - first) % 2]
    assert beats == sorted(beats)
    assert sends == sorted(sends)
    assert (len(beats), len(sends)) == (19, 19)
    assert order_stored(life) == list(range(20))


def test_who_is_held_up_and_hangs_up_is_forgotten():
    life = make_broker(storage=ROOMY, limits_of={"unsynced_bytes_high": 5000})
    peer = life.peer()
    life.sync()
    for command in commands(peer, 20):
        peer.send(command)
        life.engine.end_turn()
    assert peer.connection.backlog
    stored = life.appended()
    peer.pipe.hang_up()
    assert life.broker.sessions.choked == {}
    life.settle()
    assert life.appended() == stored, "what was not served by then never is"


def test_who_is_held_up_when_the_disk_breaks_is_not_served():
    life = make_broker(storage=ROOMY, limits_of={"unsynced_bytes_high": 5000})
    peer = life.peer()
    life.sync()
    asked = []
    for command in commands(peer, 20):
        asked.append(peer.send(command))
        life.engine.end_turn()
    stored = life.appended()
    life.disk.fail("sync", EIO, path_contains="journal/")
    life.settle()
    codes = [answer.body.topics[0].code for one in asked if (answer := peer.received(one))]
    assert codes == [91] * stored
    assert life.engine.is_stopped


# --- peers that do not read ------------------------------------------------------------------------------------------


def slow_reader(life, dialect=DOCUMENTED, size=10, bytes_max=3000):
    """A consumer of `size` big messages whose socket takes no more after a while."""
    peer = life.peer(dialect=dialect).consumes()
    for number in range(size):
        peer.produce(b"%4d" % number + bytes(1000))
    peer.pipe.output_bytes_max = bytes_max
    return peer


@both
def test_who_does_not_read_his_answers_is_asked_nothing_more_until_he_does(dialect):
    life = make_broker(partitions=1)
    peer = slow_reader(life, dialect)
    asked = [peer.send(Heartbeat())]
    stored = life.appended()
    asked += [read(peer, number) for number in range(10)]
    assert peer.connection.is_output_full
    assert peer.pipe.is_paused
    asked.append(peer.send(peer.produce_command(b"late")))
    life.settle()
    assert life.appended() == stored, "no further request is served"
    assert sum(map(len, peer.pipe.sent)) < 5000
    answered = set()
    for _ in range(20):
        life.settle()
        answered |= {one for one in asked if peer.received(one)}
    assert answered == set(asked)
    assert peer.stray[-12:-1] == asked[:-1], "in the order asked"
    assert not peer.pipe.is_paused
    assert life.appended() == stored + 1


def read(peer, index):
    return peer.send(FetchPartitionMessage((TopicPartitionFetch("orders", (PartitionFetch(0, 1, index),)),), peer.app))


def test_a_slow_reader_holds_up_nobody_else():
    life = make_broker(partitions=1)
    slow = slow_reader(life)
    for number in range(10):
        read(slow, number)
    other = life.peer().consumes()
    assert len(other.fetch(count=5)) == 5
    assert other.produce(b"x")[0] == 0


@both
def test_nothing_is_lent_to_who_does_not_read(dialect):
    life = make_broker(partitions=1)
    slow = slow_reader(life, dialect, bytes_max=1500)
    life.peer().seek(-1)
    polls = [slow.send(slow.fetch_command(wait_ms=60_000)) for _ in range(2)]
    for number in range(3):
        read(slow, number)
    assert slow.connection.is_output_full
    other = life.peer(dialect=dialect).consumes()
    other.produce(b"new")
    assert other.fetch() == [b"new"], "it goes to who does"
    other.ack([10])
    slow.received(0)
    life.settle()
    other.produce(b"newer")
    life.pass_ms(100)
    assert [slow.received(one) is not None for one in polls] == [True, False]
    assert slow.fetched(slow.received(polls[0])) == [b"newer"]


def test_who_reads_nothing_for_long_is_closed():
    life = make_broker(partitions=1)
    stalled, slow = slow_reader(life), slow_reader(life)
    for number in range(10):
        read(stalled, number)
        read(slow, number)
    life.pass_ms(life.config.limits.output_stall_ms)
    slow.pipe.take()
    assert not stalled.is_closed
    life.pass_ms(1000)
    assert (stalled.is_closed, slow.is_closed) == (True, False)
    assert life.capped["output_stall"] == 1


def test_answers_that_were_due_are_still_sent_to_a_full_peer_but_count():
    """Acks of what is stored may not be dropped: they go out, and the peer gets no further ones."""
    life = make_broker(partitions=1)
    peer = life.peer()
    peer.produce(b"x")
    peer.pipe.output_bytes_max = 100
    asked = peer.send_all(*[peer.produce_command(b"y") for _ in range(10)])
    life.settle()
    assert peer.connection.is_output_full
    assert all(peer.received(one).body.topics[0].code == 0 for one in asked)
