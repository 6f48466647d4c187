"""Replay: a live group is moved to another place, by offset or time, after a look at what that would do."""

import pytest

from broker.fix_broker import make_broker
from lakemq.errors import LakeMQError


def filled(count=10, **policy):
    life = make_broker(partitions=1)
    life.ask("subscribe", topic="orders", app="shop", consumer={"batch_size": 4, **policy})
    peer = life.peer().consumes()
    for number in range(count):
        peer.produce(b"%d" % number)
        life.pass_ms(1000)
    return life, peer


def seek(life, **wish):
    return life.ask("seek", topic="orders", app="shop", **wish)


def numbers(first, after):
    return [b"%d" % number for number in range(first, after)]


def test_a_preview_moves_nothing():
    life, peer = filled()
    peer.fetch()
    peer.ack(range(4))
    (plan,) = seek(life, to="earliest")
    assert (plan["offset"], plan["target"], plan["change"], plan["lag"]) == (4, 0, -4, 6)
    assert life.ack_index() == 4


def test_by_offset_and_back_again():
    life, peer = filled()
    peer.ack(range(10))
    seek(life, to=3, execute=True)
    assert (life.ack_index(), peer.fetch()) == (3, numbers(3, 7))
    seek(life, to="latest", execute=True)
    assert (life.ack_index(), peer.fetch()) == (10, [])


def test_by_time():
    life, peer = filled()
    peer.ack(range(10))
    at_ms = life.engine.now().wall_ms - 4500  # the last but four was stored before, the next after
    (plan,) = seek(life, to="time", time_ms=at_ms, execute=True)
    assert peer.fetch()[0] == b"%d" % plan["target"]
    assert 5 <= plan["target"] <= 6


def test_a_live_consumer_is_moved_and_its_old_acks_do_not_move_the_group():
    life, peer = filled()
    assert peer.fetch() == numbers(0, 4)
    seek(life, to=8, execute=True)
    assert (peer.ack([0, 1, 2, 3]), life.ack_index()) == (0, 8)
    assert peer.fetch() == numbers(8, 10)


def test_pause_move_resume():
    life, peer = filled()
    peer.fetch()
    life.ask("subscribe", topic="orders", app="shop", consumer={"is_paused": True})
    assert peer.fetch() == 186
    assert peer.ack(range(4)) == 0, "what was in hand is finished"
    seek(life, to=2, execute=True)
    assert peer.fetch() == 186
    life.ask("subscribe", topic="orders", app="shop", consumer={"is_paused": False})
    assert peer.fetch() == numbers(2, 6)


def test_a_replay_forgets_what_was_acked_out_of_order():
    life, peer = filled()
    peer.fetch()
    peer.ack([1, 2, 3])
    seek(life, to=0, execute=True)
    assert peer.fetch() == numbers(0, 4), "all of them again"


def test_a_replay_leaves_retries_and_dead_letters_where_they_are():
    life, peer = filled()
    peer.fetch()
    peer.ack([0], kind=2)
    seek(life, to="latest", execute=True)
    life.pass_ms(2000)
    assert peer.fetch() == [b"0"]


def test_it_survives_a_kill():
    life, peer = filled()
    peer.ack(range(10))
    seek(life, to=3, execute=True)
    life.kill()
    assert life.peer().consumes().fetch() == numbers(3, 7)


@pytest.mark.parametrize("wish", [{"to": "tomorrow"}, {"to": "time"}, {"to": 1, "partition": 9}])
def test_what_cannot_be_is_refused(wish):
    life, _ = filled(1)
    with pytest.raises(LakeMQError):
        seek(life, execute=True, **wish)
    assert life.ack_index() == 0
