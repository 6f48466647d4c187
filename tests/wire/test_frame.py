"""A byte stream cut into frames: anywhere, within limits, and without trusting what a peer claims."""

import struct
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lakemq.wire.frame as frame_module
from lakemq.errors import BadFrameError
from lakemq.wire.frame import FRAME_BYTES_MAX, FrameDecoder
from lakemq.wire.header import MAGIC, Header, read_header

HEARTBEAT = bytes.fromhex("00000017 cafebebe 02 02 0000002a 07 0000018bcfe56800")


def frame_of(payload, number=50, request_id=1):
    return Header(number, request_id).pack(len(payload)) + payload


def feed_in_pieces(decoder, data, cuts):
    frames = []
    for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
        frames += decoder.feed(data[start:end])
    return frames


def receive_in_pieces(decoder, data, cuts):
    """As a socket does it: written into the decoder's memory, as much as there is room."""
    frames = []
    for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
        piece = data[start:end]
        while piece:
            room = decoder.room()
            size = min(len(room), len(piece))
            assert size > 0
            room[:size] = piece[:size]
            frames += decoder.received(size)
            piece = piece[size:]
    return frames


# ---- cuts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", range(1, len(HEARTBEAT)))
def test_a_frame_may_arrive_in_two_pieces(cut):
    decoder = FrameDecoder(frame_bytes_max=1 << 20)
    assert decoder.feed(HEARTBEAT[:cut]) == []
    assert decoder.held_bytes == cut
    assert decoder.feed(HEARTBEAT[cut:]) == [HEARTBEAT]
    assert decoder.held_bytes == 0


def test_a_frame_may_arrive_byte_by_byte():
    decoder = FrameDecoder()
    frames = [frame for byte in HEARTBEAT * 3 for frame in decoder.feed(bytes([byte]))]
    assert frames == [HEARTBEAT] * 3


def test_nothing_fed_gives_nothing():
    assert FrameDecoder().feed(b"") == []


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_frames_do_not_depend_on_where_the_network_cuts(data):
    payloads = data.draw(st.lists(st.one_of(st.binary(max_size=30), st.integers(0, 9000).map(bytes)), max_size=8))
    frames = [frame_of(payload, request_id=nth) for nth, payload in enumerate(payloads)]
    stream = b"".join(frames)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=10)))
    chunk_bytes = data.draw(st.sampled_from([1, 23, 4096, 5000, 256 << 10]))
    for pieces in (feed_in_pieces, receive_in_pieces):
        decoder = FrameDecoder(frame_bytes_max=1 << 16, chunk_bytes=chunk_bytes)
        assert pieces(decoder, stream, cuts) == frames
        assert decoder.held_bytes == 0


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_feeding_and_receiving_agree_on_any_bytes(data):
    stream = data.draw(
        st.lists(
            st.one_of(
                st.just(HEARTBEAT),
                st.binary(max_size=12),
                st.integers(-30, 200).map(lambda length: struct.pack(">iI", length, MAGIC)),
            ),
            max_size=6,
        ).map(b"".join)
    )
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=5)))
    outcomes = []
    for pieces in (feed_in_pieces, receive_in_pieces):
        try:
            outcomes.append([bytes(frame) for frame in pieces(FrameDecoder(frame_bytes_max=100), stream, cuts)])
        except BadFrameError as error:
            outcomes.append(str(error))
    assert outcomes[0] == outcomes[1]


def test_many_frames_of_one_read_come_in_order():
    frames = [frame_of(bytes([nth % 251]) * (nth % 40), request_id=nth) for nth in range(5000)]
    assert FrameDecoder().feed(b"".join(frames)) == frames


def test_after_a_large_frame_another_as_large_is_not_put_together(monkeypatch):
    begun = []
    make = frame_module._new_chunk
    monkeypatch.setattr(frame_module, "_new_chunk", lambda size: begun.append(size) or make(size))
    decoder = FrameDecoder(chunk_bytes=4096)
    large, small = frame_of(bytes(100_000)), frame_of(bytes(100))
    cuts = list(range(1000, len(large), 1000))
    assert feed_in_pieces(decoder, large, cuts) == [large]
    assert len(begun) > 4, "as it proved to be large"
    for _ in range(3):
        begun.clear()
        assert feed_in_pieces(decoder, large, cuts) == [large]
        assert len(begun) <= 1
    for _ in range(2000):
        assert decoder.feed(small) == [small]
    assert begun[-1] < 5000, "memory is given back when it is not needed"


def test_a_frame_larger_than_a_chunk_is_put_together():
    frame = frame_of(bytes(range(256)) * 8000)
    decoder = FrameDecoder(chunk_bytes=4096)
    assert feed_in_pieces(decoder, frame + HEARTBEAT, list(range(1000, len(frame), 1000))) == [frame, HEARTBEAT]


# ---- limits --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "length", [0, 4, 22, -1, -(1 << 31), (1 << 20) + 1, (1 << 31) - 1],
    ids=["empty", "itself-only", "no-header", "minus-one", "most-negative", "one-too-long", "longest"],
)  # fmt: skip
def test_a_bad_length_ends_the_connection(length):
    with pytest.raises(BadFrameError, match=f"length {length} "):
        FrameDecoder(frame_bytes_max=1 << 20).feed(struct.pack(">i", length))


@pytest.mark.parametrize("size", [23, 24, 4096, 1 << 16])
def test_a_frame_may_have_exactly_the_most_bytes_allowed(size):
    frame = frame_of(bytes(size - 23))
    assert FrameDecoder(frame_bytes_max=size).feed(frame) == [frame]
    with pytest.raises(BadFrameError, match=f"length {size} "):
        FrameDecoder(frame_bytes_max=size - 1).feed(frame)


def test_the_largest_frame_of_the_default_passes():
    frame = frame_of(bytes(FRAME_BYTES_MAX - 23))
    decoder = FrameDecoder()
    assert feed_in_pieces(decoder, frame, list(range(0, len(frame), 60_000))) == [frame]
    with pytest.raises(BadFrameError):
        decoder.feed(struct.pack(">i", FRAME_BYTES_MAX + 1))


def test_three_bytes_are_not_judged():
    decoder = FrameDecoder()
    assert decoder.feed(b"\xff\xff\xff") == []
    with pytest.raises(BadFrameError):
        decoder.feed(b"\xff")


@pytest.mark.parametrize("magic", [0, 0xCAFEBABE, 0xCAFEBEBF, 0xFFFFFFFF], ids=hex)
def test_a_wrong_magic_is_seen_as_soon_as_it_is_there(magic):
    head = struct.pack(">iI", 1000, magic)
    decoder = FrameDecoder()
    assert decoder.feed(head[:7]) == []
    with pytest.raises(BadFrameError, match=f"magic {magic:#010x}"):
        decoder.feed(head[7:])


def test_a_wrong_magic_of_a_later_frame_is_seen_too():
    decoder = FrameDecoder()
    assert decoder.feed(HEARTBEAT + b"\x00\x00\x00\x17") == [HEARTBEAT]
    with pytest.raises(BadFrameError, match="magic"):
        decoder.feed(b"GET ")


@pytest.mark.parametrize("first", [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01", b"\x00" * 8])
def test_another_protocol_is_not_waited_for(first):
    with pytest.raises(BadFrameError):
        FrameDecoder().feed(first)


# ---- after the stream is out of step -------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [b"\x00\x00\x00\x00", b"\x00\x00\x00\x20abcd"], ids=["length", "magic"])
def test_after_a_bad_frame_everything_is_refused(bad):
    decoder = FrameDecoder()
    with pytest.raises(BadFrameError):
        decoder.feed(bad)
    for _ in range(3):
        with pytest.raises(BadFrameError, match="out of step"):
            decoder.feed(HEARTBEAT)
    room = decoder.room()
    room[: len(HEARTBEAT)] = HEARTBEAT
    with pytest.raises(BadFrameError, match="out of step"):
        decoder.received(len(HEARTBEAT))


@pytest.mark.parametrize(
    ("frame_bytes_max", "chunk_bytes"), [(100, 1), (64 << 10, 4 << 10), (1 << 20, 256 << 10)], ids=str
)
def test_a_peer_that_goes_on_after_a_bad_frame_is_refused_and_not_kept(frame_bytes_max, chunk_bytes):
    decoder = FrameDecoder(frame_bytes_max=frame_bytes_max, chunk_bytes=chunk_bytes)
    with pytest.raises(BadFrameError):
        decoder.feed(bytes(4))
    for _ in range(600):
        with pytest.raises(BadFrameError):
            decoder.feed(bytes(4096))
    assert decoder.held_bytes <= 2 * 4096


# ---- memory --------------------------------------------------------------------------------------------------------


def test_frames_stay_as_they_were_while_more_arrives():
    decoder = FrameDecoder(chunk_bytes=8 << 10)
    wanted = [frame_of(bytes([nth % 256]) * (nth % 700), request_id=nth) for nth in range(400)]
    kept = []
    for frame in wanted:
        kept += decoder.feed(frame)
    assert kept == wanted


def test_a_frame_is_writable_and_its_neighbours_do_not_change():
    decoder = FrameDecoder()
    first, second = decoder.feed(HEARTBEAT * 2)
    later = decoder.feed(HEARTBEAT)[0]
    second[10:14] = b"\xff\xff\xff\xff"
    assert first == HEARTBEAT
    assert later == HEARTBEAT
    assert read_header(second)[0].request_id == -1


def test_writing_past_the_room_of_one_frame_is_not_possible():
    first, _ = FrameDecoder().feed(HEARTBEAT * 2)
    with pytest.raises(ValueError):
        first[: len(HEARTBEAT) + 1] = bytes(len(HEARTBEAT) + 1)


def test_what_a_caller_feeds_is_copied():
    data = bytearray(HEARTBEAT)
    (frame,) = FrameDecoder().feed(data)
    data[:] = bytes(len(data))
    assert frame == HEARTBEAT


def allocated_by(action):
    """What it returned, the bytes it left allocated and the most it had."""
    tracemalloc.start()
    try:
        result = action()
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return result, kept, peak


def claim(decoder, sent_bytes, claimed_bytes=8 << 20):
    decoder.feed(struct.pack(">iI", claimed_bytes, MAGIC))
    decoder.feed(bytes(sent_bytes - 8))


def test_memory_does_not_follow_the_length_a_peer_claims():
    decoder = FrameDecoder()
    _, kept, peak = allocated_by(lambda: claim(decoder, 100))
    assert decoder.held_bytes == 100
    assert kept <= peak <= 300 << 10


@pytest.mark.parametrize("sent_bytes", [300 << 10, 1 << 20, 3 << 20])
def test_memory_follows_what_has_arrived(sent_bytes):
    decoder = FrameDecoder()
    fed = bytes(4096)

    def arrive():
        decoder.feed(struct.pack(">iI", 8 << 20, MAGIC))
        for _ in range(sent_bytes // len(fed)):
            decoder.feed(fed)

    _, kept, peak = allocated_by(arrive)
    assert kept <= 2 * sent_bytes + (300 << 10)
    assert peak <= 3 * sent_bytes + (300 << 10)  # while it moves, the old chunk and the new one


def test_memory_of_frames_that_nobody_holds_is_given_back():
    decoder = FrameDecoder()
    frame = frame_of(bytes(50_000))

    def pass_through():
        for _ in range(200):
            assert len(decoder.feed(frame)) == 1

    _, kept, peak = allocated_by(pass_through)
    assert kept <= 300 << 10
    assert peak <= 900 << 10


def test_room_is_never_empty_and_grows_only_with_what_arrived():
    decoder = FrameDecoder(chunk_bytes=4096)
    decoder.feed(struct.pack(">iI", 8 << 20, MAGIC))
    for arrived in range(8, 40_000, 1000):
        room = decoder.room()
        assert 1 <= len(room) <= max(4096, 2 * arrived + 8192)
        decoder.received(min(1000, len(room)))


# ---- the header ----------------------------------------------------------------------------------------------------


@given(
    st.builds(
        Header,
        type=st.integers(-128, 127),
        request_id=st.integers(-(1 << 31), (1 << 31) - 1),
        version=st.integers(0, 127),
        qos_bits=st.integers(0, 3),
        send_time_ms=st.integers(-(1 << 63), (1 << 63) - 1),
        is_response=st.just(False),
        status=st.just(0),
        error=st.just(""),
    ),
    st.binary(max_size=20),
)
@settings(max_examples=60, deadline=None)
def test_a_request_header_comes_back_as_it_was_written(header, payload):
    assert read_header(header.pack(len(payload)) + payload) == (header, 23)


@given(
    st.builds(
        Header,
        type=st.integers(-128, 127),
        request_id=st.integers(-(1 << 31), (1 << 31) - 1),
        version=st.integers(0, 127),
        qos_bits=st.integers(0, 3),
        send_time_ms=st.integers(-(1 << 63), (1 << 63) - 1),
        is_response=st.just(True),
        status=st.integers(0, 255),
        error=st.text(st.characters(exclude_categories=["Cs"]), max_size=30),
    ),
    st.binary(max_size=20),
)
@settings(max_examples=60, deadline=None)
def test_a_response_header_comes_back_as_it_was_written(header, payload):
    frame = header.pack(len(payload)) + payload
    assert read_header(frame) == (header, len(frame) - len(payload))


BAD_HEADERS = {
    "nothing": b"",
    "22 bytes": HEARTBEAT[:22],
    "wrong magic": HEARTBEAT[:4] + b"\xca\xfe\xba\xbe" + HEARTBEAT[8:],
    "length too short": b"\x00\x00\x00\x16" + HEARTBEAT[4:],
    "length too long": b"\x00\x00\x00\x18" + HEARTBEAT[4:],
    "negative version": HEARTBEAT[:8] + b"\x80" + HEARTBEAT[9:],
    "negative identity": HEARTBEAT[:9] + b"\x82" + HEARTBEAT[10:],
    "response without a status": HEARTBEAT[:9] + b"\x03" + HEARTBEAT[10:],
    "response with half a status": struct.pack(">i", 25) + HEARTBEAT[4:9] + b"\x03" + HEARTBEAT[10:] + b"\x00\x00",
    "error text past the end": struct.pack(">i", 27) + HEARTBEAT[4:9] + b"\x03" + HEARTBEAT[10:] + b"\x00\x00\x02a",
    "error text of 32767": struct.pack(">i", 26) + HEARTBEAT[4:9] + b"\x03" + HEARTBEAT[10:] + b"\x00\x7f\xff",
}


@pytest.mark.parametrize("frame", BAD_HEADERS.values(), ids=BAD_HEADERS)
def test_a_frame_that_cannot_be_ours_ends_the_connection(frame):
    with pytest.raises(BadFrameError):
        read_header(frame)


def response_with(error_length, tail):
    body = HEARTBEAT[4:9] + b"\x03" + HEARTBEAT[10:] + b"\x00" + struct.pack(">h", error_length) + tail
    return struct.pack(">i", 4 + len(body)) + body


@pytest.mark.parametrize("length", [0, -1, -32768])
def test_a_negative_error_length_is_an_empty_text(length):
    header, start = read_header(response_with(length, b"payload"))
    assert (header.error, start) == ("", 26)


def test_an_error_text_that_is_not_utf_8_is_shown_as_such():
    header, start = read_header(response_with(3, b"a\xff\xc3"))
    assert header.error.startswith("a")
    assert "\ufffd" in header.error
    assert start == 29


def test_identity_bits_that_mean_nothing_are_ignored():
    frame = HEARTBEAT[:9] + b"\x7a" + HEARTBEAT[10:]  # all of bits 3 to 6 set
    header, _ = read_header(frame)
    assert (header.is_response, header.qos_bits) == (False, 1)
