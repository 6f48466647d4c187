"""`lakemq storage` on a directory made here."""

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from lakemq import envelope
from lakemq.cli.failure import exit_code_of
from lakemq.cli.main import app
from lakemq.message import BatchItem, BatchMessage, Message
from lakemq.storage.recovery import open_group
from lakemq.world.disk import RealDisk


@pytest.fixture
def directory(tmp_path):
    group = open_group(RealDisk(tmp_path))
    one = Message(body=b"hello \x1b[31m", business_id="order-1")
    two = BatchMessage(items=(BatchItem(b"a"), BatchItem(b"b")))
    for message, count in ((one, 1), (two, 2)):
        group.append(7, 3, bytearray(envelope.pack(message)), 1, count, term=1, now_ms=1_700_000_000_000)
        group.flush()
        ticket = group.begin_sync()
        ticket.run()
        group.end_sync(ticket)
    group.close()
    return tmp_path


def call(*arguments):
    return CliRunner().invoke(app, ["storage", *map(str, arguments)])


def test_inspect_prints_segments_and_partitions(directory):
    result = call("inspect", directory)
    assert result.exit_code == 0, result.output
    assert "sound" in result.output
    assert "clean" in result.output


def test_inspect_speaks_json(directory):
    found = json.loads(call("inspect", directory, "--json").output)
    assert found["sound"] is True
    assert found["partitions"] == [{"topic": 7, "partition": 3, "first_index": 0, "next_index": 3, "messages": 2}]


def test_verify_exits_with_1_and_names_the_place_of_damage(directory):
    segment = directory / "journal" / "00000000000000000000.journal"
    data = bytearray(segment.read_bytes()[:4096])
    at = data.index(b"hello")
    with segment.open("r+b") as file:
        file.seek(at)
        file.write(b"J")
    result = call("verify", directory)
    assert result.exit_code == 1
    assert "DAMAGED journal/00000000000000000000.journal" in result.output


def test_dump_lists_records_and_bodies_without_terminal_codes(directory):
    result = call("dump", directory, "--bodies")
    assert result.exit_code == 0
    assert "index 1 to 2" in result.output
    assert "0  order-1  hello ·[31m" in result.output
    assert "2  -  b" in result.output


def test_dump_says_how_to_go_on(directory):
    result = call("dump", directory, "--limit", 1)
    assert "--from" in result.output


def test_a_directory_that_is_none_is_told_and_exits_with_2(tmp_path):
    for command in ("inspect", "verify", "dump"):
        result = call(command, tmp_path / "nothing")
        assert exit_code_of(result.exception) == 2
        assert "not a data directory" in str(result.exception)


# ---- for programs --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["inspect", "verify"])
def test_the_common_option_for_json_is_heard(directory, command):
    found = json.loads(call(command, directory, "-o", "json").output)
    assert found == json.loads(call(command, directory, "--json").output)


def test_records_are_dumped_as_json_or_line_by_line(directory):
    rows = json.loads(call("dump", directory, "-o", "json", "--bodies").output)
    assert [json.loads(line) for line in call("dump", directory, "-ojsonl", "--bodies").output.splitlines()] == rows
    stored = [row for row in rows if row["type"] == "MESSAGES"]
    assert [(row["topic"], row["partition"], row["first_index"]) for row in stored] == [(7, 3, 0), (7, 3, 1)]
    assert stored[0]["messages"] == [{"index": 0, "key": "order-1", "body": "aGVsbG8gG1szMW0="}]
    assert len(json.loads(call("dump", directory, "-o", "json", "--limit", 1).output)) == 1


@pytest.mark.parametrize(
    ("arguments", "status", "word"),
    [
        (("storage", "inspect", "NOWHERE", "-o", "json"), 2, "not a data directory"),
        (("-ojson", "storage", "inspect"), 2, "Missing"),
        (("storage", "inspect", "--output=jsonl", "--no-such-option", "x"), 2, "--no-such-option"),
        (("errors", "12345", "-o", "json"), 2, "12345"),
    ],
)
def test_errors_are_json_too(tmp_path, arguments, status, word):
    done = subprocess.run(
        [sys.executable, "-m", "lakemq", *arguments], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == status, done
    error = json.loads(done.stderr)["error"]
    assert word in error["detail"]
    assert (error["exit_code"], done.stdout) == (status, "")
