"""The clock of the machine."""

import time


class SystemClock:
    """Fulfils `lakemq.clock.Clock`."""

    def monotonic_ms(self) -> int:
        """Since some fixed moment."""
        return time.monotonic_ns() // 1_000_000

    def wall_ms(self) -> int:
        """Since 1970."""
        return time.time_ns() // 1_000_000
