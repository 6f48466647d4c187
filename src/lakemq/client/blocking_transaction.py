"""A transaction of the blocking client."""

from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import TypeVar

from lakemq.client.outgoing import Body, Message, Tags
from lakemq.client.promise import Steps, start
from lakemq.client.pump import Pump
from lakemq.client.receipt import Receipt
from lakemq.client.transaction import TransactionCore
from lakemq.errors import LakeMQError

T = TypeVar("T")


class Transaction:
    """Messages that are seen together or not at all. Of one thread; use it as a context manager."""

    def __init__(self, pump: Pump, core: TransactionCore) -> None:
        self._pump = pump
        self._core = core

    @property
    def id(self) -> str:
        """Your own id, if you gave one, else the one it has at the broker."""
        return self._core.own_id or self._core.tx_id

    @property
    def state(self) -> str:
        """open, broken, committed or rolled back."""
        return self._core.state.value

    def send(
        self,
        body: Body,
        *,
        key: str | None = None,
        tags: Tags | None = None,
        headers: Mapping[str, str] | None = None,
        partition: int | None = None,
        ordered: bool = False,
        priority: int = 0,
        uniq_id: str | None = None,
    ) -> Receipt:
        """Put a message into the transaction. The receipt has no offset: that is given out when it is committed."""
        return self._send(Message(body, key, tags, headers, partition, ordered, priority, uniq_id))

    def send_many(self, messages: Iterable[Message | Body]) -> list[Receipt]:
        """Put in several."""
        made = [one if isinstance(one, Message) else Message(one) for one in messages]
        return [self._send(message) for message in made]

    def _send(self, message: Message) -> Receipt:
        pump = self._pump
        pump.check()
        with pump.lock:
            receipt = self._core.send_now(message)
        return self._call(self._core.send(message)) if receipt is None else receipt

    def commit(self) -> None:
        """Let its messages be seen. After a SendTimeoutError it may be called again, and tells how it went."""
        self._call(self._core.commit())

    def rollback(self) -> None:
        """Forget its messages."""
        self._call(self._core.rollback())

    def _call(self, steps: Steps[T]) -> T:
        self._pump.check()
        return self._pump.call(lambda: start(steps))

    def __enter__(self) -> "Transaction":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not self._core.is_open:
            return
        if error is None:
            self.commit()
            return
        try:
            self.rollback()
        except LakeMQError as second:  # its time-out will do it; the first error is the one to tell
            error.add_note(f"the transaction could not be rolled back now: {second}")
