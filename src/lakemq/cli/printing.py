"""What commands print: data on stdout as a table, aligned text or JSON; remarks on stderr."""

import json
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import typer

Row = Mapping[str, Any]
Columns = Sequence[str]


def remark(text: str) -> None:
    """A line that is not data."""
    typer.echo(text, err=True)


class Progress:
    """How long work takes, told now and then: every two seconds on a terminal, every ten elsewhere."""

    def __init__(self, noun: str) -> None:
        self._noun = noun
        self._began = self._told = time.monotonic()
        self._every = 2 if sys.stderr.isatty() else 10

    @property
    def seconds(self) -> float:
        """Since the beginning."""
        return time.monotonic() - self._began

    def tell(self, count: int) -> None:
        """So far it is so many."""
        now = time.monotonic()
        if now - self._told >= self._every:
            self._told = now
            remark(f"{count} {self._noun}, {count / (now - self._began):.0f} a second")


def print_rows(rows: Sequence[Row], columns: Columns, output: str, *, empty: str = "") -> None:
    """A list: JSON has all fields, a table those named."""
    if output == "json":
        typer.echo(json.dumps(list(rows), indent=2))
    elif output == "jsonl":
        for row in rows:
            typer.echo(json.dumps(row))
    elif not rows:
        if empty:
            remark(empty)
    elif sys.stdout.isatty():
        _print_table(rows, columns)
    else:
        typer.echo("\n".join(aligned(rows, columns)))


def print_one(row: Row, output: str, fields: Columns | None = None) -> None:
    """One thing: JSON has all of it, people get a line for each field that is one value."""
    if output != "table":
        typer.echo(json.dumps(row, indent=2 if output == "json" else None))
        return
    names = list(fields or row)
    width = max(map(len, names))
    for name in names:
        value = row[name]
        if not isinstance(value, list | dict) or fields is not None:
            typer.echo(f"{name:<{width}}  {shown(value)}".rstrip())


def aligned(rows: Sequence[Row], columns: Columns) -> list[str]:
    """A heading and a line per row, numbers to the right."""
    cells = [[name.replace("_", "-") for name in columns]]
    cells += [[shown(row.get(name)) for name in columns] for row in rows]
    widths = [max(len(line[place]) for line in cells) for place in range(len(columns))]
    is_number = [all(isinstance(row.get(name), int | float | None) for row in rows) for name in columns]
    return [
        "  ".join(
            cell.rjust(width) if number else cell.ljust(width)
            for cell, width, number in zip(line, widths, is_number, strict=True)
        ).rstrip()
        for line in cells
    ]


def shown(value: Any) -> str:
    """A value for people; nothing that a terminal would obey."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.1f}"
    if isinstance(value, list | tuple):
        return ", ".join(map(shown, value)) or "-"
    if isinstance(value, dict):
        return ", ".join(f"{key}={shown(one)}" for key, one in value.items()) or "-"
    return printable(str(value))


def printable(text: str) -> str:
    """Without what commands a terminal."""
    return "".join(char if char.isprintable() else "·" for char in text)


def moment(ms: int) -> str:
    """A time in milliseconds since 1970, for people where they are."""
    try:
        return f"{datetime.fromtimestamp(ms / 1000).astimezone():%Y-%m-%d %H:%M:%S.%f}"[:-3]
    except (OverflowError, ValueError, OSError):
        return str(ms)


def iso(ms: int) -> str:
    """The same for programs."""
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (OverflowError, ValueError, OSError):
        return str(ms)


def _print_table(rows: Iterable[Row], columns: Columns) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    rows = list(rows)
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 2, 0, 0))
    for name in columns:
        is_number = all(isinstance(row.get(name), int | float | None) for row in rows)
        table.add_column(name.replace("_", " "), justify="right" if is_number else "left")
    for row in rows:
        table.add_row(*(shown(row.get(name)) for name in columns))
    Console(highlight=False, markup=False).print(table)
