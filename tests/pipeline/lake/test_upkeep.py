"""What the archive does for its lake between batches: few files, little copying, nothing changed."""

import json

import pytest

from lakemq.pipeline.lake import MESSAGES, META, Lake, verify
from lakemq.pipeline.lake import maintenance as maintenance_module
from lakemq.pipeline.lake import upkeep as upkeep_module
from lakemq.pipeline.lake.errors import LakeBusyError, PlaceNotSupportedError
from lakemq.pipeline.lake.upkeep import Upkeep, UpkeepPolicy
from pipeline.lake.fix_lake import NOON, Killed, killed

BATCHES = 80
HOUR_S = 3600


def keeper(archive, clock=None, **policy):
    return Upkeep(archive.lake, UpkeepPolicy(**policy), clock or (lambda: NOON.timestamp()))


def fill(archive, upkeep, batches=BATCHES):
    """A batch of a few rows each time, as with a short trigger."""
    done = []
    for number in range(batches):
        archive.put(5 * number, 5 * number + 5)
        done += upkeep.after_batch()
    return done


def test_a_short_trigger_leaves_few_files_and_every_row(archive):
    upkeep = keeper(archive)
    done = fill(archive, upkeep)
    assert upkeep.error is None
    for table in (MESSAGES, META):
        assert len(archive.paths(table)) <= 40, f"{BATCHES} without it"
        assert sum(one.files for one in done if one.table == table) >= 48
    assert verify(archive.lake).is_whole
    assert sorted(row["offset"] for row in archive.rows(MESSAGES)) == list(range(5 * BATCHES))


def test_each_row_is_copied_a_few_times_only(archive, monkeypatch):
    """Small tiers, so that there are several: what was copied is not copied again with every few files."""
    monkeypatch.setattr(upkeep_module, "_TIER_FILES", 4)
    done = fill(archive, keeper(archive), 64)
    copied = sum(one.rows for one in done if one.table == MESSAGES)
    assert 5 * 48 <= copied <= 4 * 5 * 64
    assert len(archive.paths(MESSAGES)) <= 12


def test_the_budget_holds_and_what_is_not_used_is_saved_up(archive):
    assert fill(archive, keeper(archive, bytes_per_batch=0), 20) == []
    assert fill_more(archive, keeper(archive, bytes_per_batch=1)) == []
    size = sum(file.size for name in (MESSAGES, META) for file in archive.lake.table(name).at().files())
    done = fill_more(archive, upkeep := keeper(archive, bytes_per_batch=size // 8))
    assert done, "after some batches there is enough"
    assert sum(one.bytes_before for one in done) <= 20 * (size // 8)
    assert upkeep.error is None


def fill_more(archive, upkeep):
    done = []
    for _ in range(20):
        done += upkeep.after_batch()
    return done


def test_a_day_that_is_over_is_gathered_whatever_the_tiers(archive):
    for number in range(6):
        archive.put(5 * number, 5 * number + 5)
    assert keeper(archive).after_run() == []
    tomorrow = keeper(archive, clock=lambda: NOON.timestamp() + 24 * HOUR_S)
    assert {(one.table, one.files) for one in tomorrow.after_run()} == {(MESSAGES, 6), (META, 6)}
    assert len(archive.paths(MESSAGES)) == 1
    assert verify(archive.lake).is_whole


def test_vacuum_is_done_once_a_day_by_the_policy(archive, monkeypatch):
    asked = []
    monkeypatch.setattr(upkeep_module, "vacuum", lambda lake, retention_hours: asked.append(retention_hours))
    now = [NOON.timestamp()]
    for hours in (0, 1, 23, 25, 26, 49):
        now[0] = NOON.timestamp() + hours * HOUR_S
        keeper(archive, clock=lambda: now[0], vacuum_hours=48).after_run()  # also where each run is another process
    assert asked == [48, 48]
    now[0] += 1000 * HOUR_S
    keeper(archive, clock=lambda: now[0], vacuum_hours=0).after_run()
    assert asked == [48, 48]
    (archive.path / "_lakemq" / "upkeep.json").write_text("no json")
    keeper(archive, clock=lambda: now[0]).after_run()
    assert json.loads((archive.path / "_lakemq" / "upkeep.json").read_text())["vacuumed_ms"] > 0


def test_what_goes_wrong_stops_no_batch(archive, monkeypatch):
    def busy(*_):
        raise LakeBusyError("somebody else is at it")

    monkeypatch.setattr(upkeep_module, "merge", busy)
    upkeep = keeper(archive)
    assert fill(archive, upkeep, 20) == []
    assert isinstance(upkeep.error, LakeBusyError)


@pytest.mark.parametrize(
    ("uri", "text"),
    [
        ("hdfs://namenode:8020/lake", "a lake cannot be at hdfs://namenode:8020/lake: HDFS is not supported"),
        ("ftp://host/lake", "a lake cannot be at ftp://host/lake: ftp:// is not supported"),
    ],
)
def test_a_place_that_cannot_be_is_refused_with_those_that_can(uri, text):
    with pytest.raises(PlaceNotSupportedError) as caught:
        Lake.open(uri, "c", create=True)
    assert text in str(caught.value)
    assert "s3://" in caught.value.fix


def test_a_kill_in_the_middle_of_a_merge_leaves_the_lake_as_it_was(archive, monkeypatch):
    fill(archive, keeper(archive, bytes_per_batch=0), 20)
    before = archive.paths(MESSAGES)
    with monkeypatch.context() as patched:
        patched.setattr(maintenance_module, "replace", killed)
        with pytest.raises(Killed):
            keeper(archive).after_run()
    assert archive.paths(MESSAGES) == before
    assert verify(archive.lake).is_whole
    assert sum(one.files for one in keeper(archive).after_run() if one.table == MESSAGES) == 20
    assert verify(archive.lake).is_whole
