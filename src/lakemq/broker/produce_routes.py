"""What the next PRODUCE_MESSAGE of a connection will look like, learnt from those before: `ProduceRoute`s.

Made by requests that went the long way, used by `runs` and `Producing.take_run`. A connection learns from its own
requests and from those of others like it (`SharedRoutes`).
"""

from lakemq.broker.access import Access
from lakemq.broker.config import BrokerConfig
from lakemq.broker.events import Now
from lakemq.broker.ledger import Ledger
from lakemq.broker.sessions import ROUTES_MAX, Connection, ProduceRoute, Sessions, route_key
from lakemq.message import MESSAGE_BYTES_MAX, Qos
from lakemq.wire.dialect import Dialect
from lakemq.wire.header import REQUEST_HEADER_BYTES
from lakemq.wire.produce import ProduceMessage

RUN_BYTES_MAX = 1 << 20
TIMEOUT_MAX_MS = 600_000
_PARTITION_IN_FIRST = 2 + 4  # behind the number of messages and the first one's length


class ProduceRoutes:
    """Notes and finds them."""

    def __init__(self, ledger: Ledger, config: BrokerConfig, access: Access, sessions: Sessions) -> None:
        self._ledger = ledger
        self._config = config
        self._access = access
        self._sessions = sessions

    def note(
        self, connection: Connection, command: ProduceMessage, frame: memoryview, qos: Qos | None, now: Now
    ) -> None:
        """A request was stored at that level; None if it was refused, or is not like most."""
        connection.route = None
        key = route_key(frame, 0)
        connection.routes.pop(key, None)
        if qos is None or qos is Qos.NO or connection.dialect is Dialect.JOYQUEUE:
            return
        entry = command.topics[0]
        if entry.tx_id:
            return  # what looks alike belongs to a transaction, too, and is not to be seen
        name = connection.full_topic(entry.topic)
        topic = self._ledger.metadata.topics[name]
        topic_string = _string(entry.topic)
        suffix = _string(command.app)
        prefix_bytes = 2 + len(topic_string) + 2 + 4 + 1
        prefix = bytes(frame[REQUEST_HEADER_BYTES : REQUEST_HEADER_BYTES + prefix_bytes])
        if bytes(frame[len(frame) - len(suffix) :]) != suffix or topic.type == "ordered":
            return  # something else follows, or the key of each message decides its partition
        timeout_ms = entry.timeout_ms if entry.timeout_ms > 0 else self._config.produce_timeout_ms
        rates = self._sessions.rates_of(command.app, self._ledger.metadata, now.monotonic_ms)
        subscription = self._ledger.metadata.subscription(name, command.app)
        policy = subscription.producer if subscription is not None else None
        if rates is not None and policy is not None and policy.parks_over_rate:
            return  # each request is looked at: what is over the rate is stored elsewhere
        route = connection.route = ProduceRoute(
            self._ledger.metadata.version,
            key,
            bytes(frame[8:10]),
            prefix,
            suffix,
            topic_string,
            name,
            topic.number,
            self._access.writable_partitions(topic),
            is_flush=qos is Qos.FLUSH,
            is_receive=qos is Qos.RECEIVE,
            timeout_ms=min(timeout_ms, TIMEOUT_MAX_MS),
            rates=rates,
            partition_offset=REQUEST_HEADER_BYTES + prefix_bytes + _PARTITION_IN_FIRST,
            is_plain=rates is None and qos is not Qos.RECEIVE,
            alike=(
                bytes(frame[8:10]),
                prefix,
                suffix,
                topic_string,
                connection.port.address,
                topic.number,
                RUN_BYTES_MAX,
                MESSAGE_BYTES_MAX,
            ),
            traced=self._ledger.tracing.sender(topic.number, command.app, connection.client),
        )
        connection.keep_route(route, self._own_max)
        if route.is_plain:
            self._sessions.shared_routes.note(connection, route)

    def find(self, connection: Connection, key: bytes) -> ProduceRoute | None:
        """The route of requests that begin like that, from this connection or from others like it."""
        version = self._ledger.metadata.version
        own = connection.routes.get(key)
        if own is not None and own.metadata_version == version:
            return own
        shared = self._sessions.shared_routes.find(connection, key, version)
        if shared is None:
            return None
        app = shared.suffix[2:].decode()
        if (shared.topic, app) not in connection.producers:
            return None  # it has not sent ADD_PRODUCER, and is told so
        traced = None
        if shared.traced is not None:
            traced = self._ledger.tracing.sender(shared.topic_number, app, connection.client)
        route = shared.of(connection.port.address, traced)
        connection.keep_route(route, self._own_max)
        return route

    @property
    def _own_max(self) -> int:
        """How many one connection may keep."""
        return ROUTES_MAX // len(self._sessions.connections)


def _string(text: str) -> bytes:
    data = text.encode()
    return len(data).to_bytes(2, "big") + data
