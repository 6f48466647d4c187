"""Transactions: begun and filled. `deciding.py` ends them, `undecided.py` has those that nobody decides.

A decision is a record, and the messages follow it in the same turn; so they become visible together, or not at all. A
transaction whose messages are all of one partition is committed by the very record that stores them there.
"""

import struct
from collections.abc import Callable, Sequence

from lakemq.attributes import DELAY_LEVEL, DELIVER_AT, decode_attributes
from lakemq.broker.access import Access
from lakemq.broker.answers import answer, code_for, code_of, encode
from lakemq.broker.config import BrokerConfig
from lakemq.broker.deciding import Deciding
from lakemq.broker.events import Now
from lakemq.broker.ledger import Ledger
from lakemq.broker.metrics import Metrics
from lakemq.broker.sessions import Connection, Sessions
from lakemq.broker.transaction_parts import MAY_BE_SPECIAL, Content, TransactionParts, walk
from lakemq.broker.undecided import Undecided
from lakemq.broker.waiters import Buffers, CommandReply, Reply, Waiters
from lakemq.checksum import crc32
from lakemq.cluster.metadata import Topic
from lakemq.delivery.transactions import (
    NO_ADDRESS,
    OWN_ID_BYTES_MAX,
    TX_ID_BYTES_MAX,
    UNNUMBERED,
    NewPart,
    Outcome,
    Part,
    Transaction,
    owner_of,
    pack_carried,
    pack_note,
    pack_put,
)
from lakemq.delivery.uniq import UNIQ_ID
from lakemq.errors import (
    BadParameterError,
    LakeMQError,
    NotLeaderError,
    ProducerNotFoundError,
    RateLimitedError,
    ReadError,
    SerializationError,
    TooManyTransactionsError,
    TopicNotFoundError,
    TransactionCommitError,
    TransactionExistsError,
    TransactionNotFoundError,
)
from lakemq.record import attributes_of, read_fields, scan
from lakemq.storage.disk import Buffer
from lakemq.storage.journal_record import HEADER_BYTES, RecordType
from lakemq.wire.commands import Ack
from lakemq.wire.header import MAGIC, Header
from lakemq.wire.messages import MessageBlock
from lakemq.wire.own import (
    FetchTransactions,
    FetchTransactionsAck,
    Transact,
    TransactionFound,
    TransactOutcome,
)
from lakemq.wire.produce import (
    FetchProduceFeedback,
    ProduceMessageCommit,
    ProduceMessageCommitAck,
    ProduceMessagePrepare,
    ProduceMessagePrepareAck,
    ProduceMessageRollback,
    ProduceMessageRollbackAck,
)
from lakemq.wire.produce_run import any_special

_LISTED_MAX = 1000  # in one answer
_FINISH_EVERY_MS = 1000
_TRANSACT_ACK = struct.Struct(">iIBBibqBhi")  # a response's header without an error, and a code


class _TransactReply(Reply):
    """The answer to a TRANSACT, which comes by the thousand: laid out here, in one go."""

    __slots__ = ("_header", "_now")

    def __init__(
        self,
        connection: Connection,
        header: Header,
        command: Transact,
        ledger: Ledger,
        config: BrokerConfig,
        now: Now,
    ) -> None:
        self.connection = connection
        self.end_position = ledger.group.journal.end_position
        self.buffers = [
            _TRANSACT_ACK.pack(
                _TRANSACT_ACK.size,
                MAGIC,
                header.version,
                header.qos_bits << 1 | 1,
                header.request_id,
                -header.type,
                now.wall_ms,
                0,
                0,
                0,
            )
        ]
        self.waits_for_sync = True
        self.request_bytes = sum([len(part) for part in command.parts])
        self.deadline_ms = now.monotonic_ms + config.produce_timeout_ms
        self._header = header
        self._now = now

    def refusal(self, error: LakeMQError) -> Buffers:
        """A header with the error."""
        assert self.connection is not None
        return encode(self.connection, self._header, None, self._now, error)


class Transacting:
    """Begins, fills and ends transactions."""

    def __init__(
        self,
        ledger: Ledger,
        config: BrokerConfig,
        access: Access,
        sessions: Sessions,
        waiters: Waiters,
        metrics: Metrics,
    ) -> None:
        self._ledger = ledger
        self._group = ledger.group
        self._config = config
        self._limits = config.transactions
        self._access = access
        self._sessions = sessions
        self._waiters = waiters
        self._metrics = metrics
        self._transactions = ledger.state.transactions
        self._undecided = Undecided(ledger, config, self._limits, access, metrics)
        self._parts = TransactionParts(ledger, metrics, self._limits.cache_bytes_max)
        self._deciding = Deciding(ledger, metrics, self._undecided, self._parts)
        self._finished_ms = 0

    # --- commands ----------------------------------------------------------------------------------------------

    def prepare(self, connection: Connection, header: Header, command: ProduceMessagePrepare, now: Now) -> None:
        """Begin one; answered when that is durable."""
        connection.check_app(command.app, self._config.admin_app)
        self._check_producer(connection, command.topic, command.app)
        tx_id = ""
        try:
            topic, _ = self._access.producer(connection, connection.full_topic(command.topic), command.app, now)
            tx_id = self._new_id(now)
            self._check_begin(topic, command.app, command.transaction_id)
            self._put_record(
                topic,
                tx_id,
                (),
                now,
                opens_for=command.app,
                timeout_ms=self._timeout(command.timeout_ms),
                transaction_id=command.transaction_id,
            )
        except LakeMQError as error:
            self._metrics.errors[code_of(error)] += 1
            answer(connection, header, ProduceMessagePrepareAck("", code_for(connection, error)), now)
            return
        self._park(
            connection,
            header,
            ProduceMessagePrepareAck(tx_id),
            lambda error: ProduceMessagePrepareAck("", code_of(error)),
            now,
        )

    def commit(self, connection: Connection, header: Header, command: ProduceMessageCommit, now: Now) -> None:
        """Let its messages be seen; answered when they can be."""
        self._answer_decision(connection, header, command, Outcome.COMMITTED, ProduceMessageCommitAck, now)

    def rollback(self, connection: Connection, header: Header, command: ProduceMessageRollback, now: Now) -> None:
        """Forget its messages; answered when that is durable."""
        self._answer_decision(connection, header, command, Outcome.ROLLED_BACK, ProduceMessageRollbackAck, now)

    def feedback(self, connection: Connection, header: Header, command: FetchProduceFeedback, now: Now) -> None:
        """Tell of those that nobody decided in time."""
        self._undecided.feedback(connection, header, command, now)

    def transact(self, connection: Connection, header: Header, command: Transact, now: Now) -> None:
        """Begin one under the client's own id, fill it, commit it: any of these; answered when that is durable."""
        connection.check_app(command.app, self._config.admin_app)
        self._check_producer(connection, command.topic, command.app)
        self._transact(connection, command, now)
        self._waiters.park(_TransactReply(connection, header, command, self._ledger, self._config, now))

    def fetch_transactions(self, connection: Connection, header: Header, command: FetchTransactions, now: Now) -> None:
        """List those that are open and have an id of the application's own."""
        connection.check_app(command.app, self._config.admin_app)
        topic = self._ledger.metadata.topics.get(connection.full_topic(command.topic))
        if topic is None:
            raise TopicNotFoundError(f"there is no topic {command.topic!r}")
        mine = [one for one in self._transactions.open_of(topic.number, command.app) if one.transaction_id]
        mine = sorted([one for one in mine if one.transaction_id > command.after], key=lambda one: one.transaction_id)
        count = min(command.count, _LISTED_MAX) if command.count > 0 else _LISTED_MAX
        found = [
            TransactionFound(one.tx_id, one.transaction_id, one.began_ms, one.timeout_ms, one.message_count)
            for one in mine[:count]
        ]
        self._park(connection, header, FetchTransactionsAck(tuple(found)), None, now)

    # --- what others ask for -----------------------------------------------------------------------------------

    def put(
        self,
        connection: Connection,
        topic: Topic,
        partition: int,
        tx_id: str,
        app: str,
        messages: Buffer,
        message_count: int,
        index_count: int,
        now: Now,
    ) -> int:
        """Keep scanned messages for a transaction; durable once the journal is synced to the position returned."""
        transaction = self._transactions.open.get(tx_id)
        if transaction is None or transaction.topic != topic.number or transaction.app != app:
            raise TransactionNotFoundError(f"there is no open transaction {tx_id!r}")
        if _check_messages(messages, message_count):
            messages, message_count, index_count = self._without_known(topic, app, messages, index_count, now)
            if not message_count:
                return self._ledger.end_position
        part = NewPart(partition, message_count, index_count, messages)
        self._check_more(transaction, (part,))
        return self._put_record(topic, tx_id, (part,), now, address=connection.port.address)

    def tick(self, now: Now) -> None:
        """Roll back those whose time is over for good; answer those who waited to hear of them for long enough."""
        for transaction in self._undecided.due(now):
            try:
                self._deciding.roll_back(transaction, now)
            except LakeMQError as error:  # the disk is full, or slow: it is due again in a moment
                self._metrics.errors[code_of(error)] += 1
        self._undecided.end_polls(now)
        if now.monotonic_ms - self._finished_ms >= _FINISH_EVERY_MS:
            self._finish_rest(now)

    def finish(self, now: Now) -> None:
        """After a start, before anybody is served: store what was committed and is not in its partitions yet."""
        for transaction in self._transactions.open.values():
            self._undecided.watch(transaction, now)
        self._finish_rest(now)

    def _finish_rest(self, now: Now) -> None:
        self._finished_ms = now.monotonic_ms
        self._deciding.finish_rest(now)

    def carry(self, before_position: int, now: Now) -> None:
        """Write the parts that are still needed again, so that what is before that position may go."""
        for tx_id, number, part in self._transactions.carry(before_position):
            try:
                messages = self._parts.messages_of(part)
            except ReadError:  # damaged: it holds its segment until its transaction is over
                continue
            payload, offset = pack_carried(tx_id, number, part, messages)
            start, end = self._ledger.append(RecordType.TRANSACTION, payload, now.wall_ms)
            self._ledger.undo_with(end, self._transactions.move(tx_id, number, start, offset))
            self._parts.forget(part)

    # --- beginning and filling ---------------------------------------------------------------------------------

    def _check_producer(self, connection: Connection, topic: str, app: str) -> None:
        if (connection.full_topic(topic), app) not in connection.producers:
            raise ProducerNotFoundError(f"the connection did not send ADD_PRODUCER for topic {topic!r}")

    def _new_id(self, now: Now) -> str:
        """Unique for ever: no two records begin at one position of one journal, and no two journals at one time."""
        return f"{self._config.group_id:x}-{self._ledger.term:x}-{self._ledger.end_position:x}-{now.wall_ms:x}"

    def _timeout(self, asked_ms: int) -> int:
        return min(asked_ms, self._limits.purge_ms) if asked_ms > 0 else self._limits.timeout_ms

    def _check_begin(self, topic: Topic, app: str, transaction_id: str) -> None:
        limits, transactions = self._limits, self._transactions
        self._check_own_id(topic.number, app, transaction_id, None)
        if transactions.count(topic.number, app) >= limits.open_max or len(transactions.open) >= limits.open_total_max:
            self._metrics.capped["transactions"] += 1
            raise TooManyTransactionsError(f"app {app!r} has too many open transactions on topic {topic.name!r}")

    def _check_own_id(self, topic: int, app: str, transaction_id: str, tx_id: str | None) -> None:
        if len(transaction_id.encode()) > OWN_ID_BYTES_MAX:
            raise BadParameterError(f"a transactionId has {OWN_ID_BYTES_MAX} bytes at the most")
        if transaction_id and self._transactions.find_own(topic, app, transaction_id) not in (None, tx_id):
            raise TransactionExistsError(f"transaction {transaction_id!r} is open already")

    def _check_more(self, transaction: Transaction | None, parts: Sequence[NewPart]) -> None:
        """Whether a transaction may have these, too."""
        limits = self._limits
        count, size = (len(transaction.parts), transaction.size) if transaction is not None else (0, 0)
        if transaction is not None and self._undecided.is_overdue(transaction.tx_id):
            raise TransactionNotFoundError(f"the time of transaction {transaction.tx_id!r} is over: it takes no more")
        if count + len(parts) > limits.parts_max:
            raise BadParameterError(f"a transaction takes messages {limits.parts_max} times at the most")
        if size + sum([len(part.messages) for part in parts]) > limits.bytes_max:
            raise BadParameterError(f"the messages of a transaction have {limits.bytes_max} bytes at the most")
        if self._transactions.part_count + len(parts) > limits.parts_total_max:
            self._metrics.capped["transactions"] += 1
            raise TooManyTransactionsError("the broker holds as many messages of open transactions as it may")

    def _put_record(
        self,
        topic: Topic,
        tx_id: str,
        new_parts: Sequence[NewPart],
        now: Now,
        *,
        opens_for: str | None = None,
        timeout_ms: int = 0,
        transaction_id: str = "",
        number: int = UNNUMBERED,
        address: bytes = NO_ADDRESS,
    ) -> int:
        """Begin a transaction, add to it, or both, by one record; where that ends."""
        payload, offsets = pack_put(
            tx_id,
            new_parts,
            begins=opens_for is not None,
            app=opens_for or "",
            timeout_ms=timeout_ms,
            transaction_id=transaction_id,
            number=number,
            address=address,
        )
        start, end = self._ledger.append(RecordType.TRANSACTION, payload, now.wall_ms, topic=topic.number)
        if opens_for is not None:
            begun = Transaction(tx_id, topic.number, opens_for, now.wall_ms, timeout_ms)
            self._ledger.undo_with(end, self._transactions.begin(begun))
            self._undecided.watch(begun, now)
            self._ledger.undo_with(end, lambda: self._undecided.forget(begun))
        parts = []
        view = memoryview(payload)
        for (partition, message_count, index_count, messages), offset in zip(new_parts, offsets, strict=True):
            part = Part(partition, message_count, index_count, len(messages), start, offset, address)
            parts.append(part)
            self._parts.keep(part, view[offset : offset + part.size], end)
        if parts or transaction_id or number != UNNUMBERED:
            undo = self._transactions.put(tx_id, parts, transaction_id, is_numbered=number != UNNUMBERED)
            self._ledger.undo_with(end, undo)
        return end

    # --- TRANSACT ----------------------------------------------------------------------------------------------

    def _transact(self, connection: Connection, command: Transact, now: Now) -> None:
        tx_id, app, commits = command.tx_id, command.app, command.outcome == TransactOutcome.COMMIT
        if not 0 < len(tx_id.encode()) <= TX_ID_BYTES_MAX:
            raise BadParameterError(f"a txId has from 1 to {TX_ID_BYTES_MAX} bytes")
        if not commits and command.outcome != TransactOutcome.OPEN:
            raise BadParameterError(f"outcome {command.outcome} is not 0 or 1")
        topic, _ = self._access.producer(connection, connection.full_topic(command.topic), app, now)
        transaction = self._transactions.open.get(tx_id)
        if transaction is not None:
            if transaction.topic != topic.number or transaction.app != app:
                raise TransactionExistsError(f"transaction {tx_id!r} is of another app or topic")
            if command.number >= transaction.requests:  # else it is the answer that got lost
                self._go_on(connection, topic, transaction, command, now)
            if commits:
                self._deciding.commit(transaction, now)
        elif self._transactions.decided(tx_id) is not None:
            if not commits:
                raise TransactionNotFoundError(f"transaction {tx_id!r} has ended")
            self._deciding.check_decided(topic, app, tx_id, Outcome.COMMITTED)
            self._deciding.finish_one(tx_id, now)
        elif command.number != 0:
            raise TransactionNotFoundError(f"there is no transaction {tx_id!r}")
        else:
            self._begin(connection, topic, command, commits, now)

    def _begin(self, connection: Connection, topic: Topic, command: Transact, commits: bool, now: Now) -> None:
        tx_id, app = command.tx_id, command.app
        parts = self._new_parts(connection, topic, app, command.parts, now)
        self._check_more(None, parts)
        self._check_own_id(topic.number, app, command.transaction_id, None)
        address = connection.port.address
        if commits and len(parts) == 1:
            owner = owner_of(topic.number, app)
            note = pack_note(tx_id, (), owner, now.wall_ms, app=app, commits=True)
            content = Content(*parts[0], address, [])
            end = self._parts.store(topic, app, content, note, now)
            self._ledger.undo_with(end, self._transactions.commit_whole(tx_id, owner, now.wall_ms))
            return
        if commits:
            self._commit_new(topic, command, parts, address, now)
            return
        self._check_begin(topic, app, command.transaction_id)
        self._put_record(
            topic,
            tx_id,
            parts,
            now,
            opens_for=app,
            timeout_ms=self._timeout(command.timeout_ms),
            transaction_id=command.transaction_id,
            number=0,
            address=address,
        )

    def _commit_new(self, topic: Topic, command: Transact, parts: list[NewPart], address: bytes, now: Now) -> None:
        """One record for all of it, then its messages to their partitions, as they are in memory."""
        tx_id, app, timeout_ms = command.tx_id, command.app, self._timeout(command.timeout_ms)
        payload, offsets = pack_put(
            tx_id, parts, begins=True, commits=True, app=app, timeout_ms=timeout_ms, number=0, address=address
        )
        self._deciding.make_room(2 * len(payload) + (1 + len(parts)) * (2 * HEADER_BYTES + TX_ID_BYTES_MAX), now)
        start, end = self._ledger.append(RecordType.TRANSACTION, payload, now.wall_ms, topic=topic.number)
        rows = [
            Part(one[0], one[1], one[2], len(one[3]), start, offset, address)
            for one, offset in zip(parts, offsets, strict=True)
        ]
        transaction = Transaction(tx_id, topic.number, app, now.wall_ms, timeout_ms, parts=rows)
        self._ledger.undo_with(end, self._transactions.commit_new(transaction, now.wall_ms))
        contents = [Content(*part, address, [number]) for number, part in enumerate(parts)]
        self._deciding.deliver_all(topic, transaction, contents, now)

    def _go_on(
        self, connection: Connection, topic: Topic, transaction: Transaction, command: Transact, now: Now
    ) -> None:
        if command.number > transaction.requests:
            text = f"request {command.number} of transaction {command.tx_id!r}, of which {transaction.requests} came"
            raise BadParameterError(text)
        parts = self._new_parts(connection, topic, command.app, command.parts, now)
        self._check_more(transaction, parts)
        self._check_own_id(topic.number, command.app, command.transaction_id, command.tx_id)
        self._put_record(
            topic,
            command.tx_id,
            parts,
            now,
            transaction_id=command.transaction_id,
            number=command.number,
            address=connection.port.address,
        )

    def _new_parts(
        self, connection: Connection, topic: Topic, app: str, blocks: Sequence[MessageBlock], now: Now
    ) -> list[NewPart]:
        """The messages of a request, checked, without those that were stored before."""
        parts = []
        for block in blocks:
            messages = block.joined()
            found = scan(messages, 0, len(messages), block.count)
            if found.end != len(messages):
                raise SerializationError("there are bytes between the messages and the end of their list")
            self._access.check_takes(topic, found.partition)
            if topic.type == "ordered":
                _check_keys(topic, messages, found.partition)
            count, index_count = block.count, found.index_count
            if _check_messages(messages, count):
                messages, count, index_count = self._without_known(topic, app, messages, index_count, now)
            if count:
                parts.append(NewPart(found.partition, count, index_count, messages))
        rates = self._sessions.rates_of(app, self._ledger.metadata, now.monotonic_ms)
        if rates is not None and not (
            rates.produce.take(sum([part.index_count for part in parts]), now.monotonic_ms)
            and rates.produce_bytes.take(sum([len(part.messages) for part in parts]), now.monotonic_ms)
        ):
            self._metrics.capped["app_rate"] += 1
            raise RateLimitedError("the app has used up its rate for sending")
        return parts

    def _without_known(
        self, topic: Topic, app: str, messages: Buffer, index_count: int, now: Now
    ) -> tuple[Buffer, int, int]:
        """Messages, their number and that of their indexes, without those whose ids are known."""
        kept: list[Buffer] = []
        view = memoryview(messages)
        for key, indexes, start, end in walk(topic.number, app, messages):
            if key is not None and self._ledger.state.uniq_ids.find(key, now.wall_ms) is not None:
                index_count -= indexes
            else:
                kept.append(view[start:end])
        return b"".join(kept), len(kept), index_count

    # --- deciding ----------------------------------------------------------------------------------------------

    def _answer_decision(
        self,
        connection: Connection,
        header: Header,
        command: ProduceMessageCommit | ProduceMessageRollback,
        outcome: Outcome,
        ack: Callable[[int], Ack],
        now: Now,
    ) -> None:
        connection.check_app(command.app, self._config.admin_app)
        try:
            self._deciding.end(connection.full_topic(command.topic), command.app, command.tx_id, outcome, now)
        except LakeMQError as error:
            self._metrics.errors[code_of(error)] += 1
            told = ack(code_of(error))
            if isinstance(error, TransactionCommitError):  # the outcome that it tells of must last
                self._park(connection, header, told, lambda error: ack(code_of(error)), now)
            else:
                answer(connection, header, told, now)
            return
        self._park(connection, header, ack(0), lambda error: ack(code_of(error)), now)

    # --- answers -----------------------------------------------------------------------------------------------

    def _park(
        self,
        connection: Connection,
        header: Header,
        ack: Ack,
        refused: Callable[[LakeMQError], Ack] | None,
        now: Now,
        request_bytes: int = 0,
    ) -> None:
        """Answer once all that is in the journal by now is durable."""

        def refusal(error: LakeMQError) -> Buffers:
            if refused is None:
                return encode(connection, header, None, now, error)
            return encode(connection, header, refused(error), now, None)

        self._waiters.park(
            CommandReply(
                connection,
                self._ledger.end_position,
                encode(connection, header, ack, now, None),
                refusal,
                waits_for_sync=True,
                request_bytes=request_bytes,
                deadline_ms=now.monotonic_ms + self._config.produce_timeout_ms,
            )
        )


def _check_messages(messages: Buffer, count: int) -> bool:
    """Whether any has an id; BadParameterError if one is to wait, which it cannot inside a transaction."""
    if MAY_BE_SPECIAL.search(messages) is None or not any_special(messages, 0, count, 0):
        return False
    has_id = False
    at = 0
    for _ in range(count):
        try:
            attributes = decode_attributes(attributes_of(messages, at))
        except SerializationError:  # a broken escape is for those who read it
            attributes = {}
        for name in (DELIVER_AT, DELAY_LEVEL):
            if name in attributes:
                raise BadParameterError(f"{name}: a message of a transaction cannot wait for another time")
        has_id = has_id or bool(attributes.get(UNIQ_ID))
        _, at = read_fields(messages, at)
    return has_id


def _check_keys(topic: Topic, messages: Buffer, partition: int) -> None:
    """A client that has not heard that the topic grew would spread one key over two partitions."""
    at = 0
    while at < len(messages):
        fields, at = read_fields(messages, at)
        if fields.business_id and crc32(fields.business_id) % topic.writable_count != partition:
            raise NotLeaderError(f"topic {topic.name!r} has {topic.writable_count} partitions: ask where it is")
