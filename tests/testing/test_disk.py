"""SimDisk: what it may forget, what it must keep, and how it fails."""

import errno
import gc
import itertools
import random

import pytest

from fix_disk import dump, get, put
from lakemq.storage.disk import DirectoryLockedError
from lakemq.testing.crash import MODES, SECTOR_BYTES
from lakemq.testing.disk import PowerLost, SimDisk

SEEDS = range(300)
EIO = OSError(errno.EIO, "planned")


def states(disk, mode, seeds=SEEDS):
    """What is on the disk after a power loss, once for each seed."""
    for seed in seeds:
        twin = disk.clone()
        twin.lose_power(random.Random(seed), mode=mode)
        yield dump(twin)


def contents(disk, mode, path="a"):
    """What is left of one file, in all seeds."""
    return {state.get(path) for state in states(disk, mode)}


def disk_with_file(data=b"", path="a"):
    disk = SimDisk()
    put(disk, path, data)
    return disk, disk.open(path)


# What was synced stays, what was not is one of few things.


class History:
    """One file's past: what each byte may be after a power loss, by the rules and in the simplest way."""

    def __init__(self):
        self.now, self.synced = b"", b""
        self.written, self.settled = set(), set()  # positions where a write, a sync has put bytes
        self.allowed = {}  # position → values that unsynced operations gave it; None for any
        self.size_min = self.size_max = 0

    def write(self, position, data):
        self.now = self.now.ljust(position, b"\0")
        self.now = self.now[:position] + data + self.now[position + len(data) :]
        for at, byte in enumerate(data, position):
            self.allowed.setdefault(at, set()).add(byte if at in self.settled else None)
        self.written.update(range(position, position + len(data)))
        self.size_max = max(self.size_max, len(self.now))

    def truncate(self, size):
        for at in range(size, len(self.now)):
            self.allowed.setdefault(at, set()).add(0)
        self.now = self.now[:size].ljust(size, b"\0")
        self.written = {at for at in self.written if at < size}
        self.size_min, self.size_max = min(self.size_min, size), max(self.size_max, size)

    def preallocate(self, size):
        self.now = self.now.ljust(size, b"\0")
        self.size_max = max(self.size_max, size)

    def sync(self):
        self.synced, self.settled, self.allowed = self.now, self.written.copy(), {}
        self.size_min = self.size_max = len(self.now)

    def check(self, left):
        assert self.size_min <= len(left) <= self.size_max
        for at, byte in enumerate(left):
            before = self.synced[at] if at < len(self.synced) else 0
            assert byte == before or not self.allowed.get(at, {0}).isdisjoint({byte, None}), f"byte {at}"


def live_at_random(disk, rng):
    """A file with a random past; its history."""
    file, history = disk.open("a", create=True), History()
    disk.sync_dir("")
    for _ in range(rng.randint(1, 12)):
        match rng.choice(["write", "write", "write", "truncate", "preallocate", "sync"]):
            case "write":
                position, data = rng.randint(0, 600), rng.randbytes(rng.choice([1, 5, 300]))
                file.write_at(position, [data])
                history.write(position, data)
            case "sync":
                file.sync()
                history.sync()
            case verb:
                size = rng.randint(0, 800)
                getattr(file, verb)(size)
                getattr(history, verb)(size)
    return history


@pytest.mark.parametrize("mode", MODES)
def test_each_byte_left_was_synced_or_could_be_there(mode):
    for seed in SEEDS:
        rng, disk = random.Random(seed), SimDisk()
        history = live_at_random(disk, rng)
        assert get(disk, "a") == history.now
        disk.lose_power(rng, mode=mode)
        try:
            history.check(get(disk, "a"))
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from None


@pytest.mark.parametrize("mode", MODES)
def test_what_was_synced_survives(mode):
    disk, file = disk_with_file(b"synced, ")
    file.write_at(8, [b"too"])
    file.sync()
    file.write_at(11, [b" and this not"])
    for state in states(disk, mode):
        assert state["a"].startswith(b"synced, too")


@pytest.mark.parametrize("mode", MODES)
def test_synced_bytes_in_a_preallocated_file_are_never_touched(mode):
    disk, file = disk_with_file()
    file.preallocate(5000)
    file.write_at(0, [b"first"])
    file.sync()
    file.write_at(5, [b"second"])
    for state in states(disk, mode):
        assert len(state["a"]) == 5000
        assert state["a"].startswith(b"first")
        assert not any(state["a"][11:])


@pytest.mark.parametrize("mode", MODES)
def test_the_same_seed_leaves_the_same_disk(mode):
    def run():
        rng, disk = random.Random(7), SimDisk()
        for name in ("x", "y", "z"):
            disk.make_dir(name)
            for _ in range(5):
                put(disk, f"{name}/{rng.randint(0, 9)}", rng.randbytes(2000), is_synced=rng.random() < 0.3)
        disk.lose_power(rng, mode=mode)
        return dump(disk), rng.random()

    assert run() == run()


def test_an_unknown_mode_is_refused():
    with pytest.raises(ValueError, match="sideways"):
        SimDisk().lose_power(random.Random(0), mode="sideways")


# Each mode does what its name says.


def three_writes():
    disk, file = disk_with_file(b"--")
    for position, data in ((2, b"AA"), (4, b"BB"), (6, b"CC")):
        file.write_at(position, [data])
    return disk


def test_nothing_leaves_what_was_synced():
    assert contents(three_writes(), "nothing") == {b"--"}


def test_everything_leaves_what_was_written():
    assert contents(three_writes(), "everything") == {b"--AABBCC"}


def test_prefix_leaves_the_first_writes():
    assert contents(three_writes(), "prefix") == {b"--", b"--AA", b"--AABB", b"--AABBCC"}


def test_F14_subset_leaves_a_later_write_without_an_earlier_one():
    left = contents(three_writes(), "subset")
    assert len(left) == 8
    assert b"--\0\0\0\0CC" in left


def test_F13_torn_cuts_the_last_write_at_any_byte():
    disk, file = disk_with_file(b"--")
    file.write_at(2, [b"AAAA"])
    file.write_at(6, [b"BBBB"])
    left = contents(disk, "torn")
    assert left == {b"--A", b"--AA", b"--AAA", b"--AAAAB", b"--AAAABB", b"--AAAABBB"}


def test_F13_sectors_survive_one_by_one():
    disk, file = disk_with_file(b"x" * 100)
    file.write_at(100, [b"y" * 1948])
    left = contents(disk, "sectors")
    borders = [100, 512, 1024, 1536, 2048]
    patterns = set()
    for data in left:
        assert data[:100] == b"x" * 100
        sectors = [data[start:end] for start, end in itertools.pairwise(borders)]
        assert all(len(set(sector)) <= 1 for sector in sectors)  # SECTOR_BYTES is the grain
        patterns.add(tuple(sector[:1] for sector in sectors))
    assert SECTOR_BYTES == 512
    assert (b"\0", b"\0", b"\0", b"y") in patterns
    assert (b"y", b"", b"", b"") in patterns
    assert (b"\0", b"\0", b"\0", b"\0") in patterns


def test_F13_zero_tail_leaves_the_length_without_the_bytes():
    assert contents(three_writes(), "zero_tail") == {b"--\0\0\0\0\0\0", b"--AA\0\0\0\0", b"--AABB\0\0"}


def test_F13_garbage_tail_leaves_bytes_nobody_wrote_there():
    left = contents(three_writes(), "garbage_tail")
    assert all(len(data) == 8 and data.startswith(b"--") for data in left)
    assert all(data[6:] != b"CC" for data in left)
    assert {data[2:4] == b"AA" for data in left} == {True, False}
    assert any(data[6:] == b"--" for data in left), "bytes of elsewhere in the file are rubbish, too"


def test_garbage_tail_leaves_overwritten_bytes_old_or_new():
    disk, file = disk_with_file(b"old!")
    file.write_at(2, [b"NEWER"])
    assert {data[:4] for data in contents(disk, "garbage_tail")} == {b"old!"}


def test_garbage_tail_may_fill_what_was_cut_off():
    disk, file = disk_with_file(b"0123456789")
    file.truncate(4)
    file.preallocate(10)
    file.sync()
    file.write_at(4, [b"abcdef"])
    left = contents(disk, "garbage_tail")
    assert all(data.startswith(b"0123") for data in left)
    assert any(set(data[4:]) - set(b"0123\0") for data in left)


def test_mixed_draws_all_of_them():
    disk, file = disk_with_file(b"--")
    file.write_at(2, [b"A" * 600])
    file.write_at(602, [b"B" * 600])
    left = contents(disk, "mixed")
    assert {b"--", b"--" + b"A" * 600 + b"B" * 600, b"--" + b"A" * 600, b"--" + bytes(1200)} <= left
    assert b"--" + bytes(600) + b"B" * 600 in left
    assert any(len(data) % 600 not in (2, 510) for data in left), "torn"
    assert any(set(data) - set(b"--AB\0") for data in left), "garbage"


def test_mixed_gives_each_file_its_own_fate():
    disk = SimDisk()
    for name in ("a", "b"):
        put(disk, name, b"")
        disk.open(name).write_at(0, [b"xxxx"])
    fates = {(state["a"], state["b"]) for state in states(disk, "mixed")}
    assert {(b"", b""), (b"", b"xxxx"), (b"xxxx", b"")} <= fates
    assert any(torn == b"xx" and set(garbage) - set(b"x\0") for torn, garbage in fates)


def test_a_truncation_is_undone_or_kept():
    disk, file = disk_with_file(b"0123456789")
    file.truncate(4)
    assert contents(disk, "prefix") == {b"0123456789", b"0123"}
    file.sync()
    assert contents(disk, "nothing") == {b"0123"}


def test_a_preallocation_is_undone_or_kept():
    disk, file = disk_with_file(b"01")
    file.preallocate(4)
    assert contents(disk, "prefix") == {b"01", b"01\0\0"}
    assert contents(disk, "nothing") == {b"01"}


# Names.


def test_a_synced_file_without_a_synced_name_may_be_gone():
    disk = SimDisk()
    file = disk.open("a", create=True)
    file.write_at(0, [b"data"])
    file.sync()
    assert contents(disk, "mixed") == {None, b"data"}
    assert contents(disk, "nothing") == {None}
    assert contents(disk, "everything") == {b"data"}
    disk.sync_dir("")
    assert contents(disk, "mixed") == {b"data"}


def test_names_survive_in_the_order_in_which_they_were_made():
    disk = SimDisk()
    for name in ("c", "a", "b"):
        disk.open(name, create=True).close()
    left = {"".join(state) for state in states(disk, "prefix")}
    assert left == {"", "c", "ac", "abc"}


def test_directories_lose_their_names_independently():
    disk = SimDisk()
    disk.make_dir("d")
    disk.make_dir("e")
    disk.sync_dir("")
    disk.open("d/first", create=True).close()
    disk.open("e/second", create=True).close()
    left = [state for state in states(disk, "prefix") if "e/second" in state and "d/first" not in state]
    assert left


def test_a_removed_file_may_come_back_until_its_directory_is_synced():
    disk, _ = disk_with_file(b"data")
    disk.remove("a")
    assert contents(disk, "mixed") == {None, b"data"}
    disk.sync_dir("")
    assert contents(disk, "mixed") == {None}


@pytest.mark.parametrize("mode", MODES)
def test_a_replaced_file_is_the_old_or_the_new_one(mode):
    disk, _ = disk_with_file(b"old", "state")
    put(disk, "temp", b"new")
    disk.rename("temp", "state")
    for state in states(disk, mode):
        assert state in ({"state": b"old", "temp": b"new"}, {"state": b"new"})
    disk.sync_dir("")
    assert contents(disk, mode, "state") == {b"new"}


def test_a_file_renamed_before_its_sync_may_be_empty():
    disk, _ = disk_with_file(b"old", "state")
    put(disk, "temp", b"new", is_synced=False)
    disk.rename("temp", "state")
    disk.sync_dir("")
    assert b"" in contents(disk, "mixed", "state")


@pytest.mark.parametrize("mode", MODES)
def test_a_file_moved_to_another_directory_is_in_one_of_them(mode):
    disk = SimDisk()
    disk.make_dir("d/e")
    disk.sync_dir("")
    disk.sync_dir("d")
    put(disk, "d/e/a", b"data")
    disk.make_dir("quarantine/deep")
    disk.rename("d/e/a", "quarantine/deep/a")
    disk.remove("d/e")
    for state in states(disk, mode):
        assert [data for data in state.values() if data is not None] == [b"data"]


@pytest.mark.parametrize("synced", ["d", "quarantine", ""])
def test_a_sync_of_either_directory_brings_the_whole_move(synced):
    disk = SimDisk()
    disk.make_dir("d")
    disk.sync_dir("")
    put(disk, "d/a", b"data")
    disk.make_dir("quarantine")
    disk.rename("d/a", "quarantine/a")
    disk.sync_dir(synced)
    files = {tuple(path for path in state if path.endswith("/a")) for state in states(disk, "mixed")}
    assert files == ({("quarantine/a",)} if synced else {("quarantine/a",), ("d/a",)})


@pytest.mark.parametrize("mode", MODES)
def test_a_sync_brings_what_happened_before_in_the_other_directory(mode):
    disk = SimDisk()
    disk.make_dir("d")
    disk.make_dir("e")
    disk.sync_dir("")
    put(disk, "d/a", b"new")
    put(disk, "e/a", b"old")
    disk.rename("e/a", "e/b")
    disk.rename("d/a", "e/a")
    disk.sync_dir("d")
    for state in states(disk, mode):
        assert state == {"d": None, "e": None, "e/a": b"new", "e/b": b"old"}


def test_what_is_in_an_unsynced_directory_may_go_with_it():
    disk = SimDisk()
    disk.make_dir("d")
    put(disk, "d/a", b"data")
    left = {tuple(state) for state in states(disk, "mixed")}
    assert left == {(), ("d", "d/a")}


# The program's end.


def test_a_handle_from_before_the_power_loss_is_dead():
    disk, file = disk_with_file(b"data")
    view = file.map()
    disk.lose_power(random.Random(0))
    for use in (file.size, file.map, file.sync, lambda: file.read_at(0, 1), lambda: file.write_at(0, [b"x"])):
        with pytest.raises(PowerLost):
            use()
    file.close()
    disk.open("a").write_at(0, [b"next"])
    assert view == b"data"
    assert get(disk, "a") == b"next"


def test_locks_vanish_with_the_power():
    disk = SimDisk()
    before = disk.lock("lock")
    disk.lose_power(random.Random(0), mode="everything")
    after = disk.lock("lock")
    before.release()
    with pytest.raises(DirectoryLockedError):
        disk.lock("lock")
    after.release()


def test_F01_a_killed_program_leaves_everything_but_no_more_durable():
    disk, file = disk_with_file(b"--")
    file.write_at(2, [b"AA"])
    disk.lock("lock")
    disk.lose_process()
    with pytest.raises(PowerLost):
        file.size()
    disk.lock("lock")
    assert get(disk, "a") == b"--AA"
    assert contents(disk, "nothing") == {b"--"}


def test_a_clone_goes_its_own_way():
    disk, file = disk_with_file(b"--")
    view = file.map()
    file.write_at(2, [b"A"])
    disk.open("new", create=True).close()
    disk.lock("lock")
    twin = disk.clone()
    twin.lock("lock")
    twin.open("a").write_at(0, [b"twin"])
    twin.remove("new")
    file.write_at(3, [b"B"])
    assert dump(disk) == {"a": b"--AB", "lock": b"", "new": b""}
    assert dump(twin) == {"a": b"twin", "lock": b""}
    assert view == b"--"
    assert contents(twin, "nothing") == contents(disk, "nothing") == {b"--"}
    assert contents(twin, "everything") == {b"twin"}


def save(disk, data, *, syncs_file=True, syncs_directory=True):
    """A small program: replace a state file."""
    file = disk.open("state.new", create=True)
    file.truncate(0)
    file.write_at(0, [data])
    if syncs_file:
        file.sync()
    file.close()
    disk.rename("state.new", "state")
    if syncs_directory:
        disk.sync_dir("")


def broken_promises(**forgotten):
    """Crash `save` before each of its operations and after the last; report what a reader finds that should not be."""
    base = SimDisk()
    put(base, "state", b"old state")
    whole = base.clone()
    save(whole, b"new state", **forgotten)
    found = set()
    for crash_after in range(whole.crash_points + 1):
        for mode in MODES:
            for seed in range(10):
                disk, is_saved = base.clone(), False
                disk.crash_after = crash_after
                try:
                    save(disk, b"new state", **forgotten)
                    is_saved = True
                except PowerLost:
                    assert crash_after < whole.crash_points
                disk.lose_power(random.Random(seed), mode=mode)
                state = get(disk, "state")
                if state not in ((b"new state",) if is_saved else (b"old state", b"new state")):
                    found.add(state)
    return found


def test_F02_a_crash_at_every_operation_leaves_a_careful_program_unharmed():
    assert broken_promises() == set()


def test_a_forgotten_sync_is_caught_by_the_sweep():
    assert b"" in broken_promises(syncs_file=False)
    assert broken_promises(syncs_directory=False) == {b"old state"}


def test_the_disk_stays_off_until_the_next_start():
    disk, file = disk_with_file(b"data")
    disk.crash_after = disk.crash_points + 1
    file.write_at(0, [b"d"])
    assert file.read_at(0, 4) == b"data"  # reading is no crash point
    for _ in range(2):
        with pytest.raises(PowerLost):
            file.sync()
        with pytest.raises(PowerLost):
            disk.names("")
    file.close()
    disk.lose_power(random.Random(0))
    assert (disk.crash_points, disk.crash_after) == (0, None)
    assert get(disk, "a") == b"data"


def test_power_loss_passes_handlers_of_exceptions():
    assert not issubclass(PowerLost, Exception)


# Faults.


def test_F16_a_failed_sync_drops_bytes_and_a_second_one_lies():
    disk, file = disk_with_file(b"--")
    file.write_at(2, [b"AA"])
    disk.fail("sync", EIO)
    with pytest.raises(OSError, match="planned"):
        file.sync()
    file.sync()
    assert file.read_at(0, 9) == b"--AA"
    for mode in MODES:
        assert contents(disk, mode) == {b"--\0\0"}  # the length arrived, the bytes never will
    file.write_at(4, [b"BB"])
    file.sync()
    assert contents(disk, "nothing") == {b"--\0\0BB"}


def test_a_failed_sync_may_have_done_a_part():
    disk, file = disk_with_file(b"--")
    file.write_at(2, [b"AA"])
    file.write_at(4, [b"BB"])
    disk.fail("sync", EIO, wrote=1)
    with pytest.raises(OSError):
        file.sync()
    assert contents(disk, "prefix") == {b"--AA", b"--AA\0\0"}


def test_F18_a_failed_write_may_have_written_a_part():
    disk, file = disk_with_file(b"--")
    disk.fail("write", OSError(errno.ENOSPC, "planned"), wrote=3)
    disk.fail("write", EIO, after=1)
    for _ in range(2):
        with pytest.raises(OSError):
            file.write_at(2, [b"AA", b"BB"])
    assert file.read_at(0, 9) == b"--AAB"
    assert file.write_at(2, [b"CC"]) == 2


@pytest.mark.parametrize(
    ("operation", "act"),
    [
        ("write", lambda disk: disk.open("a").write_at(0, [b"x"])),
        ("sync", lambda disk: disk.open("a").sync()),
        ("sync_dir", lambda disk: disk.sync_dir("")),
        ("read", lambda disk: disk.open("a").read_at(0, 1)),
        ("create", lambda disk: disk.open("b", create=True)),
        ("create", lambda disk: disk.make_dir("d")),
        ("create", lambda disk: disk.lock("lock")),
        ("rename", lambda disk: disk.rename("a", "b")),
        ("remove", lambda disk: disk.remove("a")),
        ("preallocate", lambda disk: disk.open("a").preallocate(99)),
        ("truncate", lambda disk: disk.open("a").truncate(1)),
    ],
)
def test_every_operation_can_fail_without_effect(operation, act):
    disk, _ = disk_with_file(b"data")
    disk.fail(operation, EIO)
    with pytest.raises(OSError) as caught:
        act(disk)
    assert caught.value is EIO
    assert dump(disk) == {"a": b"data"}
    act(disk)


def test_a_fault_is_aimed_by_count_and_path():
    disk = SimDisk()
    disk.fail("write", EIO, after=2, path_contains="index/", times=2)
    disk.make_dir("index")
    outcomes = {}
    for path in ("journal", "index/0"):
        file = disk.open(path, create=True)
        for number in range(6):
            try:
                file.write_at(number, [b"x"])
                outcomes.setdefault(path, []).append(True)
            except OSError:
                outcomes.setdefault(path, []).append(False)
    assert outcomes == {"journal": [True] * 6, "index/0": [True, True, False, False, True, True]}


def test_clearing_the_faults_heals_the_disk():
    disk, file = disk_with_file(b"data")
    disk.fail("read", EIO, times=1000)
    with pytest.raises(OSError):
        file.read_at(0, 1)
    disk.faults.clear()
    assert file.read_at(0, 1) == b"d"


def test_a_fault_of_no_operation_is_refused():
    with pytest.raises(ValueError, match="fsync"):
        SimDisk().fail("fsync", EIO)


# Space.


def test_F18_a_full_disk_takes_what_fits():
    disk = SimDisk(capacity_bytes=10)
    file = disk.open("a", create=True)
    file.write_at(0, [b"12345678"])
    with pytest.raises(OSError) as caught:
        file.write_at(8, [b"abc", b"d"])
    assert caught.value.errno == errno.ENOSPC
    assert file.read_at(0, 99) == b"12345678ab"
    assert disk.free_bytes() == 0
    file.write_at(0, [b"0123456789"])  # no new space, no error
    other = disk.open("b", create=True)
    with pytest.raises(OSError):
        other.write_at(0, [b"x"])
    disk.capacity_bytes = 11
    other.write_at(0, [b"x"])


def test_F18_preallocated_space_is_reserved():
    disk = SimDisk(capacity_bytes=100)
    file = disk.open("a", create=True)
    file.preallocate(90)
    with pytest.raises(OSError) as caught:
        disk.open("b", create=True).preallocate(20)
    assert caught.value.errno == errno.ENOSPC
    assert disk.open("b").size() == 10
    file.write_at(80, [bytes(10)])


def test_space_of_a_removed_file_is_free_once_nobody_has_it_open():
    disk = SimDisk(capacity_bytes=100)
    put(disk, "a", bytes(60))
    file = disk.open("a")
    disk.remove("a")
    assert disk.free_bytes() == 40
    file.close()
    assert disk.free_bytes() == 100


def test_a_preallocated_gigabyte_costs_nothing():
    disk = SimDisk()
    put(disk, "a", b"")
    file = disk.open("a")
    file.preallocate(1 << 30)
    file.write_at(1 << 29, [b"middle"])
    file.sync()
    view = file.map()
    assert view[(1 << 29) : (1 << 29) + 6] == b"middle"
    file.write_at((1 << 30) - 3, [b"end"])
    assert view[-3:] == b"end"
    for mode in MODES:
        twin = disk.clone()
        twin.lose_power(random.Random(0), mode=mode)
        assert twin.open("a").size() == 1 << 30
        assert twin.open("a").read_at(1 << 29, 6) == b"middle"
    assert len(file.node.seen.pages) == 2


def test_a_view_that_nobody_holds_is_let_go():
    _, file = disk_with_file(b"data")
    views = [file.map() for _ in range(3)]
    del views
    gc.collect()
    kept = file.map()
    assert len(file.node._views) == 1
    assert kept == b"data"


# Damage and trace.


def test_F21_flipped_bits_are_seen_and_durable():
    data = bytes(range(256)) * 20
    disk, file = disk_with_file(data)
    view = file.map()
    places = disk.flip_bits("a", random.Random(3), 5, start=4000, end=4200)
    damaged = get(disk, "a")
    assert [at for at in range(len(data)) if damaged[at] != data[at]] == places
    assert sum((damaged[at] ^ data[at]).bit_count() for at in places) == 5
    assert all(4000 <= at < 4200 for at in places)
    assert view == damaged
    assert contents(disk, "nothing") == {damaged}
    with pytest.raises(FileNotFoundError):
        disk.flip_bits("missing", random.Random(3), 1)


def test_the_trace_shows_the_order_of_writes_and_syncs():
    disk = SimDisk()
    disk.open("state.new", create=True).close()
    disk.trace = []
    disk.fail("sync", EIO)
    with pytest.raises(OSError):
        save(disk, b"data")
    save(disk, b"data")
    disk.open("state").preallocate(9)
    disk.open("state").read_at(0, 1)
    disk.remove("state")
    assert disk.trace == [
        ("truncate", "state.new", (0,)),
        ("write", "state.new", (0, 4)),
        ("truncate", "state.new", (0,)),
        ("write", "state.new", (0, 4)),
        ("sync", "state.new", ()),
        ("rename", "state.new", ("state",)),
        ("sync_dir", "", ()),
        ("preallocate", "state", (9,)),
        ("read", "state", ()),
        ("remove", "state", ()),
    ]
