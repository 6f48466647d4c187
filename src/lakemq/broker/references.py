"""Messages that something refers to: by the position of a record and the index of the message in it.

A reference outlives the partition index: what is old and still wanted is written again elsewhere (KEPT) when its
segment has to go, and the reference follows.
"""

from collections.abc import Mapping
from dataclasses import replace

from lakemq.broker.opening import Opening
from lakemq.delivery.retries import attempt_number
from lakemq.envelope import pack
from lakemq.message import Message
from lakemq.record import BATCH_BIT, Buffer, read_fields, write_fields
from lakemq.storage.partition_group import PartitionGroup
from lakemq.wire.consume import RETRY_PARTITION

ATTEMPT = "LAKEMQ_ATTEMPT"  # which attempt this is, the first delivery being 1
ORIGIN_PARTITION = "LAKEMQ_PARTITION"
ORIGIN_INDEX = "LAKEMQ_INDEX"


class References:
    """Finds messages again."""

    def __init__(self, group: PartitionGroup) -> None:
        self._opening = Opening(group)

    def read(self, position: int, index: int) -> tuple[Message, bytes]:
        """The message, out of its batch if it is in one, and the address of who sent it; ReadError if it is gone."""
        return self._opening.read(position, index)

    def as_retry(self, message: Message, retry_id: int, attempt: int, *, tells_origin: bool) -> bytes:
        """The message as it is handed out again: from the partition of retries, with its origin if that is wanted."""
        attributes = dict(message.attributes)
        if tells_origin:
            attributes |= {
                ATTEMPT: str(attempt),
                ORIGIN_PARTITION: str(message.partition),
                ORIGIN_INDEX: str(message.index),
            }
        index = attempt_number(retry_id, attempt)
        return pack(replace(message, attributes=attributes, partition=RETRY_PARTITION, index=index))


def with_attempts(messages: Buffer, count: int, attempts: Mapping[int, int]) -> memoryview:
    """Messages that are handed out at their own place, those with these indexes saying which attempt it is."""
    parts = []
    at = 0
    for _ in range(count):
        start = at
        fields, at = read_fields(messages, at)
        after = fields.index + (fields.flag if fields.system_code & BATCH_BIT else 1)
        attempt = max((nth for index, nth in attempts.items() if fields.index <= index < after), default=0)
        if attempt:
            line = f"{ATTEMPT}={attempt}".encode()
            attributes = b"\n".join([line, fields.attributes]) if fields.attributes else line
            parts.append(write_fields(replace(fields, attributes=attributes)))
        else:
            parts.append(bytes(memoryview(messages)[start:at]))
    return memoryview(b"".join(parts))
