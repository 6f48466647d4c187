"""A broker is copied while it is at work, and another one is started on the copy, as an operator restores it."""

import itertools
import subprocess
import sys
import threading

import pytest

import lakemq
from fix_live import LiveBroker

pytestmark = [pytest.mark.live, pytest.mark.timeout(180)]
SETTINGS = """
[storage]
segment_bytes = "2MiB"
record_bytes_max = "1MiB"
checkpoint_bytes = "3MiB"
entries_per_file = 500

[limits]
frame_bytes_max = "1MiB"
"""
CONFIRMED = 500


def command(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "lakemq", *map(str, arguments)], capture_output=True, text=True, check=False, timeout=100
    )


def test_a_copy_made_under_load_has_all_that_was_confirmed_and_is_sound(tmp_path):
    (tmp_path / "lakemq.toml").write_text(SETTINGS)
    source = LiveBroker(tmp_path).start()
    confirmed, is_over = itertools.count(), threading.Event()
    enough = threading.Event()

    def load():
        with lakemq.connect(f"lakemq://127.0.0.1:{source.port}", app="shop") as mq:
            while not is_over.is_set():
                number = next(confirmed)
                mq.send("orders", b"%06d" % number + bytes(5000), partition=0)
                if number == CONFIRMED:
                    enough.set()

    sender = threading.Thread(target=load)
    sender.start()
    try:
        assert enough.wait(100), source.stderr()
        done = command("storage", "backup", source.data, tmp_path / "copy" / "data")
        assert done.returncode == 0, done.stderr
    finally:
        is_over.set()
        sender.join()
        source.stop()
    checked = command("storage", "verify", tmp_path / "copy" / "data")
    assert checked.returncode == 0, checked.stdout
    (tmp_path / "copy" / "lakemq.toml").write_text(SETTINGS)
    restored = LiveBroker(tmp_path / "copy").start()
    try:
        with lakemq.connect(f"lakemq://127.0.0.1:{restored.port}", app="shop") as mq:
            with mq.consumer("orders", group="audit") as consumer:
                bodies = []
                while received := consumer.receive(100, timeout=1):
                    bodies += [int(one.body[:6]) for one in received]
            assert bodies == list(range(len(bodies))), "no hole, no repeat"
            assert CONFIRMED < len(bodies) <= next(confirmed)
            assert mq.send("orders", "it goes on", partition=0).offset == len(bodies)
    finally:
        restored.stop()
    restored.check_stderr()
    assert "damaged" not in restored.stderr()


def test_a_backup_into_a_directory_that_is_not_empty_is_refused(tmp_path):
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "mine").write_text("")
    with lakemq.connect(f"embedded://{tmp_path}/data", app="shop") as mq:
        mq.send("orders", "hello")
    done = command("storage", "backup", tmp_path / "data", tmp_path / "target")
    assert done.returncode == 1
    assert "the target is not empty" in done.stderr
    assert [one.name for one in (tmp_path / "target").iterdir()] == ["mine"]
