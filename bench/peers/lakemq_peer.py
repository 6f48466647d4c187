"""LakeMQ itself, as `lakemq dev` starts it."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from lakemq.client.admin import AdminClient
from lakemq.errors import LakeMQError
from peers import lakemq_tool, wire_jmq4
from peers.model import Durability, Figures, Frames, Load, Peer, PeerError, Running
from peers.packages import launch, stopped_on_error, wait_for

START_SECONDS = 30
MEANING = {
    Durability.CACHE: "ACK_WRITE and visible_after=write: answered, and seen by consumers, when the system has "
    "the bytes; a power cut may lose them",
    Durability.FSYNC: "ACK_FLUSH (what its client asks for by default): fsync of the journal before the answer, one "
    "for all requests that wait",
}


@dataclass
class RunningLakeMQ(Running):
    admin_port: int = 0
    token: str = ""


class LakeMQ(Peer):
    name = "lakemq"
    title = f"LakeMQ {version('lakemq')}"
    meaning = MEANING

    def missing(self) -> str:
        return ""

    def install(self) -> None:
        """It is what runs this."""

    def start(self, directory: Path, durability: Durability, cpus: list[int]) -> Running:
        directory = directory.resolve()
        data, ready, log = directory / "data", directory / "ready.json", directory / "log"
        data.mkdir(parents=True)
        ports = ["--port", "0", "--admin-port", "0"]
        command = [sys.executable, "-m", "lakemq", "dev", *ports, "--data", str(data), "--ready-file", str(ready)]
        visible = os.environ | {"LAKEMQ_STORAGE__VISIBLE_AFTER": "write" if durability is Durability.CACHE else "sync"}
        process = launch(command, log, cpus, visible)
        running = RunningLakeMQ(0, [process], data)
        with stopped_on_error(running):
            wait_for(self.title, lambda: is_ready(ready, running), process, log, START_SECONDS)
        return running

    def create_topics(self, running: Running, names: list[str], partitions: int) -> None:
        assert isinstance(running, RunningLakeMQ)
        admin = AdminClient(f"http://127.0.0.1:{running.admin_port}", running.token)
        try:
            for name in names:
                admin.ensure_topic(name, partitions=partitions)
        except LakeMQError as error:
            raise PeerError(f"LakeMQ did not create a topic: {error}") from error

    def frames(self, load: Load, topic: str) -> Frames:
        return wire_jmq4.frames(load, topic)

    def setup_over(self, load: Load, topics: list[str]) -> tuple[bytes, ...]:
        del load
        return wire_jmq4.producer_setup(topics)

    def tool(self, running: Running, load: Load, topic: str, seconds: float, cpus: list[int]) -> Figures | None:
        return lakemq_tool.run(running.port, load, topic, seconds, cpus)


def is_ready(file: Path, running: RunningLakeMQ) -> bool:
    try:
        said = json.loads(file.read_text())
    except (FileNotFoundError, ValueError):  # not there, or not whole yet
        return False
    running.port, running.admin_port, running.token = int(said["port"]), int(said["admin_port"]), said["admin_token"]
    running.pids = [int(said["pid"])]
    return True
