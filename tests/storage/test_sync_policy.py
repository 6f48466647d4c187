"""When a sync is asked for: at once, after so many messages, or after so long."""

import dataclasses

import pytest

from fix_storage import TINY, A, B, Engine
from lakemq.storage.journal_record import RecordType
from lakemq.storage.sync_policy import ALWAYS, SyncPolicy


@pytest.mark.parametrize(
    ("policy", "unsynced_messages", "waiting_ms", "is_due"),
    [
        (ALWAYS, 1, 0, True),
        (SyncPolicy(every_messages=10), 9, 10_000, False),
        (SyncPolicy(every_messages=10), 10, 0, True),
        (SyncPolicy(every_ms=50), 1000, 49, False),
        (SyncPolicy(every_ms=50), 1, 50, True),
        (SyncPolicy(10, 50), 9, 49, False),
        (SyncPolicy(10, 50), 10, 0, True),
        (SyncPolicy(10, 50), 1, 50, True),
    ],
)
def test_whichever_limit_is_reached_first(policy, unsynced_messages, waiting_ms, is_due):
    assert policy.is_due(unsynced_messages, waiting_ms) == is_due


def engine_with(policy):
    return Engine(config=dataclasses.replace(TINY, sync_policy=policy))


def test_nothing_is_asked_for_when_nothing_is_written():
    engine = engine_with(ALWAYS)
    assert not engine.group.wants_sync(engine.now_ms)
    engine.put(A, b"x")
    assert not engine.group.wants_sync(engine.now_ms)


def test_messages_are_counted_and_not_records():
    engine = engine_with(SyncPolicy(every_messages=5))
    engine.append(A, b"1", b"2")
    engine.append(B, b"3", b"4")
    engine.flush()
    assert not engine.group.wants_sync(engine.now_ms)
    engine.append(B, b"5")
    engine.flush()
    assert engine.group.wants_sync(engine.now_ms)
    engine.sync()
    assert not engine.group.wants_sync(engine.now_ms)


def test_the_oldest_message_is_the_one_that_waits():
    engine = engine_with(SyncPolicy(every_ms=100))
    engine.append(A, b"1")
    begun = engine.now_ms
    engine.flush()
    engine.now_ms += 90
    engine.append(A, b"2")
    engine.flush()
    assert not engine.group.wants_sync(begun + 99)
    assert engine.group.wants_sync(begun + 100)


def test_a_fact_that_no_message_waits_with_is_synced_at_once():
    engine = engine_with(SyncPolicy(every_messages=100))
    engine.append_control(RecordType.ACK, b"fact")
    engine.flush()
    assert engine.group.wants_sync(engine.now_ms)


def test_what_is_not_synced_yet_is_not_visible_whatever_the_policy():
    engine = engine_with(SyncPolicy(every_ms=1000))
    engine.append(A, b"1")
    engine.flush()
    assert engine.group.visible_index(*A) == 0
    assert engine.sync() == [A]
    assert engine.group.visible_index(*A) == 1
