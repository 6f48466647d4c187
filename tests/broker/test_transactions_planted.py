"""Bugs planted into transactions: each must be caught by one of the tests beside it."""

from collections.abc import Callable
from typing import NamedTuple

import pytest

from broker import test_transactions as checks
from broker.fix_broker import make_broker
from lakemq.broker.deciding import Deciding
from lakemq.broker.undecided import Undecided
from lakemq.broker.waiters import CommandReply
from lakemq.delivery.transactions import Outcome, Transactions
from lakemq.errors import TransactionNotFoundError

Patch = pytest.MonkeyPatch


# --- the bugs ---------------------------------------------------------------------------------------------------------


def outcome_not_remembered(patch: Patch) -> None:
    patch.setattr(Transactions, "_remember", lambda self, *_: None)


def outcome_forgotten_by_a_restart(patch: Patch) -> None:
    restore = Transactions.restore

    def forgetful(self, data):
        restore(self, data)
        self._decided.clear()

    patch.setattr(Transactions, "restore", forgetful)


def commit_not_idempotent(patch: Patch) -> None:
    def refuse(self, topic, app, tx_id, outcome):
        raise TransactionNotFoundError(tx_id)

    patch.setattr(Deciding, "check_decided", refuse)


def opposite_outcome_believed(patch: Patch) -> None:
    patch.setattr(Deciding, "check_decided", lambda self, topic, app, tx_id, outcome: None)


def part_missing_after_a_restart(patch: Patch) -> None:
    patch.setattr(Deciding, "finish_rest", lambda self, now: None)
    patch.setattr(Deciding, "finish_one", lambda self, tx_id, now: None)


def part_delivered_twice_after_a_restart(patch: Patch) -> None:
    patch.setattr(Transactions, "apply_note", lambda self, note, position: None)


def one_whose_time_is_over_becomes_visible(patch: Patch) -> None:
    patch.setattr(Deciding, "roll_back", Deciding.commit)


def rollback_commits(patch: Patch) -> None:
    """As JoyQueue's server does."""
    end = Deciding.end
    patch.setattr(Deciding, "end", lambda self, name, app, tx_id, _, now: end(self, name, app, tx_id, Outcome(1), now))


def outcome_told_before_it_is_durable(patch: Patch) -> None:
    make = CommandReply.__init__

    def hasty(self, *arguments, **details):
        make(self, *arguments, **{**details, "waits_for_sync": False})

    patch.setattr(CommandReply, "__init__", hasty)


def commit_not_undone_when_it_cannot_be_written(patch: Patch) -> None:
    decide = Transactions.decide

    def final(self, *arguments):
        decide(self, *arguments)
        return lambda: None

    patch.setattr(Transactions, "decide", final)


def a_repeated_request_is_taken_again(patch: Patch) -> None:
    put = Transactions.put

    def uncounted(self, tx_id, parts, transaction_id="", *, is_numbered=False):
        return put(self, tx_id, parts, transaction_id)

    patch.setattr(Transactions, "put", uncounted)


def another_apps_transaction_may_be_ended(patch: Patch) -> None:
    end = Deciding.end

    def anybody(self, name, app, tx_id, outcome, now):
        transaction = self._transactions.open.get(tx_id)
        end(self, name, transaction.app if transaction is not None else app, tx_id, outcome, now)

    patch.setattr(Deciding, "end", anybody)


def the_wall_clock_is_believed(patch: Patch) -> None:
    due = Undecided.due
    patch.setattr(Undecided, "due", lambda self, now: due(self, now._replace(monotonic_ms=now.wall_ms)))


def offered_again_at_once(patch: Patch) -> None:
    offer = Undecided._offer

    def eager(self, key, topic, count, now):
        found = offer(self, key, topic, count, now)
        for timer in self._timers.values():
            if timer.offer_ms is not None:
                timer.offer_ms = now.monotonic_ms
        return found

    patch.setattr(Undecided, "_offer", eager)


def carried_part_not_found_again(patch: Patch) -> None:
    patch.setattr(Transactions, "move", lambda self, *_: lambda: None)


# --- how they are caught ----------------------------------------------------------------------------------------------


def with_shop(check: Callable) -> Callable:
    def run():
        life = make_broker()
        check(life, checks.Shop(life))

    return run


class Planted(NamedTuple):
    plant: Callable[[Patch], None]
    caught_by: Callable[[], object]

    @property
    def name(self) -> str:
        return self.plant.__name__.replace("_", " ")


def again(how: str) -> Callable:
    test = checks.test_the_same_outcome_again_is_told_again_and_the_opposite_is_refused
    return lambda: test(make_broker(), how)


def crash_of_a_commit() -> None:
    checks.test_F46_a_crash_at_each_write_of_a_commit_leaves_one_outcome(1500, "torn")


PLANTED = [
    Planted(outcome_not_remembered, again("nothing")),
    Planted(outcome_forgotten_by_a_restart, again("restart")),
    Planted(commit_not_idempotent, again("nothing")),
    Planted(opposite_outcome_believed, again("kill")),
    Planted(part_missing_after_a_restart, lambda: checks.test_F47_a_crash_while_the_rest_of_a_commit_is_stored(1500)),
    Planted(part_delivered_twice_after_a_restart, crash_of_a_commit),
    Planted(
        one_whose_time_is_over_becomes_visible,
        with_shop(checks.test_without_an_own_id_a_transaction_ends_with_its_time),
    ),
    Planted(rollback_commits, lambda: checks.test_what_is_rolled_back_is_never_seen(make_broker(), checks.DOCUMENTED)),
    Planted(
        outcome_told_before_it_is_durable,
        with_shop(
            lambda life, shop: checks.test_an_outcome_is_answered_when_it_is_durable_and_not_before(
                life, shop, "rollback"
            )
        ),
    ),
    Planted(
        commit_not_undone_when_it_cannot_be_written,
        lambda: checks.test_a_commit_that_cannot_be_written_has_not_happened(checks.FULL),
    ),
    Planted(a_repeated_request_is_taken_again, with_shop(checks.test_a_transaction_in_several_requests)),
    Planted(another_apps_transaction_may_be_ended, checks.test_a_transaction_is_of_one_topic_and_one_app),
    Planted(
        the_wall_clock_is_believed,
        with_shop(checks.test_F41_a_wall_clock_that_jumps_ends_no_transaction_early),
    ),
    Planted(offered_again_at_once, with_shop(checks.test_each_is_offered_at_most_once_a_minute)),
    Planted(carried_part_not_found_again, checks.test_a_transaction_outlives_the_segments_it_began_in),
]


@pytest.mark.parametrize("bug", PLANTED, ids=lambda bug: bug.name)
def test_the_bug_is_caught(bug, monkeypatch):
    bug.plant(monkeypatch)
    with pytest.raises((AssertionError, KeyError)):
        bug.caught_by()
