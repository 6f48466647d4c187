"""Random work on a store, cut off at random points, recovered and held against what was promised (F02, F03, F10–F16).

    python -m tests.faults.crash_states --states 10000 --flips 100000

A seed stands for several lives of one store on one simulated disk: each appends to some partitions, flushes, syncs,
files checkpoints, drops old segments, meets a full disk or a failed sync, and ends at a random operation of the disk,
by a kill or by a power loss of some kind, sometimes while it still recovers. Every state is recovered and checked.
"""

import argparse
import errno
import sys
import time
from collections import Counter
from random import Random

from lakemq.envelope import pack
from lakemq.errors import DiskIOError, ReadError, ServiceUnavailableError, WriteError
from lakemq.message import BatchItem, BatchMessage, Message
from lakemq.record import scan
from lakemq.storage.config import VISIBLE_AFTER, StorageConfig
from lakemq.storage.journal import SyncTicket
from lakemq.storage.journal_record import RecordType
from lakemq.storage.partition_group import PartitionGroup
from lakemq.storage.recovery import open_group
from lakemq.storage.retention import RetentionPolicy
from lakemq.storage.survey import survey
from lakemq.testing.crash import MODES
from lakemq.testing.disk import PowerLost, SimDisk
from lakemq.testing.storage_model import Key, Oracle, ViolationError

from .bit_flips import files_below, run_flips
from .tools import say

KEYS: tuple[Key, ...] = ((1, 0), (1, 1), (2, 0), (70_000, 32_000))
CONTROLS = (RecordType.ACK, RecordType.TRANSACTION, RecordType.TOPIC)
CRASHES_PER_SEED = 5
ENTRY_BYTES = 48
VIOLATIONS_MAX = 10


def draw_config(rng: Random) -> StorageConfig:
    """Small enough that everything happens often: rolls, filings, new index files, caps."""
    return StorageConfig(
        segment_bytes=rng.choice((6, 8, 12)) << 10,
        record_bytes_max=4 << 10,
        entries_per_file=rng.choice((4, 16, 50)),
        checkpoint_bytes=rng.choice((1, 6)) << 10,
        unsynced_bytes_max=rng.choice((5, 9)) << 10,
        index_pending_bytes_max=rng.choice((1, 8, 100)) * ENTRY_BYTES,
        open_segments_max=rng.choice((1, 3)),
        open_index_files_max=rng.choice((1, 4)),
        maps_segments=rng.random() < 0.5,
        visible_after=rng.choice(VISIBLE_AFTER),
    )


class Store:
    """One store through many lives, and the oracle that knows what each of them promised."""

    def __init__(self, seed: int, config: StorageConfig | None = None, *, has_faults: bool = True) -> None:
        self.rng = Random(seed)
        self.config = config or draw_config(self.rng)
        self.has_faults = has_faults
        self.disk = SimDisk()
        self.oracle = Oracle(self.config.visible_after)
        self.group: PartitionGroup | None = None
        self.term, self.now_ms, self.body_number = 1, 1_000_000, 0
        self.state_count = 0
        self.is_power_lost = False  # since the last start that came to its end
        self.seen: Counter[str] = Counter()

    # --- lives ---------------------------------------------------------------------------------------------------

    def run(self, crash_count: int = CRASHES_PER_SEED) -> None:
        """So many crashes, each after some work; then a last start, in peace."""
        while self.state_count < crash_count:
            self.disk.crash_after = self.rng.randrange(20) if self.rng.random() < 0.2 else self.rng.randrange(15, 120)
            try:
                self.start()
                self.work(self.rng.choice((2, 10, 20, 40, 80)))
            except PowerLost:
                pass
            self.crash()
        self.start()
        self.stop()
        if not self.seen["harm"] and not self.oracle.kept_from:  # of harm, some may still lie there unseen
            found = [one for one in survey(self.disk).findings if one.is_damage]
            if found:
                raise ViolationError(f"a look from outside finds {found[0]}")
        self.start()

    def start(self) -> None:
        """Recover and check."""
        self.group = None
        self.group = open_group(self.disk, self.config)
        self.oracle.check_recovered(self.group, is_power_lost=self.is_power_lost)
        self.is_power_lost = False

    def stop(self) -> None:
        """End in peace."""
        self.running().close()
        self.is_power_lost = False

    def running(self) -> PartitionGroup:
        """The group of this life."""
        assert self.group is not None
        return self.group

    def crash(self) -> None:
        """Lose the process, or the power too."""
        self.state_count += 1
        self.disk.faults.clear()
        self.disk.capacity_bytes = None
        if self.rng.random() < 0.25:
            self.disk.lose_process()
            self.seen["kill"] += 1
        else:
            mode = self.rng.choice(MODES)
            self.disk.lose_power(self.rng, mode=mode)
            self.is_power_lost = True
            self.seen[f"power {mode}"] += 1
        if self.has_faults and self.rng.random() < 0.15:
            self.harm()

    def harm(self) -> None:
        """Take away or damage what is derived from the journal: that must change nothing (F22, F23)."""
        checkpoints = [name for name in self.disk.names("") if "checkpoint" in name]
        self.harm_some([*files_below(self.disk, "index"), *checkpoints])

    def harm_some(self, paths: list[str]) -> None:
        for path in self.rng.sample(paths, min(len(paths), self.rng.choice((1, 2, 100)))):
            if self.rng.random() < 0.5 or not self.disk.open(path).size():
                self.disk.remove(path)
            else:
                self.disk.flip_bits(path, self.rng, 1)
            self.seen["harm"] += 1

    def work(self, step_count: int) -> None:
        """So many steps, drawn at random, or until the store is read-only."""
        steps = (
            (self.turn, 50),
            (self.sync, 25),
            (self.checkpoint, 6),
            (self.retain, 4),
            (self.check, 4),
            (self.meet_full_disk, 3 * self.has_faults),
            (self.find_room, 4 * self.has_faults),
            (self.harm_indexes, self.has_faults),
            (self.fail_a_write, 2 * self.has_faults),
            (self.fail_a_sync, 0.5 * self.has_faults),
        )
        verbs, weights = zip(*steps, strict=True)
        for verb in self.rng.choices(verbs, weights, k=step_count):
            self.now_ms += self.rng.randrange(50)
            verb()
            if self.running().journal.failure is not None:
                self.seen["read-only"] += 1
                return  # the broker would end here (R3)

    # --- steps ---------------------------------------------------------------------------------------------------

    def turn(self) -> None:
        """Some appends and one flush; a sync may end in between, well or not."""
        group = self.running()
        ticket = group.begin_sync() if self.rng.random() < 0.2 else None
        is_refused = False
        for _ in range(self.rng.choice((1, 1, 2, 3, 8))):
            end = group.journal.end_position
            try:
                self.append()
            except ServiceUnavailableError:
                self.seen["cap"] += 1
                break
            except WriteError:  # it alone, or all of the turn, as its flush must say then
                is_refused |= group.journal.end_position < end or group.journal.failure is not None
        if self.rng.random() < 0.05 and not is_refused:
            self.check()
        if ticket is not None:
            self.finish_sync(ticket)
        has_more = len(self.oracle.records) > self.oracle.written_count
        try:
            group.flush()
        except (WriteError, DiskIOError):
            self.seen["refused"] += 1
            self.oracle.refuse(group.journal.written_position)
            return
        if is_refused or (has_more and group.journal.failure is not None):
            raise ViolationError("something of this turn was refused, but flush says that all is well")
        self.oracle.flush()

    def append(self) -> None:
        """Messages to some partition, or a fact."""
        self.term += self.rng.random() < 0.02
        key = self.rng.choice(KEYS)
        if self.rng.random() < 0.1:
            kind, payload = self.rng.choice(CONTROLS), self.body()
            topic, partition = key
            end = self.running().append_control(
                kind, payload, topic=topic, partition=partition, term=self.term, now_ms=self.now_ms
            )
            self.oracle.append_control(key, kind, end, payload, self.now_ms)
            return
        data, message_count, index_count = self.messages()
        appended = self.running().append(*key, data, message_count, index_count, term=self.term, now_ms=self.now_ms)
        self.oracle.append(key, appended, bytes(data), self.now_ms)

    def sync(self) -> None:
        """All that is written."""
        ticket = self.running().begin_sync()
        if ticket is None:
            return
        if self.rng.random() < 0.2:
            self.turn()
        self.finish_sync(ticket, is_slow=self.rng.random() < 0.2)

    def finish_sync(self, ticket: SyncTicket, *, is_slow: bool = False) -> None:
        """Run it, and tell how it ended; what it covers is acked then, and not what was written meanwhile."""
        group = self.running()
        try:
            ticket.run()
        except OSError as error:
            group.end_sync(ticket, error)
            self.seen["sync failed"] += 1
            return
        if is_slow:
            self.turn()
        group.end_sync(ticket)
        self.oracle.sync(ticket.position)
        self.seen["sync"] += 1

    def checkpoint(self) -> None:
        """One checkpoint, with a turn before it is durable, perhaps."""
        try:
            ticket = self.running().begin_checkpoint()
        except OSError:  # no room to file the indexes
            return
        if self.rng.random() < 0.3:
            self.turn()
        try:
            ticket.run()
        except OSError as error:
            self.running().end_checkpoint(ticket, error)
            self.seen["checkpoint failed"] += 1
            return
        self.running().end_checkpoint(ticket)
        self.seen["checkpoint"] += 1

    def retain(self) -> None:
        """Drop old segments, as far as a checkpoint and a holder allow."""
        group, before = self.running(), self.oracle.kept_from
        limit = group.checkpoint_position
        if self.rng.random() < 0.3:
            held = self.rng.randrange(group.journal.end_position + 1)
            group.hold("archive", held)
            limit = min(limit, held)
        self.oracle.drop(limit)  # so much may go if this is cut off
        policy = RetentionPolicy(size_bytes=self.rng.choice((0, 2, 4)) * self.config.segment_bytes)
        self.seen["dropped"] += group.retain(policy, self.now_ms)
        group.let_go("archive")
        if group.journal.first_position > max(limit, before):
            raise ViolationError(f"dropped up to {group.journal.first_position}, {limit} is still needed")
        self.oracle.kept_from = max(before, group.journal.first_position)

    def check(self) -> None:
        """Read everything by random limits, and something by time; on a full disk an index may not be mendable."""
        try:
            self.check_all()
        except ReadError:
            if self.disk.capacity_bytes is None or not self.seen["harm"]:
                raise
            self.seen["not mended"] += 1

    def check_all(self) -> None:
        index_count, bytes_max = self.rng.choice((1, 3, 1 << 30)), self.rng.choice((1, 700, 1 << 20))
        self.oracle.check(self.running(), index_count=index_count, bytes_max=bytes_max)
        for key in self.oracle.partitions():
            when, first = self.now_ms - self.rng.randrange(3000), self.running().first_index(*key)
            told, truth = self.running().index_of_time(*key, when), self.oracle.index_of_time(key, when, first)
            if told != truth:
                raise ViolationError(f"{key}: {told} is said to be the first index at {when}, {truth} is")

    def meet_full_disk(self) -> None:
        """Room for a little more only."""
        self.disk.capacity_bytes = 1 << 40
        used = self.disk.capacity_bytes - self.disk.free_bytes()
        self.disk.capacity_bytes = used + self.rng.choice((0, 100, 5000))

    def find_room(self) -> None:
        """Somebody has cleaned up."""
        self.disk.capacity_bytes = None

    def harm_indexes(self) -> None:
        """The same under a group that runs, to files it may have open."""
        self.harm_some(files_below(self.disk, "index"))

    def fail_a_write(self) -> None:
        """The next write to the journal finds no room, after a part of it (F18)."""
        error = OSError(errno.ENOSPC, "planned")
        self.disk.fail("write", error, path_contains="journal/", wrote=self.rng.choice((0, 1, 100, 300, 1000, 9999)))

    def fail_a_sync(self) -> None:
        """The next sync of the journal reports an error, and has lost bytes (F15, F16)."""
        error = OSError(errno.EIO, "planned")
        self.disk.fail("sync", error, path_contains="journal/", wrote=self.rng.randrange(3))

    # --- what is written -----------------------------------------------------------------------------------------

    def messages(self) -> tuple[bytearray, int, int]:
        """Some messages or batches, none like any other."""
        data, count = bytearray(), self.rng.choice((1, 1, 1, 2, 5))
        for _ in range(count):
            if self.rng.random() < 0.2:
                items = tuple(BatchItem(body=self.body()) for _ in range(self.rng.randrange(1, 4)))
                data += pack(BatchMessage(items=items))
            else:
                data += pack(Message(body=self.body(), attributes={"TAGS": "a"} if self.rng.random() < 0.3 else {}))
        return data, count, scan(data, 0, len(data), count).index_count

    def body(self) -> bytes:
        self.body_number += 1
        return b"%d:" % self.body_number + self.rng.randbytes(self.rng.choice((0, 1, 20, 100, 180)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--states", type=int, default=1000, help="crash states to recover and check")
    parser.add_argument("--flips", type=int, default=0, help="bits to flip, one at a time")
    parser.add_argument("--seed", type=int, default=0, help="the first one")
    parser.add_argument("--only", action="store_true", help="this seed alone, with the violation's traceback")
    options = parser.parse_args()
    if options.only:
        Store(options.seed).run()
        return
    has_failed = not run_states(options.states, options.seed)
    if options.flips:
        has_failed |= not run_flips(options.flips, options.seed)
    sys.exit(has_failed)


def run_states(count: int, seed: int) -> bool:
    """So many states from that seed on; False after a violation, whose seed is told."""
    done, begun, told = 0, time.monotonic(), 0.0
    seen: Counter[str] = Counter()
    failed: list[int] = []
    while done < count and len(failed) < VIOLATIONS_MAX:
        store = Store(seed)
        try:
            store.run()
        except Exception as error:
            failed.append(seed)
            say(f"seed {seed}: {type(error).__name__}: {error}")
        done += store.state_count
        seen += store.seen
        seed += 1
        if time.monotonic() > told + 5:
            told = time.monotonic()
            say(f"{done} of {count} crash states, {done / (told - begun):.0f} a second")
    say(f"{done} crash states in {time.monotonic() - begun:.0f} s: {dict(sorted(seen.items()))}")
    for one in failed:
        say(f"VIOLATION, to see it: python -m tests.faults.crash_states --seed {one} --only")
    return not failed


if __name__ == "__main__":
    main()
