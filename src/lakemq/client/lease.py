"""What one answer to FETCH_TOPIC_MESSAGE lent: messages of one partition, and which of them are settled.

Settling is a single write into a byte array, so any thread may do it, in any order. The broker takes acks only as runs
without gaps from the first message on, so what can be sent is the settled prefix.
"""

import struct
from collections.abc import Callable, Sequence
from itertools import repeat

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
        "_indexes",
        "_marks",
        "_on_done",
        "acked",
        "acking",
        "deliveries",
        "end_ms",
        "extended_ms",
        "is_extending",
        "is_lost",
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
        self.deliveries: list[Delivery] = []
        self._on_done = on_done
        self._indexes: Sequence[int] = _indexes_of(carried)
        self._marks = bytearray(_OPEN) * len(self._indexes)
        deliveries, place = self.deliveries, 0
        for one in carried:
            index = one.index
            for at in one.starts:
                deliveries.append(Delivery(one, at, index, self, place))
                index += 1
                place += 1
            if one.damage is not None:  # never handed out, and the broker is told
                self._marks[place - len(one.starts) : place] = bytes([AckType.OTHER]) * len(one.starts)

    def __len__(self) -> int:
        return len(self._marks)

    @property
    def is_used_up(self) -> bool:
        """Whether all was handed out."""
        return self.taken == len(self._marks)

    @property
    def settled_to(self) -> int:
        """The length of the settled prefix."""
        end = self._marks.find(_OPEN, self.acked)
        return len(self._marks) if end < 0 else end

    @property
    def is_done(self) -> bool:
        """Whether all is settled."""
        return self._marks.find(_OPEN, self.acked) < 0

    def is_settled(self, place: int) -> bool:
        """Whether one is."""
        return self._marks[place] != OPEN

    def settle(self, place: int, how: AckType) -> None:
        """One is done with; the first word counts."""
        if self._marks[place] == OPEN:
            self._marks[place] = how
            if self._marks.find(_OPEN, self.acked) < 0:
                self._on_done(self)

    def settle_run(self, start: int, end: int) -> None:
        """Those of a run that nobody has settled are done."""
        self._marks[start:end] = self._marks[start:end].replace(_OPEN, _SUCCESS)
        if self._marks.find(_OPEN, self.acked) < 0:
            self._on_done(self)

    def take(self, count: int) -> list[Delivery]:
        """The next messages to hand out."""
        start, self.taken = self.taken, min(self.taken + count, len(self._marks))
        if self._marks.count(_OPEN, start, self.taken) == self.taken - start:
            return self.deliveries[start : self.taken] if start or not self.is_used_up else self.deliveries
        return [one for one in self.deliveries[start : self.taken] if self._marks[one._place] == OPEN]

    def ack_frame(self, end: int, topic: str, app: str) -> tuple[Frame, int]:
        """The COMMIT_ACK of the settled prefix up to `end` that was not sent yet, and where its run ends.

        A run is of one kind: a broker that cannot retry a failed message gives back all of its run.
        """
        start = self.acked
        same = self._marks[start : start + 1]
        run = len(self._marks) - start - len(self._marks[start:].lstrip(same))
        end = min(end, start + run, start + _RUN_MAX)
        acks = b"".join(map(_ACK.pack, repeat(self.partition), self._indexes[start:end], self._marks[start:end]))
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
