"""What is not due yet: a fold over DELAY records and over the notes of messages that have waited.

A delay is a row, its due time and the position of its ADD record; the messages stay in the journal. Rows belong to a
few shares. Of each share they come out strictly in order, so that "done with up to here" is one row, the watermark.

Where a row is: unfiled, which the snapshot holds, or in a block, which is a record of its own; never in both. So the
snapshot is small however many delays there are. The timeline beside them is no part of the state: it has the rows that
are due before the horizon, wherever they are, and the horizon moves ahead of time.

What always holds: the rows that wait are those unfiled and in blocks, but for those up to the watermark, up to a
block's floor, and those done ahead of it. All that wait and are due before the horizon are in the timeline.
"""

import struct
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from lakemq.delivery.delay_record import (
    ADD,
    BLOCK,
    CANCEL,
    NO_SHARE,
    PASS,
    REWIND,
    SHARES_MAX,
    Add,
    Cancelled,
    Filed,
    Released,
    Row,
    pack_numbers,
    unpack_add,
    unpack_block,
    unpack_cancel,
    unpack_numbers,
    unpack_release,
)
from lakemq.delivery.timeline import Timeline

Undo = Callable[[], object]
Rows = tuple["array[int]", "array[int]"]  # due times and positions

START: Row = (-1, -1)  # before all rows
_NEVER_MS = -1 << 62
_SPREAD = 0x9E3779B97F4A7C15  # so that records of one size do not all come into one share
_STEPS = 60  # the horizon moves by at least such a part of what is near
_STEP_MS_MAX = 3_600_000
_PRUNE_AT = 256

_HEAD = struct.Struct(">BBI")  # format, shares, topics
_TOPIC = struct.Struct(">iI")
_SHARE = struct.Struct(">qqIIII")  # watermark, rows that wait, unfiled, blocks, done
_BLOCK = struct.Struct(">qqqqqIqq")
_DONE = struct.Struct(">qq")
_FORMAT = 1


@dataclass(frozen=True, slots=True)
class DelayLimits:
    """Larger means more memory."""

    # A message may not wait for longer.
    delay_max_ms: int = 40 * 86_400_000
    # More than these may not wait at once: refused until some are released or cancelled.
    delays_max: int = 10_000_000
    # Shares are released independently of each other: a message that cannot be stored holds up its own.
    share_count: int = 4
    # Rows in the snapshot, of all shares; beyond they are filed in blocks.
    unfiled_max: int = 1 << 16
    block_rows: int = 4096
    # How far ahead rows are in order and blocks are read.
    near_ms: int = 60_000
    # How much is released in one go, so that others get their turn.
    release_messages: int = 2000
    release_bytes: int = 4 << 20
    # Messages for the same partition go into one record up to this size.
    merge_bytes: int = 64 << 10
    # Cancelled ones are remembered until their time would have come.
    cancelled_max: int = 100_000

    def __post_init__(self) -> None:
        if not 1 <= self.share_count <= SHARES_MAX:
            raise ValueError(f"delays are in 1 to {SHARES_MAX} shares, not {self.share_count}")


class Block(NamedTuple):
    """A BLOCK record, without its rows. Those up to the floor are done with, whatever the watermark says."""

    position: int
    first_due_ms: int
    last: Row
    least_position: int  # of its rows
    row_count: int
    floor: Row = START


class Share:
    """Rows that are released one after the other."""

    def __init__(self) -> None:
        self.watermark = START
        self.dues = array("q")  # of unfiled rows; these two go by position, which only grows
        self.positions = array("q")
        self.blocks: dict[int, Block] = {}  # by position
        self.done: dict[int, int] = {}  # due times by position: cancelled, moved, or released ahead of the watermark
        self.pending = 0
        self.timeline = Timeline()
        self.horizon_ms = _NEVER_MS
        self._loaded: dict[int, Rows] = {}  # of blocks: rows that are due at the horizon or later
        self._step_ms = 0
        self._prune_at = _PRUNE_AT

    # --- asking ------------------------------------------------------------------------------------------------

    def waits(self, row: Row) -> bool:
        """Whether a row that is unfiled or in a block still waits; not for those up to a block's floor."""
        return row > self.watermark and row[1] not in self.done

    def holds(self, row: Row) -> bool:
        """Whether it is unfiled, and waits."""
        at = bisect_left(self.positions, row[1])
        is_here = at < len(self.positions) and self.positions[at] == row[1] and self.dues[at] == row[0]
        return is_here and self.waits(row)

    def unfiled(self) -> list[Row]:
        """Those that wait, by position."""
        return [row for row in zip(self.dues, self.positions, strict=True) if self.waits(row)]

    def waiting_in(self, block: Block, rows: Rows) -> list[Row]:
        """Those of a block's rows that wait."""
        floor = max(block.floor, self.watermark)
        done = self.done
        return [row for row in zip(*rows, strict=True) if row > floor and row[1] not in done]

    def next_due_ms(self) -> int | None:
        """When the first row is due that waits; of a block that was not read, the first that may."""
        found = self.timeline.first_due_ms()
        return found if found is not None else self._first_behind()

    def oldest_position(self) -> int | None:
        """The first byte of the journal that is still needed."""
        found = [
            min(block.position, block.least_position)
            for block in self.blocks.values()
            if block.last > max(block.floor, self.watermark)
        ]
        for row in zip(self.dues, self.positions, strict=True):
            if self.waits(row):
                found.append(row[1])
                break
        return min(found, default=None)

    # --- rows ----------------------------------------------------------------------------------------------------

    def add(self, due_ms: int, position: int) -> None:
        """One more waits."""
        self.dues.append(due_ms)
        self.positions.append(position)
        self.pending += 1
        if due_ms < self.horizon_ms:
            self.timeline.insert(due_ms, position)

    def take_back(self, due_ms: int, position: int) -> None:
        """The last one that was added was not written after all."""
        assert self.positions[-1] == position, "undone in another order than done"
        del self.dues[-1], self.positions[-1]
        self.pending -= 1
        self.timeline.remove(due_ms, position)

    def finish(self, row: Row) -> None:
        """A row does not wait any more, whether or not it is its turn."""
        self.done[row[1]] = row[0]
        self.pending -= 1
        self.timeline.remove(*row)

    def unfinish(self, row: Row) -> None:
        """It does after all."""
        del self.done[row[1]]
        self.pending += 1
        if row[0] < self.horizon_ms:
            self.timeline.insert(*row)

    def release(self, rows: list[Row], watermark: Row) -> Undo:
        """These do not wait any more, and neither does any up to the watermark. They are out of the timeline."""
        before = self.watermark
        ahead = [row for row in rows if row > watermark]
        for due_ms, position in ahead:
            self.done[position] = due_ms
        self.watermark = max(watermark, before)
        self.pending -= len(rows)

        def undo() -> None:
            self.watermark = before
            self.pending += len(rows)
            for row in rows:
                self.done.pop(row[1], None)
                if row[0] < self.horizon_ms:
                    self.timeline.insert(*row)

        return undo

    # --- blocks --------------------------------------------------------------------------------------------------

    def file(self, position: int, filed: Filed) -> Undo:
        """Rows are in the record at that position from now on, and not where they were."""
        dues, positions, blocks = self.dues, self.positions, dict(self.blocks)
        loaded, done = dict(self._loaded), {}
        if filed.replaces >= 0:
            self.blocks.pop(filed.replaces, None)
            self._loaded.pop(filed.replaces, None)
            for one in filed.gone:
                if one in self.done:
                    done[one] = self.done.pop(one)
        else:
            gone = set(filed.positions)
            kept = [row for row in zip(dues, positions, strict=True) if row[1] not in gone]
            self.dues, self.positions = _arrays(kept)
        if filed.dues:
            last = filed.dues[-1], filed.positions[-1]
            self.blocks[position] = Block(position, filed.dues[0], last, min(filed.positions), len(filed.dues))

        def undo() -> None:
            self.dues, self.positions, self.blocks, self._loaded = dues, positions, blocks, loaded
            self.done |= done

        return undo

    def unmark(self) -> Undo:
        """Forget the watermark, so that rows may come which are due before it; what is done stays done."""
        self.prune()
        before = self.watermark, dict(self.blocks)
        for one in self.blocks.values():
            self.blocks[one.position] = one._replace(floor=max(one.floor, self.watermark))
        self.watermark = START

        def undo() -> None:
            self.watermark, self.blocks = before

        return undo

    def prune(self) -> None:
        """Forget what says nothing any more. The state is the same; only for when nothing can be undone."""
        watermark, done = self.watermark, self.done
        rows = zip(self.dues, self.positions, strict=True)
        kept = [row for row in rows if row > watermark and done.pop(row[1], None) is None]
        if len(kept) < len(self.dues):
            self.dues, self.positions = _arrays(kept)
        for position, due_ms in list(done.items()):
            if (due_ms, position) <= watermark:
                del done[position]
        for block in list(self.blocks.values()):
            if block.last <= max(block.floor, watermark):
                del self.blocks[block.position]
                self._loaded.pop(block.position, None)
        self._prune_at = _PRUNE_AT + 2 * (len(self.dues) + len(done) + len(self.blocks))

    @property
    def wants_pruning(self) -> bool:
        """Whether there may be as much to forget as to keep."""
        is_stale = not self.pending and len(self.dues) > 0  # nothing waits: a snapshot need not have these rows
        return is_stale or len(self.dues) + len(self.done) + len(self.blocks) >= self._prune_at

    # --- time ------------------------------------------------------------------------------------------------------

    def approach(self, now_ms: int, near_ms: int, read: Callable[[Block], Rows], reads_max: int) -> list[Row]:
        """Move the horizon towards `near_ms` ahead, reading at most so many blocks: the rows that came near.

        Only when nothing can be undone.
        """
        goal_ms = now_ms + near_ms
        least_ms = max(near_ms // _STEPS, 1)
        if self.horizon_ms > goal_ms - least_ms:
            return []
        step_ms = max(self._step_ms, least_ms)
        first_ms = self._first_behind()
        target_ms = goal_ms if first_ms is None else min(goal_ms, first_ms + step_ms)
        target_ms = self._read_blocks(target_ms, read, reads_max)
        if target_ms <= self.horizon_ms:
            return []
        near = self._rows_before(target_ms)
        self.horizon_ms = target_ms
        for row in near:
            self.timeline.insert(*row)
        if len(near) < 1000:  # catching up with a past of days: larger steps
            self._step_ms = min(2 * step_ms, _STEP_MS_MAX)
        elif len(near) > 20_000:
            self._step_ms = step_ms // 2
        return near

    def _first_behind(self) -> int | None:
        """The first due time at the horizon or later; a block that was not read may have any from its first one on."""
        horizon_ms = self.horizon_ms
        found = min((due_ms for due_ms in self.dues if due_ms >= horizon_ms), default=None)
        for block in self.blocks.values():
            if block.last[0] >= horizon_ms:
                rows = self._loaded.get(block.position)
                due_ms = max(block.first_due_ms, horizon_ms) if rows is None else min(rows[0], default=None)
                if due_ms is not None and (found is None or due_ms < found):
                    found = due_ms
        return found

    def _read_blocks(self, target_ms: int, read: Callable[[Block], Rows], reads_max: int) -> int:
        """Read those that the way to there needs; how far it is free if these are too many."""
        needed = [
            block
            for block in self.blocks.values()
            if block.first_due_ms < target_ms
            and block.last[0] >= self.horizon_ms
            and block.position not in self._loaded
        ]
        for nth, block in enumerate(sorted(needed, key=lambda one: one.first_due_ms)):
            if nth == reads_max:
                return block.first_due_ms
            rows = read(block)
            self._loaded[block.position] = _arrays(
                [row for row in self.waiting_in(block, rows) if row[0] >= self.horizon_ms]
            )
        return target_ms

    def _rows_before(self, target_ms: int) -> list[Row]:
        """Those that wait and are due between the horizon and then; blocks forget them."""
        horizon_ms = self.horizon_ms
        found = [row for row in zip(self.dues, self.positions, strict=True) if horizon_ms <= row[0] < target_ms]
        found = [row for row in found if self.waits(row)]
        for position, (dues, positions) in list(self._loaded.items()):
            count = bisect_left(dues, target_ms)
            found += [row for row in zip(dues[:count], positions[:count], strict=True) if self.waits(row)]
            if self.blocks[position].last[0] < target_ms:
                del self._loaded[position]
            elif count:
                self._loaded[position] = dues[count:], positions[count:]
        return found


class Delays:
    """All that waits."""

    def __init__(self) -> None:
        self.shares = [Share()]
        self.topics: dict[int, int] = {}  # how many wait, by topic number
        self._kinds: dict[int, Callable[[memoryview, int], object]] = {
            ADD: lambda payload, position: self.add(unpack_add(payload), position),
            BLOCK: lambda payload, position: self.file(unpack_block(payload), position),
            CANCEL: lambda payload, position: self.cancel(unpack_cancel(payload)),
            PASS: lambda payload, position: self.apply_note(payload, position),
            REWIND: lambda payload, position: self.rewind(),
        }

    # --- asking ------------------------------------------------------------------------------------------------

    @property
    def pending(self) -> int:
        """How many wait."""
        return sum(share.pending for share in self.shares)

    @property
    def is_empty(self) -> bool:
        """Whether there are no rows at all, not even such that wait no more."""
        return not any(len(share.dues) or share.blocks for share in self.shares)

    @property
    def latest_watermark_ms(self) -> int:
        """What is due before this would count as done, in one share or another."""
        return max(share.watermark[0] for share in self.shares)

    @property
    def unfiled_count(self) -> int:
        """How many rows the snapshot would have."""
        return sum(len(share.dues) for share in self.shares)

    @property
    def oldest_position(self) -> int | None:
        """The first byte of the journal that is still needed; None if nothing waits."""
        found = (share.oldest_position() for share in self.shares)
        return min((one for one in found if one is not None), default=None)

    def share_of(self, position: int, share_count: int = 0) -> int:
        """To which share a new row belongs."""
        return (position * _SPREAD >> 32) % (share_count or len(self.shares))

    # --- the fold ------------------------------------------------------------------------------------------------

    def apply(self, header: object, payload: memoryview, position: int) -> None:
        """A DELAY record, at a start: nothing is undone."""
        self._kinds[payload[0]](payload, position)
        self._prune_all()

    def apply_note(self, note: memoryview, position: int) -> None:
        """The note of messages that have waited, at a start."""
        released = unpack_release(note)
        share = self._share(released.share)
        for row in released.rows:
            share.timeline.remove(*row)
        self.release(released)
        self._prune_all()

    def _prune_all(self) -> None:
        for share in self.shares:
            if share.wants_pruning:
                share.prune()

    def _share(self, number: int) -> Share:
        """Only where facts are lost can there be fewer than a record says."""
        while number >= len(self.shares):
            self.shares.append(Share())
        return self.shares[number]

    # --- facts, put in force once they are in the journal; each can be undone, the last one first --------------------

    def add(self, head: Add, position: int) -> Undo:
        """Messages wait, in the record at that position."""
        shares = self.shares
        if head.share_count != len(shares):
            self._reshape(head.share_count)
        share = self.shares[self.share_of(position)]
        share.add(head.due_ms, position)
        moved = head.moved_due_ms, head.moved_position
        left = None
        if head.moved_share == NO_SHARE:
            self._count(head.topic, 1)
        else:
            left = self._share(head.moved_share)
            left.finish(moved)

        def undo() -> None:
            if left is not None:
                left.unfinish(moved)
            else:
                self._count(head.topic, -1)
            share.take_back(head.due_ms, position)
            self.shares = shares

        return undo

    def release(self, released: Released) -> Undo:
        """Messages have waited. Their rows are out of the timeline by now."""
        undo_share = self._share(released.share).release(released.rows, released.watermark)
        self._count(released.topic, -len(released.rows))

        def undo() -> None:
            self._count(released.topic, len(released.rows))
            undo_share()

        return undo

    def cancel(self, rows: Iterable[Cancelled]) -> Undo:
        """These will not be released."""
        rows = list(rows)
        for one in rows:
            self._share(one.share).finish(one[2:])
            self._count(one.topic, -1)

        def undo() -> None:
            for one in reversed(rows):
                self._count(one.topic, 1)
                self._share(one.share).unfinish(one[2:])

        return undo

    def file(self, filed: Filed, position: int) -> Undo:
        """Rows have gone into a block."""
        return self._share(filed.share).file(position, filed)

    def rewind(self) -> Undo:
        """Time was set back."""
        undos = [share.unmark() for share in self.shares]

        def undo() -> None:
            for one in undos:
                one()

        return undo

    def _count(self, topic: int, change: int) -> None:
        count = self.topics.get(topic, 0) + change
        if count > 0:
            self.topics[topic] = count
        else:
            self.topics.pop(topic, None)

    def _reshape(self, share_count: int) -> None:
        """Another number of shares. Those before stay as they are, should it be undone."""
        shares = [Share() for _ in range(share_count)]
        rows: list[Row] = []
        for number, old in enumerate(self.shares):
            unfiled = old.unfiled()
            rows += unfiled
            new = shares[number % share_count]
            new.pending += old.pending - len(unfiled)
            new.done |= {one: due_ms for one, due_ms in old.done.items() if (due_ms, one) > old.watermark}
            for block in old.blocks.values():
                new.blocks[block.position] = block._replace(floor=max(block.floor, old.watermark))
        for due_ms, position in sorted(rows, key=lambda row: row[1]):
            shares[self.share_of(position, share_count)].add(due_ms, position)
        self.shares = shares

    # --- snapshots -----------------------------------------------------------------------------------------------

    def pack(self, kept: object = None) -> bytes:
        """All of it; b"" if nothing waits and no watermark is set.

        A watermark counts even while nothing waits: it says what the due times of rows to come must not be before. A
        start that did not know it would take earlier ones after the clock was set back, and they would count as done
        as soon as another start, from an older snapshot, learned of the watermark again.
        """
        if not any(share.pending or share.blocks or share.watermark > START for share in self.shares):
            return b""
        parts = [_HEAD.pack(_FORMAT, len(self.shares), len(self.topics))]
        parts += [_TOPIC.pack(*one) for one in self.topics.items()]
        for share in self.shares:
            blocks = [one for one in share.blocks.values() if one.last > max(one.floor, share.watermark)]
            done = [(due_ms, one) for one, due_ms in share.done.items() if (due_ms, one) > share.watermark]
            parts.append(_SHARE.pack(*share.watermark, max(share.pending, 0), len(share.dues), len(blocks), len(done)))
            parts += (pack_numbers(share.dues), pack_numbers(share.positions))
            for one in blocks:
                parts.append(
                    _BLOCK.pack(
                        one.position, one.first_due_ms, *one.last, one.least_position, one.row_count, *one.floor
                    )
                )
            parts += [_DONE.pack(*row) for row in done]
        return b"".join(parts)

    def restore(self, data: bytes) -> None:
        """Begin from what `pack` gave."""
        self.topics.clear()
        self.shares = [Share()]
        if not data:
            return
        version, share_count, topic_count = _HEAD.unpack_from(data)
        assert version == _FORMAT, f"a snapshot of delays in format {version}"
        at = _HEAD.size
        for _ in range(topic_count):
            topic, count = _TOPIC.unpack_from(data, at)
            self.topics[topic] = count
            at += _TOPIC.size
        self.shares = []
        for _ in range(share_count):
            share, at = _unpack_share(data, at)
            self.shares.append(share)


def _unpack_share(data: bytes, at: int) -> tuple[Share, int]:
    share = Share()
    due_ms, position, share.pending, row_count, block_count, done_count = _SHARE.unpack_from(data, at)
    share.watermark = due_ms, position
    at += _SHARE.size
    share.dues = unpack_numbers(data, at, row_count)
    share.positions = unpack_numbers(data, at + 8 * row_count, row_count)
    at += 16 * row_count
    for block in _blocks_in(data, at, block_count):
        share.blocks[block.position] = block
    at += block_count * _BLOCK.size
    for _ in range(done_count):
        due_ms, position = _DONE.unpack_from(data, at)
        share.done[position] = due_ms
        at += _DONE.size
    share.prune()
    return share, at


def _blocks_in(data: bytes, at: int, count: int) -> Iterator[Block]:
    for place in range(at, at + count * _BLOCK.size, _BLOCK.size):
        position, first_ms, last_ms, last_position, least, row_count, *floor = _BLOCK.unpack_from(data, place)
        yield Block(position, first_ms, (last_ms, last_position), least, row_count, (floor[0], floor[1]))


def _arrays(rows: list[Row]) -> Rows:
    return array("q", [row[0] for row in rows]), array("q", [row[1] for row in rows])
