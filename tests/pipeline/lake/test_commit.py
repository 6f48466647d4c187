"""Commits: each message once, whoever offers it and how often."""

import contextlib
import os
import threading
from datetime import timedelta

import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st

from lakemq.pipeline.lake import (
    EVENTS,
    GAPS,
    MESSAGES,
    META,
    Gap,
    HalfArchivedError,
    Lake,
    LakeBusyError,
    LakeError,
    NotNextError,
    PartitionKey,
    Range,
    RowsMissingError,
    Span,
)
from lakemq.pipeline.lake import table as table_module
from lakemq.pipeline.lake.ranges import fit
from pipeline.lake.fix_lake import NOON, TOPIC, Archive, message_batch

KEY = PartitionKey(7, 0)


def versions(archive):
    return archive.lake.snapshot().versions


def test_rows_and_position_come_together(archive):
    assert archive.lake.position(7, 0) is None
    done = archive.put(0, 10)
    assert archive.offsets(MESSAGES) == archive.offsets(META) == list(range(10))
    assert archive.lake.position(7, 0) == 10
    assert done.versions == {MESSAGES: 1, META: 1}
    assert [one.end for one in done.taken] == [10]


def test_the_same_batch_committed_twice_changes_nothing(archive):
    files, offered = archive.stage(0, 10)
    archive.lake.commit(files, [], [offered])
    before = versions(archive)
    again = archive.lake.commit(files, [], [offered])
    assert again.skipped == (offered,)
    assert again.taken == ()
    assert versions(archive) == before
    assert archive.offsets() == list(range(10))


def test_a_batch_that_ran_twice_leaves_one_copy(archive):
    archive.put(0, 10)
    archive.put(0, 10)  # the same rows in other files
    assert archive.offsets() == list(range(10))


def test_a_hole_is_refused(archive):
    archive.put(0, 10)
    before = versions(archive)
    with pytest.raises(NotNextError, match="offset 10 is the next"):
        archive.put(11, 20)
    assert versions(archive) == before


def test_a_range_that_is_half_there_is_refused(archive):
    archive.put(0, 10)
    before = versions(archive)
    with pytest.raises(HalfArchivedError, match="before 10"):
        archive.put(5, 15)
    assert versions(archive) == before


def test_one_bad_range_holds_back_the_whole_batch(archive):
    archive.put(0, 10)
    good, bad = archive.stage(0, 5, partition=1), archive.stage(12, 15)
    with pytest.raises(NotNextError):
        archive.lake.commit([*good[0], *bad[0]], [], [good[1], bad[1]])
    assert archive.lake.position(7, 1) is None


def test_ranges_of_one_partition_may_come_in_any_order(archive):
    staged = [archive.stage(first, first + 5) for first in (10, 0, 5)]
    archive.lake.commit([file for files, _ in staged for file in files], [], [offered for _, offered in staged])
    assert archive.offsets() == list(range(15))
    assert archive.lake.position(7, 0) == 15


def test_partitions_and_incarnations_of_a_topic_have_positions_of_their_own(archive):
    archive.put(0, 10)
    archive.put(0, 5, partition=1)
    archive.put(0, 3, topic_id=8)
    assert [archive.lake.position(*key) for key in ((7, 0), (7, 1), (8, 0))] == [10, 5, 3]


def test_a_partition_may_begin_where_the_broker_still_has_it(archive):
    archive.put(1000, 1010)
    assert archive.lake.snapshot().spans[MESSAGES] == {KEY: Span(1000, 1010)}


def test_a_file_that_belongs_to_no_range_is_refused(archive):
    files, _ = archive.stage(0, 10)
    with pytest.raises(NotNextError, match="none of the ranges"):
        archive.lake.commit(files, [], [Range(TOPIC, 7, 0, 0, 9)])


@pytest.mark.parametrize("lost", [MESSAGES, META])
def test_a_range_whose_files_were_lost_on_the_way_is_refused(archive, lost):
    files, offered = archive.stage(0, 10)
    with pytest.raises(RowsMissingError, match=f"10 rows were to come for {lost}, 0 came"):
        archive.lake.commit([file for file in files if file.table != lost], [], [offered])
    assert archive.lake.position(7, 0) is None


def test_rows_beyond_the_range_are_refused(archive):
    with archive.lake.writer(TOPIC, 7, 0, 0) as writer:
        writer.write(message_batch(1, 11))
        files = writer.finish(10)
    with pytest.raises(RowsMissingError, match="beyond its range"):
        archive.lake.commit(files, [], [Range(TOPIC, 7, 0, 0, 10)])


def test_what_the_broker_no_longer_had_is_noted_as_a_gap(archive):
    gap = Gap(TOPIC, 7, 0, 0, 4, "retention", NOON)
    archive.put(0, 10, absent=range(4), gaps=[gap])
    assert archive.lake.gaps() == [gap]
    assert archive.offsets() == list(range(4, 10))
    assert archive.lake.position(7, 0) == 10


def test_a_range_may_be_all_gap(archive):
    archive.lake.commit([], [Gap(TOPIC, 7, 0, 0, 10, "retention", NOON)], [Range(TOPIC, 7, 0, 0, 10)])
    assert archive.lake.position(7, 0) == 10
    archive.put(10, 20)
    assert archive.offsets() == list(range(10, 20))


def test_a_gap_offered_again_is_not_noted_again(archive):
    for end in (4, 4, 6):  # the broker drops more while the archive is down
        files, offered = archive.stage(0, 10, absent=range(end))
        gap = Gap(TOPIC, 7, 0, 0, end, "retention", NOON)
        archive.put_but_die_before(MESSAGES, files, [gap], [offered])
    assert [(gap.first, gap.end) for gap in archive.lake.gaps()] == [(0, 4), (4, 6)]


def test_gaps_of_a_refused_batch_are_not_noted(archive):
    archive.put(0, 10)
    with pytest.raises(NotNextError):
        archive.lake.commit([], [Gap(TOPIC, 7, 0, 20, 30, "retention")], [Range(TOPIC, 7, 0, 20, 30)])
    assert archive.lake.gaps() == []


def test_events_have_a_position_of_their_own(archive):
    archive.put(0, 10)
    archive.put_events(0, 6, topics=("a", "b"))
    archive.put_events(0, 6, topics=("a", "b"))
    archive.put_events(6, 9)
    assert archive.lake.position(1, 0, EVENTS) == 9
    assert sorted(row["eventOffset"] for row in archive.rows(EVENTS)) == list(range(9))
    assert len(archive.lake.files(EVENTS, topic="b")) == 1
    with pytest.raises(NotNextError):
        archive.put_events(10, 12)


def test_an_events_range_may_hold_no_events(archive):
    archive.lake.commit([], [], [Range("__events", 1, 0, 0, 5, EVENTS)])
    assert archive.lake.position(1, 0, EVENTS) == 5


def test_files_are_chosen_by_topic_day_partition_and_offset(archive):
    day = timedelta(days=1)
    archive.put(0, 4, step=day)
    archive.put(0, 4, partition=1)
    archive.put(0, 4, topic="other", topic_id=8)
    assert len(archive.lake.files(MESSAGES)) == 6
    assert len(archive.lake.files(MESSAGES, topic=TOPIC)) == 5
    assert len(archive.lake.files(MESSAGES, topic=TOPIC, days=[(NOON + day).date()])) == 1
    assert len(archive.lake.files(MESSAGES, key=PartitionKey(7, 0))) == 4
    assert len(archive.lake.files(MESSAGES, key=PartitionKey(7, 0), offsets=(1, 3))) == 2
    assert len(archive.lake.files(MESSAGES, days=[])) == 0
    assert all(uri.startswith(archive.lake.base_uri(MESSAGES) + "/topic=") for uri in archive.lake.files(MESSAGES))


def test_an_older_version_can_be_read(archive):
    archive.put(0, 10)
    then = archive.lake.snapshot()
    archive.put(10, 20)
    assert archive.offsets(version=then.versions[MESSAGES]) == list(range(10))
    assert then.positions() == {KEY: 10}
    assert archive.lake.table(MESSAGES).at(then.versions[MESSAGES]).spans() == {KEY: Span(0, 10)}


def test_a_snapshots_positions_belong_to_its_version(archive):
    """Live messages from the position on, archived ones from the version: together each once."""
    stop = threading.Event()
    seen = []

    def watch():
        lake = Lake.open(archive.path)
        while not stop.is_set():
            snapshot = lake.snapshot()
            files = lake.table(MESSAGES).at(snapshot.versions[MESSAGES]).files()
            seen.append((sum(file.rows for file in files), snapshot.positions().get(KEY, 0)))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        for first in range(0, 100, 10):
            archive.put(first, first + 10)
    finally:
        stop.set()
        watcher.join()
    assert all(rows == position for rows, position in seen)
    assert len({position for _, position in seen}) > 1


def test_positions_outlive_checkpoints_and_log_clean_up(archive, monkeypatch):
    monkeypatch.setattr(table_module, "CHECKPOINT_EVERY", 3)
    for first in range(0, 80, 10):
        archive.put(first, first + 10)
    archive.put(0, 10, partition=1)
    log = archive.path / MESSAGES / "_delta_log"
    assert (log / "_last_checkpoint").exists()
    newest = archive.lake.snapshot()
    DeltaTable(archive.path / MESSAGES).create_checkpoint()
    for entry in archive.log()[:-1]:
        entry.unlink()
    lake = Lake.open(archive.path)
    assert lake.snapshot() == newest
    assert lake.position(7, 0) == 80
    assert newest.positions() == {KEY: 80, PartitionKey(7, 1): 10}


def test_of_two_archives_that_race_one_wins_and_the_other_skips(archive, monkeypatch):
    other = Archive(archive.path)
    files, offered = other.stage(0, 10)
    _meanwhile(monkeypatch, archive.lake.table(MESSAGES), lambda: other.lake.commit(files, [], [offered]))
    done = archive.put(0, 10)
    assert done.skipped == (offered,)
    assert archive.offsets(MESSAGES) == archive.offsets(META) == list(range(10))


def test_of_two_archives_with_other_ranges_one_wins_and_the_other_fails(archive, monkeypatch):
    other = Archive(archive.path)
    _meanwhile(monkeypatch, archive.lake.table(MESSAGES), lambda: other.put(0, 7))
    with pytest.raises(HalfArchivedError):
        archive.put(0, 10)
    assert archive.offsets(MESSAGES) == archive.offsets(META) == list(range(7))


def test_a_commit_that_meets_another_starts_again(archive, monkeypatch):
    other = Archive(archive.path)
    _meanwhile(monkeypatch, archive.lake.table(MESSAGES), lambda: other.put(0, 5, partition=1))
    archive.put(0, 10)
    assert archive.lake.position(7, 0) == 10
    assert archive.lake.position(7, 1) == 5


def test_a_commit_gives_up_after_some_tries(archive, monkeypatch):
    other = Archive(archive.path)
    monkeypatch.setattr(table_module, "TRIES", 3)
    ends = iter(range(1, 100))

    def keep_busy():
        end = next(ends)
        other.put(end - 1, end, partition=1)

    _meanwhile(monkeypatch, archive.lake.table(MESSAGES), keep_busy, times=3)
    with pytest.raises(LakeBusyError, match="3 tries"):
        archive.put(0, 10)
    assert archive.lake.position(7, 0) is None


def _meanwhile(monkeypatch, table, act, times=1):
    """Let another act between the look at a table and the commit that is planned on it."""
    real, left = table._commit, [act] * times

    def commit(*arguments):
        if left:
            left.pop()()
        real(*arguments)

    monkeypatch.setattr(table, "_commit", commit)


def test_archives_in_threads_leave_each_message_once(tmp_path):
    """Without the lock, each with ranges of its own: whoever is refused begins anew, as a job that is started again."""
    archives = [Archive(tmp_path / "lake") for _ in range(3)]

    def work(archive, step):
        position = 0
        while position < 40:
            with contextlib.suppress(NotNextError):
                archive.put(position, min(40, position + step))
            with contextlib.suppress(NotNextError):
                archive.lake.heal()
            position = archive.lake.position(7, 0) or 0

    threads = [
        threading.Thread(target=work, args=(archive, step)) for archive, step in zip(archives, (5, 6, 7), strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert archives[0].offsets(MESSAGES) == archives[0].offsets(META) == list(range(40))


@pytest.fixture
def synced(monkeypatch):
    """The paths of all that was synced."""
    paths = set()
    monkeypatch.setattr(os, "fsync", lambda descriptor: paths.add(os.readlink(f"/proc/self/fd/{descriptor}")))
    return paths


def test_what_was_told_survives_a_power_loss(archive, synced):
    """Before `commit` returns, the data files, the log entries and all directories on the way were synced."""
    archive.put(0, 10)
    archive.put(10, 20)
    for table in (MESSAGES, META):
        root = archive.path / table
        wanted = {root, root / "_delta_log", *archive.log(table)[1:]}
        for file in map(type(root), archive.paths(table)):
            wanted |= {file, file.parent, file.parent.parent}
        assert {str(path) for path in wanted} <= synced


def test_a_checkpoint_survives_a_power_loss(archive, synced, monkeypatch):
    monkeypatch.setattr(table_module, "CHECKPOINT_EVERY", 2)
    archive.put(0, 10)
    archive.put(10, 20)
    log = archive.path / MESSAGES / "_delta_log"
    assert {str(path) for path in (*log.glob("*.checkpoint.parquet"), log / "_last_checkpoint")} <= synced


def test_a_killed_processes_entries_are_synced_by_the_next(archive, synced):
    archive.put(0, 10)
    synced.clear()
    Archive(archive.path).lake.heal()
    assert str(archive.log()[-1]) in synced


def test_a_new_lake_survives_a_power_loss(tmp_path, synced):
    Archive(tmp_path / "lake")
    for name in ("", "_lakemq", "_lakemq/format.json", MESSAGES, f"{GAPS}/_delta_log/{0:020d}.json"):
        assert str(tmp_path / "lake" / name).rstrip("/") in synced


RANGES = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 6), st.integers(0, 1)), min_size=1, max_size=12)


@given(RANGES)
def test_whatever_is_offered_each_offset_is_taken_once(offers):
    """Against the simplest thing that could be right: a list of the offsets taken."""
    held, taken = {}, {0: [], 1: []}
    for first, length, partition in offers:
        try:
            plan = fit([Range(TOPIC, 7, partition, first, first + length)], held)
        except NotNextError:
            continue
        held |= plan.spans
        for one in plan.taken:
            taken[partition] += range(one.first, one.end)
    for partition, offsets in taken.items():
        if offsets:
            span = held[PartitionKey(7, partition)]
            assert offsets == list(range(span.first, span.end))


@settings(max_examples=12, deadline=None)
@given(
    st.lists(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 5)), min_size=1, max_size=3), min_size=1, max_size=5)
)
def test_whatever_is_committed_each_offset_is_there_once(tmp_path_factory, batches):
    archive = Archive(tmp_path_factory.mktemp("lake") / "lake")
    first, position = None, None
    for batch in batches:
        staged = [archive.stage(start, start + length) for start, length in batch]
        before = archive.lake.snapshot()
        try:
            archive.lake.commit([file for files, _ in staged for file in files], [], [offered for _, offered in staged])
        except LakeError:
            assert archive.lake.snapshot() == before
        position = archive.lake.position(7, 0)
        if position is not None:
            first = archive.lake.snapshot().spans[MESSAGES][KEY].first
            assert archive.offsets(MESSAGES) == archive.offsets(META) == list(range(first, position))
        else:
            assert archive.offsets(MESSAGES) == []
