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


# --- order -----------------------------------------------------------------------------------------------------------


def _ordered(broker, **policy):
    wanted = {"retry_first_ms": 1000, "retry_factor": 1, **policy}
    broker.ask("create_topic", name="flows", partitions=1, type="ordered")
    broker.ask("subscribe", topic="flows", app="shop.g", consumer=wanted, start="earliest")


def _handled(broker, consumer, count, take):
    """What was done, in order, where message 1 fails at its first attempt."""
    done, seen = [], []
    while len(set(done)) < count:
        for message in take(consumer):
            if message.is_lost:
                continue
            seen.append((message.body, message.attempt))
            if (message.body, message.attempt) == (b"1", 1):
                message.retry()
            else:
                done.append(message.body)
                message.ack()
        broker.advance("1s")
    return done, seen


@pytest.mark.parametrize("size", [1, 10])
@pytest.mark.parametrize("is_batch", [False, True], ids=["alone", "in a batch"])
def test_I10_behind_a_failure_nothing_of_an_ordered_topic_is_done(broker, mq, size, is_batch):
    _ordered(broker)
    bodies = [b"%d" % n for n in range(5)]
    if is_batch:
        mq.send_many("flows", [Message(body, key="c-7") for body in bodies]).raise_if_failed()
    for body in [] if is_batch else bodies:
        mq.send("flows", body, key="c-7")
    with mq.consumer("flows", group="g", auto_ack=False) as consumer:
        done, seen = _handled(broker, consumer, 5, lambda one: one.receive(size, timeout="10s"))
    again = [b"0"] if is_batch else []  # a batch comes whole
    assert done == [b"0", *again, b"1", b"2", b"3", b"4"]
    assert [body for body, _ in seen] == [b"0", b"1", *again, b"1", b"2", b"3", b"4"], "nothing behind it was begun"
    assert (b"1", 2) in seen


def test_I10_a_loop_passes_over_what_comes_again(broker, mq):
    _ordered(broker)
    for n in range(5):
        mq.send("flows", b"%d" % n, key="c-7")
    done = []
    with mq.consumer("flows", group="g") as consumer:
        for message in consumer:
            if message.body == b"1" and message.attempt == 1:
                message.retry()
                broker.advance("2s")
                continue
            done.append(message.body)
            if len(done) == 5:
                break
    assert done == [b"0", b"1", b"2", b"3", b"4"]


def test_I10_by_key_other_keys_go_on(broker, mq):
    _ordered(broker, is_concurrent=True, concurrent_prefetch_size=50)
    for n, key in enumerate("abababcc"):
        mq.send("flows", b"%d" % n, key=key)
    with mq.consumer("flows", group="g", auto_ack=False) as consumer:
        done, _ = _handled(broker, consumer, 8, lambda one: one.receive(10, timeout="10s"))
    by_key = {key: [body for body in done if "abababcc"[int(body)] == key] for key in "abc"}
    assert by_key == {"a": [b"0", b"2", b"4"], "b": [b"1", b"3", b"5"], "c": [b"6", b"7"]}
    assert done.index(b"4") < done.index(b"1"), "of another key"


# --- clocks that differ ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ahead_ms", [30_000, -30_000, 90 * 86_400_000, -90 * 86_400_000])
def test_F41_spans_are_counted_by_the_brokers_clock(broker, monkeypatch, ahead_ms):
    """Once a broker 30 s ahead delivered after 0.1 s what was to wait for 10 s."""
    with broker.connect(app="shop") as mq:
        wall_ms = mq._clock.wall_ms

        class Behind:
            monotonic_ms = mq._clock.monotonic_ms

            def wall_ms(self):
                return wall_ms() - ahead_ms

        mq._clock = mq._pump._clock = Behind()
        mq.send("orders", b"later", delay="10s")
        mq.send("orders", b"short", expire="10s")
        with mq.consumer("orders", group="g") as consumer:
            assert bodies(consumer.receive(timeout="9s")) == [b"short"]
            assert bodies(consumer.receive(timeout="9500ms")) == []
            assert bodies(consumer.receive(timeout="2s")) == [b"later"]
