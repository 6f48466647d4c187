"""Rows moved from some files of a table into new ones, and the new ones put in the old ones' place."""

from collections.abc import Callable, Sequence

import pyarrow as pa

from lakemq.pipeline.lake.data_files import NewFile, OpenFile
from lakemq.pipeline.lake.rows import read_rows
from lakemq.pipeline.lake.table import Change, Table
from lakemq.pipeline.lake.table_view import ActiveFile, TableView


def copy_rows(
    view: TableView,
    sources: Sequence[ActiveFile],
    keep: Callable[[pa.RecordBatch], pa.RecordBatch] | None = None,
    *,
    name: str,
) -> NewFile | None:
    """Write the rows of files of one topic and day, or what `keep` leaves of them, into one file; None if none is."""
    first = sources[0]
    day = None if first.dt is None else first.dt.isoformat()
    columns = view.columns_in_files()
    file = OpenFile(view.place, columns, first.topic, day, name=name)
    try:
        for source in sources:
            for batch in read_rows(view.place, source.path, columns):
                file.add(batch if keep is None else keep(batch))
        return file.close() if file.row_count else None
    except BaseException:
        file.abort()
        raise


def replace(table: Table, old: Sequence[ActiveFile], new: Sequence[NewFile], *, moves_data: bool) -> int | None:
    """Put new files in the place of old ones; None if an old one is gone meanwhile: then the new ones are removed."""
    gone = {file.path for file in old}
    outdated = False

    def plan(view: TableView) -> Change | None:
        nonlocal outdated
        # deltalake takes the removal of a file that is not there; then the new one would double its rows.
        outdated = not gone <= {file.path for file in view.files()}
        return None if outdated else Change(adds=new, removes=old, moves_data=moves_data)

    version = table.change(plan)  # if it raises, the commit may have landed all the same: the files are left to vacuum
    if outdated:
        named = {file.path for file in table.at().files()}
        for file in new:
            if file.path not in named:
                table.place.remove(file.path)
    return version
