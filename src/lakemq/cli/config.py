"""`lakemq config`: the file of settings: written, shown, checked."""

import os
from pathlib import Path
from typing import Annotated

import typer

from lakemq.cli.options import chosen

app = typer.Typer(help="Write, show and check settings.", no_args_is_help=True, rich_markup_mode=None)


@app.command()
def init(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Where to write.")] = Path("lakemq.toml"),
) -> None:
    """Write a file with every setting, commented out; an existing one is left alone."""
    from lakemq.cli.config_text import template
    from lakemq.cli.failure import REFUSED, CommandError
    from lakemq.cli.printing import remark

    try:
        with file.open("x", encoding="utf-8") as opened:
            opened.write(template())
    except FileExistsError:
        raise CommandError(
            f"{file} exists; nothing was written", REFUSED, fix="choose another name, or move that one away"
        ) from None
    except OSError as error:
        raise CommandError(f"{file} cannot be written: {error.strerror}") from None
    remark(f"wrote {file}; take a # away to change something, then    lakemq broker start --config {file}")


@app.command()
def show(
    ctx: typer.Context,
    origin: Annotated[bool, typer.Option("--origin", help="And where each value comes from.")] = False,
    config: Annotated[Path | None, typer.Option("--config", help="With this file.")] = None,
) -> None:
    """What a broker started here would use: environment, file and what is built in together."""
    from lakemq.cli.printing import print_rows
    from lakemq.config import KEYS, load, shown

    found = load(file=config, environment=os.environ, directory=Path.cwd())
    rows = [
        {"setting": path, "value": shown(key, found.values[path]), "origin": found.origins[path]}
        for path, key in KEYS.items()
    ]
    print_rows(rows, ("setting", "value", "origin") if origin else ("setting", "value"), chosen(ctx).output)


@app.command()
def check(file: Annotated[Path, typer.Argument(metavar="FILE", help="The file to check.")]) -> None:
    """Whether a broker could be started with this file."""
    from lakemq.cli.printing import remark
    from lakemq.config import load

    load(file=file, environment={})
    remark(f"{file}: nothing is wrong")
