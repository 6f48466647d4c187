"""`lakemq topic`: the topics of a broker."""

from typing import Annotated, Any

import typer

from lakemq.cli.options import chosen

app = typer.Typer(help="List, make and change topics.", no_args_is_help=True, rich_markup_mode=None)

Name = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic, or namespace.topic.")]
Execute = Annotated[bool, typer.Option("--execute", help="Do it; without this, only say what would be done.")]
Writable = Annotated[bool | None, typer.Option("--writable/--no-writable", help="Take messages.")]
Readable = Annotated[bool | None, typer.Option("--readable/--no-readable", help="Hand out messages.")]
Archived = Annotated[bool | None, typer.Option("--archived/--no-archived", help="Copy messages to the lake.")]
COLUMNS = ("name", "type", "partitions", "is_writable", "is_readable", "is_archived")
COUNTS = ("write_partitions", "read_partitions")


@app.command()
def ls(ctx: typer.Context) -> None:
    """All topics."""
    from lakemq.cli.admin_api import AdminApi
    from lakemq.cli.printing import print_rows

    print_rows(AdminApi(chosen(ctx)).get("topics"), COLUMNS, chosen(ctx).output, empty="there are no topics")


@app.command()
def create(
    ctx: typer.Context,
    name: Name,
    partitions: Annotated[int | None, typer.Option(help="How many; can only grow.  [default: the broker's]")] = None,
    type: Annotated[str, typer.Option(help="normal, ordered or broadcast.")] = "normal",
    writable: Writable = None,
    readable: Readable = None,
    archived: Archived = None,
) -> None:
    """Make a topic."""
    from lakemq.cli.admin_api import AdminApi
    from lakemq.cli.printing import print_one

    body = {"name": name, "type": type, **_given(partitions, writable, readable, archived)}
    print_one(AdminApi(chosen(ctx)).call("POST", ("topics",), body), chosen(ctx).output)


@app.command()
def show(ctx: typer.Context, name: Name) -> None:
    """A topic, its partitions and who is subscribed to it."""
    from lakemq.cli.admin_api import AdminApi
    from lakemq.cli.printing import print_one, print_rows

    found = AdminApi(chosen(ctx)).get("topics", name)
    output = chosen(ctx).output
    if chosen(ctx).is_json:
        print_one(found, output)
        return
    is_whole = {found[name] for name in COUNTS} == {found["partitions"]}
    print_one(found, output, COLUMNS if is_whole else (*COLUMNS, *COUNTS))
    typer.echo()
    print_rows(found["partition_offsets"], ("partition", "first_offset", "end_offset"), output)
    if found["subscriptions"]:
        typer.echo()
        print_rows([roles(one) for one in found["subscriptions"]], ("app", "roles", "paused"), output)


@app.command("set")
def set_(
    ctx: typer.Context,
    name: Name,
    writable: Writable = None,
    readable: Readable = None,
    archived: Archived = None,
    write_partitions: Annotated[
        int | None, typer.Option(help="How many of its partitions take messages, from the first; 0: all.")
    ] = None,
    read_partitions: Annotated[
        int | None,
        typer.Option(help="How many hand out messages; 0: all. Fewer only once the others are consumed."),
    ] = None,
) -> None:
    """Whether a topic takes messages, hands them out, or is archived; in how many of its partitions."""
    change = _given(None, writable, readable, archived)
    counts = {"write_partitions": write_partitions, "read_partitions": read_partitions}
    change |= {name: count for name, count in counts.items() if count is not None}
    if not change:
        raise typer.BadParameter("say what to set: --no-writable, --readable, …")
    _put(ctx, name, change)


@app.command()
def grow(
    ctx: typer.Context,
    name: Name,
    partitions: Annotated[
        int, typer.Argument(metavar="PARTITIONS", help="How many it shall have; keys may then go to other partitions.")
    ],
) -> None:
    """Give a topic more partitions."""
    _put(ctx, name, {"partitions": partitions})


@app.command()
def rm(ctx: typer.Context, name: Name, execute: Execute = False) -> None:
    """Drop a topic with its subscriptions; its messages go with the segments they are in."""
    from lakemq.cli.admin_api import AdminApi
    from lakemq.cli.failure import REFUSED, CommandError
    from lakemq.cli.printing import print_one

    api = AdminApi(chosen(ctx))
    if not execute:
        found = api.get("topics", name)
        count = sum(one["end_offset"] - one["first_offset"] for one in found["partition_offsets"])
        raise CommandError(
            f"this would drop topic {name!r} with {found['partitions']} partitions, {count} messages and "
            f"{len(found['subscriptions'])} subscriptions; nothing was done",
            REFUSED,
            fix=f"lakemq topic rm {name} --execute",
        )
    print_one(api.call("DELETE", ("topics", name)), chosen(ctx).output)


@app.command()
def resend(
    ctx: typer.Context,
    name: Name,
    partition: Annotated[int | None, typer.Option(min=0, help="Of this one.  [default: all, by time]")] = None,
    first: Annotated[int | None, typer.Option(min=0, help="From this offset on; needs --partition.")] = None,
    last: Annotated[int | None, typer.Option(min=0, help="Up to this offset, with it.")] = None,
    since: Annotated[str | None, typer.Option(help="Stored then or later: -2h, 2026-11-15T14:00.")] = None,
    until: Annotated[str | None, typer.Option(help="Stored then or before.")] = None,
    to_topic: Annotated[str | None, typer.Option(help="To another topic.  [default: the same]")] = None,
    per_second: Annotated[int, typer.Option(min=0, help="No more than so many a second; 0: as fast as it goes.")] = 0,
    execute: Annotated[
        bool, typer.Option("--execute", "--yes", help="Do it; without this, only say what would be done.")
    ] = False,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Wait until it is done, or leave the broker to it.")
    ] = True,
) -> None:
    """Append copies of stored messages, for all who receive the topic; LAKEMQ_RESENT says where each comes from."""
    from lakemq.cli.admin_api import AdminApi
    from lakemq.cli.following import BY, follow, given, when_ms
    from lakemq.cli.printing import print_rows, remark

    wish = given(
        partition=partition,
        first=first,
        last=last,
        from_ms=when_ms(since, "--since"),
        until_ms=when_ms(until, "--until"),
        to_topic=to_topic,
    )
    api = AdminApi(chosen(ctx))
    body = {**wish, "per_second": per_second, "execute": execute, "by": BY}
    done = api.call("POST", ("topics", name, "resend"), body)
    if done["job"] is not None:
        follow(api, done["job"], chosen(ctx).output, waits=wait)
        return
    print_rows(done["partitions"], ("partition", "first", "last", "count"), chosen(ctx).output)
    about = "about " if done["is_estimate"] else ""
    remark(
        f"nothing was copied: {done['count']} messages, {about}{done['bytes']} bytes would be, to {done['to_topic']}"
        f"{'' if execute else '; add --execute'}"
    )


def roles(subscription: dict[str, Any]) -> dict[str, Any]:
    """A subscription in short."""
    names = [role for role in ("producer", "consumer") if subscription[role] is not None]
    consumer = subscription["consumer"]
    return {
        "topic": subscription["topic"],
        "app": subscription["app"],
        "roles": names,
        "paused": consumer["is_paused"] if consumer is not None else None,
    }


def _given(
    partitions: int | None, writable: bool | None, readable: bool | None, archived: bool | None
) -> dict[str, Any]:
    said = {"partitions": partitions, "is_writable": writable, "is_readable": readable, "is_archived": archived}
    return {name: value for name, value in said.items() if value is not None}


def _put(ctx: typer.Context, name: str, change: dict[str, Any]) -> None:
    from lakemq.cli.admin_api import AdminApi
    from lakemq.cli.printing import print_one

    print_one(AdminApi(chosen(ctx)).call("PUT", ("topics", name), change), chosen(ctx).output)
