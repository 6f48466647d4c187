"""Settings of a broker: from flags, the environment, a file and what is built in, the first that says something wins.

A file has the sections of `SECTIONS`; its keys are the fields of their classes. Spans of time (`…_ms`) may be written
`10s`, sizes (`…bytes…`) `64MiB`. In the environment a key is `LAKEMQ_SECTION__KEY`. A secret is never taken from a file
or a flag. Whatever is wrong is found before anything is started, and all of it is told at once.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from lakemq.broker.config import ASSIGNOR, ArchiveConfig, BrokerConfig
from lakemq.broker.limits import BrokerLimits
from lakemq.delivery.delays import DelayLimits
from lakemq.delivery.transactions import TransactionLimits
from lakemq.errors import BadParameterError, LakeMQError
from lakemq.names import app_name
from lakemq.storage.config import VISIBLE_AFTER, StorageConfig
from lakemq.storage.retention import RetentionPolicy
from lakemq.storage.sync_policy import SyncPolicy

if TYPE_CHECKING:
    from lakemq.serve import ServeConfig

FILE_NAME = "lakemq.toml"  # looked for in the working directory
ENVIRONMENT_PREFIX = "LAKEMQ_"
BUILT_IN = "built-in"
TOKEN_CHARACTERS_MIN = 16
LOG_FORMATS = ("auto", "text", "json")
LOG_LEVELS = ("debug", "info", "warning", "error")
_FILE_BYTES_MAX = 1 << 20


class ConfigError(LakeMQError):
    """Settings that cannot be used; `problems` has one sentence for each."""

    cause = "A setting cannot be used; nothing was started."
    fix = "Correct it; `lakemq config init FILE` writes a file with every key, `lakemq config check FILE` checks one."

    def __init__(self, problems: list[str]) -> None:
        super().__init__(problems[0] if len(problems) == 1 else f"{len(problems)} settings cannot be used")
        self.problems = tuple(problems)


# --- the classes that are not the broker's own ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """Where the broker is: its directory and its address for clients."""

    data: Path = Path(".lakemq")
    host: str = "127.0.0.1"
    port: int = 50088


@dataclass(frozen=True, slots=True)
class AdminConfig:
    """The HTTP interface for operators."""

    host: str = "127.0.0.1"
    port: int = 50090
    token: str = field(default="", repr=False)
    token_file: str = ""
    request_timeout_ms: int = 10_000
    disk_free_bytes_min: int = 256 << 20


@dataclass(frozen=True, slots=True)
class LogConfig:
    """What is written to stderr."""

    format: str = "auto"
    level: str = "info"


@dataclass(frozen=True, slots=True)
class _StorageKeys:
    """Keys of [storage] that are not fields of StorageConfig: its sync policy."""

    sync_every_messages: int | None = None
    sync_every_ms: int | None = None


SECTIONS: dict[str, tuple[type, ...]] = {
    "server": (ServerConfig,),
    "broker": (BrokerConfig,),
    "limits": (BrokerLimits,),
    "delays": (DelayLimits,),
    "transactions": (TransactionLimits,),
    "storage": (StorageConfig, _StorageKeys),
    "retention": (RetentionPolicy,),
    "archive": (ArchiveConfig,),
    "admin": (AdminConfig,),
    "log": (LogConfig,),
}
# Sections of their own, flattened, or decided by how many workers there are.
_NO_KEYS = {"retention", "limits", "delays", "transactions", "archive", "sync_policy", "group_ids", "owns_metadata"}
_NO_KEYS |= {"cluster_id"}  # drawn at the first start
_SECRETS = {"admin.token"}
_CHOICES = {
    "log.format": LOG_FORMATS,
    "log.level": LOG_LEVELS,
    "broker.assignor": (ASSIGNOR,),
    "storage.visible_after": VISIBLE_AFTER,
}
_RANGES = {
    "server.port": (0, 65535),
    "admin.port": (0, 65535),
    "broker.advertised_port": (0, 65535),
    "broker.broker_id": (0, 0x7FFFFFFF),
    "broker.group_id": (0, 0x7FFFFFFF),
    "broker.partitions_default": (1, 32766),
    "broker.batch_size_default": (1, 32767),
    "broker.uniq_ids_max": (0, 100_000_000),
    "broker.retries_max": (0, 10_000_000),
    "broker.dead_letters_max": (0, 10_000_000),
    "delays.share_count": (1, 64),
    "broker.drain_timeout_ms": (0, 86_400_000),
    "broker.lazy_sync_ms": (0, 86_400_000),
    "admin.disk_free_bytes_min": (0, 1 << 62),
    "storage.control_reserve_bytes": (0, 1 << 40),
    "retention.age_ms": (0, 1 << 53),
    "retention.size_bytes": (0, 1 << 62),
    "archive.lag_bytes_max": (0, 1 << 62),
}


@dataclass(frozen=True, slots=True)
class Key:
    """One setting: what it is called, and what it takes."""

    section: str
    name: str
    type: type
    default: Any
    is_optional: bool = False

    @property
    def path(self) -> str:
        """Its name with its section."""
        return f"{self.section}.{self.name}"

    @property
    def is_duration(self) -> bool:
        """Whether it is a span of time, in milliseconds."""
        return self.name.endswith("_ms")

    @property
    def is_size(self) -> bool:
        """Whether it is a number of bytes."""
        return "bytes" in self.name.split("_")

    @property
    def is_secret(self) -> bool:
        """Whether only the environment may have it."""
        return self.path in _SECRETS

    @property
    def variable(self) -> str:
        """Its name in the environment."""
        return f"{ENVIRONMENT_PREFIX}{self.section.upper()}__{self.name.upper()}"


def _keys() -> dict[str, Key]:
    keys = {}
    for section, classes in SECTIONS.items():
        for one in classes:
            hints = get_type_hints(one)
            for found in fields(one):
                if found.name in _NO_KEYS:
                    continue
                assert found.default is not MISSING, f"{found.name} has no default"
                kinds = [kind for kind in get_args(hints[found.name]) or (hints[found.name],) if kind is not NoneType]
                is_optional = len(kinds) != len(get_args(hints[found.name]) or (0,))
                key = Key(section, found.name, kinds[0], found.default, is_optional)
                keys[key.path] = key
    return keys


KEYS: dict[str, Key] = _keys()


@dataclass(frozen=True, slots=True)
class Settings:
    """Every setting with where it came from, by `section.key`."""

    values: Mapping[str, Any]
    origins: Mapping[str, str]

    def _make(self, section: str, kind: Any, **more: Any) -> Any:
        names = [one.name for one in fields(kind) if f"{section}.{one.name}" in KEYS]
        return kind(**{name: self.values[f"{section}.{name}"] for name in names}, **more)

    @property
    def server(self) -> ServerConfig:
        """Section [server]."""
        made: ServerConfig = self._make("server", ServerConfig)
        return made

    @property
    def admin(self) -> AdminConfig:
        """Section [admin]."""
        made: AdminConfig = self._make("admin", AdminConfig)
        return made

    @property
    def log(self) -> LogConfig:
        """Section [log]."""
        made: LogConfig = self._make("log", LogConfig)
        return made

    def serve_config(self) -> "ServeConfig":
        """What the broker itself needs."""
        from lakemq.serve import ServeConfig  # loads the broker, which most commands do without

        limits = self._make("limits", BrokerLimits)
        retention = self._make("retention", RetentionPolicy)
        policy = SyncPolicy(self.values["storage.sync_every_messages"], self.values["storage.sync_every_ms"])
        server = self.server
        return ServeConfig(
            server.data,
            server.host,
            server.port,
            self._make(
                "broker",
                BrokerConfig,
                limits=limits,
                retention=retention,
                delays=self._make("delays", DelayLimits),
                transactions=self._make("transactions", TransactionLimits),
                archive=self._make("archive", ArchiveConfig),
            ),
            self._make("storage", StorageConfig, sync_policy=policy),
        )


# --- reading -------------------------------------------------------------------------------------------------------


def load(
    *,
    file: Path | None = None,
    environment: Mapping[str, str],
    flags: Mapping[str, Any] | None = None,
    directory: Path | None = None,
    defaults: Mapping[str, Any] | None = None,
) -> Settings:
    """All layers put together; ConfigError says everything that is wrong. A flag that is None was not given.

    `directory` is where `lakemq.toml` is looked for; None: nowhere. `defaults` stand for those that are built in.
    """
    problems: list[str] = []
    values = {path: key.default for path, key in KEYS.items()} | dict(defaults or {})
    origins = dict.fromkeys(KEYS, BUILT_IN)
    for path, value, origin in [
        *_from_directory(directory, problems),
        *(_from_file(file, problems) if file is not None else ()),
        *_from_environment(environment, problems),
        *_from_flags(flags or {}),
    ]:
        values[path] = value
        origins[path] = origin
    if not problems:
        problems += _together(values)
    if problems:
        raise ConfigError(problems)
    return Settings(values, origins)


Found = Iterator[tuple[str, Any, str]]  # key, value, origin


def _from_flags(flags: Mapping[str, Any]) -> Found:
    for path, value in flags.items():
        if value is not None:
            problem = _range_problem(KEYS[path], value)
            if problem is not None:
                raise ConfigError([f"--{KEYS[path].name.replace('_', '-')}: {problem}"])
            yield path, value, "flag"


def _from_environment(environment: Mapping[str, str], problems: list[str]) -> Found:
    for variable, text in sorted(environment.items()):
        if not variable.startswith(ENVIRONMENT_PREFIX) or "__" not in variable:
            continue
        section, _, name = variable.removeprefix(ENVIRONMENT_PREFIX).lower().partition("__")
        key = _known(section, name, variable, problems)
        if key is not None:
            yield from _checked(key, text, variable, f"environment {variable}", problems, is_text=True)


def _from_directory(directory: Path | None, problems: list[str]) -> Found:
    if directory is not None and (directory / FILE_NAME).is_file():
        yield from _from_file(directory / FILE_NAME, problems)


def _from_file(file: Path, problems: list[str]) -> Found:
    for section, said in _tables(file, problems).items():
        if section not in SECTIONS:
            problems.append(f"{file}: there is no section [{section}]{_nearest(section, SECTIONS)}")
        elif not isinstance(said, dict):
            problems.append(f"{file}: {section} is a section: write [{section}], its keys below")
        else:
            for name, value in said.items():
                place = f"{file}: [{section}] {name}"
                key = _known(section, name, place, problems)
                if key is not None and key.is_secret:
                    problems.append(f"{place}: a secret does not belong into a file; set {key.variable} or {name}_file")
                elif key is not None:
                    yield from _checked(key, value, place, str(file), problems, is_text=False)


def _tables(file: Path, problems: list[str]) -> dict[str, Any]:
    try:
        with file.open("rb") as opened:
            data = opened.read(_FILE_BYTES_MAX + 1)
        if len(data) > _FILE_BYTES_MAX:
            problems.append(f"{file}: more than {_FILE_BYTES_MAX} bytes, which is no file of settings")
            return {}
        return tomllib.loads(data.decode())
    except OSError as error:
        problems.append(f"{file}: {error.strerror or error}")
    except UnicodeDecodeError as error:
        problems.append(f"{file}: not UTF-8 at byte {error.start}")
    except tomllib.TOMLDecodeError as error:
        problems.append(f"{file}: not TOML: {error}")
    return {}


def _known(section: str, name: str, place: str, problems: list[str]) -> Key | None:
    key = KEYS.get(f"{section}.{name}")
    if key is not None:
        return key
    if section not in SECTIONS:
        problems.append(f"{place}: there is no section {section!r}{_nearest(section, SECTIONS)}")
        return None
    names = [one.name for one in KEYS.values() if one.section == section]
    elsewhere = [one.section for one in KEYS.values() if one.name == name]
    hint = f"; it belongs into [{']['.join(elsewhere)}]" if elsewhere else _nearest(name, names)
    problems.append(f"{place}: [{section}] has no key {name!r}{hint}")
    return None


def _nearest(word: str, known: Any) -> str:
    near = get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else f"; there are {', '.join(known)}"


# --- values --------------------------------------------------------------------------------------------------------


def _checked(key: Key, said: Any, place: str, origin: str, problems: list[str], *, is_text: bool) -> Found:
    try:
        value = _value(key, said, is_text)
    except ValueError as error:
        shown = "what it has" if key.is_secret else repr(said)
        problems.append(f"{place}: {str(error).format(said=shown)}")
        return
    problem = _range_problem(key, value)
    if problem is not None:
        problems.append(f"{place}: {problem}")
    else:
        yield key.path, value, origin


def _value(key: Key, said: Any, is_text: bool) -> Any:
    """The value as its field has it; ValueError with a sentence in which {said} stands for what was written."""
    if key.is_optional and is_text and said.lower() == "none":
        return None
    if key.type is bool:
        if is_text and said.lower() in ("true", "false"):
            return said.lower() == "true"
        if not isinstance(said, bool):
            raise ValueError("true or false, not {said}")
        return said
    if key.type is int:
        return _number(key, said)
    if not isinstance(said, str):
        raise ValueError("a text in quotes, not {said}")
    return key.type(said)


def _number(key: Key, said: Any) -> int:
    if isinstance(said, int) and not isinstance(said, bool):
        return said
    if isinstance(said, str):
        if re.fullmatch(r"-?[0-9]{1,18}", said):
            return int(said)
        if key.is_duration:
            return parse_duration_ms(said)
        if key.is_size:
            return parse_size_bytes(said)
    kind = "a span of time such as 10s" if key.is_duration else "a size such as 64MiB" if key.is_size else "a number"
    raise ValueError(kind + ", not {said}")


_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_UNITS_BYTES = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


def parse_duration_ms(text: str) -> int:
    """Milliseconds of `10s`, `5m`; ValueError if it is none."""
    found = re.fullmatch(r"([0-9]{1,12})(ms|s|m|h|d)", text.strip())
    if found is None:
        raise ValueError("a span of time such as 500ms, 10s, 5m, 2h or 7d, not {said}")
    return int(found[1]) * _UNITS_MS[found[2]]


def parse_size_bytes(text: str) -> int:
    """Bytes of `64MiB`; ValueError if it is none."""
    found = re.fullmatch(r"([0-9]{1,12}) ?(B|KiB|MiB|GiB|TiB)", text.strip())
    if found is None:
        raise ValueError("a size such as 512KiB, 64MiB or 1GiB, not {said}")
    return int(found[1]) * _UNITS_BYTES[found[2]]


def shown(key: Key, value: Any) -> str:
    """A value as a file would have it, in the largest unit that it is whole in."""
    if key.is_secret:
        return '"***"' if value else '""'
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        units = _UNITS_MS if key.is_duration else _UNITS_BYTES if key.is_size else {}
        for unit, size in reversed(units.items()):
            if value and value % size == 0 and size > 1:
                return f'"{value // size}{unit}"'
        return str(value)
    return '"' + str(value).replace("\\", "\\\\").replace('"', '\\"') + '"'


def _range_problem(key: Key, value: Any) -> str | None:
    if key.path in _CHOICES and value not in _CHOICES[key.path]:
        return f"one of {', '.join(_CHOICES[key.path])}, not {value!r}"
    if key.path == "admin.token" and value:
        if len(value) < TOKEN_CHARACTERS_MIN or not (value.isascii() and value.isprintable() and " " not in value):
            return f"a token has at least {TOKEN_CHARACTERS_MIN} printable ASCII characters and no spaces"
    elif key.path == "archive.app":
        return _name_problem(value)
    elif key.name in ("data", "host") and str(value) in ("", ".", "\0"):
        return "may not be empty"
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    low, high = _RANGES.get(key.path, (1, 1 << 53))
    return None if low <= value <= high else f"a number from {low} to {high}, not {value}"


def _name_problem(name: str) -> str | None:
    try:
        app_name(name)
    except BadParameterError as error:
        return str(error)
    return None


def _together(values: Mapping[str, Any]) -> list[str]:
    """What is wrong with settings that are right each by itself."""
    problems = []
    for small, large, why in (
        ("storage.record_bytes_max", "storage.segment_bytes", "a record must fit a segment"),
        ("limits.frame_bytes_max", "storage.record_bytes_max", "what a frame brings must fit a record"),
        (
            "limits.unsynced_bytes_high",
            "storage.unsynced_bytes_max",
            "producers are slowed down before they are refused",
        ),
        ("limits.in_flight_bytes_max", "limits.in_flight_bytes_total_max", "one connection is a part of all"),
        ("broker.slow_sync_ms", "broker.sync_limit_ms", "a sync is slow before it is too slow"),
    ):
        if values[small] > values[large]:
            problems.append(f"{small} ({values[small]}) is more than {large} ({values[large]}): {why}")
    if values["storage.sync_every_messages"] is not None and values["storage.sync_every_ms"] is None:
        problems.append("storage.sync_every_messages needs storage.sync_every_ms: the last ones would wait for ever")
    if values["admin.token"] and values["admin.token_file"]:
        problems.append("admin.token and admin.token_file are both set: keep one")
    return problems
