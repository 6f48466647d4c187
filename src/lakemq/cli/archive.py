"""`lakemq archive`: copy archived topics into the lake, and look after it."""

from typing import Annotated

import typer

from lakemq.cli.options import chosen

app = typer.Typer(help="Archived topics in the lake: copy, look after.", no_args_is_help=True, rich_markup_mode=None)

LakePath = Annotated[
    str, typer.Option("--lake", metavar="PATH", envvar="LAKEMQ_LAKE", help="The lake: a directory, or a URI.")
]
Master = Annotated[
    str, typer.Option(metavar="URL", help="Where Spark runs: local[4], spark://host:7077, yarn, k8s://…")
]
TopicNames = Annotated[list[str] | None, typer.Argument(metavar="[TOPIC]...", help="These; without, all.")]
Execute = Annotated[bool, typer.Option("--execute", "--yes", help="Do it; without this, only say what would be done.")]
LAKE = "lakemq-lake"


@app.command()
def run(
    ctx: typer.Context,
    topics: TopicNames = None,
    lake: LakePath = LAKE,
    master: Master = "",
    every: Annotated[
        str, typer.Option(metavar="SPAN", help='Go on until stopped, a batch each "10 seconds"; without, up to now.')
    ] = "",
    batch: Annotated[int, typer.Option(min=1, help="At most so many messages in a batch.")] = 1_000_000,
    ship: Annotated[bool, typer.Option("--ship", help="Send LakeMQ's code to workers that do not have it.")] = False,
    compact_mb: Annotated[int, typer.Option(min=0, help="Copy so much into larger files after a batch; 0: none.")] = 32,
    vacuum_hours: Annotated[
        int, typer.Option(min=0, help="Once a day, remove files that nobody needed for so long; 0: never.")
    ] = 168,
) -> None:
    """Copy what is new of all archived topics into the lake, each message once."""
    from lakemq.cli.archiving import run_archive

    upkeep = compact_mb << 20, vacuum_hours
    run_archive(chosen(ctx), tuple(topics or ()), lake, master, every, batch, ship, upkeep)


@app.command()
def backfill(ctx: typer.Context, topics: TopicNames = None, lake: LakePath = LAKE, master: Master = "") -> None:
    """Copy topics into the lake from their first message on, up to now, whether or not they are marked as archived."""
    from lakemq.cli.archiving import run_archive
    from lakemq.cli.failure import USAGE, CommandError

    if not topics:
        raise CommandError("name the topics to copy", USAGE, fix="lakemq archive backfill TOPIC")
    run_archive(chosen(ctx), tuple(topics), lake, master, "", 1_000_000)


@app.command()
def status(ctx: typer.Context, lake: LakePath = LAKE) -> None:
    """How far the lake is, partition by partition, and how much is in it."""
    from lakemq.cli.archiving import show_status

    show_status(chosen(ctx), lake)


@app.command()
def verify(
    ctx: typer.Context,
    lake: LakePath = LAKE,
    offline: Annotated[bool, typer.Option("--offline", help="Without asking the broker how far it was told.")] = False,
) -> None:
    """Prove that every message is there once with the right bytes, or that a gap says why not."""
    from lakemq.cli.archiving import show_verification

    show_verification(chosen(ctx), lake, offline)


@app.command()
def compact(
    ctx: typer.Context,
    lake: LakePath = LAKE,
    topic: Annotated[str | None, typer.Option(help="Only this topic.")] = None,
    target_mb: Annotated[int, typer.Option(min=1, help="Files of about this size.")] = 128,
) -> None:
    """Make few large files of many small ones; safe while the archive runs."""
    from lakemq.cli.archiving import run_compaction

    run_compaction(chosen(ctx), lake, topic, target_mb << 20)


@app.command()
def vacuum(
    ctx: typer.Context,
    lake: LakePath = LAKE,
    hours: Annotated[int, typer.Option(min=0, help="Keep what was in use in the last hours.")] = 168,
    execute: Execute = False,
    force: Annotated[bool, typer.Option("--force", help="Also with less than an hour.")] = False,
) -> None:
    """Remove files that are no longer part of the lake."""
    from lakemq.cli.archiving import run_vacuum

    run_vacuum(chosen(ctx), lake, hours, execute, force)


@app.command()
def retire(
    ctx: typer.Context,
    days: Annotated[int, typer.Argument(min=1, metavar="DAYS", help="Keep the last so many days.")],
    table: Annotated[str, typer.Option(help="messages, meta, events, or all.")] = "all",
    topic: Annotated[str | None, typer.Option(help="Only this topic.")] = None,
    lake: LakePath = LAKE,
    execute: Execute = False,
) -> None:
    """Drop whole days that are older than that from the lake."""
    from lakemq.cli.archiving import run_retirement

    run_retirement(chosen(ctx), lake, days, table, topic, execute)


@app.command()
def erase(
    ctx: typer.Context,
    keys: Annotated[list[str], typer.Argument(metavar="KEY...", help="Messages with these keys.")],
    topic: Annotated[str | None, typer.Option(help="Only of this topic.")] = None,
    lake: LakePath = LAKE,
    execute: Execute = False,
) -> None:
    """Remove all messages of some keys from the lake, as a law may ask for."""
    from lakemq.cli.archiving import run_erasure

    run_erasure(chosen(ctx), lake, keys, topic, execute)
