"""Dead letters as a fold: put, buried, edited, moved, undone, bytes and back, with the audit."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from lakemq.delivery.dead_letters import AUDIT_COUNT_MAX, DeadLetters
from lakemq.delivery.settlement import Buried, DeadLetter, Edited


def letter_of(number, index=0, position=100):
    return DeadLetter(number, "exhausted", "why", 1, "shop", 2, "orders", 0, index, position, 3, 10, 20)


class DeadLettersModel(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.letters = DeadLetters()
        self.rows = {}
        self.audit = []
        self.next_id = 1
        self.undos = []

    def _do(self, undo):
        self.undos.append((undo, dict(self.rows), list(self.audit), self.next_id))

    @rule(index=st.integers(0, 3))
    def die(self, index):
        row = letter_of(self.letters.next_id, index)
        self._do(self.letters.put(row))
        self.rows[row.id] = row
        self.next_id = row.id + 1

    @rule(number=st.integers(1, 10), outcome=st.sampled_from(["resent", "deleted"]))
    def bury(self, number, outcome):
        said = Buried(number, outcome, "me", 5)
        self._do(self.letters.bury(said))
        if self.rows.pop(number, None) is not None:
            self.audit.append(said)

    @rule(number=st.integers(1, 10), position=st.integers(500, 510))
    def edit(self, number, position):
        said = Edited(number, position, "me", 6)
        self._do(self.letters.edit(said))
        if number in self.rows:
            self.rows[number] = self.rows[number]._replace(position=position)
            self.audit.append(said)

    @rule(index=st.integers(0, 3))
    def move(self, index):
        self.letters.move(100, index, 300)
        self.rows = {
            number: row._replace(position=300) if (row.position, row.message_index) == (100, index) else row
            for number, row in self.rows.items()
        }
        self.undos = []

    @precondition(lambda self: self.undos)
    @rule(count=st.integers(1, 3))
    def undo(self, count):
        for _ in range(min(count, len(self.undos))):
            undo, self.rows, self.audit, self.next_id = self.undos.pop()
            undo()

    @rule()
    def pack_and_restore(self):
        data = self.letters.pack([])
        self.letters = DeadLetters()
        self.letters.restore(data)
        self.undos = []

    @invariant()
    def is_what_the_model_says(self):
        assert {row.id: row for row in self.letters.rows()} == self.rows
        assert [row.id for row in self.letters.rows()] == sorted(self.rows), "oldest first"
        assert list(self.letters.audit) == self.audit
        assert self.letters.next_id == self.next_id
        assert len(self.letters) == len(self.rows)


TestDeadLetters = DeadLettersModel.TestCase
TestDeadLetters.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_the_audit_is_bounded():
    letters = DeadLetters()
    for number in range(1, AUDIT_COUNT_MAX + 50):
        letters.put(letter_of(number))
        letters.bury(Buried(number, "deleted", "me", 1))
    assert len(letters.audit) == AUDIT_COUNT_MAX
    assert letters.audit[0].id == 50
