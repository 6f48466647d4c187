"""The `lakemq` command: which sub-commands there are, and how any of them fails.

Each command imports what it needs when it is called, so `lakemq --help` loads typer and little else. Exit codes and the
form of errors are in `failure.py`.
"""

import json
import sys
from typing import Annotated, Any

import typer

from lakemq.cli import app as apps
from lakemq.cli import (
    archive,
    bench,
    broker,
    config,
    dead,
    delay,
    doctor,
    group,
    job,
    message,
    query,
    retry,
    storage,
    topic,
)
from lakemq.cli.failure import INTERRUPTED, CommandError, as_json, describe, exit_code_of
from lakemq.cli.options import OUTPUTS, Chosen, RootGroup, chosen, wants_json
from lakemq.errors import LakeMQError
from lakemq.version import VERSION

app = typer.Typer(
    name="lakemq",
    cls=RootGroup,
    help="LakeMQ, a message broker whose archive is a lake that Spark reads.",
    epilog="--server, --admin, --app, --token and -o may stand anywhere on the line.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,  # typer's rich help takes longer to load than most commands take to run
    pretty_exceptions_enable=False,  # a bug shows Python's own traceback, without values of variables
)


# What typer raises about the line itself: it brings its own click, so that is asked for by what it does export.
_LINE_ERRORS: Any = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")


def run() -> None:
    """Entry point of the console script: run the command line, then exit."""
    is_json = wants_json(sys.argv[1:])
    try:
        if is_json:
            sys.exit(_run_for_program())
        app(prog_name="lakemq")
    except LakeMQError as error:
        typer.echo(json.dumps(as_json(error)) if is_json else describe(error), err=True)
        sys.exit(exit_code_of(error))
    except KeyboardInterrupt:  # typer turns most into 130 itself; this one came outside a command
        sys.exit(INTERRUPTED)


def _run_for_program() -> int:
    """The command line with `-o json`: what is wrong with the line itself is JSON on stderr as well."""
    try:
        status = app(prog_name="lakemq", standalone_mode=False)
    except typer.Abort:
        return INTERRUPTED
    except _LINE_ERRORS as error:
        told = CommandError(error.format_message(), error.exit_code, fix="lakemq --help")
        typer.echo(json.dumps(as_json(told)), err=True)
        return int(error.exit_code)
    return int(status or 0)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"lakemq {VERSION}")
        raise typer.Exit


def _known_output(text: str) -> str:
    if text not in OUTPUTS:
        raise typer.BadParameter(f"{text!r} is not one of {', '.join(OUTPUTS)}")
    return text


@app.callback()
def options(
    ctx: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
    server: Annotated[
        str | None, typer.Option(metavar="URL", envvar="LAKEMQ_URL", help="Where clients connect: lakemq://host:port.")
    ] = None,
    admin: Annotated[
        str | None,
        typer.Option(metavar="URL", envvar="LAKEMQ_ADMIN_URL", help="Where operators ask: http://host:port."),
    ] = None,
    as_app: Annotated[
        str | None, typer.Option("--app", metavar="NAME", envvar="LAKEMQ_APP", help="As which app to send and receive.")
    ] = None,
    token: Annotated[
        str | None, typer.Option(envvar="LAKEMQ_TOKEN", help="The app's token; others may see a command line.")
    ] = None,
    output: Annotated[
        str, typer.Option("--output", "-o", callback=_known_output, help="table, json, or jsonl: an object per line.")
    ] = "table",
) -> None:
    ctx.obj = Chosen(server, admin, as_app, token, output)


app.command()(broker.dev)


@app.command()
def demo() -> None:
    """Show what LakeMQ does, from end to end."""
    from lakemq.cli.demo import show

    show()


app.command()(message.send)
app.command()(message.recv)
app.command()(message.tail)
app.add_typer(topic.app, name="topic")
app.add_typer(apps.app, name="app")
app.add_typer(group.app, name="group")
app.add_typer(dead.app, name="dead")
app.add_typer(retry.app, name="retry")
app.add_typer(delay.app, name="delay")
app.add_typer(job.app, name="job")
app.add_typer(archive.app, name="archive")
app.command()(query.sql)
app.command()(query.trace)
app.command()(query.replay)
app.command()(query.report)
app.add_typer(broker.app, name="broker")
app.add_typer(storage.app, name="storage")
app.add_typer(config.app, name="config")
app.add_typer(bench.app, name="bench")
app.command()(doctor.doctor)


@app.command()
def errors(
    ctx: typer.Context,
    code: Annotated[str | None, typer.Argument(metavar="CODE", help="Explain this one; without it, list all.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The same as -o json.")] = False,
) -> None:
    """List the error codes, or explain one."""
    from lakemq.cli.errors import show

    show(code, as_json=as_json or chosen(ctx).is_json)
