"""A clock that stands still until it is moved: wall time and monotonic time, together or wall time alone."""

START_WALL_MS = 1_750_000_000_000


class SimClock:
    """A Clock for tests. `pass_ms` lets time go by; `jump_wall` is somebody who sets the wall clock (F41)."""

    def __init__(self, wall_ms: int = START_WALL_MS, monotonic_ms: int = 1_000_000) -> None:
        self._wall_ms = wall_ms
        self._monotonic_ms = monotonic_ms

    def monotonic_ms(self) -> int:
        """As `Clock` says."""
        return self._monotonic_ms

    def wall_ms(self) -> int:
        """As `Clock` says."""
        return self._wall_ms

    def pass_ms(self, spent_ms: int) -> None:
        """So much time goes by, by both clocks."""
        if spent_ms < 0:
            raise ValueError(f"time does not go back by {-spent_ms} ms; jump_wall sets the wall clock")
        self._monotonic_ms += spent_ms
        self._wall_ms += spent_ms

    def jump_wall(self, by_ms: int) -> None:
        """Set the wall clock forward or back; no time goes by."""
        self._wall_ms += by_ms
