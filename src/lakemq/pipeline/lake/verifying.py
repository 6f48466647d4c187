"""The proof that a lake is whole: every offset once or in a gap, every body with its checksum, every row in its day.

Reads all files at one version of each table, one row group in memory at a time; of what it has read it keeps only runs
of offsets. May run while the archive does; a vacuum that is too short takes files from under it.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakemq.checksum import crc32
from lakemq.pipeline.lake.data_files import split_by_day
from lakemq.pipeline.lake.errors import RowsMissingError
from lakemq.pipeline.lake.gaps import ERASED, read_gaps, runs_by_partition
from lakemq.pipeline.lake.layout import EVENTS, GAPS, MESSAGES, META
from lakemq.pipeline.lake.offset_runs import EMPTY, Runs
from lakemq.pipeline.lake.ranges import PartitionKey, Span
from lakemq.pipeline.lake.rows import offsets_by_partition, read_rows
from lakemq.pipeline.lake.store import Lake
from lakemq.pipeline.lake.table_view import ActiveFile, TableView

PROBLEMS_MAX = 100
BEHIND = "behind"
_RUNS_MAX = 1 << 16  # a partition's runs are joined when there are more

_IDENTITY = [pa.field("topicId", pa.int32()), pa.field("partition", pa.int32()), pa.field("offset", pa.int64())]
_TIME = pa.field("timestamp", pa.timestamp("us", tz="UTC"))
_COLUMNS = {
    MESSAGES: pa.schema([*_IDENTITY, _TIME, ("value", pa.binary()), ("crc", pa.int64())]),
    META: pa.schema([*_IDENTITY, _TIME]),
    EVENTS: pa.schema([*_IDENTITY, _TIME, ("eventPartition", pa.int32()), ("eventOffset", pa.int64())]),
}

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong. `what` is a word to count by; `where` names the file or the partition."""

    what: str
    where: str
    detail: str

    def __str__(self) -> str:
        return f"{self.what}: {self.where}: {self.detail}"


@dataclass(slots=True)
class VerifyReport:
    """What was read and what is wrong. `problems` stops at a bound, `problem_count` does not."""

    versions: dict[str, int] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)
    files: int = 0
    bytes: int = 0
    partitions: int = 0
    gap_offsets: int = 0
    erased_offsets: int = 0
    unsummed: int = 0  # rows that came without a checksum
    problems: list[Problem] = field(default_factory=list)
    problem_count: int = 0
    behind_count: int = 0  # of those: what is not there yet, and comes with the next run of the archive

    @property
    def is_whole(self) -> bool:
        return self.problem_count == 0

    @property
    def is_only_behind(self) -> bool:
        """Whether all that is there is right, and what is not is still to come."""
        return 0 < self.problem_count == self.behind_count

    def add(self, what: str, where: str, detail: str) -> None:
        self.problem_count += 1
        self.behind_count += what == BEHIND
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(Problem(what, where, detail))


def verify(
    lake: Lake,
    expected: Mapping[PartitionKey, int] | None = None,
    *,
    kept: Mapping[PartitionKey, int] | None = None,
    progress: Progress | None = None,
) -> VerifyReport:
    """Check the whole lake. `expected`: positions that must have been reached, such as those the broker was told.

    `kept` says from which offset on the broker still has a partition: what lies before that and is not in the lake is
    gone, not behind. `progress` is called with the files done and the files in all.
    """
    return _Verification(lake, progress).run(expected or {}, kept or {})


class _Verification:
    def __init__(self, lake: Lake, progress: Progress | None) -> None:
        # `meta` first: what it has, `messages` has by then. `gaps` last, for the same reason.
        self._views = {name: lake.table(name).at() for name in (META, MESSAGES, EVENTS, GAPS)}
        self._files = {name: self._views[name].files() for name in (MESSAGES, META, EVENTS)}
        self._progress = progress
        self._report = VerifyReport(versions={name: view.version for name, view in self._views.items()})

    def run(self, expected: Mapping[PartitionKey, int], kept: Mapping[PartitionKey, int]) -> VerifyReport:
        gaps = read_gaps(self._views[GAPS])
        absent, erased = runs_by_partition(gaps), runs_by_partition(gaps, reason=ERASED)
        spans = {name: self._views[name].spans() for name in (MESSAGES, META, EVENTS)}
        held = {name: self._read(name, spans[name]) for name in (MESSAGES, META, EVENTS)}
        for name in (MESSAGES, META):
            for key in sorted(spans[name].keys() | held[name].keys()):
                self._check_offsets(
                    name, key, spans[name].get(key), held[name].get(key, EMPTY), absent.get(key, EMPTY), erased.get(key)
                )
        for key in sorted(spans[MESSAGES].keys() & spans[META].keys()):
            self._compare(key, spans[MESSAGES][key], spans[META][key], held)
        for key in sorted(spans[MESSAGES].keys() - spans[META].keys()):
            self._report.add(BEHIND, _partition(META, key), "`messages` has the partition, `meta` has none of it")
        positions = {key: span.end for name in (EVENTS, MESSAGES) for key, span in spans[name].items()}
        for key, end in expected.items():
            at = positions.get(key, 0)
            if at < min(end, kept.get(key, 0)):
                self._report.add("gone", _partition(MESSAGES, key), f"{at} to {kept[key] - 1} left the broker")
            elif at < end:
                self._report.add(BEHIND, _partition(MESSAGES, key), f"{at} of {end} are archived")
        self._report.partitions = len(positions)
        self._report.gap_offsets = sum(runs.total for runs in absent.values())
        self._report.erased_offsets = sum(runs.total for runs in erased.values())
        return self._report

    def _read(self, name: str, spans: Mapping[PartitionKey, Span]) -> dict[PartitionKey, Runs]:
        view, held = self._views[name], dict[PartitionKey, Runs]()
        total = sum(len(files) for files in self._files.values())
        self._report.rows[name] = 0
        for file in self._files[name]:
            try:
                self._read_file(view, file, held, spans)
            except FileNotFoundError:
                self._report.add("missing file", f"{name}/{file.path}", f"{file.rows} rows are lost")
            except (pa.ArrowException, OSError, ValueError) as error:
                self._report.add("unreadable file", f"{name}/{file.path}", str(error).splitlines()[0])
            self._report.files += 1
            self._report.bytes += file.size
            if self._progress is not None:
                self._progress(self._report.files, total)
        return held

    def _read_file(
        self,
        view: TableView,
        file: ActiveFile,
        held: dict[PartitionKey, Runs],
        spans: Mapping[PartitionKey, Span],
    ) -> None:
        where = f"{view.name}/{file.path}"
        rows = 0
        for batch in read_rows(view.place, file.path, _COLUMNS[view.name]):
            rows += batch.num_rows
            self._check_day(batch, file.dt, where)
            if view.name == EVENTS:
                self._check_events(batch, spans, where)
                continue
            if view.name == MESSAGES:
                self._check_sums(batch, where)
            self._gather(batch, held, where)
        self._report.rows[view.name] += rows
        if rows != file.rows:
            self._report.add("row count", where, f"the log says {file.rows}, the file has {rows}")

    def _gather(self, batch: pa.RecordBatch, held: dict[PartitionKey, Runs], where: str) -> None:
        found = offsets_by_partition(batch)
        nameless = batch.num_rows - sum(runs.total for runs in found.values())
        if nameless:
            self._report.add("nameless rows", where, f"{nameless} rows lack an id, a partition or an offset")
        for key, runs in found.items():
            gathered = held.get(key, EMPTY) + runs
            if len(gathered) > _RUNS_MAX:  # what was doubled stays so
                gathered = gathered.once() + gathered.doubled()
            held[key] = gathered

    def _check_day(self, batch: pa.RecordBatch, day: date | None, where: str) -> None:
        try:
            for found, rows in split_by_day(batch):
                if day is None or found != day.isoformat():
                    self._report.add("wrong day", where, f"{rows.num_rows} rows are of {found}")
        except RowsMissingError as error:
            self._report.add("wrong day", where, str(error))

    def _check_sums(self, batch: pa.RecordBatch, where: str) -> None:
        with_value = batch.filter(pc.is_valid(batch.column("value")))  # a tombstone has none
        summed = with_value.filter(pc.is_valid(with_value.column("crc")))
        self._report.unsummed += with_value.num_rows - summed.num_rows
        if summed.num_rows == 0:
            return
        wrong = np.flatnonzero(_sums(summed.column("value")) != summed.column("crc").to_numpy(zero_copy_only=False))
        if len(wrong):
            offset = summed.column("offset")[int(wrong[0])].as_py()
            self._report.add("checksum", where, f"{len(wrong)} values are not what they were, the first at {offset}")

    def _check_events(self, batch: pa.RecordBatch, spans: Mapping[PartitionKey, Span], where: str) -> None:
        # An event tells of another topic; the id of `__events` itself is only in the positions.
        ends: dict[int, int] = {}
        for key, span in spans.items():
            ends[key.partition] = max(span.end, ends.get(key.partition, 0))
        pairs = pa.table({"partition": batch.column("eventPartition"), "offset": batch.column("eventOffset")}).group_by(
            "partition"
        )
        for row in pairs.aggregate([("offset", "max")]).to_pylist():
            if row["offset_max"] is not None and row["offset_max"] >= ends.get(row["partition"], 0):
                self._report.add("beyond", where, f"event {row['offset_max']} lies beyond its partition's position")

    def _check_offsets(
        self, name: str, key: PartitionKey, span: Span | None, held: Runs, absent: Runs, erased: Runs | None
    ) -> None:
        whole = EMPTY if span is None else Runs.of([span])
        where = _partition(name, key)
        self._tell("twice", where, held.doubled())
        self._tell("missing", where, whole.without(held).without(absent))
        self._tell("beyond", where, held.without(whole))
        if erased is not None:
            self._tell("erased but there", where, held.common(erased))

    def _compare(
        self, key: PartitionKey, messages: Span, meta: Span, held: Mapping[str, Mapping[PartitionKey, Runs]]
    ) -> None:
        # Each table has a retention of its own, and `meta` may be a commit behind.
        both = Runs.of([(max(messages.first, meta.first), min(messages.end, meta.end))])
        bodies = held[MESSAGES].get(key, EMPTY).common(both)
        facts = held[META].get(key, EMPTY).common(both)
        self._tell("not in meta", _partition(META, key), bodies.without(facts))
        self._tell("only in meta", _partition(META, key), facts.without(bodies))

    def _tell(self, what: str, where: str, runs: Runs) -> None:
        if len(runs):
            self._report.add(what, where, f"{runs.total} offsets: {_listed(runs)}")


def _sums(values: pa.Array) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The CRC-32 of each value; none may be null."""
    _, offsets, data = values.buffers()
    ends = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1].tolist()
    view = memoryview(data) if data is not None else memoryview(b"")
    return np.fromiter((crc32(view[start:end]) for start, end in pairwise(ends)), np.int64, len(values))


def _partition(table: str, key: PartitionKey) -> str:
    return f"{table}, topic id {key.topic_id}, partition {key.partition}"


def _listed(runs: Iterable[tuple[int, int]], most: int = 5) -> str:
    pairs = list(runs)
    told = [str(first) if end == first + 1 else f"{first}-{end - 1}" for first, end in pairs[:most]]
    return ", ".join(told) + (" …" if len(pairs) > most else "")
