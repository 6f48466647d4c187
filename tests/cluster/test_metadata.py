"""Metadata as a fold over changes: replaying them, from the start or from any snapshot, gives the same."""

from dataclasses import asdict, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from lakemq.cluster.metadata import (
    App,
    Limits,
    Metadata,
    Subscription,
    Token,
    Topic,
    digest_of,
    pack_change,
    policy_with,
    unpack_change,
)
from lakemq.errors import BadParameterError
from lakemq.policy import ConsumerPolicy, ProducerPolicy

TOPICS = st.sampled_from(["a", "b", "north.a"])
APPS = st.sampled_from(["shop", "shop.b", "bank"])
OWNERS = st.sampled_from(["shop", "bank"])
ADDRESSES = st.lists(st.sampled_from(["10.0.0.1", "::1"]), max_size=2).map(tuple)
PRODUCERS = st.none() | st.builds(
    ProducerPolicy,
    is_single=st.booleans(),
    weights=st.lists(st.tuples(st.sampled_from(["0", "1"]), st.integers(0, 9)), max_size=2).map(tuple),
    black_list=ADDRESSES,
    timeout_ms=st.integers(1, 9),
)
CONSUMERS = st.none() | st.builds(
    ConsumerPolicy, is_paused=st.booleans(), batch_size=st.integers(1, 9), black_list=ADDRESSES
)
TOKENS = st.lists(
    st.builds(Token, st.sampled_from("xyz"), st.sampled_from([digest_of("one"), digest_of("two")]), st.integers(0, 3)),
    max_size=3,
).map(tuple)


class MetadataModel(RuleBasedStateMachine):
    """Plain dicts beside it; every change also goes through its bytes, and every snapshot through its."""

    def __init__(self):
        super().__init__()
        self.metadata = Metadata()
        self.replayed = Metadata()  # from a snapshot taken at some moment
        self.topics, self.apps, self.subscriptions = {}, {}, {}
        self.numbers = set()
        self.changes = 0

    def change(self, change):
        data = pack_change(change)
        before = self.metadata.pack()
        kept = self.metadata
        self.metadata = self.metadata.apply(change)
        assert kept.pack() == before, "a snapshot is never changed"
        self.replayed = self.replayed.apply(unpack_change(memoryview(data)))
        self.changes += 1

    def new_number(self):
        number = self.metadata.next_number
        assert number not in self.numbers, "a number is given once"
        self.numbers.add(number)
        return number

    @rule(name=TOPICS, groups=st.lists(st.integers(0, 2), min_size=1, max_size=4).map(tuple), flag=st.booleans())
    def put_topic(self, name, groups, flag):
        old = self.topics.get(name)
        number = old.number if old else self.new_number()
        self.topics[name] = Topic(number, name, "ordered" if flag else "normal", groups, is_writable=flag)
        self.change({"op": "put_topic", "topic": asdict(self.topics[name])})

    @rule(name=TOPICS)
    def drop_topic(self, name):
        self.topics.pop(name, None)
        self.subscriptions = {key: one for key, one in self.subscriptions.items() if key[0] != name}
        self.change({"op": "drop_topic", "name": name})

    @rule(name=OWNERS, tokens=TOKENS, limit=st.integers(0, 5), is_open=st.booleans())
    def put_app(self, name, tokens, limit, is_open):
        self.apps[name] = App(name, tokens, Limits(limit, fetch_per_second=limit), is_open)
        self.change({"op": "put_app", "app": asdict(self.apps[name])})

    @rule(name=OWNERS)
    def drop_app(self, name):
        self.apps.pop(name, None)
        self.subscriptions = {
            key: one for key, one in self.subscriptions.items() if key[1] != name and not key[1].startswith(f"{name}.")
        }
        self.change({"op": "drop_app", "name": name})

    @rule(topic=TOPICS, app=APPS, producer=PRODUCERS, consumer=CONSUMERS, is_new=st.booleans())
    def put_subscription(self, topic, app, producer, consumer, is_new):
        old = self.subscriptions.get((topic, app))
        number = self.new_number() if old is None or is_new else old.number
        one = Subscription(number, topic, app, producer, consumer)
        self.subscriptions[topic, app] = one
        self.change({"op": "put_subscription", "subscription": asdict(one)})

    @rule(topic=TOPICS, app=APPS)
    def drop_subscription(self, topic, app):
        self.subscriptions.pop((topic, app), None)
        self.change({"op": "drop_subscription", "topic": topic, "app": app})

    @rule()
    def begin_from_a_snapshot(self):
        self.replayed = Metadata.unpack(self.metadata.pack())

    @rule()
    def take_all_over(self):
        """What another broker is told, as one change."""
        said = unpack_change(self.metadata.pack())
        other = Metadata().apply(unpack_change(pack_change({"op": "replace_all", "metadata": said})))
        assert other == self.metadata

    @invariant()
    def is_what_the_model_says(self):
        metadata = self.metadata
        assert metadata.topics == self.topics
        assert metadata.apps == self.apps
        assert metadata.subscriptions == self.subscriptions
        assert metadata.version == self.changes, "every change has a version of its own"
        assert self.replayed == metadata
        assert all(number < metadata.next_number for number in self.numbers)
        for (topic, app), one in self.subscriptions.items():
            assert metadata.subscription(topic, app) == one


TestMetadata = MetadataModel.TestCase
TestMetadata.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


def test_an_empty_snapshot_is_an_empty_metadata():
    assert Metadata.unpack(b"") == Metadata()
    assert Metadata.unpack(Metadata().pack()) == Metadata()


@pytest.mark.parametrize(
    ("expires_ms", "now_ms", "text", "is_good"),
    [
        (0, 10**15, "one", True),
        (100, 99, "one", True),
        (100, 100, "one", False),
        (0, 0, "two", False),
        (0, 0, "", False),
    ],
)
def test_a_token_is_good_until_it_expires(expires_ms, now_ms, text, is_good):
    app = App("shop", (Token("1", digest_of("one"), expires_ms),))
    metadata = replace(Metadata(), apps={"shop": app})
    assert metadata.is_token_good("shop", text, now_ms) is is_good
    assert metadata.is_token_good("shop.group", text, now_ms) is is_good
    assert not metadata.is_token_good("bank", text, now_ms)


@given(st.integers(), st.booleans())
def test_a_number_is_taken_within_its_range_and_refused_without(value, is_flag):
    if not is_flag and 1 <= value <= 32767:
        assert policy_with(ConsumerPolicy(), {"batch_size": value}).batch_size == value
    else:
        with pytest.raises(BadParameterError):
            policy_with(ConsumerPolicy(), {"batch_size": bool(value) if is_flag else value})


def test_a_policy_that_nothing_is_said_of_stays_the_same():
    policy = ConsumerPolicy(batch_size=3, black_list=("a",))
    assert policy_with(policy, {}) == policy
    assert policy_with(policy, {"black_list": ["b"]}) == replace(policy, black_list=("b",))
