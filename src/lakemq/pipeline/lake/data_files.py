"""Record batches in, Parquet files out: one file per topic and day, in place but unseen until the table's log names it.

Runs on Spark's executors: needs the lake's URI and nothing of the driver's. Works on columns, never row by row.
A file that was returned survives a power loss; one that was not is an orphan, and vacuum removes it.
"""

import json
import os
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from types import TracebackType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakemq.pipeline.lake.errors import RowsMissingError
from lakemq.pipeline.lake.layout import EVENTS, META, TABLES_OF, columns_in_files, directory_of
from lakemq.pipeline.lake.place import Place

GROUP_BYTES = 64 << 20  # of decoded rows; larger groups compress little better and need more memory in every reader

_DAY_MICROS = 86_400_000_000
_EPOCH_DAY = date(1970, 1, 1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Never the key: its extremes would stay in the log after an erasure.
_STATISTICS = ("topicId", "partition", "offset", "timestamp", "eventPartition", "eventOffset")
_BLOOM = ("key", "messageId")
# Few different values, or values that the dictionary gives up on at no cost. The rest is left to zstd.
_DICTIONARY = (
    *("app", "topicId", "partition", "attempt", "priority", "flag", "term", "tags.list.element"),
    *("headers.key_value.key", "kind", "client", "reason", "count", "eventPartition", "topic"),
)
_UNSTATED = ("value", "headers", "tags")  # extremes of bodies help nobody


@dataclass(frozen=True, slots=True)
class NewFile:
    """A finished data file that no log names yet. `topic` and `dt` are None in a table without partitions."""

    path: str  # below the table's directory, as it is on disk
    size: int
    topic: str | None
    dt: str | None
    stats: str  # Delta's statistics, JSON


@dataclass(frozen=True, slots=True)
class DataFile:
    """A data file and the range of its partition that it belongs to: what a task tells the driver.

    `topic_id`, `partition`, `first` and `end` name the range that was read; one that crosses midnight has two files,
    and one of `__events` has a file for each topic that its events are about, which `topic` then names.
    """

    table: str
    topic: str
    topic_id: int
    partition: int
    first: int
    end: int
    path: str
    size: int
    dt: str
    stats: str

    @property
    def rows(self) -> int:
        return int(json.loads(self.stats)["numRecords"])

    @property
    def file(self) -> NewFile:
        return NewFile(self.path, self.size, self.topic, self.dt, self.stats)

    def bounds(self, column: str) -> tuple[int, int]:
        """The least and the greatest value of a column of integers."""
        stats = json.loads(self.stats)
        return int(stats["minValues"][column]), int(stats["maxValues"][column])

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "DataFile":
        return cls(**json.loads(text))


class FilesWriter:
    """Writes one range of one partition. `messages` fills the tables `messages` and `meta` from the same batches.

    Batches have the columns of the table but `dt`; of `messages` also `topic` may be left out, of `events` it says
    where a row goes. A missing `topicId` is filled in, other missing columns become null, unknown ones are left out.
    """

    def __init__(
        self,
        uri: str | os.PathLike[str],
        table: str,
        topic: str,
        topic_id: int,
        partition: int,
        first: int,
        *,
        storage_options: Mapping[str, str] | None = None,
        group_bytes: int = GROUP_BYTES,
        tables: Iterable[str] | None = None,
    ) -> None:
        place = Place.of(uri, storage_options)
        self._places = {name: place.child(name) for name in (TABLES_OF[table] if tables is None else tables)}
        self._splits_by_topic = table == EVENTS
        self._topic = topic
        self._topic_id = topic_id
        self._partition = partition
        self._first = first
        self._group_bytes = group_bytes
        self._open: dict[tuple[str, str, str], OpenFile] = {}

    def write(self, batch: pa.RecordBatch) -> None:
        """Take some rows; they are in files once `finish` has returned."""
        if "topicId" not in batch.schema.names:
            ids = pa.repeat(pa.scalar(self._topic_id, pa.int32()), batch.num_rows)
            batch = batch.append_column("topicId", ids)
        for topic, rows in _by_topic(batch) if self._splits_by_topic else [(self._topic, batch)]:
            for day, day_rows in split_by_day(rows):
                for table in self._places:
                    self._file(table, topic, day).add(_projected(day_rows, table))
        while sum(file.buffered_bytes for file in self._open.values()) > 2 * self._group_bytes:
            max(self._open.values(), key=lambda file: file.buffered_bytes).flush()

    def finish(self, end: int) -> list[DataFile]:
        """Close the range at `end` (not included) and return its files, safe on disk."""
        return [
            DataFile(
                table=table,
                topic=topic,
                topic_id=self._topic_id,
                partition=self._partition,
                first=self._first,
                end=end,
                path=(new := file.close()).path,
                size=new.size,
                dt=day,
                stats=new.stats,
            )
            for (table, topic, day), file in self._open.items()
        ]

    def abort(self) -> None:
        """Remove what was written so far."""
        for file in self._open.values():
            file.abort()

    def __enter__(self) -> "FilesWriter":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is not None:
            self.abort()

    def _file(self, table: str, topic: str, day: str) -> "OpenFile":
        key = (table, topic, day)
        if key not in self._open:
            name = f"p{self._partition:05d}-{self._first:020d}"
            self._open[key] = OpenFile(
                self._places[table], columns_in_files(table), topic, day, name=name, group_bytes=self._group_bytes
            )
        return self._open[key]


class OpenFile:
    """One Parquet file that is being written: rows gather until they make a row group."""

    def __init__(
        self,
        place: Place,
        columns: pa.Schema,
        topic: str | None,
        day: str | None,
        *,
        name: str,
        group_bytes: int = GROUP_BYTES,
    ) -> None:
        directory = "" if topic is None or day is None else directory_of(topic, day) + "/"
        self.path = f"{directory}{name}-{uuid.uuid4().hex}.parquet"
        self.buffered_bytes = 0
        self._place = place
        self._columns = columns
        self._topic = topic
        self._day = day
        self._group_bytes = group_bytes
        self._buffered: list[pa.RecordBatch] = []
        self._writer: Any = None
        self._statistics = _Statistics(columns)

    def add(self, batch: pa.RecordBatch) -> None:
        """Take rows with just the file's columns."""
        if batch.num_rows == 0:
            return
        self._buffered.append(batch)
        self.buffered_bytes += batch.nbytes
        if self.buffered_bytes >= self._group_bytes:
            self.flush()

    def flush(self) -> None:
        """Write what has gathered as a row group."""
        if not self._buffered:
            return
        rows = pa.Table.from_batches(self._buffered, self._columns)
        self._buffered, self.buffered_bytes = [], 0
        if self._writer is None:
            if os.path.dirname(self.path):
                self._place.make_directory(os.path.dirname(self.path))
            self._writer = pq.ParquetWriter(
                self.path, self._columns, filesystem=self._place.filesystem, **_settings(self._columns, rows.num_rows)
            )
        self._writer.write_table(rows, row_group_size=max(1, rows.num_rows))
        self._statistics.add(rows)

    @property
    def row_count(self) -> int:
        return self._statistics.row_count + sum(int(batch.num_rows) for batch in self._buffered)

    def close(self) -> NewFile:
        """The file, whole and safe on disk. At least one row must have been added."""
        self.flush()
        assert self._writer is not None, "a file without rows"
        self._writer.close()
        self._place.sync(self.path)
        return NewFile(self.path, self._place.size(self.path), self._topic, self._day, self._statistics.to_json())

    def abort(self) -> None:
        """Close it and remove it."""
        self._buffered = []
        if self._writer is not None:
            self._writer.close()
            self._place.remove(self.path)


def split_by_day(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The rows of each UTC day of `timestamp`, as (day, rows); the order inside a day stays."""
    if batch.num_rows == 0:
        return
    times = batch.column("timestamp")
    if times.null_count:
        raise RowsMissingError(f"{times.null_count} rows have no timestamp, so they belong to no day")
    days = np.floor_divide(times.cast(pa.int64()).to_numpy(zero_copy_only=False), _DAY_MICROS)
    least, greatest = int(days.min()), int(days.max())
    if least == greatest:
        yield _day_text(least), batch
    elif (np.diff(days) >= 0).all():  # as the broker stores them: cut without copying
        cuts = [0, *(np.flatnonzero(np.diff(days)) + 1).tolist(), len(days)]
        for start, end in pairwise(cuts):
            yield _day_text(int(days[start])), batch.slice(start, end - start)
    else:
        for day in np.unique(days).tolist():
            yield _day_text(day), batch.filter(pa.array(days == day))


def aligned(batch: pa.RecordBatch, columns: pa.Schema) -> pa.RecordBatch:
    """The batch with just these columns in this order; those that it lacks are null."""
    if batch.schema.equals(columns):
        return batch
    names = set(batch.schema.names)
    arrays = []
    for column in columns:
        if column.name not in names:
            arrays.append(pa.nulls(batch.num_rows, column.type))
            continue
        array = batch.column(column.name)
        arrays.append(array if array.type == column.type else array.cast(column.type))
    return pa.RecordBatch.from_arrays(arrays, schema=columns)


def _projected(batch: pa.RecordBatch, table: str) -> pa.RecordBatch:
    if table == META and "valueBytes" not in batch.schema.names:
        batch = batch.append_column("valueBytes", pc.binary_length(batch.column("value")).cast(pa.int32()))
    return aligned(batch, columns_in_files(table))


def _by_topic(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    topics = batch.column("topic")
    if topics.null_count:
        raise RowsMissingError(f"{topics.null_count} events name no topic")
    distinct = pc.unique(topics).to_pylist()
    for topic in distinct:
        yield topic, batch if len(distinct) == 1 else batch.filter(pc.equal(topics, topic))


def _day_text(day: int) -> str:
    return (_EPOCH_DAY + timedelta(days=day)).isoformat()


def _settings(columns: pa.Schema, rows: int) -> dict[str, Any]:
    names = set(columns.names)
    # A Bloom filter is per row group; the first one says how many keys to expect in each.
    blooms = {name: {"ndv": max(rows, 64), "fpp": 0.01} for name in _BLOOM if name in names}
    return {
        "compression": "zstd",
        "compression_level": 3,
        "use_dictionary": [path for path in _DICTIONARY if path.split(".")[0] in names],
        "write_statistics": [name for name in columns.names if name not in _UNSTATED],
        "write_page_index": True,
        "write_page_checksum": True,
        "store_schema": False,
        "bloom_filter_options": blooms or None,
    }


class _Statistics:
    """Counts and extremes of the columns that readers select files by, in Delta's form."""

    def __init__(self, columns: pa.Schema) -> None:
        self.row_count: int = 0
        self._nulls = {name: 0 for name in columns.names if name in _STATISTICS}
        self._least: dict[str, int] = {}
        self._greatest: dict[str, int] = {}

    def add(self, rows: pa.Table) -> None:
        self.row_count += rows.num_rows
        for name in self._nulls:
            column = rows.column(name)
            self._nulls[name] += column.null_count
            extremes = pc.min_max(column.cast(pa.int64()) if name == "timestamp" else column)
            least, greatest = extremes["min"].as_py(), extremes["max"].as_py()
            if least is not None:
                self._least[name] = min(least, self._least.get(name, least))
                self._greatest[name] = max(greatest, self._greatest.get(name, greatest))

    def to_json(self) -> str:
        return json.dumps(
            {
                "numRecords": self.row_count,
                "minValues": {name: _stated(name, value, 0) for name, value in self._least.items()},
                "maxValues": {name: _stated(name, value, 999) for name, value in self._greatest.items()},
                "nullCount": self._nulls,
            }
        )


def _stated(name: str, value: int, rounding: int) -> int | str:
    if name != "timestamp":
        return value
    # Delta states times in milliseconds: the least is rounded down, the greatest up.
    moment = _EPOCH + timedelta(milliseconds=(value + rounding) // 1000)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
