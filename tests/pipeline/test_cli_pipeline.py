"""`lakemq archive`, `sql`, `trace`, `replay` and `report`, as a user runs them.

Three processes start Spark; the commands that need none are processes, too; the other questions are asked in this one,
with the session of the tests.
"""

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("pyspark", reason="needs the extra spark")

from lakemq.cli import main
from lakemq.cli.failure import DONE, FAILED, NOT_FOUND, USAGE
from lakemq.cli.querying import readable, split_statements, views_named
from lakemq.pipeline.errors import SparkMissingError
from lakemq.pipeline.session import check_java

REAL = [pytest.mark.spark, pytest.mark.live, pytest.mark.xdist_group("spark")]


def marked(test):
    for mark in REAL:
        test = mark(test)
    return test


@pytest.mark.parametrize(
    ("text", "statements"),
    [
        ("", []),
        (" ;; \n;", []),
        ("select 1", ["select 1"]),
        ("select 1;\nselect 2;\n", ["select 1", "select 2"]),
        ("select ';', \"a;b\", `c;d` from t; select 2", ["select ';', \"a;b\", `c;d` from t", "select 2"]),
        (r"select 'it\';s'; select 2", [r"select 'it\';s'", "select 2"]),
        ("select 'it''s;'; select 2", ["select 'it''s;'", "select 2"]),
        (r"select `a\`; select 2", [r"select `a\`", "select 2"]),
        ("select 1 -- one; and only\n, 2; -- done;", ["select 1 \n, 2"]),
        ("select '--'; select 2", ["select '--'", "select 2"]),
        ("select /* ; it's */ 1; /* nothing; */", ["select   1"]),
        ("select /*+ broadcast(a;b) */ 1", ["select /*+ broadcast(a;b) */ 1"]),
        ("select 1 /* never ends;", ["select 1"]),
        ("select 'never ends;", ["select 'never ends;"]),
    ],
)
def test_statements_end_with_a_semicolon_outside_of_quotes_and_comments(text, statements):
    assert split_statements(text) == statements


def test_values_are_shown_as_json_has_them():
    from datetime import date, datetime
    from decimal import Decimal

    from pyspark.sql import Row

    row = Row(a=bytearray(b"text"), b=b"\xff\x00", c=[Row(d=date(2024, 1, 2))], e={1: datetime(2024, 1, 2, 3)})
    assert readable(row) == {"a": "text", "b": "0xff00", "c": [{"d": "2024-01-02"}], "e": {"1": "2024-01-02T03:00:00"}}
    assert readable(Decimal("1.50")) == "1.50"


class Shell:
    """A directory and an environment in which the commands are run."""

    def __init__(self, topics, directory):
        self.lake = directory / "lake"
        self.directory = directory
        self.environment = {**os.environ, "LAKEMQ_URL": topics.url, "LAKEMQ_LAKE": str(self.lake)}

    def run(self, *arguments, exit_code=DONE):
        done = subprocess.run(
            [sys.executable, "-m", "lakemq", *arguments],
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
            cwd=self.directory,
            env=self.environment,
        )
        assert done.returncode == exit_code, done.stderr
        assert "Traceback" not in done.stderr
        return done

    def facts(self, *arguments):
        return json.loads(self.run(*arguments, "-o", "json").stdout)


@pytest.fixture(scope="module")
def orders(topics):
    """40 messages of an archived topic: ten done with, one of them dead."""
    topic = topics.make(partitions=2, is_archived=True)
    topics.mq.admin.subscribe(topic, "shop.billing", consumer={"retry_times": 2}, start="earliest")
    topics.fill(topic, 40, key=lambda n: f"c-{n % 4}", body=lambda n: json.dumps({"id": n}).encode())
    count = 0
    with topics.mq.consumer(topic, group="billing", auto_ack=False) as consumer:
        while count < 10:
            for message in consumer.receive(10 - count, timeout="5s"):
                count += 1
                if count == 5:
                    message.dead_letter("hopeless")
                else:
                    message.ack()
    return topic


@pytest.fixture(scope="module")
def shell(topics, orders, tmp_path_factory):
    """With a lake that `archive run` has made."""
    try:
        check_java()
    except SparkMissingError as error:
        pytest.skip(str(error))
    made = Shell(topics, tmp_path_factory.mktemp("shell"))
    done = made.run("archive", "run", "--master", "local[2]", "-o", "json")
    progress = json.loads(done.stdout)
    assert (progress["messages"], progress["missed"]) == (40, 0)
    assert "starting Spark …" in done.stderr
    assert "batch 1: 40 messages" in done.stderr
    return made


@marked
def test_status_tells_how_far_the_lake_is(shell, orders):
    rows = [row for row in shell.facts("archive", "status") if row["topic"] == orders]
    assert [row["partition"] for row in rows] == [0, 1]
    assert sum(row["archived"] for row in rows) == 40
    assert all(row["behind"] == row["missing"] == 0 for row in rows)
    text = shell.run("archive", "status")
    assert text.stdout.split("\n")[0].split() == ["topic", "partition", "archived", "end", "behind", "missing"]
    assert "messages: version" in text.stderr


@marked
def test_verify_finds_every_message_once(shell):
    facts = shell.facts("archive", "verify")
    assert (facts["messages"], facts["problems"], facts["found"]) == (40, 0, [])
    assert shell.facts("archive", "verify", "--offline")["problems"] == 0


@marked
def test_compact_vacuum_and_retire_say_what_they_do(shell):
    shell.run("archive", "compact")
    assert "all files are large enough" in shell.run("archive", "compact").stderr
    assert {row["table"] for row in shell.facts("archive", "vacuum")} >= {"messages", "meta", "events"}
    assert all(row["files"] == 0 for row in shell.facts("archive", "retire", "30"))
    refused = shell.run("archive", "vacuum", "--hours", "0", "--execute", exit_code=FAILED)
    assert refused.stderr.startswith("error: ")
    assert "force it" in refused.stderr
    wrong = shell.run("archive", "retire", "30", "--table", "nothing", exit_code=USAGE)
    assert "one of messages, meta, events, or all" in wrong.stderr


@marked
def test_erase_counts_and_then_removes(shell, topics):
    other = Shell(topics, shell.directory)
    other.environment["LAKEMQ_LAKE"] = str(shell.directory / "copy")
    subprocess.run(["cp", "-r", str(shell.lake), str(shell.directory / "copy")], check=True, timeout=60)
    planned = other.run("archive", "erase", "c-1")
    assert "nothing was done: add --execute" in planned.stderr
    assert planned.stdout.split()[:2] == ["messages", "10"]
    assert other.facts("archive", "erase", "c-1", "--execute")["messages"] == 10
    facts = other.facts("archive", "verify")
    assert (facts["messages"], facts["erased"], facts["problems"]) == (30, 10, 0)


@marked
@pytest.mark.parametrize(
    "command",
    [("status",), ("verify",), ("compact",), ("vacuum",), ("retire", "3"), ("erase", "c-1")],
    ids=lambda command: command[0],
)
def test_no_lake_is_exit_code_3(shell, command):
    done = shell.run("archive", *command, "--lake", str(shell.directory / "nowhere"), exit_code=NOT_FOUND)
    assert done.stderr.startswith("error: ")
    assert "fix   Check the path for slips" in done.stderr
    assert not (shell.directory / "nowhere").exists()


@marked
def test_a_file_of_two_statements(shell, orders):
    path = shell.directory / "two.sql"
    path.write_text(
        f"-- how many; of what\nselect _source, count(*) n from lake.{orders} group by 1;\nselect 1 as one;"
    )
    done = shell.run("sql", "-f", str(path), "--master", "local[2]", "-o", "jsonl")
    assert [json.loads(line) for line in done.stdout.splitlines()] == [{"_source": "archive", "n": 40}, {"one": 1}]


@marked
def test_wrong_sql_is_one_clear_line(shell, orders):
    done = shell.run("sql", f"select total from lake.{orders}", "--master", "local[2]", exit_code=FAILED)
    assert done.stdout == ""
    errors = [line for line in done.stderr.splitlines() if line.startswith("error")]
    assert len(errors) == 1
    assert "`total`" in errors[0]
    assert "\tat " not in done.stderr


@marked
def test_a_wrong_view_is_told_before_spark_is_started(shell, orders):
    done = shell.run("sql", "select 1; select * from lake.mesages m join lake.lag l", exit_code=NOT_FOUND)
    assert done.stderr.splitlines() == ["error: there is no view lake.mesages", "  fix   did you mean lake.messages?"]
    done = shell.run("sql", "select * from lake.`xyz.w`", exit_code=NOT_FOUND)
    assert "there is no view lake.xyz.w" in done.stderr
    assert "lake.deliveries" in done.stderr


@marked
def test_a_lake_that_is_only_behind_is_not_called_broken(shell, topics):
    from lakemq.pipeline.lake import Lake

    path = str(shell.directory / "behind")
    Lake.open(path, topics.mq.inspect("cluster")["cluster"], create=True)
    done = shell.run("archive", "verify", "--lake", path, exit_code=FAILED)
    assert "error: the lake is behind; what is in it is as it should be" in done.stderr
    assert f"fix   lakemq archive run --lake {path}" in done.stderr
    assert "backup" not in done.stderr


@pytest.mark.parametrize(
    ("statement", "views"),
    [
        ("select 1", set()),
        (
            "select a.x from lake.Orders a join lake.`eu.late-orders` b where c = 'from lake.nothing'",
            {"orders", "eu.late-orders"},
        ),
        ("with lake as (select 1 x) select lake.x from lake", set()),
        ('select "from lake.nothing" FROM  lake . lag', {"lag"}),
    ],
)
def test_the_views_of_a_statement_are_those_it_reads_from(statement, views):
    assert views_named(statement) == views


@pytest.fixture
def ask(spark, shell, topics, monkeypatch, capsys):
    """The same commands in this process, which has a session already."""
    monkeypatch.setattr("lakemq.pipeline.session.session", lambda *_: spark)
    monkeypatch.setattr(spark, "stop", lambda: None)
    for name in ("LAKEMQ_URL", "LAKEMQ_LAKE"):
        monkeypatch.setenv(name, shell.environment[name])
    monkeypatch.chdir(shell.directory)

    def ask(*arguments, exit_code=DONE):
        monkeypatch.setattr(sys, "argv", ["lakemq", *arguments])
        with pytest.raises(SystemExit) as ended:
            main.run()
        out, err = capsys.readouterr()
        assert (ended.value.code or 0) == exit_code, err
        return out, err

    return ask


def test_sql_answers_as_json_and_as_a_table(ask, orders):
    text = f"select key, count(*) n from lake.{orders} group by 1 order by 1"
    out, _ = ask("sql", text, "-o", "json")
    assert json.loads(out) == [{"key": f"c-{n}", "n": 10} for n in range(4)]
    out, err = ask("sql", text, "--limit", "2")
    assert [line.split() for line in out.splitlines()] == [["key", "n"], ["c-0", "10"], ["c-1", "10"]]
    assert "there are more than 2: add --limit" in err
    _, err = ask("sql", "select 1", "-f", "x.sql", exit_code=USAGE)
    assert "a statement or a file, not both" in err
    _, err = ask("sql", "-f", "not-there.sql", exit_code=USAGE)
    assert "not-there.sql cannot be read: No such file" in err


def test_topics_with_dots_and_dashes_are_views_in_backticks(ask, topics):
    topics.mq.admin.ensure_topic("eu.late-orders", partitions=1)
    topics.mq.send("eu.late-orders", b"1")
    out, _ = ask("sql", "select topic, count(*) n from lake.`eu.late-orders` group by 1", "-o", "json")
    assert json.loads(out) == [{"topic": "eu.late-orders", "n": 1}]


def test_trace_shows_what_happened_to_a_message(ask, orders):
    out, _ = ask("sql", f"select messageId from lake.deliveries where topic = '{orders}' and state = 'dead'", "-ojson")
    (found,) = json.loads(out)
    out, _ = ask("trace", found["messageId"])
    assert out.startswith(found["messageId"])
    assert "hopeless" in out
    (message,) = json.loads(ask("trace", found["messageId"], "-o", "json")[0])
    assert [one["kind"] for one in message["events"]] == ["sent", "stored", "delivered", "failed", "dead"]
    _, err = ask("trace", "--key", "c-0", "--from", "-1h", "--limit", "3")
    assert "there are more than 3 messages: add --limit" in err
    assert "no message is like that" in ask("trace", "nobody", exit_code=NOT_FOUND)[1]
    assert "say which messages" in ask("trace", exit_code=USAGE)[1]


def test_replay_counts_and_then_sends_once(ask, orders, topics):
    target = topics.make()
    command = ("replay", orders, "--to", target, "--where", "key = 'c-2'", "--id", f"again-{target}")
    out, err = ask(*command)
    assert "nothing was sent: add --execute" in err
    assert ["messages", "10"] in [line.split() for line in out.splitlines()]
    for sent, skipped in ((10, 0), (0, 10)):
        done = json.loads(ask(*command, "--execute", "-o", "json")[0])
        assert (done["sent"], done["skipped"]) == (sent, skipped)
    out, _ = ask("sql", f"select count(*) n, count(distinct headers['replayOffset']) from lake.{target}", "-ojsonl")
    assert json.loads(out)["n"] == 10
    assert "there is no topic" in ask("replay", "nothing", "--to", target, exit_code=NOT_FOUND)[1]
    _, err = ask("replay", orders, "--to", target, "--where", "total >", exit_code=FAILED)
    assert err.splitlines()[1].startswith("error: ")


def test_report_writes_a_page(ask, shell):
    out, _ = ask("report", "page.html", "-o", "json")
    page = shell.directory / "page.html"
    assert json.loads(out) == {"page": str(page)}
    text = page.read_text()
    for word in ("Hot keys", "c-0", "Dead letters", "hopeless", "Cost of apps"):
        assert word in text
