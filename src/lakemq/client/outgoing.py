"""What users send, and its parts as bytes: body, key, tags and headers."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any

from lakemq.attributes import DELAY_LEVEL, DELIVER_AT, EXPIRE, SPAN_MARK, TAGS, TOMBSTONE, UNIQ_ID, encode_attributes
from lakemq.client.duration import Duration, duration_ms, moment_ms
from lakemq.errors import BadParameterError
from lakemq.message import BUSINESS_ID_CHARACTERS_MAX
from lakemq.record import Buffer

Body = bytes | bytearray | memoryview | str | dict[str, Any] | list[Any] | None
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
    delay: Duration | None = None
    deliver_at: datetime | int | None = None
    expire: Duration | datetime | None = None


def scheduled(
    headers: Mapping[str, str] | None,
    delay: Duration | None,
    deliver_at: datetime | int | None,
    expire: Duration | datetime | None,
    wall_ms: int,
) -> Mapping[str, str] | None:
    """Headers with the times that the broker goes by: not before, and not after.

    What was given as a span is sent as one (`+ms`) and counted by the broker's clock, which may differ from ours; the
    time after which a message has expired begins when it is stored, so what it waits before that is taken off.
    """
    if delay is None and deliver_at is None and expire is None:
        return headers
    if delay is not None and deliver_at is not None:
        raise BadParameterError("give delay or deliver_at, not both")
    given = headers or {}
    times: dict[str, str] = {}
    due_ms = wall_ms
    if delay is not None or deliver_at is not None:
        due_ms = wall_ms + duration_ms(delay) if delay is not None else _moment(deliver_at, "deliver_at", wall_ms)
        times[DELIVER_AT] = str(due_ms) if delay is None else f"{SPAN_MARK}{due_ms - wall_ms}"
    if expire is not None:
        end_ms = _moment(expire, "expire", wall_ms) if isinstance(expire, datetime) else wall_ms + duration_ms(expire)
        if end_ms <= due_ms:
            raise BadParameterError(f"expire={expire!r} is over before the message is to be delivered")
        is_span = not isinstance(expire, datetime)
        times[EXPIRE] = f"{SPAN_MARK}{end_ms - max(due_ms, wall_ms)}" if is_span else str(end_ms)
    for name in (DELIVER_AT, DELAY_LEVEL) if DELIVER_AT in times else (EXPIRE,):
        if name in given:
            raise BadParameterError(f"{name} is among the headers, too")
    return {**given, **times}


def _moment(moment: datetime | int | None, noun: str, wall_ms: int) -> int:
    if isinstance(moment, datetime):
        moment = moment_ms(moment, wall_ms)
    if not isinstance(moment, int) or isinstance(moment, bool) or not 0 <= moment < 1 << 53:
        raise BadParameterError(f"{noun}={moment!r} is no datetime, and no number of ms since 1970")
    return moment


def marked(headers: Mapping[str, str] | None, body: Body) -> Mapping[str, str] | None:
    """Headers that say whether there is a value: None is a tombstone, which others see as an empty body."""
    return headers if body is not None else {**(headers or {}), TOMBSTONE: "1"}


def body_bytes(body: Body) -> Buffer:
    """The bytes to carry: text as UTF-8, dict and list as JSON; none of None, see `marked`."""
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
    if body is None:
        return b""
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
