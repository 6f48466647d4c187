"""A broker in this process, with its interface for operators, until it is told to stop.

Clients are served first; the operators' side, which loads more slowly, follows in its own thread. When both serve, the
ready file says where, and a terminal shows the banner.
"""

import contextlib
import json
import logging
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lakemq.cli.failure import DONE, FAILED, MISSING, CommandError
from lakemq.config import BUILT_IN, Settings
from lakemq.memory import keep_freed_memory
from lakemq.operate import Operated
from lakemq.operate_workers import OperatedWorkers, OtherWorker
from lakemq.serve import ServeConfig, Service, note_hangup
from lakemq.storage import files
from lakemq.storage.directory import ForeignDirectoryError
from lakemq.storage.disk import DirectoryLockedError
from lakemq.version import VERSION
from lakemq.workers import Worker, Workers
from lakemq.world import log
from lakemq.world.admin_http import AdminPlace, AdminServer
from lakemq.world.admin_token import own_token
from lakemq.world.data_directory import make_directory, trouble_with

_LOG = logging.getLogger("lakemq.broker")


class Serving:
    """One run of a broker, from the settings to the exit code."""

    def __init__(self, settings: Settings, ready_file: Path | None, worker: "WorkerPlace | None" = None) -> None:
        self._settings = settings
        self._ready_file = ready_file
        self._worker = worker
        config = worker.worker.config if worker is not None else settings.serve_config()
        self._broker_id = config.broker.broker_id
        self._data = config.data
        self._is_new = not (self._data / files.FORMAT).exists()
        self._admin_failure: BaseException | None = None
        self._service = Service(config, worker.worker.listener if worker is not None else None)

    def run(self) -> int:
        """Serve until stopped; the exit code says whether it ended in peace."""
        log.configure(self._settings.log.format, self._settings.log.level, broker=self._broker_id)
        if self._ready_file is not None:
            self._ready_file.unlink(missing_ok=True)  # of a run before, which says nothing about this one
        with contextlib.suppress(ValueError):  # not the main thread: then signals are not ours
            signal.signal(signal.SIGHUP, note_hangup)  # also while it recovers
        _raise_file_limit()
        keep_freed_memory()
        _open(self._service)
        self._token = self._find_token()
        log.configure(
            self._settings.log.format, self._settings.log.level, broker=self._broker_id, secrets=(self._token,)
        )
        self._admin = self._listen()
        try:
            self._service.run(self._serves)
        except OSError as error:
            if self._service.port:
                raise
            server = self._settings.server
            raise _port_error(server.host, server.port, "--port", error) from None
        finally:
            self._admin.stop()
        if self._admin_failure is not None:
            return MISSING if isinstance(self._admin_failure, ImportError) else FAILED
        return DONE if self._service.failure is None else FAILED

    def _find_token(self) -> str:
        if self._worker is not None:
            return self._worker.token
        return find_token(self._settings)

    def _listen(self) -> AdminServer:
        if self._worker is not None:
            return self._worker.admin
        return listen(self._settings, self._token, self._data)

    def _serves(self, service: Service) -> None:
        operated = Operated(service)
        if self._worker is not None and self._worker.others:
            operated = OperatedWorkers(service, self._token, self._worker.others, self._settings.server.data)
        self._admin.start(operated, self._all_serve, self._admin_failed)

    def _admin_failed(self, error: BaseException) -> None:
        self._admin_failure = error
        self._service.stop_soon(f"the operators' interface has ended ({error})")

    def _all_serve(self) -> None:
        """Called by the operators' thread."""
        port, admin_port = self._service.port, self._admin.port
        if self._worker is not None:
            self._worker.worker.tell_ready({"port": port, "admin_port": admin_port, "pid": os.getpid()})
        if self._ready_file is not None:
            told = {"port": port, "admin_port": admin_port, "pid": os.getpid(), "admin_token": self._token}
            _write_private(self._ready_file, json.dumps(told))
        if self._settings.log.format != "json" and sys.stderr.isatty():
            sys.stderr.write(self._banner())
            sys.stderr.flush()
        else:
            _LOG.info(
                "serving clients on port %d, operators on port %d",
                port,
                admin_port,
                extra={"event": "serving", "port": port, "admin_port": admin_port, "data": str(self._data)},
            )

    def _banner(self) -> str:
        server, admin = self._settings.server, self._settings.admin
        url = f"lakemq://{server.host}:{self._service.port}"
        is_dev = self._settings.values["broker.creates_missing"]
        mode = "dev: topics, apps and tokens are made on first use" if is_dev else "strict: nothing is made by itself"
        where = "" if self._service.port == 50088 else f" --server {url}"
        return (
            f"LakeMQ {VERSION}  data {self._data}{' (new)' if self._is_new else ''}  mode {mode}\n"
            f"  broker {url} (jmq4)   operators http://{admin.host}:{self._admin.port}"
            "   metrics /metrics   health /healthz\n"
            f"  try    lakemq send orders 'hello'{where}    then    lakemq recv orders{where}\n"
        )


@dataclass(frozen=True, slots=True)
class WorkerPlace:
    """What a worker has besides its settings: the operators' port it serves, and those of the others."""

    worker: Worker
    token: str
    admin: AdminServer
    others: tuple[OtherWorker, ...]


def serve_workers(settings: Settings, ready_file: Path | None, count: int) -> int:
    """Several brokers, one process each; this one only watches over them."""
    log.configure(settings.log.format, settings.log.level, broker=-1)
    if ready_file is not None:
        ready_file.unlink(missing_ok=True)
    config = settings.serve_config()
    try:
        make_directory(config.data)
    except OSError as error:
        raise _trouble(config, error) from None
    admin_port = _admin_port(settings, count)
    token = find_token(settings)
    _raise_file_limit()
    admins: list[AdminServer] = []

    def serve_one(worker: Worker) -> int:
        others = tuple(
            OtherWorker(number, settings.admin.host, admin.port)
            for number, admin in enumerate(admins)
            if number != worker.number
        )
        return Serving(settings, None, WorkerPlace(worker, token, admins[worker.number], others)).run()

    try:
        workers = Workers(config, count, serve_one)
    except OSError as error:
        raise _port_error(config.host, config.port, "--port", error) from None
    for number, one in enumerate(workers.settings):
        admins.append(listen(settings, token, one.data, admin_port + number if admin_port else 0))

    def ready(told: list[dict[str, Any]]) -> None:
        if ready_file is not None and told:
            first = {**told[0], "pid": os.getpid(), "admin_token": token, "workers": told}
            _write_private(ready_file, json.dumps(first))
        ports = ", ".join(str(one["port"]) for one in told)
        _LOG.info("%d workers serve clients on ports %s", len(told), ports, extra={"event": "serving"})

    return workers.run(ready)


def _admin_port(settings: Settings, count: int) -> int:
    """The first worker's port for operators: behind the ports for clients if it would be one of them."""
    first, port = settings.server.port, settings.admin.port
    if not first or not port or port >= first + count or port + count <= first:
        return port
    if settings.origins["admin.port"] == BUILT_IN:
        return first + count
    raise CommandError(
        f"{count} workers need the ports from {first} for clients and from {port} for operators: they meet",
        fix=f"--admin-port {first + count}, or any that is further away",
    )


def find_token(settings: Settings) -> str:
    """The operators' token, made if there is none."""
    admin = settings.admin
    try:
        return own_token(admin.token, admin.token_file, settings.server.data)
    except OSError as error:
        raise CommandError(f"the operators' token cannot be had: {error}", fix="check admin.token_file") from None


def listen(settings: Settings, token: str, data: Path, port: int | None = None) -> AdminServer:
    """Take the operators' port."""
    admin = settings.admin
    wanted = admin.port if port is None else port
    place = AdminPlace(token, data, admin.host, wanted, admin.request_timeout_ms / 1000, admin.disk_free_bytes_min)
    try:
        return AdminServer(place)
    except OSError as error:
        raise _port_error(admin.host, wanted, "--admin-port", error) from None


def _open(service: Service) -> None:
    try:
        service.open()
    except DirectoryLockedError:
        raise CommandError(
            f"{service.config.data} is in use by another broker",
            fix="stop that one, or choose another directory: --data",
        ) from None
    except (ForeignDirectoryError, OSError, MemoryError) as error:
        raise _trouble(service.config, error) from None


def _trouble(config: ServeConfig, error: BaseException) -> CommandError:
    trouble = trouble_with(config.data, error, config.storage.segment_bytes)
    return CommandError(trouble.detail, fix=trouble.fix)


def _port_error(host: str, port: int, flag: str, error: OSError) -> CommandError:
    return CommandError(
        f"cannot listen on {host}:{port}: {error.strerror or error}",
        fix=f"stop what listens there, or choose another: {flag} 0 takes any that is free",
    )


def _write_private(file: Path, text: str) -> None:
    """As a whole or not at all; it has the token in it."""
    temporary = file.with_name(f"{file.name}.{os.getpid()}.tmp")
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as opened:
        opened.write(text)
    temporary.replace(file)


def _raise_file_limit() -> None:
    """As many open files as the system allows: each connection is one."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError) as error:
            _LOG.warning("the limit of open files stays at %d: %s", soft, error)
