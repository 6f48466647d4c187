"""Threads for the functions of users: begun when needed, up to a number, and none keeps a process from ending.

A handler that does not return cannot be stopped from outside. The pools of `concurrent.futures` wait for such a one
when the interpreter ends; these threads do not.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from queue import SimpleQueue
from typing import Any

_Task = tuple["Future[Any]", Callable[..., Any], tuple[Any, ...], dict[str, Any]]


class DaemonPool(Executor):
    """At most `size` daemon threads; who gives it more at a time waits for none of them, but is queued."""

    def __init__(self, size: int, name: str) -> None:
        self._size = size
        self._name = name
        self._tasks: SimpleQueue[_Task | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        self._idle = 0
        self._is_closed = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        """Have that called by one of the threads."""
        future: Future[Any] = Future()
        with self._lock:
            if self._is_closed:
                raise RuntimeError("the pool is closed")
            self._tasks.put((future, fn, args, kwargs))
            if self._idle:
                self._idle -= 1
            elif self._threads < self._size:
                self._threads += 1
                threading.Thread(target=self._work, name=f"{self._name}-{self._threads}", daemon=True).start()
        return future

    def shutdown(self, wait: bool = False, *, cancel_futures: bool = False) -> None:
        """Take nothing more; each thread ends after what it does now."""
        with self._lock:
            self._is_closed = True
            for _ in range(self._threads):
                self._tasks.put(None)

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            future, function, arguments, named = task
            if future.set_running_or_notify_cancel():
                try:
                    result = function(*arguments, **named)
                except BaseException as error:  # whoever looks at the future hears of it
                    future.set_exception(error)
                else:
                    future.set_result(result)
            del task, future, function, arguments, named  # not until the next one comes
            with self._lock:
                self._idle += 1
