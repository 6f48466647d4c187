"""The tables that say how far everything had come at some position: partitions, terms, damage. And the checkpoint.

At the head of each segment one is a record, so that a journal whose start was dropped still tells every index; in the
checkpoint one is a shortcut, so that a start need not read from there.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

_COUNT = struct.Struct(">I")
_CHECKPOINT = struct.Struct(">q?")
_FOLDED = struct.Struct(">qI")


class PartitionRow(NamedTuple):
    """One partition: the next index, and how far its index files reach."""

    topic: int
    partition: int
    next_index: int
    last_file_first: int = -1
    in_last_file: int = 0


class TermRow(NamedTuple):
    """Where a term's first record is."""

    term: int
    position: int


class DamagedRange(NamedTuple):
    """Bytes that are no records although records come after them: from `start` up to `end`."""

    start: int
    end: int


class Folded(NamedTuple):
    """A snapshot of what the engine's owner made of all records before `position`."""

    position: int
    snapshot: bytes


_PARTITION = struct.Struct(">ihqqi")
_TERM = struct.Struct(">iq")
_DAMAGE = struct.Struct(">qq")


@dataclass(slots=True)
class Tables:
    """All three."""

    partitions: list[PartitionRow] = field(default_factory=list)
    terms: list[TermRow] = field(default_factory=list)
    damage: list[DamagedRange] = field(default_factory=list)

    def pack(self) -> bytes:
        """One after the other, each with its count."""
        parts = []
        for layout, rows in ((_PARTITION, self.partitions), (_TERM, self.terms), (_DAMAGE, self.damage)):
            parts.append(_COUNT.pack(len(rows)))
            parts += [layout.pack(*row) for row in rows]
        return b"".join(parts)

    @classmethod
    def unpack(cls, data: bytes | memoryview) -> "Tables":
        """ValueError if it is not one; a CRC was checked before, so that means a newer program wrote it."""
        return cls.unpack_from(data, 0)[0]

    @classmethod
    def unpack_from(cls, data: bytes | memoryview, at: int) -> "tuple[Tables, int]":
        """The same at a place in `data`; also where it ends."""

        def rows(layout: struct.Struct) -> Iterator[tuple[Any, ...]]:
            nonlocal at
            count = _COUNT.unpack_from(data, at)[0]
            start = at + _COUNT.size
            at = start + count * layout.size
            if at > len(data):
                raise ValueError(f"{count} rows in {len(data) - start} bytes")
            return layout.iter_unpack(data[start:at])

        try:
            tables = cls(
                [PartitionRow(*row) for row in rows(_PARTITION)],
                [TermRow(*row) for row in rows(_TERM)],
                [DamagedRange(*row) for row in rows(_DAMAGE)],
            )
        except struct.error as error:
            raise ValueError(str(error)) from None
        return tables, at


@dataclass(slots=True)
class Checkpoint:
    """Everything before `position` is in the index files, durably. `is_clean`: the journal ended there, in peace.

    `folded` is a snapshot of the fold; None if there is no fold, or an older program wrote this.
    """

    position: int
    is_clean: bool
    tables: Tables
    folded: Folded | None = None

    @property
    def covered_position(self) -> int:
        """What is before it is not read again by a start that uses this."""
        return self.position if self.folded is None else min(self.position, self.folded.position)

    def pack(self) -> bytes:
        """As the checkpoint's state file holds it."""
        data = _CHECKPOINT.pack(self.position, self.is_clean) + self.tables.pack()
        if self.folded is None:
            return data
        position, snapshot = self.folded
        return data + _FOLDED.pack(position, len(snapshot)) + snapshot

    @classmethod
    def unpack(cls, data: bytes) -> "Checkpoint":
        """ValueError if it is not one."""
        if len(data) < _CHECKPOINT.size:
            raise ValueError("too short")
        position, is_clean = _CHECKPOINT.unpack_from(data)
        tables, at = Tables.unpack_from(data, _CHECKPOINT.size)
        return cls(position, is_clean, tables, _unpack_folded(data, at))


def _unpack_folded(data: bytes, at: int) -> Folded | None:
    if len(data) == at:
        return None
    if len(data) < at + _FOLDED.size:
        raise ValueError(f"{len(data) - at} bytes behind the tables")
    position, size = _FOLDED.unpack_from(data, at)
    start = at + _FOLDED.size
    if len(data) < start + size:
        raise ValueError(f"a snapshot of {size} bytes in {len(data) - start}")
    return Folded(position, data[start : start + size])
