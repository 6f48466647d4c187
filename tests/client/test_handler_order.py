"""Handlers keep order unless told otherwise: one at a time, or of one key one after the other."""

import asyncio
import random
import threading

import pytest

import lakemq
from client.fake_server import FakeServer
from client.test_handlers import run_in_thread, until
from lakemq.client.key_order import KeyOrder
from lakemq.testing.broker import TestBroker


@pytest.fixture
def server():
    with FakeServer(partitions=2) as server:
        yield server


def handle_all(server, count, function, kind, **options):
    """Feed `function` with what is stored, by threads or on a loop, until it was called so often."""
    calls, lock = [], threading.Lock()

    def noted(message):
        function(message)
        with lock:
            calls.append((message.key, int(message.body)))

    if kind == "threads":
        with lakemq.connect(server.url, app="shop") as mq:
            mq.handler("orders", group="h", **options)(noted)
            thread = run_in_thread(mq)
            assert until(lambda: len(calls) >= count)
            mq.stop()
            thread.join(10)
        return calls

    async def handle(message):
        for _ in range(random.randrange(4)):
            await asyncio.sleep(0)
        noted(message)

    async def work():
        async with lakemq.aio.connect(server.url, app="shop") as mq:
            mq.handler("orders", group="h", **options)(handle)
            running = asyncio.create_task(mq.run())
            async with asyncio.timeout(10):
                while len(calls) < count:
                    await asyncio.sleep(0.005)
            mq.stop()
            await running

    asyncio.run(work())
    return calls


def fill(server, keys):
    with lakemq.connect(server.url, app="shop") as mq:
        for nth, key in enumerate(keys):
            mq.send("orders", b"%d" % nth, key=key, partition=0)


both = pytest.mark.parametrize("kind", ["threads", "asyncio"])


@both
def test_without_a_word_messages_are_handled_in_order(server, kind):
    fill(server, [None] * 200)
    lock = threading.Lock()

    def handle(message):
        assert lock.acquire(blocking=False), "two at a time"
        lock.release()

    calls = handle_all(server, 200, handle, kind)
    assert [number for _, number in calls] == list(range(200))


@both
def test_several_at_a_time_keep_the_order_of_each_key(server, kind):
    keys = [f"k{nth % 7}" for nth in range(210)]
    fill(server, keys)
    busy, lock, most = set(), threading.Lock(), []

    def handle(message):
        with lock:
            assert message.key not in busy, "two of one key at a time"
            busy.add(message.key)
            most.append(len(busy))
        threading.Event().wait(random.random() / 1000)
        with lock:
            busy.discard(message.key)

    calls = handle_all(server, 210, handle, kind, concurrency=4)
    for key in set(keys):
        numbers = [number for one, number in calls if one == key]
        assert numbers == sorted(numbers)
    assert max(most) <= 4
    if kind == "threads":
        assert max(most) > 1


def test_one_slow_key_does_not_hold_up_the_others(server):
    fill(server, ["slow", "slow", "a", "slow", "b", "c", "a"])
    others_done = threading.Event()
    done = []

    def handle(message):
        if message.key == "slow":
            assert others_done.wait(10)
        done.append(message.key)
        if sorted(one for one in done if one != "slow") == ["a", "a", "b", "c"]:
            others_done.set()

    calls = handle_all(server, 7, handle, "threads", concurrency=2)
    assert [number for key, number in calls if key == "slow"] == [0, 1, 3]


def test_without_a_key_the_order_is_that_of_the_partition(server):
    fill(server, [None] * 100)
    calls = handle_all(server, 100, lambda message: None, "threads", concurrency=4)
    assert [number for _, number in calls] == list(range(100))


def test_who_gives_up_order_has_all_at_a_time(server):
    fill(server, ["k"] * 4)
    together = threading.Barrier(4)
    calls = handle_all(server, 4, lambda message: together.wait(10), "threads", concurrency=4, ordered_by_key=False)
    assert len(calls) == 4


class OfKey:
    """As much of a delivery as the order looks at."""

    def __init__(self, key, size=1):
        self.key = key
        self.partition = 0
        self._carried = type("Carried", (), {"body": b"x" * size})()


def test_what_waits_behind_a_key_is_bounded_by_number_and_by_bytes():
    order = KeyOrder(2, True, 1 << 20)
    added = 0
    while order.room:
        order.add(OfKey("hot"))
        added += 1
    assert added == 64
    first = order.begin()
    assert order.begin() is None, "the others are of the same key"
    order.done(first)
    assert order.room == 1
    large = KeyOrder(2, True, 1000)
    large.add(OfKey("a", 600))
    assert large.room
    large.add(OfKey("b", 600))
    assert large.room == 0
    large.done(large.begin())
    assert large.room
    assert KeyOrder(1, True, 1000).room == 1
    assert KeyOrder(8, False, 1000).room == 8


# Where the topic is ordered, with the real broker


def ordered_broker(**policy):
    broker = TestBroker()
    broker.connect(app="shop").close()  # which makes the app
    broker.ask("create_topic", name="orders", partitions=1, type="ordered")
    wanted = {"retry_first_ms": 100, "retry_factor": 1, **policy}
    broker.ask("subscribe", topic="orders", app="shop", producer={}, consumer=wanted, start="earliest")
    return broker


def run_until(mq, is_over):
    """The handlers of a client until that is so; time passes by itself while a client waits."""
    thread = run_in_thread(mq)
    assert until(is_over)
    mq.stop()
    thread.join(10)


@pytest.mark.parametrize("policy", [{}, {"is_concurrent": True, "concurrent_prefetch_size": 4}], ids=["one", "windows"])
@pytest.mark.parametrize("concurrency", [1, 4])
def test_in_an_ordered_topic_nothing_of_a_key_overtakes_one_that_failed(concurrency, policy):
    keys = ["a", "b", "a", "a", "b", "a"]
    with ordered_broker(**policy) as broker, broker.connect(app="shop") as mq:
        for nth, key in enumerate(keys):
            mq.send("orders", b"%d" % nth, key=key)
        failed, calls, lock = [], [], threading.Lock()

        @mq.handler("orders", concurrency=concurrency)
        def handle(message):
            number = int(message.body)
            with lock:
                if number == 2 and len(failed) < 3:
                    failed.append(message.attempt)
                    calls.append((message.key, number, "failed"))
                    raise ValueError("not yet")
                calls.append((message.key, number, "done"))

        run_until(mq, lambda: sum(place.lag for place in mq.lag("orders")) == 0)
    assert len(failed) == 3
    of_a = [(number, what) for key, number, what in calls if key == "a"]
    after = of_a[of_a.index((2, "done")) :]
    assert [number for number, _ in of_a[: of_a.index((2, "done"))] if number > 2] == []
    assert [number for number, _ in after] == [2, 3, 5]
    if concurrency == 1 and not policy:  # with windows order is by key: others go on meanwhile
        assert [number for _, number, what in calls if what == "done"] == [0, 1, 2, 3, 4, 5]


def test_in_an_ordered_topic_what_follows_a_dead_letter_comes_at_once():
    with ordered_broker(retry_times=2) as broker, broker.connect(app="shop") as mq:
        for nth in range(5):
            mq.send("orders", b"%d" % nth, key="a")
        calls = []

        @mq.handler("orders")
        def handle(message):
            calls.append(int(message.body))
            if message.body == b"1":
                raise ValueError("never")

        began_ms = broker.clock.monotonic_ms()
        run_until(mq, lambda: sum(place.lag for place in mq.lag("orders")) == 0)
        assert broker.clock.monotonic_ms() - began_ms < 60_000, "nobody waited for a lease to end"
    assert calls == [0, 1, 1, 1, 2, 3, 4], "two retries"


def test_in_an_ordered_topic_acks_behind_a_retry_have_no_effect():
    with ordered_broker() as broker, broker.connect(app="shop", watcher=False) as mq:
        for nth in range(5):
            mq.send("orders", b"%d" % nth, key="a")
        seen = []
        with mq.consumer("orders", auto_ack=False, ack_timeout="1m") as consumer:
            messages = consumer.receive(10)
            messages[0].ack()
            messages[1].retry()
            broker.advance("150ms")
            for message in messages[2:]:
                assert message.is_lost
                message.ack()
            broker.advance("150ms")
            while len(seen) < 4:
                again = consumer.receive(10)
                seen += [int(message.body) for message in again]
                for message in again:
                    message.ack()
    assert seen == [1, 2, 3, 4]


def test_in_an_ordered_topic_a_loop_goes_on_with_the_one_that_failed():
    with ordered_broker() as broker, broker.connect(app="shop", watcher=False) as mq:
        for nth in range(4):
            mq.send("orders", b"%d" % nth, key="a")
        seen = []
        with mq.consumer("orders", ack_timeout="1m") as consumer:
            for message in consumer:
                seen.append(int(message.body))
                if seen == [0, 1]:
                    message.retry(after="200ms")
                if len(seen) == 5:
                    consumer.stop()
    assert seen == [0, 1, 1, 2, 3]
