"""Several brokers on one machine, share-nothing: one process, one port and one data directory each, one metadata view.

The first owns topics, apps and subscriptions; the others take over what it says (`world.metadata_file`). Partitions of
a new topic are spread over all of them, and clients find each by FETCH_CLUSTER. The parent serves nothing: it starts
the workers, starts one again that died, and passes SIGTERM on.
"""

import json
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lakemq.errors import LakeMQError
from lakemq.serve import Neighbour, ServeConfig, listening_socket, note_hangup
from lakemq.storage import files

_LOG = logging.getLogger("lakemq.workers")
_RESTARTS_MAX = 5  # of one worker within a minute; more means that it cannot run
_RESTART_WINDOW_SECONDS = 60.0
WORKERS_MAX = 64
_PR_SET_PDEATHSIG = 1


class WorkersError(LakeMQError):
    """What was asked for does not fit the data directory."""

    cause = "The number of workers does not fit what is in the data directory."
    fix = "Start with as many workers as before, or more; a single broker's data stays that of a single broker."


@dataclass(frozen=True, slots=True)
class Worker:
    """One of the brokers: its settings, its socket, and where it says that it serves."""

    number: int
    config: ServeConfig
    listener: socket.socket
    tell_ready: Callable[[dict[str, Any]], None]


def plan(config: ServeConfig, count: int) -> tuple[list[ServeConfig], list[socket.socket]]:
    """The settings and sockets of each worker. With port 0 every one gets a port that is free."""
    if not 1 <= count <= WORKERS_MAX:
        raise WorkersError(f"{count} workers; 1 to {WORKERS_MAX} are possible")
    if (config.data / files.FORMAT).exists():
        raise WorkersError(f"{config.data} has the data of a single broker, not of workers")
    before = _workers_before(config.data)
    if before > count:
        raise WorkersError(f"{config.data} has the data of {before} workers, not of {count}")
    listeners = [listening_socket(config.host, config.port + number if config.port else 0) for number in range(count)]
    ports = [listener.getsockname()[1] for listener in listeners]
    told = config.broker.advertised_port
    neighbours = tuple(
        Neighbour(number, number, config.broker.advertised_host, told + number if told else port)
        for number, port in enumerate(ports)
    )
    groups = tuple(range(count))
    settings = []
    for number in groups:
        broker = replace(
            config.broker,
            broker_id=number,
            group_id=number,
            group_ids=groups,
            owns_metadata=number == 0,
            advertised_port=told + number if told else 0,
            creates_missing=config.broker.creates_missing and count == 1,
        )
        settings.append(
            replace(
                config,
                data=config.data / f"worker-{number}",
                port=ports[number],
                broker=broker,
                neighbours=tuple(one for one in neighbours if one.broker_id != number),
                shared=config.data if count > 1 else None,
            )
        )
    return settings, listeners


def _workers_before(data: Path) -> int:
    numbers = [int(one.name[7:]) for one in data.glob("worker-*") if one.name[7:].isdigit()]
    return max(numbers, default=-1) + 1


class Workers:
    """The parent of some workers."""

    def __init__(self, config: ServeConfig, count: int, serve: Callable[[Worker], int]) -> None:
        self.settings, self._listeners = plan(config, count)
        self._serve = serve
        self._pids: dict[int, int] = {}
        self._started: dict[int, list[float]] = {number: [] for number in range(count)}
        self._is_stopping = False
        self._told: dict[int, dict[str, Any]] = {}

    def run(self, ready: Callable[[list[dict[str, Any]]], None]) -> int:
        """Serve until told to stop; the exit status says whether all ended in peace."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda number, _: self._stop(signal.Signals(number).name))
        signal.signal(signal.SIGHUP, note_hangup)
        for worker in range(len(self.settings)):
            self._start(worker)
        ready([self._told[number] for number in sorted(self._told)])
        status = 0
        while self._pids:
            status = max(status, self._wait())
        _LOG.info("all workers have stopped")
        return status

    def _start(self, number: int) -> None:
        reader, writer = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            os.close(reader)
            os._exit(self._be(number, writer))
        os.close(writer)
        self._pids[pid] = number
        self._started[number].append(time.monotonic())
        with os.fdopen(reader, "rb") as told:  # until the worker serves, or is gone
            line = told.readline()
        if line:
            self._told[number] = json.loads(line)

    def _be(self, number: int, writer: int) -> int:
        """The child's life."""
        for signal_number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signal_number, signal.SIG_DFL)
        _die_with_parent()
        for other, listener in enumerate(self._listeners):
            if other != number:
                listener.close()

        def tell(facts: dict[str, Any]) -> None:
            os.write(writer, json.dumps(facts).encode() + b"\n")
            os.close(writer)

        try:
            return self._serve(Worker(number, self.settings[number], self._listeners[number].dup(), tell))
        except BaseException:
            _LOG.exception("worker %d ended", number)
            return 1

    def _wait(self) -> int:
        try:
            pid, raw = os.wait()
        except InterruptedError:
            return 0
        number = self._pids.pop(pid, None)
        if number is None or self._is_stopping:
            return 0 if os.waitstatus_to_exitcode(raw) == 0 else 1
        _LOG.error("worker %d ended with status %d", number, os.waitstatus_to_exitcode(raw))
        now = time.monotonic()
        recent = [when for when in self._started[number] if now - when < _RESTART_WINDOW_SECONDS]
        self._started[number] = recent
        if len(recent) > _RESTARTS_MAX:
            _LOG.critical("worker %d cannot run: stopping all", number)
            self._stop(f"worker {number}")
            return 1
        self._start(number)
        return 0

    def _stop(self, why: str) -> None:
        _LOG.info("stopping all workers: %s", why)
        self._is_stopping = True
        for pid in self._pids:
            os.kill(pid, signal.SIGTERM)


def _die_with_parent() -> None:
    """A parent that is killed cannot stop its workers; the kernel does (Linux only)."""
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
