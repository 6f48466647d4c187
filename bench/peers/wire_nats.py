"""Requests to NATS JetStream. A partition is a stream of its own, with one subject."""

from __future__ import annotations

import json
import secrets
import socket

from peers.bodies import body
from peers.model import Frames, Load, PeerError

ACKS = b"_p.#CONN#"  # where a producer is answered
HELLO = {"verbose": False, "pedantic": False, "headers": True, "no_responders": True, "lang": "c", "version": "1"}
HEARTBEAT_NS = 5_000_000_000


def stream(topic: str, partition: int) -> str:
    return f"{topic}-{partition}"


def subject(topic: str, partition: int) -> str:
    return f"{topic}.{partition}"


def publish(to: bytes, reply: bytes, content: bytes) -> bytes:
    return b"PUB %b %b %d\r\n%b\r\n" % (to, reply, len(content), content)


def hello(*inboxes: bytes) -> bytes:
    subscribe = b"".join(b"SUB %b %d\r\n" % (inbox, number) for number, inbox in enumerate(inboxes))
    return b"CONNECT %b\r\n%bPING\r\n" % (json.dumps(HELLO).encode(), subscribe)


def frames(load: Load, topic: str) -> Frames:
    """#CONN# becomes the connection's number: each has subjects of its own."""
    numbers = range(load.partitions)
    if load.mode != "consume":
        return Frames("nats", (hello(ACKS),), tuple(producer(load, topic, number) for number in numbers))
    # Of this run alone: consumers of the last one live on for seconds, and would fill the next one's.
    run = f"{secrets.randbits(32):08x}"
    inbox, deliver = f"_r.{run}.#CONN#", f"_d.{run}.#CONN#"
    requests = tuple(consumer(topic, number, inbox, deliver) for number in numbers)
    return Frames("nats", (hello(inbox.encode(), deliver.encode()),), requests)


def producer(load: Load, topic: str, partition: int) -> bytes:
    """All messages of a batch at once: JetStream answers each."""
    to = subject(topic, partition).encode()
    return b"".join(publish(to, ACKS, body(n, load.body_bytes)) for n in range(load.batch))


def consumer(topic: str, partition: int, inbox: str, deliver: str) -> bytes:
    """An ordered push consumer as NATS's own clients make it: no acks, flow control, from the first message."""
    name = stream(topic, partition)
    config = {
        "deliver_subject": deliver,
        "deliver_policy": "all",
        "ack_policy": "none",
        "max_deliver": 1,
        "flow_control": True,
        "idle_heartbeat": HEARTBEAT_NS,
        "num_replicas": 1,
        "mem_storage": True,
    }
    request = json.dumps({"stream_name": name, "config": config}).encode()
    return publish(f"$JS.API.CONSUMER.CREATE.{name}".encode(), inbox.encode(), request)


def create_stream(topic: str, partition: int) -> tuple[bytes, bytes]:
    """Subject and request."""
    name = stream(topic, partition)
    config = {
        "name": name,
        "subjects": [subject(topic, partition)],
        "retention": "limits",
        "storage": "file",
        "discard": "old",
        "num_replicas": 1,
        "max_consumers": -1,
        "max_msgs": -1,
        "max_bytes": -1,
        "max_age": 0,
        "max_msg_size": -1,
    }
    return f"$JS.API.STREAM.CREATE.{name}".encode(), json.dumps(config).encode()


def ask(port: int, requests: list[tuple[bytes, bytes]], seconds: float = 10) -> list[dict[str, object]]:
    """Answers to requests, one after the other; OSError if there is nobody, PeerError for what is no answer."""
    answers = []
    with socket.create_connection(("127.0.0.1", port), timeout=seconds) as there:
        lines = there.makefile("rb")
        there.sendall(hello(b"_r.ask"))
        while (line := lines.readline()) != b"PONG\r\n":
            if not line or line.startswith(b"-ERR"):
                raise PeerError(f"NATS: {line!r}")
        for to, content in requests:
            there.sendall(publish(to, b"_r.ask", content))
            line = lines.readline()
            while line in (b"PING\r\n", b"PONG\r\n"):
                there.sendall(b"PONG\r\n")
                line = lines.readline()
            if not line.startswith(b"MSG "):
                raise PeerError(f"NATS: {line!r}")
            answers.append(json.loads(lines.read(int(line.split()[-1]) + 2)))
    return answers
