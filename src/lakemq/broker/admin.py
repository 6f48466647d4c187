"""What operators ask for, by name: changes are answered once they are durable, questions at once."""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from lakemq.broker.access import Access
from lakemq.broker.acks import Acking
from lakemq.broker.changes import Changes
from lakemq.broker.config import BrokerConfig
from lakemq.broker.delivery_admin import DELIVERY_ACTIONS, DeliveryAdmin
from lakemq.broker.events import AdminAsked, Now
from lakemq.broker.ledger import Ledger
from lakemq.broker.metrics import Metrics
from lakemq.broker.sessions import Sessions
from lakemq.broker.waiters import Buffers, CommandReply, Waiters
from lakemq.cluster.metadata import App, Subscription, Topic
from lakemq.errors import BadParameterError, ConsumerNotFoundError, LakeMQError, TopicNotFoundError, UnknownNameError
from lakemq.wire.consume import NEWEST_INDEX, OLDEST_INDEX

Answer = dict[str, Any] | list[dict[str, Any]]
_SEEK_WORDS = {"latest": NEWEST_INDEX, "earliest": OLDEST_INDEX}


class Admin:
    """One method per action; `ACTIONS` is all there is, so nothing else can be asked for."""

    def __init__(
        self,
        ledger: Ledger,
        config: BrokerConfig,
        access: Access,
        changes: Changes,
        acking: Acking,
        sessions: Sessions,
        waiters: Waiters,
        metrics: Metrics,
        delivery: DeliveryAdmin,
    ) -> None:
        self._ledger = ledger
        self._config = config
        self._access = access
        self.delivery = delivery
        self._changes = changes
        self._acking = acking
        self._sessions = sessions
        self._waiters = waiters
        self._metrics = metrics

    def ask(self, event: AdminAsked, now: Now) -> None:
        """Do it, and answer when that lasts."""
        answer = event.answer
        before = self._ledger.end_position
        try:
            act = ACTIONS.get(event.action)
            if act is None:
                raise BadParameterError(f"there is no action {event.action!r}")
            if event.action in CHANGES:
                self._changes.check_owner()
            result = act(self, now, **event.arguments)
        except LakeMQError as error:
            answer(None, error)
            return
        except TypeError as error:  # an argument that the action does not have, or of another type
            answer(None, BadParameterError(str(error)))
            return
        end = self._ledger.end_position
        if end == before and event.action not in CHANGES:
            answer(result, None)
            return

        def refused(error: LakeMQError) -> Buffers:
            answer(None, error)
            return []

        self._waiters.park(_AdminReply(end, refused, lambda: answer(result, None)))

    # --- topics ------------------------------------------------------------------------------------------------

    def list_topics(self, now: Now) -> Answer:
        return [self._topic(topic) for topic in self._ledger.metadata.topics.values()]

    def show_topic(self, now: Now, name: str) -> Answer:
        topic = self._known_topic(name)
        group = self._ledger.group
        partitions = [
            {
                "partition": partition,
                "group": topic.groups[partition],
                "first_offset": group.first_index(topic.number, partition),
                "end_offset": group.visible_index(topic.number, partition),
            }
            for partition in self._access.led_partitions(topic)
        ]
        subscriptions = [
            self._subscription(one) for one in self._ledger.metadata.subscriptions.values() if one.topic == name
        ]
        return {**self._topic(topic), "partition_offsets": partitions, "subscriptions": subscriptions}

    def create_topic(self, now: Now, name: str, **settings: Any) -> Answer:
        return self._topic(self._changes.create_topic(name, now, **settings))

    def set_topic(self, now: Now, name: str, **settings: Any) -> Answer:
        return self._topic(self._changes.set_topic(name, now, **settings))

    def drop_topic(self, now: Now, name: str) -> Answer:
        self._changes.drop_topic(name, now)
        self._metrics.forget_topic(name)
        return {"dropped": name}

    # --- apps --------------------------------------------------------------------------------------------------

    def list_apps(self, now: Now) -> Answer:
        return [self._app(app) for app in self._ledger.metadata.apps.values()]

    def show_app(self, now: Now, name: str) -> Answer:
        app = self._ledger.metadata.apps.get(name)
        if app is None:
            raise UnknownNameError(f"there is no app {name!r}")
        mine = [one for one in self._ledger.metadata.subscriptions.values() if one.app.partition(".")[0] == name]
        return {**self._app(app), "subscriptions": [self._subscription(one) for one in mine]}

    def create_app(self, now: Now, name: str) -> Answer:
        return self._app(self._changes.create_app(name, now))

    def set_app(self, now: Now, name: str, **limits: Any) -> Answer:
        return self._app(self._changes.set_limits(name, limits, now))

    def drop_app(self, now: Now, name: str) -> Answer:
        self._changes.drop_app(name, now)
        return {"dropped": name}

    def add_token(self, now: Now, name: str, token_id: str, token: str, expires_ms: int = 0) -> Answer:
        return self._app(self._changes.add_token(name, token_id, token, now, expires_ms=expires_ms))

    def drop_token(self, now: Now, name: str, token_id: str) -> Answer:
        return self._app(self._changes.drop_token(name, token_id, now))

    # --- subscriptions and where they stand ----------------------------------------------------------------------

    def list_subscriptions(self, now: Now, topic: str | None = None, app: str | None = None) -> Answer:
        return [
            self._subscription(one)
            for one in self._ledger.metadata.subscriptions.values()
            if topic in (None, one.topic) and app in (None, one.app)
        ]

    def subscribe(self, now: Now, topic: str, app: str, **settings: Any) -> Answer:
        return self._subscription(self._changes.subscribe(topic, app, now, **settings))

    def unsubscribe(self, now: Now, topic: str, app: str, role: str | None = None) -> Answer:
        self._changes.unsubscribe(topic, app, now, role=role)
        return {"dropped": [topic, app]}

    def lag(self, now: Now, topic: str, app: str) -> Answer:
        """Per partition: where the app is, the end, and what lies between."""
        known, subscription = self._known_consumer(topic, app)
        return [self._place(known, subscription, one) for one in self._access.led_partitions(known)]

    def seek(
        self,
        now: Now,
        topic: str,
        app: str,
        to: str | int,
        partition: int | None = None,
        time_ms: int | None = None,
        execute: bool = False,
    ) -> Answer:
        """Where the app would go; it goes only if `execute` says so. `to`: latest, earliest, time or an offset."""
        known, subscription = self._known_consumer(topic, app)
        led = self._access.led_partitions(known)
        if partition is not None and partition not in led:
            raise BadParameterError(f"topic {topic!r} has no partition {partition} here")
        plan = []
        for one in led if partition is None else [partition]:
            place = self._place(known, subscription, one)
            target = self._target(known, one, to, time_ms)
            if execute:
                self._acking.seek(topic, app, now, one, target)
            plan.append({**place, "target": target, "change": target - place["offset"]})
        return plan

    def _target(self, topic: Topic, partition: int, to: str | int, time_ms: int | None) -> int:
        group = self._ledger.group
        first = group.first_index(topic.number, partition)
        visible = group.visible_index(topic.number, partition)
        if to == "latest":
            return visible
        if to == "earliest":
            return first
        if to == "time":
            if not isinstance(time_ms, int):
                raise BadParameterError("time_ms is missing: milliseconds since 1970")
            return group.index_of_time(topic.number, partition, time_ms)
        if not isinstance(to, int) or isinstance(to, bool):
            raise BadParameterError(f"seek to latest, earliest, time or an offset, not {to!r}")
        return min(max(to, first), visible)

    # --- the broker itself ---------------------------------------------------------------------------------------

    def show_broker(self, now: Now) -> Answer:
        journal = self._ledger.group.journal
        return {
            "broker": self._config.broker_id,
            "mode": "dev" if self._config.creates_missing else "strict",
            "readable": self._access.is_readable,
            "writable": self._access.is_writable,
            "draining": self._access.is_draining,
            "connections": len(self._sessions.connections),
            "topics": len(self._ledger.metadata.topics),
            "journal_bytes": journal.end_position - journal.first_position,
            "unsynced_bytes": journal.unsynced_bytes,
            "journal_failure": journal.failure,
            "disk_full": journal.no_room,
            "notes": list(self._ledger.group.notes),
        }

    def set_broker(self, now: Now, readable: bool | None = None, writable: bool | None = None) -> Answer:
        """Until the next start: take no messages, or hand none out."""
        for value in (readable, writable):
            if value is not None and not isinstance(value, bool):
                raise BadParameterError("readable and writable are true or false")
        if readable is not None:
            self._access.is_readable = readable
        if writable is not None:
            self._access.is_writable = writable
        return self.show_broker(now)

    def list_connections(self, now: Now) -> Answer:
        return [
            {
                "id": one.name or str(one.port.id),
                "host": one.port.host,
                "app": one.app,
                "dialect": one.dialect.value if one.dialect is not None else None,
                "version": one.client_version,
                "producers": sorted({topic for topic, _ in one.producers}),
                "consumers": sorted({topic for topic, _ in one.consumers}),
                "in_flight_bytes": one.in_flight_bytes,
                "parked_polls": one.parked_polls,
            }
            for one in self._sessions.connections.values()
        ]

    # --- how things are shown --------------------------------------------------------------------------------------

    def _known_topic(self, name: str) -> Topic:
        topic = self._ledger.metadata.topics.get(name)
        if topic is None:
            raise TopicNotFoundError(f"there is no topic {name!r}")
        return topic

    def _known_consumer(self, topic: str, app: str) -> tuple[Topic, Subscription]:
        known = self._known_topic(topic)
        subscription = self._ledger.metadata.subscription(topic, app)
        if subscription is None or subscription.consumer is None:
            raise ConsumerNotFoundError(f"app {app!r} is no consumer of topic {topic!r}")
        return known, subscription

    def _place(self, topic: Topic, subscription: Subscription, partition: int) -> dict[str, Any]:
        first, index, end = self._ledger.stand(topic.number, partition, subscription.number)
        return {"partition": partition, "offset": index, "first_offset": first, "end_offset": end, "lag": end - index}

    def _topic(self, topic: Topic) -> dict[str, Any]:
        return {
            "name": topic.name,
            "type": topic.type,
            "partitions": topic.partition_count,
            "write_partitions": topic.writable_count,
            "read_partitions": topic.readable_count,
            "is_writable": topic.is_writable,
            "is_readable": topic.is_readable,
            "is_archived": topic.is_archived,
        }

    def _app(self, app: App) -> dict[str, Any]:
        tokens = [{"id": token.id, "expires_ms": token.expires_ms} for token in app.tokens]
        return {"name": app.name, "is_open": app.is_open, "tokens": tokens, "limits": asdict(app.limits)}

    def _subscription(self, one: Subscription) -> dict[str, Any]:
        return {
            "topic": one.topic,
            "app": one.app,
            "producer": asdict(one.producer) if one.producer is not None else None,
            "consumer": asdict(one.consumer) if one.consumer is not None else None,
        }


class _AdminReply(CommandReply):
    """An operator's answer waits for the sync like everybody's; there is no connection to send it on."""

    __slots__ = ("_tell",)

    def __init__(self, end_position: int, refusal: Callable[[LakeMQError], Buffers], tell: Callable[[], None]) -> None:
        super().__init__(None, end_position, [], refusal, waits_for_sync=True)
        self._tell = tell

    def tell(self) -> None:
        """It lasts."""
        self._tell()


def _delivery_action(name: str) -> Callable[..., Answer]:
    act: Callable[..., Answer] = getattr(DeliveryAdmin, name)
    return lambda admin, now, **arguments: act(admin.delivery, now, **arguments)


ACTIONS: dict[str, Callable[..., Answer]] = {
    name: getattr(Admin, name)
    for name in (
        "list_topics",
        "show_topic",
        "create_topic",
        "set_topic",
        "drop_topic",
        "list_apps",
        "show_app",
        "create_app",
        "set_app",
        "drop_app",
        "add_token",
        "drop_token",
        "list_subscriptions",
        "subscribe",
        "unsubscribe",
        "lag",
        "seek",
        "show_broker",
        "set_broker",
        "list_connections",
    )
} | {name: _delivery_action(name) for name in DELIVERY_ACTIONS}
CHANGES = frozenset(
    name for name in ACTIONS if name.startswith(("create_", "set_", "drop_", "add_")) and name != "set_broker"
) | {"subscribe", "unsubscribe"}
