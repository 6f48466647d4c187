"""Real brokers for tests: a process of our own on a free port, ended and looked into afterwards.

A broker is ready when its ready file says where it listens; nothing here sleeps. What it wrote to stderr is shown with
the test that failed, and a traceback in it fails the module even if every test passed.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

READY_S = 30.0
STOP_S = 30.0
_LOOK_AGAIN_S = 0.01
DEV, STRICT = ("dev",), ("broker", "start")


class BrokerError(Exception):
    """The broker did not do what a process must; with what it wrote."""


class LiveBroker:
    """A broker process over a data directory; it can be stopped, killed and started again."""

    def __init__(self, directory, *, mode=DEV, options=()):
        self.directory = Path(directory)
        self.directory.mkdir(parents=True, exist_ok=True)
        self.data = self.directory / "data"
        self.stderr_path = self.directory / "stderr.txt"
        self._ready_path = self.directory / "ready.json"
        self._mode, self._options = mode, options
        self._process = None
        self._shown_bytes = 0
        self.port = self.admin_port = self.pid = self.admin_token = None

    def command(self):
        places = ["--data", str(self.data), "--ready-file", str(self._ready_path)]
        ports = ["--port", "0", "--admin-port", "0"]
        return [sys.executable, "-m", "lakemq", *self._mode, *ports, *places, *self._options]

    def start(self):
        """Run it and wait until it serves."""
        assert not self.is_running, "it runs already"
        self._ready_path.unlink(missing_ok=True)
        self._process = self._spawn()
        try:
            self._take_ready(self._wait_until_ready())
        except BaseException:
            self._end_by_force()
            raise
        return self

    def _spawn(self):
        """The process, at its beginning."""
        with self.stderr_path.open("ab") as stderr:
            return subprocess.Popen(
                self.command(), stdin=subprocess.DEVNULL, stdout=stderr, stderr=stderr, cwd=self.directory
            )

    def _wait_until_ready(self):
        deadline = time.monotonic() + READY_S
        while True:
            status = self._wait(_LOOK_AGAIN_S)
            if status is not None:
                raise BrokerError(f"the broker ended with {status} before it served\n{self.stderr()}")
            ready = self._read_ready()
            if ready is not None:
                return ready
            if time.monotonic() > deadline:
                raise BrokerError(f"the broker does not serve after {READY_S} s\n{self.stderr()}")

    def _read_ready(self):
        """What the ready file says; None while it is not there or not whole."""
        try:
            return json.loads(self._ready_path.read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return None

    def _take_ready(self, ready):
        if ready["pid"] != self._process.pid:  # a test must never write to somebody else's broker
            raise BrokerError(f"process {ready['pid']} serves, which is not our child {self._process.pid}")
        self.port, self.admin_port = ready["port"], ready["admin_port"]
        self.pid, self.admin_token = ready["pid"], ready["admin_token"]

    @property
    def is_running(self):
        return self._process is not None and self._process.poll() is None

    def stop(self):
        """Ask it to end, as an operator does, and wait; it must end well."""
        if self._process is None:
            return
        if self.is_running:
            self._process.send_signal(signal.SIGTERM)
        status = self._wait(STOP_S)
        if status is None:
            self._end_by_force()
            raise BrokerError(f"the broker does not end {STOP_S} s after SIGTERM\n{self.stderr()}")
        self._process = None
        if status != 0:
            raise BrokerError(f"the broker ended with {status}\n{self.stderr()}")

    def kill(self):
        """Kill -9, and wait until it is gone."""
        assert self.is_running, f"it has ended by itself\n{self.stderr()}"
        os.kill(self.pid, signal.SIGKILL)
        status = self._wait(STOP_S)
        assert status == -signal.SIGKILL, f"it ended with {status}, which the kill did not do"
        self._process = None

    def restart(self):
        """Stop it and start it again over the same data; the port is another."""
        self.stop()
        return self.start()

    def _wait(self, seconds):
        """The exit status, None if it still runs after that long."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def _end_by_force(self):
        if self.is_running:
            self._process.kill()
            self._process.wait(STOP_S)
        self._process = None

    # What it wrote.

    def stderr(self):
        """All that it wrote, in all its lives."""
        return self.stderr_path.read_text(encoding="utf-8", errors="replace") if self.stderr_path.exists() else ""

    def new_stderr(self):
        """What it wrote since this was last asked."""
        text = self.stderr()
        new, self._shown_bytes = text[self._shown_bytes :], len(text)
        return new

    def check_stderr(self):
        """BrokerError if a traceback is in it: a bug that was answered with a status is still a bug."""
        if "Traceback (most recent call last)" in self.stderr():
            raise BrokerError(f"the broker wrote a traceback\n{self.stderr()}")


def start_broker(directory, *, mode=DEV, options=()):
    """A broker that serves; who starts it stops it."""
    return LiveBroker(directory, mode=mode, options=options).start()


def _run_broker(directory, mode):
    broker = start_broker(directory, mode=mode)
    try:
        yield broker
        if not broker.is_running:
            raise BrokerError(f"the broker ended by itself\n{broker.stderr()}")
    finally:
        broker.stop()
    broker.check_stderr()


@pytest.fixture(scope="module")
def live_broker(tmp_path_factory):
    """A broker in dev mode, for all tests of a module."""
    yield from _run_broker(tmp_path_factory.mktemp("broker"), DEV)


@pytest.fixture(scope="module")
def strict_broker(tmp_path_factory):
    """A broker that knows no topic, app or token but those it was told of."""
    yield from _run_broker(tmp_path_factory.mktemp("strict-broker"), STRICT)


@pytest.fixture
def shown_stderr(request):
    """What a module's broker wrote during a test; pytest shows it if the test fails."""
    names = [name for name in ("live_broker", "strict_broker") if name in request.fixturenames]
    brokers = [request.getfixturevalue(name) for name in names]
    yield
    for broker in brokers:
        sys.stderr.write(broker.new_stderr())
