"""Messages that wait: taken in, released when they are due, listed, cancelled, and carried on when a segment must go.

Each step is one record, which is there or not: an ADD when messages begin to wait, and when they are due a NOTED
record, which is the messages in their partition and says at once that they wait no more. Nothing is released before
its due time by the guarded clock.
"""

from array import array
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from lakemq.attributes import DELAY_LEVEL, DELIVER_AT, SPAN_MARK, TAGS, decode_attributes
from lakemq.broker.access import Access
from lakemq.broker.config import BrokerConfig
from lakemq.broker.delay_reader import DelayReader
from lakemq.broker.events import Now
from lakemq.broker.ledger import Ledger
from lakemq.broker.metrics import Durations, Metrics
from lakemq.cluster.metadata import Metadata, Topic
from lakemq.delivery.delay_record import (
    Add,
    Cancelled,
    Filed,
    Released,
    Row,
    pack_add,
    pack_block,
    pack_cancel,
    pack_note,
    pack_pass,
    pack_rewind,
)
from lakemq.delivery.delays import Block, DelayLimits, Delays, Share, Undo
from lakemq.delivery.guarded_clock import GuardedClock
from lakemq.delivery.uniq import UNIQ_ID, ids_of
from lakemq.errors import (
    BadParameterError,
    LakeMQError,
    SerializationError,
    ServiceUnavailableError,
    UnknownNameError,
)
from lakemq.record import read_fields, stamp
from lakemq.storage.disk import Buffer
from lakemq.storage.journal_record import RecordType
from lakemq.storage.partition_group import MESSAGE_COUNT_MAX

_SECOND, _MINUTE, _HOUR = 1000, 60_000, 3_600_000
LEVELS_MS = (
    *(1 * _SECOND, 5 * _SECOND, 10 * _SECOND, 30 * _SECOND),
    *(1 * _MINUTE, 2 * _MINUTE, 3 * _MINUTE, 4 * _MINUTE, 5 * _MINUTE, 6 * _MINUTE, 7 * _MINUTE, 8 * _MINUTE),
    *(9 * _MINUTE, 10 * _MINUTE, 20 * _MINUTE, 30 * _MINUTE, 1 * _HOUR, 2 * _HOUR),
)
"""How long DELAY_LEVEL 1, 2, 3 … is."""

_DIGITS_MAX = 19
_BLOCK_READS = 4  # in one tick
_SCAN_MAX = 10_000  # records looked at for one page of a listing
_COMPLAIN_EVERY_MS = 60_000
_UNIQ_MARK = UNIQ_ID.encode()
_NO_ROWS = array("q")


Park = Callable[..., int | None]
"""Makes dead letters of messages that do not get into their topic; None where there is no room for them."""


def no_room(*messages: object, **details: object) -> None:
    """Nobody takes them."""


class _Parcel:
    """Rows that are released by one record: messages of one client for one partition, or into nothing."""

    __slots__ = (
        "buffers",
        "client_address",
        "heads",
        "index_count",
        "message_count",
        "partition",
        "places",
        "size",
        "topic",
    )

    def __init__(self, topic: int, partition: int = 0, client_address: bytes | None = None) -> None:
        self.topic = topic
        self.partition = partition
        self.client_address = client_address  # None: into nothing
        self.places: list[int] = []  # of its rows among those taken
        self.buffers: list[memoryview] = []
        self.heads: list[Add] = []  # of each buffer
        self.size = self.message_count = self.index_count = 0


class _Taken(NamedTuple):
    """The beginning of what is due in a share, as records to be made of it."""

    rows: list[Row]
    parcels: list[_Parcel]


class Delaying:
    """Holds messages back until they are due."""

    def __init__(
        self,
        ledger: Ledger,
        config: BrokerConfig,
        access: Access,
        metrics: Metrics,
        world_note: Callable[[str, str], None],
        limits: DelayLimits | None = None,
        clock: GuardedClock | None = None,
    ) -> None:
        self._ledger = ledger
        self._group = ledger.group
        self._access = access
        self._metrics = metrics
        self._note = world_note
        self._limits = limits or config.delays
        self._clock = clock or GuardedClock()
        self.counts: defaultdict[str, int] = defaultdict(int)  # by what became of them
        self._reader = DelayReader(ledger, world_note, self.counts)
        self._block_rows = self._limits.block_rows
        self._is_filing = False
        self._merge_bytes = self._limits.merge_bytes
        self._last_end = 0  # of what was appended and could still be undone
        self._turn = 0  # whose turn it is among the shares
        self._topics: tuple[Metadata, dict[int, str]] | None = None  # names by number, and what they are from
        self._complained_ms: dict[str, int] = {}
        self.lateness = Durations()
        self.park: Park = no_room  # who takes what does not get into its topic

    # --- asking ------------------------------------------------------------------------------------------------

    @property
    def pending(self) -> int:
        """How many wait; what one request sent to one topic counts as one."""
        return self._delays.pending

    @property
    def next_due_ms(self) -> int | None:
        """When the next one is due, by the guarded clock; None if none waits."""
        found = (share.next_due_ms() for share in self._delays.shares)
        return min((one for one in found if one is not None), default=None)

    @property
    def oldest_position(self) -> int | None:
        """The first byte of the journal that is needed for what waits; None if nothing does.

        Until the journal is synced as far as it is now, a power loss could bring back what waited before.
        """
        return self._delays.oldest_position

    def pending_by_topic(self) -> dict[str, int]:
        """How many wait, for each topic that there is."""
        names = self._topic_names()
        return {names[number]: count for number, count in self._delays.topics.items() if number in names}

    @property
    def _delays(self) -> Delays:
        return self._ledger.state.delays

    @property
    def _is_settled(self) -> bool:
        """Whether all that was put in force here is written, so that nothing of it can be undone."""
        return self._last_end <= self._group.journal.written_position

    def _topic_names(self) -> Mapping[int, str]:
        metadata = self._ledger.metadata
        if self._topics is None or self._topics[0] is not metadata:  # a version may come again with another meaning
            self._topics = metadata, {topic.number: topic.name for topic in metadata.topics.values()}
        return self._topics[1]

    # --- taking in -------------------------------------------------------------------------------------------------

    def due_of(self, attributes: Mapping[str, str], now: Now) -> int | None:
        """When a message is to be delivered; None for at once. BadParameterError if it may not wait like that."""
        at, level = attributes.get(DELIVER_AT), attributes.get(DELAY_LEVEL)
        if at is None and level is None:
            return None
        now_ms = self._clock.read(now)
        if at is not None:
            if level is not None:
                raise BadParameterError(f"{DELIVER_AT} and {DELAY_LEVEL} are both given: which one counts?")
            begin_ms = now_ms if at.startswith(SPAN_MARK) else 0
            due_ms = begin_ms + _number_of(DELIVER_AT, at.removeprefix(SPAN_MARK))
        else:
            assert level is not None
            number = _number_of(DELAY_LEVEL, level)
            if not 1 <= number <= len(LEVELS_MS):
                raise BadParameterError(f"{DELAY_LEVEL} is from 1 to {len(LEVELS_MS)}, not {level!r}")
            due_ms = now_ms + LEVELS_MS[number - 1]
        if due_ms <= now_ms:
            return None
        limits = self._limits
        if due_ms - now_ms > limits.delay_max_ms:
            days = limits.delay_max_ms / 86_400_000
            raise BadParameterError(f"{DELIVER_AT} {at} is too far ahead: a message may wait for {days:g} days")
        if self._delays.pending >= limits.delays_max:
            self._metrics.capped["delays"] += 1
            raise BadParameterError(f"{limits.delays_max} delays wait already, no more may: try again later")
        return due_ms

    def put(
        self,
        topic: Topic,
        partition: int,
        messages: Buffer,
        message_count: int,
        index_count: int,
        due_ms: int,
        client_address: bytes,
        now: Now,
    ) -> int:
        """Let scanned messages wait until they are due; safe once the journal is synced to what is returned."""
        if self._must_rewind(self._clock.read(now)):  # a start may be followed by this before the first tick
            self._rewind(now)
        head = Add(
            self._limits.share_count,
            topic.number,
            partition,
            self._not_before_watermarks(due_ms),
            message_count,
            index_count,
            client_address,
        )
        return self._add(head, messages, now)

    def _add(self, head: Add, messages: Buffer, now: Now) -> int:
        position, end = self._ledger.append(RecordType.DELAY, pack_add(head, messages), now.wall_ms, topic=head.topic)
        self._in_force(end, self._delays.add(head, position))
        return end

    def _not_before_watermarks(self, due_ms: int) -> int:
        """What is due before a watermark would count as done: only possible after the clock was set back (F41)."""
        return max(due_ms, self._delays.latest_watermark_ms)

    def _append(self, payload: bytes, now: Now, put_in_force: Callable[[int], Undo]) -> None:
        position, end = self._ledger.append(RecordType.DELAY, payload, now.wall_ms)
        self._in_force(end, put_in_force(position))

    def _in_force(self, end: int, undo: Undo) -> None:
        self._last_end = end
        self._ledger.undo_with(end, lambda: self._take_back(undo))

    def _take_back(self, undo: Undo) -> None:
        undo()
        self._last_end = 0
        self._reader.forget_kept()

    # --- time --------------------------------------------------------------------------------------------------

    def tick(self, now: Now) -> None:
        """Release what is due, a bounded part of it; prepare what soon will be."""
        now_ms = self._clock.read(now)
        if self._access.is_draining:
            return
        if self._must_rewind(now_ms):  # also while nothing waits: what comes next must not wait for the old time
            self._rewind(now)
            return
        if self._delays.is_empty:
            return
        if self._is_settled:
            self._prepare(now_ms, now)
        shares = self._delays.shares
        for nth in range(len(shares)):
            number = (self._turn + nth) % len(shares)
            self._release(number, shares[number], now_ms, now)

    def _prepare(self, now_ms: int, now: Now) -> None:
        """What is near gets into order, what is many into blocks: of one share with each tick, if it can wait."""
        self._reader.forget_kept()
        self._turn += 1
        shares = self._delays.shares
        for number, share in enumerate(shares):
            if number == self._turn % len(shares):
                if share.wants_pruning:
                    share.prune()
            elif share.horizon_ms > now_ms:
                continue
            try:
                near = share.approach(now_ms, self._limits.near_ms, self._reader.rows_of, _BLOCK_READS)
            except ServiceUnavailableError as error:
                self._complain("short", f"delays to come could not be read yet: {error}", now)
                continue
            # They may have been stored weeks ago: on the loop there is no time to wait for the device.
            self._group.journal.will_need(position for _, position in near)
        self._file_one(now)

    def _must_rewind(self, now_ms: int) -> bool:
        """Whether the clock was set back; not before nothing can be undone, for then rows are forgotten."""
        return self._is_settled and now_ms < self._delays.latest_watermark_ms

    def _rewind(self, now: Now) -> None:
        """The clock says less than it did when messages were released: those to come must not count as released."""
        try:
            self._append(pack_rewind(), now, lambda _: self._delays.rewind())
        except LakeMQError:
            return  # at the next tick
        self._note("warning", "the clock was set back: delays are due by the new time")

    def _release(self, number: int, share: Share, now_ms: int, now: Now) -> None:
        first_ms = share.timeline.first_due_ms()
        if first_ms is None or first_ms > now_ms:
            return
        taken = self._take(share, now_ms, now)
        rows = taken.rows
        is_done = bytearray(len(rows))
        reached = 0
        for parcel in taken.parcels:
            for place in parcel.places:
                is_done[place] = 1
            ahead = is_done.find(0, reached)
            ahead = len(rows) if ahead < 0 else ahead
            watermark = rows[ahead - 1] if ahead else share.watermark
            released = Released(number, parcel.topic, watermark, [rows[place] for place in parcel.places])
            try:
                self._append_parcel(parcel, released, now)
            except LakeMQError as error:
                if self._bury_refused(parcel, released, error, now):
                    reached = ahead
                    continue
                for place in parcel.places:
                    is_done[place] = 0
                self._refused(parcel, error, now)
                break
            reached = ahead
            for due_ms, _ in released.rows:
                self.lateness.add(now_ms - due_ms)
        for place, row in enumerate(rows):
            if not is_done[place]:
                share.timeline.insert(*row)

    def _bury_refused(self, parcel: _Parcel, released: Released, error: LakeMQError, now: Now) -> bool:
        """Let what the store will never take become a dead letter; False if it may take it yet."""
        if not isinstance(error, BadParameterError) or len(parcel.places) > 1:
            return False
        try:
            if not self._bury(parcel, str(error), now):
                return False
            self._append(pack_pass(released), now, partial(self._pass, released))
        except LakeMQError:  # it waits for the next tick, as the rest does
            return False
        return True

    def _pass(self, released: Released, position: int) -> Undo:
        return self._delays.release(released)

    def _take(self, share: Share, now_ms: int, now: Now) -> _Taken:
        """What is due, out of the timeline, as far as it can be read and is not too much for one go."""
        limits, written = self._limits, self._group.journal.written_position
        share_count = len(self._delays.shares)
        rows = share.timeline.take(now_ms, max(limits.release_messages // share_count, 1))
        names = self._topic_names()
        parcels: list[_Parcel] = []
        last: dict[tuple[int, int], _Parcel] = {}
        nowhere: dict[int, _Parcel] = {}
        room = max(limits.release_bytes // share_count, 1)
        for place, (_, position) in enumerate(rows):
            if position >= written or room <= 0:  # of this turn, or too much
                self._put_back(share, rows, place)
                break
            try:
                head, messages = self._reader.add_at(position)
            except ServiceUnavailableError as error:  # no memory, no files: it is there, and waits for the next tick
                self._complain("short", f"a delay that is due could not be read, and waits: {error}", now)
                self._put_back(share, rows, place)
                break
            if head is None or head.topic not in names:
                topic = head.topic if head is not None else 0
                parcel = nowhere.get(topic)
                if parcel is None:
                    parcel = nowhere[topic] = _Parcel(topic)
                    parcels.append(parcel)
                parcel.places.append(place)
                if head is not None:
                    parcel.heads.append(head)
                    parcel.buffers.append(messages)
                    room -= len(messages)
                continue
            # Only with the last one of its partition: there, too, messages come out in order.
            key = head.topic, head.partition
            parcel = last.get(key)
            if (
                parcel is None
                or parcel.client_address != head.client_address
                or parcel.size + len(messages) > self._merge_bytes
                or parcel.message_count + head.message_count > MESSAGE_COUNT_MAX
            ):
                parcel = last[key] = _Parcel(head.topic, head.partition, head.client_address)
                parcels.append(parcel)
            parcel.places.append(place)
            parcel.heads.append(head)
            parcel.buffers.append(messages)
            parcel.size += len(messages)
            parcel.message_count += head.message_count
            parcel.index_count += head.index_count
            room -= len(messages)
        return _Taken(rows, parcels)

    def _put_back(self, share: Share, rows: list[Row], place: int) -> None:
        """Leave the rows from there on to another tick."""
        for row in rows[place:]:
            share.timeline.insert(*row)
        del rows[place:]

    def _append_parcel(self, parcel: _Parcel, released: Released, now: Now) -> None:
        if parcel.client_address is None:
            buried = self._bury(parcel, "its topic is gone", now)
            self._append(pack_pass(released), now, partial(self._pass, released))
            self._count_lost(parcel, len(parcel.places) - buried, now)
            return
        messages = b"".join(parcel.buffers)
        appended = self._ledger.append_messages(
            parcel.topic,
            parcel.partition,
            messages,
            parcel.message_count,
            parcel.index_count,
            now.wall_ms,
            client_address=parcel.client_address,
            note=pack_note(released),
        )
        self._in_force(appended.end_position, self._delays.release(released))
        self._ledger.state.expiring.apply(parcel.topic, parcel.partition, messages)
        self._ledger.tracing.produced(parcel.topic, parcel.partition, *appended[:2], "", "", now)
        self.counts["released"] += len(parcel.places)
        if _UNIQ_MARK in messages:
            self._remember_ids(parcel, bytearray(messages), appended.first_index, appended.end_position, now)

    def _remember_ids(self, parcel: _Parcel, messages: bytearray, first_index: int, end: int, now: Now) -> None:
        """As the fold does with every message that is stored."""
        stamp(messages, 0, parcel.message_count, parcel.partition, first_index, self._ledger.term, now.wall_ms)
        uniq_ids = self._ledger.state.uniq_ids
        keys = [(parcel.topic, app, uniq_id) for app, uniq_id, _, _ in ids_of(messages)]
        before = [(key, uniq_ids.find(key)) for key in keys]
        uniq_ids.apply(parcel.topic, messages, end, now.wall_ms)

        def undo() -> None:
            for key, place in before:
                if place is None:
                    uniq_ids.discard(key)
                else:
                    uniq_ids.add(key, place)

        self._ledger.undo_with(end, undo)

    def _bury(self, parcel: _Parcel, reason: str, now: Now) -> int:
        """What cannot be stored where it belongs becomes dead letters: how many records of it."""
        count = 0
        for head, messages in zip(parcel.heads, parcel.buffers, strict=True):
            name = self._topic_names().get(head.topic) or self._ledger.metadata.dropped.get(head.topic)
            if name is None:  # dropped so long ago that nobody knows what it was called
                continue
            fields, _ = read_fields(messages)
            copied = bytearray(messages)
            where = Topic(head.topic, name), head.partition, fields.app.decode()
            counts = head.message_count, head.index_count
            if self.park(*where, copied, *counts, now, cause="store", reason=reason) is not None:
                self.counts["dead"] += 1
                count += 1
        return count

    def _count_lost(self, parcel: _Parcel, count: int, now: Now) -> None:
        if not count:
            return
        if parcel.topic:
            self.counts["topic_gone"] += count
        else:
            self.counts["damaged"] += count
            self._complain("damaged", f"{count} delays are lost: their records are damaged", now)

    def _refused(self, parcel: _Parcel, error: LakeMQError, now: Now) -> None:
        """Its rows wait for the next tick, and so does the rest of the share."""
        self.counts["refused"] += 1
        if isinstance(error, BadParameterError) and len(parcel.places) > 1:
            self._merge_bytes //= 2
        else:
            self._complain("refused", f"a delay that is due could not be stored, and waits: {error}", now)

    def _complain(self, what: str, text: str, now: Now) -> None:
        """Into the log, but not with every tick."""
        since_ms = self._complained_ms.get(what)
        if since_ms is None or now.monotonic_ms - since_ms >= _COMPLAIN_EVERY_MS:
            self._complained_ms[what] = now.monotonic_ms
            self._note("error", text)

    # --- blocks ------------------------------------------------------------------------------------------------

    def _file_one(self, now: Now) -> None:
        """Once a share has many unfiled rows, put them into blocks: one with each tick, the soonest rows first."""
        shares = self._delays.shares
        number, share = max(enumerate(shares), key=lambda one: len(one[1].dues))
        many = max(self._limits.unfiled_max // len(shares), 1)
        if len(share.dues) < (self._block_rows if self._is_filing else many):
            self._is_filing = False
            return
        share.prune()  # a block has rows that wait, and no others: after a restart nothing else would tell them apart
        if 2 * len(share.dues) < many and not self._is_filing:
            return
        self._is_filing = True
        dues, positions = share.dues, share.positions
        first = sorted(range(len(dues)), key=dues.__getitem__)  # of equal ones, the first stays first
        del first[self._block_rows :]
        self._file(
            Filed(
                number,
                -1,
                array("q", [dues[at] for at in first]),
                array("q", [positions[at] for at in first]),
                _NO_ROWS,
            ),
            now,
        )

    def _file(self, filed: Filed, now: Now) -> None:
        try:
            self._append(pack_block(filed), now, lambda position: self._filed(filed, position))
        except BadParameterError:  # too large for a record
            self._block_rows = max(self._block_rows // 2, 1)
        except LakeMQError:
            return  # at another tick
        else:
            self.counts["filed"] += len(filed.dues)

    def _filed(self, filed: Filed, position: int) -> Undo:
        self._reader.keep(position, (filed.dues, filed.positions))
        return self._delays.file(filed, position)

    # --- operators -------------------------------------------------------------------------------------------------

    def rows(self, topic: str | None, after: int, limit: int) -> list[dict[str, Any]]:
        """What waits, for one topic or all, by id; from the id behind `after` on."""
        return self.page(topic, after, limit)[0]

    def page(self, topic: str | None, after: int, limit: int) -> tuple[list[dict[str, Any]], int | None]:
        """The same, and the id to go on after; None at the end. A page may have few rows and not be the last."""
        names = self._topic_names()
        found: list[dict[str, Any]] = []
        if topic is not None and topic not in self.pending_by_topic():
            return found, None
        for nth, (position, due_ms) in enumerate(self._reader.by_position(after)):
            if len(found) >= limit or nth >= _SCAN_MAX:
                return found, after
            after = position
            head, messages = self._reader.add_at(position)
            if head is None or head.topic not in names or topic not in (None, names[head.topic]):
                continue
            found.append(
                {
                    "id": position,
                    "topic": names[head.topic],
                    "partition": head.partition,
                    "due_ms": due_ms,
                    **_first_message(messages),
                    "size": len(messages),
                }
            )
        return found, None

    def cancel(self, position: int, now: Now) -> int:
        """What waits under that id is not released; safe once the journal is synced to what is returned.

        UnknownNameError if nothing waits there: never did, was released or cancelled, or has another id by now.
        """
        head, _ = self._reader.add_at(position)
        number = self._reader.share_with((head.due_ms, position)) if head is not None else None
        if head is None or number is None:
            raise UnknownNameError(f"there is no delay with id {position}")
        if sum(len(share.done) for share in self._delays.shares) >= self._limits.cancelled_max:
            self._metrics.capped["delays_cancelled"] += 1
            raise BadParameterError(f"{self._limits.cancelled_max} delays were cancelled whose time is yet to come")
        rows = [Cancelled(number, head.topic, head.due_ms, position)]
        self._append(pack_cancel(rows), now, lambda _: self._delays.cancel(rows))
        self.counts["cancelled"] += 1
        return self._last_end

    # --- retention -------------------------------------------------------------------------------------------------

    def carry(self, before_position: int, now: Now, limit: int = 1000) -> int:
        """Write again what waits before that position of the journal, about so many records: how many it were.

        Call it again until there is nothing left to do (0). Ids change thereby. Until that is synced, a power loss
        could bring back what was before. A LakeMQError when the journal takes no more; what was carried until then is.
        """
        written = self._group.journal.written_position
        before, count = min(before_position, written), 0
        for number, share in enumerate(self._delays.shares):
            for row in share.unfiled():
                if row[1] >= before:
                    break
                if count >= limit:
                    return count
                count += self._move(number, row, now)
            for block in sorted(share.blocks.values()):
                if min(block.position, block.least_position) < before and block.position < written:
                    count += self._carry_block(number, share, block, before, now, limit - count)
                if count >= limit:
                    return count
        return count

    def _carry_block(self, number: int, share: Share, block: Block, before: int, now: Now, limit: int) -> int:
        """Old rows go to the end one by one; then the rest of the block, in a new one."""
        rows = self._reader.rows_of(block)
        positions = rows[1]
        waiting = share.waiting_in(block, rows)
        old = [row for row in waiting if row[1] < before]
        for nth, row in enumerate(old):
            if nth >= limit:
                return nth
            self._move(number, row, now)
        kept = [row for row in waiting if row[1] >= before]
        still = {row[1] for row in kept}
        filed = Filed(
            number,
            block.position,
            array("q", [row[0] for row in kept]),
            array("q", [row[1] for row in kept]),
            array("q", [one for one in positions if one not in still]),
        )
        self._append(pack_block(filed), now, lambda position: self._filed(filed, position))
        return len(old) + 1

    def _move(self, number: int, row: Row, now: Now) -> int:
        head, messages = self._reader.add_at(row[1])
        if head is None:
            lost = [Cancelled(number, 0, *row)]
            self._append(pack_cancel(lost), now, lambda _: self._delays.cancel(lost))
            self.counts["damaged"] += 1
            self._complain("damaged", f"the delay at position {row[1]} is lost: its record is damaged", now)
            return 1
        moved = head._replace(
            share_count=len(self._delays.shares),
            due_ms=self._not_before_watermarks(row[0]),
            moved_share=number,
            moved_due_ms=row[0],
            moved_position=row[1],
        )
        self._add(moved, messages, now)
        self.counts["carried"] += 1
        return 1


def _number_of(name: str, text: str) -> int:
    """A whole number that is not negative; int() alone would take much else."""
    if not (text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX):
        raise BadParameterError(f"{name} is a whole number, not {text!r}")
    return int(text)


def _first_message(messages: memoryview) -> dict[str, str]:
    fields, _ = read_fields(messages)
    try:
        attributes = decode_attributes(fields.attributes)
    except SerializationError:  # a broken escape is for those who read it
        attributes = {}
    return {"key": fields.business_id.decode(errors="replace"), "tags": attributes.get(TAGS, "")}
