"""Oracle: what a partition group was told and what it promised, in the simplest form, to hold the real one against.

One list of records in the order of the journal, with two marks: written, and synced. A power loss may take a tail of
what is not synced, a kill a tail of what is not written; never a middle. What comes back has the same place and bytes,
and nothing is there that was not appended, or was refused.
"""

import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from lakemq.checksum import crc32
from lakemq.errors import IndexOutOfRangeError
from lakemq.storage.journal_record import HEADER_BYTES, RecordHeader, RecordType
from lakemq.storage.partition_group import Appended, PartitionGroup
from lakemq.storage.walk import Found

Key = tuple[int, int]
_MANY = 1 << 30
_OF_THE_ENGINE = (RecordType.TABLE, RecordType.SNAPSHOT)


class ViolationError(AssertionError):
    """The store broke a promise."""


class Stored(NamedTuple):
    """One record as it was appended; of messages, `payload` is as they were stamped."""

    position: int
    end_position: int
    kind: int
    key: Key
    first_index: int
    next_index: int
    payload: bytes
    store_time_ms: int


_TALLY = struct.Struct(">QII")
_FACTS = struct.Struct(">BiiqI")


class TallyFold:
    """A fold for tests: how many records there were, and a checksum over all of them in their order.

    One record that is missing, told twice or out of order, and it is another one. `padding_bytes` makes its snapshots
    longer; they are checked when they come back.
    """

    def __init__(self, padding_bytes: int = 0) -> None:
        self._padding_bytes = padding_bytes
        self.record_count = 0
        self.crc = 0
        self.restored_count = 0
        self.applied_count = 0

    def restore(self, snapshot: bytes) -> None:
        """As `Fold` says."""
        self.restored_count += 1
        self.record_count, self.crc, size = _TALLY.unpack_from(snapshot) if snapshot else (0, 0, 0)
        _expect(snapshot == self._pack(size), f"a snapshot of {len(snapshot)} bytes that was never made")

    def apply(self, header: RecordHeader, payload: memoryview, position: int) -> None:
        """As `Fold` says."""
        self.applied_count += 1
        self._count(header.type, (header.topic, header.partition), header.first_index, payload)

    def snapshot(self) -> bytes:
        """As `Fold` says."""
        return self._pack(_TALLY.size + self._padding_bytes) if self.record_count else b""

    def add(self, record: "Stored") -> None:
        """What the owner does once it has appended."""
        self._count(record.kind, record.key, record.first_index, record.payload)

    def count_again(self, records: "Iterable[Stored]") -> None:
        """What the owner does when its appends have failed: these are left."""
        self.record_count = self.crc = 0
        for record in records:
            self.add(record)

    def _pack(self, size: int) -> bytes:
        state = _TALLY.pack(self.record_count, self.crc, size)
        return (state * (1 + size // len(state)))[:size]

    def _count(self, kind: int, key: Key, first_index: int, payload: bytes | memoryview) -> None:
        self.record_count += 1
        self.crc = crc32(_FACTS.pack(kind, *key, first_index, crc32(payload)), self.crc)


class Oracle:
    """What must be there, what may be, and nothing else.

    Tell it of each append, and how each turn and each sync ended. `check` holds a running group against that,
    `check_recovered` one that was just started; both raise ViolationError.
    """

    def __init__(self, visible_after: str = "sync") -> None:
        self.visible_after = visible_after
        self.records: list[Stored] = []
        self.written_count = 0
        self.synced_count = 0
        self.kept_from = 0  # what is before this position may be gone
        self._refused: list[list[Stored]] = []  # turns of which a part may be on the disk

    def copy(self) -> "Oracle":
        """One that knows the same, for a copy of the store."""
        twin = Oracle(self.visible_after)
        twin.records = self.records.copy()
        twin.written_count, twin.synced_count, twin.kept_from = self.written_count, self.synced_count, self.kept_from
        twin._refused = self._refused.copy()
        return twin

    # --- being told ----------------------------------------------------------------------------------------------

    def append(self, key: Key, appended: Appended, messages: bytes, now_ms: int) -> None:
        """Messages were taken; `messages` are the bytes after the call, which stamps them."""
        first, after, end = appended
        _expect(first == self.next_index(key), f"{key}: index {first} was given, the next is {self.next_index(key)}")
        start = end - HEADER_BYTES - len(messages)
        self.records.append(Stored(start, end, RecordType.MESSAGES, key, first, after, messages, now_ms))

    def append_control(self, key: Key, kind: RecordType, end_position: int, payload: bytes, now_ms: int) -> None:
        """A fact was taken."""
        start = end_position - HEADER_BYTES - len(payload)
        self.records.append(Stored(start, end_position, kind, key, 0, 0, payload, now_ms))

    def flush(self) -> None:
        """This turn was written."""
        self.written_count = len(self.records)

    def refuse(self, written_position: int = 0) -> None:
        """This turn was refused: it may never be seen, but for what was written before a segment ended within it."""
        while (
            len(self.records) > self.written_count and self.records[self.written_count].end_position <= written_position
        ):
            self.written_count += 1
        self._refused.append(self.records[self.written_count :])
        del self.records[self.written_count :]

    def sync(self, position: int) -> None:
        """All before that position was reported as synced."""
        while self.synced_count < self.written_count and self.records[self.synced_count].end_position <= position:
            self.synced_count += 1
            self._refused.clear()  # what was there has been written over, durably

    def drop(self, position: int) -> None:
        """What is before that position may be gone from now on."""
        self.kept_from = max(self.kept_from, position)

    # --- knowing -------------------------------------------------------------------------------------------------

    def partitions(self) -> list[Key]:
        """Every partition that has messages."""
        return sorted({one.key for one in self.records if one.kind == RecordType.MESSAGES})

    def of(self, key: Key) -> list[Stored]:
        """The visible records of messages of one partition."""
        return _messages_of(key, self.records[: self._visible_count])

    def next_index(self, key: Key) -> int:
        """The index the next message of that partition gets."""
        return self._end_index(key, len(self.records))

    def visible_index(self, key: Key) -> int:
        """Up to where that partition may be read."""
        return self._end_index(key, self._visible_count)

    @property
    def _visible_count(self) -> int:
        return self.written_count if self.visible_after == "write" else self.synced_count

    def index_of_time(self, key: Key, store_time_ms: int, first_index: int) -> int:
        """The first visible index from `first_index` on that was stored at or after that time."""
        later = (one.first_index for one in self.of(key) if one.store_time_ms >= store_time_ms)
        return max(next(later, self.visible_index(key)), first_index)

    # --- asking --------------------------------------------------------------------------------------------------

    def check(self, group: PartitionGroup, *, index_count: int = _MANY, bytes_max: int = _MANY) -> None:
        """Hold a running group against what it promised, reading by these limits."""
        _expect(not group.damage, f"damage where none was done: {group.damage}")
        for key in self.partitions():
            self._check_partition(group, key, index_count, bytes_max)

    def check_recovered(self, group: PartitionGroup, *, is_power_lost: bool) -> None:
        """Hold a group that was just started against what was promised before; what it has is the truth from now on."""
        journal = group.journal
        begin = journal.first_position
        _expect(begin <= self.kept_from, f"the journal begins at {begin}; from {self.kept_from} on all must be there")
        dropped_count = sum(one.position < begin for one in self.records)
        known = self.records[dropped_count:]
        found = [one for one in group.records(begin, journal.end_position) if one.header.type not in _OF_THE_ENGINE]
        same_count = _count_same(found, known)
        must_count = (self.synced_count if is_power_lost else self.written_count) - dropped_count
        _expect(same_count >= must_count, f"of {must_count} records that must be there {same_count} are: {group.notes}")
        invented = found[same_count:]
        if invented:
            # Only where the power went before the wiping of a refused turn was synced: its outcome is "unknown" then.
            turns = [turn for turn in self._refused if len(turn) >= _count_same(invented, turn) == len(invented)]
            _expect(is_power_lost and bool(turns), f"never appended: {invented[0].position} {invented[0].header}")
            known = known[:same_count] + turns[0]
        del self.records[dropped_count:]
        self.records += known[: len(found)]
        self.written_count = self.synced_count = len(self.records)
        self._refused.clear()
        _check_terms(group)
        self.check(group)

    def check_fold(self, fold: TallyFold) -> None:
        """Hold a fold against all records, those too that are dropped by now."""
        truth = TallyFold()
        truth.count_again(self.records)
        told = fold.record_count, fold.crc
        _expect(told == (truth.record_count, truth.crc), f"the fold has {told[0]} of {truth.record_count} records")

    # --- inside --------------------------------------------------------------------------------------------------

    def _end_index(self, key: Key, count: int) -> int:
        for one in reversed(self.records[:count]):
            if one.key == key and one.kind == RecordType.MESSAGES:
                return one.next_index
        return 0

    def _check_partition(self, group: PartitionGroup, key: Key, index_count: int, bytes_max: int) -> None:
        for noun, told, truth in (
            ("next", group.next_index(*key), self.next_index(key)),
            ("visible", group.visible_index(*key), self.visible_index(key)),
        ):
            _expect(told == truth, f"{key}: the {noun} index is {told}, it should be {truth}")
        first, visible = group.first_index(*key), self.visible_index(key)
        records = self.of(key)
        must = next((one.first_index for one in records if one.position >= self.kept_from), visible)
        may = [one.first_index for one in records if one.position >= group.journal.first_position] + [visible]
        _expect(first in may and first <= must, f"{key}: the first index is {first}, from {must} on all must be there")
        expected = b"".join(one.payload for one in records if one.first_index >= first)
        got = read_all(group, key, index_count=index_count, bytes_max=bytes_max)
        _expect(got == expected, f"{key}: {len(got)} bytes from {first} on are not the {len(expected)} appended")


def read_all(group: PartitionGroup, key: Key, *, index_count: int = _MANY, bytes_max: int = _MANY) -> bytes:
    """All visible messages of a partition, read by these limits; ViolationError for a hole, a repeat or an excess."""
    pieces = []
    index, visible = group.first_index(*key), group.visible_index(*key)
    while index < visible:
        slices = group.read(*key, index, index_count, bytes_max)
        _expect(bool(slices), f"{key}: nothing at {index}, visible up to {visible}")
        size = sum(len(one.messages) for one in slices)
        _expect(size <= bytes_max or sum(one.message_count for one in slices) == 1, f"{key}: {size} bytes at {index}")
        end_wanted = min(index + index_count, visible)
        for one in slices:
            _expect(one.first_index == index < end_wanted, f"{key}: a slice from {one.first_index}, {index} is next")
            pieces.append(bytes(one.messages))
            index = one.next_index
    _expect(index == visible, f"{key}: read up to {index}, visible up to {visible}")
    for outside in (group.first_index(*key) - 1, visible + 1):
        try:
            group.read(*key, outside, 1)
        except IndexOutOfRangeError:
            continue
        raise ViolationError(f"{key}: index {outside} was given out")
    return b"".join(pieces)


def _count_same(found: Sequence[Found], known: Sequence[Stored]) -> int:
    """How many are the same, from the first on."""
    count = 0
    for one, other in zip(found, known, strict=False):
        header = one.header
        if (one.position, header.type, header.topic, header.partition) != (other.position, other.kind, *other.key):
            break
        if header.first_index != other.first_index or one.payload != other.payload:
            break
        count += 1
    return count


def _check_terms(group: PartitionGroup) -> None:
    """Each term begins where its first record is, as far as that is kept."""
    begin, firsts = group.journal.first_position, dict[int, int]()
    for one in group.records(begin, group.journal.end_position):
        firsts.setdefault(one.header.term, one.position)
    rows = {row.term: row.position for row in group.terms}
    for term, position in firsts.items():
        told = rows.get(term, -1)
        _expect(told == position or 0 <= told < begin, f"term {term} is said to begin at {told}, not at {position}")
    unknown = [term for term, position in rows.items() if position >= begin and term not in firsts]
    _expect(not unknown, f"terms {unknown} have no record")


def _messages_of(key: Key, records: Sequence[Stored]) -> list[Stored]:
    return [one for one in records if one.key == key and one.kind == RecordType.MESSAGES]


def _expect(is_so: bool, otherwise: str) -> None:
    if not is_so:
        raise ViolationError(otherwise)
