"""Real processes on real file systems, killed and cut off for real: short versions, `make faults` has the long ones.

What needs root, a tool or a kind of file system that is not here is skipped and says so; in CI a tool that is not
installed is a failure.
"""

import contextlib
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from faults.checker import check_directory
from faults.ledger import Ledger
from faults.strace import WRITE, answer, delay, fail, kill, need_strace, run_traced
from faults.tools import EXIT_CANNOT_RUN, ROOT, CannotRunError, MissingToolError, need_root, need_tools, wait_for
from faults.writer import EXIT_FAILED, EXIT_NOT_OPENED, small_config
from fix_disk import dump
from lakemq.envelope import pack
from lakemq.errors import DiskIOError
from lakemq.message import Message
from lakemq.storage.journal_record import RecordType
from lakemq.storage.recovery import open_group
from lakemq.world.disk import RealDisk, RealFile

pytestmark = [pytest.mark.live, pytest.mark.slow]

WRITER = "tests.faults.writer"


@contextlib.contextmanager
def needed():
    """Skip what this machine cannot do; fail instead where everything should be installed."""
    try:
        yield
    except MissingToolError as error:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(str(error))
    except CannotRunError as error:
        pytest.skip(str(error))


@pytest.fixture
def strace():
    with needed():
        need_strace()


@pytest.fixture
def file_systems():
    with needed():
        need_root()
        need_tools("mount", "mkfs.ext4", "mkfs.xfs")


@pytest.fixture
def store(tmp_path):
    """A place for a store, and for its ledger outside of it."""
    return Store(tmp_path)


class Store:
    def __init__(self, place):
        self.directory = place / "data"
        self.lines = place / "ledger"
        self.ledger = Ledger()
        self.runs = 0

    def write(self, *options, inject=(), **traced):
        """One run of the writer to its end; its exit status."""
        self.runs += 1
        arguments = (self.directory, self.lines, "--run", self.runs, *options)
        if inject:
            status, _ = run_traced(WRITER, *arguments, "--inline", inject=inject, **traced)
        else:
            command = [sys.executable, "-m", WRITER, *map(str, arguments)]
            status = subprocess.run(command, cwd=ROOT, check=False, timeout=60).returncode
        self.ledger.read(self.lines)
        return status

    def check(self, level="written"):
        """Recover it and hold it against its ledger."""
        report = check_directory(str(self.directory), self.ledger, level=level)
        assert report.ok, f"after {self.runs} runs: {report}\nnotes: {self.ledger.notes[-5:]}"
        return report

    @property
    def said(self):
        """For a failed assertion."""
        return f"{self.ledger.failures} {self.ledger.notes[-5:]}"


def run_command(name, *options, expected=0):
    """Run a fault command; the summary that it ends with."""
    done = subprocess.run(
        [sys.executable, "-m", f"tests.faults.{name}", *map(str, options)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    if done.returncode == EXIT_CANNOT_RUN:
        pytest.skip(done.stdout.strip().splitlines()[-1])
    assert done.returncode == expected, f"{name} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
    return json.loads(done.stdout.splitlines()[-1])


# --- the process ends ----------------------------------------------------------------------------------------------


def test_F01_a_hundred_kills_at_random_moments_lose_nothing_that_was_written():
    summary = run_command("kills", "--count", 100)
    assert summary["kills"] == 100, summary
    assert summary["kills_inside_recovery"] >= 1, summary
    assert summary["acked"] > 100, summary
    assert summary["lost"] == 0, summary


@pytest.mark.parametrize(
    ("call", "counts"),
    [
        (WRITE, (1, 2, 5, 13, 34, 60)),
        ("fdatasync", (1, 3, 8, 21, 40)),
        ("fsync", (1, 2, 3, 5, 9)),
        ("rename", (1, 2, 3, 4)),
        ("ftruncate", (1, 2, 3, 5)),
        ("fallocate", (1, 2, 3)),
        ("mkdir", (1, 2, 3, 5)),
    ],
    ids=["write", "sync", "sync-directory", "rename", "truncate", "allocate", "make-directory"],
)
def test_F02_a_kill_at_any_call_loses_nothing_that_was_written(strace, store, call, counts):
    kills = 0
    for count in counts:
        status = store.write("--turns", 60, inject=[kill(call, count)])
        assert status in (-9, 0), f"killed at {call} {count}, it ended with {status}: {store.said}"
        kills += status == -9
        store.check()
    assert kills >= len(counts) // 2, f"only {kills} of {len(counts)} kills struck"


def test_F03_recovery_may_be_killed_five_times_over_and_ends_as_if_it_had_not(strace, store, tmp_path):
    assert store.write("--turns", 80, inject=[kill(WRITE, 90)]) == -9, store.said
    for name in ("checkpoint", "checkpoint.old"):  # so that there is more to do: every index is made again
        (store.directory / name).unlink(missing_ok=True)
    last = max((store.directory / "journal").iterdir())
    with open(last, "r+b") as file:  # and a torn tail to cut
        file.seek(len(last.read_bytes().rstrip(b"\0")) + 100)  # a record may end with zeros
        file.write(b"LMQR torn" * 1000)
    once = tmp_path / "once"
    shutil.copytree(store.directory, once)
    ledger = Ledger().read(store.lines)
    expected = check_directory(str(once), ledger, level="written")
    assert expected.ok, expected
    kills = 0
    for injection in (
        kill(WRITE, 1),
        kill("ftruncate", 1),
        kill("fallocate", 1),
        kill(WRITE, 3),
        kill("fdatasync", 1),
        kill("fsync", 1),
        kill("rename", 1),
        kill("fsync", 2),
    ):
        status, _ = run_traced("tests.faults.checker", store.directory, store.lines, inject=[injection])
        kills += status == -9
    report = store.check()
    assert kills >= 5, f"only {kills} kills struck"
    assert journal_of(store.directory) == journal_of(once), f"after {kills} kills the journal is another one"
    assert report.stored == expected.stored, f"{report.stored} messages after {kills} kills, {expected.stored} without"


def journal_of(directory):
    return {path.name: path.read_bytes() for path in (Path(directory) / "journal").iterdir()}


def test_F07_a_second_process_is_refused_and_changes_nothing(store):
    command = [sys.executable, "-m", WRITER, store.directory, store.lines, "--pause-ms", "1"]
    first = subprocess.Popen(list(map(str, command)), cwd=ROOT)
    try:
        wait_for(lambda: store.ledger.read(store.lines).acked_count() > 20, 30, "the first process at work")
        first.send_signal(signal.SIGSTOP)
        wait_for(lambda: state_of(first.pid) == "T", 10, "the first process to stand still")
        before = dump(RealDisk(store.directory))
        store.runs = 1
        assert store.write("--turns", 5) == EXIT_NOT_OPENED, store.said
        assert any("DirectoryLockedError" in note for note in store.ledger.notes), store.said
        assert dump(RealDisk(store.directory)) == before
        first.send_signal(signal.SIGCONT)
        acked = store.ledger.acked_count()
        wait_for(lambda: store.ledger.read(store.lines).acked_count() > acked, 30, "the first process to go on")
    finally:
        first.kill()
        first.wait()
    store.ledger.read(store.lines)
    store.check()


def state_of(pid):
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


# --- the power goes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["ext4", "xfs"])
def test_F10_fifteen_power_cuts_lose_nothing_that_was_acked(file_systems, kind):
    summary = run_command("power_cuts", "--count", 15, "--kinds", kind)
    assert summary[kind] == 15, summary
    assert summary["acked"] > 100, summary
    assert summary["lost"] == 0, summary


@pytest.mark.parametrize("bug", ["--lie-about-sync", "--ack-before-sync"])
def test_the_power_cut_harness_catches_a_sync_that_does_nothing(file_systems, bug):
    summary = run_command("power_cuts", "--count", 90, bug, expected=1)
    assert summary["lost"] > 0, f"{bug} went unnoticed: {summary}"


def test_a_harness_that_is_killed_leaves_no_mount_and_no_loop_device(file_systems):
    command = [sys.executable, "-m", "tests.faults.power_cuts", "--count", "300"]
    harness = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    images = []

    def is_mounted():
        mounts = Path(f"/proc/{harness.pid}/mounts").read_text() if harness.poll() is None else ""
        images[:] = [line.split()[1] for line in mounts.splitlines() if "lakemq-faults" in line]
        return images or harness.poll() is not None

    try:
        wait_for(is_mounted, 30, "a mount")
    finally:
        harness.kill()
        said = harness.communicate()[0]
    if harness.returncode == EXIT_CANNOT_RUN:
        pytest.skip(said)
    (root,) = map(Path, images)
    try:
        wait_for(lambda: not loop_devices_of(root.parent), 20, f"the loop device of {root} to go")
        assert str(root) not in Path("/proc/mounts").read_text()
    finally:
        shutil.rmtree(root.parent, ignore_errors=True)


def loop_devices_of(directory):
    found = []
    for path in Path("/sys/block").glob("loop*/loop/backing_file"):
        with contextlib.suppress(OSError):
            found += [path for text in [path.read_text()] if text.startswith(str(directory))]
    return found


# --- the disk fails ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["fdatasync", "fsync"])
def test_F15_a_failed_sync_is_final(strace, store, call):
    failed = 0
    for count in (2, 5, 9, 14):
        status = store.write("--turns", 60, inject=[fail(call, "EIO", str(count))])
        assert status in (EXIT_FAILED, EXIT_NOT_OPENED, 0), f"{call} {count}: {status} {store.said}"
        assert not any("taken" in text or "bug" in text for text in store.ledger.failures), store.said
        # A checkpoint that fails is only missed: the one before still holds.
        failed += status != 0 or any("no checkpoint" in note for note in store.ledger.notes)
        store.ledger.notes.clear()
        store.check()
    assert failed >= 2, f"{failed} of 4 failures were felt: {store.said}"


@pytest.mark.parametrize("is_message", [True, False], ids=["message", "fact"])
def test_F15_a_sync_that_fails_between_an_append_and_its_flush_fails_the_flush(tmp_path, is_message):
    group = open_group(RealDisk(tmp_path), small_config())
    first, second = (bytearray(pack(Message(body=body, partition=0))) for body in (b"first", b"second"))
    group.append(1, 0, first, 1, 1, term=1, now_ms=1)
    group.flush()
    ticket = group.begin_sync()
    if is_message:
        group.append(1, 0, second, 1, 1, term=1, now_ms=2)
    else:
        group.append_control(RecordType.ACK, b"second", term=1, now_ms=2)
    group.end_sync(ticket, OSError(errno.EIO, "Input/output error"))
    with pytest.raises(DiskIOError):
        group.flush()
    group.abandon()


def test_F15_a_start_that_fails_leaves_no_file_open(store, monkeypatch):
    assert store.write("--turns", 30) == 0, store.said

    def fail_to_sync(file):
        raise OSError(errno.EIO, "Input/output error", file.path)

    monkeypatch.setattr(RealFile, "sync", fail_to_sync)
    with pytest.raises(OSError, match="Input/output error"):
        open_group(RealDisk(store.directory), small_config())
    assert open_files_below(store.directory) == []
    monkeypatch.undo()
    store.check()


def open_files_below(directory):
    found = []
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found.append(os.readlink(path))
    return [name for name in found if name.startswith(str(directory))]


def test_F16_a_second_sync_that_lies_is_not_believed(file_systems):
    summary = run_command("loopfull", "--rounds", 4)
    assert summary["rounds"] == 4, summary
    assert summary["acked"] > 100, summary
    assert summary["lost"] == 0, summary


@pytest.mark.parametrize("is_mapped", [False, True], ids=["read", "mapped"])
def test_F17_an_old_segment_that_cannot_be_read_costs_its_own_messages_only(strace, store, is_mapped):
    assert store.write("--turns", 120) == 0, store.said
    segments = sorted((store.directory / "journal").iterdir())
    assert len(segments) >= 4, segments
    bad, lost = segments[1], 0
    group = open_group(RealDisk(store.directory), small_config())
    expected = {f"{topic}/{partition}": [] for topic, partition in group.partitions()}
    for found in group.records(base_of(bad), base_of(segments[2])):
        header = found.header
        if header.index_count:
            indexes = range(header.first_index, header.first_index + header.index_count)
            expected[f"{header.topic}/{header.partition}"] += indexes
            lost += len(indexes)
    stored = sum(group.visible_index(*place) for place in group.partitions())
    group.close()
    if is_mapped:
        status, said = run_traced("tests.faults.reader", store.directory, "--mapped", "--cut", bad)
    else:
        status, said = run_traced(
            "tests.faults.reader", store.directory, inject=[fail("pread64", "EIO", "1+")], only=bad
        )
    assert status == 0, said
    result = json.loads(said)
    assert result["refused"] == expected, f"{lost} messages of {stored} are in the bad segment"
    assert result["right"] == stored - lost > 0, f"{result['right']} of {stored} messages were read, {lost} are lost"


def base_of(segment):
    return int(segment.name.partition(".")[0])


def test_F18_a_disk_that_runs_full_refuses_and_goes_on_when_there_is_room(file_systems):
    summary = run_command("smallfs", "--rounds", 2)
    assert summary["rounds"] == 2, summary
    assert summary["refused"] >= 50, summary
    assert summary["starts_on_full_disk"] == 2, f"a start on a full disk can at least read: {summary}"
    assert summary["acked"] > 100, summary
    assert summary["lost"] == 0, summary


@pytest.mark.parametrize(
    ("call", "ranges"),
    [
        (WRITE, ("4", "9..11", "20..40", "55")),
        ("fallocate", ("2", "3..4", "5")),
        ("ftruncate", ("2", "4..6")),
        ("mkdir", ("4..7",)),
    ],
    ids=["write", "allocate", "truncate", "make-directory"],
)
def test_F18_a_disk_that_is_full_at_any_call_refuses_and_goes_on(strace, store, call, ranges):
    for when in ranges:
        acked = store.ledger.acked_count()
        status = store.write("--turns", 60, inject=[fail(call, "ENOSPC", when)])
        assert status in (0, EXIT_NOT_OPENED), f"{call} {when}: ended with {status}: {store.said}"
        assert status == EXIT_NOT_OPENED or store.ledger.acked_count() > acked, store.said
        store.check()


@pytest.mark.parametrize(
    "injection",
    [fail(WRITE, "EINTR", "3..9"), fail("fdatasync", "EINTR", "3..9"), answer(WRITE, 0, "5+7")],
    ids=["write-interrupted", "sync-interrupted", "nothing-written"],
)
def test_F19_an_interrupted_call_is_not_noticed(strace, store, injection):
    assert store.write("--turns", 40, inject=[injection]) == 0, store.said
    assert store.ledger.is_closed, store.said
    assert not store.ledger.refused, store.said
    store.check()


def test_F19_a_short_write_is_not_noticed(store):
    assert store.write("--turns", 150, "--short-writes") == 0, store.said
    assert not store.ledger.refused, store.said
    report = store.check()
    assert report.acked == report.stored > 1_000, report


def test_F20_a_slow_sync_only_takes_its_time(strace, store):
    assert store.write("--turns", 12, inject=[delay("fdatasync", 300, "5..8")]) == 0, store.said
    assert not store.ledger.refused, store.said
    store.check()
