"""Where partitions begin and end, where an app stands in them, and how to move it. Pure steps over the core."""

from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple

from lakemq.client.core import SHARED, Core
from lakemq.client.duration import moment_ms
from lakemq.client.promise import Promise, Steps, start
from lakemq.client.router import Broker, Route
from lakemq.errors import BadParameterError, LakeMQError, from_status
from lakemq.wire.consume import CommitAckIndex, PartitionIndex, TopicIndexes
from lakemq.wire.own import NO_TIME, FetchRange, PartitionRange, PartitionTime, TopicTimes
from lakemq.wire.session import AddConsumer

Start = str | int | datetime
"""A place in a topic: "earliest", "latest", an offset, a datetime, or how long ago ("-10m")."""


class Move(NamedTuple):
    """One partition of a seek: where the app stands, and where it is moved."""

    partition: int
    current: int
    target: int


class PartitionLag(NamedTuple):
    """How far an app is behind in one partition."""

    partition: int
    offset: int  # the next it will get
    end: int  # of what can be read
    lag: int


def ranges(core: Core, topic: str, app: str, time_ms: int | None, deadline_ms: int) -> Steps[dict[int, PartitionRange]]:
    """Every partition that has a leader: how far it reaches, where the app stands, and the index of a moment."""
    route = yield from core.route_now(topic, app, deadline_ms)
    found: dict[int, PartitionRange] = {}
    asked: list[Promise[list[PartitionRange]]] = [
        start(_ranges_of(core, route, broker, time_ms, deadline_ms)) for broker in route.brokers.values()
    ]
    for promise in asked:
        for one in (yield promise):
            found[one.partition] = one
    return dict(sorted(found.items()))


def _ranges_of(
    core: Core, route: Route, broker: Broker, time_ms: int | None, deadline_ms: int
) -> Steps[list[PartitionRange]]:
    session = yield from core.connected(broker.address, SHARED, deadline_ms)
    yield from core.introduced(session, AddConsumer, route.topic, route.app, deadline_ms)
    wanted = tuple(PartitionTime(p, NO_TIME if time_ms is None else time_ms) for p in route.led_by(broker.id))
    try:
        ack = yield core.ask(session, FetchRange((TopicTimes(route.topic, wanted),), route.app), deadline_ms)
        for topic in ack.topics:
            _check(topic.code, route.topic)
            for one in topic.partitions:
                _check(one.code, f"{route.topic}, partition {one.partition}")
    except LakeMQError as error:
        core.spoil(error, route.topic, route.app)
        raise
    return [one for topic in ack.topics for one in topic.partitions]


def place_in(one: PartitionRange, where: Start) -> int:
    """The index that a place means in one partition, within what is kept; of a moment, as the broker has said."""
    if where == "earliest":
        return one.first_index
    if where == "latest":
        return one.visible_index
    if isinstance(where, int):
        return min(max(where, one.first_index), one.visible_index)
    return one.visible_index if one.time_index < 0 else min(max(one.time_index, one.first_index), one.visible_index)


def time_of(where: Start, wall_ms: int) -> int | None:
    """The moment that a place means; None if it means none."""
    if isinstance(where, bool) or not isinstance(where, str | int | datetime):
        raise BadParameterError(f"{where!r} is no place in a topic: earliest, latest, an offset, a datetime or -10m")
    if isinstance(where, int) or where in ("earliest", "latest"):
        return None
    return moment_ms(where, wall_ms)


def seek(core: Core, topic: str, app: str, where: Start, only: int | None, is_dry_run: bool) -> Steps[list[Move]]:
    """Move an app, in all partitions or in one; on a dry run only say what would be done."""
    deadline_ms = core.now_ms + core.config.timeout_ms
    found = yield from ranges(core, topic, app, time_of(where, core.wall_ms), deadline_ms)
    if only is not None and only not in found:
        raise BadParameterError(f"{topic} has no partition {only} that can be reached")
    moves = [
        Move(one.partition, one.ack_index, place_in(one, where))
        for one in found.values()
        if only is None or one.partition == only
    ]
    if not is_dry_run:
        yield from commit(core, topic, app, {move.partition: move.target for move in moves}, deadline_ms)
    return moves


def commit(core: Core, topic: str, app: str, targets: Mapping[int, int], deadline_ms: int) -> Steps[None]:
    """Set where an app stands, by partition."""
    route = yield from core.route(topic, app, deadline_ms)
    if not targets.keys() <= route.leaders.keys():  # new ones, perhaps
        route = yield from core.route_now(topic, app, deadline_ms)
    unknown = sorted(targets.keys() - route.leaders.keys())
    if unknown:
        raise BadParameterError(f"{topic} has no partition {unknown[0]} that can be reached")
    by_broker: dict[int, list[PartitionIndex]] = {}
    for partition, target in targets.items():
        by_broker.setdefault(route.leaders[partition].id, []).append(PartitionIndex(partition, target))
    for broker_id, indexes in by_broker.items():
        session = yield from core.connected(route.brokers[broker_id].address, SHARED, deadline_ms)
        yield from core.introduced(session, AddConsumer, topic, app, deadline_ms)
        ack = yield core.ask(session, CommitAckIndex((TopicIndexes(topic, tuple(indexes)),), app), deadline_ms)
        for said in ack.topics:
            for one in said.partitions:
                _check(one.code, f"{topic}, partition {one.partition}")


def lag(core: Core, topic: str, app: str) -> Steps[list[PartitionLag]]:
    """How far an app is behind, by partition."""
    found = yield from ranges(core, topic, app, None, core.now_ms + core.config.timeout_ms)
    return [
        PartitionLag(one.partition, one.ack_index, one.visible_index, max(one.visible_index - one.ack_index, 0))
        for one in found.values()
    ]


def _check(code: int, where: str) -> None:
    if code:
        raise from_status(code, where)
