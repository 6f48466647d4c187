"""When a message is seen: once it is synced, or with `visible_after = "write"` once it is written.

The second is sooner by a sync. What it gives up is told here as well: after a power cut, what was read may be gone.
"""

from dataclasses import replace

import pytest

from broker.fix_broker import FULL, NEVER, SMALL, make_broker
from lakemq.message import Qos
from lakemq.storage.config import StorageConfig
from lakemq.wire.own import FetchRange, PartitionTime, TopicTimes

EARLY = replace(SMALL, visible_after="write")


def early(**details):
    """A broker that shows what is written, and syncs only for who waits for that."""
    return make_broker(storage=EARLY, partitions=1, topics=("orders", "others"), lazy_sync_ms=NEVER, **details)


def reach(peer, time_ms=None):
    wish = TopicTimes("orders", (PartitionTime(0) if time_ms is None else PartitionTime(0, time_ms),))
    return peer.ask(FetchRange((wish,), "shop")).body.topics[0].partitions[0]


def unsynced_peer(life):
    """A consumer, with a sync behind it, so that all which follows is not durable until somebody asks for it."""
    peer = life.peer().consumes()
    peer.produce(b"durable")
    assert peer.fetch() == [b"durable"]
    assert peer.ack([0]) == 0
    peer.produce(b"and all before it", topic="others")
    assert life.journal.unsynced_bytes == 0
    return peer


def test_who_waits_is_told_when_it_is_written():
    peer = unsynced_peer(early())
    waiting = peer.send(peer.fetch_command(wait_ms=10_000))
    peer.produce(b"now", qos=Qos.WRITE)
    assert peer.fetched(peer.received(waiting)) == [b"now"]
    assert peer.life.journal.unsynced_bytes > 0


def test_who_asks_gets_it_and_so_does_who_reads_by_position():
    peer = unsynced_peer(early())
    peer.produce(b"now", qos=Qos.WRITE)
    assert peer.read(index=1) == [b"now"]
    assert peer.fetch() == [b"now"]
    assert peer.life.journal.unsynced_bytes > 0


def test_otherwise_it_is_seen_when_it_is_synced():
    life = make_broker(partitions=1, topics=("orders", "others"), lazy_sync_ms=NEVER)
    peer = unsynced_peer(life)
    peer.produce(b"later", qos=Qos.WRITE)
    assert peer.fetch() == []
    peer.produce(b"synced", qos=Qos.FLUSH)
    assert peer.fetch() == [b"later", b"synced"]


def test_the_end_that_others_are_told_is_durable():
    """The archive and Spark keep it: what they have must never be another message later."""
    life = early()
    peer = unsynced_peer(life)
    peer.produce(b"now", qos=Qos.WRITE)
    now_ms = life.clock.wall_ms()
    assert peer.fetch() == [b"now"]
    assert peer.ack([1]) == 0
    assert (reach(peer).ack_index, reach(peer).visible_index) == (2, 1)
    assert reach(peer, now_ms + 1000).time_index == 1
    peer.produce(b"flushed", qos=Qos.FLUSH)
    assert (reach(peer).ack_index, reach(peer).visible_index) == (2, 3)


def test_a_kill_takes_nothing_back():
    life = early()
    peer = unsynced_peer(life)
    peer.produce(b"first", b"second", qos=Qos.WRITE)
    assert peer.fetch(count=1) == [b"first"]
    assert peer.ack([1]) == 0
    life.kill()
    assert life.peer().consumes().fetch() == [b"second"]


def test_a_power_cut_may_take_back_what_was_read_and_acked_with_all_that_came_of_it():
    life = early()
    peer = unsynced_peer(life)
    peer.produce(b"read and gone", qos=Qos.WRITE)
    assert peer.fetch() == [b"read and gone"]
    assert peer.ack([1]) == 0
    life.lose_power(mode="nothing")
    again = life.peer().consumes()
    assert life.ack_index() == 1, "the ack went with its message"
    again.produce(b"at its index")
    assert again.fetch() == [b"at its index"]


def test_what_a_full_disk_refuses_is_never_seen():
    life = early()
    peer = unsynced_peer(life)
    waiting = peer.send(peer.fetch_command(wait_ms=10_000))
    life.disk.fail("write", FULL)
    code, _ = peer.produce(b"refused", qos=Qos.WRITE)
    assert code != 0
    assert peer.received(waiting) is None
    peer.produce(b"taken", qos=Qos.WRITE)
    assert peer.fetched(peer.received(waiting)) == [b"taken"]


def test_a_value_that_is_none_is_refused():
    with pytest.raises(ValueError, match="visible_after is 'never', not one of sync, write"):
        StorageConfig(visible_after="never")
