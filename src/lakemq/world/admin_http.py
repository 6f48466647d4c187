"""The operators' HTTP interface, served by a thread with a loop of its own: it cannot hold up messages.

Light to import. FastAPI and uvicorn are loaded by the thread, after clients are served; the port is taken before, so
that one in use is found at once.
"""

import asyncio
import logging
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lakemq.world.admin_app import Operated

_LOG = logging.getLogger("lakemq.admin")
_BACKLOG = 1024  # they wait in the kernel, which takes no files of ours
_ACCEPTS_MAX = 8  # at once: far fewer than push out who has just asked
CONNECTIONS_MAX = 32  # for one more an idle one goes
HEALTH_CONNECTIONS_MAX = 8  # beyond that while all are being answered: to be asked for health
ADMIN_FILES_MAX = CONNECTIONS_MAX + HEALTH_CONNECTIONS_MAX + 2 * _ACCEPTS_MAX
"""What the operators' port takes of the process' open files, at the most."""
_HEADER_BYTES_MAX = 16 << 10
_KEEP_ALIVE_SECONDS = 30
_STOP_SECONDS = 2


@dataclass(frozen=True, slots=True)
class AdminPlace:
    """Where to listen, and what to ask for."""

    token: str
    data: Path
    host: str = "127.0.0.1"
    port: int = 50090  # 0: any that is free
    timeout_seconds: float = 10.0
    disk_free_bytes_min: int = 0


class AdminServer:
    """Takes its port when made; serves from `start` to `stop`."""

    def __init__(self, place: AdminPlace) -> None:
        self._place = place
        self._socket = _listening_socket(place.host, place.port)
        self.port: int = self._socket.getsockname()[1]
        self._server: Any = None
        self._thread: threading.Thread | None = None
        self._is_stopping = False

    def start(
        self,
        operated: "Operated",
        ready: Callable[[], None] = lambda: None,
        failed: Callable[[BaseException], None] = lambda error: None,
    ) -> None:
        """Begin; `ready` or `failed` is called by the thread that serves."""
        self._thread = threading.Thread(
            target=self._run, args=(operated, ready, failed), name="lakemq-admin", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """End, whether it has begun or not; waits until it has."""
        self._is_stopping = True
        if self._server is not None:
            self._server.should_exit = True
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(2 * _STOP_SECONDS)
        self._socket.close()

    def _run(self, operated: "Operated", ready: Callable[[], None], failed: Callable[[BaseException], None]) -> None:
        try:
            self._server = _make_server(operated, self._place, ready)
            self._server.should_exit = self._is_stopping
            asyncio.run(self._server.serve(sockets=[self._socket]))
        except BaseException as error:
            _LOG.error("the operators' interface has ended: %s: %s", type(error).__name__, error)
            failed(error)


def _make_server(operated: "Operated", place: AdminPlace, ready: Callable[[], None]) -> Any:
    import uvicorn

    from lakemq.world.admin_app import AdminSettings, make_app
    from lakemq.world.admin_connections import AdminConnection, Crowd, HealthFirst

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            for listener in sockets or ():
                listener.listen(_BACKLOG)  # the loop takes few at once; the others may wait
            ready()

    class Connection(AdminConnection):
        crowd = Crowd()

    settings = AdminSettings(place.token, place.data, place.timeout_seconds, place.disk_free_bytes_min)
    config = uvicorn.Config(
        HealthFirst(make_app(operated, settings), Connection.crowd),
        loop="asyncio",
        http=Connection,
        backlog=_ACCEPTS_MAX,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=_STOP_SECONDS,
        h11_max_incomplete_event_size=_HEADER_BYTES_MAX,
    )
    return Server(config)


def _listening_socket(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(_BACKLOG)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener
