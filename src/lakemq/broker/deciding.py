"""How a transaction ends: by a decision that is made once, and messages that follow it in the same turn.

What a crash left out after a decision is stored by `finish_rest`, before anybody is served.
"""

from collections.abc import Callable

from lakemq.broker.answers import code_of
from lakemq.broker.events import Now
from lakemq.broker.ledger import Ledger
from lakemq.broker.metrics import Metrics
from lakemq.broker.transaction_parts import Content, TransactionParts
from lakemq.broker.undecided import Undecided
from lakemq.cluster.metadata import Topic
from lakemq.delivery.transactions import Outcome, Transaction, owner_of, pack_note, pack_outcome
from lakemq.errors import BadParameterError, LakeMQError, TransactionCommitError, TransactionNotFoundError
from lakemq.storage.journal_record import HEADER_BYTES, RecordType


class Deciding:
    """Commits and rolls back."""

    def __init__(self, ledger: Ledger, metrics: Metrics, undecided: Undecided, parts: TransactionParts) -> None:
        self._ledger = ledger
        self._group = ledger.group
        self._metrics = metrics
        self._transactions = ledger.state.transactions
        self._undecided = undecided
        self._parts = parts

    def end(self, name: str, app: str, tx_id: str, outcome: Outcome, now: Now) -> None:
        """Decide one; the same decision again changes nothing, the opposite one is refused."""
        topic = self._ledger.metadata.topics.get(name)
        if topic is None:
            raise TransactionNotFoundError(f"there is no topic {name!r}, and no transaction of it")
        transaction = self._transactions.open.get(tx_id)
        if transaction is None:
            self.check_decided(topic, app, tx_id, outcome)
            self.finish_one(tx_id, now)
        elif transaction.topic != topic.number or transaction.app != app:
            raise TransactionNotFoundError(f"there is no transaction {tx_id!r} of app {app!r} on topic {name!r}")
        elif outcome is Outcome.COMMITTED:
            self.commit(transaction, now)
        else:
            self.roll_back(transaction, now)

    def check_decided(self, topic: Topic, app: str, tx_id: str, outcome: Outcome) -> None:
        """Refused unless that was the decision."""
        decided = self._transactions.decided(tx_id)
        if decided is None or decided.owner != owner_of(topic.number, app):
            raise TransactionNotFoundError(f"there is no transaction {tx_id!r} of app {app!r} on topic {topic.name!r}")
        if decided.outcome is not outcome:
            was = "committed" if decided.outcome is Outcome.COMMITTED else "rolled back"
            raise TransactionCommitError(f"transaction {tx_id!r} was {was}")

    def roll_back(self, transaction: Transaction, now: Now) -> None:
        """Its messages are forgotten."""
        payload = pack_outcome(transaction.tx_id, Outcome.ROLLED_BACK)
        _, end = self._ledger.append(RecordType.TRANSACTION, payload, now.wall_ms, topic=transaction.topic)
        self._decide(transaction, Outcome.ROLLED_BACK, end, now)
        for part in transaction.parts:
            self._parts.forget(part)

    def commit(self, transaction: Transaction, now: Now) -> None:
        """Its messages go to their partitions, in this turn."""
        topic = self._topic(transaction.topic)
        assert topic is not None, "whoever asks has named it"
        contents = list(self._parts.contents(transaction, range(len(transaction.parts))))
        if len(contents) == 1:
            app = transaction.app
            note = pack_note(transaction.tx_id, (), transaction.owner, now.wall_ms, app=app, commits=True)
            end = self._parts.store(topic, app, contents[0], note, now)
            undo = self._transactions.commit_whole(transaction.tx_id, transaction.owner, now.wall_ms)
            self._decided(transaction, undo, end, now)
        else:
            self.make_room(sum([len(one.messages) + 2 * HEADER_BYTES for one in contents]) + 1024, now)
            payload = pack_outcome(transaction.tx_id, Outcome.COMMITTED)
            _, end = self._ledger.append(RecordType.TRANSACTION, payload, now.wall_ms, topic=transaction.topic)
            self._decide(transaction, Outcome.COMMITTED, end, now)
            self.deliver_all(topic, transaction, contents, now)
        for part in transaction.parts:
            self._parts.forget(part)

    def _decide(self, transaction: Transaction, outcome: Outcome, end: int, now: Now) -> None:
        self._decided(transaction, self._transactions.decide(transaction.tx_id, outcome, now.wall_ms), end, now)

    def _decided(self, transaction: Transaction, undo: Callable[[], object], end: int, now: Now) -> None:
        self._undecided.forget(transaction)

        def reopen() -> None:
            undo()
            self._undecided.watch(transaction, now)

        self._ledger.undo_with(end, reopen)

    def make_room(self, size: int, now: Now) -> None:
        """Have a new segment begun now if so much does not fit this one: then all that follows is written as one."""
        try:
            self._group.make_room(size, self._ledger.term, now.wall_ms)
        except BadParameterError:  # more than any record may have: it goes as it can, and `finish` sees to the rest
            return

    # --- storing -----------------------------------------------------------------------------------------------

    def deliver_all(self, topic: Topic, transaction: Transaction, contents: list[Content], now: Now) -> None:
        """Store these messages of one that was committed."""
        for content in contents:
            note = pack_note(transaction.tx_id, content.numbers, app=transaction.app)
            end = self._parts.store(topic, transaction.app, content, note, now)
            self._ledger.undo_with(end, self._transactions.deliver(transaction.tx_id, content.numbers))

    def finish_rest(self, now: Now) -> None:
        """Store what was committed and is not in its partitions yet."""
        for transaction, _ in self._transactions.unfinished():
            try:
                self.finish_one(transaction.tx_id, now)
            except LakeMQError as error:  # tried again in a while
                self._metrics.errors[code_of(error)] += 1

    def finish_one(self, tx_id: str, now: Now) -> None:
        """Store the rest of a committed one, if there is any."""
        found = self._transactions.unfinished_of(tx_id)
        if found is None:
            return
        transaction, numbers = found
        topic = self._topic(transaction.topic)
        if topic is None:
            self._transactions.drop_unfinished(tx_id)  # dropped since
            return
        numbers = [number for number in numbers if transaction.parts[number].partition < topic.partition_count]
        self.deliver_all(topic, transaction, list(self._parts.contents(transaction, numbers)), now)

    def _topic(self, number: int) -> Topic | None:
        return next((topic for topic in self._ledger.metadata.topics.values() if topic.number == number), None)
