"""What operators do with dead letters: find and look at them, change, resend or delete them. And one way to become one.

Whatever ends a dead letter is one record, which also says who did it: there is no moment at which the message is
nowhere, or in two places. One that goes back to its topic is stored under an id of its own (UNIQ_ID), so that a crash
between that and the end of the dead letter does not store it twice.
"""

import base64
import binascii
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from lakemq.attributes import EXPIRE, encode_attributes
from lakemq.broker.config import BrokerConfig
from lakemq.broker.consume import Consuming
from lakemq.broker.dead_letter_filter import DeadLetterFilter
from lakemq.broker.dead_letter_view import Looking, brief, whole
from lakemq.broker.events import Now
from lakemq.broker.jobs import (
    PER_SECOND_MAX,
    Job,
    Jobs,
    checked_by,
    checked_flag,
    checked_number,
    may_get_better,
)
from lakemq.broker.ledger import Ledger
from lakemq.broker.lending import Lending
from lakemq.broker.metrics import Metrics
from lakemq.broker.opening import Opening
from lakemq.broker.outcomes import REASON_CHARACTERS_MAX, Outcomes
from lakemq.broker.resending import RESENT, Resending, copy_of, origin_of
from lakemq.cluster.metadata import Subscription, Topic
from lakemq.delivery.guarded_clock import GuardedClock
from lakemq.delivery.selection import is_expired
from lakemq.delivery.settlement import NEVER_STORED, Buried, DeadLetter, Edited, Entry, Retry
from lakemq.delivery.uniq import UNIQ_ID
from lakemq.envelope import pack
from lakemq.errors import (
    BadParameterError,
    LakeMQError,
    RetryStoreError,
    ServiceUnavailableError,
    TopicNotFoundError,
    UnknownNameError,
)
from lakemq.message import Message
from lakemq.record import stamp
from lakemq.storage.journal_record import RecordType

PAGE_MAX = 1000
_PAGE_DEFAULT = 100
_CHUNK = 1000
_PARKED_MAX = 5000  # messages of one request
_WRITTEN_BY_THEN_MS = 1000
_TARGETS = ("app", "topic")
_ORDERS = ("newest", "oldest")

RESENT_TO_APP, RESENT_TO_TOPIC, STORED_BEFORE, DELETED = (
    "resent to the app",
    "resent to the topic",
    "was stored before",
    "deleted",
)


class DeadLettering:
    """The dead letters of a broker, for its operators."""

    def __init__(
        self,
        ledger: Ledger,
        config: BrokerConfig,
        consuming: Consuming,
        outcomes: Outcomes,
        metrics: Metrics,
        clock: GuardedClock,
        resending: Resending,
        jobs: Jobs,
    ) -> None:
        self._ledger = ledger
        self._config = config
        self._consuming = consuming
        self._outcomes = outcomes
        self._opening = Opening(ledger.group)
        self._metrics = metrics
        self._clock = clock
        self._resending = resending
        self._jobs = jobs

    # --- becoming one ----------------------------------------------------------------------------------------------

    def park(
        self,
        topic: Topic,
        partition: int,
        app: str,
        messages: bytearray | memoryview,
        message_count: int,
        index_count: int,
        now: Now,
        cause: str = "rate",
        reason: str = "the app had used up its rate for sending",
    ) -> int | None:
        """Scanned messages that do not get into their topic become dead letters; where that ends in the journal.

        None if there is no room for them, and nothing has happened.
        """
        letters = self._ledger.state.dead_letters
        if index_count > _PARKED_MAX or len(letters) + index_count > self._config.dead_letters_max // 2:
            return None  # the other half is for those that have nowhere else to go
        stamp(messages, 0, message_count, partition, 0, self._ledger.term, now.wall_ms)
        # First what is referred to: without the other record it is nobody's, and does no harm.
        position, _ = self._ledger.append(RecordType.KEPT, bytes(messages), now.wall_ms, topic=topic.number)
        now_ms = self._clock.read(now)
        entries: list[Entry] = [
            DeadLetter(
                letters.next_id + place,
                cause,
                reason[:REASON_CHARACTERS_MAX],
                0,
                app,
                topic.number,
                topic.name,
                partition,
                place,
                position,
                0,
                now_ms,
                now_ms,
            )
            for place in range(index_count)
        ]
        self._metrics.settled[topic.name, app, "dead"] += index_count
        return self._ledger.settle(entries, now.wall_ms)

    # --- finding and looking -----------------------------------------------------------------------------------------

    def page(
        self,
        *,
        after: int | None = None,
        limit: int = _PAGE_DEFAULT,
        order: str = "newest",
        with_bodies: bool = False,
        **filters: Any,
    ) -> dict[str, Any]:
        """Some of them, and the id to go on after: None at the end. A page may be short and not be the last."""
        wanted = DeadLetterFilter(**filters)
        checked_number("limit", limit, 1, PAGE_MAX)
        if order not in _ORDERS:
            raise BadParameterError(f"the order is {' or '.join(_ORDERS)} first, not {order!r}")
        if after is not None:
            checked_number("after", after, 0, 1 << 62)
        checked_flag("with_bodies", with_bodies)
        found: list[dict[str, Any]] = []
        looking = self.looking()
        last = None
        for row in self._in_order(wanted, order == "newest", after):
            if len(found) >= limit or looking.is_over:
                return {"rows": found, "next": last, "count": len(self._ledger.state.dead_letters)}
            message, trouble = looking.at(row)
            last = row.id
            if wanted.is_text_in(row.reason, message.business_id if message is not None else ""):
                found.append(whole(row, message, trouble) if with_bodies else brief(row, message))
        return {"rows": found, "next": None, "count": len(self._ledger.state.dead_letters)}

    def _in_order(self, wanted: DeadLetterFilter, is_newest_first: bool, after: int | None) -> Iterator[DeadLetter]:
        """Those that match, whatever their text; looked for as they are needed."""
        rows = list(self._ledger.state.dead_letters.rows())
        if is_newest_first:
            rows.reverse()
        start = 0
        if after is not None:
            start = bisect_right(rows, -after if is_newest_first else after, key=lambda row: _key(row, is_newest_first))
        for begin in range(start, len(rows), _CHUNK):
            yield from wanted.among(rows[begin : begin + _CHUNK])

    def show(self, dead_id: object) -> dict[str, Any]:
        """One, with all there is of it."""
        row = self._get(dead_id)
        return whole(row, *self.looking().at(row))

    def audit(self, limit: int = _PAGE_DEFAULT) -> list[dict[str, Any]]:
        """What operators did, newest first."""
        checked_number("limit", limit, 1, PAGE_MAX)
        newest = list(self._ledger.state.dead_letters.audit)[: -limit - 1 : -1]
        return [
            {
                "id": one.id,
                "action": "edited" if isinstance(one, Edited) else one.outcome,
                "by": one.by,
                "time_ms": one.time_ms,
            }
            for one in newest
        ]

    # --- changing --------------------------------------------------------------------------------------------------

    def edit(
        self,
        dead_id: object,
        by: str,
        now: Now,
        *,
        body: str | None = None,
        text: str | None = None,
        attributes: Mapping[str, str | None] | None = None,
        key: str | None = None,
    ) -> dict[str, Any]:
        """Change its body (base64, or text), its key, or some attributes (None takes one away)."""
        checked_by(by)
        row = self._get(dead_id)
        if body is None and text is None and attributes is None and key is None:
            raise BadParameterError("say what to change: body, text, attributes or key")
        message, _ = self._read(row)
        if body is not None or text is not None:
            message = replace(message, body=_body_of(body, text))
        if attributes is not None:
            message = replace(message, attributes=_changed(message.attributes, attributes))
        if key is not None:
            if not isinstance(key, str):
                raise BadParameterError(f"a key is text, not {key!r}")
            message = replace(message, business_id=key)
        # First what is referred to: without the other record it is nobody's, and does no harm.
        position = self._keep(row, message, now)
        self._ledger.settle([Edited(row.id, position, by, now.wall_ms)], now.wall_ms)
        return whole(self._get(dead_id), message, "")

    def delete(self, dead_id: object, by: str, now: Now) -> dict[str, Any]:
        """It is gone for good."""
        checked_by(by)
        return {"id": self._get(dead_id).id, "outcome": self._delete(self._get(dead_id), by, now)}

    def resend(self, dead_id: object, by: str, now: Now, *, to: str = "app") -> dict[str, Any]:
        """Give it to the app that failed, or to its topic, where all who receive that get it."""
        checked_by(by)
        _check_target(to)
        woken: set[Lending] = set()
        row = self._get(dead_id)
        self._read(row)  # what cannot be read had better stay
        outcome = self._resend(row, to, by, woken, now)
        for lending in woken:
            self._consuming.wake(lending, now)
        return {"id": row.id, "outcome": outcome}

    # --- many ------------------------------------------------------------------------------------------------------

    def resend_many(
        self, by: str, now: Now, *, to: str = "app", per_second: int = 0, execute: bool = False, **filters: Any
    ) -> dict[str, Any]:
        """How many that would be; a job if `execute`."""
        _check_target(to)

        def act(row: DeadLetter, woken: set[Lending], then: Now) -> None:
            self._resend(row, to, by, woken, then)

        about = f"to the {to}"
        return self._many("resend_dead", about, act, 50 if to == "app" else 25, by, now, per_second, execute, filters)

    def delete_many(
        self, by: str, now: Now, *, per_second: int = 0, execute: bool = False, **filters: Any
    ) -> dict[str, Any]:
        """How many that would be; a job if `execute`."""

        def act(row: DeadLetter, _: set[Lending], then: Now) -> None:
            self._delete(row, by, then)

        return self._many("delete_dead", "", act, 100, by, now, per_second, execute, filters)

    def _many(
        self,
        kind: str,
        about: str,
        act: "_Act",
        slice_max: int,
        by: str,
        now: Now,
        per_second: int,
        execute: bool,
        filters: dict[str, Any],
    ) -> dict[str, Any]:
        checked_by(by)
        checked_flag("execute", execute)
        checked_number("per_second", per_second, 0, PER_SECOND_MAX)
        wanted = DeadLetterFilter(**filters)
        rows = wanted.among(list(self._ledger.state.dead_letters.rows()))
        counted, is_complete = self._with_text(rows, wanted)
        groups = Counter((row.topic_name, row.app, row.cause) for row in counted)
        job = None
        if execute and rows:
            ids = [row.id for row in rows]
            work = _Burying(self, self._ledger, self._consuming, ids, wanted, act, slice_max)
            total = len(counted) if is_complete else len(rows)
            about = f"{wanted}{', ' if about else ''}{about}"
            job = self._jobs.begin(kind, about, by, total, per_second, work, now).shown()
        return {
            "count": len(counted),
            "is_complete": is_complete,
            "groups": [
                {"topic": topic, "app": app, "cause": cause, "count": count}
                for (topic, app, cause), count in sorted(groups.items())
            ],
            "job": job,
        }

    def _with_text(self, rows: list[DeadLetter], wanted: DeadLetterFilter) -> tuple[list[DeadLetter], bool]:
        """Those that have the wanted text, and whether all could be looked at."""
        if wanted.text is None:
            return rows, True
        looking = self.looking()
        found: list[DeadLetter] = []
        for row in rows:
            if looking.is_over:
                return found, False
            if self.has_text(row, wanted, looking):
                found.append(row)
        return found, True

    def looking(self) -> Looking:
        """A look at some of them, which ends before it takes too long."""
        return Looking(self._opening, self._ledger.group.journal.written_position)

    def has_text(self, row: DeadLetter, wanted: DeadLetterFilter, looking: Looking) -> bool:
        """Whether the wanted text is in its reason, or in the key of its message."""
        if wanted.text is None or wanted.is_text_in(row.reason):
            return True
        message, _ = looking.at(row)
        return message is not None and wanted.is_text_in(message.business_id)

    # --- what ends it ------------------------------------------------------------------------------------------------

    def _delete(self, row: DeadLetter, by: str, now: Now) -> str:
        self._ledger.settle([Buried(row.id, DELETED, by, now.wall_ms)], now.wall_ms)
        return DELETED

    def _resend(self, row: DeadLetter, to: str, by: str, woken: set[Lending], now: Now) -> str:
        topic = self._ledger.metadata.topics.get(row.topic_name)
        if topic is None:
            raise TopicNotFoundError(f"topic {row.topic_name!r} of dead letter {row.id} is gone")
        subscription = self._ledger.metadata.subscription(row.topic_name, row.app)
        is_the_same = row.subscription and topic.number == row.topic
        if to == "app" and is_the_same and subscription is not None and subscription.consumer is not None:
            outcome = self._to_app(row, topic, subscription, by, woken, now)
        else:
            outcome = self._to_topic(row, by, now)
        if row.cause not in NEVER_STORED:
            self._ledger.tracing.resent(row.topic, row.partition, row.message_index, row.app, outcome, now)
        return outcome

    def _to_app(
        self, row: DeadLetter, topic: Topic, subscription: Subscription, by: str, woken: set[Lending], now: Now
    ) -> str:
        state = self._ledger.state
        if len(state.retries) >= self._config.retries_max:
            raise RetryStoreError(f"{len(state.retries)} messages wait to be tried again; no more are taken")
        self._check_written(row)
        position, due_ms = row.position, self._clock.read(now)
        if row.cause == "expired" or (row.topic, row.partition) in state.expiring:
            message, _ = self._read(row)
            attributes = encode_attributes(message.attributes)
            if is_expired(attributes, now.wall_ms, message.stored_at_ms):  # it would die at once
                lasting = _changed(message.attributes, {EXPIRE: None})
                position = self._keep(row, replace(message, attributes=lasting), now)
                due_ms += _WRITTEN_BY_THEN_MS  # nobody can read it before
        retry = Retry(
            self._outcomes.next_retry_id,
            subscription.number,
            topic.number,
            row.partition,
            row.message_index,
            position,
            0,
            due_ms,
            row.first_ms,
            row.reason,
        )
        lending = self._consuming.lending(topic, subscription)
        self._outcomes.write(lending, [Buried(row.id, RESENT_TO_APP, by, now.wall_ms), retry], now)
        woken.add(lending)
        return RESENT_TO_APP

    def _to_topic(self, row: DeadLetter, by: str, now: Now) -> str:
        topic, partition = self._resending.target(row.topic_name, row.partition)
        message, address = self._read(row)
        is_new = row.cause in NEVER_STORED
        uniq_id = (message.attributes.get(UNIQ_ID) if is_new else None) or f"LAKEMQ_DEAD_{row.id}"
        more = {UNIQ_ID: uniq_id}
        if is_new:
            message = replace(message, app=message.app or row.app)
        else:
            more[RESENT] = origin_of(row.topic_name, row.partition, row.message_index)
        key = topic.number, message.app, uniq_id
        outcome = STORED_BEFORE
        if self._ledger.state.uniq_ids.find(key, now.wall_ms) is None:
            outcome = RESENT_TO_TOPIC
            self._resending.append(topic, partition, [copy_of(message, now, more)], address, now)
        self._ledger.settle([Buried(row.id, outcome, by, now.wall_ms)], now.wall_ms)
        return outcome

    # --- inside ------------------------------------------------------------------------------------------------------

    def _get(self, dead_id: object) -> DeadLetter:
        row = self._ledger.state.dead_letters.get(dead_id) if isinstance(dead_id, int) else None
        if row is None:
            raise UnknownNameError(f"there is no dead letter {dead_id!r}")
        return row

    def _read(self, row: DeadLetter) -> tuple[Message, bytes]:
        self._check_written(row)
        return self._opening.read(row.position, row.message_index)

    def _check_written(self, row: DeadLetter) -> None:
        if row.position >= self._ledger.group.journal.written_position:
            raise ServiceUnavailableError(f"dead letter {row.id} is being written: try again")

    def _keep(self, row: DeadLetter, message: Message, now: Now) -> int:
        """The message in its place is another one: where that is."""
        packed = pack(replace(message, partition=row.partition, index=row.message_index))
        return self._ledger.append(RecordType.KEPT, packed, now.wall_ms, topic=row.topic)[0]


_Act = Callable[[DeadLetter, set[Lending], Now], None]


class _Burying:
    """The work of resending or deleting many; a place is how many ids are behind."""

    def __init__(
        self,
        dead_lettering: DeadLettering,
        ledger: Ledger,
        consuming: Consuming,
        ids: list[int],
        wanted: DeadLetterFilter,
        act: _Act,
        slice_max: int,
    ) -> None:
        self._dead_lettering = dead_lettering
        self._ledger = ledger
        self._consuming = consuming
        self._ids = ids
        self._wanted = wanted
        self._act = act
        self.slice_max = slice_max

    def step(self, job: Job, count: int, now: Now) -> bool:
        place = job.progress.place
        ids = self._ids[place : place + count]
        woken: set[Lending] = set()
        looking = self._dead_lettering.looking()
        try:
            for dead_id in ids:
                self._one(job, dead_id, looking, woken, now)
                if looking.is_over:
                    break
        finally:
            for lending in woken:
                self._consuming.wake(lending, now)
        return bool(ids)

    def _one(self, job: Job, dead_id: int, looking: Looking, woken: set[Lending], now: Now) -> None:
        row = self._ledger.state.dead_letters.get(dead_id)
        after = job.progress.place + 1
        if row is None or not self._dead_lettering.has_text(row, self._wanted, looking):
            job.move(self._ledger, job.progress.more(place=after, skipped=1))
            return
        try:
            self._act(row, woken, now)
        except LakeMQError as error:
            if may_get_better(error):
                raise
            job.move(self._ledger, job.progress.failing(after, f"dead letter {dead_id}", error))
        else:
            job.move(self._ledger, job.progress.more(place=after, done=1))


def _body_of(body: object, text: object) -> bytes:
    if body is not None and text is not None:
        raise BadParameterError("body and text are both given: which one counts?")
    try:
        if isinstance(text, str):
            return text.encode()
        if isinstance(body, str):
            return base64.b64decode(body, validate=True)
    except (binascii.Error, ValueError) as error:
        raise BadParameterError(f"the body cannot be read: {error}") from None
    raise BadParameterError("a body is base64, a text is text")


def _changed(before: Mapping[str, str], change: Mapping[str, str | None]) -> dict[str, str]:
    if not isinstance(change, Mapping):
        raise BadParameterError(f"attributes are names with values, not {change!r}")
    after = dict(before)
    for name, value in change.items():
        if not isinstance(name, str) or not name or not isinstance(value, str | None):
            raise BadParameterError(f"attribute {name!r} is text, or nothing to take it away, not {value!r}")
        if value is None:
            after.pop(name, None)
        else:
            after[name] = value
    return after


def _key(row: DeadLetter, is_newest_first: bool) -> int:
    return -row.id if is_newest_first else row.id


def _check_target(to: object) -> None:
    if to not in _TARGETS:
        raise BadParameterError(f"a dead letter is resent to the {' or the '.join(_TARGETS)}, not to {to!r}")
