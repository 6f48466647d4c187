"""Kafka's requests as bytes: the newest versions without tagged fields, which 4.x still takes.

One record batch a request, as the Java client makes it; nothing of a session, so no setup.
"""

from __future__ import annotations

import struct
import time
from dataclasses import dataclass

import lz4.frame

from peers.bodies import body
from peers.model import Frames, Load, PeerError

PRODUCE, FETCH, CREATE_TOPICS = 0, 1, 19  # api keys
PRODUCE_VERSION, FETCH_VERSION, CREATE_TOPICS_VERSION = 7, 4, 4
LEADER_ALONE = 1  # acks: the leader has appended it; it is the only replica here
TIMEOUT_MS = 30_000
FETCH_WAIT_MS = 500
CLIENT = "bench"
MAGIC = 2  # of a record batch
LZ4 = 3  # its compression, in the batch's attributes
NOBODY = -1  # a producer that is not idempotent has neither id, epoch nor sequence


def frames(load: Load, topic: str) -> Frames:
    partitions = range(load.partitions)
    if load.mode == "consume":
        return Frames("kafka", (), tuple(fetch(topic, k, 0, load.fetch_bytes) for k in partitions))
    records = record_batch([body(n, load.body_bytes) for n in range(load.batch)], load.compression)
    return Frames("kafka", (), tuple(produce(topic, k, records) for k in partitions))


# --- requests ---------------------------------------------------------------------------------------------------------


def produce(topic: str, partition: int, records: bytes) -> bytes:
    head = struct.pack(">hhi", NOBODY, LEADER_ALONE, TIMEOUT_MS)  # a null transactional id comes first
    return request(
        PRODUCE, PRODUCE_VERSION, head + one(string(topic) + one(struct.pack(">ii", partition, len(records)) + records))
    )


def fetch(topic: str, partition: int, offset: int, bytes_max: int, wait_ms: int = FETCH_WAIT_MS) -> bytes:
    """`load_kafka.c` writes the next offset 12 bytes before the end."""
    head = struct.pack(">iiiib", -1, wait_ms, 1, bytes_max, 0)  # a client's, of at least a byte, uncommitted too
    return request(
        FETCH, FETCH_VERSION, head + one(string(topic) + one(struct.pack(">iqi", partition, offset, bytes_max)))
    )


def create_topics(names: list[str], partitions: int) -> bytes:
    """One replica each, all else as the server has it."""
    topics = b"".join(string(name) + struct.pack(">ihii", partitions, 1, 0, 0) for name in names)
    tail = struct.pack(">ib", TIMEOUT_MS, 0)
    return request(CREATE_TOPICS, CREATE_TOPICS_VERSION, struct.pack(">i", len(names)) + topics + tail)


def request(key: int, version: int, content: bytes) -> bytes:
    head = struct.pack(">hhi", key, version, 0) + string(CLIENT)
    return struct.pack(">i", len(head) + len(content)) + head + content


def string(text: str) -> bytes:
    return struct.pack(">h", len(text.encode())) + text.encode()


def one(element: bytes) -> bytes:
    """An array of it alone."""
    return struct.pack(">i", 1) + element


# --- replies, without their length ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fetched:
    error: int
    high_watermark: int


def created(reply: bytes) -> dict[str, int]:
    """The error code of each topic."""
    errors: dict[str, int] = {}
    (count,) = struct.unpack_from(">i", reply, 8)  # after the correlation id and the throttle time
    at = 12
    for _ in range(count):
        (length,) = struct.unpack_from(">h", reply, at)
        name = reply[at + 2 : at + 2 + length].decode()
        at += 2 + length
        error, message_length = struct.unpack_from(">hh", reply, at)
        errors[name] = error
        at += 4 + max(0, message_length)  # null is -1
    return errors


def fetched(reply: bytes) -> Fetched:
    """Of one partition."""
    (length,) = struct.unpack_from(">h", reply, 12)  # of the topic, after correlation id, throttle time, one topic
    _, error, high_watermark = struct.unpack_from(">ihq", reply, 14 + length + 4)  # after one partition
    return Fetched(error, high_watermark)


# --- record batches ---------------------------------------------------------------------------------------------------


def record_batch(bodies: list[bytes], compression: str) -> bytes:
    """Without keys and headers, all of one time; the server gives them their offsets."""
    records = b"".join(record(n, value) for n, value in enumerate(bodies))
    match compression:
        case "none":
            attributes = 0
        case "lz4":  # blocks that do not look back, as the Java client's reader wants them
            attributes = LZ4
            size = lz4.frame.BLOCKSIZE_MAX64KB
            records = lz4.frame.compress(records, block_size=size, block_linked=False, store_size=False)
        case _:
            raise PeerError(f"no compression {compression} in Kafka's frames")
    now_ms = time.time_ns() // 1_000_000
    count = len(bodies)
    summed = struct.pack(">hiqqqhii", attributes, count - 1, now_ms, now_ms, NOBODY, NOBODY, NOBODY, count) + records
    counted = struct.pack(">ibI", NOBODY, MAGIC, crc32c(summed)) + summed
    return struct.pack(">qi", 0, len(counted)) + counted


def record(n: int, value: bytes) -> bytes:
    # attributes, milliseconds after the batch's, offset after the batch's, no key; no headers at the end
    inner = b"\0" + varint(0) + varint(n) + varint(-1) + varint(len(value)) + value + varint(0)
    return varint(len(inner)) + inner


def varint(value: int) -> bytes:
    """Zigzag, seven bits a byte, the lowest first."""
    rest = (value << 1) ^ (value >> 63)
    out = bytearray()
    while rest > 127:
        out.append(rest & 127 | 128)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def _crc32c_table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


CRC32C = _crc32c_table()


def crc32c(data: bytes) -> int:
    """Castagnoli's: slow here, but made once for all requests of a load."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ CRC32C[(crc ^ byte) & 255]
    return crc ^ 0xFFFFFFFF
