"""Retention: which segments go, and what must be saved from them first.

What the archive does not have yet keeps its segment, and all after it. A retry, a dead letter, a delay or an open
transaction refers to messages that may be old, too: when a segment is to go, the few messages in it that are still
wanted are written again at the journal's end, and only then may it go. A message that waits for weeks costs its own
bytes, not weeks of journal.
"""

from lakemq.broker.archiving import Archiving
from lakemq.broker.config import BrokerConfig
from lakemq.broker.delaying import Delaying
from lakemq.broker.effects import World
from lakemq.broker.events import Now
from lakemq.broker.ledger import Ledger
from lakemq.broker.references import References
from lakemq.broker.transacting import Transacting
from lakemq.delivery.settlement import Entry, Moved
from lakemq.envelope import pack
from lakemq.errors import LakeMQError, ReadError
from lakemq.storage.journal_record import RecordType

_CARRY_MAX = 1000  # messages written again at a time, so that others get their turn
_SOON_MS = 1000
_HOLDER = "delivery"
_ARCHIVE = "archive"
_EVERYTHING = 1 << 62


class Keeping:
    """Drops what nobody needs, a part at a time."""

    def __init__(
        self,
        ledger: Ledger,
        config: BrokerConfig,
        world: World,
        references: References,
        delaying: Delaying,
        transacting: Transacting,
        archiving: Archiving,
        now: Now,
    ) -> None:
        self._ledger = ledger
        self._group = ledger.group
        self._config = config
        self._world = world
        self._references = references
        self._delaying = delaying
        self._transacting = transacting
        self._archiving = archiving
        self._due_ms = now.monotonic_ms + config.retention_every_ms
        # What is needed from which position on is believed once the journal is synced as far as it was known then:
        # a power loss could bring back who needed more.
        self._needed_then: tuple[int, int, int] | None = None
        self._lost: set[tuple[int, int]] = set()  # what cannot be read, so that nothing is kept for its sake
        self._group.hold(_HOLDER, self._needed_position())  # at a start all is durable
        self._group.hold(_ARCHIVE, archiving.needed_position())

    def tick(self, now: Now) -> None:
        """See whether something can go."""
        if now.monotonic_ms < self._due_ms:
            return
        journal = self._group.journal
        if self._needed_then is None:
            self._needed_then = journal.end_position, self._needed_position(), self._archiving.needed_position()
        if journal.synced_position < self._needed_then[0]:
            self._due_ms = now.monotonic_ms + _SOON_MS
            return
        _, needed, unarchived = self._needed_then
        self._needed_then = None
        # What became a retry or a dead letter since then may be older than all that was needed then.
        self._group.hold(_HOLDER, min(needed, self._needed_position()))
        # A topic may have become archived since then, and what it has is as old as it is.
        self._group.hold(_ARCHIVE, min(unarchived, self._archiving.needed_position()))
        self._archiving.watch(now)
        self._due_ms = now.monotonic_ms + self._config.retention_every_ms
        try:
            dropped = self._group.retain(self._config.retention, now.wall_ms)
            carried = self._carry(now)
        except (LakeMQError, OSError) as error:  # what is too much is only too much
            self._world.note("warning", f"a segment could not be dropped: {error}")
            return
        if dropped:
            self._world.note("info", f"{dropped} segments were dropped: nobody wants them any more")
        if carried:
            self._due_ms = now.monotonic_ms + _SOON_MS

    def _needed_position(self) -> int:
        """The first byte that something refers to."""
        state = self._ledger.state
        delayed = state.delays.oldest_position
        positions = [self._group.journal.end_position if delayed is None else delayed]
        positions += [position for position, _ in self._references_now()]
        positions += [part.position for _, _, part in state.transactions.carry(_EVERYTHING)]
        return min(positions)

    def _references_now(self) -> set[tuple[int, int]]:
        """Positions and indexes of the messages that are to be tried again, or dead, and can be read."""
        state = self._ledger.state
        places = {(row.position, row.message_index) for row in state.retries.rows()}
        places |= {(row.position, row.message_index) for row in state.dead_letters.rows()}
        self._lost &= places
        return places - self._lost

    def _carry(self, now: Now) -> int:
        """Save what is wanted from the segments that would go without it; how much that was."""
        before = self._group.wanted_position(self._config.retention, now.wall_ms, _HOLDER)
        if before <= self._group.held(_HOLDER):
            return 0
        carried = self._delaying.carry(before, now, _CARRY_MAX)
        self._transacting.carry(before, now)
        return carried + self._carry_references(before, now)

    def _carry_references(self, before: int, now: Now) -> int:
        entries: list[Entry] = []
        for position, index in sorted(place for place in self._references_now() if place[0] < before)[:_CARRY_MAX]:
            try:
                message, _ = self._references.read(position, index)
            except ReadError as error:  # nothing is left to save; for want of memory it would be, at another time
                self._world.note("error", f"a message that is to be tried again, or dead, is lost: {error}")
                self._lost.add((position, index))
                continue
            anew, _ = self._ledger.append(RecordType.KEPT, pack(message), now.wall_ms)
            entries.append(Moved(position, index, anew))
        if entries:
            self._ledger.settle(entries, now.wall_ms)
        return len(entries)
