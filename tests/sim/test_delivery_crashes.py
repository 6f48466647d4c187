"""Crashes at every write of a retry, a dead letter, a delay and a commit; at length in `faults/delivery_crashes.py`."""

import pytest

from faults.delivery_crashes import MOVES, crash_states


@pytest.mark.sim
@pytest.mark.parametrize("name", ["retry", "dead letter", "delay"])
def test_F46_a_crash_at_each_write_loses_nothing_and_hurries_nothing(name):
    states = list(crash_states(MOVES[name], seeds=1))
    assert len({point for point, _ in states}) > 5
    assert len({by for _, by in states}) > 5


@pytest.mark.sim
@pytest.mark.parametrize("name", ["commit", "rollback"])
def test_F47_a_crash_at_each_write_leaves_one_outcome(name):
    states = list(crash_states(MOVES[name], seeds=1))
    assert len({point for point, _ in states}) > 5
