"""The real clock."""

import time

from lakemq.clock import Clock


class RealClock(Clock):
    """What the machine says."""

    def monotonic_ms(self) -> int:
        """Milliseconds since the machine was started, about."""
        return time.monotonic_ns() // 1_000_000

    def wall_ms(self) -> int:
        """Milliseconds since 1970."""
        return time.time_ns() // 1_000_000
