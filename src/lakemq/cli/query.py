"""`lakemq sql`, `trace`, `replay` and `report`: questions to live and archived messages together."""

from typing import Annotated

import typer

from lakemq.cli.archive import LAKE, LakePath, Master
from lakemq.cli.options import chosen


def sql(
    ctx: typer.Context,
    statement: Annotated[str | None, typer.Argument(metavar="[SQL]", help="Without it, statements are read.")] = None,
    file: Annotated[str | None, typer.Option("--file", "-f", metavar="PATH", help="Statements, ended by ;.")] = None,
    lake: LakePath = LAKE,
    master: Master = "",
    limit: Annotated[int, typer.Option(min=1, help="Show at most so many rows.")] = 1000,
) -> None:
    """Ask by SQL: lake.TOPIC, lake.messages, lake.events, lake.deliveries and lake.lag are views."""
    from lakemq.cli.querying import run_sql

    run_sql(chosen(ctx), statement, file, lake, master, limit)


def trace(
    ctx: typer.Context,
    message_id: Annotated[str | None, typer.Argument(metavar="[ID]", help="A message: topic/partition/offset.")] = None,
    key: Annotated[str | None, typer.Option(help="All messages of this key.")] = None,
    start: Annotated[str | None, typer.Option("--from", metavar="TIME", help="From then on: -2h, or a time.")] = None,
    end: Annotated[str | None, typer.Option("--to", metavar="TIME", help="Before then.")] = None,
    lake: LakePath = LAKE,
    master: Master = "",
    limit: Annotated[int, typer.Option(min=1, help="At most so many messages.")] = 20,
) -> None:
    """What happened to a message, from its producer to every consumer."""
    from lakemq.cli.querying import run_trace

    run_trace(chosen(ctx), message_id, key, start, end, lake, master, limit)


def replay(
    ctx: typer.Context,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Whose messages.")],
    to: Annotated[str, typer.Option(metavar="TOPIC", help="Where to send them.")],
    where: Annotated[str, typer.Option(metavar="SQL", help="Which: a condition on columns of lake.TOPIC.")] = "true",
    rate: Annotated[int, typer.Option(min=0, help="No more than so many a second; 0 as fast as can be.")] = 0,
    id: Annotated[str, typer.Option(help="Go on with a replay that was interrupted.")] = "",
    lake: LakePath = LAKE,
    master: Master = "",
    execute: Annotated[bool, typer.Option("--execute", "--yes", help="Send them; without, only count.")] = False,
) -> None:
    """Send archived messages again, each once, with their old place as headers."""
    from lakemq.cli.querying import run_replay

    run_replay(chosen(ctx), topic, to, where, rate, id, lake, master, execute)


def report(
    ctx: typer.Context,
    path: Annotated[str, typer.Argument(metavar="FILE", help="The page to write.")] = "lakemq-report.html",
    every: Annotated[str, typer.Option(metavar="SPAN", help="The width of a step in the plots.")] = "1 minute",
    lake: LakePath = LAKE,
    master: Master = "",
) -> None:
    """Write a page of rates, latencies, lag, hot keys, retries and dead letters."""
    from lakemq.cli.querying import run_report

    run_report(chosen(ctx), path, every, lake, master)
