"""Message and BatchMessage as values, and the small vocabularies that go with them.

Nothing here knows bytes: bodies are as the user gave them, attributes are a mapping. How a message is laid out is
`record.py`; how a value becomes one is `envelope.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum

from lakemq.compression import Compression

MESSAGE_BYTES_MAX = 4 << 20
BUSINESS_ID_CHARACTERS_MAX = 100
BATCH_COUNT_MAX = 32767
ANY_PARTITION = -1  # the server chooses
UNSET_INDEX = -1


class Qos(Enum):
    """When a producer is answered. Numbers differ by dialect, so they live in `wire/dialect.py`."""

    FLUSH = "flush"  # the record is synced
    WRITE = "write"  # write() has returned
    RECEIVE = "receive"  # queued in memory
    NO = "no"  # not at all

    @property
    def strength(self) -> int:
        """Higher is stronger; where header and body differ the stronger wins."""
        return _STRENGTH[self]


_STRENGTH = {Qos.NO: 0, Qos.RECEIVE: 1, Qos.WRITE: 2, Qos.FLUSH: 3}


class AckType(IntEnum):
    """How a consumer was done with a message; all but SUCCESS lead to a retry where the policy allows."""

    SUCCESS = 0
    TIMEOUT = 1
    EXCEPTION = 2
    OTHER = 3


class Source(IntEnum):
    """Which protocol a message came in by. Two bits on the wire."""

    JMQ = 0
    KAFKA = 1
    MQTT = 2
    JOYQUEUE = 3


@dataclass(frozen=True, slots=True)
class BatchItem:
    """One message inside a batch; partition, app, times and source are its carrier's."""

    body: bytes
    business_id: str = ""
    attributes: Mapping[str, str] = field(default_factory=dict)
    priority: int = 0
    flag: int = 0


_STORE_TIME_MAX = 0x7FFFFFFF
_FAR_AHEAD = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class Carrier:
    """What a message and a batch have in common: how and where they travel."""

    business_id: str = ""
    attributes: Mapping[str, str] = field(default_factory=dict)
    priority: int = 0
    app: str = ""
    extension: bytes = b""
    compression: Compression = Compression.NONE
    is_ordered: bool = False
    # JoyQueue's own clients open a batch only if it says that it is theirs.
    source: Source = Source.JOYQUEUE
    is_ipv6: bool = False
    send_time_ms: int = 0
    # Given by the server:
    partition: int = ANY_PARTITION
    index: int = UNSET_INDEX
    term: int = 0
    store_time_ms: int = 0  # after send_time_ms

    @property
    def stored_at_ms(self) -> int:
        """When it was stored, by the server's clock; far ahead if the sender's is so wrong that there was no room."""
        return self.send_time_ms + self.store_time_ms if self.store_time_ms < _STORE_TIME_MAX else _FAR_AHEAD


@dataclass(frozen=True, slots=True, kw_only=True)
class Message(Carrier):
    """One message, body as the user gave it."""

    body: bytes = b""
    flag: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchMessage(Carrier):
    """Several messages that travel and are stored as one; the first has `index`, the k-th after it `index + k`."""

    items: tuple[BatchItem, ...] = ()

    def messages(self) -> list[Message]:
        """The messages one by one, as a consumer wants to see them."""
        return [
            Message(
                body=item.body,
                flag=item.flag,
                business_id=item.business_id,
                attributes=item.attributes,
                priority=item.priority,
                app=self.app,
                is_ordered=self.is_ordered,
                source=self.source,
                is_ipv6=self.is_ipv6,
                send_time_ms=self.send_time_ms,
                partition=self.partition,
                index=self.index + place if self.index != UNSET_INDEX else UNSET_INDEX,
                term=self.term,
                store_time_ms=self.store_time_ms,
            )
            for place, item in enumerate(self.items)
        ]
