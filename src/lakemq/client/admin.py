"""Administration over HTTP: topics, apps, tokens and subscriptions; messages that failed, wait or are sent again.

A small client for the broker's REST interface under /v1. Errors come as JSON and are raised as the classes they are on
the wire.
"""

import http.client
import json
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from lakemq.client.errors import AdminError, BrokerUnreachableError
from lakemq.errors import BadParameterError, LakeMQError, TopicNotFoundError, from_status

Json = Any  # whatever the interface answers
Policy = bool | Mapping[str, Any]
_BY = "client"


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

    # --- dead letters: `filters` are topic, app, cause, text, from_ms, until_ms, first_id, last_id -----------------

    def dead_letters(self, *, order: str = "newest", with_bodies: bool = False, **filters: Any) -> Iterator[Json]:
        """Those that match, asked for page by page."""
        wish = {"order": order, "with_bodies": with_bodies, **filters}
        return self._pages("dead-letters", wish)

    def dead_letter(self, id: int) -> Json:
        """One, with its body (base64), its text if it is UTF-8, attributes, and where it comes from."""
        return self.call("GET", f"dead-letters/{id}")

    def edit_dead_letter(self, id: int, *, by: str = _BY, **change: Any) -> Json:
        """Change its `text` or `body` (base64), its `key`, or some `attributes`; None takes one away."""
        return self.call("PUT", f"dead-letters/{id}", {**change, "by": by})

    def resend_dead_letter(self, id: int, *, to: str = "app", by: str = _BY) -> Json:
        """Give it to the app that failed, or to="topic": to all who receive that."""
        return self.call("POST", f"dead-letters/{id}/resend", {"to": to, "by": by})

    def delete_dead_letter(self, id: int, *, by: str = _BY) -> Json:
        """It is gone for good."""
        return self.call("DELETE", _target(f"dead-letters/{id}", {"by": by}))

    def resend_dead_letters(
        self, *, to: str = "app", per_second: int = 0, execute: bool = False, by: str = _BY, **filters: Any
    ) -> Json:
        """How many that would be; with `execute` a job does it: ask `job` how far it is."""
        wish = {"to": to, "per_second": per_second, "execute": execute, "by": by, **filters}
        return self.call("POST", "dead-letters/resend", wish)

    def delete_dead_letters(self, *, per_second: int = 0, execute: bool = False, by: str = _BY, **filters: Any) -> Json:
        """How many that would be; with `execute` a job does it."""
        wish = {"per_second": per_second, "execute": execute, "by": by, **filters}
        return self.call("POST", "dead-letters/delete", wish)

    def dead_letter_audit(self, limit: int = 100) -> Json:
        """What operators did with dead letters, newest first."""
        return self.call("GET", _target("dead-letters/audit", {"limit": limit}))

    # --- retries, delays, copies ---------------------------------------------------------------------------------

    def retries(self, topic: str, app: str) -> Iterator[Json]:
        """The messages of an app that wait to be tried again."""
        return self._pages("retries", {"topic": topic, "app": app})

    def retry_now(
        self, topic: str, app: str, ids: list[int] | None = None, *, execute: bool = False, by: str = _BY
    ) -> Json:
        """Have these, or all, tried at once."""
        wish = {"topic": topic, "app": app, "ids": ids, "execute": execute, "by": by}
        return self.call("POST", "retries/now", wish)

    def give_up_retries(
        self, topic: str, app: str, ids: list[int] | None = None, *, execute: bool = False, by: str = _BY
    ) -> Json:
        """Make dead letters of these, or of all."""
        wish = {"topic": topic, "app": app, "ids": ids, "execute": execute, "by": by}
        return self.call("POST", "retries/drop", wish)

    def delays(self, topic: str | None = None) -> Iterator[Json]:
        """The messages that wait until they are due."""
        return self._pages("delays", {"topic": topic})

    def cancel_delay(self, id: int, *, by: str = _BY) -> Json:
        """A message that waits is not delivered at all."""
        return self.call("DELETE", _target(f"delays/{id}", {"by": by}))

    def resend_range(self, topic: str, *, execute: bool = False, by: str = _BY, **wish: Any) -> Json:
        """Append copies: of `partition` from `first` to `last`, or stored between `from_ms` and `until_ms`.

        `to_topic` is another topic, `per_second` a rate. Only says what it would do, unless `execute`.
        """
        body = {"execute": execute, "by": by, **wish}
        return self.call("POST", f"topics/{quote(topic, safe='')}/resend", body)

    # --- long work -----------------------------------------------------------------------------------------------

    def jobs(self) -> Json:
        """Those that run, and the last that have ended, newest first."""
        return self.call("GET", "jobs")

    def job(self, id: int) -> Json:
        """How far one is."""
        return self.call("GET", f"jobs/{id}")

    def cancel_job(self, id: int, *, by: str = _BY) -> Json:
        """It goes no further; what is done stays done."""
        return self.call("DELETE", _target(f"jobs/{id}", {"by": by}))

    def _pages(self, path: str, wish: Mapping[str, Any]) -> Iterator[Json]:
        more: dict[str, Any] = {}
        while True:
            page = self.call("GET", _target(path, {**wish, **more}))
            yield from page["rows"]
            if page["next"] is None:
                return
            more = {"after": page["next"]}


def _target(path: str, query: Mapping[str, Any]) -> str:
    said = {
        name: str(value).lower() if isinstance(value, bool) else value
        for name, value in query.items()
        if value is not None
    }
    return f"{path}?{urlencode(said)}" if said else path


def _read(status: int, data: bytes) -> Json:
    try:
        answer = json.loads(data) if data else None
    except ValueError:
        if b"LakeMQ's port for clients" in data:
            raise AdminError("this is LakeMQ's port for clients, not the one for operators") from None
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
