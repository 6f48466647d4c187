"""Rows of retries as a fold: put, replaced, over, moved, undone, bytes and back."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from lakemq.delivery.retries import Retries
from lakemq.delivery.settlement import Retry

SUBSCRIPTIONS = (1, 2, 3)


def row_of(number, subscription=1, *, index=0, position=100, attempts=1, due_ms=1000):
    return Retry(number, subscription, 4, 0, index, position, attempts, due_ms, 900, "why")


class RetriesModel(RuleBasedStateMachine):
    """Against a dict of rows."""

    def __init__(self):
        super().__init__()
        self.retries = Retries()
        self.rows = {}
        self.next_id = 1
        self.undos = []

    @rule(subscription=st.sampled_from(SUBSCRIPTIONS), index=st.integers(0, 3), position=st.sampled_from([100, 200]))
    def fail(self, subscription, index, position):
        row = row_of(self.retries.next_id, subscription, index=index, position=position)
        before = dict(self.rows), self.next_id
        self.undos.append((self.retries.put(row), *before))
        self.rows[row.id] = row
        self.next_id = row.id + 1

    @precondition(lambda self: self.rows)
    @rule(data=st.data(), due_ms=st.integers(0, 5000))
    def fail_again(self, data, due_ms):
        row = self.rows[data.draw(st.sampled_from(sorted(self.rows)))]
        row = row._replace(attempts=row.attempts + 1, due_ms=due_ms)
        before = dict(self.rows), self.next_id
        self.undos.append((self.retries.put(row), *before))
        self.rows[row.id] = row

    @rule(number=st.integers(0, 12))
    def be_done(self, number):
        before = dict(self.rows), self.next_id
        self.undos.append((self.retries.remove(number), *before))
        self.rows.pop(number, None)

    @rule(index=st.integers(0, 3))
    def move(self, index):
        """Only when nothing can be undone any more."""
        self.retries.move(100, index, 300)
        self.rows = {
            number: row._replace(position=300) if (row.position, row.message_index) == (100, index) else row
            for number, row in self.rows.items()
        }
        self.undos = []

    @precondition(lambda self: self.undos)
    @rule(count=st.integers(1, 3))
    def undo(self, count):
        for _ in range(min(count, len(self.undos))):
            undo, self.rows, self.next_id = self.undos.pop()
            undo()

    @rule(kept=st.sets(st.sampled_from(SUBSCRIPTIONS)))
    def pack_and_restore(self, kept):
        data = self.retries.pack(kept)
        self.retries = Retries()
        self.retries.restore(data)
        self.rows = {number: row for number, row in self.rows.items() if row.subscription in kept}
        self.undos = []

    @invariant()
    def is_what_the_model_says(self):
        assert {row.id: row for row in self.retries.rows()} == self.rows
        assert len(self.retries) == len(self.rows)
        assert self.retries.next_id == self.next_id
        for subscription in SUBSCRIPTIONS:
            mine = {row.id for row in self.rows.values() if row.subscription == subscription}
            assert {row.id for row in self.retries.of(subscription)} == mine
            assert self.retries.count_of(subscription) == len(mine)
        for number in range(self.next_id + 1):
            assert self.retries.get(number) == self.rows.get(number)


TestRetries = RetriesModel.TestCase
TestRetries.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_an_id_is_never_given_twice_even_if_all_rows_are_gone():
    retries = Retries()
    retries.put(row_of(7))
    retries.remove(7)
    again = Retries()
    again.restore(retries.pack([1]))
    assert again.next_id == 8
    assert len(again) == 0
