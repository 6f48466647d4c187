"""The asyncio client against a scripted cluster, in virtual time."""

import asyncio

import pytest

from client.fake_broker import FakeCluster
from client.fix_client import FakeAsyncConnector, fake_async_client, run_virtual
from lakemq.client.errors import BrokerUnreachableError, BufferFullError, ClosedError, SendTimeoutError
from lakemq.client.outgoing import Message
from lakemq.errors import BrokerBusyError, TopicNotFoundError, TopicNotWritableError
from lakemq.policy import ProducerPolicy
from lakemq.wire.consume import CommitAck
from lakemq.wire.own import ExtendLease
from lakemq.wire.produce import ProduceMessage


@pytest.fixture
def cluster():
    return FakeCluster()


def run(cluster, work, **options):
    """Run `work(mq)` with a client of that cluster."""

    async def main():
        async with fake_async_client(cluster, **options) as mq:
            return await work(mq)

    return run_virtual(cluster, main())


def test_a_message_goes_there_and_back(cluster):
    async def work(mq):
        receipt = await mq.send("orders", {"id": 1}, key="k", tags="paid", headers={"v": "2"})
        async with mq.consumer("orders", group="g") as consumer:
            (got,) = await consumer.receive(10)
        return receipt, got

    receipt, got = run(cluster, work)
    assert (got.json(), got.key, got.tags, got.headers) == ({"id": 1}, "k", ("paid",), {"v": "2"})
    assert (got.partition, got.offset) == (receipt.partition, receipt.offset)
    assert cluster.connections == []


def test_connect_can_be_awaited(cluster):
    async def main():
        mq = await fake_async_client(cluster)
        receipt = await mq.send("orders", b"x")
        await mq.close()
        with pytest.raises(ClosedError):
            await mq.send("orders", b"y")
        return receipt

    assert run_virtual(cluster, main()).offset == 0


def test_before_it_is_awaited_it_cannot_be_used(cluster):
    async def main():
        with pytest.raises(ClosedError, match="await"):
            await fake_async_client(cluster).send("orders", b"x")

    run_virtual(cluster, main())


def test_nobody_there_is_told_at_once(cluster):
    cluster.stop(1)

    async def main():
        async with fake_async_client(cluster):
            pass

    with pytest.raises(BrokerUnreachableError):
        run_virtual(cluster, main())


def test_requests_of_one_turn_are_written_together(cluster):
    connector = FakeAsyncConnector(cluster)

    async def work(mq):
        await mq.send("orders", b"warm")
        before = connector.transports[0].writes
        await asyncio.gather(*[mq.send("orders", b"%d" % n) for n in range(10)])
        return connector.transports[0].writes - before

    assert run(cluster, work, connector=connector) == 1
    assert len(cluster.bodies()) == 11


def test_retries_work_the_same(cluster):
    async def work(mq):
        await mq.send("orders", b"warm")
        cluster.fail(ProduceMessage, BrokerBusyError(), times=2)
        await mq.send("orders", b"a")
        cluster.drop(ProduceMessage)
        await mq.send("orders", b"b")
        cluster.swallow(ProduceMessage, times=50)
        with pytest.raises(SendTimeoutError):
            await mq.send("orders", b"c", timeout="1s")
        with pytest.raises(TopicNotFoundError):
            await mq.send("nowhere", b"d")

    run(cluster, work)
    assert sorted(cluster.bodies()) == [b"a", b"b", b"warm"]


def test_where_the_policy_wants_one_request_at_a_time_there_is_one(cluster):
    cluster.producer_policy = ProducerPolicy(is_single=True)

    async def work(mq):
        await mq.send("orders", b"warm")
        cluster.swallow(ProduceMessage)
        sending = [asyncio.create_task(mq.send("orders", b"%d" % n, timeout="60s")) for n in range(5)]
        await asyncio.sleep(1)
        assert cluster.count(ProduceMessage) == 2
        await asyncio.gather(*sending)

    run(cluster, work)
    assert len(cluster.bodies()) == 6


def test_ordered_sends_keep_their_order_through_a_retry(cluster):
    async def work(mq):
        await mq.send("orders", b"warm", partition=0)
        cluster.fail(ProduceMessage, BrokerBusyError())
        await asyncio.gather(*[mq.send("orders", b"%d" % n, partition=0, ordered=True) for n in range(5)])

    run(cluster, work)
    assert cluster.stored()[0] == [b"warm", b"0", b"1", b"2", b"3", b"4"]


def test_what_is_to_be_retried_is_not_acked_by_the_loop(cluster):
    async def work(mq):
        await mq.send_many("orders", [Message(b"%d" % n, partition=0) for n in range(4)])
        async with mq.consumer("orders", group="g") as consumer:
            async for message in consumer:
                if message.offset == 1:
                    message.retry()
                if message.offset == 3:
                    consumer.stop()

    run(cluster, work)
    assert cluster.retried == [("orders", "shop.g", 0, 1)]
    assert cluster.acks == {("orders", "shop.g", 0): 4}


def test_send_soon_gives_futures(cluster):
    async def work(mq):
        futures = [await mq.send_soon("orders", b"%d" % n, key="k") for n in range(1500)]
        await mq.flush()
        return [future.result().offset for future in futures]

    assert run(cluster, work) == list(range(1500))
    assert cluster.count(ProduceMessage) == 2


def test_a_future_can_be_awaited_without_a_flush(cluster):
    async def work(mq):
        before = cluster.clock.now_ms
        future = await mq.send_soon("orders", b"x")
        await future
        return cluster.clock.now_ms - before

    assert 5 <= run(cluster, work) <= 8


def test_a_failed_batch_fails_its_futures_and_a_cancelled_one_harms_nobody(cluster):
    async def work(mq):
        cluster.fail(ProduceMessage, TopicNotWritableError())
        futures = [await mq.send_soon("orders", b"x") for _ in range(3)]
        futures[1].cancel()
        await mq.flush()
        for future in (futures[0], futures[2]):
            assert isinstance(future.exception(), TopicNotWritableError)

    run(cluster, work)


def test_a_full_buffer_waits_or_refuses(cluster):
    async def work(mq):
        await mq.send("orders", b"warm")
        cluster.swallow(ProduceMessage)
        futures = [await mq.send_soon("orders", b"x") for _ in range(10)]
        with pytest.raises(BufferFullError):
            await mq.send_soon("orders", b"x", timeout=0)
        futures.append(await mq.send_soon("orders", b"x"))
        await asyncio.gather(*futures)

    run(cluster, work, buffer_count=10, batch_count=5, in_flight_max=1)
    assert len(cluster.bodies()) == 12


def test_a_loop_gets_every_message_and_acks_it(cluster):
    async def work(mq):
        await mq.send_many("orders", [Message(b"%d" % n, partition=0) for n in range(300)])
        got = []
        async with mq.consumer("orders", group="g") as consumer:
            async for message in consumer:
                got.append(message.body)
                if len(got) == 300:
                    consumer.stop()
        return got

    assert run(cluster, work) == [b"%d" % n for n in range(300)]
    assert cluster.acks == {("orders", "shop.g", 0): 300}
    assert cluster.count(CommitAck) <= 2


def test_deliveries_are_context_managers(cluster):
    async def work(mq):
        await mq.send_many("orders", [Message(b"%d" % n, partition=0) for n in range(3)])
        async with mq.consumer("orders", group="g", auto_ack=False) as consumer:
            for message in await consumer.receive(3):
                try:
                    async with message:
                        if message.offset == 1:
                            raise ValueError
                except ValueError:
                    pass

    run(cluster, work)
    assert cluster.retried == [("orders", "shop.g", 0, 1)]
    assert cluster.acks == {("orders", "shop.g", 0): 3}


def test_a_lease_is_extended_while_the_user_works(cluster):
    async def work(mq):
        await mq.send("orders", b"x")
        async with mq.consumer("orders", group="g", ack_timeout="10s") as consumer:
            async for _ in consumer:
                await asyncio.sleep(60)
                consumer.stop()
        return consumer.lost

    assert run(cluster, work) == 0
    assert cluster.count(ExtendLease) >= 10
    assert list(cluster.acks.values()) == [1]


def test_batches_and_readers(cluster):
    async def work(mq):
        await mq.send_many("orders", [Message(b"%d" % n, partition=n % 2) for n in range(40)])
        sizes = []
        async with mq.consumer("orders", group="g", prefetch=2) as consumer:
            async for batch in consumer.batches(max_messages=30, max_wait="50ms"):
                sizes.append(len(batch))
                if sum(sizes) == 40:
                    consumer.stop()
        async with mq.reader("orders", start="earliest", stop="now") as reader:
            read = [message.body async for message in reader]
        return sizes, len(read), await mq.lag("orders", "g"), await mq.seek("orders", "g", to="earliest")

    sizes, read, lag, moves = run(cluster, work)
    assert (sizes, read) == ([30, 10], 40)
    assert [one.lag for one in lag] == [0, 0, 0, 0]
    assert [move.target for move in moves] == [0, 0, 0, 0]


def test_a_reader_can_be_moved_and_stored(cluster, tmp_path):
    async def work(mq):
        await mq.send_many("orders", [Message(b"%d" % n, partition=0) for n in range(10)])
        got = []
        async with mq.reader("orders", start="earliest", store=tmp_path / "p") as reader:
            async for message in reader:
                got.append(message.offset)
                if len(got) == 2:
                    reader.seek(partition=0, offset=6)
                if message.offset == 7:
                    break
        async with mq.reader("orders", start="earliest", stop="now", store=tmp_path / "p") as reader:
            got += [message.offset async for message in reader]
        return got

    assert run(cluster, work) == [0, 1, 6, 7, 8, 9]


def test_handlers_run_until_stopped(cluster):
    seen = []
    cluster.retry_ms = 3_600_000

    async def work(mq):
        @mq.handler("orders", group="h", concurrency=3, local_retries=0)
        async def handle(message):
            await asyncio.sleep(1)
            seen.append(message.offset)
            if message.offset == 4:
                raise ValueError("no")
            if len(set(seen)) == 9:
                mq.stop()

        await mq.send_many("orders", [Message(b"%d" % n, partition=0) for n in range(9)])
        await mq.run()

    run(cluster, work)
    assert sorted(seen) == list(range(9))
    assert cluster.acks == {("orders", "shop.h", 0): 9}
    assert cluster.retried == [("orders", "shop.h", 0, 4)]


def test_a_lost_connection_is_opened_again_for_a_consumer(cluster):
    async def work(mq):
        await mq.send_many("orders", [Message(b"%d" % n, partition=0, priority=1) for n in range(6)])
        got = []
        async with mq.consumer("orders", group="g", count=2) as consumer:
            async for message in consumer:
                got.append(message.offset)
                if len(got) == 3:
                    for connection in list(cluster.connections):
                        connection.close()
                await asyncio.sleep(0)
                if message.offset == 5:
                    consumer.stop()
        return set(got)

    assert run(cluster, work) == set(range(6))
    assert cluster.acks == {("orders", "shop.g", 0): 6}


def test_nobody_waits_for_ever_on_a_client_that_is_closed(cluster):
    async def main():
        mq = await fake_async_client(cluster)
        await mq.send("orders", b"warm")
        future = await mq.send_soon("orders", b"x")
        await future
        cluster.stop(1)
        sending = asyncio.create_task(mq.send("orders", b"y", timeout="60s"))
        soon = await mq.send_soon("orders", b"z")
        await asyncio.sleep(0.1)
        await mq.close()
        for waiting in (sending, soon):
            with pytest.raises(ClosedError):
                await waiting

    run_virtual(cluster, main())


def test_a_handler_of_a_topic_that_is_not_there_ends_the_run(cluster):
    async def work(mq):
        @mq.handler("nowhere")
        async def handle(message):
            pass

        with pytest.raises(TopicNotFoundError):
            await mq.run()

    run(cluster, work)


def test_of_many_tasks_in_a_turn_the_first_requests_leave_before_the_last_are_made(cluster):
    arrived = []

    async def one(mq, number):
        arrived.append(cluster.count(ProduceMessage))
        return await mq.send("orders", b"%d" % number)

    async def work(mq):
        await mq.send("orders", b"first")
        await asyncio.gather(*[one(mq, number) for number in range(100)])

    run(cluster, work, in_flight_max=100)
    assert arrived[0] == 1
    assert arrived[-1] > 50, "the broker had most of them while the last ones were being made"
    assert len(set(arrived)) < 10, "but not each with a write of its own"
    assert len(cluster.bodies()) == 101
