"""The simulated network: order is kept in each direction, and nothing else is promised."""

import heapq
from itertools import count
from random import Random

import pytest

from lakemq.embedded import Engine
from lakemq.testing.clock import SimClock
from lakemq.testing.disk import SimDisk
from lakemq.testing.net import Network, Weather
from lakemq.wire.commands import decode_response, encode_request
from lakemq.wire.dialect import Dialect, Form
from lakemq.wire.frame import FrameDecoder
from lakemq.wire.session import FetchHealth, Heartbeat

CHOPPY = Weather(delay_ms=20, is_choppy=True)


class World:
    """An engine that ends its turns at once, a heap of events, and a network between it and its peers."""

    def __init__(self, seed=0):
        self.clock = SimClock()
        self.engine = Engine(SimDisk(), self.clock)
        self.heap, self.numbers = [], count()
        self.must_collect = self.is_collecting = False
        self.network = Network(Random(seed), self.at, self.clock.monotonic_ms, self, lambda data: None)

    def at(self, delay_ms, name, work):
        heapq.heappush(self.heap, (self.clock.monotonic_ms() + delay_ms, next(self.numbers), work))

    def act(self, name, work):
        if self.engine is None:
            return
        work(self.engine)
        self.must_collect = True
        while self.must_collect and not self.is_collecting:
            self.must_collect, self.is_collecting = False, True
            self.engine.settle()
            self.network.collect()
            self.is_collecting = False

    def run(self, for_ms=1000):
        until_ms = self.clock.monotonic_ms() + for_ms
        while self.heap and self.heap[0][0] <= until_ms:
            at_ms, _, work = heapq.heappop(self.heap)
            self.clock.pass_ms(at_ms - self.clock.monotonic_ms())
            work()
        self.clock.pass_ms(until_ms - self.clock.monotonic_ms())

    def connect(self, weather=CHOPPY):
        peer = Peer()
        peer.link = self.network.connect(peer, weather, "10.0.0.1")
        return peer


class Peer:
    def __init__(self):
        self.data, self.pieces, self.ends = b"", [], []

    def received(self, data, left_ms):
        assert "told" not in self.ends, "bytes after the end"
        self.data += data
        self.pieces.append(len(data))

    def let_go(self):
        self.ends.append("broker")

    def cut_off(self):
        self.ends.append("told")

    def ask(self, *request_ids, command=None):
        frames = [
            encode_request(command or Heartbeat(), form=Form(), request_id=number, send_time_ms=0)
            for number in request_ids
        ]
        self.link.send(b"".join(b"".join(one) for one in frames))

    @property
    def answers(self):
        frames = FrameDecoder().feed(self.data)
        return [decode_response(one, Dialect.DOCUMENTED)[0].request_id for one in frames]


@pytest.mark.parametrize("seed", range(20))
def test_bytes_come_in_order_however_they_are_cut(seed):
    world = World(seed)
    peer = world.connect()
    for number in range(30):
        peer.ask(number)
    world.run()
    assert peer.answers == list(range(30))


def test_pieces_may_be_single_bytes():
    world = World(3)
    peer = world.connect()
    for number in range(300):
        peer.ask(number)
    world.run()
    assert 1 in peer.pieces
    assert peer.answers == list(range(300))


@pytest.mark.parametrize("seed", range(30))
def test_F28_a_cut_loses_some_and_tells_both_sides_in_order(seed):
    world = World(seed)
    peer = world.connect()
    peer.ask(*range(50))
    world.run(for_ms=5)
    peer.link.cut(loses_reply=False)
    assert peer.ends == ["broker"]
    world.run()
    assert peer.ends == ["broker", "told"]
    assert not world.engine.broker.sessions.connections
    assert peer.answers == list(range(len(peer.answers)))


def test_F28_a_lost_reply_belongs_to_a_request_that_was_served():
    world = World()
    peer = world.connect()
    peer.ask(1, 2, 3, command=FetchHealth())
    peer.link.cut(loses_reply=True)
    world.run()
    assert peer.answers == []
    assert peer.ends == ["broker", "told"]
    assert world.engine.broker.metrics.requests["FETCH_HEALTH"] == 3


def test_a_slow_reader_holds_its_own_requests_up_and_gets_everything():
    world = World()
    peer = world.connect(Weather(reads_every_ms=50, output_bytes_max=60))
    quick = world.connect(Weather())
    for number in range(20):
        peer.ask(number)
        world.run(for_ms=1)
    quick.ask(7)
    world.run(for_ms=10)
    assert quick.answers == [7]
    assert len(peer.answers) < 20
    world.run(for_ms=2000)
    assert peer.answers == list(range(20))


def test_what_the_broker_closes_ends_after_what_it_said():
    world = World()
    peer = world.connect()
    peer.ask(1)
    peer.link.send(b"this is no frame, and there is no way on from here")
    world.run()
    assert peer.answers == [1]
    assert peer.ends == ["broker", "told"]


@pytest.mark.parametrize("seed", range(10))
def test_a_dead_broker_is_noticed(seed):
    world = World(seed)
    peer = world.connect()
    peer.ask(1)
    world.run(for_ms=3)
    world.engine = None
    world.network.broker_died()
    world.run()
    assert peer.ends == ["broker", "told"]
    assert peer.answers in ([], [1])
    assert world.network.connect(Peer(), CHOPPY, "10.0.0.1") is None
