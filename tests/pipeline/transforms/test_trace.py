from datetime import UTC, datetime

import pytest

from pipeline.transforms.lake_rows import at, told

transforms = pytest.importorskip("lakemq.pipeline.transforms", reason="Spark needs pip install 'lakemq[spark]'")
errors = pytest.importorskip("lakemq.pipeline.errors")

pytestmark = pytest.mark.spark

SEEN = ("offset", "at", "kind", "group", "client", "attempt", "elapsedMs", "sinceSentMs", "reason")


@pytest.fixture
def history(events):
    """Ten messages produced as one run; billing fails at two of them, audit takes all ten."""
    return events(
        {"kind": "produced", "offset": 100, "count": 10, "when": 1, "client": "web-1@10.0.0.1", "elapsed": 1000},
        {"kind": "delivered", "offset": 100, "count": 4, "when": 2, "client": "b-1@10.0.0.2", "elapsed": 1000},
        {"kind": "acked", "offset": 100, "count": 2, "when": 3, "client": "b-1@10.0.0.2", "elapsed": 1000},
        {"kind": "failed", "offset": 102, "count": 2, "when": 3, "elapsed": 1000, "reason": "no stock"},
        {"kind": "retry", "offset": 102, "count": 2, "when": 3, "attempt": 1},
        {"kind": "delivered", "offset": 102, "when": 13, "attempt": 2, "elapsed": 12000},
        {"kind": "acked", "offset": 102, "when": 13, "attempt": 2, "elapsed": 0},
        {"kind": "delivered", "offset": 100, "count": 10, "when": 4, "app": "audit", "elapsed": 3000},
        {"kind": "acked", "offset": 102, "when": 2, "topic": "other"},
        {"kind": "acked", "offset": 102, "when": 2, "topic_id": 7},
        {"kind": "acked", "offset": 102, "when": 2, "partition": 1},
    )


@pytest.fixture
def stored(meta):
    return meta(*({"offset": offset, "stored": 1, "sent": 0, "key": f"k{offset % 2}"} for offset in range(98, 110)))


def in_order(frame):
    return [tuple(told_one(row[name]) for name in SEEN) for row in frame.collect()]


def told_one(value):
    return (value.astimezone(UTC) - at(0)).total_seconds() if isinstance(value, datetime) else value


def test_refused_sends_are_found_by_key_id_and_time(stored, events):
    reason = "188: elsewhere [key=k1] [tags=paid late] [id=order-1]"
    refused = {"kind": "refused", "offset": -1, "when": 5, "app": "shop", "client": "0-7@h", "elapsed": 1000}
    happened = events(refused | {"reason": reason}, refused | {"reason": "74: too fast [key=k2]", "when": 9})
    by_key = [row for row in transforms.timeline(stored, happened, key="k1").collect() if row["kind"] == "refused"]
    (row,) = by_key
    assert (row["messageId"], row["key"], row["tags"], row["offset"]) == ("order-1", "k1", ["paid", "late"], None)
    assert (row["group"], row["client"], row["reason"], row["sinceSentMs"]) == ("shop", "0-7@h", reason, 1000)
    assert [row["kind"] for row in transforms.timeline(stored, happened, message_id="order-1").collect()] == ["refused"]
    later = transforms.timeline(stored, happened, start=at(7)).collect()
    assert [(row["kind"], row["key"]) for row in later] == [("refused", "k2")]


def test_a_message_is_followed_through_all_runs_that_hold_it(stored, history):
    found = transforms.timeline(stored, history, message_id="orders-0-102")
    assert found.columns == [
        *("messageId", "topic", "partition", "offset", "key", "tags", "at", "kind", "group", "client", "attempt"),
        *("elapsedMs", "sinceSentMs", "reason"),
    ]
    billing = "shop.billing"
    assert in_order(found) == [
        (102, 0, "sent", None, "web-1@10.0.0.1", None, None, 0, None),
        (102, 1, "stored", None, "web-1@10.0.0.1", None, 1000, 1000, None),
        (102, 2, "delivered", billing, "b-1@10.0.0.2", 1, 1000, 2000, None),
        (102, 3, "failed", billing, None, 1, 1000, 3000, "no stock"),
        (102, 3, "retry", billing, None, 1, None, 3000, None),
        (102, 4, "delivered", "audit", None, 1, 3000, 4000, None),
        (102, 13, "delivered", billing, None, 2, 12000, 13000, None),
        (102, 13, "acked", billing, None, 2, 0, 13000, None),
    ]


def test_messages_are_found_by_key_and_runs_end_where_they_end(stored, history):
    found = transforms.timeline(stored, history, key="k1")
    kinds = {}
    for offset, group, kind in told(found, "offset", "group", "kind"):
        kinds.setdefault(offset, []).append(f"{group} {kind}" if group else kind)
    assert kinds == {
        99: ["sent", "stored"],
        101: ["sent", "stored", "audit delivered", "shop.billing acked", "shop.billing delivered"],
        103: [
            *("sent", "stored", "audit delivered"),
            *("shop.billing delivered", "shop.billing failed", "shop.billing retry"),
        ],
        105: ["sent", "stored", "audit delivered"],
        107: ["sent", "stored", "audit delivered"],
        109: ["sent", "stored", "audit delivered"],
    }


def test_times_are_about_when_a_message_was_stored(meta, events):
    rows = meta(*({"offset": offset, "stored": offset * 3600} for offset in range(4)))
    happened = events({"kind": "delivered", "offset": 0, "count": 4, "when": 90_000, "app": "late"})
    found = transforms.timeline(rows, happened, start=at(3600), end=at(3 * 3600).isoformat())
    assert told(found, "offset", "kind") == [
        *((1, "delivered"), (1, "sent"), (1, "stored")),
        *((2, "delivered"), (2, "sent"), (2, "stored")),
    ]


def test_a_message_without_events_and_no_message_at_all(meta, events):
    assert told(transforms.timeline(meta({"offset": 5}), events()), "kind") == [("sent",), ("stored",)]
    assert transforms.timeline(meta(), events({"offset": 5})).collect() == []


def test_what_is_no_moment_is_refused(meta, events):
    with pytest.raises(errors.OptionError, match="'yesterday' is not a moment"):
        transforms.timeline(meta(), events(), start="yesterday")
