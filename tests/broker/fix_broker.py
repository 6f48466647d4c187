"""A real broker core over a simulated disk and a clock that stands still, and peers that speak either dialect to it."""

import errno
from random import Random
from typing import Any, NamedTuple

from lakemq.broker.config import BrokerConfig
from lakemq.broker.limits import BrokerLimits
from lakemq.embedded import Engine
from lakemq.envelope import pack, unpack_all
from lakemq.message import BatchItem, BatchMessage, Message, Qos
from lakemq.storage.config import StorageConfig
from lakemq.testing.clock import SimClock
from lakemq.testing.disk import SimDisk
from lakemq.wire.commands import decode_response, encode_request
from lakemq.wire.consume import (
    CommitAck,
    CommitAckIndex,
    FetchIndex,
    FetchPartitionMessage,
    FetchTopicMessage,
    MessageAck,
    PartitionAcks,
    PartitionFetch,
    PartitionIndex,
    TopicAcks,
    TopicFetch,
    TopicIndexes,
    TopicPartitionFetch,
    TopicPartitions,
)
from lakemq.wire.dialect import Dialect, Form, level_of_qos
from lakemq.wire.frame import FrameDecoder
from lakemq.wire.messages import MessageBlock
from lakemq.wire.own import ExtendLease
from lakemq.wire.produce import ProduceMessage, TopicProduce
from lakemq.wire.session import AddConnection, AddConsumer

DOCUMENTED, JOYQUEUE = Dialect.DOCUMENTED, Dialect.JOYQUEUE
VERSIONS = {DOCUMENTED: 2, JOYQUEUE: 4}
TOKEN = "a token of shop"
EIO = OSError(errno.EIO, "planned")
FULL = OSError(errno.ENOSPC, "planned")

SMALL = StorageConfig(segment_bytes=1 << 20, record_bytes_max=512 << 10, unsynced_bytes_max=768 << 10)
TINY = StorageConfig(
    segment_bytes=16 << 10, record_bytes_max=8 << 10, checkpoint_bytes=8 << 10, unsynced_bytes_max=64 << 10
)
NEVER = 1 << 40


class Answer(NamedTuple):
    """One response, decoded; `body` is None for a header alone."""

    status: int
    error: str
    body: Any
    request_id: int
    type: int


class BrokerLife:
    """A broker through its lives, on one disk. Strict unless told otherwise, with whatever `ask` made."""

    def __init__(self, storage=SMALL, limits_of=None, **settings):
        self.disk = SimDisk()
        self.clock = SimClock()
        self.config = BrokerConfig(limits=BrokerLimits(**limits_of or {}), **settings)
        self.storage = storage
        self.start()

    def start(self):
        self.engine = Engine(self.disk, self.clock, self.config, self.storage)

    # --- lives -------------------------------------------------------------------------------------------------

    def restart(self):
        self.engine.close()
        self.start()

    def kill(self):
        self.disk.lose_process()
        self.start()

    def lose_power(self, seed=0, mode="nothing"):
        self.disk.lose_power(Random(seed), mode=mode)
        self.start()

    # --- time --------------------------------------------------------------------------------------------------

    def settle(self):
        self.engine.settle()

    def pass_ms(self, spent_ms):
        """So much later, with all done that is due by then."""
        self.clock.pass_ms(spent_ms)
        self.engine.tick()
        self.engine.settle()

    def sync(self):
        """All that is written is durable, also what nobody waits for."""
        self.pass_ms(self.config.lazy_sync_ms)
        assert self.journal.unsynced_bytes == 0

    # --- asking ------------------------------------------------------------------------------------------------

    def ask(self, action, **arguments):
        return self.engine.ask(action, **arguments)

    def peer(self, app="shop", dialect=DOCUMENTED, **details):
        return Peer(self, app, dialect, **details)

    @property
    def broker(self):
        return self.engine.broker

    @property
    def journal(self):
        return self.engine.group.journal

    @property
    def capped(self):
        return self.broker.metrics.capped

    def topic_number(self, topic):
        return self.broker.ledger.metadata.topics[topic].number

    def stored(self, topic="orders", partition=0):
        """Bodies of all that may be read, straight from the store."""
        number = self.topic_number(topic)
        group = self.engine.group
        first, end = group.first_index(number, partition), group.visible_index(number, partition)
        if first == end:
            return []
        slices = group.read(number, partition, first, end - first, 1 << 30)
        return [body for one in slices for body in bodies_in(bytes(one.messages))]

    def appended(self, topic="orders"):
        """How many messages of a topic were given an index, visible or not."""
        known = self.broker.ledger.metadata.topics[topic]
        return sum(self.engine.group.next_index(known.number, one) for one in range(known.partition_count))

    def ack_index(self, topic="orders", app="shop", partition=0):
        subscription = self.broker.ledger.metadata.subscription(topic, app)
        return self.broker.ledger.state.acks.get(subscription.number, partition)

    def facts(self, engine=None):
        """All that a refused request must leave as it was: metadata, ack indexes, how far each partition has come."""
        engine = engine or self.engine
        group, state = engine.group, engine.broker.ledger.state
        kept = {one.number for one in state.metadata.subscriptions.values()}
        return (
            state.metadata,
            sorted(row for row in state.acks.rows() if row.ack_index and row.subscription in kept),
            state.uniq_ids.pack(),
            *(part.pack(kept) for part in (state.retries, state.dead_letters, state.setbacks)),
            {key: group.next_index(*key) for key in group.partitions()},
        )

    def facts_on_disk(self):
        """The same, as a start after a kill would find it."""
        return self.facts(Engine(self.disk.clone(), self.clock, self.config, self.storage))


def make_broker(*, partitions=2, topics=("orders",), app="shop", start="earliest", **details):
    """A strict broker with an app that may send to and receive from some topics."""
    life = BrokerLife(**details)
    life.ask("create_app", name=app)
    life.ask("add_token", name=app, token_id="first", token=TOKEN)
    for topic in topics:
        life.ask("create_topic", name=topic, partitions=partitions)
        life.ask("subscribe", topic=topic, app=app, producer={}, consumer={}, start=start)
    return life


class Peer:
    """One connection: sends commands, gives their answers back."""

    def __init__(self, life, app="shop", dialect=DOCUMENTED, *, host="127.0.0.1", introduces=True, **introduction):
        self.life = life
        self.app = app
        self.dialect = dialect
        self.form = Form(dialect, VERSIONS[dialect])
        self.pipe = life.engine.connect(host)
        self._decoder = FrameDecoder()
        self._request_id = 0
        self._answers = {}
        self.stray = []  # ids of answers in the order they came
        self.says_add_producer = True
        if introduces:
            answer = self.introduce(**introduction)
            assert answer.status == 0, answer

    @property
    def is_closed(self):
        return self.pipe.is_closed

    @property
    def connection(self):
        return self.pipe.session

    # --- any command -------------------------------------------------------------------------------------------

    def frame(self, command, qos_bits=1):
        self._request_id += 1
        buffers = encode_request(
            command, form=self.form, request_id=self._request_id, send_time_ms=7, qos_bits=qos_bits
        )
        return b"".join(buffers)

    def send(self, command, qos_bits=1):
        """Hand a request in, and no more: its id."""
        self.pipe.feed(self.frame(command, qos_bits))
        return self._request_id

    def send_all(self, *commands, qos_bits=1):
        """Several requests that arrive in one piece: their ids."""
        frames = [self.frame(command, qos_bits) for command in commands]
        self.pipe.feed(b"".join(frames))
        return list(range(self._request_id - len(frames) + 1, self._request_id + 1))

    def received(self, request_id):
        """The answer to a request, if there is one by now."""
        for frame in self._decoder.feed(self.pipe.take()):
            header, body = decode_response(frame, self.dialect)
            assert header.is_response
            assert header.request_id not in self._answers, "answered twice"
            self._answers[header.request_id] = Answer(header.status, header.error, body, header.request_id, header.type)
            self.stray.append(header.request_id)
        return self._answers.get(request_id)

    def ask(self, command, qos_bits=1):
        """A request and its answer, which must not have to wait."""
        request_id = self.send(command, qos_bits)
        self.life.settle()
        answer = self.received(request_id)
        assert answer is not None, f"no answer to {command}"
        return answer

    # --- some commands, shorter ---------------------------------------------------------------------------------

    def introduce(self, app=None, token=TOKEN, version="lakemq-test", **details):
        return self.ask(AddConnection(app=app or self.app, token=token, version=version, **details))

    def consumes(self, *topics, app=None):
        answer = self.ask(AddConsumer(topics or ("orders",), app or self.app))
        assert answer.status == 0, answer
        return self

    def produce(self, *bodies, qos=Qos.FLUSH, header_bits=None, **details):
        """Send to one topic: code and results of it."""
        answer = self.ask(self.produce_command(*bodies, qos=qos, **details), self._bits(header_bits))
        if answer.body is None:
            return answer.status, ()
        (entry,) = answer.body.topics
        return entry.code, entry.results

    def produce_command(self, *bodies, app=None, **details):
        entry = self.produce_entry(*bodies, **details)
        self._will_send(entry.topic, app or self.app)
        return ProduceMessage((entry,), app or self.app)

    def _will_send(self, topic, app):
        """As if it had sent ADD_PRODUCER long ago."""
        if self.says_add_producer and self.connection is not None and self.connection.app:
            self.connection.producers.setdefault((self.connection.full_topic(topic), app), "p")

    def produce_entry(
        self, *bodies, topic="orders", partition=0, qos=Qos.FLUSH, timeout_ms=0, tx_id="", block=None, **details
    ):
        self._will_send(topic, self.app)
        level = qos if isinstance(qos, int) else level_of_qos(qos, self.dialect)
        made = block or block_of(*bodies, partition=partition, **details)
        return TopicProduce(topic, tx_id, timeout_ms, level, made)

    def _bits(self, header_bits):
        return 1 if header_bits is None else header_bits

    def fetch_command(self, *topics, count=0, lease_ms=0, wait_ms=0, app=None):
        wishes = tuple(TopicFetch(topic, count) for topic in topics or ("orders",))
        return FetchTopicMessage(wishes, app or self.app, lease_ms, wait_ms)

    def fetch(self, *topics, **details):
        """The bodies lent, or the error's code."""
        return self.fetched(self.ask(self.fetch_command(*topics, **details)))

    def fetched(self, answer):
        assert answer is not None, "not answered yet"
        (entry,) = answer.body.topics
        code = answer.status or entry.code
        return code or bodies_in(bytes(stored_form(entry.messages)))

    def messages(self, answer):
        """What an answer to FETCH_TOPIC_MESSAGE lends, whole."""
        (entry,) = answer.body.topics
        return list(unpack_all(bytes(stored_form(entry.messages))))

    def read(self, partition=0, index=-1, count=100, topic="orders", app=None):
        """FETCH_PARTITION_MESSAGE: bodies or the code."""
        command = FetchPartitionMessage(
            (TopicPartitionFetch(topic, (PartitionFetch(partition, count, index),)),), app or self.app
        )
        answer = self.ask(command)
        if answer.body is None:
            return answer.status
        one = answer.body.topics[0].partitions[0]
        return one.code or bodies_in(bytes(stored_form(one.messages)))

    def ack_command(self, indexes, partition=0, topic="orders", kind=0, app=None):
        acks = tuple(MessageAck(partition, index, kind) for index in indexes)
        return CommitAck((TopicAcks(topic, (PartitionAcks(partition, acks),)),), app or self.app)

    def ack(self, indexes, **details):
        """The code."""
        answer = self.ask(self.ack_command(indexes, **details))
        return answer.status or answer.body.topics[0].partitions[0].code

    def seek(self, index, partition=0, topic="orders", app=None):
        command = CommitAckIndex((TopicIndexes(topic, (PartitionIndex(partition, index),)),), app or self.app)
        answer = self.ask(command)
        return answer.status or answer.body.topics[0].partitions[0].code

    def stand(self, partition=0, topic="orders", app=None):
        """FETCH_INDEX: the next index, or the code as a negative number."""
        answer = self.ask(FetchIndex((TopicPartitions(topic, (partition,)),), app or self.app))
        found = answer.body.topics[0].partitions[0]
        return -found.code if found.code else found.index

    def extend(self, partition=0, lease_ms=0, topic="orders", app=None):
        answer = self.ask(ExtendLease((TopicPartitions(topic, (partition,)),), app or self.app, lease_ms))
        return answer.body.topics[0].partitions[0].code


def message_of(body, partition=0, **details):
    """A message, or a batch of a tuple of bodies."""
    if isinstance(body, tuple):
        items = tuple(BatchItem(body=each) for each in body)
        return BatchMessage(items=items, partition=partition, send_time_ms=5, **details)
    return Message(body=body, partition=partition, send_time_ms=5, **details)


def block_of(*bodies, partition=0, **details):
    """Messages as a request carries them; a tuple of bodies is a batch."""
    parts = [pack(message_of(body, partition, **details)) for body in bodies]
    return MessageBlock(len(parts), (bytearray(b"".join(parts)),) if parts else ())


def stored_form(block):
    return block.in_dialect(DOCUMENTED).joined()


def bodies_in(data):
    """Bodies of stored messages, those of batches one by one."""
    found = []
    for value in unpack_all(data):
        found += [item.body for item in value.items] if isinstance(value, BatchMessage) else [value.body]
    return found
