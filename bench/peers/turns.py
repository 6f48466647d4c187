"""One peer's turn: a new server, warmed up, through all workloads, and gone again."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from broker import user_seconds
from page_cache import PageCache
from peers.drive import drive
from peers.model import Durability, Figures, Load, Peer, PeerError, Running, say
from peers.records import OTHERS_MAX, Record
from peers.workloads import PARTITIONS, Workload

WARM_UP_RUN = 1.0
RISING = 1.05  # times the best so far
FLAT_RUNS = 2
TOOL_ROUNDS = 2  # clients are run in the first rounds only: those in Java need seconds to get going, every time
IDLE_SECONDS = 2.0  # before the memory of a server without work is looked at


@dataclass(frozen=True)
class Pace:
    """How long things are measured, and on which cores."""

    seconds: float
    warmup: float  # of every measurement
    warm_up_max: float  # of a new server, under load
    load_cpus: list[int]
    server_cpus: list[int]
    memory: PageCache | None = None  # kept filled, if given

    def fill_memory(self) -> None:
        if self.memory is not None:
            self.memory.fill()

    def remove(self, directory: Path) -> None:
        if self.memory is not None:
            self.memory.remove(directory)
        else:
            shutil.rmtree(directory, ignore_errors=True)


@dataclass
class Turn:
    """A server of `peer` that is up, and what its records say of themselves."""

    peer: Peer
    running: Running
    pace: Pace
    round: int
    topics: int = 0

    def record(self, workload: str, value: float, unit: str, **more: object) -> Record:
        return Record(workload, self.peer.name, self.round, value, unit, **more)  # type: ignore[arg-type]  # by name

    def new_topic(self, partitions: int) -> str:
        self.topics += 1
        name = f"t{self.topics}"
        self.peer.create_topics(self.running, [name], partitions)
        return name

    def warm_up(self, durability: Durability) -> None:
        """Singles until their rate no longer rises: a virtual machine compiles what runs often, and takes its time for
        it. Then every other kind of request, a little."""
        single = Load("produce", connections=64, partitions=PARTITIONS, durability=durability)
        topic = self.new_topic(PARTITIONS)
        until = time.monotonic() + self.pace.warm_up_max
        best, flat = 0.0, 0
        while flat < FLAT_RUNS and time.monotonic() < until:
            rate = self.drive(single, topic, WARM_UP_RUN).messages_s
            flat = flat + 1 if rate < best * RISING else 0
            best = max(best, rate)
        self.drive(replace(single, connections=8, batch=100), topic, 2 * WARM_UP_RUN)
        if durability is Durability.CACHE:
            self.measure_backlog(Load("consume", connections=8, partitions=8, batch=100), WARM_UP_RUN)

    def drive(self, load: Load, topic: str, seconds: float, **more: object) -> Figures:
        frames = self.peer.frames(load, topic)
        return drive(
            frames,
            load,
            self.running.port,
            seconds,
            self.pace.warmup,
            self.pace.load_cpus,
            **more,  # type: ignore[arg-type]  # by name
        )

    def drive_over(self, load: Load, topics: list[str], seconds: float) -> Figures:
        """The same, each request to the next of these topics."""
        each = [self.peer.frames(load, topic) for topic in topics]
        requests = tuple(frames.requests[0] for frames in each)
        longest = max(map(len, requests))
        if any(len(request) != longest for request in requests):
            raise PeerError("topics whose requests differ in length; name them alike")
        setup = self.peer.setup_over(load, topics)
        frames = replace(each[0], setup=setup, requests=requests)
        return drive(frames, load, self.running.port, seconds, self.pace.warmup, self.pace.load_cpus, is_rotating=True)

    def fill(self, load: Load, topic: str) -> int:
        """A backlog for `load`; how many messages each partition has."""
        requests = self.peer.backlog_requests * (1 if load.batch > 1 else 10)
        filling = Load(
            "produce",
            load.body_bytes,
            load.batch,
            load.partitions,
            1 if load.batch > 1 else 64,
            load.partitions,
            compression=load.compression,
        )
        self.drive(filling, topic, 0, count=requests)
        return requests * load.batch

    def measure_backlog(self, load: Load, seconds: float) -> Figures:
        topic = self.new_topic(load.partitions)
        each = self.fill(load, topic)
        if self.peer.is_destructive:
            return self.drive(load, topic, seconds, total=each * load.partitions)
        return self.drive(load, topic, seconds, end=each)

    def measure_latency(self, load: Load, seconds: float) -> Figures:
        topic = self.new_topic(1)
        consumer = self.peer.frames(replace(load, mode="consume"), topic)
        return self.drive(load, topic, seconds, consumer_frames=consumer)

    def measure(self, workload: Workload) -> Record:
        load, seconds = workload.load, self.pace.seconds
        if load.mode != "latency" and (load.batch > 1 or load.outstanding > 1):  # others need too little to matter
            self.pace.fill_memory()
        server, users, began = self.running.cpu_seconds(), user_seconds(), time.monotonic()
        own = os.times()
        match load.mode:
            case "produce":
                figures = self.drive(load, self.new_topic(load.partitions), seconds)
            case "consume":
                figures = self.measure_backlog(load, seconds)
            case _:
                figures = self.measure_latency(load, max(seconds, 2.0))
        return self.finished(workload, figures, (server, users, began, own))

    def finished(
        self, workload: Workload, figures: Figures, before: tuple[float, float, float, os.times_result]
    ) -> Record:
        server, users, began, own = before
        elapsed = time.monotonic() - began
        used = self.running.cpu_seconds() - server
        now = os.times()
        mine = now.user + now.children_user - own.user - own.children_user
        others = max(0.0, (user_seconds() - users - mine - used) / elapsed)
        latency = workload.unit == "us"
        return self.record(
            workload.name,
            figures.p99_us if latency else figures.messages_s,
            workload.unit,
            p50_us=figures.p50_us,
            p99_us=figures.p99_us,
            p999_us=figures.p999_us,
            load_cpu=figures.load_cpu,
            server_cpu=used / elapsed,
            cpu_us=used / max(figures.messages, 1) * 1e6 if workload.load.mode != "consume" else 0.0,
            others=others,
            note="others were busy" if others > OTHERS_MAX else "",
        )

    def measure_by_tool(self, workload: Workload) -> Record | None:
        load = workload.load
        topic = self.new_topic(load.partitions)
        if load.mode == "consume":
            self.fill(load, topic)
        figures = self.peer.tool(self.running, load, topic, self.pace.seconds, self.pace.load_cpus)
        if figures is None:
            return None
        return self.record(workload.name, figures.messages_s, workload.unit, driver="client", load_cpu=figures.load_cpu)


def turn(
    peer: Peer, number: int, durability: Durability, workloads: list[Workload], parent: Path, pace: Pace
) -> Iterator[Record]:
    """Records of one server of `peer` under these workloads, all of this durability."""
    directory = Path(tempfile.mkdtemp(prefix=f"{peer.name}-", dir=parent))
    try:
        pace.fill_memory()
        began = time.monotonic()
        running = peer.start(directory, durability, pace.server_cpus)
        ready = time.monotonic() - began
        here = Turn(peer, running, pace, number)
        try:
            if durability is Durability.CACHE:
                yield here.record("start", ready, "s", driver="server")
                time.sleep(IDLE_SECONDS)  # what is only needed to start may go
                yield here.record("memory-idle", running.rss_bytes() / 2**20, "MB", driver="server")
            here.warm_up(durability)
            for workload in workloads:
                yield from one(here, workload)
        finally:
            running.stop()
    finally:
        pace.remove(directory)


def one(here: Turn, workload: Workload) -> Iterator[Record]:
    """A workload with the load program, then with the peer's own client. What fails is told, and the rest goes on."""
    steps = [here.measure, here.measure_by_tool] if workload.by_tool and here.round < TOOL_ROUNDS else [here.measure]
    for step in steps:
        try:
            record = step(workload)
        except PeerError as error:
            say(f"    {workload.name}: {error}")
            yield here.record(workload.name, 0, workload.unit, note=str(error).splitlines()[0][:200])
            continue
        if record is not None:
            say(f"    {workload.name:20} {record.driver:7} {record.value:>12,.0f} {record.unit} {record.note}")
            yield record
