"""Batches in, Parquet files out."""

import json
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakemq.pipeline.lake import EVENTS, MESSAGES, META, DataFile, FilesWriter, RowsMissingError
from pipeline.lake.fix_lake import NOON, TOPIC, event_batch, message_batch

MIDNIGHT = datetime(2025, 3, 2, tzinfo=UTC)


def write(path, *batches, end=None, **kind):
    with FilesWriter(path, MESSAGES, TOPIC, 7, 0, 0, **kind) as writer:
        for batch in batches:
            writer.write(batch)
        return writer.finish(sum(batch.num_rows for batch in batches) if end is None else end)


def read(path, file):
    return pq.ParquetFile(path / file.table / file.path).read()


def test_the_same_batches_fill_messages_and_meta(tmp_path):
    files = write(tmp_path, message_batch(0, 10))
    assert [file.table for file in files] == [MESSAGES, META]
    messages, meta = (read(tmp_path, file) for file in files)
    assert messages["offset"] == meta["offset"]
    assert "value" not in meta.column_names
    assert "headers" not in meta.column_names
    assert meta["valueBytes"].to_pylist() == [len(value) for value in messages["value"].to_pylist()]


def test_what_the_directories_say_is_not_in_the_files(tmp_path):
    file = write(tmp_path, message_batch(0, 3))[0]
    assert file.path.startswith("topic=shop.orders/dt=2025-03-01/")
    assert not {"topic", "dt"} & set(read(tmp_path, file).column_names)


def test_rows_keep_all_they_came_with(tmp_path):
    batch = message_batch(0, 10)
    file = write(tmp_path, batch)[0]
    assert read(tmp_path, file).to_pylist() == batch.to_pylist()


def test_a_range_over_midnight_has_a_file_for_each_day(tmp_path):
    files = write(tmp_path, message_batch(0, 10, start=MIDNIGHT - timedelta(seconds=4)))
    assert [(file.table, file.dt, file.rows) for file in files if file.table == MESSAGES] == [
        (MESSAGES, "2025-03-01", 4),
        (MESSAGES, "2025-03-02", 6),
    ]
    assert {(file.first, file.end) for file in files} == {(0, 10)}


def test_the_last_microsecond_of_a_day_is_of_that_day(tmp_path):
    batch = message_batch(0, 2, start=MIDNIGHT - timedelta(microseconds=1), step=timedelta(microseconds=1))
    assert [file.dt for file in write(tmp_path, batch) if file.table == META] == ["2025-03-01", "2025-03-02"]


def test_days_may_come_in_any_order(tmp_path):
    batch = message_batch(0, 4, step=timedelta(days=1)).take(pa.array([3, 0, 2, 1]))
    files = [file for file in write(tmp_path, batch, batch) if file.table == MESSAGES]
    assert sorted((file.dt, file.rows) for file in files) == [(f"2025-03-0{day}", 2) for day in (1, 2, 3, 4)]


def test_times_before_1970_have_days_too(tmp_path):
    batch = message_batch(0, 1, start=datetime(1969, 12, 31, 23, tzinfo=UTC))
    assert {file.dt for file in write(tmp_path, batch)} == {"1969-12-31"}


def test_rows_gather_into_large_row_groups(tmp_path):
    batches = [message_batch(first, first + 100) for first in range(0, 1000, 100)]
    by_size = {}
    for group_bytes in (1, 3 * batches[0].nbytes, 1 << 30):
        file = write(tmp_path, *batches, group_bytes=group_bytes)[0]
        assert read(tmp_path, file)["offset"].to_pylist() == list(range(1000))
        by_size[group_bytes] = pq.read_metadata(tmp_path / MESSAGES / file.path).num_row_groups
    assert list(by_size.values()) == [10, 4, 1]


def test_statistics_bound_the_rows(tmp_path):
    half = timedelta(microseconds=500)
    file = write(tmp_path, message_batch(5, 9, start=NOON + half), message_batch(9, 12, start=NOON + half))[0]
    stats = json.loads(file.stats)
    assert stats["numRecords"] == file.rows == 7
    assert file.bounds("offset") == (5, 11)
    assert stats["nullCount"]["offset"] == 0
    assert stats["minValues"]["timestamp"] == "2025-03-01T12:00:05.000Z"
    assert stats["maxValues"]["timestamp"] == "2025-03-01T12:00:11.001Z"


def test_the_log_never_learns_a_key(tmp_path):
    assert all("key-" not in file.to_json() for file in write(tmp_path, message_batch(0, 10)))


def test_files_can_be_looked_up_by_key_and_id(tmp_path):
    for file in write(tmp_path, message_batch(0, 10)):
        group = pq.read_metadata(tmp_path / file.table / file.path).row_group(0)
        columns = {group.column(at).path_in_schema: group.column(at) for at in range(group.num_columns)}
        assert columns["key"].statistics.min == "key-0"
        assert columns["key"].compression == "ZSTD"
        assert columns["offset"].has_offset_index
        assert columns["offset"].has_column_index
        if file.table == MESSAGES:
            assert not columns["value"].is_stats_set


def test_bloom_filters_are_written_for_keys_and_ids(tmp_path):
    for file in write(tmp_path, message_batch(0, 10)):
        group = pq.read_metadata(tmp_path / file.table / file.path).row_group(0)
        columns = [group.column(at) for at in range(group.num_columns)]
        assert {column.path_in_schema for column in columns if column.bloom_filter_offset} == {"key", "messageId"}


def test_a_file_survives_the_way_through_json(tmp_path):
    for file in write(tmp_path, message_batch(0, 3)):
        assert DataFile.from_json(file.to_json()) == file


def test_every_file_has_a_name_of_its_own(tmp_path):
    files = write(tmp_path, message_batch(0, 3)) + write(tmp_path, message_batch(0, 3))
    assert len({(file.table, file.path) for file in files}) == 4


def test_missing_columns_become_null_and_unknown_ones_are_left_out(tmp_path):
    batch = message_batch(0, 3).drop_columns(["topicId", "tags"]).append_column("mood", pa.array(["good"] * 3))
    rows = read(tmp_path, write(tmp_path, batch)[0])
    assert rows["topicId"].to_pylist() == [7, 7, 7]
    assert rows["tags"].to_pylist() == [None] * 3
    assert "mood" not in rows.column_names


def test_a_row_without_a_time_is_refused(tmp_path):
    batch = message_batch(0, 2)
    blank = batch.set_column(
        batch.schema.get_field_index("timestamp"), "timestamp", pa.nulls(2, pa.timestamp("us", "UTC"))
    )
    with pytest.raises(RowsMissingError, match="timestamp"):
        write(tmp_path, blank)


def test_a_task_that_fails_leaves_no_files(tmp_path):
    def task():
        with FilesWriter(tmp_path, MESSAGES, TOPIC, 7, 0, 0, group_bytes=1) as writer:
            writer.write(message_batch(0, 100))
            assert list(tmp_path.rglob("*.parquet"))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        task()
    assert not list(tmp_path.rglob("*.parquet"))


def test_a_range_without_rows_has_no_files(tmp_path):
    assert write(tmp_path, end=10) == []


def test_events_go_to_the_topics_they_are_about(tmp_path):
    with FilesWriter(tmp_path, EVENTS, "__events", 1, 0, 0) as writer:
        writer.write(event_batch(0, 7, topics=("a", "b/c")))
        files = writer.finish(7)
    assert [(file.topic, file.topic_id, file.partition, file.rows) for file in files] == [
        ("a", 1, 0, 4),
        ("b/c", 1, 0, 3),
    ]
    rows = read(tmp_path, files[1])
    assert rows["eventOffset"].to_pylist() == [1, 3, 5]
    assert rows["topicId"].to_pylist() == [7, 7, 7]
    assert "topic" not in rows.column_names


def test_events_about_many_topics_do_not_gather_in_memory_without_bound(tmp_path):
    topics = [f"t{number}" for number in range(20)]
    batch = event_batch(0, 2000, topics=topics)
    with FilesWriter(tmp_path, EVENTS, "__events", 1, 0, 0, group_bytes=batch.nbytes // 4) as writer:
        writer.write(batch)
        assert sum(file.buffered_bytes for file in writer._open.values()) <= batch.nbytes // 2
        assert sum(file.rows for file in writer.finish(2000)) == 2000
