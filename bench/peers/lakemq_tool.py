"""LakeMQ's own Python client under the same load, in a process of its own.

    python -m peers.lakemq_tool '{"port": ..., "topic": ..., "seconds": ..., "load": {...}}' -> figures as JSON

Unbatched: as many `send`s wait at once as the load has requests outstanding on all its connections; they share one
client, as they would in a program. Batched: `send_soon`, which makes batches as it likes. Latency: at the times of the
rate; the body says when it was due.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, replace
from pathlib import Path

import lakemq
from lakemq.client.aio import AsyncClient
from lakemq.client.config import Acks, Compressions
from peers.bodies import body
from peers.model import Durability, Figures, Load, PeerError

BENCH = Path(__file__).parent.parent
SECONDS_MAX = 60  # beyond what was asked for
BODIES = 100  # different ones
RECEIVE_COUNT = 1_000
SOON_AT_ONCE = 1_000  # send_soon between two looks at the clock
ACKS: dict[Durability, Acks] = {Durability.CACHE: "write", Durability.FSYNC: "flush"}


def run(port: int, load: Load, topic: str, seconds: float, cpus: list[int]) -> Figures:
    asked = {
        "port": port,
        "topic": topic,
        "seconds": seconds,
        "load": {**asdict(load), "durability": load.durability.value},
    }
    try:
        done = subprocess.run(
            [sys.executable, "-m", "peers.lakemq_tool", json.dumps(asked)],
            cwd=BENCH,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=seconds + SECONDS_MAX,
            preexec_fn=lambda: os.sched_setaffinity(0, cpus),
        )
    except subprocess.TimeoutExpired:
        raise PeerError(f"LakeMQ's client had no end after {seconds + SECONDS_MAX:.0f} s") from None
    if done.returncode:
        raise PeerError(f"LakeMQ's client: {done.stderr[-2000:]}")
    return Figures(**json.loads(done.stdout))


class Measured:
    """Messages since the warm-up, with their latencies."""

    def __init__(self, warmup: float, seconds: float) -> None:
        self.start = time.perf_counter() + warmup
        self.end = self.start + seconds
        self.count = 0
        self.latencies: list[float] = []
        self._cpu = 0.0

    def note(self, now: float, latency: float) -> None:
        if now >= self.start:
            self.add(1)
            self.latencies.append(latency)

    def add(self, count: int) -> None:
        if not self.count:
            self._cpu = time.process_time()
        self.count += count

    def figures(self, load: Load) -> Figures:
        elapsed = max(time.perf_counter() - self.start, 1e-9)
        self.latencies.sort()
        return Figures(
            messages_s=self.count / elapsed,
            mb_s=self.count * load.body_bytes / elapsed / 1e6,
            p50_us=self._quantile_us(0.5),
            p99_us=self._quantile_us(0.99),
            p999_us=self._quantile_us(0.999),
            load_cpu=(time.process_time() - self._cpu) / elapsed,
            messages=self.count,
        )

    def _quantile_us(self, q: float) -> float:
        return self.latencies[int(q * len(self.latencies))] * 1e6 if self.latencies else 0.0


def bodies_of(load: Load) -> list[bytes]:
    return [body(n, load.body_bytes) for n in range(BODIES)]


async def send_singly(mq: AsyncClient, load: Load, topic: str, measured: Measured) -> None:
    acks, bodies = ACKS[load.durability], bodies_of(load)

    async def one(n: int) -> None:
        while time.perf_counter() < measured.end:
            n += 1
            began = time.perf_counter()
            await mq.send(topic, bodies[n % BODIES], acks=acks)
            now = time.perf_counter()
            measured.note(now, now - began)

    await asyncio.gather(*(one(n) for n in range(load.connections * load.outstanding)))


async def receive(mq: AsyncClient, load: Load, topic: str, measured: Measured) -> None:
    """A backlog; it ends early when nothing is left."""
    del load
    async with mq.consumer(topic, group="tool", count=RECEIVE_COUNT) as consumer:
        while (now := time.perf_counter()) < measured.end:
            got = await consumer.receive(RECEIVE_COUNT, timeout="200ms")
            if not got:
                measured.end = now
            elif now >= measured.start:
                measured.add(len(got))


async def latency(mq: AsyncClient, load: Load, topic: str, measured: Measured) -> None:
    acks, rest = ACKS[load.durability], body(0, load.body_bytes)[20:]
    first = time.perf_counter() + 0.2
    number = max(int((measured.end - first) * load.rate), 1)

    async def listen(group: int) -> None:
        left = number
        async with mq.consumer(topic, group=f"tool{group}") as consumer:
            while left > 0:
                for delivery in await consumer.receive(RECEIVE_COUNT):
                    now, due = time.perf_counter(), int(delivery.body[:20]) / 1e9
                    left -= 1
                    if due >= measured.start:
                        measured.note(now, now - due)

    async def send_at_times() -> None:
        sends = []
        for n in range(number):
            due = first + n / load.rate
            await asyncio.sleep(max(due - time.perf_counter(), 0))  # the load is a rate: this is its clock
            text = b"%020d" % int(due * 1e9) + rest
            sends.append(asyncio.ensure_future(mq.send(topic, text, acks=acks)))
        await asyncio.gather(*sends)

    await asyncio.gather(*(listen(group) for group in range(load.groups)), send_at_times())


def send_soon(port: int, load: Load, topic: str, measured: Measured) -> None:
    """The blocking client, whose batches leave from a thread of its own."""
    bodies = bodies_of(load)
    compression: Compressions = "lz4" if load.compression == "lz4" else "none"
    with lakemq.connect(
        f"lakemq://127.0.0.1:{port}", app="bench", acks=ACKS[load.durability], compression=compression
    ) as mq:
        while (now := time.perf_counter()) < measured.end:
            for n in range(SOON_AT_ONCE):
                mq.send_soon(topic, bodies[n % BODIES])
            if now >= measured.start:
                measured.add(SOON_AT_ONCE)
        mq.flush()


ASYNC: dict[str, Callable[[AsyncClient, Load, str, Measured], Awaitable[None]]] = {
    "produce": send_singly,
    "consume": receive,
    "latency": latency,
}


async def run_async(port: int, load: Load, topic: str, measured: Measured) -> None:
    async with lakemq.aio.connect(f"lakemq://127.0.0.1:{port}", app="bench") as mq:
        await ASYNC[load.mode](mq, load, topic, measured)


def main() -> None:
    asked = json.loads(sys.argv[1])
    load = Load(**asked["load"])
    load = replace(load, durability=Durability(load.durability))
    seconds = float(asked["seconds"])
    # A backlog is read once: nothing of it is spent before the clock runs.
    measured = Measured(0.0 if load.mode == "consume" else 0.3 * seconds, seconds)
    if load.mode == "produce" and load.batch > 1:
        send_soon(asked["port"], load, asked["topic"], measured)
    else:
        asyncio.run(run_async(asked["port"], load, asked["topic"], measured))
    print(json.dumps(asdict(measured.figures(load))))


if __name__ == "__main__":
    main()
