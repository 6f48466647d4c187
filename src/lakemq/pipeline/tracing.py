"""All that happened to one message, or to those of a key, found without Spark: only what may hold it is read.

A message whose id is its place is asked of the broker, which has an index; else of the few files of the lake whose
statistics allow it. Other ids and keys are looked for in one column. Its events are in files of its topic, from the day
on which it was stored.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakemq.pipeline import schema
from lakemq.pipeline.archive_plan import Seen, cluster_of, held_lake, seen_topics
from lakemq.pipeline.door import door
from lakemq.pipeline.events import EVENTS_TOPIC, event_rows
from lakemq.pipeline.fetching import open_range, read_range
from lakemq.pipeline.lake import EVENTS, META, Lake, PartitionKey
from lakemq.pipeline.lake.store import Snapshot
from lakemq.pipeline.lake.table_view import ActiveFile, TableView
from lakemq.pipeline.options import Server
from lakemq.pipeline.planning import Range

TIMELINE_DDL = (
    "messageId string, topic string, partition int, offset bigint, key string, tags array<string>, at timestamp, "
    "kind string, group string, client string, attempt int, elapsedMs bigint, sinceSentMs bigint, reason string"
)
# What has the same time is shown in the order in which it must have been.
ORDER = ("refused", "sent", "stored", "delivered", "acked", "failed", "expired", "retry", "dead", "resent")

_WANTED = ("topicId", "partition", "offset", "timestamp", "sendTime", "messageId", "key", "tags")
_LIVE = pa.schema([schema.LIVE.field(name) for name in _WANTED if name != "topicId"])
_EVENT = ("timestamp", "kind", "app", "client", "attempt", "elapsedMs", "reason")
_RUN = ("topicId", "partition", "offset", "count")
_CLOCKS_DIFFER = timedelta(days=1)
_NAMED = re.compile(r"\[(key|tags|id)=([^\]]*)\]")  # how a refusal says what it was (broker/refusals.py)
_TAG_ENDS = re.compile(r"[\s|]+")


class Search(NamedTuple):
    """Which messages: by id or by key, or both; and when they were stored (the end is not included)."""

    message_id: str | None = None
    key: str | None = None
    start: datetime | None = None
    end: datetime | None = None


class Found(NamedTuple):
    """A message that was found."""

    topic: str
    topic_id: int
    partition: int
    offset: int
    stored_at: datetime
    sent_at: datetime | None
    id: str | None
    key: str | None = None
    tags: list[str] | None = None


@dataclass
class Trace:
    """Rows as those of `transforms.timeline`, and what could not be looked at."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    messages: int = 0
    is_more: bool = False  # than the limit
    left_out: list[str] = field(default_factory=list)  # topics that the app may not read


def trace_messages(server: Server, lake: str, search: Search, limit: int | None = None) -> Trace:
    """What happened to the messages that match, in order."""
    return _Tracing(server, lake, search).run(limit)


class _Tracing:
    def __init__(self, server: Server, lake: str, search: Search) -> None:
        self._server = server
        self._search = search
        cluster = cluster_of(server)
        seen = seen_topics(cluster)
        self._topics = {one.name: one for one in seen if one.is_readable}
        self._left_out = sorted(one.name for one in seen if not one.is_readable)
        self._lake: Lake | None
        self._snapshot: Snapshot | None
        self._lake, self._snapshot = held_lake(lake, cluster["cluster"])

    def run(self, limit: int | None) -> Trace:
        found: dict[tuple[int, int, int], Found] = {}
        for one in self._messages():
            found.setdefault((one.topic_id, one.partition, one.offset), one)
            if limit is not None and len(found) > limit:
                break
        messages = sorted(found.values(), key=lambda one: (one.stored_at, one.topic, one.partition, one.offset))
        shown = messages if limit is None else messages[:limit]
        events = self._events(shown)
        told = [(one.stored_at, _timeline(one, events.get(_place(one), []))) for one in shown]
        told += [(row["at"], [row]) for row in self._refused()]
        told.sort(key=lambda one: one[0])
        is_more = len(messages) > len(shown) or (limit is not None and len(told) > limit)
        rows = [row for _, some in told[:limit] for row in some]
        return Trace(rows, min(len(told), limit or len(told)), is_more, self._left_out)

    # --- messages ------------------------------------------------------------------------------------------------

    def _messages(self) -> Iterator[Found]:
        place = _place_of(self._search.message_id, self._topics)
        if place is not None:
            topic, partition, offset = place
            yield from self._at(self._topics[topic], partition, offset)
            return
        yield from self._archived(self._files(META), None)
        for name, seen in self._topics.items():
            if name == EVENTS_TOPIC:
                continue
            start = self._search.start
            since = None if start is None else f"@{_ms(start)}"
            for partition, reach in door(self._server).ranges(name, at=since).items():
                first = max(reach.first_index, self._position(META, seen.number, partition))
                if since is not None:
                    first = max(first, reach.visible_index if reach.time_index < 0 else reach.time_index)
                yield from self._live(seen, partition, first, reach.visible_index)

    def _at(self, topic: Seen, partition: int, offset: int) -> Iterator[Found]:
        """The message of one place, and those that had it in earlier topics of the name."""
        reach = door(self._server).ranges(topic.name).get(partition)
        if reach is not None and reach.first_index <= offset < reach.visible_index:
            yield from self._live(topic, partition, offset, offset + 1, is_place=True)
        files = [one for one in self._files(META, topic.name) if one.may_overlap(offset, offset + 1)]
        yield from self._archived(files, (partition, offset))

    def _live(self, topic: Seen, partition: int, first: int, end: int, is_place: bool = False) -> Iterator[Found]:
        if first >= end:
            return
        for batch in read_range(self._server, Range(topic.name, partition, first, end), _LIVE):
            batch = batch.filter(self._matches(batch, is_place))
            yield from (_found(topic.name, topic.number, row) for row in batch.to_pylist())

    def _archived(self, files: Sequence[ActiveFile], place: tuple[int, int] | None) -> Iterator[Found]:
        view = self._view(META)
        if view is None:
            return
        for file in files:
            for rows in self._matching_rows(view, file, place):
                yield from (_found(file.topic or "", row["topicId"], row) for row in rows.to_pylist())

    def _matching_rows(self, view: TableView, file: ActiveFile, place: tuple[int, int] | None) -> Iterator[pa.Table]:
        """Rows of a file that match: first the columns that decide, then the rest of the groups that have any."""
        decide = ["partition", "offset", "timestamp"] if place is not None else self._deciding()
        with view.place.filesystem.open_input_file(file.path) as source, pq.ParquetFile(source) as opened:
            for group in range(opened.metadata.num_row_groups):
                if place is not None and not _may_hold(opened, group, place[1]):
                    continue
                some = opened.read_row_group(group, columns=decide)
                mask = self._matches(some, is_place=place is not None)
                if place is not None:
                    is_there = pc.and_(pc.equal(some["partition"], place[0]), pc.equal(some["offset"], place[1]))
                    mask = pc.and_(mask, is_there)
                if pc.any(mask).as_py():
                    yield opened.read_row_group(group, columns=list(_WANTED)).filter(mask)

    def _deciding(self) -> list[str]:
        search = self._search
        names = {"messageId": search.message_id, "key": search.key, "timestamp": search.start or search.end}
        return [name for name, wanted in names.items() if wanted is not None]

    def _matches(self, rows: Any, is_place: bool) -> Any:
        search = self._search
        tests = []
        if search.message_id is not None and not is_place:
            tests.append(pc.equal(rows["messageId"], search.message_id))
        if search.key is not None and not is_place:
            tests.append(pc.equal(rows["key"], search.key))
        if search.start is not None:
            tests.append(pc.greater_equal(rows["timestamp"], pa.scalar(search.start, schema.TIMESTAMP)))
        if search.end is not None:
            tests.append(pc.less(rows["timestamp"], pa.scalar(search.end, schema.TIMESTAMP)))
        found: Any = pa.array([True] * rows.num_rows, pa.bool_())
        for one in tests:
            found = pc.and_(pc.fill_null(one, False), found)
        return found

    # --- events --------------------------------------------------------------------------------------------------

    def _events(self, messages: Sequence[Found]) -> dict[tuple[int, int, int], list[dict[str, Any]]]:
        found: dict[tuple[int, int, int], list[dict[str, Any]]] = {}
        by_partition: dict[tuple[int, int], list[int]] = {}
        for one in messages:
            by_partition.setdefault((one.topic_id, one.partition), []).append(one.offset)
        if not messages:
            return found
        since = (min(one.stored_at for one in messages) - _CLOCKS_DIFFER).date()
        for rows in (*self._archived_events(messages, since, by_partition), *self._live_events()):
            for key, offsets in by_partition.items():
                for row in _runs_of(rows, key, offsets):
                    for offset in offsets:
                        if row["offset"] <= offset < row["offset"] + (row["count"] or 1):
                            found.setdefault((*key, offset), []).append(row)
        return found

    def _archived_events(
        self, messages: Sequence[Found], since: date, by_partition: dict[tuple[int, int], list[int]]
    ) -> Iterator[pa.Table]:
        view = self._view(EVENTS)
        if view is None:
            return
        for topic in sorted({one.topic for one in messages}):
            for file in view.files(topic=topic):
                if (file.dt is not None and file.dt < since) or not _may_tell(file, by_partition):
                    continue
                with view.place.filesystem.open_input_file(file.path) as source, pq.ParquetFile(source) as opened:
                    for group in range(opened.metadata.num_row_groups):
                        some = opened.read_row_group(group, columns=list(_RUN))
                        if any(pc.any(_run_mask(some, key, at)).as_py() for key, at in by_partition.items()):
                            yield opened.read_row_group(group, columns=[*_RUN, *_EVENT])

    def _refused(self) -> list[dict[str, Any]]:
        """Sends that the broker did not take: they have no place, and all that is known of them is in the reason."""
        if _place_of(self._search.message_id, self._topics) is not None:
            return []
        found = []
        for rows in (*self._archived_refusals(), *self._live_events()):
            for event in rows.filter(pc.equal(rows["kind"], "refused")).to_pylist():
                row = _refusal(event)
                if self._is_wanted(row):
                    found.append(row)
        return found

    def _archived_refusals(self) -> Iterator[pa.Table]:
        view = self._view(EVENTS)
        for file in self._files(EVENTS) if view is not None else ():
            assert view is not None
            with view.place.filesystem.open_input_file(file.path) as source, pq.ParquetFile(source) as opened:
                for group in range(opened.metadata.num_row_groups):
                    kinds = opened.read_row_group(group, columns=["kind"])
                    if pc.any(pc.equal(kinds["kind"], "refused")).as_py():
                        rows = opened.read_row_group(group, columns=[*_RUN, *_EVENT])
                        yield rows.append_column("topic", pa.array([file.topic] * rows.num_rows, pa.string()))

    def _is_wanted(self, row: dict[str, Any]) -> bool:
        search = self._search
        return (
            (search.message_id is None or row["messageId"] == search.message_id)
            and (search.key is None or row["key"] == search.key)
            and (search.start is None or row["at"] >= search.start)
            and (search.end is None or row["at"] < search.end)
            and row["topic"] in self._topics
        )

    def _live_events(self) -> Iterator[pa.Table]:
        """What the lake does not have yet."""
        events = self._topics.get(EVENTS_TOPIC)
        if events is None:
            return
        for partition, reach in door(self._server).ranges(EVENTS_TOPIC).items():
            first = max(reach.first_index, self._position(EVENTS, events.number, partition))
            if first < reach.visible_index:
                for opened in open_range(self._server, Range(EVENTS_TOPIC, partition, first, reach.visible_index)):
                    yield pa.Table.from_batches([event_rows(opened, partition)])

    # --- the lake ------------------------------------------------------------------------------------------------

    def _view(self, table: str) -> TableView | None:
        if self._lake is None or self._snapshot is None:
            return None
        return self._lake.table(table).at(self._snapshot.versions[table])

    def _files(self, table: str, topic: str | None = None) -> list[ActiveFile]:
        view = self._view(table)
        start, end = self._search.start, self._search.end
        return [
            file
            for file in (view.files(topic=topic) if view is not None else ())
            if file.dt is None
            or ((start is None or file.dt >= start.date()) and (end is None or file.dt <= end.date()))
        ]

    def _position(self, table: str, topic_id: int, partition: int) -> int:
        held = {} if self._snapshot is None else self._snapshot.positions(table)
        return held.get(PartitionKey(topic_id, partition), 0)


def _place_of(id: str | None, topics: Iterable[str]) -> tuple[str, int, int] | None:
    """Topic, partition and offset, if the id is those."""
    topic, partition, offset = (["", "", "", *(id or "").rsplit("/", 2)])[-3:]
    if topic not in topics or not (partition.isascii() and partition.isdecimal() and offset.isdecimal()):
        return None
    return topic, int(partition), int(offset)


def _may_hold(opened: pq.ParquetFile, group: int, offset: int) -> bool:
    """Whether a row group's statistics allow that offset."""
    facts = opened.metadata.row_group(group)
    for column in range(facts.num_columns):
        one = facts.column(column)
        if one.path_in_schema == "offset" and one.statistics is not None and one.statistics.has_min_max:
            return bool(one.statistics.min <= offset <= one.statistics.max)
    return True


def _may_tell(file: ActiveFile, by_partition: dict[tuple[int, int], list[int]]) -> bool:
    """Whether a file of events may tell of any of those messages: a run begins at its message or before it."""
    return any(
        file.may_hold(PartitionKey(*key)) and (file.offsets is None or file.offsets[0] <= max(offsets))
        for key, offsets in by_partition.items()
    )


def _run_mask(rows: Any, key: tuple[int, int], offsets: list[int]) -> Any:
    """Which runs reach between the least and the greatest of some offsets of a partition."""
    is_of = pc.and_(pc.equal(rows["topicId"], key[0]), pc.equal(rows["partition"], key[1]))
    end = pc.add(rows["offset"], pc.cast(pc.fill_null(rows["count"], 1), pa.int64()))
    reaches = pc.and_(pc.less_equal(rows["offset"], max(offsets)), pc.greater(end, min(offsets)))
    return pc.fill_null(pc.and_(is_of, reaches), False)


def _runs_of(rows: pa.Table, key: tuple[int, int], offsets: list[int]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = rows.filter(_run_mask(rows, key, offsets)).to_pylist()
    return found


def _found(topic: str, topic_id: int, row: dict[str, Any]) -> Found:
    place = topic, topic_id, row["partition"], row["offset"]
    return Found(*place, row["timestamp"], row["sendTime"], row["messageId"], row["key"], row["tags"])


def _place(one: Found) -> tuple[int, int, int]:
    return one.topic_id, one.partition, one.offset


def _timeline(one: Found, events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row for each thing that happened: what the message itself tells, then the events."""
    sender = next((event["client"] for event in events if event["kind"] == "produced"), None)
    rows = [
        _row(one, one.sent_at, "sent", client=sender),
        _row(one, one.stored_at, "stored", client=sender, elapsedMs=_between_ms(one.sent_at, one.stored_at)),
        *(
            _row(
                one,
                event["timestamp"],
                event["kind"],
                group=event["app"],
                **{name: event[name] for name in ("client", "attempt", "elapsedMs", "reason")},
            )
            for event in events
            if event["kind"] != "produced"
        ),
    ]
    return sorted((row for row in rows if row["at"] is not None), key=_order)


def _row(one: Found, at: datetime | None, kind: str, **more: Any) -> dict[str, Any]:
    told = {"group": None, "client": None, "attempt": None, "elapsedMs": None, "reason": None, **more}
    place = {"messageId": one.id, "topic": one.topic, "partition": one.partition, "offset": one.offset}
    return {
        **place,
        "key": one.key,
        "tags": one.tags or [],
        "at": at,
        "kind": kind,
        **told,
        "sinceSentMs": _between_ms(one.sent_at, at),
    }


def _refusal(event: dict[str, Any]) -> dict[str, Any]:
    """A send that was refused, as the only row of its timeline."""
    named = dict(_NAMED.findall(event["reason"] or ""))
    sent_at = event["timestamp"] - timedelta(milliseconds=event["elapsedMs"] or 0)
    place = event["topic"], event["topicId"], event["partition"], -1
    tags = [tag for tag in _TAG_ENDS.split(named.get("tags", "")) if tag]
    one = Found(*place, event["timestamp"], sent_at, named.get("id"), named.get("key"), tags)
    told = {name: event[name] for name in ("client", "elapsedMs", "reason")}
    return {**_row(one, event["timestamp"], "refused", group=event["app"], **told), "offset": None}


def _order(row: dict[str, Any]) -> tuple[Any, ...]:
    place = ORDER.index(row["kind"]) + 1 if row["kind"] in ORDER else 0
    return row["at"], row["attempt"] or 0, place, row["group"] or ""


def _between_ms(first: datetime | None, second: datetime | None) -> int | None:
    return None if first is None or second is None else _ms(second) - _ms(first)


def _ms(at: datetime) -> int:
    return round(at.timestamp() * 1_000_000) // 1000
