"""NATS JetStream, with Debian's nats-server."""

from __future__ import annotations

from pathlib import Path

from peers import wire_nats
from peers.model import Durability, Frames, Load, Peer, PeerError, Running
from peers.packages import debian, free_ports, launch, missing_debian, need, stopped_on_error, wait_for

PACKAGES = ["nats-server"]
START_SECONDS = 30
CONFIG = """
listen: 127.0.0.1:{port}
jetstream {{
  store_dir: "{data}"
  max_memory_store: 1GB
  max_file_store: 100GB
}}
"""
MEANING = {
    Durability.CACHE: "file store with its defaults: answered when the server has written the message or has it in a "
    "buffer on its way to the file; fsync in the background, after a minute or more",
    Durability.FSYNC: "not to be had: this version has no setting that waits for fsync",
}


class Nats(Peer):
    name = "nats"
    title = "NATS JetStream 2.9 (Debian)"
    meaning = MEANING

    def missing(self) -> str:
        return ", ".join(missing_debian(PACKAGES))

    def install(self) -> None:
        debian(PACKAGES)

    def start(self, directory: Path, durability: Durability, cpus: list[int]) -> Running:
        if durability is Durability.FSYNC:
            raise PeerError(f"{self.title}: fsync before the answer is {self.meaning[durability]}")
        directory = directory.resolve()
        data, log, settings = directory / "data", directory / "log", directory / "nats.conf"
        data.mkdir(parents=True)
        (port,) = free_ports(1)
        settings.write_text(CONFIG.format(port=port, data=data))
        process = launch([need("nats-server", PACKAGES[0]), "-c", str(settings)], log, cpus)
        running = Running(port, [process], data)
        with stopped_on_error(running):
            wait_for(self.title, lambda: answers(port), process, log, START_SECONDS)
        return running

    def create_topics(self, running: Running, names: list[str], partitions: int) -> None:
        requests = [wire_nats.create_stream(name, number) for name in names for number in range(partitions)]
        for answer in wire_nats.ask(running.port, requests):
            if "error" in answer:
                raise PeerError(f"NATS did not create a stream: {answer['error']}")

    def frames(self, load: Load, topic: str) -> Frames:
        return wire_nats.frames(load, topic)


def answers(port: int) -> bool:
    try:
        return "error" not in wire_nats.ask(port, [(b"$JS.API.INFO", b"")])[0]
    except (OSError, PeerError):  # nobody yet, or JetStream is not up yet
        return False
