"""Routes and selectors: who leads what, what may be written, and which partition a message goes to."""

from collections import Counter
from random import Random

import pytest

from lakemq.client.address import Address
from lakemq.client.router import Router
from lakemq.client.selector import PartitionSelector, hash_partition
from lakemq.errors import BadParameterError, NoPartitionGroupError
from lakemq.policy import ConsumerPolicy, ProducerPolicy
from lakemq.wire.metadata import ClusterBroker, ClusterPartitionGroup, ClusterTopic, FetchClusterAck

SEED = Address("seed", 9)


def learn(router=None, groups=((0, 1, (0, 1)), (1, 2, (2, 3))), policy=None, type=0, nearby=(), now_ms=0, hosts=None):
    """A route of topic "orders": groups as (id, leader, partitions), brokers 1 to 3."""
    hosts = hosts or {1: "b1", 2: "b2", 3: "b3"}
    topic = ClusterTopic("orders", policy, None, type, tuple(ClusterPartitionGroup(*group) for group in groups))
    brokers = tuple(ClusterBroker(n, host, 50000 + n, is_nearby=n in nearby) for n, host in hosts.items())
    ack = FetchClusterAck((topic,), brokers)
    return (router or Router(30_000)).learn(topic, ack, "shop", SEED, now_ms)


def test_a_route_says_who_leads_what():
    route = learn()
    assert route.partitions == (0, 1, 2, 3)
    assert route.leaders[2].address == Address("b2", 50002)
    assert set(route.brokers) == {1, 2}
    assert route.led_by(2) == (2, 3)
    assert not route.is_ordered
    assert learn(type=2).is_ordered


def test_partitions_without_a_leader_are_known_but_not_written():
    route = learn(groups=((0, 1, (0,)), (1, -1, (1,)), (2, 77, (2,))))
    assert route.partitions == (0, 1, 2)
    assert route.candidates[0] == (0,)


def test_a_broker_that_does_not_know_its_name_is_where_we_asked():
    route = learn(hosts={1: "", 2: "0.0.0.0"})
    assert route.leaders[0].address == Address("seed", 50001)
    assert route.leaders[2].address == Address("seed", 50002)


def test_a_route_gets_old_and_may_be_spoiled():
    router = Router(30_000)
    assert router.route("orders", "shop") is None
    route = learn(router)
    assert router.route("orders", "shop") is route
    assert router.route("orders", "other") is None
    assert not router.is_old(route, 29_999)
    assert router.is_old(route, 30_000)
    router.spoil("orders", "shop")
    assert router.route("orders", "shop") is None
    assert router.last_known("orders", "shop") is route
    again = learn(router, now_ms=5)
    assert router.route("orders", "shop") is again


def spread(route, rule=None, count=10_000, seed=1):
    selector = PartitionSelector(rule, Random(seed).random)
    return Counter(selector.select(route, None) for _ in range(count))


def test_without_a_key_all_partitions_get_their_share():
    found = spread(learn())
    assert set(found) == {0, 1, 2, 3}
    assert all(2300 < count < 2700 for count in found.values())


def test_weights_are_of_brokers():
    policy = ProducerPolicy(weights=(("1", 3), ("2", 1)))
    found = spread(learn(groups=((0, 1, (0, 1)), (1, 2, (2,))), policy=policy))
    assert 3500 < found[0] < 4000
    assert 3500 < found[1] < 4000
    assert 2300 < found[2] < 2700


def test_a_broker_of_weight_zero_gets_nothing_unless_all_are():
    assert set(spread(learn(policy=ProducerPolicy(weights=(("1", 0), ("2", 1)))))) == {2, 3}
    assert set(spread(learn(policy=ProducerPolicy(weights=(("1", 0), ("2", 0)))))) == {0, 1, 2, 3}


def test_nearby_brokers_are_preferred_where_the_policy_says_so():
    policy = ProducerPolicy(is_nearby=True)
    assert set(spread(learn(policy=policy, nearby=(2,)))) == {2, 3}
    assert set(spread(learn(policy=policy))) == {0, 1, 2, 3}
    assert set(spread(learn(nearby=(2,)))) == {0, 1, 2, 3}


def test_a_broker_that_is_not_well_is_sent_less_and_one_that_is_ill_nothing():
    router = Router(30_000)
    ill = learn(router).leaders[0].address
    router.weigh(ill, 0.5)
    found = spread(router.route("orders", "shop"))
    assert 1500 < found[0] < 1850
    assert 3100 < found[2] < 3600
    router.weigh(ill, 0.0)
    assert set(spread(router.route("orders", "shop"))) == {2, 3}
    assert set(spread(learn(router))) == {2, 3}, "a new answer does not cure it"
    weights = ProducerPolicy(weights=(("1", 9), ("2", 1)))
    assert set(spread(learn(router, policy=weights))) == {2, 3}
    router.weigh(Address("b2", 50002), 0.0)
    assert set(spread(router.route("orders", "shop"))) == {0, 1, 2, 3}, "all ill: better than nowhere"
    router.weigh(ill, 1.0)
    assert set(spread(router.route("orders", "shop"))) == {0, 1}


def test_keys_stay_where_they_are_however_well_their_broker_is():
    router = Router(30_000)
    learn(router)
    selector = PartitionSelector(None, Random(1).random)
    before = [selector.select(router.route("orders", "shop"), f"k{number}") for number in range(50)]
    router.weigh(Address("b1", 50001), 0.0)
    assert [selector.select(router.route("orders", "shop"), f"k{number}") for number in range(50)] == before


def test_consumers_receive_from_nearby_brokers_where_the_policy_says_so():
    def receiving(nearby, is_nearby):
        topic = ClusterTopic(
            "orders",
            None,
            ConsumerPolicy(is_nearby=is_nearby),
            0,
            (ClusterPartitionGroup(0, 1, (0,)), ClusterPartitionGroup(1, 2, (1,))),
        )
        brokers = tuple(ClusterBroker(n, f"b{n}", 50000 + n, is_nearby=n in nearby) for n in (1, 2))
        return set(Router(30_000).learn(topic, FetchClusterAck((topic,), brokers), "shop", SEED, 0).receiving)

    assert receiving((2,), True) == {2}
    assert receiving((), True) == {1, 2}, "nobody is near: better than nothing"
    assert receiving((2,), False) == {1, 2}


def test_the_next_try_goes_to_another_broker_if_there_is_one():
    route = learn()
    assert set(spread(route.without({1}))) == {2, 3}
    assert route.without({1, 2}) is route
    assert route.without(set()) is route


def test_round_robin_takes_turns():
    selector = PartitionSelector("round_robin", Random(1).random)
    assert [selector.select(learn(), None) for _ in range(6)] == [0, 1, 2, 3, 0, 1]


def test_a_key_has_its_partition_whoever_leads():
    route = learn()
    selector = PartitionSelector(None, Random(1).random)
    assert {selector.select(route, "c-7") for _ in range(50)} == {hash_partition("c-7", (0, 1, 2, 3))}
    headless = learn(groups=((0, 1, (0, 1)), (1, -1, (2, 3))))
    assert [selector.select(headless, str(n)) for n in range(50)] == [selector.select(route, str(n)) for n in range(50)]


def test_the_hash_is_part_of_the_contract():
    # CRC-32 of the UTF-8 bytes modulo the number of partitions: other clients compute the same.
    assert [hash_partition(key, tuple(range(8))) for key in ("", "a", "c-7", "订单")] == [0, 3, 3, 3]


def test_ordered_messages_without_a_key_share_a_partition():
    selector = PartitionSelector(None, Random(1).random)
    assert {selector.select(learn(), None, is_ordered=True) for _ in range(20)} == {0}
    assert {selector.select(learn(type=2), None) for _ in range(20)} == {0}


def test_a_function_chooses():
    seen = []

    def choose(topic, key, partitions):
        seen.append((topic, key, tuple(partitions)))
        return partitions[-1]

    selector = PartitionSelector(choose, Random(1).random)
    assert selector.select(learn(), "k") == 3
    assert seen == [("orders", "k", (0, 1, 2, 3))]
    with pytest.raises(BadParameterError, match="partition 9"):
        PartitionSelector(lambda *_: 9, Random(1).random).select(learn(), None)


def test_nowhere_to_go():
    selector = PartitionSelector(None, Random(1).random)
    with pytest.raises(NoPartitionGroupError):
        selector.select(learn(groups=((0, -1, (0,)),)), None)
    with pytest.raises(BadParameterError):
        PartitionSelector("fastest", Random(1).random)
