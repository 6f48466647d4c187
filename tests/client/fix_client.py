"""Clients that talk to a FakeCluster without sockets and without real time."""

import asyncio
import selectors
from random import Random

from lakemq.client.address import Address
from lakemq.client.aio import connect as aio_connect
from lakemq.client.blocking import connect
from lakemq.client.errors import BrokerUnreachableError, ConnectionLostError
from lakemq.wire.frame import FrameDecoder


class FakeChannel:
    """A client's end of a connection."""

    def __init__(self, connection):
        self.connection = connection
        self.to_broker = FrameDecoder()
        self.is_closed = False

    def send(self, buffers):
        if self.connection.is_closed:
            raise ConnectionLostError("the fake broker hung up")
        for frame in self.to_broker.feed(b"".join(buffers)):
            if not self.connection.is_closed:
                self.connection.cluster.handle(self.connection, frame)
        return 0

    def receive(self, timeout_ms):
        frames, self.connection.inbox = self.connection.inbox, []
        if not frames and self.connection.is_closed:
            raise ConnectionLostError("the fake broker hung up")
        return [memoryview(frame) for frame in frames]

    def close(self):
        self.is_closed = True
        if not self.connection.is_closed:
            self.connection.close()

    @property
    def is_ready(self):
        return bool(self.connection.inbox) or self.connection.is_closed


class FakeConnector:
    """Waiting moves the clock to what is due next."""

    def __init__(self, cluster):
        self.cluster = cluster
        self.channels = []

    def connect(self, address, timeout_ms):
        connection = self.cluster.connect(address)
        if connection is None:
            raise BrokerUnreachableError(f"{address}: refused")
        channel = FakeChannel(connection)
        self.channels.append(channel)
        return channel

    def wait(self, timeout_ms):
        self.channels = [one for one in self.channels if not one.is_closed]
        ready = [one for one in self.channels if one.is_ready]
        if ready or timeout_ms == 0:
            return ready
        clock, due_ms = self.cluster.clock, self.cluster.next_ms()
        ends = [] if timeout_ms is None else [clock.now_ms + timeout_ms]
        ends += [] if due_ms is None else [due_ms]
        assert ends, "the client waits for ever"
        clock.now_ms = max(min(ends), clock.now_ms)
        self.cluster.tick()
        return [one for one in self.channels if one.is_ready]

    def wake(self):
        pass

    def forked(self):
        return FakeConnector(self.cluster)

    def close(self):
        for channel in self.channels:
            channel.close()


def url_of(cluster):
    return "lakemq://" + ",".join(f"{place.host}:{place.port}" for place in cluster.brokers.values())


def fake_client(cluster, **options):
    """A blocking client of that cluster, without a thread."""
    options = {"app": "shop", "watcher": False, "compression": "none", "chance": Random(1).random, **options}
    return connect(url_of(cluster), connector=FakeConnector(cluster), clock=cluster.clock, **options)


class _Transport:
    def __init__(self, connection, protocol, loop):
        self.connection = connection
        self.protocol = protocol
        self.loop = loop
        self.to_broker = FrameDecoder()
        self.is_closed = False
        self.writes = 0
        connection.on_frames = lambda: loop.call_soon(self._deliver)
        protocol.connection_made(self)

    def writelines(self, buffers):
        self.writes += 1
        for frame in self.to_broker.feed(b"".join(buffers)):
            if not self.connection.is_closed:
                self.connection.cluster.handle(self.connection, frame)
        self._schedule()

    def write(self, data):
        self.writelines([data])

    def close(self):
        self.is_closed = True
        if not self.connection.is_closed:
            self.connection.close()

    abort = close

    def _schedule(self):
        cluster = self.connection.cluster
        due_ms = cluster.next_ms()
        if due_ms is not None and not self.is_closed:
            self.loop.call_later(max(due_ms - cluster.clock.now_ms, 0) / 1000, cluster.tick)

    def _deliver(self):
        if self.is_closed:
            return
        frames, self.connection.inbox = self.connection.inbox, []
        for frame in frames:
            view = memoryview(frame)
            while len(view) and not self.is_closed:
                room = self.protocol.get_buffer(-1)
                size = min(len(room), len(view))
                room[:size] = view[:size]
                self.protocol.buffer_updated(size)
                view = view[size:]
        if self.connection.is_closed and not self.is_closed:
            self.is_closed = True
            self.protocol.connection_lost(None)


class FakeAsyncConnector:
    def __init__(self, cluster):
        self.cluster = cluster
        self.transports = []

    async def connect(self, address, protocol_factory, timeout_ms):
        connection = self.cluster.connect(address)
        if connection is None:
            raise BrokerUnreachableError(f"{address}: refused")
        transport = _Transport(connection, protocol_factory(), asyncio.get_running_loop())
        self.transports.append(transport)
        return transport


def fake_async_client(cluster, **options):
    options = {"app": "shop", "compression": "none", "chance": Random(1).random, **options}
    connector = options.pop("connector", None) or FakeAsyncConnector(cluster)
    return aio_connect(url_of(cluster), connector=connector, clock=cluster.clock, **options)


class _JumpingSelector(selectors.SelectSelector):
    """Does not wait: moves the clock on."""

    def __init__(self, clock):
        super().__init__()
        self.clock = clock
        self.fraction_ms = 0.0

    def select(self, timeout=None):
        ready = super().select(0)
        if not ready and timeout:
            self.fraction_ms += timeout * 1000
            whole = int(self.fraction_ms) + 1
            self.clock.now_ms += whole
            self.fraction_ms = 0.0
        elif not ready and timeout is None:
            ready = super().select(5)
            assert ready, "the loop waits for ever"
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time is the fake clock's."""

    def __init__(self, clock):
        self.clock = clock
        super().__init__(_JumpingSelector(clock))

    def time(self):
        return self.clock.now_ms / 1000

    def run_in_executor(self, executor, function, *arguments):
        """At once: while another thread worked, virtual time would run away."""
        future = self.create_future()
        try:
            future.set_result(function(*arguments))
        except Exception as error:
            future.set_exception(error)
        return future


def run_virtual(cluster, coroutine):
    """Run a coroutine to its end in virtual time."""
    loop = VirtualLoop(cluster.clock)
    try:
        return loop.run_until_complete(asyncio.wait_for(coroutine, 3600))
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


SEED = Address("broker-1", 1)
