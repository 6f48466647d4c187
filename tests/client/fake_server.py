"""A FakeCluster behind real sockets, in a thread of the test."""

import contextlib
import selectors
import socket
import threading

from client.fake_broker import FakeCluster
from lakemq.client.address import Address
from lakemq.client.system_clock import SystemClock
from lakemq.wire.frame import FrameDecoder


class _RealClock(SystemClock):
    @property
    def now_ms(self):
        return self.monotonic_ms()


class FakeServer:
    """One broker on a free port of the loopback; `cluster` may be scripted while it runs, under `lock`."""

    def __init__(self, **options):
        self.cluster = FakeCluster(_RealClock(), **options)
        self.lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._port = self._listener.getsockname()[1]
        self.cluster.brokers = {1: Address("127.0.0.1", self._port)}
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._peers = {}
        self._is_stopped = False
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def url(self):
        return f"lakemq://127.0.0.1:{self._port}"

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._is_stopped = True
        self._thread.join()
        for peer in list(self._peers):
            peer.close()
        self._selector.close()
        self._listener.close()

    def _run(self):
        while not self._is_stopped:
            ready = self._selector.select(0.005)
            with self.lock:
                for key, _ in ready:
                    if key.fileobj is self._listener:
                        self._accept()
                    else:
                        self._read(key.fileobj)
                self.cluster.tick()
                for peer, (connection, _) in list(self._peers.items()):
                    self._write(peer, connection)

    def _accept(self):
        peer, _ = self._listener.accept()
        connection = self.cluster.connect(self.cluster.brokers[1])
        if connection is None:
            peer.close()
            return
        self._peers[peer] = connection, FrameDecoder()
        self._selector.register(peer, selectors.EVENT_READ)

    def _read(self, peer):
        connection, decoder = self._peers[peer]
        try:
            data = peer.recv(1 << 20)
        except OSError:
            data = b""
        if not data:
            connection.close()
        for frame in decoder.feed(data):
            if not connection.is_closed:
                self.cluster.handle(connection, frame)

    def _write(self, peer, connection):
        frames, connection.inbox = connection.inbox, []
        with contextlib.suppress(OSError):
            for frame in frames:
                peer.sendall(frame)
        if connection.is_closed:
            self._selector.unregister(peer)
            del self._peers[peer]
            peer.close()
