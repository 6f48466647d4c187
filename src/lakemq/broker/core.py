"""Broker.handle: sends each event to its handler, each tick to the timers. What it is made of is put together here.

One thread calls it, one event at a time. Frames go through `receiving.py` to the command's handler, what handlers
append through `writing.py` to the disk.
"""

from collections.abc import Callable
from typing import Any

from lakemq.broker.access import Access
from lakemq.broker.acks import Acking
from lakemq.broker.admin import Admin
from lakemq.broker.archiving import Archiving
from lakemq.broker.changes import Changes
from lakemq.broker.config import BrokerConfig
from lakemq.broker.consume import Consuming
from lakemq.broker.delaying import Delaying
from lakemq.broker.delivery_admin import DeliveryAdmin
from lakemq.broker.effects import World
from lakemq.broker.events import (
    AdminAsked,
    CheckpointWritten,
    ConnectionClosed,
    ConnectionOpened,
    Event,
    FramesReceived,
    JournalSynced,
    MetadataGiven,
    MetadataStoreFailed,
    Now,
    OutputDrained,
    StopAsked,
    StreamBroken,
    Tick,
    TurnEnded,
)
from lakemq.broker.inspecting import Inspecting
from lakemq.broker.introduce import Introducing
from lakemq.broker.keeping import Keeping
from lakemq.broker.ledger import Ledger, State
from lakemq.broker.lending import Lender
from lakemq.broker.metrics import Metrics
from lakemq.broker.outcomes import Outcomes
from lakemq.broker.produce import Producing
from lakemq.broker.receiving import Receiving
from lakemq.broker.references import References
from lakemq.broker.routing import Routing
from lakemq.broker.runs import Runs
from lakemq.broker.sessions import Connection, Sessions
from lakemq.broker.settling import Settling
from lakemq.broker.transacting import Transacting
from lakemq.broker.waiters import Waiters
from lakemq.broker.writing import Writing
from lakemq.delivery.guarded_clock import GuardedClock
from lakemq.errors import (
    HttpSpokenError,
    LakeMQError,
)
from lakemq.storage.journal import SyncTicket
from lakemq.storage.partition_group import PartitionGroup
from lakemq.wire.consume import (
    CommitAck,
    CommitAckIndex,
    FetchAckIndex,
    FetchIndex,
    FetchPartitionMessage,
    FetchTopicMessage,
)
from lakemq.wire.coordinate import FetchAssignedPartition, FindCoordinator
from lakemq.wire.metadata import FetchCluster
from lakemq.wire.own import (
    ExtendLease,
    FetchRange,
    FetchTransactions,
    Inspect,
    SetFilter,
    Settle,
    Transact,
)
from lakemq.wire.produce import (
    FetchProduceFeedback,
    ProduceMessageCommit,
    ProduceMessagePrepare,
    ProduceMessageRollback,
)
from lakemq.wire.session import (
    AddConnection,
    AddConsumer,
    AddProducer,
    FetchHealth,
    Heartbeat,
    RemoveConnection,
    RemoveConsumer,
    RemoveProducer,
)

_SWEEP_EVERY_MS = 1000

# For a web browser, a health check or the operators' command line that has the two ports mixed up.
_WRONG_PORT_TEXT = (
    b"This is LakeMQ's port for clients, which speaks jmq4 and not HTTP. "
    b"The port for operators is another one, 50090 unless it was set otherwise.\n"
)
_WRONG_PORT = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s"
    % (len(_WRONG_PORT_TEXT), _WRONG_PORT_TEXT)
)


class Broker:
    """A single broker: connections and a partition group in, answers and tickets out."""

    def __init__(self, config: BrokerConfig, world: World, group: PartitionGroup, state: State, now: Now) -> None:
        self.config = config
        self.metrics = Metrics()
        self.sessions = Sessions()
        self.ledger = Ledger(group, state)
        self._world = world
        self._group = group
        self._waiters = Waiters()
        self.changes = Changes(self.ledger, config)
        self.access = Access(self.ledger, config, self.changes)
        shared = self.ledger, config, self.access, self.sessions, self._waiters, self.metrics
        self.clock = GuardedClock()
        self.references = References(group)
        self.outcomes = Outcomes(self.ledger, config, self.metrics, self.clock)
        lender = Lender(self.ledger, config, self.sessions, self.metrics, self.references, self.outcomes, self.clock)
        self.consuming = Consuming(self.ledger, config, self.access, self.sessions, self.metrics, lender, self.clock)
        self._acking = Acking(self.ledger, config, self.access, self._waiters, self.metrics, self.consuming)
        self._settling = Settling(
            self.ledger,
            config,
            self.access,
            self._waiters,
            self.metrics,
            self.consuming,
            self.outcomes,
            self.clock,
        )
        self.consuming.leases_ended = self._settling.leases_ended
        self._transacting = Transacting(*shared)
        self.delaying = Delaying(self.ledger, config, self.access, self.metrics, world.note, config.delays, self.clock)
        self._producing = Producing(*shared, self._transacting, self.delaying)
        runs = Runs(self.ledger, config, self.access, self._producing, self._waiters, self.metrics)
        self.writing = Writing(*shared, world, group, self.consuming, self._producing)
        self.receiving = Receiving(*shared, world, self.writing, self._producing, runs)
        self.receive_all = self.receiving.receive_all  # FramesReceived without the event: it comes so often
        self.archiving = Archiving(self.ledger, config, self.access, self.metrics, world)
        self._keeping = Keeping(
            self.ledger, config, world, self.references, self.delaying, self._transacting, self.archiving, now
        )
        self._inspecting = Inspecting(self.ledger, config, self.access, self.consuming)
        self.routing = Routing(self.ledger, config, self.access)
        self._introducing = Introducing(
            self.ledger, config, self.access, self.consuming, self.routing, self._waiters, self.changes
        )
        self.delivery_admin = DeliveryAdmin(
            self.ledger,
            config,
            self.access,
            self.consuming,
            self.outcomes,
            self.metrics,
            self.clock,
            self.delaying,
            world.note,
        )
        self._producing.park = self.delaying.park = self.delivery_admin.dead_lettering.park
        self._admin = Admin(
            self.ledger,
            config,
            self.access,
            self.changes,
            self._acking,
            self.sessions,
            self._waiters,
            self.metrics,
            self.delivery_admin,
        )
        self._swept_ms = now.monotonic_ms
        self._seen_version = self.ledger.metadata.version
        self._drain_until_ms = 0
        self._is_complete = True
        self._events: dict[type, Callable[[Any, Now], None]] = {
            FramesReceived: self._frames_received,
            TurnEnded: self._turn_ended,
            JournalSynced: self._journal_synced,
            Tick: self._tick,
            ConnectionOpened: self._connection_opened,
            ConnectionClosed: self._connection_closed,
            StreamBroken: self._stream_broken,
            OutputDrained: self._output_drained,
            CheckpointWritten: self.writing.checkpoint_written,
            AdminAsked: self._admin_asked,
            MetadataGiven: self._metadata_given,
            MetadataStoreFailed: self._metadata_store_failed,
            StopAsked: self._stop_asked,
        }
        self.receiving.handlers = {
            AddConnection: self._introducing.add_connection,
            RemoveConnection: self._introducing.remove_connection,
            AddConsumer: self._introducing.add_consumer,
            RemoveConsumer: self._introducing.remove_consumer,
            AddProducer: self._introducing.add_producer,
            RemoveProducer: self._introducing.remove_producer,
            Heartbeat: self._introducing.heartbeat,
            FetchHealth: self._introducing.health,
            FetchCluster: self.routing.fetch_cluster,
            FindCoordinator: self.routing.find_coordinator,
            FetchAssignedPartition: self.routing.fetch_assigned,
            FetchTopicMessage: self.consuming.fetch_topic,
            FetchPartitionMessage: self.consuming.fetch_partition,
            CommitAck: self._settling.commit_ack,
            Settle: self._settling.settle,
            SetFilter: self._introducing.set_filter,
            CommitAckIndex: self._acking.commit_index,
            FetchIndex: self._acking.fetch_index,
            FetchAckIndex: self._acking.fetch_index,
            FetchRange: self._acking.fetch_range,
            ExtendLease: self._acking.extend_lease,
            ProduceMessagePrepare: self._transacting.prepare,
            ProduceMessageCommit: self._transacting.commit,
            ProduceMessageRollback: self._transacting.rollback,
            FetchProduceFeedback: self._transacting.feedback,
            Transact: self._transacting.transact,
            FetchTransactions: self._transacting.fetch_transactions,
            Inspect: self._inspecting.inspect,
        }

        self._finish_begun(now)

    def _finish_begun(self, now: Now) -> None:
        """A crash may have left half of a commit: the rest is stored before anybody can see the first half."""
        self._complete(now)
        self._transacting.finish(now)
        if not self.needs_turn:
            return
        try:
            self.ledger.flush()
            ticket = self._group.begin_sync()
            if ticket is not None:
                self._run_now(ticket)
        except (LakeMQError, OSError) as error:  # a full disk: it is tried again as time passes
            self._is_complete = False
            self._world.note("error", f"what was begun before the start could not be finished: {error}")

    def _run_now(self, ticket: SyncTicket) -> None:
        """Sync while nobody is served yet; a failed one ends the broker with its first turn (R3)."""
        try:
            ticket.run()
        except OSError as error:
            self._group.end_sync(ticket, error)
            raise
        self._group.end_sync(ticket)

    def _complete(self, now: Now) -> None:
        """Metadata of an earlier version, or of nobody yet, may lack what this one needs."""
        try:
            self.changes.complete(now)
            self._is_complete = True
        except LakeMQError as error:  # the same
            self._is_complete = False
            self._world.note("error", f"the metadata could not be completed: {error}")

    def handle(self, event: Event, now: Now) -> None:
        """One thing that happened."""
        if not self.writing.is_over:
            self._events[type(event)](event, now)

    @property
    def needs_turn(self) -> bool:
        """Whether something waits for TurnEnded."""
        return self.writing.needs_turn

    def _admin_asked(self, event: AdminAsked, now: Now) -> None:
        try:
            self._admin.ask(event, now)
        except Exception as error:  # a bug: the operator is told, and the broker goes on
            event.answer(None, self.receiving.note_bug(f"in {event.action}", error))

    def _metadata_given(self, event: MetadataGiven, now: Now) -> None:
        try:
            self.changes.replace_all(event.packed, now)
            self.access.has_metadata = True
        except LakeMQError as error:
            self._world.note("error", f"metadata could not be taken over: {error}")

    def _metadata_store_failed(self, event: MetadataStoreFailed, now: Now) -> None:
        self.changes.store_failure = event.reason

    # --- connections -------------------------------------------------------------------------------------------

    def _connection_opened(self, event: ConnectionOpened, now: Now) -> None:
        port = event.port
        if len(self.sessions.connections) >= self.config.limits.connections_max or self.access.is_draining:
            self.metrics.capped["connections"] += 1
            port.close()
            return
        self.metrics.connections_opened += 1
        port.session = self.sessions.connections[port.id] = Connection(port, now.monotonic_ms, now.monotonic_ms)

    def _connection_closed(self, event: ConnectionClosed, now: Now) -> None:
        connection = self.sessions.connections.pop(event.connection, None)
        if connection is None:
            return
        connection.is_closing = True
        connection.backlog.clear()
        self.sessions.choked.pop(event.connection, None)
        self._introducing.forget(connection, now)

    def _stream_broken(self, event: StreamBroken, now: Now) -> None:
        self.metrics.capped["bad_frames"] += 1
        connection = self.sessions.get(event.connection)
        if connection is not None:
            is_first = not connection.has_spoken and not connection.is_closing
            if is_first and isinstance(event.error, HttpSpokenError):
                connection.port.send([_WRONG_PORT])
            self.receiving.close(connection)

    def _output_drained(self, event: OutputDrained, now: Now) -> None:
        connection = self.sessions.get(event.connection)
        if connection is not None and connection.is_output_full:
            connection.is_output_full = False
            self.receiving.go_on(connection, now)

    # --- frames ------------------------------------------------------------------------------------------------

    def _frames_received(self, event: FramesReceived, now: Now) -> None:
        connection = self.sessions.get(event.connection)
        if connection is not None:
            self.receive_all(((connection, event.frames),), now)

    # --- the journal -------------------------------------------------------------------------------------------

    def _turn_ended(self, event: TurnEnded, now: Now) -> None:
        self.archiving.turn_ends(now)
        shown = self.writing.write(now) if self.needs_turn else None
        self.ledger.tracing.turn_ended(self._group.journal.written_position, now)
        if shown is not None:  # what they lead to is of the next turn, its events too
            self.consuming.turn_written(now)
            self.consuming.made_visible(shown, now)
        if self.ledger.metadata.version != self._seen_version:
            self._seen_version = self.ledger.metadata.version
            self.consuming.refresh(now, self.ledger.take_changed_topics())
        self.access.begin_turn()
        if not self.writing.is_over:
            self.writing.ask_for_sync(now)
            self.writing.ask_for_checkpoint()
            self.receiving.let_breathe(now)

    def _journal_synced(self, event: JournalSynced, now: Now) -> None:
        self.writing.journal_synced(event, now)
        if not self.writing.is_over:
            self.receiving.let_breathe(now)

    # --- time --------------------------------------------------------------------------------------------------

    def _tick(self, event: Tick, now: Now) -> None:
        self.consuming.tick(now)
        self._transacting.tick(now)
        self.delaying.tick(now)
        self.delivery_admin.tick(now)
        self.writing.tick(now)
        if now.monotonic_ms - self._swept_ms >= _SWEEP_EVERY_MS:
            self._swept_ms = now.monotonic_ms
            self._sweep(now)
        if not self.writing.is_over:
            self._keeping.tick(now)
        if self.access.is_draining:
            self._finish_draining(now)

    def _sweep(self, now: Now) -> None:
        """Close those who do not introduce themselves, do not read, or have long been silent."""
        if not self._is_complete:
            self._complete(now)
        limits = self.config.limits
        for connection in list(self.sessions.connections.values()):
            reason = ""
            if not connection.app and now.monotonic_ms - connection.opened_ms > limits.introduction_ms:
                reason = "introduction"
            elif (
                connection.is_output_full
                and now.monotonic_ms - connection.output_full_since_ms > limits.output_stall_ms
            ):
                reason = "output_stall"
            elif now.monotonic_ms - connection.heard_ms > limits.idle_ms and not connection.parked_polls:
                reason = "idle"
            if reason:
                self.metrics.capped[reason] += 1
                self.receiving.close(connection)

    # --- the end -----------------------------------------------------------------------------------------------

    def _stop_asked(self, event: StopAsked, now: Now) -> None:
        if not self.access.is_draining:
            self.access.is_draining = True
            self._drain_until_ms = now.monotonic_ms + self.config.drain_timeout_ms
            self.consuming.drain(now)

    def _finish_draining(self, now: Now) -> None:
        is_done = self._waiters.is_empty and self.writing.sync is None and self.writing.checkpoint is None
        if is_done or now.monotonic_ms >= self._drain_until_ms:
            self.ledger.tracing.turn_ended(self.ledger.end_position, now)
            self.archiving.write_events(now)  # whoever closes the journal writes them
            for connection in list(self.sessions.connections.values()):
                self.receiving.close(connection)
            self.writing.is_over = True
            self._world.stop(None)
