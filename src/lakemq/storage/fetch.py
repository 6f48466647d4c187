"""Reading messages: which records hold them, by the index, and the bytes as they are stored, by few reads.

Of each record only its first and last wanted entry are looked at; records that lie side by side are read with one call.
Every record is checked as a whole before a byte of it is given out (R5).
"""

import struct
from collections.abc import Callable
from typing import NamedTuple

from lakemq.errors import ReadError
from lakemq.storage.index import ENTRY_BYTES, UNKNOWN_TAG, Entry, IndexDamagedError, PartitionIndex, unpack_entry
from lakemq.storage.journal import Journal
from lakemq.storage.journal_record import facts_of, whole_records

try:
    import lakemq._hot as _hot
except ImportError:  # no compiler when it was installed
    _hot = None  # type: ignore[assignment]  # the definition below is used

_PLACE = struct.Struct(">qqi")  # of an entry: first index, position, length
_PLAN_ENTRIES = 1024  # read at once of the index
_RUN_BYTES_MAX = 1 << 20  # read at once of the journal


class RecordSlice(NamedTuple):
    """Some messages of one record, exactly as a consumer gets them."""

    messages: memoryview
    message_count: int
    first_index: int
    next_index: int
    store_time_ms: int
    client_address: bytes


class _Wanted(NamedTuple):
    """What is wanted of one record: from its `first` entry on, `messages_bytes` that hold so many messages."""

    first: Entry
    messages_bytes: int
    message_count: int
    next_index: int


class _Run:
    """Records that lie side by side in one segment, to be read with one call."""

    __slots__ = ("start", "stop", "stop_max", "wanted")

    def __init__(self, start: int, stop_max: int) -> None:
        self.start = self.stop = start
        self.stop_max = stop_max
        self.wanted: list[_Wanted] = []

    def one_by_one(self) -> "list[_Run]":
        """The same records, each on its own."""
        runs = []
        for wanted in self.wanted:
            run = _Run(wanted.first.record_position, self.stop_max)
            run.stop = run.start + wanted.first.record_length
            run.wanted = [wanted]
            runs.append(run)
        return runs


def fetch(journal: Journal, found: PartitionIndex, index: int, end_index: int, bytes_max: int) -> list[RecordSlice]:
    """The messages that overlap [index, end_index): at least one, and else no more than `bytes_max`.

    An answer that is half full may end with a whole record, before `end_index`.
    ReadError where `index` cannot be read; damage further on only ends the answer early.
    """
    slices: list[RecordSlice] = []
    answer_bytes = bytes_max
    if _hot is not None and journal.maps_files:
        slices, index, bytes_max, is_over = _take(journal, found, index, end_index, bytes_max)
        if is_over:
            return slices
    for run in _runs(journal, _plan(found, index, end_index, bytes_max, answer_bytes, has_some=bool(slices))):
        if not _add_slices(slices, journal, found, run):
            break  # the next fetch begins at the damage, and is told
    return slices


def _take(
    journal: Journal, found: PartitionIndex, index: int, end_index: int, bytes_max: int
) -> tuple[list[RecordSlice], int, int, bool]:
    """Whole records for as long as nothing is out of the ordinary, by one compiled call: it leaves what is damaged, cut
    by a limit or in another segment to the definition, which goes on where it ended.

    The slices, where to go on and with how many bytes, and whether there is nothing more to do.
    """
    ordinal, entry_count = found.find(index), found.entry_count
    block = found.read(ordinal, _PLAN_ENTRIES) if ordinal < entry_count else b""
    if not block:
        return [], index, bytes_max, False
    _, position, length = _PLACE.unpack_from(block)
    try:
        segment = journal.mapped_at(position, length)
    except ReadError:
        segment = None
    if segment is None:
        return [], index, bytes_max, False
    mapped, base = segment
    is_last = ordinal + len(block) // ENTRY_BYTES == entry_count
    slices, taken, bytes_left, is_over = _hot.take_records(
        mapped,
        base,
        journal.written_position,
        block,
        found.next_index if is_last else -1,
        index,
        end_index,
        bytes_max,
        found.topic,
        found.partition,
        RecordSlice,
    )
    if slices:
        index = slices[-1].next_index
        found.hint = index, ordinal + taken
    return slices, index, bytes_left, is_over


def find_tag(found: PartitionIndex, index: int, end_index: int, hashes: frozenset[int], count_max: int) -> int:
    """The first index from `index` on whose entry has one of these hashes, or one that tells nothing."""
    entry_at = _entry_reader(found)
    ordinal = found.find(index)
    for place in range(ordinal, min(found.entry_count, ordinal + count_max)):
        entry = entry_at(place)
        if entry.first_index >= end_index:
            return end_index
        if entry.tag_hash in hashes or entry.tag_hash == UNKNOWN_TAG:
            return max(entry.first_index, index)
        index = entry.next_index
    return min(index, end_index)


def _add_slices(slices: list[RecordSlice], journal: Journal, found: PartitionIndex, run: _Run) -> bool:
    """Read and check a run; False if there is something wrong after what was added."""
    start = run.start
    try:
        data = memoryview(journal.view(start, run.stop - start))
        whole_bytes = whole_records(data, start)
    except ReadError:
        whole_bytes = -1
    if whole_bytes < 0 and len(run.wanted) > 1:  # a bad sector somewhere: only its own record is lost by it (F17)
        return all(_add_slices(slices, journal, found, one) for one in run.one_by_one())
    for first, messages_bytes, message_count, wanted_next_index in run.wanted:
        begin = first.position - start
        offset = begin - first.record_offset
        if offset + first.record_length > whole_bytes:
            if not slices:
                raise ReadError(f"the record at position {start + offset} is damaged")
            return False
        length, partition, topic, record_index, index_count, store_time_ms, client_address = facts_of(data, offset)
        into = first.first_index - record_index
        if topic != found.topic or partition != found.partition or length != first.record_length or into < 0:
            # an entry can be whole and not ours
            raise IndexDamagedError(f"an entry for index {first.first_index} leads to a record of others")
        if into >= index_count:
            raise IndexDamagedError(f"an entry for index {first.first_index} leads to one for {record_index}")
        next_index = min(wanted_next_index, record_index + index_count)
        messages = data[begin : begin + messages_bytes]
        slices.append(
            RecordSlice(messages, message_count, first.first_index, next_index, store_time_ms, client_address)
        )
        if next_index != wanted_next_index:
            return False  # records are missing behind this one
    return True


def _runs(journal: Journal, plan: list[_Wanted]) -> list[_Run]:
    runs: list[_Run] = []
    run = None
    for wanted in plan:
        first = wanted.first
        position = first.position - first.record_offset
        stop = position + first.record_length
        if run is None or position != run.stop or stop > run.stop_max:
            run = _Run(position, min(position + _RUN_BYTES_MAX, journal.end_of_segment_at(position)))
            runs.append(run)
        run.wanted.append(wanted)
        run.stop = stop
    return runs


def _plan(
    found: PartitionIndex, index: int, end_index: int, bytes_max: int, answer_bytes: int, *, has_some: bool = False
) -> list[_Wanted]:
    """Which records; of those that are wanted whole only the first entry is looked at, and that of the next.

    With `has_some` it goes on behind others, which have left `bytes_max` of the answer: then it need not find one.
    """
    entry_at = _entry_reader(found)
    ordinal, entry_count = found.find(index), found.entry_count
    plan: list[_Wanted] = []
    if ordinal >= entry_count or (first := entry_at(ordinal)).first_index > index:
        if has_some:
            return plan
        raise ReadError(f"index {index} is in a damaged part of the journal")
    while True:
        size = first.record_length - first.record_offset
        after = ordinal + first.messages_after + 1
        following = entry_at(after) if after < entry_count else None
        next_index = following.first_index if following is not None else found.next_index
        if size <= bytes_max and next_index <= end_index:
            plan.append(_Wanted(first, size, first.messages_after + 1, next_index))
            bytes_max -= size
            if following is None or next_index >= end_index:
                found.hint = next_index, after
                return plan
            ordinal, first = after, following
            continue
        # A record that is cut is checked twice, now and by the next fetch: not for the sake of a full answer.
        is_short = next_index > end_index and first.length <= bytes_max and bytes_max > answer_bytes // 2
        if not (plan or has_some) or is_short:
            plan.append(_part(entry_at, ordinal, first, end_index, bytes_max))
        else:
            found.hint = first.first_index, ordinal
        return plan


def _entry_reader(found: PartitionIndex) -> Callable[[int], Entry]:
    """Reads entries one by one out of blocks of many."""
    block, block_ordinal = b"", 0

    def entry_at(ordinal: int) -> Entry:
        nonlocal block, block_ordinal
        offset = (ordinal - block_ordinal) * ENTRY_BYTES
        if not 0 <= offset < len(block):
            block, block_ordinal, offset = found.read(ordinal, _PLAN_ENTRIES), ordinal, 0
        return unpack_entry(block, offset)

    return entry_at


def _part(entry_at: Callable[[int], Entry], ordinal: int, first: Entry, end_index: int, bytes_max: int) -> _Wanted:
    """As much of a record as is within the limits, its first message at least."""
    low, high = 0, first.messages_after  # the last wanted is one of these, counted from the first
    while low < high:
        middle = (low + high + 1) // 2
        entry = entry_at(ordinal + middle)
        if entry.first_index < end_index and entry.position + entry.length - first.position <= bytes_max:
            low = middle
        else:
            high = middle - 1
    last = entry_at(ordinal + low)
    return _Wanted(first, last.position + last.length - first.position, low + 1, last.next_index)
