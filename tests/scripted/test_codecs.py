"""The scripted clients' bytes: held against golden vectors, against each other, and against LakeMQ's own codec.

Only here do they meet LakeMQ's code; the clients themselves import nothing of it.
"""

import ast
import re
import socket
import struct
import zlib
from dataclasses import fields, is_dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from lakemq.attributes import decode_attributes, encode_attributes
from lakemq.compression import Compression
from lakemq.envelope import unpack
from lakemq.message import BatchMessage, Source
from lakemq.wire.commands import KINDS, decode_request, encode_response
from lakemq.wire.consume import CommitAck
from lakemq.wire.dialect import Dialect, Form
from lakemq.wire.header import Header
from lakemq.wire.messages import MessageBlock
from scripted import documented, documented_bytes, joyqueue, joyqueue_bytes, joyqueue_commands
from scripted.documented_bytes import ANSWERS, LAYOUTS, REQUESTS, Cursor, read_response
from scripted.joyqueue_bytes import Reader, Writer, read_ack
from vectors.expected import EXPECTED, HUNDRED_A, PYTHON_SENT, SENT_MS
from vectors.vector import load, names
from wire.strategies import ATTRIBUTES, CHARACTERS, FORMS, form_name, values_of

PROPERTY = settings(
    max_examples=10,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
)
# LakeMQ's own additions (60 and above) are not in the seed.
IN_SEED = [name for name in names("documented") if abs(EXPECTED[name].header.type) < 60]
DOCUMENTED = [name for name in IN_SEED if EXPECTED[name].is_encoded_back]
DOCUMENTED_REQUESTS = [name for name in DOCUMENTED if name.endswith("request")]
RESPONSES = [name for name in IN_SEED + names("joyqueue") if EXPECTED[name].header.is_response]


class Anything:
    """A table that has every code."""

    def __contains__(self, _):
        return True


def wire_values(value, form):
    """The leaves of a command or an ack of LakeMQ's, as far as that form carries them, in the order of the wire."""
    if isinstance(value, MessageBlock):
        return [value.count]
    if isinstance(value, tuple):
        return [leaf for each in value for leaf in wire_values(each, form)]
    if not is_dataclass(value):
        return [] if value is None else [value]
    names = [field.name for field in fields(value) if field.metadata.get("on_wire", True)]
    skipped = _not_carried(value, form)
    return [leaf for name in names if name not in skipped for leaf in wire_values(getattr(value, name), form)]


def _not_carried(value, form):
    version = form.layout_version if form.is_joyqueue else 0
    skipped = set()
    skipped |= {"left_index", "right_index"} if version < 3 else set()
    skipped |= {"params"} if version < 4 else set()
    skipped |= {"system_code", "permission"} if version < 2 else set()
    skipped |= {"is_concurrent"} if version else {"language"}
    kind = type(value).__name__
    if kind == "TopicMessages" and not version:
        skipped |= {"code"}
    if kind == "TopicCoordinator" and value.id == -1:
        skipped |= {"host", "port", "data_center", "is_nearby", "weight"}
    return skipped


def leaves(value):
    """The leaves of what a scripted client has read; of messages only their number."""
    if isinstance(value, dict):
        return [leaf for each in value.values() for leaf in leaves(each)]
    if isinstance(value, list) and value and isinstance(value[0], dict) and "carried" in value[0]:
        return [len(value)]
    if isinstance(value, list | tuple):
        return [leaf for each in value for leaf in leaves(each)]
    return [] if value is None else [value]


def without_empty_blocks(leaves_of_lakemq, has_messages):
    """A list without messages has no leaf in a client's answer, a block without messages has a 0 in LakeMQ's."""
    return [leaf for leaf in leaves_of_lakemq if not (has_messages and leaf == 0)]


def same_leaves(mine, theirs, number, form):
    has_messages = number in (30, 31)
    return without_empty_blocks(leaves(mine), has_messages) == without_empty_blocks(
        wire_values(theirs, form), has_messages
    )


def nested(value, messages=None):
    """A command of LakeMQ's as nested tuples; its messages are taken one by one from `messages`."""
    if isinstance(value, MessageBlock):
        return [next(messages) for _ in range(value.count)]
    if isinstance(value, tuple):
        return [nested(each, messages) for each in value]
    if is_dataclass(value):
        return tuple(nested(getattr(value, field.name), messages) for field in fields(value))
    return value


# What the clients are made of.


@pytest.mark.parametrize("module", [documented, documented_bytes, joyqueue, joyqueue_bytes, joyqueue_commands])
def test_a_scripted_client_imports_nothing_of_lakemq(module):
    tree = ast.parse(Path(module.__file__).read_text(encoding="utf-8"))
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not [name for name in imported if name.startswith("lakemq")]


def test_the_two_clients_share_no_code():
    used = {
        name: {part for part in ("documented", "joyqueue") if f"import {part}" in text or f"scripted.{part}" in text}
        for name, text in (
            (module.__name__, Path(module.__file__).read_text(encoding="utf-8"))
            for module in (documented, documented_bytes, joyqueue, joyqueue_bytes, joyqueue_commands)
        )
    }
    assert {name: parts for name, parts in used.items() if len(parts) > 1} == {}
    assert not [name for name, parts in used.items() if parts and name.rpartition(".")[2].split("_")[0] not in parts]


def test_both_clients_have_every_command():
    numbers = {kind.number for kind in KINDS if kind.number < 60}
    assert set(LAYOUTS) == numbers
    joyqueue_numbers = set(joyqueue_commands.ANSWERS) | joyqueue_commands.ANSWERED_BY_BOOLEAN_ACK
    assert joyqueue_numbers == numbers - {34}


# Golden vectors of the documented dialect.


@pytest.mark.parametrize("name", [name for name in DOCUMENTED_REQUESTS if EXPECTED[name].null_length == 0])
def test_the_documented_client_writes_the_golden_requests(name):
    vector, expected = load(name), EXPECTED[name]
    number, value = expected.header.type, nested(expected.value, iter(vector.messages))
    if number == 1:
        value = tuple(each for place, each in enumerate(value) if place != 6)  # language is the other dialect's
    tail = b""
    if number == 51:
        *value, timeout = value
        tail = struct.pack(">i", timeout) if timeout else b""
    header = expected.header
    assert vector.data == documented_bytes.frame(
        number,
        header.request_id,
        REQUESTS[number].write(*value) + tail,
        version=header.version,
        qos=header.qos_bits,
        send_time=header.send_time_ms,
    )


@pytest.mark.parametrize("name", [name for name in RESPONSES if name.startswith("documented")])
def test_the_documented_client_reads_the_golden_responses(name):
    response, expected = read_response(load(name).data), EXPECTED[name]
    header = expected.header
    assert (response["version"], response["qos"]) == (header.version, header.qos_bits)
    assert response["requestId"] == header.request_id
    assert (response["type"], response["sendTime"]) == (header.type, header.send_time_ms)
    assert (response["status"], response["error"]) == (header.status, header.error)
    if expected.value is None:
        assert response["payload"] == b""
    else:
        value = ANSWERS[-header.type].read(response["payload"])
        assert same_leaves(value, expected.value, -header.type, expected.form(Dialect.DOCUMENTED))


@pytest.mark.parametrize(
    ("name", "place"),
    [(name, place) for name in DOCUMENTED for place in range(len(load(name).messages))],
)
def test_the_documented_client_reads_and_writes_the_golden_messages(name, place):
    data = load(name).messages[place]
    cursor = Cursor(data)
    found = documented_bytes.read_message(cursor)
    cursor.finish()
    raw, value = EXPECTED[name].messages[place].fields, EXPECTED[name].messages[place].value
    check_against_lakemq(found, value)
    if not EXPECTED[name].messages[place].is_written_back:
        return
    assert (found["carried"], found["attribute_bytes"]) == (raw.body, raw.attributes)
    if found["compression"] is None:
        made = write_again(documented_bytes, found, crc=raw.body_crc)
        assert made == data


def check_against_lakemq(found, value):
    """What a client has read means what LakeMQ's own codec says."""
    same = ("partition", "index", "term", "priority", "is_ordered", "is_ipv6", "business_id", "extension", "app")
    for name in same:
        assert found[name] == getattr(value, name), name
    assert found["attributes"] == value.attributes
    assert found["source"] == value.source
    assert (found["send_time"], found["store_time"]) == (value.send_time_ms, value.store_time_ms)
    assert found["compression"] == (None if value.compression is Compression.NONE else value.compression.value)
    if isinstance(value, BatchMessage):
        assert found["items"] == [
            {
                "priority": item.priority,
                "flag": item.flag,
                "body": item.body,
                "business_id": item.business_id,
                "attributes": item.attributes,
            }
            for item in value.items
        ]
    else:
        assert (found["body"], found["flag"]) == (value.body, value.flag)


def write_again(codec, found, **changes):
    """The same message, written from what was read."""
    kept = ("partition", "index", "term", "priority", "send_time", "store_time", "business_id", "extension", "app")
    kept += ("compression", "is_ordered", "source")
    same = {name: found[name] for name in kept} | {"attributes": found["attribute_bytes"]} | changes
    if codec is documented_bytes:
        same["is_ipv6"] = found["is_ipv6"]
    if found["items"] is not None:
        return codec.batch(found["items"], **same)
    return codec.message(found["body"], flag=found["flag"], **same)


# Golden vectors of the joyqueue dialect.

CLIENT_IP = ("10.1.2.3", 49460)
HELLO = {"partition": 1, "priority": 2, "flag": 7, "business_id": "biz-1", "app": "shop", "client_ip": CLIENT_IP}


def java_frame(number, request_id, write, *values, **named):
    payload = write(Writer(), *values, **named).data
    return joyqueue_bytes.frame(number, request_id, payload, send_time=SENT_MS)


def python_frame(number, write, *values, **named):
    payload = write(Writer(null=-1), *values, **named).data
    return joyqueue_bytes.frame(number, 78237, payload, version=2, send_time=PYTHON_SENT)


def tv1():
    names = {"region": "east", "version": "4.2.8", "ip": "10.1.2.3", "at": SENT_MS, "sequence": 1}
    return java_frame(1, 1, joyqueue_commands.write_add_connection, "shop", "t0k3n", **names)


def tv2():
    names = {"user": "u", "password": "p", "namespace": "ns", "language": 2, "version": "2.1.0", "ip": "127.0.0.1"}
    times = {"at": PYTHON_SENT, "sequence": 1000}
    return python_frame(1, joyqueue_commands.write_add_connection, "shop", "t0k3n", **names, **times)


def produce(request_id, message):
    write = joyqueue_commands.write_produce_message
    return java_frame(50, request_id, write, [("orders", [message])], "shop", 3, "", 3000)


def tv7():
    attributes = {"a b": "c d", "x": "=中"}
    return produce(6, joyqueue_bytes.message(b"hello", attributes=attributes, send_time=SENT_MS, **HELLO))


def tv8():
    items = [{"body": b"m0", "business_id": "b0"}, {"body": b"m1", "attributes": {"k": "v"}}]
    where = {"partition": 1, "app": "shop", "client_ip": CLIENT_IP, "send_time": SENT_MS}
    return produce(7, joyqueue_bytes.batch(items, **where))


def tv9():
    message = joyqueue_bytes.python_message(b"hello", partition=1, business_id="biz-1", send_time=SENT_MS, app="shop")
    return python_frame(50, joyqueue_commands.write_produce_message, [("orders", [message])], "shop", 2, "", 5000)


def tv11():
    return java_frame(32, 11, joyqueue_commands.write_commit_ack, [("orders", [(1, [(42, 0), (43, 2)])])], "shop")


def tv12():
    return java_frame(54, 14, joyqueue_commands.write_fetch_feedback, "orders", "shop", 0, 3000)


def fetch_topic_message():
    return java_frame(30, 10, joyqueue_commands.write_fetch_topic_message, [("orders", 10)], "shop", 300_000, 5000)


def prepare():
    return java_frame(51, 13, joyqueue_commands.write_prepare, "orders", "shop", 1, "order-77", 600_000)


def heartbeat():
    return joyqueue_bytes.frame(7, 4, send_time=SENT_MS)


JOYQUEUE_REQUESTS = {
    "joyqueue/TV1": tv1,
    "joyqueue/TV2": tv2,
    "joyqueue/TV7": tv7,
    "joyqueue/TV8": tv8,
    "joyqueue/TV9": tv9,
    "joyqueue/TV11": tv11,
    "joyqueue/TV12": tv12,
    "joyqueue/fetch_topic_message.request": fetch_topic_message,
    "joyqueue/prepare.request": prepare,
    "joyqueue/heartbeat.request": heartbeat,
}


@pytest.mark.parametrize("name", JOYQUEUE_REQUESTS)
def test_the_joyqueue_client_writes_the_golden_requests(name):
    assert JOYQUEUE_REQUESTS[name]() == load(name).data


def test_every_golden_request_of_joyqueue_is_written_and_every_response_read():
    joyqueue_responses = {name for name in RESPONSES if name.startswith("joyqueue")}
    assert set(names("joyqueue")) == set(JOYQUEUE_REQUESTS) | joyqueue_responses


@pytest.mark.parametrize("name", [name for name in RESPONSES if name.startswith("joyqueue")])
def test_the_joyqueue_client_reads_the_golden_responses(name):
    header, payload = read_ack(load(name).data)
    expected = EXPECTED[name].header
    assert (header["version"], header["id"], header["send_time"]) == (
        expected.version,
        expected.request_id,
        expected.send_time_ms,
    )
    number = 7 if expected.type == -128 else -expected.type
    if expected.status:
        with pytest.raises(joyqueue_commands.RefusedError, match="2: bad token"):
            joyqueue_commands.open_ack(number, header, payload)
        return
    value = joyqueue_commands.open_ack(number, header, payload)
    assert same_leaves(value, EXPECTED[name].value, number, EXPECTED[name].form(Dialect.JOYQUEUE))


def test_the_joyqueue_client_reads_the_golden_messages():
    ((_, (message,), code),) = joyqueue_commands.open_ack(30, *read_ack(load("joyqueue/TV10").data))
    assert code == 0
    assert {name: message[name] for name in HELLO} == HELLO
    assert (message["index"], message["term"], message["store_time"], message["body"]) == (42, 3, 5, b"hello")
    assert message["attributes"] == {"k": "v"}
    assert not message["is_ipv6"]
    ((_, ((_, (zlib_message,), _), _)),) = joyqueue_commands.open_ack(
        31, *read_ack(load("joyqueue/fetch_partition_message.response").data)
    )
    assert (zlib_message["body"], zlib_message["compression"]) == (HUNDRED_A, "zlib")
    assert zlib_message["client_ip"] == (socket.inet_pton(socket.AF_INET6, "2001:db8::")[:14], 49460)


@pytest.mark.parametrize("name", ["zlib", "snappy"])
def test_the_joyqueue_client_opens_the_bodies_that_java_compressed(name):
    assert joyqueue_bytes._unpack(load(f"joyqueue/bodies/{name}").data, name) == HUNDRED_A
    assert documented_bytes.decompress(name, load(f"joyqueue/bodies/{name}").data) == HUNDRED_A


# What a strict reader refuses.


def open_response(name, data):
    """Read a golden response, changed or not, as its client does."""
    number = -EXPECTED[name].header.type
    if name.startswith("joyqueue"):
        return joyqueue_commands.open_ack(7 if number == 128 else number, *read_ack(data))
    payload = read_response(data)["payload"]
    has_payload = EXPECTED[name].value is not None
    return ANSWERS[number].read(payload) if has_payload else Cursor(payload).finish()


@pytest.mark.parametrize("name", RESPONSES)
def test_a_response_with_a_byte_too_many_or_too_few_is_not_read(name):
    data = load(name).data
    longer, shorter = (len(data) + 1).to_bytes(4) + data[4:] + b"\0", (len(data) - 1).to_bytes(4) + data[4:-1]
    for changed in (longer, shorter):
        with pytest.raises((documented_bytes.WrongBytesError, joyqueue_bytes.WrongBytesError)):
            open_response(name, changed)


def test_codes_that_no_table_has_are_not_read():
    with pytest.raises(documented_bytes.WrongBytesError, match="27 is in no table"):
        ANSWERS[52].read(struct.pack(">i", 27))
    with pytest.raises(joyqueue_bytes.WrongBytesError, match="no code 333"):
        joyqueue_commands.read_end_of_transaction(Reader(struct.pack(">i", 333)))


@pytest.mark.parametrize("place", range(61))
def test_a_changed_byte_in_the_fixed_part_of_a_message_is_seen_or_only_changes_its_field(place):
    data = bytearray(joyqueue_bytes.message(b"body", attributes={"k": "v"}, send_time=SENT_MS))
    before = joyqueue_bytes.read_message(Reader(data))
    data[place] ^= 0x01
    try:
        after = joyqueue_bytes.read_message(Reader(data))
    except joyqueue_bytes.WrongBytesError:
        return
    assert len({name for name in before if before[name] != after[name]}) == 1


# The clients against LakeMQ's codec.

CODECS = {Dialect.DOCUMENTED: documented_bytes, Dialect.JOYQUEUE: joyqueue_bytes}


@pytest.mark.parametrize(
    ("kind", "form"),
    [
        pytest.param(kind, form, id=f"{kind.name}-{form_name(form)}")
        for kind in KINDS
        for form in FORMS
        if kind.number < 60 and kind.ack is not None and kind.number not in (30, 31)
        if not (kind.is_documented_only and form.is_joyqueue)
    ],
)
@PROPERTY
@given(data=st.data())
def test_a_client_reads_in_an_ack_what_lakemq_wrote(kind, form, data):
    ack = data.draw(values_of(kind.ack, form))
    asked = Header(kind.number, 5, form.version, 1)
    whole = b"".join(encode_response(ack, asked, dialect=form.dialect, send_time_ms=SENT_MS))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(documented_bytes, "CODES", Anything())
        patch.setattr(joyqueue_bytes, "KNOWN_CODES", Anything())
        if form.is_joyqueue:
            value = joyqueue_commands.open_ack(kind.number, *read_ack(whole))
        else:
            value = ANSWERS[kind.number].read(read_response(whole)["payload"])
    assert same_leaves(value, ack, kind.number, form)


@pytest.mark.parametrize(
    ("kind", "form"),
    [
        pytest.param(kind, form, id=f"{kind.name}-{form_name(form)}")
        for kind in KINDS
        for form in (Form(Dialect.DOCUMENTED, 2), Form(Dialect.JOYQUEUE, 4))
        if kind.number < 60 and kind.number != 50
        if not (kind.is_documented_only and form.is_joyqueue)
    ],
)
@PROPERTY
@given(data=st.data())
def test_lakemq_reads_in_a_request_what_a_client_wrote(kind, form, data):
    command = with_equal_partitions(data.draw(values_of(kind.request, form)))
    write = write_joyqueue if form.is_joyqueue else write_documented
    codec = CODECS[form.dialect]
    whole = codec.frame(kind.number, 5, write(kind.number, nested(command)), version=form.version, send_time=SENT_MS)
    header, found = decode_request(whole, form.dialect)
    assert (header.request_id, header.version, header.qos_bits, header.send_time_ms) == (5, form.version, 1, SENT_MS)
    assert found == command


def with_equal_partitions(command):
    """A COMMIT_ACK names the partition twice; the joyqueue client has no way to name two."""
    if not isinstance(command, CommitAck):
        return command
    for topic in command.topics:
        for partition in topic.partitions:
            for ack in partition.acks:
                ack.partition = partition.partition
    return command


def write_documented(number, values):
    if number == 1:
        values = values[:6] + values[7:]
    if number == 51:
        return REQUESTS[51].write(*values[:-1]) + struct.pack(">i", values[-1])
    return REQUESTS[number].write(*values)


def write_joyqueue(number, values):
    writer = Writer()
    match number, values:
        case 1, (user, password, app, token, region, namespace, language, version, ip, at, sequence):
            names = {"user": user, "password": password, "region": region, "namespace": namespace}
            about = {"language": language, "version": version, "ip": ip, "at": at, "sequence": sequence}
            joyqueue_commands.write_add_connection(writer, app, token, **names, **about)
        case ((3 | 5), _):
            joyqueue_commands.write_add(writer, *values)
        case ((4 | 6 | 10 | 20), _):
            joyqueue_commands.write_topics(writer, *values)
        case 21, _:
            joyqueue_commands.write_fetch_assigned_partition(writer, *values)
        case 30, _:
            joyqueue_commands.write_fetch_topic_message(writer, *values)
        case 31, _:
            joyqueue_commands.write_fetch_partition_message(writer, *values)
        case 32, (topics, app):
            plain = [(name, [(each, [ack[1:] for ack in acks]) for each, acks in places]) for name, places in topics]
            joyqueue_commands.write_commit_ack(writer, plain, app)
        case 33, _:
            joyqueue_commands.write_commit_ack_index(writer, *values)
        case 35, _:
            joyqueue_commands.write_fetch_index(writer, *values)
        case 51, _:
            joyqueue_commands.write_prepare(writer, *values)
        case ((52 | 53), _):
            joyqueue_commands.write_end_of_transaction(writer, *values)
        case 54, (app, topic, status, _, long_poll):
            joyqueue_commands.write_fetch_feedback(writer, topic, app, status, long_poll)
    return bytes(writer.data)


# Messages, against LakeMQ's codec and against each other.

BODIES = st.binary(max_size=300) | st.builds(
    lambda unit, times: unit * times, st.binary(max_size=4), st.integers(0, 99)
)
BUSINESS_IDS = st.text(CHARACTERS, max_size=30)  # of at most 127 bytes
ITEMS = st.fixed_dictionaries(
    {
        "priority": st.integers(-128, 127),
        "flag": st.integers(-32768, 32767),
        "body": BODIES,
        "business_id": BUSINESS_IDS,
        "attributes": ATTRIBUTES,
    }
)
DETAILS = {
    "partition": st.integers(-32768, 32767),
    "index": st.integers(-(1 << 63), (1 << 63) - 1),
    "term": st.integers(-(1 << 31), (1 << 31) - 1),
    "priority": st.integers(-128, 127),
    "send_time": st.integers(0, 1 << 50),
    "store_time": st.integers(0, (1 << 31) - 1),
    "business_id": BUSINESS_IDS,
    "attributes": ATTRIBUTES,
    "extension": st.binary(max_size=20),
    "app": st.text(CHARACTERS, max_size=30),
    "is_ordered": st.booleans(),
}
CONTENTS = st.one_of(
    st.builds(lambda body, flag: ("message", body, {"flag": flag}), BODIES, st.integers(-32768, 32767)),
    st.builds(lambda items: ("batch", items, {}), st.lists(ITEMS, min_size=1, max_size=4)),
)


def made_of(codec, content, details):
    """The bytes of a message by one codec, and what it was made of."""
    kind, what, more = content
    return getattr(codec, kind)(what, **details, **more)


def opened(message):
    """What the other side must find in it."""
    left_out = {"carried", "client_ip", "compression", "source", "is_ipv6"}
    return {name: value for name, value in message.items() if name not in left_out}


@pytest.mark.parametrize("compression", [None, *documented_bytes.COMPRESSIONS])
@PROPERTY
@given(content=CONTENTS, details=st.fixed_dictionaries(DETAILS), source=st.sampled_from(Source), is_ipv6=st.booleans())
def test_lakemq_reads_the_documented_clients_messages(compression, content, details, source, is_ipv6):
    more = {"compression": compression, "source": int(source), "is_ipv6": is_ipv6}
    data = made_of(documented_bytes, content, details | more)
    cursor = Cursor(data)
    found = documented_bytes.read_message(cursor)
    cursor.finish()
    check_against_lakemq(found, unpack(data))
    assert found["attributes"] == details["attributes"]


@pytest.mark.parametrize("compression", [None, *joyqueue_bytes.COMPRESSIONS])
@PROPERTY
@given(content=CONTENTS, details=st.fixed_dictionaries(DETAILS))
def test_a_message_from_the_joyqueue_client_reaches_the_documented_one_by_lakemqs_codec(compression, content, details):
    data = bytes(made_of(joyqueue_bytes, content, details | {"compression": compression}))
    reader = Reader(data)
    sent = joyqueue_bytes.read_message(reader)
    reader.end()
    stored = MessageBlock(1, (data,), Dialect.JOYQUEUE).stored(is_ipv6=False)
    cursor = Cursor(stored.joined())
    received = documented_bytes.read_message(cursor)
    cursor.finish()
    assert opened(received) == opened(sent)
    assert (received["compression"], received["source"], received["is_ipv6"]) == (compression, 3, False)
    back = Reader(stored.in_dialect(Dialect.JOYQUEUE).joined())
    assert opened(joyqueue_bytes.read_message(back)) == opened(sent)
    back.end()


@pytest.mark.parametrize("compression", [None, *documented_bytes.COMPRESSIONS])
@PROPERTY
@given(content=CONTENTS, details=st.fixed_dictionaries(DETAILS))
def test_a_message_from_the_documented_client_reaches_the_joyqueue_one_by_lakemqs_codec(compression, content, details):
    data = made_of(documented_bytes, content, details | {"compression": compression})
    sent = documented_bytes.read_message(Cursor(data))
    reader = Reader(MessageBlock(1, (data,)).in_dialect(Dialect.JOYQUEUE).joined())
    received = joyqueue_bytes.read_message(reader)
    reader.end()
    assert opened(received) == opened(sent)
    assert received["compression"] == ("zlib" if compression in ("lz4", "zstd") else compression)
    assert received["client_ip"] == ("0.0.0.0", 0)


# Attributes.


@settings(max_examples=200, deadline=None)
@given(attributes=ATTRIBUTES)
def test_three_writers_of_attributes_agree(attributes):
    written = encode_attributes(attributes)
    assert documented_bytes.write_attributes(attributes) == written
    assert joyqueue_bytes.write_attributes(attributes) == written


@settings(max_examples=300, deadline=None)
@given(text=st.text(st.sampled_from("ab\\=:#! \t\n\r\f中😀"), max_size=14))
def test_three_readers_of_attributes_agree(text):
    assume(not re.search(r"(^|[\n\r])[ \t\f]*\\([\n\r]|$)", text))  # a line of nothing but its continuation
    data = text.encode()
    expected = decode_attributes(data)
    assert documented_bytes.read_attributes(data) == expected
    assert joyqueue_bytes.read_attributes(data) == expected


def test_the_crc_of_a_message_is_that_of_its_body_as_carried():
    data = documented_bytes.message(b"x" * 200, compression="zlib", crc=zlib.crc32(b"x" * 200))
    with pytest.raises(documented_bytes.WrongBytesError, match="CRC"):
        documented_bytes.read_message(Cursor(data))
