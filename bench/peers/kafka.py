"""Apache Kafka: one process that is broker and controller, with Kafka's defaults but for what a single node needs."""

from __future__ import annotations

import base64
import os
import time
from pathlib import Path

from peers import wire_kafka
from peers.model import Durability, Figures, Frames, Load, Peer, PeerError, Running
from peers.packages import (
    by_client,
    class_path,
    conversation,
    free_ports,
    java,
    maven,
    missing_maven,
    need,
    run,
    stopped_on_error,
    wait_for,
)

VERSION = "4.1.0"
# slf4j-simple: without it nothing would tell why a server does not start.
COORDINATES = [
    f"org.apache.kafka:kafka_2.13:{VERSION}",
    f"org.apache.kafka:kafka-tools:{VERSION}",
    "org.slf4j:slf4j-simple:1.7.36",
]
HEAP = "1g"
# Those of Kafka's own start script.
JAVA_OPTIONS = [
    "-server",
    f"-Xms{HEAP}",
    f"-Xmx{HEAP}",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
]
QUIET = "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"
START_SECONDS = 90
TOPIC_SECONDS = 60
NOT_YET = {3, 5, 6, 100}  # unknown topic, no leader, not the leader, unknown topic id: the news has not come round
SETTINGS = {
    Durability.CACHE: {},
    Durability.FSYNC: {"log.flush.interval.messages": "1"},
}
MEANING = {
    Durability.CACHE: "acks=1, no flush settings (the default): answered when the operating system has the bytes, "
    "which writes them when it likes; a power cut loses them",
    Durability.FSYNC: "acks=1, log.flush.interval.messages=1: fsync of the partition's log, and of its indexes, "
    "before the answer, for every request anew: Kafka has no fsync for several requests",
}


class Kafka(Peer):
    name = "kafka"
    title = f"Apache Kafka {VERSION}"
    meaning = MEANING

    def missing(self) -> str:
        return ", ".join(missing_maven(COORDINATES))

    def install(self) -> None:
        maven(COORDINATES)

    def start(self, directory: Path, durability: Durability, cpus: list[int]) -> Running:
        jars = maven(COORDINATES)
        directory = directory.resolve()
        data, log = directory / "data", directory / "server.log"
        data.mkdir(parents=True)
        port, controller_port = free_ports(2)
        settings = directory / "server.properties"
        settings.write_text(properties(data, port, controller_port, SETTINGS[durability]))
        format_storage(jars, settings)
        process = java(jars, [*JAVA_OPTIONS, QUIET], "kafka.Kafka", [str(settings)], log, cpus)
        running = Running(port, [process], data)
        with stopped_on_error(running):
            wait_for(self.title, lambda: answers(port), process, log, START_SECONDS)
        return running

    def create_topics(self, running: Running, names: list[str], partitions: int) -> None:
        (reply,) = conversation(running.port, [wire_kafka.create_topics(names, partitions)])
        if refused := {name: error for name, error in wire_kafka.created(reply).items() if error}:
            raise PeerError(f"Kafka did not create topics, error codes: {refused}")
        wait_for_leaders(running.port, names, partitions)

    def frames(self, load: Load, topic: str) -> Frames:
        return wire_kafka.frames(load, topic)

    def tool(self, running: Running, load: Load, topic: str, seconds: float, cpus: list[int]) -> Figures | None:
        words: dict[str, object] = {"port": running.port, "topic": topic}
        return by_client(maven(COORDINATES), "KafkaLoad", [QUIET], load, words, seconds, cpus)


def properties(data: Path, port: int, controller_port: int, more: dict[str, str]) -> str:
    """What a single node cannot do without; all else is Kafka's default."""
    one_replica = [
        "offsets.topic.replication.factor",
        "transaction.state.log.replication.factor",
        "transaction.state.log.min.isr",
        "share.coordinator.state.topic.replication.factor",
        "share.coordinator.state.topic.min.isr",
    ]
    settings = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
        "controller.listener.names": "CONTROLLER",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "log.dirs": str(data),
        "auto.create.topics.enable": "false",
        "group.initial.rebalance.delay.ms": "0",
        **dict.fromkeys(one_replica, "1"),
        **more,
    }
    return "".join(f"{name}={value}\n" for name, value in settings.items())


def format_storage(jars: list[Path], settings: Path) -> None:
    cluster = base64.urlsafe_b64encode(os.urandom(16)).decode().rstrip("=").replace("-", "_")  # a minus is an option's
    tool = ["kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(settings)]
    run([need("java", "default-jre-headless"), "-Xmx128m", QUIET, "-cp", class_path(jars), *tool], START_SECONDS)


def answers(port: int) -> bool:
    """Whether topics can be created: the port is open before there is a controller."""
    try:
        (reply,) = conversation(port, [wire_kafka.create_topics([], 1)], seconds=5)
    except OSError:
        return False
    return not wire_kafka.created(reply)


def wait_for_leaders(port: int, names: list[str], partitions: int) -> None:
    """Until every partition can be read: a topic is created when the controller knows of it, the broker follows."""
    left = [(name, partition) for name in names for partition in range(partitions)]
    until = time.monotonic() + TOPIC_SECONDS
    while left:
        asked = [wire_kafka.fetch(name, partition, 0, 1, wait_ms=0) for name, partition in left]
        errors = [wire_kafka.fetched(reply).error for reply in conversation(port, asked)]
        if wrong := set(errors) - NOT_YET - {0}:
            raise PeerError(f"a new topic of Kafka's is answered with error codes {wrong}")
        left = [which for which, error in zip(left, errors, strict=True) if error]
        if left and time.monotonic() > until:
            raise PeerError(f"{len(left)} new partitions of Kafka have no leader after {TOPIC_SECONDS} s")
        if left:
            time.sleep(0.05)  # the broker follows the controller by itself and tells nobody
