"""A process that does nothing but write to a store, made to be killed.

    python -m tests.faults.writer DIRECTORY LEDGER [--run N] [--seed N] [--turns N] …

Appends to several partitions, single messages and batches, flushes each turn, syncs inline or in a thread while the
next turns go on, files checkpoints, and says in the ledger what it was promised. Exits with 0 when its turns are done
and the store is closed, with EXIT_FAILED after an error that is final (R3), with EXIT_NOT_OPENED if it came to nothing.
"""

import argparse
import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from random import Random

from lakemq.envelope import pack, unpack_all
from lakemq.errors import DiskIOError, LakeMQError, ServiceUnavailableError, WriteError
from lakemq.message import BatchItem, BatchMessage, Message
from lakemq.storage.config import StorageConfig
from lakemq.storage.partition_group import Appended, PartitionGroup
from lakemq.storage.recovery import open_group
from lakemq.world import disk as real_disk

from .content import Bodies, Name
from .ledger import LedgerPen, Place

EXIT_FAILED = 3
EXIT_NOT_OPENED = 4
SEED = 20_260
PLACES: tuple[Place, ...] = ((1, 0), (1, 1), (2, 0), (7, 5), (300, 32_000))
LIFE_SECONDS_MAX = 120
_RECORD_BYTES_WANTED = 200_000
_PR_SET_PDEATHSIG = 1


def small_config(segment_bytes: int = 1 << 20, *, maps_segments: bool = True) -> StorageConfig:
    """Everything happens often: rolls, index files, filings, checkpoints."""
    return StorageConfig(
        segment_bytes=segment_bytes,
        record_bytes_max=segment_bytes // 2,
        entries_per_file=300,
        checkpoint_bytes=2 * segment_bytes,
        unsynced_bytes_max=8 << 20,
        index_pending_bytes_max=24 << 10,
        open_segments_max=4,
        open_index_files_max=8,
        maps_segments=maps_segments,
    )


@dataclass
class Options:
    """What one run of the writer is to do."""

    directory: str
    ledger: str
    run: int = 1
    seed: int = SEED
    turns: int = 0  # 0: until it is killed
    inline: bool = False  # no threads: system calls come in one order
    lie_about_sync: bool = False  # a planted bug: a file's sync does nothing
    ack_before_sync: bool = False  # a planted bug
    short_writes: bool = False  # the system takes part of what it is given (F19)
    segment_bytes: int = 1 << 20
    pause_ms: float = 0.0  # after each turn


@dataclass
class Sent:
    """One append: COUNT messages of a place, from a sequence on."""

    place: Place
    sequence: int
    count: int
    appended: Appended


class Writer:
    """Turns of appends, flush and sync on one open group."""

    def __init__(self, group: PartitionGroup, options: Options, pen: LedgerPen) -> None:
        self._group = group
        self._options = options
        self._pen = pen
        self._rng = Random(options.seed * 1_000_003 + options.run)
        self._bodies = Bodies(options.seed)
        self._sequences = dict.fromkeys(PLACES, 0)
        self._turn: list[Sent] = []
        self._unacked: list[Sent] = []
        self._threads = None if options.inline else ThreadPoolExecutor(2)
        self._sync: tuple[object, Future[None] | None] | None = None
        self._checkpoint: tuple[object, Future[None]] | None = None

    def work(self) -> None:
        """Every turn; LakeMQError once the store gives up."""
        turn = 0
        while not self._options.turns or turn < self._options.turns:
            turn += 1
            self._append_some()
            if self._rng.random() < 0.3:  # a sync may end between an append and its flush
                self._end_sync(is_waiting=False)
            self._flush()
            self._end_sync(is_waiting=self._rng.random() < 0.5)
            self._begin_sync()
            self._do_checkpoint()
            if self._rng.random() < 0.1:
                self._read_some()
            if self._options.pause_ms:
                time.sleep(self._options.pause_ms / 1000)
        self._end_sync(is_waiting=True)

    def end(self) -> None:
        """Leave the store in peace."""
        self._end_sync(is_waiting=True)
        self._end_checkpoint(is_waiting=True)
        self._group.close()
        for sent in self._unacked:
            self._say("acked", sent)
        self._pen.line("closed")

    def insist(self) -> list[str]:
        """After a failure: whatever the store still takes as if nothing had happened. Must be nothing (R3)."""
        taken = []
        waiting = len(self._turn)  # appended before the failure, and nobody was told yet
        for what, act in (("append", self._append_one), ("flush", self._flush_pending)):
            if what == "flush" and not waiting:
                continue
            try:
                act()
                taken.append(what)
            except LakeMQError:
                continue
        if self._group.begin_sync() is not None:
            taken.append("sync")
        return taken

    # --- appending ---------------------------------------------------------------------------------------------

    def _append_some(self) -> None:
        for _ in range(self._rng.choice((1, 1, 2, 3, 8, 20))):
            if not self._append_one():
                return

    def _append_one(self) -> bool:
        """False if the store did not take it, and perhaps with it nothing of this turn."""
        place = self._rng.choice(PLACES)
        first = self._sequences[place]
        data, message_count, count = self._make_messages(place, first)
        self._sequences[place] += count
        try:
            appended = self._group.append(
                *place, data, message_count, count, term=self._options.run, now_ms=time.time_ns() // 1_000_000
            )
        except ServiceUnavailableError:  # too much waits for a sync: this one alone is refused
            self._refuse(place, first, count)
            self._end_sync(is_waiting=True)
            return True
        except WriteError:
            self._refuse(place, first, count)
            return False
        self._turn.append(Sent(place, first, count, appended))
        return True

    def _make_messages(self, place: Place, sequence: int) -> tuple[bytearray, int, int]:
        """Some messages back to back, how many they are, and how many indexes they take."""
        data, message_count, count = bytearray(), 0, 0
        for _ in range(self._rng.choice((1, 1, 1, 2, 6))):
            bodies = [
                self._bodies.make(Name(self._options.run, *place, sequence + count + nth))
                for nth in range(self._rng.choice((1, 1, 1, 3, 10)))
            ]
            if data and len(data) + sum(map(len, bodies)) > _RECORD_BYTES_WANTED:
                break
            value: Message | BatchMessage
            if len(bodies) == 1 and self._rng.random() < 0.8:
                value = Message(body=bodies[0], partition=place[1])
            else:
                while len(bodies) > 1 and sum(map(len, bodies)) > _RECORD_BYTES_WANTED:
                    bodies.pop()
                value = BatchMessage(items=tuple(map(BatchItem, bodies)), partition=place[1])
            data += pack(value)
            message_count += 1
            count += len(bodies)
        return data, message_count, count

    def _flush(self) -> None:
        try:
            self._flush_pending()
        except WriteError as error:
            self._pen.line("note", "not written:", error)
            # Where a segment ended within the turn, what went into it is written all the same.
            written = [
                sent for sent in self._turn if sent.appended.end_position <= self._group.journal.written_position
            ]
            for sent in self._turn[len(written) :]:
                self._refuse(sent.place, sent.sequence, sent.count)
            self._turn = []
            self._told_written(written)
            time.sleep(0.01)
        except DiskIOError:
            self._turn = []  # nobody knows what became of them
            raise

    def _flush_pending(self) -> None:
        self._group.flush()
        written, self._turn = self._turn, []
        self._told_written(written)

    def _told_written(self, written: list[Sent]) -> None:
        for sent in written:
            self._say("written", sent)
            if self._options.ack_before_sync:
                self._say("acked", sent)
        self._unacked += written

    # --- syncing -----------------------------------------------------------------------------------------------

    def _begin_sync(self) -> None:
        if self._sync is not None:
            return
        ticket = self._group.begin_sync()
        if ticket is None:
            return
        is_inline = self._threads is None or self._rng.random() < 0.3
        self._sync = ticket, None if is_inline else self._threads.submit(ticket.run)
        if is_inline:
            self._end_sync(is_waiting=True)

    def _end_sync(self, *, is_waiting: bool) -> None:
        if self._sync is None or not (is_waiting or self._sync[1] is None or self._sync[1].done()):
            return
        (ticket, future), self._sync = self._sync, None
        error = _outcome(ticket.run if future is None else future.result)
        self._group.end_sync(ticket, error)
        if error is not None:
            raise DiskIOError(f"sync: {error}")
        done = [sent for sent in self._unacked if sent.appended.end_position <= ticket.position]
        self._unacked = self._unacked[len(done) :]
        for sent in done:
            if self._group.visible_index(*sent.place) < sent.appended.next_index:
                self._pen.line("failed", f"synced, but not visible: {sent}")
            self._say("acked", sent)

    def _do_checkpoint(self) -> None:
        self._end_checkpoint(is_waiting=False)
        if self._checkpoint is not None or not self._group.wants_checkpoint:
            return
        try:
            ticket = self._group.begin_checkpoint()
        except OSError as error:  # no room for the indexes: the checkpoint before still holds
            self._pen.line("note", f"no checkpoint: {error}")
            return
        if self._threads is None:
            self._group.end_checkpoint(ticket, self._checkpoint_outcome(ticket.run))
        else:
            self._checkpoint = ticket, self._threads.submit(ticket.run)

    def _end_checkpoint(self, *, is_waiting: bool) -> None:
        if self._checkpoint is None or not (is_waiting or self._checkpoint[1].done()):
            return
        (ticket, future), self._checkpoint = self._checkpoint, None
        self._group.end_checkpoint(ticket, self._checkpoint_outcome(future.result))

    def _checkpoint_outcome(self, run: Callable[[], None]) -> OSError | None:
        error = _outcome(run)
        self._pen.line("note", "checkpoint" if error is None else f"no checkpoint: {error}")
        return error

    def _read_some(self) -> None:
        """A consumer's look at what is visible: readable at any time, and what was sent."""
        place = self._rng.choice(PLACES)
        visible = self._group.visible_index(*place)
        index = self._rng.randrange(visible) if visible else 0
        for part in self._group.read(*place, index, 20):
            for value in unpack_all(part.messages):
                for message in value.messages() if isinstance(value, BatchMessage) else [value]:
                    if self._bodies.name_of(message.body) is None:
                        self._pen.line("failed", f"read something else at {place} {message.index}")
        if visible and not self._group.read(*place, index, 1):
            self._pen.line("failed", f"read nothing at {place} {index}, visible are {visible}")

    # --- telling -----------------------------------------------------------------------------------------------

    def _say(self, level: str, sent: Sent) -> None:
        first = sent.appended.first_index
        self._pen.line(level, *sent.place, first, sent.count, self._options.run, sent.sequence)

    def _refuse(self, place: Place, sequence: int, count: int) -> None:
        self._pen.line("refused", *place, count, self._options.run, sequence)


def _outcome(run: Callable[[], None]) -> OSError | None:
    try:
        run()
    except OSError as error:
        return error
    return None


def write(options: Options) -> int:
    """One run; returns the exit status."""
    signal.alarm(LIFE_SECONDS_MAX)  # whatever happens to those who watch us
    if options.lie_about_sync:
        real_disk.RealFile.sync = lambda self: None
    if options.short_writes:
        _shorten_writes(Random(options.run))
    pen = LedgerPen(options.ledger)
    disk = real_disk.RealDisk(options.directory)
    try:
        disk.make_dir("")
        group = open_group(disk, small_config(options.segment_bytes))
    except Exception as error:
        pen.line("note", f"not opened: {type(error).__name__}: {error}".replace("\n", " "))
        return EXIT_NOT_OPENED
    pen.line("begun", options.run, os.getpid())
    for note in group.notes:
        pen.line("note", "recovered:", note)
    writer = Writer(group, options, pen)
    try:
        writer.work()
        writer.end()
    except (LakeMQError, OSError) as error:
        pen.line("failed", f"{type(error).__name__}: {error}".replace("\n", " "))
        taken = writer.insist() if isinstance(error, DiskIOError) else []
        if taken:
            pen.line("failed", f"taken after a failure: {', '.join(taken)}")
        return EXIT_FAILED
    return 0


def _shorten_writes(rng: Random) -> None:
    """Make the system take only part of most writes, as it may: of the bytes, and of the buffers."""
    whole = os.pwritev

    def pwritev(fd: int, buffers: list[bytes], position: int) -> int:
        total = sum(map(len, buffers))
        if total < 2 or rng.random() < 0.2:
            return whole(fd, buffers, position)
        wanted = rng.randrange(1, total)
        part = b"".join(bytes(one) for one in buffers)[:wanted]
        return whole(fd, [part], position)

    os.pwritev = pwritev


def fork_writer(options: Options) -> int:
    """Start a writer as a copy of this process, which must have no threads: much faster than a new one. Its pid."""
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    status = 70
    try:
        die_with_parent(parent)
        status = write(options)
    except BaseException as error:
        LedgerPen(options.ledger).line("failed", f"bug: {type(error).__name__}: {error}".replace("\n", " "))
    finally:
        os._exit(status)


def die_with_parent(parent: int | None = None) -> None:
    """No writer outlives the test that started it, not even one that ended before this was said."""
    parent = parent or os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory")
    parser.add_argument("ledger")
    parser.add_argument("--run", type=int, default=1)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--turns", type=int, default=0)
    parser.add_argument("--segment-bytes", type=int, default=1 << 20)
    parser.add_argument("--pause-ms", type=float, default=0.0)
    for flag in ("--inline", "--lie-about-sync", "--ack-before-sync", "--short-writes"):
        parser.add_argument(flag, action="store_true")
    die_with_parent()
    return write(Options(**vars(parser.parse_args())))


if __name__ == "__main__":
    sys.exit(main())
