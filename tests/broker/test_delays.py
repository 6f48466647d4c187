"""Messages that wait, through the broker: sent and received as by anybody, with crashes and bad clocks in between."""

import errno
import functools
from dataclasses import replace
from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from broker.fix_broker import FULL, SMALL, bodies_in, make_broker
from lakemq.broker.delaying import LEVELS_MS
from lakemq.delivery.delay_record import ADD_BYTES
from lakemq.delivery.delays import DelayLimits
from lakemq.errors import BadParameterError, UnknownNameError
from lakemq.message import Qos
from lakemq.storage.config import StorageConfig
from lakemq.storage.files import segment_name
from lakemq.storage.journal_record import HEADER_BYTES, RecordType
from lakemq.storage.retention import RetentionPolicy
from lakemq.testing.crash import MODES
from lakemq.testing.disk import PowerLost, SimFile

BAD_PARAMETER = 6
MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000
TICK_MS = 20
FEW_ROWS = DelayLimits(share_count=2, unfiled_max=8, block_rows=3, near_ms=2000)
TINY = StorageConfig(
    segment_bytes=16 << 10, record_bytes_max=8 << 10, checkpoint_bytes=8 << 10, unsynced_bytes_max=64 << 10
)


def make(**details):
    return make_broker(**{"partitions": 1, **details})


def wall_ms(life):
    return life.clock.wall_ms()


def send(peer, body, delay_ms, **details):
    """Send a message that is to wait: the code."""
    at = wall_ms(peer.life) + delay_ms
    return peer.produce(body, attributes={"DELIVER_AT": str(at)}, **details)[0]


def pass_ms(life, spent_ms, every_ms=TICK_MS):
    """Time goes by, tick by tick."""
    for _ in range(spent_ms // every_ms):
        life.pass_ms(every_ms)
    life.pass_ms(spent_ms % every_ms)


def outcome(life, what):
    return life.broker.delaying.counts[what]


def cancel(life, position):
    """Cancel one; the position to which the journal must be synced for it."""
    end = life.broker.delaying.cancel(position, life.engine.now())
    life.settle()
    return end


def positions(life):
    return [row["id"] for row in life.broker.delaying.rows(None, -1, 1000)]


def stored_with_times(life, topic="orders", partition=0):
    """Bodies and when each was stored, of all that was stored."""
    number, group = life.topic_number(topic), life.engine.group
    first, end = group.first_index(number, partition), group.visible_index(number, partition)
    slices = group.read(number, partition, first, end - first, 1 << 30) if end > first else []
    return [(body, one.store_time_ms) for one in slices for body in bodies_in(bytes(one.messages))]


# --- when --------------------------------------------------------------------------------------------------------


def test_a_message_comes_when_it_is_due_and_not_before():
    life = make()
    peer = life.peer().consumes()
    assert send(peer, b"later", 500) == 0
    for _ in range(499):
        life.pass_ms(1)
        assert life.stored() == []
    life.pass_ms(1)
    assert life.stored() == [b"later"]
    assert peer.fetch() == [b"later"]
    assert life.broker.delaying.pending == 0


def test_they_come_in_order_of_their_time_and_then_of_their_sending():
    life = make(delays=DelayLimits(share_count=1))
    peer = life.peer()
    for body, delay_ms in ((b"c", 300), (b"a", 100), (b"d", 300), (b"b", 100), (b"e", 301)):
        assert send(peer, body, delay_ms) == 0
    pass_ms(life, 1000)
    assert life.stored() == [b"a", b"b", b"c", b"d", b"e"]


def test_every_level_has_its_time():
    said = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"  # the protocol's table
    units = {"s": 1000, "m": MINUTE, "h": HOUR}
    assert [int(one[:-1]) * units[one[-1]] for one in said.split(" ")] == list(LEVELS_MS)


@pytest.mark.parametrize("level", [1, 2])
def test_a_level_counts_from_now(level):
    life = make()
    assert life.peer().produce(b"x", attributes={"DELAY_LEVEL": str(level)})[0] == 0
    pass_ms(life, LEVELS_MS[level - 1] - TICK_MS)
    assert life.stored() == []
    pass_ms(life, TICK_MS)
    assert life.stored() == [b"x"]


@pytest.mark.parametrize("delay_ms", [0, -1, -DAY])
def test_what_is_due_is_stored_at_once(delay_ms):
    life = make()
    peer = life.peer()
    assert send(peer, b"now", delay_ms) == 0
    assert life.stored() == [b"now"]


@pytest.mark.parametrize(
    "attributes",
    [
        {"DELIVER_AT": "tomorrow"},
        {"DELIVER_AT": ""},
        {"DELIVER_AT": "-5"},
        {"DELIVER_AT": "1e12"},
        {"DELIVER_AT": "٣"},
        {"DELIVER_AT": "9" * 19},
        {"DELIVER_AT": "9" * 40},
        {"DELIVER_AT": str(1_750_000_000_000 + 41 * DAY)},
        {"DELAY_LEVEL": "0"},
        {"DELAY_LEVEL": "19"},
        {"DELAY_LEVEL": "one"},
        {"DELAY_LEVEL": "1", "DELIVER_AT": "1"},
    ],
    ids=str,
)
def test_a_time_that_cannot_be_is_refused(attributes):
    life = make()
    before = life.journal.end_position
    assert life.peer().produce(b"x", attributes=attributes)[0] == BAD_PARAMETER
    assert life.journal.end_position == before


def test_no_more_may_wait_than_are_allowed():
    life = make(delays=DelayLimits(delays_max=2))
    peer = life.peer()
    assert [send(peer, b"x", 1000) for _ in range(3)] == [0, 0, BAD_PARAMETER]
    assert life.capped["delays"] == 1
    assert send(peer, b"now", 0) == 0, "what does not wait is not concerned"
    pass_ms(life, 1000)
    assert send(peer, b"again", 1000) == 0


def test_batches_and_many_messages_wait_as_one():
    life = make()
    at = wall_ms(life) + 100
    peer = life.peer()
    assert peer.produce((b"a", b"b"), b"c", attributes={"DELIVER_AT": str(at)})[0] == 0
    assert peer.produce(b"d")[0] == 0
    pass_ms(life, 100)
    assert life.stored() == [b"d", b"a", b"b", b"c"]
    assert life.appended() == 4


def test_messages_of_one_partition_are_released_in_one_record():
    life = make(delays=DelayLimits(share_count=1))
    peer = life.peer()
    for nth in range(20):
        send(peer, b"%d" % nth, 100)
    before = life.journal.end_position
    pass_ms(life, 100)
    records = [found.header.type for found in life.engine.group.records(before, life.journal.end_position)]
    assert records == [RecordType.NOTED]
    assert life.stored() == [b"%d" % nth for nth in range(20)]


def test_who_sent_it_stays_known():
    life = make()
    address = bytes(range(16))
    for host, body in (("127.0.0.1", b"a"), ("10.0.0.7", b"b"), ("127.0.0.1", b"c")):
        peer = life.peer(host=host)
        peer.pipe.address = address if host == "10.0.0.7" else bytes(16)
        assert send(peer, body, 100) == 0
    pass_ms(life, 200)
    number = life.topic_number("orders")
    slices = life.engine.group.read(number, 0, 0, 3)
    addresses = {body: one.client_address for one in slices for body in bodies_in(bytes(one.messages))}
    assert addresses == {b"a": bytes(16), b"b": address, b"c": bytes(16)}


def test_what_is_due_before_its_own_turn_has_ended_waits_for_that():
    life = make()
    peer = life.peer()
    send(peer, b"much later", HOUR)
    pass_ms(life, 100)
    at = wall_ms(life) + 5
    request = peer.send(peer.produce_command(b"soon", attributes={"DELIVER_AT": str(at)}))
    life.clock.pass_ms(50)
    life.engine.tick()  # before the turn is written
    life.settle()
    assert peer.received(request).body.topics[0].code == 0
    pass_ms(life, 3 * TICK_MS)
    assert life.stored() == [b"soon"]


def test_what_comes_near_is_asked_for_before_it_is_due(monkeypatch):
    asked = []
    monkeypatch.setattr(SimFile, "will_need", lambda file, position, size: asked.append((file.path, position, size)))
    life = make(delays=FEW_ROWS)
    peer = life.peer()
    for number in range(20):
        assert send(peer, b"%d" % number + bytes(10_000), 10_000 + 500 * number) == 0
    pass_ms(life, 6000)
    assert asked == [], "nothing is near"
    waiting = {row["id"]: row["due_ms"] for row in life.broker.delaying.rows(None, -1, 1000)}
    pass_ms(life, 4000)
    reached = {
        position
        for position in waiting
        for path, start, size in asked
        if path.endswith(segment_name(0)) and start <= position < start + size
    }
    near = {position for position, due_ms in waiting.items() if due_ms < wall_ms(life) + FEW_ROWS.near_ms}
    assert near <= reached
    assert len(asked) < len(waiting), "those close to each other with one call"


def test_a_disk_that_brings_nothing_ahead_holds_nothing_up(monkeypatch):
    def refuse(file, position, size):
        raise OSError(5, "no")

    monkeypatch.setattr(SimFile, "will_need", refuse)
    life = make(delays=FEW_ROWS)
    assert send(life.peer(), b"x", 5000) == 0
    pass_ms(life, 5100)
    assert life.stored() == [b"x"]


# --- lives -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["restart", "kill", "lose_power"])
@pytest.mark.parametrize("limits", [DelayLimits(), FEW_ROWS], ids=["unfiled", "in blocks"])
def test_what_waits_survives(end, limits):
    life = make(delays=limits)
    peer = life.peer()
    for nth in range(40):
        assert send(peer, b"%d" % nth, 100 + 97 * nth) == 0
        pass_ms(life, TICK_MS)
    assert (outcome(life, "filed") > 0) is (limits is FEW_ROWS)
    getattr(life, end)()
    assert life.broker.delaying.pending == 40 - len(life.stored())
    pass_ms(life, 6000)
    getattr(life, end)()
    pass_ms(life, 1000)
    assert sorted(life.stored()) == sorted(b"%d" % nth for nth in range(40))
    assert life.broker.delaying.pending == 0


def test_what_became_due_meanwhile_goes_out_at_once():
    life = make(delays=FEW_ROWS)
    peer = life.peer()
    for nth in range(30):
        send(peer, b"%d" % nth, 1000 * nth + 1000)
        pass_ms(life, TICK_MS)
    life.engine.close()
    life.clock.pass_ms(40 * DAY)
    life.start()
    pass_ms(life, 100 * TICK_MS)
    assert sorted(life.stored()) == sorted(b"%d" % nth for nth in range(30))


def test_the_number_of_shares_may_change_between_lives():
    life = make(delays=replace(FEW_ROWS, share_count=1))
    for nth, count in enumerate((1, 3, 2, 5)):
        life.config = replace(life.config, delays=replace(FEW_ROWS, share_count=count))
        life.restart()
        peer = life.peer()
        for more in range(12):
            send(peer, b"%d-%d" % (nth, more), 200 + 300 * more)
            pass_ms(life, TICK_MS)
        assert len(life.broker.ledger.state.delays.shares) == count
    pass_ms(life, 5000)
    assert sorted(life.stored()) == sorted(b"%d-%d" % (nth, more) for nth in range(4) for more in range(12))


# --- clocks ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step_ms", [HOUR, 3 * DAY])
def test_F41_a_wall_clock_that_jumps_ahead_releases_nothing(step_ms):
    life = make()
    peer = life.peer()
    send(peer, b"x", 30 * MINUTE)
    pass_ms(life, 1000)
    life.clock.jump_wall(step_ms)
    pass_ms(life, 4 * MINUTE, every_ms=1000)
    assert life.stored() == []
    life.clock.jump_wall(-step_ms)
    pass_ms(life, 25 * MINUTE, every_ms=1000)
    assert life.stored() == []
    pass_ms(life, 2 * MINUTE, every_ms=1000)
    assert life.stored() == [b"x"]


@pytest.mark.parametrize("step_ms", [-HOUR, -3 * DAY])
def test_F41_a_wall_clock_that_is_set_back_does_not_hold_up_what_comes(step_ms):
    life = make(delays=FEW_ROWS)
    peer = life.peer()
    for nth in range(12):
        send(peer, b"old", 100)
        send(peer, b"far %d" % nth, 10 * MINUTE)
    pass_ms(life, 1000)
    assert life.stored() == [b"old"] * 12
    life.clock.jump_wall(step_ms)
    pass_ms(life, 6 * MINUTE, every_ms=500)
    assert life.stored() == [b"old"] * 12
    peer = life.peer()
    assert send(peer, b"new", 1000) == 0
    pass_ms(life, 1000 - TICK_MS)
    assert life.stored() == [b"old"] * 12, "early"
    pass_ms(life, 2 * TICK_MS)
    assert life.stored() == [*[b"old"] * 12, b"new"]
    life.kill()
    pass_ms(life, -step_ms + 10 * MINUTE, every_ms=60_000)
    pass_ms(life, 1000)
    assert sorted(life.stored()) == sorted([*[b"old"] * 12, b"new", *(b"far %d" % nth for nth in range(12))])


def test_F41_a_start_with_a_clock_that_is_behind_loses_nothing_and_repeats_nothing():
    life = make(delays=FEW_ROWS)
    peer = life.peer()
    for nth in range(20):
        send(peer, b"old %d" % nth, 100 + nth)
    pass_ms(life, 110)
    done = life.appended()
    assert 0 < done < 20
    life.engine.close()
    life.clock.jump_wall(-HOUR)
    life.start()
    pass_ms(life, 100)
    peer = life.peer()
    assert send(peer, b"new", 200) == 0
    pass_ms(life, 300)
    assert life.stored()[done:] == [b"new"]
    life.kill()
    pass_ms(life, HOUR + 1000, every_ms=10_000)
    assert sorted(life.stored()) == sorted([b"new", *(b"old %d" % nth for nth in range(20))])


@pytest.mark.parametrize("lost", [("checkpoint",), ("checkpoint", "checkpoint.old")], ids=["newest", "both"])
def test_F23_F41_a_start_without_the_checkpoint_keeps_what_came_after_the_clock_was_set_back(lost):
    """It reads records that the start before did not, of what was released by the old time."""
    life = make(delays=DelayLimits(share_count=1))
    send(life.peer(), b"old", 1000)
    pass_ms(life, 1000)
    assert life.stored() == [b"old"]
    life.engine.close()
    life.clock.jump_wall(-HOUR)
    life.start()
    assert send(life.peer(), b"new", 2000) == 0
    life.disk.lose_process()
    for name in lost:
        life.disk.remove(name)
    life.start()
    assert life.broker.delaying.next_due_ms is not None, "it waits"
    pass_ms(life, 2000)
    assert life.stored() == [b"old", b"new"]
    assert life.broker.delaying.pending == 0


@pytest.mark.parametrize("ticks", [0, 1])
@pytest.mark.parametrize("restarts", [True, False])
def test_F41_the_first_delay_after_a_clock_was_set_back_is_not_late(restarts, ticks):
    """Nothing waits by then, and yet it is known what was released by the old time."""
    life = make()
    for nth in range(12):  # in every share
        send(life.peer(), b"old %d" % nth, 1000)
    pass_ms(life, 2000)
    assert life.broker.ledger.state.delays.is_empty
    if restarts:
        life.engine.close()
        life.clock.jump_wall(-HOUR)
        life.start()
    else:
        life.clock.jump_wall(-HOUR)
        pass_ms(life, 6 * MINUTE, every_ms=500)  # until it is believed
    for _ in range(ticks):
        life.pass_ms(TICK_MS)
    peer = life.peer()
    assert [send(peer, body, 1000) for body in (b"new", b"newer")] == [0, 0]
    pass_ms(life, 1000 - TICK_MS)
    assert life.appended() == 12, "early"
    pass_ms(life, 2 * TICK_MS)
    assert sorted(life.stored()[12:]) == [b"new", b"newer"]


# --- refusals ----------------------------------------------------------------------------------------------------


def test_a_delay_that_could_not_be_written_never_was():
    life = make()
    peer = life.peer()
    assert send(peer, b"kept", 200) == 0
    life.disk.fail("write", FULL, path_contains="journal/")
    assert send(peer, b"refused", 100) != 0
    assert life.broker.delaying.pending == 1
    assert send(peer, b"after", 100) == 0
    pass_ms(life, 500)
    assert life.stored() == [b"after", b"kept"]


def test_F46_a_release_that_could_not_be_written_is_done_again():
    life = make(delays=FEW_ROWS)
    peer = life.peer()
    for nth in range(20):
        send(peer, b"%d" % nth, 100)
        pass_ms(life, 1, every_ms=1)
    life.disk.fail("write", FULL, path_contains="journal/", times=5)
    pass_ms(life, 100)
    assert life.stored() == []
    assert life.broker.delaying.pending == 20
    pass_ms(life, 500)
    assert sorted(life.stored()) == sorted(b"%d" % nth for nth in range(20))
    life.kill()
    pass_ms(life, 500)
    assert len(life.stored()) == 20
    assert life.broker.delaying.pending == 0


def test_F46_a_full_disk_holds_delays_back_and_loses_none():
    life = make(storage=TINY, delays=FEW_ROWS)
    peer = life.peer()
    for nth in range(40):
        assert send(peer, b"%3d" % nth + b"x" * 500, 1000) == 0
    life.disk.capacity_bytes = life.disk.used_bytes()
    pass_ms(life, 2000)
    assert life.broker.delaying.pending > 0
    assert outcome(life, "refused") > 0
    assert any("could not be stored" in text for _, text in life.engine.notes)
    life.disk.capacity_bytes = None
    pass_ms(life, 2000)
    assert sorted(body[:3] for body in life.stored()) == [b"%3d" % nth for nth in range(40)]


def test_a_message_as_large_as_a_record_comes_out():
    life = make(storage=SMALL)
    peer = life.peer()
    low, high = 0, SMALL.record_bytes_max
    while high - low > 1:  # the largest that may wait
        size = (low + high) // 2
        low, high = (size, high) if send(peer, b"x" * size, 5000) == 0 else (low, size)
        life.pass_ms(20)
    largest = low
    assert send(peer, b"y" * largest, 100) == 0
    pass_ms(life, 200)
    assert life.stored() == [b"y" * largest]


# --- ends that are not in a partition ------------------------------------------------------------------------------


def test_what_waits_for_a_topic_that_is_gone_becomes_a_dead_letter():
    life = make(topics=("orders", "other"))
    peer = life.peer()
    send(peer, b"gone", 200, topic="orders")
    send(peer, b"there", 200, topic="other")
    life.ask("drop_topic", name="orders")
    life.ask("create_topic", name="orders", partitions=1)
    pass_ms(life, 300)
    assert life.stored("orders") == []
    assert life.stored("other") == [b"there"]
    assert life.broker.delaying.pending == 0
    (letter,) = life.ask("list_dead", limit=10)["rows"]
    assert (letter["cause"], letter["topic"], letter["offset"]) == ("store", "orders", None)
    assert letter["reason"] == "its topic is gone"
    life.kill()
    pass_ms(life, 300)
    assert life.stored("other") == [b"there"]
    assert life.broker.delaying.pending == 0


def test_what_the_store_will_never_take_becomes_a_dead_letter_and_holds_up_nobody(monkeypatch):
    life = make()
    peer = life.peer()
    send(peer, b"refused", 100)
    send(peer, b"taken", 200)
    append = life.broker.ledger.append_messages

    def refusing(topic, partition, messages, *details, **more):
        if b"refused" in bytes(messages):
            raise BadParameterError("a record of 9 bytes; 8 are allowed")
        return append(topic, partition, messages, *details, **more)

    monkeypatch.setattr(life.broker.ledger, "append_messages", refusing)
    pass_ms(life, 400)
    assert life.stored() == [b"taken"]
    (letter,) = life.ask("list_dead", limit=10)["rows"]
    assert (letter["cause"], letter["reason"]) == ("store", "a record of 9 bytes; 8 are allowed")
    monkeypatch.undo()
    life.ask("resend_dead", id=letter["id"], to="topic", by="me")
    assert life.stored() == [b"taken", b"refused"]
    life.kill()
    pass_ms(life, 400)
    assert (life.stored(), life.broker.delaying.pending) == ([b"taken", b"refused"], 0)


def test_a_damaged_delay_costs_itself_and_nothing_else():
    life = make()
    peer = life.peer()
    for body in (b"first", b"second", b"third"):
        send(peer, body, 300)
    life.sync()
    damage(life, positions(life)[1] + HEADER_BYTES + 70)
    pass_ms(life, 400)
    assert sorted(life.stored()) == [b"first", b"third"]
    assert outcome(life, "damaged") == 1
    assert any("damaged" in text for _, text in life.engine.notes)
    assert life.broker.delaying.pending == 0


@pytest.mark.parametrize("error", [MemoryError(), OSError(errno.ENOMEM, "planned"), OSError(errno.EMFILE, "planned")])
def test_a_delay_that_cannot_be_read_for_want_of_memory_waits_and_is_not_lost(error):
    life = make()
    peer = life.peer()
    for body in (b"first", b"second", b"third"):
        send(peer, body, 300)
    life.sync()
    life.disk.fail("read", error, times=3, after=1)
    pass_ms(life, 400)
    assert sorted(life.stored()) == [b"first", b"second", b"third"]
    assert outcome(life, "damaged") == 0
    assert any("could not be read, and waits" in text for _, text in life.engine.notes)


@pytest.mark.parametrize("code", [errno.ENOMEM, errno.EMFILE])
def test_a_block_that_cannot_be_read_for_want_of_memory_is_read_later(code):
    life = make(delays=FEW_ROWS)
    peer = life.peer()
    for number in range(30):
        send(peer, b"%02d" % number, 5000 + number)
    pass_ms(life, 1000)
    life.sync()
    life.kill()
    life.disk.fail("read", OSError(code, "planned"), times=20)
    pass_ms(life, 6000)
    assert sorted(life.stored()) == [b"%02d" % number for number in range(30)]
    assert (outcome(life, "damaged"), outcome(life, "blocks_damaged")) == (0, 0)


def test_a_damaged_block_costs_nothing():
    life = make(delays=replace(FEW_ROWS, share_count=1))
    peer = life.peer()
    for nth in range(20):
        send(peer, b"%2d" % nth, 10_000 + nth)
        pass_ms(life, TICK_MS)
    cancel(life, positions(life)[3])
    life.sync()
    (share,) = life.broker.ledger.state.delays.shares
    assert len(share.blocks) > 2
    for position in list(share.blocks)[:2]:
        damage(life, position + HEADER_BYTES + 20)
    pass_ms(life, 12_000)
    assert life.stored() == [b"%2d" % nth for nth in range(20) if nth != 3]
    assert outcome(life, "blocks_damaged") == 2


def damage(life, position):
    """Flip a bit of the journal."""
    base = max(one for one in life.journal.bases() if one <= position)
    at = position - base
    life.disk.flip_bits(f"journal/{segment_name(base)}", Random(1), 1, at, at + 1)


# --- operators ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize("limits", [DelayLimits(), FEW_ROWS], ids=["unfiled", "in blocks"])
def test_what_is_cancelled_does_not_come(limits, is_killed):
    life = make(delays=limits)
    peer = life.peer()
    for nth in range(30):
        send(peer, b"%2d" % nth, 5000 + nth)
        pass_ms(life, TICK_MS)
    ids = positions(life)
    assert len(ids) == 30
    for one in ids[::3]:
        cancel(life, one)
    with pytest.raises(UnknownNameError):
        cancel(life, ids[0])
    assert positions(life) == [one for nth, one in enumerate(ids) if nth % 3]
    if is_killed:
        life.kill()
    with pytest.raises(UnknownNameError):
        cancel(life, ids[3])
    pass_ms(life, 6000)
    assert sorted(life.stored()) == [b"%2d" % nth for nth in range(30) if nth % 3]
    with pytest.raises(UnknownNameError):
        cancel(life, ids[1])


def test_what_was_cancelled_does_not_come_back_with_a_block():
    life = make(delays=replace(FEW_ROWS, share_count=1))
    peer = life.peer()
    for nth in range(7):
        send(peer, b"%2d" % nth, 5000 + nth)
    cancel(life, positions(life)[2])
    life.sync()
    ticket = life.engine.group.begin_checkpoint()
    ticket.run()
    life.engine.group.end_checkpoint(ticket)
    for nth in range(7, 12):
        send(peer, b"%2d" % nth, 5000 + nth)
        pass_ms(life, TICK_MS)
    assert outcome(life, "filed") > 0
    life.kill()
    pass_ms(life, 6000)
    assert sorted(life.stored()) == [b"%2d" % nth for nth in range(12) if nth != 2]


@pytest.mark.parametrize("position", [-1, 0, 1, 1 << 50])
def test_only_a_delay_can_be_cancelled(position):
    life = make()
    life.peer().produce(b"x")
    with pytest.raises(UnknownNameError):
        cancel(life, position)


def test_a_cancellation_that_could_not_be_written_never_was():
    life = make()
    peer = life.peer()
    send(peer, b"x", 200)
    life.disk.fail("write", FULL, path_contains="journal/")
    cancel(life, positions(life)[0])
    assert life.broker.delaying.pending == 1
    pass_ms(life, 300)
    assert life.stored() == [b"x"]


def test_a_listing_says_what_waits():
    life = make(topics=("orders", "other"), delays=FEW_ROWS)
    peer = life.peer()
    due = wall_ms(life) + 5000
    for nth in range(25):
        details = {"business_id": f"key {nth}", "topic": "orders" if nth % 2 else "other"}
        peer.produce(b"%2d" % nth, attributes={"DELIVER_AT": str(due + nth), "TAGS": "red"}, **details)
        pass_ms(life, TICK_MS)
    delaying = life.broker.delaying
    rows = delaying.rows(None, -1, 100)
    assert [row["due_ms"] for row in rows] == [due + nth for nth in range(25)]
    assert rows[1] == {
        "id": rows[1]["id"],
        "topic": "orders",
        "partition": 0,
        "due_ms": due + 1,
        "key": "key 1",
        "tags": "red",
        "size": rows[1]["size"],
    }
    assert delaying.pending_by_topic() == {"orders": 12, "other": 13}
    assert [row["due_ms"] - due for row in delaying.rows("orders", -1, 100)] == list(range(1, 25, 2))
    paged, after = [], -1
    while True:
        page, after = delaying.page("other", after, 4)
        paged += page
        if after is None:
            break
    assert [row["due_ms"] - due for row in paged] == list(range(0, 25, 2))
    assert delaying.rows("nowhere", -1, 10) == []
    assert delaying.next_due_ms == due


# --- retention ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limits", [DelayLimits(), FEW_ROWS], ids=["unfiled", "in blocks"])
@pytest.mark.parametrize("end", ["restart", "kill", "lose_power"])
def test_a_delay_does_not_keep_its_segment(limits, end):
    life = make(storage=TINY, retention=RetentionPolicy(size_bytes=1), delays=limits)
    peer = life.peer()
    for nth in range(20):
        send(peer, b"wait %2d" % nth, DAY + nth)
        pass_ms(life, TICK_MS)
    cancel(life, positions(life)[0])
    first = life.journal.first_position
    for _ in range(2):
        for nth in range(20):
            peer.produce(b"%4d" % nth * 700)
        for _ in range(8):
            life.pass_ms(life.config.retention_every_ms)
            life.pass_ms(1500)
        assert life.journal.first_position > first
        first = life.journal.first_position
        assert life.broker.delaying.pending == 19
        getattr(life, end)()
        peer = life.peer()
    assert life.broker.delaying.pending == 19
    pass_ms(life, DAY + HOUR, every_ms=MINUTE)
    released = [body for body in life.stored() if body.startswith(b"wait")]
    assert sorted(released) == [b"wait %2d" % nth for nth in range(1, 20)]


# --- the power goes ------------------------------------------------------------------------------------------------


def scenario(life, told):
    """Some delays, filed and released, with all that is promised told on the way."""
    peer = life.peer()
    for nth in range(14):
        due = wall_ms(life) + 60 + 37 * (nth % 5)
        body = b"%d %d" % (nth, due)
        told[body] = "unknown"
        code, _ = peer.produce(body, attributes={"DELIVER_AT": str(due)}, qos=Qos.FLUSH)
        told[body] = "kept" if code == 0 else "refused"
        life.pass_ms(TICK_MS // 2)
    pass_ms(life, 300)


def check_account(life, told, when):
    """Never lost, never early, once."""
    pass_ms(life, 1000)
    found = stored_with_times(life)
    bodies = [body for body, _ in found]
    assert len(set(bodies)) == len(bodies), f"{when}: released twice"
    for body, stored_ms in found:
        assert stored_ms >= int(body.split()[1]), f"{when}: early"
    for body, outcome in told.items():
        assert outcome != "kept" or body in bodies, f"{when}: lost"
        assert outcome != "refused" or body not in bodies, f"{when}: refused and there"
    assert life.broker.delaying.pending == 0


@functools.cache
def count_crash_points():
    life = make(storage=TINY, delays=FEW_ROWS)
    life.disk.crash_points = 0
    scenario(life, {})
    assert outcome(life, "filed") > 0
    return life.disk.crash_points


@pytest.mark.parametrize(
    "mode",
    [
        pytest.param(mode, marks=[] if mode in ("nothing", "mixed") else pytest.mark.slow)
        for mode in MODES
        if mode != "everything"
    ],
)
def test_F46_power_lost_at_every_step_of_a_delay(mode):
    for point in range(count_crash_points()):
        life = make(storage=TINY, delays=FEW_ROWS)
        life.disk.crash_points = 0
        life.disk.crash_after = point
        told = {}
        with pytest.raises(PowerLost):
            scenario(life, told)
        life.lose_power(point, mode)
        check_account(life, told, f"power lost at {point}, {mode}")


def test_F46_killed_at_every_step_of_a_delay():
    for point in range(count_crash_points()):
        life = make(storage=TINY, delays=FEW_ROWS)
        life.disk.crash_points = 0
        life.disk.crash_after = point
        told = {}
        with pytest.raises(PowerLost):
            scenario(life, told)
        life.kill()
        check_account(life, told, f"killed at {point}")


# --- anything --------------------------------------------------------------------------------------------------------


class DelayingModel(RuleBasedStateMachine):
    """Producers, operators, time, crashes and a disk that fills up, against a dictionary."""

    def __init__(self):
        super().__init__()
        self.life = make(
            storage=TINY, delays=FEW_ROWS, retention=RetentionPolicy(size_bytes=20_000), retention_every_ms=1000
        )
        self.sent = {}  # due by body
        self.seen = set()
        self.cancelled = set()
        self.count = 0

    @rule(delay_ms=st.integers(1, 8000), size=st.sampled_from((0, 0, 300)))
    def put(self, delay_ms, size):
        self.count += 1
        due = wall_ms(self.life) + delay_ms
        body = b"%d %d " % (self.count, due) + b"x" * size
        code, _ = self.life.peer().produce(body, attributes={"DELIVER_AT": str(due)})
        if code == 0:
            self.sent[body] = due

    @rule(count=st.integers(2, 15), delay_ms=st.integers(1, 3000))
    def put_many(self, count, delay_ms):
        for nth in range(count):
            self.put(delay_ms + nth, 0)

    @rule(spent_ms=st.sampled_from((1, 20, 20, 100, 700, 3000)))
    def pass_time(self, spent_ms):
        while spent_ms > 0:  # looked at after each tick: retention may drop in the next one what this one released
            pass_ms(self.life, min(spent_ms, TICK_MS))
            spent_ms -= TICK_MS
            self.seen.update(body for body, _ in stored_with_times(self.life))

    @rule(nth=st.integers(0, 20))
    def cancel(self, nth):
        self.life.disk.faults.clear()  # else nobody would know whether it is
        rows = self.life.broker.delaying.rows(None, -1, 100)
        if rows:
            row = rows[nth % len(rows)]
            (body,) = self.body_at(row["id"])
            end = cancel(self.life, row["id"])
            while self.life.journal.synced_position < end:
                self.life.pass_ms(TICK_MS)
            self.cancelled.add(body)

    def body_at(self, position):
        _, payload = self.life.engine.group.read_record(position)
        return bodies_in(bytes(payload[ADD_BYTES:]))

    @rule(body_bytes=st.sampled_from((100, 3000)))
    def produce(self, body_bytes):
        self.life.peer().produce(b"n" * body_bytes)

    @rule(times=st.integers(1, 3), after=st.integers(0, 3))
    def fail_some_writes(self, times, after):
        self.life.disk.fail("write", FULL, path_contains="journal/", times=times, after=after)

    @rule()
    def restart(self):
        self.life.disk.faults.clear()
        self.life.restart()

    @rule()
    def kill(self):
        self.life.disk.faults.clear()
        self.life.kill()

    @rule(seed=st.integers(0, 1000), mode=st.sampled_from(MODES))
    def lose_power(self, seed, mode):
        self.life.disk.faults.clear()
        self.life.lose_power(seed, mode)

    @invariant()
    def nothing_is_early_lost_or_doubled(self):
        life = self.life
        found = [one for one in stored_with_times(life) if not one[0].startswith(b"n")]
        bodies = [body for body, _ in found]
        self.seen.update(bodies)
        assert len(set(bodies)) == len(bodies), "released twice"
        for body, stored_ms in found:
            assert stored_ms >= int(body.split()[1]), "early"
            assert body in self.sent, "refused and there"
            assert body not in self.cancelled, "cancelled and there"

    def teardown(self):
        self.life.disk.faults.clear()
        for _ in range(500):
            self.pass_time(100)
            self.nothing_is_early_lost_or_doubled()
            if self.life.broker.delaying.pending == 0:
                break
        pass_ms(self.life, 100)
        self.nothing_is_early_lost_or_doubled()
        lost = set(self.sent) - self.seen - self.cancelled
        assert not lost, f"never came out: {lost}"


TestDelaying = DelayingModel.TestCase
TestDelaying.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)


@pytest.mark.parametrize("app", ["shop", ""])
def test_a_delayed_message_with_an_id_is_stored_once_even_after_a_kill(app):
    life = make_broker(partitions=1)
    peer = life.peer().consumes()
    wish = {"DELIVER_AT": str(wall_ms(life) + 1000), "UNIQ_ID": "one"}
    assert peer.produce(b"x", attributes=wish, app=app)[0] == 0
    life.kill()
    peer = life.peer().consumes()
    assert peer.produce(b"x", attributes=wish, app=app)[0] == 0
    life.pass_ms(2000)
    assert [peer.fetch(), peer.fetch()] == [[b"x"], []]
    assert peer.produce(b"x", attributes=wish, app=app)[0] == 0, "nor when it has been released"
    life.pass_ms(2000)
    assert peer.fetch() == []
