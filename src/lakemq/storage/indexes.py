"""All indexes of a group: one per partition, filed after a sync, made again when one turns out to be damaged."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeVar

from lakemq.errors import ReadError
from lakemq.storage.config import StorageConfig
from lakemq.storage.disk import is_shortage
from lakemq.storage.index import IndexDamagedError, PartitionIndex, make_entries
from lakemq.storage.index_files import IndexFileCache
from lakemq.storage.journal import Journal, shortage_of
from lakemq.storage.journal_record import HEADER_BYTES, MESSAGE_RECORDS, note_bytes
from lakemq.storage.tables import DamagedRange, PartitionRow
from lakemq.storage.walk import Found, Walk, first_indexes_of

_NOTES_MAX = 1000
_T = TypeVar("_T")
Key = tuple[int, int]
"""Topic number and partition."""


class Indexes:
    """The indexes by (topic, partition), and the journal they are derived from."""

    def __init__(
        self,
        config: StorageConfig,
        index_files: IndexFileCache,
        journal: Journal,
        found: dict[Key, PartitionIndex],
        damage: list[DamagedRange],
    ) -> None:
        self._config = config
        self._files = index_files
        self._journal = journal
        self._by_key = found
        # With entries of synced messages in memory: those that recovery had no room to file.
        self._unfiled = {key: index for key, index in found.items() if index.pending_bytes}
        self._unfiled_bytes = 0  # about: those of failed appends count until the next filing
        self._head: tuple[int, dict[Key, int] | None] = (-1, None)
        self.damage = damage
        self.notes: list[str] = []

    def get(self, key: Key) -> PartitionIndex | None:
        """The index of a partition; None if it never had a message."""
        return self._by_key.get(key)

    def get_or_make(self, key: Key) -> PartitionIndex:
        """The index of a partition, empty if it is new."""
        index = self._by_key.get(key)
        if index is None:
            index = self._by_key[key] = PartitionIndex(self._files, *key, self._config.entries_per_file)
        return index

    def forget(self, key: Key) -> None:
        """A partition whose first messages could not be written."""
        del self._by_key[key]

    def keys(self) -> list[Key]:
        """Every partition that ever had a message."""
        return sorted(self._by_key)

    def rows(self) -> list[PartitionRow]:
        """How far every partition has come, for a segment's head."""
        return [PartitionRow(*key, index.next_index) for key, index in self._by_key.items()]

    def synced_rows(self) -> list[PartitionRow]:
        """How far what is synced and filed reaches; for a checkpoint."""
        return [
            PartitionRow(*key, index.synced_index, *index.reach())
            for key, index in self._by_key.items()
            if index.synced_index > 0
        ]

    def add(self, index: PartitionIndex, entries: bytes, next_index: int) -> None:
        """Entries of messages just appended."""
        index.add(entries, next_index)
        self._unfiled_bytes += len(entries)

    def synced(self, index: PartitionIndex, synced_index: int) -> Key | None:
        """Messages of that partition are synced: let them be seen. None if they could be seen before."""
        key = index.topic, index.partition
        index.synced_index = synced_index
        self._unfiled[key] = index
        if index.visible_index >= synced_index:
            return None
        index.visible_index = synced_index
        return key

    def file_if_many(self) -> None:
        """Put entries into files once they take too much memory; on a full disk they stay, and are tried again.

        That is bounded too: a full disk has no room for new segments either.
        """
        if self._unfiled_bytes <= self._config.index_pending_bytes_max:
            return
        try:
            self.file()
        except OSError as error:
            self.note(f"index entries could not be filed: {error}")
            self._unfiled_bytes = 0  # try again after as many more

    def note(self, text: str) -> None:
        """Something for the log; the oldest notes go when nobody reads them."""
        del self.notes[:-_NOTES_MAX]
        self.notes.append(text)

    def file(self) -> None:
        """Put all entries of synced messages into files (R4)."""
        synced = self._journal.synced_position
        for index in self._unfiled.values():
            index.flush(synced)
        self._unfiled_bytes = sum(index.pending_bytes for index in self._unfiled.values())
        self._unfiled.clear()

    def first_index(self, index: PartitionIndex) -> int:
        """The oldest index kept; the next one if none is."""
        first = self._journal.first_position
        if index.known_first[0] != first:
            rows = self._rows_at_head(first)
            if rows is not None:
                found = rows.get((index.topic, index.partition), 0)
            else:
                found = self.mended(index, lambda: index.first_index_from(index.find_position(first)))
            index.known_first = first, found
        return index.known_first[1]

    def _rows_at_head(self, first: int) -> dict[Key, int] | None:
        """Where each partition begins, by the table at the journal's head, which knows of damaged messages too."""
        if self._head[0] != first:
            self._head = first, first_indexes_of(self._journal.segments()[0])
        return self._head[1]

    def drop_before(self, position: int) -> None:
        """The journal begins there now."""
        self.damage = [one for one in self.damage if one.end > position]
        for index in self._by_key.values():
            self.mended(index, partial(index.drop_before, position))

    def mended(self, index: PartitionIndex, ask: Callable[[], _T]) -> _T:
        """What `ask` says; if the index turns out to be damaged it is made again from the journal first (F22).

        For want of memory or files it is left alone: ServiceUnavailableError.
        """
        where = f"for the index of topic {index.topic} partition {index.partition}"
        try:
            if index.is_whole:
                return ask()
            raise IndexDamagedError("it could not be made again before")
        except (IndexDamagedError, OSError, MemoryError) as error:
            if is_shortage(error):
                raise shortage_of(where, error) from error
            self.note(f"index of topic {index.topic} partition {index.partition} made again: {error}")
        try:
            self._make_again(index)
            return ask()
        except (IndexDamagedError, OSError, MemoryError) as error:
            if is_shortage(error):
                raise shortage_of(where, error) from error
            raise ReadError(f"the index of topic {index.topic} partition {index.partition}: {error}") from error

    def records(self, position: int, end_position: int) -> Iterator[Found]:
        """Every whole record between two positions where records begin, damaged parts left out and noted."""
        walk = Walk(self._journal.segments(), self._config.unsynced_bytes_max + self._config.record_bytes_max)
        return walk.records_past_damage(position, end_position, self._journal.written_position, self.note_damage)

    def note_damage(self, damage: DamagedRange) -> None:
        """Bytes that are no records although they were."""
        if damage not in self.damage:
            self.damage.append(damage)
            self.note(f"journal damaged from position {damage.start} to {damage.end}: left out")

    def take_written(self) -> set[str]:
        """The index files written since this was asked last."""
        return self._files.take_written()

    def close(self) -> None:
        """Give all files back."""
        self._files.close()

    def _make_again(self, index: PartitionIndex) -> None:
        """From what is written; entries of this turn's appends, which are not, are kept aside."""
        next_index, visible_index = index.next_index, index.visible_index
        unwritten = index.entries_from(self._journal.written_position)
        index.is_whole = False
        try:
            self._fill_again(index)
            index.is_whole = True
        finally:  # if there is no room for it, the next who asks tries again; appends go on
            index.add(unwritten, next_index)
            index.visible_index = visible_index

    def _fill_again(self, index: PartitionIndex) -> None:
        index.clear()
        key = index.topic, index.partition
        for found in self.records(self._journal.first_position, self._journal.written_position):
            header = found.header
            if header.type in MESSAGE_RECORDS and (header.topic, header.partition) == key:
                index.add(entries_of(found), header.first_index + header.index_count)
                if index.pending_bytes > self._config.index_pending_bytes_max:
                    index.flush(self._journal.synced_position)
        index.flush(self._journal.synced_position)


def entries_of(found: Found) -> bytes:
    """The index entries of a record of messages."""
    header = found.header
    start = note_bytes(header.type, found.payload)
    return make_entries(
        found.payload,
        start,
        header.message_count,
        found.position + HEADER_BYTES + start,
        HEADER_BYTES + start,
        header.length,
        header.store_time_ms,
    )
