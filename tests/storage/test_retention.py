"""Which segments go, who keeps them, and what is told of messages that are gone."""

import errno

import pytest

from fix_disk import DISKS
from fix_storage import A, B, C, Engine, indexes
from lakemq.errors import IndexOutOfRangeError
from lakemq.storage.retention import RetentionPolicy, SegmentFacts, count_droppable

SEGMENTS = [SegmentFacts(0, 100, 1000), SegmentFacts(100, 200, 2000), SegmentFacts(200, 300, 3000)]
FAR = 1 << 40


@pytest.fixture(params=DISKS)
def disk(request, tmp_path):
    return DISKS[request.param](tmp_path)


@pytest.mark.parametrize(
    ("policy", "now_ms", "held", "covered", "expected"),
    [
        (RetentionPolicy(), FAR, [], FAR, 0),
        (RetentionPolicy(age_ms=500), 1500, [], FAR, 0),
        (RetentionPolicy(age_ms=500), 1501, [], FAR, 1),
        (RetentionPolicy(age_ms=500), FAR, [], FAR, 3),
        (RetentionPolicy(age_ms=500), 0, [], FAR, 0),
        (RetentionPolicy(size_bytes=350), 0, [], FAR, 0),
        (RetentionPolicy(size_bytes=250), 0, [], FAR, 1),
        (RetentionPolicy(size_bytes=251), 0, [], FAR, 0),
        (RetentionPolicy(size_bytes=0), 0, [], FAR, 3),
        (RetentionPolicy(size_bytes=150, age_ms=500), 1501, [], FAR, 2),
        (RetentionPolicy(size_bytes=0), 0, [99], FAR, 0),
        (RetentionPolicy(size_bytes=0), 0, [100], FAR, 1),
        (RetentionPolicy(size_bytes=0), 0, [250, 199], FAR, 1),
        (RetentionPolicy(size_bytes=0), 0, [FAR], 199, 1),
        (RetentionPolicy(size_bytes=0), 0, [], 0, 0),
    ],
)
def test_the_oldest_go_first_and_none_that_is_needed(policy, now_ms, held, covered, expected):
    assert count_droppable(SEGMENTS, 350, policy, now_ms, held, covered) == expected


def three_segments(disk=None):
    engine = Engine(disk)
    engine.put(C, b"only once, long ago")
    while len(engine.group.journal.bases()) < 4:
        engine.put_many(3, keys=(A, B), body_bytes=700)
    engine.checkpoint()
    return engine


@pytest.mark.parametrize("kept", [0, 1, 2])
def test_indexes_begin_later_after_retention_and_go_on_as_before(disk, kept):
    engine = three_segments(disk)
    before = {key: engine.group.next_index(*key) for key in (A, B, C)}
    assert engine.drop(kept) == 3 - kept
    engine.check()
    for key in (A, B):
        first = engine.group.first_index(*key)
        assert 0 < first <= before[key]
        with pytest.raises(IndexOutOfRangeError):
            engine.read(key, first - 1)
    assert engine.group.first_index(*C) == engine.group.next_index(*C) == 1
    assert engine.read(C, 1) == []
    assert {key: engine.group.next_index(*key) for key in (A, B, C)} == before
    engine.kill()
    engine.put(C, b"again")
    assert indexes(engine.read(C, 1, 9)) == [(1, 2)]
    engine.close_and_open()
    engine.check(index_count=1)


def test_the_last_segment_stays_whatever_the_policy(disk):
    engine = three_segments(disk)
    engine.drop(0)
    assert len(engine.group.journal.bases()) == 1
    assert engine.drop(0) == 0
    engine.check()


def test_a_holder_keeps_the_segment_its_position_is_in_and_all_after_it():
    engine = three_segments()
    _, second, third, _ = engine.group.journal.bases()
    everything = RetentionPolicy(size_bytes=0)
    engine.group.hold("archive", third + 5)
    engine.group.hold("delay", second)
    assert engine.group.retain(everything, engine.now_ms) == 1
    assert engine.group.journal.first_position == second
    engine.group.hold("delay", second + 1)
    assert engine.group.retain(everything, engine.now_ms) == 0
    engine.group.let_go("delay")
    assert engine.group.retain(everything, engine.now_ms) == 1
    engine.group.let_go("archive")
    engine.group.let_go("archive")
    assert engine.group.retain(everything, engine.now_ms) == 1


def test_nothing_goes_that_a_checkpoint_does_not_cover():
    engine = Engine()
    while len(engine.group.journal.bases()) < 4:
        engine.put_many(3, body_bytes=700)
    assert engine.group.checkpoint_position == 0
    assert engine.group.retain(RetentionPolicy(size_bytes=0), engine.now_ms) == 0
    engine.checkpoint()
    assert engine.group.retain(RetentionPolicy(size_bytes=0), engine.now_ms) == 3


def test_segments_age_by_when_the_next_one_was_begun():
    engine = Engine()
    engine.fill_segment()
    engine.now_ms += 100_000
    engine.put(A, b"x" * 1500)
    begun_ms = engine.now_ms
    engine.checkpoint()
    day = RetentionPolicy(age_ms=86_400_000)
    assert engine.group.retain(day, begun_ms + 86_400_000) == 0
    assert engine.group.retain(day, begun_ms + 86_400_001) == 1


@pytest.mark.parametrize("jump_ms", [-3 * 86_400_000, -3_600_000])
def test_F41_a_clock_that_is_set_back_wipes_nothing(jump_ms):
    engine = three_segments()
    assert engine.group.retain(RetentionPolicy(age_ms=1000), engine.now_ms + jump_ms) == 0
    engine.check()


def test_F24_what_was_fetched_stays_readable_when_its_segment_goes(disk):
    engine = three_segments(disk)
    fetched = engine.read(A, 0, 3)
    expected = [bytes(one.messages) for one in fetched]
    engine.drop(0)
    assert [bytes(one.messages) for one in fetched] == expected


def test_F24_a_reader_that_retention_overtakes_gets_its_messages_or_is_told():
    engine = three_segments()
    index, seen = 0, []
    for kept in (3, 2, 1, 0):
        try:
            (got,) = engine.read(A, index)
            assert bytes(got.messages) == engine.oracle.of(A)[index].payload
            index = got.next_index
        except IndexOutOfRangeError:
            index = engine.group.first_index(*A)
        seen.append(index)
        engine.drop(kept)
    assert seen[-1] > 4, "it was overtaken"
    engine.check()


def test_index_files_go_with_their_segments():
    engine = three_segments()
    before = len(engine.disk.names("index/1/0"))
    engine.drop(0)
    assert len(engine.disk.names("index/1/0")) < before
    engine.check()


def test_F17_a_segment_whose_head_cannot_be_read_is_not_old():
    engine = three_segments()
    engine.disk.fail("read", OSError(errno.EIO, "planned"), path_contains="journal/", times=100)
    assert engine.group.retain(RetentionPolicy(age_ms=1), engine.now_ms + 1_000_000) == 0
    engine.disk.faults.clear()
    assert engine.group.retain(RetentionPolicy(age_ms=1), engine.now_ms + 1_000_000) == 3


def test_F10_a_dropped_segment_that_is_back_after_a_power_loss_does_no_harm():
    engine = three_segments()
    engine.drop(1)
    for seed in range(20):
        twin = Engine.__new__(Engine)
        twin.__dict__.update(engine.__dict__)
        twin.disk, twin.oracle = engine.disk.clone(), engine.oracle.copy()
        twin.lose_power(seed)
        twin.put_many(5, keys=(A, B, C))
        twin.drop(0)
        twin.kill()
