"""The guarded clock: runs with the monotonic one, follows drift, doubts steps (R10, F41)."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakemq.broker.events import Now
from lakemq.delivery.guarded_clock import GuardedClock
from lakemq.testing.clock import START_WALL_MS, SimClock

MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000


class Guarded:
    """A guarded clock over one that tests can move; `true_ms` is what the wall clock says if nobody sets it."""

    def __init__(self, **details):
        self.clock = SimClock()
        self.guard = GuardedClock(**details)
        self.true_ms = START_WALL_MS
        self.read()

    def read(self):
        return self.guard.read(_Now(self.clock))

    def pass_ms(self, spent_ms, every_ms=20):
        """Time goes by, with a reading now and then."""
        for _ in range(spent_ms // every_ms):
            self.clock.pass_ms(every_ms)
            self.read()
        self.clock.pass_ms(spent_ms % every_ms)
        self.true_ms += spent_ms

    @property
    def off_ms(self):
        return self.read() - self.true_ms


class _Now:
    def __init__(self, clock):
        self.wall_ms, self.monotonic_ms = clock.wall_ms(), clock.monotonic_ms()


def test_it_begins_with_wall_time_and_runs():
    guarded = Guarded()
    guarded.pass_ms(12_345)
    assert guarded.off_ms == 0


@pytest.mark.parametrize("step_ms", [HOUR, -HOUR, -3 * DAY, 2000, -2000])
def test_F41_a_step_of_the_wall_clock_is_not_believed_at_once(step_ms):
    guarded = Guarded()
    guarded.clock.jump_wall(step_ms)
    guarded.pass_ms(5 * MINUTE - 100)
    assert guarded.off_ms == 0


@pytest.mark.parametrize("step_ms", [HOUR, -HOUR, -3 * DAY])
def test_F41_a_step_that_lasts_is_taken_over(step_ms):
    guarded = Guarded()
    guarded.clock.jump_wall(step_ms)
    guarded.pass_ms(5 * MINUTE + 100)
    assert guarded.off_ms == step_ms
    assert guarded.guard.steps_back == (1 if step_ms < 0 else 0)


def test_F41_a_step_that_is_taken_back_never_was():
    guarded = Guarded()
    for step_ms in (HOUR, -HOUR, -DAY, DAY):
        guarded.clock.jump_wall(step_ms)
        guarded.pass_ms(4 * MINUTE)
        assert guarded.off_ms == 0
        guarded.clock.jump_wall(-step_ms)
        guarded.pass_ms(4 * MINUTE)
        assert guarded.off_ms == 0


def test_a_second_step_is_doubted_anew():
    guarded = Guarded()
    guarded.clock.jump_wall(HOUR)
    guarded.pass_ms(4 * MINUTE)
    guarded.clock.jump_wall(HOUR)
    guarded.pass_ms(4 * MINUTE)
    assert guarded.off_ms == 0
    guarded.pass_ms(2 * MINUTE)
    assert guarded.off_ms == 2 * HOUR


def test_a_short_step_back_is_waited_out():
    guarded = Guarded()
    guarded.clock.jump_wall(-5000)
    guarded.pass_ms(5 * MINUTE)
    before = guarded.read()
    guarded.pass_ms(2000)
    assert guarded.read() <= before + 20, "it stands still"
    guarded.pass_ms(10_000)
    assert guarded.off_ms == -5000
    assert guarded.guard.steps_back == 0


@pytest.mark.parametrize("off_ms", [900, -900])
def test_drift_is_followed_slowly(off_ms):
    guarded = Guarded()
    guarded.clock.jump_wall(off_ms)
    guarded.pass_ms(1600, every_ms=160)
    assert 0 < abs(guarded.off_ms) <= 100
    guarded.pass_ms(20_000, every_ms=160)
    assert guarded.off_ms == off_ms


def test_a_clock_that_is_set_forward_again_and_again_does_not_run_away():
    guarded = Guarded()
    for _ in range(1000):
        guarded.clock.jump_wall(900)
        guarded.pass_ms(20)
    assert guarded.off_ms <= 20_000 // 16 + 1


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 400_000), st.one_of(st.integers(-3000, 3000), st.sampled_from((HOUR, -HOUR, -DAY)))),
        max_size=30,
    )
)
def test_readings_keep_to_what_is_promised(moves):
    clock, guard = SimClock(), GuardedClock()
    last = guard.read(_Now(clock))
    far_since = None
    for spent_ms, step_ms in moves:
        clock.pass_ms(spent_ms)
        clock.jump_wall(step_ms)
        steps_back = guard.steps_back
        now = guard.read(_Now(clock))
        if guard.steps_back == steps_back:
            assert now >= last, "it went back and does not say so"
        if now - last > spent_ms + spent_ms // 16 + 1 or now < last:  # what short readings owe may come with one
            assert now == clock.wall_ms(), "it jumped, and not to where the wall clock is"
            assert far_since is not None
            assert clock.monotonic_ms() - far_since >= 300_000, "it jumped too soon"
        is_far = abs(clock.wall_ms() - now) >= 1000
        far_since = (far_since or clock.monotonic_ms()) if is_far else None
        last = now


def test_milliseconds_that_begin_at_different_moments_make_nothing_early():
    """Wall and monotonic time in microseconds, each told in whole milliseconds."""
    for fraction in range(0, 1000, 50):
        clock = GuardedClock()
        for at_us in range(0, 200_000, 777):
            wall_ms, monotonic_ms = (5_000_000_000 + at_us) // 1000, (fraction + at_us) // 1000
            assert clock.read(Now(wall_ms, monotonic_ms)) <= wall_ms
