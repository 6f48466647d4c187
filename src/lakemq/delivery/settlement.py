"""What became of messages that were lent, as one SETTLE record: entries of several kinds, all of them or none.

A message that leaves one place for another (lent, to be tried again, dead) does so within one record: there is no
moment at which it is in none of them, or in two.
"""

import json
import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

_ACKED = struct.Struct(">ihqq")
_SIZE = struct.Struct(">I")
_ACKED_KIND = 1
_RUNS = struct.Struct(">ihI")
_RUNS_KIND = 10


class Acked(NamedTuple):
    """An app has done with the messages of a partition from `first_index` up to `next_index`."""

    subscription: int
    partition: int
    first_index: int
    next_index: int


class AckedRuns(NamedTuple):
    """The same of many runs: first and next index of each, one after the other."""

    subscription: int
    partition: int
    bounds: tuple[int, ...]

    @property
    def runs(self) -> list[tuple[int, int]]:
        """The runs as pairs."""
        return list(zip(self.bounds[::2], self.bounds[1::2], strict=True))


class Retry(NamedTuple):
    """A message that an app is to be given again: `attempts` have failed, the next one is not before `due_ms`.

    The message is the one at `message_index` in the record at `position`. A retry with a known id replaces that one.
    """

    id: int
    subscription: int
    topic: int
    partition: int
    message_index: int
    position: int
    attempts: int
    due_ms: int
    first_ms: int  # when it failed for the first time
    reason: str


class Retried(NamedTuple):
    """A retry is over: the app has done with it."""

    id: int


class DeadLetter(NamedTuple):
    """A message that nobody tries again by itself; kept until an operator decides."""

    id: int
    cause: str  # one of CAUSES
    reason: str  # in words
    subscription: int  # whose it is; 0 if it never got that far
    app: str
    topic: int
    topic_name: str
    partition: int
    message_index: int
    position: int
    attempts: int
    first_ms: int
    died_ms: int


class Buried(NamedTuple):
    """A dead letter is one no more: it was resent or deleted, by whom, when."""

    id: int
    outcome: str
    by: str
    time_ms: int


class Stuck(NamedTuple):
    """A message that others must wait for failed: it comes first again, not before `due_ms`; 0 attempts: no more."""

    subscription: int
    partition: int
    message_index: int
    attempts: int
    due_ms: int
    first_ms: int


class LeaseEnded(NamedTuple):
    """Messages were lent and not acked in time."""

    subscription: int
    partition: int
    first_index: int
    next_index: int


class Moved(NamedTuple):
    """What refers to a message is to look for it elsewhere: it was written again."""

    old_position: int
    message_index: int
    position: int


class Edited(NamedTuple):
    """An operator has changed a dead letter: its message is another one, elsewhere."""

    id: int
    position: int
    by: str
    time_ms: int


Entry = Acked | AckedRuns | Retry | Retried | DeadLetter | Buried | Stuck | LeaseEnded | Moved | Edited

CAUSES = ("exhausted", "expired", "rate", "filter", "asked", "store")
NEVER_STORED = ("rate", "store")  # causes of those that never were in their topic
_KINDS: dict[int, type[Retry | Retried | DeadLetter | Buried | Stuck | LeaseEnded | Moved | Edited]] = {
    2: Retry,
    3: Retried,
    4: DeadLetter,
    5: Buried,
    6: Stuck,
    7: LeaseEnded,
    8: Moved,
    9: Edited,
}
_NUMBERS = {kind: number for number, kind in _KINDS.items()}


def pack_entries(entries: Iterable[Entry]) -> bytes:
    """Entries as a record holds them."""
    parts = []
    for entry in entries:
        if isinstance(entry, Acked):  # by far the most
            parts.append(b"\1" + _ACKED.pack(*entry))
        elif isinstance(entry, AckedRuns):
            count = len(entry.bounds)
            head = bytes([_RUNS_KIND]) + _RUNS.pack(entry.subscription, entry.partition, count)
            parts.append(head + struct.pack(f">{count}q", *entry.bounds))
        else:
            data = json.dumps(entry, separators=(",", ":")).encode()
            parts.append(bytes([_NUMBERS[type(entry)]]) + _SIZE.pack(len(data)) + data)
    return b"".join(parts)


def unpack_entries(payload: bytes | memoryview) -> Iterator[Entry]:
    """What `pack_entries` gave."""
    at = 0
    while at < len(payload):
        kind = payload[at]
        at += 1
        if kind == _ACKED_KIND:
            yield Acked(*_ACKED.unpack_from(payload, at))
            at += _ACKED.size
            continue
        if kind == _RUNS_KIND:
            subscription, partition, count = _RUNS.unpack_from(payload, at)
            at += _RUNS.size
            yield AckedRuns(subscription, partition, struct.unpack_from(f">{count}q", payload, at))
            at += count * 8
            continue
        size = _SIZE.unpack_from(payload, at)[0]
        at += _SIZE.size
        yield _KINDS[kind](*json.loads(bytes(payload[at : at + size])))
        at += size
