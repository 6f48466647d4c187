"""One partition's index: found by index, time and position; filed, cut and dropped; never misled by damage (F22)."""

import errno
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fix_disk import DISKS, dump
from fix_storage import block
from lakemq.envelope import pack
from lakemq.message import BatchItem, BatchMessage, Message
from lakemq.record import stamp
from lakemq.storage import index as index_module
from lakemq.storage.index import (
    ENTRY_BYTES,
    NO_TAG,
    UNKNOWN_TAG,
    IndexDamagedError,
    PartitionIndex,
    make_entries,
    make_entries_python,
    tag_hash,
    unpack_entry,
)
from lakemq.storage.index_files import IndexFileCache
from lakemq.testing.disk import SimDisk

PER_FILE = 4
FULL = OSError(errno.ENOSPC, "planned")


@pytest.fixture(params=DISKS)
def disk(request, tmp_path):
    return DISKS[request.param](tmp_path)


def new_index(disk, per_file=PER_FILE):
    return PartitionIndex(IndexFileCache(disk, open_files_max=2), 3, 7, per_file)


def entries(first_index, position, counts=(1,), store_time_ms=0, gap_before=0):
    """Entries of one record: a message each, those that count more than one are batches."""
    made = block(*((b"x",) * count if count > 1 else b"x" for count in counts))
    after = stamp(made.data, 0, made.message_count, 7, first_index + gap_before, 1, store_time_ms)
    length = 76 + len(made.data)
    return make_entries(made.data, 0, made.message_count, position + 76, 76, length, store_time_ms), after, length


class Model:
    """An index and the list it should be."""

    def __init__(self, disk, per_file=PER_FILE):
        self.index = new_index(disk, per_file)
        self.entries = []
        self.end_position = 0

    def add(self, counts=(1,), store_time_ms=0, gap_before=0):
        data, after, length = entries(self.index.next_index, self.end_position, counts, store_time_ms, gap_before)
        self.index.add(data, after)
        self.entries += [unpack_entry(data, at) for at in range(0, len(data), ENTRY_BYTES)]
        self.end_position += length

    def flush(self, position=None):
        self.index.flush(self.end_position if position is None else position)

    def check(self):
        index = self.index
        assert index.entry_count == len(self.entries)
        assert [index.entry(ordinal) for ordinal in range(len(self.entries))] == self.entries
        for wanted in range(index.next_index + 2):
            expected = next(
                (nth for nth, entry in enumerate(self.entries) if entry.next_index > wanted), len(self.entries)
            )
            assert index.find(wanted) == expected, wanted
        for wanted in {0, 1, *(entry.position for entry in self.entries), self.end_position}:
            expected = sum(entry.position < wanted for entry in self.entries)
            assert index.find_position(wanted) == expected
        for wanted in {0, *(entry.store_time_ms + more for entry in self.entries for more in (0, 1))}:
            assert index.find_time(wanted) == sum(entry.store_time_ms < wanted for entry in self.entries)


def filled(disk, record_count, per_file=PER_FILE, flushed=True):
    model = Model(disk, per_file)
    for nth in range(record_count):
        model.add(store_time_ms=nth * 10)
    if flushed:
        model.flush()
    return model


# Entries.

ATTRIBUTES = st.one_of(
    st.just({}),
    st.dictionaries(st.sampled_from(["TAGS", "KEYS", "TAG", "XTAGS", "a=b", "TAGS "]), st.text(max_size=6), max_size=3),
)
MESSAGES = st.one_of(
    st.builds(Message, body=st.binary(max_size=40), attributes=ATTRIBUTES, flag=st.integers(-5, 5)),
    st.builds(
        BatchMessage,
        items=st.lists(st.builds(BatchItem, body=st.binary(max_size=9)), min_size=1, max_size=4).map(tuple),
        attributes=ATTRIBUTES,
    ),
)


@pytest.mark.skipif(index_module._hot is None, reason="there is no compiled twin")
@settings(max_examples=100, deadline=None)
@given(
    messages=st.lists(MESSAGES, min_size=1, max_size=6),
    before=st.binary(max_size=7),
    position=st.integers(0, 1 << 60),
    record_offset=st.integers(0, 1 << 30),
    record_length=st.integers(0, (1 << 31) - 1),
    store_time_ms=st.integers(0, 1 << 60),
    first_index=st.integers(0, 1 << 60),
)
def test_entries_and_their_compiled_twin_agree(
    messages, before, position, record_offset, record_length, store_time_ms, first_index
):
    data = bytearray(before + b"".join(map(pack, messages)))
    stamp(data, len(before), len(messages), 7, first_index, 1, 5)
    details = data, len(before), len(messages), position, record_offset, record_length, store_time_ms
    assert make_entries(*details) == make_entries_python(*details)


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        (b"", NO_TAG),
        (b"KEYS=a", NO_TAG),
        (b"KEYS=TAGS", UNKNOWN_TAG),
        (b"TAGS=a\\u0020b", UNKNOWN_TAG),
        (b"KEYS=\\=\nTAGS=a", UNKNOWN_TAG),
        (b"TAGS", UNKNOWN_TAG),
        (b"TAGS:a", UNKNOWN_TAG),
        (b" TAGS=a", UNKNOWN_TAG),
        (b"XTAGS=a", UNKNOWN_TAG),
    ],
)
def test_a_tag_that_cannot_be_told_without_parsing_is_said_to_be_unknown(attributes, expected):
    assert tag_hash(attributes) == expected


@pytest.mark.skipif(index_module._hot is None, reason="there is no compiled twin")
@pytest.mark.parametrize(
    "attributes",
    [b"", b"TAGS=", b"TAGS=a", b"a=b\nTAGS=a", b"a=b\nTAGS=a\nc=d", b"TAGS=a\nTAGS=b", b"KEYS=TAGS", b"TAGS", b"TAGS:a",
     b"a\\=b\nTAGS=a", b"\nTAGS=a", b"TAGS=a\n", b"TAG", b"S=TAG", b"TAGS=\xe2\x82\xac", b"TAGSTAGS=a", b"TATAGS=a"],
)  # fmt: skip
def test_the_hash_of_a_tag_is_the_same_in_the_compiled_twin(attributes):
    data = bytearray(pack(Message(body=b"b", attributes={"K": "v" * len(attributes)})))
    place = data.index(b"K=" + b"v" * len(attributes))
    data[place : place + 2 + len(attributes)] = (attributes + b"\n\n")[: 2 + len(attributes)]
    stamp(data, 0, 1, 7, 0, 1, 5)
    details = data, 0, 1, 0, 76, 500, 5
    assert make_entries(*details) == make_entries_python(*details)
    assert tag_hash(b"TAGS=a") == tag_hash(b"x=y\nTAGS=a\nz=1") != tag_hash(b"TAGS=b")


def test_a_batch_is_one_entry_with_its_count():
    data, after, length = entries(10, 1000, (1, 3, 1))
    first, second, third = (unpack_entry(data, at) for at in range(0, len(data), ENTRY_BYTES))
    assert after == 15
    assert [one.first_index for one in (first, second, third)] == [10, 11, 14]
    assert [one.index_count for one in (first, second, third)] == [1, 3, 1]
    assert [one.messages_after for one in (first, second, third)] == [2, 1, 0]
    assert {one.record_position for one in (first, second, third)} == {1000}
    assert {one.record_length for one in (first, second, third)} == {length}
    assert third.position + third.length == 1000 + length


def test_F22_a_flipped_bit_in_an_entry_is_found():
    data = bytearray(entries(10, 1000)[0])
    for bit in range(ENTRY_BYTES * 8):
        data[bit // 8] ^= 1 << bit % 8
        with pytest.raises(IndexDamagedError):
            unpack_entry(data, 0)
        data[bit // 8] ^= 1 << bit % 8


# Look-ups.


@settings(max_examples=60, deadline=None)
@given(
    records=st.lists(
        st.tuples(
            st.lists(st.sampled_from([1, 1, 1, 2, 9]), min_size=1, max_size=5),
            st.integers(0, 3),
            st.sampled_from([0] * 9 + [1, 4, 40]),
            st.booleans(),
        ),
        max_size=25,
    ),
    per_file=st.sampled_from([1, 3, 4, 50]),
)
def test_whatever_was_added_is_found_filed_or_not_and_gaps_lead_to_what_is_behind_them(records, per_file):
    model, now_ms = Model(SimDisk(), per_file), 0
    for counts, later_ms, gap_before, is_flushed in records:
        now_ms += later_ms
        model.add(tuple(counts), now_ms, gap_before)
        if is_flushed:
            model.flush()
    model.check()


def test_a_large_index_is_found_with_few_reads():
    disk = SimDisk()
    model = filled(disk, 2000, per_file=1000)
    for wanted in (0, 1, 999, 1000, 1777, 1999):
        disk.trace, reads = [], []
        disk.begin = lambda operation, *details, reads=reads: reads.append(operation)
        assert model.index.find(wanted) == wanted
        del disk.begin
        assert len(reads) <= 4, wanted


def test_an_empty_index_has_nothing(disk):
    index = new_index(disk)
    assert index.find(0) == index.find(5) == index.find_time(0) == index.find_position(0) == 0
    assert index.first_index_from(0) == 0
    assert index.reach() == (-1, 0)


# Filing.


def test_only_entries_of_synced_bytes_go_to_files(disk):
    model = filled(disk, 7, flushed=False)
    model.flush(model.entries[4].record_position)
    assert (model.index.filed_count, model.index.pending_bytes) == (4, 3 * ENTRY_BYTES)
    assert model.index.reach() == (0, 4)
    model.check()
    model.flush()
    assert disk.names("index/3/7") == [f"{first:020d}.index" for first in (0, 4)]
    model.check()


@pytest.mark.parametrize("after", range(6))
@pytest.mark.parametrize("operation", ["write", "create", "truncate"])
def test_F18_filing_that_was_refused_goes_on_where_it_ended(operation, after):
    disk = SimDisk()
    model = filled(disk, 3)
    for nth in range(14):
        model.add(store_time_ms=nth + 30)
    disk.fail(operation, FULL, path_contains="index/3/7/", after=after, wrote=50)
    for _ in range(2):
        try:
            model.flush()
        except OSError:
            model.check()
    assert model.index.pending_bytes == 0
    model.check()
    model.add(store_time_ms=99)
    model.check()


def test_F18_an_append_taken_back_after_a_filing_leaves_no_entry():
    model = filled(SimDisk(), 6, flushed=False)
    known = model.entries.copy(), model.end_position, model.index.next_index
    before = model.index.pending_bytes
    model.add((1, 2))
    model.flush(known[1])  # a sync ended while the turn was under way
    model.index.undo(before, known[2])
    model.entries, model.end_position = known[0], known[1]
    model.check()
    model.add(store_time_ms=99)
    model.check()


# Taking over an earlier run's files.


def taken_over(disk, model, *, per_file=PER_FILE, may_have_gaps=False, count=None):
    """A new index attached to what the model's says it has filed, or to the first `count` entries of that."""
    last_first, in_last = model.index.reach()
    next_index = model.index.next_index
    if count is not None:
        number, rest = divmod(count - 1, PER_FILE)
        last_first, in_last = model.entries[number * PER_FILE].first_index, rest + 1
        next_index = model.entries[count - 1].next_index
    index = new_index(disk, per_file)
    return index, index.attach(last_first, in_last, next_index, may_have_gaps=may_have_gaps)


@pytest.mark.parametrize("count", range(1, 11))
def test_files_are_taken_over_up_to_where_the_checkpoint_vouches_for_them(disk, count):
    model = filled(disk, 10)
    index, is_sound = taken_over(disk, model, count=count)
    assert is_sound
    assert index.next_index == index.visible_index == count
    model.index, model.entries = index, model.entries[:count]
    model.end_position = model.entries[-1].record_position + model.entries[-1].record_length
    model.check()
    assert disk.names("index/3/7") == [f"{first:020d}.index" for first in range(0, count, PER_FILE)]
    for _ in range(6):
        model.add((2,), 1000)
    model.flush()
    model.check()


def test_an_index_without_entries_is_sound(disk):
    index = new_index(disk)
    assert index.attach(-1, 0, 55, may_have_gaps=False)
    assert index.next_index == index.first_index_from(0) == 55


def shorten(disk, path):
    file = disk.open(path)
    file.truncate(file.size() - 1)


def blank(disk, path):
    file = disk.open(path)
    size = file.size()
    file.truncate(0)
    file.truncate(size)


def lengthen(disk, path):
    file = disk.open(path)
    file.write_at(file.size(), [entries(77, 9999)[0]])


@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize(
    "harm",
    [SimDisk.remove, shorten, blank, lambda disk, path: disk.flip_bits(path, Random(1), 1, 0, ENTRY_BYTES)],
    ids=["missing", "cut", "zeroed", "flipped"],
)
def test_F22_files_that_are_not_sound_are_not_taken_over(number, harm):
    disk = SimDisk()
    model = filled(disk, 10)
    harm(disk, f"index/3/7/{number * PER_FILE:020d}.index")
    if number == 0 and not disk.exists(f"index/3/7/{0:020d}.index"):
        index, is_sound = taken_over(disk, model)
        assert is_sound, "the oldest may have been dropped by retention"
        assert index.entry(0).first_index == PER_FILE
        return
    assert not taken_over(disk, model)[1]


@pytest.mark.parametrize("number", [0, 2])
def test_F22_a_file_that_is_too_long_gives_the_same_answers_or_is_not_sound(number):
    disk = SimDisk()
    model = filled(disk, 10)
    lengthen(disk, f"index/3/7/{number * PER_FILE:020d}.index")
    index, is_sound = taken_over(disk, model)
    if is_sound:
        model.index = index
        model.check()


@pytest.mark.parametrize("per_file", [1, 2, 3, 5, 8, 100])
@pytest.mark.parametrize("may_have_gaps", [False, True])
@pytest.mark.parametrize("record_count", [3, 4, 10])
def test_F22_files_of_another_size_are_not_taken_over_unless_they_fit(per_file, may_have_gaps, record_count):
    disk = SimDisk()
    model = filled(disk, record_count)
    index, is_sound = taken_over(disk, model, per_file=per_file, may_have_gaps=may_have_gaps)
    if is_sound:
        model.index = index
        model.check()


def test_F22_a_flipped_bit_gives_the_same_answer_or_none():
    """Never a wrong one: a message that was not asked for, or the claim that there is none."""
    disk = SimDisk()
    model = filled(disk, 10, per_file=100)
    index, node = model.index, disk.open(f"index/3/7/{0:020d}.index").node
    positions = [entry.position for entry in model.entries]
    questions = ((index.find, range(11)), (index.find_position, positions), (index.find_time, range(0, 100, 10)))
    for bit in range(0, 10 * ENTRY_BYTES * 8, 7):
        node.damage(bit // 8, 1 << bit % 8)
        for find, values in questions:
            for expected, value in enumerate(values):
                try:
                    assert find(value) == expected, bit
                except IndexDamagedError:
                    continue
        node.damage(bit // 8, 1 << bit % 8)


# The two ends.


@pytest.mark.parametrize("dropped", range(11))
def test_files_go_only_when_nothing_in_them_is_kept(disk, dropped):
    model = filled(disk, 10)
    position = model.entries[dropped].record_position if dropped < 10 else model.end_position
    model.index.drop_before(position)
    kept_files = min(dropped // PER_FILE, 2)
    assert disk.names("index/3/7") == [f"{first:020d}.index" for first in range(kept_files * PER_FILE, 10, PER_FILE)]
    index = model.index
    assert index.first_index_from(index.find_position(position)) == dropped


def test_a_cleared_index_has_no_files(disk):
    model = filled(disk, 10)
    model.add()
    model.index.clear()
    assert model.index.entry_count == 0
    assert {path for path, data in dump(disk).items() if data is not None} == set()


def test_open_files_are_capped_and_opened_again():
    disk = SimDisk()
    disk.make_dir("d")
    cache = IndexFileCache(disk, open_files_max=3)
    for nth in range(10):
        cache.open(f"d/{nth}", create=True).write_at(0, [b"%d" % nth])
        assert len(disk._open_files) <= 3
    assert [cache.open(f"d/{nth}").read_at(0, 9) for nth in range(10)] == [b"%d" % nth for nth in range(10)]
    cache.remove("d/9")
    assert "9" not in cache.names("d")
    cache.close()
    assert not disk._open_files
