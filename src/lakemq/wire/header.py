"""The header of a frame: what every command has in common, and the identity bits.

Layout: length INT · magic INT · version BYTE · identity BYTE · requestId INT · type BYTE · sendTime LONG, and in a
response also status BYTE (unsigned) · error STRING. Then the payload, to the end of the frame.
"""

import struct
from typing import NamedTuple

from lakemq.errors import BadFrameError, BadParameterError
from lakemq.wire.buffer import Buffer

MAGIC = 0xCAFEBEBE
REQUEST_HEADER_BYTES = 23
RESPONSE_HEADER_BYTES_MIN = 26
BOOLEAN_ACK = -128  # JoyQueue's answer with nothing but a status
ERROR_BYTES_MAX = 32767

_REQUEST = struct.Struct(">iIBBibq")
_STATUS = struct.Struct(">Bh")
_RESPONSE_BIT = 0x01
_SIGN_BIT = 0x80


class Header(NamedTuple):
    """A frame's header; `type` is negative in a response."""

    type: int
    request_id: int = 0
    version: int = 2
    qos_bits: int = 0
    send_time_ms: int = 0  # some clients send seconds: never interpreted
    is_response: bool = False
    status: int = 0
    error: str = ""

    def pack(self, payload_bytes: int) -> bytes:
        """The header of a frame with that much payload."""
        identity = (self.qos_bits & 3) << 1 | self.is_response
        error = self._error_bytes()
        try:
            tail = _STATUS.pack(self.status, len(error)) + error if self.is_response else b""
            length = REQUEST_HEADER_BYTES + len(tail) + payload_bytes
            head = _REQUEST.pack(length, MAGIC, self.version, identity, self.request_id, self.type, self.send_time_ms)
        except struct.error as error:
            raise BadParameterError(f"a field of the header is out of range: {error}") from None
        return head + tail

    def _error_bytes(self) -> bytes:
        text = self.error.encode("utf-8", "replace")
        if len(text) > ERROR_BYTES_MAX:
            text = text[:ERROR_BYTES_MAX].decode("utf-8", "ignore").encode()
        return text


def read_header(frame: Buffer) -> tuple[Header, int]:
    """The header of a whole frame, and where its payload starts.

    BadFrameError where the frame cannot be one of ours: the connection is beyond repair then.
    """
    if len(frame) < REQUEST_HEADER_BYTES:
        raise BadFrameError(f"a frame of {len(frame)} bytes has no room for a header")
    length, magic, version, identity, request_id, kind, sent = _REQUEST.unpack_from(frame)
    if magic != MAGIC:
        raise BadFrameError(f"magic {magic:#010x} instead of {MAGIC:#010x}")
    if length != len(frame):
        raise BadFrameError(f"length {length} in a frame of {len(frame)} bytes")
    if (version | identity) & _SIGN_BIT:
        raise BadFrameError(f"version {version} and identity {identity:#04x} are not of this protocol")
    qos_bits = (identity >> 1) & 3
    if not identity & _RESPONSE_BIT:
        return Header(kind, request_id, version, qos_bits, sent), REQUEST_HEADER_BYTES
    if length < RESPONSE_HEADER_BYTES_MIN:
        raise BadFrameError(f"length {length} has no room for a response's status")
    status, error_bytes = _STATUS.unpack_from(frame, REQUEST_HEADER_BYTES)
    start = RESPONSE_HEADER_BYTES_MIN + max(error_bytes, 0)
    if start > length:
        raise BadFrameError(f"an error text of {error_bytes} bytes in a frame of {length}")
    # The text is for people: what is not UTF-8 in it is shown as such and harms nobody.
    error = str(memoryview(frame)[RESPONSE_HEADER_BYTES_MIN:start], "utf-8", "replace")
    return Header(kind, request_id, version, qos_bits, sent, True, status, error), start
