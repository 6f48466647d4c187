import json
import time

import pytest

from pipeline.transforms.lake_rows import at

transforms = pytest.importorskip("lakemq.pipeline.transforms", reason="Spark needs pip install 'lakemq[spark]'")


def row(when, kind, group=None, attempt=None, elapsed=None, client=None, reason=None, message_id="m-1", days=0):
    return {
        "messageId": message_id,
        "topic": "orders",
        "partition": 0,
        "offset": 42 if kind != "refused" else None,
        "key": "c-7",
        "tags": ["paid", "late"],
        "at": at(when + days * 86_400),
        "kind": kind,
        "group": group,
        "client": client,
        "attempt": attempt,
        "elapsedMs": elapsed,
        "sinceSentMs": round((when + days * 86_400) * 1000),
        "reason": reason,
    }


ROWS = [
    row(0, "sent", client="web-1@10.0.0.1"),
    row(0.005, "stored", elapsed=5, client="web-1@10.0.0.1"),
    row(0.105, "delivered", "shop.billing", 1, 100, "b-1@10.0.0.2"),
    row(0.2, "delivered", "audit", 1, 195),
    row(1.605, "failed", "shop.billing", 1, 1500, reason="no stock"),
    row(1.605, "retry", "shop.billing", 1),
    row(90, "delivered", "shop.billing", 2, 89_995, days=1),
    row(91, "dead", "shop.billing", reason="no stock", days=1),
]

TREE = """\
m-1  orders/0 offset 42  key c-7  tags paid late
├─ sent       2026-03-01 12:00:00.000  by web-1@10.0.0.1
├─ stored     12:00:00.005  +5 ms  took 5 ms  by web-1@10.0.0.1
├─ shop.billing
│  ├─ attempt 1
│  │  ├─ delivered  12:00:00.105  +105 ms  took 100 ms  by b-1@10.0.0.2
│  │  ├─ failed     12:00:01.605  +1.6 s  took 1.5 s  because no stock
│  │  └─ retry      12:00:01.605  +1.6 s
│  ├─ attempt 2
│  │  └─ delivered  2026-03-02 12:01:30.000  +1 d  took 1 min 30 s
│  └─ dead       2026-03-02 12:01:31.000  +1 d  because no stock
└─ audit
   └─ attempt 1
      └─ delivered  12:00:00.200  +200 ms  took 195 ms"""


def test_a_tree_of_groups_and_attempts():
    assert transforms.tree(ROWS) == TREE


def test_a_send_that_was_refused_has_no_place_and_two_are_two():
    refused = row(0.1, "refused", "shop", elapsed=100, client="0-7@10.0.0.1", reason="188: elsewhere [key=c-7]")
    refused |= {"messageId": None}
    line = "refused    2026-03-01 12:00:00.100  +100 ms  took 100 ms  by 0-7@10.0.0.1  because 188: elsewhere [key=c-7]"
    one = f"(no id)  orders, not stored  key c-7  tags paid late\n└─ {line}"
    assert transforms.tree([refused, refused]) == f"{one}\n\n{one}"
    assert [len(one["events"]) for one in json.loads(transforms.as_json([refused, refused]))] == [1, 1]


def test_several_messages_are_set_apart_and_none_is_nothing():
    lines = transforms.tree([row(0, "sent"), row(0, "sent", message_id="m-2")]).splitlines()
    assert [line for line in lines if line.startswith("m-")] == [
        "m-1  orders/0 offset 42  key c-7  tags paid late",
        "m-2  orders/0 offset 42  key c-7  tags paid late",
    ]
    assert transforms.tree([]) == ""
    assert transforms.as_json([]) == "[]"


def test_what_a_terminal_would_obey_is_shown_instead():
    text = transforms.tree([row(0, "failed", "g\n└─ forged", 1, reason="\x1b[2J wiped \u202e")])
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert r"\x1b[2J wiped \u202e" in text
    assert r"g\n└─ forged" in text


def test_times_of_spark_are_local_and_shown_in_utc(monkeypatch):
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        local = {**ROWS[0], "at": at(0).astimezone().replace(tzinfo=None)}
        assert local["at"].hour == 7
        assert "2026-03-01 12:00:00.000" in transforms.tree([local])
        assert json.loads(transforms.as_json([local]))[0]["events"][0]["at"] == "2026-03-01T12:00:00Z"
    finally:
        monkeypatch.undo()
        time.tzset()


def test_json_has_each_message_with_its_events():
    (message,) = json.loads(transforms.as_json(ROWS))
    assert {name: message[name] for name in ("messageId", "topic", "partition", "offset")} == {
        "messageId": "m-1",
        "topic": "orders",
        "partition": 0,
        "offset": 42,
    }
    assert [one["kind"] for one in message["events"]] == [one["kind"] for one in ROWS]
    assert message["events"][4] == {
        "at": "2026-03-01T12:00:01.605000Z",
        "kind": "failed",
        "group": "shop.billing",
        "client": None,
        "attempt": 1,
        "elapsedMs": 1500,
        "sinceSentMs": 1605,
        "reason": "no stock",
    }
