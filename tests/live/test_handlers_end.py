"""How handlers end: real signals to real processes, against a real broker."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import lakemq
from fix_live import live_broker  # noqa: F401 - a fixture

pytestmark = pytest.mark.live

PROGRAM = Path(__file__).with_name("handler_program.py")
kinds = pytest.mark.parametrize("kind", ["blocking", "asyncio", "threads"])
END_S = 30


class Program:
    """One process of it, and what it has said."""

    def __init__(self, place, url, topic):
        self.place = place
        self.environment = {
            **os.environ,
            "HANDLER_PLACE": str(place),
            "HANDLER_TOPIC": topic,
            "LAKEMQ_URL": url,
            "PYTHONPATH": str(PROGRAM.parent),
            "PYTHONUNBUFFERED": "1",
        }
        self.process = None

    def start(self, *command):
        with (self.place / "stderr.txt").open("ab") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, *map(str, command)],
                env=self.environment,
                cwd=self.place,
                stdin=subprocess.DEVNULL,
                stdout=stderr,
                stderr=stderr,
            )
        return self

    def lines(self):
        path = self.place / "said.txt"
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []

    def said(self, *words):
        return [line[1:] for line in self.lines()].count(list(words))

    def stderr(self):
        return (self.place / "stderr.txt").read_text()

    def until(self, condition, what):
        deadline = time.monotonic() + END_S
        while not condition():
            assert time.monotonic() < deadline, f"{what}\n{self.lines()}\n{self.stderr()}"
            time.sleep(0.01)

    def until_said(self, *words):
        self.until(lambda: self.said(*words), f"it does not say {words}")

    def go(self):
        (self.place / "go").touch()

    def signal(self, number):
        self.process.send_signal(number)

    def end(self):
        """The exit status, which must come by itself."""
        return self.process.wait(END_S)

    def clean_up(self):
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait(END_S)


@pytest.fixture
def topic(request):
    return "".join(c if c.isalnum() else "-" for c in request.node.name)[:90]


@pytest.fixture
def url(live_broker):  # noqa: F811
    return f"lakemq://127.0.0.1:{live_broker.port}"


@pytest.fixture
def mq(url):
    with lakemq.connect(url, app="shop") as client:
        yield client


@pytest.fixture
def program(tmp_path, url, topic):
    # Whoever runs the tests in the background may ignore Ctrl-C, which a process hands on to those it starts.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    one = Program(tmp_path, url, topic)
    yield one
    one.clean_up()
    signal.signal(signal.SIGINT, before)


def others_get(mq, topic):
    """What another consumer of the group gets at once: much sooner than a lease would end."""
    with mq.consumer(topic, group="g", auto_ack=False) as consumer:
        return [message.body for message in consumer.receive(10, timeout="20s")]


@kinds
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_the_message_at_hand_be_finished_and_begins_no_other(program, mq, topic, kind, number):
    for body in (b"wait", b"next"):
        mq.send(topic, body, partition=0)
    program.start(PROGRAM, kind, "30s").until_said("begun", "wait")
    program.signal(number)
    program.until_said("told")
    program.go()
    assert program.end() == 0
    assert [line[1:] for line in program.lines()] == [["begun", "wait"], ["told"], ["done", "wait"], ["ended"]]
    assert others_get(mq, topic) == [b"next"]


@kinds
def test_what_takes_too_long_goes_back_at_once_and_the_process_ends(program, mq, topic, kind):
    for body in (b"wait", b"next"):
        mq.send(topic, body, partition=0)
    program.start(PROGRAM, kind, "200ms").until_said("begun", "wait")
    program.signal(signal.SIGTERM)
    assert program.end() == 0  # though the handler has not returned
    assert not program.said("done", "wait")
    assert program.said("ended")
    assert program.said("cancelled", "wait") == (1 if kind == "asyncio" else 0)
    assert others_get(mq, topic) == [b"wait", b"next"]
    assert "still at work" in program.stderr() or kind != "blocking"


@kinds
def test_a_second_ctrl_c_does_not_wait(program, mq, topic, kind):
    mq.send(topic, b"wait", partition=0)
    program.start(PROGRAM, kind, "10m").until_said("begun", "wait")
    program.signal(signal.SIGINT)

    def is_over():  # again and again: two signals at once are one
        if program.process.poll() is None:
            program.signal(signal.SIGINT)
        return program.process.poll() is not None

    program.until(is_over, "it waits")
    assert program.said("ended")
    assert others_get(mq, topic) == [b"wait"]


def test_a_program_without_work_ends_at_once(program, mq, topic):
    mq.send(topic, b"x")
    program.start(PROGRAM, "blocking", "10m").until_said("done", "x")
    program.signal(signal.SIGTERM)
    assert program.end() == 0
