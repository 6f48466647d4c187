"""Syncs beside the loop: each ends with what the disk said, on the loop, whichever thread ran it."""

import asyncio
import errno
import os
import resource
import select
import threading

import pytest

from lakemq.storage.journal import is_not_begun
from lakemq.world import syncing
from lakemq.world.disk import RealDisk

compiled = pytest.mark.skipif(syncing.Syncer is None, reason="the syncer was not built: no C compiler at install")
SECONDS = 10


class Ticket:
    """A sync of one file, or work of any kind."""

    def __init__(self, file=None, work=lambda: None):
        self.only_file = file
        self.run = work


@pytest.fixture
def file(tmp_path):
    made = RealDisk(str(tmp_path)).open("journal", create=True)
    made.write_at(0, [b"something to sync"])
    yield made
    made.close()


@pytest.fixture(params=[pytest.param(True, marks=compiled, id="compiled"), pytest.param(False, id="python")])
def is_compiled(request, monkeypatch):
    if not request.param:
        monkeypatch.setattr(syncing, "Syncer", None)
    return request.param


def outcomes(*tickets):
    """What each came to, in their order, one after the other."""

    async def main():
        loop, work, told = asyncio.get_running_loop(), syncing.DiskWork(), []
        work.open(loop)
        for ticket in tickets:
            ended = loop.create_future()
            work.sync(ticket, lambda error, ended=ended: ended.set_result((error, threading.current_thread())))
            assert work.is_busy
            told.append(await asyncio.wait_for(ended, SECONDS))
            assert not work.is_busy
        work.stop_telling()
        await loop.run_in_executor(None, work.close)
        return told

    told = asyncio.run(main())
    assert {thread for _, thread in told} == {threading.current_thread()}
    return [error for error, _ in told]


def test_syncs_end_one_after_the_other(is_compiled, file):
    assert outcomes(*(Ticket(file, file.sync) for _ in range(100))) == [None] * 100


def test_what_the_disk_says_is_told(is_compiled, file, tmp_path):
    reading, writing = os.pipe()  # no file: it cannot be synced
    file._fd, kept = writing, file._fd
    (error,) = outcomes(Ticket(file, file.sync))
    assert (error.errno, type(error)) == (errno.EINVAL, OSError)
    file._fd = kept
    os.close(reading)
    os.close(writing)


def test_a_closed_file_is_an_error_and_the_next_sync_goes_on(is_compiled, file, tmp_path):
    closed = RealDisk(str(tmp_path)).open("closed", create=True)
    closed.close()
    first, second = outcomes(Ticket(closed, closed.sync), Ticket(file, file.sync))
    assert first.errno == errno.EBADF
    assert second is None


@pytest.fixture
def no_files():
    """From now on not one more file can be opened."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    numbers = {int(name) for name in os.listdir("/proc/self/fd")}

    def begin():
        least = next(number for number in range(3, len(numbers) + 99) if not os.path.exists(f"/proc/self/fd/{number}"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (least, limits[1]))

    yield begin
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_F26_a_sync_needs_no_file_beside_its_own(is_compiled, file, no_files):
    def begins():
        no_files()
        with pytest.raises(OSError, match="Too many open files"):
            os.open(os.devnull, os.O_RDONLY)

    assert outcomes(Ticket(None, begins), *(Ticket(file, file.sync) for _ in range(5))) == [None] * 6


def test_F26_a_new_segment_and_its_name_have_files_kept_back_for_them(tmp_path, no_files):
    disk = RealDisk(str(tmp_path))
    lock = disk.lock("lock")
    no_files()
    made = disk.open("segment", create=True)
    made.write_at(0, [b"something"])
    made.sync()
    for _ in range(10):
        disk.sync_dir("")
    made.close()
    lock.release()


def test_F26_the_files_kept_back_are_given_up_with_the_lock(tmp_path):
    before = len(os.listdir("/proc/self/fd"))
    disk = RealDisk(str(tmp_path))
    lock = disk.lock("lock")
    assert len(os.listdir("/proc/self/fd")) > before + 1
    lock.release()
    assert len(os.listdir("/proc/self/fd")) == before


def test_without_a_thread_to_be_had_nothing_has_begun(file, monkeypatch):
    """The pool has queued the work by then: once there are threads again, one comes to it and must leave it alone."""
    started, begun = [], threading.Thread.start

    def start(thread):
        started.append(thread)
        if len(started) == 1:
            raise RuntimeError("can't start new thread")
        begun(thread)

    synced = []
    monkeypatch.setattr(syncing, "Syncer", None)
    monkeypatch.setattr(threading.Thread, "start", start)
    first, second = outcomes(Ticket(None, lambda: synced.append(1)), Ticket(None, lambda: synced.append(2)))
    assert is_not_begun(first)
    assert (second, synced) == (None, [2])


def test_work_that_is_more_than_one_file_is_run(is_compiled):
    done = []
    assert outcomes(Ticket(None, lambda: done.append(threading.current_thread()))) == [None]
    assert done != [threading.current_thread()]


def test_a_bug_in_it_leaves_nobody_waiting():
    def bug():
        raise KeyError("oops")

    (error,) = outcomes(Ticket(None, bug))
    assert isinstance(error, OSError)
    assert "KeyError" in str(error)


# ---- the compiled one by itself ------------------------------------------------------------------------------------


@compiled
def test_it_says_nothing_before_the_end(file):
    syncer = syncing.Syncer()
    assert syncer.end() is None
    syncer.begin(file.fileno())
    select.select([syncer.fileno()], [], [], SECONDS)
    assert syncer.end() == 0
    assert syncer.end() is None
    assert select.select([syncer.fileno()], [], [], 0)[0] == []
    syncer.close()


@compiled
def test_one_at_a_time_and_none_after_the_end(file):
    syncer = syncing.Syncer()
    syncer.begin(file.fileno())
    with pytest.raises(RuntimeError, match="one sync at a time"):
        syncer.begin(file.fileno())
    syncer.close()
    with pytest.raises(RuntimeError):
        syncer.begin(file.fileno())
    syncer.close()  # twice does no harm


@compiled
def test_the_file_may_be_closed_meanwhile(tmp_path):
    """Its number comes again for another file, which is not the one to be synced."""
    syncer = syncing.Syncer()
    for number in range(200):
        file = RealDisk(str(tmp_path)).open(f"{number}", create=True)
        file.write_at(0, [b"x" * 4096])
        syncer.begin(file.fileno())
        file.close()
        reading, writing = os.pipe()  # would be EINVAL
        select.select([syncer.fileno()], [], [], SECONDS)
        assert syncer.end() == 0
        os.close(reading)
        os.close(writing)
    syncer.close()


@compiled
def test_no_descriptor_is_left(file):
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        syncer = syncing.Syncer()
        syncer.begin(file.fileno())
        del syncer
    assert len(os.listdir("/proc/self/fd")) == before


@compiled
def test_a_bad_argument_is_refused(file):
    syncer = syncing.Syncer()
    for bad in (None, "1", 1.5):
        with pytest.raises(TypeError):
            syncer.begin(bad)
    with pytest.raises(OSError, match="descriptor"):
        syncer.begin(10_000_000)
    with pytest.raises(TypeError):
        syncing.Syncer(1)
    syncer.close()
