"""Partitions over members: all of them, evenly, and moved no more than needed."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from lakemq.cluster.assignment import Assignment, coordinator_of

MEMBERS = st.sampled_from("abcdefg")


class AssignmentModel(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.assignment = Assignment()
        self.partitions = range(5)
        self.ends_ms = {}  # member → when it is out, in the order they came
        self.held = {}  # what each was told, or would be
        self.now_ms = 0

    def look(self):
        """What everybody has, without asking as a member."""
        return {member: list(held) for member, held in self.assignment._held.items() if member in self.ends_ms}

    @rule(member=MEMBERS, session_ms=st.integers(1, 40))
    def join(self, member, session_ms):
        before = {one: set(held) for one, held in self.look().items()}
        is_new = member not in self.ends_ms
        found = self.assignment.join(member, self.partitions, self.now_ms, session_ms)
        self.ends_ms[member] = self.now_ms + session_ms
        gone = {one for one, end_ms in self.ends_ms.items() if end_ms <= self.now_ms}
        for one in gone:
            del self.ends_ms[one]
        after = {one: set(held) for one, held in self.look().items()}
        assert set(found) == after[member]
        assert found == sorted(found)
        if not is_new and not gone:
            assert after == before or self.grew, "asking again moves nothing"
        if is_new and not gone and not self.grew:
            for one, held in before.items():
                assert after[one] <= held, "who was there gets nothing new when another comes"
        self.grew = False

    grew = False

    @rule(member=MEMBERS)
    def leave(self, member):
        before = {one: set(held) for one, held in self.look().items()}
        self.assignment.leave(member)
        if self.ends_ms.pop(member, None) is not None and not self.grew:
            for one, held in self.look().items():
                assert set(held) >= before[one], "nobody loses by another's leaving"

    @rule(spent_ms=st.integers(0, 30))
    def pass_time(self, spent_ms):
        self.now_ms += spent_ms

    @rule(more=st.integers(1, 4))
    def grow(self, more):
        self.partitions = range(len(self.partitions) + more)
        self.grew = True

    @rule(member=MEMBERS, count_max=st.integers(0, 8))
    def ask_for_room(self, member, count_max):
        alive = sum(end_ms > self.now_ms for end_ms in self.ends_ms.values())
        expected = member in self.ends_ms or alive < count_max
        assert self.assignment.has_room(member, self.now_ms, count_max) is expected

    @invariant()
    def all_are_spread_and_evenly(self):
        assert self.assignment.member_count == len(self.ends_ms)
        shares = self.look()
        assert list(shares) == list(self.ends_ms), "in the order they came"
        if shares:
            given_out = sorted(one for share in shares.values() for one in share)
            assert given_out == list(self.assignment._partitions), "each partition to one, none to nobody"
            sizes = list(map(len, shares.values()))
            assert max(sizes) - min(sizes) <= 1
            assert sizes == sorted(sizes, reverse=True), "the last to come stand by"


TestAssignment = AssignmentModel.TestCase
TestAssignment.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)


# --- who coordinates --------------------------------------------------------------------------------------------------


def test_every_broker_names_the_same_coordinator_in_whatever_order_it_knows_them():
    for number in range(200):
        app = f"app-{number}"
        assert len({coordinator_of(app, order) for order in ((0, 1, 2), (2, 1, 0), (1, 2, 0))}) == 1


def test_apps_are_shared_out_among_the_brokers_and_one_more_takes_its_share_only():
    apps = [f"app-{number}" for number in range(3000)]
    three, four = ({app: coordinator_of(app, range(count)) for app in apps} for count in (3, 4))
    for broker in range(3):
        assert 800 < list(three.values()).count(broker) < 1200
    assert {four[app] for app in apps if four[app] != three[app]} == {3}
