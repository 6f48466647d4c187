"""The client without anything that only Linux has, and without the compiled parts, against a real broker.

macOS and Windows are not at hand; what they lack is taken away here (`portable_client.py`).
"""

import subprocess
import sys
from pathlib import Path

import pytest

from fix_live import live_broker, shown_stderr

__all__ = ["live_broker", "shown_stderr"]

pytestmark = [pytest.mark.live, pytest.mark.usefixtures("shown_stderr")]
PROGRAM = Path(__file__).with_name("portable_client.py")


def run(*arguments):
    done = subprocess.run(
        [sys.executable, str(PROGRAM), *map(str, arguments)], capture_output=True, text=True, check=False, timeout=100
    )
    assert done.returncode == 0, done.stderr


def test_the_client_sends_and_receives_with_plain_python_alone(live_broker):
    run(f"lakemq://127.0.0.1:{live_broker.port}", "orders")


def test_the_outbox_works_there_as_well(live_broker, tmp_path):
    run(f"lakemq://127.0.0.1:{live_broker.port}", "payments", tmp_path / "outbox")
