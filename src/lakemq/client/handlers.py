"""Functions that handle messages: what they are fed with, in which order, and what their outcome means.

A message that a handler fails on is delivered again by the broker, or kept as a dead letter; before that it may be
tried again on the spot a few times, under the same lease. Pure; `serving.py` and `aio_serving.py` call handlers.
"""

import inspect
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import ClassVar

from lakemq.client.body_types import Parameters, name_of, parameters_of
from lakemq.client.delivery import Delivery, reason_of
from lakemq.client.duration import Duration, duration_ms
from lakemq.client.errors import HandlerError
from lakemq.client.lease import Lease, Refused
from lakemq.errors import BadParameterError, LakeMQError
from lakemq.wire.own import BY_POLICY, SettleOutcome

Function = Callable[..., object]

LOG = logging.getLogger("lakemq.handlers")
SHUTDOWN = "25s"  # less than the 30 s that most supervisors wait before they kill
CONCURRENCY_MAX = 1000
_PAUSE_FIRST_MS = 50
_PAUSE_MAX_MS = 1000


@dataclass(frozen=True, slots=True)
class Settle:
    """What a handler may return: `Settle.DROP`, `Settle.RETRY`, `Settle.DEAD`, `Settle.later("1h")`. None acks, too."""

    outcome: SettleOutcome
    after_ms: int = BY_POLICY
    reason: str = ""

    DROP: ClassVar["Settle"]
    RETRY: ClassVar["Settle"]
    DEAD: ClassVar["Settle"]

    @classmethod
    def later(cls, after: Duration) -> "Settle":
        """Deliver it again after that time; it counts as a retry."""
        return cls(SettleOutcome.RETRY, duration_ms(after))

    @classmethod
    def dead(cls, reason: str) -> "Settle":
        """A dead letter, and why."""
        return cls(SettleOutcome.DEAD_LETTER, reason=reason)


Settle.DROP = Settle(SettleOutcome.DONE)
Settle.RETRY = Settle(SettleOutcome.RETRY)
Settle.DEAD = Settle(SettleOutcome.DEAD_LETTER)


@dataclass(frozen=True, slots=True)
class Handler:
    """One function and what it is fed with."""

    topic: str
    function: Function
    group: str | None
    concurrency: int = 1
    filter: str | None = None
    local_retries: int = 0
    park: Path | None = None  # a directory for messages that neither the handler nor the broker can take
    ordered_by_key: bool = True  # of one key one after the other, however many at a time
    parameters: Parameters = field(default_factory=Parameters)

    def __post_init__(self) -> None:
        if not 1 <= self.concurrency <= CONCURRENCY_MAX:
            raise BadParameterError(f"concurrency is 1 to {CONCURRENCY_MAX}, not {self.concurrency}")
        if self.local_retries < 0:
            raise BadParameterError(f"local_retries is 0 or more, not {self.local_retries}")

    @property
    def name(self) -> str:
        """For the log."""
        return name_of(self.function)

    def pauses_ms(self) -> Iterator[int]:
        """How long to wait before each of the tries on the spot."""
        for nth in range(self.local_retries):
            yield min(_PAUSE_FIRST_MS << min(nth, 16), _PAUSE_MAX_MS)

    def call(self, delivery: Delivery) -> object:
        """Call the function; a body that it does not take is a dead letter without a call."""
        try:
            arguments = self.parameters.of(delivery)
        except LakeMQError as error:
            LOG.error("%s cannot take %s, which is a dead letter now: %s", self.name, id_of(delivery), error)
            return Settle.dead(reason_of(error))
        return self.function(*arguments)


def make_handler(
    function: Function,
    topic: str,
    *,
    group: str | None,
    concurrency: int,
    ordered_by_key: bool,
    filter: str | None,
    local_retries: int,
    park: str | Path | None,
    may_be_async: bool,
) -> Handler:
    """A handler as a decorator is told of it, checked."""
    check_function(function, may_be_async=may_be_async)
    place = None if park is None else Path(park)
    return Handler(
        topic, function, group, concurrency, filter, local_retries, place, ordered_by_key, parameters_of(function)
    )


def is_async(function: object) -> bool:
    """Whether a call of it gives a coroutine, as far as can be told without calling it."""
    return any(map(inspect.iscoroutinefunction, _what_runs(function)))


def check_function(function: object, *, may_be_async: bool) -> None:
    """HandlerError for what would be called and never run."""
    if not callable(function):
        raise HandlerError(f"a handler is a function, not {function!r}", "Put @mq.handler(topic) above a function.")
    if any(inspect.isgeneratorfunction(one) or inspect.isasyncgenfunction(one) for one in _what_runs(function)):
        raise HandlerError(
            f"{name_of(function)} is a generator: calling it would run nothing of it",
            "Write it without `yield`; a handler returns None or a Settle.",
        )
    if not may_be_async and is_async(function):
        raise HandlerError(f"{name_of(function)} is a coroutine, which the blocking client cannot run")


def _what_runs(function: object) -> tuple[object, object]:
    """A function, and the method that is called if it is an object."""
    while isinstance(function, partial):
        function = function.func
    return function, getattr(type(function), "__call__", None)  # noqa: B004 - it is the method that is looked at


def check_result(handler: Handler, result: object) -> object:
    """The result of a call that has run; HandlerError for something that has yet to be run."""
    if inspect.isawaitable(result) or inspect.isgenerator(result) or inspect.isasyncgen(result):
        if inspect.iscoroutine(result) or inspect.isgenerator(result):
            result.close()  # or Python warns of it at some other place
        raise HandlerError(f"{handler.name} returned {type(result).__name__}, which was not run: that is no ack")
    return result


def id_of(delivery: Delivery) -> str:
    """For the log: its id, or its place if what it was sent with cannot be read."""
    try:
        return delivery.message_id
    except LakeMQError:
        return repr(delivery)


def settle(delivery: Delivery, result: object) -> None:
    """Do as the handler's return value says; what it settled itself stays as it is."""
    if not isinstance(result, Settle) or result.outcome is SettleOutcome.DONE:
        delivery.ack()
    elif result.outcome is SettleOutcome.DEAD_LETTER:
        delivery.dead_letter(result.reason)
    else:
        delivery.retry(None if result.after_ms == BY_POLICY else result.after_ms / 1000)


def give_up(handler: Handler, delivery: Delivery, error: BaseException, on_refused: Refused | None = None) -> None:
    """It has failed often enough here: the broker is to deliver it again. `on_refused` hears if it cannot."""
    LOG.error("%s failed on %s; it will be retried", handler.name, id_of(delivery), exc_info=error)
    lease, place = delivery._lease, delivery._place
    if lease is None:
        return
    lease.settle_as(place, SettleOutcome.RETRY, BY_POLICY, reason_of(error)[:1000], on_refused)
    if isinstance(lease, Lease) and lease.is_lost:  # perhaps just now: then nobody looks at it any more
        verdict = lease.reopen(place)
        if verdict is not None and verdict.on_refused is not None:
            verdict.on_refused(lease.lost_error())
