"""What a read needs of the broker and the lake: topics, positions, and the rows of ranges."""

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StructType

from lakemq.errors import ConsumerNotFoundError
from lakemq.pipeline import schema
from lakemq.pipeline.archive_source import FILES
from lakemq.pipeline.archived import archived_end, find_archived, read_archived
from lakemq.pipeline.door import door
from lakemq.pipeline.errors import DataLossError, OptionError
from lakemq.pipeline.events import EVENTS_TOPIC, event_rows
from lakemq.pipeline.fetching import open_range, read_range
from lakemq.pipeline.lake import PartitionKey
from lakemq.pipeline.options import Choice, SourceOptions
from lakemq.pipeline.planning import Range
from lakemq.pipeline.positions import Positions, Said, check_order, resolve
from lakemq.pipeline.standing import Standing, topic_id, topic_number
from lakemq.wire.own import PartitionRange

Topics = dict[str, tuple[int, ...] | None]
"""Which topics to read, and which of their partitions if not all."""

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
        cluster = self._door.inspect("cluster")
        self._cluster: str = cluster["cluster"]
        self._numbers: dict[str, int] = {topic["name"]: topic["number"] for topic in cluster["topics"]}

    def topics(self, known: Sequence[str] = ()) -> Topics:
        """The topics to read; those that are `known`, and are gone, are left out, others must be there."""
        options = self._options
        topics = (EVENTS_TOPIC,) if options.view == "events" else options.topics
        if not options.pattern:
            there = [topic for topic in topics if topic not in known or self._full(topic) in self._numbers]
            self._check_there(there)
            return {topic: options.partitions.get(topic) for topic in there}
        try:
            pattern = re.compile(options.pattern)
        except re.error as error:
            raise OptionError(f"subscribePattern={options.pattern!r} is no regular expression: {error}") from None
        names = sorted(self._numbers)
        return {name: None for name in names if pattern.fullmatch(name) and not name.startswith("__")}

    def ids(self, topics: Topics) -> dict[str, str]:
        """What tells each of them from others that had its name, or will have it."""
        return {topic: id for topic in topics if (id := self._id(topic)) is not None}

    def _id(self, topic: str) -> str | None:
        number = self._numbers.get(self._full(topic), self._numbers.get(topic))
        return None if number is None else topic_id(self._cluster, number)

    def _check_there(self, topics: Sequence[str]) -> None:
        """Who reads does not make topics; a broker in dev mode would."""
        known = self._numbers
        for topic in topics:
            if topic not in known and self._full(topic) not in known:
                near = difflib.get_close_matches(topic, known, 1)
                hint = f"Did you mean {near[0]!r}?" if near else "See    lakemq topic ls"
                raise OptionError(f"there is no topic {topic!r}", hint)

    def _check_said(self, said: Said, topics: Topics) -> None:
        """Refuse what only this broker can know to be wrong: offsets of another topic, a group that nobody has."""
        for topic, id in said.ids.items():
            if topic in topics and id != self._id(topic):
                raise DataLossError(
                    f"{said.option}: topic {topic} was dropped and made anew since these offsets were taken",
                    "Take them again; views are made again by register_views.",
                )
        self._check_group(said, topics)

    def _check_group(self, said: Said, topics: Topics) -> None:
        """Who asks where a group stands does not make it; a broker in dev mode would."""
        app = self._options.server.app
        for topic in topics if said.form == "group" else ():
            try:
                names = self._door.inspect("groups", topic)["groups"]
            except ConsumerNotFoundError:  # a strict broker tells an app of its own groups, and it has none
                names = []
            known = [name.removeprefix(f"{app}.") for name in names if name.startswith(f"{app}.")]
            if said.value not in known:
                near = difflib.get_close_matches(said.value, known, 1)
                hint = f"Did you mean 'group:{near[0]}'?" if near else f"See    lakemq group ls {topic}"
                raise OptionError(f"{said.option}: app {app} has no group {said.value!r} on {topic}", hint)

    def _full(self, topic: str) -> str:
        namespace = self._options.server.namespace
        return f"{namespace}.{topic}" if namespace and "." not in topic else topic

    def starts(self, topics: Topics, default: str) -> Positions:
        """Where to begin."""
        said = self._options.starting or Said("", "word", default)
        self._check_said(said, topics)
        return resolve(said, topics, self._ranges, may_pass_end=self._options.loss == "false")

    def ends(self, topics: Topics) -> Positions:
        """Where to end."""
        said = self._options.ending or Said("", "word", "latest")
        self._check_said(said, topics)
        # What lies beyond the end may be asked for with failOnDataLoss=false, and is cut.
        return resolve(said, topics, self._ranges, may_pass_end=self._options.loss == "false")

    def bounds(self, topics: Topics) -> tuple[Positions, Positions]:
        """Where a batch begins and ends."""
        options = self._options
        ends = self.ends(topics)
        starts = self.starts(topics, "earliest")
        check_order(options.starting, options.ending, starts, ends)
        return starts, ends

    def _ranges(self, topic: str, moment: str | None, group: str) -> dict[int, PartitionRange]:
        return self._door.ranges(topic, group or self._options.group, moment)

    def available(self, ranges: list[Range], ids: Mapping[str, str] | None = None) -> list[Range]:
        """The same ranges, less what is not there: told, taken from the lake, or left out, as the user wants it.

        `ids` are those of the topics that the ranges are of, if it is known.
        """
        found: list[Range] = []
        for topic in sorted({one.topic for one in ranges}):
            mine = [one for one in ranges if one.topic == topic]
            id = (ids or {}).get(topic)
            if self._id(topic) is None or id not in (None, self._id(topic)):
                found += self._of_lost(topic, id, mine)
                continue
            reach = self._ranges(topic, None, "")
            for one in mine:
                found += self._there(one, reach.get(one.partition))
        return found

    def _of_lost(self, topic: str, id: str | None, ranges: list[Range]) -> list[Range]:
        """Ranges of a topic that is not there any more."""
        if self._options.loss == "true":
            raise self._loss(topic, {one.partition: one.first for one in ranges})
        if self._options.loss == "false" or id is None:
            return []
        number = topic_number(id)
        return [found for one in ranges for found in find_archived(self._options.lake, one, number)]

    def remains(self, standing: Standing) -> Standing:
        """Of topics that are not at the broker any more, up to where the lake has them; only if that is further on."""
        if self._options.loss != "archive":
            return Standing({})
        ends = {
            (topic, partition): archived_end(self._options.lake, PartitionKey(topic_number(id), partition))
            for topic, partition in standing.positions
            if (id := standing.ids.get(topic)) is not None
        }
        further = sorted({place[0] for place, end in ends.items() if end > standing.positions[place]})
        kept = standing.only(further)
        return Standing({place: max(at, ends[place]) for place, at in kept.positions.items()}, kept.ids)

    def check_standing(self, standing: Standing, lost: list[str]) -> None:
        """Tell of topics that a stream stands in and that are not there any more, if the user wants that."""
        if lost and self._options.loss == "true":
            of_it = {p: at for (topic, p), at in sorted(standing.positions.items()) if topic == lost[0]}
            raise self._loss(lost[0], of_it)

    def _loss(self, topic: str, offsets: Mapping[int, int]) -> DataLossError:
        partition, at = next(iter(sorted(offsets.items())))
        where = f"the query stands at offset {at} of partition {partition} of the old one"
        if self._id(topic) is None:
            fix = "Go on without it with failOnDataLoss=false, or with a new checkpoint and other topics."
            return DataLossError(f"topic {topic} is gone; {where}", fix)
        fix = "Begin with a new checkpoint, or read the new one from its first message with failOnDataLoss=false."
        return DataLossError(f"topic {topic} was dropped and made anew; {where}", fix)

    def _there(self, one: Range, reach: PartitionRange | None) -> list[Range]:
        if reach is None:
            raise DataLossError(f"{one.topic} has no partition {one.partition} that can be reached")
        if one.end > reach.visible_index:
            self.check_end(one.topic, one.partition, reach.visible_index, one.end)
            one = replace(one, end=max(reach.visible_index, one.first))
        if one.first >= reach.first_index or one.count <= 0:
            return [one] if one.count > 0 else []
        gone = replace(one, end=min(one.end, reach.first_index))
        rest = replace(one, first=gone.end)
        kept = [rest] if rest.count > 0 else []
        if self._options.loss == "false":
            return kept
        if self._options.loss == "archive":
            return [*find_archived(self._options.lake, gone, self._numbers[self._full(one.topic)]), *kept]
        raise DataLossError(
            f"{one.topic}, partition {one.partition}: offsets {gone.first} to {gone.end - 1} have left the broker",
            DataLossError.fix,
        )

    def check_end(self, topic: str, partition: int, end: int, wanted: int) -> None:
        """Tell of a partition that is shorter than what was asked for, if the user wants that."""
        if end < wanted and self._options.loss == "true":
            raise DataLossError(
                f"{topic}, partition {partition} ends at offset {end}, before {wanted}",
                "The broker may have older data than before: begin with a new checkpoint, or go on with "
                "failOnDataLoss=false.",
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
            yield from read_archived(one, types)
        elif options.view == "events":
            for opened in open_range(options.server, one, options.group):
                yield event_rows(opened, one.partition).select(types.names)
        else:
            yield from read_range(options.server, one, types, options.group)
