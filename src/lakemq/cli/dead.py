"""`lakemq dead`: messages that nobody tries again by itself, until an operator decides.

Which ones: by id, or by topic, group, cause, text and time. Nothing is changed without --execute.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lakemq.cli.options import chosen

if TYPE_CHECKING:
    from lakemq.cli.admin_api import AdminApi

app = typer.Typer(
    help="Dead letters: messages that failed for good. List, mend, resend and delete them.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Id = Annotated[int, typer.Argument(metavar="ID", min=1, help="The dead letter; `lakemq dead list` has the ids.")]
Ids = Annotated[list[int] | None, typer.Argument(metavar="[ID]...", help="These; else all that the options match.")]
Topic = Annotated[str | None, typer.Option(help="Only of this topic.")]
Group = Annotated[str | None, typer.Option(help="Only of this group, app or app.group, by its full name.")]
Cause = Annotated[str | None, typer.Option(help="Only with this cause: exhausted, expired, rate, store or asked.")]
Text = Annotated[str | None, typer.Option(help="Only with this text in the reason or the key.")]
Since = Annotated[str | None, typer.Option(help="Only those that died then or later: -2h, 2026-11-15T14:00.")]
Until = Annotated[str | None, typer.Option(help="Only those that died then or before.")]
First = Annotated[int | None, typer.Option(min=0, help="Only from this id on.")]
Last = Annotated[int | None, typer.Option(min=0, help="Only up to this id.")]
Execute = Annotated[bool, typer.Option("--execute", "--yes", help="Do it; without this, only say what would be done.")]
To = Annotated[str, typer.Option(help="app: the group that failed; topic: all who receive it, as a new message.")]
PerSecond = Annotated[int, typer.Option(min=0, help="No more than so many a second; 0: as fast as it goes.")]
Wait = Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until it is done, or leave the broker to it.")]

COLUMNS = ("id", "died", "cause", "topic", "group", "partition", "offset", "attempts", "key", "reason")
_SHOWN = (
    *("id", "cause", "reason", "topic", "group", "partition", "offset", "attempts", "first", "died"),
    *("sender", "sent", "stored", "key", "tags", "priority", "attributes", "size"),
)
_PAGE = 500


@app.command("list")
def list_(
    ctx: typer.Context,
    topic: Topic = None,
    group: Group = None,
    cause: Cause = None,
    text: Text = None,
    since: Since = None,
    until: Until = None,
    first: First = None,
    last: Last = None,
    limit: Annotated[int, typer.Option(min=1, help="No more than so many.")] = 50,
    after: Annotated[int | None, typer.Option(min=0, help="Go on behind this id.")] = None,
    oldest: Annotated[bool, typer.Option("--oldest", help="The oldest first, instead of the newest.")] = False,
) -> None:
    """Dead letters, the newest first."""
    from lakemq.cli.admin_api import AdminApi
    from lakemq.cli.printing import print_rows, remark

    wanted = _filters(topic, group, cause, text, since, until, first, last)
    order = "oldest" if oldest else "newest"
    rows: list[dict[str, Any]] = []
    api = AdminApi(chosen(ctx))
    while True:
        page = api.get("dead-letters", **wanted, order=order, after=after, limit=min(limit - len(rows), _PAGE))
        rows += page["rows"]
        after = page["next"]
        if after is None or len(rows) >= limit:
            break
    if chosen(ctx).is_json:
        print_rows(rows, (), chosen(ctx).output)
    else:
        print_rows([_line(row) for row in rows], COLUMNS, chosen(ctx).output, empty="there are no dead letters")
    if after is not None:
        remark(f"there are more, {page['count']} in all: --after {after}")


@app.command()
def show(ctx: typer.Context, id: Id) -> None:
    """One dead letter, with its headers and its body."""
    from lakemq.cli.admin_api import AdminApi
    from lakemq.cli.printing import moment, print_one, printable

    found = AdminApi(chosen(ctx)).get("dead-letters", str(id))
    if chosen(ctx).is_json:
        print_one(found, chosen(ctx).output)
        return
    shown = {**found, "group": found["app"]}
    for name in ("first", "died", "sent", "stored"):
        at = found[f"{name}_ms"]
        shown[name] = moment(at) if at is not None else None
    print_one(shown, "table", (*_SHOWN, "trouble") if found["trouble"] else _SHOWN)
    if found["body"] is not None:
        typer.echo()
        body = found["text"] if found["text"] is not None else f"(base64) {found['body']}"
        typer.echo("\n".join(printable(line) for line in body.splitlines()))


@app.command()
def edit(
    ctx: typer.Context,
    id: Id,
    text: Annotated[str | None, typer.Option(help="A new body, as text.")] = None,
    body_file: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="A new body, from this file.")
    ] = None,
    key: Annotated[str | None, typer.Option(help="A new key.")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Set an attribute.")] = None,
    unset: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Take an attribute away.")] = None,
    execute: Execute = False,
) -> None:
    """Mend a dead letter before it is resent: its body, its key or its attributes."""
    import base64

    from lakemq.cli.admin_api import AdminApi
    from lakemq.cli.following import BY, given
    from lakemq.cli.printing import print_one, print_rows, remark

    attributes: dict[str, str | None] = dict.fromkeys(unset or ())
    for one in set_ or ():
        name, sign, value = one.partition("=")
        if not sign or not name:
            raise typer.BadParameter(f"{one!r} is not NAME=VALUE", param_hint="--set")
        attributes[name] = value
    body = base64.b64encode(body_file.read_bytes()).decode() if body_file is not None else None
    change = given(text=text, body=body, key=key, attributes=attributes or None)
    if not change:
        raise typer.BadParameter("say what to change: --text, --body-file, --key, --set or --unset")
    api = AdminApi(chosen(ctx))
    if execute:
        print_one(api.call("PUT", ("dead-letters", str(id)), {**change, "by": BY}), chosen(ctx).output)
        return
    before = api.get("dead-letters", str(id))
    after = {**before, **change, "attributes": {**(before["attributes"] or {}), **attributes}}
    plan = [
        {"field": name, "before": before[name], "after": after[name]}
        for name in ("text", "body", "key", "attributes")
        if name in change
    ]
    print_rows(plan, ("field", "before", "after"), chosen(ctx).output)
    remark("nothing was changed; add --execute")


@app.command()
def resend(
    ctx: typer.Context,
    ids: Ids = None,
    topic: Topic = None,
    group: Group = None,
    cause: Cause = None,
    text: Text = None,
    since: Since = None,
    until: Until = None,
    first: First = None,
    last: Last = None,
    to: To = "app",
    per_second: PerSecond = 0,
    execute: Execute = False,
    wait: Wait = True,
) -> None:
    """Deliver dead letters again."""
    from lakemq.cli.admin_api import AdminApi
    from lakemq.cli.following import BY, follow
    from lakemq.cli.printing import print_rows, remark

    wanted = _filters(topic, group, cause, text, since, until, first, last)
    api = AdminApi(chosen(ctx))
    if ids:
        _check_ids_alone(wanted)
        if execute:
            _each(ctx, ids, lambda id: api.call("POST", ("dead-letters", str(id), "resend"), {"to": to, "by": BY}))
        else:
            _print_some(ctx, api, ids)
            remark(f"nothing was resent: {len(ids)} would be, to the {to}; add --execute")
        return
    done = api.call(
        "POST",
        ("dead-letters", "resend"),
        {**wanted, "to": to, "per_second": per_second, "execute": execute, "by": BY},
    )
    if done["job"] is not None:
        follow(api, done["job"], chosen(ctx).output, waits=wait)
        return
    print_rows(_groups(done), ("topic", "group", "cause", "count"), chosen(ctx).output)
    remark(f"nothing was resent: {_count(done)} would be, to the {to}{'' if execute else '; add --execute'}")


@app.command()
def delete(
    ctx: typer.Context,
    ids: Ids = None,
    topic: Topic = None,
    group: Group = None,
    cause: Cause = None,
    text: Text = None,
    since: Since = None,
    until: Until = None,
    first: First = None,
    last: Last = None,
    per_second: PerSecond = 0,
    execute: Execute = False,
    wait: Wait = True,
) -> None:
    """Delete dead letters for good."""
    from lakemq.cli.admin_api import AdminApi
    from lakemq.cli.failure import REFUSED, CommandError
    from lakemq.cli.following import BY, follow
    from lakemq.cli.printing import remark

    wanted = _filters(topic, group, cause, text, since, until, first, last)
    api = AdminApi(chosen(ctx))
    if ids:
        _check_ids_alone(wanted)
        if execute:
            _each(ctx, ids, lambda id: api.call("DELETE", ("dead-letters", str(id)), query={"by": BY}))
            return
        for id in ids:
            api.get("dead-letters", str(id))
        raise CommandError(f"this would delete {len(ids)} dead letters; nothing was done", REFUSED, fix="add --execute")
    body = {**wanted, "per_second": per_second, "execute": execute, "by": BY}
    done = api.call("POST", ("dead-letters", "delete"), body)
    if done["job"] is not None:
        follow(api, done["job"], chosen(ctx).output, waits=wait)
    elif execute:
        remark("there is nothing to delete")
    else:
        which = "; ".join(f"{one['count']} of {one['topic']}, {one['group']}: {one['cause']}" for one in _groups(done))
        raise CommandError(
            f"this would delete {_count(done)} dead letters; nothing was done",
            REFUSED,
            why=which,
            fix="add --execute",
        )


@app.command()
def export(
    ctx: typer.Context,
    file: Annotated[Path | None, typer.Argument(metavar="[FILE]", help="Where to.  [default: stdout]")] = None,
    topic: Topic = None,
    group: Group = None,
    cause: Cause = None,
    text: Text = None,
    since: Since = None,
    until: Until = None,
    first: First = None,
    last: Last = None,
) -> None:
    """Write dead letters with their bodies, one JSON object a line, the oldest first."""
    import json
    import sys

    from lakemq.cli.admin_api import AdminApi
    from lakemq.cli.failure import FAILED, CommandError
    from lakemq.cli.printing import Progress, remark

    wanted = _filters(topic, group, cause, text, since, until, first, last)
    api = AdminApi(chosen(ctx))
    progress = Progress("dead letters")
    count, after = 0, None
    try:
        out = file.open("w", encoding="utf-8") if file is not None else sys.stdout
        while True:
            page = api.get("dead-letters", **wanted, order="oldest", with_bodies="true", after=after, limit=_PAGE)
            for row in page["rows"]:
                out.write(json.dumps(row) + "\n")
            count += len(page["rows"])
            progress.tell(count)
            after = page["next"]
            if after is None:
                break
        if file is not None:
            out.close()
    except OSError as error:
        raise CommandError(f"{file or 'stdout'} cannot be written: {error.strerror}", FAILED) from None
    remark(f"{count} dead letters exported")


@app.command()
def audit(
    ctx: typer.Context, limit: Annotated[int, typer.Option(min=1, max=1000, help="No more than so many.")] = 50
) -> None:
    """What was done with dead letters, by whom and when, the newest first."""
    from lakemq.cli.admin_api import AdminApi
    from lakemq.cli.printing import moment, print_rows

    rows = AdminApi(chosen(ctx)).get("dead-letters", "audit", limit=limit)
    if not chosen(ctx).is_json:
        rows = [{**row, "time": moment(row["time_ms"])} for row in rows]
    print_rows(rows, ("time", "id", "action", "by"), chosen(ctx).output, empty="nothing was done with dead letters")


def _filters(
    topic: str | None,
    group: str | None,
    cause: str | None,
    text: str | None,
    since: str | None,
    until: str | None,
    first: int | None,
    last: int | None,
) -> dict[str, Any]:
    from lakemq.cli.following import given, when_ms

    return given(
        topic=topic,
        app=group,
        cause=cause,
        text=text,
        from_ms=when_ms(since, "--since"),
        until_ms=when_ms(until, "--until"),
        first_id=first,
        last_id=last,
    )


def _check_ids_alone(wanted: dict[str, Any]) -> None:
    if wanted:
        raise typer.BadParameter("give ids, or options that say which; not both", param_hint="ID")


def _each(ctx: typer.Context, ids: list[int], act: Any) -> None:
    """One after the other; those that fail are told, and the others are done."""
    from lakemq.cli.failure import PARTLY, CommandError, describe
    from lakemq.cli.printing import print_rows, remark

    done, failures = [], []
    for id in ids:
        try:
            done.append(act(id))
        except CommandError as error:
            failures.append(error)
    if len(failures) == 1 and not done:
        raise failures[0]
    print_rows(done, ("id", "outcome"), chosen(ctx).output)
    for failure in failures:
        remark(describe(failure))
    if failures:
        raise typer.Exit(PARTLY)


def _print_some(ctx: typer.Context, api: "AdminApi", ids: list[int]) -> None:
    from lakemq.cli.printing import print_rows

    rows = [api.get("dead-letters", str(id)) for id in ids]
    print_rows([_line(row) for row in rows] if not chosen(ctx).is_json else rows, COLUMNS, chosen(ctx).output)


def _line(row: dict[str, Any]) -> dict[str, Any]:
    from lakemq.cli.printing import moment

    return {**row, "group": row["app"], "died": moment(row["died_ms"])}


def _groups(done: dict[str, Any]) -> list[dict[str, Any]]:
    return [{**one, "group": one["app"]} for one in done["groups"]]


def _count(done: dict[str, Any]) -> str:
    return str(done["count"]) if done["is_complete"] else f"at least {done['count']}"
