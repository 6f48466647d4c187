"""How a client reaches a broker inside its own process: the client's doors, with an Engine behind them.

One lock guards an engine; whoever sends or waits also does the broker's work. All clients of a process that ask for the
same directory share one engine, which is closed with the last of them.
"""

import asyncio
import atexit
import threading
import uuid
from collections.abc import Callable
from pathlib import Path

from lakemq.broker.config import BrokerConfig
from lakemq.client.address import Address
from lakemq.client.channel import Channel, Connector, Transport
from lakemq.client.errors import BrokerUnreachableError, ConnectionLostError, ForkedError
from lakemq.embedded import Engine, Pipe
from lakemq.storage.config import DEV_SEGMENT_BYTES, StorageConfig
from lakemq.storage.directory import ForeignDirectoryError
from lakemq.storage.disk import Buffer, DirectoryLockedError
from lakemq.wire.frame import FrameDecoder
from lakemq.world.clock import RealClock
from lakemq.world.data_directory import make_directory, trouble_with
from lakemq.world.disk import RealDisk

DIRECTORY = ".lakemq"
_STEP_MS = 20  # how long nobody looks at leases and long polls, at the most
_FRAME_BYTES_MAX = 1 << 30  # the broker's answers are as long as they are


class Hosted:
    """An engine that several clients use, from any thread.

    `let_pass` makes time go by while everybody waits: by sleeping, or by moving the clock if that is moved by hand.
    """

    def __init__(self, engine: Engine, let_pass: Callable[[threading.Condition, int], None] | None = None) -> None:
        self.engine = engine
        self.changed = threading.Condition(threading.RLock())
        self.user_count = 0
        self._timekeeper: object | None = None
        self._let_pass = let_pass or _sleep

    def work(self) -> None:
        """All that can be done now; call it with the lock."""
        if not self.engine.is_stopped:
            self.engine.tick()
            self.engine.settle()
        self.changed.notify_all()

    def rest(self, timeout_ms: int) -> None:
        """Let some time pass; call it with the lock, which others may take meanwhile."""
        self._let_pass(self.changed, min(timeout_ms, _STEP_MS))

    def pass_time(self, who: object, spent_ms: int) -> None:
        """Under a clock that is moved by hand an event loop lets time pass as it does outside, once for all."""
        if self._let_pass is _sleep:
            return
        if self._timekeeper is None or getattr(self._timekeeper, "is_closed", False):
            self._timekeeper = who
        if self._timekeeper is who:
            self._let_pass(self.changed, spent_ms)


def _sleep(changed: threading.Condition, timeout_ms: int) -> None:
    changed.wait(timeout_ms / 1000)


class PipeChannel:
    """One connection of the blocking client."""

    def __init__(self, hosted: Hosted, pipe: Pipe) -> None:
        self._hosted = hosted
        self.pipe = pipe
        self._decoder = FrameDecoder(_FRAME_BYTES_MAX)

    def send(self, buffers: list[Buffer]) -> int:
        """The broker has it when this returns."""
        with self._hosted.changed:
            if self.pipe.is_closed:
                raise ConnectionLostError("the broker inside this process closed the connection")
            self.pipe.feed(b"".join(buffers))
            self._hosted.work()
        return 0

    def receive(self, timeout_ms: int) -> list[memoryview]:
        """What the broker has answered."""
        with self._hosted.changed:
            data = self.pipe.take()
            if not data and self.pipe.is_closed:
                raise ConnectionLostError("the broker inside this process closed the connection")
        return self._decoder.feed(data)

    def close(self) -> None:
        """Hang up."""
        with self._hosted.changed:
            self.pipe.hang_up()
            self._hosted.work()


class HostedConnector:
    """Opens channels to one engine."""

    def __init__(self, hosted: Hosted, release: Callable[[], None] | None = None) -> None:
        self._hosted = hosted
        self._release = release
        self._channels: list[PipeChannel] = []
        self._is_woken = False

    def connect(self, address: Address, timeout_ms: int) -> Channel:
        """Always there, unless it has stopped."""
        with self._hosted.changed:
            if self._hosted.engine.is_stopped:
                raise BrokerUnreachableError("the broker inside this process has stopped")
            channel = PipeChannel(self._hosted, self._hosted.engine.connect())
            self._channels.append(channel)
            return channel

    def wait(self, timeout_ms: int | None) -> list[Channel]:
        """Those that have something; the broker works meanwhile."""
        clock = self._hosted.engine.clock
        with self._hosted.changed:
            end_ms = None if timeout_ms is None else clock.monotonic_ms() + timeout_ms
            while True:
                self._hosted.work()
                self._channels = [one for one in self._channels if not one.pipe.is_closed or one.pipe.sent]
                ready: list[Channel] = [one for one in self._channels if one.pipe.sent]
                left_ms = _STEP_MS if end_ms is None else end_ms - clock.monotonic_ms()
                if ready or self._is_woken or left_ms <= 0:
                    self._is_woken = False
                    return ready
                self._hosted.rest(left_ms)

    def wake(self) -> None:
        """End a wait."""
        with self._hosted.changed:
            self._is_woken = True
            self._hosted.changed.notify_all()

    def forked(self) -> Connector:
        """A child has no broker: it is in the parent."""
        raise ForkedError("the broker is inside the parent process; a child needs one that listens: `lakemq dev`")

    def close(self) -> None:
        """Hang up everywhere."""
        for channel in self._channels:
            channel.close()
        self._channels = []
        if self._release is not None:
            self._release()
            self._release = None


class PipeTransport:
    """One connection of the asyncio client."""

    def __init__(self, hosted: Hosted, pipe: Pipe, protocol: asyncio.BufferedProtocol) -> None:
        self._hosted = hosted
        self._pipe = pipe
        self._protocol = protocol
        self._loop = asyncio.get_running_loop()
        self.is_closed = False
        self._loop.call_soon(self._work)

    def write(self, data: Buffer) -> None:
        """The broker gets it at once; its answers come with the loop's next turn."""
        with self._hosted.changed:
            if not self._pipe.is_closed:
                self._pipe.feed(data)
                self._hosted.work()
        self._loop.call_soon(self._deliver)

    def writelines(self, list_of_data: list[Buffer]) -> None:
        """The same for several."""
        self.write(b"".join(list_of_data))

    def close(self) -> None:
        """Hang up."""
        if not self.is_closed:
            self.is_closed = True
            with self._hosted.changed:
                self._pipe.hang_up()
                self._hosted.work()
            self._loop.call_soon(self._protocol.connection_lost, None)

    def abort(self) -> None:
        """Hang up."""
        self.close()

    def _work(self) -> None:
        """Long polls and leases end by time, so somebody must look now and then."""
        if self.is_closed:
            return
        with self._hosted.changed:
            self._hosted.pass_time(self, _STEP_MS)
            self._hosted.work()
        self._deliver()
        self._loop.call_later(_STEP_MS / 1000, self._work)

    def _deliver(self) -> None:
        if self.is_closed:
            return
        with self._hosted.changed:
            data = memoryview(self._pipe.take())
            is_over = self._pipe.is_closed
        while len(data):
            room = memoryview(self._protocol.get_buffer(len(data)))
            size = min(len(room), len(data))
            room[:size] = data[:size]
            self._protocol.buffer_updated(size)
            data = data[size:]
        if is_over:
            self.is_closed = True
            self._protocol.connection_lost(None)


class AsyncHostedConnector:
    """Opens connections of the asyncio client to one engine."""

    def __init__(self, hosted: Hosted) -> None:
        self._hosted = hosted

    async def connect(
        self, address: Address, protocol_factory: Callable[[], asyncio.BufferedProtocol], timeout_ms: int
    ) -> Transport:
        """Always there, unless it has stopped."""
        with self._hosted.changed:
            if self._hosted.engine.is_stopped:
                raise BrokerUnreachableError("the broker inside this process has stopped")
            pipe = self._hosted.engine.connect()
        protocol = protocol_factory()
        transport = PipeTransport(self._hosted, pipe, protocol)
        protocol.connection_made(transport)  # type: ignore[arg-type]  # as much of a transport as the client needs
        return transport


# --- one engine per directory --------------------------------------------------------------------------------------

_hosts: dict[Path, Hosted] = {}
_hosts_lock = threading.Lock()


def _dev_config() -> BrokerConfig:
    return BrokerConfig(creates_missing=True, cluster_id=uuid.uuid4().hex)


def host_of(directory: str | None) -> tuple[Hosted, Callable[[], None]]:
    """The engine of a directory, begun if need be, and what to call when it is needed no more."""
    path = Path(directory or DIRECTORY).absolute()
    with _hosts_lock:
        hosted = _hosts.get(path)
        if hosted is None:
            storage = StorageConfig(segment_bytes=DEV_SEGMENT_BYTES)
            try:
                make_directory(path)
                engine = Engine(RealDisk(str(path)), RealClock(), _dev_config(), storage)
            except (ForeignDirectoryError, OSError, MemoryError) as error:
                trouble = trouble_with(path, error, storage.segment_bytes)
                raise BrokerUnreachableError(f"{trouble.detail}; to mend it: {trouble.fix}") from None
            except DirectoryLockedError:
                raise BrokerUnreachableError(
                    f"a broker has {path} open: connect to it, by lakemq://127.0.0.1:50088 or what it says at its start"
                ) from None
            hosted = _hosts[path] = Hosted(engine)
        hosted.user_count += 1

    def release() -> None:
        with _hosts_lock:
            hosted.user_count -= 1
            if not hosted.user_count:
                del _hosts[path]
                with hosted.changed:
                    hosted.engine.close()

    return hosted, release


def connector(directory: str | None) -> HostedConnector:
    """How the blocking client reaches a broker in this process, with its data in that directory."""
    return HostedConnector(*host_of(directory))


def async_connector(directory: str | None) -> AsyncHostedConnector:
    """The same for the asyncio client; the engine is closed when the process ends."""
    hosted, release = host_of(directory)
    atexit.register(release)
    return AsyncHostedConnector(hosted)
