"""Requests that cannot be answered yet: until the turn is written, until a sync, until a message, until a deadline.

An ACK_FLUSH answer is in here from its append to the sync that covers it; nobody but `synced` lets it out (R2).
"""

import heapq
from collections import deque
from collections.abc import Callable
from itertools import count

from lakemq.broker.events import Now
from lakemq.broker.sessions import Connection
from lakemq.errors import LakeMQError
from lakemq.storage.disk import Buffer
from lakemq.wire.consume import TopicMessages

Buffers = list[Buffer]


class Reply:
    """An answer that waits for the journal: `buffers` if all goes well, `refusal(error)` if not."""

    __slots__ = ("buffers", "connection", "deadline_ms", "end_position", "request_bytes", "waits_for_sync")

    connection: Connection | None
    end_position: int
    buffers: Buffers
    waits_for_sync: bool
    request_bytes: int  # that the request keeps in memory until it is answered
    deadline_ms: int  # monotonic; 0 for none

    def refusal(self, error: LakeMQError) -> Buffers:
        """What to answer if the journal does not take it."""
        raise NotImplementedError  # each kind of reply has its own words

    def tell(self) -> None:
        """Done, for a reply that goes to no connection."""
        raise NotImplementedError  # only an operator's reply is told so


class CommandReply(Reply):
    """The answer to one command."""

    __slots__ = ("_refusal",)

    def __init__(
        self,
        connection: Connection | None,
        end_position: int,
        buffers: Buffers,
        refusal: Callable[[LakeMQError], Buffers],
        *,
        waits_for_sync: bool,
        request_bytes: int = 0,
        deadline_ms: int = 0,
    ) -> None:
        self.connection = connection
        self.end_position = end_position
        self.buffers = buffers
        self.waits_for_sync = waits_for_sync
        self.request_bytes = request_bytes
        self.deadline_ms = deadline_ms
        self._refusal = refusal

    def refusal(self, error: LakeMQError) -> Buffers:
        """As the command says it."""
        return self._refusal(error)


class Waiters:
    """Answers by what they wait for."""

    def __init__(self) -> None:
        self._turn: list[Reply] = []
        self._sync: deque[Reply] = deque()  # by end position
        self.in_flight_bytes = 0

    @property
    def is_empty(self) -> bool:
        """Whether nobody waits."""
        return not self._turn and not self._sync

    @property
    def has_turn(self) -> bool:
        """Whether somebody waits for this turn to be written."""
        return bool(self._turn)

    @property
    def has_sync(self) -> bool:
        """Whether somebody waits for a sync."""
        return bool(self._sync)

    def park(self, reply: Reply) -> None:
        """Until the turn is written, and from there on as long as it must."""
        self._turn.append(reply)
        self.in_flight_bytes += reply.request_bytes
        if reply.connection is not None:
            reply.connection.in_flight_bytes += reply.request_bytes

    def written(self, written_position: int, synced_position: int) -> tuple[list[Reply], list[Reply]]:
        """The turn is over: those that may be answered, and those whose record is not there."""
        turn, self._turn = self._turn, []
        done, lost = [], []
        for reply in turn:
            if reply.end_position > written_position:
                lost.append(reply)
            elif reply.waits_for_sync and reply.end_position > synced_position:
                self._sync.append(reply)
                continue
            else:
                done.append(reply)
            self._settle(reply)
        return done, lost

    def synced(self, position: int) -> list[Reply]:
        """Everything before that position is durable: those that may be answered now."""
        waiting = self._sync
        done = []
        while waiting and waiting[0].end_position <= position:
            reply = waiting.popleft()
            done.append(reply)
            self._settle(reply)
        return done

    def take_all(self) -> list[Reply]:
        """Everyone: the journal will not go on."""
        everyone = [*self._sync, *self._turn]
        self._sync.clear()
        self._turn = []
        for reply in everyone:
            self._settle(reply)
        return everyone

    def overdue(self, now_ms: int) -> list[Reply]:
        """Those that wait for a sync past their deadline."""
        late = [reply for reply in self._sync if 0 < reply.deadline_ms <= now_ms]
        if late:
            self._sync = deque(reply for reply in self._sync if not 0 < reply.deadline_ms <= now_ms)
            for reply in late:
                self._settle(reply)
        return late

    def _settle(self, reply: Reply) -> None:
        self.in_flight_bytes -= reply.request_bytes
        if reply.connection is not None:
            reply.connection.in_flight_bytes -= reply.request_bytes


class Poll:
    """A fetch that found nothing and may wait; `tell` sends what was found for its topic after all."""

    __slots__ = ("ack_timeout_ms", "connection", "count", "deadline_ms", "is_done", "tell", "topic")

    def __init__(
        self,
        connection: Connection,
        topic: str,
        count: int,
        ack_timeout_ms: int,
        deadline_ms: int,
        tell: Callable[[TopicMessages, Now], None],
    ) -> None:
        self.connection = connection
        self.topic = topic
        self.count = count
        self.ack_timeout_ms = ack_timeout_ms
        self.deadline_ms = deadline_ms
        self.tell = tell
        self.is_done = False


class Deadlines:
    """Polls by when they must be answered at the latest."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Poll]] = []
        self._numbers = count()
        self.waiting = 0

    def add(self, poll: Poll) -> None:
        """One more that waits."""
        heapq.heappush(self._heap, (poll.deadline_ms, next(self._numbers), poll))
        self.waiting += 1

    def done(self, poll: Poll) -> None:
        """It was answered, or nobody is there any more to be."""
        assert not poll.is_done
        poll.is_done = True
        self.waiting -= 1
        if len(self._heap) > 2 * self.waiting + 64:
            self._heap = [entry for entry in self._heap if not entry[2].is_done]
            heapq.heapify(self._heap)

    def due(self, now_ms: int) -> list[Poll]:
        """Those whose time has come, still to be answered."""
        polls = []
        while self._heap and self._heap[0][0] <= now_ms:
            _, _, poll = heapq.heappop(self._heap)
            if not poll.is_done:
                polls.append(poll)
        return polls
