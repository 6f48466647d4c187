"""JoyQueue's MESSAGE and the stored one: the same message in two layouts, with nothing lost between them."""

import random
import struct
import zlib
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lakemq import envelope, record
from lakemq.attributes import decode_attributes
from lakemq.compression import Compression, decompress
from lakemq.errors import BadParameterError, LakeMQError, SerializationError
from lakemq.message import BatchItem, BatchMessage, Message, Source
from lakemq.wire import joyqueue_message
from lakemq.wire.buffer import Reader, Writer
from lakemq.wire.dialect import Dialect, Form
from lakemq.wire.messages import MessageBlock, join
from wire.strategies import BYTES, INTS, LONGS, MESSAGES, SHORTS, SINGLE_MESSAGES, block_of

SLOW_IS_FINE = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example]
PROPERTY = settings(max_examples=60, deadline=None, suppress_health_check=SLOW_IS_FINE)
FORM = Form(Dialect.JOYQUEUE, 4)
THEIRS = (Compression.NONE, Compression.ZIP, Compression.ZLIB, Compression.SNAPPY)
ADDRESS = bytes(range(16))


def as_joyqueue_knows_it(message):
    """What of a message is the same after it went through JoyQueue's layout."""
    kind = message.compression if message.compression in THEIRS else Compression.ZLIB
    is_ours = isinstance(message, BatchMessage) and message.source is Source.JMQ
    return replace(message, compression=kind, source=Source.JOYQUEUE if is_ours else message.source)


def fields_of(block):
    """The messages of a JoyQueue block taken apart, with their addresses."""
    reader = Reader(block.joined(), FORM)
    return [joyqueue_message.read(reader) for _ in range(block.count)]


# ---- round trips ---------------------------------------------------------------------------------------------------


@given(st.lists(MESSAGES, max_size=3))
@PROPERTY
def test_stored_messages_come_back_from_joyqueue(messages):
    block = block_of(*messages)
    there = block.in_dialect(Dialect.JOYQUEUE)
    assert (there.count, there.dialect) == (len(messages), Dialect.JOYQUEUE)
    back = there.stored()
    assert (back.count, back.dialect) == (len(messages), Dialect.DOCUMENTED)
    assert list(envelope.unpack_all(back.joined())) == [as_joyqueue_knows_it(message) for message in messages]


@given(st.lists(MESSAGES.map(as_joyqueue_knows_it), max_size=3))
@PROPERTY
def test_joyqueue_messages_come_back_from_the_store_to_the_byte(messages):
    theirs = block_of(*messages).in_dialect(Dialect.JOYQUEUE)
    assert bytes(theirs.stored().in_dialect(Dialect.JOYQUEUE).joined()) == bytes(theirs.joined())


@given(SINGLE_MESSAGES.map(as_joyqueue_knows_it))
@settings(PROPERTY, max_examples=40)
def test_a_single_message_is_stored_to_the_byte_as_it_was(message):
    block = block_of(message)
    assert bytes(block.in_dialect(Dialect.JOYQUEUE).stored().joined()) == block.joined()


@given(MESSAGES)
@settings(PROPERTY, max_examples=40)
def test_every_fixed_field_is_carried_as_it_is(message):
    (theirs, address), *_ = fields_of(block_of(message).in_dialect(Dialect.JOYQUEUE))
    kept = ("partition", "index", "term", "priority", "send_time_ms", "store_time_ms", "extension")
    assert [getattr(theirs, name) for name in kept] == [getattr(message, name) for name in kept]
    assert theirs.app == message.app.encode()
    assert theirs.body_crc == zlib.crc32(theirs.body)
    assert address == bytes(16)


@given(MESSAGES)
@settings(PROPERTY, max_examples=40)
def test_a_message_is_measured_field_by_field(message):
    data = bytes(block_of(message, message).in_dialect(Dialect.JOYQUEUE).joined())
    assert joyqueue_message.measure(memoryview(data), 0, len(data), 2) == len(data)
    assert struct.unpack_from(">i", data)[0] == len(data) // 2
    liar = struct.pack(">i", -1) + data[4:]
    assert joyqueue_message.measure(memoryview(liar), 0, len(liar), 2) == len(data)


RAW_FIELDS = st.builds(
    record.MessageFields,
    partition=SHORTS,
    index=LONGS,
    term=INTS,
    system_code=st.integers(0, 0xFFFF),
    priority=BYTES,
    send_time_ms=LONGS,
    store_time_ms=INTS,
    body_crc=LONGS,
    flag=SHORTS,
    body=st.binary(max_size=20),
    business_id=st.binary(max_size=127),
    attributes=st.binary(max_size=30),
    extension=st.binary(max_size=20),
    app=st.binary(max_size=127),
)


@given(RAW_FIELDS, st.binary(min_size=16, max_size=16), st.sampled_from([0, -1]))
@settings(PROPERTY, max_examples=80)
def test_any_fields_are_read_as_they_were_written(fields, address, null_length):
    writer = Writer(Form(Dialect.JOYQUEUE, 2, null_length))
    joyqueue_message.write(writer, fields, address)
    data = b"".join(writer.parts())
    reader = Reader(data, FORM)
    assert joyqueue_message.read(reader) == (fields, address)
    assert reader.left == 0
    assert struct.unpack_from(">i", data)[0] == (len(data) if null_length == 0 else -1)


@given(RAW_FIELDS)
@settings(PROPERTY, max_examples=80)
def test_any_fields_are_stored_or_refused(fields):
    writer = Writer(FORM)
    joyqueue_message.write(writer, fields, ADDRESS)
    try:
        stored = joyqueue_message.to_stored(b"".join(writer.parts()), 1)
    except LakeMQError:
        return
    back, _ = record.read_fields(stored)
    for name in ("partition", "index", "term", "priority", "send_time_ms", "store_time_ms", "flag", "extension", "app"):
        assert getattr(back, name) == getattr(fields, name)


# ---- what differs --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", Compression, ids=lambda kind: kind.value)
@pytest.mark.parametrize("is_batch", [False, True], ids=["single", "batch"])
def test_a_body_of_any_compression_reaches_joyqueue(kind, is_batch):
    items = (BatchItem(b"one " * 60, "id", {"k": "v"}), BatchItem(b"two"))
    message = BatchMessage(items=items, compression=kind) if is_batch else Message(body=b"text " * 60, compression=kind)
    ((fields, _),) = fields_of(block_of(message).in_dialect(Dialect.JOYQUEUE))
    code = joyqueue_message.unpack_system_code(fields.system_code)
    assert code.compression is (kind if kind in THEIRS else Compression.ZLIB)
    body = decompress(code.compression, fields.body)
    if is_batch:
        assert fields.flag == 2
        assert body == joyqueue_item(items[0]) + joyqueue_item(items[1])
    else:
        assert body == message.body


def joyqueue_item(item):
    business_id = item.business_id.encode()
    attributes = b"\n".join(f"{key}={value}".encode() for key, value in item.attributes.items())
    rest = struct.pack(">bhi", item.priority, item.flag, len(item.body)) + item.body
    rest += bytes([len(business_id)]) + business_id + struct.pack(">h", len(attributes)) + attributes
    return struct.pack(">i", 4 + len(rest)) + rest


@pytest.mark.parametrize("kind", THEIRS, ids=lambda kind: kind.value)
def test_a_body_that_joyqueue_can_expand_is_left_as_it_is(kind):
    data = envelope.pack(Message(body=b"text " * 60, compression=kind))
    ((fields, _),) = fields_of(MessageBlock(1, (data,)).in_dialect(Dialect.JOYQUEUE))
    assert fields.body == record.read_fields(data)[0].body


@pytest.mark.parametrize(
    ("kind", "number"),
    [(Compression.ZIP, 1), (Compression.ZLIB, 2), (Compression.SNAPPY, 3)],
    ids=["zip", "zlib", "snappy"],
)
def test_compressions_have_the_numbers_of_its_clients(kind, number):
    packed = joyqueue_message.pack_system_code(record.SystemCode(kind))
    assert (packed & 1, (packed >> 4) & 7) == (1, number)
    assert joyqueue_message.unpack_system_code(packed).compression is kind


USUAL = {
    0x018C: record.SystemCode(),
    0x01AD: record.SystemCode(Compression.ZLIB),
    0x01BD: record.SystemCode(Compression.SNAPPY),
    0x118C: record.SystemCode(is_batch=True),
    0x11AD: record.SystemCode(Compression.ZLIB, is_batch=True),
    0x010C: record.SystemCode(is_ipv6=True),
    0x018E: record.SystemCode(is_ordered=True),
    0x0180: record.SystemCode(source=Source.JMQ),
    0x0184: record.SystemCode(source=Source.KAFKA),
    0x0188: record.SystemCode(source=Source.MQTT),
}


@pytest.mark.parametrize(("number", "code"), USUAL.items(), ids=[hex(number) for number in USUAL])
def test_usual_system_codes_mean_what_they_mean_to_its_clients(number, code):
    assert joyqueue_message.unpack_system_code(number) == code
    assert joyqueue_message.pack_system_code(code) == number


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (0x0000, record.SystemCode(source=Source.JMQ)),
        (0x0080, record.SystemCode(source=Source.JMQ)),
        (0x000C, record.SystemCode()),
        (0x002D, record.SystemCode(Compression.ZLIB)),
        (0x006D, record.SystemCode(Compression.ZLIB)),  # the third bit is not part of the kind yet
        (0x100C, record.SystemCode(is_batch=True)),
    ],
    ids=lambda value: hex(value) if isinstance(value, int) else "",
)
def test_version_0_is_over_ipv4_and_has_two_bits_of_compression(number, code):
    assert joyqueue_message.unpack_system_code(number) == code


def test_a_body_that_is_compressed_as_nothing_is_used_as_it_is():
    assert joyqueue_message.unpack_system_code(0x018D) == record.SystemCode()


def test_any_system_code_is_understood_or_refused():
    for number in range(0x10000):
        is_known = (number >> 8) & 0xF <= 1 and number >> 12 <= 1
        if is_known and number & 0x0101 == 0x0101:
            is_known = (number >> 4) & 7 < len(THEIRS)
        if not is_known:
            with pytest.raises(BadParameterError):
                joyqueue_message.unpack_system_code(number)
            continue
        code = joyqueue_message.unpack_system_code(number)
        assert joyqueue_message.unpack_system_code(joyqueue_message.pack_system_code(code)) == code
        assert record.SystemCode.unpack(code.pack()) == code


@pytest.mark.parametrize("source", Source)
@pytest.mark.parametrize("is_ipv6", [False, True])
@pytest.mark.parametrize("is_ordered", [False, True])
def test_ordered_source_and_address_are_kept(source, is_ipv6, is_ordered):
    message = Message(source=source, is_ipv6=is_ipv6, is_ordered=is_ordered, body=b"b")
    there = block_of(message).in_dialect(Dialect.JOYQUEUE)
    ((fields, _),) = fields_of(there)
    assert bool(fields.system_code & 0x0080) != is_ipv6
    assert envelope.unpack(there.stored().joined()) == message


@pytest.mark.parametrize("source", Source)
def test_a_batch_of_our_own_says_that_it_is_joyqueues(source):
    batch = BatchMessage(items=(BatchItem(b"x"),), source=source)
    ((fields, _),) = fields_of(block_of(batch).in_dialect(Dialect.JOYQUEUE))
    seen = joyqueue_message.unpack_system_code(fields.system_code).source
    assert seen is (Source.JOYQUEUE if source is Source.JMQ else source)


def test_the_clients_address_goes_out_where_it_is_known():
    block = MessageBlock(1, (envelope.pack(Message()),), client_address=ADDRESS)
    ((_, address),) = fields_of(block.in_dialect(Dialect.JOYQUEUE))
    assert address == ADDRESS


@pytest.mark.parametrize("crc", [0, -1, 12345])
def test_the_crc_of_a_joyqueue_message_is_made_anew(crc):
    data = bytearray(block_of(Message(body=b"body")).in_dialect(Dialect.JOYQUEUE).joined())
    struct.pack_into(">q", data, 51, crc)
    fields, _ = record.read_fields(joyqueue_message.to_stored(bytes(data), 1))
    assert fields.body_crc == zlib.crc32(b"body")


def test_blocks_of_both_dialects_are_joined_in_either():
    ours, other = Message(body=b"1"), Message(body=b"2")
    blocks = [block_of(ours), block_of(other).in_dialect(Dialect.JOYQUEUE), MessageBlock(0)]
    for dialect in Dialect:
        joined = join(blocks, dialect)
        assert (joined.count, joined.dialect, len(joined)) == (2, dialect, sum(map(len, joined.parts)))
        assert list(envelope.unpack_all(joined.stored().joined())) == [ours, other]


# ---- long business ids ---------------------------------------------------------------------------------------------

LONG_IDS = {
    "127 bytes": "a" + "é" * 63,
    "128 bytes": "é" * 64,
    "100 of two bytes": "é" * 100,
    "100 of three bytes": "中" * 100,
    "100 of four bytes": "😀" * 100,
    "a cut inside a character": "a" + "é" * 99,
    "marks": "=: #!\\\n\r\t\f é" * 3 + "é" * 60,
    "blanks first": "  " + "中" * 98,
    "a backslash last": "中" * 99 + "\\",
}


@pytest.mark.parametrize("business_id", LONG_IDS.values(), ids=LONG_IDS)
@pytest.mark.parametrize("attributes", [{}, {"k": "v"}, {"TAGS": "a\nb", "": " "}], ids=["none", "one", "nasty"])
def test_a_long_business_id_survives_alone_and_in_a_batch(business_id, attributes):
    single = Message(business_id=business_id, attributes=attributes, body=b"x")
    batch = BatchMessage(
        items=(BatchItem(b"1", business_id, attributes), BatchItem(b"2", "short", attributes)),
        business_id=business_id,
        attributes=attributes,
    )
    there = block_of(single, batch).in_dialect(Dialect.JOYQUEUE)
    assert list(envelope.unpack_all(there.stored().joined())) == [single, batch]
    (first, _), _ = fields_of(there)
    assert len(first.business_id) <= 127
    assert business_id.startswith(first.business_id.decode())
    seen = decode_attributes(first.attributes)
    if len(business_id.encode()) > 127:
        assert seen.pop(joyqueue_message.LONG_BUSINESS_ID) == business_id
    assert seen == attributes


@pytest.mark.parametrize("attribute", ["x", "", "中" * 50], ids=["other", "empty", "long"])
@pytest.mark.parametrize("is_batch", [False, True], ids=["single", "batch"])
def test_an_attribute_of_that_name_does_not_replace_a_business_id_that_was_never_cut(attribute, is_batch):
    """A consumer that sends on what it got, attributes and all, may well have given it another id."""
    attributes = {joyqueue_message.LONG_BUSINESS_ID: attribute, "k": "v"}
    message = Message(business_id="order-7", attributes=attributes, body=b"x")
    if is_batch:
        message = BatchMessage(items=(BatchItem(b"x", "order-7", attributes),))
    there = block_of(message).in_dialect(Dialect.JOYQUEUE)
    assert envelope.unpack(there.stored().joined()) == message


@pytest.mark.parametrize("is_batch", [False, True], ids=["single", "batch"])
def test_a_message_with_the_longest_attributes_and_a_long_business_id_can_be_delivered(is_batch):
    """It was accepted and stored; a fetch that fails on it would fail for ever."""
    attributes = {"k": "v" * 32765}
    message = Message(business_id="中" * 100, attributes=attributes, body=b"x")
    if is_batch:
        message = BatchMessage(items=(BatchItem(b"x", "中" * 100, attributes),))
    block = block_of(message)
    record.scan_python(block.joined(), 0, len(block), 1)
    there = block.in_dialect(Dialect.JOYQUEUE)
    assert there.count == 1


# ---- damage --------------------------------------------------------------------------------------------------------

ITEMS = (BatchItem(b"one", "id", {"k": "v"}), BatchItem(b"two", "😀" * 100))
BATCH = BatchMessage(items=ITEMS)


def their_batch(body, flag=2, code=0x118C):
    fields = record.MessageFields(0, 0, 0, code, 0, 0, 0, 0, flag, body, b"", b"", b"", b"")
    writer = Writer(FORM)
    joyqueue_message.write(writer, fields, bytes(16))
    return b"".join(writer.parts())


BODY = joyqueue_item(ITEMS[0]) + joyqueue_item(BatchItem(b"two"))


def patched(data, at, layout, value):
    data = bytearray(data)
    struct.pack_into(layout, data, at, value)
    return bytes(data)


BAD_BATCHES = {
    "nothing": their_batch(b""),
    "one too many": their_batch(BODY, flag=3),
    "one too few": their_batch(BODY, flag=1),
    "none": their_batch(BODY, flag=0),
    "minus one": their_batch(BODY, flag=-1),
    "very many": their_batch(BODY, flag=32767),
    "cut": their_batch(BODY[:-1]),
    "tail": their_batch(BODY + b"x"),
    "length zero": their_batch(patched(BODY, 0, ">i", 0)),
    "length negative": their_batch(patched(BODY, 0, ">i", -1)),
    "length one more": their_batch(patched(BODY, 0, ">i", len(joyqueue_item(ITEMS[0])) + 1)),
    "length too long": their_batch(patched(BODY, 0, ">i", 0x7FFFFFFF)),
    "body too long": their_batch(patched(BODY, 7, ">i", 0x7FFFFFFF)),
    "body negative": their_batch(patched(BODY, 7, ">i", -1)),
    "businessId too long": their_batch(patched(BODY, 14, ">b", 127)),
    "attributes too long": their_batch(patched(BODY, 17, ">h", 32767)),
    "not compressed": their_batch(BODY, code=0x11AD),
}


def test_the_batch_of_this_table_is_good_before_it_is_damaged():
    back = envelope.unpack(joyqueue_message.to_stored(their_batch(BODY), 1))
    assert [item.body for item in back.items] == [b"one", b"two"]


@pytest.mark.parametrize("data", BAD_BATCHES.values(), ids=BAD_BATCHES)
def test_a_batch_that_does_not_add_up_is_not_stored(data):
    with pytest.raises((SerializationError, BadParameterError)):
        joyqueue_message.to_stored(data, 1)


def test_a_batch_that_expands_too_far_is_not_stored():
    body = joyqueue_item(BatchItem(bytes(65 << 20)))
    with pytest.raises(BadParameterError, match="expands beyond"):
        joyqueue_message.to_stored(their_batch(zlib.compress(body, 1), flag=1, code=0x11AD), 1)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("direction", ["to_stored", "from_stored"])
def test_damaged_messages_are_laid_out_anew_or_refused(direction, seed):
    rng = random.Random(f"{direction} {seed}")
    good = []
    for kind in Compression:
        for message in (
            Message(body=b"text " * 40, compression=kind, business_id="中" * 60),
            replace(BATCH, compression=kind),
        ):
            block = block_of(message)
            good.append(bytes((block.in_dialect(Dialect.JOYQUEUE) if direction == "to_stored" else block).joined()))
    lay_out = getattr(joyqueue_message, direction)
    for _ in range(800):
        data = bytearray(rng.choice(good))
        for _ in range(rng.choice((1, 1, 3))):
            data[rng.randrange(len(data))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        try:
            anew = lay_out(bytes(data), 1)
        except LakeMQError:
            continue
        if direction == "from_stored":
            assert joyqueue_message.measure(memoryview(anew), 0, len(anew), 1) == len(anew)
        else:
            assert record.measure_python(anew, 0, len(anew), 1) == len(anew)
