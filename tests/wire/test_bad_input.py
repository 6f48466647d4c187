"""Payloads that nobody should send: refused with the right error, before anything is allocated for them."""

import contextlib
import struct
import time
import tracemalloc

import pytest

from lakemq import envelope
from lakemq.errors import BadParameterError, LakeMQError, ReadError, SerializationError
from lakemq.message import Message
from lakemq.wire import consume, coordinate, metadata, produce, session
from lakemq.wire.buffer import Reader, Writer
from lakemq.wire.commands import KINDS, decode_request, decode_response, encode_request, encode_response
from lakemq.wire.dialect import Dialect, Form
from lakemq.wire.fields import BOOLEAN, BYTE, DOUBLE, INT, LONG, SHORT, SHORT_STRING, STRING, Array, Present
from lakemq.wire.frame import FRAME_BYTES_MAX
from lakemq.wire.header import Header
from lakemq.wire.messages import MESSAGES, MessageBlock
from wire.strategies import FORMS, form_name

DOCUMENTED = Form(Dialect.DOCUMENTED, 2)
JOYQUEUE = Form(Dialect.JOYQUEUE, 4)


def short(value):
    return struct.pack(">h", value)


def integer(value):
    return struct.pack(">i", value)


def text(value):
    return short(len(value.encode())) + value.encode()


def request(number, payload, version=2):
    return Header(number, 1, version).pack(len(payload)) + payload


def response(number, payload, version=2):
    return Header(-number, 1, version, is_response=True).pack(len(payload)) + payload


# ---- reading -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "data"),
    [
        (BYTE, b""),
        (SHORT, b"\x00"),
        (INT, b"\x00\x00\x00"),
        (LONG, bytes(7)),
        (DOUBLE, bytes(7)),
        (BOOLEAN, b""),
        (STRING, b""),
        (STRING, b"\x00"),
        (STRING, b"\x00\x01"),
        (STRING, b"\x00\x05abcd"),
        (STRING, b"\x7f\xffabcd"),
        (SHORT_STRING, b"\x00"),
        (Array(INT), b"\x00"),
        (Array(INT), b"\x00\x01\x00\x00\x00"),
        (Present(INT), b"\x01\x00\x00\x00"),
        (MESSAGES, b"\x00"),
        (MESSAGES, b"\x00\x01" + bytes(56)),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, bytes) else value.hex() or "nothing",
)
def test_what_is_cut_short_is_undecodable(field, data):
    with pytest.raises(SerializationError):
        field.read(Reader(data, DOCUMENTED))


def test_a_reader_stops_at_its_end_and_not_at_the_buffers():
    reader = Reader(b"\x00\x00\x00\x01\x00\x02", DOCUMENTED, position=1, end=4)
    assert reader.left == 3
    with pytest.raises(SerializationError, match="byte 1: 4 bytes wanted, 3 are left"):
        reader.integer()
    with pytest.raises(SerializationError):
        reader.take(4)
    assert reader.short() == 0
    assert reader.byte() == 1
    assert reader.left == 0


@pytest.mark.parametrize(
    ("width", "data"),
    [(1, b"\xff"), (1, b"\x80"), (2, b"\xff\xff"), (2, b"\x80\x00"), (4, b"\xff" * 4), (4, b"\x80\x00\x00\x00")],
    ids=lambda value: value.hex() if isinstance(value, bytes) else str(value),
)
def test_a_negative_length_is_empty(width, data):
    reader = Reader(data + b"rest", DOCUMENTED)
    assert reader.string(width) == ""
    assert reader.left == 4
    assert bytes(Reader(data + b"rest", DOCUMENTED).sized(width)) == b""


@pytest.mark.parametrize("count", [-1, -32768])
def test_a_negative_count_is_no_elements(count):
    reader = Reader(short(count) + b"rest", DOCUMENTED)
    assert Array(INT).read(reader) == ()
    assert reader.left == 4


@pytest.mark.parametrize("form", FORMS, ids=form_name)
@pytest.mark.parametrize("count", [-1, -32768, 0])
def test_a_block_of_no_messages_is_empty_whatever_its_count_says(form, count):
    block = MESSAGES.read(Reader(short(count), form))
    assert (block.count, len(block), block.dialect) == (0, 0, form.dialect)


@pytest.mark.parametrize("value", [1, 2, 0x7F, 0x80, 0xFF])
def test_whatever_is_not_zero_is_true(value):
    assert BOOLEAN.read(Reader(bytes([value]), DOCUMENTED)) is True


@pytest.mark.parametrize(
    "data",
    [b"\xff", b"\xc3", b"\xc3\x28", b"\xa0", b"\xed\xa0\x80", b"\xc0\x80", b"\xf5\x80\x80\x80", b"ok\xfe"],
    ids=["ff", "cut", "no-tail", "stray-tail", "surrogate", "overlong", "past-the-last", "late"],
)
@pytest.mark.parametrize("form", [DOCUMENTED, JOYQUEUE], ids=form_name)
def test_text_that_is_not_utf_8_is_undecodable(form, data):
    with pytest.raises(SerializationError, match="UTF-8"):
        STRING.read(Reader(short(len(data)) + data, form))
    with pytest.raises(SerializationError):
        decode_request(request(4, short(1) + short(len(data)) + data + text("app"), form.version), form.dialect)


def test_a_nul_is_a_character_like_any_other():
    assert STRING.read(Reader(text("a\x00b"), DOCUMENTED)) == "a\x00b"


# Payloads that claim more elements than there are bytes for; each count is the largest there is.
MANY = short(32767)
CLAIMS = {
    "topics": (4, MANY),
    "topics-one-there": (4, MANY + text("t")),
    "acks": (32, short(1) + text("t") + short(1) + short(0) + MANY + bytes(60)),
    "partitions": (35, short(1) + text("t") + MANY + bytes(60)),
    "partition-fetches": (31, short(1) + text("t") + MANY + bytes(13 * 100)),
    "messages": (50, short(1) + text("t") + text("") + integer(1) + b"\x00" + MANY + bytes(2000)),
    "produces": (50, MANY + bytes(10_000)),
}


@pytest.mark.parametrize(("number", "payload"), CLAIMS.values(), ids=CLAIMS)
@pytest.mark.parametrize("form", FORMS, ids=form_name)
def test_a_count_that_cannot_fit_is_refused_before_anything_is_allocated(form, number, payload):
    frame = request(number, payload, form.version)
    tracemalloc.start()
    try:
        with pytest.raises(SerializationError):
            decode_request(frame, form.dialect)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 64 << 10


ACK_CLAIMS = {
    "clusters": (10, MANY + bytes(9000)),
    "brokers": (10, short(0) + MANY + bytes(9000)),
    "coordinators": (20, MANY + bytes(9000)),
    "assignments": (21, MANY + bytes(9000)),
    "topic-messages": (30, short(1) + text("t") + MANY + bytes(9000)),
    "indexes": (35, short(1) + text("t") + MANY + bytes(9000)),
    "results": (50, short(1) + text("t") + integer(0) + MANY + bytes(9000)),
    "transactions": (54, MANY + bytes(9000)),
}


@pytest.mark.parametrize(("number", "payload"), ACK_CLAIMS.values(), ids=ACK_CLAIMS)
@pytest.mark.parametrize("form", FORMS, ids=form_name)
def test_an_ack_whose_count_cannot_fit_is_refused_before_anything_is_allocated(form, number, payload):
    frame = response(number, payload, form.version)
    tracemalloc.start()
    try:
        with pytest.raises(SerializationError):
            decode_response(frame, form.dialect)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 64 << 10


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_no_value_has_fewer_bytes_than_its_layout_says(kind):
    """Array counts are bounded by it: were it too large, good frames would be refused."""
    for form in FORMS:
        frame = b"".join(encode_request(kind.request_class(), form=form, request_id=1, send_time_ms=0))
        assert kind.request.bytes_min <= len(frame) - 23
        if kind.ack is not None:
            header = Header(kind.number, version=form.version)
            frame = b"".join(encode_response(kind.ack_class(), header, dialect=form.dialect, send_time_ms=0))
            assert kind.ack.bytes_min <= len(frame) - 26


def elements_of(layout):
    """Every array below a layout."""
    if isinstance(layout, Array):
        yield layout.element
    for child in (
        *getattr(layout, "types", {}).values(),
        getattr(layout, "element", None),
        getattr(layout, "field", None),
    ):
        if child is not None:
            yield from elements_of(child)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_no_array_has_elements_without_a_byte(kind):
    """An element of no bytes would let a count of 32767 pass in a frame of nothing."""
    for layout in filter(None, (kind.request, kind.ack)):
        for element in elements_of(layout):
            assert element.bytes_min >= 1


ALL_SIZES = [1, 2, 3, 7, 20, 60, 200]


@pytest.mark.parametrize("fill", [0x00, 0x01, 0x7F, 0x80, 0xFF], ids=hex)
@pytest.mark.parametrize("form", FORMS, ids=form_name)
def test_a_payload_of_one_byte_over_and_over_decodes_or_is_undecodable(form, fill):
    for kind in KINDS:
        for size in ALL_SIZES:
            for decode, frame in (
                (decode_request, request(kind.number, bytes([fill]) * size, form.version)),
                (decode_response, response(kind.number, bytes([fill]) * size, form.version)),
            ):
                with contextlib.suppress(LakeMQError):
                    decode(frame, form.dialect)


def test_a_frame_full_of_the_smallest_elements_does_not_hold_up_the_others():
    """Two million elements fit the largest frame: each is small, but every one is an object."""
    topic = text("") + MANY + (short(0) + short(0)) * 32767  # partitions without acks
    frame = request(32, short(60) + topic * 60 + text("app"))
    assert len(frame) <= FRAME_BYTES_MAX
    began = time.process_time()
    with contextlib.suppress(SerializationError):
        decode_request(frame, Dialect.DOCUMENTED)
    assert time.process_time() - began < 2


# ---- messages ------------------------------------------------------------------------------------------------------


def produce_of(data, count=1):
    return short(1) + text("t") + text("") + integer(100) + b"\x01" + short(count) + data + text("app")


STORED = envelope.pack(Message(body=b"body", business_id="id", attributes={"k": "v"}, app="app"))
IN_JOYQUEUE = bytes(MessageBlock(1, (STORED,)).in_dialect(Dialect.JOYQUEUE).joined())


def patched(data, at, value):
    return data[:at] + value + data[at + len(value) :]


def test_the_messages_of_this_table_are_good_before_they_are_damaged():
    assert decode_request(request(50, produce_of(STORED)), Dialect.DOCUMENTED)
    assert decode_request(request(50, produce_of(IN_JOYQUEUE)), Dialect.JOYQUEUE)


BODY_LENGTH_AT = 43
BAD_STORED = {
    "length-0": patched(STORED, 0, integer(0)),
    "length-minus-1": patched(STORED, 0, integer(-1)),
    "length-one-less": patched(STORED, 0, integer(len(STORED) - 1)),
    "length-one-more": patched(STORED, 0, integer(len(STORED) + 1)),
    "length-too-long": patched(STORED, 0, integer(0x7FFFFFFF)),
    "body-too-long": patched(STORED, BODY_LENGTH_AT, integer(0x7FFFFFFF)),
    "body-one-more": patched(STORED, BODY_LENGTH_AT, integer(5)),
    "body-negative": patched(STORED, BODY_LENGTH_AT, integer(-1)),
    "cut": STORED[:-1],
    "joyqueue's": IN_JOYQUEUE,
}


@pytest.mark.parametrize("data", BAD_STORED.values(), ids=BAD_STORED)
def test_a_stored_message_that_does_not_add_up_is_undecodable(data):
    with pytest.raises(SerializationError):
        decode_request(request(50, produce_of(data)), Dialect.DOCUMENTED)


BAD_IN_JOYQUEUE = {
    "magic": patched(IN_JOYQUEUE, 18, b"\x12\x35"),
    "magic-negative": patched(IN_JOYQUEUE, 18, b"\xff\xff"),
    "body-too-long": patched(IN_JOYQUEUE, 61, integer(0x7FFFFFFF)),
    "cut-in-the-fixed-part": IN_JOYQUEUE[:40],
}


@pytest.mark.parametrize("data", BAD_IN_JOYQUEUE.values(), ids=BAD_IN_JOYQUEUE)
def test_a_joyqueue_message_that_does_not_add_up_is_undecodable(data):
    with pytest.raises(SerializationError):
        decode_request(request(50, produce_of(data)), Dialect.JOYQUEUE)


@pytest.mark.parametrize("length", [-1, 0, 1, 0x7FFFFFFF, -0x80000000])
def test_the_length_of_a_joyqueue_message_is_not_believed(length):
    data = patched(IN_JOYQUEUE, 0, integer(length))
    _, command = decode_request(request(50, produce_of(data)), Dialect.JOYQUEUE)
    assert command.topics[0].messages.stored().joined() == STORED


@pytest.mark.parametrize("code", [0x0000, 0x0200, 0x0F00, 0x210C, 0x810C, 0xFFFF, 0x0151, 0x0171], ids=hex)
def test_a_stored_message_with_a_nonsense_system_code_is_not_allowed(code):
    data = patched(STORED, 18, struct.pack(">H", code))
    block = decode_request(request(50, produce_of(data)), Dialect.DOCUMENTED)[1].topics[0].messages
    with pytest.raises(BadParameterError, match=f"{code:#06x}"):
        envelope.unpack(block.joined())
    with pytest.raises(ReadError, match=f"{code:#06x}"):
        block.in_dialect(Dialect.JOYQUEUE)


@pytest.mark.parametrize("code", [0x0280, 0x0F80, 0x2180, 0x8180, 0xFFFF, 0x01C1, 0x01F1], ids=hex)
def test_a_joyqueue_message_with_a_nonsense_system_code_is_not_allowed(code):
    data = patched(IN_JOYQUEUE, 20, struct.pack(">H", code))
    block = decode_request(request(50, produce_of(data)), Dialect.JOYQUEUE)[1].topics[0].messages
    with pytest.raises(BadParameterError, match=f"{code:#06x}"):
        block.stored()


def test_a_count_of_messages_that_are_not_there_is_undecodable():
    for data, dialect in ((STORED, Dialect.DOCUMENTED), (IN_JOYQUEUE, Dialect.JOYQUEUE)):
        with pytest.raises(SerializationError):
            decode_request(request(50, produce_of(data, count=2)), dialect)


# ---- writing -------------------------------------------------------------------------------------------------------


def write(field, value, form=DOCUMENTED):
    writer = Writer(form)
    field.write(writer, value)
    return b"".join(writer.parts())


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *((BYTE, value) for value in (128, -129, 1 << 200)),
        *((SHORT, value) for value in (32768, -32769, 1 << 200)),
        *((INT, value) for value in (1 << 31, -(1 << 31) - 1, 1 << 200)),
        *((LONG, value) for value in (1 << 63, -(1 << 63) - 1, 1 << 200)),
        (INT, 1.5),
        (INT, "1"),
        (DOUBLE, "1"),
        (DOUBLE, 1 << 2000),
    ],
    ids=lambda value: repr(value)[:24] if not hasattr(value, "read") else "field",
)
def test_a_number_that_does_not_fit_is_not_written(field, value):
    with pytest.raises(BadParameterError):
        write(field, value)


@pytest.mark.parametrize(
    ("field", "form", "bytes_max"),
    [
        (STRING, DOCUMENTED, 32767),
        (STRING, JOYQUEUE, 32767),
        (SHORT_STRING, DOCUMENTED, 32767),
        (SHORT_STRING, JOYQUEUE, 127),
    ],
)
def test_text_that_does_not_fit_its_length_is_not_written(field, form, bytes_max):
    longest = "a" * bytes_max
    assert field.read(Reader(write(field, longest, form), form)) == longest
    wide = "é" * (bytes_max // 2)
    assert field.read(Reader(write(field, wide, form), form)) == wide
    for too_long in (longest + "a", wide + "é"):
        with pytest.raises(BadParameterError, match="do not fit"):
            write(field, too_long, form)


@pytest.mark.parametrize("value", ["\ud800", "a\udfff", "\udc00\ud800"])
def test_half_a_surrogate_pair_is_not_written(value):
    with pytest.raises(BadParameterError, match="surrogate"):
        write(STRING, value)
    with pytest.raises(BadParameterError):
        encode_request(session.AddConsumer((value,), "app"), form=DOCUMENTED, request_id=1, send_time_ms=0)


def test_an_array_holds_32767_elements_and_no_more():
    assert len(write(Array(BYTE), (1,) * 32767)) == 2 + 32767
    with pytest.raises(BadParameterError, match="32768 elements"):
        write(Array(BYTE), (1,) * 32768)


def test_a_block_of_too_many_messages_is_not_written():
    with pytest.raises(BadParameterError):
        write(MESSAGES, MessageBlock(32768, (b"",)))


ACK_OF_NO_TYPE = consume.PartitionAcks(0, (consume.MessageAck(0, 0, 128),))
TOO_MUCH = {
    "token": (session.AddConnection(token="x" * 128), JOYQUEUE),
    "app": (session.AddConnection(app="中" * 43), JOYQUEUE),
    "topic": (session.AddConsumer(("t" * 32768,)), DOCUMENTED),
    "sequence": (session.AddConsumer((), "a", 1 << 63), DOCUMENTED),
    "count": (consume.FetchTopicMessage((consume.TopicFetch("t", 32768),)), DOCUMENTED),
    "partition": (consume.FetchIndex((consume.TopicPartitions("t", (32768,)),)), DOCUMENTED),
    "ack-type": (consume.CommitAck((consume.TopicAcks("t", (ACK_OF_NO_TYPE,)),)), DOCUMENTED),
    "session-timeout": (coordinate.FetchAssignedPartition((coordinate.AssignmentWish("t", 1 << 31),)), DOCUMENTED),
    "qos": (produce.ProduceMessage((produce.TopicProduce("t", qos_level=128),)), DOCUMENTED),
    "timeout": (produce.ProduceMessagePrepare("t", "a", 1, "x", 1 << 31), DOCUMENTED),
}  # fmt: skip


@pytest.mark.parametrize(("command", "form"), TOO_MUCH.values(), ids=TOO_MUCH)
def test_a_command_with_a_field_out_of_range_is_not_sent(command, form):
    with pytest.raises(BadParameterError):
        encode_request(command, form=form, request_id=1, send_time_ms=0)


@pytest.mark.parametrize("partition", [32768, -32769])
def test_a_partition_that_only_the_documented_dialect_can_say_is_not_told_to_joyqueue(partition):
    group = metadata.ClusterPartitionGroup(1, 1, (partition,))
    ack = metadata.FetchClusterAck((metadata.ClusterTopic("t", partition_groups=(group,)),))
    assert encode_response(ack, Header(10), dialect=Dialect.DOCUMENTED, send_time_ms=0)
    with pytest.raises(BadParameterError):
        encode_response(ack, Header(10), dialect=Dialect.JOYQUEUE, send_time_ms=0)


HEADER_FIELDS = {
    "request-id": {"request_id": 1 << 31, "send_time_ms": 0},
    "request-id-negative": {"request_id": -(1 << 31) - 1, "send_time_ms": 0},
    "send-time": {"request_id": 1, "send_time_ms": 1 << 63},
}


@pytest.mark.parametrize("fields", HEADER_FIELDS.values(), ids=HEADER_FIELDS)
def test_a_header_field_out_of_range_is_not_sent(fields):
    with pytest.raises(BadParameterError):
        encode_request(session.Heartbeat(), form=DOCUMENTED, **fields)


@pytest.mark.parametrize("version", [-1, 256])
def test_a_version_out_of_range_is_not_sent(version):
    form = Form(Dialect.JOYQUEUE, version)
    with pytest.raises(BadParameterError):
        encode_request(session.Heartbeat(), form=form, request_id=1, send_time_ms=0)


def test_large_parts_are_kept_by_reference_and_small_ones_together():
    large = bytes(5000)
    writer = Writer(DOCUMENTED)
    writer.integer(1)
    writer.raw(large)
    writer.raw(b"small")
    assert len(writer) == 4 + 5000 + 5
    parts = writer.parts()
    assert [len(part) for part in parts] == [4, 5000, 5]
    assert parts[1] is large


def test_many_parts_at_once_are_written_as_one_by_one():
    parts = [b"a", bytes(5000), b"b", b"c", bytes(2048), bytes(2047), b"", memoryview(bytes(3000))]
    one_by_one, at_once = Writer(DOCUMENTED), Writer(DOCUMENTED)
    for part in parts:
        one_by_one.raw(part)
    at_once.raw_all(parts)
    assert len(at_once) == len(one_by_one) == sum(map(len, parts))
    assert at_once.parts() == one_by_one.parts()
