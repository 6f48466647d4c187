"""Delays against the simplest thing that could be right: which rows wait, in a dictionary.

The journal is a list here: records are put in force as they are appended, taken back when a turn fails, and told again
after a restart from a snapshot that was taken anywhere.
"""

import tracemalloc
from array import array
from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from lakemq.delivery.delay_record import (
    ADD_BYTES,
    Add,
    Cancelled,
    Filed,
    Released,
    pack_add,
    pack_block,
    pack_cancel,
    pack_note,
    pack_rewind,
    unpack_add,
    unpack_block,
    unpack_cancel,
    unpack_release,
)
from lakemq.delivery.delays import START, Delays
from lakemq.delivery.timeline import Timeline

ADDRESS = bytes(range(16))
NEAR_MS = 60
NONE = array("q")


def numbers(values):
    return array("q", list(values))


def rows_in(timeline):
    """All rows of a timeline, in order, which stay."""
    rows = timeline.take(1 << 60, 1 << 30)
    for row in rows:
        timeline.insert(*row)
    return rows


# --- the timeline ------------------------------------------------------------------------------------------------


class TimelineModel(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.timeline = Timeline()
        self.rows = set()
        self.taken = []
        self.position = 0

    @rule(due_ms=st.integers(0, 5000))
    def insert(self, due_ms):
        self.position += 7
        self.timeline.insert(due_ms, self.position)
        self.rows.add((due_ms, self.position))

    @precondition(lambda self: self.taken)
    @rule()
    def put_back(self):
        row = self.taken.pop()
        self.timeline.insert(*row)
        self.rows.add(row)

    @rule(until_ms=st.integers(0, 6000), count=st.integers(0, 9))
    def take(self, until_ms, count):
        expected = [row for row in sorted(self.rows) if row[0] <= until_ms][:count]
        assert self.timeline.take(until_ms, count) == expected
        self.rows -= set(expected)
        self.taken += expected

    @precondition(lambda self: self.rows)
    @rule(data=st.data())
    def remove(self, data):
        row = data.draw(st.sampled_from(sorted(self.rows)))
        assert self.timeline.remove(*row)
        assert not self.timeline.remove(*row)
        self.rows.remove(row)

    @invariant()
    def knows_how_many_and_which_is_first(self):
        assert self.timeline.count == len(self.rows)
        assert self.timeline.first_due_ms() == (min(self.rows)[0] if self.rows else None)


TestTimeline = TimelineModel.TestCase
TestTimeline.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)


def test_equal_due_times_come_out_by_position():
    timeline = Timeline()
    for position in (5, 3, 9, 1):
        timeline.insert(77, position)
    assert timeline.take(76, 10) == []
    assert timeline.take(77, 2) == [(77, 1), (77, 3)]
    timeline.insert(77, 4)
    assert timeline.take(77, 10) == [(77, 4), (77, 5), (77, 9)]


# --- the fold ----------------------------------------------------------------------------------------------------


class DelaysModel(RuleBasedStateMachine):
    """The owner of a fold, with a turn that may fail."""

    def __init__(self):
        super().__init__()
        self.delays = Delays()
        self.now_ms = 1000
        self.end = 0
        self.records = []  # (position, payload, whether it is a note), of this turn too
        self.written = 0  # how many of them are
        self.undos = []  # of this turn, each with the model as it was
        self.waiting = {}  # due time by position
        self.topics = {}  # by position
        self.gone = set()
        self.snapshot = b"", 0  # and how many records it stands for

    @property
    def is_settled(self):
        return not self.undos

    def append(self, payload, put_in_force, *, is_note=False):
        position = self.end
        undo = put_in_force(position)
        self.undos.append((undo, position, dict(self.waiting), dict(self.topics), set(self.gone)))
        self.records.append((position, payload, is_note))
        self.end += 88 + len(payload)
        return position

    def block_rows(self, block):
        payload = next(payload for position, payload, _ in self.records if position == block.position)
        filed = unpack_block(payload)
        return filed.dues, filed.positions

    def share_with(self, position):
        """The number of the share in which a row waits."""
        row = self.waiting[position], position
        for number, share in enumerate(self.delays.shares):
            if share.holds(row):
                return number
            for block in share.blocks.values():
                if row in share.waiting_in(block, self.block_rows(block)):
                    return number
        raise AssertionError(f"row {row} is lost")

    def waiting_in(self, share):
        rows = share.unfiled()
        for block in share.blocks.values():
            rows += share.waiting_in(block, self.block_rows(block))
        return sorted(rows)

    # --- work ----------------------------------------------------------------------------------------------------

    def add(self, due_ms, topic, share_count, **moved):
        """As `Delaying` does it: not before what counts as done."""
        due_ms = max([due_ms, *(share.watermark[0] for share in self.delays.shares)])
        head = Add(share_count, topic, 3, due_ms, 1, 1, ADDRESS, **moved)
        position = self.append(pack_add(head, b"hello"), lambda position: self.delays.add(head, position))
        self.waiting[position] = due_ms
        self.topics[position] = topic

    @rule(delay_ms=st.integers(1, 300), topic=st.integers(1, 2), share_count=st.sampled_from((1, 2, 2, 2, 2, 2, 3)))
    def put(self, delay_ms, topic, share_count):
        self.add(self.now_ms + delay_ms, topic, share_count)

    @rule(delays=st.lists(st.integers(1, 40), min_size=2, max_size=12))
    def put_many(self, delays):
        for delay_ms in delays:
            self.add(self.now_ms + delay_ms, 1, len(self.delays.shares))

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def cancel(self, data):
        position = data.draw(st.sampled_from(sorted(self.waiting)))
        row = Cancelled(self.share_with(position), self.topics[position], self.waiting[position], position)
        self.append(pack_cancel([row]), lambda _: self.delays.cancel([row]))
        del self.waiting[position]
        self.gone.add(position)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def carry(self, data):
        old = data.draw(st.sampled_from(sorted(self.waiting)))
        share, due_ms = self.share_with(old), self.waiting[old]
        topic = self.topics[old]
        count = len(self.delays.shares)
        self.add(due_ms, topic, count, moved_share=share, moved_due_ms=due_ms, moved_position=old)
        del self.waiting[old]
        self.gone.add(old)

    @precondition(lambda self: self.is_settled)
    @rule(spent_ms=st.integers(0, 150), reads_max=st.integers(1, 3))
    def pass_time(self, spent_ms, reads_max):
        self.now_ms += spent_ms
        for share in self.delays.shares:
            for _ in range(10):
                share.approach(self.now_ms, NEAR_MS, self.block_rows, reads_max)

    @rule(count=st.integers(1, 8), seed=st.integers(0, 99), refuses=st.booleans())
    def release(self, count, seed, refuses):
        """Rows in order, in several records in any order, of which the last may be refused."""
        rng = Random(seed)
        number = rng.randrange(len(self.delays.shares))
        share = self.delays.shares[number]
        due = [row for row in self.waiting_in(share) if row[0] <= self.now_ms and row[0] < share.horizon_ms]
        rows = share.timeline.take(self.now_ms, count)
        assert rows == due[:count], "not in order, or not what is due"
        parcels = {}
        for row in rows:
            parcels.setdefault((rng.randrange(3), self.topics[row[1]]), []).append(row)
        left = set(rows)
        for nth, ((_, topic), parcel) in enumerate(parcels.items()):
            if refuses and nth == len(parcels) - 1:
                break
            left -= set(parcel)
            first_left = min(left, default=(1 << 60, 0))
            watermark = max((row for row in rows if row < first_left), default=share.watermark)
            released = Released(number, topic, watermark, parcel)
            self.append(pack_note(released), lambda _, one=released: self.delays.release(one), is_note=True)
            for due_ms, position in parcel:
                assert position not in self.gone, "released twice, or released though cancelled"
                assert self.waiting.pop(position) == due_ms <= self.now_ms, "early"
                self.gone.add(position)
        for row in left:
            share.timeline.insert(*row)

    @precondition(lambda self: self.is_settled)
    @rule(count=st.integers(1, 4), seed=st.integers(0, 99))
    def file(self, count, seed):
        number = Random(seed).randrange(len(self.delays.shares))
        share = self.delays.shares[number]
        rows = sorted(share.unfiled())
        for _ in range(2):
            part, rows = rows[:count], rows[count:]
            if part:
                dues, positions = zip(*part, strict=True)
                filed = Filed(number, -1, numbers(dues), numbers(positions), NONE)
                self.append(pack_block(filed), lambda position, one=filed: self.delays.file(one, position))

    @rule(seed=st.integers(0, 99))
    def replace_a_block(self, seed):
        """As retention does when the block is in its way, without those that wait no more."""
        rng = Random(seed)
        number = rng.randrange(len(self.delays.shares))
        share = self.delays.shares[number]
        if share.blocks:
            block = rng.choice(list(share.blocks.values()))
            rows = self.block_rows(block)
            kept = share.waiting_in(block, rows)
            gone = set(rows[1]) - {row[1] for row in kept}
            filed = Filed(
                number,
                block.position,
                numbers(row[0] for row in kept),
                numbers(row[1] for row in kept),
                numbers(sorted(gone)),
            )
            self.append(pack_block(filed), lambda position: self.delays.file(filed, position))

    @precondition(lambda self: self.is_settled)
    @rule(back_ms=st.integers(1, 500))
    def set_the_clock_back(self, back_ms):
        self.now_ms = max(self.now_ms - back_ms, 0)
        if self.now_ms < max(share.watermark[0] for share in self.delays.shares):
            self.append(pack_rewind(), lambda _: self.delays.rewind())

    @precondition(lambda self: self.is_settled)
    @rule()
    def prune(self):
        for share in self.delays.shares:
            share.prune()

    # --- turns and lives -------------------------------------------------------------------------------------------

    @rule()
    def end_turn(self):
        self.written = len(self.records)
        self.undos.clear()

    @rule(count=st.integers(1, 9))
    def fail_turn(self, count):
        """The last records are not written: all of a turn, or what came after a segment's end."""
        while self.undos and count:
            undo, self.end, self.waiting, self.topics, self.gone = self.undos.pop()
            undo()
            self.records.pop()
            count -= 1
        self.end_turn()
        if self.snapshot[1] > self.written:
            self.snapshot = b"", 0

    @rule()
    def take_snapshot(self):
        self.snapshot = self.delays.pack(), len(self.records)

    @rule(from_snapshot=st.booleans())
    def restart(self, from_snapshot):
        """The turn is lost, all before it is told again: from the snapshot on, or all of it."""
        self.fail_turn(1 << 30)
        snapshot, count = self.snapshot
        ways = self.folded(snapshot, count), self.folded(b"", 0)
        assert watermarks(ways[0]) == watermarks(ways[1]), "a start may come from either, and then from the other"
        self.delays = ways[0] if from_snapshot else ways[1]

    def folded(self, snapshot, count):
        """What a snapshot and the records behind it add up to."""
        delays = Delays()
        delays.restore(snapshot)
        for position, payload, is_note in self.records[count:]:
            if is_note:
                delays.apply_note(memoryview(payload), position)
            else:
                delays.apply(None, memoryview(payload), position)
        return delays

    @rule()
    def stop_and_start(self):
        self.end_turn()
        self.take_snapshot()
        self.restart(from_snapshot=True)

    # --- what always holds -------------------------------------------------------------------------------------------

    @invariant()
    def those_wait_that_should(self):
        found = [row for share in self.delays.shares for row in self.waiting_in(share)]
        assert sorted(found) == sorted((due_ms, position) for position, due_ms in self.waiting.items())
        assert self.delays.pending == len(self.waiting)
        for topic in (1, 2):
            count = sum(self.topics[position] == topic for position in self.waiting)
            assert self.delays.topics.get(topic, 0) == count

    @invariant()
    def what_is_near_is_in_order(self):
        for share in self.delays.shares:
            near = [row for row in self.waiting_in(share) if row[0] < share.horizon_ms]
            assert rows_in(share.timeline) == near

    @invariant()
    def nothing_is_needed_before_the_oldest_position(self):
        oldest = self.delays.oldest_position
        for share in self.delays.shares:
            blocks = [block for block in share.blocks.values() if share.waiting_in(block, self.block_rows(block))]
            for position in [*(row[1] for row in self.waiting_in(share)), *(block.position for block in blocks)]:
                assert oldest is not None
                assert oldest <= position

    @rule()
    def wait_for_all(self):
        """Whatever happened, all that waits comes out, once."""
        self.end_turn()
        for _ in range(500):
            if not self.waiting:
                break
            self.pass_time(20, 2)
            for seed in range(9):
                self.release(8, seed, refuses=False)
            self.end_turn()
        assert not self.waiting, "some never came out"

    def teardown(self):
        self.wait_for_all()


TestDelays = DelaysModel.TestCase
TestDelays.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)


def watermarks(delays):
    """Of the shares that have one."""
    return {number: share.watermark for number, share in enumerate(delays.shares) if share.watermark > START}


def released_delays(count):
    """Some that have waited, in two shares."""
    delays = Delays()
    for nth in range(count):
        delays.add(Add(2, 1, 0, 5000 + nth, 1, 1, ADDRESS), nth * 100)
    for number, share in enumerate(delays.shares):
        rows = sorted(share.unfiled())
        delays.release(Released(number, 1, rows[-1], rows))
    assert delays.pending == 0
    return delays


def test_a_snapshot_knows_how_far_rows_were_released_though_none_waits():
    """Or an owner whose clock was set back would add rows that are done with, for whoever has all the records."""
    before, after = released_delays(9), Delays()
    assert len(watermarks(before)) == 2
    after.restore(before.pack())
    assert watermarks(after) == watermarks(before)
    before.rewind()
    assert before.pack() == b"", "nothing to be known"


def test_when_none_waits_the_rows_can_be_forgotten():
    delays = released_delays(100)
    for share in delays.shares:
        assert share.wants_pruning
        share.prune()
        assert not share.wants_pruning
    assert len(delays.pack()) < 100
    assert delays.is_empty


# --- bytes -------------------------------------------------------------------------------------------------------


def test_records_come_back_from_their_bytes():
    head = Add(4, 70_000, 32_000, 1 << 41, 7, 9, ADDRESS, 3, 1 << 40, 1 << 50)
    assert unpack_add(pack_add(head, b"messages")) == head
    assert pack_add(head, b"messages")[ADD_BYTES:] == b"messages"
    released = Released(2, 5, (1 << 41, 1 << 50), [(1, 2), (1 << 41, 1 << 50)])
    assert unpack_release(pack_note(released)) == released
    filed = Filed(1, -1, numbers([1, 1 << 41]), numbers([2, 1 << 50]), numbers([77]))
    assert unpack_block(pack_block(filed)) == filed
    rows = [Cancelled(1, 2, 3, 4), Cancelled(3, 70_000, 1 << 41, 1 << 50)]
    assert unpack_cancel(pack_cancel(rows)) == rows


@pytest.mark.parametrize("cut", [1, 5, 20])
def test_half_a_block_is_an_error_that_its_reader_knows(cut):
    data = pack_block(Filed(1, -1, numbers([1, 2]), numbers([3, 4]), NONE))
    with pytest.raises(ValueError):
        unpack_block(data[:-cut])


# --- size --------------------------------------------------------------------------------------------------------


def test_a_million_rows_fit_in_sixty_megabytes():
    count = 50_000
    share = Delays().shares[0]
    share.approach(0, 3_600_000, lambda block: None, 1)
    tracemalloc.start()
    for nth in range(count):
        share.add(1000 + nth % 60_000, 100 + nth * 300)
    used = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert share.timeline.count == count
    assert used < 60 * count, f"{used / count:.0f} bytes a row"


def test_the_snapshot_has_no_rows_that_are_in_blocks():
    delays = Delays()
    for nth in range(1000):
        delays.add(Add(1, 1, 0, 5000 + nth, 1, 1, ADDRESS), nth * 100)
    big = delays.pack()
    share = delays.shares[0]
    filed = Filed(0, -1, share.dues[:], share.positions[:], NONE)
    delays.file(filed, 1_000_000)
    assert len(big) > 16_000
    assert len(delays.pack()) < 200
    assert delays.pending == 1000
