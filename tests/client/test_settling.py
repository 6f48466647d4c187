"""What a consumer says of a message that did not work out, and what it gets again; filters of a subscription."""

import pytest

from client.fake_broker import FakeCluster
from client.fix_client import fake_async_client, fake_client, run_virtual
from lakemq.client.outgoing import Message
from lakemq.errors import BadParameterError, RetryStoreError, UnsupportedCommandError
from lakemq.wire.consume import RETRY_PARTITION, CommitAck
from lakemq.wire.own import BY_POLICY, SetFilter, Settle, SettleOutcome
from lakemq.wire.session import AddConsumer


@pytest.fixture
def cluster():
    return FakeCluster(partitions=1)


@pytest.fixture
def mq(cluster):
    with fake_client(cluster) as client:
        yield client


def fill(mq, count, is_batch=False):
    if is_batch:
        for n in range(count):
            mq.send_soon("orders", b"%d" % n, partition=0)
        mq.flush()
    else:
        for n in range(count):
            mq.send("orders", b"%d" % n, partition=0)


def settlements(cluster):
    return [one for command in cluster.commands(Settle) for topic in command.topics for one in topic.settlements]


def test_a_retry_without_more_to_say_is_an_ack_of_its_kind(mq, cluster):
    fill(mq, 1)
    with mq.consumer("orders", group="g", auto_ack=False) as consumer:
        consumer.receive()[0].retry()
    assert cluster.count(Settle) == 0
    ((ack,),) = [topic.partitions[0].acks for topic in cluster.commands(CommitAck)[0].topics]
    assert ack.type == 2


@pytest.mark.parametrize("is_batch", [False, True], ids=["alone", "in a batch"])
def test_each_message_is_settled_by_itself(mq, cluster, is_batch):
    fill(mq, 5, is_batch)
    with mq.consumer("orders", group="g", auto_ack=False) as consumer:
        messages = consumer.receive()
        messages[0].ack()
        messages[1].retry(after="30s")
        messages[2].dead_letter("no such customer")
        messages[3].retry(reason="card busy")
        messages[4].ack()
    assert [(one.index, one.outcome, one.after_ms, one.reason) for one in settlements(cluster)] == [
        (1, SettleOutcome.RETRY, 30_000, ""),
        (2, SettleOutcome.DEAD_LETTER, BY_POLICY, "no such customer"),
        (3, SettleOutcome.RETRY, BY_POLICY, "card busy"),
    ]
    assert cluster.acks == {("orders", "shop.g", 0): 5}
    assert cluster.dead == [(b"2", "no such customer", 1)]


def test_the_first_word_counts(mq, cluster):
    fill(mq, 2)
    with mq.consumer("orders", group="g", auto_ack=False) as consumer:
        first, second = consumer.receive()
        first.retry(after="1s")
        first.ack()
        first.dead_letter("too late")
        second.ack()
        second.dead_letter("too late")
    assert [one.outcome for one in settlements(cluster)] == [SettleOutcome.RETRY]
    assert cluster.dead == []


def test_a_retried_message_comes_again_with_its_own_place_and_the_number_of_the_attempt(mq, cluster):
    fill(mq, 3, is_batch=True)
    seen = []
    with mq.consumer("orders", group="g", auto_ack=False) as consumer:
        while len(seen) < 5:
            for message in consumer.receive():
                seen.append((message.body, message.partition, message.offset, message.attempt, message.message_id))
                if message.body == b"1" and message.attempt < 3:
                    message.retry(after="10s")
                else:
                    message.ack()
        assert message.headers == {}
        assert message.group == "shop.g"
    assert [one[0] for one in seen] == [b"0", b"1", b"2", b"1", b"1"]
    assert [one[1:] for one in seen if one[0] == b"1"] == [(0, 1, nth, "orders/0/1") for nth in (1, 2, 3)]
    assert cluster.retries == []  # acked, at the number it was delivered with
    assert [one.partition for one in settlements(cluster)] == [0, RETRY_PARTITION]
    assert consumer.lost == 0


def test_a_message_waits_for_its_retry_as_long_as_it_was_told(mq, cluster):
    fill(mq, 1)
    with mq.consumer("orders", group="g", auto_ack=False) as consumer:
        consumer.receive()[0].retry(after="30s")
        before_ms = cluster.clock.now_ms
        assert consumer.receive(timeout="20s") == []
        (again,) = consumer.receive(timeout="20s")
        assert 30_000 <= cluster.clock.now_ms - before_ms < 31_000
        again.ack()


def test_an_error_inside_with_message_says_why(mq, cluster):
    fill(mq, 1)
    with mq.consumer("orders", group="g", auto_ack=False) as consumer:
        (message,) = consumer.receive()
        with pytest.raises(ValueError, match="no"), message:
            raise ValueError("no such order")
    assert [one.reason for one in settlements(cluster)] == ["ValueError: no such order"]


def test_a_long_reason_is_cut(mq, cluster):
    fill(mq, 1)
    with mq.consumer("orders", group="g", auto_ack=False) as consumer:
        consumer.receive()[0].dead_letter("x" * 100_000)
    assert [len(one.reason) for one in settlements(cluster)] == [1000]


def test_a_broker_that_does_not_know_it_is_told_what_it_knows(mq, cluster):
    fill(mq, 4)
    cluster.fail(Settle, UnsupportedCommandError("type 62"), times=99)
    with mq.consumer("orders", group="g", auto_ack=False, count=2) as consumer:
        for _ in range(2):
            first, second = consumer.receive()
            first.retry(after="1h", reason="busy")
            second.dead_letter("bad")
    types = [a.type for c in cluster.commands(CommitAck) for t in c.topics for p in t.partitions for a in p.acks]
    assert types == [2, 3, 2, 3]
    assert cluster.count(Settle) == 1  # asked once
    assert cluster.acks == {("orders", "shop.g", 0): 4}


def test_a_retry_that_the_broker_cannot_take_now_is_told_again(mq, cluster):
    fill(mq, 3)
    cluster.refusals[b"1"] = [RetryStoreError.status] * 3
    with mq.consumer("orders", group="g", auto_ack=False) as consumer:
        messages = consumer.receive()
        for message in messages:
            message.retry(reason="busy")
        assert consumer.receive(timeout="800ms") == []
        assert cluster.acks == {("orders", "shop.g", 0): 3}
    assert [one.index for one in settlements(cluster)] == [0, 1, 2, 1, 1, 1]
    assert consumer.lost == 0


def test_what_is_no_longer_lent_is_lost_and_comes_again(mq, cluster, caplog):
    fill(mq, 2)
    with mq.consumer("orders", group="g", auto_ack=False) as consumer:
        first, second = consumer.receive()
        cluster.leases.clear()
        first.retry(after="1s")
        second.ack()
        assert [one.offset for one in consumer.receive(timeout="10s")] == [0, 1]
        assert consumer.lost == 2
        assert first.is_lost


def test_the_asyncio_client_does_the_same(cluster):
    async def work():
        async with fake_async_client(cluster) as mq:
            await mq.send_many("orders", [Message(b"%d" % n, partition=0) for n in range(3)])
            async with mq.consumer("orders", group="g", auto_ack=False) as consumer:
                first, second, third = await consumer.receive()
                first.ack()
                second.retry(after="5s")
                third.dead_letter("bad")
                (again,) = await consumer.receive(timeout="10s")
                assert (again.partition, again.offset, again.attempt) == (0, 1, 2)
                again.ack()

    run_virtual(cluster, work())
    assert cluster.dead == [(b"2", "bad", 1)]
    assert cluster.retries == []


@pytest.mark.parametrize(
    ("wanted", "text"),
    [
        ({"tags": "paid | refund"}, "paid | refund"),
        ({"tags": ["paid", "refund"]}, "paid || refund"),
        ({"tags": []}, "*"),
        ({"filter": "total > 100"}, "total > 100"),
        ({"filter": ""}, ""),
    ],
)
def test_a_filter_is_set_before_anything_is_fetched(mq, cluster, wanted, text):
    fill(mq, 1)
    with mq.consumer("orders", group="g", **wanted) as consumer:
        assert len(consumer.receive()) == 1
        assert len(consumer.receive(timeout="1s")) == 0
    kinds = [type(command) for _, command in cluster.requests]
    assert kinds[kinds.index(AddConsumer) + 1] is SetFilter
    assert cluster.filters == {("orders", "shop.g"): text}
    assert cluster.count(SetFilter) == 1


def test_without_a_filter_the_subscription_stays_as_it_is(mq, cluster):
    fill(mq, 1)
    with mq.consumer("orders", group="g") as consumer:
        assert len(consumer.receive()) == 1
    assert cluster.count(SetFilter) == 0


def test_a_new_connection_is_told_again(mq, cluster):
    fill(mq, 1)
    with mq.consumer("orders", group="g", tags="paid") as consumer:
        assert len(consumer.receive()) == 1
        for connection in list(cluster.connections):
            connection.close()
        fill(mq, 1)
        assert consumer.receive(timeout="10s")
    assert cluster.count(SetFilter) == 2


def test_a_filter_that_the_broker_refuses_ends_the_consumer(mq, cluster):
    cluster.fail(SetFilter, BadParameterError("filter, column 3: expected ="))
    with mq.consumer("orders", group="g", filter="a b") as consumer, pytest.raises(BadParameterError, match="column 3"):
        consumer.receive()


def test_tags_and_a_filter_at_once_are_refused(mq, cluster):
    with pytest.raises(BadParameterError, match="TAGS"):
        mq.consumer("orders", tags="paid", filter="a = 1")
    with pytest.raises(BadParameterError, match="TAGS"):
        mq.handler("orders", tags="paid", filter="a = 1")
