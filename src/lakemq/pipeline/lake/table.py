"""One Delta table: made, opened, and changed by compare-and-set.

A change is planned on a version and lands right after it or not at all: whoever loses a race plans again on what the
other left. A change that has returned survives a power loss (local disks).
The position of each partition is a `txn` action in the same commit as the files that moved it.
"""

import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Schema, Transaction
from deltalake.exceptions import CommitFailedError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from lakemq.pipeline.lake import delta_log
from lakemq.pipeline.lake.data_files import NewFile
from lakemq.pipeline.lake.errors import LakeBusyError, LakeNotFoundError, SchemaClashError
from lakemq.pipeline.lake.layout import PARTITIONED_BY, SCHEMAS, is_partitioned
from lakemq.pipeline.lake.place import Place
from lakemq.pipeline.lake.ranges import PartitionKey, Span
from lakemq.pipeline.lake.table_view import ActiveFile, TableView, app_id, first_app_id

TRIES = 20
CHECKPOINT_EVERY = 20  # versions; opening a table takes as long as the entries since, a checkpoint as the files
CLEAN_UP_EVERY = 1000
_CONFIGURATION = {"delta.logRetentionDuration": "interval 2 days"}  # a batch every ten seconds fills a directory soon
# Both are done by us: a checkpoint has to be synced before entries may go.
_NO_HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)


@dataclass(frozen=True, slots=True)
class Change:
    """What a commit does. `moves_data` False: the rows stay the same, they are only laid out anew."""

    adds: Sequence[NewFile] = ()
    removes: Sequence[ActiveFile] = ()
    spans: Mapping[PartitionKey, Span] = field(default_factory=dict)
    moves_data: bool = True


class Table:
    """A table by its name and place."""

    def __init__(self, lake: Place, name: str, cluster: str) -> None:
        self.name = name
        self.place = lake.child(name)
        self._cluster = cluster
        self._partition_by = list(PARTITIONED_BY) if is_partitioned(name) else []
        self._loaded: DeltaTable | None = None
        self._is_fresh = False  # nothing was committed by us since it was loaded
        self._transactions = delta_log.Transactions(self.place)

    def create(self) -> None:
        """Make the table if it is not there, and give it the columns that it lacks."""
        options = dict(self.place.storage_options)
        if not DeltaTable.is_deltatable(self.place.delta_uri, options):
            self.place.make_directory("")
            DeltaTable.create(
                self.place.delta_uri,
                SCHEMAS[self.name],
                mode="ignore",
                partition_by=self._partition_by,
                configuration=_CONFIGURATION,
                storage_options=options,
            )
            delta_log.sync(self.place, [0])
        self._add_missing_columns()

    def at(self, version: int | None = None) -> TableView:
        """The table at a version, the newest if none is named."""
        return self._view(self._load(version))

    def held(self, keys: Iterable[PartitionKey]) -> dict[PartitionKey, Span]:
        """What the newest version holds of these partitions; one of which it never held anything is left out."""
        return self._view(self._newest()).held(keys)

    def forget(self) -> None:
        """Look at the log from its beginning next time: it was repaired."""
        self._loaded = None
        self._transactions = delta_log.Transactions(self.place)

    def change(self, plan: Callable[[TableView], Change | None]) -> int | None:
        """Commit what `plan` makes of the newest version and return the one that it became; None if it makes nothing.

        On a conflict `plan` is called again: what it found before may no longer be so.
        """
        for attempt in range(TRIES):
            # Whoever has just asked what is held need not wait again; if that is outdated, the commit fails.
            table = self._loaded if self._loaded is not None and self._is_fresh else self._newest()
            self._is_fresh = False
            based_on = table.version()
            wanted = plan(self._view(table))
            if wanted is None or not (wanted.adds or wanted.removes or wanted.spans):
                return None
            try:
                self._commit(table, wanted)
            except CommitFailedError:
                self._lost_race(attempt)
                continue
            self._make_last(based_on)
            return based_on + 1
        raise LakeBusyError(f"{self.place.uri}: {TRIES} tries to commit met another change each time")

    def checkpoint(self) -> None:
        """Write the table's state as one file, so that readers need not walk the log."""
        table = self._newest()
        table.create_checkpoint()
        delta_log.sync_checkpoint(self.place, table.version())
        self._loaded = None  # loaded anew it has fewer entries to carry along

    def clean_up(self) -> None:
        """Remove log entries older than the log's retention that a checkpoint makes needless."""
        self.checkpoint()
        self._newest().cleanup_metadata()

    def vacuum(self, retention_hours: int, *, dry_run: bool) -> list[str]:
        """Remove files that no version of the last hours names; returns their paths."""
        for attempt in range(TRIES):
            try:
                removed = self._newest().vacuum(
                    retention_hours=retention_hours,
                    dry_run=dry_run,
                    enforce_retention_duration=False,
                    post_commithook_properties=_NO_HOOKS,
                    full=True,
                )
                delta_log.sync_all(self.place)
                return removed
            except CommitFailedError:
                self._lost_race(attempt)
        raise LakeBusyError(f"{self.place.uri}: could not be vacuumed while others changed it")

    def _newest(self) -> DeltaTable:
        # Kept and brought up to date: to load it whole takes time that grows with the table.
        if self._loaded is None:
            self._loaded = self._load(None)
        else:
            self._loaded.update_incremental()
        self._is_fresh = True
        return self._loaded

    def _load(self, version: int | None) -> DeltaTable:
        try:
            return DeltaTable(self.place.delta_uri, version=version, storage_options=dict(self.place.storage_options))
        except TableNotFoundError as error:
            raise LakeNotFoundError(f"{self.place.uri} is not a table") from error

    def _view(self, table: DeltaTable) -> TableView:
        return TableView(self.name, self.place, self._cluster, table, self._transactions)

    def _commit(self, table: DeltaTable, wanted: Change) -> None:
        now_ms = int(time.time() * 1000)
        actions: list[AddAction | RemoveAction] = [
            AddAction(file.path, file.size, self._values(file.topic, file.dt), now_ms, wanted.moves_data, file.stats)
            for file in wanted.adds
        ]
        for old in wanted.removes:
            values = self._values(old.topic, None if old.dt is None else old.dt.isoformat())
            actions.append(RemoveAction(old.path, wanted.moves_data, now_ms, old.size, values))
        moved = self._moved(self._view(table), wanted.spans)
        table.create_write_transaction(
            actions,
            "append",
            table.schema(),
            partition_by=self._partition_by,
            commit_properties=CommitProperties(
                custom_metadata={delta_log.ACTION_COUNT: len(actions) + len(moved)},
                max_commit_retries=0,  # a blind retry would land on a version that nobody looked at
                app_transactions=moved,
            ),
            post_commithook_properties=_NO_HOOKS,
        )

    def _values(self, topic: str | None, dt: str | None) -> dict[str, str | None]:
        return {"topic": topic, "dt": dt} if self._partition_by else {}

    def _moved(self, view: TableView, spans: Mapping[PartitionKey, Span]) -> list[Transaction]:
        held = view.held(spans)
        moved = []
        for key, span in spans.items():
            before = held.get(key)
            if before is None or before.end != span.end:
                moved.append(Transaction(app_id(self._cluster, key), span.end))
            if before is None or before.first != span.first:
                moved.append(Transaction(first_app_id(self._cluster, key), span.first))
        return moved

    def _make_last(self, based_on: int) -> None:
        self._is_fresh = False
        version = based_on + 1
        # From the one we built on: whoever made it may have been killed before it could sync.
        delta_log.sync(self.place, [based_on, version])
        if version % CLEAN_UP_EVERY == 0:
            self.clean_up()
        elif version % CHECKPOINT_EVERY == 0:
            self.checkpoint()

    def _lost_race(self, attempt: int) -> None:
        self._loaded = None
        time.sleep(random.uniform(0, min(0.5, 0.01 * 2**attempt)))  # so that two who collided do not again

    def _add_missing_columns(self) -> None:
        for attempt in range(TRIES):
            table = self._newest()
            missing = self._missing_columns(self._view(table).schema())
            if not missing:
                return
            based_on = table.version()
            try:
                table.alter.add_columns(
                    Schema.from_arrow(pa.schema(missing)).fields,
                    commit_properties=CommitProperties(max_commit_retries=0),
                    post_commithook_properties=_NO_HOOKS,
                )
            except CommitFailedError:
                self._lost_race(attempt)
                continue
            self._make_last(based_on)
        raise LakeBusyError(f"{self.place.uri}: new columns could not be added while others changed it")

    def _missing_columns(self, present: pa.Schema) -> list[pa.Field]:
        missing = []
        for column in SCHEMAS[self.name]:
            if column.name not in present.names:
                missing.append(column)
            elif present.field(column.name).type != column.type:
                held = present.field(column.name).type
                raise SchemaClashError(
                    f"{self.place.uri}: column {column.name} is {held}, and {column.type} is written here"
                )
        return missing
