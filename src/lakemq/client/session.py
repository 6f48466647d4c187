"""One connection to one broker: its greeting, its requests in flight, their time-outs, its heartbeat.

Pure: bytes to send collect in `output`, frames come in by `received`, time as `now_ms`. Answers are matched by request
id and may come in any order. Requests that count against the cap (those that carry messages) are held back in order
while too many are in flight or the socket takes no more.
"""

import struct
from collections import deque
from collections.abc import Callable, Hashable
from enum import Enum
from typing import Any

from lakemq.client.address import Address
from lakemq.client.errors import BrokerUnreachableError, NotSentError, RequestTimeoutError
from lakemq.client.promise import Promise
from lakemq.errors import BadFrameError, LakeMQError, from_status
from lakemq.wire.buffer import Buffer
from lakemq.wire.commands import Command, decode_response, encode_request
from lakemq.wire.dialect import Dialect, Form
from lakemq.wire.header import Header, read_header
from lakemq.wire.session import AddConnection, AddConnectionAck, Heartbeat

_FORM = Form()
_ID_MAX = 0x7FFFFFFF
_LEAVING = "draining"  # how a notice begins that asks for being left
_LEAVING_HEARTBEAT_MS = 1000  # to notice soon that it will not leave after all
_HEARTBEAT_ACK = -7
_QOS_RECEIVE = 1  # of commands that carry no messages: the bits are not looked at

Frame = Callable[[int, int], list[Buffer]]
"""Makes a request's bytes, given its id and the wall time."""

Read = Callable[[memoryview, int], Any]
"""Reads an answer's payload from where it starts; None leaves it to the codec."""

_RESPONSE = struct.Struct(">9xBi9xBh")  # identity, request id, status, length of the error's text
_PLAIN_BYTES = 26  # of a header without an error


class State(Enum):
    """How far a connection has come."""

    CONNECTING = "connecting"  # the world opens it
    GREETING = "greeting"  # ADD_CONNECTION is out
    READY = "ready"
    CLOSED = "closed"


class _Waiter:
    """A request whose answer is awaited."""

    __slots__ = ("deadline_ms", "promise", "read", "sent_ms", "size")

    def __init__(self, promise: Promise[Any], sent_ms: int, deadline_ms: int, size: int, read: Read | None) -> None:
        self.promise = promise
        self.read = read
        self.sent_ms = sent_ms
        self.deadline_ms = deadline_ms
        self.size = size  # against the cap; 0 if it does not count


class _Held:
    """A request that the cap holds back."""

    __slots__ = ("deadline_ms", "frame", "is_answered", "promise", "read", "size", "timeout_ms")

    def __init__(
        self,
        frame: Frame,
        promise: Promise[Any],
        deadline_ms: int,
        timeout_ms: int,
        size: int,
        is_answered: bool,
        read: Read | None,
    ) -> None:
        self.read = read
        self.frame = frame
        self.promise = promise
        self.deadline_ms = deadline_ms
        self.timeout_ms = timeout_ms
        self.size = size
        self.is_answered = is_answered


class Session:
    """One connection. `owner` tells apart connections to the same broker: a consumer's leases hang on its own."""

    def __init__(
        self,
        address: Address,
        owner: int,
        hello: AddConnection,
        *,
        in_flight_max: int = 64,
        in_flight_bytes_max: int = 16 << 20,
        heartbeat_ms: int = 30_000,
        timeout_ms: int = 5000,
    ) -> None:
        self.address = address
        self.owner = owner
        self.state = State.CONNECTING
        self.ready: Promise[Session] = Promise()
        self.output: list[Buffer] = []
        self.introduced: dict[Hashable, Promise[Any]] = {}  # what this connection was told of: producers, consumers
        self.notice = ""  # what the broker said last of itself, at the greeting or with a heartbeat
        self.is_silent = False  # a request timed out and nothing at all came since it was sent: a dead connection
        self._hello = hello
        self._in_flight_max = in_flight_max
        self._in_flight_bytes_max = in_flight_bytes_max
        self._heartbeat_ms = heartbeat_ms
        self._timeout_ms = timeout_ms
        self._waiters: dict[int, _Waiter] = {}
        self._held: deque[_Held] = deque()
        self._in_flight = 0
        self._in_flight_bytes = 0
        self._is_congested = False
        self._last_id = 0
        self._last_sent_ms = 0
        self._last_received_ms = 0
        self._next_timeout_ms: int | None = None  # at or before the first of them

    @property
    def in_flight(self) -> int:
        """Requests that count against the cap."""
        return self._in_flight

    @property
    def is_leaving(self) -> bool:
        """Whether the broker has said that it is about to go: others are to be preferred."""
        return self.notice.startswith(_LEAVING)

    def knows(self, introduction: Hashable) -> bool:
        """Whether the broker has taken that introduction."""
        asked = self.introduced.get(introduction)
        return asked is not None and asked.is_done and asked.error is None

    def opened(self, now_ms: int, wall_ms: int) -> None:
        """The world has connected: introduce ourselves."""
        assert self.state is State.CONNECTING
        self.state = State.GREETING
        self._last_sent_ms = self._last_received_ms = now_ms
        greeting = self.ask(self._hello, now_ms, wall_ms, now_ms + self._timeout_ms)
        greeting.then(self._greeted)

    def ask(self, command: Command, now_ms: int, wall_ms: int, deadline_ms: int) -> Promise[Any]:
        """Send a request; the promise is its answer (None where that is a header alone) or a LakeMQError."""

        def frame(request_id: int, wall_ms: int) -> list[Buffer]:
            return encode_request(
                command, form=_FORM, request_id=request_id, send_time_ms=wall_ms, qos_bits=_QOS_RECEIVE
            )

        return self.ask_frame(frame, now_ms, wall_ms, deadline_ms)

    def ask_frame(self, frame: Frame, now_ms: int, wall_ms: int, deadline_ms: int) -> Promise[Any]:
        """The same for a request that is laid out already but for its id."""
        promise: Promise[Any] = Promise()
        if self.state is State.CLOSED:
            promise.fail(BrokerUnreachableError(f"the connection to {self.address} is closed"))
        else:
            self._send(frame, promise, now_ms, wall_ms, deadline_ms, 0, True)
        return promise

    def ask_counted(
        self,
        frame: Frame,
        size: int,
        now_ms: int,
        wall_ms: int,
        deadline_ms: int,
        timeout_ms: int,
        is_answered: bool = True,
        read: Read | None = None,
    ) -> Promise[Any]:
        """The same for one that counts against the cap and may be held back until the deadline.

        The answer is awaited for `timeout_ms` from when it has left; without an answer it is done then.
        """
        promise: Promise[Any] = Promise()
        if self.state is State.CLOSED:
            promise.fail(BrokerUnreachableError(f"the connection to {self.address} is closed"))
        elif self._held or not self._has_room(size):
            self._held.append(_Held(frame, promise, deadline_ms, timeout_ms, size, is_answered, read))
            self._note_deadline(deadline_ms)
        else:
            until_ms = min(deadline_ms, now_ms + timeout_ms)
            self._send(frame, promise, now_ms, wall_ms, until_ms, size, is_answered, read)
        return promise

    def received(self, frames: list[memoryview], now_ms: int, wall_ms: int) -> None:
        """Whole frames have come; BadFrameError if they are not answers, and the connection is beyond repair."""
        self._last_received_ms = now_ms
        for frame in frames:
            if len(frame) > _PLAIN_BYTES and self._read_plain(frame):
                continue
            header, ack, error = _decoded(frame)
            waiter = self._waiters.pop(header.request_id, None)
            if waiter is None:
                continue  # its time was over
            self._leave(waiter.size)
            if header.type == _HEARTBEAT_ACK and not header.status:
                self.notice = header.error
            if header.status:
                error = from_status(header.status, header.error)
            if error is not None:
                waiter.promise.fail(error)
            else:
                waiter.promise.resolve(ack)
        self._let_go(now_ms, wall_ms)

    def _read_plain(self, frame: memoryview) -> bool:
        """Take a success whose asker reads it himself; False if it is none of these."""
        identity, request_id, status, error_bytes = _RESPONSE.unpack_from(frame)
        waiter = self._waiters.get(request_id)
        if waiter is None or waiter.read is None or status or error_bytes or not identity & 1:
            return False
        found = waiter.read(frame, _PLAIN_BYTES)
        if found is None:
            return False
        del self._waiters[request_id]
        self._leave(waiter.size)
        waiter.promise.resolve(found)
        return True

    def congested(self, is_congested: bool, now_ms: int, wall_ms: int) -> None:
        """The socket takes no more for now, or does again."""
        self._is_congested = is_congested
        self._let_go(now_ms, wall_ms)

    def tick(self, now_ms: int, wall_ms: int) -> None:
        """Give up on what was not answered in time, and say that we are there if we said nothing for long."""
        if self._next_timeout_ms is not None and self._next_timeout_ms <= now_ms:
            self._expire(now_ms)
            self._let_go(now_ms, wall_ms)
        if self.state is State.READY and now_ms - self._last_sent_ms >= self._heartbeat_every_ms:
            self.ask(Heartbeat(), now_ms, wall_ms, now_ms + self._timeout_ms)

    @property
    def next_ms(self) -> int | None:
        """When `tick` is wanted."""
        if self.state is not State.READY:
            return self._next_timeout_ms
        heartbeat_ms = self._last_sent_ms + self._heartbeat_every_ms
        return heartbeat_ms if self._next_timeout_ms is None else min(heartbeat_ms, self._next_timeout_ms)

    @property
    def _heartbeat_every_ms(self) -> int:
        return min(self._heartbeat_ms, _LEAVING_HEARTBEAT_MS) if self.is_leaving else self._heartbeat_ms

    def lost(self, error: LakeMQError) -> None:
        """The connection is gone, or never came: nobody need wait any longer."""
        if self.state is State.CLOSED:
            return
        self.state = State.CLOSED
        self.output.clear()
        waiters, self._waiters = self._waiters, {}
        held, self._held = self._held, deque()
        self.ready.fail(error)
        for waiter in waiters.values():
            waiter.promise.fail(error)
        unsent = BrokerUnreachableError(str(error))  # surely not stored, whatever became of the others
        for one in held:
            one.promise.fail(unsent)

    def _greeted(self, greeting: Promise[Any]) -> None:
        if greeting.error is None:
            ack = greeting.result()
            self.notice = ack.notification if isinstance(ack, AddConnectionAck) else ""
            self.state = State.READY
            self.ready.resolve(self)
        else:
            self.ready.fail(greeting.error)

    def _send(
        self,
        frame: Frame,
        promise: Promise[Any],
        now_ms: int,
        wall_ms: int,
        deadline_ms: int,
        size: int,
        is_answered: bool,
        read: Read | None = None,
    ) -> None:
        self._last_id = request_id = self._last_id + 1 if self._last_id < _ID_MAX else 1
        try:
            buffers = frame(request_id, wall_ms)
        except LakeMQError as error:  # it cannot be laid out: the caller's affair, the connection is sound
            promise.fail(error)
            return
        self.output += buffers
        self._last_sent_ms = now_ms
        if not is_answered:
            promise.resolve(None)
            return
        if size:
            self._in_flight += 1
            self._in_flight_bytes += size
        self._waiters[request_id] = _Waiter(promise, now_ms, deadline_ms, size, read)
        self._note_deadline(deadline_ms)

    def _has_room(self, size: int) -> bool:
        if self._is_congested or self._in_flight >= self._in_flight_max:
            return False
        return self._in_flight == 0 or self._in_flight_bytes + size <= self._in_flight_bytes_max

    def _let_go(self, now_ms: int, wall_ms: int) -> None:
        while self._held and self._has_room(self._held[0].size):
            one = self._held.popleft()
            deadline_ms = min(one.deadline_ms, now_ms + one.timeout_ms)
            self._send(one.frame, one.promise, now_ms, wall_ms, deadline_ms, one.size, one.is_answered, one.read)

    def _leave(self, size: int) -> None:
        if size:
            self._in_flight -= 1
            self._in_flight_bytes -= size

    def _note_deadline(self, deadline_ms: int) -> None:
        if self._next_timeout_ms is None or deadline_ms < self._next_timeout_ms:
            self._next_timeout_ms = deadline_ms

    def _expire(self, now_ms: int) -> None:
        late = {number: waiter for number, waiter in self._waiters.items() if waiter.deadline_ms <= now_ms}
        late_held = [one for one in self._held if one.deadline_ms <= now_ms]
        for number in late:
            del self._waiters[number]
        if late_held:
            self._held = deque(one for one in self._held if one.deadline_ms > now_ms)
        deadlines = [waiter.deadline_ms for waiter in self._waiters.values()]
        deadlines += [one.deadline_ms for one in self._held]
        self._next_timeout_ms = min(deadlines, default=None)
        for waiter in late.values():
            self._leave(waiter.size)
            self.is_silent = self.is_silent or self._last_received_ms <= waiter.sent_ms
            waited_ms = now_ms - waiter.sent_ms
            waiter.promise.fail(RequestTimeoutError(f"{self.address} did not answer within {waited_ms} ms"))
        for one in late_held:
            one.promise.fail(NotSentError(f"{self.address} was too busy to be sent to in time"))


def _decoded(frame: memoryview) -> tuple[Header, Any, LakeMQError | None]:
    """Header, answer and what was wrong with the answer, which concerns this request only."""
    try:
        header, ack = decode_response(frame, Dialect.DOCUMENTED)
    except BadFrameError:
        raise
    except LakeMQError as error:
        return read_header(frame)[0], None, error
    if not header.is_response:
        raise BadFrameError(f"a request of type {header.type} came where only answers are expected")
    return header, ack, None
