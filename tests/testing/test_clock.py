"""The clock that is moved by hand."""

import pytest

from lakemq.testing.clock import SimClock


def test_it_stands_still():
    clock = SimClock(wall_ms=5000, monotonic_ms=70)
    assert (clock.wall_ms(), clock.monotonic_ms()) == (5000, 70)
    assert (clock.wall_ms(), clock.monotonic_ms()) == (5000, 70)


def test_time_passes_by_both_clocks():
    clock = SimClock(wall_ms=5000, monotonic_ms=70)
    clock.pass_ms(30)
    assert (clock.wall_ms(), clock.monotonic_ms()) == (5030, 100)


@pytest.mark.parametrize("by_ms", [3_600_000, -3_600_000])
def test_F41_the_wall_clock_alone_may_jump(by_ms):
    clock = SimClock(wall_ms=5000, monotonic_ms=70)
    clock.jump_wall(by_ms)
    assert (clock.wall_ms(), clock.monotonic_ms()) == (5000 + by_ms, 70)


def test_time_does_not_go_back():
    with pytest.raises(ValueError, match="jump_wall"):
        SimClock().pass_ms(-1)
