"""Redis streams, with Debian's redis-server."""

from __future__ import annotations

import resource
import socket
from pathlib import Path

from peers import wire_redis
from peers.bodies import body
from peers.model import Durability, Figures, Frames, Load, Peer, PeerError, Running
from peers.packages import debian, free_ports, launch, missing_debian, need, run, stopped_on_error, wait_for

PACKAGES = ["redis-server", "redis-tools"]
START_SECONDS = 30
TOOL_SECONDS = 120
TOOL_TRIAL = 5_000  # messages of a first run, which says how many take the time asked for
FSYNC = {Durability.CACHE: "everysec", Durability.FSYNC: "always"}
MEANING = {
    Durability.CACHE: "appendonly yes, appendfsync everysec (the default of the append-only file): answered when the "
    "operating system has the bytes, fsync once a second; no snapshots and no rewriting of the file",
    Durability.FSYNC: "appendfsync always: fsync of the append-only file before the answer, one for all requests of a "
    "turn of its loop; no snapshots and no rewriting of the file",
}


class Redis(Peer):
    name = "redis"
    title = "Redis Streams 7.0 (Debian)"
    meaning = MEANING

    def missing(self) -> str:
        return ", ".join(missing_debian(PACKAGES))

    def install(self) -> None:
        debian(PACKAGES)

    def start(self, directory: Path, durability: Durability, cpus: list[int]) -> Running:
        directory = directory.resolve()
        data, log = directory / "data", directory / "log"
        data.mkdir(parents=True)
        (port,) = free_ports(1)
        settings = {
            "port": str(port),
            "bind": "127.0.0.1",
            "dir": str(data),
            "save": "",
            "appendonly": "yes",
            "appendfsync": FSYNC[durability],
            "auto-aof-rewrite-percentage": "0",
            "daemonize": "no",
        }
        command = [
            need("redis-server", PACKAGES[0]),
            *(word for name, value in settings.items() for word in (f"--{name}", value)),
        ]
        process = launch(command, log, cpus)
        running = Running(port, [process], data)
        with stopped_on_error(running):
            wait_for(self.title, lambda: answers(port), process, log, START_SECONDS)
        return running

    def create_topics(self, running: Running, names: list[str], partitions: int) -> None:
        """A stream is there as soon as something is in it."""

    def frames(self, load: Load, topic: str) -> Frames:
        return wire_redis.frames(load, topic)

    def tool(self, running: Running, load: Load, topic: str, seconds: float, cpus: list[int]) -> Figures | None:
        if load.mode != "produce":
            return None
        trial = benchmark(running.port, load, topic, TOOL_TRIAL, cpus)
        return benchmark(running.port, load, topic, max(int(trial.messages_s * seconds), TOOL_TRIAL), cpus)


def answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5) as there:
            there.sendall(wire_redis.command(b"PING"))
            return there.recv(100) == b"+PONG\r\n"
    except OSError:
        return False


def benchmark(port: int, load: Load, topic: str, messages: int, cpus: list[int]) -> Figures:
    """redis-benchmark; its pipeline is a batch, or what is outstanding. It knows one stream only."""
    options = [
        "-p",
        str(port),
        "-n",
        str(messages),
        "-c",
        str(load.connections),
        "-P",
        str(load.batch * load.outstanding),
    ]
    add = ["XADD", wire_redis.stream(topic, 0).decode(), "*", "b", body(0, load.body_bytes).decode()]
    pinned = ["taskset", "-c", ",".join(map(str, cpus)), need("redis-benchmark", PACKAGES[1])]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    said = run([*pinned, *options, "--csv", *add], TOOL_SECONDS)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    found = figures_of(said)
    rate = found["rps"]
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Figures(
        messages_s=rate,
        mb_s=rate * load.body_bytes / 1e6,
        p50_us=found["p50_latency_ms"] * 1e3,
        p99_us=found["p99_latency_ms"] * 1e3,
        load_cpu=cpu / (messages / rate),
        messages=messages,
    )


def figures_of(said: str) -> dict[str, float]:
    """The last two lines are names and values; the first value is the whole command, with quotes as they come."""
    lines = [line for line in said.splitlines() if line.startswith('"')]
    if len(lines) < 2:
        raise PeerError(f"redis-benchmark said {said[-500:]}")
    names = [word.strip('"') for word in lines[0].split(",")[1:]]
    values = [word.strip('"') for word in lines[-1].rsplit(",", len(names))[1:]]
    return {name: float(value) for name, value in zip(names, values, strict=True)}
