"""The command line against real brokers: what a user types, from the first message to the last byte."""

import json
import os
import re
import signal
import stat
import subprocess
import sys

import pytest

from fix_live import DEV, LiveBroker, live_broker, shown_stderr, strict_broker

__all__ = ["live_broker", "shown_stderr", "strict_broker"]

pytestmark = [pytest.mark.live, pytest.mark.usefixtures("shown_stderr")]
SECONDS = 60


def environment(broker=None, **more):
    ours = {name: value for name, value in os.environ.items() if not name.startswith("LAKEMQ_")}
    if broker is not None:
        ours["LAKEMQ_URL"] = f"lakemq://127.0.0.1:{broker.port}"
        ours["LAKEMQ_ADMIN_URL"] = f"http://127.0.0.1:{broker.admin_port}"
        ours["LAKEMQ_ADMIN__TOKEN"] = broker.admin_token
    return {**ours, **more}


def lakemq(broker, *arguments, stdin=b"", **more):
    """Runs a command; its outputs are bytes."""
    command = [sys.executable, "-m", "lakemq", *map(str, arguments)]
    return subprocess.run(
        command, input=stdin, capture_output=True, timeout=SECONDS, env=environment(broker, **more), check=False
    )


def good(done):
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def lines_of(data):
    return [json.loads(line) for line in data.decode().splitlines()]


# ---- messages ------------------------------------------------------------------------------------------------------


def test_the_first_message_needs_nothing_made_by_hand(live_broker):
    sent = good(lakemq(live_broker, "send", "first", '{"id": 1}', "--key", "c-7", "--tag", "paid", "-H", "v=2"))
    assert re.fullmatch(r"sent  first  partition \d  offset 0  id first/\d/0  flushed  \d+\.\d ms\n", sent.decode())
    done = lakemq(live_broker, "recv", "first", "--group", "billing")
    assert good(done) == b'{"id": 1}\n'
    assert "key=c-7  tags=paid  v=2  try 1" in done.stderr.decode()
    assert "acked 1, lag 0" in done.stderr.decode()


def test_a_message_as_json_has_everything(live_broker):
    sent = json.loads(
        good(lakemq(live_broker, "send", "whole", "x", "--key", "k", "--tag", "a", "--tag", "b", "-ojson"))
    )
    (got,) = json.loads(good(lakemq(live_broker, "recv", "whole", "-o", "json")))
    assert (got["partition"], got["offset"]) == (sent["partition"], sent["offset"])
    assert (got["key"], got["tags"], got["headers"], got["body"], got["attempt"]) == ("k", ["a", "b"], {}, "x", 1)
    assert got["stored_at"].endswith("Z")


def test_any_bytes_come_out_of_a_pipe_as_they_went_in(live_broker, tmp_path):
    body = bytes(range(256)) * 10
    (tmp_path / "body").write_bytes(body)
    good(lakemq(live_broker, "send", "bytes", "--file", tmp_path / "body"))
    good(lakemq(live_broker, "send", "bytes", "--file", "-", stdin=body))
    assert good(lakemq(live_broker, "recv", "bytes", "--count", 2)) == (body + b"\n") * 2
    good(lakemq(live_broker, "send", "bytes", "--file", tmp_path / "body"))
    (got,) = lines_of(good(lakemq(live_broker, "recv", "bytes", "-o", "jsonl")))
    assert "body" not in got
    assert got["body_base64"]


def test_many_are_sent_by_template_and_received_until_none_comes(live_broker):
    out = good(lakemq(live_broker, "send", "many", "n={n}", "--count", 1200, "--key", "k{n}"))
    assert out.startswith(b"sent  many  1200 messages in ")
    done = lakemq(live_broker, "recv", "many", "--count", 0, "--timeout", "1s")
    assert sorted(good(done).split()) == sorted(b"n=%d" % number for number in range(1, 1201))
    assert "acked 1200, lag 0" in done.stderr.decode()


def test_lines_of_stdin_are_messages_and_each_gets_a_receipt(live_broker):
    done = lakemq(live_broker, "send", "lines", "--stdin-lines", "--partition", 1, "-ojsonl", stdin=b"a\r\nb\n\nlast")
    receipts = lines_of(good(done))
    assert [(one["partition"], one["offset"]) for one in receipts] == [(1, 0), (1, 1), (1, 2), (1, 3)]
    assert good(lakemq(live_broker, "recv", "lines", "--count", 4)) == b"a\nb\n\nlast\n"


def test_what_was_only_looked_at_comes_again(live_broker):
    good(lakemq(live_broker, "send", "again", "x"))
    for arguments, lag in ((["--no-ack"], 1), ([], 0)):
        done = lakemq(live_broker, "recv", "again", *arguments)
        assert good(done) == b"x\n"
        assert f" 1, lag {lag}" in done.stderr.decode()


def test_no_message_in_time_is_exit_code_124(live_broker):
    good(lakemq(live_broker, "send", "late", "x"))
    done = lakemq(live_broker, "recv", "late", "--count", 2, "--timeout", "200ms")
    assert (done.returncode, done.stdout) == (124, b"x\n")
    assert "no message of late came within 200ms" in done.stderr.decode()


def test_tail_takes_nothing_from_anybody(live_broker):
    good(lakemq(live_broker, "send", "tailed", "m{n}", "--count", 3, "--partition", 0))
    for start in ("earliest", "-10m", "0"):
        assert good(lakemq(live_broker, "tail", "tailed", "--from", start, "--count", 3)) == b"m1\nm2\nm3\n"
    assert good(lakemq(live_broker, "recv", "tailed", "--count", 3)) == b"m1\nm2\nm3\n"


def test_a_message_may_be_sent_later_once_and_with_an_end(live_broker):
    later = json.loads(good(lakemq(live_broker, "send", "later", "x", "--delay", "1h", "-o", "json")))
    assert later["offset"] is None
    first, again = (
        json.loads(good(lakemq(live_broker, "send", "once", "x", "--uniq-id", "u-1", "-o", "json"))) for _ in range(2)
    )
    assert (first["offset"], first["message_id"]) == (again["offset"], "u-1")
    many = lines_of(good(lakemq(live_broker, "send", "once", "x", "--uniq-id", "m-{n}", "--count", 2, "-o", "jsonl")))
    assert [one["message_id"] for one in many] == ["m-1", "m-2"]
    good(lakemq(live_broker, "send", "ending", "x", "--expire", "1h"))
    got = json.loads(good(lakemq(live_broker, "recv", "ending", "-o", "json")))
    assert [one["body"] for one in got] == ["x"]


def test_a_delay_that_is_too_long_names_the_limit(live_broker):
    for more in ([], ["--count", "2"]):
        done = lakemq(live_broker, "send", "late", "x", "--delay", "41d", *more)
        assert done.returncode != 0
        assert "at most 40 days" in done.stderr.decode()


def test_recv_and_tail_take_filters(live_broker):
    for body, tag, total in (("a", "paid", 250), ("b", "refund", 40), ("c", "paid", 10)):
        good(lakemq(live_broker, "send", "chosen", body, "--tag", tag, "-H", f"total={total}", "--partition", 1))
    tail = ("tail", "chosen", "--from", "earliest", "--partition", 1)
    assert good(lakemq(live_broker, *tail, "--tags", "paid", "--count", 2)) == b"a\nc\n"
    assert good(lakemq(live_broker, *tail, "--filter", "total < 100", "--count", 2)) == b"b\nc\n"
    assert good(lakemq(live_broker, "recv", "chosen", "--group", "t", "--tags", "refund")) == b"b\n"
    assert good(lakemq(live_broker, "recv", "chosen", "--group", "f", "--filter", "total > 100")) == b"a\n"


def test_tail_of_a_partition_that_is_not_there_says_so(live_broker):
    good(lakemq(live_broker, "send", "four", "x"))
    done = lakemq(live_broker, "tail", "four", "--partition", 99)
    assert done.returncode == 2
    assert "has no partition 99; it has 4" in done.stderr.decode()


def test_the_wrong_one_of_the_two_ports_is_told(live_broker):
    done = lakemq(live_broker, "send", "first", "x", "--server", f"lakemq://127.0.0.1:{live_broker.admin_port}")
    assert done.returncode == 5
    assert "speaks HTTP" in done.stderr.decode()
    assert "operators" in done.stderr.decode()
    done = lakemq(live_broker, "topic", "ls", "--admin", f"http://127.0.0.1:{live_broker.port}")
    assert done.returncode == 5
    assert "port for clients" in done.stderr.decode()


def test_a_fix_names_the_app_and_the_topic(strict_broker):
    admin = {"LAKEMQ_TOKEN": "", "LAKEMQ_APP": ""}
    good(lakemq(strict_broker, "app", "create", "filled", **admin))
    token = json.loads(good(lakemq(strict_broker, "app", "token", "create", "filled", "-o", "json", **admin)))["token"]
    good(lakemq(strict_broker, "topic", "create", "filled-topic", **admin))
    for command, fix in (
        (("send", "filled-topic", "x"), "lakemq app subscribe filled filled-topic --producer"),
        (("recv", "filled-topic", "--group", "g"), "lakemq app subscribe filled.g filled-topic --consumer"),
    ):
        done = lakemq(strict_broker, *command, "--app", "filled", LAKEMQ_TOKEN=token)
        assert fix in done.stderr.decode(), done.stderr.decode()
    done = lakemq(strict_broker, "send", "no-such", "x", "--app", "filled", LAKEMQ_TOKEN=token)
    assert "lakemq topic create no-such" in done.stderr.decode()
    done = lakemq(strict_broker, "send", "filled-topic", "x", "--app", "nobody")
    assert "lakemq app token create nobody" in done.stderr.decode()


def test_tail_ends_with_ctrl_c_as_130_and_without_a_traceback(live_broker):
    good(lakemq(live_broker, "send", "endless", "x"))
    command = [sys.executable, "-m", "lakemq", "tail", "endless", "--from", "earliest"]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(live_broker),
        # Tests that a shell runs in the background have it ignored, and what they start inherits that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        assert process.stdout.readline() == b"x\n"  # it is at work
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=SECONDS)
    assert process.returncode == 130
    assert b"Traceback" not in stderr


def test_a_reader_that_goes_away_ends_tail_quietly(live_broker):
    good(lakemq(live_broker, "send", "cut", "{n}", "--count", 5000, "--partition", 0))
    command = [sys.executable, "-m", "lakemq", "tail", "cut", "--from", "earliest"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(live_broker)
    ) as process:
        assert process.stdout.readline() == b"1\n"
        process.stdout.close()
        stderr = process.stderr.read()
        process.wait(SECONDS)
    assert process.returncode == 1
    assert b"Traceback" not in stderr


def test_no_acks_are_no_offsets(live_broker):
    out = json.loads(good(lakemq(live_broker, "send", "blind", "x", "--acks", "none", "-o", "json")))
    assert (out["acks"], out["offset"]) == ("none", None)
    assert b"offset -" in good(lakemq(live_broker, "send", "blind", "x", "--acks", "none"))


def test_some_that_fail_are_exit_code_9_and_1_if_all_do(live_broker):
    large = os.urandom(9 << 20).replace(b"\n", b"x")  # more than a request may have, and nothing that compresses
    stdin = b"first\n" + large + b"\nlast\n"
    done = lakemq(live_broker, "send", "partly", "--stdin-lines", "--partition", 0, stdin=stdin)
    assert done.returncode == 9, done.stderr.decode()
    assert "1 of 3 messages failed" in done.stderr.decode()
    assert "Traceback" not in done.stderr.decode()
    assert good(lakemq(live_broker, "recv", "partly", "--count", 2)) == b"first\nlast\n"
    done = lakemq(live_broker, "send", "partly", "{n}", "--count", 9, "--partition", 77)
    assert done.returncode == 1
    assert "9 of 9 messages failed" in done.stderr.decode()
    assert done.stderr.decode().count("error[LMQ-") == 5


def test_bench_says_how_fast_it_went(live_broker):
    sent = json.loads(good(lakemq(live_broker, "bench", "send", "--seconds", 0.3, "--size", 100, "-o", "json")))
    got = json.loads(good(lakemq(live_broker, "bench", "recv", "--seconds", 30, "-o", "json")))
    assert got["received"] == sent["sent"] > 0
    assert lakemq(live_broker, "bench", "recv").returncode == 124


# ---- operators -----------------------------------------------------------------------------------------------------


def test_operators_see_what_clients_do(live_broker):
    good(lakemq(live_broker, "send", "seen", "x", "--count", 3))
    good(lakemq(live_broker, "recv", "seen", "--group", "g"))
    rows = json.loads(good(lakemq(live_broker, "group", "ls", "seen", "-o", "json")))
    assert [(row["group"], row["lag"]) for row in rows if row["group"] == "default.g"] == [("default.g", 2)]
    good(lakemq(live_broker, "group", "seek", "seen", "g", "--to", "earliest", "--execute"))
    assert good(lakemq(live_broker, "recv", "seen", "--group", "g", "--count", 3)).count(b"x") == 3


def test_a_paused_group_gets_nothing_until_it_is_resumed(live_broker):
    good(lakemq(live_broker, "send", "paused", "x"))
    good(lakemq(live_broker, "recv", "paused", "--no-ack"))
    good(lakemq(live_broker, "group", "pause", "paused", "default"))
    assert lakemq(live_broker, "recv", "paused", "--timeout", "200ms").returncode == 124
    good(lakemq(live_broker, "group", "resume", "paused", "default"))
    assert good(lakemq(live_broker, "recv", "paused")) == b"x\n"


def test_a_topic_that_takes_nothing_refuses_with_exit_code_6(live_broker):
    good(lakemq(live_broker, "topic", "create", "shut", "--no-writable"))
    done = lakemq(live_broker, "send", "shut", "x")
    assert (done.returncode, done.stdout) == (6, b"")
    assert "error[LMQ-144]" in done.stderr.decode()


def test_the_broker_is_healthy_and_counts(live_broker):
    good(lakemq(live_broker, "send", "counted", "x", "--count", 5))
    rows = {row["check"]: row["state"] for row in json.loads(good(lakemq(live_broker, "doctor", "-o", "json")))}
    assert (rows["clients port"], rows["operators port"], rows["clock"]) == ("good", "good", "good")
    import urllib.request

    with urllib.request.urlopen(f"http://127.0.0.1:{live_broker.admin_port}/metrics", timeout=SECONDS) as answer:
        text = answer.read().decode()
    assert 'lakemq_messages_in_total{topic="counted"} 5.0' in text
    assert "lakemq_bugs_total 0.0" in text


# ---- a strict broker -----------------------------------------------------------------------------------------------


def test_a_strict_broker_knows_only_what_it_was_told_of(strict_broker):
    done = lakemq(strict_broker, "send", "orders", "x", "--app", "shop")
    assert (done.returncode, done.stdout) == (6, b"")
    good(lakemq(strict_broker, "topic", "create", "orders", "--partitions", 1))
    good(lakemq(strict_broker, "app", "create", "shop"))
    token = good(lakemq(strict_broker, "app", "token", "create", "shop")).decode().strip()
    shop = {"LAKEMQ_APP": "shop", "LAKEMQ_TOKEN": token}
    done = lakemq(strict_broker, "send", "orders", "x", **shop)
    assert done.returncode == 6, done.stderr.decode()
    good(lakemq(strict_broker, "app", "subscribe", "shop", "orders", "--producer", "--consumer", "--start", "earliest"))
    good(lakemq(strict_broker, "send", "orders", "x", **shop))
    assert good(lakemq(strict_broker, "recv", "orders", **shop)) == b"x\n"
    assert lakemq(strict_broker, "send", "orders", "x", **{**shop, "LAKEMQ_TOKEN": token + "x"}).returncode == 6
    done = lakemq(strict_broker, "send", "orderz", "x", **shop)
    assert done.returncode == 3, done.stderr.decode()
    assert "error[LMQ-189]" in done.stderr.decode()
    assert token not in strict_broker.stderr()


# ---- starting and stopping -----------------------------------------------------------------------------------------


def start(*arguments, cwd, **more):
    """A broker that is not expected to start."""
    command = [sys.executable, "-m", "lakemq", *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=SECONDS, cwd=cwd, env=environment(**more), check=False
    )


def test_secrets_are_for_their_owner_and_the_same_after_a_restart(tmp_path):
    broker = LiveBroker(tmp_path, mode=DEV).start()
    try:
        for file in (tmp_path / "ready.json", broker.data / "admin-token"):
            assert stat.S_IMODE(file.stat().st_mode) == 0o600, file
        before = broker.admin_token
        assert (broker.data / "admin-token").read_text().strip() == before
        good(lakemq(broker, "send", "kept", "x"))
        broker.restart()
        assert broker.admin_token == before
        assert good(lakemq(broker, "recv", "kept")) == b"x\n"
    finally:
        broker.stop()
    assert before not in broker.stderr()
    broker.check_stderr()
    verdict = lakemq(None, "storage", "verify", broker.data)
    assert verdict.returncode == 0, verdict.stdout.decode()


def test_a_command_beside_the_data_needs_no_token_said(tmp_path):
    broker = LiveBroker(tmp_path, mode=DEV).start()
    try:
        done = start(
            "topic", "ls", cwd=tmp_path, LAKEMQ_SERVER__DATA=str(broker.data), LAKEMQ_ADMIN__PORT=str(broker.admin_port)
        )
        assert (done.returncode, done.stderr) == (0, "there are no topics\n")
    finally:
        broker.stop()


def test_a_directory_or_port_in_use_is_told(live_broker, tmp_path):
    ports = ["--port", 0, "--admin-port", 0]
    done = start("dev", *ports, "--data", live_broker.data, cwd=tmp_path)
    assert done.returncode == 1
    assert "in use by another broker" in done.stderr
    done = start("dev", "--port", live_broker.port, "--admin-port", 0, "--data", tmp_path / "a", cwd=tmp_path)
    assert done.returncode == 1
    assert f"cannot listen on 127.0.0.1:{live_broker.port}" in done.stderr
    done = start("dev", "--port", 0, "--admin-port", live_broker.admin_port, "--data", tmp_path / "b", cwd=tmp_path)
    assert done.returncode == 1
    assert f"cannot listen on 127.0.0.1:{live_broker.admin_port}" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_directory_of_somebody_else_is_left_as_it_is(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "thesis.txt").write_text("years of work")
    done = start("dev", "--port", 0, "--admin-port", 0, "--data", tmp_path / "data", cwd=tmp_path)
    assert done.returncode == 1
    assert "not a data directory of ours" in done.stderr
    assert {one.name for one in (tmp_path / "data").iterdir()} <= {"thesis.txt", "lock"}


def test_a_token_file_that_cannot_be_read_stops_a_start(tmp_path):
    done = start(
        "broker", "start", "--port", 0, "--admin-port", 0, cwd=tmp_path, LAKEMQ_ADMIN__TOKEN_FILE=str(tmp_path / "none")
    )
    assert done.returncode == 1
    assert "the operators' token cannot be had" in done.stderr


def test_a_file_of_settings_is_used(tmp_path):
    (tmp_path / "own.toml").write_text('[broker]\npartitions_default = 7\n[log]\nformat = "json"\n')
    broker = LiveBroker(tmp_path, mode=("broker", "start"), options=("--config", str(tmp_path / "own.toml"))).start()
    try:
        made = json.loads(good(lakemq(broker, "topic", "create", "orders", "-o", "json")))
        assert made["partitions"] == 7
    finally:
        broker.stop()
    entries = [json.loads(line) for line in broker.stderr().splitlines()]
    assert [entry["port"] for entry in entries if entry["event"] == "serving"] == [broker.port]


def test_a_terminal_shows_where_to_go(tmp_path):
    pty = pytest.importorskip("pty")
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "lakemq", "dev", "--port", "0", "--admin-port", "0", "--log-format", "text"]
    with subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, cwd=tmp_path, env=environment(TERM="xterm")
    ) as process:
        os.close(theirs)
        screen = b""
        while b"lakemq recv orders" not in screen:
            screen += os.read(ours, 65536)
        process.send_signal(signal.SIGINT)
        try:
            while os.read(ours, 65536):
                pass
        except OSError:  # Linux ends a terminal that nobody holds with EIO
            pass
        os.close(ours)
        process.wait(SECONDS)
    text = screen.decode()
    assert process.returncode == 0
    assert re.search(r"LakeMQ \S+  data \.lakemq \(new\)  mode dev", text)
    url = re.search(r"broker (lakemq://127\.0\.0\.1:\d+) ", text).group(1)
    assert f"lakemq send orders 'hello' --server {url}" in text
