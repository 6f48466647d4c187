"""Brings a parcel to the broker that leads its partition, and tries again where that may help.

Pure steps over the core. A try that surely stored nothing and only came to the wrong place, or to nobody, costs time
but no try: such a message waits for a new leader as long as its deadline lets it. An outcome that is unknown is tried
again only where a second copy is allowed, then at another broker, or impossible, then at the broker that may have the
first copy and knows its id. Once unknown it stays so until that very message is confirmed. Of an ordered partition one
parcel is under way at a time, so that a second try cannot change the order.
"""

from collections import deque
from typing import Any

from lakemq.client.config import QOS_OF_ACKS
from lakemq.client.core import SHARED, Core
from lakemq.client.errors import (
    BrokerUnreachableError,
    ClosedError,
    ConnectionLostError,
    LeftAloneError,
    NotSentError,
    RequestTimeoutError,
    SendTimeoutError,
    made_unknown,
)
from lakemq.client.parcel import Parcel
from lakemq.client.produce_frame import produce_frame, read_produce_ack
from lakemq.client.promise import Promise, Steps, start
from lakemq.client.router import Broker, Route
from lakemq.client.selector import PartitionSelector, hash_partition
from lakemq.client.session import Session
from lakemq.errors import (
    BadParameterError,
    ElectionError,
    InitializationError,
    LakeMQError,
    NoPartitionGroupError,
    ProducerNotFoundError,
    RoutingError,
    ServiceUnavailableError,
    TopicNotFoundError,
    UnknownError,
    from_status,
)
from lakemq.wire.buffer import Buffer
from lakemq.wire.dialect import Dialect, level_of_qos
from lakemq.wire.produce import ProduceMessageAck
from lakemq.wire.session import AddProducer

_LEVELS = {acks: level_of_qos(qos, Dialect.DOCUMENTED) for acks, qos in QOS_OF_ACKS.items()}
# Another broker or a moment later will do, and nothing was stored; a broker that stops or starts says so itself (3).
_PATIENT = (
    RoutingError,
    BrokerUnreachableError,
    NotSentError,
    ElectionError,
    InitializationError,
    ServiceUnavailableError,
)
_ALL = -1
_PAUSE_MS_MIN = 20
_SHARE_MS_MIN = 300  # shorter than this, a busy broker would be taken for one that hangs
_NOBODY: set[int] = set()


class Turnstile:
    """Lets one through at a time, in the order they came."""

    __slots__ = ("_is_calling", "_is_taken", "_waiting")

    def __init__(self) -> None:
        self._is_taken = False
        self._is_calling = False
        self._waiting: deque[Promise[None]] = deque()

    def enter(self) -> Promise[None]:
        """Kept when it is our turn."""
        promise: Promise[None] = Promise()
        self._waiting.append(promise)
        self._call()
        return promise

    def leave(self) -> None:
        """The next, please."""
        self._is_taken = False
        self._call()

    def _call(self) -> None:
        """Whoever is called may leave at once: called from here and not from there, or a long line would nest."""
        if self._is_calling:
            return
        self._is_calling = True
        try:
            while self._waiting and not self._is_taken:
                self._is_taken = True
                self._waiting.popleft().resolve(None)
        finally:
            self._is_calling = False


class Courier:
    """Delivers the parcels of one client."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._config = core.config
        self._app = core.config.app
        self.selector = PartitionSelector(core.config.selector, core.random)
        self._turnstiles: dict[tuple[str, int], Turnstile] = {}

    def try_now(self, parcel: Parcel) -> Promise[Any] | None:
        """Send a parcel that need not wait for anything: what `deliver` would do first. None if it must wait.

        Whoever calls it gives the answer to `arrived`, or the error to `deliver`.
        """
        core = self._core
        route = core.fresh_route(parcel.topic, self._app)
        if route is None or parcel.is_ordered or route.is_ordered or route.producer_policy.is_single:
            return None
        try:
            partition, broker = self._choose(route, parcel, _NOBODY)
        except LakeMQError:
            return None  # to be met again where it is dealt with
        session = core.ready_session(broker.address, SHARED)
        if session is None or not session.knows((AddProducer, parcel.topic, self._app)):
            return None
        if len(route.brokers) > 1 and parcel.partition is None and parcel.key is None:
            return None  # who was tried must be remembered
        parcel.address_to(partition)
        return self._ask(session, parcel, self._config.timeout_ms)

    def arrived(self, parcel: Parcel, answer: Any) -> None:
        """Note down where it went; the broker's error raised if it took none."""
        if answer is not None:
            parcel.placing = _placing(answer, parcel)

    def deliver(self, parcel: Parcel, first_error: LakeMQError | None = None) -> Steps[bool]:
        """Until the broker has confirmed it, or the error that is final; bounded by the parcel's deadline.

        `first_error` is what came of a first try. Always False: it does not wait in an outbox.
        """
        route = self._core.router.last_known(parcel.topic, self._app)
        if parcel.is_ordered or route is None or route.is_ordered or route.producer_policy.is_single:
            return self._deliver_in_turn(parcel)
        return self._deliver(parcel, first_error)

    def _deliver_in_turn(self, parcel: Parcel) -> Steps[bool]:
        if self._core.router.last_known(parcel.topic, self._app) is None:
            # Where it stands in line is known only then; if that fails, so will what follows.
            yield self._core.settled(start(self._core.route(parcel.topic, self._app, parcel.deadline_ms)))
        turnstile = self._turnstile(parcel)
        if turnstile is None:
            return (yield from self._deliver(parcel))
        yield turnstile.enter()
        try:
            return (yield from self._deliver(parcel))
        finally:
            turnstile.leave()

    def _deliver(self, parcel: Parcel, first_error: LakeMQError | None = None) -> Steps[bool]:
        tried: set[int] = set()
        failures = requests = 0
        is_unknown = False  # once a try had no answer; only an answer that says where the message is ends that
        while True:
            try:
                if first_error is not None:
                    error, first_error = first_error, None
                    raise _unanswered(error)
                yield from self._try(parcel, tried)
                return False
            except LakeMQError as error:
                self._core.spoil(error, parcel.topic, self._app)
                failures += 1
                requests += not isinstance(error, _PATIENT)
                is_unknown = is_unknown or error.maybe_written
                if is_unknown:
                    parcel.stay()
                if not self._may_try_again(error, parcel, requests, failures):
                    raise _final(error, parcel, failures, is_unknown) from error.__cause__
                pause_ms = self._pause(error, parcel, failures)
                if self._core.now_ms + pause_ms >= parcel.deadline_ms:
                    raise _final(error, parcel, failures, is_unknown) from error
                try:
                    yield self._core.sleep(pause_ms)
                except ClosedError as closed:
                    raise made_unknown(closed) if is_unknown else closed from None

    def _try(self, parcel: Parcel, tried: set[int]) -> Steps[None]:
        core, deadline_ms = self._core, parcel.deadline_ms
        route = core.fresh_route(parcel.topic, self._app)
        if route is None:
            route = yield from core.route(parcel.topic, self._app, deadline_ms)
        partition, broker = self._choose(route, parcel, tried)
        tried.add(broker.id)
        others = len(route.brokers.keys() - tried) if parcel.partition is None and parcel.key is None else 0
        # Time for the others; and what can be sent again without harm is not left in the hands of one lost answer.
        tries_left = self._config.tries if parcel.has_ids else min(others + 1, self._config.tries)
        share_ms = max((deadline_ms - core.now_ms) // tries_left, 1)
        session = yield from self._session(parcel, broker, core.now_ms + share_ms if others else deadline_ms)
        timeout_ms = self._config.timeout_ms
        if others:
            timeout_ms = min(timeout_ms, route.producer_policy.timeout_ms or timeout_ms)
        if parcel.has_ids or (others and self._config.retry_unknown and not parcel.has_some_ids):
            timeout_ms = min(timeout_ms, max(share_ms, _SHARE_MS_MIN))
        parcel.address_to(partition)
        try:
            ack = yield self._ask(session, parcel, timeout_ms)
            self.arrived(parcel, ack)
        except ProducerNotFoundError:
            session.introduced.pop((AddProducer, parcel.topic, self._app), None)
            raise
        except (ServiceUnavailableError, RequestTimeoutError):
            core.avoid(broker.address)
            raise
        except ClosedError as error:
            raise _unanswered(error) from None
        parcel.partition = partition

    def _session(self, parcel: Parcel, broker: Broker, until_ms: int) -> Steps[Session]:
        """A connection that knows what we send; whatever goes wrong until then, nothing of the parcel has left."""
        core = self._core
        session = core.ready_session(broker.address, SHARED)
        try:
            if session is None:
                session = yield from core.connected(broker.address, SHARED, until_ms)
            yield from core.introduced(session, AddProducer, parcel.topic, self._app, until_ms)
        except (RequestTimeoutError, ConnectionLostError) as error:
            core.avoid(broker.address)
            raise BrokerUnreachableError(str(error)) from error
        except BrokerUnreachableError:
            core.avoid(broker.address)
            raise
        return session

    def _choose(self, route: Route, parcel: Parcel, tried: set[int]) -> tuple[int, Broker]:
        partition = parcel.partition
        if partition is None:
            writable = self._writable(route, tried)
            partition = self.selector.select(writable, parcel.key, parcel.is_ordered, parcel.id_to_route_by)
        elif partition not in route.partitions:
            raise BadParameterError(f"{parcel.topic} has no partition {partition}; it has {len(route.partitions)}")
        broker = route.leaders.get(partition)
        if broker is None:
            self._core.router.spoil(parcel.topic, self._app)
            raise NoPartitionGroupError(f"partition {partition} of {parcel.topic} has no leader")
        return partition, broker

    def _writable(self, route: Route, tried: set[int]) -> Route:
        """The route without those that were tried or are about to go, as long as others are left."""
        avoided = self._core.avoided(route)
        if avoided:
            others = route.without(tried | avoided)
            if others is not route:
                return others
        return route.without(tried)

    def _ask(self, session: Session, parcel: Parcel, timeout_ms: int) -> Promise[Any]:
        level, parts, count = _LEVELS[parcel.acks], parcel.parts, len(parcel.heads)
        topic, app, size = parcel.topic, self._app, sum(map(len, parts))
        # The same time-out in every request, not what is left: a broker takes requests that are alike in one go.
        told_ms = self._config.timeout_ms

        def frame(request_id: int, wall_ms: int) -> list[Buffer]:
            return produce_frame(topic, app, told_ms, level, count, parts, size, request_id, wall_ms)

        core = self._core
        return session.ask_counted(
            frame,
            size,
            core.now_ms,
            core.wall_ms,
            parcel.deadline_ms,
            timeout_ms,
            is_answered=parcel.acks != "none",
            read=read_produce_ack,
        )

    def _may_try_again(self, error: LakeMQError, parcel: Parcel, requests: int, failures: int) -> bool:
        if requests >= self._config.tries:
            return False
        if isinstance(error, ProducerNotFoundError):
            return failures == 1  # the connection was never told, or it was forgotten
        if not error.retriable or isinstance(error, TopicNotFoundError):
            return False
        return not error.maybe_written or parcel.has_ids or self._config.retry_unknown

    def _pause(self, error: LakeMQError, parcel: Parcel, failures: int) -> int:
        """How long to wait before the next try: never for most of the time that is left, or it would be the last."""
        if isinstance(error, LeftAloneError):
            return error.left_ms + 1
        left_ms = parcel.deadline_ms - self._core.now_ms
        return min(self._core.pause(failures), max(left_ms // 3, _PAUSE_MS_MIN))

    def _turnstile(self, parcel: Parcel) -> Turnstile | None:
        """The one it must pass: of its partition if ordered, of the topic if the policy wants one at a time."""
        route = self._core.router.last_known(parcel.topic, self._app)
        partition = parcel.partition
        if route is not None and route.producer_policy.is_single:
            partition = _ALL
        elif not parcel.is_ordered and (route is None or not route.is_ordered):
            return None
        elif partition is None:
            partition = hash_partition(parcel.key or "", route.partitions) if route and route.partitions else _ALL
        key = (parcel.topic, partition)
        turnstile = self._turnstiles.get(key)
        if turnstile is None:
            turnstile = self._turnstiles[key] = Turnstile()
        return turnstile


def _placing(ack: "tuple[int, list[tuple[int, int]]] | ProduceMessageAck", parcel: Parcel) -> list[tuple[int, int]]:
    """Where each MESSAGE went; the broker's error raised if it took none."""
    if isinstance(ack, ProduceMessageAck):  # not as we expect it
        raise UnknownError(f"the broker answered for {len(ack.topics)} topics where one was sent to")
    code, places = ack
    if code:
        raise from_status(code, parcel.refusal(code))
    if len(places) != len(parcel.heads):
        raise UnknownError(f"the broker answered {len(places)} places for {len(parcel.heads)} messages")
    return places


def _unanswered(error: LakeMQError) -> LakeMQError:
    """What became of a request that had left: closing the client in mid-air leaves its outcome unknown."""
    return made_unknown(error) if isinstance(error, ClosedError) else error


def _final(error: LakeMQError, parcel: Parcel, failures: int, is_unknown: bool) -> LakeMQError:
    """What the user is told: the broker's own error; where nobody answered, that the time was over."""
    if is_unknown and not error.maybe_written:
        return made_unknown(error)
    if isinstance(error, RequestTimeoutError | ConnectionLostError):
        told = SendTimeoutError(f"{parcel.topic}: {error} ({failures} tries)")
        told.__cause__ = error
        return told
    return error
