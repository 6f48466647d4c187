"""The options that every command has: where the broker is, as whom, and in which form to answer.

They may stand anywhere on the line. What is not given comes from the environment, then from the settings of the broker
in this directory, so that `lakemq topic ls` beside `lakemq dev` needs none of them.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperGroup

if TYPE_CHECKING:
    from lakemq.config import Settings

OUTPUTS = ("table", "json", "jsonl")
_WITH_VALUE = ("--server", "--admin", "--app", "--token", "--output", "-o")
_ANYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}  # listened on, but not to be connected to
ADMIN_PORT = 50090
_OTHER_NAMES = {"ls": "list", "list": "ls", "rm": "delete", "delete": "rm"}


class RootGroup(TyperGroup):
    """Takes the options of all commands from wherever they stand."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, moved_ahead(args))


class NounGroup(TyperGroup):
    """The commands of one noun. `ls` is `list` as well, and `rm` is `delete`: whichever a user knows from elsewhere."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        found = super().get_command(ctx, cmd_name)
        other = _OTHER_NAMES.get(cmd_name)
        return super().get_command(ctx, other) if found is None and other is not None else found


def moved_ahead(arguments: list[str]) -> list[str]:
    """The common options first, the rest in its order; nothing behind `--` is looked at."""
    ahead: list[str] = []
    rest: list[str] = []
    left = list(arguments)
    while left:
        one = left.pop(0)
        if one == "--":
            return [*ahead, *rest, one, *left]
        if one in _WITH_VALUE and left:
            ahead += [one, left.pop(0)]
        elif (one.partition("=")[0] in _WITH_VALUE and "=" in one) or (one.startswith("-o") and one[2:] in OUTPUTS):
            ahead.append(one)
        else:
            rest.append(one)
    return ahead + rest


@dataclass(frozen=True, slots=True)
class Chosen:
    """What the user said."""

    server: str | None = None
    admin: str | None = None
    app: str | None = None
    token: str | None = None
    output: str = "table"

    @property
    def is_json(self) -> bool:
        """Whether a program reads it."""
        return self.output != "table"

    @property
    def app_name(self) -> str:
        """As whom; the client has the same default."""
        return self.app or "default"

    def server_url(self) -> str:
        """Where clients connect."""
        if self.server:
            return self.server
        server = settings().server
        return f"lakemq://{_bracketed(_ANYWHERE.get(server.host, server.host))}:{server.port or 50088}"

    def admin_url(self) -> str:
        """Where operators ask."""
        if self.admin:
            return self.admin
        if self.server:
            from urllib.parse import urlsplit

            host = urlsplit(self.server.split(",")[0]).hostname or "127.0.0.1"
            return f"http://{_bracketed(host)}:{ADMIN_PORT}"
        admin = settings().admin
        return f"http://{_bracketed(_ANYWHERE.get(admin.host, admin.host))}:{admin.port or ADMIN_PORT}"

    def admin_token(self) -> str:
        """The operators' token, from where the broker has it; empty if it is nowhere to be found.

        The one that lies beside the data here is of the broker here: it is not sent to another machine.
        """
        from lakemq.cli.failure import NOT_PERMITTED, CommandError
        from lakemq.world.admin_token import FILE_NAME, read_token

        found = settings()
        if found.admin.token:
            return found.admin.token
        if not found.admin.token_file and (self.admin or self.server) and not _is_here(self.admin_url()):
            return ""
        file = Path(found.admin.token_file) if found.admin.token_file else found.server.data / FILE_NAME
        try:
            return read_token(file)
        except FileNotFoundError:
            return ""
        except OSError as error:
            raise CommandError(
                f"the operators' token in {file} cannot be read: {error.strerror}",
                NOT_PERMITTED,
                fix="run this as the broker's user, or set LAKEMQ_ADMIN__TOKEN",
            ) from None


def wants_json(arguments: Sequence[str]) -> bool:
    """Tell whether a line of arguments asks for JSON, before anything of it is known to be right."""
    for at, argument in enumerate(arguments):
        if argument == "--":
            break
        name, _, value = argument.partition("=")
        if name in ("-o", "--output"):
            value = value or "".join(arguments[at + 1 : at + 2])
        elif argument.startswith("-o") and not argument.startswith("--"):
            value = argument[2:]
        else:
            continue
        if value in ("json", "jsonl"):
            return True
    return False


def chosen(ctx: typer.Context) -> Chosen:
    """The common options of the command that runs."""
    found = ctx.find_root().obj
    return found if isinstance(found, Chosen) else Chosen()


def settings() -> "Settings":
    """The settings of this directory and environment."""
    from lakemq.config import load

    return load(environment=os.environ, directory=Path.cwd())


def _is_here(url: str) -> bool:
    from urllib.parse import urlsplit

    host = urlsplit(url).hostname or ""
    return host in ("localhost", "::1") or host.startswith("127.")


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
