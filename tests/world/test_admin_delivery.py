"""The operators' interface for messages that failed, wait or are sent again: every route, and what each refuses."""

import json
import time

import pytest

from fix_admin import TOKEN, admin, served
from fix_delivery import delay_some, fail_some, passing_time, stored
from lakemq.client.admin import AdminClient
from lakemq.errors import BadParameterError, LakeMQError

__all__ = ["admin", "served"]

WAIT_S = 20.0


@pytest.fixture
def shop(admin):
    """Topic orders and an app that receives it, with three dead letters."""
    admin.good("POST", "/v1/topics", {"name": "orders", "partitions": 1})
    admin.good("POST", "/v1/topics", {"name": "copies", "partitions": 1})
    admin.good("POST", "/v1/apps", {"name": "shop"})
    wish = {"topic": "orders", "app": "shop", "consumer": {}, "producer": {}, "start": "earliest"}
    admin.good("PUT", "/v1/subscriptions", wish)
    fail_some(admin, b"a", b"b", b"\xff")
    return admin


def finished(admin, job):
    """The job when it has ended."""
    with passing_time(admin):
        end = time.monotonic() + WAIT_S
        while (job := admin.good("GET", f"/v1/jobs/{job['id']}"))["state"] == "running":
            assert time.monotonic() < end, job
            time.sleep(0.01)
    return job


def count(admin):
    return admin.good("GET", "/v1/dead-letters")["count"]


# ---- looking -------------------------------------------------------------------------------------------------------


def test_dead_letters_are_listed_by_page_and_filter(shop):
    page = shop.good("GET", "/v1/dead-letters?limit=2")
    assert ([row["id"] for row in page["rows"]], page["next"], page["count"]) == ([3, 2], 2, 3)
    assert "body" not in page["rows"][0]
    assert page["rows"][1]["tags"] == "new"
    rest = shop.good("GET", f"/v1/dead-letters?limit=2&after={page['next']}")
    assert ([row["id"] for row in rest["rows"]], rest["next"]) == ([1], None)
    found = shop.good("GET", "/v1/dead-letters?topic=orders&app=shop&cause=asked&text=KEY%20OF%20b%27a%27&order=oldest")
    assert [row["id"] for row in found["rows"]] == [1]
    assert shop.good("GET", "/v1/dead-letters?first_id=2&last_id=2&from_ms=1")["rows"][0]["id"] == 2
    assert shop.good("GET", "/v1/dead-letters?cause=rate")["rows"] == []
    assert [row["text"] for row in shop.good("GET", "/v1/dead-letters?with_bodies=true")["rows"]] == [None, "b", "a"]


def test_a_dead_letter_is_shown_with_its_message(shop):
    shown = shop.good("GET", "/v1/dead-letters/3")
    assert (shown["body"], shown["text"], shown["attributes"]) == ("/w==", None, {"TAGS": "new"})
    assert (shown["topic"], shown["app"], shown["offset"], shown["reason"]) == (
        "orders",
        "shop",
        2,
        "no such customer",
    )


def test_dead_letters_are_exported_line_by_line(shop):
    status, headers, data = shop.raw("GET", "/v1/dead-letters/export?topic=orders")
    assert (status, headers["content-type"]) == (200, "application/x-ndjson")
    lines = [json.loads(line) for line in data.splitlines()]
    assert [(line["id"], line["body"]) for line in lines] == [(1, "YQ=="), (2, "Yg=="), (3, "/w==")]
    assert shop("GET", "/v1/dead-letters/export?cause=odd")[0] == 400


def test_an_export_goes_over_all_pages(shop):
    fail_some(shop, *[b"%d" % number for number in range(250)])
    _, _, data = shop.raw("GET", "/v1/dead-letters/export")
    assert [json.loads(line)["id"] for line in data.splitlines()] == list(range(1, 254))


# ---- changing ------------------------------------------------------------------------------------------------------


def test_a_dead_letter_is_edited_resent_and_deleted_and_the_audit_knows(shop):
    change = {"text": "new", "key": "k", "attributes": {"TAGS": None, "a": "1"}, "by": "ann"}
    edited = shop.good("PUT", "/v1/dead-letters/1", change)
    assert (edited["text"], edited["key"], edited["attributes"]) == ("new", "k", {"a": "1"})
    assert shop.good("GET", "/v1/dead-letters/1") == edited
    assert shop.good("POST", "/v1/dead-letters/1/resend", {}) == {"id": 1, "outcome": "resent to the app"}
    assert shop.good("POST", "/v1/dead-letters/2/resend", {"to": "topic"})["outcome"] == "resent to the topic"
    assert shop.good("DELETE", "/v1/dead-letters/3?by=bob") == {"id": 3, "outcome": "deleted"}
    audit = shop.good("GET", "/v1/dead-letters/audit")
    assert [(one["id"], one["action"], one["by"]) for one in audit] == [
        (3, "deleted", "bob"),
        (2, "resent to the topic", "http"),
        (1, "resent to the app", "http"),
        (1, "edited", "ann"),
    ]
    assert len(shop.good("GET", "/v1/dead-letters/audit?limit=1")) == 1


def test_many_are_resent_and_deleted_by_jobs(shop):
    plan = shop.good("POST", "/v1/dead-letters/resend", {"topic": "orders", "last_id": 2})
    assert (plan["count"], plan["job"]) == (2, None)
    assert plan["groups"] == [{"topic": "orders", "app": "shop", "cause": "asked", "count": 2}]
    wish = {"topic": "orders", "last_id": 2, "to": "topic", "per_second": 100, "execute": True, "by": "ann"}
    job = shop.good("POST", "/v1/dead-letters/resend", wish)["job"]
    assert finished(shop, job)["done"] == 2
    assert (count(shop), stored(shop)) == (1, 5)
    job = shop.good("POST", "/v1/dead-letters/delete", {"execute": True})["job"]
    assert finished(shop, job)["done"] == 1
    assert count(shop) == 0
    assert [one["kind"] for one in shop.good("GET", "/v1/jobs")] == ["delete_dead", "resend_dead"]


def test_a_job_is_cancelled(shop):
    job = shop.good("POST", "/v1/dead-letters/delete", {"per_second": 1, "execute": True})["job"]
    assert shop.good("DELETE", f"/v1/jobs/{job['id']}?by=ann")["state"] == "cancelled"
    assert count(shop) == 3


def test_retries_are_listed_tried_and_given_up(shop):
    fail_some(shop, b"c", b"d", dies=False)
    page = shop.good("GET", "/v1/retries?topic=orders&app=shop")
    assert [(row["id"], row["attempts"], row["is_lent"]) for row in page["rows"]] == [(1, 1, False), (2, 1, False)]
    assert shop.good("POST", "/v1/retries/now", {"topic": "orders", "app": "shop"})["done"] == 0
    done = shop.good("POST", "/v1/retries/now", {"topic": "orders", "app": "shop", "ids": [1], "execute": True})
    assert (done["count"], done["done"]) == (1, 1)
    done = shop.good("POST", "/v1/retries/drop", {"topic": "orders", "app": "shop", "execute": True})
    assert finished(shop, done["job"])["done"] == 2
    assert shop.good("GET", "/v1/retries?topic=orders&app=shop")["count"] == 0
    assert count(shop) == 5


def test_delays_are_listed_and_cancelled(shop):
    delay_some(shop, b"one", b"two")
    page = shop.good("GET", "/v1/delays?topic=orders")
    assert [(row["topic"], row["key"]) for row in page["rows"]] == [("orders", "one"), ("orders", "two")]
    first = page["rows"][0]["id"]
    assert shop.good("DELETE", f"/v1/delays/{first}?by=ann") == {"id": first, "outcome": "cancelled"}
    assert [row["key"] for row in shop.good("GET", "/v1/delays")["rows"]] == ["two"]
    assert shop("DELETE", f"/v1/delays/{first}")[0] == 404


def test_a_range_is_copied(shop):
    plan = shop.good("POST", "/v1/topics/orders/resend", {"partition": 0, "first": 1, "to_topic": "copies"})
    assert (plan["count"], plan["partitions"]) == (2, [{"partition": 0, "first": 1, "last": 2, "count": 2}])
    wish = {"from_ms": 0, "to_topic": "copies", "execute": True}
    job = shop.good("POST", "/v1/topics/orders/resend", wish)["job"]
    assert finished(shop, job)["done"] == 3
    with passing_time(shop):
        end = time.monotonic() + WAIT_S
        while stored(shop, "copies") < 3:
            assert time.monotonic() < end


def test_the_policy_that_parks_what_is_over_a_rate_can_be_set(shop):
    wish = {"topic": "orders", "app": "shop", "producer": {"parks_over_rate": True}, "consumer": {"retry_times": 4}}
    made = shop.good("PUT", "/v1/subscriptions", wish)
    assert (made["producer"]["parks_over_rate"], made["consumer"]["retry_times"]) == (True, 4)


# ---- refusals ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "word"),
    [
        ("GET", "/v1/dead-letters?limit=0", None, 400, "limit"),
        ("GET", "/v1/dead-letters?limit=9999", None, 400, "limit"),
        ("GET", "/v1/dead-letters?colour=red", None, 400, "colour is not known"),
        ("GET", "/v1/dead-letters?order=odd", None, 400, "order"),
        ("GET", "/v1/dead-letters/9", None, 404, "there is no dead letter 9"),
        ("GET", "/v1/dead-letters/nine", None, 400, "id"),
        ("PUT", "/v1/dead-letters/9", {"text": "x"}, 404, "there is no dead letter 9"),
        ("PUT", "/v1/dead-letters/1", {}, 400, "say what to change"),
        ("PUT", "/v1/dead-letters/1", {"body": "!"}, 400, "body"),
        ("PUT", "/v1/dead-letters/1", {"colour": "red"}, 400, "colour is not known"),
        ("PUT", "/v1/dead-letters/1", {"text": 5}, 400, "text"),
        ("DELETE", "/v1/dead-letters/9", None, 404, "there is no dead letter 9"),
        ("DELETE", "/v1/dead-letters/1?by=", None, 400, "by"),
        ("POST", "/v1/dead-letters/9/resend", {}, 404, "there is no dead letter 9"),
        ("POST", "/v1/dead-letters/1/resend", {"to": "moon"}, 400, "to"),
        ("POST", "/v1/dead-letters/resend", {"execute": "yes"}, 400, "execute"),
        ("POST", "/v1/dead-letters/resend", {"cause": "odd"}, 400, "cause"),
        ("POST", "/v1/dead-letters/resend", {"per_second": -1}, 400, "per_second"),
        ("POST", "/v1/dead-letters/delete", {"to": "app"}, 400, "to is not known"),
        ("GET", "/v1/retries?topic=orders", None, 400, "app is missing"),
        ("GET", "/v1/retries?topic=none&app=shop", None, 404, "there is no topic 'none'"),
        ("POST", "/v1/retries/now", {"topic": "orders", "app": "bank"}, 404, "no consumer"),
        ("POST", "/v1/retries/drop", {"topic": "orders", "app": "shop", "ids": [9]}, 404, "no retry 9"),
        ("POST", "/v1/retries/drop", {"topic": "orders", "app": "shop", "ids": []}, 400, "ids"),
        ("GET", "/v1/delays?topic=none", None, 404, "there is no topic 'none'"),
        ("DELETE", "/v1/delays/5", None, 404, "no delay"),
        ("POST", "/v1/topics/none/resend", {"from_ms": 0}, 404, "there is no topic 'none'"),
        ("POST", "/v1/topics/orders/resend", {}, 400, "say which messages"),
        ("POST", "/v1/topics/orders/resend", {"first": 1}, 400, "which one"),
        ("GET", "/v1/jobs/9", None, 404, "there is no job 9"),
        ("DELETE", "/v1/jobs/9", None, 404, "there is no job 9"),
    ],
)
def test_what_is_wrong_is_refused_and_changes_nothing(shop, method, path, body, status, word):
    got, answer = shop(method, path, body)
    assert (got, word in answer["error"]["detail"]) == (status, True), answer
    assert (count(shop), stored(shop), shop.good("GET", "/v1/jobs")) == (3, 3, [])


@pytest.mark.parametrize("path", ["/v1/dead-letters", "/v1/dead-letters/export", "/v1/jobs", "/v1/delays"])
def test_nothing_is_told_without_the_token(shop, path):
    assert shop.raw("GET", path, token="")[0] == 401


# ---- the same by the client ----------------------------------------------------------------------------------------


def test_the_client_has_a_call_for_each_of_them(shop):
    mq = AdminClient(shop.url, TOKEN)
    fail_some(shop, b"c", b"d", dies=False)
    delay_some(shop, b"one")
    assert [row["id"] for row in mq.dead_letters(topic="orders")] == [3, 2, 1]
    assert [row["text"] for row in mq.dead_letters(order="oldest", with_bodies=True)] == ["a", "b", None]
    assert mq.dead_letter(1)["text"] == "a"
    assert mq.edit_dead_letter(1, text="z", attributes={"TAGS": None})["attributes"] == {}
    assert mq.resend_dead_letter(1)["outcome"] == "resent to the app"
    assert mq.delete_dead_letter(2)["outcome"] == "deleted"
    assert mq.resend_dead_letters(cause="asked")["count"] == 1
    assert mq.delete_dead_letters(topic="orders")["count"] == 1
    assert [one["by"] for one in mq.dead_letter_audit()] == ["client"] * 3
    assert [row["id"] for row in mq.retries("orders", "shop")] == [1, 2, 3]
    assert mq.retry_now("orders", "shop", [1], execute=True)["done"] == 1
    assert mq.give_up_retries("orders", "shop", [2], execute=True)["done"] == 1
    (delay,) = mq.delays("orders")
    assert mq.cancel_delay(delay["id"])["outcome"] == "cancelled"
    assert list(mq.delays()) == []
    job = mq.resend_range("orders", partition=0, first=0, last=1, per_second=1, execute=True)["job"]
    assert mq.job(job["id"])["total"] == 2
    assert mq.cancel_job(job["id"])["state"] == "cancelled"
    assert [one["id"] for one in mq.jobs()] == [job["id"]]
    with pytest.raises(LakeMQError, match="there is no dead letter 99"):
        mq.dead_letter(99)
    with pytest.raises(BadParameterError):
        list(mq.dead_letters(colour="red"))
