"""Functions that handle messages: what they are fed with, how often, and what their outcome means.

What a handler raises is tried again on the spot first, a few times with a short pause, under the same lease; then the
broker delivers the message again, or keeps it as a dead letter. Pure; those who call them are `serving.py` and
`aio_serving.py`.
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Generic, TypeVar

from lakemq.client.delivery import Delivery, reason_of
from lakemq.client.duration import Duration, duration_ms
from lakemq.client.lease import Lease, Refused
from lakemq.errors import BadParameterError
from lakemq.wire.own import BY_POLICY, SettleOutcome

F = TypeVar("F", bound=Callable[[Delivery], object])

LOG = logging.getLogger("lakemq.handlers")
LOCAL_RETRIES = 5
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
class Handler(Generic[F]):
    """One function and what it is fed with."""

    topic: str
    function: F
    group: str | None
    concurrency: int
    filter: str | None = None
    local_retries: int = LOCAL_RETRIES
    park: Path | None = None  # a directory for messages that neither the handler nor the broker can take

    def __post_init__(self) -> None:
        if self.concurrency < 1:
            raise BadParameterError(f"concurrency is 1 or more, not {self.concurrency}")
        if self.local_retries < 0:
            raise BadParameterError(f"local_retries is 0 or more, not {self.local_retries}")

    @property
    def name(self) -> str:
        """For the log."""
        return getattr(self.function, "__qualname__", repr(self.function))

    def pauses_ms(self) -> Iterator[int]:
        """How long to wait before each of the tries on the spot."""
        for nth in range(self.local_retries):
            yield min(_PAUSE_FIRST_MS << min(nth, 16), _PAUSE_MAX_MS)


def settle(delivery: Delivery, result: object) -> None:
    """Do as the handler's return value says; what it settled itself stays as it is."""
    if not isinstance(result, Settle) or result.outcome is SettleOutcome.DONE:
        delivery.ack()
    elif result.outcome is SettleOutcome.DEAD_LETTER:
        delivery.dead_letter(result.reason)
    else:
        delivery.retry(None if result.after_ms == BY_POLICY else result.after_ms / 1000)


def give_up(handler: Handler[F], delivery: Delivery, error: BaseException, on_refused: Refused | None = None) -> None:
    """It has failed often enough here: the broker is to deliver it again. `on_refused` hears if it cannot."""
    LOG.error("%s failed on %s; it will be retried", handler.name, delivery.message_id, exc_info=error)
    lease, place = delivery._lease, delivery._place
    if lease is None:
        return
    lease.settle_as(place, SettleOutcome.RETRY, BY_POLICY, reason_of(error)[:1000], on_refused)
    if isinstance(lease, Lease) and lease.is_lost:  # perhaps just now: then nobody looks at it any more
        verdict = lease.reopen(place)
        if verdict is not None and verdict.on_refused is not None:
            verdict.on_refused(lease.lost_error())
