"""The load program, made and run: bytes from `Peer.frames` go in, figures come out."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from peers.model import Figures, Frames, Load, PeerError
from peers.packages import cache, need, run

HERE = Path(__file__).parent
COMPILE_SECONDS = 120
SECONDS_MAX = 120  # beyond what was asked for: a backlog takes what it takes
NO_ANSWER = 1 << 31  # in a part's length
FLAGS = ["-O2", "-Wall", "-Wextra"]


class Silent(bytes):
    """A part of a setup that gets no answer."""


def program() -> Path:
    """load.c with all its protocols; compiled once for as long as its sources do not change."""
    sources = sorted(HERE.glob("load*.c"))
    headers = [HERE / "load.h", HERE.parent / "load_common.h"]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources + headers)).hexdigest()[:16]
    made = cache() / f"load-{digest}" / "load"
    if made.is_file():
        return made
    made.parent.mkdir(parents=True, exist_ok=True)
    new = made.with_name(f"load.{os.getpid()}")
    run([need("cc", "gcc"), *FLAGS, "-o", str(new), *map(str, sources)], COMPILE_SECONDS)
    new.replace(made)  # whole or not at all, should two runs meet
    return made


def drive(
    frames: Frames,
    load: Load,
    port: int,
    seconds: float,
    warmup: float,
    cpus: list[int],
    consumer_frames: Frames | None = None,
    count: int | None = None,
    total: int | None = None,
    end: int | None = None,
    is_rotating: bool = False,
) -> Figures:
    """One run of `load`; PeerError with what the program said if a reply was wrong or did not come.

    The load stays on the cores `cpus`. `count` ends it after so many requests on each connection, `total` after so many
    messages; at `end` a consumer starts again from the beginning. A latency needs `consumer_frames`: those of the same
    load with mode consume, whose `rate` says that its consumers wait for what comes. With `is_rotating` each request of
    a connection is the next of the frames' requests.
    """
    got = drive_raw(frames, load, port, seconds, warmup, cpus, consumer_frames, count, total, end, is_rotating)
    names = ("messages_s", "mb_s", "p50_us", "p99_us", "p999_us", "load_cpu")
    return Figures(**{name: got[name] for name in names}, messages=int(got["messages"]), errors=int(got["errors"]))


def drive_raw(
    frames: Frames,
    load: Load,
    port: int,
    seconds: float,
    warmup: float,
    cpus: list[int],
    consumer_frames: Frames | None = None,
    count: int | None = None,
    total: int | None = None,
    end: int | None = None,
    is_rotating: bool = False,
) -> dict[str, float]:
    """The same, and all that the program tells: `messages_all` with the warm-up, `late_us_p99` of its own sending."""
    words: dict[str, object] = {
        "protocol": frames.protocol,
        "mode": load.mode.partition("-")[0],  # consume-acks is a consume of other frames
        "port": port,
        "connections": load.connections,
        "window": load.outstanding,
        "batch": load.batch if load.mode != "consume" else 1,
        "warmup": warmup,
        "seconds": seconds,
        "count": count or 0,
        "total": total or 0,
        "end": end or 0,
        "rotate": int(is_rotating),
        "rate": load.rate,
        "groups": load.groups,
    }
    directory = Path(tempfile.mkdtemp(prefix="load-"))
    try:
        words |= _files(directory, frames, "")
        if consumer_frames is not None:
            words |= _files(directory, consumer_frames, "consumer_")
        return _run(words, seconds + warmup + SECONDS_MAX, cpus)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _files(directory: Path, frames: Frames, prefix: str) -> dict[str, object]:
    sizes = {len(request) for request in frames.requests}
    if len(sizes) != 1:
        raise PeerError(f"requests of one load differ in size: {sorted(sizes)}")
    setup, requests = directory / f"{prefix}setup", directory / f"{prefix}requests"
    setup.write_bytes(b"".join(map(_part, frames.setup)))
    requests.write_bytes(b"".join(frames.requests))
    return {f"{prefix}setup": setup, f"{prefix}requests": requests, f"{prefix}size": sizes.pop()}


def _part(part: bytes) -> bytes:
    return (len(part) | (NO_ANSWER if isinstance(part, Silent) else 0)).to_bytes(4, "big") + part


def _run(words: dict[str, object], seconds_max: float, cpus: list[int]) -> dict[str, float]:
    command = [str(program()), *(f"{name}={value}" for name, value in words.items())]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=seconds_max,
            preexec_fn=lambda: os.sched_setaffinity(0, cpus),
        )
    except subprocess.TimeoutExpired:
        raise PeerError(f"the load had no end after {seconds_max:.0f} s") from None
    if done.returncode:
        raise PeerError(f"{words['mode']} by {words['protocol']}: {(done.stderr + done.stdout).strip()}")
    found: dict[str, float] = json.loads(done.stdout)
    return found
