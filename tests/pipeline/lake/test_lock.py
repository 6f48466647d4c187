"""One archive job at a time."""

import os
import signal
import socket
import subprocess
import sys

import pytest

from lakemq.cli.failure import describe
from lakemq.pipeline.lake import ArchiveRunningError

HOLDER = """
import sys
from lakemq.pipeline.lake.lock import ArchiveLock
from lakemq.pipeline.lake.place import Place
with ArchiveLock(Place.of(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(archive):
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(archive.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


def test_a_second_archive_job_is_refused_and_told_of_the_first(archive, holder):
    with pytest.raises(ArchiveRunningError) as refused:
        archive.lake.lock().take()
    assert f"process {holder.pid} on {socket.gethostname()}" in str(refused.value)
    assert "stop it" in describe(refused.value)


def test_the_lock_goes_with_its_process_however_that_ends(archive, holder):
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    with archive.lake.lock():
        mark = (archive.path / "_lakemq/archive.lock").read_text()
    assert f'"pid": {os.getpid()}' in mark


def test_a_lock_that_was_released_can_be_taken_again(archive):
    for _ in range(2):
        with archive.lake.lock(), pytest.raises(ArchiveRunningError, match=str(os.getpid())):
            archive.lake.lock().take()


def test_a_holder_that_has_not_signed_yet_is_told_as_such(archive):
    with archive.lake.lock():
        (archive.path / "_lakemq/archive.lock").write_text("")
        with pytest.raises(ArchiveRunningError, match="another process"):
            archive.lake.lock().take()
