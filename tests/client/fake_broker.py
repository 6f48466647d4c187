"""A scripted cluster inside the test: speaks the wire's codec, stores in lists, fails when told to.

Small on purpose: metadata, produce with UNIQ_ID and DELIVER_AT, fetch with leases and long polls, acks, retries, dead
letters, ranges. `fail`, `swallow` and `drop` plan what happens to the next requests of a kind.
"""

from dataclasses import dataclass, field, replace

from lakemq.attributes import decode_attributes
from lakemq.client.address import Address
from lakemq.envelope import pack, unpack
from lakemq.errors import AckError, AuthenticationError, LakeMQError, NotLeaderError, TopicNotFoundError
from lakemq.message import AckType, BatchMessage, Message
from lakemq.policy import ConsumerPolicy, ProducerPolicy
from lakemq.record import read_fields, scan, stamp
from lakemq.wire import consume, metadata, own, produce, session
from lakemq.wire.commands import decode_request, encode_error, encode_response
from lakemq.wire.dialect import Dialect, Qos, qos_of_level
from lakemq.wire.messages import EMPTY, MessageBlock

DOCUMENTED = Dialect.DOCUMENTED


class FakeClock:
    """Time that moves when told to."""

    def __init__(self):
        self.now_ms = 1_000_000
        self.wall_offset_ms = 1_700_000_000_000

    def monotonic_ms(self):
        return self.now_ms

    def wall_ms(self):
        return self.now_ms + self.wall_offset_ms


@dataclass
class Partition:
    """What is stored: MESSAGEs by their first index, and the leader."""

    leader: int
    messages: list = field(default_factory=list)  # (first index, count, bytes)
    next_index: int = 0
    first_index: int = 0

    def from_index(self, index, count):
        """MESSAGEs that hold `count` messages from `index` on, the first as a whole."""
        found, left = [], count
        for first, size, data in self.messages:
            if first + size > index and left > 0:
                found.append(data)
                left -= first + size - max(first, index)
        return found


@dataclass
class Retry:
    """A message that comes again."""

    id: int
    topic: str
    app: str
    message: object
    attempt: int
    due_ms: int
    connection: object = None  # whom it is lent to


@dataclass
class Lease:
    connection: object
    next_index: int
    end_ms: int


class Connection:
    """The broker's end of a connection."""

    def __init__(self, cluster, broker):
        self.cluster = cluster
        self.broker = broker
        self.inbox = []  # frames for the client
        self.is_closed = False
        self.app = None
        self.on_frames = lambda: None

    def answer(self, buffers):
        self.inbox.append(b"".join(buffers))
        self.on_frames()

    def close(self):
        self.is_closed = True
        self.cluster.gone(self)
        self.on_frames()


class FakeCluster:
    """Brokers 1 to n, each at Address("broker-k", k)."""

    def __init__(self, clock=None, brokers=1, partitions=4, topics=("orders",), topic_type=0):
        self.clock = clock or FakeClock()
        self.brokers = {number: Address(f"broker-{number}", number) for number in range(1, brokers + 1)}
        self.down = set()
        self.topics = {name: [Partition(1 + number % brokers) for number in range(partitions)] for name in topics}
        self.topic_type = topic_type
        self.producer_policy = ProducerPolicy()
        self.consumer_policy = ConsumerPolicy(batch_size=1000)
        self.token = ""
        self.requests = []  # (broker, command), in the order they came
        self.connections = []
        self.connects = []  # every try, also in vain
        self.acks = {}  # (topic, app, partition) → next index
        self.leases = {}
        self.parked = []  # (connection, header, command, due)
        self.uniq = {}
        self.retried = []  # (topic, app, partition, index)
        self.retries = []
        self.dead = []  # (body, reason, attempts)
        self.filters = {}  # (topic, app) → text
        self.refusals = {}  # body → codes with which SETTLE refuses it, one after the other
        self.delayed = []  # (due, topic, body)
        self.retry_ms = 1000
        self.notification = ""  # said at ADD_CONNECTION
        self.health = {}  # broker → points, if it is not well
        self._settled = {}
        self._plans = []
        self._handlers = {
            session.AddConnection: self._add_connection,
            session.AddProducer: lambda c, r: session.AddProducerAck(
                tuple(session.TopicProducer(topic, "p") for topic in r.topics)
            ),
            session.AddConsumer: lambda c, r: session.AddConsumerAck(
                tuple(session.TopicConsumer(topic, "c") for topic in r.topics)
            ),
            session.Heartbeat: lambda c, r: None,
            session.FetchHealth: lambda c, r: session.FetchHealthAck(self.health.get(c.broker, 100.0)),
            session.RemoveConnection: lambda c, r: None,
            metadata.FetchCluster: self._fetch_cluster,
            produce.ProduceMessage: self._produce,
            consume.CommitAck: self._commit_ack,
            consume.CommitAckIndex: self._commit_index,
            consume.FetchPartitionMessage: self._fetch_partition,
            own.FetchRange: self._fetch_range,
            own.ExtendLease: self._extend,
            own.Settle: self._settle,
            own.SetFilter: self._set_filter,
        }

    # --- plans -----------------------------------------------------------------------------------------------------

    def fail(self, kind, error, times=1, broker=None, is_stored=False):
        """Answer the next requests of that kind with an error; `is_stored`: after doing what they ask for."""
        self._plans.append([kind, "fail", times, broker, error, is_stored])

    def refuse_until(self, kind, error, until_ms):
        """Answer requests of that kind with an error until then."""
        handler = self._handlers[kind]

        def handle(connection, command):
            if self.clock.now_ms < until_ms:
                raise error
            return handler(connection, command)

        self._handlers[kind] = handle

    def swallow(self, kind, times=1, broker=None, is_stored=False):
        """Do not answer them."""
        self._plans.append([kind, "swallow", times, broker, None, is_stored])

    def drop(self, kind, times=1, broker=None, is_stored=False):
        """Close the connection instead of an answer."""
        self._plans.append([kind, "drop", times, broker, None, is_stored])

    def stop(self, broker):
        """The broker is gone."""
        self.down.add(broker)
        for connection in [one for one in self.connections if one.broker == broker]:
            connection.close()

    def count(self, kind):
        return sum(isinstance(command, kind) for _, command in self.requests)

    def commands(self, kind):
        return [command for _, command in self.requests if isinstance(command, kind)]

    def stored(self, topic="orders"):
        """Bodies by partition, batches opened."""
        bodies = []
        for partition in self.topics[topic]:
            here = []
            for _, _, data in partition.messages:
                message = unpack(data)
                here += [item.body for item in message.items] if isinstance(message, BatchMessage) else [message.body]
            bodies.append(here)
        return bodies

    def bodies(self, topic="orders"):
        return [body for partition in self.stored(topic) for body in partition]

    # --- connections ---------------------------------------------------------------------------------------------

    def connect(self, address):
        """A connection, or None if nobody is there."""
        self.connects.append(address)
        for number, known in self.brokers.items():
            if known == address and number not in self.down:
                connection = Connection(self, number)
                self.connections.append(connection)
                return connection
        return None

    def gone(self, connection):
        if connection in self.connections:
            self.connections.remove(connection)
        self.parked = [one for one in self.parked if one[0] is not connection]
        for key in [key for key, lease in self.leases.items() if lease.connection is connection]:
            del self.leases[key]
        for one in self.retries:
            one.connection = None if one.connection is connection else one.connection
        self.tick()

    def handle(self, connection, frame):
        header, command = decode_request(bytearray(frame), DOCUMENTED)
        self.requests.append((connection.broker, command))
        plan = self._plan(connection, command)
        if isinstance(command, consume.FetchTopicMessage) and plan is None:
            due_ms = self.clock.now_ms + command.long_poll_timeout_ms
            self.parked.append((connection, header, command, due_ms))
            self.tick()
            return
        try:
            ack = self._handlers[type(command)](connection, command) if plan is None or plan[5] else None
            if plan is not None and plan[1] == "fail":
                raise plan[4]
        except LakeMQError as error:
            connection.answer([encode_error(error, header, dialect=DOCUMENTED, send_time_ms=0)])
            return
        if plan is not None and plan[1] == "drop":
            connection.close()
        elif plan is None and not (isinstance(command, produce.ProduceMessage) and _is_silent(command)):
            connection.answer(encode_response(ack, header, dialect=DOCUMENTED, send_time_ms=0))
        self.tick()

    def next_ms(self):
        due = [one[3] for one in self.parked] + [lease.end_ms for lease in self.leases.values()]
        due += [one.due_ms for one in self.retries if one.due_ms > self.clock.now_ms]
        return min(due, default=None)

    def tick(self):
        """End leases and polls whose time is over; serve polls that something has come for."""
        now_ms = self.clock.now_ms
        for key in [key for key, lease in self.leases.items() if lease.end_ms <= now_ms]:
            del self.leases[key]
        parked, self.parked = self.parked, []
        for connection, header, command, due_ms in parked:
            found = self._lend(connection, command)
            if found is None and due_ms > now_ms:
                self.parked.append((connection, header, command, due_ms))
                continue
            topic = command.topics[0].topic
            ack = consume.FetchTopicMessageAck((consume.TopicMessages(topic, found or EMPTY),))
            connection.answer(encode_response(ack, header, dialect=DOCUMENTED, send_time_ms=0))

    def _plan(self, connection, command):
        for plan in self._plans:
            if isinstance(command, plan[0]) and plan[3] in (None, connection.broker):
                plan[2] -= 1
                if not plan[2]:
                    self._plans.remove(plan)
                return plan
        return None

    # --- handlers ------------------------------------------------------------------------------------------------

    def _add_connection(self, connection, command):
        if command.token != self.token:
            raise AuthenticationError("no")
        connection.app = command.app
        return session.AddConnectionAck("id", self.notification)

    def _fetch_cluster(self, connection, command):
        topics = []
        for name in command.topics:
            partitions = self.topics.get(name)
            if partitions is None:
                topics.append(metadata.ClusterTopic(name, code=TopicNotFoundError.status))
                continue
            groups = tuple(
                metadata.ClusterPartitionGroup(number, one.leader, (number,)) for number, one in enumerate(partitions)
            )
            topics.append(
                metadata.ClusterTopic(name, self.producer_policy, self.consumer_policy, self.topic_type, groups)
            )
        brokers = tuple(metadata.ClusterBroker(n, place.host, place.port) for n, place in self.brokers.items())
        return metadata.FetchClusterAck(tuple(topics), brokers)

    def _produce(self, connection, command):
        (wish,) = command.topics
        data = bytearray(wish.messages.joined())
        found = scan(data, 0, len(data), wish.messages.count)
        partition = self.topics[wish.topic][found.partition]
        if partition.leader != connection.broker:
            code = NotLeaderError.status
            return produce.ProduceMessageAck((produce.TopicProduceResults(wish.topic, code),))
        results, at = [], 0
        while at < len(data):
            fields, end = read_fields(data, at)
            attributes = decode_attributes(fields.attributes)
            uniq = attributes.get("UNIQ_ID")
            if uniq is not None and (connection.broker, uniq) in self.uniq:
                place = self.uniq[connection.broker, uniq]
            elif self._due(attributes) > self.clock.wall_ms():
                self.delayed.append((self._due(attributes), wish.topic, fields.body))
                place = found.partition, -1
            else:
                count = fields.flag if fields.system_code & 0x1000 else 1
                one = data[at:end]
                stamp(one, 0, 1, found.partition, partition.next_index, 1, self.clock.wall_ms())
                place = found.partition, partition.next_index
                partition.messages.append((partition.next_index, count, bytes(one)))
                partition.next_index += count
                if uniq is not None:
                    self.uniq[connection.broker, uniq] = place  # which no other broker knows
            is_known = qos_of_level(wish.qos_level, DOCUMENTED) in (Qos.FLUSH, Qos.WRITE)
            results.append(produce.ProduceResult(place[0], place[1] if is_known else -1, 0))
            at = end
        return produce.ProduceMessageAck((produce.TopicProduceResults(wish.topic, 0, tuple(results)),))

    def _due(self, attributes):
        said = attributes.get("DELIVER_AT", "0")
        return int(said) + (self.clock.wall_ms() if said.startswith("+") else 0)

    def _lend(self, connection, command):
        (wish,) = command.topics
        again = [
            one
            for one in self.retries
            if (one.topic, one.app) == (wish.topic, command.app)
            and one.due_ms <= self.clock.now_ms
            and one.connection is None
        ]
        if again:
            for one in again:
                one.connection = connection
            return MessageBlock(len(again), (b"".join(pack(one.message) for one in again),))
        for number, partition in enumerate(self.topics.get(wish.topic, ())):
            key = wish.topic, command.app, number
            index = self.acks.get(key, 0)
            if partition.leader != connection.broker or key in self.leases or index >= partition.next_index:
                continue
            found = partition.from_index(index, wish.count)
            fields, _ = read_fields(found[-1])
            size = fields.flag if fields.system_code & 0x1000 else 1
            lease_ms = command.ack_timeout_ms or self.consumer_policy.ack_timeout_ms
            self.leases[key] = Lease(connection, fields.index + size, self.clock.now_ms + lease_ms)
            return MessageBlock(len(found), (b"".join(found),))
        return None

    def _commit_ack(self, connection, command):
        topics = []
        for topic in command.topics:
            codes = [
                consume.PartitionCode(said.partition, self._ack(connection, topic.topic, command.app, said))
                for said in topic.partitions
            ]
            topics.append(consume.TopicCodes(topic.topic, tuple(codes)))
        return consume.CommitAckAck(tuple(topics))

    def _ack(self, connection, topic, app, said):
        key = topic, app, said.partition
        indexes = [one.index for one in said.acks]
        if said.partition == consume.RETRY_PARTITION:
            for one in said.acks:
                outcome = own.SettleOutcome.DONE if one.type == AckType.SUCCESS else own.SettleOutcome.RETRY
                code = self._settle_one(connection, topic, app, own.Settlement(said.partition, one.index, outcome))
                if code:
                    return code
            return 0
        lease = self.leases.get(key)
        is_run = indexes == list(range(indexes[0], indexes[0] + len(indexes)))
        if lease is None or lease.connection is not connection or not is_run or indexes[0] > self.acks.get(key, 0):
            return AckError.status
        self.retried += [(*key, one.index) for one in said.acks if one.type != AckType.SUCCESS]
        self._done(key, indexes)
        return 0

    def _done(self, key, indexes):
        done = self._settled.setdefault(key, set())
        done.update(indexes)
        at = self.acks.get(key, 0)
        while at in done:
            at += 1
        self.acks[key] = at
        if key in self.leases and at >= self.leases[key].next_index:
            del self.leases[key]

    def _settle(self, connection, command):
        topics = []
        for topic in command.topics:
            codes = [
                own.SettledCode(one.partition, one.index, self._settle_one(connection, topic.topic, command.app, one))
                for one in topic.settlements
            ]
            topics.append(own.TopicSettledCodes(topic.topic, tuple(codes)))
        return own.SettleAck(tuple(topics))

    def _settle_one(self, connection, topic, app, one):
        key, retry, attempt = (topic, app, one.partition), None, 1
        if one.partition == consume.RETRY_PARTITION:
            retry = next((r for r in self.retries if r.id == one.index and r.connection is connection), None)
            if retry is None:
                return AckError.status
            message, attempt = retry.message, retry.attempt
        else:
            lease = self.leases.get(key)
            if lease is None or lease.connection is not connection or one.index >= lease.next_index:
                return AckError.status
            message = self._message(topic, one.partition, one.index)
        codes = self.refusals.get(message.body)
        if codes:
            return codes.pop(0)
        if retry is not None:
            self.retries.remove(retry)
        else:
            self._done(key, [one.index])
        if one.outcome == own.SettleOutcome.RETRY:
            self.retried.append((*key, one.index))
            after_ms = self.retry_ms if one.after_ms == own.BY_POLICY else one.after_ms
            number = len(self.retried)
            place = {"LAKEMQ_PARTITION": str(one.partition), "LAKEMQ_INDEX": str(one.index)}
            attributes = place | dict(message.attributes) | {"LAKEMQ_ATTEMPT": str(attempt + 1)}
            again = replace(message, attributes=attributes, partition=consume.RETRY_PARTITION, index=number)
            self.retries.append(Retry(number, topic, app, again, attempt + 1, self.clock.now_ms + after_ms))
        elif one.outcome == own.SettleOutcome.DEAD_LETTER:
            self.dead.append((message.body, one.reason, attempt))
        return 0

    def _message(self, topic, partition, index):
        for first, count, data in self.topics[topic][partition].messages:
            if first <= index < first + count:
                try:
                    message = unpack(data)
                except LakeMQError as error:  # a broker does not look inside: it refers to what is stored
                    return Message(body=str(error).encode())
                return message.messages()[index - first] if isinstance(message, BatchMessage) else message
        raise AssertionError(f"{topic}/{partition}/{index} is not stored")

    def _set_filter(self, connection, command):
        self.filters[command.topic, command.app] = command.filter
        return own.SetFilterAck()

    def _commit_index(self, connection, command):
        for topic in command.topics:
            for one in topic.partitions:
                self.acks[topic.topic, command.app, one.partition] = one.index
        return consume.CommitAckIndexAck(
            tuple(
                consume.TopicCodes(t.topic, tuple(consume.PartitionCode(p.partition, 0) for p in t.partitions))
                for t in command.topics
            )
        )

    def _fetch_partition(self, connection, command):
        topics = []
        for topic in command.topics:
            found = []
            for one in topic.partitions:
                partition = self.topics[topic.topic][one.partition]
                if one.index < partition.first_index:
                    found.append(consume.PartitionMessages(one.partition, code=93))
                    continue
                messages = partition.from_index(one.index, one.count)
                block = MessageBlock(len(messages), (b"".join(messages),)) if messages else EMPTY
                found.append(consume.PartitionMessages(one.partition, block))
            topics.append(consume.TopicPartitionMessages(topic.topic, tuple(found)))
        return consume.FetchPartitionMessageAck(tuple(topics))

    def _fetch_range(self, connection, command):
        topics = []
        for topic in command.topics:
            found = []
            for one in topic.partitions:
                partition = self.topics[topic.topic][one.partition]
                at = next(
                    (first for first, _, data in partition.messages if _stored_at(data) >= one.time_ms),
                    partition.next_index,
                )
                ack = self.acks.get((topic.topic, command.app, one.partition), 0)
                found.append(own.PartitionRange(one.partition, ack, partition.first_index, partition.next_index, at))
            topics.append(own.TopicRanges(topic.topic, tuple(found)))
        return own.FetchRangeAck(tuple(topics))

    def _extend(self, connection, command):
        (topic,) = command.topics
        codes = []
        for partition in topic.partitions:
            if partition == consume.RETRY_PARTITION:
                codes.append(consume.PartitionCode(partition, 0))
                continue
            lease = self.leases.get((topic.topic, command.app, partition))
            if lease is None or lease.connection is not connection:
                codes.append(consume.PartitionCode(partition, AckError.status))
                continue
            lease.end_ms = self.clock.now_ms + (command.ack_timeout_ms or self.consumer_policy.ack_timeout_ms)
            codes.append(consume.PartitionCode(partition, 0))
        return own.ExtendLeaseAck((consume.TopicCodes(topic.topic, tuple(codes)),))


def _is_silent(command):
    return qos_of_level(command.topics[0].qos_level, DOCUMENTED) is Qos.NO


def _stored_at(data):
    fields, _ = read_fields(data)
    return fields.send_time_ms + fields.store_time_ms
