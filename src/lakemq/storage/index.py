"""One partition's index: fixed-width entries, one per MESSAGE, from index to the place of its bytes in the journal.

Derived from the journal and never trusted blindly: each entry has a CRC, and what is short, stale or damaged is made
again. Entries of bytes that are not synced stay in memory (R4); the rest goes to files of `entries_per_file`, so
memory does not grow with what is stored. All files but the last are full, which makes an entry's place arithmetic.
"""

import struct
from bisect import bisect_right
from typing import NamedTuple, Protocol

from lakemq.checksum import crc32
from lakemq.record import BATCH_BIT, Buffer, attributes_of
from lakemq.storage import files
from lakemq.storage.disk import File, is_shortage

try:
    import lakemq._hot as _hot
except ImportError:  # no compiler when it was installed
    _hot = None  # type: ignore[assignment]

# first index, position, length, index count, messages after it in its record, tag hash,
# offset in its record, the record's length, store time
_ENTRY = struct.Struct(">qqihHIiiq")
_CRC = struct.Struct(">I")
_FIRST_TWO = struct.Struct(">qq")
_POSITION_OFFSET = 8
_STORE_TIME_OFFSET = 36
_LONG = struct.Struct(">q")
_MESSAGE = struct.Struct(">i2xq4xh21xh")  # length, index, systemCode, flag
ENTRY_BYTES = _ENTRY.size + _CRC.size
ENTRIES_PER_FILE = 400_000  # 19 MB
_SEARCH_ENTRIES = 32  # read at once around a guess

NO_TAG = 0
UNKNOWN_TAG = 1  # look into the message


class IndexDamagedError(Exception):
    """An entry is not what was written: the index must be made again from the journal."""


class Entry(NamedTuple):
    """Where one MESSAGE is."""

    first_index: int
    position: int
    length: int
    index_count: int
    messages_after: int
    tag_hash: int
    record_offset: int
    record_length: int
    store_time_ms: int

    @property
    def next_index(self) -> int:
        """The first index after it."""
        return self.first_index + self.index_count

    @property
    def record_position(self) -> int:
        """Where its record begins."""
        return self.position - self.record_offset


def unpack_entry(data: bytes, offset: int) -> Entry:
    """The entry at `offset`; IndexDamagedError if it is none."""
    crc = _CRC.unpack_from(data, offset + _ENTRY.size)[0]
    if crc != crc32(data[offset : offset + _ENTRY.size]):
        raise IndexDamagedError(f"an index entry has the wrong CRC {crc:#010x}")
    return tuple.__new__(Entry, _ENTRY.unpack_from(data, offset))  # half the time of Entry(*…), and it is asked often


def make_entries(
    data: Buffer, start: int, count: int, position: int, record_offset: int, record_length: int, store_time_ms: int
) -> bytes:
    """The entries of `count` stamped messages; the first is at `start` in data and at `position` in the journal."""
    if _hot is not None:
        return _hot.make_entries(data, start, count, position, record_offset, record_length, store_time_ms)
    return make_entries_python(data, start, count, position, record_offset, record_length, store_time_ms)


def make_entries_python(
    data: Buffer, start: int, count: int, position: int, record_offset: int, record_length: int, store_time_ms: int
) -> bytes:
    """The definition of `make_entries`."""
    out = bytearray()
    at = start
    for left in range(count - 1, -1, -1):
        length, index, code, flag = _MESSAGE.unpack_from(data, at)
        is_batch = code & BATCH_BIT
        tag = UNKNOWN_TAG if is_batch else tag_hash(attributes_of(data, at))
        place = position + at - start
        entry = _ENTRY.pack(
            index,
            place,
            length,
            flag if is_batch else 1,
            left,
            tag,
            record_offset + at - start,
            record_length,
            store_time_ms,
        )
        out += entry + _CRC.pack(crc32(entry))
        at += length
    return bytes(out)


def tag_hash(attributes: bytes) -> int:
    """A number that differs for different TAGS, as far as can be told without parsing: 0 none, 1 cannot tell."""
    if b"\\" in attributes or b"\r" in attributes:  # an escaped key, another line end: only a parser can tell
        return UNKNOWN_TAG
    if b"TAGS" not in attributes:
        return NO_TAG
    if attributes.count(b"TAGS") == 1:
        for line in attributes.split(b"\n"):
            if line.startswith(b"TAGS=") and line[5:6] not in (b" ", b"\t", b"\f"):
                if b"," in line:  # several tags: each of them counts
                    return UNKNOWN_TAG
                return max(crc32(line[5:]), 2)
    return UNKNOWN_TAG


class IndexFiles(Protocol):
    """Who opens index files, and keeps their number within a cap."""

    def names(self, directory: str) -> list[str]: ...

    def open(self, path: str, *, create: bool = False) -> File: ...

    def remove(self, path: str) -> None: ...

    def make_dir(self, path: str) -> None: ...


class PartitionIndex:
    """The entries of one partition: those in files, then those in memory."""

    __slots__ = (
        "_directory",
        "_entries_per_file",
        "_files",
        "_firsts",
        "_in_last_file",
        "_pending",
        "hint",
        "is_whole",
        "known_first",
        "next_index",
        "partition",
        "synced_index",
        "topic",
        "visible_index",
    )

    def __init__(
        self, index_files: IndexFiles, topic: int, partition: int, entries_per_file: int = ENTRIES_PER_FILE
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.next_index = 0  # of the message to be appended next
        self.visible_index = 0  # consumers may read what is below
        self.synced_index = 0  # a power cut leaves what is below
        self.hint = (-1, 0)  # an index and its entry's ordinal: where a fetch ended, the next one begins
        self.is_whole = True  # False: it is to be made again before anybody asks
        # The first index kept while the journal begins at that position, found when asked for.
        self.known_first = (-1, 0)
        self._files = index_files
        self._entries_per_file = entries_per_file
        self._directory = files.index_directory(topic, partition)
        self._firsts: list[int] = []  # the first index of each file
        self._in_last_file = 0
        self._pending = bytearray()

    @property
    def entry_count(self) -> int:
        """Entries in all, files and memory."""
        return self.filed_count + len(self._pending) // ENTRY_BYTES

    @property
    def filed_count(self) -> int:
        """Entries in files."""
        return max(len(self._firsts) - 1, 0) * self._entries_per_file + self._in_last_file

    @property
    def pending_bytes(self) -> int:
        """Entries in memory, in bytes."""
        return len(self._pending)

    def attach(self, last_file_first: int, in_last_file: int, next_index: int, *, may_have_gaps: bool) -> bool:
        """Take over an earlier run's files up to the `in_last_file`-th entry of one; False if they are not sound.

        Files after that one are removed: what is in them is made again.
        """
        self.next_index = self.visible_index = self.synced_index = next_index
        for name in self._files.names(self._directory):
            first = files.index_file_first(name)
            if first is None:
                continue
            if in_last_file and first <= last_file_first:
                self._firsts.append(first)
            else:
                self._files.remove(f"{self._directory}/{name}")
        self._in_last_file = in_last_file
        return self._is_sound(last_file_first, may_have_gaps)

    def reach(self) -> tuple[int, int]:
        """The first index of the last file and the number of entries in it, as `attach` wants them."""
        if not self.is_whole:
            return 0, 0  # never sound: a start makes it again
        return (self._firsts[-1], self._in_last_file) if self._firsts else (-1, 0)

    def begins_behind(self, index: int) -> bool:
        """Whether there are files, and the first of them begins later than that."""
        return bool(self._firsts) and self._firsts[0] > index

    def add(self, entries: bytes, next_index: int) -> None:
        """Entries of messages just appended."""
        self._pending += entries
        self.next_index = next_index

    def undo(self, pending_bytes: int, next_index: int) -> None:
        """Take back what was added and not written to the journal."""
        # By index: a filing in between has shortened what is pending.
        while self._pending and _LONG.unpack_from(self._pending, len(self._pending) - ENTRY_BYTES)[0] >= next_index:
            del self._pending[-ENTRY_BYTES:]
        self.next_index = next_index

    def flush(self, synced_position: int) -> None:
        """Put the entries of synced bytes into files."""
        ready = self._count_below(synced_position)
        while ready:
            if not self._firsts or self._in_last_file == self._entries_per_file:
                self._begin_file(_LONG.unpack_from(self._pending)[0])
            count = min(ready, self._entries_per_file - self._in_last_file)
            file = self._files.open(self._path(self._firsts[-1]), create=True)
            with memoryview(self._pending) as view, view[: count * ENTRY_BYTES] as part:
                file.write_at(self._in_last_file * ENTRY_BYTES, [part])
            self._in_last_file += count
            del self._pending[: count * ENTRY_BYTES]  # now: if the next write is refused, these are filed all the same
            ready -= count

    def read(self, ordinal: int, count: int) -> bytes:
        """Up to `count` entries from the `ordinal`-th on; fewer where a file ends."""
        filed = self.filed_count
        if ordinal >= filed:
            at = (ordinal - filed) * ENTRY_BYTES
            with memoryview(self._pending) as view:
                return bytes(view[at : at + count * ENTRY_BYTES])
        number, at = divmod(ordinal, self._entries_per_file)
        is_last = number == len(self._firsts) - 1
        in_file = self._in_last_file if is_last else self._entries_per_file
        wanted = min(count, in_file - at) * ENTRY_BYTES
        data = self._files.open(self._path(self._firsts[number])).read_at(at * ENTRY_BYTES, wanted)
        if len(data) != wanted:
            raise IndexDamagedError(f"{self._path(self._firsts[number])} is too short")
        return data

    def find(self, index: int) -> int:
        """The ordinal of the entry that holds `index`, or of the first one after it where none does."""
        if index == self.hint[0]:
            return self.hint[1]
        low, high, low_index, high_index = self._bounds(index)
        while low < high:
            # Where entries count alike, which is nearly always, the first guess is right.
            span = max(high_index - low_index, 1)
            guess = low + min(max(index - low_index, 0) * (high - low) // span, high - low - 1)
            start = max(low, guess - 1)
            block = self.read(start, min(_SEARCH_ENTRIES, high - start))
            first, last = unpack_entry(block, 0), unpack_entry(block, len(block) - ENTRY_BYTES)
            if index < first.first_index:
                high, high_index = start, first.first_index
            elif index >= last.next_index:
                low, low_index = start + len(block) // ENTRY_BYTES, last.next_index
            else:
                return start + _find_in(block, index)
            if high - low > _SEARCH_ENTRIES:  # guesses may creep: halve as well
                middle = (low + high) // 2
                found = unpack_entry(self.read(middle, 1), 0)
                if index < found.first_index:
                    high, high_index = middle, found.first_index
                else:
                    low, low_index = middle, found.first_index
        return low

    def find_time(self, store_time_ms: int) -> int:
        """The ordinal of the first entry stored at or after that time."""
        return self._bisect(_STORE_TIME_OFFSET, store_time_ms, 0, self.entry_count)

    def find_position(self, position: int) -> int:
        """The ordinal of the first entry at or after that position of the journal."""
        return self._bisect(_POSITION_OFFSET, position, 0, self.entry_count)

    def entry(self, ordinal: int) -> Entry:
        """One entry."""
        return unpack_entry(self.read(ordinal, 1), 0)

    def first_index_from(self, ordinal: int) -> int:
        """The first index of that entry; the next index if there is no such entry."""
        return self.entry(ordinal).first_index if ordinal < self.entry_count else self.next_index

    def drop_before(self, position: int) -> None:
        """Remove the files whose entries are all before that position."""
        while len(self._firsts) > 1:
            if self.entry(self._entries_per_file - 1).position >= position:
                return
            self.hint = (-1, 0)  # ordinals change
            self._files.remove(self._path(self._firsts.pop(0)))

    def entries_from(self, position: int) -> bytes:
        """The entries in memory at or after that position of the journal."""
        return bytes(self._pending[self._count_below(position) * ENTRY_BYTES :])

    def clear(self) -> None:
        """Remove all files, to be made again."""
        self.hint = (-1, 0)
        for name in self._files.names(self._directory):
            if files.index_file_first(name) is not None:
                self._files.remove(f"{self._directory}/{name}")
        self._firsts.clear()
        self._in_last_file = 0
        self._pending.clear()

    def _bounds(self, index: int) -> tuple[int, int, int, int]:
        """The ordinals between which `index` is, and the first indexes there, as far as names tell."""
        filed = self.filed_count
        pending_first: int = _LONG.unpack_from(self._pending)[0] if self._pending else self.next_index
        if index >= pending_first:
            return filed, self.entry_count, pending_first, self.next_index
        number = bisect_right(self._firsts, index) - 1
        if number < 0:
            return 0, 0, 0, 0
        low = number * self._entries_per_file
        is_last = number == len(self._firsts) - 1
        after = pending_first if is_last else self._firsts[number + 1]
        return low, min(low + self._entries_per_file, filed), self._firsts[number], after

    def _bisect(self, offset: int, value: int, low: int, high: int) -> int:
        while low < high:
            middle = (low + high) // 2
            data = self.read(middle, 1)
            unpack_entry(data, 0)  # its CRC
            if _LONG.unpack_from(data, offset)[0] < value:
                low = middle + 1
            else:
                high = middle
        return low

    def _count_below(self, position: int) -> int:
        """How many pending entries are of bytes before that position."""
        low, high = 0, len(self._pending) // ENTRY_BYTES
        while low < high:
            middle = (low + high) // 2
            if _LONG.unpack_from(self._pending, middle * ENTRY_BYTES + _POSITION_OFFSET)[0] < position:
                low = middle + 1
            else:
                high = middle
        return low

    def _begin_file(self, first_index: int) -> None:
        if not self._firsts:
            self._files.make_dir(self._directory)
        self._files.open(self._path(first_index), create=True).truncate(0)  # what a crash may have left there
        self._firsts.append(first_index)
        self._in_last_file = 0

    def _is_sound(self, last_file_first: int, may_have_gaps: bool) -> bool:
        """Whether every file is as long as it must be and its ends are right: a cheap look at every start."""
        if not self._firsts:
            return last_file_first < 0
        if self._firsts[-1] != last_file_first or self._in_last_file > self._entries_per_file:
            return False
        try:
            for number, first in enumerate(self._firsts):
                is_last = number == len(self._firsts) - 1
                count = self._in_last_file if is_last else self._entries_per_file
                size = self._files.open(self._path(first)).size()
                if size < count * ENTRY_BYTES or (size > count * ENTRY_BYTES and not is_last):
                    return False
                ordinal = number * self._entries_per_file
                after = self.entry(ordinal + count - 1).next_index
                expected = self.next_index if is_last else self._firsts[number + 1]
                if self.entry(ordinal).first_index != first or not (
                    after == expected or (may_have_gaps and after < expected)
                ):
                    return False
        except (IndexDamagedError, OSError, struct.error) as error:
            if is_shortage(error):
                raise
            return False
        return True

    def _path(self, first_index: int) -> str:
        return f"{self._directory}/{files.index_file_name(first_index)}"


def _find_in(block: bytes, index: int) -> int:
    """The number of the entry in `block` that holds `index`, or of the one behind the gap that it is in.

    They are in order, and the first begins before it and the last ends behind it.
    """
    low, high = 0, len(block) // ENTRY_BYTES - 1
    while low < high:
        middle = (low + high + 1) // 2
        if _LONG.unpack_from(block, middle * ENTRY_BYTES)[0] <= index:
            low = middle
        else:
            high = middle - 1
    # What led here was not checked. Two whole entries side by side with the index between their beginnings prove it.
    if index < unpack_entry(block, low * ENTRY_BYTES).next_index:
        return low
    unpack_entry(block, (low + 1) * ENTRY_BYTES)
    return low + 1
