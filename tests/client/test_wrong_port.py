"""A client that has the two ports mixed up: it is told what it has reached, by both clients, and not put off."""

import asyncio
import socket
import threading

import pytest

import lakemq
from lakemq import BrokerUnreachableError, ConnectionLostError, WrongPortError

HTTP = b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\n\r\nInvalid HTTP request received."


@pytest.fixture
def answer():
    return HTTP


@pytest.fixture
def port(answer):
    """Somebody who answers whatever comes with that, and hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve():
            while True:
                try:
                    peer, _ = listener.accept()
                except OSError:
                    return
                with peer:
                    peer.recv(4096)
                    peer.sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


def connect(port, kind, **options):
    url = f"lakemq://127.0.0.1:{port}"
    if kind == "blocking":
        lakemq.connect(url, app="shop", **options)
        return

    async def work():
        async with lakemq.aio.connect(url, app="shop", **options):
            pass

    asyncio.run(work())


@pytest.mark.parametrize("kind", ["blocking", "asyncio"])
@pytest.mark.parametrize("options", [{}, {"wait": "1h"}, {"outbox": True}], ids=["plain", "wait", "outbox"])
def test_a_web_server_is_told_as_one_and_at_once(port, kind, options, tmp_path):
    options = {"outbox": tmp_path} if "outbox" in options else options
    with pytest.raises(
        WrongPortError, match=f"127.0.0.1:{port} speaks HTTP: this is LakeMQ's port for operators"
    ) as it:
        connect(port, kind, **options)
    assert isinstance(it.value, BrokerUnreachableError)
    assert not it.value.retriable
    assert "50088" in it.value.fix


@pytest.mark.parametrize("kind", ["blocking", "asyncio"])
@pytest.mark.parametrize("answer", [b"SSH-2.0-OpenSSH_9.6\r\n"])
def test_others_are_only_no_brokers(port, kind):
    with pytest.raises(ConnectionLostError):
        connect(port, kind)
