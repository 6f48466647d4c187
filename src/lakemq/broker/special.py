"""What the attributes of sent messages ask of the broker: to be stored once, to wait, to expire.

Only messages that say something of the kind come here (`produce_run.any_special`).
"""

import struct
from collections.abc import Container, Iterator
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from lakemq.attributes import EXPIRE, decode_attributes
from lakemq.broker.delaying import Delaying
from lakemq.broker.events import Now
from lakemq.broker.ledger import SENDER_MARK, Ledger
from lakemq.delivery.uniq import UNIQ_ID, Place, UniqKey, ids_of
from lakemq.errors import BadParameterError, SerializationError
from lakemq.record import Buffer, attributes_of, read_fields, write_fields

_LENGTH = struct.Struct(">i")


class Wishes(NamedTuple):
    """What the messages of one topic of a request ask for."""

    ids: list[UniqKey] = []  # noqa: RUF012  # never changed
    known: dict[int, Place | int] = {}  # noqa: RUF012  # which were stored before and where, or repeat one before them
    due_ms: int | None = None  # they wait until then
    may_expire: bool = False
    note: bytes | None = None


NOTHING = Wishes()


class Specials:
    """Reads wishes, and remembers ids."""

    def __init__(self, ledger: Ledger, delaying: Delaying) -> None:
        self._ledger = ledger
        self._delaying = delaying

    def wishes(self, topic: int, app: str, messages: Buffer, count: int, now: Now) -> Wishes:
        """What `count` scanned messages ask for; BadParameterError if that cannot be."""
        ids: dict[UniqKey, int] = {}
        known: dict[int, Place | int] = {}
        dues: set[int | None] = set()
        may_expire, is_nameless = False, False
        for nth, (attributes, sender) in enumerate(_each(messages, count)):
            uniq_id = attributes.get(UNIQ_ID)
            if uniq_id:
                key = topic, sender or app, uniq_id
                place = self._ledger.state.uniq_ids.find(key, now.wall_ms)
                if place is not None or key in ids:
                    known[nth] = place if place is not None else ids[key]
                    continue  # whatever else it asks for was done then
                ids[key] = nth
                is_nameless = is_nameless or not sender
            dues.add(self._delaying.due_of(attributes, now))
            may_expire = may_expire or EXPIRE in attributes
        if len(dues) > 1:
            raise BadParameterError("messages that wait until different times must be sent in requests of their own")
        note = SENDER_MARK + app.encode() if is_nameless else None
        return Wishes(list(ids), known, dues.pop() if dues else None, may_expire, note)

    def remember(self, topic: int, app: str, messages: Buffer, partition: int, end_position: int, now: Now) -> None:
        """Messages with new ids were stored; their records end there."""
        uniq_ids = self._ledger.state.uniq_ids
        for sender, uniq_id, _, index in ids_of(messages, app):
            key = topic, sender, uniq_id
            uniq_ids.add(key, Place(partition, index, end_position, now.wall_ms))
            self._ledger.undo_with(end_position, partial(uniq_ids.discard, key))


def without(messages: Buffer, count: int, left_out: Container[int]) -> bytearray:
    """The messages but for those that are left out, by their place among them."""
    kept = bytearray()
    at = 0
    for nth in range(count):
        start = at
        at += _LENGTH.unpack_from(messages, at)[0]
        if nth not in left_out:
            kept += memoryview(messages)[start:at]
    return kept


def named(messages: Buffer, count: int, app: str) -> bytearray:
    """The messages, those that name no app with that one: a delay has no room for who sent it."""
    parts = []
    at = 0
    for _ in range(count):
        fields, at = read_fields(messages, at)
        parts.append(write_fields(fields if fields.app else replace(fields, app=app.encode())))
    return bytearray().join(parts)


def _each(messages: Buffer, count: int) -> Iterator[tuple[dict[str, str], str]]:
    """Attributes and app of each message."""
    at = 0
    for _ in range(count):
        try:
            attributes = decode_attributes(attributes_of(messages, at))
        except SerializationError:  # a broken escape is for those who read it
            attributes = {}
        fields, at = read_fields(messages, at)
        yield attributes, fields.app.decode()
