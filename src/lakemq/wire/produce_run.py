"""A run of PRODUCE_MESSAGE requests taken in one go: the way most messages come in.

A producer's requests differ in little but their ids and messages. Where a connection sends many that are alike (one
topic, no transaction, one level, one partition), they are checked together, their messages moved together in place,
and answered together; whatever does not fit the pattern is left to the codec. Nothing is built per message.

The compiled twins in `_hot.c` are used where they could be built; what is written here is the definition.
"""

import re
import struct
from typing import NamedTuple

from lakemq.errors import LakeMQError
from lakemq.message import MESSAGE_BYTES_MAX
from lakemq.record import ORDERED_BIT, Buffer, attributes_of, scan
from lakemq.wire.header import MAGIC, REQUEST_HEADER_BYTES, RESPONSE_HEADER_BYTES_MIN

try:
    import lakemq._hot as _hot
except ImportError:  # no compiler when it was installed
    _hot = None  # type: ignore[assignment]

PRODUCE_NUMBER = 50
RUN_MESSAGES_MAX = 32767

# Attributes that the broker must look at: messages that may have one are not part of a run.
# By the beginning of their lines; behind a backslash anything may hide.
SPECIAL_ATTRIBUTES = re.compile(rb"\\|(?:^|[\r\n])[ \t\f]*(?:UNIQ_ID|DELIVER_AT|DELAY_LEVEL|EXPIRE)")

_HEAD = struct.Struct(">iI2sibq")  # length, magic, version with identity, requestId, type, sendTime
_COUNT = struct.Struct(">h")
_REQUEST = struct.Struct(">ih")  # requestId, number of messages
REQUEST_BYTES = _REQUEST.size
_LENGTH = struct.Struct(">i")
_SYSTEM_CODE_OFFSET = 18
_RESULT = struct.Struct(">hqq")  # partition, index, startTime
_PLACE = struct.Struct(">4xhq7xq")  # of a message: partition, index, sendTime
_ACK_HEAD = struct.Struct(">iIBBibqBh")


class ProduceRun(NamedTuple):
    """Requests alike, up to `end`; their messages lie back to back from `start` to `stop`."""

    end: int
    start: int
    stop: int
    partition: int
    message_count: int
    index_count: int
    requests: bytes  # requestId and number of messages of each


def cut_run(view: memoryview, at: int, head: bytes, prefix: bytes, suffix: bytes, bytes_max: int) -> ProduceRun | None:
    """The requests from `at` on that begin and end alike, with messages that may be stored; None if not even one.

    `head` is version and identity, `prefix` the payload up to the number of messages, `suffix` what follows them. The
    messages are moved together, over what stood between them.
    """
    if _hot is not None:
        found = _hot.cut_run(view, at, head, prefix, suffix, bytes_max, MESSAGE_BYTES_MAX)
        return tuple.__new__(ProduceRun, found) if found is not None else None  # a third of ProduceRun(*found)
    return cut_run_python(view, at, head, prefix, suffix, bytes_max)


def cut_run_python(
    view: memoryview, at: int, head: bytes, prefix: bytes, suffix: bytes, bytes_max: int
) -> ProduceRun | None:
    """The definition of `cut_run`."""
    start = stop = at + REQUEST_HEADER_BYTES + len(prefix) + _COUNT.size
    partition = message_count = index_count = 0
    requests: list[bytes] = []
    while len(view) - at >= REQUEST_HEADER_BYTES + len(prefix) + _COUNT.size:
        length, magic, its_head, request_id, kind, _ = _HEAD.unpack_from(view, at)
        end = at + length
        payload = at + REQUEST_HEADER_BYTES
        messages = payload + len(prefix) + _COUNT.size
        messages_end = end - len(suffix)
        if magic != MAGIC or its_head != head or kind != PRODUCE_NUMBER or end > len(view) or messages > messages_end:
            break
        if view[payload : payload + len(prefix)] != prefix or view[messages_end:end] != suffix:
            break
        count = _COUNT.unpack_from(view, messages - _COUNT.size)[0]
        size = messages_end - messages
        if count < 1 or message_count + count > RUN_MESSAGES_MAX or (requests and stop - start + size > bytes_max):
            break
        try:
            found = scan(view, messages, messages_end, count)
        except LakeMQError:
            break
        if found.end != messages_end or (requests and found.partition != partition):
            break
        if any_special(view, messages, count, found.partition):
            break
        partition = found.partition
        view[stop : stop + size] = bytes(view[messages:messages_end])
        stop += size
        message_count += count
        index_count += found.index_count
        requests.append(_REQUEST.pack(request_id, count))
        at = end
    if not requests:
        return None
    return ProduceRun(at, start, stop, partition, message_count, index_count, b"".join(requests))


def any_special(view: Buffer, at: int, count: int, partition: int) -> bool:
    """Whether a scanned message needs a closer look: by its attributes, or because its key decides the partition."""
    for _ in range(count):
        code = _COUNT.unpack_from(view, at + _SYSTEM_CODE_OFFSET)[0]
        if partition < 0 and code & ORDERED_BIT:
            return True
        attributes = attributes_of(view, at)
        if attributes and SPECIAL_ATTRIBUTES.search(attributes):
            return True
        at += _LENGTH.unpack_from(view, at)[0]
    return False


def run_acks(messages: Buffer, requests: bytes, topic: bytes, head: bytes, now_ms: int) -> bytes:
    """The answers to a run's requests, back to back: where each of the stamped messages went.

    `topic` is the topic's STRING with its length, `head` version and identity of the requests.
    """
    if _hot is not None:
        return _hot.run_acks(messages, requests, topic, head, now_ms)
    return run_acks_python(messages, requests, topic, head, now_ms)


def run_acks_python(messages: Buffer, requests: bytes, topic: bytes, head: bytes, now_ms: int) -> bytes:
    """The definition of `run_acks`."""
    parts = []
    at = 0
    for request_id, count in _REQUEST.iter_unpack(requests):
        parts.append(_ack_head(request_id, count * _RESULT.size, topic, head, now_ms, code=0, count=count))
        for _ in range(count):
            parts.append(_RESULT.pack(*_PLACE.unpack_from(messages, at)))
            at += _LENGTH.unpack_from(messages, at)[0]
    return b"".join(parts)


def run_refusals(requests: bytes, topic: bytes, head: bytes, now_ms: int, code: int) -> bytes:
    """The answers to a run's requests that all failed alike; nothing of them is stored, or nobody knows."""
    result = _RESULT.pack(-1, -1, -1)
    return b"".join(
        _ack_head(request_id, count * len(result), topic, head, now_ms, code=code, count=count) + result * count
        for request_id, count in _REQUEST.iter_unpack(requests)
    )


def run_receipts(messages: Buffer, requests: bytes, topic: bytes, head: bytes, now_ms: int, partition: int) -> bytes:
    """The answers to a run's requests that are only received: their indexes are not known yet."""
    parts = []
    at = 0
    for request_id, count in _REQUEST.iter_unpack(requests):
        parts.append(_ack_head(request_id, count * _RESULT.size, topic, head, now_ms, code=0, count=count))
        for _ in range(count):
            parts.append(_RESULT.pack(partition, -1, _PLACE.unpack_from(messages, at)[2]))
            at += _LENGTH.unpack_from(messages, at)[0]
    return b"".join(parts)


def _ack_head(
    request_id: int, results_bytes: int, topic: bytes, head: bytes, now_ms: int, *, code: int, count: int
) -> bytes:
    size = RESPONSE_HEADER_BYTES_MIN + 2 + len(topic) + 4 + 2 + results_bytes
    fixed = _ACK_HEAD.pack(size, MAGIC, head[0], head[1] | 1, request_id, -PRODUCE_NUMBER, now_ms, 0, 0)
    return b"".join((fixed, b"\0\1", topic, _LENGTH.pack(code), _COUNT.pack(count)))
