"""`lakemq errors`: the list, one code explained, JSON, and codes that do not exist."""

import json
import os
import re
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from lakemq.cli.main import app
from lakemq.errors import all_errors

pty = pytest.importorskip("pty")


def lakemq(*arguments):
    return CliRunner().invoke(app, ["errors", *arguments], prog_name="lakemq")


def run_in_a_terminal(*arguments, columns):
    """What a user sees on a terminal of that width."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "COLUMNS": str(columns), "TERM": "xterm", "PYTHONIOENCODING": "utf-8"}
    command = [sys.executable, "-m", "lakemq", *arguments]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment) as process:
        os.close(theirs)
        chunks = []
        try:
            while chunk := os.read(ours, 65536):
                chunks.append(chunk)
        except OSError:  # Linux ends a terminal that nobody holds with EIO
            pass
        os.close(ours)
    assert process.returncode == 0
    return re.sub(r"\x1b\[[0-9;]*m|\r", "", b"".join(chunks).decode())  # without colours


def test_the_list_has_one_whole_line_per_error_when_piped():
    result = lakemq()
    lines = result.stdout.splitlines()
    assert result.exit_code == 0
    assert len(lines) == len(all_errors())
    for line, error in zip(lines, all_errors(), strict=True):
        assert line.split()[:2] == [str(error.status), error.__name__]
        assert ("retriable" in line.split()) == error.retriable
        assert ("maybe-written" in line.split()) == error.maybe_written
        assert line.endswith("  " + error.cause)


def test_the_piped_list_is_aligned_and_plain():
    lines = lakemq().stdout.splitlines()
    starts = {line.index(error.cause) for line, error in zip(lines, all_errors(), strict=True)}
    assert len(starts) == 1
    assert "".join(lines).isascii()


def test_the_table_fits_a_terminal_of_80_columns():
    screen = run_in_a_terminal("errors", columns=80)
    assert max(map(len, screen.splitlines())) <= 80
    assert "─" in screen
    assert "…" not in screen
    for error in all_errors():
        assert error.__name__ in screen
    words = " ".join(screen.split())
    assert "There is no topic of this name." in words


def test_a_wide_terminal_shows_each_error_on_one_line():
    lines = run_in_a_terminal("errors", columns=200).splitlines()
    assert [line for line in lines if "TopicNotFoundError" in line and "There is no topic of this name." in line]
    assert len(lines) == len(all_errors()) + 3  # two lines of heading and the rule under it


def test_a_code_is_explained_with_its_cause_and_its_fix():
    result = lakemq("189")
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        "189 TopicNotFoundError",
        "  cause    There is no topic of this name.",
        "  fix      Check the name for slips and the namespace it is in, or create the topic first.",
        "  retry    No: the same request will not do better until the cause is gone.",
        "  stored   No: if this was a send, the message was not stored and will not appear.",
        "  outcome  failed",
    ]


@pytest.mark.parametrize(
    ("code", "retry", "stored", "outcome"),
    [
        ("188", "Yes: the same", "No:", "failed"),
        ("112", "Yes, later or at another broker; but a repeated send may store", "Perhaps:", "unknown"),
        ("4", "No:", "Perhaps:", "unknown"),
        ("6", "No:", "No:", "failed"),
    ],
)
def test_an_explanation_says_whether_to_retry_and_what_became_of_the_message(code, retry, stored, outcome):
    output = lakemq(code).stdout
    assert f"  retry    {retry}" in output
    assert f"  stored   {stored}" in output
    assert f"  outcome  {outcome}\n" in output


def test_zero_is_explained_as_success():
    result = lakemq("0")
    assert result.exit_code == 0
    assert result.stdout.startswith("0 success\n")
    assert "not an error" in result.stdout
    assert "  outcome  acked\n" in result.stdout


@pytest.mark.parametrize("code", ["300", "abc", "50", "1.5", "", "189 ", "१८९", "9" * 5000], ids=lambda code: code[:5])
def test_a_code_that_does_not_exist_is_wrong_usage(code):
    result = lakemq(code)
    message = " ".join(result.stderr.split())
    assert result.exit_code == 2
    assert result.stdout == ""
    assert f"{code!r} is not an error code" in message
    assert "from 1 to 240" in message
    assert "`lakemq errors` lists them" in message


def test_json_lists_every_error_with_all_it_says():
    result = lakemq("--json")
    assert result.exit_code == 0
    listed = json.loads(result.stdout)
    assert [(entry["code"], entry["name"]) for entry in listed] == [(e.status, e.__name__) for e in all_errors()]
    assert listed[-1] == {
        "code": 240,
        "name": "RetryStoreError",
        "outcome": "failed",
        "retriable": True,
        "maybe_written": False,
        "in_seed": False,
        "cause": "Too many messages wait for a retry, or are kept as dead letters: no more are taken.",
        "fix": "Resend or delete dead letters (lakemq dead), or raise the limit; what failed will be delivered again.",
    }


def test_json_of_one_code_is_one_object():
    assert json.loads(lakemq("109", "--json").stdout)["outcome"] == "unknown"
    assert json.loads(lakemq("0", "--json").stdout)["outcome"] == "acked"
