"""Which of some stored messages a consumer gets: not those that its filter leaves out, nor those that have expired.

Also where to stop when messages of one key must keep their order. Messages are walked in place, none is opened: a batch
is decided by its own attributes, and delivered whole or not at all.
"""

import struct
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from lakemq.attributes import EXPIRE, SPAN_MARK, decode_attributes
from lakemq.delivery.filters import Filter
from lakemq.delivery.loans import ANY_KEY, Key, KeyedRun
from lakemq.errors import LakeMQError
from lakemq.record import BATCH_BIT, FIXED_BYTES, Buffer

_HEAD = struct.Struct(">i2xq4xh21xhi")  # length, index, systemCode, flag, body's length
_SHORT = struct.Struct(">h")
_EXPIRE = EXPIRE.encode()


class Picked(NamedTuple):
    """Neighbours among the messages, from byte `start` up to `stop`."""

    first_index: int
    next_index: int
    start: int
    stop: int
    message_count: int


class Selection(NamedTuple):
    """What is delivered, and what is not, by index: left out by the filter, or expired."""

    picked: list[Picked]
    left_out: list[tuple[int, int]]
    expired: list[tuple[int, int]]


def select(messages: Buffer, count: int, wanted: Filter, now_ms: int, stored_ms: int) -> Selection:
    """Decide on `count` messages, stored together, at that (wall) time."""
    view = memoryview(messages)
    picked: list[Picked] = []
    left_out: list[tuple[int, int]] = []
    expired: list[tuple[int, int]] = []
    at = 0
    for _ in range(count):
        length, index, code, flag, body_bytes = _HEAD.unpack_from(view, at)
        after = index + (flag if code & BATCH_BIT else 1)
        attributes = _attributes_at(view, at, body_bytes)
        if not wanted.is_all and not wanted.matches_bytes(attributes):
            _add(left_out, index, after)
        elif _EXPIRE in attributes and is_expired(attributes, now_ms, stored_ms):
            _add(expired, index, after)
        elif picked and picked[-1].stop == at and picked[-1].next_index == index:
            last = picked[-1]
            picked[-1] = Picked(last.first_index, after, last.start, at + length, last.message_count + 1)
        else:
            picked.append(Picked(index, after, at, at + length, 1))
        at += length
    return Selection(picked, left_out, expired)


def until_conflict(messages: Buffer, count: int, busy: AbstractSet[Key]) -> tuple[Picked | None, list[KeyedRun]]:
    """The messages before the first whose key is busy, with their keys.

    The members of a batch have keys of their own, which nobody looks at here: a batch waits until no key is busy, and
    while it is out every key is.
    """
    view = memoryview(messages)
    keyed: list[KeyedRun] = []
    picked: Picked | None = None
    at = 0
    for _ in range(count):
        length, index, code, flag, body_bytes = _HEAD.unpack_from(view, at)
        key = ANY_KEY if code & BATCH_BIT else _key_at(view, at, body_bytes)
        if key in busy or ANY_KEY in busy or (key is ANY_KEY and busy):
            break
        after = index + (flag if code & BATCH_BIT else 1)
        keyed.append((index, after, key))
        first, start, number = (picked.first_index, picked.start, picked.message_count) if picked else (index, at, 0)
        picked = Picked(first, after, start, at + length, number + 1)
        at += length
    return picked, keyed


def is_expired(attributes: bytes, now_ms: int, stored_ms: int) -> bool:
    """Whether a message with these attributes, stored at that time, is past its EXPIRE."""
    if _EXPIRE not in attributes:
        return False
    try:
        said = decode_attributes(attributes).get(EXPIRE, "")
    except LakeMQError:  # a broken escape is for those who read it
        return False
    begin_ms = stored_ms if said.startswith(SPAN_MARK) else 0
    said = said.removeprefix(SPAN_MARK)
    return said.isdecimal() and len(said) < 19 and begin_ms + int(said) <= now_ms


def _attributes_at(view: memoryview, at: int, body_bytes: int) -> bytes:
    place = at + FIXED_BYTES + max(body_bytes, 0)
    place += 2 + max(_SHORT.unpack_from(view, place)[0], 0)
    size = _SHORT.unpack_from(view, place)[0]
    return bytes(view[place + 2 : place + 2 + size]) if size > 0 else b""


def _key_at(view: memoryview, at: int, body_bytes: int) -> bytes:
    place = at + FIXED_BYTES + max(body_bytes, 0)
    size = _SHORT.unpack_from(view, place)[0]
    return bytes(view[place + 2 : place + 2 + size]) if size > 0 else b""


def _add(runs: list[tuple[int, int]], first: int, after: int) -> None:
    if runs and runs[-1][1] == first:
        runs[-1] = (runs[-1][0], after)
    else:
        runs.append((first, after))
