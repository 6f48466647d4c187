"""Commands for messages that failed, wait or are sent again: what they print, what they refuse, how they end."""

import json

import pytest

from fix_admin import TOKEN, admin, served
from fix_cli import lakemq
from fix_delivery import delay_some, fail_some, passing_time, stored

__all__ = ["admin", "lakemq", "served"]


@pytest.fixture
def shop(lakemq, admin, monkeypatch):
    """The command line of an operator whose app shop could not handle three messages."""
    monkeypatch.setenv("LAKEMQ_ADMIN_URL", admin.url)
    monkeypatch.setenv("LAKEMQ_ADMIN__TOKEN", TOKEN)
    for topic in ("orders", "copies"):
        admin.good("POST", "/v1/topics", {"name": topic, "partitions": 1})
    admin.good("POST", "/v1/apps", {"name": "shop"})
    for app in ("shop", "shop.b"):
        admin.good("PUT", "/v1/subscriptions", {"topic": "orders", "app": app, "consumer": {}, "start": "earliest"})
    fail_some(admin, b"a", b"b", b"\xff")
    return lakemq


def good(done):
    assert done.code == 0, done
    return done


def refused(done, code, *words):
    assert done.code == code, done
    assert "Traceback" not in done.err
    for word in words:
        assert word in done.err, done
    return done


def count(admin):
    return admin.good("GET", "/v1/dead-letters")["count"]


# ---- dead list, show, export, audit --------------------------------------------------------------------------------


def test_dead_letters_are_listed(shop):
    lines = good(shop("dead", "list")).out.splitlines()
    assert lines[0].split() == [
        *("id", "died", "cause", "topic", "group", "partition", "offset", "attempts", "key", "reason")
    ]
    assert [line.split()[0] for line in lines[1:]] == ["3", "2", "1"]
    assert "no such customer" in lines[1]
    rows = good(shop("dead", "list", "--oldest", "-o", "json")).json
    assert [(row["id"], row["app"], row["tags"]) for row in rows] == [
        (1, "shop", "new"),
        (2, "shop", "new"),
        (3, "shop", "new"),
    ]


@pytest.mark.parametrize(
    ("options", "found"),
    [
        (["--topic", "orders", "--group", "shop"], [3, 2, 1]),
        (["--topic", "copies"], []),
        (["--group", "shop.b"], []),
        (["--cause", "asked", "--text", "NO SUCH"], [3, 2, 1]),
        (["--text", "key of b'b'"], [2]),
        (["--first", "2", "--last", "2"], [2]),
        (["--since", "2001-01-01"], [3, 2, 1]),
        (["--until", "2001-01-01"], []),
        (["--limit", "2"], [3, 2]),
        (["--limit", "2", "--after", "2"], [1]),
    ],
    ids=str,
)
def test_dead_letters_are_chosen(shop, options, found):
    assert [row["id"] for row in good(shop("dead", "list", *options, "-o", "json")).json] == found


def test_a_list_says_that_there_are_more_or_none(shop):
    assert "there are more, 3 in all: --after 2" in good(shop("dead", "list", "--limit", 2)).err
    assert good(shop("dead", "list", "--topic", "copies")).err == "there are no dead letters\n"


def test_a_dead_letter_is_shown_with_its_body(shop):
    shown = good(shop("dead", "show", 1)).out
    assert "no such customer" in shown
    assert "TAGS=new" in shown
    assert shown.endswith("\n\na\n")
    assert good(shop("dead", "show", 3)).out.endswith("(base64) /w==\n")
    assert good(shop("dead", "show", 1, "-o", "json")).json["text"] == "a"


def test_nothing_in_a_body_commands_the_terminal(shop, admin):
    fail_some(admin, b"\x1b[2Jgone\nsecond line")
    assert good(shop("dead", "show", 4)).out.endswith("\n·[2Jgone\nsecond line\n")


def test_dead_letters_are_exported(shop, tmp_path):
    done = good(shop("dead", "export"))
    assert [json.loads(line)["body"] for line in done.out.splitlines()] == ["YQ==", "Yg==", "/w=="]
    assert "3 dead letters exported" in done.err
    good(shop("dead", "export", tmp_path / "letters.jsonl", "--last", 1))
    assert json.loads((tmp_path / "letters.jsonl").read_text())["text"] == "a"
    refused(shop("dead", "export", tmp_path / "none" / "x"), 1, "cannot be written")


def test_the_audit_names_who_did_what(shop):
    assert "nothing was done" in good(shop("dead", "audit")).err
    good(shop("dead", "delete", 1, "--execute"))
    good(shop("dead", "resend", 2, "--yes"))
    lines = good(shop("dead", "audit")).out.splitlines()
    assert lines[0].split() == ["time", "id", "action", "by"]
    assert lines[1].split()[2:] == ["2", "resent", "to", "the", "app", "cli"]
    assert [row["action"] for row in good(shop("dead", "audit", "--limit", 1, "-o", "json")).json] == [
        "resent to the app"
    ]


# ---- dead edit, resend, delete -------------------------------------------------------------------------------------


def test_an_edit_is_a_plan_until_it_is_executed(shop, admin, tmp_path):
    options = ["--text", "new", "--key", "k", "--set", "a=1=2", "--unset", "TAGS"]
    plan = good(shop("dead", "edit", 1, *options))
    assert "nothing was changed" in plan.err
    assert [line.split()[0] for line in plan.out.splitlines()] == ["field", "text", "key", "attributes"]
    assert admin.good("GET", "/v1/dead-letters/1")["text"] == "a"
    assert len(good(shop("dead", "edit", 1, *options, "-o", "json")).json) == 3
    edited = good(shop("dead", "edit", 1, *options, "--execute", "-o", "json")).json
    assert (edited["text"], edited["key"], edited["attributes"]) == ("new", "k", {"a": "1=2"})
    (tmp_path / "body").write_bytes(b"\xfe")
    good(shop("dead", "edit", 1, "--body-file", tmp_path / "body", "--execute"))
    assert admin.good("GET", "/v1/dead-letters/1")["body"] == "/g=="


def test_some_are_resent_by_id(shop, admin):
    plan = good(shop("dead", "resend", 1, 2))
    assert "nothing was resent: 2 would be, to the app" in plan.err
    assert [row["id"] for row in good(shop("dead", "resend", 1, 2, "-o", "json")).json] == [1, 2]
    assert count(admin) == 3
    done = good(shop("dead", "resend", 1, 2, "--to", "topic", "--execute", "-o", "json")).json
    assert [(one["id"], one["outcome"]) for one in done] == [(1, "resent to the topic"), (2, "resent to the topic")]
    assert (count(admin), stored(admin)) == (1, 5)


def test_what_fails_of_some_is_told_and_the_rest_is_done(shop, admin):
    done = refused(shop("dead", "resend", 1, 9, "--execute"), 9, "there is no dead letter 9")
    assert "resent to the app" in done.out
    assert count(admin) == 2


def test_many_are_resent_by_what_they_have_in_common(shop, admin):
    plan = good(shop("dead", "resend", "--topic", "orders"))
    assert plan.out.splitlines()[1].split() == ["orders", "shop", "asked", "3"]
    assert "nothing was resent: 3 would be, to the app; add --execute" in plan.err
    assert good(shop("dead", "resend", "-o", "json")).json[0]["count"] == 3
    with passing_time(admin):
        done = good(shop("dead", "resend", "--topic", "orders", "--per-second", 1000, "--execute", "-o", "json"))
    assert (done.json["state"], done.json["done"]) == ("done", 3)
    assert "lakemq job cancel" in done.err
    assert count(admin) == 0


def test_deleting_wants_execute(shop, admin):
    refused(shop("dead", "delete", 1, 2), 7, "would delete 2 dead letters", "nothing was done")
    refused(shop("dead", "delete"), 7, "would delete 3 dead letters", "3 of orders, shop: asked")
    assert count(admin) == 3
    good(shop("dead", "delete", 1, "--execute"))
    with passing_time(admin):
        lines = good(shop("dead", "delete", "--execute")).out.splitlines()
    assert ["state", "done"] in [line.split() for line in lines]
    assert count(admin) == 0
    assert "nothing to delete" in good(shop("dead", "delete", "--execute")).err


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["dead", "show", "9"], 3, ["there is no dead letter 9"]),
        (["dead", "show", "x"], 2, ["ID"]),
        (["dead", "list", "--cause", "odd"], 2, ["cause"]),
        (["dead", "list", "--since", "soon"], 2, ["'soon' is not a span"]),
        (["dead", "list", "--limit", "0"], 2, ["--limit"]),
        (["dead", "edit", "1"], 2, ["say what to change"]),
        (["dead", "edit", "1", "--set", "a"], 2, ["'a' is not NAME=VALUE"]),
        (["dead", "edit", "9", "--text", "x"], 3, ["there is no dead letter 9"]),
        (["dead", "edit", "9", "--text", "x", "--execute"], 3, ["there is no dead letter 9"]),
        (["dead", "resend", "9", "--execute"], 3, ["there is no dead letter 9"]),
        (["dead", "resend", "1", "--to", "moon", "--execute"], 2, ["to"]),
        (["dead", "resend", "1", "--topic", "orders"], 2, ["not both"]),
        (["dead", "delete", "9"], 3, ["there is no dead letter 9"]),
        (["dead", "delete", "9", "--execute"], 3, ["there is no dead letter 9"]),
        (["dead", "delete", "--per-second", "-1", "--execute"], 2, ["--per-second"]),
        (["retry", "list", "orders", "none"], 3, ["no group"]),
        (["retry", "now", "orders", "shop", "9", "--execute"], 3, ["no retry 9"]),
        (["retry", "drop", "none", "shop"], 3, ["LMQ-189"]),
        (["delay", "list", "none"], 3, ["LMQ-189"]),
        (["delay", "cancel", "5"], 3, ["no delay with id 5"]),
        (["delay", "cancel", "5", "--execute"], 3, ["no delay with id 5"]),
        (["topic", "resend", "orderz", "--since", "-1h"], 3, ["LMQ-189"]),
        (["topic", "resend", "orders"], 2, ["say which messages"]),
        (["topic", "resend", "orders", "--first", "0"], 2, ["which one"]),
        (["topic", "resend", "orders", "--since", "-1h", "--to-topic", "none"], 3, ["LMQ-189"]),
        (["job", "show", "9"], 3, ["there is no job 9"]),
        (["job", "cancel", "9"], 3, ["there is no job 9"]),
    ],
    ids=lambda one: " ".join(one) if isinstance(one, list) else str(one),
)
def test_a_wrong_command_says_what_is_wrong_and_does_nothing(shop, admin, arguments, code, words):
    assert refused(shop(*arguments), code, *words).out == ""
    assert (count(admin), stored(admin), admin.good("GET", "/v1/jobs")) == (3, 3, [])


# ---- retries -------------------------------------------------------------------------------------------------------


def test_retries_are_listed(shop, admin):
    assert "waits to be tried again" in good(shop("retry", "list", "orders", "shop")).err
    fail_some(admin, b"c", b"d", dies=False, app="shop.b", reason="time-out")
    lines = good(shop("retry", "list", "orders", "b", "--app", "shop")).out.splitlines()
    assert lines[0].split() == ["id", "due", "attempts", "partition", "offset", "lent", "reason"]
    assert lines[1].split()[-1] == "time-out"
    done = good(shop("retry", "list", "orders", "shop.b", "--limit", 1, "-o", "json"))
    assert [row["id"] for row in done.json] == [1]
    assert "there are more, 2 in all: --after 1" in done.err


def test_retries_are_tried_at_once(shop, admin):
    fail_some(admin, b"c", b"d", dies=False)
    assert "2 would be tried at once" in good(shop("retry", "now", "orders", "shop")).err
    assert good(shop("retry", "now", "orders", "shop", 1, "--execute", "-o", "json")).json == {
        "count": 1,
        "lent": 0,
        "done": 1,
    }
    with passing_time(admin):
        assert good(shop("retry", "now", "orders", "shop", "--execute", "-o", "json")).json["done"] == 2


def test_retries_are_given_up(shop, admin):
    fail_some(admin, b"c", b"d", dies=False)
    refused(shop("retry", "drop", "orders", "shop"), 7, "2 messages would be tried no more", "nothing was done")
    assert good(shop("retry", "drop", "orders", "shop", 1, "--execute", "-o", "json")).json["done"] == 1
    with passing_time(admin):
        good(shop("retry", "drop", "orders", "shop", "--yes"))
    assert count(admin) == 5


# ---- delays, copies, jobs ------------------------------------------------------------------------------------------


def test_delays_are_listed_and_cancelled(shop, admin):
    assert good(shop("delay", "list")).err == "nothing waits\n"
    delay_some(admin, b"one", b"two")
    lines = good(shop("delay", "list", "orders")).out.splitlines()
    assert lines[0].split() == ["id", "due", "topic", "partition", "key", "tags", "size"]
    first, second = good(shop("delay", "list", "-o", "json")).json
    assert "--after" in good(shop("delay", "list", "--limit", 1)).err
    refused(shop("delay", "cancel", first["id"]), 7, "would never be delivered", "nothing was done")
    assert good(shop("delay", "cancel", first["id"], "--execute", "-o", "json")).json["outcome"] == "cancelled"
    assert good(shop("delay", "list", "-o", "json")).json == [second]


def test_a_range_is_copied_to_another_topic(shop, admin):
    plan = good(shop("topic", "resend", "orders", "--partition", 0, "--first", 1, "--to-topic", "copies"))
    assert plan.out.splitlines()[1].split() == ["0", "1", "2", "2"]
    assert "nothing was copied: 2 messages" in plan.err
    options = ["--since", "2001-01-01", "--to-topic", "copies", "--execute", "-o", "json"]
    with passing_time(admin):
        assert good(shop("topic", "resend", "orders", *options)).json["done"] == 3
    empty = good(shop("topic", "resend", "orders", "--partition", 0, "--first", 99, "--execute"))
    assert "nothing was copied: 0 messages" in empty.err
    assert good(shop("topic", "resend", "orders", "--partition", 0, "--first", 1, "-o", "json")).json[0]["count"] == 2


def test_a_job_is_left_to_the_broker_shown_and_cancelled(shop, admin):
    assert good(shop("job", "list")).err == "there are no jobs\n"
    options = ["--per-second", 1, "--no-wait", "--execute", "-o", "json"]
    job = good(shop("dead", "delete", *options)).json
    assert job["state"] == "running"
    assert good(shop("job", "show", job["id"], "-o", "json")).json["total"] == 3
    lines = good(shop("job", "list")).out.splitlines()
    assert lines[0].split() == ["id", "kind", "about", "by", "state", "total", "done", "failed"]
    assert good(shop("job", "list", "-o", "json")).json[0]["by"] == "cli"
    assert good(shop("job", "cancel", job["id"], "-o", "json")).json["state"] == "cancelled"
    assert "cancelled" in good(shop("job", "show", job["id"], "--wait")).out


def test_a_job_that_could_not_do_all_says_what_failed(shop, admin):
    rows = admin.service.broker.ledger.state.dead_letters._rows
    rows[2] = rows[2]._replace(position=3)  # nothing begins there
    with passing_time(admin):
        done = refused(shop("dead", "resend", "--to", "topic", "--execute"), 9, "not done: dead letter 2")
    assert "done" in done.out
    assert count(admin) == 1
    (job,) = good(shop("job", "list", "-o", "json")).json
    assert "not done: dead letter 2" in good(shop("job", "show", job["id"])).err
    refused(shop("job", "show", job["id"], "--wait"), 9)


def test_a_job_that_failed_says_why(shop, admin):
    options = ["--partition", 0, "--first", 0, "--to-topic", "copies", "--per-second", 1, "--no-wait", "--execute"]
    job = good(shop("topic", "resend", "orders", *options, "-o", "json")).json
    admin.good("DELETE", "/v1/topics/copies")
    with passing_time(admin):
        refused(shop("job", "show", job["id"], "--wait"), 1, "failed: there is no topic 'copies'")
    assert good(shop("job", "show", job["id"], "-o", "json")).json["state"] == "failed"


def test_a_command_that_is_interrupted_leaves_the_job_to_the_broker(shop, admin, monkeypatch):
    def interrupt(_):
        raise KeyboardInterrupt

    monkeypatch.setattr("lakemq.cli.following.time.sleep", interrupt)
    refused(shop("dead", "delete", "--execute"), 130, "the broker goes on with it", "lakemq job show")
    assert admin.good("GET", "/v1/jobs")[0]["state"] == "running"
