"""Small state written whole: the newest copy that is whole is read, whatever happened while it was written."""

import errno
from random import Random

import pytest

from fix_disk import DISKS, dump, put
from lakemq.storage.state_file import read_state, write_state
from lakemq.testing.crash import MODES
from lakemq.testing.disk import PowerLost, SimDisk


@pytest.fixture(params=DISKS)
def disk(request, tmp_path):
    return DISKS[request.param](tmp_path)


def test_there_is_no_state_before_the_first(disk):
    assert read_state(disk, "state") is None


def test_the_newest_is_read_and_the_one_before_stays_beside_it(disk):
    for sequence, content in ((1, b"one"), (2, b""), (5, b"five" * 5000)):
        write_state(disk, "state", sequence, content)
        assert read_state(disk, "state") == (sequence, content)
    assert disk.names("") == ["state", "state.old"]
    disk.remove("state")
    assert read_state(disk, "state") == (2, b"")


def test_a_state_can_lie_in_a_directory(disk):
    disk.make_dir("d")
    write_state(disk, "d/state", 1, b"one")
    assert read_state(disk, "d/state") == (1, b"one")


def two_states():
    disk = SimDisk()
    write_state(disk, "state", 1, b"one")
    write_state(disk, "state", 2, b"two")
    return disk


@pytest.mark.parametrize("mode", [None, *MODES])
def test_F02_a_crash_at_any_operation_leaves_the_old_or_the_new_state(mode):
    for seed in range(4):
        for count in range(20):
            disk = two_states()
            disk.crash_points, disk.crash_after = 0, count
            try:
                write_state(disk, "state", 3, b"three")
            except PowerLost:
                if mode is None:
                    disk.lose_process()
                else:
                    disk.lose_power(Random(seed), mode=mode)
                assert read_state(disk, "state") in ((2, b"two"), (3, b"three"))
                write_state(disk, "state", 4, b"four")
                assert read_state(disk, "state") == (4, b"four")
                continue
            disk.lose_power(Random(seed), mode=mode or "nothing")
            assert read_state(disk, "state") == (3, b"three"), "what was written is durable"
            break
        else:
            pytest.fail("writing never ended")


def test_F23_a_flipped_bit_anywhere_leads_to_the_copy_before():
    disk = two_states()
    size = disk.open("state").size()
    for bit in range(size * 8):
        twin = disk.clone()
        twin.open("state").node.damage(bit // 8, 1 << bit % 8)
        assert read_state(twin, "state") == (1, b"one"), bit


def test_F23_a_cut_at_any_byte_leads_to_the_copy_before():
    disk = two_states()
    for size in range(disk.open("state").size()):
        twin = disk.clone()
        twin.open("state").truncate(size)
        assert read_state(twin, "state") == (1, b"one")


def test_F23_without_a_whole_copy_there_is_no_state():
    disk = two_states()
    for name in ("state", "state.old"):
        disk.flip_bits(name, Random(1), 1)
    assert read_state(disk, "state") is None
    write_state(disk, "state", 3, b"three")
    assert read_state(disk, "state") == (3, b"three")


def test_F23_an_old_copy_in_the_newest_ones_place_is_not_preferred(disk):
    for sequence in (1, 2, 3):
        write_state(disk, "state", sequence, b"%d" % sequence)
    old, new = dump(disk)["state.old"], dump(disk)["state"]
    put(disk, "state", old)
    put(disk, "state.old", new)
    assert read_state(disk, "state") == (3, b"3")


def test_R4_the_new_file_is_synced_before_it_gets_its_name_and_the_name_is_synced():
    disk = two_states()
    disk.trace = []
    write_state(disk, "state", 3, b"three")
    assert [(operation, path) for operation, path, _ in disk.trace] == [
        ("create", "state.new"),
        ("truncate", "state.new"),
        ("write", "state.new"),
        ("sync", "state.new"),
        ("rename", "state"),
        ("rename", "state.new"),
        ("sync_dir", ""),
    ]


@pytest.mark.parametrize("operation", ["create", "truncate", "write", "sync", "rename", "sync_dir"])
def test_F18_a_state_that_could_not_be_written_leaves_the_one_before(operation):
    disk = two_states()
    disk.fail(operation, OSError(errno.ENOSPC, "planned"))
    with pytest.raises(OSError, match="planned"):
        write_state(disk, "state", 3, b"three")
    assert read_state(disk, "state") in ((2, b"two"), (3, b"three"))
    write_state(disk, "state", 4, b"four")
    assert read_state(disk, "state") == (4, b"four")


@pytest.mark.parametrize("operation", ["open", "read"])
@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_for_want_of_files_or_memory_no_older_copy_is_taken_for_the_newest(code, operation):
    disk = SimDisk()
    for sequence in (1, 2):
        write_state(disk, "state", sequence, b"%d" % sequence)
    disk.fail(operation, OSError(code, "planned"))
    with pytest.raises(OSError, match="planned"):
        read_state(disk, "state")
    assert read_state(disk, "state") == (2, b"2")
