"""When a sync is due: always (the default), every so many messages, or every so many milliseconds.

Only when it is asked for: what a sync covers, and that acks and visibility wait for it, never changes.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SyncPolicy:
    """Whichever limit is reached first; none at all means as soon as anything is written."""

    every_messages: int | None = None
    every_ms: int | None = None

    def is_due(self, unsynced_messages: int, waiting_ms: int) -> bool:
        """Whether to sync now, with so many messages written and the oldest of them waiting for so long."""
        if self.every_messages is None and self.every_ms is None:
            return True
        if self.every_messages is not None and unsynced_messages >= self.every_messages:
            return True
        return self.every_ms is not None and waiting_ms >= self.every_ms


ALWAYS = SyncPolicy()
