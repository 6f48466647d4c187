"""Both clients against a real broker process: what is sent comes back, through kills and restarts."""

import asyncio
import os
import threading
import time

import pytest

import lakemq
from fix_live import DEV, live_broker, start_broker, strict_broker  # noqa: F401 - fixtures
from lakemq.client.admin import AdminClient
from lakemq.errors import AuthenticationError, NoPermissionError, TopicNotFoundError

pytestmark = pytest.mark.live


def url_of(broker):
    return f"lakemq://127.0.0.1:{broker.port}"


@pytest.fixture
def mq(live_broker):  # noqa: F811
    with lakemq.connect(url_of(live_broker), app="shop") as client:
        yield client


@pytest.fixture
def topic(request):
    return request.node.name.partition("[")[0].replace("test_", "")[:100]


def receive_all(mq, topic, count, group="g", within_s=30):
    got = []
    end = time.monotonic() + within_s
    with mq.consumer(topic, group=group, long_poll="500ms") as consumer:
        while len(got) < count and time.monotonic() < end:
            got += [(one.partition, one.offset, one.body) for one in consumer.receive(1000, timeout="1s")]
    return got


def test_a_message_comes_back_with_all_that_was_sent_with_it(mq, topic):
    receipt = mq.send(topic, {"id": 1}, key="c-7", tags=["paid"], headers={"v": "2", "名": "值"}, uniq_id="u-1")
    with mq.consumer(topic, group="g") as consumer:
        (got,) = consumer.receive(10)
    assert (got.json(), got.key, got.tags) == ({"id": 1}, "c-7", ("paid",))
    assert got.headers == {"v": "2", "名": "值"}
    assert (got.partition, got.offset, got.message_id) == (receipt.partition, receipt.offset, "u-1")
    assert 0 <= got.stored_at - got.sent_at < 60_000


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd", "snappy", "zlib"])
def test_every_compression_comes_back(live_broker, topic, compression):  # noqa: F811
    bodies = [b"x" * 5000, os.urandom(5000), b"short"]
    with lakemq.connect(url_of(live_broker), app="shop", compression=compression) as mq:
        name = f"{topic}_{compression}"
        for body in bodies:
            mq.send(name, body, partition=0)
        futures = [mq.send_soon(name, body, partition=0) for body in bodies * 20]
        mq.flush(10)
        assert [future.result().offset for future in futures] == list(range(3, 63))
        assert [body for _, _, body in sorted(receive_all(mq, name, 63))] == bodies * 21


@pytest.mark.parametrize("acks", ["flush", "write", "receive", "none"])
def test_every_level_is_stored(mq, topic, acks):
    name = f"{topic}_{acks}"
    receipt = mq.send(name, b"x", acks=acks, partition=0)
    assert (receipt.offset == 0) == (acks in ("flush", "write"))
    assert receive_all(mq, name, 1) == [(0, 0, b"x")]


def test_sent_twice_with_an_id_it_is_stored_once(mq, topic):
    first = mq.send(topic, b"x", uniq_id="once", partition=1)
    second = mq.send(topic, b"x", uniq_id="once", partition=1)
    assert (first.partition, first.offset) == (second.partition, second.offset)
    assert mq.send(topic, b"y", partition=1).offset == first.offset + 1


def test_send_soon_keeps_the_order_of_a_key(mq, topic):
    futures = [mq.send_soon(topic, b"%d" % n, key="k", tags="ab"[n % 3 == 0]) for n in range(5000)]
    mq.flush(20)
    places = [future.result() for future in futures]
    assert [place.offset for place in places] == list(range(5000))
    got = receive_all(mq, topic, 5000)
    assert got == [(places[0].partition, n, b"%d" % n) for n in range(5000)]


def test_send_many_reaches_every_partition(mq, topic):
    report = mq.send_many(topic, [lakemq.Message({"n": n}, key=str(n)) for n in range(1000)])
    report.raise_if_failed()
    assert len({(one.partition, one.offset) for one in report.ok}) == 1000
    assert len(set(receive_all(mq, topic, 1000))) == 1000


def test_two_consumers_of_a_group_share_and_two_groups_do_not(mq, topic):
    mq.send_many(topic, [lakemq.Message(b"%d" % n, partition=n % 4) for n in range(400)]).raise_if_failed()
    got = {"one": [], "two": []}

    def work(name):
        with mq.consumer(topic, group="shared", count=20, prefetch=0, long_poll="200ms") as consumer:
            while messages := consumer.receive(20, timeout="1s"):
                got[name] += [one.body for one in messages]

    threads = [threading.Thread(target=work, args=(name,)) for name in got]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    both = got["one"] + got["two"]
    assert sorted(both) == sorted(b"%d" % n for n in range(400))
    assert len(receive_all(mq, topic, 400, group="other")) == 400


def test_what_is_not_acked_comes_again_at_once_when_the_consumer_goes(mq, topic):
    mq.send_many(topic, [lakemq.Message(b"%d" % n, partition=0) for n in range(10)])
    with mq.consumer(topic, group="g", auto_ack=False) as consumer:
        messages = consumer.receive(10)
        for message in messages[:4]:
            message.ack()
    assert [offset for _, offset, _ in receive_all(mq, topic, 10, within_s=2)][-6:] == [4, 5, 6, 7, 8, 9]
    assert [one.lag for one in mq.lag(topic, "g")] == [0, 0, 0, 0]


def test_a_lease_is_kept_while_the_user_works(mq, topic):
    mq.send(topic, b"slow", partition=0)
    with mq.consumer(topic, group="g", ack_timeout="4s") as consumer:  # long enough for a machine that others use, too
        (message,) = consumer.receive(1)
        with mq.consumer(topic, group="g") as other:
            assert other.receive(1, timeout="6s") == []
        message.ack()
    assert consumer.lost == 0
    assert mq.lag(topic, "g")[0].lag == 0


def test_readers_seek_and_lag(mq, topic, tmp_path):
    for n in range(100):
        mq.send_soon(topic, b"%d" % n, partition=0)
    mq.flush(10)
    with mq.reader(topic, start="earliest", stop="now") as reader:
        assert [one.offset for one in reader] == list(range(100))
    with mq.reader(topic, start=97, stop="now", partitions=[0], store=tmp_path / "p") as reader:
        assert next(iter(reader)).offset == 97
    with mq.reader(topic, start="earliest", stop="now", partitions=[0], store=tmp_path / "p") as reader:
        assert [one.offset for one in reader] == [98, 99]
    with mq.reader(topic, start="-1h", stop="now", partitions=[0]) as reader:
        assert len(list(reader)) == 100
    receive_all(mq, topic, 100)
    assert mq.seek(topic, "g", to=40, partition=0) == [(0, 100, 40)]
    assert mq.lag(topic, "g")[0].lag == 0
    mq.seek(topic, "g", to=40, partition=0, dry_run=False)
    assert mq.lag(topic, "g")[0] == (0, 40, 100, 60)
    again = receive_all(mq, topic, 60)
    assert {offset for _, offset, _ in again} >= set(range(40, 100))


def test_the_asyncio_client_does_the_same(live_broker, topic):  # noqa: F811
    async def main():
        async with lakemq.aio.connect(url_of(live_broker), app="shop") as mq:
            receipts = await asyncio.gather(*[mq.send(topic, b"%d" % n) for n in range(200)])
            futures = [await mq.send_soon(topic, b"soon %d" % n) for n in range(3000)]
            receipts += await asyncio.gather(*futures)
            got = set()
            async with mq.consumer(topic, group="g") as consumer:
                async for message in consumer:
                    async with message:
                        got.add((message.partition, message.offset))
                    if len(got) == 3200:
                        consumer.stop()
            return {(one.partition, one.offset) for one in receipts}, got

    sent, got = asyncio.run(main())
    assert sent == got


def test_handlers_run(live_broker, topic):  # noqa: F811
    seen = set()
    with lakemq.connect(url_of(live_broker), app="shop") as mq:

        @mq.handler(topic, group="h", concurrency=4)
        def handle(message):
            seen.add(message.body)
            if len(seen) == 100:
                mq.stop()

        for n in range(100):
            mq.send_soon(topic, b"%d" % n)
        mq.flush(10)
        mq.run()
        assert [one.lag for one in mq.lag(topic, "h")] == [0, 0, 0, 0]


def test_a_strict_broker_wants_token_topic_and_subscription(strict_broker):  # noqa: F811
    admin = AdminClient(f"http://127.0.0.1:{strict_broker.admin_port}", strict_broker.admin_token)
    admin.create_app("shop")
    token = admin.create_token("shop")["token"]
    with pytest.raises(AuthenticationError):
        lakemq.connect(url_of(strict_broker), app="shop", token="wrong wrong")
    with lakemq.connect(url_of(strict_broker), app="shop", token=token) as mq:
        with pytest.raises(TopicNotFoundError):
            mq.send("orders", b"x")
        admin.ensure_topic("orders", partitions=3)
        admin.ensure_topic("orders", partitions=3)
        with pytest.raises(NoPermissionError):
            mq.send("orders", b"x")
        admin.subscribe("orders", "shop", producer=True, consumer=True, start="earliest")
        mq.send("orders", b"x", partition=2)
        with mq.consumer("orders") as consumer:
            assert [one.body for one in consumer.receive(1)] == [b"x"]


def test_a_killed_broker_loses_nothing_that_was_confirmed(tmp_path):
    broker = start_broker(tmp_path / "broker", mode=DEV)
    port = broker.port
    try:
        with lakemq.connect(url_of(broker), app="shop", timeout="20s", backoff_max_ms=300) as mq:
            sent = [mq.send("orders", b"%d" % n, partition=n % 4, uniq_id=f"u{n}") for n in range(50)]
            broker.kill()
            again = threading.Thread(target=_start_on, args=(broker, port))
            again.start()
            sent += [mq.send("orders", b"%d" % n, partition=n % 4, uniq_id=f"u{n}") for n in range(50, 100)]
            again.join()
            got = receive_all(mq, "orders", 100)
    finally:
        broker.stop()
    assert sorted(got) == sorted((one.partition, one.offset, b"%d" % n) for n, one in enumerate(sent))


def test_an_outbox_carries_messages_over_a_time_without_a_broker(tmp_path):
    broker = start_broker(tmp_path / "broker", mode=DEV)
    port, outbox = broker.port, tmp_path / "outbox"
    try:
        with lakemq.connect(url_of(broker), app="shop", outbox=outbox) as mq:
            assert not mq.send("orders", b"0", partition=0).queued
            broker.stop()
            for n in range(1, 6):
                assert mq.send("orders", b"%d" % n, partition=0, timeout="100ms").queued
        _start_on(broker, port)
        with lakemq.connect(url_of(broker), app="shop", outbox=outbox) as mq:
            assert not mq.send("orders", b"6", partition=0).queued
            assert sorted(receive_all(mq, "orders", 7)) == [(0, n, b"%d" % n) for n in range(7)]
    finally:
        broker.stop()


def _start_on(broker, port):
    """Start it again where it was: its clients know no other place."""
    command = broker.command

    def same_port():
        words = command()
        words[words.index("--port") + 1] = str(port)
        return words

    broker.command = same_port
    broker.start()
