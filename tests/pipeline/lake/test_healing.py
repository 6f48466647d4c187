"""What a crash leaves, and how it is made good."""

import json

import pytest

from lakemq.pipeline.lake import MESSAGES, META, DamagedLakeError, Gap, Lake, PartitionKey, Range, compact, verify
from lakemq.pipeline.lake import table as table_module
from pipeline.lake.fix_lake import NOON, TOPIC, Archive

KEY = PartitionKey(7, 0)


def put_but_die_before(archive, table, first, end, **kind):
    files, offered = archive.stage(first, end, **kind)
    archive.put_but_die_before(table, files, [], [offered])
    return files, offered


def test_a_job_killed_before_any_commit_leaves_nothing_but_orphans(archive):
    archive.put(0, 10)
    put_but_die_before(archive, MESSAGES, 10, 20)
    again = Archive(archive.path)
    assert again.lake.heal().ranges == ()
    assert again.lake.position(7, 0) == 10
    again.put(10, 20)
    assert verify(again.lake).is_whole


def test_meta_that_fell_behind_is_made_from_messages(archive):
    archive.put(0, 10)
    put_but_die_before(archive, META, 10, 20)
    assert archive.offsets(META) == list(range(10))
    assert archive.lake.position(7, 0) == 10
    again = Archive(archive.path)
    assert again.lake.heal().ranges == (Range(TOPIC, 7, 0, 10, 20),)
    assert again.lake.position(7, 0) == 20
    assert again.offsets(META) == list(range(20))
    assert verify(again.lake).is_whole


def test_meta_made_anew_is_the_meta_that_was_lost(archive, tmp_path):
    archive.put(0, 10)
    other = Archive(tmp_path / "other")
    put_but_die_before(other, META, 0, 10)
    other.lake.heal()
    assert other.rows(META) == archive.rows(META)


def test_healing_takes_only_what_is_missing_from_compacted_files(archive):
    for partition in (0, 1):
        archive.put(0, 10, partition=partition)
    put_but_die_before(archive, META, 10, 20)
    assert len(list(compact(archive.lake, tables=[MESSAGES]))) == 1
    archive.lake.heal()
    assert archive.offsets(META) == sorted([*range(20), *range(10)])
    assert verify(archive.lake).is_whole


def test_a_batch_that_comes_again_after_the_crash_fills_meta(archive):
    """The driver was killed between two commits and Spark runs the same batch again."""
    files, offered = put_but_die_before(archive, META, 0, 10)
    again = Archive(archive.path)
    again.lake.commit(files, [], [offered])
    assert again.offsets(MESSAGES) == again.offsets(META) == list(range(10))


def test_a_range_that_was_all_gap_is_healed_too(archive):
    archive.put(0, 10)
    gone = Gap(TOPIC, 7, 0, 10, 20, "retention", NOON)
    archive.put_but_die_before(META, [], [gone], [Range(TOPIC, 7, 0, 10, 20)])
    archive.lake.heal()
    assert archive.lake.position(7, 0) == 20
    assert verify(archive.lake).is_whole


def test_healing_a_whole_lake_changes_nothing(archive):
    archive.put(0, 10)
    before = archive.lake.snapshot()
    healed = archive.lake.heal()
    assert (healed.removed, healed.ranges) == ((), ())
    assert archive.lake.snapshot() == before


def torn_in_ways(entry):
    whole = entry.read_bytes()
    lines = whole.splitlines(keepends=True)
    return {
        "empty": b"",
        "zeros": bytes(len(whole)),
        "blank": b"\n",
        "cut": whole[: len(whole) // 2],
        "cut between lines": b"".join(lines[:-1]),
        "only the first line": lines[0],
    }


@pytest.mark.parametrize("way", ["empty", "zeros", "blank", "cut", "cut between lines", "only the first line"])
@pytest.mark.parametrize("table", [MESSAGES, META])
def test_a_torn_log_entry_is_removed_and_its_batch_comes_again(archive, table, way):
    archive.put(0, 10)
    archive.put(10, 20)
    newest = archive.log(table)[-1]
    newest.write_bytes(torn_in_ways(newest)[way])
    again = Archive(archive.path)  # opening it for writing mends the logs
    assert not newest.exists()
    assert again.lake.position(7, 0) == 10
    again.lake.heal()
    assert again.lake.position(7, 0) == (10 if table == MESSAGES else 20)
    if table == META:
        again.put(20, 30)
        assert verify(again.lake).is_whole


def test_a_torn_entry_found_while_open_is_removed_too(archive):
    archive.put(0, 10)
    newest = archive.log()[-1]
    newest.write_bytes(b"")
    assert archive.lake.heal().removed == (f"{MESSAGES}/{newest.name}",)
    assert archive.lake.snapshot().positions() == {}


def test_a_torn_table_is_made_anew(tmp_path):
    archive = Archive(tmp_path / "lake")
    archive.log()[0].write_bytes(b"")
    Archive(tmp_path / "lake").put(0, 10)


def test_damage_below_whole_entries_is_not_taken_for_a_power_loss(archive):
    archive.put(0, 10)
    archive.put(10, 20)
    archive.log()[1].write_bytes(b"")
    with pytest.raises(DamagedLakeError, match=r"00001\.json is damaged"):
        archive.lake.heal()
    assert len(archive.log()) == 3


def test_whole_entries_of_other_writers_are_left_alone(archive):
    archive.put(0, 10)
    foreign = archive.path / MESSAGES / "_delta_log" / f"{2:020d}.json"
    foreign.write_text(json.dumps({"commitInfo": {"operation": "OPTIMIZE"}}) + "\n")
    assert archive.lake.heal().removed == ()
    assert foreign.exists()


@pytest.mark.parametrize("left", [b"", b"PAR1", None], ids=["empty", "cut", "missing"])
def test_a_torn_checkpoint_is_removed(archive, monkeypatch, left):
    monkeypatch.setattr(table_module, "CHECKPOINT_EVERY", 3)
    for first in range(0, 40, 10):
        archive.put(first, first + 10)
    log = archive.path / MESSAGES / "_delta_log"
    (checkpoint,) = log.glob("*.checkpoint.parquet")
    if left is None:
        checkpoint.unlink()
    else:
        checkpoint.write_bytes(left)
    again = Archive(archive.path)
    assert again.lake.position(7, 0) == 40
    again.put(40, 50)
    assert again.lake.snapshot().positions() == {KEY: 50}


def test_a_reader_does_not_repair(archive):
    archive.put(0, 10)
    newest = archive.log()[-1]
    newest.write_bytes(b"")
    Lake.open(archive.path)
    assert newest.exists()
