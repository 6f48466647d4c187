"""What one seed draws: sizes, clients with their habits, and what will break when."""

from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from lakemq.broker.config import BrokerConfig
from lakemq.broker.limits import BrokerLimits
from lakemq.delivery.delays import DelayLimits
from lakemq.delivery.transactions import TransactionLimits
from lakemq.message import Qos
from lakemq.storage.config import StorageConfig
from lakemq.storage.index import ENTRY_BYTES
from lakemq.storage.retention import RetentionPolicy
from lakemq.storage.sync_policy import ALWAYS, SyncPolicy
from lakemq.testing.actor import TopicFacts
from lakemq.testing.actor_consumer import ConsumerHabits
from lakemq.testing.actor_producer import ProducerHabits
from lakemq.testing.actor_transactor import TransactorHabits
from lakemq.testing.net import Weather
from lakemq.testing.rules import FILTERS
from lakemq.wire.dialect import Dialect, Form

FAULTS = (
    "kill",  # the process goes, at any moment
    "power",  # and all that was not synced with it
    "crash",  # the same, but at a disk operation soon to come
    "crash on ack",  # the power goes when a producer is told that its message is safe
    "stop",  # in peace
    "disk full",
    "write error",
    "sync error",
    "side error",  # of a file that is not the journal
    "slow sync",
    "cut",
    "reply lost",
    "clock jump",
)
_FORGETTING = ("power", "crash", "crash on ack", "sync error")  # what was not synced may be gone after these
_HARMLESS = ("stop", "cut", "reply lost", "clock jump")  # nothing is lost by these
CHANGES = (
    "create topic",
    "grow topic",
    "pause",
    "seek",
    "subscribe",
    "unsubscribe",
    "drop topic",
    "close topic",
    "limit app",
    "cancel delay",
    "resend dead",
    "retry now",
)


@dataclass(frozen=True, slots=True)
class Planned:
    """Something that will happen."""

    at_ms: int
    kind: str


@dataclass(frozen=True, slots=True)
class ProducerPlan:
    """One producer."""

    name: str
    app: str
    form: Form
    weather: Weather
    habits: ProducerHabits


@dataclass(frozen=True, slots=True)
class TransactorPlan:
    """One producer of transactions."""

    name: str
    app: str
    form: Form
    weather: Weather
    habits: TransactorHabits


@dataclass(frozen=True, slots=True)
class ConsumerPlan:
    """One member of an app."""

    name: str
    app: str
    form: Form
    weather: Weather
    habits: ConsumerHabits


@dataclass(frozen=True, slots=True)
class ObserverPlan:
    """One who looks around."""

    name: str
    app: str
    form: Form
    weather: Weather
    gap_ms: int
    seeks: bool
    filters: bool = False  # it may change what its app wants


@dataclass(slots=True)
class Plan:
    """All of it."""

    broker: BrokerConfig
    storage: StorageConfig
    topics: list[TopicFacts]
    producers: list[ProducerPlan] = field(default_factory=list)
    transactors: list[TransactorPlan] = field(default_factory=list)
    consumers: list[ConsumerPlan] = field(default_factory=list)
    observers: list[ObserverPlan] = field(default_factory=list)
    subscriptions: dict[str, list[str]] = field(default_factory=dict)
    policies: dict[str, dict[str, Any]] = field(default_factory=dict)  # of consumers, by app
    planned: list[Planned] = field(default_factory=list)
    duration_ms: int = 5000
    sync_ms: tuple[int, int] = (1, 12)
    turn_ms: int = 0  # a turn ends up to so long after what began it
    tick_ms: int = 20
    final_fault: str = ""
    archive_gap_ms: int = 0  # how often the archive reads; 0: nothing is archived


def draw_plan(rng: Random) -> Plan:
    """The plan of a seed."""
    creates_missing = rng.random() < 0.2
    partitions_default = rng.randint(1, 4)
    topics = [
        TopicFacts(
            f"t{number}",
            partitions_default if creates_missing else rng.choice((1, 1, 2, 3, 5)),
            not creates_missing and rng.random() < 0.3,
        )
        for number in range(rng.choice((1, 1, 2, 3)))
    ]
    plan = Plan(_broker(rng, creates_missing, partitions_default), _storage(rng), topics)
    plan.duration_ms = rng.randint(900, 2400)
    plan.sync_ms = rng.choice(((0, 2), (1, 12), (3, 40), (20, 120)))
    plan.turn_ms = rng.choice((0, 0, 2, 5))
    plan.tick_ms = rng.choice((20, 20, 35))
    plan.final_fault = rng.choice(("", "kill", "power", "power", "stop"))
    _draw_clients(rng, plan)
    _draw_faults(rng, plan, creates_missing=creates_missing)
    return plan


def draw_archive(rng: Random, plan: Plan) -> None:
    """Perhaps some topics are archived, and retention waits for nothing else. By dice of its own: others stay as is."""
    if plan.broker.creates_missing or rng.random() > 0.35:
        return
    for topic in plan.topics:
        topic.is_archived = rng.random() < 0.7
    if any(topic.is_archived for topic in plan.topics):
        plan.archive_gap_ms = rng.choice((5, 40, 300, 900))
        plan.broker = replace(
            plan.broker,
            retention=RetentionPolicy(size_bytes=rng.choice((None, 1))),
            retention_every_ms=rng.choice((60, 200, 400)),
        )
        plan.storage = replace(plan.storage, segment_bytes=48 << 10)
        if rng.random() < 0.5:  # then every event must be there
            plan.planned = [one for one in plan.planned if one.kind in (*CHANGES, *_HARMLESS)]
            plan.final_fault = rng.choice(("", "stop"))


def draw_visibility(rng: Random, plan: Plan) -> None:
    """Perhaps messages are seen once they are written: all promises hold, as long as the power does. Own dice, too."""
    if rng.random() > 0.12:
        return
    plan.planned = [one for one in plan.planned if one.kind not in _FORGETTING]
    if plan.final_fault == "power":
        plan.final_fault = "kill"
    plan.storage = replace(plan.storage, visible_after="write")


def _broker(rng: Random, creates_missing: bool, partitions_default: int) -> BrokerConfig:
    limits = BrokerLimits(
        in_flight_bytes_max=rng.choice((16 << 20, 16 << 20, 2000, 300)),
        in_flight_bytes_total_max=rng.choice((256 << 20, 256 << 20, 3000)),
        unsynced_bytes_high=rng.choice((32 << 20, 4000)),
        fetch_bytes_max=rng.choice((1 << 20, 600)),
        parked_polls_per_connection_max=rng.choice((1000, 1000, 1)),
        parked_polls_max=rng.choice((10_000, 10_000, 10_000, 4)),
        output_stall_ms=rng.choice((60_000, 900)),
        idle_ms=rng.choice((900_000, 900_000, 1500)),
    )
    limits = replace(limits, read_bytes_max=limits.fetch_bytes_max)  # not drawn: kept seeds stay what they are
    return BrokerConfig(
        creates_missing=creates_missing,
        partitions_default=partitions_default,
        produce_timeout_ms=rng.choice((5000, 400)),
        slow_sync_ms=rng.choice((2000, 250)),
        sync_limit_ms=rng.choice((30_000, 30_000, 1500)),
        lazy_sync_ms=rng.choice((20, 20, 0, 300)),
        drain_timeout_ms=rng.choice((10_000, 50)),
        retention=RetentionPolicy(size_bytes=rng.choice((None, None, 60_000))),
        retention_every_ms=400,
        uniq_ids_max=rng.choice((50_000, 50_000, 40)),
        retries_max=rng.choice((100_000, 100_000, 100_000, 3)),
        transactions=TransactionLimits(
            timeout_ms=rng.choice((600_000, 400)),
            purge_ms=rng.choice((86_400_000, 900)),
            offer_every_ms=rng.choice((60_000, 100)),
            open_max=rng.choice((10_240, 10_240, 2)),
            cache_bytes_max=rng.choice((32 << 20, 32 << 20, 0)),
        ),
        delays=DelayLimits(
            share_count=rng.choice((4, 1, 2)),
            unfiled_max=rng.choice((1 << 16, 1 << 16, 8)),
            block_rows=rng.choice((4096, 3)),
            near_ms=rng.choice((60_000, 300)),
            release_messages=rng.choice((2000, 2)),
            merge_bytes=rng.choice((64 << 10, 0)),
        ),
        limits=limits,
    )


def _storage(rng: Random) -> StorageConfig:
    policy = rng.choice((ALWAYS, ALWAYS, ALWAYS, SyncPolicy(every_ms=rng.choice((10, 60))), SyncPolicy(4, 40)))
    return StorageConfig(
        segment_bytes=rng.choice((48 << 10, 96 << 10, 256 << 10)),
        record_bytes_max=24 << 10,
        entries_per_file=rng.choice((16, 1000)),
        checkpoint_bytes=rng.choice((4 << 10, 20 << 10, 100 << 10)),
        unsynced_bytes_max=rng.choice((200 << 10, 64 << 20)),
        index_pending_bytes_max=rng.choice((4 * ENTRY_BYTES, 4 << 20)),
        open_segments_max=rng.choice((2, 64)),
        open_index_files_max=rng.choice((2, 64)),
        sync_policy=policy,
        maps_segments=rng.random() < 0.3,
    )


# --- clients ---------------------------------------------------------------------------------------------------------


def _form(rng: Random) -> Form:
    if rng.random() < 0.65:
        return Form()
    return Form(Dialect.JOYQUEUE, rng.choice((1, 2, 3, 4)), null_length=rng.choice((0, 0, -1)))


def _weather(rng: Random) -> Weather:
    reads_every_ms = rng.choice((0, 0, 0, 0, 0, 40, 150))
    return Weather(
        delay_ms=rng.choice((0, 1, 1, 5, 20)),
        is_choppy=rng.random() < 0.4,
        reads_every_ms=reads_every_ms,
        output_bytes_max=rng.choice((200, 3000)) if reads_every_ms else None,
    )


_MIXES = (
    (Qos.FLUSH,),
    (Qos.WRITE,),
    (Qos.FLUSH, Qos.WRITE),
    (Qos.RECEIVE, Qos.WRITE),
    (Qos.NO, Qos.FLUSH),
    (Qos.FLUSH, Qos.WRITE, Qos.RECEIVE, Qos.NO),
)


def _policy(rng: Random) -> dict[str, Any]:
    """How an app is served: every setting that changes what is delivered when."""
    policy: dict[str, Any] = {}
    if rng.random() < 0.3:
        policy["partitions_max"] = rng.choice((1, 2))
    if rng.random() < 0.75:
        policy["retry_first_ms"] = rng.choice((1, 20, 80, 300))
        policy["retry_factor"] = rng.choice((1, 2, 3))
        policy["retry_times"] = rng.choice((0, 1, 2, 4, 16))
        policy["retry_delay_max_ms"] = rng.choice((150, 1000, 3_600_000))
        if policy["retry_times"] < 3 and rng.random() < 0.3:
            policy["retry_schedule"] = "levels"
    policy.setdefault("retry_delay_max_ms", 3_600_000)
    policy["retry_read_probability"] = rng.choice((0, 20, 50, 100))
    policy["error_times"] = rng.choice((0, 1, 2, 3))
    policy["is_retry"] = rng.random() < 0.9
    if rng.random() < 0.4:
        policy |= {"is_concurrent": True, "concurrent_prefetch_size": rng.choice((8, 30, 100))}
    policy["is_sequential"] = rng.random() < 0.15
    if rng.random() < 0.2:
        policy["filter"] = rng.choice([one for one in FILTERS if one])
    if rng.random() < 0.1:
        policy["delay_ms"] = rng.choice((30, 200))
    return policy


def _draw_clients(rng: Random, plan: Plan) -> None:
    names = [topic.name for topic in plan.topics]
    has_delays, has_expiring = rng.random() < 0.3, rng.random() < 0.15
    for number in range(rng.choice((1, 1, 2, 3))):
        habits = ProducerHabits(
            topics=tuple(rng.sample(names, rng.randint(1, len(names)))),
            levels=rng.choice(_MIXES),
            shapes=rng.choice((("single",), ("single",), ("single", "array"), ("batch", "single", "mixed"))),
            names_partition=rng.choice((0.0, 0.5, 1.0)),
            unique=rng.choice((0.0, 0.0, 0.5, 1.0)),
            depth=rng.choice((1, 4, 12)),
            burst=rng.choice((1, 1, 3, 6)),
            gap_ms=rng.choice((40, 80, 160)),
            body_bytes=rng.choice((20, 100, 900)),
            timeouts_ms=rng.choice(((0,), (0, 300), (2000,))),
            retries=rng.choice((0.0, 0.5, 1.0)),
            marks=rng.choice((0.0, 0.7)),
            delays=rng.choice((0.1, 0.5)) if has_delays else 0.0,
            expires=0.2 if has_expiring else 0.0,
        )
        plan.producers.append(ProducerPlan(f"producer{number}", f"p{number}", _form(rng), _weather(rng), habits))
    for number in range(rng.choice((0, 0, 1, 2))):
        transactor = TransactorHabits(
            topics=tuple(rng.sample(names, rng.randint(1, len(names)))),
            gap_ms=rng.choice((20, 60, 150)),
            sends=rng.choice((1, 3, 6)),
            misbehaves=rng.choice((0.0, 0.3, 0.7)),
            timeout_ms=rng.choice((0, 0, 200)),
            body_bytes=rng.choice((20, 200)),
        )
        plan.transactors.append(
            TransactorPlan(f"transactor{number}", f"x{number}", _form(rng), _weather(rng), transactor)
        )
    for number in range(rng.choice((1, 1, 2, 3))):
        app = f"c{number}" if rng.random() < 0.7 else f"c{number}.group"
        plan.subscriptions[app] = rng.sample(names, rng.randint(1, len(names)))
        plan.policies[app] = _policy(rng)
        for member in range(rng.choice((1, 1, 1, 2, 3))):
            plan.consumers.append(_consumer(rng, f"consumer{number}-{member}", app))
        if rng.random() < 0.8:
            gap_ms = rng.choice((80, 160))
            seeks = rng.random() < 0.25
            weather, filters = _weather(rng), rng.random() < 0.15
            plan.observers.append(ObserverPlan(f"observer{number}", app, _form(rng), weather, gap_ms, seeks, filters))


def draw_piecemeal(rng: Random, plan: Plan) -> None:
    """Some consumers speak of each message by itself; drawn apart, so that the seeds of others stay as they are."""
    for nth, one in enumerate(plan.consumers):
        if rng.random() < 0.4:
            plan.consumers[nth] = replace(one, habits=replace(one.habits, is_piecemeal=True))


def _consumer(rng: Random, name: str, app: str) -> ConsumerPlan:
    habits = ConsumerHabits(
        count=rng.choice((1, 3, 10, 100)),
        lease_ms=rng.choice((300, 1200, 100_000)),
        wait_ms=rng.choice((100, 600, 3000)),
        work_ms=rng.choice((2, 20, 100)),
        polls=rng.choice((1, 1, 1, 2, 4)),
        misbehaves=rng.choice((0.0, 0.15, 0.5)),
        fails=rng.choice((0.0, 0.1, 0.4)),
        poison=rng.choice((0, 0, 3, 10)),
    )
    return ConsumerPlan(name, app, _form(rng), _weather(rng), habits)


def later_consumer(rng: Random, number: int, app: str) -> ConsumerPlan:
    """A member of an app that comes while things are under way."""
    return _consumer(rng, f"late{number}", app)


# --- what breaks -----------------------------------------------------------------------------------------------------


def _draw_faults(rng: Random, plan: Plan, *, creates_missing: bool) -> None:
    if rng.random() < 0.08:
        return  # a calm day: everything must be there
    kinds = rng.sample(FAULTS, rng.randint(1, 4))
    count = rng.randint(1, 6)
    moments = [Planned(rng.randint(60, plan.duration_ms), rng.choice(kinds)) for _ in range(count)]
    changes = [one for one in CHANGES if not (creates_missing and one in ("drop topic", "unsubscribe", "create topic"))]
    if rng.random() < 0.5:
        moments += [Planned(rng.randint(60, plan.duration_ms), rng.choice(changes)) for _ in range(rng.randint(1, 3))]
    plan.planned = sorted(moments, key=lambda one: one.at_ms)
