"""A broker, its disk and its clients in one thread, from one seed: work and faults, then peace, then the reckoning.

    Simulation(7).run()

The same seed gives the same run, event by event (`digest`). What it draws is in `plan.py`, what clients do in
`actor.py` and those beside it, what breaks in `troubles.py`, what is changed in `operators.py`, how the broker lives
and dies in `host.py`, what must hold in `history.py` and `invariants.py`.
"""

import heapq
import zlib
from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import count
from random import Random

from lakemq.delivery.settlement import DeadLetter
from lakemq.delivery.trace_record import EVENTS_TOPIC
from lakemq.embedded import Engine
from lakemq.errors import LakeMQError
from lakemq.testing.actor import Client, Stage, TopicFacts
from lakemq.testing.actor_archiver import Archiver
from lakemq.testing.actor_consumer import Consumer
from lakemq.testing.actor_observer import Auditor, Observer
from lakemq.testing.actor_producer import Producer, ProducerHabits
from lakemq.testing.actor_transactor import Transactor
from lakemq.testing.archived import check_events
from lakemq.testing.clock import SimClock
from lakemq.testing.disk import SimDisk
from lakemq.testing.history import History, ViolationError, violate
from lakemq.testing.host import Host
from lakemq.testing.invariants import FinalState, PartitionRead, check
from lakemq.testing.net import Network, Weather
from lakemq.testing.operators import LATE_APPS, Operators
from lakemq.testing.plan import (
    ConsumerPlan,
    Plan,
    Planned,
    ProducerPlan,
    TransactorPlan,
    draw_archive,
    draw_piecemeal,
    draw_plan,
    draw_visibility,
    later_consumer,
)
from lakemq.testing.troubles import Troubles
from lakemq.wire.dialect import Form

_AUDIT = "audit"
_PROBE = "probe"
_DRAIN_MS = 15_000
_PROBE_MS = 3_000
_START_MS = 12_000
_LOOK_MS = 25
_EVENTS_MAX = 400_000  # and some for each second: a message that fails again and again is waited for up to an hour
_EVENTS_PER_S = 2_000


class Simulation:
    """One run. `counts` tells afterwards what happened in it."""

    def __init__(self, seed: int, tell: Callable[[str], None] | None = None) -> None:
        self.seed = seed
        self.rng = Random(seed)
        self.plan: Plan = draw_plan(self.rng)
        draw_archive(Random(f"archive of {seed}"), self.plan)
        draw_visibility(Random(f"visibility {seed}"), self.plan)
        draw_piecemeal(Random(f"piecemeal {seed}"), self.plan)
        self.clock = SimClock()
        self.history = History()
        self.disk = SimDisk()
        self.digest = 0
        self.event_count = 0
        self._tell = tell
        self._began_ms = self.clock.monotonic_ms()
        self._heap: list[tuple[int, int, str, Callable[[], None]]] = []
        self._numbers = count()
        self._late_numbers = count()
        plan = self.plan
        self.host = Host(self.rng, self.clock, self.at, self.disk, self.history, plan.broker, plan.storage)
        self.host.sync_ms, self.host.turn_ms, self.host.tick_ms = plan.sync_ms, plan.turn_ms, plan.tick_ms
        self.network = self.host.network = Network(self.rng, self.at, self.clock.monotonic_ms, self.host, self._moved)
        self.stage = Stage(self.rng, self.clock, self.at, self.network, self.history, self._end_index)
        self.stage.creates_missing = plan.broker.creates_missing
        self.stage.shows_written = plan.storage.visible_after == "write"
        self.clients: list[Client] = []
        self.producers: list[Producer] = []
        self.archiver: Archiver | None = None
        self._troubles = Troubles(self.rng, self.clock, self.disk, self.host, self.stage, self.clients)
        apps = [*(one.app for one in plan.producers), *plan.subscriptions]
        policies = plan.policies if not plan.broker.creates_missing else {}
        self._operators = Operators(self.rng, self.host, self.stage, self._come, apps, policies)

    @property
    def counts(self) -> Counter[str]:
        """What happened, and how often."""
        return self.history.counts

    # --- time --------------------------------------------------------------------------------------------------

    def at(self, delay_ms: int, name: str, work: Callable[[], None]) -> None:
        """Do something so many milliseconds from now."""
        heapq.heappush(self._heap, (self.clock.monotonic_ms() + delay_ms, next(self._numbers), name, work))

    def _moved(self, data: bytes) -> None:
        self.digest = zlib.crc32(data, self.digest)

    def say(self, text: str) -> None:
        """For those who watch."""
        if self._tell is not None:
            self._tell(f"{self.clock.monotonic_ms() - self._began_ms:6d} {text}")

    def _go_on(self, for_ms: int, is_done: Callable[[], bool] | None = None) -> bool:
        """Let things happen for so long, or until that is so."""
        look_ms = self.clock.monotonic_ms()
        until_ms = look_ms + for_ms
        while self._heap and self._heap[0][0] <= until_ms:
            at_ms, _, name, work = heapq.heappop(self._heap)
            self.clock.pass_ms(at_ms - self.clock.monotonic_ms())
            self.digest = zlib.crc32(b"%d %s" % (at_ms, name.encode()), self.digest)
            self.event_count += 1
            if self.event_count > _EVENTS_MAX + (at_ms - self._began_ms) * _EVENTS_PER_S // 1000:
                violate("I15", f"{self.event_count} events, and no end: {Counter(one[2] for one in self._heap)}")
            work()
            if is_done is not None and at_ms >= look_ms:
                look_ms = at_ms + _LOOK_MS
                if is_done():
                    return True
        self.clock.pass_ms(until_ms - self.clock.monotonic_ms())
        return is_done is None or is_done()

    # --- the run -----------------------------------------------------------------------------------------------

    def run(self) -> None:
        """All of it; ViolationError if a promise is broken."""
        try:
            self._set_up()
            for one in self.plan.planned:
                self.at(one.at_ms, one.kind, partial(self._happen, one))
            self._go_on(self.plan.duration_ms)
            self._heal()
            self._drain("after all is healed")
            self._probe()
            self._final_fault()
            final = self._audit()
            self._wait_for_archive()
            self._leave()
            check(self.history, final)
            if self.archiver is not None:
                check_events(self.history, final, self.archiver, self.plan)
        except ViolationError as error:
            error.add_note(f"seed {self.seed}, {self.clock.monotonic_ms() - self._began_ms} ms after its start")
            raise

    def _happen(self, one: Planned) -> None:
        self.say(f"*** {one.kind}")
        self.counts[f"fault {one.kind}"] += 1
        (self._troubles.kinds.get(one.kind) or self._operators.kinds[one.kind])()

    def _end_index(self, topic: str, partition: int) -> int:
        """Behind all that may be in a partition now; far behind if nobody can tell."""
        engine = self.host.engine
        known = engine.broker.ledger.metadata.topics.get(topic) if engine is not None else None
        if engine is None or known is None:
            return 1 << 40
        return engine.group.next_index(known.number, partition)

    # --- set-up ------------------------------------------------------------------------------------------------

    def _set_up(self) -> None:
        plan, stage = self.plan, self.stage
        self.host.start()
        engine = self.host.engine
        assert engine is not None
        stage.topics = {topic.name: topic for topic in plan.topics}
        self.history.ordered |= {topic.name for topic in plan.topics if topic.is_ordered}
        stage.subscriptions = {app: list(topics) for app, topics in plan.subscriptions.items()}
        if not stage.creates_missing:
            self._make_everything(engine)
        for producer in plan.producers:
            made = Producer(stage, producer.name, producer.app, producer.form, producer.weather, producer.habits)
            self.producers.append(made)
            self.clients.append(made)
        for one in plan.transactors:
            self.clients.append(Transactor(stage, one.name, one.app, one.form, one.weather, one.habits))
        self.clients += [self._consumer(one) for one in plan.consumers]
        for seer in plan.observers:
            habits = {"seeks": seer.seeks, "filters": seer.filters}
            self.clients.append(Observer(stage, seer.name, seer.app, seer.form, seer.weather, seer.gap_ms, **habits))
        if plan.archive_gap_ms:
            self.archiver = Archiver(stage, plan.broker.archive.app, plan.archive_gap_ms)
            self.clients.append(self.archiver)
        for client in self.clients:
            self.at(self.rng.randint(0, 30), f"{client.name} connect", client.connect)

    def _make_everything(self, engine: Engine) -> None:
        plan = self.plan
        senders: list[ProducerPlan | TransactorPlan] = [*plan.producers, *plan.transactors]
        apps = [*(one.app for one in senders), *plan.subscriptions, _AUDIT, _PROBE, *LATE_APPS]
        for owner in dict.fromkeys(app.partition(".")[0] for app in apps):
            engine.ask("create_app", name=owner)
            engine.ask("add_token", name=owner, token_id="1", token=self.stage.token)
        for topic in plan.topics:
            engine.ask("create_topic", **topic.settings())
        if plan.archive_gap_ms:
            engine.ask("add_token", name=plan.broker.archive.app, token_id="1", token=self.stage.token)
        for sender in senders:
            for name in sender.habits.topics:
                engine.ask("subscribe", topic=name, app=sender.app, producer={})
        for app, names in plan.subscriptions.items():
            for name in names:
                self.history.serves(name, app, plan.policies[app])
                engine.ask("subscribe", topic=name, app=app, consumer=plan.policies[app], start="earliest")

    def _consumer(self, plan: ConsumerPlan) -> Consumer:
        return Consumer(self.stage, plan.name, plan.app, plan.form, plan.weather, plan.habits)

    def _come(self, app: str) -> None:
        """One more member of an app."""
        client = self._consumer(later_consumer(self.rng, next(self._late_numbers), app))
        self.clients.append(client)
        client.connect()

    @property
    def _lookers(self) -> tuple[str, str]:
        """Those that are subscribed and are lent nothing."""
        return _AUDIT, self.plan.broker.archive.app

    # --- peace -------------------------------------------------------------------------------------------------

    @property
    def _is_up(self) -> bool:
        engine = self.host.engine
        return engine is not None and not engine.broker.access.is_draining

    def _heal(self) -> None:
        """Everything that broke is whole again."""
        self.say("healed")
        self._troubles.heal()
        self.stage.is_calm = self.host.is_healing = self.network.is_calm = True
        self._go_on(max(self.host.slow_until_ms - self.clock.monotonic_ms(), 0) + 50)
        self._wait_for_start()
        self._wait_for_sync()
        if self.host.set_clock_right():
            self._wait_for_start()
        self._wait_for_operators()
        self._operators.heal()
        self._wait_for_operators()
        self._learn()

    def _wait_for_start(self) -> None:
        if not self._go_on(_START_MS, lambda: self._is_up):
            violate("I15", f"the broker is not up {_START_MS} ms after all was healed")

    def _wait_for_sync(self) -> None:
        """Also by a clock that somebody has set."""

        def is_synced() -> bool:
            engine = self.host.engine
            return engine is not None and engine.group.journal.unsynced_bytes == 0

        if not self._go_on(_START_MS, is_synced):
            violate("I15", f"nothing is synced {_START_MS} ms after all was healed")

    def _wait_for_operators(self) -> None:
        if not self._go_on(_START_MS, lambda: not self.host.asks):
            violate("answers", "an operator never got an answer")

    def _learn(self) -> None:
        """What operators asked for and were not told of: look how it went."""
        engine, stage = self.host.engine, self.stage
        assert engine is not None
        metadata = engine.broker.ledger.metadata
        for topic in metadata.topics.values():
            if topic.name == EVENTS_TOPIC:
                continue
            made = TopicFacts(topic.name, topic.partition_count, topic.type == "ordered")
            known = stage.topics.setdefault(topic.name, made)
            known.partitions = topic.partition_count
            known.is_gone = False
        for name, known in stage.topics.items():
            if name not in metadata.topics:
                if name not in self.history.dropped and not stage.creates_missing:
                    violate("I15", f"topic {name} is gone, and nobody dropped it")
                known.is_gone = True
        if not stage.creates_missing:
            for app, names in stage.subscriptions.items():
                names[:] = [one for one in names if metadata.subscription(one, app) is not None]
        for one in metadata.subscriptions.values():
            if one.consumer is None or one.app in self._lookers:
                continue
            names = stage.subscriptions.setdefault(one.app, [])
            if one.topic not in names:
                names.append(one.topic)
            if not any(isinstance(client, Consumer) and client.app == one.app for client in self.clients):
                self._come(one.app)

    def _behind(self) -> list[str]:
        """Who is not at the end yet."""
        engine = self.host.engine
        if engine is None:
            return ["the broker is down"]
        group, state = engine.group, engine.broker.ledger.state
        late = [f"{one.name} waits for {one.pending}" for one in self.producers if not one.is_idle]
        if engine.broker.delaying.pending:
            late.append(f"{engine.broker.delaying.pending} wait until they are due")
        for one in state.metadata.subscriptions.values():
            if one.consumer is None or one.app in self._lookers:
                continue
            topic = state.metadata.topics[one.topic]
            for partition in range(topic.partition_count):
                end = group.visible_index(topic.number, partition)
                index = state.acks.get(one.number, partition)
                if index < end or group.next_index(topic.number, partition) > end:
                    late.append(f"{one.app} is at {index} of {end} in {one.topic}/{partition}")
            late += [f"{one.app} has to retry {row}" for row in state.retries.of(one.number)]
        return late

    def _waits_ms(self) -> int:
        """How long it takes until all that failed is due again."""
        engine = self.host.engine
        if engine is None:
            return 0
        state = engine.broker.ledger.state
        kept = {one.number for one in state.metadata.subscriptions.values() if one.consumer is not None}
        dues = [row.due_ms for row in state.retries.rows() if row.subscription in kept]
        dues += [row.due_ms for rows in state.setbacks._stuck.values() for row in rows.values()]
        dues += [row["due_ms"] for row in engine.broker.delaying.rows(None, -1, 1000)]
        return max([due_ms - self.host.guarded(self.clock.monotonic_ms()) for due_ms in dues], default=0)

    def _drain(self, when: str, limit_ms: int = _DRAIN_MS) -> None:
        """Everything is delivered and acked."""
        self.say("drain")
        while True:
            waits_ms = self._waits_ms()
            if self._go_on(limit_ms + max(waits_ms, 0), lambda: not self._behind()):
                return
            if self._waits_ms() <= 0 or waits_ms <= 0:
                break
        clients = [f"{one.name} ({one.app}) waits for {one.pending}" for one in self.clients]
        violate("I07", f"{limit_ms} ms {when} not all is delivered: {self._behind()}; {clients}")

    def _probe(self) -> None:
        """One message more into each partition: whoever waits for it must be told at once, not when its time is up."""
        self._go_on(150)
        prober = Producer(self.stage, _PROBE, _PROBE, Form(), Weather(), ProducerHabits((), ()))
        self.producers.append(prober)
        self.clients.append(prober)
        if not self.stage.creates_missing:
            for facts in self.stage.living_topics():
                self._operators.ask("subscribe", {"topic": facts.name, "app": _PROBE, "producer": {}})
        prober.connect()
        self._go_on(150)
        for facts in self.stage.living_topics():
            for partition in range(facts.partitions):
                prober.probe(facts.name, partition)
        self._drain("after a last message to each partition", _PROBE_MS)
        failed = [one for one in self.history.sends if one.producer == _PROBE and one.outcome != "ok"]
        if failed:
            violate("I15", f"all is healed and a message is not taken: {failed}")

    def _final_fault(self) -> None:
        """Once more, when all is done: nothing may be gone."""
        kind = self.plan.final_fault
        if not kind:
            return
        self.say(f"*** at the end: {kind}")
        if kind == "stop":
            self._troubles.stop()
        else:
            self.host.die(kind)
        self._go_on(50)
        self._wait_for_start()
        self._drain("after the last start")

    # --- the reckoning -----------------------------------------------------------------------------------------

    def _audit(self) -> FinalState:
        """Read everything once more."""
        if not self.stage.creates_missing:
            for facts in self.stage.living_topics():
                wish = {"topic": facts.name, "app": _AUDIT, "consumer": {}, "start": "earliest"}
                self._operators.ask("subscribe", wish)
            self._go_on(200)
        auditor = Auditor(self.stage, _AUDIT)
        self.clients.append(auditor)
        auditor.connect()
        if not self._go_on(10_000, lambda: auditor.is_done):
            violate("I15", f"not everything could be read: {auditor.pending}")
        final = FinalState(
            {key: PartitionRead(first, payloads) for key, (first, payloads) in auditor.found.items()},
            grown=frozenset(self._operators.grown),
            ordered=frozenset(one.name for one in self.stage.topics.values() if one.is_ordered),
            # An id is remembered for an hour, and clocks are set by that much.
            forgets_uniq_ids=self.plan.broker.uniq_ids_max < 1000 or self.counts["fault clock jump"] > 0,
        )
        engine = self.host.engine
        assert engine is not None
        state = engine.broker.ledger.state
        for one in state.metadata.subscriptions.values():
            if one.consumer is not None and one.app not in self._lookers:
                for partition in range(state.metadata.topics[one.topic].partition_count):
                    final.ack_indexes[one.topic, one.app, partition] = state.acks.get(one.number, partition)
        numbers = {one.number: one for one in state.metadata.subscriptions.values()}
        for row in state.dead_letters.rows():
            if row.subscription in numbers:
                self._open_dead(engine, row)
                final.dead.append(((row.topic_name, row.app, row.partition), row))
        self.counts["dead letters"] += len(final.dead)
        self.counts["messages"] += sum(len(payloads) for _, payloads in auditor.found.values())
        return final

    def _open_dead(self, engine: Engine, row: DeadLetter) -> None:
        """A dead letter can be read as long as it is one; nobody else may have seen it before its segment went."""
        if row.topic_name in self.history.dropped:
            return
        try:
            message, _ = engine.broker.references.read(row.position, row.message_index)
        except LakeMQError as error:
            violate("I13", f"{row} cannot be read: {error}")
        self.history.body_of(
            row.topic_name, row.partition, row.message_index, bytes(message.body), self.clock.monotonic_ms()
        )

    def _wait_for_archive(self) -> None:
        """All that was produced and all events of it are archived."""
        archiver = self.archiver
        if archiver is None:
            return

        def is_done() -> bool:
            engine = self.host.engine
            if engine is None or engine.broker.ledger.tracing.waiting_count:
                return False
            return all(
                archiver.read_to.get((topic.name, partition), 0) >= engine.group.next_index(topic.number, partition)
                for topic, partition, _ in engine.broker.archiving.marks()
            )

        self._go_on(50)
        if not self._go_on(_DRAIN_MS, is_done):
            violate("I16", f"not everything is archived: {archiver.read_to}, {archiver.pending}")

    def _leave(self) -> None:
        """All clients go, and nobody of them waits for an answer in vain."""
        asked_ms = self.clock.monotonic_ms()
        self._go_on(300)
        for client in self.clients:
            waiting = [one for one in client.pending_since(asked_ms) if not one.startswith("FetchTopicMessage")]
            if waiting:
                violate("answers", f"{client.name} never got an answer: {waiting}")
        for client in self.clients:
            client.retire()
        self._go_on(1200)
        engine = self.host.engine
        assert engine is not None
        journal = engine.group.journal
        self._go_on(300, lambda: not journal.unsynced_bytes)  # events that were refused may have been written just now
        self._check_baseline(engine)

    def _check_baseline(self, engine: Engine) -> None:
        """I17: nothing is left of those who are gone."""
        broker, journal = engine.broker, engine.group.journal
        lendings = broker.consuming._lendings
        known = {one.number for one in broker.ledger.metadata.subscriptions.values()}
        left = {
            "connections": len(broker.sessions.connections),
            "pipes": len(engine._pipes),
            "waiters": int(not broker._waiters.is_empty),
            "bytes in flight": broker._waiters.in_flight_bytes,
            "choked": len(broker.sessions.choked),
            "polls": broker.consuming.deadlines.waiting,
            "parked": sum(not poll.is_done for one in lendings.values() for poll in one.parked),
            "leases": sum(one.loans.lent_count + one.retries.lent_count for one in lendings.values()),
            "held retries": sum(one.retries.held_count for one in lendings.values()),
            "lendings": len(set(lendings) - known),
            "undone": len(broker.ledger._undo),
            "unsynced": journal.unsynced_bytes,
        }
        if not self.counts["seeks"] and not self.counts["fault seek"]:  # which pass over what others waited for
            stuck = broker.ledger.state.setbacks._stuck
            left["stuck"] = sum(len(rows) for key, rows in stuck.items() if key[0] in known)
        if any(left.values()):
            violate("I17", f"after all clients are gone there is left: {left}")
        files_max = self.plan.storage.open_segments_max + self.plan.storage.open_index_files_max + 4
        if len(self.disk.open_paths()) > files_max:
            violate("I17", f"open files: {self.disk.open_paths()}; {files_max} are allowed")
