"""Bodies compressed and expanded: every kind, within a bound, whatever was done to the bytes."""

import io
import random
import struct
import tracemalloc
import zipfile
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakemq.compression import Compression, compress, decompress
from lakemq.errors import BadParameterError, SerializationError

KINDS = [kind for kind in Compression if kind is not Compression.NONE]
BOUND = 64 << 10
# What a refusal may take besides the bound itself: the library's own state and one copy of the room.
SLACK_BYTES = 512 << 10

every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.value)


def peak_of(action):
    """The most bytes Python held at once while it ran, beyond what it held before."""
    tracemalloc.start()
    try:
        action()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def refused(kind, carried, bytes_max=BOUND):
    with pytest.raises(BadParameterError):
        decompress(kind, carried, bytes_max)


# ---- round trips ---------------------------------------------------------------------------------------------------

BODIES = st.one_of(
    st.binary(max_size=200),
    st.builds(lambda unit, times: unit * times, st.binary(min_size=1, max_size=9), st.integers(0, 20_000)),
)


@every_kind
@given(body=BODIES)
@settings(max_examples=30, deadline=None)
def test_any_body_comes_back(kind, body):
    carried = compress(kind, body)
    assert type(carried) is bytes
    assert decompress(kind, carried) == body
    assert decompress(kind, memoryview(bytearray(carried))) == body


@given(body=st.binary(max_size=200))
@settings(max_examples=20, deadline=None)
def test_without_compression_a_body_is_itself(body):
    assert compress(Compression.NONE, body) == body
    assert decompress(Compression.NONE, body) == body


@pytest.mark.parametrize("kind", Compression, ids=lambda kind: kind.value)
@pytest.mark.parametrize("buffer", [bytes, bytearray, memoryview])
def test_any_buffer_will_do(kind, buffer):
    carried = compress(kind, buffer(b"some body" * 30))
    assert decompress(kind, buffer(carried)) == b"some body" * 30


@every_kind
@pytest.mark.parametrize("size", [0, 1, 100, 4096, 65535, 65536, 65537, 200_000])
def test_a_body_may_have_exactly_the_most_bytes_allowed(kind, size):
    body = random.Random(size).randbytes(size // 2) + bytes(size - size // 2)
    carried = compress(kind, body)
    assert decompress(kind, carried, bytes_max=size) == body
    if size:
        refused(kind, carried, bytes_max=size - 1)


@every_kind
@pytest.mark.parametrize("size", [5000, 33_000, 300_000, 3_000_000])
def test_a_body_that_shrank_to_almost_nothing_may_have_exactly_the_most_bytes_allowed(kind, size):
    carried = compress(kind, bytes(size))
    assert decompress(kind, carried, bytes_max=size) == bytes(size)
    refused(kind, carried, bytes_max=size - 1)


@every_kind
def test_a_large_body_that_does_not_shrink_comes_back(kind):
    body = random.Random(1).randbytes(1 << 20)
    assert decompress(kind, compress(kind, body)) == body


# From peers: Java's zlib and snappy framing of a hundred times A; a zip as its ZipOutputStream writes one, with the
# sizes after the entry.
HUNDRED = b"A" * 100
FROM_PEERS = {
    "zlib": (Compression.ZLIB, bytes.fromhex("789c7374a43d000002e91965")),
    "snappy": (Compression.SNAPPY, bytes.fromhex("ff060000734e61507059000d000037cbbc9d640041fe01008a0100")),
}


@pytest.mark.parametrize(("kind", "carried"), FROM_PEERS.values(), ids=FROM_PEERS)
def test_what_a_java_peer_compressed_is_expanded(kind, carried):
    assert decompress(kind, carried) == HUNDRED


def zip_with_sizes_after(body):
    """Flag bit 3: CRC and sizes follow the entry, as a writer that cannot seek does it."""
    deflater = zlib.compressobj(wbits=-15)
    packed = deflater.compress(body) + deflater.flush()
    sums = struct.pack("<III", zlib.crc32(body), len(packed), len(body))
    local = struct.pack("<4s5H3I2H", b"PK\3\4", 20, 8, 8, 0, 33, 0, 0, 0, 1, 0) + b"0"
    central = struct.pack("<4s6H", b"PK\1\2", 20, 20, 8, 8, 0, 33) + sums
    central += struct.pack("<5H2I", 1, 0, 0, 0, 0, 0, 0) + b"0"
    start = len(local) + len(packed) + 16
    end = struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 1, 1, len(central), start, 0)
    return local + packed + b"PK\7\x08" + sums + central + end


def test_a_zip_whose_sizes_follow_is_expanded():
    assert decompress(Compression.ZIP, zip_with_sizes_after(HUNDRED)) == HUNDRED


def test_a_zip_that_is_only_stored_is_expanded():
    assert decompress(Compression.ZIP, zip_of({"0": HUNDRED}, zipfile.ZIP_STORED)) == HUNDRED


# ---- bombs ---------------------------------------------------------------------------------------------------------

EXPANDED = 16 << 20


@every_kind
def test_a_body_that_expands_too_far_is_refused_without_the_memory_for_it(kind):
    bomb = compress(kind, bytes(EXPANDED))
    assert peak_of(lambda: refused(kind, bomb)) <= 2 * len(bomb) + 3 * BOUND + SLACK_BYTES


@every_kind
def test_a_bomb_in_a_bomb_is_expanded_once(kind):
    inner = compress(kind, bytes(1 << 20))
    assert decompress(kind, compress(kind, inner), bytes_max=len(inner)) == inner


@every_kind
def test_many_small_bodies_one_after_the_other_count_together(kind):
    """Some kinds may be concatenated, of others the first or the last counts, of the rest the tail is damage."""
    part = compress(kind, bytes(BOUND // 2))
    try:
        body = decompress(kind, part * 10, BOUND)
    except (BadParameterError, SerializationError):
        return
    assert len(body) <= BOUND


def zip_of(entries, kind=zipfile.ZIP_DEFLATED):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", kind) as archive:
        for name, body in entries.items():
            archive.writestr(name, body)
    return out.getvalue()


def patched(data, at, value):
    return data[:at] + value + data[at + len(value) :]


CENTRAL = b"PK\1\2"


@pytest.mark.parametrize("declared", [0, 10, BOUND + 1, 0x7FFFFFFF, 0xFFFFFFFE])
def test_the_size_a_zip_declares_is_not_believed(declared):
    bomb = zip_of({"0": bytes(EXPANDED)})
    lying = patched(bomb, bomb.index(CENTRAL) + 24, struct.pack("<I", declared))

    def expand():
        with pytest.raises((BadParameterError, SerializationError)):
            decompress(Compression.ZIP, lying, BOUND)

    assert peak_of(expand) <= 2 * len(bomb) + 3 * BOUND + SLACK_BYTES


@pytest.mark.parametrize("kind", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA], ids=["bzip2", "lzma"])
def test_a_zip_of_another_method_is_not_a_way_round_the_bound(kind):
    """zipfile knows methods that no peer uses, and expands those without a bound."""
    bomb = zip_of({"0": bytes(EXPANDED)}, kind)

    def expand():
        with pytest.raises((BadParameterError, SerializationError)):
            decompress(Compression.ZIP, bomb, BOUND)

    assert peak_of(expand) <= 2 * len(bomb) + 3 * BOUND + SLACK_BYTES


def test_a_zip_that_asks_for_a_huge_dictionary_is_refused_before_it_is_allocated():
    good = zip_of({"0": bytes(1000)}, zipfile.ZIP_LZMA)
    greedy = patched(good, good.index(b"\x09\x04\x05\x00\x5d") + 5, b"\xff\xff\xff\x7f")

    def expand():
        with pytest.raises((BadParameterError, SerializationError)):
            decompress(Compression.ZIP, greedy, BOUND)

    assert peak_of(expand) <= 1 << 20


@pytest.mark.parametrize("names", [(), ("0", "1"), ("a", "b", "c")], ids=len)
def test_a_zip_holds_one_entry(names):
    with pytest.raises(SerializationError, match="one entry"):
        decompress(Compression.ZIP, zip_of(dict.fromkeys(names, b"x")))


def zip_of_many(count, says, is_64_bit):
    """A directory of `count` entries whose end record says another number; a 64-bit record has the last word."""
    entry = struct.pack("<4s6H3I5H2I", CENTRAL, 20, 20, 0, 0, 0, 33, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0) + b"0"
    directory, size = entry * count, count * len(entry)
    if not is_64_bit:
        return directory + struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, says, says, size, 0, 0)
    record = struct.pack("<4sQ2H2I4Q", b"PK\6\6", 44, 45, 45, 0, 0, count, count, size, 0)
    locator = struct.pack("<4sIQI", b"PK\6\7", 0, size, 1)
    return directory + record + locator + struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, says, says, len(entry), 0, 0)


@pytest.mark.parametrize("is_64_bit", [False, True], ids=["plain", "64-bit"])
@pytest.mark.parametrize("says", [40_000, 1], ids=["says-so", "says-one"])
def test_a_zip_of_very_many_entries_is_refused_without_listing_them(says, is_64_bit):
    many = zip_of_many(40_000, says, is_64_bit)

    def expand():
        with pytest.raises((BadParameterError, SerializationError)):
            decompress(Compression.ZIP, many, BOUND)

    assert peak_of(expand) <= 2 * len(many) + SLACK_BYTES


def zip_with_offset(offset):
    """An entry that says in its 64-bit extension where it starts."""
    good = compress(Compression.ZIP, b"x" * 10)
    at = good.index(CENTRAL)
    extension = struct.pack("<HHQ", 1, 8, offset)
    central = bytearray(good[at : good.index(b"PK\5\6")])
    struct.pack_into("<H", central, 30, len(extension))
    struct.pack_into("<I", central, 42, 0xFFFFFFFF)
    end = bytearray(good[good.index(b"PK\5\6") :])
    struct.pack_into("<I", end, 12, len(central) + len(extension))
    return good[:at] + bytes(central) + extension + bytes(end)


@pytest.mark.parametrize("offset", [1, 1 << 31, 1 << 62, (1 << 63) - 1, 1 << 63, (1 << 64) - 1], ids=hex)
def test_a_zip_whose_entry_is_elsewhere_is_damaged(offset):
    with pytest.raises(SerializationError):
        decompress(Compression.ZIP, zip_with_offset(offset))


def zstd_frame(window_log, blocks):
    """A frame without a content size; each block is a byte and how often it comes."""
    frame = b"\x28\xb5\x2f\xfd" + bytes([0, (window_log - 10) << 3])
    for nth, (byte, count) in enumerate(blocks):
        is_last = nth == len(blocks) - 1
        frame += struct.pack("<I", count << 3 | 1 << 1 | is_last)[:3] + bytes([byte])
    return frame


def test_the_hand_made_zstd_frame_is_one():
    assert decompress(Compression.ZSTD, zstd_frame(20, [(65, 100), (66, 5)])) == b"A" * 100 + b"B" * 5


@pytest.mark.parametrize("window_log", [24, 27, 30, 31, 41])
def test_a_zstd_body_with_a_huge_window_is_refused(window_log):
    with pytest.raises(BadParameterError, match="window"):
        decompress(Compression.ZSTD, zstd_frame(window_log, [(65, 100)]))


@pytest.mark.parametrize("window_log", [24, 27, 31])
def test_a_huge_window_does_not_hide_behind_a_small_frame(window_log):
    first = compress(Compression.ZSTD, b"small")
    with pytest.raises((BadParameterError, SerializationError)):
        decompress(Compression.ZSTD, first + zstd_frame(window_log, [(65, 100)]))


def test_a_zstd_body_of_repeats_is_refused():
    bomb = zstd_frame(20, [(0, 100_000)] * 2000)
    assert peak_of(lambda: refused(Compression.ZSTD, bomb)) <= 2 * len(bomb) + 3 * BOUND + SLACK_BYTES


@pytest.mark.parametrize("size", [BOUND + 1, 1 << 30, (1 << 32) - 1])
def test_the_size_a_zstd_frame_declares_is_not_believed(size):
    frame = b"\x28\xb5\x2f\xfd\xa0" + struct.pack("<I", size) + struct.pack("<I", 100 << 3 | 1 << 1 | 1)[:3] + b"A"

    def expand():
        with pytest.raises((BadParameterError, SerializationError)):
            decompress(Compression.ZSTD, frame, BOUND)

    assert peak_of(expand) <= 3 * BOUND + SLACK_BYTES


# ---- damage --------------------------------------------------------------------------------------------------------

SAMPLES = (b"", b"a", b"hello world " * 40, bytes(70_000), random.Random(7).randbytes(300))


@every_kind
def test_nothing_at_all_is_not_a_compressed_body(kind):
    if kind is Compression.SNAPPY:
        return  # a stream of no chunks is one
    with pytest.raises(SerializationError):
        decompress(kind, b"")


@every_kind
def test_a_body_cut_short_is_undecodable(kind):
    carried = compress(kind, b"hello world " * 400)
    # A snappy stream has no end mark: it may stop after its head.
    whole_streams = {0, 10} if kind is Compression.SNAPPY else set()
    for size in range(len(carried)):
        if size not in whole_streams:
            with pytest.raises(SerializationError):
                decompress(kind, carried[:size])


@every_kind
@pytest.mark.parametrize("other", KINDS, ids=lambda kind: kind.value)
def test_a_body_of_another_kind_is_undecodable(kind, other):
    if kind is not other:
        with pytest.raises(SerializationError):
            decompress(kind, compress(other, b"hello world " * 40))


def mutated(rng, data):
    """A good body after an accident or two."""
    data = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randrange(len(data)) if data else 0
        match rng.randrange(5):
            case 0 if data:
                data[at] ^= 1 << rng.randrange(8)
            case 1 if data:
                data[at] = rng.choice((0x00, 0x7F, 0x80, 0xFF))
            case 2:
                del data[at : at + rng.randrange(1, 9)]
            case 3:
                data[at:at] = rng.randbytes(rng.randrange(1, 9))
            case _:
                data[at:at] = data[: rng.randrange(1, 60)]
    return bytes(data)


@every_kind
@pytest.mark.parametrize("seed", range(2))
def test_a_damaged_body_is_expanded_or_refused(kind, seed):
    rng = random.Random(f"{kind.value} {seed}")
    good = [compress(kind, body) for body in SAMPLES]
    if kind is Compression.ZIP:
        good += [
            zip_of({"0": SAMPLES[2]}, other) for other in (zipfile.ZIP_STORED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)
        ]
        good.append(zip_with_offset(0))
    for _ in range(1500):
        carried = mutated(rng, rng.choice(good))
        try:
            body = decompress(kind, carried, 1 << 20)
        except (SerializationError, BadParameterError):
            continue
        except Exception as error:
            raise AssertionError(f"{type(error).__name__}: {error} for {carried.hex()}") from error
        assert len(body) <= 1 << 20


@given(kind=st.sampled_from(KINDS), carried=st.binary(max_size=100))
@settings(max_examples=200, deadline=None)
def test_any_bytes_are_expanded_or_refused(kind, carried):
    try:
        decompress(kind, carried, BOUND)
    except (SerializationError, BadParameterError):
        return
