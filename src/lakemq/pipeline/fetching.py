"""A range of a partition as Arrow batches: fetched block by block, taken apart in the task that wants it."""

from collections.abc import Iterator

import pyarrow as pa

from lakemq.pipeline.arrow import Columns
from lakemq.pipeline.columns import Block, Opened
from lakemq.pipeline.door import door
from lakemq.pipeline.errors import DataLossError
from lakemq.pipeline.options import Server
from lakemq.pipeline.planning import Range


def read_range(server: Server, one: Range, types: pa.Schema, group: str = "") -> Iterator[pa.RecordBatch]:
    """The messages of a range that is at the broker; each offset once, or an error."""
    for opened in open_range(server, one, group):
        columns = Columns(opened, one.topic, one.partition, one.topic_id)
        del opened
        batch = columns.all_of(types)
        del columns  # what the batch is made of is gone while it is sent, and it when the next one is made
        yield batch
        del batch


def open_range(server: Server, one: Range, group: str = "") -> Iterator[Opened]:
    """The same as rows."""
    broker, at = door(server), one.first
    asked = broker.ask(one.topic, one.partition, at, one.end, group)
    while at < one.end:
        block = Block(broker.take(asked))
        if not block.first_index <= at < block.next_index:
            raise _broken(one, at, block.first_index)
        if block.next_index < one.end:
            asked = broker.ask(one.topic, one.partition, block.next_index, one.end, group)
        for opened in block.opened():
            rows = opened.rows
            first, count = int(rows["index"][0]), len(rows)
            if first + count != opened.next_index or first > at:
                raise _broken(one, at, first)
            skip, stop = at - first, min(count, one.end - first)
            if skip < stop:
                at = first + stop
                yield opened if (skip, stop) == (0, count) else Opened(rows[skip:stop], opened.arena, at)
            del opened, rows  # a piece may be large: it is gone before the next one is opened


def _broken(one: Range, at: int, first: int) -> DataLossError:
    return DataLossError(f"{one.topic}, partition {one.partition}: the block for offset {at} begins at {first}")
