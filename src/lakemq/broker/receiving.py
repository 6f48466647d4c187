"""What connections send becomes commands: in order, and no faster than answers are read and the disk writes.

Handlers raise LakeMQErrors; only here they become answers. Anything else that is raised is a bug: the peer gets
status 4 and is closed, the log gets the traceback, and the broker goes on.
"""

import struct
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from lakemq.broker.access import Access
from lakemq.broker.answers import code_of, refusal, send
from lakemq.broker.config import BrokerConfig
from lakemq.broker.effects import World
from lakemq.broker.events import Now
from lakemq.broker.ledger import Ledger
from lakemq.broker.metrics import Metrics
from lakemq.broker.produce import Producing
from lakemq.broker.produce_routes import RUN_BYTES_MAX
from lakemq.broker.runs import Runs
from lakemq.broker.sessions import Connection, Sessions
from lakemq.broker.waiters import Waiters
from lakemq.broker.writing import Writing
from lakemq.errors import (
    AppendError,
    BadFrameError,
    ConnectionNotFoundError,
    FetchError,
    LakeMQError,
    SerializationError,
    ServiceUnavailableError,
    UnknownError,
)
from lakemq.wire.commands import ADD_CONNECTION_NUMBER, check_first, kind_of, read_payload
from lakemq.wire.dialect import Dialect
from lakemq.wire.header import Header, read_header
from lakemq.wire.own import TRANSACT_NUMBER
from lakemq.wire.produce import ProduceMessage
from lakemq.wire.produce_run import PRODUCE_NUMBER, REQUEST_BYTES, cut_run
from lakemq.wire.session import AddConnection, FetchHealth, Heartbeat, presumed, recognise

Handler = Callable[[Connection, Header, Any, Now], None]

_LENGTH = struct.Struct(">i")
_TYPE_OFFSET = 14
# What nobody foresaw, by what was asked for: sending and receiving have numbers of their own.
_FETCH_NUMBERS = 30, 31
_FAILURES: dict[int, type[LakeMQError]] = {PRODUCE_NUMBER: AppendError, **dict.fromkeys(_FETCH_NUMBERS, FetchError)}
_BEFORE_INTRODUCTION = (AddConnection, Heartbeat, FetchHealth)


class Receiving:
    """Frames to commands, and commands to whoever handles them."""

    def __init__(
        self,
        ledger: Ledger,
        config: BrokerConfig,
        access: Access,
        sessions: Sessions,
        waiters: Waiters,
        metrics: Metrics,
        world: World,
        writing: Writing,
        producing: Producing,
        runs: Runs,
    ) -> None:
        self._ledger = ledger
        self._config = config
        self._access = access
        self._sessions = sessions
        self._waiters = waiters
        self._metrics = metrics
        self._world = world
        self._writing = writing
        self._producing = producing
        self._runs = runs
        self._unsynced_high = config.limits.unsynced_bytes_high
        self.handlers: dict[type, Handler] = {}  # of every command but PRODUCE_MESSAGE

    def receive(self, connection: Connection, frames: memoryview, now: Now) -> None:
        """FramesReceived, without the event: it comes so often that the world may call this."""
        self.receive_all(((connection, frames),), now)

    def receive_all(self, arrivals: Sequence[tuple[Connection, memoryview]], now: Now) -> None:
        """The same for all that arrived in a turn, each connection once.

        They did not wait for each other, so that those who are quickly served may be served first.
        """
        if self._writing.is_over:
            return
        try:
            is_usual = self._runs.may_take(arrivals)
        except Exception:  # a bug: the long way runs into it as well, and tells whose request it was
            is_usual = False
        if is_usual:
            arrivals, failed = self._runs.take(arrivals, now)
            for one in failed:
                self._tell_bug(one.connection, _header_at(one.frames, one.at), one.error, now)
        for connection, frames in arrivals:
            self._receive(connection, frames, now)

    def _receive(self, connection: Connection, frames: memoryview, now: Now) -> None:
        if connection.is_closing or self._writing.is_over:
            return
        connection.heard_ms = now.monotonic_ms
        if connection.is_output_full or connection.is_choked or connection.backlog:
            connection.backlog.append(frames)  # what was on its way when reading was paused
            return
        self._serve(connection, frames, now)

    def go_on(self, connection: Connection, now: Now) -> None:
        """Serve what waited, then read on."""
        while connection.backlog and not connection.is_held_up:
            self._serve(connection, connection.backlog.popleft(), now)
        if not connection.is_held_up and not connection.is_closing:
            connection.port.resume()

    def _serve(self, connection: Connection, frames: memoryview, now: Now) -> None:
        at, end = 0, len(frames)
        while at < end and not connection.is_closing:
            number = frames[at + _TYPE_OFFSET]
            is_produce = number == PRODUCE_NUMBER
            if (is_produce or number == TRANSACT_NUMBER) and self._must_wait(connection):
                self._choke(connection)
            elif self._access.has_made_enough:  # it may want to make something, too: at the next turn
                self._metrics.capped["made_in_turn"] += 1
                self._choke(connection)
            if connection.is_output_full or connection.is_choked:
                connection.backlog.appendleft(frames[at:])
                connection.port.pause()
                return
            if is_produce and connection.route is not None:
                try:
                    stop = self._take_run(connection, frames, at, now)
                except Exception as error:  # a bug: see `_frame`
                    self._tell_bug(connection, _header_at(frames, at), error, now)
                    return
                if stop > at:
                    at = stop
                    continue
            stop = at + _length_at(frames, at)
            self._frame(connection, frames[at:stop], now)
            at = stop

    def _take_run(self, connection: Connection, frames: memoryview, at: int, now: Now) -> int:
        route = connection.route
        assert route is not None
        access = self._access
        if route.metadata_version != self._ledger.metadata.version or access.is_draining or not access.is_writable:
            connection.route = None
            return at
        rest = [(connection, frames[at:])]
        if route.is_plain and self._runs.may_take(rest):
            left, failed = self._runs.take(rest, now)
            for one in failed:
                raise one.error
            stop = len(frames) - len(left[0][1]) if left else len(frames)
            if stop > at:
                return stop
        run = cut_run(frames, at, route.head, route.prefix, route.suffix, RUN_BYTES_MAX)
        if run is None:
            return at
        self._metrics.requests["PRODUCE_MESSAGE"] += len(run.requests) // REQUEST_BYTES
        self._producing.take_run(connection, route, run, frames, run.end - at, now)
        return run.end

    def _frame(self, connection: Connection, frame: memoryview, now: Now) -> None:
        try:
            header, start = read_header(frame)
            if not connection.has_spoken:
                check_first(header)
                connection.has_spoken = True
        except BadFrameError:
            self._metrics.capped["bad_frames"] += 1
            self.close(connection)
            return
        if header.is_response:  # we ask nothing, so it answers nothing
            self._metrics.capped["stray_responses"] += 1
            return
        try:
            self._request(connection, header, frame, start, now)
        except LakeMQError as error:
            self._refuse(connection, header, error, now)
        except MemoryError:  # no bug, and nothing is damaged: for less, or a little later, there may be enough
            self._refuse(connection, header, ServiceUnavailableError("the broker is short of memory"), now)
        except Exception as error:  # a bug costs its peer the connection, not everybody the broker
            self._tell_bug(connection, header, error, now)

    def _refuse(self, connection: Connection, header: Header, error: LakeMQError, now: Now) -> None:
        self._metrics.errors[code_of(error)] += 1
        send(connection, refusal(connection, header, error, now), now)

    def _tell_bug(self, connection: Connection, header: Header, error: Exception, now: Now) -> None:
        kind = _FAILURES.get(header.type, UnknownError)
        told = self.note_bug(f"in a request of type {header.type}", error, kind)
        send(connection, refusal(connection, header, told, now), now)
        self.close(connection)

    def _request(self, connection: Connection, header: Header, frame: memoryview, start: int, now: Now) -> None:
        if connection.dialect is None:
            dialect = presumed(header.version)
            if header.type == ADD_CONNECTION_NUMBER:
                try:
                    dialect = connection.dialect = recognise(frame[start:], header.version)
                except SerializationError as error:
                    connection.dialect = Dialect.DOCUMENTED
                    send(connection, refusal(connection, header, error, now), now)
                    self.close(connection)
                    return
        else:
            dialect = connection.dialect
        kind = kind_of(header.type, dialect)
        self._metrics.requests[kind.name] += 1
        if not connection.app and kind.request_class not in _BEFORE_INTRODUCTION:
            raise ConnectionNotFoundError("the first request must be ADD_CONNECTION")
        command = read_payload(kind, header, frame, start, dialect)
        if isinstance(command, ProduceMessage):
            self._producing.produce(connection, header, command, frame, now)
        else:
            self.handlers[type(command)](connection, header, command, now)

    # --- holding producers back ----------------------------------------------------------------------------------

    def _must_wait(self, connection: Connection) -> bool:
        """Whether a producer is faster than the disk."""
        limits = self._config.limits
        journal = self._ledger.group.journal
        if journal.end_position - journal.synced_position > self._unsynced_high:
            reason = "unsynced_bytes"
        elif connection.in_flight_bytes > limits.in_flight_bytes_max:
            reason = "in_flight_bytes"
        elif self._waiters.in_flight_bytes > limits.in_flight_bytes_total_max:
            reason = "in_flight_bytes_total"
        else:
            return False
        if self._writing.sync is None and not self._writing.needs_turn:
            return False  # nothing is on its way that would wake it
        self._metrics.capped[reason] += 1
        return True

    def _choke(self, connection: Connection) -> None:
        connection.is_choked = True
        self._sessions.choked[connection.port.id] = connection

    def let_breathe(self, now: Now) -> None:
        """Let those go on who were held back, as far as there is room now."""
        if not self._sessions.choked:
            return
        limits = self._config.limits
        if self._ledger.group.journal.unsynced_bytes > self._unsynced_high // 2 and self._writing.sync is not None:
            return
        for number, connection in list(self._sessions.choked.items()):
            if 2 * connection.in_flight_bytes > limits.in_flight_bytes_max and self._writing.sync is not None:
                continue
            del self._sessions.choked[number]
            connection.is_choked = False
            self.go_on(connection, now)

    # --- what goes wrong ------------------------------------------------------------------------------------------

    def note_bug(self, where: str, error: Exception, kind: type[LakeMQError] = UnknownError) -> LakeMQError:
        """What to tell whoever ran into it."""
        self._metrics.bugs += 1
        self._world.note("error", f"a bug, {where}:\n{''.join(traceback.format_exception(error))}")
        return kind(f"{type(error).__name__} in the broker: its log has more")

    def close(self, connection: Connection) -> None:
        """After what was sent."""
        if not connection.is_closing:
            connection.port.close()
            connection.is_closing = True


def _header_at(frames: memoryview, at: int) -> Header:
    return read_header(frames[at : at + _length_at(frames, at)])[0]


def _length_at(frames: memoryview, at: int) -> int:
    length: int = _LENGTH.unpack_from(frames, at)[0]
    return length
