"""Ack indexes as a fold: rows in, rows to undo them out, bytes and back."""

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from lakemq.delivery.ack_index import AckIndexes, AckRow, pack_rows, unpack_rows

ROWS = st.lists(
    st.builds(AckRow, st.integers(1, 3), st.integers(0, 2), st.one_of(st.integers(0, 9), st.just((1 << 63) - 1))),
    max_size=4,
)


class AckIndexesModel(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.acks = AckIndexes()
        self.indexes = {}
        self.undos = []

    @rule(rows=ROWS)
    def apply(self, rows):
        self.undos.append((self.acks.apply(rows), dict(self.indexes)))
        for subscription, partition, index in rows:
            self.indexes[subscription, partition] = index

    @precondition(lambda self: self.undos)
    @rule(count=st.integers(1, 3))
    def undo_the_last(self, count):
        for _ in range(min(count, len(self.undos))):
            rows, self.indexes = self.undos.pop()
            self.acks.apply(rows)

    @rule(kept=st.sets(st.integers(1, 3)))
    def pack_and_restore(self, kept):
        data = self.acks.pack(kept)
        self.acks = AckIndexes()
        self.acks.restore(data)
        self.indexes = {key: index for key, index in self.indexes.items() if key[0] in kept}
        self.undos = []

    @invariant()
    def is_what_the_model_says(self):
        for subscription in range(1, 4):
            for partition in range(3):
                assert self.acks.get(subscription, partition) == self.indexes.get((subscription, partition), 0)


TestAckIndexes = AckIndexesModel.TestCase
TestAckIndexes.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)


@given(ROWS)
def test_rows_come_back_from_their_bytes(rows):
    data = pack_rows(rows)
    assert list(unpack_rows(data)) == rows
    assert list(unpack_rows(memoryview(data))) == rows


def test_one_row_twice_in_one_go_is_undone_to_what_was_before_both():
    acks = AckIndexes()
    acks.apply([AckRow(1, 0, 3)])
    undo = acks.apply([AckRow(1, 0, 5), AckRow(1, 0, 8)])
    acks.apply(undo)
    assert acks.get(1, 0) == 3


def test_restoring_forgets_what_was_there():
    acks = AckIndexes()
    acks.apply([AckRow(1, 0, 3)])
    acks.restore(b"")
    assert acks.get(1, 0) == 0
