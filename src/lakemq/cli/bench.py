"""`lakemq bench`: how fast a broker takes and hands out messages, with one client. `bench/` in the sources has more."""

from typing import Annotated

import typer

from lakemq.cli.options import chosen

app = typer.Typer(help="How fast a broker is, with one client.", no_args_is_help=True, rich_markup_mode=None)

Topic = Annotated[str, typer.Option(help="A topic for this; it will be filled.")]
Seconds = Annotated[float, typer.Option(min=0.1, max=3600, help="For how long.")]


@app.command()
def send(
    ctx: typer.Context,
    topic: Topic = "lakemq-bench",
    seconds: Seconds = 5.0,
    size: Annotated[int, typer.Option(min=1, max=4_000_000, help="Bytes of each body.")] = 1024,
    acks: Annotated[str, typer.Option(help="Confirmed when: flush, write, receive or none.")] = "flush",
) -> None:
    """Send as fast as it goes, in batches."""
    from lakemq.cli.benching import bench_send

    bench_send(chosen(ctx), topic, seconds, size, acks)


@app.command()
def recv(
    ctx: typer.Context,
    topic: Topic = "lakemq-bench",
    seconds: Seconds = 5.0,
    group: Annotated[str, typer.Option(help="The group to receive for.")] = "bench",
) -> None:
    """Receive and ack as fast as it goes, until nothing is left."""
    from lakemq.cli.benching import bench_recv

    bench_recv(chosen(ctx), topic, seconds, group)
