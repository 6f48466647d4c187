"""Real broker processes that are made to be killed, traced, stopped and looked into.

    python -m tests.faults.broker_process        a nursery: forks brokers that have loaded everything already

A broker is started as an operator starts it, settings in its directory's `lakemq.toml`. Where it is started a thousand
times, a nursery forks it: the same code from reading the settings on, without a second of loading modules each time.
"""

import contextlib
import gc
import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .broker_plants import PLANTS
from .tools import ROOT
from .writer import die_with_parent

if str(ROOT / "tests") not in sys.path:  # as pytest has it, for what is shared with other tests
    sys.path.insert(0, str(ROOT / "tests"))

from fix_live import DEV, LiveBroker

Sections = dict[str, dict[str, int | str | bool]]
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_CAPPED = re.compile(r'^lakemq_capped_total\{limit="(\w+)"\} ([0-9.e+]+)$', re.MULTILINE)
_SAMPLE = re.compile(r"^lakemq_(\w+) ([0-9.e+]+)$", re.MULTILINE)
_HTTP_SECONDS = 20


class FaultBroker(LiveBroker):
    """A broker with settings of its own, and with eyes on its memory, files and threads."""

    def __init__(
        self, directory: Path, sections: Sections | None = None, *, files_max: int = 0, data: Path | None = None
    ) -> None:
        super().__init__(directory, mode=DEV)
        self.data = data or self.data
        self.keeps_port = False  # take the same one at the next start; who wants that risks that it is taken
        self._files_max = files_max
        (self.directory / "lakemq.toml").write_text(_toml(sections or {}))

    def command(self) -> list[str]:
        command = super().command()
        if self.keeps_port and self.port:
            command[command.index("--port") + 1] = str(self.port)
        if shutil.which("setpriv"):  # no broker outlives the test that started it
            command = ["setpriv", "--pdeathsig", "KILL", *command]
        if self._files_max:  # both limits, or the broker raises the one to the other
            command = ["prlimit", f"--nofile={self._files_max}:{self._files_max}", *command]
        return command

    def signal(self, number: int) -> None:
        """Send it a signal."""
        os.kill(self.pid, number)

    def wait_for_end(self, seconds: float) -> int | None:
        """Its exit status, once it has ended by itself; None if it has not."""
        status = self._wait(seconds)
        if status is not None:
            self._process = None
        return status

    def end(self) -> None:
        """Whatever state it is in, it is gone afterwards."""
        if self.is_running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGCONT)
        self._end_by_force()

    # What it takes.

    def rss_bytes(self) -> int:
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * _PAGE_BYTES

    def anon_bytes(self) -> int:
        """The same without files that are mapped: those pages are the system's to take back."""
        return int(_status_of(self.pid)["RssAnon"].split()[0]) * 1024

    def mapped_bytes(self) -> int:
        """Pages of files in its memory: programs, and what was read of mapped segments."""
        return int(_status_of(self.pid)["RssFile"].split()[0]) * 1024

    def peak_bytes(self) -> int:
        """The most it ever had, or had since `forget_peak`."""
        return int(_status_of(self.pid)["VmHWM"].split()[0]) * 1024

    def forget_peak(self) -> None:
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")

    def address_bytes(self) -> int:
        return int(_status_of(self.pid)["VmSize"].split()[0]) * 1024

    def mapped_segments(self) -> int:
        return Path(f"/proc/{self.pid}/maps").read_text().count(f"{self.data}/journal/")

    def fd_count(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def thread_count(self) -> int:
        return int(_status_of(self.pid)["Threads"])

    # What it counts.

    def metrics(self) -> str:
        """A scrape."""
        connection = http.client.HTTPConnection("127.0.0.1", self.admin_port, timeout=_HTTP_SECONDS)
        try:
            connection.request("GET", "/metrics", headers={"Authorization": f"Bearer {self.admin_token}"})
            answer = connection.getresponse()
            text = answer.read().decode()
        finally:
            connection.close()
        assert answer.status == 200, f"/metrics: {answer.status} {text[:200]}"
        return text

    def capped(self) -> dict[str, int]:
        """How often which limit was reached."""
        return {name: int(float(value)) for name, value in _CAPPED.findall(self.metrics())}

    def gauges(self) -> dict[str, float]:
        """Everything that has no labels."""
        return {name: float(value) for name, value in _SAMPLE.findall(self.metrics())}


def _status_of(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _toml(sections: Sections) -> str:
    lines = []
    for section, values in sections.items():
        lines.append(f"[{section}]")
        lines += [f"{name} = {json.dumps(value)}" for name, value in values.items()]
    return "\n".join(lines) + "\n"


@contextlib.contextmanager
def broker(
    directory: Path, sections: Sections | None = None, *, files_max: int = 0, data: Path | None = None
) -> Iterator[FaultBroker]:
    """A broker that serves, and is gone afterwards however it ends."""
    one = FaultBroker(directory, sections, files_max=files_max, data=data)
    try:
        yield one.start()
    finally:
        one.end()


# --- many, one after the other ---------------------------------------------------------------------------------------


class Nursery:
    """The process that forks brokers, as seen from outside."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.broker_process"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, *words: Any) -> Any:
        """One question, one answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(words) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"the nursery ended with {self._process.wait(10)}"
        return json.loads(line)

    def close(self) -> None:
        """End it, and what it has forked."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(10)

    def __enter__(self) -> "Nursery":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Child:
    """A process that the nursery forked, with what LiveBroker wants of a process."""

    def __init__(self, nursery: Nursery, pid: int) -> None:
        self._nursery = nursery
        self.pid = pid
        self._status: int | None = None

    def poll(self) -> int | None:
        if self._status is None:
            self._status = self._nursery.ask("poll", self.pid)
        return self._status

    def wait(self, seconds: float) -> int:
        deadline = time.monotonic() + seconds
        while (status := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("a forked broker", seconds)
            time.sleep(0.001)
        return status

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)


class ForkedBroker(FaultBroker):
    """A broker that comes out of a nursery."""

    def __init__(
        self, nursery: Nursery, directory: Path, sections: Sections | None = None, *, plant: str | None = None
    ) -> None:
        super().__init__(directory, sections)
        self._nursery = nursery
        self._plant = plant

    def _spawn(self) -> _Child:
        places = self.directory, self.data, self.directory / "ready.json", self.stderr_path
        return _Child(self._nursery, self._nursery.ask("fork", *map(str, places), self._plant))

    def start_and_kill(self, seconds: float) -> None:
        """Begin a start and kill it soon after, wherever it is."""
        self._process = self._spawn()
        time.sleep(seconds)
        self._process.kill()
        status = self._wait(30)
        assert status == -signal.SIGKILL, f"a start ended by itself with {status}\n{self.stderr()}"
        self._process = None


def _load() -> Any:
    """All that a broker loads, as far as that starts no thread."""
    import prometheus_client
    import uvicorn  # noqa: F401
    import uvloop  # noqa: F401

    import lakemq.cli.serving
    import lakemq.world.admin_app  # noqa: F401
    from lakemq.cli.broker import serve

    assert prometheus_client
    return serve


def _be_broker(serve: Any, directory: str, data: str, ready: str, stderr: str, plant: str | None) -> int:
    die_with_parent()
    if plant is not None:
        PLANTS[plant]()
    os.chdir(directory)
    file = os.open(stderr, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o640)
    for number in (1, 2):
        os.dup2(file, number)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    flags = {"server.data": Path(data), "server.port": 0, "admin.port": 0, "broker.creates_missing": True}
    return int(serve(None, flags, Path(ready)))


def main() -> None:
    """Fork brokers as asked on stdin, until nobody asks any more."""
    die_with_parent()
    serve = _load()
    gc.collect()
    gc.freeze()  # so that a start has less to look at
    pids: set[int] = set()
    for line in sys.stdin:
        word, *rest = json.loads(line)
        if word == "fork":
            pid = os.fork()
            if pid == 0:
                status = 70
                try:
                    status = _be_broker(serve, *rest)
                except BaseException:
                    import traceback

                    traceback.print_exc()
                finally:
                    os._exit(status)
            pids.add(pid)
            answer: int | None = pid
        else:
            found, raw = os.waitpid(rest[0], os.WNOHANG)
            answer = os.waitstatus_to_exitcode(raw) if found else None
            if found:
                pids.discard(found)
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
