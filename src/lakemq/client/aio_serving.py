"""Feeding handlers of the asyncio client: as many tasks as the handler's concurrency; see `serving.py`."""

import asyncio
from collections.abc import Awaitable, Callable
from queue import Empty

from lakemq.client.aio_consuming import AsyncConsumer
from lakemq.client.aio_wire import Driver
from lakemq.client.delivery import Delivery
from lakemq.client.handlers import LOG, Handler, Settle, give_up, settle
from lakemq.client.parking import Parking, keep, tell

AsyncFunction = Callable[[Delivery], Awaitable[object]]

_REST_MS = 200


class AsyncServing:
    """One handler, fed by one consumer until that is stopped."""

    def __init__(
        self, driver: Driver, handler: Handler[AsyncFunction], consumer: AsyncConsumer, parking: Parking | None
    ) -> None:
        self._driver = driver
        self._handler = handler
        self._consumer = consumer
        self._parking = parking
        self._is_over = False

    async def run(self) -> None:
        """Until the consumer is stopped; what is under way is finished. Raises what ended the consumer."""
        tending = None if self._parking is None else asyncio.create_task(self._tend(self._parking))
        try:
            await self._feed()
        finally:
            if tending is not None:
                self._is_over = True
                await tending

    async def _feed(self) -> None:
        free = asyncio.Semaphore(self._handler.concurrency)

        async def work(delivery: Delivery) -> None:
            try:
                await self._handle(delivery)
            finally:
                free.release()

        working: set[asyncio.Task[None]] = set()
        async with self._consumer as consumer:
            try:
                async for delivery in consumer:
                    await free.acquire()
                    task = asyncio.create_task(work(delivery))
                    working.add(task)
                    task.add_done_callback(working.discard)
            finally:
                await asyncio.gather(*working)

    async def _handle(self, delivery: Delivery) -> None:
        """One message, with the tries on the spot."""
        handler, parking = self._handler, self._parking
        if parking is not None and parking.holds(delivery.message_id):
            delivery.ack()
            return
        pauses = handler.pauses_ms()
        while True:
            try:
                result = await handler.function(delivery)
            except Exception as error:  # whatever the user's handler raises means: again
                pause_ms = next(pauses, None)
                if pause_ms is None or delivery.is_settled or delivery.is_lost or self._consumer.is_stopped:
                    put = None if parking is None else lambda _: parking.inbox.put(delivery)
                    give_up(handler, delivery, error, put)
                    return
                await asyncio.sleep(pause_ms / 1000)
            else:
                settle(delivery, result)
                return

    async def _tend(self, parking: Parking) -> None:
        """Write down what the broker refused, and try again what is due."""
        driver = self._driver
        while True:
            is_over = self._is_over
            try:
                refused = parking.inbox.get_nowait()
            except Empty:
                if is_over:
                    break
            else:
                failure = await driver.loop.run_in_executor(None, keep, parking, refused, driver.now_ms())
                tell(parking, refused, failure)
                continue
            if not self._consumer.is_stopped and await self._try_one(parking):
                continue
            wait_ms = parking.wait_ms(driver.now_ms())
            await asyncio.sleep((_REST_MS if wait_ms is None else max(min(wait_ms, _REST_MS), 1)) / 1000)
        parking.close()

    async def _try_one(self, parking: Parking) -> bool:
        """The next that is due, if there is one."""
        parked = parking.take(self._driver.now_ms())
        if parked is None:
            return False
        result: object = Settle.RETRY
        try:
            result = await self._handler.function(parked.delivery)
        except Exception:  # whatever the user's handler raises means: again
            LOG.warning("%s failed again on %s, which stays parked", self._handler.name, parked.delivery.message_id)
        await self._driver.loop.run_in_executor(None, parking.said, parked, result, self._driver.now_ms())
        return True
