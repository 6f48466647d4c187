"""A batch's body: the stored layout of the messages inside one carrier, each field as it is carried.

Layout: length INT (whole, with itself) · count SHORT · then each: length INT (with itself) · priority BYTE ·
flag SHORT · body BYTES · businessId BYTES · attributes ATTRIBUTES.
"""

import struct
from typing import NamedTuple

from lakemq.errors import BadParameterError, SerializationError
from lakemq.message import BATCH_COUNT_MAX

HEAD = struct.Struct(">ih")
_ITEM_HEAD = struct.Struct(">ibhi")  # length, priority, flag, body's length
_ITEM_BYTES_MIN = 17
_INT = struct.Struct(">i")
_SHORT = struct.Struct(">h")


class ItemFields(NamedTuple):
    """One batched message taken apart, nothing parsed."""

    priority: int
    flag: int
    body: bytes
    business_id: bytes
    attributes: bytes


def write_items(items: list[ItemFields]) -> bytes:
    """A batch body before compression."""
    if not 1 <= len(items) <= BATCH_COUNT_MAX:
        raise BadParameterError(f"a batch holds 1 to {BATCH_COUNT_MAX} messages, not {len(items)}")
    parts = [b""]  # the head, once the whole length is known
    for item in items:
        length = _ITEM_BYTES_MIN + len(item.body) + len(item.business_id) + len(item.attributes)
        try:
            head = _ITEM_HEAD.pack(length, item.priority, item.flag, len(item.body))
            parts += (head, item.body, _INT.pack(len(item.business_id)), item.business_id)
            parts += (_SHORT.pack(len(item.attributes)), item.attributes)
        except struct.error as error:
            raise BadParameterError(f"a field of a batched message is out of range: {error}") from None
    parts[0] = HEAD.pack(HEAD.size + sum(map(len, parts)), len(items))
    return b"".join(parts)


def read_items(body: bytes, count: int) -> list[ItemFields]:
    """The messages of a batch body after decompression; `count` is what its carrier says."""
    if len(body) < HEAD.size:
        raise SerializationError(f"a batch body has {len(body)} bytes, which is less than its head")
    whole, held = HEAD.unpack_from(body)
    if whole != len(body) or held != count or held < 1:
        raise SerializationError(f"a batch of {count} in {len(body)} bytes says {held} messages in {whole} bytes")
    items, at = [], HEAD.size
    for _ in range(held):
        item, at = _read_item(body, at)
        items.append(item)
    if at != len(body):
        raise SerializationError(f"a batch body has {len(body) - at} bytes after its last message")
    return items


def _read_item(body: bytes, start: int) -> tuple[ItemFields, int]:
    if len(body) - start < _ITEM_BYTES_MIN:
        raise SerializationError("a batched message is cut short")
    length, priority, flag, size = _ITEM_HEAD.unpack_from(body, start)
    if not _ITEM_BYTES_MIN <= length <= len(body) - start:
        raise SerializationError(f"a batched message says it has {length} bytes, {len(body) - start} are left")
    stop = start + length
    content, at = take_part(body, start + _ITEM_HEAD.size, size, stop - 6, "body")
    business_id, at = take_part(body, at + 4, _INT.unpack_from(body, at)[0], stop - 2, "businessId")
    attributes, at = take_part(body, at + 2, _SHORT.unpack_from(body, at)[0], stop, "attributes")
    if at != stop:
        raise SerializationError(f"a batched message says it has {length} bytes, its parts have {at - start}")
    return ItemFields(priority, flag, content, business_id, attributes), stop


def take_part(body: bytes, at: int, size: int, stop: int, noun: str) -> tuple[bytes, int]:
    """`size` bytes at `at`, which must end by `stop`; a negative size is none."""
    size = max(size, 0)
    if at + size > stop:
        raise SerializationError(f"{noun} of a batched message says it has {size} bytes, which are not there")
    return body[at : at + size], at + size
