"""Producers of transactions: begun, filled, decided once or twice, in both ways, or forgotten (F42, F47)."""

from collections.abc import Callable
from dataclasses import dataclass

from lakemq.envelope import pack
from lakemq.message import Message, Qos
from lakemq.testing.actor import ROLE_CODES, Client, Stage
from lakemq.testing.facts import CarrierOf, Send
from lakemq.testing.net import Weather
from lakemq.testing.transacted import COMMITTED, OPPOSITE, ROLLED_BACK, Transacted
from lakemq.wire.commands import Ack, Command
from lakemq.wire.dialect import Dialect, Form, level_of_qos
from lakemq.wire.messages import MessageBlock
from lakemq.wire.own import FetchTransactions, Transact, TransactOutcome
from lakemq.wire.produce import (
    FetchProduceFeedback,
    ProduceMessage,
    ProduceMessageCommit,
    ProduceMessagePrepare,
    ProduceMessageRollback,
    TopicProduce,
)
from lakemq.wire.session import AddProducer

_OPEN_MAX = 12


@dataclass(frozen=True, slots=True)
class TransactorHabits:
    """How one producer uses transactions."""

    topics: tuple[str, ...]
    gap_ms: int = 60
    sends: int = 3  # in each, at the most
    misbehaves: float = 0.3
    timeout_ms: int = 0
    body_bytes: int = 60


class Transactor(Client):
    """Works on one transaction after the other; comes back to old ones."""

    def __init__(
        self, stage: Stage, name: str, app: str, form: Form, weather: Weather, habits: TransactorHabits
    ) -> None:
        super().__init__(stage, name, app, form, weather)
        self.habits = habits
        self._known: list[Transacted] = []  # that it may come back to

    def introduced(self) -> None:
        topics = tuple(one for one in self.habits.topics if not self.stage.topics[one].is_gone)
        if not topics:
            return

        def added(status: int, ack: Ack | None) -> None:
            if status:
                self._later_on(self.stage.rng.randint(50, 150), "introduce", self.introduced)
            else:
                self._go_on()

        self.ask(AddProducer(topics, self.app, 1), added)

    def _go_on(self) -> None:
        if not self.stage.is_calm:
            self._work()
        self._later_on(self.stage.rng.randint(1, 2 * self.habits.gap_ms), "transact", self._go_on)

    def _work(self) -> None:
        rng = self.stage.rng
        living = [one for one in self.habits.topics if not self.stage.topics[one].is_gone]
        if not living:
            return
        topic, draw = rng.choice(living), rng.random()
        if self._known and draw < 0.25:
            self._come_back(rng.choice(self._known))
        elif draw < 0.32:
            self._ask_about(topic)
        elif draw < 0.5 and not self.is_joyqueue:
            self._whole(topic)
        elif len(self._known) < 4 * _OPEN_MAX:
            self._prepare(topic)

    # --- step by step ----------------------------------------------------------------------------------------------

    def _begin(self, topic: str, tx_id: str = "") -> Transacted:
        history = self.stage.history
        number = len(history.transactions)
        own_id = f"own-{self.name}-{number}" if self.stage.rng.random() < 0.5 else ""
        transaction = Transacted(number, topic, tx_id, own_id)
        history.transactions.append(transaction)
        history.counts["transactions"] += 1
        return transaction

    def _prepare(self, topic: str) -> None:
        transaction = self._begin(topic)

        def prepared(status: int, ack: Ack | None) -> None:
            code = status or (ack.code if ack is not None else 4)
            self.stage.history.counts[f"prepare code {code}"] += 1
            if code:
                self._mind(code)
                return
            transaction.tx_id = ack.tx_id if ack is not None else ""
            self._known.append(transaction)
            del self._known[:-_OPEN_MAX]
            self._fill(transaction, self.stage.rng.randint(0, self.habits.sends))

        command = ProduceMessagePrepare(topic, self.app, 1, transaction.own_id, self.habits.timeout_ms)
        self.ask(command, prepared)

    def _fill(self, transaction: Transacted, left: int) -> None:
        """Send some, then decide; some die before that, or forget it."""
        rng = self.stage.rng
        if rng.random() < self.habits.misbehaves / (left + 2):
            self.stage.history.counts["transactor dies"] += 1
            if rng.random() < 0.5:
                self.hang_up()
            return
        if left == 0:
            self._decide(transaction, rng.choice((COMMITTED, COMMITTED, ROLLED_BACK)), then=self._again)
            return
        partition = rng.randrange(self.stage.topics[transaction.topic].partitions)
        send, data = self._made(transaction, partition, rng.randint(1, 2))
        level = level_of_qos(Qos.FLUSH, self.form.dialect)
        block = MessageBlock(len(send.carriers), (data,))
        entry = TopicProduce(transaction.topic, transaction.tx_id, 0, level, block)
        is_patient = rng.random() < 0.7

        def sent(status: int, ack: Ack | None) -> None:
            code = status or (ack.topics[0].code if ack is not None else 4)
            self.stage.history.sent(send, code, [(partition, -1)] * len(send.carriers), self.stage.now_ms())
            self._mind(code)
            if is_patient:
                self._fill(transaction, left - 1)

        self.ask(ProduceMessage((entry,), self.app), sent, qos_bits=self._bits())
        if not is_patient:
            self._fill(transaction, left - 1)

    def _bits(self) -> int:
        return 1 if self.is_joyqueue else level_of_qos(Qos.FLUSH, Dialect.DOCUMENTED)

    def _made(self, transaction: Transacted, partition: int, count: int) -> tuple[Send, bytes]:
        """Messages for one partition, and the attempt to send them."""
        stage = self.stage
        carriers, pieces = [], []
        for _ in range(count):
            filling = stage.rng.randbytes(stage.rng.randint(0, self.habits.body_bytes))
            number, body = stage.history.make_payload(self.name, transaction.topic, "", filling)
            message = Message(body=body, app=self.app, send_time_ms=stage.clock.wall_ms(), partition=partition)
            carriers.append(CarrierOf((number,)))
            pieces.append(pack(message))
        send = stage.history.send(
            self.name, self.connection, transaction.topic, Qos.FLUSH, carriers, partition, stage.now_ms()
        )
        send.transaction = transaction.number
        transaction.sends.append(send)
        return send, b"".join(pieces)

    # --- all at once -----------------------------------------------------------------------------------------------

    def _whole(self, topic: str) -> None:
        """Begin, fill and commit in one request; sent again if nobody answers, which must not store it twice."""
        rng = self.stage.rng
        transaction = self._begin(topic, f"{self.name}-{len(self.stage.history.transactions)}")
        commits = rng.random() < 0.7
        count = self.stage.topics[topic].partitions
        partitions = rng.sample(range(count), min(count, rng.choice((1, 2, 3))))
        made = [self._made(transaction, partition, rng.randint(1, 2)) for partition in partitions]
        command = Transact(
            topic,
            self.app,
            transaction.tx_id,
            transaction.own_id,
            self.habits.timeout_ms,
            0,
            TransactOutcome.COMMIT if commits else TransactOutcome.OPEN,
            tuple(MessageBlock(len(send.carriers), (data,)) for send, data in made),
        )
        if commits:
            transaction.asked.add(COMMITTED)
        self._known.append(transaction)
        del self._known[:-_OPEN_MAX]
        self._ask_whole(transaction, command, [send for send, _ in made], rng.randint(0, 2))

    def _ask_whole(
        self, transaction: Transacted, command: Transact, sends: list[Send], tries: int, *, is_first: bool = True
    ) -> None:
        history = self.stage.history

        def answered(status: int, ack: Ack | None) -> None:
            history.counts[f"transact code {status}"] += 1
            for send in sends:
                if is_first or status == 0:  # else nobody knows how the one before ended
                    history.sent(send, status, [(send.partition, -1)] * len(send.carriers), self.stage.now_ms())
            if command.outcome == TransactOutcome.COMMIT and status == 0:
                transaction.answered(COMMITTED, 0)
            self._mind(status)
            if tries and self.stage.rng.random() < 0.3 and sends[0].outcome != "failed":
                self._ask_whole(transaction, command, sends, tries - 1, is_first=False)

        def lost() -> None:
            if tries:
                self._later(self.stage.rng.randint(80, 300), "transact again", again)

        def again() -> None:
            if self.is_connected and not self.stage.is_calm:
                self._ask_whole(transaction, command, sends, tries - 1, is_first=False)

        self.ask(command, answered, lost)

    # --- decisions ---------------------------------------------------------------------------------------------------

    def _decide(self, transaction: Transacted, outcome: str, then: Callable[[Transacted], None] | None = None) -> None:
        kind = ProduceMessageCommit if outcome == COMMITTED else ProduceMessageRollback
        transaction.asked.add(outcome)
        history = self.stage.history

        def answered(status: int, ack: Ack | None) -> None:
            code = status or (ack.code if ack is not None else 4)
            history.counts[f"{outcome} code {code}"] += 1
            transaction.is_sure = not history.counts["fault clock jump"] and transaction.topic not in history.dropped
            transaction.answered(outcome, code)
            self._mind(code)
            if then is not None:
                then(transaction)

        self.ask(kind(transaction.topic, self.app, transaction.tx_id), answered)

    def _again(self, transaction: Transacted) -> None:
        """Once more, or the opposite."""
        rng = self.stage.rng
        if rng.random() < self.habits.misbehaves:
            self._come_back(transaction)

    def _come_back(self, transaction: Transacted) -> None:
        rng = self.stage.rng
        outcome = transaction.told or COMMITTED
        self._decide(transaction, rng.choice((outcome, outcome, OPPOSITE[outcome])))

    def _ask_about(self, topic: str) -> None:
        """Which ones nobody decided; those are decided now."""
        rng = self.stage.rng
        commands: list[Command] = [FetchProduceFeedback(self.app, topic, 0, 5, rng.choice((0, 200)))]
        if not self.is_joyqueue:
            commands.append(FetchTransactions(topic, self.app, "", 10))

        def told(status: int, ack: Ack | None) -> None:
            for one in ack.transactions if ack is not None else ():
                self.stage.history.counts["undecided"] += 1
                mine = [known for known in self.stage.history.transactions if known.tx_id == one.tx_id]
                if mine:
                    self._decide(mine[0], rng.choice((COMMITTED, ROLLED_BACK)))

        self.ask(rng.choice(commands), told)

    def _mind(self, code: int) -> None:
        if code in ROLE_CODES:
            self._later_on(self.stage.rng.randint(50, 150), "introduce", self.hang_up)
