"""Retention drops segments although something in them is still wanted: that is written again first."""

import errno

import pytest

from broker.fix_broker import NEVER, make_broker
from broker.test_consume import TINY
from lakemq.storage.retention import RetentionPolicy

DAY_MS = 86_400_000


def make(**details):
    life = make_broker(partitions=1, storage=TINY, retention=RetentionPolicy(size_bytes=1), **details)
    return life, life.peer().consumes()


def roll(life, peer, rounds=12):
    """Fill segments until the first ones may go, and let them."""
    for number in range(rounds):
        assert peer.produce(b"%4d" % number * 700)[0] == 0
    for _ in range(6):
        life.pass_ms(life.config.retention_every_ms)
        life.pass_ms(1500)


def first_segment(life):
    return life.journal.first_position


def test_a_retry_outlives_the_segment_of_its_message():
    life, peer = make()
    life.ask("subscribe", topic="orders", app="shop", consumer={"retry_first_ms": 3_000_000})
    peer.produce(b"failing", attributes={"a": "b"})
    peer.fetch()
    peer.ack([0], kind=2)
    before = first_segment(life)
    roll(life, peer)
    assert first_segment(life) > before, "the segment went"
    (row,) = life.broker.ledger.state.retries.rows()
    assert row.position >= first_segment(life)
    life.kill()
    life.pass_ms(3_000_000)
    peer = life.peer().consumes()
    found = [message for _ in range(20) for message in peer.messages(peer.ask(peer.fetch_command()))]
    (retried,) = [message for message in found if message.partition == 32767]
    assert retried.body == b"failing"
    assert retried.attributes == {"a": "b", "LAKEMQ_ATTEMPT": "2", "LAKEMQ_PARTITION": "0", "LAKEMQ_INDEX": "0"}


def test_a_dead_letter_keeps_its_bytes():
    life, peer = make()
    life.ask("subscribe", topic="orders", app="shop", consumer={"retry_times": 0})
    peer.produce(b"hopeless")
    peer.fetch()
    peer.ack([0], kind=2)
    before = first_segment(life)
    roll(life, peer)
    assert first_segment(life) > before
    (letter,) = life.broker.ledger.state.dead_letters.rows()
    message, _ = life.broker.references.read(letter.position, letter.message_index)
    assert (message.body, message.index) == (b"hopeless", 0)


@pytest.mark.parametrize("retry_times", [0, 4], ids=["dead letter", "retry"])
def test_one_that_fails_after_the_look_at_what_is_needed_is_kept(retry_times):
    """What is needed is looked at a while before segments go: until that look is durable."""
    life, peer = make(lazy_sync_ms=NEVER)
    life.ask("subscribe", topic="orders", app="shop", consumer={"retry_times": retry_times, "retry_first_ms": DAY_MS})
    peer.produce(b"failing")
    for number in range(12):
        peer.produce(b"%4d" % number * 700)
    assert peer.fetch(count=2, lease_ms=DAY_MS)[0] == b"failing"
    assert peer.ack([1]) == 0
    life.pass_ms(life.config.retention_every_ms)
    assert life.journal.unsynced_bytes > 0, "the look is not durable yet"
    peer.ack([0], kind=2)
    before = first_segment(life)
    peer.produce(b"and synced")
    for _ in range(6):
        life.pass_ms(life.config.retention_every_ms)
        peer.produce(b"and synced")
        life.pass_ms(1500)
    assert first_segment(life) > before
    state = life.broker.ledger.state
    (row,) = [*state.retries.rows(), *state.dead_letters.rows()]
    message, _ = life.broker.references.read(row.position, row.message_index)
    assert (message.body, message.index) == (b"failing", 0)


@pytest.mark.parametrize("error", [MemoryError(), OSError(errno.ENOMEM, "planned"), OSError(errno.EMFILE, "planned")])
def test_a_dead_letter_that_cannot_be_read_for_want_of_memory_keeps_its_segment(error):
    life, peer = make()
    life.ask("subscribe", topic="orders", app="shop", consumer={"retry_times": 0})
    peer.produce(b"hopeless")
    peer.fetch()
    peer.ack([0], kind=2)
    before = first_segment(life)
    life.disk.fail("read", error, times=10_000)
    roll(life, peer)
    assert first_segment(life) == before, "its bytes are nowhere else"
    life.disk.faults.clear()
    roll(life, peer)
    assert first_segment(life) > before
    (letter,) = life.broker.ledger.state.dead_letters.rows()
    message, _ = life.broker.references.read(letter.position, letter.message_index)
    assert message.body == b"hopeless"


def test_a_delay_outlives_its_segment():
    life, peer = make()
    due_ms = life.engine.now().wall_ms + 30 * 86_400_000
    peer.produce(b"in a month", attributes={"DELIVER_AT": str(due_ms)})
    before = first_segment(life)
    roll(life, peer)
    assert first_segment(life) > before
    life.kill()
    while life.engine.now().wall_ms < due_ms + 1000:
        life.pass_ms(86_400_000)
    peer = life.peer().consumes()
    bodies = [body for _ in range(30) for body in peer.fetch()]
    assert bodies.count(b"in a month") == 1


def test_a_power_loss_brings_back_nothing_that_refers_to_a_dropped_segment():
    life, peer = make()
    peer.produce(b"failing")
    peer.fetch()
    peer.ack([0], kind=2)
    roll(life, peer)
    life.lose_power(mode="nothing")
    for row in life.broker.ledger.state.retries.rows():
        message, _ = life.broker.references.read(row.position, row.message_index)
        assert message.body == b"failing"
