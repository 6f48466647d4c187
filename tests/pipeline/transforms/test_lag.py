"""Lag over time: what was produced and not settled yet."""

import pytest

from pipeline.transforms.lake_rows import told

transforms = pytest.importorskip("lakemq.pipeline.transforms", reason="Spark needs pip install 'lakemq[spark]'")

pytestmark = pytest.mark.spark


def test_lag_is_what_was_produced_and_not_settled(events):
    found = transforms.lag_history(
        events(
            {"kind": "produced", "offset": 0, "count": 100, "when": 0},
            {"kind": "produced", "offset": 0, "count": 10, "when": 60, "partition": 1},
            {"kind": "delivered", "offset": 0, "count": 100, "when": 1},
            {"kind": "acked", "offset": 0, "count": 70, "when": 10},
            {"kind": "failed", "offset": 70, "count": 30, "when": 10},
            {"kind": "acked", "offset": 0, "count": 10, "when": 70, "partition": 1},
            {"kind": "dead", "offset": 70, "count": 20, "when": 130},
            {"kind": "expired", "offset": 90, "count": 4, "when": 130},
            {"kind": "delivered", "offset": 0, "count": 1, "when": 5, "app": "audit"},
            {"kind": "acked", "offset": 0, "count": 1, "when": 200, "app": "audit"},
            {"kind": "produced", "offset": 0, "count": 9, "topic": "nobody"},
        )
    )
    assert found.columns == ["at", "topic", "topicId", "group", "produced", "settled", "lag"]
    assert told(found, "group", "at", "produced", "settled", "lag") == [
        ("audit", 0, 100, 0, 100),
        ("audit", 60, 110, 0, 110),
        ("audit", 180, 110, 1, 109),
        ("shop.billing", 0, 100, 70, 30),
        ("shop.billing", 60, 110, 80, 30),
        ("shop.billing", 120, 110, 104, 6),
    ]


def test_a_message_is_settled_once_however_often_it_comes(events):
    found = transforms.lag_history(
        events(
            {"kind": "produced", "offset": 0, "count": 10, "when": 0},
            {"kind": "acked", "offset": 0, "count": 6, "when": 60},
            {"kind": "dead", "offset": 6, "count": 2, "when": 60},
            {"kind": "resent", "offset": 7, "count": 1, "when": 70},
            {"kind": "acked", "offset": 7, "count": 1, "when": 120},
            {"kind": "acked", "offset": 3, "count": 6, "when": 120},  # a position was moved back: one of them is new
        )
    )
    assert told(found, "at", "produced", "settled", "lag") == [(0, 10, 0, 10), (60, 10, 8, 2), (120, 10, 9, 1)]


def test_events_that_begin_late_make_no_lag_below_zero(events):
    found = transforms.lag_history(
        events(
            {"kind": "acked", "offset": 40, "count": 70, "when": 0},  # 40 to 99 were produced before
            {"kind": "produced", "offset": 100, "count": 50, "when": 0},
            {"kind": "acked", "offset": 7, "count": 3, "when": 0, "partition": 5},
        )
    )
    assert told(found, "produced", "settled", "lag") == [(50, 10, 40)]


def test_a_topic_made_anew_begins_anew(events):
    found = transforms.lag_history(
        events(
            {"kind": "produced", "offset": 0, "count": 5, "topic_id": 1},
            {"kind": "delivered", "offset": 0, "count": 5, "topic_id": 1},
            {"kind": "produced", "offset": 0, "count": 8, "topic_id": 2, "when": 60},
            {"kind": "acked", "offset": 0, "count": 8, "topic_id": 2, "when": 60},
        )
    )
    assert told(found, "topicId", "at", "lag") == [(1, 0, 5), (2, 60, 0)]


def test_nothing_comes_of_nothing(events):
    assert transforms.lag_history(events()).collect() == []


def test_counted_back_from_now_it_ends_with_what_the_broker_says(spark, events):
    """Events that begin late, a group without any, and a topic that is gone."""
    happened = events(
        {"kind": "produced", "offset": 100, "count": 50, "when": 0},
        {"kind": "acked", "offset": 100, "count": 20, "when": 60},
        {"kind": "produced", "offset": 0, "count": 5, "when": 0, "topic": "gone", "topic_id": 9},
        {"kind": "acked", "offset": 0, "count": 5, "when": 60, "topic": "gone", "topic_id": 9},
    )
    id = happened.where("topic = 'orders'").first()["topicId"]
    rows = [("orders", 0, "shop.billing", 0, 70, 70, id), ("orders", 1, "shop.billing", 0, 10, 10, id)]
    rows.append(("orders", 0, "shop.idle", 0, 150, 150, id))
    from lakemq.pipeline.views import LAG_DDL

    found = transforms.lag_history(happened, now=spark.createDataFrame(rows, LAG_DDL))
    lags = {}
    for row in found.orderBy("at").collect():
        lags.setdefault((row["topic"], row["group"]), []).append(row["lag"])
    assert lags == {
        ("orders", "shop.billing"): [100, 80, 80],
        ("orders", "shop.idle"): [150],
        ("gone", "shop.billing"): [5, 0],
    }
