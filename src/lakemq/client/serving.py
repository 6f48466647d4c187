"""Feeding handlers with threads: one per handler that receives, and as many as its concurrency that work."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from lakemq.client.consuming import Consumer
from lakemq.client.delivery import Delivery
from lakemq.client.handlers import Handler, log_failure

Function = Callable[[Delivery], object]


class Consumers(Protocol):
    """Who opens consumers: a client."""

    def consumer(self, topic: str, *, group: str | None = None, auto_ack: bool = True) -> Consumer:
        """One of a topic, for a group."""
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

    def work(delivery: Delivery) -> None:
        try:
            handler.function(delivery)
            delivery.ack()
        except Exception as error:  # whatever the user's handler raises means: again
            log_failure(handler, delivery, error)
            delivery.retry()
        finally:
            free.release()

    # The pool ends first, so that the acks of what was under way are there when the consumer sends them.
    with (
        client.consumer(handler.topic, group=handler.group, auto_ack=False) as consumer,
        ThreadPoolExecutor(handler.concurrency, f"lakemq-{handler.topic}") as pool,
    ):
        while not stop.is_set():
            free.acquire()
            received = consumer.receive(1, timeout="200ms")
            if received:
                pool.submit(work, received[0])
            else:
                free.release()
