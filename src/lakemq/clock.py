"""Clock, a protocol: the two kinds of time that the world can tell.

Durations and deadlines use the monotonic one; wall time is for due times and retention that users see (R10).
"""

from typing import Protocol


class Clock(Protocol):
    """Tells the time; the core never asks it, the world does and hands the answer in as `now_ms`."""

    def monotonic_ms(self) -> int:
        """Milliseconds since some fixed moment; never goes back."""
        ...

    def wall_ms(self) -> int:
        """Milliseconds since 1970; may jump in either direction."""
        ...
