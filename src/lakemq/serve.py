"""config + core + world = a running broker: events in, effects out.

One thread runs the loop and the core. Others run syncs and checkpoints, which come back as events, and those of HTTP
ask through `Service.ask`, which is the only method that may be called from another thread.
"""

import asyncio
import gc
import logging
import resource
import signal
import socket
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

from lakemq.broker.config import BrokerConfig
from lakemq.broker.core import Broker
from lakemq.broker.events import (
    AdminAsked,
    CheckpointWritten,
    ConnectionClosed,
    ConnectionOpened,
    Event,
    JournalSynced,
    MetadataGiven,
    MetadataStoreFailed,
    Now,
    OutputDrained,
    StopAsked,
    StreamBroken,
    Tick,
    TurnEnded,
)
from lakemq.broker.ledger import State
from lakemq.errors import LakeMQError
from lakemq.storage.checkpoint import CheckpointTicket
from lakemq.storage.config import StorageConfig
from lakemq.storage.journal import SyncTicket
from lakemq.storage.partition_group import PartitionGroup
from lakemq.storage.recovery import open_group
from lakemq.world.admin_http import ADMIN_FILES_MAX
from lakemq.world.clock import RealClock
from lakemq.world.data_directory import make_directory
from lakemq.world.disk import RealDisk
from lakemq.world.metadata_file import MetadataFile
from lakemq.world.server import ClientPort, SocketPort
from lakemq.world.syncing import DiskWork

try:
    from lakemq.world.polled import PolledServer
except ImportError:  # no compiler when it was installed, or no epoll on this system
    PolledServer = None  # type: ignore[assignment, misc]

_LOG = logging.getLogger("lakemq.broker")
_LEVELS = {"info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
_TICK_SECONDS = 0.02
_STALL_SECONDS = 0.5
_SWEEP_SECONDS = 1.0
_SHARE_SECONDS = 0.03
_LAG_FADES = 0.9995  # with each tick
_BACKLOG = 1024
_GOODBYE_SECONDS = 0.3  # for peers to see the end of their connections
_OTHER_FILES = 64  # that may be open beside those of clients, of operators and of the store
_TURN_ENDED = TurnEnded()


@dataclass(frozen=True, slots=True)
class Neighbour:
    """Another broker on this machine; an empty host means the one that the client connected to."""

    group_id: int
    broker_id: int
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class ServeConfig:
    """All that a running broker needs to know; `lakemq.config` reads it from a file."""

    data: Path = Path(".lakemq")
    host: str = "127.0.0.1"
    port: int = 50088
    broker: BrokerConfig = field(default_factory=BrokerConfig)
    storage: StorageConfig = field(default_factory=StorageConfig)
    # Of several brokers on one machine: the others, and the directory in which they share metadata.
    neighbours: tuple[Neighbour, ...] = ()
    shared: Path | None = None


class Service:
    """A broker that serves sockets. `run` returns when it was told to stop, or must."""

    def __init__(self, config: ServeConfig, listener: socket.socket | None = None) -> None:
        self.config = config = _within_files(config)
        self._listener = listener
        limits = config.broker.limits
        self.frame_bytes_max = limits.frame_bytes_max
        self.output_bytes_max = limits.output_bytes_max
        self.failure: str | None = None
        self.port = 0
        self.loop_lag_seconds = 0.0  # how late a tick came, at the worst; fades by half in half a minute
        self._clock = RealClock()
        self._ports: dict[int, ClientPort] = {}
        self._numbers = count(1)
        self._dirty: list[SocketPort] = []
        self._flush_polled: Callable[[], list[tuple[Any, int]] | None] = _nothing
        self._is_turn_coming = False
        self._turn_now = self._now()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped: asyncio.Event | None = None
        self._is_stopping = False
        self._disk = DiskWork()
        self._group: PartitionGroup | None = None
        self.broker: Broker | None = None
        self._receive: Callable[[Any, memoryview, Now], None] = _nobody
        self._receive_all: Callable[[Sequence[tuple[Any, memoryview]], Now], None] = _nobody_at_all

    # --- life --------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Recover the data directory; raises what `open_group` raises."""
        make_directory(self.config.data)
        state = State(self.config.broker)
        self._group = open_group(RealDisk(str(self.config.data)), self.config.storage, state)
        for note in self._group.notes:
            _LOG.warning("recovery: %s", note)
        self.broker = Broker(_named(self.config.broker), self, self._group, state, self._now())
        self._receive = self.broker.receiving.receive
        self._receive_all = self.broker.receive_all
        for one in self.config.neighbours:
            self.broker.routing.neighbours[one.group_id] = (one.broker_id, one.host, one.port)

    def run(self, ready: Callable[["Service"], None] | None = None, *, handles_signals: bool = True) -> None:
        """Serve until stopped. `ready` is called when clients can connect."""
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(self._main(ready, handles_signals))

    def stop_soon(self, why: str = "asked to") -> None:
        """Drain, then end; from any thread."""
        loop = self._loop
        if loop is not None:
            _LOG.info("stopping: %s", why)
            loop.call_soon_threadsafe(self._handle, StopAsked())

    def _stop_by(self, number: int) -> None:
        _LOG.info("stopping: %s", signal.Signals(number).name)
        self._handle(StopAsked())

    async def _main(self, ready: Callable[["Service"], None] | None, handles_signals: bool) -> None:
        assert self._group is not None, "open first"
        loop = self._loop = asyncio.get_running_loop()
        self._stopped = asyncio.Event()
        self._disk.open(loop)
        if handles_signals:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, self._stop_by, number)
            loop.add_signal_handler(signal.SIGHUP, note_hangup)
        server = await self._serve(loop, self._listener or listening_socket(self.config.host, self.config.port))
        timers = [asyncio.create_task(self._tick()), asyncio.create_task(self._sweep())]
        if self.config.shared is not None:
            timers.append(asyncio.create_task(self._share_metadata(MetadataFile(self.config.shared))))
        gc.collect()
        gc.freeze()  # what a start leaves stays: no need to look at it again
        try:
            if ready is not None:
                ready(self)
            await self._stopped.wait()
        finally:
            server.close()
            for timer in timers:
                timer.cancel()
            self._is_stopping = True
            for port in list(self._ports.values()):
                port.close()
            goodbye = loop.time() + _GOODBYE_SECONDS
            while self._ports and loop.time() < goodbye:
                await asyncio.sleep(0.005)
            for port in list(self._ports.values()):
                port.abort()
            await asyncio.sleep(0)  # the core is told that they are gone, before it is
            if PolledServer is not None and isinstance(server, PolledServer):
                server.end()
            self._disk.stop_telling()
            await loop.run_in_executor(None, self._close)
            _LOG.info("stopped%s", "" if self.failure is None else f" after a failure: {self.failure}")

    async def _serve(
        self, loop: asyncio.AbstractEventLoop, listener: socket.socket
    ) -> "PolledServer | asyncio.AbstractServer":
        """Take connections, by our own poller where it could be built."""
        self.port = listener.getsockname()[1]
        if PolledServer is not None:
            server = PolledServer(loop, listener, self, lambda: next(self._numbers), _BACKLOG)
            self._flush_polled = server.flush
            return server
        return await loop.create_server(lambda: SocketPort(next(self._numbers), self), sock=listener, backlog=_BACKLOG)

    def _close(self) -> None:
        self._disk.close()
        group = self._group
        assert group is not None
        if self.failure is not None:
            group.abandon()
            return
        try:
            group.close()
        except (OSError, LakeMQError) as error:
            if group.journal.unsynced_bytes or group.journal.failure is not None:
                self.failure = f"the journal could not be synced at the end: {error}"
            else:
                _LOG.warning("no checkpoint could be written at the end (%s): the next start reads more", error)

    async def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + _TICK_SECONDS
            await asyncio.sleep(_TICK_SECONDS)
            late_seconds = loop.time() - due
            self.loop_lag_seconds = max(late_seconds, self.loop_lag_seconds * _LAG_FADES)
            if late_seconds > _STALL_SECONDS:
                # We stood still, not the disk: a sync that has ended meanwhile is to say so first (F09).
                await asyncio.sleep(_STALL_SECONDS)
            self._handle(Tick())

    async def _sweep(self) -> None:
        """Close those who leave a frame unfinished, and the largest of them if all together hold too much."""
        limits = self.config.broker.limits
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            now_ms = self.now_ms()
            unfinished = [port for port in self._ports.values() if port.frame_began_ms]
            held_bytes = sum(port.held_bytes for port in unfinished)
            for port in sorted(unfinished, key=lambda one: -one.held_bytes):
                is_over = held_bytes > limits.held_bytes_total_max
                if port.session is not None and port.session.is_held_up:
                    port.frame_began_ms = now_ms  # it is we who do not read the rest
                if is_over or now_ms - port.frame_began_ms > limits.frame_stall_ms:
                    assert self.broker is not None
                    self.broker.metrics.capped["held_bytes" if is_over else "frame_stall"] += 1
                    held_bytes -= port.held_bytes
                    port.abort()

    async def _share_metadata(self, shared: MetadataFile) -> None:
        """The owner of the metadata tells it once it is durable; the others take over what it tells."""
        broker, group = self.broker, self._group
        assert broker is not None
        assert group is not None
        told_version, waits_for, failure = -1, 0, ""
        while True:
            version = broker.ledger.metadata.version
            try:
                if not self.config.broker.owns_metadata:
                    packed = shared.read_if_new()
                    if packed is not None:
                        self._handle(MetadataGiven(packed))
                if version != told_version:
                    waits_for = waits_for or broker.ledger.end_position
                    if group.journal.synced_position >= waits_for:
                        if self.config.broker.owns_metadata:
                            shared.publish(broker.ledger.metadata.pack())
                        shared.report(self.config.broker.broker_id, version)
                        told_version, waits_for = version, 0
                now_failing = ""
            except OSError as error:  # it is tried again; until then changes are refused, for nobody would hear of them
                now_failing = str(error)
            if now_failing != failure:
                failure = now_failing
                _LOG.error("the workers' metadata: %s", failure or "shared again")
                self._handle(MetadataStoreFailed(failure))
            await asyncio.sleep(_SHARE_SECONDS)

    # --- events ------------------------------------------------------------------------------------------------

    def _now(self) -> Now:
        return Now(self._clock.wall_ms(), self._clock.monotonic_ms())

    @property
    def is_ending(self) -> bool:
        """Whether connections are closed only because the broker stops."""
        return self._is_stopping or (self.broker is not None and self.broker.access.is_draining)

    def now_ms(self) -> int:
        """Monotonic time."""
        return self._clock.monotonic_ms()

    def _handle(self, event: Event) -> None:
        self.begin_turn()
        assert self.broker is not None
        try:
            self.broker.handle(event, self._now())
        except Exception:  # a bug; see `_crash`
            self._crash()

    def _turn_of(self, event: Event) -> None:
        """An event that many wait for: handled with the end of its turn, before anything else is."""
        self._handle(event)
        self._end_turn()

    def _crash(self) -> None:
        """A bug outside any request: nobody knows what state the core is in, so it must not go on (F08)."""
        _LOG.exception("a bug in the broker: it stops, and recovers at its next start")
        if self.failure is None:
            self.stop("a bug in the broker")

    def begin_turn(self) -> None:
        """Something happened: there will be an end of the turn, after all else that has arrived by now."""
        if not self._is_turn_coming:
            self._is_turn_coming = True
            self._turn_now = self._now()
            assert self._loop is not None
            self._loop.call_soon(self._end_turn)

    def _end_turn(self) -> None:
        """All that had arrived is handed in: write it with one call, then send what can be sent."""
        if not self._is_turn_coming:  # `polled` was faster
            return
        broker = self.broker
        assert broker is not None
        try:
            broker.handle(_TURN_ENDED, self._now())
        except Exception:  # a bug; see `_crash`
            self._crash()
        while self._dirty:
            dirty, self._dirty = self._dirty, []
            for port in dirty:
                port.flush()
        while happened := self._flush_polled():
            for one, what in happened:
                one.note(what)
        self._is_turn_coming = False
        if broker.needs_turn:  # somebody held back went on meanwhile
            self.begin_turn()

    def polled(self, arrivals: list[tuple[Any, memoryview]], happened: list[tuple[Any, int]] | None) -> None:
        """All that has arrived by now, as one turn, with its end."""
        if not self._is_turn_coming:
            self._is_turn_coming = True
            self._turn_now = self._now()
        try:
            self._receive_all(arrivals, self._turn_now)
        except Exception:  # a bug; see `_crash`
            self._crash()
        for port, what in happened or ():
            port.note(what)
        self._end_turn()

    def opened(self, port: Any) -> None:
        """A peer is there."""
        self._ports[port.id] = port
        self._handle(ConnectionOpened(port))

    def received(self, port: SocketPort, frames: memoryview) -> None:
        """It sent something. Here time is told once per turn, for this is called more often than all others."""
        if not self._is_turn_coming:
            self.begin_turn()
        session = port.session
        if session is not None:
            try:
                self._receive(session, frames, self._turn_now)
            except Exception:  # a bug; see `_crash`
                self._crash()

    def broken(self, port: ClientPort, error: LakeMQError) -> None:
        """It sent something that is no frame."""
        self._handle(StreamBroken(port.id, error))

    def drained(self, port: ClientPort) -> None:
        """It has caught up."""
        self._handle(OutputDrained(port.id))

    def closed(self, port: ClientPort) -> None:
        """It is gone."""
        self._ports.pop(port.id, None)
        self._handle(ConnectionClosed(port.id))
        port.session = None  # else both wait for the garbage collector, with all that the port has in memory

    def wants_flush(self, port: SocketPort) -> None:
        """It has something to send."""
        self._dirty.append(port)
        self.begin_turn()

    # --- what the core asks for ----------------------------------------------------------------------------------

    def sync(self, ticket: SyncTicket) -> None:
        """Run it beside the loop."""
        self._disk.sync(ticket, lambda error: self._turn_of(JournalSynced(ticket, error)))

    def checkpoint(self, ticket: CheckpointTicket) -> None:
        """Run it beside the loop."""
        self._disk.run(ticket, lambda error: self._handle(CheckpointWritten(ticket, error)))

    @property
    def is_waiting_for_disk(self) -> bool:
        """Whether something is being synced or written beside the loop."""
        return self._disk.is_busy

    def stop(self, failure: str | None) -> None:
        """The core is done."""
        self.failure = failure
        if failure is not None:
            _LOG.critical("stopping: %s", failure)
        assert self._stopped is not None
        self._stopped.set()

    def note(self, level: str, text: str) -> None:
        """A line for the log."""
        _LOG.log(_LEVELS[level], "%s", text)

    # --- others ------------------------------------------------------------------------------------------------

    def ask(self, action: str, **arguments: Any) -> "Future[Any]":
        """Ask the core for an operator's action, from any thread."""
        future: Future[Any] = Future()

        def answer(result: Any, error: LakeMQError | None) -> None:
            if future.cancelled():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)

        loop = self._loop
        assert loop is not None
        loop.call_soon_threadsafe(self._handle, AdminAsked(action, arguments, answer))
        return future

    def look(self, question: Callable[[Broker], Any]) -> "Future[Any]":
        """Ask the broker something on its own thread: counters change while they are read elsewhere."""
        future: Future[Any] = Future()

        def answer() -> None:
            assert self.broker is not None
            try:
                future.set_result(question(self.broker))
            except BaseException as error:
                future.set_exception(error)

        loop = self._loop
        assert loop is not None
        loop.call_soon_threadsafe(answer)
        return future


def note_hangup(*_: object) -> None:
    """A terminal that closes, or an operator who means a reload: neither is a reason to stop."""
    _LOG.info("SIGHUP: there is nothing to reload, the broker goes on; SIGTERM stops it")


def _within_files(config: ServeConfig) -> ServeConfig:
    """The settings with no more connections and cached files than leave the store what a roll needs (F26)."""
    files_max = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if files_max == resource.RLIM_INFINITY:
        return config
    storage = replace(
        config.storage,
        open_segments_max=max(min(config.storage.open_segments_max, files_max // 16), 2),
        open_index_files_max=max(min(config.storage.open_index_files_max, files_max // 4), 2),
    )
    # A segment may be open and mapped, and before Python 3.13 that takes two.
    stored = 2 * storage.open_segments_max + storage.open_index_files_max
    limits = config.broker.limits
    connections_max = min(limits.connections_max, max(files_max - stored - ADMIN_FILES_MAX - _OTHER_FILES, 16))
    if connections_max < limits.connections_max:
        _LOG.warning("at most %d connections: no more than %d files may be open", connections_max, files_max)
    broker = replace(config.broker, limits=replace(limits, connections_max=connections_max))
    return replace(config, broker=broker, storage=storage)


def _named(config: BrokerConfig) -> BrokerConfig:
    """With an id for the data, in case they have none yet."""
    return config if config.cluster_id else replace(config, cluster_id=uuid.uuid4().hex)


def _nobody(session: Any, frames: memoryview, now: Now) -> None:
    """There is no broker yet."""


def _nobody_at_all(arrivals: Sequence[tuple[Any, memoryview]], now: Now) -> None:
    """The same."""


def _nothing() -> None:
    """No port is polled."""


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:  # not on every platform
        return None
    return uvloop.new_event_loop


def listening_socket(host: str, port: int) -> socket.socket:
    """A socket that nobody listens on yet; port 0 for any that is free."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener
