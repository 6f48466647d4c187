"""PRODUCE_MESSAGE: from a request's messages to records in the journal, and the answers that wait for them.

Each topic of a request is stored whole or not at all. A request that is like the one before it on its connection goes
by `take_run`, many at a time and without being taken apart; everything else comes here as a command.
"""

import struct
import zlib
from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

from lakemq.broker.access import Access
from lakemq.broker.answers import code_for, code_of, encode, send
from lakemq.broker.config import BrokerConfig
from lakemq.broker.delaying import Delaying, Park, no_room
from lakemq.broker.events import Now
from lakemq.broker.ledger import Ledger
from lakemq.broker.metrics import Metrics
from lakemq.broker.produce_routes import TIMEOUT_MAX_MS, ProduceRoutes
from lakemq.broker.refusals import describe
from lakemq.broker.sessions import Connection, ProduceRoute, Sessions
from lakemq.broker.special import NOTHING, Specials, Wishes, named, without
from lakemq.broker.transacting import Transacting
from lakemq.broker.waiters import Buffers, CommandReply, Reply, Waiters
from lakemq.cluster.metadata import Topic
from lakemq.delivery.uniq import Place
from lakemq.errors import (
    BadParameterError,
    LakeMQError,
    NotLeaderError,
    ProducerNotFoundError,
    RateLimitedError,
    SerializationError,
    SlowSyncError,
)
from lakemq.message import Qos
from lakemq.policy import ProducerPolicy
from lakemq.record import ORDERED_BIT, Buffer, MessageFields, read_fields, scan, stamp
from lakemq.wire.dialect import Dialect, header_qos, qos_of_level
from lakemq.wire.header import Header
from lakemq.wire.produce import ProduceMessage, ProduceMessageAck, ProduceResult, TopicProduce, TopicProduceResults
from lakemq.wire.produce_run import ProduceRun, any_special, run_acks, run_receipts, run_refusals

_RESULT_PLACE = struct.Struct(">i2xq7xq")  # of a message: length, index, sendTime
_NOWHERE = ProduceResult(-1, -1, -1)
_STRONGEST_FIRST = sorted(Qos, key=lambda qos: -qos.strength)


class _Stored:
    """What became of one topic of a request."""

    __slots__ = ("code", "end_position", "message_count", "qos", "results", "topic")

    def __init__(self, topic: str, qos: Qos, message_count: int) -> None:
        self.message_count = message_count
        self.topic = topic
        self.qos = qos
        self.code = 0
        self.results: tuple[ProduceResult, ...] = ()
        self.end_position = 0

    def entry(self, refused_code: int = 0) -> TopicProduceResults:
        """As the answer has it; `refused_code` if the journal did not take it after all."""
        code = self.code or refused_code
        results = (_NOWHERE,) * self.message_count if code else self.results
        return TopicProduceResults(self.topic, code, results)


class _Load(NamedTuple):
    """Messages of one request for one partition."""

    topic: Topic
    partition: int
    messages: bytearray | memoryview
    message_count: int
    index_count: int


class RunReply(Reply):
    """The answers to a run of requests, which wait for one record."""

    __slots__ = ("_now_ms", "_requests", "_route")

    def __init__(
        self,
        connection: Connection,
        end_position: int,
        answers: bytes,
        route: ProduceRoute,
        requests: bytes,
        request_bytes: int,
        now: Now,
    ) -> None:
        self.connection = connection
        self.end_position = end_position
        self.buffers = [answers]
        self.waits_for_sync = route.is_flush
        self.request_bytes = request_bytes
        self.deadline_ms = now.monotonic_ms + route.timeout_ms
        self._route = route
        self._requests = requests
        self._now_ms = now.wall_ms

    def refusal(self, error: LakeMQError) -> Buffers:
        """Each request failed, in the same way."""
        route = self._route
        assert self.connection is not None
        code = code_for(self.connection, error)
        return [run_refusals(self._requests, route.topic_string, route.head, self._now_ms, code)]


class Producing:
    """Takes messages in."""

    def __init__(
        self,
        ledger: Ledger,
        config: BrokerConfig,
        access: Access,
        sessions: Sessions,
        waiters: Waiters,
        metrics: Metrics,
        transacting: Transacting,
        delaying: Delaying,
    ) -> None:
        self._ledger = ledger
        self._group = ledger.group
        self._transacting = transacting
        self._delaying = delaying
        self._specials = Specials(ledger, delaying)
        self._config = config
        self._access = access
        self._sessions = sessions
        self._waiters = waiters
        self._metrics = metrics
        self._turns: defaultdict[int, int] = defaultdict(
            int
        )  # whose turn it is, by topic, if the client leaves it to us
        self.routes = ProduceRoutes(ledger, config, access, sessions)
        self.is_sync_slow = False
        self.park: Park = no_room  # who takes what is over a rate

    # --- many alike --------------------------------------------------------------------------------------------

    def take_run(
        self, connection: Connection, route: ProduceRoute, run: ProduceRun, frames: memoryview, size: int, now: Now
    ) -> None:
        """Store a run of requests as one record, and answer each."""
        _, start, stop, partition, message_count, index_count, requests = run
        messages = frames[start:stop]
        metrics = self._metrics
        try:
            self._check_run(route, index_count, stop - start, now)
            if partition < 0:
                turn = self._turns[route.topic_number] = self._turns[route.topic_number] + 1
                partition = route.partitions[turn % len(route.partitions)]
            elif partition not in route.partitions:
                raise NotLeaderError(f"partition {partition} of topic {route.topic!r} is not at this broker")
            appended = self._group.append(
                route.topic_number,
                partition,
                messages,
                message_count,
                index_count,
                term=self._ledger.term,
                now_ms=now.wall_ms,
                client_address=connection.port.address,
            )
        except LakeMQError as error:
            metrics.errors[code_of(error)] += 1
            self._refused(
                connection, route.topic, route.suffix[2:].decode(), partition, messages, message_count, error, now
            )
            code = code_for(connection, error)
            answers = run_refusals(requests, route.topic_string, route.head, now.wall_ms, code)
            send(connection, [answers], now)
            return
        metrics.messages_in[route.topic] += index_count
        metrics.bytes_in[route.topic] += stop - start
        if route.traced is not None:
            first, after, end = appended
            self._ledger.tracing.stored(route.traced, end, partition, first, after, messages, now.wall_ms)
        if route.is_receive:
            answers = run_receipts(messages, requests, route.topic_string, route.head, now.wall_ms, partition)
            send(connection, [answers], now)
            return
        answers = run_acks(messages, requests, route.topic_string, route.head, now.wall_ms)
        self._waiters.park(RunReply(connection, appended[2], answers, route, requests, size, now))

    def _check_run(self, route: ProduceRoute, index_count: int, size: int, now: Now) -> None:
        if route.is_flush and self.is_sync_slow:
            raise SlowSyncError("the disk does not keep up: a sync is taking too long")
        rates = route.rates
        if rates is not None and not (
            rates.produce.take(index_count, now.monotonic_ms) and rates.produce_bytes.take(size, now.monotonic_ms)
        ):
            self._metrics.capped["app_rate"] += 1
            raise RateLimitedError("the app has used up its rate for sending")

    # --- one command -------------------------------------------------------------------------------------------

    def produce(
        self, connection: Connection, header: Header, command: ProduceMessage, frame: memoryview, now: Now
    ) -> None:
        """Store each topic's messages, then answer when the strongest level asked for is reached."""
        connection.check_app(command.app, self._config.admin_app)
        dialect = connection.dialect
        assert dialect is not None
        least = header_qos(header.qos_bits, dialect)
        stored = [self._store_topic(connection, entry, command.app, dialect, least, now) for entry in command.topics]
        if not stored:
            raise BadParameterError("the request names no topic")
        is_usual = len(stored) == 1 and not stored[0].code
        self.routes.note(connection, command, frame, stored[0].qos if is_usual else None, now)
        qos = next(level for level in _STRONGEST_FIRST if any(one.qos is level for one in stored))
        if qos is Qos.NO or (dialect is Dialect.JOYQUEUE and least is Qos.NO):  # whose header alone tells whether
            return
        good = [one for one in stored if not one.code]
        if qos is Qos.RECEIVE or not good:
            send(connection, self._encode(connection, header, stored, now), now)
            return
        timeouts = [entry.timeout_ms for entry in command.topics if entry.timeout_ms > 0]
        timeout_ms = min([*timeouts, TIMEOUT_MAX_MS]) if timeouts else self._config.produce_timeout_ms
        self._waiters.park(
            CommandReply(
                connection,
                max(one.end_position for one in good),
                self._encode(connection, header, stored, now),
                lambda error: self._encode(connection, header, stored, now, error),
                waits_for_sync=qos is Qos.FLUSH,
                request_bytes=len(frame),
                deadline_ms=now.monotonic_ms + timeout_ms,
            )
        )

    def _encode(
        self,
        connection: Connection,
        header: Header,
        stored: list[_Stored],
        now: Now,
        error: LakeMQError | None = None,
    ) -> Buffers:
        code = code_for(connection, error) if error is not None else 0
        return encode(connection, header, ProduceMessageAck(tuple([one.entry(code) for one in stored])), now, None)

    def _store_topic(
        self, connection: Connection, entry: TopicProduce, app: str, dialect: Dialect, least: Qos, now: Now
    ) -> _Stored:
        stored = _Stored(entry.topic, least, entry.messages.count)
        try:
            wanted = qos_of_level(entry.qos_level, dialect)
            stored.qos = wanted if wanted.strength > least.strength else least
            self._store(connection, entry, app, stored, now)
        except LakeMQError as error:
            if error.status is None:
                raise
            stored.code = code_for(connection, error)
            self._metrics.errors[error.status] += 1
            self._refused(
                connection,
                connection.full_topic(entry.topic),
                app,
                None,
                entry.messages.joined(),
                entry.messages.count,
                error,
                now,
            )
        return stored

    def _refused(
        self,
        connection: Connection,
        name: str,
        app: str,
        partition: int | None,
        messages: Buffer,
        count: int,
        error: LakeMQError,
        now: Now,
    ) -> None:
        """Have it noted down for the archive, if that wants to know."""
        topic = self._ledger.metadata.topics.get(name)
        if topic is None or topic.number not in self._ledger.tracing.topics:
            return
        first = describe(messages, connection.dialect is Dialect.JOYQUEUE)
        place = first.partition if partition is None else partition
        reason = f"{code_of(error)}: {error}{first.text}"
        tracing = self._ledger.tracing
        tracing.refused(topic.number, app, connection.client, place, count, reason, first.sent_ms, now)

    def _store(self, connection: Connection, entry: TopicProduce, app: str, stored: _Stored, now: Now) -> None:
        if stored.qos is Qos.FLUSH and self.is_sync_slow:
            raise SlowSyncError("the disk does not keep up: a sync is taking too long")
        topic, policy = self._producer(connection, entry.topic, app, now)
        if not entry.messages.count:
            raise BadParameterError(f"no messages for topic {entry.topic!r}")
        block = entry.messages.stored(connection.port.is_ipv6)
        messages = block.joined()
        if isinstance(messages, bytes):
            messages = bytearray(messages)
        found = scan(messages, 0, len(messages), block.count)
        if found.end != len(messages):
            raise SerializationError("there are bytes between the messages and the end of their list")
        rates = self._sessions.rates_of(app, self._ledger.metadata, now.monotonic_ms)
        is_over = rates is not None and not (
            rates.produce.take(found.index_count, now.monotonic_ms)
            and rates.produce_bytes.take(len(messages), now.monotonic_ms)
        )
        if is_over:
            self._metrics.capped["app_rate"] += 1
            if not policy.parks_over_rate or entry.tx_id:  # a transaction is whole or not at all
                raise RateLimitedError("the app has used up its rate for sending")
        assert connection.dialect is not None
        partition = self._partition_of(topic, messages, found.partition, connection.dialect)
        if entry.tx_id:
            stored.end_position = self._transacting.put(
                connection, topic, partition, entry.tx_id, app, messages, block.count, found.index_count, now
            )
            stored.results = _results_of(messages, block.count, partition, has_index=False)
            return
        wishes = NOTHING
        if any_special(messages, 0, block.count, found.partition):
            wishes = self._specials.wishes(topic.number, app, messages, block.count, now)
        load = _Load(topic, partition, messages, block.count, found.index_count)
        if not wishes.known:
            self._put(connection, load, app, wishes, is_over, stored, now)
            return
        sent_ms = [one.start_time_ms for one in _results_of(messages, block.count, partition)]
        others = without(messages, block.count, wishes.known)
        if others:  # the answer to some of them got lost, or they are named twice: the others are new all the same
            count = block.count - len(wishes.known)
            load = _Load(topic, partition, others, count, scan(others, 0, len(others), count).index_count)
            self._put(connection, load, app, wishes, is_over, stored, now)
        stored.results = _merged(stored.results, wishes.known, sent_ms)
        ends = [place.end_position for place in wishes.known.values() if isinstance(place, Place)]
        stored.end_position = max(stored.end_position, *ends, 0)

    def _put(
        self, connection: Connection, load: _Load, app: str, wishes: Wishes, is_over: bool, stored: _Stored, now: Now
    ) -> None:
        """Messages that are all new go where they belong: to an operator, until they are due, to their partition."""
        topic, partition, messages, count, index_count = load
        nowhere_yet = _results_of(messages, count, partition, has_index=False)
        if is_over:
            parked = None
            if wishes.due_ms is None:  # what is to wait would wait for an operator instead
                parked = self.park(topic, partition, app, messages, count, index_count, now)
            if parked is None:
                raise RateLimitedError("the app has used up its rate for sending")
            stored.end_position = parked
            stored.results = nowhere_yet
            return
        if wishes.due_ms is not None:
            if wishes.note is not None:
                messages = named(messages, count, app)
            stored.end_position = self._delaying.put(
                topic, partition, messages, count, index_count, wishes.due_ms, connection.port.address, now
            )
            stored.results = nowhere_yet
            if wishes.ids:
                self._specials.remember(topic.number, app, messages, partition, stored.end_position, now)
            return
        appended = self._group.append(
            topic.number,
            partition,
            messages,
            count,
            index_count,
            term=self._ledger.term,
            now_ms=now.wall_ms,
            client_address=connection.port.address,
            note=wishes.note,
        )
        stored.end_position = appended.end_position
        traced = self._ledger.tracing.sender(topic.number, app, connection.client)
        if traced is not None:
            first, after, end = appended
            self._ledger.tracing.stored(traced, end, partition, first, after, messages, now.wall_ms)
        if wishes.note is not None:  # what was stamped is a copy
            stamp(messages, 0, count, partition, appended.first_index, self._ledger.term, now.wall_ms)
        if wishes.ids:
            self._specials.remember(topic.number, app, messages, partition, appended.end_position, now)
        if wishes.may_expire:
            self._ledger.state.expiring.add(topic.number, partition)
        if stored.qos.strength > Qos.RECEIVE.strength:
            stored.results = _results_of(messages, count, partition)
        else:
            stored.results = nowhere_yet
        self._metrics.messages_in[topic.name] += index_count
        self._metrics.bytes_in[topic.name] += len(messages)

    def _producer(self, connection: Connection, name: str, app: str, now: Now) -> tuple[Topic, ProducerPolicy]:
        """A topic that this app may send to and has said it will; JoyQueue's clients need not have."""
        full = connection.full_topic(name)
        is_added = connection.dialect is Dialect.JOYQUEUE or (full, app) in connection.producers
        refused = ProducerNotFoundError(f"the connection did not send ADD_PRODUCER for topic {name!r}")
        if not is_added and self._config.creates_missing:  # before anything is made for it
            raise refused
        topic, policy = self._access.producer(connection, full, app, now)
        if not is_added:
            raise refused
        return topic, policy

    def _partition_of(self, topic: Topic, messages: memoryview | bytearray, wanted: int, dialect: Dialect) -> int:
        if wanted >= 0 and topic.type == "ordered" and dialect is Dialect.DOCUMENTED:
            # A client that has not heard that the topic grew would spread one key over two partitions.
            fields, _ = read_fields(messages)
            if fields.business_id:
                wanted = _key_hash(fields) % topic.writable_count
        if wanted >= 0:
            self._access.check_takes(topic, wanted)
            return wanted
        led = self._access.writable_partitions(topic)
        if not led:
            raise NotLeaderError(f"no partition of topic {topic.name!r} is at this broker")
        fields, _ = read_fields(messages)
        if fields.system_code & ORDERED_BIT or topic.type == "ordered":
            return led[_key_hash(fields) % len(led)]
        turn = self._turns[topic.number] = self._turns[topic.number] + 1
        return led[turn % len(led)]


def _key_hash(fields: MessageFields) -> int:
    return zlib.crc32(fields.business_id) if fields.business_id else 0


def _merged(
    new: tuple[ProduceResult, ...], known: Mapping[int, Place | int], sent_ms: list[int]
) -> tuple[ProduceResult, ...]:
    """The results of all messages of a request: of those that were stored now, and of those that were before."""
    results: list[ProduceResult] = []
    fresh = iter(new)
    for nth, sent in enumerate(sent_ms):
        place = known.get(nth)
        if place is None:
            results.append(next(fresh))
        elif isinstance(place, Place):
            results.append(ProduceResult(place.partition, place.first_index, sent))
        else:
            results.append(results[place])
    return tuple(results)


def _results_of(
    messages: memoryview | bytearray, count: int, partition: int, *, has_index: bool = True
) -> tuple[ProduceResult, ...]:
    """Where each of them went, and when it was sent; without an index while none is known."""
    results = []
    at = 0
    for _ in range(count):
        length, index, sent_ms = _RESULT_PLACE.unpack_from(messages, at)
        results.append(ProduceResult(partition, index if has_index else -1, sent_ms))
        at += length
    return tuple(results)
