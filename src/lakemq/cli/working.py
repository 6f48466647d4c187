"""What `lakemq worker` does in one process: find the client that a program has made, and feed its handlers."""

import importlib
import logging
import os
import signal
import sys
import threading
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from lakemq.cli.failure import DONE, FAILED, NOT_FOUND, USAGE, CommandError
from lakemq.cli.options import Chosen
from lakemq.cli.printing import remark
from lakemq.client.aio import AsyncClient
from lakemq.client.blocking import Client
from lakemq.client.duration import duration_ms
from lakemq.errors import BadParameterError, LakeMQError

LIFELINE = "LAKEMQ_WORKER_LIFELINE"  # a pipe whose other end the parent has: it ends with the parent


@dataclass(frozen=True, slots=True)
class Wish:
    """What was asked for."""

    target: str
    processes: int
    reload_dirs: tuple[Path, ...]
    shutdown_timeout: str


def start(said: Chosen, wish: Wish) -> int:
    """Work here, or have several processes work; the exit code."""
    try:
        shutdown_ms = duration_ms(wish.shutdown_timeout)
    except BadParameterError as error:
        raise typer.BadParameter(str(error), param_hint="--shutdown-timeout") from None
    _split(wish.target)
    for name, value in (("LAKEMQ_URL", said.server), ("LAKEMQ_APP", said.app), ("LAKEMQ_TOKEN", said.token)):
        if value:
            os.environ[name] = value
    if wish.processes == 1 and not wish.reload_dirs:
        return work(wish)
    from lakemq.cli.supervising import Supervisor

    command = [sys.executable, "-m", "lakemq", "worker", wish.target, "--shutdown-timeout", wish.shutdown_timeout]
    return Supervisor(command, wish.processes, wish.reload_dirs, shutdown_ms).run()


def work(wish: Wish) -> int:
    """Feed the handlers until told to stop."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    _watch_parent()
    client = load(wish.target)
    remark(f"worker {os.getpid()}  {wish.target}  {', '.join(client.handlers)}")
    if isinstance(client, Client):
        with client:
            client.run(shutdown_timeout=wish.shutdown_timeout)
    else:
        import asyncio

        asyncio.run(_work(client, wish.shutdown_timeout))
    return DONE


async def _work(client: AsyncClient, shutdown_timeout: str) -> None:
    async with client:
        await client.run(shutdown_timeout=shutdown_timeout)


def load(target: str) -> Client | AsyncClient:
    """The client that is meant by MODULE:NAME."""
    module_name, name = _split(target)
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    found: Any = _imported(module_name)
    module = found
    for part in name.split("."):
        if not hasattr(found, part):
            raise CommandError(
                f"module {module_name} has no {name}",
                NOT_FOUND,
                why=_clients_in(module),
                fix="name the client: MODULE:NAME",
            )
        found = getattr(found, part)
    if callable(found) and not isinstance(found, Client | AsyncClient):
        found = found()
    if not isinstance(found, Client | AsyncClient):
        raise CommandError(
            f"{target} is no client but {type(found).__name__}",
            USAGE,
            why=_clients_in(module),
            fix="name what lakemq.connect() or lakemq.aio.connect() has returned, or a function that returns it",
        )
    if not found.handlers:
        raise CommandError(
            f"{target} has no handlers", USAGE, fix='put @mq.handler("topic") above a function of that module'
        )
    return found


def _split(target: str) -> tuple[str, str]:
    module_name, sign, name = target.partition(":")
    is_path = module_name.endswith(".py") or "/" in module_name
    if not sign or not module_name or not name or is_path:
        fix = f"lakemq worker {module_name.removesuffix('.py').replace('/', '.') or 'shop.tasks'}:{name or 'mq'}"
        raise CommandError(f"{target!r} is not MODULE:NAME", USAGE, fix=fix)
    return module_name, name


def _imported(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except LakeMQError:
        raise  # the program connects when it is imported, and there is no broker
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise CommandError(
                f"there is no module {error.name}",
                NOT_FOUND,
                why=f"it is neither in {os.getcwd()} nor installed",
                fix="run this where the program is, or install the program",
            ) from None
        failure: Exception = error
    except Exception as error:  # whatever the program does when it is imported
        failure = error
    typer.echo("".join(traceback.format_exception(failure)).rstrip(), err=True)
    raise CommandError(f"module {name} cannot be imported: {failure!r}", FAILED, fix="see the lines above")


def _clients_in(module: Any) -> str:
    names = [name for name, value in vars(module).items() if isinstance(value, Client | AsyncClient)]
    return f"its clients are {', '.join(names)}" if names else "there is no client in it"


def _watch_parent() -> None:
    """A parent that is killed cannot stop us: the pipe from it ends, and we do."""
    text = os.environ.pop(LIFELINE, "")
    if text.isdecimal():
        threading.Thread(target=_end_with_parent, args=(int(text),), name="lakemq-lifeline", daemon=True).start()


def _end_with_parent(lifeline: int) -> None:
    try:
        os.read(lifeline, 1)
    finally:
        os.kill(os.getpid(), signal.SIGTERM)
