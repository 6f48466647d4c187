"""The broker's process in the simulation: it starts, ends turns, runs tickets, dies at any moment, and starts again.

At every start what was recovered is held against what the journal had when it ended: the state is a fold over it, so
after a kill it is exactly that of what was written, after a power loss that of some later moment than the last sync.
"""

from collections.abc import Callable
from random import Random
from typing import Any

from lakemq.broker.config import BrokerConfig
from lakemq.delivery.trace_record import EVENTS_TOPIC
from lakemq.embedded import Engine
from lakemq.errors import LakeMQError
from lakemq.storage.checkpoint import CheckpointTicket
from lakemq.storage.config import StorageConfig
from lakemq.storage.disk import Buffer
from lakemq.storage.journal import SyncTicket
from lakemq.storage.journal_record import HEADER_BYTES, RecordType
from lakemq.storage.partition_group import Appended
from lakemq.storage.retention import RetentionPolicy
from lakemq.testing.clock import SimClock
from lakemq.testing.disk import PowerLost, SimDisk
from lakemq.testing.history import AppKey, History, PartitionKey, violate
from lakemq.testing.ledgered import Ledgered, Moment, difference, moment_of
from lakemq.testing.net import At, Network

_RESTART_MS = (20, 400)


class Host:
    """Runs one broker at a time on one disk."""

    def __init__(
        self,
        rng: Random,
        clock: SimClock,
        at: At,
        disk: SimDisk,
        history: History,
        broker: BrokerConfig,
        storage: StorageConfig,
    ) -> None:
        self.engine: Engine | None = None
        self.network: Network | None = None
        self.sync_ms = (0, 0)
        self.slow_sync_ms = 0  # the next sync takes that long
        self.slow_until_ms = 0
        self.turn_ms = 0
        self.tick_ms = 20
        self.dies_by = "kill"  # what a crash at a disk operation is
        self.crashes_in_recovery = 0  # so many starts end like that, if they do not end before (F03)
        self.is_healing = False
        self.asks: dict[int, Callable[[], None]] = {}  # operators who wait, to be told if nobody answers
        self._rng = rng
        self._clock = clock
        self._at = at
        self._disk = disk
        self._history = history
        self._broker_config = broker
        self._storage_config = storage
        self._ledgered = Ledgered()
        self._dead: Engine | None = None  # the last one that ended
        self._expected: list[Moment] = []
        self._visible: dict[tuple[int, int], int] = {}  # by topic number
        self._offsets = [(0, clock.wall_ms() - clock.monotonic_ms())]  # since when, and what the guarded clock adds
        self._latest_offset = self._offsets[0][1]
        history.guarded = self.guarded
        history.guarded_max = self.guarded_max
        self._is_turn_coming = False
        self._is_collecting = False
        self._must_collect = False

    def guarded(self, at_ms: int) -> int:
        """What the broker took for the time, at that monotonic time."""
        return at_ms + next(offset for since, offset in reversed(self._offsets) if since <= at_ms)

    def guarded_max(self, since_ms: int, at_ms: int) -> int:
        """The latest time that the broker has believed in between these."""
        offsets = [offset for since, offset in self._offsets if since <= at_ms]
        begun = [offset for since, offset in self._offsets if since <= since_ms]
        return at_ms + max(offsets[max(len(begun) - 1, 0) :])

    def _note_offset(self, engine: Engine) -> None:
        self._latest_offset = max(self._latest_offset, self._clock.wall_ms() - self._clock.monotonic_ms())
        offset = engine.broker.clock._offset_ms
        if offset is not None and offset != self._offsets[-1][1]:
            self._offsets.append((self._clock.monotonic_ms(), offset))

    def set_clock_right(self) -> bool:
        """The latest time that was ever shown counts from now on; True if the broker starts anew for that.

        What became due by a clock that was ahead would else wait until the others have caught up.
        """
        latest = self._latest_offset
        self._clock.jump_wall(latest - (self._clock.wall_ms() - self._clock.monotonic_ms()))
        if self._offsets[-1][1] == latest:
            return False
        self.die("kill")
        return True

    # --- acting ------------------------------------------------------------------------------------------------

    def act(self, name: str, work: Callable[[Engine], None]) -> None:
        """As `Process` says; what the broker asks for afterwards is seen to."""
        engine = self.engine
        if engine is None:
            return
        try:
            work(engine)
        except PowerLost:
            self._note_unfinished(engine)
            self.die(self.dies_by)
            return
        if self._is_collecting:
            self._must_collect = True
            return
        self._is_collecting = True
        try:
            self._must_collect = True
            while self._must_collect and self.network is not None:
                self._must_collect = False
                self.network.collect()
        finally:
            self._is_collecting = False
        self._note_offset(engine)
        if self.engine is engine:
            self._see_to(engine, ends_turn=name in ("turn", "tick"))

    def _see_to(self, engine: Engine, *, ends_turn: bool) -> None:
        if engine.broker.metrics.bugs:
            violate("bug", f"an exception in the broker: {[text for level, text in engine.notes if level == 'error']}")
        while engine.tickets:
            self._begin_ticket(engine, engine.tickets.popleft())
        if engine.is_stopped:
            self._stopped(engine)
        elif not self._is_turn_coming and (engine.broker.needs_turn or not ends_turn):
            self._end_turn_soon(engine)

    def _end_turn_soon(self, engine: Engine) -> None:
        self._is_turn_coming = True

        def end_turn() -> None:
            if self.engine is engine:
                self._is_turn_coming = False
                self.act("turn", lambda engine: engine.end_turn())

        self._at(self._rng.randint(0, self.turn_ms), "turn", end_turn)

    def _begin_ticket(self, engine: Engine, ticket: SyncTicket | CheckpointTicket) -> None:
        took_ms = self._rng.randint(*self.sync_ms)
        is_sync = isinstance(ticket, SyncTicket)
        if is_sync and self.slow_sync_ms:
            took_ms, self.slow_sync_ms = self.slow_sync_ms, 0
            self.slow_until_ms = self._clock.monotonic_ms() + took_ms
        self._history.counts["syncs" if is_sync else "checkpoints"] += 1
        failures: list[OSError] = []

        def run() -> None:
            if self.engine is not engine:
                return
            try:
                ticket.run()
            except OSError as error:
                failures.append(error)
            except PowerLost:
                self.die(self.dies_by)

        def bring_back() -> None:
            if self.engine is engine:
                failure = failures[0] if failures else None
                self.act("ticket", lambda engine: self._bring_back(engine, ticket, failure))

        runs_ms = self._rng.choice((0, took_ms, self._rng.randint(0, took_ms)))
        self._at(runs_ms, "run sync" if is_sync else "run checkpoint", run)
        self._at(took_ms, "synced" if is_sync else "checkpoint", bring_back)

    def _bring_back(self, engine: Engine, ticket: SyncTicket | CheckpointTicket, failure: OSError | None) -> None:
        if isinstance(ticket, SyncTicket) and failure is None:
            self._ledgered.synced(ticket.position)
        engine.bring_back(ticket, failure)

    def _tick(self, engine: Engine) -> None:
        def tick() -> None:
            if self.engine is engine:
                self.act("tick", lambda engine: engine.tick())
                self._tick(engine)

        self._at(self.tick_ms, "tick", tick)

    # --- the end -----------------------------------------------------------------------------------------------

    def die(self, by: str) -> None:
        """The process is gone: by a kill, or with the power."""
        engine, self.engine = self.engine, None
        if engine is None:
            return
        self._history.counts[f"died by {by}"] += 1
        self._remember(engine, is_power_lost=by == "power")
        if by == "power":
            self._disk.lose_power(self._rng)
        else:
            self._disk.lose_process()
        self._gone()

    def _stopped(self, engine: Engine) -> None:
        """It ended by itself: asked to, or because it must not go on."""
        self.engine = None
        self._history.counts["stopped" if engine.failure is None else "failed"] += 1
        by = "failure"
        if engine.failure is None:
            ledger = engine.broker.ledger
            self._ledgered.note(ledger.end_position, ledger.state)  # closing writes what no turn has
            try:
                engine.group.close()
                self._ledgered.synced(engine.group.journal.synced_position)
                by = "peace"
            except PowerLost:
                self._note_unfinished(engine)
                by = self.dies_by
            except (LakeMQError, OSError):
                self._history.counts["stop failed"] += 1
        self._remember(engine, is_power_lost=by == "power", loses_memory=by != "peace")
        if by == "power":
            self._disk.lose_power(self._rng)
        else:
            self._disk.lose_process()
        self._gone()

    def _note_unfinished(self, engine: Engine) -> None:
        """It died within a write, or before it could wipe one that failed: some of the turn may be on the disk."""
        journal = engine.group.journal
        if journal._needs_heal:
            self._ledgered.refused(journal.written_position)

    def _remember(self, engine: Engine, *, is_power_lost: bool, loses_memory: bool = True) -> None:
        """What must be there again."""
        self._dead = engine
        group, metadata = engine.group, engine.broker.ledger.metadata
        now_ms = self._clock.monotonic_ms()
        self._expected = self._ledgered.states(group.journal.written_position, is_power_lost=is_power_lost)
        self._visible = {key: group.visible_index(*key) for key in group.partitions()}
        self._history.died(now_ms, loses_memory=loses_memory)
        if not is_power_lost:
            return
        names = {topic.number: topic.name for topic in metadata.topics.values()}
        visible: dict[PartitionKey, int] = {
            (names[topic], partition): index for (topic, partition), index in self._visible.items() if topic in names
        }
        owners = {one.number: (one.topic, one.app) for one in metadata.subscriptions.values()}
        durable: dict[AppKey, int] = {
            (*owners[number], partition): index
            for (number, partition), index in self._ledgered.least_acks.items()
            if number in owners
        }
        self._history.power_lost(now_ms, visible, durable)

    def _gone(self) -> None:
        self._is_turn_coming = False
        self._is_collecting = False
        if self.network is not None:
            self.network.broker_died()
        asks, self.asks = self.asks, {}
        for lost in asks.values():
            lost()
        self._at(self._rng.randint(*_RESTART_MS), "start", self.start)

    # --- the start -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Recover and serve; if that fails, try again later."""
        if self.engine is not None:
            return
        if self.crashes_in_recovery:
            self.crashes_in_recovery -= 1
            self._disk.crash_after = self._disk.crash_points + self._rng.randint(0, 25)
        try:
            engine = Engine(self._disk, self._clock, self._broker_config, self._storage_config)
        except PowerLost:
            self._history.counts["died in recovery"] += 1
            if self.dies_by == "power":
                if self._dead is not None:  # what was written may be gone now, although it was a kill before
                    self._remember(self._dead, is_power_lost=True)
                self._disk.lose_power(self._rng)
            else:
                self._disk.lose_process()
            self._at(self._rng.randint(*_RESTART_MS), "start", self.start)
            return
        except (LakeMQError, OSError) as error:
            if self.is_healing:
                violate("I15", f"the broker does not start: {error}")
            self._history.counts["start refused"] += 1
            self._disk.lose_process()
            self._at(self._rng.randint(*_RESTART_MS), "start", self.start)
            return
        self._disk.crash_after = None
        self._history.counts["starts"] += 1
        self._check_recovered(engine)
        self._listen(engine)
        engine.broker.clock.read(engine.now())
        engine.broker.delaying._clock.read(engine.now())
        self._note_offset(engine)
        self.engine = engine
        self._is_turn_coming = False
        self._tick(engine)

    def _check_recovered(self, engine: Engine) -> None:
        group, state = engine.group, engine.broker.ledger.state
        if group.damage:
            violate("R5", f"damage where none was done: {group.damage} {group.notes}")
        for key, visible in self._visible.items():
            if group.visible_index(*key) < visible:
                violate(
                    "I09", f"topic {key[0]} partition {key[1]}: {visible} was visible, {group.visible_index(*key)} is"
                )
        if self._expected:
            self._check_fold(engine)
        self._ledgered.begin(group.journal.end_position, state)
        metadata = state.metadata
        for one in metadata.subscriptions.values():
            if one.app == self._broker_config.archive.app:
                continue  # its index is a mark, moved by itself
            topic = metadata.topics[one.topic]
            for partition in range(topic.partition_count if one.consumer is not None else 0):
                first = group.first_index(topic.number, partition)
                place = one.topic, one.app, partition
                index = max(state.acks.get(one.number, partition), first)
                self._history.told(place, self._history.ask(place), index, first)

    def _check_fold(self, engine: Engine) -> None:
        found = moment_of(engine.broker.ledger.state)
        reasons = []
        for moment in self._expected:
            wrong = difference(found, moment, is_start=True)
            if not wrong:
                return
            reasons.append(wrong)
        violate("I05", f"recovered with notes {engine.group.notes}: {reasons}")

    def _listen(self, engine: Engine) -> None:
        """Hear of all that goes into the journal: what is in force when a record follows is that of those before it."""
        ledger, ledgered = engine.broker.ledger, self._ledgered
        append, append_messages, flush = ledger.append, ledger.append_messages, ledger.flush

        def appended(kind: RecordType, payload: bytes, now_ms: int, *, topic: int = 0) -> tuple[int, int]:
            ledgered.note(ledger.end_position, ledger.state)
            return append(kind, payload, now_ms, topic=topic)

        def messages_appended(*arguments: Any, note: bytes | None = None, **more: Any) -> Appended:
            if note is not None:  # without one they change nothing that is looked at
                ledgered.note(ledger.end_position, ledger.state)
            try:
                return append_messages(*arguments, note=note, **more)
            except LakeMQError:
                events = ledger.metadata.topics.get(EVENTS_TOPIC)
                if events is not None and arguments[0] == events.number:
                    self._history.counts["events refused"] += 1  # they wait, and a stop may come first
                raise

        def flushed() -> list[tuple[int, int]]:
            ledgered.note(ledger.end_position, ledger.state)
            try:
                shown = flush()
            except LakeMQError:
                wanted = ledgered.refused(ledger.group.journal.written_position)
                self._history.losses_ms.append(self._clock.monotonic_ms())
                self._history.counts["refused turns"] += 1
                if engine.failure is None:
                    wrong = difference(moment_of(ledger.state), wanted, is_start=False)
                    if wrong:
                        violate("I05", f"after a turn that was refused: {wrong}")
                raise
            ledgered.written()
            return shown

        group = engine.group
        retain, make_room, put_messages = group.retain, group.make_room, group.append

        def messages_put(topic: int, partition: int, messages: Buffer, *arguments: Any, **more: Any) -> Appended:
            if not group.journal.fits(HEADER_BYTES + len(messages)):  # at the end of a segment all before is written
                ledgered.note(ledger.end_position, ledger.state)
            return put_messages(topic, partition, messages, *arguments, **more)

        def room_made(size: int, term: int, now_ms: int) -> None:
            if not group.journal.fits(size):
                ledgered.note(ledger.end_position, ledger.state)
            make_room(size, term, now_ms)

        def retained(policy: RetentionPolicy, now_ms: int) -> int:
            count = retain(policy, now_ms)
            if count:
                self._history.counts["segments dropped"] += count
                for topic in ledger.metadata.topics.values():
                    for partition in range(topic.partition_count):
                        first = group.first_index(topic.number, partition)
                        self._history.retained(topic.name, partition, first)
                for archived, partition, mark in engine.broker.archiving.marks():
                    first = group.first_index(archived.number, partition)
                    if first > mark:
                        violate("I16", f"{archived.name}/{partition}: {first} is the oldest kept, {mark} the mark")
            return count

        # The one broker of this run is listened in on, so that the history knows each fact when it is made.
        group.append = messages_put  # type: ignore[method-assign]  # listened in on: runs of requests do without the ledger
        group.retain = retained  # type: ignore[method-assign]
        group.make_room = room_made  # type: ignore[method-assign]  # listened in on, as the others
        ledger.flush = flushed  # type: ignore[method-assign]
        ledger.append = appended  # type: ignore[method-assign]
        ledger.append_messages = messages_appended  # type: ignore[method-assign]
