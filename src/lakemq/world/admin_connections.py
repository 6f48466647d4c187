"""Connections to the operators' port: few, none of them silent for long, and never too many to ask for health.

Anybody who reaches the port can connect, without a token. So a new connection is always taken, and if there are too
many an old one goes for it: first those that never asked anything. The one that asks, as a load balancer does, has sent
its question before others can push it out.
"""

import asyncio
import logging
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from lakemq.errors import ServiceUnavailableError
from lakemq.world.admin_app import failure
from lakemq.world.admin_http import CONNECTIONS_MAX, HEALTH_CONNECTIONS_MAX

_LOG = logging.getLogger("lakemq.admin")
HEALTH_PATHS = frozenset({"/healthz", "/readyz"})
SILENT_SECONDS = 5.0  # for the head of a request to arrive, and for the end of an answer to leave
ANSWER_SECONDS = 60.0  # from there until the whole answer is taken
_COMPLAIN_SECONDS = 60.0


class Crowd:
    """All connections, the oldest first."""

    def __init__(self) -> None:
        self._all: dict[AdminConnection, None] = {}
        self._complained: float | None = None

    def __len__(self) -> int:
        return len(self._all)

    @property
    def is_busy(self) -> bool:
        """Tell whether so many are being answered that the rest is for health."""
        return sum(one.is_answering for one in self._all) > CONNECTIONS_MAX

    def add(self, new: "AdminConnection") -> None:
        """One more; another one goes if there are too many."""
        self._all[new] = None
        if len(self._all) > CONNECTIONS_MAX:
            idle = [one for one in self._all if one is not new and not one.is_answering]
            if idle:
                self._push_out(min(idle, key=lambda one: one.has_asked))  # of equals the oldest
            elif len(self._all) > CONNECTIONS_MAX + HEALTH_CONNECTIONS_MAX:
                self._push_out(next(iter(self._all)))

    def remove(self, gone: "AdminConnection") -> None:
        """It has ended."""
        self._all.pop(gone, None)

    def _push_out(self, one: "AdminConnection") -> None:
        now = one.loop.time()
        if self._complained is None or now - self._complained >= _COMPLAIN_SECONDS:
            self._complained = now
            _LOG.warning("more than %d connections to the operators' port: idle ones are closed", CONNECTIONS_MAX)
        self.remove(one)
        one.transport.abort()


class AdminConnection(H11Protocol):
    """One connection of uvicorn's, with a time limit for whatever it waits for."""

    crowd: Crowd

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.has_asked = False
        self._limit: asyncio.TimerHandle | None = None
        self._is_limit_of_answer = False

    @property
    def is_answering(self) -> bool:
        """Tell whether a request of it is being answered."""
        return self.cycle is not None and not self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._give(SILENT_SECONDS)
        self.crowd.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_limit()
        self._unset_keepalive_if_required()
        self.crowd.remove(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._look()

    def on_response_complete(self) -> None:
        self._end_limit()
        super().on_response_complete()
        if self.transport.is_closing() or self.is_answering:  # a peer may not read the end, or have asked more
            self._look()

    def timeout_keep_alive_handler(self) -> None:
        self.transport.abort()

    def _look(self) -> None:
        """Begin to count for what it waits for now; bytes that come one by one do not begin it again."""
        if self.is_answering:
            self.has_asked = True
            if not self._is_limit_of_answer:
                self._give(ANSWER_SECONDS)
                self._is_limit_of_answer = True
        elif self._limit is None or self._is_limit_of_answer:
            self._give(SILENT_SECONDS)

    def _give(self, seconds: float) -> None:
        self._end_limit()
        self._limit = self.loop.call_later(seconds, self.transport.abort)

    def _end_limit(self) -> None:
        self._is_limit_of_answer = False
        if self._limit is not None:
            self._limit.cancel()
            self._limit = None


class HealthFirst:
    """Refuses all but questions about health while too many requests are being answered."""

    def __init__(self, app: ASGIApp, crowd: Crowd) -> None:
        self._app = app
        self._crowd = crowd

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in HEALTH_PATHS and self._crowd.is_busy:
            error = ServiceUnavailableError(f"{CONNECTIONS_MAX} requests are being answered: try again in a moment")
            await failure(error, headers={"Connection": "close"})(scope, receive, send)
            return
        await self._app(scope, receive, send)
