"""The operators' interface over a broker in memory: real HTTP, no process, no disk."""

import http.client
import json
import threading
from concurrent.futures import Future
from pathlib import Path

import pytest

from lakemq import envelope
from lakemq.broker.config import BrokerConfig
from lakemq.embedded import Engine
from lakemq.message import Message
from lakemq.operate import Operated
from lakemq.testing.clock import SimClock
from lakemq.testing.disk import SimDisk
from lakemq.world.admin_http import AdminPlace, AdminServer

TOKEN = "the-operators-own-token"
READY_S = 30.0


class InMemory:
    """Stands where a Service stands: answers at once, or holds its answers back."""

    def __init__(self, **config):
        self._lock = threading.Lock()
        self.engine = Engine(SimDisk(), SimClock(), BrokerConfig(**config))
        self.loop_lag_seconds = 0.25
        self.is_silent = False
        self.is_over = False
        self.failure = None  # raised instead of an answer

    @property
    def broker(self):
        return self.engine.broker

    def ask(self, action, **arguments):
        return self._soon(lambda: self.engine.ask(action, **arguments))

    def look(self, question):
        return self._soon(lambda: question(self.engine.broker))

    def _soon(self, work):
        if self.is_over:
            raise RuntimeError("Event loop is closed")
        future = Future()
        if self.is_silent:
            return future
        with self._lock:
            try:
                if self.failure is not None:
                    raise self.failure
                future.set_result(work())
            except Exception as error:
                future.set_exception(error)
        return future

    def store(self, topic, partition, count=1):
        """Put messages into a partition; they can be read at once."""
        with self._lock:
            number = self.broker.ledger.metadata.topics[topic].number
            for at in range(count):
                packed = bytearray(envelope.pack(Message(body=b"message %d" % at)))
                now = self.engine.now()
                self.engine.group.append(number, partition, packed, 1, 1, term=1, now_ms=now.wall_ms)
            self.engine.settle()
            self.engine.clock.pass_ms(1000)  # nobody waits for the sync, so it takes its time
            self.engine.tick()
            self.engine.settle()
            assert self.engine.group.visible_index(number, partition) >= count


class Admin:
    """A server and a way to ask it."""

    def __init__(self, service, data, timeout_seconds=10.0, disk_free_bytes_min=0):
        self.service = service
        place = AdminPlace(TOKEN, Path(data), "127.0.0.1", 0, timeout_seconds, disk_free_bytes_min)
        self.server = AdminServer(place)
        ready, failures = threading.Event(), []
        self.server.start(Operated(service), ready.set, lambda error: (failures.append(error), ready.set()))
        assert ready.wait(READY_S), "it does not serve"
        assert not failures, failures

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server.port}"

    def raw(self, method, path, body=None, headers=None, token=TOKEN):
        """Status, headers and body of the answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=READY_S)
        try:
            said = {"Authorization": f"Bearer {token}"} if token else {}
            connection.request(method, path, body, {**said, **(headers or {})})
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
        finally:
            connection.close()

    def __call__(self, method, path, body=None, **more):
        """Status and JSON of the answer."""
        data = None if body is None else json.dumps(body).encode()
        headers = {} if body is None else {"Content-Type": "application/json"}
        status, _, answer = self.raw(method, path, data, headers, **more)
        return status, json.loads(answer)

    def good(self, method, path, body=None):
        """The JSON of an answer that must be good."""
        status, answer = self(method, path, body)
        assert status < 300, answer
        return answer

    def stop(self):
        self.server.stop()
        self.service.is_over = True


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """One server for a module; its broker is made anew for each test by `admin`."""
    server = Admin(InMemory(), tmp_path_factory.mktemp("data"), timeout_seconds=0.5)
    yield server
    server.stop()


@pytest.fixture
def admin(served):
    """The interface of a strict broker that has nothing in it."""
    served.service.__init__()
    return served
