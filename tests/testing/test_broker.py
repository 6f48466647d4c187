"""TestBroker and the pytest fixture: the real engine in memory, with a clock that the test moves."""

import asyncio
import time

import pytest

import lakemq
from lakemq.errors import LakeMQError
from lakemq.testing.broker import TestBroker


def bodies(deliveries):
    return [one.body for one in deliveries]


def test_the_fixture_is_found_by_pytest_itself(lakemq_broker):
    with lakemq_broker.connect(app="shop") as mq:
        mq.send("orders", b"1")
        with mq.consumer("orders", group="g") as consumer:
            assert bodies(consumer.receive(10)) == [b"1"]


def test_waiting_takes_no_time(lakemq_broker):
    with lakemq_broker.connect() as mq, mq.consumer("orders", group="g") as consumer:
        began, before_ms = time.monotonic(), lakemq_broker.clock.monotonic_ms()
        assert consumer.receive(1, timeout="10m") == []
        assert lakemq_broker.clock.monotonic_ms() - before_ms >= 600_000
        assert time.monotonic() - began < 60


def test_a_lease_ends_when_the_clock_is_moved(lakemq_broker):
    with lakemq_broker.connect(max_processing_ms=0) as slow, lakemq_broker.connect() as mq:
        mq.send("orders", b"1")
        first = slow.consumer("orders", group="g", auto_ack=False, ack_timeout="30s")
        (lent,) = first.receive(1)
        with mq.consumer("orders", group="g") as second:
            assert second.receive(1, timeout="1s") == []
            lakemq_broker.advance("5m")
            assert bodies(second.receive(1, timeout="10s")) == [b"1"]
        lent.ack()  # late, and no harm
        first.close()


def test_what_was_confirmed_survives_a_crash_and_a_power_cut(lakemq_broker):
    with lakemq_broker.connect() as mq:
        mq.send("orders", b"1")
        lakemq_broker.crash()
        lakemq_broker.restart()
        mq.send("orders", b"2")
        lakemq_broker.cut_power()
        lakemq_broker.restart()
        with mq.reader("orders", start="earliest", stop="now") as reader:
            assert sorted(bodies(reader)) == [b"1", b"2"]


def test_a_strict_one_makes_nothing_by_itself():
    with TestBroker(strict=True) as broker:
        with pytest.raises(LakeMQError) as caught:
            broker.connect(app="shop")
        assert caught.value.status == 2
        broker.ask("create_app", name="shop")
        broker.ask("add_token", name="shop", token_id="1", token="secret-token")
        broker.ask("create_topic", name="orders", partitions=1)
        broker.ask("subscribe", topic="orders", app="shop", producer={}, consumer={})
        with broker.connect(app="shop", token="secret-token") as mq:
            assert mq.send("orders", b"1").offset == 0


def test_the_asyncio_client_reaches_it_too(lakemq_broker):
    async def main():
        async with lakemq_broker.aio_connect(app="shop") as mq:
            await mq.send("orders", b"1")
            async with mq.consumer("orders", group="g") as consumer:
                return bodies(await consumer.receive(1))

    assert asyncio.run(main()) == [b"1"]


def test_time_passes_by_itself_for_the_asyncio_client(lakemq_broker):
    async def main():
        async with lakemq_broker.aio_connect(app="shop") as mq:
            await mq.send_soon("orders", b"1")
            async with mq.consumer("orders", group="g") as consumer:
                assert bodies(await consumer.receive(1)) == [b"1"]
                return await consumer.receive(1, timeout="300ms")

    assert asyncio.run(asyncio.wait_for(main(), 30)) == []


def test_a_connection_without_a_url_has_its_broker_inside(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LAKEMQ_URL", raising=False)
    with lakemq.connect() as mq:
        mq.send("orders", b"1")
        with lakemq.connect(app="other") as beside:  # the same broker, for it is the same directory
            beside.send("orders", b"2")
    with lakemq.connect() as mq, mq.reader("orders", start="earliest", stop="now") as reader:
        assert sorted(bodies(reader)) == [b"1", b"2"]
    assert (tmp_path / ".lakemq" / "format").exists()


def test_a_directory_that_a_broker_has_open_says_so(tmp_path):
    from lakemq.world.disk import RealDisk

    held = RealDisk(str(tmp_path)).lock("lock")
    try:
        with pytest.raises(LakeMQError, match="a broker has"):
            lakemq.connect(f"embedded://{tmp_path}")
    finally:
        held.release()
