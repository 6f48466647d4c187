"""Stuck messages and leases that ran out, as a fold."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from lakemq.delivery.setbacks import Setbacks
from lakemq.delivery.settlement import LeaseEnded, Stuck

SUBSCRIPTIONS, PARTITIONS = st.sampled_from([1, 2]), st.sampled_from([0, 1])


class StuckModel(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.setbacks = Setbacks()
        self.stuck = {}
        self.undos = []

    @rule(subscription=SUBSCRIPTIONS, partition=PARTITIONS, index=st.integers(0, 4), attempts=st.integers(0, 3))
    def put(self, subscription, partition, index, attempts):
        row = Stuck(subscription, partition, index, attempts, 50, 10)
        self.undos.append((self.setbacks.put(row), dict(self.stuck)))
        if attempts:
            self.stuck[subscription, partition, index] = row
        else:
            self.stuck.pop((subscription, partition, index), None)

    @precondition(lambda self: self.undos)
    @rule()
    def undo(self):
        undo, self.stuck = self.undos.pop()
        undo()

    @rule(kept=st.sets(SUBSCRIPTIONS))
    def pack_and_restore(self, kept):
        data = self.setbacks.pack(kept)
        self.setbacks = Setbacks()
        self.setbacks.restore(data)
        self.stuck = {key: row for key, row in self.stuck.items() if key[0] in kept}
        self.undos = []

    @invariant()
    def is_what_the_model_says(self):
        for subscription in (1, 2):
            for partition in (0, 1):
                mine = {key[2]: row for key, row in self.stuck.items() if key[:2] == (subscription, partition)}
                assert self.setbacks.stuck(subscription, partition) == mine


TestStuck = StuckModel.TestCase
TestStuck.settings = settings(max_examples=50, stateful_step_count=25, deadline=None)


def test_leases_are_counted_by_what_they_had():
    setbacks = Setbacks()
    assert setbacks.times_ended(1, 0, 0, 5) == 0
    setbacks.ended(LeaseEnded(1, 0, 0, 5))
    undo = setbacks.ended(LeaseEnded(1, 0, 0, 5))
    assert setbacks.times_ended(1, 0, 0, 5) == 2
    assert setbacks.times_ended(1, 0, 3, 9) == 2, "one that had some of the same"
    assert setbacks.times_ended(1, 0, 5, 9) == 0
    assert setbacks.times_ended(1, 1, 0, 5) == setbacks.times_ended(2, 0, 0, 5) == 0
    undo()
    assert setbacks.times_ended(1, 0, 0, 5) == 1


def test_what_is_passed_is_forgotten():
    setbacks = Setbacks()
    setbacks.ended(LeaseEnded(1, 0, 0, 5))
    setbacks.forget_below(1, 0, 4)
    assert setbacks.times_ended(1, 0, 4, 5) == 1
    setbacks.forget_below(1, 0, 5)
    assert setbacks.times_ended(1, 0, 0, 5) == 0
    assert not setbacks.has_ended


def test_counts_come_back_from_their_bytes():
    setbacks, again = Setbacks(), Setbacks()
    for _ in range(3):
        setbacks.ended(LeaseEnded(1, 0, 2, 5))
    setbacks.ended(LeaseEnded(2, 0, 2, 5))
    again.restore(setbacks.pack([1]))
    assert again.times_ended(1, 0, 0, 9) == 3
    assert again.times_ended(2, 0, 0, 9) == 0
    assert Setbacks().pack([1]) == b""
