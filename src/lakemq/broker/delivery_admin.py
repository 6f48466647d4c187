"""What operators ask about messages that failed, wait, or are to be sent again: one method per action.

Each names who does it. Long work is a job: the answer has its id, and `tick` drives it.
"""

from collections.abc import Callable
from typing import Any, Protocol

from lakemq.broker.access import Access
from lakemq.broker.config import BrokerConfig
from lakemq.broker.consume import Consuming
from lakemq.broker.dead_lettering import DeadLettering
from lakemq.broker.events import Now
from lakemq.broker.jobs import Jobs, checked_by, checked_number
from lakemq.broker.ledger import Ledger
from lakemq.broker.metrics import Metrics
from lakemq.broker.outcomes import Outcomes
from lakemq.broker.resending import Resending
from lakemq.broker.retrying import Retrying
from lakemq.delivery.guarded_clock import GuardedClock
from lakemq.errors import BadParameterError, TopicNotFoundError

Rows = list[dict[str, Any]]
_DELAYS_MAX = 1000


class Waiting(Protocol):
    """Messages that wait until they are due, as far as operators have them."""

    def page(self, topic: str | None, after: int, limit: int) -> tuple[Rows, int | None]:
        """Some of them, and the id to go on after."""
        ...

    def cancel(self, position: int, now: Now) -> int:
        """What waits under that id is not released."""
        ...


class DeliveryAdmin:
    """The actions; `DELIVERY_ACTIONS` names them."""

    def __init__(
        self,
        ledger: Ledger,
        config: BrokerConfig,
        access: Access,
        consuming: Consuming,
        outcomes: Outcomes,
        metrics: Metrics,
        clock: GuardedClock,
        delaying: Waiting,
        note: Callable[[str, str], None],
    ) -> None:
        self._ledger = ledger
        self._access = access
        self._delaying = delaying
        self._note = note
        self.jobs = Jobs(ledger)
        self._resending = Resending(ledger, access, metrics, self.jobs)
        self.dead_lettering = DeadLettering(
            ledger, config, consuming, outcomes, metrics, clock, self._resending, self.jobs
        )
        self._retrying = Retrying(ledger, config, consuming, outcomes, clock, self.jobs)

    def tick(self, now: Now) -> None:
        """Long work goes on."""
        self.jobs.tick(now, self._access.is_draining)

    # --- dead letters ------------------------------------------------------------------------------------------------

    def list_dead(self, now: Now, **wish: Any) -> dict[str, Any]:
        return self.dead_lettering.page(**wish)

    def show_dead(self, now: Now, id: int) -> dict[str, Any]:
        return self.dead_lettering.show(id)

    def list_dead_audit(self, now: Now, limit: int = 100) -> Rows:
        return self.dead_lettering.audit(limit)

    def edit_dead(self, now: Now, id: int, by: str, **change: Any) -> dict[str, Any]:
        return self.dead_lettering.edit(id, by, now, **change)

    def resend_dead(self, now: Now, id: int, by: str, to: str = "app") -> dict[str, Any]:
        return self.dead_lettering.resend(id, by, now, to=to)

    def delete_dead(self, now: Now, id: int, by: str) -> dict[str, Any]:
        return self.dead_lettering.delete(id, by, now)

    def resend_dead_many(self, now: Now, by: str, **wish: Any) -> dict[str, Any]:
        return self._told(self.dead_lettering.resend_many(by, now, **wish))

    def delete_dead_many(self, now: Now, by: str, **wish: Any) -> dict[str, Any]:
        return self._told(self.dead_lettering.delete_many(by, now, **wish))

    # --- retries -----------------------------------------------------------------------------------------------------

    def list_retries(self, now: Now, topic: str, app: str, after: int = 0, limit: int = 100) -> dict[str, Any]:
        return self._retrying.page(topic, app, after=after, limit=limit)

    def retry_now(self, now: Now, topic: str, app: str, by: str, **wish: Any) -> dict[str, Any]:
        done = self._retrying.try_now(topic, app, by, now, **wish)
        if done["done"]:
            self._note("info", f"{by} had {done['done']} retries of {app} on {topic} tried at once")
        return self._told(done)

    def give_up_retries(self, now: Now, topic: str, app: str, by: str, **wish: Any) -> dict[str, Any]:
        return self._told(self._retrying.give_up(topic, app, by, now, **wish))

    # --- delays ------------------------------------------------------------------------------------------------------

    def list_delays(self, now: Now, topic: str | None = None, after: int = -1, limit: int = 100) -> dict[str, Any]:
        checked_number("after", after, -1, 1 << 62)
        checked_number("limit", limit, 1, _DELAYS_MAX)
        if topic is not None and topic not in self._ledger.metadata.topics:
            raise TopicNotFoundError(f"there is no topic {topic!r}")
        rows, more = self._delaying.page(topic, after, limit)
        return {"rows": rows, "next": more}

    def cancel_delay(self, now: Now, id: int, by: str) -> dict[str, Any]:
        checked_by(by)
        if not isinstance(id, int) or isinstance(id, bool) or id < 0:
            raise BadParameterError(f"the id of a delay is a whole number, not {id!r}")
        self._delaying.cancel(id, now)
        self._note("info", f"{by} cancelled delay {id}")
        return {"id": id, "outcome": "cancelled"}

    # --- sending again, long work ------------------------------------------------------------------------------------

    def resend_range(self, now: Now, topic: str, by: str, **wish: Any) -> dict[str, Any]:
        return self._told(self._resending.resend_range(now, topic, by, **wish))

    def list_jobs(self, now: Now) -> Rows:
        return [job.shown() for job in self.jobs.all()]

    def show_job(self, now: Now, id: int) -> dict[str, Any]:
        return self.jobs.get(id).shown()

    def cancel_job(self, now: Now, id: int, by: str) -> dict[str, Any]:
        checked_by(by)
        job = self.jobs.cancel(id, now)
        self._note("info", f"{by} cancelled job {id}")
        return job.shown()

    def _told(self, answer: dict[str, Any]) -> dict[str, Any]:
        """Long work stands in the log, with who began it."""
        job = answer["job"]
        if job is not None:
            self._note("info", f"{job['by']} began job {job['id']}: {job['kind']} of {job['total']}, {job['about']}")
        return answer


DELIVERY_ACTIONS = (
    "list_dead",
    "show_dead",
    "list_dead_audit",
    "edit_dead",
    "resend_dead",
    "delete_dead",
    "resend_dead_many",
    "delete_dead_many",
    "list_retries",
    "retry_now",
    "give_up_retries",
    "list_delays",
    "cancel_delay",
    "resend_range",
    "list_jobs",
    "show_job",
    "cancel_job",
)
