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
from lakemq.pipeline.options import (
    LOSSES,
    VIEWS,
    Given,
    SourceOptions,
    check_batch,
    check_stream,
    read_choice,
    read_sink,
    read_source,
)
from lakemq.pipeline.planning import Range, between, limit, pack, split
from lakemq.pipeline.positions import Place, Positions
from lakemq.pipeline.spark_socket import SentToWorkers
from lakemq.pipeline.standing import Standing

if TYPE_CHECKING:
    import pyarrow as pa

    from lakemq.pipeline.reads import Reads

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
        check_batch(options)
        # Spark refuses a reader that can push filters unless a setting of the session allows it.
        return (PushingReader if options.is_pushing else Reader)(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        if self.options.get("view") == "files":  # the archive's own
            from lakemq.pipeline.archive_source import FilesReader

            return FilesReader(self.options)
        options = read_source(self.options)
        check_stream(options)
        return StreamReader(options, schema)

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
        return [Task(some) for some in pack(pieces, options.partitions_min, options.records_max)]

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
        start, end = reads.bounds(topics)
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
        self._target: Standing | None = None  # of AvailableNow: where the run ends
        self._told: dict[tuple[str, Place], int] = {}  # by id of the topic and place
        self._last_batch_s = time.monotonic()

    def initialOffset(self) -> dict[str, Any]:
        reads = self._reads
        topics = reads.topics()
        return Standing(reads.starts(topics, "latest"), reads.ids(topics)).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        most = self.options.offsets_max
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._ends(self._reads)

    def latestOffset(self, start: Mapping[str, Any], limit_asked: ReadLimit) -> dict[str, Any]:
        begin, reads = Standing.from_json(start), self._reads
        now = self._ends(reads, begin.topics) if self._target is None else self._target
        lost = begin.lost(now.ids)
        reads.check_standing(begin, lost)
        old, begin = begin.only(lost), begin.without(lost)
        self._tell(reads, begin)  # all before it is done with: the only way to hear of the last batch of a run
        remains = reads.remains(old)
        if remains.positions:  # the lake has more of it; what has its name now comes after that
            begin, now = begin.joined(old.only(remains.topics)), now.without(remains.topics).joined(remains)
        end = self._reached(reads, begin, now)
        if self._target is None and self._should_wait(begin.positions, end.positions):
            return dict(start)
        self._last_batch_s = time.monotonic()
        if isinstance(limit_asked, ReadMaxRows):
            end = Standing(limit(begin.positions, end.positions, limit_asked.max_rows), end.ids)
        return end.to_json()

    def reportLatestOffset(self) -> dict[str, Any]:
        return self._ends(self._reads, self.options.topics).to_json()

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> Sequence[InputPartition]:
        begin, stop = Standing.from_json(start), Standing.from_json(end)
        begin = begin.without(begin.lost({**dict.fromkeys(stop.topics, ""), **stop.ids}))
        return self.tasks(self._reads.available(between(begin.positions, stop.positions), stop.ids))

    def commit(self, end: Mapping[str, Any]) -> None:
        self._tell(self._reads, Standing.from_json(end))

    @property
    def _reads(self) -> "Reads":
        from lakemq.pipeline.reads import Reads

        return Reads(self.options)

    def _ends(self, reads: "Reads", known: Sequence[str] = ()) -> Standing:
        """Where the topics end; those that are known to the stream may be gone."""
        topics = reads.topics(known)
        return Standing(reads.ends(topics), reads.ids(topics))

    def _reached(self, reads: "Reads", begin: Standing, now: Standing) -> Standing:
        """Where a batch without a limit ends. A partition that nobody answers for stays where it is."""
        positions = dict(now.positions)
        behind = [place for place, stop in positions.items() if stop < begin.positions.get(place, 0)]
        # The end of an AvailableNow run may be older than a start at latest: only what is there now tells of a loss.
        there = self._ends(reads, begin.topics) if behind and self._target is not None else now
        for topic, partition in behind:
            at = begin.positions[topic, partition]
            stop = there.positions.get((topic, partition), at)
            reads.check_end(topic, partition, stop, at)
            positions[topic, partition] = min(stop, at)
        return begin.joined(Standing(positions, now.ids))

    def _should_wait(self, begin: Positions, end: Positions) -> bool:
        least = self.options.offsets_min
        if least is None:
            return False
        count = sum(stop - begin.get(place, 0) for place, stop in end.items())
        return count < least and (time.monotonic() - self._last_batch_s) * 1000 < self.options.delay_max_ms

    def _tell(self, reads: "Reads", standing: Standing) -> None:
        """Show at the broker how far the query is, if it has a group there; never backwards."""
        if not self.options.group:
            return
        there = reads.ids(dict.fromkeys(standing.topics))
        standing = standing.without(standing.lost(there))
        named = {(there[place[0]], place): at for place, at in standing.positions.items()}
        moved = {key: at for key, at in named.items() if at > self._told.get(key, -1)}
        if moved:
            reads.tell({place: at for (_, place), at in moved.items()})
            self._told.update(moved)
