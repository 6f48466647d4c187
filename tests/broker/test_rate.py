"""Rate against a ledger of all that was used: never more than a second's worth at once, and as much as promised."""

from fractions import Fraction

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from lakemq.broker.limits import Rate


class RateModel(RuleBasedStateMachine):
    """The same in whole fractions, beside a plain account of what was let through."""

    @initialize(per_second=st.sampled_from([1, 3, 10, 1000]), now_ms=st.integers(0, 10**9))
    def begin(self, per_second, now_ms):
        self.rate = Rate(per_second, now_ms)
        self.per_second = per_second
        self.began_ms = self.now_ms = now_ms
        self.left = Fraction(per_second)
        self.used = self.largest = 0

    @rule(amount=st.one_of(st.integers(0, 5), st.integers(0, 3000)))
    def take(self, amount):
        allowed = self.rate.take(amount, self.now_ms)
        if abs(self.left) > Fraction(1, 1000):  # closer than that, a float may say either
            assert allowed is (self.left > 0)
        if allowed:
            self.left -= amount
            self.used += amount
            self.largest = max(self.largest, amount)
        earned = self.per_second + Fraction((self.now_ms - self.began_ms) * self.per_second, 1000)
        assert self.used <= earned + self.largest, "one use may overdraw, and no more than one"

    @rule(spent_ms=st.one_of(st.integers(0, 3), st.integers(0, 5000)))
    def pass_time(self, spent_ms):
        self.now_ms += spent_ms
        self.left = min(self.left + Fraction(spent_ms * self.per_second, 1000), Fraction(self.per_second))

    @rule()
    def whoever_waits_long_enough_is_served(self):
        debt = max(-self.left, 0)
        self.pass_time(int(debt * 1000 / self.per_second) + 1002)
        assert self.rate.take(0, self.now_ms)
        assert self.left > 0


TestRate = RateModel.TestCase
TestRate.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)


def test_no_rate_is_no_limit():
    rate = Rate(0, 5)
    assert all(rate.take(1 << 40, 5) for _ in range(100))


def test_nothing_is_too_large_for_ever():
    rate = Rate(10, 0)
    assert rate.take(1000, 0)
    assert not rate.take(1, 98_000)
    assert rate.take(1000, 99_001)
