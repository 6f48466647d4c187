"""Compaction, vacuum and retention."""

import threading
from datetime import date, timedelta

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from lakemq.cli.failure import describe
from lakemq.pipeline.lake import (
    EVENTS,
    MESSAGES,
    META,
    Lake,
    PartitionKey,
    RetentionTooShortError,
    Span,
    compact,
    retire,
    vacuum,
    verify,
)
from lakemq.pipeline.lake import maintenance as maintenance_module
from pipeline.lake.fix_lake import NOON, TOPIC, Archive

KEY = PartitionKey(7, 0)
DAY = timedelta(days=1)


def by_offset(rows):
    return sorted(rows, key=lambda row: (row["partition"], row["offset"]))


def test_small_files_become_one_and_the_rows_stay_the_same(archive):
    for first in range(0, 40, 10):
        archive.put(first, first + 10)
        archive.put(first, first + 10, partition=1)
    before = {table: by_offset(archive.rows(table)) for table in (MESSAGES, META)}
    positions = archive.lake.snapshot().spans
    done = list(compact(archive.lake))
    assert [(one.table, one.files, one.rows) for one in done] == [(MESSAGES, 8, 80), (META, 8, 80)]
    assert all(one.version is not None and one.bytes_after < one.bytes_before for one in done)
    assert len(archive.paths()) == 1
    assert {table: by_offset(archive.rows(table)) for table in (MESSAGES, META)} == before
    assert archive.lake.snapshot().spans == positions
    assert verify(archive.lake).is_whole


def test_a_compacted_file_is_as_easy_to_search(archive):
    archive.put(0, 10)
    archive.put(10, 20)
    list(compact(archive.lake))
    (file,) = archive.lake.table(MESSAGES).at().files()
    assert (file.offsets, file.partitions, file.topic_ids, file.rows) == ((0, 19), (0, 0), (7, 7), 20)
    group = pq.read_metadata(archive.paths()[0]).row_group(0)
    columns = [group.column(at) for at in range(group.num_columns)]
    assert {column.path_in_schema for column in columns if column.bloom_filter_offset} == {"key", "messageId"}
    assert archive.rows()[0]["offset"] == 0  # in order, so that the page index finds offsets


def test_topics_and_days_stay_apart(archive):
    for first in (0, 2):
        archive.put(first, first + 2, step=DAY)
        archive.put(first, first + 2, topic="a/b", topic_id=8)
    done = list(compact(archive.lake, tables=[MESSAGES]))
    assert [(one.topic, one.day, one.files) for one in done] == [("a/b", NOON.date(), 2)]
    assert archive.offsets(topic="a/b") == [0, 1, 2, 3]
    assert len(list((archive.path / MESSAGES).rglob("compacted-*"))) == 1
    assert "topic=a%2Fb" in str(next((archive.path / MESSAGES).rglob("compacted-*")))


def test_only_what_was_asked_for_is_compacted(archive):
    for first in (0, 10):
        archive.put(first, first + 10)
        archive.put(first, first + 10, topic="other", topic_id=8)
    assert {one.topic for one in compact(archive.lake, topic="other")} == {"other"}
    assert list(compact(archive.lake, days=[date(2024, 1, 1)])) == []
    assert list(compact(archive.lake, files_min=3)) == []


def test_files_near_the_target_are_left_alone_and_bins_do_not_pass_it(archive):
    for first in range(0, 60, 10):
        archive.put(first, first + 10)
    size = archive.lake.table(MESSAGES).at().files()[0].size
    assert list(compact(archive.lake, tables=[MESSAGES], target_bytes=size)) == []
    done = list(compact(archive.lake, tables=[MESSAGES], target_bytes=size * 2 + size // 2))
    assert [one.files for one in done] == [2, 2, 2]


def test_events_are_compacted_too(archive):
    for first in (0, 10):
        archive.put_events(first, first + 10, topics=("a", "b"))
    assert [(one.table, one.topic, one.rows) for one in compact(archive.lake)] == [(EVENTS, "a", 10), (EVENTS, "b", 10)]
    assert sorted(row["eventOffset"] for row in archive.rows(EVENTS)) == list(range(20))
    assert archive.lake.position(1, 0, EVENTS) == 20


def test_compaction_while_the_archive_runs(archive):
    stop = threading.Event()
    compacted = []

    def keep_compacting():
        lake = Lake.open(archive.path)
        while not stop.is_set():
            compacted.extend(compact(lake))

    worker = threading.Thread(target=keep_compacting)
    worker.start()
    try:
        for first in range(0, 200, 10):
            archive.put(first, first + 10)
    finally:
        stop.set()
        worker.join()
    assert [one for one in compacted if one.version is not None]
    assert archive.offsets(MESSAGES) == archive.offsets(META) == list(range(200))
    assert verify(archive.lake).is_whole


def test_of_two_compactions_one_steps_back(archive, monkeypatch):
    archive.put(0, 10)
    archive.put(10, 20)
    other = Lake.open(archive.path)
    real = maintenance_module.copy_rows

    def copy_while_another_compacts(*arguments, **named):
        monkeypatch.setattr(maintenance_module, "copy_rows", real)
        list(compact(other, tables=[MESSAGES]))
        return real(*arguments, **named)

    monkeypatch.setattr(maintenance_module, "copy_rows", copy_while_another_compacts)
    (done,) = compact(archive.lake, tables=[MESSAGES])
    assert done.version is None
    assert archive.offsets() == list(range(20))
    assert len(list((archive.path / MESSAGES).rglob("compacted-*"))) == 1


def test_vacuum_removes_what_no_version_needs_and_nothing_else(archive):
    archive.put(0, 10, topic="a/b%")
    archive.put(10, 20, topic="a/b%")
    archive.stage(20, 30, topic="a/b%")  # a killed task's
    list(compact(archive.lake))
    assert [len(one.paths) for one in vacuum(archive.lake)] == [0, 0, 0, 0]
    planned = vacuum(archive.lake, retention_hours=0, force=True, dry_run=True)
    assert [(one.table, len(one.paths)) for one in planned][:2] == [(MESSAGES, 3), (META, 3)]
    assert len(list((archive.path / MESSAGES).rglob("topic=*/**/*.parquet"))) == 4
    vacuum(archive.lake, retention_hours=0, force=True)
    found = {str(path) for path in (archive.path / MESSAGES).rglob("topic=*/**/*.parquet")}
    assert found == set(archive.paths())
    archive.put(20, 30, topic="a/b%")
    assert archive.offsets() == list(range(30))
    assert verify(archive.lake).is_whole


def test_a_vacuum_that_would_take_files_in_use_is_refused(archive):
    with pytest.raises(RetentionTooShortError, match="0 hours") as refused:
        vacuum(archive.lake, retention_hours=0)
    assert "force it" in describe(refused.value)


def test_old_days_are_dropped_whole_and_positions_stay(archive):
    archive.put(0, 6, step=DAY)  # noon of the first to the sixth of March
    archive.put(0, 6, step=DAY, partition=1)
    now = NOON + 5 * DAY
    planned = retire(archive.lake, {MESSAGES: 2 * DAY}, now=now, dry_run=True)
    assert [(one.before, one.files, one.rows, one.version) for one in planned] == [(date(2025, 3, 4), 6, 6, None)]
    assert archive.offsets() == sorted([*range(6), *range(6)])
    (done,) = retire(archive.lake, {MESSAGES: 2 * DAY}, now=now)
    assert (done.files, done.rows) == (6, 6)
    assert archive.offsets(MESSAGES) == [3, 3, 4, 4, 5, 5]
    assert len(archive.offsets(META)) == 12
    assert archive.lake.position(7, 0) == 6
    assert archive.lake.snapshot().spans[MESSAGES] == {KEY: Span(3, 6), PartitionKey(7, 1): Span(3, 6)}
    assert verify(archive.lake).is_whole
    archive.put(6, 8, step=DAY)
    assert verify(archive.lake).is_whole


def test_retention_finds_where_partitions_begin_in_compacted_files(archive):
    for partition, count in ((0, 10), (1, 4)):
        archive.put(0, count, partition=partition)
    list(compact(archive.lake))
    archive.put(10, 20, start=NOON + DAY)
    retire(archive.lake, {MESSAGES: timedelta(0), META: timedelta(0)}, now=NOON + DAY)
    assert archive.lake.snapshot().spans[META] == {KEY: Span(10, 20), PartitionKey(7, 1): Span(4, 4)}
    assert verify(archive.lake).is_whole


def test_retention_of_one_topic_leaves_the_others(archive):
    archive.put(0, 3)
    archive.put(0, 3, topic="other", topic_id=8)
    retire(archive.lake, {MESSAGES: DAY, META: DAY, EVENTS: DAY}, topic="other", now=NOON + 9 * DAY)
    assert archive.offsets(topic=TOPIC) == [0, 1, 2]
    assert archive.offsets(topic="other") == []
    assert archive.lake.position(8, 0) == 3
    assert verify(archive.lake).is_whole


def test_retention_with_nothing_old_changes_nothing(archive):
    archive.put(0, 3)
    (done,) = retire(archive.lake, {MESSAGES: DAY}, now=NOON)
    assert (done.files, done.version) == (0, None)


def test_foreign_compaction_does_no_harm(archive):
    """Somebody else's tools may work on the tables too."""
    archive.put(0, 10, topic="a/b%|c")
    archive.put(10, 20, topic="a/b%|c")
    DeltaTable(archive.path / MESSAGES).optimize.compact()
    archive.put(20, 30, topic="a/b%|c")
    assert archive.offsets(topic="a/b%|c") == list(range(30))
    assert Archive(archive.path).lake.position(7, 0) == 30
    assert verify(archive.lake).is_whole
