"""Workers of one machine with the real client, one seed each; and bugs that this must see."""

import pytest

from lakemq.broker import routing
from lakemq.client import courier
from lakemq.client.outbox import Outbox
from lakemq.client.parcel import Parcel
from lakemq.testing.facts import ViolationError
from lakemq.testing.fleet import Fleet

SEEDS_PER_BLOCK = 20
BLOCKS = 8
BROKEN_ONCE = (
    91,  # I04: a batch of messages with ids and without was sent to another worker after an unknown outcome
)


def run_all(seeds):
    for seed in seeds:
        Fleet(seed).run()


@pytest.mark.sim
@pytest.mark.parametrize("block", range(BLOCKS))
def test_no_promise_is_broken(block):
    run_all(range(block * SEEDS_PER_BLOCK, (block + 1) * SEEDS_PER_BLOCK))


@pytest.mark.parametrize("seed", BROKEN_ONCE)
def test_what_was_broken_once_holds(seed):
    Fleet(seed).run()


def test_a_seed_gives_one_run():
    digests = set()
    for _ in range(2):
        fleet = Fleet(11)
        fleet.run()
        digests.add((fleet.digest, fleet.counts["events"]))
    assert len(digests) == 1


# --- planted ---------------------------------------------------------------------------------------------------------


def unknown_outcome_tried_elsewhere(patch):
    patch.setattr(Parcel, "stay", lambda self: None)


def only_full_batches_of_ids_stay(patch):
    stay = Parcel.stay
    patch.setattr(Parcel, "stay", lambda self: stay(self) if self.has_ids else None)


def unknown_outcome_forgotten(patch):
    patch.setattr(courier, "made_unknown", lambda error: error)


def partition_of_the_outbox_not_written_down(patch):
    patch.setattr(Outbox, "_choose", lambda self, parcel: None)
    patch.setattr(Outbox, "_partition_of", lambda self, entry: entry.partition)


def each_worker_its_own_coordinator(patch):
    patch.setattr(routing, "coordinator_of", lambda app, brokers: next(iter(brokers)))


@pytest.mark.sim
@pytest.mark.parametrize(
    ("plant", "invariant"),
    [
        (unknown_outcome_tried_elsewhere, "I04"),
        (only_full_batches_of_ids_stay, "I04"),
        (unknown_outcome_forgotten, "I03"),
        (partition_of_the_outbox_not_written_down, "I04"),
        (each_worker_its_own_coordinator, "I14"),
    ],
)
def test_the_bug_is_caught(monkeypatch, plant, invariant):
    plant(monkeypatch)
    with pytest.raises(ViolationError, match=invariant):
        run_all(range(150))
