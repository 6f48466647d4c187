"""A storage engine for tests: tiny sizes, so that everything happens often, and an oracle that is told all of it."""

from random import Random
from typing import NamedTuple

from lakemq.envelope import pack
from lakemq.message import BatchItem, BatchMessage, Message
from lakemq.record import scan
from lakemq.storage.config import StorageConfig
from lakemq.storage.files import segment_name
from lakemq.storage.index import ENTRY_BYTES
from lakemq.storage.journal_record import RecordType
from lakemq.storage.recovery import open_group
from lakemq.storage.retention import RetentionPolicy
from lakemq.testing.disk import SimDisk
from lakemq.testing.storage_model import Oracle, read_all

__all__ = ["TINY", "A", "B", "C", "Engine", "Oracle", "block", "indexes", "read_all", "run_sync", "segment_path"]

A, B, C = (1, 0), (1, 1), (70_000, 32_000)
"""Some partitions, by topic number and partition."""

TINY = StorageConfig(
    segment_bytes=8 << 10,
    record_bytes_max=2 << 10,
    entries_per_file=8,
    checkpoint_bytes=6 << 10,
    unsynced_bytes_max=20 << 10,
    index_pending_bytes_max=4 * ENTRY_BYTES,
    open_segments_max=3,
    open_index_files_max=4,
)


class Block(NamedTuple):
    """Messages as a request brings them."""

    data: bytearray
    message_count: int
    index_count: int


def block(*bodies, attributes=None):
    """A message of each body; a tuple of bodies is a batch."""
    data = bytearray()
    for body in bodies:
        if isinstance(body, tuple):
            data += pack(BatchMessage(items=tuple(BatchItem(body=each) for each in body)))
        else:
            data += pack(Message(body=body, attributes=attributes or {}))
    return Block(data, len(bodies), scan(data, 0, len(data), len(bodies)).index_count)


def segment_path(base):
    return f"journal/{segment_name(base)}"


def run_sync(group):
    """Sync all that is written; what became visible."""
    ticket = group.begin_sync()
    if ticket is None:
        return []
    ticket.run()
    return group.end_sync(ticket)


def indexes(slices):
    """From where to where each slice goes."""
    return [(one.first_index, one.next_index) for one in slices]


class Engine:
    """A partition group on some disk through its lives; the oracle hears of everything."""

    def __init__(self, disk=None, config=TINY):
        self.disk = disk or SimDisk()
        self.config = config
        self.oracle = Oracle(config.visible_after)
        self.now_ms, self.term = 1_000_000, 1
        self.open()

    # Lives.

    def open(self, *, is_power_lost=False):
        self.group = open_group(self.disk, self.config)
        self.oracle.check_recovered(self.group, is_power_lost=is_power_lost)

    def close_and_open(self):
        self.group.close()
        self.open()

    def kill(self):
        """Lose the process and start again; a real disk cannot tell, so files and lock are given back."""
        if isinstance(self.disk, SimDisk):
            self.disk.lose_process()
        else:
            self.group.abandon()
        self.open()

    def lose_power(self, seed=0, mode=None):
        self.disk.lose_power(Random(seed), mode=mode)
        self.open(is_power_lost=True)

    def check(self, **limits):
        self.oracle.check(self.group, **limits)

    # Work.

    def append(self, key, *bodies, **details):
        """Append one record, not flushed yet."""
        made = block(*bodies)
        self.now_ms += 10
        appended = self.group.append(*key, *made, term=self.term, now_ms=self.now_ms, **details)
        self.oracle.append(key, appended, bytes(made.data), self.now_ms)
        return self.oracle.records[-1]

    def append_control(self, kind, payload, key=(0, 0)):
        self.now_ms += 10
        topic, partition = key
        end = self.group.append_control(
            kind, payload, topic=topic, partition=partition, term=self.term, now_ms=self.now_ms
        )
        self.oracle.append_control(key, kind, end, payload, self.now_ms)
        return self.oracle.records[-1]

    def flush(self):
        self.group.flush()
        self.oracle.flush()

    def sync(self):
        changed = run_sync(self.group)
        self.oracle.sync(self.group.journal.synced_position)
        return changed

    def put(self, key, *bodies):
        """Append one record, flush and sync."""
        stored = self.append(key, *bodies)
        self.flush()
        self.sync()
        return stored

    def put_many(self, count, *, keys=(A,), body_bytes=0):
        """As many records, spread over the partitions, each synced."""
        return [self.put(keys[nth % len(keys)], b"%d " % nth + b"x" * body_bytes) for nth in range(count)]

    def fill_segment(self, key=A):
        """Up to where a record of 1000 bytes no longer fits."""
        while self.group.journal.fits(1300):
            self.put(key, b"f" * 900)

    def checkpoint(self):
        ticket = self.group.begin_checkpoint()
        ticket.run()
        self.group.end_checkpoint(ticket)

    def drop(self, segment_count):
        """Let only so many finished segments be kept, with a checkpoint before so that they may go."""
        self.checkpoint()
        dropped = self.group.retain(RetentionPolicy(size_bytes=segment_count * self.config.segment_bytes), self.now_ms)
        self.oracle.drop(self.group.journal.first_position)
        return dropped

    # Looking.

    def read(self, key, index, index_count=1, bytes_max=1 << 20):
        return self.group.read(*key, index, index_count, bytes_max)

    def bodies(self, key, index, index_count=1, bytes_max=1 << 20):
        """What is read, as one run of bytes."""
        return b"".join(bytes(one.messages) for one in self.read(key, index, index_count, bytes_max))

    @property
    def table_kinds(self):
        """The types of all records in the journal, in order."""
        journal = self.group.journal
        return [RecordType(one.header.type) for one in self.group.records(journal.first_position, journal.end_position)]
