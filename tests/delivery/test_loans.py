"""Leases: who has what, what comes back, what is lent next; together with the ack index, against the simplest model."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, multiple, rule

from lakemq.delivery.ack_index import AckIndexes
from lakemq.delivery.intervals import Intervals, runs_of
from lakemq.delivery.loans import Lease, Loans

END = 40
APP, PARTITION = 1, 0
CONSUMERS = st.sampled_from([7, 8, 9])
INDEXES = st.sets(st.integers(0, END - 1), max_size=12)


class LoansModel(RuleBasedStateMachine):
    """Parallel consumption of one partition: several leases out, acks in any order, some messages that wait."""

    lent = Bundle("lent")

    def __init__(self):
        super().__init__()
        self.loans = Loans([PARTITION])
        self.acks = AckIndexes()
        self.now_ms = 0
        self.waiting = set()
        self.done = set()
        self.held = {}  # index -> consumer
        self.leases = []

    def _not_now(self):
        return Intervals([*self.acks.beyond(APP, PARTITION), *((one, one + 1) for one in self.waiting)])

    @rule(target=lent, consumer=CONSUMERS, count=st.integers(1, 6), lease_ms=st.integers(1, 60))
    def lend(self, consumer, count, lease_ms):
        first, stop = self.loans.next_run(PARTITION, self.acks.get(APP, PARTITION), self._not_now())
        after = min(first + count, END if stop is None else min(stop, END))
        if first >= after:
            return multiple()
        indexes = range(first, after)
        assert not self.done.intersection(indexes), "a finished message came back"
        assert not self.waiting.intersection(indexes), "a message came before its time"
        assert not set(self.held).intersection(indexes), "a message is in two hands"
        lease = Lease(consumer, PARTITION, first, after, self.now_ms + lease_ms)
        self.loans.lend(lease)
        self.leases.append(lease)
        self.held.update(dict.fromkeys(indexes, consumer))
        return multiple(*indexes)

    @rule(index=lent)
    def ack(self, index):
        self._settle(index, index + 1)

    @rule(index=lent, count=st.integers(1, 5))
    def ack_some(self, index, count):
        after = next(one for one in range(index, index + count + 1) if one == index + count or one >= END)
        if all(one in self.held or one in self.done for one in range(index, after)):
            self._settle(index, after)

    def _settle(self, first, after):
        self.acks.settle(APP, PARTITION, first, after)
        self.loans.settle(PARTITION, first, after)
        self._done_with(range(first, after))

    def _done_with(self, indexes):
        for index in indexes:
            self.held.pop(index, None)
        self.done.update(indexes)
        self.waiting -= set(indexes)

    @rule(indexes=INDEXES)
    def ack_many(self, indexes):
        indexes &= self.held.keys() | self.done
        for consumer in {self.held.get(one) for one in indexes}:
            mine = runs_of(one for one in indexes if self.held.get(one) == consumer)
            assert self._wrong(consumer or 0, mine) is None
        others = [one for one in sorted(indexes) if self.held.get(one, 7) != 7]
        assert self._wrong(7, [(one, one + 1) for one in sorted(indexes)]) == (
            (others[0], others[0] + 1) if others else None
        )
        runs = runs_of(indexes)
        self.acks.settle_runs(APP, PARTITION, runs)
        self.loans.settle_shares(PARTITION, self.loans.shares(PARTITION, runs))
        self._done_with(indexes)

    def _wrong(self, consumer, runs):
        beyond = Intervals([(0, self.acks.get(APP, PARTITION)), *self.acks.beyond(APP, PARTITION)])
        return self.loans.not_to_settle(PARTITION, consumer, self.loans.shares(PARTITION, runs), -1, beyond)

    @rule(indexes=INDEXES)
    def ack_and_take_it_back(self, indexes):
        """An ack that was not written: of a lease that it did not end all stays where it was."""
        lease_of = {one: self.loans.lease_of(PARTITION, one) for one in indexes if one in self.held}
        runs = runs_of(lease_of)
        self.loans.settle_shares(PARTITION, self.loans.shares(PARTITION, runs))
        for run in reversed(runs):
            self.loans.reopen(PARTITION, *run)
        for index, lease in lease_of.items():
            if lease.is_over:
                del self.held[index]

    @rule(index=lent)
    def fail_and_wait(self, index):
        if index in self.held:
            lease = self.loans.lease_of(PARTITION, index)
            self._forget(lease)
            self.loans.give_back(PARTITION, index, index + 1)
            self.waiting.add(index)

    @rule()
    def all_are_due(self):
        self.waiting.clear()

    @rule(consumer=CONSUMERS)
    def leave(self, consumer):
        had_some = consumer in self.held.values()
        assert self.loans.release_all(consumer) == had_some
        self.held = {index: one for index, one in self.held.items() if one != consumer}

    @rule(passed_ms=st.integers(1, 50))
    def time_passes(self, passed_ms):
        self.now_ms += passed_ms
        due = [one for one in self.leases if not one.is_over and one.end_ms <= self.now_ms]
        for lease in due:
            self._forget(lease)
        assert {id(one) for one in self.loans.take_expired(self.now_ms)} == {id(one) for one in due}

    @rule(consumer=CONSUMERS, more_ms=st.integers(1, 90))
    def extend(self, consumer, more_ms):
        had_some = consumer in self.held.values()
        assert self.loans.extend(PARTITION, consumer, self.now_ms + more_ms) == had_some

    @rule()
    def restart(self):
        """Nothing is lent; what waits is known again from the journal."""
        self.loans = Loans([PARTITION])
        self.held.clear()
        self.leases.clear()

    @rule(index=st.integers(0, END))
    def seek(self, index):
        self.acks.apply([(APP, PARTITION, index)])
        self.loans.move(PARTITION, index)
        self.held.clear()
        self.waiting.clear()
        self.done = set(range(index))

    def _forget(self, lease):
        for run in lease.open:
            for index in range(*run):
                self.held.pop(index, None)

    @invariant()
    def leases_are_what_is_held(self):
        found = {
            index: one.consumer for one in self.loans.leases(PARTITION) for run in one.open for index in range(*run)
        }
        assert found == self.held
        assert self.loans.lent_count == len(self.loans.leases(PARTITION))
        for index in range(END):
            lease = self.loans.lease_of(PARTITION, index)
            assert (lease.consumer if lease is not None else None) == self.held.get(index)

    @invariant()
    def the_lowest_that_is_free_comes_next(self):
        free = [one for one in range(END) if one not in self.held and one not in self.done | self.waiting]
        first, _ = self.loans.next_run(PARTITION, self.acks.get(APP, PARTITION), self._not_now())
        assert first == (free[0] if free else first)
        assert first >= END or first in free

    def teardown(self):
        """Whatever happened, the rest can still be finished."""
        self.waiting.clear()
        self.loans.release_partition(PARTITION)
        for _ in range(END):
            first, stop = self.loans.next_run(PARTITION, self.acks.get(APP, PARTITION), self._not_now())
            if first < END:
                after = min(END, stop or END)
                self.loans.lend(Lease(7, PARTITION, first, after, 1 << 40))
                self._settle(first, after)
        assert self.acks.get(APP, PARTITION) == END


TestLoans = LoansModel.TestCase
TestLoans.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)


def test_who_may_settle_what():
    loans = Loans([0])
    loans.lend(Lease(1, 0, 5, 8, 100))
    loans.lend(Lease(2, 0, 8, 10, 100))

    def wrong(consumer, *runs, partition=0, base=0, done=()):
        shares = loans.shares(partition, list(runs))
        return loans.not_to_settle(partition, consumer, shares, base, Intervals(done))

    assert wrong(1, (5, 8)) is None
    assert wrong(1, (5, 6), (7, 8)) is None
    assert wrong(1, (5, 9)) == (5, 9), "one of another"
    assert wrong(1, (5, 6), (7, 8), (9, 10)) == (9, 10), "the first that is wrong"
    assert wrong(1, (10, 11)) == (10, 11), "never lent"
    assert wrong(1, (1, 2), partition=4) == (1, 2), "nor anything of that partition"
    assert wrong(3, (6, 7)) == (6, 7)
    loans.release_all(1)
    assert wrong(3, (5, 8)) is None, "it was lent, and is nobody's now"
    assert wrong(3, (5, 10), done=[(8, 10)]) is None, "or done with"
    assert wrong(3, (8, 9), (9, 10), base=8) == (9, 10), "from where the app is all may be settled"


def test_where_a_lease_begins_for_its_consumer():
    loans = Loans([PARTITION])
    loans.lend(Lease(7, PARTITION, 3, 6, 100))
    assert [index for index in range(8) if loans.begins_lease(PARTITION, 7, index)] == [3]
    assert not loans.begins_lease(PARTITION, 8, 3), "of somebody else"
    loans.settle(PARTITION, 3, 4)
    assert [index for index in range(8) if loans.begins_lease(PARTITION, 7, index)] == [4], "what is left of it"
    loans.settle(PARTITION, 4, 6)
    assert not any(loans.begins_lease(PARTITION, 7, index) for index in range(8))


def test_partitions_take_turns():
    loans = Loans([0, 1, 2])
    assert [loans.take_ready() for _ in range(4)] == [0, 1, 2, None]
    loans.offer(1)
    loans.offer(0)
    loans.offer(1)
    assert [loans.take_ready() for _ in range(3)] == [1, 0, None]


def test_what_is_deferred_is_offered_in_time():
    loans = Loans([4])
    loans.defer(4, 50)
    assert not loans.has_ready
    loans.offer_deferred(49)
    assert not loans.has_ready
    loans.offer_deferred(50)
    assert loans.take_ready() == 4


def test_what_had_to_wait_is_lent_before_what_is_new():
    """After a restart nothing is known to have been lent, and what waits is passed over."""
    loans = Loans([0])
    assert loans.next_run(0, 3, Intervals([(3, 5)])) == (5, None)
    loans.lend(Lease(1, 0, 5, 6, 100))
    assert loans.next_run(0, 3, Intervals()) == (3, 5)


def test_consumers_count_by_partition():
    loans = Loans()
    for partition, first in ((0, 0), (0, 5), (1, 0)):
        loans.lend(Lease(1, partition, first, first + 2, 100))
    assert loans.held_count(1) == 2
    assert loans.held_count(2) == 0


def test_entries_of_ended_leases_do_not_pile_up():
    loans = Loans()
    for number in range(2000):
        loans.lend(Lease(1, 0, number, number + 1, number))
        loans.settle(0, number, number + 1)
    assert len(loans._ends) < 200
