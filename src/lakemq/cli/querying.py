"""What `lakemq sql`, `trace`, `replay` and `report` do."""

import difflib
import logging
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from lakemq.cli.archiving import server_of
from lakemq.cli.failure import USAGE, CommandError
from lakemq.cli.options import Chosen
from lakemq.cli.printing import print_one, print_rows, remark
from lakemq.pipeline.session import check_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lakemq.pipeline.options import Server

    Traced = tuple[list[Any], bool, list[str]]

_NAMED_MAX = 20
_EXITS = ("exit", "quit", r"\q")


@contextmanager
def spark_of(master: str, name: str) -> "Iterator[SparkSession]":
    """A session for one command; what Spark says is told in one line."""
    from lakemq.pipeline.session import session
    from lakemq.pipeline.spark_errors import told

    check_spark()
    from pyspark.errors import PySparkException

    remark("starting Spark …")
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)  # a stack for what is said in a line
    spark = session(master, name)
    try:
        yield spark
    except PySparkException as error:
        raise told(error) from None
    finally:
        spark.stop()


def run_sql(chosen: Chosen, statement: str | None, file: str | None, lake: str, master: str, limit: int) -> None:
    if statement and file:
        raise CommandError("give a statement or a file, not both", USAGE)
    server = server_of(chosen)
    text = statement or (_read(file) if file else "")
    check_spark()
    _check_views(server, text)
    _tell_left_out(_unreadable(server), server.app)
    from lakemq.pipeline.views import register_views

    with spark_of(master, "lakemq sql") as spark:
        if statement or file:
            register_views(spark, server, lake)
            for one in split_statements(text):
                _ask(spark, one, chosen.output, limit)
            return
        names = register_views(spark, server, lake)
        remark(f"views: {', '.join(names)}; end a statement with ;, leave with exit")
        for one in _typed():
            register_views(spark, server, lake)
            _ask_and_go_on(spark, one, chosen.output, limit)


def _check_views(server: "Server", text: str) -> None:
    """Refuse names of views that are not there before Spark is started for them, which takes a while."""
    statements = split_statements(text)
    named = {name for one in statements for name in views_named(one)}
    if not named or any(re.search(r"\bcreate\b", one, re.IGNORECASE) for one in statements):  # may make its own
        return
    from lakemq.pipeline.archive_plan import cluster_of, seen_topics
    from lakemq.pipeline.views import VIEWS

    seen = seen_topics(cluster_of(server))
    left_out = {one.name for one in seen if not one.is_readable}
    known = [one.name for one in seen if one.is_readable and not one.name.startswith("__")] + list(VIEWS)
    for name in sorted(named - {one.lower() for one in known}):
        if name in left_out:
            raise CommandError(
                f"app {server.app} may not read topic {name}",
                3,
                fix=f"lakemq app subscribe {server.app} {name} --consumer",
            )
        near = difflib.get_close_matches(name, known, 1)
        fix = (
            f"did you mean lake.{near[0]}?" if near else f"views are {', '.join(f'lake.{one}' for one in known[-20:])}"
        )
        raise CommandError(f"there is no view lake.{name}", 3, fix=fix)


def views_named(statement: str) -> set[str]:
    """The views of `lake` that a statement reads from, in lower case, as Spark takes names."""
    plain = re.sub(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"", "''", statement)
    found = re.findall(r"\b(?:from|join)\s+`?lake`?\s*\.\s*(?:`((?:[^`]|``)+)`|(\w+))", plain, re.IGNORECASE)
    return {(quoted.replace("``", "`") or name).lower() for quoted, name in found}


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise CommandError(f"{path} cannot be read: {error.strerror}", USAGE) from None


def _typed() -> Iterator[str]:
    """Statements as somebody types them."""
    is_terminal = sys.stdin.isatty()
    waiting = ""
    while True:
        if is_terminal:
            typer.echo("     > " if waiting else "lakemq> ", nl=False, err=True)
        line = sys.stdin.readline()
        if not line or (not waiting and line.strip().rstrip(";") in _EXITS):
            if waiting.strip():
                yield waiting.strip()
            return
        waiting += line
        if waiting.rstrip().endswith(";"):
            yield from split_statements(waiting)
            waiting = ""


def split_statements(text: str) -> list[str]:
    """Statements of a text: ended by ; outside of quotes and comments."""
    found, at, quote = [""], 0, ""
    while at < len(text):
        char = text[at]
        if quote:
            if char == "\\" and quote != "`" and at + 1 < len(text):
                found[-1] += char
                at += 1
                char = text[at]
            elif char == quote:
                quote = ""
            found[-1] += char
        elif text.startswith("--", at):
            end = text.find("\n", at)
            at = len(text) if end < 0 else end
            continue
        elif text.startswith("/*", at):
            end = text.find("*/", at + 2)
            end = len(text) if end < 0 else end + 2
            found[-1] += text[at:end] if text.startswith("/*+", at) else " "  # a hint is no comment
            at = end
            continue
        elif char == ";":
            found.append("")
        else:
            quote = char if char in "'\"`" else ""
            found[-1] += char
        at += 1
    return [one.strip() for one in found if one.strip()]


def _ask(spark: "SparkSession", statement: str, output: str, limit: int) -> None:
    began = time.monotonic()
    frame = spark.sql(statement)
    rows = frame.limit(limit + 1).collect()
    shown = [{name: readable(value) for name, value in row.asDict().items()} for row in rows[:limit]]
    print_rows(shown, frame.columns, output, empty="no rows")
    if output == "table":
        remark(f"{len(shown)} rows in {time.monotonic() - began:.1f} s")
    if len(rows) > limit:
        remark(f"there are more than {limit}: add --limit")


def _ask_and_go_on(spark: "SparkSession", statement: str, output: str, limit: int) -> None:
    from pyspark.errors import PySparkException

    from lakemq.pipeline.spark_errors import told

    try:
        _ask(spark, statement, output, limit)
    except PySparkException as error:
        remark(f"error: {told(error)}")


def readable(value: Any) -> Any:
    """A value of Spark's as JSON has it: bytes as text where they are text."""
    if isinstance(value, bytes | bytearray):
        try:
            return bytes(value).decode()
        except UnicodeDecodeError:
            return "0x" + bytes(value).hex()
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, dict):
        return {str(key): readable(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        if hasattr(value, "asDict"):
            return readable(value.asDict())
        return [readable(inner) for inner in value]
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return str(value)


def run_trace(
    chosen: Chosen,
    message_id: str | None,
    key: str | None,
    start: str | None,
    end: str | None,
    lake: str,
    master: str,
    limit: int,
) -> None:
    if message_id is None and key is None and start is None and end is None:
        raise CommandError(
            "say which messages: an id, --key, or --from and --to", USAGE, fix="lakemq trace orders/0/17"
        )
    server = server_of(chosen)
    search = message_id, key, _moment(start), _moment(end)
    find = _trace_span if message_id is None and key is None else _trace_messages
    rows, is_more, left_out = find(server, lake, master, limit, *search)
    _tell_left_out(left_out, server.app)
    if not rows:
        raise CommandError("no message is like that", 3, fix="events are recorded for archived topics only")
    from lakemq.pipeline.transforms.trace_text import as_json, tree

    if chosen.is_json:
        typer.echo(as_json(rows))
    else:
        typer.echo(tree(rows))
    if is_more:
        remark(f"there are more than {limit} messages: add --limit")


def _trace_messages(server: "Server", lake: str, master: str, limit: int, *search: Any) -> "Traced":
    """By id or key: what is needed is read without Spark, which would take longer to start."""
    from lakemq.pipeline.tracing import Search, trace_messages

    found = trace_messages(server, lake, Search(*search), limit)
    return found.rows, found.is_more, found.left_out


def _trace_span(server: "Server", lake: str, master: str, limit: int, *search: Any) -> "Traced":
    from lakemq.pipeline.transforms import timeline
    from lakemq.pipeline.views import open_views

    with spark_of(master, "lakemq trace") as spark:
        views = open_views(spark, server, lake)
        frame = timeline(views.meta, views.events, start=search[2], end=search[3])
        ids = [row["messageId"] for row in frame.select("messageId").distinct().limit(limit + 1).collect()]
        rows = frame.where(frame["messageId"].isin(ids[:limit])).collect() if ids else []
    return rows, len(ids) > limit, views.left_out


def _unreadable(server: "Server") -> list[str]:
    from lakemq.pipeline.archive_plan import cluster_of, seen_topics

    return sorted(one.name for one in seen_topics(cluster_of(server)) if not one.is_readable)


def _tell_left_out(topics: list[str], app: str) -> None:
    if topics:
        named = ", ".join(topics[:_NAMED_MAX]) + (
            f" and {len(topics) - _NAMED_MAX} more" if len(topics) > _NAMED_MAX else ""
        )
        remark(f"left out, for app {app} may not read them: {named}")


def _moment(text: str | None) -> datetime | None:
    from lakemq.client.duration import moment_ms

    if text is None:
        return None
    return datetime.fromtimestamp(moment_ms(text, int(time.time() * 1000)) / 1000, UTC)


def run_replay(
    chosen: Chosen, topic: str, to: str, where: str, rate: int, id: str, lake: str, master: str, execute: bool
) -> None:
    server = server_of(chosen)
    from lakemq.pipeline.replaying import ReplayReport, replay
    from lakemq.pipeline.views import History

    def tell(report: ReplayReport) -> None:
        remark(f"{report.sent + report.skipped} of {report.messages}")

    with spark_of(master, "lakemq replay") as spark:
        history = History(spark, server, lake)
        if topic not in history.topics:
            raise CommandError(f"there is no topic {topic!r}", 3, fix="lakemq topic ls")
        frame = history.messages(topic).where(where)
        done = replay(frame, server, to=to, per_second=rate, dry_run=not execute, id=id, told=tell)
    found = asdict(done)
    if chosen.is_json:
        print_one(found, chosen.output)
        return
    print_one(found, chosen.output, ("id", "to", "messages", "bytes", "sent", "skipped"))
    if not execute:
        for sample in done.samples:
            remark(f"  {sample['messageId']}  {sample['key'] or ''}  {sample['value']}")
        remark("nothing was sent: add --execute")


def run_report(chosen: Chosen, path: str, every: str, lake: str, master: str) -> None:
    server = server_of(chosen)
    from lakemq.pipeline.report import write_report
    from lakemq.pipeline.transforms import (
        app_cost,
        dead_letter_report,
        duplicates,
        end_to_end_latency,
        hop_latency,
        hot_keys,
        lag_history,
        rates,
        retry_report,
    )
    from lakemq.pipeline.views import open_views

    with spark_of(master, "lakemq report") as spark:
        views = open_views(spark, server, lake)
        frames = {
            "rates": rates(views.meta, every),
            "end_to_end_latency": end_to_end_latency(views.events, every),
            "hop_latency": hop_latency(views.events, every),
            "lag_history": lag_history(views.events, every, views.lag),
            "hot_keys": hot_keys(views.meta),
            "retry_report": retry_report(views.events),
            "dead_letter_report": dead_letter_report(views.events),
            "duplicates": duplicates(views.meta),
            "app_cost": app_cost(views.meta, views.events),
        }
        write_report(path, frames, f"LakeMQ at {server.url}")
    _tell_left_out(views.left_out, server.app)
    print_one({"page": str(Path(path).absolute())}, chosen.output)
