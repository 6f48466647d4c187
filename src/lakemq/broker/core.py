"""Broker.handle: sends each event to its handler, each frame to the command's, each tick to the timers.

One thread calls it, one event at a time. Handlers raise LakeMQErrors; only here they become answers. Anything else
that is raised is a bug: the peer gets status 4 and is closed, the log gets the traceback, and the broker goes on.
"""

import struct
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from lakemq.broker.access import Access
from lakemq.broker.acks import Acking
from lakemq.broker.admin import Admin
from lakemq.broker.answers import code_of, refusal, send
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
from lakemq.broker.produce import RUN_BYTES_MAX, Producing
from lakemq.broker.references import References
from lakemq.broker.routing import Routing
from lakemq.broker.runs import Runs
from lakemq.broker.sessions import Connection, Sessions
from lakemq.broker.settling import Settling
from lakemq.broker.transacting import Transacting
from lakemq.broker.waiters import Reply, Waiters
from lakemq.delivery.guarded_clock import GuardedClock
from lakemq.errors import (
    BadFrameError,
    ConnectionNotFoundError,
    DiskIOError,
    LakeMQError,
    SerializationError,
    UnknownError,
    WriteTimeoutError,
)
from lakemq.storage.checkpoint import CheckpointTicket
from lakemq.storage.journal import SyncTicket
from lakemq.storage.partition_group import PartitionGroup
from lakemq.wire.commands import ADD_CONNECTION_NUMBER, check_first, kind_of, read_payload
from lakemq.wire.consume import (
    CommitAck,
    CommitAckIndex,
    FetchAckIndex,
    FetchIndex,
    FetchPartitionMessage,
    FetchTopicMessage,
)
from lakemq.wire.coordinate import FetchAssignedPartition, FindCoordinator
from lakemq.wire.dialect import Dialect
from lakemq.wire.header import Header, read_header
from lakemq.wire.metadata import FetchCluster
from lakemq.wire.own import (
    TRANSACT_NUMBER,
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
    ProduceMessage,
    ProduceMessageCommit,
    ProduceMessagePrepare,
    ProduceMessageRollback,
)
from lakemq.wire.produce_run import PRODUCE_NUMBER, REQUEST_BYTES, cut_run
from lakemq.wire.session import (
    AddConnection,
    AddConsumer,
    AddProducer,
    FetchHealth,
    Heartbeat,
    RemoveConnection,
    RemoveConsumer,
    RemoveProducer,
    presumed,
    recognise,
)

_LENGTH = struct.Struct(">i")
_TYPE_OFFSET = 14
_BEFORE_INTRODUCTION = (AddConnection, Heartbeat, FetchHealth)
_SWEEP_EVERY_MS = 1000
_LAZY_SYNC_BYTES = 16 << 20
_SYNC_PATIENCE_MS = 100  # before that no deadline of those who wait is looked at


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
        self._runs = Runs(self.ledger, config, self.access, self._producing, self._waiters, self.metrics)
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
        self._producing.park = self.delivery_admin.dead_lettering.park
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
        self._sync: SyncTicket | None = None
        self._sync_began_ms = 0
        self._checkpoint: CheckpointTicket | None = None
        self._choked: dict[int, Connection] = {}
        self._swept_ms = now.monotonic_ms
        self._seen_version = self.ledger.metadata.version
        self._drain_until_ms = 0
        self._is_complete = True
        self._is_over = False
        self._unsynced_high = config.limits.unsynced_bytes_high
        self._sync_bytes = min(_LAZY_SYNC_BYTES, self._unsynced_high // 2)  # so much is put off by nothing
        self._events: dict[type, Callable[[Any, Now], None]] = {
            FramesReceived: self._frames_received,
            TurnEnded: self._turn_ended,
            JournalSynced: self._journal_synced,
            Tick: self._tick,
            ConnectionOpened: self._connection_opened,
            ConnectionClosed: self._connection_closed,
            StreamBroken: self._stream_broken,
            OutputDrained: self._output_drained,
            CheckpointWritten: self._checkpoint_written,
            AdminAsked: self._admin_asked,
            MetadataGiven: self._metadata_given,
            StopAsked: self._stop_asked,
        }
        self._commands: dict[type, Callable[[Connection, Header, Any, Now], None]] = {
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
                ticket.run()
                self._group.end_sync(ticket)
        except (LakeMQError, OSError) as error:  # a full disk: it is tried again as time passes
            self._is_complete = False
            self._world.note("error", f"what was begun before the start could not be finished: {error}")

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
        if not self._is_over:
            self._events[type(event)](event, now)

    @property
    def needs_turn(self) -> bool:
        """Whether something waits for TurnEnded."""
        journal = self._group.journal
        return not self._is_over and (journal.end_position > journal.written_position or self._waiters.has_turn)

    def _admin_asked(self, event: AdminAsked, now: Now) -> None:
        try:
            self._admin.ask(event, now)
        except Exception as error:  # a bug: the operator is told, and the broker goes on
            event.answer(None, self._note_bug(f"in {event.action}", error))

    def _note_bug(self, where: str, error: Exception) -> UnknownError:
        """What to tell whoever ran into it."""
        self.metrics.bugs += 1
        self._world.note("error", f"a bug, {where}:\n{traceback.format_exc()}")
        return UnknownError(f"{type(error).__name__} in the broker: its log has more")

    def _metadata_given(self, event: MetadataGiven, now: Now) -> None:
        try:
            self.changes.replace_all(event.packed, now)
        except LakeMQError as error:
            self._world.note("error", f"metadata could not be taken over: {error}")

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
        self._choked.pop(event.connection, None)
        self._introducing.forget(connection, now)

    def _stream_broken(self, event: StreamBroken, now: Now) -> None:
        self.metrics.capped["bad_frames"] += 1
        connection = self.sessions.get(event.connection)
        if connection is not None:
            self._close(connection)

    def _close(self, connection: Connection) -> None:
        if not connection.is_closing:
            connection.port.close()
            connection.is_closing = True

    def _output_drained(self, event: OutputDrained, now: Now) -> None:
        connection = self.sessions.get(event.connection)
        if connection is not None and connection.is_output_full:
            connection.is_output_full = False
            self._go_on(connection, now)

    # --- frames ------------------------------------------------------------------------------------------------

    def _frames_received(self, event: FramesReceived, now: Now) -> None:
        connection = self.sessions.get(event.connection)
        if connection is not None:
            self.receive(connection, event.frames, now)

    def receive(self, connection: Connection, frames: memoryview, now: Now) -> None:
        """FramesReceived, without the event: it comes so often that the world may call this."""
        self.receive_all(((connection, frames),), now)

    def receive_all(self, arrivals: Sequence[tuple[Connection, memoryview]], now: Now) -> None:
        """The same for all that arrived in a turn, each connection once.

        They did not wait for each other, so that those who are quickly served may be served first.
        """
        if self._is_over:
            return
        try:
            is_usual = self._runs.may_take(arrivals)
        except Exception:  # a bug: the long way runs into it as well, and tells whose request it was
            is_usual = False
        if is_usual:
            arrivals, failed = self._runs.take(arrivals, now)
            for one in failed:
                self._tell_bug(one.connection, _header_at(one.frames, one.at), one.error, now)
        for connection, frames in arrivals:
            self._receive(connection, frames, now)

    def _receive(self, connection: Connection, frames: memoryview, now: Now) -> None:
        if connection.is_closing or self._is_over:
            return
        connection.heard_ms = now.monotonic_ms
        if connection.is_output_full or connection.is_choked or connection.backlog:
            connection.backlog.append(frames)  # what was on its way when reading was paused
            return
        self._serve(connection, frames, now)

    def _go_on(self, connection: Connection, now: Now) -> None:
        """Serve what waited, then read on."""
        while connection.backlog and not connection.is_held_up:
            self._serve(connection, connection.backlog.popleft(), now)
        if not connection.is_held_up and not connection.is_closing:
            connection.port.resume()

    def _serve(self, connection: Connection, frames: memoryview, now: Now) -> None:
        at, end = 0, len(frames)
        while at < end and not connection.is_closing:
            number = frames[at + _TYPE_OFFSET]
            is_produce = number == PRODUCE_NUMBER
            if (is_produce or number == TRANSACT_NUMBER) and self._must_wait(connection):
                self._choke(connection)
            if connection.is_output_full or connection.is_choked:
                connection.backlog.appendleft(frames[at:])
                connection.port.pause()
                return
            if is_produce and connection.route is not None:
                try:
                    stop = self._take_run(connection, frames, at, now)
                except Exception as error:  # a bug: see `_frame`
                    self._tell_bug(connection, _header_at(frames, at), error, now)
                    return
                if stop > at:
                    at = stop
                    continue
            stop = at + _length_at(frames, at)
            self._frame(connection, frames[at:stop], now)
            at = stop

    def _take_run(self, connection: Connection, frames: memoryview, at: int, now: Now) -> int:
        route = connection.route
        assert route is not None
        access = self.access
        if route.metadata_version != self.ledger.metadata.version or access.is_draining or not access.is_writable:
            connection.route = None
            return at
        rest = [(connection, frames[at:])]
        if route.is_plain and self._runs.may_take(rest):
            left, failed = self._runs.take(rest, now)
            for one in failed:
                raise one.error
            stop = len(frames) - len(left[0][1]) if left else len(frames)
            if stop > at:
                return stop
        run = cut_run(frames, at, route.head, route.prefix, route.suffix, RUN_BYTES_MAX)
        if run is None:
            return at
        self.metrics.requests["PRODUCE_MESSAGE"] += len(run.requests) // REQUEST_BYTES
        self._producing.take_run(connection, route, run, frames, run.end - at, now)
        return run.end

    def _frame(self, connection: Connection, frame: memoryview, now: Now) -> None:
        try:
            header, start = read_header(frame)
            if not connection.has_spoken:
                check_first(header)
                connection.has_spoken = True
        except BadFrameError:
            self.metrics.capped["bad_frames"] += 1
            self._close(connection)
            return
        if header.is_response:  # we ask nothing, so it answers nothing
            self.metrics.capped["stray_responses"] += 1
            return
        try:
            self._request(connection, header, frame, start, now)
        except LakeMQError as error:
            self.metrics.errors[code_of(error)] += 1
            send(connection, refusal(connection, header, error, now), now)
        except Exception as error:  # a bug costs its peer the connection, not everybody the broker
            self._tell_bug(connection, header, error, now)

    def _tell_bug(self, connection: Connection, header: Header, error: Exception, now: Now) -> None:
        told = self._note_bug(f"in a request of type {header.type}", error)
        send(connection, refusal(connection, header, told, now), now)
        self._close(connection)

    def _request(self, connection: Connection, header: Header, frame: memoryview, start: int, now: Now) -> None:
        if connection.dialect is None:
            dialect = presumed(header.version)
            if header.type == ADD_CONNECTION_NUMBER:
                try:
                    dialect = connection.dialect = recognise(frame[start:], header.version)
                except SerializationError as error:
                    connection.dialect = Dialect.DOCUMENTED
                    send(connection, refusal(connection, header, error, now), now)
                    self._close(connection)
                    return
        else:
            dialect = connection.dialect
        kind = kind_of(header.type, dialect)
        self.metrics.requests[kind.name] += 1
        if not connection.app and kind.request_class not in _BEFORE_INTRODUCTION:
            raise ConnectionNotFoundError("the first request must be ADD_CONNECTION")
        command = read_payload(kind, header, frame, start, dialect)
        if isinstance(command, ProduceMessage):
            self._producing.produce(connection, header, command, frame, now)
        else:
            self._commands[type(command)](connection, header, command, now)

    # --- holding producers back ----------------------------------------------------------------------------------

    def _must_wait(self, connection: Connection) -> bool:
        """Whether a producer is faster than the disk."""
        limits = self.config.limits
        journal = self._group.journal
        if journal.end_position - journal.synced_position > self._unsynced_high:
            reason = "unsynced_bytes"
        elif connection.in_flight_bytes > limits.in_flight_bytes_max:
            reason = "in_flight_bytes"
        elif self._waiters.in_flight_bytes > limits.in_flight_bytes_total_max:
            reason = "in_flight_bytes_total"
        else:
            return False
        if self._sync is None and not self.needs_turn:
            return False  # nothing is on its way that would wake it
        self.metrics.capped[reason] += 1
        return True

    def _choke(self, connection: Connection) -> None:
        connection.is_choked = True
        self._choked[connection.port.id] = connection

    def _let_breathe(self, now: Now) -> None:
        """Let those go on who were held back, as far as there is room now."""
        if not self._choked:
            return
        limits = self.config.limits
        if self._group.journal.unsynced_bytes > self._unsynced_high // 2 and self._sync is not None:
            return
        for number, connection in list(self._choked.items()):
            if 2 * connection.in_flight_bytes > limits.in_flight_bytes_max and self._sync is not None:
                continue
            del self._choked[number]
            connection.is_choked = False
            self._go_on(connection, now)

    # --- the journal -------------------------------------------------------------------------------------------

    def _turn_ended(self, event: TurnEnded, now: Now) -> None:
        self.archiving.turn_ends(now)
        shown = self._write(now) if self.needs_turn else None
        self.ledger.tracing.turn_ended(self._group.journal.written_position, now)
        if shown is not None:  # what they lead to is of the next turn, its events too
            self.consuming.turn_written(now)
            self.consuming.made_visible(shown, now)
        if self.ledger.metadata.version != self._seen_version:
            self._seen_version = self.ledger.metadata.version
            self.consuming.refresh(now)
        if not self._is_over:
            self._ask_for_sync(now)
            self._ask_for_checkpoint()
            self._let_breathe(now)

    def _write(self, now: Now) -> list[tuple[int, int]] | None:
        """Write the turn: what can be seen now. None if the broker cannot go on."""
        failure: LakeMQError | None = None
        shown: list[tuple[int, int]] = []
        try:
            shown = self.ledger.flush()
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
            self._fail(journal.failure, now)
            return None
        return shown

    def _forget_undone(self, now: Now) -> None:
        """Metadata may have gone back, and its numbers and versions will come again with another meaning."""
        for connection in self.sessions.connections.values():
            connection.forget_routes()
        self.consuming.refresh(now)

    def _ask_for_sync(self, now: Now) -> None:
        if self._sync is not None or self._may_sync_later(now):
            return
        # A policy that puts syncs off must not do so until there is no room for what comes next.
        if self._group.journal.unsynced_bytes >= self._sync_bytes or self._group.wants_sync(now.wall_ms):
            ticket = self._group.begin_sync()
            if ticket is not None:
                self._sync = ticket
                self._sync_began_ms = now.monotonic_ms
                self._world.sync(ticket)

    def _may_sync_later(self, now: Now) -> bool:
        """Nobody waits for it, neither a producer nor a consumer: then a sync for more of them is cheaper for all."""
        if self._waiters.has_sync or self._choked or self.access.is_draining:
            return False
        is_seen_later = self.consuming.deadlines.waiting and not self._group.shows_written
        if is_seen_later and self._group.unsynced_messages:  # acks alone show nobody anything
            return False
        if self._group.journal.unsynced_bytes >= self._sync_bytes:
            return False
        return now.monotonic_ms - self._sync_began_ms < self.config.lazy_sync_ms

    def _journal_synced(self, event: JournalSynced, now: Now) -> None:
        assert event.ticket is self._sync, "one sync at a time"
        self._sync = None
        self.metrics.syncs.add(now.monotonic_ms - self._sync_began_ms)
        self._producing.is_sync_slow = False
        waited = self._group.unsynced_messages
        changed = self._group.end_sync(event.ticket, event.error)
        self.metrics.synced_messages += waited - self._group.unsynced_messages
        if event.error is not None:
            self._fail(f"a sync failed: {event.error}", now)
            return
        for reply in self._waiters.synced(self._group.journal.synced_position):
            self._send(reply, now)
        self.consuming.made_visible(changed, now)
        self._ask_for_sync(now)
        self._let_breathe(now)

    def _ask_for_checkpoint(self) -> None:
        journal = self._group.journal
        if (
            self._checkpoint is None
            and self._group.wants_checkpoint
            and journal.end_position == journal.written_position
        ):
            try:
                ticket = self._group.begin_checkpoint()
            except (LakeMQError, OSError) as error:
                self._world.note("warning", f"no checkpoint could be begun: {error}")
                return
            self._checkpoint = ticket
            self._world.checkpoint(ticket)

    def _checkpoint_written(self, event: CheckpointWritten, now: Now) -> None:
        assert event.ticket is self._checkpoint, "one checkpoint at a time"
        self._checkpoint = None
        self._group.end_checkpoint(event.ticket, event.error)
        if event.error is not None:
            self._world.note("warning", f"a checkpoint could not be written: {event.error}")
        if self._group.journal.failure is not None:
            self._fail(self._group.journal.failure, now)

    def _send(self, reply: Reply, now: Now) -> None:
        if reply.connection is not None:
            send(reply.connection, reply.buffers, now)
        else:
            reply.tell()

    def _refuse(self, reply: Reply, error: LakeMQError, now: Now) -> None:
        self.metrics.errors[code_of(error)] += 1
        buffers = reply.refusal(error)
        if reply.connection is not None:
            send(reply.connection, buffers, now)

    def _fail(self, reason: str, now: Now) -> None:
        """Nothing can be promised any more: tell those who wait, then go (R3)."""
        if self._is_over:
            return
        error = DiskIOError(reason)
        for reply in self._waiters.take_all():
            self._refuse(reply, error, now)
        self._is_over = True
        self._world.stop(reason)

    # --- time --------------------------------------------------------------------------------------------------

    def _tick(self, event: Tick, now: Now) -> None:
        self.consuming.tick(now)
        self._transacting.tick(now)
        self.delaying.tick(now)
        self.delivery_admin.tick(now)
        if self._sync is not None:
            self._watch_sync(now)
        elif not self._is_over:
            self._refuse_overdue(now)  # the sync policy may have put it off for longer than they wait
            self._ask_for_sync(now)
        if now.monotonic_ms - self._swept_ms >= _SWEEP_EVERY_MS:
            self._swept_ms = now.monotonic_ms
            self._sweep(now)
        if not self._is_over:
            self._keeping.tick(now)
        if self.access.is_draining:
            self._finish_draining(now)

    def _watch_sync(self, now: Now) -> None:
        spent_ms = now.monotonic_ms - self._sync_began_ms
        if spent_ms < _SYNC_PATIENCE_MS:
            return
        self._refuse_overdue(now)
        if spent_ms >= self.config.slow_sync_ms:
            self._producing.is_sync_slow = True
        if spent_ms >= self.config.sync_limit_ms:
            self._fail(f"a sync takes longer than {self.config.sync_limit_ms} ms", now)

    def _refuse_overdue(self, now: Now) -> None:
        for reply in self._waiters.overdue(now.monotonic_ms):
            self._refuse(reply, WriteTimeoutError("the sync was not done in time"), now)

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
                self._close(connection)

    # --- the end -----------------------------------------------------------------------------------------------

    def _stop_asked(self, event: StopAsked, now: Now) -> None:
        if not self.access.is_draining:
            self.access.is_draining = True
            self._drain_until_ms = now.monotonic_ms + self.config.drain_timeout_ms
            self.consuming.drain(now)

    def _finish_draining(self, now: Now) -> None:
        is_done = self._waiters.is_empty and self._sync is None and self._checkpoint is None
        if is_done or now.monotonic_ms >= self._drain_until_ms:
            self.ledger.tracing.turn_ended(self.ledger.end_position, now)
            self.archiving.write_events(now)  # whoever closes the journal writes them
            for connection in list(self.sessions.connections.values()):
                self._close(connection)
            self._is_over = True
            self._world.stop(None)


def _header_at(frames: memoryview, at: int) -> Header:
    return read_header(frames[at : at + _length_at(frames, at)])[0]


def _length_at(frames: memoryview, at: int) -> int:
    length: int = _LENGTH.unpack_from(frames, at)[0]
    return length
