"""What one answer to FETCH_TOPIC_MESSAGE lent: messages of one partition, and which of them are settled.

Settling is a single write into a byte array, so any thread may do it, in any order. The broker takes acks only as runs
without gaps from the first message on, so what can be sent is the settled prefix.

A delivery knows its lease, and the lease does not know its deliveries: they are made when handed out, and what was
received is gone with the last of them instead of waiting for the garbage collector.
"""

import struct
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate, repeat
from itertools import count as counter

from lakemq.client.delivery import Carried, Delivery
from lakemq.client.promise import Promise
from lakemq.client.session import Frame, Session
from lakemq.message import AckType
from lakemq.wire.buffer import Buffer
from lakemq.wire.dialect import VERSION_OURS
from lakemq.wire.header import Header

OPEN = 0xFF
_OPEN = bytes([OPEN])
_SUCCESS = bytes([AckType.SUCCESS])
_RUN_MAX = 32_000  # of acks in one request: an array holds 32767
_COMMIT_ACK = 32
_ACK = struct.Struct(">hqb")
_SHORT = struct.Struct(">h")


class Lease:
    """Messages lent to us on one connection, until all are acked or its time is over."""

    __slots__ = (
        "__weakref__",
        "_carried",
        "_indexes",
        "_on_done",
        "_starts",
        "acked",
        "acking",
        "end_ms",
        "extended_ms",
        "is_extending",
        "is_lost",
        "marks",
        "partition",
        "received_ms",
        "session",
        "taken",
    )

    def __init__(
        self,
        session: Session,
        carried: list[Carried],
        now_ms: int,
        ack_timeout_ms: int,
        on_done: "Callable[[Lease], None]",
    ) -> None:
        self.session = session
        self.partition = carried[0].partition
        self.received_ms = self.extended_ms = now_ms
        self.end_ms = now_ms + ack_timeout_ms
        self.is_lost = False
        self.is_extending = False
        self.acked = 0  # so many the broker knows to be settled
        self.acking: Promise[None] | None = None  # while an ack is on its way
        self.taken = 0  # so many were handed to the user
        self._on_done = on_done
        self._carried = carried
        self._starts = list(accumulate((len(one.starts) for one in carried), initial=0))  # places, by MESSAGE
        self._indexes: Sequence[int] = _indexes_of(carried)
        self.marks = bytearray(_OPEN) * len(self._indexes)  # how each was settled
        for nth, one in enumerate(carried):
            if one.damage is not None:  # never handed out, and the broker is told
                self.marks[self._starts[nth] : self._starts[nth + 1]] = bytes([AckType.OTHER]) * len(one.starts)

    def __len__(self) -> int:
        return len(self.marks)

    @property
    def is_used_up(self) -> bool:
        """Whether all was handed out."""
        return self.taken == len(self.marks)

    @property
    def settled_to(self) -> int:
        """The length of the settled prefix."""
        end = self.marks.find(_OPEN, self.acked)
        return len(self.marks) if end < 0 else end

    @property
    def is_done(self) -> bool:
        """Whether all is settled."""
        return self.marks.find(_OPEN, self.acked) < 0

    def is_settled(self, place: int) -> bool:
        """Whether one is."""
        return self.marks[place] != OPEN

    def settle(self, place: int, how: AckType) -> None:
        """One is done with; the first word counts."""
        if self.marks[place] == OPEN:
            self.marks[place] = how
            if self.marks.find(_OPEN, self.acked) < 0:
                self._on_done(self)

    def settle_run(self, start: int, end: int) -> None:
        """Those of a run that nobody has settled are done."""
        self.marks[start:end] = self.marks[start:end].replace(_OPEN, _SUCCESS)
        if self.marks.find(_OPEN, self.acked) < 0:
            self._on_done(self)

    def take(self, count: int) -> list[Delivery]:
        """The next messages to hand out; those that are settled already are left out."""
        start, self.taken = self.taken, min(self.taken + count, len(self.marks))
        found = self._deliveries(start, self.taken)
        if self.marks.count(_OPEN, start, self.taken) == len(found):
            return found
        return [one for one in found if self.marks[one._place] == OPEN]

    def _deliveries(self, start: int, end: int) -> list[Delivery]:
        found: list[Delivery] = []
        nth = bisect_right(self._starts, start) - 1
        while start < end:
            one, first = self._carried[nth], self._starts[nth]
            starts = one.starts[start - first : end - first]
            index = one.index + start - first
            # One call from C for all of them: this is done for every message received.
            found += map(Delivery, repeat(one), starts, counter(index), repeat(self), counter(start))
            start += len(starts)
            nth += 1
        return found

    def ack_frame(self, end: int, topic: str, app: str) -> tuple[Frame, int]:
        """The COMMIT_ACK of the settled prefix up to `end` that was not sent yet, and where its run ends.

        A run is of one kind: a broker that cannot retry a failed message gives back all of its run.
        """
        start = self.acked
        same = self.marks[start : start + 1]
        run = len(self.marks) - start - len(self.marks[start:].lstrip(same))
        end = min(end, start + run, start + _RUN_MAX)
        acks = b"".join(map(_ACK.pack, repeat(self.partition), self._indexes[start:end], self.marks[start:end]))
        name, owner = topic.encode(), app.encode()
        payload = b"".join(
            (
                b"\0\1",
                _SHORT.pack(len(name)),
                name,
                b"\0\1",
                _SHORT.pack(self.partition),
                _SHORT.pack(end - start),
                acks,
                _SHORT.pack(len(owner)),
                owner,
            )
        )

        def frame(request_id: int, wall_ms: int) -> list[Buffer]:
            head = Header(_COMMIT_ACK, request_id, VERSION_OURS, 1, wall_ms)
            return [head.pack(len(payload)), payload]

        return frame, end


def _indexes_of(carried: list[Carried]) -> Sequence[int]:
    """The index of every message; a range where they follow one another, as they nearly always do."""
    first, expected = carried[0].index, carried[0].index
    for one in carried:
        if one.index != expected:
            return [one.index + nth for one in carried for nth in range(len(one.starts))]
        expected += len(one.starts)
    return range(first, expected)
