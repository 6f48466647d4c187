"""The rows of a table's files, a batch at a time: memory is bounded by one row group, whatever the table's size."""

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakemq.pipeline.lake.data_files import aligned
from lakemq.pipeline.lake.offset_runs import Runs
from lakemq.pipeline.lake.place import Place
from lakemq.pipeline.lake.ranges import PartitionKey

_BATCH_BYTES = 16 << 20
_BATCH_ROWS_MAX = 1 << 16


def read_rows(place: Place, path: str, columns: pa.Schema) -> Iterator[pa.RecordBatch]:
    """One file's rows with just these columns; those that an older file lacks are null. Checks the page checksums."""
    with (
        place.filesystem.open_input_file(path) as source,
        pq.ParquetFile(source, page_checksum_verification=True) as file,
    ):
        read = [name for name in columns.names if name in file.schema_arrow.names]
        for group in range(file.metadata.num_row_groups):
            facts = file.metadata.row_group(group)
            row_bytes = max(1, facts.total_byte_size // max(1, facts.num_rows))
            rows = min(_BATCH_ROWS_MAX, max(1, _BATCH_BYTES // row_bytes))
            for batch in file.iter_batches(batch_size=rows, row_groups=[group], columns=read):
                yield aligned(batch, columns)


def of_partition(batch: pa.RecordBatch, key: PartitionKey, first: int, end: int) -> pa.RecordBatch:
    """The rows of one partition with offsets from `first` to before `end`."""
    offsets = batch.column("offset")
    inside = pc.and_(pc.greater_equal(offsets, first), pc.less(offsets, end))
    return batch.filter(pc.and_(_is_of(batch, key), inside))


def offsets_by_partition(batch: pa.RecordBatch) -> dict[PartitionKey, Runs]:
    """Which offsets of which partitions a batch holds. Rows without an id, a partition or an offset are left out."""
    ids, partitions = batch.column("topicId"), batch.column("partition")
    keys = pa.table({"id": ids, "partition": partitions}).group_by(["id", "partition"]).aggregate([]).to_pylist()
    found = {}
    for one in keys:
        if one["id"] is None or one["partition"] is None:
            continue
        key = PartitionKey(one["id"], one["partition"])
        offsets = (batch if len(keys) == 1 else batch.filter(_is_of(batch, key))).column("offset").drop_null()
        found[key] = Runs.of_offsets(offsets.to_numpy(zero_copy_only=False))
    return found


def _is_of(batch: pa.RecordBatch, key: PartitionKey) -> pa.BooleanArray:
    return pc.and_(pc.equal(batch.column("topicId"), key.topic_id), pc.equal(batch.column("partition"), key.partition))
