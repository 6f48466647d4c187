"""Messages to be delivered later, or not after a time: what is sent, what is refused, what the sender hears."""

from datetime import UTC, datetime, timedelta

import pytest

from client.fake_broker import FakeCluster
from client.fix_client import fake_async_client, fake_client, run_virtual
from lakemq.client.outgoing import Message
from lakemq.envelope import unpack_all
from lakemq.errors import BadParameterError
from lakemq.message import BatchMessage
from lakemq.wire.produce import ProduceMessage

HOUR_MS = 3_600_000


@pytest.fixture
def cluster():
    return FakeCluster()


@pytest.fixture
def mq(cluster):
    with fake_client(cluster) as client:
        yield client


def sent(cluster):
    """Every MESSAGE that left, in order."""
    found = []
    for command in cluster.commands(ProduceMessage):
        found += unpack_all(bytes(command.topics[0].messages.joined()))
    return found


@pytest.mark.parametrize("delay", ["2h", timedelta(hours=2), 7200, 7200.0])
def test_a_delay_is_a_moment_to_the_broker(mq, cluster, delay):
    receipt = mq.send("orders", b"x", delay=delay, headers={"v": "2"})
    (message,) = sent(cluster)
    assert message.attributes == {"v": "2", "DELIVER_AT": f"+{2 * HOUR_MS}"}, "by the broker's clock"
    assert receipt.offset is None
    assert receipt.partition is not None
    assert receipt.message_id is None
    assert cluster.bodies() == []


def test_a_moment_is_a_datetime_or_milliseconds(mq, cluster):
    moment = datetime(2033, 5, 18, 3, 33, 20, tzinfo=UTC)
    mq.send("orders", b"x", deliver_at=moment)
    mq.send("orders", b"x", deliver_at=2_000_000_000_000)
    assert [one.attributes["DELIVER_AT"] for one in sent(cluster)] == ["2000000000000"] * 2


def test_a_moment_that_is_past_is_no_delay(mq, cluster):
    assert mq.send("orders", b"x", deliver_at=1_600_000_000_000).offset == 0
    assert mq.send("orders", b"x", partition=0, delay=0).offset is not None


def test_expiry_is_a_span_from_now_or_a_datetime(mq, cluster):
    mq.send("orders", b"x", expire="1h")
    mq.send("orders", b"x", expire=datetime(2033, 5, 18, 3, 33, 20, tzinfo=UTC))
    mq.send("orders", b"x", delay="1h", expire="2h")
    first, second, third = sent(cluster)
    assert first.attributes == {"EXPIRE": f"+{HOUR_MS}"}, "by the broker's clock"
    assert second.attributes == {"EXPIRE": "2000000000000"}
    assert third.attributes["EXPIRE"] == f"+{HOUR_MS}", "after it is due"


@pytest.mark.parametrize(
    ("times", "why"),
    [
        ({"delay": "1h", "deliver_at": 2_000_000_000_000}, "not both"),
        ({"delay": -1}, "span of time"),
        ({"delay": timedelta(seconds=-1)}, "span of time"),
        ({"delay": "soon"}, "span of time"),
        ({"deliver_at": -1}, "deliver_at"),
        ({"deliver_at": True}, "deliver_at"),
        ({"deliver_at": "2033-01-01"}, "deliver_at"),
        ({"expire": -1}, "span of time"),
        ({"expire": 0}, "is over before"),
        ({"expire": "1h", "delay": "2h"}, "is over before"),
        ({"expire": datetime(2001, 1, 1, tzinfo=UTC)}, "is over before"),
        ({"delay": "1h", "headers": {"DELAY_LEVEL": "3"}}, "among the headers"),
        ({"delay": "1h", "headers": {"DELIVER_AT": "3"}}, "among the headers"),
        ({"expire": "1h", "headers": {"EXPIRE": "3"}}, "among the headers"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_leaves(mq, cluster, times, why):
    with pytest.raises(BadParameterError, match=why):
        mq.send("orders", b"x", **times)
    with pytest.raises(BadParameterError, match=why):
        mq.send_soon("orders", b"x", **times)
    ((_, error),) = mq.send_many("orders", [Message(b"x", **times)]).failed
    assert why in str(error)
    mq.flush()
    assert cluster.count(ProduceMessage) == 0


def test_what_waits_travels_alone(mq, cluster):
    futures = [mq.send_soon("orders", b"%d" % n, partition=0, delay="1h" if n == 2 else None) for n in range(5)]
    mq.flush()
    assert [future.result().offset for future in futures] == [0, 1, None, 2, 3]
    kinds = [isinstance(one, BatchMessage) for one in sent(cluster)]
    assert kinds == [True, False, True]
    report = mq.send_many("orders", [Message(b"a"), Message(b"b", expire="1h"), Message(b"c", deliver_at=1)])
    assert len(report.ok) == 3
    assert not any(isinstance(one, BatchMessage) for one in sent(cluster)[3:])


def test_the_asyncio_client_does_the_same(cluster):
    async def work():
        async with fake_async_client(cluster) as mq:
            assert (await mq.send("orders", b"x", delay="1h")).offset is None
            future = await mq.send_soon("orders", b"y", deliver_at=2_000_000_000_000)
            await mq.flush()
            assert (await future).offset is None
            with pytest.raises(BadParameterError):
                await mq.send("orders", b"x", delay="1h", deliver_at=1)
            with pytest.raises(BadParameterError):
                await mq.send_soon("orders", b"x", delay=-1)

    run_virtual(cluster, work())
    assert [body for _, _, body in cluster.delayed] == [b"x", b"y"]
