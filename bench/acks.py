"""Acks out of order, in the core: parallel consumption of one partition, a million messages settled in any order.

    python bench/acks.py [--quick] [--json]

A broker in this process, its disk in memory. A consumer has many leases in hand, and acks all of their messages in a
shuffled order, a hundred to a request. Only the broker's part is timed, from the bytes of a request to those of its
answer, in CPU time. The baseline is the same number of acks in order.
"""

import gc
import random
import time
from collections.abc import Iterator

from lakemq.broker.config import BrokerConfig
from lakemq.embedded import Engine
from lakemq.envelope import pack
from lakemq.message import Message
from lakemq.storage.config import StorageConfig
from lakemq.testing.clock import SimClock
from lakemq.testing.disk import SimDisk
from lakemq.wire.commands import decode_response, encode_request
from lakemq.wire.consume import CommitAck, FetchTopicMessage, MessageAck, PartitionAcks, TopicAcks, TopicFetch
from lakemq.wire.dialect import Dialect, Form
from lakemq.wire.frame import FrameDecoder
from lakemq.wire.messages import MessageBlock
from lakemq.wire.produce import ProduceMessage, TopicProduce
from lakemq.wire.session import AddConnection, AddConsumer, AddProducer

from measure import Result, arguments, report

TOPIC, APP = "orders", "bench"
LEASES = 32
PER_LEASE = 1000
PER_REQUEST = 100


class Consumer:
    """One connection to the broker in this process."""

    def __init__(self) -> None:
        self._clock = SimClock()
        self.engine = Engine(
            SimDisk(), self._clock, BrokerConfig(creates_missing=True, partitions_default=1), StorageConfig()
        )
        self._pipe = self.engine.connect()
        self._decoder = FrameDecoder()
        self._number = 0
        self.ask(AddConnection(app=APP))
        self.ask(AddProducer((TOPIC,), APP))
        self.ask(AddConsumer((TOPIC,), APP))
        policy = {"is_concurrent": True, "concurrent_prefetch_size": LEASES, "batch_size": PER_LEASE}
        self.engine.ask("subscribe", topic=TOPIC, app=APP, consumer=policy)
        gc.collect()
        gc.freeze()  # as a broker does at its start

    def frame(self, command: object) -> bytes:
        self._number += 1
        parts = encode_request(command, form=Form(), request_id=self._number, send_time_ms=0, qos_bits=1)
        return b"".join(parts)

    def ask(self, command: object) -> object:
        self._pipe.feed(self.frame(command))
        self.engine.settle()
        (frame,) = self._decoder.feed(self._pipe.take())
        header, ack = decode_response(frame, Dialect.DOCUMENTED)
        assert not header.status, header.error
        return ack

    def fill(self, count: int) -> None:
        data = pack(Message(body=b"x" * 100, partition=0)) * PER_LEASE
        for _ in range(count // PER_LEASE):
            block = MessageBlock(PER_LEASE, (bytearray(data),))
            self.ask(ProduceMessage((TopicProduce(TOPIC, "", 0, 3, block),), APP))
            self._clock.pass_ms(1000)
            self.engine.tick()
            self.engine.settle()

    def lent(self) -> list[int]:
        """Messages of as many leases as there may be."""
        count = 0
        for _ in range(LEASES):
            ack = self.ask(FetchTopicMessage((TopicFetch(TOPIC, PER_LEASE),), APP, 600_000, 0))
            count += ack.topics[0].messages.count
        return list(range(self.settled, self.settled + count))

    @property
    def settled(self) -> int:
        number = self.engine.broker.ledger.metadata.subscription(TOPIC, APP).number
        return self.engine.broker.ledger.state.acks.get(number, 0)

    def settle(self, indexes: list[int]) -> float:
        """Seconds of CPU that acking these took."""
        frames = list(self._ack_frames(indexes))
        began = time.process_time()
        for frame in frames:
            self._pipe.feed(frame)
            self.engine.end_turn()
        spent = time.process_time() - began
        answers = self._decoder.feed(self._pipe.take())
        assert len(answers) == len(frames)
        for frame in answers:
            ack = decode_response(frame, Dialect.DOCUMENTED)[1]
            assert not ack.topics[0].partitions[0].code
        return spent

    def _ack_frames(self, indexes: list[int]) -> Iterator[bytes]:
        for at in range(0, len(indexes), PER_REQUEST):
            acks = tuple(MessageAck(0, index, 0) for index in indexes[at : at + PER_REQUEST])
            yield self.frame(CommitAck((TopicAcks(TOPIC, (PartitionAcks(0, acks),)),), APP))


def rate(count: int, *, is_shuffled: bool) -> float:
    """Acks a second."""
    chance = random.Random(7)
    consumer = Consumer()
    spent = 0.0
    for _ in range(count // (LEASES * PER_LEASE)):
        consumer.fill(LEASES * PER_LEASE)
        before = consumer.settled
        indexes = consumer.lent()
        if is_shuffled:
            chance.shuffle(indexes)
        spent += consumer.settle(indexes)
        assert consumer.settled == before + len(indexes), "all of them are settled"
    return consumer.settled / spent


def acks(is_quick: bool) -> list[Result]:
    """The figure, and its baseline."""
    count = 128_000 if is_quick else 1_024_000
    in_order = rate(min(count, 256_000), is_shuffled=False)
    value = rate(count, is_shuffled=True)
    name = f"{count:,} acks out of order, in the core"
    return [Result(name, value, "acks/s", in_order, value / in_order, "at least 100,000", value >= 100_000)]


if __name__ == "__main__":
    options = arguments(__doc__ or "")
    report(acks(options.quick), options.json)
