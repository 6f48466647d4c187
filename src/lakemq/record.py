"""A message's bytes: the same on the wire, in the journal and in the lake.

Layout (big-endian): length INT · partition SHORT · index LONG · term INT · systemCode SHORT · priority BYTE ·
sendTime LONG · storeTime INT · bodyCRC LONG · flag SHORT · body BYTES · businessId STRING · attributes ATTRIBUTES ·
extension BYTES · app STRING.

`scan` and `stamp` are the hot loops: they walk many messages in place and build no object per message. Their compiled
twins in `_hot.c` are used where they could be built; what is written here is the definition, and what the twin does
not accept is scanned again here, to say why.
"""

import struct
import zlib
from dataclasses import dataclass
from typing import NamedTuple

from lakemq.batch import HEAD as _BATCH_HEAD
from lakemq.compression import Compression
from lakemq.errors import BadParameterError, ChecksumError, SerializationError
from lakemq.message import BUSINESS_ID_CHARACTERS_MAX, MESSAGE_BYTES_MAX, Source
from lakemq.names import NAME_BYTES_MAX

try:
    import lakemq._hot as _hot
except ImportError:  # no compiler when it was installed
    _hot = None  # type: ignore[assignment]

Buffer = bytes | bytearray | memoryview

FIXED = struct.Struct(">ihqihbqiqhi")  # up to and with the body's length
FIXED_BYTES = FIXED.size
MESSAGE_BYTES_MIN = 57  # all variable parts empty
UNSET_CRCS = (0, -1)

_SHORT = struct.Struct(">h")
_INT = struct.Struct(">i")
_STAMP_READ = struct.Struct(">i14xhxq4xqhi")  # length, systemCode, sendTime, bodyCRC, flag, body's length
_STAMP_PLACE = struct.Struct(">hqi")  # partition, index, term
_PLACE_OFFSET = 4
_STORE_TIME_OFFSET = 29
_CRC_OFFSET = 33
_LONG = struct.Struct(">q")
_INT_MAX = 0x7FFFFFFF

COMPRESSED_BIT = 0x0001
ORDERED_BIT = 0x0002
IPV6_BIT = 0x0080
VERSION_BITS = 0x0F00
VERSION_1 = 0x0100
BATCH_BIT = 0x1000
RESERVED_BITS = 0xE000
COMPRESSION_BITS = 0x0070

_COMPRESSION_NUMBERS = {
    Compression.SNAPPY: 0,
    Compression.ZIP: 1,
    Compression.ZLIB: 2,
    Compression.LZ4: 3,
    Compression.ZSTD: 4,
}
_COMPRESSIONS = {number: kind for kind, number in _COMPRESSION_NUMBERS.items()}


@dataclass(frozen=True, slots=True)
class SystemCode:
    """What the sixteen bits of systemCode say, whatever the dialect numbers them."""

    compression: Compression = Compression.NONE
    is_ordered: bool = False
    source: Source = Source.JOYQUEUE
    is_ipv6: bool = False
    is_batch: bool = False

    def pack(self) -> int:
        """The number in the stored layout."""
        code = VERSION_1 | self.source << 2
        if self.compression is not Compression.NONE:
            code |= COMPRESSED_BIT | _COMPRESSION_NUMBERS[self.compression] << 4
        return code | self.is_ordered * ORDERED_BIT | self.is_ipv6 * IPV6_BIT | self.is_batch * BATCH_BIT

    @classmethod
    def unpack(cls, code: int) -> "SystemCode":
        """What a stored systemCode means."""
        check_system_code(code)
        return cls(
            compression=_COMPRESSIONS[(code & COMPRESSION_BITS) >> 4] if code & COMPRESSED_BIT else Compression.NONE,
            is_ordered=bool(code & ORDERED_BIT),
            source=Source((code >> 2) & 3),
            is_ipv6=bool(code & IPV6_BIT),
            is_batch=bool(code & BATCH_BIT),
        )


def check_system_code(code: int) -> None:
    """Refuse bits that this version of the layout has no meaning for."""
    if code & (VERSION_BITS | RESERVED_BITS) != VERSION_1:
        raise BadParameterError(f"systemCode {code & 0xFFFF:#06x} is not of message version 1")
    if code & COMPRESSED_BIT and (code & COMPRESSION_BITS) >> 4 not in _COMPRESSIONS:
        raise BadParameterError(f"systemCode {code & 0xFFFF:#06x} names an unknown compression")


@dataclass(slots=True)
class MessageFields:
    """One message taken apart, every field as it is carried: nothing decompressed, nothing parsed."""

    partition: int
    index: int
    term: int
    system_code: int
    priority: int
    send_time_ms: int
    store_time_ms: int
    body_crc: int
    flag: int
    body: bytes
    business_id: bytes
    attributes: bytes
    extension: bytes
    app: bytes


def write_fields(fields: MessageFields) -> bytes:
    """The stored layout of one message."""
    for noun, text in (("businessId", fields.business_id), ("attributes", fields.attributes), ("app", fields.app)):
        if len(text) > 32767:
            raise BadParameterError(f"{noun} has {len(text)} bytes; 32767 are allowed")
    length = MESSAGE_BYTES_MIN + sum(
        map(len, (fields.body, fields.business_id, fields.attributes, fields.extension, fields.app))
    )
    try:
        fixed = FIXED.pack(
            length,
            fields.partition,
            fields.index,
            fields.term,
            signed_short(fields.system_code),
            fields.priority,
            fields.send_time_ms,
            fields.store_time_ms,
            fields.body_crc,
            fields.flag,
            len(fields.body),
        )
    except struct.error as error:
        raise BadParameterError(f"a field of the message is out of range: {error}") from None
    return b"".join(
        (
            fixed,
            fields.body,
            _SHORT.pack(len(fields.business_id)),
            fields.business_id,
            _SHORT.pack(len(fields.attributes)),
            fields.attributes,
            _INT.pack(len(fields.extension)),
            fields.extension,
            _SHORT.pack(len(fields.app)),
            fields.app,
        )
    )


def read_fields(data: Buffer, start: int = 0) -> tuple[MessageFields, int]:
    """One stored message taken apart, and where the next begins."""
    view = memoryview(data)
    check_bounds(view, start, len(view))
    length, partition, index, term, code, priority, sent, stored, crc, flag, body_bytes = FIXED.unpack_from(view, start)
    at = start + FIXED_BYTES
    body, at = _take(view, at, body_bytes)
    business_id, at = _take(view, at + 2, _SHORT.unpack_from(view, at)[0])
    attributes, at = _take(view, at + 2, _SHORT.unpack_from(view, at)[0])
    extension, at = _take(view, at + 4, _INT.unpack_from(view, at)[0])
    app, at = _take(view, at + 2, _SHORT.unpack_from(view, at)[0])
    fields = MessageFields(
        partition,
        index,
        term,
        code & 0xFFFF,
        priority,
        sent,
        stored,
        crc,
        flag,
        body,
        business_id,
        attributes,
        extension,
        app,
    )
    return fields, start + length


def _take(view: memoryview, at: int, size: int) -> tuple[bytes, int]:
    if size <= 0:  # null and empty are the same
        return b"", at
    return bytes(view[at : at + size]), at + size


def signed_short(code: int) -> int:
    """Sixteen bits as the signed number that struct wants."""
    return code - 0x10000 if code >= 0x8000 else code


class Scan(NamedTuple):
    """What a walk over some messages found out; all of them name the same partition."""

    end: int
    partition: int
    index_count: int  # a batch counts as many as it holds


def scan(data: Buffer, start: int, end: int, count: int, message_bytes_max: int = MESSAGE_BYTES_MAX) -> Scan:
    """Walk `count` messages and check all that can be checked without opening a body.

    Raises SerializationError where the bytes do not add up, ChecksumError where a body does not match its CRC,
    BadParameterError for what adds up and is not allowed. Nothing is changed.
    """
    if _hot is not None:
        found = _hot.scan(data, start, end, count, message_bytes_max)
        if found is not None:
            return Scan(*found)
    return scan_python(data, start, end, count, message_bytes_max)


def measure(data: Buffer, start: int, end: int, count: int) -> int:
    """Where `count` messages end, once the parts of each are known to add up; SerializationError if they do not."""
    if _hot is not None:
        found = _hot.measure(data, start, end, count)
        if found is not None:
            return found
    return measure_python(data, start, end, count)


def stamp(data: Buffer, start: int, count: int, partition: int, index: int, term: int, now_ms: int) -> int:
    """Write partition, index, term and storeTime into `count` scanned messages; returns the next free index.

    A CRC that the sender left open is filled in. `data` must be writable, and scanned before.
    """
    if _hot is not None:
        return _hot.stamp(data, start, count, partition, index, term, now_ms)
    return stamp_python(data, start, count, partition, index, term, now_ms)


def measure_python(data: Buffer, start: int, end: int, count: int) -> int:
    """The definition of `measure`."""
    view = memoryview(data)
    at = start
    for _ in range(count):
        at = check_bounds(view, at, end)
    return at


def scan_python(data: Buffer, start: int, end: int, count: int, message_bytes_max: int = MESSAGE_BYTES_MAX) -> Scan:
    """The definition of `scan`."""
    view = memoryview(data)
    at, index_count, partition = start, 0, 0
    for nth in range(count):
        body_end, business_id_end, attributes_end, app_start, stop = _parts(view, at, end)
        length, named, _, _, code, _, _, _, crc, flag, _ = FIXED.unpack_from(view, at)
        if nth == 0:
            partition = named
        elif named != partition:
            raise BadParameterError(f"messages of one topic name partitions {partition} and {named}")
        if length > message_bytes_max:
            raise BadParameterError(f"a message has {length} bytes; {message_bytes_max} are allowed")
        check_system_code(code)
        body = view[at + FIXED_BYTES : body_end]
        if code & BATCH_BIT:
            _check_batch(code, flag, body)
            index_count += flag
        else:
            index_count += 1
        if len(_text(view[body_end + 2 : business_id_end], "businessId")) > BUSINESS_ID_CHARACTERS_MAX:
            raise BadParameterError(f"businessId has more than the {BUSINESS_ID_CHARACTERS_MAX} characters allowed")
        _text(view[business_id_end + 2 : attributes_end], "attributes")
        _text(view[app_start:stop], "app")
        if stop - app_start > NAME_BYTES_MAX:
            raise BadParameterError(f"app has {stop - app_start} bytes; {NAME_BYTES_MAX} are allowed")
        if crc not in UNSET_CRCS and crc != zlib.crc32(body):
            raise ChecksumError(
                f"message {nth} of the request: its body has CRC {zlib.crc32(body):#010x}, not {crc:#x}"
            )
        at = stop
    return Scan(at, partition, index_count)


def stamp_python(data: Buffer, start: int, count: int, partition: int, index: int, term: int, now_ms: int) -> int:
    """The definition of `stamp`."""
    at = start
    for _ in range(count):
        length, code, sent, crc, flag, body_bytes = _STAMP_READ.unpack_from(data, at)
        _STAMP_PLACE.pack_into(data, at + _PLACE_OFFSET, partition, index, term)
        _INT.pack_into(data, at + _STORE_TIME_OFFSET, min(max(now_ms - sent, 0), _INT_MAX))
        if crc in UNSET_CRCS:
            body = memoryview(data)[at + FIXED_BYTES : at + FIXED_BYTES + max(body_bytes, 0)]
            _LONG.pack_into(data, at + _CRC_OFFSET, zlib.crc32(body))
        index += flag if code & BATCH_BIT else 1
        at += length
    return index


def check_bounds(view: memoryview, at: int, end: int) -> int:
    """Where the message at `at` ends, once its parts are known to add up to its length."""
    return _parts(view, at, end)[-1]


def attributes_of(data: Buffer, at: int) -> bytes:
    """The attributes of the scanned message at `at`, as they are carried."""
    view = memoryview(data)
    _, start, end, _, _ = _parts(view, at, len(view))
    return bytes(view[start + 2 : end])


def _parts(view: memoryview, at: int, end: int) -> tuple[int, int, int, int, int]:
    """Where body, businessId and attributes end, where app starts, and where the message ends.

    Each part must leave room for the lengths of those after it, so that all can be read unchecked.
    """
    if end - at < MESSAGE_BYTES_MIN:
        raise SerializationError(f"a message needs {MESSAGE_BYTES_MIN} bytes, {max(end - at, 0)} are left")
    length: int = _INT.unpack_from(view, at)[0]
    if not MESSAGE_BYTES_MIN <= length <= end - at:
        raise SerializationError(f"a message says it has {length} bytes, {end - at} are left")
    stop = at + length
    size = _INT.unpack_from(view, at + FIXED_BYTES - 4)[0]
    body_end = at + FIXED_BYTES + (size if size > 0 else 0)
    if body_end > stop - 10:
        raise _overrun("body", size)
    size = _SHORT.unpack_from(view, body_end)[0]
    business_id_end = body_end + 2 + (size if size > 0 else 0)
    if business_id_end > stop - 8:
        raise _overrun("businessId", size)
    size = _SHORT.unpack_from(view, business_id_end)[0]
    attributes_end = business_id_end + 2 + (size if size > 0 else 0)
    if attributes_end > stop - 6:
        raise _overrun("attributes", size)
    size = _INT.unpack_from(view, attributes_end)[0]
    extension_end = attributes_end + 4 + (size if size > 0 else 0)
    if extension_end > stop - 2:
        raise _overrun("extension", size)
    size = _SHORT.unpack_from(view, extension_end)[0]
    app_start = extension_end + 2
    if app_start + (size if size > 0 else 0) != stop:
        raise SerializationError(f"a message says it has {length} bytes, which is not what its parts have")
    return body_end, business_id_end, attributes_end, app_start, stop


def _overrun(noun: str, size: int) -> SerializationError:
    return SerializationError(f"{noun} says it has {size} bytes, which its message does not have")


def _text(view: memoryview, noun: str) -> str:
    try:
        return str(view, "utf-8")
    except UnicodeDecodeError as error:
        raise SerializationError(f"{noun} is not UTF-8: {error.reason}") from None


def _check_batch(code: int, flag: int, body: memoryview) -> None:
    if flag < 1:
        raise BadParameterError(f"a batch says that it holds {flag} messages")
    if code & COMPRESSED_BIT:
        return  # never opened here (R14)
    if len(body) < _BATCH_HEAD.size:
        raise SerializationError(f"a batch body has {len(body)} bytes, which is less than its head")
    whole, count = _BATCH_HEAD.unpack_from(body)
    if whole != len(body) or count != flag:
        raise SerializationError(f"a batch of {flag} in {len(body)} bytes says {count} messages in {whole} bytes")
