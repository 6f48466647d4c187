"""Reading with a position of one's own: broadcast and replay. Nothing is lent, nothing is acked.

Pure steps over the core: from every broker that leads a partition, messages are read from where the reader is. There is
no long poll for this on the wire, so at the end of a partition it is asked again after a while.
"""

from collections import deque
from typing import NamedTuple

from lakemq.client.core import SHARED, Core
from lakemq.client.delivery import Carried, Delivery, open_messages
from lakemq.client.offsets import Start, place_in, ranges, time_of
from lakemq.client.promise import Promise, Steps, start
from lakemq.client.router import Broker, Route
from lakemq.errors import (
    IndexBelowRangeError,
    IndexOutOfRangeError,
    LakeMQError,
    from_status,
)
from lakemq.wire.consume import FetchPartitionMessage, PartitionFetch, PartitionMessages, TopicPartitionFetch
from lakemq.wire.session import AddConsumer

_COUNT = 1000
_IDLE_FIRST_MS = 10
_IDLE_MAX_MS = 500
_UNTIL_ALL = 1 << 62


class _Sealed(NamedTuple):
    """Messages of one MESSAGE that wait to be taken, by their offsets; expanded when they are."""

    carried: Carried
    first: int
    after: int

    def __len__(self) -> int:
        return self.after - self.first

    @property
    def is_sealed(self) -> bool:
        """Whether something has to be expanded."""
        return self.carried.is_sealed

    def opened(self) -> list[Delivery]:
        """As they are handed out. Of what cannot be opened, too: whoever asks for the body hears why."""
        one = self.carried.opened()
        places = range(self.first - one.index, self.after - one.index)
        return [Delivery(one, one.starts[place], one.index + place, None, 0) for place in places]


class _Given(NamedTuple):
    """Messages that were taken and given back."""

    deliveries: list[Delivery]
    is_sealed: bool = False

    def __len__(self) -> int:
        return len(self.deliveries)

    def opened(self) -> list[Delivery]:
        """Those."""
        return self.deliveries


_Piece = _Sealed | _Given


class ReaderCore:
    """Where one reader is in each partition."""

    def __init__(
        self,
        core: Core,
        topic: str,
        app: str,
        first: Start,
        end: Start | None,
        stored: dict[int, int] | None = None,
        partitions: frozenset[int] | None = None,
    ) -> None:
        self.topic = topic
        self.app = app
        self.skipped = 0  # messages that were no longer kept when we came to them
        self.is_stopped = False
        self.positions: dict[int, int] = {}  # by partition: what the user will get next
        self.ready: Promise[None] = Promise()
        self._core = core
        self._first = first
        self._end = end
        self._stored = stored or {}
        self._only = partitions
        self._ends: dict[int, int] = {}
        self._next: dict[int, int] = {}  # by partition: what is fetched next
        self._seeks: dict[int, int] = {}  # by partition: how often it was moved, so that a late answer is told
        self._waiting: deque[tuple[int, deque[_Piece]]] = deque()
        self._open_bytes_max = core.config.open_bytes_max
        self._waiting_count = 0
        self._room: Promise[None] = Promise()
        self._upset: Promise[None] = Promise()
        self._fetching: dict[int, Broker] = {}
        self._error: LakeMQError | None = None
        self._is_open = False

    def begin(self) -> None:
        """Start to read."""
        time_of(self._first, self._core.wall_ms)  # what is no place at all is raised here
        start(self._arrange()).then(self._ended)

    @property
    def is_finished(self) -> bool:
        """Whether all up to the end that was asked for has been taken."""
        if self._end is None or not self._is_open or self._waiting:
            return False
        return all(self._next[p] >= end for p, end in self._ends.items())

    def take(self, count: int) -> list[Delivery]:
        """Messages to hand to the user, all of one partition; none if `ready` must be awaited."""
        if not self._waiting:
            if self._error is not None:
                raise self._error.with_traceback(None)
            return []
        pieces = self._waiting[0][1]
        deliveries: list[Delivery] = []
        opened_bytes = 0
        while pieces and len(deliveries) < count and (opened_bytes < self._open_bytes_max or not deliveries):
            piece = pieces.popleft()
            opened = piece.opened()
            opened_bytes += len(opened[0]._carried.body) if piece.is_sealed else 0
            left = count - len(deliveries)
            deliveries += opened[:left]
            if len(opened) > left:
                pieces.appendleft(_Given(opened[left:]))
        if not pieces:
            self._waiting.popleft()
        self._waiting_count -= len(deliveries)
        self._make_room()
        return deliveries

    def give_back(self, partition: int, deliveries: list[Delivery]) -> None:
        """They were taken and not looked at."""
        if deliveries:
            self._waiting.appendleft((partition, deque([_Given(deliveries)])))
            self._waiting_count += len(deliveries)

    def seek_count(self, partition: int) -> int:
        """How often the reader was moved there."""
        return self._seeks.get(partition, 0)

    def passed(self, delivery: Delivery) -> None:
        """The user is done with that one: a stored position may move over it."""
        self.positions[delivery.partition] = delivery.offset + 1

    def seek(self, partition: int, offset: int) -> None:
        """Go on from there in one partition."""
        self._next[partition] = self.positions[partition] = offset
        self._seeks[partition] = self._seeks.get(partition, 0) + 1
        kept = [entry for entry in self._waiting if entry[0] != partition]
        self._waiting = deque(kept)
        self._waiting_count = sum(len(piece) for _, pieces in kept for piece in pieces)
        self._make_room()

    def seek_to(self, where: Start) -> Steps[None]:
        """Go on from there in all partitions."""
        core = self._core
        deadline_ms = core.now_ms + core.config.timeout_ms
        found = yield from ranges(core, self.topic, self.app, time_of(where, core.wall_ms), deadline_ms)
        for one in found.values():
            if self._is_mine(one.partition):
                self.seek(one.partition, place_in(one, where))

    def stop(self) -> None:
        """Read no more; who waits is told."""
        self.is_stopped = True
        self._make_room()
        self._wake()
        self._upset.resolve(None)

    def _is_mine(self, partition: int) -> bool:
        return self._only is None or partition in self._only

    def _open(self, route: Route) -> Steps[None]:
        """Find out where to begin in partitions that are new to us, and where to end."""
        core = self._core
        deadline_ms = core.now_ms + core.config.timeout_ms
        found = yield from ranges(core, self.topic, self.app, time_of(self._first, core.wall_ms), deadline_ms)
        ends = dict(found)
        end = "latest" if self._end == "now" else self._end
        if end is not None and time_of(end, core.wall_ms) is not None:
            ends = yield from ranges(core, self.topic, self.app, time_of(end, core.wall_ms), deadline_ms)
        for partition, one in found.items():
            if not self._is_mine(partition) or partition in self._next:
                continue
            # A partition that came later is read from its beginning, or "latest" would miss its first messages.
            where = "earliest" if self._is_open and self._first == "latest" else self._first
            first = self._stored.get(partition, place_in(one, where))
            self._next[partition] = self.positions[partition] = first
            if end is not None:
                self._ends[partition] = place_in(ends[partition], end)
        self._is_open = True

    def _arrange(self) -> Steps[None]:
        core, failures = self._core, 0
        while not self.is_stopped:
            try:
                route = yield from core.route(self.topic, self.app, core.now_ms + core.config.timeout_ms)
                if not self._is_open or any(
                    self._is_mine(p) and p not in self._next for p in route.readable if p in route.leaders
                ):
                    yield from self._open(route)
                    self._wake()
            except LakeMQError as error:
                failures += 1
                yield from self._after_failure(error, failures)
                continue
            failures = 0
            self._upset = Promise()
            known, self._fetching = self._fetching, dict(route.brokers)
            for broker in route.brokers.values():
                if known.get(broker.id) != broker:
                    start(self._fetch(broker)).then(self._ended)
            yield core.within(self._upset, core.now_ms + core.config.metadata_ms)

    def _fetch(self, broker: Broker) -> Steps[None]:
        core, failures, idle_ms = self._core, 0, _IDLE_FIRST_MS
        while self._fetching.get(broker.id) == broker and not self.is_stopped:
            if self._waiting_count >= _COUNT:
                yield self._room
                continue
            try:
                found_any = yield from self._ask(broker)
            except LakeMQError as error:
                core.spoil(error, self.topic, self.app)
                self._upset.resolve(None)
                failures += 1
                yield from self._after_failure(error, failures)
                continue
            failures = 0
            if found_any:
                idle_ms = _IDLE_FIRST_MS
            else:
                self._wake()  # it may have come to its end
                yield core.within(self._room, core.now_ms + idle_ms)
                idle_ms = min(2 * idle_ms, _IDLE_MAX_MS)

    def _ask(self, broker: Broker) -> Steps[bool]:
        core = self._core
        deadline_ms = core.now_ms + core.config.timeout_ms
        session = yield from core.connected(broker.address, SHARED, deadline_ms)
        yield from core.introduced(session, AddConsumer, self.topic, self.app, deadline_ms)
        route = yield from core.route(self.topic, self.app, deadline_ms)
        wanted = [p for p in route.led_by(broker.id) if p in self._next and self._next[p] < self._end_of(p)]
        if not wanted:
            return False
        seeks = {p: self._seeks.get(p, 0) for p in wanted}
        fetches = tuple(PartitionFetch(p, _COUNT, self._next[p]) for p in wanted)
        command = FetchPartitionMessage((TopicPartitionFetch(self.topic, fetches),), self.app)
        ack = yield core.ask(session, command, deadline_ms)
        found_any = False
        for topic in ack.topics:
            for one in topic.partitions:
                if self._seeks.get(one.partition, 0) == seeks.get(one.partition):
                    found_any = (yield from self._take_in(one)) or found_any
        return found_any

    def _take_in(self, one: PartitionMessages) -> Steps[bool]:
        if one.code:
            error = from_status(one.code, f"{self.topic}, partition {one.partition}")
            if not isinstance(error, IndexBelowRangeError | IndexOutOfRangeError):
                raise error
            return (yield from self._skip(one.partition))
        pieces: deque[_Piece] = deque()
        for carried in open_messages(self.topic, one.messages):
            first = max(self._next[one.partition], carried.index)
            after = min(self._end_of(one.partition), carried.index + carried.count)
            if first < after:
                pieces.append(_Sealed(carried, first, after))
                self._next[one.partition] = after
        if not pieces:
            return False
        self._waiting.append((one.partition, pieces))
        self._waiting_count += sum(map(len, pieces))
        self._wake()
        return True

    def _skip(self, partition: int) -> Steps[bool]:
        """What we wanted is not kept any more: go on with the oldest that is."""
        core = self._core
        found = yield from ranges(core, self.topic, self.app, None, core.now_ms + core.config.timeout_ms)
        one, wanted = found.get(partition), self._next[partition]
        if one is None or one.first_index <= wanted:
            return False  # at the end, or beyond it: wait
        self.skipped += one.first_index - wanted
        core.note(
            "warning",
            f"{self.topic}, partition {partition}: {one.first_index - wanted} messages from {wanted} on are not kept",
        )
        self._next[partition] = self.positions[partition] = one.first_index
        return True

    def _end_of(self, partition: int) -> int:
        return self._ends.get(partition, _UNTIL_ALL)

    def _after_failure(self, error: LakeMQError, failures: int) -> Steps[None]:
        if self.is_stopped:
            return
        if not error.retriable:
            raise error
        if failures == 1:
            self._core.note("warning", f"{self.topic}: {error}; trying again")
        yield self._core.sleep(self._core.pause(failures))

    def _make_room(self) -> None:
        room, self._room = self._room, Promise()
        room.resolve(None)

    def _wake(self) -> None:
        ready, self.ready = self.ready, Promise()
        ready.resolve(None)

    def _ended(self, steps: Promise[None]) -> None:
        if steps.error is not None and not self.is_stopped:
            if not isinstance(steps.error, LakeMQError):
                raise steps.error
            self._error = steps.error
            self.is_stopped = True
            self._make_room()
            self._wake()
