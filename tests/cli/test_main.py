"""The `lakemq` command as a whole: what it loads, how it fails, how it ends."""

import subprocess
import sys
from types import SimpleNamespace

import pytest

from lakemq.cli import main
from lakemq.errors import BadFrameError, TopicNotFoundError
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


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["errors", "--help"], ["errors", "189"]])
def test_light_commands_load_nothing_heavy(arguments):
    command = [sys.executable, "-c", HELP_THEN_MODULES, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    loaded = set(done.stderr.split())
    assert done.returncode == 0
    assert "lakemq.cli.main" in loaded
    assert loaded.isdisjoint({"rich.table", "rich.console", "pyspark", "fastapi", "lakemq.wire", "lakemq.cli.demo"})


def test_help_names_every_command():
    done = run_module("--help")
    assert done.returncode == 0
    assert done.stdout.startswith("Usage: lakemq ")
    for word in ("--version", "demo", "errors"):
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


def test_an_error_is_told_in_one_line_with_its_fix(run_demo, capsys):
    assert run_demo(raiser(TopicNotFoundError("orders"))) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == f"lakemq: error 189 (TopicNotFoundError): orders\n  fix: {TopicNotFoundError.fix}\n"


def test_an_error_without_a_detail_is_told_by_its_cause(run_demo, capsys):
    run_demo(raiser(TopicNotFoundError()))
    assert f"(TopicNotFoundError): {TopicNotFoundError.cause}\n" in capsys.readouterr().err


def test_an_error_that_never_travels_has_no_number(run_demo, capsys):
    assert run_demo(raiser(BadFrameError("length 3"))) == 1
    assert capsys.readouterr().err.startswith("lakemq: error (BadFrameError): length 3\n")


def test_a_detail_from_a_peer_cannot_command_the_terminal_or_forge_lines(run_demo, capsys):
    run_demo(raiser(TopicNotFoundError("or\x1b[2Jders\r\nlakemq: all is well")))
    assert capsys.readouterr().err.splitlines()[0] == (
        "lakemq: error 189 (TopicNotFoundError): or?[2Jders lakemq: all is well"
    )


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
