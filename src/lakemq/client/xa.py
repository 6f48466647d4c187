"""Two-phase commit after PEP 249: a session whose messages a transaction manager commits together with other things.

What was prepared can be committed after any crash, of this program or of the broker: the broker keeps it under its
xid, and `tpc_recover` finds it again. The messages stay in this program until it is prepared.
"""

import uuid
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeVar

from lakemq.client.outgoing import Body, Message, Tags
from lakemq.client.producer import Producer
from lakemq.client.promise import Steps, start
from lakemq.client.pump import Pump
from lakemq.client.receipt import Receipt
from lakemq.client.transaction import XA_PREFIX, Decision, State, TransactionCore, decide, listed
from lakemq.errors import BadParameterError, TransactionError, TransactionNotFoundError

T = TypeVar("T")

_FORMAT_ID_MAX = 0x7FFFFFFF
_TEXT_BYTES_MAX = 64


class Xid(NamedTuple):
    """The id of a transaction over several resources: which one, and which branch of it."""

    format_id: int
    gtrid: str  # of the transaction as a whole
    bqual: str  # of this branch

    @property
    def own_id(self) -> str:
        """As the broker keeps it."""
        return f"{XA_PREFIX}{self.format_id}:{_packed(self.gtrid)}:{_packed(self.bqual)}"


def make_xid(format_id: int, gtrid: str, bqual: str) -> Xid:
    """A checked xid: a number from 0 on, and two texts of 1 to 64 and 0 to 64 bytes."""
    if not 0 <= format_id <= _FORMAT_ID_MAX:
        raise BadParameterError(f"format_id {format_id} is not within 0 and {_FORMAT_ID_MAX}")
    if not 0 < len(gtrid.encode()) <= _TEXT_BYTES_MAX or len(bqual.encode()) > _TEXT_BYTES_MAX:
        raise BadParameterError("gtrid has 1 to 64 bytes, bqual at most 64")
    return Xid(format_id, gtrid, bqual)


def read_xid(own_id: str) -> Xid | None:
    """The xid that an id of the broker's stands for; None if that is something else."""
    if not own_id.startswith(XA_PREFIX):
        return None
    parts = own_id[len(XA_PREFIX) :].split(":")
    try:
        format_id, gtrid, bqual = parts
        return Xid(int(format_id), _unpacked(gtrid), _unpacked(bqual))
    except ValueError:
        return None


def _packed(text: str) -> str:
    return urlsafe_b64encode(text.encode()).decode().rstrip("=")


def _unpacked(text: str) -> str:
    return urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode()


class Session:
    """Messages to one topic, in transactions one after the other. Of one thread; from `Client.session`."""

    def __init__(self, pump: Pump, producer: Producer, topic: str, timeout_ms: int = 0) -> None:
        self._pump = pump
        self._producer = producer
        self._timeout_ms = timeout_ms
        self.topic = producer.topic(topic)
        self._xid: Xid | None = None
        self._transaction: TransactionCore | None = None

    def send(
        self,
        body: Body,
        *,
        key: str | None = None,
        tags: Tags | None = None,
        headers: Mapping[str, str] | None = None,
        partition: int | None = None,
        ordered: bool = False,
        priority: int = 0,
        uniq_id: str | None = None,
    ) -> Receipt:
        """Put a message into the transaction under way; outside of `tpc_begin` one is begun that `commit` ends."""
        if self._transaction is None:
            self._transaction = self._new()
        message = Message(body, key, tags, headers, partition, ordered, priority, uniq_id)
        return self._call(self._transaction.send(message))

    def send_many(self, messages: Iterable[Message | Body]) -> list[Receipt]:
        """Put in several."""
        if self._transaction is None:
            self._transaction = self._new()
        made = [one if isinstance(one, Message) else Message(one) for one in messages]
        return [self._call(self._transaction.send(message)) for message in made]

    # One phase

    def commit(self) -> None:
        """Let the messages be seen that were sent since the last commit or rollback."""
        self._check_not_two_phase()
        if self._transaction is not None:
            self._call(self._transaction.commit())
        self._transaction = None

    def rollback(self) -> None:
        """Forget the messages that were sent since then."""
        self._check_not_two_phase()
        self._end_with_rollback()

    # Two phases

    def xid(self, format_id: int, gtrid: str, bqual: str) -> Xid:
        """An id for `tpc_begin`."""
        return make_xid(format_id, gtrid, bqual)

    def tpc_begin(self, xid: Xid) -> None:
        """Begin a transaction that others decide about."""
        if self._xid is not None or self._transaction is not None:
            raise TransactionError("a transaction is under way: end it first")
        self._xid = make_xid(*xid)
        self._transaction = self._new()

    def tpc_prepare(self) -> None:
        """Make sure that the messages can be committed, whatever happens."""
        xid, transaction = self._under_way()
        self._call(transaction.prepare(xid.own_id))

    def tpc_commit(self, xid: Xid | None = None) -> None:
        """Commit the transaction under way, in one phase if it was not prepared; with an xid, one that is recovered."""
        if xid is not None:
            self._decide(xid, "commit")
            return
        _, transaction = self._under_way()
        self._call(transaction.commit())
        self._xid = self._transaction = None

    def tpc_rollback(self, xid: Xid | None = None) -> None:
        """Roll back the transaction under way; with an xid, one that is recovered."""
        if xid is not None:
            self._decide(xid, "rollback")
            return
        self._under_way()
        self._end_with_rollback()

    def tpc_recover(self) -> list[Xid]:
        """Those that are prepared and neither committed nor rolled back, of all sessions on the topic."""
        found = self._call(listed(self._producer.core, self.topic, XA_PREFIX))
        xids = [read_xid(one.transaction_id) for _, one in found]
        return [xid for xid in xids if xid is not None]

    @property
    def xid_under_way(self) -> Xid | None:
        """What `tpc_begin` was given, until that has ended."""
        return self._xid

    @property
    def is_prepared(self) -> bool:
        """Whether the transaction under way waits for its second phase."""
        return self._transaction is not None and self._transaction.state is State.PREPARED

    # Inside

    def _new(self) -> TransactionCore:
        return TransactionCore(self._producer, self.topic, uuid.uuid4().hex, timeout_ms=self._timeout_ms, waits=True)

    def _under_way(self) -> tuple[Xid, TransactionCore]:
        if self._xid is None or self._transaction is None:
            raise TransactionError("no transaction is under way: call tpc_begin first")
        return self._xid, self._transaction

    def _check_not_two_phase(self) -> None:
        if self._xid is not None:
            raise TransactionError("the transaction was begun by tpc_begin: end it by tpc_commit or tpc_rollback")

    def _end_with_rollback(self) -> None:
        transaction = self._transaction
        if transaction is not None:
            self._call(transaction.rollback())
        self._xid = self._transaction = None

    def _decide(self, xid: Xid, decision: Decision) -> None:
        if self._xid is not None:
            raise TransactionError("a transaction is under way: end it first")
        own_id = make_xid(*xid).own_id
        core = self._producer.core
        for address, found in self._call(listed(core, self.topic, XA_PREFIX)):
            if found.transaction_id == own_id:
                self._call(decide(core, address, self.topic, found.tx_id, decision))
                return
        raise TransactionNotFoundError(f"no transaction {tuple(xid)} is prepared on topic {self.topic}")

    def _call(self, steps: Steps[T]) -> T:
        self._pump.check()
        return self._pump.call(lambda: start(steps))
