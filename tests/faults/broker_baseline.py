"""Load comes and goes, and the broker is as before: memory, files, threads, waiting requests (I17).

    python -m tests.faults.broker_baseline --rounds 10 --seconds 10

The first rounds fill what may be filled: the allocator's heap, caches of open files. From then on nothing grows. The
store's own limits are small, so that this is soon.
"""

import argparse
import asyncio
import time
from pathlib import Path
from typing import Any

from lakemq.world.syncing import THREADS_MAX as DISK_THREADS_MAX

from .broker_disk import until
from .broker_kills import SETTINGS
from .broker_load import STYLES, Load
from .broker_process import FaultBroker, Sections, broker
from .tools import finish, run_command, say, scratch

WARM_UP_ROUNDS = 2
GROWTH_SHARE_MAX = 0.05
GROWTH_BYTES_MIN = 6 << 20  # a twentieth of very little is less than an allocator's whim
FEW: Sections = {**SETTINGS, "storage": {**SETTINGS["storage"], "open_segments_max": 4, "open_index_files_max": 8}}
CACHED_FILES = 20
# Those with UNIQ_IDs are left out: to remember them is meant to take memory.
PLAIN = tuple(style for style in STYLES if not style.is_unique)


async def round_of_load(one: FaultBroker, load: Load, seconds: float) -> None:
    load.start(one.port)
    began = load.answered
    await asyncio.sleep(seconds)
    await until(lambda: load.answered > began + 200, "answers")
    await load.stop()


async def settled(one: FaultBroker, files: int, threads: int) -> dict[str, Any]:
    """What is left when everybody is gone; TimeoutError if that does not become what it was."""
    await until(lambda: one.fd_count() <= files, f"{files} files are open as before; now {one.fd_count()}")
    await until(lambda: one.thread_count() <= threads, f"{threads} threads are there as before")
    deadline = time.monotonic() + 30
    while True:
        gauges = await asyncio.to_thread(one.gauges)
        left = {name: gauges[name] for name in ("connections", "parked_polls", "in_flight_bytes") if gauges[name]}
        if not left:
            break
        assert time.monotonic() < deadline, f"when nobody is there, there is still {left}"
    memory = {"anon": one.anon_bytes(), "mapped": one.mapped_bytes(), "rss": one.rss_bytes()}
    return {**memory, "files": one.fd_count(), "threads": one.thread_count()}


async def rounds_of_load(place: Path, rounds: int, seconds: float) -> tuple[dict[str, Any], list[str]]:
    load = Load(1, PLAIN)
    problems: list[str] = []
    history: list[dict[str, Any]] = []
    with broker(place, FEW) as one:
        at_start = {"anon": one.anon_bytes(), "files": one.fd_count(), "threads": one.thread_count()}
        for number in range(WARM_UP_ROUNDS + rounds):
            await round_of_load(one, load, seconds)
            # Files of the store stay open up to a cap; the disk's threads stay once they are there.
            threads = at_start["threads"] + DISK_THREADS_MAX
            history.append(await settled(one, at_start["files"] + CACHED_FILES, threads))
            say(f"round {number}: {load.answered} answers, {history[-1]}")
        base, last = history[WARM_UP_ROUNDS - 1], history[-1]
        allowed = max(base["anon"] * GROWTH_SHARE_MAX, GROWTH_BYTES_MIN)
        if last["anon"] - base["anon"] > allowed:
            problems.append(f"memory: {[one['anon'] >> 20 for one in history]} MiB after each round")
        for what, more in (("files", CACHED_FILES), ("threads", DISK_THREADS_MAX)):
            each = [one[what] for one in history]
            problems += [f"{what}: {each} after each round"] if last[what] > base[what] + more else []
        unexplained = last["rss"] - last["anon"] - last["mapped"]
        if abs(unexplained) > GROWTH_BYTES_MIN:
            problems.append(f"memory: {unexplained} bytes are neither the process' own nor of mapped files")
        problems += load.account.problems
        one.check_stderr()
        one.stop()
    told = {
        "rounds": rounds,
        "answers": load.answered,
        "anon_mib_at_start": at_start["anon"] >> 20,
        "anon_mib": [one["anon"] >> 20 for one in history],
        # These grow with what was read of segments, and are the system's to take back: no other memory does.
        "mapped_mib": [one["mapped"] >> 20 for one in history],
        "rss_mib": [one["rss"] >> 20 for one in history],
        "files": [one["files"] for one in history],
        "threads": [one["threads"] for one in history],
    }
    return told, problems


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=2.0)
    options = parser.parse_args()
    started = time.monotonic()
    told: dict[str, Any] = {}
    problems: list[str] = []
    with scratch() as place:
        try:
            told, problems = asyncio.run(rounds_of_load(place, options.rounds, options.seconds))
        except (TimeoutError, AssertionError) as error:
            problems.append(f"{type(error).__name__}: {error}")
    return finish({**told, "seconds": round(time.monotonic() - started, 1)}, problems)


if __name__ == "__main__":
    run_command(main)
