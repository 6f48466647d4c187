"""What a consumer or reader holds expanded at a time is bounded, however well its messages were compressed."""

import asyncio
import gc
import tracemalloc

import pytest

import lakemq
from client.fake_broker import FakeCluster
from client.fix_client import fake_async_client, fake_client, run_virtual
from lakemq.errors import SerializationError
from lakemq.testing.broker import TestBroker

MIB = 1 << 20
COUNT = 100
BODY = bytes(5 * MIB // 4)  # of which a few KiB travel
BUDGET = 8 * MIB
ROOM = 40 * MIB  # the budget twice, since the user has the last list in hand, and what the fake cluster does


@pytest.fixture(params=["alone", "batch"])
def cluster(request):
    cluster = FakeCluster(partitions=1)
    with fake_client(cluster, compression="lz4", batch_bytes=16 * MIB) as mq:
        for nth in range(COUNT):
            if request.param == "alone":
                mq.send("orders", BODY + b"%d" % nth, partition=0)
            else:  # three to a carrier
                mq.send_many("orders", [BODY + b"%d" % nth] * 3).raise_if_failed()
    cluster.expected = COUNT * (1 if request.param == "alone" else 3)
    return cluster


@pytest.fixture
def peak():
    """The most memory that Python has had since the last look, in MiB."""
    gc.collect()
    tracemalloc.start()
    yield lambda: tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()


def read(cluster, opened, take):
    """All messages, by that way of taking them; how many there were."""
    count = 0
    with fake_client(cluster, open_bytes_max=BUDGET) as mq, opened(mq) as source:
        while count < cluster.expected:
            taken = take(source)
            assert taken, f"only {count} of {cluster.expected} came"
            assert all(len(message.body) > len(BODY) for message in taken)
            count += len(taken)
            del taken
    return count


def consumer(mq):
    return mq.consumer("orders", group="g")


def reader(mq):
    return mq.reader("orders", start="earliest", group="g")


@pytest.mark.parametrize("opened", [consumer, reader])
def test_receive_opens_no_more_than_the_budget_at_a_time(cluster, peak, opened):
    assert read(cluster, opened, lambda source: source.receive(1000)) == cluster.expected
    assert peak() < ROOM


@pytest.mark.parametrize("opened", [consumer, reader])
def test_a_loop_opens_no_more_than_the_budget_at_a_time(cluster, peak, opened):
    count = 0
    with fake_client(cluster, open_bytes_max=BUDGET) as mq, opened(mq) as source:
        for message in source:
            assert len(message.body) > len(BODY)
            count += 1
            if count == cluster.expected:
                source.stop()
    assert peak() < ROOM


def test_lists_that_are_collected_for_a_while_are_as_bounded(cluster, peak):
    count = 0
    with fake_client(cluster, open_bytes_max=BUDGET) as mq, consumer(mq) as source:
        for batch in source.batches(max_messages=1000, max_wait="1s"):
            count += len(batch)
            assert sum(len(message.body) for message in batch) < 4 * BUDGET
            if count >= cluster.expected:
                source.stop()
            del batch
    assert peak() < ROOM


@pytest.mark.parametrize("kind", ["consumer", "reader", "batches"])
def test_the_asyncio_client_is_bounded_too(cluster, peak, kind):
    async def work():
        count = 0
        opened = reader if kind == "reader" else consumer
        async with fake_async_client(cluster, open_bytes_max=BUDGET) as mq, opened(mq) as source:
            if kind == "batches":
                async for batch in source.batches(max_messages=1000, max_wait="1s"):
                    count += len(batch)
                    del batch
                    if count >= cluster.expected:
                        source.stop()
                return
            while count < cluster.expected:
                taken = await source.receive(1000)
                assert taken
                count += len(taken)
                del taken

    run_virtual(cluster, work())
    assert peak() < ROOM


def test_one_message_comes_however_large_it_is(cluster):
    with fake_client(cluster, open_bytes_max=1) as mq, consumer(mq) as source:
        first = source.receive(1000)
        assert len(first) == (1 if cluster.expected == COUNT else 3)
        assert first[0].body == BODY + b"0"


def test_the_order_and_the_acks_are_those_of_all_messages(cluster):
    bodies = []
    with fake_client(cluster, open_bytes_max=BUDGET) as mq, consumer(mq) as source:
        while len(bodies) < cluster.expected:
            bodies += [message.body[len(BODY) :] for message in source.receive(7)]
    every = cluster.expected // COUNT
    assert bodies == [b"%d" % (nth // every) for nth in range(cluster.expected)]
    assert cluster.acks == {("orders", "shop.g", 0): cluster.expected}


# What cannot be opened is treated alike by all who receive


class Mangled:
    """In the place of a compressor: what it makes cannot be opened by anybody."""

    @staticmethod
    def compress(body, level):
        return b"no frame"


@pytest.fixture
def broker(monkeypatch):
    """A real broker with messages 0 to 4 of one partition, of which 1 (alone) and 2, 3 (one batch) cannot be opened."""
    broker = TestBroker()
    broker.ask("create_topic", name="orders", partitions=1)
    with broker.connect(app="shop", compression="lz4", compress_bytes_min=10) as mq:
        mq.send("orders", b"good" * 10, key="k")
        with monkeypatch.context() as patch:
            patch.setattr("lakemq.client.parcel.cramjam.lz4", Mangled)
            mq.send("orders", b"mangled" * 10, key="k")
            mq.send_many("orders", [lakemq.Message(b"mangled" * 10, key="k")] * 2).raise_if_failed()
        mq.send("orders", b"good" * 10, key="k")
    with broker:
        yield broker


def dead_letters(broker):
    rows = broker.ask("list_dead", topic="orders", app="shop.g")["rows"]
    return sorted((row["offset"], row["cause"]) for row in rows), [row["reason"] for row in rows]


def is_handled_by(kind, mq):
    """The offsets that reach the user."""
    seen = []
    if kind == "handler":

        @mq.handler("orders", group="g")
        def handle(message):
            seen.append(message.offset)
            if message.offset == 4:
                mq.stop()

        mq.run()
        return seen
    with mq.consumer("orders", group="g") as consumer:
        while len(seen) < 2:
            seen += [message.offset for message in consumer.receive(10)]
    return seen


@pytest.mark.parametrize("kind", ["consumer", "handler"])
def test_what_cannot_be_opened_is_a_dead_letter_and_the_others_go_on(broker, kind):
    with broker.connect(app="shop", watcher=kind == "handler") as mq:
        assert is_handled_by(kind, mq) == [0, 4]
        assert sum(place.lag for place in mq.lag("orders", "g")) == 0
    places, reasons = dead_letters(broker)
    assert places == [(1, "asked"), (2, "asked"), (3, "asked")]
    assert all("cannot be opened" in reason for reason in reasons)


@pytest.mark.parametrize("is_async", [False, True], ids=["blocking", "asyncio"])
def test_a_reader_gives_it_out_and_whoever_asks_for_the_body_hears_why(broker, is_async):
    def outcome(message):
        if message.offset in (0, 4):
            return message.body
        with pytest.raises(SerializationError, match=f"offset {min(message.offset, 2)}: the body cannot be opened"):
            message.json()
        return None

    if is_async:

        async def work():
            async with (
                broker.aio_connect(app="shop") as mq,
                mq.reader("orders", start="earliest", stop="now", group="r") as reader,
            ):
                return [(one.offset, outcome(one)) async for one in reader]

        got = asyncio.run(work())
    else:
        with (
            broker.connect(app="shop", watcher=False) as mq,
            mq.reader("orders", start="earliest", stop="now", group="r") as reader,
        ):
            got = [(one.offset, outcome(one)) for one in reader]
    assert got == [(0, b"good" * 10), (1, None), (2, None), (3, None), (4, b"good" * 10)]
