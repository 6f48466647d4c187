"""Transactions: which are open, where their messages are, how the others ended.

A fold over TRANSACTION records and the notes of those messages that came out of a transaction. A PUT record begins a
transaction, adds messages to it, or both; an OUTCOME record decides it, once and for good. The messages of a committed
one follow as records of their partitions, each with a note that says which part of which transaction it is. So a start
knows what is missing: `unfinished`. What is kept in memory is a row for each part; its bytes stay in the journal.

Every change returns what would undo it, for a turn that cannot be written.
"""

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import dropwhile
from typing import NamedTuple, Protocol
from zlib import crc32

Buffer = bytes | bytearray | memoryview
Undo = Callable[[], object]

NOTE_MARK = ord("T")
UNNUMBERED = -1  # of a request that does not say which of its transaction it is
TX_ID_BYTES_MAX = 100
OWN_ID_BYTES_MAX = 500  # of the application's own id
NO_ADDRESS = bytes(16)

_BEGINS, _COMMITS = 1, 2
_HEAD = struct.Struct(">BBB")  # kind, flags, length of the id
_OPENING = struct.Struct(">qH")  # time-out, length of the app
_PUT = struct.Struct(">iH16sH")  # number, length of the transactionId, client address, parts
_PART = struct.Struct(">hiiI")  # partition, messages, indexes, bytes
_CARRIED = struct.Struct(">H16s")  # which part, client address
_NOTE = struct.Struct(">BBqIBH")  # mark, flags, time, owner, length of the id, parts
_NUMBER = struct.Struct(">H")
_COUNTS = struct.Struct(">III")  # of a snapshot: decided, open, committed and not finished
_DECIDED = struct.Struct(">BqIB")  # length of the id, time, owner, outcome
_OPEN = struct.Struct(">BiHHqqiH")  # length of the id, topic, lengths of app and transactionId, times, requests, parts
_ROW = struct.Struct(">hiiIqI16s")  # a part: partition, messages, indexes, bytes, position, offset, client address


@dataclass(frozen=True, slots=True)
class TransactionLimits:
    """Times in milliseconds. What is too much is refused."""

    timeout_ms: int = 600_000  # of those whose client names none
    # An undecided one with an id of the application's own is rolled back after so long, whatever time-out it has.
    purge_ms: int = 24 * 3_600_000
    offer_every_ms: int = 60_000  # how often FETCH_PRODUCE_FEEDBACK tells of the same one
    open_max: int = 10_240  # of one app on one topic: 148
    open_total_max: int = 50_000
    parts_max: int = 1000  # requests with messages, of one transaction
    parts_total_max: int = 200_000
    bytes_max: int = 8 << 20  # of one transaction's messages
    decided_max: int = 100_000  # how many outcomes are remembered, and for how long
    decided_ms: int = 24 * 3_600_000
    cache_bytes_max: int = 32 << 20  # messages kept in memory, so that a commit need not read them back


class RecordFacts(Protocol):
    """What is looked at of a record's header."""

    @property
    def topic(self) -> int: ...

    @property
    def store_time_ms(self) -> int: ...


class Kind(IntEnum):
    """The first byte of a TRANSACTION record."""

    PUT = 1
    OUTCOME = 2
    CARRIED = 3  # a part written again, because the segment it was in had to go


class Outcome(IntEnum):
    """How a transaction ended."""

    ROLLED_BACK = 0
    COMMITTED = 1


class Part(NamedTuple):
    """Messages of one partition inside a transaction, and where in the journal their bytes are."""

    partition: int
    message_count: int
    index_count: int
    size: int
    position: int  # of the record
    offset: int  # in its payload
    address: bytes = NO_ADDRESS  # of the client who sent them


class NewPart(NamedTuple):
    """Messages to be put into a transaction."""

    partition: int
    message_count: int
    index_count: int
    messages: Buffer


@dataclass(slots=True)
class Transaction:
    """One that was begun. Times are wall time, as records have it."""

    tx_id: str
    topic: int
    app: str
    began_ms: int
    timeout_ms: int
    transaction_id: str = ""  # the application's own; with one it can be asked about
    requests: int = 0  # of those that are numbered
    parts: list[Part] = field(default_factory=list)
    size: int = 0  # bytes of its messages

    @property
    def message_count(self) -> int:
        """Messages, those of batches counted one by one."""
        return sum([part.index_count for part in self.parts])

    @property
    def owner(self) -> int:
        """Topic and app as a number, to tell whose a decided one was."""
        return owner_of(self.topic, self.app)


class Decided(NamedTuple):
    """One that ended."""

    outcome: Outcome
    decided_ms: int
    owner: int


def owner_of(topic: int, app: str) -> int:
    """Topic and app as a number."""
    return crc32(app.encode(), topic)


# --- records ---------------------------------------------------------------------------------------------------


def pack_put(
    tx_id: str,
    parts: Sequence[NewPart],
    *,
    begins: bool = False,
    commits: bool = False,
    app: str = "",
    timeout_ms: int = 0,
    transaction_id: str = "",
    number: int = UNNUMBERED,
    address: bytes = NO_ADDRESS,
) -> tuple[bytes, list[int]]:
    """The payload of a PUT record, and where in it the messages of each part begin."""
    name, own = tx_id.encode(), transaction_id.encode()
    pieces: list[Buffer] = [_HEAD.pack(Kind.PUT, begins * _BEGINS | commits * _COMMITS, len(name)), name]
    if begins:
        app_name = app.encode()
        pieces += (_OPENING.pack(timeout_ms, len(app_name)), app_name)
    pieces += (_PUT.pack(number, len(own), address, len(parts)), own)
    pieces += [_PART.pack(part[0], part[1], part[2], len(part[3])) for part in parts]
    at = sum(map(len, pieces))
    offsets = []
    for part in parts:
        offsets.append(at)
        at += len(part.messages)
    pieces += [part.messages for part in parts]
    return b"".join(pieces), offsets


def pack_outcome(tx_id: str, outcome: Outcome) -> bytes:
    """The payload of an OUTCOME record."""
    name = tx_id.encode()
    return _HEAD.pack(Kind.OUTCOME, outcome, len(name)) + name


def pack_carried(tx_id: str, number: int, part: Part, messages: Buffer) -> tuple[bytes, int]:
    """The payload of a CARRIED record, and where in it the messages begin."""
    name = tx_id.encode()
    head = _HEAD.pack(Kind.CARRIED, 0, len(name)) + name + _CARRIED.pack(number, part.address)
    return head + bytes(messages), len(head)


def pack_note(
    tx_id: str, numbers: Sequence[int], owner: int = 0, now_ms: int = 0, *, app: str = "", commits: bool = False
) -> bytes:
    """The note of messages that came out of a transaction: which parts of it they are, and who sent them.

    With `commits` the messages are all of it, and the note decides it too.
    """
    name = tx_id.encode()
    head = _NOTE.pack(NOTE_MARK, commits * _COMMITS, now_ms, owner, len(name), len(numbers))
    return head + name + b"".join(map(_NUMBER.pack, numbers)) + app.encode()


def sender_of(note: Buffer) -> str:
    """The app that a note names."""
    length, count = _NOTE.unpack_from(note)[4:]
    return bytes(note[_NOTE.size + length + count * _NUMBER.size :]).decode()


# --- the fold --------------------------------------------------------------------------------------------------


class Transactions:
    """All that are open, and the last so many that ended."""

    def __init__(self, decided_max: int = 100_000, decided_ms: int = 24 * 3_600_000) -> None:
        self._decided_max = decided_max
        self._decided_ms = decided_ms
        self._clear()

    def _clear(self) -> None:
        self.open: dict[str, Transaction] = {}
        self.part_count = 0  # of all that are open
        self._by_owner: dict[tuple[int, str], dict[str, Transaction]] = {}  # topic and app
        self._by_own_id: dict[tuple[int, str, str], str] = {}
        self._committed: dict[str, tuple[Transaction, dict[int, None]]] = {}  # with the parts not delivered yet
        self._decided: dict[str, bytes] = {}  # rows as the snapshot has them, oldest first

    # --- asking ------------------------------------------------------------------------------------------------

    def count(self, topic: int, app: str) -> int:
        """How many that app has open on that topic."""
        return len(self._by_owner.get((topic, app), ()))

    def open_of(self, topic: int, app: str) -> Iterator[Transaction]:
        """Those that app has open on that topic."""
        return iter(self._by_owner.get((topic, app), {}).values())

    def find_own(self, topic: int, app: str, transaction_id: str) -> str | None:
        """The id of the open one that has this id of the application's."""
        return self._by_own_id.get((topic, app, transaction_id))

    def decided(self, tx_id: str) -> Decided | None:
        """How that one ended, if it is remembered."""
        row = self._decided.get(tx_id)
        return None if row is None else _read_decided(row)

    def unfinished(self) -> list[tuple[Transaction, list[int]]]:
        """Committed ones, with the numbers of those parts that are not in their partitions yet."""
        return [(transaction, list(missing)) for transaction, missing in self._committed.values()]

    def unfinished_of(self, tx_id: str) -> tuple[Transaction, list[int]] | None:
        """The same of one; None if nothing of it is missing."""
        found = self._committed.get(tx_id)
        return None if found is None else (found[0], list(found[1]))

    def carry(self, before_position: int) -> list[tuple[str, int, Part]]:
        """Parts whose records begin before that position and are still needed."""
        found = []
        for transaction in self.open.values():
            numbered = enumerate(transaction.parts)
            found += [(transaction.tx_id, n, part) for n, part in numbered if part.position < before_position]
        for transaction, missing in self._committed.values():
            rows = [(n, transaction.parts[n]) for n in missing]
            found += [(transaction.tx_id, n, part) for n, part in rows if part.position < before_position]
        return found

    # --- changing ----------------------------------------------------------------------------------------------

    def begin(self, transaction: Transaction) -> Undo:
        """One more is open."""
        tx_id = transaction.tx_id
        self._add(transaction)
        return lambda: self._remove(tx_id)

    def put(self, tx_id: str, parts: Sequence[Part], transaction_id: str = "", *, is_numbered: bool = False) -> Undo:
        """Messages more for one that is open; an id of the application's, if it gives one now."""
        transaction = self.open[tx_id]
        before = len(transaction.parts), transaction.requests, transaction.transaction_id, transaction.size
        transaction.parts += parts
        transaction.size += sum([part.size for part in parts])
        self.part_count += len(parts)
        transaction.requests += is_numbered
        if transaction_id:
            self._name(transaction, transaction_id)

        def undo() -> None:
            self.part_count -= len(transaction.parts) - before[0]
            del transaction.parts[before[0] :]
            transaction.requests = before[1]
            self._name(transaction, before[2])
            transaction.size = before[3]

        return undo

    def decide(self, tx_id: str, outcome: Outcome, now_ms: int) -> Undo:
        """End one that is open."""
        transaction = self._remove(tx_id)
        if outcome is Outcome.COMMITTED and transaction.parts:
            self._committed[tx_id] = transaction, dict.fromkeys(range(len(transaction.parts)))
        self._remember(tx_id, outcome, transaction.owner, now_ms)

        def undo() -> None:
            self._committed.pop(tx_id, None)
            self._decided.pop(tx_id, None)
            self._add(transaction)

        return undo

    def commit_whole(self, tx_id: str, owner: int, now_ms: int) -> Undo:
        """Committed and delivered by one record; it need not have been open."""
        if tx_id in self.open:
            undo = self.decide(tx_id, Outcome.COMMITTED, now_ms)
            self._committed.pop(tx_id, None)
            return undo
        self._remember(tx_id, Outcome.COMMITTED, owner, now_ms)
        return lambda: self._decided.pop(tx_id, None)

    def commit_new(self, transaction: Transaction, now_ms: int) -> Undo:
        """Begun, filled and committed by one record; its parts have yet to be delivered."""
        tx_id = transaction.tx_id
        if transaction.parts:
            self._committed[tx_id] = transaction, dict.fromkeys(range(len(transaction.parts)))
        self._remember(tx_id, Outcome.COMMITTED, transaction.owner, now_ms)

        def undo() -> None:
            self._committed.pop(tx_id, None)
            self._decided.pop(tx_id, None)

        return undo

    def deliver(self, tx_id: str, numbers: Sequence[int]) -> Undo:
        """Parts of a committed one are in their partition."""
        found = self._committed.get(tx_id)
        if found is None:
            return _nothing
        transaction, missing = found
        done = [number for number in numbers if missing.pop(number, number) is None]
        behind: list[str] = []
        if not missing:
            behind = list(dropwhile(lambda other: other != tx_id, self._committed))[1:]  # nearly always none
            del self._committed[tx_id]

        def undo() -> None:
            left = self._committed.setdefault(tx_id, (transaction, missing))[1]
            again = sorted([*left, *done])
            left.clear()
            left.update(dict.fromkeys(again))
            for other in behind:  # those that were committed later come out later
                self._committed[other] = self._committed.pop(other)

        return undo

    def drop_unfinished(self, tx_id: str) -> None:
        """The rest of a committed one has nowhere to go any more."""
        self._committed.pop(tx_id, None)

    def move(self, tx_id: str, number: int, position: int, offset: int) -> Undo:
        """The bytes of a part are elsewhere now."""
        transaction = self.open.get(tx_id)
        if transaction is None and tx_id in self._committed:
            transaction = self._committed[tx_id][0]
        if transaction is None or number >= len(transaction.parts):
            return _nothing
        parts, before = transaction.parts, transaction.parts[number]
        parts[number] = before._replace(position=position, offset=offset)

        def undo() -> None:
            parts[number] = before

        return undo

    # --- records -----------------------------------------------------------------------------------------------

    def apply(self, header: RecordFacts, payload: Buffer, position: int) -> None:
        """One TRANSACTION record more, which begins at that position."""
        topic, now_ms = header.topic, header.store_time_ms
        kind, flags, length = _HEAD.unpack_from(payload)
        at = _HEAD.size + length
        tx_id = bytes(payload[_HEAD.size : at]).decode()
        if kind == Kind.PUT:
            self._apply_put(tx_id, flags, topic, now_ms, payload, at, position)
        elif kind == Kind.CARRIED:
            number, _ = _CARRIED.unpack_from(payload, at)
            self.move(tx_id, number, position, at + _CARRIED.size)
        elif tx_id in self.open:
            self.decide(tx_id, Outcome(flags), now_ms)

    def apply_note(self, note: Buffer, position: int) -> None:
        """Messages came out of a transaction."""
        _, flags, now_ms, owner, length, count = _NOTE.unpack_from(note)
        at = _NOTE.size + length
        tx_id = bytes(note[_NOTE.size : at]).decode()
        if flags & _COMMITS:
            self.commit_whole(tx_id, owner, now_ms)
        else:
            self.deliver(tx_id, [_NUMBER.unpack_from(note, at + 2 * n)[0] for n in range(count)])

    def _apply_put(
        self, tx_id: str, flags: int, topic: int, now_ms: int, payload: Buffer, at: int, position: int
    ) -> None:
        if flags & _BEGINS:
            timeout_ms, length = _OPENING.unpack_from(payload, at)
            at += _OPENING.size + length
            app = bytes(payload[at - length : at]).decode()
            self.begin(Transaction(tx_id, topic, app, now_ms, timeout_ms))
        elif tx_id not in self.open:
            return  # where it was begun cannot be read any more
        number, length, address, count = _PUT.unpack_from(payload, at)
        at += _PUT.size + length
        own_id = bytes(payload[at - length : at]).decode()
        offset = at + count * _PART.size
        parts = []
        for nth in range(count):
            partition, messages, indexes, size = _PART.unpack_from(payload, at + nth * _PART.size)
            parts.append(Part(partition, messages, indexes, size, position, offset, address))
            offset += size
        self.put(tx_id, parts, own_id, is_numbered=number != UNNUMBERED)
        if flags & _COMMITS:
            self.decide(tx_id, Outcome.COMMITTED, now_ms)

    # --- snapshots ---------------------------------------------------------------------------------------------

    def pack(self, kept: object = None) -> bytes:
        """All of it."""
        if not self.open and not self._decided and not self._committed:
            return b""
        pieces = [_COUNTS.pack(len(self._decided), len(self.open), len(self._committed)), *self._decided.values()]
        pieces += map(_pack_open, self.open.values())
        for transaction, missing in self._committed.values():
            pieces.append(_pack_open(transaction))
            pieces.append(_NUMBER.pack(len(missing)) + b"".join(map(_NUMBER.pack, missing)))
        return b"".join(pieces)

    def restore(self, data: bytes) -> None:
        """Begin from what `pack` gave."""
        self._clear()
        if not data:
            return
        decided, opened, committed = _COUNTS.unpack_from(data)
        at = _COUNTS.size
        for _ in range(decided):
            end = at + _DECIDED.size + data[at]
            self._decided[data[at + _DECIDED.size : end].decode()] = data[at:end]
            at = end
        for _ in range(opened):
            transaction, at = _unpack_open(data, at)
            self._add(transaction)
        for _ in range(committed):
            transaction, at = _unpack_open(data, at)
            (count,) = _NUMBER.unpack_from(data, at)
            numbers = [_NUMBER.unpack_from(data, at + 2 + 2 * n)[0] for n in range(count)]
            at += 2 + 2 * count
            self._committed[transaction.tx_id] = transaction, dict.fromkeys(numbers)

    # --- inside ------------------------------------------------------------------------------------------------

    def _add(self, transaction: Transaction) -> None:
        tx_id = transaction.tx_id
        self.open[tx_id] = transaction
        self._by_owner.setdefault((transaction.topic, transaction.app), {})[tx_id] = transaction
        self.part_count += len(transaction.parts)
        self._name(transaction, transaction.transaction_id)

    def _remove(self, tx_id: str) -> Transaction:
        transaction = self.open.pop(tx_id)
        owner = transaction.topic, transaction.app
        of_owner = self._by_owner[owner]
        del of_owner[tx_id]
        if not of_owner:
            del self._by_owner[owner]
        self.part_count -= len(transaction.parts)
        if transaction.transaction_id:
            self._by_own_id.pop((*owner, transaction.transaction_id), None)
        return transaction

    def _name(self, transaction: Transaction, transaction_id: str) -> None:
        if transaction.transaction_id != transaction_id:
            self._by_own_id.pop((transaction.topic, transaction.app, transaction.transaction_id), None)
            transaction.transaction_id = transaction_id
        if transaction_id:
            self._by_own_id[transaction.topic, transaction.app, transaction_id] = transaction.tx_id

    def _remember(self, tx_id: str, outcome: Outcome, owner: int, now_ms: int) -> None:
        name = tx_id.encode()
        rows = self._decided
        rows[tx_id] = _DECIDED.pack(len(name), now_ms, owner, outcome) + name
        while len(rows) > self._decided_max:
            del rows[next(iter(rows))]
        oldest = next(iter(rows), None)
        while oldest is not None and _read_decided(rows[oldest]).decided_ms < now_ms - self._decided_ms:
            del rows[oldest]
            oldest = next(iter(rows), None)


def _nothing() -> None:
    pass


def _read_decided(row: bytes) -> Decided:
    _, decided_ms, owner, outcome = _DECIDED.unpack_from(row)
    return Decided(Outcome(outcome), decided_ms, owner)


def _pack_open(one: Transaction) -> bytes:
    name, app, own = one.tx_id.encode(), one.app.encode(), one.transaction_id.encode()
    times = one.began_ms, one.timeout_ms
    head = _OPEN.pack(len(name), one.topic, len(app), len(own), *times, one.requests, len(one.parts))
    return b"".join((head, name, app, own, *[_ROW.pack(*part) for part in one.parts]))


def _unpack_open(data: bytes, at: int) -> tuple[Transaction, int]:
    name_bytes, topic, app_bytes, own_bytes, began_ms, timeout_ms, requests, count = _OPEN.unpack_from(data, at)
    at += _OPEN.size
    texts = []
    for length in (name_bytes, app_bytes, own_bytes):
        texts.append(data[at : at + length].decode())
        at += length
    end = at + count * _ROW.size
    parts = list(map(Part._make, _ROW.iter_unpack(data[at:end])))
    size = sum([part.size for part in parts])
    return Transaction(texts[0], topic, texts[1], began_ms, timeout_ms, texts[2], requests, parts, size), end
