"""PRODUCE_MESSAGE and its answer, laid out and read in one go: what a producer does all day.

One topic, no transaction. The codec in `wire` is the definition, and reads whatever this does not expect.
"""

import struct
from functools import lru_cache

from lakemq.wire.buffer import Buffer
from lakemq.wire.dialect import VERSION_OURS
from lakemq.wire.header import MAGIC, REQUEST_HEADER_BYTES

PRODUCE_NUMBER = 50
_HEADER = struct.Struct(">iIBBibq")
_WISH = struct.Struct(">hib")  # empty txId, timeout, qosLevel
_SHORT = struct.Struct(">h")
_CODE = struct.Struct(">ih")  # code, number of results
_RESULT = struct.Struct(">hqq")
_ONE = b"\0\1"


@lru_cache(1024)
def _around(topic: str, app: str, timeout_ms: int, level: int) -> tuple[bytes, bytes]:
    """What stands before the number of messages, and after the messages."""
    name, owner = topic.encode(), app.encode()
    before = _ONE + _SHORT.pack(len(name)) + name + _WISH.pack(0, timeout_ms, level)
    return before, _SHORT.pack(len(owner)) + owner


def produce_frame(
    topic: str, app: str, timeout_ms: int, level: int, count: int, parts: list[Buffer], size: int, id: int, wall_ms: int
) -> list[Buffer]:
    """A request with `count` MESSAGEs that have `size` bytes in all."""
    before, after = _around(topic, app, timeout_ms, level)
    length = REQUEST_HEADER_BYTES + len(before) + 2 + size + len(after)
    head = _HEADER.pack(length, MAGIC, VERSION_OURS, level << 1, id, PRODUCE_NUMBER, wall_ms)
    return [head + before + _SHORT.pack(count), *parts, after]


def read_produce_ack(frame: memoryview, at: int) -> tuple[int, list[tuple[int, int]]] | None:
    """Code and places of an answer about one topic, whose payload starts at `at`; None if it is not such a one."""
    try:
        if frame[at : at + 2] != _ONE:
            return None
        at += 4 + max(_SHORT.unpack_from(frame, at + 2)[0], 0)
        code, count = _CODE.unpack_from(frame, at)
        at += _CODE.size
        if count == 1:
            partition, index, _ = _RESULT.unpack_from(frame, at)
            return code, [(partition, index)]
        end = at + max(count, 0) * _RESULT.size
        if end > len(frame):
            return None
        return code, [(partition, index) for partition, index, _ in _RESULT.iter_unpack(frame[at:end])]
    except struct.error:
        return None
