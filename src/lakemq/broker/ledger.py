"""The journal together with the state that is a fold over it: topics and policies, acks, retries, delays and so on.

Whatever is appended is in force at once, in the journal's order; what a failed flush takes back is undone here. So the
snapshot that the store asks for always is that of the records before it.
"""

import struct
from collections.abc import Callable, Container, Mapping
from typing import Any, Protocol

from lakemq.cluster.metadata import Metadata, pack_change, unpack_change
from lakemq.delivery.ack_index import AckIndexes, AckRow, pack_rows, unpack_rows
from lakemq.delivery.uniq import UniqIds
from lakemq.errors import LakeMQError
from lakemq.storage.disk import Buffer
from lakemq.storage.journal_record import (
    HEADER_BYTES,
    MESSAGE_RECORDS,
    RecordHeader,
    RecordType,
    note_bytes,
    note_of,
)
from lakemq.storage.partition_group import Appended, PartitionGroup

_PART = struct.Struct(">BI")  # length of its name, size of its snapshot


class Part(Protocol):
    """A part of the state, which is told of the records that concern it."""

    def restore(self, data: bytes) -> None:
        """Begin from what `pack` gave; b"" for nothing at all."""
        ...

    def pack(self, kept: Container[int]) -> bytes:
        """All of it that concerns these subscriptions or none; b"" for nothing at all."""
        ...


class State:
    """The fold: what the records so far add up to."""

    def __init__(self, uniq_ids_max: int) -> None:
        self.metadata = Metadata()
        self.acks = AckIndexes()
        self.uniq_ids = UniqIds(uniq_ids_max)
        self._parts: dict[str, Part] = {"acks": self.acks, "uniq": self.uniq_ids}

    def restore(self, snapshot: bytes) -> None:
        """Begin from a snapshot; empty for nothing at all."""
        found = _unpack_parts(snapshot)
        self.metadata = Metadata.unpack(found.pop("metadata", b""))
        for name, part in self._parts.items():
            part.restore(found.pop(name, b""))
        assert not found, f"a snapshot of parts that this version does not know: {', '.join(found)}"

    def apply(self, header: RecordHeader, payload: memoryview, position: int) -> None:
        """One record more, which begins at that position."""
        kind = header.type
        if kind in MESSAGE_RECORDS:
            self.uniq_ids.apply(header.topic, payload[note_bytes(kind, payload) :], 0)
            if kind == RecordType.NOTED:
                self._apply_note(note_of(payload), header, position)
        elif kind == RecordType.ACK:
            self.acks.apply(unpack_rows(payload))
        elif kind in (RecordType.TOPIC, RecordType.POLICY):
            self.change(unpack_change(payload))

    def _apply_note(self, note: memoryview, header: RecordHeader, position: int) -> None:
        """Messages came from elsewhere: they are there no more."""

    def change(self, change: Mapping[str, Any]) -> None:
        """Put a change of the metadata in force."""
        self.metadata = self.metadata.apply(change)

    def snapshot(self) -> bytes:
        """All of it, to begin from."""
        kept = {one.number for one in self.metadata.subscriptions.values()}
        parts = {"metadata": self.metadata.pack() if self.metadata.version else b""}
        parts |= {name: part.pack(kept) for name, part in self._parts.items()}
        return _pack_parts({name: data for name, data in parts.items() if data})


class Ledger:
    """Appends facts and keeps the state in step with them."""

    def __init__(self, group: PartitionGroup, state: State) -> None:
        self.group = group
        self.state = state
        self.term = max(group.term, 1)
        self._undo: list[tuple[int, Callable[[], object]]] = []  # by the end of what would be taken back

    @property
    def metadata(self) -> Metadata:
        """Topics, apps and policies as they are now."""
        return self.state.metadata

    @property
    def end_position(self) -> int:
        """Where the next record will be."""
        return self.group.journal.end_position

    def append(self, kind: RecordType, payload: bytes, now_ms: int, *, topic: int = 0) -> tuple[int, int]:
        """Put a fact into the journal; where it begins and ends. The caller puts it in force, and can undo it."""
        end = self.group.append_control(kind, payload, topic=topic, term=self.term, now_ms=now_ms)
        return end - HEADER_BYTES - len(payload), end

    def append_messages(
        self,
        topic: int,
        partition: int,
        messages: Buffer,
        message_count: int,
        index_count: int,
        now_ms: int,
        *,
        client_address: bytes,
        note: bytes | None = None,
    ) -> Appended:
        """Put scanned messages into a partition; with a note that says where they come from."""
        return self.group.append(
            topic,
            partition,
            messages,
            message_count,
            index_count,
            term=self.term,
            now_ms=now_ms,
            client_address=client_address,
            note=note,
        )

    def change(self, change: Mapping[str, Any], now_ms: int) -> int:
        """Change the metadata; durable once the journal is synced to the position that is returned."""
        kind = RecordType.TOPIC if change["op"].endswith("_topic") else RecordType.POLICY
        _, end = self.append(kind, pack_change(change), now_ms)
        before = self.state.metadata
        self.state.change(change)
        self.undo_with(end, lambda: self._restore(before))
        return end

    def _restore(self, metadata: Metadata) -> None:
        self.state.metadata = metadata

    def move_acks(self, rows: list[AckRow], now_ms: int) -> int:
        """Set ack indexes."""
        _, end = self.append(RecordType.ACK, pack_rows(rows), now_ms)
        before = self.state.acks.apply(rows)
        self.undo_with(end, lambda: self._move_back(before))
        return end

    def _move_back(self, rows: list[AckRow]) -> None:
        self.state.acks.apply(rows)

    def undo_with(self, end_position: int, undo: Callable[[], object]) -> None:
        """What to do if the record that ends there is not written after all."""
        self._undo.append((end_position, undo))

    def flush(self) -> None:
        """Write the turn; on an error, what is not written is undone."""
        try:
            self.group.flush()
        except LakeMQError:
            written = self.group.journal.written_position
            for end_position, undo in reversed(self._undo):
                if end_position > written:
                    undo()
            self._undo.clear()
            raise
        self._undo.clear()


def _pack_parts(parts: Mapping[str, bytes]) -> bytes:
    if not parts:
        return b""
    heads = [_PART.pack(len(name), len(data)) + name.encode() for name, data in parts.items()]
    return b"".join((bytes([len(parts)]), *heads, *parts.values()))


def _unpack_parts(snapshot: bytes) -> dict[str, bytes]:
    sizes = {}
    at = 1
    for _ in range(snapshot[0] if snapshot else 0):
        name_bytes, size = _PART.unpack_from(snapshot, at)
        at += _PART.size + name_bytes
        sizes[snapshot[at - name_bytes : at].decode()] = size
    parts = {}
    for name, size in sizes.items():
        parts[name] = snapshot[at : at + size]
        at += size
    return parts
