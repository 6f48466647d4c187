"""Consumers say what became of the messages they were lent, or say nothing in time.

COMMIT_ACK and SETTLE name messages one by one. Whatever they say of one partition is put into one record: what is done
with, what is tried again later, what is a dead letter; answered once that is written. Of a topic that keeps its order a
message that failed is not tried again beside the others: it comes first again, and what is behind it waits.
"""

from collections.abc import Callable, Collection
from itertools import chain, pairwise
from typing import NamedTuple, ParamSpec

from lakemq.broker.access import Access
from lakemq.broker.answers import code_for, code_of, encode
from lakemq.broker.config import BrokerConfig
from lakemq.broker.consume import Consuming
from lakemq.broker.events import Now
from lakemq.broker.ledger import Ledger
from lakemq.broker.lending import Lending
from lakemq.broker.metrics import Metrics
from lakemq.broker.outcomes import BY_POLICY, Outcomes
from lakemq.broker.sessions import Connection
from lakemq.broker.waiters import Buffers, CommandReply, Waiters
from lakemq.cluster.metadata import Subscription
from lakemq.delivery.guarded_clock import GuardedClock
from lakemq.delivery.intervals import Intervals, runs_of
from lakemq.delivery.loans import Lease, Loans, Runs, Share
from lakemq.delivery.order import overtaken, overtaken_in_key
from lakemq.delivery.retries import attempt_number, retry_id_of
from lakemq.delivery.settlement import Acked, AckedRuns, DeadLetter, Entry, LeaseEnded, Retried, Retry, Stuck
from lakemq.errors import AckError, BadParameterError, IndexOutOfRangeError, LakeMQError, RetryStoreError
from lakemq.message import AckType
from lakemq.policy import ConsumerPolicy
from lakemq.wire.commands import Ack
from lakemq.wire.consume import (
    RETRY_PARTITION,
    CommitAck,
    CommitAckAck,
    PartitionCode,
    TopicCodes,
)
from lakemq.wire.dialect import Dialect
from lakemq.wire.header import Header
from lakemq.wire.own import Settle, SettleAck, SettledCode, Settlement, TopicSettledCodes

P = ParamSpec("P")
DONE, RETRY, DEAD = 0, 1, 2
_OUTCOMES = frozenset((DONE, RETRY, DEAD))
_TIMED_OUT = "the consumer did not ack in time"
_REASONS = {AckType.TIMEOUT: "the consumer said: time-out", AckType.EXCEPTION: "the consumer said: exception"}
_FAR = 1 << 62
_FEW = 8
_EXPIRED_COUNT_MAX = 5000  # messages of one lease that become retries at a time; the rest are lent once more


class Wish(NamedTuple):
    """What a consumer says of one message."""

    number: int  # its index; of a retry that of the attempt
    outcome: int = DONE
    after_ms: int = BY_POLICY
    reason: str = ""


class Settling:
    """Takes outcomes in."""

    def __init__(
        self,
        ledger: Ledger,
        config: BrokerConfig,
        access: Access,
        waiters: Waiters,
        metrics: Metrics,
        consuming: Consuming,
        outcomes: Outcomes,
        clock: GuardedClock,
    ) -> None:
        self._ledger = ledger
        self._group = ledger.group
        self._config = config
        self._access = access
        self._waiters = waiters
        self._metrics = metrics
        self._consuming = consuming
        self._outcomes = outcomes
        self._clock = clock

    # --- commands ----------------------------------------------------------------------------------------------

    def commit_ack(self, connection: Connection, header: Header, command: CommitAck, now: Now) -> None:
        """Take acks; answered when they are written."""
        connection.check_app(command.app, self._config.admin_app)
        woken: dict[Lending, None] = {}
        entries = []
        for said in command.topics:
            codes = []
            for one in said.partitions:
                numbers = [ack.index for ack in one.acks]
                is_all_done = not any(ack.type for ack in one.acks)
                wishes = None if is_all_done else [_wish_of(ack.index, ack.type) for ack in one.acks]
                where = connection, said.topic, command.app, one.partition
                code = self._code(connection, self._settle, *where, numbers, wishes, woken, now)
                codes.append(PartitionCode(one.partition, code))
            entries.append(TopicCodes(said.topic, tuple(codes)))
        self._after_write(connection, header, CommitAckAck(tuple(entries)), _refused_acks, now)
        for lending in woken:
            self._consuming.wake(lending, now)

    def settle(self, connection: Connection, header: Header, command: Settle, now: Now) -> None:
        """The same with more to say of each message."""
        connection.check_app(command.app, self._config.admin_app)
        woken: dict[Lending, None] = {}
        entries = []
        for said in command.topics:
            by_partition: dict[int, list[Wish]] = {}
            for one in said.settlements:
                by_partition.setdefault(one.partition, []).append(_wish_said(one))
            codes = {}
            for partition, wishes in by_partition.items():
                numbers = [wish.number for wish in wishes]
                failing = wishes if any(wish.outcome for wish in wishes) else None
                where = connection, said.topic, command.app, partition
                codes[partition] = self._code(connection, self._settle, *where, numbers, failing, woken, now)
            told = [SettledCode(one.partition, one.index, codes[one.partition]) for one in said.settlements]
            entries.append(TopicSettledCodes(said.topic, tuple(told)))
        self._after_write(connection, header, SettleAck(tuple(entries)), _refused_settlements, now)
        for lending in woken:
            self._consuming.wake(lending, now)

    def _settle(
        self,
        connection: Connection,
        name: str,
        app: str,
        partition: int,
        numbers: list[int],
        wishes: list[Wish] | None,
        woken: dict[Lending, None],
        now: Now,
    ) -> None:
        """One partition's part of a request; without wishes all of these numbers are done with."""
        full = connection.full_topic(name)
        topic, subscription = self._access.subscription(full, app, now)
        self._access.check_lends(topic, app)
        lending = self._consuming.lending(topic, subscription)
        wrong = {wish.outcome for wish in wishes or ()} - _OUTCOMES
        if wrong:
            raise BadParameterError(f"outcome {min(wrong)} is none: 0 done, 1 retry, 2 dead letter")
        if partition == RETRY_PARTITION:
            self._settle_retries(connection, lending, subscription, wishes or list(map(Wish, numbers)), now)
        else:
            self._consuming.check_leads(topic, partition)
            if numbers:
                self._settle_lent(connection, lending, subscription, partition, numbers, wishes, now)
        woken[lending] = None

    # --- messages of a partition -------------------------------------------------------------------------------------

    def _settle_lent(
        self,
        connection: Connection,
        lending: Lending,
        subscription: Subscription,
        partition: int,
        numbers: list[int],
        wishes: list[Wish] | None,
        now: Now,
    ) -> None:
        policy = subscription.consumer
        assert policy is not None
        runs = runs_of(numbers)
        if len(set(numbers)) != len(numbers):
            raise AckError(f"partition {partition}: an index is named twice")
        loans = lending.loans
        is_joyqueue = connection.dialect is Dialect.JOYQUEUE
        state, consumer = self._ledger.state, connection.port.id
        base = max(state.acks.get(lending.number, partition), self._group.first_index(lending.topic_number, partition))
        beyond = state.acks.beyond(lending.number, partition)
        if is_joyqueue and any(
            max(beyond.gap_from(after)[0], base) < following for (_, after), (following, _) in pairwise(runs)
        ):  # what lies between them may be done with, or not have been meant for the app
            raise AckError(f"the indexes of partition {partition} are not a run without gaps")
        if runs[-1][1] > self._group.visible_index(lending.topic_number, partition):
            raise IndexOutOfRangeError(f"index {runs[-1][1] - 1} was never handed out")
        first = runs[0][0]
        if is_joyqueue and not policy.is_concurrent and first > base:
            # A lease begins above the ack index where an earlier ack was refused by the disk, or a message waits.
            is_lent = loans.begins_lease(partition, consumer, first)
            if not is_lent:
                return  # its server changes nothing and says so to nobody
        shares = loans.shares(partition, runs)
        # Whoever reads by partition acks from where the app is; all else must have been lent.
        wrong = loans.not_to_settle(partition, consumer, shares, base, beyond)
        if wrong is not None:
            raise AckError(
                f"indexes {wrong[0]} to {wrong[1] - 1} of partition {partition} are not lent to this connection"
            )
        # Those that this speaks of. The connection may have others in the partition, of which nothing is said.
        mine = loans.touched(partition, consumer, runs) if is_joyqueue or wishes is not None else []
        if lending.is_ordered or policy.is_sequential:
            self._check_order(lending, policy, partition, numbers, wishes, consumer)
        try:
            if wishes is None and first >= base and not beyond.touches_any(runs):
                self._write(lending, partition, [], numbers, runs, shares, now)  # as nearly always
            else:
                self._settle_fresh(lending, policy, partition, wishes or list(map(Wish, numbers)), consumer, now)
        except RetryStoreError:
            for lease in mine:
                loans.release(lease)  # it comes again at once, rather than being lost
            raise
        if is_joyqueue:  # its clients ack all they want to of a lease at once
            for lease in mine:
                loans.release(lease)

    # --- order -------------------------------------------------------------------------------------------------

    def _check_order(
        self,
        lending: Lending,
        policy: ConsumerPolicy,
        partition: int,
        numbers: list[int],
        wishes: list[Wish] | None,
        consumer: int,
    ) -> None:
        """AckError where something would be settled behind a message that is not: it would never come again.

        That it failed may be said of such a message, for it comes again in any case.
        """
        failed = {wish.number for wish in wishes or () if wish.outcome == RETRY}
        settled = [number for number in numbers if number not in failed]
        before = self._overtaken(lending, policy, partition, numbers, settled, consumer) if settled else None
        if before is None:
            return
        if not policy.is_concurrent:
            self._let_go(lending.loans, partition, before, consumer)
        raise AckError(
            f"partition {partition} keeps its order and message {before} is not settled yet: "
            "settle that first; what is behind it comes again"
        )

    def _let_go(self, loans: Loans, partition: int, before: int, consumer: int) -> None:
        """Nobody has the message before: who has those behind it must not keep it from being lent."""
        if loans.lease_of(partition, before) is None:
            for lease in [one for one in loans.leases(partition) if one.consumer == consumer]:
                loans.release(lease)

    def _overtaken(
        self,
        lending: Lending,
        policy: ConsumerPolicy,
        partition: int,
        named: Collection[int],
        settled: Collection[int],
        consumer: int | None = None,
    ) -> int | None:
        """An unsettled message that nothing is said of and that must be settled before one of these."""
        acks = self._ledger.state.acks
        base = max(acks.get(lending.number, partition), self._group.first_index(lending.topic_number, partition))
        beyond = acks.beyond(lending.number, partition)
        before = overtaken(base, beyond, named, settled if len(settled) < _FEW else set(settled))
        if before is None or not policy.is_concurrent:
            return before
        named = set(named)
        by_lease: dict[Lease, list[int]] = {}
        for number in settled:
            lease = lending.loans.lease_of(partition, number)
            if lease is not None and consumer in (None, lease.consumer):
                by_lease.setdefault(lease, []).append(number)
            elif number > before and number not in beyond:
                return before  # nobody's, or another's: which key it has is not known here
        found = (overtaken_in_key(lease, named, set(some)) for lease, some in by_lease.items())
        return next((one for one in found if one is not None), None)

    def _settle_fresh(
        self,
        lending: Lending,
        policy: ConsumerPolicy,
        partition: int,
        wishes: list[Wish],
        consumer: int,
        now: Now,
    ) -> None:
        """Those that were not settled before, and are that consumer's to decide on."""
        acks = self._ledger.state.acks
        fresh = [
            wish
            for wish in wishes
            if not acks.is_acked(lending.number, partition, wish.number)
            and (wish.outcome == DONE or self._may_fail(lending, partition, wish.number, consumer, now))
        ]
        failed = [wish for wish in fresh if wish.outcome != DONE]
        if failed and (lending.is_ordered or policy.is_sequential):
            self._settle_in_order(lending, policy, partition, fresh, now)
        elif fresh:
            self._settle_each(lending, policy, partition, fresh, now)

    def _may_fail(self, lending: Lending, partition: int, index: int, consumer: int, now: Now) -> bool:
        """Whether that consumer's word counts: not if somebody else has the message now, nor if it was said before."""
        lease = lending.loans.lease_of(partition, index)
        if lease is not None:
            return lease.consumer == consumer
        stuck = self._ledger.state.setbacks.stuck(lending.number, partition).get(index)
        return stuck is None or stuck.due_ms <= self._clock.read(now)

    def _settle_each(
        self, lending: Lending, policy: ConsumerPolicy, partition: int, wishes: list[Wish], now: Now
    ) -> None:
        entries: list[Entry] = []
        back: list[int] = []
        done = [wish.number for wish in wishes if wish.outcome == DONE]
        again = [wish for wish in wishes if wish.outcome == RETRY]
        if again and not policy.is_retry:
            back = [wish.number for wish in again]
            self._metrics.settled[lending.topic, lending.app, "released"] += len(back)
        elif again:
            asked = [(wish.number, wish.after_ms, wish.reason) for wish in again]
            entries += self._outcomes.failed(lending, policy, partition, asked, now)
            done += [wish.number for wish in again]
        for wish in wishes:
            if wish.outcome == DEAD:
                entries += self._dead(lending, partition, wish, entries, 1, now)
                done.append(wish.number)
        self._write_done(lending, partition, entries, done, now)
        for first, after in runs_of(back):
            lending.loans.give_back(partition, first, after)

    def _settle_in_order(
        self,
        lending: Lending,
        policy: ConsumerPolicy,
        partition: int,
        wishes: list[Wish],
        now: Now,
        *,
        is_next: bool = False,
    ) -> None:
        """The first that failed comes first again, with all behind it; if order is by key, with all of its key."""
        entries: list[Entry] = []
        done: list[int] = []
        back = Intervals()
        left: Runs = []
        first_failed = _FAR  # where nothing at all may be settled behind it
        for wish in sorted(wishes):
            if wish.number in back or wish.number > first_failed:
                continue
            if wish.outcome == DONE:
                done.append(wish.number)
                continue
            named = [*done, wish.number]
            may_die = is_next or wish.outcome == DEAD
            may_die = may_die or self._overtaken(lending, policy, partition, named, named[-1:]) is None
            more = self._stuck_entries(lending, policy, partition, wish, entries, may_die, now)
            entries += more
            behind = self._behind(lending, policy, partition, wish.number)
            if any(isinstance(entry, DeadLetter) for entry in more):
                done.append(wish.number)
            else:
                back.add(wish.number, wish.number + 1)
                back.add_all(behind)
                if not policy.is_concurrent or not behind:  # of what is in no lease the key is not known
                    first_failed = wish.number
            if wish.outcome == RETRY:  # its consumer expects to see what is behind it again, dead or not
                left += behind
        self._write_done(lending, partition, entries, done, now)
        for run in left:
            lending.loans.take_out(partition, *run)
        for run in back:
            lending.loans.lend_again(partition, *run)

    def _behind(self, lending: Lending, policy: ConsumerPolicy, partition: int, number: int) -> Runs:
        """The lent messages from that one on that must not be settled before it."""
        if policy.is_concurrent:
            lease = lending.loans.lease_of(partition, number)
            return lease.open_behind(number) if lease is not None else []
        return [run for lease in lending.loans.leases(partition) for run in lease.open.within(number, _FAR)]

    def _stuck_entries(
        self,
        lending: Lending,
        policy: ConsumerPolicy,
        partition: int,
        wish: Wish,
        entries: list[Entry],
        may_die: bool,
        now: Now,
    ) -> list[Entry]:
        """One that others wait for failed: again after a pause, or out of their way if it is the first of them."""
        now_ms = self._clock.read(now)
        before = self._ledger.state.setbacks.stuck(lending.number, partition).get(wish.number)
        attempts = (before.attempts if before is not None else 0) + 1
        first_ms = before.first_ms if before is not None else now_ms
        row = Stuck(lending.number, partition, wish.number, attempts, 0, first_ms)
        if may_die and (wish.outcome == DEAD or attempts > policy.retry_times):
            dead = self._dead(lending, partition, wish, entries, attempts, now)
            if dead:
                return dead
        pause_ms = wish.after_ms if wish.after_ms >= 0 else self._outcomes.pause_ms(policy, attempts)
        return [row._replace(due_ms=now_ms + pause_ms)]

    def _dead(
        self, lending: Lending, partition: int, wish: Wish, entries: list[Entry], attempts: int, now: Now
    ) -> list[Entry]:
        cause = "asked" if wish.outcome == DEAD else "exhausted"
        taken = sum(isinstance(entry, DeadLetter) for entry in entries)
        dead = self._outcomes.dead_entries(
            lending,
            partition,
            wish.number,
            wish.number + 1,
            cause,
            wish.reason,
            now,
            attempts=attempts,
            taken=taken,
        )
        if not dead and wish.outcome == DEAD:
            raise RetryStoreError("there is no room for another dead letter")
        return dead

    def _write_done(self, lending: Lending, partition: int, entries: list[Entry], done: list[int], now: Now) -> None:
        runs = runs_of(done)
        self._write(lending, partition, entries, done, runs, lending.loans.shares(partition, runs), now)

    def _write(
        self,
        lending: Lending,
        partition: int,
        entries: list[Entry],
        done: list[int],
        runs: Runs,
        shares: list[Share],
        now: Now,
    ) -> None:
        """One record for all of it, and the leases in step; `runs` and `shares` are those of `done`."""
        stuck = self._ledger.state.setbacks.stuck(lending.number, partition)
        if stuck:  # nobody waits for those any more
            entries = [*entries, *(stuck[number]._replace(attempts=0) for number in done if number in stuck)]
        if len(runs) == 1:
            entries = [*entries, Acked(lending.number, partition, *runs[0])]
        elif runs:
            entries = [*entries, AckedRuns(lending.number, partition, tuple(chain.from_iterable(runs)))]
        if not entries:
            return
        end = self._outcomes.write(lending, entries, now)
        self._ledger.tracing.acked(lending, partition, runs, entries, now)
        loans = lending.loans
        loans.settle_shares(partition, shares)
        self._ledger.undo_with(end, lambda: _reopen(loans, partition, runs))
        acked = len(done) - sum(isinstance(entry, Retry | DeadLetter) for entry in entries)
        self._metrics.settled[lending.topic, lending.app, "ack"] += acked
        lending.loans.offer(partition)
        if lending.growths:  # the others may have waited for this
            self._consuming.offer_all(lending)

    # --- retries -----------------------------------------------------------------------------------------------

    def _settle_retries(
        self, connection: Connection, lending: Lending, subscription: Subscription, wishes: list[Wish], now: Now
    ) -> None:
        policy = subscription.consumer
        assert policy is not None
        entries: list[Entry] = []
        retries = self._ledger.state.retries
        for wish in wishes:
            retry_id = retry_id_of(wish.number)
            row = retries.get(retry_id)
            if row is None or row.subscription != lending.number:
                if 0 < retry_id < self._outcomes.next_retry_id:
                    continue  # a late double
                raise AckError(f"there is no retry {wish.number}")
            is_lent = lending.retries.holder(row.id) == connection.port.id
            if wish.outcome != DONE and not (is_lent and wish.number == attempt_number(row.id, row.attempts + 1)):
                continue  # a late double: the attempt it speaks of was counted when it ended
            if wish.outcome == DONE:
                entries.append(Retried(row.id))
                self._metrics.settled[lending.topic, lending.app, "ack"] += 1
            elif wish.outcome == DEAD:
                entries += self._numbered(
                    self._outcomes.end_retry(
                        lending, row._replace(attempts=row.attempts + 1), "asked", wish.reason, now
                    ),
                    entries,
                )
            else:
                entries += self._numbered(
                    self._outcomes.again(lending, policy, row, wish.after_ms, wish.reason, now), entries
                )
        if entries:
            self._outcomes.write(lending, entries, now)

    def _numbered(self, more: list[Entry], entries: list[Entry]) -> list[Entry]:
        """Dead letters of one record get ids one after the other."""
        taken = sum(isinstance(entry, DeadLetter) for entry in entries)
        return [entry._replace(id=entry.id + taken) if isinstance(entry, DeadLetter) else entry for entry in more]

    # --- nothing was said in time -----------------------------------------------------------------------------------

    def leases_ended(self, lending: Lending, leases: list[Lease], retry_ids: list[int], now: Now) -> None:
        """Leases ran out: what was lent comes again; what has done so too often is tried again later."""
        subscription = self._ledger.metadata.subscription(lending.topic, lending.app)
        if subscription is None or subscription.consumer is None:
            return
        policy = subscription.consumer
        self._metrics.settled[lending.topic, lending.app, "expired"] += len(leases) + len(retry_ids)
        for lease in leases:
            try:
                self._lease_ended(lending, policy, lease, now)
            except LakeMQError as error:  # it is lent again all the same, only not counted
                self._metrics.errors[code_of(error)] += 1
        for retry_id in retry_ids:
            row = self._ledger.state.retries.get(retry_id)
            if row is None:
                continue
            try:
                self._outcomes.try_again(lending, policy, row, _TIMED_OUT, now)
            except LakeMQError as error:
                self._metrics.errors[code_of(error)] += 1
                lending.retries.put(retry_id, self._clock.read(now))

    def _lease_ended(self, lending: Lending, policy: ConsumerPolicy, lease: Lease, now: Now) -> None:
        runs = list(lease.open)
        times = 1 + max(
            (self._ledger.state.setbacks.times_ended(lending.number, lease.partition, *run) for run in runs), default=0
        )
        if not runs:
            return
        if not policy.is_retry or policy.error_times <= 0 or times < policy.error_times:
            ended: list[Entry] = [LeaseEnded(lending.number, lease.partition, *run) for run in runs]
            self._ledger.settle(ended, now.wall_ms)
            self._ledger.tracing.lease_ended(lending, lease, _TIMED_OUT, now)
            return
        numbers = [number for first, after in runs for number in range(first, after)][:_EXPIRED_COUNT_MAX]
        if lending.is_ordered or policy.is_sequential:
            numbers = numbers[:1]
            self._settle_in_order(
                lending, policy, lease.partition, [Wish(numbers[0], RETRY, BY_POLICY, _TIMED_OUT)], now, is_next=True
            )
        else:
            self._settle_each(
                lending, policy, lease.partition, [Wish(one, RETRY, BY_POLICY, _TIMED_OUT) for one in numbers], now
            )

    # --- inside ------------------------------------------------------------------------------------------------

    def _code(self, connection: Connection, act: Callable[P, object], *arguments: P.args, **more: P.kwargs) -> int:
        """0 if that goes well, or the code of what did not, as that peer knows it."""
        try:
            act(*arguments, **more)
        except LakeMQError as error:
            self._metrics.errors[code_of(error)] += 1
            return code_for(connection, error)
        return 0

    def _after_write(
        self, connection: Connection, header: Header, ack: Ack, refused: Callable[[Ack, int], Ack], now: Now
    ) -> None:
        """Answer once what was appended in this turn is written."""

        def refusal(error: LakeMQError) -> Buffers:
            return encode(connection, header, refused(ack, code_for(connection, error)), now, None)

        self._waiters.park(
            CommandReply(
                connection,
                self._ledger.end_position,
                encode(connection, header, ack, now, None),
                refusal,
                waits_for_sync=False,
            )
        )


def _reopen(loans: Loans, partition: int, runs: Runs) -> None:
    for first, after in runs:
        loans.reopen(partition, first, after)


def _wish_of(index: int, type: int) -> Wish:
    if type == AckType.SUCCESS:
        return Wish(index)
    return Wish(
        index,
        RETRY,
        BY_POLICY,
        _REASONS.get(AckType(type) if type in (1, 2, 3) else AckType.OTHER, "the consumer failed"),
    )


def _wish_said(one: Settlement) -> Wish:
    return Wish(one.index, one.outcome, one.after_ms, one.reason)


def _refused_acks(ack: Ack, code: int) -> Ack:
    topics = tuple(
        TopicCodes(topic.topic, tuple(PartitionCode(one.partition, one.code or code) for one in topic.partitions))
        for topic in ack.topics
    )
    return CommitAckAck(topics)


def _refused_settlements(ack: Ack, code: int) -> Ack:
    topics = tuple(
        TopicSettledCodes(
            topic.topic, tuple(SettledCode(one.partition, one.index, one.code or code) for one in topic.settled)
        )
        for topic in ack.topics
    )
    return SettleAck(topics)
