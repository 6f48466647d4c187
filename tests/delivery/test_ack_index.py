"""Ack indexes as a fold: set by rows, moved over what is done with in any order, undone, bytes and back."""

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from lakemq.delivery.ack_index import AckIndexes, AckRow, pack_rows, unpack_rows
from lakemq.delivery.intervals import runs_of

SUBSCRIPTIONS, PARTITIONS, END = range(1, 4), range(3), 24
ROWS = st.lists(
    st.builds(AckRow, st.sampled_from(SUBSCRIPTIONS), st.sampled_from(PARTITIONS), st.integers(0, END)), max_size=4
)


class AckIndexesModel(RuleBasedStateMachine):
    """Against a set of all that is done with."""

    def __init__(self):
        super().__init__()
        self.acks = AckIndexes()
        self.done = {}  # by subscription and partition
        self.undos = []

    @rule(rows=ROWS)
    def seek(self, rows):
        before = {key: set(done) for key, done in self.done.items()}
        self.undos.append((self.acks.apply(rows), before))
        for subscription, partition, index in rows:
            self.done[subscription, partition] = set(range(index))

    @rule(
        subscription=st.sampled_from(SUBSCRIPTIONS),
        partition=st.sampled_from(PARTITIONS),
        first=st.integers(0, END - 1),
        count=st.integers(1, 5),
    )
    def settle(self, subscription, partition, first, count):
        before = {key: set(done) for key, done in self.done.items()}
        self.undos.append((self.acks.settle(subscription, partition, first, first + count), before))
        self.done.setdefault((subscription, partition), set()).update(range(first, first + count))

    @rule(
        subscription=st.sampled_from(SUBSCRIPTIONS),
        partition=st.sampled_from(PARTITIONS),
        indexes=st.sets(st.integers(0, END - 1), min_size=1),
    )
    def settle_runs(self, subscription, partition, indexes):
        before = {key: set(done) for key, done in self.done.items()}
        self.undos.append((self.acks.settle_runs(subscription, partition, runs_of(indexes)), before))
        self.done.setdefault((subscription, partition), set()).update(indexes)

    @precondition(lambda self: self.undos)
    @rule(count=st.integers(1, 3))
    def undo_the_last(self, count):
        for _ in range(min(count, len(self.undos))):
            undo, self.done = self.undos.pop()
            undo()

    @rule(kept=st.sets(st.sampled_from(SUBSCRIPTIONS)))
    def pack_and_restore(self, kept):
        data = self.acks.pack(kept)
        self.acks = AckIndexes()
        self.acks.restore(data)
        self.done = {key: done for key, done in self.done.items() if key[0] in kept}
        self.undos = []

    @invariant()
    def is_what_the_model_says(self):
        for subscription in SUBSCRIPTIONS:
            for partition in PARTITIONS:
                done = self.done.get((subscription, partition), set())
                index = next(one for one in range(END + 10) if one not in done)
                assert self.acks.get(subscription, partition) == index
                beyond = {one for run in self.acks.beyond(subscription, partition) for one in range(*run)}
                assert beyond == {one for one in done if one > index}
                assert all(self.acks.is_acked(subscription, partition, one) == (one in done) for one in range(END + 10))


TestAckIndexes = AckIndexesModel.TestCase
TestAckIndexes.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)


@given(ROWS)
def test_rows_come_back_from_their_bytes(rows):
    data = pack_rows(rows)
    assert list(unpack_rows(data)) == rows
    assert list(unpack_rows(memoryview(data))) == rows


def test_one_row_twice_in_one_go_is_undone_to_what_was_before_both():
    acks = AckIndexes()
    acks.apply([AckRow(1, 0, 3)])
    undo = acks.apply([AckRow(1, 0, 5), AckRow(1, 0, 8)])
    undo()
    assert acks.get(1, 0) == 3


def test_restoring_forgets_what_was_there():
    acks = AckIndexes()
    acks.apply([AckRow(1, 0, 3)])
    acks.settle(1, 0, 5, 7)
    acks.restore(b"")
    assert acks.get(1, 0) == 0
    assert not acks.beyond(1, 0)


def test_a_seek_forgets_what_was_done_beyond():
    acks = AckIndexes()
    acks.settle(1, 0, 5, 9)
    acks.apply([AckRow(1, 0, 4)])
    acks.settle(1, 0, 4, 5)
    assert acks.get(1, 0) == 5
