"""Functions that handle messages: which topic, for which group, how many at a time."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from lakemq.client.delivery import Delivery

F = TypeVar("F", bound=Callable[[Delivery], object])

LOG = logging.getLogger("lakemq.handlers")


@dataclass(frozen=True, slots=True)
class Handler(Generic[F]):
    """One function and what it is fed with."""

    topic: str
    function: F
    group: str | None
    concurrency: int

    @property
    def name(self) -> str:
        """For the log."""
        return getattr(self.function, "__qualname__", repr(self.function))


def log_failure(handler: Handler[F], delivery: Delivery, error: BaseException) -> None:
    """The message will be retried: say why."""
    LOG.error("%s failed on %s; it will be retried", handler.name, delivery.message_id, exc_info=error)
