"""Kill -9 a broker under load at random moments, many times on one directory (F01, F03).

    python -m tests.faults.broker_kills --count 1000

Producers of every kind, consumers that ack. After each restart what is new is read and held against the books, at the
end everything: nothing acked at FLUSH or WRITE is lost, nothing is invented, doubled or out of order, no ack index
falls or runs ahead. Some kills fall into the start that follows another kill.
"""

import argparse
import asyncio
import time
from pathlib import Path
from random import Random
from typing import Any

from lakemq.storage.survey import survey
from lakemq.world.disk import RealDisk

from .broker_load import Load
from .broker_plants import PLANTS
from .broker_process import ForkedBroker, Nursery, Sections
from .tools import finish, keep, memory_directory, run_command, say, scratch

KILLS_PER_DIRECTORY = 100
SETTINGS: Sections = {
    # Everything happens often: rolls, index files, checkpoints.
    "storage": {
        "segment_bytes": "2MiB",
        "record_bytes_max": "1MiB",
        "entries_per_file": 500,
        "checkpoint_bytes": "3MiB",
        "index_pending_bytes_max": "24KiB",
        "unsynced_bytes_max": "16MiB",
    },
    "limits": {"frame_bytes_max": "1MiB", "unsynced_bytes_high": "8MiB"},
}


async def kill_round(
    nursery: Nursery, place: Path, count: int, rng: Random, totals: dict[str, Any], plant: str | None
) -> list[str]:
    """So many kills on one directory."""
    broker = ForkedBroker(nursery, place, SETTINGS, plant=plant)
    load = Load(rng.randrange(1 << 30))
    account = load.account
    kills = 0
    try:
        broker.start()
        while kills < count and not account.problems:
            load.start(broker.port)
            await asyncio.sleep(rng.choice((rng.uniform(0, 0.02), rng.uniform(0, 0.1), rng.uniform(0.05, 0.3))))
            broker.kill()
            kills += 1
            await load.wait_until_cut()
            if rng.random() < 0.2 and kills < count:
                broker.start_and_kill(rng.uniform(0, 0.15))
                kills += 1
                totals["kills_inside_start"] += 1
            began = time.monotonic()
            broker.start()
            totals["starts_s"].append(time.monotonic() - began)
            await load.check(broker.port, is_whole=kills >= count)
            totals["checks"] += 1
        broker.check_stderr()
        broker.stop()
        found = survey(RealDisk(str(broker.data)))
        if not found.is_sound:
            account.add(f"the directory is not sound: {found.findings[:3]}")
    except Exception as error:
        account.add(f"after {kills} kills: {type(error).__name__}: {error}")
    finally:
        await load.stop()
        broker.end()
    totals["kills"] += kills
    totals["lost"] += account.lost
    totals["delivered"] += account.delivered
    totals["consumer_acks"] += sum(account.acked.values())
    totals["stored"] += sum(map(len, account.seen.values()))
    for level, number in account.acked_levels.items():
        totals["acked"][level] = totals["acked"].get(level, 0) + number
    for code, number in account.codes.items():
        totals["codes"][code] = totals["codes"].get(code, 0) + number
    return account.problems


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", help="a directory for what a failure leaves")
    parser.add_argument("--plant", choices=PLANTS, help="a bug that must be found")
    options = parser.parse_args()
    rng, started = Random(options.seed), time.monotonic()
    totals: dict[str, Any] = {
        **dict.fromkeys(("kills", "kills_inside_start", "checks", "stored", "delivered", "consumer_acks", "lost"), 0),
        "acked": {},
        "codes": {},
        "starts_s": [],
    }
    problems: list[str] = []
    # A disk and memory by turns: on a disk nearly every moment falls into a sync.
    places = [None, memory_directory()]
    number = 0
    with Nursery() as nursery:
        while totals["kills"] < options.count and not problems:
            count = min(KILLS_PER_DIRECTORY, -(-options.count // 2), options.count - totals["kills"])
            with scratch(places[number % 2]) as place:
                problems += asyncio.run(kill_round(nursery, place, count, rng, totals, options.plant))
                if problems:
                    keep(place, options.keep, f"broker-kills-{number}")
            number += 1
            seconds = time.monotonic() - started
            say(f"{totals['kills']} kills in {seconds:.0f} s, {totals['acked']} acked, {totals['lost']} lost")
    starts = sorted(totals.pop("starts_s"))
    summary = {
        **totals,
        "restart_p50_s": round(starts[len(starts) // 2], 3) if starts else None,
        "restart_max_s": round(starts[-1], 3) if starts else None,
        "seconds": round(time.monotonic() - started, 1),
    }
    return finish(summary, problems)


if __name__ == "__main__":
    run_command(main)
