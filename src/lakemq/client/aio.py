"""The asyncio client: `lakemq.aio.connect()`. The same names as the blocking one; what waits is awaited."""

import asyncio
import os
import random
import signal
import threading
import uuid
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar, Unpack

from lakemq.client import inspecting, offsets
from lakemq.client.address import ServerUrl, parse_url
from lakemq.client.admin import AdminClient
from lakemq.client.aio_admin import AsyncAdmin
from lakemq.client.aio_consuming import AsyncConsumer, AsyncReader, AsyncSource
from lakemq.client.aio_serving import AsyncServing, loop_signals
from lakemq.client.aio_transaction import AsyncTransaction
from lakemq.client.aio_wire import Driver, TcpConnector
from lakemq.client.backoff import Random
from lakemq.client.channel import AsyncConnector, embedded
from lakemq.client.config import Acks, ClientConfig, Compressions, Selector, SelectorName, Settings, make_config
from lakemq.client.consumer import ConsumerCore, ConsumerSettings, filter_text
from lakemq.client.core import Core
from lakemq.client.duration import Duration, duration_ms
from lakemq.client.errors import BrokerUnreachableError, BufferFullError, ClosedError, SendTimeoutError
from lakemq.client.handlers import SHUTDOWN, Function, Handler, is_async, make_handler
from lakemq.client.instance import instance_name
from lakemq.client.lanes import NOTHING_ELSE, Lanes
from lakemq.client.offsets import Move, PartitionLag, Start
from lakemq.client.outbox import Outbox
from lakemq.client.outbox_file import OutboxFile
from lakemq.client.outgoing import Body, Message, Tags, scheduled
from lakemq.client.parcel import Parcel
from lakemq.client.parking import Parking
from lakemq.client.position_file import PositionFile
from lakemq.client.producer import Producer
from lakemq.client.promise import Promise, start
from lakemq.client.reader import ReaderCore
from lakemq.client.receipt import Receipt, SendReport
from lakemq.client.system_clock import SystemClock
from lakemq.client.transaction import Decision, TransactionCheck, TransactionCore, check_decision
from lakemq.clock import Clock

H = TypeVar("H", bound=Function)


def connect(
    url: str | None = None,
    *,
    app: str | None = None,
    token: str | None = None,
    namespace: str = "",
    region: str = "",
    acks: Acks = "flush",
    timeout: Duration = "5s",
    compression: Compressions = "lz4",
    outbox: str | Path | None = None,
    wait: Duration = 0,
    selector: SelectorName | Selector | None = None,
    connector: AsyncConnector | None = None,
    clock: Clock | None = None,
    chance: Random | None = None,
    **settings: Unpack[Settings],
) -> "AsyncClient":
    """As `lakemq.connect`, to be awaited or used as `async with lakemq.aio.connect(…) as mq`."""
    config = make_config(
        os.environ,
        app=app,
        token=token,
        namespace=namespace,
        region=region,
        acks=acks,
        timeout=timeout,
        compression=compression,
        selector=selector,
        settings=settings,
    )
    server = parse_url(url or os.environ.get("LAKEMQ_URL"))
    return AsyncClient(config, server, connector, clock or SystemClock(), outbox, chance, duration_ms(wait))


class AsyncClient:
    """A connection to LakeMQ, for one event loop."""

    def __init__(
        self,
        config: ClientConfig,
        server: ServerUrl,
        connector: AsyncConnector | None,
        clock: Clock,
        outbox: str | Path | None = None,
        chance: Random | None = None,
        wait_ms: int = 0,
    ) -> None:
        self._chance = chance or random.random
        self._wait_ms = wait_ms
        self._config = config
        self._server = server
        self._connector = connector
        self._clock = clock
        self._outbox_directory = outbox
        self._outbox: Outbox | None = None
        self._outbox_file: OutboxFile | None = None
        self._driver: Driver | None = None
        self._handlers: list[Handler] = []
        self._sources: set[AsyncSource] = set()
        self._checks: set[asyncio.Task[None]] = set()
        self._serving: list[AsyncServing] = []
        self._stop: asyncio.Event | None = None
        self._thread_id = 0  # of the loop
        self._admin: AsyncAdmin | None = None

    def __await__(self) -> "Generator[Any, None, AsyncClient]":
        return self._open().__await__()

    async def __aenter__(self) -> "AsyncClient":
        return await self._open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close(is_clean=error is None)

    async def _open(self) -> "AsyncClient":
        if self._driver is not None:
            return self
        config = self._config
        connector = self._connector
        if connector is None:
            is_embedded = self._server.is_embedded
            connector = embedded("async_connector", self._server.directory) if is_embedded else TcpConnector()
        self._core = core = Core(config, self._server.addresses, self._chance, instance_name())
        core.advance(self._clock.monotonic_ms(), self._clock.wall_ms())
        if self._outbox_directory is not None:
            file = OutboxFile(self._outbox_directory, config.outbox_bytes_max)
            self._outbox, self._outbox_file = Outbox(core, file.log, uuid.uuid4().hex), file
        self._producer = Producer(core, self._outbox)
        self._lanes = Lanes(self._producer)
        self._loop = asyncio.get_running_loop()
        self._thread_id = threading.get_ident()
        self._driver = Driver(core, connector, self._clock, self._loop, self._outbox_file)
        try:
            await self._call(lambda: start(core.reach(self._wait_ms)))
        except BrokerUnreachableError as error:
            if self._outbox is None or not error.retriable:
                await self.close(is_clean=False)
                raise
        except BaseException:
            await self.close(is_clean=False)
            raise
        if self._outbox is not None:
            self._driver.enter()
            self._outbox.drain()
        return self

    def _here(self) -> Driver:
        if self._driver is None or self._driver.is_closed:
            raise ClosedError("await connect(…) first" if self._driver is None else "")
        return self._driver

    async def _call(self, act: Callable[[], Promise[Any]]) -> Any:
        driver = self._here()
        driver.enter()
        return await driver.settled(act())

    # Sending

    async def send(
        self,
        topic: str,
        body: Body,
        *,
        key: str | None = None,
        tags: Tags | None = None,
        headers: Mapping[str, str] | None = None,
        partition: int | None = None,
        ordered: bool = False,
        acks: Acks | None = None,
        priority: int = 0,
        timeout: Duration | None = None,
        uniq_id: str | None = None,
        delay: Duration | None = None,
        deliver_at: datetime | int | None = None,
        expire: Duration | datetime | None = None,
    ) -> Receipt:
        """Send one message and wait until the broker has confirmed it; see `Client.send`."""
        driver = self._here()
        headers = scheduled(headers, delay, deliver_at, expire, self._clock.wall_ms())
        driver.enter()
        return await driver.settled(
            self._producer.send(
                topic,
                body,
                key=key,
                tags=tags,
                headers=headers,
                partition=partition,
                ordered=ordered,
                acks=acks,
                priority=priority,
                timeout_ms=None if timeout is None else duration_ms(timeout),
                uniq_id=uniq_id,
            )
        )

    async def send_many(
        self, topic: str, messages: Iterable[Message | Body], *, acks: Acks | None = None
    ) -> SendReport:
        """Send many messages, few requests: `.ok` and `.failed` of the report have one outcome per message."""
        driver = self._here()
        driver.enter()
        return await driver.settled(self._producer.send_many(topic, messages, acks))

    async def send_soon(
        self,
        topic: str,
        body: Body,
        *,
        key: str | None = None,
        tags: Tags | None = None,
        headers: Mapping[str, str] | None = None,
        partition: int | None = None,
        ordered: bool = False,
        acks: Acks | None = None,
        priority: int = 0,
        timeout: Duration | None = None,
        uniq_id: str | None = None,
        delay: Duration | None = None,
        deliver_at: datetime | int | None = None,
        expire: Duration | datetime | None = None,
    ) -> "asyncio.Future[Receipt]":
        """Put a message into the buffer; the future is its outcome. Waits only while the buffer is full."""
        driver = self._here()
        if delay is not None or deliver_at is not None or expire is not None:
            headers = scheduled(headers, delay, deliver_at, expire, self._clock.wall_ms())
        with_it = (key, tags, headers, partition, ordered, acks, priority, uniq_id)
        if isinstance(body, bytes) and with_it == NOTHING_ELSE:
            taken = self._lanes.put_plain(topic, body)
            if taken is not None:
                return self._future(taken[0])
        until_ms = None if timeout is None else driver.now_ms() + duration_ms(timeout)
        while True:
            driver.enter()
            found = self._lanes.put(topic, body, key, tags, headers, partition, ordered, acks, priority, uniq_id)
            if not isinstance(found, Promise):
                return self._future(found[0])
            left_ms = None if until_ms is None else max(until_ms - driver.now_ms(), 0)
            if not await driver.until(found, left_ms if self._lanes.is_room(found) else None):
                raise BufferFullError(f"{self._lanes.buffered_bytes} bytes wait to be sent")
            if found.error is not None:
                found.result()

    async def flush(self, timeout: Duration | None = None) -> None:
        """Send what send_soon has buffered and wait until all of it has an outcome, which the futures tell."""
        driver = self._here()
        driver.enter()
        if not await driver.until(self._lanes.flush(), None if timeout is None else duration_ms(timeout)):
            raise SendTimeoutError(f"{self._lanes.buffered_count} messages have no outcome yet")

    def _future(self, parcel: Parcel) -> "asyncio.Future[Receipt]":
        """One more future of a parcel: all of them are settled together."""
        future: asyncio.Future[Receipt] = self._loop.create_future()
        if not parcel.futures:
            futures = parcel.futures
            parcel.done.then(lambda done: self._settle(parcel, futures, done))
        parcel.futures.append(future)
        return future

    def _settle(self, parcel: Parcel, futures: list[Any], done: Promise[None]) -> None:
        for place, future in enumerate(futures):
            if future.done():  # its owner has given up on it
                continue
            if done.error is not None:
                future.set_exception(done.error)
            else:
                future.set_result(self._producer.receipt(parcel, place, parcel.is_queued))

    # Transactions

    def transaction(self, topic: str, *, id: str = "", timeout: Duration | None = None) -> AsyncTransaction:
        """Messages that are seen together or not at all; see `Client.transaction`."""
        driver = self._here()
        timeout_ms = 0 if timeout is None else max(duration_ms(timeout), 1)
        return AsyncTransaction(driver, TransactionCore(self._producer, topic, uuid.uuid4().hex, id, timeout_ms))

    def on_transaction_check(
        self,
        topic: str,
        function: Callable[[str], Awaitable[Decision | None] | Decision | None],
        *,
        every: Duration = "5s",
    ) -> None:
        """Have a function or coroutine asked about undecided transactions; see `Client.on_transaction_check`."""
        driver = self._here()

        def ask(own_id: str) -> Promise[Decision | None]:
            promise: Promise[Decision | None] = Promise()

            async def call() -> None:
                decision: Decision | None = None
                try:
                    if is_async(function):
                        found = function(own_id)
                    else:  # it asks a database, perhaps, which must not hold up the loop
                        found = await self._loop.run_in_executor(None, function, own_id)
                    decision = check_decision(await found if isinstance(found, Awaitable) else found)
                except Exception as error:  # whatever the user's function raises means: ask again later
                    self._core.note("error", f"the check of transaction {own_id!r} failed: {error!r}")
                finally:
                    if not driver.is_closed:
                        driver.enter()
                        promise.resolve(decision)

            task = self._loop.create_task(call())
            self._checks.add(task)
            task.add_done_callback(self._checks.discard)
            return promise

        driver.enter()
        start(TransactionCheck(self._producer, topic, ask, duration_ms(every)).run())

    # Receiving

    def consumer(
        self,
        topic: str,
        *,
        group: str | None = None,
        count: int = 1000,
        auto_ack: bool = True,
        ack_timeout: Duration | None = None,
        long_poll: Duration = "5s",
        prefetch: int = 1,
        tags: Tags | None = None,
        filter: str | None = None,
        broadcast: bool | None = None,
    ) -> AsyncConsumer:
        """Receive messages of a topic: each goes to one consumer of the group; see `Client.consumer`."""
        settings = ConsumerSettings(
            count=count,
            auto_ack=auto_ack,
            ack_timeout_ms=0 if ack_timeout is None else duration_ms(ack_timeout),
            long_poll_ms=duration_ms(long_poll),
            prefetch=prefetch,
            filter=filter_text(tags, filter),
            broadcast=broadcast,
        )
        driver = self._here()
        core = ConsumerCore(self._core, self._producer.topic(topic), self._config.full_app(group), settings)
        return AsyncConsumer(driver, core, self._sources)

    def reader(
        self,
        topic: str,
        *,
        start: Start = "latest",
        stop: Start | None = None,
        store: str | Path | None = None,
        group: str | None = None,
        partitions: Iterable[int] | None = None,
    ) -> AsyncReader:
        """Read a topic from a position of one's own; see `Client.reader`."""
        driver = self._here()
        name = self._producer.topic(topic)
        file = None if store is None else PositionFile(store, name)
        only = None if partitions is None else frozenset(partitions)
        stored = file.load() if file is not None else None
        core = ReaderCore(self._core, name, self._config.full_app(group), start, stop, stored, only)
        return AsyncReader(driver, core, self._sources, file)

    async def seek(
        self,
        topic: str,
        group: str | None = None,
        *,
        to: Start,
        partition: int | None = None,
        dry_run: bool = True,
    ) -> list[Move]:
        """Move a group to another place of a topic; what it would do, unless `dry_run=False`."""
        driver, app = self._here(), self._config.full_app(group)
        driver.enter()
        steps = offsets.seek(self._core, self._producer.topic(topic), app, to, partition, dry_run)
        return await driver.settled(start(steps))

    async def lag(self, topic: str, group: str | None = None) -> list[PartitionLag]:
        """How far a group is behind, by partition."""
        driver, app = self._here(), self._config.full_app(group)
        driver.enter()
        return await driver.settled(start(offsets.lag(self._core, self._producer.topic(topic), app)))

    async def inspect(self, what: str, topic: str = "", *, count: int = 0) -> dict[str, Any]:
        """What brokers know; see `Client.inspect`."""
        driver = self._here()
        name = self._producer.topic(topic) if topic else ""
        driver.enter()
        return await driver.settled(start(inspecting.inspect(self._core, what, name, count)))

    # Handlers

    def handler(
        self,
        topic: str,
        *,
        group: str | None = None,
        concurrency: int = 1,
        ordered_by_key: bool = True,
        tags: Tags | None = None,
        filter: str | None = None,
        local_retries: int | None = None,
        park: str | Path | None = None,
    ) -> Callable[[H], H]:
        """Have the decorated coroutine called with each message: returning acks it, raising has it retried.

        A plain function is called in a thread. See `Client.handler`.
        """
        wanted = filter_text(tags, filter)

        def add(function: H) -> H:
            handler = make_handler(
                function,
                topic,
                group=group,
                concurrency=concurrency,
                ordered_by_key=ordered_by_key,
                filter=wanted,
                local_retries=self._config.local_retries if local_retries is None else local_retries,
                park=park,
                may_be_async=True,
            )
            self._handlers.append(handler)
            return function

        return add

    @property
    def handlers(self) -> tuple[str, ...]:
        """The names of the functions that `run` will feed."""
        return tuple(handler.name for handler in self._handlers)

    async def run(self, *, shutdown_timeout: Duration = SHUTDOWN) -> None:
        """Feed the handlers until `stop`, SIGTERM, Ctrl-C, or cancelled; see `Client.run`.

        A coroutine that takes longer than `shutdown_timeout` is cancelled, and its message goes back to the broker.
        """
        shutdown_ms = duration_ms(shutdown_timeout)
        stop = self._stop = asyncio.Event()
        driver = self._here()
        parkings = [self._parking(one) for one in self._handlers]
        consumers = [
            self.consumer(one.topic, group=one.group, auto_ack=False, filter=one.filter) for one in self._handlers
        ]
        self._serving = [
            AsyncServing(driver, *each, shutdown_ms) for each in zip(self._handlers, consumers, parkings, strict=True)
        ]
        stopped, serving = asyncio.create_task(stop.wait()), [asyncio.create_task(one.run()) for one in self._serving]
        with loop_signals(self._signalled):
            try:
                await asyncio.wait([stopped, *serving], return_when=asyncio.FIRST_COMPLETED)
            finally:
                stopped.cancel()
                await self._wind_up(serving)
        for task in serving:
            task.result()

    async def _wind_up(self, serving: "list[asyncio.Task[None]]") -> None:
        """Have all of them end; if this is cancelled as well, at once."""
        for one in self._serving:
            one.stop()
            one.wake()
        try:
            if serving:
                await asyncio.wait(serving)
        except asyncio.CancelledError:
            for one in self._serving:
                one.hurry()
            raise

    def _signalled(self, number: int) -> None:
        """The first signal ends the run, a second Ctrl-C the waiting."""
        if self._stop is not None and self._stop.is_set() and number == signal.SIGINT:
            for one in self._serving:
                one.hurry()
        self.stop()

    def stop(self) -> None:
        """End `run`: nothing new is begun. May be called from any thread."""
        for one in self._serving:
            one.stop()
        if self._stop is None:
            return
        if threading.get_ident() == self._thread_id:
            self._stop.set()
        else:
            with suppress(RuntimeError):  # the loop is closed: a handler that was left behind says so too late
                self._loop.call_soon_threadsafe(self._stop.set)

    def _parking(self, handler: Handler) -> Parking | None:
        if handler.park is None:
            return None
        topic, app = self._producer.topic(handler.topic), self._config.full_app(handler.group)
        return Parking(handler.park, topic, app, self._config.outbox_bytes_max)

    # The rest

    @property
    def admin(self) -> AsyncAdmin:
        """Topics, apps and subscriptions; needs `admin_url`."""
        if self._admin is None:
            self._admin = AsyncAdmin(AdminClient(self._config.admin_url, self._config.admin_token))
        return self._admin

    async def close(self, is_clean: bool = True) -> None:
        """Send what is buffered, close consumers and readers, then the connections."""
        driver = self._driver
        if driver is None or driver.is_closed:
            return
        self.stop()
        for source in list(self._sources):
            await source.close(is_clean)
        if self._lanes.buffered_count:
            driver.enter()
            await driver.until(self._lanes.flush(), self._config.timeout_ms)
        driver.enter()
        self._core.finish()
        self._lanes.abandon(ClosedError("the client was closed before there was an outcome"))
        await driver.close()
        if self._outbox_file is not None:
            self._outbox_file.close()
