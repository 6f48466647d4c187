"""`lakemq job`: long work that the broker does. A restart of the broker ends it; what is done stays done."""

from typing import Annotated

import typer

from lakemq.cli.options import chosen

app = typer.Typer(
    help="Long work of the broker: resends, deletions, copies.", no_args_is_help=True, rich_markup_mode=None
)

Id = Annotated[int, typer.Argument(metavar="ID", min=0, help="The job, by the id it was begun with.")]
COLUMNS = ("id", "kind", "about", "by", "state", "total", "done", "failed")


@app.command("list")
def list_(ctx: typer.Context) -> None:
    """Those that run, and the last that have ended."""
    from lakemq.cli.admin_api import AdminApi
    from lakemq.cli.printing import print_rows

    print_rows(AdminApi(chosen(ctx)).get("jobs"), COLUMNS, chosen(ctx).output, empty="there are no jobs")


@app.command()
def show(
    ctx: typer.Context,
    id: Id,
    wait: Annotated[bool, typer.Option("--wait", help="Until it has ended.")] = False,
) -> None:
    """How far one is, and what failed."""
    from lakemq.cli.admin_api import AdminApi
    from lakemq.cli.following import follow

    api = AdminApi(chosen(ctx))
    follow(api, api.get("jobs", str(id)), chosen(ctx).output, waits=wait)


@app.command()
def cancel(ctx: typer.Context, id: Id) -> None:
    """End one; what is done stays done."""
    from lakemq.cli.admin_api import AdminApi
    from lakemq.cli.following import BY, JOB_FIELDS
    from lakemq.cli.printing import print_one

    job = AdminApi(chosen(ctx)).call("DELETE", ("jobs", str(id)), query={"by": BY})
    print_one(job, chosen(ctx).output, None if chosen(ctx).is_json else JOB_FIELDS)
