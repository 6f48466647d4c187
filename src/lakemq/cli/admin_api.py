"""The operators' HTTP interface from the command line: one request per call, errors in the command line's words."""

import http.client
import json
from difflib import get_close_matches
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from lakemq.cli import failure
from lakemq.cli.failure import CommandError
from lakemq.cli.options import Chosen

_SECONDS = 15.0  # more than the broker's own limit, which says what is wrong
_EXITS = {
    400: failure.USAGE,
    401: failure.NOT_PERMITTED,
    403: failure.NOT_PERMITTED,
    404: failure.NOT_FOUND,
    409: failure.FAILED,
    413: failure.USAGE,
    503: failure.UNREACHABLE,
    504: failure.TIMED_OUT,
}


class AdminApi:
    """Calls one broker."""

    def __init__(self, chosen: Chosen) -> None:
        self.url = chosen.admin_url()
        parts = urlsplit(self.url)
        try:
            port = parts.port
        except ValueError:
            port = -1
        if parts.scheme not in ("http", "https") or not parts.hostname or port == -1:
            raise CommandError(
                f"{self.url!r} is not a URL for operators",
                failure.USAGE,
                fix="--admin http://127.0.0.1:50090, or LAKEMQ_ADMIN_URL",
            )
        self._parts = parts
        self._token = chosen.admin_token()

    def get(self, *path: str, **query: Any) -> Any:
        """Ask for something; a query that is None is left out."""
        return self.call("GET", path, query=query)

    def call(self, method: str, path: tuple[str, ...], body: Any = None, query: dict[str, Any] | None = None) -> Any:
        """One request below /v1, its path in parts; the JSON of its answer, or CommandError."""
        asked = urlencode({name: value for name, value in (query or {}).items() if value is not None})
        target = "/v1/" + "/".join(quote(part, safe="") for part in path) + (f"?{asked}" if asked else "")
        status, data = self.request(method, target, body)
        try:
            answer = json.loads(data)
        except ValueError:
            is_for_clients = b"LakeMQ's port for clients" in data
            raise CommandError(
                f"{self.url} is LakeMQ's port for clients, not the one for operators"
                if is_for_clients
                else f"{self.url} answered with HTTP {status} and no JSON: this is not a broker's port for operators",
                failure.UNREACHABLE,
                fix="check --admin and LAKEMQ_ADMIN_URL; the broker's banner has the right one",
            ) from None
        if status < 400:
            return answer
        raise self._error(status, answer, path)

    def request(self, method: str, target: str, body: Any = None) -> tuple[int, bytes]:
        """One request; status and body of its answer."""
        kind = http.client.HTTPSConnection if self._parts.scheme == "https" else http.client.HTTPConnection
        connection = kind(self._parts.hostname or "", self._parts.port, timeout=_SECONDS)
        headers = {"Accept": "application/json"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        data = None
        if body is not None:
            data = json.dumps(body).encode()
            headers["Content-Type"] = "application/json"
        try:
            connection.request(method, self._parts.path.rstrip("/") + target, data, headers)
            response = connection.getresponse()
            return response.status, response.read()
        except TimeoutError:
            raise CommandError(f"{self.url} did not answer within {_SECONDS:g} s", failure.TIMED_OUT) from None
        except (OSError, http.client.HTTPException) as error:
            raise CommandError(
                f"no broker answers operators at {self.url}: {error}",
                failure.UNREACHABLE,
                fix="start one with    lakemq dev    or say where it is: --admin, LAKEMQ_ADMIN_URL",
            ) from None
        finally:
            connection.close()

    def _error(self, status: int, answer: Any, path: tuple[str, ...]) -> CommandError:
        told = answer.get("error") if isinstance(answer, dict) else None
        if not isinstance(told, dict):
            return CommandError(f"{self.url} answered with HTTP {status}", _EXITS.get(status, failure.FAILED))
        code = told.get("code")
        fix = str(told.get("fix", ""))
        if status == 401:
            where = "" if self._token else ": none was found"
            fix = f"set LAKEMQ_ADMIN__TOKEN, or run this where the broker's data directory is{where}"
        elif told.get("name") == "TopicNotFoundError":
            fix = self._topic_fix(path)
        return CommandError(
            str(told.get("detail", f"HTTP {status}")),
            _EXITS.get(status, failure.FAILED),
            fix=fix,
            code=code if isinstance(code, int) else None,
        )

    def _topic_fix(self, path: tuple[str, ...]) -> str:
        if path[0] != "topics" or len(path) < 2:
            return failure.filled("lakemq topic ls    lists the topics;    lakemq topic create {TOPIC}    makes one")
        fix = f"lakemq topic create {path[1]}"
        try:
            names = [topic["name"] for topic in self.get("topics")]
        except CommandError:
            return fix
        near = get_close_matches(path[1], names, n=1)
        return f'{fix}        or did you mean "{near[0]}"?' if near else fix
