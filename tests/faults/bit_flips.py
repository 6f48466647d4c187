"""Flip one bit of a store after the other: nothing wrong is ever given out, and nothing else is lost (F21–F23).

A flipped bit of the journal hides the record it is in, and only that; one of an index or a checkpoint changes no answer
at all; one of the format file keeps the store from being opened. Most bits flip under a running group, where that is
cheap to see; every few of them in the files of one that is then started.
"""

import time
from collections import Counter
from dataclasses import dataclass, field
from random import Random

from lakemq.envelope import pack
from lakemq.errors import IndexOutOfRangeError, ReadError
from lakemq.message import BatchItem, BatchMessage, Message
from lakemq.record import scan
from lakemq.storage.config import StorageConfig
from lakemq.storage.directory import ForeignDirectoryError
from lakemq.storage.files import segment_base, segment_name
from lakemq.storage.journal_record import RecordType
from lakemq.storage.partition_group import PartitionGroup
from lakemq.storage.recovery import open_group
from lakemq.testing.content import FileNode
from lakemq.testing.disk import SimDisk
from lakemq.testing.storage_model import Key, Oracle, Stored, ViolationError

from .tools import say

KEYS: tuple[Key, ...] = ((1, 0), (1, 1), (70_000, 32_000))
RUNNING_PER_START = 9
FLIPS_PER_STORE = 500
CONFIG = StorageConfig(
    segment_bytes=4 << 10,
    record_bytes_max=2 << 10,
    entries_per_file=8,
    unsynced_bytes_max=4 << 10,
    index_pending_bytes_max=4 * 48,
    open_segments_max=3,
    open_index_files_max=4,
)


@dataclass
class Flips:
    """One store, whose bits flip."""

    seed: int
    seen: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.rng = Random(self.seed)
        self.disk = SimDisk()
        self.oracle = Oracle()
        self.group = open_group(self.disk, CONFIG)
        self.fill()

    def fill(self) -> None:
        """Some segments, a checkpoint in the middle; what comes last shows that all before it was synced."""
        for turn in range(24):
            for _ in range(self.rng.choice((1, 2, 3))):
                self.append(self.rng.choice(KEYS))
            self.sync()
            if turn == 12:
                self.checkpoint()
        self.proven = self.group.journal.synced_position
        for key in KEYS:  # so that no partition ends with what is damaged: its next index would not be known
            self.append(key)
        self.sync()

    def append(self, key: Key) -> None:
        body = self.rng.randbytes(self.rng.choice((5, 50, 200)))
        message = Message(body=body) if self.rng.random() < 0.8 else BatchMessage(items=(BatchItem(body),) * 3)
        data = bytearray(pack(message))
        count = scan(data, 0, len(data), 1).index_count
        appended = self.group.append(*key, data, 1, count, term=1, now_ms=self.oracle.next_index(key))
        self.oracle.append(key, appended, bytes(data), self.oracle.next_index(key))

    def sync(self) -> None:
        self.group.flush()
        self.oracle.flush()
        ticket = self.group.begin_sync()
        assert ticket is not None
        ticket.run()
        self.group.end_sync(ticket)
        self.oracle.sync(ticket.position)

    def checkpoint(self) -> None:
        ticket = self.group.begin_checkpoint()
        ticket.run()
        self.group.end_checkpoint(ticket)

    # --- flipping ------------------------------------------------------------------------------------------------

    def flip_running(self) -> None:
        """A bit of the journal or of an index, under the group that runs; back again afterwards."""
        directory = self.rng.choice(("journal", "index"))
        path, bit = self.draw(self.disk, directory)
        node = node_of(self.disk, path)
        node.damage(bit // 8, 1 << bit % 8)
        if directory == "journal":
            damaged = self.record_at(path, bit // 8)
            self.check_near(damaged, self.position_of(path, bit // 8))
        else:
            for key in KEYS:
                self.check_one(self.group, self.rng.choice(self.oracle.of(key)), None)
        node.damage(bit // 8, 1 << bit % 8)  # an index that was made again has new files: this one is gone then
        self.seen[f"running, {directory}"] += 1

    def flip_at_rest(self) -> None:
        """A bit of any file, of a store that is then started."""
        disk = self.disk.clone()
        if self.rng.random() < 0.3:
            open_group(disk, CONFIG).close()
        directory = self.rng.choice(("journal", "journal", "index", ""))
        path, bit = self.draw(disk, directory)
        node_of(disk, path).damage(bit // 8, 1 << bit % 8)
        damaged = self.record_at(path, bit // 8) if directory == "journal" else None
        self.seen[f"at rest, {directory or path}"] += 1
        try:
            group = open_group(disk, CONFIG)
        except ForeignDirectoryError:
            if path != "format":
                raise
            return
        if path == "format":
            raise ViolationError("a damaged format file was not noticed")
        for key in KEYS:
            if group.next_index(*key) != self.oracle.next_index(key):
                raise ViolationError(f"{key}: the next index is {group.next_index(*key)} after bit {bit} of {path}")
            for one in self.oracle.of(key):
                self.check_one(group, one, damaged)

    def draw(self, disk: SimDisk, directory: str) -> tuple[str, int]:
        """A file and a bit of it; of the journal only what is proven to be synced."""
        paths = [path for path in files_below(disk, directory) if path != "lock"]
        sizes = [node_of(disk, path).seen.size for path in paths]
        if directory == "journal":
            sizes = [min(size, max(self.proven - base_of(path), 0)) for path, size in zip(paths, sizes, strict=True)]
        (number,) = self.rng.choices(range(len(paths)), sizes)
        return paths[number], self.rng.randrange(sizes[number] * 8)

    def position_of(self, path: str, offset: int) -> int:
        return base_of(path) + offset

    def record_at(self, path: str, offset: int) -> Stored | None:
        """The record that this byte belongs to; None if it is a table's, or nobody's."""
        position = self.position_of(path, offset)
        return next((one for one in self.oracle.records if one.position <= position < one.end_position), None)

    # --- checking ------------------------------------------------------------------------------------------------

    def check_near(self, damaged: Stored | None, position: int) -> None:
        """The damaged record, and those around it."""
        near = [one for one in self.oracle.records if abs(one.position - position) < 500]
        for one in near:
            self.check_one(self.group, one, damaged)

    def check_one(self, group: PartitionGroup, one: Stored, damaged: Stored | None) -> None:
        """What was stored, or an error if it is damaged."""
        assert one.kind == RecordType.MESSAGES
        try:
            (got,) = group.read(*one.key, one.first_index, 1)
        except (ReadError, IndexOutOfRangeError) as error:
            if one != damaged:
                raise ViolationError(f"{one[:6]} cannot be read, {damaged} is damaged: {error}") from error
            return
        if one == damaged:
            raise ViolationError(f"{one[:6]} is damaged and was given out")
        if (got.first_index, got.next_index, bytes(got.messages)) != (one.first_index, one.next_index, one.payload):
            raise ViolationError(f"{one[:6]} was asked for, {got.first_index} to {got.next_index} was given out")


def node_of(disk: SimDisk, path: str) -> FileNode:
    node = disk._tree.find(path)
    assert isinstance(node, FileNode)
    return node


def base_of(path: str) -> int:
    base = segment_base(path.rpartition("/")[2])
    assert base is not None
    assert path.endswith(segment_name(base))
    return base


def files_below(disk: SimDisk, directory: str) -> list[str]:
    found = []
    for name in disk.names(directory):
        path = f"{directory}/{name}" if directory else name
        if not disk.is_dir(path):
            found.append(path)
        elif directory:
            found += files_below(disk, path)
    return found


def run_flips(count: int, seed: int) -> bool:
    """So many bits; False after a violation, whose seed is told."""
    begun, told, done = time.monotonic(), time.monotonic(), 0
    seen: Counter[str] = Counter()
    while done < count:
        flips = Flips(seed)
        try:
            for number in range(min(FLIPS_PER_STORE, count - done)):
                if number % (RUNNING_PER_START + 1) == 0:
                    flips.flip_at_rest()
                else:
                    flips.flip_running()
                done += 1
        except Exception as error:
            say(f"VIOLATION with seed {seed}: {type(error).__name__}: {error}")
            return False
        seen += flips.seen
        seed += 1
        if time.monotonic() > told + 5:
            told = time.monotonic()
            say(f"{done} of {count} bits flipped, {done / (told - begun):.0f} a second")
    say(f"{done} bits flipped in {time.monotonic() - begun:.0f} s: {dict(sorted(seen.items()))}")
    return True
