"""Rates, hot keys, duplicates, cost: what is counted in messages and bytes."""

import pytest

from pipeline.transforms.lake_rows import told

transforms = pytest.importorskip("lakemq.pipeline.transforms", reason="Spark needs pip install 'lakemq[spark]'")
errors = pytest.importorskip("lakemq.pipeline.errors")

pytestmark = pytest.mark.spark


def test_rates_are_of_each_topic_and_app_in_each_span(meta):
    rows = meta(
        {"offset": 0, "stored": 0, "bytes_": 10},
        {"offset": 1, "stored": 59.999, "bytes_": 20},
        {"offset": 2, "stored": 60, "bytes_": 40},
        {"offset": 3, "stored": 30, "bytes_": 80, "app": "web"},
        {"offset": 0, "stored": 30, "bytes_": None, "topic": "bills"},
    )
    found = transforms.rates(rows)
    assert found.columns == ["at", "topic", "app", "messages", "bytes"]
    assert told(found) == [
        (0, "bills", "shop", 1, 0),
        (0, "orders", "shop", 2, 30),
        (0, "orders", "web", 1, 80),
        (60, "orders", "shop", 1, 40),
    ]
    assert told(transforms.rates(rows, every="2m"), "at", "topic", "app", "messages")[1] == (0, "orders", "shop", 3)


@pytest.mark.parametrize("every", ["soon", "0 minutes", "0s", "1 minuet", ""])
def test_a_span_that_is_none_is_refused(meta, every):
    with pytest.raises(errors.OptionError, match="is not a span of time"):
        transforms.rates(meta(), every=every)


def test_hot_keys_come_with_their_share_of_the_topic(meta):
    keys = ["a"] * 5 + ["b"] * 2 + ["c"] * 2 + [None]
    found = transforms.hot_keys(
        meta(
            *({"offset": offset, "key": key, "bytes_": 10} for offset, key in enumerate(keys)),
            *({"offset": offset, "key": "z", "topic": "bills"} for offset in range(3)),
        ),
        count=3,
    )
    assert [tuple(row) for row in found.collect()] == [
        ("orders", "a", 5, 50, 0.5),
        ("bills", "z", 3, 300, 1.0),
        ("orders", "b", 2, 20, 0.2),
    ]


def test_duplicates_have_key_and_body_and_come_soon(meta):
    found = transforms.duplicates(
        meta(
            {"offset": 1, "stored": 0, "key": "a", "crc": 7},
            {"offset": 5, "stored": 600, "key": "a", "crc": 7, "partition": 1},  # as late as can be
            {"offset": 9, "stored": 1200, "key": "a", "crc": 7},  # soon after the second
            {"offset": 20, "stored": 1801, "key": "a", "crc": 7},  # too late: a new first
            {"offset": 2, "stored": 1, "key": "a", "crc": 8},  # another body
            {"offset": 3, "stored": 2, "key": "b", "crc": 7},  # another key
            {"offset": 4, "stored": 3, "key": "a", "crc": 7, "topic": "bills"},
            {"offset": 10, "stored": 5, "crc": 9},
            {"offset": 11, "stored": 6, "crc": 9},
            {"offset": 12, "stored": 5, "key": "n", "crc": None},
            {"offset": 13, "stored": 6, "key": "n", "crc": None},  # without a body there is nothing to compare
        )
    )
    assert found.columns == [
        *("topic", "key", "crc", "copies", "firstPartition", "firstOffset", "firstAt"),
        *("lastPartition", "lastOffset", "lastAt"),
    ]
    assert told(found) == [
        ("orders", None, 9, 2, 0, 10, 5, 0, 11, 6),
        ("orders", "a", 7, 3, 0, 1, 0, 0, 9, 1200),
    ]


def test_an_apps_cost_is_what_it_sent_and_what_it_was_given(meta, events):
    found = transforms.app_cost(
        meta({"offset": 0, "bytes_": 10}, {"offset": 1, "bytes_": 5}, {"offset": 2, "app": "web", "bytes_": 1}),
        events(
            {"kind": "produced", "offset": 0, "count": 2},
            {"kind": "delivered", "offset": 0, "count": 3},
            {"kind": "delivered", "offset": 1, "count": 2, "attempt": 2},
            {"kind": "delivered", "offset": 1, "attempt": 3},
            {"kind": "acked", "offset": 0, "count": 3},
            {"kind": "delivered", "offset": 0, "count": 3, "app": "web"},
        ),
    )
    assert found.columns == ["app", "messages", "bytes", "deliveries", "retries"]
    assert told(found) == [("shop", 2, 15, 0, 0), ("shop.billing", 0, 0, 6, 3), ("web", 1, 1, 3, 0)]


def test_nothing_comes_of_nothing(meta, events):
    frames = [
        transforms.rates(meta()),
        transforms.hot_keys(meta()),
        transforms.duplicates(meta()),
        transforms.app_cost(meta(), events()),
    ]
    assert [frame.collect() for frame in frames] == [[]] * 4
