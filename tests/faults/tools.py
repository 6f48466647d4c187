"""What the fault commands share: telling, and giving up where a machine cannot do what a test needs."""

import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

EXIT_CANNOT_RUN = 77
ROOT = Path(__file__).parents[2]


class CannotRunError(Exception):
    """This machine lacks something: a tool, a right, a file system. Says what."""


class MissingToolError(CannotRunError):
    """A program that a package would bring; where everything should be installed, this is a failure."""


def need_tools(*names: str) -> None:
    """MissingToolError for the first program that is not installed."""
    for name in names:
        if shutil.which(name) is None:
            raise MissingToolError(f"{name} is not installed: `python dev.py system-packages`, as root")


def need_root() -> None:
    """CannotRunError unless we may mount."""
    if os.geteuid() != 0:
        raise CannotRunError("only root may mount file systems")


def say(text: str) -> None:
    """One line of progress."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def finish(summary: dict[str, object], problems: list[str]) -> int:
    """Tell what came of it, the summary as one line of JSON at the end; the exit status."""
    for problem in problems:
        say(f"PROBLEM {problem}")
    say(json.dumps(summary))
    return 1 if problems else 0


def run_command(main: Callable[[], int]) -> None:
    """Run a fault command to its end, with its own exit status for what this machine cannot do."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that mounts are taken down
    try:
        status = main()
    except CannotRunError as error:
        say(f"cannot run here: {error}")
        status = EXIT_CANNOT_RUN
    sys.exit(status)


@contextmanager
def scratch(where: str | None = None) -> Iterator[Path]:
    """An empty directory that is gone afterwards."""
    path = Path(tempfile.mkdtemp(prefix="lakemq-faults-", dir=where))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def keep(place: Path, where: str | None, name: str) -> None:
    """Copy what a failure left, for a look afterwards, if one is wanted."""
    if where is not None:
        target = Path(where) / name
        target.parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if place.is_dir() else shutil.copy)(place, target)
        say(f"kept in {target}")


def memory_directory() -> str | None:
    """A place in memory, where a sync costs nothing; None if there is none with room."""
    place = "/dev/shm"
    if not os.access(place, os.W_OK) or shutil.disk_usage(place).free < 1 << 30:
        return None
    return place


def kill_child(pid: int) -> int:
    """Kill -9 a child of ours and wait for its end; its exit status, -9 if the kill was what ended it."""
    os.kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def wait_for(condition: Callable[[], object], seconds: float, what: str) -> None:
    """Wait until it holds; TimeoutError names what did not come."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"after {seconds} s still not: {what}")
        time.sleep(0.002)
