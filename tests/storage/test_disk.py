"""What every Disk does, asked of the real and the simulated one in the same words."""

import errno
import functools
import itertools
import os
import subprocess
import sys
import tempfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fix_disk import DISKS, dump, get, put
from lakemq.storage.disk import DirectoryLockedError
from lakemq.testing.disk import SimDisk
from lakemq.world import disk as world_disk
from lakemq.world.disk import RealDisk


@pytest.fixture(params=DISKS)
def disk(request, tmp_path):
    return DISKS[request.param](tmp_path)


def test_a_missing_file_is_opened_only_if_it_may_be_created(disk):
    with pytest.raises(FileNotFoundError):
        disk.open("a")
    assert not disk.exists("a")
    disk.open("a", create=True).close()
    assert disk.open("a").size() == 0


def test_opening_to_create_keeps_what_is_there(disk):
    put(disk, "a", b"old")
    assert disk.open("a", create=True).read_at(0, 9) == b"old"


def test_a_directory_is_not_opened_as_a_file(disk):
    disk.make_dir("d")
    for create in (False, True):
        with pytest.raises(IsADirectoryError):
            disk.open("d", create=create)


def test_buffers_are_written_end_to_end(disk):
    file = disk.open("a", create=True)
    assert file.write_at(0, [b"one ", b"", bytearray(b"two "), memoryview(b"-three-")[1:-1]]) == 13
    assert file.read_at(0, 100) == b"one two three"
    assert file.size() == 13


def test_no_buffers_and_no_bytes_are_fine(disk):
    file = disk.open("a", create=True)
    assert file.write_at(0, []) == 0
    assert file.write_at(50, [b"", b""]) == 0
    assert file.size() == 0


def test_more_buffers_than_one_system_call_takes(disk):
    buffers = [bytes([number % 251]) * (number % 7) for number in range(3000)]
    file = disk.open("a", create=True)
    assert file.write_at(5, buffers) == sum(map(len, buffers))
    assert file.read_at(5, 100_000) == b"".join(buffers)


def test_a_write_in_the_middle_leaves_the_rest(disk):
    put(disk, "a", b"0123456789")
    disk.open("a").write_at(3, [b"ab", b"c"])
    assert get(disk, "a") == b"012abc6789"


def test_a_gap_reads_as_zeros(disk):
    file = disk.open("a", create=True)
    file.write_at(9000, [b"x"])
    assert file.read_at(0, 10_000) == bytes(9000) + b"x"


def test_a_read_is_short_only_at_the_end(disk):
    put(disk, "a", bytes(range(100)))
    file = disk.open("a")
    assert file.read_at(90, 10) == bytes(range(90, 100))
    assert file.read_at(95, 10) == bytes(range(95, 100))
    assert file.read_at(100, 10) == file.read_at(500, 10) == file.read_at(5, 0) == b""


def test_two_handles_see_one_file(disk):
    first, second = disk.open("a", create=True), disk.open("a")
    first.write_at(0, [b"hello"])
    second.close()
    assert disk.open("a").read_at(0, 5) == b"hello"


@pytest.mark.parametrize("size", [1, 4095, 4096, 4097, 20_000])
def test_preallocated_bytes_are_zeros(disk, size):
    file = disk.open("a", create=True)
    file.preallocate(size)
    assert file.size() == size
    assert file.read_at(0, size) == bytes(size)


def test_a_preallocation_takes_nothing_away(disk):
    put(disk, "a", b"0123456789")
    file = disk.open("a")
    for size in (0, 4, 10, 12):
        file.preallocate(size)
    assert file.read_at(0, 99) == b"0123456789\0\0"


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 4097, 8192, 9999])
def test_bytes_cut_off_do_not_come_back(disk, size):
    put(disk, "a", b"x" * 10_000)
    file = disk.open("a")
    file.truncate(size)
    assert file.size() == size
    file.preallocate(12_000)
    assert file.read_at(0, 12_000) == b"x" * size + bytes(12_000 - size)


def test_a_truncation_can_make_a_file_longer(disk):
    put(disk, "a", b"abc")
    disk.open("a").truncate(5)
    assert get(disk, "a") == b"abc\0\0"


def test_a_view_shows_the_file_and_cannot_change_it(disk):
    data = bytes(range(256)) * 40
    put(disk, "a", data)
    view = disk.open("a").map()
    assert view == data
    assert view.readonly
    assert (view.format, view.itemsize, view.contiguous) == ("B", 1, True)


def test_a_view_of_an_empty_file_is_empty(disk):
    assert disk.open("a", create=True).map().nbytes == 0


def test_a_view_shows_later_writes_in_its_range(disk):
    file = disk.open("a", create=True)
    file.preallocate(10_000)
    view = file.map()
    piece = view[4090:4100]
    file.write_at(4094, [b"abcd"])
    file.write_at(9998, [b"yzyz"])  # half of it is behind what the view covers
    assert piece == b"\0\0\0\0abcd\0\0"
    assert view[9995:] == b"\0\0\0yz"
    assert file.map()[9995:] == b"\0\0\0yzyz"


def test_a_view_shows_a_tail_cut_and_preallocated_again(disk):
    put(disk, "a", b"x" * 10_000)
    file = disk.open("a")
    view = file.map()
    file.truncate(100)
    file.preallocate(10_000)
    file.write_at(100, [b"new"])
    assert view == b"x" * 100 + b"new" + bytes(9897)


def test_a_view_outlives_handle_and_name(disk):
    put(disk, "a", b"still here")
    file = disk.open("a")
    view = file.map()
    piece = view[6:]
    file.close()
    disk.remove("a")
    del view
    assert piece == b"here"


def test_closing_twice_does_no_harm(disk):
    file = disk.open("a", create=True)
    file.close()
    other = disk.open("b", create=True)  # may get the same descriptor
    file.close()
    assert other.size() == 0


@pytest.mark.parametrize(
    "use",
    [
        lambda file: file.size(),
        lambda file: file.write_at(0, [b"x"]),
        lambda file: file.read_at(0, 1),
        lambda file: file.map(),
        lambda file: file.sync(),
        lambda file: file.truncate(0),
        lambda file: file.preallocate(1),
    ],
    ids=["size", "write", "read", "map", "sync", "truncate", "preallocate"],
)
def test_a_closed_file_is_refused(disk, use):
    file = disk.open("a", create=True)
    file.close()
    with pytest.raises(OSError) as caught:
        use(file)
    assert caught.value.errno == errno.EBADF


def test_names_are_sorted_and_none_where_there_is_no_directory(disk):
    for name in ("b", "a", "c"):
        disk.open(name, create=True).close()
    disk.make_dir("Z/inside")
    assert disk.names("") == ["Z", "a", "b", "c"]
    assert disk.names("Z") == ["inside"]
    assert disk.names("Z/inside") == disk.names("missing") == disk.names("missing/too") == []
    with pytest.raises(NotADirectoryError):
        disk.names("a")


def test_directories_are_made_with_those_above_them(disk):
    disk.make_dir("")
    disk.make_dir("d/e/f")
    disk.make_dir("d/e")
    assert disk.is_dir("d/e/f")
    assert disk.is_dir("")
    put(disk, "d/e/file", b"")
    assert disk.exists("d/e/file")
    assert not disk.is_dir("d/e/file")
    assert not disk.is_dir("d/e/file/below")
    assert not disk.exists("d/e/file/below")
    for path in ("d/e/file", "d/e/file/below"):
        with pytest.raises(FileExistsError):
            disk.make_dir(path)


def test_a_file_needs_a_directory_to_be_in(disk):
    put(disk, "file", b"")
    with pytest.raises(FileNotFoundError):
        disk.open("missing/a", create=True)
    with pytest.raises(NotADirectoryError):
        disk.open("file/a", create=True)


def test_a_rename_replaces_and_handles_follow(disk):
    put(disk, "old", b"old")
    put(disk, "new", b"new")
    old, new = disk.open("old"), disk.open("new")
    disk.rename("new", "old")
    assert dump(disk) == {"old": b"new"}
    new.write_at(3, [b"er"])
    assert get(disk, "old") == b"newer"
    assert old.read_at(0, 9) == b"old"  # gone by name, not for who has it open
    assert new.path == "new"


def test_a_directory_is_renamed_with_all_in_it(disk):
    disk.make_dir("d/e")
    put(disk, "d/e/a", b"1")
    disk.rename("d", "f")
    assert dump(disk) == {"f": None, "f/e": None, "f/e/a": b"1"}
    disk.rename("f/e", "g")
    assert dump(disk) == {"f": None, "g": None, "g/a": b"1"}


@pytest.mark.parametrize(
    ("source", "target", "error"),
    [
        ("missing", "a", errno.ENOENT),
        ("a", "missing/a", errno.ENOENT),
        ("a", "b/below", errno.ENOTDIR),
        ("a", "full", errno.EISDIR),
        ("empty", "a", errno.ENOTDIR),
        ("empty", "full", errno.ENOTEMPTY),
        ("full", "full/inside", errno.EINVAL),
        ("full/sub", "full", errno.ENOTEMPTY),
        ("a", "a", None),
        ("full", "empty", None),
        ("full/x", "empty/y", None),
    ],
)
def test_what_a_rename_refuses(disk, source, target, error):
    disk.make_dir("empty")
    disk.make_dir("full/sub")
    for path in ("a", "b", "full/x"):
        put(disk, path, path.encode())
    before = dump(disk)
    if error is None:
        disk.rename(source, target)
        assert disk.exists(target)
        return
    with pytest.raises(OSError) as caught:
        disk.rename(source, target)
    assert caught.value.errno == error
    assert dump(disk) == before


def test_files_and_empty_directories_are_removed(disk):
    disk.make_dir("d")
    put(disk, "d/a", b"1")
    file = disk.open("d/a")
    with pytest.raises(OSError) as caught:
        disk.remove("d")
    assert caught.value.errno == errno.ENOTEMPTY
    disk.remove("d/a")
    disk.remove("d")
    assert disk.names("") == []
    assert file.read_at(0, 1) == b"1"
    with pytest.raises(FileNotFoundError):
        disk.remove("d")


@pytest.mark.parametrize("path", ["..", "../a", "a/../../b", "/a", "/", "a/", "a//b", ".", "./a", "a\0b"])
@pytest.mark.parametrize(
    "use",
    [
        *("open", "names", "exists", "is_dir", "make_dir", "remove", "sync_dir", "lock"),
        lambda disk, path: disk.rename(path, "here"),
        lambda disk, path: disk.rename("here", path),
    ],
    ids=lambda use: use if isinstance(use, str) else "rename",
)
def test_a_path_that_could_leave_the_root_is_refused(disk, use, path):
    put(disk, "here", b"", is_synced=False)
    act = functools.partial(getattr(disk, use), path) if isinstance(use, str) else functools.partial(use, disk, path)
    with pytest.raises(ValueError):
        act()


def test_the_root_is_neither_renamed_nor_removed(disk):
    disk.make_dir("d")
    for act in (lambda: disk.remove(""), lambda: disk.rename("", "d/a"), lambda: disk.rename("d", "")):
        with pytest.raises(ValueError):
            act()


def test_a_directory_is_synced_if_there_is_one(disk):
    disk.make_dir("d")
    put(disk, "a", b"")
    disk.sync_dir("d")
    disk.sync_dir("")
    with pytest.raises(FileNotFoundError):
        disk.sync_dir("missing")
    with pytest.raises(NotADirectoryError):
        disk.sync_dir("a")


def test_there_is_room(disk):
    assert disk.free_bytes() > 1 << 20


def test_F07_a_lock_has_one_owner(disk):
    lock = disk.lock("lock")
    for _ in range(2):
        with pytest.raises(DirectoryLockedError):
            disk.lock("lock")
    other = disk.lock("other")
    lock.release()
    again = disk.lock("lock")
    lock.release()  # a second release is not the new owner's
    with pytest.raises(DirectoryLockedError):
        disk.lock("lock")
    again.release()
    other.release()
    assert disk.names("") == ["lock", "other"]


# The real disk alone.


def test_F07_a_lock_holds_against_another_process(tmp_path):
    lock = RealDisk(tmp_path).lock("lock")
    take = "import fcntl, sys; fcntl.flock(open(sys.argv[1], 'r+'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    command = [sys.executable, "-S", "-c", take, str(tmp_path / "lock")]
    assert b"BlockingIOError" in subprocess.run(command, capture_output=True, check=False).stderr
    lock.release()
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0


def test_the_root_is_made_on_demand(tmp_path):
    disk = RealDisk(tmp_path / "x" / "y")
    assert not disk.exists("")
    assert disk.names("") == []
    disk.make_dir("")
    assert dump(disk) == {}
    RealDisk(tmp_path / "z").make_dir("d/e")
    assert (tmp_path / "z" / "d" / "e").is_dir()


def test_an_ordinary_write_is_one_system_call_without_a_copy(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(world_disk.os, "pwritev", lambda fd, buffers, at: calls.append(buffers) or 4000)
    buffers = [memoryview(b"data")] * 1000
    RealDisk(tmp_path).open("a", create=True).write_at(0, buffers)
    assert len(calls) == 1
    assert calls[0] is buffers


@pytest.mark.parametrize("bytes_max", [1, 2, 3, 7, 64])
def test_F19_a_short_write_is_finished(tmp_path, monkeypatch, bytes_max):
    def write_little(fd, buffers, at):
        return os.pwrite(fd, b"".join(buffers)[:bytes_max], at)

    monkeypatch.setattr(world_disk.os, "pwritev", write_little)
    disk = RealDisk(tmp_path)
    buffers = [b"", b"a", bytearray(b"bcd"), b"", memoryview(b"efghij"), b"k", b""]
    assert disk.open("a", create=True).write_at(2, buffers) == 11
    assert get(disk, "a") == b"\0\0abcdefghijk"


def test_F19_a_short_read_is_finished(tmp_path, monkeypatch):
    put(RealDisk(tmp_path), "a", b"0123456789")
    read = os.pread
    monkeypatch.setattr(world_disk.os, "pread", lambda fd, size, at: read(fd, min(size, 3), at))
    assert RealDisk(tmp_path).open("a").read_at(1, 8) == b"12345678"
    assert RealDisk(tmp_path).open("a").read_at(1, 80) == b"123456789"


def test_a_write_that_gets_nowhere_ends_in_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(world_disk.os, "pwritev", lambda fd, buffers, at: 0)
    with pytest.raises(OSError, match="no more bytes"):
        RealDisk(tmp_path).open("a", create=True).write_at(0, [b"x"])


def test_F18_a_full_disk_after_a_short_write_is_an_error(tmp_path, monkeypatch):
    def fill_up(fd, buffers, at):
        if at:
            raise OSError(errno.ENOSPC, "full")
        return os.pwrite(fd, b"".join(buffers)[:4], at)

    monkeypatch.setattr(world_disk.os, "pwritev", fill_up)
    with pytest.raises(OSError) as caught:
        RealDisk(tmp_path).open("a", create=True).write_at(0, [b"abcdef"])
    assert caught.value.errno == errno.ENOSPC


def test_no_descriptor_is_left_behind_or_inherited(tmp_path):
    disk = RealDisk(tmp_path)
    before = sorted(os.listdir("/proc/self/fd"))
    put(disk, "a", b"data")
    file = disk.open("a")
    assert not os.get_inheritable(file._fd)
    view = file.map()
    lock = disk.lock("lock")
    with pytest.raises(DirectoryLockedError):
        disk.lock("lock")
    lock.release()
    file.close()
    del view
    assert sorted(os.listdir("/proc/self/fd")) == before


# Both, side by side.

PATHS = st.sampled_from(["a", "b", "d", "d/a", "d/b", "d/e", "d/e/a", "e"])
SIZES = st.one_of(st.integers(0, 40), st.sampled_from([511, 512, 4095, 4096, 4097, 9000]))
DATA = st.one_of(
    st.binary(max_size=12),
    st.builds(lambda byte, size: bytes([byte]) * size, st.integers(1, 255), st.integers(0, 9000)),
)
STEPS = st.one_of(
    *(st.tuples(st.just(verb), PATHS) for verb in ("create", "open", "make_dir", "remove", "names", "lock", "release")),
    st.tuples(st.just("rename"), PATHS, PATHS),
    *(st.tuples(st.just(verb), st.integers(0, 3)) for verb in ("close", "map", "size")),
    st.tuples(st.just("write_at"), st.integers(0, 3), SIZES, st.lists(DATA, max_size=3)),
    st.tuples(st.just("read_at"), st.integers(0, 3), SIZES, SIZES),
    *(st.tuples(st.just(verb), st.integers(0, 3), SIZES) for verb in ("truncate", "preallocate")),
)


class Program:
    """Carries out steps on one disk and notes each answer or error."""

    def __init__(self, disk):
        self.disk, self.files, self.locks, self.views = disk, [], {}, []

    def answer(self, step):
        try:
            return self.take(*step)
        except OSError as error:
            return type(error), error.errno
        except DirectoryLockedError as error:
            return type(error)

    def take(self, verb, *details):
        match verb:
            case "create" | "open":
                self.files.append(self.disk.open(details[0], create=verb == "create"))
                return None
            case "lock":
                self.locks.setdefault(details[0], []).append(self.disk.lock(details[0]))
                return None
            case "release":
                return [lock.release() for lock in self.locks.get(details[0], [])]
            case "make_dir" | "remove" | "names" | "rename":
                return getattr(self.disk, verb)(*details)
        if not self.files:
            return None
        file = self.files[-1 - details[0] % len(self.files)]
        if verb == "map":
            self.views.append((file, file.map()))
            return bytes(self.views[-1][1])
        return getattr(file, verb)(*details[1:])

    def end(self):
        """Everything there is, after the fact; of a view, what the file still covers: past that a look is deadly."""
        shown = [bytes(view[: file.size()]) for file, view in self.views if self.answer_of_size(file) is not None]
        for file in self.files:
            file.close()
        for lock in itertools.chain.from_iterable(self.locks.values()):
            lock.release()
        return dump(self.disk), shown

    @staticmethod
    def answer_of_size(file):
        try:
            return file.size()
        except OSError:
            return None


@settings(max_examples=250, deadline=None)
@given(steps=st.lists(STEPS, max_size=25))
def test_both_disks_give_the_same_answers(steps):
    with tempfile.TemporaryDirectory() as root:
        real, sim = Program(RealDisk(root)), Program(SimDisk())
        for step in steps:
            assert sim.answer(step) == real.answer(step), step
        assert sim.end() == real.end()


def test_behind_the_end_of_data_there_are_only_zeros(disk):
    file = disk.open("f", create=True)
    assert file.data_end() == 0
    file.preallocate(1 << 20)
    assert file.data_end() <= 1 << 20
    file.write_at(500_000, [b"x" * 100])
    assert 500_100 <= file.data_end() <= 1 << 20
    assert not file.read_at(file.data_end(), 1 << 20).strip(b"\0")
    file.truncate(500_050)
    assert file.data_end() == 500_050
    file.close()
