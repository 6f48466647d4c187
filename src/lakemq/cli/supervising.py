"""The parent of several worker processes: starts them, starts again those that died, passes SIGTERM on.

With a directory to watch it also starts all of them anew when a source file changes.
"""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue

from lakemq.cli.failure import DONE, FAILED, MISSING, NOT_FOUND, NOT_PERMITTED, USAGE
from lakemq.cli.printing import remark
from lakemq.cli.working import LIFELINE

_HOPELESS = (USAGE, NOT_FOUND, MISSING, NOT_PERMITTED)  # it ends like this again, until somebody changes something
_PAUSE_FIRST_S = 1.0
_PAUSE_MAX_S = 30.0
_WELL_S = 60.0  # a process that has run for so long begins with short pauses again
_LOOK_S = 0.5
_GRACE_S = 5.0  # beyond the time that handlers have
_FILES_MAX = 20_000
_NOT_LOOKED_INTO = {"__pycache__", "node_modules", "site-packages", "venv"}


@dataclass(slots=True)
class _Place:
    """One of the processes that there shall be."""

    process: "subprocess.Popen[bytes] | None" = None
    started: float = 0.0
    due: float | None = 0.0  # when to start it; None: not again
    pause_s: float = _PAUSE_FIRST_S


class Sources:
    """The Python files below some directories, and when they were changed."""

    def __init__(self, directories: Sequence[Path]) -> None:
        self._directories = directories
        self._seen = self._look()

    def changed(self) -> list[Path]:
        """Those that came, went or were written since this was last asked."""
        seen, self._seen = self._seen, self._look()
        return sorted(path for path in seen.keys() | self._seen.keys() if seen.get(path) != self._seen.get(path))

    def _look(self) -> dict[Path, int]:
        found: dict[Path, int] = {}
        for path in self._paths():
            try:
                found[path] = path.stat().st_mtime_ns
            except OSError:  # gone meanwhile
                continue
            if len(found) >= _FILES_MAX:
                break
        return found

    def _paths(self) -> Iterator[Path]:
        for root in self._directories:
            for directory, inside, files in os.walk(root):
                inside[:] = sorted(one for one in inside if not one.startswith(".") and one not in _NOT_LOOKED_INTO)
                yield from (Path(directory, one) for one in files if one.endswith(".py"))


class Supervisor:
    """Keeps so many processes of one command running."""

    def __init__(self, command: list[str], count: int, reload_dirs: Sequence[Path], shutdown_ms: int) -> None:
        self._command = command
        self._places = [_Place() for _ in range(count)]
        self._sources = Sources(reload_dirs) if reload_dirs else None
        self._end_s = shutdown_ms / 1000 + _GRACE_S
        self._bell: SimpleQueue[int | None] = SimpleQueue()  # numbers of signals; None: a process has ended
        self._lifeline, self._held = os.pipe()
        self._status = DONE
        self._stopping: float | None = None  # since when
        self._is_reloading = False

    def run(self) -> int:
        """Until told to stop; the exit code."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda number, _: self._bell.put(number))
        while self._stopping is None or self._running():
            now = time.monotonic()
            if self._stopping is None:
                self._start_due(now)
                self._look_at_sources()
                if self._sources is None and all(one.process is None and one.due is None for one in self._places):
                    break
            elif now - self._stopping > self._end_s:
                self._kill()
            self._rest()
        return self._status

    def _running(self) -> list["subprocess.Popen[bytes]"]:
        return [one.process for one in self._places if one.process is not None]

    def _rest(self) -> None:
        try:
            number = self._bell.get(timeout=_LOOK_S)
        except Empty:
            return
        if number is None:
            for place in self._places:
                if place.process is not None and place.process.poll() is not None:
                    self._ended(place, place.process.returncode)
        elif self._stopping is None:
            self._stopping = time.monotonic()
            self._tell(signal.SIGTERM)
        elif number == signal.SIGINT:
            self._tell(signal.SIGINT)

    def _start_due(self, now: float) -> None:
        if self._is_reloading and self._running():
            return  # the old ones finish first
        self._is_reloading = False
        for place in self._places:
            if place.process is None and place.due is not None and place.due <= now:
                place.process = self._started()
                place.started = now

    def _started(self) -> "subprocess.Popen[bytes]":
        environment = {**os.environ, LIFELINE: str(self._lifeline)}
        process = subprocess.Popen(self._command, env=environment, pass_fds=(self._lifeline,), stdin=subprocess.DEVNULL)

        def watch() -> None:
            process.wait()
            self._bell.put(None)

        threading.Thread(target=watch, name=f"lakemq-worker-{process.pid}", daemon=True).start()
        return process

    def _ended(self, place: _Place, status: int) -> None:
        pid = place.process.pid if place.process is not None else 0
        place.process = None
        if self._stopping is not None or self._is_reloading:
            if status != 0 and self._status == DONE and status != -signal.SIGTERM and not self._is_reloading:
                self._status = FAILED
            return
        if status == 0:  # its program has called stop
            place.due = None
            return
        if self._sources is not None:
            remark(f"worker {pid} ended with {status}; a change of a file starts it again")
            place.due = None
            return
        if status in _HOPELESS:
            self._status = status
            self._stopping = time.monotonic()
            self._tell(signal.SIGTERM)
            return
        now = time.monotonic()
        if now - place.started > _WELL_S:
            place.pause_s = _PAUSE_FIRST_S
        remark(f"worker {pid} ended with {status}; another is started in {place.pause_s:.0f} s")
        place.due, place.pause_s = now + place.pause_s, min(2 * place.pause_s, _PAUSE_MAX_S)

    def _look_at_sources(self) -> None:
        changed = self._sources.changed() if self._sources is not None else []
        if not changed:
            return
        remark(f"{changed[0]} has changed; starting anew")
        self._is_reloading = True
        for place in self._places:
            place.due = 0.0
        self._tell(signal.SIGTERM)

    def _tell(self, number: int) -> None:
        for process in self._running():
            process.send_signal(number)

    def _kill(self) -> None:
        for process in self._running():
            remark(f"worker {process.pid} does not end, and is killed")
            process.kill()
        self._status = FAILED
        self._stopping = time.monotonic()
