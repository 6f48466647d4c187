"""The partitions that ever had a message with an EXPIRE: only there must messages be looked at before they are lent."""

import struct
from collections.abc import Container

from lakemq.attributes import EXPIRE
from lakemq.record import Buffer

_MARK = EXPIRE.encode()
_ROW = struct.Struct(">ih")


class Expiring:
    """A set of partitions, by number of the topic and partition. It never shrinks: that would save next to nothing."""

    def __init__(self) -> None:
        self._partitions: set[tuple[int, int]] = set()

    def __contains__(self, key: tuple[int, int]) -> bool:
        return key in self._partitions

    def add(self, topic: int, partition: int) -> None:
        """A message there may expire. If it is not stored after all, one partition is looked at in vain."""
        self._partitions.add((topic, partition))

    def apply(self, topic: int, partition: int, messages: Buffer) -> None:
        """Messages were stored there."""
        if (topic, partition) not in self._partitions and bytes(messages).find(_MARK) >= 0:
            self.add(topic, partition)

    def pack(self, kept: Container[int]) -> bytes:
        """All of them."""
        return b"".join([_ROW.pack(*key) for key in sorted(self._partitions)])

    def restore(self, data: bytes) -> None:
        """Begin from what `pack` gave."""
        self._partitions = set(_ROW.iter_unpack(data))
