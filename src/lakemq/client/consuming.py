"""Consumers and readers of the blocking client: loops over what the core has in hand. Each belongs to one thread."""

from collections.abc import Iterator
from types import TracebackType
from typing import TypeVar

from lakemq.client.consumer import ConsumerCore
from lakemq.client.delivery import Delivery, open_bytes
from lakemq.client.duration import Duration, duration_ms
from lakemq.client.errors import ClosedError
from lakemq.client.lease import FORGONE, OPEN, Lease
from lakemq.client.offsets import Start
from lakemq.client.position_file import PositionFile
from lakemq.client.promise import start
from lakemq.client.pump import Pump
from lakemq.client.reader import ReaderCore
from lakemq.message import AckType

_ALL = 1 << 30
_SAVE_MS = 1000

_Self = TypeVar("_Self", bound="_Source")


class _Source:
    """What consumers and readers have in common: waiting for the core to have something."""

    def __init__(self, pump: Pump, core: ConsumerCore | ReaderCore) -> None:
        self._pump = pump
        self._core = core
        self._is_closed = False
        pump.sources.add(self)
        pump.enter()
        try:
            core.begin()
        finally:
            pump.leave()

    @property
    def topic(self) -> str:
        """The topic's full name."""
        return self._core.topic

    def stop(self) -> None:
        """End the loop after the message at hand. May be called from any thread, or by a signal."""
        self._pump.enter()
        try:
            self._core.stop()
        finally:
            self._pump.leave()

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close(is_clean=error is None)

    def close(self, is_clean: bool = True) -> None:
        raise NotImplementedError  # a consumer acks what it has, a reader saves its place

    def _check(self) -> None:
        if self._is_closed:
            raise ClosedError
        self._pump.check()

    def _take(self, count: int, timeout_ms: int | None) -> list[Delivery]:
        """Up to `count` messages; none if it was stopped, is at its end, or nothing came in time."""
        pump, core = self._pump, self._core
        until_ms = None if timeout_ms is None else pump.now_ms() + timeout_ms
        while True:
            pump.enter()
            try:
                taken = core.take(count)
                ready = core.ready
                is_over = core.is_stopped or (isinstance(core, ReaderCore) and core.is_finished)
            finally:
                pump.leave()
            if taken or is_over:
                return taken
            left_ms = None if until_ms is None else until_ms - pump.now_ms()
            if left_ms is not None and left_ms <= 0:
                return []
            pump.wait(ready, left_ms)


class Consumer(_Source):
    """Receives messages of a topic for a group; a loop over it ends with `stop`.

    With auto_ack, a message is acked when the loop asks for the next one; leaving the `with` block without an error
    acks the last one. Acks are collected and sent together. A message whose lease is lost comes again and is counted
    in `lost`.
    """

    _core: ConsumerCore

    def __init__(self, pump: Pump, core: ConsumerCore) -> None:
        core.on_lease_done = self._lease_done
        super().__init__(pump, core)

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

    def receive(self, count: int = 100, timeout: Duration = "5s") -> list[Delivery]:
        """Up to `count` messages, as soon as there are any; none if nothing came in time, or after `stop`.

        With auto_ack, asking again acks those received before.
        """
        self._check()
        self._settle_handed()
        if self._core.is_stopped:
            self._core.check()
            return []
        return self._take(count, duration_ms(timeout))

    def __iter__(self) -> Iterator[Delivery]:
        while not self._core.is_stopped:
            self._check()
            self._settle_handed()
            batch = self._take(_ALL, None)
            if batch:
                yield from self._one_by_one(batch)

    def batches(self, max_messages: int = 500, max_wait: Duration = "200ms") -> Iterator[list[Delivery]]:
        """Lists of up to `max_messages`, each as full as it gets within `max_wait` of its first message."""
        wait_ms = duration_ms(max_wait)
        while not self._core.is_stopped:
            self._check()
            self._settle_handed()
            batch = self._take(max_messages, None)
            until_ms = self._pump.now_ms() + wait_ms
            while batch and len(batch) < max_messages and self._has_room(batch) and not self._core.is_stopped:
                left_ms = until_ms - self._pump.now_ms()
                more = self._take(max_messages - len(batch), max(left_ms, 0))
                if not more:
                    break
                batch = batch + more
            if batch:
                yield batch

    def close(self, is_clean: bool = True) -> None:
        """Stop, send acks and free what was lent; unless it is clean, without acking what was handed out last."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._pump.is_here():
            self._pump.call(lambda: start(self._core.close(is_clean)))
            self._pump.sources.discard(self)

    def _one_by_one(self, batch: list[Delivery]) -> Iterator[Delivery]:
        """Yield what was taken; if the loop ends early, the rest is not handed out and can be taken again."""
        core, auto_ack = self._core, self._core.settings.auto_ack
        if core.reader is not None:
            yield from self._read_one_by_one(core.reader, batch)
            return
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
                    return
        finally:
            if at >= 0:
                core.give_back(lease, at)

    def _has_room(self, batch: list[Delivery]) -> bool:
        """Whether more may be expanded beside these."""
        return open_bytes(batch) < self._core.open_bytes_max

    def _read_one_by_one(self, reader: ReaderCore, batch: list[Delivery]) -> Iterator[Delivery]:
        """The same where nothing is lent."""
        at = 0
        try:
            for at, delivery in enumerate(batch, 1):  # noqa: B007 - wanted when the loop is left
                yield delivery
                if self._core.is_stopped:
                    return
        finally:
            reader.give_back(batch[0].partition, batch[at:])

    def _settle_handed(self) -> None:
        self._pump.enter()
        try:
            self._core.settle_handed()
        finally:
            self._pump.leave()

    def _lease_done(self, lease: Lease) -> None:
        self._pump.enter()
        try:
            self._core.send_acks(lease)
        finally:
            self._pump.leave()


class Reader(_Source):
    """Reads a topic from a position of its own: every reader gets every message. Nothing is acked."""

    _core: ReaderCore

    def __init__(self, pump: Pump, core: ReaderCore, store: PositionFile | None) -> None:
        self._store = store
        self._saved_ms = pump.now_ms()
        self._last: Delivery | None = None
        super().__init__(pump, core)

    @property
    def positions(self) -> dict[int, int]:
        """By partition, the offset that comes next."""
        return dict(self._core.positions)

    @property
    def skipped(self) -> int:
        """Messages that were no longer kept when the reader came to them."""
        return self._core.skipped

    def receive(self, count: int = 100, timeout: Duration = "5s") -> list[Delivery]:
        """Up to `count` messages, as soon as there are any; none if nothing came in time, or at the end."""
        self._check()
        self._passed(None)
        taken = self._take(count, duration_ms(timeout))
        self._last = taken[-1] if taken else None
        return taken

    def __iter__(self) -> Iterator[Delivery]:
        while True:
            self._check()
            batch = self._take(_ALL, None)
            if not batch:
                return
            yield from self._one_by_one(batch)

    def _one_by_one(self, batch: list[Delivery]) -> Iterator[Delivery]:
        """Yield what was taken; if the loop ends early, the rest can be taken again. After a seek it is not wanted."""
        core, partition, at = self._core, batch[0].partition, 0
        seeks = core.seek_count(partition)
        try:
            for at, delivery in enumerate(batch, 1):  # noqa: B007 - wanted when the loop is left
                self._last = delivery
                yield delivery
                if core.is_stopped or core.seek_count(partition) != seeks:
                    return
                self._passed(delivery)
        finally:
            if core.seek_count(partition) == seeks:
                core.give_back(partition, batch[at:])

    def seek(self, *, partition: int, offset: int) -> None:
        """Go on from there in one partition."""
        self._check()
        self._last = None
        self._pump.enter()
        try:
            self._core.seek(partition, offset)
        finally:
            self._pump.leave()

    def seek_to_time(self, moment: Start) -> None:
        """Go on from there in all partitions: a datetime, or how long ago ("-10m")."""
        self._check()
        self._last = None
        self._pump.call(lambda: start(self._core.seek_to(moment)))

    def save(self) -> None:
        """Store the positions now; otherwise it is done about once a second, and on closing."""
        if self._store is not None:
            self._store.save(self._core.positions)
            self._saved_ms = self._pump.now_ms()

    def close(self, is_clean: bool = True) -> None:
        """Stop, and store the positions."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._pump.is_here():
            self.stop()
            if is_clean:
                self._passed(None)
            self.save()
            self._pump.sources.discard(self)

    def _passed(self, delivery: Delivery | None) -> None:
        """The user has asked for more, so is done with what came before."""
        done = delivery or self._last
        self._last = None
        if done is not None:
            self._core.passed(done)
            if self._store is not None and self._pump.now_ms() - self._saved_ms >= _SAVE_MS:
                self.save()
