"""The bytes of an outbox: messages that were promised to be sent, and which of them have been.

Layout: 8 bytes "LMQOUT" 0 1, then records: length INT (of what follows the CRC) · CRC-32 INT of that · kind BYTE · …
Kind 1, a message: sequence LONG · level BYTE · isOrdered BYTE · partition SHORT (-1: any) · count SHORT (messages in
it) · topic STRING · hasKey BYTE · key STRING · MESSAGE. Kind 2, done: sequence LONG.

Pure: `recover` is given what a file holds and stops at the first record that is not whole, which is what a crash while
writing leaves; everything else gives bytes to append.
"""

import struct
from dataclasses import dataclass
from typing import cast

from lakemq.checksum import crc32
from lakemq.client.config import Acks
from lakemq.client.errors import OutboxFullError
from lakemq.errors import BadParameterError

MAGIC = b"LMQOUT\0\1"
_HEAD = struct.Struct(">iI")
_MESSAGE = struct.Struct(">BqBBhh")
_DONE = struct.Struct(">Bq")
_SHORT = struct.Struct(">h")
_KIND_MESSAGE = 1
_KIND_DONE = 2
_LEVELS = ("flush", "write", "receive", "none")
_ANY = -1
_REWRITE_BYTES_MIN = 1 << 20  # a smaller file is not worth it


@dataclass(frozen=True, slots=True)
class Entry:
    """One MESSAGE with all that is needed to send it."""

    sequence: int
    topic: str
    partition: int | None
    key: str | None  # what chooses the partition, if none is given
    acks: Acks
    is_ordered: bool
    count: int
    message: bytes


class OutboxLog:
    """What is in the file, and what of it is still to be sent."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._sizes: dict[int, int] = {}
        self.live: dict[int, Entry] = {}
        self.live_bytes = 0
        self.file_bytes = len(MAGIC)
        self._last_sequence = 0

    @classmethod
    def recover(cls, data: bytes, bytes_max: int) -> "OutboxLog":
        """What a file holds; `file_bytes` is how much of it is whole, and the rest is to be cut off."""
        log = cls(bytes_max)
        if not data.startswith(MAGIC):
            if MAGIC.startswith(data):  # the crash came while it was made
                return log
            raise BadParameterError("the file is not an outbox of this version")
        at = len(MAGIC)
        while (payload := _payload(data, at)) is not None:
            log._apply(payload)
            at += _HEAD.size + len(payload)
        log.file_bytes = at
        return log

    def add(
        self,
        topic: str,
        partition: int | None,
        key: str | None,
        acks: Acks,
        is_ordered: bool,
        count: int,
        message: bytes,
    ) -> tuple[Entry, bytes]:
        """One more to send, and the bytes to append; OutboxFullError if there is no room."""
        entry = Entry(self._last_sequence + 1, topic, partition, key, acks, is_ordered, count, message)
        record = _record(_message_payload(entry))
        if self.live_bytes + len(record) > self._bytes_max:
            raise OutboxFullError(f"{self.live_bytes} of {self._bytes_max} bytes are taken")
        self._last_sequence = entry.sequence
        self._keep(entry, len(record))
        self.file_bytes += len(record)
        return entry, record

    def done(self, sequence: int) -> bytes:
        """That one is with the broker: the bytes to append, none if it was done before."""
        if sequence not in self.live:
            return b""
        self._drop(sequence)
        record = _record(_DONE.pack(_KIND_DONE, sequence))
        self.file_bytes += len(record)
        return record

    @property
    def is_mostly_done(self) -> bool:
        """Whether the file should be replaced by `rewritten`."""
        return self.file_bytes > max(_REWRITE_BYTES_MIN, 2 * self.live_bytes)

    def rewritten(self) -> bytes:
        """A whole file with only what is still to be sent; from now on this is the file."""
        data = MAGIC + b"".join(_record(_message_payload(entry)) for entry in self.live.values())
        self.file_bytes = len(data)
        return data

    def _apply(self, payload: bytes) -> None:
        if payload[0] == _KIND_DONE:
            self._drop(_DONE.unpack_from(payload)[1])
        elif payload[0] == _KIND_MESSAGE:
            entry = _entry(payload)
            self._last_sequence = max(self._last_sequence, entry.sequence)
            self._keep(entry, _HEAD.size + len(payload))

    def _keep(self, entry: Entry, size: int) -> None:
        self.live[entry.sequence] = entry
        self._sizes[entry.sequence] = size
        self.live_bytes += size

    def _drop(self, sequence: int) -> None:
        if self.live.pop(sequence, None) is not None:
            self.live_bytes -= self._sizes.pop(sequence)


def _record(payload: bytes) -> bytes:
    return _HEAD.pack(len(payload), crc32(payload)) + payload


def _payload(data: bytes, at: int) -> bytes | None:
    """The payload of the record at `at`; None if it is not whole."""
    if len(data) - at < _HEAD.size:
        return None
    length, crc = _HEAD.unpack_from(data, at)
    payload = data[at + _HEAD.size : at + _HEAD.size + length] if length > 0 else b""
    return payload if length > 0 and len(payload) == length and crc32(payload) == crc else None


def _message_payload(entry: Entry) -> bytes:
    partition = _ANY if entry.partition is None else entry.partition
    head = _MESSAGE.pack(
        _KIND_MESSAGE, entry.sequence, _LEVELS.index(entry.acks), entry.is_ordered, partition, entry.count
    )
    topic, key = entry.topic.encode(), (entry.key or "").encode()
    return b"".join(
        (
            head,
            _SHORT.pack(len(topic)),
            topic,
            bytes([entry.key is not None]),
            _SHORT.pack(len(key)),
            key,
            entry.message,
        )
    )


def _entry(payload: bytes) -> Entry:
    _, sequence, level, is_ordered, partition, count = _MESSAGE.unpack_from(payload)
    at = _MESSAGE.size
    size = _SHORT.unpack_from(payload, at)[0]
    topic = payload[at + 2 : at + 2 + size].decode()
    at += 2 + size
    has_key, size = payload[at], _SHORT.unpack_from(payload, at + 1)[0]
    key = payload[at + 3 : at + 3 + size].decode() if has_key else None
    acks = cast("Acks", _LEVELS[level])  # we wrote it, and the CRC says that it is what we wrote
    place = None if partition == _ANY else partition
    return Entry(sequence, topic, place, key, acks, bool(is_ordered), count, payload[at + 3 + size :])
