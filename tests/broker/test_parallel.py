"""Parallel consumption: several leases out in one partition, acks in any order."""

import pytest

from broker.fix_broker import DOCUMENTED, FULL, JOYQUEUE, make_broker
from lakemq.wire.own import Settle, Settlement, SettleOutcome, TopicSettlements

both = pytest.mark.parametrize("dialect", [DOCUMENTED, JOYQUEUE], ids=lambda one: one.value)


def shop(dialect=DOCUMENTED, *, count=9, prefetch=9, partitions=1, bodies=None, **policy):
    life = make_broker(partitions=partitions)
    wanted = {"is_concurrent": True, "concurrent_prefetch_size": prefetch, **policy}
    life.ask("subscribe", topic="orders", app="shop", consumer=wanted)
    peer = life.peer(dialect=dialect).consumes()
    for body in bodies or [b"%d" % number for number in range(count)]:
        assert peer.produce(body)[0] == 0
    return life, peer


def retry(peer, *indexes, after_ms=-1):
    said = tuple(Settlement(0, index, SettleOutcome.RETRY, after_ms) for index in indexes)
    answer = peer.ask(Settle((TopicSettlements("orders", said),), "shop"))
    return {one.code for one in answer.body.topics[0].settled}


@both
def test_so_many_messages_are_out_at_a_time_and_no_more(dialect):
    life, peer = shop(dialect, prefetch=5)
    others = [life.peer(dialect=dialect).consumes() for _ in range(3)]
    assert peer.fetch(count=2) == [b"0", b"1"]
    assert others[0].fetch(count=1) == [b"2"]
    assert others[1].fetch(count=2) == [b"3", b"4"]
    assert others[2].fetch(count=2) == []
    assert others[0].ack([2]) == 0
    assert others[2].fetch(count=2) == [b"5"]


@both
def test_with_batches_of_ten_and_twenty_at_a_time_two_consumers_share_a_partition(dialect):
    """Seed 001: 20 / 10 = 2."""
    life, peer = shop(dialect, count=60, prefetch=20, batch_size=10)
    others = [life.peer(dialect=dialect).consumes() for _ in range(3)]
    assert [len(one.fetch(count=10)) for one in (peer, *others)] == [10, 10, 0, 0]
    assert peer.ack(list(range(10))) == 0
    assert len(others[1].fetch(count=10)) == 10


def test_what_is_settled_of_a_lease_makes_room():
    life, peer = shop(prefetch=4)
    other = life.peer().consumes()
    assert len(peer.fetch(count=4)) == 4
    assert other.fetch() == []
    assert peer.ack([1, 3]) == 0
    assert other.fetch() == [b"4", b"5"]


def test_a_batch_comes_whole_where_there_is_room_for_a_part_of_it():
    _, peer = shop(bodies=[b"0", (b"a", b"b", b"c"), b"4"], prefetch=2)
    assert peer.fetch(count=1) == [b"0"]
    assert len(peer.fetch(count=1)) == 3
    assert peer.fetch(count=1) == []


@both
def test_an_ack_of_one_lease_leaves_the_others_of_the_connection_alone(dialect):
    life, peer = shop(dialect, count=30, prefetch=30)
    assert len(peer.fetch(count=10)) == len(peer.fetch(count=10)) == 10
    assert peer.ack(list(range(10))) == 0
    assert peer.fetch(count=10) == [b"%d" % number for number in range(20, 30)]
    assert peer.ack(list(range(10, 20))) == 0
    assert life.ack_index() == 20


def test_a_failure_that_finds_no_room_gives_back_its_own_lease_only():
    life = make_broker(partitions=1, retries_max=0)
    life.ask("subscribe", topic="orders", app="shop", consumer={"is_concurrent": True, "concurrent_prefetch_size": 9})
    peer = life.peer().consumes()
    for number in range(4):
        assert peer.produce(b"%d" % number)[0] == 0
    assert peer.fetch(count=2) == [b"0", b"1"]
    assert peer.fetch(count=2) == [b"2", b"3"]
    assert peer.ack([0, 1], kind=2) != 0
    assert peer.fetch(count=9) == [b"0", b"1"]


def test_one_consumer_may_have_several():
    _, peer = shop(prefetch=2)
    assert peer.fetch(count=1) == [b"0"]
    assert peer.fetch(count=1) == [b"1"]
    assert peer.fetch(count=1) == []


@both
def test_acks_in_any_order_move_the_index_over_what_is_done(dialect):
    life, peer = shop(dialect)
    others = [life.peer(dialect=dialect).consumes() for _ in range(2)]
    for one in (peer, *others):
        assert len(one.fetch(count=2)) == 2
    assert others[1].ack([4, 5]) == 0
    assert life.ack_index() == 0
    assert others[0].ack([2, 3]) == 0
    assert life.ack_index() == 0
    assert peer.ack([0, 1]) == 0
    assert life.ack_index() == 6


def test_F18_an_ack_of_a_part_that_was_refused_leaves_the_lease_to_its_holder():
    life, peer = shop(count=6)
    other = life.peer().consumes()
    assert peer.fetch(count=4) == [b"0", b"1", b"2", b"3"]
    life.disk.fail("write", FULL, path_contains="journal/", wrote=0)
    assert peer.ack([1, 2]) == 109
    assert other.fetch() == [b"4", b"5"], "nothing of the first lease"
    assert (peer.ack([1, 2]), life.ack_index()) == (0, 0)
    assert (peer.ack([0, 3]), life.ack_index()) == (0, 4)


def test_F18_an_ack_of_all_that_was_refused_brings_it_again():
    life, peer = shop(count=3)
    assert peer.fetch(count=2) == [b"0", b"1"]
    life.disk.fail("write", FULL, path_contains="journal/", wrote=0)
    assert peer.ack([0, 1]) == 109
    assert life.peer().consumes().fetch() == [b"0", b"1"]


def test_what_comes_back_is_lent_before_anything_newer():
    life, peer = shop()
    other = life.peer().consumes()
    assert peer.fetch(count=3) == [b"0", b"1", b"2"]
    assert other.fetch(count=1) == [b"3"]
    assert peer.ack([1]) == 0
    peer.pipe.hang_up()
    assert other.fetch(count=5) == [b"0"]
    assert other.fetch(count=5) == [b"2"]


def test_a_lease_that_ran_out_comes_again_and_a_late_ack_counts():
    life, peer = shop()
    other = life.peer().consumes()
    assert peer.fetch(count=2, lease_ms=100) == [b"0", b"1"]
    life.pass_ms(100)
    assert peer.ack([1]) == 0, "nobody else has it"
    assert other.fetch(count=2) == [b"0"]
    assert peer.ack([0]) == 0, "done is done"
    assert life.ack_index() == 2
    assert other.ack([0]) == 0


def test_acks_survive_a_restart_with_their_gaps():
    life, peer = shop()
    assert len(peer.fetch(count=5)) == 5
    assert peer.ack([1, 3]) == 0
    life.kill()
    peer = life.peer().consumes()
    assert peer.fetch(count=9) == [b"0"]
    assert peer.fetch(count=9) == [b"2"]
    assert peer.fetch(count=9) == [b"4", b"5", b"6", b"7", b"8"]


def test_a_failure_holds_nobody_up():
    life, peer = shop()
    assert len(peer.fetch(count=3)) == 3
    assert retry(peer, 1) == {0}
    assert peer.ack([0, 2]) == 0
    assert life.ack_index() == 3
    life.pass_ms(1000)
    bodies = [peer.fetch(count=1) for _ in range(6)]
    assert [b"1"] in bodies or peer.fetch() == [b"1"]


def test_a_seek_takes_all_leases_back():
    life, peer = shop()
    other = life.peer().consumes()
    assert len(peer.fetch(count=2)) == len(other.fetch(count=2)) == 2
    assert peer.seek(1) == 0
    assert other.fetch(count=9) == [b"%d" % number for number in range(1, 9)]


def test_partitions_max_counts_partitions_not_leases():
    _, peer = shop(partitions=2, partitions_max=1, prefetch=2)
    peer.produce(b"other", partition=1)
    assert len(peer.fetch(count=1)) == 1
    assert peer.fetch(count=1) == []


def test_a_batch_that_is_done_with_in_part_is_not_lent_twice():
    """It is handed out whole, but each member is in one hand."""
    life, peer = shop(bodies=[(b"a", b"b", b"c"), b"d"])
    other = life.peer().consumes()
    assert len(peer.fetch(count=1)) == 3
    assert peer.ack([1]) == 0
    peer.pipe.hang_up()
    assert len(other.fetch(count=1)) == 3
    leases = life.broker.consuming._lendings
    (lending,) = leases.values()
    held = [index for one in lending.loans.leases(0) for run in one.open for index in range(*run)]
    assert len(held) == len(set(held))
    third = life.peer().consumes()
    third.fetch(count=1)
    held = [index for one in lending.loans.leases(0) for run in one.open for index in range(*run)]
    assert len(held) == len(set(held))


def test_behind_what_a_filter_leaves_out_and_what_is_done_with_there_is_more():
    life = make_broker(partitions=1)
    peer = life.peer().consumes()
    for tag in ("red", "blue", "blue", "blue"):
        peer.produce(tag.encode(), attributes={"TAGS": tag})
    assert len(peer.fetch()) == 4
    assert peer.ack([1]) == 0
    life.kill()
    life.ask("subscribe", topic="orders", app="shop", consumer={"filter": "blue"})
    peer = life.peer().consumes()
    assert peer.fetch() == [b"blue", b"blue"]
    assert peer.ack([2, 3]) == 0
    assert life.ack_index() == 4
