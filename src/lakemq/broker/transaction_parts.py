"""The parts of transactions as bytes: kept while they are open, joined and stored when they are committed.

What a transaction brought lies in the journal, in records of its own. What came lately is also kept in memory, so that
a commit need not read it back; what is not written yet is always there.
"""

import re
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from lakemq.attributes import decode_attributes
from lakemq.broker.events import Now
from lakemq.broker.ledger import Ledger
from lakemq.broker.metrics import Metrics
from lakemq.cluster.metadata import Topic
from lakemq.delivery.transactions import Part, Transaction
from lakemq.delivery.uniq import UNIQ_ID, Place, UniqKey
from lakemq.errors import LakeMQError
from lakemq.record import BATCH_BIT, read_fields
from lakemq.storage.disk import Buffer
from lakemq.storage.partition_group import MESSAGE_COUNT_MAX

MAY_BE_SPECIAL = re.compile(rb"UNIQ_ID|DELIVER_AT|DELAY_LEVEL|EXPIRE|\\")
_JOINED_BYTES_MAX = 1 << 20  # parts of one partition become one record up to this size
_UNIQ_MARK = UNIQ_ID.encode()


class Content(NamedTuple):
    """Messages of one partition that are stored by one record, and which parts of their transaction they are."""

    partition: int
    message_count: int
    index_count: int
    messages: Buffer
    address: bytes
    numbers: list[int]


class TransactionParts:
    """Where the messages of transactions are, until they are in their partitions."""

    def __init__(self, ledger: Ledger, metrics: Metrics, cache_bytes_max: int) -> None:
        self._ledger = ledger
        self._group = ledger.group
        self._metrics = metrics
        self._cache_bytes_max = cache_bytes_max
        self._cache: OrderedDict[tuple[int, int], Buffer] = OrderedDict()  # by position and offset
        self.cached_bytes = 0

    def contents(self, transaction: Transaction, numbers: Sequence[int]) -> Iterator[Content]:
        """The messages of these parts, those of one partition together."""
        lots: dict[int, list[tuple[int, Part]]] = {}
        for number in numbers:
            part = transaction.parts[number]
            lots.setdefault(part.partition, []).append((number, part))
        for partition, lot in lots.items():
            waiting: list[tuple[int, Part]] = []
            for number, part in lot:
                if waiting and not _may_join([one for _, one in waiting], part):
                    yield self._joined(partition, waiting)
                    waiting = []
                waiting.append((number, part))
            yield self._joined(partition, waiting)

    def _joined(self, partition: int, lot: list[tuple[int, Part]]) -> Content:
        parts = [part for _, part in lot]
        pieces = [self.messages_of(part) for part in parts]
        return Content(
            partition,
            sum([part.message_count for part in parts]),
            sum([part.index_count for part in parts]),
            pieces[0] if len(pieces) == 1 else b"".join(pieces),
            parts[0].address,
            [number for number, _ in lot],
        )

    def store(self, topic: Topic, app: str, content: Content, note: bytes, now: Now) -> int:
        partition, message_count, index_count, messages, address, _ = content
        first_index, next_index, end = self._ledger.append_messages(
            topic.number,
            partition,
            messages,
            message_count,
            index_count,
            now.wall_ms,
            client_address=address,
            note=note,
        )
        if MAY_BE_SPECIAL.search(messages) is not None:
            self._ledger.state.expiring.apply(topic.number, partition, messages)
            index = first_index
            for key, indexes, _, _ in walk(topic.number, app, messages):
                if key is not None:
                    self._remember(key, Place(partition, index, end, now.wall_ms))
                index += indexes
        self._ledger.tracing.produced(topic.number, partition, first_index, next_index, app, "", now)
        self._metrics.messages_in[topic.name] += index_count
        self._metrics.bytes_in[topic.name] += len(messages)
        return end

    def _remember(self, key: UniqKey, place: Place) -> None:
        self._ledger.state.uniq_ids.add(key, place)
        self._ledger.undo_with(place.end_position, lambda: self._ledger.state.uniq_ids.discard(key))

    def messages_of(self, part: Part) -> Buffer:
        cached = self._cache.get((part.position, part.offset))
        if cached is not None:
            return cached
        _, payload = self._group.read_record(part.position)
        return payload[part.offset : part.offset + part.size]

    def keep(self, part: Part, messages: Buffer, end: int) -> None:
        """What is not written yet must be here: it cannot be read back."""
        key = part.position, part.offset
        self._cache[key] = messages
        self.cached_bytes += part.size
        self._ledger.undo_with(end, lambda: self.forget(part))
        written = self._group.journal.written_position
        while self.cached_bytes > self._cache_bytes_max:
            oldest = next(iter(self._cache))
            if oldest[0] >= written:
                return
            self.cached_bytes -= len(self._cache.pop(oldest))

    def forget(self, part: Part) -> None:
        if self._cache.pop((part.position, part.offset), None) is not None:
            self.cached_bytes -= part.size


def _may_join(waiting: list[Part], part: Part) -> bool:
    return (
        part.address == waiting[0].address
        and sum([one.size for one in waiting]) + part.size <= _JOINED_BYTES_MAX
        and sum([one.message_count for one in waiting]) + part.message_count <= MESSAGE_COUNT_MAX
    )


def walk(topic: int, sender: str, messages: Buffer) -> Iterator[tuple[UniqKey | None, int, int, int]]:
    """Of each message: the key of its id if it has one, how many indexes it takes, where it begins and ends."""
    at = 0
    while at < len(messages):
        start = at
        fields, at = read_fields(messages, at)
        key = None
        if _UNIQ_MARK in fields.attributes:
            try:
                uniq_id = decode_attributes(fields.attributes).get(UNIQ_ID)
            except LakeMQError:  # not ours to refuse
                uniq_id = None
            if uniq_id:
                key = topic, fields.app.decode(errors="replace") or sender, uniq_id
        yield key, fields.flag if fields.system_code & BATCH_BIT else 1, start, at
