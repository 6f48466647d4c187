"""The journal together with the state that is a fold over it: topics and policies, acks, retries, delays and so on.

Whatever is appended is in force at once, in the journal's order; what a failed flush takes back is undone here. So the
snapshot that the store asks for always is that of the records before it.
"""

import struct
from collections.abc import Callable, Container, Iterable, Mapping
from typing import Any, NamedTuple, Protocol

from lakemq.broker.config import BrokerConfig
from lakemq.broker.tracing import Tracing
from lakemq.cluster.metadata import Metadata, pack_change, topics_of, unpack_change
from lakemq.delivery.ack_index import AckIndexes, AckRow, pack_rows, unpack_rows
from lakemq.delivery.dead_letters import DeadLetters
from lakemq.delivery.delay_record import ADD, ADD_BYTES, NOTE_MARK, unpack_add
from lakemq.delivery.delays import Delays
from lakemq.delivery.expiring import Expiring
from lakemq.delivery.intervals import Undo
from lakemq.delivery.retries import Retries
from lakemq.delivery.setbacks import Setbacks
from lakemq.delivery.settlement import (
    Acked,
    AckedRuns,
    Buried,
    DeadLetter,
    Edited,
    Entry,
    LeaseEnded,
    Moved,
    Retried,
    Retry,
    Stuck,
    pack_entries,
    unpack_entries,
)
from lakemq.delivery.transactions import Transactions, sender_of
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

TRANSACTION_MARK = b"T"
SENDER_MARK = b"S"
"""Begins the note of messages that have an id and name no app: who sent them, for ids are by sender."""

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

    def __init__(self, config: BrokerConfig) -> None:
        self.metadata = Metadata()
        self.acks = AckIndexes()
        self.uniq_ids = UniqIds(config.uniq_ids_max, config.uniq_ids_ms)
        self.retries = Retries()
        self.dead_letters = DeadLetters()
        self.setbacks = Setbacks()
        self.expiring = Expiring()
        self.transactions = Transactions(config.transactions.decided_max, config.transactions.decided_ms)
        self.delays = Delays()
        self._parts: dict[str, Part] = {
            "acks": self.acks,
            "uniq": self.uniq_ids,
            "retries": self.retries,
            "dead": self.dead_letters,
            "setbacks": self.setbacks,
            "expiring": self.expiring,
            "transactions": self.transactions,
            "delays": self.delays,
        }

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
            messages = payload[note_bytes(kind, payload) :]
            note = bytes(note_of(payload)) if kind == RecordType.NOTED else b""
            self.uniq_ids.apply(header.topic, messages, 0, header.store_time_ms, _sender_in(note))
            self.expiring.apply(header.topic, header.partition, messages)
            if note[:1] == TRANSACTION_MARK:
                self.transactions.apply_note(note, position)
            elif note[:1] == NOTE_MARK:
                self.delays.apply_note(memoryview(note), position)
        elif kind == RecordType.ACK:
            self.acks.apply(unpack_rows(payload))
        elif kind == RecordType.SETTLE:
            for entry in unpack_entries(payload):
                self.settle(entry)
        elif kind == RecordType.DELAY:
            self.delays.apply(header, payload, position)
            if payload[0] == ADD:
                messages, partition = payload[ADD_BYTES:], unpack_add(payload).partition
                self.uniq_ids.apply(header.topic, messages, 0, header.store_time_ms, delayed_to=partition)
        elif kind == RecordType.TRANSACTION:
            self.transactions.apply(header, payload, position)
        elif kind in (RecordType.TOPIC, RecordType.POLICY):
            self.change(unpack_change(payload))

    def settle(self, entry: Entry) -> Undo:
        """Put one entry of a SETTLE record in force."""
        if isinstance(entry, Acked):
            return self._acked(entry[0], entry[1], self.acks.settle(*entry))
        if isinstance(entry, AckedRuns):
            undo = self.acks.settle_runs(entry.subscription, entry.partition, entry.runs)
            return self._acked(entry.subscription, entry.partition, undo)
        if isinstance(entry, Retry):
            return self.retries.put(entry)
        if isinstance(entry, Retried):
            return self.retries.remove(entry.id)
        if isinstance(entry, DeadLetter):
            return self.dead_letters.put(entry)
        if isinstance(entry, Buried):
            return self.dead_letters.bury(entry)
        if isinstance(entry, Edited):
            return self.dead_letters.edit(entry)
        if isinstance(entry, Stuck):
            return self.setbacks.put(entry)
        if isinstance(entry, LeaseEnded):
            return self.setbacks.ended(entry)
        return self._move(entry)

    def _acked(self, subscription: int, partition: int, undo: Undo) -> Undo:
        """An app has come further: leases that ran out before that count no more."""
        if not self.setbacks.has_ended:
            return undo
        undo_both = [undo, self.setbacks.forget_below(subscription, partition, self.acks.get(subscription, partition))]
        return lambda: _undo_all(undo_both)

    def _move(self, entry: Moved) -> Undo:
        """What refers to a message looks for it elsewhere."""
        self.retries.move(*entry)
        self.dead_letters.move(*entry)
        back = Moved(entry.position, entry.message_index, entry.old_position)

        def undo() -> None:
            self.retries.move(*back)
            self.dead_letters.move(*back)

        return undo

    def change(self, change: Mapping[str, Any]) -> None:
        """Put a change of the metadata in force."""
        self.metadata = self.metadata.apply(change)

    def snapshot(self) -> bytes:
        """All of it, to begin from."""
        kept = {one.number for one in self.metadata.subscriptions.values()}
        parts = {"metadata": self.metadata.pack() if self.metadata.version else b""}
        parts |= {name: part.pack(kept) for name, part in self._parts.items()}
        return _pack_parts({name: data for name, data in parts.items() if data})


class Stand(NamedTuple):
    """Where an app is in a partition, as others are told."""

    first_index: int  # the oldest that is kept
    next_index: int  # what it gets next
    visible_index: int  # the end of what can be read


class Ledger:
    """Appends facts and keeps the state in step with them."""

    def __init__(self, group: PartitionGroup, state: State) -> None:
        self.group = group
        self.state = state
        self.term = max(group.term, 1)
        self.tracing = Tracing(group, state.setbacks)
        self.tracing.look(state.metadata)
        self._undo: list[tuple[int, Callable[[], object]]] = []  # by the end of what would be taken back
        self._once_written: list[tuple[int, Callable[[], object]]] = []  # by the end of what is waited for
        self._undo_end = 0  # of all in `_undo`
        self._changed_topics: set[str] | None = set()  # see `take_changed_topics`

    @property
    def metadata(self) -> Metadata:
        """Topics, apps and policies as they are now."""
        return self.state.metadata

    @property
    def end_position(self) -> int:
        """Where the next record will be."""
        return self.group.journal.end_position

    @property
    def unwritten_end(self) -> int | None:
        """Where all that is in force and may still be taken back ends; None if there is nothing of that kind.

        It may lie behind `end_position`: a turn that could not be written before a new segment is undone by its flush.
        """
        return self._undo_end if self._undo else None

    def stand(self, topic: int, partition: int, subscription: int) -> Stand:
        """Where an app is: within what can be read, though it may have begun behind messages that are not durable."""
        first = self.group.first_index(topic, partition)
        visible = self.group.visible_index(topic, partition)
        return Stand(first, max(min(self.state.acks.get(subscription, partition), visible), first), visible)

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
        topics = topics_of(change)
        self._trace(change)
        self._note_changed(topics)
        self.undo_with(end, lambda: self._restore(before))
        return end

    def _trace(self, change: Mapping[str, Any]) -> None:
        """Let the trace know; what a first use makes costs the same however much there is."""
        metadata = self.state.metadata
        if change["op"] == "put_topic":
            self.tracing.look_at_topic(metadata.topics[change["topic"]["name"]])
        elif change["op"] == "put_subscription":
            topic, app = change["subscription"]["topic"], change["subscription"]["app"]
            self.tracing.look_at_subscription(metadata.topics[topic], metadata.subscriptions[topic, app])
        elif topics_of(change) is None:
            self.tracing.look(metadata)

    def _restore(self, metadata: Metadata) -> None:
        self.state.metadata = metadata
        self.tracing.look(metadata)
        self._note_changed(None)

    def _note_changed(self, topics: Iterable[str] | None) -> None:
        if topics is None:
            self._changed_topics = None
        elif self._changed_topics is not None:
            self._changed_topics.update(topics)

    def take_changed_topics(self) -> set[str] | None:
        """The topics whose consumers changes since the last call may concern; None if it may be any."""
        changed, self._changed_topics = self._changed_topics, set()
        return changed

    def move_acks(self, rows: list[AckRow], now_ms: int) -> int:
        """Set ack indexes."""
        _, end = self.append(RecordType.ACK, pack_rows(rows), now_ms)
        self.undo_with(end, self.state.acks.apply(rows))
        return end

    def settle(self, entries: list[Entry], now_ms: int) -> int:
        """Say what became of messages, all of it or nothing."""
        _, end = self.append(RecordType.SETTLE, pack_entries(entries), now_ms)
        undos = [self.state.settle(entry) for entry in entries]
        self.undo_with(end, lambda: _undo_all(undos))
        return end

    def undo_with(self, end_position: int, undo: Callable[[], object]) -> None:
        """What to do if the record that ends there is not written after all."""
        self._undo.append((end_position, undo))
        if end_position > self._undo_end:
            self._undo_end = end_position

    def do_once_written(self, end_position: int, act: Callable[[], object]) -> None:
        """What to do when the record that ends there is written; nothing if it never is."""
        self._once_written.append((end_position, act))

    def flush(self) -> list[tuple[int, int]]:
        """Write the turn: what became visible by that. On an error, what is not written is undone."""
        failure: LakeMQError | None = None
        changed: list[tuple[int, int]] = []
        try:
            changed = self.group.flush()
        except LakeMQError as error:
            failure = error
        written = self.group.journal.written_position
        if failure is not None:
            for end_position, undo in reversed(self._undo):
                if end_position > written:
                    undo()
        self._undo.clear()
        self._undo_end = 0
        for end_position, act in self._once_written:  # a part of the turn may be there even if not all of it is
            if end_position <= written:
                act()
        self._once_written.clear()
        if failure is not None:
            raise failure
        return changed


def _sender_in(note: bytes) -> str:
    """Who sent messages that do not say so themselves."""
    if note[:1] == SENDER_MARK:
        return note[1:].decode()
    return sender_of(note) if note[:1] == TRANSACTION_MARK else ""


def _undo_all(undos: list[Undo]) -> None:
    for undo in reversed(undos):
        undo()


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
