"""Random work, cut off anywhere, recovered, and held against what was promised; one bit flipped after the other.

The same at length: `python -m tests.faults.crash_states --states 10000 --flips 100000`.
"""

from collections import Counter

import pytest

from faults.bit_flips import Flips
from faults.crash_states import CRASHES_PER_SEED
from storage.fix_fold import FoldStore

SEEDS_PER_BLOCK = 20
CRASH_BLOCKS = 16  # of 20 seeds with 5 crashes each: 1 600 states


@pytest.mark.sim
@pytest.mark.parametrize("block", range(CRASH_BLOCKS))
def test_F10_what_was_promised_holds_after_every_crash(block):
    for seed in range(block * SEEDS_PER_BLOCK, (block + 1) * SEEDS_PER_BLOCK):
        store = FoldStore(seed)
        try:
            store.run()
        except Exception as error:
            error.add_note(f"python -m tests.faults.crash_states --seed {seed} --only")
            raise
        assert store.state_count == CRASHES_PER_SEED


@pytest.mark.sim
@pytest.mark.parametrize("seed", range(10_000, 10_004))
def test_F21_a_flipped_bit_is_never_given_out_and_costs_nothing_else(seed):
    flips = Flips(seed)
    for _ in range(50):
        flips.flip_at_rest()
        for _ in range(9):
            flips.flip_running()


@pytest.mark.sim
def test_the_work_is_varied_enough_to_mean_something():
    """A run that never rolls, refuses, syncs or drops anything would find nothing."""
    seen = sum((one.seen for one in map(run, range(500, 560))), start=Counter())
    for thing in ("sync", "checkpoint", "dropped", "refused", "kill", "read-only", "cap", "harm", "one refused"):
        assert seen[thing] > 0, thing


def run(seed):
    store = FoldStore(seed)
    store.run()
    return store


def test_a_seed_gives_the_same_run_again():
    first, second = run(3), run(3)
    assert first.seen == second.seen
    assert first.oracle.records == second.oracle.records
