"""Messages that something refers to: by the position of a record and the index of the message in it.

A reference outlives the partition index: what is old and still wanted is written again elsewhere (KEPT) when its
segment has to go, and the reference follows.
"""

from dataclasses import replace

from lakemq.envelope import open_fields, pack
from lakemq.errors import LakeMQError, ReadError
from lakemq.message import BatchMessage, Message
from lakemq.record import BATCH_BIT, read_fields
from lakemq.storage.journal_record import note_bytes
from lakemq.storage.partition_group import PartitionGroup
from lakemq.wire.consume import RETRY_PARTITION

ATTEMPT = "LAKEMQ_ATTEMPT"  # which attempt this is, the first delivery being 1
ORIGIN_PARTITION = "LAKEMQ_PARTITION"
ORIGIN_INDEX = "LAKEMQ_INDEX"


class References:
    """Finds messages again."""

    def __init__(self, group: PartitionGroup) -> None:
        self._group = group

    def read(self, position: int, index: int) -> tuple[Message, bytes]:
        """The message, out of its batch if it is in one, and the address of who sent it; ReadError if it is gone."""
        header, payload = self._group.read_record(position)
        at = note_bytes(header.type, payload)
        while at < len(payload):
            fields, at = read_fields(payload, at)
            count = fields.flag if fields.system_code & BATCH_BIT else 1
            if fields.index <= index < fields.index + count:
                try:
                    found = open_fields(fields)
                except LakeMQError as error:
                    raise ReadError(f"the message at position {position} cannot be opened: {error}") from error
                if isinstance(found, BatchMessage):
                    shared = found.attributes
                    one = found.messages()[index - fields.index]
                    # What a batch says of all its messages, such as their tags, each says for itself now.
                    found = replace(one, attributes={**shared, **one.attributes})
                return found, header.client_address
        raise ReadError(f"the record at position {position} has no message with index {index}")

    def as_retry(self, message: Message, retry_id: int, attempt: int) -> bytes:
        """The message as it is handed out again: from the partition of retries, saying where it comes from."""
        attributes = {
            **message.attributes,
            ATTEMPT: str(attempt),
            ORIGIN_PARTITION: str(message.partition),
            ORIGIN_INDEX: str(message.index),
        }
        return pack(replace(message, attributes=attributes, partition=RETRY_PARTITION, index=retry_id))
