"""What becomes of a message that an app could not handle: tried again later, or a dead letter.

Makes the entries of SETTLE records and keeps the queues of retries in step with them.
"""

from functools import partial
from itertools import count
from typing import Protocol

from lakemq.broker.config import BrokerConfig
from lakemq.broker.events import Now
from lakemq.broker.ledger import Ledger
from lakemq.broker.metrics import Metrics
from lakemq.delivery.guarded_clock import GuardedClock
from lakemq.delivery.retry_queue import RetryQueue
from lakemq.delivery.retry_schedule import retry_delay_ms
from lakemq.delivery.settlement import DeadLetter, Entry, Retried, Retry
from lakemq.errors import ReadError, RetryStoreError
from lakemq.policy import ConsumerPolicy

REASON_CHARACTERS_MAX = 500
RETRY_AFTER_MAX_MS = 40 * 86_400_000
BY_POLICY = -1


class Whose(Protocol):
    """An app on a topic, as far as its retries go; a lending is one."""

    topic: str
    topic_number: int
    app: str
    number: int  # of the subscription
    retries: RetryQueue


class Outcomes:
    """Decides between another attempt and a dead letter."""

    def __init__(self, ledger: Ledger, config: BrokerConfig, metrics: Metrics, clock: GuardedClock) -> None:
        self._ledger = ledger
        self._config = config
        self._metrics = metrics
        self._clock = clock
        # Of a turn that could not be written an operator may have been shown a retry: its id is not given to another.
        self._last_id = 0

    @property
    def next_retry_id(self) -> int:
        """All below were given, though perhaps not written."""
        return max(self._ledger.state.retries.next_id, self._last_id + 1)

    def failed(
        self,
        whose: Whose,
        policy: ConsumerPolicy,
        partition: int,
        wishes: list[tuple[int, int, str]],
        now: Now,
        taken: int = 0,
    ) -> list[Entry]:
        """Entries for messages that failed for the first time: index, wish for a pause (or BY_POLICY), reason.

        `taken` are the ids that others of the same record have.
        """
        state = self._ledger.state
        if len(state.retries) + taken + len(wishes) > self._config.retries_max:
            self._metrics.capped["retries"] += 1
            raise RetryStoreError(f"{len(state.retries)} messages wait to be tried again; no more are taken")
        entries: list[Entry] = []
        if policy.retry_times < 1:
            if not self._has_room_for_dead(len(wishes) - 1):
                raise RetryStoreError(f"there are {len(state.dead_letters)} dead letters, and no room for more")
            for index, _, reason in wishes:
                entries += self.dead_entries(
                    whose, partition, index, index + 1, "exhausted", reason, now, attempts=1, taken=len(entries)
                )
            return entries
        now_ms = self._clock.read(now)
        ids = count(self.next_retry_id + taken)
        for index, after_ms, reason in wishes:
            entries.append(
                Retry(
                    next(ids),
                    whose.number,
                    whose.topic_number,
                    partition,
                    index,
                    self._ledger.group.locate(whose.topic_number, partition, index),
                    1,
                    now_ms + self._pause_ms(policy, 1, after_ms),
                    now_ms,
                    reason[:REASON_CHARACTERS_MAX],
                )
            )
        return entries

    def again(
        self, whose: Whose, policy: ConsumerPolicy, row: Retry, after_ms: int, reason: str, now: Now
    ) -> list[Entry]:
        """Entries for a retry that failed once more."""
        attempts = row.attempts + 1
        reason = reason[:REASON_CHARACTERS_MAX]
        if attempts > policy.retry_times and self._has_room_for_dead():
            return self.end_retry(whose, row._replace(attempts=attempts), "exhausted", reason, now)
        due_ms = self._clock.read(now) + self._pause_ms(policy, attempts, after_ms)
        return [row._replace(attempts=attempts, due_ms=due_ms, reason=reason)]

    def end_retry(self, whose: Whose, row: Retry, cause: str, reason: str, now: Now) -> list[Entry]:
        """Entries for a retry that becomes a dead letter."""
        letter = DeadLetter(
            self._ledger.state.dead_letters.next_id,
            cause,
            reason[:REASON_CHARACTERS_MAX],
            whose.number,
            whose.app,
            whose.topic_number,
            whose.topic,
            row.partition,
            row.message_index,
            row.position,
            row.attempts,
            row.first_ms,
            self._clock.read(now),
        )
        return [Retried(row.id), letter]

    def dead_entries(
        self,
        whose: Whose,
        partition: int,
        first: int,
        after: int,
        cause: str,
        reason: str,
        now: Now,
        *,
        attempts: int = 0,
        taken: int = 0,
    ) -> list[Entry]:
        """Entries for messages of a partition that become dead letters; those that there is no room for are not."""
        now_ms = self._clock.read(now)
        next_id = self._ledger.state.dead_letters.next_id + taken
        entries: list[Entry] = []
        for index in range(first, after):
            if not self._has_room_for_dead(taken + len(entries)):
                break
            try:
                position = self._ledger.group.locate(whose.topic_number, partition, index)
            except ReadError:  # gone meanwhile: there is nothing to keep
                continue
            entries.append(
                DeadLetter(
                    next_id + len(entries),
                    cause,
                    reason[:REASON_CHARACTERS_MAX],
                    whose.number,
                    whose.app,
                    whose.topic_number,
                    whose.topic,
                    partition,
                    index,
                    position,
                    attempts,
                    now_ms,
                    now_ms,
                )
            )
        return entries

    def write(self, whose: Whose, entries: list[Entry], now: Now) -> int:
        """Put entries in force, and the queue of retries in step with them."""
        before = {
            row.id: row for row in map(self._ledger.state.retries.get, map(_retry_id, entries)) if row is not None
        }
        end = self._ledger.settle(entries, now.wall_ms)
        self._ledger.tracing.settled(whose, entries, before, now)
        self.keep_in_step(whose, entries, before, end)
        return end

    def keep_in_step(self, whose: Whose, entries: list[Entry], before: dict[int, Retry], end: int) -> None:
        """The queue of retries follows entries once they are written up to `end`; `before` has the rows they replace.

        A retry is lent to nobody before that. If it is not written, the consumer that said "failed" has the retry still
        and may say so again. Were it lent anew meanwhile, that word would speak of an attempt that is over, and whoever
        has the next one of an attempt that never was. An ack means the same at any time: what was acked comes again at
        once.
        """
        queue = whose.retries
        dead = {(entry.partition, entry.message_index) for entry in entries if isinstance(entry, DeadLetter)}
        for entry in entries:
            if isinstance(entry, DeadLetter):
                self._metrics.settled[whose.topic, whose.app, "dead"] += 1
            if not isinstance(entry, Retry | Retried):
                continue
            queue.hold(entry.id)
            if isinstance(entry, Retry):
                self._last_id = max(self._last_id, entry.id)
                self._metrics.settled[whose.topic, whose.app, "retry"] += 1
                self._ledger.do_once_written(end, partial(queue.put, entry.id, entry.due_ms))
            else:
                self._ledger.do_once_written(end, partial(queue.remove, entry.id))
            old = before.get(entry.id)
            if old is None:
                undo = partial(queue.remove, entry.id)
            elif isinstance(entry, Retry) or (old.partition, old.message_index) in dead:
                undo = partial(queue.give_back, old.id, old.due_ms)
            else:
                undo = partial(queue.put, old.id, old.due_ms)
            self._ledger.undo_with(end, undo)

    def die(self, whose: Whose, row: Retry, cause: str, reason: str, now: Now) -> None:
        """A retry becomes a dead letter now."""
        self.write(whose, self.end_retry(whose, row, cause, reason, now), now)

    def try_again(self, whose: Whose, policy: ConsumerPolicy, row: Retry, reason: str, now: Now) -> None:
        """A retry failed, or its consumer did not say in time."""
        self.write(whose, self.again(whose, policy, row, BY_POLICY, reason, now), now)

    def _pause_ms(self, policy: ConsumerPolicy, attempts: int, after_ms: int) -> int:
        if after_ms >= 0:
            return min(after_ms, RETRY_AFTER_MAX_MS)
        return retry_delay_ms(
            policy.retry_schedule,
            attempts,
            policy.retry_delay_max_ms,
            first_ms=policy.retry_first_ms,
            factor=policy.retry_factor,
        )

    def pause_ms(self, policy: ConsumerPolicy, attempts: int) -> int:
        """How long the policy waits after that many failures."""
        return self._pause_ms(policy, attempts, BY_POLICY)

    def _has_room_for_dead(self, taken: int = 0) -> bool:
        if len(self._ledger.state.dead_letters) + taken < self._config.dead_letters_max:
            return True
        self._metrics.capped["dead_letters"] += 1
        return False


def _retry_id(entry: Entry) -> int:
    return entry.id if isinstance(entry, Retry | Retried) else 0
