"""The hot loops, on both their definition and the compiled twin."""

import struct
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakemq import envelope, record
from lakemq.compression import Compression
from lakemq.errors import BadParameterError, ChecksumError, LakeMQError, SerializationError
from lakemq.message import BatchItem, BatchMessage, Message, Source

try:
    from lakemq import _hot as hot
except ImportError:
    hot = None

needs_twin = pytest.mark.skipif(hot is None, reason="the compiled twin was not built: no C compiler at install")

NOW_MS = 1_700_000_000_123


def plain(body=b"hello", **more):
    return envelope.pack(Message(body=body, send_time_ms=NOW_MS - 5, app="shop", **more))


def batch(count=3, **more):
    items = tuple(BatchItem(b"m%d" % n, f"b{n}", {"k": "v"}) for n in range(count))
    return envelope.pack(BatchMessage(items=items, send_time_ms=NOW_MS - 5, app="shop", **more))


def patched(data, at, layout, *values):
    changed = bytearray(data)
    struct.pack_into(layout, changed, at, *values)
    return bytes(changed)


def outcome(function, *arguments):
    try:
        return function(*arguments)
    except LakeMQError as error:
        return type(error)


@pytest.fixture(params=["definition", pytest.param("twin", marks=needs_twin)])
def twins(request, monkeypatch):
    """record.scan, measure and stamp, once without the compiled twin and once with it."""
    monkeypatch.setattr(record, "_hot", hot if request.param == "twin" else None)
    return record


def test_scan_counts_messages_and_indexes(twins):
    data = plain(partition=7) + batch(3, partition=7) + plain(partition=7)
    assert twins.scan(data, 0, len(data), 3) == (len(data), 7, 5)


def test_scan_starts_and_ends_where_it_is_told(twins):
    data = plain(b"a" * 200)
    assert twins.scan(b"xx" + data + b"yy", 2, 2 + len(data), 1).end == 2 + len(data)
    with pytest.raises(SerializationError):
        twins.scan(data, 0, len(data) - 1, 1)


BAD = {
    "mixed partitions": (plain(partition=1) + plain(partition=2), 2, BadParameterError),
    "wrong crc": (patched(plain(), 33, ">q", 12345), 1, ChecksumError),
    "crc with high bits": (patched(plain(), 33, ">q", zlib.crc32(b"hello") | 1 << 40), 1, ChecksumError),
    "version 2": (patched(plain(), 18, ">h", 0x0200), 1, BadParameterError),
    "reserved bit": (patched(plain(), 18, ">H", 0x8100), 1, BadParameterError),
    "JoyQueue's magic": (patched(plain(), 18, ">h", 0x1234), 1, BadParameterError),
    "unknown compression": (patched(plain(), 18, ">h", 0x0151), 1, BadParameterError),
    "empty batch": (patched(batch(), 41, ">h", 0), 1, BadParameterError),
    "batch of minus one": (patched(batch(), 41, ">h", -1), 1, BadParameterError),
    "batch count differs": (patched(batch(), 41, ">h", 2), 1, SerializationError),
    "batch total differs": (patched(batch(), 47, ">i", 9), 1, SerializationError),
    "batch body too short": (patched(plain(), 18, ">h", 0x1100), 1, BadParameterError),
    "body negative": (patched(plain(), 43, ">i", -5), 1, SerializationError),
    "body past the end": (patched(plain(), 43, ">i", 0x7FFFFFFF), 1, SerializationError),
    "length negative": (patched(plain(), 0, ">i", -1), 1, SerializationError),
    "length too small": (patched(plain(), 0, ">i", 56), 1, SerializationError),
    "length one less": (patched(plain(), 0, ">i", len(plain()) - 1), 1, SerializationError),
    "one message more": (plain(), 2, SerializationError),
}


@pytest.mark.parametrize("name", BAD)
def test_scan_refuses(twins, name):
    data, count, error = BAD[name]
    with pytest.raises(error):
        twins.scan(data, 0, len(data), count)


def test_scan_refuses_a_message_over_the_limit(twins):
    data = plain(b"x" * 1000)
    assert twins.scan(data, 0, len(data), 1, len(data)).end == len(data)
    with pytest.raises(BadParameterError):
        twins.scan(data, 0, len(data), 1, len(data) - 1)


def raw(business_id=b"", attributes=b"", app=b"", body=b"b"):
    fields = record.MessageFields(0, -1, 0, 0x010C, 0, NOW_MS, 0, 0, 0, body, business_id, attributes, b"", app)
    return record.write_fields(fields)


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (raw(business_id=b"\xff"), SerializationError),
        (raw(business_id=b"\xc0\x80"), SerializationError),
        (raw(business_id=b"\xed\xa0\x80"), SerializationError),
        (raw(business_id=b"\xf4\x90\x80\x80"), SerializationError),
        (raw(business_id=b"abcdefgh\xe4\xb8"), SerializationError),
        (raw(attributes=b"k=\xfe"), SerializationError),
        (raw(app=b"\x80"), SerializationError),
        (raw(business_id="中".encode() * 101), BadParameterError),
        (raw(app=b"a" * 128), BadParameterError),
    ],
)
def test_scan_refuses_texts(twins, data, error):
    with pytest.raises(error):
        twins.scan(data, 0, len(data), 1)


def test_a_hundred_characters_may_be_four_hundred_bytes(twins):
    data = raw(business_id="𝄞".encode() * 100, app=b"a" * 127)
    assert twins.scan(data, 0, len(data), 1).end == len(data)


@pytest.mark.parametrize("crc", [0, -1])
def test_a_crc_left_open_is_accepted_and_filled_in(twins, crc):
    data = bytearray(patched(plain(b"open"), 33, ">q", crc))
    twins.scan(data, 0, len(data), 1)
    twins.stamp(data, 0, 1, 0, 0, 1, NOW_MS)
    assert record.read_fields(data)[0].body_crc == zlib.crc32(b"open")


def test_stamp_gives_consecutive_indexes_and_keeps_all_else(twins):
    parts = [plain(b"one", attributes={"TAGS": "a"}), batch(4), plain(b"two", business_id="中")]
    data = bytearray(b"".join(parts))
    assert twins.stamp(data, 0, 3, 9, 100, 7, NOW_MS) == 106
    at = 0
    for part, index in zip(parts, (100, 101, 105), strict=True):
        stamped, at = record.read_fields(data, at)
        before, _ = record.read_fields(part)
        assert (stamped.partition, stamped.index, stamped.term, stamped.store_time_ms) == (9, index, 7, 5)
        before.partition, before.index, before.term, before.store_time_ms = 9, index, 7, 5
        assert stamped == before


@pytest.mark.parametrize(
    ("sent", "stored"),
    [(NOW_MS + 10, 0), (NOW_MS - 2**40, 2**31 - 1), (-(2**63), 2**31 - 1), (2**63 - 1, 0), (NOW_MS, 0)],
)
def test_store_time_is_clamped(twins, sent, stored):
    data = bytearray(patched(plain(), 21, ">q", sent))
    twins.stamp(data, 0, 1, 0, 0, 0, NOW_MS)
    assert record.read_fields(data)[0].store_time_ms == stored


def test_stamp_changes_nothing_outside_the_messages(twins):
    data = bytearray(b"left" + plain() + b"right")
    twins.stamp(data, 4, 1, 1, 2, 3, NOW_MS)
    assert data.startswith(b"left")
    assert data.endswith(b"right")


def test_stamp_needs_memory_it_may_write(twins):
    with pytest.raises((TypeError, BufferError)):
        twins.stamp(plain(), 0, 1, 0, 0, 0, NOW_MS)


messages = st.builds(
    Message,
    body=st.binary(max_size=300),
    business_id=st.text(st.characters(codec="utf-8"), max_size=20),
    attributes=st.dictionaries(
        st.text(st.characters(codec="utf-8"), max_size=5), st.text(st.characters(codec="utf-8"))
    ),
    compression=st.sampled_from(Compression),
    is_ordered=st.booleans(),
    source=st.sampled_from(Source),
    is_ipv6=st.booleans(),
    priority=st.integers(-128, 127),
    extension=st.binary(max_size=9),
    app=st.sampled_from(["", "shop", "shop.blue"]),
    send_time_ms=st.integers(-(2**63), 2**63 - 1),
    partition=st.just(3),
)


@needs_twin
@settings(deadline=None, max_examples=300)
@given(st.lists(messages, min_size=1, max_size=4), st.data())
def test_twin_and_definition_agree_on_mutated_messages(values, data):
    """The twin may refuse what the definition accepts (it is asked again), never the other way round."""
    bytes_ = bytearray(b"".join(map(envelope.pack, values)))
    for _ in range(data.draw(st.integers(0, 2))):
        at = data.draw(st.integers(0, min(len(bytes_) - 1, 400)))
        bytes_[at] = data.draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFF, bytes_[at] ^ 1]))
    arguments = (bytes_, 0, len(bytes_), len(values))
    expected = outcome(record.scan_python, *arguments)
    assert hot.scan(*arguments, record.MESSAGE_BYTES_MAX) == (expected if isinstance(expected, tuple) else None)
    ends = outcome(record.measure_python, *arguments)
    assert hot.measure(*arguments) == (ends if isinstance(ends, int) else None)
    if isinstance(expected, tuple):
        other = bytearray(bytes_)
        stamps = (0, len(values), -2, 2**40, 2**31 - 1, NOW_MS)
        assert hot.stamp(bytes_, *stamps) == record.stamp_python(other, *stamps)
        assert bytes_ == other


@needs_twin
@given(st.binary(max_size=700), st.integers(0, 2**32 - 1))
def test_the_compiled_crc_is_zlibs(data, value):
    assert hot.crc32(data) == zlib.crc32(data)
    assert hot.crc32(data, value) == zlib.crc32(data, value)


@needs_twin
@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        ("scan", (b"", 0)),
        ("scan", ("text", 0, 0, 0, 0)),
        ("stamp", (bytearray(60), 0, 1, 1 << 20, 0, 0, 0)),
        ("stamp", (bytearray(60), 0, 1, 0, 0, 0, 0)),
        ("stamp", (bytearray(60), -1, 1, 0, 0, 0, 0)),
        ("measure", (b"", "0", 0, 0)),
        ("crc32", ()),
    ],
)
def test_a_wrong_call_is_an_exception_and_not_a_crash(function, arguments):
    with pytest.raises((TypeError, ValueError)):
        getattr(hot, function)(*arguments)
