"""What is freed stays with the process, so that it need not be fetched again page by page."""

import subprocess
import sys

import pytest

from lakemq.memory import keep_freed_memory

CHURN = """
import resource, sys
from lakemq.memory import keep_freed_memory
if sys.argv[1] == "keeps" and not keep_freed_memory():
    sys.exit("no glibc")
def churn():
    pieces = [b"x" * (1 << 20) for _ in range(4)]
churn()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(50):
    churn()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how):
    done = subprocess.run([sys.executable, "-c", CHURN, how], capture_output=True, text=True, check=False)
    if "no glibc" in done.stderr:
        pytest.skip("the C library has no mallopt")
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def test_freed_memory_is_used_again_without_new_pages():
    kept, given_back = faults("keeps"), faults("as it is")
    assert given_back > 10_000, "else this machine shows nothing"
    assert kept < given_back / 10


def test_where_there_is_no_such_setting_it_says_so(monkeypatch):
    monkeypatch.setattr("ctypes.CDLL", lambda name: object())
    assert keep_freed_memory.__wrapped__() is False
