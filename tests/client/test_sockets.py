"""The blocking client over real sockets: threads, the watcher, forks, large messages."""

import json
import os
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import lakemq
from client.fake_server import FakeServer
from lakemq.client.errors import BrokerUnreachableError, ClosedError
from lakemq.client.sockets import SocketConnector
from lakemq.errors import TopicNotFoundError
from lakemq.wire.own import ExtendLease
from lakemq.wire.produce import ProduceMessage
from lakemq.wire.session import AddConnection

TESTS = Path(__file__).parents[1]


def until(condition, within_s=10):
    """Whether it comes true in time."""
    end = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True


@pytest.fixture
def server():
    with FakeServer() as server:
        yield server


def test_a_message_goes_there_and_back(server):
    with lakemq.connect(server.url, app="shop") as mq:
        assert mq.send("orders", "x" * 1000).offset == 0
        with mq.consumer("orders", group="g", long_poll="100ms") as consumer:
            assert [one.text() for one in consumer.receive(10)] == ["x" * 1000]
    assert until(lambda: not server.cluster.connections)


def test_nobody_listens():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(BrokerUnreachableError, match="refused"):
        lakemq.connect(f"lakemq://127.0.0.1:{port}")


def test_a_large_message_leaves_in_pieces(server):
    body = os.urandom(4_000_000)
    with lakemq.connect(server.url, app="shop") as mq:
        futures = [mq.send_soon("orders", body, partition=0) for _ in range(5)]
        assert [future.result(10).offset for future in futures] == [0, 1, 2, 3, 4]
        with mq.consumer("orders", group="g", count=1, long_poll="100ms") as consumer:
            assert consumer.receive(1)[0].body == body


def test_many_threads_share_a_client(server):
    def send(number):
        return [mq.send("orders", f"{number}-{n}", key=str(number)) for n in range(50)]

    with lakemq.connect(server.url, app="shop") as mq, ThreadPoolExecutor(8) as pool:
        receipts = [receipt for part in pool.map(send, range(8)) for receipt in part]
    assert len({(one.partition, one.offset) for one in receipts}) == 400
    for number in range(8):
        mine = [body for part in server.cluster.stored() for body in part if body.startswith(b"%d-" % number)]
        assert mine == [b"%d-%d" % (number, n) for n in range(50)]


def test_a_consumer_and_senders_work_beside_each_other(server):
    with lakemq.connect(server.url, app="shop") as mq, mq.consumer("orders", group="g", long_poll="1s") as consumer:
        got = []

        def receive():
            for message in consumer:
                got.append(message.body)
                if len(got) == 300:
                    consumer.stop()

        thread = threading.Thread(target=receive)
        thread.start()
        for n in range(100):
            mq.send("orders", b"send %d" % n)
        for n in range(200):
            mq.send_soon("orders", b"soon %d" % n)
        thread.join(20)
        assert not thread.is_alive()
    assert len(set(got)) == 300


def test_the_watcher_sends_what_nobody_waits_for(server):
    arrived = threading.Event()
    with lakemq.connect(server.url, app="shop") as mq:
        before = {thread.name for thread in threading.enumerate()}
        assert "lakemq-watcher" not in before
        mq.send_soon("orders", b"x").add_done_callback(lambda _: arrived.set())
        assert arrived.wait(10)
        names = [thread.name for thread in threading.enumerate()]
        assert names.count("lakemq-watcher") == 1
        mq.send_soon("orders", b"y")
    assert "lakemq-watcher" not in [thread.name for thread in threading.enumerate()]


def test_a_callback_may_use_the_client(server):
    done = threading.Event()

    def again(future):
        mq.send("orders", b"second")
        done.set()

    with lakemq.connect(server.url, app="shop") as mq:
        mq.send_soon("orders", b"first").add_done_callback(again)
        assert done.wait(10)
    assert sorted(server.cluster.bodies()) == [b"first", b"second"]


def test_the_watcher_extends_a_lease(server):
    with lakemq.connect(server.url, app="shop", ack_linger_ms=20) as mq:
        mq.send("orders", b"x")
        with mq.consumer("orders", group="g", ack_timeout="200ms", long_poll="100ms") as consumer:
            (message,) = consumer.receive(1)
            assert until(lambda: server.cluster.count(ExtendLease) >= 4)
            message.ack()
        assert consumer.lost == 0
    assert list(server.cluster.acks.values()) == [1]


def test_a_server_that_goes_and_comes_back_is_found_again(server):
    with lakemq.connect(server.url, app="shop") as mq:
        mq.send("orders", b"a")
        with server.lock:
            for connection in list(server.cluster.connections):
                connection.close()
        mq.send("orders", b"b")
    assert sorted(server.cluster.bodies()) == [b"a", b"b"]


def test_acks_none_does_not_fill_the_memory(server):
    with lakemq.connect(server.url, app="shop", acks="none", compression="none") as mq:
        for _ in range(200):
            mq.send("orders", bytes(100_000), partition=0)
        mq.send("orders", b"last", acks="flush", partition=0)
    assert len(server.cluster.stored()[0]) == 201


FORK = """
import json, os, sys
import lakemq
from lakemq.client.errors import ForkedError

# The buffered message must have no outcome yet when the child looks at it: it lingers longer than a slow fork takes.
mq = lakemq.connect(sys.argv[1], app="shop", linger_ms=5000)
mq.send("orders", b"parent before")
pending = mq.send_soon("orders", b"parent buffered")
consumer = mq.consumer("orders", group="g", long_poll="100ms")
reading, writing = os.pipe()
child = os.fork()
if not child:
    told = {}
    try:
        told["sent"] = mq.send("orders", b"child").offset is not None
        soon = mq.send_soon("orders", b"child soon")
        mq.flush()
        told["soon"] = soon.result(10).offset is not None
        for name, act in {"future": pending.result, "consumer": lambda: consumer.receive(1)}.items():
            try:
                act()
                told[name] = "no error"
            except ForkedError:
                told[name] = "ForkedError"
        mq.close()
    except BaseException as error:
        told["error"] = repr(error)
    os.write(writing, json.dumps(told).encode())
    os._exit(0)
os.waitpid(child, 0)
told = json.loads(os.read(reading, 10000))
mq.flush()
told["parent future"] = pending.result(10).offset is not None
told["parent sent"] = mq.send("orders", b"parent after").offset is not None
consumer.close()
mq.close()
print(json.dumps(told))
"""


def test_a_forked_child_connects_anew_and_leaves_the_rest_to_its_parent(server):
    done = subprocess.run(
        [sys.executable, "-c", FORK, server.url], capture_output=True, text=True, timeout=60, check=False, cwd=TESTS
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "sent": True,
        "soon": True,
        "future": "ForkedError",
        "consumer": "ForkedError",
        "parent future": True,
        "parent sent": True,
    }
    bodies = server.cluster.bodies()
    assert sorted(bodies) == [b"child", b"child soon", b"parent after", b"parent before", b"parent buffered"]


def test_importing_lakemq_loads_no_client():
    code = "import sys, lakemq; print([name for name in sys.modules if name.startswith(('lakemq.client', 'asyncio'))])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
    code = "import sys, lakemq; lakemq.connect; print('asyncio' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "False"


def test_handlers_run_until_stopped(server):
    seen = []
    with lakemq.connect(server.url, app="shop") as mq:

        @mq.handler("orders", group="h", concurrency=4)
        def handle(message):
            seen.append(message.body)
            if len(seen) >= 20:
                mq.stop()
            if message.body == b"7":
                raise ValueError("no")

        for n in range(20):
            mq.send("orders", b"%d" % n, partition=n % 4)
        mq.run()
    assert sorted(set(seen)) == sorted(b"%d" % n for n in range(20))
    acked = {key[2]: index for key, index in server.cluster.acks.items()}
    assert acked == {0: 5, 1: 5, 2: 5, 3: 5}
    assert server.cluster.retried == [("orders", "shop.h", 3, 1)]
    assert server.cluster.count(ProduceMessage) == 20


def test_a_handler_of_a_topic_that_is_not_there_ends_the_run(server):
    with lakemq.connect(server.url, app="shop") as mq:
        mq.handler("nowhere")(lambda message: None)
        with pytest.raises(TopicNotFoundError):
            mq.run()


def test_a_thread_that_waits_is_told_when_the_client_is_closed(server):
    mq = lakemq.connect(server.url, app="shop")
    mq.send("orders", b"warm")
    with server.lock:
        server.cluster.swallow(ProduceMessage, times=100)
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(mq.send, "orders", b"x", timeout="60s") for _ in range(2)]
        assert until(lambda: server.cluster.count(ProduceMessage) == 3)
        mq.close()
        for one in waiting:
            with pytest.raises(ClosedError):
                one.result(10)


def test_a_connection_that_was_closed_while_idle_costs_no_message(server):
    with lakemq.connect(server.url, app="shop", retry_unknown=False) as mq:
        mq.send("orders", b"a")
        with server.lock:
            for connection in list(server.cluster.connections):
                connection.close()
        assert until(lambda: not server._peers)
        mq._pump._last_turn_ms -= 2000  # as if it had been idle that long
        mq.send("orders", b"b")
    assert sorted(server.cluster.bodies()) == [b"a", b"b"]


def test_where_to_go_comes_from_the_environment(server, monkeypatch):
    monkeypatch.setenv("LAKEMQ_URL", server.url)
    monkeypatch.setenv("LAKEMQ_APP", "env-app")
    monkeypatch.setenv("LAKEMQ_TOKEN", "env-token")
    server.cluster.token = "env-token"
    with lakemq.connect() as mq:
        mq.send("orders", b"x")
    (hello,) = server.cluster.commands(AddConnection)
    assert (hello.app, hello.token) == ("env-app", "env-token")


class Looks:
    """An epoll that has news at the looks that are named, counted from 0."""

    def __init__(self, news: set[int]) -> None:
        self.asked: list[float | None] = []
        self._news = news

    def poll(self, timeout: float | None) -> list[tuple[int, int]]:
        self.asked.append(timeout)
        return [(-1, 1)] if len(self.asked) - 1 in self._news else []


def spinning(
    monkeypatch, news: set[int], *, cores: int = 2, spin_us: int = 60_000_000
) -> tuple[SocketConnector, Looks]:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(cores)))
    connector, looks = SocketConnector(1 << 20, spin_us), Looks(news)
    connector.close()
    connector._poll = looks
    return connector, looks


def test_after_a_fast_answer_the_next_is_looked_for_before_sleeping(monkeypatch):
    connector, looks = spinning(monkeypatch, {0, 3})
    connector.wait(5000)
    connector.wait(5000)
    assert looks.asked == [5.0, 0, 0, 0]


def test_after_a_slow_answer_it_sleeps(monkeypatch):
    connector, looks = spinning(monkeypatch, {0, 1}, spin_us=1)
    monkeypatch.setattr("lakemq.client.sockets.perf_counter", iter([0.0, 1.0, 2.0, 3.0]).__next__)
    connector.wait(5000)
    connector.wait(None)
    assert looks.asked == [5.0, None]


@pytest.mark.parametrize("off", [{"cores": 1}, {"spin_us": 0}])
def test_it_sleeps_at_once_with_a_single_core_or_when_told(monkeypatch, off):
    connector, looks = spinning(monkeypatch, {0, 1}, **off)
    connector.wait(5000)
    connector.wait(5000)
    assert looks.asked == [5.0, 5.0]


def test_it_does_not_look_for_longer_than_it_may_wait(monkeypatch):
    connector, looks = spinning(monkeypatch, {0})
    connector.wait(5000)
    connector.wait(0)
    assert looks.asked == [5.0, 0.0]
