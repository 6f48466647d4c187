"""Blocks of events: what goes in comes out, rows are of one width, and what is no block is refused."""

import struct

import pytest

from lakemq.delivery.trace_record import (
    HEAD,
    ROW,
    ROW_FIELDS,
    Event,
    EventKind,
    pack_blocks,
    rows_offset,
    unpack_events,
)
from lakemq.errors import SerializationError

SENT = Event(1_700_000_000_000, 7, 3, 12, 4, 1, 0, "orders", "shop", "@10.0.0.1", "", EventKind.PRODUCED)
FAILED = Event(1_700_000_000_050, 8, 1, 12, 46, 1, 2, "orders", "billing", "0-9@10.0.0.2", "no card", EventKind.FAILED)

# magic "LE", version 1, 0, two rows, seven strings: "", then each when it is first named
GOLDEN = (
    bytes.fromhex("4c45 01 00 02000000 0700")
    + b"\x00\x00\x06\x00orders\x04\x00shop\x09\x00@10.0.0.1\x07\x00billing\x0c\x000-9@10.0.0.2\x07\x00no card"
    + bytes.fromhex(
        "0068e5cf8b010000 0700000000000000 03000000 0c000000 04000000 0100 0000 0100 0200 0300 0000 01 000000"
    )
    + bytes.fromhex(
        "3268e5cf8b010000 0800000000000000 01000000 0c000000 2e000000 0100 0200 0100 0400 0500 0600 04 000000"
    )
)


def blocks(*events, rows_max=1000, bytes_max=1 << 20):
    return list(pack_blocks(events, rows_max, bytes_max))


def test_the_bytes_of_a_block_are_these():
    assert blocks(SENT, FAILED) == [(2, GOLDEN)]


def test_what_goes_in_comes_out():
    assert unpack_events(GOLDEN) == [SENT, FAILED]


def test_rows_can_be_looked_at_without_taking_them_apart():
    at, count, texts = rows_offset(GOLDEN)
    assert (count, texts[0], texts[4]) == (2, "", "billing")
    assert len(GOLDEN) == at + count * ROW.size
    assert ROW.size == 44


def test_the_fields_for_numpy_are_those_of_the_row():
    letters = {"<i8": "q", "<u4": "I", "<i4": "i", "<u2": "H", "u1": "B", "V3": "3x"}
    assert "<" + "".join(letters[kind] for _, kind in ROW_FIELDS) == ROW.format


def test_no_events_are_no_block():
    assert blocks() == []


def test_a_block_has_so_many_rows_at_most():
    assert [count for count, _ in blocks(*[SENT] * 5, rows_max=2)] == [2, 2, 1]


def test_a_block_has_so_many_bytes_at_most_but_one_row_in_any_case():
    many = [SENT._replace(reason=f"reason {number}") for number in range(30)]
    made = blocks(*many, bytes_max=400)
    assert max(len(block) for _, block in made) <= 400
    assert [event for _, block in made for event in unpack_events(block)] == many
    assert len(blocks(SENT, FAILED, bytes_max=1)) == 2


def test_a_block_has_as_many_strings_as_a_number_of_two_bytes_can_name():
    many = [SENT._replace(reason=f"{number}") for number in range(70_000)]
    first, second = blocks(*many, rows_max=1 << 20, bytes_max=1 << 30)
    assert len(rows_offset(first[1])[2]) <= 0xFFFF
    assert [event.reason for event in unpack_events(first[1]) + unpack_events(second[1])] == [e.reason for e in many]


def test_what_a_field_cannot_hold_is_cut():
    odd = SENT._replace(attempt=70_000, elapsed_ms=1 << 40)
    late = SENT._replace(elapsed_ms=-5, reason="\ud800")  # a sender's clock is ahead; half of a character
    cut, unknown = unpack_events(blocks(odd, late)[0][1])
    assert (cut.attempt, cut.elapsed_ms) == (0xFFFF, 0x7FFFFFFF)
    assert (unknown.elapsed_ms, unknown.reason) == (-1, "?")


@pytest.mark.parametrize("size", [*range(0, len(GOLDEN), 7), len(GOLDEN) - 1])
def test_a_block_that_was_cut_is_refused(size):
    with pytest.raises(SerializationError):
        unpack_events(GOLDEN[:size])


@pytest.mark.parametrize(
    "block",
    [
        b"XX" + GOLDEN[2:],
        GOLDEN[:2] + b"\2" + GOLDEN[3:],
        GOLDEN + b"\0",
        HEAD.pack(b"LE", 1, 0, 0, 0),
        HEAD.pack(b"LE", 1, 0, 0, 1) + b"\1\0x",
        HEAD.pack(b"LE", 1, 0, 1, 1) + b"\0\0" + struct.pack("<qqIiiHHHHHHB3x", 0, 0, 1, 1, 0, 0, 0, 9, 0, 0, 0, 1),
    ],
    ids=["magic", "version", "too long", "no strings", "first string", "unknown string"],
)
def test_what_is_no_block_is_refused(block):
    with pytest.raises(SerializationError):
        unpack_events(block)
