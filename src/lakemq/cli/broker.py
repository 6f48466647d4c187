"""`lakemq dev` and `lakemq broker`: start a broker, look at it, or tell it to hold still."""

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from lakemq.cli.options import chosen

app = typer.Typer(
    help="Start a broker, look at it, tell it to hold still.", no_args_is_help=True, rich_markup_mode=None
)

ConfigFile = Annotated[Path | None, typer.Option("--config", help="Settings, as `lakemq config init` writes them.")]
Data = Annotated[Path | None, typer.Option(help="The data directory.  [default: .lakemq]")]
Host = Annotated[str | None, typer.Option(help="The address for clients.  [default: 127.0.0.1]")]
Port = Annotated[int | None, typer.Option(help="The port for clients; 0: any that is free.  [default: 50088]")]
AdminPort = Annotated[int | None, typer.Option(help="The port for operators; 0: any.  [default: 50090]")]
ReadyFile = Annotated[Path | None, typer.Option(help="Written when the broker serves: ports, pid and token.")]
LogFormat = Annotated[str | None, typer.Option(help="text, json, or auto: text on a terminal.  [default: auto]")]


def serve(
    file: Path | None,
    flags: dict[str, Any],
    ready_file: Path | None,
    workers: int = 1,
    defaults: dict[str, Any] | None = None,
) -> int:
    """A broker with these settings, or several; the exit code."""
    from lakemq.config import load

    settings = load(file=file, environment=os.environ, flags=flags, directory=Path.cwd(), defaults=defaults)
    from lakemq.cli.serving import Serving, serve_workers

    if workers > 1 or (settings.server.data / "worker-0").exists():
        return serve_workers(settings, ready_file, workers)
    return Serving(settings, ready_file).run()


def dev(
    data: Data = None,
    host: Host = None,
    port: Port = None,
    admin_port: AdminPort = None,
    partitions: Annotated[int | None, typer.Option(help="Of topics made on first use.  [default: 4]")] = None,
    config: ConfigFile = None,
    ready_file: ReadyFile = None,
    log_format: LogFormat = None,
) -> None:
    """Start a broker that makes topics, apps and subscriptions on first use."""
    flags = {
        "server.data": data,
        "server.host": host,
        "server.port": port,
        "admin.port": admin_port,
        "broker.partitions_default": partitions,
        "broker.creates_missing": True,
        "log.format": log_format,
    }
    raise typer.Exit(serve(config, flags, ready_file, defaults=_dev_defaults()))


def _dev_defaults() -> dict[str, Any]:
    from lakemq.storage.config import DEV_SEGMENT_BYTES

    return {"storage.segment_bytes": DEV_SEGMENT_BYTES}


@app.command()
def start(
    config: ConfigFile = None,
    data: Data = None,
    host: Host = None,
    port: Port = None,
    admin_port: AdminPort = None,
    workers: Annotated[int, typer.Option(min=1, max=64, help="So many brokers, one port and process each.")] = 1,
    ready_file: ReadyFile = None,
    log_format: LogFormat = None,
) -> None:
    """Start a broker that knows only the topics, apps and tokens it was told of."""
    flags = {
        "server.data": data,
        "server.host": host,
        "server.port": port,
        "admin.port": admin_port,
        "log.format": log_format,
    }
    raise typer.Exit(serve(config, flags, ready_file, workers))


@app.command()
def show(ctx: typer.Context) -> None:
    """How the broker is."""
    from lakemq.cli.admin_api import AdminApi
    from lakemq.cli.printing import print_one

    print_one(AdminApi(chosen(ctx)).get("broker"), chosen(ctx).output)


@app.command()
def connections(ctx: typer.Context) -> None:
    """Who is connected."""
    from lakemq.cli.admin_api import AdminApi
    from lakemq.cli.printing import print_rows

    columns = ("id", "host", "app", "dialect", "version", "producers", "consumers", "in_flight_bytes", "parked_polls")
    print_rows(AdminApi(chosen(ctx)).get("connections"), columns, chosen(ctx).output, empty="nobody is connected")


@app.command("set")
def set_(
    ctx: typer.Context,
    readable: Annotated[bool | None, typer.Option("--readable/--no-readable", help="Hand out messages.")] = None,
    writable: Annotated[bool | None, typer.Option("--writable/--no-writable", help="Take messages.")] = None,
) -> None:
    """Take no messages, or hand none out, until the next start."""
    from lakemq.cli.admin_api import AdminApi
    from lakemq.cli.printing import print_one

    change = {name: value for name, value in (("readable", readable), ("writable", writable)) if value is not None}
    if not change:
        raise typer.BadParameter("say what to set: --no-writable, --readable, …")
    print_one(AdminApi(chosen(ctx)).call("PUT", ("broker",), change), chosen(ctx).output)
