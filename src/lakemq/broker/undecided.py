"""Transactions whose time is over and which nobody decided: offered to their app, in the end rolled back.

FETCH_PRODUCE_FEEDBACK lists those that have an id of the application's own, each at most once in a while, to any
producer of the app. Those without one nobody could ask about: they end with their time-out. Times are counted by the
monotonic clock; after a start, by what the wall clock says has passed, but no more than all of it (R10).
"""

import heapq
from collections import deque

from lakemq.broker.access import Access
from lakemq.broker.answers import answer, code_of
from lakemq.broker.config import BrokerConfig
from lakemq.broker.events import Now
from lakemq.broker.ledger import Ledger
from lakemq.broker.metrics import Metrics
from lakemq.broker.sessions import Connection
from lakemq.broker.waiters import Deadlines, Poll
from lakemq.cluster.metadata import Topic
from lakemq.delivery.transactions import Transaction, TransactionLimits
from lakemq.errors import LakeMQError, ProducerNotFoundError, TopicNotFoundError
from lakemq.wire.consume import TopicMessages
from lakemq.wire.header import Header
from lakemq.wire.produce import FetchProduceFeedback, FetchProduceFeedbackAck, OpenTransaction

Key = tuple[int, str]  # topic and app

_OFFERED_MAX = 1000  # in one answer
_AGAIN_MS = 1000  # after a roll-back that could not be written


class _Timer:
    """The times of one open transaction, monotonic."""

    __slots__ = ("due_ms", "offer_ms", "purge_ms")

    def __init__(self, due_ms: int, purge_ms: int) -> None:
        self.due_ms = due_ms  # when to look at it
        self.purge_ms = purge_ms
        self.offer_ms: int | None = None  # from when on it may be offered; None while its time is not over


class _FeedbackPoll(Poll):
    """A FETCH_PRODUCE_FEEDBACK that waits."""

    __slots__ = ("header", "key")

    def __init__(
        self, connection: Connection, header: Header, key: Key, topic: str, count: int, deadline_ms: int
    ) -> None:
        super().__init__(connection, topic, count, 0, deadline_ms, _tell_nobody)
        self.header = header
        self.key = key


def _tell_nobody(found: TopicMessages, now: Now) -> None:
    raise NotImplementedError  # such a poll is never told of messages


class Undecided:
    """The clocks of open transactions, and those who wait to hear of them."""

    def __init__(
        self, ledger: Ledger, config: BrokerConfig, limits: TransactionLimits, access: Access, metrics: Metrics
    ) -> None:
        self._ledger = ledger
        self._config = config
        self._limits = limits
        self._access = access
        self._metrics = metrics
        self._transactions = ledger.state.transactions
        self._timers: dict[str, _Timer] = {}
        self._heap: list[tuple[int, str]] = []  # entries may be out of date
        self._overdue: dict[Key, dict[str, None]] = {}
        self._parked: dict[Key, deque[_FeedbackPoll]] = {}
        self._deadlines = Deadlines()

    # --- clocks ------------------------------------------------------------------------------------------------

    def watch(self, transaction: Transaction, now: Now) -> None:
        """One that is open from now on, or was when the broker stopped."""
        passed_ms = max(now.wall_ms - transaction.began_ms, 0)
        left_ms = max(transaction.timeout_ms - passed_ms, 0)
        purge_ms = max(max(self._limits.purge_ms, transaction.timeout_ms) - passed_ms, 0)
        self._timers[transaction.tx_id] = timer = _Timer(0, now.monotonic_ms + purge_ms)
        self._set(transaction.tx_id, timer, now.monotonic_ms + left_ms)

    def forget(self, transaction: Transaction) -> None:
        """It was decided."""
        self._timers.pop(transaction.tx_id, None)
        self._not_overdue(transaction)

    def is_overdue(self, tx_id: str) -> bool:
        """Whether its time is over."""
        timer = self._timers.get(tx_id)
        return timer is not None and timer.offer_ms is not None

    def due(self, now: Now) -> list[Transaction]:
        """Those to be rolled back now. Others whose time is over are told of to those who wait."""
        lost: list[Transaction] = []
        woken: dict[Key, None] = {}
        while self._heap and self._heap[0][0] <= now.monotonic_ms:
            due_ms, tx_id = heapq.heappop(self._heap)
            timer = self._timers.get(tx_id)
            if timer is None or timer.due_ms != due_ms:
                continue
            transaction = self._transactions.open[tx_id]
            if not transaction.transaction_id or timer.purge_ms <= now.monotonic_ms:
                lost.append(transaction)
                self._set(tx_id, timer, now.monotonic_ms + _AGAIN_MS)
                continue
            if timer.offer_ms is None:
                timer.offer_ms = now.monotonic_ms
                self._overdue.setdefault((transaction.topic, transaction.app), {})[tx_id] = None
            woken[transaction.topic, transaction.app] = None
            self._set(tx_id, timer, timer.purge_ms)
        for key in woken:
            self._wake(key, now)
        return lost

    def _set(self, tx_id: str, timer: _Timer, due_ms: int) -> None:
        timer.due_ms = due_ms
        heapq.heappush(self._heap, (due_ms, tx_id))
        if len(self._heap) > 2 * len(self._timers) + 64:  # those decided in time leave entries behind
            self._heap = [(one.due_ms, number) for number, one in self._timers.items()]
            heapq.heapify(self._heap)

    def _not_overdue(self, transaction: Transaction) -> None:
        key = transaction.topic, transaction.app
        overdue = self._overdue.get(key)
        if overdue is not None:
            overdue.pop(transaction.tx_id, None)
            if not overdue:
                del self._overdue[key]

    # --- feedback ----------------------------------------------------------------------------------------------

    def feedback(self, connection: Connection, header: Header, command: FetchProduceFeedback, now: Now) -> None:
        """Tell of some, or wait until there is one to tell of."""
        connection.check_app(command.app, self._config.admin_app)
        try:
            topic = self._topic(connection.full_topic(command.topic), command.app)
        except LakeMQError as error:
            self._metrics.errors[code_of(error)] += 1
            answer(connection, header, FetchProduceFeedbackAck((), code_of(error)), now)
            return
        key = topic.number, command.app
        found = self._offer(key, command.topic, command.count, now)
        if not found and self._park(connection, header, command, key, now):
            return
        answer(connection, header, FetchProduceFeedbackAck(found, 0), now)

    def _topic(self, name: str, app: str) -> Topic:
        """A topic that this app may send to, whether or not it may right now."""
        topic = self._ledger.metadata.topics.get(name)
        if topic is None:
            raise TopicNotFoundError(f"there is no topic {name!r}")
        subscription = self._ledger.metadata.subscription(name, app)
        if subscription is None or subscription.producer is None:
            raise ProducerNotFoundError(f"app {app!r} may not send to topic {name!r}")
        return topic

    def _offer(self, key: Key, topic: str, count: int, now: Now) -> tuple[OpenTransaction, ...]:
        count = min(count, _OFFERED_MAX) if count > 0 else _OFFERED_MAX
        found: list[OpenTransaction] = []
        for tx_id in self._overdue.get(key, ()):
            timer = self._timers[tx_id]
            if timer.offer_ms is None or timer.offer_ms > now.monotonic_ms:
                continue
            timer.offer_ms = now.monotonic_ms + self._limits.offer_every_ms
            self._set(tx_id, timer, min(timer.offer_ms, timer.purge_ms))
            found.append(OpenTransaction(topic, tx_id, self._transactions.open[tx_id].transaction_id))
            if len(found) == count:
                break
        return tuple(found)

    def _park(self, connection: Connection, header: Header, command: FetchProduceFeedback, key: Key, now: Now) -> bool:
        """Let a request wait; False if it may not, and is answered at once."""
        limits = self._config.limits
        wait_ms = min(command.long_poll_timeout_ms, self._config.long_poll_max_ms)
        if wait_ms <= 0 or self._access.is_draining:
            return False
        if self._deadlines.waiting >= limits.parked_polls_max:
            self._metrics.capped["parked_polls"] += 1
            return False
        if connection.parked_polls >= limits.parked_polls_per_connection_max:
            self._metrics.capped["parked_polls_per_connection"] += 1
            return False
        poll = _FeedbackPoll(connection, header, key, command.topic, command.count, now.monotonic_ms + wait_ms)
        self._parked.setdefault(key, deque()).append(poll)
        self._deadlines.add(poll)
        connection.parked_polls += 1
        return True

    def _wake(self, key: Key, now: Now) -> None:
        parked = self._parked.get(key)
        while parked:
            poll = parked[0]
            if poll.is_done or poll.connection.is_closing:
                if not poll.is_done:
                    self._end(poll)
                parked.popleft()
                continue
            found = self._offer(key, poll.topic, poll.count, now)
            if not found:
                return
            parked.popleft()
            self._tell(poll, found, now)
        if parked is not None:
            del self._parked[key]

    def end_polls(self, now: Now) -> None:
        """Answer those whose time is over; all of them if the broker stops."""
        for poll in self._deadlines.due(now.monotonic_ms):
            assert isinstance(poll, _FeedbackPoll)
            self._tell(poll, (), now)
            parked = self._parked.get(poll.key)
            while parked and parked[0].is_done:
                parked.popleft()
            if not parked:
                self._parked.pop(poll.key, None)
        if self._parked and self._access.is_draining:
            for left in self._parked.values():
                for one in left:
                    if not one.is_done:
                        self._tell(one, (), now)
            self._parked.clear()

    def _tell(self, poll: _FeedbackPoll, found: tuple[OpenTransaction, ...], now: Now) -> None:
        self._end(poll)
        answer(poll.connection, poll.header, FetchProduceFeedbackAck(found, 0), now)

    def _end(self, poll: _FeedbackPoll) -> None:
        self._deadlines.done(poll)
        poll.connection.parked_polls -= 1
