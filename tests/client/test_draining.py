"""A broker that is about to go says so: others are preferred, nobody sees an error, and it is used again after that."""

from random import Random

import pytest

from client.fake_broker import DOCUMENTED, FakeCluster
from client.fix_client import fake_async_client, fake_client, run_virtual
from lakemq.errors import InitializationError, ServiceUnavailableError
from lakemq.wire.commands import decode_request, encode_notice
from lakemq.wire.produce import ProduceMessage
from lakemq.wire.session import AddConnection, FetchHealth, Heartbeat


class DrainingCluster(FakeCluster):
    """Broker 1 may be about to go: it refuses messages and, if it is polite, says so with its heartbeats."""

    def __init__(self, **options):
        super().__init__(brokers=2, **options)
        self.is_draining = False
        self.is_polite = False
        self.refused = 0

    def handle(self, connection, frame):
        self.notification = "draining" if self._says_so(connection) else ""
        super().handle(connection, frame)

    def _says_so(self, connection):
        return self.is_draining and self.is_polite and connection.broker == 1

    def _produce(self, connection, command):
        if self.is_draining and connection.broker == 1:
            self.refused += 1
            raise ServiceUnavailableError("the broker is stopping")
        return super()._produce(connection, command)


class PoliteCluster(DrainingCluster):
    def handle(self, connection, frame):
        header, command = decode_request(bytearray(frame), DOCUMENTED)
        if isinstance(command, Heartbeat) and self._says_so(connection):
            self.requests.append((connection.broker, command))
            connection.answer([encode_notice("draining: soon", header, dialect=DOCUMENTED, send_time_ms=0)])
            return
        super().handle(connection, frame)


def brokers_of(cluster, since):
    return [broker for broker, command in cluster.requests[since:] if isinstance(command, ProduceMessage)]


def test_a_broker_that_refuses_because_it_stops_is_left_for_the_other():
    cluster = DrainingCluster()
    with fake_client(cluster) as mq:
        for n in range(20):
            mq.send("orders", b"%d" % n)
        assert set(brokers_of(cluster, 0)) == {1, 2}
        cluster.is_draining = True
        for n in range(20, 120):
            assert mq.send("orders", b"%d" % n).offset is not None
        assert sorted(map(int, cluster.bodies())) == list(range(120))
        spent_ms = cluster.clock.now_ms - 1_000_000
        assert cluster.refused <= 2 + spent_ms // 1000  # not asked for every message, but now and then
        cluster.is_draining = False
        cluster.clock.now_ms += 2000
        since = len(cluster.requests)
        for _ in range(20):
            mq.send("orders", b"again")
        assert set(brokers_of(cluster, since)) == {1, 2}


def test_messages_in_the_background_go_to_the_other_too():
    cluster = DrainingCluster()
    with fake_client(cluster) as mq:
        mq.send("orders", b"first")
        cluster.is_draining = True
        for n in range(50):
            future = mq.send_soon("orders", b"%d" % n)
            mq.flush()
            assert future.result().offset is not None
        assert cluster.refused <= 3


def test_a_message_with_a_key_waits_until_its_broker_is_back():
    cluster = DrainingCluster()
    with fake_client(cluster) as mq:
        place = next(n for n in range(50) if mq.send("orders", b"?", key=f"k{n}").partition % 2 == 0)
        until_ms = cluster.clock.now_ms + 2000
        cluster.refuse_until(ProduceMessage, ServiceUnavailableError("stopping"), until_ms)
        assert mq.send("orders", b"!", key=f"k{place}").partition % 2 == 0
        assert until_ms <= cluster.clock.now_ms < until_ms + 1500


def test_who_says_so_when_greeted_is_not_sent_to_at_all():
    cluster = DrainingCluster()
    cluster.is_draining = cluster.is_polite = True
    with fake_client(cluster) as mq:
        mq.send("orders", b"0", partition=1)  # of broker 2
        session = next(one for one in mq._core._sessions.values() if one.address.port == 1)
        assert session.is_leaving
        for n in range(30):
            mq.send("orders", b"%d" % n)
        assert cluster.refused == 0
        assert set(brokers_of(cluster, 0)) == {2}


def test_a_notice_with_the_heartbeat_is_heeded_and_taken_back():
    cluster = PoliteCluster()
    with fake_client(cluster, heartbeat_ms=1000) as mq:
        for n in range(20):
            mq.send("orders", b"%d" % n)
        cluster.is_draining = cluster.is_polite = True
        idle(mq, cluster, 2500)
        since = len(cluster.requests)
        for n in range(30):
            mq.send("orders", b"%d" % n)
        assert cluster.refused == 0
        assert set(brokers_of(cluster, since)) == {2}
        cluster.is_draining = cluster.is_polite = False
        idle(mq, cluster, 2500)
        since = len(cluster.requests)
        for n in range(30):
            mq.send("orders", b"%d" % n)
        assert set(brokers_of(cluster, since)) == {1, 2}
    assert cluster.count(Heartbeat) >= 2


def idle(mq, cluster, span_ms):
    until_ms = cluster.clock.now_ms + span_ms
    while cluster.clock.now_ms < until_ms:
        cluster.clock.now_ms += 1001
        mq._pump.look()
        mq._pump.look()


def test_where_all_are_about_to_go_they_are_asked_all_the_same():
    cluster = FakeCluster(brokers=2)
    cluster.notification = "draining for an upgrade"
    with fake_client(cluster) as mq:
        assert mq.send("orders", b"x").offset == 0
    assert cluster.count(AddConnection) >= 1


def test_the_asyncio_client_does_the_same():
    cluster = DrainingCluster()

    async def work():
        async with fake_async_client(cluster) as mq:
            await mq.send("orders", b"first")
            cluster.is_draining = True
            for n in range(50):
                assert (await mq.send("orders", b"%d" % n)).offset is not None

    run_virtual(cluster, work())
    assert cluster.refused <= 3
    assert len(cluster.bodies()) == 51


@pytest.mark.parametrize("text", ["", "welcome", "dra"])
def test_any_other_notice_means_nothing(text):
    cluster = FakeCluster()
    cluster.notification = text
    with fake_client(cluster) as mq:
        assert not any(one.is_leaving for one in mq._core._sessions.values())


# --- how well a broker is --------------------------------------------------------------------------------------------


def test_a_broker_that_says_it_is_ill_is_sent_nothing_until_it_is_well():
    cluster = FakeCluster(brokers=2)
    with fake_client(cluster, metadata_ms=1000) as mq:
        for number in range(20):
            mq.send("orders", b"%d" % number)
        assert set(brokers_of(cluster, 0)) == {1, 2}
        cluster.health[1] = 0.0
        cluster.clock.now_ms += 1001
        for _ in range(5):  # the metadata are asked for beside them, then how the brokers are
            mq.send("orders", b"x")
        since = len(cluster.requests)
        for number in range(50):
            mq.send("orders", b"%d" % number)
        assert set(brokers_of(cluster, since)) == {2}
        cluster.health.clear()
        cluster.clock.now_ms += 1001
        for _ in range(5):
            mq.send("orders", b"x")
        since = len(cluster.requests)
        for number in range(50):
            mq.send("orders", b"%d" % number)
        assert set(brokers_of(cluster, since)) == {1, 2}
        asked = [broker for broker, command in cluster.requests if isinstance(command, FetchHealth)]
        assert len(asked) <= 6, "once for each time that the metadata is asked for"


def test_with_one_broker_nobody_asks_how_it_is():
    cluster = FakeCluster()
    with fake_client(cluster) as mq:
        mq.send("orders", b"x")
        cluster.clock.now_ms += 100_000
        mq.send("orders", b"y")
    assert cluster.count(FetchHealth) == 0


def test_a_broker_that_does_not_know_its_apps_yet_is_passed_over():
    class Starting(FakeCluster):
        def _add_connection(self, connection, command):
            if connection.broker == 1:
                raise InitializationError("the broker has not got the topics and apps from the first worker yet")
            return super()._add_connection(connection, command)

    for seed in range(6):  # whichever broker is asked first
        with fake_client(Starting(brokers=2), chance=Random(seed).random) as mq:
            mq.reach()
