"""Connections: who is there, as which app, in which dialect, and with what in hand."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from lakemq.broker.effects import Port
from lakemq.broker.limits import Rate
from lakemq.broker.tracing import Subject
from lakemq.cluster.metadata import Limits, Metadata
from lakemq.errors import ConnectionNotFoundError
from lakemq.names import AppName, owner_of
from lakemq.storage.index import PartitionIndex
from lakemq.wire.dialect import Dialect
from lakemq.wire.header import REQUEST_HEADER_BYTES

Alike = tuple[bytes, bytes, bytes, bytes, bytes, int, int, int]
"""What `store_run` wants to know of a route, in its order: head, prefix, suffix, topic's STRING, the peer's address,
topic number, and how many bytes a run and a message may have."""

ROUTES_MAX = 65_536  # that all connections keep for themselves, and again of those they share; about a kilobyte each
_BESIDE_TOPIC_BYTES = 2 + 2 + 2 + 4 + 1  # how many topics, the name's length, no transaction, timeout, level


@dataclass(slots=True)
class ProduceRoute:
    """What a PRODUCE_MESSAGE of a connection looked like: the next ones will look alike (see `produce_run`)."""

    metadata_version: int
    key: bytes  # its `route_key`
    head: bytes
    prefix: bytes
    suffix: bytes
    topic_string: bytes
    topic: str
    topic_number: int
    partitions: Sequence[int]  # that are here and take messages
    is_flush: bool
    is_receive: bool
    timeout_ms: int
    rates: "AppRates | None"
    partition_offset: int  # of the first message's partition, from where the request begins
    is_plain: bool  # acked when stored, without limits: see `runs`
    alike: Alike
    traced: Subject | None  # whose messages these are, if that is to be traced
    indexes: dict[int, PartitionIndex] = field(default_factory=dict)  # of the partitions it was used for, by number

    def of(self, address: bytes, traced: Subject | None) -> "ProduceRoute":
        """The same for another peer."""
        head, prefix, suffix, topic_string, _, topic, run_bytes_max, message_bytes_max = self.alike
        return ProduceRoute(
            self.metadata_version,
            self.key,
            head,
            prefix,
            suffix,
            topic_string,
            self.topic,
            self.topic_number,
            self.partitions,
            self.is_flush,
            self.is_receive,
            self.timeout_ms,
            self.rates,
            self.partition_offset,
            self.is_plain,
            (head, prefix, suffix, topic_string, address, topic, run_bytes_max, message_bytes_max),
            traced,
            self.indexes,
        )


def route_key(frames: memoryview, at: int) -> bytes:
    """How the request there begins, up to its messages: what requests to one topic have in common."""
    start = at + REQUEST_HEADER_BYTES
    if start + 4 > len(frames):
        return b""
    topic_bytes = frames[start + 2] << 8 | frames[start + 3]
    return bytes(frames[at + 8 : at + 10]) + bytes(frames[start : start + topic_bytes + _BESIDE_TOPIC_BYTES])


@dataclass(slots=True)
class AppRates:
    """What one app has used of its limits, over all its connections."""

    limits: Limits
    produce: Rate
    produce_bytes: Rate
    fetch: Rate
    fetch_bytes: Rate


@dataclass(slots=True, eq=False)
class Connection:
    """One peer, as the core knows it."""

    port: Port
    opened_ms: int
    heard_ms: int
    dialect: Dialect | None = None  # told by its first ADD_CONNECTION
    app: str = ""  # without a group; empty until it has introduced itself
    region: str = ""
    namespace: str = ""
    name: str = ""  # the connectionId
    client: str = ""  # instance@address, or connectionId@address, as events name who sends and who receives
    language: int = 8
    client_version: str = ""
    is_ours: bool = False  # a client of ours, which is told where retries come from
    has_spoken: bool = False
    producers: dict[tuple[str, str], str] = field(default_factory=dict)  # (topic, app) → producerId
    consumers: dict[tuple[str, str], str] = field(default_factory=dict)
    roles_made: int = 0  # for ids that are given once
    route: ProduceRoute | None = None  # of the last one
    routes: dict[bytes, ProduceRoute] = field(default_factory=dict)  # of some topics, by `route_key`
    in_flight_bytes: int = 0
    parked_polls: int = 0
    backlog: deque[memoryview] = field(default_factory=deque)  # frames that wait until it may go on
    is_output_full: bool = False
    output_full_since_ms: int = 0
    is_choked: bool = False  # waits for the journal
    is_closing: bool = False

    @property
    def is_held_up(self) -> bool:
        """Whether its next request has to wait."""
        return self.is_output_full or self.is_choked

    def forget_routes(self) -> None:
        """Look at each request again."""
        self.route = None
        self.routes.clear()

    def keep_route(self, route: ProduceRoute, count_max: int) -> None:
        """For the next request like it. At the cap the first stay: of topics in turn, the oldest is needed next."""
        routes = self.routes
        if routes and next(iter(routes.values())).metadata_version != route.metadata_version:
            routes.clear()  # none of them is good any more
        if len(routes) < count_max:
            routes[route.key] = route

    def full_topic(self, topic: str) -> str:
        """A topic's name with the connection's namespace, unless it names one itself."""
        return f"{self.namespace}.{topic}" if self.namespace and "." not in topic else topic

    def check_app(self, app: str, admin_app: str) -> None:
        """ConnectionNotFoundError unless the connection may speak for that app."""
        if not self.app:
            raise ConnectionNotFoundError("the first request must be ADD_CONNECTION")
        if owner_of(AppName(app)) != self.app and (not admin_app or self.app != admin_app):
            raise ConnectionNotFoundError(f"the connection is of app {self.app!r}, the request of {app!r}")


class SharedRoutes:
    """What one connection's requests have shown, for others of the same app, namespace and host.

    Whether a request may be stored depends on nothing else of its connection: who it speaks for, what its topics are
    called, and black lists. Of many topics each connection would otherwise have to show every one by itself.
    """

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._routes: dict[tuple[str, str, str, bytes], ProduceRoute] = {}
        self._version = -1

    def note(self, connection: "Connection", route: ProduceRoute) -> None:
        """One more; those of another version of the metadata are not good any more. At the cap the first ones stay."""
        if route.metadata_version != self._version:
            self._version = route.metadata_version
            self._routes.clear()
        if len(self._routes) < self._count_max:
            self._routes[_who(connection, route.key)] = route

    def find(self, connection: "Connection", key: bytes, version: int) -> ProduceRoute | None:
        """What a connection like that one has sent before; it is that one's route."""
        return self._routes.get(_who(connection, key)) if version == self._version else None

    def clear(self) -> None:
        """Versions of the metadata may come again with another meaning."""
        self._routes.clear()
        self._version = -1


def _who(connection: "Connection", key: bytes) -> tuple[str, str, str, bytes]:
    return connection.app, connection.namespace, connection.port.host, key


class Sessions:
    """All connections, the rates of their apps, and what they have shown to each other."""

    def __init__(self) -> None:
        self.connections: dict[int, Connection] = {}
        self.shared_routes = SharedRoutes(ROUTES_MAX)
        self.choked: dict[int, Connection] = {}  # those of them that send faster than the disk writes
        self._rates: dict[str, AppRates] = {}

    def get(self, number: int) -> Connection | None:
        """The connection of that number, if it is still there."""
        return self.connections.get(number)

    def rates_of(self, app: str, metadata: Metadata, now_ms: int) -> AppRates | None:
        """What that app may still use; None if it has no limits."""
        owner = owner_of(AppName(app))
        known = metadata.apps.get(owner)
        if known is None or known.limits == Limits():
            self._rates.pop(owner, None)
            return None
        rates = self._rates.get(owner)
        if rates is None or rates.limits != known.limits:
            limits = known.limits
            rates = self._rates[owner] = AppRates(
                limits,
                Rate(limits.produce_per_second, now_ms),
                Rate(limits.produce_bytes_per_second, now_ms),
                Rate(limits.fetch_per_second, now_ms),
                Rate(limits.fetch_bytes_per_second, now_ms),
            )
        return rates
