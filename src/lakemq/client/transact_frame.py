"""TRANSACT and its answer, laid out and read in one go. The codec in `wire` is the definition."""

import struct
from functools import lru_cache

from lakemq.errors import BadParameterError
from lakemq.wire.buffer import Buffer
from lakemq.wire.dialect import VERSION_OURS
from lakemq.wire.header import MAGIC, REQUEST_HEADER_BYTES
from lakemq.wire.own import TRANSACT_NUMBER, Transact

_ACK_RECEIVE = 1 << 1  # the bits are not looked at
_HEADER = struct.Struct(">iIBBibq")
_NUMBERS = struct.Struct(">iibh")  # time-out, number, outcome, parts
_SHORT = struct.Struct(">h")
_CODE = struct.Struct(">i")


@lru_cache(1024)
def _string(text: str) -> bytes:
    data = text.encode()
    return _SHORT.pack(len(data)) + data


def transact_frame(command: Transact, request_id: int, wall_ms: int) -> list[Buffer]:
    """A request as buffers to send one after the other."""
    tx_id, own_id = command.tx_id.encode(), command.transaction_id.encode()
    try:
        pieces: list[Buffer] = [
            _string(command.topic),
            _string(command.app),
            _SHORT.pack(len(tx_id)),
            tx_id,
            _SHORT.pack(len(own_id)),
            own_id,
            _NUMBERS.pack(command.timeout_ms, command.number, command.outcome, len(command.parts)),
        ]
    except struct.error as error:
        raise BadParameterError(f"an id or a time-out is too long: {error}") from None
    for block in command.parts:
        pieces.append(_SHORT.pack(block.count))
        pieces += block.parts
    length = REQUEST_HEADER_BYTES + sum(map(len, pieces))
    head = _HEADER.pack(length, MAGIC, VERSION_OURS, _ACK_RECEIVE, request_id, TRANSACT_NUMBER, wall_ms)
    return [b"".join((head, *pieces))]


def read_transact_ack(frame: memoryview, at: int) -> int | None:
    """The code of an answer whose payload starts at `at`; None if it is not such a one."""
    return _CODE.unpack_from(frame, at)[0] if len(frame) == at + _CODE.size else None
