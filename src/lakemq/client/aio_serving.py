"""Feeding handlers of the asyncio client: up to as many tasks as the handler's concurrency; see `serving.py`.

A handler that is a plain function runs in a thread, so that it does not hold up the loop.
"""

import asyncio
import contextvars
import inspect
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from queue import Empty
from typing import Any

from lakemq.client.aio_consuming import AsyncConsumer
from lakemq.client.aio_wire import Driver
from lakemq.client.daemon_pool import DaemonPool
from lakemq.client.delivery import Delivery
from lakemq.client.handlers import LOG, Handler, Settle, check_result, give_up, id_of, is_async, settle
from lakemq.client.key_order import KeyOrder
from lakemq.client.parking import Parking, keep, tell

_REST_MS = 200
_CANCELLED_S = 1.0  # for a coroutine to end once it is cancelled


@contextmanager
def loop_signals(told: Callable[[int], None]) -> Iterator[None]:
    """While this lasts SIGTERM and SIGINT call that: in the main thread, where nobody has other plans for them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop, before = asyncio.get_running_loop(), {}
    try:
        for number in (signal.SIGTERM, signal.SIGINT):
            handler = signal.getsignal(number)
            # asyncio.run has put a handler of its own there, which would cancel the task.
            is_runners = isinstance(getattr(getattr(handler, "func", None), "__self__", None), asyncio.Runner)
            if is_runners or handler is signal.SIG_DFL or handler is signal.default_int_handler:
                with suppress(NotImplementedError):  # not every system's loop can
                    loop.add_signal_handler(number, told, number)
                    before[number] = handler
        yield
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)


class AsyncServing:
    """One handler, fed by one consumer until that is stopped."""

    def __init__(
        self,
        driver: Driver,
        handler: Handler,
        consumer: AsyncConsumer,
        parking: Parking | None,
        shutdown_ms: int,
    ) -> None:
        self._driver = driver
        self._handler = handler
        self._consumer = consumer
        self._parking = parking
        self._shutdown_ms = shutdown_ms
        self._order = KeyOrder(handler.concurrency, handler.ordered_by_key, driver.core.config.open_bytes_max)
        self._pool = None if is_async(handler.function) else DaemonPool(handler.concurrency, f"lakemq-{handler.topic}")
        self._working: dict[asyncio.Task[None], Delivery] = {}
        self._has_room = asyncio.Event()
        self._is_stopping = False
        self._is_cancelling = False
        self._is_over = False

    async def run(self) -> None:
        """Until it is stopped; what is under way is finished, as long as there is time. Raises what ended it."""
        tending = None if self._parking is None else asyncio.create_task(self._tend(self._parking))
        try:
            await self._feed()
        finally:
            self._is_stopping = True
            if tending is not None:
                self._is_over = True
                await self._ended(tending)
            if self._pool is not None:
                self._pool.shutdown()

    def stop(self) -> None:
        """Begin nothing new; may be called from any thread, then `wake` must follow on the loop."""
        self._is_stopping = True

    def wake(self) -> None:
        """Receive no more."""
        self._consumer.stop()
        self._has_room.set()

    def hurry(self) -> None:
        """Do not wait for what is under way."""
        self._is_cancelling = True
        for task in self._working:
            task.cancel()

    async def _feed(self) -> None:
        async with self._consumer as consumer:
            try:
                while not (self._is_stopping or consumer.is_stopped):
                    room = self._order.room
                    if not room:
                        self._has_room.clear()
                        await self._has_room.wait()
                        continue
                    for delivery in await consumer.receive(room):
                        self._order.add(delivery)
                    self._begin()
                consumer._core.check()
            finally:
                await self._finish()

    def _begin(self) -> None:
        while not (self._is_stopping or self._consumer.is_stopped):
            delivery = self._order.begin()
            if delivery is None:
                return
            task = asyncio.create_task(self._handle(delivery))
            self._working[task] = delivery
            task.add_done_callback(self._done)

    def _done(self, task: "asyncio.Task[None]") -> None:
        delivery = self._working.pop(task)
        error = asyncio.CancelledError("the handler was cancelled") if task.cancelled() else task.exception()
        if error is not None and not self._is_cancelling:
            give_up(self._handler, delivery, error)
        self._order.done(delivery)
        self._begin()
        self._has_room.set()

    async def _finish(self) -> None:
        """Wait for what is under way; what takes too long is cancelled, and left behind if that does not help."""
        if self._working:
            await asyncio.wait(list(self._working), timeout=self._shutdown_ms / 1000)
        if self._working:
            left = dict(self._working)
            for delivery in left.values():
                LOG.warning(
                    "%s is still at work on %s, which is given back to the broker", self._handler.name, id_of(delivery)
                )
            self.hurry()
            await asyncio.wait(list(left), timeout=_CANCELLED_S)

    async def _ended(self, tending: "asyncio.Task[None]") -> None:
        await asyncio.wait([tending], timeout=self._shutdown_ms / 1000 + 2 * _REST_MS / 1000)
        if not tending.done():
            tending.cancel()
            await asyncio.wait([tending], timeout=_CANCELLED_S)
        if tending.done() and not tending.cancelled():
            tending.result()

    async def _call(self, delivery: Delivery) -> object:
        """The handler's result, whichever way the function must be run."""
        handler = self._handler
        if self._pool is None:
            result = handler.call(delivery)
        else:
            context = contextvars.copy_context()
            result = await self._driver.loop.run_in_executor(self._pool, context.run, handler.call, delivery)
        if inspect.isawaitable(result):
            result = await result
        return check_result(handler, result)

    async def _handle(self, delivery: Delivery) -> None:
        """One message, with the tries on the spot."""
        handler, parking = self._handler, self._parking
        if self._is_stopping or self._consumer.is_stopped or delivery.is_lost:
            return  # it comes again
        if parking is not None and parking.holds(delivery.message_id):
            delivery.ack()
            return
        pauses = handler.pauses_ms()
        while True:
            try:
                result = await self._call(delivery)
            except Exception as error:  # whatever the user's handler raises means: again
                pause_ms = next(pauses, None)
                if pause_ms is None or delivery.is_settled or delivery.is_lost or not await self._pause(pause_ms):
                    put = None if parking is None else lambda _: parking.inbox.put(delivery)
                    give_up(handler, delivery, error, put)
                    return
            else:
                settle(delivery, result)
                return

    async def _pause(self, span_ms: int) -> bool:
        """Before another try on the spot; False if there will be none."""
        if not self._is_stopping:
            await asyncio.sleep(span_ms / 1000)
        return not (self._is_stopping or self._consumer.is_stopped)

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
            if not (self._is_stopping or self._consumer.is_stopped) and await self._try_one(parking):
                continue
            wait_ms = parking.wait_ms(driver.now_ms())
            await asyncio.sleep((_REST_MS if wait_ms is None else max(min(wait_ms, _REST_MS), 1)) / 1000)
        parking.close()

    async def _try_one(self, parking: Parking) -> bool:
        """The next that is due, if there is one."""
        parked = parking.take(self._driver.now_ms())
        if parked is None:
            return False
        result: Any = Settle.RETRY
        try:
            result = await self._call(parked.delivery)
        except Exception:  # whatever the user's handler raises means: again
            LOG.warning("%s failed again on %s, which stays parked", self._handler.name, parked.delivery.message_id)
        await self._driver.loop.run_in_executor(None, parking.said, parked, result, self._driver.now_ms())
        return True
