"""ADD_CONNECTION and what hangs on it: producers, consumers, heartbeats, health."""

from lakemq.broker.access import Access
from lakemq.broker.answers import answer, encode, send
from lakemq.broker.changes import Changes
from lakemq.broker.config import BrokerConfig
from lakemq.broker.consume import Consuming
from lakemq.broker.events import Now
from lakemq.broker.ledger import Ledger
from lakemq.broker.routing import Routing
from lakemq.broker.sessions import Connection
from lakemq.broker.waiters import CommandReply, Waiters
from lakemq.errors import (
    AuthenticationError,
    BadParameterError,
    ConnectionExistsError,
    ConsumerNotFoundError,
    LakeMQError,
    NoPermissionError,
    ProducerNotFoundError,
)
from lakemq.names import app_name, owner_of
from lakemq.wire.commands import encode_notice
from lakemq.wire.dialect import Dialect
from lakemq.wire.header import Header
from lakemq.wire.own import SetFilter, SetFilterAck
from lakemq.wire.session import (
    AddConnection,
    AddConnectionAck,
    AddConsumer,
    AddConsumerAck,
    AddProducer,
    AddProducerAck,
    FetchHealth,
    FetchHealthAck,
    Heartbeat,
    RemoveConnection,
    RemoveConsumer,
    RemoveProducer,
    TopicConsumer,
    TopicProducer,
)

HEALTHY = 100.0
_IP_CHARACTERS_MAX = 64
_INSTANCE_CHARACTERS_MAX = 40
OUR_CLIENTS = "lakemq"  # how the version begins that a client of ours gives
Roles = dict[tuple[str, str], str]  # (topic, app) → id


class Introducing:
    """Who connects, and what they say they will do."""

    def __init__(
        self,
        ledger: Ledger,
        config: BrokerConfig,
        access: Access,
        consuming: Consuming,
        routing: Routing,
        waiters: Waiters,
        changes: Changes,
    ) -> None:
        self._ledger = ledger
        self._config = config
        self._access = access
        self._consuming = consuming
        self._routing = routing
        self._waiters = waiters
        self._changes = changes

    def add_connection(self, connection: Connection, header: Header, command: AddConnection, now: Now) -> None:
        """Check who it is. JoyQueue's clients may say it again: the token is checked, the first identity kept."""
        if connection.app and connection.dialect is not Dialect.JOYQUEUE:
            raise ConnectionExistsError(f"the connection introduced itself before, as app {connection.app!r}")
        self._access.check_initialised()
        app = owner_of(app_name(command.app))
        if not self._access.may_introduce(app, command.token, now):
            raise AuthenticationError(f"app {app!r} does not exist, or the token is not one of its")
        # JoyQueue's clients name topics in full, and put other things there: it means nothing from them.
        namespace = command.namespace if connection.dialect is Dialect.DOCUMENTED else ""
        if namespace:
            app_name(namespace)  # the same letters
            if "." in namespace:
                raise BadParameterError(f"{namespace!r} cannot be a namespace: it has a dot")
        if not connection.app:
            connection.app = app
            connection.region = command.region
            connection.namespace = namespace
            connection.language = command.language
            connection.client_version = command.version[:64]
            connection.is_ours = command.version.startswith(OUR_CLIENTS)
            connection.name = f"{self._config.broker_id}-{connection.port.id}"
            # One program may have many connections; if it says which it is, its events are told together.
            instance = command.version.partition(" ")[2][:_INSTANCE_CHARACTERS_MAX] or connection.name
            connection.client = f"{instance}@{command.ip[:_IP_CHARACTERS_MAX] or connection.port.host}"
        self._after_write(connection, header, AddConnectionAck(connection.name, self._notice()), now)

    def remove_connection(self, connection: Connection, header: Header, command: RemoveConnection, now: Now) -> None:
        """Forget all it said; the socket is the client's to close."""
        self.forget(connection, now)
        answer(connection, header, None, now)
        connection.app = ""
        connection.opened_ms = now.monotonic_ms  # it has as long as a new one to introduce itself again

    def forget(self, connection: Connection, now: Now) -> None:
        """A connection is over, or might as well be."""
        for topic, app in connection.consumers:
            self._consuming.consumer_gone(connection, topic, app, now)
        connection.consumers.clear()
        connection.producers.clear()
        connection.forget_routes()
        self._routing.gone(connection)

    def heartbeat(self, connection: Connection, header: Header, command: Heartbeat, now: Now) -> None:
        """I am here too. Our own clients read in its text that they had better go elsewhere."""
        notice = self._notice()
        if not notice or connection.dialect is not Dialect.DOCUMENTED:
            answer(connection, header, None, now)
            return
        told = encode_notice(notice, header, dialect=Dialect.DOCUMENTED, send_time_ms=now.wall_ms)
        send(connection, [told], now)

    def health(self, connection: Connection, header: Header, command: FetchHealth, now: Now) -> None:
        """0 when stopping, half when not writable or readable."""
        point = HEALTHY
        if not self._access.is_readable or not self._access.is_writable:
            point /= 2
        if self._access.is_draining or self._ledger.group.journal.failure is not None:
            point = 0.0
        answer(connection, header, FetchHealthAck(point), now)

    def _notice(self) -> str:
        """What a producer should know before it sends (DMQ's notices); nothing if all is well."""
        if self._access.is_draining:
            return "draining: the broker is stopping"
        return "" if self._access.is_writable else "draining: the broker was set to take no messages"

    def set_filter(self, connection: Connection, header: Header, command: SetFilter, now: Now) -> None:
        """From now on this app gets other messages of a topic."""
        connection.check_app(command.app, self._config.admin_app)
        name = connection.full_topic(command.topic)
        _, subscription = self._access.subscription(name, command.app, now)
        assert subscription.consumer is not None
        if subscription.consumer.filter != command.filter:
            self._changes.check_owner()
            self._changes.subscribe(name, command.app, now, consumer={"filter": command.filter})
        self._after_write(connection, header, SetFilterAck(0), now)

    # --- roles -------------------------------------------------------------------------------------------------

    def add_producer(self, connection: Connection, header: Header, command: AddProducer, now: Now) -> None:
        """It will send; the same id however often it says so."""
        connection.check_app(command.app, self._config.admin_app)
        self._check_roles(connection, connection.producers, command)
        for name in command.topics:
            try:
                self._access.producer(connection, connection.full_topic(name), command.app, now)
            except ProducerNotFoundError as error:
                raise NoPermissionError(str(error)) from None
        ids = [self._role_id(connection, connection.producers, "p", name, command.app) for name in command.topics]
        entries = map(TopicProducer, command.topics, ids)
        self._after_write(connection, header, AddProducerAck(tuple(entries)), now)

    def remove_producer(self, connection: Connection, header: Header, command: RemoveProducer, now: Now) -> None:
        """It will send no more."""
        connection.check_app(command.app, self._config.admin_app)
        for name in command.topics:
            connection.producers.pop((connection.full_topic(name), command.app), None)
        connection.forget_routes()
        answer(connection, header, None, now)

    def add_consumer(self, connection: Connection, header: Header, command: AddConsumer, now: Now) -> None:
        """It will receive; the same id however often it says so."""
        connection.check_app(command.app, self._config.admin_app)
        self._check_roles(connection, connection.consumers, command)
        for name in command.topics:
            try:
                self._access.subscription(connection.full_topic(name), command.app, now)
            except ConsumerNotFoundError as error:
                raise NoPermissionError(str(error)) from None
        ids = [self._role_id(connection, connection.consumers, "c", name, command.app) for name in command.topics]
        entries = map(TopicConsumer, command.topics, ids)
        self._after_write(connection, header, AddConsumerAck(tuple(entries)), now)

    def remove_consumer(self, connection: Connection, header: Header, command: RemoveConsumer, now: Now) -> None:
        """It will receive no more: what it has in hand goes to others."""
        connection.check_app(command.app, self._config.admin_app)
        for name in command.topics:
            key = connection.full_topic(name), command.app
            if connection.consumers.pop(key, None) is not None:
                self._consuming.consumer_gone(connection, *key, now)
        answer(connection, header, None, now)

    def _check_roles(self, connection: Connection, roles: Roles, command: AddProducer | AddConsumer) -> None:
        """What it has said before may be said again, as often as it likes."""
        roles_max = self._config.limits.roles_per_connection_max
        more = {(connection.full_topic(name), command.app) for name in command.topics} - roles.keys()
        if len(connection.producers) + len(connection.consumers) + len(more) > roles_max:
            raise BadParameterError(f"a connection may name {roles_max} topics to send to and receive from")

    def _role_id(self, connection: Connection, roles: Roles, kind: str, topic: str, app: str) -> str:
        key = connection.full_topic(topic), app
        if key not in roles:
            roles[key] = f"{connection.name}-{kind}{connection.roles_made}"
            connection.roles_made += 1
        return roles[key]

    def _after_write(self, connection: Connection, header: Header, ack: object, now: Now) -> None:
        """What the request created must be written before it is told of."""

        def refused(error: LakeMQError) -> list[bytes | bytearray | memoryview]:
            return encode(connection, header, None, now, error)

        buffers = encode(connection, header, ack, now, None)
        self._waiters.park(CommandReply(connection, self._ledger.end_position, buffers, refused, waits_for_sync=False))
