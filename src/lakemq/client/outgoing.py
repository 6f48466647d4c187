"""What users send, and its parts as bytes: body, key, tags and headers."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from lakemq.attributes import DELAY_LEVEL, DELIVER_AT, EXPIRE, TAGS, UNIQ_ID, encode_attributes
from lakemq.errors import BadParameterError
from lakemq.message import BUSINESS_ID_CHARACTERS_MAX
from lakemq.record import Buffer

Body = bytes | bytearray | memoryview | str | dict[str, Any] | list[Any]
Tags = str | Sequence[str]

TAG_SEPARATOR = ","
# The broker looks for these on the message itself, not inside a carrier.
SPECIAL = frozenset((DELIVER_AT, DELAY_LEVEL, EXPIRE, UNIQ_ID))
_ATTRIBUTES_BYTES_MAX = 32767


@dataclass(frozen=True, slots=True)
class Message:
    """One message for send_many; the fields are the arguments of send."""

    body: Body
    key: str | None = None
    tags: Tags | None = None
    headers: Mapping[str, str] | None = None
    partition: int | None = None
    ordered: bool = False
    priority: int = 0
    uniq_id: str | None = None


def body_bytes(body: Body) -> Buffer:
    """The bytes to carry: text as UTF-8, dict and list as JSON."""
    if isinstance(body, bytes | bytearray):
        return body
    if isinstance(body, str):
        return _utf8(body, "body")
    if isinstance(body, dict | list):
        try:
            return json.dumps(body, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
        except (TypeError, ValueError) as error:
            raise BadParameterError(f"the body cannot be written as JSON: {error}") from None
    if isinstance(body, memoryview):
        return body.tobytes()  # it may be of any shape, and may change
    raise BadParameterError(f"a body is bytes, str, dict or list, not {type(body).__name__}")


def key_bytes(key: str | None) -> bytes:
    """The key to carry."""
    if not key:
        return b""
    if not isinstance(key, str):
        raise BadParameterError(f"a key is a str, not {type(key).__name__}")
    if len(key) > BUSINESS_ID_CHARACTERS_MAX:
        raise BadParameterError(f"key has {len(key)} characters; {BUSINESS_ID_CHARACTERS_MAX} are allowed")
    return _utf8(key, "key")


def tags_text(tags: Tags | None) -> str:
    """Several tags are one text, with commas."""
    return "" if not tags else tags if isinstance(tags, str) else TAG_SEPARATOR.join(tags)


@lru_cache(1024)
def tags_attributes(tags: str) -> bytes:
    """The attributes of a carrier whose messages all have these tags; asked for at every message."""
    return encode_attributes({TAGS: tags}) if tags else b""


def uniq_attributes(uniq_id: str) -> bytes:
    """The attribute that makes a message one, however often it is sent."""
    return encode_attributes({UNIQ_ID: uniq_id})


def joined(attributes: bytes, more: bytes) -> bytes:
    """Two lists of attributes as one; of a key that is in both, the second counts."""
    return attributes + b"\n" + more if attributes and more else attributes or more


def attributes_bytes(headers: Mapping[str, str] | None, tags: str = "") -> bytes:
    """Headers, and tags if they are to be among them."""
    attributes = dict(headers or {})
    if tags:
        attributes[TAGS] = tags
    for name, value in attributes.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise BadParameterError(f"headers hold text only, not {name!r}: {value!r}")
    data = encode_attributes(attributes)
    if len(data) > _ATTRIBUTES_BYTES_MAX:
        raise BadParameterError(f"tags and headers have {len(data)} bytes; {_ATTRIBUTES_BYTES_MAX} are allowed")
    return data


def is_special(headers: Mapping[str, str] | None, uniq_id: str | None) -> bool:
    """Whether the broker must see this message by itself."""
    return uniq_id is not None or (headers is not None and not SPECIAL.isdisjoint(headers))


def _utf8(text: str, noun: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise BadParameterError(f"the {noun} holds half of a surrogate pair, which is not text") from None
