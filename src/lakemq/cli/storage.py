"""`lakemq storage`: a look at a data directory that no broker has open, and a copy of one. Nothing in it is changed.

Exit codes: 0 sound, 1 damaged, 2 not a data directory. What they print is in `storage_report.py`, loaded when called.
"""

from pathlib import Path
from typing import Annotated

import typer

from lakemq.cli.options import chosen

app = typer.Typer(help="Look at a data directory offline; copy one.", no_args_is_help=True, rich_markup_mode=None)

Directory = Annotated[Path, typer.Argument(help="The data directory, the one with a `format` file in it.")]
AsJson = Annotated[bool, typer.Option("--json", help="The same as -o json.")]


@app.command()
def inspect(ctx: typer.Context, directory: Directory, as_json: AsJson = False) -> None:
    """Print segments, partitions, terms and the checkpoint, and what is wrong if anything is."""
    from lakemq.cli.storage_report import show_survey

    show_survey(directory, as_json=as_json or chosen(ctx).is_json, with_summary=True)


@app.command()
def verify(ctx: typer.Context, directory: Directory, as_json: AsJson = False) -> None:
    """Read every record and every index entry, and name each place that is damaged."""
    from lakemq.cli.storage_report import show_survey

    show_survey(directory, as_json=as_json or chosen(ctx).is_json, with_summary=False)


@app.command()
def backup(
    ctx: typer.Context,
    directory: Directory,
    target: Annotated[Path, typer.Argument(help="Where to: a directory that is new or empty.")],
) -> None:
    """Copy a data directory, also while a broker has it open. A start on the copy restores it."""
    from lakemq.cli.storage_report import make_backup

    make_backup(directory, target, chosen(ctx).output)


@app.command()
def dump(
    ctx: typer.Context,
    directory: Directory,
    start: Annotated[int | None, typer.Option("--from", help="Position of the first record.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Records at most.")] = 100,
    topic: Annotated[int | None, typer.Option(help="Only this topic number.")] = None,
    partition: Annotated[int | None, typer.Option(help="Only this partition.")] = None,
    bodies: Annotated[bool, typer.Option("--bodies", help="Show each message with the start of its body.")] = False,
) -> None:
    """Print records one by one, oldest first."""
    from lakemq.cli.storage_report import show_dump

    output = chosen(ctx).output
    show_dump(directory, start=start, limit=limit, topic=topic, partition=partition, bodies=bodies, output=output)
