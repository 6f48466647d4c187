"""Retries, dead letters, delays and filters of the client with the real broker in memory, whose clock is moved."""

import asyncio

import pytest

from lakemq import Message, Settle
from lakemq.errors import BadParameterError
from lakemq.testing.broker import TestBroker


@pytest.fixture
def broker():
    with TestBroker() as broker:
        yield broker


@pytest.fixture
def mq(broker):
    with broker.connect(app="shop") as client:
        yield client


def bodies(messages):
    return [message.body for message in messages]


def test_each_message_of_a_batch_is_settled_by_itself(mq):
    for n in range(5):
        mq.send_soon("orders", b"%d" % n, partition=0)
    mq.flush()
    seen = []
    with mq.consumer("orders", group="g", auto_ack=False) as consumer:
        while len(seen) < 7:
            for message in consumer.receive(timeout="1m"):
                seen.append((message.body, message.attempt, message.partition, message.offset))
                if message.attempt > 1 or message.body in (b"0", b"4"):
                    message.ack()
                elif message.body == b"1":
                    message.retry(after="10s")
                elif message.body == b"2":
                    message.dead_letter("no such customer")
                else:
                    message.retry(reason="busy")
        assert consumer.receive(timeout="1m") == []
        assert consumer.lost == 0
    assert seen == [*((b"%d" % n, 1, 0, n) for n in range(5)), (b"3", 2, 0, 3), (b"1", 2, 0, 1)]


def test_a_delayed_message_is_there_when_it_is_due(broker, mq):
    assert mq.send("orders", b"later", delay="1h").offset is None
    mq.send("orders", b"now")
    with mq.consumer("orders", group="g") as consumer:
        assert bodies(consumer.receive(timeout="10m")) == [b"now"]
        assert bodies(consumer.receive(timeout="10m")) == []
        broker.advance("1h")
        assert bodies(consumer.receive(timeout="1m")) == [b"later"]


def test_a_group_gets_what_its_filter_wants(mq):
    for n in range(6):
        mq.send("orders", b"%d" % n, partition=0, tags=[("paid", "late", "lost")[n % 3]], headers={"total": str(n)})
    with mq.consumer("orders", group="tags", tags="paid | late") as consumer:
        assert bodies(consumer.receive()) == [b"0", b"1", b"3", b"4"]
    with mq.consumer("orders", group="sql", filter="total >= 2 AND TAGS <> 'lost'") as consumer:
        assert bodies(consumer.receive()) == [b"3", b"4"]
    with mq.consumer("orders", group="bad", filter="total >") as consumer, pytest.raises(BadParameterError) as caught:
        consumer.receive()
    assert "column 8" in str(caught.value)


def test_one_of_several_tags_is_enough(mq):
    mq.send("orders", b"both", partition=0, tags=["new", "paid"])
    mq.send("orders", b"one", partition=0, tags=["paid"])
    mq.send_many("orders", [Message(b"batch %d" % n, partition=0, tags=["new", "paid"]) for n in range(2)])
    with mq.consumer("orders", group="g", tags="paid") as consumer:
        assert bodies(consumer.receive()) == [b"both", b"one", b"batch 0", b"batch 1"]


def test_a_handler_gives_up_on_the_spot_then_at_the_broker_and_at_last(broker):
    calls = []

    async def work():
        async with broker.aio_connect(app="shop") as mq:

            @mq.handler("orders", group="h", local_retries=1)
            async def handle(message):
                calls.append(message.attempt)
                if message.attempt < 3:
                    raise ValueError("no")
                mq.stop()
                return Settle.dead("enough")

            await mq.send("orders", b"x", partition=0)

            async def move():
                while not calls or calls[-1] < 3:
                    broker.advance("1s")
                    await asyncio.sleep(0.01)

            await asyncio.wait_for(asyncio.gather(mq.run(), move()), 30)

    asyncio.run(work())
    assert calls == [1, 1, 2, 2, 3]
