"""A copy of a data directory in use: what was confirmed before it began is in it, and it is sound."""

from random import Random

import pytest

from fix_storage import TINY, A, B, Engine, read_all, segment_path
from lakemq.storage.backup import BackupError, back_up
from lakemq.storage.directory import ForeignDirectoryError
from lakemq.storage.recovery import open_group
from lakemq.storage.retention import RetentionPolicy
from lakemq.storage.survey import survey
from lakemq.testing.disk import SimDisk, SimFile


@pytest.fixture
def engine():
    made = Engine()
    for number in range(120):
        made.put((A, B)[number % 2], b"%03d" % number * 40)
    return made


def restored(target):
    """What a start on the copy serves."""
    found = survey(target)
    assert found.is_sound, found.findings
    group = open_group(target, TINY)
    assert not group.damage
    return group


def test_a_copy_made_while_the_broker_runs_has_all_that_was_synced(engine):
    target = SimDisk()
    copied = back_up(engine.disk, target)
    assert copied.segments == len(engine.group.journal.bases()) > 1
    group = restored(target)
    for key in (A, B):
        assert read_all(group, key) == read_all(engine.group, key)
    assert group.next_index(*A) == 60


def test_what_is_written_during_the_copy_is_in_it_as_a_whole_or_not_at_all(engine, monkeypatch):
    """Each read of a block is followed by more appends, rolls among them: the end was looked for before."""
    target, read_at, is_inside = SimDisk(), SimFile.read_at, []
    before = engine.group.next_index(*A)

    def read_and_append(file, position, size):
        data = read_at(file, position, size)
        if not is_inside and file.path.startswith("journal/"):
            is_inside.append(True)
            for _ in range(5):
                engine.put(A, b"meanwhile" * 30)
            is_inside.clear()
        return data

    monkeypatch.setattr(SimFile, "read_at", read_and_append)
    back_up(engine.disk, target)
    monkeypatch.undo()
    group = restored(target)
    assert before <= group.next_index(*A) < engine.group.next_index(*A)
    assert read_all(engine.group, A).startswith(read_all(group, A))


def test_a_half_written_record_at_the_end_is_left_out(engine):
    file = engine.disk.open(segment_path(engine.group.journal.bases()[-1]))
    end = engine.group.journal.end_position - engine.group.journal.bases()[-1]
    file.write_at(end, [file.read_at(end - 60, 30)])  # as if a write were under way
    target = SimDisk()
    assert back_up(engine.disk, target).end_position == engine.group.journal.end_position
    restored(target)


def test_segments_that_retention_drops_during_the_copy_are_left_out_together(engine, monkeypatch):
    bases, opened, open_file = engine.group.journal.bases(), [], SimDisk.open
    assert len(bases) > 3

    def open_and_drop(disk, path, *, create=False):
        if disk is engine.disk and path == segment_path(bases[1]) and not opened:
            opened.append(path)
            checkpoint = engine.group.begin_checkpoint()
            checkpoint.run()
            engine.group.end_checkpoint(checkpoint)
            engine.group.hold("test", bases[2])
            assert engine.group.retain(RetentionPolicy(size_bytes=1), engine.now_ms) == 2
        return open_file(disk, path, create=create)

    target = SimDisk()
    monkeypatch.setattr(SimDisk, "open", open_and_drop)
    assert back_up(engine.disk, target).segments == len(bases) - 2
    monkeypatch.undo()
    group = restored(target)
    assert group.first_index(*A) > 0
    assert group.next_index(*A) == 60


def test_a_copy_that_was_not_finished_is_no_data_directory(engine):
    target = SimDisk(capacity_bytes=4096)
    with pytest.raises(OSError, match="ENOSPC"):
        back_up(engine.disk, target)
    target.capacity_bytes = None
    with pytest.raises(ForeignDirectoryError):
        open_group(target, TINY)


def test_a_target_with_something_in_it_and_a_source_without_anything_are_refused(engine):
    target = SimDisk()
    back_up(engine.disk, target)
    with pytest.raises(BackupError, match="not empty"):
        back_up(engine.disk, target)
    with pytest.raises(BackupError, match="nothing in it"):
        back_up(SimDisk(), SimDisk())
    stranger = SimDisk()
    stranger.open("thesis", create=True).close()
    with pytest.raises(ForeignDirectoryError):
        back_up(stranger, SimDisk())


def test_a_power_cut_after_the_copy_takes_nothing_of_it(engine):
    target = SimDisk()
    back_up(engine.disk, target)
    target.lose_power(Random(1), mode="nothing")
    assert read_all(restored(target), A) == read_all(engine.group, A)
