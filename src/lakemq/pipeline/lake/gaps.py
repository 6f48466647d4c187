"""The table `gaps`: offsets that the lake does not have and never will, each with the reason.

Rows are added before the messages around them are, or are erased; adding what is there already changes nothing.
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

import pyarrow as pa

from lakemq.pipeline import schema
from lakemq.pipeline.lake.data_files import OpenFile
from lakemq.pipeline.lake.offset_runs import EMPTY, Runs
from lakemq.pipeline.lake.ranges import Gap, PartitionKey
from lakemq.pipeline.lake.rows import read_rows
from lakemq.pipeline.lake.table import Change, Table
from lakemq.pipeline.lake.table_view import TableView

ERASED = "erased"


def read_gaps(view: TableView) -> list[Gap]:
    """All gaps at a version."""
    found = []
    for file in view.files():
        for batch in read_rows(view.place, file.path, schema.GAPS):
            found += [
                Gap(
                    topic=row["topic"],
                    topic_id=row["topicId"],
                    partition=row["partition"],
                    first=row["offset"],
                    end=row["end"],
                    reason=row["reason"],
                    timestamp=row["timestamp"],
                )
                for row in batch.to_pylist()
            ]
    return found


def add_gaps(table: Table, gaps: Sequence[Gap]) -> int | None:
    """Add what of these is not there yet; returns the version, or None if nothing was new."""
    if not gaps:
        return None

    def plan(view: TableView) -> Change | None:
        new = _not_held(gaps, read_gaps(view))
        if not new:
            return None
        file = OpenFile(table.place, schema.GAPS, None, None, name="gaps")
        file.add(_as_batch(new))
        return Change(adds=[file.close()])

    return table.change(plan)


def runs_by_partition(gaps: Iterable[Gap], *, reason: str | None = None) -> dict[PartitionKey, Runs]:
    """The offsets of gaps, of one reason or of any, each once."""
    found: dict[PartitionKey, Runs] = {}
    for gap in gaps:
        if reason is None or gap.reason == reason:
            found[gap.key] = found.get(gap.key, EMPTY) + Runs.of([(gap.first, gap.end)])
    return {key: runs.once() for key, runs in found.items()}


def _not_held(wanted: Sequence[Gap], held: Sequence[Gap]) -> list[Gap]:
    known: dict[tuple[PartitionKey, str], Runs] = {}
    for gap in held:
        at = (gap.key, gap.reason)
        known[at] = known.get(at, EMPTY) + Runs.of([(gap.first, gap.end)])
    new = []
    now = datetime.now(UTC)
    for gap in wanted:
        at = (gap.key, gap.reason)
        before = known.get(at, EMPTY)
        found_at = gap.timestamp or now
        for first, end in Runs.of([(gap.first, gap.end)]).without(before):
            new.append(Gap(gap.topic, gap.topic_id, gap.partition, first, end, gap.reason, found_at))
        known[at] = before + Runs.of([(gap.first, gap.end)])
    return new


def _as_batch(gaps: Sequence[Gap]) -> pa.RecordBatch:
    columns = {
        "topic": [gap.topic for gap in gaps],
        "topicId": [gap.topic_id for gap in gaps],
        "partition": [gap.partition for gap in gaps],
        "offset": [gap.first for gap in gaps],
        "end": [gap.end for gap in gaps],
        "reason": [gap.reason for gap in gaps],
        "timestamp": [gap.timestamp for gap in gaps],
    }
    return pa.RecordBatch.from_pydict(columns, schema=schema.GAPS)
