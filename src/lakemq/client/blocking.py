"""The blocking client: `lakemq.connect()`. Plain sockets, no thread unless send_soon or a consumer needs its watcher.

Usable from several threads; a consumer or reader belongs to one. After a fork the child drops the sockets and the
buffer it inherited and connects anew; what was under way stays with the parent.
"""

import os
import random
import uuid
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar, Unpack

from lakemq.client import inspecting, offsets
from lakemq.client.address import Address, parse_url
from lakemq.client.admin import AdminClient
from lakemq.client.backoff import Random
from lakemq.client.blocking_transaction import Transaction
from lakemq.client.blocks import fetch_block
from lakemq.client.channel import Connector, embedded
from lakemq.client.config import Acks, ClientConfig, Compressions, Selector, SelectorName, Settings, make_config
from lakemq.client.consumer import ConsumerCore, ConsumerSettings, filter_text
from lakemq.client.consuming import Consumer, Reader
from lakemq.client.core import Core
from lakemq.client.duration import Duration, duration_ms
from lakemq.client.errors import BrokerUnreachableError, BufferFullError, ClosedError, ForkedError, SendTimeoutError
from lakemq.client.future import SendFuture
from lakemq.client.handlers import SHUTDOWN, Function, Handler, check_function, make_handler
from lakemq.client.instance import instance_name
from lakemq.client.lanes import NOTHING_ELSE, Lanes
from lakemq.client.offsets import Move, PartitionLag, Start, time_of
from lakemq.client.outbox import Outbox
from lakemq.client.outbox_file import OutboxFile
from lakemq.client.outgoing import Body, Message, Tags, scheduled
from lakemq.client.parcel import Parcel
from lakemq.client.parking import Parking
from lakemq.client.position_file import PositionFile
from lakemq.client.producer import Producer
from lakemq.client.promise import Promise, start
from lakemq.client.pump import Pump
from lakemq.client.reader import ReaderCore
from lakemq.client.receipt import Receipt, SendReport
from lakemq.client.serving import serve
from lakemq.client.sockets import SocketConnector
from lakemq.client.stopping import StopSign
from lakemq.client.system_clock import SystemClock
from lakemq.client.transaction import Decision, TransactionCheck, TransactionCore, check_decision
from lakemq.client.xa import Session
from lakemq.clock import Clock
from lakemq.wire.buffer import Buffer
from lakemq.wire.own import PartitionRange

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
    connector: Connector | None = None,
    clock: Clock | None = None,
    chance: Random | None = None,
    **settings: Unpack[Settings],
) -> "Client":
    """Connect to the brokers of a URL, `lakemq://host:port[,host:port…]`; to one inside this process without a URL.

    URL, app and token are also taken from LAKEMQ_URL, LAKEMQ_APP and LAKEMQ_TOKEN. `acks` says when a send is
    confirmed: "flush" (on disk), "write", "receive" or "none". `timeout` bounds each call as a whole. `outbox` is a
    directory that keeps messages until the broker has them. `wait` is how long to wait here for a broker to be there.
    Finer settings are the fields of ClientConfig; `connector`, `clock` and `chance` (numbers from 0 up to 1) replace
    the outside, for tests.
    """
    server = parse_url(url or os.environ.get("LAKEMQ_URL"))
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
    if connector is None:
        if server.is_embedded:
            connector = embedded("connector", server.directory)
        else:
            connector = SocketConnector(config.frame_bytes_max, config.spin_us)
    client = Client(config, server.addresses, connector, clock or SystemClock(), outbox, chance)
    try:
        client.reach(wait)
    except BaseException:
        client.close(is_clean=False)
        raise
    return client


class Client:
    """A connection to LakeMQ. Thread-safe for sending; use it as a context manager, or call `close`."""

    def __init__(
        self,
        config: ClientConfig,
        seeds: tuple[Address, ...],
        connector: Connector,
        clock: Clock,
        outbox: str | Path | None = None,
        chance: Random | None = None,
    ) -> None:
        self._chance = chance or random.random
        self._config = config
        self._seeds = seeds
        self._clock = clock
        self._outbox_directory = outbox
        self._has_checks = False
        self._handlers: list[Handler] = []
        self._stop = StopSign()
        self._admin: AdminClient | None = None
        self._begin(connector)

    def _begin(self, connector: Connector) -> None:
        config, directory = self._config, self._outbox_directory
        core = Core(config, self._seeds, self._chance, instance_name())
        core.advance(self._clock.monotonic_ms(), self._clock.wall_ms())
        file = None if directory is None else OutboxFile(directory, config.outbox_bytes_max)
        self._core = core
        self._outbox = None if file is None else Outbox(core, file.log, uuid.uuid4().hex)
        self._outbox_file = file
        self._producer = Producer(core, self._outbox)
        self._lanes = Lanes(self._producer)
        self._pump = Pump(core, connector, self._clock, file)
        self._pid = os.getpid()

    def _here(self) -> Pump:
        """The pump of this process; a child that was forked makes its own."""
        if self._pid != os.getpid():
            self._begin(self._pump.connector.forked())
        pump = self._pump
        if pump.is_closed:
            raise ClosedError
        pump.look()
        return pump

    def reach(self, wait: Duration = 0) -> None:
        """Make sure that a broker is there, within that time, and knows us. With an outbox it need not be there yet."""
        pump, wait_ms = self._here(), duration_ms(wait)
        try:
            pump.call(lambda: start(self._core.reach(wait_ms)))
        except BrokerUnreachableError as error:
            if self._outbox is None or not error.retriable:
                raise
        if self._outbox is not None:
            pump.enter()
            try:
                self._outbox.drain()
                pump.watch(self._has_background)  # what is queued leaves by itself
            finally:
                pump.leave()

    # Sending

    def send(
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
        """Send one message and wait until the broker has confirmed it; str is sent as UTF-8, dict and list as JSON.

        Messages with the same key go to the same partition; `ordered` keeps them in order through every retry. A
        message with a `uniq_id` is stored once, however often it is sent. With `delay`, or `deliver_at` (a datetime,
        or ms since 1970), it is delivered then; past `expire` (a span from now, or a datetime) it is not any more.
        """
        pump = self._here()
        headers = scheduled(headers, delay, deliver_at, expire, self._clock.wall_ms())
        pump.enter()
        try:
            promise = self._producer.send(
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
        finally:
            pump.leave()
        pump.wait(promise)
        return promise.result()

    def send_many(self, topic: str, messages: Iterable[Message | Body], *, acks: Acks | None = None) -> SendReport:
        """Send many messages, few requests: `.ok` and `.failed` of the report have one outcome per message."""
        pump = self._here()
        return pump.call(lambda: self._producer.send_many(topic, messages, acks))

    def send_soon(
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
    ) -> SendFuture:
        """Put a message into the buffer and go on; it leaves with others, within a few milliseconds.

        Waits while the buffer is full, for `timeout` at most; with 0 a full buffer is a BufferFullError at once.
        """
        if delay is not None or deliver_at is not None or expire is not None:
            headers = scheduled(headers, delay, deliver_at, expire, self._clock.wall_ms())
        with_it = (key, tags, headers, partition, ordered, acks, priority, uniq_id)
        if (
            isinstance(body, bytes)
            and with_it == NOTHING_ELSE
            and self._pid == os.getpid()
            and not self._pump.is_closed
        ):
            with self._pump.lock:
                taken = self._lanes.put_plain(topic, body)
            if taken is not None:
                return SendFuture(self, taken[0], taken[1], self._pid)
        pump = self._here()
        until_ms = None if timeout is None else pump.now_ms() + duration_ms(timeout)
        while True:
            pump.enter()
            try:
                found = self._lanes.put(topic, body, key, tags, headers, partition, ordered, acks, priority, uniq_id)
                if self._lanes.buffered_count == 1:
                    pump.watch(self._has_background)
            finally:
                pump.leave()
            if not isinstance(found, Promise):
                return SendFuture(self, found[0], found[1], self._pid)
            left_ms = None if until_ms is None else max(until_ms - pump.now_ms(), 0)
            if not pump.wait(found, left_ms if self._lanes.is_room(found) else None):
                raise BufferFullError(f"{self._lanes.buffered_bytes} bytes wait to be sent")
            if found.error is not None:
                found.result()

    def flush(self, timeout: Duration | None = None) -> None:
        """Send what send_soon has buffered and wait until all of it has an outcome, which the futures tell."""
        pump = self._here()
        pump.enter()
        try:
            flushed = self._lanes.flush()
        finally:
            pump.leave()
        if not pump.wait(flushed, None if timeout is None else duration_ms(timeout)):
            raise SendTimeoutError(f"{self._lanes.buffered_count} messages have no outcome yet")

    # Transactions

    def transaction(self, topic: str, *, id: str = "", timeout: Duration | None = None) -> Transaction:
        """Messages to a topic that are seen together or not at all: committed when the `with` block ends well.

        With an `id` of your own each message is durable, and not seen, when its send returns; what you leave undecided
        is asked about by `on_transaction_check` once `timeout` is over (the broker's own if you name none).
        """
        pump = self._here()
        timeout_ms = 0 if timeout is None else max(duration_ms(timeout), 1)
        return Transaction(pump, TransactionCore(self._producer, topic, uuid.uuid4().hex, id, timeout_ms))

    def on_transaction_check(
        self, topic: str, function: Callable[[str], Decision | None], *, every: Duration = "5s"
    ) -> None:
        """Have a function called with the id of each transaction whose time is over and which nobody has decided.

        It says "commit" or "rollback", or None to be asked again later. It is called in the background, for all
        transactions of the app on that topic, whoever began them.
        """
        check_function(function, may_be_async=False)
        pump = self._here()

        def ask(own_id: str) -> Promise[Decision | None]:
            promise: Promise[Decision | None] = Promise()

            def call() -> None:
                decision: Decision | None = None
                try:
                    decision = check_decision(function(own_id))
                finally:  # what it raises is logged, and it is asked again later
                    pump.enter()
                    try:
                        promise.resolve(decision)
                    finally:
                        pump.leave()

            pump.later(call)
            return promise

        pump.enter()
        try:
            self._has_checks = True
            start(TransactionCheck(self._producer, topic, ask, duration_ms(every)).run())
            pump.watch(self._has_background)
        finally:
            pump.leave()

    def session(self, topic: str, *, timeout: Duration | None = None) -> Session:
        """A session for two-phase commit after PEP 249: `tpc_begin`, `tpc_prepare` and so on."""
        return Session(self._here(), self._producer, topic, 0 if timeout is None else duration_ms(timeout))

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
    ) -> Consumer:
        """Receive messages of a topic: each goes to one consumer of the group.

        `count` is how many are fetched at most at a time; `prefetch` how many fetched lots lie ready beside the one
        at hand; `ack_timeout` for how long messages are lent (extended while they are worked on). `tags` ("paid |
        refund") or `filter` ("total > 100 AND region = 'eu'") say which messages the whole group gets from now on.
        With `broadcast` every consumer gets every message that is sent from now on, with nothing to ack; on a topic of
        type broadcast that is what it does unless told False.
        """
        pump = self._here()
        settings = ConsumerSettings(
            count=count,
            auto_ack=auto_ack,
            ack_timeout_ms=0 if ack_timeout is None else duration_ms(ack_timeout),
            long_poll_ms=duration_ms(long_poll),
            prefetch=prefetch,
            filter=filter_text(tags, filter),
            broadcast=broadcast,
        )
        with pump.lock:
            core = ConsumerCore(self._core, self._producer.topic(topic), self._config.full_app(group), settings)
            if self._config.max_processing_ms:
                pump.watch(self._has_background)
        return Consumer(pump, core)

    def reader(
        self,
        topic: str,
        *,
        start: Start = "latest",
        stop: Start | None = None,
        store: str | Path | None = None,
        group: str | None = None,
        partitions: Iterable[int] | None = None,
    ) -> Reader:
        """Read a topic from "earliest", "latest", an offset, a datetime or "-10m", up to `stop` ("now", or the same).

        Every reader gets every message. With `store`, a file, it goes on where it was when it was last closed.
        """
        pump = self._here()
        name = self._producer.topic(topic)
        file = None if store is None else PositionFile(store, name)
        only = None if partitions is None else frozenset(partitions)
        stored = file.load() if file is not None else None
        core = ReaderCore(self._core, name, self._config.full_app(group), start, stop, stored, only)
        return Reader(pump, core, file)

    def seek(
        self,
        topic: str,
        group: str | None = None,
        *,
        to: Start,
        partition: int | None = None,
        dry_run: bool = True,
    ) -> list[Move]:
        """Move a group to another place of a topic; what it would do, unless `dry_run=False`."""
        name, app = self._producer.topic(topic), self._config.full_app(group)
        return self._here().call(lambda: start(offsets.seek(self._core, name, app, to, partition, dry_run)))

    def lag(self, topic: str, group: str | None = None) -> list[PartitionLag]:
        """How far a group is behind, by partition."""
        name, app = self._producer.topic(topic), self._config.full_app(group)
        return self._here().call(lambda: start(offsets.lag(self._core, name, app)))

    def ranges(
        self, topic: str, group: str | None = None, *, at: datetime | str | None = None
    ) -> dict[int, PartitionRange]:
        """How far each partition reaches, where the group stands in it, and with `at` which offset a moment has."""
        name, app = self._producer.topic(topic), self._config.full_app(group)
        pump = self._here()
        time_ms = None if at is None else time_of(at, self._clock.wall_ms())
        deadline_ms = pump.now_ms() + self._config.timeout_ms
        return pump.call(lambda: start(offsets.ranges(self._core, name, app, time_ms, deadline_ms)))

    def commit(self, topic: str, targets: Mapping[int, int], group: str | None = None) -> None:
        """Say that the group is done with all before these offsets, by partition."""
        name, app = self._producer.topic(topic), self._config.full_app(group)
        pump = self._here()
        deadline_ms = pump.now_ms() + self._config.timeout_ms
        pump.call(lambda: start(offsets.commit(self._core, name, app, targets, deadline_ms)))

    def begin_block(
        self, topic: str, partition: int, offset: int, count: int, group: str | None = None
    ) -> Promise[Buffer]:
        """Ask for stored messages as bytes, and go on; `await_block` gives them."""
        name, app = self._producer.topic(topic), self._config.full_app(group)
        pump = self._here()
        pump.enter()
        try:
            return start(fetch_block(self._core, name, app, partition, offset, count))
        finally:
            pump.leave()

    def await_block(self, block: Promise[Buffer]) -> Buffer:
        """Bytes in the layout of `lakemq.record`; none at the end of a partition."""
        self._pump.wait(block)
        return block.result()

    def inspect(self, what: str, topic: str = "", *, count: int = 0) -> dict[str, Any]:
        """What brokers know: "cluster", its id and topics, or "deliveries", what has become of a topic's messages.

        `docs/wire.md`, INSPECT, has the fields. `count` is how many rows are asked for at a time; the answer has all.
        """
        name = self._producer.topic(topic) if topic else ""
        return self._here().call(lambda: start(inspecting.inspect(self._core, what, name, count)))

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
        """Have the decorated function called with each message: returning acks it, raising has it retried.

        One message at a time, in order. With more `concurrency` messages of different keys are handled at the same
        time, those of one key (without a key: of one partition) one after the other; `ordered_by_key=False` gives that
        up. Raising has it called again on the spot first, `local_retries` times. It may return `Settle.DROP`, `RETRY`,
        `DEAD` or `later("1h")` instead. `park` is a directory for what the broker cannot take back for a retry. A
        parameter whose type is a dataclass, a pydantic model or a msgspec Struct gets the body as that.
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
                may_be_async=False,
            )
            self._handlers.append(handler)
            return function

        return add

    @property
    def handlers(self) -> tuple[str, ...]:
        """The names of the functions that `run` will feed."""
        return tuple(handler.name for handler in self._handlers)

    def run(self, *, shutdown_timeout: Duration = SHUTDOWN) -> None:
        """Feed the handlers until `stop`, SIGTERM or Ctrl-C; then finish what is under way, for `shutdown_timeout`.

        What was not begun, or takes longer, goes back to the broker at once; a second Ctrl-C does not wait. The signals
        are handled in the main thread only, and only where the program has no handlers of its own for them. Raises what
        ended a handler's consumer, such as a topic that is not there.
        """
        self._stop = StopSign()
        serve(self, self._handlers, self._stop, duration_ms(shutdown_timeout))

    def stop(self) -> None:
        """End `run`: nothing new is begun. May be called from any thread, a handler, or a signal handler."""
        self._stop.set()

    @property
    def _open_bytes_max(self) -> int:
        return self._config.open_bytes_max

    def _parking(self, handler: Handler) -> Parking | None:
        if handler.park is None:
            return None
        topic, app = self._producer.topic(handler.topic), self._config.full_app(handler.group)
        return Parking(handler.park, topic, app, self._config.outbox_bytes_max)

    # The rest

    @property
    def admin(self) -> AdminClient:
        """Topics, apps and subscriptions; needs `admin_url`."""
        if self._admin is None:
            self._admin = AdminClient(self._config.admin_url, self._config.admin_token)
        return self._admin

    def close(self, is_clean: bool = True) -> None:
        """Send what is buffered, close consumers and readers, then the connections."""
        pump = self._pump
        if pump.is_closed or self._pid != os.getpid():
            return
        self._stop.set()
        for source in list(pump.sources):
            source.close(is_clean)
        if self._lanes.buffered_count:
            pump.enter()
            flushed = self._lanes.flush()
            pump.leave()
            pump.wait(flushed, self._config.timeout_ms)
        pump.enter()
        try:
            self._core.finish()
            self._lanes.abandon(ClosedError("the client was closed before there was an outcome"))
        finally:
            pump.leave()
        pump.close()
        if self._outbox_file is not None:
            self._outbox_file.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close(is_clean=error is None)

    def _has_background(self) -> bool:
        is_draining = self._outbox is not None and self._outbox.is_draining
        return self._has_checks or self._lanes.buffered_count > 0 or is_draining

    # For SendFuture

    def await_parcel(self, parcel: Parcel, pid: int, timeout_ms: int | None) -> bool:
        """Drive things until the parcel has an outcome."""
        if pid != os.getpid():
            raise ForkedError
        return self._pump.wait(parcel.done, timeout_ms)

    def receipt_of(self, parcel: Parcel, place: int) -> Receipt:
        """Of a parcel that is done."""
        return self._lanes.receipt(parcel, place)

    def call_after(self, parcel: Parcel, call: Callable[[], object]) -> None:
        """Make that call once the parcel has an outcome."""
        pump = self._pump
        with pump.lock:
            if not parcel.done.is_done:
                parcel.done.then(lambda _: pump.later(call))
                return
        call()
