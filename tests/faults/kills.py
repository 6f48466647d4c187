"""Kill -9 a writing process at random moments, many times on one directory (F01).

    python -m tests.faults.kills --count 1000

All that was written must be there, synced or not: the system's memory outlives the process. So this does not test
syncs; `power_cuts` does. Most checks are left to a later round, so that a writer also starts on what a killed one left,
and is killed while it recovers that (F03). Rounds alternate between a disk and memory, where the moments fall
elsewhere: on a disk nearly all of them fall into a sync.
"""

import argparse
import time
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from .checker import Report, check_directory, complaints
from .ledger import Ledger
from .tools import finish, keep, kill_child, memory_directory, run_command, say, scratch
from .writer import Options, fork_writer

KILLS_PER_DIRECTORY = 50
PROBLEMS_MAX = 10


@dataclass
class Totals:
    """What all rounds came to."""

    kills: int = 0
    kills_before_begun: int = 0  # inside recovery
    checks: int = 0
    acked: int = 0
    written: int = 0
    stored: int = 0
    lost: int = 0
    problems: list[str] = field(default_factory=list)


def kill_round(place: Path, count: int, rng: Random, totals: Totals) -> None:
    """So many kills on one directory."""
    directory, lines, ledger = str(place / "data"), place / "ledger", Ledger()
    until_check = 0
    for run in range(1, count + 1):
        begun = ledger.runs
        pid = fork_writer(Options(directory, str(lines), run=run))
        # Short ones fall into the recovery, which is what a start begins with.
        time.sleep(rng.choice((rng.uniform(0, 0.01), rng.uniform(0, 0.06), rng.uniform(0.03, 0.15))))
        status = kill_child(pid)
        ledger.read(lines)
        totals.kills += 1
        totals.kills_before_begun += ledger.runs == begun
        if status != -9:
            totals.problems.append(f"run {run} ended by itself with {status}: {ledger.failures} {ledger.notes[-3:]}")
        until_check -= 1
        if until_check < 0 or run == count:
            is_last = run == count
            report = check_directory(
                directory,
                ledger,
                level="written",
                is_whole=is_last or rng.random() < 0.1,
                is_closing=rng.random() < 0.2,
            )
            _add(totals, report, f"run {run}")
            until_check = rng.choice((0, 0, 1, 2, 5))
        totals.problems += complaints(ledger)
        if totals.problems:
            break
    totals.acked += ledger.acked_count()
    totals.written += ledger.written_count()
    totals.stored += sum(map(len, ledger.seen.values()))


def _add(totals: Totals, report: Report, where: str) -> None:
    totals.checks += 1
    totals.lost += report.lost
    totals.problems += [f"{where}: {problem}" for problem in report.problems]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", help="a directory for what a failure leaves")
    options = parser.parse_args()
    rng, totals, started = Random(options.seed), Totals(), time.monotonic()
    places = [None, memory_directory()]
    number = 0
    while totals.kills < options.count and not totals.problems:
        with scratch(places[number % 2]) as place:
            kill_round(place, min(KILLS_PER_DIRECTORY, options.count - totals.kills), rng, totals)
            if totals.problems:
                keep(place, options.keep, f"kills-{number}")
        number += 1
        seconds = time.monotonic() - started
        say(f"{totals.kills} kills in {seconds:.0f} s, {totals.acked} messages acked, {totals.lost} lost")
    summary = {
        "kills": totals.kills,
        "kills_inside_recovery": totals.kills_before_begun,
        "checks": totals.checks,
        "acked": totals.acked,
        "written": totals.written,
        "stored": totals.stored,
        "lost": totals.lost,
        "seconds": round(time.monotonic() - started, 1),
    }
    return finish(summary, totals.problems[:PROBLEMS_MAX])


if __name__ == "__main__":
    run_command(main)
