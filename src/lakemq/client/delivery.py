"""A received message, opened as far as somebody looks at it.

A fetched MESSAGE is checked when it comes (`open_messages`), and expanded when its messages are handed out, into a twin
that lasts as long as they do: what is compressed well is large only while somebody has it in hand. Its messages are
then known by where they begin in those bytes. Body, key and attributes are taken out when asked for, so that what
nobody reads costs next to nothing.
"""

import json
import struct
from collections.abc import Iterable
from copy import copy
from types import TracebackType
from typing import TYPE_CHECKING, Any

from lakemq.attributes import TAGS, TOMBSTONE, UNIQ_ID, decode_attributes
from lakemq.batch import HEAD
from lakemq.checksum import crc32
from lakemq.client.duration import Duration, duration_ms
from lakemq.client.outgoing import TAG_SEPARATOR
from lakemq.client.receipt import place_id
from lakemq.compression import decompress
from lakemq.envelope import decode_text
from lakemq.errors import ChecksumError, LakeMQError, SerializationError
from lakemq.message import AckType
from lakemq.record import BATCH_BIT, COMPRESSED_BIT, FIXED, FIXED_BYTES, UNSET_CRCS, SystemCode
from lakemq.wire.consume import RETRY_PARTITION
from lakemq.wire.messages import MessageBlock
from lakemq.wire.own import BY_POLICY, SettleOutcome

if TYPE_CHECKING:
    from lakemq.client.lease import Hold

# Set by a broker that delivers again: which time this is, and where the message is stored.
ATTEMPT = "LAKEMQ_ATTEMPT"
ORIGIN_PARTITION = "LAKEMQ_PARTITION"
ORIGIN_INDEX = "LAKEMQ_INDEX"
REASON_CHARACTERS_MAX = 1000
_OURS = "LAKEMQ_"
_ITEM_BYTES_MIN = 17
_ITEM_SIZES = struct.Struct(">i3xi")  # of the item and of its body
_ITEM_BODY = 7  # where the length of an item's body is
_INT = struct.Struct(">i")
_SHORT = struct.Struct(">h")
_PLAIN = -1  # the place of a message that is no part of a batch


class Carried:
    """One MESSAGE as it came: what its messages share, and the bytes they are in."""

    __slots__ = (
        "_attributes",
        "_code",
        "_tail",
        "body",
        "count",
        "damage",
        "group",
        "index",
        "is_alone",
        "is_sealed",
        "origin_index",
        "origin_partition",
        "partition",
        "sent_at",
        "starts",
        "stored_at",
        "topic",
    )

    def __init__(self, topic: str, view: memoryview, start: int, group: str = "") -> None:
        length, partition, index, _, code, _, sent, stored, crc, flag, size = FIXED.unpack_from(view, start)
        self.topic = topic
        self.group = group
        self.partition: int = partition
        self.index: int = index
        self.sent_at: int = sent
        self.stored_at: int = sent + stored
        self.count: int = max(flag, 1) if code & BATCH_BIT else 1
        self.damage: LakeMQError | None = None
        self.is_alone = not code & BATCH_BIT
        self.is_sealed = False  # its body is compressed still
        self._code: int = code
        self._attributes: dict[str, str] | None = None
        self.starts: list[int] = [_PLAIN]
        body_end = start + FIXED_BYTES + max(size, 0)
        body = view[start + FIXED_BYTES : body_end]
        self._tail = bytes(view[body_end : start + length])
        self.body = bytes(body)
        if crc not in UNSET_CRCS and crc != crc32(body):
            where = f"{topic}, partition {partition}, offset {index}"
            self._condemn(ChecksumError(f"{where}: the body is not what was sent"))
        elif code & COMPRESSED_BIT:
            self.is_sealed = True
        elif code & BATCH_BIT:
            self._find_items()
        # Where it is stored; what is delivered again comes by another number, and is settled by that.
        self.origin_partition: int = partition
        self.origin_index: int = index
        if partition == RETRY_PARTITION:
            self._find_origin()

    def opened(self) -> "Carried":
        """One whose body is expanded: itself, or a twin that nobody else has. If that cannot be, `damage` says why."""
        if not self.is_sealed:
            return self
        twin = copy(self)
        twin.is_sealed = False
        try:
            twin.body = decompress(SystemCode.unpack(self._code & 0xFFFF).compression, self.body)
        except LakeMQError as error:
            where = f"{self.topic}, partition {self.partition}, offset {self.index}"
            twin._condemn(SerializationError(f"{where}: the body cannot be opened: {error}"))
        else:
            if self._code & BATCH_BIT:
                twin._find_items()
        return twin

    def _find_items(self) -> None:
        try:
            self.starts = _item_starts(self.body, self.count)
        except LakeMQError as error:
            self._condemn(error)

    def _condemn(self, error: LakeMQError) -> None:
        """It cannot be opened: whoever asks for a body hears why, and nobody gets bytes that are none."""
        self.damage = error
        self.body = b""
        self.starts = [_PLAIN] * self.count

    def _find_origin(self) -> None:
        try:
            attributes = self.attributes()
        except LakeMQError:  # told when somebody looks at them
            return
        place = attributes.get(ORIGIN_PARTITION, ""), attributes.get(ORIGIN_INDEX, "")
        if all(text.isdecimal() and len(text) < 20 for text in place):
            self.origin_partition, self.origin_index = int(place[0]), int(place[1])

    def tail(self) -> tuple[bytes, bytes]:
        """Key and attributes, of the message itself or of the carrier."""
        tail = self._tail
        key_end = 2 + max(_SHORT.unpack_from(tail)[0], 0)
        size = max(_SHORT.unpack_from(tail, key_end)[0], 0)
        return tail[2:key_end], tail[key_end + 2 : key_end + 2 + size]

    def attributes(self) -> dict[str, str]:
        """Its attributes; those of a carrier are shared by its messages."""
        if self._attributes is None:
            self._attributes = decode_attributes(self.tail()[1])
        return self._attributes


def reason_of(error: BaseException) -> str:
    """What is kept of an error with the message that it befell."""
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def open_messages(topic: str, block: MessageBlock, group: str = "") -> list[Carried]:
    """The MESSAGEs of an answer, whose bounds were checked when it was read."""
    found = []
    for part in block.parts:
        view, at = memoryview(part), 0
        while at < len(view):
            found.append(Carried(topic, view, at, group))
            at += _INT.unpack_from(view, at)[0]
    return found


def open_bytes(deliveries: "Iterable[Delivery]") -> int:
    """How many bytes of bodies are held by these."""
    carried = {id(one._carried): one._carried for one in deliveries}
    return sum(len(one.body) for one in carried.values())


def _item_starts(body: bytes, count: int) -> list[int]:
    """Where each message of a batch begins, once their lengths are known to add up."""
    if len(body) < HEAD.size:
        raise SerializationError(f"a batch body has {len(body)} bytes, which is less than its head")
    whole, held = HEAD.unpack_from(body)
    if whole != len(body) or held != count or held < 1:
        raise SerializationError(f"a batch of {count} in {len(body)} bytes says {held} messages in {whole} bytes")
    starts, at, end = [], HEAD.size, len(body) - _ITEM_BYTES_MIN
    unpack = _INT.unpack_from
    for _ in range(count):
        if at > end:
            raise SerializationError("a batched message is cut short")
        starts.append(at)
        (length,) = unpack(body, at)
        if length < _ITEM_BYTES_MIN:
            raise SerializationError(f"a batched message says it has {length} bytes")
        at += length
    if at != len(body):
        raise SerializationError(f"the messages of a batch have {at} bytes, its body {len(body)}")
    return starts


class Delivery:
    """One message in a consumer's hands. As a context manager: acked on leaving, to be retried on an error."""

    __slots__ = ("_at", "_attributes", "_carried", "_lease", "_place", "offset")

    def __init__(self, carried: Carried, at: int, offset: int, lease: "Hold | None", place: int) -> None:
        self._carried = carried
        self._at = at
        self._lease = lease
        self._place = place
        self._attributes: dict[str, str] | None = None
        self.offset = offset

    def __repr__(self) -> str:
        return f"<Delivery {self.topic}/{self.partition}/{self.offset}>"

    @property
    def topic(self) -> str:
        """Its topic's full name."""
        return self._carried.topic

    @property
    def group(self) -> str:
        """The full name of the group it was delivered to, such as `shop.billing`; empty for a reader's."""
        return self._carried.group

    @property
    def partition(self) -> int:
        """The partition it is stored in."""
        return self._carried.origin_partition

    @property
    def sent_at(self) -> int:
        """When it was sent, by the sender's clock: milliseconds since 1970."""
        return self._carried.sent_at

    @property
    def stored_at(self) -> int:
        """When the broker took it: milliseconds since 1970."""
        return self._carried.stored_at

    @property
    def body(self) -> bytes:
        """What was sent."""
        carried, at = self._carried, self._at
        if carried.damage is not None:
            raise carried.damage
        if at == _PLAIN:
            return carried.body
        data = carried.body
        length, size = _ITEM_SIZES.unpack_from(data, at)
        if size + _ITEM_BYTES_MIN > length:
            raise SerializationError(f"the body of a batched message says it has {size} bytes, which are not there")
        start = at + _ITEM_BODY + 4
        return data[start : start + size] if size > 0 else b""

    @property
    def key(self) -> str | None:
        """The key it was sent with."""
        key = self._key_and_attributes()[0]
        return decode_text(key, "key") if key else None

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags it was sent with."""
        text = self.attributes().get(TAGS) or self._carried.attributes().get(TAGS)
        return tuple(text.split(TAG_SEPARATOR)) if text else ()

    @property
    def headers(self) -> dict[str, str]:
        """The headers it was sent with."""
        return {
            name: value
            for name, value in self.attributes().items()
            if name not in (TAGS, UNIQ_ID) and not name.startswith(_OURS)
        }

    @property
    def message_id(self) -> str:
        """What it is known by everywhere: the sender's uniq_id, else its place."""
        return self.attributes().get(UNIQ_ID) or place_id(self.topic, self.partition, self.offset)

    @property
    def attempt(self) -> int:
        """Which time it is delivered, as far as the broker says: 1 is the first."""
        text = self._carried.attributes().get(ATTEMPT, "1")
        return int(text) if text.isdecimal() and len(text) < 10 else 1

    def attributes(self) -> dict[str, str]:
        """All that was sent with it, by its name on the wire."""
        if self._attributes is None:
            self._attributes = (
                self._carried.attributes() if self._at == _PLAIN else decode_attributes(self._key_and_attributes()[1])
            )
        return self._attributes

    @property
    def is_tombstone(self) -> bool:
        """Whether it was sent without a value, as None: its body is empty, and what its key stood for is no more."""
        return TOMBSTONE in self.attributes()

    def text(self) -> str:
        """The body as text."""
        return decode_text(self.body, "body")

    def json(self) -> Any:
        """The body as the JSON it is; None of a tombstone."""
        if not self.body and self.is_tombstone:
            return None
        try:
            return json.loads(self.body)
        except ValueError as error:
            raise SerializationError(f"the body is not JSON: {error}") from None

    def ack(self) -> None:
        """Done with it. Sent to the broker with others; what was settled before stays as it is."""
        if self._lease is not None:
            self._lease.settle(self._place, AckType.SUCCESS)

    def retry(self, after: Duration | None = None, *, reason: str = "") -> None:
        """It did not work out: the broker delivers it again later, or keeps it as a dead letter after the last time.

        `after` says how much later, instead of the consumer policy. The reason is kept with a dead letter.
        """
        if self._lease is None:
            return
        if after is None and not reason:
            self._lease.settle(self._place, AckType.EXCEPTION)
        else:
            after_ms = BY_POLICY if after is None else duration_ms(after)
            self._lease.settle_as(self._place, SettleOutcome.RETRY, after_ms, reason[:REASON_CHARACTERS_MAX])

    def dead_letter(self, reason: str = "") -> None:
        """It will never work out: the broker keeps it, with the reason, for an operator to look at."""
        if self._lease is not None:
            outcome = SettleOutcome.DEAD_LETTER
            self._lease.settle_as(self._place, outcome, BY_POLICY, reason[:REASON_CHARACTERS_MAX])

    @property
    def is_settled(self) -> bool:
        """Whether it was acked, is to be retried, or is a dead letter."""
        return self._lease is None or self._lease.is_settled(self._place)

    @property
    def is_lost(self) -> bool:
        """Whether its lease is over: then it is delivered again, whatever is done with it here.

        Where order counts, it is over as well for those behind a message that is to be retried.
        """
        return self._lease is not None and self._lease.is_over(self._place)

    def _key_and_attributes(self) -> tuple[bytes, bytes]:
        carried, at = self._carried, self._at
        if at == _PLAIN:
            return carried.tail()
        data = carried.body
        stop = at + _INT.unpack_from(data, at)[0]
        place = at + _ITEM_BODY + 4 + max(_INT.unpack_from(data, at + _ITEM_BODY)[0], 0)
        if place > stop - 6:
            raise SerializationError("the parts of a batched message do not fit its length")
        key_end = place + 4 + max(_INT.unpack_from(data, place)[0], 0)
        if key_end > stop - 2:
            raise SerializationError("the key of a batched message does not fit its length")
        size = max(_SHORT.unpack_from(data, key_end)[0], 0)
        return data[place + 4 : key_end], data[key_end + 2 : min(key_end + 2 + size, stop)]

    def __enter__(self) -> "Delivery":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self.ack()
        elif isinstance(error, Exception):  # stopped by Ctrl-C or cancelled: it comes again by itself
            self.retry(reason=reason_of(error))

    async def __aenter__(self) -> "Delivery":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, traceback)
