"""Golden bytes, in both dialects: every vector decoded, encoded, cut at every byte, shortened and lengthened."""

import json
import random
import struct

import pytest

from lakemq import envelope, record
from lakemq.compression import Compression, compress, decompress
from lakemq.errors import BadFrameError, SerializationError
from lakemq.wire import joyqueue_message, session
from lakemq.wire.buffer import Reader, Writer
from lakemq.wire.commands import KINDS, decode_request, decode_response, encode_error, encode_request, encode_response
from lakemq.wire.dialect import Dialect, Form
from lakemq.wire.frame import FrameDecoder
from lakemq.wire.header import REQUEST_HEADER_BYTES, RESPONSE_HEADER_BYTES_MIN, Header
from vectors.expected import EXPECTED, HUNDRED_A
from vectors.vector import load, names

DOCUMENTED, JOYQUEUE = names("documented"), names("joyqueue")
ALL = DOCUMENTED + JOYQUEUE

every_vector = pytest.mark.parametrize("name", ALL)
every_message = pytest.mark.parametrize(
    ("name", "place"), [(name, place) for name in ALL for place in range(len(EXPECTED[name].messages))]
)


def dialect_of(name):
    return Dialect(name.partition("/")[0])


def decode(frame, name, dialect=None):
    way = decode_response if EXPECTED[name].header.is_response else decode_request
    return way(frame, dialect or dialect_of(name))


def encode(name, dialect=None):
    """The frame of what is expected, by the public way for its kind."""
    dialect, expected = dialect or dialect_of(name), EXPECTED[name]
    header, sent = expected.header, expected.header.send_time_ms
    if not header.is_response:
        form = expected.form(dialect)
        parts = encode_request(
            expected.value, form=form, request_id=header.request_id, send_time_ms=sent, qos_bits=header.qos_bits
        )
        return b"".join(parts)
    asked = Header(-header.type, header.request_id, header.version, header.qos_bits)
    if expected.value is None and expected.error is not None:
        return encode_error(expected.error, asked, dialect=dialect, send_time_ms=sent)
    parts = encode_response(expected.value, asked, dialect=dialect, send_time_ms=sent, error=expected.error)
    return b"".join(parts)


def payload_start(name):
    header = EXPECTED[name].header
    return RESPONSE_HEADER_BYTES_MIN + len(header.error.encode()) if header.is_response else REQUEST_HEADER_BYTES


def with_its_length(data):
    """The same bytes, with the first four saying how many they are."""
    return len(data).to_bytes(4) + data[4:] if len(data) >= 4 else data


# The files themselves.


def test_every_vector_has_a_value_and_every_value_a_vector():
    assert sorted(EXPECTED) == sorted(ALL)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_command_has_a_documented_request_and_response(kind):
    mine = [
        EXPECTED[name] for name in DOCUMENTED if name.startswith(f"documented/{kind.number:02}_{kind.name.lower()}.")
    ]
    requests = [vector for vector in mine if vector.header.type == kind.number]
    responses = [vector for vector in mine if vector.header.type == -kind.number and vector.header.status == 0]
    assert {type(vector.value) for vector in requests} == {kind.request_class}
    assert {type(vector.value) for vector in responses} == {kind.ack_class or type(None)}


@every_vector
def test_the_messages_marked_in_a_vector_are_the_expected_ones(name):
    assert len(load(name).messages) == len(EXPECTED[name].messages)


NUMBERS = {"BYTE": 1, "BOOLEAN": 1, "SHORT": 2, "INT": 4, "LONG": 8, "ARRAY": 2}
TEXTS = {"STRING": 2, "STRING1": 1, "ATTRIBUTES": 2, "BYTES": 4, "ADDRESS": 0}


def bytes_of_comment(comment):
    """What `name TYPE = value` stands for; a number may be followed by a remark and may be a sum with its result."""
    _, kind, value = comment.split(" ", 2)
    value = value.removeprefix("= ")
    if kind == "DOUBLE":
        return struct.pack(">d", float(value))
    if kind in NUMBERS:
        sides = {sum(int(term, 0) for term in side.split("+")) for side in value.partition(";")[0].split("=")}
        assert len(sides) == 1, f"{comment}: the sides are {sides}"
        width = NUMBERS[kind]
        return (sides.pop() % (1 << 8 * width)).to_bytes(width)
    if value == "null":
        return b"\xff" * TEXTS[kind]
    text = bytes.fromhex(value[2:]) if value.startswith("0x") else json.loads(value).encode()
    return (len(text).to_bytes(TEXTS[kind]) if TEXTS[kind] else b"") + text


@pytest.mark.parametrize("name", DOCUMENTED + [name for name in JOYQUEUE if load(name).lines[0][1]])
def test_each_line_holds_the_bytes_its_comment_says(name):
    vector = load(name)
    assert [data for data, _ in vector.lines] == [bytes_of_comment(comment) for _, comment in vector.lines]
    assert int.from_bytes(vector.data[:4]) == len(vector.data)


# Commands.


@every_vector
def test_a_vector_decodes_to_its_header_and_value(name):
    assert decode(load(name).data, name) == (EXPECTED[name].header, EXPECTED[name].value)


@pytest.mark.parametrize("name", [name for name in ALL if EXPECTED[name].is_encoded_back])
def test_a_value_encodes_to_its_vector(name):
    assert encode(name).hex() == load(name).data.hex()


@pytest.mark.parametrize("name", [name for name in ALL if not EXPECTED[name].is_encoded_back])
def test_what_is_written_instead_of_a_vector_means_the_same(name):
    assert encode(name) != load(name).data
    assert decode(encode(name), name) == (EXPECTED[name].header, EXPECTED[name].value)


ALIKE = (
    "03_add_consumer.request",
    "03_add_consumer.response",
    "04_remove_consumer.request",
    "05_add_producer.request",
    "05_add_producer.response",
    "06_remove_producer.request",
    "08_fetch_health.request",
    "08_fetch_health.response",
    "10_fetch_cluster.request",
    "20_find_coordinator.request",
    "20_find_coordinator.response",
    "20_find_coordinator.none.response",
    "21_fetch_assigned_partition.request",
    "21_fetch_assigned_partition.response",
    "30_fetch_topic_message.request",
    "31_fetch_partition_message.request",
    "32_commit_ack.request",
    "32_commit_ack.response",
    "33_commit_ack_index.request",
    "33_commit_ack_index.response",
    "35_fetch_index.request",
    "50_produce_message.response",
    "51_produce_message_prepare.with_timeout.request",
    "51_produce_message_prepare.response",
    "52_produce_message_commit.request",
    "52_produce_message_commit.response",
    "53_produce_message_rollback.request",
    "53_produce_message_rollback.response",
    "54_fetch_produce_feedback.response",
)


@pytest.mark.parametrize("name", [f"documented/{name}" for name in ALIKE])
def test_what_the_dialects_lay_out_alike_has_the_same_bytes_in_joyqueues(name):
    data, expected = load(name).data, EXPECTED[name]
    assert decode(data, name, Dialect.JOYQUEUE) == (expected.header, expected.value)
    assert encode(name, Dialect.JOYQUEUE).hex() == data.hex()


# Messages.


@every_message
def test_a_message_has_the_expected_fields(name, place):
    data, expected = load(name).messages[place], EXPECTED[name].messages[place]
    if dialect_of(name) is Dialect.JOYQUEUE:
        reader = Reader(data, Form(Dialect.JOYQUEUE))
        assert joyqueue_message.read(reader) == (expected.fields, expected.client_address)
        assert reader.left == 0
    else:
        assert record.read_fields(data) == (expected.fields, len(data))


@every_message
def test_the_fields_of_a_message_are_written_as_its_bytes(name, place):
    data, expected = load(name).messages[place], EXPECTED[name].messages[place]
    if dialect_of(name) is Dialect.JOYQUEUE:
        writer = Writer(EXPECTED[name].form(Dialect.JOYQUEUE))
        joyqueue_message.write(writer, expected.fields, expected.client_address)
        written = b"".join(writer.parts())
    else:
        written = record.write_fields(expected.fields)
    if expected.is_written_back:
        assert written.hex() == data.hex()
    else:
        assert record.read_fields(written) == (expected.fields, len(written))


@pytest.mark.parametrize(
    ("name", "place"), [(name, place) for name in DOCUMENTED for place in range(len(EXPECTED[name].messages))]
)
def test_a_stored_message_opens_to_its_value_and_is_packed_again(name, place):
    data, expected = load(name).messages[place], EXPECTED[name].messages[place]
    assert envelope.unpack(data) == expected.value
    if expected.is_packed_back:
        assert envelope.pack(expected.value).hex() == data.hex()
    else:
        assert envelope.unpack(envelope.pack(expected.value)) == expected.value


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("joyqueue/TV7", "documented/50_produce_message.request"),
        ("joyqueue/TV8", "documented/50_produce_message.batch.request"),
        ("joyqueue/TV10", "documented/30_fetch_topic_message.response"),
    ],
)
def test_the_same_message_goes_from_dialect_to_dialect(theirs, ours):
    their_bytes, our_bytes = load(theirs).messages[0], load(ours).messages[0]
    client_address = EXPECTED[theirs].messages[0].client_address
    assert joyqueue_message.to_stored(their_bytes, 1).hex() == our_bytes.hex()
    assert joyqueue_message.from_stored(our_bytes, 1, client_address).hex() == their_bytes.hex()


@pytest.mark.parametrize(
    ("marks", "theirs", "ours"),
    [
        (record.SystemCode(), 0x018C, 0x010C),
        (record.SystemCode(compression=Compression.ZLIB), 0x01AD, 0x012D),
        (record.SystemCode(compression=Compression.SNAPPY), 0x01BD, 0x010D),
        (record.SystemCode(compression=Compression.ZIP), 0x019D, 0x011D),
        (record.SystemCode(is_batch=True), 0x118C, 0x110C),
        (record.SystemCode(is_batch=True, compression=Compression.ZLIB), 0x11AD, 0x112D),
        (record.SystemCode(is_ipv6=True, is_ordered=True), 0x010E, 0x018E),
    ],
    ids=["plain", "zlib", "snappy", "zip", "batch", "zlib-batch", "ordered-ipv6"],
)
def test_a_system_code_has_one_number_in_each_dialect(marks, theirs, ours):
    assert (joyqueue_message.pack_system_code(marks), marks.pack()) == (theirs, ours)
    assert joyqueue_message.unpack_system_code(theirs) == record.SystemCode.unpack(ours) == marks


# Bodies.


@pytest.mark.parametrize("kind", [Compression.ZLIB, Compression.SNAPPY], ids=lambda kind: kind.value)
def test_a_body_is_compressed_as_joyqueue_does_it(kind):
    carried = load(f"joyqueue/bodies/{kind.value}").data
    assert decompress(kind, carried) == HUNDRED_A
    assert compress(kind, HUNDRED_A).hex() == carried.hex()


# At every cut.


@every_vector
def test_a_frame_may_arrive_in_two_pieces(name):
    data = load(name).data
    for cut in range(1, len(data)):
        decoder = FrameDecoder(chunk_bytes=1 << 13)
        assert decoder.feed(data[:cut]) == [], f"cut at {cut}"
        assert decoder.feed(data[cut:]) == [data], f"cut at {cut}"
        assert decoder.held_bytes == 0, f"cut at {cut}"


@every_vector
def test_a_frame_may_arrive_byte_by_byte(name):
    data = load(name).data
    decoder = FrameDecoder(chunk_bytes=1 << 13)
    fed = [decoder.feed(data[at : at + 1]) for at in range(len(data))]
    assert fed == [[]] * (len(data) - 1) + [[data]]
    assert decode(fed[-1][0], name) == (EXPECTED[name].header, EXPECTED[name].value)


def outcome(frame, name):
    """The class of what is raised, or None if it decodes; anything but a refusal is left to fail the test."""
    try:
        decode(frame, name)
    except (SerializationError, BadFrameError) as error:
        return type(error)
    return None


def outcome_when_cut(name, cut, size):
    """What the format says about a frame that ends at `cut` instead of `size`."""
    start, expected = payload_start(name), EXPECTED[name]
    if cut < start:
        return BadFrameError
    if cut == start and expected.header.is_response:
        return None  # a header alone is always an answer
    return None if size - cut <= expected.optional_bytes else SerializationError


@every_vector
def test_a_shortened_frame_is_refused_unless_what_is_missing_is_optional(name):
    data = load(name).data
    for cut in range(len(data)):
        frame = with_its_length(data[:cut])
        assert outcome(frame, name) is outcome_when_cut(name, cut, len(data)), f"cut at {cut}"


def with_room_to_grow():
    """All but documented errors: those have no payload, so what follows their header would be one."""
    for name in ALL:
        header, value = EXPECTED[name].header, EXPECTED[name].value
        if header.status and value is None and dialect_of(name) is Dialect.DOCUMENTED:
            continue
        yield name


@pytest.mark.parametrize("name", list(with_room_to_grow()))
def test_bytes_after_the_last_field_are_ignored(name):
    data = load(name).data
    for fill in (0x00, 0x41, 0xFF):
        for more in range(1, EXPECTED[name].ignored_bytes_max + 1):
            frame = with_its_length(data + bytes([fill]) * more)
            assert decode(frame, name) == (EXPECTED[name].header, EXPECTED[name].value), (
                f"{more} times {fill:#04x} more"
            )


# Telling the dialects apart.


@pytest.mark.parametrize("name", [name for name in ALL if EXPECTED[name].header.type == 1])
def test_the_dialect_is_told_by_the_first_request(name):
    payload = load(name).data[REQUEST_HEADER_BYTES:]
    assert session.recognise(payload, EXPECTED[name].header.version) is dialect_of(name)


def random_text(rng):
    size = rng.choice([0, rng.randrange(16), rng.randrange(128)])
    text = "".join(rng.choices("abcdefghijklmnopqrstuvwxyz0123456789.-_é中", k=size))
    return text.encode()[:127].decode("utf-8", "ignore").encode()


def random_add_connection(rng, dialect):
    """An ADD_CONNECTION payload, put together without the codec."""
    width = 1 if dialect is Dialect.JOYQUEUE else 2
    texts = [len(text).to_bytes(width) + text for text in (random_text(rng) for _ in range(8))]
    if dialect is Dialect.JOYQUEUE:
        texts.insert(6, bytes([rng.randrange(9)]))  # language, after the namespace
    time_ms = rng.choice([0, rng.randrange(1 << 31), 1_700_000_000_000 + rng.randrange(1 << 40)])
    sequence = rng.choice([0, 1, rng.randrange(1000), rng.getrandbits(63)])
    return b"".join(texts) + struct.pack(">qq", time_ms, sequence)


@pytest.mark.parametrize("dialect", Dialect, ids=lambda dialect: dialect.value)
def test_the_dialects_are_never_taken_for_each_other(dialect):
    rng = random.Random(f"first requests, {dialect.value}")
    for _ in range(2000):
        payload, version = random_add_connection(rng, dialect), rng.randint(1, 4)
        assert session.recognise(payload, version) is dialect, payload.hex()
