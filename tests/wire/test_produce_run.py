"""Runs of requests and whole frames: the compiled twins do what the definitions say, on sound and on bad input."""

import struct
import zlib
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakemq.broker.runs import store_run_python
from lakemq.envelope import pack
from lakemq.message import MESSAGE_BYTES_MAX, Message
from lakemq.record import MessageFields, scan_python, write_fields
from lakemq.storage.message_record import make_record_python
from lakemq.wire.commands import decode_response
from lakemq.wire.dialect import Dialect
from lakemq.wire.frame import whole_frames_python
from lakemq.wire.header import Header
from lakemq.wire.produce_run import (
    SPECIAL_ATTRIBUTES,
    cut_run_python,
    run_acks_python,
    run_receipts,
    run_refusals,
)

try:
    from lakemq import _hot as hot
except ImportError:
    hot = None

seeds = pytest.mark.parametrize("seed", range(4))
needs_twin = pytest.mark.skipif(hot is None, reason="the compiled twin was not built: no C compiler at install")
RUN_BYTES_MAX = 1 << 20
CASES = 1500
NOW_MS = 1_700_000_000_123
HEAD = b"\x02\x02"
TOPIC = b"\0\6orders"
PREFIX = b"\0\1" + TOPIC + b"\0\0" + bytes(4) + b"\3"
SUFFIX = b"\0\4shop"


# --- requests, alike and nearly so -----------------------------------------------------------------------------------

ATTRIBUTES = (
    b"TAGS=a",
    b"UNIQ_ID=1",
    b"a=b\nUNIQ_ID=1",
    b"a=b\r \t\fDELIVER_AT=1",
    b"\x0cDELAY_LEVEL=1",
    b"a=UNIQ_ID",
    b"XUNIQ_ID=1",
    b"UNIQ_I=1",
    b"EXPIRE",
    b"EXPIR",
    b"a\\=b",
    b"\\",
    b"\n\n",
    b"\n EXPIRE=1",
    b"\x0bUNIQ_ID=1",
    b" \t\f\t UNIQ_ID",
    b"\rDELAY_LEVEL",
    b"\xff",
    "é=ü".encode(),
)


def rarely(rng, usual, *others):
    """One of the others, one time in thirty."""
    return rng.choice(others) if rng.random() < 0.03 else usual


def message(rng, partition):
    """One MESSAGE, now and then with a field that is not allowed."""
    body = rng.randbytes(rng.choice([0, 1, 7, 40, 3000]))
    code, flag = 0x010C, rng.randint(0, 3)
    if rng.random() < 0.2:  # a batch, whose head may lie
        count = rarely(rng, rng.randint(1, 3), 0)
        body = struct.pack(">ih", len(body) + rarely(rng, 6, 7), count) + body
        code, flag = code | 0x1000, count + rarely(rng, 0, 1, -1)
    body_crc = rarely(rng, rng.choice([zlib.crc32(body), 0, -1]), 1, zlib.crc32(body) | 1 << 33)
    return write_fields(
        MessageFields(
            partition=rarely(rng, partition, 0, -1, 3),
            index=rng.randint(-1, 5),
            term=0,
            system_code=code | rarely(rng, rng.choice([0, 2, 0x80, 1]), 0x51, 0x41, 0x100, 0x200, 0x2000, 0x8000),
            priority=0,
            send_time_ms=rng.choice([0, NOW_MS - 5, NOW_MS + 5, -(1 << 63), (1 << 63) - 1]),
            store_time_ms=0,
            body_crc=body_crc,
            flag=flag,
            body=body,
            business_id=rarely(rng, b"key", b"", b"\xff", b"a" * 100, b"a" * 101, "é".encode() * 100),
            attributes=rarely(rng, rng.choice([b"", b"TAGS=a"]), *ATTRIBUTES),
            extension=rng.randbytes(rng.randint(0, 4)),
            app=rarely(rng, b"shop", b"", b"\xff", b"a" * 127, b"a" * 128),
        )
    )


def request(rng, partition):
    """One PRODUCE_MESSAGE, mostly of the route above."""
    carried = [message(rng, partition) for _ in range(rng.choice([1, 1, 1, 2, 3]))]
    count = rarely(rng, len(carried), 0, -1, len(carried) + 1, len(carried) - 1)
    prefix = rarely(rng, PREFIX, PREFIX[:-1] + b"\0", b"")
    suffix = rarely(rng, SUFFIX, b"\0\4bank", SUFFIX + b"!")
    payload = prefix + struct.pack(">h", count) + b"".join(carried) + suffix
    data = Header(rarely(rng, 50, 7), rng.randint(-(1 << 31), (1 << 31) - 1)).pack(len(payload)) + payload
    return data[:8] + rarely(rng, HEAD, b"\x02\x00", b"\x04\x02") + data[10:]


def stream(rng):
    """Requests back to back, some bytes before them, now and then with bytes that are others or missing."""
    before = rng.choice([b"", b"before"])
    partition = rng.choice([0, 0, 2, -1])
    data = bytearray(before + b"".join(request(rng, partition) for _ in range(rng.randint(0, 6))))
    for _ in range(rng.choice([0, 0, 0, 1, 2])):
        if data:
            data[rng.randrange(len(data))] = rng.randrange(256)
    if rng.random() < 0.15:
        del data[rng.randint(0, len(data)) :]
    return data, min(len(before), len(data))


def cut_by_both(data, at, bytes_max=RUN_BYTES_MAX):
    """What the definition finds and leaves of the bytes; the twin must do the same."""
    mine, twins = bytearray(data), bytearray(data)
    found = cut_run_python(memoryview(mine), at, HEAD, PREFIX, SUFFIX, bytes_max)
    twin = hot.cut_run(memoryview(twins), at, HEAD, PREFIX, SUFFIX, bytes_max, MESSAGE_BYTES_MAX)
    assert twin == (tuple(found) if found is not None else None)
    assert twins == mine, "the bytes it leaves"
    return found, mine


@needs_twin
@seeds
def test_a_run_is_cut_by_both_alike(seed):
    rng = Random(seed)
    lengths = set()
    for _ in range(CASES):
        data, at = stream(rng)
        found, _ = cut_by_both(data, at, rng.choice([RUN_BYTES_MAX, RUN_BYTES_MAX, 0, 100, 3100]))
        lengths.add(len(found.requests) // 6 if found else 0)
    assert lengths >= {0, 1, 2, 3, 4}, "some of each kind"


GOOD = MessageFields(0, -1, 0, 0x010C, 0, 5, 0, 0, 0, b"body", b"key", b"", b"", b"shop")


def request_of(*carried, request_id=1):
    payload = PREFIX + struct.pack(">h", len(carried)) + b"".join(map(write_fields, carried)) + SUFFIX
    return Header(50, request_id, qos_bits=1).pack(len(payload)) + payload


@needs_twin
def test_requests_alike_are_one_run_and_their_messages_lie_back_to_back():
    data = b"".join(request_of(*[replace(GOOD, body=b"%d" % number)] * 2, request_id=number) for number in range(5))
    found, left = cut_by_both(data, 0)
    assert (found.end, found.partition, found.message_count, found.index_count) == (len(data), 0, 10, 10)
    one = write_fields(replace(GOOD, body=b"0"))
    assert found.stop - found.start == 10 * len(one)
    assert left[found.start : found.start + len(one)] == one
    assert scan_python(left, found.start, found.stop, 10).end == found.stop


@needs_twin
@pytest.mark.parametrize(
    "other",
    [
        replace(GOOD, partition=1),
        replace(GOOD, attributes=b"UNIQ_ID=1"),
        replace(GOOD, body_crc=1),
        replace(GOOD, system_code=0x0200),
        replace(GOOD, business_id=b"\xff"),
    ],
    ids=["partition", "id", "crc", "version", "text"],
)
def test_a_run_ends_before_the_request_that_is_not_like_the_others(other):
    alike = request_of(GOOD) + request_of(GOOD)
    found, _ = cut_by_both(alike + request_of(other) + request_of(GOOD), 0)
    assert (found.end, found.message_count) == (len(alike), 2)


@needs_twin
def test_a_run_keeps_to_its_size_to_the_byte_but_has_one_request_in_any_case():
    size = len(write_fields(GOOD))
    for bytes_max, count in ((0, 1), (2 * size - 1, 1), (2 * size, 2), (3 * size - 1, 2), (3 * size, 3)):
        found, _ = cut_by_both(request_of(GOOD) * 4, 0, bytes_max)
        assert found.message_count == count


@needs_twin
@pytest.mark.parametrize(("second", "count"), [(16_383, 32_767), (16_384, 16_384)])
def test_a_run_has_no_more_messages_than_an_answer_counts(second, count):
    small = replace(GOOD, body=b"")
    found, _ = cut_by_both(request_of(*[small] * 16_384) + request_of(*[small] * second), 0, bytes_max=1 << 30)
    assert found.message_count == count


@needs_twin
def test_both_see_the_attributes_that_the_broker_must_look_at():
    rng = Random(1)
    drawn = ["".join(rng.choices("UNIQ_DELVRATYXP \t\n\r\f=\\é", k=rng.randint(0, 12))).encode() for _ in range(500)]
    for name in (b"UNIQ_ID", b"DELIVER_AT", b"DELAY_LEVEL", b"EXPIRE"):
        drawn += [
            before + name[:size] + after
            for before in (b"", b"\n", b"a=", b" ")
            for size in range(12)
            for after in (b"", b"=")
        ]
    for attributes in (*ATTRIBUTES, *drawn):
        found, _ = cut_by_both(request_of(replace(GOOD, attributes=attributes)), 0)
        expected = attributes != b"\xff" and not (attributes and SPECIAL_ATTRIBUTES.search(attributes))
        assert (found is not None) is expected, attributes


@needs_twin
@pytest.mark.parametrize(("code", "partition", "is_run"), [(0x010E, -1, False), (0x010E, 0, True), (0x010C, -1, True)])
def test_an_ordered_message_without_a_partition_is_looked_at_one_by_one(code, partition, is_run):
    found, _ = cut_by_both(request_of(replace(GOOD, system_code=code, partition=partition)), 0)
    assert (found is not None) is is_run


# --- answers ---------------------------------------------------------------------------------------------------------


@needs_twin
@seeds
def test_a_run_is_answered_by_both_alike_and_as_the_codec_reads_it(seed):
    rng = Random(seed)
    for _ in range(CASES // 4):
        found, left = cut_by_both(*stream(rng))
        if found is None:
            continue
        now_ms, first_index = rng.randint(0, 1 << 50), rng.randint(0, 5)
        stored = left[found.start : found.stop]
        _, _, next_index = make_record_python(
            stored, found.message_count, 7, first_index, 1, now_ms, 1, 0, 0, bytes(16)
        )
        said = run_acks_python(stored, found.requests, TOPIC, HEAD, now_ms)
        assert hot.run_acks(bytes(stored), found.requests, TOPIC, HEAD, now_ms) == said
        assert hot.run_acks(memoryview(stored), found.requests, TOPIC, HEAD, now_ms) == said
        results = [each for answer in answers_in(said) for each in answer.topics[0].results]
        assert [each.partition for each in results] == [7] * found.message_count
        assert results[0].index == first_index
        assert next_index - first_index == found.index_count


def answers_in(data):
    at, frames = 0, []
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        header, body = decode_response(data[at : at + size], Dialect.DOCUMENTED)
        assert (header.type, header.status, header.error) == (-50, 0, "")
        frames.append(body)
        at += size
    return frames


@given(st.lists(st.tuples(st.integers(-(1 << 31), (1 << 31) - 1), st.integers(1, 3)), max_size=4), st.integers(0, 255))
def test_refusals_and_receipts_are_what_the_codec_reads(asked, code):
    requests = b"".join(struct.pack(">ih", *one) for one in asked)
    refused = answers_in(run_refusals(requests, TOPIC, HEAD, NOW_MS, code))
    assert [(one.topics[0].topic, one.topics[0].code, len(one.topics[0].results)) for one in refused] == [
        ("orders", code, count) for _, count in asked
    ]
    assert {each.index for one in refused for each in one.topics[0].results} <= {-1}
    sent = range(1000, 1000 + sum(count for _, count in asked))
    messages = b"".join(pack(Message(body=b"x", send_time_ms=one)) for one in sent)
    received = answers_in(run_receipts(messages, requests, TOPIC, HEAD, NOW_MS, 5))
    results = [each for one in received for each in one.topics[0].results]
    assert [(each.partition, each.index, each.start_time_ms) for each in results] == [(5, -1, one) for one in sent]


# --- all in one ------------------------------------------------------------------------------------------------------


@needs_twin
@seeds
def test_a_run_stored_in_one_call_is_cut_made_and_answered_as_in_three(seed):
    rng = Random(seed)
    for _ in range(CASES // 2):
        data, at = stream(rng)
        found, left = cut_by_both(data, at)
        partition = found.partition if found and found.partition >= 0 and rng.random() < 0.9 else 5
        first_index, position = rng.randint(0, 1 << 40), rng.randint(0, 1 << 40)
        facts = partition, first_index, 3, NOW_MS, 70_000, position, position // 2
        address = rng.randbytes(16)
        whole, whole_python = bytearray(data), bytearray(data)
        alike = HEAD, PREFIX, SUFFIX, TOPIC, address, 70_000, RUN_BYTES_MAX, MESSAGE_BYTES_MAX
        given = alike, partition, first_index, 3, NOW_MS, position, position // 2
        buffers, buffers_python = [b"before"], [b"before"]
        twin = hot.store_run(memoryview(whole), at, *given, buffers)
        assert store_run_python(memoryview(whole_python), at, *given, buffers_python) == twin
        assert (whole_python, buffers_python) == (whole, buffers)
        if found is None or found.partition != partition:
            assert twin is None
            assert (whole, buffers) == (data, [b"before"]), "nothing has happened"
            continue
        stored = left[found.start : found.stop]
        header, entries, next_index = make_record_python(stored, found.message_count, *facts, address)
        acks = run_acks_python(stored, found.requests, TOPIC, HEAD, NOW_MS)
        end, start, stop, _, message_count, _, requests = found
        assert twin == (end, len(header) + stop - start, message_count, next_index, requests, entries, acks)
        assert buffers == [b"before", header, stored]
        assert whole[start:stop] == stored


# --- frames ----------------------------------------------------------------------------------------------------------


@needs_twin
@seeds
def test_whole_frames_are_found_by_both_alike(seed):
    rng = Random(seed)
    for _ in range(CASES * 2):
        frames = [Header(7, 1).pack(size) + rng.randbytes(size) for size in rng.choices(range(30), k=rng.randint(0, 5))]
        data = bytearray(b"".join(frames))
        for _ in range(rng.choice([0, 0, 1, 2])):
            if data:
                data[rng.randrange(len(data))] = rng.randrange(256)
        bytes_max = rng.choice([40, 1000])
        for start in (0, len(frames[0]) if frames else 0):
            for end in (len(data), rng.randint(0, len(data))):
                if start <= end:
                    found = whole_frames_python(data, start, end, bytes_max)
                    assert hot.whole_frames(data, start, end, bytes_max) == found
                    assert hot.whole_frames(memoryview(data), start, end, bytes_max) == found
