"""Feeding handlers with threads: one per handler that receives, and as many as its concurrency that work.

A handler with a place to park has one thread more, which writes down what the broker refused and tries it again.
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from queue import Empty
from typing import Protocol

from lakemq.client.consuming import Consumer
from lakemq.client.delivery import Delivery
from lakemq.client.handlers import LOG, Handler, Settle, give_up, settle
from lakemq.client.parking import Parking, keep, tell
from lakemq.client.system_clock import SystemClock

Function = Callable[[Delivery], object]

_REST_MS = 200


class Consumers(Protocol):
    """Who opens consumers, and parkings beside them: a client."""

    def consumer(
        self, topic: str, *, group: str | None = None, auto_ack: bool = True, filter: str | None = None
    ) -> Consumer:
        """One of a topic, for a group."""
        ...

    def _parking(self, handler: Handler[Function]) -> Parking | None:
        """Where its messages are parked."""
        ...


def serve(client: Consumers, handlers: Sequence[Handler[Function]], stop: threading.Event) -> None:
    """Feed all of them until `stop` is set or Ctrl-C; finish what is under way. Raises what ended a consumer."""
    failures: list[Exception] = []

    def work(handler: Handler[Function]) -> None:
        try:
            _serve_one(client, handler, stop)
        except Exception as error:  # told by `run` once all handlers have ended
            failures.append(error)
            stop.set()

    threads = [threading.Thread(target=work, args=(one,), name=f"lakemq-{one.topic}") for one in handlers]
    for thread in threads:
        thread.start()
    try:
        stop.wait()
    except KeyboardInterrupt:
        stop.set()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def _serve_one(client: Consumers, handler: Handler[Function], stop: threading.Event) -> None:
    free = threading.Semaphore(handler.concurrency)
    parking = client._parking(handler)

    def work(delivery: Delivery) -> None:
        try:
            _handle(handler, delivery, parking, stop)
        finally:
            free.release()

    with ExitStack() as stack:
        if parking is not None:
            stack.enter_context(_Tending(handler, parking, stop))
        consumer = stack.enter_context(
            client.consumer(handler.topic, group=handler.group, auto_ack=False, filter=handler.filter)
        )
        # The pool ends first, so that the acks of what was under way are there when the consumer sends them.
        pool = stack.enter_context(ThreadPoolExecutor(handler.concurrency, f"lakemq-{handler.topic}"))
        while not stop.is_set():
            free.acquire()
            received = consumer.receive(1, timeout=_REST_MS / 1000)
            if received:
                pool.submit(work, received[0])
            else:
                free.release()


def _handle(handler: Handler[Function], delivery: Delivery, parking: Parking | None, stop: threading.Event) -> None:
    """One message, with the tries on the spot."""
    if parking is not None and parking.holds(delivery.message_id):
        delivery.ack()
        return
    pauses = handler.pauses_ms()
    while True:
        try:
            result = handler.function(delivery)
        except Exception as error:  # whatever the user's handler raises means: again
            pause_ms = next(pauses, None)
            if pause_ms is None or delivery.is_settled or delivery.is_lost or stop.wait(pause_ms / 1000):
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

    def __init__(self, handler: Handler[Function], parking: Parking, stop: threading.Event) -> None:
        self._handler = handler
        self._parking = parking
        self._stop = stop
        self._clock = SystemClock()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"lakemq-parked-{handler.topic}")

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        """The consumer is closed, so nothing more will be refused."""
        self._is_over.set()
        self._thread.join()
        self._parking.close()

    def _run(self) -> None:
        parking = self._parking
        while True:
            wait_ms = parking.wait_ms(self._clock.monotonic_ms())
            is_over = self._is_over.is_set()
            try:
                rest_ms = 0 if is_over else _REST_MS if wait_ms is None else min(wait_ms, _REST_MS)
                refused = parking.inbox.get(timeout=rest_ms / 1000)
            except Empty:
                if is_over:
                    return
            else:
                tell(parking, refused, keep(parking, refused, self._clock.monotonic_ms()))
                continue
            if not self._stop.is_set():
                self._try_one()

    def _try_one(self) -> None:
        parked = self._parking.take(self._clock.monotonic_ms())
        if parked is None:
            return
        try:
            result = self._handler.function(parked.delivery)
        except Exception:  # whatever the user's handler raises means: again
            LOG.warning("%s failed again on %s, which stays parked", self._handler.name, parked.delivery.message_id)
            result = Settle.RETRY
        self._parking.said(parked, result, self._clock.monotonic_ms())
