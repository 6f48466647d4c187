"""What is known of one app in one partition: how far it is, what it was lent, who has what, what may be passed over.

All of it from what clients asked and were told. Where that leaves a doubt, the broker gets the benefit of it.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from lakemq.testing.rules import Rules

_REMEMBERED_MS = 4000  # how long a piece of news may be under way


@dataclass(slots=True)
class Hold:
    """Messages surely in the hands of one connection, until a time or until they may have been given back."""

    connection: int
    since_ms: int
    end_ms: int
    indexes: set[int]
    keys: dict[int, str]  # of its messages, where order is by key
    span: frozenset[int] = frozenset()  # all that the lease was given

    def keys_held(self) -> set[str]:
        """The keys that it surely has in hand."""
        return {key for index, key in self.keys.items() if index in self.indexes}

    def is_active(self, at_ms: int) -> bool:
        """Whether it has them at that time."""
        return bool(self.indexes) and self.since_ms <= at_ms < self.end_ms


@dataclass(slots=True)
class Release:
    """A request that may end leases: on these messages, whoever has them (None: all), and all of the leases that a
    connection has of them; without messages all that it has."""

    indexes: frozenset[int] | None
    connection: int = 0
    ended_ms: int = -1

    def take_from(self, hold: Hold) -> None:
        """What a hold is not sure of any more."""
        is_its_own = hold.connection == self.connection and (not self.indexes or hold.span & self.indexes)
        if self.indexes is None or is_its_own:
            hold.indexes.clear()
        else:
            hold.indexes -= self.indexes


@dataclass(slots=True)
class Standing:
    """One app in one partition; what is said of a retry counts for the message that it is."""

    floor: int = 0  # the ack index is at least this
    epoch: int = 0  # changes when the index may have been set to something else
    seeks_open: int = 0  # that may still happen
    skipped_to: int = 0  # those below were passed over by a seek, or never meant for this app
    checked_to: int = 0  # all below may have been passed
    delivered: set[int] = field(default_factory=set)
    acked: set[int] = field(default_factory=set)  # an ack was sent for them
    done: set[int] = field(default_factory=set)  # and taken, above the floor
    done_ms: dict[int, int] = field(default_factory=dict)  # guarded time since when one surely needs nothing more
    lends: Counter[int] = field(default_factory=Counter)  # how often each was handed out
    failures: Counter[int] = field(default_factory=Counter)  # how often a consumer said that it failed
    sure_failures: Counter[int] = field(default_factory=Counter)  # how often that surely counted, in this epoch
    asked_dead: set[int] = field(default_factory=set)
    stuck_until: dict[int, tuple[int, int, int]] = field(default_factory=dict)  # epoch, guarded time, known since
    ordered_to: int = 0  # where order is strict: all below is done with
    holds: list[Hold] = field(default_factory=list)
    releases: list[Release] = field(default_factory=list)  # under way, or over a moment ago
    undone: dict[str, dict[int, None]] = field(default_factory=dict)  # by key: handed out, not known to be done

    # --- what may be passed ------------------------------------------------------------------------------------

    def may_be_dead(self, index: int, rules: Rules) -> bool:
        """Whether it was tried often enough, or somebody wanted it."""
        tries = self.failures[index] + (self.lends[index] if rules.counts_leases else 0)
        return index in self.asked_dead or (tries > 0 and tries > rules.policy.retry_times)

    def may_be_moved(self, index: int, rules: Rules) -> bool:
        """Whether it may wait to be tried again, out of the way of the others."""
        if rules.keeps_order or not rules.policy.is_retry:
            return False
        ran_out = rules.policy.error_times > 0 and self.lends[index] > 0
        return self.failures[index] > 0 or ran_out

    def may_pass(self, index: int, rules: Rules) -> bool:
        """Whether the app may be past it: acked, to be tried again, or dead."""
        return index in self.acked or self.may_be_moved(index, rules) or self.may_be_dead(index, rules)

    def is_done(self, index: int) -> bool:
        """Whether it is surely done with."""
        return index < self.floor or index in self.done

    def acks_taken(self, indexes: Iterable[int]) -> None:
        """These are done with; the index is behind all that are."""
        self.done.update(index for index in indexes if index >= self.floor)
        while self.floor in self.done:
            self.done.remove(self.floor)
            self.floor += 1

    def raise_floor(self, index: int) -> None:
        """The ack index is at least that."""
        if index > self.floor:
            self.floor = index
            self.done = {one for one in self.done if one > index}
            self.acks_taken(())

    def drop_floor(self, floor: int) -> None:
        """It may have fallen back."""
        self.epoch += 1
        self.floor = min(self.floor, floor)
        self.done.clear()
        self.done_ms.clear()
        self.sure_failures.clear()

    # --- who has what ------------------------------------------------------------------------------------------

    def doubt(self, hold: Hold) -> None:
        """A new hold is not sure of what a release may have taken away again."""
        for release in self.releases:
            if release.ended_ms < 0 or release.ended_ms >= hold.since_ms:
                release.take_from(hold)

    def hold(self, hold: Hold) -> None:
        """Somebody was lent messages."""
        self.holds = [one for one in self.holds if one.is_active(hold.since_ms)]
        if hold.indexes:
            self.holds.append(hold)

    def begin_release(self, release: Release) -> None:
        """A request goes out that may end leases."""
        self.releases.append(release)
        self.let_go(release)

    def end_release(self, release: Release, now_ms: int) -> None:
        """It is answered, or never will be."""
        release.ended_ms = now_ms
        self.let_go(release)
        self.releases = [one for one in self.releases if one.ended_ms < 0 or one.ended_ms > now_ms - _REMEMBERED_MS]

    def let_go(self, release: Release) -> None:
        """Leases may be over."""
        for hold in self.holds:
            release.take_from(hold)

    def holder_of(self, index: int, connection: int, at_ms: int) -> Hold | None:
        """The hold of that connection on that message, if it surely has it."""
        mine = [one for one in self.holds if one.connection == connection and index in one.indexes]
        return next((one for one in mine if one.is_active(at_ms)), None)
