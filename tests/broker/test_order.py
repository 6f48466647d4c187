"""Order through failures: all of a partition, or messages of one key (I10, I14)."""

import pytest

from broker.fix_broker import DOCUMENTED, JOYQUEUE, make_broker
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
    life, peer = shop(keys="aaa", prefetch=2)
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
    life.pass_ms(PAUSE_MS)
    assert len(peer.fetch(count=1)) == 3, "batches come whole"
    assert peer.ack([1]) == 0
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
