"""A device that loses what it was given to write (F16, LOOPFULL).

    python -m tests.faults.loopfull --rounds 4

The image of a file system lies in a memory too small for it: when that is full, pages that a write took fail on their
way to the device. The first sync says so, the second calls it well although the bytes are nowhere. Half of the rounds
have a file system that stays usable after that, so that a store can be started again on what memory pretends; the
others have one whose own log breaks, and which refuses everything from then on.
"""

import argparse
import os
import time
from pathlib import Path

from .checker import check_directory
from .ledger import Ledger
from .loopfs import LoopFs, loop_fs
from .mounts import tmpfs
from .tools import finish, kill_child, run_command, say, scratch, wait_for
from .writer import EXIT_FAILED, Options, fork_writer

_MEMORY_BYTES = 48 << 20
_ROOM_BYTES = 10 << 20  # in it for what the writer writes
_IMAGE_BYTES = 200 << 20
_WAIT_SECONDS = 60
_MAKE_OPTIONS = ("-b", "4096", "-J", "size=4")
_LOG_TURNS = 1200  # so many small changes go once round the log
_KINDS = ("stays usable", "breaks")


def full_round(fs: LoopFs, memory: Path, lines: Path, is_usable: bool) -> tuple[Ledger, int, list[str]]:
    """Write until a sync fails, start again with and without a new mount: what was said, how much lost, problems."""
    directory = str(fs.root / "data")
    fs.write_by_page()
    if is_usable:
        _back_the_log(fs.root)
    ballast = memory / "ballast"
    with open(ballast, "wb") as file:
        free = os.statvfs(memory)
        os.posix_fallocate(file.fileno(), 0, free.f_bavail * free.f_frsize - _ROOM_BYTES)
    problems = []
    ledger = Ledger()
    status = _write_until_it_ends(directory, lines, ledger)
    if status != EXIT_FAILED or not any("DiskIOError" in text for text in ledger.failures):
        problems.append(f"the writer ended with {status}: {ledger.failures} {ledger.notes[-2:]}")
    if any("taken" in text for text in ledger.failures):
        problems.append(f"R3: {ledger.failures}")
    ballast.unlink()
    lost = 0
    if is_usable:  # what memory pretends to have must be written again before it is promised
        report = check_directory(directory, ledger)
        # Now and then the file system's own log breaks all the same, and it lets nobody write: a start that is refused
        # has promised nothing.
        if not any("Read-only file system" in problem for problem in report.problems):
            problems += [f"on what memory pretends: {problem}" for problem in report.problems]
            lost += report.lost
    fs.power_on()
    report = check_directory(directory, ledger)
    problems += [f"after a new mount: {problem}" for problem in report.problems]
    return ledger, lost + report.lost, problems


def _back_the_log(root: Path) -> None:
    """Use all of the file system's log once, so that memory is set aside for it and only data can fail."""
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for turn in range(_LOG_TURNS):
            path = root / f"filler-{turn // 2 % 7}"
            path.unlink() if turn % 2 else path.touch()
            os.fsync(fd)
    finally:
        os.close(fd)


def _write_until_it_ends(directory: str, lines: Path, ledger: Ledger) -> int:
    pid = fork_writer(Options(directory, str(lines)))
    ended: list[int] = []

    def has_ended() -> bool:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            ended.append(os.waitstatus_to_exitcode(status))
        return bool(done)

    try:
        wait_for(has_ended, _WAIT_SECONDS, "the end of a writer whose disk fails")
    except TimeoutError:
        ended.append(kill_child(pid))
    ledger.read(lines)
    return ended[0]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=4)
    options = parser.parse_args()
    problems: list[str] = []
    acked = lost = number = 0
    started = time.monotonic()
    while number < options.rounds and not problems:
        kind = _KINDS[number % 2]
        number += 1
        with scratch() as place, tmpfs(place / "memory", _MEMORY_BYTES) as memory:
            with loop_fs("ext4", memory, _IMAGE_BYTES, *_MAKE_OPTIONS) as fs:
                ledger, lost_now, found = full_round(fs, memory, place / "ledger", kind == "stays usable")
            acked += ledger.acked_count()
            lost += lost_now
            problems += [f"round {number}, a file system that {kind}: {problem}" for problem in found]
        say(f"round {number}, a file system that {kind}: {acked} messages acked, {lost} lost, {ledger.failures}")
    summary = {"rounds": number, "acked": acked, "lost": lost, "seconds": round(time.monotonic() - started, 1)}
    return finish(summary, problems[:10])


if __name__ == "__main__":
    run_command(main)
