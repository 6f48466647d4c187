"""A worker that takes block after block apart uses the same memory again."""

import platform
import subprocess
import sys

import pytest

# A block and its columns, again and again; tells how often the system had to give a page.
WORK = """
import resource, sys
import numpy as np
from lakemq.pipeline.paging import keep_pages

if sys.argv[1] == "kept":
    keep_pages()
    keep_pages()
for turn in range(60):
    if turn == 10:
        began = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    parts = [np.ones(size, np.uint8) for size in 5 * [1 << 20]]
    del parts
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - began)
"""


def page_faults(how):
    found = subprocess.run([sys.executable, "-c", WORK, how], capture_output=True, text=True, timeout=60, check=True)
    return int(found.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is told")
def test_memory_of_one_block_serves_for_the_next():
    assert page_faults("kept") < 200
    assert page_faults("as it is") > 2000, "the test would not see a difference"


def test_where_the_c_library_cannot_be_told_nothing_happens(monkeypatch):
    from lakemq.pipeline import paging

    class Nothing:
        def __init__(self, name):
            pass

    monkeypatch.setattr(paging, "_is_kept", False)
    monkeypatch.setattr(paging.ctypes, "CDLL", Nothing)
    paging.keep_pages()
