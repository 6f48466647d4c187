"""What clients asked and were told, and the promises that can be held against it at once (reliability.md, section 4).

A violation is raised where it is seen. What can only be told at the end is in `invariants.py`.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from lakemq.checksum import crc32
from lakemq.errors import from_status
from lakemq.message import Qos
from lakemq.testing.rules import NEVER_MS, Rules
from lakemq.testing.standing import Hold, Release, Standing
from lakemq.wire.consume import RETRY_PARTITION

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
    attributes: Mapping[str, str] = {}  # those of its carrier
    expires_ms: int = NEVER_MS  # wall time


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


class Delivered(NamedTuple):
    """One message as it was handed out, of a batch one of its members; a retry as the message that it is."""

    index: int  # of a retry its id
    payload: int
    partition: int = 0  # where the message is stored
    home_index: int = -1
    carrier: int = -1  # the first index of what it came in
    attempt: int = 1


class Said(NamedTuple):
    """What a consumer says of one message."""

    one: Delivered
    outcome: int = 0  # 0 done, 1 failed, 2 a dead letter
    after_ms: int = -1  # to be tried again after so long; -1 as the policy says


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
        self.rules: dict[tuple[str, str], Rules] = {}  # by topic and app
        self.ordered: set[str] = set()  # topics
        self.has_expiring = False  # some messages may not be delivered because their time is over
        self.guarded: Callable[[int], int] = lambda at_ms: at_ms  # what the broker took for the time, at a time
        self.dues: dict[tuple[str, str, int, int, int], tuple[int, int]] = {}  # when an attempt may be made, and must
        self.counts: Counter[str] = Counter()
        self.lost_tails: list[tuple[int, dict[PartitionKey, int]]] = []  # power losses: when, and what was visible
        self.losses_ms: list[int] = []  # when what was in memory may have been lost
        self.dropped: set[str] = set()  # topics that are gone, or may be
        self.kept_from: dict[PartitionKey, int] = {}  # what is before may be gone, or come back with lost power

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
        return Delivered(index, number, partition, index, index)

    def run_of(self, topic: str, partition: int, found: list[Delivered], wanted_index: int | None = None) -> None:
        """The messages of one answer follow one another."""
        for one, after in pairwise(found):
            if after.index != one.index + 1:
                violate("I02", f"{topic}/{partition}: index {after.index} follows {one.index}")
        if wanted_index is not None and found and not found[0].index <= wanted_index <= found[-1].index:
            violate("I02", f"{topic}/{partition}: {found[0].index} to {found[-1].index} is not {wanted_index}")

    def rules_of(self, topic: str, app: str) -> Rules:
        """How that app is served there."""
        rules = self.rules.get((topic, app))
        if rules is None:
            rules = self.rules[topic, app] = Rules(is_topic_ordered=topic in self.ordered)
        return rules

    def lent(
        self,
        key: AppKey,
        connection: int,
        found: list[Delivered],
        left_ms: int | None,
        lease_ms: int,
        *,
        is_over: bool,
        asked_ms: int = 0,
        now_ms: int = 0,
    ) -> None:
        """Messages were lent at `left_ms`, or nobody knows when; `is_over` if the lease is no more."""
        topic, app, partition = key
        rules, standing = self.rules_of(topic, app), self.standing(key)
        at_ms = left_ms if left_ms is not None else now_ms
        if partition == RETRY_PARTITION:
            self._check_due(key, found, at_ms)
        else:
            self._check_fresh(key, found, left_ms)
        since_ms = left_ms if left_ms is not None else asked_ms
        for one in found:
            home = self.standing((topic, app, one.partition))
            home.delivered.add(one.home_index)
            home.lends[one.home_index] += 1
            if not rules.keeps_order:
                self._due_by(key, one, self.guarded(since_ms) + lease_ms + rules.pause_ms(one.attempt))
        indexes = {one.index for one in found}
        if left_ms is None:
            standing.holds.clear()
        else:
            self._check_holds(key, connection, found, left_ms)
            unsure = {one.carrier for one in found if one.index in standing.acked and partition != RETRY_PARTITION}
            indexes = {one.index for one in found if one.carrier not in unsure} if not is_over else set()
            keys = {self.payloads[one.payload].key for one in found} if rules.is_keyed else set()
            standing.hold(Hold(connection, left_ms, left_ms + lease_ms, indexes, keys))
        self.counts["lent"] += 1

    def _check_holds(self, key: AppKey, connection: int, found: list[Delivered], left_ms: int) -> None:
        """I14: nobody else has it."""
        rules, standing = self.rules_of(key[0], key[1]), self.standing(key)
        is_shared = rules.policy.is_concurrent or key[2] == RETRY_PARTITION
        keys = {self.payloads[one.payload].key for one in found}
        for hold in standing.holds:
            if not hold.is_active(left_ms):
                continue
            if not is_shared or any(one.index in hold.indexes for one in found):
                violate("I14", f"{key} was lent to {connection} at {left_ms}, but {hold} has it")
            if rules.is_keyed and key[2] != RETRY_PARTITION and keys & hold.keys:
                violate("I14", f"{key}: keys {keys} were lent to {connection} at {left_ms}, but {hold} has them")

    def _check_fresh(self, key: AppKey, found: list[Delivered], left_ms: int | None) -> None:
        """Order (I10), what is left out, and how long a message that others wait for has to wait (I12)."""
        rules, standing = self.rules_of(key[0], key[1]), self.standing(key)
        for one in found:
            if rules.filters and rules.must_leave_out(self.payloads[one.payload].attributes):
                violate("I03", f"{key}: {one} was handed out, and no filter of {rules.filters} wants it")
            epoch, until_ms, told_ms = standing.stuck_until.get(one.index, (-1, 0, 0))
            if left_ms is not None and epoch == standing.epoch and told_ms <= left_ms:
                if self.guarded(left_ms) < until_ms:
                    violate("I12", f"{key}: {one} failed, and came again {until_ms - self.guarded(left_ms)} ms early")
        if standing.seeks_open:
            return
        if rules.is_strict:
            first = max(standing.skipped_to, self.kept_from.get((key[0], key[2]), 0))
            for index in range(max(first, standing.ordered_to), found[0].index):
                if not self.may_pass(key, index):
                    violate("I10", f"{key}: {found[0].index} was handed out, and {index} is not done with")
            standing.ordered_to = max(standing.ordered_to, found[0].index)
        elif rules.is_keyed:
            self._check_key_order(key, found)

    def _check_key_order(self, key: AppKey, found: list[Delivered]) -> None:
        standing = self.standing(key)
        first = max(standing.skipped_to, self.kept_from.get((key[0], key[2]), 0))
        for one in found:
            name = self.payloads[one.payload].key
            undone = standing.undone.setdefault(name, {})
            for index in list(undone):
                if index < first or self.may_pass(key, index):
                    del undone[index]
                elif index < found[0].index:
                    violate("I10", f"{key}: {one.index} was handed out, and {index} of key {name!r} is not done with")
            undone[one.index] = None

    # --- failures ------------------------------------------------------------------------------------------------

    def _due_by(self, key: AppKey, one: Delivered, due_ms: int) -> None:
        """An attempt may be over, and then the next is due at that (guarded) time."""
        place = key[0], key[1], one.partition, one.home_index, one.attempt
        low_ms, high_ms = self.dues.get(place, (due_ms, due_ms))
        self.dues[place] = min(low_ms, due_ms), max(high_ms, due_ms)

    def _check_due(self, key: AppKey, found: list[Delivered], at_ms: int) -> None:
        """I12: no retry is early, and each follows a failure."""
        for one in found:
            due = self.dues.get((key[0], key[1], one.partition, one.home_index, one.attempt - 1))
            now_ms = self.guarded(at_ms)
            if due is None:
                violate("I12", f"{key}: attempt {one.attempt} of {one}, and nobody made the one before")
            elif now_ms < due[0]:
                violate("I12", f"{key}: {one} came {due[0] - now_ms} ms early")
            else:
                self.counts[f"retry late {lateness(now_ms - due[1])}"] += 1

    def say(self, key: AppKey, said: Iterable[Said], now_ms: int) -> None:
        """A consumer is about to say how it went."""
        topic, app, partition = key
        rules = self.rules_of(topic, app)
        for one, outcome, after_ms in said:
            home = self.standing((topic, app, one.partition))
            if outcome == 0:
                home.acked.add(one.home_index)
                continue
            self.counts["said dead" if outcome == 2 else "said failed"] += 1
            home.failures[one.home_index] += 1
            if outcome == 2:
                home.asked_dead.add(one.home_index)
            pause_ms = after_ms if after_ms >= 0 else rules.pause_ms(one.attempt)
            self._due_by(key, one, self.guarded(now_ms) + pause_ms)

    def stuck(self, key: AppKey, asked: "Asked", said: Said, sent_ms: int, now_ms: int) -> None:
        """It surely failed, and others wait for it: it may not come again before its pause is over."""
        standing, rules = self.standing(key), self.rules_of(key[0], key[1])
        pause_ms = said.after_ms if said.after_ms >= 0 else rules.pause_ms(1)
        if standing.epoch == asked.epoch:
            standing.stuck_until[said.one.index] = standing.epoch, self.guarded(sent_ms) + pause_ms, now_ms
            self.counts["stuck"] += 1

    # --- leases that may be over ---------------------------------------------------------------------------------

    def begin_release(self, key: AppKey, indexes: Iterable[int] | None = None, connection: int = 0) -> Release:
        """A request goes out that may end leases: on these messages, whoever has them, or on all."""
        release = Release(frozenset(indexes) if indexes is not None else None, connection)
        self.standing(key).begin_release(release)
        return release

    def end_release(self, key: AppKey, release: Release, now_ms: int) -> None:
        """It is answered, or never will be."""
        self.standing(key).end_release(release, now_ms)

    def may_release(self, key: AppKey) -> None:
        """Something may end all leases there."""
        self.standing(key).let_go(Release(None))

    def connection_over(self, connection: int) -> None:
        """All that a connection had may be lent again."""
        release = Release(frozenset(), connection)
        for standing in self.standings.values():
            standing.let_go(release)

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
        standing.raise_floor(index)
        self.check_passed(key, index, first_index)

    def may_pass(self, key: AppKey, index: int) -> bool:
        """Whether an app may be past a message: acked, to be tried again, dead, or not meant for it."""
        rules = self.rules_of(key[0], key[1])
        if self.standing(key).may_pass(index, rules):
            return True
        if not rules.may_skip and not self.has_expiring:
            return False
        number = self.seen.get((key[0], key[2]), {}).get(index)
        if number is None:
            return True  # nobody has read it yet, so nobody can tell
        payload = self.payloads[number]
        return payload.expires_ms < NEVER_MS or rules.may_leave_out(payload.attributes)

    def check_passed(self, key: AppKey, index: int, first_index: int = 0) -> None:
        """I06: all below the ack index was acked or may have failed, or was passed over, or dropped by retention."""
        standing = self.standing(key)
        first_index = max(first_index, self.kept_from.get((key[0], key[2]), 0), standing.skipped_to)
        for one in range(max(first_index, standing.checked_to), index):
            if not self.may_pass(key, one):
                violate("I06", f"{key}: the ack index is {index}, but nobody acked {one}")
        if not self.has_expiring and not self.rules_of(key[0], key[1]).may_skip:
            standing.checked_to = max(standing.checked_to, index)

    def acked(self, key: AppKey, asked: Asked, indexes: Iterable[int], *, may_be_ignored: bool) -> None:
        """An ack was taken: these are done with. JoyQueue's clients are not told of one that leaves a gap."""
        self.counts["ack ok"] += 1
        standing = self.standing(key)
        taken = sorted(indexes)
        if not taken or standing.epoch != asked.epoch or standing.seeks_open or asked.seeks_open:
            return
        if taken[0] <= asked.floor or not may_be_ignored:
            standing.acks_taken(taken)

    def seek(self, key: AppKey) -> Release:
        """The index may be set to something else from now on."""
        standing = self.standing(key)
        standing.seeks_open += 1
        standing.drop_floor(0)
        return self.begin_release(key)

    def sought(self, key: AppKey, release: Release, end_index: int, now_ms: int) -> None:
        """It was, or was not: nothing of it is under way any more; the index may be anything up to `end_index`."""
        standing = self.standing(key)
        self.end_release(key, release, now_ms)
        standing.seeks_open -= 1
        standing.drop_floor(0)
        standing.skipped_to = max(standing.skipped_to, end_index)

    def retained(self, topic: str, partition: int, first_index: int) -> None:
        """Retention has dropped what is before that."""
        key = topic, partition
        before = self.kept_from.get(key, 0)
        if first_index <= before:
            return
        self.kept_from[key] = first_index
        gone = Release(frozenset(range(before, first_index)))
        for place, standing in self.standings.items():
            if (place[0], place[2]) == key:
                standing.let_go(gone)

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


def lateness(late_ms: int) -> str:
    """As a histogram has it."""
    return next((f"<= {limit} ms" for limit in (0, 20, 50, 100, 500, 1000) if late_ms <= limit), "> 1000 ms")
