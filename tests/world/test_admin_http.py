"""The operators' interface: every route, every refusal, and what a peer without manners gets."""

import http.client
import json
import select
import socket
import time

import pytest

from fix_admin import READY_S, TOKEN, Admin, InMemory, admin, served
from lakemq import errors
from lakemq.world import admin_connections
from lakemq.world.admin_app import BODY_BYTES_MAX
from lakemq.world.admin_http import CONNECTIONS_MAX, HEALTH_CONNECTIONS_MAX

__all__ = ["admin", "served"]

TOPIC = {
    "name": "orders",
    "type": "normal",
    "partitions": 4,
    "write_partitions": 4,
    "read_partitions": 4,
    "is_writable": True,
    "is_readable": True,
    "is_archived": False,
}
NO_LIMITS = {
    "produce_per_second": 0,
    "produce_bytes_per_second": 0,
    "fetch_per_second": 0,
    "fetch_bytes_per_second": 0,
}


def refused(answer, status, code, *words):
    """It was refused in the one form, with those words in its detail."""
    assert answer[0] == status, answer
    error = answer[1]["error"]
    assert set(error) == {"code", "name", "detail", "fix"}
    assert error["code"] == code
    assert error["fix"]
    for word in words:
        assert word in error["detail"]
    return error


# ---- topics --------------------------------------------------------------------------------------------------------


def test_a_topic_is_made_listed_shown_changed_and_dropped(admin):
    assert admin("GET", "/v1/topics") == (200, [])
    assert admin("POST", "/v1/topics", {"name": "orders"}) == (201, TOPIC)
    assert admin("GET", "/v1/topics") == (200, [TOPIC])
    shown = admin.good("GET", "/v1/topics/orders")
    assert shown["subscriptions"] == []
    assert shown["partition_offsets"] == [
        {"partition": number, "group": 0, "first_offset": 0, "end_offset": 0} for number in range(4)
    ]
    counts = dict.fromkeys(("partitions", "write_partitions", "read_partitions"), 6)
    changed = {**TOPIC, **counts, "is_writable": False}
    assert admin("PUT", "/v1/topics/orders", {"partitions": 6, "is_writable": False}) == (200, changed)
    assert admin("DELETE", "/v1/topics/orders") == (200, {"dropped": "orders"})
    assert admin("GET", "/v1/topics") == (200, [])


def test_a_topic_is_made_as_it_is_wanted(admin):
    wish = {"name": "shop.orders", "partitions": 2, "type": "ordered", "is_archived": True, "is_readable": False}
    made = admin.good("POST", "/v1/topics", wish)
    assert made == {**TOPIC, **wish, "write_partitions": 2, "read_partitions": 2}


@pytest.mark.parametrize("name", ["a/b", "%RETRY%shop", "a|b", "x.tokens"])
def test_a_name_with_signs_of_a_path_is_that_name(admin, name):
    from urllib.parse import quote

    admin.good("POST", "/v1/topics", {"name": name})
    assert admin.good("GET", f"/v1/topics/{quote(name, safe='')}")["name"] == name
    assert admin.good("DELETE", f"/v1/topics/{quote(name, safe='')}") == {"dropped": name}


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
def test_a_topic_that_is_not_there_is_189(admin, method):
    body = {"partitions": 9} if method == "PUT" else None
    error = refused(admin(method, "/v1/topics/orders", body), 404, 189, "orders")
    assert error["name"] == "TopicNotFoundError"


def test_a_topic_cannot_be_made_twice_nor_shrink(admin):
    admin.good("POST", "/v1/topics", {"name": "orders"})
    refused(admin("POST", "/v1/topics", {"name": "orders"}), 409, 6, "exists already")
    refused(admin("PUT", "/v1/topics/orders", {"partitions": 1}), 400, 6, "can only grow")
    assert admin.good("GET", "/v1/topics/orders")["partitions"] == 4


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ({}, "name is missing"),
        ({"name": "orders", "partition": 3}, "partition is not known"),
        ({"name": "orders", "partitions": "3"}, "partitions"),
        ({"name": "orders", "partitions": 0}, "partitions"),
        ({"name": "orders", "partitions": 1 << 40}, "partitions"),
        ({"name": "orders", "partitions": True}, "partitions"),
        ({"name": "orders", "partitions": 2.5}, "partitions"),
        ({"name": "orders", "is_writable": 1}, "is_writable"),
        ({"name": "orders", "type": "queue"}, "type"),
        ({"name": ""}, "name"),
        ({"name": "a b"}, "is no topic name"),
        ({"name": "a.b.c"}, "is no topic name"),
        ({"name": "x" * 128}, "name"),
        ({"name": ["orders"]}, "name"),
        ({"name": None}, "name"),
        ([], "the body"),
        ("orders", "the body"),
        (None, "the body"),
    ],
)
def test_a_wrong_topic_is_refused_and_nothing_is_made(admin, body, word):
    refused(admin("POST", "/v1/topics", body), 400, 6, word)
    assert admin.good("GET", "/v1/topics") == []


# ---- apps and tokens -----------------------------------------------------------------------------------------------


def test_an_app_is_made_listed_shown_limited_and_dropped(admin):
    made = {"name": "shop", "is_open": False, "tokens": [], "limits": NO_LIMITS}
    assert admin("POST", "/v1/apps", {"name": "shop"}) == (201, made)
    assert admin("GET", "/v1/apps") == (200, [made])
    assert admin("GET", "/v1/apps/shop") == (200, {**made, "subscriptions": []})
    limited = {**made, "limits": {**NO_LIMITS, "produce_per_second": 5}}
    assert admin("PUT", "/v1/apps/shop", {"produce_per_second": 5}) == (200, limited)
    assert admin("DELETE", "/v1/apps/shop") == (200, {"dropped": "shop"})
    assert admin("GET", "/v1/apps") == (200, [])


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/v1/apps/shop", None),
        ("PUT", "/v1/apps/shop", {"fetch_per_second": 1}),
        ("DELETE", "/v1/apps/shop", None),
        ("POST", "/v1/apps/shop/tokens", {}),
        ("DELETE", "/v1/apps/shop/tokens/one", None),
    ],
)
def test_an_app_that_is_not_there_is_told(admin, method, path, body):
    error = refused(admin(method, path, body), 404, 6, "there is no app 'shop'")
    assert error["name"] == "UnknownNameError"


@pytest.mark.parametrize(
    ("body", "status"),
    [({"name": "shop"}, 409), ({"name": "shop.group"}, 400), ({"name": "a b"}, 400), ({}, 400), ({"nam": "x"}, 400)],
)
def test_an_app_that_cannot_be_made_is_refused(admin, body, status):
    admin.good("POST", "/v1/apps", {"name": "shop"})
    refused(admin("POST", "/v1/apps", body), status, 6)
    assert [app["name"] for app in admin.good("GET", "/v1/apps")] == ["shop"]


@pytest.mark.parametrize("limits", [{"produce_per_second": -1}, {"produce": 1}, {"fetch_per_second": "1"}])
def test_wrong_limits_are_refused(admin, limits):
    admin.good("POST", "/v1/apps", {"name": "shop"})
    refused(admin("PUT", "/v1/apps/shop", limits), 400, 6)
    assert admin.good("GET", "/v1/apps/shop")["limits"] == NO_LIMITS


def test_a_token_is_made_up_and_told_once(admin):
    admin.good("POST", "/v1/apps", {"name": "shop"})
    status, headers, data = admin.raw("POST", "/v1/apps/shop/tokens", b"{}", {"Content-Type": "application/json"})
    made = json.loads(data)
    assert (status, headers["cache-control"]) == (201, "no-store")
    assert set(made) == {"app", "id", "token", "expires_ms"}
    assert len(made["token"]) >= 40
    shown = admin.good("GET", "/v1/apps/shop")
    assert shown["tokens"] == [{"id": made["id"], "expires_ms": 0}]
    assert made["token"] not in json.dumps(shown)
    metadata = admin.service.broker.ledger.metadata
    assert metadata.is_token_good("shop", made["token"], 0)
    assert not metadata.is_token_good("shop", made["token"] + "x", 0)


def test_two_made_up_tokens_differ(admin):
    admin.good("POST", "/v1/apps", {"name": "shop"})
    one, two = (admin.good("POST", "/v1/apps/shop/tokens", {}) for _ in range(2))
    assert one["token"] != two["token"]
    assert one["id"] != two["id"]


def test_a_token_may_be_given_with_its_id_and_end(admin):
    admin.good("POST", "/v1/apps", {"name": "shop"})
    wish = {"id": "one", "token": "correct horse battery", "expires_ms": 1 << 50}
    assert admin.good("POST", "/v1/apps/shop/tokens", wish) == {"app": "shop", **wish}
    refused(admin("POST", "/v1/apps/shop/tokens", wish), 409, 6, "'one' already")
    kept = admin.good("DELETE", "/v1/apps/shop/tokens/one")
    assert kept["tokens"] == []
    refused(admin("DELETE", "/v1/apps/shop/tokens/one"), 404, 6, "has no token 'one'")


@pytest.mark.parametrize(
    "wish",
    [{"token": "short"}, {"token": 5}, {"id": "a b"}, {"id": ""}, {"expires_ms": 1}, {"expires_ms": -1}, {"x": 1}],
)
def test_a_wrong_token_is_refused_and_not_repeated(admin, wish):
    admin.good("POST", "/v1/apps", {"name": "shop"})
    refused(admin("POST", "/v1/apps/shop/tokens", wish), 400, 6)
    assert admin.good("GET", "/v1/apps/shop")["tokens"] == []


# ---- subscriptions -------------------------------------------------------------------------------------------------


@pytest.fixture
def shop(admin):
    """Topic orders, with two partitions, and app shop."""
    admin.good("POST", "/v1/topics", {"name": "orders", "partitions": 2})
    admin.good("POST", "/v1/apps", {"name": "shop"})
    return admin


def subscribe(admin, **more):
    return admin("PUT", "/v1/subscriptions", {"topic": "orders", "app": "shop", **more})


def test_a_subscription_is_made_changed_listed_and_dropped(shop):
    status, made = subscribe(shop, producer={"timeout_ms": 3000, "weights": {"0": 5}}, consumer={})
    assert status == 200
    assert made["producer"]["timeout_ms"] == 3000
    assert made["producer"]["weights"] == {"0": 5}
    assert made["consumer"]["is_paused"] is False
    _, changed = subscribe(shop, consumer={"is_paused": True, "black_list": ["10.0.0.1"]})
    assert changed["consumer"]["is_paused"] is True
    assert changed["producer"] == made["producer"]
    assert shop.good("GET", "/v1/subscriptions") == [changed]
    assert shop.good("GET", "/v1/subscriptions?topic=orders&app=shop") == [changed]
    assert shop.good("GET", "/v1/subscriptions?topic=others") == []
    assert shop.good("GET", "/v1/apps/shop")["subscriptions"] == [changed]
    assert shop.good("GET", "/v1/topics/orders")["subscriptions"] == [changed]
    dropped = shop.good("DELETE", "/v1/subscriptions?topic=orders&app=shop")
    assert dropped == {"dropped": ["orders", "shop"]}
    assert shop.good("GET", "/v1/subscriptions") == []


def test_one_role_can_be_dropped_and_comes_back_without_its_past(shop):
    subscribe(shop, producer={}, consumer={}, start="earliest")
    shop.service.store("orders", 0, count=3)
    shop.good("POST", "/v1/seek", {"topic": "orders", "app": "shop", "to": "latest", "execute": True})
    shop.good("DELETE", "/v1/subscriptions?topic=orders&app=shop&role=consumer")
    (left,) = shop.good("GET", "/v1/subscriptions")
    assert left["producer"] is not None
    assert left["consumer"] is None
    refused(shop("DELETE", "/v1/subscriptions?topic=orders&app=shop&role=consumer"), 404, 6)
    subscribe(shop, consumer={}, start="earliest")
    assert [place["offset"] for place in shop.good("GET", "/v1/lag?topic=orders&app=shop")] == [0, 0]


def test_dropping_the_producer_leaves_the_consumer_where_it_is(shop):
    subscribe(shop, producer={}, consumer={}, start="earliest")
    shop.service.store("orders", 0, count=3)
    shop.good("POST", "/v1/seek", {"topic": "orders", "app": "shop", "to": 2, "partition": 0, "execute": True})
    shop.good("DELETE", "/v1/subscriptions?topic=orders&app=shop&role=producer")
    assert shop.good("GET", "/v1/lag?topic=orders&app=shop")[0]["offset"] == 2
    shop.good("DELETE", "/v1/subscriptions?topic=orders&app=shop&role=consumer")
    assert shop.good("GET", "/v1/subscriptions") == []


@pytest.mark.parametrize(
    ("more", "status"),
    [
        ({}, 400),
        ({"producer": None, "consumer": None}, 400),
        ({"consumer": {"batch_size": 0}}, 400),
        ({"consumer": {"batch_size": "5"}}, 400),
        ({"consumer": {"batchsize": 5}}, 400),
        ({"producer": {"weights": {"0": 99999}}}, 400),
        ({"producer": {"black_list": [5]}}, 400),
        ({"consumer": [], "producer": {}}, 400),
        ({"consumer": {}, "start": "middle"}, 400),
        ({"consumer": {}, "topic": "others"}, 404),
        ({"consumer": {}, "app": "others"}, 404),
        ({"consumer": {}, "app": "a b"}, 400),
        ({"consumer": {}, "mode": "x"}, 400),
    ],
)
def test_a_wrong_subscription_is_refused_and_nothing_is_made(shop, more, status):
    answer = subscribe(shop, **more)
    assert answer[0] == status, answer
    assert shop.good("GET", "/v1/subscriptions") == []


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("", 400),
        ("?topic=orders", 400),
        ("?topic=orders&app=shop", 404),
        ("?topic=orders&app=shop&role=x", 400),
        ("?topic=&app=shop", 400),
    ],
)
def test_what_is_not_subscribed_cannot_be_dropped(shop, query, status):
    refused(shop("DELETE", f"/v1/subscriptions{query}"), status, 6)


# ---- lag and seek --------------------------------------------------------------------------------------------------


def test_lag_is_told_by_partition(shop):
    subscribe(shop, consumer={})
    shop.service.store("orders", 1, count=3)
    assert shop.good("GET", "/v1/lag?topic=orders&app=shop") == [
        {"partition": 0, "offset": 0, "first_offset": 0, "end_offset": 0, "lag": 0},
        {"partition": 1, "offset": 0, "first_offset": 0, "end_offset": 3, "lag": 3},
    ]


def test_seek_only_says_what_it_would_do_unless_told_to(shop):
    subscribe(shop, consumer={})
    shop.service.store("orders", 1, count=3)
    wish = {"topic": "orders", "app": "shop", "to": "latest"}
    plan = shop.good("POST", "/v1/seek", wish)
    assert [(one["target"], one["change"]) for one in plan] == [(0, 0), (3, 3)]
    assert shop.good("GET", "/v1/lag?topic=orders&app=shop")[1]["lag"] == 3
    assert shop.good("POST", "/v1/seek", {**wish, "execute": True}) == plan
    assert shop.good("GET", "/v1/lag?topic=orders&app=shop")[1]["lag"] == 0


@pytest.mark.parametrize(
    ("to", "target"),
    [
        ({"to": "earliest"}, 0),
        ({"to": 1}, 1),
        ({"to": 99}, 3),
        ({"to": "time", "time_ms": 0}, 0),
        ({"to": "time", "time_ms": 1 << 50}, 3),
    ],
)
def test_seek_goes_to_an_offset_or_a_time(shop, to, target):
    subscribe(shop, consumer={})
    shop.service.store("orders", 1, count=3)
    (move,) = shop.good("POST", "/v1/seek", {"topic": "orders", "app": "shop", "partition": 1, **to})
    assert (move["partition"], move["target"]) == (1, target)


@pytest.mark.parametrize(
    ("more", "status", "code"),
    [
        ({"to": "sometime"}, 400, 6),
        ({"to": -1}, 400, 6),
        ({"to": "1"}, 400, 6),
        ({"to": True}, 400, 6),
        ({}, 400, 6),
        ({"to": "time"}, 400, 6),
        ({"to": "latest", "time_ms": 5}, 400, 6),
        ({"to": "latest", "partition": 7}, 400, 6),
        ({"to": "latest", "partition": -1}, 400, 6),
        ({"to": "latest", "execute": "yes"}, 400, 6),
        ({"to": "latest", "topic": "others"}, 404, 189),
        ({"to": "latest", "app": "others"}, 404, 136),
    ],
)
def test_a_wrong_seek_is_refused_and_moves_nothing(shop, more, status, code):
    subscribe(shop, consumer={})
    shop.service.store("orders", 1, count=3)
    refused(shop("POST", "/v1/seek", {"topic": "orders", "app": "shop", "execute": True, **more}), status, code)
    assert shop.good("GET", "/v1/lag?topic=orders&app=shop")[1]["lag"] == 3


def test_lag_of_who_is_not_subscribed_is_136(shop):
    refused(shop("GET", "/v1/lag?topic=orders&app=shop"), 404, 136)
    refused(shop("GET", "/v1/lag?topic=others&app=shop"), 404, 189)
    refused(shop("GET", "/v1/lag?topic=orders"), 400, 6, "app is missing")


# ---- the broker ----------------------------------------------------------------------------------------------------


def test_the_broker_is_shown_and_held_still(admin):
    shown = admin.good("GET", "/v1/broker")
    assert (shown["mode"], shown["readable"], shown["writable"], shown["draining"]) == ("strict", True, True, False)
    assert admin.good("PUT", "/v1/broker", {"writable": False})["writable"] is False
    assert admin.good("GET", "/v1/broker")["writable"] is False
    refused(admin("PUT", "/v1/broker", {"writable": "no"}), 400, 6, "writable")
    refused(admin("PUT", "/v1/broker", {"writeable": True}), 400, 6, "writeable is not known")


def test_connections_are_listed(admin):
    assert admin.good("GET", "/v1/connections") == []
    admin.service.engine.connect("10.1.2.3")
    (one,) = admin.good("GET", "/v1/connections")
    assert (one["host"], one["app"], one["dialect"]) == ("10.1.2.3", "", None)


# ---- who may ask ---------------------------------------------------------------------------------------------------

ROUTES = [
    ("GET", "/v1/topics"),
    ("POST", "/v1/topics"),
    ("DELETE", "/v1/topics/orders"),
    ("GET", "/v1/broker"),
    ("GET", "/v1/no-such-thing"),
    ("GET", "/v1"),
    ("GET", "/"),
    ("GET", "//v1/topics"),
    ("GET", "/docs"),
    ("GET", "/metrics/"),
]


@pytest.mark.parametrize(("method", "path"), ROUTES)
@pytest.mark.parametrize("token", ["", "wrong", TOKEN + "x", TOKEN[:-1], TOKEN.upper()])
def test_without_the_token_nothing_is_told_not_even_whether_it_is_there(admin, method, path, token):
    error = refused(admin(method, path, token=token), 401, 2)
    assert error["name"] == "AuthenticationError"
    assert TOKEN not in json.dumps(error)


@pytest.mark.parametrize("header", [TOKEN, f"Basic {TOKEN}", f"Bearer{TOKEN}", "Bearer", "Bearer ", "bearer é"])
def test_a_header_that_is_no_bearer_token_does_not_count(admin, header):
    status, headers, _ = admin.raw("GET", "/v1/topics", headers={"Authorization": header.encode("latin-1")}, token="")
    assert (status, headers["www-authenticate"]) == (401, "Bearer")


def test_what_probes_ask_needs_no_token(admin):
    for path in ("/healthz", "/readyz", "/metrics", "/openapi.json"):
        assert admin.raw("GET", path, token="")[0] == 200


def test_the_server_does_not_say_what_it_is_made_of(admin):
    assert "server" not in {name.lower() for name in admin.raw("GET", "/healthz")[1]}


# ---- bodies and paths ----------------------------------------------------------------------------------------------


def post(admin, data, kind="application/json"):
    status, _, answer = admin.raw("POST", "/v1/topics", data, {"Content-Type": kind} if kind else {})
    return status, json.loads(answer)


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "", "application/jsonx"])
def test_a_body_that_is_not_json_by_name_is_refused(admin, kind):
    refused(post(admin, b'{"name": "orders"}', kind), 415, 6, "application/json")
    assert admin.good("GET", "/v1/topics") == []


@pytest.mark.parametrize(
    "data", [b"{", b"{'name': 1}", b"\xff\xfe", b"[" * 100_000, b'{"name": "orders"} x', b'{"partitions": NaN}', b""]
)
def test_a_body_that_is_not_json_in_fact_is_refused(admin, data):
    refused(post(admin, data), 400, 6)
    assert admin.good("GET", "/v1/topics") == []


def test_json_may_say_its_character_set(admin):
    assert post(admin, b'{"name": "orders"}', "application/json; charset=utf-8")[0] == 201


def send_raw(admin, data):
    """What comes back for these bytes, up to the end."""
    with socket.create_connection(("127.0.0.1", admin.server.port), timeout=30) as peer:
        peer.sendall(data)
        answer = b""
        while chunk := peer.recv(65536):
            answer += chunk
    return answer


HEAD = f"POST /v1/topics HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\nContent-Type: application/json\r\n"


def test_a_body_that_says_it_is_too_large_is_refused_unread(admin):
    answer = send_raw(admin, f"{HEAD}Content-Length: {BODY_BYTES_MAX + 1}\r\nConnection: close\r\n\r\n".encode())
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b'"code":6' in answer


def test_a_body_in_chunks_is_refused_once_it_is_too_large(admin):
    chunk = b"%x\r\n%s\r\n" % (BODY_BYTES_MAX + 1, b"x" * (BODY_BYTES_MAX + 1))
    answer = send_raw(admin, f"{HEAD}Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n".encode() + chunk)
    assert answer.startswith(b"HTTP/1.1 413 ")


def test_a_body_that_just_fits_is_read(admin):
    data = b'{"name": "orders"' + b" " * (BODY_BYTES_MAX - 18) + b"}"
    assert len(data) == BODY_BYTES_MAX
    assert post(admin, data)[0] == 201


def test_what_is_no_http_is_refused_without_a_word_of_python(admin):
    answer = send_raw(admin, b"\x00\x00\x00\x17\xca\xfe\xba\xbe\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"Traceback" not in answer


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/v1/queues", 404), ("PATCH", "/v1/topics", 405), ("POST", "/v1/broker", 405), ("GET", "/v2/topics", 404)],
)
def test_a_path_or_method_that_is_not_there_is_told_in_the_same_form(admin, method, path, status):
    refused(admin(method, path), status, 6, path)


# ---- when the broker does not answer -------------------------------------------------------------------------------


def test_no_answer_in_time_is_504_and_says_that_it_may_be_done(admin):
    admin.service.is_silent = True
    error = refused(admin("GET", "/v1/topics"), 504, None, "may still be done")
    assert error["name"] == "LateError"


def test_a_broker_that_has_ended_is_503(admin):
    admin.service.is_over = True
    refused(admin("GET", "/v1/topics"), 503, 3)
    assert admin.raw("GET", "/metrics")[0] == 503


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.ServiceUnavailableError("stopping"), 503),
        (errors.BrokerBusyError("busy"), 503),
        (errors.DiskFullError("full"), 503),
        (errors.DiskIOError("broken"), 503),
        (errors.WriteTimeoutError("late"), 504),
        (errors.SlowSyncError("slow"), 504),
        (errors.NoPermissionError("no"), 403),
        (errors.BadParameterError("wrong"), 400),
        (errors.TopicNotFoundError("orders"), 404),
        (errors.UnknownError("odd"), 500),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_an_error_of_the_broker_has_its_http_status(admin, error, status):
    admin.service.failure = error
    told = refused(admin("GET", "/v1/topics"), status, error.status, str(error))
    assert told["name"] == type(error).__name__


def test_a_bug_is_told_without_its_traceback_or_text(admin, caplog):
    admin.service.failure = ZeroDivisionError("secret inside")
    error = refused(admin("GET", "/v1/topics"), 500, 4, "ZeroDivisionError")
    assert "secret" not in json.dumps(error)
    assert "Traceback" not in json.dumps(error)


def test_an_answer_that_does_not_fit_its_type_is_a_bug_and_told_as_one(admin):
    admin.service.ask = None  # what is not callable is as wrong as it gets
    try:
        refused(admin("GET", "/v1/topics"), 500, 4)
    finally:
        del admin.service.ask


# ---- health --------------------------------------------------------------------------------------------------------


def test_healthz_says_that_the_process_runs_even_if_the_broker_does_not_answer(admin):
    admin.service.is_silent = True
    status, answer = admin("GET", "/healthz")
    assert (status, answer["status"]) == (200, "ok")


def checks_of(admin):
    status, answer = admin("GET", "/readyz")
    assert (answer["status"] == "ok") == (status == 200)
    return status, {name: check["is_ok"] for name, check in answer["checks"].items()}


def test_readyz_lists_each_check(admin):
    expected = dict.fromkeys(("serving", "draining", "journal", "disk", "readable", "writable"), True)
    assert checks_of(admin) == (200, expected)


def test_readyz_says_no_when_the_broker_is_held_still_or_drains(admin):
    admin.good("PUT", "/v1/broker", {"writable": False})
    status, checks = checks_of(admin)
    assert (status, checks["writable"], checks["draining"]) == (503, False, True)
    admin.service.broker.access.is_draining = True
    assert checks_of(admin)[1]["draining"] is False


def test_readyz_says_no_when_the_journal_cannot_be_written(admin):
    admin.service.broker.ledger.group.journal.failure = "a sync failed"
    status, checks = checks_of(admin)
    assert (status, checks["journal"]) == (503, False)


@pytest.mark.parametrize("state", ["is_silent", "is_over"])
def test_readyz_says_no_when_the_broker_does_not_answer(admin, state):
    setattr(admin.service, state, True)
    assert checks_of(admin) == (503, {"serving": False})


def test_readyz_says_no_when_the_disk_is_nearly_full(tmp_path):
    server = Admin(InMemory(), tmp_path, disk_free_bytes_min=1 << 60)
    try:
        status, checks = checks_of(server)
        assert (status, checks["disk"], checks["journal"]) == (503, False, True)
    finally:
        server.stop()


# ---- the description -----------------------------------------------------------------------------------------------


def test_the_description_has_every_route_with_its_types_and_the_token(admin):
    said = json.loads(admin.raw("GET", "/openapi.json", token="")[2])
    routes = {(method, path) for path, methods in said["paths"].items() for method in methods}
    assert len(routes) == 41
    for method, path in routes:
        operation = said["paths"][path][method]
        if path.startswith("/v1"):
            assert operation["security"], path
            assert {"401", "404", "503", "504"} <= set(operation["responses"]), path
            good = next(answer for status, answer in operation["responses"].items() if status.startswith("2"))
            assert all(content["schema"] for content in good["content"].values()), path


# ---- the server itself ---------------------------------------------------------------------------------------------


def test_a_port_in_use_is_found_before_anything_is_loaded(admin):
    from lakemq.world.admin_http import AdminPlace, AdminServer

    with pytest.raises(OSError, match="in use"):
        AdminServer(AdminPlace(TOKEN, admin.server._place.data, port=admin.server.port))


def test_a_server_that_was_never_started_can_be_stopped(tmp_path):
    from lakemq.world.admin_http import AdminPlace, AdminServer

    AdminServer(AdminPlace(TOKEN, tmp_path, port=0)).stop()


def test_a_server_that_cannot_begin_says_so(tmp_path):
    from lakemq.world import admin_http

    failures = []
    server = admin_http.AdminServer(admin_http.AdminPlace(None, tmp_path, port=0))
    server.start(InMemory(), failed=failures.append)
    server._thread.join(30)
    server.stop()
    assert [type(error) for error in failures] == [AttributeError]


# ---- too many, too slow --------------------------------------------------------------------------------------------


@pytest.fixture
def own(tmp_path):
    """A server that nobody else is connected to."""
    server = Admin(InMemory(), tmp_path, timeout_seconds=5.0)
    yield server
    server.stop()


def connect(admin, said=b""):
    peer = socket.create_connection(("127.0.0.1", admin.server.port), READY_S)
    peer.sendall(said)
    return peer


def is_closed(peer, seconds):
    """Whether the server ends the connection within that time, with or without an answer."""
    peer.settimeout(seconds)
    try:
        while peer.recv(4096):
            pass
    except TimeoutError:
        return False
    except ConnectionError:
        pass
    return True


def says_until_closed(peer, said):
    """Whether the server ends the connection although something comes on it, bit by bit; its answers are not read."""
    peer.setblocking(False)
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        try:
            peer.send(said)
        except BlockingIOError:
            pass
        except ConnectionError:
            return True
        select.select([], [], [], 0.01)
    return False


@pytest.mark.parametrize("said", [b"", b"GET /healthz HTTP/1.1\r\nHost: a\r\n"], ids=["silent", "half a head"])
def test_with_300_silent_connections_health_is_answered_at_once(own, said):
    peers = [connect(own, said) for _ in range(300)]
    try:
        for path in ("/healthz", "/readyz"):
            assert own.raw("GET", path, token="")[0] == 200
        assert own("GET", "/v1/topics") == (200, [])
        assert sum(is_closed(peer, 0.2) for peer in peers[:200]) == 200, "the oldest went for newer ones"
    finally:
        for peer in peers:
            peer.close()


def test_one_that_has_asked_before_stays_rather_than_one_that_never_did(own):
    kept = http.client.HTTPConnection("127.0.0.1", own.server.port, timeout=READY_S)
    kept.request("GET", "/healthz")
    assert kept.getresponse().read()
    before = kept.sock
    peers = [connect(own) for _ in range(200)]
    kept.request("GET", "/healthz")
    assert kept.getresponse().read()
    assert kept.sock is before, "the same connection"
    kept.close()
    for peer in peers:
        peer.close()


def test_while_all_connections_are_being_answered_health_is_answered_and_the_rest_refused(own):
    own.service.is_silent = True  # every question to the broker takes until its time is over
    busy = b"GET /v1/topics HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer %s\r\n\r\n" % TOKEN.encode()
    peers = [connect(own, busy) for _ in range(CONNECTIONS_MAX)]
    try:
        while not select.select([peers[-1]], [], [], 0.1)[0]:  # one that was not read yet went for another
            peers.append(connect(own, busy))
            assert len(peers) < CONNECTIONS_MAX + HEALTH_CONNECTIONS_MAX
        answer = http.client.HTTPResponse(peers[-1])
        answer.begin()
        refused((answer.status, json.load(answer)), 503, 3, "try again")
        assert own.raw("GET", "/healthz", token="")[0] == 200
    finally:
        for peer in peers:
            peer.close()


@pytest.mark.parametrize(
    "said",
    [b"", b"GET /healthz HTTP/1.1\r\n", b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\nGET /metr"],
    ids=["silent", "half a head", "half a second head"],
)
def test_one_that_says_nothing_more_is_closed(own, monkeypatch, said):
    monkeypatch.setattr(admin_connections, "SILENT_SECONDS", 0.05)
    monkeypatch.setattr(admin_connections, "ANSWER_SECONDS", 0.5)
    peer = connect(own, said)
    if said.endswith(b"metr"):  # it must not be taken for one that waits between two requests
        peer.recv(4096)
        peer.sendall(b"i")
    assert is_closed(peer, READY_S)
    peer.close()


def test_a_head_that_comes_byte_by_byte_is_not_waited_for_for_ever(own, monkeypatch):
    monkeypatch.setattr(admin_connections, "SILENT_SECONDS", 0.3)
    peer = connect(own)
    assert says_until_closed(peer, b"G")
    peer.close()


def test_one_that_does_not_take_its_answer_is_closed(own, monkeypatch):
    monkeypatch.setattr(admin_connections, "ANSWER_SECONDS", 0.2)
    monkeypatch.setattr(admin_connections, "SILENT_SECONDS", 0.2)
    peer = connect(own, b"GET /openapi.json HTTP/1.1\r\nHost: a\r\n\r\n" * 200)  # more than the system holds
    assert says_until_closed(peer, b"\r\n")
    peer.close()
