"""Work that waits, without a thread and without a loop: generators that yield promises.

A step function such as `Core.route` is a generator: it yields a Promise where it must wait, and is gone on with when
that is settled. Whoever drives the core (`blocking.py`, `aio.py`, a test) only moves bytes and time; promises are
settled from there, and all that waited for one goes on at once, in the order in which it began to wait.
"""

from collections.abc import Callable, Generator
from typing import Any, Generic, TypeAlias, TypeVar, cast

T = TypeVar("T")


class Promise(Generic[T]):
    """A value or an error that is not there yet. The first outcome counts."""

    __slots__ = ("_callbacks", "_value", "error", "is_done")

    def __init__(self) -> None:
        self.is_done = False
        self.error: BaseException | None = None
        self._value: T | None = None
        self._callbacks: list[Callable[[Promise[T]], None]] | None = None

    def resolve(self, value: T) -> None:
        """It is there."""
        if not self.is_done:
            self._value = value
            self._settle()

    def fail(self, error: BaseException) -> None:
        """It will never be there."""
        if not self.is_done:
            self.error = error
            self._settle()

    def settle_as(self, other: "Promise[T]") -> None:
        """The outcome of another, which has one."""
        if other.error is not None:
            self.fail(other.error)
        else:
            self.resolve(cast("T", other._value))  # it was resolved with a T

    def then(self, callback: "Callable[[Promise[T]], None]") -> None:
        """Call that once it is settled; at once if it is."""
        if self.is_done:
            callback(self)
        elif self._callbacks is None:
            self._callbacks = [callback]
        else:
            self._callbacks.append(callback)

    def result(self) -> T:
        """The value, or the error raised."""
        assert self.is_done, "asked before it was settled"
        if self.error is not None:
            # One error may be raised to many: each with its own traceback, not with those of the others before it.
            raise self.error.with_traceback(None)
        return cast("T", self._value)  # resolve() took a T

    def _settle(self) -> None:
        self.is_done = True
        callbacks, self._callbacks = self._callbacks, None
        for callback in callbacks or ():
            callback(self)


Steps: TypeAlias = Generator[Promise[Any], Any, T]
"""Work in steps: yields what it waits for, returns a T."""


def start(steps: Steps[T]) -> Promise[T]:
    """Run steps as far as they go; the promise is settled when they end."""
    done: Promise[T] = Promise()
    _go_on(steps, done, None)
    return done


def _go_on(steps: Steps[T], done: Promise[T], settled: Promise[Any] | None) -> None:
    while True:
        try:
            if settled is None:
                waited = next(steps)
            elif settled.error is not None:
                waited = steps.throw(settled.error)
            else:
                waited = steps.send(settled._value)
        except StopIteration as stop:
            done.resolve(stop.value)
            return
        except Exception as error:  # a bug, too, goes to whoever waits: nobody else would hear of it
            done.fail(error)
            return
        if not waited.is_done:
            waited.then(lambda promise: _go_on(steps, done, promise))
            return
        settled = waited


def resolved(value: T) -> Promise[T]:
    """A promise that is kept already."""
    promise: Promise[T] = Promise()
    promise.resolve(value)
    return promise
