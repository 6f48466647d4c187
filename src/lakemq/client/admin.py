"""Administration over HTTP: topics, apps, tokens and subscriptions.

A small client for the broker's REST interface under /v1. Errors come as JSON and are raised as the classes they are on
the wire.
"""

import http.client
import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlsplit

from lakemq.client.errors import AdminError, BrokerUnreachableError
from lakemq.errors import BadParameterError, LakeMQError, TopicNotFoundError, from_status

Json = Any  # whatever the interface answers
Policy = bool | Mapping[str, Any]


class AdminClient:
    """Calls the administration interface of one broker. A new connection for each call: they are few."""

    def __init__(self, url: str, token: str = "", timeout_s: float = 10.0) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise BadParameterError(f"admin_url={url!r} is not a URL such as http://host:50090")
        self._parts = parts
        self._token = token
        self._timeout_s = timeout_s

    def call(self, method: str, path: str, body: Json = None) -> Json:
        """One request below /v1, such as `call("GET", "topics")`; the JSON of its answer."""
        headers = {"Accept": "application/json"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        data = None
        if body is not None:
            data = json.dumps(body).encode()
            headers["Content-Type"] = "application/json"
        kind = http.client.HTTPSConnection if self._parts.scheme == "https" else http.client.HTTPConnection
        connection = kind(self._parts.hostname or "", self._parts.port, timeout=self._timeout_s)
        try:
            connection.request(method, f"{self._parts.path.rstrip('/')}/v1/{path.lstrip('/')}", data, headers)
            response = connection.getresponse()
            answer = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise BrokerUnreachableError(f"{self._parts.geturl()}: {error}") from None
        finally:
            connection.close()
        return _read(response.status, answer)

    def topics(self) -> Json:
        """All topics."""
        return self.call("GET", "topics")

    def ensure_topic(self, name: str, *, partitions: int = 1, type: str = "normal", **more: Any) -> Json:
        """Make sure that a topic is there; one that is there is left as it is."""
        try:
            return self.call("GET", f"topics/{quote(name, safe='')}")
        except TopicNotFoundError:
            return self.call("POST", "topics", {"name": name, "partitions": partitions, "type": type, **more})

    def delete_topic(self, name: str) -> Json:
        """Delete a topic and all its messages."""
        return self.call("DELETE", f"topics/{quote(name, safe='')}")

    def create_app(self, name: str, **more: Any) -> Json:
        """Make an app."""
        return self.call("POST", "apps", {"name": name, **more})

    def create_token(self, app: str, **more: Any) -> Json:
        """Issue a token for an app."""
        return self.call("POST", f"apps/{quote(app, safe='')}/tokens", more)

    def subscribe(
        self, topic: str, app: str, *, producer: Policy = False, consumer: Policy = False, **more: Any
    ) -> Json:
        """Let an app send to a topic, or receive from it; True for the default policy, or the policy's fields.

        `start="earliest"` or "latest" is where a new consumer begins.
        """
        body: dict[str, Any] = {"topic": topic, "app": app, **more}
        if producer is not False:
            body["producer"] = {} if producer is True else dict(producer)
        if consumer is not False:
            body["consumer"] = {} if consumer is True else dict(consumer)
        return self.call("PUT", "subscriptions", body)


def _read(status: int, data: bytes) -> Json:
    try:
        answer = json.loads(data) if data else None
    except ValueError:
        raise AdminError(f"HTTP {status} with a body that is not JSON") from None
    if status < 400:
        return answer
    raise _error(status, answer)


def _error(status: int, answer: Json) -> LakeMQError:
    error = answer.get("error") if isinstance(answer, dict) else None
    if not isinstance(error, dict):
        return AdminError(f"HTTP {status}: {answer!r}")
    code, detail = error.get("code"), str(error.get("detail") or error.get("name") or "")
    return from_status(code, detail) if isinstance(code, int) else AdminError(f"HTTP {status}: {detail}")
