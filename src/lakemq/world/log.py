"""The log on stderr: text for people on a terminal, one JSON object per line for everything else.

Neither bodies nor tokens: whoever logs does not pass them, and what looks like the token all the same is blotted out.
A text from a peer stays on its line and cannot command a terminal.
"""

import json
import logging
import re
import sys
from datetime import UTC, datetime
from typing import Any, TextIO

BLOT = "***"
_BEARER = re.compile(r"(?i)\b(bearer\s+)[^\s\"']+")
_COLOURS = {"WARNING": "\x1b[33m", "ERROR": "\x1b[31m", "CRITICAL": "\x1b[31;1m"}
_PLAIN = "\x1b[0m"
# What a record has anyway; the rest was passed as `extra` and is a field of the line.
_OWN = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName", "event"}
_FIELDS = {"ts", "level", "event", "message", "broker", "logger", "error"}


class _Redacting(logging.Formatter):
    """The parts that both forms share."""

    def __init__(self, broker: int, secrets: tuple[str, ...]) -> None:
        super().__init__()
        self.broker = broker
        self._secrets = tuple(secret for secret in secrets if secret)

    def clean(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, BLOT)
        return _BEARER.sub(rf"\g<1>{BLOT}", text)

    def time(self, record: logging.LogRecord) -> datetime:
        return datetime.fromtimestamp(record.created, UTC)

    def trace(self, record: logging.LogRecord) -> str:
        return self.clean(self.formatException(record.exc_info)) if record.exc_info else ""


class JsonFormatter(_Redacting):
    """One object per line: ts, level, event, message, broker, and what was passed as `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "ts": self.time(record).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "event": getattr(record, "event", record.name),
            "message": self.clean(record.getMessage()),
            "broker": self.broker,
        }
        for name, value in vars(record).items():
            if name not in _OWN and name not in _FIELDS:
                line[name] = value if isinstance(value, int | float | bool | None) else self.clean(str(value))
        if trace := self.trace(record):
            line["error"] = trace
        return json.dumps(line, ensure_ascii=True, default=str)


class TextFormatter(_Redacting):
    """Time, level, message; further lines of a message are indented, so none looks like an entry of its own."""

    def __init__(self, broker: int, secrets: tuple[str, ...], *, has_colours: bool) -> None:
        super().__init__(broker, secrets)
        self._has_colours = has_colours

    def format(self, record: logging.LogRecord) -> str:
        text = "\n".join(filter(None, (self.clean(record.getMessage()), self.trace(record))))
        shown = "\n    ".join(_printable(line) for line in text.split("\n"))
        level = f"{record.levelname.lower():<8}"
        if self._has_colours and record.levelname in _COLOURS:
            level = f"{_COLOURS[record.levelname]}{level}{_PLAIN}"
        return f"{self.time(record).astimezone():%H:%M:%S.%f}"[:-3] + f" {level} {shown}"


def _printable(line: str) -> str:
    return "".join(char if char.isprintable() else "?" for char in line)


def configure(
    format: str = "auto",
    level: str = "info",
    *,
    broker: int = 0,
    secrets: tuple[str, ...] = (),
    stream: TextIO | None = None,
    has_colours: bool | None = None,
) -> None:
    """Send all logging to stderr, or to `stream`; `auto` is text on a terminal and JSON elsewhere."""
    out = sys.stderr if stream is None else stream
    is_terminal = out.isatty()
    handler = logging.StreamHandler(out)
    if format == "json" or (format == "auto" and not is_terminal):
        handler.setFormatter(JsonFormatter(broker, secrets))
    else:
        colours = is_terminal if has_colours is None else has_colours
        handler.setFormatter(TextFormatter(broker, secrets, has_colours=colours))
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level.upper())
    for noisy in ("uvicorn", "uvicorn.error", "asyncio"):  # their news of each start and stop are not ours
        logging.getLogger(noisy).setLevel(logging.WARNING)
