"""Where topics live, who coordinates, and whose partitions are whose."""

import pytest

from broker.fix_broker import DOCUMENTED, JOYQUEUE, BrokerLife, make_broker
from lakemq.broker import routing
from lakemq.broker.events import MetadataGiven, StopAsked
from lakemq.wire.coordinate import AssignmentWish, FetchAssignedPartition, FindCoordinator
from lakemq.wire.metadata import FetchCluster

both = pytest.mark.parametrize("dialect", [DOCUMENTED, JOYQUEUE], ids=lambda one: one.value)


def cluster(peer, *topics, app="shop"):
    return peer.ask(FetchCluster(topics, app)).body


# --- metadata --------------------------------------------------------------------------------------------------------


@both
def test_a_topic_is_shown_with_its_policies_groups_and_broker(dialect):
    life = make_broker(partitions=3, broker_id=7, data_center="north")
    life.ask("subscribe", topic="orders", app="shop", producer={"timeout_ms": 1234}, consumer={"batch_size": 42})
    found = cluster(life.peer(dialect=dialect), "orders")
    (topic,) = found.topics
    assert (topic.topic, topic.code, topic.type) == ("orders", 0, 0)
    assert (topic.producer_policy.timeout_ms, topic.consumer_policy.batch_size) == (1234, 42)
    (group,) = topic.partition_groups
    assert (group.id, group.leader, group.partitions) == (0, 7, (0, 1, 2))
    (broker,) = found.brokers
    assert (broker.id, broker.data_center) == (7, "north")


@both
def test_an_app_sees_the_policies_of_the_roles_it_has(dialect):
    life = make_broker()
    life.ask("subscribe", topic="orders", app="shop.in", producer={})
    life.ask("subscribe", topic="orders", app="shop.out", consumer={})
    peer = life.peer(dialect=dialect)
    (topic,) = cluster(peer, "orders", app="shop.in").topics
    assert (topic.producer_policy is None, topic.consumer_policy is None) == (False, True)
    (topic,) = cluster(peer, "orders", app="shop.out").topics
    assert (topic.producer_policy is None, topic.consumer_policy is None) == (True, False)


@both
def test_the_defaults_are_those_of_the_protocol(dialect):
    life = make_broker(batch_size_default=10)
    (topic,) = cluster(life.peer(dialect=dialect), "orders").topics
    producer, consumer = topic.producer_policy, topic.consumer_policy
    assert (producer.timeout_ms, producer.weights, producer.black_list) == (2000, (), ())
    assert (producer.is_nearby, producer.is_single, producer.is_archive) == (False, False, False)
    assert (consumer.is_retry, consumer.ack_timeout_ms, consumer.batch_size) == (True, 300_000, 10)
    assert (consumer.delay_ms, consumer.error_times, consumer.partitions_max) == (0, 3, 0x7FFFFFFF)
    assert (consumer.concurrent_prefetch_size, consumer.retry_read_probability) == (1, 20)
    assert not any((consumer.is_nearby, consumer.is_paused, consumer.is_archive, consumer.is_sequential))


@both
def test_topics_come_in_the_order_asked_for_each_with_its_code(dialect):
    life = make_broker(topics=("orders", "bills"))
    life.ask("create_topic", name="secret")
    found = cluster(life.peer(dialect=dialect), "bills", "none", "secret", "orders")
    assert [(one.topic, one.code) for one in found.topics] == [
        ("bills", 0),
        ("none", 189),
        ("secret", 1),
        ("orders", 0),
    ]
    assert len(found.brokers) == 1, "each broker once"


def test_types_of_topics_are_told():
    life = make_broker()
    for kind in ("normal", "broadcast", "ordered"):
        life.ask("create_topic", name=kind, type=kind)
        life.ask("subscribe", topic=kind, app="shop", consumer={})
    found = cluster(life.peer(), "normal", "broadcast", "ordered")
    assert [one.type for one in found.topics] == [0, 1, 2]
    found = cluster(life.peer(dialect=JOYQUEUE), "normal", "broadcast", "ordered")
    assert [(one.type, one.consumer_policy.is_sequential) for one in found.topics] == [
        (0, False),
        (1, False),
        (0, True),
    ]


@both
def test_clients_are_told_the_address_they_connected_to_unless_another_is_advertised(dialect):
    peer = make_broker().peer(dialect=dialect, introduces=False)
    peer.pipe.local_host, peer.pipe.local_port = "192.168.0.5", 999
    peer.introduce()
    (broker,) = cluster(peer, "orders").brokers
    assert (broker.host, broker.port) == ("192.168.0.5", 999)
    peer = make_broker(advertised_host="mq.example.org", advertised_port=4711).peer(dialect=dialect)
    (broker,) = cluster(peer, "orders").brokers
    assert (broker.host, broker.port) == ("mq.example.org", 4711)
    (found,) = peer.ask(FindCoordinator(("orders",), "shop")).body.coordinators
    assert (found.host, found.port) == ("mq.example.org", 4711)


@both
@pytest.mark.parametrize(
    ("data_center", "region", "is_nearby"),
    [
        ("north", "north", True),
        ("north", "NORTH", True),
        ("north", "south", False),
        ("", "south", True),
        ("north", "", True),
    ],
)
def test_a_broker_is_nearby_unless_both_places_are_known_and_differ(dialect, data_center, region, is_nearby):
    peer = make_broker(data_center=data_center).peer(dialect=dialect, region=region)
    assert cluster(peer, "orders").brokers[0].is_nearby is is_nearby
    assert peer.ask(FindCoordinator(("orders",), "shop")).body.coordinators[0].is_nearby is is_nearby


@pytest.mark.parametrize(("readable", "writable"), [(True, True), (True, False), (False, True), (False, False)])
def test_joyqueue_clients_are_told_whether_the_broker_may_be_read_and_written(readable, writable):
    life = make_broker()
    life.ask("set_broker", readable=readable, writable=writable)
    (broker,) = cluster(life.peer(dialect=JOYQUEUE), "orders").brokers
    assert (broker.system_code, broker.permission) == (0, readable + 2 * writable)


def test_neighbours_lead_their_groups_and_a_group_without_a_broker_has_no_leader():
    life = make_broker(partitions=6, broker_id=1, group_ids=(0, 1, 2), advertised_host="here")
    life.broker.routing.neighbours[1] = (2, "", 5002)
    found = cluster(life.peer(), "orders")
    groups = found.topics[0].partition_groups
    assert [(one.id, one.leader, one.partitions) for one in groups] == [(0, 1, (0, 3)), (1, 2, (1, 4)), (2, -1, (2, 5))]
    assert [(one.id, one.host, one.port) for one in found.brokers] == [(1, "here", 50088), (2, "here", 5002)]


def test_of_a_topic_that_is_partly_elsewhere_only_the_part_here_is_served():
    life = make_broker(partitions=6, group_ids=(0, 1))
    peer = life.peer().consumes()
    used = {peer.produce(b"x", partition=-1)[1][0].partition for _ in range(6)}
    assert used == {0, 2, 4}
    assert (peer.produce(b"x", partition=1)[0], peer.read(partition=1)) == (188, 187)
    seen = {peer.messages(peer.ask(peer.fetch_command()))[0].partition for _ in range(3)}
    assert seen == {0, 2, 4}


def test_without_topics_the_brokers_are_told():
    found = cluster(make_broker(broker_id=3).peer())
    assert ([one.id for one in found.brokers], found.topics) == ([3], ())


@both
def test_what_is_missing_is_made_and_shown_as_its_first_use_will_have_it(dialect):
    life = BrokerLife(creates_missing=True, partitions_default=5)
    peer = life.peer(dialect=dialect)
    (topic,) = cluster(peer, "new").topics
    assert (topic.code, topic.partition_groups[0].partitions) == (0, (0, 1, 2, 3, 4))
    shown = topic.producer_policy, topic.consumer_policy
    peer.produce(b"x", topic="new")
    peer.consumes("new")
    (topic,) = cluster(peer, "new").topics
    assert (topic.producer_policy, topic.consumer_policy) == shown
    life.kill()
    assert "new" in life.broker.ledger.metadata.topics


# --- the coordinator -------------------------------------------------------------------------------------------------


@both
def test_the_broker_coordinates_every_app(dialect):
    peer = make_broker(broker_id=4, topics=("orders", "bills")).peer(dialect=dialect)
    found = peer.ask(FindCoordinator(("orders", "none", "bills"), "shop")).body.coordinators
    assert [(one.topic, one.id) for one in found] == [("orders", 4), ("none", -1), ("bills", 4)]
    assert found[1].code in (181, 189)


def assigned(peer, topic="orders", session_ms=60_000, app="shop", is_nearby=False):
    answer = peer.ask(FetchAssignedPartition((AssignmentWish(topic, session_ms, is_nearby),), app))
    assert answer.status == 0
    (entry,) = answer.body.topics
    assert (entry.topic, entry.code) == (topic, 0)
    return list(entry.partitions)


def workers(count=2, partitions=4):
    """Brokers of one machine, as `workers.py` makes them: the first one's word on metadata counts."""
    ids = tuple(range(count))
    first = make_broker(partitions=partitions, broker_id=0, group_id=0, group_ids=ids)
    lives = [first]
    for number in ids[1:]:
        life = BrokerLife(broker_id=number, group_id=number, group_ids=ids, owns_metadata=False)
        life.engine.handle(MetadataGiven(first.broker.ledger.metadata.pack()))
        lives.append(life)
    for number, life in enumerate(lives):
        life.broker.routing.neighbours = {one: (one, "", 50_000 + one) for one in ids if one != number}
    return lives


def assigned_at(peer, app="shop"):
    """Partitions, or the status or code as a negative number."""
    answer = peer.ask(FetchAssignedPartition((AssignmentWish("orders", 60_000),), app))
    if answer.status:
        return -answer.status
    (found,) = answer.body.topics
    return -found.code if found.code else set(found.partitions)


@both
@pytest.mark.parametrize("app", [f"shop.{letter}" for letter in "abcdef"])
def test_workers_agree_on_one_coordinator_for_each_app_and_it_assigns_all_partitions(dialect, app):
    """Each called itself the coordinator, and two consumers were both assigned every partition."""
    lives = workers()
    lives[0].ask("subscribe", topic="orders", app=app, consumer={})
    lives[1].engine.handle(MetadataGiven(lives[0].broker.ledger.metadata.pack()))
    named = set()
    for life in lives:
        (found,) = life.peer(dialect=dialect).ask(FindCoordinator(("orders",), app)).body.coordinators
        assert found.code == 0
        named.add(found.id)
    (coordinator,) = named
    members = [lives[coordinator].peer(dialect=dialect, host=f"10.0.0.{number}") for number in range(2)]
    assert assigned_at(members[0], app) == {0, 1, 2, 3}
    shares = [assigned_at(member, app) for member in (members[1], members[0])]
    assert sorted(shares[0] | shares[1]) == [0, 1, 2, 3]
    assert not shares[0] & shares[1], "one partition, two members"
    assert assigned_at(lives[1 - coordinator].peer(dialect=dialect), app) == -181


def test_a_worker_that_stops_still_names_the_coordinator_of_another_worker():
    lives = workers()
    apps = [f"shop.{letter}" for letter in "abcdef"]
    peer = lives[0].peer()
    found = {app: peer.ask(FindCoordinator(("orders",), app)).body.coordinators[0].id for app in apps}
    assert set(found.values()) == {0, 1}
    lives[0].engine.handle(StopAsked())
    for app, coordinator in found.items():
        (now,) = peer.ask(FindCoordinator(("orders",), app)).body.coordinators
        assert (now.id, now.code) == ((1, 0) if coordinator == 1 else (-1, 181))


def test_partitions_are_spread_evenly_and_all_of_them():
    life = make_broker(partitions=7)
    peers = [life.peer() for _ in range(3)]
    assert assigned(peers[0]) == list(range(7)), "the first has all"
    for peer in peers:
        assigned(peer)
    shares = [assigned(peer) for peer in peers]
    assert sorted(one for share in shares for one in share) == list(range(7))
    assert sorted(map(len, shares)) == [2, 2, 3]
    assert [assigned(peer) for peer in peers] == shares, "asking again moves nothing"


def test_who_comes_when_there_are_no_partitions_left_stands_by():
    life = make_broker(partitions=2)
    peers = [life.peer() for _ in range(3)]
    shares = [assigned(peer) for peer in peers]
    shares = [assigned(peer) for peer in peers]
    assert shares == [[0], [1], []]
    peers[0].pipe.hang_up()
    assert [assigned(peer) for peer in peers[1:]] == [[1], [0]]


def test_a_member_that_is_silent_for_its_session_is_out():
    life = make_broker(partitions=4)
    silent, steady = life.peer(), life.peer()
    assigned(silent, session_ms=10_000)
    assigned(steady, session_ms=60_000)
    life.pass_ms(9_999)
    assert len(assigned(steady)) == 2
    life.pass_ms(1)
    assert len(assigned(steady)) == 4
    assert len(assigned(silent)) == 2, "and in again when it asks"


def test_a_member_that_says_no_session_gets_the_brokers():
    life = make_broker(partitions=2, session_timeout_ms=5000)
    silent, steady = life.peer(), life.peer()
    assigned(silent, session_ms=0)
    life.pass_ms(4999)
    assert len(assigned(steady)) == 1
    life.pass_ms(1)
    assert len(assigned(steady)) == 2


def test_apps_and_groups_are_assigned_each_on_its_own():
    life = make_broker(partitions=4)
    life.ask("subscribe", topic="orders", app="shop.b", consumer={})
    first, second = life.peer(), life.peer()
    assigned(first)
    assert len(assigned(second, app="shop.b")) == 4


def test_new_partitions_are_spread_at_the_next_question():
    life = make_broker(partitions=2)
    first, second = life.peer(), life.peer()
    assigned(first)
    assigned(second)
    life.ask("set_topic", name="orders", partitions=6)
    assert sorted(assigned(first) + assigned(second)) == list(range(6))


def test_joyqueue_members_are_hosts_for_they_ask_over_a_new_connection_each_time():
    life = make_broker(partitions=4)

    def ask_as(host):
        peer = life.peer(dialect=JOYQUEUE, host=host)
        found = assigned(peer, session_ms=10_000)
        peer.pipe.hang_up()
        return found

    assert len(ask_as("10.0.0.1")) == 4
    assert len(ask_as("10.0.0.1")) == 4, "the same host is the same member"
    assert len(ask_as("10.0.0.2")) == 2
    assert len(ask_as("10.0.0.1")) == 2, "it did not leave with its connection"
    life.pass_ms(10_000 + 59_999)
    assert len(ask_as("10.0.0.2")) == 2, "a minute longer than it says"
    life.pass_ms(1)
    assert len(ask_as("10.0.0.2")) == 4


@both
def test_nearby_partitions_are_assigned_to_who_is_near(dialect):
    life = make_broker(partitions=2, data_center="north")
    assert assigned(life.peer(dialect=dialect, region="north"), is_nearby=True) == [0, 1]


def test_a_policy_of_nearby_consumption_counts_without_the_member_saying_so():
    life = make_broker(data_center="north")
    life.ask("subscribe", topic="orders", app="shop", consumer={"is_nearby": True})
    assert assigned_at(life.peer(region="south")) == -185
    assert assigned_at(life.peer(region="north")) == {0, 1}
    life.ask("subscribe", topic="orders", app="shop", consumer={"is_nearby": False})
    assert assigned_at(life.peer(region="south"))


def test_no_more_members_than_allowed_but_those_that_are_in_stay_in(monkeypatch):
    monkeypatch.setattr(routing, "MEMBERS_MAX", 2)
    life = make_broker(partitions=4)
    first, second, third = (life.peer() for _ in range(3))
    assigned(first)
    assigned(second, session_ms=10_000)
    answer = third.ask(FetchAssignedPartition((AssignmentWish("orders", 60_000),), "shop"))
    assert answer.body.topics[0].code == 183
    assert len(assigned(first)) == 2
    life.pass_ms(10_000)
    assert len(assigned(third)) == 2, "one place was left by who is silent"


def test_a_topic_without_a_subscription_is_assigned_to_nobody():
    life = make_broker()
    life.ask("unsubscribe", topic="orders", app="shop", role="consumer")
    answer = life.peer().ask(FetchAssignedPartition((AssignmentWish("orders", 1000),), "shop"))
    assert answer.body.topics[0].code == 136
