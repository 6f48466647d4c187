"""`lakemq delay`: messages that wait until they are due."""

from typing import Annotated, Any

import typer

from lakemq.cli.options import chosen

app = typer.Typer(help="Messages that wait until they are due.", no_args_is_help=True, rich_markup_mode=None)

_PAGE = 500


@app.command("list")
def list_(
    ctx: typer.Context,
    topic: Annotated[str | None, typer.Argument(metavar="[TOPIC]", help="Only of this one.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="No more than so many.")] = 50,
    after: Annotated[int, typer.Option(min=-1, help="Go on behind this id.")] = -1,
) -> None:
    """What waits, and until when."""
    from lakemq.cli.admin_api import AdminApi
    from lakemq.cli.printing import moment, print_rows, remark

    api = AdminApi(chosen(ctx))
    rows: list[dict[str, Any]] = []
    more: int | None = after
    while more is not None and len(rows) < limit:
        page = api.get("delays", topic=topic, after=more, limit=min(limit - len(rows), _PAGE))
        rows += page["rows"]
        more = page["next"]
    if not chosen(ctx).is_json:
        rows = [{**row, "due": moment(row["due_ms"])} for row in rows]
    columns = ("id", "due", "topic", "partition", "key", "tags", "size")
    print_rows(rows, columns, chosen(ctx).output, empty="nothing waits")
    if more is not None:
        remark(f"there may be more: --after {more}")


@app.command()
def cancel(
    ctx: typer.Context,
    id: Annotated[int, typer.Argument(metavar="ID", min=0, help="What waits; `lakemq delay list` has the ids.")],
    execute: Annotated[
        bool, typer.Option("--execute", "--yes", help="Do it; without this, only say what would be done.")
    ] = False,
) -> None:
    """Do not deliver it at all."""
    from lakemq.cli.admin_api import AdminApi
    from lakemq.cli.failure import NOT_FOUND, REFUSED, CommandError
    from lakemq.cli.following import BY
    from lakemq.cli.printing import moment, print_one

    api = AdminApi(chosen(ctx))
    if not execute:
        rows = [row for row in api.get("delays", after=id - 1, limit=1)["rows"] if row["id"] == id]
        if not rows:
            raise CommandError(f"there is no delay with id {id}", NOT_FOUND, fix="lakemq delay list")
        raise CommandError(
            f"the message for topic {rows[0]['topic']!r} that waits until {moment(rows[0]['due_ms'])} would never be "
            "delivered; nothing was done",
            REFUSED,
            fix=f"lakemq delay cancel {id} --execute",
        )
    print_one(api.call("DELETE", ("delays", str(id)), query={"by": BY}), chosen(ctx).output)
