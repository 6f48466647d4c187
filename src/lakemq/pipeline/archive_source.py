"""A stream of the files that its own tasks write: messages go from the broker into Parquet without passing the JVM.

Each task fetches ranges, takes them apart, writes and syncs data files, and hands Spark one row per range that names
them. The driver commits those rows (`archiving.py`). Files that no commit names are orphans, for vacuum to remove.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from lakemq.pipeline import schema
from lakemq.pipeline.archive_plan import archived_topics, read_tag
from lakemq.pipeline.arrow import Columns
from lakemq.pipeline.collecting import spare_imports
from lakemq.pipeline.door import door
from lakemq.pipeline.errors import PipelineError
from lakemq.pipeline.events import event_rows
from lakemq.pipeline.fetching import open_range
from lakemq.pipeline.lake import EVENTS, FilesWriter
from lakemq.pipeline.options import Given, Server, read_server
from lakemq.pipeline.planning import Range, between, limit, pack, split
from lakemq.pipeline.positions import Positions, from_json, to_json
from lakemq.pipeline.spark_socket import SentToWorkers

FILES = pa.schema(
    [
        ("topic", pa.string()),
        ("topicId", pa.int32()),
        ("partition", pa.int32()),
        ("first", pa.int64()),
        ("end", pa.int64()),
        ("gapEnd", pa.int64()),  # up to here the messages had left the broker
        ("files", pa.string()),
    ]
)
_COLUMNS = [field.name for field in schema.MESSAGES if field.name not in ("topic", "dt")]
_RANGE_OFFSETS_MAX = 2_000_000  # of one file's range, so that a task that fails repeats no more than this


@dataclass
class FilesTask(InputPartition):
    """What one task writes; `gap_ends` tells for each range up to where its messages have left the broker."""

    ranges: tuple[Range, ...]
    gap_ends: tuple[int, ...]


class FilesReader(SentToWorkers, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The archive's stream. Where it begins comes from the lake, by option; not from Spark's checkpoint."""

    def __init__(self, options: Mapping[str, str]) -> None:
        given = Given(options)
        self.server: Server = read_server(given)
        self.lake = given.text("lake")
        self.start: dict[str, Any] = given.json("startingOffsets")
        self.only = tuple(name for name in given.text("subscribe").split(",") if name)
        self.offsets_max = given.number("maxOffsetsPerTrigger")
        self.tasks_min = given.number("minPartitions")
        self._target: Positions | None = None

    def initialOffset(self) -> dict[str, Any]:
        return self.start

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable() if self.offsets_max is None else ReadMaxRows(self.offsets_max)

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._ends()

    def latestOffset(self, start: Mapping[str, Any], limit_asked: ReadLimit) -> dict[str, Any]:
        begin = from_json(start)
        ends = self._ends() if self._target is None else self._target
        _check_ends(begin, ends)
        end = {**begin, **ends}
        if isinstance(limit_asked, ReadMaxRows):
            end = limit(begin, end, limit_asked.max_rows)
        return to_json(end)

    def reportLatestOffset(self) -> dict[str, Any]:
        return to_json(self._ends())

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> Sequence[InputPartition]:
        ranges, gaps = [], {}
        for one in between(from_json(start), from_json(end)):
            topic = read_tag(one.topic)
            reach = door(self.server).ranges(topic.name).get(one.partition)
            first_kept = one.end if reach is None else reach.first_index
            named = Range(topic.name, one.partition, one.first, one.end, topic.id)
            pieces = split([named], None, _RANGE_OFFSETS_MAX)
            for piece in pieces:
                gaps[piece] = min(max(first_kept, piece.first), piece.end)
            ranges += pieces
        return [FilesTask(some, tuple(gaps[one] for one in some)) for some in pack(ranges, self.tasks_min)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        spare_imports()
        if isinstance(partition, FilesTask):
            for one, gap_end in zip(partition.ranges, partition.gap_ends, strict=True):
                yield write_range(self.server, self.lake, one, gap_end)

    def _ends(self) -> Positions:
        found: Positions = {}
        for topic in archived_topics(self.server, self.only):
            for partition, reach in door(self.server).ranges(topic.name).items():
                found[topic.tag, partition] = reach.visible_index
        return found


def _check_ends(begin: Positions, ends: Positions) -> None:
    """A broker that has less than the lake would send other messages under the same offsets."""
    for (tag, partition), stop in ends.items():
        at = begin.get((tag, partition), 0)
        if stop < at:
            raise PipelineError(
                f"{read_tag(tag).name}, partition {partition} ends at offset {stop} at the broker, and the lake has it "
                f"up to {at}",
                "The broker has older data than the lake, as from a backup: archive into a new lake from now on.",
            )


def write_range(server: Server, lake: str, one: Range, gap_end: int) -> pa.RecordBatch:
    """Fetch a range into data files; the row that names them."""
    table = read_tag(f"{one.topic}#{one.topic_id}").table
    live = Range(one.topic, one.partition, gap_end, one.end, one.topic_id)
    with FilesWriter(lake, table, one.topic, one.topic_id, one.partition, one.first) as writer:
        for opened in open_range(server, live):
            if table == EVENTS:
                writer.write(event_rows(opened, one.partition))
            else:
                columns = Columns(opened, one.topic, one.partition, one.topic_id)
                del opened  # gone before the next piece is opened
                writer.write(columns.batch(_COLUMNS, schema.MESSAGES))
                del columns
        files = [file.to_json() for file in writer.finish(one.end)]
    row = {
        "topic": one.topic,
        "topicId": one.topic_id,
        "partition": one.partition,
        "first": one.first,
        "end": one.end,
        "gapEnd": gap_end,
        "files": json.dumps(files),
    }
    return pa.RecordBatch.from_pylist([row], FILES)
