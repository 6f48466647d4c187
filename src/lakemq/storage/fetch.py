"""Reading messages: which records hold them, by the index, and the bytes as they are stored, by few reads.

Of each record only its first and last wanted entry are looked at; records that lie side by side are read with one call.
Every record is checked as a whole before a byte of it is given out (R5).
"""

from collections.abc import Callable
from typing import NamedTuple

from lakemq.errors import ReadError
from lakemq.storage.index import ENTRY_BYTES, Entry, PartitionIndex, unpack_entry
from lakemq.storage.journal import Journal
from lakemq.storage.journal_record import facts_of, whole_records

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


def fetch(journal: Journal, found: PartitionIndex, index: int, end_index: int, bytes_max: int) -> list[RecordSlice]:
    """The messages that overlap [index, end_index): at least one, and else no more than `bytes_max`.

    ReadError where `index` cannot be read; damage further on only ends the answer early.
    """
    plan = _plan(found, index, end_index, bytes_max)
    slices: list[RecordSlice] = []
    at = 0
    while at < len(plan):
        start, stop, run_end = _run(journal, plan, at)
        data = memoryview(journal.view(start, stop - start))
        whole_bytes = whole_records(data, start)
        for wanted in plan[at:run_end]:
            first = wanted.first
            offset = first.record_position - start
            if offset + first.record_length > whole_bytes:
                if not slices:
                    raise ReadError(f"the record at position {first.record_position} is damaged")
                return slices  # the next fetch begins at the damage and is told
            begin = first.position - start
            record_end_index, store_time_ms, client_address = facts_of(data, offset)
            next_index = min(wanted.next_index, record_end_index)
            messages = data[begin : begin + wanted.messages_bytes]
            slices.append(
                RecordSlice(
                    messages, wanted.message_count, first.first_index, next_index, store_time_ms, client_address
                )
            )
            if next_index != wanted.next_index:
                return slices  # records are missing behind this one: the same
        at = run_end
    return slices


def _plan(found: PartitionIndex, index: int, end_index: int, bytes_max: int) -> list[_Wanted]:
    """Which records; of those that are wanted whole only the first entry is looked at, and that of the next."""
    entry_at = _entry_reader(found)
    ordinal, entry_count = found.find(index), found.entry_count
    plan: list[_Wanted] = []
    if ordinal >= entry_count or (first := entry_at(ordinal)).first_index > index:
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
                return plan
            ordinal, first = after, following
            continue
        if first.length <= bytes_max or not plan:
            plan.append(_part(entry_at, ordinal, first, end_index, bytes_max))
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


def _run(journal: Journal, plan: list[_Wanted], at: int) -> tuple[int, int, int]:
    """Records from the `at`-th on that lie side by side in one segment: where they start and stop, and how many."""
    start = plan[at].first.record_position
    stop = start + plan[at].first.record_length
    run_end = at + 1
    while run_end < len(plan):
        entry = plan[run_end].first
        after = stop + entry.record_length
        if entry.record_position != stop or after - start > _RUN_BYTES_MAX or journal.starts_segment(stop):
            break
        stop, run_end = after, run_end + 1
    return start, stop, run_end
