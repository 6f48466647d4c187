"""Which functions may be handlers: a coroutine is never an ack, and a plain function does not hold up an event loop."""

import asyncio
import functools
import threading

import pytest

import lakemq
from client.fake_broker import FakeCluster
from client.fake_server import FakeServer
from client.fix_client import fake_async_client, fake_client
from client.test_handlers import run_in_thread, until
from lakemq.client.errors import HandlerError


@pytest.fixture
def cluster():
    return FakeCluster(partitions=1)


@pytest.fixture
def server():
    with FakeServer(partitions=1) as server:
        yield server


async def a_coroutine(message):
    pass


async def an_async_generator(message):
    yield


def a_generator(message):
    yield


class AsyncCallable:
    async def __call__(self, message):
        pass


@pytest.mark.parametrize(
    "function",
    [a_coroutine, an_async_generator, a_generator, AsyncCallable(), functools.partial(a_coroutine)],
    ids=["async def", "async generator", "generator", "callable object", "partial"],
)
def test_the_blocking_client_refuses_what_it_could_not_run(cluster, function):
    with fake_client(cluster) as mq, pytest.raises(HandlerError) as raised:
        mq.handler("orders")(function)
    assert isinstance(raised.value, TypeError)
    assert isinstance(raised.value, lakemq.LakeMQError)
    assert ("yield" if "generator" in str(raised.value) else "lakemq.aio") in raised.value.fix


@pytest.mark.parametrize("function", [an_async_generator, a_generator, "no function"])
def test_the_asyncio_client_refuses_what_nobody_can_run(cluster, function):
    with pytest.raises(HandlerError):
        fake_async_client(cluster).handler("orders")(function)


def test_a_check_of_transactions_that_nobody_would_await_is_refused(cluster):
    async def check(transaction_id):
        return "commit"

    with fake_client(cluster) as mq, pytest.raises(HandlerError):
        mq.on_transaction_check("orders", check)


@pytest.mark.parametrize(
    "result", [lambda: a_coroutine(None), lambda: a_generator(None)], ids=["coroutine", "generator"]
)
def test_a_coroutine_that_a_function_returns_is_no_ack(server, result, caplog):
    with lakemq.connect(server.url, app="shop") as mq:
        mq.handler("orders", group="h", local_retries=0)(lambda message: result())
        mq.send("orders", b"x", partition=0)
        thread = run_in_thread(mq)
        assert until(lambda: server.cluster.retried)
        mq.stop()
        thread.join(10)
    assert len(server.cluster.retried) == 1
    assert "was not run" in caplog.text


def aio_run(server, function, is_over, **options):
    """An asyncio client over real sockets, whose handler is that function."""

    async def work():
        async with lakemq.aio.connect(server.url, app="shop") as mq:
            mq.handler("orders", group="h", **options)(function)
            running = asyncio.create_task(mq.run())
            async with asyncio.timeout(10):
                while not is_over():
                    await asyncio.sleep(0.005)
            mq.stop()
            await running

    asyncio.run(work())


def test_a_plain_function_of_the_asyncio_client_runs_in_a_thread_and_is_acked(server):
    threads, loop_was_free = [], threading.Event()

    def handle(message):
        threads.append(threading.current_thread())
        assert loop_was_free.wait(10)  # set on the loop: it would be held up if this ran there

    async def work():
        async with lakemq.aio.connect(server.url, app="shop") as mq:
            mq.handler("orders", group="h")(handle)
            await mq.send("orders", b"x", partition=0)
            running = asyncio.create_task(mq.run())
            async with asyncio.timeout(10):
                while not threads:
                    await asyncio.sleep(0.005)
                loop_was_free.set()
                while not server.cluster.acks:
                    await asyncio.sleep(0.005)
            mq.stop()
            await running

    asyncio.run(work())
    assert len(threads) == 1
    assert threads[0] is not threading.main_thread()
    assert server.cluster.acks == {("orders", "shop.h", 0): 1}
    assert server.cluster.retried == []


def test_what_a_plain_function_raises_on_the_asyncio_client_is_a_failure(server):
    server.cluster.retry_ms = 10
    attempts = []

    def handle(message):
        attempts.append(message.attempt)
        if message.attempt == 1:
            raise ValueError("no")

    with lakemq.connect(server.url, app="shop") as mq:
        mq.send("orders", b"x", partition=0)
    aio_run(server, handle, lambda: 2 in attempts and not server.cluster.retries, local_retries=1)
    assert attempts == [1, 1, 2]


def test_no_more_threads_than_the_concurrency_asks_for(server):
    lock, working, most, done = threading.Lock(), set(), [], []
    both = threading.Barrier(2)

    def handle(message):
        with lock:
            working.add(message.offset)
            most.append(len(working))
        both.wait(10)  # two at a time: a third would wait for ever
        with lock:
            working.discard(message.offset)
            done.append(message.offset)

    with lakemq.connect(server.url, app="shop") as mq:
        for _ in range(8):
            mq.send("orders", b"x", partition=0)
    aio_run(server, handle, lambda: len(done) == 8, concurrency=2, ordered_by_key=False)
    assert max(most) == 2


def test_a_coroutine_that_a_plain_function_returns_is_awaited_by_the_asyncio_client(server):
    seen = []

    async def work_on(message):
        await asyncio.sleep(0)
        seen.append(message.body)

    with lakemq.connect(server.url, app="shop") as mq:
        mq.send("orders", b"x", partition=0)
    aio_run(server, lambda message: work_on(message), lambda: bool(server.cluster.acks))
    assert seen == [b"x"]
