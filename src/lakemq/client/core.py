"""The client without its sockets: connections, metadata and time, and the steps that all commands share.

Pure: events come in (`opened`, `received`, `lost`, `tick`), effects go out (`take_effects`), time is set by `advance`
before each. Work that waits is written as steps (`promise.py`).
"""

from collections.abc import Hashable, Iterator
from typing import Any

from lakemq.client.address import Address
from lakemq.client.backoff import Backoff, Random, pause_ms
from lakemq.client.config import ClientConfig
from lakemq.client.effects import Close, Connect, Effect, Note, Send
from lakemq.client.errors import (
    BrokerUnreachableError,
    ClosedError,
    ConnectionLostError,
    LeftAloneError,
    RequestTimeoutError,
)
from lakemq.client.promise import Promise, Steps, start
from lakemq.client.router import Route, Router
from lakemq.client.session import Session, State
from lakemq.client.timers import Timers
from lakemq.errors import (
    AuthenticationError,
    BadFrameError,
    InitializationError,
    LakeMQError,
    NoPermissionError,
    NotLeaderError,
    NotLeaderForFetchError,
    NotPartitionLeaderError,
    ServiceUnavailableError,
    TopicNotFoundError,
    from_status,
)
from lakemq.version import VERSION
from lakemq.wire.commands import Command
from lakemq.wire.metadata import FetchCluster
from lakemq.wire.session import AddConnection, AddConsumer, AddProducer, FetchHealth, FetchHealthAck, RemoveConnection

SHARED = 0  # the owner of connections for all but consumers

_NOBODY: set[int] = set()
_UNTIL_TOLD_MS = 1 << 62
_SHARES_MAX = 3  # so many brokers are asked within the time of one request, if those before them hang
_HEALTHY = 100.0  # the points of a broker that is well

# After these, what we know of the topic is wrong or out of date.
SPOILING = (
    NoPermissionError,
    ServiceUnavailableError,
    NotLeaderForFetchError,
    NotLeaderError,
    TopicNotFoundError,
    NotPartitionLeaderError,
    BrokerUnreachableError,
    ConnectionLostError,
)


class Core:
    """Connections, metadata and time of one client."""

    def __init__(self, config: ClientConfig, seeds: tuple[Address, ...], random: Random, instance: str = "") -> None:
        self.config = config
        self.random = random
        self.now_ms = 0
        self.wall_ms = 0
        self.router = Router(config.metadata_ms)
        self.timers = Timers()
        self.is_closed = False
        self._seeds = seeds
        self._instance = instance  # which program of its host this is: the trace of its messages names it
        self._sessions: dict[tuple[Address, int], Session] = {}
        self._backoffs: dict[Address, Backoff] = {}
        self._avoided: dict[Address, int] = {}  # brokers that are about to go, and until when others are preferred
        self._refreshes: dict[tuple[str, str], Promise[Route]] = {}
        self._health_asked: dict[Address, int] = {}  # when each broker was last asked how well it is
        self._effects: list[Effect] = []
        self._owners = SHARED
        self._sequence = 0

    # Events

    def advance(self, now_ms: int, wall_ms: int) -> None:
        """It is that late; said before every other event."""
        self.now_ms = now_ms
        self.wall_ms = wall_ms

    def opened(self, session: Session) -> None:
        """A connection is there."""
        if session.state is State.CONNECTING:
            self._backoff(session.address).worked()
            session.opened(self.now_ms, self.wall_ms)

    def received(self, session: Session, frames: list[memoryview]) -> None:
        """Whole frames have come."""
        was_leaving = session.is_leaving
        try:
            session.received(frames, self.now_ms, self.wall_ms)
        except BadFrameError as error:
            self._drop(session, ConnectionLostError(str(error)))
        if session.is_leaving is not was_leaving:
            self._told(session)

    def congested(self, session: Session, is_congested: bool) -> None:
        """A socket takes no more for now, or does again."""
        session.congested(is_congested, self.now_ms, self.wall_ms)

    def lost(self, session: Session, error: LakeMQError) -> None:
        """A connection is gone, or could not be opened."""
        self._forget(session, error)

    def tick(self) -> None:
        """See what is due."""
        self.timers.run(self.now_ms)
        for session in list(self._sessions.values()):
            session.tick(self.now_ms, self.wall_ms)
            if session.is_silent:
                self._drop(session, ConnectionLostError(f"{session.address} has gone silent"))

    @property
    def next_ms(self) -> int | None:
        """When `tick` is wanted."""
        first = self.timers.next_ms
        for session in self._sessions.values():  # few; asked for at every turn
            due_ms = session.next_ms
            if due_ms is not None and (first is None or due_ms < first):
                first = due_ms
        return first

    def take_effects(self) -> list[Effect]:
        """What the world is to do now, in order; all bytes for one connection together."""
        effects, self._effects = self._effects, []
        for session in self._sessions.values():
            if session.output:
                buffers, session.output = session.output, []
                effects.append(Send(session, buffers))
        return effects

    # What other parts of the core ask for

    def ask_world(self, effect: Effect) -> None:
        """Add an effect."""
        self._effects.append(effect)

    def note(self, level: str, text: str) -> None:
        """A line for the user's log."""
        self._effects.append(Note(level, text))

    def new_owner(self) -> int:
        """A number for somebody who wants connections of their own."""
        self._owners += 1
        return self._owners

    def sleep(self, span_ms: int) -> Promise[None]:
        """A promise that is kept after that time."""
        return self.timers.sleep(self.now_ms + max(span_ms, 1))

    def pause(self, failures: int) -> int:
        """How long to wait after that many failures in a row."""
        return pause_ms(failures, self.config.backoff_first_ms, self.config.backoff_max_ms, self.random)

    def spoil(self, error: LakeMQError, topic: str, app: str) -> None:
        """Ask for the metadata anew, if the error says that it is wrong."""
        if isinstance(error, SPOILING):
            self.router.spoil(topic, app)

    def avoid(self, address: Address) -> None:
        """That broker has refused because it is about to go, or not ready yet: leave it alone for a moment."""
        self._avoided[address] = max(self._avoided.get(address, 0), self.now_ms + self.config.backoff_max_ms)

    def avoided(self, route: Route) -> set[int]:
        """Which of a topic's brokers are better not sent to, if others will do."""
        if not self._avoided:
            return _NOBODY
        now_ms = self.now_ms
        return {one.id for one in route.brokers.values() if self._avoided.get(one.address, 0) > now_ms}

    def ask(self, session: Session, command: Command, deadline_ms: int) -> Promise[Any]:
        """Send a request on a connection that is ready."""
        return session.ask(command, self.now_ms, self.wall_ms, deadline_ms)

    def ready_session(self, address: Address, owner: int) -> Session | None:
        """A connection that is ready, if there is one: what `connected` would give at once."""
        session = self._sessions.get((address, owner))
        return session if session is not None and session.state is State.READY else None

    def fresh_route(self, topic: str, app: str) -> Route | None:
        """Where the topic is, if that is known and new: what `route` would give at once."""
        route = self.router.route(topic, app)
        return None if route is None or self.router.is_old(route, self.now_ms) else route

    def connected(self, address: Address, owner: int, deadline_ms: int) -> Steps[Session]:
        """A connection that has introduced itself; a place that just failed is left alone for a while."""
        session = self._sessions.get((address, owner))
        if session is not None and session.state is State.READY:
            return session
        if self.is_closed:
            raise ClosedError
        if session is None:
            left_ms = self._backoff(address).left_ms(self.now_ms)
            if left_ms:
                raise LeftAloneError(f"{address} could not be reached; the next try is in {left_ms} ms", left_ms)
            session = self._open(address, owner, deadline_ms)
        yield self.within(session.ready, deadline_ms)
        if not session.ready.is_done:
            raise BrokerUnreachableError(f"{address} did not take part in a greeting in time")
        return session.ready.result()

    @property
    def is_connected(self) -> bool:
        """Whether some broker has answered our greeting, and has not gone since."""
        return any(one.state is State.READY for one in self._sessions.values())

    def reach(self, wait_ms: int = 0) -> Steps[Session]:
        """A connection to any broker, if there is one within that time; else the error of the last one asked."""
        until_ms, failures = self.now_ms + wait_ms, 0
        while True:
            failure: LakeMQError = BrokerUnreachableError()
            for address, place_until_ms in self._places_until(self.now_ms + self.config.timeout_ms):
                try:
                    return (yield from self.connected(address, SHARED, place_until_ms))
                except (BrokerUnreachableError, ConnectionLostError, RequestTimeoutError, InitializationError) as error:
                    failure = error
            failures += 1
            if self.now_ms >= until_ms or not failure.retriable:
                raise failure
            yield self.sleep(min(self.pause(failures), until_ms - self.now_ms))

    def introduced(self, session: Session, kind: type, topic: str, app: str, deadline_ms: int) -> Steps[None]:
        """Make sure that the connection was told we produce to, or consume from, that topic."""
        key: Hashable = (kind, topic, app)
        asked = session.introduced.get(key)
        if asked is not None and asked.is_done and asked.error is None:
            return
        if asked is None or asked.is_done:
            assert kind in (AddProducer, AddConsumer)
            asked = self.ask(session, kind((topic,), app, self._next_sequence()), deadline_ms)
            session.introduced[key] = asked
        yield asked

    def route(self, topic: str, app: str, deadline_ms: int) -> Steps[Route]:
        """Where the topic is; at once if that is known, however old, unless a broker has contradicted it."""
        route = self.router.route(topic, app)
        if route is not None:
            if self.router.is_old(route, self.now_ms):
                self._refresh(topic, app)  # its outcome is the next caller's
            return route
        return (yield from self.route_now(topic, app, deadline_ms))

    def route_now(self, topic: str, app: str, deadline_ms: int) -> Steps[Route]:
        """Where the topic is, asked now: for whoever must know all partitions."""
        refresh = self._refresh(topic, app)
        yield self.within(refresh, deadline_ms)
        if not refresh.is_done:
            raise BrokerUnreachableError(f"nobody could say in time where {topic} is")
        return refresh.result()

    def within(self, promise: Promise[Any], deadline_ms: int) -> Promise[None]:
        """Kept when that promise is settled or the time has come, whichever is first."""
        first = self.settled(promise)
        if not first.is_done:
            self.timers.at(deadline_ms, lambda: first.resolve(None))
        return first

    def settled(self, promise: Promise[Any]) -> Promise[None]:
        """Kept when that promise is settled, one way or the other."""
        either: Promise[None] = Promise()
        promise.then(lambda _: either.resolve(None))
        return either

    def finish(self) -> None:
        """Say goodbye on every connection; those who wait hear that it is closed."""
        self.is_closed = True
        for session in list(self._sessions.values()):
            if session.state is State.READY:
                self.ask(session, RemoveConnection(), self.now_ms + self.config.timeout_ms)
                self._effects.append(Send(session, session.output))
                session.output = []
            self._drop(session, ClosedError())
        self.timers.clear(ClosedError())

    def finish_owner(self, owner: int) -> None:
        """The same for the connections of one owner."""
        for session in [one for one in self._sessions.values() if one.owner == owner]:
            self._drop(session, ClosedError())

    # Inside

    def _told(self, session: Session) -> None:
        """A broker has said that it is about to go, or that it is not."""
        if session.is_leaving:
            self._avoided[session.address] = _UNTIL_TOLD_MS
            self.note("info", f"{session.address} is {session.notice}; others are preferred")
        else:
            self._avoided.pop(session.address, None)

    def _next_sequence(self) -> int:
        self._sequence += 1
        return self._sequence

    def _backoff(self, address: Address) -> Backoff:
        backoff = self._backoffs.get(address)
        if backoff is None:
            config = self.config
            backoff = Backoff(config.backoff_first_ms, config.backoff_max_ms, self.random)
            self._backoffs[address] = backoff
        return backoff

    def _open(self, address: Address, owner: int, deadline_ms: int) -> Session:
        config = self.config
        hello = AddConnection(
            app=config.app,
            token=config.token,
            region=config.region,
            namespace=config.namespace,
            version=f"lakemq-python/{VERSION} {self._instance}".strip(),
            time_ms=self.wall_ms,
            sequence=self._next_sequence(),
        )
        session = Session(
            address,
            owner,
            hello,
            in_flight_max=config.in_flight_max,
            in_flight_bytes_max=config.in_flight_bytes_max,
            heartbeat_ms=config.heartbeat_ms,
            timeout_ms=config.timeout_ms,
        )
        self._sessions[address, owner] = session
        session.ready.then(lambda ready: self._refused(session, ready))
        session.ready.then(lambda ready: self._ready(session, ready))
        timeout_ms = max(min(config.connect_timeout_ms, deadline_ms - self.now_ms), 1)
        self._effects.append(Connect(session, timeout_ms))
        return session

    def _ready(self, session: Session, ready: Promise[Session]) -> None:
        if ready.error is None and session.owner == SHARED and len(self.router.addresses()) > 1:
            self._ask_how_it_is(session)

    def _ask_health(self, route: Route) -> None:
        """Where there is a choice of brokers, ask those we are connected to how well they are: now and then."""
        if len(route.brokers) < 2:
            return
        for broker in route.brokers.values():
            session = self.ready_session(broker.address, SHARED)
            if session is not None:
                self._ask_how_it_is(session)

    def _ask_how_it_is(self, session: Session) -> None:
        address, asked_ms = session.address, self._health_asked.get(session.address)
        if asked_ms is not None and self.now_ms - asked_ms < self.config.metadata_ms:
            return
        self._health_asked[address] = self.now_ms
        asked = self.ask(session, FetchHealth(), self.now_ms + self.config.timeout_ms)
        asked.then(lambda answer: self._is_well(address, answer))

    def _is_well(self, address: Address, answer: Promise[Any]) -> None:
        if answer.error is None and isinstance(answer.result(), FetchHealthAck):  # else it stays as it was known
            self.router.weigh(address, min(max(answer.result().point / _HEALTHY, 0.0), 1.0))

    def _refused(self, session: Session, ready: Promise[Session]) -> None:
        """A broker that answers the greeting with an error keeps the socket; we do not."""
        if ready.error is not None and session.state is not State.CLOSED:
            error = ready.error if isinstance(ready.error, LakeMQError) else ConnectionLostError(str(ready.error))
            self._drop(session, error)

    def _drop(self, session: Session, error: LakeMQError) -> None:
        """We close it ourselves."""
        self._effects.append(Close(session))
        self._forget(session, error)

    def _forget(self, session: Session, error: LakeMQError) -> None:
        if self._sessions.get((session.address, session.owner)) is session:
            del self._sessions[session.address, session.owner]
        if session.state is not State.CLOSED and not self.is_closed and not isinstance(error, ClosedError):
            self._backoff(session.address).failed(self.now_ms)
        if session.owner == SHARED:
            self._health_asked.pop(session.address, None)
            self.router.weigh(session.address, 1.0)
        if session.is_leaving:  # whoever comes next at that address speaks for itself
            self._avoided.pop(session.address, None)
        session.lost(error)

    def _refresh(self, topic: str, app: str) -> Promise[Route]:
        """Ask where the topic is; all who want to know at the same time share the answer."""
        refresh = self._refreshes.get((topic, app))
        if refresh is None:
            refresh = start(self._ask_cluster(topic, app))
            if not refresh.is_done:
                self._refreshes[topic, app] = refresh
                refresh.then(lambda _: self._refreshes.__delitem__((topic, app)))
        return refresh

    def _ask_cluster(self, topic: str, app: str) -> Steps[Route]:
        deadline_ms = self.now_ms + self.config.timeout_ms
        failure: LakeMQError | None = None
        for address, until_ms in self._places_until(deadline_ms):
            try:
                session = yield from self.connected(address, SHARED, until_ms)
                ack = yield self.ask(session, FetchCluster((topic,), app), until_ms)
            except AuthenticationError:
                raise
            except LakeMQError as error:
                failure = error
                continue
            for found in ack.topics:
                if found.topic != topic:
                    continue
                if found.code:
                    raise from_status(found.code, f"topic {topic}, app {app}")
                route = self.router.learn(found, ack, app, address, self.now_ms)
                self._ask_health(route)
                return route
            failure = TopicNotFoundError(topic)
        assert failure is not None, "there is always a place to ask"
        raise failure

    def _places_until(self, deadline_ms: int) -> Iterator[tuple[Address, int]]:
        """Whom to ask and until when to wait: one that hangs leaves time for the others."""
        places = self._places()
        for nth, address in enumerate(places):
            left_ms = max(deadline_ms - self.now_ms, 1)
            yield address, self.now_ms + max(left_ms // min(len(places) - nth, _SHARES_MAX), 1)

    def _places(self) -> list[Address]:
        """Whom to ask, those we are connected to first, in an order that differs from client to client."""
        ready = [address for (address, _), one in self._sessions.items() if one.state is State.READY]
        others = list(dict.fromkeys([*self.router.addresses(), *self._seeds]))
        turn = int(self.random() * len(others)) if others else 0
        return list(dict.fromkeys([*ready, *others[turn:], *others[:turn]]))
