"""Topics, apps, tokens and subscriptions as one snapshot that is never changed, only replaced.

Every change is a small JSON object, the same in the journal and in `apply`: replaying the changes gives the snapshot.
Numbers (of topics and subscriptions) are given once and never again, since the journal speaks of them.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from lakemq.errors import BadParameterError
from lakemq.names import AppName, owner_of
from lakemq.policy import ConsumerPolicy, ProducerPolicy

PARTITIONS_MAX = 32766  # of one topic: a signed SHORT on the wire, and the last one stands for retries
DROPPED_MAX = 1000  # topics that are gone whose names are remembered
TOPIC_TYPES = {"normal": 0, "broadcast": 1, "ordered": 2}
_TYPE_NAMES = {number: name for name, number in TOPIC_TYPES.items()}


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic; `groups` tells for each partition which partition group holds it."""

    number: int
    name: str
    type: str = "normal"
    groups: tuple[int, ...] = (0,)
    is_writable: bool = True
    is_readable: bool = True
    is_archived: bool = False
    # Of an ordered topic, for each time it grew: where each partition ended then. What is behind it, and the new
    # partitions, are handed out once all before it is settled, for keys may have moved between partitions.
    growths: tuple[tuple[int, ...], ...] = ()
    # RocketMQ's numbers of queues to write and to read: so many of the partitions, from the first; 0 is all of them.
    write_partitions: int = 0
    read_partitions: int = 0

    @property
    def writable_count(self) -> int:
        """How many of its partitions take messages: those below this."""
        return min(self.write_partitions or self.partition_count, self.partition_count)

    @property
    def readable_count(self) -> int:
        """How many of its partitions hand out messages: those below this."""
        return min(self.read_partitions or self.partition_count, self.partition_count)

    @property
    def partition_count(self) -> int:
        """How many partitions it has."""
        return len(self.groups)

    @property
    def type_number(self) -> int:
        """Its type as the wire has it."""
        return TOPIC_TYPES[self.type]


@dataclass(frozen=True, slots=True)
class Token:
    """Proof that a client is who it says: only a digest is kept."""

    id: str
    digest: str
    expires_ms: int = 0  # wall time; 0 never

    def matches(self, text: str, now_ms: int) -> bool:
        """Whether this is the token, and still good."""
        return (self.expires_ms == 0 or now_ms < self.expires_ms) and self.digest == digest_of(text)


@dataclass(frozen=True, slots=True)
class Limits:
    """What an app may use in a second; 0 for as much as it likes."""

    produce_per_second: int = 0
    produce_bytes_per_second: int = 0
    fetch_per_second: int = 0
    fetch_bytes_per_second: int = 0


NO_LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class App:
    """Who may connect: the part of an app's name before the dot."""

    name: str
    tokens: tuple[Token, ...] = ()
    limits: Limits = NO_LIMITS
    is_open: bool = False  # any token will do: made on first use


@dataclass(frozen=True, slots=True)
class Subscription:
    """What one app (with its group) may do with one topic; None for what it may not do."""

    number: int
    topic: str
    app: str
    producer: ProducerPolicy | None = None
    consumer: ConsumerPolicy | None = None
    start: str = "latest"  # where a consumer begins in partitions that it has not been in: latest or earliest


@dataclass(frozen=True, slots=True)
class Metadata:
    """Everything there is, at one version."""

    version: int = 0
    next_number: int = 1
    topics: Mapping[str, Topic] = field(default_factory=dict)
    apps: Mapping[str, App] = field(default_factory=dict)
    subscriptions: Mapping[tuple[str, str], Subscription] = field(default_factory=dict)
    cluster: str = ""  # the id of these data, given once
    dropped: Mapping[int, str] = field(default_factory=dict)  # names of topics that are gone, by number: the last ones

    # --- asking ------------------------------------------------------------------------------------------------

    def subscription(self, topic: str, app: str) -> Subscription | None:
        """What that app may do with that topic."""
        return self.subscriptions.get((topic, app))

    def is_token_good(self, app: str, token: str, now_ms: int) -> bool:
        """Whether a client may connect as that app."""
        known = self.apps.get(owner_of(AppName(app)))
        return known is not None and (known.is_open or any(one.matches(token, now_ms) for one in known.tokens))

    # --- changing ----------------------------------------------------------------------------------------------

    def apply(self, change: Mapping[str, Any]) -> "Metadata":
        """The snapshot after that change."""
        return _APPLY[change["op"]](self, change)

    # --- bytes -------------------------------------------------------------------------------------------------

    def pack(self) -> bytes:
        """All of it, to begin from."""
        return json.dumps(
            {
                "version": self.version,
                "next_number": self.next_number,
                "topics": list(self.topics.values()),
                "apps": list(self.apps.values()),
                "subscriptions": list(self.subscriptions.values()),
                "cluster": self.cluster,
                "dropped": [[number, name] for number, name in self.dropped.items()],
            },
            separators=(",", ":"),
            default=_fields_of,
        ).encode()

    @classmethod
    def unpack(cls, data: bytes) -> "Metadata":
        """What `pack` gave."""
        if not data:
            return cls()
        said = json.loads(data)
        subscriptions = [_subscription_of(one) for one in said["subscriptions"]]
        return cls(
            said["version"],
            said["next_number"],
            {one["name"]: _topic_of(one) for one in said["topics"]},
            {one["name"]: _app_of(one) for one in said["apps"]},
            {(one.topic, one.app): one for one in subscriptions},
            said.get("cluster", ""),
            dict(said.get("dropped", ())),
        )


def digest_of(token: str) -> str:
    """What is kept of a token. Tokens are long and random, so one round is enough."""
    return hashlib.sha256(token.encode()).hexdigest()


def pack_change(change: Mapping[str, Any]) -> bytes:
    """A change as its record holds it."""
    return json.dumps(change, separators=(",", ":")).encode()


def topics_of(change: Mapping[str, Any]) -> tuple[str, ...] | None:
    """The topics whose consumers a change may concern; None if it may be any."""
    if change["op"] == "put_topic":
        return (change["topic"]["name"],)
    if change["op"] == "put_subscription":
        return (change["subscription"]["topic"],)
    return () if change["op"] in ("put_app", "name_cluster") else None


def _fields_of(value: Any) -> dict[str, Any]:
    """A value as `json` wants it; `asdict`, which copies all that is in it, takes ten times as long."""
    return {name: getattr(value, name) for name in _FIELD_NAMES[type(value)]}


_FIELD_NAMES = {
    kind: tuple(one.name for one in fields(kind))
    for kind in (Topic, Token, Limits, App, Subscription, ProducerPolicy, ConsumerPolicy)
}


def unpack_change(payload: bytes | memoryview) -> dict[str, Any]:
    """What `pack_change` gave."""
    change: dict[str, Any] = json.loads(bytes(payload))
    return change


def policy_with(policy: Any, settings: Mapping[str, Any]) -> Any:
    """A policy with some of its fields set anew; BadParameterError for a field or a value it cannot have."""
    if not isinstance(settings, Mapping):
        raise BadParameterError(f"the settings of {type(policy).__name__} are names with values, not {settings!r}")
    known = {one.name: one for one in fields(policy)}
    values = {}
    for name, value in settings.items():
        if name not in known:
            raise BadParameterError(f"{name!r} is not a setting of {type(policy).__name__}: {', '.join(sorted(known))}")
        values[name] = _checked(name, getattr(policy, name), value)
    return replace(policy, **values)


_RANGES = {
    "batch_size": (1, 32767),
    "ack_timeout_ms": (1, 86_400_000),
    "timeout_ms": (1, 600_000),
    "error_times": (0, 1000),
    "partitions_max": (1, 0x7FFFFFFF),
    "retry_read_probability": (0, 100),
    "concurrent_prefetch_size": (1, 100_000),
    "delay_ms": (0, 0x7FFFFFFF),
    "retry_times": (0, 1000),
    "retry_first_ms": (1, 86_400_000),
    "retry_factor": (1, 100),
    "retry_delay_max_ms": (1, 7 * 86_400_000),
}


_WORDS = {"retry_schedule": ("power", "levels")}


def _checked(name: str, now: Any, value: Any) -> Any:
    if isinstance(now, bool):
        if not isinstance(value, bool):
            raise BadParameterError(f"{name} is true or false, not {value!r}")
        return value
    if isinstance(now, int):
        low, high = _RANGES.get(name, (0, (1 << 62)))
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise BadParameterError(f"{name} is a whole number from {low} to {high}, not {value!r}")
        return value
    if isinstance(now, str):
        if not isinstance(value, str):
            raise BadParameterError(f"{name} is a text, not {value!r}")
        if name in _WORDS and value not in _WORDS[name]:
            raise BadParameterError(f"{name} is {' or '.join(_WORDS[name])}, not {value!r}")
        return value
    if name == "weights":
        pairs = value.items() if isinstance(value, Mapping) else value
        try:
            weights = tuple((str(key), int(weight)) for key, weight in pairs)
        except (TypeError, ValueError):
            raise BadParameterError(f"weights map broker ids to numbers, not {value!r}") from None
        if any(not 0 <= weight <= 32767 for _, weight in weights):
            raise BadParameterError("a weight is a whole number from 0 to 32767")
        return weights
    if not isinstance(value, list | tuple) or not all(isinstance(one, str) and 0 < len(one) <= 64 for one in value):
        raise BadParameterError(f"{name} is a list of addresses, not {value!r}")
    return tuple(value)


# --- one function per kind of change -----------------------------------------------------------------------------


def _put_topic(old: Metadata, change: Mapping[str, Any]) -> Metadata:
    topic = _topic_of(change["topic"])
    return replace(
        old,
        version=old.version + 1,
        next_number=max(old.next_number, topic.number + 1),
        topics={**old.topics, topic.name: topic},
    )


def _drop_topic(old: Metadata, change: Mapping[str, Any]) -> Metadata:
    name = change["name"]
    gone = old.topics.get(name)
    dropped = dict(old.dropped)
    if gone is not None:
        dropped[gone.number] = name
        while len(dropped) > DROPPED_MAX:
            del dropped[next(iter(dropped))]
    return replace(
        old,
        version=old.version + 1,
        dropped=dropped,
        topics={key: topic for key, topic in old.topics.items() if key != name},
        subscriptions={key: one for key, one in old.subscriptions.items() if one.topic != name},
    )


def _put_app(old: Metadata, change: Mapping[str, Any]) -> Metadata:
    app = _app_of(change["app"])
    return replace(old, version=old.version + 1, apps={**old.apps, app.name: app})


def _drop_app(old: Metadata, change: Mapping[str, Any]) -> Metadata:
    name = change["name"]
    return replace(
        old,
        version=old.version + 1,
        apps={key: app for key, app in old.apps.items() if key != name},
        subscriptions={key: one for key, one in old.subscriptions.items() if owner_of(AppName(one.app)) != name},
    )


def _put_subscription(old: Metadata, change: Mapping[str, Any]) -> Metadata:
    one = _subscription_of(change["subscription"])
    return replace(
        old,
        version=old.version + 1,
        next_number=max(old.next_number, one.number + 1),
        subscriptions={**old.subscriptions, (one.topic, one.app): one},
    )


def _drop_subscription(old: Metadata, change: Mapping[str, Any]) -> Metadata:
    gone = change["topic"], change["app"]
    return replace(
        old,
        version=old.version + 1,
        subscriptions={key: one for key, one in old.subscriptions.items() if key != gone},
    )


def _replace_all(old: Metadata, change: Mapping[str, Any]) -> Metadata:
    """What another broker, whose word counts, says it is."""
    return Metadata.unpack(json.dumps(change["metadata"]).encode())


def _name_cluster(old: Metadata, change: Mapping[str, Any]) -> Metadata:
    return replace(old, version=old.version + 1, cluster=change["id"])


def _archive_topic(old: Metadata, change: Mapping[str, Any]) -> Metadata:
    """Several changes in one, so that there is no moment at which only some of them are in force."""
    for one in change["changes"]:
        old = old.apply(one)
    return old


_APPLY = {
    "name_cluster": _name_cluster,
    "archive_topic": _archive_topic,
    "replace_all": _replace_all,
    "put_topic": _put_topic,
    "drop_topic": _drop_topic,
    "put_app": _put_app,
    "drop_app": _drop_app,
    "put_subscription": _put_subscription,
    "drop_subscription": _drop_subscription,
}


def _topic_of(said: Mapping[str, Any]) -> Topic:
    growths = tuple(tuple(ends) for ends in said.get("growths", ()))
    return Topic(**{**said, "groups": tuple(said["groups"]), "growths": growths})


def _app_of(said: Mapping[str, Any]) -> App:
    tokens = tuple(Token(**token) for token in said["tokens"])
    return App(said["name"], tokens, Limits(**said["limits"]), said["is_open"])


def _subscription_of(said: Mapping[str, Any]) -> Subscription:
    producer, consumer = said["producer"], said["consumer"]
    return Subscription(
        said["number"],
        said["topic"],
        said["app"],
        _producer_policy_of(producer) if producer is not None else None,
        _consumer_policy_of(consumer) if consumer is not None else None,
        said["start"],
    )


def _producer_policy_of(said: Mapping[str, Any]) -> ProducerPolicy:
    weights = tuple((key, weight) for key, weight in said["weights"])
    return ProducerPolicy(**{**said, "weights": weights, "black_list": tuple(said["black_list"])})


def _consumer_policy_of(said: Mapping[str, Any]) -> ConsumerPolicy:
    return ConsumerPolicy(**{**said, "black_list": tuple(said["black_list"])})
