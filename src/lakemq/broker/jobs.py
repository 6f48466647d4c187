"""Long work that an operator asked for, done in slices as time passes, so that it never holds up messages.

A job is in memory alone: each of its steps is whole in the journal or not there at all, a restart ends it, and what it
had done until then stays done. If a step cannot be written after all, the job goes back to before it.
"""

from functools import partial
from typing import Any, NamedTuple, Protocol

from lakemq.broker.events import Now
from lakemq.broker.ledger import Ledger
from lakemq.errors import BadParameterError, LakeMQError, ReadError, RoutingError, StorageError, UnknownNameError

RUNNING_MAX = 8
KEPT_MAX = 100  # that have ended, for those who ask how
FAILURES_MAX = 20  # that are told one by one
PER_SECOND_MAX = 1_000_000
BY_CHARACTERS_MAX = 100
_WAIT_MS = 1000  # after something that may get better
_CREDIT_MAX_MS = 1000

RUNNING, DONE, CANCELLED, FAILED = "running", "done", "cancelled", "failed"


class Failure(NamedTuple):
    """One thing that could not be done."""

    what: str
    why: str


class Progress(NamedTuple):
    """How far a job is. `place` means what the work wants it to mean; things already gone are `skipped`."""

    place: int = 0
    done: int = 0
    skipped: int = 0
    failed: int = 0
    bytes: int = 0
    failures: tuple[Failure, ...] = ()

    def more(self, *, place: int, done: int = 0, skipped: int = 0, bytes: int = 0) -> "Progress":
        """Further on."""
        return Progress(place, self.done + done, self.skipped + skipped, self.failed, self.bytes + bytes, self.failures)

    def failing(self, place: int, what: str, error: LakeMQError) -> "Progress":
        """Further on, with one more that failed."""
        failures = (*self.failures, Failure(what, str(error)))[:FAILURES_MAX]
        return self._replace(place=place, failed=self.failed + 1, failures=failures)


class Work(Protocol):
    """What a job does."""

    slice_max: int  # things in one step, so that a step takes a few milliseconds

    def step(self, job: "Job", count: int, now: Now) -> bool:
        """Do at most `count` things more; False if there was nothing left. A LakeMQError: later, or not at all."""
        ...


class Job:
    """One piece of work, and how it goes."""

    def __init__(
        self, number: int, kind: str, about: str, by: str, total: int, per_second: int, work: Work, now: Now
    ) -> None:
        self.id = number
        self.kind = kind
        self.about = about
        self.by = by
        self.total = total
        self.per_second = per_second  # 0: as fast as it goes
        self.work = work
        self.progress = Progress()
        self.state = RUNNING
        self.trouble = ""  # why it waits, or how it failed
        self.began_ms = now.wall_ms
        self.ended_ms: int | None = None
        self.not_before_ms = 0  # monotonic
        self._credit = 1.0
        self._credited_ms = now.monotonic_ms

    def move(self, ledger: Ledger, progress: Progress) -> None:
        """Further on, as far as what was appended so far is written."""
        ledger.undo_with(ledger.end_position, partial(self._go_back, self.progress))
        self.progress = progress

    def _go_back(self, before: Progress) -> None:
        self.progress = before
        if self.state == DONE:
            self.state, self.ended_ms = RUNNING, None

    def allowance(self, now: Now) -> int:
        """How many things it may do now."""
        if not self.per_second:
            return self.work.slice_max
        spent_ms = min(now.monotonic_ms - self._credited_ms, _CREDIT_MAX_MS)
        self._credited_ms = now.monotonic_ms
        self._credit = min(self._credit + spent_ms * self.per_second / 1000, max(1.0, float(self.per_second)))
        return min(int(self._credit), self.work.slice_max)

    def spend(self, count: int) -> None:
        """It has done so many."""
        self._credit -= count

    def end(self, state: str, now: Now, trouble: str = "") -> None:
        """It goes no further."""
        self.state, self.ended_ms, self.trouble = state, now.wall_ms, trouble

    def shown(self) -> dict[str, Any]:
        """As operators see it."""
        progress = self.progress
        return {
            "id": self.id,
            "kind": self.kind,
            "about": self.about,
            "by": self.by,
            "state": self.state,
            "total": self.total,
            "done": progress.done,
            "skipped": progress.skipped,
            "failed": progress.failed,
            "bytes": progress.bytes,
            "failures": [{"what": one.what, "why": one.why} for one in progress.failures],
            "per_second": self.per_second,
            "trouble": self.trouble,
            "began_ms": self.began_ms,
            "ended_ms": self.ended_ms,
        }


class Jobs:
    """Those that run, and the last ones that have ended."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._jobs: dict[int, Job] = {}
        self._last_id = 0

    def begin(self, kind: str, about: str, by: str, total: int, per_second: int, work: Work, now: Now) -> Job:
        """A new one; it begins with the next tick."""
        running = sum(job.state == RUNNING for job in self._jobs.values())
        if running >= RUNNING_MAX:
            raise BadParameterError(f"{running} jobs run already; wait for one of them, or cancel it")
        # Ids go with the time: one of before a restart is not given again.
        self._last_id = max(self._last_id + 1, now.wall_ms // 1000)
        job = self._jobs[self._last_id] = Job(self._last_id, kind, about, by, total, per_second, work, now)
        ended = [one.id for one in self._jobs.values() if one.state != RUNNING]
        for number in ended[: max(len(ended) - KEPT_MAX, 0)]:
            del self._jobs[number]
        return job

    def all(self) -> list[Job]:
        """All that are known, newest first."""
        return list(reversed(self._jobs.values()))

    def get(self, number: object) -> Job:
        """That one; UnknownNameError if it is not known, or not any more."""
        job = self._jobs.get(number) if isinstance(number, int) else None
        if job is None:
            raise UnknownNameError(
                f"there is no job {number!r}: a restart of the broker ends all jobs and forgets them"
            )
        return job

    def cancel(self, number: object, now: Now) -> Job:
        """It goes no further; what is done stays done."""
        job = self.get(number)
        if job.state == RUNNING:
            job.end(CANCELLED, now)
        return job

    def tick(self, now: Now, is_draining: bool) -> None:
        """One slice of each."""
        for job in self._jobs.values():
            if job.state != RUNNING or now.monotonic_ms < job.not_before_ms:
                continue
            if is_draining:
                job.end(CANCELLED, now, "the broker stops")
                continue
            count = job.allowance(now)
            if count > 0:
                self._step(job, count, now)

    def _step(self, job: Job, count: int, now: Now) -> None:
        before = job.progress
        try:
            goes_on = job.work.step(job, count, now)
            job.trouble = ""
        except LakeMQError as error:
            goes_on = True
            if may_get_better(error):
                job.trouble = str(error)
                job.not_before_ms = now.monotonic_ms + _WAIT_MS
            else:
                job.end(FAILED, now, str(error))
        after = job.progress
        job.spend(after.done + after.failed - before.done - before.failed)
        if not goes_on:
            job.end(DONE, now)


def may_get_better(error: LakeMQError) -> bool:
    """Whether to try the same again later, rather than to go on with the next."""
    if isinstance(error, ReadError | RoutingError):
        return False
    return error.retriable or isinstance(error, StorageError)


def checked_by(by: object) -> str:
    """Who does it, as the audit names them."""
    if not isinstance(by, str) or not by.strip() or len(by) > BY_CHARACTERS_MAX or not by.isprintable():
        raise BadParameterError(f"by is who does it, in 1 to {BY_CHARACTERS_MAX} characters, not {by!r}")
    return by


def checked_number(noun: str, value: object, least: int, most: int) -> int:
    """A whole number within bounds."""
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise BadParameterError(f"{noun} is a whole number from {least} to {most}, not {value!r}")
    return value


def checked_flag(noun: str, value: object) -> bool:
    """True or false, and nothing that only looks like it."""
    if not isinstance(value, bool):
        raise BadParameterError(f"{noun} is true or false, not {value!r}")
    return value
