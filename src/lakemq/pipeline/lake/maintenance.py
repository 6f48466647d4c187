"""What keeps a lake quick and small: small files made large, old days dropped, files that nobody needs removed.

All of it may run while the archive does; positions stay, whatever goes.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from itertools import groupby

import pyarrow as pa

from lakemq.pipeline.lake.errors import RetentionTooShortError
from lakemq.pipeline.lake.layout import EVENTS, MESSAGES, META, SCHEMAS, is_partitioned
from lakemq.pipeline.lake.ranges import PartitionKey, Span
from lakemq.pipeline.lake.rewriting import copy_rows, replace
from lakemq.pipeline.lake.rows import offsets_by_partition, read_rows
from lakemq.pipeline.lake.store import Lake
from lakemq.pipeline.lake.table import Change, Table
from lakemq.pipeline.lake.table_view import ActiveFile, TableView

TARGET_BYTES = 256 << 20
VACUUM_HOURS = 168  # longer than any batch or query: what they still use must not go
VACUUM_HOURS_MIN = 1
DATA_TABLES = (MESSAGES, META, EVENTS)
_OFFSETS = pa.schema([("topicId", pa.int32()), ("partition", pa.int32()), ("offset", pa.int64())])


@dataclass(frozen=True, slots=True)
class Compacted:
    """Files of one topic and day that became one. `version` None: others changed them meanwhile, nothing was done."""

    table: str
    topic: str
    day: date
    files: int
    rows: int
    bytes_before: int
    bytes_after: int
    version: int | None


@dataclass(frozen=True, slots=True)
class Vacuumed:
    """The files that were removed, or with `dry_run` would be."""

    table: str
    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Retired:
    """The days that were dropped from a table, or with `dry_run` would be: all before `before`."""

    table: str
    before: date
    files: int
    rows: int
    version: int | None


def compact(
    lake: Lake,
    *,
    tables: Collection[str] = DATA_TABLES,
    topic: str | None = None,
    days: Collection[date] | None = None,
    target_bytes: int = TARGET_BYTES,
    files_min: int = 2,
) -> Iterator[Compacted]:
    """Make files of about `target_bytes` out of smaller ones, one topic and day at a time; yields after each commit.

    Does nothing unless it is iterated over. `files_min`: how many small files are worth the work.
    """
    for name in tables:
        table = lake.table(name)
        for sources in _small_files(table.at(), topic, days, target_bytes, files_min):
            yield merge(table, sources)


def merge(table: Table, sources: Sequence[ActiveFile]) -> Compacted:
    """Put one file in the place of several of one topic and day."""
    new = copy_rows(table.at(), sources, name="compacted")
    assert new is not None, "files with rows have become one without"
    version = replace(table, sources, [new], moves_data=False)
    topic, day = sources[0].topic, sources[0].dt
    assert topic is not None
    assert day is not None
    return Compacted(
        table=table.name,
        topic=topic,
        day=day,
        files=len(sources),
        rows=sum(file.rows for file in sources),
        bytes_before=sum(file.size for file in sources),
        bytes_after=new.size,
        version=version,
    )


def vacuum(
    lake: Lake,
    *,
    retention_hours: int = VACUUM_HOURS,
    dry_run: bool = False,
    force: bool = False,
) -> list[Vacuumed]:
    """Remove files that no version of the last hours names: replaced, retired, erased, or left by killed tasks.

    Older versions cannot be read afterwards. Less than an hour is refused unless forced: it takes files that the
    archive job has written and not yet committed, and those that queries are reading.
    """
    if retention_hours < VACUUM_HOURS_MIN and not force:
        raise RetentionTooShortError(f"a retention of {retention_hours} hours was asked for")
    removed = []
    for name in SCHEMAS:
        table = lake.table(name)
        removed.append(Vacuumed(name, tuple(table.vacuum(retention_hours, dry_run=dry_run))))
        if not dry_run:
            table.clean_up()
    return removed


def retire(
    lake: Lake,
    ages: Mapping[str, timedelta],
    *,
    topic: str | None = None,
    now: datetime | None = None,
    dry_run: bool = False,
) -> list[Retired]:
    """Drop whole days that are older than their table's age. Positions stay; vacuum frees the space later."""
    today = (now or datetime.now(UTC)).astimezone(UTC)
    return [_retire(lake, name, (today - age).date(), topic, dry_run) for name, age in ages.items()]


def _retire(lake: Lake, name: str, before: date, topic: str | None, dry_run: bool) -> Retired:
    assert is_partitioned(name), f"{name} has no days"
    dropped: list[ActiveFile] = []
    ends: dict[str, dict[PartitionKey, int]] = {}  # by path: what a file held does not change

    def plan(view: TableView) -> Change:
        dropped[:] = [file for file in view.files(topic=topic) if file.dt is not None and file.dt < before]
        spans = {} if dry_run or name == EVENTS else _spans_without(view, dropped, ends)
        return Change(removes=dropped, spans=spans)

    version = None
    if dry_run:
        plan(lake.table(name).at())
    else:
        version = lake.table(name).change(plan)
    return Retired(name, before, len(dropped), sum(file.rows for file in dropped), version)


def _spans_without(
    view: TableView, dropped: Sequence[ActiveFile], ends: dict[str, dict[PartitionKey, int]]
) -> dict[PartitionKey, Span]:
    """Where each partition begins once these files are gone: times never go back in it, so its oldest part goes."""
    firsts: dict[PartitionKey, int] = {}
    for file in dropped:
        if file.path not in ends:
            ends[file.path] = _ends_in(view, file)
        for key, end in ends[file.path].items():
            firsts[key] = max(end, firsts.get(key, 0))
    held = view.held(firsts)
    return {key: Span(max(span.first, firsts[key]), span.end) for key, span in held.items()}


def _ends_in(view: TableView, file: ActiveFile) -> dict[PartitionKey, int]:
    found: dict[PartitionKey, int] = {}
    for batch in read_rows(view.place, file.path, _OFFSETS):
        for key, runs in offsets_by_partition(batch).items():
            found[key] = max(int(runs.ends.max(initial=0)), found.get(key, 0))
    return found


def _small_files(
    view: TableView, topic: str | None, days: Collection[date] | None, target_bytes: int, files_min: int
) -> Iterator[list[ActiveFile]]:
    def place_of(file: ActiveFile) -> tuple[str, date]:
        return file.topic or "", file.dt or date.min

    small = [file for file in view.files(topic=topic, days=days) if file.size < target_bytes * 3 // 4]
    for _, group in groupby(sorted(small, key=place_of), key=place_of):
        gathered: list[ActiveFile] = []
        for file in group:
            if sum(one.size for one in gathered) + file.size > target_bytes:
                if len(gathered) >= files_min:
                    yield gathered
                gathered = []
            gathered.append(file)
        if len(gathered) >= files_min:
            yield gathered
