"""What clients asked and were told, and the promises that can be held against it at once (reliability.md, section 4).

A violation is raised where it is seen. What can only be told at the end is in `invariants.py`.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from lakemq.checksum import crc32
from lakemq.errors import from_status
from lakemq.message import Qos

PartitionKey = tuple[str, int]  # topic, partition
AppKey = tuple[str, str, int]  # topic, app, partition


class ViolationError(AssertionError):
    """The broker broke a promise."""


def violate(invariant: str, text: str) -> None:
    """Say which promise is broken."""
    raise ViolationError(f"{invariant}: {text}")


class Payload(NamedTuple):
    """One message's content, made once, sent once or more."""

    id: int
    producer: str
    topic: str
    crc: int
    key: str  # the businessId


class CarrierOf(NamedTuple):
    """One message or batch of a request."""

    ids: tuple[int, ...]
    uniq_id: str = ""


@dataclass(slots=True)
class Send:
    """One attempt to store the messages of one topic."""

    number: int
    producer: str
    connection: int
    topic: str
    qos: Qos
    carriers: tuple[CarrierOf, ...]
    partition: int  # as asked for
    invoked_ms: int
    completed_ms: int = -1
    outcome: str = "unknown"  # until told otherwise: ok, failed, unknown
    code: int = -1
    places: tuple[tuple[int, int], ...] = ()  # partition and index of each carrier


@dataclass(frozen=True, slots=True)
class Delivered:
    """One message as it was handed out, of a batch one of its members."""

    index: int
    payload: int


@dataclass(slots=True)
class Hold:
    """A partition surely in the hands of one connection, until a time or until it may have been given back."""

    connection: int
    since_ms: int
    end_ms: int
    is_over: bool = False


@dataclass(slots=True)
class Standing:
    """What is known of one app in one partition."""

    floor: int = 0  # the ack index is at least this
    epoch: int = 0  # changes when the index may have been set to something else
    seeks_open: int = 0  # that may still happen
    passed: set[int] = field(default_factory=set)  # indexes that an ack was sent for
    skipped_to: int = 0  # those below were passed over by a seek, or never meant for this app
    delivered: set[int] = field(default_factory=set)
    releases_open: int = 0  # requests under way that may end a lease, whoever has it
    released_ms: int = -1  # when the last of them was over


class Asked(NamedTuple):
    """What was known when a question was asked; goes with its answer."""

    epoch: int
    floor: int
    seeks_open: int


def outcome_of(code: int) -> str:
    """How a code has to be taken: ok, unknown or failed."""
    if code == 0:
        return "ok"
    return "unknown" if from_status(code).maybe_written else "failed"


class History:
    """Everything that happened, as the clients saw it."""

    def __init__(self) -> None:
        self.payloads: list[Payload] = []
        self.sends: list[Send] = []
        self.seen: dict[PartitionKey, dict[int, int]] = {}  # index → payload, of all fetches
        self.standings: dict[AppKey, Standing] = {}
        self.holds: dict[AppKey, Hold] = {}
        self.counts: Counter[str] = Counter()
        self.lost_tails: list[tuple[int, dict[PartitionKey, int]]] = []  # power losses: when, and what was visible
        self.losses_ms: list[int] = []  # when what was in memory may have been lost
        self.dropped: set[str] = set()  # topics that are gone, or may be
        self.kept_from: dict[PartitionKey, int] = {}  # what is before may be gone, or come back with lost power

    # --- sending -----------------------------------------------------------------------------------------------

    def make_payload(self, producer: str, topic: str, key: str, filling: bytes) -> tuple[int, bytes]:
        """A new message's content."""
        number = len(self.payloads)
        body = b"%d|" % number + filling
        self.payloads.append(Payload(number, producer, topic, crc32(body), key))
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
        for carrier, (partition, index) in zip(send.carriers, send.places, strict=True):
            if index < 0 or (send.partition >= 0 and partition != send.partition and not carrier.uniq_id):
                violate("I01", f"the place ({partition}, {index}) for {send}")

    # --- receiving ---------------------------------------------------------------------------------------------

    def body_of(self, topic: str, partition: int, index: int, body: bytes) -> Delivered:
        """A body that was handed out: it must be one that was sent, and the same for ever."""
        head, _, _ = body.partition(b"|")
        number = int(head) if head.isdigit() else -1
        payload = self.payloads[number] if 0 <= number < len(self.payloads) else None
        if payload is None or payload.crc != crc32(body) or payload.topic != topic:
            violate("I03", f"{topic}/{partition}/{index} holds {body[:40]!r}, which nobody sent there: {payload}")
        seen = self.seen.setdefault((topic, partition), {})
        before = seen.setdefault(index, number)
        if before != number:
            violate("I02", f"{topic}/{partition}/{index} was message {before} and is {number} now")
        self.counts["delivered"] += 1
        return Delivered(index, number)

    def run_of(self, topic: str, partition: int, found: list[Delivered], wanted_index: int | None = None) -> None:
        """The messages of one answer follow one another."""
        for one, after in pairwise(found):
            if after.index != one.index + 1:
                violate("I02", f"{topic}/{partition}: index {after.index} follows {one.index}")
        if wanted_index is not None and found and not found[0].index <= wanted_index <= found[-1].index:
            violate("I02", f"{topic}/{partition}: {found[0].index} to {found[-1].index} is not {wanted_index}")

    def lent(
        self,
        key: AppKey,
        connection: int,
        found: list[Delivered],
        left_ms: int | None,
        lease_ms: int,
        *,
        is_over: bool,
    ) -> None:
        """Messages were lent at `left_ms`, or nobody knows when; `is_over` if the lease is no more."""
        standing = self.standing(key)
        standing.delivered.update(one.index for one in found)
        hold = self.holds.get(key)
        if hold is not None and not hold.is_over and left_ms is not None and hold.since_ms <= left_ms < hold.end_ms:
            violate("I14", f"{key} was lent to {connection} at {left_ms}, but {hold} has it")
        if left_ms is not None:
            is_over |= standing.releases_open > 0 or standing.seeks_open > 0 or standing.released_ms >= left_ms
            self.holds[key] = Hold(connection, left_ms, left_ms + lease_ms, is_over)
        else:
            self.holds.pop(key, None)
        self.counts["lent"] += 1

    def may_release(self, key: AppKey) -> None:
        """Something may end the lease, whose ever it is."""
        hold = self.holds.get(key)
        if hold is not None:
            hold.is_over = True

    def begin_release(self, key: AppKey) -> None:
        """A request goes out that may end the lease."""
        self.standing(key).releases_open += 1
        self.may_release(key)

    def end_release(self, key: AppKey, now_ms: int) -> None:
        """It is answered, or never will be."""
        standing = self.standing(key)
        standing.releases_open -= 1
        standing.released_ms = now_ms
        self.may_release(key)

    def connection_over(self, connection: int) -> None:
        """All that a connection had may be lent again."""
        for hold in self.holds.values():
            if hold.connection == connection:
                hold.is_over = True

    # --- where apps stand --------------------------------------------------------------------------------------

    def standing(self, key: AppKey) -> Standing:
        """What is known of that app there."""
        standing = self.standings.get(key)
        if standing is None:
            standing = self.standings[key] = Standing()
        return standing

    def ask(self, key: AppKey) -> Asked:
        """A question or an ack goes out."""
        standing = self.standing(key)
        return Asked(standing.epoch, standing.floor, standing.seeks_open)

    def told(self, key: AppKey, asked: Asked, index: int, first_index: int = 0) -> None:
        """An answer says that the ack index is `index`; I05 and I06."""
        standing = self.standing(key)
        self.counts["index told"] += 1
        if standing.epoch != asked.epoch or standing.seeks_open or asked.seeks_open:
            return
        if index < asked.floor:
            violate("I05", f"{key}: the ack index is {index}, it was {asked.floor} before")
        standing.floor = max(standing.floor, index)
        self.check_passed(key, index, first_index)

    def check_passed(self, key: AppKey, index: int, first_index: int = 0) -> None:
        """I06: all below the ack index was acked, or passed over on purpose, or dropped by retention."""
        standing = self.standing(key)
        first_index = max(first_index, self.kept_from.get((key[0], key[2]), 0))
        for one in range(max(standing.skipped_to, first_index), index):
            if one not in standing.passed:
                violate("I06", f"{key}: the ack index is {index}, but nobody acked {one}")

    def ack(self, key: AppKey, indexes: Iterable[int]) -> None:
        """An ack of messages that were delivered goes out."""
        self.standing(key).passed.update(indexes)

    def acked(self, key: AppKey, asked: Asked, low: int, high: int, *, may_be_ignored: bool) -> None:
        """An ack was taken: the index is behind it. JoyQueue's clients are not told of one that leaves a gap."""
        self.counts["ack ok"] += 1
        standing = self.standing(key)
        if standing.epoch != asked.epoch or standing.seeks_open or asked.seeks_open:
            return
        if low <= asked.floor or not may_be_ignored:
            standing.floor = max(standing.floor, high + 1)
            self.check_passed(key, high + 1)

    def seek(self, key: AppKey) -> None:
        """The index may be set to something else from now on."""
        standing = self.standing(key)
        self.begin_release(key)
        standing.seeks_open += 1
        standing.epoch += 1
        standing.floor = 0

    def sought(self, key: AppKey, end_index: int, now_ms: int) -> None:
        """It was, or was not: nothing of it is under way any more; the index may be anything up to `end_index`."""
        standing = self.standing(key)
        self.end_release(key, now_ms)
        standing.seeks_open -= 1
        standing.epoch += 1
        standing.floor = 0
        standing.skipped_to = max(standing.skipped_to, end_index)

    def retained(self, topic: str, partition: int, first_index: int) -> None:
        """Retention has dropped what is before that."""
        key = topic, partition
        self.kept_from[key] = max(self.kept_from.get(key, 0), first_index)

    # --- what breaks -------------------------------------------------------------------------------------------

    def died(self, now_ms: int, *, loses_memory: bool) -> None:
        """The broker is gone, with all that was lent, and perhaps with what was only in memory."""
        if loses_memory:
            self.losses_ms.append(now_ms)
        for hold in self.holds.values():
            hold.is_over = True

    def power_lost(self, now_ms: int, visible: dict[PartitionKey, int], durable: dict[AppKey, int]) -> None:
        """Of what was not visible a tail may be gone; ack indexes may fall to what was durable."""
        self.lost_tails.append((now_ms, visible))
        for key, standing in self.standings.items():
            standing.epoch += 1
            standing.floor = min(standing.floor, durable.get(key, 0))
