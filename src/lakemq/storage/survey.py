"""A look at a data directory from outside: what is in it, and what is wrong with it. Changes nothing.

Reads every record, and compares every index entry with the record it should point to. For a directory that nobody has
open; on one in use, the newest bytes may look torn.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from lakemq.storage import files
from lakemq.storage.disk import Disk
from lakemq.storage.index import ENTRY_BYTES, IndexDamagedError, unpack_entry
from lakemq.storage.indexes import Key, entries_of
from lakemq.storage.journal_record import MESSAGE_RECORDS, RecordType
from lakemq.storage.state_file import read_copy, read_state
from lakemq.storage.tables import Checkpoint, DamagedRange, Tables
from lakemq.storage.walk import Found, Segment, Walk, read_what_can_be

_SEARCH_BYTES = 80 << 20
_TAIL_BYTES = 1 << 20
_LOST_AND_FOUND = "lost+found"  # where the directory is a file system of its own
Progress = Callable[[int, int], None]
"""Told the bytes read so far, and the bytes to read in all."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing worth saying; `is_damage` if the directory is not sound because of it."""

    place: str
    text: str
    is_damage: bool = True


@dataclass(slots=True)
class SegmentReport:
    """One segment."""

    base: int
    end: int = 0
    record_count: int = 0
    first_ms: int = 0
    last_ms: int = 0


@dataclass(slots=True)
class PartitionReport:
    """One partition."""

    first_index: int
    next_index: int
    message_count: int = 0
    messages_bytes: int = 0


@dataclass(slots=True)
class Survey:
    """All that was found."""

    segments: list[SegmentReport] = field(default_factory=list)
    partitions: dict[Key, PartitionReport] = field(default_factory=dict)
    terms: list[tuple[int, int]] = field(default_factory=list)
    checkpoint: Checkpoint | None = None
    quarantined: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    end_position: int = 0

    @property
    def is_sound(self) -> bool:
        """Whether nothing is damaged."""
        return not any(finding.is_damage for finding in self.findings)


def records(disk: Disk, start: int | None = None) -> Iterator[Found]:
    """Every whole record, oldest first, from the one at `start` on; damaged parts are left out."""
    segments = open_segments(disk)
    try:
        if segments:
            first = segments[0].base if start is None else start
            yield from Walk(segments, _SEARCH_BYTES).records_past_damage(first, None, 0, lambda damage: None)
    finally:
        _close(segments)


def survey(disk: Disk, progress: Progress = lambda done, total: None) -> Survey:
    """Read everything and say what is there."""
    return _Surveyor(disk, progress).run()


def open_segments(disk: Disk) -> list[Segment]:
    """The segments as they lie there."""
    bases = [files.segment_base(name) for name in disk.names(files.JOURNAL_DIRECTORY)]
    known = [base for base in bases if base is not None]
    segments = []
    for number, base in enumerate(known):
        file = disk.open(f"{files.JOURNAL_DIRECTORY}/{files.segment_name(base)}")
        end = base + file.size()
        if number + 1 < len(known):
            end = min(end, known[number + 1])
        segments.append(Segment(base, end, file, base + file.data_end()))
    return segments


def _close(segments: list[Segment]) -> None:
    for segment in segments:
        segment.file.close()  # type: ignore[attr-defined]  # they were opened by us, as files


class _Surveyor:
    def __init__(self, disk: Disk, progress: Progress) -> None:
        self._disk = disk
        self._progress = progress
        self._survey = Survey()
        self._segments: list[Segment] = []
        self._indexes: dict[Key, _IndexReader] = {}
        self._damage: list[DamagedRange] = []

    def run(self) -> Survey:
        self._look_at_names()
        self._look_at_states()
        self._segments = open_segments(self._disk)
        try:
            if self._segments:
                self._walk()
        finally:
            _close(self._segments)
        self._look_at_rest_of_indexes()
        return self._survey

    def _say(self, place: str, text: str, *, is_damage: bool = True) -> None:
        self._survey.findings.append(Finding(place, text, is_damage))

    def _look_at_names(self) -> None:
        known = (files.FORMAT, files.LOCK, files.CHECKPOINT, files.ADMIN_TOKEN)
        directories = (files.JOURNAL_DIRECTORY, files.INDEX_DIRECTORY, files.QUARANTINE_DIRECTORY, _LOST_AND_FOUND)
        for name in self._disk.names(""):
            if name.removesuffix(".old").removesuffix(".new") not in known and name not in directories:
                self._say(name, "not a file of ours")
        for name in self._disk.names(files.JOURNAL_DIRECTORY):
            if files.segment_base(name) is None:
                self._say(f"{files.JOURNAL_DIRECTORY}/{name}", "not a segment's name; a start would quarantine it")
        self._survey.quarantined = self._disk.names(files.QUARANTINE_DIRECTORY)
        for name in self._survey.quarantined:
            self._say(f"{files.QUARANTINE_DIRECTORY}/{name}", "put aside by an earlier start", is_damage=False)

    def _look_at_states(self) -> None:
        if read_state(self._disk, files.FORMAT) is None:
            self._say(files.FORMAT, "missing or damaged: this is not a data directory, or it has lost its mark")
        if self._disk.exists(files.CHECKPOINT) and read_copy(self._disk, files.CHECKPOINT) is None:
            self._say(files.CHECKPOINT, "damaged; a start uses the copy before it, or reads the whole journal")
        state = read_state(self._disk, files.CHECKPOINT)
        if state is None:
            self._say(files.CHECKPOINT, "there is none: a start reads the whole journal", is_damage=False)
            return
        try:
            self._survey.checkpoint = Checkpoint.unpack(state[1])
        except ValueError as error:
            self._say(files.CHECKPOINT, f"of a form this program does not know: {error}")

    def _walk(self) -> None:
        total = self._segments[-1].end - self._segments[0].base
        walk = Walk(self._segments, _SEARCH_BYTES)
        first = self._segments[0].base
        checkpoint = self._survey.checkpoint
        proven = checkpoint.position if checkpoint is not None else 0
        reports = {segment.base: SegmentReport(segment.base, segment.base) for segment in self._segments}
        self._survey.segments = list(reports.values())
        at = 0
        for found in walk.records_past_damage(first, None, proven, self._note_damage):
            while at + 1 < len(self._segments) and found.position >= self._segments[at + 1].base:
                at += 1
            self._add(self._survey.segments[at], found)
            self._progress(found.position - first, total)
        self._survey.end_position = walk.end_position
        self._progress(total, total)
        self._look_at_tail(walk.end_position)
        if proven > walk.end_position:
            self._say(files.CHECKPOINT, f"it vouches for position {proven}, the journal ends at {walk.end_position}")

    def _note_damage(self, damage: DamagedRange) -> None:
        self._damage.append(damage)
        base = max(segment.base for segment in self._segments if segment.base <= damage.start)
        place = f"{files.JOURNAL_DIRECTORY}/{files.segment_name(base)}"
        size = damage.end - damage.start
        self._say(place, f"damaged at offset {damage.start - base} (position {damage.start}): {size} bytes")

    def _look_at_tail(self, end: int) -> None:
        for segment in self._segments:
            if segment.end <= end:
                continue
            rest = read_what_can_be(segment.file, max(end - segment.base, 0), _TAIL_BYTES)
            if rest.strip(b"\0"):
                place = f"{files.JOURNAL_DIRECTORY}/{files.segment_name(segment.base)}"
                text = f"bytes behind the journal's end at position {end}: a torn tail, which a start cuts off"
                self._say(place, text, is_damage=False)

    def _add(self, report: SegmentReport, found: Found) -> None:
        header = found.header
        report.end = found.position + header.length
        report.record_count += 1
        report.first_ms = report.first_ms or header.store_time_ms
        report.last_ms = max(report.last_ms, header.store_time_ms)
        if not self._survey.terms or header.term > self._survey.terms[-1][0]:
            self._survey.terms.append((header.term, found.position))
        elif header.term < self._survey.terms[-1][0]:
            self._say(f"position {found.position}", f"term {header.term} after term {self._survey.terms[-1][0]}")
        if header.type == RecordType.TABLE:
            self._add_table(found)
        elif header.type in MESSAGE_RECORDS:
            self._add_messages(found)

    def _add_table(self, found: Found) -> None:
        try:
            rows = Tables.unpack(found.payload).partitions
        except ValueError as error:
            self._say(f"position {found.position}", f"a table of a form this program does not know: {error}")
            return
        for row in rows:
            key = row.topic, row.partition
            self._survey.partitions.setdefault(key, PartitionReport(row.next_index, row.next_index))

    def _add_messages(self, found: Found) -> None:
        header = found.header
        key = header.topic, header.partition
        report = self._survey.partitions.setdefault(key, PartitionReport(header.first_index, header.first_index))
        if header.first_index > report.next_index:
            text = f"lost: indexes {report.next_index} to {header.first_index - 1} of topic {key[0]} partition {key[1]}"
            self._say(f"before position {found.position}", text)
        elif header.first_index < report.next_index:
            text = f"index {header.first_index} of topic {key[0]} partition {key[1]} for the second time"
            self._say(f"position {found.position}", text)
        if report.message_count == 0:
            report.first_index = header.first_index
        report.next_index = header.first_index + header.index_count
        report.message_count += header.message_count
        report.messages_bytes += len(found.payload)
        if key not in self._indexes:
            self._indexes[key] = _IndexReader(self._disk, key, self._damage)
        self._indexes[key].compare(found, self._survey)

    def _look_at_rest_of_indexes(self) -> None:
        """Entries behind the last record, and indexes of partitions that have none."""
        for key, index in self._indexes.items():
            index.finish(self._survey, key)
        for topic in self._disk.names(files.INDEX_DIRECTORY):
            for partition in self._disk.names(f"{files.INDEX_DIRECTORY}/{topic}"):
                if not (topic.isdigit() and partition.isdigit()):
                    self._say(f"{files.INDEX_DIRECTORY}/{topic}/{partition}", "not an index directory's name")


class _IndexReader:
    """Goes through one partition's index files alongside the records they should point to."""

    def __init__(self, disk: Disk, key: Key, damage: list[DamagedRange]) -> None:
        self._damage = damage  # grows while the journal is read
        self._directory = files.index_directory(*key)
        names = disk.names(self._directory)
        self._paths = [f"{self._directory}/{name}" for name in names if files.index_file_first(name) is not None]
        self._disk = disk
        self._data = b""
        self._offset = 0
        self._path = self._directory
        self._is_over = False
        self._has_begun = False

    def compare(self, found: Found, survey: Survey) -> None:
        """The next entries should be those of this record."""
        expected = entries_of(found)
        at = 0
        while at < len(expected) and not self._is_over:
            if not self._fill():
                self._is_over = True  # not filed yet: a start makes them
                return
            if not self._has_begun:
                self._skip_dropped(found.position)
                continue
            if at == 0 and self._skip_damaged():
                continue
            entry = self._data[self._offset : self._offset + ENTRY_BYTES]
            if entry != expected[at : at + ENTRY_BYTES]:
                survey.findings.append(Finding(self._path, f"at offset {self._offset}: {self._why(entry)}"))
                self._is_over = True
                return
            self._offset += ENTRY_BYTES
            at += ENTRY_BYTES

    def finish(self, survey: Survey, key: Key) -> None:
        """Nothing but zeros or unfinished entries may be left."""
        if self._is_over or not self._fill():
            return
        text = f"at offset {self._offset}: entries behind the last message; a start removes them"
        survey.findings.append(Finding(self._path, text, is_damage=False))

    def _fill(self) -> bool:
        while self._offset + ENTRY_BYTES > len(self._data):
            if not self._paths:
                return False
            self._path = self._paths.pop(0)
            file = self._disk.open(self._path)
            try:
                self._data, self._offset = read_what_can_be(file, 0, file.size()), 0
            finally:
                file.close()
        return True

    def _skip_dropped(self, position: int) -> None:
        """Entries of segments that retention dropped may still be there in the first files."""
        self._has_begun = True
        while self._fill():
            try:
                if unpack_entry(self._data, self._offset).position >= position:
                    return
            except IndexDamagedError:
                return
            self._offset += ENTRY_BYTES

    def _skip_damaged(self) -> bool:
        """Whether the next entry points into a damaged part of the journal, and was passed over."""
        if not self._damage:
            return False
        try:
            position = unpack_entry(self._data, self._offset).position
        except IndexDamagedError:
            return False
        if any(one.start <= position < one.end for one in self._damage):
            self._offset += ENTRY_BYTES
            return True
        return False

    @staticmethod
    def _why(entry: bytes) -> str:
        try:
            found = unpack_entry(entry, 0)
        except IndexDamagedError as error:
            return str(error)
        return f"an entry for index {found.first_index} at position {found.position}, which is not what is there"
