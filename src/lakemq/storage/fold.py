"""Fold, a protocol: state that the engine's owner makes from the records of the journal, one after the other.

It survives a start without the whole journal being read: the head of each segment and each checkpoint hold a snapshot
of it. The engine does not look into a snapshot. Not known here: when snapshots are written (`partition_group.py`), and
where recovery begins (`recovery.py`).

What always holds: a snapshot stands for exactly the records before its position; behind it each record counts once.
"""

import struct
from typing import Protocol

from lakemq.storage.journal_record import RecordHeader, RecordType
from lakemq.storage.tables import DamagedRange, Folded
from lakemq.storage.walk import Found

_PART = struct.Struct(">HH")  # number of the part, and how many there are
PART_HEAD_BYTES = _PART.size
PART_COUNT_MAX = 0xFFFF
_PART_BYTES_MAX = 1 << 20


class Fold(Protocol):
    """What an owner makes of the journal. During recovery the engine tells it the records, later the owner itself.

    While the group runs nobody calls `apply`: the owner makes its change once `append` or `append_control` has
    returned, before it calls the group again, and takes it back if the turn's flush fails. So `snapshot` is always that
    of the records appended so far.
    """

    def restore(self, snapshot: bytes) -> None:
        """Replace all state by that of a snapshot; b"": nothing has happened yet."""
        ...

    def apply(self, header: RecordHeader, payload: memoryview, position: int) -> None:
        """One record, in the order of the journal; of all types but TABLE and SNAPSHOT. Copy what is to be kept.

        `position` is where the record begins.
        """
        ...

    def snapshot(self) -> bytes:
        """The state, as `restore` wants it."""
        ...


class _NoFold:
    def restore(self, snapshot: bytes) -> None:
        pass

    def apply(self, header: RecordHeader, payload: memoryview, position: int) -> None:
        pass

    def snapshot(self) -> bytes:
        return b""


NO_FOLD: Fold = _NoFold()
"""For those who keep no state. They leave none either: do not let them roll and drop segments where somebody does."""


def pack_parts(snapshot: bytes, record_bytes_max: int) -> list[bytes]:
    """The payloads of the SNAPSHOT records that hold it; none if it is empty."""
    size = max(min(_PART_BYTES_MAX, record_bytes_max // 4), 1)
    pieces = [snapshot[at : at + size] for at in range(0, len(snapshot), size)]
    if len(pieces) > PART_COUNT_MAX:
        raise ValueError(f"a snapshot of {len(snapshot)} bytes has more than {PART_COUNT_MAX} parts")
    return [_PART.pack(number, len(pieces)) + piece for number, piece in enumerate(pieces)]


def part_of(payload: bytes | memoryview) -> tuple[int, int]:
    """The number of a part, from 0, and the count of all; (0, 0) if it is none."""
    if len(payload) < PART_HEAD_BYTES:
        return 0, 0
    number, count = _PART.unpack_from(payload)
    return number, count


class SnapshotParts:
    """The parts of one snapshot as they come along; half of them are no snapshot."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._count = 0
        self.is_begun = False

    @property
    def is_whole(self) -> bool:
        """Whether all parts are there."""
        return self._count > 0 and len(self._pieces) == self._count

    def clear(self) -> None:
        """Another set begins, or none."""
        self._pieces.clear()
        self._count = 0
        self.is_begun = False

    def add(self, payload: memoryview) -> bytes | None:
        """The next part; the snapshot, if that was the last one."""
        number, count = part_of(payload)
        if number == 0:
            self.clear()
            self._count = count
        self.is_begun = True
        if number != len(self._pieces) or count != self._count or number >= count:
            self._pieces.clear()
            self._count = 0
            return None
        self._pieces.append(bytes(payload[PART_HEAD_BYTES:]))
        return b"".join(self._pieces) if self.is_whole else None


class Refolding:
    """A fold on its way through a recovery: a snapshot first, then every record behind it, once, in order.

    A snapshot at a segment's head is used where the way begins, and behind damage: it has the facts that are lost.
    """

    def __init__(self, fold: Fold) -> None:
        self._fold = fold
        self._parts = SnapshotParts()
        self._is_at_start = False
        self._head_position: int | None = None  # of a segment, while nothing but its head was seen
        self.position = 0  # records before it are in the fold
        self.misses_facts = False  # for they may lie in a damaged part

    def begin(self, position: int) -> None:
        """With nothing, at the head of the oldest segment: the snapshot there is used, if there is one."""
        self._begin(Folded(position, b""), is_at_start=True)

    def begin_with(self, folded: Folded) -> None:
        """With a snapshot, at its position."""
        self._begin(folded, is_at_start=False)

    def add(self, found: Found) -> None:
        """A whole record; one that the fold already has is left out."""
        if found.position < self.position:
            return
        self.position = found.position + found.header.length
        if found.header.type == RecordType.TABLE:
            self._head_position = found.position
            self._parts.clear()
        elif found.header.type == RecordType.SNAPSHOT:
            self._add_part(found.payload)
        else:
            self._leave_head()
            self._fold.apply(found.header, found.payload, found.position)

    def note_damage(self, damage: DamagedRange) -> None:
        """Facts may be lost there, unless the fold has them already."""
        if damage.end > self.position:
            self.misses_facts = True
            self._head_position = None
            self._parts.clear()

    def half_head(self) -> int | None:
        """Where a segment begins of which there is only half a head; None if that is not how the records end."""
        if self._head_position is None or self._parts.is_whole:
            return None
        if not self._parts.is_begun and not self._fold.snapshot():
            return None  # there was nothing to be put behind the table
        return self._head_position

    def _begin(self, folded: Folded, *, is_at_start: bool) -> None:
        self._fold.restore(folded.snapshot)
        self._parts.clear()
        self._is_at_start = is_at_start
        self._head_position = None
        self.position = folded.position
        self.misses_facts = False

    def _add_part(self, payload: memoryview) -> None:
        if self._head_position is None:
            return
        snapshot = self._parts.add(payload)
        if snapshot is not None and (self._is_at_start or self.misses_facts):
            self._fold.restore(snapshot)
            self._is_at_start = self.misses_facts = False

    def _leave_head(self) -> None:
        if self._is_at_start and self._parts.is_begun:  # not whole, or it would have been the start
            self.misses_facts = True
        self._is_at_start = False
        self._head_position = None
