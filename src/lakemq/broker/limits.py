"""Every cap and rate, each with what happens when it is reached (R11)."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BrokerLimits:
    """Larger means more memory."""

    # Connections beyond are closed at once.
    connections_max: int = 10_000
    # A longer frame ends its connection.
    frame_bytes_max: int = 8 << 20
    # Requests that wait for a sync, per connection and in all: reading pauses until half of it is answered.
    in_flight_bytes_max: int = 16 << 20
    in_flight_bytes_total_max: int = 256 << 20
    # Written and not synced yet: producers are read from no more until half of it is. Below the store's own limit.
    unsynced_bytes_high: int = 32 << 20
    # Frames that have arrived in part, over all connections: the one that goes beyond is closed.
    held_bytes_total_max: int = 256 << 20
    # What one answer carries at most, but one message in any case.
    fetch_bytes_max: int = 2 << 20
    # The same where the client says from where it reads: nothing is lent, and who reads so reads much. JoyQueue's
    # clients keep the smaller one: how large their frames may be is not ours to say.
    read_bytes_max: int = 4 << 20
    # Answers that a peer does not read: no further request of its is served until they are gone.
    output_bytes_max: int = 4 << 20
    # A peer that reads nothing for so long while answers wait is closed.
    output_stall_ms: int = 60_000
    # Long polls beyond are answered at once, empty.
    parked_polls_max: int = 10_000
    parked_polls_per_connection_max: int = 1000
    # A peer that has not introduced itself by then is closed, and so is one that leaves a frame unfinished.
    introduction_ms: int = 10_000
    frame_stall_ms: int = 30_000
    # A connection that says nothing for so long is closed.
    idle_ms: int = 15 * 60_000
    # Topics and consumers that one connection may name.
    roles_per_connection_max: int = 10_000
    topics_max: int = 10_000
    apps_max: int = 10_000
    subscriptions_max: int = 50_000
    partitions_total_max: int = 100_000


class Rate:
    """So much per second, with one second's worth saved up at the most. 0 per second: no limit."""

    __slots__ = ("_left", "_since_ms", "per_second")

    def __init__(self, per_second: int, now_ms: int) -> None:
        self.per_second = per_second
        self._left = float(per_second)
        self._since_ms = now_ms

    def take(self, amount: int, now_ms: int) -> bool:
        """Use that much; False if too much was used before. One use may overdraw, so nothing is too large for ever."""
        if not self.per_second:
            return True
        gained = (now_ms - self._since_ms) * self.per_second / 1000
        self._left = min(self._left + gained, float(self.per_second))
        self._since_ms = now_ms
        if self._left <= 0:
            return False
        self._left -= amount
        return True
