"""A timeline for the terminal and for programs: rows that were collected, as a tree or as JSON. Needs no Spark."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from lakemq.pipeline.transforms.wording import printable, span_text, utc


class Fields(Protocol):
    """A row of a timeline: Spark's Row, or a dict."""

    def __getitem__(self, name: str, /) -> Any: ...


@dataclass(slots=True)
class _Node:
    text: str
    below: "list[_Node]" = field(default_factory=list)


def tree(rows: Iterable[Fields]) -> str:
    """Each message as a tree: sent and stored, then each group with its attempts. Times are UTC."""
    lines: list[str] = []
    for message in _messages(rows):
        if lines:
            lines.append("")
        first = message[0]
        name = _text(first["messageId"]) or "(no id)"
        lines.append(f"{name}  {_place(first)}{_labels(first)}")
        lines += _branches(_nodes(message))
    return "\n".join(lines)


def as_json(rows: Iterable[Fields], indent: int | None = 2) -> str:
    """A list of messages: `messageId`, place, `key`, `tags`, and `events` in order. Times are ISO, UTC."""
    names = ("at", "kind", "group", "client", "attempt", "elapsedMs", "sinceSentMs", "reason")
    messages = [
        {
            **{name: message[0][name] for name in ("messageId", "topic", "partition", "offset", "key", "tags")},
            "events": [{name: _plain(row[name]) for name in names} for row in message],
        }
        for message in _messages(rows)
    ]
    return json.dumps(messages, indent=indent, ensure_ascii=False)


def _place(first: Fields) -> str:
    if first["offset"] is None:
        return f"{_text(first['topic'])}, not stored"
    return f"{_text(first['topic'])}/{first['partition']} offset {first['offset']}"


def _labels(first: Fields) -> str:
    """Key and tags, as far as there are any."""
    parts = []
    if first["key"] is not None:
        parts.append(f"key {_text(first['key'])}")
    if first["tags"]:
        parts.append(f"tags {_text(' '.join(first['tags']))}")
    return "".join(f"  {part}" for part in parts)


def _messages(rows: Iterable[Fields]) -> list[list[Fields]]:
    found: dict[tuple[Any, ...], list[Fields]] = {}
    for row in rows:
        place: tuple[Any, ...] = (row["messageId"], row["topic"], row["partition"], row["offset"])
        if row["kind"] == "refused":  # which has no place: each is one of its own
            place = (*place, len(found))
        found.setdefault(place, []).append(row)
    return list(found.values())


def _nodes(message: Sequence[Fields]) -> list[_Node]:
    nodes: list[_Node] = []
    groups: dict[str | None, _Node] = {}
    attempts: dict[str | None, tuple[int, _Node]] = {}  # the latest of each group
    day = utc(message[0]["at"]).date()
    for place, row in enumerate(message):
        line = _Node(_line(row, has_day=place == 0 or utc(row["at"]).date() != day))
        group, attempt = row["group"], row["attempt"]
        if row["kind"] in ("sent", "stored", "refused"):
            nodes.append(line)
            continue
        if group not in groups:
            groups[group] = _Node(_text(group) or "(no group)")
        if attempt is None:
            groups[group].below.append(line)
            continue
        latest = attempts.get(group)
        if latest is None or latest[0] != attempt:
            latest = attempts[group] = (attempt, _Node(f"attempt {attempt}"))
            groups[group].below.append(latest[1])
        latest[1].below.append(line)
    return nodes + list(groups.values())


def _line(row: Fields, *, has_day: bool) -> str:
    at = utc(row["at"])
    time = at.strftime("%Y-%m-%d %H:%M:%S" if has_day else "%H:%M:%S") + f".{at.microsecond // 1000:03}"
    parts = [f"{_text(row['kind']):<9}", time]
    if row["sinceSentMs"]:
        parts.append(f"+{span_text(row['sinceSentMs'])}")
    if row["elapsedMs"] is not None:
        parts.append(f"took {span_text(row['elapsedMs'])}")
    if row["client"]:
        parts.append(f"by {_text(row['client'])}")
    if row["reason"]:
        parts.append(f"because {_text(row['reason'])}")
    return "  ".join(parts)


def _branches(nodes: Sequence[_Node], indent: str = "") -> list[str]:
    lines = []
    for place, node in enumerate(nodes, start=1):
        is_last = place == len(nodes)
        lines.append(f"{indent}{'└─' if is_last else '├─'} {node.text}")
        lines += _branches(node.below, indent + ("   " if is_last else "│  "))
    return lines


def _text(value: object) -> str:
    return "" if value is None else printable(str(value))


def _plain(value: object) -> object:
    return utc(value).isoformat().replace("+00:00", "Z") if isinstance(value, datetime) else value
