"""Starts on what a crash, a bad disk or a careless hand left: what was synced is there, and nothing that was not."""

import contextlib
import dataclasses
import errno
from random import Random

import pytest

from fix_disk import DISKS, dump, get, put
from fix_storage import TINY, A, B, C, Engine, block, read_all, run_sync, segment_path
from lakemq.errors import IndexOutOfRangeError, ReadError
from lakemq.storage.directory import FORMAT_VERSION, ForeignDirectoryError
from lakemq.storage.disk import DirectoryLockedError
from lakemq.storage.index import ENTRY_BYTES
from lakemq.storage.journal_record import HEADER_BYTES, RecordType
from lakemq.storage.recovery import open_group
from lakemq.storage.state_file import read_state, write_state
from lakemq.storage.tables import DamagedRange
from lakemq.testing.crash import MODES
from lakemq.testing.disk import PowerLost, SimDisk, SimFile

KEYS = (A, B, C)
FULL = OSError(errno.ENOSPC, "planned")


@pytest.fixture(params=DISKS)
def disk(request, tmp_path):
    return DISKS[request.param](tmp_path)


def many_segments(disk=None, record_count=40, config=TINY):
    """Several segments and index files, a checkpoint somewhere in the middle."""
    engine = Engine(disk, config)
    engine.put_many(record_count // 2, keys=KEYS, body_bytes=500)
    engine.checkpoint()
    engine.put_many(record_count - record_count // 2, keys=KEYS, body_bytes=500)
    assert len(engine.group.journal.bases()) >= 3
    return engine


def on_a_copy(engine):
    """The same store, with nobody running on it."""
    twin = Engine.__new__(Engine)
    twin.__dict__.update(engine.__dict__)
    twin.disk = engine.disk.clone()
    twin.oracle = engine.oracle.copy()
    return twin


# Starting.


def test_an_empty_directory_becomes_a_store(disk):
    group = open_group(disk, TINY)
    assert group.partitions() == []
    assert group.journal.end_position == 0
    group.close()
    assert set(disk.names("")) >= {"format", "lock", "checkpoint", "journal", "index", "quarantine"}


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_second_start_finds_everything(disk, is_clean):
    engine = many_segments(disk)
    engine.append_control(RecordType.ACK, b"a fact")
    engine.flush()
    engine.sync()
    terms = engine.group.terms
    for _ in range(3):
        if is_clean:
            engine.close_and_open()
        else:
            engine.kill()
        assert engine.group.terms == terms
        assert engine.group.notes == []
        engine.put(B, b"one more")
    engine.check()


def test_a_start_after_a_clean_end_reads_no_old_segment():
    engine = many_segments()
    engine.group.close()
    engine.disk.trace = trace = []
    open_group(engine.disk, TINY)
    read = [path for operation, path, _ in trace if operation == "read" and path.startswith("journal/")]
    first, *middle, _last = map(segment_path, engine.group.journal.bases())
    assert read.count(first) <= 2, "its table"
    assert not set(read).intersection(middle)


def test_a_store_takes_up_its_sizes_where_they_were_changed():
    engine = many_segments()
    for changes in (
        {"entries_per_file": 3},
        {"entries_per_file": 100},
        {"segment_bytes": 5 << 10},
        {"segment_bytes": 30 << 10, "entries_per_file": 8},
    ):
        engine.config = dataclasses.replace(TINY, **changes)
        engine.close_and_open()
        engine.put_many(10, keys=KEYS, body_bytes=300)
        engine.kill()


def test_records_larger_than_what_is_read_at_once_are_found(monkeypatch):
    monkeypatch.setattr("lakemq.storage.walk.BLOCK_BYTES", 200)
    engine = Engine()
    engine.put_many(6, keys=KEYS, body_bytes=500)
    engine.kill()
    assert engine.group.visible_index(*A) == 2


# F07: directories that are not ours.


def test_F07_a_second_start_on_one_directory_is_refused_and_changes_nothing(disk):
    engine = many_segments(disk)
    engine.append(A, b"not even written")
    before = dump(disk)
    with pytest.raises(DirectoryLockedError):
        open_group(disk, TINY)
    assert dump(disk) == before
    engine.flush()
    engine.sync()
    engine.check()


def test_F07_a_newer_format_is_refused_and_nothing_changed(disk):
    open_group(disk, TINY).close()
    write_state(disk, "format", 2, b"lakemq-data %d" % (FORMAT_VERSION + 1))
    before = dump(disk)
    with pytest.raises(ForeignDirectoryError, match=f"format {FORMAT_VERSION + 1}"):
        open_group(disk, TINY)
    assert dump(disk) == before


@pytest.mark.parametrize("path", ["notes.txt", "journal/00000000000000000000.journal", "home/user/photo"])
def test_F07_a_directory_of_somebody_else_is_refused_and_nothing_changed(disk, path):
    disk.make_dir(path.rpartition("/")[0])
    put(disk, path, b"mine")
    before = dump(disk)
    with pytest.raises(ForeignDirectoryError):
        open_group(disk, TINY)
    assert dump(disk) == before


@pytest.mark.parametrize("content", [b"", b"lakemq-data", b"other-data 1", b"lakemq-data x"])
def test_F07_a_format_file_of_another_program_is_refused(disk, content):
    write_state(disk, "format", 1, content)
    before = dump(disk)
    with pytest.raises(ForeignDirectoryError):
        open_group(disk, TINY)
    assert dump(disk) == before


def test_F07_a_journal_that_is_gone_as_a_whole_is_not_begun_anew():
    engine = many_segments()
    engine.group.close()
    for name in engine.disk.names("journal"):
        engine.disk.remove(f"journal/{name}")
    before = dump(engine.disk)
    with pytest.raises(ForeignDirectoryError, match="restore"):
        open_group(engine.disk, TINY)
    assert dump(engine.disk) == before


def test_a_refused_start_gives_the_lock_back():
    engine = many_segments()
    engine.group.close()
    engine.disk.fail("sync", OSError(errno.EIO, "planned"))
    with pytest.raises(OSError, match="planned"):
        open_group(engine.disk, TINY)
    engine.open()


# R7: what is not known is put aside.


@pytest.mark.parametrize(
    "path",
    [
        "journal/stray",
        "journal/00000000000000000000.journal.bak",
        "journal/1.journal",
        "index/stray",
        "index/1/stray",
        "index/stray/0/file",
        "index/\u00b2/0/file",
        "index/5/6",
    ],
)
def test_unknown_files_are_put_into_the_quarantine_and_not_deleted(disk, path):
    engine = many_segments(disk)
    engine.group.close()
    disk.make_dir(path.rpartition("/")[0])
    put(disk, path, b"whose is this?")
    engine.open()
    assert not disk.exists(path)
    assert b"whose is this?" in dump(disk, "quarantine").values()
    assert any("quarantine" in note for note in engine.group.notes)
    engine.close_and_open()
    engine.check()


def test_a_second_file_of_one_name_finds_its_own_place_in_the_quarantine(disk):
    engine = Engine(disk)
    for content in (b"first", b"second"):
        put(disk, "journal/stray", content)
        engine.close_and_open()
    assert {b"first", b"second"} <= set(dump(disk, "quarantine").values())


# F13: the tail of a crash.


def engine_with_tail():
    """Synced records, then one that is written and not synced."""
    engine = Engine()
    for number in range(4):
        engine.put(A, b"synced %d" % number)
    tail = engine.append(A, b"tail")
    engine.flush()
    return engine, tail


TAILS = {
    "cut": lambda disk, path, at, end: disk.open(path).truncate(at),
    "zeros": lambda disk, path, at, end: disk.open(path).write_at(at, [bytes(end - at)]),
    "garbage": lambda disk, path, at, end: disk.open(path).write_at(at, [Random(at).randbytes(end - at + 300)]),
    "old bytes": lambda disk, path, at, end: disk.open(path).write_at(at, [disk.open(path).read_at(0, end - at)]),
}


@pytest.mark.parametrize("kind", TAILS)
def test_F13_a_torn_tail_is_cut_at_every_byte(kind):
    engine, tail = engine_with_tail()
    whole = get(engine.disk, segment_path(0))[tail.position : tail.end_position]
    for at in range(tail.position, tail.end_position):
        twin = on_a_copy(engine)
        TAILS[kind](twin.disk, segment_path(0), at, tail.end_position)
        is_whole = whole in get(twin.disk, segment_path(0))  # its last bytes are zeros anyway
        twin.open(is_power_lost=True)
        assert twin.group.next_index(*A) == 4 + is_whole, at - tail.position
        twin.put(A, b"and on")
        twin.kill()


def test_F13_what_was_written_whole_is_kept():
    engine, tail = engine_with_tail()
    twin = on_a_copy(engine)
    twin.open()
    assert twin.group.visible_index(*A) == 5
    assert twin.bodies(A, 4) == tail.payload


def test_F13_the_bytes_of_a_torn_tail_are_kept_aside():
    engine, tail = engine_with_tail()
    engine.disk.open(segment_path(0)).write_at(tail.end_position - 1, [b"?"])
    engine.disk.lose_process()
    group = open_group(engine.disk, TINY)
    (kept,) = (data for path, data in dump(engine.disk, "quarantine").items())
    assert tail.payload[:-1] in kept
    assert any("quarantine" in note for note in group.notes)


def test_F13_a_shorter_tail_kept_aside_at_the_same_place_is_not_mixed_with_the_one_before():
    engine, tail = engine_with_tail()
    for size in (200, 20):
        engine.disk.open(segment_path(0)).write_at(tail.position, [b"\1" * size, bytes(300)])
        engine.disk.lose_process()
        open_group(engine.disk, TINY)
    assert b"\1" * 20 in dump(engine.disk, "quarantine").values()


def test_F13_a_tail_that_was_cut_does_not_come_back():
    """A later, shorter record leaves bytes of the old tail behind it, unless they were wiped."""
    engine = Engine()
    engine.put(A, b"synced")
    engine.append(A, b"lost")
    second = engine.append(A, b"whole, but behind a hole")
    engine.flush()
    hole = engine.oracle.records[-2]
    engine.disk.open(segment_path(0)).write_at(hole.position, [bytes(second.position - hole.position)])
    engine.disk.lose_process()
    engine.open(is_power_lost=True)
    assert engine.group.next_index(*A) == 1
    engine.put(A, b"LOST")  # as long as the hole
    assert engine.oracle.records[-1].end_position == second.position
    engine.kill()
    assert engine.group.next_index(*A) == 2


# F10, F14: power losses of every kind.


@pytest.mark.parametrize("mode", MODES)
def test_F14_unsynced_writes_that_arrive_in_any_order_lose_a_tail_only(mode):
    engine = Engine()
    engine.put(A, b"synced")
    engine.fill_segment()
    for number in range(9):
        engine.append(KEYS[number % 3], b"%d" % number * 400)
        engine.flush()
    assert len(engine.group.journal.bases()) == 2, "the writes span a roll"
    for seed in range(12):
        twin = on_a_copy(engine)
        twin.lose_power(seed, mode)
        twin.put(A, b"and on")
        twin.lose_power(seed, mode)


def test_F14_a_new_segment_without_the_end_of_the_one_before_is_put_aside():
    engine = Engine()
    engine.fill_segment()
    hole = engine.append(A, b"x" * 150)
    behind = engine.append(A, b"y" * 1000)
    engine.flush()
    old, new = engine.group.journal.bases()
    assert hole.position < new <= behind.position
    engine.disk.open(segment_path(old)).write_at(hole.position, [bytes(100)])
    engine.disk.lose_process()
    engine.open(is_power_lost=True)
    assert engine.group.journal.bases() == [old]
    assert any(segment_path(new).replace("/", "-") in name for name in engine.disk.names("quarantine"))
    engine.put(A, b"z" * 1000)
    engine.kill()


def test_F16_what_a_failed_sync_lost_is_written_again_at_the_next_start():
    """The bytes are seen, and called clean, and nowhere: they must not be vouched for as they are."""
    engine = Engine()
    engine.put(A, b"synced")
    engine.append(A, b"in memory only")
    engine.flush()
    engine.disk.fail("sync", OSError(errno.EIO, "planned"), path_contains="journal/", wrote=0)
    ticket = engine.group.begin_sync()
    with pytest.raises(OSError, match="planned"):
        ticket.run()
    engine.group.end_sync(ticket, OSError(errno.EIO, "planned"))
    engine.kill()
    assert engine.group.visible_index(*A) == 2
    for seed in range(10):
        twin = on_a_copy(engine)
        twin.lose_power(seed)
        assert twin.group.visible_index(*A) == 2


# F21: damage.


def check_around_damage(engine, damaged, *, is_restarted):
    """Records that are not damaged are read as they were, the others not at all; no index is given out twice."""
    group = engine.group
    for key in engine.oracle.partitions():
        assert group.next_index(*key) == engine.oracle.next_index(key)
        for one in engine.oracle.of(key):
            if one in damaged:
                # Where a partition begins with damage, that is no longer counted as kept after a start.
                is_first = one.first_index < group.first_index(*key)
                with pytest.raises(IndexOutOfRangeError if is_first else ReadError):
                    engine.read(key, one.first_index)
            else:
                (got,) = engine.read(key, one.first_index, one.next_index - one.first_index)
                assert (got.first_index, got.next_index, bytes(got.messages)) == (*one[4:6], one.payload)
    if is_restarted:
        expected = [one for one in engine.oracle.records if one not in damaged]
        journal = group.journal
        found = group.records(journal.first_position, journal.end_position)
        assert [one.position for one in found if one.header.type != RecordType.TABLE] == [
            one.position for one in expected
        ]


def damage(engine, position, mask=4):
    base = max(base for base in engine.group.journal.bases() if base <= position)
    engine.disk._tree.find(segment_path(base)).damage(position - base, mask)


def damageable(is_group_commit):
    """Records of three partitions in two segments, and one behind them that shows that they were synced."""
    engine = Engine()
    for number in range(9):
        engine.append(KEYS[number % 3], b"a%d" % number, (b"b", b"c"))
        engine.flush()
        if not is_group_commit:
            engine.sync()
    engine.sync()
    engine.fill_segment()
    engine.put(A, b"d" * 1500)
    for key in KEYS:
        engine.put(key, b"last")
    assert len(engine.group.journal.bases()) == 2
    return engine


@pytest.mark.parametrize("is_group_commit", [False, True])
@pytest.mark.parametrize("maps_segments", [False, True])
def test_F21_a_flipped_bit_hides_its_record_and_no_other(is_group_commit, maps_segments):
    engine = damageable(is_group_commit)
    engine.config = dataclasses.replace(TINY, maps_segments=maps_segments)
    for one in engine.oracle.records[:-3]:
        for offset in (0, 4, 30, HEADER_BYTES - 1, HEADER_BYTES, one.end_position - one.position - 1):
            twin = on_a_copy(engine)
            damage(twin, one.position + offset)
            twin.group = open_group(twin.disk, twin.config)
            check_around_damage(twin, [one], is_restarted=True)
            damage(twin, one.position + offset)  # back, as it was


def test_F21_a_bit_that_flips_while_the_group_runs_hides_its_record_and_no_other():
    engine = damageable(False)
    for one in engine.oracle.records:
        for offset in range(0, one.end_position - one.position, 13):
            damage(engine, one.position + offset)
            check_around_damage(engine, [one], is_restarted=False)
            damage(engine, one.position + offset)


def test_F21_a_run_of_messages_is_read_up_to_the_damage_and_the_next_read_is_told():
    engine = Engine()
    records = engine.put_many(9)
    damage(engine, records[5].end_position - 1)
    assert engine.bodies(A, 0, 100) == b"".join(one.payload for one in records[:5])
    with pytest.raises(ReadError):
        engine.read(A, 5, 100)
    assert engine.bodies(A, 6, 100) == b"".join(one.payload for one in records[6:])


@pytest.mark.parametrize("offset", [20, HEADER_BYTES + 3])
def test_F21_a_damaged_table_costs_no_message(offset):
    engine = damageable(False)
    for base in engine.group.journal.bases():
        for has_checkpoint in (True, False):
            twin = on_a_copy(engine)
            damage(twin, base + offset)
            if not has_checkpoint:
                forget_checkpoints(twin.disk)
            twin.group = open_group(twin.disk, TINY)
            check_around_damage(twin, [], is_restarted=True)


@pytest.mark.parametrize("has_checkpoint", [True, False])
def test_F21_an_index_whose_record_is_damaged_is_not_given_to_another_message(has_checkpoint):
    """The record's own header tells it, if only the payload is damaged; else a table behind it, or the checkpoint."""
    engine = Engine()
    lost = [engine.put(key, b"to be lost") for key in KEYS]
    engine.put((9, 9), b"the last in this segment")
    damage(engine, lost[0].end_position - 1)
    engine.disk.lose_process()
    engine.group = open_group(engine.disk, TINY)
    check_around_damage(engine, lost[:1], is_restarted=True)
    engine.fill_segment((9, 9))
    engine.put((9, 9), b"x" * 1500)
    damage(engine, lost[1].position)
    if has_checkpoint:
        engine.checkpoint()
    else:
        engine.disk.lose_process()
        forget_checkpoints(engine.disk)
    engine.disk.lose_process()
    engine.group = open_group(engine.disk, TINY)
    check_around_damage(engine, lost[:2], is_restarted=not has_checkpoint)


def test_F21_a_partition_that_begins_with_damage_is_unreadable_there_and_not_out_of_range():
    """R5: never mix the two; a consumer that is told "out of range" skips without a word."""
    engine = damageable(False)
    one = engine.oracle.of(B)[0]
    damage(engine, one.position + 80)
    engine.disk.lose_process()
    engine.group = open_group(engine.disk, TINY)
    assert engine.group.first_index(*B) == 0
    with pytest.raises(ReadError):
        engine.read(B, 0)


def test_F21_damage_is_remembered_and_dropped_with_its_segment():
    engine = damageable(False)
    one = engine.oracle.records[4]
    damage(engine, one.position + 80)
    engine.disk.lose_process()
    engine.group = open_group(engine.disk, TINY)
    assert engine.group.damage == [DamagedRange(one.position, one.end_position)]
    assert any("damaged" in note for note in engine.group.notes)
    engine.group.close()
    engine.group = open_group(engine.disk, TINY)
    assert engine.group.damage == [DamagedRange(one.position, one.end_position)]
    engine.put(A, b"more")
    assert engine.drop(0) == 1
    assert engine.group.damage == []
    engine.close_and_open()


def test_F21_appends_go_on_behind_damage():
    engine = damageable(False)
    one = engine.oracle.records[4]
    damage(engine, one.position + 80)
    for _ in range(3):
        engine.disk.lose_process()
        engine.group = open_group(engine.disk, TINY)
        for key in KEYS:
            engine.put(key, b"more")
        check_around_damage(engine, [one], is_restarted=True)


# F22: indexes.


def flip(disk, path, rng):
    if disk.open(path).size():
        disk.flip_bits(path, rng, 1)


def cut(disk, path, rng):
    file = disk.open(path)
    file.truncate(rng.randrange(file.size() + 1))


def blank(disk, path, rng):
    file = disk.open(path)
    size = file.size()
    file.truncate(0)
    file.truncate(size)


def blank_a_part(disk, path, rng):
    file = disk.open(path)
    if file.size() > ENTRY_BYTES:
        file.write_at(rng.randrange(file.size() - ENTRY_BYTES), [bytes(ENTRY_BYTES)])


def lengthen(disk, path, rng):
    file = disk.open(path)
    file.write_at(file.size(), [file.read_at(0, ENTRY_BYTES), rng.randbytes(100)])


HARMS = {
    "missing": lambda disk, path, rng: disk.remove(path),
    "flipped": flip,
    "cut": cut,
    "zeroed": blank,
    "zeroed in part": blank_a_part,
    "too long": lengthen,
}


def index_files(disk):
    return [path for path, data in dump(disk, "index").items() if data is not None]


@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.parametrize("is_running", [True, False])
def test_F22_a_damaged_index_gives_the_same_answers(harm, is_running):
    engine = many_segments()
    engine.close_and_open()
    rng = Random(5)
    for path in index_files(engine.disk):
        twin = on_a_copy(engine)
        if is_running:
            twin.open()
        HARMS[harm](twin.disk, path, rng)
        if not is_running:
            twin.open()
        twin.check()
        twin.check(index_count=1)
        twin.put_many(9, keys=KEYS)
        twin.check(index_count=3)
        twin.kill()


@pytest.mark.parametrize("is_running", [True, False])
def test_F22_all_indexes_gone_gives_the_same_answers(is_running):
    engine = many_segments()
    engine.close_and_open()
    for path in index_files(engine.disk):
        engine.disk.remove(path)
    for path in sorted(dump(engine.disk, "index"), reverse=True):
        engine.disk.remove(path)
    engine.disk.remove("index")
    if not is_running:
        engine.kill()
    engine.check()
    engine.put_many(20, keys=KEYS)
    engine.check(index_count=1)
    engine.kill()


@pytest.mark.parametrize("is_running", [True, False])
def test_F22_the_index_of_another_partition_is_not_believed(is_running):
    """Every entry is whole, and each one leads to a message, of the wrong partition."""
    engine = Engine()
    for number in range(20):
        for key in (A, B):
            engine.append(key, b"%02d" % number)
        engine.flush()
        engine.sync()
    engine.checkpoint()
    if not is_running:
        engine.disk.lose_process()
    for path in index_files(engine.disk):
        if path.startswith("index/1/0/"):
            other = path.replace("index/1/0/", "index/1/1/")
            mine, theirs = get(engine.disk, path), get(engine.disk, other)
            put(engine.disk, path, theirs)
            put(engine.disk, other, mine)
    if not is_running:
        engine.open()
    engine.check()
    engine.check(index_count=1)


@pytest.mark.parametrize("is_running", [True, False])
def test_F22_a_stale_index_gives_the_same_answers(is_running):
    """Index files of an earlier time, as a careless restore leaves them."""
    engine = Engine()
    engine.put_many(20, keys=KEYS)
    engine.checkpoint()
    stale = {path: get(engine.disk, path) for path in index_files(engine.disk)}
    engine.put_many(30, keys=KEYS)
    engine.close_and_open()
    if not is_running:
        engine.disk.lose_process()
    for path in index_files(engine.disk):
        if path in stale:
            put(engine.disk, path, stale[path])
        else:
            engine.disk.remove(path)
    if not is_running:
        engine.open()
    engine.check()


def test_F22_index_and_journal_both_damaged_cost_only_what_the_journal_lost():
    engine = damageable(False)
    engine.checkpoint()
    one = next(one for one in engine.oracle.records if one.key == B)
    damage(engine, one.position + 100)
    for path in index_files(engine.disk):
        blank(engine.disk, path, None)
    check_around_damage(engine, [one], is_restarted=False)
    for path in index_files(engine.disk):
        blank(engine.disk, path, None)
    engine.disk.lose_process()
    engine.group = open_group(engine.disk, TINY)
    check_around_damage(engine, [one], is_restarted=True)


# F23: checkpoints.


def forget_checkpoints(disk):
    for name in disk.names(""):
        if name.startswith("checkpoint"):
            disk.remove(name)


def flip_in(*names):
    def harm(disk):
        for name in names:
            disk.flip_bits(name, Random(3), 1)

    return harm


def put_back_the_old_one(disk):
    put(disk, "checkpoint", get(disk, "checkpoint.old"))
    disk.remove("checkpoint.old")


def put_nonsense(disk):
    write_state(disk, "checkpoint", 1000, b"of a form that is not known yet")


CHECKPOINT_HARMS = {
    "newest damaged": flip_in("checkpoint"),
    "older damaged": flip_in("checkpoint.old"),
    "both damaged": flip_in("checkpoint", "checkpoint.old"),
    "newest missing": lambda disk: disk.remove("checkpoint"),
    "all missing": forget_checkpoints,
    "old": put_back_the_old_one,
    "empty": lambda disk: disk.open("checkpoint").truncate(0),
    "cut": lambda disk: disk.open("checkpoint").truncate(40),
    "nonsense": put_nonsense,
}


@pytest.mark.parametrize("harm", CHECKPOINT_HARMS)
@pytest.mark.parametrize("is_clean", [True, False])
def test_F23_a_damaged_checkpoint_changes_no_answer(harm, is_clean):
    engine = many_segments()
    if is_clean:
        engine.group.close()
    else:
        engine.disk.lose_process()
    CHECKPOINT_HARMS[harm](engine.disk)
    engine.open()
    engine.put_many(9, keys=KEYS)
    engine.kill()
    engine.lose_power(1)


@pytest.mark.parametrize("harm", CHECKPOINT_HARMS)
def test_F23_a_damaged_checkpoint_after_retention_changes_no_answer(harm):
    engine = many_segments()
    engine.checkpoint()
    engine.put((5, 5), b"long ago")
    for _ in range(3):
        engine.fill_segment(B)
        engine.put(B, b"x" * 1500)
    assert engine.drop(1) >= 3
    first = {key: engine.group.first_index(*key) for key in (*KEYS, (5, 5))}
    engine.checkpoint()
    engine.disk.lose_process()
    CHECKPOINT_HARMS[harm](engine.disk)
    engine.open()
    assert {key: engine.group.first_index(*key) for key in (*KEYS, (5, 5))} == first
    assert engine.group.next_index(5, 5) == 1, "indexes go on, though all messages are gone"
    engine.put((5, 5), b"again")
    engine.kill()


def test_F23_indexes_that_a_checkpoint_knows_are_not_given_out_again_when_segments_are_gone():
    engine = many_segments()
    end = engine.group.journal.end_position
    indexes = {key: engine.group.next_index(*key) for key in engine.group.partitions()}
    engine.group.close()
    engine.disk.remove(f"journal/{engine.disk.names('journal')[-1]}")
    group = open_group(engine.disk, TINY)
    assert {key: group.next_index(*key) for key in group.partitions()} == indexes
    assert [damage.end for damage in group.damage] == [end]
    assert group.journal.end_position == end
    for key, index in indexes.items():
        with pytest.raises(ReadError):
            group.read(*key, index - 1, 1)
    new = block(b"new")
    appended = group.append(*A, new.data, new.message_count, new.index_count, term=99, now_ms=1)
    assert appended.first_index == indexes[A]
    group.flush()
    run_sync(group)
    group.abandon()
    group = open_group(engine.disk, TINY)
    assert group.read(*A, indexes[A], 1)[0].first_index == indexes[A]
    group.abandon()


def test_F23_a_checkpoint_from_before_this_journal_is_not_used():
    engine = many_segments()
    old = get(engine.disk, "checkpoint")
    engine.drop(0)
    engine.group.close()
    forget_checkpoints(engine.disk)
    put(engine.disk, "checkpoint", old)
    engine.open()
    assert any("not used" in note for note in engine.group.notes)


@pytest.mark.parametrize("lost_count", [1, 2])
def test_F25_segments_that_are_gone_take_their_messages_and_no_others_and_no_index_comes_twice(lost_count):
    engine = many_segments()
    engine.group.close()
    bases = engine.group.journal.bases()
    for base in bases[-lost_count:]:
        engine.disk.remove(segment_path(base))
    lost = [one for one in engine.oracle.records if one.position >= bases[-lost_count]]
    for _ in range(3):
        engine.group = open_group(engine.disk, TINY)
        check_around_damage(engine, lost, is_restarted=True)
        for key in KEYS:
            engine.put(key, b"goes on")
        check_around_damage(engine, lost, is_restarted=True)
        engine.disk.lose_process()


def test_F17_what_was_damaged_and_can_be_read_again_is_not_damaged_for_ever():
    engine = many_segments()
    hit = next(one for one in engine.group.records(0, engine.group.journal.end_position) if one.header.type == 1)
    engine.group.abandon()
    base = max(base for base in engine.group.journal.bases() if base <= hit.position)
    node = engine.disk.open(segment_path(base)).node
    node.damage(hit.position - base + 100, 1)
    engine.disk.remove("checkpoint")
    engine.disk.remove("checkpoint.old")
    group = open_group(engine.disk, TINY)
    assert group.damage == [DamagedRange(hit.position, hit.position + hit.header.length)]
    group.close()
    node.damage(hit.position - base + 100, 1)  # the same bit once more: the disk has come to its senses
    engine.open()
    assert engine.group.damage == []
    engine.check()


# F03: recovery that is itself killed.


def state_of(disk):
    """What a group on this disk says; the journal's bytes up to its end and the index files."""
    group = open_group(disk, TINY)
    group.abandon()
    names = disk.names("journal")
    return (
        {key: (group.first_index(*key), group.next_index(*key), read_all(group, key)) for key in group.partitions()},
        group.journal.end_position,
        group.terms,
        {name: get(disk, f"journal/{name}") for name in names},
        dump(disk, "index"),
    )


def crashed_store(seed):
    """Something for recovery to do: a torn tail, a new segment, indexes behind the checkpoint, a stray file."""
    engine = Engine()
    engine.put_many(12, keys=KEYS, body_bytes=300)
    engine.checkpoint()
    engine.put_many(8, keys=KEYS, body_bytes=300)
    for number in range(8):
        engine.append(KEYS[number % 3], b"tail %d" % number * 40)
        engine.flush()
    put(engine.disk, "journal/stray", b"?")
    put(engine.disk, "index/stray", b"?")
    engine.disk.lose_power(Random(seed), mode="sectors")
    return engine.disk


@pytest.mark.parametrize("seed", range(3))
def test_F03_a_recovery_killed_at_any_operation_ends_as_if_it_had_not_been(seed):
    disk = crashed_store(seed)
    expected = state_of(disk.clone())
    for count in range(1000):
        twin = disk.clone()
        twin.crash_after = count
        try:
            state_of(twin)
        except PowerLost:
            twin.lose_process()
            assert state_of(twin) == expected, f"killed before operation {count}"
            continue
        assert count > 15
        return
    pytest.fail("recovery never ended")


@pytest.mark.sim
@pytest.mark.parametrize("seed", range(3))
def test_F03_a_recovery_that_loses_power_at_any_operation_loses_nothing_that_was_synced(seed):
    engine = Engine()
    engine.put_many(12, keys=KEYS, body_bytes=300)
    engine.checkpoint()
    engine.put_many(8, keys=KEYS, body_bytes=300)
    for number in range(8):
        engine.append(KEYS[number % 3], b"tail %d" % number * 40)
        engine.flush()
    engine.disk.lose_power(Random(seed), mode="sectors")
    for count in range(1000):
        for mode in MODES:
            twin = on_a_copy(engine)
            twin.disk.crash_after = count
            try:
                open_group(twin.disk, TINY)
            except PowerLost:
                twin.lose_power(count, mode)
                continue
            assert count > 15
            return
    pytest.fail("recovery never ended")


def crash_points(start, disk):
    """A copy of the disk for each operation that `start` does on it, just before that."""
    for count in range(1000):
        twin = disk.clone()
        twin.crash_after = count
        try:
            start(twin)
        except PowerLost:
            yield twin
            continue
        return


@pytest.mark.sim
@pytest.mark.parametrize("mode", ["nothing", "prefix", "everything"])
def test_F03_a_first_start_that_is_killed_and_a_second_that_loses_power_leave_a_store(mode):
    """What the second one sees need not be durable: not even the file that says what this directory is."""
    for killed in crash_points(lambda disk: open_group(disk, TINY), SimDisk()):
        killed.lose_process()
        for lost in crash_points(lambda disk: open_group(disk, TINY), killed):
            lost.lose_power(Random(1), mode=mode)
            open_group(lost, TINY).close()


@pytest.mark.parametrize("seed", range(30))
def test_F03_recoveries_killed_five_deep_lose_nothing_that_was_synced(seed):
    rng = Random(seed)
    engine = Engine()
    engine.put_many(20, keys=KEYS, body_bytes=300)
    engine.append(A, b"tail")
    engine.flush()
    engine.disk.lose_process()
    is_power_lost = False
    for _ in range(5):
        engine.disk.crash_after = rng.randrange(25)
        with contextlib.suppress(PowerLost):
            open_group(engine.disk, TINY)
        if rng.random() < 0.5:
            engine.disk.lose_power(rng)
            is_power_lost = True
        else:
            engine.disk.lose_process()
    engine.open(is_power_lost=is_power_lost)


# F17: a disk that does not give its bytes at a start.


def read_but_at(place, path="journal/"):
    """As a file with a bad sector there."""
    read_at = SimFile.read_at

    def read(file, position, size):
        if file.path.startswith(path) and position <= place < position + size:
            raise OSError(errno.EIO, "planned")
        return read_at(file, position, size)

    return read


def test_F17_a_read_error_at_a_start_is_not_taken_for_a_torn_tail():
    """It may be gone at the next try; what was synced there must not be cut off meanwhile."""
    for place in range(0, 1800, 150):
        engine = Engine()
        engine.put_many(12)
        engine.disk.lose_process()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(SimFile, "read_at", read_but_at(place))
            try:
                engine.group = open_group(engine.disk, TINY)
                engine.put(A, b"in its place?")
            except OSError as error:
                assert error.errno == errno.EIO  # noqa: PT017
        engine.disk.lose_process()
        engine.group = open_group(engine.disk, TINY)
        check_around_damage(engine, [], is_restarted=False)


def test_F17_a_bad_sector_in_the_middle_costs_its_record_after_a_start_too():
    engine = Engine()
    records = engine.put_many(12)
    engine.disk.lose_process()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SimFile, "read_at", read_but_at(records[4].position + 50))
        try:
            engine.group = open_group(engine.disk, dataclasses.replace(TINY, maps_segments=False))
        except OSError:
            return  # refusing to start is no harm done
        check_around_damage(engine, records[4:5], is_restarted=False)


# F18: no room to start.


@pytest.mark.parametrize("room", [0, 100, 1000])
def test_F18_a_start_on_a_full_disk_harms_nothing(room):
    engine = many_segments()
    engine.append(A, b"tail")
    engine.flush()
    engine.disk.lose_power(Random(3), mode="torn")
    engine.disk.capacity_bytes = 1 << 40
    engine.disk.capacity_bytes = engine.disk.capacity_bytes - engine.disk.free_bytes() + room
    try:
        open_group(engine.disk, TINY)
    except OSError as error:
        assert error.errno == errno.ENOSPC  # noqa: PT017
    engine.disk.lose_process()
    engine.disk.capacity_bytes = None
    engine.open(is_power_lost=True)
    engine.put(A, b"on it goes")


# R4: in which order things reach the disk.


def test_a_new_store_is_marked_as_one_only_once_its_directories_are_there():
    disk = SimDisk()
    disk.trace = []
    open_group(disk, TINY)
    steps = [(operation, path, *details) for operation, path, details in disk.trace]
    format_named = steps.index(("rename", "format.new", "format"))
    assert steps.index(("sync_dir", "")) < format_named
    assert steps.index(("sync", "format.new")) < format_named
    assert ("sync_dir", "") in steps[format_named:]
    first_segment = steps.index(("create", segment_path(0)))
    assert format_named < first_segment < steps.index(("sync", segment_path(0))) < steps.index(("sync_dir", "journal"))


def entries_written(disk, trace):
    """(position in the trace, the highest journal position that index entries written there point to)."""
    for at, (operation, path, details) in enumerate(trace):
        if operation == "write" and path.startswith("index/"):
            start, size = details
            data = disk.open(path).read_at(start, size)
            yield at, max(int.from_bytes(data[8 + n : 16 + n]) for n in range(0, size, ENTRY_BYTES))


def test_R4_journal_then_sync_then_index_then_sync_then_checkpoint():
    engine = Engine()
    engine.disk.trace = trace = []
    synced_at = [(0, 0)]  # (place in the trace, synced up to)
    for number in range(60):
        engine.append(KEYS[number % 3], b"%d" % number * 50)
        engine.flush()
        if number % 3 == 0:
            ticket = engine.group.begin_sync()
            ticket.run()
            synced_at.append((len(trace), ticket.position))
            engine.group.end_sync(ticket)
        if number % 20 == 19:
            engine.checkpoint()
    written = list(entries_written(engine.disk, trace))
    assert written
    for at, position in written:
        synced = max(synced for place, synced in synced_at if place <= at)
        assert position < synced, "an index entry was written before its bytes were synced"
    unsynced, checkpoint_count = set(), 0
    for operation, path, _ in trace:
        if path.startswith("index/") and operation in ("write", "create", "truncate"):
            unsynced |= {path} if path.endswith(".index") else set()
            unsynced |= {f"names of {path.rpartition('/')[0]}"} if operation == "create" else set()
        elif operation == "sync":
            unsynced.discard(path)
        elif operation == "sync_dir":
            unsynced.discard(f"names of {path}")
        elif operation == "sync_all":
            unsynced.clear()
        elif (operation, path) == ("rename", "checkpoint.new"):
            checkpoint_count += 1
            assert not unsynced, "a checkpoint vouches for index files that are not synced"
    assert checkpoint_count == 3


def test_R4_a_new_segment_is_there_by_name_before_anything_in_it_is_acked():
    engine = Engine()
    engine.fill_segment()
    engine.disk.trace = trace = []
    engine.append(A, b"x" * 1500)
    engine.flush()
    new = segment_path(engine.group.journal.bases()[-1])
    assert engine.group.visible_index(*A) == engine.oracle.visible_index(A)
    engine.sync()
    steps = [(operation, path) for operation, path, _ in trace]
    assert steps.index(("create", new)) < steps.index(("write", new)) < steps.index(("sync", new))
    assert steps.index(("sync", new)) < steps.index(("sync_dir", "journal"))


def test_a_checkpoint_that_was_not_finished_is_not_used():
    engine = many_segments()
    sequence = read_state(engine.disk, "checkpoint")[0]
    ticket = engine.group.begin_checkpoint()
    for count in range(30):
        twin = on_a_copy(engine)
        ticket._disk = twin.disk
        twin.disk.crash_after = count
        try:
            ticket.run()
        except PowerLost:
            twin.disk.lose_process()
            assert read_state(twin.disk, "checkpoint")[0] in (sequence, sequence + 1)
            twin.open()
            continue
        return
    pytest.fail("the checkpoint was never finished")


def test_messages_may_be_appended_at_once_by_the_thousand():
    engine = Engine(
        config=dataclasses.replace(TINY, segment_bytes=1 << 20, record_bytes_max=1 << 19, unsynced_bytes_max=1 << 19)
    )
    made = block(*[b""] * 3000)
    engine.group.append(*A, *made, term=1, now_ms=5)
    engine.group.flush()
    engine.disk.lose_process()
    group = open_group(engine.disk, engine.config)
    assert group.visible_index(*A) == 3000
