"""Wall time that does not jump: what due times are compared with (R10, F41).

Not known here: where the time comes from. It is handed in with each reading, wall and monotonic time together.
"""

from typing import Protocol

# Both times are told in whole milliseconds, which do not begin at the same moment: so far the two may seem to differ.
# Then the earlier one counts, for nothing may happen before its time.
_JITTER_MS = 2
_SLEW = 16  # of so much time that passes, at most one part goes into following the wall clock


class BothTimes(Protocol):
    """The time as the world tells it."""

    @property
    def wall_ms(self) -> int: ...

    @property
    def monotonic_ms(self) -> int: ...


class GuardedClock:
    """Runs with the monotonic clock and keeps an eye on the wall clock.

    What it promises:

    - It begins with the wall time of its first reading, and runs with the monotonic clock.
    - A wall clock that is less than `drift_ms` off is followed, by at most one sixteenth of the time that passes: no
      reading is further from the one before than 17/16 of the time between them and a millisecond.
    - A wall clock that is further off was set by somebody, or jumped. That is not believed until it has stayed where
      it went, to within `drift_ms`, for `trust_ms`. Then it is taken over in one step: forward at once; back by
      standing still, if that is over within `still_max_ms`.
    - It goes back in one case only: a step back of more than that has lasted. Standing still for hours would hold up
      all that waits for a few seconds; whoever relies on an order of readings asks `steps_back`.
    """

    def __init__(self, trust_ms: int = 300_000, drift_ms: int = 1000, still_max_ms: int = 10_000) -> None:
        self._trust_ms = trust_ms
        self._drift_ms = drift_ms
        self._still_max_ms = still_max_ms
        self._offset_ms: int | None = None  # wall time less monotonic time, as far as it is believed
        self._slewed_at_ms = 0  # monotonic
        self._strange_ms: int | None = None  # how far off the wall clock was when it was first seen to be
        self._strange_since_ms = 0  # monotonic
        self._last_ms = 0
        self.steps_back = 0

    def read(self, now: BothTimes) -> int:
        """The guarded time in milliseconds since 1970."""
        monotonic_ms = now.monotonic_ms
        if self._offset_ms is None:
            self._offset_ms = now.wall_ms - monotonic_ms
            self._slewed_at_ms = monotonic_ms
            self._last_ms = now.wall_ms
            return now.wall_ms
        off_ms = now.wall_ms - monotonic_ms - self._offset_ms
        if off_ms == 0:
            self._strange_ms = None
            self._slewed_at_ms = monotonic_ms
        elif -self._drift_ms < off_ms < self._drift_ms:
            self._strange_ms = None
            self._follow(off_ms, monotonic_ms)
        else:
            self._doubt(off_ms, monotonic_ms)
        guarded_ms = monotonic_ms + self._offset_ms
        if -_JITTER_MS <= off_ms < 0:
            guarded_ms = now.wall_ms
        if guarded_ms < self._last_ms - self._still_max_ms:
            self.steps_back += 1
        elif guarded_ms < self._last_ms:
            return self._last_ms
        self._last_ms = guarded_ms
        return guarded_ms

    def _follow(self, off_ms: int, monotonic_ms: int) -> None:
        step_ms = (monotonic_ms - self._slewed_at_ms) // _SLEW
        if step_ms > 0:
            assert self._offset_ms is not None
            self._offset_ms += max(-step_ms, min(step_ms, off_ms))
            self._slewed_at_ms = monotonic_ms

    def _doubt(self, off_ms: int, monotonic_ms: int) -> None:
        self._slewed_at_ms = monotonic_ms
        if self._strange_ms is None or abs(off_ms - self._strange_ms) >= self._drift_ms:
            self._strange_ms = off_ms
            self._strange_since_ms = monotonic_ms
        elif monotonic_ms - self._strange_since_ms >= self._trust_ms:
            assert self._offset_ms is not None
            self._offset_ms += off_ms
            self._strange_ms = None
