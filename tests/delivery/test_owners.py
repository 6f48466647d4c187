"""Owners against the simplest thing that could be right: who has what until when, and a plain queue of the rest."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from lakemq.delivery.owners import Lease, Owners

PARTITIONS = st.integers(0, 5)
CONSUMERS = st.integers(1, 3)


class OwnersModel(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.owners = Owners(range(4))
        self.ready = list(range(4))
        self.leases = {}  # partition → (consumer, end)
        self.now_ms = 0

    def offered(self, partition):
        if partition not in self.ready:
            self.ready.append(partition)

    @rule(partition=PARTITIONS)
    def offer(self, partition):
        self.owners.offer(partition)
        if partition not in self.leases:
            self.offered(partition)

    @rule(consumer=CONSUMERS, lease_ms=st.integers(0, 30), has_something=st.booleans())
    def take(self, consumer, lease_ms, has_something):
        partition = self.owners.take_ready()
        assert partition == (self.ready.pop(0) if self.ready else None), "whose turn it is"
        if partition is not None and has_something:
            assert partition not in self.leases
            self.owners.lend(partition, Lease(consumer, 0, 5, self.now_ms + lease_ms))
            self.leases[partition] = (consumer, self.now_ms + lease_ms)

    @rule(partition=PARTITIONS)
    def release(self, partition):
        self.owners.release(partition)
        self.leases.pop(partition, None)
        self.offered(partition)

    @rule(partition=PARTITIONS, consumer=CONSUMERS, lease_ms=st.integers(-5, 40))
    def extend(self, partition, consumer, lease_ms):
        held = self.leases.get(partition)
        is_mine = held is not None and held[0] == consumer
        assert self.owners.extend(partition, consumer, self.now_ms + lease_ms) is is_mine
        if is_mine:
            self.leases[partition] = (consumer, self.now_ms + lease_ms)

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def extend_often(self, data):
        """Entries of the past do not pile up, and do not end anything early."""
        partition = data.draw(st.sampled_from(sorted(self.leases)))
        consumer, _ = self.leases[partition]
        for more_ms in range(100):
            assert self.owners.extend(partition, consumer, self.now_ms + more_ms)
        self.leases[partition] = (consumer, self.now_ms + 99)
        assert len(self.owners._ends) <= 2 * len(self.leases) + 65

    @rule(consumer=CONSUMERS)
    def release_all(self, consumer):
        held = [partition for partition, (who, _) in self.leases.items() if who == consumer]
        assert self.owners.release_all(consumer) is bool(held)
        for partition in held:
            del self.leases[partition]
            assert partition not in self.ready
        freed = set(held)
        assert {one for one in self.drained() if one in freed} == freed

    @rule(spent_ms=st.integers(0, 25))
    def pass_time(self, spent_ms):
        self.now_ms += spent_ms
        over = {partition for partition, (_, end_ms) in self.leases.items() if end_ms <= self.now_ms}
        assert set(self.owners.release_expired(self.now_ms)) == over
        for partition in over:
            del self.leases[partition]
        assert set(self.drained()) >= over

    def drained(self):
        """The queue, looked at by taking all out and offering it again in the same order."""
        found = []
        while (partition := self.owners.take_ready()) is not None:
            found.append(partition)
        for partition in found:
            self.owners.offer(partition)
        assert found[: len(self.ready)] == self.ready, "who waited before keeps his turn"
        self.ready = found
        return found

    @invariant()
    def is_what_the_model_says(self):
        owners = self.owners
        assert owners.lent_count == len(self.leases)
        assert owners.has_ready is bool(self.ready)
        assert not self.leases.keys() & set(self.ready), "lent and offered at once"
        for partition in range(6):
            lease = owners.lease(partition)
            assert (lease and (lease.consumer, lease.end_ms)) == self.leases.get(partition)
        for consumer in range(1, 4):
            assert owners.held_count(consumer) == sum(who == consumer for who, _ in self.leases.values())

    def teardown(self):
        """Whatever happened, everything can be lent again."""
        self.owners.release_expired(1 << 60)
        for partition in range(6):
            self.owners.offer(partition)
        assert sorted(self.drained()) == list(range(6))


def test_an_extended_lease_does_not_end_when_it_would_have():
    owners = Owners([0])
    owners.lend(0, Lease(1, 0, 5, 10))
    assert owners.extend(0, 1, 11)
    assert owners.release_expired(10) == []
    assert owners.release_expired(11) == [0]


TestOwners = OwnersModel.TestCase
TestOwners.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)
