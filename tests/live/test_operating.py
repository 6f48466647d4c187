"""A real broker as its operator has it: signals, stops, a small disk, a disk that may not be written."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time

import pytest

import lakemq
from faults.mounts import need_mounts, run, tmpfs
from faults.smallfs import fill
from faults.tools import CannotRunError
from fix_live import DEV, STRICT, LiveBroker
from lakemq.errors import LakeMQError

pytestmark = [pytest.mark.live, pytest.mark.timeout(120)]
SECONDS = 60
MIB = 1 << 20


def until(condition, what):
    deadline = time.monotonic() + SECONDS
    while not (found := condition()):
        assert time.monotonic() < deadline, f"still not: {what}"
        time.sleep(0.01)
    return found


@contextlib.contextmanager
def running(directory, **details):
    broker = LiveBroker(directory, **details).start()
    try:
        yield broker
    finally:
        broker.stop()
    broker.check_stderr()


def messages(broker):
    """What the log says, line by line."""
    return [json.loads(line)["message"] for line in broker.stderr().splitlines() if line.startswith("{")]


def client(broker, **details):
    return lakemq.connect(f"lakemq://127.0.0.1:{broker.port}", app="shop", **details)


@pytest.mark.parametrize(
    "details", [{"mode": DEV}, {"mode": STRICT, "options": ("--workers", "2")}], ids=["one", "workers"]
)
def test_a_hangup_is_noted_and_does_not_stop_the_broker(tmp_path, details):
    with running(tmp_path, **details) as broker:
        for _ in range(3):
            os.kill(broker.pid, signal.SIGHUP)
        until(lambda: [one for one in messages(broker) if one.startswith("SIGHUP")], "the log says so")
        assert broker.is_running
        if details["mode"] == DEV:
            with client(broker) as mq:
                assert mq.send("orders", "after")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_every_stop_is_in_the_log_with_its_reason(tmp_path, number):
    broker = LiveBroker(tmp_path).start()
    os.kill(broker.pid, number)
    assert broker._wait(SECONDS) == 0
    broker.stop()
    assert messages(broker)[-2:] == [f"stopping: {number.name}", "stopped"]


def test_the_stop_of_workers_is_in_the_log_with_its_reason(tmp_path):
    broker = LiveBroker(tmp_path, mode=STRICT, options=("--workers", "2")).start()
    broker.stop()
    assert "stopping all workers: SIGTERM" in messages(broker)
    assert messages(broker)[-1] == "all workers have stopped"


def test_a_broker_that_is_tried_out_reserves_64_mib_and_a_strict_one_a_gib(tmp_path):
    for mode, size in ((DEV, 64 * MIB), (STRICT, 1024 * MIB)):
        with running(tmp_path / mode[0], mode=mode) as broker:
            (segment,) = (broker.data / "journal").iterdir()
            assert segment.stat().st_size == size


@pytest.fixture
def small(tmp_path):
    """A disk of 80 MiB: room for one segment of 64."""
    try:
        need_mounts()
    except CannotRunError as error:
        pytest.skip(str(error))
    with tmpfs(tmp_path / "small", 80 * MIB) as root:
        yield root


class SmallBroker(LiveBroker):
    def __init__(self, directory, data):
        super().__init__(directory)
        self.data = data


def ask(broker, path):
    """Status and JSON of an answer of the operators' port."""
    import http.client

    connection = http.client.HTTPConnection("127.0.0.1", broker.admin_port, timeout=SECONDS)
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {broker.admin_token}"})
        answer = connection.getresponse()
        return answer.status, json.load(answer)
    finally:
        connection.close()


def send_until_refused(mq):
    for _ in range(2000):
        mq.send("orders", os.urandom(100_000))


def test_F18_a_full_disk_is_named_in_the_log_and_to_operators_and_is_over_by_itself(tmp_path, small):
    broker = SmallBroker(tmp_path, small / "data").start()
    try:
        fill(small / "filler")
        with client(broker, timeout="2s") as mq, pytest.raises(LakeMQError) as refused:
            send_until_refused(mq)
        assert "disk is full" in f"{refused.value} {refused.value.cause}"
        until(lambda: [one for one in messages(broker) if f"the disk of {small}/data is full" in one], "a log line")
        assert "64.0 MiB are needed" in ask(broker, "/v1/broker")[1]["disk_full"]
        status, said = ask(broker, "/readyz")
        assert (status, said["checks"]["disk"]["is_ok"]) == (503, False)
        assert "is full" in said["checks"]["disk"]["detail"]
        (small / "filler").unlink()
        run("mount", "-o", "remount,size=256m", str(small))
        until(lambda: ask(broker, "/v1/broker")[1]["disk_full"] is None, "room is seen")
        assert any("has room again" in one for one in messages(broker))
        with client(broker) as mq:
            mq.send("orders", "there is room")
    finally:
        broker.stop()
    broker.check_stderr()


def start_fails(data):
    """What a start says that fails."""
    done = subprocess.run(
        [sys.executable, "-m", "lakemq", "dev", "--data", str(data), "--port", "0", "--admin-port", "0"],
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
    )
    assert done.returncode == 1, done
    assert "Traceback" not in done.stderr
    return done.stderr


def test_a_start_without_room_says_how_much_is_needed(small):
    fill(small / "filler")
    said = start_fails(small / "data")
    assert f"the disk of {small}/data is full: 64 MiB are needed for a segment of the journal, " in said
    assert "  fix   free space there" in said


def test_a_start_on_a_disk_that_is_mounted_read_only_says_so(tmp_path, small):
    broker = SmallBroker(tmp_path, small / "data").start()
    broker.stop()
    run("mount", "-o", "remount,ro", str(small))
    said = start_fails(small / "data")
    assert "Read-only file system" in said
    assert "  fix   mount that file system for writing" in said
    assert "no format file" not in said
