"""RabbitMQ, with Debian's rabbitmq-server: a node of our own, with an Erlang port mapper of its own."""

from __future__ import annotations

import math
import os
import re
import resource
import statistics
import time
from dataclasses import dataclass, replace
from pathlib import Path

from peers import wire_amqp
from peers.model import Durability, Figures, Frames, Load, Peer, PeerError, Running
from peers.packages import (
    class_path,
    debian,
    free_ports,
    launch,
    maven,
    missing_debian,
    missing_maven,
    need,
    run,
    stopped_on_error,
    wait_for,
)

PACKAGES = ["rabbitmq-server"]
# Not the one in the path, which changes to the package's own user and directories.
PROGRAM = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
START_SECONDS = 90
TOOL = ["com.rabbitmq:perf-test:2.22.1"]
TOOL_WARMUP = 2  # of its lines, one a second: a virtual machine compiles what it runs often
TOOL_SECONDS_MAX = 60  # beyond what was asked for
TOOL_LINE = re.compile(r"time [\d.]+ s, .*?(?:confirmed|received): (\d+) msg/s.* latency: ([\d/]+) µs")
MEANING = {
    Durability.CACHE: "durable classic queue of version 2, persistent messages, publisher confirms: confirmed when the "
    "operating system has the bytes (version 1, the default, has nothing weaker than fsync before the confirm)",
    Durability.FSYNC: "quorum queue of one node, publisher confirms: fsync of its log before the confirm, one for all "
    "messages that wait",
}


@dataclass
class RunningRabbitMQ(Running):
    durability: Durability = Durability.CACHE


class RabbitMQ(Peer):
    name = "rabbitmq"
    title = "RabbitMQ 3.10 (Debian)"
    meaning = MEANING
    backlog_requests = 100
    is_destructive = True

    def missing(self) -> str:
        return ", ".join(missing_debian(PACKAGES) + missing_maven(TOOL))

    def install(self) -> None:
        debian(PACKAGES)
        maven(TOOL)

    def start(self, directory: Path, durability: Durability, cpus: list[int]) -> Running:
        directory = directory.resolve()
        data, log = directory / "data", directory / "log"
        data.mkdir(parents=True)
        port, mapper_port, node_port = free_ports(3)
        environment = settings(directory, port, mapper_port, node_port)
        if not PROGRAM.exists():
            raise PeerError(f"{PROGRAM} is missing; it comes with Debian's {PACKAGES[0]}")
        mapper = [need("epmd", "erlang-base"), "-address", "127.0.0.1", "-port", str(mapper_port)]
        # The mapper is started first and by us: else the node would start one that stays when it ends.
        processes = [launch(command, log, cpus, environment) for command in (mapper, [str(PROGRAM)])]
        server = processes[1]
        running = RunningRabbitMQ(port, processes, data, [server.pid], durability)
        with stopped_on_error(running):
            wait_for(self.title, lambda: answers(port), server, log, START_SECONDS)
        return running

    def create_topics(self, running: Running, names: list[str], partitions: int) -> None:
        assert isinstance(running, RunningRabbitMQ)
        requests = [wire_amqp.declare_exchange(name) for name in names]
        for name in names:
            queues = [wire_amqp.queue(name, number) for number in range(partitions)]
            requests += [wire_amqp.declare_queue(queue, running.durability) for queue in queues]
        wire_amqp.ask(running.port, requests)

    def frames(self, load: Load, topic: str) -> Frames:
        return wire_amqp.frames(load, topic)

    def tool(self, running: Running, load: Load, topic: str, seconds: float, cpus: list[int]) -> Figures | None:
        """PerfTest, RabbitMQ's own load tool."""
        if load.groups > 1:
            return None
        options = tool_options(load, topic)
        where = ["--uri", f"amqp://127.0.0.1:{running.port}", "--time", str(math.ceil(seconds) + TOOL_WARMUP)]
        java = [need("java", "default-jre-headless"), "-cp", class_path(maven(TOOL)), "com.rabbitmq.perf.PerfTest"]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        began = time.monotonic()
        said = run(["taskset", "-c", ",".join(map(str, cpus)), *java, *where, *options], seconds + TOOL_SECONDS_MAX)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return replace(tool_figures(said, load), load_cpu=cpu / (time.monotonic() - began))


def settings(directory: Path, port: int, mapper_port: int, node_port: int) -> dict[str, str]:
    """Everything in `directory` and on 127.0.0.1; all else is RabbitMQ's default."""
    (directory / "rabbitmq.conf").write_text(f"listeners.tcp.1 = 127.0.0.1:{port}\n")
    (directory / "plugins").write_text("[].\n")
    (directory / "advanced.config").write_text("[].\n")
    return {
        **os.environ,
        "HOME": str(directory),  # where Erlang keeps its cookie
        "RABBITMQ_NODENAME": f"bench{port}@localhost",
        "RABBITMQ_MNESIA_BASE": str(directory / "data"),
        "RABBITMQ_LOG_BASE": str(directory / "logs"),
        "RABBITMQ_CONFIG_FILE": str(directory / "rabbitmq.conf"),
        "RABBITMQ_ADVANCED_CONFIG_FILE": str(directory / "advanced.config"),
        "RABBITMQ_CONF_ENV_FILE": str(directory / "no-env.conf"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(directory / "plugins"),
        "RABBITMQ_PID_FILE": str(directory / "pid"),
        "RABBITMQ_DIST_PORT": str(node_port),
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "ERL_EPMD_PORT": str(mapper_port),
    }


def answers(port: int) -> bool:
    try:
        wire_amqp.ask(port, [], seconds=5)
    except (OSError, PeerError):  # nobody yet, or the node is not up yet
        return False
    return True


def tool_options(load: Load, topic: str) -> list[str]:
    """A backlog is read from the topic's queues; else PerfTest makes its own, of the same kind and number."""
    kind = ",".join(f"{name}={value}" for name, value in wire_amqp.KIND[load.durability].items())
    reading = ["--qos", str(wire_amqp.PREFETCH), "--multi-ack-every", "100"]
    making = ["--flag", "persistent", "--auto-delete", "false", "--queue-args", kind, "--size", str(load.body_bytes)]
    span = ["--queue-pattern-from", "0", "--queue-pattern-to", str(load.partitions - 1)]
    match load.mode:
        case "produce":
            here = ["--producers", str(load.connections), "--consumers", "0", "--queue-pattern", f"{topic}-tool-%d"]
            return [*here, *span, *making, "--confirm", str(load.batch * load.outstanding)]
        case "consume":
            here = ["--producers", "0", "--consumers", str(load.connections), "--queue-pattern", f"{topic}-%d"]
            return [*here, *span, *reading, "--predeclared"]
        case _:
            return [*making, *reading, "--queue", f"{topic}-tool", "--rate", str(load.rate)]


def tool_figures(said: str, load: Load) -> Figures:
    """From its lines, one a second: rate, and latency as min/median/75th/95th/99th."""
    lines = [(int(rate), [float(word) for word in words.split("/")]) for rate, words in TOOL_LINE.findall(said)]
    # A backlog may be gone before the time is over; and on a busy machine some lines are missing.
    lines = [line for line in lines if line[0]] if load.mode == "consume" else lines[TOOL_WARMUP:] or lines[-1:]
    if not lines:
        raise PeerError(f"PerfTest said {said[-1000:]}")
    rate = statistics.mean(rate for rate, _ in lines)
    is_timed = load.mode != "consume"  # its latency is from when PerfTest sent, which it did not
    return Figures(
        messages_s=rate,
        mb_s=rate * load.body_bytes / 1e6,
        p50_us=statistics.median(latency[1] for _, latency in lines) if is_timed else 0.0,
        p99_us=statistics.median(latency[4] for _, latency in lines) if is_timed else 0.0,
        messages=sum(rate for rate, _ in lines),
    )
