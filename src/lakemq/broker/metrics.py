"""Counters that handlers add to; the world reads and names them for Prometheus.

By topic and app only where an operator made those names, never by what a client may invent (a key, an address).
"""

from collections import defaultdict

DURATION_BOUNDS_MS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)


class Durations:
    """How long something took: counts below each bound, as a histogram wants them."""

    __slots__ = ("count", "counts", "sum_ms")

    def __init__(self) -> None:
        self.counts = [0] * (len(DURATION_BOUNDS_MS) + 1)
        self.count = 0
        self.sum_ms = 0

    def add(self, spent_ms: int) -> None:
        """One more."""
        self.count += 1
        self.sum_ms += spent_ms
        for place, bound in enumerate(DURATION_BOUNDS_MS):
            if spent_ms <= bound:
                self.counts[place] += 1
                return
        self.counts[-1] += 1


class Metrics:
    """Everything that is counted."""

    def __init__(self) -> None:
        self.messages_in: defaultdict[str, int] = defaultdict(int)  # by topic
        self.bytes_in: defaultdict[str, int] = defaultdict(int)
        self.messages_out: defaultdict[tuple[str, str], int] = defaultdict(int)  # by topic and app
        self.bytes_out: defaultdict[tuple[str, str], int] = defaultdict(int)
        self.settled: defaultdict[tuple[str, str, str], int] = defaultdict(int)  # by topic, app and outcome
        self.requests: defaultdict[str, int] = defaultdict(int)  # by command
        self.errors: defaultdict[int, int] = defaultdict(int)  # by status
        self.capped: defaultdict[str, int] = defaultdict(int)  # by the limit that was reached
        self.syncs = Durations()
        self.synced_messages = 0
        self.connections_opened = 0
        self.bugs = 0

    def forget_topic(self, topic: str) -> None:
        """It is gone: so are its series."""
        for by_topic in (self.messages_in, self.bytes_in):
            by_topic.pop(topic, None)
        for by_app in (self.messages_out, self.bytes_out):
            for key in [key for key in by_app if key[0] == topic]:
                del by_app[key]
        for outcome in [key for key in self.settled if key[0] == topic]:
            del self.settled[outcome]
