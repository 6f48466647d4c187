"""Receiving: messages lent by topic or read by partition, and requests that wait for some.

A FETCH_TOPIC_MESSAGE that finds nothing waits until something can be lent, and is answered empty when its time is over.
What it gets is decided in `lending.py`.
"""

from collections import deque
from collections.abc import Callable, Iterable

from lakemq.broker.access import Access
from lakemq.broker.answers import answer, code_for, code_of
from lakemq.broker.config import BrokerConfig
from lakemq.broker.events import Now
from lakemq.broker.ledger import Ledger
from lakemq.broker.lending import Lender, Lending
from lakemq.broker.metrics import Metrics
from lakemq.broker.sessions import Connection, Sessions
from lakemq.broker.waiters import Deadlines, Poll
from lakemq.cluster.metadata import Subscription, Topic
from lakemq.delivery.guarded_clock import GuardedClock
from lakemq.delivery.loans import Lease
from lakemq.errors import (
    BadParameterError,
    ConsumerNotFoundError,
    LakeMQError,
    NotLeaderForFetchError,
    from_status,
)
from lakemq.wire.consume import (
    ACK_INDEX,
    FetchPartitionMessage,
    FetchPartitionMessageAck,
    FetchTopicMessage,
    FetchTopicMessageAck,
    PartitionFetch,
    PartitionMessages,
    TopicFetch,
    TopicMessages,
    TopicPartitionMessages,
)
from lakemq.wire.dialect import Dialect
from lakemq.wire.header import Header
from lakemq.wire.messages import EMPTY, MessageBlock

LeasesEnded = Callable[[Lending, list[Lease], list[int], Now], None]


def _nobody(lending: Lending, leases: list[Lease], retry_ids: list[int], now: Now) -> None:
    """Nobody is told."""


class Consuming:
    """Hands messages out and takes acks in."""

    def __init__(
        self,
        ledger: Ledger,
        config: BrokerConfig,
        access: Access,
        sessions: Sessions,
        metrics: Metrics,
        lender: Lender,
        clock: GuardedClock,
    ) -> None:
        self._ledger = ledger
        self._group = ledger.group
        self._config = config
        self._access = access
        self._sessions = sessions
        self._metrics = metrics
        self._lender = lender
        self._clock = clock
        self._lendings: dict[int, Lending] = {}  # by subscription number
        self._by_topic: dict[int, list[Lending]] = {}
        self._wait_for_turn: dict[Lending, None] = {}  # they have retries that may be lent once the turn is written
        self.deadlines = Deadlines()
        self.leases_ended: LeasesEnded = _nobody  # who is told of leases that ran out

    # --- lending -----------------------------------------------------------------------------------------------

    def fetch_topic(self, connection: Connection, header: Header, command: FetchTopicMessage, now: Now) -> None:
        """Lend messages of one partition per topic."""
        connection.check_app(command.app, self._config.admin_app)
        entries = []
        first_error: LakeMQError | None = None
        bytes_left = self._config.limits.fetch_bytes_max
        for wish in command.topics:
            try:
                block, lending = self._fetch_one(connection, wish, command, bytes_left, now)
            except LakeMQError as error:
                first_error = first_error or error
                self._metrics.errors[code_of(error)] += 1
                entries.append(TopicMessages(wish.topic, EMPTY, code_for(connection, error)))
                continue
            if not block and len(command.topics) == 1 and self._park(connection, header, wish, command, lending, now):
                return
            bytes_left -= len(block)
            entries.append(TopicMessages(wish.topic, block))
        told = first_error if connection.dialect is Dialect.DOCUMENTED else None
        answer(connection, header, FetchTopicMessageAck(tuple(entries)), now, told)

    def _fetch_one(
        self, connection: Connection, wish: TopicFetch, command: FetchTopicMessage, bytes_max: int, now: Now
    ) -> tuple[MessageBlock, Lending]:
        name = connection.full_topic(wish.topic)
        topic, subscription, policy = self._access.consumer(connection, name, command.app, now)
        if (name, command.app) not in connection.consumers:
            raise ConsumerNotFoundError(f"the connection did not send ADD_CONSUMER for topic {wish.topic!r}")
        self._access.check_lends(topic, command.app)
        lending = self.lending(topic, subscription)
        if not self._access.readable_partitions(topic):
            raise NotLeaderForFetchError(f"no partition of topic {wish.topic!r} is at this broker")
        block = self._lender.lend(connection, lending, policy, wish.count, command.ack_timeout_ms, bytes_max, now)
        return block, lending

    def lending(self, topic: Topic, subscription: Subscription) -> Lending:
        """What runs for that app on that topic, begun if need be."""
        lending = self._lendings.get(subscription.number)
        if lending is None:
            retries = self._ledger.state.retries.of(subscription.number)
            lending = Lending(topic, subscription, self._access.readable_partitions(topic), retries)
            self._lendings[subscription.number] = lending
            self._by_topic.setdefault(topic.number, []).append(lending)
        return lending

    def known_lending(self, subscription: Subscription) -> Lending | None:
        """The same, if it has begun."""
        return self._lendings.get(subscription.number)

    # --- long polls --------------------------------------------------------------------------------------------

    def _park(
        self,
        connection: Connection,
        header: Header,
        wish: TopicFetch,
        command: FetchTopicMessage,
        lending: Lending,
        now: Now,
    ) -> bool:
        """Let a request wait; False if it may not, and is answered at once."""
        wait_ms = min(command.long_poll_timeout_ms, self._config.long_poll_max_ms)
        limits = self._config.limits
        if wait_ms <= 0 or self._access.is_draining:
            return False
        if self.deadlines.waiting >= limits.parked_polls_max:
            self._metrics.capped["parked_polls"] += 1
            return False
        if connection.parked_polls >= limits.parked_polls_per_connection_max:
            self._metrics.capped["parked_polls_per_connection"] += 1
            return False

        def tell(found: TopicMessages, when: Now) -> None:
            error = from_status(found.code) if found.code and connection.dialect is Dialect.DOCUMENTED else None
            answer(connection, header, FetchTopicMessageAck((found,)), when, error)

        poll = Poll(connection, wish.topic, wish.count, command.ack_timeout_ms, now.monotonic_ms + wait_ms, tell)
        lending.parked.append(poll)
        self.deadlines.add(poll)
        connection.parked_polls += 1
        return True

    def _end(self, poll: Poll) -> None:
        self.deadlines.done(poll)
        poll.connection.parked_polls -= 1

    def _tell(self, poll: Poll, now: Now, block: MessageBlock = EMPTY, code: int = 0) -> None:
        self._end(poll)
        poll.tell(TopicMessages(poll.topic, block, code), now)

    def made_visible(self, changed: Iterable[tuple[int, int]], now: Now) -> None:
        """New messages can be read: wake who waits for them."""
        woken: dict[Lending, None] = {}
        for topic, partition in changed:
            for lending in self._by_topic.get(topic, ()):
                lending.loans.offer(partition)
                if lending.parked:
                    woken[lending] = None
        for lending in woken:
            self.wake(lending, now)

    def wake(self, lending: Lending, now: Now) -> None:
        """Serve those who wait, the longest first, as long as there is something."""
        passed_over: list[Poll] = []
        now_ms = self._clock.read(now)
        while lending.parked and lending.has_ready(now_ms):
            poll = lending.parked.popleft()
            if poll.is_done:
                continue
            if poll.connection.is_output_full or not self._serve(lending, poll, now):
                passed_over.append(poll)
        lending.parked.extendleft(reversed(passed_over))
        if lending.retries.held_count:
            self._wait_for_turn[lending] = None

    def turn_written(self, now: Now) -> None:
        """What became of retries is on disk: those that are due already need not wait for the next tick."""
        lendings, self._wait_for_turn = self._wait_for_turn, {}
        for lending in lendings:
            self.wake(lending, now)

    def _serve(self, lending: Lending, poll: Poll, now: Now) -> bool:
        try:
            _, subscription, policy = self._access.consumer(poll.connection, lending.topic, lending.app, now)
            if subscription.number != lending.number:
                raise ConsumerNotFoundError(f"the subscription to {lending.topic!r} was made anew")
            bytes_max = self._config.limits.fetch_bytes_max
            block = self._lender.lend(poll.connection, lending, policy, poll.count, poll.ack_timeout_ms, bytes_max, now)
        except LakeMQError as error:
            self._tell(poll, now, code=code_for(poll.connection, error))
            return True
        if not block:
            return False
        self._tell(poll, now, block)
        return True

    # --- time passes, consumers go ------------------------------------------------------------------------------

    def tick(self, now: Now) -> None:
        """End the polls and leases whose time is over."""
        for poll in self.deadlines.due(now.monotonic_ms):
            self._tell(poll, now)
        now_ms = self._clock.read(now)
        for lending in list(self._lendings.values()):
            loans, retries = lending.loans, lending.retries
            loans.offer_deferred(now.monotonic_ms)
            if loans.lent_count or retries.lent_count:
                leases, retry_ids = loans.take_expired(now.monotonic_ms), retries.take_expired(now.monotonic_ms)
                if leases or retry_ids:
                    self.leases_ended(lending, leases, retry_ids, now)
            if lending.parked and lending.has_ready(now_ms):
                self.wake(lending, now)

    def consumer_gone(self, connection: Connection, topic: str, app: str, now: Now) -> None:
        """A consumer left: what it had may be lent again, and its polls are answered empty."""
        subscription = self._ledger.metadata.subscription(topic, app)
        lending = self._lendings.get(subscription.number) if subscription is not None else None
        if lending is None:
            return
        for poll in lending.parked:
            if poll.connection is connection and not poll.is_done:
                self._tell(poll, now)
        lending.parked = deque(poll for poll in lending.parked if not poll.is_done)
        consumer = connection.port.id
        had_some = lending.loans.release_all(consumer)
        if lending.retries.release_all(consumer, self._clock.read(now)) or had_some:
            self.wake(lending, now)

    def refresh(self, now: Now, topics: Iterable[str] | None = None) -> None:
        """The metadata changed: forget lendings of subscriptions that are gone, look at partitions that are new.

        Only in these topics, if that is known: to look at all of them takes long.
        """
        metadata = self._ledger.metadata
        lendings = list(self._lendings.values())
        if topics is not None:
            known = [metadata.topics[name].number for name in topics if name in metadata.topics]
            lendings = [one for number in known for one in self._by_topic.get(number, ())]
        for lending in lendings:
            number = lending.number
            subscription = metadata.subscription(lending.topic, lending.app)
            topic = metadata.topics.get(lending.topic)
            is_there = subscription is not None and subscription.number == number and topic is not None
            if not is_there or subscription is None or subscription.consumer is None or topic is None:
                del self._lendings[number]
                self._by_topic[lending.topic_number].remove(lending)
                error = ConsumerNotFoundError(f"app {lending.app!r} is no consumer of {lending.topic!r} any more")
                for poll in lending.parked:
                    if not poll.is_done:
                        self._tell(poll, now, code=code_of(error))
                continue
            lending.growths = topic.growths
            lending.readable_count = topic.readable_count
            self.offer_all(lending)
            self.wake(lending, now)

    def offer_all(self, lending: Lending) -> None:
        """There may be something to lend in any partition."""
        topic = self._ledger.metadata.topics.get(lending.topic)
        for partition in self._access.readable_partitions(topic) if topic is not None else ():
            lending.loans.offer(partition)

    def drain(self, now: Now) -> None:
        """Answer every poll: the broker stops."""
        for lending in self._lendings.values():
            for poll in lending.parked:
                if not poll.is_done:
                    self._tell(poll, now)
            lending.parked.clear()

    # --- reading by partition ------------------------------------------------------------------------------------

    def fetch_partition(self, connection: Connection, header: Header, command: FetchPartitionMessage, now: Now) -> None:
        """Read from where the client says; nothing is lent."""
        connection.check_app(command.app, self._config.admin_app)
        entries = []
        limits = self._config.limits
        is_joyqueue = connection.dialect is Dialect.JOYQUEUE
        bytes_left = limits.fetch_bytes_max if is_joyqueue else limits.read_bytes_max
        for wish in command.topics:
            partitions = []
            for one in wish.partitions:
                block, code = EMPTY, 0
                try:
                    block = self._read(connection, wish.topic, command.app, one, bytes_left, now)
                    bytes_left -= len(block)
                except LakeMQError as error:
                    code = code_for(connection, error)
                    self._metrics.errors[code_of(error)] += 1
                partitions.append(PartitionMessages(one.partition, block, code))
            entries.append(TopicPartitionMessages(wish.topic, tuple(partitions)))
        answer(connection, header, FetchPartitionMessageAck(tuple(entries)), now)

    def _read(
        self, connection: Connection, name: str, app: str, wish: PartitionFetch, bytes_max: int, now: Now
    ) -> MessageBlock:
        full = connection.full_topic(name)
        topic, subscription, _ = self._access.consumer(connection, full, app, now)
        self.check_leads(topic, wish.partition)
        if wish.partition >= topic.readable_count and not self._access.is_archive(topic, app):
            raise NotLeaderForFetchError(
                f"partition {wish.partition} of topic {name!r} hands out nothing: the first {topic.readable_count} do"
            )
        if wish.count <= 0:
            raise BadParameterError(f"count {wish.count} is not a number of messages")
        index = wish.index
        if index == ACK_INDEX:
            index = self._ledger.stand(topic.number, wish.partition, subscription.number).next_index
        rates = self._sessions.rates_of(app, self._ledger.metadata, now.monotonic_ms)
        if rates is not None and not self._lender.may_fetch(rates, now):
            return EMPTY
        count = wish.count if bytes_max > 0 else 0  # the answer is full: it is checked, and no more
        slices, block = self._lender.read_block(connection, topic.number, wish.partition, index, count, bytes_max)
        index_count = slices[-1].next_index - slices[0].first_index if slices else 0
        self._lender.count_out(full, app, index_count, block, rates, now)
        return block

    # --- inside ------------------------------------------------------------------------------------------------

    def check_leads(self, topic: Topic, partition: int) -> None:
        if not self._access.leads(topic, partition):
            raise NotLeaderForFetchError(f"partition {partition} of topic {topic.name!r} is not at this broker")
