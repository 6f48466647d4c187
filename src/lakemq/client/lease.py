"""What one answer to FETCH_TOPIC_MESSAGE lent: messages of one partition, and which of them are settled.

Settling is a single write into a byte array, so any thread may do it, in any order. Acks are sent as runs without gaps
from the first message on, which every broker takes; so what can be sent is the settled prefix. What says more than an
ack can (when to try again, why it failed) has a verdict beside its mark and is sent as SETTLE, message by message.

Where order counts, a lease ends with the first message that failed: the broker delivers that one again first, then all
behind it. So those are not handed out any more, and what is said of them is not sent.

A delivery knows its lease, and the lease does not know its deliveries: they are made when handed out, and what was
received is gone with the last of them instead of waiting for the garbage collector.
"""

import struct
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import accumulate, repeat
from itertools import count as counter
from typing import Protocol

from lakemq.client.delivery import REASON_CHARACTERS_MAX, Carried, Delivery, reason_of
from lakemq.client.errors import BrokerUnreachableError
from lakemq.client.promise import Promise
from lakemq.client.session import Frame, Session
from lakemq.errors import LakeMQError
from lakemq.message import AckType
from lakemq.wire.buffer import Buffer
from lakemq.wire.commands import encode_request
from lakemq.wire.dialect import VERSION_OURS, Form
from lakemq.wire.header import Header
from lakemq.wire.own import BY_POLICY, Settle, SettleAck, Settlement, SettleOutcome, TopicSettlements

OPEN = 0xFF
JUDGED = 0x10  # settled with a verdict, which the broker does not know yet
FORGONE = 0x12  # behind one that failed, where order is kept: it comes again, and nothing is said of it
KNOWN = 0x11  # the broker knows, though not all before it
_OPEN = bytes([OPEN])
_DONE = (AckType.SUCCESS, JUDGED)  # what a judged one means is with its verdict
_SUCCESS = bytes([AckType.SUCCESS])
_RUN_MAX = 32_000  # of acks in one request: an array holds 32767
_COMMIT_ACK = 32
_ACK = struct.Struct(">hqb")
_SHORT = struct.Struct(">h")
_JUDGED = bytes([JUDGED])
_JUDGED_MAX = 500  # in one SETTLE: reasons may be long
_FORM = Form()
_ANY_BYTES = 1 << 62
# What a broker that does not know SETTLE is told instead.
_PLAIN_TYPES = {
    SettleOutcome.DONE: AckType.SUCCESS,
    SettleOutcome.RETRY: AckType.EXCEPTION,
    SettleOutcome.DEAD_LETTER: AckType.OTHER,
}

Refused = Callable[[LakeMQError], None]


class Order(Enum):
    """The order in which messages of a lease must be settled."""

    NONE = 0
    STRICT = 1
    BY_KEY = 2


class Hold(Protocol):
    """Who a delivery is settled with: a lease, or what keeps it on the consumer's own disk."""

    is_lost: bool

    def settle(self, place: int, how: int) -> None:
        """One is done with; the first word counts."""
        ...

    def settle_as(
        self, place: int, outcome: SettleOutcome, after_ms: int, reason: str, on_refused: Refused | None = None
    ) -> None:
        """The same with all that SETTLE can say."""
        ...

    def is_settled(self, place: int) -> bool:
        """Whether one is."""
        ...

    def is_over(self, place: int) -> bool:
        """Whether one comes again, whatever is said of it here."""
        ...


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is to become of one message. If no broker takes it, it is open again, and `on_refused` hears why."""

    outcome: SettleOutcome
    after_ms: int
    reason: str
    on_refused: Refused | None = None


class Lease:
    """Messages lent to us on one connection, until all are acked or its time is over."""

    __slots__ = (
        "__weakref__",
        "_carried",
        "_indexes",
        "_on_done",
        "_open",
        "_starts",
        "acked",
        "acking",
        "can_judge",
        "damage",
        "end_ms",
        "extended_ms",
        "is_extending",
        "is_lost",
        "marks",
        "order",
        "partition",
        "received_ms",
        "session",
        "taken",
        "unheard",
        "verdicts",
        "wait_ms",
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
        self.order = Order.NONE  # of a topic that keeps it: what is behind a message that failed comes again
        self.is_extending = False
        self.acked = 0  # so many the broker knows to be settled
        self.acking: Promise[None] | None = None  # while an ack is on its way
        self.taken = 0  # so many were handed to the user
        self.can_judge = True  # whether the broker knows SETTLE
        self.verdicts: dict[int, Verdict] = {}  # by place
        self.unheard = 0  # tries in a row to settle something that the broker put off
        self.wait_ms = 0  # nothing is sent before this
        self._on_done = on_done
        self.damage: list[tuple[int, LakeMQError]] = []  # what could not be opened: how many messages, and why
        self._carried = carried
        self._open: tuple[int, Carried] | None = None  # the MESSAGE that was handed out in part, expanded
        self._starts = list(accumulate((one.count for one in carried), initial=0))  # places, by MESSAGE
        self._indexes: Sequence[int] = _indexes_of(carried)
        self.marks = bytearray(_OPEN) * len(self._indexes)  # how each was settled

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

    def is_over(self, place: int) -> bool:
        """Whether one comes again, whatever is said of it here."""
        return self.is_lost or self.marks[place] == FORGONE

    def is_beside(self, other: "Lease") -> bool:
        """Whether the two are of one partition and one connection."""
        return self.partition == other.partition and self.session is other.session

    def settle(self, place: int, how: int) -> None:
        """One is done with; the first word counts."""
        if self.marks[place] == OPEN:
            if how not in _DONE:
                self._forgo_behind(place)
            self.marks[place] = how
            if self.is_done:
                self._on_done(self)

    def _forgo_behind(self, place: int) -> None:
        """One failed: where order counts the broker takes back what is behind it, so nobody shall begin with that.

        Before its own mark: nothing behind an open message is sent, so none of them is on its way to the broker.
        """
        if self.order is Order.NONE:
            return
        key = self._key_of(place) if self.order is Order.BY_KEY else None
        for behind in range(place + 1, len(self.marks)):
            if key is None or self._key_of(behind) in (key, None):
                self.verdicts.pop(behind, None)
                self.marks[behind] = FORGONE

    def _key_of(self, place: int) -> bytes | None:
        """The key of a message; None for a member of a batch, whose key the broker does not look at."""
        carried = self._carried[bisect_right(self._starts, place) - 1]
        return carried.tail()[0] if carried.is_alone else None

    def settle_as(
        self, place: int, outcome: SettleOutcome, after_ms: int, reason: str, on_refused: Refused | None = None
    ) -> None:
        """The same with all that SETTLE can say, as far as the broker understands it."""
        if self.marks[place] != OPEN:
            return
        if not self.can_judge:
            self.settle(place, _PLAIN_TYPES[outcome])
            return
        if outcome is SettleOutcome.RETRY:
            self._forgo_behind(place)
        self.verdicts[place] = Verdict(outcome, after_ms, reason, on_refused)  # before the mark: another may send it
        self.settle(place, JUDGED)

    def settle_run(self, start: int, end: int) -> None:
        """Those of a run that nobody has settled are done."""
        self.marks[start:end] = self.marks[start:end].replace(_OPEN, _SUCCESS)
        if self.is_done:
            self._on_done(self)

    def take(self, count: int, bytes_max: int = _ANY_BYTES) -> list[Delivery]:
        """The next messages to hand out; those that are settled already are left out.

        Of what has to be expanded no more than `bytes_max` at a time, but for the first.
        """
        while self.taken < len(self.marks) and self.marks[self.taken] == FORGONE:
            self.taken += 1
        start, last, opened_bytes = self.taken, min(self.taken + count, len(self.marks)), 0
        found: list[Delivery] = []
        nth = bisect_right(self._starts, start) - 1
        while start < last and (opened_bytes < bytes_max or not found):
            one, after = self._opened(nth), min(self._starts[nth + 1], last)
            if one.damage is None:
                found += self._deliveries(one, start - self._starts[nth], after - self._starts[nth], start)
                opened_bytes += len(one.body) if self._carried[nth].is_sealed else 0
            else:
                self._condemn(start, self._starts[nth + 1], one.damage)
                after = self._starts[nth + 1]
            start, nth = after, nth + 1
        first, self.taken = self.taken, start
        if start == self._starts[nth]:
            self._open = None
        if self.marks.count(_OPEN, first, start) == len(found):
            return found
        return [one for one in found if self.marks[one._place] == OPEN]

    def _opened(self, nth: int) -> Carried:
        """A MESSAGE with its body expanded; kept while it is the last, of which more may be asked for."""
        if not self._carried[nth].is_sealed:
            return self._carried[nth]
        if self._open is None or self._open[0] != nth:
            self._open = nth, self._carried[nth].opened()
        return self._open[1]

    def _deliveries(self, one: Carried, first: int, after: int, place: int) -> Iterable[Delivery]:
        # One call from C for all of them: this is done for every message received.
        starts = one.starts[first:after]
        return map(Delivery, repeat(one), starts, counter(one.origin_index + first), repeat(self), counter(place))

    def _condemn(self, start: int, after: int, error: LakeMQError) -> None:
        """They cannot be opened, here or elsewhere: dead letters, with the reason."""
        self.damage.append((after - start, error))
        for place in range(start, after):
            reason = reason_of(error)[:REASON_CHARACTERS_MAX]
            self.settle_as(place, SettleOutcome.DEAD_LETTER, BY_POLICY, reason)

    @property
    def is_judged_next(self) -> bool:
        """Whether what is to be sent next is a SETTLE."""
        return self.marks[self.acked] == JUDGED

    def passed(self, end: int) -> None:
        """The broker knows all up to there, and what it was told before behind that."""
        while end < len(self.marks) and self.marks[end] in (KNOWN, FORGONE):
            end += 1
        self.acked = end

    def judged(self, end: int, ack: SettleAck) -> list[tuple[int, int]]:
        """The broker has answered a SETTLE of all up to `end`; which it did not take: places and codes."""
        codes = {(one.partition, one.index): one.code for topic in ack.topics for one in topic.settled}
        refused = []
        for place in range(self.acked, end):
            code = codes.get((self.partition, self._indexes[place]), 0)
            if code:
                refused.append((place, code))
            else:
                self.marks[place] = KNOWN
                self.verdicts.pop(place, None)
        self.passed(self.acked)
        return refused

    def reopen(self, place: int) -> Verdict | None:
        """The broker did not take what was said of it: it can be settled in another way."""
        verdict = self.verdicts.pop(place, None)
        if verdict is not None:
            self.marks[place] = OPEN
        return verdict

    def lost_error(self) -> LakeMQError:
        """What those hear who come too late."""
        return BrokerUnreachableError(f"what was lent by {self.session.address} is lost")

    def speak_plainly(self) -> None:
        """The broker does not know SETTLE: say what COMMIT_ACK can."""
        self.can_judge = False
        for place, verdict in list(self.verdicts.items()):
            self.marks[place] = _PLAIN_TYPES[verdict.outcome]
        self.verdicts.clear()

    def settle_frame(self, end: int, topic: str, app: str) -> tuple[Frame, int]:
        """The SETTLE of the judged run that is next, up to `end`, and where it ends."""
        start = self.acked
        run = len(self.marks) - start - len(self.marks[start:].lstrip(_JUDGED))
        end = min(end, start + run, start + _JUDGED_MAX)
        settlements = []
        for place in range(start, end):
            verdict = self.verdicts[place]
            settlements.append(
                Settlement(self.partition, self._indexes[place], verdict.outcome, verdict.after_ms, verdict.reason)
            )
        command = Settle((TopicSettlements(topic, tuple(settlements)),), app)

        def frame(request_id: int, wall_ms: int) -> list[Buffer]:
            return encode_request(command, form=_FORM, request_id=request_id, send_time_ms=wall_ms)

        return frame, end

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
            return [one.index + nth for one in carried for nth in range(one.count)]
        expected += one.count
    return range(first, expected)
