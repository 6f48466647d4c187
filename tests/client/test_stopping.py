"""The end of a run: nothing new is begun, signals are handled where nobody else does, and errors are told."""

import asyncio
import os
import signal
import threading

import pytest

import lakemq
from client.fake_server import FakeServer
from client.test_handlers import until
from lakemq.client.daemon_pool import DaemonPool
from lakemq.client.stopping import StopSign, signals
from lakemq.errors import NoPermissionError
from lakemq.wire.consume import FetchTopicMessage


@pytest.fixture
def server():
    with FakeServer(partitions=1) as server:
        yield server


def fill(server, count):
    with lakemq.connect(server.url, app="shop") as mq:
        for _ in range(count):
            mq.send("orders", b"x", partition=0)


@pytest.mark.parametrize("options", [{}, {"concurrency": 4}, {"concurrency": 4, "ordered_by_key": False}])
def test_stop_begins_nothing_new(server, options):
    fill(server, 50)
    begun_after, lock = [], threading.Lock()
    is_stopped = False
    with lakemq.connect(server.url, app="shop") as mq:

        @mq.handler("orders", group="h", **options)
        def handle(message):
            nonlocal is_stopped
            with lock:
                if is_stopped:
                    begun_after.append(message.offset)
                else:
                    mq.stop()
                    is_stopped = True

        mq.run()
    # Those that had begun to run when stop was called, one per thread, may have come to the lock after it.
    assert len(begun_after) <= options.get("concurrency", 1) - 1
    assert server.cluster.acks[("orders", "shop.h", 0)] == 1 + len(begun_after)


def test_stop_begins_nothing_new_on_a_loop(server):
    fill(server, 20)
    calls = []

    async def work():
        async with lakemq.aio.connect(server.url, app="shop") as mq:

            @mq.handler("orders", group="h", concurrency=4, ordered_by_key=False)
            async def handle(message):
                calls.append(message.offset)
                mq.stop()
                await asyncio.sleep(0)

            await mq.run()

    asyncio.run(work())
    assert calls == [0]
    assert server.cluster.acks[("orders", "shop.h", 0)] == 1


def test_stop_may_come_from_a_thread_that_runs_a_plain_function(server):
    fill(server, 20)
    calls = []

    async def work():
        async with lakemq.aio.connect(server.url, app="shop") as mq:

            @mq.handler("orders", group="h")
            def handle(message):
                calls.append(message.offset)
                message.ack()
                mq.stop()

            await mq.run()

    asyncio.run(work())
    assert calls == [0]
    assert server.cluster.acks[("orders", "shop.h", 0)] == 1


def test_an_error_that_ends_the_consumer_is_told_though_nobody_waits_for_messages(server):
    fill(server, 1)
    with lakemq.connect(server.url, app="shop") as mq:

        @mq.handler("orders", group="h")
        def handle(message):
            server.cluster.fail(FetchTopicMessage, NoPermissionError("no more"), times=99)
            assert until(lambda: any(one._core.is_stopped for one in mq._pump.sources))

        with pytest.raises(NoPermissionError):
            mq.run()


@pytest.fixture
def usual_signals():
    """As a program at a terminal has them: what runs in the background may have been started with Ctrl-C ignored."""
    usual = {signal.SIGTERM: signal.SIG_DFL, signal.SIGINT: signal.default_int_handler}
    before = {number: signal.signal(number, handler) for number, handler in usual.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_signals_are_handled_in_the_main_thread_and_given_back(usual_signals):
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    sign = StopSign()
    with signals(sign):
        os.kill(os.getpid(), signal.SIGTERM)
        sign.wait()
        assert not sign.is_hurried
        os.kill(os.getpid(), signal.SIGTERM)
        sign.rest(10)
        assert not sign.is_hurried, "only Ctrl-C hurries: a supervisor may say it twice"
        os.kill(os.getpid(), signal.SIGINT)
        assert until(lambda: sign.is_hurried)
    assert {number: signal.getsignal(number) for number in before} == before


def test_a_program_that_handles_a_signal_itself_goes_on_to_do_so():
    seen = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))
    try:
        sign = StopSign()
        with signals(sign):
            os.kill(os.getpid(), signal.SIGTERM)
            assert until(lambda: seen)
        assert not sign.is_set
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_signal_that_is_ignored_stays_so(usual_signals):
    """As of a program that was started in the background by a shell."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with signals(StopSign()):
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_another_thread_leaves_signals_alone():
    before = signal.getsignal(signal.SIGTERM)
    found = []

    def work():
        with signals(StopSign()):
            found.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(10)
    assert found == [before]


def test_a_pool_has_no_more_threads_than_it_may_and_hands_errors_on():
    pool, gate, most = DaemonPool(2, "test"), threading.Semaphore(0), []
    lock, working = threading.Lock(), set()

    def work(number):
        with lock:
            working.add(number)
            most.append(len(working))
        assert gate.acquire(timeout=10)
        with lock:
            working.discard(number)
        return number

    futures = [pool.submit(work, number) for number in range(6)]
    for _ in futures:
        gate.release()
    assert [future.result(10) for future in futures] == list(range(6))
    assert max(most) <= 2
    with pytest.raises(ZeroDivisionError):
        pool.submit(lambda: 1 / 0).result(10)
    pool.shutdown()
    with pytest.raises(RuntimeError):
        pool.submit(print)
    assert until(lambda: not any(one.name.startswith("test-") for one in threading.enumerate()))
