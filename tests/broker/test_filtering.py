"""Filters at the broker: what an app does not want counts as consumed, and a retry is never hidden."""

import pytest

from broker.fix_broker import DOCUMENTED, FULL, JOYQUEUE, make_broker
from lakemq.wire.own import SetFilter

both = pytest.mark.parametrize("dialect", [DOCUMENTED, JOYQUEUE])


def filtered(text, dialect=DOCUMENTED, **details):
    life = make_broker(partitions=1, **details)
    life.ask("subscribe", topic="orders", app="shop", consumer={"filter": text})
    return life, life.peer(dialect=dialect).consumes()


def send(peer, *tags):
    for number, tag in enumerate(tags):
        peer.produce(b"%d %s" % (number, tag.encode()), attributes={"TAGS": tag} if tag else {})


@both
def test_only_the_tags_that_are_wanted_come(dialect):
    _, peer = filtered("paid || refund", dialect)
    send(peer, "paid", "new", "refund", "", "paid")
    assert peer.fetch() == [b"0 paid", b"2 refund", b"4 paid"]


def test_what_is_left_out_is_consumed_though_nobody_acks_it():
    life, peer = filtered("paid")
    send(peer, "new", "new", "new")
    assert (peer.fetch(), life.ack_index()) == ([], 3)
    assert life.broker.metrics.settled["orders", "shop", "filtered"] == 3
    life.kill()
    assert life.ack_index() == 3


def test_the_index_moves_over_what_is_left_out_between_acks():
    life, peer = filtered("a")
    send(peer, "a", "b", "a", "b", "a")
    assert peer.fetch() == [b"0 a", b"2 a", b"4 a"]
    assert (peer.ack([2]), life.ack_index()) == (0, 0)
    assert (peer.ack([0]), life.ack_index()) == (0, 4)
    assert (peer.ack([4]), life.ack_index()) == (0, 5)


def test_F18_what_is_left_out_and_not_written_is_looked_at_again_and_the_lease_stays():
    life, peer = filtered("size > 3")
    life.ask("subscribe", topic="orders", app="shop", consumer={"is_concurrent": True, "concurrent_prefetch_size": 3})
    other = life.peer().consumes()
    for size in (5, 1, 6):
        peer.produce(b"%d" % size, attributes={"size": str(size)})
    life.disk.fail("write", FULL, path_contains="journal/", wrote=0)
    assert peer.fetch() == [b"5", b"6"]
    assert (life.ack_index(), other.fetch()) == (0, [])
    assert (peer.ack([0, 2]), life.ack_index()) == (0, 3)


def test_attributes_decide_too():
    life, peer = filtered("size > 3 AND colour = 'red'")
    peer.produce(b"small", attributes={"size": "2", "colour": "red"})
    peer.produce(b"large", attributes={"size": "20", "colour": "red"})
    peer.produce(b"blue", attributes={"size": "20", "colour": "blue"})
    assert (peer.fetch(), life.ack_index()) == ([b"large"], 1)


def test_many_that_are_left_out_do_not_keep_a_consumer_from_the_one_that_is_not():
    _, peer = filtered("wanted")
    for _ in range(300):
        peer.produce(b"x", attributes={"TAGS": "other"})
    peer.produce(b"y", attributes={"TAGS": "wanted"})
    assert peer.fetch(count=1) == [b"y"]


def test_a_long_poll_waits_for_one_that_is_wanted():
    life, peer = filtered("a")
    asked = peer.send(peer.fetch_command(wait_ms=10_000))
    life.settle()
    peer.produce(b"no", attributes={"TAGS": "b"})
    life.settle()
    assert peer.received(asked) is None
    peer.produce(b"yes", attributes={"TAGS": "a"})
    life.settle()
    assert peer.fetched(peer.received(asked)) == [b"yes"]


def test_a_filter_never_hides_a_retry():
    life, peer = filtered("a")
    send(peer, "a")
    peer.fetch()
    peer.ack([0], kind=2)
    life.ask("subscribe", topic="orders", app="shop", consumer={"filter": "b"})
    life.pass_ms(1500)
    assert peer.fetch() == [b"0 a"]


def test_other_apps_have_filters_of_their_own():
    life, peer = filtered("a")
    life.ask("subscribe", topic="orders", app="shop.all", consumer={}, start="earliest")
    everything = life.peer(app="shop.all").consumes(app="shop.all")
    send(peer, "a", "b")
    assert peer.fetch() == [b"0 a"]
    assert everything.fetch(app="shop.all") == [b"0 a", b"1 b"]


def test_who_reads_by_partition_sees_everything():
    _, peer = filtered("a")
    send(peer, "a", "b")
    assert peer.read(index=0) == [b"0 a", b"1 b"]


def test_a_client_sets_the_filter_of_its_app():
    life = make_broker(partitions=1)
    peer = life.peer().consumes()
    assert peer.ask(SetFilter("orders", "shop", "a")).body.code == 0
    send(peer, "a", "b")
    assert peer.fetch() == [b"0 a"]
    life.kill()
    assert life.broker.ledger.metadata.subscription("orders", "shop").consumer.filter == "a"


def test_a_filter_that_does_not_parse_is_refused_with_the_position():
    life = make_broker(partitions=1)
    peer = life.peer().consumes()
    answer = peer.ask(SetFilter("orders", "shop", "size > AND"))
    assert answer.status == 6
    assert "column 8" in answer.error
    assert life.broker.ledger.metadata.subscription("orders", "shop").consumer.filter == ""


# --- expiry ----------------------------------------------------------------------------------------------------------


def wall_ms(life):
    return life.engine.now().wall_ms


@both
def test_what_has_expired_is_a_dead_letter_and_not_delivered(dialect):
    life = make_broker(partitions=1)
    peer = life.peer(dialect=dialect).consumes()
    sender = life.peer()
    sender.produce(b"late", attributes={"EXPIRE": str(wall_ms(life) + 1000)})
    sender.produce(b"for ever")
    life.pass_ms(2000)
    assert peer.fetch() == [b"for ever"]
    (letter,) = life.broker.ledger.state.dead_letters.rows()
    assert (letter.cause, letter.topic_name, letter.partition, letter.message_index) == ("expired", "orders", 0, 0)
    assert peer.ack([0, 1] if dialect is JOYQUEUE else [1]) == 0
    assert life.ack_index() == 2


def test_what_has_not_expired_is_delivered():
    life = make_broker(partitions=1)
    peer = life.peer().consumes()
    peer.produce(b"in time", attributes={"EXPIRE": str(wall_ms(life) + 60_000)})
    assert peer.fetch() == [b"in time"]


def test_a_retry_that_has_expired_is_a_dead_letter():
    life = make_broker(partitions=1)
    peer = life.peer().consumes()
    peer.produce(b"x", attributes={"EXPIRE": str(wall_ms(life) + 500)})
    peer.fetch()
    peer.ack([0], kind=2)
    life.pass_ms(1500)
    assert peer.fetch() == []
    (letter,) = life.broker.ledger.state.dead_letters.rows()
    assert (letter.cause, letter.attempts, len(life.broker.ledger.state.retries)) == ("expired", 1, 0)


@pytest.mark.parametrize("kind", [0, 2])
def test_of_a_batch_that_expires_only_what_is_open_is_a_dead_letter(kind):
    """A batch comes whole, and one of it may be done with, or on its way as a retry."""
    life = make_broker(partitions=1)
    peer = life.peer().consumes()
    peer.produce((b"0", b"1", b"2"), attributes={"EXPIRE": str(wall_ms(life) + 500)})
    assert peer.fetch(lease_ms=400) == [b"0", b"1", b"2"]
    assert peer.ack([1], kind=kind) == 0
    life.pass_ms(600)
    assert (peer.fetch(), life.ack_index()) == ([], 3)
    assert [letter.message_index for letter in life.broker.ledger.state.dead_letters.rows()] == [0, 2]
    assert life.broker.metrics.settled["orders", "shop", "expired"] == 2 + 1, "and a lease"
    life.pass_ms(1000)
    assert peer.fetch() == []
    dead = [letter.message_index for letter in life.broker.ledger.state.dead_letters.rows()]
    assert dead == ([0, 2, 1] if kind else [0, 2])


def test_after_a_restart_the_broker_still_looks():
    life = make_broker(partitions=1)
    life.peer().produce(b"x", attributes={"EXPIRE": str(wall_ms(life) + 1000)})
    life.kill()
    life.pass_ms(2000)
    assert life.peer().consumes().fetch() == []
    assert len(life.broker.ledger.state.dead_letters) == 1
