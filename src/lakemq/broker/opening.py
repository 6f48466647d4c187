"""Messages by reference, for those who read many in a row: neighbours are mostly in one record, often in one batch.

A record is read and walked once for all of its messages, a batch is opened once. What was written never changes, so
what is remembered stays true.
"""

import struct
from bisect import bisect_right
from collections import OrderedDict
from typing import NamedTuple

from lakemq.broker.resending import single
from lakemq.envelope import open_fields
from lakemq.errors import LakeMQError, ReadError
from lakemq.message import BatchMessage, Message
from lakemq.record import BATCH_BIT, MESSAGE_BYTES_MIN, read_fields
from lakemq.storage.journal_record import note_bytes
from lakemq.storage.partition_group import PartitionGroup

_HEAD = struct.Struct(">i2xq4xh21xh")  # of a message: length, index, systemCode, flag
_RECORDS_MAX = 4
_RECORD_BYTES_MAX = 8 << 20  # of all that are remembered, but one in any case


class _Record:
    """A record's payload, where its messages begin, and which one was opened last."""

    __slots__ = ("address", "afters", "firsts", "opened", "opened_index", "payload", "starts")

    def __init__(self, payload: memoryview, start: int, address: bytes) -> None:
        self.payload = payload
        self.address = address
        self.firsts: list[int] = []
        self.afters: list[int] = []
        self.starts: list[int] = []
        self.opened_index = -1
        self.opened: Message | BatchMessage = Message()
        at = start
        while at < len(payload):
            if len(payload) - at < MESSAGE_BYTES_MIN:
                raise ReadError("a record that is referred to is none of messages")
            length, index, code, flag = _HEAD.unpack_from(payload, at)
            if not MESSAGE_BYTES_MIN <= length <= len(payload) - at:
                raise ReadError("a record that is referred to is none of messages")
            self.starts.append(at)
            self.firsts.append(index)
            self.afters.append(index + (flag if code & BATCH_BIT else 1))
            at += length


class Cost(NamedTuple):
    """What was read so far: bytes of records, and messages that were opened."""

    bytes: int
    messages: int


class Opening:
    """Finds messages again, the next one faster than the first."""

    def __init__(self, group: PartitionGroup) -> None:
        self._group = group
        self._records: OrderedDict[int, _Record] = OrderedDict()
        self.cost = Cost(0, 0)

    def read(self, position: int, index: int) -> tuple[Message, bytes]:
        """The message, out of its batch if it is in one, and the address of who sent it; ReadError if it is gone."""
        record = self._record(position)
        place = bisect_right(record.firsts, index) - 1
        if place < 0 or index >= record.afters[place]:
            raise ReadError(f"the record at position {position} has no message with index {index}")
        first = record.firsts[place]
        if record.opened_index != first:
            fields, _ = read_fields(record.payload, record.starts[place])
            try:
                record.opened = open_fields(fields)
            except LakeMQError as error:
                raise ReadError(f"the message at position {position} cannot be opened: {error}") from error
            record.opened_index = first
            self.cost = Cost(self.cost.bytes, self.cost.messages + record.afters[place] - first)
        return single(record.opened, index), record.address

    def _record(self, position: int) -> _Record:
        found = self._records.get(position)
        if found is not None:
            self._records.move_to_end(position)
            return found
        header, payload = self._group.read_record(position)
        record = _Record(payload, note_bytes(header.type, payload), header.client_address)
        self.cost = Cost(self.cost.bytes + len(payload), self.cost.messages + len(record.starts) // 8)
        self._records[position] = record
        while len(self._records) > 1 and (
            len(self._records) > _RECORDS_MAX
            or sum(len(one.payload) for one in self._records.values()) > _RECORD_BYTES_MAX
        ):
            self._records.popitem(last=False)
        return record
