"""The same work with 10 and 100 times as much around it: messages stored, topics, connections, consumers.

A curve that falls says what a company will meet later. Names are `growth-WHAT@NUMBER`, once each: what is looked for is
a factor, not a percent.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from peers.model import Durability, Load, Peer, PeerError, say
from peers.records import Record
from peers.turns import Pace, Turn

CURVE_PEERS = ("lakemq", "kafka", "redis")
TOPICS = (10, 100, 1_000)
CONNECTIONS = (10, 100, 1_000)
CONSUMERS = (1, 10, 100)
STORED = (100_000, 1_000_000, 10_000_000)
SMALL = Load("produce", body_bytes=100, batch=500, connections=8, partitions=8)
SINGLES = Load("produce", connections=64)
FILL_SECONDS_MAX = 40.0  # of a slow peer's ten million: it is told how far it came


@contextmanager
def server(peer: Peer, parent: Path, pace: Pace) -> Iterator[Turn]:
    directory = Path(tempfile.mkdtemp(prefix=f"{peer.name}-", dir=parent))
    try:
        pace.fill_memory()
        running = peer.start(directory, Durability.CACHE, pace.server_cpus)
        try:
            yield Turn(peer, running, pace, 0)
        finally:
            running.stop()
    finally:
        pace.remove(directory)


def measure(peers: list[Peer], parent: Path, pace: Pace) -> Iterator[Record]:
    for peer in peers:
        say(f"growth: {peer.title}")
        for part in (stored, topics, clients):
            try:
                with server(peer, parent, pace) as here:
                    for record in part(here):
                        say(f"    {record.workload:30} {record.value:>14,.1f} {record.unit} {record.note}")
                        yield record
            except PeerError as error:
                say(f"    {part.__name__}: {error}")


def stored(here: Turn) -> Iterator[Record]:
    """Rates, memory and bytes on disk as messages of 100 bytes pile up."""
    is_curve = here.peer.name in CURVE_PEERS
    topic = here.new_topic(SMALL.partitions)
    empty, held, until = here.running.disk_bytes(), 0, time.monotonic() + FILL_SECONDS_MAX
    for number in STORED:
        each = (number - held) // (SMALL.connections * SMALL.batch)
        step = max(each // 20, 1)
        for done in range(0, each, step):
            count = min(step, each - done)
            figures = here.drive(SMALL, topic, 0, count=count)
            held += count * SMALL.connections * SMALL.batch
            if time.monotonic() > until:
                break
        if is_curve and held >= number:
            yield here.record(f"growth-stored-produce@{number}", figures.messages_s, "messages/s")
            reading = replace(SMALL, mode="consume")
            figures = here.drive(reading, topic, here.pace.seconds, end=held // SMALL.partitions)
            yield here.record(f"growth-stored-consume@{number}", figures.messages_s, "messages/s")
    note = "" if held >= STORED[-1] else f"only {held:,} in {FILL_SECONDS_MAX:g} s"
    yield here.record("memory-backlog", here.running.rss_bytes() / 2**20, "MB", driver="server", note=note)
    time.sleep(2)  # a server may write behind what it acknowledged
    each_bytes = (here.running.disk_bytes() - empty) / held
    yield here.record("disk-100b", each_bytes, "bytes/message", driver="server", note=note)


def topics(here: Turn) -> Iterator[Record]:
    """One message a request from 64 connections, over more and more topics."""
    names: list[str] = []
    for number in TOPICS:
        more = [f"many{n:04d}" for n in range(len(names), number)]
        began = time.monotonic()
        here.peer.create_topics(here.running, more, 1)
        names += more
        took = time.monotonic() - began
        yield here.record(f"growth-topics-create@{number}", took / len(more) * 1e3, "ms/topic", driver="server")
        if here.peer.name in CURVE_PEERS:
            figures = here.drive_over(SINGLES, names, here.pace.seconds)
            yield here.record(f"growth-topics@{number}", figures.messages_s, "messages/s", cpu_us=0)
    if here.peer.name not in CURVE_PEERS:
        here.drive_over(SINGLES, names, here.pace.seconds)
    yield here.record("memory-1000-topics", here.running.rss_bytes() / 2**20, "MB", driver="server")


def clients(here: Turn) -> Iterator[Record]:
    """The same rate of work from more connections, and one backlog for more consumers."""
    if here.peer.name not in CURVE_PEERS:
        return
    here.warm_up(Durability.CACHE)
    for number in CONNECTIONS:
        load = replace(SINGLES, connections=number, partitions=8)
        figures = here.drive(load, here.new_topic(8), here.pace.seconds)
        yield here.record(f"growth-connections@{number}", figures.messages_s, "messages/s", p99_us=figures.p99_us)
    backlog = Load("consume", batch=100, partitions=1)
    topic = here.new_topic(1)
    each = here.fill(backlog, topic)
    for number in CONSUMERS:
        figures = here.drive(replace(backlog, connections=number, groups=number), topic, here.pace.seconds, end=each)
        yield here.record(f"growth-consumers@{number}", figures.messages_s, "messages/s")
