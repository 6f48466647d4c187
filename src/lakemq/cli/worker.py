"""`lakemq worker`: its options. What it does is in `working.py` and `supervising.py`, loaded when called."""

from pathlib import Path
from typing import Annotated

import typer

from lakemq.cli.options import chosen

PROCESSES_MAX = 256


def worker(
    ctx: typer.Context,
    target: Annotated[
        str, typer.Argument(metavar="MODULE:NAME", help="The client that has the handlers: shop.tasks:mq.")
    ],
    processes: Annotated[
        int, typer.Option(min=1, max=PROCESSES_MAX, help="So many processes, started again if they die.")
    ] = 1,
    reload: Annotated[
        bool, typer.Option("--reload", help="For development: start anew when a source file changes.")
    ] = False,
    reload_dir: Annotated[
        list[Path] | None, typer.Option(help="Where --reload looks; may be repeated.  [default: this directory]")
    ] = None,
    shutdown_timeout: Annotated[
        str, typer.Option(help="How long handlers may finish after SIGTERM or Ctrl-C; then messages go back.")
    ] = "25s",
) -> None:
    """Run the handlers of a program until SIGTERM or Ctrl-C."""
    from lakemq.cli.working import Wish, start

    wish = Wish(target, processes, tuple(reload_dir or [Path.cwd()]) if reload else (), shutdown_timeout)
    raise typer.Exit(start(chosen(ctx), wish))
