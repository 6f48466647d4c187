"""What one PRODUCE_MESSAGE carries to one partition, from the first message put in until the broker has answered.

Messages are laid out as they come, without an object each. Consecutive ones with equal tags and nothing the broker
must look at share a carrier, which is compressed as a whole; the others are messages of their own in the same request.
A message is known by its place in the parcel.
"""

import struct
from bisect import bisect_right
from collections.abc import Callable
from itertools import accumulate

import cramjam

from lakemq.attributes import DELIVER_AT
from lakemq.batch import HEAD
from lakemq.checksum import crc32
from lakemq.client.config import Acks
from lakemq.client.outgoing import joined, tags_attributes, uniq_attributes
from lakemq.client.promise import Promise
from lakemq.compression import EXPANDED_BYTES_MAX, Compression, compress
from lakemq.errors import BadParameterError
from lakemq.message import ANY_PARTITION, BATCH_COUNT_MAX, MESSAGE_BYTES_MAX, UNSET_INDEX
from lakemq.record import FIXED, FIXED_BYTES, MESSAGE_BYTES_MIN, Buffer, SystemCode, signed_short

ITEM_BYTES_MIN = 17
_ITEM_HEAD = struct.Struct(">ibhi")  # length, priority, flag, body's length
_INT = struct.Struct(">i")
_SHORT = struct.Struct(">h")
_NO_TAIL = bytes(6)  # neither key nor attributes
_NO_TAIL_MESSAGE = bytes(8)  # nor an extension
_PARTITION_OFFSET = 4
_DELAYED = DELIVER_AT.encode() + b"="
# Of the messages in one carrier, before they are compressed: so that it fits a MESSAGE even if they cannot be, with the
# attributes of the carrier.
_CARRIER_BYTES_MAX = MESSAGE_BYTES_MAX - (64 << 10)
# The fast kinds of lz4; the library's default takes ten times as long for a little less.
_LZ4_LEVEL = 1

Placing = list[tuple[int, int]]
"""Partition and first index of each MESSAGE of a request."""


class Packing:
    """How a client lays out its messages."""

    __slots__ = ("_codes", "app_tail", "bytes_min", "compression", "new_id")

    def __init__(
        self, app: str, compression: Compression, bytes_min: int, new_id: Callable[[], str] | None = None
    ) -> None:
        self.new_id = new_id  # for messages that have none, where they must have one
        app_bytes = app.encode()
        self.app_tail = _SHORT.pack(len(app_bytes)) + app_bytes
        self.compression = compression
        self.bytes_min = bytes_min
        self._codes: dict[tuple[bool, bool, bool], int] = {}

    def carried(self, body: Buffer) -> tuple[Buffer, bool]:
        """The body as it travels, and whether that is compressed: only if it gets smaller."""
        if self.compression is Compression.NONE or len(body) <= self.bytes_min:
            return body, False
        if self.compression is Compression.LZ4:
            smaller: Buffer = bytes(cramjam.lz4.compress(body, level=_LZ4_LEVEL))
        else:
            smaller = compress(self.compression, body)
        return (smaller, True) if len(smaller) < len(body) else (body, False)

    def message(
        self,
        body: Buffer,
        key: bytes,
        attributes: bytes,
        wall_ms: int,
        *,
        priority: int = 0,
        is_ordered: bool = False,
        batch_count: int = 0,
    ) -> tuple[bytearray, Buffer, bytes]:
        """One MESSAGE in three parts: up to the body, the body, what follows. `batch_count` makes it a carrier."""
        if len(body) > EXPANDED_BYTES_MAX:
            raise BadParameterError(
                f"the body has {len(body)} bytes before it is compressed; "
                f"{EXPANDED_BYTES_MAX} ({EXPANDED_BYTES_MAX >> 20} MiB) is the most that a consumer opens"
            )
        carried, is_compressed = self.carried(body)
        length = MESSAGE_BYTES_MIN - 2 + len(self.app_tail) + len(carried) + len(key) + len(attributes)
        if length > MESSAGE_BYTES_MAX:
            raise BadParameterError(f"the message has {length} bytes as carried; {MESSAGE_BYTES_MAX} are allowed")
        try:
            head = FIXED.pack(
                length,
                ANY_PARTITION,
                UNSET_INDEX,
                0,
                self._code(is_compressed, is_ordered, batch_count > 0),
                priority,
                wall_ms,
                0,
                crc32(carried),
                batch_count,
                len(carried),
            )
        except struct.error as error:
            raise BadParameterError(f"priority {priority} is not within -128 and 127: {error}") from None
        if key or attributes:
            tail = b"".join(
                (_SHORT.pack(len(key)), key, _SHORT.pack(len(attributes)), attributes, b"\0\0\0\0", self.app_tail)
            )
        else:
            tail = _NO_TAIL_MESSAGE + self.app_tail
        return bytearray(head), carried, tail

    def _code(self, is_compressed: bool, is_ordered: bool, is_batch: bool) -> int:
        key = (is_compressed, is_ordered, is_batch)
        code = self._codes.get(key)
        if code is None:
            kind = self.compression if is_compressed else Compression.NONE
            code = signed_short(SystemCode(compression=kind, is_ordered=is_ordered, is_batch=is_batch).pack())
            self._codes[key] = code
        return code


class Parcel:
    """The messages of one request. Open until it is sealed, then on its way, then `done`."""

    __slots__ = (
        "_items",
        "_items_count",
        "_items_tags",
        "_packing",
        "_starts",
        "acks",
        "count",
        "counts",
        "deadline_ms",
        "done",
        "futures",
        "has_delays",
        "has_ids",
        "has_some_ids",
        "heads",
        "id_to_route_by",
        "is_open",
        "is_ordered",
        "is_queued",
        "key",
        "partition",
        "parts",
        "placing",
        "sent_to",
        "size",
        "topic",
        "uniq_ids",
    )

    def __init__(
        self,
        topic: str,
        partition: int | None,
        acks: Acks,
        packing: Packing,
        *,
        key: str | None = None,
        is_ordered: bool = False,
    ) -> None:
        self.topic = topic
        self.partition = partition  # None: to be chosen when it leaves, by the key if there is one
        self.key = key
        self.sent_to: int | None = None  # the partition of the last try
        self.id_to_route_by: str | None = None  # the id that the user gave its first message
        self.acks = acks
        self.is_ordered = is_ordered
        self.is_open = True
        self.is_queued = False  # in the outbox, for later
        self.has_delays = False  # one of its messages is to be delivered later
        self.has_ids = True  # every MESSAGE has a UNIQ_ID: sent again, it is still stored once
        self.has_some_ids = False
        self.count = 0
        self.size = 0  # what it takes of the buffer: bytes as they were put in
        self.deadline_ms = 0
        self.counts: list[int] = []  # messages in each MESSAGE
        self.heads: list[bytearray] = []  # of each MESSAGE; the partition is written into them
        self.parts: list[Buffer] = []
        self.placing: Placing | None = None
        self.done: Promise[None] = Promise()  # not of the parcel: the two would keep each other alive
        self.futures: list[object] = []  # of the driver: one per message, by place
        self.uniq_ids: dict[int, str] = {}
        self._packing = packing
        self._items: bytearray | None = None
        self._items_count = 0
        self._items_tags = ""
        self._starts: list[int] | None = None

    def add(self, body: Buffer, key: bytes, tags: str, attributes: bytes, wall_ms: int) -> int:
        """Put in a message that may share a carrier; `attributes` are its own, without the tags. Its place."""
        length = ITEM_BYTES_MIN + len(body) + len(key) + len(attributes)
        if length > _CARRIER_BYTES_MAX:  # its own carrier: what it cannot be is told now, and to its own sender
            return self.add_alone(body, key, joined(attributes, tags_attributes(tags)), wall_ms)
        items = self._items
        is_full = items is not None and len(items) + length > _CARRIER_BYTES_MAX
        if tags != self._items_tags or is_full or self._items_count == BATCH_COUNT_MAX:
            self._close_carrier(wall_ms)
            self._items_tags, items = tags, None
        if items is None:
            items = self._items = bytearray(HEAD.size)
        items += _ITEM_HEAD.pack(length, 0, 0, len(body))
        items += body
        if key or attributes:
            items += _INT.pack(len(key)) + key + _SHORT.pack(len(attributes)) + attributes
        else:
            items += _NO_TAIL
        self._items_count += 1
        self.size += length
        place = self.count
        self.count = place + 1
        return place

    def add_alone(
        self, body: Buffer, key: bytes, attributes: bytes, wall_ms: int, priority: int = 0, uniq_id: str | None = None
    ) -> int:
        """Put in a message that must be a MESSAGE of its own; `attributes` are all but its id. Its place."""
        self._close_carrier(wall_ms)
        if uniq_id is not None and not self.count:
            self.id_to_route_by = uniq_id
        uniq_id = self._put(body, key, attributes, wall_ms, priority=priority, count=1, uniq_id=uniq_id)
        if uniq_id is not None:
            self.uniq_ids[self.count] = uniq_id
        self.size += MESSAGE_BYTES_MIN + len(body) + len(key) + len(attributes)
        self.count += 1
        return self.count - 1

    def seal(self, wall_ms: int) -> None:
        """Nothing is put in any more."""
        if self.is_open:
            self._close_carrier(wall_ms)
            self.is_open = False

    def address_to(self, partition: int) -> None:
        """Write the partition into every MESSAGE."""
        self.sent_to = partition
        for head in self.heads:
            _SHORT.pack_into(head, _PARTITION_OFFSET, partition)

    def stay(self) -> None:
        """A try had no answer: only the broker that got it knows its ids, so it goes nowhere else."""
        if self.partition is None and self.has_some_ids:
            self.partition = self.sent_to

    def where(self, place: int) -> tuple[int | None, int | None]:
        """Partition and index of a message, as far as the broker has said."""
        if self.placing is None:
            return self.partition, None
        nth, within = 0, place
        if len(self.counts) > 1:
            if self._starts is None:
                self._starts = list(accumulate(self.counts, initial=0))
            nth = bisect_right(self._starts, place) - 1
            within = place - self._starts[nth]
        partition, index = self.placing[nth]
        return partition, None if index == UNSET_INDEX else index + within

    def _close_carrier(self, wall_ms: int) -> None:
        items, count = self._items, self._items_count
        if items is None:
            return
        if count == 1:  # nothing to share
            body, key, attributes = _only_item(items)
            attributes = joined(attributes, tags_attributes(self._items_tags))
            uniq_id = self._put(body, key, attributes, wall_ms, count=1)
            if uniq_id is not None:
                self.uniq_ids[self.count - 1] = uniq_id
        else:
            HEAD.pack_into(items, 0, len(items), count)
            attributes = tags_attributes(self._items_tags)
            self._put(items, b"", attributes, wall_ms, count=count, is_carrier=True)
        self._items = None
        self._items_count = 0

    def _put(
        self,
        body: Buffer,
        key: bytes,
        attributes: bytes,
        wall_ms: int,
        *,
        count: int,
        priority: int = 0,
        is_carrier: bool = False,
        uniq_id: str | None = None,
    ) -> str | None:
        """Lay out one MESSAGE; the id it has in the end."""
        if uniq_id is None and self._packing.new_id is not None:
            uniq_id = self._packing.new_id()
        if uniq_id is None:
            self.has_ids = False
        else:
            self.has_some_ids = True
            attributes = joined(attributes, uniq_attributes(uniq_id))
        self.has_delays = self.has_delays or _DELAYED in attributes
        head, carried, tail = self._packing.message(
            body,
            key,
            attributes,
            wall_ms,
            priority=priority,
            is_ordered=self.is_ordered,
            batch_count=count if is_carrier else 0,
        )
        self.heads.append(head)
        self.parts += (head, carried, tail)
        self.counts.append(count)
        return uniq_id

    def refusal(self, code: int) -> str:
        """What to tell of a broker's refusal; its number does not say which limit was passed."""
        if code == BadParameterError.status and self.has_delays:
            return (
                f"topic {self.topic}: a message may be delayed by at most 40 days, unless the broker is set otherwise"
            )
        return f"topic {self.topic}"

    def forget_bytes(self) -> None:
        """Once it has arrived: whoever keeps a future keeps the parcel, and need not keep what was in it."""
        self.heads, self.parts, self.futures = [], [], []

    @classmethod
    def of_messages(
        cls,
        topic: str,
        partition: int | None,
        key: str | None,
        acks: Acks,
        is_ordered: bool,
        messages: list[tuple[bytes, int]],
    ) -> "Parcel":
        """A parcel of MESSAGEs that were laid out before and have ids, each with the number of messages in it."""
        parcel = cls(topic, partition, acks, _LAID_OUT, key=key, is_ordered=is_ordered)
        parcel.is_open = False
        parcel.has_some_ids = True
        for data, count in messages:
            head = bytearray(data[:FIXED_BYTES])
            parcel.heads.append(head)
            parcel.parts += (head, data[FIXED_BYTES:], b"")
            parcel.counts.append(count)
            parcel.count += count
            parcel.size += len(data)
        return parcel


_LAID_OUT = Packing("", Compression.NONE, 0)


def _only_item(items: bytearray) -> tuple[bytes, bytes, bytes]:
    _, _, _, size = _ITEM_HEAD.unpack_from(items, HEAD.size)
    at = HEAD.size + _ITEM_HEAD.size
    body = bytes(items[at : at + size])
    at += size
    size = _INT.unpack_from(items, at)[0]
    key = bytes(items[at + 4 : at + 4 + size])
    return body, key, bytes(items[at + 4 + size + 2 :])
