"""AMQP 0-9-1 by hand, as far as a load needs it. A partition is a queue of its own."""

from __future__ import annotations

import socket
import struct

from peers.bodies import body
from peers.model import Durability, Frames, Load, PeerError

METHOD, HEADER, BODY, END = 1, 2, 3, b"\xce"
FRAME_BYTES = 131_072  # the most that both sides put into one frame, RabbitMQ's default
PREFETCH = 1_000  # messages that a consumer may have without an ack; load_amqp.c acks every 100
PERSISTENT = 2
BASIC = 60
# A classic queue of version 1, the default, waits for fsync as well; version 2 leaves that to the operating system.
KIND: dict[Durability, dict[str, str | int]] = {
    Durability.CACHE: {"x-queue-type": "classic", "x-queue-version": 2},
    Durability.FSYNC: {"x-queue-type": "quorum"},
}


def short_text(text: str) -> bytes:
    return bytes([len(text.encode())]) + text.encode()


def long_text(text: bytes) -> bytes:
    return struct.pack(">I", len(text)) + text


def table(entries: dict[str, str | int]) -> bytes:
    return long_text(b"".join(short_text(name) + field(value) for name, value in entries.items()))


def field(value: str | int) -> bytes:
    return b"I" + struct.pack(">i", value) if isinstance(value, int) else b"S" + long_text(value.encode())


def frame(kind: int, channel: int, content: bytes) -> bytes:
    return struct.pack(">BHI", kind, channel, len(content)) + content + END


def method(channel: int, group: int, number: int, arguments: bytes) -> bytes:
    return frame(METHOD, channel, struct.pack(">HH", group, number) + arguments)


def introduction() -> tuple[bytes, ...]:
    """Until there is a channel; each is answered by one method."""
    start_ok = table({"product": "load"}) + short_text("PLAIN") + long_text(b"\0guest\0guest") + short_text("en_US")
    tune_ok = struct.pack(">HIH", 100, FRAME_BYTES, 0)  # no heartbeats
    return (
        b"AMQP\0\0\x09\x01",
        method(0, 10, 11, start_ok),
        method(0, 10, 31, tune_ok) + method(0, 10, 40, short_text("/") + b"\0\0"),
        method(1, 20, 10, b"\0"),
    )


def queue(topic: str, partition: int) -> str:
    return f"{topic}-{partition}"


def group_queue(topic: str) -> str:
    return f"{topic}-g#CONN#"  # load.c writes the connection's number


def declare_queue(name: str, durability: Durability) -> bytes:
    durable = 0b10
    arguments = table(KIND[durability])
    return method(1, 50, 10, b"\0\0" + short_text(name) + bytes([durable]) + arguments)


def declare_exchange(name: str) -> bytes:
    durable = 0b10
    return method(1, 40, 10, b"\0\0" + short_text(name) + short_text("fanout") + bytes([durable]) + table({}))


def bind(name: str, exchange: str) -> bytes:
    return method(1, 50, 20, b"\0\0" + short_text(name) + short_text(exchange) + short_text("") + b"\0" + table({}))


def publish(exchange: str, key: str, content: bytes) -> bytes:
    properties = struct.pack(">HHQHB", BASIC, 0, len(content), 1 << 12, PERSISTENT)
    room = FRAME_BYTES - 8
    pieces = [content[at : at + room] for at in range(0, len(content), room)]
    return (
        method(1, BASIC, 40, b"\0\0" + short_text(exchange) + short_text(key) + b"\0")
        + frame(HEADER, 1, properties)
        + b"".join(frame(BODY, 1, piece) for piece in pieces)
    )


def frames(load: Load, topic: str) -> Frames:
    if load.mode == "consume":
        return consumer(load, topic)
    confirm_select = method(1, 85, 10, b"\0")
    requests = tuple(producer(load, topic, number) for number in range(load.partitions))
    return Frames("amqp", (*introduction(), confirm_select), requests)


def producer(load: Load, topic: str, partition: int) -> bytes:
    """Straight to the partition's queue; for several groups to an exchange that copies to a queue of each."""
    exchange, key = (topic, "") if load.groups > 1 else ("", queue(topic, partition))
    return b"".join(publish(exchange, key, body(n, load.body_bytes)) for n in range(load.batch))


def consumer(load: Load, topic: str) -> Frames:
    if load.groups > 1 and not load.rate:
        raise PeerError("RabbitMQ: what is in a queue already is for one group only")
    setup = [*introduction(), method(1, BASIC, 10, struct.pack(">IHB", 0, PREFETCH, 0))]
    names = [queue(topic, number) for number in range(load.partitions)]
    if load.groups > 1:
        names = [group_queue(topic)]
        setup += [declare_queue(names[0], load.durability), bind(names[0], topic)]
    requests = [
        method(1, BASIC, 20, b"\0\0" + short_text(name) + short_text("c") + b"\0" + table({})) for name in names
    ]
    return Frames("amqp", tuple(setup), tuple(requests))


def ask(port: int, requests: list[bytes], seconds: float = 30) -> None:
    """Each is answered by one method; PeerError if that closes the channel, OSError if there is nobody."""
    with socket.create_connection(("127.0.0.1", port), timeout=seconds) as there:
        stream = there.makefile("rb")
        for request in [*introduction(), *requests]:
            there.sendall(request)
            head = stream.read(7)
            if len(head) < 7:
                raise ConnectionError("closed before its answer was whole")
            content = stream.read(struct.unpack(">BHI", head)[2] + 1)
            if content[:4] in (b"\0\x0a\0\x32", b"\0\x14\0\x28"):  # close, of the connection or the channel
                raise PeerError(f"RabbitMQ: {content[7 : 7 + content[6]].decode(errors='replace')}")
