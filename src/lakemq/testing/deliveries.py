"""What consumers were lent and said, and the promises that can be held against it at once.

All from the clients' side. What a retry says counts for the message that it is.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from typing import Any

from lakemq.policy import ConsumerPolicy
from lakemq.testing.facts import AppKey, Asked, Delivered, PartitionKey, Payload, Said, lateness, violate
from lakemq.testing.rules import NEVER_MS, Rules
from lakemq.testing.standing import Hold, Release, Standing
from lakemq.wire.consume import RETRY_PARTITION


class Deliveries:
    """Where each app stands in each partition."""

    def __init__(self) -> None:
        self.payloads: list[Payload] = []
        self.seen: dict[PartitionKey, dict[int, int]] = {}  # index → payload, of all fetches
        self.counts: Counter[str] = Counter()
        self.kept_from: dict[PartitionKey, int] = {}  # what is before may be gone, or come back with lost power
        self.standings: dict[AppKey, Standing] = {}
        self.rules: dict[tuple[str, str], Rules] = {}  # by topic and app
        self.ordered: set[str] = set()  # topics
        self.has_expiring = False  # some messages may not be delivered because their time is over
        self.guarded: Callable[[int], int] = lambda at_ms: at_ms  # what the broker took for the time, at a time
        self.guarded_max: Callable[[int, int], int] = lambda since_ms, at_ms: at_ms  # the latest between two times
        self.dues: dict[tuple[str, str, int, int, int], tuple[int, int]] = {}  # when an attempt may be made, and must
        self.hurried: set[tuple[str, str]] = set()  # an operator had retries of that app tried at once
        self.resent: set[tuple[AppKey, int]] = set()  # dead letters that an operator gave back to their app

    def serves(self, topic: str, app: str, policy: Mapping[str, Any], *, is_ordered: bool = False) -> None:
        """An app is served by that policy."""
        known = self.rules.get((topic, app))
        filters = known.filters if known is not None else set()
        rules = self.rules[topic, app] = Rules(ConsumerPolicy(**policy), is_ordered or topic in self.ordered, filters)
        filters.add(rules.policy.filter)

    def may_resend(self, key: AppKey, index: int) -> None:
        """An operator gives a dead letter back to its app."""
        self.resent.add((key, index))

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
            rules = self.rules[topic, app] = Rules(is_topic_ordered=topic in self.ordered, filters={""})
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
        if left_ms is None:
            standing.holds.clear()
        else:
            unsure = {one.carrier for one in found if one.index in standing.acked and partition != RETRY_PARTITION}
            indexes = {one.index for one in found if one.carrier not in unsure} if not is_over else set()
            keys = {one.index: self.payloads[one.payload].key for one in found} if rules.is_keyed else {}
            span = frozenset(one.index for one in found)
            hold = Hold(connection, left_ms, left_ms + lease_ms, indexes, keys, span)
            standing.doubt(hold)
            self._check_holds(key, hold, found)
            standing.hold(hold)
        self.counts["lent"] += 1

    def _check_holds(self, key: AppKey, new: Hold, found: list[Delivered]) -> None:
        """I14: nobody else has it."""
        rules, standing = self.rules_of(key[0], key[1]), self.standing(key)
        is_shared = rules.policy.is_concurrent or key[2] == RETRY_PARTITION
        if rules.policy.is_concurrent and key[2] != RETRY_PARTITION:
            before = [one for one in standing.holds if one.since_ms < new.since_ms and one.is_active(new.since_ms)]
            held = sum(len(one.indexes) for one in before)
            if held >= rules.policy.concurrent_prefetch_size:
                violate("I14", f"{key}: {held} messages are in hand, and {new.connection} was lent more")
        for hold in standing.holds:
            if not hold.is_active(new.since_ms) or (hold.since_ms == new.since_ms and not new.indexes):
                continue  # or nobody knows which was first
            if not is_shared or any(one.index in hold.indexes for one in found):
                violate("I14", f"{key} was lent to {new.connection} at {new.since_ms}, but {hold} has it")
            if rules.is_keyed and key[2] != RETRY_PARTITION and set(new.keys.values()) & hold.keys_held():
                violate("I14", f"{key}: {new} was lent, but {hold} has one of these keys")

    def _check_fresh(self, key: AppKey, found: list[Delivered], left_ms: int | None) -> None:
        """Order (I10), what is left out, and how long a message that others wait for has to wait (I12)."""
        rules, standing = self.rules_of(key[0], key[1]), self.standing(key)
        for one in found:
            if rules.filters and rules.must_leave_out(self.payloads[one.payload].attributes):
                violate("I03", f"{key}: {one} was handed out, and no filter of {rules.filters} wants it")
            epoch, until_ms, told_ms = standing.stuck_until.get(one.index, (-1, 0, 0))
            if left_ms is None or epoch != standing.epoch or left_ms < told_ms:
                continue
            if self.guarded(left_ms) < until_ms and not self._comes_along(key, one, found):
                early = f"{until_ms - self.guarded(left_ms)} ms early" if until_ms < NEVER_MS else "after its last time"
                violate("I12", f"{key}: {one} failed, and came again {early}")
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

    def _comes_along(self, key: AppKey, one: Delivered, found: list[Delivered]) -> bool:
        """Whether it may be done with, and is here for its batch, which comes whole while any of it is not."""
        standing = self.standing(key)
        if not standing.may_pass(one.index, self.rules_of(key[0], key[1])):
            return False
        others = [other.index for other in found if other.carrier == one.carrier and other.index != one.index]
        return any(not standing.is_done(index) for index in others)

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

    def _due_by(self, key: AppKey, one: Delivered, due_ms: int, *, is_said: bool = False) -> None:
        """An attempt may be over, and then the next is due at that (guarded) time."""
        place = key[0], key[1], one.partition, one.home_index, one.attempt
        low_ms, high_ms = self.dues.get(place, (due_ms, 0))
        self.dues[place] = min(low_ms, due_ms), max(high_ms, due_ms) if is_said else high_ms

    def _check_due(self, key: AppKey, found: list[Delivered], at_ms: int) -> None:
        """I12: no retry is early, and each follows a failure."""
        for one in found:
            due = self.dues.get((key[0], key[1], one.partition, one.home_index, one.attempt - 1))
            now_ms = self.guarded(at_ms)
            if (key[0], key[1]) in self.hurried or ((key[0], key[1], one.partition), one.home_index) in self.resent:
                continue
            if due is None:
                violate("I12", f"{key}: attempt {one.attempt} of {one}, and nobody made the one before")
            elif now_ms < due[0]:
                violate("I12", f"{key}: {one} came {due[0] - now_ms} ms early")
            elif due[1]:  # else nobody knows when it was over
                self.counts[f"retry late {lateness(now_ms - due[1])}"] += 1

    def say(self, key: AppKey, said: Iterable[Said], now_ms: int) -> None:
        """A consumer is about to say how it went."""
        topic, app, _ = key
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
            self._due_by(key, one, self.guarded(now_ms) + pause_ms, is_said=True)

    def stuck(self, key: AppKey, asked: Asked, said: Said, sent_ms: int, now_ms: int) -> None:
        """It surely failed, and others wait for it: it may not come again before its pause is over, or at all."""
        standing, rules, index = self.standing(key), self.rules_of(key[0], key[1]), said.one.index
        if standing.epoch != asked.epoch:
            return
        standing.sure_failures[index] += 1
        attempts = standing.sure_failures[index]  # or more
        pause_ms = said.after_ms if said.after_ms >= 0 else rules.pause_ms(attempts)
        may_die = attempts > rules.policy.retry_times
        if rules.is_strict and any(not self.may_pass(key, one) for one in range(standing.floor, index)):
            may_die = False  # in order: not before those that are before it
        until_ms = NEVER_MS if may_die else self.guarded(sent_ms) + pause_ms
        standing.stuck_until[index] = standing.epoch, until_ms, now_ms
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

    def check_order(self, key: AppKey, asked: Asked, indexes: Iterable[int]) -> None:
        """I10: an ack was taken, so nothing that must come before these is unsettled: it would never be done first."""
        rules, standing = self.rules_of(key[0], key[1]), self.standing(key)
        if not rules.keeps_order or standing.epoch != asked.epoch or standing.seeks_open or asked.seeks_open:
            return
        taken = set(indexes)
        first = max(standing.skipped_to, standing.floor, self.kept_from.get((key[0], key[2]), 0))
        seen = self.seen.get((key[0], key[2]), {})
        for index in range(first, max(taken, default=0)):
            if index in taken or self.may_pass(key, index):
                continue
            behind = [one for one in taken if one > index]
            if rules.is_keyed and index in seen:
                name = self.payloads[seen[index]].key
                behind = [one for one in behind if one in seen and self.payloads[seen[one]].key == name]
            if behind and (rules.is_strict or (index in seen and index in standing.delivered)):
                violate("I10", f"{key}: an ack of {min(behind)} was taken, and {index} is not done with")

    def done_for_good(self, key: AppKey, asked: Asked, indexes: Iterable[int], now_ms: int) -> None:
        """The same for what whoever acked it surely had until then: it cannot fail any more.

        Of a batch that comes a second time one may be a retry already, which goes its own way.
        """
        standing = self.standing(key)
        if standing.epoch == asked.epoch and not standing.seeks_open and not asked.seeks_open:
            for index in indexes:
                if standing.lends[index] == 1:
                    standing.done_ms[index] = self.guarded_max(0, now_ms)

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
