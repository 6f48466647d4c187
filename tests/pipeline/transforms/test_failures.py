"""Retries and dead letters."""

import pytest

from pipeline.transforms.lake_rows import told

transforms = pytest.importorskip("lakemq.pipeline.transforms", reason="Spark needs pip install 'lakemq[spark]'")

pytestmark = pytest.mark.spark


def test_a_retried_message_counts_once_and_each_failure_has_its_reason(events):
    found = transforms.retry_report(
        events(
            {"kind": "produced", "offset": 0, "count": 100},
            {"kind": "delivered", "offset": 0, "count": 100},
            {"kind": "failed", "offset": 10, "count": 20, "reason": "timeout"},
            {"kind": "failed", "offset": 50, "count": 5, "reason": "no stock"},
            {"kind": "failed", "offset": 60, "reason": None},
            {"kind": "retry", "offset": 10, "count": 20},
            {"kind": "delivered", "offset": 10, "count": 20, "attempt": 2, "when": 5},
            {"kind": "failed", "offset": 10, "count": 2, "attempt": 2, "reason": "no stock", "when": 6},
            {"kind": "delivered", "offset": 10, "count": 2, "attempt": 3, "when": 9},
            {"kind": "delivered", "offset": 50, "count": 5, "attempt": 2, "when": 9},
            {"kind": "delivered", "offset": 0, "count": 100, "app": "calm"},
            {"kind": "failed", "offset": 0, "count": 3, "app": "audit", "reason": "timeout"},
        )
    )
    assert found.columns == ["topic", "group", "messages", "retries", "failures", "attemptsMax", "reasons"]
    rows = [(*row[:-1], [tuple(one) for one in row[-1]]) for row in told(found)]
    assert rows == [
        ("orders", "audit", 0, 0, 3, 1, [("timeout", 3)]),
        ("orders", "shop.billing", 25, 27, 28, 3, [("timeout", 20), ("no stock", 7), (None, 1)]),
    ]


def test_reasons_that_all_differ_do_not_flood_the_report(events):
    rows = [{"kind": "failed", "offset": n, "count": 1 + (n == 30), "reason": f"order {n:02}"} for n in range(40)]
    (row,) = transforms.retry_report(events(*rows)).collect()
    assert row["failures"] == 41
    assert [tuple(one) for one in row["reasons"][:2]] == [("order 30", 2), ("order 00", 1)]
    assert len(row["reasons"]) == 20


def test_retries_without_a_failure_have_no_reasons(events):
    (row,) = transforms.retry_report(events({"kind": "delivered", "count": 4, "attempt": 2})).collect()
    assert (row["messages"], row["retries"], row["failures"], row["reasons"]) == (4, 4, 0, [])


def test_dead_letters_by_reason_and_where_the_latest_is(events):
    found = transforms.dead_letter_report(
        events(
            {"kind": "dead", "offset": 5, "count": 3, "when": 10, "attempt": 4, "reason": "no stock"},
            {"kind": "dead", "offset": 90, "count": 2, "when": 70, "attempt": 5, "reason": "no stock", "partition": 2},
            {"kind": "dead", "offset": 1, "when": 20, "reason": "timeout"},
            {"kind": "dead", "offset": 1, "when": 30, "reason": "timeout", "app": "audit"},
            {"kind": "failed", "offset": 1, "when": 90, "reason": "timeout"},
        )
    )
    assert found.columns == [
        *("topic", "group", "reason", "messages", "attemptsMax", "firstAt", "lastAt"),
        *("lastPartition", "lastOffset"),
    ]
    assert told(found) == [
        ("orders", "audit", "timeout", 1, None, 30, 30, 0, 1),
        ("orders", "shop.billing", "no stock", 5, 5, 10, 70, 2, 91),
        ("orders", "shop.billing", "timeout", 1, None, 20, 20, 0, 1),
    ]


def test_nothing_comes_of_nothing(events):
    assert transforms.retry_report(events()).collect() == []
    assert transforms.dead_letter_report(events()).collect() == []
