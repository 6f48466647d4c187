"""`lakemq send`, `recv` and `tail`: their options. What they do is in `messaging.py`, loaded when called."""

from pathlib import Path
from typing import Annotated

import typer

from lakemq.cli.options import chosen

TopicName = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic, or namespace.topic.")]
Group = Annotated[str | None, typer.Option(help="The group of --app to receive for.  [default: the app itself]")]


def send(
    ctx: typer.Context,
    topic: TopicName,
    body: Annotated[str | None, typer.Argument(metavar="BODY", help="What to send.")] = None,
    key: Annotated[str | None, typer.Option(help="Messages with one key go to one partition.")] = None,
    tag: Annotated[list[str] | None, typer.Option(help="A tag; may be repeated.")] = None,
    header: Annotated[
        list[str] | None, typer.Option("--header", "-H", metavar="NAME=VALUE", help="A header; may be repeated.")
    ] = None,
    file: Annotated[Path | None, typer.Option(help="Send what is in this file as one message; - is stdin.")] = None,
    stdin_lines: Annotated[bool, typer.Option("--stdin-lines", help="Send each line of stdin as a message.")] = False,
    count: Annotated[
        int | None, typer.Option(min=1, help="Send so many; {n} in body and key becomes 1, 2, 3 and so on.")
    ] = None,
    acks: Annotated[str, typer.Option(help="Confirmed when: flush (on disk), write, receive or none.")] = "flush",
    partition: Annotated[int | None, typer.Option(min=0, help="To this partition.")] = None,
    delay: Annotated[str | None, typer.Option(help="Deliver it after this time: 30s, 2h, 1d.")] = None,
    expire: Annotated[str | None, typer.Option(help="Do not deliver it after this time any more.")] = None,
    uniq_id: Annotated[
        str | None, typer.Option(help="Stored once under this id; with several messages it has {n} in it.")
    ] = None,
) -> None:
    """Send a message, or many."""
    from lakemq.cli.messaging import Wish, send

    wish = Wish(
        topic, body, key, tag or [], header or [], file, stdin_lines, count, acks, partition, delay, expire, uniq_id
    )
    raise typer.Exit(send(chosen(ctx), wish))


def recv(
    ctx: typer.Context,
    topic: TopicName,
    group: Group = None,
    count: Annotated[int, typer.Option(min=0, help="How many; 0: all there are, until none comes in time.")] = 1,
    timeout: Annotated[str, typer.Option(help="How long to wait for a message.")] = "5s",
    no_ack: Annotated[bool, typer.Option("--no-ack", help="Only look: they will be delivered again.")] = False,
    tags: Annotated[
        str | None, typer.Option(help="paid | refund: all that the group gets from now on; * is everything again.")
    ] = None,
    filter: Annotated[str | None, typer.Option(help="total > 100 AND region = 'eu': the same, by headers.")] = None,
) -> None:
    """Receive messages for a group, and ack them once they are printed."""
    from lakemq.cli.messaging import recv

    wanted = _wanted(tags, filter)
    raise typer.Exit(recv(chosen(ctx), topic, group, count, timeout, wanted, is_acking=not no_ack))


def tail(
    ctx: typer.Context,
    topic: TopicName,
    start: Annotated[str, typer.Option("--from", help="latest, earliest, an offset, -10m, or a time.")] = "latest",
    count: Annotated[int, typer.Option(min=0, help="End after so many; 0: never.")] = 0,
    group: Group = None,
    partition: Annotated[int | None, typer.Option(min=0, help="Of this partition only.")] = None,
    tags: Annotated[str | None, typer.Option(help="paid | refund: print only messages with one of these tags.")] = None,
    filter: Annotated[
        str | None, typer.Option(help="total > 100 AND region = 'eu': print only messages with such headers.")
    ] = None,
) -> None:
    """Print messages as they come, without taking them from anybody."""
    from lakemq.cli.messaging import tail

    raise typer.Exit(tail(chosen(ctx), topic, start, count, group, partition, _wanted(tags, filter)))


def _wanted(tags: str | None, filter: str | None) -> str | None:
    """The filter that was asked for, checked before anybody is asked."""
    if tags is None and filter is None:
        return None
    from lakemq.client.consumer import filter_text
    from lakemq.delivery.filters import parse_filter
    from lakemq.errors import BadParameterError

    try:
        wanted = filter_text(tags, filter)
        parse_filter(wanted or "")
    except BadParameterError as error:
        hint = "--tags" if filter is None else "--filter"
        raise typer.BadParameter(str(error), param_hint=hint) from None
    return wanted
