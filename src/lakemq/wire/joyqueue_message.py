"""JoyQueue's MESSAGE, and its messages laid out as ours and back without loss.

What differs from the stored layout: a magic and the client's address are in it, businessId and app have one-byte
lengths, a batch body has neither total nor count, compression kinds and the address bit are numbered otherwise, and
the length field may lie (joyqueue-python writes -1), so bounds are found field by field.
"""

import struct
import zlib
from dataclasses import replace

from lakemq.attributes import decode_attributes, encode_attributes
from lakemq.batch import ItemFields, read_items, take_part, write_items
from lakemq.compression import Compression, compress, decompress
from lakemq.errors import BadParameterError, ReadError, SerializationError
from lakemq.message import Source
from lakemq.record import (
    UNSET_CRCS,
    MessageFields,
    SystemCode,
    check_bounds,
    read_fields,
    signed_short,
    write_fields,
)
from lakemq.wire.buffer import Buffer, Reader, Writer
from lakemq.wire.dialect import Dialect, Form

MAGIC = 0x1234
_MAGIC_OFFSET = 18
BODY_BYTES_MAX = 3 << 20  # what a JoyQueue server takes
MESSAGE_BYTES_MIN = 73
ADDRESS_BYTES = 16
NO_ADDRESS = bytes(ADDRESS_BYTES)

# businessId may have 100 characters, which can be more than the 127 bytes that fit here: then the whole of it rides
# in front of the attributes under this key, and comes back from there.
LONG_BUSINESS_ID = "LAKEMQ_BUSINESS_ID"

_FIXED = struct.Struct(">ihqihHb16sqiqh")
_ITEM_HEAD = struct.Struct(">ibhi")
_ITEM_BYTES_MIN = 14
_SHORT = struct.Struct(">h")
_TEXT_BYTES_MAX = 127
_ATTRIBUTES_BYTES_MAX = 32767
_FORM = Form(Dialect.JOYQUEUE)

_COMPRESSED_BIT = 0x0001
_ORDERED_BIT = 0x0002
_IPV4_BIT = 0x0080
_VERSION_1 = 0x0100
_BATCH_BIT = 0x1000
_COMPRESSIONS = (Compression.NONE, Compression.ZIP, Compression.ZLIB, Compression.SNAPPY)


def pack_system_code(code: SystemCode) -> int:
    """JoyQueue's number for those marks; it knows fewer kinds of compression than we do."""
    number = _VERSION_1 | code.source << 2
    if code.compression is not Compression.NONE:
        number |= _COMPRESSED_BIT | _COMPRESSIONS.index(code.compression) << 4
    return number | code.is_ordered * _ORDERED_BIT | (not code.is_ipv6) * _IPV4_BIT | code.is_batch * _BATCH_BIT


def unpack_system_code(number: int) -> SystemCode:
    """What JoyQueue's number means; version 0 is joyqueue-python's, which knows neither IPv6 nor a third bit."""
    version, top = (number >> 8) & 0xF, number >> 12
    if top > 1 or version > 1:
        raise BadParameterError(f"systemCode {number:#06x} is not of a known message version")
    kind = (number >> 4) & (7 if version else 3)
    if number & _COMPRESSED_BIT and kind >= len(_COMPRESSIONS):
        raise BadParameterError(f"systemCode {number:#06x} names an unknown compression")
    return SystemCode(
        compression=_COMPRESSIONS[kind] if number & _COMPRESSED_BIT else Compression.NONE,
        is_ordered=bool(number & _ORDERED_BIT),
        source=Source((number >> 2) & 3),
        is_ipv6=version > 0 and not number & _IPV4_BIT,
        is_batch=top == 1,
    )


def measure(view: memoryview, start: int, end: int, count: int) -> int:
    """Where `count` messages end."""
    reader = Reader(view, _FORM, start, end)
    for _ in range(count):
        if _is_stored_layout(reader):
            reader.position = check_bounds(view, reader.position, end)
            continue
        reader.take(_FIXED.size)
        for width in (4, 1, 2, 4, 1):
            reader.sized(width)
    return reader.position


def read(reader: Reader) -> tuple[MessageFields, bytes]:
    """One message taken apart, systemCode as JoyQueue numbers it, and its client's address."""
    fixed = _FIXED.unpack(reader.take(_FIXED.size))
    _, partition, index, term, magic, code, priority, address, sent, stored, crc, flag = fixed
    _check_magic(magic)
    body, business_id, attributes, extension, app = (bytes(reader.sized(width)) for width in (4, 1, 2, 4, 1))
    fields = MessageFields(
        partition, index, term, code, priority, sent, stored, crc, flag, body, business_id, attributes, extension, app
    )
    return fields, address


def write(writer: Writer, fields: MessageFields, client_address: bytes) -> None:
    """The bytes of one message. joyqueue-python, which writes -1 for what is empty, does so for the length too."""
    texts = (fields.body, fields.business_id, fields.attributes, fields.extension, fields.app)
    length = MESSAGE_BYTES_MIN + sum(map(len, texts)) if writer.form.null_length == 0 else -1
    try:
        fixed = _FIXED.pack(
            length,
            fields.partition,
            fields.index,
            fields.term,
            MAGIC,
            fields.system_code,
            fields.priority,
            client_address,
            fields.send_time_ms,
            fields.store_time_ms,
            fields.body_crc,
            fields.flag,
        )
    except struct.error as error:
        raise BadParameterError(f"a field of the message is out of range: {error}") from None
    writer.raw(fixed)
    for text, width in zip(texts, (4, 1, 2, 4, 1), strict=True):
        writer.sized(text, width)


def client_address(address: bytes, port: int) -> bytes:
    """A peer's address in the 16 bytes that messages and records have for it: an IPv6 one loses its last two."""
    return (port.to_bytes(2, "little") + address).ljust(ADDRESS_BYTES, b"\0")[:ADDRESS_BYTES]


def to_stored(data: Buffer, count: int, is_ipv6: bool | None = None) -> bytes:
    """JoyQueue's messages in the stored layout; `is_ipv6` is what the server knows of the sender, None if nothing.

    The CRC is made anew: nobody there checks it, or always sends it. A message that is in the stored layout already,
    as some clients mix them, is taken as it is.
    """
    reader = Reader(data, _FORM)
    parts = []
    for _ in range(count):
        if _is_stored_layout(reader):
            start = reader.position
            reader.position = check_bounds(reader.view, start, reader.end)
            parts.append(bytes(reader.view[start : reader.position]))
            continue
        fields, _ = read(reader)
        code = unpack_system_code(fields.system_code)
        if len(fields.body) > BODY_BYTES_MAX:
            raise BadParameterError(f"a body has {len(fields.body)} bytes; {BODY_BYTES_MAX} are allowed")
        if is_ipv6 is not None:
            code = replace(code, is_ipv6=is_ipv6)
        if code.is_batch:
            items = _read_items(decompress(code.compression, fields.body), fields.flag)
            fields.body = compress(code.compression, write_items(items))
        fields.business_id, fields.attributes = _restore_business_id(fields.business_id, fields.attributes)
        fields.system_code = signed_short(code.pack())
        fields.body_crc = zlib.crc32(fields.body)
        parts.append(write_fields(fields))
    return b"".join(parts)


def from_stored(data: Buffer, count: int, client_address: bytes = NO_ADDRESS) -> bytes:
    """Stored messages in JoyQueue's layout; what its clients cannot expand is compressed as zlib instead.

    ReadError for a message that cannot be laid out so: a body that is damaged, or was never what it says it is.
    """
    writer = Writer(_FORM)
    at = 0
    for _ in range(count):
        fields, at = read_fields(data, at)
        try:
            _lay_out(fields)
            write(writer, fields, client_address)
        except (SerializationError, BadParameterError) as error:
            raise ReadError(f"index {fields.index} cannot be given to a JoyQueue client: {error}") from error
    return b"".join(writer.parts())


def _lay_out(fields: MessageFields) -> None:
    """Change a stored message's fields into JoyQueue's."""
    if fields.body_crc not in UNSET_CRCS and fields.body_crc != zlib.crc32(fields.body):
        raise SerializationError("its body does not match its CRC")
    code = SystemCode.unpack(fields.system_code)
    kind = code.compression if code.compression in _COMPRESSIONS else Compression.ZLIB
    if code.is_batch:
        items = read_items(decompress(code.compression, fields.body), fields.flag)
        fields.body = compress(kind, _write_items(items))
    elif kind is not code.compression:
        fields.body = compress(kind, decompress(code.compression, fields.body))
    # A batch that says jmq is one of ours in all but name, and JoyQueue's clients drop it unless it says so.
    source = Source.JOYQUEUE if code.is_batch and code.source is Source.JMQ else code.source
    fields.system_code = pack_system_code(replace(code, compression=kind, source=source))
    fields.business_id, fields.attributes = _fit_business_id(fields.business_id, fields.attributes)
    fields.body_crc = zlib.crc32(fields.body)


def _is_stored_layout(reader: Reader) -> bool:
    """Whether the message at the reader's position has no magic where JoyQueue's have it: then it is of our layout."""
    at = reader.position + _MAGIC_OFFSET
    return at + 2 <= reader.end and _SHORT.unpack_from(reader.view, at)[0] != MAGIC


def _check_magic(magic: int) -> None:
    if magic != MAGIC:
        raise SerializationError(f"a message has the magic {magic & 0xFFFF:#06x} instead of {MAGIC:#06x}")


def _read_items(body: bytes, count: int) -> list[ItemFields]:
    items: list[ItemFields] = []
    at = 0
    for _ in range(count):
        if len(body) - at < _ITEM_BYTES_MIN:
            raise SerializationError(f"a batch says {count} messages and holds {len(items)}")
        length, priority, flag, size = _ITEM_HEAD.unpack_from(body, at)
        stop = at + length
        if not _ITEM_BYTES_MIN <= length <= len(body) - at:
            raise SerializationError(f"a batched message says it has {length} bytes, {len(body) - at} are left")
        content, at = take_part(body, at + _ITEM_HEAD.size, size, stop - 3, "body")
        size = body[at] if body[at] < 128 else 0
        business_id, at = take_part(body, at + 1, size, stop - 2, "businessId")
        attributes, at = take_part(body, at + 2, _SHORT.unpack_from(body, at)[0], stop, "attributes")
        if at != stop:
            raise SerializationError("the parts of a batched message do not add up to its length")
        items.append(ItemFields(priority, flag, content, *_restore_business_id(business_id, attributes)))
    if at != len(body):
        raise SerializationError(f"a batch body has {len(body) - at} bytes after its last message")
    return items


def _write_items(items: list[ItemFields]) -> bytes:
    writer = Writer(_FORM)
    for item in items:
        business_id, attributes = _fit_business_id(item.business_id, item.attributes)
        length = _ITEM_BYTES_MIN + len(item.body) + len(business_id) + len(attributes)
        writer.raw(_ITEM_HEAD.pack(length, item.priority, item.flag, len(item.body)))
        writer.raw(item.body)
        writer.sized(business_id, 1)
        writer.sized(attributes, 2)
    return b"".join(writer.parts())


def _fit_business_id(business_id: bytes, attributes: bytes) -> tuple[bytes, bytes]:
    if len(business_id) <= _TEXT_BYTES_MAX:
        return business_id, attributes
    head = encode_attributes({LONG_BUSINESS_ID: str(business_id, "utf-8", "replace")})
    carried = head + b"\n" + attributes if attributes else head
    # Where there is no room for both, a shortened id beats a message that cannot be delivered.
    return _shortened(business_id), carried if len(carried) <= _ATTRIBUTES_BYTES_MAX else attributes


def _shortened(business_id: bytes) -> bytes:
    return business_id[:_TEXT_BYTES_MAX].decode("utf-8", "ignore").encode()


def _restore_business_id(business_id: bytes, attributes: bytes) -> tuple[bytes, bytes]:
    if not attributes.startswith(LONG_BUSINESS_ID.encode() + b"="):
        return business_id, attributes
    head, _, rest = attributes.partition(b"\n")
    whole = decode_attributes(head)[LONG_BUSINESS_ID].encode()
    if len(whole) <= _TEXT_BYTES_MAX or _shortened(whole) != business_id:
        return business_id, attributes  # an attribute of that name that is not ours
    return whole, rest
