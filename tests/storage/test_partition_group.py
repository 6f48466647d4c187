"""The engine as its owner sees it: append, flush, sync, read, and what it says when the disk does not play along."""

import contextlib
import dataclasses
import errno
import os
from random import Random

import pytest

from fix_disk import DISKS, dump
from fix_storage import TINY, A, B, C, Engine, block, indexes, read_all, run_sync, segment_path
from lakemq.envelope import unpack_all
from lakemq.errors import (
    BadParameterError,
    DiskIOError,
    IndexOutOfRangeError,
    ReadError,
    ServiceUnavailableError,
    WriteError,
)
from lakemq.storage.journal_record import SURVIVES_BAD_SECTORS, RecordType
from lakemq.storage.recovery import open_group
from lakemq.storage.tables import TermRow
from lakemq.testing.disk import SimDisk, SimFile
from lakemq.world.disk import RealDisk

FULL = OSError(errno.ENOSPC, "planned")
EIO = OSError(errno.EIO, "planned")


@pytest.fixture(params=DISKS)
def disk(request, tmp_path):
    return DISKS[request.param](tmp_path)


@pytest.fixture(params=DISKS)
def engine(request, tmp_path):
    return Engine(DISKS[request.param](tmp_path))


@pytest.fixture
def sim():
    return Engine()


# Appending and reading.


def test_messages_get_consecutive_indexes_each_partition_its_own(engine):
    for number in range(40):
        for key in (A, B, C):
            engine.append(key, b"%d" % number)
        engine.flush()
        engine.sync()
    assert [engine.group.next_index(*key) for key in (A, B, C)] == [40, 40, 40]
    assert engine.group.partitions() == [A, B, C]
    engine.check()
    engine.check(index_count=7)


def test_what_is_stored_says_where_it_is(sim):
    sim.term = 7
    sim.put(B, b"first")
    sim.put(B, b"second", (b"third", b"fourth"))
    messages = [each for one in sim.read(B, 0, 9) for each in unpack_all(one.messages)]
    assert [(each.index, each.partition, each.term) for each in messages] == [(0, 1, 7), (1, 1, 7), (2, 1, 7)]
    assert [item.body for item in messages[2].items] == [b"third", b"fourth"]
    assert messages[1].send_time_ms + messages[1].store_time_ms == sim.now_ms


def test_messages_are_visible_once_they_are_synced_and_not_before(engine):
    engine.append(A, b"x")
    assert (engine.group.next_index(*A), engine.group.visible_index(*A)) == (1, 0)
    engine.flush()
    assert engine.read(A, 0) == []
    assert engine.group.visible_index(*A) == 0
    assert engine.sync() == [A]
    assert indexes(engine.read(A, 0)) == [(0, 1)]


def test_a_sync_shows_what_was_written_before_it_was_handed_out(sim):
    sim.append(A, b"1")
    sim.flush()
    ticket = sim.group.begin_sync()
    sim.append(A, b"2")
    sim.append(B, b"3")
    sim.flush()
    ticket.run()
    assert sim.group.end_sync(ticket) == [A]
    assert [sim.group.visible_index(*key) for key in (A, B)] == [1, 0]
    assert sorted(run_sync(sim.group)) == [A, B]


def test_a_sync_says_which_partitions_have_more_to_read(sim):
    for key in (B, A, B, C):
        sim.append(key, b"x")
    sim.append_control(RecordType.ACK, b"y")
    sim.flush()
    assert sorted(sim.sync()) == [A, B, C]
    sim.append_control(RecordType.ACK, b"y")
    sim.flush()
    assert sim.sync() == []


def test_segments_roll_by_size_and_reading_goes_across(engine):
    engine.put_many(60, keys=(A, B), body_bytes=600)
    assert len(engine.group.journal.bases()) > 4
    engine.check()
    engine.check(bytes_max=1)


def test_a_turn_that_spans_a_roll_is_all_there(sim):
    sim.fill_segment()
    for number in range(5):
        sim.append(A, b"%d" % number * 700)
    sim.flush()
    sim.sync()
    assert len(sim.group.journal.bases()) == 2
    sim.check()
    sim.kill()


def test_reading_keeps_to_its_limits(sim):
    sizes = [len(sim.put(A, b"x" * 100).payload) for _ in range(20)]
    size = sizes[0]
    assert indexes(sim.read(A, 0, 3)) == [(0, 1), (1, 2), (2, 3)]
    assert indexes(sim.read(A, 18, 99)) == [(18, 19), (19, 20)]
    assert indexes(sim.read(A, 5, 99, size * 2)) == [(5, 6), (6, 7)]
    assert indexes(sim.read(A, 5, 99, size * 2 + size - 1)) == [(5, 6), (6, 7)]
    assert indexes(sim.read(A, 5, 99, 1)) == [(5, 6)], "one, however large"
    assert sim.read(A, 5, 0) == []
    assert sim.read(A, 20) == []
    for outside in (-1, 21, 1 << 60):
        with pytest.raises(IndexOutOfRangeError):
            sim.read(A, outside)


def test_a_partition_that_never_had_a_message_is_empty(engine):
    assert engine.read((9, 9), 0) == []
    with pytest.raises(IndexOutOfRangeError):
        engine.read((9, 9), 1)
    assert engine.group.first_index(9, 9) == engine.group.index_of_time(9, 9, 5) == 0


def test_part_of_a_record_is_read_by_message(sim):
    record = sim.put(A, b"0", b"1", b"2", b"3", b"4")
    size = len(record.payload) // 5
    for start in range(5):
        for count in range(1, 6 - start):
            (got,) = sim.read(A, start, count)
            assert (got.first_index, got.next_index, got.message_count) == (start, start + count, count)
            assert bytes(got.messages) == record.payload[start * size : (start + count) * size]
    (got,) = sim.read(A, 1, 99, size * 2 + 1)
    assert (got.first_index, got.next_index) == (1, 3)


def test_a_batch_is_read_whole_from_any_index_in_it(sim):
    sim.put(A, b"0")
    batch = sim.put(A, (b"1", b"2", b"3"))
    sim.put(A, b"4")
    for start in (1, 2, 3):
        (got,) = sim.read(A, start)
        assert (got.first_index, got.next_index, bytes(got.messages)) == (1, 4, batch.payload)
    assert indexes(sim.read(A, 0, 2)) == [(0, 1), (1, 4)], "a batch that overlaps what is wanted"
    assert indexes(sim.read(A, 3, 2)) == [(1, 4), (4, 5)]


@pytest.mark.parametrize("seed", range(20))
def test_whatever_is_asked_for_is_what_overlaps_it(seed):
    rng, engine = Random(seed), Engine()
    for number in range(30):
        bodies = [
            b"%d" % number if rng.random() < 0.7 else (b"b",) * rng.randrange(1, 5)
            for _ in range(rng.choice((1, 1, 3)))
        ]
        engine.append(rng.choice((A, B)), *bodies)
        if rng.random() < 0.5:
            engine.flush()
            engine.sync()
    engine.flush()
    engine.sync()
    for key in (A, B):
        visible = engine.group.visible_index(*key)
        whole, at = read_all(engine.group, key), {}
        for one in engine.oracle.of(key):
            place = 0
            for each in unpack_all(one.payload):
                length = int.from_bytes(one.payload[place : place + 4])
                count = len(each.items) if hasattr(each, "items") else 1
                at |= dict.fromkeys(range(each.index, each.index + count), one.payload[place : place + length])
                place += length
        assert len(at) == visible
        assert len(whole) == sum(map(len, {id(data): data for data in at.values()}.values()))
        for _ in range(30):
            start, count = rng.randrange(visible), rng.randrange(1, 9)
            expected = b"".join(dict.fromkeys(at[index] for index in range(start, min(start + count, visible))))
            assert engine.bodies(key, start, count) == expected


def test_messages_are_found_by_their_store_time(sim):
    times = []
    for number in range(50):
        sim.now_ms += number % 3 * 100
        times.append(sim.put(A, b"%d " % number * 100).store_time_ms)
    for when in [times[0] - 1, *times, *(time + 1 for time in times), times[-1] + 5]:
        assert sim.group.index_of_time(*A, when) == sim.oracle.index_of_time(A, when, 0)
    sim.append(A, b"not visible yet")
    sim.flush()
    assert sim.group.index_of_time(*A, times[-1] + 5) == 50
    sim.drop(0)
    assert sim.group.index_of_time(*A, 0) == sim.group.first_index(*A) > 0


def test_a_client_address_is_kept(sim):
    sim.append(A, b"x", client_address=b"0123456789abcdef")
    sim.flush()
    sim.sync()
    assert sim.read(A, 0)[0].client_address == b"0123456789abcdef"


# Terms, facts, limits.


def test_terms_are_remembered_with_the_place_they_began_at(engine):
    places = []
    for term in (1, 1, 4, 4, 9):
        engine.term = term
        places.append((term, engine.put(A, b"x").position))
    begun = [TermRow(*places[nth]) for nth in (0, 2, 4)]
    begun[0] = TermRow(1, 0)  # with the table at the head of the segment
    assert engine.group.terms == begun
    assert engine.group.term == 9
    engine.kill()
    assert engine.group.terms == begun
    engine.term = 8
    with pytest.raises(BadParameterError, match="term 8 is over"):
        engine.append(A, b"x")


def test_terms_survive_retention_and_the_loss_of_the_checkpoint(sim):
    for term in range(1, 6):
        sim.term = term
        sim.fill_segment()
        sim.put(A, b"x" * 1500)
    terms = sim.group.terms
    sim.drop(0)
    sim.disk.lose_process()
    sim.disk.remove("checkpoint")
    sim.disk.remove("checkpoint.old")
    sim.open()
    assert sim.group.terms == terms


def test_facts_are_walked_over_in_order_with_the_messages(engine):
    engine.put(A, b"m")
    fact = engine.append_control(RecordType.TRANSACTION, b"begin", B)
    engine.append(A, b"n")
    engine.append_control(RecordType.TRANSACTION, b"commit", B)
    engine.flush()
    engine.sync()
    found = list(engine.group.records(fact.position, engine.group.journal.end_position))
    assert [one.header.type for one in found] == [RecordType.TRANSACTION, RecordType.MESSAGES, RecordType.TRANSACTION]
    assert [bytes(one.payload) for one in found if one.header.type != RecordType.MESSAGES] == [b"begin", b"commit"]
    engine.kill()


def test_every_segment_begins_with_a_table(sim):
    sim.put_many(40, body_bytes=500)
    journal = sim.group.journal
    for base in journal.bases():
        found = next(sim.group.records(base, journal.end_position))
        assert (found.position, found.header.type) == (base, RecordType.TABLE)


def test_a_record_that_is_too_long_is_refused_and_leaves_no_trace(engine):
    engine.put(A, b"x")
    before = engine.group.journal.end_position
    with pytest.raises(BadParameterError, match="2048 are allowed"):
        engine.append(B, b"x" * 2048)
    with pytest.raises(BadParameterError):
        engine.append_control(RecordType.ACK, b"x" * 2048)
    assert engine.group.journal.end_position == before
    assert engine.group.next_index(*B) == 0
    assert engine.group.partitions() == [A]


def test_more_messages_than_a_record_can_count_are_refused_and_leave_no_trace():
    size = 8 << 20
    engine = Engine(
        config=dataclasses.replace(TINY, segment_bytes=size, record_bytes_max=size // 2, unsynced_bytes_max=size // 2)
    )
    many = bytearray(block(b"").data * 65_536)
    with pytest.raises(BadParameterError):
        engine.group.append(*A, many, 65_536, 65_536, term=1, now_ms=1)
    assert engine.group.journal.end_position == 0
    engine.put(A, b"x")
    engine.kill()


def test_more_than_may_wait_for_a_sync_is_refused_until_one_ends(sim):
    while sim.group.journal.unsynced_bytes + 1200 <= TINY.unsynced_bytes_max:
        sim.append(A, b"x" * 1000)
    with pytest.raises(ServiceUnavailableError):
        sim.append(A, b"x" * 1200)
    assert sim.group.journal.unsynced_bytes <= TINY.unsynced_bytes_max + 500
    sim.flush()
    sim.sync()
    sim.put(A, b"on it goes")
    sim.check()


def test_many_partitions_keep_few_files_open():
    engine = Engine(config=dataclasses.replace(TINY, segment_bytes=100_000, checkpoint_bytes=1 << 30))
    for number in range(300):
        engine.put((number, 0), b"x")
    assert len(engine.disk._open_files) <= TINY.open_index_files_max + TINY.open_segments_max + 1
    engine.checkpoint()
    engine.kill()
    assert len(engine.group.partitions()) == 300


# F15: a sync that failed.


def fail_a_sync(engine, **details):
    ticket = engine.group.begin_sync()
    engine.disk.fail("sync", EIO, path_contains="journal/", **details)
    with pytest.raises(OSError, match="planned"):
        ticket.run()
    return engine.group.end_sync(ticket, EIO)


def test_F15_a_failed_sync_is_final(sim):
    sim.put(A, b"before")
    sim.append(A, b"never acked")
    sim.flush()
    assert fail_a_sync(sim) == []
    sim.disk.trace = trace = []
    with pytest.raises(DiskIOError):
        sim.append(A, b"later")
    with pytest.raises(DiskIOError):
        sim.append_control(RecordType.ACK, b"later")
    assert sim.group.begin_sync() is None
    assert (sim.group.visible_index(*A), sim.group.next_index(*A)) == (1, 2)
    assert indexes(sim.read(A, 0, 9)) == [(0, 1)], "what was synced can be read"
    assert not [each for each in trace if each[0] != "read"]
    sim.group.close()
    assert not [each for each in trace if each[0].startswith("sync")], "not even at the end"


@pytest.mark.parametrize("turn", ["messages", "fact", "both"])
def test_F15_a_turn_under_way_when_a_sync_fails_is_refused(sim, turn):
    sim.append(A, b"1")
    sim.flush()
    ticket = sim.group.begin_sync()
    if turn != "fact":
        sim.append(A, b"2")
    if turn != "messages":
        sim.append_control(RecordType.ACK, b"3")
    sim.group.end_sync(ticket, EIO)
    with pytest.raises(DiskIOError):
        sim.group.flush()
    assert sim.group.next_index(*A) == 1


def test_F15_no_checkpoint_is_made_after_a_failed_sync(sim):
    """It would sync again, and may vouch for what is nowhere."""
    sim.put_many(20, body_bytes=500)
    sim.append(A, b"x")
    sim.flush()
    fail_a_sync(sim)
    assert not sim.group.wants_checkpoint
    with pytest.raises(DiskIOError):
        sim.group.begin_checkpoint()


@pytest.mark.parametrize("seed", range(10))
def test_F16_a_sync_that_lies_the_second_time_costs_nothing_that_was_acked(sim, seed):
    sim.put(A, b"acked")
    for number in range(3):
        sim.append(A, b"%d" % number)
        sim.flush()
    fail_a_sync(sim, wrote=1)
    sim.kill()
    sim.put(A, b"acked later")
    sim.lose_power(seed)


# F17: sectors that cannot be read.


@pytest.mark.parametrize("bad", range(8))
def test_F17_a_bad_sector_costs_only_the_record_it_is_in(monkeypatch, bad):
    engine = Engine(config=dataclasses.replace(TINY, maps_segments=False))
    records = engine.put_many(8)
    place = records[bad].position + 100
    read_at = SimFile.read_at

    def read_but_there(file, position, size):
        if file.path.startswith("journal/") and position <= place < position + size:
            raise EIO
        return read_at(file, position, size)

    monkeypatch.setattr(SimFile, "read_at", read_but_there)
    for number, one in enumerate(records):
        if number == bad:
            with pytest.raises(ReadError):
                engine.read(A, number, 99)
        else:
            end = bad if number < bad else 8
            assert engine.bodies(A, number, 99) == b"".join(each.payload for each in records[number:end])
            assert bytes(engine.read(A, number)[0].messages) == one.payload


@pytest.mark.skipif(not SURVIVES_BAD_SECTORS, reason="without the compiled twin nothing is mapped")
def test_F17_a_mapped_sector_that_cannot_be_read_costs_only_the_records_in_it(tmp_path):
    """A page behind the end of a file stands for a bad sector: looking at it brings the same signal."""
    disk = RealDisk(tmp_path)
    engine = Engine(disk, dataclasses.replace(TINY, segment_bytes=64 << 10))
    records = engine.put_many(40, body_bytes=300)
    assert engine.read(A, 0, 1)
    os.truncate(tmp_path / segment_path(0), 8192)
    readable = sum(one.end_position <= 8192 for one in records)
    assert 0 < readable < 40
    assert engine.bodies(A, 0, 99) == b"".join(one.payload for one in records[:readable])
    with pytest.raises(ReadError):
        engine.read(A, readable + 1)


def test_F17_an_index_file_that_cannot_be_read_is_made_again(sim):
    sim.put_many(20)
    sim.disk.fail("read", EIO, path_contains="index/")
    sim.check()
    assert any("made again" in note for note in sim.group.notes)


# No memory, no files: nothing is known about the bytes, so nothing is said about them.

SHORTAGES = [MemoryError(), OSError(errno.ENOMEM, "planned"), OSError(errno.EMFILE, "planned")]


@pytest.mark.parametrize("error", SHORTAGES, ids=repr)
def test_messages_of_segments_that_cannot_be_mapped_are_read_all_the_same(sim, error):
    sim.put_many(20)
    sim.group.journal._mapped.clear()
    sim.disk.fail("map", error, times=999)
    sim.check()
    assert not sim.group.damage


@pytest.mark.parametrize("place", ["journal/", "index/"])
@pytest.mark.parametrize("error", SHORTAGES, ids=repr)
def test_sound_messages_are_not_called_damaged_for_want_of_memory(error, place):
    engine = Engine(config=dataclasses.replace(TINY, maps_segments=False))
    engine.put_many(20)
    for operation in ("read", "open"):
        engine.disk.fail(operation, error, path_contains=place, times=999)
    for index in range(20):
        with contextlib.suppress(ServiceUnavailableError):  # what is in memory needs no disk
            engine.read(A, index, 99)
    with pytest.raises(ServiceUnavailableError):
        engine.read(A, 0)
    engine.disk.faults.clear()
    assert not engine.group.damage
    assert not any("made again" in note or "damaged" in note for note in engine.group.notes)
    engine.check()


@pytest.mark.parametrize("error", SHORTAGES, ids=repr)
def test_a_start_for_which_there_is_no_memory_fails_and_damages_nothing(error):
    engine = Engine()
    engine.put_many(20)
    for number in range(200):
        engine.disk.lose_process()
        engine.disk.fail("read", error, after=number)
        try:
            open_group(engine.disk, engine.config)
        except (OSError, MemoryError):
            assert not engine.disk.faults[0].times
        else:
            if engine.disk.faults[0].times:
                break  # it came so far without it
        engine.disk.faults.clear()
    assert number > 3
    engine.disk.faults.clear()
    engine.kill()
    assert not engine.group.damage
    engine.check()


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE])
def test_F26_for_one_more_index_file_the_others_are_given_back(sim, code):
    for partition in range(3):
        for number in range(12):
            sim.put((1, partition), b"%d" % number)
    sim.group._indexes._files._open.clear()
    sim.check()
    sim.disk.fail("open", OSError(code, "planned"), path_contains="index/")
    sim.group._indexes._files._open.popitem()
    sim.check()
    assert not any("made again" in note for note in sim.group.notes)


# F18: no room.


def fill_disk(engine, room=0):
    engine.disk.capacity_bytes = 1 << 40
    engine.disk.capacity_bytes = engine.disk.capacity_bytes - engine.disk.free_bytes() + room


def refuse_turn(engine):
    """Flush, which must be refused; the oracle is told."""
    with pytest.raises(WriteError):
        engine.group.flush()
    engine.oracle.refuse()


@pytest.mark.parametrize("wrote", [0, 10, 130, 200, 10_000])
@pytest.mark.parametrize("end", ["go on", "kill", "clean"])
def test_F18_a_refused_write_leaves_no_trace(sim, wrote, end):
    sim.put(A, b"before")
    before = sim.group.journal.end_position
    for key in (A, B, A):
        sim.append(key, b"refused")
    sim.disk.fail("write", FULL, path_contains="journal/", wrote=wrote)
    refuse_turn(sim)
    assert sim.group.journal.end_position == before
    assert sim.group.partitions() == [A]
    sim.check()
    if end == "kill":
        sim.kill()
    elif end == "clean":
        sim.close_and_open()
    sim.put(A, b"room again")
    sim.put(B, b"room again")
    sim.kill()


def test_F18_a_new_term_that_could_not_be_written_has_not_begun(sim):
    sim.put(A, b"x")
    sim.term = 5
    sim.append(A, b"refused")
    sim.disk.fail("write", FULL, path_contains="journal/")
    refuse_turn(sim)
    assert sim.group.term == 1
    sim.term = 3
    sim.put(A, b"y")
    assert [row.term for row in sim.group.terms] == [1, 3]


def test_F18_a_turn_taken_back_after_its_partitions_were_filed_leaves_no_entry(sim):
    for number in range(12):
        sim.append(A, b"%d" % number)
    sim.flush()
    ticket = sim.group.begin_sync()
    ticket.run()
    sim.append(A, b"refused")
    sim.group.end_sync(ticket)
    sim.oracle.sync(ticket.position)
    sim.disk.fail("write", FULL, path_contains="journal/")
    refuse_turn(sim)
    sim.put(A, b"after")
    sim.check(index_count=1)
    sim.kill()


@pytest.mark.parametrize("operation", ["create", "preallocate", "truncate"])
def test_F18_a_refused_roll_refuses_the_append_and_heals(sim, operation):
    sim.fill_segment()
    sim.disk.fail(operation, FULL, path_contains="journal/")
    before = sim.group.journal.end_position
    with pytest.raises(WriteError):
        sim.append(A, b"x" * 1500)
    assert sim.group.journal.end_position == before
    assert sim.group.next_index(*A) == sim.oracle.next_index(A)
    sim.append(B, b"small, and of the same turn")
    sim.flush()
    sim.sync()
    sim.put(B, b"small enough for the old segment")
    sim.put(A, b"x" * 1500)
    sim.check()
    sim.kill()


@pytest.mark.parametrize("operation", ["create", "preallocate", "truncate"])
@pytest.mark.parametrize("end", ["kill", "power", "go on"])
def test_F18_what_a_turn_appended_before_a_refused_roll_stays(sim, operation, end):
    sim.fill_segment()
    for number in range(2):
        sim.append(B, b"%d" % number)
    sim.append_control(RecordType.ACK, b"fact")
    sim.disk.fail(operation, FULL, path_contains="journal/")
    with pytest.raises(WriteError):
        sim.append(A, b"x" * 1500)
    sim.append(B, b"2")
    sim.flush()
    sim.sync()
    assert sim.group.visible_index(*B) == 3
    sim.check()
    if end == "kill":
        sim.kill()
    elif end == "power":
        sim.lose_power(7, "nothing")
    sim.put(B, b"again")
    sim.kill()


@pytest.mark.parametrize("is_killed", [False, True])
def test_F18_a_turn_fails_as_a_whole_when_a_roll_cannot_write_it(sim, is_killed):
    sim.fill_segment()
    for number in range(2):
        sim.append(B, b"%d" % number)
    sim.append_control(RecordType.ACK, b"fact")
    sim.disk.fail("write", FULL, path_contains="journal/")
    for _ in range(2):
        with pytest.raises(WriteError):
            sim.append(A, b"x" * 1500)
    refuse_turn(sim)
    assert sim.group.next_index(*B) == 0
    sim.sync()
    sim.check()
    if is_killed:
        sim.kill()
    sim.put(B, b"again")
    sim.kill()


def test_F18_a_file_that_a_refused_roll_cannot_remove_fails_the_turn_as_a_whole(sim):
    """What went on in the old segment would be hidden by it at the next start."""
    sim.fill_segment()
    sim.append(B, b"of the same turn")
    sim.disk.fail("preallocate", FULL)
    sim.disk.fail("remove", EIO)
    with pytest.raises((WriteError, DiskIOError)):
        sim.append(A, b"x" * 1500)
    with pytest.raises((WriteError, DiskIOError)):
        sim.group.flush()
    assert sim.group.next_index(*B) == 0


@pytest.mark.parametrize("seed", range(20))
def test_F18_what_is_acked_after_a_refused_roll_survives_a_power_loss(sim, seed):
    sim.fill_segment()
    sim.disk.fail("preallocate", FULL)
    with pytest.raises(WriteError):
        sim.append(A, b"x" * 1500)
    sim.put(B, b"small enough for the old segment")
    sim.lose_power(seed)


def test_F18_the_disk_is_full_and_then_it_is_not(sim):
    """With room for nothing, reads go on and appends go on as far as space was reserved; with room again, all does."""
    sim.put_many(5)
    fill_disk(sim)
    refused = 0
    for number in range(60):
        try:
            sim.append(A, b"%d" % number * 100)
        except WriteError:
            refused += 1
            continue
        sim.flush()
        sim.sync()
    assert refused > 20
    sim.check()
    sim.disk.capacity_bytes = None
    sim.put_many(20)
    sim.checkpoint()
    sim.check(index_count=1)
    sim.kill()


@pytest.mark.parametrize("after", range(6))
def test_F18_index_files_that_cannot_be_written_delay_nothing(sim, after):
    """Acks and visibility depend on the journal; its index is filed when there is room again."""
    sim.disk.fail("write", FULL, path_contains="index/", after=after, times=5)
    for number in range(40):
        sim.append((A, B)[number % 2], b"%d" % number)
        sim.flush()
        sim.sync()
    sim.check()
    sim.disk.faults.clear()
    sim.checkpoint()
    sim.check(index_count=1)
    sim.kill()


def test_F18_a_checkpoint_that_cannot_be_written_leaves_the_one_before(sim):
    sim.put_many(10)
    sim.checkpoint()
    before = sim.group.checkpoint_position
    sim.put_many(10)
    ticket = sim.group.begin_checkpoint()
    sim.disk.fail("write", FULL, path_contains="checkpoint")
    with pytest.raises(OSError, match="planned"):
        ticket.run()
    sim.group.end_checkpoint(ticket, FULL)
    assert sim.group.checkpoint_position == before
    sim.checkpoint()
    assert sim.group.checkpoint_position > before
    sim.kill()


def test_a_checkpoint_within_a_turn_is_refused(sim):
    sim.append(A, b"not flushed")
    with pytest.raises(AssertionError, match="flush first"):
        sim.group.begin_checkpoint()
    sim.flush()
    sim.checkpoint()


# Room for facts.


def fill_for_messages(engine):
    """Up to where no message has room any more without a new segment, which there is not."""
    fill_disk(engine)
    with contextlib.suppress(WriteError):
        while True:
            engine.put(A, b"m")


@pytest.mark.parametrize("is_same_turn", [True, False])
def test_F18_facts_go_on_where_messages_cannot(sim, is_same_turn):
    sim.put_many(5)
    fill_for_messages(sim)
    facts = 0
    while True:
        if is_same_turn:
            with pytest.raises(WriteError):
                sim.append(A, b"m")
        try:
            sim.append_control(RecordType.ACK, b"%04d" % facts)
        except WriteError:
            break
        facts += 1
        if not is_same_turn:
            sim.flush()
    sim.flush()
    sim.sync()
    assert facts >= TINY.reserve_bytes // 80 >= 12
    assert TINY.segment_bytes - sim.group.journal.end_position < 80, "all of it was used"
    sim.check()
    sim.lose_power(3, "nothing")
    sim.disk.capacity_bytes = None
    sim.put(A, b"room again")
    sim.kill()


def test_messages_leave_the_reserve_in_every_segment_and_facts_take_it(sim):
    for number in range(200):
        if number % 2:
            sim.append(A, b"m" * (number % 7 * 100))
        else:
            sim.append_control(RecordType.ACK, b"fact")
        end, base = sim.group.journal.end_position, sim.group.journal.bases()[-1]
        if number % 2:
            assert end - base <= TINY.segment_bytes - TINY.reserve_bytes
        sim.flush()
        sim.sync()
    assert len(sim.group.journal.bases()) > 5


@pytest.mark.parametrize(
    ("segment_bytes", "expected"), [(1 << 30, 1 << 20), (8 << 20, 1 << 20), (8 << 10, 1 << 10), (80, 10)]
)
def test_the_reserve_is_smaller_where_segments_are(segment_bytes, expected):
    config = dataclasses.replace(TINY, segment_bytes=segment_bytes, record_bytes_max=80)
    assert config.reserve_bytes == expected
    assert dataclasses.replace(config, control_reserve_bytes=0).reserve_bytes == 0


def test_a_record_that_would_fit_no_segment_beside_the_reserve_is_taken_all_the_same():
    engine = Engine(config=dataclasses.replace(TINY, segment_bytes=2300))
    for _ in range(3):
        engine.put(A, b"x" * 1900)
    assert len(engine.group.journal.bases()) == 3
    engine.kill()


@pytest.mark.parametrize("is_vouched_for", [False, True])
@pytest.mark.parametrize("after", range(4))
def test_F22_an_index_that_cannot_be_made_again_for_want_of_room_takes_nothing_away(sim, is_vouched_for, after):
    sim.put_many(30, keys=(A, B))
    sim.checkpoint()
    for name in sim.disk.names("index/1/0"):
        sim.disk.open(f"index/1/0/{name}").node.damage(20, 1)
    sim.disk.fail("write", FULL, path_contains="index/1/0/", after=after, times=5)
    for _ in range(2):
        try:
            read_all(sim.group, A)
        except (OSError, ReadError, WriteError):
            continue
    assert sim.group.next_index(*A) == 15
    sim.disk.faults.clear()
    if is_vouched_for:
        sim.put(A, b"behind what is missing")
        sim.checkpoint()  # which must not vouch for what is there
        sim.kill()
    sim.check()
    sim.put(A, b"after")
    sim.kill()


def test_F22_an_index_that_cannot_be_made_again_is_a_read_error(sim):
    sim.put_many(30)
    sim.checkpoint()
    for name in sim.disk.names("index/1/0"):
        sim.disk.open(f"index/1/0/{name}").truncate(0)
    sim.disk.fail("write", FULL, path_contains="index/", times=99)
    with pytest.raises(ReadError):
        sim.read(A, 3)


# The end.


def test_an_ended_store_gives_everything_back(tmp_path):
    before = len(os.listdir("/proc/self/fd"))
    engine = Engine(RealDisk(tmp_path))
    engine.put_many(40, keys=(A, B, C), body_bytes=300)
    engine.group.close()
    assert len(os.listdir("/proc/self/fd")) == before
    engine.open()
    engine.group.abandon()
    assert len(os.listdir("/proc/self/fd")) == before


def test_the_end_syncs_what_was_appended(engine):
    engine.append(A, b"not flushed yet")
    engine.group.close()
    engine.oracle.flush()
    engine.open()
    assert engine.group.visible_index(*A) == 1


def test_a_store_that_is_read_only_ends_without_another_sync(sim):
    sim.append(A, b"x")
    sim.flush()
    fail_a_sync(sim)
    before = dump(sim.disk)
    sim.group.close()
    assert dump(sim.disk) == before
    open_group(sim.disk, TINY).close()


def test_simulated_and_real_disks_hold_the_same_store(tmp_path):
    """The journal byte for byte; so what is shown on one holds on the other."""
    stores = Engine(RealDisk(tmp_path)), Engine(SimDisk())
    for engine in stores:
        engine.put_many(30, keys=(A, B, C), body_bytes=400)
        engine.append_control(RecordType.ACK, b"fact")
        engine.flush()
        engine.checkpoint()
        engine.drop(2)
        engine.close_and_open()
    first, second = (dump(engine.disk) for engine in stores)
    assert first == second


def test_messages_of_a_turn_may_not_change_until_it_is_flushed(sim):
    """They are not copied: this is what the owner has to keep to, and why."""
    made = block(b"abc")
    sim.group.append(*A, *made, term=1, now_ms=1)
    sim.group.flush()
    made.data[:] = bytes(len(made.data))
    run_sync(sim.group)
    assert bytes(sim.read(A, 0)[0].messages) != bytes(made.data)
