"""Handlers: tries on the spot, what return values mean, and what is parked when the broker cannot take it back."""

import asyncio
import threading
import time
from itertools import pairwise

import pytest

import lakemq
from client.fake_broker import FakeCluster
from client.fake_server import FakeServer
from client.fix_client import fake_async_client, fake_client, run_virtual
from lakemq import Settle
from lakemq.client.errors import OutboxFullError, OutboxLockedError
from lakemq.client.parking import Parking
from lakemq.errors import BadParameterError, RetryStoreError
from lakemq.wire.own import ExtendLease, SetFilter, SettleOutcome
from lakemq.wire.own import Settle as SettleCommand

REFUSED = RetryStoreError.status


@pytest.fixture
def cluster():
    return FakeCluster(partitions=1)


@pytest.fixture
def server():
    with FakeServer(partitions=1) as server:
        yield server


def handle_with(cluster, bodies, function, until, **options):
    """Run an asyncio handler over these messages until `until(mq)` is true, in virtual time."""

    async def work():
        async with fake_async_client(cluster) as mq:
            for body in bodies:
                await mq.send("orders", body, partition=0, key="k", tags=["t"], headers={"h": "1"})

            @mq.handler("orders", group="h", **options)
            async def handle(message):
                return function(message, cluster.clock.now_ms)

            async def watch():
                while not until():
                    await asyncio.sleep(0.01)
                mq.stop()

            watching = asyncio.create_task(watch())
            await mq.run()
            await watching

    run_virtual(cluster, work())


def settlements(cluster):
    return [one for command in cluster.commands(SettleCommand) for topic in command.topics for one in topic.settlements]


def test_what_a_handler_returns_settles_the_message(cluster):
    answers = {
        b"none": None,
        b"else": "something else",
        b"drop": Settle.DROP,
        b"retry": Settle.RETRY,
        b"dead": Settle.DEAD,
        b"why": Settle.dead("bad order"),
        b"later": Settle.later("1h"),
    }
    seen = []

    def function(message, now_ms):
        seen.append(message.body)
        return answers[message.body]

    cluster.retry_ms = 10 * 3_600_000
    handle_with(cluster, answers, function, lambda: len(seen) >= 7 and cluster.acks, concurrency=1)
    assert cluster.acks == {("orders", "shop.h", 0): 7}
    assert sorted(cluster.dead) == [(b"dead", "", 1), (b"why", "bad order", 1)]
    due = {one.message.body: one.due_ms - cluster.clock.now_ms for one in cluster.retries}
    assert set(due) == {b"later"}
    assert len(cluster.retried) == 2
    assert due[b"later"] <= 3_600_000


def test_a_failure_is_tried_again_on_the_spot_with_growing_pauses(cluster):
    calls = []

    def function(message, now_ms):
        calls.append(now_ms)
        if len(calls) < 4:
            raise ValueError("not yet")

    handle_with(cluster, [b"x"], function, lambda: cluster.acks, local_retries=5)
    pauses = [later - before for before, later in pairwise(calls)]
    assert [round(pause, -1) for pause in pauses] == [50, 100, 200]
    assert cluster.retried == []
    assert cluster.acks == {("orders", "shop.h", 0): 1}


def test_after_the_last_of_them_the_broker_delivers_it_again_and_knows_why(cluster):
    calls = []

    def function(message, now_ms):
        calls.append(message.attempt)
        if message.attempt == 1:
            raise ValueError("no such order")

    handle_with(cluster, [b"x"], function, lambda: 2 in calls and not cluster.retries, local_retries=5)
    assert calls == [1] * 6 + [2]
    assert [(one.outcome, one.reason) for one in settlements(cluster)] == [
        (SettleOutcome.RETRY, "ValueError: no such order")
    ]


def test_there_are_none_unless_asked_for_and_their_number_can_be_chosen(cluster):
    calls = []

    def function(message, now_ms):
        calls.append(message.attempt)
        raise ValueError

    handle_with(cluster, [b"x"], function, lambda: cluster.retried)
    assert calls == [1]
    handle_with(cluster, [b"y"], function, lambda: len(cluster.retried) > 1, local_retries=2)
    assert calls == [1, 1, 1, 1]
    with pytest.raises(BadParameterError, match="local_retries"):
        fake_async_client(cluster).handler("orders", local_retries=-1)(lambda message: None)


def test_one_setting_of_the_client_gives_all_its_handlers_tries_on_the_spot(cluster):
    with fake_client(cluster, local_retries=5) as mq:
        mq.handler("orders")(lambda message: None)
        mq.handler("orders", local_retries=1)(lambda message: None)
        assert [one.local_retries for one in mq._handlers] == [5, 1]
    with pytest.raises(BadParameterError, match="local_retries"):
        fake_client(cluster, local_retries=-1)


def test_what_the_handler_has_settled_itself_is_not_tried_again(cluster):
    calls = []

    def function(message, now_ms):
        calls.append(message)
        message.dead_letter("poison")
        raise ValueError

    handle_with(cluster, [b"x"], function, lambda: cluster.dead)
    assert len(calls) == 1
    assert cluster.dead == [(b"x", "poison", 1)]


def test_the_lease_is_extended_during_the_tries_on_the_spot(cluster):
    cluster.consumer_policy = type(cluster.consumer_policy)(ack_timeout_ms=400)
    calls = []

    def function(message, now_ms):
        calls.append(now_ms)
        raise ValueError

    handle_with(cluster, [b"x"], function, lambda: cluster.retried, local_retries=5)
    assert len(calls) == 6
    assert calls[-1] - calls[0] > 1500
    assert cluster.count(ExtendLease) >= 3


def test_a_handler_may_have_a_filter(cluster):
    seen = []
    handle_with(cluster, [b"x"], lambda message, _: seen.append(message), lambda: cluster.acks, tags="t | u")
    assert cluster.filters == {("orders", "shop.h"): "t | u"}
    assert cluster.count(SetFilter) == 1


# Parking


def test_what_the_broker_cannot_take_back_is_parked_and_tried_again(cluster, tmp_path):
    cluster.refusals[b"bad"] = [REFUSED]
    calls = []

    def function(message, now_ms):
        calls.append((message.body, now_ms, message.offset, message.key, message.tags, message.headers, message.group))
        if message.body == b"bad" and len(calls) < 5:
            raise ValueError

    handle_with(
        cluster, [b"good", b"bad"], function, lambda: len(calls) >= 5, concurrency=1, local_retries=0, park=tmp_path
    )
    assert cluster.acks == {("orders", "shop.h", 0): 2}  # acked, because it is kept here
    assert cluster.retried == []
    bad = [call for call in calls if call[0] == b"bad"]
    assert {call[2:6] for call in [(*c[:5], tuple(c[5].items()), c[6]) for c in bad]} == {
        (1, "k", ("t",), (("h", "1"),))
    }
    assert {call[6] for call in bad} == {"shop.h"}
    pauses = [later[1] - before[1] for before, later in pairwise(bad[1:])]
    assert pauses[0] >= 2000  # they grow
    assert pauses[1] >= 4000
    assert len(Parking(tmp_path, "orders", "shop.h", 1 << 20)) == 0


def test_what_is_parked_survives_the_end_of_the_program(cluster, tmp_path):
    cluster.refusals[b"bad"] = [REFUSED]

    def function(message, now_ms):
        raise ValueError

    handle_with(cluster, [b"bad"], function, lambda: cluster.acks, local_retries=0, park=tmp_path)
    seen = []
    handle_with(cluster, [], lambda message, _: seen.append(message), lambda: seen, park=tmp_path)
    assert [(one.body, one.topic, one.partition, one.offset) for one in seen] == [(b"bad", "orders", 0, 0)]
    handle_with(cluster, [b"next"], lambda message, _: seen.append(message), lambda: len(seen) == 2, park=tmp_path)
    assert seen[1].body == b"next"


def test_a_broker_that_is_gone_cannot_take_it_back_either(cluster, tmp_path):
    seen = []

    def function(message, now_ms):
        seen.append((message.body, message.is_lost))
        if len(seen) == 1:
            cluster.stop(1)
            raise ValueError
        if len(seen) == 2:
            raise ValueError
        cluster.down.clear()

    handle_with(cluster, [b"bad"], function, lambda: len(seen) >= 3 and cluster.acks, local_retries=1, park=tmp_path)
    assert [body for body, _ in seen] == [b"bad"] * 3  # handled here, and not once more when it was delivered again
    assert cluster.acks == {("orders", "shop.h", 0): 1}


def test_what_a_handler_says_of_a_parked_message_is_done(cluster, tmp_path):
    answers = {b"dead": Settle.dead("poison"), b"later": Settle.later("30s"), b"drop": Settle.DROP}
    cluster.refusals.update({body: [REFUSED] for body in answers})
    calls = []

    def function(message, now_ms):
        calls.append((message.body, now_ms))
        if sum(body == message.body for body, _ in calls) == 1:
            raise ValueError
        if sum(body == message.body for body, _ in calls) == 2:
            return answers[message.body]
        return None

    handle_with(cluster, answers, function, lambda: len(calls) >= 7, concurrency=1, local_retries=0, park=tmp_path)
    later = [at_ms for body, at_ms in calls if body == b"later"]
    assert later[2] - later[1] >= 30_000
    parking = Parking(tmp_path, "orders", "shop.h", 1 << 20)
    assert (len(parking), parking.dead) == (0, 1)  # what is given up stays in the file for somebody to look at


def test_a_parking_that_is_full_leaves_the_message_to_the_broker(cluster, tmp_path, caplog):
    cluster.refusals[b"bad"] = [REFUSED]

    async def work():
        async with fake_async_client(cluster, outbox_bytes_max=10) as mq:
            await mq.send("orders", b"bad", partition=0)

            @mq.handler("orders", group="h", local_retries=0, park=tmp_path)
            async def handle(message):
                raise ValueError

            async def watch():
                while not cluster.retried:
                    await asyncio.sleep(0.01)
                mq.stop()

            await asyncio.gather(mq.run(), watch())

    run_virtual(cluster, work())
    assert "cannot be parked" in caplog.text
    assert len(cluster.retried) == 1


def delivery_of(cluster, body=b"x"):
    from client.fix_client import fake_client

    with fake_client(cluster) as mq:
        mq.send("orders", body, partition=0, tags=["a", "b"], uniq_id=body.decode())
        with mq.reader("orders", start="earliest", stop="now") as reader:
            return list(reader)[-1]


def test_a_parked_message_is_on_disk_when_it_is_taken(cluster, tmp_path):
    parking = Parking(tmp_path, "orders", "shop.h", 1 << 20)
    parking.keep(delivery_of(cluster), now_ms=0)
    parking.keep(delivery_of(cluster), now_ms=0)  # the same again
    assert parking.holds("x")
    (path,) = tmp_path.glob("*/outbox.log")
    data = path.read_bytes()
    with pytest.raises(OutboxLockedError):
        Parking(tmp_path, "orders", "shop.h", 1 << 20)
    parking.close()
    again = Parking(tmp_path, "orders", "shop.h", 1 << 20)
    parked = again.take(0)
    assert (parked.delivery.body, parked.delivery.tags, parked.delivery.message_id) == (b"x", ("a", "b"), "x")
    again.said(parked, None, 0)
    again.close()
    for cut in range(len(data)):  # torn by a crash: it was not promised yet, and nothing else is harmed
        path.write_bytes(data[:cut])
        torn = Parking(tmp_path, "orders", "shop.h", 1 << 20)
        assert len(torn) == 0
        torn.close()


def test_a_parking_is_bounded(cluster, tmp_path):
    parking = Parking(tmp_path, "orders", "shop.h", 400)
    parking.keep(delivery_of(cluster, b"a"), 0)
    with pytest.raises(OutboxFullError):
        parking.keep(delivery_of(cluster, b"b" * 1000), 0)
    assert not parking.holds("b" * 1000)
    parked = parking.take(10_000)
    assert parking.take(10_000) is None  # one that is being tried is not given out twice
    parking.said(parked, Settle.RETRY, 10_000)
    assert parking.wait_ms(10_000) == 2000


# With threads


def until(condition, seconds=10):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.005)
    return False


def run_in_thread(mq):
    thread = threading.Thread(target=mq.run)
    thread.start()
    return thread


def test_with_threads_a_failure_is_tried_again_on_the_spot_then_by_the_broker(server):
    server.cluster.retry_ms = 50
    calls = []
    with lakemq.connect(server.url, app="shop") as mq:

        @mq.handler("orders", group="h", local_retries=2)
        def handle(message):
            calls.append((message.attempt, message.offset))
            if message.attempt == 1:
                raise ValueError("no")
            return Settle.DEAD if message.attempt == 2 else None

        mq.send("orders", b"x", partition=0)
        thread = run_in_thread(mq)
        assert until(lambda: server.cluster.dead)
        mq.stop()
        thread.join(10)
    assert calls == [(1, 0)] * 3 + [(2, 0)]
    assert server.cluster.dead == [(b"x", "", 2)]


def test_with_threads_what_cannot_be_taken_back_is_parked(server, tmp_path):
    server.cluster.refusals[b"bad"] = [REFUSED]
    calls = []
    with lakemq.connect(server.url, app="shop") as mq:

        @mq.handler("orders", group="h", local_retries=0, park=tmp_path)
        def handle(message):
            calls.append(message.body)
            if len(calls) < 3:
                raise ValueError

        mq.send("orders", b"bad", partition=0)
        thread = run_in_thread(mq)
        assert until(lambda: len(calls) >= 3)
        assert server.cluster.acks == {("orders", "shop.h", 0): 1}
        mq.stop()
        thread.join(10)
    parking = Parking(tmp_path, "orders", "shop.h", 1 << 20)
    assert len(parking) == 0
    parking.close()


def test_with_threads_stopping_does_not_wait_for_the_tries_on_the_spot(server):
    with lakemq.connect(server.url, app="shop") as mq:

        @mq.handler("orders", group="h", local_retries=100)
        def handle(message):
            mq.stop()
            raise ValueError

        mq.send("orders", b"x", partition=0)
        before = time.monotonic()
        mq.run()
        assert time.monotonic() - before < 5
    assert len(server.cluster.retried) == 1
