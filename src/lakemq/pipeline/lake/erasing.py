"""Rows removed by their keys, as the law or a user asks, in a way that leaves the rest provable.

The removed offsets are noted in `gaps` first, so after a crash it can only be that rows are noted and still there:
`verify` tells, and erasing again finishes. Old versions still hold the rows until vacuum has removed their files.
"""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import date
from itertools import groupby

import pyarrow as pa
import pyarrow.compute as pc

from lakemq.pipeline.lake.errors import LakeBusyError
from lakemq.pipeline.lake.gaps import ERASED, add_gaps
from lakemq.pipeline.lake.layout import GAPS, MESSAGES, META
from lakemq.pipeline.lake.offset_runs import EMPTY, Runs
from lakemq.pipeline.lake.ranges import Gap, PartitionKey
from lakemq.pipeline.lake.rewriting import copy_rows, replace
from lakemq.pipeline.lake.rows import offsets_by_partition, read_rows
from lakemq.pipeline.lake.store import Lake
from lakemq.pipeline.lake.table_view import ActiveFile, TableView

PASSES = 10
_WANTED = pa.schema([("key", pa.string()), ("topicId", pa.int32()), ("partition", pa.int32()), ("offset", pa.int64())])
_VACUUM = (
    "The rows are still in old files. Stop readers that use old versions, then run    lakemq archive vacuum"
    "    with a retention shorter than the time since this erasure; the proof is that no old version can be read."
)


@dataclass(frozen=True, slots=True)
class Erased:
    """What became of one table. With `dry_run` nothing was done, and `versions` is empty."""

    table: str
    rows: int
    files: int
    files_examined: int
    versions: tuple[int, ...]
    old_paths: tuple[str, ...]  # hold the rows until they are vacuumed


@dataclass(frozen=True, slots=True)
class ErasureReport:
    tables: tuple[Erased, ...]
    offsets: dict[tuple[str, PartitionKey], tuple[tuple[int, int], ...]]  # by topic and partition, as (first, end)
    dry_run: bool
    next_step: str = _VACUUM

    @property
    def rows(self) -> int:
        """How many messages went (or would go): an offset counts once, whether it is in one table or both."""
        return sum(end - first for runs in self.offsets.values() for first, end in runs)


def erase(lake: Lake, keys: Collection[str], topic: str | None = None, *, dry_run: bool = False) -> ErasureReport:
    """Remove the messages with these keys from `messages` and `meta`, of one topic or of all.

    What the broker still holds, and messages that come later, are not touched: stop sending them first.
    """
    wanted = pa.array(sorted(set(keys)), pa.string())
    offsets: dict[tuple[str, PartitionKey], Runs] = {}
    tables = tuple(_Erasure(lake, name, wanted, topic, dry_run, offsets).run() for name in (MESSAGES, META))
    found = {at: tuple(runs.once()) for at, runs in offsets.items()}
    return ErasureReport(tables, found, dry_run)


class _Erasure:
    """The work on one table: passes over files not looked at yet, until one finds nothing more."""

    def __init__(
        self,
        lake: Lake,
        name: str,
        keys: pa.Array,
        topic: str | None,
        dry_run: bool,
        offsets: dict[tuple[str, PartitionKey], Runs],
    ) -> None:
        self._lake = lake
        self._table = lake.table(name)
        self._keys = keys
        self._topic = topic
        self._dry_run = dry_run
        self._offsets = offsets
        self._clean: set[str] = set()
        self._rows = 0
        self._versions: list[int] = []
        self._old_paths: list[str] = []

    def run(self) -> Erased:
        for _ in range(PASSES):
            view = self._table.at()
            # Files that came since the last pass: archived meanwhile, or compacted from some that we meant to rewrite.
            new = [file for file in view.files(topic=self._topic) if file.path not in self._clean]
            if not new:
                return Erased(
                    table=self._table.name,
                    rows=self._rows,
                    files=len(self._old_paths),
                    files_examined=len(self._clean),
                    versions=tuple(self._versions),
                    old_paths=tuple(self._old_paths),
                )
            for _, group in groupby(sorted(new, key=_place_of), key=_place_of):
                self._erase_from(view, list(group))
        raise LakeBusyError(f"{self._table.place.uri}: others kept changing files that hold the keys")

    def _erase_from(self, view: TableView, files: list[ActiveFile]) -> None:
        """One topic and day."""
        holding: list[ActiveFile] = []
        rows = 0
        found: dict[PartitionKey, Runs] = {}
        for file in files:
            here = self._find(view, file)
            if here:
                holding.append(file)
                rows += sum(runs.total for runs in here.values())
                for key, runs in here.items():
                    found[key] = found.get(key, EMPTY) + runs
            if not here or self._dry_run:
                self._clean.add(file.path)
        if not holding:
            return
        topic = files[0].topic or ""
        if not self._dry_run:
            gaps = [
                Gap(topic, key.topic_id, key.partition, first, end, ERASED)
                for key, runs in found.items()
                for first, end in runs.once()
            ]
            add_gaps(self._lake.table(GAPS), gaps)
            kept = [copy_rows(view, [file], self._without_keys, name="erased") for file in holding]
            new = [file for file in kept if file is not None]
            version = replace(self._table, holding, new, moves_data=True)
            if version is None:
                return  # the next pass finds the rows where they are now
            self._versions.append(version)
            self._clean.update(file.path for file in new)
        self._rows += rows
        self._old_paths += [file.path for file in holding]
        for key, runs in found.items():
            at = (topic, key)
            self._offsets[at] = self._offsets.get(at, EMPTY) + runs

    def _find(self, view: TableView, file: ActiveFile) -> dict[PartitionKey, Runs]:
        found: dict[PartitionKey, Runs] = {}
        for batch in read_rows(view.place, file.path, _WANTED):
            hits = batch.filter(pc.is_in(batch.column("key"), value_set=self._keys))
            if hits.num_rows:
                for key, runs in offsets_by_partition(hits).items():
                    found[key] = found.get(key, EMPTY) + runs
        return found

    def _without_keys(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.filter(pc.invert(pc.is_in(batch.column("key"), value_set=self._keys)))


def _place_of(file: ActiveFile) -> tuple[str, date]:
    return file.topic or "", file.dt or date.min
