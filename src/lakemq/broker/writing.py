"""What a turn appended is written, synced and now and then snapshotted; those who waited for it are answered.

A disk that fails is final (R3): nothing can be promised any more.
"""

from lakemq.broker.access import Access
from lakemq.broker.answers import code_of, send
from lakemq.broker.config import BrokerConfig
from lakemq.broker.consume import Consuming
from lakemq.broker.effects import World
from lakemq.broker.events import CheckpointWritten, JournalSynced, Now
from lakemq.broker.ledger import Ledger
from lakemq.broker.metrics import Metrics
from lakemq.broker.produce import Producing
from lakemq.broker.sessions import Sessions
from lakemq.broker.waiters import Reply, Waiters
from lakemq.errors import DiskIOError, LakeMQError, WriteTimeoutError
from lakemq.storage.checkpoint import CheckpointTicket
from lakemq.storage.journal import SyncTicket
from lakemq.storage.partition_group import PartitionGroup

_LAZY_SYNC_BYTES = 16 << 20
_SYNC_AGAIN_MS = 20
_LOOK_FOR_ROOM_MS = 1000
_SYNC_PATIENCE_MS = 100  # before that no deadline of those who wait is looked at


class Writing:
    """The journal's side of a broker: one write a turn, one sync and one checkpoint at a time."""

    def __init__(
        self,
        ledger: Ledger,
        config: BrokerConfig,
        access: Access,
        sessions: Sessions,
        waiters: Waiters,
        metrics: Metrics,
        world: World,
        group: PartitionGroup,
        consuming: Consuming,
        producing: Producing,
    ) -> None:
        self._ledger = ledger
        self._config = config
        self._access = access
        self._sessions = sessions
        self._waiters = waiters
        self._metrics = metrics
        self._world = world
        self._group = group
        self._consuming = consuming
        self._producing = producing
        self.sync: SyncTicket | None = None
        self.checkpoint: CheckpointTicket | None = None
        self.is_over = False  # nothing is handled any more
        self._sync_began_ms = 0
        self._full_since_ms: int | None = None
        self._looked_ms = 0
        self._not_before_ms = 0  # no sync is begun
        self._is_short_of_files = False  # or of threads: no sync can be begun
        # So much is put off by nothing.
        self._sync_bytes = min(_LAZY_SYNC_BYTES, config.limits.unsynced_bytes_high // 2)

    @property
    def needs_turn(self) -> bool:
        """Whether something waits for the end of the turn."""
        journal = self._group.journal
        return not self.is_over and (journal.end_position > journal.written_position or self._waiters.has_turn)

    def write(self, now: Now) -> list[tuple[int, int]] | None:
        """Write the turn: what can be seen now. None if the broker cannot go on."""
        failure: LakeMQError | None = None
        shown: list[tuple[int, int]] = []
        try:
            shown = self._ledger.flush()
        except LakeMQError as error:
            failure = error
            self._world.note("error", f"the journal could not be written: {error}")
            self._forget_undone(now)
        journal = self._group.journal
        done, lost = self._waiters.written(journal.written_position, journal.synced_position)
        for reply in done:
            self._send(reply, now)
        for reply in lost:
            self._refuse(reply, failure or DiskIOError("the journal did not take it"), now)
        if journal.failure is not None:
            self.fail(journal.failure, now)
            return None
        return shown

    def _forget_undone(self, now: Now) -> None:
        """Metadata may have gone back, and its numbers and versions will come again with another meaning."""
        for connection in self._sessions.connections.values():
            connection.forget_routes()
        self._sessions.shared_routes.clear()
        self._consuming.refresh(now)

    def ask_for_sync(self, now: Now) -> None:
        """If there is something to sync, and somebody who waits for it or enough of it."""
        if self.sync is not None or now.monotonic_ms < self._not_before_ms or self._may_sync_later(now):
            return
        # A policy that puts syncs off must not do so until there is no room for what comes next.
        if self._group.journal.unsynced_bytes >= self._sync_bytes or self._group.wants_sync(now.wall_ms):
            ticket = self._group.begin_sync()
            if ticket is not None:
                self.sync = ticket
                self._sync_began_ms = now.monotonic_ms
                self._world.sync(ticket)

    def _may_sync_later(self, now: Now) -> bool:
        """Nobody waits for it, neither a producer nor a consumer: then a sync for more of them is cheaper for all."""
        if self._waiters.has_sync or self._sessions.choked or self._access.is_draining:
            return False
        is_seen_later = self._consuming.deadlines.waiting and not self._group.shows_written
        if is_seen_later and self._group.unsynced_messages:  # acks alone show nobody anything
            return False
        if self._group.journal.unsynced_bytes >= self._sync_bytes:
            return False
        return now.monotonic_ms - self._sync_began_ms < self._config.lazy_sync_ms

    def journal_synced(self, event: JournalSynced, now: Now) -> None:
        """Answer those who waited for it, and show what consumers may see now."""
        assert event.ticket is self.sync, "one sync at a time"
        self.sync = None
        self._metrics.syncs.add(now.monotonic_ms - self._sync_began_ms)
        self._producing.is_sync_slow = False
        waited = self._group.unsynced_messages
        changed = self._group.end_sync(event.ticket, event.error)
        self._metrics.synced_messages += waited - self._group.unsynced_messages
        if event.error is not None and self._group.journal.failure is None:
            self._complain_of_shortage(event.error, now)
            self._not_before_ms = now.monotonic_ms + _SYNC_AGAIN_MS
            return  # in a moment; who cannot wait for that is told so
        if event.error is not None:
            self.fail(f"a sync failed: {event.error}", now)
            return
        self._is_short_of_files = False
        for reply in self._waiters.synced(self._group.journal.synced_position):
            self._send(reply, now)
        self._consuming.made_visible(changed, now)
        self.ask_for_sync(now)

    def _complain_of_shortage(self, error: OSError, now: Now) -> None:
        if not self._is_short_of_files:  # once, not with every tick
            self._is_short_of_files = True
            self._world.note("error", f"a sync could not be begun, and is tried again: {error}")

    def ask_for_checkpoint(self) -> None:
        """If one is due, and no turn is half written."""
        journal = self._group.journal
        if (
            self.checkpoint is None
            and self._group.wants_checkpoint
            and journal.end_position == journal.written_position
        ):
            try:
                ticket = self._group.begin_checkpoint()
            except (LakeMQError, OSError) as error:
                self._world.note("warning", f"no checkpoint could be begun: {error}")
                return
            self.checkpoint = ticket
            self._world.checkpoint(ticket)

    def checkpoint_written(self, event: CheckpointWritten, now: Now) -> None:
        """One that fails costs time at the next start, no more; unless the journal itself has failed."""
        assert event.ticket is self.checkpoint, "one checkpoint at a time"
        self.checkpoint = None
        self._group.end_checkpoint(event.ticket, event.error)
        if event.error is not None:
            self._world.note("warning", f"a checkpoint could not be written: {event.error}")
        if self._group.journal.failure is not None:
            self.fail(self._group.journal.failure, now)

    def _send(self, reply: Reply, now: Now) -> None:
        if reply.connection is not None:
            send(reply.connection, reply.buffers, now)
        else:
            reply.tell()

    def _refuse(self, reply: Reply, error: LakeMQError, now: Now) -> None:
        self._metrics.errors[code_of(error)] += 1
        buffers = reply.refusal(error)
        if reply.connection is not None:
            send(reply.connection, buffers, now)

    def fail(self, reason: str, now: Now) -> None:
        """Nothing can be promised any more: tell those who wait, then go (R3)."""
        if self.is_over:
            return
        error = DiskIOError(reason)
        for reply in self._waiters.take_all():
            self._refuse(reply, error, now)
        self.is_over = True
        self._world.stop(reason)

    def tick(self, now: Now) -> None:
        """A sync may take too long, or be put off for longer than those wait who need it; a disk be full or not."""
        self._watch_room(now)
        if self.sync is not None:
            self._watch_sync(now)
        elif not self.is_over:
            self._refuse_overdue(now)
            self.ask_for_sync(now)

    def _watch_room(self, now: Now) -> None:
        """Say once that the disk is full, and once that it is not any more."""
        journal = self._group.journal
        if journal.no_room is None and self._full_since_ms is None:
            return
        if self._full_since_ms is None:
            self._full_since_ms = self._looked_ms = now.monotonic_ms
            self._world.note("error", f"{journal.no_room}. Messages are refused (109), reading goes on")
        if now.monotonic_ms - self._looked_ms >= _LOOK_FOR_ROOM_MS:
            self._looked_ms = now.monotonic_ms
            journal.look_for_room()
        if journal.no_room is None:
            spent_s = (now.monotonic_ms - self._full_since_ms) // 1000
            self._full_since_ms = None
            self._world.note("warning", f"the disk has room again after {spent_s} s: messages are taken")

    def _watch_sync(self, now: Now) -> None:
        spent_ms = now.monotonic_ms - self._sync_began_ms
        if spent_ms < _SYNC_PATIENCE_MS:
            return
        self._refuse_overdue(now)
        if spent_ms >= self._config.slow_sync_ms:
            self._producing.is_sync_slow = True
        if spent_ms >= self._config.sync_limit_ms:
            self.fail(f"a sync takes longer than {self._config.sync_limit_ms} ms", now)

    def _refuse_overdue(self, now: Now) -> None:
        for reply in self._waiters.overdue(now.monotonic_ms):
            self._refuse(reply, WriteTimeoutError("the sync was not done in time"), now)
