"""Segments end to end: one stream of bytes, appended at its end, read anywhere, dropped at its start.

Knows nothing of what the bytes mean. What is appended in one turn is written with one call (`flush`); a sync is handed
out as a ticket that the world runs in a thread, and covers all that was written before it was handed out.
A failed sync is final (R3): from then on nothing is written. A failed write leaves the end where it was.
"""

import contextlib
import errno
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable

from lakemq.errors import DiskIOError, LakeMQError, ReadError, ServiceUnavailableError, WriteError
from lakemq.storage import files
from lakemq.storage.disk import OUT_OF_FILES, Buffer, Disk, File, is_shortage
from lakemq.storage.walk import Segment

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, *OUT_OF_FILES)
_NOT_BEGUN = OUT_OF_FILES | {errno.EAGAIN}  # no file for the directory, no thread: no sync(2) says that
_AHEAD_BYTES = 64 << 10  # asked for at a time; of more the kernel may leave out the rest


class SyncTicket:
    """One sync to be run, off the loop: files first, then the directory if a name in it is new."""

    __slots__ = ("_disk", "directory", "files", "position")

    def __init__(self, position: int, to_sync: dict[int, File], disk: Disk, directory: str | None) -> None:
        self.position = position  # all before it is durable once `run` has returned
        self.files = to_sync  # by the base of their segments
        self.directory = directory
        self._disk = disk

    @property
    def only_file(self) -> File | None:
        """The file, if to sync it is all there is to do."""
        return next(iter(self.files.values())) if len(self.files) == 1 and self.directory is None else None

    def run(self) -> None:
        """Block until it is durable; an OSError is final, unless `is_not_begun` says that it came before the sync."""
        for file in self.files.values():
            file.sync()
        if self.directory is not None:
            self._disk.sync_dir(self.directory)


def is_not_begun(error: OSError) -> bool:
    """Tell whether a ticket failed before anything was synced: it may be run again, as no failed sync may (R3)."""
    return error.errno in _NOT_BEGUN


class Journal:
    """The bytes from `first_position` to `end_position`.

    written_position ≤ end_position: what this turn appended is in between.
    synced_position ≤ written_position: a power loss may take what is in between.
    The last `reserve_bytes` of a segment are for those who ask for them.
    """

    def __init__(
        self,
        disk: Disk,
        *,
        segment_bytes: int,
        reserve_bytes: int = 0,
        open_files_max: int = 64,
        maps_files: bool = False,
    ) -> None:
        self._disk = disk
        self._segment_bytes = segment_bytes
        self._reserve_bytes = reserve_bytes
        self._open_files_max = open_files_max
        self.maps_files = maps_files
        self._mapped: OrderedDict[int, memoryview] = OrderedDict()  # by base; the longest unused first
        self._bases: list[int] = []
        self._open: OrderedDict[int, File] = OrderedDict()  # by base; the longest unused first
        self._pending: list[Buffer] = []
        self._to_sync: dict[int, File] = {}  # written since the last ticket
        self._has_name_changes = False
        self._ticket: SyncTicket | None = None
        self._needs_heal = False
        self.failure: str | None = None  # why nothing is written any more
        self.no_room: str | None = None  # why messages are refused for now
        self._needed_bytes = 0  # for `no_room` to end
        self.end_position = self.written_position = self.synced_position = 0

    # --- opening -----------------------------------------------------------------------------------------------

    def attach(self, bases: list[int], end_position: int) -> None:
        """Take over what recovery found; everything before `end_position` is durable."""
        self._bases = bases
        self.end_position = self.written_position = self.synced_position = end_position

    def create(self, base: int) -> None:
        """Begin with an empty segment; durable when this returns."""
        self._begin_segment(base, self._make_file(base))
        self.end_position = self.written_position = base
        ticket = self.begin_sync()
        assert ticket is not None
        ticket.run()
        self.end_sync(ticket)

    # --- asking ------------------------------------------------------------------------------------------------

    @property
    def first_position(self) -> int:
        """The oldest byte kept."""
        return self._bases[0]

    @property
    def unsynced_bytes(self) -> int:
        """What a power loss could take now."""
        return self.end_position - self.synced_position

    def bases(self) -> list[int]:
        """The position of each segment's first byte, oldest first."""
        return list(self._bases)

    @property
    def is_at_segment_start(self) -> bool:
        """Whether the last segment is still empty."""
        return self.end_position == self._bases[-1]

    def end_of_segment_at(self, position: int) -> int:
        """Where the bytes of the segment end that holds that position."""
        at = bisect_right(self._bases, position)
        return self._bases[at] if at < len(self._bases) else self.end_position

    def fits(self, size: int, *, may_use_reserve: bool = False) -> bool:
        """Whether that many bytes have room in the last segment."""
        kept_bytes = 0 if may_use_reserve else self._reserve_bytes
        return self.end_position + size + kept_bytes <= self._bases[-1] + self._segment_bytes

    def has_room(self, size: int) -> bool:
        """Whether that many bytes of messages can be appended with nothing to be done before."""
        base = self._bases[-1]
        end = self.end_position
        return self.failure is None and base < end and end + size + self._reserve_bytes <= base + self._segment_bytes

    # --- writing -----------------------------------------------------------------------------------------------

    def append(self, buffers: tuple[Buffer, ...], size: int) -> int:
        """Put bytes at the end and return their position; `flush` writes them, so they must not change until then."""
        self.check_writable()
        assert self.fits(size, may_use_reserve=True), "the caller rolls first"
        position = self.end_position
        self._pending += buffers
        self.end_position = position + size
        return position

    def put(self, buffers: list[Buffer], size: int) -> None:
        """`append` without its checks, after `has_room`."""
        self._pending += buffers
        self.end_position += size

    def flush(self) -> None:
        """Write what this turn appended, in one call. WriteError or DiskIOError: none of it counts as written."""
        if not self._pending:
            return
        self.check_writable()
        base = self._bases[-1]
        pending, self._pending = self._pending, []
        try:
            file = self.file_of(base)
            if self._needs_heal:
                self._heal(file, base)
            self._needs_heal = True  # until all of it is written, the disk may hold any part of it
            file.write_at(self.written_position - base, pending)
        except OSError as error:
            self.end_position = self.written_position
            refusal = self._refusal(error, sum(map(len, pending)))
            self._heal_if_possible(base)
            raise refusal from error
        self._needs_heal = False
        self._to_sync[base] = file
        self.written_position = self.end_position
        if self.no_room is not None and self._needed_bytes < self._segment_bytes:
            self.no_room = None

    def discard(self) -> None:
        """Forget what was appended and not written."""
        self._pending = []
        self.end_position = self.written_position

    def roll(self) -> None:
        """Begin a new segment at the end, after this turn's bytes, which are written to the old one.

        WriteError if there is no room for it: nothing has happened then, and the turn goes on in the old one. If it is
        the turn that cannot be written, the turn is forgotten: `end_position` shows that.
        """
        self.check_writable()
        base = self.end_position
        try:
            file = self._make_file(base)
        except OSError as error:
            refusal = self._refusal(error, self._segment_bytes)
            if self.failure is not None:
                self.discard()
            raise refusal from error
        try:
            self.flush()
        except LakeMQError:
            self._discard_file(file)
            raise
        self._begin_segment(base, file)

    def check_writable(self) -> None:
        """DiskIOError once a sync has failed."""
        if self.failure is not None:
            raise DiskIOError(f"the journal is read-only: {self.failure}")

    # --- syncing -----------------------------------------------------------------------------------------------

    def begin_sync(self) -> SyncTicket | None:
        """A ticket for all that is written; None if all is synced, or while another ticket is out."""
        if self._ticket is not None or self.failure is not None or not (self._to_sync or self._has_name_changes):
            return None
        directory = files.JOURNAL_DIRECTORY if self._has_name_changes else None
        self._ticket = SyncTicket(self.written_position, self._to_sync, self._disk, directory)
        self._to_sync = {}
        self._has_name_changes = False
        return self._ticket

    def end_sync(self, ticket: SyncTicket, error: OSError | None = None) -> None:
        """The ticket was run; with an error the journal is read-only from now on (R3), unless nothing was synced."""
        assert ticket is self._ticket
        self._ticket = None
        if error is not None and is_not_begun(error):
            self._take_back(ticket)
            return
        if error is not None:
            self.failure = f"a sync failed ({error}); restart the broker after the disk is mended"
            return  # what this turn appended is refused by its flush
        self.synced_position = max(self.synced_position, ticket.position)
        self._close_unused()  # a roll while the ticket was out could not

    def _take_back(self, ticket: SyncTicket) -> None:
        """Nothing was synced: the next ticket has its files as well, those of segments that are still there."""
        for base in self._bases:
            if base in ticket.files:
                self._to_sync[base] = ticket.files[base]
        self._has_name_changes |= ticket.directory is not None
        self._give_files_back()

    # --- reading -----------------------------------------------------------------------------------------------

    def read(self, position: int, size: int) -> bytes:
        """Up to `size` written bytes from `position` within one segment; ReadError if the disk will not give them.

        ServiceUnavailableError if it is memory or open files that are short: the bytes may be as good as ever.
        """
        at = bisect_right(self._bases, position) - 1
        if at < 0 or position >= self.written_position:
            raise ReadError(f"position {position} is not in the journal")
        base = self._bases[at]
        end = self._bases[at + 1] if at + 1 < len(self._bases) else self.written_position
        try:
            return self.file_of(base).read_at(position - base, min(size, end - position))
        except (OSError, MemoryError) as error:
            if is_shortage(error):
                raise shortage_of(f"to read {size} bytes", error) from error
            raise ReadError(f"reading {size} bytes at position {position}: {error}") from error

    def will_need(self, positions: Iterable[int]) -> None:
        """What begins there is to be read soon: let the device bring it meanwhile; an error is no matter."""
        wanted = set()
        for position in positions:
            at = bisect_right(self._bases, position) - 1
            if at >= 0:
                base = self._bases[at]
                wanted.add((base, (position - base) // _AHEAD_BYTES))
        for base, block in sorted(wanted):
            with contextlib.suppress(OSError):
                self.file_of(base).will_need(block * _AHEAD_BYTES, _AHEAD_BYTES)

    def view(self, position: int, size: int) -> Buffer:
        """The bytes to be looked at only: a slice of the mapped file, if this journal maps its files and this one can
        be mapped.

        It stays what it is when the segment is dropped. Look at it first through something that survives a disk which
        does not give the bytes (`journal_record.whole_records`).
        """
        if not self.maps_files:
            return self.read(position, size)
        if position + size > self.written_position:
            raise ReadError(f"positions {position} to {position + size} are not in the journal")
        found = self.mapped_at(position, size)
        if found is None:
            return self.read(position, size)
        mapped, base = found
        return mapped[position - base : position - base + size]

    def mapped_at(self, position: int, size: int) -> tuple[memoryview, int] | None:
        """The mapped file of the segment that holds these bytes, and the position of its first one.

        None if it cannot be mapped: `read` knows whether that is for want of memory, or the disk's fault.
        """
        at = bisect_right(self._bases, position) - 1
        if at < 0:
            raise ReadError(f"position {position} is not in the journal")
        base = self._bases[at]
        mapped = self._mapped.get(base)
        if mapped is None or position + size - base > len(mapped):
            mapped = self._map(base)
        else:
            self._mapped.move_to_end(base)
        return None if mapped is None else (mapped, base)

    def segments(self) -> list[Segment]:
        """What is written, as a walk wants it."""
        ends = [*self._bases[1:], self.written_position]
        return [Segment(base, end, _OpenedAgain(self, base)) for base, end in zip(self._bases, ends, strict=True)]

    # --- the start and the end -------------------------------------------------------------------------------------

    def drop_first(self) -> None:
        """Remove the oldest segment, which may not be the last."""
        assert len(self._bases) > 1, "the last segment stays"
        self._remove(self._bases[0])
        del self._bases[0]  # only now: a file that stays must not become a hole in what a start finds

    def close(self) -> None:
        """Give all files back, without a sync."""
        self._mapped.clear()
        for file in self._open.values():
            file.close()
        self._open.clear()

    # --- inside ------------------------------------------------------------------------------------------------

    def _make_file(self, base: int) -> File:
        """The file of a segment to come; if there is no room for it, none is left."""
        file = self._open_file(base, create=True)
        try:
            file.truncate(0)  # what a crash may have left there
            file.preallocate(self._segment_bytes)
        except OSError:
            self._discard_file(file)
            raise
        return file

    def _begin_segment(self, base: int, file: File) -> None:
        self.no_room = None
        if self._bases:
            self._give_back_room(self._bases[-1], base)
        self._bases.append(base)
        self._open[base] = file
        self._to_sync[base] = file
        self._has_name_changes = True
        self._needs_heal = False
        self._close_unused()

    def _give_back_room(self, base: int, end: int) -> None:
        """The rest of a finished segment is not needed; a file that stays too long is only too long."""
        try:
            self.file_of(base).truncate(end - base)
        except OSError:
            return

    def _discard_file(self, file: File) -> None:
        """Remove the file of a segment that is not to be.

        At the next start it would hide what the segment before it still gets: so its going is made durable together
        with that, and if it does not go there is no going on.
        """
        file.close()
        self._has_name_changes = True
        try:
            self._disk.remove(file.path)
        except OSError as error:
            self.failure = f"a file could not be removed ({error}); restart the broker after the disk is mended"

    def _heal(self, file: File, base: int) -> None:
        """Wipe what a failed write may have left: it must not be taken for a record later."""
        self._heal_from(file, self.written_position - base)
        self._needs_heal = False

    def _heal_if_possible(self, base: int) -> None:
        """At once, for a kill must not leave what was refused; if it cannot be, before the next write."""
        if self.failure is None and self._needs_heal:
            try:
                self._heal(self.file_of(base), base)
            except OSError:
                return

    def _heal_from(self, file: File, offset: int) -> None:
        file.truncate(offset)
        file.preallocate(self._segment_bytes)

    def look_for_room(self) -> None:
        """See whether a disk that was full has room again: it may be that nobody appends to find out."""
        if self.no_room is not None:
            with contextlib.suppress(OSError):
                if self._disk.free_bytes() >= self._needed_bytes:
                    self.no_room = None

    def _refusal(self, error: OSError, needed_bytes: int) -> WriteError | DiskIOError:
        if error.errno in OUT_OF_FILES:
            return WriteError(f"no file can be opened for a new segment: {error}")
        if error.errno in NO_ROOM:
            self.no_room, self._needed_bytes = f"{self._full(needed_bytes)}: {error.strerror or error}", needed_bytes
            return WriteError(self.no_room)
        self.failure = f"a write failed ({error}); restart the broker after the disk is mended"
        self.discard()
        return DiskIOError(f"the journal could not be written: {error}")

    def _full(self, needed_bytes: int) -> str:
        text = f"the disk of {self._disk.place} is full"
        with contextlib.suppress(OSError):
            free_mib = self._disk.free_bytes() / (1 << 20)
            text += f": {needed_bytes / (1 << 20):.1f} MiB are needed, {free_mib:.1f} MiB are free"
        return text

    def file_of(self, base: int) -> File:
        """The open file of a segment, which the journal closes when it likes: use it at once."""
        file = self._open.get(base)
        if file is None:
            file = self._open[base] = self._open_file(base)
            self._close_unused()
        else:
            self._open.move_to_end(base)
        return file

    def _open_file(self, base: int, *, create: bool = False) -> File:
        """Open a segment's file, if need be at the price of others that can be opened again (F26)."""
        path = f"{files.JOURNAL_DIRECTORY}/{files.segment_name(base)}"
        try:
            return self._disk.open(path, create=create)
        except OSError as error:
            if error.errno not in OUT_OF_FILES:
                raise
            self._give_files_back()
            return self._disk.open(path, create=create)

    def _give_files_back(self) -> None:
        """Open files are short: keep none that is not in use. A mapping may hold one as well."""
        self._mapped.clear()
        self._close_unused(open_files_max=0)

    def _map(self, base: int) -> memoryview | None:
        """Map a segment, and let the longest unused mapping go: whoever holds a slice of it keeps it alive."""
        self._mapped.pop(base, None)
        while len(self._mapped) >= self._open_files_max:
            self._mapped.popitem(last=False)
        try:
            mapped = self._mapped[base] = self.file_of(base).map()
        except (OSError, MemoryError):
            return None
        return mapped

    def _close_unused(self, open_files_max: int | None = None) -> None:
        """Keep to the cap; the last segment and those being synced stay open."""
        cap = self._open_files_max if open_files_max is None else open_files_max
        kept = {*self._bases[-1:], *self._to_sync}
        for base in list(self._open)[: max(len(self._open) - cap, 0)]:
            if base not in kept and self._ticket is None:
                self._open.pop(base).close()

    def _remove(self, base: int) -> None:
        self._mapped.pop(base, None)
        file = self._open.pop(base, None)
        if file is not None:
            file.close()
        self._to_sync.pop(base, None)
        self._disk.remove(f"{files.JOURNAL_DIRECTORY}/{files.segment_name(base)}")


class _OpenedAgain:
    """A segment for a walk, whose file is opened again if it was closed meanwhile to keep to the cap."""

    def __init__(self, journal: Journal, base: int) -> None:
        self._journal = journal
        self._base = base

    def read_at(self, position: int, size: int) -> bytes:
        try:
            return self._journal.file_of(self._base).read_at(position, size)
        except (OSError, MemoryError) as error:
            if is_shortage(error):  # for a walk, what a disk does not give is damage: this is not the disk
                raise shortage_of(f"to read {size} bytes", error) from error
            raise


def shortage_of(what_for: str, error: BaseException) -> ServiceUnavailableError:
    """The refusal for want of memory or open files; nothing is wrong with what is stored."""
    return ServiceUnavailableError(
        f"the broker is short of memory or open files {what_for}: {str(error) or 'no memory'}"
    )
