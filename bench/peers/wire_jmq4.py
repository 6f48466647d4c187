"""Requests of LakeMQ's own protocol, by its own encoder."""

from __future__ import annotations

import time

from jmq4_frames import APP, fetch_partition, produce, request
from lakemq import envelope
from lakemq.compression import Compression
from lakemq.message import BatchItem, BatchMessage, Message, Qos
from lakemq.wire.consume import FetchTopicMessage, TopicFetch
from lakemq.wire.session import AddConnection, AddConsumer, AddProducer
from peers.bodies import body
from peers.model import Durability, Frames, Load

QOS = {Durability.CACHE: Qos.WRITE, Durability.FSYNC: Qos.FLUSH}
COMPRESSION = {"none": Compression.NONE, "lz4": Compression.LZ4}
LONG_POLL_MS = 500
ACK_TIMEOUT_MS = 60_000
LENT_MAX = 100  # messages that one FETCH_TOPIC_MESSAGE asks for
ENVELOPE_BYTES = 100  # what a stored message has besides its body, near enough to turn bytes into a count


def frames(load: Load, topic: str) -> Frames:
    match load.mode:
        case "produce" | "latency":
            return Frames("jmq4", producer_setup([topic]), tuple(producer_requests(load, topic)))
        case "consume" if not load.rate:
            return Frames("jmq4", consumer_setup(load, topic), tuple(readers(load, topic)))
        case "consume" | "consume-acks":
            return Frames("jmq4", consumer_setup(load, topic), tuple(borrowers(load, topic)))
    raise ValueError(load.mode)


def producer_setup(topics: list[str]) -> tuple[bytes, ...]:
    return (request(AddConnection(app=APP)), request(AddProducer(tuple(topics), APP, 1)))


def consumer_setup(load: Load, topic: str) -> tuple[bytes, ...]:
    """With more groups than one, each connection is one of its own: #CONN# becomes its number."""
    app = f"{APP}.g#CONN#" if load.groups > 1 else group(0)
    return (request(AddConnection(app=APP)), request(AddConsumer((topic,), app, 1)))


def group(number: int) -> str:
    return f"{APP}.g{number:06d}"


def producer_requests(load: Load, topic: str) -> list[bytes]:
    """One for each partition: a message, or one carrier of a batch, as LakeMQ's client sends them."""
    qos = QOS[load.durability]
    return [request(produce([stored(load, partition)], qos, topic)) for partition in range(load.partitions)]


def stored(load: Load, partition: int) -> bytes:
    now_ms = time.time_ns() // 1_000_000
    if load.batch == 1:
        return envelope.pack(Message(body=body(0, load.body_bytes), app=APP, partition=partition, send_time_ms=now_ms))
    items = tuple(BatchItem(body(n, load.body_bytes)) for n in range(load.batch))
    kind = COMPRESSION[load.compression]
    return envelope.pack(BatchMessage(items=items, app=APP, partition=partition, send_time_ms=now_ms, compression=kind))


def readers(load: Load, topic: str) -> list[bytes]:
    """By index: nothing is lent, nothing acked."""
    count = min(max(load.fetch_bytes // (load.body_bytes + ENVELOPE_BYTES), 1), 32767)
    return [
        request(fetch_partition(topic, number % load.partitions, count, 0, group(number if load.groups > 1 else 0)))
        for number in range(max(load.connections, load.partitions))
    ]


def borrowers(load: Load, topic: str) -> list[bytes]:
    """Lent and acked; a request that finds nothing waits, which one by index cannot."""
    apps = [group(number) for number in range(load.groups)]
    return [
        request(FetchTopicMessage((TopicFetch(topic, LENT_MAX),), app, ACK_TIMEOUT_MS, LONG_POLL_MS)) for app in apps
    ]
