"""A disk that runs full, is freed and runs full again, under a writing process (F18, SMALLFS).

    python -m tests.faults.smallfs --rounds 3

While it is full, appends are refused and leave nothing behind, and reads go on. When there is room again the same
process goes on by itself. Killed on the full disk, nothing acked or written is lost, nothing refused is there.
"""

import argparse
import contextlib
import copy
import time
from collections.abc import Callable
from pathlib import Path

from .checker import check_directory
from .ledger import Ledger
from .mounts import run, tmpfs
from .tools import finish, kill_child, run_command, say, scratch, wait_for
from .writer import Options, fork_writer

SIZE_BYTES = 16 << 20
_WAIT_SECONDS = 30
_REFUSED = 300


def fill_round(root: Path, lines: Path) -> tuple[Ledger, list[str]]:
    """At work, full to the last byte, freed, at work again, full, killed."""
    ledger, filler = Ledger(), root / "filler"
    pid = fork_writer(Options(str(root / "data"), str(lines)))
    try:
        for is_last in (False, True):
            acked = ledger.acked_count()
            _wait(ledger, lines, lambda acked=acked: ledger.acked_count() > acked + 100, "100 more acks")
            fill(filler)
            refused = len(ledger.refused)
            _wait(ledger, lines, lambda refused=refused: len(ledger.refused) > refused + _REFUSED, "refusals")
            if not is_last:
                filler.unlink()
    except TimeoutError as error:
        return ledger, [f"{error}; {ledger.acked_count()} acked, {len(ledger.refused)} refused, {ledger.notes[-3:]}"]
    finally:
        kill_child(pid)
        ledger.read(lines)
    return ledger, [f"the writer: {text}" for text in ledger.failures]


def fill(path: Path) -> None:
    """Leave not a byte."""
    with open(path, "wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            with contextlib.suppress(OSError):
                while file.write(bytes(size)):
                    pass


def _wait(ledger: Ledger, lines: Path, condition: Callable[[], bool], what: str) -> None:
    wait_for(lambda: condition() or ledger.read(lines).failures, _WAIT_SECONDS, what)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    problems: list[str] = []
    acked = refused = lost = checks_on_full_disk = 0
    started = time.monotonic()
    for number in range(1, options.rounds + 1):
        with scratch() as place, tmpfs(place / "small", SIZE_BYTES) as root:
            ledger, found = fill_round(root, place / "ledger")
            problems += found
            # A start on a full disk can write nothing, not even a checkpoint, and reads all the same.
            report = check_directory(str(root / "data"), copy.deepcopy(ledger), level="written")
            checks_on_full_disk += report.ok
            say(f"round {number}, a start on the full disk: {report}")
            (root / "filler").unlink(missing_ok=True)
            run("mount", "-o", f"remount,size={4 * SIZE_BYTES}", str(root))
            report = check_directory(str(root / "data"), ledger, level="written")
            problems += report.problems
            lost += report.lost
            acked += ledger.acked_count()
            refused += len(ledger.refused)
        say(f"round {number}: {acked} messages acked, {refused} refused, {lost} lost")
        if problems:
            break
    summary = {
        "rounds": number,
        "acked": acked,
        "refused": refused,
        "lost": lost,
        "starts_on_full_disk": checks_on_full_disk,
        "seconds": round(time.monotonic() - started, 1),
    }
    return finish(summary, problems[:10])


if __name__ == "__main__":
    run_command(main)
