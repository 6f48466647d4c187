"""What fails is tried again: when, how often, by whom, and what becomes of it in the end (F43, F44)."""

import pytest

from broker.fix_broker import DOCUMENTED, FULL, JOYQUEUE, TINY, make_broker
from lakemq.broker.references import ATTEMPT, ORIGIN_INDEX, ORIGIN_PARTITION
from lakemq.delivery.retry_schedule import LEVELS_MS
from lakemq.errors import WriteError
from lakemq.wire.own import Settle, Settlement, SettleOutcome, TopicSettlements
from lakemq.wire.session import RemoveConsumer
from sim.planted_delivery import a_refused_ack_of_a_retry, a_retry_acked_twice, leases_that_run_out

RETRIES = 32767
both = pytest.mark.parametrize("dialect", [DOCUMENTED, JOYQUEUE], ids=lambda one: one.value)
DONE, RETRY, DEAD = SettleOutcome.DONE, SettleOutcome.RETRY, SettleOutcome.DEAD_LETTER


def shop(dialect=DOCUMENTED, *, bodies=(b"0",), partitions=1, storage=None, settings=None, **policy):
    """A broker with messages, and a consumer with that policy."""
    details = {"storage": storage} if storage is not None else {}
    life = make_broker(partitions=partitions, **details, **settings or {})
    if policy:
        life.ask("subscribe", topic="orders", app="shop", consumer=policy)
    peer = life.peer(dialect=dialect).consumes()
    for body in bodies:
        assert peer.produce(body)[0] == 0
    return life, peer


def got(peer, **details):
    """The messages of a fetch."""
    return peer.messages(peer.ask(peer.fetch_command(**details)))


def settle(peer, *settlements):
    """The codes."""
    said = tuple(Settlement(*one) if isinstance(one, tuple) else one for one in settlements)
    answer = peer.ask(Settle((TopicSettlements("orders", said),), "shop"))
    return [one.code for one in answer.body.topics[0].settled]


def fail(peer, *messages, kind=2):
    assert peer.ack([one.index for one in messages], partition=messages[0].partition, kind=kind) == 0


def retries_of(life):
    return list(life.broker.ledger.state.retries.rows())


def dead_of(life):
    return list(life.broker.ledger.state.dead_letters.rows())


# --- what it says -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dialect", "version"), [(DOCUMENTED, "2.1.0"), (DOCUMENTED, ""), (JOYQUEUE, "4.2.8"), (JOYQUEUE, "2.1.0")], ids=str
)
def test_who_is_no_client_of_ours_gets_a_retry_with_the_attributes_it_was_sent_with(dialect, version):
    life = make_broker()
    peer = life.peer(dialect=dialect, version=version).consumes()
    peer.produce(b"x", attributes={"TAGS": "paid", "mine": "1"})
    fail(peer, *got(peer))
    life.pass_ms(1000)
    (again,) = got(peer)
    assert (again.body, again.partition, again.attributes) == (b"x", RETRIES, {"TAGS": "paid", "mine": "1"})
    assert peer.ack([again.index], partition=RETRIES) == 0
    assert retries_of(life) == []


# --- when ------------------------------------------------------------------------------------------------------------


@both
def test_F44_the_pauses_are_1_3_9_and_27_seconds(dialect):
    life, peer = shop(dialect)
    fail(peer, *got(peer))
    for attempt, pause_ms in enumerate((1000, 3000, 9000, 27_000), 2):
        life.pass_ms(pause_ms - 1)
        assert peer.fetch() == [], "early"
        life.pass_ms(1)
        (again,) = got(peer)
        assert (again.body, again.partition) == (b"0", RETRIES)
        assert again.attributes[ATTEMPT] == str(attempt)
        fail(peer, again, kind=attempt % 3 + 1)


@pytest.mark.parametrize("details", [{}, {"is_sequential": True}], ids=["apart", "in order"])
def test_rocketmqs_16_retries_follow_the_first_delivery_and_the_last_pause_is_2_hours(details):
    life, peer = shop(retry_schedule="levels", settings={"limits_of": {"idle_ms": 1 << 40}}, **details)
    deliveries = 0
    for pause_ms in (0, *LEVELS_MS):
        if pause_ms:
            life.pass_ms(pause_ms - 1)
            assert peer.fetch() == [], f"early, after delivery {deliveries}"
            life.pass_ms(1)
        (message,) = got(peer)
        deliveries += 1
        assert dead_of(life) == []
        fail(peer, message)
    assert (deliveries, LEVELS_MS[-1]) == (17, 7_200_000)
    (letter,) = dead_of(life)
    assert (letter.cause, letter.attempts) == ("exhausted", 17)


def test_pauses_from_the_table_of_levels():
    life, peer = shop(retry_schedule="levels", retry_delay_max_ms=100_000)
    fail(peer, *got(peer))
    for pause_ms in (LEVELS_MS[0], LEVELS_MS[1], LEVELS_MS[2], 100_000):
        life.pass_ms(pause_ms - 1)
        assert peer.fetch() == []
        life.pass_ms(1)
        fail(peer, *got(peer))


def test_no_pause_is_longer_than_the_maximum():
    life, peer = shop(retry_delay_max_ms=2000)
    fail(peer, *got(peer))
    for pause_ms in (1000, 2000, 2000, 2000):
        life.pass_ms(pause_ms)
        fail(peer, *got(peer))


def test_one_who_waits_is_given_a_retry_when_it_is_due():
    life, peer = shop()
    fail(peer, *got(peer))
    poll = peer.send(peer.fetch_command(wait_ms=60_000))
    life.pass_ms(999)
    assert peer.received(poll) is None
    life.pass_ms(1)
    assert peer.fetched(peer.received(poll)) == [b"0"]


def test_a_consumer_may_say_after_how_long():
    life, peer = shop()
    got(peer)
    assert settle(peer, (0, 0, RETRY, 250, "busy")) == [0]
    (row,) = retries_of(life)
    assert row.reason == "busy"
    life.pass_ms(249)
    assert peer.fetch() == []
    life.pass_ms(1)
    (again,) = got(peer)
    assert settle(peer, (RETRIES, again.index, RETRY, 0, "")) == [0]
    assert peer.fetch() == [b"0"], "at once"


def test_F18_an_ack_that_is_not_written_brings_the_retry_again():
    a_refused_ack_of_a_retry()


def test_F18_a_failure_that_is_not_written_leaves_the_retry_with_its_consumer():
    """Who says it again means the same attempt. Lent anew meanwhile, it would count for the one after."""
    life, peer = shop()
    other = life.peer().consumes()
    fail(peer, *got(peer))
    life.pass_ms(1000)
    (one,) = got(peer)
    for outcome in (RETRY, DEAD):
        life.disk.fail("write", FULL, path_contains="journal/", wrote=0)
        assert settle(peer, (RETRIES, one.index, outcome, 0, "")) == [109]
        assert (peer.fetch(), other.fetch()) == ([], []), "it is in somebody's hands"
    assert settle(peer, (RETRIES, one.index, RETRY, 250, "")) == [0]
    assert [row.attempts for row in retries_of(life)] == [2]
    assert settle(peer, (RETRIES, one.index, RETRY, 0, "")) == [0], "a late double"
    life.pass_ms(249)
    assert (peer.fetch(), other.fetch()) == ([], []), "early"
    life.pass_ms(1)
    (again,) = got(other)
    assert again.attributes[ATTEMPT] == "3"


def test_F18_after_a_failure_that_is_not_written_the_lease_ends_when_it_would_have():
    life, peer = shop()
    fail(peer, *got(peer))
    life.pass_ms(1000)
    (one,) = got(peer, lease_ms=500)
    life.disk.fail("write", FULL, path_contains="journal/", wrote=0)
    assert settle(peer, (RETRIES, one.index, RETRY, 0, "")) == [109]
    life.pass_ms(499)
    assert [row.attempts for row in retries_of(life)] == [1]
    life.pass_ms(1)
    assert [row.attempts for row in retries_of(life)] == [2]
    life.pass_ms(3000)
    assert peer.fetch() == [b"0"]


def test_F18_a_failure_that_is_not_written_of_a_consumer_that_left_brings_the_retry_again():
    life, peer = shop()
    fail(peer, *got(peer))
    life.pass_ms(1000)
    (one,) = got(peer)
    life.disk.fail("write", FULL, path_contains="journal/", wrote=0)
    said = (TopicSettlements("orders", (Settlement(RETRIES, one.index, RETRY, 0, ""),)),)
    peer.send(Settle(said, "shop"))
    peer.send(RemoveConsumer(("orders",), "shop"))
    life.settle()
    assert [row.attempts for row in retries_of(life)] == [1], "the turn was refused"
    assert life.peer().consumes().fetch() == [b"0"]


def test_F18_an_ack_that_is_not_written_brings_the_retry_again_at_once():
    """An ack means the same whenever it comes, so that nobody has to wait for the end of the lease."""
    life, peer = shop()
    fail(peer, *got(peer))
    life.pass_ms(1000)
    (one,) = got(peer)
    life.disk.fail("write", FULL, path_contains="journal/", wrote=0)
    assert settle(peer, (RETRIES, one.index, DONE)) == [109]
    assert peer.fetch() == [b"0"]
    assert settle(peer, (RETRIES, one.index, DONE)) == [0]
    assert retries_of(life) == []


def test_F18_a_retry_is_lent_only_when_it_is_written():
    """Else one whose turn is refused is in somebody's hands, and the attempt before it is not over."""
    life, peer = shop()
    fail(peer, *got(peer))
    life.pass_ms(1000)
    (one,) = got(peer)
    poll = peer.send(peer.fetch_command(wait_ms=60_000))
    life.settle()
    life.disk.fail("write", FULL, path_contains="journal/", wrote=0)
    assert settle(peer, (RETRIES, one.index, RETRY, 0, "")) == [109]
    assert peer.received(poll) is None
    assert settle(peer, (RETRIES, one.index, RETRY, 0, "")) == [0]
    (again,) = peer.messages(peer.received(poll))
    assert again.attributes[ATTEMPT] == "3", "and then at once, not with the next tick"


def test_F18_the_id_of_a_retry_that_was_not_written_never_means_another_message():
    """An operator may have seen it in the turn that failed."""
    life, peer = shop(bodies=(b"A", b"B"), is_concurrent=True, concurrent_prefetch_size=4)
    other = life.peer().consumes()
    assert (peer.fetch(count=1), other.fetch(count=1)) == ([b"A"], [b"B"])
    life.disk.fail("write", FULL, path_contains="journal/", wrote=0)
    assert settle(peer, (0, 0, RETRY, 0, "")) == [109]
    assert settle(other, (0, 1, RETRY, 60_000, "")) == [0]
    (row,) = retries_of(life)
    assert (row.message_index, row.id) == (1, 2)
    assert peer.ack([1], partition=RETRIES) == 0, "a late double of nothing"
    assert retries_of(life) == [row], "it still waits"


def test_F41_a_clock_that_is_set_changes_no_pause():
    life, peer = shop()
    fail(peer, *got(peer))
    life.clock.jump_wall(3_600_000)
    assert peer.fetch() == []
    life.pass_ms(999)
    assert peer.fetch() == []
    life.clock.jump_wall(-3 * 86_400_000)
    life.pass_ms(1)
    assert peer.fetch() == [b"0"]


# --- where it comes from ---------------------------------------------------------------------------------------------


@both
def test_a_retry_says_where_it_was(dialect):
    life, peer = shop(dialect, bodies=(b"0", b"1", b"2"))
    found = got(peer)
    assert peer.ack([0], partition=0) == 0
    if dialect is JOYQUEUE:
        found = got(peer)
    fail(peer, found[-2])
    life.pass_ms(1000)
    again = next(one for _ in range(3) for one in got(peer) if one.partition == RETRIES)
    assert again.body == b"1"
    assert (again.attributes[ORIGIN_PARTITION], again.attributes[ORIGIN_INDEX]) == ("0", "1")
    assert again.attributes[ATTEMPT] == "2"


def test_a_joyqueue_client_takes_retries_one_at_a_time():
    life, peer = shop(JOYQUEUE, bodies=(b"0", b"1", b"2"))
    fail(peer, *got(peer))
    life.pass_ms(1000)
    for body in (b"0", b"1", b"2"):
        (one,) = got(peer)
        assert (one.body, one.partition) == (body, RETRIES)
        assert peer.ack([one.index], partition=RETRIES) == 0
    assert retries_of(life) == []


@both
def test_a_member_of_a_batch_is_tried_again_alone(dialect):
    life, peer = shop(dialect, bodies=((b"a", b"b", b"c"),))
    assert len(got(peer)) == 1
    if dialect is JOYQUEUE:
        assert peer.ack([0, 1, 2], kind=2) == 0
    else:
        assert settle(peer, (0, 0, DONE), (0, 1, RETRY), (0, 2, DONE)) == [0, 0, 0]
    assert life.ack_index() == 3
    life.pass_ms(1000)
    first = got(peer)[0]
    assert first.body == (b"a" if dialect is JOYQUEUE else b"b")
    assert not hasattr(first, "items")


def test_members_of_a_batch_are_settled_one_by_one():
    life, peer = shop(bodies=((b"a", b"b", b"c"),))
    got(peer)
    assert settle(peer, (0, 2, DONE)) == [0]
    assert life.ack_index() == 0
    assert settle(peer, (0, 0, DONE)) == [0]
    assert life.ack_index() == 1
    assert settle(peer, (0, 1, DEAD, -1, "no good")) == [0]
    assert life.ack_index() == 3
    assert [(row.message_index, row.cause, row.reason) for row in dead_of(life)] == [(1, "asked", "no good")]


# --- beside new messages ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("probability", [0, 20, 50, 100])
def test_retries_are_mixed_in_as_often_as_wanted(probability):
    bodies = [b"%d" % number for number in range(60)]
    life, peer = shop(bodies=bodies, retry_read_probability=probability, retry_first_ms=1)
    for _ in range(20):
        fail(peer, *got(peer, count=1))
    life.pass_ms(1)
    kinds = []
    for _ in range(20):
        (one,) = got(peer, count=1)
        kinds.append(one.partition)
        assert peer.ack([one.index], partition=one.partition) == 0
    assert kinds.count(RETRIES) == 20 * probability // 100


def test_when_nothing_else_is_there_retries_come_whatever_the_probability():
    life, peer = shop(retry_read_probability=0)
    fail(peer, *got(peer))
    life.pass_ms(1000)
    assert peer.fetch() == [b"0"]


# --- the end ---------------------------------------------------------------------------------------------------------


@both
def test_after_the_last_attempt_it_is_a_dead_letter(dialect):
    life, peer = shop(dialect, retry_times=2, retry_first_ms=10, retry_factor=1)
    fail(peer, *got(peer))
    for _ in range(2):
        assert dead_of(life) == []
        life.pass_ms(10)
        fail(peer, *got(peer))
    (row,) = dead_of(life)
    assert (row.cause, row.attempts, row.partition, row.message_index) == ("exhausted", 3, 0, 0)
    assert retries_of(life) == []
    life.pass_ms(100_000)
    assert peer.fetch() == []


def test_with_one_attempt_each_that_fails_is_a_dead_letter_of_its_own():
    life, peer = shop(bodies=(b"0", b"1", b"2"), retry_times=0)
    fail(peer, *got(peer))
    assert [(row.id, row.message_index) for row in dead_of(life)] == [(1, 0), (2, 1), (3, 2)]
    assert life.ack_index() == 3


def test_a_consumer_may_give_up_at_once():
    life, peer = shop(bodies=(b"0", b"1"))
    got(peer)
    assert settle(peer, (0, 0, DEAD, -1, "cannot be"), (0, 1, RETRY)) == [0, 0]
    life.pass_ms(1000)
    (again,) = got(peer)
    assert settle(peer, (RETRIES, again.index, DEAD, -1, "nor this")) == [0]
    assert [(row.message_index, row.reason) for row in dead_of(life)] == [(0, "cannot be"), (1, "nor this")]


def test_where_there_are_no_retries_it_comes_again_at_once():
    life, peer = shop(is_retry=False)
    fail(peer, *got(peer))
    (again,) = got(peer)
    assert (again.body, again.partition) == (b"0", 0)
    assert retries_of(life) == []


def test_when_there_is_no_room_for_a_dead_letter_nothing_is_lost():
    life, peer = shop(bodies=(b"0", b"1"), settings={"dead_letters_max": 1}, retry_times=0)
    got(peer)
    assert peer.ack([0, 1], kind=2) == 240
    assert peer.fetch() == [b"0", b"1"], "both come again"
    assert peer.ack([0], kind=2) == 0
    assert len(dead_of(life)) == 1


def test_one_without_room_among_the_dead_is_tried_on():
    life, peer = shop(settings={"dead_letters_max": 0}, retry_times=1, retry_first_ms=10, retry_factor=1)
    fail(peer, *got(peer))
    for attempts in (2, 3, 4):
        life.pass_ms(10)
        fail(peer, *got(peer))
        assert retries_of(life)[0].attempts == attempts


def test_what_has_expired_meanwhile_is_not_tried_again():
    life, peer = shop(bodies=())
    due = str(life.clock.wall_ms() + 500)
    peer.produce(b"0", attributes={"EXPIRE": due})
    fail(peer, *got(peer))
    life.pass_ms(1000)
    assert peer.fetch() == []
    assert [row.cause for row in dead_of(life)] == ["expired"]


def test_several_that_expire_are_dead_letters_each():
    life, peer = shop(bodies=())
    due = str(life.clock.wall_ms() + 500)
    for number in range(6):
        peer.produce(b"%d" % number, attributes={"EXPIRE": due} if number % 2 else {})
    life.pass_ms(500)
    assert peer.fetch() == [b"0", b"2", b"4"]
    assert [(row.id, row.message_index) for row in dead_of(life)] == [(1, 1), (2, 3), (3, 5)]


# --- consumers that say nothing, or too much (F43) -------------------------------------------------------------------


def test_a_lease_that_ran_out_often_enough_counts_as_a_failure():
    leases_that_run_out()


def test_the_retry_of_one_who_does_not_answer_is_tried_again_later():
    life, peer = shop(retry_first_ms=10, retry_factor=10)
    fail(peer, *got(peer))
    life.pass_ms(10)
    assert len(got(peer, lease_ms=50)) == 1
    life.pass_ms(50)
    assert peer.fetch() == []
    assert retries_of(life)[0].attempts == 2
    life.pass_ms(100)
    (again,) = got(peer)
    assert again.attributes[ATTEMPT] == "3"


@both
def test_the_retry_of_one_who_is_gone_comes_at_once_and_costs_no_attempt(dialect):
    life, peer = shop(dialect)
    fail(peer, *got(peer))
    life.pass_ms(1000)
    assert len(got(peer)) == 1
    peer.pipe.hang_up()
    other = life.peer(dialect=dialect).consumes()
    (again,) = got(other)
    assert again.attributes[ATTEMPT] == "2"


def test_a_lease_on_a_retry_is_extended():
    life, peer = shop()
    fail(peer, *got(peer))
    life.pass_ms(1000)
    assert len(got(peer, lease_ms=100)) == 1
    life.pass_ms(60)
    assert peer.extend(partition=RETRIES, lease_ms=100) == 0
    life.pass_ms(60)
    assert retries_of(life)[0].attempts == 1
    life.pass_ms(40)
    assert retries_of(life)[0].attempts == 2
    assert peer.extend(partition=RETRIES, lease_ms=100) == 140


def test_an_ack_of_a_retry_counts_once():
    a_retry_acked_twice()


@pytest.mark.parametrize("outcome", [RETRY, DEAD])
def test_a_failure_said_twice_counts_once(outcome):
    life, peer = shop(retry_times=3, retry_first_ms=100, retry_factor=1)
    fail(peer, *got(peer))
    life.pass_ms(100)
    (again,) = got(peer)
    for _ in range(3):
        assert settle(peer, (RETRIES, again.index, outcome)) == [0]
    rows = [row.attempts for row in (*retries_of(life), *dead_of(life))]
    assert rows == [2]


@pytest.mark.parametrize("outcome", [RETRY, DEAD])
def test_F43_a_failure_said_twice_counts_once_though_the_next_attempt_is_lent_by_then(outcome):
    """The consumer had not seen the next attempt when it spoke."""
    life, peer = shop(retry_times=4, retry_first_ms=100, retry_factor=1)
    fail(peer, *got(peer))
    life.pass_ms(100)
    (second,) = got(peer)
    poll = peer.send(peer.fetch_command(wait_ms=60_000))
    fail(peer, second)
    life.pass_ms(100)
    (third,) = peer.messages(peer.received(poll))
    assert settle(peer, (RETRIES, second.index, outcome)) == [0]
    assert [row.attempts for row in (*retries_of(life), *dead_of(life))] == [2]
    life.pass_ms(1000)
    assert peer.fetch() == [], "it is in hand"
    assert settle(peer, (RETRIES, third.index, outcome)) == [0]
    assert [row.attempts for row in (*retries_of(life), *dead_of(life))] == [3], "and that is what counts"


@both
def test_F43_a_failure_said_after_the_lease_does_not_end_the_next_attempt_of_the_same_consumer(dialect):
    life, peer = shop(dialect, retry_first_ms=10, retry_factor=1)
    fail(peer, *got(peer))
    life.pass_ms(10)
    (second,) = got(peer, lease_ms=50)
    life.pass_ms(60)
    life.pass_ms(10)
    (third,) = got(peer)
    fail(peer, second)
    assert retries_of(life)[0].attempts == 2, "that its lease ran out was counted, and no more"
    fail(peer, third)
    assert retries_of(life)[0].attempts == 3


def test_an_ack_of_an_attempt_that_is_over_ends_the_retry():
    life, peer = shop(retry_first_ms=10, retry_factor=1)
    fail(peer, *got(peer))
    life.pass_ms(10)
    (second,) = got(peer, lease_ms=50)
    life.pass_ms(60)
    life.pass_ms(10)
    assert len(got(peer)) == 1
    assert peer.ack([second.index], partition=RETRIES) == 0
    assert retries_of(life) == []


@pytest.mark.parametrize("wrong", [-(3 << 44), 1 << 60], ids=["below", "above"])
def test_a_number_that_no_attempt_can_have_is_refused(wrong):
    life, peer = shop(retry_first_ms=10)
    fail(peer, *got(peer))
    life.pass_ms(10)
    (again,) = got(peer)
    assert peer.ack([again.index + wrong], partition=RETRIES) == 140
    assert len(retries_of(life)) == 1


def test_attempts_beyond_what_a_number_can_say_are_told_from_those_around_them():
    """As many as it takes, while there is no room for a dead letter."""
    life, peer = shop(settings={"dead_letters_max": 0}, retry_first_ms=10, retry_factor=1)
    fail(peer, *got(peer))
    (row,) = retries_of(life)
    life.broker.ledger.state.retries.put(row._replace(attempts=(1 << 16) - 2))
    for attempts in range((1 << 16) - 1, (1 << 16) + 2):
        life.pass_ms(10)
        (again,) = got(peer)
        for _ in range(2):
            fail(peer, again)
        assert retries_of(life)[0].attempts == attempts


def test_a_late_failure_of_what_another_has_does_not_count():
    life, peer = shop(retry_first_ms=10, retry_factor=1)
    fail(peer, *got(peer))
    life.pass_ms(10)
    (again,) = got(peer, lease_ms=50)
    life.pass_ms(60)
    life.pass_ms(10)
    other = life.peer().consumes()
    assert len(got(other)) == 1
    assert peer.ack([again.index], partition=RETRIES, kind=2) == 0
    assert retries_of(life)[0].attempts == 2, "that its lease ran out was counted, and no more"
    assert other.ack([again.index], partition=RETRIES) == 0
    assert retries_of(life) == []


# --- restarts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["kill", "restart"])
def test_retries_and_their_times_survive_a_restart(end):
    life, peer = shop(bodies=(b"0", b"1"))
    fail(peer, *got(peer))
    life.pass_ms(400)
    getattr(life, end)()
    peer = life.peer().consumes()
    life.pass_ms(599)
    assert peer.fetch() == []
    life.pass_ms(1)
    assert sorted(peer.fetch()) == [b"0", b"1"]


def test_attempts_at_leases_survive_a_restart():
    life, peer = shop(error_times=3, retry_first_ms=10)
    for _ in range(2):
        assert peer.fetch(lease_ms=50) == [b"0"]
        life.pass_ms(50)
    life.kill()
    peer = life.peer().consumes()
    assert peer.fetch(lease_ms=50) == [b"0"]
    life.pass_ms(50)
    assert len(retries_of(life)) == 1


def test_retries_survive_many_segments():
    life, peer = shop(storage=TINY)
    fail(peer, *got(peer))
    for _ in range(60):
        peer.produce(bytes(700))
        assert len(got(peer, count=100)) > 0
        assert peer.ack([life.ack_index()]) == 0
    life.kill()
    life.pass_ms(1000)
    peer = life.peer().consumes()
    assert peer.fetch() == [b"0"]


def test_a_retry_whose_end_cannot_be_written_is_not_lost():
    life = make_broker(partitions=1)
    peer = life.peer().consumes()
    peer.produce(b"x", attributes={"EXPIRE": str(life.engine.now().wall_ms + 500)})
    peer.fetch()
    peer.ack([0], kind=2)
    life.pass_ms(1100)
    settle = life.broker.ledger.settle

    def refuse(entries, now_ms):
        raise WriteError("no room")

    life.broker.ledger.settle = refuse
    assert peer.fetch() == []
    life.broker.ledger.settle = settle
    assert len(life.broker.ledger.state.retries) == 1
    life.pass_ms(1100)
    assert peer.fetch() == []
    assert (len(life.broker.ledger.state.retries), len(life.broker.ledger.state.dead_letters)) == (0, 1)
