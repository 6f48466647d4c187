"""Where a topic's partitions are: what FETCH_CLUSTER said, how old that is, and what it allows.

Pure. A route is a value and never changes; a new answer makes a new route. What is old may still be used while a new
answer is on its way; what a broker has contradicted (`spoil`) may not.
"""

from dataclasses import dataclass, field, replace
from typing import NamedTuple

from lakemq.client.address import Address
from lakemq.policy import ConsumerPolicy, ProducerPolicy
from lakemq.wire.metadata import (
    NO_LEADER,
    READ_ONLY_GROUP,
    WRITE_ONLY_GROUP,
    ClusterBroker,
    ClusterTopic,
    FetchClusterAck,
    TopicType,
)

_HOSTS_ANY = ("", "0.0.0.0", "::")  # a broker that listens everywhere and was not told its name
_WEIGHT_DEFAULT = 1


class Broker(NamedTuple):
    """One broker and how to reach it."""

    id: int
    address: Address
    is_nearby: bool = False


@dataclass(frozen=True, slots=True)
class Route:
    """One topic as one app sees it."""

    topic: str
    app: str
    fetched_ms: int
    type: int = TopicType.NORMAL
    producer_policy: ProducerPolicy = field(default_factory=ProducerPolicy)
    consumer_policy: ConsumerPolicy = field(default_factory=ConsumerPolicy)
    partitions: tuple[int, ...] = ()  # all that take messages, in order, with a leader or without
    readable: tuple[int, ...] = ()  # all that hand them out: others while the topic grows or shrinks
    leaders: dict[int, Broker] = field(default_factory=dict)  # by partition; those without a leader are left out
    brokers: dict[int, Broker] = field(default_factory=dict)  # those that lead any, by id
    candidates: tuple[tuple[int, ...], tuple[float, ...]] = ((), ())  # to write to: partitions, and up to which chance

    @property
    def is_ordered(self) -> bool:
        """Whether all messages of the topic are to be kept in order."""
        return self.type == TopicType.ORDERED

    @property
    def delivers_in_order(self) -> bool:
        """Whether what is behind a message that failed waits for it."""
        return self.is_ordered or self.consumer_policy.is_sequential

    @property
    def receiving(self) -> dict[int, Broker]:
        """The brokers to receive from: where the policy says so, those nearby, if there are any."""
        near = {broker.id: broker for broker in self.brokers.values() if broker.is_nearby}
        return near if near and self.consumer_policy.is_nearby else self.brokers

    def led_by(self, broker_id: int) -> tuple[int, ...]:
        """The partitions of one broker that can be read."""
        return tuple(p for p in self.readable if p in self.leaders and self.leaders[p].id == broker_id)

    def writable_at(self, broker_id: int) -> tuple[int, ...]:
        """The partitions of one broker that take messages."""
        return tuple(p for p in self.partitions if p in self.leaders and self.leaders[p].id == broker_id)

    def without(self, tried: set[int]) -> "Route":
        """The same with other brokers to write to than those tried before; itself if there are no others."""
        left = [p for p in self.candidates[0] if self.leaders[p].id not in tried] if tried else []
        if not left:
            return self
        weights = dict(zip(self.candidates[0], _steps(self.candidates[1]), strict=True))
        return replace(self, candidates=_cumulated(left, [weights[p] for p in left]))


class Router:
    """The routes that are known."""

    def __init__(self, metadata_ms: int) -> None:
        self._metadata_ms = metadata_ms
        self._routes: dict[tuple[str, str], Route] = {}
        self._spoiled: set[tuple[str, str]] = set()
        self._addresses: dict[Address, None] = {}
        self._health: dict[Address, float] = {}  # from 0 to 1, of brokers that are not well

    def weigh(self, address: Address, health: float) -> None:
        """A broker said how well it is, from 0 to 1: so much of its share it is sent."""
        if self._health.get(address, 1.0) == health:
            return
        self._health.pop(address, None)
        if health < 1.0 and address in self._addresses:
            self._health[address] = health
        for key, route in self._routes.items():
            if any(broker.address == address for broker in route.brokers.values()):
                candidates = _candidates(route.partitions, route.leaders, route.producer_policy, self._health)
                self._routes[key] = replace(route, candidates=candidates)

    def route(self, topic: str, app: str) -> Route | None:
        """What may be used now, even if it is old."""
        key = (topic, app)
        return None if key in self._spoiled else self._routes.get(key)

    def last_known(self, topic: str, app: str) -> Route | None:
        """The same, even if a broker has contradicted it."""
        return self._routes.get((topic, app))

    def is_old(self, route: Route, now_ms: int) -> bool:
        """Whether it should be asked for again."""
        return now_ms - route.fetched_ms >= self._metadata_ms

    def spoil(self, topic: str, app: str) -> None:
        """A broker's answer does not fit what we know."""
        self._spoiled.add((topic, app))

    def addresses(self) -> tuple[Address, ...]:
        """Every broker heard of."""
        return tuple(self._addresses)

    def learn(self, found: ClusterTopic, ack: FetchClusterAck, app: str, asked: Address, now_ms: int) -> Route:
        """Take over an answer; `asked` is whom we reached, in case a broker does not know its own name."""
        brokers = {broker.id: broker_of(broker, asked) for broker in ack.brokers}
        leaders = {
            partition: brokers[group.leader]
            for group in found.partition_groups
            if group.leader != NO_LEADER and group.leader in brokers
            for partition in group.partitions
        }
        partitions = _partitions(found, but=READ_ONLY_GROUP)
        producer_policy = found.producer_policy or ProducerPolicy()
        route = Route(
            topic=found.topic,
            app=app,
            fetched_ms=now_ms,
            type=found.type,
            producer_policy=producer_policy,
            consumer_policy=found.consumer_policy or ConsumerPolicy(),
            partitions=partitions,
            readable=_partitions(found, but=WRITE_ONLY_GROUP),
            leaders=leaders,
            brokers={broker.id: broker for broker in leaders.values()},
            candidates=_candidates(partitions, leaders, producer_policy, self._health),
        )
        self._routes[found.topic, app] = route
        self._spoiled.discard((found.topic, app))
        for broker in brokers.values():
            self._addresses[broker.address] = None
        return route


def _partitions(found: ClusterTopic, *, but: int) -> tuple[int, ...]:
    """Those of all groups but the ones with that mark."""
    return tuple(sorted(p for group in found.partition_groups if not group.id & but for p in group.partitions))


def broker_of(broker: ClusterBroker, asked: Address) -> Broker:
    """How to reach a broker that one at `asked` has told us of."""
    host = asked.host if broker.host in _HOSTS_ANY else broker.host
    return Broker(broker.id, Address(host, broker.port or asked.port), broker.is_nearby)


def _candidates(
    partitions: tuple[int, ...], leaders: dict[int, Broker], policy: ProducerPolicy, health: dict[Address, float]
) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """The partitions that may be written, each with its broker's weight shared among those it leads.

    A broker that is not well gets less; one that is not well at all nothing, as long as there are others.
    """
    led = [p for p in partitions if p in leaders]
    if policy.is_nearby and any(leaders[p].is_nearby for p in led):
        led = [p for p in led if leaders[p].is_nearby]
    weight_of = {int(broker): weight for broker, weight in policy.weights if broker.lstrip("-").isdigit()}
    well = [health.get(leaders[p].address, 1.0) for p in led]
    if not weight_of:
        return _cumulated(led, well if any(well) else [1.0] * len(led))
    shares = {broker: sum(leaders[p].id == broker for p in led) for broker in {leaders[p].id for p in led}}
    weights = [max(weight_of.get(leaders[p].id, _WEIGHT_DEFAULT), 0) / shares[leaders[p].id] for p in led]
    if not any(weights):  # all closed: better than nowhere
        weights = [1.0] * len(led)
    weighed = [weight * share for weight, share in zip(weights, well, strict=True)]
    return _cumulated(led, weighed if any(weighed) else weights)


def _cumulated(partitions: list[int], weights: list[float]) -> tuple[tuple[int, ...], tuple[float, ...]]:
    kept = [(p, weight) for p, weight in zip(partitions, weights, strict=True) if weight > 0]
    total = sum(weight for _, weight in kept)
    bounds, reached = [], 0.0
    for _, weight in kept:
        reached += weight / total
        bounds.append(reached)
    return tuple(p for p, _ in kept), tuple(bounds)


def _steps(bounds: tuple[float, ...]) -> list[float]:
    return [bound - before for before, bound in zip((0.0, *bounds), bounds, strict=False)]
