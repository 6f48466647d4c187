"""The `lakemq` command: which sub-commands there are, and how any of them fails.

Each command imports its own module when it is called, so `lakemq --help` loads typer and little else.
Exit codes: 0 done, 1 a LakeMQError, 2 wrong usage, 130 stopped by Ctrl-C.
"""

import sys
from typing import Annotated

import typer

from lakemq.cli import storage
from lakemq.errors import LakeMQError
from lakemq.version import VERSION

app = typer.Typer(
    name="lakemq",
    help="LakeMQ, a message broker whose archive is a lake that Spark reads.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,  # typer's rich help takes longer to load than most commands take to run
    pretty_exceptions_enable=False,  # a bug shows Python's own traceback, without values of variables
)

app.add_typer(storage.app, name="storage")


def run() -> None:
    """Entry point of the console script: run the command line, then exit."""
    try:
        app(prog_name="lakemq")
    except LakeMQError as error:
        typer.echo(describe(error), err=True)
        sys.exit(1)
    except KeyboardInterrupt:  # typer turns most into 130 itself; this one came outside a command
        sys.exit(130)


def describe(error: LakeMQError) -> str:
    """What a user sees of an error: one line that says what happened, one that says what to do."""
    number = "" if error.status is None else f" {error.status}"
    return f"lakemq: error{number} ({type(error).__name__}): {_one_line(str(error))}\n  fix: {error.fix}"


def _one_line(text: str) -> str:
    # A detail may come from a peer: no line breaks, and nothing that a terminal would obey.
    return "".join(char if char.isprintable() else "?" for char in " ".join(text.split()))


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"lakemq {VERSION}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    pass


@app.command()
def demo() -> None:
    """Show what LakeMQ does, from end to end."""
    from lakemq.cli.demo import show

    show()


@app.command()
def errors(
    code: Annotated[str | None, typer.Argument(metavar="CODE", help="Explain this one; without it, list all.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False,
) -> None:
    """List the error codes, or explain one."""
    from lakemq.cli.errors import show

    show(code, as_json=as_json)
