"""Bugs of delivery to plant: retries, order, filters, transactions, delays. `tests/planted.py` lists them.

Each is what a careless change could do. Who must see it stands beside it there.
"""

from broker.fix_broker import FULL, make_broker
from lakemq.broker import settling
from lakemq.broker.deciding import Deciding
from lakemq.broker.delaying import Delaying
from lakemq.broker.lending import Lender
from lakemq.broker.outcomes import Outcomes
from lakemq.broker.settling import Settling
from lakemq.delivery.dead_letters import DeadLetters
from lakemq.delivery.delay_record import pack_pass
from lakemq.delivery.delays import Delays
from lakemq.delivery.loans import Loans
from lakemq.delivery.retries import Retries
from lakemq.delivery.retry_queue import RetryQueue
from lakemq.delivery.setbacks import Setbacks
from lakemq.delivery.transactions import Transactions, pack_note
from lakemq.storage.fetch import RecordSlice
from lakemq.wire.dialect import Dialect
from lakemq.wire.messages import EMPTY

EARLY_MS = 40  # a tick or two


# --- retries and dead letters ----------------------------------------------------------------------------------------


def retries_missing_in_snapshots(patch):
    patch.setattr(Retries, "pack", lambda self, kept: b"")


def retry_early(patch):
    next_due_ms = RetryQueue.next_due_ms

    def sooner(self):
        due_ms = next_due_ms(self)
        return None if due_ms is None else due_ms - EARLY_MS

    patch.setattr(RetryQueue, "next_due_ms", sooner)


def retry_kept_when_it_is_acked(patch):
    patch.setattr(Retries, "remove", lambda self, retry_id: lambda: None)


def ack_of_a_retry_counts_twice(patch):
    settle_retries = Settling._settle_retries

    def count_all(self, connection, lending, subscription, wishes, now):
        gone = [wish for wish in wishes if self._ledger.state.retries.get(wish.number) is None]
        settle_retries(self, connection, lending, subscription, wishes, now)
        self._metrics.settled[lending.topic, lending.app, "ack"] += len(gone)

    patch.setattr(Settling, "_settle_retries", count_all)


class _Anyone:
    def __ne__(self, other):
        return False


def failure_said_twice_counts_twice(patch):
    patch.setattr(RetryQueue, "holder", lambda self, retry_id: _Anyone())


def dead_letter_twice(patch):
    end_retry = Outcomes.end_retry

    def twice(self, *arguments):
        retried, letter = end_retry(self, *arguments)
        return [retried, letter, letter._replace(id=letter.id + 1)]

    patch.setattr(Outcomes, "end_retry", twice)


def dead_letters_with_one_id(patch):
    dead_entries = Outcomes.dead_entries

    def all_the_same(self, *arguments, taken=0, **more):
        return dead_entries(self, *arguments, taken=0, **more)

    patch.setattr(Outcomes, "dead_entries", all_the_same)


def failed_message_passed_and_nowhere(patch):
    patch.setattr(Outcomes, "failed", lambda self, *arguments, **more: [])


def dead_letters_missing_in_snapshots(patch):
    patch.setattr(DeadLetters, "pack", lambda self, kept: b"")


def lease_that_ran_out_not_counted(patch):
    patch.setattr(Setbacks, "times_ended", lambda self, *lease: 0)


# --- order -----------------------------------------------------------------------------------------------------------


def stuck_message_overtaken(patch):
    not_now = Lender._not_now
    patch.setattr(
        Lender, "_not_now", lambda self, lending, partition, is_strict, now: not_now(self, lending, partition, 0, now)
    )


def key_lent_twice_at_once(patch):
    patch.setattr(
        Lender, "_without_busy_keys", lambda self, lending, partition, first, slices, now: (slices, frozenset())
    )


def acked_behind_a_failure(patch):
    patch.setattr(Settling, "_check_order", lambda self, *request: None)


def acked_behind_a_failure_of_its_key(patch):
    patch.setattr(settling, "overtaken_in_key", lambda lease, named, settled: None)
    patch.setattr(Settling, "_behind", lambda self, lending, policy, partition, number: [])


def ack_ends_all_leases_of_its_connection(patch):
    settle_lent = Settling._settle_lent

    def release_all(self, connection, lending, subscription, partition, *said):
        settle_lent(self, connection, lending, subscription, partition, *said)
        loans, consumer = lending.loans, connection.port.id
        if connection.dialect is Dialect.JOYQUEUE:
            for lease in [one for one in loans.leases(partition) if one.consumer == consumer]:
                loans.release(lease)

    patch.setattr(Settling, "_settle_lent", release_all)


def leases_counted_instead_of_messages(patch):
    def room(self, lending, policy, partition):
        is_full = len(lending.loans.leases(partition)) >= policy.concurrent_prefetch_size
        return 0 if policy.is_concurrent and is_full else 1 << 40

    patch.setattr(Lender, "_room", room)


def stuck_message_never_let_go(patch):
    put = Setbacks.put
    patch.setattr(Setbacks, "put", lambda self, row: put(self, row) if row.attempts else lambda: None)


def waiting_message_forgotten(patch):
    lend = Loans.lend

    def lend_only(self, lease):
        known = self._partitions.get(lease.partition)
        pull_index = known.pull_index if known is not None else lease.first_index
        lend(self, lease)
        self._partitions[lease.partition].returned.remove(pull_index, lease.first_index)

    patch.setattr(Loans, "lend", lend_only)


# --- filters ---------------------------------------------------------------------------------------------------------


def filtered_message_delivered(patch):
    def all_of_them(self, lending, slices: list[RecordSlice], wanted, lease, now):
        return slices

    patch.setattr(Lender, "_selected", all_of_them)


def retry_hidden_by_a_filter(patch):
    lend_retries = Lender._lend_retries

    def filtered(self, connection, lending, policy, *rest):
        return EMPTY if policy.filter else lend_retries(self, connection, lending, policy, *rest)

    patch.setattr(Lender, "_lend_retries", filtered)


# --- transactions ----------------------------------------------------------------------------------------------------


def outcomes_forgotten_by_a_restart(patch):
    restore = Transactions.restore

    def without_outcomes(self, data):
        restore(self, data)
        self._decided.clear()

    patch.setattr(Transactions, "restore", without_outcomes)


def rest_of_a_commit_not_stored(patch):
    patch.setattr(Deciding, "finish_rest", lambda self, now: None)
    patch.setattr(Deciding, "finish_one", lambda self, tx_id, now: None)


def rolled_back_messages_stored(patch):
    roll_back = Deciding.roll_back

    def store_and_roll_back(self, transaction, now):
        topic = self._topic(transaction.topic)
        for content in self._parts.contents(transaction, range(len(transaction.parts))):
            self._parts.store(topic, transaction.app, content, pack_note(transaction.tx_id, ()), now)
        roll_back(self, transaction, now)

    patch.setattr(Deciding, "roll_back", store_and_roll_back)


# --- delays ----------------------------------------------------------------------------------------------------------


def delay_early(patch):
    release = Delaying._release
    patch.setattr(
        Delaying,
        "_release",
        lambda self, number, share, now_ms, now: release(self, number, share, now_ms + EARLY_MS, now),
    )


def delay_released_twice(patch):
    patch.setattr(Delays, "apply_note", lambda self, note, position: None)


def delay_lost(patch):
    append_parcel = Delaying._append_parcel

    def some_of_them(self, parcel, released, now):
        if sum(self.counts.values()) % 3:
            append_parcel(self, parcel, released, now)
        else:
            self._append(pack_pass(released), now, lambda _: self._delays.release(released))
            self.counts["released"] += 1

    patch.setattr(Delaying, "_append_parcel", some_of_them)


# --- what a failed turn takes back -----------------------------------------------------------------------------------


def acks_taken_back_and_not_lent_again(patch):
    patch.setattr(settling, "_reopen", lambda loans, partition, runs: None)


def retry_taken_back_and_not_queued(patch):
    keep_in_step = Outcomes.keep_in_step

    def forward_only(self, *arguments):
        undos = list(self._ledger._undo)
        keep_in_step(self, *arguments)
        self._ledger._undo[:] = undos

    patch.setattr(Outcomes, "keep_in_step", forward_only)


# --- checks of their own ---------------------------------------------------------------------------------------------


def a_retry_acked_twice() -> None:
    """Acked + pending + retrying + dead = committed, whatever is said twice."""
    life = make_broker(partitions=1)
    life.ask("subscribe", topic="orders", app="shop", consumer={"retry_first_ms": 10})
    peer = life.peer().consumes()
    peer.produce(b"first", b"second")
    assert peer.fetch() == [b"first", b"second"]
    assert peer.ack([0, 1], kind=2) == 0
    life.pass_ms(10)
    ids = [one.index for one in peer.messages(peer.ask(peer.fetch_command()))]
    for _ in range(2):
        assert peer.ack(ids[:1], partition=32767) == 0
    settled = life.broker.metrics.settled
    retrying = len(life.broker.ledger.state.retries)
    assert settled["orders", "shop", "ack"] + retrying == 2, (settled, retrying)


def a_failure_said_twice() -> None:
    """It counts once."""
    life = make_broker(partitions=1)
    life.ask("subscribe", topic="orders", app="shop", consumer={"retry_first_ms": 10})
    peer = life.peer().consumes()
    peer.produce(b"first")
    assert peer.fetch() == [b"first"]
    assert peer.ack([0], kind=2) == 0
    life.pass_ms(10)
    ids = [one.index for one in peer.messages(peer.ask(peer.fetch_command()))]
    for _ in range(2):
        assert peer.ack(ids, partition=32767, kind=1) == 0
    assert [row.attempts for row in life.broker.ledger.state.retries.rows()] == [2]


def a_refused_ack_of_a_retry() -> None:
    """The disk is full when it comes: the message comes again (F18)."""
    life = make_broker(partitions=1)
    life.ask("subscribe", topic="orders", app="shop", consumer={"retry_first_ms": 10})
    peer = life.peer().consumes()
    peer.produce(b"first")
    assert peer.fetch() == [b"first"]
    assert peer.ack([0], kind=2) == 0
    life.pass_ms(10)
    ids = [one.index for one in peer.messages(peer.ask(peer.fetch_command()))]
    life.disk.fail("write", FULL, path_contains="journal/", wrote=0)
    assert peer.ack(ids, partition=32767) == 109
    peer.pipe.hang_up()
    assert life.peer().consumes().fetch() == [b"first"]


def leases_that_run_out() -> None:
    """After so many times nobody waits for the message any more: it is tried again later."""
    life = make_broker(partitions=1)
    life.ask("subscribe", topic="orders", app="shop", consumer={"error_times": 3, "retry_first_ms": 10})
    peer = life.peer().consumes()
    peer.produce(b"poison", b"next")
    for _ in range(3):
        assert peer.fetch(count=1, lease_ms=50) == [b"poison"]
        life.pass_ms(50)
    assert peer.fetch(count=1) == [b"next"]
