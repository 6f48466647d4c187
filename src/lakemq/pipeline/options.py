"""The options of source and sink, in the words of Spark's Kafka source. Checked: Spark passes typos on in silence."""

import difflib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from lakemq.client.address import PORT_DEFAULT, SCHEME
from lakemq.client.config import Acks
from lakemq.client.duration import duration_ms
from lakemq.errors import BadParameterError
from lakemq.pipeline.errors import OptionError
from lakemq.pipeline.positions import Said, read_offsets, read_text, read_time, read_times

VIEWS = ("messages", "events", "files")
LOSSES = ("true", "false", "archive")
_COMMON = ("servers", "bootstrap.servers", "kafka.bootstrap.servers", "app", "token", "namespace", "timeout")
_SOURCE = (
    "subscribe", "subscribePattern", "assign", "view", "columns",
    "startingOffsets", "endingOffsets", "startingTimestamp", "endingTimestamp",
    "startingOffsetsByTimestamp", "endingOffsetsByTimestamp",
    "maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay",
    "minPartitions", "maxRecordsPerPartition", "failOnDataLoss", "group", "lake", "pushdown", "includeHeaders",
)  # fmt: skip
_SINK = ("topic", "acks", "exactlyOnce", "name", "takeOver", "checkpointLocation", "queryName", "path")
_KNOWN = {name.lower(): name for name in (*_COMMON, *_SOURCE, *_SINK)}


class Given:
    """Options as the user gave them, whatever the case of their names."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._values = {name.lower(): str(value) for name, value in options.items()}
        for name in self._values:
            if name not in _KNOWN:
                near = difflib.get_close_matches(name, _KNOWN, 1)
                raise OptionError(
                    f"there is no option {name!r}", f"Did you mean {_KNOWN[near[0]]!r}?" if near else OptionError.fix
                )

    def text(self, name: str, default: str = "") -> str:
        return self._values.get(name.lower(), default).strip()

    def number(self, name: str, least: int = 1) -> int | None:
        text = self.text(name)
        if not text:
            return None
        if not text.isascii() or not text.isdigit() or int(text) < least:
            raise OptionError(f"{name}={text!r} is not a number of at least {least}")
        return int(text)

    def choice(self, name: str, known: tuple[str, ...]) -> str:
        text = self.text(name, known[0]).lower()
        if text not in known:
            raise OptionError(f"{name}={text!r} is not one of {', '.join(known)}")
        return text

    def flag(self, name: str) -> bool:
        return self.choice(name, ("false", "true")) == "true"

    def span_ms(self, name: str) -> int | None:
        text = self.text(name)
        try:
            return duration_ms(text) if text else None
        except BadParameterError as error:
            raise OptionError(f"{name}: {error}") from None

    def json(self, name: str) -> Any:
        text = self.text(name)
        try:
            return json.loads(text)
        except ValueError as error:
            raise OptionError(f"{name}={text!r} is not JSON: {error}") from None


@dataclass(frozen=True, slots=True)
class Server:
    """How to reach the broker; travels to the executors."""

    url: str
    app: str = "spark"
    token: str = field(default="", repr=False)
    namespace: str = ""
    timeout_ms: int = 30_000


def read_server(given: Given) -> Server:
    """Where the broker is, and who asks."""
    text = given.text("servers") or given.text("bootstrap.servers") or given.text("kafka.bootstrap.servers")
    url = text or os.environ.get("LAKEMQ_URL") or f"{SCHEME}localhost:{PORT_DEFAULT}"
    if "://" not in url:
        url = SCHEME + url
    return Server(
        url,
        given.text("app") or os.environ.get("LAKEMQ_APP") or "spark",
        given.text("token") or os.environ.get("LAKEMQ_TOKEN") or "",
        given.text("namespace"),
        given.span_ms("timeout") or 30_000,
    )


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """What to read."""

    server: Server
    topics: tuple[str, ...]
    pattern: str
    partitions: Mapping[str, tuple[int, ...]]  # with `assign`: only these
    starting: Said | None
    ending: Said | None
    offsets_max: int | None
    offsets_min: int | None
    delay_max_ms: int
    partitions_min: int | None
    records_max: int | None
    loss: str
    group: str
    lake: str
    view: str
    columns: "Choice"
    is_pushing: bool


def read_source(options: Mapping[str, str]) -> SourceOptions:
    """The options of a read, checked."""
    given = Given(options)
    chosen = [name for name in ("subscribe", "subscribePattern", "assign") if given.text(name)]
    view = given.choice("view", VIEWS)
    if len(chosen) != 1 and not (view == "events" and not chosen):
        raise OptionError("say which topics to read", "Give one of subscribe, subscribePattern and assign.")
    assigned = _assigned(given) if chosen == ["assign"] else {}
    topics = tuple(assigned) or tuple(name.strip() for name in given.text("subscribe").split(",") if name.strip())
    loss = given.choice("failOnDataLoss", LOSSES)
    if loss == "archive" and not given.text("lake"):
        raise OptionError("failOnDataLoss=archive reads what the broker has dropped from a lake", "Give option lake.")
    return SourceOptions(
        server=read_server(given),
        topics=topics,
        pattern=given.text("subscribePattern"),
        partitions=assigned,
        starting=_place(given, "starting"),
        ending=_place(given, "ending"),
        offsets_max=given.number("maxOffsetsPerTrigger"),
        offsets_min=given.number("minOffsetsPerTrigger"),
        delay_max_ms=given.span_ms("maxTriggerDelay") or 15 * 60_000,
        partitions_min=given.number("minPartitions"),
        records_max=given.number("maxRecordsPerPartition"),
        loss=loss,
        group=given.text("group"),
        lake=given.text("lake"),
        view=view,
        columns=read_choice(given),
        is_pushing=given.flag("pushdown"),
    )


@dataclass(frozen=True, slots=True)
class Choice:
    """Which columns a read has."""

    names: tuple[str, ...] = ()  # empty where it is not said
    has_all: bool = False
    has_headers: bool = True

    @property
    def is_made(self) -> bool:
        """Whether columns were named."""
        return self.has_all or bool(self.names)


def read_choice(given: Given) -> Choice:
    """What `columns` and Kafka's `includeHeaders` say."""
    has_headers = given.text("includeHeaders") == "" or given.flag("includeHeaders")
    text = given.text("columns")
    if text == "*":
        return Choice(has_all=True, has_headers=has_headers)
    names = tuple(name.strip() for name in text.split(",")) if text else ()
    if len(set(names)) < len(names) or "" in names:
        raise OptionError(f"columns={text!r} names a column twice or none", "Name each once, with commas, or all by *.")
    return Choice(names, False, has_headers)


def _assigned(given: Given) -> dict[str, tuple[int, ...]]:
    found = given.json("assign")
    if not isinstance(found, dict) or not all(map(_are_partitions, found.values())):
        raise OptionError('assign is JSON such as {"orders": [0, 1]}', "Name one partition or more for each topic.")
    return {topic: tuple(sorted(set(parts))) for topic, parts in found.items()}


def _are_partitions(parts: Any) -> bool:
    return isinstance(parts, list) and bool(parts) and all(type(p) is int and p >= 0 for p in parts)


def _place(given: Given, which: str) -> Said | None:
    """`…OffsetsByTimestamp` before `…Timestamp` before `…Offsets`, as Spark's Kafka source has it."""
    times, time, offsets = f"{which}OffsetsByTimestamp", f"{which}Timestamp", f"{which}Offsets"
    if given.text(times):
        return read_times(times, given.json(times))
    if given.text(time):
        return read_time(time, given.text(time))
    text = given.text(offsets)
    if not text:
        return None
    return read_offsets(offsets, given.json(offsets)) if text.startswith("{") else read_text(offsets, text)


def check_batch(options: SourceOptions) -> None:
    """Refuse places that leave a batch nothing to read, whatever there is."""
    for said, wrong, right in ((options.starting, "latest", "earliest"), (options.ending, "earliest", "latest")):
        if said is not None and (said.form, said.value) == ("word", wrong):
            raise OptionError(f"{said.option}={wrong} leaves a batch nothing to read", f"Did you mean {right!r}?")


def check_stream(options: SourceOptions) -> None:
    """Refuse an end for what has none."""
    if options.ending is not None:
        raise OptionError(
            f"a stream has no end, so {options.ending.option} says nothing to it",
            "Leave it out; trigger(availableNow=True) ends with what there is, and a batch read takes an end.",
        )


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """Where to write."""

    server: Server
    topic: str
    acks: Acks
    is_exactly_once: bool
    name: str
    takes_over: bool = False  # the name, from another checkpoint


def read_sink(options: Mapping[str, str]) -> SinkOptions:
    """The options of a write, checked."""
    given = Given(options)
    return SinkOptions(
        read_server(given),
        given.text("topic"),
        cast(Acks, given.choice("acks", ("flush", "write", "receive", "none"))),
        given.flag("exactlyOnce"),
        given.text("name") or given.text("queryName"),
        given.flag("takeOver"),
    )
