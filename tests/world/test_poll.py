"""The compiled poller by itself: what arrives and leaves, whatever the network does, over pairs of sockets."""

import errno
import select
import socket
import struct
from random import Random

import pytest

from lakemq.wire.frame import FrameDecoder
from lakemq.wire.header import Header

poll = pytest.importorskip("lakemq._poll", reason="the poller was not built: no C compiler at install")

FRAME_BYTES_MAX = 4 << 20
OUTPUT_BYTES_MAX = 1 << 20


class Peers:
    """A poller, and links whose other ends are in our hands."""

    def __init__(self, frame_bytes_max=FRAME_BYTES_MAX, output_bytes_max=OUTPUT_BYTES_MAX):
        self.asked = 0
        self.poller = poll.Poller(frame_bytes_max, output_bytes_max, self._wants_flush)
        self._sockets = []

    def _wants_flush(self):
        self.asked += 1

    def link(self, session="session", *, tcp=False):
        ours, theirs = tcp_pair() if tcp else socket.socketpair()
        ours.setblocking(False)
        theirs.settimeout(10)
        self._sockets += [ours, theirs]
        link = poll.Link()
        link.session = session
        link.open(self.poller, ours.fileno())
        return link, theirs

    def receive(self, now_ms=1):
        arrivals, happened = self.poller.receive(now_ms)
        return [(session, bytes(frames)) for session, frames in arrivals], happened or []

    def close(self):
        self.poller.close()
        for one in self._sockets:
            one.close()


@pytest.fixture
def peers():
    one = Peers()
    yield one
    one.close()


def tcp_pair():
    with socket.create_server(("127.0.0.1", 0)) as server:
        theirs = socket.create_connection(server.getsockname())
        return server.accept()[0], theirs


def frame(size, rng=None):
    return Header(7, 1).pack(size) + (rng.randbytes(size) if rng else b"x" * size)


def wait_readable(poller, seconds=10):
    assert select.select([poller.fileno()], [], [], seconds)[0], "nothing happens"


# --- what arrives ----------------------------------------------------------------------------------------------------


def test_a_frame_may_arrive_in_two_pieces_cut_anywhere(peers):
    link, theirs = peers.link()
    whole = frame(40)
    for cut in range(1, len(whole)):
        theirs.send(whole[:cut])
        assert peers.receive(now_ms=100 + cut) == ([], [])
        assert (link.held_bytes, link.frame_began_ms) == (cut, 100 + cut)
        theirs.send(whole[cut:])
        assert peers.receive() == ([("session", whole)], [])
        assert (link.held_bytes, link.frame_began_ms) == (0, 0)


def test_a_frame_that_is_slow_began_when_its_first_byte_came(peers):
    link, theirs = peers.link()
    for now_ms in (5, 6, 7):
        theirs.send(b"\0")
        peers.receive(now_ms)
    assert (link.held_bytes, link.frame_began_ms) == (3, 5)


@pytest.mark.parametrize("seed", range(6))
def test_any_stream_is_cut_as_the_decoder_cuts_it(peers, seed):
    rng = Random(seed)
    link, theirs = peers.link()
    sizes = (0, 30, 1000, 70_000, 300_000) if seed % 2 else (0, 30, 1000)
    stream = b"".join(frame(rng.choice(sizes), rng) for _ in range(40))
    decoder, at, kept = FrameDecoder(FRAME_BYTES_MAX), 0, []
    while at < len(stream):
        piece = stream[at : at + rng.choice([1, 7, 100, 1000, 60_000 if seed % 2 else 2000])]
        theirs.sendall(piece)
        at += len(piece)
        expected, got = b"".join(map(bytes, decoder.feed(piece))), b""
        while select.select([peers.poller.fileno()], [], [], 0)[0]:
            arrivals, happened = peers.poller.receive(1)
            assert happened is None
            for _, frames in arrivals:
                got += frames
                if rng.random() < 0.3:  # somebody keeps them
                    kept.append((frames, bytes(frames)))
            del arrivals
        assert got == expected
        assert link.held_bytes == decoder.held_bytes
        assert all(frames == copy for frames, copy in kept), "memory that somebody reads was written to"
    assert kept


def test_frames_are_writable_and_their_memory_is_used_again_only_when_nobody_has_them(peers):
    _, theirs = peers.link()
    theirs.send(frame(10))
    ((_, first),), _ = peers.poller.receive(1)
    first[-1] = 0xFF
    part = first[-5:]
    del first
    theirs.send(frame(10))
    ((_, second),), _ = peers.poller.receive(1)
    assert (part[-1], second[-1]) == (0xFF, ord("x"))


def test_a_large_frame_gets_memory_as_it_arrives(peers):
    link, theirs = peers.link()
    whole = frame(FRAME_BYTES_MAX - 23, Random(1))
    at, found = 0, []
    while at < len(whole):
        at += theirs.send(whole[at : at + 50_000])
        found += peers.receive()[0]
    assert found == [("session", whole)]
    assert link.held_bytes == 0
    theirs.send(frame(5))
    ((_, after),), _ = peers.poller.receive(1)
    assert len(after.obj) <= 1 << 20, "what a large frame needed is not kept for ever"


@pytest.mark.parametrize(
    "bad",
    [struct.pack(">i", 22), struct.pack(">i", FRAME_BYTES_MAX + 1), struct.pack(">i4s", 50, b"GET "), b"\xff" * 4],
)
def test_what_is_no_frame_breaks_the_stream_after_the_frames_before_it(peers, bad):
    link, theirs = peers.link()
    theirs.send(frame(5) + bad)
    assert peers.receive() == ([("session", frame(5))], [(link, poll.BROKEN)])
    theirs.send(frame(5))
    assert peers.receive() == ([], []), "what follows is not looked at"
    assert link.held_bytes == 0


def test_frames_for_nobody_are_dropped(peers):
    link, theirs = peers.link(session=None)
    theirs.send(frame(5))
    assert peers.receive() == ([], [])
    link.session = "there now"
    theirs.send(frame(6))
    assert peers.receive() == ([("there now", frame(6))], [])


def test_nobody_is_read_from_more_than_once_a_turn(peers):
    _, flood = peers.link("flood")
    flood.setblocking(False)
    _, calm = peers.link("calm")
    for _ in range(20):
        try:
            while True:
                flood.send(frame(1000))
        except BlockingIOError:
            pass
        calm.send(frame(3))
        arrivals, _ = peers.receive()
        assert sorted(session for session, _ in arrivals) == ["calm", "flood"]
        assert all(len(frames) <= 1 << 20 for _, frames in arrivals)


def test_more_connections_than_one_call_takes_all_get_their_turn(peers):
    links = {n: peers.link(n)[1] for n in range(300)}
    for theirs in links.values():
        theirs.send(frame(1))
    seen = [session for _ in range(2) for session, _ in peers.receive()[0]]
    assert sorted(seen) == list(range(300))


def test_a_paused_link_is_not_read_from(peers):
    link, theirs = peers.link()
    link.pause()
    link.pause()
    theirs.send(frame(5))
    assert peers.receive() == ([], [])
    link.resume()
    assert peers.receive() == ([("session", frame(5))], [])


# --- what leaves -----------------------------------------------------------------------------------------------------


def test_answers_leave_together_at_the_flush(peers):
    one, first = peers.link()
    other, second = peers.link()
    assert one.send([b"a", bytearray(b"b"), memoryview(b"xcx")[1:2]])
    assert one.send((b"", b"d"))
    assert other.send([b"e"])
    assert peers.asked == 1, "once is enough"
    first.setblocking(False)
    with pytest.raises(BlockingIOError):
        first.recv(1)
    assert peers.poller.flush() is None
    assert (first.recv(10), second.recv(10)) == (b"abcd", b"e")
    assert peers.poller.flush() is None
    one.send([b"f"])
    assert peers.asked == 2


@pytest.mark.parametrize("pieces", [1, 3, 64, 65, 1000])
def test_what_a_slow_peer_is_sent_arrives_whole_and_in_order(peers, pieces):
    link, theirs = peers.link()
    data = Random(pieces).randbytes(3 << 20)
    size = len(data) // pieces + 1
    is_good = link.send([data[at : at + size] for at in range(0, len(data), size)])
    assert not is_good, "that is more than is allowed"
    assert peers.poller.flush() is None
    assert link.is_full
    assert not link.send([b"!"])
    peers.poller.flush()
    got, told = b"", []
    while len(got) <= len(data):
        got += theirs.recv(300_000)
        left_before = link.unsent_bytes
        told += [(what, left_before > OUTPUT_BYTES_MAX // 4) for _, what in peers.receive()[1]]
    assert got == data + b"!"
    assert [what for what, _ in told] == [poll.DRAINED]
    assert (link.is_full, link.unsent_bytes) == (False, 0)
    assert link.send([b"again"])


def test_who_was_told_to_wait_is_told_to_go_on_if_the_socket_takes_all(peers):
    small = Peers(output_bytes_max=1000)
    link, theirs = small.link()
    assert link.send([b"x" * 1000])
    assert not link.send([b"y"])
    assert small.poller.flush() == [(link, poll.DRAINED)]
    assert len(theirs.recv(2000)) == 1001
    small.close()


def test_all_sent_is_told_to_those_who_ask(peers):
    link, theirs = peers.link()
    link.send([b"x" * (3 << 20)])
    link.tells_empty = True
    got, told = 0, [what for _, what in peers.poller.flush() or []]
    while got < 3 << 20:
        got += len(theirs.recv(1 << 20))
        told += [what for _, what in peers.receive()[1]]
    assert told == [poll.DRAINED, poll.EMPTY]


def test_push_sends_at_once(peers):
    link, theirs = peers.link()
    link.send([b"now"])
    assert link.push()
    assert theirs.recv(9) == b"now"
    assert peers.poller.flush() is None


def test_what_is_sent_is_let_go(peers):
    link, _ = peers.link()
    held = bytearray(100)
    link.send([held])
    with pytest.raises(BufferError):
        held.append(1)
    peers.poller.flush()
    held.append(1)
    link.send([held])
    link.shut()
    held.append(1)


def test_nothing_is_sent_once_the_peer_is_not_listened_to(peers):
    link, _ = peers.link()
    link.is_done = True
    assert link.send([b"x"])
    assert link.unsent_bytes == 0


def test_only_bytes_can_be_sent(peers):
    link, theirs = peers.link()
    with pytest.raises(TypeError):
        link.send(["text"])
    assert link.send([b"good"])
    peers.poller.flush()
    assert theirs.recv(10) == b"good"


# --- ends ------------------------------------------------------------------------------------------------------------


def test_the_end_of_a_stream_comes_after_its_frames(peers):
    link, theirs = peers.link()
    theirs.send(frame(5))
    theirs.shutdown(socket.SHUT_WR)
    assert peers.receive() == ([("session", frame(5))], [])
    assert peers.receive() == ([], [(link, poll.ENDED)])


@pytest.mark.parametrize("is_paused", [False, True])
def test_a_reset_is_noticed(peers, is_paused):
    link, theirs = peers.link(tcp=True)
    if is_paused:
        link.pause()
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    theirs.close()
    wait_readable(peers.poller)
    assert peers.receive() == ([], [(link, poll.LOST)])


def test_a_peer_that_is_gone_is_noticed_when_it_is_sent_something(peers):
    link, theirs = peers.link()
    theirs.close()
    link.send([b"x"])
    assert peers.poller.flush() == [(link, poll.LOST)]
    assert link.unsent_bytes == 0
    link.send([b"y"])
    assert not link.push()


def test_a_link_that_is_shut_says_nothing_more(peers):
    link, theirs = peers.link()
    link.send([b"x"])
    link.shut()
    link.shut()
    assert not link.is_open
    theirs.send(frame(5))
    assert link.send([b"y"])
    assert (peers.poller.flush(), peers.receive()) == (None, ([], []))
    link.pause()
    link.resume()
    with pytest.raises(ValueError, match="not open"):
        link.push()


def test_the_number_of_a_closed_socket_may_come_again(peers):
    ours, theirs = socket.socketpair()
    link, again = poll.Link(), poll.Link()
    link.open(peers.poller, ours.fileno())
    with pytest.raises(ValueError, match="once"):
        link.open(peers.poller, ours.fileno())
    with pytest.raises(ValueError, match="before its link was shut"):
        again.open(peers.poller, ours.fileno())
    link.shut()
    again.session = "again"
    again.open(peers.poller, ours.fileno())
    theirs.send(frame(5))
    assert peers.receive() == ([("again", frame(5))], [])
    again.shut()
    ours.close()
    theirs.close()


def test_a_closed_poller_has_let_go_of_all(peers):
    link, _ = peers.link()
    link.send([b"x"])
    peers.poller.close()
    assert not link.is_open
    with pytest.raises(OSError, match="Bad file") as told:
        peers.poller.receive(1)
    assert told.value.errno == errno.EBADF
    with pytest.raises(ValueError, match="open poller"):
        poll.Link().open(peers.poller, 0)
