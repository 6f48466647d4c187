"""The journal as bytes: segments end to end, one write a turn, syncs by ticket, and what a refused write leaves."""

import errno
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fix_disk import DISKS, dump, get
from fix_storage import segment_path
from lakemq.checksum import crc32
from lakemq.errors import DiskIOError, ReadError, ServiceUnavailableError, WriteError
from lakemq.storage import journal_record
from lakemq.storage.journal import Journal
from lakemq.storage.journal_record import (
    HEADER_BYTES,
    NO_ADDRESS,
    RecordHeader,
    RecordType,
    is_payload_whole,
    pack_header,
    unpack_header,
    whole_records_python,
)
from lakemq.testing.disk import SimDisk

SEGMENT_BYTES = 1000
FULL = OSError(errno.ENOSPC, "planned")
EIO = OSError(errno.EIO, "planned")


@pytest.fixture(params=DISKS)
def disk(request, tmp_path):
    disk = DISKS[request.param](tmp_path)
    disk.make_dir("journal")
    return disk


@pytest.fixture
def sim():
    disk = SimDisk()
    disk.make_dir("journal")
    disk.sync_all()
    return disk


def new_journal(disk, **options):
    journal = Journal(disk, segment_bytes=SEGMENT_BYTES, **options)
    journal.create(0)
    return journal


def put(journal, data, *, is_synced=False):
    """Append as the group does: roll where it does not fit, flush."""
    if not journal.fits(len(data)):
        journal.roll()
    position = journal.append((data[:1], data[1:]), len(data))
    journal.flush()
    if is_synced:
        sync(journal)
    return position


def sync(journal):
    ticket = journal.begin_sync()
    ticket.run()
    journal.end_sync(ticket)


def piece(number, size=300):
    return bytes([number]) * size


# Bytes in, bytes out.


@pytest.mark.parametrize("maps_files", [False, True])
def test_bytes_are_read_back_from_any_place_in_their_segment(disk, maps_files):
    journal = new_journal(disk, maps_files=maps_files)
    positions = [put(journal, piece(number)) for number in range(1, 8)]
    assert positions == [0, 300, 600, 900, 1200, 1500, 1800]
    assert journal.bases() == [0, 900, 1800]
    assert journal.read(290, 20) == bytes(journal.view(290, 20)) == b"\1" * 10 + b"\2" * 10
    assert journal.read(1790, 100) == b"\6" * 10  # a read ends with its segment
    assert journal.read(1800, 9999) == piece(7)
    ends = [journal.end_of_segment_at(at) for at in (0, 899, 900, 1799, 1800, 2100)]
    assert ends == [900, 900, 1800, 1800, journal.end_position, journal.end_position]


@pytest.mark.parametrize("maps_files", [False, True])
def test_what_is_not_in_the_journal_is_not_read(disk, maps_files):
    journal = new_journal(disk, maps_files=maps_files)
    put(journal, piece(1))
    journal.append((piece(2),), 300)
    for read in (journal.read, journal.view):
        with pytest.raises(ReadError):
            read(300, 1)
    journal.flush()
    assert journal.read(300, 1) == b"\2"


def test_a_turn_is_written_with_one_call(sim):
    journal = new_journal(sim)
    sim.trace = []
    for number in range(1, 4):
        journal.append((bytes([number]), b"-"), 2)
    assert sim.trace == []
    assert (journal.written_position, journal.end_position) == (0, 6)
    journal.flush()
    journal.flush()
    assert sim.trace == [("write", segment_path(0), (0, 6))]
    assert journal.written_position == 6


def test_discarded_bytes_were_never_there(disk):
    journal = new_journal(disk)
    put(journal, b"kept")
    journal.append((b"not kept",), 8)
    journal.discard()
    journal.flush()
    assert journal.end_position == 4
    assert put(journal, b"next") == 4
    assert journal.read(0, 99) == b"keptnext"


def test_a_segment_is_preallocated_and_gives_its_rest_back(sim):
    journal = new_journal(sim)
    assert len(get(sim, segment_path(0))) == SEGMENT_BYTES
    put(journal, piece(1, 700))
    put(journal, piece(2, 700))
    assert len(get(sim, segment_path(0))) == 700
    assert len(get(sim, segment_path(700))) == SEGMENT_BYTES


@pytest.mark.parametrize("cap", [1, 3])
def test_the_number_of_open_files_is_capped_whatever_is_done(cap):
    disk = SimDisk()
    disk.make_dir("journal")
    journal = new_journal(disk, open_files_max=cap)
    for number in range(30):
        put(journal, piece(number, 900), is_synced=True)
        assert len(disk._open_files) <= cap + 1, f"after {number} rolls"
    for number in range(30):
        assert journal.read(number * 900, 900) == piece(number, 900)
        assert len(disk._open_files) <= cap + 1
    journal.close()
    assert not disk._open_files


# Syncing.


def test_a_sync_covers_what_was_written_before_it_was_handed_out(sim):
    journal = new_journal(sim)
    put(journal, piece(1))
    ticket = journal.begin_sync()
    put(journal, piece(2))
    assert journal.begin_sync() is None, "one at a time"
    ticket.run()
    journal.end_sync(ticket)
    assert (journal.synced_position, journal.unsynced_bytes) == (300, 300)
    sync(journal)
    assert journal.synced_position == 600
    assert journal.begin_sync() is None, "nothing to do"


def test_a_new_segment_is_synced_with_its_name_and_after_the_one_before(sim):
    journal = new_journal(sim)
    put(journal, piece(1, 700))
    put(journal, piece(2, 700))
    sim.trace = []
    sync(journal)
    put(journal, piece(3, 100))
    sync(journal)
    assert [(operation, path) for operation, path, _ in sim.trace if operation != "write"] == [
        ("sync", segment_path(0)),
        ("sync", segment_path(700)),
        ("sync_dir", "journal"),
        ("sync", segment_path(700)),
    ]


@pytest.mark.parametrize("seed", range(30))
def test_F10_what_was_synced_survives_a_power_loss(sim, seed):
    rng, journal = Random(seed), new_journal(sim)
    for number in range(1, 12):
        put(journal, piece(number, rng.randrange(1, 500)), is_synced=rng.random() < 0.5)
    expected = [journal.read(base, 9999) for base in journal.bases()]
    synced, bases = journal.synced_position, journal.bases()
    sim.lose_power(rng)
    for base, data in zip(bases, expected, strict=True):
        size = min(len(data), synced - base)
        if size > 0:
            assert get(sim, segment_path(base))[:size] == data[:size]


def test_F15_a_failed_sync_is_final(sim):
    journal = new_journal(sim)
    put(journal, piece(1), is_synced=True)
    put(journal, piece(2))
    journal.append((piece(3),), 300)
    ticket = journal.begin_sync()
    sim.fail("sync", EIO)
    with pytest.raises(OSError, match="planned"):
        ticket.run()
    journal.end_sync(ticket, EIO)
    sim.trace = []
    for attempt in (
        lambda: journal.append((b"x",), 1),
        lambda: put(journal, b"x"),
        journal.roll,
        journal.check_writable,
    ):
        with pytest.raises(DiskIOError, match="planned"):
            attempt()
    assert journal.begin_sync() is None
    assert journal.synced_position == 300
    assert sim.trace == [], "nothing is written and nothing synced any more"
    assert journal.read(0, 600) == piece(1) + piece(2), "what is there can be read"


def test_F15_what_waited_to_be_written_when_the_sync_failed_is_refused_by_flush(sim):
    journal = new_journal(sim)
    put(journal, piece(1))
    ticket = journal.begin_sync()
    journal.append((piece(2),), 300)
    journal.end_sync(ticket, EIO)
    with pytest.raises(DiskIOError):
        journal.flush()
    assert journal.written_position == 300


# Refused writes.


@pytest.mark.parametrize("wrote", [0, 1, 299, 300, 450, 600])
def test_F18_a_refused_write_leaves_the_end_where_it_was_and_no_bytes(sim, wrote):
    journal = new_journal(sim)
    put(journal, piece(1), is_synced=True)
    journal.append((piece(2),), 300)
    journal.append((piece(3),), 300)
    sim.fail("write", FULL, wrote=wrote)
    with pytest.raises(WriteError):
        journal.flush()
    assert journal.end_position == journal.written_position == 300
    assert get(sim, segment_path(0))[300:] == bytes(700), "a kill here must not leave what was refused"
    assert put(journal, piece(4), is_synced=True) == 300
    assert get(sim, segment_path(0)) == piece(1) + piece(4) + bytes(400)


def test_F18_bytes_that_could_not_be_wiped_are_wiped_before_the_next_write(sim):
    journal = new_journal(sim)
    put(journal, piece(1), is_synced=True)
    sim.fail("write", FULL, wrote=300)
    sim.fail("truncate", FULL, times=3)  # at once, at the next write, and at once after that
    for _ in range(2):
        with pytest.raises(WriteError):
            put(journal, piece(2))
    assert get(sim, segment_path(0))[300:600] == piece(2)
    assert put(journal, piece(3, 10)) == 300
    assert get(sim, segment_path(0)) == piece(1) + piece(3, 10) + bytes(690)


def test_F18_a_write_refused_for_another_reason_ends_all_writing(sim):
    journal = new_journal(sim)
    sim.fail("write", EIO)
    with pytest.raises(DiskIOError):
        put(journal, piece(1))
    with pytest.raises(DiskIOError):
        put(journal, piece(1))
    assert journal.end_position == 0


@pytest.mark.parametrize("operation", ["create", "truncate", "preallocate"])
def test_F18_a_refused_roll_leaves_the_last_segment_as_it_is(sim, operation):
    journal = new_journal(sim)
    put(journal, piece(1, 600), is_synced=True)
    before = dump(sim)
    sim.fail(operation, FULL, path_contains="0600")
    with pytest.raises(WriteError):
        put(journal, piece(2, 600))
    assert dump(sim) == before
    assert journal.bases() == [0]
    assert put(journal, piece(3, 100)) == 600, "a smaller one still fits"
    assert put(journal, piece(4, 600)) == 700
    assert journal.bases() == [0, 700]


@pytest.mark.parametrize("seed", range(40))
def test_F18_what_is_synced_after_a_refused_roll_survives_a_power_loss(sim, seed):
    journal = new_journal(sim)
    put(journal, piece(1, 600), is_synced=True)
    sim.fail("preallocate", FULL)
    with pytest.raises(WriteError):
        put(journal, piece(2, 600))
    put(journal, piece(3, 100), is_synced=True)
    sim.lose_power(Random(seed))
    assert sim.names("journal") == [segment_path(0).removeprefix("journal/")], "no segment begins where a roll failed"


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE])
def test_F26_a_roll_refused_for_want_of_descriptors_is_not_the_end(sim, code):
    journal = new_journal(sim)
    put(journal, piece(1, 600), is_synced=True)
    sim.fail("open", OSError(code, "planned"), times=2)
    with pytest.raises(WriteError):
        put(journal, piece(2, 600))
    assert put(journal, piece(3, 600)) == 600


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE])
def test_F26_for_a_roll_the_files_of_older_segments_are_given_back(sim, code):
    journal = new_journal(sim, maps_files=True)
    for number in range(3):
        put(journal, piece(number, 600), is_synced=True)
        journal.view(600 * number, 100)
    assert len(sim.open_paths()) == 3
    sim.fail("open", OSError(code, "planned"))
    assert put(journal, piece(3, 600), is_synced=True) == 1800
    assert len(sim.open_paths()) == 2, "the last two, of which the older was to be synced"
    assert not journal._mapped
    assert journal.read(0, 100) == piece(0, 100), "it is opened again"


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.EAGAIN])
def test_F26_a_sync_that_could_not_be_begun_is_no_failed_sync(sim, code):
    journal = new_journal(sim)
    put(journal, piece(1, 600))
    put(journal, piece(2, 600))  # a second segment: its name is to be synced as well
    sim.fail("sync_dir", OSError(code, "planned"))
    ticket = journal.begin_sync()
    with pytest.raises(OSError, match="planned") as failure:
        ticket.run()
    journal.end_sync(ticket, failure.value)
    assert journal.failure is None
    assert journal.synced_position == 0, "nothing is promised"
    put(journal, piece(3, 100))
    sync(journal)
    assert journal.synced_position == 1300
    sim.lose_power(Random(1), mode="nothing")
    assert get(sim, segment_path(0))[:600] == piece(1, 600)
    assert get(sim, segment_path(600))[:700] == piece(2, 600) + piece(3, 100)


@pytest.mark.parametrize("error", [MemoryError(), OSError(errno.ENOMEM, "planned"), OSError(errno.EMFILE, "planned")])
def test_a_segment_that_cannot_be_mapped_is_read(sim, error):
    journal = new_journal(sim, maps_files=True)
    put(journal, piece(1, 600), is_synced=True)
    sim.fail("map", error, times=99)
    assert journal.view(0, 600) == piece(1, 600)
    sim.faults.clear()
    assert isinstance(journal.view(0, 600), memoryview), "mapped again, as soon as it can be"


@pytest.mark.parametrize("error", [MemoryError(), OSError(errno.ENOMEM, "planned"), OSError(errno.ENFILE, "planned")])
def test_bytes_that_cannot_be_read_for_want_of_memory_are_not_called_damaged(sim, error):
    journal = new_journal(sim)
    put(journal, piece(1, 600), is_synced=True)
    sim.fail("read", error)
    with pytest.raises(ServiceUnavailableError, match="short of memory or open files"):
        journal.read(0, 600)
    assert journal.read(0, 600) == piece(1, 600)


def test_F18_a_file_left_by_a_refused_roll_that_cannot_be_removed_ends_all_writing(sim):
    """What went on in the old segment would be hidden by it at the next start."""
    journal = new_journal(sim)
    put(journal, piece(1, 600), is_synced=True)
    sim.fail("preallocate", FULL)
    sim.fail("remove", EIO)
    with pytest.raises((WriteError, DiskIOError)):
        put(journal, piece(2, 600))
    with pytest.raises(DiskIOError):
        put(journal, piece(3, 100))


def test_F18_a_turn_that_needs_a_roll_is_not_written_if_there_is_none(sim):
    journal = new_journal(sim)
    put(journal, piece(1, 600), is_synced=True)
    journal.append((piece(2, 100),), 100)
    sim.fail("preallocate", FULL)
    with pytest.raises(WriteError):
        journal.roll()
    journal.discard()
    assert journal.end_position == 600
    assert get(sim, segment_path(0))[600:] == bytes(400)


def test_F18_a_roll_whose_turn_cannot_be_written_does_not_happen(sim):
    journal = new_journal(sim)
    put(journal, piece(1, 600), is_synced=True)
    journal.append((piece(2, 100),), 100)
    sim.fail("write", FULL, wrote=50)
    with pytest.raises(WriteError):
        journal.roll()
    assert journal.bases() == [0]
    assert sim.names("journal") == [segment_path(0).removeprefix("journal/")]
    assert put(journal, piece(3, 400)) == 600


# The two ends.


@pytest.mark.parametrize("maps_files", [False, True])
def test_F24_what_was_read_stays_when_its_segment_is_dropped(disk, maps_files):
    journal = new_journal(disk, maps_files=maps_files)
    for number in range(1, 8):
        put(journal, piece(number))
    seen = journal.view(100, 300)
    journal.drop_first()
    assert bytes(seen) == piece(1, 200) + piece(2, 100)
    assert journal.first_position == 900
    for read in (journal.read, journal.view):
        with pytest.raises(ReadError):
            read(100, 300)
    assert journal.read(900, 1) == b"\4"


def test_F17_bytes_that_the_disk_does_not_give_are_a_read_error(sim):
    journal = new_journal(sim)
    put(journal, piece(1))
    sim.fail("read", EIO)
    with pytest.raises(ReadError, match="planned"):
        journal.read(0, 10)
    assert journal.read(0, 10) == piece(1, 10)


# One record.

HEADERS = st.builds(
    RecordHeader,
    length=st.integers(HEADER_BYTES, (1 << 32) - 1),
    type=st.sampled_from(RecordType),
    partition=st.integers(-(1 << 15), (1 << 15) - 1),
    term=st.integers(0, (1 << 31) - 1),
    topic=st.integers(0, (1 << 31) - 1),
    message_count=st.integers(0, (1 << 31) - 1),
    first_index=st.integers(0, (1 << 63) - 1),
    index_count=st.integers(0, (1 << 31) - 1),
    store_time_ms=st.integers(0, (1 << 63) - 1),
    synced_position=st.integers(0, (1 << 63) - 1),
    client_address=st.binary(min_size=16, max_size=16),
    payload_crc=st.integers(0, (1 << 32) - 1),
)
POSITIONS = st.integers(0, (1 << 63) - 1)


@given(HEADERS, POSITIONS, st.binary(max_size=5))
def test_a_header_is_read_back_at_its_own_position_only(header, position, before):
    data = before + pack_header(header, position)
    assert unpack_header(data, len(before), position) == header
    assert unpack_header(data, len(before), position ^ 1) is None
    assert unpack_header(data[:-1], len(before), position) is None


@given(HEADERS, POSITIONS, st.integers(0, HEADER_BYTES * 8 - 1))
def test_F21_a_flipped_bit_anywhere_in_a_header_is_found(header, position, bit):
    data = bytearray(pack_header(header, position))
    data[bit // 8] ^= 1 << bit % 8
    assert unpack_header(data, 0, position) is None


def record(payload, position):
    size = HEADER_BYTES + len(payload)
    header = RecordHeader(size, RecordType.ACK, 0, 1, 0, 0, 0, 0, 5, 0, NO_ADDRESS, crc32(payload))
    return pack_header(header, position) + payload


@pytest.mark.skipif(journal_record._hot is None, reason="there is no compiled twin")
@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.binary(max_size=400), max_size=5),
    st.integers(0, 1 << 40),
    st.integers(0, 1 << 20),
    st.one_of(st.none(), st.integers(0, 1 << 20)),
)
def test_whole_records_and_its_twin_agree(payloads, position, cut, bit):
    data = bytearray()
    for payload in payloads:
        data += record(payload, position + len(data))
    if bit is not None and data:
        data[bit % (len(data) * 8) // 8] ^= 1 << bit % 8
    del data[len(data) - cut % (len(data) + 1) :]
    assert journal_record.whole_records(data, position) == whole_records_python(data, position)


def test_a_payload_is_whole_only_with_every_byte_of_it():
    data = record(b"payload", 5)
    header = unpack_header(data, 0, 5)
    assert is_payload_whole(header, data, 0)
    assert not is_payload_whole(header, data[:-1], 0)
    assert not is_payload_whole(header, data[:-1] + b"!", 0)
