"""One partition group: a journal, the indexes of its partitions, its terms. The whole engine as one object.

One owner calls it, never two at once (R8). Nothing here waits: appends and reads are plain calls on the disk, syncs and
checkpoints are tickets that the world runs elsewhere and brings back.

What always holds: visible index ≤ next index; what is visible is synced; an index that was visible names the same
bytes for ever. A refused append leaves no trace.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from lakemq.checksum import crc32
from lakemq.errors import BadParameterError, IndexOutOfRangeError, LakeMQError, ReadError, ServiceUnavailableError
from lakemq.record import stamp
from lakemq.storage import files
from lakemq.storage.disk import Buffer, Disk, Lock
from lakemq.storage.fetch import RecordSlice, fetch
from lakemq.storage.index import ENTRIES_PER_FILE, IndexDamagedError, PartitionIndex, make_entries
from lakemq.storage.index_files import IndexFileCache
from lakemq.storage.journal import Journal, SyncTicket
from lakemq.storage.journal_record import (
    HEADER_BYTES,
    NO_ADDRESS,
    RecordHeader,
    RecordType,
    is_payload_whole,
    pack_header,
    unpack_header,
)
from lakemq.storage.retention import RetentionPolicy, SegmentFacts, count_droppable
from lakemq.storage.state_file import write_state
from lakemq.storage.sync_policy import ALWAYS, SyncPolicy
from lakemq.storage.tables import Checkpoint, DamagedRange, PartitionRow, Tables, TermRow

_NEVER_MS = 1 << 62
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class StorageConfig:
    """The engine's sizes. Larger: fewer files and pauses, more memory or a longer recovery."""

    segment_bytes: int = 1 << 30  # one file of the journal; retention drops whole ones
    record_bytes_max: int = 16 << 20
    entries_per_file: int = ENTRIES_PER_FILE
    checkpoint_bytes: int = 256 << 20  # at most about this much is read again after a crash
    unsynced_bytes_max: int = 64 << 20  # more is refused until a sync has caught up
    index_pending_bytes_max: int = 16 << 20  # entries in memory before they go to files
    sync_policy: SyncPolicy = ALWAYS
    open_segments_max: int = 64
    open_index_files_max: int = 256


class Appended(NamedTuple):
    """Where messages went: visible and durable once the journal is synced up to `end_position`."""

    first_index: int
    next_index: int
    end_position: int


class CheckpointTicket:
    """One checkpoint to be made durable, off the loop."""

    __slots__ = ("_content", "_disk", "_sequence", "position")

    def __init__(self, disk: Disk, sequence: int, checkpoint: Checkpoint) -> None:
        self.position = checkpoint.position
        self._disk = disk
        self._sequence = sequence
        self._content = checkpoint.pack()

    def run(self) -> None:
        """Index files first, then the file that vouches for them (R4)."""
        self._disk.sync_all()
        write_state(self._disk, files.CHECKPOINT, self._sequence, self._content)


class _Unsynced(NamedTuple):
    end_position: int
    entries: PartitionIndex
    next_index: int
    since_ms: int


class _Undo(NamedTuple):
    entries: PartitionIndex
    pending_bytes: int
    next_index: int


@dataclass(slots=True)
class Recovered:
    """What recovery hands over."""

    journal: Journal
    indexes: dict[tuple[int, int], PartitionIndex]
    terms: list[TermRow]
    damage: list[DamagedRange]
    checkpoint_sequence: int
    checkpoint_position: int
    lock: Lock
    notes: list[str] = field(default_factory=list)


class PartitionGroup:
    """Append, read, sync and forget messages of many partitions. `recovery.open_group` makes one."""

    def __init__(self, disk: Disk, config: StorageConfig, index_files: IndexFileCache, found: Recovered) -> None:
        self._disk = disk
        self._config = config
        self._index_files = index_files
        self._journal = found.journal
        self._indexes = found.indexes
        self._terms = found.terms
        self._damage = found.damage
        self._lock = found.lock
        self._checkpoint_sequence = found.checkpoint_sequence
        self._checkpoint_position = found.checkpoint_position
        self._checkpoint_ticket: CheckpointTicket | None = None
        self._held: dict[str, int] = {}
        self._unsynced: deque[_Unsynced] = deque()
        self._undo: dict[tuple[int, int], _Undo] = {}  # as it was before this turn's appends
        self._turn_error: LakeMQError | None = None
        self._unfiled: dict[tuple[int, int], PartitionIndex] = {}  # with entries in memory
        self._unfiled_bytes = 0  # about: those of failed appends are counted until the next filing
        self.notes = found.notes  # what recovery did, for the log

    # --- asking ------------------------------------------------------------------------------------------------

    @property
    def term(self) -> int:
        """The term of the last record."""
        return self._terms[-1].term if self._terms else 0

    @property
    def terms(self) -> list[TermRow]:
        """Where each term began."""
        return list(self._terms)

    @property
    def damage(self) -> list[DamagedRange]:
        """Parts of the journal that cannot be read any more."""
        return list(self._damage)

    @property
    def journal(self) -> Journal:
        """The bytes, for those who carry them on; only the group appends."""
        return self._journal

    def partitions(self) -> list[tuple[int, int]]:
        """Every (topic, partition) that ever had a message."""
        return sorted(self._indexes)

    def next_index(self, topic: int, partition: int) -> int:
        """The index the next message will get."""
        index = self._indexes.get((topic, partition))
        return index.next_index if index is not None else 0

    def visible_index(self, topic: int, partition: int) -> int:
        """Consumers may read what is below."""
        index = self._indexes.get((topic, partition))
        return index.visible_index if index is not None else 0

    def first_index(self, topic: int, partition: int) -> int:
        """The oldest index kept; the next one if none is."""
        index = self._indexes.get((topic, partition))
        if index is None:
            return 0
        return self._first_index(index)

    def index_of_time(self, topic: int, partition: int, store_time_ms: int) -> int:
        """The first visible index stored at or after that time; the visible end if there is none."""
        index = self._indexes.get((topic, partition))
        if index is None:
            return 0
        found = self._mended(index, lambda: index.first_index_from(index.find_time(store_time_ms)))
        return min(max(found, self._first_index(index)), index.visible_index)

    # --- appending ---------------------------------------------------------------------------------------------

    def append(
        self,
        topic: int,
        partition: int,
        messages: Buffer,
        message_count: int,
        index_count: int,
        *,
        term: int,
        now_ms: int,
        client_address: bytes = NO_ADDRESS,
    ) -> Appended:
        """Give scanned messages their indexes, in place, and put them at the journal's end; `flush` writes them.

        The bytes must not change until then. Refused with an error, nothing has happened.
        """
        length = HEADER_BYTES + len(messages)
        self._check_append(term, length, now_ms)
        index = self._indexes.get((topic, partition))
        if index is None:
            index = self._new_index(topic, partition)
        first = index.next_index
        next_index = stamp(messages, 0, message_count, partition, first, term, now_ms)
        assert next_index - first == index_count, "the scan counted something else"
        position = self._put(
            RecordType.MESSAGES,
            topic,
            partition,
            messages,
            message_count,
            first,
            index_count,
            term,
            now_ms,
            client_address,
        )
        self._undo.setdefault((topic, partition), _Undo(index, index.pending_bytes, first))
        entries = make_entries(messages, 0, message_count, position + HEADER_BYTES, HEADER_BYTES, length, now_ms)
        index.add(entries, next_index)
        self._unfiled_bytes += len(entries)
        self._unsynced.append(_Unsynced(position + length, index, next_index, now_ms))
        return Appended(first, next_index, position + length)

    def append_control(
        self, kind: RecordType, payload: bytes, *, topic: int = 0, partition: int = 0, term: int, now_ms: int
    ) -> int:
        """Put a fact that is not a message at the journal's end; returns its end position."""
        assert kind not in (RecordType.MESSAGES, RecordType.TABLE)
        length = HEADER_BYTES + len(payload)
        self._check_append(term, length, now_ms)
        return self._put(kind, topic, partition, payload, 0, 0, 0, term, now_ms, NO_ADDRESS) + length

    def flush(self) -> None:
        """Write all that this turn appended with one call; on WriteError or DiskIOError none of it has happened."""
        if self._turn_error is not None:
            error, self._turn_error = self._turn_error, None
            raise error
        try:
            self._journal.flush()
        except LakeMQError:
            self._take_back()
            raise
        self._end_turn()

    # --- syncing -----------------------------------------------------------------------------------------------

    def wants_sync(self, now_ms: int) -> bool:
        """Whether the sync policy asks for one now."""
        if not self._unsynced:
            return self._journal.unsynced_bytes > 0
        waiting_ms = now_ms - self._unsynced[0].since_ms
        return self._config.sync_policy.is_due(len(self._unsynced), waiting_ms)

    def begin_sync(self) -> SyncTicket | None:
        """A ticket for all that is written, to be run off the loop; None if there is nothing to sync."""
        return self._journal.begin_sync()

    def end_sync(self, ticket: SyncTicket, error: OSError | None = None) -> list[tuple[int, int]]:
        """The ticket was run: what became visible, by (topic, partition). With an error the group is read-only (R3)."""
        self._journal.end_sync(ticket, error)
        if error is not None:
            return []
        changed: dict[tuple[int, int], None] = {}
        while self._unsynced and self._unsynced[0].end_position <= ticket.position:
            done = self._unsynced.popleft()
            key = done.entries.topic, done.entries.partition
            done.entries.visible_index = done.next_index
            changed[key] = None
            self._unfiled[key] = done.entries
        if self._unfiled_bytes > self._config.index_pending_bytes_max:
            self._file_indexes()
        return list(changed)

    # --- reading -----------------------------------------------------------------------------------------------

    def read(
        self, topic: int, partition: int, index: int, index_count: int, bytes_max: int = 1 << 20
    ) -> list[RecordSlice]:
        """Visible messages from `index` on, as stored: every one that overlaps the next `index_count` indexes.

        At least one if there is one, and no more than `bytes_max` otherwise. IndexOutOfRangeError outside of what is
        kept and visible, ReadError where the journal is damaged; nothing is given out whose CRC is wrong.
        """
        found = self._indexes.get((topic, partition))
        visible = found.visible_index if found is not None else 0
        if found is None or index >= visible or index_count <= 0:
            if index == visible or (index_count <= 0 and 0 <= index < visible):
                return []
            raise IndexOutOfRangeError(f"index {index} is not within 0 and {visible}")
        if index < self._first_index(found):
            raise IndexOutOfRangeError(f"index {index} is no longer kept; the oldest is {self._first_index(found)}")
        end_index = min(index + index_count, visible)
        return self._mended(found, lambda: fetch(self._journal, found, index, end_index, bytes_max))

    def records(self, position: int, end_position: int) -> Iterator[tuple[int, RecordHeader, memoryview]]:
        """Every whole record between two positions where records begin, damaged parts left out: for folds."""
        while position < end_position:
            header = unpack_header(self._journal.read(position, HEADER_BYTES), 0, position)
            if header is not None:
                data = self._journal.read(position, header.length)
                if is_payload_whole(header, data, 0):
                    yield position, header, memoryview(data)[HEADER_BYTES:]
                    position += header.length
                    continue
            position = self._end_of_damage(position)

    # --- checkpoints, retention, the end -----------------------------------------------------------------------

    @property
    def wants_checkpoint(self) -> bool:
        """Whether enough has been synced since the last one."""
        behind = self._journal.synced_position - self._checkpoint_position
        return behind >= self._config.checkpoint_bytes and self._checkpoint_ticket is None

    def begin_checkpoint(self, *, is_clean: bool = False) -> CheckpointTicket:
        """A ticket that makes all index entries of synced messages durable and says so."""
        assert self._checkpoint_ticket is None, "one at a time"
        self._file_indexes()
        self._checkpoint_sequence += 1
        synced = self._journal.synced_position
        rows = [
            PartitionRow(*key, index.visible_index, *index.reach())  # what is synced is visible
            for key, index in self._indexes.items()
            if index.visible_index > 0
        ]
        terms = [row for row in self._terms if row.position < synced]
        checkpoint = Checkpoint(synced, is_clean, Tables(rows, terms, self._damage))
        self._checkpoint_ticket = CheckpointTicket(self._disk, self._checkpoint_sequence, checkpoint)
        return self._checkpoint_ticket

    def end_checkpoint(self, ticket: CheckpointTicket, error: OSError | None = None) -> None:
        """The ticket was run; if it failed, the one before still holds."""
        assert ticket is self._checkpoint_ticket
        self._checkpoint_ticket = None
        if error is None:
            self._checkpoint_position = ticket.position

    def hold(self, holder: str, position: int) -> None:
        """Keep everything from `position` on, until this holder says otherwise."""
        self._held[holder] = position

    def let_go(self, holder: str) -> None:
        """This holder needs nothing any more."""
        self._held.pop(holder, None)

    def retain(self, policy: RetentionPolicy, now_ms: int) -> int:
        """Drop the segments that nobody needs and the policy does not want; returns how many went."""
        bases = self._journal.bases()
        finished = [
            SegmentFacts(base, after, self._began_ms(after)) for base, after in zip(bases, bases[1:], strict=False)
        ]
        count = count_droppable(
            finished, self._journal.end_position, policy, now_ms, self._held.values(), self._checkpoint_position
        )
        if count:
            self._drop_segments(count)
        return count

    def _began_ms(self, base: int) -> int:
        """When a segment was begun, by the table at its head; the far future if that cannot be read."""
        if base >= self._journal.written_position:
            return _NEVER_MS
        header = unpack_header(self._journal.read(base, HEADER_BYTES), 0, base)
        return header.store_time_ms if header is not None else _NEVER_MS

    def _drop_segments(self, count: int) -> None:
        for _ in range(count):
            self._journal.drop_first()
        first = self._journal.first_position
        self._damage = [one for one in self._damage if one.end > first]
        for index in self._indexes.values():
            self._mended(index, lambda index=index: index.drop_before(first))  # type: ignore[misc]

    @property
    def checkpoint_position(self) -> int:
        """All before it is vouched for by a durable checkpoint."""
        return self._checkpoint_position

    def close(self) -> None:
        """Sync, leave a clean checkpoint and give the directory back. OSError if the disk does not let us."""
        if self._journal.failure is None:
            self.flush()
            ticket = self.begin_sync()
            if ticket is not None:
                ticket.run()
                self.end_sync(ticket)
            checkpoint = self.begin_checkpoint(is_clean=True)
            checkpoint.run()
            self.end_checkpoint(checkpoint)
        self.abandon()

    def abandon(self) -> None:
        """Give files and lock back as things are."""
        self._journal.close()
        self._index_files.close()
        self._lock.release()

    # --- inside: appending -------------------------------------------------------------------------------------

    def _check_append(self, term: int, length: int, now_ms: int) -> None:
        if self._turn_error is not None:
            raise self._turn_error
        self._journal.check_writable()
        if term < self.term:
            raise BadParameterError(f"term {term} is over; the journal is at term {self.term}")
        if length > self._config.record_bytes_max:
            raise BadParameterError(f"a record of {length} bytes; {self._config.record_bytes_max} are allowed")
        if self._journal.unsynced_bytes + length > self._config.unsynced_bytes_max:
            raise ServiceUnavailableError(f"{self._journal.unsynced_bytes} bytes wait to be synced: try again")
        if not self._journal.fits(length):
            self._roll()
        if self._journal.is_at_segment_start:
            self._put_table(term, now_ms)

    def _roll(self) -> None:
        """A new segment. If it cannot be had, all of this turn fails as one, and `flush` says so too."""
        try:
            self._journal.flush()
            self._end_turn()
            self._journal.roll()
        except LakeMQError as error:
            self._take_back()
            self._turn_error = error
            raise

    def _put_table(self, term: int, now_ms: int) -> None:
        """Each segment begins with a table of everything, so that those before it can be dropped."""
        rows = [PartitionRow(*key, index.next_index) for key, index in self._indexes.items()]
        self._put(RecordType.TABLE, 0, 0, Tables(rows, list(self._terms)).pack(), 0, 0, 0, term, now_ms, NO_ADDRESS)

    def _put(
        self,
        kind: RecordType,
        topic: int,
        partition: int,
        payload: Buffer,
        message_count: int,
        first_index: int,
        index_count: int,
        term: int,
        now_ms: int,
        client_address: bytes,
    ) -> int:
        position = self._journal.end_position
        header = RecordHeader(
            HEADER_BYTES + len(payload),
            kind,
            partition,
            term,
            topic,
            message_count,
            first_index,
            index_count,
            now_ms,
            self._journal.synced_position,
            client_address,
            crc32(payload),
        )
        self._journal.append((pack_header(header, position), payload), header.length)
        if term > self.term or not self._terms:
            self._terms.append(TermRow(term, position))
        return position

    def _new_index(self, topic: int, partition: int) -> PartitionIndex:
        index = PartitionIndex(self._index_files, topic, partition, self._config.entries_per_file)
        self._indexes[topic, partition] = index
        return index

    def _take_back(self) -> None:
        for key, undo in self._undo.items():
            undo.entries.undo(undo.pending_bytes, undo.next_index)
            if undo.next_index == 0 and undo.entries.entry_count == 0:
                del self._indexes[key]
        while self._unsynced and self._unsynced[-1].end_position > self._journal.end_position:
            self._unsynced.pop()
        while self._terms and self._terms[-1].position >= self._journal.end_position:
            self._terms.pop()
        self._journal.discard()
        self._undo.clear()

    def _end_turn(self) -> None:
        self._undo.clear()

    # --- inside: indexes ---------------------------------------------------------------------------------------

    def _file_indexes(self) -> None:
        """Put the entries of synced messages into files (R4)."""
        synced = self._journal.synced_position
        for index in self._unfiled.values():
            index.flush(synced)
        self._unfiled.clear()
        self._unfiled_bytes = sum(one.entries.pending_bytes for one in self._undo.values())

    def _first_index(self, index: PartitionIndex) -> int:
        first = self._journal.first_position
        if index.known_first[0] != first:
            found = self._mended(index, lambda: index.first_index_from(index.find_position(first)))
            index.known_first = first, found
        return index.known_first[1]

    def _mended(self, index: PartitionIndex, ask: Callable[[], _T]) -> _T:
        """What `ask` says; if the index turns out to be damaged it is made again from the journal first (F22)."""
        try:
            return ask()
        except (IndexDamagedError, OSError) as error:
            self.notes.append(f"index of topic {index.topic} partition {index.partition} made again: {error}")
            self._make_again(index)
            return ask()

    def _make_again(self, index: PartitionIndex) -> None:
        self.flush()
        next_index, visible = index.next_index, index.visible_index
        index.clear()
        key = index.topic, index.partition
        for position, header, payload in self.records(self._journal.first_position, self._journal.written_position):
            if header.type == RecordType.MESSAGES and (header.topic, header.partition) == key:
                index.add(entries_of(position, header, payload), header.first_index + header.index_count)
                if index.pending_bytes > self._config.index_pending_bytes_max:
                    index.flush(self._journal.synced_position)
        index.flush(self._journal.synced_position)
        index.next_index, index.visible_index = next_index, visible

    def _end_of_damage(self, position: int) -> int:
        for one in self._damage:
            if one.start <= position < one.end:
                return one.end
        raise ReadError(f"the journal is damaged at position {position}")


def entries_of(position: int, header: RecordHeader, payload: memoryview) -> bytes:
    """The index entries of a record of messages."""
    return make_entries(
        payload, 0, header.message_count, position + HEADER_BYTES, HEADER_BYTES, header.length, header.store_time_ms
    )
