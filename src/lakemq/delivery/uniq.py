"""The ids that producers gave their messages (UNIQ_ID), for as long as they are remembered: a repeated send is not
stored again but answered with the place of the first copy.

A fold over the messages themselves, so the id is there exactly if the message is. Bounded by count and by age, oldest
out first; how old an id is goes by the store times of the records, so that a replay forgets what was forgotten.
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
AGE_MAX_MS = 3_600_000
NO_TIME = 0


class Place(NamedTuple):
    """Where the first copy is, durable once the journal is synced to `end_position`; and since when."""

    partition: int
    first_index: int
    end_position: int
    stored_ms: int = NO_TIME  # wall time; without one its age is not looked at


class UniqIds:
    """The ids of the last so many messages that had one, for so long."""

    def __init__(self, count_max: int, age_max_ms: int = AGE_MAX_MS) -> None:
        self._count_max = count_max
        self._age_max_ms = age_max_ms
        self._places: OrderedDict[UniqKey, Place] = OrderedDict()

    def __len__(self) -> int:
        return len(self._places)

    def find(self, key: UniqKey, now_ms: int = NO_TIME) -> Place | None:
        """Where that message is, if it is remembered and not too old by now."""
        place = self._places.get(key)
        return None if place is None or self._is_old(place, now_ms) else place

    def add(self, key: UniqKey, place: Place) -> None:
        """Remember one more; those that are too old at its time are forgotten."""
        self._places.pop(key, None)  # the new one is the youngest
        self._places[key] = place
        while len(self._places) > self._count_max or self._is_old(
            next(iter(self._places.values()), place), place.stored_ms
        ):
            self._places.popitem(last=False)

    def discard(self, key: UniqKey) -> None:
        """Its message was not stored after all."""
        self._places.pop(key, None)

    def apply(
        self,
        topic: int,
        messages: Buffer,
        end_position: int,
        stored_ms: int = NO_TIME,
        sender: str = "",
        delayed_to: int | None = None,
    ) -> None:
        """Remember those of a stored record; `sender` is who sent what names no app itself.

        Messages that wait have no place yet: `delayed_to` is the partition that they are for.
        """
        if bytes(messages).find(_MARK) < 0:
            return
        for app, uniq_id, partition, index in ids_of(messages, sender):
            partition = partition if delayed_to is None else delayed_to
            self.add((topic, app, uniq_id), Place(partition, index, end_position, stored_ms))

    def pack(self, kept: object = None) -> bytes:
        """All of them."""
        rows = [[*key, place.partition, place.first_index, place.stored_ms] for key, place in self._places.items()]
        return json.dumps(rows, separators=(",", ":")).encode() if rows else b""

    def restore(self, data: bytes) -> None:
        """Begin from what `pack` gave; all of it is durable."""
        self._places.clear()
        for topic, app, uniq_id, partition, index, *more in json.loads(data or b"[]"):
            stored_ms = more[0] if more else NO_TIME  # there was a time without times
            self._places[topic, app, uniq_id] = Place(partition, index, 0, stored_ms)

    def _is_old(self, place: Place, now_ms: int) -> bool:
        return place.stored_ms != NO_TIME and now_ms - place.stored_ms > self._age_max_ms


def ids_of(messages: Buffer, sender: str = "") -> list[tuple[str, str, int, int]]:
    """App, id, partition and index of those messages that have an id; the sender where a message names no app."""
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
                app = fields.app.decode(errors="replace") or sender
                found.append((app, uniq_id, fields.partition, fields.index))
    return found
