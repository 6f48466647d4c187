"""`spark.read.format("lakemq")` and its three siblings: what Spark calls, and nothing else.

Spark makes these objects anew in several processes of its own (look-up, planning, streams, tasks): they keep no more
than options, and heavy imports wait until there is something to read.
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from lakemq.memory import keep_freed_memory
from lakemq.pipeline.errors import OptionError
from lakemq.pipeline.options import LOSSES, VIEWS, Given, SourceOptions, read_choice, read_sink, read_source
from lakemq.pipeline.planning import Range, between, limit, pack, split
from lakemq.pipeline.positions import Positions, from_json, to_json
from lakemq.pipeline.spark_socket import SentToWorkers

if TYPE_CHECKING:
    import pyarrow as pa

_KEPT_BYTES_MAX = 64 << 20  # some blocks, their rows and their columns are 16 MB


class LakeMQSource(DataSource):
    """The format `lakemq`."""

    @classmethod
    def name(cls) -> str:
        return "lakemq"

    def schema(self) -> str:
        from lakemq.pipeline.collecting import spare_imports
        from lakemq.pipeline.reads import chosen, ddl, types_of

        spare_imports()
        given = Given(self.options)
        types = types_of(given.choice("view", VIEWS), given.choice("failOnDataLoss", LOSSES))
        return ddl(chosen(types, read_choice(given)))

    def reader(self, schema: StructType) -> "Reader":
        options = read_source(self.options)
        # Spark refuses a reader that can push filters unless a setting of the session allows it.
        return (PushingReader if options.is_pushing else Reader)(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        if self.options.get("view") == "files":  # the archive's own
            from lakemq.pipeline.archive_source import FilesReader

            return FilesReader(self.options)
        return StreamReader(read_source(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> Any:
        from lakemq.pipeline.sink import BatchSink

        if overwrite:
            raise OptionError("a topic cannot be overwritten", 'Write with mode("append").')
        return BatchSink(read_sink(self.options), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:
        from lakemq.pipeline.sink import StreamSink

        return StreamSink(read_sink(self.options), schema)


@dataclass
class Task(InputPartition):
    """What one task reads."""

    ranges: tuple[Range, ...]


class _Reads(SentToWorkers):
    """What a batch and a stream have in common."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        from lakemq.pipeline.reads import check_columns, types_of

        self.options = options
        self.types = check_columns(types_of(options.view, options.loss), schema, options.columns)

    def tasks(self, ranges: list[Range]) -> list[Task]:
        options = self.options
        pieces = split(ranges, options.partitions_min, options.records_max)
        return [Task(some) for some in pack(pieces, options.partitions_min)]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        from lakemq.pipeline.collecting import spare_imports
        from lakemq.pipeline.reads import read_ranges

        spare_imports()
        keep_freed_memory(_KEPT_BYTES_MAX)
        # Nothing to read is asked for as a partition of Spark's own.
        ranges = partition.ranges if isinstance(partition, Task) else ()
        return read_ranges(self.options, ranges, self.types)


class Reader(_Reads, DataSourceReader):
    """One look at some topics."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self.bounds = Bounds()

    def partitions(self) -> Sequence[InputPartition]:
        from lakemq.pipeline.collecting import spare_imports
        from lakemq.pipeline.reads import Reads

        reads = Reads(self.options)
        topics = {t: only for t, only in reads.topics().items() if self.bounds.has_topic(t)}
        end = reads.ends(topics)
        start = reads.starts(topics, "earliest")
        ranges = [self.bounds.cut(one) for one in reads.available(between(start, end))]
        spare_imports()  # now that all is imported
        return self.tasks([one for one in ranges if one.count > 0])


@dataclass
class Bounds:
    """What filters leave of a read."""

    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    first: int = 0
    end: int = 1 << 62

    def has_topic(self, topic: str) -> bool:
        return self.topics is None or topic in self.topics

    def cut(self, one: Range) -> Range:
        if self.partitions is not None and one.partition not in self.partitions:
            return Range(one.topic, one.partition, one.end, one.end)
        first, end = max(one.first, self.first), min(one.end, self.end)
        return Range(one.topic, one.partition, first, max(end, first), one.topic_id, one.files)


class PushingReader(Reader):
    """Reads only what filters on topic, partition and offset leave."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        for one in filters:
            if not self._take(one):
                yield one

    def _take(self, one: Any) -> bool:
        bounds = self.bounds
        column = getattr(one, "attribute", None)
        if isinstance(one, IsNotNull):
            return column in (("topic",), ("partition",), ("offset",), ("timestamp",))
        if column == ("topic",) and isinstance(one, EqualTo | In):
            wanted = frozenset([one.value] if isinstance(one, EqualTo) else one.value)
            bounds.topics = wanted if bounds.topics is None else bounds.topics & wanted
        elif column == ("partition",) and isinstance(one, EqualTo | In):
            some = frozenset([one.value] if isinstance(one, EqualTo) else one.value)
            bounds.partitions = some if bounds.partitions is None else bounds.partitions & some
        elif column == ("offset",) and isinstance(one, EqualTo):
            bounds.first, bounds.end = max(bounds.first, one.value), min(bounds.end, one.value + 1)
        elif column == ("offset",) and isinstance(one, GreaterThan | GreaterThanOrEqual):
            bounds.first = max(bounds.first, one.value + isinstance(one, GreaterThan))
        elif column == ("offset",) and isinstance(one, LessThan | LessThanOrEqual):
            bounds.end = min(bounds.end, one.value + isinstance(one, LessThanOrEqual))
        else:
            return False
        return True


class StreamReader(_Reads, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Some topics for as long as the query runs."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._target: Positions | None = None  # of AvailableNow: where the run ends
        self._told: Positions = {}
        self._last_batch_s = time.monotonic()

    def initialOffset(self) -> dict[str, Any]:
        reads = self._reads
        return to_json(reads.starts(reads.topics(), "latest"))

    def getDefaultReadLimit(self) -> ReadLimit:
        most = self.options.offsets_max
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._ends()

    def latestOffset(self, start: Mapping[str, Any], limit_asked: ReadLimit) -> dict[str, Any]:
        begin = from_json(start)
        self._tell(begin)  # all before it is done with: the only way to hear of the last batch of a run
        end = dict(self._ends() if self._target is None else self._target)
        end = {**begin, **{place: max(stop, begin.get(place, 0)) for place, stop in end.items()}}
        if self._target is None and self._should_wait(begin, end):
            return dict(start)
        self._last_batch_s = time.monotonic()
        if isinstance(limit_asked, ReadMaxRows):
            end = limit(begin, end, limit_asked.max_rows)
        return to_json(end)

    def reportLatestOffset(self) -> dict[str, Any]:
        return to_json(self._ends())

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> Sequence[InputPartition]:
        return self.tasks(self._reads.available(between(from_json(start), from_json(end))))

    def commit(self, end: Mapping[str, Any]) -> None:
        self._tell(from_json(end))

    @property
    def _reads(self) -> Any:
        from lakemq.pipeline.reads import Reads

        return Reads(self.options)

    def _ends(self) -> Positions:
        reads = self._reads
        return dict(reads.ends(reads.topics()))

    def _should_wait(self, begin: Positions, end: Positions) -> bool:
        least = self.options.offsets_min
        if least is None:
            return False
        count = sum(stop - begin.get(place, 0) for place, stop in end.items())
        return count < least and (time.monotonic() - self._last_batch_s) * 1000 < self.options.delay_max_ms

    def _tell(self, positions: Positions) -> None:
        """Show at the broker how far the query is, if it has a group there; never backwards."""
        if not self.options.group:
            return
        moved = {place: at for place, at in positions.items() if at > self._told.get(place, -1)}
        if moved:
            self._reads.tell(moved)
            self._told.update(moved)
