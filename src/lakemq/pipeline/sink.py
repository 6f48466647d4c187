"""Rows of Spark sent as messages: at least once, or with `exactlyOnce` once.

Once: each task prepares its messages as transactions that nobody sees, and tells the driver their names. When all
tasks are done the driver decides for those (`sink_log.py`) and commits them. A task that is run again makes new ones;
what was prepared and is not part of the decision is rolled back. The broker rolls back by itself what has been prepared
for a day: a query that was stopped in just that moment, and for that long, ends with an error instead of a guess.
"""

import hashlib
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from lakemq.client.blocking import Client
from lakemq.client.config import Acks
from lakemq.client.outgoing import Message
from lakemq.client.xa import Session, Xid
from lakemq.errors import TransactionNotFoundError
from lakemq.pipeline.collecting import spare_imports
from lakemq.pipeline.door import door
from lakemq.pipeline.errors import OptionError, PipelineError
from lakemq.pipeline.options import SinkOptions
from lakemq.pipeline.rows import check_rows, messages_of
from lakemq.pipeline.sink_log import NO_CHECKPOINT, Batch, Decision, SinkLog
from lakemq.pipeline.spark_socket import SentToWorkers

_FORMAT = 0x5350  # xids with this number are the sink's
_SEND_MANY = 2000
_DIGEST_CHARS = 20  # of names and checkpoints in xids, whose parts have at most 64 bytes
_KNOWN_MS = 12 * 3_600_000  # so long nothing that is prepared can have been rolled back by the broker
_TRANSACTION_MESSAGES = 20_000
_TRANSACTION_BYTES = 16 << 20


@dataclass
class Sent(WriterCommitMessage):
    """What one task did: how many messages, and the names of its transactions with their topics."""

    count: int
    transactions: list[list[str]]  # topic, gtrid, bqual
    batch: int = 0  # of the stream that the task ran for, if it did
    checkpoint: str = NO_CHECKPOINT  # of that stream: the id that Spark keeps in it


class _Sink(SentToWorkers):
    """What batch and stream have in common."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        check_rows(schema, options.topic)
        self.options = options
        self.run_id = uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Sent:
        spare_imports()
        rows = (row for batch in iterator for row in messages_of(batch, self.options.topic))
        client = door(self.options.server).client
        if not self.options.is_exactly_once:
            return Sent(_send(client, rows, self.options.acks), [])
        context = TaskContext.get()
        assert context is not None, "Spark runs this inside a task"
        checkpoint = context.getLocalProperty("sql.streaming.queryId") or NO_CHECKPOINT
        batch = context.getLocalProperty("streaming.sql.batchId") or "0"
        task = f"{context.partitionId()}.{context.taskAttemptId()}"
        sent = prepare_messages(client, rows, self._name, batch, task, checkpoint)
        return Sent(sent.count, sent.transactions, int(batch), checkpoint)

    @property
    def _name(self) -> str:
        return self.options.name or self.run_id

    def _commit(self, messages: list[WriterCommitMessage | None], batch: int) -> None:
        if not self.options.is_exactly_once:
            return
        client = door(self.options.server).client
        sent = [one for one in messages if isinstance(one, Sent) and one.transactions]
        if not sent:
            return
        mine = [names for one in sent for names in one.transactions]
        checkpoint = sent[0].checkpoint
        log = SinkLog(client, self._name, checkpoint)
        if self.options.takes_over:
            end_history(client, log)
        commit_decided(client, log, log.decide(batch, mine), batch)
        roll_back_rest(client, self._name, checkpoint, batch, {names[0] for names in mine})

    def _abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Transactions of tasks that failed are rolled back with the next batch, or here."""
        client = door(self.options.server).client
        for one in messages:
            for topic, gtrid, bqual in one.transactions if isinstance(one, Sent) else ():
                _decide(client.session(topic), Xid(_FORMAT, gtrid, bqual), is_commit=False)


class BatchSink(_Sink, DataSourceArrowWriter):
    """`df.write.format("lakemq")`."""

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        # Inside foreachBatch each batch is one of its own, under the same name.
        batch = max((one.batch for one in messages if isinstance(one, Sent)), default=0)
        self._commit(messages, batch)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._abort(messages)


class StreamSink(_Sink, DataSourceStreamArrowWriter):
    """`df.writeStream.format("lakemq")`."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        if options.is_exactly_once and not options.name:
            raise OptionError(
                "exactlyOnce needs a name that stays the same when the query is started again",
                'Give option name, e.g. .option("name", "order_totals").',
            )

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._commit(messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._abort(messages)


def _send(client: Client, rows: Iterator[tuple[str, Message]], acks: Acks) -> int:
    waiting: dict[str, list[Message]] = {}
    count = 0
    for topic, message in rows:
        some = waiting.setdefault(topic, [])
        some.append(message)
        count += 1
        if len(some) >= _SEND_MANY:
            client.send_many(topic, waiting.pop(topic), acks=acks).raise_if_failed()
    for topic, some in waiting.items():
        client.send_many(topic, some, acks=acks).raise_if_failed()
    return count


def prepare_messages(
    client: Client,
    rows: Iterator[tuple[str, Message]],
    query: str,
    batch: Batch,
    task: str = "",
    checkpoint: str = NO_CHECKPOINT,
) -> Sent:
    """Prepare messages for a query's batch: transactions of a bounded size, so that there may be more than memory."""
    gtrid, task = _gtrid(query, checkpoint, batch), task or uuid.uuid4().hex[:16]
    open_now: dict[str, tuple[Session, list[int]]] = {}  # by topic: with counts of messages and bytes
    names: list[list[str]] = []
    count = 0

    def prepare(topic: str) -> None:
        session, _ = open_now.pop(topic)
        session.tpc_prepare()

    for topic, message in rows:
        if topic not in open_now:
            session = client.session(topic)
            names.append([topic, gtrid, f"{task}.{len(names)}"])
            session.tpc_begin(Xid(_FORMAT, gtrid, names[-1][2]))
            open_now[topic] = (session, [0, 0])
        session, sizes = open_now[topic]
        session.send_many([message])
        sizes[0] += 1
        sizes[1] += 0 if message.body is None else len(message.body)
        count += 1
        if sizes[0] >= _TRANSACTION_MESSAGES or sizes[1] >= _TRANSACTION_BYTES:
            prepare(topic)
    for topic in list(open_now):
        prepare(topic)
    return Sent(count, names)


def _gtrid(query: str, checkpoint: str, batch: Batch) -> str:
    number = batch if str(batch).isdigit() else _digest(str(batch))
    return f"{_digest(query)}{_digest(checkpoint)}.{number}"


def _digest(text: str) -> str:
    """Names may be long, xids not."""
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_CHARS]


def commit_decided(client: Client, log: SinkLog, decision: Decision, batch: Batch) -> None:
    """Commit what was decided for, and note that; what is no longer prepared was committed by whoever decided."""
    if decision.is_done:
        return
    left = _commit_prepared(client, decision)
    if left and decision.age_ms > _KNOWN_MS:
        raise PipelineError(
            f"batch {batch} was decided {decision.age_ms // 3_600_000} hours ago, and the broker may have rolled back "
            "what was not committed then",
            "Compare the topic with the query's input, then go on under another name from behind that batch.",
        )
    log.done(batch)


def end_history(client: Client, log: SinkLog) -> None:
    """Take a name over from another checkpoint: what it had decided is written, and nothing else of it will be."""
    for checkpoint, batch, decision in log.take_over():
        _commit_prepared(client, decision)
        log.done(batch, checkpoint)


def _commit_prepared(client: Client, decision: Decision) -> set[tuple[str, Xid]]:
    """Commit what is still prepared of it; the rest."""
    left = {(topic, Xid(_FORMAT, gtrid, bqual)) for topic, gtrid, bqual in decision.transactions}
    for topic in sorted({topic for topic, _ in left}):
        session = client.session(topic)
        for xid in session.tpc_recover():
            if (topic, xid) in left:
                _decide(session, xid, is_commit=True)
                left.discard((topic, xid))
    return left


def roll_back_rest(client: Client, query: str, checkpoint: str, batch: int, topics: set[str]) -> None:
    """What tasks that were run again, or died, have left of this query, and others under its name."""
    for topic in sorted(topics):
        session = client.session(topic)
        for xid in session.tpc_recover():
            if _is_left(xid, query, checkpoint, batch):
                _decide(session, xid, is_commit=False)


def _is_left(xid: Xid, query: str, checkpoint: str, batch: int) -> bool:
    digests, _, number = xid.gtrid.partition(".")
    if xid.format_id != _FORMAT or not digests.startswith(_digest(query)):
        return False
    if digests != _digest(query) + _digest(checkpoint):  # of one that the name does not belong to
        return True
    return number.isdigit() and int(number) <= batch


def _decide(session: Session, xid: Xid, is_commit: bool) -> None:
    try:
        if is_commit:
            session.tpc_commit(xid)
        else:
            session.tpc_rollback(xid)
    except TransactionNotFoundError:  # somebody was here before
        return
