"""Receiving: what is lent to whom and for how long, what acks do, and what is read without being lent."""

import json
import zlib

import pytest

from broker.fix_broker import DOCUMENTED, EIO, FULL, JOYQUEUE, TINY, BrokerLife, block_of, make_broker, message_of
from lakemq.broker.events import AdminAsked
from lakemq.compression import Compression
from lakemq.envelope import pack
from lakemq.message import AckType, Qos
from lakemq.record import read_fields, write_fields
from lakemq.storage.retention import RetentionPolicy
from lakemq.wire.consume import (
    CommitAck,
    FetchAckIndex,
    FetchIndex,
    FetchPartitionMessage,
    FetchTopicMessage,
    MessageAck,
    PartitionAcks,
    PartitionFetch,
    TopicAcks,
    TopicFetch,
    TopicPartitionFetch,
    TopicPartitions,
)
from lakemq.wire.messages import MessageBlock
from lakemq.wire.own import FetchRange, Inspect, PartitionTime, TopicTimes
from lakemq.wire.session import AddConsumer, RemoveConsumer

both = pytest.mark.parametrize("dialect", [DOCUMENTED, JOYQUEUE], ids=lambda one: one.value)


def numbers(start, stop):
    return [b"%d" % number for number in range(start, stop)]


def fill(peer, count, partition=0, start=0, topic="orders"):
    assert peer.produce(*numbers(start, start + count), partition=partition, topic=topic)[0] == 0


# --- leases ----------------------------------------------------------------------------------------------------------


@both
def test_a_lent_partition_is_given_to_nobody_not_even_its_holder(dialect):
    life = make_broker(partitions=1)
    peer, other = life.peer(dialect=dialect).consumes(), life.peer(dialect=dialect).consumes()
    fill(peer, 10)
    assert peer.fetch(count=3) == numbers(0, 3)
    assert (peer.fetch(), other.fetch()) == ([], [])
    fill(peer, 5, start=10)
    assert (peer.fetch(), other.fetch()) == ([], []), "new messages do not change that"


@both
def test_an_ack_of_all_that_was_lent_frees_the_partition_for_what_follows(dialect):
    life = make_broker(partitions=1)
    peer, other = life.peer(dialect=dialect).consumes(), life.peer(dialect=dialect).consumes()
    fill(peer, 5)
    assert peer.fetch(count=3) == numbers(0, 3)
    assert peer.ack([0, 1, 2]) == 0
    assert other.fetch() == numbers(3, 5)
    assert life.ack_index() == 3


@both
def test_two_apps_do_not_see_each_others_leases(dialect):
    life = make_broker(partitions=1)
    life.ask("subscribe", topic="orders", app="shop.b", consumer={}, start="earliest")
    peer = life.peer(dialect=dialect).consumes().consumes(app="shop.b")
    fill(peer, 2)
    assert peer.fetch() == numbers(0, 2)
    assert peer.fetch(app="shop.b") == numbers(0, 2)


@both
@pytest.mark.parametrize("asked_ms", [0, 5000, 60_000])
def test_what_is_not_acked_in_time_is_lent_again(dialect, asked_ms):
    life = make_broker(partitions=1)
    life.ask("subscribe", topic="orders", app="shop", consumer={"ack_timeout_ms": 20_000})
    peer, other = life.peer(dialect=dialect).consumes(), life.peer(dialect=dialect).consumes()
    fill(peer, 3)
    assert peer.fetch(lease_ms=asked_ms) == numbers(0, 3)
    life.pass_ms((asked_ms or 20_000) - 1)
    assert other.fetch() == []
    life.pass_ms(1)
    assert other.fetch() == numbers(0, 3)
    assert life.broker.metrics.settled["orders", "shop", "expired"] == 1


@both
def test_a_lease_that_runs_out_goes_at_once_to_who_waits(dialect):
    life = make_broker(partitions=1)
    peer, other = life.peer(dialect=dialect).consumes(), life.peer(dialect=dialect).consumes()
    fill(peer, 1)
    peer.fetch(lease_ms=1000)
    waiting = other.send(other.fetch_command(wait_ms=30_000))
    life.pass_ms(999)
    assert other.received(waiting) is None
    life.pass_ms(1)
    assert other.fetched(other.received(waiting)) == [b"0"]


@both
def test_a_late_ack_is_good_and_ends_the_next_ones_lease(dialect):
    life = make_broker(partitions=1)
    slow, next_one = life.peer(dialect=dialect).consumes(), life.peer(dialect=dialect).consumes()
    fill(slow, 3)
    slow.fetch(lease_ms=1000)
    life.pass_ms(1000)
    assert next_one.fetch() == numbers(0, 3)
    assert slow.ack([0, 1, 2]) == 0
    assert life.ack_index() == 3
    assert next_one.ack([0, 1, 2]) == 0, "a double does no harm"
    assert life.ack_index() == 3
    fill(slow, 1, start=3)
    assert slow.fetch() == [b"3"]


@both
def test_an_ack_that_comes_again_moves_nobody_back(dialect):
    life = make_broker(partitions=1)
    peer = life.peer(dialect=dialect).consumes()
    fill(peer, 6)
    assert peer.ack(range(6)) == 0
    for again in ([0], [0, 1, 2], [5], range(6)):
        assert peer.ack(again) == 0
        assert (life.ack_index(), peer.fetch()) == (6, [])
    life.kill()
    assert life.ack_index() == 6


@both
def test_a_late_ack_of_a_part_leaves_the_next_one_what_it_has(dialect):
    life = make_broker(partitions=1)
    slow, next_one = life.peer(dialect=dialect).consumes(), life.peer(dialect=dialect).consumes()
    fill(slow, 4)
    slow.fetch(lease_ms=1000)
    life.pass_ms(1000)
    next_one.fetch()
    assert slow.ack([0, 1]) == 0
    assert (life.ack_index(), slow.fetch()) == (2, [])
    assert next_one.ack([0, 1, 2, 3]) == 0, "from below the ack index and beyond it"
    assert life.ack_index() == 4


def test_a_lease_may_be_extended_by_its_holder_again_and_again():
    life = make_broker(partitions=1)
    life.ask("subscribe", topic="orders", app="shop", consumer={"ack_timeout_ms": 20_000})
    peer, other = life.peer().consumes(), life.peer().consumes()
    fill(peer, 1)
    peer.fetch(lease_ms=1000)
    for _ in range(5):
        life.pass_ms(900)
        assert peer.extend(lease_ms=1000) == 0
        assert other.extend(lease_ms=1000) == 140
    life.pass_ms(999)
    assert other.fetch() == []
    assert peer.extend() == 0, "for as long as the policy says"
    life.pass_ms(19_999)
    assert other.fetch() == []
    life.pass_ms(1)
    assert other.fetch() == [b"0"]
    assert peer.extend() == 140, "it is another's now"


def test_a_lease_may_be_shortened_by_an_extension():
    life = make_broker(partitions=1)
    peer = life.peer().consumes()
    fill(peer, 1)
    peer.fetch(lease_ms=60_000)
    assert peer.extend(lease_ms=100) == 0
    life.pass_ms(100)
    assert peer.fetch() == [b"0"]


def test_a_lease_may_be_given_back_and_others_have_the_rest_at_once():
    life = make_broker(partitions=1)
    peer, other = life.peer().consumes(), life.peer().consumes()
    fill(peer, 3)
    assert len(peer.fetch(lease_ms=60_000)) == 3
    assert peer.ack([0]) == 0
    assert other.extend(lease_ms=-1) == 0, "it has nothing, and nothing changes"
    assert other.fetch() == []
    assert peer.extend(lease_ms=-1) == 0
    assert other.fetch() == [b"1", b"2"]
    assert peer.extend(lease_ms=-1) == 0, "said twice, it does no harm to the one who has it now"
    assert peer.fetch() == []
    assert other.ack([1, 2]) == 0


def test_leases_are_not_kept_across_a_restart_but_acks_are():
    for end in ("restart", "kill", "lose_power"):
        life = make_broker(partitions=1)
        peer = life.peer().consumes()
        fill(peer, 5)
        peer.fetch(count=2)
        peer.ack([0, 1])
        peer.fetch()
        life.sync()
        getattr(life, end)()
        assert life.peer().consumes().fetch() == numbers(2, 5)


# --- whose turn it is ------------------------------------------------------------------------------------------------


@both
def test_partitions_take_turns(dialect):
    life = make_broker(partitions=4)
    peer = life.peer(dialect=dialect).consumes()
    for partition in range(4):
        fill(peer, 9, partition)
    order = []
    for _ in range(12):
        messages = peer.messages(peer.ask(peer.fetch_command(count=1)))
        assert len(messages) == 1, "one partition feeds an answer"
        order.append(messages[0].partition)
        assert peer.ack([messages[0].index], partition=messages[0].partition) == 0
    assert sorted(order[:4]) == [0, 1, 2, 3]
    assert order == order[:4] * 3


@both
def test_a_busy_partition_does_not_starve_the_others(dialect):
    life = make_broker(partitions=3)
    peer = life.peer(dialect=dialect).consumes()
    fill(peer, 50, 0)
    fill(peer, 1, 2)
    seen = []
    for number in range(3):
        messages = peer.messages(peer.ask(peer.fetch_command(count=1)))
        seen.append(messages[0].partition)
        peer.ack([messages[0].index], partition=messages[0].partition)
        fill(peer, 1, 0, start=50 + number)
    assert 2 in seen


@both
def test_as_many_consumers_as_partitions_work_side_by_side(dialect):
    life = make_broker(partitions=3)
    peers = [life.peer(dialect=dialect).consumes() for _ in range(4)]
    for partition in range(3):
        fill(peers[0], 2, partition, start=10 * partition)
    got = [peer.fetch() for peer in peers]
    assert sorted(got) == sorted([numbers(0, 2), numbers(10, 12), numbers(20, 22), []])


def test_a_consumer_gets_no_more_partitions_than_the_policy_allows():
    life = make_broker(partitions=3)
    life.ask("subscribe", topic="orders", app="shop", consumer={"partitions_max": 2})
    peer, other = life.peer().consumes(), life.peer().consumes()
    for partition in range(3):
        fill(peer, 1, partition)
    assert [len(peer.fetch()) for _ in range(3)] == [1, 1, 0]
    assert len(other.fetch()) == 1, "others do"
    life.ask("subscribe", topic="orders", app="shop", consumer={"partitions_max": 3})
    fill(peer, 1, 0)
    assert peer.fetch() == [], "all are lent"


@both
def test_several_topics_are_each_lent_from_and_do_not_wait(dialect):
    life = make_broker(topics=("orders", "bills", "empty"))
    peer = life.peer(dialect=dialect).consumes("orders", "bills", "empty")
    fill(peer, 1)
    fill(peer, 1, topic="bills", start=5)
    answer = peer.ask(peer.fetch_command("orders", "empty", "bills", wait_ms=10_000))
    assert [(one.topic, one.messages.count) for one in answer.body.topics] == [
        ("orders", 1),
        ("empty", 0),
        ("bills", 1),
    ]
    assert answer.status == 0


def test_of_several_topics_the_first_that_failed_is_named_in_the_header():
    life = make_broker(topics=("orders", "bills"))
    peer = life.peer().consumes("orders")
    fill(peer, 1)
    answer = peer.ask(peer.fetch_command("nowhere", "orders", "bills"))
    assert answer.status == 189
    assert "nowhere" in answer.error
    assert [one.messages.count for one in answer.body.topics] == [0, 1, 0], "the payload is there all the same"


def test_each_joyqueue_topic_has_its_own_code():
    life = make_broker(topics=("orders", "bills"))
    peer = life.peer(dialect=JOYQUEUE).consumes("orders")
    fill(peer, 1)
    answer = peer.ask(peer.fetch_command("nowhere", "orders", "bills"))
    assert answer.status == 0
    assert [(one.code, one.messages.count) for one in answer.body.topics] == [(189, 0), (0, 1), (136, 0)]


# --- how much --------------------------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize(("count", "expected"), [(1, 1), (2, 4), (3, 4), (4, 4), (5, 5), (6, 9)])
def test_count_is_of_indexes_and_a_batch_it_touches_comes_whole(dialect, count, expected):
    life = make_broker(partitions=1)
    peer = life.peer(dialect=dialect).consumes()
    peer.produce(b"0", tuple(numbers(1, 4)), b"4", tuple(numbers(5, 9)))
    assert peer.fetch(count=count) == numbers(0, expected)
    assert peer.ack(range(expected)) == 0
    assert peer.fetch() == numbers(expected, 9)


@both
def test_an_ack_inside_a_batch_brings_the_whole_batch_again(dialect):
    life = make_broker(partitions=1)
    peer = life.peer(dialect=dialect).consumes()
    peer.produce(tuple(numbers(0, 4)), b"4")
    assert peer.fetch() == numbers(0, 5)
    assert peer.ack([0, 1]) == 0
    assert life.ack_index() == 2
    life.kill()
    peer = life.peer(dialect=dialect).consumes()
    answer = peer.ask(peer.fetch_command(count=1))
    assert peer.messages(answer)[0].index == 0, "the carrier's first index, below the ack index"
    assert peer.ack([0, 1, 2, 3]) == 0, "a run from below the ack index and beyond it"
    assert peer.fetch() == [b"4"]


@both
@pytest.mark.parametrize("count", [0, -1, -32768])
def test_no_count_means_the_policys(dialect, count):
    life = make_broker(partitions=1)
    life.ask("subscribe", topic="orders", app="shop", consumer={"batch_size": 3})
    peer = life.peer(dialect=dialect).consumes()
    fill(peer, 10)
    assert peer.fetch(count=count) == numbers(0, 3)


@both
def test_an_answer_carries_no_more_bytes_than_allowed_but_one_message_in_any_case(dialect):
    life = make_broker(partitions=1, limits_of={"fetch_bytes_max": 5000, "read_bytes_max": 5000})
    peer = life.peer(dialect=dialect).consumes()
    for body in (bytes(1000), bytes(1000), bytes(9000), bytes(1000)):
        peer.produce(body)
    sizes, index = [], 0
    while index < 4:
        bodies = peer.fetch()
        sizes.append([len(body) for body in bodies])
        peer.ack(range(index, index + len(bodies)))
        index += len(bodies)
    assert sizes == [[1000, 1000], [9000], [1000]]
    assert [len(body) for body in peer.read(index=2)] == [9000]


@both
def test_many_partitions_and_topics_together_carry_no_more_bytes_than_one(dialect):
    """One small request must not make the broker build an answer without bounds."""
    life = make_broker(
        partitions=4, topics=("orders", "bills"), limits_of={"fetch_bytes_max": 5000, "read_bytes_max": 5000}
    )
    peer = life.peer(dialect=dialect).consumes("orders", "bills")
    for partition in range(4):
        for topic in ("orders", "bills"):
            peer.produce(bytes(1000), bytes(1000), partition=partition, topic=topic)
    wishes = tuple(PartitionFetch(nth % 4, 10, 0) for nth in range(200))
    answer = peer.ask(FetchPartitionMessage((TopicPartitionFetch("orders", wishes),), "shop"))
    partitions = answer.body.topics[0].partitions
    assert [one.partition for one in partitions] == [wish.partition for wish in wishes]
    assert {one.code for one in partitions} == {0}
    assert 0 < sum(len(one.messages) for one in partitions) < 10_000
    answer = peer.ask(FetchTopicMessage(tuple([TopicFetch(one) for one in ("orders", "bills")] * 4), "shop"))
    assert 0 < sum(len(one.messages) for one in answer.body.topics) < 10_000
    left = sum(one.messages.count == 0 for one in answer.body.topics)
    assert left
    assert life.broker.consuming.lending(*subscription_of(life)).loans.lent_count < 4, "what is not sent is not lent"


def subscription_of(life, topic="orders", app="shop"):
    metadata = life.broker.ledger.metadata
    return metadata.topics[topic], metadata.subscription(topic, app)


# --- long polls ------------------------------------------------------------------------------------------------------


@both
def test_a_poll_waits_for_a_message_and_gets_it_when_it_is_synced(dialect):
    life = make_broker()
    peer = life.peer(dialect=dialect).consumes()
    waiting = peer.send(peer.fetch_command(wait_ms=10_000))
    life.pass_ms(5000)
    assert peer.received(waiting) is None
    peer.send(peer.produce_command(b"x", qos=Qos.WRITE))
    life.engine.end_turn()
    assert peer.received(waiting) is None, "written is not enough"
    life.settle()
    assert peer.fetched(peer.received(waiting)) == [b"x"], "who waits makes the sync come at once"


@both
def test_a_poll_is_answered_empty_when_its_time_is_over_and_not_before(dialect):
    peer = make_broker().peer(dialect=dialect).consumes()
    waiting = peer.send(peer.fetch_command(wait_ms=10_000))
    peer.life.pass_ms(9999)
    assert peer.received(waiting) is None
    peer.life.pass_ms(1)
    answer = peer.received(waiting)
    assert (answer.status, peer.fetched(answer)) == (0, [])
    fill(peer, 1)
    assert peer.fetch() == [b"0"], "nothing is lent to who waits no more"


@both
def test_no_poll_waits_longer_than_the_broker_allows(dialect):
    peer = make_broker(long_poll_max_ms=3000).peer(dialect=dialect).consumes()
    waiting = peer.send(peer.fetch_command(wait_ms=0x7FFFFFFF))
    peer.life.pass_ms(3000)
    assert peer.fetched(peer.received(waiting)) == []


@both
@pytest.mark.parametrize("wait_ms", [0, -5])
def test_who_does_not_want_to_wait_is_answered_at_once(dialect, wait_ms):
    assert make_broker().peer(dialect=dialect).consumes().fetch(wait_ms=wait_ms) == []


@both
def test_a_poll_never_holds_up_the_next_request(dialect):
    peer = make_broker().peer(dialect=dialect).consumes()
    waiting = peer.send(peer.fetch_command(wait_ms=10_000))
    fill(peer, 1)
    assert peer.fetched(peer.received(waiting)) == [b"0"]


@both
def test_a_message_is_synced_at_once_for_who_waits_and_an_ack_is_not(dialect):
    """Messages at ACK_WRITE: their producer does not wait for a sync, the consumer does."""
    peer = make_broker(lazy_sync_ms=1000).peer(dialect=dialect).consumes()
    waiting = peer.send(peer.fetch_command(wait_ms=10_000))
    peer.produce(b"now", qos=Qos.WRITE)
    assert peer.fetched(peer.received(waiting)) == [b"now"]
    waiting = peer.send(peer.fetch_command(wait_ms=10_000))
    assert peer.ack([0]) == 0
    assert peer.life.journal.unsynced_bytes > 0, "nobody sees more when it is durable"
    peer.produce(b"and again", qos=Qos.WRITE)
    assert peer.fetched(peer.received(waiting)) == [b"and again"]
    assert peer.life.journal.unsynced_bytes == 0


@both
def test_who_waits_longest_is_served_first_and_one_message_wakes_one(dialect):
    life = make_broker(partitions=1)
    peers = [life.peer(dialect=dialect).consumes() for _ in range(3)]
    polls = [peer.send(peer.fetch_command(wait_ms=10_000)) for peer in peers]
    fill(life.peer(dialect=dialect), 1)
    answered = [peer.received(poll) is not None for peer, poll in zip(peers, polls, strict=True)]
    assert answered == [True, False, False]
    assert peers[0].ack([0]) == 0
    fill(peers[0], 1, start=1)
    assert peers[1].fetched(peers[1].received(polls[1])) == [b"1"]
    assert peers[2].received(polls[2]) is None


@both
def test_an_ack_wakes_who_waits_for_the_rest(dialect):
    life = make_broker(partitions=1)
    peer, other = life.peer(dialect=dialect).consumes(), life.peer(dialect=dialect).consumes()
    fill(peer, 4)
    assert peer.fetch(count=2) == numbers(0, 2)
    waiting = other.send(other.fetch_command(wait_ms=10_000))
    life.settle()
    assert other.received(waiting) is None
    peer.ack([0, 1])
    assert other.fetched(other.received(waiting)) == numbers(2, 4)


@both
def test_polls_of_who_hangs_up_are_forgotten(dialect):
    life = make_broker(partitions=1)
    gone, other = life.peer(dialect=dialect).consumes(), life.peer(dialect=dialect).consumes()
    for _ in range(5):
        gone.send(gone.fetch_command(wait_ms=10_000))
    waiting = other.send(other.fetch_command(wait_ms=10_000))
    gone.pipe.hang_up()
    assert life.broker.consuming.deadlines.waiting == 1
    fill(other, 1)
    assert other.fetched(other.received(waiting)) == [b"0"]


@both
def test_a_poll_that_waits_is_told_when_the_app_is_paused_and_none_when_it_goes_on(dialect):
    life = make_broker()
    peer = life.peer(dialect=dialect).consumes()
    waiting = peer.send(peer.fetch_command(wait_ms=10_000))
    life.ask("subscribe", topic="orders", app="shop", consumer={"is_paused": True})
    assert peer.fetched(peer.received(waiting)) == 186
    fill(peer, 1)
    assert peer.fetch() == 186
    life.ask("subscribe", topic="orders", app="shop", consumer={"is_paused": False})
    assert peer.fetch() == [b"0"]


@both
@pytest.mark.parametrize(
    ("action", "code"),
    [
        ({"action": "unsubscribe", "topic": "orders", "app": "shop"}, 136),
        ({"action": "unsubscribe", "topic": "orders", "app": "shop", "role": "consumer"}, 136),
        ({"action": "drop_topic", "name": "orders"}, 136),
        ({"action": "drop_app", "name": "shop"}, 136),
        ({"action": "set_topic", "name": "orders", "is_readable": False}, 145),
    ],
    ids=lambda one: (
        one if isinstance(one, int) else "-".join(one.values() if isinstance(one, int) else [one["action"]])
    ),
)
def test_a_poll_that_waits_is_told_why_nothing_will_come(dialect, action, code):
    life = make_broker()
    peer = life.peer(dialect=dialect).consumes()
    waiting = peer.send(peer.fetch_command(wait_ms=10_000))
    life.ask(**action)
    assert peer.fetched(peer.received(waiting)) == code


def test_a_subscription_made_anew_does_not_inherit_polls_leases_or_acks():
    life = make_broker(partitions=1)
    peer, other = life.peer().consumes(), life.peer().consumes()
    fill(peer, 3)
    assert peer.fetch(count=1) == [b"0"]
    assert peer.ack([0]) == 0
    assert peer.fetch(count=1) == [b"1"]
    life.ask("unsubscribe", topic="orders", app="shop", role="consumer")
    life.ask("subscribe", topic="orders", app="shop", consumer={}, start="earliest")
    assert other.fetch() == numbers(0, 3)


def test_new_partitions_are_waited_for_too():
    life = make_broker(partitions=1)
    peer = life.peer().consumes()
    waiting = peer.send(peer.fetch_command(wait_ms=10_000))
    life.ask("set_topic", name="orders", partitions=3)
    assert peer.received(waiting) is None
    fill(peer, 1, partition=2)
    assert peer.fetched(peer.received(waiting)) == [b"0"]


def test_a_new_consumer_begins_with_new_messages_unless_it_says_otherwise():
    life = make_broker(partitions=2)
    peer = life.peer()
    fill(peer, 3)
    peer.send(peer.produce_command(b"not synced yet", qos=Qos.WRITE))
    life.engine.end_turn()
    life.ask("subscribe", topic="orders", app="shop.late", consumer={})
    life.ask("subscribe", topic="orders", app="shop.early", consumer={}, start="earliest")
    peer.consumes(app="shop.late").consumes(app="shop.early")
    fill(peer, 1, start=9)
    assert peer.fetch(app="shop.late") == [b"9"]
    assert peer.fetch(app="shop.early") == [*numbers(0, 3), b"not synced yet", b"9"]


def test_a_new_consumer_is_never_told_to_stand_behind_what_can_be_read():
    """It begins behind a message that is stored and not durable yet: until it is, there is nothing to read."""
    life = make_broker(partitions=1)
    peer = life.peer()
    fill(peer, 1)
    peer.send(peer.produce_command(b"not synced yet", qos=Qos.WRITE))
    wish = {"topic": "orders", "app": "shop.late", "consumer": {}, "start": "latest"}
    told = []
    life.engine.handle(AdminAsked("subscribe", wish, lambda result, error: None))
    life.engine.handle(AdminAsked("lag", {"topic": "orders", "app": "shop.late"}, lambda *answer: told.append(answer)))
    asked = peer.send_all(
        FetchIndex((TopicPartitions("orders", (0,)),), "shop.late"),
        Inspect("deliveries", "orders", "shop.late"),
        AddConsumer(("orders",), "shop.late"),
        FetchPartitionMessage((TopicPartitionFetch("orders", (PartitionFetch(0, 100, -1),)),), "shop.late"),
    )
    life.settle()
    stand, inspected, _, read = [peer.received(one).body for one in asked]
    (((place,), _),) = told
    assert (place["offset"], place["end_offset"], place["lag"]) == (1, 1, 0)
    assert stand.topics[0].partitions[0].index == 1
    (shown,) = [one for one in json.loads(inspected.body)["apps"] if one["app"] == "shop.late"]
    assert (shown["partitions"][0]["ack_index"], shown["partitions"][0]["visible_index"]) == (1, 1)
    assert (read.topics[0].partitions[0].code, read.topics[0].partitions[0].messages.count) == (0, 0)
    assert peer.stand(app="shop.late") == 2, "once it is durable"


# --- acks ------------------------------------------------------------------------------------------------------------


def test_a_part_may_be_acked_and_the_rest_stays_with_its_holder():
    life = make_broker(partitions=1)
    peer, other = life.peer().consumes(), life.peer().consumes()
    fill(peer, 6)
    peer.fetch(lease_ms=1000)
    assert peer.ack([1, 0]) == 0, "in any order"
    assert (life.ack_index(), other.fetch()) == (2, [])
    assert peer.ack([2, 3]) == 0
    life.pass_ms(1000)
    assert other.fetch() == numbers(4, 6), "what was acked does not come again"


def test_a_joyqueue_client_acks_all_it_wants_to_and_the_rest_goes_to_the_next():
    life = make_broker(partitions=1)
    peer, other = life.peer(dialect=JOYQUEUE).consumes(), life.peer(dialect=JOYQUEUE).consumes()
    fill(peer, 6)
    peer.fetch()
    assert peer.ack([0, 1]) == 0
    assert other.fetch() == numbers(2, 6)


def test_a_joyqueue_ack_that_leaves_something_out_changes_nothing_and_is_answered_with_success():
    life = make_broker(partitions=1)
    peer = life.peer(dialect=JOYQUEUE).consumes()
    fill(peer, 6)
    peer.fetch()
    assert peer.ack([2, 3]) == 0
    assert (life.ack_index(), peer.fetch()) == (0, []), "the lease stays, too"


@both
def test_F18_a_lease_given_in_a_turn_that_was_refused_is_acked_above_what_comes_again(dialect):
    """The ack before it was taken back, so the lease begins above the ack index: it must not hold the partition."""
    life = make_broker(partitions=1)
    peer, other = life.peer().consumes(), life.peer(dialect=dialect).consumes()
    fill(peer, 3)
    assert peer.fetch(count=1) == [b"0"]
    poll = other.send(other.fetch_command(count=1, lease_ms=100_000, wait_ms=60_000))
    life.settle()
    life.disk.fail("write", FULL, path_contains="journal/", wrote=0)
    assert peer.ack([0]) == 109
    assert other.fetched(other.received(poll)) == [b"1"]
    assert (life.ack_index(), other.ack([1])) == (0, 0)
    assert peer.fetch(count=1) == [b"0"], "what was taken back comes first"
    assert (peer.ack([0]), life.ack_index()) == (0, 2)
    assert peer.fetch() == [b"2"]


@both
def test_acks_are_good_without_add_consumer(dialect):
    life = make_broker(partitions=1)
    peer = life.peer(dialect=dialect)
    fill(peer, 3)
    assert (peer.ack([0, 1]), life.ack_index()) == (0, 2)


@both
def test_partitions_of_one_request_fare_each_on_its_own(dialect):
    life = make_broker(partitions=3, topics=("orders", "bills"))
    peer = life.peer(dialect=dialect)
    for partition in range(3):
        fill(peer, 2, partition)
    acks = [
        PartitionAcks(0, (MessageAck(0, 0), MessageAck(0, 1))),
        PartitionAcks(1, (MessageAck(1, 0), MessageAck(1, 5))),
        PartitionAcks(2, (MessageAck(2, 1), MessageAck(2, 2))),
        PartitionAcks(9, (MessageAck(9, 0),)),
        PartitionAcks(2, ()),
    ]
    answer = peer.ask(CommitAck((TopicAcks("orders", tuple(acks)), TopicAcks("none", (acks[0],))), "shop"))
    found = [(one.topic, [(each.partition, each.code) for each in one.partitions]) for one in answer.body.topics]
    gap = 140 if dialect is JOYQUEUE else 184  # JoyQueue's wants a run, and looks at that first
    assert found == [("orders", [(0, 0), (1, gap), (2, 184), (9, 187), (2, 0)]), ("none", [(0, 189)])]
    assert [life.ack_index(partition=partition) for partition in range(3)] == [2, 0, 0]


@both
@pytest.mark.parametrize("kind", [AckType.TIMEOUT, AckType.EXCEPTION, AckType.OTHER, 77])
def test_a_failure_without_retries_brings_the_messages_again(dialect, kind):
    life = make_broker(partitions=1)
    life.ask("subscribe", topic="orders", app="shop", consumer={"is_retry": False})
    peer, other = life.peer(dialect=dialect).consumes(), life.peer(dialect=dialect).consumes()
    fill(peer, 3)
    peer.fetch()
    assert other.ack([0, 1, 2], kind=kind) == 0
    assert other.fetch() == [], "not by somebody else's word"
    assert peer.ack([0, 1, 2], kind=kind) == 0
    assert (life.ack_index(), other.fetch()) == (0, numbers(0, 3))


@both
def test_an_ack_is_answered_when_written_and_survives_a_kill(dialect):
    life = make_broker(partitions=1)
    peer = life.peer(dialect=dialect).consumes()
    fill(peer, 3)
    peer.fetch()
    asked = peer.send(peer.ack_command([0, 1]))
    assert peer.received(asked) is None
    life.engine.end_turn()
    assert peer.received(asked).body.topics[0].partitions[0].code == 0
    life.kill()
    assert life.ack_index() == 2


def test_an_ack_lost_with_the_power_falls_back_and_never_runs_ahead():
    life = make_broker(partitions=1)
    peer = life.peer().consumes()
    fill(peer, 6)
    peer.fetch()
    peer.ack([0, 1])
    life.sync()
    peer.ask(peer.ack_command([2, 3]))
    peer.send(peer.ack_command([4]))
    life.lose_power(mode="nothing")
    assert 2 <= life.ack_index() <= 4
    assert life.peer().consumes().fetch()[-1] == b"5"


# --- seeking ---------------------------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize(("index", "place"), [(0, 0), (3, 3), (5, 5), (-1, 5), (-2, 0)])
def test_a_seek_moves_the_app(dialect, index, place):
    life = make_broker(partitions=1)
    peer = life.peer(dialect=dialect).consumes()
    fill(peer, 5)
    peer.ack([0])
    assert peer.seek(index) == 0
    assert (peer.stand(), peer.fetch()) == (place, numbers(place, 5))
    life.kill()
    assert life.ack_index() == place


def test_a_seek_takes_a_live_consumers_lease_and_its_ack_does_not_undo_it():
    life = make_broker(partitions=1)
    peer, other = life.peer().consumes(), life.peer().consumes()
    fill(peer, 9)
    peer.ack(range(4))
    assert peer.fetch(count=2) == numbers(4, 6)
    waiting = other.send(other.fetch_command(wait_ms=10_000))
    assert life.peer().seek(1) == 0
    assert other.fetched(other.received(waiting)) == numbers(1, 9), "who waits gets it at once"
    assert peer.ack([4, 5]) == 140
    assert life.ack_index() == 1
    assert life.peer().seek(9) == 0
    assert other.ack(range(1, 9)) == 0, "all of it is behind"
    assert life.ack_index() == 9


@both
def test_where_an_app_stands_is_told_with_how_far_the_partition_goes(dialect):
    life = make_broker(partitions=2)
    peer = life.peer(dialect=dialect)
    fill(peer, 5)
    peer.ack([0, 1])
    answer = peer.ask(FetchIndex((TopicPartitions("orders", (0, 1, 2)),), "shop"))
    found = answer.body.topics[0].partitions
    assert [(one.partition, one.index, one.code) for one in found] == [(0, 2, 0), (1, 0, 0), (2, -1, 187)]
    if dialect is JOYQUEUE:
        assert [(one.left_index, one.right_index) for one in found] == [(0, 5), (0, 0), (-1, -1)]
    else:
        assert (
            peer.ask(FetchAckIndex((TopicPartitions("orders", (0,)),), "shop")).body.topics[0].partitions[0].index == 2
        )


def where_commands(dialect):
    """All requests that tell where an app stands, of those that a dialect has."""
    wish = (TopicPartitions("orders", (0,)),)
    own = [FetchAckIndex(wish, "shop"), FetchRange((TopicTimes("orders"),), "shop")] if dialect is DOCUMENTED else []
    return [FetchIndex(wish, "shop"), *own]


def told(answer):
    """Where the app stands, or the code."""
    if answer.status:
        return -answer.status
    (found,) = answer.body.topics[0].partitions
    return found.ack_index if hasattr(found, "ack_index") else found.index


def acks_and_asks(life, dialect):
    """An ack, and questions where the app stands before its turn is over."""
    peer = life.peer(dialect=dialect).consumes()
    fill(peer, 3)
    peer.fetch()
    assert peer.ack([0]) == 0
    life.sync()
    peer.send(peer.ack_command([1]))
    asked = [peer.send(command) for command in where_commands(dialect)]
    return peer, asked


@both
def test_where_an_app_stands_is_told_when_it_is_written_and_survives_a_kill(dialect):
    life = make_broker(partitions=1)
    peer, asked = acks_and_asks(life, dialect)
    assert [peer.received(one) for one in asked] == [None] * len(asked), "a kill would take it back"
    life.engine.end_turn()
    assert [told(peer.received(one)) for one in asked] == [2] * len(asked)
    for command in where_commands(dialect):
        assert told(peer.received(peer.send(command))) == 2, "nothing is under way: at once"
    life.kill()
    assert life.ack_index() == 2


@both
def test_F18_an_ack_that_was_refused_is_not_told_to_those_who_ask_where_the_app_stands(dialect):
    life = make_broker(partitions=1)
    peer, asked = acks_and_asks(life, dialect)
    life.disk.fail("write", FULL, path_contains="journal/", wrote=0)
    life.settle()
    assert [told(peer.received(one)) for one in asked] == [1] * len(asked)
    assert life.ack_index() == 1


@both
def test_F15_an_ack_that_was_not_written_before_a_failed_sync_is_not_told(dialect):
    """The broker goes without a flush, so nothing is undone: who asked is told of the failure."""
    life = make_broker(partitions=1)
    peer, asked = acks_and_asks(life, dialect)
    life.broker.writing.fail("planned", life.engine.now())
    assert [told(peer.received(one)) for one in asked] == [-91] * len(asked)


@both
def test_an_app_that_its_question_subscribes_is_told_where_it_stands_when_that_is_written(dialect):
    life = BrokerLife(creates_missing=True)
    peer = life.peer(dialect=dialect)
    fill(peer, 3)
    life.sync()
    asked = peer.send(where_commands(dialect)[0])
    assert peer.received(asked) is None
    life.disk.fail("write", FULL, path_contains="journal/", wrote=0)
    life.engine.end_turn()
    assert told(peer.received(asked)) == -109, "made anew, and not written either"
    life.settle()
    assert peer.stand() == 0


def test_a_range_says_where_a_moment_is():
    life = make_broker(partitions=2)
    peer = life.peer()
    began_ms = life.clock.wall_ms()
    for number in range(4):
        fill(peer, 1, start=number)
        life.pass_ms(1000)
    times = tuple(PartitionTime(0, began_ms + late_ms) for late_ms in (-5, 0, 1, 2000, 3001))
    wish = TopicTimes("orders", (*times, PartitionTime(0), PartitionTime(1, began_ms), PartitionTime(9, 0)))
    (topic,) = peer.ask(FetchRange((wish,), "shop")).body.topics
    assert [one.time_index for one in topic.partitions] == [0, 0, 1, 2, 4, -1, 0, -1]
    first, *_, elsewhere = topic.partitions
    assert (first.ack_index, first.first_index, first.visible_index, first.code) == (0, 0, 4, 0)
    assert (elsewhere.code, elsewhere.visible_index) == (187, -1)
    (every,) = peer.ask(FetchRange((TopicTimes("orders"),), "shop")).body.topics
    assert [(one.partition, one.visible_index) for one in every.partitions] == [(0, 4), (1, 0)]
    (unknown,) = peer.ask(FetchRange((TopicTimes("none"),), "shop")).body.topics
    assert (unknown.code, unknown.partitions) == (189, ())


# --- by partition ----------------------------------------------------------------------------------------------------


@both
def test_reading_by_partition_lends_nothing_and_needs_no_add_consumer(dialect):
    life = make_broker(partitions=1)
    peer = life.peer(dialect=dialect)
    fill(peer, 5)
    for _ in range(2):
        assert peer.read(index=1, count=2) == numbers(1, 3)
    assert peer.read(index=5) == []
    peer.consumes()
    assert peer.fetch(count=2) == numbers(0, 2)
    assert peer.read(index=0) == numbers(0, 5), "nor does a lease keep it from anybody"


def test_who_says_from_where_to_read_gets_more_at_once_unless_it_is_joyqueues():
    life = make_broker(partitions=1, limits_of={"fetch_bytes_max": 5000, "read_bytes_max": 9000})
    peer, joyqueue = life.peer().consumes(), life.peer(dialect=JOYQUEUE)
    for _ in range(20):
        peer.produce(bytes(1000))
    assert (len(peer.read(index=0)), len(joyqueue.read(index=0)), len(peer.fetch(count=20))) == (8, 4, 4)


@both
def test_reading_without_an_index_begins_where_the_app_stands(dialect):
    life = make_broker(partitions=1)
    peer = life.peer(dialect=dialect)
    fill(peer, 5)
    peer.ack([0, 1])
    assert peer.read(index=-1) == numbers(2, 5)


@both
def test_partitions_read_in_one_request_fare_each_on_its_own(dialect):
    life = make_broker(partitions=2, topics=("orders", "bills"))
    peer = life.peer(dialect=dialect)
    fill(peer, 2)
    wishes = (PartitionFetch(0, 10, 0), PartitionFetch(0, 10, 3), PartitionFetch(1, 10, 0), PartitionFetch(2, 10, 0))
    command = FetchPartitionMessage(
        (TopicPartitionFetch("orders", wishes), TopicPartitionFetch("none", wishes[:1])), "shop"
    )
    answer = peer.ask(command)
    found = [[(one.partition, one.messages.count, one.code) for one in each.partitions] for each in answer.body.topics]
    assert found == [[(0, 2, 0), (0, 0, 184), (1, 0, 0), (2, 0, 187)], [(0, 0, 189)]]


# --- what retention takes --------------------------------------------------------------------------------------------


@both
def test_an_app_that_stands_before_the_oldest_kept_goes_on_there(dialect):
    life = make_broker(partitions=1, storage=TINY, retention=RetentionPolicy(size_bytes=1))
    peer = life.peer(dialect=dialect).consumes()
    life.ask("subscribe", topic="orders", app="shop", consumer={"batch_size": 1})
    for number in range(12):
        peer.produce(b"%2d" % number * 1500)
    held = peer.fetch(lease_ms=1000)
    assert held[0][:2] == b" 0"
    life.pass_ms(life.config.retention_every_ms)
    life.pass_ms(1000)  # the lease has run out meanwhile, and what says so must be synced first
    first = life.engine.group.first_index(life.topic_number("orders"), 0)
    assert first > 1
    assert peer.stand() == first
    assert peer.read(index=-1)[0][:2] == b"%2d" % first
    assert peer.ack([0]) == 0, "what it had in hand it may ack"
    assert peer.fetch()[0][:2] == b"%2d" % first
    assert peer.ack([first]) == 0
    assert life.ack_index() == first + 1


def test_a_segment_that_cannot_be_dropped_stops_nothing():
    life = make_broker(partitions=1, storage=TINY, retention=RetentionPolicy(size_bytes=1))
    peer = life.peer().consumes()
    for number in range(12):
        peer.produce(b"%2d" % number * 1500)
    life.disk.fail("remove", EIO, path_contains="journal/")
    waiting = peer.send(peer.fetch_command("orders", wait_ms=1))
    life.pass_ms(life.config.retention_every_ms)
    assert any("could not be dropped" in text for _, text in life.engine.notes)
    assert peer.received(waiting) is not None
    assert peer.produce(b"more")[0] == 0
    life.pass_ms(life.config.retention_every_ms)
    assert peer.stand() > 0, "the next time it goes on"


@both
def test_a_wall_clock_that_jumps_ends_no_lease_and_no_poll_and_puts_none_off(dialect):
    life = make_broker(partitions=1)
    peer, other = life.peer(dialect=dialect).consumes(), life.peer(dialect=dialect).consumes()
    fill(peer, 1)
    peer.fetch(lease_ms=5000)
    waiting = other.send(other.fetch_command(wait_ms=3000))
    for jump_ms in (3 * 86_400_000, -6 * 86_400_000):
        life.clock.jump_wall(jump_ms)
        life.pass_ms(1000)
        assert other.received(waiting) is None
    life.pass_ms(1000)
    assert other.fetched(other.received(waiting)) == []
    life.pass_ms(1999)
    assert other.fetch() == []
    life.pass_ms(1)
    assert other.fetch() == [b"0"]
    assert peer.produce(b"x")[0] == 0, "nor does it put a sync off"


def test_a_partition_is_not_lost_when_its_start_cannot_be_noted():
    """Raising the ack index is a record; if that is refused, the partition is offered again later."""
    life = make_broker(partitions=2, storage=TINY, retention=RetentionPolicy(size_bytes=1))
    peer = life.peer().consumes()
    for number in range(12):
        peer.produce(b"%2d" % number * 1500)
    life.pass_ms(life.config.retention_every_ms)
    unsynced_bytes_max = life.storage.unsynced_bytes_max
    object.__setattr__(life.storage, "unsynced_bytes_max", 0)  # as if the disk were slow
    try:
        assert peer.fetch() == 3
    finally:
        object.__setattr__(life.storage, "unsynced_bytes_max", unsynced_bytes_max)
    assert peer.fetch() != []


def test_a_consumer_that_was_removed_and_added_again_gets_what_it_did_not_ack():
    life = make_broker(partitions=1)
    peer = life.peer().consumes()
    fill(peer, 2)
    assert peer.fetch() == numbers(0, 2)
    peer.ask(RemoveConsumer(("orders",), "shop"))
    peer.consumes()
    assert peer.fetch() == numbers(0, 2)


def poison():
    """A batch that is stored as it came, and that nobody can open."""
    fields, _ = read_fields(pack(message_of((b"a", b"b"), compression=Compression.ZLIB)))
    fields.body = b"not of its kind"
    fields.body_crc = zlib.crc32(fields.body)
    return MessageBlock(1, (bytearray(write_fields(fields)),))


@pytest.mark.parametrize("waits", [False, True], ids=["asks", "waits"])
def test_a_batch_that_cannot_be_opened_is_told_to_joyqueue_clients_alone_and_harms_nobody(waits):
    life = make_broker(partitions=1, topics=("orders", "bills"))
    documented, joyqueue = life.peer().consumes(), life.peer(dialect=JOYQUEUE).consumes("orders", "bills")
    fill(documented, 2)
    if waits:
        assert (joyqueue.fetch(), joyqueue.ack([0, 1])) == (numbers(0, 2), 0)
        waiting = joyqueue.send(joyqueue.fetch_command(wait_ms=10_000))
        others = joyqueue.send(joyqueue.fetch_command("bills", wait_ms=10_000))
        documented.send(documented.produce_command(block=poison()))
        fill(documented, 1, topic="bills")
        assert joyqueue.fetched(joyqueue.received(others)) == [b"0"], "who else waits is served"
        assert joyqueue.fetched(joyqueue.received(waiting)) == 110
    else:
        documented.produce(block=poison())
        for index in range(2):
            assert joyqueue.fetch() == numbers(index, index + 1), "those before it come alone"
            assert joyqueue.ack([index]) == 0
        assert joyqueue.fetch() == 110
    fill(documented, 1, start=9)
    assert (joyqueue.read(index=2), joyqueue.fetch(), joyqueue.fetch()) == (110, 110, 110)
    answer = documented.ask(documented.fetch_command())
    assert answer.body.topics[0].messages.count == 2, "a documented client gets it as it is"
    assert documented.ack([2, 3, 4]) == 0
    fill(documented, 1, start=10)
    assert joyqueue.fetch() == [b"10"]


def test_messages_of_either_dialect_are_received_in_the_other():
    life = make_broker(partitions=1)
    documented, joyqueue = life.peer(), life.peer(dialect=JOYQUEUE)
    documented.produce(b"a", (b"b", b"c"), business_id="é" * 100, attributes={"TAGS": "x"})
    joyqueue.produce(block=block_of(b"d", (b"e", b"f"), attributes={"TAGS": "y"}))
    for peer in (documented, joyqueue):
        peer.consumes()
        answer = peer.ask(peer.fetch_command())
        messages = peer.messages(answer)
        assert [one.index for one in messages] == [0, 1, 3, 4]
        assert messages[0].business_id == "é" * 100
        assert [one.attributes.get("TAGS") for one in messages] == ["x", "x", "y", "y"]
        peer.pipe.hang_up()
