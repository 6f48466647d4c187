"""`lakemq retry`: messages that failed and wait to be tried again."""

from typing import Annotated, Any

import typer

from lakemq.cli.options import chosen

app = typer.Typer(help="Messages that failed and wait to be tried again.", no_args_is_help=True, rich_markup_mode=None)

TopicName = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.")]
GroupName = Annotated[str, typer.Argument(metavar="GROUP", help="The group: app, app.group, or group with --app.")]
Ids = Annotated[list[int] | None, typer.Argument(metavar="[ID]...", help="These; without, all of the group.")]
Execute = Annotated[bool, typer.Option("--execute", "--yes", help="Do it; without this, only say what would be done.")]
Wait = Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until it is done, or leave the broker to it.")]
_PAGE = 500


@app.command("list")
def list_(
    ctx: typer.Context,
    topic: TopicName,
    group: GroupName,
    limit: Annotated[int, typer.Option(min=1, help="No more than so many.")] = 50,
    after: Annotated[int, typer.Option(min=0, help="Go on behind this id.")] = 0,
) -> None:
    """What waits, when it is due, and why it failed."""
    from lakemq.cli.group import _find
    from lakemq.cli.printing import moment, print_rows, remark

    api, found = _find(ctx, topic, group)
    rows: list[dict[str, Any]] = []
    more: int | None = after
    while more is not None and len(rows) < limit:
        page = api.get("retries", topic=topic, app=found["app"], after=more, limit=min(limit - len(rows), _PAGE))
        rows += page["rows"]
        more = page["next"]
    if not chosen(ctx).is_json:
        rows = [{**row, "due": moment(row["due_ms"]), "lent": row["is_lent"]} for row in rows]
    columns = ("id", "due", "attempts", "partition", "offset", "lent", "reason")
    print_rows(rows, columns, chosen(ctx).output, empty=f"nothing of {found['app']} waits to be tried again")
    if more is not None:
        remark(f"there are more, {page['count']} in all: --after {more}")


@app.command()
def now(
    ctx: typer.Context,
    topic: TopicName,
    group: GroupName,
    ids: Ids = None,
    execute: Execute = False,
    wait: Wait = True,
) -> None:
    """Try them at once, instead of when they are due."""
    from lakemq.cli.printing import print_one, remark

    done = _ask(ctx, "now", topic, group, ids, execute, wait)
    if done is not None:
        print_one({name: done[name] for name in ("count", "lent", "done")}, chosen(ctx).output)
        if not execute:
            remark(f"nothing was done: {done['count']} would be tried at once; add --execute")


@app.command()
def drop(
    ctx: typer.Context,
    topic: TopicName,
    group: GroupName,
    ids: Ids = None,
    execute: Execute = False,
    wait: Wait = True,
) -> None:
    """Try them no more: they become dead letters."""
    from lakemq.cli.failure import REFUSED, CommandError
    from lakemq.cli.printing import print_one

    done = _ask(ctx, "drop", topic, group, ids, execute, wait)
    if done is None:
        return
    if not execute:
        raise CommandError(
            f"{done['count']} messages would be tried no more and become dead letters; nothing was done",
            REFUSED,
            fix="add --execute",
        )
    print_one({name: done[name] for name in ("count", "lent", "done")}, chosen(ctx).output)


def _ask(
    ctx: typer.Context, what: str, topic: str, group: str, ids: list[int] | None, execute: bool, wait: bool
) -> dict[str, Any] | None:
    """The broker's answer; None if it was a job, which has been told."""
    from lakemq.cli.following import BY, follow, given
    from lakemq.cli.group import _find

    api, found = _find(ctx, topic, group)
    body = {"topic": topic, "app": found["app"], "execute": execute, "by": BY, **given(ids=ids or None)}
    done: dict[str, Any] = api.call("POST", ("retries", what), body)
    if done["job"] is None:
        return done
    follow(api, done["job"], chosen(ctx).output, waits=wait)
    return None
