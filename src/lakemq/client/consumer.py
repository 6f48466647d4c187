"""Receiving: which leases are in hand, when more is fetched, when acks and extensions go out.

Pure steps over the core. A broker lends whole partitions to a connection, so every consumer has connections of its
own, one to each broker that leads a partition of its topic; when they close, what was lent is free again. Fetches wait
at all of these brokers at once: up to `prefetch` leases lie ready beside the one being worked on, with several brokers
up to one more for each.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from lakemq.client.core import Core
from lakemq.client.delivery import Delivery, open_messages
from lakemq.client.errors import ClosedError, RequestTimeoutError
from lakemq.client.lease import Lease, Order
from lakemq.client.outgoing import Tags
from lakemq.client.promise import Promise, Steps, resolved, start
from lakemq.client.reader import ReaderCore
from lakemq.client.router import Broker, Route
from lakemq.client.session import Session, State
from lakemq.errors import (
    AckError,
    BadParameterError,
    ConsumerNotFoundError,
    LakeMQError,
    UnsupportedCommandError,
    from_status,
)
from lakemq.wire.consume import RETRY_PARTITION, FetchTopicMessage, FetchTopicMessageAck, TopicFetch, TopicPartitions
from lakemq.wire.metadata import TopicType
from lakemq.wire.own import GIVE_BACK, ExtendLease, SetFilter
from lakemq.wire.session import AddConsumer

COUNT_MAX = 32767  # what the request has room for
_NOT_KNOWN = (UnsupportedCommandError, BadParameterError)  # how the two dialects say that they know no such command
_NO_FILTER = "a filter is the group's, and a broadcast consumer reads for itself: leave out what it does not want"
_NOTED_EVERY = 20  # failures in a row; a broker that is away need not fill the log


@dataclass(frozen=True, slots=True)
class ConsumerSettings:
    """How one consumer receives."""

    count: int = 1000  # messages per fetch, at most
    ack_timeout_ms: int = 0  # 0: as the consumer policy says
    long_poll_ms: int = 5000
    prefetch: int = 1
    auto_ack: bool = True
    filter: str | None = None  # what the subscription shall want from now on; None: as it is
    # Whether each consumer gets every message, from a place of its own; None: as the topic's type says.
    broadcast: bool | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.count <= COUNT_MAX:
            raise BadParameterError(f"count is 1 to {COUNT_MAX}, not {self.count}")
        if self.prefetch < 0:
            raise BadParameterError(f"prefetch is 0 or more, not {self.prefetch}")
        if self.broadcast and self.filter is not None:
            raise BadParameterError(_NO_FILTER)


def filter_text(tags: Tags | None, wanted: str | None) -> str | None:
    """The filter that a user asks for, by tags or by an expression; None to leave it as it is."""
    if tags is None:
        return wanted
    if wanted is not None:
        raise BadParameterError("give tags or filter; in a filter, write TAGS = 'paid'")
    return (tags if isinstance(tags, str) else " || ".join(tags)) or "*"


class ConsumerCore:
    """What one consumer has in hand."""

    def __init__(self, core: Core, topic: str, app: str, settings: ConsumerSettings) -> None:
        self.topic = topic
        self.app = app
        self.settings = settings
        self.lost = 0  # messages whose lease ended before their ack arrived: they come again
        self.damaged = 0  # messages that could not be opened, and are dead letters now
        self.is_stopped = False
        # Called when all of a lease is settled, by whoever settled the last; a driver with threads puts its own here.
        self.on_lease_done: Callable[[Lease], None] = self.send_acks
        self.ready: Promise[None] = Promise()  # kept when it is worth asking again; then there is a new one
        self.open_bytes_max = core.config.open_bytes_max
        self._core = core
        self._owner = core.new_owner()
        self._waiting: deque[Lease] = deque()
        self._current: Lease | None = None
        self._in_hand: dict[Lease, None] = {}
        self._handed: list[tuple[Lease, int, int]] = []
        self._is_asking = False
        self._room: Promise[None] = Promise()
        self._upset: Promise[None] = Promise()
        self._fetching: dict[int, Broker] = {}
        self._is_watching = False
        self._can_extend = core.config.max_processing_ms > 0
        self._can_judge = True  # whether the broker knows SETTLE
        self._ack_timeout_ms = settings.ack_timeout_ms
        self._error: LakeMQError | None = None
        self.reader: ReaderCore | None = None  # reads instead of being lent messages: broadcast

    def begin(self) -> None:
        """Start to fetch."""
        start(self._arrange()).then(self._ended)

    def take(self, count: int) -> list[Delivery]:
        """Messages to hand to the user, all of one lease; none if `ready` must be awaited. Raises what is final."""
        if self.reader is not None:
            return self.reader.take(count)
        while True:
            lease = self._current
            if lease is None or lease.is_lost or lease.is_used_up:
                lease = self._current = self._waiting.popleft() if self._waiting else None
                self._is_asking = lease is None
                self._make_room()
                if lease is None:
                    break
            before = lease.taken
            taken = lease.take(count, self.open_bytes_max)
            if lease.damage:
                self._tell_damage(lease)
            if taken:
                self._handed.append((lease, before, lease.taken))
                return taken
        if not self._in_hand:
            self.check()
        return []

    def _tell_damage(self, lease: Lease) -> None:
        damage, lease.damage = lease.damage, []
        for count, error in damage:
            self.damaged += count
            self._core.note("error", f"{count} messages are dead letters: {error}")

    def check(self) -> None:
        """Raise what has ended it, if something has."""
        if self._error is not None:
            raise self._error.with_traceback(None)

    def unhand(self) -> None:
        """What was just taken is handed out one by one, by a loop that says how far it came."""
        self._handed.pop()

    def give_back(self, lease: Lease, last: int) -> None:
        """The loop came to that place of the lease; the rest can be taken again."""
        lease.taken = last + 1
        self._handed.append((lease, last, last + 1))

    def settle_handed(self) -> None:
        """With auto_ack: what was handed out before is done, since more is asked for."""
        handed, self._handed = self._handed, []
        if self.settings.auto_ack:
            for lease, first, end in handed:
                lease.settle_run(first, end)

    def stop(self) -> None:
        """Fetch no more; who waits is told."""
        self.is_stopped = True
        if self.reader is not None:
            self.reader.stop()
        self._make_room()
        self._wake()
        self._upset.resolve(None)

    def close(self, is_clean: bool = True) -> Steps[None]:
        """Stop, send the acks, leave the connections. Unless all went well, what was handed out last is not acked."""
        self.stop()
        if is_clean:
            self.settle_handed()
        deadline_ms = self._core.now_ms + self._core.config.timeout_ms
        for lease in list(self._in_hand):
            while not lease.is_lost and lease.acked < lease.settled_to and self._core.now_ms < deadline_ms:
                self.send_acks(lease)
                if lease.acking is None:
                    break
                yield self._core.within(lease.acking, deadline_ms)
            if lease.acked < len(lease):
                lease.is_lost = True
            self._give_up(lease, ClosedError("the consumer was closed"))
        self._in_hand.clear()
        self._core.finish_owner(self._owner)

    # Acks and extensions

    def send_acks(self, lease: Lease) -> None:
        """Send what is settled; one request at a time, so that they arrive in order."""
        core, end = self._core, lease.settled_to
        if lease.acking is not None or lease.is_lost or end == lease.acked or core.now_ms < lease.wait_ms:
            return
        is_judged = lease.is_judged_next
        frame, end = (lease.settle_frame if is_judged else lease.ack_frame)(end, self.topic, self.app)
        lease.acking = Promise()
        asked = lease.session.ask_frame(frame, core.now_ms, core.wall_ms, core.now_ms + core.config.timeout_ms)
        asked.then(partial(self._judged if is_judged else self._ack_answered, lease, end))

    def _ack_answered(self, lease: Lease, end: int, answer: Promise[Any]) -> None:
        acking, lease.acking = lease.acking, None
        error = answer.error or _code_error(answer.result(), f"{self.topic}, partition {lease.partition}")
        if error is None:
            lease.passed(end)
            self._go_on(lease)
        elif not isinstance(error, RequestTimeoutError) or lease.session.state is not State.READY:
            self._lose(lease, error)  # a time-out alone is tried again when it is next looked at
        if acking is not None:
            acking.resolve(None)

    def _judged(self, lease: Lease, end: int, answer: Promise[Any]) -> None:
        """A SETTLE is answered, message by message: what the broker cannot take now is put off, or taken back."""
        acking, lease.acking = lease.acking, None
        error = answer.error
        if error is None:
            refused = lease.judged(end, answer.result())
            lease.unheard = lease.unheard + 1 if refused else 0
            for place, code in refused:
                self._refused(lease, place, from_status(code, f"{self.topic}, partition {lease.partition}"))
            if not refused:
                self._go_on(lease)
        elif isinstance(error, _NOT_KNOWN):
            self._can_judge = False
            lease.speak_plainly()
            self._go_on(lease)
        elif not isinstance(error, RequestTimeoutError) or lease.session.state is not State.READY:
            self._lose(lease, error)
        if acking is not None:
            acking.resolve(None)

    def _refused(self, lease: Lease, place: int, error: LakeMQError) -> None:
        verdict = lease.verdicts.get(place)
        if lease.is_lost or verdict is None:
            return
        if not error.retriable:
            self._lose(lease, error)
        elif verdict.on_refused is not None:
            lease.reopen(place)
            verdict.on_refused(error)
        else:
            lease.wait_ms = self._core.now_ms + self._core.pause(lease.unheard)

    def _go_on(self, lease: Lease) -> None:
        """Something more of it is with the broker: the next run, or it is done with."""
        if lease.acked == len(lease):
            self._in_hand.pop(lease, None)
        elif lease.is_done:
            self.send_acks(lease)

    def _return(self, lease: Lease) -> None:
        """Give back all that we have of its partition: out of order nothing of it would be taken."""
        core = self._core
        for other in [one for one in self._in_hand if one.is_beside(lease)]:
            other.is_lost = True
            self._in_hand.pop(other)
            self._give_up(other, ClosedError("given back, to keep the order"))
        self._waiting = deque(one for one in self._waiting if not one.is_beside(lease))
        command = ExtendLease((TopicPartitions(self.topic, (lease.partition,)),), self.app, GIVE_BACK)
        core.ask(lease.session, command, core.now_ms + core.config.timeout_ms)

    def _give_up(self, lease: Lease, error: LakeMQError) -> None:
        """No broker will hear what is to become of these."""
        for place in sorted(lease.verdicts):
            verdict = lease.reopen(place)
            if verdict is not None and verdict.on_refused is not None:
                verdict.on_refused(error)

    def _lose(self, lease: Lease, why: BaseException) -> None:
        if lease.is_lost:
            return
        lease.is_lost = True
        self._in_hand.pop(lease, None)
        if lease in self._waiting:
            self._waiting.remove(lease)
        count = len(lease) - lease.acked
        self.lost += count
        if not self.is_stopped:
            self._core.note(
                "warning",
                f"{self.topic}, partition {lease.partition}: {count} messages are delivered again, "
                f"because their lease is lost: {why}",
            )
        self._give_up(lease, why if isinstance(why, LakeMQError) else ClosedError(str(why)))
        if isinstance(why, AckError) and lease.order is not Order.NONE and lease.session.state is State.READY:
            self._return(lease)
        self._make_room()

    def _watch(self) -> None:
        """Look after the leases in hand from time to time, as long as there are any."""
        if not self._is_watching and self._in_hand:
            self._is_watching = True
            self._core.timers.at(self._core.now_ms + self._core.config.ack_linger_ms, self._look_after)

    def _look_after(self) -> None:
        self._is_watching = False
        now_ms = self._core.now_ms
        for lease in list(self._in_hand):
            if lease.session.state is State.CLOSED:
                self._lose(lease, ClosedError(f"the connection to {lease.session.address} is gone"))
            elif now_ms >= lease.end_ms and not self._may_extend(lease):
                self._lose(lease, RequestTimeoutError("its time was over"))
            else:
                self.send_acks(lease)
                self._extend(lease)
        self._watch()

    def _may_extend(self, lease: Lease) -> bool:
        """Unless it is too old: then others shall have the messages.

        It may be past its end by our clock: if we were held up, or the answer is, the broker says whether it is lost.
        """
        is_young = self._core.now_ms - lease.received_ms < self._core.config.max_processing_ms
        return self._can_extend and is_young

    def _extend(self, lease: Lease) -> None:
        """At half of its time."""
        core = self._core
        is_due = core.now_ms - lease.extended_ms >= self._ack_timeout_ms // 2
        if not (is_due and self._may_extend(lease)) or lease.is_extending or lease.is_done:
            return
        lease.is_extending = True
        command = ExtendLease(
            (TopicPartitions(self.topic, (lease.partition,)),), self.app, self.settings.ack_timeout_ms
        )
        asked = core.ask(lease.session, command, core.now_ms + core.config.timeout_ms)
        asked.then(partial(self._extended, lease, core.now_ms))

    def _extended(self, lease: Lease, asked_ms: int, answer: Promise[Any]) -> None:
        lease.is_extending = False
        error = answer.error or _code_error(answer.result(), f"{self.topic}, partition {lease.partition}")
        if error is None:
            lease.extended_ms = asked_ms
            lease.end_ms = asked_ms + self._ack_timeout_ms
        elif isinstance(answer.error, _NOT_KNOWN):
            self._can_extend = False
        elif not isinstance(error, RequestTimeoutError):
            self._lose(lease, error)

    # Fetching

    def _arrange(self) -> Steps[None]:
        """Have a fetch at every broker that leads a partition, as the metadata says from time to time."""
        core, failures = self._core, 0
        while not self.is_stopped:
            try:
                route = yield from core.route(self.topic, self.app, core.now_ms + core.config.timeout_ms)
            except LakeMQError as error:
                failures += 1
                yield from self._after_failure(error, failures)
                continue
            failures = 0
            if self._is_broadcast(route):
                yield from self._read(route)
                return
            self._upset = Promise()
            self._ack_timeout_ms = self.settings.ack_timeout_ms or route.consumer_policy.ack_timeout_ms
            known, self._fetching = self._fetching, dict(route.receiving)
            for broker in route.receiving.values():
                if known.get(broker.id) != broker:
                    start(self._fetch(broker)).then(self._ended)
            yield core.within(self._upset, core.now_ms + core.config.metadata_ms)

    def _is_broadcast(self, route: Route) -> bool:
        wanted = self.settings.broadcast
        return route.type == TopicType.BROADCAST if wanted is None else wanted

    def _read(self, route: Route) -> Steps[None]:
        """Every message, from what is sent from now on: nothing is lent, and there is nothing to ack."""
        if self.settings.filter is not None:
            raise BadParameterError(f"{self.topic} is a broadcast topic: {_NO_FILTER}")
        reader = self.reader = ReaderCore(self._core, self.topic, self.app, "latest", None)
        reader.begin()
        while not reader.is_stopped:
            yield reader.ready
            self._wake()
        self.is_stopped = True
        self._wake()

    def _fetch(self, broker: Broker) -> Steps[None]:
        core, failures = self._core, 0
        while self._fetching.get(broker.id) == broker:
            while not self._wants_more and not self.is_stopped:
                yield self._room
            if self.is_stopped:
                return
            try:
                session, ack = yield from self._ask(broker)
            except LakeMQError as error:
                for lease in [one for one in self._in_hand if one.session.state is State.CLOSED]:
                    self._lose(lease, error)
                core.spoil(error, self.topic, self.app)
                self._upset.resolve(None)
                failures += 1
                yield from self._after_failure(error, failures)
            else:
                failures = 0
                if not self._took(session, ack) and session.is_leaving:  # it answers at once, with nothing
                    yield core.sleep(core.pause(1))

    def _ask(self, broker: Broker) -> Steps[tuple[Session, FetchTopicMessageAck]]:
        core, settings = self._core, self.settings
        timeout_ms = core.config.timeout_ms
        session = yield from core.connected(broker.address, self._owner, core.now_ms + timeout_ms)
        yield from core.introduced(session, AddConsumer, self.topic, self.app, core.now_ms + timeout_ms)
        if settings.filter is not None:
            yield from self._filtered(session, settings.filter)
        command = FetchTopicMessage(
            (TopicFetch(self.topic, settings.count),), self.app, settings.ack_timeout_ms, settings.long_poll_ms
        )
        try:
            ack = yield core.ask(session, command, core.now_ms + settings.long_poll_ms + timeout_ms)
        except ConsumerNotFoundError:
            session.introduced.pop((AddConsumer, self.topic, self.app), None)
            raise
        return session, ack

    def _filtered(self, session: Session, wanted: str) -> Steps[None]:
        """Make sure that the broker at the other end was told what we want."""
        key = (SetFilter, self.topic, self.app)
        if not session.knows(key):
            core = self._core
            command = SetFilter(self.topic, self.app, wanted)
            ack = yield core.ask(session, command, core.now_ms + core.config.timeout_ms)
            if ack.code:
                raise from_status(ack.code, f"{self.topic}: filter {wanted!r}")
            session.introduced[key] = resolved(None)

    def _after_failure(self, error: LakeMQError, failures: int) -> Steps[None]:
        """Wait before the next try, or give up where trying is of no use."""
        if self.is_stopped:
            return
        if not error.retriable and not (isinstance(error, ConsumerNotFoundError) and failures == 1):
            raise error
        if failures % _NOTED_EVERY == 1:
            self._core.note("warning", f"{self.topic}: {error}; trying again")
        yield self._core.sleep(self._core.pause(failures))

    def _took(self, session: Session, ack: FetchTopicMessageAck) -> bool:
        """What a fetch brought; whether that was something."""
        if self.is_stopped or session.state is not State.READY:
            return False
        by_partition: dict[int, list[Any]] = {}
        for found in ack.topics:
            for one in open_messages(self.topic, found.messages, self.app):
                by_partition.setdefault(one.partition, []).append(one)
        for carried in by_partition.values():
            lease = Lease(session, carried, self._core.now_ms, self._ack_timeout_ms, self.on_lease_done)
            lease.can_judge = self._can_judge
            lease.order = self._order_of(lease.partition)
            self._in_hand[lease] = None
            self._waiting.append(lease)
        if by_partition:
            self._watch()
            self._wake()
        return bool(by_partition)

    def _order_of(self, partition: int) -> Order:
        """In which order the broker lets messages of a partition be settled."""
        route = self._core.router.last_known(self.topic, self.app)
        if route is None or partition == RETRY_PARTITION or not route.delivers_in_order:
            return Order.NONE
        return Order.BY_KEY if route.consumer_policy.is_concurrent else Order.STRICT

    @property
    def _wants_more(self) -> bool:
        return len(self._waiting) < self.settings.prefetch + self._is_asking

    def _make_room(self) -> None:
        if self._wants_more or self.is_stopped:
            room, self._room = self._room, Promise()
            room.resolve(None)

    def _wake(self) -> None:
        ready, self.ready = self.ready, Promise()
        ready.resolve(None)

    def _ended(self, steps: Promise[None]) -> None:
        """Fetching ended by itself: with an error that is final."""
        if steps.error is not None and not self.is_stopped:
            self._error = steps.error if isinstance(steps.error, LakeMQError) else None
            if self._error is None:
                raise steps.error
            self.is_stopped = True
            self._upset.resolve(None)
            self._make_room()
            self._wake()


def _code_error(ack: Any, where: str) -> LakeMQError | None:
    """The error in an answer with one code per partition, if there is one."""
    for topic in ack.topics:
        for partition in topic.partitions:
            if partition.code:
                return from_status(partition.code, where)
    return None
