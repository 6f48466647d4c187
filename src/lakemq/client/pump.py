"""Moves bytes and time for the blocking client, on the threads of those who call it.

One lock guards the core. Whoever waits for something pumps: waits for the sockets without the lock, feeds the core,
sends what it gives. Others who wait meanwhile rest until told. There is one thread of our own at most, the watcher,
begun when first needed: it pumps what nobody waits for, batches of send_soon and the leases of consumers at work.
"""

import logging
import os
import threading
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from lakemq.client.channel import Channel, Connector
from lakemq.client.core import Core
from lakemq.client.effects import Close, Connect, Note, Send, Store
from lakemq.client.errors import BrokerUnreachableError, ClosedError, ConnectionLostError, ForkedError
from lakemq.client.outbox_file import OutboxFile
from lakemq.client.promise import Promise
from lakemq.client.session import Session, State
from lakemq.clock import Clock
from lakemq.errors import LakeMQError

T = TypeVar("T")

_LOG = logging.getLogger("lakemq.client")
_CONGESTED_BYTES = 1 << 20
_REST_MS = 50
_LOOK_MS = 1000


class Source(Protocol):
    """A consumer or reader."""

    def close(self, is_clean: bool = True) -> None:
        """End it."""
        ...


class Pump:
    """The sockets of one client, and the turns that move them."""

    def __init__(self, core: Core, connector: Connector, clock: Clock, outbox: OutboxFile | None) -> None:
        self.lock = threading.RLock()
        self.core = core
        self.connector = connector
        self._clock = clock
        self._outbox = outbox
        self._changed = threading.Condition(self.lock)
        self._watcher_bell = threading.Condition(self.lock)
        self._channels: dict[Session, Channel] = {}
        self._sessions: dict[Channel, Session] = {}
        self._congested: set[Session] = set()
        self._slow: list[Connect | Store] = []  # to be done without the lock
        self._calls: list[Callable[[], object]] = []  # of users, to be made without the lock
        self._notes: list[Note] = []
        self._last_turn_ms = clock.monotonic_ms()
        self._is_pumping = False
        self._resting = 0  # those who wait while somebody else pumps
        self._pump_until_ms: int | None = None
        self._watcher: threading.Thread | None = None
        self._is_watcher_resting = False
        self._watcher_until_ms: int | None = None
        self._has_background: Callable[[], bool] = lambda: False
        self.pid = os.getpid()
        self.sources: set[Source] = set()  # consumers and readers that are open
        self.is_closed = False

    def now_ms(self) -> int:
        """Monotonic."""
        return self._clock.monotonic_ms()

    def is_here(self) -> bool:
        """Whether this is the process that it was made in."""
        return os.getpid() == self.pid

    def check(self) -> None:
        """Raise unless it can be used, and here."""
        if self.is_closed:
            raise ClosedError
        if not self.is_here():
            raise ForkedError

    def enter(self) -> None:
        """Take the lock and tell the core the time; `leave` must follow."""
        self.lock.acquire()
        self.core.advance(self._clock.monotonic_ms(), self._clock.wall_ms())

    def leave(self) -> None:
        """Do what the core asks for, and give the lock back."""
        try:
            self._flush()
        finally:
            self.lock.release()

    def call(self, act: Callable[[], Promise[T]]) -> T:
        """Start something and see it through."""
        self.enter()
        try:
            promise = act()
        finally:
            self.leave()
        self.wait(promise)
        return promise.result()

    def wait(self, promise: Promise[Any], timeout_ms: int | None = None) -> bool:
        """Until it is settled; False if that took longer."""
        until_ms = None if timeout_ms is None else self._clock.monotonic_ms() + timeout_ms
        with self.lock:
            while not promise.is_done or self._slow:
                if self.is_closed:
                    break
                if self._slow:
                    self._without_lock(self._do_slow)
                    continue
                left_ms = None if until_ms is None else until_ms - self._clock.monotonic_ms()
                if left_ms is not None and left_ms <= 0:
                    break
                if self._is_pumping:
                    self._resting += 1
                    self._changed.wait(None if left_ms is None else left_ms / 1000)
                    self._resting -= 1
                else:
                    self._turn(until_ms)
                if self._calls or self._notes:
                    self._without_lock(self._tell_users)
        if self.is_closed and not promise.is_done:
            raise ClosedError
        return promise.is_done

    def look(self) -> None:
        """After a pause, see what has come: an answer, a broker's farewell, a heartbeat that is due."""
        with self.lock:
            if self._clock.monotonic_ms() - self._last_turn_ms >= _LOOK_MS and not self._is_pumping:
                self._turn(self._clock.monotonic_ms())

    def later(self, call: Callable[[], object]) -> None:
        """Have that called soon, without the lock."""
        self._calls.append(call)

    def watch(self, has_background: Callable[[], bool]) -> None:
        """From now on, pump in a thread of our own while that says so, and tick when it is time; lock held."""
        if not self.core.config.watcher:
            return
        self._has_background = has_background
        if self._watcher is None:
            self._watcher = threading.Thread(target=self._watch, name="lakemq-watcher", daemon=True)
            self._watcher.start()

    def close(self) -> None:
        """End the watcher and close the sockets; the core has said its goodbyes."""
        with self.lock:
            self.is_closed = True
            self._watcher_bell.notify_all()
            self._changed.notify_all()
            while self._is_pumping:  # the sockets are closed when nobody waits for them
                self.connector.wake()
                self._resting += 1
                self._changed.wait(_REST_MS / 1000)
                self._resting -= 1
        watcher = self._watcher
        if watcher is not None and watcher is not threading.current_thread():
            watcher.join(timeout=5)
        self._tell_users()
        self.connector.close()

    def _without_lock(self, act: Callable[[], None]) -> None:
        """Do something that may take long, or call us; the lock is held once before and after."""
        self.lock.release()
        try:
            act()
        finally:
            self.lock.acquire()

    def _turn(self, until_ms: int | None) -> None:
        """Wait for the sockets or the time, whichever is first, then feed the core; the lock is held once."""
        core = self.core
        due_ms = core.next_ms
        self._pump_until_ms = due_ms
        if until_ms is not None and (due_ms is None or until_ms < due_ms):
            self._pump_until_ms = until_ms
        self._is_pumping = True
        left_ms = None if self._pump_until_ms is None else max(self._pump_until_ms - self._clock.monotonic_ms(), 0)
        try:
            self.lock.release()
            try:
                ready = self.connector.wait(left_ms)
            finally:
                self.lock.acquire()
            self._last_turn_ms = self._clock.monotonic_ms()
            core.advance(self._last_turn_ms, self._clock.wall_ms())
            self._is_pumping = False
            if self.is_closed:
                return
            for channel in ready:
                self._receive(channel)
            if not ready or (due_ms is not None and due_ms <= core.now_ms):
                core.tick()  # without news it is the time that was waited for, or somebody rang because of it
            self._flush()
        finally:
            self._is_pumping = False
            self._pump_until_ms = None
            if self._resting:
                self._changed.notify_all()

    def _receive(self, channel: Channel) -> None:
        session = self._sessions.get(channel)
        if session is None:
            return
        try:
            frames = channel.receive(0)
            if frames:
                self.core.received(session, frames)
            if session in self._congested and channel.send([]) <= _CONGESTED_BYTES:
                self._congested.discard(session)
                self.core.congested(session, False)
        except LakeMQError as error:
            self._lost(session, error)

    def _lost(self, session: Session, error: LakeMQError) -> None:
        self._close(session)
        self.core.lost(session, error)

    def _close(self, session: Session) -> None:
        channel = self._channels.pop(session, None)
        self._congested.discard(session)
        if channel is not None:
            del self._sessions[channel]
            channel.close()

    def _flush(self) -> None:
        """Do what the core asks for; what may take long is left for later, without the lock."""
        while effects := self.core.take_effects():
            for effect in effects:
                if type(effect) is Send:
                    self._send(effect)
                elif isinstance(effect, Connect | Store):
                    self._slow.append(effect)
                elif isinstance(effect, Close):
                    self._close(effect.session)
                elif isinstance(effect, Note):
                    self._notes.append(effect)
        if self._is_pumping:
            self._hurry()
        if self._is_watcher_resting:
            self._rouse()

    def _hurry(self) -> None:
        """Wake whoever pumps if something is due before they would look, or must be done that only waiters do."""
        due_ms, until_ms = self.core.next_ms, self._pump_until_ms
        if self._slow or (due_ms is not None and (until_ms is None or due_ms < until_ms)):
            self.connector.wake()

    def _rouse(self) -> None:
        """The same for the watcher, if there is work that nobody waits for."""
        due_ms, until_ms = self.core.next_ms, self._watcher_until_ms
        is_earlier = due_ms is not None and (until_ms is None or due_ms < until_ms)
        if is_earlier or self._slow or (not self._is_pumping and self._has_background()):
            self._watcher_bell.notify()

    def _send(self, effect: Send) -> None:
        channel = self._channels.get(effect.session)
        if channel is None:
            return
        try:
            left = channel.send(effect.buffers)
        except LakeMQError as error:
            self._lost(effect.session, error)
            return
        if left > _CONGESTED_BYTES and effect.session not in self._congested:
            self._congested.add(effect.session)
            self.core.congested(effect.session, True)

    def _do_slow(self) -> None:
        """Open connections and write the outbox, without the lock."""
        with self.lock:
            effects, self._slow = self._slow, []
        for effect in effects:
            if isinstance(effect, Connect):
                self._connect(effect)
            else:
                self._store(effect)

    def _connect(self, effect: Connect) -> None:
        session, channel, failure = effect.session, None, None
        try:
            channel = self.connector.connect(session.address, effect.timeout_ms)
        except LakeMQError as error:
            failure = error
        except BaseException:  # Ctrl-C: those who wait for it must not wait for ever
            failure = BrokerUnreachableError("connecting was interrupted")
            raise
        finally:
            self.enter()
            try:
                if failure is not None:
                    self.core.lost(session, failure)
                elif channel is not None and session.state is State.CONNECTING and not self.is_closed:
                    self._channels[session] = channel
                    self._sessions[channel] = session
                    self.core.opened(session)
                elif channel is not None:
                    channel.close()
                self._changed.notify_all()
            finally:
                self.leave()

    def _store(self, effect: Store) -> None:
        assert self._outbox is not None
        failure: BaseException | None = ConnectionLostError("storing was interrupted")
        try:
            if effect.rewrite:
                self._outbox.replace(effect.data)
            elif effect.data:
                self._outbox.append(effect.data, effect.is_synced)
            failure = None
        except LakeMQError as error:
            failure = error
        finally:
            self.enter()
            try:
                if failure is None:
                    effect.done.resolve(None)
                else:
                    effect.done.fail(failure)
                self._changed.notify_all()
            finally:
                self.leave()

    def _tell_users(self) -> None:
        """Log lines and callbacks, without the lock: they may take long, or call us."""
        if not (self._notes or self._calls):
            return
        with self.lock:
            notes, self._notes = self._notes, []
            calls, self._calls = self._calls, []
        for note in notes:
            _LOG.log(logging.getLevelNamesMapping()[note.level.upper()], "%s", note.text)
        for call in calls:
            try:
                call()
            except Exception:  # a user's callback must not end the pump
                _LOG.exception("a callback failed")

    def _watch(self) -> None:
        """The watcher: pump if there is work that nobody waits for, otherwise rest until the next time is due."""
        with self.lock:
            while not self.is_closed:
                due_ms = self.core.next_ms
                left_ms = None if due_ms is None else due_ms - self._clock.monotonic_ms()
                is_due = left_ms is not None and left_ms <= 0
                if self._slow:
                    self._without_lock(self._do_slow)
                elif not self._is_pumping and (is_due or self._has_background()):
                    self._turn(None)
                else:
                    self._is_watcher_resting = True
                    self._watcher_until_ms = due_ms
                    # Whoever pumps looks at the time, too.
                    rest_ms = left_ms and max(left_ms, _REST_MS if self._is_pumping else 1)
                    self._watcher_bell.wait(None if rest_ms is None else rest_ms / 1000)
                    self._is_watcher_resting = False
                if self._calls or self._notes:
                    self._without_lock(self._tell_users)
