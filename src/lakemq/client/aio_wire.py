"""Moves bytes and time for the asyncio client: a write for each connection and turn, and one timer for all.

A turn of many calls has a few writes.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, cast

from lakemq.client.address import Address
from lakemq.client.channel import AsyncConnector, Transport
from lakemq.client.core import Core
from lakemq.client.effects import Close, Connect, Note, Send, Store
from lakemq.client.errors import BrokerUnreachableError, ConnectionLostError, not_frames
from lakemq.client.outbox_file import OutboxFile
from lakemq.client.promise import Promise
from lakemq.client.session import Session, State
from lakemq.clock import Clock
from lakemq.errors import BadFrameError, LakeMQError
from lakemq.wire.frame import FrameDecoder

T = TypeVar("T")

_LOG = logging.getLogger("lakemq.client")
_CHUNK_BYTES = (2 << 20) + (64 << 10)  # as much as a broker answers to a fetch
# Many tasks may run in one turn: the first requests leave before the last are made, so that broker and client work at
# the same time. A hundred transactions at a time are half as many again that way.
_ENTERED_MAX = 16


class TcpConnector:
    """asyncio's own connections."""

    async def connect(
        self, address: Address, protocol_factory: Callable[[], asyncio.BufferedProtocol], timeout_ms: int
    ) -> Transport:
        """Open a TCP connection."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                transport, _ = await loop.create_connection(protocol_factory, address.host, address.port)
        except (OSError, TimeoutError) as error:
            raise BrokerUnreachableError(f"{address}: {error or 'no answer in time'}") from None
        return cast("Transport", transport)  # create_connection's type does not say which kind it is


class _Wire(asyncio.BufferedProtocol):
    """One connection: bytes straight into the frame decoder, whole frames to the core."""

    def __init__(self, driver: "Driver", session: Session, frame_bytes_max: int) -> None:
        self._driver = driver
        self._session = session
        self._decoder = FrameDecoder(frame_bytes_max, _CHUNK_BYTES)
        self._room = memoryview(b"")  # where the last bytes went

    def get_buffer(self, sizehint: int) -> memoryview:
        self._room = self._decoder.room()
        return self._room

    def buffer_updated(self, nbytes: int) -> None:
        try:
            frames = self._decoder.received(nbytes)
        except BadFrameError as error:
            self._driver.lost(self._session, not_frames(self._session.address, bytes(self._room[:16]), error))
            return
        if frames:
            self._driver.received(self._session, frames)

    def connection_lost(self, exc: BaseException | None) -> None:
        why = exc or "closed by the broker"
        self._driver.lost(self._session, ConnectionLostError(f"{self._session.address}: {why}"))

    def pause_writing(self) -> None:
        self._driver.congested(self._session, True)

    def resume_writing(self) -> None:
        self._driver.congested(self._session, False)


class Driver:
    """The connections of one client on one event loop."""

    def __init__(
        self,
        core: Core,
        connector: AsyncConnector,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        outbox: OutboxFile | None,
    ) -> None:
        self.core = core
        self.loop = loop
        self._connector = connector
        self._clock = clock
        self._outbox = outbox
        self._transports: dict[Session, Transport] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_flush_due = False
        self._entered = 0  # since the last flush
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms: int | None = None
        self.is_closed = False

    def now_ms(self) -> int:
        """Monotonic."""
        return self._clock.monotonic_ms()

    def enter(self) -> None:
        """Tell the core the time; what it asks for is done at the end of this turn."""
        self.core.advance(self._clock.monotonic_ms(), self._clock.wall_ms())
        self._entered += 1
        if not self._is_flush_due:
            self._is_flush_due = True
            self.loop.call_soon(self._end_turn)
        elif self._entered >= _ENTERED_MAX:
            self._flush()

    async def settled(self, promise: Promise[T]) -> T:
        """The outcome, once it is there."""
        if not promise.is_done:
            await self.until(promise)
        return promise.result()

    async def until(self, promise: Promise[Any], timeout_ms: int | None = None) -> bool:
        """Until it is settled; False if that took longer."""
        if promise.is_done:
            return True
        waiter: asyncio.Future[bool] = self.loop.create_future()

        def wake(outcome: bool) -> None:
            if not waiter.done():
                waiter.set_result(outcome)

        promise.then(lambda _: wake(True))
        timer = None if timeout_ms is None else self.loop.call_later(timeout_ms / 1000, wake, False)
        try:
            return await waiter
        finally:
            if timer is not None:
                timer.cancel()

    def received(self, session: Session, frames: list[memoryview]) -> None:
        """Frames have come."""
        self.enter()
        self.core.received(session, frames)

    def lost(self, session: Session, error: LakeMQError) -> None:
        """A connection is gone."""
        transport = self._transports.pop(session, None)
        if transport is not None:
            transport.abort()
        if session.state is not State.CLOSED and not self.loop.is_closed():
            self.enter()
            self.core.lost(session, error)

    def congested(self, session: Session, is_congested: bool) -> None:
        """A transport's buffer is full, or has room again."""
        self.enter()
        self.core.congested(session, is_congested)

    async def close(self) -> None:
        """Close what is open; the core has said its goodbyes."""
        self._flush()
        self.is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        for task in list(self._tasks):
            task.cancel()
        for transport in list(self._transports.values()):
            transport.close()
        self._transports.clear()
        await asyncio.sleep(0)  # let transports say goodbye

    def _end_turn(self) -> None:
        self._is_flush_due = False
        self._flush()

    def _flush(self) -> None:
        """Do what the core asks for, and set the timer."""
        self._entered = 0
        while effects := self.core.take_effects():
            for effect in effects:
                if type(effect) is Send:
                    transport = self._transports.get(effect.session)
                    if transport is not None:
                        transport.writelines(effect.buffers)
                elif isinstance(effect, Connect):
                    self._spawn(self._connect(effect))
                elif isinstance(effect, Store):
                    self._spawn(self._store(effect))
                elif isinstance(effect, Close):
                    self._close(effect.session)
                elif isinstance(effect, Note):
                    _LOG.log(logging.getLevelNamesMapping()[effect.level.upper()], "%s", effect.text)
        self._set_timer()

    def _close(self, session: Session) -> None:
        transport = self._transports.pop(session, None)
        if transport is not None:
            transport.close()

    def _set_timer(self) -> None:
        due_ms = self.core.next_ms
        if self.is_closed or due_ms is None or (self._timer_ms is not None and self._timer_ms <= due_ms):
            return  # one that fires early finds nothing due, and sets the next
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ms = due_ms
        self._timer = self.loop.call_later(max(due_ms - self.now_ms(), 0) / 1000, self._tick)

    def _tick(self) -> None:
        self._timer = self._timer_ms = None
        self.enter()
        self.core.tick()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self, effect: Connect) -> None:
        session = effect.session
        failure: LakeMQError = BrokerUnreachableError("connecting was interrupted")
        transport: Transport | None = None
        try:
            transport = await self._connector.connect(
                session.address,
                lambda: _Wire(self, session, self.core.config.frame_bytes_max),
                effect.timeout_ms,
            )
        except LakeMQError as error:
            failure = error
        finally:
            if transport is None:
                self.enter()
                self.core.lost(session, failure)
            elif session.state is State.CONNECTING and not self.is_closed:
                self._transports[session] = transport
                self.enter()
                self.core.opened(session)
            else:
                transport.abort()

    async def _store(self, effect: Store) -> None:
        assert self._outbox is not None
        try:
            if effect.rewrite:
                await self.loop.run_in_executor(None, self._outbox.replace, effect.data)
            elif effect.data and effect.is_synced:
                await self.loop.run_in_executor(None, self._outbox.append, effect.data, True)
            elif effect.data:
                self._outbox.append(effect.data, False)
        except LakeMQError as error:
            self.enter()
            effect.done.fail(error)
        else:
            self.enter()
            effect.done.resolve(None)
