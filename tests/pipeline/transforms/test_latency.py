"""Latency: percentiles of runs, each message with the weight of one."""

import pytest

from pipeline.transforms.lake_rows import told

transforms = pytest.importorskip("lakemq.pipeline.transforms", reason="Spark needs pip install 'lakemq[spark]'")

pytestmark = pytest.mark.spark


def test_end_to_end_is_from_sent_to_acked_for_each_message_of_a_run(events):
    """Runs of producing and of acking overlap as they like: 100 messages, 90 of them fast."""
    found = transforms.end_to_end_latency(
        events(
            {"kind": "produced", "offset": 30, "count": 50, "when": 1, "elapsed": 900},  # sent at 0.1
            {"kind": "produced", "offset": 80, "count": 50, "when": 1, "elapsed": 800},  # sent at 0.2
            {"kind": "acked", "offset": 30, "count": 60, "when": 1.1},  # 50 after 1000 ms, 10 after 900 ms
            {"kind": "acked", "offset": 90, "count": 30, "when": 1.2},  # 30 after 1000 ms
            {"kind": "acked", "offset": 120, "count": 4, "when": 5.2},  # 4 after 5 s
            {"kind": "acked", "offset": 124, "count": 6, "when": 10.2, "attempt": 2},  # 6 after 10 s
            {"kind": "acked", "offset": 30, "count": 1, "when": 62.1, "app": "audit"},
            {"kind": "acked", "offset": 129, "count": 5, "when": 61.2, "app": "audit"},  # 130 on was never produced
            {"kind": "acked", "offset": 30, "count": 9, "when": 2, "topic_id": 9},
            {"kind": "failed", "offset": 30, "count": 9, "when": 59},
        )
    )
    assert found.columns == ["at", "topic", "group", "messages", "p50Ms", "p95Ms", "p99Ms", "maxMs"]
    assert told(found) == [
        (0, "orders", "shop.billing", 100, 1000.0, 10_000.0, 10_000.0, 10_000),
        (60, "orders", "audit", 2, 61_500.0, pytest.approx(61_950), pytest.approx(61_990), 62_000),
    ]


def test_percentiles_are_where_they_are_said_to_be(events):
    """One message for each millisecond from 1 to 101: the share p of them is below 1 + 100 p."""
    rows = [{"kind": "acked", "offset": ms, "elapsed": ms} for ms in range(1, 102)]
    found = transforms.hop_latency(events(*rows))
    assert told(found) == [(0, "orders", "shop.billing", "process", 101, 51.0, 96.0, 100.0, 101)]


def test_a_hop_has_its_own_time_and_a_run_its_weight(events):
    found = transforms.hop_latency(
        events(
            {"kind": "produced", "count": 3, "elapsed": 10},
            {"kind": "produced", "offset": 3, "elapsed": 50},
            {"kind": "produced", "offset": 4, "when": 60, "elapsed": -3},  # the sender's clock is ahead
            {"kind": "delivered", "count": 4, "elapsed": 20},
            {"kind": "delivered", "elapsed": 9_000, "attempt": 2},  # it waited because it had to
            {"kind": "acked", "count": 2, "elapsed": 100},
            {"kind": "failed", "offset": 2, "count": 2, "elapsed": 123_456},
            {"kind": "acked", "count": 4, "elapsed": 7, "app": "audit"},
            {"kind": "acked", "offset": 9, "count": 4, "elapsed": None, "app": "audit"},
            {"kind": "dead", "elapsed": 1},
        ),
        every="1 minute",
    )
    assert found.columns == ["at", "topic", "app", "hop", "messages", "p50Ms", "p95Ms", "p99Ms", "maxMs"]
    assert told(found, "at", "app", "hop", "messages", "p50Ms", "maxMs") == [
        (0, "audit", "process", 4, 7.0, 7),
        (0, "shop", "produce", 4, 10.0, 50),
        (0, "shop.billing", "deliver", 4, 20.0, 20),
        (0, "shop.billing", "process", 4, 61_550.0, 123_456),  # 123 456 counts as 123 000, between it and 100
        (60, "shop", "produce", 1, 0.0, 0),
    ]


def test_nothing_comes_of_nothing(events):
    assert transforms.end_to_end_latency(events()).collect() == []
    assert transforms.hop_latency(events()).collect() == []
