import pytest

from pipeline.transforms.lake_rows import told

transforms = pytest.importorskip("lakemq.pipeline.transforms", reason="Spark needs pip install 'lakemq[spark]'")

pytestmark = pytest.mark.spark


def test_each_message_has_the_state_of_the_range_it_lies_in(meta, states):
    rows = meta(*({"offset": offset} for offset in range(6)))
    found = transforms.deliveries(
        rows,
        states(
            {"first": 0, "end": 2},
            {"first": 2, "end": 3, "state": "dead", "attempts": 5, "reason": "no such order"},
            {"first": 3, "end": 6, "state": "pending", "attempts": 0},
        ),
    )
    assert told(found, "offset", "group", "state", "attempts", "reason") == [
        (0, "shop.billing", "acked", 1, None),
        (1, "shop.billing", "acked", 1, None),
        (2, "shop.billing", "dead", 5, "no such order"),
        (3, "shop.billing", "pending", 0, None),
        (4, "shop.billing", "pending", 0, None),
        (5, "shop.billing", "pending", 0, None),
    ]


def test_groups_and_partitions_are_told_from_each_other(meta, states):
    rows = meta(
        {"offset": 1, "partition": 0, "key": "k"}, {"offset": 1, "partition": 1}, {"offset": 9, "topic": "other"}
    )
    found = transforms.deliveries(
        rows,
        states(
            {"first": 0, "end": 5},
            {"first": 0, "end": 5, "partition": 1, "state": "delivered"},
            {"first": 0, "end": 2, "group": "audit", "state": "pending", "attempts": 0},
        ),
    )
    assert told(found, "messageId", "key", "group", "state") == [
        ("orders-0-1", "k", "audit", "pending"),
        ("orders-0-1", "k", "shop.billing", "acked"),
        ("orders-1-1", None, "shop.billing", "delivered"),
    ]


def test_the_columns_are_the_promised_ones_and_nothing_comes_of_nothing(meta, states):
    found = transforms.deliveries(meta(), states())
    assert found.columns == [
        *("messageId", "topic", "partition", "offset", "key", "timestamp"),
        *("group", "state", "attempts", "reason", "due"),
    ]
    assert found.collect() == []


def test_states_that_know_the_topic_id_are_not_those_of_an_earlier_topic(meta, states):
    rows = meta({"offset": 0, "topic_id": 1, "message_id": "old"}, {"offset": 0, "topic_id": 2, "message_id": "new"})
    ranges = states({"first": 0, "end": 1}).selectExpr("*", "2 as topicId")
    assert told(transforms.deliveries(rows, ranges), "messageId") == [("new",)]
