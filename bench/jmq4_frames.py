"""Requests of jmq4 as whole frames, by LakeMQ's own encoder: what the benchmarks send."""

import time

from lakemq.message import Qos
from lakemq.wire.commands import Command, encode_request
from lakemq.wire.consume import FetchPartitionMessage, PartitionFetch, TopicPartitionFetch
from lakemq.wire.dialect import Dialect, Form, level_of_qos
from lakemq.wire.messages import MessageBlock
from lakemq.wire.produce import ProduceMessage, TopicProduce

APP = "bench"


def request(command: Command, request_id: int = 0) -> bytes:
    """A whole frame; its QoS bits are the encoder's own, so that a produce request's qosLevel decides."""
    return b"".join(
        encode_request(command, form=Form(), request_id=request_id, send_time_ms=time.time_ns() // 1_000_000)
    )


def produce(messages: list[bytes], qos: Qos, topic: str) -> ProduceMessage:
    block = MessageBlock(len(messages), (b"".join(messages),))
    return ProduceMessage((TopicProduce(topic, "", 5000, level_of_qos(qos, Dialect.DOCUMENTED), block),), APP)


def fetch_partition(topic: str, partition: int, count: int, index: int, app: str = APP) -> FetchPartitionMessage:
    return FetchPartitionMessage((TopicPartitionFetch(topic, (PartitionFetch(partition, count, index),)),), app)
