"""Messages that something refers to: by the position of a record and the index of the message in it.

A reference outlives the partition index: what is old and still wanted is written again elsewhere (KEPT) when its
segment has to go, and the reference follows.
"""

from dataclasses import replace

from lakemq.broker.opening import Opening
from lakemq.delivery.retries import attempt_number
from lakemq.envelope import pack
from lakemq.message import Message
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
