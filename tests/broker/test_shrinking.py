"""How many partitions of a topic take messages and how many hand them out may differ while it grows or shrinks."""

import pytest

from broker.fix_broker import DOCUMENTED, JOYQUEUE, BrokerLife, make_broker
from lakemq.errors import BadParameterError
from lakemq.message import Qos
from lakemq.testing.broker import TestBroker
from lakemq.wire.coordinate import AssignmentWish, FetchAssignedPartition
from lakemq.wire.metadata import READ_ONLY_GROUP, WRITE_ONLY_GROUP, FetchCluster
from lakemq.wire.produce import ProduceMessagePrepare, ProduceMessageRollback
from lakemq.wire.session import AddProducer

both = pytest.mark.parametrize("dialect", [DOCUMENTED, JOYQUEUE], ids=lambda one: one.value)


def let(life, **counts):
    return life.ask("set_topic", name="orders", **counts)


def told(peer, app="shop"):
    """By the marks of their groups, the partitions that an app is told of."""
    (topic,) = peer.ask(FetchCluster(("orders",), app)).body.topics
    assert topic.code == 0
    return {group.id: group.partitions for group in topic.partition_groups}


def drain(peer, count):
    """Receive and ack so many messages."""
    bodies = []
    while len(bodies) < count:
        messages = peer.messages(peer.ask(peer.fetch_command()))
        assert messages, bodies
        assert peer.ack([one.index for one in messages], partition=messages[0].partition) == 0
        bodies += [one.body for one in messages]
    return bodies


# --- fewer that are written ------------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize("qos", [Qos.FLUSH, Qos.RECEIVE], ids=lambda one: one.value)
def test_a_partition_that_takes_no_messages_refuses_them_also_from_those_who_have_a_route(dialect, qos):
    life = make_broker(partitions=4)
    peer = life.peer(dialect=dialect)
    for _ in range(3):
        assert peer.produce(b"x", partition=3, qos=qos)[0] == 0
    let(life, write_partitions=2)
    assert [peer.produce(b"x", partition=one, qos=qos)[0] for one in (0, 1, 2, 3)] == [0, 0, 188, 188]
    chosen = {peer.produce(b"x", partition=-1, qos=qos)[1][0].partition for _ in range(12)}
    assert chosen == {0, 1}
    let(life, write_partitions=0)
    assert peer.produce(b"x", partition=3, qos=qos)[0] == 0


def test_a_transaction_does_not_put_messages_there_either():
    life = make_broker(partitions=2)
    peer = life.peer()
    peer.ask(AddProducer(("orders",), "shop"))
    tx_id = peer.ask(ProduceMessagePrepare("orders", "shop")).body.tx_id
    let(life, write_partitions=1)
    assert peer.produce(b"x", partition=1, tx_id=tx_id)[0] == 188


@both
def test_producers_are_told_of_what_takes_and_consumers_of_what_hands_out(dialect):
    life = make_broker(partitions=4)
    life.ask("subscribe", topic="orders", app="shop.in", producer={})
    life.ask("subscribe", topic="orders", app="shop.out", consumer={})
    let(life, write_partitions=2)
    peer = life.peer(dialect=dialect, version="2.1.0")
    assert told(peer, "shop.in") == {0: (0, 1)}
    assert told(peer, "shop.out") == {0: (0, 1, 2, 3)}
    assert told(peer, "shop") == {0: (0, 1, 2, 3)}, "who is both drains what is left"
    let(life, partitions=6, write_partitions=0, read_partitions=4)
    assert (told(peer, "shop.in"), told(peer, "shop.out")) == ({0: (0, 1, 2, 3, 4, 5)}, {0: (0, 1, 2, 3)})


def test_our_own_clients_are_told_which_are_which():
    life = make_broker(partitions=4)
    let(life, write_partitions=2)
    assert told(life.peer()) == {0: (0, 1), READ_ONLY_GROUP: (2, 3)}
    life.ask("create_topic", name="new", partitions=1)
    life.ask("subscribe", topic="new", app="shop", producer={}, consumer={})
    life.ask("set_topic", name="new", partitions=3, read_partitions=1)
    (topic,) = life.peer().ask(FetchCluster(("new",), "shop")).body.topics
    assert {group.id: group.partitions for group in topic.partition_groups} == {0: (0,), WRITE_ONLY_GROUP: (1, 2)}
    assert {group.leader for group in topic.partition_groups} == {0}


# --- then fewer that are read ----------------------------------------------------------------------------------------


def test_a_topic_shrinks_once_what_is_left_is_consumed_and_nothing_is_lost():
    life = make_broker(partitions=4)
    peer = life.peer().consumes()
    for partition in range(4):
        peer.produce(b"%d" % partition, partition=partition)
    with pytest.raises(BadParameterError, match="take messages: let fewer do so first"):
        let(life, read_partitions=2)
    let(life, write_partitions=2)
    with pytest.raises(BadParameterError, match="app 'shop' has 1 messages of partition 2 before it"):
        let(life, read_partitions=2)
    assert sorted(drain(peer, 4)) == [b"0", b"1", b"2", b"3"]
    shown = let(life, read_partitions=2)
    assert (shown["partitions"], shown["write_partitions"], shown["read_partitions"]) == (4, 2, 2)
    assert [peer.read(partition=one, index=0) for one in (1, 3)] == [[b"1"], 187]
    assert told(peer) == {0: (0, 1)}
    (assigned,) = peer.ask(FetchAssignedPartition((AssignmentWish("orders", 1000),), "shop")).body.topics
    assert assigned.partitions == (0, 1)
    life.kill()
    peer = life.peer().consumes()
    assert told(peer) == {0: (0, 1)}, "it is durable"
    let(life, write_partitions=0, read_partitions=0)
    peer.produce(b"again", partition=3)
    assert drain(peer, 1) == [b"again"]


def test_what_is_still_to_come_keeps_a_partition_readable():
    life = make_broker(partitions=2)
    peer = life.peer().consumes()
    peer.ask(AddProducer(("orders",), "shop"))
    peer.produce(b"later", partition=1, attributes={"DELAY_LEVEL": "1"})
    tx_id = peer.ask(ProduceMessagePrepare("orders", "shop")).body.tx_id
    let(life, write_partitions=1)
    with pytest.raises(BadParameterError, match="1 messages of topic 'orders' wait to be delivered later"):
        let(life, read_partitions=1)
    for _ in range(20):
        life.pass_ms(100)
    assert drain(peer, 1) == [b"later"]
    with pytest.raises(BadParameterError, match="transactions of topic 'orders' are open"):
        let(life, read_partitions=1)
    assert peer.ask(ProduceMessageRollback("orders", "shop", tx_id)).body.code == 0
    let(life, read_partitions=1)


@pytest.mark.parametrize("counts", [{"write_partitions": 5}, {"read_partitions": -1}, {"write_partitions": True}])
def test_numbers_that_cannot_be_are_refused(counts):
    with pytest.raises(BadParameterError, match="partitions of topic 'orders' are"):
        let(make_broker(partitions=4), **counts)


# --- growing ---------------------------------------------------------------------------------------------------------


def test_new_partitions_may_be_written_before_they_are_read():
    life = make_broker(partitions=2)
    let(life, partitions=4, read_partitions=2)
    peer = life.peer().consumes()
    for partition in range(4):
        assert peer.produce(b"%d" % partition, partition=partition)[0] == 0
    assert sorted(drain(peer, 2)) == [b"0", b"1"]
    waiting = peer.send(peer.fetch_command(wait_ms=10_000))
    life.settle()
    assert peer.received(waiting) is None
    let(life, read_partitions=0)
    life.settle()
    assert peer.fetched(peer.received(waiting)) in ([b"2"], [b"3"]), "who waits is woken"


def test_an_ordered_topic_that_shrinks_keeps_the_order_of_each_key():
    life = make_broker(partitions=1, topics=())
    life.ask("create_topic", name="orders", partitions=4, type="ordered")
    life.ask("subscribe", topic="orders", app="shop", producer={}, consumer={"batch_size": 1}, start="earliest")
    peer = life.peer().consumes()
    keys = [f"k{number}" for number in range(8)]
    for number in range(2):
        if number:
            let(life, write_partitions=2)
        for key in keys:
            code, (result,) = peer.produce(f"{key} {number}".encode(), business_id=key, partition=0)
            assert code == 0
            assert number == 0 or result.partition < 2
    bodies = drain(peer, 16)
    for key in keys:
        assert [body for body in bodies if body.startswith(key.encode())] == [f"{key} {n}".encode() for n in range(2)]


# --- the client ------------------------------------------------------------------------------------------------------


def test_a_client_sends_to_what_takes_messages_and_receives_from_what_hands_them_out():
    with TestBroker() as broker, broker.connect(app="shop") as mq:
        for partition in range(4):
            mq.send("orders", b"before", partition=partition)
        broker.engine.ask("set_topic", name="orders", write_partitions=2)
        receipts = [mq.send("orders", b"after", key=f"k{number}") for number in range(20)]
        receipts += [mq.send("orders", b"after") for _ in range(20)]
        assert {one.partition for one in receipts} == {0, 1}
        with mq.reader("orders", start="earliest", stop="now") as reader:
            assert sorted(one.partition for one in reader if one.body == b"before") == [0, 1, 2, 3]
        with mq.consumer("orders", group="billing") as consumer:
            found = []
            while len(found) < 44:
                found += [one.body for one in consumer.receive(100)]
        assert found.count(b"before") == 4


def test_partitions_of_another_worker_are_not_looked_into():
    """What its consumers have left there only that worker knows; it is checked by whoever holds it."""
    life = BrokerLife(group_ids=(0, 1))
    life.ask("create_app", name="shop")
    life.ask("create_topic", name="orders", partitions=2)
    life.ask("subscribe", topic="orders", app="shop", consumer={})
    let(life, write_partitions=1)
    assert let(life, read_partitions=1)["read_partitions"] == 1
