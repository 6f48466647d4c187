"""One connection without a socket: greeting, matching, time-outs, caps, heartbeats."""

import pytest

from lakemq.client.address import Address
from lakemq.client.errors import BrokerUnreachableError, ConnectionLostError, NotSentError, RequestTimeoutError
from lakemq.client.session import Session, State
from lakemq.errors import AuthenticationError, BadFrameError, TopicNotFoundError
from lakemq.wire.commands import decode_request, encode_error, encode_response
from lakemq.wire.dialect import Dialect
from lakemq.wire.header import Header
from lakemq.wire.session import AddConnection, AddConnectionAck, FetchHealth, FetchHealthAck, Heartbeat

DOCUMENTED = Dialect.DOCUMENTED


class Peer:
    """The other end: reads what the session sends, and makes answers."""

    def __init__(self, **options):
        self.session = Session(Address("b", 1), 0, AddConnection(app="shop"), **options)

    def requests(self):
        data, self.session.output = b"".join(self.session.output), []
        found = []
        while data:
            size = int.from_bytes(data[:4])
            found.append(decode_request(bytearray(data[:size]), DOCUMENTED))
            data = data[size:]
        return found

    def answer(self, header, ack, now_ms=0):
        frame = b"".join(encode_response(ack, header, dialect=DOCUMENTED, send_time_ms=0))
        self.session.received([memoryview(frame)], now_ms, 0)

    def refuse(self, header, error, now_ms=0):
        frame = encode_error(error, header, dialect=DOCUMENTED, send_time_ms=0)
        self.session.received([memoryview(frame)], now_ms, 0)

    def greet(self):
        self.session.opened(0, 0)
        ((header, command),) = self.requests()
        assert isinstance(command, AddConnection)
        self.answer(header, AddConnectionAck("1", ""))
        return self


def counted(session, name, now_ms=0, deadline_ms=1000, size=100, timeout_ms=1000):
    def frame(request_id, wall_ms):
        return [Header(8, request_id).pack(0)]

    return session.ask_counted(frame, size, now_ms, 0, deadline_ms, timeout_ms)


def test_it_is_ready_once_it_was_greeted():
    peer = Peer()
    assert peer.session.state is State.CONNECTING
    peer.greet()
    assert peer.session.state is State.READY
    assert peer.session.ready.result() is peer.session


def test_a_refused_greeting_fails_those_who_wait():
    peer = Peer()
    peer.session.opened(0, 0)
    ((header, _),) = peer.requests()
    peer.refuse(header, AuthenticationError("no"))
    with pytest.raises(AuthenticationError, match="no"):
        peer.session.ready.result()


def test_answers_are_matched_by_id_in_any_order():
    peer = Peer().greet()
    asked = [peer.session.ask(FetchHealth(), 0, 0, 1000) for _ in range(3)]
    headers = [header for header, _ in peer.requests()]
    assert len({header.request_id for header in headers}) == 3
    for n in (2, 0, 1):
        peer.answer(headers[n], FetchHealthAck(float(n)))
    assert [promise.result().point for promise in asked] == [0.0, 1.0, 2.0]


def test_an_error_is_its_class():
    peer = Peer().greet()
    asked = peer.session.ask(FetchHealth(), 0, 0, 1000)
    ((header, _),) = peer.requests()
    peer.refuse(header, TopicNotFoundError("orders"))
    with pytest.raises(TopicNotFoundError, match="orders"):
        asked.result()


def test_an_answer_after_its_time_is_ignored():
    peer = Peer().greet()
    asked = peer.session.ask(FetchHealth(), 10, 0, 1000)
    ((header, _),) = peer.requests()
    assert peer.session.next_ms == 1000
    peer.session.received([], 20, 0)
    peer.session.tick(999, 0)
    assert not asked.is_done
    peer.session.tick(1000, 0)
    with pytest.raises(RequestTimeoutError, match="990 ms"):
        asked.result()
    peer.answer(header, FetchHealthAck(1.0))
    assert not peer.session.is_silent  # something came after it was sent


def test_a_connection_from_which_nothing_comes_is_dead():
    peer = Peer().greet()
    peer.session.ask(FetchHealth(), 10, 0, 1000)
    peer.session.tick(1000, 0)
    assert peer.session.is_silent


def test_it_says_that_it_is_there_when_it_said_nothing_for_long():
    peer = Peer(heartbeat_ms=500).greet()
    assert peer.session.next_ms == 500
    peer.session.tick(499, 0)
    assert peer.requests() == []
    peer.session.tick(500, 0)
    ((_, command),) = peer.requests()
    assert isinstance(command, Heartbeat)
    peer.session.tick(600, 0)
    assert peer.requests() == []


def test_a_cap_holds_requests_back_in_order():
    peer = Peer(in_flight_max=2).greet()
    asked = [counted(peer.session, n) for n in range(4)]
    first, second = [header for header, _ in peer.requests()]
    peer.answer(second, FetchHealthAck(1.0))
    ((third, _),) = peer.requests()
    assert [promise.is_done for promise in asked] == [False, True, False, False]
    peer.answer(first, FetchHealthAck(1.0))
    peer.answer(third, FetchHealthAck(1.0))
    assert [promise.is_done for promise in asked] == [True, True, True, False]
    assert peer.session.in_flight == 1


def test_the_cap_is_also_one_of_bytes_but_one_request_always_goes():
    peer = Peer(in_flight_bytes_max=250).greet()
    for size in (1000, 100):
        counted(peer.session, "", size=size)
    assert len(peer.requests()) == 1


def test_a_small_request_does_not_overtake_a_large_one_that_waits():
    peer = Peer(in_flight_bytes_max=250).greet()
    counted(peer.session, "", size=200)
    large, small = counted(peer.session, "", size=100), counted(peer.session, "", size=10)
    ((first, _),) = peer.requests()
    peer.answer(first, FetchHealthAck(1.0))
    second, third = [header for header, _ in peer.requests()]
    peer.answer(second, FetchHealthAck(1.0))
    assert (large.is_done, small.is_done) == (True, False)
    peer.answer(third, FetchHealthAck(1.0))
    assert small.is_done


def test_what_does_not_count_is_not_held_back():
    peer = Peer(in_flight_max=1).greet()
    counted(peer.session, "")
    counted(peer.session, "")
    peer.session.ask(FetchHealth(), 0, 0, 1000)
    assert len(peer.requests()) == 2


def test_a_congested_socket_holds_back():
    peer = Peer().greet()
    peer.session.congested(True, 0, 0)
    counted(peer.session, "")
    assert peer.requests() == []
    peer.session.congested(False, 0, 0)
    assert len(peer.requests()) == 1


def test_what_was_held_back_too_long_was_surely_not_sent():
    peer = Peer(in_flight_max=1).greet()
    counted(peer.session, "", deadline_ms=5000, timeout_ms=5000)
    held = counted(peer.session, "", deadline_ms=1000)
    peer.session.tick(1000, 0)
    assert isinstance(held.error, NotSentError)
    assert not held.error.maybe_written
    assert held.error.retriable


def test_the_time_for_an_answer_runs_from_when_it_has_left():
    peer = Peer(in_flight_max=1).greet()
    counted(peer.session, "", deadline_ms=5000, timeout_ms=1000)
    second = counted(peer.session, "", deadline_ms=5000, timeout_ms=1000)
    peer.session.tick(1000, 0)  # the first is given up, the second leaves
    peer.session.tick(1999, 0)
    assert not second.is_done
    peer.session.tick(2000, 0)
    assert isinstance(second.error, RequestTimeoutError)


def test_a_loss_tells_those_who_wait_what_may_have_happened():
    peer = Peer(in_flight_max=1).greet()
    sent, held = counted(peer.session, ""), counted(peer.session, "")
    peer.session.lost(ConnectionLostError("cut"))
    assert isinstance(sent.error, ConnectionLostError)
    assert sent.error.maybe_written
    assert isinstance(held.error, BrokerUnreachableError)
    assert not held.error.maybe_written
    after = peer.session.ask(FetchHealth(), 0, 0, 1000)
    assert isinstance(after.error, BrokerUnreachableError)


def test_what_is_no_answer_is_beyond_repair():
    peer = Peer().greet()
    with pytest.raises(BadFrameError):
        peer.session.received([memoryview(Header(7, 1).pack(0))], 0, 0)


def test_ids_begin_again_after_the_largest():
    peer = Peer().greet()
    peer.session._last_id = 0x7FFFFFFF - 1
    for _ in range(2):
        peer.session.ask(FetchHealth(), 0, 0, 1000)
    assert [header.request_id for header, _ in peer.requests()] == [0x7FFFFFFF, 1]
