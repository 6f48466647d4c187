"""Free memory filled with what can be given up at once, as on a server that has run for a day.

Free memory of a virtual machine may be with its host. To get such a page back took 13 µs where this was written, and
1.2 from a page cache that is full; so the same program, in C as well, wrote messages three to five times slower once
it had used up what an earlier run had left behind. Which server that hit was chance. The filling is a sparse file that
is read: no byte of it is on the disk, and its pages are clean.
"""

import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

MB = 1 << 20
FREE_ENOUGH = 512  # MB; the kernel itself keeps about so much free
FRESH_MB = 1024  # and what it keeps may be with the host, too: so much is read to get it back and others given up
STEP = 4 * MB
REMOVED_MB = 256  # at a time: less than the kernel hands to the host before it is filled again


def free_mb() -> int:
    return _mb_of("MemFree")


def _mb_of(name: str) -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) // 1024
    return 0


class PageCache:
    """Keeps memory filled; what was freed since, by files that were removed, is filled again by `fill`."""

    def __init__(self, directory: Path, say: Callable[[str], None]) -> None:
        self._say = say
        self._size = _mb_of("MemTotal") * MB // STEP * STEP
        self._file = tempfile.TemporaryFile(prefix="filling-", dir=directory)  # noqa: SIM115  # open until `close`
        self._file.truncate(self._size)
        self._at = 0  # the kernel gives up what was read longest ago, so that is what comes next
        self._left = self._fresh = 0  # steps
        self._lock = threading.Lock()

    def fill(self, fresh_mb: int = FRESH_MB) -> None:
        began, free = time.monotonic(), free_mb()
        self._fresh = fresh_mb * MB // STEP
        self._left = self._size // STEP  # a kernel that frees as fast as we fill must not keep us here
        threads = [threading.Thread(target=self._read, name="filling") for _ in range(os.cpu_count() or 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        took = time.monotonic() - began
        if took > 5:
            self._say(f"filled {free - free_mb():,} MB of free memory with cached pages in {took:.0f} s")

    def remove(self, directory: Path) -> None:
        """Remove a tree of files and fill what that frees, bit by bit: all of it at once would go to the host."""
        for path in directory.rglob("*"):
            if path.is_symlink() or not path.is_file():
                continue
            size = path.stat().st_size
            while size > REMOVED_MB * MB:
                size -= REMOVED_MB * MB
                os.truncate(path, size)
                self.fill(fresh_mb=0)
        shutil.rmtree(directory, ignore_errors=True)
        self.fill(fresh_mb=0)

    def _read(self) -> None:
        into = [bytearray(STEP)]
        while True:
            is_full = free_mb() <= FREE_ENOUGH
            with self._lock:
                self._fresh -= is_full
                at, self._at = self._at, (self._at + STEP) % self._size
                self._left -= 1
                if self._left < 0 or self._fresh < 0:
                    return
            os.preadv(self._file.fileno(), into, at)

    def close(self) -> None:
        self._file.close()
