"""Producers of the simulation: every level, shape and dialect, some nonsense, and retries of what may be lost."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lakemq.compression import Compression
from lakemq.envelope import pack
from lakemq.message import BatchItem, BatchMessage, Message, Qos
from lakemq.testing.actor import ROLE_CODES, Client, Stage, ignore
from lakemq.testing.history import CarrierOf, Send, violate
from lakemq.testing.net import Weather
from lakemq.testing.rules import NEVER_MS
from lakemq.wire.commands import Ack
from lakemq.wire.dialect import Dialect, Form, header_qos, level_of_qos
from lakemq.wire.messages import MessageBlock
from lakemq.wire.produce import ProduceMessage, TopicProduce
from lakemq.wire.session import AddProducer, Heartbeat

_LEVEL_MS = 1000  # of DELAY_LEVEL 1
_FAR_MS = 20 * 86_400_000  # further than all clocks are ever set


@dataclass(frozen=True, slots=True)
class ProducerHabits:
    """How one producer sends."""

    topics: tuple[str, ...]
    levels: tuple[Qos, ...]  # one is drawn for each request
    shapes: tuple[str, ...] = ("single",)  # single, array, batch, mixed
    names_partition: float = 0.5
    unique: float = 0.0
    depth: int = 1
    burst: int = 1
    gap_ms: int = 30
    body_bytes: int = 60
    timeouts_ms: tuple[int, ...] = (0,)
    retries: float = 0.5  # of those whose outcome is not known
    repeats: float = 0.1  # of those that have an id and are known to be stored
    nonsense: float = 0.02
    key_count: int = 4
    marks: float = 0.0  # of its messages have attributes that filters look at
    delays: float = 0.0  # are to wait
    expires: float = 0.0  # are worth nothing after a while


class Producer(Client):
    """Sends, and sends again what may be lost."""

    def __init__(self, stage: Stage, name: str, app: str, form: Form, weather: Weather, habits: ProducerHabits) -> None:
        super().__init__(stage, name, app, form, weather)
        self.habits = habits
        self.sent_count = 0
        self._outstanding = 0
        self._again: list[tuple[Send, CarrierOf, bytes]] = []  # what was sent before, and its bytes

    @property
    def is_idle(self) -> bool:
        """Whether all it sent is answered."""
        return self._outstanding == 0

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

    def was_cut_off(self) -> None:
        self._outstanding = 0

    def _go_on(self) -> None:
        self._work()
        self._later_on(self.stage.rng.randint(1, 2 * self.habits.gap_ms), "produce", self._go_on)

    def _work(self) -> None:
        stage, rng, habits = self.stage, self.stage.rng, self.habits
        if stage.is_calm or self._outstanding >= habits.depth:
            return
        living = [one for one in habits.topics if not stage.topics[one].is_gone]
        if not living:
            return
        if self._again and rng.random() < 0.5:
            before, carrier, data = self._again.pop(0)
            if not stage.topics[before.topic].is_gone:
                level = rng.choice([one for one in habits.levels if one is not Qos.NO] or [Qos.FLUSH])
                entry = self._entry(before.topic, level, [carrier], [data], -1, 0, "")
                if before.due_ms:
                    stage.history.delay(entry[1], before.due_ms, before.due_latest_ms)
                self._request([entry], self._bits(level))
            return
        level = rng.choice(habits.levels)
        if rng.random() < habits.nonsense:
            self._nonsense(rng.choice(living), level)
            return
        bits = self._bits(level)
        topic, timeout_ms = rng.choice(living), rng.choice(habits.timeouts_ms)
        partition = self._partition(topic)
        pieces = []
        for _ in range(rng.randint(1, habits.burst)):
            entries = [self._made(topic, level, partition, timeout_ms)]
            if len(living) > 1 and rng.random() < 0.05:
                other = rng.choice([one for one in living if one != topic])
                entries.append(self._made(other, rng.choice(habits.levels), self._partition(other), timeout_ms))
            pieces.append(self._request(entries, bits, waits=True))
        self.send(b"".join(pieces))

    def probe(self, topic: str, partition: int) -> int:
        """One more message, when all else is done; returns its payload."""
        self.ask(AddProducer((topic,), self.app, 1), lambda status, ack: None)  # what comes of it the send tells
        carrier, data = self._carrier(topic, "", partition, is_batch=False)  # a key would choose for itself
        entry, send, _ = self._entry(topic, Qos.FLUSH, [carrier], [data], partition, 0, "")
        self._request([(entry, send, ())], self._bits(Qos.FLUSH))
        return send.carriers[0].ids[0]

    # --- requests ----------------------------------------------------------------------------------------------

    def _bits(self, level: Qos) -> int:
        """Header bits that ask for no more than that."""
        if self.is_joyqueue:
            return 0 if level is Qos.NO else self.stage.rng.choice((1, 1, 2, 3))
        weaker = [one for one in Qos if one.strength <= level.strength]
        return level_of_qos(self.stage.rng.choice(weaker), Dialect.DOCUMENTED)

    def _partition(self, topic: str) -> int:
        facts, rng = self.stage.topics[topic], self.stage.rng
        if facts.is_ordered or rng.random() >= self.habits.names_partition:
            return -1
        return rng.randrange(facts.partitions)

    Entry = tuple[TopicProduce, Send, Sequence[bytes]]

    def _made(self, topic: str, level: Qos, partition: int, timeout_ms: int) -> Entry:
        """New messages for one topic."""
        rng, habits = self.stage.rng, self.habits
        shape = rng.choice(habits.shapes)
        key = f"k{rng.randrange(habits.key_count)}"
        count = 1 if shape in ("single", "batch") else rng.randint(2, 4)
        delay = self._delay() if rng.random() < habits.delays else {}
        carriers, datas = [], []
        for nth in range(count):
            is_batch = shape == "batch" or (shape == "mixed" and nth % 2 == 1)
            carrier, data = self._carrier(topic, key, partition, is_batch=is_batch, more=delay)
            carriers.append(carrier)
            datas.append(data)
        entry = self._entry(topic, level, carriers, datas, partition, timeout_ms, "")
        self._note_delay(entry[1], delay)
        return entry

    def _delay(self) -> dict[str, str]:
        """When messages are to be delivered."""
        rng = self.stage.rng
        if rng.random() < 0.2:
            return {"DELAY_LEVEL": "1"}
        return {"DELIVER_AT": str(self.stage.clock.wall_ms() + rng.choice((-10, 30, 150, 500, 900)))}

    def _note_delay(self, send: Send, delay: Mapping[str, str]) -> None:
        history, now_ms = self.stage.history, self.stage.now_ms()
        if "DELIVER_AT" in delay:
            due_ms = int(delay["DELIVER_AT"])
            history.delay(send, due_ms, max(due_ms, history.guarded(now_ms)))
        elif delay:
            history.delay(send, history.guarded(now_ms) + _LEVEL_MS, history.guarded(now_ms) + _LEVEL_MS)

    def _wishes(self) -> tuple[dict[str, str], int]:
        """Attributes that decide who gets a message, and when it expires."""
        rng, attributes, expires_ms = self.stage.rng, {}, NEVER_MS
        if rng.random() < self.habits.marks:
            attributes["TAGS"] = rng.choice(("red", "blue", "green"))
        if rng.random() < self.habits.marks:
            attributes["size"] = str(rng.randint(0, 5))
        if rng.random() < self.habits.expires:
            wall_ms = self.stage.clock.wall_ms()
            expires_ms = wall_ms + rng.choice((1, 60, 300))
            attributes["EXPIRE"] = str(expires_ms)
            if rng.random() < 0.5:
                attributes["EXPIRE"], expires_ms = str(wall_ms + _FAR_MS), NEVER_MS
        return attributes, expires_ms

    def _carrier(
        self, topic: str, key: str, partition: int, *, is_batch: bool, more: Mapping[str, str] | None = None
    ) -> tuple[CarrierOf, bytes]:
        rng, stage = self.stage.rng, self.stage
        uniq_id = ""
        attributes, expires_ms = self._wishes()
        attributes.update(more or {})
        if rng.random() < self.habits.unique:
            uniq_id = attributes["UNIQ_ID"] = f"{self.name}-{len(stage.history.payloads)}"
        common: dict[str, Any] = {
            "business_id": key,
            "attributes": attributes,
            "app": self.app,
            "send_time_ms": stage.clock.wall_ms(),
            "partition": partition,
            "compression": Compression.ZLIB if rng.random() < 0.05 else Compression.NONE,
            "is_ordered": stage.topics[topic].is_ordered and rng.random() < 0.5,
        }
        count = rng.randint(2, 4) if is_batch else 1
        made = [self._payload(topic, key, attributes, expires_ms) for _ in range(count)]
        if is_batch:
            items = tuple(BatchItem(body=body, business_id=key) for _, body in made)
            data = pack(BatchMessage(items=items, **common))
        else:
            data = pack(Message(body=made[0][1], **common))
        return CarrierOf(tuple(number for number, _ in made), uniq_id), data

    def _payload(
        self, topic: str, key: str, attributes: Mapping[str, str] | None = None, expires_ms: int = NEVER_MS
    ) -> tuple[int, bytes]:
        filling = self.stage.rng.randbytes(self.stage.rng.randint(0, self.habits.body_bytes))
        return self.stage.history.make_payload(self.name, topic, key, filling, attributes, expires_ms)

    def _entry(
        self,
        topic: str,
        level: Qos,
        carriers: Sequence[CarrierOf],
        datas: Sequence[bytes],
        partition: int,
        timeout_ms: int,
        tx_id: str,
    ) -> Entry:
        block = MessageBlock(len(datas), (b"".join(datas),))
        entry = TopicProduce(topic, tx_id, timeout_ms, level_of_qos(level, self.form.dialect), block)
        history = self.stage.history
        now_ms = self.stage.now_ms()
        return entry, history.send(self.name, self.connection, topic, level, carriers, partition, now_ms), datas

    def _request(self, entries: Sequence[Entry], bits: int, *, waits: bool = False) -> bytes:
        sends = [send for _, send, _ in entries]
        least = header_qos(bits, self.form.dialect)
        is_one_way = self.is_joyqueue and least is Qos.NO  # whatever the body says
        for send in sends:
            if is_one_way or least.strength > send.qos.strength:
                send.qos = least
        command = ProduceMessage(tuple(entry for entry, _, _ in entries), self.app)
        self.sent_count += 1
        if all(send.qos is Qos.NO for send in sends):
            return self.ask(command, None, qos_bits=bits, waits=waits)
        self._outstanding += 1

        def then(status: int, ack: Ack | None) -> None:
            self._outstanding -= 1
            self._answered(entries, status, ack)

        def lost() -> None:
            self.stage.history.counts["send cut off"] += len(entries)
            for one in entries:
                self._maybe_again(one)

        return self.ask(command, then, lost, bits, waits=waits)

    def _answered(self, entries: Sequence[Entry], status: int, ack: Ack | None) -> None:
        history, now_ms = self.stage.history, self.stage.now_ms()
        if status or ack is None:
            for one in entries:
                history.sent(one[1], status or 4, (), now_ms)
                if one[1].outcome == "unknown":
                    self._maybe_again(one)
            return
        if [topic.topic for topic in ack.topics] != [send.topic for _, send, _ in entries]:
            violate("answers", f"{[send for _, send, _ in entries]} answered by {ack}")
        for one, told in zip(entries, ack.topics, strict=True):
            history.sent(one[1], told.code, [(result.partition, result.index) for result in told.results], now_ms)
            if one[1].outcome == "unknown":
                self._maybe_again(one)
            elif one[1].outcome == "ok" and self.stage.rng.random() < self.habits.repeats:
                self._once_more(one)
        if any(topic.code in ROLE_CODES for topic in ack.topics):
            self._later_on(self.stage.rng.randint(20, 60), "still here", self._say_hello)

    def _say_hello(self) -> None:
        self.ask(Heartbeat(), ignore)

    def _maybe_again(self, entry: Entry) -> None:
        _, send, datas = entry
        if not datas or send.qos is Qos.NO or len(self._again) > 20:
            return
        for carrier, data in zip(send.carriers, datas, strict=True):
            if self.stage.rng.random() < self.habits.retries:
                self._again.append((send, carrier, _unnamed(data)))

    def _once_more(self, entry: Entry) -> None:
        """The answer was lost on this side: what has an id may be sent again at any time."""
        _, send, datas = entry
        for carrier, data in zip(send.carriers, datas, strict=False):
            if carrier.uniq_id:
                self._again.append((send, carrier, _unnamed(data)))

    def _nonsense(self, topic: str, level: Qos) -> None:
        """What must be refused, and leave nothing."""
        rng = self.stage.rng
        kinds = ["partition", "transaction", "delay"]
        kinds += [] if self.stage.creates_missing else ["topic"]
        kinds += [] if self.is_joyqueue else ["crc"]
        what = rng.choice(kinds)
        partition = self._partition(topic)
        key = "k0"
        if what == "partition":
            partition, key = self.stage.topics[topic].partitions + 40, ""  # a key would choose for itself
        carrier, data = self._carrier(topic, key, partition, is_batch=False)
        if what == "delay":
            number, body = self._payload(topic, "k0")
            attributes = {"DELIVER_AT": "when it suits you"}
            data = pack(Message(body=body, attributes=attributes, app=self.app, partition=partition))
            carrier = CarrierOf((number,))
        elif what == "crc":
            data = data[:33] + b"\0\0\0\0\x12\x34\x56\x78" + data[41:]
        named = topic if what != "topic" else "nowhere.to-be-found"
        tx_id = "not-begun" if what == "transaction" else ""
        entry, send, _ = self._entry(topic, level, [carrier], [data], partition, 0, tx_id)
        entry.topic = send.topic = named
        self.stage.history.counts[f"nonsense {what}"] += 1
        self._request([(entry, send, ())], self._bits(level))


def _unnamed(data: bytes) -> bytes:
    """The same message, for any partition."""
    return data[:4] + b"\xff\xff" + data[6:]
