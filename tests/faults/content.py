"""What the fault tests send: every body can be told from its name, so that a checker needs no copy of it.

A name is (run, topic, partition, sequence): which start of the writer, where to, and the how-manieth there. Sequences
count from 0 in each partition of each run.
"""

import struct
import zlib
from random import Random
from typing import NamedTuple

MAGIC = b"LMQ-FAULT"
_NAME = struct.Struct(">IIHI")
_HEAD_BYTES = len(MAGIC) + _NAME.size
_POOL_BYTES = 1 << 18
BODY_BYTES_MAX = 60_000
# Of a hundred bodies so many have up to so many bytes: mostly small ones, as in life, and some that fill pages.
_SIZES = ((60, 400), (25, 3_000), (12, 20_000), (3, BODY_BYTES_MAX - _HEAD_BYTES))


class Name(NamedTuple):
    """Which message this is."""

    run: int
    topic: int
    partition: int
    sequence: int


class Bodies:
    """Makes the body of any name, from one seed."""

    def __init__(self, seed: int) -> None:
        pool = Random(seed).randbytes(_POOL_BYTES)
        self._pool = pool + pool[:BODY_BYTES_MAX]

    def make(self, name: Name) -> bytes:
        """The body of that message, its name at the front."""
        packed = _NAME.pack(*name)
        draw = zlib.crc32(packed)
        limit = _limit(draw % 100)
        size, start = (draw >> 8) % limit, (draw * 2654435761 >> 5) % _POOL_BYTES
        return MAGIC + packed + self._pool[start : start + size]

    def name_of(self, body: bytes) -> Name | None:
        """The name of a body that is right to the last byte; None for anything else."""
        if not body.startswith(MAGIC) or len(body) < _HEAD_BYTES:
            return None
        name = Name(*_NAME.unpack_from(body, len(MAGIC)))
        return name if self.make(name) == body else None


def _limit(percent: int) -> int:
    for share, limit in _SIZES:
        if percent < share:
            return limit
        percent -= share
    raise AssertionError("the shares add up to a hundred")
