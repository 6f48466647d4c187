"""What clients asked and were told, and the promises that can be held against it at once (reliability.md, section 4).

A violation is raised where it is seen. What can only be told at the end is in `invariants.py`.
"""

from collections.abc import Iterable, Mapping

from lakemq.checksum import crc32
from lakemq.message import Qos
from lakemq.testing.deliveries import Deliveries
from lakemq.testing.facts import (
    AppKey,
    Asked,
    CarrierOf,
    Delivered,
    Origin,
    PartitionKey,
    Payload,
    Resend,
    Said,
    Send,
    ViolationError,
    lateness,
    outcome_of,
    violate,
)
from lakemq.testing.rules import NEVER_MS
from lakemq.testing.transacted import Transacted

__all__ = [
    "AppKey",
    "Asked",
    "CarrierOf",
    "Delivered",
    "History",
    "Origin",
    "PartitionKey",
    "Resend",
    "Said",
    "Send",
    "ViolationError",
    "outcome_of",
    "violate",
]


class History(Deliveries):
    """Everything that happened, as the clients saw it."""

    def __init__(self) -> None:
        super().__init__()
        self.sends: list[Send] = []
        self.transactions: list[Transacted] = []
        self.resends: list[Resend] = []
        self.copies: dict[tuple[str, int, int], Origin] = {}  # by topic, partition and index: sent by an operator
        self.delayed: dict[int, Send] = {}  # by payload
        self.cancelled: set[int] = set()  # payloads that an operator may have cancelled
        self.surely_cancelled: dict[int, int] = {}  # and was told so, when
        self.first_seen_ms: dict[int, int] = {}  # when a payload that had to wait was seen first
        self.stored_ms = 0  # when what is being read was stored, by wall time
        self.lost_tails: list[tuple[int, dict[PartitionKey, int]]] = []  # power losses: when, and what was visible
        self.losses_ms: list[int] = []  # when what was in memory may have been lost
        self.dropped: set[str] = set()  # topics that are gone, or may be

    # --- sending -----------------------------------------------------------------------------------------------

    def make_payload(
        self,
        producer: str,
        topic: str,
        key: str,
        filling: bytes,
        attributes: Mapping[str, str] | None = None,
        expires_ms: int = NEVER_MS,
    ) -> tuple[int, bytes]:
        """A new message's content."""
        number = len(self.payloads)
        body = b"%d|" % number + filling
        self.payloads.append(Payload(number, producer, topic, crc32(body), key, attributes or {}, expires_ms))
        self.has_expiring |= expires_ms < NEVER_MS
        return number, body

    def send(
        self,
        producer: str,
        connection: int,
        topic: str,
        qos: Qos,
        carriers: Iterable[CarrierOf],
        partition: int,
        now_ms: int,
    ) -> Send:
        """Messages are about to be sent."""
        one = Send(len(self.sends), producer, connection, topic, qos, tuple(carriers), partition, now_ms)
        self.sends.append(one)
        self.counts[f"sent {qos.value}"] += 1
        return one

    def sent(self, send: Send, code: int, places: Iterable[tuple[int, int]], now_ms: int) -> None:
        """The answer to a send."""
        send.completed_ms = now_ms
        send.code = code
        send.outcome = outcome_of(code)
        send.places = tuple(places)
        self.counts[f"send {send.outcome}"] += 1
        if code:
            self.counts[f"code {code}"] += 1
            return
        if send.qos is Qos.NO:
            return  # answered along with a stronger one
        if len(send.places) != len(send.carriers):
            violate("I01", f"{len(send.places)} places for {len(send.carriers)} messages of {send}")
        if send.qos is Qos.RECEIVE:
            return
        if send.transaction >= 0:
            return
        for carrier, (partition, index) in zip(send.carriers, send.places, strict=True):
            is_elsewhere = send.partition >= 0 and partition != send.partition and not carrier.uniq_id
            if is_elsewhere or (index < 0 and not send.due_ms):
                violate("I01", f"the place ({partition}, {index}) for {send}")

    # --- receiving ---------------------------------------------------------------------------------------------

    def body_of(self, topic: str, partition: int, index: int, body: bytes, at_ms: int = 0) -> Delivered:
        """A body that was handed out at that time: it must be one that was sent, and the same for ever."""
        head, _, _ = body.partition(b"|")
        number = int(head) if head.isdigit() else -1
        payload = self.payloads[number] if 0 <= number < len(self.payloads) else None
        if payload is None or payload.crc != crc32(body) or payload.topic != topic:
            violate("I03", f"{topic}/{partition}/{index} holds {body[:40]!r}, which nobody sent there: {payload}")
        seen = self.seen.setdefault((topic, partition), {})
        before = seen.setdefault(index, number)
        if before != number:
            violate("I02", f"{topic}/{partition}/{index} was message {before} and is {number} now")
        if number in self.delayed:
            self._check_delay(number, index, at_ms)
        self.counts["delivered"] += 1
        return Delivered(index, number, partition, index, index)

    # --- delays --------------------------------------------------------------------------------------------------

    def delay(self, send: Send, due_ms: int, due_latest_ms: int) -> None:
        """What is about to be sent is not to be delivered before that guarded time."""
        send.due_ms, send.due_latest_ms = due_ms, due_latest_ms
        self.counts["delays"] += 1
        for carrier in send.carriers:
            for number in carrier.ids:
                before = self.delayed.get(number)
                if before is None or before.due_ms > due_ms:
                    self.delayed[number] = send

    def _check_delay(self, number: int, index: int, at_ms: int) -> None:
        """I12: no delay is early."""
        send = self.delayed[number]
        now_ms = self.guarded_max(send.invoked_ms, at_ms)  # once released it is there, whatever clocks say
        if now_ms < send.due_ms:
            violate("I12", f"message {number}, at index {index}, came {send.due_ms - now_ms} ms early: {send}")
        if number not in self.first_seen_ms:
            self.first_seen_ms[number] = now_ms
            if not self.counts["fault clock jump"]:
                self.counts[f"delay late {lateness(self.stored_ms - send.due_latest_ms)}"] += 1

    def may_cancel(self, bodies: Iterable[bytes]) -> list[int]:
        """An operator cancels what waits; the numbers of its messages."""
        numbers = [int(body.partition(b"|")[0]) for body in bodies]
        self.cancelled.update(numbers)
        return numbers

    # --- what breaks -------------------------------------------------------------------------------------------

    def died(self, now_ms: int, *, loses_memory: bool) -> None:
        """The broker is gone, with all that was lent, and perhaps with what was only in memory."""
        if loses_memory:
            self.losses_ms.append(now_ms)
        for standing in self.standings.values():
            standing.holds.clear()

    def power_lost(self, now_ms: int, visible: dict[PartitionKey, int], durable: dict[AppKey, int]) -> None:
        """Of what was not visible a tail may be gone; ack indexes may fall to what was durable."""
        self.lost_tails.append((now_ms, visible))
        for key, standing in self.standings.items():
            standing.drop_floor(durable.get(key, 0))
