"""One simulated file: what the running program sees, what is durable, and the operations between the two.

Sparse, so that a preallocated gigabyte costs nothing. Pages are immutable and shared between copies.
"""

import mmap
import weakref
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

PAGE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Write:
    """Bytes put at a position; the file grows if they end behind its end."""

    position: int
    data: bytes

    @property
    def end(self) -> int:
        return self.position + len(self.data)


@dataclass(frozen=True, slots=True)
class Truncate:
    """The file made exactly this long."""

    size: int


@dataclass(frozen=True, slots=True)
class Extend:
    """The file made at least this long: a preallocation, or what is left of a write whose bytes were lost."""

    size: int


DataOperation = Write | Truncate | Extend


def without_data(operations: Iterable[DataOperation]) -> list[DataOperation]:
    """The same operations when the lengths reach the disk but the bytes do not."""
    return [Extend(each.end) if isinstance(each, Write) else each for each in operations]


class Content:
    """Bytes of a file, in pages. A page that is missing or short goes on with zeros."""

    def __init__(self) -> None:
        self.size = 0
        self.pages: dict[int, bytes] = {}

    def copy(self) -> "Content":
        twin = Content()
        twin.size = self.size
        twin.pages = self.pages.copy()
        return twin

    def read(self, position: int, size: int) -> bytes:
        end = min(position + size, self.size)
        pieces = []
        while position < end:
            number, start = divmod(position, PAGE_BYTES)
            stop = min(PAGE_BYTES, start + end - position)
            pieces.append(self.pages.get(number, b"")[start:stop].ljust(stop - start, b"\0"))
            position += stop - start
        return b"".join(pieces)

    def apply(self, operation: DataOperation) -> None:
        match operation:
            case Write():
                self._write(operation.position, operation.data)
            case Truncate():
                self._truncate(operation.size)
            case Extend():
                self.size = max(self.size, operation.size)

    def _write(self, position: int, data: bytes) -> None:
        done = 0
        while done < len(data):
            number, start = divmod(position + done, PAGE_BYTES)
            piece = data[done : done + PAGE_BYTES - start]
            page = self.pages.get(number, b"")
            self.pages[number] = page[:start].ljust(start, b"\0") + piece + page[start + len(piece) :]
            done += len(piece)
        self.size = max(self.size, position + done)

    def _truncate(self, size: int) -> None:
        if size < self.size:
            last, stop = divmod(size, PAGE_BYTES)
            for number in [number for number in self.pages if number >= last]:
                page = self.pages.pop(number)
                if number == last:
                    self.pages[number] = page[:stop]
        self.size = size


class Ranges:
    """A set of byte positions, as ranges that neither touch nor overlap, in order."""

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.ends: list[int] = []

    def copy(self) -> "Ranges":
        twin = Ranges()
        twin.starts, twin.ends = self.starts.copy(), self.ends.copy()
        return twin

    def add(self, start: int, end: int) -> None:
        first = bisect_left(self.ends, start)  # ranges from here to `last` touch the new one and become part of it
        last = bisect_right(self.starts, end)
        if first < last:
            start, end = min(start, self.starts[first]), max(end, self.ends[last - 1])
        self.starts[first:last] = [start]
        self.ends[first:last] = [end]

    def cut(self, size: int) -> None:
        """Forget everything from `size` on."""
        count = bisect_left(self.starts, size)
        del self.starts[count:], self.ends[count:]
        if count:
            self.ends[-1] = min(self.ends[-1], size)

    def gaps(self, start: int, end: int) -> list[tuple[int, int]]:
        """The parts of a range that are not in the set."""
        gaps = []
        for number in range(bisect_right(self.ends, start), bisect_left(self.starts, end)):
            if start < self.starts[number]:
                gaps.append((start, self.starts[number]))
            start = self.ends[number]
        return [*gaps, (start, end)] if start < end else gaps


class FileNode:
    """A file, whatever its name and whoever has it open."""

    def __init__(self) -> None:
        self.seen = Content()
        self.durable = Content()
        self.settled = Ranges()  # where a sync has put bytes; a preallocation puts none
        self.unsynced: list[DataOperation] = []  # durable + these = seen, unless a sync failed
        self._views: list[weakref.ref[mmap.mmap]] = []

    def copy(self) -> "FileNode":
        """The same file, with nobody looking at it."""
        twin = self.settled_copy()
        twin.seen = self.seen.copy()
        twin.unsynced = self.unsynced.copy()
        return twin

    def settled_copy(self) -> "FileNode":
        """A file of which there is only what is durable here."""
        twin = FileNode()
        twin.durable = self.durable.copy()
        twin.settled = self.settled.copy()
        twin.seen = self.durable.copy()
        return twin

    def do(self, operation: DataOperation) -> None:
        """What the program asked for: it sees it at once, it is durable later or never."""
        old_size = self.seen.size
        self.seen.apply(operation)
        self.unsynced.append(operation)
        if self._views:
            match operation:
                case Write():
                    self._show(operation.position, operation.data)
                case Truncate() if operation.size < old_size:
                    self._show(operation.size, bytes(old_size - operation.size))

    def sync(self) -> None:
        self.settle(self.unsynced)
        self.unsynced = []

    def fail_sync(self, done_count: int) -> None:
        """The first operations reach the disk, the others lose their bytes and are called clean, as Linux does."""
        self.settle(self.unsynced[:done_count])
        self.unsynced = without_data(self.unsynced[done_count:])

    def settle(self, operations: Iterable[DataOperation]) -> None:
        """Make these durable."""
        for operation in operations:
            self.durable.apply(operation)
            match operation:
                case Write() if operation.data:
                    self.settled.add(operation.position, operation.end)
                case Truncate():
                    self.settled.cut(operation.size)

    def damage(self, position: int, mask: int) -> None:
        """Flip the bits of `mask` in one byte, behind everybody's back."""
        for content in (self.seen, self.durable):
            if position < content.size:
                flipped = bytes([content.read(position, 1)[0] ^ mask])
                content.apply(Write(position, flipped))
                if content is self.seen:
                    self._show(position, flipped)

    def map(self) -> memoryview:
        """A view that later writes reach: its own copy, kept true by `do` for as long as somebody looks at it."""
        if not self.seen.size:
            return memoryview(b"")
        memory = mmap.mmap(-1, self.seen.size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # untouched pages are free
        for number, page in self.seen.pages.items():
            memory[number * PAGE_BYTES : number * PAGE_BYTES + len(page)] = page
        self._views = [view for view in self._views if view() is not None]
        self._views.append(weakref.ref(memory))
        return memoryview(memory).toreadonly()

    def _show(self, position: int, data: bytes) -> None:
        for view in self._views:
            memory = view()
            if memory is not None and position < len(memory):
                piece = data[: len(memory) - position]
                memory[position : position + len(piece)] = piece
