"""A broker serves alike by its own poller and by the loop's protocol: what a machine without a compiler has."""

import contextlib
import socket
import struct
import threading
import time

import pytest

import lakemq
from lakemq import serve
from lakemq.broker.config import BrokerConfig
from lakemq.broker.limits import BrokerLimits
from lakemq.wire.header import Header

pytestmark = pytest.mark.live
forms = pytest.mark.parametrize("form", ["poller", "protocol"])


@contextlib.contextmanager
def serving(directory, form, monkeypatch, **limits):
    """A broker on a thread of its own; it must end by itself when it is told to."""
    if form == "protocol":
        monkeypatch.setattr(serve, "PolledServer", None)
    elif serve.PolledServer is None:
        pytest.skip("the poller was not built: no C compiler at install")
    config = BrokerConfig(creates_missing=True, limits=BrokerLimits(**limits))
    service = serve.Service(serve.ServeConfig(data=directory, port=0, broker=config))
    service.open()
    is_ready = threading.Event()
    thread = threading.Thread(target=service.run, args=(lambda _: is_ready.set(),), kwargs={"handles_signals": False})
    thread.start()
    try:
        assert is_ready.wait(10)
        yield service
    finally:
        service.stop_soon()
        thread.join(30)
    assert not thread.is_alive(), "it does not stop"
    assert service.failure is None


def wait_until(condition, seconds=10):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it does not happen"
        time.sleep(0.005)


@forms
def test_many_producers_at_once_lose_nothing(tmp_path, form, monkeypatch):
    with serving(tmp_path, form, monkeypatch) as service:

        def produce(number):
            with lakemq.connect(f"lakemq://127.0.0.1:{service.port}", app="shop") as client:
                for nth in range(40):
                    client.send("orders", b"%d-%d" % (number, nth) + b"x" * (nth * 5000))

        threads = [threading.Thread(target=produce, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        expected = {b"%d-%d" % (number, nth) for number in range(6) for nth in range(40)}
        got = []
        with (
            lakemq.connect(f"lakemq://127.0.0.1:{service.port}", app="shop") as client,
            client.consumer("orders") as consumer,
        ):
            while len(got) < len(expected):
                received = consumer.receive(100)
                assert received, f"{len(got)} of {len(expected)} came"
                got += [message.body.partition(b"x")[0] for message in received]
        assert sorted(got) == sorted(expected)
        wait_until(lambda: not service._ports)
        assert service.broker.metrics.bugs == 0


@forms
def test_broken_streams_and_resets_leave_nothing_behind(tmp_path, form, monkeypatch):
    with serving(tmp_path, form, monkeypatch) as service:
        for nth in range(31):  # the last one is answered, and so all before it have been accepted
            with socket.create_connection(("127.0.0.1", service.port)) as raw:
                if nth % 3 == 0:
                    raw.sendall(b"GET / HTTP/1.1\r\n\r\n")
                    with raw.makefile("rb") as answer:  # to its end
                        said = answer.read()
                    assert said.startswith(b"HTTP/1.1 400 ")
                    assert b"LakeMQ's port for clients" in said
                elif nth % 3 == 1:
                    raw.sendall(Header(7, 1).pack(100)[:11])
                else:
                    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        wait_until(lambda: not service._ports)
        assert service.look(lambda broker: len(broker.sessions.connections)).result(5) == 0
        assert service.broker.metrics.capped["bad_frames"] == 11


@forms
def test_an_unfinished_frame_is_waited_for_only_so_long(tmp_path, form, monkeypatch):
    with serving(tmp_path, form, monkeypatch, frame_stall_ms=100) as service:
        with socket.create_connection(("127.0.0.1", service.port)) as raw:
            raw.settimeout(10)
            raw.sendall(Header(7, 1).pack(100)[:11])
            with contextlib.suppress(ConnectionResetError):
                assert raw.recv(10) == b""
        assert service.broker.metrics.capped["frame_stall"] == 1


@forms
def test_whoever_is_held_back_may_leave_a_frame_unfinished(tmp_path, form, monkeypatch):
    with serving(tmp_path, form, monkeypatch, frame_stall_ms=1) as service:
        monkeypatch.setattr(serve, "_SWEEP_SECONDS", 0.05)

        def choke(is_choked):
            def change(broker):
                for connection in broker.sessions.connections.values():
                    connection.is_choked = is_choked

            service.look(change).result(5)

        with socket.create_connection(("127.0.0.1", service.port)) as raw:
            raw.settimeout(2.5)  # longer than the first sweep takes to come, which was asked for before the patch
            wait_until(lambda: service._ports)
            choke(True)
            raw.sendall(Header(7, 1).pack(100)[:11])
            with pytest.raises(TimeoutError):
                raw.recv(10)
            assert service.broker.metrics.capped["frame_stall"] == 0
            choke(False)
            with contextlib.suppress(ConnectionResetError):
                assert raw.recv(10) == b""
        assert service.broker.metrics.capped["frame_stall"] == 1
