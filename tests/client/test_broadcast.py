"""Broadcast: on a topic of that type, or when asked for, every consumer gets every message."""

import asyncio

import pytest

from lakemq.errors import BadParameterError
from lakemq.testing.broker import TestBroker


@pytest.fixture
def broker():
    with TestBroker() as one:
        one.engine.ask("create_topic", name="news", partitions=2, type="broadcast")
        yield one


def opened(consumer):
    """A consumer that stands at the end of the topic: what is sent from now on it gets."""
    assert consumer.receive(timeout="50ms") == []
    return consumer


def bodies(consumer, count):
    found = []
    while len(found) < count:
        batch = consumer.receive(100)
        assert batch, found
        found += [one.body for one in batch]
    return sorted(found)


def test_every_consumer_of_a_broadcast_topic_gets_every_message(broker):
    with broker.connect(app="shop") as mq:
        mq.send("news", b"before")
        with mq.consumer("news", group="g") as one, mq.consumer("news", group="g") as other:
            opened(one)
            opened(other)
            for number in range(6):
                mq.send("news", b"%d" % number)
            expected = [b"%d" % number for number in range(6)]
            assert (bodies(one, 6), bodies(other, 6)) == (expected, expected)
            assert one.receive(timeout="50ms") == other.receive(timeout="50ms") == []


def test_there_is_nothing_to_ack_or_to_try_again(broker):
    with broker.connect(app="shop") as mq, mq.consumer("news", auto_ack=False) as consumer:
        opened(consumer)
        mq.send("news", b"x")
        (message,) = consumer.receive()
        message.retry()
        message.ack()
        assert message.is_settled
        assert consumer.receive(timeout="50ms") == []


def test_a_loop_that_is_left_early_gives_back_the_rest(broker):
    with broker.connect(app="shop") as mq, mq.consumer("news") as consumer:
        opened(consumer)
        for number in range(3):
            mq.send("news", b"%d" % number, partition=0)
        for message in consumer:
            assert message.body == b"0"
            break
        assert bodies(consumer, 2) == [b"1", b"2"]


def test_who_asks_for_it_shares_the_messages_of_a_broadcast_topic(broker):
    with broker.connect(app="shop") as mq:
        mq.send_many("news", [b"%d" % number for number in range(10)]).raise_if_failed()
        with mq.consumer("news", group="g", broadcast=False) as consumer:
            assert len(bodies(consumer, 10)) == 10
        with mq.consumer("news", group="g", broadcast=False) as consumer:
            assert consumer.receive(timeout="50ms") == [], "they were acked"


def test_any_topic_may_be_received_as_broadcast(broker):
    with broker.connect(app="shop") as mq:
        mq.send("orders", b"before")
        with mq.consumer("orders", broadcast=True) as one, mq.consumer("orders", broadcast=True) as other:
            opened(one)
            opened(other)
            mq.send("orders", b"x")
            assert bodies(one, 1) == bodies(other, 1) == [b"x"]


def test_a_filter_is_refused_with_a_sentence(broker):
    with broker.connect(app="shop") as mq:
        with pytest.raises(BadParameterError, match="a broadcast consumer reads for itself"):
            mq.consumer("news", tags="paid", broadcast=True)
        with (
            mq.consumer("news", tags="paid") as consumer,
            pytest.raises(BadParameterError, match="news is a broadcast topic"),
        ):
            consumer.receive()


def test_the_same_with_asyncio(broker):
    async def main():
        async with broker.aio_connect(app="shop") as mq, mq.consumer("news") as one, mq.consumer("news") as other:
            assert (await one.receive(timeout="50ms"), await other.receive(timeout="50ms")) == ([], [])
            for number in range(2):
                await mq.send("news", b"%d" % number, partition=0)
            async for message in one:
                assert message.body == b"0"
                break
            assert [message.body for message in await one.receive()] == [b"1"]
            assert sorted(message.body for message in await other.receive()) == [b"0", b"1"]

    asyncio.run(main())
