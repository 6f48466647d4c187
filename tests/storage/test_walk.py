"""The walk over records: which are whole, why it ends, and that damage costs no more than what is damaged (F21)."""

import pytest

from lakemq.checksum import crc32
from lakemq.storage import walk as walk_module
from lakemq.storage.journal_record import HEADER_BYTES, NO_ADDRESS, RecordHeader, RecordType, pack_header
from lakemq.storage.tables import DamagedRange
from lakemq.storage.walk import Segment, Walk, candidates


class Bytes:
    """A file that only has bytes."""

    def __init__(self, data):
        self.data = data

    def read_at(self, position, size):
        return bytes(self.data[position : position + size])

    def next_data(self, position):
        """As exact as a file system could be."""
        rest = self.data[position:]
        return len(self.data) - len(rest.lstrip(b"\0"))


def record(position, payload, synced_position=0, term=1):
    size = HEADER_BYTES + len(payload)
    header = RecordHeader(size, RecordType.ACK, 0, term, 0, 0, 0, 0, 5, synced_position, NO_ADDRESS, crc32(payload))
    return pack_header(header, position) + payload


class Tape:
    """Records one after the other, in segments of so many; each says that those before it were synced, or none."""

    def __init__(self, count, *, per_segment=100, is_synced=True, base=0, zeros=500):
        self.starts, self.parts, position = [], [], base
        self.bases = []
        data = bytearray()
        for number in range(count):
            if number % per_segment == 0:
                data = bytearray()
                self.parts.append(data)
                self.bases.append(position)
            self.starts.append(position)
            made = record(position, b"payload %d" % number, position if is_synced else 0)
            data += made
            position += len(made)
        self.end = position
        data += bytes(zeros)

    def segments(self):
        return [Segment(base, base + len(data), Bytes(data)) for base, data in zip(self.bases, self.parts, strict=True)]

    def damage(self, number, offset=HEADER_BYTES):
        """Flip a bit of a record."""
        position = self.starts[number] + offset
        for base, data in reversed(list(zip(self.bases, self.parts, strict=True))):
            if position >= base:
                data[position - base] ^= 4
                return

    def number_of(self, found):
        return self.starts.index(found.position)


def walk_past_damage(tape, *, proven=0, search_bytes=10_000, end=None):
    """Numbers of the records found, the damage noted, and where it ended."""
    walk, noted = Walk(tape.segments(), search_bytes), []
    found = [tape.number_of(one) for one in walk.records_past_damage(tape.bases[0], end, proven, noted.append)]
    return found, noted, walk.end_position


@pytest.mark.parametrize("per_segment", [1, 3, 100])
@pytest.mark.parametrize("base", [0, 1 << 40])
def test_all_records_of_all_segments_are_found(per_segment, base):
    tape = Tape(7, per_segment=per_segment, base=base)
    assert walk_past_damage(tape) == (list(range(7)), [], tape.end)
    walk = Walk(tape.segments(), 10_000)
    assert [bytes(found.payload) for found in walk.records(tape.starts[5])] == [b"payload 5", b"payload 6"]


@pytest.mark.parametrize("block_bytes", [HEADER_BYTES, 80, 100, 200, 1 << 20])
def test_it_does_not_matter_how_much_is_read_at_once(monkeypatch, block_bytes):
    monkeypatch.setattr(walk_module, "BLOCK_BYTES", block_bytes)
    tape = Tape(9, per_segment=4)
    assert walk_past_damage(tape) == (list(range(9)), [], tape.end)


def test_nothing_is_found_where_nothing_is():
    tape = Tape(1)
    tape.parts[0][:] = bytes(500)
    assert walk_past_damage(tape) == ([], [], 0)
    assert list(Walk([], 100).records(0)) == []


@pytest.mark.parametrize("offset", [0, 4, 8, 20, HEADER_BYTES - 1, HEADER_BYTES, HEADER_BYTES + 8])
@pytest.mark.parametrize("number", range(6))
def test_F13_records_that_nobody_says_were_synced_end_at_the_first_that_is_not_whole(number, offset):
    tape = Tape(6, per_segment=4, is_synced=False)
    tape.damage(number, offset)
    assert walk_past_damage(tape) == (list(range(number)), [], tape.starts[number])


@pytest.mark.parametrize("offset", [0, 4, 8, 20, HEADER_BYTES - 1, HEADER_BYTES, HEADER_BYTES + 8])
@pytest.mark.parametrize("number", range(5))
def test_F21_damage_with_a_synced_record_behind_it_is_left_out_and_nothing_else(number, offset):
    tape = Tape(6, per_segment=4)
    tape.damage(number, offset)
    others = [each for each in range(6) if each != number]
    assert walk_past_damage(tape) == (others, [DamagedRange(tape.starts[number], tape.starts[number + 1])], tape.end)


def test_F21_damage_costs_no_record_of_the_same_turn():
    """One sync covers many records; that the damaged one was synced is only told by a record much later."""
    tape = Tape(9, is_synced=False)
    tape.parts[0][tape.starts[8] :] = record(tape.starts[8], b"payload 8", synced_position=tape.starts[8])
    tape.damage(2)
    found, noted, end = walk_past_damage(tape)
    assert found == [0, 1, 3, 4, 5, 6, 7, 8]
    assert noted == [DamagedRange(tape.starts[2], tape.starts[3])]
    assert end == tape.starts[8] + len(record(0, b"payload 8"))


def test_F21_several_damaged_parts_are_noted_each():
    tape = Tape(12, per_segment=5)
    for number in (0, 3, 4, 8):
        tape.damage(number)
    found, noted, _ = walk_past_damage(tape)
    assert found == [1, 2, 5, 6, 7, 9, 10, 11]
    assert [(tape.starts.index(one.start), tape.starts.index(one.end)) for one in noted] == [(0, 1), (3, 5), (8, 9)]


def test_F21_damage_before_what_a_checkpoint_vouches_for_is_damage():
    tape = Tape(6, is_synced=False)
    tape.damage(1)
    tape.damage(4)
    found, noted, end = walk_past_damage(tape, proven=tape.starts[3])
    assert found == [0, 2, 3]
    assert noted == [DamagedRange(tape.starts[1], tape.starts[2])]
    assert end == tape.starts[4], "the second one is behind it"


def test_F21_damage_up_to_what_a_checkpoint_vouches_for_goes_no_further():
    tape = Tape(3, is_synced=False)
    tape.damage(2)
    found, noted, end = walk_past_damage(tape, proven=tape.end)
    assert (found, noted, end) == ([0, 1], [DamagedRange(tape.starts[2], tape.end)], tape.end)


def test_a_walk_up_to_a_position_ends_there():
    tape = Tape(6, per_segment=2)
    for number in range(6):
        assert walk_past_damage(tape, end=tape.starts[number])[::2] == (list(range(number)), tape.starts[number])


def test_F21_a_segment_that_is_too_short_is_damage_if_later_ones_say_so():
    tape = Tape(6, per_segment=2, zeros=0)
    del tape.parts[1][-5:]
    found, noted, _ = walk_past_damage(tape)
    assert found == [0, 1, 2, 4, 5]
    assert noted == [DamagedRange(tape.starts[3], tape.starts[4])]


def test_F21_a_missing_segment_is_damage_if_later_ones_say_so():
    tape = Tape(6, per_segment=2, zeros=0)
    del tape.parts[1], tape.bases[1]
    found, noted, _ = walk_past_damage(tape)
    assert found == [0, 1, 4, 5]
    assert noted == [DamagedRange(tape.starts[2], tape.starts[4])]


def test_F14_a_new_segment_without_the_tail_of_the_one_before_proves_nothing():
    tape = Tape(6, per_segment=3, is_synced=False)
    tape.damage(2)
    assert walk_past_damage(tape) == ([0, 1], [], tape.starts[2])


def test_what_may_not_follow_is_not_accepted():
    tape = Tape(5, is_synced=False)
    walk = Walk(tape.segments(), 10_000, lambda position, header: position != tape.starts[3])
    assert [tape.number_of(found) for found in walk.records(0)] == [0, 1, 2]
    assert walk.stop.position == tape.starts[3]
    assert walk.stop.resume is None


def test_F21_bytes_that_look_like_a_record_inside_of_a_damaged_one_are_none():
    """Whoever sends a body can put into it what would be a record if it lay there on its own."""
    forged = record(HEADER_BYTES, b"forged", synced_position=1, term=9)
    outer = bytearray(record(0, forged + b"the rest"))
    outer += record(len(outer), b"next", synced_position=len(outer))
    outer[HEADER_BYTES + len(forged)] ^= 1
    walk = Walk([Segment(0, len(outer), Bytes(outer))], 10_000)
    found = list(walk.records_past_damage(0, None, 0, lambda damage: None))
    assert [bytes(one.payload) for one in found] == [b"next"]


def test_candidates_are_whole_records_wherever_they_begin():
    tape = Tape(5)
    tape.damage(3)
    (segment,) = tape.segments()
    assert [position for position, _ in candidates(segment, 1, segment.end)] == [tape.starts[n] for n in (1, 2, 4)]
    assert [position for position, _ in candidates(segment, tape.starts[1], tape.starts[2])] == [tape.starts[1]]


def test_candidates_are_found_across_the_borders_of_what_is_read_at_once():
    step = 1 << 20
    for begin in range(step - HEADER_BYTES - 20, step + 10, 7):
        data = bytearray(step * 2)
        data[0] = 1
        made = record(begin, b"payload")
        data[begin : begin + len(made)] = made
        found = [position for position, _ in candidates(Segment(0, len(data), Bytes(data)), 0, len(data))]
        assert found == [begin]
