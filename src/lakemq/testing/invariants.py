"""The promises that can be held against a history only at its end: after all is healed, drained and read once more.

Numbers are those of reliability.md, section 4.
"""

from collections import Counter
from dataclasses import dataclass, field

from lakemq.delivery.settlement import DeadLetter
from lakemq.message import Qos
from lakemq.testing.history import AppKey, History, Origin, PartitionKey, Send, violate

_MAY_COPY = ("topic", "unknown")  # outcomes of a resend that may have left a copy
_MEMORY_MS = 1000  # what was taken longer ago than this is written, if nothing broke meanwhile


@dataclass(slots=True)
class PartitionRead:
    """All of one partition, as it was read at the end."""

    first_index: int
    payloads: list[int]  # from the first index on

    @property
    def end_index(self) -> int:
        """The index behind the last."""
        return self.first_index + len(self.payloads)


@dataclass(slots=True)
class FinalState:
    """What was found at the end."""

    partitions: dict[PartitionKey, PartitionRead] = field(default_factory=dict)
    ack_indexes: dict[AppKey, int] = field(default_factory=dict)
    dead: list[tuple[AppKey, DeadLetter]] = field(default_factory=list)
    grown: frozenset[str] = frozenset()  # topics that got more partitions meanwhile
    ordered: frozenset[str] = frozenset()
    forgets_uniq_ids: bool = False  # the broker remembers so few that a copy may be stored


def check(history: History, final: FinalState) -> None:
    """All of them; ViolationError for the first that does not hold."""
    places = _places(history, final)
    _check_acked(history, final, places)
    _check_seen(history, final)
    _check_origin(history, final)
    _check_copies(history, final, places)
    _check_resent(history, final)
    _check_transactions(history, final, places)
    _check_cancelled(history, places)
    _check_order(history, final)
    _check_keys(history, final, places)
    _check_dead(history, final)
    _check_delivered(history, final)


Places = dict[int, list[tuple[int, int]]]


def _places(history: History, final: FinalState) -> Places:
    """Where each payload is: partition and index. Copies that an operator had made stand for nobody's send."""
    places: Places = {}
    for (topic, partition), read in final.partitions.items():
        for index, payload in enumerate(read.payloads, read.first_index):
            if (topic, partition, index) not in history.copies:
                places.setdefault(payload, []).append((partition, index))
    return places


# --- I01 -------------------------------------------------------------------------------------------------------------


def _check_acked(history: History, final: FinalState, places: Places) -> None:
    """Each acked message is where its producer was told, as far as its level promises for what broke."""
    for send in history.sends:
        if send.outcome != "ok" or send.topic in history.dropped or send.transaction >= 0:
            continue
        if send.due_ms and send.qos is not Qos.NO:
            _check_waited(history, final, send, places)
        elif send.qos in (Qos.FLUSH, Qos.WRITE):
            _check_places(history, final, send)
        elif send.qos is Qos.RECEIVE and _must_be_written(history, send):
            missing = [one for carrier in send.carriers for one in carrier.ids if one not in places]
            if missing and not _may_be_retained(final, send.topic):
                violate("I01", f"received, nothing broke after it, and {missing} are gone: {send}")


def _check_waited(history: History, final: FinalState, send: Send, places: Places) -> None:
    """What was to wait is somewhere now, unless an operator cancelled it."""
    if _may_be_retained(final, send.topic):
        return
    if send.qos is not Qos.FLUSH and not _must_be_written(history, send):
        return
    for carrier in send.carriers:
        for number in carrier.ids:
            if number not in places and number not in history.cancelled:
                violate("I01", f"message {number} was to wait, and is lost: {send}")


def _check_places(history: History, final: FinalState, send: Send) -> None:
    for carrier, (partition, index) in zip(send.carriers, send.places, strict=True):
        if send.qos is Qos.WRITE and _may_be_lost(history, send, partition, index):
            continue
        read = final.partitions.get((send.topic, partition))
        for at, payload in enumerate(carrier.ids, index):
            if read is None or at >= read.end_index:
                violate("I01", f"{send.topic}/{partition}/{at} is gone: message {payload} of {send}")
            elif at >= read.first_index and read.payloads[at - read.first_index] != payload:
                found = read.payloads[at - read.first_index]
                violate("I01", f"{send.topic}/{partition}/{at} is message {found}, not {payload} of {send}")


def _may_be_lost(history: History, send: Send, partition: int, index: int) -> bool:
    """Whether the power went when this was written and not synced."""
    return any(
        when_ms >= send.invoked_ms and index >= visible.get((send.topic, partition), 0)
        for when_ms, visible in history.lost_tails
    )


def _must_be_written(history: History, send: Send) -> bool:
    """Whether nothing broke for long enough after it was taken, and the power never failed since."""
    is_calm = not any(send.invoked_ms <= one <= send.completed_ms + _MEMORY_MS for one in history.losses_ms)
    return is_calm and not any(when_ms >= send.invoked_ms for when_ms, _ in history.lost_tails)


def _may_be_retained(final: FinalState, topic: str) -> bool:
    return any(read.first_index > 0 for (name, _), read in final.partitions.items() if name == topic)


# --- I02, I09 --------------------------------------------------------------------------------------------------------


def _check_seen(history: History, final: FinalState) -> None:
    """What was ever read is still there, short of retention."""
    for key, seen in history.seen.items():
        if key[0] in history.dropped:
            continue
        read = final.partitions.get(key)
        end = read.end_index if read is not None else 0
        for index, payload in seen.items():
            if index >= end:
                violate("I09", f"{key}: index {index} was read (message {payload}) and is gone; the end is {end}")


# --- I03, I04 --------------------------------------------------------------------------------------------------------


def _check_origin(history: History, final: FinalState) -> None:
    """Nothing that was refused is there, or was ever seen."""
    possible: set[int] = set()
    for send in history.sends:
        if send.outcome != "failed":
            possible.update(one for carrier in send.carriers for one in carrier.ids)
    for key, seen in history.seen.items():
        for index, payload in seen.items():
            if payload not in possible:
                tries = [send for send in history.sends if any(payload in one.ids for one in send.carriers)]
                violate("I03", f"{key}/{index} is message {payload}, which was refused: {tries}")


def _check_copies(history: History, final: FinalState, places: Places) -> None:
    """No more copies than attempts that may have stored one; with a UNIQ_ID one at the most."""
    attempts: Counter[int] = Counter()
    unique: set[int] = set()
    for send in history.sends:
        for carrier in send.carriers:
            if send.outcome != "failed":
                attempts.update(carrier.ids)
            if carrier.uniq_id and not final.forgets_uniq_ids:
                unique.update(carrier.ids)
    for payload, found in places.items():
        allowed = 1 if payload in unique else attempts[payload]
        if len(found) > allowed:
            violate("I04", f"message {payload} is at {found}; sent {attempts[payload]} times, {allowed} may be there")


def _check_resent(history: History, final: FinalState) -> None:
    """A copy of a dead letter is there once, if an operator sent it to its topic, and says of which it is one."""
    copies = _copies(history, final)
    wishes = Counter(one.origin for one in history.resends if one.outcome in _MAY_COPY)
    for origin, payloads in copies.items():
        allowed = wishes[origin] if final.forgets_uniq_ids else min(wishes[origin], 1)
        if len(payloads) > allowed:
            violate("I04", f"messages {payloads} are copies of {origin}; {allowed} may be there")
    for one in history.resends:
        topic, payloads = one.key[0], copies.get(one.origin, [])
        if one.outcome == "topic" and not (payloads or topic in history.dropped or _may_be_retained(final, topic)):
            violate("I01", f"a dead letter went to its topic, and is not there: {one}")
        original = history.seen.get(one.key, {}).get(one.index)
        if original is not None and any(payload != original for payload in payloads):
            violate("I03", f"messages {payloads} are there as copies of {original}: {one}")


def _copies(history: History, final: FinalState) -> dict[Origin, list[int]]:
    """What is there of each dead letter that went to its topic."""
    copies: dict[Origin, list[int]] = {}
    for (topic, partition), read in final.partitions.items():
        for index, payload in enumerate(read.payloads, read.first_index):
            origin = history.copies.get((topic, partition, index))
            if origin is not None:
                copies.setdefault(origin, []).append(payload)
    return copies


# --- I11, delays -----------------------------------------------------------------------------------------------------


def _check_transactions(history: History, final: FinalState, places: Places) -> None:
    """Each is there as a whole or not at all, as its producer was told."""
    seen = {number for found in history.seen.values() for number in found.values()}
    for one in history.transactions:
        if one.topic not in history.dropped:
            one.check(seen | set(places), may_be_retained=_may_be_retained(final, one.topic))


def _check_cancelled(history: History, places: Places) -> None:
    """What was cancelled while it waited never comes."""
    tries = Counter(one for send in history.sends for carrier in send.carriers for one in carrier.ids)
    for number, told_ms in history.surely_cancelled.items():
        is_lost = any(when_ms >= told_ms for when_ms, _ in history.lost_tails)
        if number in places and tries[number] == 1 and not is_lost:
            violate("I12", f"message {number} was cancelled, and is at {places[number]}")


# --- I10 -------------------------------------------------------------------------------------------------------------


def _check_order(history: History, final: FinalState) -> None:
    """What one producer sent once each is in the order of sending, in every partition."""
    order: dict[int, int] = {}
    tries: Counter[int] = Counter()
    for send in history.sends:
        for carrier in send.carriers:
            tries.update(carrier.ids)
            for payload in carrier.ids:
                order.setdefault(payload, len(order))
    apart = set(history.delayed)  # those come in an order of their own
    for send in history.sends:
        if send.transaction >= 0:
            apart.update(one for carrier in send.carriers for one in carrier.ids)
    for key, read in final.partitions.items():
        last: dict[str, int] = {}
        for index, number in enumerate(read.payloads, read.first_index):
            producer = history.payloads[number].producer
            if tries[number] > 1 or number in apart or (*key, index) in history.copies:
                continue
            before = last.get(producer)
            if before is not None and order[before] > order[number]:
                violate("I10", f"{key}: message {number} stands behind {before}, which was sent after it")
            last[producer] = number


def _check_keys(history: History, final: FinalState, places: Places) -> None:
    """On an ordered topic all messages of a key are in one partition, if the producer left it to the broker."""
    chosen: dict[tuple[str, str], tuple[int, int]] = {}
    for send in history.sends:
        if send.topic not in final.ordered or send.topic in final.grown or send.partition >= 0:
            continue
        for carrier in send.carriers:
            for number in carrier.ids:
                key = history.payloads[number].key
                for partition, _ in places.get(number, ()):
                    first = chosen.setdefault((send.topic, key), (partition, number))
                    if first[0] != partition:
                        violate("I10", f"{send.topic}: key {key!r} is in {first[0]} and, message {number}, {partition}")


# --- I06, I07, I13 ---------------------------------------------------------------------------------------------------


def _check_dead(history: History, final: FinalState) -> None:
    """No message is a dead letter twice, nor without a reason, nor after it was done with."""
    known: dict[tuple[AppKey, int], DeadLetter] = {}
    for key, row in final.dead:
        standing = history.standing(key)
        if row.message_index < standing.skipped_to or key[0] in history.dropped:
            continue
        if (key, row.message_index) in history.resent:
            continue
        before = known.setdefault((key, row.message_index), row)
        if before is not row:
            violate("I13", f"{key}: {row.message_index} is a dead letter twice: {before} and {row}")
        if row.died_ms > standing.done_ms.get(row.message_index, row.died_ms):
            violate("I13", f"{key}: {row} was acked at {standing.done_ms[row.message_index]}")
        if row.cause == "expired":
            number = history.seen[key[0], key[2]][row.message_index]
            if history.payloads[number].expires_ms > row.died_ms:
                violate("I13", f"{key}: {row} has not expired: {history.payloads[number]}")
        elif not standing.may_be_dead(row.message_index, history.rules_of(key[0], key[1])):
            tries = standing.lends[row.message_index], standing.failures[row.message_index]
            violate("I13", f"{key}: {row} was lent {tries[0]} times and failed {tries[1]} times")


def _check_delivered(history: History, final: FinalState) -> None:
    """Every app has done with every message that was meant for it, or it is a dead letter; and it is at the end."""
    dead = {(key, row.message_index) for key, row in final.dead}
    for key, index in final.ack_indexes.items():
        topic, app, partition = key
        if topic in history.dropped:
            continue
        read = final.partitions.get((topic, partition))
        first, end = (read.first_index, read.end_index) if read is not None else (0, 0)
        if index != end:
            violate("I13", f"{key}: the ack index is {index}, the end {end}, and nothing is pending")
        history.check_passed(key, index, first)
        first = max(first, history.kept_from.get((topic, partition), 0))
        standing, rules = history.standing(key), history.rules_of(topic, app)
        for one in range(max(standing.skipped_to, first), end):
            if (key, one) in dead or (one in standing.acked and one in standing.delivered):
                continue
            if rules.filters and rules.may_leave_out(history.payloads[history.seen[topic, partition][one]].attributes):
                continue
            if one not in standing.delivered:
                violate("I07", f"{key}: index {one} was never delivered")
            violate("I13", f"{key}: index {one} is neither acked nor a dead letter, and nothing is pending")
