"""Message values in their stored bytes and out again."""

import random
import struct
import zlib
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lakemq import envelope, record
from lakemq.compression import Compression
from lakemq.errors import BadParameterError, ChecksumError, LakeMQError, SerializationError
from lakemq.message import BATCH_COUNT_MAX, MESSAGE_BYTES_MAX, BatchItem, BatchMessage, Message, Source
from wire.strategies import BATCHES, ITEMS, MESSAGES, SINGLE_MESSAGES

SLOW_IS_FINE = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example]
PROPERTY = settings(max_examples=60, deadline=None, suppress_health_check=SLOW_IS_FINE)
SYSTEM_CODE_AT, CRC_AT, FLAG_AT = 18, 33, 41

# ---- round trips ---------------------------------------------------------------------------------------------------


@given(SINGLE_MESSAGES)
@PROPERTY
def test_a_message_comes_back_as_it_was_packed(message):
    assert envelope.unpack(envelope.pack(message)) == message


@given(BATCHES)
@PROPERTY
def test_a_batch_comes_back_as_it_was_packed(batch):
    assert envelope.unpack(envelope.pack(batch)) == batch


@given(st.lists(MESSAGES, max_size=4))
@settings(PROPERTY, max_examples=30)
def test_messages_back_to_back_come_back_in_order(messages):
    data = b"".join(map(envelope.pack, messages))
    assert list(envelope.unpack_all(data)) == messages
    at = 0
    for message in messages:
        assert envelope.unpack(data, at) == message
        at = record.read_fields(data, at)[1]
    assert at == len(data)


@given(MESSAGES)
@settings(PROPERTY, max_examples=30)
def test_what_is_packed_passes_the_brokers_scan(message):
    data = envelope.pack(message)
    found = record.scan_python(data, 0, len(data), 1)
    count = len(message.items) if isinstance(message, BatchMessage) else 1
    assert found == (len(data), message.partition, count)


@given(MESSAGES)
@settings(PROPERTY, max_examples=30)
def test_taking_apart_and_putting_together_keeps_every_byte(message):
    data = envelope.pack(message)
    fields, end = record.read_fields(data)
    assert end == len(data)
    assert record.write_fields(fields) == data


@given(st.lists(ITEMS, min_size=1, max_size=5).map(tuple))
@settings(PROPERTY, max_examples=40)
def test_batched_messages_come_back(items):
    body = envelope.pack_items(items)
    assert struct.unpack_from(">ih", body) == (len(body), len(items))
    assert envelope.unpack_items(body, len(items)) == items


@pytest.mark.parametrize("kind", Compression, ids=lambda kind: kind.value)
@pytest.mark.parametrize("source", Source)
@pytest.mark.parametrize("marks", range(8))
def test_every_mark_has_its_bit(kind, source, marks):
    code = record.SystemCode(kind, bool(marks & 1), source, bool(marks & 2), bool(marks & 4))
    number = code.pack()
    assert record.SystemCode.unpack(number) == code
    assert number & 0x0F00 == 0x0100
    assert number & 0xE000 == 0
    assert bool(number & 0x0001) == (kind is not Compression.NONE)
    assert bool(number & 0x0002) == code.is_ordered
    assert (number >> 2) & 3 == source
    assert bool(number & 0x0080) == code.is_ipv6
    assert bool(number & 0x1000) == code.is_batch


@pytest.mark.parametrize(
    ("kind", "number"),
    [
        (Compression.SNAPPY, 0),
        (Compression.ZIP, 1),
        (Compression.ZLIB, 2),
        (Compression.LZ4, 3),
        (Compression.ZSTD, 4),
    ],
    ids=lambda value: str(value),
)
def test_compressions_have_the_numbers_of_the_description(kind, number):
    assert (record.SystemCode(kind).pack() >> 4) & 7 == number


def test_a_largest_batch_comes_back():
    batch = BatchMessage(items=(BatchItem(b""),) * BATCH_COUNT_MAX)
    assert len(envelope.unpack(envelope.pack(batch)).items) == BATCH_COUNT_MAX


def test_the_messages_of_a_batch_take_consecutive_indexes():
    batch = BatchMessage(
        items=(BatchItem(b"a", "x"), BatchItem(b"b", flag=3)), index=7, partition=2, app="shop", term=4
    )
    first, second = batch.messages()
    assert (first.index, first.body, first.business_id, first.partition) == (7, b"a", "x", 2)
    assert (second.index, second.body, second.flag, second.app, second.term) == (8, b"b", 3, "shop", 4)
    assert [message.index for message in replace(batch, index=-1).messages()] == [-1, -1]


# ---- what may not be sent ------------------------------------------------------------------------------------------

NOT_ALLOWED = {
    "businessId of 101 characters": Message(business_id="a" * 101),
    "businessId with half a surrogate pair": Message(business_id="\ud800"),
    "attributes with half a surrogate pair": Message(attributes={"k": "\udfff"}),
    "attributes too long": Message(attributes={"k": "v" * 32766}),
    "app of 128 characters": Message(app="a" * 128),
    "app of 129 bytes": Message(app="中" * 43),
    "app with half a surrogate pair": Message(app="\ud800"),
    "priority": Message(priority=128),
    "flag": Message(flag=32768),
    "partition": Message(partition=32768),
    "index": Message(index=1 << 63),
    "term": Message(term=1 << 31),
    "sendTime": Message(send_time_ms=1 << 63),
    "storeTime": Message(store_time_ms=1 << 31),
    "body too long": Message(body=bytes(MESSAGE_BYTES_MAX)),
    "batch of none": BatchMessage(),
    "batch of too many": BatchMessage(items=(BatchItem(b""),) * (BATCH_COUNT_MAX + 1)),
    "batch too long": BatchMessage(items=(BatchItem(bytes(MESSAGE_BYTES_MAX)),)),
    "batched businessId of 101 characters": BatchMessage(items=(BatchItem(b"", "a" * 101),)),
    "batched businessId with half a surrogate pair": BatchMessage(items=(BatchItem(b"", "\ud800"),)),
    "batched attributes too long": BatchMessage(items=(BatchItem(b"", "", {"k": "v" * 32766}),)),
    "batched priority": BatchMessage(items=(BatchItem(b"", priority=-129),)),
    "batched flag": BatchMessage(items=(BatchItem(b"", flag=-32769),)),
}


@pytest.mark.parametrize("message", NOT_ALLOWED.values(), ids=NOT_ALLOWED)
def test_what_may_not_be_sent_is_not_packed(message):
    with pytest.raises(BadParameterError):
        envelope.pack(message)


def test_the_limits_themselves_are_allowed():
    message = Message(business_id="😀" * 100, app="a" * 127, attributes={"k": "v" * 32765})
    assert envelope.unpack(envelope.pack(message)) == message
    fitting = Message(body=bytes(MESSAGE_BYTES_MAX - 57))
    assert len(envelope.pack(fitting)) == MESSAGE_BYTES_MAX


def test_a_body_is_measured_as_it_is_carried():
    message = Message(body=bytes(3 * MESSAGE_BYTES_MAX), compression=Compression.ZLIB)
    assert envelope.unpack(envelope.pack(message)) == message


# ---- what may not be opened ----------------------------------------------------------------------------------------

GOOD = envelope.pack(Message(body=b"body", business_id="id", attributes={"k": "v"}, app="app"))


def patched(data, at, layout, value):
    data = bytearray(data)
    struct.pack_into(layout, data, at, value)
    return bytes(data)


def test_a_body_that_does_not_match_its_crc_is_never_handed_out():
    damaged = bytearray(GOOD)
    damaged[47] ^= 1
    with pytest.raises(ChecksumError):
        envelope.unpack(damaged)
    with pytest.raises(ChecksumError):
        record.scan_python(bytes(damaged), 0, len(damaged), 1)


@pytest.mark.parametrize("unset", [0, -1])
def test_a_crc_that_the_sender_left_open_is_not_checked(unset):
    assert envelope.unpack(patched(GOOD, CRC_AT, ">q", unset)) == envelope.unpack(GOOD)


@pytest.mark.parametrize("high", [1 << 32, -(1 << 32), 1 << 62])
def test_a_crc_with_bits_above_its_32_is_wrong(high):
    with pytest.raises(ChecksumError):
        envelope.unpack(patched(GOOD, CRC_AT, ">q", zlib.crc32(b"body") + high))


def fields_of(message, **changes):
    fields, _ = record.read_fields(envelope.pack(message))
    for name, value in changes.items():
        setattr(fields, name, value)
    fields.body_crc = zlib.crc32(fields.body)
    return record.write_fields(fields)


BATCH = BatchMessage(items=(BatchItem(b"one", "id", {"k": "v"}), BatchItem(b"two")))
BATCH_BODY = envelope.pack_items(BATCH.items)


def resized(body):
    return struct.pack(">i", len(body)) + body[4:]


UNREADABLE = {
    "businessId not UTF-8": fields_of(Message(), business_id=b"\xff"),
    "attributes not UTF-8": fields_of(Message(), attributes=b"\xff"),
    "attributes with a broken unit": fields_of(Message(), attributes=rb"k=\u12"),
    "app not UTF-8": fields_of(Message(), app=b"\xff"),
    "batch body of nothing": fields_of(BATCH, body=b""),
    "batch body cut in its head": fields_of(BATCH, body=b"\x00\x00\x00\x05\x00"),
    "batch total wrong": fields_of(BATCH, body=struct.pack(">i", 7) + BATCH_BODY[4:]),
    "batch count below the flag": fields_of(BATCH, flag=3),
    "batch count above the flag": fields_of(BATCH, flag=1),
    "batch of zero": fields_of(BATCH, flag=0, body=struct.pack(">ih", 6, 0)),
    "batch of minus one": fields_of(BATCH, flag=-1, body=struct.pack(">ih", 6, -1)),
    "batch cut short": fields_of(BATCH, body=resized(BATCH_BODY[:-1])),
    "batch with a tail": fields_of(BATCH, body=resized(BATCH_BODY + b"x")),
    "batched length zero": fields_of(BATCH, body=patched(BATCH_BODY, 6, ">i", 0)),
    "batched length negative": fields_of(BATCH, body=patched(BATCH_BODY, 6, ">i", -1)),
    "batched length one less": fields_of(BATCH, body=patched(BATCH_BODY, 6, ">i", 24)),
    "batched length too long": fields_of(BATCH, body=patched(BATCH_BODY, 6, ">i", 0x7FFFFFFF)),
    "batched body too long": fields_of(BATCH, body=patched(BATCH_BODY, 13, ">i", 0x7FFFFFFF)),
    "batched body negative": fields_of(BATCH, body=patched(BATCH_BODY, 13, ">i", -1)),
    "batched businessId not UTF-8": fields_of(BATCH, body=BATCH_BODY.replace(b"id", b"\xff\xfe")),
    "batched attributes not UTF-8": fields_of(BATCH, body=BATCH_BODY.replace(b"k=v", b"\xff=v")),
    "not zlib": fields_of(Message(compression=Compression.ZLIB), body=b"plain"),
    "not lz4": fields_of(Message(compression=Compression.LZ4), body=b"plain"),
    "not a batch inside": fields_of(replace(BATCH, compression=Compression.ZLIB), body=zlib.compress(b"?")),
    "a message cut short": GOOD[:-1],
    "a message and a byte": GOOD + b"\x00",
}


@pytest.mark.parametrize("data", UNREADABLE.values(), ids=UNREADABLE)
def test_bytes_that_are_not_a_message_are_undecodable(data):
    with pytest.raises(SerializationError):
        list(envelope.unpack_all(data))


def test_a_bomb_is_refused_when_it_is_opened():
    data = envelope.pack(Message(body=bytes(1 << 20), compression=Compression.ZSTD))
    assert len(data) < 1000
    with pytest.raises(BadParameterError, match="expands beyond 65536"):
        envelope.unpack(data, expanded_bytes_max=1 << 16)
    with pytest.raises(BadParameterError):
        list(envelope.unpack_all(data, expanded_bytes_max=1 << 16))


def test_negative_lengths_are_empty_parts():
    data = envelope.pack(Message())
    for at, layout in ((43, ">i"), (47, ">h"), (49, ">h"), (51, ">i"), (55, ">h")):
        assert envelope.unpack(patched(data, at, layout, -1)) == Message()


@pytest.mark.parametrize("seed", range(4))
def test_a_damaged_message_is_opened_or_refused(seed):
    rng = random.Random(seed)
    good = [patched(GOOD, CRC_AT, ">q", 0), envelope.pack(BATCH)]
    for kind in Compression:
        items = (BatchItem(b"one " * 50, "id"), BatchItem(b"two " * 50))
        good.append(patched(envelope.pack(Message(body=b"text " * 50, compression=kind)), CRC_AT, ">q", 0))
        good.append(patched(envelope.pack(BatchMessage(items=items, compression=kind)), CRC_AT, ">q", -1))
    for _ in range(1500):
        data = bytearray(rng.choice(good))
        for _ in range(rng.choice((1, 1, 3))):
            data[rng.randrange(len(data))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        try:
            list(envelope.unpack_all(data, expanded_bytes_max=1 << 20))
        except LakeMQError:
            continue
