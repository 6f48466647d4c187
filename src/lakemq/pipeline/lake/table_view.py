"""One Delta table as it was at one version: files, columns and positions that belong together."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import date
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable

from lakemq.pipeline.lake import delta_log
from lakemq.pipeline.lake.layout import PARTITIONED_BY, is_partitioned
from lakemq.pipeline.lake.place import Place
from lakemq.pipeline.lake.ranges import PartitionKey, Span


@dataclass(frozen=True, slots=True)
class ActiveFile:
    """A data file that the table consists of. Bounds are (least, greatest), or None if the log does not say."""

    path: str  # below the table's directory, as it is on disk
    size: int
    rows: int
    topic: str | None
    dt: date | None
    topic_ids: tuple[int, int] | None
    partitions: tuple[int, int] | None
    offsets: tuple[int, int] | None

    def may_hold(self, key: PartitionKey) -> bool:
        return _holds(self.topic_ids, key.topic_id) and _holds(self.partitions, key.partition)

    def may_overlap(self, first: int, end: int) -> bool:
        return self.offsets is None or (self.offsets[0] < end and self.offsets[1] >= first)


class TableView:
    """Reads nothing newer than its version, whatever others commit meanwhile."""

    def __init__(
        self, name: str, place: Place, cluster: str, loaded: DeltaTable, transactions: delta_log.Transactions
    ) -> None:
        self.name = name
        self.place = place
        self.version = loaded.version()
        self._cluster = cluster
        self._loaded = loaded
        self._transactions = transactions

    def schema(self) -> pa.Schema:
        """The table's columns, those that we do not know among them."""
        return pa.schema(self._loaded.schema().to_arrow())

    def columns_in_files(self) -> pa.Schema:
        """The columns that are inside the files, those that we do not know among them."""
        if not is_partitioned(self.name):
            return self.schema()
        return pa.schema([field for field in self.schema() if field.name not in PARTITIONED_BY])

    def held(self, keys: Iterable[PartitionKey]) -> dict[PartitionKey, Span]:
        """What the table holds of these partitions; one of which it never held anything is left out."""
        known = self._transactions.at(self.version)
        found = {}
        for key in keys:
            end = known.get(app_id(self._cluster, key))
            if end is not None:
                found[key] = Span(known.get(first_app_id(self._cluster, key), 0), end)
        return found

    def spans(self) -> dict[PartitionKey, Span]:
        """What the table holds of all partitions."""
        prefix = _prefix(self._cluster)
        ends: dict[PartitionKey, int] = {}
        firsts: dict[PartitionKey, int] = {}
        for app, number in self._transactions.at(self.version).items():
            if app.startswith(prefix):
                topic_id, partition, *rest = app.removeprefix(prefix).split("/")
                (firsts if rest else ends)[PartitionKey(int(topic_id), int(partition))] = number
        return {key: Span(firsts.get(key, 0), end) for key, end in sorted(ends.items())}

    def files(
        self,
        *,
        topic: str | None = None,
        days: Collection[date] | None = None,
        key: PartitionKey | None = None,
        offsets: tuple[int, int] | None = None,
    ) -> list[ActiveFile]:
        """The files that may hold such rows, by partition and offset; `offsets` are (first, end)."""
        chosen = [
            file
            for file in _active_files(self._loaded)
            if (topic is None or file.topic == topic)
            and (days is None or file.dt in days)
            and (key is None or file.may_hold(key))
            and (offsets is None or file.may_overlap(*offsets))
        ]
        unknown = (-1, -1)
        chosen.sort(key=lambda file: (file.topic_ids or unknown, file.partitions or unknown, file.offsets or unknown))
        return chosen


def app_id(cluster: str, key: PartitionKey) -> str:
    """The name under which a partition's position stands in the log."""
    return f"{_prefix(cluster)}{key.topic_id}/{key.partition}"


def first_app_id(cluster: str, key: PartitionKey) -> str:
    """The same for the first offset that the table still holds."""
    return app_id(cluster, key) + "/first"


def _prefix(cluster: str) -> str:
    return f"lakemq/{cluster}/"


def _holds(bounds: tuple[int, int] | None, value: int) -> bool:
    return bounds is None or bounds[0] <= value <= bounds[1]


def _active_files(table: DeltaTable) -> list[ActiveFile]:
    rows = pa.table(table.get_add_actions(flatten=True))
    names = set(rows.column_names)

    def column(name: str) -> list[Any]:
        return list(rows.column(name).to_pylist()) if name in names else [None] * rows.num_rows

    def bounds(name: str) -> list[tuple[int, int] | None]:
        pairs = zip(column(f"min.{name}"), column(f"max.{name}"), strict=True)
        return [None if least is None or greatest is None else (least, greatest) for least, greatest in pairs]

    return [
        # In the log paths are URIs; on disk they are what that decodes to.
        ActiveFile(unquote(path), size, count or 0, topic, day, ids, partitions, offsets)
        for path, size, count, topic, day, ids, partitions, offsets in zip(
            column("path"),
            column("size_bytes"),
            column("num_records"),
            column("partition.topic"),
            column("partition.dt"),
            bounds("topicId"),
            bounds("partition"),
            bounds("offset"),
            strict=True,
        )
    ]
