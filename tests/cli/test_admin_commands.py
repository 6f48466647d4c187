"""Commands for operators, against the interface itself: what they print, what they refuse, how they end."""

import json

import pytest

from fix_admin import TOKEN, admin, served
from fix_cli import lakemq

__all__ = ["admin", "lakemq", "served"]


@pytest.fixture
def operator(lakemq, admin, monkeypatch):
    """The command line of an operator of that broker."""
    monkeypatch.setenv("LAKEMQ_ADMIN_URL", admin.url)
    monkeypatch.setenv("LAKEMQ_ADMIN__TOKEN", TOKEN)
    return lakemq


@pytest.fixture
def shop(operator, admin):
    """Topic orders with two partitions, five messages in one of them; app shop, which consumes for two groups."""
    admin.good("POST", "/v1/topics", {"name": "orders", "partitions": 2})
    admin.good("POST", "/v1/apps", {"name": "shop"})
    for app in ("shop", "shop.billing"):
        wish = {"topic": "orders", "app": app, "consumer": {}, "start": "earliest"}
        admin.good("PUT", "/v1/subscriptions", {**wish, **({"producer": {}} if app == "shop" else {})})
    admin.service.store("orders", 1, count=5)
    return operator


def good(done):
    assert done.code == 0, done
    return done


def refused(done, code, *words):
    """It failed with that exit code, said why on stderr, and printed no data."""
    assert done.code == code, done
    assert done.out == ""
    assert "Traceback" not in done.err
    for word in words:
        assert word in done.err
    return done


# ---- topics --------------------------------------------------------------------------------------------------------


def test_topics_are_made_listed_and_shown(operator):
    assert good(operator("topic", "ls")) == (0, "", "there are no topics\n")
    good(operator("topic", "create", "orders", "--partitions", 2, "--type", "ordered"))
    lines = good(operator("topic", "ls")).out.splitlines()
    assert lines[0].split() == ["name", "type", "partitions", "is-writable", "is-readable", "is-archived"]
    assert lines[1].split() == ["orders", "ordered", "2", "yes", "yes", "no"]
    assert good(operator("topic", "ls", "-o", "json")).json[0]["partitions"] == 2
    assert json.loads(good(operator("topic", "ls", "-ojsonl")).out)["name"] == "orders"


def test_a_topic_is_shown_with_its_partitions_and_subscribers(shop):
    shown = good(shop("topic", "show", "orders")).out
    assert [line.split() for line in shown.splitlines()][-1] == ["shop.billing", "consumer", "no"]
    assert ["1", "0", "5"] in [line.split() for line in shown.splitlines()]
    assert good(shop("topic", "show", "orders", "-o", "json")).json["partition_offsets"][1]["end_offset"] == 5


def test_a_topic_is_changed_and_grows(shop):
    assert good(shop("topic", "set", "orders", "--no-writable", "-o", "json")).json["is_writable"] is False
    assert good(shop("topic", "grow", "orders", 4, "-o", "json")).json["partitions"] == 4
    shown = good(shop("topic", "set", "orders", "--write-partitions", 3, "-o", "json")).json
    assert (shown["write_partitions"], shown["read_partitions"]) == (3, 4)
    refused(shop("topic", "set", "orders", "--read-partitions", 1), 2, "let fewer do so first")


def test_dropping_a_topic_wants_execute(shop):
    refused(shop("topic", "rm", "orders"), 7, "2 partitions, 5 messages and 2 subscriptions", "nothing was done")
    assert len(good(shop("topic", "ls", "-o", "json")).json) == 1
    good(shop("topic", "rm", "orders", "--execute"))
    assert good(shop("topic", "ls", "-o", "json")).json == []


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["show", "orderz"], 3, ["error[LMQ-189]", 'did you mean "orders"', "lakemq errors 189"]),
        (["rm", "orderz"], 3, ["LMQ-189"]),
        (["rm", "orderz", "--execute"], 3, ["LMQ-189"]),
        (["set", "orderz", "--writable"], 3, ["LMQ-189"]),
        (["grow", "zzz", "3"], 3, ["lakemq topic create zzz"]),
        (["grow", "orders", "1"], 2, ["can only grow"]),
        (["grow", "orders", "x"], 2, ["PARTITIONS"]),
        (["create", "orders"], 1, ["exists already"]),
        (["create", "a b"], 2, ["is no topic name"]),
        (["create", "x", "--partitions", "0"], 2, ["partitions"]),
        (["create", "x", "--type", "queue"], 2, ["type"]),
        (["create"], 2, ["TOPIC"]),
        (["set", "orders"], 2, ["say what to set"]),
        (["ls", "extra"], 2, ["extra"]),
        (["frobnicate"], 2, ["frobnicate"]),
    ],
)
def test_a_wrong_topic_command_says_what_is_wrong_and_does_nothing(shop, admin, arguments, code, words):
    before = admin.good("GET", "/v1/topics")
    refused(shop("topic", *arguments), code, *words)
    assert admin.good("GET", "/v1/topics") == before


# ---- apps ----------------------------------------------------------------------------------------------------------


def test_an_app_gets_a_token_that_is_printed_once(operator, admin):
    good(operator("app", "create", "shop"))
    made = good(operator("app", "token", "create", "shop", "--id", "one", "--expires", "90d"))
    token = made.out.strip()
    assert admin.service.broker.ledger.metadata.is_token_good("shop", token, 0)
    assert "not shown again" in made.err
    shown = good(operator("app", "show", "shop"))
    assert token not in shown.out
    assert "one" in shown.out
    good(operator("app", "token", "rm", "shop", "one"))
    assert good(operator("app", "ls", "-o", "json")).json[0]["tokens"] == []


def test_a_token_may_come_from_a_file(operator, admin, tmp_path):
    (tmp_path / "token").write_text("correct horse battery\n")
    good(operator("app", "create", "shop"))
    good(operator("app", "token", "create", "shop", "--token-file", tmp_path / "token"))
    assert admin.service.broker.ledger.metadata.is_token_good("shop", "correct horse battery", 0)


def test_limits_are_set_and_shown(operator):
    good(operator("app", "create", "shop"))
    good(operator("app", "limits", "shop", "--produce-per-second", 5))
    assert good(operator("app", "limits", "shop", "-o", "json")).json["produce_per_second"] == 5
    assert "produce_per_second 5" in good(operator("app", "ls")).out


def test_an_app_is_subscribed_with_settings_and_unsubscribed_by_role(shop, admin):
    done = good(shop("app", "subscribe", "shop", "orders", "--consumer", "--set", "batch_size=7", "-o", "json"))
    assert done.json["consumer"]["batch_size"] == 7
    settings = ["--set", "producer.timeout_ms=900", "--set", 'consumer.black_list=["10.0.0.1"]']
    done = good(shop("app", "subscribe", "shop", "orders", "--producer", "--consumer", *settings, "-o", "json"))
    assert done.json["producer"]["timeout_ms"] == 900
    assert done.json["consumer"]["black_list"] == ["10.0.0.1"]
    refused(shop("app", "unsubscribe", "shop", "orders", "--consumer"), 7, "would lose consumer", "nothing was done")
    good(shop("app", "unsubscribe", "shop", "orders", "--consumer", "--execute"))
    (left,) = admin.good("GET", "/v1/subscriptions?app=shop")
    assert left["consumer"] is None
    good(shop("app", "unsubscribe", "shop", "orders", "--execute"))
    assert admin.good("GET", "/v1/subscriptions?app=shop") == []


def test_dropping_an_app_wants_execute(shop):
    refused(shop("app", "rm", "shop"), 7, "2 subscriptions")
    assert len(good(shop("app", "ls", "-o", "json")).json) == 1
    good(shop("app", "rm", "shop", "--execute"))
    assert good(shop("app", "ls", "-o", "json")).json == []


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["show", "none"], 3, ["there is no app 'none'"]),
        (["rm", "none", "--execute"], 3, ["there is no app 'none'"]),
        (["create", "shop"], 1, ["exists already"]),
        (["create", "a.b"], 2, ["names an app and a group"]),
        (["limits", "none", "--fetch-per-second", "1"], 3, ["there is no app"]),
        (["limits", "shop", "--fetch-per-second", "-1"], 2, ["--fetch-per-second"]),
        (["token", "create", "none"], 3, ["there is no app"]),
        (["token", "create", "shop", "--expires", "soon"], 2, ["'soon' is not a span of time"]),
        (["token", "create", "shop", "--id", "a b"], 2, ["id"]),
        (["token", "rm", "shop", "none"], 3, ["has no token 'none'"]),
        (["token", "create", "shop", "--token-file", "no-such-file"], 2, ["no-such-file"]),
        (["subscribe", "shop", "orders"], 2, ["--producer, --consumer or both"]),
        (["subscribe", "shop", "others", "--consumer"], 3, ["LMQ-189"]),
        (["subscribe", "none", "orders", "--consumer"], 3, ["there is no app"]),
        (["subscribe", "shop", "orders", "--consumer", "--set", "size"], 2, ["'size' is not a setting"]),
        (["subscribe", "shop", "orders", "--consumer", "--set", "producer.timeout_ms=1"], 2, ["is not a setting"]),
        (["subscribe", "shop", "orders", "--producer", "--consumer", "--set", "x=1"], 2, ["is not a setting"]),
        (["subscribe", "shop", "orders", "--consumer", "--set", "sizes=1"], 2, ["sizes is not known"]),
        (["subscribe", "shop", "orders", "--consumer", "--start", "now"], 2, ["start"]),
        (["unsubscribe", "none", "orders"], 3, ["no such subscription"]),
        (["unsubscribe", "none", "orders", "--execute"], 3, ["has no subscription"]),
        (["unsubscribe", "shop.billing", "orders", "--producer"], 3, ["no such subscription"]),
    ],
)
def test_a_wrong_app_command_says_what_is_wrong_and_does_nothing(shop, admin, arguments, code, words):
    before = admin.good("GET", "/v1/apps"), admin.good("GET", "/v1/subscriptions")
    refused(shop("app", *arguments), code, *words)
    assert (admin.good("GET", "/v1/apps"), admin.good("GET", "/v1/subscriptions")) == before


# ---- groups --------------------------------------------------------------------------------------------------------


def test_groups_are_listed_with_their_lag(shop):
    rows = good(shop("group", "ls", "-o", "json")).json
    assert [(row["group"], row["lag"], row["paused"]) for row in rows] == [
        ("shop", 5, False),
        ("shop.billing", 5, False),
    ]
    assert good(shop("group", "ls", "others", "-o", "json")).json == []


@pytest.mark.parametrize("name", [["shop.billing"], ["billing", "--app", "shop"]], ids=" ".join)
def test_a_group_may_be_named_in_full_or_with_its_app(shop, name):
    assert good(shop("group", "show", "orders", *name, "-o", "json")).json["group"] == "shop.billing"


def test_lag_is_shown_by_partition(shop):
    lines = good(shop("group", "lag", "orders", "shop")).out.splitlines()
    assert lines[2].split() == ["1", "0", "0", "5", "5"]


def test_a_group_is_paused_and_resumed(shop):
    assert good(shop("group", "pause", "orders", "shop", "-o", "json")).json["paused"] is True
    assert good(shop("group", "resume", "orders", "shop", "-o", "json")).json["paused"] is False


def test_seek_shows_the_plan_and_moves_only_when_told(shop):
    plan = good(shop("group", "seek", "orders", "shop", "--to", "latest"))
    assert "nothing was moved" in plan.err
    assert [line.split()[:4] for line in plan.out.splitlines()[1:]] == [["0", "0", "0", "0"], ["1", "0", "5", "5"]]
    assert good(shop("group", "ls", "-o", "json")).json[0]["lag"] == 5
    done = good(shop("group", "seek", "orders", "shop", "--to", "latest", "--execute"))
    assert "moved shop in 1 of 2 partitions" in done.err
    assert good(shop("group", "ls", "-o", "json")).json[0]["lag"] == 0


@pytest.mark.parametrize(
    ("to", "target"),
    [("earliest", 0), ("3", 3), ("99999999", 5), ("-2h", 5), ("2001-01-01T00:00", 0), ("2100-01-01", 5)],
)
def test_seek_takes_offsets_spans_and_times(shop, to, target):
    # The broker's clock stands in the year 2025, so an hour ago is after all of its messages.
    (move,) = good(shop("group", "seek", "orders", "shop", "--to", to, "--partition", 1, "-o", "json")).json
    assert move["target"] == target


def test_dropping_a_group_wants_execute_and_leaves_the_producer(shop, admin):
    refused(shop("group", "rm", "orders", "shop"), 7, "5 messages still to come", "nothing was done")
    good(shop("group", "rm", "orders", "shop", "--execute"))
    (left,) = admin.good("GET", "/v1/subscriptions?app=shop")
    assert (left["producer"] is None, left["consumer"]) == (False, None)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["show", "orders", "none"], 3, ["no group 'none' or 'default.none'", "shop.billing", "LMQ-136"]),
        (["lag", "others", "shop"], 3, ["LMQ-189"]),
        (["pause", "orders", "none"], 3, ["no group"]),
        (["rm", "orders", "none", "--execute"], 3, ["no group"]),
        (["seek", "orders", "none", "--to", "latest", "--execute"], 3, ["no group"]),
        (["seek", "orders", "shop"], 2, ["--to"]),
        (["seek", "orders", "shop", "--to", "soon", "--execute"], 2, ["'soon' is not"]),
        (["seek", "orders", "shop", "--to", "-2x", "--execute"], 2, ["'-2x' is not"]),
        (["seek", "orders", "shop", "--to", "latest", "--partition", "7", "--execute"], 2, ["no partition 7"]),
        (["seek", "orders", "shop", "--to", "latest", "--partition", "-1", "--execute"], 2, ["--partition"]),
    ],
)
def test_a_wrong_group_command_says_what_is_wrong_and_does_nothing(shop, admin, arguments, code, words):
    before = admin.good("GET", "/v1/subscriptions"), admin.good("GET", "/v1/lag?topic=orders&app=shop")
    refused(shop("group", *arguments), code, *words)
    assert (admin.good("GET", "/v1/subscriptions"), admin.good("GET", "/v1/lag?topic=orders&app=shop")) == before


# ---- the broker, and when it cannot be asked -----------------------------------------------------------------------


def test_the_broker_is_shown_and_held_still(operator):
    assert "mode" in good(operator("broker", "show")).out
    assert good(operator("broker", "set", "--no-writable", "-o", "json")).json["writable"] is False
    refused(operator("broker", "set"), 2, "say what to set")
    assert good(operator("broker", "connections")).err == "nobody is connected\n"


def test_a_wrong_token_is_exit_code_6(operator, monkeypatch):
    monkeypatch.setenv("LAKEMQ_ADMIN__TOKEN", "x" * 20)
    refused(operator("topic", "ls"), 6, "LMQ-2", "LAKEMQ_ADMIN__TOKEN")
    monkeypatch.delenv("LAKEMQ_ADMIN__TOKEN")
    refused(operator("topic", "ls"), 6, "none was found")


def test_the_token_beside_the_data_is_found(operator, monkeypatch, tmp_path):
    monkeypatch.delenv("LAKEMQ_ADMIN__TOKEN")
    (tmp_path / ".lakemq").mkdir()
    (tmp_path / ".lakemq" / "admin-token").write_text(TOKEN)
    good(operator("topic", "ls"))


def test_no_broker_is_exit_code_5(lakemq):
    refused(lakemq("topic", "ls", "--admin", "http://127.0.0.1:1"), 5, "no broker answers", "lakemq dev")


def test_a_broker_that_has_stopped_is_exit_code_5_and_a_late_one_124(operator, admin):
    admin.service.is_over = True
    refused(operator("topic", "ls"), 5, "LMQ-3", "has stopped")
    admin.service.is_over = False
    admin.service.is_silent = True
    refused(operator("topic", "ls"), 124, "may still be done")


@pytest.mark.parametrize("url", ["foo", "ftp://x", "http://", "http://x:port", "lakemq://127.0.0.1:1"])
def test_a_url_that_is_none_is_wrong_usage(lakemq, url):
    refused(lakemq("topic", "ls", "--admin", url), 2, "is not a URL")


def test_a_port_that_is_not_a_broker_s_is_told(lakemq):
    import socket
    import threading

    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer():
            peer, _ = server.accept()
            with peer:
                peer.recv(65536)
                peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello")

        thread = threading.Thread(target=answer)
        thread.start()
        done = lakemq("topic", "ls", "--admin", f"http://127.0.0.1:{server.getsockname()[1]}")
        thread.join()
    refused(done, 5, "no JSON")


def test_an_output_that_is_none_is_wrong_usage(operator):
    refused(operator("topic", "ls", "-o", "xml"), 2, "'xml' is not one of table, json, jsonl")


def test_settings_that_are_wrong_stop_a_command(lakemq, tmp_path):
    (tmp_path / "lakemq.toml").write_text("[server]\nprot = 1\n")
    refused(lakemq("topic", "ls"), 2, "did you mean 'port'?")
