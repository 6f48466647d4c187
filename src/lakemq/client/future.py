"""What send_soon of the blocking client gives: a future that costs next to nothing until somebody looks at it."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from lakemq.client.duration import Duration, duration_ms
from lakemq.client.parcel import Parcel
from lakemq.client.receipt import Receipt

if TYPE_CHECKING:
    from lakemq.client.blocking import Client


class SendFuture:
    """The outcome of one send_soon, with the methods of concurrent.futures.Future.

    `result` does the waiting and the sending itself, on the caller's thread. What was taken cannot be cancelled.
    """

    __slots__ = ("_client", "_parcel", "_pid", "_place")

    def __init__(self, client: "Client", parcel: Parcel, place: int, pid: int) -> None:
        self._client = client
        self._parcel = parcel
        self._place = place
        self._pid = pid

    def result(self, timeout: Duration | None = None) -> Receipt:
        """The receipt, or the error raised; TimeoutError if neither is there in time."""
        parcel = self._parcel
        if not parcel.done.is_done and not self._client.await_parcel(parcel, self._pid, _ms(timeout)):
            raise TimeoutError("the message has no outcome yet")
        parcel.done.result()
        return self._client.receipt_of(parcel, self._place)

    def exception(self, timeout: Duration | None = None) -> BaseException | None:
        """The error, None if it went well; TimeoutError if there is no outcome in time."""
        parcel = self._parcel
        if not parcel.done.is_done and not self._client.await_parcel(parcel, self._pid, _ms(timeout)):
            raise TimeoutError("the message has no outcome yet")
        return parcel.done.error

    def done(self) -> bool:
        """Whether there is an outcome; does not drive anything."""
        return self._parcel.done.is_done

    def running(self) -> bool:
        """Whether it is on its way: it left, or will by itself."""
        return not self._parcel.done.is_done

    def cancel(self) -> bool:
        """Never: it may be on its way."""
        return False

    def cancelled(self) -> bool:
        """Never."""
        return False

    def add_done_callback(self, function: "Callable[[SendFuture], object]") -> None:
        """Call that with this future once there is an outcome, on whatever thread brings it."""
        self._client.call_after(self._parcel, lambda: function(self))


def _ms(timeout: Duration | None) -> int | None:
    return None if timeout is None else duration_ms(timeout)
