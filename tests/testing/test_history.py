"""Each promise, broken on purpose in a small history: the checker must say which."""

import pytest

from lakemq.delivery.settlement import DeadLetter
from lakemq.message import Qos
from lakemq.testing.facts import Delivered, Said
from lakemq.testing.history import CarrierOf, History, Origin, Resend, ViolationError, outcome_of
from lakemq.testing.invariants import FinalState, PartitionRead, check
from lakemq.testing.transacted import COMMITTED, ROLLED_BACK, Transacted

KEY = ("t", "app", 0)


class Story:
    """A history told in short sentences, on one topic with one partition."""

    def __init__(self):
        self.history = History()
        self.bodies = {}
        self.now_ms = 0

    def send(self, *, code=0, index=0, qos=Qos.FLUSH, producer="p", uniq_id="", again=None, key="k"):
        self.now_ms += 10
        if again is None:
            again, self.bodies[len(self.bodies)] = self.history.make_payload(producer, "t", key, b"")
        send = self.history.send(producer, 1, "t", qos, [CarrierOf((again,), uniq_id)], -1, self.now_ms)
        if code is not None:
            self.history.sent(send, code, [(0, index)] if code == 0 else [], self.now_ms + 5)
        return again

    def see(self, payload, index):
        self.history.body_of("t", 0, index, self.bodies[payload])

    def check(self, *payloads, first_index=0, **more):
        ack_indexes = more.pop("ack_indexes", {})
        read = PartitionRead(first_index, list(payloads))
        for index, payload in enumerate(payloads, first_index):
            self.see(payload, index)
        check(self.history, FinalState({("t", 0): read}, ack_indexes, **more))


@pytest.fixture
def story():
    return Story()


def broken(invariant):
    return pytest.raises(ViolationError, match=f"^{invariant}: ")


def test_a_true_story_passes(story):
    first, second = story.send(index=0), story.send(index=1, qos=Qos.WRITE)
    story.check(first, second)


# --- I01 -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("qos", [Qos.FLUSH, Qos.WRITE])
def test_I01_an_acked_message_is_gone(story, qos):
    story.send(index=0, qos=qos)
    with broken("I01"):
        story.check()


def test_I01_an_acked_message_is_elsewhere(story):
    first, second = story.send(index=1), story.send(index=0)
    with broken("I01"):
        story.check(second, story.send(code=None), first)


@pytest.mark.parametrize(
    ("qos", "visible", "may_go"), [(Qos.FLUSH, 0, False), (Qos.WRITE, 0, True), (Qos.WRITE, 1, False)]
)
def test_I01_lost_power_may_take_what_was_written_and_not_synced(story, qos, visible, may_go):
    story.send(index=0, qos=qos)
    story.history.power_lost(1000, {("t", 0): visible}, {})
    if may_go:
        story.check()
    else:
        with broken("I01"):
            story.check()


def test_I01_power_that_was_lost_before_excuses_nothing(story):
    story.history.power_lost(1, {}, {})
    story.send(index=0, qos=Qos.WRITE)
    with broken("I01"):
        story.check()


def test_I01_retention_may_take_the_oldest(story):
    story.send(index=0)
    second = story.send(index=1)
    story.check(second, first_index=1)


def test_I01_what_was_received_is_kept_if_nothing_breaks(story):
    story.send(index=-1, qos=Qos.RECEIVE)
    with broken("I01"):
        story.check()
    story.history.died(20, loses_memory=True)
    story.check()


# --- I02, I03, I04, I09 ----------------------------------------------------------------------------------------------


def test_I02_an_index_names_two_messages(story):
    first, second = story.send(), story.send(index=1)
    story.see(first, 0)
    with broken("I02"):
        story.see(second, 0)


def test_I02_a_hole_in_an_answer(story):
    found = [story.history.body_of("t", 0, index, story.bodies[story.send(index=index)]) for index in (0, 2)]
    with broken("I02"):
        story.history.run_of("t", 0, found)


@pytest.mark.parametrize("body", [b"0|changed", b"99|", b"nonsense"])
def test_I03_a_body_that_nobody_sent(story, body):
    story.send()
    with broken("I03"):
        story.history.body_of("t", 0, 0, body)


def test_I03_a_refused_message_appears(story):
    refused = story.send(code=188)
    with broken("I03"):
        story.check(refused)


@pytest.mark.parametrize("code", [None, 91, 109])
def test_I03_one_whose_outcome_is_unknown_may_appear_or_not(story, code):
    unknown = story.send(code=code)
    story.check(unknown)


def test_I04_more_copies_than_attempts(story):
    one = story.send()
    with broken("I04"):
        story.check(one, one)


def test_I04_an_id_is_stored_once_however_often_it_is_sent(story):
    one = story.send(uniq_id="u")
    story.send(uniq_id="u", again=one)
    with broken("I04"):
        story.check(one, one)
    story.check(one, one, forgets_uniq_ids=True)


def resend(story, outcome, *, number=1, copy_index=None):
    """The dead letter of message 0, and where its copy is."""
    origin = Origin("t/0/0", f"LAKEMQ_DEAD_{number}")
    story.history.resends.append(Resend(("t", 0), 0, origin, outcome))
    if copy_index is not None:
        story.history.copies["t", 0, copy_index] = origin


@pytest.mark.parametrize("outcome", ["topic", "unknown"])
def test_I04_a_dead_letter_that_an_operator_sent_to_its_topic_is_there_once_more(story, outcome):
    one, other = story.send(index=0), story.send(index=1)
    resend(story, outcome, copy_index=2)
    story.check(one, other, one)


@pytest.mark.parametrize("outcome", ["app", "failed"])
def test_I04_a_copy_of_a_dead_letter_that_did_not_go_to_its_topic(story, outcome):
    one = story.send(index=0)
    resend(story, outcome, copy_index=1)
    with broken("I04"):
        story.check(one, one)


def test_I04_a_resend_excuses_no_copy_but_its_own(story):
    one = story.send(index=0)
    resend(story, "topic", copy_index=2)
    with broken("I04"):  # the one between says nothing of an operator
        story.check(one, one, one)


def test_I04_a_dead_letter_is_copied_once_however_often_it_is_resent(story):
    one = story.send(index=0)
    resend(story, "unknown", copy_index=1)
    resend(story, "topic", copy_index=2)
    with broken("I04"):
        story.check(one, one, one)
    story.check(one, one, one, forgets_uniq_ids=True)


def test_I04_each_dead_letter_of_a_message_may_be_copied(story):
    one = story.send(index=0)
    resend(story, "topic", number=1, copy_index=1)
    resend(story, "topic", number=2, copy_index=2)
    story.check(one, one, one)


def test_I01_a_dead_letter_that_went_to_its_topic_is_lost(story):
    one = story.send(index=0)
    resend(story, "topic")
    with broken("I01"):
        story.check(one)


def test_I03_a_copy_holds_another_message_than_its_dead_letter(story):
    one, other = story.send(index=0), story.send(index=1)
    resend(story, "topic", copy_index=2)
    with broken("I03"):
        story.check(one, other, other)


def test_I09_what_was_read_is_gone(story):
    one = story.send(code=None)
    story.see(one, 0)
    with broken("I09"):
        story.check()


# --- I05, I06, I07, I13 ----------------------------------------------------------------------------------------------


def ack(story, *indexes, outcome=0):
    """A consumer says something of messages of partition 0."""
    story.history.say(KEY, [Said(Delivered(index, index, 0, index, index), outcome) for index in indexes], story.now_ms)


def acked(story, *indexes, may_be_ignored=False):
    ack(story, *indexes)
    story.history.acked(KEY, story.history.ask(KEY), indexes, may_be_ignored=may_be_ignored)


def told(story, index):
    story.history.told(KEY, story.history.ask(KEY), index)


def test_I05_the_ack_index_falls(story):
    acked(story, 0, 1, 2)
    with broken("I05"):
        told(story, 2)


def test_I05_acks_in_any_order_move_it_over_what_is_done(story):
    acked(story, 1, 2)
    told(story, 0)
    acked(story, 0)
    with broken("I05"):
        told(story, 2)


def test_I05_one_that_leaves_a_gap_may_be_ignored(story):
    acked(story, 1, may_be_ignored=True)
    acked(story, 0)
    told(story, 1)


def test_I05_a_question_asked_before_the_ack_may_be_answered_as_of_then(story):
    before = story.history.ask(KEY)
    acked(story, 0)
    story.history.told(KEY, before, 0)


@pytest.mark.parametrize("durable", [0, 1])
def test_I05_lost_power_may_take_acks_that_were_not_synced(story, durable):
    acked(story, 0, 1)
    story.history.power_lost(50, {}, {KEY: durable})
    told(story, durable)
    if durable:
        with broken("I05"):
            told(story, 0)


def test_I05_a_seek_moves_it_anywhere(story):
    acked(story, *range(5))
    release = story.history.seek(KEY)
    told(story, 1)
    story.history.sought(KEY, release, 5, 100)
    told(story, 1)


def test_I06_the_index_passes_a_message_that_nobody_acked(story):
    ack(story, 0, 2)
    with broken("I06"):
        told(story, 3)


def serve(story, **policy):
    story.history.serves("t", "app", policy)


def test_I06_what_failed_may_be_passed_for_it_is_tried_again(story):
    ack(story, 0)
    ack(story, 1, outcome=1)
    told(story, 2)


@pytest.mark.parametrize("policy", [{"is_retry": False}, {"is_sequential": True}], ids=["no retries", "in order"])
def test_I06_where_it_is_not_what_failed_is_not_passed(story, policy):
    serve(story, **policy)
    ack(story, 0, outcome=1)
    with broken("I06"):
        told(story, 1)


def test_I06_in_order_one_that_failed_often_enough_is_passed(story):
    serve(story, is_sequential=True, retry_times=1)
    ack(story, 0, outcome=1)
    ack(story, 0, outcome=1)
    told(story, 1)


@pytest.mark.parametrize(("error_times", "may_pass"), [(0, False), (1, True)])
def test_I06_in_order_a_lease_that_ran_out_is_an_attempt_only_if_the_policy_says_so(story, error_times, may_pass):
    serve(story, is_sequential=True, retry_times=1, error_times=error_times)
    lend(story, 1, 10)
    ack(story, 0, outcome=1)
    if may_pass:
        told(story, 1)
    else:
        with broken("I06"):
            told(story, 1)


def test_I06_one_that_a_filter_leaves_out_is_passed(story):
    serve(story, filter="red")
    number, story.bodies[0] = story.history.make_payload("p", "t", "k", b"", {"TAGS": "blue"})
    story.see(number, 0)
    told(story, 1)
    wanted, story.bodies[1] = story.history.make_payload("p", "t", "k", b"", {"TAGS": "red"})
    story.see(wanted, 1)
    with broken("I06"):
        told(story, 2)


def test_I07_a_message_that_was_never_delivered(story):
    one = story.send()
    ack(story, 0)
    with broken("I07"):
        story.check(one, ack_indexes={KEY: 1})


def test_I13_an_app_that_is_not_at_the_end(story):
    one = story.send()
    with broken("I13"):
        story.check(one, ack_indexes={KEY: 0})


def lend(story, connection, at_ms, lease_ms=100, index=0, attempt=1, partition=0):
    if not story.history.payloads:
        story.history.make_payload("p", "t", "k", b"")
    found = [Delivered(index, 0, 0, 0 if attempt > 1 else index, index, attempt)]
    key = ("t", "app", partition)
    story.history.lent(key, connection, found, at_ms, lease_ms, is_over=False, now_ms=at_ms)


def letter(index=0, **more):
    row = {"id": 1, "cause": "exhausted", "reason": "", "subscription": 1, "app": "app", "topic": 1, "topic_name": "t"}
    row |= {"partition": 0, "message_index": index, "position": 0, "attempts": 1, "first_ms": 0, "died_ms": 0}
    return KEY, DeadLetter(**(row | more))


def test_I13_a_message_that_failed_and_is_nowhere(story):
    one = story.send()
    lend(story, 1, 10)
    ack(story, 0, outcome=1)
    with broken("I13"):
        story.check(one, ack_indexes={KEY: 1})
    serve(story, retry_times=0)
    story.check(one, ack_indexes={KEY: 1}, dead=[letter()])


def test_I13_a_dead_letter_twice_or_for_nothing(story):
    one = story.send()
    serve(story, retry_times=0)
    lend(story, 1, 10)
    with broken("I13"):
        story.check(one, ack_indexes={KEY: 1}, dead=[letter(), letter(id=2)])
    serve(story, retry_times=5)
    with broken("I13"):
        story.check(one, ack_indexes={KEY: 1}, dead=[letter()])
    ack(story, 0, outcome=2)
    story.check(one, ack_indexes={KEY: 1}, dead=[letter()])


def test_I13_a_dead_letter_before_its_message_expired(story):
    number, story.bodies[0] = story.history.make_payload("p", "t", "k", b"", expires_ms=500)
    story.send(again=number)
    story.history.counts["fault clock jump"] += 1
    with broken("I13"):
        story.check(number, ack_indexes={KEY: 1}, dead=[letter(cause="expired", died_ms=499)])
    story.check(number, ack_indexes={KEY: 1}, dead=[letter(cause="expired", died_ms=500)])


def test_I13_a_dead_letter_of_what_was_acked(story):
    number, story.bodies[0] = story.history.make_payload("p", "t", "k", b"", expires_ms=500)
    story.send(again=number)
    lend(story, 1, 10)
    acked(story, 0)
    story.check(number, ack_indexes={KEY: 1}, dead=[letter(cause="expired", died_ms=600)])  # its lease may be over
    story.history.done_for_good(KEY, story.history.ask(KEY), [0], 550)
    story.check(number, ack_indexes={KEY: 1}, dead=[letter(cause="expired", died_ms=540)])
    with broken("I13"):
        story.check(number, ack_indexes={KEY: 1}, dead=[letter(cause="expired", died_ms=600)])


def test_I13_a_dead_letter_of_what_retention_took_is_judged_by_its_own_message(story):
    number, story.bodies[0] = story.history.make_payload("p", "t", "k", b"", expires_ms=500)
    story.send(again=number)
    last = story.send(index=1)
    story.history.retained("t", 0, 1)
    story.see(number, 0)
    ack(story, 1)
    lend(story, 1, 10, index=1)
    story.check(last, first_index=1, ack_indexes={KEY: 2}, dead=[letter(cause="expired", died_ms=500)])


# --- I12 -------------------------------------------------------------------------------------------------------------


def test_I12_a_retry_before_its_time(story):
    serve(story, retry_first_ms=100, retry_factor=2)
    lend(story, 1, 10, lease_ms=10_000)
    story.now_ms = 20
    ack(story, 0, outcome=1)
    with broken("I12"):
        lend(story, 1, 119, index=7, attempt=2, partition=32767)
    lend(story, 1, 120, index=7, attempt=2, partition=32767)


def test_I12_a_retry_after_a_lease_that_ran_out(story):
    serve(story, retry_first_ms=100)
    lend(story, 1, 10, lease_ms=50)
    with broken("I12"):
        lend(story, 1, 159, index=7, attempt=2, partition=32767)
    lend(story, 1, 160, index=7, attempt=2, partition=32767)


def test_I12_an_attempt_that_nobody_made(story):
    lend(story, 1, 10)
    with broken("I12"):
        lend(story, 1, 99_999, index=7, attempt=3, partition=32767)


def test_I12_a_message_that_others_wait_for_before_its_time(story):
    serve(story, is_sequential=True, retry_first_ms=100)
    lend(story, 1, 10)
    asked = story.history.ask(KEY)
    said = Said(Delivered(0, 0, 0, 0, 0), 1)
    story.history.begin_release(KEY)
    story.history.stuck(KEY, asked, said, 20, 25)
    with broken("I12"):
        lend(story, 2, 119)


def lend_batch(story, at_ms):
    """Messages 0, 1 and 2, which came in one carrier."""
    while len(story.history.payloads) < 3:
        story.history.make_payload("p", "t", "k", b"")
    found = [Delivered(index, index, 0, index, 0) for index in range(3)]
    story.history.lent(KEY, at_ms, found, at_ms, 5, is_over=False, now_ms=at_ms)


def fail(story, at_ms):
    """Message 0 surely failed."""
    one = Said(Delivered(0, 0, 0, 0, 0), 1)
    asked = story.history.ask(KEY)
    story.history.say(KEY, [one], at_ms)
    story.history.stuck(KEY, asked, one, at_ms, at_ms)


def test_I12_a_dead_letter_comes_along_with_its_batch(story):
    serve(story, is_sequential=True, retry_first_ms=100, retry_times=1, error_times=0)
    lend_batch(story, 10)
    fail(story, 20)
    with broken("I12"):  # it has one attempt more
        lend_batch(story, 119)
    lend_batch(story, 120)
    fail(story, 130)
    lend_batch(story, 140)


def test_I12_a_dead_letter_comes_along_only_for_another_of_its_batch(story):
    serve(story, is_sequential=True, retry_times=0, error_times=0)
    lend_batch(story, 10)
    fail(story, 20)
    ack(story, 1)
    acked(story, 0, 1)
    lend_batch(story, 30)
    acked(story, 2)
    with broken("I12"):
        lend_batch(story, 40)


def test_I12_a_dead_letter_does_not_come_alone_however_late(story):
    serve(story, is_sequential=True, retry_first_ms=1, retry_times=0)
    lend(story, 1, 10)
    fail(story, 20)
    with broken("I12"):
        lend(story, 2, 1_000_000)


def test_I12_the_pause_grows_with_what_surely_failed(story):
    serve(story, is_sequential=True, retry_first_ms=100, retry_factor=3, retry_times=5)
    lend(story, 1, 10, lease_ms=5)
    fail(story, 20)
    lend(story, 1, 120, lease_ms=5)
    fail(story, 130)
    with broken("I12"):
        lend(story, 1, 429, lease_ms=5)
    lend(story, 1, 430, lease_ms=5)


def test_I12_a_delay_before_its_time(story):
    one = story.send(code=None)
    story.history.delay(story.history.sends[0], 500, 500)
    with broken("I12"):
        story.history.body_of("t", 0, 0, story.bodies[one], 499)
    story.history.body_of("t", 0, 0, story.bodies[one], 500)


def test_I12_a_delay_that_was_cancelled_and_came(story):
    one = story.send(code=None)
    story.history.delay(story.history.sends[0], 5, 5)
    story.history.surely_cancelled[one] = 4
    story.history.first_seen_ms[one] = 5
    story.history.delayed.clear()
    with broken("I12"):
        story.check(one)


def test_I01_a_delay_that_was_acked_is_lost(story):
    number, story.bodies[0] = story.history.make_payload("p", "t", "k", b"")
    send = story.history.send("p", 1, "t", Qos.FLUSH, [CarrierOf((number,))], -1, 0)
    story.history.delay(send, 50, 50)
    story.history.sent(send, 0, [(0, -1)], 5)
    with broken("I01"):
        story.check()
    story.history.cancelled.add(number)
    story.check()


# --- I14 -------------------------------------------------------------------------------------------------------------


def test_I14_a_partition_in_two_hands(story):
    lend(story, 1, 10)
    with broken("I14"):
        lend(story, 2, 50, index=1)


def test_I14_a_message_in_two_hands(story):
    serve(story, is_concurrent=True, concurrent_prefetch_size=9)
    lend(story, 1, 10)
    lend(story, 2, 50, index=1)
    with broken("I14"):
        lend(story, 3, 60, index=1)


def test_I14_more_messages_in_hand_than_the_policy_allows(story):
    serve(story, is_concurrent=True, concurrent_prefetch_size=2)
    lend(story, 1, 10)
    lend(story, 2, 50, index=1)
    with broken("I14"):
        lend(story, 3, 60, index=2)


def test_I10_an_ack_that_is_taken_behind_one_that_is_not_settled(story):
    serve(story, is_sequential=True)
    history = story.history
    history.check_order(KEY, history.ask(KEY), [0])
    with broken("I10"):
        history.check_order(KEY, history.ask(KEY), [1])


def test_I14_a_key_in_two_hands(story):
    serve(story, is_concurrent=True, is_sequential=True, concurrent_prefetch_size=9)
    lend(story, 1, 10)
    with broken("I1[04]"):
        lend(story, 2, 50, index=1)


@pytest.mark.parametrize("how", ["time", "ack", "gone", "died", "seek"])
def test_I14_a_lease_that_may_be_over_is_no_violation(story, how):
    history = story.history
    lend(story, 1, 10)
    match how:
        case "ack":
            history.begin_release(KEY)
        case "gone":
            history.connection_over(1)
        case "died":
            history.died(20, loses_memory=True)
        case "seek":
            history.seek(KEY)
    lend(story, 2, 110 if how == "time" else 50)


def test_I14_an_ack_of_one_message_ends_no_lease_on_another(story):
    lend(story, 1, 10)
    story.history.begin_release(KEY, [5])
    with broken("I14"):
        lend(story, 2, 50)


def test_I14_an_ack_under_way_when_it_is_lent_may_end_the_new_lease(story):
    release = story.history.begin_release(KEY)
    lend(story, 1, 10)
    story.history.end_release(KEY, release, 60)
    lend(story, 2, 50)


# --- order of what is handed out -------------------------------------------------------------------------------------


def test_I10_in_order_nothing_overtakes_what_failed(story):
    serve(story, is_sequential=True)
    lend(story, 1, 10)
    ack(story, 0, outcome=1)
    story.history.begin_release(KEY)
    with broken("I10"):
        lend(story, 1, 50, index=1)


def test_I10_by_key_others_may_overtake(story):
    serve(story, is_sequential=True, is_concurrent=True)
    for number in range(3):
        story.history.make_payload("p", "t", "k" if number != 1 else "other", b"")
    history = story.history
    history.lent(KEY, 1, [Delivered(0, 0, 0, 0, 0)], 10, 100, is_over=True)
    ack(story, 0, outcome=1)
    history.lent(KEY, 1, [Delivered(1, 1, 0, 1, 1)], 20, 100, is_over=True)
    with broken("I10"):
        history.lent(KEY, 1, [Delivered(2, 2, 0, 2, 2)], 30, 100, is_over=True)


# --- I11 -------------------------------------------------------------------------------------------------------------


def transact(story, *outcomes, sends=2):
    """A transaction with so many messages, and what was asked for and answered."""
    transaction = Transacted(0, "t", "tx")
    story.history.transactions.append(transaction)
    for _ in range(sends):
        number = story.send(index=-1, code=None)
        send = story.history.sends[-1]
        send.transaction = 0
        story.history.sent(send, 0, [(0, -1)], story.now_ms)
        transaction.sends.append(send)
        assert number >= 0
    for outcome, code in outcomes:
        transaction.asked.add(outcome)
        transaction.answered(outcome, code)
    return [send.carriers[0].ids[0] for send in transaction.sends]


def test_I11_all_or_nothing(story):
    one, other = transact(story, (COMMITTED, 0))
    story.check(one, other)
    with broken("I11"):
        story.history.seen.clear()
        story.check(one)


def test_I11_half_of_one_whose_outcome_nobody_knows(story):
    one, _ = transact(story, (COMMITTED, 3))
    with broken("I11"):
        story.check(one)


def test_I11_whoever_was_refused_was_told_the_outcome(story):
    one, other = transact(story, (COMMITTED, 3), (ROLLED_BACK, 139))
    with broken("I11"):
        story.check()
    story.check(one, other)


@pytest.mark.parametrize("outcomes", [[], [(ROLLED_BACK, 0)]], ids=["undecided", "rolled back"])
def test_I11_what_was_not_committed_is_seen(story, outcomes):
    one, other = transact(story, *outcomes)
    with broken("I11"):
        story.check(one, other)


@pytest.mark.parametrize(
    "answers",
    [
        [(COMMITTED, 0), (ROLLED_BACK, 0)],
        [(COMMITTED, 0), (COMMITTED, 139)],
        [(COMMITTED, 0), (COMMITTED, 138)],
        [(ROLLED_BACK, 0), (COMMITTED, 138)],
        [(ROLLED_BACK, 139), (ROLLED_BACK, 0)],
        [(ROLLED_BACK, 139), (ROLLED_BACK, 138)],
        [(COMMITTED, 139), (ROLLED_BACK, 139)],
    ],
)
def test_I11_one_outcome(story, answers):
    with broken("I11"):
        transact(story, *answers)
    transact(story, (COMMITTED, 0), (COMMITTED, 0), (ROLLED_BACK, 139))


# --- I10 -------------------------------------------------------------------------------------------------------------


def test_I10_messages_of_one_producer_change_places(story):
    first, second = story.send(code=None), story.send(code=None)
    with broken("I10"):
        story.check(second, first)


def test_I10_one_that_was_sent_again_may_stand_anywhere(story):
    first, second = story.send(code=None), story.send(code=None)
    story.send(code=None, again=first)
    story.check(second, first)


def test_I10_producers_do_not_wait_for_each_other(story):
    first, second = story.send(code=None), story.send(code=None, producer="q")
    story.check(second, first)


def test_I10_a_key_in_two_partitions_of_an_ordered_topic(story):
    one, other = story.send(code=None), story.send(code=None, producer="q")
    story.see(one, 0)
    story.history.body_of("t", 1, 0, story.bodies[other])
    reads = {("t", 0): PartitionRead(0, [one]), ("t", 1): PartitionRead(0, [other])}
    check(story.history, FinalState(reads))
    with broken("I10"):
        check(story.history, FinalState(reads, ordered=frozenset({"t"})))
    check(story.history, FinalState(reads, ordered=frozenset({"t"}), grown=frozenset({"t"})))


# --- codes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [3, 4, 91, 101, 108, 109, 111, 112, 113, 141])
def test_codes_that_leave_the_outcome_open(code):
    assert outcome_of(code) == "unknown"


@pytest.mark.parametrize("code", [6, 8, 74, 107, 134, 138, 144, 188, 189, 193])
def test_codes_that_say_no(code):
    assert outcome_of(code) == "failed"
