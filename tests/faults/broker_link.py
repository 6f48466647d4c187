"""A connection to a broker for tests that need thousands of them, or thousands of requests under way on one.

Speaks the documented dialect with LakeMQ's own codec: whether that is right is for others to tell (tests/scripted).
"""

import asyncio
import socket
import time
from typing import Any

from lakemq.errors import LakeMQError
from lakemq.wire.commands import decode_response, encode_request
from lakemq.wire.dialect import Dialect, Form
from lakemq.wire.frame import FrameDecoder
from lakemq.wire.header import Header
from lakemq.wire.produce import ProduceMessage
from lakemq.wire.session import AddConnection, AddConsumer, AddProducer

FORM = Form(Dialect.DOCUMENTED, 2)
ASK_SECONDS = 30.0
ACK_FLUSH, ACK_RECEIVE, ACK_NO, ACK_WRITE = range(4)


class CutError(Exception):
    """The connection ended before the answer came: whether the request was served, nobody knows."""


class RefusedError(Exception):
    """The broker said no to a whole request."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status}: {text}")
        self.status = status


def frame_of(command: Any, request_id: int, qos_bits: int = ACK_RECEIVE) -> bytes:
    """A request as bytes."""
    parts = encode_request(command, form=FORM, request_id=request_id, send_time_ms=_now_ms(), qos_bits=qos_bits)
    return b"".join(parts)


def introduction(app: str) -> AddConnection:
    return AddConnection(app=app, token="token", version="test", ip="127.0.0.1", time_ms=_now_ms())


def _now_ms() -> int:
    return int(time.time() * 1000)


class Link(asyncio.Protocol):
    """One connection; `send` gives a future per request, so any number may be under way."""

    def __init__(self) -> None:
        self._decoder = FrameDecoder()
        self._pending: dict[int, asyncio.Future[tuple[Header, Any]]] = {}
        self._next_id = 0
        self._transport: asyncio.Transport | None = None
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._added: set[tuple[str, str]] = set()  # topics and apps that ADD_PRODUCER was sent for
        self.stray: list[Header] = []  # answers that nobody asked for

    @classmethod
    async def connect(cls, port: int, *, receive_bytes: int = 0, seconds: float = ASK_SECONDS) -> "Link":
        """A connection on which nothing was said; `receive_bytes` keeps the system from reading ahead for it."""
        loop = asyncio.get_running_loop()
        raw = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            if receive_bytes:
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
            raw.setblocking(False)
            await asyncio.wait_for(loop.sock_connect(raw, ("127.0.0.1", port)), seconds)
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _, link = await loop.create_connection(cls, sock=raw)
        except OSError as error:
            raw.close()
            raise CutError(f"no connection: {error}") from error
        except BaseException:
            raw.close()
            raise
        return link

    @classmethod
    async def open(cls, port: int, app: str, *topics: str, seconds: float = ASK_SECONDS) -> "Link":
        """A connection that has introduced itself, and will receive from those topics."""
        link = await cls.connect(port, seconds=seconds)
        await link.ask(introduction(app), seconds=seconds)
        if topics:
            await link.ask(AddConsumer(topics, app, 1), seconds=seconds)
        return link

    # --- asking ------------------------------------------------------------------------------------------------------

    def send(self, command: Any, qos_bits: int = ACK_RECEIVE) -> "asyncio.Future[tuple[Header, Any]]":
        """Send a request; the future has the answer's header and content, or a CutError."""
        future: asyncio.Future[tuple[Header, Any]] = asyncio.get_running_loop().create_future()
        if self._transport is None or self._transport.is_closing():
            future.set_exception(CutError("the connection had ended before"))
            return future
        self._add_producers(command)
        self._next_id += 1
        self._pending[self._next_id] = future
        self._transport.write(frame_of(command, self._next_id, qos_bits))
        return future

    def tell(self, command: Any, qos_bits: int = ACK_NO) -> None:
        """Send a request that is not answered."""
        if self._transport is not None and not self._transport.is_closing():
            self._add_producers(command)
            self._next_id += 1
            self._transport.write(frame_of(command, self._next_id, qos_bits))

    def _add_producers(self, command: Any) -> None:
        """Say in front of a first send that there will be sends; what comes of it the send itself tells."""
        if not isinstance(command, ProduceMessage):
            return
        new = {(entry.topic, command.app) for entry in command.topics} - self._added
        if new:
            self._added |= new
            added = self.send(AddProducer(tuple(topic for topic, _ in new), command.app, 1))
            added.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def ask(self, command: Any, qos_bits: int = ACK_RECEIVE, *, seconds: float = ASK_SECONDS) -> Any:
        """Send a request and wait for the answer; RefusedError, CutError, or TimeoutError which means a hang."""
        header, ack = await asyncio.wait_for(self.send(command, qos_bits), seconds)
        if header.status and ack is None:
            raise RefusedError(header.status, header.error)
        return ack

    @property
    def pending_count(self) -> int:
        return len(self._pending)

    @property
    def unsent_bytes(self) -> int:
        """What the broker has not taken yet, without the system's own buffers."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def write(self, data: bytes) -> None:
        """Send anything at all."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def stop_reading(self) -> None:
        assert self._transport is not None
        self._transport.pause_reading()

    def go_on_reading(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def drop(self) -> None:
        """End the connection without a word."""
        if self._transport is not None:
            self._transport.abort()

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    # --- from the loop -----------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        try:
            for frame in self._decoder.feed(data):
                header, ack = decode_response(bytes(frame), Dialect.DOCUMENTED)
                future = self._pending.pop(header.request_id, None)
                if future is None:
                    self.stray.append(header)
                elif not future.done():
                    future.set_result((header, ack))
        except LakeMQError as error:
            self._end(error)
            self.drop()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._end(CutError(f"the connection ended: {error}"))
        if not self.closed.done():
            self.closed.set_result(None)

    def _end(self, error: Exception) -> None:
        pending, self._pending = self._pending, {}
        for future in pending.values():
            if not future.done():
                future.set_exception(error)
                future.exception()  # looked at, if nobody else does
