"""Order through failures: all of a partition, or messages of one key (I10, I14)."""

import pytest

from broker.fix_broker import DOCUMENTED, FULL, JOYQUEUE, make_broker
from lakemq.wire.own import Settle, Settlement, SettleOutcome, TopicSettlements

DONE, RETRY, DEAD = SettleOutcome.DONE, SettleOutcome.RETRY, SettleOutcome.DEAD_LETTER
both = pytest.mark.parametrize("dialect", [DOCUMENTED, JOYQUEUE], ids=lambda one: one.value)
PAUSE_MS = 100


def shop(dialect=DOCUMENTED, *, keys="aabab", is_topic_ordered=False, prefetch=0, bodies=None, **policy):
    """Messages 0, 1, 2 … with these keys in one partition; `prefetch` for several leases at a time."""
    life = make_broker(partitions=1, topics=())
    life.ask("create_topic", name="orders", partitions=1, type="ordered" if is_topic_ordered else "normal")
    wanted = {"retry_first_ms": PAUSE_MS, "retry_factor": 1, "is_sequential": not is_topic_ordered, **policy}
    if prefetch:
        wanted |= {"is_concurrent": True, "concurrent_prefetch_size": prefetch}
    life.ask("subscribe", topic="orders", app="shop", producer={}, consumer=wanted, start="earliest")
    peer = life.peer(dialect=dialect).consumes()
    for number, key in enumerate(keys):
        body = bodies[number] if bodies else b"%d" % number
        assert peer.produce(body, business_id=key)[0] == 0
    return life, peer


def settle(peer, **outcomes):
    """settle(peer, i0=DONE, i3=RETRY)"""
    said = tuple(Settlement(0, int(name[1:]), outcome) for name, outcome in outcomes.items())
    answer = peer.ask(Settle((TopicSettlements("orders", said),), "shop"))
    return {one.code for one in answer.body.topics[0].settled}


def stuck_of(life):
    subscription = life.broker.ledger.metadata.subscription("orders", "shop")
    return life.broker.ledger.state.setbacks.stuck(subscription.number, 0)


# --- strict ----------------------------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize("is_topic_ordered", [True, False], ids=["topic", "policy"])
def test_what_failed_comes_first_again_and_nothing_before_it(dialect, is_topic_ordered):
    life, peer = shop(dialect, is_topic_ordered=is_topic_ordered)
    assert len(peer.fetch(count=3)) == 3
    assert peer.ack([0]) == 0
    if dialect is JOYQUEUE:
        assert len(peer.fetch(count=2)) == 2
    assert peer.ack([1, 2], kind=2) == 0
    assert life.ack_index() == 1
    life.pass_ms(PAUSE_MS - 1)
    assert peer.fetch() == []
    life.pass_ms(1)
    assert peer.fetch(count=2) == [b"1", b"2"]


def test_what_was_done_behind_a_failure_comes_again():
    """The consumer may have worked on it too early."""
    life, peer = shop()
    assert len(peer.fetch(count=3)) == 3
    assert settle(peer, i0=DONE, i1=RETRY, i2=DONE) == {0}
    assert life.ack_index() == 1
    life.pass_ms(PAUSE_MS)
    assert peer.fetch(count=3) == [b"1", b"2"]


def test_only_one_has_the_partition():
    life, peer = shop()
    other = life.peer().consumes()
    assert len(peer.fetch(count=1)) == 1
    assert other.fetch() == []
    assert peer.ack([0]) == 0
    assert other.fetch(count=1) == [b"1"]


def test_after_the_last_attempt_the_others_go_on():
    life, peer = shop(retry_times=1)
    assert len(peer.fetch(count=1)) == 1
    assert peer.ack([0], kind=2) == 0
    life.pass_ms(PAUSE_MS)
    assert peer.fetch(count=1) == [b"0"]
    assert peer.ack([0], kind=2) == 0
    (row,) = life.broker.ledger.state.dead_letters.rows()
    assert (row.message_index, row.attempts, row.cause) == (0, 2, "exhausted")
    assert peer.fetch(count=1) == [b"1"]
    assert not stuck_of(life)


def test_one_that_was_stuck_and_is_done_is_forgotten():
    life, peer = shop()
    assert len(peer.fetch(count=1)) == 1
    assert peer.ack([0], kind=2) == 0
    assert list(stuck_of(life)) == [0]
    life.pass_ms(PAUSE_MS)
    assert peer.fetch(count=1) == [b"0"]
    assert peer.ack([0]) == 0
    assert not stuck_of(life)


def test_a_failure_said_twice_counts_once():
    life, peer = shop(retry_times=2)
    assert len(peer.fetch(count=1)) == 1
    for _ in range(4):
        assert peer.ack([0], kind=2) == 0
    assert stuck_of(life)[0].attempts == 1


@pytest.mark.parametrize("end", ["kill", "restart"])
def test_a_restart_forgives_no_attempt_and_hurries_nothing(end):
    life, peer = shop(retry_times=2)
    assert len(peer.fetch(count=1)) == 1
    assert peer.ack([0], kind=2) == 0
    life.pass_ms(40)
    getattr(life, end)()
    peer = life.peer().consumes()
    life.pass_ms(PAUSE_MS - 41)
    assert peer.fetch() == []
    life.pass_ms(1)
    assert peer.fetch(count=1) == [b"0"]
    assert stuck_of(life)[0].attempts == 1


def test_a_lease_that_runs_out_too_often_counts():
    life, peer = shop(error_times=2)
    for _ in range(2):
        assert peer.fetch(count=2, lease_ms=50) == [b"0", b"1"]
        life.pass_ms(50)
    assert peer.fetch() == [], "the first of them failed, and the rest waits"
    assert {index: row.attempts for index, row in stuck_of(life).items()} == {0: 1}
    life.pass_ms(PAUSE_MS)
    assert peer.fetch(count=1) == [b"0"]


@both
@pytest.mark.parametrize("is_topic_ordered", [True, False], ids=["topic", "policy"])
@pytest.mark.parametrize("outcome", [RETRY, "nack"])
def test_I10_what_is_acked_behind_a_failure_in_later_requests_comes_again(dialect, is_topic_ordered, outcome):
    if dialect is JOYQUEUE and outcome is RETRY:
        outcome = "nack"
    life, peer = shop(dialect, keys="aaaaa", is_topic_ordered=is_topic_ordered)
    assert len(peer.fetch(count=5)) == 5
    if dialect is JOYQUEUE:
        assert peer.ack([0, 1], kind=2) == 0
    else:
        assert peer.ack([0]) == 0
        assert (settle(peer, i1=RETRY) if outcome is RETRY else {peer.ack([1], kind=2)}) == {0}
    for index in (2, 3, 4):
        code = peer.ack([index])
        assert code == 140 or dialect is JOYQUEUE, "whose server says so to nobody"
    first = 0 if dialect is JOYQUEUE else 1
    assert life.ack_index() == first
    life.pass_ms(PAUSE_MS)
    assert peer.fetch(count=9) == [b"%d" % number for number in range(first, 5)]


def test_I10_an_ack_that_leaves_out_what_is_in_hand_is_refused_and_can_be_said_in_order():
    life, peer = shop(keys="aaa")
    assert len(peer.fetch(count=3)) == 3
    assert peer.ack([1, 2]) == 140
    assert (life.ack_index(), peer.ack([0]), peer.ack([1, 2]), life.ack_index()) == (0, 0, 0, 3)


def test_I10_nothing_becomes_a_dead_letter_behind_what_is_not_settled():
    life, peer = shop(keys="aaa", retry_times=1)
    assert len(peer.fetch(count=3)) == 3
    assert settle(peer, i1=DEAD) == {140}
    assert settle(peer, i2=RETRY) == {0}, "it comes again, and may become one when it is its turn"
    assert not life.broker.ledger.state.dead_letters.rows()
    assert peer.ack([0, 1]) == 0
    life.pass_ms(PAUSE_MS)
    assert peer.fetch() == [b"2"]
    assert settle(peer, i2=RETRY) == {0}
    assert [row.message_index for row in life.broker.ledger.state.dead_letters.rows()] == [2]


def test_I10_who_has_what_is_behind_a_lost_ack_gives_it_back():
    """The disk refused an ack while the next messages were lent already: those first, then these."""
    life, peer = shop(keys="aaaa")
    other = life.peer().consumes()
    assert len(peer.fetch(count=2)) == 2
    life.disk.fail("write", FULL, path_contains="journal/", wrote=0)
    refused, lent = peer.send(peer.ack_command([0, 1])), other.send(other.fetch_command(count=2))
    life.settle()
    assert peer.received(refused).body.topics[0].partitions[0].code == 109
    assert other.fetched(other.received(lent)) == [b"2", b"3"]
    assert other.ack([2, 3]) == 140
    assert peer.fetch(count=9) == [b"0", b"1", b"2", b"3"]


@pytest.mark.parametrize("prefetch", [0, 5])
def test_the_attempt_is_counted(prefetch):
    life, peer = shop(keys="aba", prefetch=prefetch, retry_times=5)
    for attempt in range(1, 4):
        found = peer.messages(peer.ask(peer.fetch_command(count=3)))
        assert [one.attributes.get("LAKEMQ_ATTEMPT", "1") for one in found] == [str(attempt), "1", "1"][: len(found)]
        assert settle(peer, i0=RETRY) == {0}
        life.pass_ms(PAUSE_MS)
        if prefetch:
            peer.pipe.hang_up()
            peer = life.peer().consumes()


def test_a_batch_says_which_attempt_it_is():
    life, peer = shop(keys="a", bodies=[(b"x", b"y", b"z")])
    assert len(peer.fetch()) == 3
    assert settle(peer, i0=DONE, i1=RETRY) == {0}
    life.pass_ms(PAUSE_MS)
    (batch,) = peer.messages(peer.ask(peer.fetch_command()))
    assert batch.attributes == {"LAKEMQ_ATTEMPT": "2"}


# --- by key ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_topic_ordered", [True, False], ids=["topic", "policy"])
def test_one_key_is_in_one_hand(is_topic_ordered):
    life, peer = shop(keys="abacb", prefetch=3, is_topic_ordered=is_topic_ordered)
    other, third = life.peer().consumes(), life.peer().consumes()
    assert peer.fetch(count=1) == [b"0"]
    assert other.fetch(count=5) == [b"1"], "then comes one of a key that is busy"
    assert third.fetch(count=5) == []
    assert peer.ack([0]) == 0
    assert third.fetch(count=5) == [b"2", b"3"]
    assert peer.fetch(count=5) == []
    assert other.ack([1]) == 0
    assert peer.fetch(count=5) == [b"4"]


def test_a_key_that_failed_waits_and_the_others_go_on():
    life, peer = shop(keys="abab", prefetch=2)
    assert peer.fetch(count=1) == [b"0"]
    assert settle(peer, i0=RETRY) == {0}
    assert peer.fetch(count=5) == [b"1"], "of the other key"
    assert peer.ack([1]) == 0
    assert peer.fetch(count=5) == []
    life.pass_ms(PAUSE_MS)
    assert peer.fetch(count=1) == [b"0"]
    assert peer.ack([0]) == 0
    assert peer.fetch(count=5) == [b"2", b"3"]


def test_several_of_a_key_that_failed_come_again_in_order():
    life, peer = shop(keys="aaa", prefetch=3)
    assert len(peer.fetch(count=3)) == 3
    assert settle(peer, i0=RETRY, i1=RETRY, i2=RETRY) == {0}
    life.pass_ms(PAUSE_MS)
    assert peer.fetch(count=3) == [b"0", b"1", b"2"]
    assert peer.ack([0, 1, 2]) == 0
    assert life.ack_index() == 3
    assert not stuck_of(life)


def test_a_member_of_a_batch_that_failed_comes_again():
    life, peer = shop(keys="ab", bodies=[(b"x", b"y", b"z"), b"1"], prefetch=2)
    assert len(peer.fetch(count=1)) == 3
    assert settle(peer, i0=DONE, i1=RETRY, i2=DONE) == {0}
    assert life.ack_index() == 1, "nobody looks at the keys of its members: they keep their order"
    life.pass_ms(PAUSE_MS)
    assert len(peer.fetch(count=1)) == 3, "batches come whole"
    assert peer.ack([1, 2]) == 0
    assert peer.fetch() == [b"1"]


def test_a_dead_member_comes_along_with_its_batch_and_is_not_tried_again():
    life, peer = shop(keys="ab", bodies=[(b"x", b"y", b"z"), b"1"], retry_times=1)
    for _ in range(2):
        assert len(peer.fetch(count=1)) == 3
        assert settle(peer, i0=RETRY, i1=RETRY) == {0}
        life.pass_ms(PAUSE_MS)
    assert (life.ack_index(), len(life.broker.ledger.state.dead_letters)) == (1, 1)
    assert len(peer.fetch(count=1)) == 3, "batches come whole"
    assert settle(peer, i0=RETRY, i1=DONE, i2=DONE) == {0}, "what is said of the dead one changes nothing"
    assert (life.ack_index(), len(life.broker.ledger.state.dead_letters)) == (3, 1)
    assert peer.fetch() == [b"1"]


def test_what_waits_is_not_forgotten_by_a_restart():
    life, peer = shop(keys="abc", prefetch=2)
    assert peer.fetch(count=1) == [b"0"]
    assert settle(peer, i0=RETRY) == {0}
    life.kill()
    peer = life.peer().consumes()
    assert peer.fetch(count=5) == [b"1", b"2"]
    assert peer.ack([1, 2]) == 0
    life.pass_ms(PAUSE_MS)
    assert peer.fetch() == [b"0"]


def test_the_last_attempt_of_a_key_lets_the_rest_of_it_go():
    life, peer = shop(keys="aa", prefetch=2, retry_times=0)
    assert peer.fetch(count=1) == [b"0"]
    assert settle(peer, i0=RETRY) == {0}
    assert [row.message_index for row in life.broker.ledger.state.dead_letters.rows()] == [0]
    assert peer.fetch() == [b"1"]


def test_I10_behind_a_failure_messages_of_its_key_come_again_and_others_stay_in_hand():
    life, peer = shop(keys="abab", prefetch=9)
    other = life.peer().consumes()
    assert len(peer.fetch(count=4)) == 4
    assert settle(peer, i0=RETRY) == {0}
    assert peer.ack([2]) == 140
    assert other.fetch() == []
    assert peer.ack([1]) == 0
    assert peer.ack([3]) == 0
    life.pass_ms(PAUSE_MS)
    assert other.fetch(count=9) == [b"0"], "what is done comes between"
    assert other.fetch(count=9) == [], "of a key that is in hand"
    assert other.ack([0]) == 0
    assert peer.fetch(count=9) == [b"2"]


def test_I10_of_a_key_in_hand_the_first_is_acked_first():
    life, peer = shop(keys="abab", prefetch=9)
    assert len(peer.fetch(count=4)) == 4
    assert peer.ack([1]) == 0, "the first of its key"
    assert peer.ack([2]) == 140
    assert peer.ack([0, 2]) == 0
    assert peer.ack([3]) == 0
    assert life.ack_index() == 4


def test_I14_a_key_is_free_once_its_messages_are_settled():
    life, peer = shop(keys="abab", prefetch=9)
    other = life.peer().consumes()
    assert peer.fetch(count=2) == [b"0", b"1"]
    assert peer.ack([0]) == 0
    assert other.fetch(count=1) == [b"2"]
    assert other.fetch(count=1) == []


def test_I14_a_batch_may_have_any_key():
    life, peer = shop(keys="aba", bodies=[b"0", (b"x", b"y"), b"3"], prefetch=9)
    other = life.peer().consumes()
    assert peer.fetch(count=1) == [b"0"]
    assert other.fetch(count=1) == [], "the batch may have one of key a"
    assert peer.ack([0]) == 0
    assert len(other.fetch(count=1)) == 2
    assert peer.fetch(count=1) == [], "and so may what is in hand"
    assert other.ack([1, 2]) == 0
    assert peer.fetch(count=1) == [b"3"]


@pytest.mark.parametrize("prefetch", [0, 9])
def test_I10_a_late_word_settles_nothing_behind_a_failure_either(prefetch):
    """The lease is over, so nobody knows the keys any more."""
    life, peer = shop(keys="aaa", prefetch=prefetch)
    assert len(peer.fetch(count=3, lease_ms=50)) == 3
    life.pass_ms(50)
    assert settle(peer, i0=RETRY, i1=DONE, i2=DONE) == {0}
    assert life.ack_index() == 0
    life.pass_ms(PAUSE_MS)
    assert peer.fetch(count=3) == [b"0", b"1", b"2"]
