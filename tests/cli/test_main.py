"""The `lakemq` command as a whole: what it loads, how it fails, how it ends."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from lakemq.cli import main
from lakemq.cli.failure import describe
from lakemq.errors import TopicNotFoundError
from lakemq.version import VERSION


def run_module(*arguments):
    command = [sys.executable, "-m", "lakemq", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def run_demo(monkeypatch):
    """Runs `lakemq demo` in this process with a stand-in for the demo; gives back the exit code."""

    def run_demo(show):
        monkeypatch.setitem(sys.modules, "lakemq.cli.demo", SimpleNamespace(show=show))
        monkeypatch.setattr(sys, "argv", ["lakemq", "demo"])
        with pytest.raises(SystemExit) as ended:
            main.run()
        return ended.value.code

    return run_demo


def raiser(error):
    def show():
        raise error

    return show


HELP_THEN_MODULES = """
import sys
from lakemq.cli.main import run
sys.argv = ["lakemq", *sys.argv[1:]]
try:
    run()
finally:
    print("\\n".join(sorted(sys.modules)), file=sys.stderr)
"""


HEAVY = {
    "rich.table",
    "rich.console",
    "pyspark",
    "fastapi",
    "uvicorn",
    "uvloop",
    "prometheus_client",
    "asyncio",
    "http.client",
    "lakemq.wire",
    "lakemq.client",
    "lakemq.broker",
    "lakemq.config",
    "lakemq.serve",
    "lakemq.cli.demo",
}
HELPS = [
    [*words, "--help"]
    for words in (
        [],
        ["errors"],
        ["dev"],
        ["send"],
        ["topic"],
        ["app", "token"],
        ["group", "seek"],
        ["broker", "start"],
    )
]


@pytest.mark.parametrize("arguments", [*HELPS, ["--version"], ["errors", "189"]], ids=" ".join)
def test_light_commands_load_nothing_heavy(arguments):
    command = [sys.executable, "-c", HELP_THEN_MODULES, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    loaded = set(done.stderr.split())
    assert done.returncode == 0
    assert "lakemq.cli.main" in loaded
    assert loaded & HEAVY == set()


def test_commands_for_operators_load_neither_the_broker_nor_a_web_framework(tmp_path):
    command = [sys.executable, "-c", HELP_THEN_MODULES, "topic", "ls", "--admin", "http://127.0.0.1:1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path)
    assert done.returncode == 5
    assert set(done.stderr.split()) & {"fastapi", "asyncio", "lakemq.serve", "lakemq.wire"} == set()


def test_help_comes_at_once():
    def cpu_seconds():
        before = os.times()
        run_module("--help")
        after = os.times()
        return after.children_user - before.children_user + after.children_system - before.children_system

    assert min(cpu_seconds() for _ in range(5)) < 0.3


def test_help_names_every_command():
    done = run_module("--help")
    assert done.returncode == 0
    assert done.stdout.startswith("Usage: lakemq ")
    for word in [
        "--version",
        "--server",
        "--admin",
        "--app",
        "--token",
        "--output",
        "dev",
        "demo",
        "send",
        "recv",
        "tail",
        "topic",
        "app",
        "group",
        "broker",
        "storage",
        "config",
        "bench",
        "doctor",
        "errors",
    ]:
        assert word in done.stdout


def test_the_version_is_printed():
    done = run_module("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"lakemq {VERSION}\n", "")


@pytest.mark.parametrize("arguments", [["no-such-command"], ["--no-such-option"], ["errors", "189", "190"]])
def test_wrong_usage_exits_2_and_says_so_on_stderr(arguments):
    done = run_module(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "Error: " in done.stderr
    assert "Traceback" not in done.stderr


def test_the_demo_command_calls_the_demo(run_demo):
    calls = []
    assert run_demo(lambda: calls.append("shown")) == 0
    assert calls == ["shown"]


def test_an_error_ends_the_command_with_its_exit_code_and_its_description(run_demo, capsys):
    error = TopicNotFoundError("orders")
    assert run_demo(raiser(error)) == 3
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == describe(error) + "\n"


def test_ctrl_c_exits_130_without_a_traceback(run_demo, capsys):
    assert run_demo(raiser(KeyboardInterrupt())) == 130
    assert capsys.readouterr().err == ""


def test_ctrl_c_outside_a_command_exits_130_too(monkeypatch, capsys):
    monkeypatch.setattr(main, "app", lambda **_: raiser(KeyboardInterrupt())())
    with pytest.raises(SystemExit) as ended:
        main.run()
    assert ended.value.code == 130
    assert capsys.readouterr().err == ""


def test_a_bug_is_not_dressed_up_as_an_error_of_ours(monkeypatch):
    monkeypatch.setitem(sys.modules, "lakemq.cli.demo", SimpleNamespace(show=raiser(ZeroDivisionError())))
    monkeypatch.setattr(sys, "argv", ["lakemq", "demo"])
    with pytest.raises(ZeroDivisionError):
        main.run()
