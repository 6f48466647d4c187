"""The journal together with the state that is a fold over it: topics and policies, ack indexes, remembered ids.

Whatever is appended is in force at once, in the journal's order; what a failed flush takes back is undone here. So the
snapshot that the store asks for always is that of the records before it.
"""

import struct
from collections.abc import Callable, Mapping
from typing import Any

from lakemq.cluster.metadata import Metadata, pack_change, unpack_change
from lakemq.delivery.ack_index import AckIndexes, AckRow, pack_rows, unpack_rows
from lakemq.delivery.uniq import UniqIds
from lakemq.errors import LakeMQError
from lakemq.storage.journal_record import RecordHeader, RecordType
from lakemq.storage.partition_group import PartitionGroup

_PARTS = struct.Struct(">III")


class State:
    """The fold: what the records so far add up to."""

    def __init__(self, uniq_ids_max: int) -> None:
        self.metadata = Metadata()
        self.acks = AckIndexes()
        self.uniq_ids = UniqIds(uniq_ids_max)
        self._position = 0

    def restore(self, snapshot: bytes) -> None:
        """Begin from a snapshot; empty for nothing at all."""
        if not snapshot:
            self.metadata = Metadata()
            self.acks.restore(b"")
            self.uniq_ids.restore(b"")
            return
        *sizes, _ = _PARTS.unpack_from(snapshot)
        first = _PARTS.size + sizes[0]
        second = first + sizes[1]
        self.metadata = Metadata.unpack(snapshot[_PARTS.size : first])
        self.acks.restore(snapshot[first:second])
        self.uniq_ids.restore(snapshot[second:])

    def apply(self, header: RecordHeader, payload: memoryview) -> None:
        """One record more."""
        if header.type == RecordType.MESSAGES:
            self.uniq_ids.apply(header.topic, payload, 0)
        elif header.type == RecordType.ACK:
            self.acks.apply(unpack_rows(payload))
        elif header.type in (RecordType.TOPIC, RecordType.POLICY):
            self.change(unpack_change(payload))

    def change(self, change: Mapping[str, Any]) -> None:
        """Put a change of the metadata in force."""
        self.metadata = self.metadata.apply(change)

    def snapshot(self) -> bytes:
        """All of it, to begin from."""
        kept = {one.number for one in self.metadata.subscriptions.values()}
        parts = self.metadata.pack() if self.metadata.version else b"", self.acks.pack(kept), self.uniq_ids.pack()
        return _PARTS.pack(*map(len, parts)) + b"".join(parts) if any(parts) else b""


class Ledger:
    """Appends facts and keeps the state in step with them."""

    def __init__(self, group: PartitionGroup, state: State) -> None:
        self.group = group
        self.state = state
        self.term = max(group.term, 1)
        self._undo: list[tuple[int, Callable[[], None]]] = []  # by the end of what would be taken back

    @property
    def metadata(self) -> Metadata:
        """Topics, apps and policies as they are now."""
        return self.state.metadata

    @property
    def end_position(self) -> int:
        """Where the next record will be."""
        return self.group.journal.end_position

    def change(self, change: Mapping[str, Any], now_ms: int) -> int:
        """Change the metadata; durable once the journal is synced to the position that is returned."""
        kind = RecordType.TOPIC if change["op"].endswith("_topic") else RecordType.POLICY
        end = self.group.append_control(kind, pack_change(change), term=self.term, now_ms=now_ms)
        before = self.state.metadata
        self.state.change(change)
        self.undo_with(end, lambda: self._restore(before))
        return end

    def _restore(self, metadata: Metadata) -> None:
        self.state.metadata = metadata

    def move_acks(self, rows: list[AckRow], now_ms: int) -> int:
        """Set ack indexes."""
        end = self.group.append_control(RecordType.ACK, pack_rows(rows), term=self.term, now_ms=now_ms)
        before = self.state.acks.apply(rows)
        self.undo_with(end, lambda: self._move_back(before))
        return end

    def _move_back(self, rows: list[AckRow]) -> None:
        self.state.acks.apply(rows)

    def undo_with(self, end_position: int, undo: Callable[[], None]) -> None:
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
