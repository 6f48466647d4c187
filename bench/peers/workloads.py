"""The work, in one place: the same for every peer.

Each entry has a name that results are kept under, and the load. What is stored for a consumer is stored by the same
load program before the clock runs.
"""

from __future__ import annotations

from dataclasses import dataclass

from peers.model import Durability, Load

BACKLOG_BATCHES = 500  # requests of each connection that fill a backlog
PARTITIONS = 8


@dataclass(frozen=True)
class Workload:
    """One line of the table. `unit` says what of the figures is compared; for latencies less is better."""

    name: str
    title: str
    load: Load
    unit: str = "messages/s"
    is_quick: bool = False  # part of `make bench-quick`
    by_tool: bool = False  # also run with the peer's own client


def produce(name: str, title: str, is_quick: bool = False, by_tool: bool = False, **load: object) -> Workload:
    return Workload(
        name,
        title,
        Load("produce", partitions=PARTITIONS, **load),  # type: ignore[arg-type]  # the fields of Load, by name
        is_quick=is_quick,
        by_tool=by_tool,
    )


def latency(rate: int, is_quick: bool = False, groups: int = 1, batch: int = 1) -> Workload:
    to = f" to {groups} groups" if groups > 1 else ""
    name = f"fan-out-{groups}" if groups > 1 else f"latency-{rate}"
    title = f"send to receipt at {rate:,} messages/s{to}, 1 KB, p99"
    if batch > 1:
        name, title = f"{name}-batched", f"{title}, {batch} in a request"
    return Workload(name, title, Load("latency", rate=rate, groups=groups, batch=batch), "us", is_quick)


# Batches hold about 100 KB, or 100 messages if that is less: what clients that batch send.
WORKLOADS: tuple[Workload, ...] = (
    produce("unbatched", "produce 1 KB one by one, 64 connections", True, True, connections=64),
    produce("pipelined", "produce 1 KB one by one, 8 connections with 64 outstanding", connections=8, outstanding=64),
    produce("batched", "produce 1 KB in batches of 100, 8 connections", True, True, connections=8, batch=100),
    produce("batched-100b", "produce 100 B in batches of 500", connections=8, batch=500, body_bytes=100),
    produce("batched-10k", "produce 10 KB in batches of 10", connections=8, batch=10, body_bytes=10240),
    produce("batched-lz4", "produce 1 KB in batches of 100, lz4", connections=8, batch=100, compression="lz4"),
    produce("request-reply", "produce 1 KB, 1 connection, one at a time", connections=1),
    Workload(
        "backlog",
        "consume a backlog of 1 KB stored in batches, 8 partitions",
        Load("consume", connections=PARTITIONS, partitions=PARTITIONS, batch=100),
        is_quick=True,
        by_tool=True,
    ),
    Workload(
        "backlog-singles",
        "consume a backlog of 1 KB stored one by one, 8 partitions",
        Load("consume", connections=PARTITIONS, partitions=PARTITIONS),
    ),
    latency(1_000),
    latency(5_000, is_quick=True),
    latency(5_000, is_quick=True, batch=5),  # what came within a millisecond, as clients that batch do
    latency(1_000, groups=8),
    produce(
        "unbatched-fsync",
        "the same, on disk before the answer, 64 connections",
        True,
        connections=64,
        durability=Durability.FSYNC,
    ),
    produce(
        "batched-fsync",
        "batches of 100, on disk before the answer",
        connections=8,
        batch=100,
        durability=Durability.FSYNC,
    ),
    produce(
        "request-reply-fsync", "one at a time, on disk before the answer", connections=1, durability=Durability.FSYNC
    ),
)


@dataclass(frozen=True)
class Aim:
    """LakeMQ over a peer, as the median of the ratios of one run: at least, or for costs at most, `bound`."""

    workload: str
    peer: str
    bound: float
    is_cost: bool = False

    @property
    def text(self) -> str:
        return f"{'≤' if self.is_cost else '≥'} {self.bound:.3g} × {self.peer}"


AIMS: tuple[Aim, ...] = (
    Aim("unbatched", "rocketmq", 2),
    Aim("batched", "kafka", 1),
    Aim("backlog", "kafka", 1),
    Aim("backlog", "rocketmq", 2),
    # Kafka takes the requests of a connection one by one: 5 000 of one message are more than it was made for.
    Aim("latency-5000-batched", "kafka", 1, is_cost=True),
    Aim("latency-5000", "rocketmq", 1, is_cost=True),
    Aim("latency-5000-batched", "rocketmq", 1, is_cost=True),
    Aim("unbatched-fsync", "rocketmq", 2),
    Aim("unbatched-fsync", "kafka", 2),
    Aim("memory-idle", "kafka", 1 / 3, is_cost=True),
    Aim("memory-idle", "rocketmq", 1 / 3, is_cost=True),
)
