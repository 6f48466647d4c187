"""Reading messages: which records hold them, by the index, and the bytes as they are stored, by few reads.

Of each record only its first and last wanted entry are looked at; records that lie side by side are read with one call.
Every record is checked as a whole before a byte of it is given out (R5).
"""

from collections.abc import Callable
from typing import NamedTuple

from lakemq.errors import ReadError
from lakemq.storage.index import ENTRY_BYTES, Entry, PartitionIndex, unpack_entry
from lakemq.storage.journal import Journal
from lakemq.storage.journal_record import is_payload_whole, unpack_header

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
    """The first and the last entry wanted of one record."""

    first: Entry
    last: Entry


def fetch(journal: Journal, found: PartitionIndex, index: int, end_index: int, bytes_max: int) -> list[RecordSlice]:
    """The messages that overlap [index, end_index): at least one, and else no more than `bytes_max`.

    ReadError where `index` cannot be read; damage further on only ends the answer early.
    """
    plan = _plan(found, index, end_index, bytes_max)
    slices: list[RecordSlice] = []
    at = 0
    while at < len(plan):
        start, stop, run_end = _run(journal, plan, at)
        try:
            data = journal.read(start, stop - start)
            for wanted in plan[at:run_end]:
                slices += [_slice(data, wanted, start)]  # one by one: those before damage count
        except ReadError:
            if not slices:
                raise
            return slices  # the next fetch begins at the damage and is told
        at = run_end
    return slices


def _plan(found: PartitionIndex, index: int, end_index: int, bytes_max: int) -> list[_Wanted]:
    entry_at = _entry_reader(found)
    ordinal, plan, bytes_left = found.find(index), list[_Wanted](), bytes_max
    entry_count = found.entry_count
    while ordinal < entry_count:
        first = entry_at(ordinal)
        if not plan and first.first_index > index:
            raise ReadError(
                f"index {index} is in a damaged part of the journal; the next that is not: {first.first_index}"
            )
        if first.first_index >= end_index or (plan and first.first_index != plan[-1].last.next_index):
            break
        last = entry_at(ordinal + first.messages_after) if first.messages_after else first
        size = last.position + last.length - first.position
        if last.first_index < end_index and size <= bytes_left:
            plan.append(_Wanted(first, last))
            bytes_left -= size
            ordinal += first.messages_after + 1
            continue
        if first.length <= bytes_left or not plan:
            plan.append(_Wanted(first, _last_wanted(entry_at, ordinal, first, end_index, bytes_left)))
        break
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


def _last_wanted(
    entry_at: Callable[[int], Entry], ordinal: int, first: Entry, end_index: int, bytes_left: int
) -> Entry:
    """The last entry of a record that is still within the limits, when not all of it is."""
    last = first
    for nth in range(1, first.messages_after + 1):
        entry = entry_at(ordinal + nth)
        if entry.first_index >= end_index or entry.position + entry.length - first.position > bytes_left:
            break
        last = entry
    return last


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


def _slice(data: bytes, wanted: _Wanted, data_position: int) -> RecordSlice:
    first, last = wanted
    position = first.record_position
    offset = position - data_position
    header = unpack_header(data, offset, position)
    if header is None or header.length != first.record_length or not is_payload_whole(header, data, offset):
        raise ReadError(f"the record at position {position} is damaged")
    start = first.position - data_position
    return RecordSlice(
        memoryview(data)[start : last.position + last.length - data_position],
        first.messages_after - last.messages_after + 1,
        first.first_index,
        last.next_index,
        header.store_time_ms,
        header.client_address,
    )
