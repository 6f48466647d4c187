"""The words all of this is written in: a peer, its running server, a load, and what came of it.

A peer is installed by package name when it is asked for; nothing of it lives here. Two things can drive it: `load.c`,
which sends requests made beforehand and so costs next to nothing (`Peer.frames`), and the peer's own standard client or
load tool (`Peer.tool`). The first compares brokers, the second what a user gets.
"""

from __future__ import annotations

import enum
import errno
import os
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
STOP_SECONDS = 30


class PeerError(Exception):
    """A peer could not be installed or started, or answered what it should not have."""


def say(text: str) -> None:
    """Progress; results alone go to stdout."""
    print(text, file=sys.stderr, flush=True)


class Durability(enum.Enum):
    """When the server may answer a produce request."""

    CACHE = (
        "cache"  # the bytes are with the operating system, or soon will be: a power cut, or even a kill, may lose some
    )
    FSYNC = "fsync"  # the bytes are on the disk, one fsync for all requests that wait for it


@dataclass(frozen=True)
class Load:
    """What is done to a server; the same for every peer."""

    mode: str  # produce, consume (a backlog, from its beginning, by position), latency (both at once, at `rate`)
    body_bytes: int = 1024
    batch: int = 1  # messages in a request; 1 is unbatched
    connections: int = 1
    outstanding: int = 1  # requests on a connection that wait for their answer
    partitions: int = 1  # connection k uses partition k mod partitions
    durability: Durability = Durability.CACHE
    compression: str = "none"  # none or lz4, of whole batches, where the peer has it
    groups: int = 1  # consume, latency: every group gets every message
    rate: int = 0  # latency: messages a second, sent one by one at their times
    fetch_bytes: int = 1 << 20  # consume: what one fetch may bring


@dataclass(frozen=True)
class Frames:
    """Bytes for `load.c`. Every connection sends `setup` first, part by part, each after the last one's answer."""

    protocol: str
    setup: tuple[bytes, ...]
    requests: tuple[bytes, ...]  # of one size; connection k uses number k mod len(requests)


@dataclass(frozen=True)
class Figures:
    """What a load came to. Latencies are of requests (produce, consume) or from send to receipt (latency)."""

    messages_s: float
    mb_s: float = 0.0
    p50_us: float = 0.0
    p99_us: float = 0.0
    p999_us: float = 0.0
    load_cpu: float = 0.0  # cores the load program used
    server_cpu: float = 0.0  # cores the server used
    messages: int = 0
    errors: int = 0


def written_bytes(path: Path) -> int:
    """The parts of a file that hold data, as the file system knows them."""
    total = place = 0
    try:
        with path.open("rb") as file:
            end = os.fstat(file.fileno()).st_size
            while place < end:
                start = os.lseek(file.fileno(), place, os.SEEK_DATA)
                place = os.lseek(file.fileno(), start, os.SEEK_HOLE)
                total += place - start
    except FileNotFoundError:
        return 0  # a server that runs may have dropped it
    except OSError as error:
        if error.errno != errno.ENXIO:  # no data behind `place`
            raise
    return total


@dataclass
class Running:
    """A server that is up: all its processes, and where it keeps its data."""

    port: int
    processes: list[subprocess.Popen[bytes]]
    data: Path
    pids: list[int] = field(default_factory=list)  # whose memory and time count, with all their children

    def tree(self) -> list[int]:
        """The processes whose memory and time are the server's."""
        found = list(self.pids or [process.pid for process in self.processes])
        for pid in found:
            for task in Path(f"/proc/{pid}/task").glob("*/children"):
                found += [int(word) for word in task.read_text().split()]
        return found

    def rss_bytes(self) -> int:
        """Resident memory that is the processes' own: mapped files of theirs are the page cache's, not theirs."""
        total = 0
        for pid in self.tree():
            status = Path(f"/proc/{pid}/status").read_text()
            for line in status.splitlines():
                if line.startswith(("RssAnon:", "RssShmem:")):
                    total += int(line.split()[1]) * 1024
        return total

    def cpu_seconds(self) -> float:
        total = 0.0
        for pid in self.tree():
            words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += (int(words[11]) + int(words[12])) / TICKS_PER_SECOND
        return total

    def disk_bytes(self) -> int:
        """What has been written; room that is reserved and empty does not count."""
        return sum(written_bytes(path) for path in self.data.rglob("*") if path.is_file())

    def stop(self) -> None:
        for process in reversed(self.processes):
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        until = time.monotonic() + STOP_SECONDS
        for process in reversed(self.processes):
            try:
                process.wait(max(0.1, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


class Peer(ABC):
    """One broker to be measured."""

    name: str
    title: str  # with its version
    meaning: dict[Durability, str]  # the settings of each, and what they promise: printed beside the figures
    backlog_requests: int = 500  # of each of 8 connections, to fill a backlog: fewer where storing is slow
    is_destructive: bool = False  # a message that was consumed is gone: a backlog can be read once

    @abstractmethod
    def missing(self) -> str:
        """What `install` would bring; empty if nothing."""

    @abstractmethod
    def install(self) -> None: ...

    @abstractmethod
    def start(self, directory: Path, durability: Durability, cpus: list[int]) -> Running:
        """A new server with empty data in `directory`, on these cores; back when it answers."""

    @abstractmethod
    def create_topics(self, running: Running, names: list[str], partitions: int) -> None: ...

    @abstractmethod
    def frames(self, load: Load, topic: str) -> Frames:
        """The requests of `load` for `load.c`: of the consumer, if its mode is consume; else of the producer."""

    def setup_over(self, load: Load, topics: list[str]) -> tuple[bytes, ...]:
        """What a connection sends first that will produce to all these topics."""
        return self.frames(load, topics[0]).setup

    def tool(self, running: Running, load: Load, topic: str, seconds: float, cpus: list[int]) -> Figures | None:
        """The same load by the peer's own client or load tool; None where there is none for it."""
        del running, load, topic, seconds, cpus
        return None
