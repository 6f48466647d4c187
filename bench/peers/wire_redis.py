"""Requests to Redis: XADD to a stream, XREAD from one. A partition is a stream of its own."""

from __future__ import annotations

from peers.bodies import body
from peers.model import Frames, Load

BLOCK_MS = 500
FIRST_ID = f"{0:020d}-{0:020d}".encode()  # of a fixed width: load_redis.c writes the next one over it


def command(*words: bytes) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)


def stream(topic: str, partition: int) -> bytes:
    return f"{topic}:{partition}".encode()


def frames(load: Load, topic: str) -> Frames:
    """A connection needs no introduction, so there is no setup."""
    make = read if load.mode == "consume" else add
    return Frames("redis", (), tuple(make(load, stream(topic, number)) for number in range(load.partitions)))


def add(load: Load, key: bytes) -> bytes:
    """All messages of a batch in one pipeline: Redis has no command for several entries."""
    return b"".join(command(b"XADD", key, b"*", b"b", body(n, load.body_bytes)) for n in range(load.batch))


def read(load: Load, key: bytes) -> bytes:
    count = max(load.fetch_bytes // load.body_bytes, 1)
    return command(b"XREAD", b"COUNT", b"%d" % count, b"BLOCK", b"%d" % BLOCK_MS, b"STREAMS", key, FIRST_ID)
