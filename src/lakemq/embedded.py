"""A broker inside the process: the real engine, without sockets, threads or a loop of its own.

Whoever uses it calls `settle`, which does all that can be done without time passing: turns, syncs, checkpoints. Time
passes when the clock says so. Used by `lakemq.connect()` without an address, by `lakemq.testing`, and by simulations.
"""

import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from lakemq.broker.config import BrokerConfig
from lakemq.broker.core import Broker
from lakemq.broker.events import (
    AdminAsked,
    CheckpointWritten,
    ConnectionClosed,
    ConnectionOpened,
    Event,
    FramesReceived,
    JournalSynced,
    Now,
    OutputDrained,
    StopAsked,
    StreamBroken,
    Tick,
    TurnEnded,
)
from lakemq.broker.ledger import State
from lakemq.clock import Clock
from lakemq.errors import BadFrameError, LakeMQError, ServiceUnavailableError
from lakemq.storage.checkpoint import CheckpointTicket
from lakemq.storage.config import StorageConfig
from lakemq.storage.disk import Buffer, Disk
from lakemq.storage.journal import SyncTicket
from lakemq.storage.recovery import open_group
from lakemq.wire.frame import FrameDecoder
from lakemq.wire.joyqueue_message import client_address

LOOPBACK = client_address(bytes([127, 0, 0, 1]), 0)
_SETTLE_ROUNDS_MAX = 10_000


class Pipe:
    """One connection: the broker's port on the inside, bytes in and bytes out on the outside."""

    def __init__(self, engine: "Engine", number: int, host: str) -> None:
        self.id = number
        self.host = host
        self.address = LOOPBACK
        self.is_ipv6 = False
        self.local_host = "127.0.0.1"
        self.local_port = 50088
        self.session: Any = None
        self.is_paused = False
        self.is_closed = False  # by the broker
        self.output_bytes_max: int | None = None  # past it the broker is told that nobody reads
        self.sent: deque[bytes] = deque()  # what the broker sent and nobody took yet, a frame or more each
        self._engine = engine
        self._decoder = FrameDecoder(engine.config.limits.frame_bytes_max)
        self._is_full = False

    # --- inside ------------------------------------------------------------------------------------------------

    def send(self, buffers: Sequence[Buffer]) -> bool:
        """Keep it until it is taken: a copy, as a socket would make."""
        self.sent.append(b"".join(buffers))
        limit = self.output_bytes_max
        self._is_full = limit is not None and sum(map(len, self.sent)) > limit
        return not self._is_full

    def pause(self) -> None:
        """The broker reads no more for now."""
        self.is_paused = True

    def resume(self) -> None:
        """The broker reads on."""
        self.is_paused = False

    def close(self) -> None:
        """The broker hangs up."""
        if not self.is_closed:
            self.is_closed = True
            self._engine.later(ConnectionClosed(self.id))

    # --- outside -----------------------------------------------------------------------------------------------

    def feed(self, data: Buffer) -> None:
        """The peer's bytes arrive."""
        view = memoryview(data)
        while len(view) and not self.is_closed:
            room = self._decoder.room()
            size = min(len(room), len(view))
            room[:size] = view[:size]
            view = view[size:]
            try:
                frames = self._decoder.received_run(size)
            except BadFrameError as error:
                self._engine.handle(StreamBroken(self.id, error))
                return
            if frames is not None:
                self._engine.handle(FramesReceived(self.id, frames))
            if self._decoder.is_broken:
                self._engine.handle(StreamBroken(self.id, BadFrameError("what follows is no frame")))
                return

    def take(self) -> bytes:
        """What the broker has sent."""
        data = b"".join(self.sent)
        self.sent.clear()
        if self._is_full:
            self._is_full = False
            self._engine.handle(OutputDrained(self.id))
        return data

    def hang_up(self) -> None:
        """The peer is gone."""
        if not self.is_closed:
            self.is_closed = True
            self._engine.handle(ConnectionClosed(self.id))


class Engine:
    """A broker over any disk and clock. `tickets` are syncs and checkpoints that somebody has to run."""

    def __init__(
        self,
        disk: Disk,
        clock: Clock,
        config: BrokerConfig | None = None,
        storage: StorageConfig | None = None,
        note: Callable[[str, str], None] | None = None,
    ) -> None:
        self.config = config or BrokerConfig(creates_missing=True)
        self.clock = clock
        self.is_stopped = False
        self.failure: str | None = None
        self.tickets: deque[SyncTicket | CheckpointTicket] = deque()
        self.notes: deque[tuple[str, str]] = deque(maxlen=1000)
        self._note = note
        self._pipes: dict[int, Pipe] = {}
        self._numbers = 0
        self._later: deque[Event] = deque()
        state = State(self.config)
        self.group = open_group(disk, storage, state)
        self.broker = Broker(self.config, self, self.group, state, self.now())

    # --- outside -----------------------------------------------------------------------------------------------

    def now(self) -> Now:
        """What the clock says."""
        return Now(self.clock.wall_ms(), self.clock.monotonic_ms())

    def connect(self, host: str = "127.0.0.1") -> Pipe:
        """One more connection."""
        if self.is_stopped:
            raise ServiceUnavailableError("the broker has stopped")
        self._numbers += 1
        pipe = self._pipes[self._numbers] = Pipe(self, self._numbers, host)
        self.handle(ConnectionOpened(pipe))
        return pipe

    def handle(self, event: Event) -> None:
        """Something happened."""
        self._later.append(event)
        while self._later:
            event = self._later.popleft()
            if isinstance(event, ConnectionClosed):
                self._pipes.pop(event.connection, None)
            self.broker.handle(event, self.now())

    def later(self, event: Event) -> None:
        """Something the core caused: it is told when it has finished what it is at."""
        self._later.append(event)

    def end_turn(self) -> None:
        """All that arrived was handed in."""
        self.handle(TurnEnded())

    def tick(self) -> None:
        """Time may have passed."""
        self.handle(Tick())
        self.end_turn()

    def run_ticket(self) -> None:
        """Run the oldest sync or checkpoint, and bring it back."""
        ticket = self.tickets.popleft()
        failure = None
        try:
            ticket.run()
        except OSError as error:
            failure = error
        self.bring_back(ticket, failure)

    def bring_back(self, ticket: SyncTicket | CheckpointTicket, failure: OSError | None) -> None:
        """A ticket was run, here or elsewhere."""
        if isinstance(ticket, SyncTicket):
            self.handle(JournalSynced(ticket, failure))
        else:
            self.handle(CheckpointWritten(ticket, failure))

    def settle(self) -> None:
        """Do all that can be done without time passing."""
        for _ in range(_SETTLE_ROUNDS_MAX):
            self.end_turn()
            if self.tickets:
                self.run_ticket()
            elif not self.broker.needs_turn:  # else somebody held back went on meanwhile
                return
        raise AssertionError("the broker does not come to rest")

    def ask(self, action: str, **arguments: Any) -> Any:
        """An operator's action, done when this returns."""
        answers: list[tuple[Any, LakeMQError | None]] = []
        self.handle(AdminAsked(action, arguments, lambda result, error: answers.append((result, error))))
        self.settle()
        assert len(answers) == 1, "asked once, answered once"
        result, error = answers[0]
        if error is not None:
            raise error
        return result

    def drop_connections(self) -> None:
        """Every peer finds its connection cut; the broker is told nothing, as when it is the one that died."""
        for pipe in self._pipes.values():
            pipe.is_closed = True
            pipe.sent.clear()
        self._pipes.clear()

    def close(self) -> None:
        """Stop in peace: everything is synced, the next start is short."""
        if not self.is_stopped:
            self.handle(StopAsked())
            self.settle()
            self.tick()
        with contextlib.suppress(LakeMQError):
            if self.failure is None:
                self.group.close()
            else:
                self.group.abandon()

    # --- what the core asks for ----------------------------------------------------------------------------------

    def sync(self, ticket: SyncTicket) -> None:
        """Somebody runs it."""
        self.tickets.append(ticket)

    def checkpoint(self, ticket: CheckpointTicket) -> None:
        """Somebody runs it."""
        self.tickets.append(ticket)

    def stop(self, failure: str | None) -> None:
        """The core is done."""
        self.is_stopped = True
        self.failure = failure

    def note(self, level: str, text: str) -> None:
        """A line for whoever listens."""
        self.notes.append((level, text))
        if self._note is not None:
            self._note(level, text)
