"""Cut the power under a writing process, many times on one file system (F10).

    python -m tests.faults.power_cuts --count 300

ext4 and xfs by turns. All that was acked after a sync must be there when the power is back, and so must all that a
check has read before. Some cuts come while the store recovers from the one before, some after it was closed in peace,
and before some of them a part of the dirty pages reaches the device out of order.
"""

import argparse
import time
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from .checker import check_directory, complaints
from .ledger import Ledger
from .loopfs import KINDS, LoopFs, loop_fs, write_back_some
from .tools import CannotRunError, finish, keep, kill_child, memory_directory, run_command, say, scratch
from .writer import EXIT_FAILED, EXIT_NOT_OPENED, Options, fork_writer

CUTS_PER_FILE_SYSTEM = 15
PROBLEMS_MAX = 10
_EXPECTED = (-9, 0, EXIT_FAILED, EXIT_NOT_OPENED)


@dataclass
class Totals:
    """What all rounds came to."""

    cuts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))
    cuts_before_begun: int = 0  # inside recovery
    cuts_after_closed: int = 0
    checks: int = 0
    acked: int = 0
    written: int = 0
    stored: int = 0
    lost: int = 0
    problems: list[str] = field(default_factory=list)


def cut_round(fs: LoopFs, lines: Path, count: int, rng: Random, totals: Totals, **planted: bool) -> None:
    """So many cuts on one file system."""
    directory, ledger = fs.root / "data", Ledger()
    until_check = 0
    for run in range(1, count + 1):
        begun = ledger.runs
        turns = rng.choice((0, 0, 0, rng.randrange(1, 60)))
        pid = fork_writer(Options(str(directory), str(lines), run=run, turns=turns, **planted))
        time.sleep(rng.choice((rng.uniform(0, 0.03), rng.uniform(0.02, 0.3), rng.uniform(0.1, 0.3))))
        if rng.random() < 0.4:
            write_back_some(fs.root, rng)
        said_bytes = lines.stat().st_size if lines.exists() else 0
        fs.cut_power()
        status = kill_child(pid)
        ledger.read(lines, until=said_bytes)
        # A sync that is running when the power goes may yet return as if all were well (seen on ext4: pages are
        # written, but their extents no longer can be). After a real cut nobody would be left to hear it.
        ledger.read(lines, is_void=True)
        totals.cuts[fs.kind] += 1
        totals.cuts_before_begun += ledger.runs == begun
        totals.cuts_after_closed += ledger.is_closed
        if status not in _EXPECTED or any("bug" in text or "taken" in text for text in ledger.failures):
            totals.problems.append(f"{fs.kind} run {run} ended with {status}: {ledger.failures}")
        fs.power_on()
        until_check -= 1
        if until_check < 0 or run == count:
            report = check_directory(str(directory), ledger, is_closing=rng.random() < 0.2)
            totals.checks += 1
            totals.lost += report.lost
            totals.problems += [f"{fs.kind} run {run}: {problem}" for problem in report.problems]
            until_check = rng.choice((0, 0, 1, 2))
        totals.problems += complaints(ledger)
        if totals.problems:
            break
    totals.acked += ledger.acked_count()
    totals.written += ledger.written_count()
    totals.stored += sum(map(len, ledger.seen.values()))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--lie-about-sync", action="store_true", help="plant a bug, to see it caught")
    parser.add_argument("--ack-before-sync", action="store_true", help="plant a bug, to see it caught")
    parser.add_argument("--keep", help="a directory for what a failure leaves")
    options = parser.parse_args()
    planted = {"lie_about_sync": options.lie_about_sync, "ack_before_sync": options.ack_before_sync}
    rng, totals, started = Random(options.seed), Totals(), time.monotonic()
    kinds, number, done = list(options.kinds), 0, 0
    while done < options.count and not totals.problems:
        kind = kinds[number % len(kinds)]
        count = min(CUTS_PER_FILE_SYSTEM, options.count - done)
        try:
            with scratch(memory_directory()) as place, loop_fs(kind, place) as fs:
                cut_round(fs, place / "ledger", count, rng, totals, **planted)
                if totals.problems:
                    keep(fs.root / "data", options.keep, f"power-cuts-{number}/data")
                    keep(place / "ledger", options.keep, f"power-cuts-{number}/ledger")
        except CannotRunError as error:
            if len(kinds) == 1:
                raise
            say(f"no {kind} here: {error}")
            kinds.remove(kind)
            continue
        number += 1
        done = sum(totals.cuts.values())
        seconds = time.monotonic() - started
        say(f"{done} cuts in {seconds:.0f} s, {totals.acked} messages acked, {totals.lost} lost")
    summary = {
        "cuts": done,
        **totals.cuts,
        "cuts_inside_recovery": totals.cuts_before_begun,
        "cuts_after_close": totals.cuts_after_closed,
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
