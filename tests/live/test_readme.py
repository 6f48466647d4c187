"""The README is true: its two terminals and its programs run as they are printed.

Ports come from the environment, so that the commands stay as they are; in programs the port is replaced. What a command
prints is compared with the page, numbers left out.
"""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "README.md").read_text(encoding="utf-8")
SECONDS = 60
ADDRESS = "127.0.0.1:50088"

pytestmark = pytest.mark.live


def blocks(kind):
    """The blocks of one kind, in their order."""
    return re.findall(rf"^```{kind}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


def transcript(block):
    """(command, what it prints) of each line that begins with a prompt."""
    parts = re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]
    return [(command, output) for command, _, output in (part.partition("\n") for part in parts)]


FIRST_TERMINAL, SECOND_TERMINAL = map(transcript, blocks("console"))
PROGRAMS = blocks("python")


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def environment(**more):
    """Ours without what would make a user's commands differ from a newcomer's."""
    return {name: value for name, value in os.environ.items() if not name.startswith("LAKEMQ_")} | more


@pytest.fixture(scope="module")
def terminal(tmp_path_factory):
    """A directory with `.venv` in it, and the first terminal's command at work."""
    directory = tmp_path_factory.mktemp("newcomer")
    (directory / ".venv").symlink_to(sys.prefix)
    port = free_port()
    variables = environment(LAKEMQ_SERVER__PORT=str(port), LAKEMQ_ADMIN__PORT=str(free_port()))
    ((command, _),) = FIRST_TERMINAL
    broker = subprocess.Popen(
        ["sh", "-c", f"exec {command}"], cwd=directory, env=variables, stderr=subprocess.PIPE, text=True
    )
    try:
        said = broker.stderr.readline()
        assert json.loads(said)["event"] == "serving", said + broker.stderr.read()
        yield directory, variables, port
    finally:
        broker.send_signal(signal.SIGINT)  # as Ctrl-C does
        rest = broker.communicate(timeout=SECONDS)[1]
    assert [json.loads(line)["message"] for line in rest.splitlines()] == ["stopping: SIGINT", "stopped"]
    assert broker.returncode == 0


def run(command, directory, variables):
    done = subprocess.run(
        command,
        cwd=directory,
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def without_numbers(text):
    """The lines in any order, each with its numbers and gaps left out: which partition comes first is not said."""
    return sorted(re.sub(r"\d+(\.\d+)?", "#", re.sub(r" +", " ", line)).strip() for line in text.splitlines())


def test_the_second_terminal_prints_what_the_page_says(terminal):
    directory, variables, _ = terminal
    for command, said in SECOND_TERMINAL:
        assert without_numbers(run(["sh", "-c", command], directory, variables)) == without_numbers(said), command


def programs(predicate):
    return [pytest.param(text, id=f"program-{nth}") for nth, text in enumerate(PROGRAMS) if predicate(text)]


@pytest.mark.parametrize("program", programs(lambda text: ADDRESS in text))
def test_a_program_talks_to_that_broker(terminal, program):
    directory, variables, port = terminal
    printed = run([sys.executable, "-c", program.replace(ADDRESS, f"127.0.0.1:{port}")], directory, variables)
    receipt, *received = printed.splitlines()
    assert receipt.startswith("Receipt(topic='orders'")
    assert received


@pytest.mark.parametrize("program", programs(lambda text: ADDRESS not in text and "def test_" not in text))
def test_a_program_with_a_broker_inside_leaves_its_data(tmp_path, program):
    run([sys.executable, "-c", program], tmp_path, environment())
    assert (tmp_path / ".lakemq" / "journal").is_dir()


@pytest.mark.parametrize("program", programs(lambda text: "def test_" in text))
def test_a_test_with_the_fixture_passes(tmp_path, program):
    (tmp_path / "test_shop.py").write_text(program, encoding="utf-8")
    printed = run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"], tmp_path, environment())
    assert "1 passed" in printed


def test_every_program_of_the_page_is_run():
    assert len(PROGRAMS) == 4


def test_every_developer_command_is_a_target_and_the_other_way_round():
    said = set(re.findall(r"^\| `make ([\w-]+)` \|", PAGE, re.MULTILINE)) | {"demo", "test"}
    targets = set(
        re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)[1].split()
    )
    assert targets - {"help"} <= said
    assert said - targets <= {"sim"}
