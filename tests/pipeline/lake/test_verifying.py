"""Damage planted on purpose, and found."""

import os
from dataclasses import replace
from datetime import timedelta

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakemq.pipeline.lake import EVENTS, MESSAGES, META, Gap, PartitionKey, Range, verify
from lakemq.pipeline.lake import verifying as verifying_module
from lakemq.pipeline.lake.table import Change
from pipeline.lake.fix_lake import NOON, TOPIC, Archive, event_batch, message_batch

KEY = PartitionKey(7, 0)


@pytest.fixture
def full(archive):
    """Two partitions in several files, a gap, a second topic and some events."""
    archive.put(0, 10, start=NOON + timedelta(hours=11, minutes=59, seconds=55))
    archive.put(10, 30, absent=range(12, 15), gaps=[Gap(TOPIC, 7, 0, 12, 15, "retention", NOON)])
    archive.put(0, 20, partition=1)
    archive.put(5, 9, topic="a/b", topic_id=8)
    archive.put_events(0, 10)
    return archive


def problems(archive, **kind):
    return {
        (problem.what, problem.where.split(",")[0].split("/")[0]) for problem in verify(archive.lake, **kind).problems
    }


def change(archive, table, plan):
    archive.lake.table(table).change(plan)


def rewrite(path, edit):
    """Change a file's rows behind the log's back, with the same number of rows."""
    file = pq.ParquetFile(path)
    rows = file.read()
    file.close()
    pq.write_table(edit(rows), path)


def test_a_whole_lake_is_found_whole(full):
    report = verify(full.lake)
    assert report.is_whole, report.problems
    assert report.rows == {MESSAGES: 51, META: 51, EVENTS: 10}
    assert (report.partitions, report.gap_offsets, report.erased_offsets, report.unsummed) == (4, 3, 0, 0)
    assert report.files == 11
    assert report.bytes == sum(os.path.getsize(path) for name in (MESSAGES, META, EVENTS) for path in full.paths(name))


def test_an_empty_lake_is_whole(archive):
    assert verify(archive.lake).is_whole


def test_a_missing_file(full):
    os.unlink(full.paths()[0])
    assert problems(full) == {("missing file", MESSAGES), ("missing", MESSAGES), ("only in meta", META)}


def test_a_damaged_file(full):
    path = full.paths()[0]
    with open(path, "r+b") as file:
        file.seek(60)
        file.write(b"\xff" * 40)
    assert ("unreadable file", MESSAGES) in problems(full)


@pytest.mark.parametrize("left", [0, 10])
def test_a_cut_file(full, left):
    os.truncate(full.paths()[0], left)
    assert ("unreadable file", MESSAGES) in problems(full)


@pytest.mark.parametrize("table", [MESSAGES, META])
def test_a_file_that_the_log_no_longer_names(full, table):
    change(full, table, lambda view: Change(removes=view.files(topic=TOPIC)[:1]))
    assert ("missing", table) in problems(full)


@pytest.mark.parametrize("table", [MESSAGES, META])
def test_a_doubled_file(full, table):
    files, _ = full.stage(10, 13)
    change(full, table, lambda _: Change(adds=[file.file for file in files if file.table == table]))
    found = problems(full)
    assert ("twice", table) in found
    assert "2 offsets: 10-11" in str(verify(full.lake).problems)


@pytest.mark.parametrize("table", [MESSAGES, META])
def test_a_doubled_row_in_place_of_another(full, table):
    rewrite(full.paths(table)[0], lambda rows: rows.take(pa.array([0, *range(rows.num_rows - 1)])))
    found = problems(full)
    assert ("twice", table) in found
    assert ("missing", table) in found


def test_a_changed_value(full):
    def edit(rows):
        values = [b"forged", *rows["value"].to_pylist()[1:]]
        return rows.set_column(rows.schema.get_field_index("value"), "value", pa.array(values, pa.binary()))

    rewrite(full.paths()[-1], edit)
    assert problems(full) == {("checksum", MESSAGES)}
    assert "1 values are not what they were, the first at 5" in str(verify(full.lake).problems[0])


def test_meta_that_lacks_rows(full):
    # Position and files of `meta` moved on, a row did not come along.
    rewrite(full.paths(META)[0], lambda rows: rows.slice(1))
    assert problems(full) == {("row count", META), ("missing", META), ("not in meta", META)}


def test_meta_that_is_behind(full):
    files, offered = full.stage(30, 40)
    full.lake.table(MESSAGES).change(
        lambda view: Change(
            adds=[file.file for file in files if file.table == MESSAGES],
            spans={KEY: view.held([KEY])[KEY]._replace(end=offered.end)},
        )
    )
    assert problems(full) == set()  # a commit is on its way, or `heal` will make it good
    full.lake.heal()
    assert full.lake.position(7, 0) == 40
    assert verify(full.lake).is_whole


def test_a_partition_that_meta_knows_nothing_of(archive):
    files, offered = archive.stage(0, 10)
    archive.lake._append(MESSAGES, {offered: [file for file in files if file.table == MESSAGES]}, [offered], {})
    assert problems(archive) == {("behind", META)}


def test_rows_in_the_wrong_day(full):
    def add_days(rows):
        later = pa.compute.add(rows["timestamp"], pa.scalar(timedelta(days=2)))
        return rows.set_column(rows.schema.get_field_index("timestamp"), "timestamp", later)

    rewrite(full.paths(META)[0], add_days)
    assert problems(full) == {("wrong day", META)}


def test_rows_beyond_the_position(full):
    files, _ = full.stage(30, 33)
    for table in (MESSAGES, META):
        adds = [file.file for file in files if file.table == table]
        change(full, table, lambda _, adds=adds: Change(adds=adds))
    assert problems(full) == {("beyond", MESSAGES), ("beyond", META)}


def test_rows_below_the_first_offset(full):
    files, _ = full.stage(2, 5, topic="a/b", topic_id=8)
    change(full, MESSAGES, lambda _: Change(adds=[file.file for file in files if file.table == MESSAGES]))
    assert problems(full) == {("beyond", MESSAGES)}


def test_events_beyond_the_position(full):
    files = [replace(file, first=10, end=12) for file in _staged_events(full)]
    change(full, EVENTS, lambda _: Change(adds=[file.file for file in files]))
    assert problems(full) == {("beyond", EVENTS)}


def _staged_events(archive):
    with archive.lake.writer("__events", 1, 0, 10, EVENTS) as writer:
        writer.write(event_batch(10, 12))
        return writer.finish(12)


def test_rows_that_say_not_whose_they_are(full):
    def forget(rows):
        at = rows.schema.get_field_index("offset")
        return rows.set_column(at, "offset", pa.array([None, *rows["offset"].to_pylist()[1:]], pa.int64()))

    rewrite(full.paths()[-1], forget)
    assert ("nameless rows", MESSAGES) in problems(full)


def test_a_lost_gap_row(full):
    change(full, "gaps", lambda view: Change(removes=view.files()))
    assert problems(full) == {("missing", MESSAGES), ("missing", META)}


def test_positions_that_the_broker_was_told_must_have_been_reached(full):
    assert problems(full, expected={KEY: 30, PartitionKey(8, 0): 9, PartitionKey(1, 0): 10}) == set()
    assert problems(full, expected={KEY: 31}) == {("behind", MESSAGES)}
    assert problems(full, expected={PartitionKey(99, 0): 1}) == {("behind", MESSAGES)}


def test_a_lake_that_is_only_behind_is_told_from_one_that_has_lost_something(full):
    behind = verify(full.lake, {KEY: 40}, kept={KEY: 10})
    assert (behind.is_whole, behind.is_only_behind) == (False, True)
    gone = verify(full.lake, {KEY: 40}, kept={KEY: 35})
    assert [problem.what for problem in gone.problems] == ["gone"]
    assert not gone.is_only_behind
    rewrite(full.paths(META)[0], lambda rows: rows.slice(1))
    assert not verify(full.lake, {KEY: 40}).is_only_behind
    assert not verify(full.lake).is_only_behind


def test_the_list_of_problems_is_bounded_and_their_number_is_not(archive, monkeypatch):
    monkeypatch.setattr(verifying_module, "PROBLEMS_MAX", 2)
    for partition in range(4):
        archive.put(0, 2, partition=partition)
    for path in archive.paths():
        os.unlink(path)
    report = verify(archive.lake)
    assert len(report.problems) == 2
    assert report.problem_count == 12
    assert not report.is_whole


def test_runs_are_joined_before_they_fill_the_memory(archive, monkeypatch):
    monkeypatch.setattr(verifying_module, "_RUNS_MAX", 3)
    gaps = [Gap(TOPIC, 7, 0, offset, offset + 1, "retention", NOON) for offset in range(1, 40, 2)]
    archive.put(0, 40, absent=range(1, 40, 2), gaps=gaps)
    archive.put(40, 50)
    assert verify(archive.lake).is_whole
    files, _ = archive.stage(40, 43)
    change(archive, MESSAGES, lambda _: Change(adds=[file.file for file in files if file.table == MESSAGES]))
    assert problems(archive) == {("twice", MESSAGES)}


def test_rows_without_a_checksum_are_counted(archive):
    with archive.lake.writer(TOPIC, 7, 0, 0) as writer:
        writer.write(message_batch(0, 4).drop_columns(["crc"]))
        files = writer.finish(4)
    archive.lake.commit(files, [], [Range(TOPIC, 7, 0, 0, 4)])
    report = verify(archive.lake)
    assert report.is_whole
    assert report.unsummed == 4


def test_progress_is_told(full):
    told = []
    verify(full.lake, progress=lambda done, total: told.append((done, total)))
    assert told == [(done, 11) for done in range(1, 12)]


def test_a_lake_can_be_verified_while_it_grows(archive, monkeypatch):
    archive.put(0, 10)
    other, real = Archive(archive.path), verifying_module.read_rows

    def read_while_it_grows(*arguments):
        monkeypatch.setattr(verifying_module, "read_rows", real)
        other.put(10, 20)
        return real(*arguments)

    monkeypatch.setattr(verifying_module, "read_rows", read_while_it_grows)
    report = verify(archive.lake)
    assert report.is_whole
    assert report.rows[MESSAGES] == 10
