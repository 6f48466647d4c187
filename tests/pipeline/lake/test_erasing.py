"""Messages removed by their keys."""

import pytest

from lakemq.pipeline.lake import MESSAGES, META, Gap, Lake, PartitionKey, Range, compact, erase, vacuum, verify
from lakemq.pipeline.lake import erasing as erasing_module
from lakemq.pipeline.lake.gaps import ERASED
from pipeline.lake.fix_lake import NOON, TOPIC, Archive, Killed, killed, message_batch

KEY = PartitionKey(7, 0)


def keys(archive, table):
    return {row["key"] for row in archive.rows(table)}


def test_rows_with_the_keys_go_from_both_tables(archive):
    archive.put(0, 10)  # offset n has key n % 5
    archive.put(10, 20)
    report = erase(archive.lake, ["key-1", "key-3"])
    assert keys(archive, MESSAGES) == keys(archive, META) == {"key-0", "key-2", "key-4"}
    assert report.rows == 8
    assert [(one.table, one.rows, one.files) for one in report.tables] == [(MESSAGES, 8, 2), (META, 8, 2)]
    assert all(one.versions for one in report.tables)
    assert "vacuum" in report.next_step
    assert report.offsets[(TOPIC, KEY)][:2] == ((1, 2), (3, 4))


def test_the_rest_stays_as_it_was_and_provable(archive):
    archive.put(0, 20)
    rest = [row for row in archive.rows() if row["key"] != "key-2"]
    erase(archive.lake, ["key-2"])
    assert archive.rows() == rest
    report = verify(archive.lake)
    assert report.is_whole, report.problems
    assert report.erased_offsets == 4
    assert archive.lake.position(7, 0) == 20
    archive.put(20, 30)
    assert verify(archive.lake).is_whole


def test_removed_offsets_are_noted_as_runs(archive):
    archive.put(0, 10, keys=1)
    archive.put(10, 20, keys=1000)
    erase(archive.lake, ["key-0", "key-11", "key-12"])
    found = [(gap.first, gap.end, gap.reason) for gap in archive.lake.gaps()]
    assert sorted(found) == [(0, 10, ERASED), (11, 13, ERASED)]


def test_a_dry_run_tells_and_changes_nothing(archive):
    archive.put(0, 10)
    before, rows = archive.lake.snapshot(), archive.rows()
    planned = erase(archive.lake, ["key-1"], dry_run=True)
    assert (planned.rows, planned.dry_run) == (2, True)
    assert [one.files for one in planned.tables] == [1, 1]
    assert (archive.lake.snapshot(), archive.rows()) == (before, rows)
    assert erase(archive.lake, ["key-1"]).offsets == planned.offsets


def test_one_topic_only(archive):
    archive.put(0, 10)
    archive.put(0, 10, topic="other/one", topic_id=8)
    erase(archive.lake, ["key-1"], "other/one")
    assert archive.offsets(topic=TOPIC) == list(range(10))
    assert archive.offsets(topic="other/one") == [0, 2, 3, 4, 5, 7, 8, 9]
    assert verify(archive.lake).is_whole


def test_a_file_with_nothing_left_goes_whole(archive):
    archive.put(0, 10, keys=1)
    erase(archive.lake, ["key-0"])
    assert archive.paths() == []
    assert verify(archive.lake).is_whole


def test_erasing_again_finds_nothing(archive):
    archive.put(0, 10)
    erase(archive.lake, ["key-1"])
    before = archive.lake.snapshot()
    again = erase(archive.lake, ["key-1"])
    assert again.rows == 0
    assert archive.lake.snapshot() == before


def test_a_key_that_nobody_has_changes_nothing(archive):
    archive.put(0, 10)
    before = archive.lake.snapshot()
    assert erase(archive.lake, ["nobody"]).rows == 0
    assert archive.lake.snapshot() == before


def test_only_files_that_hold_the_key_are_rewritten(archive):
    archive.put(0, 10, keys=1000)
    archive.put(10, 20, keys=1000)
    before = set(archive.paths())
    erase(archive.lake, ["key-15"])
    assert len(before & set(archive.paths())) == 1


def test_after_vacuum_the_key_is_nowhere_on_disk(archive):
    archive.put(0, 10, keys=1000)
    erase(archive.lake, ["key-9"])
    assert on_disk(archive, b"key-9")
    vacuum(archive.lake, retention_hours=0, force=True)
    assert not on_disk(archive, b"key-9")
    assert verify(archive.lake).is_whole


def on_disk(archive, text):
    return [path for path in archive.path.rglob("*") if path.is_file() and text in path.read_bytes()]


def test_files_compacted_meanwhile_are_found_again(archive, monkeypatch):
    archive.put(0, 10)
    archive.put(10, 20)
    other, real = Lake.open(archive.path), erasing_module.replace

    def replace_after_compaction(*arguments, **named):
        monkeypatch.setattr(erasing_module, "replace", real)
        list(compact(other))
        return real(*arguments, **named)

    monkeypatch.setattr(erasing_module, "replace", replace_after_compaction)
    report = erase(archive.lake, ["key-1"])
    assert report.rows == 4
    assert keys(archive, MESSAGES) == keys(archive, META) == {"key-0", "key-2", "key-3", "key-4"}
    assert verify(archive.lake).is_whole


def test_files_archived_meanwhile_are_looked_at_too(archive, monkeypatch):
    archive.put(0, 10)
    other, real = Archive(archive.path), erasing_module.replace

    def replace_after_archiving(*arguments, **named):
        monkeypatch.setattr(erasing_module, "replace", real)
        other.put(10, 20)
        return real(*arguments, **named)

    monkeypatch.setattr(erasing_module, "replace", replace_after_archiving)
    assert erase(archive.lake, ["key-1"]).rows == 4
    assert verify(archive.lake).is_whole


def test_an_erasure_that_was_killed_shows_and_can_be_finished(archive, monkeypatch):
    archive.put(0, 10)
    with monkeypatch.context() as patch:
        patch.setattr(erasing_module, "replace", killed)
        with pytest.raises(Killed):
            erase(archive.lake, ["key-1"])
    assert {problem.what for problem in verify(archive.lake).problems} == {"erased but there"}
    erase(archive.lake, ["key-1"])
    assert verify(archive.lake).is_whole
    assert [gap.end - gap.first for gap in archive.lake.gaps()] == [1, 1]


def test_rows_without_a_key_stay(archive):
    with archive.lake.writer(TOPIC, 7, 0, 0) as writer:
        writer.write(message_batch(0, 4).drop_columns(["key"]))
        files = writer.finish(4)
    archive.lake.commit(files, [], [Range(TOPIC, 7, 0, 0, 4)])
    archive.put(4, 8)
    erase(archive.lake, ["key-4", ""])
    assert archive.offsets() == [0, 1, 2, 3, 5, 6, 7]


def test_other_gaps_and_erased_ones_live_side_by_side(archive):
    archive.put(0, 10, absent=range(3), gaps=[Gap(TOPIC, 7, 0, 0, 3, "retention", NOON)])
    erase(archive.lake, ["key-4"])
    report = verify(archive.lake)
    assert report.is_whole, report.problems
    assert (report.gap_offsets, report.erased_offsets) == (5, 2)
