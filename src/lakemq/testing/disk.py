"""SimDisk: a disk in memory that forgets what was not synced, and fails when it is told to.

The running program sees what a real disk would show it. Beside that, the disk keeps what is durable, so that a test
can cut the power at any moment (`crash_after`, `lose_power`), kill the program (`lose_process`), fill the disk
(`capacity_bytes`), let operations fail (`fail`) and damage what is stored (`flip_bits`).
Space is counted by file length. No threads, clock or randomness of its own: the same calls give the same disk.
"""

import errno
from collections.abc import Callable, Sequence
from random import Random

from lakemq.storage.disk import Buffer, DirectoryLockedError, Disk, File, Lock, split_path
from lakemq.testing.content import Extend, FileNode, Truncate, Write
from lakemq.testing.crash import draw_survivor
from lakemq.testing.faults import CHANGES, Fault
from lakemq.testing.tree import Directory, NameStep, Tree, refuse

ROOMY_BYTES = 1 << 40  # free space of a disk without a capacity

Trace = list[tuple[str, str, tuple[int | str, ...]]]


class PowerLost(BaseException):
    """The power is gone, and the program with it: not an Exception, so that none of its handlers lives on."""


class SimDisk(Disk):
    """A Disk in memory. One object lives through many starts of the program: after a power loss, just open it again.

    `crash_points` counts the operations since the last start that change the disk (`faults.CHANGES`);
    with `crash_after` = n the first n of them are done and the next one raises PowerLost instead.
    `trace`, if set to a list, receives (operation, path, details) of each one that was carried out; details are
    (position, length) of a write, (size,) of preallocate and truncate, (target,) of a rename.
    `faults` is what `fail` planned; clear it to heal the disk.
    """

    place = "memory"

    def __init__(self, *, capacity_bytes: int | None = None) -> None:
        self.capacity_bytes = capacity_bytes
        self.faults: list[Fault] = []
        self.trace: Trace | None = None
        self.crash_points = 0
        self.crash_after: int | None = None
        self._tree = Tree()
        self._open_files: dict[SimFile, None] = {}  # in the order in which they were opened
        self._locked: set[FileNode] = set()
        self._is_off = False

    # What the program asks for.

    def open(self, path: str, *, create: bool = False) -> File:
        return self._open(path, create)

    def names(self, directory: str) -> list[str]:
        self.check_power()
        node = self._tree.find(directory)
        if isinstance(node, FileNode):
            refuse(errno.ENOTDIR, directory)
        return sorted(node.seen) if node else []

    def exists(self, path: str) -> bool:
        self.check_power()
        try:
            return self._tree.find(path) is not None
        except NotADirectoryError:
            return False

    def is_dir(self, path: str) -> bool:
        return self.exists(path) and isinstance(self._tree.find(path), Directory)

    def make_dir(self, path: str) -> None:
        self.check_power()
        names = split_path(path)
        for count in range(1, len(names) + 1):
            part = "/".join(names[:count])
            node = self._tree.find(part)
            if node is None:
                self._do_names("create", part, self._tree.plan_create(part, Directory()))
            elif isinstance(node, FileNode):
                refuse(errno.EEXIST, path)

    def rename(self, source: str, target: str) -> None:
        self.check_power()
        step = self._tree.plan_rename(source, target)
        if step is not None:
            self._do_names("rename", source, step, target)

    def remove(self, path: str) -> None:
        self.check_power()
        self._do_names("remove", path, self._tree.plan_remove(path))

    def sync_dir(self, directory: str) -> None:
        self.check_power()
        node = self._tree.find(directory)
        if node is None:
            refuse(errno.ENOENT, directory)
        if isinstance(node, FileNode):
            refuse(errno.ENOTDIR, directory)
        self.begin("sync_dir", directory)
        self._tree.sync(node)

    def sync_all(self) -> None:
        self.check_power()
        self.begin("sync_all", "")
        for node in self._tree.files():
            node.sync()
        for directory in self._tree.directories():
            self._tree.sync(directory)

    def free_bytes(self) -> int:
        self.check_power()
        if self.capacity_bytes is None:
            return ROOMY_BYTES
        nodes = {*self._tree.files(), *(file.node for file in self._open_files)}  # a removed file goes with its handles
        return max(0, self.capacity_bytes - sum(node.seen.size for node in nodes))

    def lock(self, path: str) -> Lock:
        file = self._open(path, create=True)
        if file.node in self._locked:
            file.close()
            raise DirectoryLockedError(f"{path} is locked by another owner")
        self._locked.add(file.node)
        return SimLock(file, self._locked)

    # What the test asks for.

    def lose_power(self, rng: Random, *, mode: str | None = None) -> None:
        """Leave one legal state of those a power loss may leave: see `crash.MODES`; the default is "mixed"."""
        self._tree = draw_survivor(self._tree, rng, mode or "mixed")
        self.lose_process()

    def lose_process(self) -> None:
        """Kill the program, not the machine: handles and locks go, all that was written stays, synced or not (F01)."""
        for file in self._open_files:
            file.is_stale = True
        self._open_files = {}
        self._locked = set()  # not cleared: a lock of before must not release one of after
        self._is_off = False
        self.crash_points = 0
        self.crash_after = None

    def clone(self) -> "SimDisk":
        """An independent copy of what is stored, synced or not, with no program running on it and no faults planned."""
        twin = SimDisk(capacity_bytes=self.capacity_bytes)
        twin._tree = self._tree.copy()
        return twin

    def fail(
        self,
        operation: str,
        error: OSError | MemoryError,
        *,
        after: int = 0,
        path_contains: str = "",
        times: int = 1,
        wrote: int | None = None,
    ) -> None:
        """Let an operation fail, once `after` more of its kind and path have passed, and `times` in a row.

        `wrote` says what was done all the same: bytes of a write, data operations of a sync. After a failed sync the
        bytes of the others are seen but never become durable, whatever a second sync says (R3, F16).
        An "open" is of a file, new or not; a "map" or "read" that fails for want of memory may be a MemoryError.
        """
        self.faults.append(Fault(operation, error, after, path_contains, times, wrote or 0))

    def flip_bits(self, path: str, rng: Random, count: int, start: int = 0, end: int | None = None) -> list[int]:
        """Flip `count` different bits between two positions and return the positions of their bytes (F21).

        For bytes at rest: where a write is still unsynced, a later sync or power loss may bring its bytes back.
        """
        node = self._tree.find(path)
        if not isinstance(node, FileNode):
            refuse(errno.ENOENT, path)
        end = node.seen.size if end is None else min(end, node.seen.size)
        bits = sorted(rng.sample(range(start * 8, end * 8), count))
        for bit in bits:
            node.damage(bit // 8, 1 << bit % 8)
        return sorted({bit // 8 for bit in bits})

    def used_bytes(self) -> int:
        """The length of all files that have a name."""
        return sum(node.seen.size for node in self._tree.files())

    def open_paths(self) -> list[str]:
        """What the program has open, by the names it opened it under."""
        return [file.path for file in self._open_files]

    # What the files of this disk ask for.

    def check_power(self) -> None:
        if self._is_off:
            raise PowerLost("the disk is off until lose_power or lose_process says what the next start finds")

    def begin(
        self, operation: str, path: str, *details: int | str, on_fault: Callable[[int], object] | None = None
    ) -> None:
        """Count and trace an operation, or raise what was planned for it, with `on_fault` called for the part done."""
        self.check_power()
        if operation in CHANGES:
            if self.crash_after is not None and self.crash_points >= self.crash_after:
                self._is_off = True
                raise PowerLost(f"before {operation} of {path!r}, operation {self.crash_points}")
            self.crash_points += 1
        self.check_fault(operation, path, on_fault)
        if self.trace is not None:
            self.trace.append((operation, path, details))

    def check_fault(self, operation: str, path: str, on_fault: Callable[[int], object] | None = None) -> None:
        """Raise what was planned for an operation."""
        hits = [fault for fault in self.faults if fault.hits(operation, path)]
        if hits:
            if on_fault is not None:
                on_fault(hits[0].wrote)
            raise hits[0].error

    def forget(self, file: "SimFile") -> None:
        del self._open_files[file]

    def _open(self, path: str, create: bool) -> "SimFile":
        self.check_power()
        self.check_fault("open", path)
        node = self._tree.find(path)
        if node is None and create:
            node = FileNode()
            self._do_names("create", path, self._tree.plan_create(path, node))
        if node is None:
            refuse(errno.ENOENT, path)
        if isinstance(node, Directory):
            refuse(errno.EISDIR, path)
        file = SimFile(self, path, node)
        self._open_files[file] = None
        return file

    def _do_names(self, operation: str, path: str, step: NameStep, *details: str) -> None:
        self.begin(operation, path, *details)
        self._tree.do(step)


class SimFile(File):
    """An open file of a SimDisk. A handle from before a power loss raises PowerLost: its program no longer exists."""

    def __init__(self, disk: SimDisk, path: str, node: FileNode) -> None:
        self.path = path
        self.node = node
        self.is_stale = False
        self._disk = disk
        self._is_closed = False

    def size(self) -> int:
        self._check()
        return self.node.seen.size

    def forget_cached(self, position: int) -> None:
        self._check(position)  # and no more: this memory goes on pretending, the worse of two cases

    def will_need(self, position: int, size: int) -> None:
        self._check(position)

    def data_end(self) -> int:
        return self.size()  # a file system that cannot tell

    def write_at(self, position: int, buffers: Sequence[Buffer]) -> int:
        self._check(position)
        data = b"".join(buffers)
        self._disk.begin(
            "write", self.path, position, len(data), on_fault=lambda wrote: self._write(position, data[:wrote])
        )
        room = self._room(position + len(data)) - position
        self._write(position, data[: max(0, room)])
        if room < len(data):
            refuse(errno.ENOSPC, self.path)
        return len(data)

    def read_at(self, position: int, size: int) -> bytes:
        self._check(position, size)
        self._disk.begin("read", self.path)
        return self.node.seen.read(position, size)

    def map(self) -> memoryview:
        self._check()
        self._disk.check_fault("map", self.path)
        return self.node.map()

    def sync(self) -> None:
        self._check()
        self._disk.begin("sync", self.path, on_fault=self.node.fail_sync)
        self.node.sync()

    def truncate(self, size: int) -> None:
        self._check(size)
        self._disk.begin("truncate", self.path, size)
        self._resize(Truncate(size))

    def preallocate(self, size: int) -> None:
        self._check(size)
        self._disk.begin("preallocate", self.path, size)
        if size > self.node.seen.size:
            self._resize(Extend(size))

    def close(self) -> None:
        if not self._is_closed and not self.is_stale:
            self._disk.forget(self)
        self._is_closed = True

    def _check(self, *numbers: int) -> None:
        """Refuse a handle that is stale or closed, and negative numbers, as the system does."""
        if self.is_stale:
            raise PowerLost(f"{self.path!r} was opened before the power was lost")
        self._disk.check_power()
        if self._is_closed:
            refuse(errno.EBADF, self.path)
        if any(number < 0 for number in numbers):
            refuse(errno.EINVAL, self.path)

    def _room(self, size: int) -> int:
        """How long the file can get on the way to this size."""
        if size <= self.node.seen.size or self._disk.capacity_bytes is None:
            return size
        return min(size, self.node.seen.size + self._disk.free_bytes())

    def _resize(self, operation: Truncate | Extend) -> None:
        """Go as far as there is room: a full disk may leave a file that has grown part of the way."""
        room = self._room(operation.size)
        self.node.do(operation if room == operation.size else Extend(room))
        if room < operation.size:
            refuse(errno.ENOSPC, self.path)

    def _write(self, position: int, data: bytes) -> None:
        if data:
            self.node.do(Write(position, data))


class SimLock(Lock):
    """An entry in the disk's set of locked files, and the open file that carries it."""

    def __init__(self, file: SimFile, locked: set[FileNode]) -> None:
        self._file = file
        self._locked = locked
        self._is_held = True

    def release(self) -> None:
        if self._is_held:  # else it may be the next owner's by now
            self._locked.discard(self._file.node)
            self._file.close()
        self._is_held = False
