"""What operators do with messages that wait to be tried again: see them, have them tried now, give them up.

One that a consumer has in hand right now is left alone.
"""

from collections.abc import Callable
from typing import Any

from lakemq.broker.config import BrokerConfig
from lakemq.broker.consume import Consuming
from lakemq.broker.events import Now
from lakemq.broker.jobs import Job, Jobs, checked_by, checked_flag, checked_number
from lakemq.broker.ledger import Ledger
from lakemq.broker.lending import Lending
from lakemq.broker.outcomes import Outcomes
from lakemq.delivery.guarded_clock import GuardedClock
from lakemq.delivery.settlement import Retry
from lakemq.errors import (
    BadParameterError,
    ConsumerNotFoundError,
    RetryStoreError,
    TopicNotFoundError,
    UnknownNameError,
)

PAGE_MAX = 1000
_IDS_MAX = 100  # in one request; more is a job


class Retrying:
    """The retries of a broker, for its operators."""

    def __init__(
        self,
        ledger: Ledger,
        config: BrokerConfig,
        consuming: Consuming,
        outcomes: Outcomes,
        clock: GuardedClock,
        jobs: Jobs,
    ) -> None:
        self._ledger = ledger
        self._config = config
        self._consuming = consuming
        self._outcomes = outcomes
        self._clock = clock
        self._jobs = jobs

    def page(self, topic: str, app: str, *, after: int = 0, limit: int = 100) -> dict[str, Any]:
        """Some of an app's, by id, and the id to go on after: None at the end."""
        checked_number("after", after, 0, 1 << 62)
        checked_number("limit", limit, 1, PAGE_MAX)
        lending = self.lending(topic, app)
        rows = self._ledger.state.retries.of(lending.number)
        behind = sorted((row for row in rows if row.id > after), key=lambda row: row.id)
        page = behind[:limit]
        return {
            "rows": [_shown(row, lending) for row in page],
            "next": page[-1].id if len(behind) > limit else None,
            "count": len(rows),
        }

    def try_now(
        self, topic: str, app: str, by: str, now: Now, *, ids: list[int] | None = None, execute: bool = False
    ) -> dict[str, Any]:
        """Those, or all, are due at once; nothing happens unless `execute`."""

        def act(lending: Lending, row: Retry, then: Now) -> None:
            self._outcomes.write(lending, [row._replace(due_ms=self._clock.read(then))], then)

        return self._do("retry_now", act, topic, app, by, now, ids, execute)

    def give_up(
        self, topic: str, app: str, by: str, now: Now, *, ids: list[int] | None = None, execute: bool = False
    ) -> dict[str, Any]:
        """Those, or all, become dead letters; nothing happens unless `execute`."""

        def act(lending: Lending, row: Retry, then: Now) -> None:
            count = len(self._ledger.state.dead_letters)
            if count >= self._config.dead_letters_max:
                raise RetryStoreError(f"there are {count} dead letters, and no room for more")
            reason = f"given up by {by}; before: {row.reason}" if row.reason else f"given up by {by}"
            self._outcomes.die(lending, row, "asked", reason, then)

        return self._do("give_up_retries", act, topic, app, by, now, ids, execute)

    def lending(self, topic: str, app: str) -> Lending:
        """What runs for that app on that topic."""
        known = self._ledger.metadata.topics.get(topic) if isinstance(topic, str) else None
        if known is None:
            raise TopicNotFoundError(f"there is no topic {topic!r}")
        subscription = self._ledger.metadata.subscription(topic, app)
        if subscription is None or subscription.consumer is None:
            raise ConsumerNotFoundError(f"app {app!r} is no consumer of topic {topic!r}")
        return self._consuming.lending(known, subscription)

    def get(self, retry_id: int, lending: Lending) -> Retry | None:
        """That one, if it waits."""
        row = self._ledger.state.retries.get(retry_id)
        is_there = row is not None and row.subscription == lending.number
        return row if is_there and lending.retries.holder(retry_id) is None else None

    def _do(
        self,
        kind: str,
        act: "_Act",
        topic: str,
        app: str,
        by: str,
        now: Now,
        ids: list[int] | None,
        execute: bool,
    ) -> dict[str, Any]:
        checked_by(by)
        checked_flag("execute", execute)
        lending = self.lending(topic, app)
        is_all = ids is None
        if ids is None:
            ids = [row.id for row in self._ledger.state.retries.of(lending.number)]
        elif not isinstance(ids, list) or not 0 < len(ids) <= _IDS_MAX:
            raise BadParameterError(f"ids is a list of 1 to {_IDS_MAX} ids, or left out for all")
        for one in ids:
            row = self._ledger.state.retries.get(one) if isinstance(one, int) else None
            if row is None or row.subscription != lending.number:
                raise UnknownNameError(f"app {app!r} has no retry {one!r} on topic {topic!r}")
        waiting = [one for one in ids if self.get(one, lending) is not None]
        job = None
        done = 0
        if execute and is_all and waiting:
            work = _Settling(self, self._ledger, self._consuming, topic, app, waiting, act)
            job = self._jobs.begin(kind, f"{topic}, app {app}", by, len(waiting), 0, work, now).shown()
        elif execute:
            for one in waiting:
                row = self.get(one, lending)
                if row is not None:
                    act(lending, row, now)
                    done += 1
            self._consuming.wake(lending, now)
        return {"count": len(waiting), "lent": len(ids) - len(waiting), "done": done, "job": job}


_Act = Callable[[Lending, Retry, Now], None]


class _Settling:
    """The work of doing it with all; a place is how many ids are behind."""

    slice_max = 50

    def __init__(
        self,
        retrying: Retrying,
        ledger: Ledger,
        consuming: Consuming,
        topic: str,
        app: str,
        ids: list[int],
        act: _Act,
    ) -> None:
        self._retrying = retrying
        self._ledger = ledger
        self._consuming = consuming
        self._topic = topic
        self._app = app
        self._ids = ids
        self._act = act

    def step(self, job: Job, count: int, now: Now) -> bool:
        place = job.progress.place
        ids = self._ids[place : place + count]
        lending = self._retrying.lending(self._topic, self._app)
        for one in ids:
            row = self._retrying.get(one, lending)
            after = job.progress.place + 1
            if row is None:
                job.move(self._ledger, job.progress.more(place=after, skipped=1))
            else:
                self._act(lending, row, now)
                job.move(self._ledger, job.progress.more(place=after, done=1))
        self._consuming.wake(lending, now)
        return bool(ids)


def _shown(row: Retry, lending: Lending) -> dict[str, Any]:
    return {
        "id": row.id,
        "topic": lending.topic,
        "app": lending.app,
        "partition": row.partition,
        "offset": row.message_index,
        "attempts": row.attempts,
        "due_ms": row.due_ms,
        "first_ms": row.first_ms,
        "reason": row.reason,
        "is_lent": lending.retries.holder(row.id) is not None,
    }
