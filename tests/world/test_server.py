"""Connections over real sockets: the loop's own protocol and our poller do the same, on each kind of loop."""

import asyncio
import contextlib
import socket
import struct
from itertools import count

import pytest

from lakemq.wire.header import Header
from lakemq.wire.joyqueue_message import client_address
from lakemq.world import server
from lakemq.world.server import SocketPort

try:
    from lakemq.world import polled
except ImportError:
    polled = None

FRAME = Header(7, 1).pack(10) + b"x" * 10
forms = pytest.mark.parametrize(
    "form",
    [
        "protocol",
        pytest.param(
            "poller",
            marks=pytest.mark.skipif(polled is None, reason="the poller was not built: no C compiler at install"),
        ),
    ],
)
OUTPUT_BYTES_MAX = 200_000


class Serving:
    """Who serves: notes what it is told, ends turns, answers with `answer`."""

    frame_bytes_max = 1 << 20
    output_bytes_max = OUTPUT_BYTES_MAX

    def __init__(self, form):
        self.form = form
        self.told = []
        self.ports = {}
        self.answer = None  # what to send for frames
        self.is_ending = False
        self.is_full = False
        self.is_waiting_for_disk = False
        self._numbers = count(1)
        self._dirty = []
        self._is_turn_coming = False

    async def start(self, host="127.0.0.1"):
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.socket(family)
        listener.bind((host, 0))
        listener.setblocking(False)
        self.address = listener.getsockname()[:2]
        loop = asyncio.get_running_loop()
        if self.form == "poller":
            self.server = polled.PolledServer(loop, listener, self, lambda: next(self._numbers), 64)
        else:
            self.server = await loop.create_server(lambda: SocketPort(next(self._numbers), self), sock=listener)
        return self

    async def stop(self):
        for port in list(self.ports.values()):
            port.abort()
        self.server.close()
        await self.until(lambda: not self.ports)
        if self.form == "poller":
            self.server.end()

    async def until(self, condition, seconds=5):
        deadline = asyncio.get_running_loop().time() + seconds
        while not condition():
            assert asyncio.get_running_loop().time() < deadline, f"not within {seconds} s; told: {self.told}"
            await asyncio.sleep(0.002)

    # --- what a port or poller asks ----------------------------------------------------------------------------

    def now_ms(self):
        return 77

    def opened(self, port):
        self.ports[port.id] = port
        port.session = port
        self.told.append(("opened", port.id))

    def received(self, port, frames):
        self.told.append(("received", port.id, bytes(frames)))
        if self.answer is not None and not port.send([self.answer]):
            self.is_full = True

    def polled(self, arrivals, happened):
        for port, frames in arrivals:
            self.received(port, frames)
        for port, what in happened or ():
            port.note(what)
        self._end_turn()

    def broken(self, port, error):
        self.told.append(("broken", port.id))
        port.close()

    def drained(self, port):
        self.is_full = False
        self.told.append(("drained", port.id))

    def closed(self, port):
        del self.ports[port.id]
        port.session = None
        self.told.append(("closed", port.id))

    def wants_flush(self, port):
        self._dirty.append(port)
        self.begin_turn()

    def begin_turn(self):
        if not self._is_turn_coming:
            self._is_turn_coming = True
            asyncio.get_running_loop().call_soon(self._end_turn)

    def _end_turn(self):
        self._is_turn_coming = False
        dirty, self._dirty = self._dirty, []
        for port in dirty:
            port.flush()
        if self.form == "poller":
            for port, what in self.server.flush() or ():
                port.note(what)


def loops():
    yield pytest.param(asyncio.new_event_loop, id="asyncio")
    with contextlib.suppress(ImportError):
        import uvloop

        yield pytest.param(uvloop.new_event_loop, id="uvloop")


@pytest.fixture(params=loops())
def run(request):
    """Run a scenario on a loop; it must leave no connection behind."""

    def run_it(form, scenario):
        async def main():
            serving = Serving(form)
            await serving.start()
            try:
                await scenario(serving)
            finally:
                await serving.stop()

        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(asyncio.wait_for(main(), 20))

    return run_it


async def connect(serving):
    reader, writer = await asyncio.open_connection(*serving.address)
    await serving.until(lambda: serving.ports)
    return reader, writer, next(iter(serving.ports.values()))


@contextlib.contextmanager
def ended(writer):
    try:
        yield
    finally:
        writer.transport.abort()


@forms
def test_frames_come_in_and_answers_go_out(run, form):
    async def scenario(serving):
        serving.answer = b"answer"
        reader, writer, port = await connect(serving)
        with ended(writer):
            for _ in range(3):
                writer.write(FRAME + FRAME[:9])
                assert await reader.readexactly(6) == b"answer"
                await serving.until(lambda: port.held_bytes == 9)
                assert port.frame_began_ms == 77
                writer.write(FRAME[9:])
                assert await reader.readexactly(6) == b"answer"
                assert (port.held_bytes, port.frame_began_ms) == (0, 0)
        await serving.until(lambda: not serving.ports)
        assert serving.told == [("opened", 1), *[("received", 1, FRAME)] * 6, ("closed", 1)]

    run(form, scenario)


@forms
def test_a_peer_that_half_closes_gets_its_answers_and_is_closed(run, form):
    async def scenario(serving):
        serving.answer = b"a" * 1000
        reader, writer, _ = await connect(serving)
        with ended(writer):
            writer.write(FRAME)
            writer.write_eof()
            assert await reader.read() == serving.answer
        await serving.until(lambda: not serving.ports)
        assert serving.told == [("opened", 1), ("received", 1, FRAME), ("closed", 1)]

    run(form, scenario)


@forms
def test_what_is_no_frame_is_told_after_the_frames_before_it(run, form):
    async def scenario(serving):
        reader, writer, _ = await connect(serving)
        with ended(writer):
            writer.write(FRAME + b"\0" * 8)
            assert await reader.read() == b""
        await serving.until(lambda: not serving.ports)
        assert serving.told == [("opened", 1), ("received", 1, FRAME), ("broken", 1), ("closed", 1)]

    run(form, scenario)


@forms
def test_close_sends_what_waits(run, form):
    async def scenario(serving):
        reader, writer, port = await connect(serving)
        with ended(writer):
            data = b"z" * (OUTPUT_BYTES_MAX - 1)
            assert port.send([data])
            port.close()
            port.close()
            port.send([b"too late"])
            assert await reader.read() == data
        await serving.until(lambda: not serving.ports)

    run(form, scenario)


@forms
def test_goodbye_lets_a_peer_read_its_last_answers_before_it_is_reset(run, form):
    async def scenario(serving):
        reader, writer, port = await connect(serving)
        with ended(writer):
            port.pause()
            writer.write(FRAME * 1000)  # which nobody will read
            await writer.drain()
            serving.is_ending = True
            port.send([b"last"])
            port.close()
            port.close()
            assert await reader.read() == b"last"
            writer.write(FRAME)
            await asyncio.sleep(0.02)
            assert ("closed", 1) not in serving.told, "it has not seen the end of ours yet, for all we know"
            assert not [one for one in serving.told if one[0] == "received"]
            writer.write_eof()
            await serving.until(lambda: not serving.ports)

    run(form, scenario)


@forms
def test_abort_loses_what_waits_and_is_told_later(run, form):
    async def scenario(serving):
        reader, writer, port = await connect(serving)
        with ended(writer):
            port.send([b"lost"])
            port.abort()
            port.abort()
            assert ("closed", 1) not in serving.told, "whoever closes it is in the middle of something"
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
            await serving.until(lambda: not serving.ports)
            port.close()
            assert port.send([b"to nobody"])

    run(form, scenario)


@forms
def test_a_peer_that_does_not_read_is_told_of_until_it_does(run, form):
    async def scenario(serving):
        serving.answer = b"b" * OUTPUT_BYTES_MAX
        raw = socket.create_connection(serving.address)
        raw.setblocking(False)
        loop = asyncio.get_running_loop()
        asked = 0
        while not (serving.is_full and ("drained", 1) not in serving.told[-3:]):
            await loop.sock_sendall(raw, FRAME)
            asked += 1
            await serving.until(lambda n=asked: sum(one[0] == "received" for one in serving.told) == n)
            await asyncio.sleep(0.005)
        got = 0
        while got < asked * OUTPUT_BYTES_MAX:
            got += len(await loop.sock_recv(raw, 1 << 20))
        await serving.until(lambda: not serving.is_full)
        assert serving.told[-1] == ("drained", 1)
        raw.close()
        await serving.until(lambda: not serving.ports)

    run(form, scenario)


@forms
def test_a_peer_that_does_not_read_is_not_waited_for_when_it_is_closed(run, form):
    async def scenario(serving):
        raw = socket.create_connection(serving.address)
        await serving.until(lambda: serving.ports)
        port = serving.ports[1]
        while port.send([b"c" * OUTPUT_BYTES_MAX]):
            await asyncio.sleep(0.002)
        await asyncio.sleep(0.01)
        port.send([b"c" * 50 * OUTPUT_BYTES_MAX])
        port.close()
        await serving.until(lambda: not serving.ports, seconds=2)
        raw.close()

    run(form, scenario)


@forms
def test_a_closed_peer_that_reads_nothing_has_to_go_in_the_end(run, form, monkeypatch):
    for module in filter(None, (server, polled)):
        monkeypatch.setattr(module, "LINGER_SECONDS", 0.05)

    async def scenario(serving):
        serving.is_ending = True
        raw = socket.create_connection(serving.address)  # it neither reads nor closes
        await serving.until(lambda: serving.ports)
        serving.ports[1].close()
        await asyncio.sleep(0.01)
        assert serving.ports
        await serving.until(lambda: not serving.ports, seconds=2)
        raw.close()

    run(form, scenario)


@forms
def test_a_paused_peer_waits_in_its_socket(run, form):
    async def scenario(serving):
        _, writer, port = await connect(serving)
        with ended(writer):
            port.pause()
            port.pause()
            writer.write(FRAME)
            await asyncio.sleep(0.02)
            assert serving.told == [("opened", 1)]
            port.resume()
            await serving.until(lambda: len(serving.told) == 2)
            assert serving.told[-1] == ("received", 1, FRAME)

    run(form, scenario)


@forms
def test_a_reset_connection_is_told_once(run, form):
    async def scenario(serving):
        raw = socket.create_connection(serving.address)
        await serving.until(lambda: serving.ports)
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        raw.close()
        await serving.until(lambda: not serving.ports)
        await asyncio.sleep(0.01)
        assert serving.told == [("opened", 1), ("closed", 1)]

    run(form, scenario)


@forms
@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "::"])
def test_a_port_knows_who_is_there(form, host):
    if host != "127.0.0.1" and not _has_ipv6():
        pytest.skip("no IPv6 here")

    async def main():
        serving = await Serving(form).start(host)
        raw = socket.create_connection(("127.0.0.1" if host == "::" else host, serving.address[1]))
        await serving.until(lambda: serving.ports)
        port = serving.ports[1]
        own_host, own_port = raw.getsockname()[:2]
        family = socket.AF_INET6 if host == "::1" else socket.AF_INET
        assert (port.host, port.is_ipv6) == (own_host, host == "::1")
        assert port.address == client_address(socket.inet_pton(family, own_host), own_port)
        assert (port.local_host, port.local_port) == raw.getpeername()[:2]
        raw.close()
        await serving.stop()

    asyncio.run(main())


def _has_ipv6():
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


@pytest.mark.skipif(polled is None, reason="the poller was not built: no C compiler at install")
def test_without_files_for_more_connections_those_who_wait_come_in_later(monkeypatch):
    monkeypatch.setattr(polled, "_ACCEPT_AGAIN_SECONDS", 0.01)
    accept, failures = socket.socket.accept, [OSError(24, "planned")] * 2

    def failing(self):
        if failures:
            raise failures.pop()
        return accept(self)

    monkeypatch.setattr(socket.socket, "accept", failing)

    async def main():
        serving = await Serving("poller").start()
        raw = socket.create_connection(serving.address)
        await serving.until(lambda: serving.ports)
        assert not failures
        raw.close()
        await serving.stop()

    asyncio.run(main())


class Looking:
    """A poller that counts how often it is asked to look, and says what it is told to."""

    def __init__(self, poller, finds):
        self._poller = poller
        self._finds = finds
        self.count = 0

    def look(self, microseconds):
        self.count += 1
        return self._finds

    def __getattr__(self, name):
        return getattr(self._poller, name)


@pytest.mark.skipif(polled is None, reason="the poller was not built: no C compiler at install")
@pytest.mark.parametrize(
    ("brisk_s", "is_waiting_for_disk", "finds", "looks"),
    [(60, False, True, 9), (0, False, True, 0), (60, True, True, 0), (60, False, False, 5)],
    ids=["brisk", "slow", "disk", "in vain"],
)
def test_who_asks_again_at_once_is_not_slept_for(brisk_s, is_waiting_for_disk, finds, looks):
    """After each answer but the first; not if they are slow, not if answers wait for the disk, and after a look in
    vain only when they have shown again that they are fast."""

    async def main():
        serving = await Serving("poller").start()
        serving.answer = b"answer"
        serving.is_waiting_for_disk = is_waiting_for_disk
        reader, writer, _ = await connect(serving)
        poller = serving.server._poller = Looking(serving.server._poller, finds)
        serving.server._spin_us, serving.server._brisk_ns = 1, brisk_s * 10**9
        for _ in range(10):
            writer.write(FRAME)
            assert await reader.readexactly(6) == serving.answer
        assert poller.count == looks
        writer.transport.abort()
        await serving.stop()

    asyncio.run(main())


@pytest.mark.skipif(polled is None, reason="the poller was not built: no C compiler at install")
def test_a_look_ends_when_something_is_there_or_the_time_is_over():
    async def main():
        serving = await Serving("poller").start()
        raw = socket.create_connection(serving.address)
        await serving.until(lambda: serving.ports)
        assert serving.server._poller.look(100) is False
        raw.sendall(FRAME)
        assert serving.server._poller.look(60_000_000) is True
        assert serving.server._poller.look(0) is True
        raw.close()
        await serving.stop()

    asyncio.run(main())
