"""`lakemq app`: who may connect, with which token, and what it may do with which topic."""

import json
from typing import Annotated, Any

import typer

from lakemq.cli.options import NounGroup, chosen

app = typer.Typer(help="Apps, their tokens, limits and subscriptions.", no_args_is_help=True, rich_markup_mode=None)
tokens = typer.Typer(help="The tokens of an app.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(tokens, name="token", cls=NounGroup)

Name = Annotated[str, typer.Argument(metavar="APP", help="The app.")]
FullName = Annotated[str, typer.Argument(metavar="APP", help="The app, or app.group.")]
TopicName = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.")]
Execute = Annotated[bool, typer.Option("--execute", help="Do it; without this, only say what would be done.")]
PerSecond = Annotated[int | None, typer.Option(min=0, help="At most; 0: no limit.")]
AsProducer = Annotated[bool, typer.Option("--producer", help="It may send.")]
AsConsumer = Annotated[bool, typer.Option("--consumer", help="It may receive.")]


@app.command()
def ls(ctx: typer.Context) -> None:
    """All apps."""
    from lakemq.cli.admin_api import AdminApi
    from lakemq.cli.printing import print_rows

    found = AdminApi(chosen(ctx)).get("apps")
    rows = found if chosen(ctx).is_json else [_short(one) for one in found]
    print_rows(rows, ("name", "is_open", "tokens", "limits"), chosen(ctx).output, empty="there are no apps")


@app.command()
def create(ctx: typer.Context, name: Name) -> None:
    """Make an app; `lakemq app token create` gives it a token to connect with."""
    from lakemq.cli.admin_api import AdminApi
    from lakemq.cli.printing import print_one

    print_one(AdminApi(chosen(ctx)).call("POST", ("apps",), {"name": name}), chosen(ctx).output)


@app.command()
def show(ctx: typer.Context, name: Name) -> None:
    """An app, its tokens and what it is subscribed to."""
    from lakemq.cli.admin_api import AdminApi
    from lakemq.cli.printing import print_one, print_rows
    from lakemq.cli.topic import roles

    found = AdminApi(chosen(ctx)).get("apps", name)
    output = chosen(ctx).output
    if chosen(ctx).is_json:
        print_one(found, output)
        return
    print_one(_short(found), output)
    if found["tokens"]:
        typer.echo()
        print_rows([_token(one) for one in found["tokens"]], ("id", "expires"), output)
    if found["subscriptions"]:
        typer.echo()
        print_rows([roles(one) for one in found["subscriptions"]], ("topic", "app", "roles", "paused"), output)


@app.command()
def rm(ctx: typer.Context, name: Name, execute: Execute = False) -> None:
    """Drop an app with its tokens and subscriptions, and how far it had come."""
    from lakemq.cli.admin_api import AdminApi
    from lakemq.cli.failure import REFUSED, CommandError
    from lakemq.cli.printing import print_one

    api = AdminApi(chosen(ctx))
    if not execute:
        found = api.get("apps", name)
        raise CommandError(
            f"this would drop app {name!r} with {len(found['tokens'])} tokens and {len(found['subscriptions'])} "
            "subscriptions, and how far it had come; nothing was done",
            REFUSED,
            fix=f"lakemq app rm {name} --execute",
        )
    print_one(api.call("DELETE", ("apps", name)), chosen(ctx).output)


@app.command()
def limits(
    ctx: typer.Context,
    name: Name,
    produce_per_second: PerSecond = None,
    produce_bytes_per_second: PerSecond = None,
    fetch_per_second: PerSecond = None,
    fetch_bytes_per_second: PerSecond = None,
) -> None:
    """What an app may use in a second; without options, what it may use now."""
    from lakemq.cli.admin_api import AdminApi
    from lakemq.cli.printing import print_one

    said = {
        "produce_per_second": produce_per_second,
        "produce_bytes_per_second": produce_bytes_per_second,
        "fetch_per_second": fetch_per_second,
        "fetch_bytes_per_second": fetch_bytes_per_second,
    }
    change = {key: value for key, value in said.items() if value is not None}
    api = AdminApi(chosen(ctx))
    found = api.call("PUT", ("apps", name), change) if change else api.get("apps", name)
    print_one(found["limits"], chosen(ctx).output)


@app.command()
def subscribe(
    ctx: typer.Context,
    name: FullName,
    topic: TopicName,
    producer: AsProducer = False,
    consumer: AsConsumer = False,
    start: Annotated[str, typer.Option(help="Where a new consumer begins: latest or earliest.")] = "latest",
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A setting, such as consumer.batch_size=10; may be repeated."),
    ] = None,
) -> None:
    """Let an app send to a topic, receive from it, or both; or change how."""
    from lakemq.cli.admin_api import AdminApi
    from lakemq.cli.printing import print_one

    wanted: dict[str, dict[str, Any]] = {}
    if producer:
        wanted["producer"] = {}
    if consumer:
        wanted["consumer"] = {}
    if not wanted:
        raise typer.BadParameter("say as what: --producer, --consumer or both")
    for text in settings or ():
        role, key, value = _setting(text, list(wanted))
        wanted[role][key] = value
    body = {"topic": topic, "app": name, "start": start, **wanted}
    print_one(
        AdminApi(chosen(ctx)).call("PUT", ("subscriptions",), body), chosen(ctx).output, ("topic", "app", *wanted)
    )


@app.command()
def unsubscribe(
    ctx: typer.Context,
    name: FullName,
    topic: TopicName,
    producer: AsProducer = False,
    consumer: AsConsumer = False,
    execute: Execute = False,
) -> None:
    """An app may do nothing with a topic any more, or one thing less; its place in the topic is forgotten."""
    from lakemq.cli.admin_api import AdminApi
    from lakemq.cli.failure import NOT_FOUND, REFUSED, CommandError
    from lakemq.cli.printing import print_one

    api = AdminApi(chosen(ctx))
    role = None if producer == consumer else "producer" if producer else "consumer"
    if not execute:
        found = api.get("subscriptions", topic=topic, app=name)
        if not found or (role is not None and found[0][role] is None):
            raise CommandError(f"app {name!r} has no such subscription to topic {topic!r}", NOT_FOUND)
        raise CommandError(
            f"app {name!r} would lose {role or 'everything'} of topic {topic!r} and its place in it; nothing was done",
            REFUSED,
            fix=f"lakemq app unsubscribe {name} {topic}{'' if role is None else f' --{role}'} --execute",
        )
    answer = api.call("DELETE", ("subscriptions",), query={"topic": topic, "app": name, "role": role})
    print_one(
        {"topic": answer["dropped"][0], "app": answer["dropped"][1], "dropped": role or "all"}, chosen(ctx).output
    )


@tokens.command("create")
def create_token(
    ctx: typer.Context,
    name: Name,
    token_id: Annotated[str | None, typer.Option("--id", help="A name for it.  [default: made up]")] = None,
    expires: Annotated[
        str | None, typer.Option(help="For how long it is good, such as 90d.  [default: for ever]")
    ] = None,
    token_file: Annotated[
        typer.FileText | None, typer.Option(help="Take the token from this file; - is stdin.  [default: made up]")
    ] = None,
) -> None:
    """Make a token and print it, this once; the broker keeps only a digest."""
    from lakemq.cli.admin_api import AdminApi
    from lakemq.cli.printing import print_one, remark

    body: dict[str, Any] = {}
    if token_id is not None:
        body["id"] = token_id
    if token_file is not None:
        body["token"] = token_file.read().strip()
    if expires is not None:
        body["expires_ms"] = _expiry_ms(expires)
    made = AdminApi(chosen(ctx)).call("POST", ("apps", name, "tokens"), body)
    if chosen(ctx).is_json:
        print_one(made, chosen(ctx).output)
    else:
        typer.echo(made["token"])
        remark(f"token {made['id']!r} of app {name!r}; it is not shown again")


@tokens.command("rm")
def drop_token(
    ctx: typer.Context, name: Name, token_id: Annotated[str, typer.Argument(metavar="ID", help="The token's id.")]
) -> None:
    """A token is good no more; connections that used it stay."""
    from lakemq.cli.admin_api import AdminApi
    from lakemq.cli.printing import print_one

    found = AdminApi(chosen(ctx)).call("DELETE", ("apps", name, "tokens", token_id))
    print_one(found if chosen(ctx).is_json else _short(found), chosen(ctx).output)


def _setting(text: str, roles: list[str]) -> tuple[str, str, Any]:
    key, sign, value = text.partition("=")
    role, dot, name = key.partition(".")
    if not dot:
        role, name = (roles[0] if len(roles) == 1 else ""), key
    if not sign or not name or role not in roles:
        raise typer.BadParameter(
            f"{text!r} is not a setting such as {roles[0]}.timeout_ms=2000 of {' or '.join(roles)}"
        )
    try:
        return role, name, json.loads(value)
    except ValueError:
        return role, name, value


def _expiry_ms(text: str) -> int:
    import time

    from lakemq.config import parse_duration_ms

    try:
        return time.time_ns() // 1_000_000 + parse_duration_ms(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a span of time such as 12h or 90d", param_hint="--expires") from None


def _short(found: dict[str, Any]) -> dict[str, Any]:
    limits = {name: value for name, value in found["limits"].items() if value}
    return {
        "name": found["name"],
        "is_open": found["is_open"],
        "tokens": ", ".join(token["id"] for token in found["tokens"]) or "-",
        "limits": ", ".join(f"{name} {value}" for name, value in limits.items()) or "-",
    }


def _token(found: dict[str, Any]) -> dict[str, Any]:
    from lakemq.cli.printing import moment

    return {"id": found["id"], "expires": moment(found["expires_ms"]) if found["expires_ms"] else "never"}
