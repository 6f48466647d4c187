"""How long to leave a place alone after it failed: longer each time, and never for everybody alike."""

from collections.abc import Callable

Random = Callable[[], float]
"""A number from 0 up to 1; passed in, so that a test can choose it."""


def pause_ms(failures: int, first_ms: int, max_ms: int, random: Random) -> int:
    """The pause after that many failures in a row: doubling, capped, and with the upper half left to chance."""
    full = min(max_ms, first_ms << min(max(failures - 1, 0), 20))
    return full // 2 + int(random() * (full - full // 2 + 1))


class Backoff:
    """The failures in a row of one place, and until when it is left alone."""

    __slots__ = ("_first_ms", "_max_ms", "_random", "_until_ms", "failures")

    def __init__(self, first_ms: int, max_ms: int, random: Random) -> None:
        self._first_ms = first_ms
        self._max_ms = max_ms
        self._random = random
        self._until_ms = 0
        self.failures = 0

    def failed(self, now_ms: int) -> None:
        """One more."""
        self.failures += 1
        self._until_ms = now_ms + pause_ms(self.failures, self._first_ms, self._max_ms, self._random)

    def worked(self) -> None:
        """The next failure is a first one again."""
        self.failures = 0
        self._until_ms = 0

    def left_ms(self, now_ms: int) -> int:
        """How long to wait still; 0 if it may be tried."""
        return max(self._until_ms - now_ms, 0) if self.failures else 0
