"""The broker as the pipeline sees it: topics, how far they reach, blocks of stored messages, marks of progress.

One door per process and server is kept and used again: Spark's workers live longer than their tasks. A broker that is
gone for a moment is asked again until the time-out; longer, and the task fails with what to do.
"""

import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple, TypeVar

import lakemq
from lakemq.client.blocking import Client
from lakemq.client.errors import BrokerUnreachableError
from lakemq.client.promise import Promise
from lakemq.errors import LakeMQError
from lakemq.pipeline.errors import PipelineError
from lakemq.pipeline.options import Server
from lakemq.wire.buffer import Buffer
from lakemq.wire.own import PartitionRange

T = TypeVar("T")


class Asked(NamedTuple):
    """Messages that are on their way; `promise` is None where that could not be asked at once."""

    topic: str
    partition: int
    at: int
    end: int
    group: str
    promise: Promise[Buffer] | None


_FIRST_PAUSE_S = 0.05
_PAUSE_MAX_S = 1.0
_COUNT_MAX = 1_000_000  # of messages in one answer; its bytes end it long before
_DOORS: dict[Server, "Door"] = {}


def door(server: Server) -> "Door":
    """The door to that server."""
    found = _DOORS.get(server)
    if found is None:
        found = _DOORS[server] = Door(server)
    return found


class Door:
    """A client, with patience."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._client: Client | None = None

    @property
    def client(self) -> Client:
        """Connected, or connecting now."""
        if self._client is None:
            server = self._server
            self._client = lakemq.connect(
                server.url, app=server.app, token=server.token, namespace=server.namespace, watcher=False
            )
        return self._client

    def ranges(self, topic: str, group: str = "", at: str | None = None) -> dict[int, PartitionRange]:
        """How far each partition reaches; with `at` ("-10m", ISO text, "@" and milliseconds) that moment's offset."""
        is_number = at is not None and at.startswith("@")
        moment = datetime.fromtimestamp(int(at[1:]) / 1000, UTC) if at is not None and is_number else at
        return self.patiently(lambda: self.client.ranges(topic, group or None, at=moment))

    def commit(self, topic: str, targets: Mapping[int, int], group: str) -> None:
        """The group is done with all before these offsets."""
        self.patiently(lambda: self.client.commit(topic, targets, group))

    def inspect(self, what: str, topic: str = "") -> Any:
        """What only LakeMQ's brokers tell: topics, or the state of deliveries."""
        return self.patiently(lambda: self.client.inspect(what, topic))

    def ask(self, topic: str, partition: int, at: int, end: int, group: str = "") -> "Asked":
        """Ask for stored messages from `at` on, and go on: they come while the last ones are taken apart."""
        try:
            promise = self.client.begin_block(topic, partition, at, min(end - at, _COUNT_MAX), group or None)
        except LakeMQError:  # asked again, with patience, when they are needed
            promise = None
        return Asked(topic, partition, at, end, group, promise)

    def take(self, asked: "Asked") -> Buffer:
        """What was asked for, as it is stored; never empty."""
        topic, partition, at, end, group, ahead = asked
        waiting = [] if ahead is None else [ahead]

        def once() -> Buffer:
            if not waiting:
                count = min(end - at, _COUNT_MAX)
                waiting.append(self.client.begin_block(topic, partition, at, count, group or None))
            return self.client.await_block(waiting.pop())

        deadline_s = time.monotonic() + self._server.timeout_ms / 1000
        pause_s = _FIRST_PAUSE_S
        while True:
            block = self.patiently(once)
            if len(block):
                return block
            if time.monotonic() > deadline_s:  # paused, or over its rate, all the time
                raise PipelineError(
                    f"{topic}, partition {partition}: nothing is handed out from offset {at} on, though there is more",
                    "See whether the topic is readable and the app below its rate:    lakemq app ls",
                )
            time.sleep(pause_s)  # the app is over its rate, or paused: there is no call that waits for that
            pause_s = min(2 * pause_s, _PAUSE_MAX_S)

    def patiently(self, act: Callable[[], T]) -> T:
        """Do it, again while it may help."""
        deadline_s = time.monotonic() + self._server.timeout_ms / 1000
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                return act()
            except LakeMQError as error:
                is_hopeless = not error.retriable and not isinstance(error, BrokerUnreachableError)
                if is_hopeless or time.monotonic() > deadline_s:
                    if isinstance(error, BrokerUnreachableError):
                        raise PipelineError(
                            f"no broker at {self._server.url}: {error}",
                            "Start one with `lakemq dev`, or give option servers.",
                        ) from None
                    raise
                time.sleep(pause_s)  # a broker that starts again needs a moment
                pause_s = min(2 * pause_s, _PAUSE_MAX_S)

    def close(self) -> None:
        """Say goodbye."""
        if self._client is not None:
            self._client.close()
            self._client = None
