"""The blocking client against a scripted cluster: sends, retries, receives, acks."""

from random import Random

import pytest

import lakemq
from client.fake_broker import FakeCluster
from client.fix_client import fake_client
from lakemq.client.errors import BrokerUnreachableError, BufferFullError, ClosedError, SendTimeoutError
from lakemq.client.outgoing import Message
from lakemq.envelope import unpack
from lakemq.errors import (
    AuthenticationError,
    BadParameterError,
    BrokerBusyError,
    NotLeaderError,
    TopicNotFoundError,
    TopicNotWritableError,
    WriteTimeoutError,
)
from lakemq.wire.consume import CommitAck, FetchTopicMessage
from lakemq.wire.metadata import FetchCluster
from lakemq.wire.own import ExtendLease
from lakemq.wire.produce import ProduceMessage
from lakemq.wire.session import AddConnection, AddProducer, Heartbeat


@pytest.fixture
def cluster():
    return FakeCluster()


@pytest.fixture
def mq(cluster):
    with fake_client(cluster) as client:
        yield client


def test_a_message_comes_back_with_all_that_was_sent_with_it(cluster, mq):
    receipt = mq.send("orders", {"id": 1}, key="c-7", tags=["paid", "new"], headers={"v": "2"}, uniq_id="u1")
    assert (receipt.topic, receipt.offset, receipt.acks, receipt.message_id) == ("orders", 0, "flush", "u1")
    with mq.consumer("orders", group="g") as consumer:
        (got,) = consumer.receive(10)
    assert got.json() == {"id": 1}
    assert got.text() == '{"id":1}'
    assert (got.topic, got.partition, got.offset) == ("orders", receipt.partition, 0)
    assert (got.key, got.tags, got.headers, got.message_id) == ("c-7", ("paid", "new"), {"v": "2"}, "u1")
    assert got.sent_at == got.stored_at == cluster.clock.wall_ms()
    assert got.attempt == 1


@pytest.mark.parametrize("acks", ["receive", "none"])
def test_without_a_confirmed_place_there_is_no_offset(mq, cluster, acks):
    receipt = mq.send("orders", "x", acks=acks)
    assert receipt.offset is None
    assert receipt.message_id is None
    assert cluster.bodies() == [b"x"]


def test_one_connection_introduces_itself_once(mq, cluster):
    for _ in range(3):
        mq.send("orders", b"x")
    assert cluster.count(AddConnection) == 1
    assert cluster.count(AddProducer) == 1
    assert cluster.count(FetchCluster) == 1
    (hello,) = cluster.commands(AddConnection)
    assert hello.app == "shop"
    assert hello.version.startswith("lakemq-python/")


def test_a_wrong_token_is_told_at_once(cluster):
    cluster.token = "secret"
    with pytest.raises(AuthenticationError):
        fake_client(cluster, token="guess")


def test_nobody_there_is_told_at_once(cluster):
    cluster.stop(1)
    before = cluster.clock.now_ms
    with pytest.raises(BrokerUnreachableError, match="refused"):
        fake_client(cluster)
    assert cluster.clock.now_ms == before


def test_an_unknown_topic_is_the_brokers_error(mq):
    with pytest.raises(TopicNotFoundError):
        mq.send("nowhere", b"x")


def test_what_can_never_be_sent_is_refused_before_anything_leaves(mq, cluster):
    before = len(cluster.requests)
    for wrong in (
        lambda: mq.send("orders", b"x" * (5 << 20)),
        lambda: mq.send("orders", 42),
        lambda: mq.send("orders", b"x", key="k" * 101),
        lambda: mq.send("no such name!", b"x"),
        lambda: mq.send("orders", b"x", priority=200),
        lambda: mq.send("orders", b"x", acks="maybe"),
        lambda: mq.send_soon("orders", b"x", headers={"a": 1}),
    ):
        with pytest.raises(BadParameterError):
            wrong()
    assert [command for _, command in cluster.requests[before:] if isinstance(command, ProduceMessage)] == []


def test_a_partition_that_is_not_there_is_refused(mq):
    with pytest.raises(BadParameterError, match="no partition 9"):
        mq.send("orders", b"x", partition=9)


# Retries


def test_a_busy_broker_is_tried_three_times(mq, cluster):
    mq.send("orders", b"first")
    cluster.fail(ProduceMessage, BrokerBusyError(), times=10)
    with pytest.raises(BrokerBusyError):
        mq.send("orders", b"x")
    assert cluster.count(ProduceMessage) == 1 + 3


def test_an_error_that_will_not_pass_is_not_tried_again(mq, cluster):
    cluster.fail(ProduceMessage, TopicNotWritableError())
    with pytest.raises(TopicNotWritableError):
        mq.send("orders", b"x")
    assert cluster.count(ProduceMessage) == 1


def test_a_message_waits_for_a_new_leader(mq, cluster):
    mq.send("orders", b"first")
    cluster.fail(ProduceMessage, NotLeaderError(), times=6)
    assert mq.send("orders", b"x").offset is not None
    assert cluster.count(ProduceMessage) == 1 + 7
    assert cluster.count(FetchCluster) == 1 + 6


def test_a_lost_connection_is_opened_again(mq, cluster):
    mq.send("orders", b"first")
    cluster.drop(ProduceMessage)
    mq.send("orders", b"second")
    assert sorted(cluster.bodies()) == [b"first", b"second"]
    assert cluster.count(AddConnection) == 2


def test_an_unknown_outcome_is_tried_again_and_may_make_two(mq, cluster):
    cluster.fail(ProduceMessage, WriteTimeoutError(), is_stored=True)
    mq.send("orders", b"x", partition=0)
    assert cluster.bodies() == [b"x", b"x"]


def test_with_an_id_it_makes_one(mq, cluster):
    cluster.drop(ProduceMessage, is_stored=True)
    receipt = mq.send("orders", b"x", uniq_id="once", partition=0)
    assert cluster.bodies() == [b"x"]
    assert receipt.offset == 0


def test_at_most_once_raises_instead(cluster):
    with fake_client(cluster, retry_unknown=False) as mq:
        cluster.fail(ProduceMessage, WriteTimeoutError(), is_stored=True)
        with pytest.raises(WriteTimeoutError):
            mq.send("orders", b"x")
        assert cluster.bodies() == [b"x"]
        cluster.drop(ProduceMessage, is_stored=True)
        with pytest.raises(SendTimeoutError):
            mq.send("orders", b"y")
        cluster.fail(ProduceMessage, BrokerBusyError())
        mq.send("orders", b"z")
    assert sorted(cluster.bodies()) == [b"x", b"y", b"z"]


def test_the_time_out_bounds_everything(mq, cluster):
    mq.send("orders", b"first")
    cluster.swallow(ProduceMessage, times=100)
    before = cluster.clock.now_ms
    with pytest.raises(SendTimeoutError):
        mq.send("orders", b"x", timeout="1500ms")
    assert 1400 <= cluster.clock.now_ms - before <= 1500


@pytest.mark.parametrize("seed", range(20))
def test_a_broker_that_is_away_is_waited_for_and_found_again(cluster, seed):
    with fake_client(cluster, chance=Random(seed).random) as mq:
        mq.send("orders", b"first")
        cluster.stop(1)
        before = cluster.clock.now_ms
        with pytest.raises(BrokerUnreachableError):
            mq.send("orders", b"x")
        assert 3900 <= cluster.clock.now_ms - before <= 5000  # to the end of its time, or nearly
        cluster.down.clear()
        before = cluster.clock.now_ms
        mq.send("orders", b"y")
        assert cluster.clock.now_ms - before <= 1001
    assert sorted(cluster.bodies()) == [b"first", b"y"]


def test_a_broker_that_is_away_is_not_stormed(cluster):
    with fake_client(cluster, batch_count=1, delivery_timeout_ms=5000) as mq:
        mq.send("orders", b"warm")
        cluster.stop(1)
        before = len(cluster.connects)
        for _ in range(50):
            mq.send_soon("orders", b"x")
        mq.flush()
        assert 3 <= len(cluster.connects) - before <= 20  # not fifty times as many


def test_a_silent_broker_is_left_for_another():
    cluster = FakeCluster(brokers=3)
    with fake_client(cluster) as mq:
        mq.send("orders", b"warm")
        cluster.swallow(ProduceMessage, times=1)
        mq.send("orders", b"x")
        asked = [broker for broker, command in cluster.requests if isinstance(command, ProduceMessage)][1:]
    assert len(asked) == len(set(asked)) == 2
    assert b"x" in cluster.bodies()


@pytest.mark.parametrize("is_warm", [False, True])
def test_each_try_goes_to_another_broker_while_there_are_others(is_warm):
    for seed in range(10):
        cluster = FakeCluster(brokers=3)
        with fake_client(cluster, chance=Random(seed).random) as mq:
            for partition in range(3 * is_warm):
                mq.send("orders", b"warm", partition=partition)
            before = len(cluster.requests)
            cluster.fail(ProduceMessage, BrokerBusyError(), times=2)
            mq.send("orders", b"x")
        asked = [broker for broker, command in cluster.requests[before:] if isinstance(command, ProduceMessage)]
        assert sorted(asked) == [1, 2, 3]


@pytest.mark.parametrize("seed", range(10))
def test_a_leader_that_comes_late_is_still_found(cluster, seed):
    with fake_client(cluster, chance=Random(seed).random) as mq:
        mq.send("orders", b"warm")
        cluster.refuse_until(ProduceMessage, NotLeaderError(), cluster.clock.now_ms + 4700)
        mq.send("orders", b"x")
    assert len(cluster.bodies()) == 2


def test_a_connection_is_told_of_every_topic_before_it_sends_to_it():
    cluster = FakeCluster(topics=("a", "b"))
    with fake_client(cluster) as mq:
        for topic in ("a", "b", "a", "b"):
            mq.send(topic, b"x")
        cluster.drop(ProduceMessage)
        for topic in ("a", "b"):  # on a new connection, with metadata that is still known
            mq.send(topic, b"x")
    kinds = [type(command) for _, command in cluster.requests if isinstance(command, AddProducer | ProduceMessage)]
    first = [AddProducer, ProduceMessage] * 2 + [ProduceMessage] * 2
    assert kinds == [*first, ProduceMessage, *[AddProducer, ProduceMessage] * 2]


def test_a_message_with_a_key_stays_in_its_partition_when_tried_again():
    cluster = FakeCluster(brokers=3)
    with fake_client(cluster) as mq:
        place = mq.send("orders", b"a", key="k").partition
        cluster.fail(ProduceMessage, BrokerBusyError(), times=2)
        assert mq.send("orders", b"b", key="k").partition == place
    assert cluster.stored()[place] == [b"a", b"b"]


@pytest.mark.parametrize("way", ["swallow", "drop"])
@pytest.mark.parametrize("kind", ["send", "send_many", "send_soon"])
def test_I04_after_an_unknown_outcome_a_message_with_an_id_goes_to_no_other_broker(way, kind):
    """Which would not know the id, and store it again."""
    for seed in range(10):
        cluster = FakeCluster(brokers=3)
        with fake_client(cluster, chance=Random(seed).random) as mq:
            getattr(cluster, way)(ProduceMessage, times=2, is_stored=True)
            if kind == "send":
                receipt = mq.send("orders", b"x", uniq_id="order-1")
            elif kind == "send_many":
                report = mq.send_many("orders", [Message(b"x", uniq_id="order-1")])
                assert report.failed == []
                (receipt,) = report.ok
            else:
                receipt = mq.send_soon("orders", b"x", uniq_id="order-1").result()
        assert cluster.bodies() == [b"x"]
        assert cluster.stored()[receipt.partition][receipt.offset] == b"x"


def test_I04_a_message_with_an_id_goes_where_its_id_says_whoever_sends_it():
    cluster = FakeCluster(brokers=3, partitions=6)
    for seed in range(5):
        with fake_client(cluster, chance=Random(seed).random) as mq:
            for number in range(20):
                mq.send("orders", b"%d" % number, uniq_id=f"order-{number}")
    assert sorted(cluster.bodies()) == sorted(b"%d" % number for number in range(20))
    assert all(cluster.stored()), "over all partitions"


def test_a_message_with_an_id_whose_broker_is_away_goes_elsewhere_if_nothing_was_sent():
    cluster = FakeCluster(brokers=3, partitions=3)
    cluster.stop(2)
    with fake_client(cluster) as mq:
        for number in range(12):
            mq.send("orders", b"x", uniq_id=f"order-{number}")
    assert [len(one) > 0 for one in cluster.stored()] == [True, False, True]


@pytest.mark.parametrize("error", [BrokerBusyError(), BadParameterError("no"), NotLeaderError()])
def test_once_unknown_an_outcome_stays_unknown(cluster, error):
    with fake_client(cluster) as mq:
        cluster.drop(ProduceMessage, times=1, is_stored=True)
        cluster.fail(ProduceMessage, error, times=10**6)
        with pytest.raises(type(error)) as caught:
            mq.send("orders", b"x")
    assert cluster.bodies() == [b"x"]
    assert caught.value.maybe_written
    assert "may be stored" in str(caught.value)


@pytest.mark.parametrize("kind", ["send_soon", "send_many"])
def test_once_unknown_an_outcome_stays_unknown_in_batches(cluster, kind):
    with fake_client(cluster, delivery_timeout_ms=5000) as mq:
        cluster.swallow(ProduceMessage, times=1, is_stored=True)
        cluster.fail(ProduceMessage, BadParameterError("no"), times=50)
        if kind == "send_soon":
            error = mq.send_soon("orders", b"x").exception()
        else:
            ((_, error),) = mq.send_many("orders", [b"x"]).failed
    assert cluster.bodies() == [b"x"]
    assert error.maybe_written


def test_a_refusal_alone_is_no_unknown_outcome(mq, cluster):
    cluster.fail(ProduceMessage, BadParameterError("no"))
    with pytest.raises(BadParameterError) as caught:
        mq.send("orders", b"x")
    assert not caught.value.maybe_written


def test_what_was_on_its_way_when_the_client_is_closed_may_be_stored(cluster):
    mq = fake_client(cluster)
    mq.send("orders", b"warm")
    cluster.swallow(ProduceMessage, times=50, is_stored=True)
    future = mq.send_soon("orders", b"x")
    with pytest.raises(lakemq.LakeMQError):
        mq.flush(timeout="100ms")
    mq.close()
    assert b"x" in cluster.bodies()
    assert future.exception().maybe_written


@pytest.mark.parametrize("hangs_at", [AddConnection, AddProducer, FetchCluster, ProduceMessage])
def test_a_broker_that_hangs_leaves_time_for_the_others(hangs_at):
    """Connections are taken, and nothing is answered: three tries within the time, at different brokers."""
    for seed in range(6):
        cluster = FakeCluster(brokers=2)
        with fake_client(cluster, chance=Random(seed).random) as mq:
            if hangs_at is ProduceMessage:
                mq.send("orders", b"warm")
            cluster.swallow(hangs_at, times=10**6, broker=1)
            began_ms = cluster.clock.now_ms
            for _ in range(3):
                is_elsewhere = mq.send("orders", b"x").partition % 2 == 1
                assert is_elsewhere or hangs_at in (AddConnection, FetchCluster), (
                    "which was there, or is asked elsewhere"
                )
            assert cluster.clock.now_ms - began_ms < 5000, "and the second and third do not wait for it again"


def test_a_moved_leader_is_found(mq):
    cluster = FakeCluster(brokers=2, partitions=1)
    with fake_client(cluster) as mq:
        mq.send("orders", b"a")
        cluster.topics["orders"][0].leader = 2
        mq.send("orders", b"b")
    assert cluster.stored() == [[b"a", b"b"]]


def test_metadata_is_asked_for_again_after_a_while(mq, cluster):
    mq.send("orders", b"a")
    cluster.clock.now_ms += 31_000
    mq.send("orders", b"b")
    mq.send("orders", b"c")
    assert cluster.count(FetchCluster) == 2


def test_an_idle_connection_says_that_it_is_there(mq, cluster):
    mq.send("orders", b"a")
    with mq.consumer("orders", group="g", long_poll="100s") as consumer:
        consumer.receive(1)
        consumer.receive(1, timeout="70s")
    assert cluster.count(Heartbeat) >= 2


# Many, and soon


def test_send_many_makes_one_request_per_partition(mq, cluster):
    messages = [Message({"n": n}, key=str(n)) for n in range(100)]
    report = mq.send_many("orders", messages)
    report.raise_if_failed()
    assert len(report.ok) == 100
    assert cluster.count(ProduceMessage) == 4
    for n, receipt in enumerate(report.ok):
        assert cluster.stored()[receipt.partition][receipt.offset] == b'{"n":%d}' % n


def test_send_many_tells_each_outcome(mq, cluster):
    report = mq.send_many("orders", [b"good", 42, Message(b"bad", key="x" * 200), "also good"])
    assert [type(outcome).__name__ for outcome in report.outcomes] == [
        "Receipt",
        "BadParameterError",
        "BadParameterError",
        "Receipt",
    ]
    assert [place for place, _ in report.failed] == [1, 2]
    with pytest.raises(BadParameterError):
        report.raise_if_failed()
    assert sorted(cluster.bodies()) == [b"also good", b"good"]


def test_send_soon_collects_and_keeps_the_order(mq, cluster):
    futures = [mq.send_soon("orders", b"%d" % n, key="same") for n in range(2500)]
    assert [future.result().offset for future in futures] == list(range(2500))
    partition = futures[0].result().partition
    assert cluster.stored()[partition] == [b"%d" % n for n in range(2500)]
    assert cluster.count(ProduceMessage) == 3


def test_without_a_key_a_batch_goes_to_one_partition(mq, cluster):
    futures = [mq.send_soon("orders", b"%d" % n) for n in range(900)]
    mq.flush()
    assert len({future.result().partition for future in futures}) == 1
    (command,) = cluster.commands(ProduceMessage)
    assert command.topics[0].messages.count == 1


def test_what_cannot_share_a_carrier_travels_beside_it(mq, cluster):
    futures = [
        mq.send_soon("orders", b"a", partition=0),
        mq.send_soon("orders", b"b", partition=0),
        mq.send_soon("orders", b"c", partition=0, tags="x"),
        mq.send_soon("orders", b"d", partition=0, tags="x"),
        mq.send_soon("orders", b"e", partition=0, uniq_id="e"),
        mq.send_soon("orders", b"f", partition=0, priority=3),
        mq.send_soon("orders", b"g", partition=0, headers={"h": "1"}),
        mq.send_soon("orders", b"h", partition=0),
    ]
    mq.flush()
    assert [future.result().offset for future in futures] == list(range(8))
    assert cluster.stored()[0] == [b"a", b"b", b"c", b"d", b"e", b"f", b"g", b"h"]
    (command,) = cluster.commands(ProduceMessage)
    assert command.topics[0].messages.count == 5  # ab, cd, e, f, gh
    with mq.consumer("orders", group="g") as consumer:
        got = consumer.receive(10)
    assert [one.tags for one in got] == [(), (), ("x",), ("x",), (), (), (), ()]
    assert [one.headers for one in got][6:] == [{"h": "1"}, {}]
    assert got[4].message_id == "e"


def test_a_batch_leaves_when_it_is_old_enough(mq, cluster):
    future = mq.send_soon("orders", b"x")
    before = cluster.clock.now_ms
    future.result()
    assert cluster.clock.now_ms - before == 5


def test_what_has_an_outcome_takes_no_room(mq, cluster):
    for n in range(20):
        mq.send_soon("orders", b"x" * n)
    assert (mq._lanes.buffered_count, mq._lanes.buffered_bytes > 0) == (20, True)
    mq.flush()
    assert (mq._lanes.buffered_count, mq._lanes.buffered_bytes) == (0, 0)


def test_a_message_that_was_refused_leaves_no_empty_batch(mq, cluster):
    with pytest.raises(BadParameterError):
        mq.send_soon("orders", b"x", headers={"a": 1})
    mq.flush()
    assert cluster.count(ProduceMessage) == 0


def test_ordered_messages_are_marked_and_others_are_not(mq, cluster):
    for n, ordered in enumerate([True, True, False, False, True]):
        mq.send_soon("orders", b"%d" % n, partition=0, ordered=ordered)
    mq.flush()
    stored = [unpack(data) for _, _, data in cluster.topics["orders"][0].messages]
    assert [(message.is_ordered, message.index) for message in stored] == [(True, 0), (False, 2), (True, 4)]
    assert cluster.stored()[0] == [b"0", b"1", b"2", b"3", b"4"]


def test_callbacks_are_called(mq):
    seen = []
    future = mq.send_soon("orders", b"x")
    future.add_done_callback(lambda done: seen.append(done.result().offset))
    assert seen == []
    mq.flush()
    future.add_done_callback(lambda done: seen.append("late"))
    assert seen == [0, "late"]
    assert future.done()
    assert future.exception() is None
    assert not future.cancel()


def test_a_failed_batch_fails_all_its_futures(mq, cluster, caplog):
    cluster.fail(ProduceMessage, TopicNotWritableError())
    futures = [mq.send_soon("orders", b"x") for _ in range(3)]
    mq.flush()
    for future in futures:
        with pytest.raises(TopicNotWritableError):
            future.result()
        assert isinstance(future.exception(), TopicNotWritableError)
    assert "3 messages to orders were not sent" in caplog.text


def test_a_full_buffer_refuses_or_waits(cluster):
    with fake_client(cluster, buffer_count=10, batch_count=5, in_flight_max=1) as mq:
        mq.send("orders", b"warm")
        cluster.swallow(ProduceMessage, times=1)
        for _ in range(10):
            mq.send_soon("orders", b"x", timeout=0)
        with pytest.raises(BufferFullError):
            mq.send_soon("orders", b"x", timeout=0)
        before = cluster.clock.now_ms
        mq.send_soon("orders", b"x")  # waits until the lost request was given up and sent again
        assert cluster.clock.now_ms > before
    assert len(cluster.bodies()) == 12


def test_the_short_way_for_plain_messages_keeps_to_the_bounds(cluster):
    with fake_client(cluster, buffer_count=10) as mq:
        mq.send("orders", b"warm")
        for _ in range(10):
            mq.send_soon("orders", b"x", timeout=0)
        with pytest.raises(BufferFullError):
            mq.send_soon("orders", b"x", timeout=0)
    with fake_client(cluster, batch_bytes=1000, buffer_bytes=3000) as mq:
        mq.send("orders", b"warm")
        cluster.swallow(ProduceMessage, times=3)
        before = cluster.count(ProduceMessage)
        for _ in range(25):
            mq.send_soon("orders", bytes(100), timeout=0)
        assert cluster.count(ProduceMessage) - before == 2
        with pytest.raises(BufferFullError):
            mq.send_soon("orders", bytes(100), timeout=0)


def test_plain_messages_leave_by_number_too(mq, cluster):
    mq.send("orders", b"warm")
    futures = [mq.send_soon("orders", b"x") for _ in range(2500)]
    assert cluster.count(ProduceMessage) == 1 + 2
    mq.flush()
    assert cluster.count(ProduceMessage) == 1 + 3
    assert len({(one.result().partition, one.result().offset) for one in futures}) == 2500
    assert futures[0]._parcel.parts == []  # who keeps a future does not keep what was sent


def test_requests_in_flight_are_capped(cluster):
    with fake_client(cluster, batch_count=1, in_flight_max=4) as mq:
        mq.send("orders", b"warm")
        cluster.swallow(ProduceMessage, times=4)
        for _ in range(10):
            mq.send_soon("orders", b"x", partition=0)
        assert cluster.count(ProduceMessage) == 1 + 4


def test_of_an_ordered_partition_one_request_is_in_flight(cluster):
    with fake_client(cluster, batch_count=1) as mq:
        mq.send("orders", b"warm", partition=1)
        cluster.drop(ProduceMessage)
        futures = [mq.send_soon("orders", b"%d" % n, key="k", ordered=True) for n in range(10)]
        assert cluster.count(ProduceMessage) == 2
        mq.flush()
        partition = futures[0].result().partition
    assert cluster.stored()[partition][-10:] == [b"%d" % n for n in range(10)]


def test_a_long_line_of_ordered_messages_may_fail_at_once(cluster):
    with fake_client(cluster, batch_count=1) as mq:
        mq.send("orders", b"warm")
        cluster.swallow(ProduceMessage)
        futures = [mq.send_soon("orders", b"x", key="k", ordered=True) for _ in range(3000)]
        mq._pump.enter()
        mq._core.finish()
        mq._pump.leave()
        assert all(isinstance(future.exception(), ClosedError) for future in futures)


def test_a_topic_of_ordered_type_is_ordered_by_itself():
    cluster = FakeCluster(topic_type=2)
    with fake_client(cluster, batch_count=1) as mq:
        mq.send("orders", b"0")
        cluster.fail(ProduceMessage, BrokerBusyError(), times=2)
        for n in range(1, 6):
            mq.send_soon("orders", b"%d" % n)
        mq.flush()
    assert cluster.stored()[0] == [b"%d" % n for n in range(6)]


def test_close_sends_what_is_buffered(cluster):
    with fake_client(cluster) as mq:
        mq.send_soon("orders", b"x")
    assert cluster.bodies() == [b"x"]
    with pytest.raises(ClosedError):
        mq.send("orders", b"y")


# Receiving


def fill(cluster, count, partition=0, size=100):
    with fake_client(cluster, batch_count=size) as mq:
        for n in range(count):
            mq.send_soon("orders", b"%d" % n, partition=partition)


def fail_at(offset, source):
    for message in source:
        if message.offset == offset:
            raise ZeroDivisionError


def test_a_loop_gets_every_message_once_and_acks_it(mq, cluster):
    fill(cluster, 250)
    got = []
    with mq.consumer("orders", group="g") as consumer:
        for message in consumer:
            got.append(message.body)
            if len(got) == 250:
                consumer.stop()
    assert got == [b"%d" % n for n in range(250)]
    assert cluster.acks == {("orders", "shop.g", 0): 250}
    assert cluster.count(CommitAck) <= 2  # not one per message
    assert consumer.lost == 0


def test_what_was_not_asked_beyond_is_not_acked_after_an_error(mq, cluster):
    fill(cluster, 10)
    with pytest.raises(ZeroDivisionError), mq.consumer("orders", group="g") as consumer:
        fail_at(3, consumer)
    assert cluster.acks == {("orders", "shop.g", 0): 3}
    assert cluster.leases == {}


def test_a_loop_that_is_left_early_can_be_gone_on_with(mq, cluster):
    fill(cluster, 10)
    with mq.consumer("orders", group="g") as consumer:
        for message in consumer:
            if message.offset == 3:
                break
        rest = consumer.receive(100)
        assert [one.offset for one in rest] == [4, 5, 6, 7, 8, 9]
    assert cluster.acks == {("orders", "shop.g", 0): 10}


def test_leaving_in_peace_acks_what_was_handed_out_only(mq, cluster):
    fill(cluster, 10)
    with mq.consumer("orders", group="g") as consumer:
        for message in consumer:
            if message.offset == 3:
                break
    assert cluster.acks == {("orders", "shop.g", 0): 4}


def test_without_auto_ack_only_the_settled_prefix_is_acked(mq, cluster):
    fill(cluster, 10)
    with mq.consumer("orders", group="g", auto_ack=False) as consumer:
        messages = consumer.receive(10)
        for n in (0, 1, 2, 5, 6):
            messages[n].ack()
    assert cluster.acks == {("orders", "shop.g", 0): 3}


def test_a_message_to_be_retried_is_told_to_the_broker(mq, cluster):
    fill(cluster, 5)
    with mq.consumer("orders", group="g") as consumer:
        for message in consumer:
            if message.offset == 2:
                message.retry()
                message.ack()  # the first word counts
            if message.offset == 4:
                consumer.stop()
    assert cluster.retried == [("orders", "shop.g", 0, 2)]
    assert cluster.acks == {("orders", "shop.g", 0): 5}


def test_a_settled_lease_is_told_at_once_in_as_many_runs_as_it_takes(mq, cluster):
    fill(cluster, 6)
    with mq.consumer("orders", group="g", auto_ack=False, prefetch=0) as consumer:
        for n, message in enumerate(consumer.receive(10)):
            message.retry() if n in (2, 3) else message.ack()
        before = cluster.clock.now_ms
        mq.send("orders", b"x", partition=3)  # any call moves what has come
        mq.send("orders", b"x", partition=3)
        mq.send("orders", b"x", partition=3)
        assert cluster.clock.now_ms == before
        assert cluster.acks == {("orders", "shop.g", 0): 6}
        assert cluster.count(CommitAck) == 3


def test_a_delivery_is_a_context_manager(mq, cluster):
    fill(cluster, 3)
    with mq.consumer("orders", group="g", auto_ack=False) as consumer:
        first, second, third = consumer.receive(3)
        with first:
            pass
        with pytest.raises(ValueError), second:
            raise ValueError
        with pytest.raises(KeyboardInterrupt), third:
            raise KeyboardInterrupt
    assert cluster.retried == [("orders", "shop.g", 0, 1)]
    assert cluster.acks == {("orders", "shop.g", 0): 2}


def test_batches_are_filled_from_several_partitions(mq, cluster):
    fill(cluster, 30, partition=0)
    fill(cluster, 30, partition=1)
    got = []
    with mq.consumer("orders", group="g", prefetch=2) as consumer:
        for batch in consumer.batches(max_messages=50, max_wait="100ms"):
            got.append(len(batch))
            if sum(got) == 60:
                consumer.stop()
    assert got == [50, 10]
    assert cluster.acks == {("orders", "shop.g", 0): 30, ("orders", "shop.g", 1): 30}


def test_the_next_fetch_waits_at_the_broker_while_the_user_works(mq, cluster):
    fill(cluster, 10, partition=0)
    fill(cluster, 10, partition=1)
    with mq.consumer("orders", group="g", count=10) as consumer:
        consumer.receive(1)
        assert cluster.count(FetchTopicMessage) == 2
        assert len(cluster.leases) == 2


def test_without_prefetch_only_one_lease_is_in_hand(mq, cluster):
    fill(cluster, 10, partition=0)
    fill(cluster, 10, partition=1)
    with mq.consumer("orders", group="g", count=10, prefetch=0) as consumer:
        consumer.receive(1)
        assert cluster.count(FetchTopicMessage) == 1
        assert len(cluster.leases) == 1


def test_messages_of_all_brokers_are_received():
    cluster = FakeCluster(brokers=3, partitions=6)
    with fake_client(cluster) as mq:
        for partition in range(6):
            mq.send("orders", b"%d" % partition, partition=partition)
        got = set()
        with mq.consumer("orders", group="g") as consumer:
            for message in consumer:
                got.add(message.body)
                if len(got) == 6:
                    consumer.stop()
    assert len(cluster.acks) == 6


def test_a_lease_is_extended_while_a_message_is_worked_on(mq, cluster):
    fill(cluster, 2)
    with mq.consumer("orders", group="g", ack_timeout="10s") as consumer:
        (first,) = consumer.receive(1)
        for _ in range(20):  # the user's own work, with a look at the client now and then
            cluster.clock.now_ms += 2000
            cluster.tick()
            mq.send("orders", b"x", partition=3)
        first.ack()
        assert cluster.count(ExtendLease) >= 6
        assert [one.offset for one in consumer.receive(1)] == [1]
    assert cluster.acks["orders", "shop.g", 0] == 2
    assert consumer.lost == 0


def test_a_client_that_was_held_up_asks_the_broker_before_it_gives_a_lease_up(mq, cluster):
    fill(cluster, 2)
    with mq.consumer("orders", group="g", ack_timeout="10s", prefetch=0) as consumer:
        consumer.receive(1)
        cluster.clock.now_ms += 11_000  # past the end of the lease, and nobody has noticed
        mq.send("orders", b"x", partition=3)
        mq.send("orders", b"x", partition=3)
        assert cluster.count(ExtendLease) == 1
        assert [one.offset for one in consumer.receive(1)] == [1]
        cluster.clock.now_ms += 11_000
        cluster.tick()  # this time the broker has
        mq.send("orders", b"x", partition=3)
        mq.send("orders", b"x", partition=3)
        assert consumer.lost == 2 - cluster.acks.get(("orders", "shop.g", 0), 0)
        assert consumer.lost > 0


def test_a_lease_is_not_extended_for_ever(cluster):
    fill(cluster, 2)
    with (
        fake_client(cluster, max_processing_ms=30_000) as mq,
        mq.consumer("orders", group="g", ack_timeout="10s", prefetch=0) as consumer,
    ):
        (first,) = consumer.receive(1)
        for _ in range(30):
            cluster.clock.now_ms += 2000
            cluster.tick()
            mq.send("orders", b"x", partition=3)
        first.ack()
        assert consumer.lost == 2
        again = [one.offset for one in consumer.receive(10) if one.partition == 0]
        assert again == [0, 1] or [one.offset for one in consumer.receive(10)] == [0, 1]


def test_an_ack_that_is_refused_is_counted_and_the_messages_come_again(mq, cluster, caplog):
    fill(cluster, 3)
    with mq.consumer("orders", group="g") as consumer:
        assert len(consumer.receive(10)) == 3
        cluster.leases.clear()  # the broker gave them to somebody else
        got = consumer.receive(10)
        assert [one.offset for one in got] == [0, 1, 2]
        assert consumer.lost == 3
    assert "lease is lost" in caplog.text
    assert cluster.acks == {("orders", "shop.g", 0): 3}


def test_a_consumer_survives_the_loss_of_its_connection(mq, cluster, caplog):
    fill(cluster, 6, size=1)
    got = []
    with mq.consumer("orders", group="g", count=2) as consumer:
        for message in consumer:
            got.append(message.offset)
            if len(got) == 3:
                for connection in list(cluster.connections):
                    connection.close()
            if message.offset == 5:
                consumer.stop()
    assert sorted(set(got)) == [0, 1, 2, 3, 4, 5]
    assert cluster.acks == {("orders", "shop.g", 0): 6}


def test_receive_gives_up_in_time(mq, cluster):
    with mq.consumer("orders", group="g") as consumer:
        before = cluster.clock.now_ms
        assert consumer.receive(1, timeout="1200ms") == []
        assert cluster.clock.now_ms - before == 1200


def test_a_consumer_of_a_topic_that_is_not_there_says_so(mq):
    with pytest.raises(TopicNotFoundError), mq.consumer("nowhere") as consumer:
        consumer.receive(1)


def test_acks_are_sent_while_a_long_lease_is_worked_on(mq, cluster):
    fill(cluster, 100)
    with mq.consumer("orders", group="g") as consumer:
        for message in consumer:
            cluster.clock.now_ms += 10
            mq.send("orders", b"x", partition=3)  # any call moves things
            if message.offset == 50:
                assert 30 <= cluster.acks["orders", "shop.g", 0] <= 50
                consumer.stop()
    assert cluster.count(CommitAck) <= 8


def test_a_damaged_message_is_a_dead_letter_and_counted(mq, cluster, caplog):
    fill(cluster, 3, size=1)
    first, count, data = cluster.topics["orders"][0].messages[1]
    broken = bytearray(data)
    broken[47] ^= 1
    cluster.topics["orders"][0].messages[1] = (first, count, bytes(broken))
    with mq.consumer("orders", group="g") as consumer:
        assert [one.offset for one in consumer.receive(10)] == [0, 2]
    assert consumer.damaged == 1
    assert cluster.retried == []
    assert ["ChecksumError" in reason for _, reason, _ in cluster.dead] == [True]
    assert cluster.acks == {("orders", "shop.g", 0): 3}
    assert "dead letters" in caplog.text


# Reading, seeking, lag


def test_a_reader_reads_all_and_ends(mq, cluster):
    fill(cluster, 30, partition=0)
    fill(cluster, 20, partition=1, size=7)
    with mq.reader("orders", start="earliest", stop="now") as reader:
        got = [(one.partition, one.offset, one.body) for one in reader]
    assert sorted(got) == [(0, n, b"%d" % n) for n in range(30)] + [(1, n, b"%d" % n) for n in range(20)]
    assert cluster.acks == {}


def test_a_reader_begins_at_an_offset_inside_a_carrier(mq, cluster):
    fill(cluster, 30)
    with mq.reader("orders", start=25, stop=28) as reader:
        assert [one.offset for one in reader] == [25, 26, 27]


def test_a_reader_begins_at_a_moment(mq, cluster):
    fill(cluster, 5)
    cluster.clock.now_ms += 60_000
    fill(cluster, 5)
    with mq.reader("orders", start="-30s", stop="now") as reader:
        assert [one.offset for one in reader] == [5, 6, 7, 8, 9]


def test_a_reader_from_the_latest_gets_what_comes(mq, cluster):
    fill(cluster, 5)
    with mq.reader("orders") as reader:
        assert reader.receive(10, timeout="1s") == []
        mq.send("orders", b"new", partition=2)
        assert [one.body for one in reader.receive(10)] == [b"new"]


def test_a_reader_goes_on_where_it_was(mq, cluster, tmp_path):
    fill(cluster, 10)
    store = tmp_path / "positions"
    with mq.reader("orders", start="earliest", store=store) as reader:
        for message in reader:
            if message.offset == 3:
                break
    with mq.reader("orders", start="earliest", stop="now", store=store) as reader:
        assert [one.offset for one in reader] == [4, 5, 6, 7, 8, 9]


def test_after_an_error_a_reader_gets_the_message_again(mq, cluster, tmp_path):
    fill(cluster, 10)
    store = tmp_path / "positions"
    with pytest.raises(ZeroDivisionError), mq.reader("orders", start="earliest", store=store) as reader:
        fail_at(3, reader)
    with mq.reader("orders", start="earliest", stop="now", store=store) as reader:
        assert next(iter(reader)).offset == 3


def test_a_reader_can_be_moved(mq, cluster):
    fill(cluster, 10)
    got = []
    with mq.reader("orders", start="earliest", stop=10, partitions=[0]) as reader:
        for message in reader:
            got.append(message.offset)
            if len(got) == 3:
                reader.seek(partition=0, offset=7)
    assert got == [0, 1, 2, 7, 8, 9]


@pytest.mark.parametrize("offset", [5, 2990])
def test_an_answer_that_was_on_its_way_when_the_reader_was_moved_is_not_taken(mq, cluster, offset):
    fill(cluster, 3000)
    got = []
    with mq.reader("orders", start="earliest", partitions=[0]) as reader:
        got += [one.offset for one in reader.receive(1000)]  # the next fetch has left
        reader.seek(partition=0, offset=offset)
        got += [one.offset for one in reader.receive(10)]
    assert got == [*range(1000), *range(offset, offset + 10)]


def test_a_reader_whose_loop_was_left_early_can_be_gone_on_with(mq, cluster):
    fill(cluster, 10)
    with mq.reader("orders", start="earliest", stop="now") as reader:
        for message in reader:
            if message.offset == 3:
                break
        assert [one.offset for one in reader] == [4, 5, 6, 7, 8, 9]


def test_a_reader_skips_what_is_not_kept_and_says_so(mq, cluster, caplog):
    fill(cluster, 10, size=1)
    partition = cluster.topics["orders"][0]
    with mq.reader("orders", start="earliest", stop=10, partitions=[0]) as reader:
        assert [one.offset for one in reader.receive(2)] == [0, 1]
        partition.messages = partition.messages[5:]
        partition.first_index = 5
        reader.seek(partition=0, offset=2)
        assert [one.offset for one in reader.receive(100)] == [5, 6, 7, 8, 9]
        assert reader.skipped == 3
    assert "are not kept" in caplog.text


def test_seek_says_what_it_would_do_and_does_it_when_told(mq, cluster):
    fill(cluster, 10)
    cluster.acks["orders", "shop.g", 0] = 8
    moves = mq.seek("orders", "g", to="earliest")
    assert moves[0] == (0, 8, 0)
    assert cluster.acks["orders", "shop.g", 0] == 8
    assert mq.seek("orders", "g", to=5, partition=0, dry_run=False) == [(0, 8, 5)]
    assert cluster.acks == {("orders", "shop.g", 0): 5}
    mq.seek("orders", "g", to="latest", dry_run=False)
    assert cluster.acks["orders", "shop.g", 0] == 10


def test_lag_is_told_by_partition(mq, cluster):
    fill(cluster, 10)
    cluster.acks["orders", "shop.g", 0] = 4
    assert mq.lag("orders", "g")[:2] == [(0, 4, 10, 6), (1, 0, 0, 0)]
