"""What a client does while there is no broker: messages for an outbox are taken at once, `wait` waits for one."""

import asyncio
import time

import pytest

import lakemq
from client.fake_broker import FakeClock, FakeCluster
from client.fake_server import FakeServer
from client.fix_client import fake_async_client, fake_client, run_virtual
from client.test_handlers import until
from lakemq.client.errors import BrokerUnreachableError
from lakemq.wire.produce import ProduceMessage

AT_ONCE_MS = 200


@pytest.fixture
def cluster():
    return FakeCluster(partitions=1)


def sent_within(mq, cluster, **options):
    began_ms = cluster.clock.now_ms
    receipt = mq.send("orders", b"x", **options)
    return receipt, cluster.clock.now_ms - began_ms


def test_with_an_outbox_and_no_broker_a_send_returns_at_once(cluster, tmp_path):
    cluster.down.add(1)
    with fake_client(cluster, outbox=tmp_path) as mq:
        for _ in range(3):
            receipt, spent_ms = sent_within(mq, cluster)
            assert receipt.queued
            assert spent_ms <= AT_ONCE_MS
        report = mq.send_many("orders", [b"y"] * 3)
        assert all(one.queued for one in report.ok)
        cluster.down.clear()
        receipt, _ = sent_within(mq, cluster, timeout="30s")
        assert cluster.clock.now_ms
    with fake_client(cluster, outbox=tmp_path) as mq:
        mq.send("orders", b"last", timeout="30s")
    assert sorted(cluster.bodies()) == [b"last"] + [b"x"] * 4 + [b"y"] * 3


def test_a_broker_that_goes_away_in_between_does_not_hold_up_a_send(cluster, tmp_path):
    with fake_client(cluster, outbox=tmp_path) as mq:
        assert not sent_within(mq, cluster)[0].queued
        cluster.stop(1)
        for _ in range(2):
            receipt, spent_ms = sent_within(mq, cluster)
            assert receipt.queued
            assert spent_ms <= AT_ONCE_MS
        cluster.down.clear()
        mq.reach("30s")
        assert sent_within(mq, cluster)[0].offset == 3, "once there is a broker it is waited for, in order"
    assert cluster.bodies() == [b"x"] * 4


def test_a_broker_that_is_there_is_waited_for(cluster, tmp_path):
    """An answer that takes its time is no reason to put a message off."""
    with fake_client(cluster, outbox=tmp_path) as mq:
        assert not sent_within(mq, cluster)[0].queued
        cluster.swallow(ProduceMessage)
        receipt, spent_ms = sent_within(mq, cluster, timeout="20s")
        assert not receipt.queued
        assert spent_ms > 1000


def test_the_asyncio_client_returns_at_once_as_well(cluster, tmp_path):
    cluster.down.add(1)

    async def work():
        async with fake_async_client(cluster, outbox=tmp_path) as mq:
            for _ in range(3):
                began_ms = cluster.clock.now_ms
                assert (await mq.send("orders", b"x")).queued
                assert cluster.clock.now_ms - began_ms <= AT_ONCE_MS

    run_virtual(cluster, work())


def test_what_was_queued_leaves_by_itself_when_the_broker_is_back(tmp_path):
    """Without another call of the program's: in the background."""
    with FakeServer(partitions=1) as server, lakemq.connect(server.url, app="shop", outbox=tmp_path) as mq:
        assert not mq.send("orders", b"first").queued
        server.cluster.down.add(1)
        for connection in list(server.cluster.connections):
            connection.close()
        assert until(lambda: mq.send("orders", b"queued").queued)
        server.cluster.down.clear()
        assert until(lambda: not mq._outbox.waiting)


# wait


def test_connect_waits_for_a_broker_as_long_as_it_is_told(cluster):
    cluster.down.add(1)
    began_ms = cluster.clock.now_ms
    with pytest.raises(BrokerUnreachableError):
        fake_client(cluster, wait="20s")
    assert 20_000 <= cluster.clock.now_ms - began_ms < 30_000
    began_ms = cluster.clock.now_ms
    with pytest.raises(BrokerUnreachableError):
        fake_client(cluster)
    assert cluster.clock.now_ms - began_ms < 1000


def test_the_asyncio_client_waits_as_well(cluster):
    cluster.down.add(1)

    async def work():
        asyncio.get_running_loop().call_later(5, cluster.down.clear)
        async with fake_async_client(cluster, wait="20s") as mq:
            await mq.send("orders", b"x")

    run_virtual(cluster, work())
    assert cluster.bodies() == [b"x"]


def test_a_broker_that_starts_later_is_found(cluster):
    cluster.down.add(1)
    cluster.clock = LaterClock(cluster, 7_000)
    with fake_client(cluster, wait="20s") as mq:
        mq.send("orders", b"x")
    assert cluster.bodies() == [b"x"]


class LaterClock(FakeClock):
    """A clock that starts the broker when it is time."""

    def __init__(self, cluster, after_ms):
        super().__init__()
        self.cluster, self.due_ms = cluster, self.now_ms + after_ms

    def monotonic_ms(self):
        if self.now_ms >= self.due_ms:
            self.cluster.down.clear()
        return self.now_ms


def test_a_wrong_token_is_told_at_once(cluster):
    cluster.token = "secret"
    began = time.monotonic()
    with pytest.raises(lakemq.LakeMQError) as raised:
        fake_client(cluster, wait="1h", token="wrong")
    assert not isinstance(raised.value, BrokerUnreachableError)
    assert time.monotonic() - began < 10
