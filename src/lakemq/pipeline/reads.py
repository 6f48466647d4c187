"""What a read needs of the broker and the lake: topics, positions, and the rows of ranges."""

import difflib
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StructType

from lakemq.pipeline import schema
from lakemq.pipeline.archive_source import FILES
from lakemq.pipeline.door import door
from lakemq.pipeline.errors import DataLossError, OptionError
from lakemq.pipeline.events import EVENTS_TOPIC, event_rows
from lakemq.pipeline.fetching import open_range, read_range
from lakemq.pipeline.options import Choice, SourceOptions
from lakemq.pipeline.planning import Range
from lakemq.pipeline.positions import Positions, resolve
from lakemq.wire.own import PartitionRange

_EVENTS = pa.schema([field for field in schema.EVENTS if field.name != "dt"])
_VIEWS: dict[str, pa.Schema] = {"messages": schema.SOURCE, "events": _EVENTS, "files": FILES}
_DDL = {
    pa.string(): "string",
    pa.binary(): "binary",
    pa.int8(): "tinyint",
    pa.int16(): "smallint",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.date32(): "date",
    schema.TIMESTAMP: "timestamp",
    schema.HEADERS: "map<string,string>",
    schema.TAGS: "array<string>",
}


def ddl(types: pa.Schema) -> str:
    """The same columns in Spark's words."""
    return ", ".join(f"{field.name} {_DDL[field.type]}{'' if field.nullable else ' NOT NULL'}" for field in types)


def types_of(view: str, loss: str) -> pa.Schema:
    """The columns of a view; what may come from the lake, with `loss` "archive", may be null."""
    return schema.LIVE if view == "messages" and loss != "archive" else _VIEWS[view]


def chosen(types: pa.Schema, choice: Choice) -> pa.Schema:
    """Those of the columns that a read has without `.schema(…)`."""
    for name in choice.names:
        _check_name(types, name)
    left_out = frozenset() if choice.has_all else schema.ON_REQUEST
    if not choice.has_headers:
        left_out |= {"headers"}
    names = choice.names or [name for name in types.names if name not in left_out]
    return pa.schema([types.field(name) for name in names])


def _check_name(types: pa.Schema, name: str) -> None:
    if name not in types.names:
        near = difflib.get_close_matches(name, types.names, 1)
        hint = f"Did you mean {near[0]!r}?" if near else f"The columns are {', '.join(types.names)}."
        raise OptionError(f"there is no column {name!r}", hint)


def check_columns(types: pa.Schema, wanted: StructType, choice: Choice) -> pa.Schema:
    """The columns that are wanted, by `.schema(…)` or else as they were chosen."""
    known = {field.name: _DDL[field.type] for field in types}
    if choice.is_made and wanted.names != (named := chosen(types, choice)).names:
        raise OptionError(f"columns says {', '.join(named.names)}, and .schema(…) something else", "Give one of both.")
    for field in wanted.fields:
        _check_name(types, field.name)
        said = field.dataType.simpleString()
        if said != known[field.name]:
            raise OptionError(f"column {field.name} is {known[field.name]}, not {said}", "Cast it after reading.")
        if types.field(field.name).nullable and not field.nullable:
            raise OptionError(f"column {field.name} may be null", "Name it without NOT NULL.")
    return pa.schema([types.field(field.name).with_nullable(field.nullable) for field in wanted.fields])


class Reads:
    """One look at the broker."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._door = door(options.server)

    def topics(self) -> dict[str, tuple[int, ...] | None]:
        """The topics to read, and which of their partitions if not all."""
        options = self._options
        topics = (EVENTS_TOPIC,) if options.view == "events" else options.topics
        if not options.pattern:
            self._check_there(topics)
            return {topic: options.partitions.get(topic) for topic in topics}
        try:
            pattern = re.compile(options.pattern)
        except re.error as error:
            raise OptionError(f"subscribePattern={options.pattern!r} is no regular expression: {error}") from None
        names = sorted(self._numbers())
        return {name: None for name in names if pattern.fullmatch(name) and not name.startswith("__")}

    def _numbers(self) -> dict[str, int]:
        """All topics, by name, with their ids."""
        return {topic["name"]: topic["number"] for topic in self._door.inspect("cluster")["topics"]}

    def _check_there(self, topics: tuple[str, ...]) -> None:
        """Who reads does not make topics; a broker in dev mode would."""
        known = self._numbers()
        for topic in topics:
            if topic not in known and self._full(topic) not in known:
                near = difflib.get_close_matches(topic, known, 1)
                hint = f"Did you mean {near[0]!r}?" if near else "See    lakemq topic ls"
                raise OptionError(f"there is no topic {topic!r}", hint)

    def _full(self, topic: str) -> str:
        namespace = self._options.server.namespace
        return f"{namespace}.{topic}" if namespace and "." not in topic else topic

    def starts(self, topics: dict[str, tuple[int, ...] | None], default: str) -> Positions:
        """Where to begin."""
        return resolve(self._options.starting, default, topics, self._ranges)

    def ends(self, topics: dict[str, tuple[int, ...] | None]) -> Positions:
        """Where to end."""
        return resolve(self._options.ending, "latest", topics, self._ranges)

    def _ranges(self, topic: str, moment: str | None, group: str) -> dict[int, PartitionRange]:
        return self._door.ranges(topic, group or self._options.group, moment)

    def available(self, ranges: list[Range]) -> list[Range]:
        """The same ranges, less what is not there: told, taken from the lake, or left out, as the user wants it."""
        found: list[Range] = []
        for topic in sorted({one.topic for one in ranges}):
            reach = self._ranges(topic, None, "")
            for one in ranges:
                if one.topic == topic:
                    found += self._there(one, reach.get(one.partition))
        return found

    def _there(self, one: Range, reach: PartitionRange | None) -> list[Range]:
        if reach is None:
            raise DataLossError(f"{one.topic} has no partition {one.partition} that can be reached")
        if one.end > reach.visible_index:
            if self._options.loss == "true" and one.end > reach.visible_index:
                raise DataLossError(
                    f"{one.topic}, partition {one.partition} ends at offset {reach.visible_index}, before {one.end}",
                    "It may have been made anew: begin with a new checkpoint, or go on with failOnDataLoss=false.",
                )
            one = replace(one, end=max(reach.visible_index, one.first))
        if one.first >= reach.first_index or one.count <= 0:
            return [one] if one.count > 0 else []
        gone = replace(one, end=min(one.end, reach.first_index))
        rest = replace(one, first=gone.end)
        kept = [rest] if rest.count > 0 else []
        if self._options.loss == "false":
            return kept
        if self._options.loss == "archive":
            from lakemq.pipeline.archived import find_archived

            return [*find_archived(self._options.lake, gone, self._numbers()[self._full(one.topic)]), *kept]
        raise DataLossError(
            f"{one.topic}, partition {one.partition}: offsets {gone.first} to {gone.end - 1} have left the broker",
            DataLossError.fix,
        )

    def tell(self, positions: Positions) -> None:
        """Move the group at the broker."""
        by_topic: dict[str, dict[int, int]] = {}
        for (topic, partition), at in positions.items():
            by_topic.setdefault(topic, {})[partition] = at
        for topic, targets in by_topic.items():
            self._door.commit(topic, targets, self._options.group)


def read_ranges(options: SourceOptions, ranges: Sequence[Range], types: pa.Schema) -> Iterator[Any]:
    """The rows of some ranges, as Arrow batches with those columns."""
    for one in ranges:
        if one.files:
            from lakemq.pipeline.archived import read_archived

            yield from read_archived(one, types)
        elif options.view == "events":
            for opened in open_range(options.server, one, options.group):
                yield event_rows(opened, one.partition).select(types.names)
        else:
            yield from read_range(options.server, one, types, options.group)
