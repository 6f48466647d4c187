"""Messages that a handler could not handle and the broker could not take back: kept on the consumer's own disk.

They are handed to the handler again with growing pauses, also by the next start, until it takes them. A message that is
parked is acked; one that is delivered all the same, because it could not be acked, is known by its id and acked then.
One directory belongs to one handler of one process; its file is that of an outbox (`outbox_log.py`).
"""

import threading
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

from lakemq.attributes import TAGS
from lakemq.client.delivery import ATTEMPT, Carried, Delivery
from lakemq.client.handlers import LOG, Settle
from lakemq.client.lease import Refused
from lakemq.client.outbox_file import OutboxFile
from lakemq.client.outbox_log import Entry
from lakemq.compression import Compression
from lakemq.envelope import pack
from lakemq.errors import LakeMQError
from lakemq.message import AckType, Message
from lakemq.wire.own import BY_POLICY, SettleOutcome

DEAD = "LAKEMQ_DEAD"  # the handler has given it up: kept for an operator, not tried again
_PAUSE_FIRST_MS = 1000
_PAUSE_MAX_MS = 300_000
_PLAIN = -1
_OWED_MAX = 10_000
_INT_MAX = 0x7FFFFFFF


class ParkedHold:
    """What becomes of one parked message, as its handler says."""

    def __init__(self) -> None:
        self.is_lost = False
        self.said: Settle | None = None

    def settle(self, place: int, how: int) -> None:
        """One is done with; the first word counts."""
        self._say(Settle.DROP if how == AckType.SUCCESS else Settle.RETRY)

    def settle_as(
        self, place: int, outcome: SettleOutcome, after_ms: int, reason: str, on_refused: Refused | None = None
    ) -> None:
        """The same with all that SETTLE can say."""
        self._say(Settle(outcome, after_ms, reason))

    def is_settled(self, place: int) -> bool:
        """Whether it is."""
        return self.said is not None

    def is_over(self, place: int) -> bool:
        """It is in our own hands."""
        return False

    def _say(self, said: Settle) -> None:
        if self.said is None:
            self.said = said


class _Row(NamedTuple):
    """One that waits: when it is due, how often it has failed since it came, and what it is."""

    due_ms: int
    tries: int
    entry: Entry
    message_id: str


class Parked(NamedTuple):
    """One that is being tried again."""

    delivery: Delivery
    hold: ParkedHold
    row: _Row


class Parking:
    """The parked messages of one handler. Any thread may call it."""

    def __init__(self, directory: Path, topic: str, app: str, bytes_max: int) -> None:
        self.inbox: SimpleQueue[Delivery] = SimpleQueue()  # refused by the broker, and not on disk yet
        self._topic = topic
        self._app = app
        self._lock = threading.Lock()
        self._file = OutboxFile(directory / f"{topic}@{app}", bytes_max)
        self._rows: dict[int, _Row] = {}  # by sequence; those that are being tried are not among them
        self._ids: set[str] = set()
        self._owed: dict[str, None] = {}  # those that will be delivered again, since their lease was lost
        self._dead = 0
        for entry in list(self._file.log.live.values()):
            delivery = self._delivery(entry, ParkedHold())
            if DEAD in delivery.attributes():
                self._dead += 1
            else:
                self._add(_Row(0, 0, entry, delivery.message_id))

    def __len__(self) -> int:
        """Those that wait for another try."""
        return len(self._ids)

    @property
    def dead(self) -> int:
        """Those that the handler has given up; they stay in the file."""
        return self._dead

    def holds(self, message_id: str) -> bool:
        """Whether a message that is delivered is here, or was, and need only be acked."""
        with self._lock:
            is_owed = self._owed.pop(message_id, self) is None
            return is_owed or message_id in self._ids

    def owe(self, message_id: str) -> None:
        """Its ack cannot be given before it is delivered once more."""
        with self._lock:
            self._owed[message_id] = None
            if len(self._owed) > _OWED_MAX:
                del self._owed[next(iter(self._owed))]

    def keep(self, delivery: Delivery, now_ms: int) -> None:
        """Take it over; it is on disk when this returns. OutboxFullError if there is no room."""
        with self._lock:
            if delivery.message_id not in self._ids:
                entry = self._store(_message(delivery))
                self._add(_Row(now_ms + _PAUSE_FIRST_MS, 0, entry, delivery.message_id))

    def wait_ms(self, now_ms: int) -> int | None:
        """How long until the next one is due; None if there is none."""
        with self._lock:
            return None if not self._rows else max(min(row.due_ms for row in self._rows.values()) - now_ms, 0)

    def take(self, now_ms: int) -> Parked | None:
        """The one that is due first; `said` must follow."""
        with self._lock:
            row = min(self._rows.values(), key=lambda one: one.due_ms, default=None)
            if row is None or row.due_ms > now_ms:
                return None
            del self._rows[row.entry.sequence]
        hold = ParkedHold()
        return Parked(self._delivery(row.entry, hold), hold, row)

    def said(self, parked: Parked, result: object, now_ms: int) -> None:
        """The handler has returned: strike it off, or keep it as it says."""
        what = parked.hold.said or (result if isinstance(result, Settle) else Settle.DROP)
        row = parked.row
        with self._lock:
            if what.outcome is SettleOutcome.RETRY:
                after_ms = _pause_ms(row.tries) if what.after_ms == BY_POLICY else what.after_ms
                self._add(row._replace(due_ms=now_ms + after_ms, tries=row.tries + 1))
                return
            if what.outcome is SettleOutcome.DEAD_LETTER:
                self._store(_message(parked.delivery, {DEAD: what.reason or "dead"}))
                self._dead += 1
            self._strike(row.entry)
            self._ids.discard(row.message_id)

    def close(self) -> None:
        """Let others have it."""
        with self._lock:
            self._file.close()

    def _add(self, row: _Row) -> None:
        self._rows[row.entry.sequence] = row
        self._ids.add(row.message_id)

    def _store(self, message: bytes) -> Entry:
        entry, record = self._file.log.add(self._topic, None, self._app, "flush", False, 1, message)
        try:
            self._file.append(record, is_synced=True)
        except LakeMQError:
            self._file.log.done(entry.sequence)
            raise
        return entry

    def _strike(self, entry: Entry) -> None:
        record = self._file.log.done(entry.sequence)
        if self._file.log.is_mostly_done:
            self._file.replace(self._file.log.rewritten())
        else:
            self._file.append(record, is_synced=False)  # what a crash forgets is handled again

    def _delivery(self, entry: Entry, hold: ParkedHold) -> Delivery:
        carried = Carried(entry.topic, memoryview(entry.message), 0, self._app).opened()
        return Delivery(carried, _PLAIN, carried.index, hold, 0)


def keep(parking: Parking, delivery: Delivery, now_ms: int) -> LakeMQError | None:
    """Write down what the broker refused to take back; the error if that is not possible."""
    try:
        parking.keep(delivery, now_ms)
    except LakeMQError as error:
        return error
    return None


def tell(parking: Parking, delivery: Delivery, failure: LakeMQError | None) -> None:
    """Tell the broker that we have it; if not, it must look after it all the same."""
    if failure is not None:
        LOG.error("%s cannot be parked, and is left to the broker: %s", delivery.message_id, failure)
        delivery.retry()
    else:
        LOG.warning("%s is parked: the broker cannot take it back now", delivery.message_id)
        delivery.ack()
        if delivery.is_lost:
            parking.owe(delivery.message_id)


def _pause_ms(tries: int) -> int:
    return min(_PAUSE_FIRST_MS << min(tries + 1, 16), _PAUSE_MAX_MS)


def _message(delivery: Delivery, more: dict[str, str] | None = None) -> bytes:
    """A delivery as the MESSAGE that it would be alone, with the numbers it was delivered with."""
    attributes = {**delivery.attributes(), ATTEMPT: str(delivery.attempt), **(more or {})}
    if delivery.tags and TAGS not in attributes:
        attributes[TAGS] = ",".join(delivery.tags)
    return pack(
        Message(
            body=delivery.body,
            business_id=delivery.key or "",
            attributes=attributes,
            compression=Compression.LZ4,
            send_time_ms=delivery.sent_at,
            store_time_ms=min(max(delivery.stored_at - delivery.sent_at, 0), _INT_MAX),
            partition=delivery.partition,
            index=delivery.offset,
        )
    )
