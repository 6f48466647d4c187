"""What happens to messages of archived topics, noted down for the archive.

Handlers say what they have done, once per run of messages, and it counts when its turn is written: what a turn that
fails takes back has not happened. Runs that continue each other become one row. Nothing here is durable before it is
in the topic of events (`archiving.py`): a kill loses the last rows, never a message.
"""

import struct
from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol

from lakemq.broker.events import Now
from lakemq.cluster.metadata import Metadata, Subscription, Topic
from lakemq.delivery.intervals import Intervals
from lakemq.delivery.loans import Lease, Loans
from lakemq.delivery.setbacks import Setbacks
from lakemq.delivery.settlement import DeadLetter, Entry, Retried, Retry, Stuck
from lakemq.delivery.trace_record import EVENTS_TOPIC, NO_INDEX, NO_PARTITION, UNKNOWN_MS, Event, EventKind
from lakemq.message import Message
from lakemq.record import Buffer
from lakemq.storage.partition_group import PartitionGroup

ROWS_MAX = 10_000  # that wait; further ones are dropped, and counted
ROWS_MANY = 1000  # that are written without waiting for more
MERGE_MS = 20
REFUSED_MAX = 200  # rows of refused sends among those that wait: a flood of them leaves room for what did happen
_REFUSED_CHARACTERS_MAX = 300
_SUBJECTS_MAX = 10_000
_RETRIES_MAX = 100_000

Run = tuple[int, int]


class Whose(Protocol):
    """An app on a topic, and what it has in hand; a lending is one."""

    topic_number: int
    app: str
    number: int  # of the subscription
    loans: Loans


class WhoseRetries(Protocol):
    """The same where only its name counts."""

    topic_number: int
    app: str


class Receiver(Protocol):
    """Who is lent something; a connection is one."""

    client: str


class Subject:
    """What rows that continue each other have in common, but for the partition. Each is one object."""

    __slots__ = ("app", "attempt", "client", "kind", "reason", "topic", "topic_name")

    def __init__(
        self, topic_name: str, kind: int, topic: int, app: str, client: str, attempt: int, reason: str
    ) -> None:
        self.topic_name = topic_name
        self.kind = kind
        self.topic = topic
        self.app = app
        self.client = client
        self.attempt = attempt
        self.reason = reason


class LentTo(NamedTuple):
    """What is known of a lease: since when (monotonic), who has it, and at which messages which attempt that is."""

    since_ms: int
    client: str
    attempts: list[tuple[int, int, int]]  # first, after, attempt


_NOBODY = LentTo(0, "", [])
_Noted = tuple[int, Subject, int, int, int, int, int | Buffer]
"""Where its record ends; subject, partition, first index, the one behind the last; wall time; elapsed time, or the
messages whose first one tells when it was sent."""
_SEND_TIME = struct.Struct(">21xq")  # of a message
_TIME, _FIRST, _AFTER, _ELAPSED = range(4)  # of an open row


class Tracing:
    """Collects events. `topics` are those that are traced, by number; of others, apps whose policy says is_archive."""

    def __init__(self, group: PartitionGroup, setbacks: Setbacks) -> None:
        self.topics: Mapping[int, str] = {}
        self._consumers: frozenset[tuple[int, str]] = frozenset()  # topic and app: traced whatever the topic is
        self._names: dict[int, str] = {}
        self.dropped_count = 0
        self._journal = group.journal
        self._setbacks = setbacks
        self._turn: list[_Noted] = []
        self._rows: list[tuple[Subject, int, list[int]]] = []
        self._open: dict[tuple[Subject, int], list[int]] = {}  # the last row of each subject and partition
        self._oldest_ms = 0  # monotonic, of `_rows`
        self._refused_count = 0  # of the rows that wait
        self._waiting: list[Event] = []  # what could not be written, and is tried again
        self._subjects: dict[tuple[int, int, str, str, int, str], Subject] = {}
        self._retries_lent: dict[int, tuple[int, str]] = {}  # by id: since when (monotonic), to whom

    def look(self, metadata: Metadata) -> None:
        """Topics may have become archived, or be so no more."""
        self.topics = {
            topic.number: topic.name
            for topic in metadata.topics.values()
            if topic.is_archived and topic.name != EVENTS_TOPIC
        }
        self._names = {topic.number: topic.name for topic in metadata.topics.values()}
        self._consumers = frozenset(
            (metadata.topics[one.topic].number, one.app)
            for one in metadata.subscriptions.values()
            if one.consumer is not None and one.consumer.is_archive and one.topic in metadata.topics
        )

    def _wants(self, topic: int, app: str) -> bool:
        """Whether what an app does with messages of a topic is to be told."""
        return topic in self.topics or (topic, app) in self._consumers

    def look_at_topic(self, topic: Topic) -> None:
        """`look`, where only this may have changed."""
        self._names[topic.number] = topic.name
        is_traced = topic.is_archived and topic.name != EVENTS_TOPIC
        if is_traced != (topic.number in self.topics):
            others = {number: name for number, name in self.topics.items() if number != topic.number}
            self.topics = {**others, topic.number: topic.name} if is_traced else others

    def look_at_subscription(self, topic: Topic, one: Subscription) -> None:
        """`look`, where only this may have changed."""
        place = topic.number, one.app
        is_traced = one.consumer is not None and one.consumer.is_archive
        if is_traced != (place in self._consumers):
            self._consumers = self._consumers | {place} if is_traced else self._consumers - {place}

    # --- what happened -----------------------------------------------------------------------------------------

    def sender(self, topic: int, app: str, client: str) -> Subject | None:
        """Whose messages are stored, for `stored`; None if nobody wants to know."""
        return self._subject(EventKind.PRODUCED, topic, app, client) if topic in self.topics else None

    def stored(
        self, sender: Subject, end_position: int, partition: int, first: int, after: int, messages: Buffer, now_ms: int
    ) -> None:
        """A run of messages is in the journal, in a record that ends there. They are looked at when the turn ends."""
        self._turn.append((end_position, sender, partition, first, after, now_ms, messages))

    def produced(self, topic: int, partition: int, first: int, after: int, app: str, client: str, now: Now) -> None:
        """The same by those who do not know whether anybody wants to know."""
        sender = self.sender(topic, app, client)
        if sender is not None:
            self._note(sender, partition, first, after, UNKNOWN_MS, now)

    def refused(
        self, topic: int, app: str, client: str, partition: int, count: int, reason: str, sent_ms: int, now: Now
    ) -> None:
        """A send was not taken: so many messages. It happened whatever becomes of the turn."""
        if topic not in self.topics:
            return
        if self._refused_count >= REFUSED_MAX:
            self.dropped_count += 1
            return
        self._refused_count += 1
        subject = self._subject(EventKind.REFUSED, topic, app, client, 0, reason[:_REFUSED_CHARACTERS_MAX])
        place = partition if 0 <= partition < NO_PARTITION else NO_PARTITION
        elapsed_ms = max(now.wall_ms - sent_ms, 0) if sent_ms > 0 else UNKNOWN_MS
        self._turn.append((0, subject, place, NO_INDEX, NO_INDEX + count, now.wall_ms, elapsed_ms))

    def delivered(self, whose: Whose, lease: Lease, stored_ms: int, receiver: Receiver, now: Now) -> None:
        """Messages are about to be lent."""
        if not self._wants(whose.topic_number, whose.app):
            return
        lent = LentTo(now.monotonic_ms, receiver.client, list(self._attempts(whose, lease)))
        lease.trace = lent
        for first, after, attempt in lent.attempts:
            subject = self._subject(EventKind.DELIVERED, whose.topic_number, whose.app, lent.client, attempt)
            self._note(subject, lease.partition, first, after, now.wall_ms - stored_ms, now)

    def retry_delivered(self, whose: WhoseRetries, row: Retry, message: Message, receiver: Receiver, now: Now) -> None:
        """A message is about to be lent once more."""
        if not self._wants(whose.topic_number, whose.app):
            return
        self._retries_lent.pop(row.id, None)
        if len(self._retries_lent) >= _RETRIES_MAX:
            del self._retries_lent[next(iter(self._retries_lent))]
        self._retries_lent[row.id] = now.monotonic_ms, receiver.client
        subject = self._subject(EventKind.DELIVERED, whose.topic_number, whose.app, receiver.client, row.attempts + 1)
        elapsed_ms = now.wall_ms - message.send_time_ms - message.store_time_ms
        self._note(subject, row.partition, row.message_index, row.message_index + 1, elapsed_ms, now)

    def acked(self, whose: Whose, partition: int, runs: Iterable[Run], entries: Iterable[Entry], now: Now) -> None:
        """Messages of a partition were settled; those that failed have entries that say so. Leases are as before."""
        if not self._wants(whose.topic_number, whose.app):
            return
        done = Intervals(runs)
        for entry in entries:
            if isinstance(entry, Retry | DeadLetter | Stuck) and entry.attempts and entry.partition == partition:
                index = entry.message_index
                reason = entry.reason if not isinstance(entry, Stuck) else ""
                lease = whose.loans.lease_of(partition, index)
                self._failed(whose, lease, partition, (index, index + 1), entry.attempts, reason, now)
                done.cut_all([(index, index + 1)])
        for first, after in done:
            while first < after:
                lease = whose.loans.lease_of(partition, first)
                lent = _lent_to(lease)
                stop, attempt = _part(lent, first, after)
                subject = self._subject(EventKind.ACKED, whose.topic_number, whose.app, lent.client, attempt)
                self._note(subject, partition, first, stop, _since(lent, now), now)
                first = stop

    def lease_ended(self, whose: Whose, lease: Lease, reason: str, now: Now) -> None:
        """Nobody said anything in time: what was lent comes again."""
        if not self._wants(whose.topic_number, whose.app):
            return
        for first, after, attempt in _lent_to(lease).attempts:
            for run in lease.open.within(first, after):
                self._failed(whose, lease, lease.partition, run, attempt, reason, now)

    def settled(self, whose: WhoseRetries, entries: Iterable[Entry], before: Mapping[int, Retry], now: Now) -> None:
        """What becomes of messages that failed, or are past their time; `before` has the retries that were."""
        if not self._wants(whose.topic_number, whose.app):
            return
        entries = list(entries)
        dead = {(entry.partition, entry.message_index): entry for entry in entries if isinstance(entry, DeadLetter)}
        for entry in entries:
            if isinstance(entry, Retried):
                old = before.get(entry.id)
                letter = dead.get((old.partition, old.message_index)) if old is not None else None
                if old is not None and letter is None:
                    self._retry_over(EventKind.ACKED, whose, old, "", now)
                elif old is not None and letter is not None and letter.attempts > old.attempts:
                    self._retry_over(EventKind.FAILED, whose, old, letter.reason, now)
            elif isinstance(entry, Retry):
                old = before.get(entry.id)
                if old is not None and entry.attempts > old.attempts:
                    self._retry_over(EventKind.FAILED, whose, old, entry.reason, now)
                self._became(EventKind.RETRY, whose, entry, entry.reason, now)
            elif isinstance(entry, Stuck):
                if entry.attempts:
                    self._became(EventKind.RETRY, whose, entry, "", now)
            elif isinstance(entry, DeadLetter):
                if entry.cause == "expired":
                    self._became(EventKind.EXPIRED, whose, entry, "", now)
                reason = f"{entry.cause}: {entry.reason}" if entry.reason else entry.cause
                self._became(EventKind.DEAD, whose, entry, reason, now)

    def resent(self, topic: int, partition: int, index: int, app: str, reason: str, now: Now) -> None:
        """A message was given to its app again, or copied."""
        if self._wants(topic, app):
            subject = self._subject(EventKind.RESENT, topic, app, "", 0, reason)
            self._note(subject, partition, index, index + 1, UNKNOWN_MS, now)

    # --- the turn ----------------------------------------------------------------------------------------------

    def turn_ended(self, written_position: int, now: Now) -> None:
        """What was noted down has happened, as far as its records are written."""
        if not self._turn:
            return
        turn, self._turn = self._turn, []
        rows, known = self._rows, self._open
        if not rows:
            self._oldest_ms = now.monotonic_ms
        room = ROWS_MAX - len(self._waiting)
        for end_position, subject, partition, first, after, time_ms, elapsed_ms in turn:
            if end_position > written_position:
                continue
            row = known.get((subject, partition))
            if first == NO_INDEX:
                row = None  # each is one of its own
            if row is not None and row[_AFTER] == first and 0 <= time_ms - row[_TIME] <= MERGE_MS:
                row[_AFTER] = after
                continue
            if len(rows) >= room:
                self.dropped_count += 1
                continue
            if not isinstance(elapsed_ms, int):
                elapsed_ms = time_ms - _SEND_TIME.unpack_from(elapsed_ms)[0]
            row = known[subject, partition] = [time_ms, first, after, elapsed_ms]
            rows.append((subject, partition, row))

    def is_due(self, now: Now) -> bool:
        """Whether what waits is to be written now."""
        if not self._rows:
            return bool(self._waiting)
        return len(self._rows) >= ROWS_MANY or now.monotonic_ms - self._oldest_ms >= MERGE_MS

    @property
    def waiting_count(self) -> int:
        """How many rows wait."""
        return len(self._rows) + len(self._waiting)

    def take(self) -> list[Event]:
        """All that waits, for the caller to write."""
        events = self._waiting
        for subject, partition, row in self._rows:
            events.append(
                Event(
                    row[_TIME],
                    row[_FIRST],
                    row[_AFTER] - row[_FIRST],
                    subject.topic,
                    row[_ELAPSED],
                    partition,
                    subject.attempt,
                    subject.topic_name,
                    subject.app,
                    subject.client,
                    subject.reason,
                    subject.kind,
                )
            )
        self._waiting, self._rows = [], []
        self._refused_count = 0
        self._open.clear()
        if len(self._subjects) > _SUBJECTS_MAX:
            self._subjects.clear()
        return events

    def give_back(self, events: list[Event]) -> None:
        """They could not be written: they wait, before all others."""
        self._waiting = [*events, *self._waiting]

    def drop(self, count: int) -> None:
        """So many rows cannot be written at all."""
        self.dropped_count += count

    # --- inside ------------------------------------------------------------------------------------------------

    def _subject(
        self, kind: int, topic: int, app: str, client: str = "", attempt: int = 0, reason: str = ""
    ) -> Subject:
        key = kind, topic, app, client, attempt, reason
        found = self._subjects.get(key)
        if found is None:
            found = self._subjects[key] = Subject(self._names[topic], *key)
        return found

    def _note(self, subject: Subject, partition: int, first: int, after: int, elapsed_ms: int, now: Now) -> None:
        self._turn.append((self._journal.end_position, subject, partition, first, after, now.wall_ms, elapsed_ms))

    def _attempts(self, whose: Whose, lease: Lease) -> Iterable[tuple[int, int, int]]:
        """Which attempt a lease is, run by run."""
        stuck = self._setbacks.stuck(whose.number, lease.partition)
        for first, after in lease.open:
            attempt = 1 + self._setbacks.times_ended(whose.number, lease.partition, first, after)
            for index in sorted(one for one in stuck if first <= one < after) if stuck else ():
                if first < index:
                    yield first, index, attempt
                yield index, index + 1, stuck[index].attempts + 1
                first = index + 1
            if first < after:
                yield first, after, attempt

    def _failed(
        self, whose: Whose, lease: Lease | None, partition: int, run: Run, attempt: int, reason: str, now: Now
    ) -> None:
        lent = _lent_to(lease)
        subject = self._subject(EventKind.FAILED, whose.topic_number, whose.app, lent.client, attempt, reason)
        self._note(subject, partition, *run, _since(lent, now), now)

    def _retry_over(self, kind: EventKind, whose: WhoseRetries, old: Retry, reason: str, now: Now) -> None:
        since_ms, client = self._retries_lent.pop(old.id, (None, ""))
        elapsed_ms = UNKNOWN_MS if since_ms is None else now.monotonic_ms - since_ms
        subject = self._subject(kind, whose.topic_number, whose.app, client, old.attempts + 1, reason)
        self._note(subject, old.partition, old.message_index, old.message_index + 1, elapsed_ms, now)

    def _became(
        self, kind: EventKind, whose: WhoseRetries, row: Retry | Stuck | DeadLetter, reason: str, now: Now
    ) -> None:
        subject = self._subject(kind, whose.topic_number, whose.app, "", row.attempts, reason)
        self._note(subject, row.partition, row.message_index, row.message_index + 1, UNKNOWN_MS, now)


def _lent_to(lease: Lease | None) -> LentTo:
    found = lease.trace if lease is not None else None
    return found if isinstance(found, LentTo) else _NOBODY


def _since(lent: LentTo, now: Now) -> int:
    return now.monotonic_ms - lent.since_ms if lent.attempts else UNKNOWN_MS


def _part(lent: LentTo, first: int, after: int) -> Run:
    """Up to where the messages from `first` on were one attempt, and which."""
    for begin, stop, attempt in lent.attempts:
        if begin <= first < stop:
            return min(stop, after), attempt
    return after, 0
