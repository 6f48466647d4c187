"""The real client core in the simulation: its effects become bytes on simulated links, its timers simulated time.

What users import drives the same core over sockets and threads. So what is found here is theirs.
"""

from collections.abc import Callable
from random import Random

from lakemq.client.address import Address
from lakemq.client.config import ClientConfig
from lakemq.client.core import Core
from lakemq.client.effects import Close, Connect, Note, Send, Store
from lakemq.client.errors import BrokerUnreachableError, ConnectionLostError
from lakemq.client.session import Session, State
from lakemq.errors import BadFrameError
from lakemq.testing.clock import SimClock
from lakemq.testing.net import At, Link, Network, Weather
from lakemq.wire.frame import FrameDecoder


class _Wire:
    """One connection of the client: the far end of a link."""

    def __init__(self, owner: "CoreClient", session: Session) -> None:
        self.session = session
        self.link: Link | None = None
        self._owner = owner
        self._decoder = FrameDecoder()

    def received(self, data: bytes, left_ms: int) -> None:
        """Bytes came; whole frames are the core's."""
        try:
            frames = [memoryview(frame) for frame in self._decoder.feed(data)]
        except BadFrameError as error:
            self._owner.over(self, ConnectionLostError(str(error)))
            return
        if frames:
            self._owner.act(lambda core: core.received(self.session, frames))

    def let_go(self) -> None:
        """The broker's side is over; the client does not know yet."""

    def cut_off(self) -> None:
        """The client learns of it."""
        self._owner.over(self, ConnectionLostError("the simulated network broke"))


class CoreClient:
    """Runs one core. `act` is the only way in."""

    def __init__(
        self,
        clock: SimClock,
        at: At,
        networks: dict[Address, Network],
        config: ClientConfig,
        seeds: tuple[Address, ...],
        rng: Random,
        weather: Weather,
    ) -> None:
        self.core = Core(config, seeds, rng.random)
        self._clock = clock
        self._at = at
        self._networks = networks
        self._rng = rng
        self._weather = weather
        self._wires: dict[Session, _Wire] = {}
        self._is_acting = False
        self._next_tick_ms: int | None = None
        self._is_dead = False
        self.file = bytearray()  # of the outbox: what is in it is on disk
        self.core.advance(clock.monotonic_ms(), clock.wall_ms())

    def act(self, work: Callable[[Core], object]) -> None:
        """Tell the core of something, and do what it asks for."""
        if self._is_dead:
            return
        core = self.core
        core.advance(self._clock.monotonic_ms(), self._clock.wall_ms())
        work(core)
        if self._is_acting:
            return
        self._is_acting = True
        try:
            while True:
                effects = core.take_effects()
                if not effects:
                    break
                for effect in effects:
                    self._do(effect)
        finally:
            self._is_acting = False
        self._tick_when_due()

    def die(self) -> None:
        """kill -9 of the user's program: its connections end, and nobody hears what became of its requests."""
        self._is_dead = True
        wires, self._wires = self._wires, {}
        for wire in wires.values():
            if wire.link is not None:
                wire.link.hang_up()

    def over(self, wire: _Wire, error: ConnectionLostError) -> None:
        """A connection is gone."""
        if self._wires.pop(wire.session, None) is not None:
            self.act(lambda core: core.lost(wire.session, error))

    def _do(self, effect: object) -> None:
        if isinstance(effect, Connect):
            self._at(self._rng.randint(0, 3), "connect", lambda: self._connect(effect.session))
        elif isinstance(effect, Send):
            wire = self._wires.get(effect.session)
            if wire is not None and wire.link is not None:
                wire.link.send(b"".join(map(bytes, effect.buffers)))
        elif isinstance(effect, Close):
            wire = self._wires.pop(effect.session, None)
            if wire is not None and wire.link is not None:
                wire.link.hang_up()
        elif isinstance(effect, Store):
            self.file[len(self.file) if not effect.rewrite else 0 :] = effect.data
            effect.done.resolve(None)
        else:
            assert isinstance(effect, Note)

    def _connect(self, session: Session) -> None:
        if session.state is not State.CONNECTING:
            return
        wire = _Wire(self, session)
        network = self._networks.get(session.address)
        wire.link = network.connect(wire, self._weather, "10.0.0.9") if network is not None else None
        if wire.link is None:
            self.act(lambda core: core.lost(session, BrokerUnreachableError(f"{session.address}: refused")))
            return
        self._wires[session] = wire
        self.act(lambda core: core.opened(session))

    def _tick_when_due(self) -> None:
        due_ms = self.core.next_ms
        if due_ms is None or (self._next_tick_ms is not None and self._next_tick_ms <= due_ms):
            return
        self._next_tick_ms = due_ms

        def tick() -> None:
            if self._next_tick_ms == due_ms:
                self._next_tick_ms = None
                self.act(lambda core: core.tick())

        self._at(max(due_ms - self._clock.monotonic_ms(), 0), "tick of a client", tick)
