"""Administration over HTTP: what is asked, and what becomes of the answers."""

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from client.fake_broker import FakeCluster
from client.fix_client import fake_async_client, fake_client, run_virtual
from lakemq.client.admin import AdminClient
from lakemq.client.errors import AdminError, BrokerUnreachableError
from lakemq.errors import BadParameterError, TopicNotFoundError


class Server:
    """Answers as scripted, and remembers what it was asked."""

    def __init__(self):
        self.asked = []
        self.answers = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self):
                size = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(size)) if size else None
                server.asked.append((self.command, self.path, body, self.headers.get("Authorization")))
                status, answer = server.answers.pop(0)
                data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def __getattr__(self, name):
                if name.startswith("do_"):
                    return self.answer
                raise AttributeError(name)

            def log_message(self, *_):
                pass

        self.http = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()


@pytest.fixture
def server():
    server = Server()
    yield server
    server.http.shutdown()
    server.http.server_close()


NOT_FOUND = (404, {"error": {"code": 189, "name": "TopicNotFoundError", "detail": "no orders", "fix": "…"}})


def test_a_topic_is_made_if_it_is_not_there(server):
    server.answers = [NOT_FOUND, (201, {"name": "orders"})]
    assert AdminClient(server.url, "secret").ensure_topic("orders", partitions=8, type="ordered") == {"name": "orders"}
    assert server.asked == [
        ("GET", "/v1/topics/orders", None, "Bearer secret"),
        ("POST", "/v1/topics", {"name": "orders", "partitions": 8, "type": "ordered"}, "Bearer secret"),
    ]


def test_a_topic_that_is_there_is_left_alone(server):
    server.answers = [(200, {"name": "a/b"})]
    AdminClient(server.url).ensure_topic("a/b")
    assert server.asked == [("GET", "/v1/topics/a%2Fb", None, None)]


def test_apps_tokens_and_subscriptions(server):
    server.answers = [(201, {}), (201, {"token": "t"}), (200, {})]
    admin = AdminClient(server.url)
    admin.create_app("shop")
    admin.create_token("shop")
    admin.subscribe("orders", "shop", producer=True, consumer={"error_times": 5})
    assert [one[1:3] for one in server.asked] == [
        ("/v1/apps", {"name": "shop"}),
        ("/v1/apps/shop/tokens", {}),
        ("/v1/subscriptions", {"topic": "orders", "app": "shop", "producer": {}, "consumer": {"error_times": 5}}),
    ]


def test_errors_are_the_classes_they_are_on_the_wire(server):
    server.answers = [NOT_FOUND, (500, b"<html>"), (403, {"message": "no"}), (400, {"error": {"detail": "odd"}})]
    admin = AdminClient(server.url)
    with pytest.raises(TopicNotFoundError, match="no orders"):
        admin.call("GET", "topics/orders")
    for words in ("not JSON", "403", "odd"):
        with pytest.raises(AdminError, match=words):
            admin.call("GET", "topics")


def test_nobody_there():
    with pytest.raises(BrokerUnreachableError):
        AdminClient("http://127.0.0.1:9").call("GET", "topics")


def test_a_client_has_one_if_it_knows_where(server):
    cluster = FakeCluster()
    with fake_client(cluster) as mq, pytest.raises(BadParameterError, match="admin_url"):
        _ = mq.admin
    server.answers = [(200, []), (200, [1])]
    with fake_client(cluster, admin_url=server.url, admin_token="t") as mq:
        assert mq.admin.topics() == []

    async def ask():
        async with fake_async_client(cluster, admin_url=server.url) as mq:
            return await mq.admin.call("GET", "topics")

    assert run_virtual(cluster, ask()) == [1]
