"""From the files that a crash left to a group that can serve.

Starts from the checkpoint, or from the oldest segment's table if there is none that holds, and walks over what was
written since. Where records end there is either the torn tail of a crash, which is cut, or damage: a later record
proves that these bytes were synced, and they are noted and left out. May itself be killed at any point (R12).
The fold is told a snapshot, and then each record behind it.
Nothing unknown or damaged is deleted: it goes to the quarantine (R7).
"""

from collections.abc import Callable

from lakemq.storage import files
from lakemq.storage.config import StorageConfig
from lakemq.storage.directory import ForeignDirectoryError, begin, is_new
from lakemq.storage.disk import Disk, File, Lock
from lakemq.storage.fold import NO_FOLD, Fold, Refolding
from lakemq.storage.index import PartitionIndex
from lakemq.storage.index_files import IndexFileCache
from lakemq.storage.indexes import entries_of
from lakemq.storage.journal import NO_ROOM, Journal
from lakemq.storage.journal_record import (
    HEADER_BYTES,
    MESSAGE_RECORDS,
    SURVIVES_BAD_SECTORS,
    RecordHeader,
    RecordType,
    unpack_header,
)
from lakemq.storage.partition_group import PartitionGroup, Recovered
from lakemq.storage.state_file import read_state
from lakemq.storage.tables import Checkpoint, DamagedRange, Tables, TermRow
from lakemq.storage.walk import Found, Segment, Walk, first_indexes_of

_KEPT_TAIL_BYTES = 64 << 20
_REWRITE_BYTES = 8 << 20


def open_group(disk: Disk, config: StorageConfig | None = None, fold: Fold = NO_FOLD) -> PartitionGroup:
    """Recover a data directory, or begin an empty one. The fold is as far as the journal when this returns.

    ForeignDirectoryError or DirectoryLockedError leave it as it was (F07); OSError means the disk does not let us.
    """
    config = config or StorageConfig()
    begins = is_new(disk)
    lock = disk.lock(files.LOCK)
    try:
        if begins:
            begin(disk)
        else:
            disk.sync_dir("")  # what an earlier start named before it was killed is seen, and perhaps not durable
        recovery = _Recovery(disk, config, fold)
        try:
            return recovery.run(lock)
        except BaseException:
            recovery.close()
            raise
    except BaseException:
        lock.release()
        raise


class _Recovery:
    """One recovery, step by step, and what the records walked over so far add up to."""

    def __init__(self, disk: Disk, config: StorageConfig, fold: Fold) -> None:
        self._disk = disk
        self._config = config
        self._fold = fold
        self._refolding = Refolding(fold)
        self._index_files = IndexFileCache(disk, config.open_index_files_max)
        self._notes: list[str] = []
        self._segments: list[Segment] = []
        self._files: dict[int, File] = {}  # of the segments, by base
        self._indexes: dict[tuple[int, int], PartitionIndex] = {}
        self._terms: list[TermRow] = []
        self._damage: list[DamagedRange] = []
        self._has_table = False  # without one, a partition's first record tells its first index
        self._synced_position = 0  # as the newest record or checkpoint claims it
        self._pending_bytes = 0
        self._journal: Journal | None = None

    def run(self, lock: Lock) -> PartitionGroup:
        """Everything, up to a new checkpoint."""
        journal = self._journal = Journal(
            self._disk,
            segment_bytes=self._config.segment_bytes,
            reserve_bytes=self._config.reserve_bytes,
            open_files_max=self._config.open_segments_max,
            maps_files=self._config.maps_segments and SURVIVES_BAD_SECTORS,
        )
        state = read_state(self._disk, files.CHECKPOINT)
        checkpoint = self._usable(state)
        self._find_segments()
        if self._segments:
            if checkpoint is not None and not self._speaks_of_this_journal(checkpoint):
                checkpoint = None
            if checkpoint is not None and any(map(self._is_readable_again, checkpoint.tables.damage)):
                self._notes.append("a part of the journal that was damaged can be read again: everything is read anew")
                checkpoint = None
            self._recover(journal, checkpoint)
            if self._refolding.misses_facts and self._fold is not NO_FOLD:
                self._notes.append("the state made from the journal may be missing facts that lay in its damaged parts")
        elif checkpoint is not None and checkpoint.position > 0:
            raise ForeignDirectoryError("the checkpoint knows of a journal, but there is no segment: restore them")
        else:
            journal.create(0)
            self._refolding.begin(0)
        group = PartitionGroup(
            self._disk,
            self._config,
            self._index_files,
            Recovered(
                journal,
                self._indexes,
                self._terms,
                self._damage,
                checkpoint_sequence=state[0] if state is not None else 0,
                checkpoint_position=self._covered_position(checkpoint),
                lock=lock,
                notes=self._notes,
                fold=self._fold,
            ),
        )
        self._write_checkpoint(group)
        return group

    def _covered_position(self, checkpoint: Checkpoint | None) -> int:
        """Up to where the next start could do without the journal."""
        if checkpoint is None or (checkpoint.folded is None and self._fold is not NO_FOLD):
            return 0
        return checkpoint.covered_position

    def _write_checkpoint(self, group: PartitionGroup) -> None:
        """So that the next start is shorter, and the end of this run is not taken for a clean one."""
        try:
            ticket = group.begin_checkpoint()
            try:
                ticket.run()
            except OSError as error:
                group.end_checkpoint(ticket, error)
                raise
            group.end_checkpoint(ticket)
        except OSError as error:  # on a full disk there is still much to read
            self._notes.append(f"no checkpoint could be written: {error}")

    def close(self) -> None:
        """Give all files back after a start that failed."""
        for file in self._files.values():
            file.close()
        self._index_files.close()
        if self._journal is not None:
            self._journal.close()

    # --- what is there -----------------------------------------------------------------------------------------

    def _usable(self, state: tuple[int, bytes] | None) -> Checkpoint | None:
        try:
            return Checkpoint.unpack(state[1]) if state is not None else None
        except ValueError as error:
            self._notes.append(f"checkpoint not usable: {error}")
            return None

    def _speaks_of_this_journal(self, checkpoint: Checkpoint) -> bool:
        if checkpoint.position >= self._segments[0].base:
            return True
        self._notes.append(f"checkpoint at position {checkpoint.position} is from before this journal: not used")
        return False

    def _is_readable_again(self, damage: DamagedRange) -> bool:
        """Whether whole records fill a range that was noted as damaged: a disk's error may pass."""
        position = damage.start
        for found in Walk(self._segments, search_bytes=0).records(position):
            position = found.position + found.header.length
            if position >= damage.end:
                break
        return position == damage.end

    def _find_segments(self) -> None:
        bases = []
        for name in self._disk.names(files.JOURNAL_DIRECTORY):
            base = files.segment_base(name)
            if base is None:
                self._quarantine(f"{files.JOURNAL_DIRECTORY}/{name}", "not a segment's name")
            else:
                bases.append(base)
        for base in bases:
            self._files[base] = self._disk.open(f"{files.JOURNAL_DIRECTORY}/{files.segment_name(base)}")
        self._forget_cached_tail()
        for number, (base, file) in enumerate(self._files.items()):
            end = base + file.size()
            if number + 1 < len(bases):
                end = min(end, bases[number + 1])  # a finished segment may not have been shortened
            self._segments.append(Segment(base, end, file, base + file.data_end()))

    def _forget_cached_tail(self) -> None:
        """What a failed sync left in memory only must not be believed; writing it again does not save it (F16)."""
        end = max((base + file.data_end() for base, file in self._files.items()), default=0)
        doubtful = end - self._config.unsynced_bytes_max - self._config.record_bytes_max
        for base, file in self._files.items():
            if base + file.size() > doubtful:
                file.forget_cached(max(doubtful - base, 0))

    # --- the steps ---------------------------------------------------------------------------------------------

    def _recover(self, journal: Journal, checkpoint: Checkpoint | None) -> None:
        start = self._segments[0].base
        if checkpoint is None:
            self._forget_indexes(set())
            self._refolding.begin(start)
        else:
            self._take_over(checkpoint)
            start = checkpoint.position
            self._fold_up_to(checkpoint)
        if start > self._segments[-1].end:
            self._go_on_behind_what_is_lost(journal, start)
            return
        end = self._walk(start, None, start, self._is_next, self._add)
        if self._refolding.position > end:
            self._fold_again(end)
        end = self._end_without_half_a_head(start, end)
        kept = self._cut_tail(end)
        self._make_durable(kept, end)
        for file in self._files.values():
            file.close()
        journal.attach([segment.base for segment in kept], end)
        for index in self._indexes.values():
            index.visible_index = index.synced_index = index.next_index
            self._file(index, end)

    def _fold_up_to(self, checkpoint: Checkpoint) -> None:
        """Begin with the checkpoint's snapshot, or with the oldest one there is, and go on to its position."""
        oldest, folded = self._segments[0].base, checkpoint.folded
        if self._fold is NO_FOLD:
            self._refolding.begin(checkpoint.position)
        elif folded is None or folded.position < oldest:
            self._refolding.begin(oldest)
        else:
            self._refolding.begin_with(folded)
        if self._refolding.position < checkpoint.position:
            proven = checkpoint.position
            self._walk(self._refolding.position, checkpoint.position, proven, None, self._refolding.add)

    def _fold_again(self, end: int) -> None:
        """The checkpoint's snapshot knows of records that are not there: it is not used."""
        self._notes.append(f"the checkpoint's snapshot is from behind the journal's end at {end}: not used")
        self._refolding.begin(self._segments[0].base)
        self._walk(self._segments[0].base, end, end, None, self._refolding.add)

    def _end_without_half_a_head(self, start: int, end: int) -> int:
        """A segment's head that a crash cut short is made again, whole: what is before it may be dropped one day.

        It holds nothing that is not known from before, unless it is the oldest: that one was synced once, and stays.
        """
        half = self._refolding.half_head()
        if half is None or half < start or half == self._segments[0].base:
            return end
        while self._terms and self._terms[-1].position >= half:
            self._terms.pop()
        return half

    def _go_on_behind_what_is_lost(self, journal: Journal, position: int) -> None:
        """The checkpoint vouches for more than there is: segments are gone. Their indexes are never given out again."""
        last = self._segments[-1]
        end = self._walk(last.base, None, 0, None, lambda found: None)
        self._note_damage(DamagedRange(end, position))
        for file in self._files.values():
            file.close()
        journal.attach([segment.base for segment in self._segments], position)
        journal.create(position)

    def _take_over(self, checkpoint: Checkpoint) -> None:
        """Begin where the checkpoint is; indexes that are not what it says are made again up to there."""
        tables = checkpoint.tables
        self._has_table = True
        self._terms, self._damage = tables.terms, tables.damage
        self._synced_position = checkpoint.position
        unsound = {}
        firsts = first_indexes_of(self._segments[0]) if not self._damage else None
        for row in tables.partitions:
            index = self._index(row.topic, row.partition)
            is_sound = index.attach(
                row.last_file_first, row.in_last_file, row.next_index, may_have_gaps=bool(self._damage)
            )
            if firsts is not None and index.begins_behind(firsts.get((row.topic, row.partition), 0)):
                is_sound = False  # its oldest file is missing, and not because of retention
            if not is_sound:
                self._notes.append(f"index of topic {row.topic} partition {row.partition} is not sound: made again")
                index.clear()
                unsound[row.topic, row.partition] = row.next_index
        self._forget_indexes(set(self._indexes))
        if unsound:
            self._make_again(unsound, checkpoint.position)

    def _make_again(self, unsound: dict[tuple[int, int], int], end: int) -> None:
        def add(found: Found) -> None:
            key = found.header.topic, found.header.partition
            if found.header.type in MESSAGE_RECORDS and key in unsound:
                self._add_messages(self._indexes[key], found)

        self._walk(self._segments[0].base, end, end, None, add)
        for key, next_index in unsound.items():
            self._indexes[key].next_index = next_index

    def _forget_indexes(self, known: set[tuple[int, int]]) -> None:
        """Remove index files of partitions that are not taken over: they are made again if they have messages."""
        for topic in self._directories(files.INDEX_DIRECTORY):
            for partition in self._directories(f"{files.INDEX_DIRECTORY}/{topic}"):
                if (int(topic), int(partition)) not in known:
                    index = PartitionIndex(self._index_files, int(topic), int(partition), self._config.entries_per_file)
                    index.clear()

    def _directories(self, directory: str) -> list[str]:
        """The numbers that name directories there; whatever else there is goes to the quarantine."""
        numbers = []
        for name in self._disk.names(directory):
            path = f"{directory}/{name}"
            if name.isascii() and name.isdigit() and self._disk.is_dir(path):
                numbers.append(name)
            else:
                self._quarantine(path, "not an index directory")
        return numbers

    # --- the walk ----------------------------------------------------------------------------------------------

    def _walk(
        self,
        position: int,
        end: int | None,
        proven: int,
        accept: Callable[[int, RecordHeader], bool] | None,
        add: Callable[[Found], None],
    ) -> int:
        """Add every record from `position` to `end`, or to where they end, which is returned."""
        search_bytes = self._config.unsynced_bytes_max + self._config.record_bytes_max
        walk = Walk(self._segments, search_bytes, accept)
        for found in walk.records_past_damage(position, end, proven, self._note_damage):
            add(found)
        return walk.end_position

    def _is_next(self, position: int, header: RecordHeader) -> bool:
        """Whether a whole record can follow on those before it."""
        if header.synced_position > position or (self._terms and header.term < self._terms[-1].term):
            return False
        if header.type not in MESSAGE_RECORDS:
            return True
        index = self._indexes.get((header.topic, header.partition))
        expected = index.next_index if index is not None else 0
        if header.first_index == expected:
            return True
        # Indexes are skipped only where records were lost, and are not known only where the table was.
        return (bool(self._damage) and header.first_index > expected) or (index is None and not self._has_table)

    def _add(self, found: Found) -> None:
        header = found.header
        self._synced_position = max(self._synced_position, header.synced_position)
        self._refolding.add(found)
        if header.type == RecordType.TABLE:
            self._read_table(found)
        if not self._terms or header.term > self._terms[-1].term:
            self._terms.append(TermRow(header.term, found.position))
        if header.type in MESSAGE_RECORDS:
            key = header.topic, header.partition
            self._add_messages(self._indexes.get(key) or self._index(*key), found)

    def _read_table(self, found: Found) -> None:
        tables = Tables.unpack(found.payload)
        if not self._has_table:
            self._has_table = True
            self._terms = tables.terms
        for row in tables.partitions:
            self._skip_to((row.topic, row.partition), row.next_index)

    def _skip_to(self, key: tuple[int, int], next_index: int) -> None:
        """Indexes up to there were given out, whether or not their messages are still here: never again."""
        index = self._indexes.get(key) or self._index(*key)
        index.next_index = max(index.next_index, next_index)

    def _add_messages(self, index: PartitionIndex, found: Found) -> None:
        entries = entries_of(found)
        index.add(entries, found.header.first_index + found.header.index_count)
        self._pending_bytes += len(entries)
        if self._pending_bytes > self._config.index_pending_bytes_max:
            for one in self._indexes.values():
                self._file(one, found.position + found.header.length)
            self._pending_bytes = 0

    def _file(self, index: PartitionIndex, position: int) -> None:
        """Put entries into files; on a full disk they stay in memory, so that what is there can be read (F18)."""
        try:
            index.flush(position)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            note = f"no room to file index entries: {error}"
            if note not in self._notes:
                self._notes.append(note)

    def _index(self, topic: int, partition: int) -> PartitionIndex:
        index = PartitionIndex(self._index_files, topic, partition, self._config.entries_per_file)
        self._indexes[topic, partition] = index
        return index

    def _note_damage(self, damage: DamagedRange) -> None:
        if damage not in self._damage:
            self._damage.append(damage)
            self._notes.append(f"journal damaged from position {damage.start} to {damage.end}: left out")
        self._refolding.note_damage(damage)
        self._read_headers(damage)

    def _read_headers(self, damage: DamagedRange) -> None:
        """Of damaged records the header may be whole: it tells which indexes are lost."""
        position = damage.start
        segment = next((one for one in self._segments if one.base <= position < one.end), None)
        while segment is not None and position < min(damage.end, segment.end):
            header = unpack_header(segment.file.read_at(position - segment.base, HEADER_BYTES), 0, position)
            if header is None:
                return
            if header.type in MESSAGE_RECORDS:
                self._skip_to((header.topic, header.partition), header.first_index + header.index_count)
            position += header.length

    # --- the end of the journal --------------------------------------------------------------------------------

    def _cut_tail(self, end: int) -> list[Segment]:
        """Make sure that nothing behind `end` can be taken for a record later; returns the segments that stay."""
        kept = [segment for segment in self._segments if segment.base <= end]
        for segment in self._segments[len(kept) :]:
            path = f"{files.JOURNAL_DIRECTORY}/{files.segment_name(segment.base)}"
            self._quarantine(path, f"it begins behind the journal's end at {end}")
        last = kept[-1]
        file = self._files[last.base]
        offset = end - last.base
        data_end = last.data_end if last.data_end is not None else last.end
        # An OSError here is no torn tail: what cannot be read may have been acked, and must not be cut (F17).
        leftover = file.read_at(offset, min(max(data_end - end, 0), _KEPT_TAIL_BYTES))
        if leftover.strip(b"\0"):
            self._keep_tail(end, leftover.rstrip(b"\0"))
            file.truncate(offset)
        if file.size() < self._config.segment_bytes:
            self._reserve(last)
        return kept

    def _keep_tail(self, end: int, leftover: bytes) -> None:
        path = f"{files.QUARANTINE_DIRECTORY}/tail-{end:020d}"
        try:
            self._disk.make_dir(files.QUARANTINE_DIRECTORY)
            file = self._disk.open(path, create=True)
            try:
                file.truncate(0)
                file.write_at(0, [leftover])
            finally:
                file.close()
        except OSError as error:  # a full disk: these bytes are not worth a start that fails
            self._notes.append(f"{len(leftover)} bytes behind the journal's end at {end} could not be kept: {error}")
            return
        self._notes.append(f"{len(leftover)} bytes behind the journal's end at {end} are no records: now in {path}")

    def _reserve(self, segment: Segment) -> None:
        try:
            self._files[segment.base].preallocate(self._config.segment_bytes)
        except OSError as error:  # a full disk refuses appends later, one by one; reading must go on
            self._notes.append(f"no room to complete segment {segment.base}: {error}")

    def _make_durable(self, kept: list[Segment], end: int) -> None:
        """What was found may be in memory only, and a sync that failed before may have called it clean (F16).

        So everything behind what is known to be synced is written once more, as it is, and then synced.
        """
        for segment in kept:
            file = self._files[segment.base]
            start = max(segment.base, self._synced_position)
            stop = min(segment.end, end)
            if segment.end < self._synced_position:
                continue
            while start < stop:
                data = file.read_at(start - segment.base, min(stop - start, _REWRITE_BYTES))
                file.write_at(start - segment.base, [data])
                start += len(data)
            file.sync()
        self._disk.sync_dir(files.JOURNAL_DIRECTORY)

    def _quarantine(self, path: str, why: str) -> None:
        """Out of the way, under a name that tells where it was; never deleted by us (R7)."""
        place = f"{files.QUARANTINE_DIRECTORY}/{path.replace('/', '-')}"
        number = 0
        while self._disk.exists(target := f"{place}.{number}"):
            number += 1
        self._disk.rename(path, target)
        self._disk.sync_dir(files.QUARANTINE_DIRECTORY)
        self._disk.sync_dir(path.rpartition("/")[0])
        self._notes.append(f"{path}: {why}; now {target}")
