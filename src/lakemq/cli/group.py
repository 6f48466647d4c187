"""`lakemq group`: who receives a topic, how far behind, and moving, pausing or dropping it.

A group is what progress is kept for: an app, or app.group. Its name may be given in full, or without the app that
--app says.
"""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from lakemq.cli.options import Chosen, chosen

if TYPE_CHECKING:
    from lakemq.cli.admin_api import AdminApi

app = typer.Typer(help="Those who receive, and how far they are.", no_args_is_help=True, rich_markup_mode=None)

TopicName = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.")]
GroupName = Annotated[str, typer.Argument(metavar="GROUP", help="The group: app, app.group, or group with --app.")]
Execute = Annotated[bool, typer.Option("--execute", help="Do it; without this, only say what would be done.")]
PLACES = ("partition", "offset", "first_offset", "end_offset", "lag")


@app.command()
def ls(
    ctx: typer.Context, topic: Annotated[str | None, typer.Argument(metavar="TOPIC", help="Only of this one.")] = None
) -> None:
    """All groups, with how many messages each has still to receive."""
    from lakemq.cli.admin_api import AdminApi
    from lakemq.cli.printing import print_rows

    api = AdminApi(chosen(ctx))
    rows = [_summary(api, one) for one in api.get("subscriptions", topic=topic) if one["consumer"] is not None]
    print_rows(rows, ("topic", "group", "lag", "paused"), chosen(ctx).output, empty="there are no groups")


@app.command()
def show(ctx: typer.Context, topic: TopicName, group: GroupName) -> None:
    """A group, and the policy it receives by."""
    from lakemq.cli.printing import print_one

    api, found = _find(ctx, topic, group)
    if chosen(ctx).is_json:
        print_one({**_summary(api, found), "consumer": found["consumer"]}, chosen(ctx).output)
    else:
        print_one({**_summary(api, found), **found["consumer"]}, chosen(ctx).output)


@app.command()
def lag(ctx: typer.Context, topic: TopicName, group: GroupName) -> None:
    """By partition: where a group is, and how far it has to go."""
    from lakemq.cli.printing import print_rows

    api, found = _find(ctx, topic, group)
    print_rows(api.get("lag", topic=topic, app=found["app"]), PLACES, chosen(ctx).output)


@app.command()
def pause(ctx: typer.Context, topic: TopicName, group: GroupName) -> None:
    """Hand nothing more to a group until it is resumed."""
    _set_paused(ctx, topic, group, True)


@app.command()
def resume(ctx: typer.Context, topic: TopicName, group: GroupName) -> None:
    """Hand messages to a group again."""
    _set_paused(ctx, topic, group, False)


@app.command()
def seek(
    ctx: typer.Context,
    topic: TopicName,
    group: GroupName,
    to: Annotated[str, typer.Option(help="earliest, latest, an offset, -2h, or a time: 2026-11-15T14:00.")],
    partition: Annotated[int | None, typer.Option(min=0, help="Only this one.  [default: all]")] = None,
    execute: Execute = False,
) -> None:
    """Move a group to another place; works while it is at work."""
    from lakemq.cli.printing import print_rows, remark

    target = _target(to)
    api, found = _find(ctx, topic, group)
    body: dict[str, Any] = {"topic": topic, "app": found["app"], "execute": execute, **target}
    if partition is not None:
        body["partition"] = partition
    plan = api.call("POST", ("seek",), body)
    print_rows(plan, ("partition", "offset", "target", "change", "first_offset", "end_offset"), chosen(ctx).output)
    moved = sum(one["change"] != 0 for one in plan)
    if execute:
        remark(f"moved {found['app']} in {moved} of {len(plan)} partitions")
    else:
        remark(f"nothing was moved: {found['app']} would move in {moved} of {len(plan)} partitions; add --execute")


@app.command()
def rm(ctx: typer.Context, topic: TopicName, group: GroupName, execute: Execute = False) -> None:
    """A group receives a topic no more, and its place in it is forgotten."""
    from lakemq.cli.failure import REFUSED, CommandError
    from lakemq.cli.printing import print_one

    api, found = _find(ctx, topic, group)
    if not execute:
        left = _summary(api, found)["lag"]
        raise CommandError(
            f"group {found['app']!r} would receive topic {topic!r} no more, with {left} messages still to come, and "
            "its place would be forgotten; nothing was done",
            REFUSED,
            fix=f"lakemq group rm {topic} {found['app']} --execute",
        )
    api.call("DELETE", ("subscriptions",), query={"topic": topic, "app": found["app"], "role": "consumer"})
    print_one({"topic": topic, "group": found["app"], "dropped": True}, chosen(ctx).output)


def _find(ctx: typer.Context, topic: str, group: str) -> tuple["AdminApi", dict[str, Any]]:
    """The subscription of that group; by its full name, or else with the app before it."""
    from lakemq.cli.admin_api import AdminApi
    from lakemq.cli.failure import NOT_FOUND, CommandError

    api, names = AdminApi(chosen(ctx)), _names(chosen(ctx), group)
    known = [one for one in api.get("subscriptions", topic=topic) if one["consumer"] is not None]
    for name in names:
        for one in known:
            if one["app"] == name:
                return api, one
    api.get("topics", topic)  # if that is what is missing, it says so
    there = ", ".join(one["app"] for one in known) or "none"
    raise CommandError(
        f"no group {' or '.join(map(repr, names))} receives topic {topic!r}",
        NOT_FOUND,
        why=f"there {'is' if len(known) < 2 else 'are'} {there}",
        fix=f"lakemq group ls {topic}    lists them;    lakemq app subscribe {group} {topic} --consumer    makes one",
        code=136,
    )


def _names(said: Chosen, group: str) -> list[str]:
    return [group] if "." in group else [group, f"{said.app_name}.{group}"]


def _summary(api: "AdminApi", subscription: dict[str, Any]) -> dict[str, Any]:
    places = api.get("lag", topic=subscription["topic"], app=subscription["app"])
    return {
        "topic": subscription["topic"],
        "group": subscription["app"],
        "lag": sum(place["lag"] for place in places),
        "paused": subscription["consumer"]["is_paused"],
    }


def _set_paused(ctx: typer.Context, topic: str, group: str, is_paused: bool) -> None:
    from lakemq.cli.printing import print_one

    api, found = _find(ctx, topic, group)
    body = {"topic": topic, "app": found["app"], "consumer": {"is_paused": is_paused}}
    print_one(_summary(api, api.call("PUT", ("subscriptions",), body)), chosen(ctx).output)


def _target(text: str) -> dict[str, Any]:
    """Where to, as the interface wants it."""
    if text in ("earliest", "latest"):
        return {"to": text}
    if text.isascii() and text.isdigit() and len(text) < 19:
        return {"to": int(text)}
    return {"to": "time", "time_ms": _time_ms(text)}


def _time_ms(text: str) -> int:
    import time
    from datetime import datetime

    from lakemq.config import parse_duration_ms

    try:
        if text.startswith("-"):
            return max(time.time_ns() // 1_000_000 - parse_duration_ms(text[1:]), 0)
        return max(round(datetime.fromisoformat(text).timestamp() * 1000), 0)
    except (ValueError, OverflowError, OSError):
        raise typer.BadParameter(
            f"{text!r} is not earliest, latest, an offset, a span such as -2h, or a time such as 2026-11-15T14:00",
            param_hint="--to",
        ) from None
