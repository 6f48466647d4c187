"""A broker for your tests: the real engine in memory, with a clock that you move.

Time passes when the test says so, or while a client waits: then it is moved on instead of slept through, so that a
long poll or a time-out takes no time at all. `crash` and `cut_power` are what they say; `restart` recovers.

    with TestBroker() as broker, broker.connect(app="shop") as mq:
        mq.send("orders", b"1")
        broker.advance("10m")
"""

import random
import threading
from dataclasses import replace
from typing import Any

from lakemq.broker.config import BrokerConfig
from lakemq.client.blocking import Client
from lakemq.client.blocking import connect as connect_blocking
from lakemq.client.duration import Duration, duration_ms
from lakemq.embedded import Engine
from lakemq.embedded_door import AsyncHostedConnector, Hosted, HostedConnector
from lakemq.storage.config import StorageConfig
from lakemq.testing.clock import SimClock
from lakemq.testing.disk import SimDisk

_URL = "lakemq://in-this-process:1"
_STORAGE = StorageConfig(segment_bytes=16 << 20, record_bytes_max=8 << 20)
_ADVANCE_STEP_MS = 1000


class TestBroker:
    """One broker in memory. Not thread-safe but for its clients."""

    __test__ = False  # not a test itself, whatever pytest thinks of the name

    def __init__(self, *, strict: bool = False, config: BrokerConfig | None = None, seed: int = 0) -> None:
        self.clock = SimClock()
        config = config or BrokerConfig(creates_missing=not strict)
        self._config = config if config.cluster_id else replace(config, cluster_id=f"test-{seed}")
        self._disk = SimDisk()
        self._random = random.Random(seed)
        self._hosted = Hosted(self._start(), self._let_pass)

    def _start(self) -> Engine:
        return Engine(self._disk, self.clock, self._config, _STORAGE)

    def _let_pass(self, changed: threading.Condition, timeout_ms: int) -> None:
        self.clock.pass_ms(timeout_ms)

    @property
    def engine(self) -> Engine:
        """The broker's inside, for those who want to look."""
        return self._hosted.engine

    def connect(self, app: str = "default", **settings: Any) -> Client:
        """A blocking client of this broker; settings as in `lakemq.connect`."""
        return connect_blocking(_URL, app=app, connector=HostedConnector(self._hosted), clock=self.clock, **settings)

    def aio_connect(self, app: str = "default", **settings: Any) -> Any:
        """An asyncio client of this broker; settings as in `lakemq.aio.connect`."""
        from lakemq import aio

        return aio.connect(_URL, app=app, connector=AsyncHostedConnector(self._hosted), clock=self.clock, **settings)

    def ask(self, action: str, **arguments: Any) -> Any:
        """An operator's action: create_topic, subscribe, lag, seek and so on."""
        with self._hosted.changed:
            return self._hosted.engine.ask(action, **arguments)

    def advance(self, time: Duration) -> None:
        """Let time pass: leases end, long polls are answered."""
        left_ms = duration_ms(time)
        with self._hosted.changed:
            while left_ms > 0:
                step_ms = min(left_ms, _ADVANCE_STEP_MS)
                self.clock.pass_ms(step_ms)
                left_ms -= step_ms
                self._hosted.work()

    def crash(self) -> None:
        """The process is gone: what was written is there, what was in memory is not. Clients lose their connections."""
        self._end()
        self._disk.lose_process()

    def cut_power(self) -> None:
        """As `crash`, and what was not synced may be gone too."""
        self._end()
        self._disk.lose_power(self._random)

    def restart(self) -> None:
        """Recover what is on the disk."""
        with self._hosted.changed:
            self._hosted.engine = self._start()

    def close(self) -> None:
        """The end of the test."""
        with self._hosted.changed:
            if not self.engine.is_stopped:
                self.engine.close()

    def _end(self) -> None:
        with self._hosted.changed:
            self.engine.is_stopped = True
            self.engine.drop_connections()

    def __enter__(self) -> "TestBroker":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
