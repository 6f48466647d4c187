"""`lakemq errors`: the error tree for people (a table, or one error explained) and for programs (JSON)."""

import json
import sys
from dataclasses import asdict, dataclass

import typer

from lakemq.errors import LakeMQError, all_errors


@dataclass(frozen=True, slots=True)
class Entry:
    """One code as it is shown; the fields are the keys of the JSON."""

    code: int
    name: str
    outcome: str  # acked, failed or unknown
    retriable: bool
    maybe_written: bool
    in_seed: bool
    cause: str
    fix: str


SUCCESS = Entry(
    code=0,
    name="success",
    outcome="acked",
    retriable=False,
    maybe_written=False,
    in_seed=True,
    cause="The request was done; this is not an error.",
    fix="Nothing needs to be done.",
)


def show(code: str | None, *, as_json: bool) -> None:
    """Print all errors, or the one whose code was typed. A code that is none of ours is wrong usage."""
    entries = [entry_of(error) for error in all_errors()]
    if code is not None:
        entry = _find(code, entries)
        typer.echo(json.dumps(asdict(entry), indent=2) if as_json else explain(entry))
    elif as_json:
        typer.echo(json.dumps([asdict(entry) for entry in entries], indent=2))
    elif sys.stdout.isatty():
        _print_table(entries)
    else:
        typer.echo("\n".join(_plain_lines(entries)))


def entry_of(error: type[LakeMQError]) -> Entry:
    assert error.status is not None, f"{error.__name__} does not travel"
    return Entry(
        code=error.status,
        name=error.__name__,
        outcome="unknown" if error.maybe_written else "failed",
        retriable=error.retriable,
        maybe_written=error.maybe_written,
        in_seed=error.in_seed,
        cause=error.cause,
        fix=error.fix,
    )


def explain(entry: Entry) -> str:
    """One code in full sentences."""
    return "\n".join(
        [
            f"{entry.code} {entry.name}",
            f"  cause    {entry.cause}",
            f"  fix      {entry.fix}",
            f"  retry    {_retry_advice(entry)}",
            f"  stored   {_STORED[entry.outcome]}",
            f"  outcome  {entry.outcome}",
        ]
    )


_STORED = {
    "acked": "Yes, as safely as the producer's acknowledgement level promises.",
    "failed": "No: if this was a send, the message was not stored and will not appear.",
    "unknown": "Perhaps: if this was a send, the message may appear all the same.",
}


def _retry_advice(entry: Entry) -> str:
    if entry.outcome == "acked":
        return "No: there is nothing to repeat."
    if not entry.retriable:
        return "No: the same request will not do better until the cause is gone."
    if entry.maybe_written:
        return "Yes, later or at another broker; but a repeated send may store the message twice."
    return "Yes: the same request may succeed later, or at another broker."


def _find(code: str, entries: list[Entry]) -> Entry:
    known = {str(entry.code): entry for entry in [SUCCESS, *entries]}
    if code not in known:
        raise typer.BadParameter(
            f"{code!r} is not an error code. Codes are numbers from {entries[0].code} to {entries[-1].code}, "
            "not all of them in use, and 0 for success. `lakemq errors` lists them.",
            param_hint="CODE",
        )
    return known[code]


def _plain_lines(entries: list[Entry]) -> list[str]:
    """One line per error for grep and pipes; the words stand for themselves, so there is no heading."""
    name_width = max(len(entry.name) for entry in entries)
    return [
        f"{entry.code:>3}  {entry.name:<{name_width}}  {'retriable' if entry.retriable else '-':<9}  "
        f"{'maybe-written' if entry.maybe_written else '-':<13}  {entry.cause}"
        for entry in entries
    ]


def _print_table(entries: list[Entry]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("code", justify="right", no_wrap=True)
    table.add_column("name", no_wrap=True)
    table.add_column("retri-\nable?", no_wrap=True)
    table.add_column("maybe\nwritten?", no_wrap=True)
    table.add_column("cause")
    for entry in entries:
        table.add_row(
            str(entry.code),
            entry.name,
            "yes" if entry.retriable else "no",
            "yes" if entry.maybe_written else "no",
            entry.cause,
        )
    Console(highlight=False, markup=False).print(table)
