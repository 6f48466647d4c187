"""Delays as they lie in the journal: what waits at a position, the rows of a block, all that waits in order of its id.

Nothing is changed here. A damaged record costs its own delay; a damaged block none, for the journal has its rows.
"""

import struct
from array import array
from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush

from lakemq.broker.ledger import Ledger
from lakemq.delivery.delay_record import (
    ADD,
    ADD_BYTES,
    BLOCK,
    CANCEL,
    NO_SHARE,
    NOTE_MARK,
    PASS,
    Add,
    Row,
    unpack_add,
    unpack_block,
    unpack_cancel,
    unpack_release,
)
from lakemq.delivery.delays import Block, Delays, Rows, Share
from lakemq.errors import ReadError
from lakemq.storage.journal_record import RecordType, note_of
from lakemq.storage.walk import Found


class DelayReader:
    """Reads what the fold only refers to."""

    def __init__(self, ledger: Ledger, note: Callable[[str, str], None], counts: dict[str, int]) -> None:
        self._ledger = ledger
        self._group = ledger.group
        self._note = note
        self._counts = counts
        self._kept: dict[int, Rows] = {}  # of blocks that this turn has appended and that cannot be read yet

    @property
    def _delays(self) -> Delays:
        return self._ledger.state.delays

    def keep(self, position: int, rows: Rows) -> None:
        """A block was appended there."""
        self._kept[position] = rows

    def forget_kept(self) -> None:
        """Those blocks are written, or undone."""
        self._kept.clear()

    def add_at(self, position: int) -> tuple[Add | None, memoryview]:
        """What waits there, with its messages; None if the record is damaged, or not written yet."""
        try:
            header, payload = self._group.read_record(position)
            if header.type == RecordType.DELAY and payload[0] == ADD:
                return unpack_add(payload), payload[ADD_BYTES:]
        except (ReadError, struct.error):
            pass
        return None, memoryview(b"")

    # --- blocks ------------------------------------------------------------------------------------------------

    def rows_of(self, block: Block) -> Rows:
        """All rows of a block, in order; if its record is damaged, those that wait."""
        if block.position in self._kept:
            return self._kept[block.position]
        try:
            header, payload = self._group.read_record(block.position)
            if header.type == RecordType.DELAY and payload[0] == BLOCK:
                filed = unpack_block(payload)
                return filed.dues, filed.positions
            reason = "it is something else"
        except (ReadError, ValueError, struct.error) as error:
            reason = str(error)
        rows = self._search(block)
        self._counts["blocks_damaged"] += 1
        text = f"a block of {block.row_count} delays at position {block.position} cannot be read ({reason})"
        self._note("error", f"{text}: {len(rows)} were found again in the journal")
        return array("q", [row[0] for row in rows]), array("q", [row[1] for row in rows])

    def _search(self, lost: Block) -> list[Row]:
        """The rows of a block that cannot be read: delays from before it that are nowhere else, and wait.

        It takes a walk over the journal from its oldest row on: long, but it loses nothing.
        """
        journal = self._group.journal
        others = {position for share in self._delays.shares for position in share.blocks} - {lost.position}
        added: set[Row] = set()
        elsewhere: set[Row] = set()
        for found in self._group.records(max(lost.least_position, journal.first_position), journal.written_position):
            is_delay = found.header.type == RecordType.DELAY
            if is_delay and found.payload[0] == ADD and found.position < lost.position:
                added.add((unpack_add(found.payload).due_ms, found.position))
            if not is_delay or found.payload[0] != BLOCK or found.position in others:
                elsewhere.update(_rows_ended_by(found))
        for share in self._delays.shares:
            elsewhere.update(share.unfiled())
        return sorted(row for row in added - elsewhere if row[0] >= lost.first_due_ms and row <= lost.last)

    # --- all that waits --------------------------------------------------------------------------------------------

    def by_position(self, after: int) -> Iterator[tuple[int, int]]:
        """Position and due time of what waits behind that position, blocks read as they are needed."""
        written = self._group.journal.written_position
        heap: list[tuple[int, int]] = []
        blocks: list[tuple[Share, Block]] = []
        for share in self._delays.shares:
            heap += [(position, due_ms) for due_ms, position in share.unfiled() if after < position < written]
            blocks += [(share, one) for one in share.blocks.values() if after < one.position]
        heapify(heap)
        blocks.sort(key=lambda one: -one[1].least_position)  # the first is the last
        while heap or blocks:
            while blocks and (not heap or blocks[-1][1].least_position <= heap[0][0]):
                share, block = blocks.pop()
                for due_ms, position in share.waiting_in(block, self.rows_of(block)):
                    if position > after:
                        heappush(heap, (position, due_ms))
            if heap:
                yield heappop(heap)

    def share_with(self, row: Row) -> int | None:
        """The number of the share in which that row waits; None if it does not."""
        due_ms, position = row
        for number, share in enumerate(self._delays.shares):
            if share.holds(row):
                return number
            for block in share.blocks.values():
                may_have = block.least_position <= position < block.position and block.first_due_ms <= due_ms
                if may_have and row <= block.last and row in share.waiting_in(block, self.rows_of(block)):
                    return number
        return None


def _rows_ended_by(found: Found) -> list[Row]:
    """Rows that are elsewhere, or wait no more, by what a record says."""
    kind, payload = found.header.type, found.payload
    if kind == RecordType.NOTED:
        note = note_of(payload)
        return unpack_release(note).rows if note[:1] == NOTE_MARK else []
    if kind != RecordType.DELAY:
        return []
    if payload[0] == ADD:
        head = unpack_add(payload)
        return [(head.moved_due_ms, head.moved_position)] if head.moved_share != NO_SHARE else []
    if payload[0] == PASS:
        return unpack_release(payload).rows
    if payload[0] == CANCEL:
        return [(one.due_ms, one.position) for one in unpack_cancel(payload)]
    if payload[0] == BLOCK:
        filed = unpack_block(payload)
        return list(zip(filed.dues, filed.positions, strict=True))
    return []
