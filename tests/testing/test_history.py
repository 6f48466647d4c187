"""Each promise, broken on purpose in a small history: the checker must say which."""

import pytest

from lakemq.message import Qos
from lakemq.testing.history import CarrierOf, History, ViolationError, outcome_of
from lakemq.testing.invariants import FinalState, PartitionRead, check

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


def test_I09_what_was_read_is_gone(story):
    one = story.send(code=None)
    story.see(one, 0)
    with broken("I09"):
        story.check()


# --- I05, I06, I07, I13, I14 -----------------------------------------------------------------------------------------


def test_I05_the_ack_index_falls(story):
    history = story.history
    history.ack(KEY, [0, 1, 2])
    history.acked(KEY, history.ask(KEY), 0, 2, may_be_ignored=False)
    with broken("I05"):
        history.told(KEY, history.ask(KEY), 2)


def test_I05_a_question_asked_before_the_ack_may_be_answered_as_of_then(story):
    history = story.history
    before = history.ask(KEY)
    history.ack(KEY, [0])
    history.acked(KEY, history.ask(KEY), 0, 0, may_be_ignored=False)
    history.told(KEY, before, 0)


@pytest.mark.parametrize("durable", [0, 1])
def test_I05_lost_power_may_take_acks_that_were_not_synced(story, durable):
    history = story.history
    history.ack(KEY, [0, 1])
    history.acked(KEY, history.ask(KEY), 0, 1, may_be_ignored=False)
    history.power_lost(50, {}, {KEY: durable})
    history.told(KEY, history.ask(KEY), durable)
    if durable:
        with broken("I05"):
            history.told(KEY, history.ask(KEY), 0)


def test_I05_a_seek_moves_it_anywhere(story):
    history = story.history
    history.ack(KEY, range(5))
    history.acked(KEY, history.ask(KEY), 0, 4, may_be_ignored=False)
    history.seek(KEY)
    history.told(KEY, history.ask(KEY), 1)
    history.sought(KEY, 5, 100)
    history.told(KEY, history.ask(KEY), 1)


def test_I06_the_index_passes_a_message_that_nobody_acked(story):
    story.history.ack(KEY, [0, 2])
    with broken("I06"):
        story.history.told(KEY, story.history.ask(KEY), 3)


def test_I06_an_ack_with_a_gap_is_taken(story):
    story.history.ack(KEY, [1])
    with broken("I06"):
        story.history.acked(KEY, story.history.ask(KEY), 1, 1, may_be_ignored=False)


def test_I07_a_message_that_was_never_delivered(story):
    one = story.send()
    story.history.ack(KEY, [0])
    with broken("I07"):
        story.check(one, ack_indexes={KEY: 1})


def test_I13_an_app_that_is_not_at_the_end(story):
    one = story.send()
    with broken("I13"):
        story.check(one, ack_indexes={KEY: 0})


def lend(story, connection, at_ms, lease_ms=100):
    story.history.lent(KEY, connection, [], at_ms, lease_ms, is_over=False)


def test_I14_a_partition_in_two_hands(story):
    lend(story, 1, 10)
    with broken("I14"):
        lend(story, 2, 50)


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


def test_I14_an_ack_under_way_when_it_is_lent_may_end_the_new_lease(story):
    story.history.begin_release(KEY)
    lend(story, 1, 10)
    story.history.end_release(KEY, 60)
    lend(story, 2, 50)


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
