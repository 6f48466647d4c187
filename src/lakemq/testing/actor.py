"""A client of the simulation: one connection at a time, requests and their answers, on the wire's commands.

Not the product's client. The actors built on it do what clients do, also what they should not: die with messages in
hand, ack late, twice or with gaps, send again what may be stored. All they ask and are told goes into the history.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from lakemq.attributes import decode_attributes
from lakemq.broker.references import ATTEMPT, ORIGIN_INDEX, ORIGIN_PARTITION
from lakemq.broker.resending import RESENT
from lakemq.clock import Clock
from lakemq.delivery.uniq import UNIQ_ID
from lakemq.envelope import open_fields
from lakemq.message import BatchMessage, Message
from lakemq.record import BATCH_BIT, COMPRESSED_BIT, Buffer, MessageFields, read_fields
from lakemq.testing.history import Delivered, History, Origin, ViolationError, violate
from lakemq.testing.net import At, Link, Network, Weather
from lakemq.wire.commands import Ack, Command, decode_response, encode_request
from lakemq.wire.consume import RETRY_PARTITION
from lakemq.wire.dialect import Dialect, Form
from lakemq.wire.frame import FrameDecoder
from lakemq.wire.header import BOOLEAN_ACK
from lakemq.wire.messages import MessageBlock
from lakemq.wire.session import AddConnection

ROLE_CODES = (1, 134, 136, 189)  # the role or the topic is gone: say again who we are
_FRAME_BYTES_MAX = 4 << 20
_CHUNK_BYTES = 32 << 10
_RETRY_ID_BITS = 44  # of an index in the partition of retries; the attempt is above them


@dataclass(slots=True)
class TopicFacts:
    """What clients believe of a topic."""

    name: str
    partitions: int
    is_ordered: bool = False
    is_gone: bool = False
    is_archived: bool = False

    def settings(self) -> dict[str, Any]:
        """As `create_topic` wants them."""
        kind = "ordered" if self.is_ordered else "normal"
        return {"name": self.name, "partitions": self.partitions, "type": kind, "is_archived": self.is_archived}


@dataclass(slots=True)
class Stage:
    """What all actors share."""

    rng: Random
    clock: Clock
    at: At
    network: Network
    history: History
    end_index: Callable[[str, int], int]  # behind all that may be in a partition now
    topics: dict[str, TopicFacts] = field(default_factory=dict)
    subscriptions: dict[str, list[str]] = field(default_factory=dict)  # topics by app
    shows_written: bool = False  # messages are seen before they are synced
    creates_missing: bool = False  # the broker makes topics when they are first named
    is_calm: bool = False  # nobody misbehaves any more, and nobody sends
    token: str = "a token of the simulation"

    def now_ms(self) -> int:
        """Monotonic time."""
        return self.clock.monotonic_ms()

    def topics_of(self, app: str) -> list[str]:
        """The topics that an app consumes, as far as they are still there."""
        return [one for one in self.subscriptions.get(app, ()) if not self.topics[one].is_gone]

    def living_topics(self) -> list[TopicFacts]:
        """The topics that are still there."""
        return [one for one in self.topics.values() if not one.is_gone]


Then = Callable[[int, Ack | None], None]
Lost = Callable[[], None]


class Client:
    """One connection at a time; requests and their answers."""

    def __init__(
        self, stage: Stage, name: str, app: str, form: Form, weather: Weather, host_name: str = "10.0.0.1"
    ) -> None:
        self.stage = stage
        self.name = name
        self.app = app
        self.form = form
        self.connection = 0  # counts them, over all clients
        self.is_retired = False
        self.is_leaving = False  # it has said so, and what it is still given is no longer its own
        self.left_ms = 0  # when what is being received left the broker
        self._weather = weather
        self._host_name = host_name
        self._link: Link | None = None
        self._decoder = FrameDecoder(_FRAME_BYTES_MAX, _CHUNK_BYTES)
        self._pending: dict[int, tuple[str, int, Then, Lost | None]] = {}
        self._request_id = stage.rng.randint(-3, 1000)

    @property
    def is_joyqueue(self) -> bool:
        """Which dialect it speaks."""
        return self.form.dialect is Dialect.JOYQUEUE

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection, as far as it knows."""
        return self._link is not None

    @property
    def is_let_go(self) -> bool:
        """Whether the broker's side of the connection is over, which the client cannot know."""
        return self.is_leaving or self._link is None or self._link.pipe is None

    @property
    def pending(self) -> list[str]:
        """What it waits for."""
        return self.pending_since(self.stage.now_ms())

    def pending_since(self, asked_ms: int) -> list[str]:
        """What it has waited for since then or longer."""
        return [f"{name} since {since}" for name, since, _, _ in self._pending.values() if since <= asked_ms]

    # --- connections -------------------------------------------------------------------------------------------

    def connect(self) -> None:
        """Try until somebody is there."""
        if self.is_retired or self._link is not None:
            return
        link = self.stage.network.connect(self, self._weather, self._host_name)
        if link is None:
            self._later(self.stage.rng.randint(20, 80), "connect", self.connect)
            return
        self._link = link
        self.is_leaving = False
        self._decoder = FrameDecoder(_FRAME_BYTES_MAX, _CHUNK_BYTES)
        self.stage.history.counts["connections"] += 1
        self.connection = self.stage.history.counts["connections"]
        self._introduce()

    def _introduce(self) -> None:
        hello = AddConnection(app=self.app, token=self.stage.token, language=3, version="lakemq-sim", ip="10.0.0.1")

        def introduced(status: int, ack: Ack | None) -> None:
            if status:
                self.hang_up()  # and try again: what it needs may come yet
            else:
                self.introduced()

        self.ask(hello, introduced)

    def introduced(self) -> None:
        """The broker knows who this is."""

    def hang_up(self) -> None:
        """End the connection, whatever is under way; a new one follows unless it has retired."""
        if self._link is not None:
            self._link.hang_up()

    def retire(self) -> None:
        """Go for good."""
        self.is_retired = True
        self.hang_up()

    def cut(self, *, loses_reply: bool) -> None:
        """The network breaks."""
        if self._link is not None:
            self._link.cut(loses_reply=loses_reply)

    def let_go(self) -> None:
        """As `Peer` says."""
        self.stage.history.connection_over(self.connection)

    def cut_off(self) -> None:
        """As `Peer` says."""
        self._link = None
        pending, self._pending = self._pending, {}
        for _, _, _, lost in pending.values():
            if lost is not None:
                lost()
        self.was_cut_off()
        if not self.is_retired:
            self._later(self.stage.rng.randint(5, 60), "connect", self.connect)

    def was_cut_off(self) -> None:
        """For those who remember things of a connection."""

    # --- asking ------------------------------------------------------------------------------------------------

    def ask(
        self, command: Command, then: Then | None, lost: Lost | None = None, qos_bits: int = 1, *, waits: bool = False
    ) -> bytes:
        """Send a request; `then` is told its answer, `lost` that there will be none. None for `then`: none is due.

        With `waits` the bytes are only returned, to be sent together with others.
        """
        self._request_id += 1
        name = type(command).__name__
        self.stage.history.counts[f"asked {name}"] += 1
        if then is not None:
            self._pending[self._request_id] = name, self.stage.now_ms(), then, lost
        buffers = encode_request(
            command,
            form=self.form,
            request_id=self._request_id,
            send_time_ms=self.stage.clock.wall_ms(),
            qos_bits=qos_bits,
        )
        data = b"".join(buffers)
        if not waits:
            self.send(data)
        return data

    def send(self, data: bytes) -> None:
        """Bytes for the broker."""
        if self._link is not None:
            self._link.send(data)

    def received(self, data: bytes, left_ms: int) -> None:
        """As `Peer` says."""
        self.left_ms = left_ms
        link = self._link
        for frame in self._decoder.feed(data):
            if self._link is not link:
                return  # hung up meanwhile
            header, ack = decode_response(frame, self.form.dialect)
            asked = self._pending.pop(header.request_id, None)
            if not header.is_response or asked is None:
                violate("answers", f"{self.name} got an answer that it did not wait for: {header} {ack}")
                return
            if header.type == BOOLEAN_ACK and not self.is_joyqueue:
                violate("answers", f"a BOOLEAN_ACK in the documented dialect: {header}")
            self.stage.history.counts["answers"] += 1
            self.stage.history.counts[f"answers {self.form.dialect.value}"] += 1
            if header.status:
                self.stage.history.counts[f"status {header.status}"] += 1
            asked[2](header.status, ack)

    def _later(self, delay_ms: int, name: str, work: Callable[[], None]) -> None:
        self.stage.at(delay_ms, f"{self.name} {name}", work)

    def _later_on(self, delay_ms: int, name: str, work: Callable[[], None]) -> None:
        """The same, but only if the connection is still this one."""
        connection = self.connection

        def still() -> None:
            if self._link is not None and self.connection == connection:
                work()

        self.stage.at(delay_ms, f"{self.name} {name}", still)

    # --- reading what was handed out -----------------------------------------------------------------------------

    def open_block(self, topic: str, block: MessageBlock, partition: int | None = None) -> tuple[int, list[Delivered]]:
        """The partition and the messages of an answer."""
        history = self.stage.history
        found: list[Delivered] = []
        data = block.stored().joined() if block.count else b""
        at = 0
        while at < len(data):
            fields, at = read_fields(data, at)
            if partition is None:
                partition = fields.partition
            if fields.partition != partition:
                violate("I02", f"{topic}: messages of partitions {partition} and {fields.partition} in one answer")
            history.stored_ms = fields.send_time_ms + fields.store_time_ms
            if partition == RETRY_PARTITION:
                found.append(self._open_retry(topic, fields))
                continue
            self._note_copy(topic, fields)
            if fields.system_code & (BATCH_BIT | COMPRESSED_BIT):
                opened = open_fields(fields)
                each = opened.messages() if isinstance(opened, BatchMessage) else [opened]
                members = [history.body_of(topic, partition, one.index, one.body, self.left_ms) for one in each]
                found += [replace(one, carrier=fields.index) for one in members]
            else:
                found.append(history.body_of(topic, partition, fields.index, fields.body, self.left_ms))
        return partition if partition is not None else -1, found

    def _note_copy(self, topic: str, fields: MessageFields) -> None:
        """A message that an operator sent once more says of which it is a copy."""
        if RESENT.encode() in fields.attributes:
            said = decode_attributes(fields.attributes)
            origin = Origin(said[RESENT], said.get(UNIQ_ID, ""))
            self.stage.history.copies[topic, fields.partition, fields.index] = origin

    def _open_retry(self, topic: str, fields: MessageFields) -> Delivered:
        """A message that is tried again says where it comes from."""
        message = open_fields(fields)
        said = decode_attributes(fields.attributes)
        if not isinstance(message, Message) or not {ATTEMPT, ORIGIN_PARTITION, ORIGIN_INDEX} <= set(said):
            raise ViolationError(f"I03: {topic}: {fields} is no retry")
        place = int(said[ORIGIN_PARTITION]), int(said[ORIGIN_INDEX])
        one = self.stage.history.body_of(topic, *place, message.body, self.left_ms)
        self.stage.history.counts["retries delivered"] += 1
        attempt = int(said[ATTEMPT])
        if fields.index >> _RETRY_ID_BITS != attempt:
            violate("I03", f"{topic}: {fields} is attempt {attempt} by its attributes, and another one by its index")
        # Who has a retry has it whatever the attempt, so it goes by its id; settled it is by what it came as.
        return replace(one, index=fields.index % (1 << _RETRY_ID_BITS), carrier=fields.index, attempt=attempt)


def bodies_of(messages: Buffer) -> list[bytes]:
    """What was sent, taken out of stored messages."""
    found: list[bytes] = []
    at = 0
    while at < len(messages):
        fields, at = read_fields(messages, at)
        opened = open_fields(fields)
        found += [one.body for one in opened.messages()] if isinstance(opened, BatchMessage) else [opened.body]
    return found


def ignore(status: int, ack: Ack | None) -> None:
    """Nobody wants to know."""
