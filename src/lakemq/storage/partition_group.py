"""One partition group: a journal, the indexes of its partitions, its terms. The whole engine as one object.

One owner calls it, never two at once (R8). Nothing here waits: appends and reads are plain calls on the disk, syncs and
checkpoints are tickets that the world runs elsewhere and brings back.

What always holds: visible index ≤ next index; what is visible is synced, or with `visible_after = "write"` written; an
index that was synced names the same bytes for ever. A refused append leaves no trace. What a checkpoint says of the
fold was synced before.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from lakemq.checksum import crc32
from lakemq.errors import (
    BadParameterError,
    DiskIOError,
    IndexOutOfRangeError,
    LakeMQError,
    ReadError,
    ServiceUnavailableError,
    WriteError,
)
from lakemq.storage.checkpoint import Checkpoints, CheckpointTicket
from lakemq.storage.config import StorageConfig
from lakemq.storage.disk import Buffer, Disk, Lock
from lakemq.storage.fetch import RecordSlice, fetch, find_tag
from lakemq.storage.fold import NO_FOLD, Fold, pack_parts
from lakemq.storage.index import PartitionIndex, unpack_entry
from lakemq.storage.index_files import IndexFileCache
from lakemq.storage.indexes import Indexes, Key
from lakemq.storage.journal import Journal, SyncTicket
from lakemq.storage.journal_record import (
    HEADER_BYTES,
    MESSAGE_RECORDS,
    NO_ADDRESS,
    RecordHeader,
    RecordType,
    is_payload_whole,
    pack_header,
    unpack_header,
    with_note,
)
from lakemq.storage.message_record import make_noted_record, make_record
from lakemq.storage.retention import RetentionPolicy, SegmentFacts, count_droppable
from lakemq.storage.tables import Checkpoint, DamagedRange, Folded, Tables, TermRow
from lakemq.storage.walk import Found

MESSAGE_COUNT_MAX = 32767  # of one append: as many as an array of the wire holds
_NEVER_MS = 1 << 62
_OWN_RECORDS = MESSAGE_RECORDS | {RecordType.TABLE, RecordType.SNAPSHOT}


class Appended(NamedTuple):
    """Where messages went: durable, and visible at the latest, once the journal is synced up to `end_position`."""

    first_index: int
    next_index: int
    end_position: int


Put = tuple[PartitionIndex, bytes, int, int]
"""What records add to a partition: its index, their entries, how many messages, and the next index after them."""


class _Unsynced(NamedTuple):
    end_position: int
    entries: PartitionIndex
    next_index: int
    message_count: int
    since_ms: int


class _Undo(NamedTuple):
    entries: PartitionIndex
    pending_bytes: int
    next_index: int


@dataclass(slots=True)
class Recovered:
    """What recovery hands over."""

    journal: Journal
    indexes: dict[Key, PartitionIndex]
    terms: list[TermRow]
    damage: list[DamagedRange]
    checkpoint_sequence: int
    checkpoint_position: int
    lock: Lock
    notes: list[str] = field(default_factory=list)
    fold: Fold = NO_FOLD


class PartitionGroup:
    """Append, read, sync and forget messages of many partitions. `recovery.open_group` makes one."""

    def __init__(self, disk: Disk, config: StorageConfig, index_files: IndexFileCache, found: Recovered) -> None:
        self._config = config
        self._journal = found.journal
        self._indexes = Indexes(config, index_files, found.journal, found.indexes, found.damage)
        self._indexes.notes = found.notes
        self._terms = found.terms
        self._lock = found.lock
        self._checkpoints = Checkpoints(disk, found.checkpoint_sequence, found.checkpoint_position)
        self._fold = found.fold
        self._folded = Folded(found.journal.end_position, found.fold.snapshot())  # all it stands for is synced
        self._folded_at_sync: Folded | None = None  # the same once the sync under way has ended
        self._held: dict[str, int] = {}
        self._unsynced: deque[_Unsynced] = deque()
        self._unsynced_messages = 0
        self.shows_written = config.visible_after == "write"  # and not only once it is synced
        self._undo: dict[Key, _Undo] = {}  # as it was before this turn's appends
        self._written: dict[Key, tuple[PartitionIndex, int]] = {}  # and to be shown at the end of the turn
        self._turn_error: LakeMQError | None = None

    # --- asking ------------------------------------------------------------------------------------------------

    @property
    def journal(self) -> Journal:
        """The bytes, for those who carry them on; only the group appends."""
        return self._journal

    @property
    def term(self) -> int:
        """The term of the last record."""
        return self._terms[-1].term if self._terms else 0

    @property
    def terms(self) -> list[TermRow]:
        """Where each term began."""
        return list(self._terms)

    @property
    def record_bytes_max(self) -> int:
        """What one record may have, its header included."""
        return self._config.record_bytes_max

    @property
    def damage(self) -> list[DamagedRange]:
        """Parts of the journal that cannot be read any more."""
        return list(self._indexes.damage)

    @property
    def notes(self) -> list[str]:
        """What recovery and mending did, for the log."""
        return self._indexes.notes

    def partitions(self) -> list[Key]:
        """Every (topic, partition) that ever had a message."""
        return self._indexes.keys()

    def next_index(self, topic: int, partition: int) -> int:
        """The index the next message will get."""
        index = self._indexes.get((topic, partition))
        return index.next_index if index is not None else 0

    def visible_index(self, topic: int, partition: int) -> int:
        """Consumers may read what is below."""
        index = self._indexes.get((topic, partition))
        return index.visible_index if index is not None else 0

    def synced_index(self, topic: int, partition: int) -> int:
        """A power cut leaves what is below: as far as the visible index, unless that moves sooner."""
        index = self._indexes.get((topic, partition))
        return index.synced_index if index is not None else 0

    def first_index(self, topic: int, partition: int) -> int:
        """The oldest index kept; the next one if none is."""
        index = self._indexes.get((topic, partition))
        return self._indexes.first_index(index) if index is not None else 0

    def index_of_time(self, topic: int, partition: int, store_time_ms: int) -> int:
        """The first visible index stored at or after that time; the visible end if there is none."""
        index = self._indexes.get((topic, partition))
        if index is None:
            return 0
        found = self._indexes.mended(index, lambda: index.first_index_from(index.find_time(store_time_ms)))
        return min(max(found, self._indexes.first_index(index)), index.visible_index)

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
        note: bytes | None = None,
    ) -> Appended:
        """Give scanned messages their indexes, in place, and put them at the journal's end; `flush` writes them.

        The bytes must not change until then. Refused with an error, nothing has happened. With a note the record is a
        NOTED one, and the bytes are copied.
        """
        make = make_record
        if note is not None:
            messages, make = with_note(note, messages), make_noted_record
        length = HEADER_BYTES + len(messages)
        if message_count > MESSAGE_COUNT_MAX:
            raise BadParameterError(f"{message_count} messages in one append; {MESSAGE_COUNT_MAX} are allowed")
        self._check_append(term, length, now_ms, is_control=False)
        key = topic, partition
        index = self._indexes.get_or_make(key)
        first = index.next_index
        if key not in self._undo:
            self._undo[key] = _Undo(index, index.pending_bytes, first)
        journal = self._journal
        position = journal.end_position
        header, entries, next_index = make(
            messages,
            message_count,
            partition,
            first,
            term,
            now_ms,
            topic,
            position,
            journal.synced_position,
            client_address,
        )
        assert next_index - first == index_count, "the scan counted something else"
        end = position + length
        journal.append((header, messages), length)
        if not self._terms or term > self._terms[-1].term:
            self._terms.append(TermRow(term, position))
        self._indexes.add(index, entries, next_index)
        self._unsynced.append(_Unsynced(end, index, next_index, message_count, now_ms))
        self._unsynced_messages += message_count
        return Appended(first, next_index, end)

    def index_of(self, topic: int, partition: int) -> PartitionIndex | None:
        """The index of a partition that has messages, for `put`."""
        return self._indexes.get((topic, partition))

    def room_for(self, size: int, term: int) -> bool:
        """Whether records of messages with that many bytes in all can be added by `put`; False: take `append`."""
        journal, terms, config = self._journal, self._terms, self._config
        return (
            self._turn_error is None
            and bool(terms)
            and terms[-1].term == term
            and size <= config.record_bytes_max
            and journal.end_position - journal.synced_position + size <= config.unsynced_bytes_max
            and journal.has_room(size)
        )

    def put(self, buffers: list[Buffer], size: int, changes: Iterable[Put], now_ms: int) -> None:
        """Add records that were made for the journal's end, after `room_for`: their bytes, and what they change."""
        self._journal.put(buffers, size)
        end = self._journal.end_position
        for index, entries, message_count, next_index in changes:
            key = index.topic, index.partition
            if key not in self._undo:
                self._undo[key] = _Undo(index, index.pending_bytes, index.next_index)
            self._indexes.add(index, entries, next_index)
            unsynced = end, index, next_index, message_count, now_ms
            self._unsynced.append(tuple.__new__(_Unsynced, unsynced))  # half the time of _Unsynced(…)
            self._unsynced_messages += message_count

    def append_control(
        self, kind: RecordType, payload: bytes, *, topic: int = 0, partition: int = 0, term: int, now_ms: int
    ) -> int:
        """Put a fact that is not a message at the journal's end; returns its end position.

        It may use the room that messages leave in a segment (`control_reserve_bytes`): facts go on for a while when a
        full disk takes no messages any more.
        """
        assert kind not in _OWN_RECORDS, "these are the engine's own"
        length = HEADER_BYTES + len(payload)
        self._check_append(term, length, now_ms, is_control=True)
        return self._put(payload, kind, term, now_ms, topic=topic, partition=partition) + length

    def make_room(self, size: int, term: int, now_ms: int) -> None:
        """See to it that so many bytes of records go into one segment, one after the other; refused as an append is."""
        self._check_append(term, size, now_ms, is_control=False)

    def flush(self) -> list[Key]:
        """Write all that this turn appended with one call; what became visible by that, by (topic, partition).

        On WriteError or DiskIOError what lies behind the journal's `written_position` has not happened. That is all of
        the turn, unless a segment ended within it.
        """
        if self._turn_error is not None:
            error, self._turn_error = self._turn_error, None
            self._show_written()
            raise error
        try:
            self._journal.flush()
        except LakeMQError:
            self._take_back()
            self._show_written()
            raise
        self._note_written()
        self._show_written()
        shown, self._written = self._written, {}
        return list(shown)

    # --- syncing -----------------------------------------------------------------------------------------------

    @property
    def unsynced_messages(self) -> int:
        """How many messages wait for a sync."""
        return self._unsynced_messages

    def wants_sync(self, now_ms: int) -> bool:
        """Whether the sync policy asks for one now."""
        if not self._unsynced:
            return self._journal.unsynced_bytes > 0
        waiting_ms = now_ms - self._unsynced[0].since_ms
        # A wall clock that was set back must not put syncs off: whoever waits for one would wait as long (F41).
        return waiting_ms < 0 or self._config.sync_policy.is_due(self._unsynced_messages, waiting_ms)

    def begin_sync(self) -> SyncTicket | None:
        """A ticket for all that is written, to be run off the loop; None if there is nothing to sync.

        Call it between turns: then it takes a snapshot of the fold along when a checkpoint will want one.
        """
        ticket = self._journal.begin_sync()
        if ticket is not None and self._wants_snapshot(ticket.position):
            self._folded_at_sync = Folded(ticket.position, self._fold.snapshot())
        return ticket

    def end_sync(self, ticket: SyncTicket, error: OSError | None = None) -> list[Key]:
        """The ticket was run: what became visible, by (topic, partition). With an error the group is read-only (R3),
        but for one that came before anything was synced (`is_not_begun`): then the next ticket has it all.
        """
        is_turn_under_way = self._journal.end_position > self._journal.written_position
        self._journal.end_sync(ticket, error)
        folded, self._folded_at_sync = self._folded_at_sync, None
        if error is not None and self._journal.failure is None:
            return []
        if error is not None:
            if is_turn_under_way:  # what it appended is not written: its flush must say so
                self._turn_error = DiskIOError(str(self._journal.failure))
            self._take_back()
            return []
        if folded is not None:
            self._folded = folded
        changed: dict[Key, None] = {}
        while self._unsynced and self._unsynced[0].end_position <= ticket.position:
            done = self._unsynced.popleft()
            self._unsynced_messages -= done.message_count
            key = self._indexes.synced(done.entries, done.next_index)
            if key is not None:
                changed[key] = None
        self._indexes.file_if_many()
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
        first = self._indexes.first_index(found) if found is not None else 0
        visible = found.visible_index if found is not None else 0
        if not first <= index <= visible:
            raise IndexOutOfRangeError(f"index {index} is not within {first} and {visible}")
        if found is None or index == visible or index_count <= 0:
            return []
        end_index = min(index + index_count, visible)
        return self._indexes.mended(found, lambda: fetch(self._journal, found, index, end_index, bytes_max))

    def find_tag(
        self, topic: int, partition: int, index: int, end_index: int, hashes: frozenset[int], count_max: int
    ) -> int:
        """The first index from `index` on whose tag may be one of these, as far as the index alone can tell.

        `end_index` if there is none before it; where the look ended if it would take more than `count_max` entries.
        """
        found = self._indexes.get((topic, partition))
        if found is None:
            return end_index
        return self._indexes.mended(found, lambda: find_tag(found, index, end_index, hashes, count_max))

    def locate(self, topic: int, partition: int, index: int) -> int:
        """Where the record begins that has that message; ReadError if it is gone or damaged."""
        found = self._indexes.get((topic, partition))
        if found is None or not self._indexes.first_index(found) <= index < found.next_index:
            raise ReadError(f"index {index} of topic {topic} partition {partition} is not kept")
        entry = self._indexes.mended(found, lambda: unpack_entry(found.read(found.find(index), 1), 0))
        if not entry.first_index <= index < entry.next_index:
            raise ReadError(f"index {index} is in a damaged part of the journal")
        return entry.record_position

    def position_from(self, topic: int, partition: int, index: int) -> int | None:
        """Where the record begins that has that message, or the first kept one behind it; None if there is none."""
        found = self._indexes.get((topic, partition))
        if found is None:
            return None
        index = max(index, self._indexes.first_index(found))
        if index >= found.next_index:
            return None
        try:
            data = self._indexes.mended(found, lambda: found.read(found.find(index), 1))
        except (ReadError, ServiceUnavailableError):  # nobody can tell: it may be anywhere
            return self._journal.first_position
        return unpack_entry(data, 0).record_position if data else None

    def read_record(self, position: int) -> tuple[RecordHeader, memoryview]:
        """The written record that begins there, with its payload; ReadError if there is no whole one."""
        head = self._journal.read(position, HEADER_BYTES)
        header = unpack_header(head, 0, position)
        if header is None:
            raise ReadError(f"no record begins at position {position}")
        data = self._journal.read(position, header.length)
        if not is_payload_whole(header, data, 0):
            raise ReadError(f"the record at position {position} is damaged")
        return header, memoryview(data)[HEADER_BYTES:]

    def records(self, position: int, end_position: int) -> Iterator[Found]:
        """Every whole record between two positions where records begin, damaged parts left out."""
        return self._indexes.records(position, end_position)

    # --- checkpoints, retention, the end -----------------------------------------------------------------------

    @property
    def wants_checkpoint(self) -> bool:
        """Whether enough has been synced since the last one."""
        if self._checkpoints.is_busy or self._journal.failure is not None:
            return False
        return self._foldable_position - self._checkpoints.position >= self._config.checkpoint_bytes

    @property
    def checkpoint_position(self) -> int:
        """All before it is vouched for by a durable checkpoint, which also has a snapshot of what was made of it."""
        return self._checkpoints.position

    def begin_checkpoint(self, *, is_clean: bool = False) -> CheckpointTicket:
        """A ticket that makes all index entries of synced messages durable and says so; only between turns.

        It holds a snapshot of the fold: of now, if all is synced, else the last one of which all is. Never after a
        failed sync, when nobody knows what is where: DiskIOError. OSError if the disk is full.
        """
        assert self._is_between_turns, "a turn is under way: flush first"
        self._journal.check_writable()
        self._indexes.file()
        synced = self._journal.synced_position
        if self._folded.position < self._foldable_position:
            self._folded = Folded(synced, self._fold.snapshot())
        terms = [row for row in self._terms if row.position < synced]
        tables = Tables(self._indexes.synced_rows(), terms, self._indexes.damage)
        folded = None if self._fold is NO_FOLD else self._folded
        return self._checkpoints.begin(Checkpoint(synced, is_clean, tables, folded), self._indexes.take_written())

    def end_checkpoint(self, ticket: CheckpointTicket, error: OSError | None = None) -> None:
        """The ticket was run; if it failed, the one before still holds."""
        self._checkpoints.end(ticket, error)

    def hold(self, holder: str, position: int) -> None:
        """Keep everything from `position` on, until this holder says otherwise."""
        self._held[holder] = position

    def let_go(self, holder: str) -> None:
        """This holder needs nothing any more."""
        self._held.pop(holder, None)

    def held(self, holder: str) -> int:
        """From where on this holder keeps everything; 0 if it never said."""
        return self._held.get(holder, 0)

    def wanted_position(self, policy: RetentionPolicy, now_ms: int, holder: str) -> int:
        """Up to where segments would go if it were not for that holder."""
        others = [position for name, position in self._held.items() if name != holder]
        count = self._count_droppable(policy, now_ms, others)
        return self._journal.bases()[count]

    def _count_droppable(self, policy: RetentionPolicy, now_ms: int, held: Iterable[int]) -> int:
        bases = self._journal.bases()
        finished = [SegmentFacts(base, after, self._began_ms(after)) for base, after in pairwise(bases)]
        return count_droppable(finished, self._journal.end_position, policy, now_ms, held, self._checkpoints.position)

    def retain(self, policy: RetentionPolicy, now_ms: int) -> int:
        """Drop the segments that nobody needs and the policy does not want; returns how many went."""
        count = self._count_droppable(policy, now_ms, self._held.values())
        for _ in range(count):
            self._journal.drop_first()
        if count:
            self._indexes.drop_before(self._journal.first_position)
        return count

    def close(self) -> None:
        """Sync, leave a clean checkpoint and give the directory back, also with the OSError of a disk that fails."""
        try:
            if self._journal.failure is None:
                self._finish()
        finally:
            self.abandon()

    def _finish(self) -> None:
        self.flush()
        ticket = self.begin_sync()
        if ticket is not None:
            ticket.run()
            self.end_sync(ticket)
        if self._checkpoints.is_busy:  # nobody brought its ticket back: the next start reads a little more
            return
        checkpoint = self.begin_checkpoint(is_clean=True)
        checkpoint.run()
        self.end_checkpoint(checkpoint)

    def abandon(self) -> None:
        """Give files and lock back as things are."""
        self._journal.close()
        self._indexes.close()
        self._lock.release()

    # --- inside ------------------------------------------------------------------------------------------------

    @property
    def _is_between_turns(self) -> bool:
        """Whether all that was appended is written, and the fold is as far as the journal."""
        return self._journal.end_position == self._journal.written_position and self._turn_error is None

    @property
    def _foldable_position(self) -> int:
        """How far a checkpoint begun now would spare a start from reading."""
        synced = self._journal.synced_position
        is_all_synced = self._journal.end_position == synced
        return synced if is_all_synced or self._fold is NO_FOLD else self._folded.position

    def _wants_snapshot(self, position: int) -> bool:
        """Whether a checkpoint is due once the journal is synced up to there, and has no snapshot yet."""
        if self._fold is NO_FOLD or not self._is_between_turns:
            return False
        return position - max(self._folded.position, self._checkpoints.position) >= self._config.checkpoint_bytes

    def _check_append(self, term: int, length: int, now_ms: int, *, is_control: bool) -> None:
        journal, config = self._journal, self._config
        if self._turn_error is not None:
            raise self._turn_error
        if journal.failure is not None:
            journal.check_writable()
        if self._terms and term < self._terms[-1].term:
            raise BadParameterError(f"term {term} is over; the journal is at term {self.term}")
        if length > config.record_bytes_max:
            raise BadParameterError(f"a record of {length} bytes; {config.record_bytes_max} are allowed")
        if journal.end_position - journal.synced_position + length > config.unsynced_bytes_max:
            raise ServiceUnavailableError(f"{journal.unsynced_bytes} bytes wait to be synced: try again")
        if not journal.is_at_segment_start and not journal.fits(length, may_use_reserve=is_control):
            self._roll()
        if journal.is_at_segment_start:
            self._put_head(term, length, now_ms)

    def _roll(self) -> None:
        """A new segment. Without room for one this append is refused, and the turn goes on in the old one.

        If what the turn has appended so far cannot be written, all of it fails as one, and `flush` says so too.
        """
        end = self._journal.end_position
        try:
            self._journal.roll()
        except LakeMQError as error:
            if self._journal.end_position < end or self._journal.failure is not None:
                self._take_back()
                self._turn_error = error
            raise
        self._note_written()

    def _note_written(self) -> None:
        """What was appended can be taken back no more."""
        if self.shows_written:
            for key, undo in self._undo.items():
                self._written[key] = undo.entries, undo.entries.next_index
        self._undo.clear()

    def _show_written(self) -> None:
        for index, next_index in self._written.values():
            index.visible_index = max(index.visible_index, next_index)

    def _put_head(self, term: int, length: int, now_ms: int) -> None:
        """Each segment begins with all that is known, so that those before it can be dropped.

        It goes with the record of `length` bytes behind it: if both do not fit, neither is there.
        """
        table = Tables(self._indexes.rows(), list(self._terms)).pack()
        if not self._journal.fits(HEADER_BYTES + len(table) + length, may_use_reserve=True):
            raise BadParameterError(f"a record of {length} bytes does not fit a segment behind its table")
        parts = self._parts_of_snapshot(HEADER_BYTES + len(table) + length)
        self._put_table(table, term, now_ms)
        for part in parts:
            self._put(part, RecordType.SNAPSHOT, term, now_ms)

    def _parts_of_snapshot(self, other_bytes: int) -> list[bytes]:
        """The fold's snapshot as records, if a segment has room for it beside so many other bytes.

        It counts as unsynced as all others do: recovery looks no further than that for what a torn tail may be.
        """
        snapshot = self._fold.snapshot()
        try:
            parts = pack_parts(snapshot, self._config.record_bytes_max)
        except ValueError as error:
            raise WriteError(f"{error}: raise record_bytes_max") from error
        size = sum(HEADER_BYTES + len(part) for part in parts)
        if not parts:
            return parts
        room = min(self._config.segment_bytes, self._config.unsynced_bytes_max)
        if other_bytes + size > room:
            text = f"a snapshot of {len(snapshot)} bytes does not fit the head of a segment: {room} bytes are allowed"
            raise WriteError(f"{text} in all; raise segment_bytes and unsynced_bytes_max")
        if self._journal.unsynced_bytes + other_bytes + size > self._config.unsynced_bytes_max:
            raise ServiceUnavailableError(f"{self._journal.unsynced_bytes} bytes wait to be synced: try again")
        return parts

    def _put_table(self, table: bytes, term: int, now_ms: int) -> None:
        """How far every partition and term has come."""
        self._put(table, RecordType.TABLE, term, now_ms)

    def _put(
        self,
        payload: Buffer,
        kind: RecordType,
        term: int,
        now_ms: int,
        *,
        topic: int = 0,
        partition: int = 0,
    ) -> int:
        """A record that is not of messages."""
        position = self._journal.end_position
        length = HEADER_BYTES + len(payload)
        header = RecordHeader(
            length,
            kind,
            partition,
            term,
            topic,
            0,
            0,
            0,
            now_ms,
            self._journal.synced_position,
            NO_ADDRESS,
            crc32(payload),
        )
        self._journal.append((pack_header(header, position), payload), length)
        if not self._terms or term > self._terms[-1].term:
            self._terms.append(TermRow(term, position))
        return position

    def _take_back(self) -> None:
        """Undo this turn's appends, none of which is written."""
        self._journal.discard()
        for key, undo in self._undo.items():
            undo.entries.undo(undo.pending_bytes, undo.next_index)
            if undo.entries.next_index == 0:
                self._indexes.forget(key)
        self._undo.clear()
        end = self._journal.end_position
        while self._unsynced and self._unsynced[-1].end_position > end:
            self._unsynced_messages -= self._unsynced.pop().message_count
        while self._terms and self._terms[-1].position >= end:
            self._terms.pop()

    def _began_ms(self, base: int) -> int:
        """When a segment was begun, by the table at its head; the far future if that cannot be told."""
        if base >= self._journal.written_position:
            return _NEVER_MS
        try:
            header = unpack_header(self._journal.read(base, HEADER_BYTES), 0, base)
        except (ReadError, ServiceUnavailableError):
            return _NEVER_MS
        return header.store_time_ms if header is not None else _NEVER_MS
