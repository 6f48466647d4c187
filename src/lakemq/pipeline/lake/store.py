"""The lake: its four tables together, and what has to hold between them.

Each message is in `messages` once or in `gaps`, and in `meta` if it is in `messages`. The tables are committed one
after the other, `gaps`, `messages`, `meta`, each by compare-and-set; `heal` makes good what a crash leaves between two.
A position is told only after all that lies before it survives a power loss (local disks).
"""

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date

from lakemq.pipeline.lake import delta_log
from lakemq.pipeline.lake.data_files import DataFile, FilesWriter
from lakemq.pipeline.lake.errors import NotNextError, RowsMissingError
from lakemq.pipeline.lake.gaps import add_gaps, read_gaps, runs_by_partition
from lakemq.pipeline.lake.layout import EVENTS, GAPS, MESSAGES, META, SCHEMAS, TABLES_OF, check, claim
from lakemq.pipeline.lake.lock import ArchiveLock, RepairLock
from lakemq.pipeline.lake.offset_runs import EMPTY, Runs
from lakemq.pipeline.lake.place import Place
from lakemq.pipeline.lake.ranges import Gap, PartitionKey, Range, Span, fit
from lakemq.pipeline.lake.rows import of_partition, read_rows
from lakemq.pipeline.lake.table import Change, Table
from lakemq.pipeline.lake.table_view import TableView


@dataclass(frozen=True, slots=True)
class Committed:
    """What a commit did. `versions` has only tables that changed."""

    taken: tuple[Range, ...]
    skipped: tuple[Range, ...]  # were there already
    versions: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Healed:
    """What `heal` found to do."""

    removed: tuple[str, ...]  # torn files of the logs, as <table>/<name>
    ranges: tuple[Range, ...]  # whose rows `meta` lacked


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A version of each table, with the spans at just that version."""

    versions: dict[str, int]
    spans: dict[str, dict[PartitionKey, Span]]

    def positions(self, table: str = MESSAGES) -> dict[PartitionKey, int]:
        """How far each partition is in that version of the table: the live part begins there."""
        return {key: span.end for key, span in self.spans[table].items()}


class Lake:
    """A lake that was opened: `Lake.open`."""

    def __init__(self, place: Place, cluster: str) -> None:
        self.place = place
        self.cluster = cluster
        self._tables = {name: Table(place, name, cluster) for name in SCHEMAS}

    @classmethod
    def open(
        cls,
        uri: str | os.PathLike[str],
        cluster: str | None = None,
        *,
        create: bool = False,
        storage_options: Mapping[str, str] | None = None,
    ) -> "Lake":
        """Open a lake to read it, or with `create` to write it: then what is missing is made, what is torn is mended.

        A lake of another cluster is refused; `cluster` may be None for those who only read.
        """
        place = Place.of(uri, storage_options)
        if not create:
            owner = check(place)
            if cluster is not None:
                claim(place, cluster)
            return cls(place, owner)
        if cluster is None:
            raise ValueError("a lake is made for a cluster: name it")
        claim(place, cluster)
        lake = cls(place, cluster)
        lake._remove_torn()
        for table in lake._tables.values():
            table.create()
        return lake

    def table(self, name: str) -> Table:
        return self._tables[name]

    def lock(self) -> ArchiveLock:
        """To be held by the archive job while it runs."""
        return ArchiveLock(self.place)

    def writer(self, topic: str, topic_id: int, partition: int, first: int, table: str = MESSAGES) -> FilesWriter:
        """Writes the files of one range into this lake."""
        options = self.place.storage_options
        return FilesWriter(self.place.uri, table, topic, topic_id, partition, first, storage_options=options)

    def position(self, topic_id: int, partition: int, table: str = MESSAGES) -> int | None:
        """The offset to be archived next, or None if nothing of the partition was: the least of its tables' positions.

        For partitions of `__events` the table is `events`.
        """
        key = PartitionKey(topic_id, partition)
        names = TABLES_OF[table]
        spans = [span for name in names for span in self._tables[name].held([key]).values()]
        if not spans:
            return None
        # A table that knows nothing of the partition still lacks it from the first offset on.
        return min(span.end if len(spans) == len(names) else span.first for span in spans)

    def snapshot(self) -> Snapshot:
        """All tables, each at its newest version; `gaps` last, so that no message is in neither."""
        views = {name: self._tables[name].at() for name in (META, MESSAGES, EVENTS, GAPS)}
        return Snapshot(
            versions={name: view.version for name, view in views.items()},
            spans={name: view.spans() for name, view in views.items()},
        )

    def files(
        self,
        table: str,
        topic: str | None = None,
        days: Collection[date] | None = None,
        version: int | None = None,
        *,
        key: PartitionKey | None = None,
        offsets: tuple[int, int] | None = None,
    ) -> list[str]:
        """The files of a table for Spark's own Parquet reader, with `base_uri` as its option `basePath`.

        As Hadoop takes paths: whole, with the scheme, and not percent-encoded (a `%2F` in them is part of a name).
        `key` and `offsets` (first, end) leave out files that cannot hold such rows; others in them may differ.
        """
        view = self._tables[table].at(version)
        chosen = view.files(topic=topic, days=days, key=key, offsets=offsets)
        return [f"{view.place.spark_uri}/{file.path}" for file in chosen]

    def base_uri(self, table: str) -> str:
        """The directory below which Spark finds `topic` and `dt` in the names of directories."""
        return self._tables[table].place.spark_uri

    def gaps(self, version: int | None = None) -> list[Gap]:
        return read_gaps(self._tables[GAPS].at(version))

    def commit(self, files: Iterable[DataFile], gaps: Sequence[Gap], ranges: Sequence[Range]) -> Committed:
        """Add the files of ranges that begin where the lake ends; those it has are skipped, so a batch may come twice.

        Each range must hold every offset once, as a row or in a gap (events: any rows). On a hole, on a range that is
        half archived or on missing rows it raises, and no table changes. Only a race with another archive, which the
        lock prevents, can leave `meta` behind `messages`; then `heal` makes it good.
        """
        by_table = _by_table(files, ranges)
        _check_rows(by_table, gaps, ranges)
        taken: list[Range] = []
        skipped: list[Range] = []
        versions: dict[str, int] = {}
        for kind, tables in TABLES_OF.items():
            offered = [one for one in ranges if one.table == kind]
            if not offered:
                continue
            keys = {one.key for one in offered}
            wanted = {one.key for name in tables for one in fit(offered, self._tables[name].held(keys)).taken}
            self._note(versions, GAPS, add_gaps(self._tables[GAPS], [gap for gap in gaps if gap.key in wanted]))
            for at, name in enumerate(tables):
                done = self._append(name, by_table[name], offered, versions)
                if at == 0:
                    taken += done.taken
                    skipped += done.skipped
        return Committed(tuple(taken), tuple(skipped), versions)

    def heal(self) -> Healed:
        """Make good what a crash left: torn ends of logs go, and rows that `meta` lacks are made from `messages`.

        For the archive job, under its lock, before it asks for positions. Files that no log names are left to vacuum.
        """
        removed = self._remove_torn()
        for table in self._tables.values():
            delta_log.sync_all(table.place)
        messages, meta = self._tables[MESSAGES].at(), self._tables[META].at()
        ends = meta.spans()
        healed = []
        for key, span in messages.spans().items():
            start = ends[key].end if key in ends else span.first
            if start < span.end:
                healed.append(self._fill_meta(messages, key, start, span.end))
        return Healed(tuple(removed), tuple(healed))

    def _append(
        self, name: str, files: Mapping[Range, list[DataFile]], offered: Sequence[Range], versions: dict[str, int]
    ) -> Committed:
        done = Committed((), ())

        def plan(view: TableView) -> Change:
            nonlocal done
            fitting = fit(offered, view.held(one.key for one in offered))
            done = Committed(fitting.taken, fitting.skipped)
            adds = [file.file for one in fitting.taken for file in files.get(one, ())]
            return Change(adds=adds, spans=fitting.spans)

        self._note(versions, name, self._tables[name].change(plan))
        return done

    def _fill_meta(self, messages: TableView, key: PartitionKey, first: int, end: int) -> Range:
        sources = messages.files(key=key, offsets=(first, end))
        topic = next((file.topic for file in sources if file.topic is not None), "")
        options = self.place.storage_options
        missing = Range(topic, key.topic_id, key.partition, first, end)
        with FilesWriter(
            self.place.uri, MESSAGES, topic, key.topic_id, key.partition, first, storage_options=options, tables=[META]
        ) as writer:
            for file in sources:
                for batch in read_rows(messages.place, file.path, messages.columns_in_files()):
                    writer.write(of_partition(batch, key, first, end))
            files = writer.finish(end)
        self._append(META, {missing: files}, [missing], {})
        return missing

    def _remove_torn(self) -> list[str]:
        if not self.place.is_local:
            return []
        removed = []
        with RepairLock(self.place):
            for name, table in self._tables.items():
                torn = delta_log.remove_torn(table.place)
                if torn:
                    table.forget()
                removed += [f"{name}/{file}" for file in torn]
        return removed

    @staticmethod
    def _note(versions: dict[str, int], name: str, version: int | None) -> None:
        if version is not None:
            versions[name] = version


def _by_table(files: Iterable[DataFile], ranges: Sequence[Range]) -> dict[str, dict[Range, list[DataFile]]]:
    owners = {(name, one.key, one.first, one.end): one for one in ranges for name in TABLES_OF[one.table]}
    found: dict[str, dict[Range, list[DataFile]]] = {name: {} for name in SCHEMAS}
    for file in files:
        owner = owners.get((file.table, PartitionKey(file.topic_id, file.partition), file.first, file.end))
        if owner is None:
            raise NotNextError(f"{file.table}/{file.path} belongs to none of the ranges that were offered")
        found[file.table].setdefault(owner, []).append(file)
    return found


def _check_rows(
    by_table: Mapping[str, Mapping[Range, list[DataFile]]], gaps: Sequence[Gap], ranges: Sequence[Range]
) -> None:
    absent = runs_by_partition(gaps)
    for one in ranges:
        if one.table != MESSAGES:
            continue
        whole = Runs.of([(one.first, one.end)])
        expected = whole.without(absent.get(one.key, EMPTY)).total
        for name in TABLES_OF[one.table]:
            files = by_table[name].get(one, [])
            rows = sum(file.rows for file in files)
            if rows != expected:
                raise RowsMissingError(
                    f"{one.topic}, partition {one.partition}, offsets {one.first} to {one.end}:"
                    f" {expected} rows were to come for {name}, {rows} came"
                )
            for file in files:
                least, greatest = file.bounds("offset")
                if least < one.first or greatest >= one.end:
                    raise RowsMissingError(f"{name}/{file.path} holds offsets beyond its range")
