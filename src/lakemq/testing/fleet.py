"""Several workers of one machine and real clients in one thread, from one seed: sends, hangs, kills, lost answers.

    Fleet(7).run()

`simulation.py` tries one broker with clients that misbehave in every way. Here clients are the real ones, and the
brokers are several: what is held against them is what a client tells its user. A message that was confirmed is where
the receipt says (I01), one that "was surely not stored" is nowhere (I03), one with an id is stored once however often
it was tried (I04), and of the members of an app each partition is given to one (I14).
"""

import heapq
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from random import Random
from typing import Any

from lakemq.broker.config import BrokerConfig
from lakemq.broker.events import MetadataGiven
from lakemq.client.address import Address
from lakemq.client.config import ClientConfig
from lakemq.client.outbox import Outbox
from lakemq.client.outbox_log import MAGIC, OutboxLog
from lakemq.client.outgoing import Message
from lakemq.client.producer import Producer
from lakemq.client.promise import Promise
from lakemq.client.receipt import Outcome, Receipt, SendReport
from lakemq.embedded import Engine
from lakemq.envelope import unpack_all
from lakemq.errors import LakeMQError
from lakemq.message import BatchMessage
from lakemq.storage.config import StorageConfig
from lakemq.testing.clock import SimClock
from lakemq.testing.core_client import CoreClient
from lakemq.testing.disk import SimDisk
from lakemq.testing.facts import ViolationError, violate
from lakemq.testing.fleet_member import Member
from lakemq.testing.net import Network, Weather
from lakemq.wire.dialect import Form

TOPIC = "orders"
APP = "shop"
_TOKEN = "a token of the fleet"
_QUIET_MS = 40_000  # all that a client has under way has an outcome by then
_SESSION_MS = 800
_STORAGE = StorageConfig(segment_bytes=256 << 10, record_bytes_max=24 << 10, unsynced_bytes_max=1 << 20)


@dataclass(slots=True)
class Sent:
    """One message, and what its sender was told in the end."""

    body: bytes
    uniq_id: str | None
    outcome: Outcome | None = None
    is_boxed: bool = False
    was_crash: bool = False  # the program that sent it died


class Worker:
    """One broker of the machine: it takes its turns, syncs, hangs, dies and starts again."""

    def __init__(self, fleet: "Fleet", number: int, config: BrokerConfig) -> None:
        self.fleet = fleet
        self.number = number
        self.address = Address(f"worker-{number}", 50100 + number)
        self.engine: Engine | None = None
        self.network = Network(fleet.rng, fleet.at, fleet.clock.monotonic_ms, self, fleet.moved)
        self._config = config
        self._disk = SimDisk()
        self._hangs_until_ms = 0
        self._waiting: list[tuple[str, Callable[[Engine], None]]] = []
        self._is_turn_coming = False

    def start(self) -> None:
        """It comes up, and is told of the others."""
        if self.engine is not None:
            return
        engine = self.engine = Engine(self._disk, self.fleet.clock, self._config, _STORAGE)
        for other in self.fleet.workers:
            if other is not self:
                engine.broker.routing.neighbours[other.number] = (other.number, *other.address)
        self._tick(engine)

    def act(self, name: str, work: Callable[[Engine], None]) -> None:
        """As `Process` says. While it hangs the system takes connections and bytes for it."""
        engine = self.engine
        if engine is None:
            return
        if self.fleet.clock.monotonic_ms() < self._hangs_until_ms and name != "connect":
            self._waiting.append((name, work))
            return
        work(engine)
        self.network.collect()
        while engine.tickets:
            ticket = engine.tickets.popleft()
            self.fleet.at(self.fleet.rng.randint(0, 6), "sync", partial(self._run_ticket, engine, ticket))
        if not self._is_turn_coming and name != "turn":
            self._is_turn_coming = True
            self.fleet.at(self.fleet.rng.randint(0, 2), "turn", partial(self._end_turn, engine))

    def hang(self, for_ms: int) -> None:
        """Nothing happens in it for so long (SIGSTOP); what comes meanwhile waits."""
        self._hangs_until_ms = self.fleet.clock.monotonic_ms() + for_ms
        self.fleet.at(for_ms, "wake", self.wake)

    def wake(self) -> None:
        """It goes on with what has come."""
        self._hangs_until_ms = 0
        waiting, self._waiting = self._waiting, []
        for name, work in waiting:
            self.act(name, work)

    def die(self) -> None:
        """kill -9; its parent starts it again."""
        if self.engine is not None:
            self.engine = None
            self._waiting.clear()
            self._is_turn_coming = False
            self._disk.lose_process()
            self.network.broker_died()
            self.fleet.at(self.fleet.rng.randint(20, 1500), "start", self.start)

    def stored(self) -> dict[tuple[int, int], bytes]:
        """All messages of the topic by partition and index."""
        engine = self.engine
        assert engine is not None
        engine.settle()
        topic = engine.broker.ledger.metadata.topics[TOPIC]
        found = {}
        for partition in range(topic.partition_count):
            first = engine.group.first_index(topic.number, partition)
            end = engine.group.visible_index(topic.number, partition)
            slices = engine.group.read(topic.number, partition, first, end - first, 1 << 30) if end > first else []
            for one in slices:
                for value in unpack_all(bytes(one.messages)):
                    messages = value.messages() if isinstance(value, BatchMessage) else [value]
                    found.update({(partition, each.index): each.body for each in messages})
        return found

    def _run_ticket(self, engine: Engine, ticket: Any) -> None:
        if self.engine is engine:
            ticket.run()
            self.act("synced", lambda engine: engine.bring_back(ticket, None))

    def _end_turn(self, engine: Engine) -> None:
        if self.engine is engine:
            self._is_turn_coming = False
            self.act("turn", lambda engine: engine.end_turn())

    def _tick(self, engine: Engine) -> None:
        if self.engine is engine:
            self.act("tick", lambda engine: engine.tick())
            self.fleet.at(20, "tick", partial(self._tick, engine))


@dataclass(slots=True)
class FleetPlan:
    """What one seed draws."""

    workers: int = 2
    partitions: int = 4
    duration_ms: int = 6000
    sends: int = 40
    with_ids: float = 0.5
    batches: float = 0.3
    retry_unknown: bool = True
    timeout_ms: int = 5000
    members: int = 2
    has_outbox: bool = False
    troubles: list[tuple[int, str]] = field(default_factory=list)


def draw(rng: Random) -> FleetPlan:
    """A plan from a seed."""
    plan = FleetPlan(
        workers=rng.choice((1, 2, 2, 3)),
        duration_ms=rng.choice((2000, 6000)),
        sends=rng.choice((10, 40, 80)),
        with_ids=rng.choice((0.0, 0.5, 1.0)),
        batches=rng.choice((0.0, 0.3, 1.0)),
        retry_unknown=rng.random() < 0.7,
        timeout_ms=rng.choice((1000, 5000)),
        members=rng.choice((0, 2, 3)),
        has_outbox=rng.random() < 0.3,
    )
    plan.partitions = plan.workers * rng.choice((1, 2, 3))
    kinds = ("reply lost", "reply lost", "cut", "hang", "kill", "full disk", "crash")
    plan.troubles = sorted(
        (rng.randint(50, plan.duration_ms), rng.choice(kinds)) for _ in range(rng.choice((0, 3, 8, 15)))
    )
    return plan


class Fleet:
    """One run. `counts` tells afterwards what happened in it."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = Random(f"fleet {seed}")
        self.plan = draw(self.rng)
        self.clock = SimClock()
        self.digest = 0
        self.counts: Counter[str] = Counter()
        self.sent: list[Sent] = []
        self._heap: list[tuple[int, int, str, Callable[[], None]]] = []
        self._numbers = count()
        groups = tuple(range(1, self.plan.workers + 1))
        self.workers = [
            Worker(
                self,
                number,
                BrokerConfig(
                    broker_id=number,
                    group_id=number,
                    group_ids=groups,
                    owns_metadata=number == 1,
                    session_timeout_ms=_SESSION_MS,
                    advertised_host=f"worker-{number}",
                    advertised_port=50100 + number,
                ),
            )
            for number in groups
        ]
        networks = {worker.address: worker.network for worker in self.workers}
        self._networks = networks
        self._weather = Weather(delay_ms=self.rng.choice((0, 2, 20)), is_choppy=self.rng.random() < 0.3)
        self._config = ClientConfig(
            app=APP,
            token=_TOKEN,
            retry_unknown=self.plan.retry_unknown,
            timeout_ms=self.plan.timeout_ms,
            metadata_ms=2000,
            heartbeat_ms=1500,
        )
        self._programs = 0
        self.client: CoreClient
        self.outbox: Outbox | None = None
        self.producer: Producer
        self._begin_program(b"")
        self.members = [
            Member(self.rng, self.clock, self.at, networks, f"member{nth}", APP, _TOKEN, TOPIC, Form(), _SESSION_MS)
            for nth in range(self.plan.members)
        ]

    # --- time --------------------------------------------------------------------------------------------------

    def at(self, delay_ms: int, name: str, work: Callable[[], None]) -> None:
        """Do something so many milliseconds from now."""
        heapq.heappush(self._heap, (self.clock.monotonic_ms() + delay_ms, next(self._numbers), name, work))

    def moved(self, data: bytes) -> None:
        """Bytes arrived; for the digest."""
        self.digest = zlib.crc32(data, self.digest)

    def _go_on(self, for_ms: int) -> None:
        until_ms = self.clock.monotonic_ms() + for_ms
        while self._heap and self._heap[0][0] <= until_ms:
            at_ms, _, name, work = heapq.heappop(self._heap)
            self.clock.pass_ms(at_ms - self.clock.monotonic_ms())
            self.digest = zlib.crc32(b"%d %s" % (at_ms, name.encode()), self.digest)
            self.counts["events"] += 1
            work()
        self.clock.pass_ms(until_ms - self.clock.monotonic_ms())

    # --- the run -----------------------------------------------------------------------------------------------

    def run(self) -> None:
        """All of it; ViolationError if a promise is broken."""
        try:
            self._set_up()
            plan = self.plan
            for nth in range(plan.sends):
                self.at(self.rng.randint(1, plan.duration_ms), "send", partial(self._send, nth))
            for at_ms, kind in plan.troubles:
                self.at(at_ms, kind, partial(self._trouble, kind))
            self._go_on(plan.duration_ms)
            self._heal()
            self._go_on(_QUIET_MS)
            self._check()
        except ViolationError as error:
            error.add_note(f"fleet seed {self.seed}, {self.plan}")
            raise

    def _set_up(self) -> None:
        for worker in self.workers:
            worker.start()
        owner = self.workers[0].engine
        assert owner is not None
        owner.ask("create_app", name=APP)
        owner.ask("add_token", name=APP, token_id="1", token=_TOKEN)
        owner.ask("create_topic", name=TOPIC, partitions=self.plan.partitions)
        owner.ask("subscribe", topic=TOPIC, app=APP, producer={}, consumer={})
        packed = owner.broker.ledger.metadata.pack()
        for worker in self.workers[1:]:
            assert worker.engine is not None
            worker.engine.handle(MetadataGiven(packed))
            worker.engine.settle()
        for member in self.members:
            self.at(self.rng.randint(0, 300), "member", member.begin)

    def _begin_program(self, file: bytes) -> None:
        """The user's program starts, with what the one before it left in its outbox."""
        networks, self._programs = self._networks, self._programs + 1
        client = CoreClient(self.clock, self.at, networks, self._config, tuple(networks), self.rng, self._weather)
        self.client, self.outbox = client, None
        if self.plan.has_outbox:
            client.file[:] = file or MAGIC
            log = OutboxLog.recover(bytes(client.file), self._config.outbox_bytes_max)
            self.outbox = Outbox(client.core, log, f"program{self._programs}")
        self.producer = Producer(client.core, self.outbox)
        if self.outbox is not None:
            client.act(lambda core: self.outbox.drain() if self.outbox is not None else None)

    def _crash(self) -> None:
        file = bytes(self.client.file)
        self.client.die()
        for one in self.sent:
            one.was_crash = one.was_crash or one.outcome is None
        self._begin_program(file)

    def _send(self, nth: int) -> None:
        rng = self.rng
        messages = []
        for within in range(rng.randint(2, 5) if rng.random() < self.plan.batches else 1):
            uniq_id = f"order-{nth}-{within}" if rng.random() < self.plan.with_ids else None
            one = Sent(b"%d/%d" % (nth, within), uniq_id, is_boxed=self.outbox is not None)
            self.sent.append(one)
            messages.append(one)
        key = rng.choice((None, None, "k", "l"))

        def send(_: object) -> None:
            if len(messages) == 1:
                (one,) = messages
                promise = self.producer.send(TOPIC, one.body, key=key, uniq_id=one.uniq_id)
                promise.then(lambda told: self._told([one], told))
            else:
                values: list[Message | Any] = [Message(one.body, key=key, uniq_id=one.uniq_id) for one in messages]
                self.producer.send_many(TOPIC, values, None).then(lambda told: self._told(messages, told))

        self.client.act(send)

    def _told(self, messages: list[Sent], told: "Promise[Receipt] | Promise[SendReport]") -> None:
        outcomes: list[Outcome]
        try:
            result = told.result()
        except LakeMQError as error:
            outcomes = [error] * len(messages)
        else:
            outcomes = [result] if isinstance(result, Receipt) else result.outcomes
        for one, outcome in zip(messages, outcomes, strict=True):
            one.outcome = outcome
            kind = "ok" if isinstance(outcome, Receipt) else "unknown" if outcome.maybe_written else "failed"
            self.counts[f"send {kind}"] += 1

    # --- what breaks ---------------------------------------------------------------------------------------------

    def _trouble(self, kind: str) -> None:
        worker = self.rng.choice(self.workers)
        self.counts[f"fault {kind}"] += 1
        if kind == "crash":
            self._crash()
        elif kind == "hang":
            worker.hang(self.rng.choice((100, 900, 4000, 9000)))
        elif kind == "kill":
            worker.die()
        elif kind == "full disk" and worker.engine is not None:
            self._fill(worker)
        elif worker.network.links:
            self.rng.choice(list(worker.network.links)).cut(loses_reply=kind == "reply lost")

    def _fill(self, worker: Worker) -> None:
        disk = worker._disk
        disk.capacity_bytes = 0
        self.at(self.rng.choice((50, 1500)), "room again", partial(setattr, disk, "capacity_bytes", None))

    def _heal(self) -> None:
        for worker in self.workers:
            worker.network.is_calm = True
            worker._disk.capacity_bytes = None
            worker.wake()
            worker.start()

    # --- the reckoning -------------------------------------------------------------------------------------------

    def _check(self) -> None:
        stored: dict[tuple[int, int], bytes] = {}
        for worker in self.workers:
            found = worker.stored()
            both = stored.keys() & found.keys()
            if both:
                violate("I02", f"two workers have a message at {sorted(both)[0]}")
            stored |= found
        copies = Counter(stored.values())
        for one in self.sent:
            outcome = one.outcome
            if outcome is None and one.was_crash:
                self.counts["send cut off"] += 1
            elif outcome is None:
                violate("I15", f"nobody knows what became of {one.body!r}, {_QUIET_MS} ms after all was healed")
            elif isinstance(outcome, Receipt) and outcome.queued:
                if copies[one.body] != 1:
                    violate("I01", f"{one} was kept by the outbox, and is stored {copies[one.body]} times")
            elif isinstance(outcome, Receipt):
                place = outcome.partition or 0, -1 if outcome.offset is None else outcome.offset
                if stored.get(place) != one.body:
                    violate("I01", f"{one} is not at {place}: {stored.get(place)!r} is")
            elif not outcome.maybe_written and copies[one.body]:
                violate("I03", f"{one.body!r} is stored, and its sender heard that it is not: {outcome!r}")
            if (one.uniq_id is not None or one.is_boxed) and copies[one.body] > 1:
                violate("I04", f"{one} is stored {copies[one.body]} times")
        for member in self.members:
            member.check_alone(self.members, self.plan.partitions)
        self.counts["messages"] += len(stored)
