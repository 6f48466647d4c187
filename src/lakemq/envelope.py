"""A message value put into its stored bytes, and taken out again: compression, CRC, attributes, batches.

The broker never comes here for messages it passes on; producers, consumers and the lake do.
"""

import zlib
from collections.abc import Iterator

from lakemq.attributes import decode_attributes, encode_attributes
from lakemq.batch import ItemFields, read_items, write_items
from lakemq.compression import EXPANDED_BYTES_MAX, compress, decompress
from lakemq.errors import BadParameterError, ChecksumError, SerializationError
from lakemq.message import (
    BUSINESS_ID_CHARACTERS_MAX,
    MESSAGE_BYTES_MAX,
    BatchItem,
    BatchMessage,
    Carrier,
    Message,
)
from lakemq.names import NAME_BYTES_MAX
from lakemq.record import UNSET_CRCS, Buffer, MessageFields, SystemCode, read_fields, write_fields


def pack(message: Message | BatchMessage) -> bytes:
    """The stored layout of a message or a batch; BadParameterError for what may not be sent."""
    if isinstance(message, BatchMessage):
        body, flag = pack_items(message.items), len(message.items)
    else:
        body, flag = message.body, message.flag
    carried = compress(message.compression, body)
    data = write_fields(
        MessageFields(
            partition=message.partition,
            index=message.index,
            term=message.term,
            system_code=_system_code(message),
            priority=message.priority,
            send_time_ms=message.send_time_ms,
            store_time_ms=message.store_time_ms,
            body_crc=zlib.crc32(carried),
            flag=flag,
            body=carried,
            business_id=_text(message.business_id, "businessId", BUSINESS_ID_CHARACTERS_MAX),
            attributes=encode_attributes(message.attributes),
            extension=message.extension,
            app=_app(message.app),
        )
    )
    if len(data) > MESSAGE_BYTES_MAX:
        raise BadParameterError(f"the message has {len(data)} bytes as carried; {MESSAGE_BYTES_MAX} are allowed")
    return data


def unpack(data: Buffer, start: int = 0, expanded_bytes_max: int = EXPANDED_BYTES_MAX) -> Message | BatchMessage:
    """The value at `start`. Raises ChecksumError rather than hand out a body that is not what was sent."""
    fields, _ = read_fields(data, start)
    return open_fields(fields, expanded_bytes_max)


def unpack_all(data: Buffer, expanded_bytes_max: int = EXPANDED_BYTES_MAX) -> Iterator[Message | BatchMessage]:
    """Every value of some messages back to back."""
    at = 0
    while at < len(data):
        fields, at = read_fields(data, at)
        yield open_fields(fields, expanded_bytes_max)


def open_fields(fields: MessageFields, expanded_bytes_max: int = EXPANDED_BYTES_MAX) -> Message | BatchMessage:
    """The value of one message taken apart."""
    if fields.body_crc not in UNSET_CRCS and fields.body_crc != zlib.crc32(fields.body):
        raise ChecksumError(f"the body of index {fields.index} has CRC {zlib.crc32(fields.body):#010x}")
    code = SystemCode.unpack(fields.system_code)
    body = decompress(code.compression, fields.body, expanded_bytes_max)
    business_id = decode_text(fields.business_id, "businessId")
    attributes = decode_attributes(fields.attributes)
    app = decode_text(fields.app, "app")
    if code.is_batch:
        return BatchMessage(
            items=unpack_items(body, fields.flag),
            business_id=business_id,
            attributes=attributes,
            priority=fields.priority,
            app=app,
            extension=fields.extension,
            compression=code.compression,
            is_ordered=code.is_ordered,
            source=code.source,
            is_ipv6=code.is_ipv6,
            send_time_ms=fields.send_time_ms,
            partition=fields.partition,
            index=fields.index,
            term=fields.term,
            store_time_ms=fields.store_time_ms,
        )
    return Message(
        body=body,
        flag=fields.flag,
        business_id=business_id,
        attributes=attributes,
        priority=fields.priority,
        app=app,
        extension=fields.extension,
        compression=code.compression,
        is_ordered=code.is_ordered,
        source=code.source,
        is_ipv6=code.is_ipv6,
        send_time_ms=fields.send_time_ms,
        partition=fields.partition,
        index=fields.index,
        term=fields.term,
        store_time_ms=fields.store_time_ms,
    )


def pack_items(items: tuple[BatchItem, ...]) -> bytes:
    """A batch body before compression."""
    return write_items(
        [
            ItemFields(
                item.priority,
                item.flag,
                item.body,
                _text(item.business_id, "businessId", BUSINESS_ID_CHARACTERS_MAX),
                encode_attributes(item.attributes),
            )
            for item in items
        ]
    )


def unpack_items(body: bytes, count: int) -> tuple[BatchItem, ...]:
    """The messages of a batch body after decompression; `count` is what its carrier says."""
    return tuple(
        BatchItem(
            item.body,
            decode_text(item.business_id, "businessId"),
            decode_attributes(item.attributes),
            item.priority,
            item.flag,
        )
        for item in read_items(body, count)
    )


def _system_code(message: Carrier) -> int:
    return SystemCode(
        compression=message.compression,
        is_ordered=message.is_ordered,
        source=message.source,
        is_ipv6=message.is_ipv6,
        is_batch=isinstance(message, BatchMessage),
    ).pack()


def _app(app: str) -> bytes:
    data = _text(app, "app", NAME_BYTES_MAX)
    if len(data) > NAME_BYTES_MAX:
        raise BadParameterError(f"app has {len(data)} bytes; {NAME_BYTES_MAX} are allowed")
    return data


def _text(text: str, noun: str, characters_max: int) -> bytes:
    if len(text) > characters_max:
        raise BadParameterError(f"{noun} has {len(text)} characters; {characters_max} are allowed")
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        raise BadParameterError(f"{noun} holds half of a surrogate pair, which is not text") from None


def decode_text(data: bytes, noun: str) -> str:
    """UTF-8 or SerializationError."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise SerializationError(f"{noun} is not UTF-8: {error}") from None
