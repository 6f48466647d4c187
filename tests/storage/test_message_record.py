"""A MESSAGES record made in one go: the compiled twin writes what the definition says, byte for byte."""

import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakemq.errors import LakeMQError
from lakemq.record import read_fields, scan_python
from lakemq.storage.index import ENTRY_BYTES
from lakemq.storage.journal_record import HEADER_BYTES, RecordType, unpack_header
from lakemq.storage.message_record import make_record_python
from wire.strategies import MESSAGES, block_of

try:
    from lakemq import _hot as hot
except ImportError:
    hot = None

needs_twin = pytest.mark.skipif(hot is None, reason="the compiled twin was not built: no C compiler at install")

BLOCKS = st.lists(MESSAGES, min_size=1, max_size=4).map(lambda values: (bytes(block_of(*values).joined()), len(values)))
FACTS = st.tuples(
    st.integers(0, 32766),  # partition
    st.integers(0, 1 << 48),  # first index
    st.integers(1, (1 << 31) - 1),  # term
    st.one_of(st.integers(0, 1 << 45), st.just((1 << 62) - 1)),  # now
    st.integers(0, (1 << 31) - 1),  # topic
    st.integers(0, 1 << 48),  # position
    st.integers(0, 1 << 48),  # synced position
    st.binary(min_size=16, max_size=16),
)


def made_by_both(data, count, facts):
    mine, twins = bytearray(data), bytearray(data)
    made = make_record_python(mine, count, *facts)
    assert hot.make_record(twins, count, *facts) == made
    assert twins == mine, "the stamped messages"
    view = bytearray(b"x" * 7 + data)
    assert hot.make_record(memoryview(view)[7:], count, *facts) == made
    assert view[7:] == mine
    return made, mine


@needs_twin
@settings(max_examples=60, deadline=None)
@given(BLOCKS, FACTS, st.lists(st.tuples(st.integers(0, 300), st.integers(0, 255)), max_size=3))
def test_a_record_is_made_by_both_alike(block, facts, changes):
    """Of messages as they come, and of those with bytes changed that a scan lets pass."""
    data, count = block
    made_by_both(data, count, facts)
    changed = bytearray(data)
    for place, value in changes:
        changed[place % len(changed)] = value
    try:
        if scan_python(changed, 0, len(changed), count).end != len(changed):
            return
    except LakeMQError:
        return
    made_by_both(changed, count, facts)


@settings(max_examples=25, deadline=None)
@given(BLOCKS, FACTS)
def test_a_record_says_what_it_holds(block, facts):
    data, count = block
    partition, first_index, term, now_ms, topic, position, synced_position, address = facts
    messages = bytearray(data)
    head, entries, next_index = make_record_python(messages, count, *facts)
    header = unpack_header(head, 0, position)
    assert header is not None, "its own checksum is right"
    assert (header.type, header.length) == (RecordType.MESSAGES, HEADER_BYTES + len(data))
    assert (header.partition, header.term, header.topic) == (partition, term, topic)
    assert (header.store_time_ms, header.synced_position, header.client_address) == (now_ms, synced_position, address)
    assert next_index - first_index >= count
    assert len(entries) == count * ENTRY_BYTES
    at, index = 0, first_index
    for _ in range(count):
        fields, at = read_fields(messages, at)
        assert (fields.partition, fields.index, fields.term) == (partition, index, term)
        assert fields.body_crc == zlib.crc32(fields.body)
        index += fields.flag if fields.system_code & 0x1000 else 1
    assert index == next_index


@needs_twin
def test_what_cannot_be_a_record_is_refused_and_nothing_is_read_beyond_it():
    data = bytearray(bytes(block_of().joined()))
    with pytest.raises(ValueError):
        hot.make_record(data, 1, 0, 0, 1, 0, 1, 0, 0, bytes(16))
    with pytest.raises(ValueError):
        hot.make_record(bytearray(60), 1, 0, 0, 1, 0, 1, 0, 0, bytes(3))
