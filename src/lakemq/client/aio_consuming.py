"""Consumers and readers of the asyncio client."""

import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from types import TracebackType
from typing import TypeVar

from lakemq.client.aio_wire import Driver
from lakemq.client.consumer import ConsumerCore
from lakemq.client.delivery import Delivery, open_bytes
from lakemq.client.duration import Duration, duration_ms
from lakemq.client.errors import ClosedError
from lakemq.client.lease import FORGONE, OPEN, Lease
from lakemq.client.offsets import Start
from lakemq.client.position_file import PositionFile
from lakemq.client.promise import start
from lakemq.client.reader import ReaderCore
from lakemq.message import AckType

_ALL = 1 << 30
_SAVE_MS = 1000

_Self = TypeVar("_Self", bound="AsyncSource")


class AsyncSource:
    """What consumers and readers have in common."""

    def __init__(self, driver: Driver, core: ConsumerCore | ReaderCore, sources: "set[AsyncSource]") -> None:
        self._driver = driver
        self._core = core
        self._sources = sources
        self._is_closed = False
        sources.add(self)
        driver.enter()
        core.begin()

    @property
    def topic(self) -> str:
        """The topic's full name."""
        return self._core.topic

    def stop(self) -> None:
        """End the loop after the message at hand."""
        self._driver.enter()
        self._core.stop()

    async def __aenter__(self: _Self) -> _Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close(is_clean=error is None)

    async def close(self, is_clean: bool = True) -> None:
        raise NotImplementedError  # a consumer acks what it has, a reader saves its place

    def _check(self) -> None:
        if self._is_closed or self._driver.is_closed:
            raise ClosedError

    async def _take(self, count: int, timeout_ms: int | None) -> list[Delivery]:
        driver, core = self._driver, self._core
        until_ms = None if timeout_ms is None else driver.now_ms() + timeout_ms
        while True:
            driver.enter()
            taken = core.take(count)
            if taken or core.is_stopped or (isinstance(core, ReaderCore) and core.is_finished):
                return taken
            left_ms = None if until_ms is None else until_ms - driver.now_ms()
            if left_ms is not None and left_ms <= 0:
                return []
            await driver.until(core.ready, left_ms)


class AsyncConsumer(AsyncSource):
    """Receives messages of a topic for a group: `async for m in consumer`. See `Consumer`."""

    _core: ConsumerCore

    def __init__(self, driver: Driver, core: ConsumerCore, sources: "set[AsyncSource]") -> None:
        core.on_lease_done = self._lease_done
        self._thread_id = threading.get_ident()
        super().__init__(driver, core, sources)

    @property
    def is_stopped(self) -> bool:
        """Whether nothing more will come."""
        return self._core.is_stopped

    @property
    def lost(self) -> int:
        """Messages whose lease ended before their ack arrived; they come again."""
        return self._core.lost

    @property
    def damaged(self) -> int:
        """Messages that could not be opened: nobody gets them, they are dead letters with the reason."""
        return self._core.damaged

    async def receive(self, count: int = 100, timeout: Duration = "5s") -> list[Delivery]:
        """Up to `count` messages, as soon as there are any; none if nothing came in time, or after `stop`."""
        self._check()
        self._settle_handed()
        if self._core.is_stopped:
            self._core.check()
            return []
        return await self._take(count, duration_ms(timeout))

    async def __aiter__(self) -> AsyncIterator[Delivery]:
        core, auto_ack = self._core, self._core.settings.auto_ack
        while not core.is_stopped:
            self._check()
            self._settle_handed()
            batch = await self._take(_ALL, None)
            if not batch:
                continue
            if core.reader is not None:
                at = 0
                try:
                    for at, delivery in enumerate(batch, 1):  # noqa: B007 - wanted when the loop is left
                        yield delivery
                        if core.is_stopped:
                            break
                finally:
                    core.reader.give_back(batch[0].partition, batch[at:])
                continue
            core.unhand()
            lease = batch[0]._lease
            assert isinstance(lease, Lease)
            marks, at = lease.marks, -1
            try:
                for delivery in batch:
                    if marks[delivery._place] == FORGONE:
                        continue
                    at = delivery._place
                    yield delivery
                    if auto_ack and marks[at] == OPEN:
                        marks[at] = AckType.SUCCESS  # whether that was the last is looked at when more is asked for
                    if lease.is_lost or core.is_stopped:
                        break
            finally:
                core.give_back(lease, at)

    async def batches(self, max_messages: int = 500, max_wait: Duration = "200ms") -> AsyncIterator[list[Delivery]]:
        """Lists of up to `max_messages`, each as full as it gets within `max_wait` of its first message."""
        wait_ms = duration_ms(max_wait)
        while not self._core.is_stopped:
            self._check()
            self._settle_handed()
            batch = await self._take(max_messages, None)
            until_ms = self._driver.now_ms() + wait_ms
            while batch and len(batch) < max_messages and self._has_room(batch) and not self._core.is_stopped:
                more = await self._take(max_messages - len(batch), max(until_ms - self._driver.now_ms(), 0))
                if not more:
                    break
                batch = batch + more
            if batch:
                yield batch

    async def close(self, is_clean: bool = True) -> None:
        """Stop, send acks and free what was lent; unless it is clean, without acking what was handed out last."""
        if self._is_closed:
            return
        self._is_closed = True
        self._sources.discard(self)
        self._driver.enter()
        await self._driver.settled(start(self._core.close(is_clean)))

    def _has_room(self, batch: list[Delivery]) -> bool:
        """Whether more may be expanded beside these."""
        return open_bytes(batch) < self._core.open_bytes_max

    def _settle_handed(self) -> None:
        self._driver.enter()
        self._core.settle_handed()

    def _lease_done(self, lease: Lease) -> None:
        """All of it is settled: on the loop, or by a handler that runs in a thread."""
        if threading.get_ident() == self._thread_id:
            self._driver.enter()
            self._core.send_acks(lease)
        else:
            with suppress(RuntimeError):  # the loop is closed: a handler that was left behind has come to its end
                self._driver.loop.call_soon_threadsafe(self._lease_done, lease)


class AsyncReader(AsyncSource):
    """Reads a topic from a position of its own: `async for m in reader`. See `Reader`."""

    _core: ReaderCore

    def __init__(
        self, driver: Driver, core: ReaderCore, sources: "set[AsyncSource]", store: PositionFile | None
    ) -> None:
        self._store = store
        self._saved_ms = driver.now_ms()
        self._last: Delivery | None = None
        super().__init__(driver, core, sources)

    @property
    def positions(self) -> dict[int, int]:
        """By partition, the offset that comes next."""
        return dict(self._core.positions)

    @property
    def skipped(self) -> int:
        """Messages that were no longer kept when the reader came to them."""
        return self._core.skipped

    async def receive(self, count: int = 100, timeout: Duration = "5s") -> list[Delivery]:
        """Up to `count` messages, as soon as there are any; none if nothing came in time, or at the end."""
        self._check()
        await self._passed(None)
        taken = await self._take(count, duration_ms(timeout))
        self._last = taken[-1] if taken else None
        return taken

    async def __aiter__(self) -> AsyncIterator[Delivery]:
        core = self._core
        while True:
            self._check()
            batch = await self._take(_ALL, None)
            if not batch:
                return
            partition, at = batch[0].partition, 0
            seeks = core.seek_count(partition)
            try:
                for at, delivery in enumerate(batch, 1):  # noqa: B007 - wanted when the loop is left
                    self._last = delivery
                    yield delivery
                    if core.is_stopped or core.seek_count(partition) != seeks:
                        break
                    await self._passed(delivery)
            finally:
                if core.seek_count(partition) == seeks:
                    core.give_back(partition, batch[at:])
            if core.is_stopped:
                return

    def seek(self, *, partition: int, offset: int) -> None:
        """Go on from there in one partition."""
        self._check()
        self._last = None
        self._driver.enter()
        self._core.seek(partition, offset)

    async def seek_to_time(self, moment: Start) -> None:
        """Go on from there in all partitions: a datetime, or how long ago ("-10m")."""
        self._check()
        self._last = None
        self._driver.enter()
        await self._driver.settled(start(self._core.seek_to(moment)))

    async def save(self) -> None:
        """Store the positions now; otherwise it is done about once a second, and on closing."""
        if self._store is not None:
            self._saved_ms = self._driver.now_ms()
            await self._driver.loop.run_in_executor(None, self._store.save, dict(self._core.positions))

    async def close(self, is_clean: bool = True) -> None:
        """Stop, and store the positions."""
        if self._is_closed:
            return
        self._is_closed = True
        self._sources.discard(self)
        self.stop()
        if is_clean:
            await self._passed(None)
        await self.save()

    async def _passed(self, delivery: Delivery | None) -> None:
        done = delivery or self._last
        self._last = None
        if done is not None:
            self._core.passed(done)
            if self._store is not None and self._driver.now_ms() - self._saved_ms >= _SAVE_MS:
                await self.save()
