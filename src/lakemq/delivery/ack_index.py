"""How far each app is in each partition: the next index it will be given.

A fold over ACK records. Whoever moves an index appends the row first; `apply` puts rows in force, also those of a
start. An index that was never set is 0: the app begins at the oldest message kept.
"""

import struct
from collections.abc import Container, Iterable, Iterator
from typing import NamedTuple

_ROW = struct.Struct(">ihq")


class AckRow(NamedTuple):
    """One app's place in one partition, by the number of its subscription."""

    subscription: int
    partition: int
    ack_index: int


def pack_rows(rows: Iterable[AckRow]) -> bytes:
    """Rows as a record holds them."""
    return b"".join([_ROW.pack(*row) for row in rows])


def unpack_rows(payload: bytes | memoryview) -> Iterator[AckRow]:
    """What `pack_rows` gave."""
    return map(AckRow._make, _ROW.iter_unpack(payload))


class AckIndexes:
    """The ack index of every subscription in every partition."""

    def __init__(self) -> None:
        self._indexes: dict[int, dict[int, int]] = {}

    def get(self, subscription: int, partition: int) -> int:
        """The next index that app will be given there."""
        indexes = self._indexes.get(subscription)
        return indexes.get(partition, 0) if indexes is not None else 0

    def apply(self, rows: Iterable[AckRow]) -> list[AckRow]:
        """Set the indexes; returns rows that would undo it."""
        before = []
        for subscription, partition, index in rows:
            indexes = self._indexes.setdefault(subscription, {})
            before.append(AckRow(subscription, partition, indexes.get(partition, 0)))
            indexes[partition] = index
        before.reverse()
        return before

    def pack(self, kept: Container[int]) -> bytes:
        """The rows of these subscriptions; others are gone, and their numbers never come again."""
        return pack_rows(
            AckRow(subscription, partition, index)
            for subscription, indexes in self._indexes.items()
            if subscription in kept
            for partition, index in indexes.items()
        )

    def restore(self, data: bytes) -> None:
        """Begin from what `pack` gave."""
        self._indexes = {}
        self.apply(unpack_rows(data))
