"""Transactions as steps over the core: messages that are seen together or not at all.

All requests of a transaction go to one broker, the one that leads the partition of its first message. They carry an id
that the client made up and are numbered, so that one whose answer got lost is sent again without harm. Without an id
of the application's own nothing needs to be kept before the commit: then all messages travel with it, in one request.
"""

from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import Any, Literal

from lakemq.client.address import Address
from lakemq.client.core import SHARED, Core
from lakemq.client.errors import (
    BrokerUnreachableError,
    ClosedError,
    ConnectionLostError,
    LeftAloneError,
    RequestTimeoutError,
    SendTimeoutError,
)
from lakemq.client.outgoing import Message
from lakemq.client.parcel import Parcel
from lakemq.client.producer import Producer
from lakemq.client.promise import Promise, Steps, start
from lakemq.client.receipt import Receipt
from lakemq.client.router import Broker, Route
from lakemq.client.selector import hash_partition
from lakemq.client.transact_frame import read_transact_ack, transact_frame
from lakemq.errors import (
    BadParameterError,
    LakeMQError,
    NoPartitionGroupError,
    ProducerNotFoundError,
    ServiceUnavailableError,
    SlowSyncError,
    TransactionCommitError,
    TransactionNotFoundError,
    WriteTimeoutError,
    from_status,
)
from lakemq.wire.commands import Command
from lakemq.wire.messages import MessageBlock
from lakemq.wire.own import FetchTransactions, Transact, TransactionFound, TransactOutcome
from lakemq.wire.produce import FetchProduceFeedback, ProduceMessageCommit, ProduceMessageRollback
from lakemq.wire.session import AddProducer

Decision = Literal["commit", "rollback"]
Check = Callable[[str], "Promise[Decision | None]"]

XA_PREFIX = "xa:"  # of own ids that a transaction manager decides, and nobody else
_COLLECTED_BYTES_MAX = 4 << 20  # half of what a frame may have
_LISTED = 1000
# Ask the same broker again: it could not be reached, did not answer, or could not do it just then.
_PATIENT = (
    BrokerUnreachableError,
    ConnectionLostError,
    RequestTimeoutError,
    ServiceUnavailableError,
    SlowSyncError,
    WriteTimeoutError,
)


class State(Enum):
    """How far a transaction has come, as far as its client knows."""

    OPEN = "open"
    BROKEN = "broken"  # a message of it was not taken: it can only be rolled back
    PREPARED = "prepared"
    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"


def asked(core: Core, address: Address, topic: str, command: Command, size: int = 0) -> Steps[Any]:
    """An answer from one broker, asked again until there is one or the time is over. For what may be asked twice."""
    app = core.config.app
    deadline_ms = core.now_ms + core.config.timeout_ms
    failures = 0
    while True:
        try:
            session = core.ready_session(address, SHARED)
            if session is None:
                session = yield from core.connected(address, SHARED, deadline_ms)
            yield from core.introduced(session, AddProducer, topic, app, deadline_ms)
            if type(command) is not Transact:
                return (yield core.ask(session, command, deadline_ms))
            return (
                yield session.ask_counted(
                    partial(transact_frame, command),
                    size,
                    core.now_ms,
                    core.wall_ms,
                    deadline_ms,
                    core.config.timeout_ms,
                    read=read_transact_ack,
                )
            )
        except ProducerNotFoundError:
            session = core.ready_session(address, SHARED)
            if session is None or failures:
                raise
            session.introduced.pop((AddProducer, topic, app), None)
            failures += 1
        except _PATIENT as error:
            failures += 1
            pause_ms = error.left_ms + 1 if isinstance(error, LeftAloneError) else core.pause(failures)
            if core.now_ms + pause_ms >= deadline_ms:
                raise _told(error) from error
            yield core.sleep(pause_ms)


def _told(error: LakeMQError) -> LakeMQError:
    if isinstance(error, RequestTimeoutError | ConnectionLostError):
        return SendTimeoutError(f"{error}: whether it was done is not known, the same call again will tell")
    return error


def decide(core: Core, address: Address, topic: str, tx_id: str, decision: Decision) -> Steps[None]:
    """Commit or roll back; the broker's error raised if it was decided otherwise, or is not known there."""
    kind = ProduceMessageCommit if decision == "commit" else ProduceMessageRollback
    ack = yield from asked(core, address, topic, kind(topic, core.config.app, tx_id))
    if ack.code:
        raise from_status(ack.code, f"transaction {tx_id} of topic {topic}")


class TransactionCore:
    """One transaction."""

    def __init__(
        self, producer: Producer, topic: str, tx_id: str, own_id: str = "", timeout_ms: int = 0, *, waits: bool = False
    ) -> None:
        self.topic = producer.topic(topic)
        self.tx_id = tx_id
        self.own_id = own_id
        self.state = State.OPEN
        self._producer = producer
        self._core = producer.core
        self._timeout_ms = timeout_ms
        self._collects = waits or not own_id  # messages stay here until it is prepared or committed
        self._broker: Broker | None = None
        self._home: int | None = None  # the partition of messages that may go to any
        self._number = 0
        self._parcels: dict[tuple[int, bool], Parcel] = {}
        self._size = 0
        self._last: Transact | None = None  # the commit that was sent, to be sent again

    @property
    def is_open(self) -> bool:
        """Whether it still has to be decided."""
        return self.state not in (State.COMMITTED, State.ROLLED_BACK)

    # --- filling -----------------------------------------------------------------------------------------------

    def send(self, message: Message) -> Steps[Receipt]:
        """Put in a message. With an id of the application's own it is durable, and not seen, when this ends."""
        core, app = self._core, self._core.config.app
        if core.fresh_route(self.topic, app) is None:
            self._check(message)
            yield from core.route(self.topic, app, core.now_ms + core.config.timeout_ms)
        receipt = self._put(message, core.router.route(self.topic, app))
        if not self._collects or self._size >= _COLLECTED_BYTES_MAX:
            yield from self._flush("" if self._collects else self.own_id)
        return receipt

    def send_now(self, message: Message) -> Receipt | None:
        """The same where nothing must be waited for; None: take `send`."""
        if not self._collects or self._size >= _COLLECTED_BYTES_MAX // 2:
            return None
        route = self._core.fresh_route(self.topic, self._core.config.app)
        return None if route is None else self._put(message, route)

    def _check(self, message: Message) -> None:
        if self.state is not State.OPEN:
            raise TransactionNotFoundError(f"the transaction is {self.state.value} and takes no more messages")
        if message.delay is not None or message.deliver_at is not None:
            raise BadParameterError("a message of a transaction cannot wait for another time: send it without a delay")

    def _put(self, message: Message, route: Route | None) -> Receipt:
        self._check(message)
        if route is None:
            raise NoPartitionGroupError(f"nobody knows where {self.topic} is")
        partition = self._choose(route, message)
        key = partition, message.ordered
        parcel = self._parcels.get(key)
        if parcel is None:
            parcel = Parcel(self.topic, partition, "flush", self._producer.packing, is_ordered=message.ordered)
            self._parcels[key] = parcel
        size = parcel.size
        place = self._producer.put(parcel, message)
        self._size += parcel.size - size
        return Receipt(self.topic, partition, None, "flush", message.uniq_id or parcel.uniq_ids.get(place))

    def _choose(self, route: Route, message: Message) -> int:
        """The partition: the message's own if the transaction's broker leads it."""
        is_ordered = message.ordered or route.is_ordered
        partition = message.partition
        if partition is not None and partition not in route.partitions:
            raise BadParameterError(f"{self.topic} has no partition {partition}; it has {len(route.partitions)}")
        if partition is None:
            selector = self._producer.courier.selector
            if self._home is not None and not selector.is_by_key(route, message.key, message.ordered):
                return self._home
            partition = selector.select(route, message.key, message.ordered)
        leader = route.leaders.get(partition)
        if leader is None:
            self._core.router.spoil(self.topic, self._core.config.app)
            raise NoPartitionGroupError(f"partition {partition} of {self.topic} has no leader")
        if self._broker is None:
            self._broker, self._home = leader, partition
        elif leader.address != self._broker.address:
            if is_ordered or message.partition is not None:
                text = f"partition {partition} of {self.topic} is at another broker than the transaction"
                raise BadParameterError(f"{text}: send what belongs to it in a transaction of its own")
            return hash_partition(message.key or "", route.writable_at(self._broker.id))
        return partition

    def _flush(self, own_id: str, outcome: TransactOutcome = TransactOutcome.OPEN) -> Steps[None]:
        command = self._take(own_id, outcome)
        before, self.state = self.state, State.BROKEN
        yield from self._ask(command)
        self.state = before

    def _take(self, own_id: str, outcome: TransactOutcome) -> Transact:
        """What was collected, as the next request."""
        blocks = []
        for (partition, _), parcel in self._parcels.items():
            parcel.seal(self._core.wall_ms)
            parcel.address_to(partition)
            blocks.append(MessageBlock(len(parcel.heads), tuple(parcel.parts)))
        number, self._number = self._number, self._number + 1
        self._parcels, self._size = {}, 0
        app = self._core.config.app
        return Transact(self.topic, app, self.tx_id, own_id, self._timeout_ms, number, outcome, tuple(blocks))

    def _ask(self, command: Transact) -> Steps[None]:
        assert self._broker is not None, "it has messages"
        size = sum(map(len, command.parts))
        yield from asked(self._core, self._broker.address, self.topic, command, size)

    # --- deciding ----------------------------------------------------------------------------------------------

    def prepare(self, own_id: str) -> Steps[None]:
        """Make sure that it can be committed, whatever happens here: from now on it has that id."""
        if self.state is not State.OPEN:
            raise TransactionNotFoundError(f"the transaction is {self.state.value} and cannot be prepared")
        if self._broker is not None:
            yield from self._flush(own_id)
        self.state = State.PREPARED

    def commit(self) -> Steps[None]:
        """Let its messages be seen; after an error whose outcome is unknown it may be called again."""
        if self.state is State.COMMITTED:
            return
        if self.state is State.ROLLED_BACK:
            raise TransactionCommitError("the transaction was rolled back")
        if self.state is State.BROKEN:
            raise TransactionCommitError("a message of the transaction was not taken: it can only be rolled back")
        if self._last is None and self._parcels:
            self._last = self._take(self.own_id if not self._collects else "", TransactOutcome.COMMIT)
        if self._last is not None:
            yield from self._ask(self._last)
        elif self._number:
            assert self._broker is not None, "a request was sent"
            yield from decide(self._core, self._broker.address, self.topic, self.tx_id, "commit")
        self.state = State.COMMITTED

    def rollback(self) -> Steps[None]:
        """Forget its messages."""
        if self.state is State.ROLLED_BACK:
            return
        if self.state is State.COMMITTED:
            raise TransactionCommitError("the transaction was committed")
        if self._number:
            assert self._broker is not None, "a request was sent"
            try:
                yield from decide(self._core, self._broker.address, self.topic, self.tx_id, "rollback")
            except TransactionNotFoundError:
                if self.state is State.PREPARED:
                    raise  # what was prepared must be there
        self.state = State.ROLLED_BACK
        self._parcels = {}


# --- those that nobody decided --------------------------------------------------------------------------------------


class TransactionCheck:
    """Asks every broker of a topic for transactions whose time is over, and the application how they end."""

    def __init__(self, producer: Producer, topic: str, check: Check, every_ms: int) -> None:
        self._core = producer.core
        self._topic = producer.topic(topic)
        self._check = check
        self._every_ms = max(every_ms, 1)

    def run(self) -> Steps[None]:
        """Until the client is closed."""
        core = self._core
        while not core.is_closed:
            try:
                route = yield from core.route(self._topic, core.config.app, core.now_ms + core.config.timeout_ms)
                polls = [start(self._poll(broker.address)) for broker in route.brokers.values()]
                if not polls:
                    yield core.sleep(self._every_ms)
                for poll in polls:
                    yield core.settled(poll)
            except ClosedError:
                return
            except LakeMQError as error:
                core.note("warning", f"{self._topic}: cannot ask for undecided transactions: {error}")
                yield core.sleep(self._every_ms)

    def _poll(self, address: Address) -> Steps[None]:
        core, app = self._core, self._core.config.app
        try:
            deadline_ms = core.now_ms + self._every_ms + core.config.timeout_ms
            session = yield from core.connected(address, SHARED, deadline_ms)
            command = FetchProduceFeedback(app, self._topic, 0, _LISTED, self._every_ms)
            ack = yield core.ask(session, command, deadline_ms)
            if ack.code:
                raise from_status(ack.code, f"topic {self._topic}")
            for found in ack.transactions:
                if not found.transaction_id.startswith(XA_PREFIX):
                    yield from self._settle(address, found.tx_id, found.transaction_id)
        except ClosedError:
            raise
        except LakeMQError as error:
            core.spoil(error, self._topic, app)
            yield core.sleep(self._every_ms)

    def _settle(self, address: Address, tx_id: str, own_id: str) -> Steps[None]:
        decision = yield self._check(own_id)
        if decision is None:
            return
        try:
            yield from decide(self._core, address, self._topic, tx_id, decision)
        except (TransactionNotFoundError, TransactionCommitError) as error:
            self._core.note("warning", f"transaction {own_id!r} could not be ended: {error}")


def check_decision(answer: object) -> Decision | None:
    """What a user's function has said, if it may say that."""
    if answer not in ("commit", "rollback", None):
        raise BadParameterError(f'a transaction check says "commit", "rollback" or None, not {answer!r}')
    return answer


def listed(core: Core, topic: str, prefix: str) -> Steps[list[tuple[Address, TransactionFound]]]:
    """All open transactions of the app whose own ids begin like that, with the broker each is at."""
    app = core.config.app
    route = yield from core.route(topic, app, core.now_ms + core.config.timeout_ms)
    found: list[tuple[Address, TransactionFound]] = []
    for broker in route.brokers.values():
        after = prefix
        while True:
            ack = yield from asked(core, broker.address, topic, FetchTransactions(topic, app, after, _LISTED))
            mine = [one for one in ack.transactions if one.transaction_id.startswith(prefix)]
            found += [(broker.address, one) for one in mine]
            if len(ack.transactions) < _LISTED or len(mine) < len(ack.transactions):
                break
            after = mine[-1].transaction_id
    return found
