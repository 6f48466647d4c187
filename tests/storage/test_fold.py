"""State made from records survives every end: after a start it is what the records in the journal make, each once."""

import dataclasses
import errno
import re
from ast import literal_eval
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fix_disk import get
from fix_storage import TINY, A, B, C, block, run_sync, segment_path
from lakemq.checksum import crc32
from lakemq.cli.storage_report import _record_line
from lakemq.errors import DiskIOError, ServiceUnavailableError, WriteError
from lakemq.storage.files import CHECKPOINT
from lakemq.storage.fold import NO_FOLD, PART_HEAD_BYTES, SnapshotParts, pack_parts, part_of
from lakemq.storage.journal_record import RecordType
from lakemq.storage.recovery import open_group
from lakemq.storage.retention import RetentionPolicy
from lakemq.storage.state_file import read_state, write_state
from lakemq.storage.survey import records, survey
from lakemq.storage.tables import Checkpoint, DamagedRange, Folded, Tables
from lakemq.testing.crash import MODES
from lakemq.testing.disk import SimDisk
from lakemq.testing.storage_model import TallyFold
from storage.fix_fold import FoldEngine

FULL = OSError(errno.ENOSPC, "planned")
EIO = OSError(errno.EIO, "planned")
EVERYTHING = RetentionPolicy(size_bytes=0)
LONG = 1290  # bytes of a snapshot: three parts of at most 512 where records have 2 KiB


class Witness:
    """A fold that remembers what it was told."""

    def __init__(self):
        self.told = []
        self.restored_count = 0

    def restore(self, snapshot):
        self.restored_count += 1
        self.told = literal_eval(snapshot.decode()) if snapshot else []

    def apply(self, header, payload, position):
        self.tell(header.type, header.topic, header.first_index, payload)

    def tell(self, *fact):
        *place, payload = fact
        self.told.append((*place, crc32(payload)))

    def snapshot(self):
        return repr(self.told).encode() if self.told else b""


def put_facts(engine, count, size=100):
    for number in range(count):
        engine.append_control((RecordType.ACK, RecordType.TOPIC)[number % 2], b"%03d" % number + b"f" * size, A)
        engine.flush()
        engine.sync()


def begin_segment(engine):
    """Put facts until there is one segment more."""
    count = len(engine.group.journal.bases())
    while len(engine.group.journal.bases()) == count:
        put_facts(engine, 1, 500)


def forget_checkpoints(disk):
    for name in disk.names(""):
        if name.startswith(CHECKPOINT):
            disk.remove(name)


def heads(disk):
    """The records at the head of each segment, by its base."""
    found = {}
    for one in records(disk):
        if one.header.type == RecordType.TABLE:
            found[one.position] = head = [one]
        elif one.header.type == RecordType.SNAPSHOT:
            head.append(one)
    return found


def checkpoint_of(disk):
    return Checkpoint.unpack(read_state(disk, CHECKPOINT)[1])


def replace_checkpoint(disk, **changes):
    sequence, content = read_state(disk, CHECKPOINT)
    write_state(disk, CHECKPOINT, sequence + 1, dataclasses.replace(Checkpoint.unpack(content), **changes).pack())


def damage(engine, position):
    base = max(base for base in engine.group.journal.bases() if base <= position)
    engine.disk._tree.find(segment_path(base)).damage(position - base, 4)


def start_with_damage(engine):
    """A start whose journal is not what the oracle knows; the fold is not held against it."""
    engine.disk.lose_process()
    engine.fold = TallyFold(engine.padding_bytes)
    engine.group = open_group(engine.disk, engine.config, engine.fold)
    return engine.fold


# Any order of everything.


@pytest.mark.parametrize("seed", range(320))
def test_F10_after_every_end_the_fold_is_what_the_journal_makes(seed):
    rng = Random(seed)
    config = dataclasses.replace(TINY, checkpoint_bytes=rng.choice((300, 3000)))
    engine = FoldEngine(config=config, padding_bytes=rng.choice((0, 0, 100, LONG)))
    for _ in range(4):
        for _ in range(rng.choice((3, 15, 40))):
            step(engine, rng)
        end = rng.choice(("kill", "power", "power", "peace"))
        if rng.random() < 0.2:
            forget_checkpoints(engine.disk)
        if end == "power":
            engine.lose_power(rng.random(), rng.choice(MODES))
        elif end == "kill":
            engine.kill()
        else:
            engine.flush()
            engine.group.close()
            engine.oracle.sync(engine.group.journal.end_position)
            engine.open()


def step(engine, rng):
    """A turn, with syncs, checkpoints and retention between the turns as they come."""
    group = engine.group
    for _ in range(rng.choice((0, 1, 1, 3))):
        try:
            if rng.random() < 0.5:
                engine.append(rng.choice((A, B, C)), b"m" * rng.randrange(400))
            else:
                engine.append_control(RecordType.ACK, b"f" * rng.randrange(200), rng.choice((A, B)))
        except ServiceUnavailableError:
            break
    if rng.random() < 0.05:
        engine.disk.fail("write", FULL, path_contains="journal/", wrote=rng.choice((0, 90, 2000)))
    try:
        engine.flush()
    except WriteError:
        engine.refuse()
    engine.disk.faults.clear()
    ticket = group.begin_sync() if rng.random() < 0.7 else None
    if ticket is not None:
        if rng.random() < 0.5:
            engine.append_control(RecordType.ACK, b"while it is synced")
            engine.flush()
        ticket.run()
        group.end_sync(ticket)
        engine.oracle.sync(ticket.position)
    if group.wants_checkpoint or rng.random() < 0.1:
        checkpoint = group.begin_checkpoint()
        if rng.random() < 0.7:
            checkpoint.run()
            group.end_checkpoint(checkpoint)
        else:
            group.end_checkpoint(checkpoint, FULL)
    if rng.random() < 0.2:
        engine.oracle.drop(group.checkpoint_position)
        group.retain(RetentionPolicy(size_bytes=rng.choice((0, 9000))), engine.now_ms)
    engine.oracle.check_fold(engine.fold)


# What it is told.


@pytest.mark.parametrize("end", ["kill", "no checkpoint", "old checkpoint", "unsound index", "clean"])
def test_every_record_is_told_once_and_in_order_and_those_of_the_engine_are_not(end):
    disk, fold = SimDisk(), Witness()
    group = open_group(disk, TINY, fold)
    for number in range(60):
        made = block(b"%d" % number * 100)
        if number % 3:
            group.append_control(RecordType.ACK, b"%d" % number, topic=number, term=1, now_ms=1)
            fold.tell(4, number, 0, b"%d" % number)
        else:
            first = group.append(1, 0, *made, term=1, now_ms=1).first_index
            fold.tell(1, 1, first, made.data)
        group.flush()
        run_sync(group)
        if number == 30:
            checkpoint = group.begin_checkpoint()
            checkpoint.run()
            group.end_checkpoint(checkpoint)
    assert len(group.journal.bases()) == 2
    if end == "clean":
        group.close()
    disk.lose_process()
    if end == "no checkpoint":
        forget_checkpoints(disk)
    elif end == "old checkpoint":
        replace_checkpoint(disk, folded=None)
    elif end == "unsound index":
        disk.remove("index/1/0/" + disk.names("index/1/0")[0])
    found = Witness()
    open_group(disk, TINY, found).abandon()
    assert found.told == fold.told
    assert found.restored_count == 1


def test_a_new_directory_begins_with_nothing():
    fold = Witness()
    fold.told = ["something from before"]
    group = open_group(SimDisk(), TINY, fold)
    assert fold.told == []
    assert group.notes == []


def test_no_fold_is_told_nothing_and_leaves_no_snapshot():
    engine = FoldEngine()
    engine.disk.lose_process()
    group = open_group(engine.disk, TINY)
    group.append_control(RecordType.ACK, b"fact", term=1, now_ms=1)
    group.close()
    assert NO_FOLD.snapshot() == b""
    assert checkpoint_of(engine.disk).folded is None
    assert [one.header.type for one in records(engine.disk)] == [RecordType.TABLE, RecordType.ACK]


def test_a_start_tells_only_what_came_after_the_checkpoint():
    engine = FoldEngine()
    for _ in range(3):
        begin_segment(engine)
    engine.checkpoint()
    put_facts(engine, 3)
    engine.disk.lose_process()
    engine.disk.trace = trace = []
    engine.fold = TallyFold()
    open_group(engine.disk, TINY, engine.fold).abandon()
    assert (engine.fold.restored_count, engine.fold.applied_count) == (1, 3)
    read = {path for operation, path, _ in trace if operation == "read" and path.startswith("journal/")}
    _, *middle, _ = map(segment_path, engine.group.journal.bases())
    assert middle
    assert not read.intersection(middle)
    engine.oracle.check_fold(engine.fold)


# Snapshots at the heads of segments.


@pytest.mark.parametrize(("padding_bytes", "part_count"), [(0, 1), (496, 1), (497, 2), (LONG, 3)])
def test_each_segment_begins_with_a_table_and_a_snapshot_of_all_before_it(padding_bytes, part_count):
    engine = FoldEngine(padding_bytes=padding_bytes)
    engine.put_many(30, keys=(A, B), body_bytes=600)
    put_facts(engine, 10)
    found = heads(engine.disk)
    assert len(found) >= 3
    for base, (table, *parts) in found.items():
        assert table.position == base
        assert [part_of(one.payload) for one in parts] == [(nth, part_count) for nth in range(part_count) if base]
        truth = TallyFold(padding_bytes)
        truth.count_again(one for one in engine.oracle.records if one.position < base)
        assert b"".join(bytes(one.payload[4:]) for one in parts) == truth.snapshot()


def test_nothing_is_written_of_an_empty_snapshot():
    engine = FoldEngine()
    put_facts(engine, 1)
    assert engine.table_kinds == [RecordType.TABLE, RecordType.ACK]


@pytest.mark.parametrize("padding_bytes", [0, LONG])
def test_without_a_checkpoint_the_oldest_segment_tells_what_was_before_it(padding_bytes):
    engine = FoldEngine(padding_bytes=padding_bytes)
    for _ in range(4):
        begin_segment(engine)
    assert engine.drop(1) >= 2
    put_facts(engine, 3)
    engine.disk.lose_process()
    forget_checkpoints(engine.disk)
    engine.open()
    kept = [one for one in engine.oracle.records if one.position >= engine.group.journal.first_position]
    assert (engine.fold.restored_count, engine.fold.applied_count) == (2, len(kept)), "nothing, and then the snapshot"
    assert len(kept) < len(engine.oracle.records)
    put_facts(engine, 3)
    engine.kill()


def test_a_snapshot_made_within_a_turn_knows_what_the_turn_has_appended_so_far():
    engine = FoldEngine()
    engine.fill_segment()
    for _ in range(30):
        engine.append_control(RecordType.ACK, b"f" * 200)
    engine.flush()
    engine.sync()
    assert len(engine.group.journal.bases()) == 2
    engine.drop(0)
    forget_checkpoints(engine.disk)
    engine.kill()


@pytest.mark.parametrize("wrote", [0, 100, 300, 700, 5000])
def test_F18_a_turn_that_fails_behind_a_roll_leaves_a_fold_without_it(wrote):
    engine = FoldEngine(padding_bytes=LONG)
    engine.fill_segment()
    engine.disk.fail("write", FULL, path_contains="journal/", after=1, wrote=wrote)
    for _ in range(20):
        engine.append_control(RecordType.ACK, b"f" * 200)
    assert len(engine.group.journal.bases()) == 2
    with pytest.raises(WriteError):
        engine.flush()
    engine.refuse()
    engine.oracle.check_fold(engine.fold)
    put_facts(engine, 3)
    engine.drop(0)
    forget_checkpoints(engine.disk)
    engine.kill()
    assert [part_of(one.payload) for one in next(iter(heads(engine.disk).values()))[1:]] == [(0, 3), (1, 3), (2, 3)]


# A snapshot that is too long.


@pytest.mark.parametrize(
    "changes", [{"segment_bytes": 8 << 10}, {"segment_bytes": 64 << 10, "unsynced_bytes_max": 8 << 10}]
)
def test_a_snapshot_that_fits_no_segment_is_a_clear_error_and_leaves_a_sound_journal(changes):
    config = dataclasses.replace(TINY, **changes)
    engine = FoldEngine(config=config, padding_bytes=9000)
    with pytest.raises(WriteError, match=r"a snapshot of 9016 bytes does not fit the head of a segment: 8192 bytes"):
        put_facts(engine, 200, 1000)
    count = len(engine.oracle.records)
    for _ in range(2):
        with pytest.raises(WriteError, match="snapshot"):
            engine.append(A, b"x")
        engine.flush()
    engine.sync()
    engine.check()
    engine.kill()
    assert survey(engine.disk).is_sound
    assert len(engine.oracle.records) == count
    engine.fold._padding_bytes = engine.padding_bytes = 0  # the state has shrunk
    put_facts(engine, 3)
    engine.kill()


def test_a_long_snapshot_waits_for_a_sync_as_all_others_do():
    """Recovery searches no further behind a hole than there can be unsynced bytes."""
    engine = FoldEngine(config=dataclasses.replace(TINY, unsynced_bytes_max=4 << 10), padding_bytes=LONG)
    engine.fill_segment()
    while engine.group.journal.fits(700, may_use_reserve=True):
        engine.append_control(RecordType.ACK, b"f" * 600)
        engine.flush()
    with pytest.raises(ServiceUnavailableError):
        engine.append(A, b"m" * 1000)
    assert engine.group.journal.unsynced_bytes <= 4 << 10
    engine.sync()
    put_facts(engine, 5)
    engine.kill()


@given(st.binary(max_size=3000), st.integers(1, 5000))
def test_parts_make_the_snapshot_they_were_made_of(snapshot, record_bytes_max):
    parts, collected, got = pack_parts(snapshot, record_bytes_max), SnapshotParts(), b""
    assert bool(parts) == bool(snapshot)
    for number, part in enumerate(parts):
        assert len(part) <= 4 + max(record_bytes_max // 4, 1)
        assert int.from_bytes(part[:2]) == number
        assert int.from_bytes(part[2:4]) == len(parts)
        assert not collected.is_whole
        got = collected.add(memoryview(part))
        assert (got is None) == (number + 1 < len(parts))
    assert got == snapshot


def test_a_part_has_at_most_a_mebibyte():
    parts = pack_parts(bytes(5 << 20), 16 << 20)
    assert [len(part) for part in parts] == [(1 << 20) + 4] * 5
    with pytest.raises(ValueError, match="more than 65535 parts"):
        pack_parts(bytes(70_000), 4)


@pytest.mark.parametrize(
    "order", [(0,), (0, 1), (1, 2), (0, 2), (0, 1, 1), (0, 2, 1), (2,), (1, 0), (0, 1, 0)], ids=str
)
def test_parts_that_are_not_all_there_in_order_are_no_snapshot(order):
    parts, collected = pack_parts(b"abc", 4), SnapshotParts()
    assert [collected.add(memoryview(parts[number])) for number in order] == [None] * len(order)
    assert not collected.is_whole
    assert [collected.add(memoryview(part)) for part in parts] == [None, None, b"abc"]


@pytest.mark.parametrize("payload", [b"", b"\0\0\0", b"\0\0\0\0", b"\0\5\0\3x"])
def test_what_is_no_part_is_none(payload):
    assert SnapshotParts().add(memoryview(payload)) is None


# Half a head.


def with_new_head():
    """A segment whose head and first fact are written and not synced."""
    engine = FoldEngine(padding_bytes=LONG)
    begin_segment(engine)
    while engine.group.journal.fits(700, may_use_reserve=True):
        put_facts(engine, 1, 500)
    engine.checkpoint()
    engine.append_control(RecordType.ACK, b"f" * 700)
    engine.flush()
    return engine, engine.group.journal.bases()[-1]


@pytest.mark.parametrize("has_checkpoint", [True, False])
def test_F13_a_head_cut_at_any_place_is_made_again_and_whole(has_checkpoint):
    engine, base = with_new_head()
    head = heads(engine.disk)[base]
    assert len(head) == 4
    ends = [one.position + one.header.length for one in head]
    for cut in sorted({base, base + 50, *ends, *(end - 1 for end in ends), *(end + 1 for end in ends)}):
        twin = engine.on_a_copy()
        twin.disk.open(segment_path(base)).truncate(cut - base)
        if not has_checkpoint:
            forget_checkpoints(twin.disk)
        twin.open(is_power_lost=True)
        put_facts(twin, 2)
        assert twin.drop(0) >= 1
        assert twin.group.journal.bases() == [base]
        forget_checkpoints(twin.disk)
        twin.kill()
        assert len(heads(twin.disk)[base]) == 4, f"cut at {cut - base}"
        put_facts(twin, 2)
        twin.kill()


def test_F13_half_a_head_takes_the_term_back_that_began_with_it():
    engine, base = with_new_head()
    twin = engine.on_a_copy()
    head = heads(engine.disk)[base]
    twin.disk.open(segment_path(base)).truncate(head[2].position - base)
    twin.open(is_power_lost=True)
    assert all(row.position < base for row in twin.group.terms)
    twin.term = 9
    put_facts(twin, 1)
    assert twin.group.terms[-1] == (9, base)
    twin.kill()


def test_no_segment_goes_before_the_head_behind_it_is_synced_and_a_checkpoint_is_beyond_it():
    engine = FoldEngine(padding_bytes=LONG)
    while engine.group.journal.fits(700, may_use_reserve=True):
        put_facts(engine, 1, 500)
    engine.append_control(RecordType.ACK, b"f" * 700)  # the head of the next segment, in a turn that fails
    engine.disk.fail("write", FULL, path_contains="journal/")
    with pytest.raises(WriteError):
        engine.flush()
    engine.refuse()
    base = engine.group.journal.bases()[-1]
    assert base == engine.group.journal.end_position > 0
    engine.sync()
    engine.checkpoint()
    assert engine.group.checkpoint_position == base, "all of the old segment is covered"
    assert engine.group.retain(EVERYTHING, engine.now_ms) == 0
    engine.append_control(RecordType.ACK, b"f" * 700)
    engine.flush()
    engine.checkpoint()
    assert engine.group.retain(EVERYTHING, engine.now_ms) == 0, "the head is written, and not synced"
    engine.sync()
    assert engine.group.retain(EVERYTHING, engine.now_ms) == 0, "the head is synced, and the checkpoint before it"
    twin = engine.on_a_copy()
    forget_checkpoints(twin.disk)
    twin.open()
    engine.checkpoint()
    assert engine.group.retain(EVERYTHING, engine.now_ms) == 1
    engine.oracle.drop(engine.group.journal.first_position)
    forget_checkpoints(engine.disk)
    engine.kill()


# The checkpoint.


def test_a_checkpoint_holds_the_snapshot_of_now_if_all_is_synced():
    engine = FoldEngine()
    put_facts(engine, 5)
    engine.checkpoint()
    found = checkpoint_of(engine.disk)
    assert found.folded == Folded(engine.group.journal.end_position, engine.fold.snapshot())
    assert found.position == found.folded.position == engine.group.checkpoint_position


def keep_loaded(engine, turn_count):
    """Turns with a sync always under way, so that something is never synced; checkpoints when the group wants them."""
    checkpoints, ticket = [], None
    for number in range(turn_count):
        engine.append_control(RecordType.ACK, b"%04d" % number)
        engine.flush()
        if ticket is not None:
            ticket.run()
            engine.group.end_sync(ticket)
            engine.oracle.sync(ticket.position)
        assert engine.group.journal.synced_position < engine.group.journal.end_position
        if engine.group.wants_checkpoint:
            checkpoint = engine.group.begin_checkpoint()
            checkpoint.run()
            engine.group.end_checkpoint(checkpoint)
            checkpoints.append(engine.group.checkpoint_position)
        ticket = engine.group.begin_sync()
    return checkpoints


@pytest.mark.parametrize("mode", MODES)
def test_checkpoints_go_on_under_load_and_hold_nothing_that_is_not_synced(mode):
    config = dataclasses.replace(TINY, checkpoint_bytes=1000)
    engine = FoldEngine(config=config)
    checkpoints = keep_loaded(engine, 200)
    assert len(checkpoints) > 8
    assert checkpoints == sorted(set(checkpoints))
    found = checkpoint_of(engine.disk)
    assert found.folded.position == checkpoints[-1] <= found.position <= engine.group.journal.synced_position
    assert engine.group.journal.end_position - checkpoints[-1] < 2500
    truth = TallyFold()
    truth.count_again(one for one in engine.oracle.records if one.end_position <= found.folded.position)
    assert found.folded.snapshot == truth.snapshot()
    engine.lose_power(5, mode)
    assert engine.fold.applied_count < 40
    assert engine.group.retain(EVERYTHING, engine.now_ms) >= 1


def test_a_checkpoint_asked_for_under_load_has_the_last_snapshot_of_which_all_is_synced():
    engine = FoldEngine()
    put_facts(engine, 3)
    engine.checkpoint()
    before = checkpoint_of(engine.disk).folded
    engine.append(A, b"synced")
    engine.flush()
    engine.sync()
    engine.append_control(RecordType.ACK, b"not synced")
    engine.flush()
    engine.checkpoint()
    found = checkpoint_of(engine.disk)
    assert found.folded == before
    assert found.position > before.position == engine.group.checkpoint_position
    engine.lose_power(1, "nothing")


def test_retention_keeps_what_the_snapshot_of_the_checkpoint_does_not_know():
    engine = FoldEngine(config=dataclasses.replace(TINY, checkpoint_bytes=1 << 30))
    engine.checkpoint()
    begin_segment(engine)
    begin_segment(engine)
    engine.append_control(RecordType.ACK, b"not synced")
    engine.flush()
    engine.checkpoint()
    assert checkpoint_of(engine.disk).position > checkpoint_of(engine.disk).folded.position == 0
    assert engine.group.retain(EVERYTHING, engine.now_ms) == 0
    engine.lose_power(1, "nothing")


def test_a_sync_begun_within_a_turn_takes_no_snapshot_of_it():
    engine = FoldEngine(config=dataclasses.replace(TINY, checkpoint_bytes=100))
    put_facts(engine, 3)
    engine.checkpoint()
    engine.append_control(RecordType.ACK, b"f" * 300)
    engine.flush()
    engine.append_control(RecordType.ACK, b"of a turn that fails")
    ticket = engine.group.begin_sync()
    ticket.run()
    engine.group.end_sync(ticket)
    engine.oracle.sync(ticket.position)
    engine.disk.fail("write", FULL, path_contains="journal/")
    with pytest.raises(WriteError):
        engine.flush()
    engine.refuse()
    engine.append_control(RecordType.ACK, b"written")
    engine.flush()
    engine.checkpoint()
    engine.lose_power(1, "nothing")


def test_F15_a_snapshot_taken_along_with_a_sync_that_fails_is_not_used():
    engine = FoldEngine(config=dataclasses.replace(TINY, checkpoint_bytes=100))
    put_facts(engine, 3)
    engine.checkpoint()
    engine.append_control(RecordType.ACK, b"f" * 300)
    engine.flush()
    ticket = engine.group.begin_sync()
    engine.disk.fail("sync", EIO, path_contains="journal/")
    with pytest.raises(OSError, match="planned"):
        ticket.run()
    engine.group.end_sync(ticket, EIO)
    assert not engine.group.wants_checkpoint
    with pytest.raises(DiskIOError):
        engine.group.begin_checkpoint()
    engine.lose_power(1, "nothing")


def test_a_checkpoint_of_an_older_program_is_used_for_all_but_the_fold():
    engine = FoldEngine()
    engine.put_many(30, keys=(A, B), body_bytes=400)
    put_facts(engine, 5)
    engine.group.close()
    replace_checkpoint(engine.disk, folded=None)
    assert checkpoint_of(engine.disk).folded is None
    engine.open()
    assert engine.group.notes == []
    assert engine.fold.applied_count == len(engine.oracle.records)


@pytest.mark.parametrize("beyond", [1, 500, 1 << 30])
def test_a_snapshot_from_behind_the_end_of_the_journal_is_not_used(beyond):
    engine = FoldEngine(padding_bytes=LONG)
    for _ in range(3):
        begin_segment(engine)
    engine.drop(2)
    put_facts(engine, 3)
    fold = TallyFold(LONG)
    fold.count_again([*engine.oracle.records, engine.oracle.records[-1]])
    replace_checkpoint(engine.disk, folded=Folded(engine.group.journal.end_position + beyond, fold.snapshot()))
    engine.kill()
    assert any("not used" in note for note in engine.group.notes)
    put_facts(engine, 3)
    engine.kill()


def test_a_snapshot_ahead_of_its_checkpoint_is_used_where_the_journal_reaches_it():
    engine = FoldEngine()
    put_facts(engine, 3)
    engine.checkpoint()
    put_facts(engine, 3)
    replace_checkpoint(engine.disk, folded=Folded(engine.group.journal.end_position, engine.fold.snapshot()))
    put_facts(engine, 2)
    engine.kill()
    assert engine.fold.applied_count == 2


def test_a_snapshot_from_before_the_journal_is_not_used():
    engine = FoldEngine()
    put_facts(engine, 2)
    engine.checkpoint()
    old = checkpoint_of(engine.disk).folded
    begin_segment(engine)
    begin_segment(engine)
    engine.drop(0)
    replace_checkpoint(engine.disk, folded=old)
    engine.kill()


def test_F25_facts_of_lost_segments_are_kept_by_the_checkpoint():
    engine = FoldEngine()
    for _ in range(3):
        begin_segment(engine)
    engine.group.close()
    engine.disk.remove(segment_path(engine.group.journal.bases()[-1]))
    fold = TallyFold()
    group = open_group(engine.disk, TINY, fold)
    engine.oracle.check_fold(fold)
    assert not any("missing facts" in note for note in group.notes)
    group.append_control(RecordType.ACK, b"on it goes", term=9, now_ms=1)
    group.abandon()


def test_the_section_of_a_checkpoint_is_where_the_page_says():
    tables = Tables(damage=[DamagedRange(1, 2)])
    without = Checkpoint(7, True, tables).pack()
    data = Checkpoint(7, True, tables, Folded(0x0102030405060708, b"state")).pack()
    assert data == without + bytes(range(1, 9)) + b"\0\0\0\5state"
    assert Checkpoint.unpack(data).folded == Folded(0x0102030405060708, b"state")
    assert Checkpoint.unpack(without).folded is None
    assert Checkpoint.unpack(data + b"of a later program").folded == Folded(0x0102030405060708, b"state")
    for cut in range(1, len(data) - len(without)):
        with pytest.raises(ValueError, match="bytes"):
            Checkpoint.unpack(data[:-cut])


@pytest.mark.parametrize("folded", [(5, 9), (9, 5), (7, 7)])
def test_a_checkpoint_covers_what_both_of_its_positions_do(folded):
    position, fold_position = folded
    assert Checkpoint(position, False, Tables(), Folded(fold_position, b"")).covered_position == min(folded)
    assert Checkpoint(position, False, Tables()).covered_position == position


# Damage.


def test_F21_a_damaged_fact_is_missing_and_a_note_says_so():
    engine = FoldEngine()
    put_facts(engine, 4)
    lost = engine.oracle.records[1]
    damage(engine, lost.position + 80)
    forget_checkpoints(engine.disk)
    fold = start_with_damage(engine)
    assert fold.record_count == 3
    assert any("missing facts" in note for note in engine.group.notes)
    assert any(f"damaged from position {lost.position} to {lost.end_position}" in note for note in engine.group.notes)


def test_F21_a_damaged_fact_that_the_checkpoint_knows_is_not_missing():
    engine = FoldEngine()
    put_facts(engine, 4)
    engine.checkpoint()
    damage(engine, engine.oracle.records[1].position + 80)
    engine.oracle.check_fold(start_with_damage(engine))


@pytest.mark.parametrize("padding_bytes", [0, LONG])
def test_F21_what_damage_has_taken_is_back_with_the_next_snapshot(padding_bytes):
    engine = FoldEngine(padding_bytes=padding_bytes)
    put_facts(engine, 4)
    lost = engine.oracle.records[1]
    begin_segment(engine)
    put_facts(engine, 4)
    damage(engine, lost.position + 80)
    forget_checkpoints(engine.disk)
    engine.oracle.check_fold(start_with_damage(engine))
    assert engine.group.damage == [DamagedRange(lost.position, lost.end_position)]
    assert not any("missing facts" in note for note in engine.group.notes)


@pytest.mark.parametrize("part", [1, 2, 3])
def test_F21_half_a_snapshot_at_the_oldest_head_is_none_and_the_next_one_is_used(part):
    engine = FoldEngine(padding_bytes=LONG)
    begin_segment(engine)
    begin_segment(engine)
    engine.drop(1)
    put_facts(engine, 4)
    oldest, *others = heads(engine.disk).items()
    damage(engine, oldest[1][part].position + 90)
    forget_checkpoints(engine.disk)
    fold = start_with_damage(engine)
    if others:
        engine.oracle.check_fold(fold)
    else:
        assert fold.record_count == sum(one.position >= oldest[0] for one in engine.oracle.records)
    assert any("missing facts" in note for note in engine.group.notes) == (not others)


@pytest.mark.parametrize("part", [0, 1, 2, 3])
def test_F21_half_a_snapshot_at_the_only_head_is_none_and_a_note_says_so(part):
    engine = FoldEngine(padding_bytes=LONG)
    begin_segment(engine)
    engine.drop(0)
    put_facts(engine, 4)
    ((base, head),) = heads(engine.disk).items()
    damage(engine, head[part].position + 90 if part else base + 20)
    forget_checkpoints(engine.disk)
    fold = start_with_damage(engine)
    assert fold.record_count == sum(one.position >= base for one in engine.oracle.records)
    assert any("missing facts" in note for note in engine.group.notes)
    run_sync(engine.group)


# Looking from outside.


def test_snapshots_are_known_by_name():
    engine = FoldEngine(padding_bytes=LONG)
    begin_segment(engine)
    engine.group.close()
    assert survey(engine.disk).is_sound
    lines = [_record_line(one) for one in records(engine.disk) if one.header.type == RecordType.SNAPSHOT]
    assert [line.partition("SNAPSHOT")[1] for line in lines] == ["SNAPSHOT"] * 3
    assert lines[1].endswith("part 2 of 3")


def test_the_engine_alone_writes_snapshots():
    engine = FoldEngine()
    with pytest.raises(AssertionError, match="engine's own"):
        engine.append_control(RecordType.SNAPSHOT, b"")
    assert get(engine.disk, segment_path(0))[:8] == bytes(8)


@pytest.mark.parametrize(
    ("title", "expected"),
    [
        ("7.1 Snapshots", [(0, 2, "number"), (2, 2, "count")]),
        ("10.1 The snapshot in a checkpoint", [(0, 8, "fold_position"), (8, 4, "size")]),
    ],
)
def test_the_page_has_the_layouts_of_the_code(title, expected):
    page = (Path(__file__).parents[2] / "docs" / "files.md").read_text(encoding="utf-8")
    text = page.partition(f"### {title}\n")[2].partition("\n##")[0]
    found = re.findall(r"^\| (\d+) \| (\d+) \| `(\w+)` \|", text, re.MULTILINE)
    assert [(int(offset), int(size), name) for offset, size, name in found] == expected
    assert PART_HEAD_BYTES == 4
    assert pack_parts(b"x", 4)[0] == bytes.fromhex("0000 0001") + b"x"
