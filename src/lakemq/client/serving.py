"""Feeding handlers with threads: one per handler that receives, and up to its concurrency that work.

A handler with a place to park has one thread more, which writes down what the broker refused and tries it again. The
threads that run functions of users are daemons: one that does not return within the time of a shutdown is left behind,
and its message goes back to the broker.
"""

import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from queue import Empty
from typing import Protocol

from lakemq.client.consuming import Consumer
from lakemq.client.daemon_pool import DaemonPool
from lakemq.client.delivery import Delivery
from lakemq.client.handlers import LOG, Handler, Settle, check_result, give_up, id_of, settle
from lakemq.client.key_order import KeyOrder
from lakemq.client.parking import Parking, keep, tell
from lakemq.client.stopping import StopSign, signals
from lakemq.client.system_clock import SystemClock

_REST_MS = 200
_CLOCK = SystemClock()


class Consumers(Protocol):
    """Who opens consumers, and parkings beside them: a client."""

    def consumer(
        self, topic: str, *, group: str | None = None, auto_ack: bool = True, filter: str | None = None
    ) -> Consumer:
        """One of a topic, for a group."""
        ...

    def _parking(self, handler: Handler) -> Parking | None:
        """Where its messages are parked."""
        ...

    @property
    def _open_bytes_max(self) -> int:
        """How much may be open at a time."""
        ...


def serve(client: Consumers, handlers: Sequence[Handler], stop: StopSign, shutdown_ms: int) -> None:
    """Feed all of them until told to stop, by a call or a signal; finish what is under way, as long as there is time.

    Raises what ended a consumer.
    """
    feeds = [_Feed(client, one, stop, shutdown_ms) for one in handlers]
    with signals(stop):
        for feed in feeds:
            feed.start()
        try:
            stop.wait()
        finally:  # also if a signal handler of the user's raises
            stop.set()
            stop.wait()  # which wakes those who pause
            for feed in feeds:
                feed.wind_up()
            while any(feed.is_alive for feed in feeds):
                stop.rest(_REST_MS / 1000)
                if stop.is_hurried:
                    for feed in feeds:
                        feed.wake()
    failures = [feed.failure for feed in feeds if feed.failure is not None]
    if failures:
        raise failures[0]


class _Feed:
    """One handler and its consumer."""

    def __init__(self, client: Consumers, handler: Handler, stop: StopSign, shutdown_ms: int) -> None:
        self.failure: Exception | None = None
        self._client = client
        self._handler = handler
        self._stop = stop
        self._shutdown_ms = shutdown_ms
        self._until_ms: int | None = None  # when a shutdown ends; None while there is none
        self._changed = threading.Condition()
        self._order = KeyOrder(handler.concurrency, handler.ordered_by_key, client._open_bytes_max)
        self._pool = DaemonPool(handler.concurrency, f"lakemq-{handler.topic}")
        self._consumer: Consumer | None = None
        self._parking: Parking | None = None
        self._thread = threading.Thread(target=self._run, name=f"lakemq-{handler.topic}", daemon=True)

    def start(self) -> None:
        """Begin to receive."""
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether something is under way, or acks are not sent yet."""
        return self._thread.is_alive()

    def wind_up(self) -> None:
        """Receive no more; the time of the shutdown begins."""
        with self._changed:
            if self._until_ms is None:
                self._until_ms = _CLOCK.monotonic_ms() + self._shutdown_ms
            self._changed.notify_all()
            consumer = self._consumer
        if consumer is not None:
            consumer.stop()

    def wake(self) -> None:
        """Have it look again whether to wait."""
        with self._changed:
            self._changed.notify_all()

    def _run(self) -> None:
        try:
            self._serve()
        except Exception as error:  # told by `serve` once all handlers have ended
            self.failure = error
            self._stop.set()
        finally:
            self._stop.ring()

    def _serve(self) -> None:
        handler = self._handler
        self._parking = self._client._parking(handler)
        with ExitStack() as stack:
            if self._parking is not None:
                stack.enter_context(_Tending(handler, self._parking, self._stop, self._left_ms))
            consumer = stack.enter_context(
                self._client.consumer(handler.topic, group=handler.group, auto_ack=False, filter=handler.filter)
            )
            # This ends first, so that the acks of what was under way are there when the consumer sends them.
            stack.callback(self._finish)
            with self._changed:
                self._consumer = consumer
            while not consumer.is_stopped and (room := self._wait_for_room()):
                self._received(consumer.receive(room, timeout=_REST_MS / 1000))
            consumer._core.check()

    def _wait_for_room(self) -> int:
        """How many messages may be received; 0 once it is to stop."""
        with self._changed:
            while not self._stop.is_set and not self._order.room:
                self._changed.wait()
            return 0 if self._stop.is_set else self._order.room

    def _received(self, deliveries: list[Delivery]) -> None:
        with self._changed:
            for delivery in deliveries:
                self._order.add(delivery)
            self._begin()

    def _begin(self) -> None:
        """Give to the threads what may be begun; the lock is held."""
        while not self._stop.is_set:
            delivery = self._order.begin()
            if delivery is None:
                return
            self._pool.submit(self._work, delivery)

    def _work(self, delivery: Delivery) -> None:
        try:
            _handle(self._handler, delivery, self._parking, self._stop)
        except BaseException as error:  # SystemExit, which would end the thread and nothing else
            give_up(self._handler, delivery, error)
        finally:
            with self._changed:
                self._order.done(delivery)
                self._begin()
                self._changed.notify_all()

    def _left_ms(self) -> int:
        """Of the time of the shutdown."""
        with self._changed:
            if self._until_ms is None:  # this one ended by itself
                self._until_ms = _CLOCK.monotonic_ms() + self._shutdown_ms
            return 0 if self._stop.is_hurried else max(self._until_ms - _CLOCK.monotonic_ms(), 0)

    def _finish(self) -> None:
        """Wait for what is under way; what takes too long is left behind."""
        with self._changed:
            while self._order.under_way and (left_ms := self._left_ms()):
                self._changed.wait(left_ms / 1000)
            for delivery in self._order.under_way:
                LOG.warning(
                    "%s is still at work on %s, which is given back to the broker", self._handler.name, id_of(delivery)
                )
        self._pool.shutdown()


def _handle(handler: Handler, delivery: Delivery, parking: Parking | None, stop: StopSign) -> None:
    """One message, with the tries on the spot."""
    if stop.is_set or delivery.is_lost:
        return  # it comes again
    if parking is not None and parking.holds(delivery.message_id):
        delivery.ack()
        return
    pauses = handler.pauses_ms()
    while True:
        try:
            result = check_result(handler, handler.call(delivery))
        except Exception as error:  # whatever the user's handler raises means: again
            pause_ms = next(pauses, None)
            if pause_ms is None or delivery.is_settled or delivery.is_lost or stop.pause(pause_ms / 1000):
                put = None if parking is None else partial(_put, parking, delivery)
                give_up(handler, delivery, error, put)
                return
        else:
            settle(delivery, result)
            return


def _put(parking: Parking, delivery: Delivery, _: object) -> None:
    """Called where nobody may wait for a disk."""
    parking.inbox.put(delivery)


class _Tending:
    """A thread that looks after what is parked, as long as the handler is fed."""

    def __init__(self, handler: Handler, parking: Parking, stop: StopSign, left_ms: Callable[[], int]) -> None:
        self._handler = handler
        self._parking = parking
        self._stop = stop
        self._left_ms = left_ms
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"lakemq-parked-{handler.topic}", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        """The consumer is closed, so nothing more will be refused."""
        self._is_over.set()
        self._thread.join(self._left_ms() / 1000 + _REST_MS / 1000)
        while self._keep_one(0):
            pass
        if not self._thread.is_alive():
            self._parking.close()

    def _run(self) -> None:
        while True:
            wait_ms = self._parking.wait_ms(_CLOCK.monotonic_ms())
            is_over = self._is_over.is_set()
            if self._keep_one(0 if is_over else _REST_MS if wait_ms is None else min(wait_ms, _REST_MS)):
                continue
            if is_over:
                return
            if not self._stop.is_set:
                self._try_one()

    def _keep_one(self, rest_ms: int) -> bool:
        """Write down one that the broker refused, if there is one within that time."""
        try:
            refused = self._parking.inbox.get(timeout=rest_ms / 1000)
        except Empty:
            return False
        tell(self._parking, refused, keep(self._parking, refused, _CLOCK.monotonic_ms()))
        return True

    def _try_one(self) -> None:
        parked = self._parking.take(_CLOCK.monotonic_ms())
        if parked is None:
            return
        try:
            result = check_result(self._handler, self._handler.call(parked.delivery))
        except Exception:  # whatever the user's handler raises means: again
            LOG.warning("%s failed again on %s, which stays parked", self._handler.name, parked.delivery.message_id)
            result = Settle.RETRY
        self._parking.said(parked, result, _CLOCK.monotonic_ms())
