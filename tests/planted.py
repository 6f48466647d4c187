"""Bugs to plant: each turns a promise of the store into a lie, and names the check that must see through it.

    with find("ack before fsync").planted():
        ...

A test suite is believed as far as it catches these (`tests/storage/test_planted_bugs.py`).
"""

import contextlib
import dataclasses
import errno
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random

import pytest

from faults.bit_flips import Flips
from faults.delivery_crashes import crashes_at_each_write
from fix_disk import get, put
from fix_storage import TINY, A, B, Engine, segment_path
from lakemq.broker import answers, produce, special
from lakemq.broker.consume import Consuming
from lakemq.broker.core import Broker
from lakemq.broker.ledger import Ledger
from lakemq.broker.lending import Lender
from lakemq.broker.produce import Producing
from lakemq.broker.receiving import Receiving
from lakemq.broker.settling import Settling
from lakemq.broker.waiters import Waiters
from lakemq.checksum import crc32
from lakemq.delivery.ack_index import AckIndexes
from lakemq.delivery.loans import Loans
from lakemq.delivery.uniq import UniqIds
from lakemq.errors import NotLeaderError, WriteError
from lakemq.storage import directory, fetch, index, journal, journal_record, partition_group, recovery, state_file, walk
from lakemq.storage.checkpoint import CheckpointTicket
from lakemq.storage.files import CHECKPOINT
from lakemq.storage.fold import Refolding, SnapshotParts
from lakemq.storage.index import ENTRY_BYTES, PartitionIndex
from lakemq.storage.indexes import Indexes
from lakemq.storage.journal import Journal, SyncTicket
from lakemq.storage.journal_record import HEADER_BYTES, RecordHeader, RecordType
from lakemq.storage.partition_group import PartitionGroup
from lakemq.storage.recovery import _Recovery, open_group
from lakemq.storage.retention import count_droppable
from lakemq.storage.state_file import read_state, write_state
from lakemq.storage.survey import records, survey
from lakemq.storage.tables import Checkpoint, Folded
from lakemq.storage.walk import Walk
from lakemq.testing.disk import PowerLost, SimDisk
from lakemq.testing.plan import Plan
from lakemq.testing.simulation import Simulation
from lakemq.testing.storage_model import TallyFold
from lakemq.wire.consume import TopicMessages
from sim import planted_archive as archive
from sim import planted_delivery as delivery
from storage.fix_fold import FoldEngine, FoldStore

Patch = pytest.MonkeyPatch
FULL = OSError(errno.ENOSPC, "planned")
EIO = OSError(errno.EIO, "planned")


@dataclass(frozen=True)
class PlantedBug:
    """A bug of the store, and who finds it."""

    name: str
    plant: Callable[[Patch], None]
    caught_by: Callable[[], None]

    @contextlib.contextmanager
    def planted(self) -> Iterator[None]:
        """The store has this bug meanwhile."""
        with pytest.MonkeyPatch.context() as patch:
            self.plant(patch)
            yield


def find(name: str) -> PlantedBug:
    return next(bug for bug in PLANTED if bug.name == name)


# --- checks: each passes on a sound store, and raises AssertionError or an error of ours on one with its bugs --------


def random_crashes() -> None:
    """A short run of what `test_crash_states` does at length."""
    for seed in range(40):
        FoldStore(seed).run()


def flipped_bits() -> None:
    flips = Flips(7)
    for _ in range(60):
        flips.flip_at_rest()
        for _ in range(5):
            flips.flip_running()


def order_of_writes() -> None:
    """R4, by the trace of the disk: journal, sync, index, sync, checkpoint."""
    engine = Engine()
    engine.disk.trace = trace = []
    synced_position, synced_at = 0, [(0, 0)]
    for number in range(60):
        engine.append((A, B)[number % 2], b"%d" % number * 50)
        engine.flush()
        if number % 3 == 0:
            ticket = engine.group.begin_sync()
            ticket.run()
            synced_position = ticket.position
            synced_at.append((len(trace), synced_position))
            engine.group.end_sync(ticket)
        if number % 20 == 19:
            engine.checkpoint()
    unsynced = set()
    for at, (operation, path, details) in enumerate(trace):
        if operation == "write" and path.endswith(".index"):
            unsynced.add(path)
            start, size = details
            data = get(engine.disk, path)[start : start + size]
            highest = max(int.from_bytes(data[8 + n : 16 + n]) for n in range(0, len(data), ENTRY_BYTES))
            assert highest < max(position for place, position in synced_at if place <= at), "index before journal"
        elif operation == "sync":
            unsynced.discard(path)
        elif operation == "sync_all":
            unsynced.clear()
        elif (operation, path) == ("rename", f"{CHECKPOINT}.new"):
            assert not unsynced, "checkpoint before index"


def a_failed_sync() -> None:
    """F15, F16: nothing is acked after it, and what it lost is written again before anything is."""
    for seed in range(6):
        engine = Engine()
        engine.put(A, b"acked")
        engine.append(A, b"lost by the disk")
        engine.flush()
        engine.disk.fail("sync", EIO, path_contains="journal/", wrote=0)
        ticket = engine.group.begin_sync()
        try:
            ticket.run()
        except OSError as error:
            engine.group.end_sync(ticket, error)
        else:
            engine.group.end_sync(ticket)
            engine.oracle.sync(ticket.position)
        assert engine.group.visible_index(*A) == engine.oracle.visible_index(A)
        if seed % 2:
            engine.kill()  # after which all that is still seen is visible, and so must stay
        engine.lose_power(seed, "nothing")


def a_refused_write() -> None:
    """F18: whatever part of it reached the disk, none of it is ever seen."""
    for wrote in (0, 150, 9999):
        for is_killed in (True, False):
            engine = Engine()
            engine.put(A, b"before")
            for _ in range(2):
                engine.append(A, b"refused")
            engine.append(B, b"refused")
            engine.disk.fail("write", FULL, path_contains="journal/", wrote=wrote)
            with contextlib.suppress(WriteError):
                engine.group.flush()
            engine.oracle.refuse()
            if is_killed:
                engine.kill()
            engine.check()
            engine.put(A, b"short")
            engine.kill()


def a_turn_refused_after_a_filing() -> None:
    """F18: a sync ends while the turn is under way, and its entries go to files."""
    engine = Engine()
    for number in range(12):
        engine.append(A, b"%d" % number)
    engine.flush()
    ticket = engine.group.begin_sync()
    ticket.run()
    engine.append(A, b"refused")
    engine.group.end_sync(ticket)
    engine.oracle.sync(ticket.position)
    engine.disk.fail("write", FULL, path_contains="journal/")
    with contextlib.suppress(WriteError):
        engine.group.flush()
    engine.oracle.refuse()
    engine.put(A, b"in its place")
    engine.check()
    engine.group.close()
    assert survey(engine.disk).is_sound, "the index is not what the journal is"


def a_refused_roll() -> None:
    """F18: what is acked after it must not be hidden by what it left."""
    for seed in range(12):
        engine = Engine()
        engine.fill_segment()
        engine.append(B, b"of the same turn")
        engine.disk.fail("preallocate", FULL)
        with contextlib.suppress(WriteError):
            engine.append(A, b"x" * 1500)
        engine.flush()
        engine.sync()
        engine.check()
        engine.put(B, b"small enough for the old segment")
        engine.lose_power(seed)


def old_bytes_behind_the_end() -> None:
    """F13: a block that was used before, and holds what once was a record."""
    engine = Engine()
    fact = engine.append_control(RecordType.ACK, b"fact")
    engine.flush()
    engine.sync()
    size = fact.end_position - fact.position
    file = engine.disk.open(segment_path(0))
    file.write_at(fact.end_position, [file.read_at(fact.position, size)])
    engine.kill()


def a_tail_that_was_cut() -> None:
    """F13: records behind a hole are cut with it, and do not come back when the hole is filled."""
    engine = Engine()
    engine.put(A, b"synced")
    engine.append(A, b"lost")
    second = engine.append(A, b"whole, but behind a hole")
    engine.flush()
    hole = engine.oracle.records[-2]
    engine.disk.open(segment_path(0)).write_at(hole.position, [bytes(second.position - hole.position)])
    engine.disk.lose_process()
    engine.open(is_power_lost=True)
    engine.put(A, b"LOST")
    engine.kill()


def retention() -> None:
    """Indexes go on after all messages are gone, also without a checkpoint; and who holds a position keeps it."""
    engine = Engine()
    engine.put(B, b"long ago")
    for _ in range(3):
        engine.fill_segment()
        engine.put(A, b"x" * 1500)
    held = engine.group.journal.bases()[1]
    engine.group.hold("archive", held)
    engine.drop(0)
    assert engine.group.journal.first_position == held, "a held segment went"
    engine.group.let_go("archive")
    engine.drop(0)
    engine.disk.lose_process()
    remove_checkpoints(engine.disk)
    engine.open()
    engine.put(B, b"again")
    assert engine.oracle.records[-1].first_index == 1


def damage_at_the_end_of_a_partition() -> None:
    """F21: the index of a message that is lost is not given to another one."""
    engine = Engine()
    lost = engine.put(A, b"to be lost")
    engine.put(B, b"which shows that it was synced")
    engine.disk.open(segment_path(0)).node.damage(lost.end_position - 1, 1)
    engine.disk.lose_process()
    group = open_group(engine.disk, TINY)
    assert group.next_index(*A) == 1


def an_unknown_file() -> None:
    """R7: put aside, not deleted."""
    engine = Engine()
    engine.group.close()
    put(engine.disk, "journal/stray", b"whose is this?")
    engine.open()
    kept = {get(engine.disk, f"quarantine/{name}") for name in engine.disk.names("quarantine")}
    assert b"whose is this?" in kept


def damaged_parts_of_a_snapshot() -> None:
    """F21: half of the parts are no snapshot, where no other one is left."""
    engine = FoldEngine(padding_bytes=1290)
    engine.fill_segment()
    engine.put(A, b"x" * 1500)
    engine.drop(0)
    for _ in range(3):
        engine.put(B, b"which shows that it was synced")
    table, *parts = itertools.islice(records(engine.disk), 4)
    assert [one.header.type for one in parts] == [RecordType.SNAPSHOT] * 3
    engine.disk.open(segment_path(table.position)).node.damage(parts[1].position - table.position + 90, 1)
    remove_checkpoints(engine.disk)
    engine.disk.lose_process()
    fold = TallyFold()
    open_group(engine.disk, TINY, fold)
    assert fold.record_count == 4, "what is behind the damage, and nothing else"


def half_a_head() -> None:
    """F13: it is made again before all depends on it."""
    engine = FoldEngine(padding_bytes=1290)
    engine.fill_segment()
    engine.append(A, b"x" * 1500)
    engine.flush()
    base = engine.group.journal.bases()[-1]
    third = next(itertools.islice(records(engine.disk, base), 2, None))
    engine.disk.open(segment_path(base)).truncate(third.position - base)
    engine.disk.lose_process()
    engine.open(is_power_lost=True)
    engine.put(A, b"after")
    engine.drop(0)
    assert engine.group.journal.first_position == base
    remove_checkpoints(engine.disk)
    engine.kill()


def a_lost_checkpoint_after_retention() -> None:
    """F23: the head of the oldest segment tells what was before it, from the moment that is dropped."""
    for has_head in (False, True):
        engine = FoldEngine()
        engine.fill_segment()
        engine.append(A, b"x" * 1500)
        engine.disk.fail("write", FULL, path_contains="journal/")
        with contextlib.suppress(WriteError):
            engine.flush()
        engine.refuse()
        engine.sync()
        engine.drop(0)
        if has_head:
            engine.put(B, b"after")
            assert engine.drop(0) == 1
        remove_checkpoints(engine.disk)
        engine.kill()


def a_snapshot_from_behind_the_end() -> None:
    """A checkpoint that was ahead of the journal when the power went: its snapshot is not believed."""
    engine = FoldEngine()
    engine.put(A, b"synced")
    checkpoint = engine.group.begin_checkpoint()
    checkpoint.run()
    sequence, content = read_state(engine.disk, CHECKPOINT)
    engine.append(A, b"lost")
    engine.flush()
    ahead = dataclasses.replace(
        Checkpoint.unpack(content), folded=Folded(engine.group.journal.end_position, engine.fold.snapshot())
    )
    write_state(engine.disk, CHECKPOINT, sequence + 1, ahead.pack())
    engine.lose_power(1, "nothing")


def a_sync_within_a_turn() -> None:
    """What it says of the fold must not be what this turn has appended, and loses again."""
    engine = FoldEngine(config=dataclasses.replace(TINY, checkpoint_bytes=100))
    engine.put(A, b"x" * 300)
    engine.append(A, b"y" * 300)
    engine.flush()
    engine.append(B, b"of a turn that fails")
    ticket = engine.group.begin_sync()
    ticket.run()
    engine.group.end_sync(ticket)
    engine.oracle.sync(ticket.position)
    engine.disk.fail("write", FULL, path_contains="journal/")
    with contextlib.suppress(WriteError):
        engine.flush()
    engine.refuse()
    engine.append(B, b"not synced")
    engine.flush()
    engine.checkpoint()
    engine.lose_power(1, "nothing")


def facts_on_a_full_disk() -> None:
    """F18: a full disk takes facts for a while when it takes no messages any more."""
    engine = Engine()
    engine.disk.capacity_bytes = 1 << 40
    engine.disk.capacity_bytes = engine.disk.capacity_bytes - engine.disk.free_bytes()
    with contextlib.suppress(WriteError):
        while True:
            engine.put(A, b"m")
    for number in range(12):
        engine.append_control(RecordType.ACK, b"%d" % number)
        with contextlib.suppress(WriteError):
            engine.append(A, b"m")
    engine.flush()
    engine.sync()
    engine.lose_power(1, "nothing")


def remove_checkpoints(disk: SimDisk) -> None:
    for name in disk.names(""):
        if name.startswith(CHECKPOINT):
            disk.remove(name)


def state_files() -> None:
    """F02: at any operation, old or new."""
    for seed in range(8):
        for count in range(9):
            disk = SimDisk()
            write_state(disk, "state", 1, b"one" * 100)
            disk.crash_points, disk.crash_after = 0, count
            try:
                write_state(disk, "state", 2, b"two" * 100)
            except PowerLost:
                disk.lose_power(Random(seed))
                assert read_state(disk, "state") in ((1, b"one" * 100), (2, b"two" * 100))


# --- bugs ------------------------------------------------------------------------------------------------------------


def ack_before_fsync(patch: Patch) -> None:
    patch.setattr(SyncTicket, "run", lambda ticket: None)


def ack_of_what_came_after_the_sync_began(patch: Patch) -> None:
    end_sync = Journal.end_sync

    def end_too_far(self, ticket, error=None):
        ticket.position = self.written_position
        end_sync(self, ticket, error)

    patch.setattr(Journal, "end_sync", end_too_far)


def visible_at_write(patch: Patch) -> None:
    flush = PartitionGroup.flush

    def flush_and_show(self):
        changed = flush(self)
        for one in self._unsynced:
            one.entries.visible_index = one.next_index
        return changed

    patch.setattr(PartitionGroup, "flush", flush_and_show)


def fsync_retried_after_failure(patch: Patch) -> None:
    run = SyncTicket.run

    def run_again(ticket):
        try:
            run(ticket)
        except OSError:
            run(ticket)

    patch.setattr(SyncTicket, "run", run_again)


def no_rewrite_after_a_failed_sync(patch: Patch) -> None:
    def only_sync(self, kept, end):
        for segment in kept:
            self._files[segment.base].sync()
        self._disk.sync_dir("journal")

    patch.setattr(_Recovery, "_make_durable", only_sync)


def nothing_made_durable_by_recovery(patch: Patch) -> None:
    patch.setattr(_Recovery, "_make_durable", lambda self, kept, end: None)


def new_segments_name_not_synced(patch: Patch) -> None:
    def run(ticket):
        for file in ticket.files.values():
            file.sync()

    patch.setattr(SyncTicket, "run", run)


def index_not_truncated_to_the_checkpoint(patch: Patch) -> None:
    attach = PartitionIndex.attach

    def attach_all(self, last_file_first, in_last_file, next_index, *, may_have_gaps):
        is_sound = attach(self, last_file_first, in_last_file, next_index, may_have_gaps=may_have_gaps)
        if is_sound and self._firsts:
            size = self._files.open(self._path(self._firsts[-1])).size()
            self._in_last_file = min(size // ENTRY_BYTES, self._entries_per_file)
        return is_sound

    patch.setattr(PartitionIndex, "attach", attach_all)


def index_filed_before_its_bytes_are_synced(patch: Patch) -> None:
    def file(self):
        for each in self._by_key.values():
            each.flush(self._journal.written_position)
        self._unfiled_bytes = 0

    patch.setattr(Indexes, "file", file)


def checkpoint_written_before_index_sync(patch: Patch) -> None:
    run = CheckpointTicket.run

    def write_first(ticket):
        state_file.write_state(ticket._disk, CHECKPOINT, ticket._sequence, ticket._content)
        run(ticket)

    patch.setattr(CheckpointTicket, "run", write_first)


def header_crc_without_position(patch: Patch) -> None:
    def pack_header(header, position):
        data = journal_record._HEADER.pack(header.length, journal_record.MAGIC, 1, *header[1:])
        return data + journal_record._CRC.pack(crc32(data))

    def unpack_header(data, offset, position):
        if len(data) - offset < HEADER_BYTES:
            return None
        length, magic, _, *rest = journal_record._HEADER.unpack_from(data, offset)
        if magic != journal_record.MAGIC or length < HEADER_BYTES:
            return None
        crc = journal_record._CRC.unpack_from(data, offset + HEADER_BYTES - 4)[0]
        is_whole = crc == crc32(memoryview(data)[offset : offset + HEADER_BYTES - 4])
        return RecordHeader(length, *rest) if is_whole else None

    patch.setattr(journal_record, "_hot", None)
    for module in (journal_record, partition_group, recovery, walk):
        for name, function in (("pack_header", pack_header), ("unpack_header", unpack_header)):
            if hasattr(module, name):
                patch.setattr(module, name, function)


def payload_not_checked_on_read(patch: Patch) -> None:
    patch.setattr(fetch, "whole_records", lambda data, position: len(data))


def recovery_cuts_at_damage_in_the_middle(patch: Patch) -> None:
    patch.setattr(Walk, "_resume_after", lambda self, position, search_from: None)


def recovery_keeps_records_after_a_torn_hole(patch: Patch) -> None:
    resume_after = Walk._resume_after

    def resume_anyway(self, position, search_from):
        self._proven = 1 << 62
        return resume_after(self, position, search_from)

    patch.setattr(Walk, "_resume_after", resume_anyway)
    patch.setattr(_Recovery, "_is_next", lambda self, position, header: True)


def recovery_leaves_what_is_behind_the_end(patch: Patch) -> None:
    def keep(self, end):
        return [segment for segment in self._segments if segment.base <= end]

    patch.setattr(_Recovery, "_cut_tail", keep)


def one_damaged_record_costs_all_up_to_the_proof(patch: Patch) -> None:
    def proof_after(self, position, search_from):
        for segment in self._segments:
            start = max(search_from, segment.base)
            for found, header in walk.candidates(segment, start, segment.end):
                if header.synced_position > position:
                    return found
        return None

    patch.setattr(Walk, "_resume_after", proof_after)


def index_reused_after_damage(patch: Patch) -> None:
    patch.setattr(_Recovery, "_read_headers", lambda self, damage: None)


def a_look_up_ends_before_the_gap(patch: Patch) -> None:
    def find_in(block, wanted):
        firsts = [int.from_bytes(block[at : at + 8]) for at in range(0, len(block), ENTRY_BYTES)]
        return sum(first <= wanted for first in firsts) - 1

    patch.setattr(index, "_find_in", find_in)


def tail_not_wiped_after_a_failed_write(patch: Patch) -> None:
    patch.setattr(Journal, "_heal_from", lambda self, file, offset: None)


def undo_forgotten_after_a_failed_flush(patch: Patch) -> None:
    def take_back(self):
        self._journal.discard()
        self._undo.clear()

    patch.setattr(PartitionGroup, "_take_back", take_back)


def undo_by_a_length_that_filing_has_changed(patch: Patch) -> None:
    def undo(self, pending_bytes, next_index):
        del self._pending[pending_bytes:]
        self.next_index = next_index

    patch.setattr(PartitionIndex, "undo", undo)


def failed_roll_forgets_the_first_half_of_the_turn(patch: Patch) -> None:
    roll = PartitionGroup._roll

    def forget(self):
        try:
            roll(self)
        except WriteError:
            self._take_back()
            raise

    patch.setattr(PartitionGroup, "_roll", forget)


def removal_after_a_failed_roll_not_synced(patch: Patch) -> None:
    def discard_file(self, file):
        file.close()
        self._disk.remove(file.path)

    patch.setattr(Journal, "_discard_file", discard_file)


def no_table_at_the_head_of_a_segment(patch: Patch) -> None:
    patch.setattr(PartitionGroup, "_put_table", lambda self, table, term, now_ms: None)


def retention_ignores_holders(patch: Patch) -> None:
    def drop_what_is_held(finished, end_position, policy, now_ms, held_positions, covered_position):
        return count_droppable(finished, end_position, policy, now_ms, (), covered_position)

    patch.setattr(partition_group, "count_droppable", drop_what_is_held)


def unknown_files_deleted(patch: Patch) -> None:
    patch.setattr(_Recovery, "_quarantine", lambda self, path, why: self._disk.remove(path))


def state_renamed_before_it_is_synced(patch: Patch) -> None:
    def write_unsynced(disk, path, sequence, content):
        crc = crc32(content, crc32(state_file._CRC_OF.pack(sequence, len(content))))
        file = disk.open(path + ".new", create=True)
        file.truncate(0)
        file.write_at(0, [state_file._HEAD.pack(state_file.MAGIC, sequence, len(content), crc), content])
        disk.rename(path + ".new", path)
        file.sync()
        disk.sync_dir("")

    for module in (state_file, directory):
        patch.setattr(module, "write_state", write_unsynced)
    patch.setitem(globals(), "write_state", write_unsynced)


def records_before_the_snapshot_told_again(patch: Patch) -> None:
    begin_with = Refolding.begin_with

    def begin_earlier(self, folded):
        begin_with(self, folded)
        self.position = 0

    walk_from = _Recovery._walk

    def walk(self, position, *rest):
        return walk_from(self, max(position, self._segments[0].base), *rest)

    patch.setattr(Refolding, "begin_with", begin_earlier)
    patch.setattr(_Recovery, "_walk", walk)


def messages_not_told_to_the_fold(patch: Patch) -> None:
    add = Refolding.add

    def add_facts(self, found):
        if found.header.type != RecordType.MESSAGES:
            add(self, found)

    patch.setattr(Refolding, "add", add_facts)


def records_up_to_the_checkpoint_not_told(patch: Patch) -> None:
    def fold_up_to(self, checkpoint):
        if checkpoint.folded is None:
            self._refolding.begin(checkpoint.position)
        else:
            self._refolding.begin_with(checkpoint.folded)

    patch.setattr(_Recovery, "_fold_up_to", fold_up_to)


def snapshot_of_the_checkpoint_not_restored(patch: Patch) -> None:
    def begin_with(self, folded):
        self._begin(Folded(folded.position, b""), is_at_start=False)

    patch.setattr(Refolding, "begin_with", begin_with)


def snapshot_of_the_head_not_restored(patch: Patch) -> None:
    patch.setattr(Refolding, "_add_part", lambda self, payload: None)
    patch.setattr(Refolding, "half_head", lambda self: None)


def checkpoint_with_a_snapshot_of_what_is_not_synced(patch: Patch) -> None:
    patch.setattr(PartitionGroup, "_foldable_position", property(lambda self: self._journal.synced_position))


def snapshot_from_behind_the_end_believed(patch: Patch) -> None:
    patch.setattr(_Recovery, "_fold_again", lambda self, end: None)


def snapshot_taken_within_a_turn(patch: Patch) -> None:
    patch.setattr(PartitionGroup, "_is_between_turns", property(lambda self: True))


def half_of_the_parts_taken_for_a_snapshot(patch: Patch) -> None:
    patch.setattr(SnapshotParts, "is_whole", property(lambda self: bool(self._pieces)))


def half_a_head_left_as_it_is(patch: Patch) -> None:
    patch.setattr(_Recovery, "_end_without_half_a_head", lambda self, start, end: end)


def segment_dropped_before_the_head_behind_it_is_there(patch: Patch) -> None:
    def drop_too_early(finished, end_position, policy, now_ms, held_positions, covered_position):
        return count_droppable(finished, end_position, policy, now_ms, held_positions, covered_position + 1)

    patch.setattr(partition_group, "count_droppable", drop_too_early)


def reserve_not_kept(patch: Patch) -> None:
    fits = Journal.fits
    patch.setattr(Journal, "fits", lambda self, size, may_use_reserve=False: fits(self, size, may_use_reserve=True))


def facts_may_not_use_the_reserve(patch: Patch) -> None:
    fits = Journal.fits
    patch.setattr(Journal, "fits", lambda self, size, may_use_reserve=False: fits(self, size))


def journal_closes_nothing(patch: Patch) -> None:
    patch.setattr(journal.Journal, "_close_unused", lambda self: None)


def open_files() -> None:
    engine = Engine()
    for _ in range(60):
        engine.put(A, b"x" * 1900)
    assert len(engine.disk._open_files) <= TINY.open_segments_max + TINY.open_index_files_max + 2


PLANTED = [
    PlantedBug("ack before fsync", ack_before_fsync, random_crashes),
    PlantedBug("ack of what came after the sync began", ack_of_what_came_after_the_sync_began, random_crashes),
    PlantedBug("visible at write", visible_at_write, random_crashes),
    PlantedBug("fsync retried after failure", fsync_retried_after_failure, a_failed_sync),
    PlantedBug("no rewrite after a failed sync", no_rewrite_after_a_failed_sync, a_failed_sync),
    PlantedBug("nothing made durable by recovery", nothing_made_durable_by_recovery, a_failed_sync),
    PlantedBug("new segment's name not synced", new_segments_name_not_synced, random_crashes),
    PlantedBug("index not truncated to the checkpoint", index_not_truncated_to_the_checkpoint, random_crashes),
    PlantedBug("index filed before its bytes are synced", index_filed_before_its_bytes_are_synced, order_of_writes),
    PlantedBug("checkpoint written before index sync", checkpoint_written_before_index_sync, order_of_writes),
    PlantedBug("header CRC without position", header_crc_without_position, old_bytes_behind_the_end),
    PlantedBug("payload not checked on read", payload_not_checked_on_read, flipped_bits),
    PlantedBug("recovery cuts at damage in the middle", recovery_cuts_at_damage_in_the_middle, flipped_bits),
    PlantedBug("recovery keeps records after a torn hole", recovery_keeps_records_after_a_torn_hole, random_crashes),
    PlantedBug("recovery leaves what is behind the end", recovery_leaves_what_is_behind_the_end, a_tail_that_was_cut),
    PlantedBug("damage costs all up to the proof", one_damaged_record_costs_all_up_to_the_proof, flipped_bits),
    PlantedBug("index reused after damage", index_reused_after_damage, damage_at_the_end_of_a_partition),
    PlantedBug("a look-up ends before the gap", a_look_up_ends_before_the_gap, flipped_bits),
    PlantedBug("tail not wiped after a failed write", tail_not_wiped_after_a_failed_write, a_refused_write),
    PlantedBug("undo forgotten after a failed flush", undo_forgotten_after_a_failed_flush, a_refused_write),
    PlantedBug(
        "undo by a length that filing has changed",
        undo_by_a_length_that_filing_has_changed,
        a_turn_refused_after_a_filing,
    ),
    PlantedBug("failed roll forgets half of the turn", failed_roll_forgets_the_first_half_of_the_turn, a_refused_roll),
    PlantedBug("removal after a failed roll not synced", removal_after_a_failed_roll_not_synced, a_refused_roll),
    PlantedBug("no table at the head of a segment", no_table_at_the_head_of_a_segment, retention),
    PlantedBug("retention ignores holders", retention_ignores_holders, retention),
    PlantedBug("unknown files deleted", unknown_files_deleted, an_unknown_file),
    PlantedBug("state renamed before it is synced", state_renamed_before_it_is_synced, state_files),
    PlantedBug("the journal closes no file", journal_closes_nothing, open_files),
    PlantedBug("records before the snapshot told again", records_before_the_snapshot_told_again, random_crashes),
    PlantedBug("messages not told to the fold", messages_not_told_to_the_fold, random_crashes),
    PlantedBug("records up to the checkpoint not told", records_up_to_the_checkpoint_not_told, random_crashes),
    PlantedBug("snapshot of the checkpoint not restored", snapshot_of_the_checkpoint_not_restored, random_crashes),
    PlantedBug(
        "snapshot of the head not restored", snapshot_of_the_head_not_restored, a_lost_checkpoint_after_retention
    ),
    PlantedBug(
        "checkpoint with a snapshot of what is not synced",
        checkpoint_with_a_snapshot_of_what_is_not_synced,
        random_crashes,
    ),
    PlantedBug(
        "snapshot from behind the end believed", snapshot_from_behind_the_end_believed, a_snapshot_from_behind_the_end
    ),
    PlantedBug("snapshot taken within a turn", snapshot_taken_within_a_turn, a_sync_within_a_turn),
    PlantedBug(
        "half of the parts taken for a snapshot", half_of_the_parts_taken_for_a_snapshot, damaged_parts_of_a_snapshot
    ),
    PlantedBug("half a head left as it is", half_a_head_left_as_it_is, half_a_head),
    PlantedBug(
        "segment dropped before the head behind it is there",
        segment_dropped_before_the_head_behind_it_is_there,
        a_lost_checkpoint_after_retention,
    ),
    PlantedBug("reserve not kept", reserve_not_kept, facts_on_a_full_disk),
    PlantedBug("facts may not use the reserve", facts_may_not_use_the_reserve, facts_on_a_full_disk),
]


# --- bugs of the broker, which simulated schedules must find (`tests/sim/test_planted_bugs.py`) ----------------------


def schedules_with(
    *kinds: str, count: int = 80, where: Callable[[Plan], bool] = lambda plan: True
) -> Callable[[], None]:
    """So many schedules in which one of these things happens, all kinds if none is named, and whose plan is like that.

    The seeds are among those that a sound broker passes in `test_simulation`, but for the last ones of rare kinds.
    """

    def simulated_schedules() -> None:
        done = seed = 0
        while done < count:
            simulation = Simulation(seed)
            seed += 1
            plan = simulation.plan
            if where(plan) and (not kinds or any(one.kind in kinds for one in plan.planned)):
                done += 1
                simulation.run()

    return simulated_schedules


def flush_acked_when_the_turn_ends(patch: Patch) -> None:
    def written(self, written_position, synced_position):
        turn, self._turn = self._turn, []
        for reply in turn:
            self._settle(reply)
        done = [reply for reply in turn if reply.end_position <= written_position]
        return done, [reply for reply in turn if reply.end_position > written_position]

    patch.setattr(Waiters, "written", written)


def state_not_taken_back_with_the_turn(patch: Patch) -> None:
    def flush(self):
        self._undo.clear()
        self.group.flush()

    patch.setattr(Ledger, "flush", flush)


def lease_kept_when_its_connection_closes(patch: Patch) -> None:
    patch.setattr(Loans, "release_all", lambda self, consumer: False)


def expired_lease_never_returned(patch: Patch) -> None:
    patch.setattr(Loans, "take_expired", lambda self, now_ms: [])


def partition_lent_twice(patch: Patch) -> None:
    next_run = Loans.next_run

    def from_the_ack_index(self, partition, ack_index, beyond):
        first, stop = next_run(self, partition, ack_index, beyond)
        return (ack_index, stop) if self.leases(partition) else (first, stop)

    lend = Loans.lend

    def lend_and_offer(self, lease):
        lend(self, lease)
        self.offer(lease.partition)

    patch.setattr(Loans, "next_run", from_the_ack_index)
    patch.setattr(Loans, "lend", lend_and_offer)
    patch.setattr(Lender, "_room", lambda self, lending, policy, partition: 1000)


def ack_index_jumps_over_a_gap(patch: Patch) -> None:
    settle = AckIndexes.settle
    patch.setattr(
        AckIndexes, "settle", lambda self, number, partition, first, after: settle(self, number, partition, 0, after)
    )


def ack_of_what_was_never_handed_out(patch: Patch) -> None:
    commit_ack = Settling.commit_ack

    def take_it(self, *arguments):
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(PartitionGroup, "visible_index", lambda self, topic, partition: 1 << 60)
            commit_ack(self, *arguments)

    patch.setattr(Settling, "commit_ack", take_it)


def long_polls_not_woken(patch: Patch) -> None:
    patch.setattr(Consuming, "wake", lambda self, lending, now: None)


def new_messages_not_offered(patch: Patch) -> None:
    patch.setattr(Consuming, "made_visible", lambda self, changed, now: None)


def poll_answered_twice(patch: Patch) -> None:
    tell = Consuming._tell

    def tell_twice(self, poll, now, *rest, **more):
        tell(self, poll, now, *rest, **more)
        poll.tell(TopicMessages(poll.topic), now)

    patch.setattr(Consuming, "_tell", tell_twice)


def polls_of_a_lost_connection_kept(patch: Patch) -> None:
    def consumer_gone(self, connection, topic, app, now):
        subscription = self._ledger.metadata.subscription(topic, app)
        lending = self._lendings.get(subscription.number) if subscription is not None else None
        if lending is not None and lending.loans.release_all(connection.port.id):
            self.wake(lending, now)

    patch.setattr(Consuming, "consumer_gone", consumer_gone)


def answers_of_a_run_name_the_next_index(patch: Patch) -> None:
    run_acks = produce.run_acks

    def one_too_many(messages, *rest):
        wrong = bytearray(messages)
        at = 0
        while at < len(wrong):
            index = int.from_bytes(wrong[at + 6 : at + 14])
            wrong[at + 6 : at + 14] = (index + 1).to_bytes(8)
            at += int.from_bytes(wrong[at : at + 4])
        return run_acks(wrong, *rest)

    patch.setattr(produce, "run_acks", one_too_many)


def uniq_ids_forgotten_by_a_restart(patch: Patch) -> None:
    patch.setattr(UniqIds, "restore", lambda self, data: self._places.clear())
    patch.setattr(UniqIds, "apply", lambda self, *arguments, **more: None)


def uniq_ids_missing_in_snapshots(patch: Patch) -> None:
    patch.setattr(UniqIds, "pack", lambda self, kept: b"")


def uniq_id_of_a_refused_message_remembered(patch: Patch) -> None:
    patch.setattr(UniqIds, "discard", lambda self, key: None)


def uniq_ids_of_an_array_all_at_its_first_place(patch: Patch) -> None:
    ids_of = special.ids_of

    def first_for_all(messages, sender):
        found = ids_of(messages, sender)
        return [(app, uniq_id, partition, found[0][3]) for app, uniq_id, partition, _ in found]

    patch.setattr(special, "ids_of", first_for_all)


def acks_missing_in_snapshots(patch: Patch) -> None:
    patch.setattr(AckIndexes, "pack", lambda self, subscriptions: b"")


def commit_ack_answered_before_the_write(patch: Patch) -> None:
    def at_once(self, connection, header, ack, refused, now):
        answers.answer(connection, header, ack, now)

    patch.setattr(Settling, "_after_write", at_once)


def refused_messages_stored(patch: Patch) -> None:
    store = Producing._store

    def store_and_refuse(self, connection, entry, app, stored, now):
        store(self, connection, entry, app, stored, now)
        if stored.end_position % 5 == 0:
            raise NotLeaderError("planted")

    patch.setattr(Producing, "_store", store_and_refuse)


def seen_before_it_is_synced(patch: Patch) -> None:
    turn_ended = Broker._turn_ended

    def show_all(self, event, now):
        turn_ended(self, event, now)
        journal = self._group.journal
        if not self.writing.is_over and journal.end_position == journal.written_position:
            for one in self._group._indexes._by_key.values():
                one.visible_index = one.next_index

    patch.setattr(Broker, "_turn_ended", show_all)


def failed_sync_taken_for_a_good_one(patch: Patch) -> None:
    synced = Broker._journal_synced

    def nothing_happened(self, event, now):
        synced(self, dataclasses.replace(event, error=None), now)

    patch.setattr(Broker, "_journal_synced", nothing_happened)


def overdue_answers_kept(patch: Patch) -> None:
    def overdue(self, now_ms):
        return [reply for reply in self._sync if 0 < reply.deadline_ms <= now_ms]

    patch.setattr(Waiters, "overdue", overdue)


def those_held_back_forgotten(patch: Patch) -> None:
    patch.setattr(Receiving, "let_breathe", lambda self, now: None)


def requests_in_flight_never_over(patch: Patch) -> None:
    patch.setattr(Waiters, "_settle", lambda self, reply: None)


def syncs_put_off_by_a_clock_set_back(patch: Patch) -> None:
    def wants_sync(self, now_ms):
        if not self._unsynced:
            return self._journal.unsynced_bytes > 0
        waiting_ms = now_ms - self._unsynced[0].since_ms
        return self._config.sync_policy.is_due(self._unsynced_messages, waiting_ms)

    patch.setattr(PartitionGroup, "wants_sync", wants_sync)


DEATHS = ("kill", "crash", "crash on ack", "power")


def syncs_by_time(plan: Plan) -> bool:
    return plan.storage.sync_policy.every_ms is not None


def has_ids(plan: Plan) -> bool:
    return any(one.habits.unique for one in plan.producers)


def has_arrays_with_ids(plan: Plan) -> bool:
    return any(one.habits.unique and len(one.habits.shapes) > 1 for one in plan.producers)


def leases_last(plan: Plan) -> bool:
    return any(one.habits.lease_ms > 10_000 and one.habits.misbehaves > 0 for one in plan.consumers)


def many_polls_wait(plan: Plan) -> bool:
    """So that what an ack frees is lent to the next within the same turn."""
    lasting = [one for one in plan.consumers if one.habits.lease_ms > 10_000 and one.habits.count < 10]
    return plan.turn_ms > 0 and sum(one.habits.polls for one in lasting) > 1


def has_retries(plan: Plan) -> bool:
    """Failures that are tried again soon, and not at once."""
    pauses = [one.get("retry_first_ms", 1000) for one in plan.policies.values() if one["is_retry"]]
    return consumers_fail(plan) and any(80 <= one <= 300 for one in pauses)


def consumers_fail(plan: Plan) -> bool:
    return any(one.habits.fails > 0.1 or one.habits.poison for one in plan.consumers)


def gives_up_soon(plan: Plan) -> bool:
    return consumers_fail(plan) and any(one.get("retry_times", 16) < 2 for one in plan.policies.values())


def keeps_order(plan: Plan) -> bool:
    return consumers_fail(plan) and any(_is_ordered(plan, one) for one in plan.policies.values())


def keeps_order_by_key(plan: Plan) -> bool:
    policies = [one for one in plan.policies.values() if one.get("is_concurrent")]
    return consumers_fail(plan) and any(_is_ordered(plan, one) for one in policies)


def is_parallel(plan: Plan) -> bool:
    return any(one.get("is_concurrent") for one in plan.policies.values())


def _is_ordered(plan: Plan, policy: dict[str, object]) -> bool:
    return bool(policy["is_sequential"]) or any(topic.is_ordered for topic in plan.topics)


def has_filters(plan: Plan) -> bool:
    policies = [one for one in plan.policies.values() if one.get("filter")]
    return bool(policies) and any(one.habits.marks for one in plan.producers) and not plan.broker.creates_missing


def has_failures_behind_filters(plan: Plan) -> bool:
    return has_filters(plan) and consumers_fail(plan)


def has_transactions(plan: Plan) -> bool:
    return bool(plan.transactors)


def has_delays(plan: Plan) -> bool:
    return any(one.habits.delays for one in plan.producers)


def consumers_forget(plan: Plan) -> bool:
    return any(one.habits.lease_ms < 2000 and one.habits.misbehaves > 0.2 for one in plan.consumers)


PLANTED_BROKER = [
    PlantedBug("FLUSH acked when the turn ends", flush_acked_when_the_turn_ends, schedules_with("crash on ack")),
    PlantedBug("state not taken back with the turn", state_not_taken_back_with_the_turn, schedules_with("disk full")),
    PlantedBug(
        "lease kept when its connection closes",
        lease_kept_when_its_connection_closes,
        schedules_with(where=leases_last),
    ),
    PlantedBug("expired lease never returned", expired_lease_never_returned, schedules_with(where=consumers_forget)),
    PlantedBug("partition lent twice", partition_lent_twice, schedules_with()),
    PlantedBug("ack index jumps over a gap", ack_index_jumps_over_a_gap, schedules_with()),
    PlantedBug("ack of what was never handed out", ack_of_what_was_never_handed_out, schedules_with()),
    PlantedBug("long polls not woken", long_polls_not_woken, schedules_with()),
    PlantedBug("new messages not offered", new_messages_not_offered, schedules_with()),
    PlantedBug("poll answered twice", poll_answered_twice, schedules_with()),
    PlantedBug("polls of a lost connection kept", polls_of_a_lost_connection_kept, schedules_with()),
    PlantedBug("answers of a run name the next index", answers_of_a_run_name_the_next_index, schedules_with()),
    PlantedBug("UNIQ_IDs forgotten by a restart", uniq_ids_forgotten_by_a_restart, schedules_with(*DEATHS)),
    PlantedBug("UNIQ_IDs missing in snapshots", uniq_ids_missing_in_snapshots, schedules_with(*DEATHS)),
    PlantedBug(
        "UNIQ_ID of a refused message remembered",
        uniq_id_of_a_refused_message_remembered,
        schedules_with("disk full", where=has_ids),
    ),
    PlantedBug(
        "UNIQ_IDs of an array all at its first place",
        uniq_ids_of_an_array_all_at_its_first_place,
        schedules_with(where=has_arrays_with_ids),
    ),
    PlantedBug("acks missing in snapshots", acks_missing_in_snapshots, schedules_with(*DEATHS)),
    PlantedBug("COMMIT_ACK answered before the write", commit_ack_answered_before_the_write, schedules_with(*DEATHS)),
    PlantedBug("refused messages stored", refused_messages_stored, schedules_with()),
    PlantedBug("seen before it is synced", seen_before_it_is_synced, schedules_with("power", "crash on ack")),
    PlantedBug("failed sync taken for a good one", failed_sync_taken_for_a_good_one, schedules_with("sync error")),
    PlantedBug("overdue answers kept", overdue_answers_kept, schedules_with("slow sync")),
    PlantedBug("those held back forgotten", those_held_back_forgotten, schedules_with()),
    PlantedBug("requests in flight never over", requests_in_flight_never_over, schedules_with()),
    PlantedBug(
        "ack taken back and not lent again",
        delivery.acks_taken_back_and_not_lent_again,
        schedules_with("disk full", count=150, where=many_polls_wait),
    ),
    PlantedBug(
        "syncs put off by a clock set back",
        syncs_put_off_by_a_clock_set_back,
        schedules_with("clock jump", where=syncs_by_time),
    ),
    PlantedBug("retry lost at a kill", delivery.retries_missing_in_snapshots, schedules_with(*DEATHS)),
    PlantedBug("dead letters lost at a kill", delivery.dead_letters_missing_in_snapshots, schedules_with(*DEATHS)),
    PlantedBug("retry early by a tick", delivery.retry_early, schedules_with(where=has_retries)),
    PlantedBug("retry kept when it is acked", delivery.retry_kept_when_it_is_acked, schedules_with(where=has_retries)),
    PlantedBug("ack of a retry counts twice", delivery.ack_of_a_retry_counts_twice, delivery.a_retry_acked_twice),
    PlantedBug(
        "failure said twice counts twice", delivery.failure_said_twice_counts_twice, delivery.a_failure_said_twice
    ),
    PlantedBug("dead letter twice", delivery.dead_letter_twice, schedules_with(where=gives_up_soon)),
    PlantedBug("dead letters with one id", delivery.dead_letters_with_one_id, schedules_with(where=gives_up_soon)),
    PlantedBug(
        "failed message passed and nowhere",
        delivery.failed_message_passed_and_nowhere,
        schedules_with(where=has_retries),
    ),
    PlantedBug("lease that ran out not counted", delivery.lease_that_ran_out_not_counted, delivery.leases_that_run_out),
    PlantedBug("stuck message overtaken", delivery.stuck_message_overtaken, schedules_with(where=keeps_order)),
    PlantedBug("acked behind a failure", delivery.acked_behind_a_failure, schedules_with(where=keeps_order)),
    PlantedBug(
        "acked behind a failure of its key",
        delivery.acked_behind_a_failure_of_its_key,
        schedules_with(where=keeps_order_by_key),
    ),
    PlantedBug(
        "an ack ends all leases of its connection",
        delivery.ack_ends_all_leases_of_its_connection,
        schedules_with(where=is_parallel),
    ),
    PlantedBug(
        "leases counted instead of messages",
        delivery.leases_counted_instead_of_messages,
        schedules_with(where=is_parallel),
    ),
    PlantedBug("key lent twice at once", delivery.key_lent_twice_at_once, schedules_with(where=keeps_order_by_key)),
    PlantedBug(
        "stuck message never let go", delivery.stuck_message_never_let_go, schedules_with(where=keeps_order_by_key)
    ),
    PlantedBug(
        "waiting message forgotten",
        delivery.waiting_message_forgotten,
        schedules_with(*DEATHS, where=keeps_order_by_key),
    ),
    PlantedBug("filtered message delivered", delivery.filtered_message_delivered, schedules_with(where=has_filters)),
    PlantedBug(
        "retry hidden by a filter",
        delivery.retry_hidden_by_a_filter,
        schedules_with(where=has_failures_behind_filters),
    ),
    PlantedBug(
        "outcome of a transaction forgotten at a restart",
        delivery.outcomes_forgotten_by_a_restart,
        schedules_with(*DEATHS, where=has_transactions),
    ),
    PlantedBug(
        "part of a commit missing after a crash", delivery.rest_of_a_commit_not_stored, crashes_at_each_write("commit")
    ),
    PlantedBug(
        "rolled back message visible", delivery.rolled_back_messages_stored, schedules_with(where=has_transactions)
    ),
    PlantedBug("delay early", delivery.delay_early, schedules_with(where=has_delays)),
    PlantedBug("delay released twice", delivery.delay_released_twice, schedules_with(*DEATHS, where=has_delays)),
    PlantedBug("delay lost", delivery.delay_lost, schedules_with(where=has_delays)),
    PlantedBug(
        "ack of a retry taken back and not queued again",
        delivery.retry_taken_back_and_not_queued,
        delivery.a_refused_ack_of_a_retry,
    ),
    PlantedBug(
        "archive mark ignored by retention",
        archive.mark_ignored_by_retention,
        schedules_with(count=40, where=archive.drops_early),
    ),
    PlantedBug(
        "archive mark ahead of what was read",
        archive.mark_ahead_of_what_was_read,
        schedules_with(count=40, where=archive.drops_early),
    ),
    PlantedBug(
        "events of a run lost",
        archive.events_of_a_run_lost,
        schedules_with(count=40, where=archive.is_archived_in_peace),
    ),
    PlantedBug("event counted twice", archive.event_counted_twice, schedules_with(count=40, where=archive.is_archived)),
    PlantedBug(
        "events of a refused turn kept",
        archive.events_of_a_refused_turn_kept,
        schedules_with("disk full", "write error", where=archive.is_archived),
    ),
    PlantedBug(
        "acks of retries not noted",
        archive.acks_of_retries_not_noted,
        schedules_with(count=40, where=archive.is_archived_in_peace),
    ),
    PlantedBug(
        "deliveries not noted",
        archive.deliveries_not_noted,
        schedules_with(count=40, where=archive.is_archived_in_peace),
    ),
]
