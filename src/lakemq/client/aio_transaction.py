"""A transaction of the asyncio client."""

from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import TypeVar

from lakemq.client.aio_wire import Driver
from lakemq.client.errors import ClosedError
from lakemq.client.outgoing import Body, Message, Tags
from lakemq.client.promise import Steps, start
from lakemq.client.receipt import Receipt
from lakemq.client.transaction import TransactionCore
from lakemq.errors import LakeMQError

T = TypeVar("T")


class AsyncTransaction:
    """Messages that are seen together or not at all; use it as `async with`."""

    def __init__(self, driver: Driver, core: TransactionCore) -> None:
        self._driver = driver
        self._core = core

    @property
    def id(self) -> str:
        """Your own id, if you gave one, else the one it has at the broker."""
        return self._core.own_id or self._core.tx_id

    @property
    def state(self) -> str:
        """open, broken, committed or rolled back."""
        return self._core.state.value

    async def send(
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
        """Put a message into the transaction; see `Transaction.send`."""
        message = Message(body, key, tags, headers, partition, ordered, priority, uniq_id)
        return await self._send(message)

    async def send_many(self, messages: Iterable[Message | Body]) -> list[Receipt]:
        """Put in several."""
        made = [one if isinstance(one, Message) else Message(one) for one in messages]
        return [await self._send(message) for message in made]

    async def _send(self, message: Message) -> Receipt:
        if self._driver.is_closed:
            raise ClosedError
        receipt = self._core.send_now(message)
        return await self._call(self._core.send(message)) if receipt is None else receipt

    async def commit(self) -> None:
        """Let its messages be seen. After a SendTimeoutError it may be called again, and tells how it went."""
        await self._call(self._core.commit())

    async def rollback(self) -> None:
        """Forget its messages."""
        await self._call(self._core.rollback())

    async def _call(self, steps: Steps[T]) -> T:
        if self._driver.is_closed:
            raise ClosedError
        self._driver.enter()
        return await self._driver.settled(start(steps))

    async def __aenter__(self) -> "AsyncTransaction":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not self._core.is_open:
            return
        if error is None:
            await self.commit()
            return
        try:
            await self.rollback()
        except LakeMQError as second:  # its time-out will do it; the first error is the one to tell
            error.add_note(f"the transaction could not be rolled back now: {second}")
