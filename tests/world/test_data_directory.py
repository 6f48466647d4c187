"""The directory of a broker's data: how it is made, and what a start says that cannot open it."""

import errno
from pathlib import Path

import pytest

import lakemq
from lakemq.client.errors import BrokerUnreachableError
from lakemq.storage.config import DEV_SEGMENT_BYTES
from lakemq.storage.directory import BrokenFormatError, ForeignDirectoryError
from lakemq.storage.recovery import open_group
from lakemq.testing.disk import SimDisk
from lakemq.world.data_directory import make_directory, trouble_with
from lakemq.world.disk import RealDisk

MIB = 1 << 20


def test_inside_a_repository_git_does_not_see_it(tmp_path):
    (tmp_path / ".git").mkdir()
    made = tmp_path / "below" / ".lakemq"
    make_directory(made)
    assert (made / ".gitignore").read_text() == "*\n"
    open_group(RealDisk(made)).close()
    open_group(RealDisk(made)).close()


def test_elsewhere_and_in_a_directory_that_was_there_nothing_is_added(tmp_path):
    make_directory(tmp_path / "elsewhere")
    assert list((tmp_path / "elsewhere").iterdir()) == []
    (tmp_path / ".git").mkdir()
    (tmp_path / "there").mkdir()
    make_directory(tmp_path / "there")
    assert list((tmp_path / "there").iterdir()) == []


def test_a_broker_inside_a_program_reserves_64_mib_and_is_ignored_by_git(tmp_path):
    (tmp_path / ".git").mkdir()
    with lakemq.connect(f"embedded://{tmp_path}/.lakemq", app="shop") as mq:
        mq.send("orders", "hello")
        (segment,) = (tmp_path / ".lakemq" / "journal").iterdir()
        assert segment.stat().st_size == DEV_SEGMENT_BYTES == 64 * MIB
    assert (tmp_path / ".lakemq" / ".gitignore").exists()


@pytest.mark.parametrize("content", [b"", b"x", b"LMQS" + bytes(60)])
def test_a_broken_format_file_is_named_as_what_it_is(tmp_path, content):
    open_group(RealDisk(tmp_path)).close()
    good = (tmp_path / "format").read_bytes()
    (tmp_path / "format").write_bytes(content)
    with pytest.raises(BrokenFormatError) as found:
        open_group(RealDisk(tmp_path))
    trouble = trouble_with(tmp_path, found.value, MIB)
    assert f"{tmp_path}/format is broken" in trouble.detail
    assert "backup" in trouble.fix
    make_directory(tmp_path / "other")
    open_group(RealDisk(tmp_path / "other")).close()
    assert (tmp_path / "other" / "format").read_bytes() == good, "as the fix says, that of any other will do"


def test_a_directory_of_others_is_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(ForeignDirectoryError, match=r"no format file, but there are thesis\.txt"):
        open_group(RealDisk(tmp_path))


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES, errno.EPERM])
def test_a_directory_that_may_not_be_written_is_not_called_a_strangers(code):
    disk = SimDisk()
    open_group(disk).close()
    disk.fail("open", OSError(code, "planned"), times=99)
    with pytest.raises(OSError, match="planned") as found:
        open_group(disk)
    trouble = trouble_with(Path("/data"), found.value, MIB)
    assert "/data cannot be opened: " in trouble.detail
    assert ("mount" if code == errno.EROFS else "chown") in trouble.fix


def test_a_full_disk_is_told_with_how_much_is_needed(tmp_path):
    disk = SimDisk(capacity_bytes=MIB)
    with pytest.raises(OSError, match="ENOSPC") as found:
        open_group(disk)
    detail, fix = trouble_with(tmp_path, found.value, 64 * MIB)
    assert detail.startswith(f"the disk of {tmp_path} is full: 64 MiB are needed for a segment of the journal, ")
    assert "storage.segment_bytes" in fix


@pytest.mark.parametrize(
    ("error", "word"),
    [
        (OSError(errno.EMFILE, "Too many open files"), "ulimit -n"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "memory"),
        (MemoryError(), "stop other programs"),
        (OSError(errno.EIO, "Input/output error"), "lakemq storage verify"),
    ],
)
def test_each_trouble_has_a_next_step(error, word):
    assert word in trouble_with(Path("/data"), error, MIB).fix


def test_a_broker_inside_a_program_says_why_it_cannot_begin(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(BrokerUnreachableError, match=r"cannot be opened: .*to mend it: "):
        lakemq.connect(f"embedded://{tmp_path}/file/below", app="shop")
