"""Several workers as one broker to their operators: what concerns partitions is asked of all of them.

A change of metadata is made at the first worker, and answered when the others have taken it over.
"""

import http.client
import json
import logging
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from lakemq.broker.admin import CHANGES
from lakemq.errors import LakeMQError, ServiceUnavailableError, from_status
from lakemq.operate import Operated
from lakemq.serve import Service
from lakemq.world.metadata_file import MetadataFile

_LOG = logging.getLogger("lakemq.workers")
_SECONDS = 8.0
_SHARED_SECONDS = 2.0
_LOOK_SECONDS = 0.01


@dataclass(frozen=True, slots=True)
class OtherWorker:
    """Where another worker answers operators."""

    number: int
    host: str
    port: int


class OperatedWorkers(Operated):
    """The first worker answers for all; each of the others for itself."""

    def __init__(self, service: Service, token: str, others: tuple[OtherWorker, ...], shared: Path) -> None:
        super().__init__(service)
        self._token = token
        self._others = others
        self._shared = MetadataFile(shared)
        self._is_first = service.config.broker.owns_metadata

    def ask(self, action: str, **arguments: Any) -> "Future[Any]":
        """An operator's action, at all workers that it concerns."""
        own = super().ask(action, **arguments)
        if not self._is_first or (action not in CHANGES and action not in ("lag", "seek", "show_topic")):
            return own
        whole: Future[Any] = Future()
        threading.Thread(target=self._finish, args=(action, arguments, own, whole), daemon=True).start()
        return whole

    def _finish(self, action: str, arguments: dict[str, Any], own: "Future[Any]", whole: "Future[Any]") -> None:
        try:
            result = own.result()
            if action in CHANGES:
                self._wait_for_others()
            elif action == "show_topic":
                for other in self._others:
                    more = self._call(other, "GET", f"/v1/topics/{quote(arguments['name'], safe='')}")
                    result["partition_offsets"] += more["partition_offsets"]
                result["partition_offsets"].sort(key=lambda one: one["partition"])
            else:
                for other in self._others:
                    result += self._lag_or_seek(other, action, arguments)
                result.sort(key=lambda one: one["partition"])
            whole.set_result(result)
        except BaseException as error:
            whole.set_exception(error)

    def _wait_for_others(self) -> None:
        """Until all have the change; a worker that is down takes it over when it starts."""
        broker = self._service.broker
        assert broker is not None
        version = broker.ledger.metadata.version
        end = time.monotonic() + _SHARED_SECONDS
        while time.monotonic() < end:
            if all(self._shared.seen_by(other.number) >= version for other in self._others):
                return
            time.sleep(_LOOK_SECONDS)  # a thread of its own, up to the deadline
        _LOG.warning("not all workers have taken over version %d of the metadata yet", version)

    def _lag_or_seek(self, other: OtherWorker, action: str, arguments: dict[str, Any]) -> list[dict[str, Any]]:
        if action == "lag":
            found = self._call(other, "GET", f"/v1/lag?{urlencode(arguments)}")
        else:
            found = self._call(other, "POST", "/v1/seek", arguments)
        rows: list[dict[str, Any]] = found
        return rows

    def _call(self, other: OtherWorker, method: str, target: str, body: Any = None) -> Any:
        connection = http.client.HTTPConnection(other.host, other.port, timeout=_SECONDS)
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
        try:
            connection.request(method, target, json.dumps(body) if body is not None else None, headers)
            response = connection.getresponse()
            answer = json.loads(response.read())
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise ServiceUnavailableError(f"worker {other.number} does not answer: {error}") from None
        finally:
            connection.close()
        if response.status >= 400:
            told = answer.get("error", {})
            raise _error(told)
        return answer


def _error(told: dict[str, Any]) -> LakeMQError:
    return from_status(int(told.get("code") or 4), str(told.get("detail", "")))
