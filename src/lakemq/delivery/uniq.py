"""The ids that producers gave their messages (UNIQ_ID), for as long as they are remembered: a repeated send is not
stored again but answered with the place of the first copy.

A fold over the messages themselves, so the id is there exactly if the message is. Bounded by count, oldest out first.
"""

import json
from collections import OrderedDict
from typing import NamedTuple

from lakemq.attributes import decode_attributes
from lakemq.errors import LakeMQError
from lakemq.record import Buffer, read_fields

UNIQ_ID = "UNIQ_ID"
_MARK = UNIQ_ID.encode()

UniqKey = tuple[int, str, str]  # topic number, app, id


class Place(NamedTuple):
    """Where the first copy is; durable once the journal is synced to `end_position`."""

    partition: int
    first_index: int
    end_position: int


class UniqIds:
    """The ids of the last so many messages that had one."""

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._places: OrderedDict[UniqKey, Place] = OrderedDict()

    def find(self, key: UniqKey) -> Place | None:
        """Where that message is, if it is remembered."""
        return self._places.get(key)

    def add(self, key: UniqKey, place: Place) -> None:
        """Remember one more."""
        self._places[key] = place
        while len(self._places) > self._count_max:
            self._places.popitem(last=False)

    def discard(self, key: UniqKey) -> None:
        """Its message was not stored after all."""
        self._places.pop(key, None)

    def apply(self, topic: int, messages: Buffer, end_position: int) -> None:
        """Remember those of a stored record."""
        if bytes(messages).find(_MARK) < 0:
            return
        for app, uniq_id, partition, index in ids_of(messages):
            self.add((topic, app, uniq_id), Place(partition, index, end_position))

    def pack(self, kept: object = None) -> bytes:
        """All of them."""
        rows = [[*key, place.partition, place.first_index] for key, place in self._places.items()]
        return json.dumps(rows, separators=(",", ":")).encode() if rows else b""

    def restore(self, data: bytes) -> None:
        """Begin from what `pack` gave; all of it is durable."""
        self._places.clear()
        for topic, app, uniq_id, partition, index in json.loads(data or b"[]"):
            self._places[topic, app, uniq_id] = Place(partition, index, 0)


def ids_of(messages: Buffer) -> list[tuple[str, str, int, int]]:
    """App, id, partition and index of those messages that have an id."""
    found = []
    at = 0
    while at < len(messages):
        fields, at = read_fields(messages, at)
        if _MARK in fields.attributes:
            try:
                uniq_id = decode_attributes(fields.attributes).get(UNIQ_ID)
            except LakeMQError:  # not ours to refuse: it was stored
                continue
            if uniq_id:
                found.append((fields.app.decode(errors="replace"), uniq_id, fields.partition, fields.index))
    return found
