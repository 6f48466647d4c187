"""`lakemq doctor`: whether this machine and the broker it would talk to are in order."""

import typer

from lakemq.cli.options import chosen


def doctor(ctx: typer.Context) -> None:
    """Check Python, the compiled parts, extras, Java, disk, limits, clock and the broker."""
    from lakemq.cli.examining import examine
    from lakemq.cli.failure import DONE, FAILED
    from lakemq.cli.printing import print_rows

    findings = examine(chosen(ctx))
    print_rows([one._asdict() for one in findings], ("check", "state", "detail", "fix"), chosen(ctx).output)
    raise typer.Exit(FAILED if any(one.state == "bad" for one in findings) else DONE)
