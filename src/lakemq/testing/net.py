"""A network in the simulation: connections between clients without sockets and an Engine.

Bytes stay in order in each direction, and that is all that is promised: they come in pieces, late, or not at all. A
client is told of its connection's end only after the broker's side of it is over, so nothing of it comes in later.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Protocol

from lakemq.embedded import Engine, Pipe

At = Callable[[int, str, Callable[[], None]], None]
"""Do this so many milliseconds from now, under that name."""


class Peer(Protocol):
    """The client's end of a connection."""

    def received(self, data: bytes, left_ms: int) -> None:
        """Bytes came in, which left the broker at that time."""
        ...

    def let_go(self) -> None:
        """The broker's side of the connection is over; the client does not know yet."""
        ...

    def cut_off(self) -> None:
        """The connection is over, and the broker knows."""
        ...


class Process(Protocol):
    """Whoever runs the broker, one thing after the other."""

    engine: Engine | None

    def act(self, name: str, work: Callable[[Engine], None]) -> None:
        """Let the broker do something, if it runs."""
        ...


@dataclass(frozen=True, slots=True)
class Weather:
    """How one connection behaves."""

    delay_ms: int = 1  # up to so much in each direction
    is_choppy: bool = False  # pieces of any size, down to one byte
    reads_every_ms: int = 0  # a slow reader looks only so often; 0 at once
    output_bytes_max: int | None = None  # and this much may wait for it before the broker is told


class Link:
    """One connection."""

    def __init__(self, network: "Network", peer: Peer, pipe: Pipe, weather: Weather) -> None:
        self.is_over = False  # for the client
        self.weather = weather
        self.pipe: Pipe | None = pipe  # None once the broker's side is over
        self._network = network
        self._peer = peer
        self._up: deque[bytes] = deque()  # on their way to the broker
        self._down: deque[tuple[bytes, int]] = deque()  # on their way to the client, with the time they left
        self._held: deque[bytes] = deque()  # arrived while the broker does not read
        self._up_ms = self._down_ms = network.now_ms()  # when the last piece arrives
        self._is_deaf = False  # what the broker says is lost
        pipe.output_bytes_max = weather.output_bytes_max
        if weather.reads_every_ms:
            self._look_later()

    # --- the client's side ---------------------------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        """Bytes for the broker."""
        if self.is_over or self.pipe is None:
            return
        for piece in self._pieces(data):
            self._up.append(piece)
            self._up_ms = max(self._up_ms, self._network.now_ms() + self._delay_ms())
            self._network.at(self._up_ms - self._network.now_ms(), "arrive", self._arrive)

    def hang_up(self) -> None:
        """The client ends it, in the middle of whatever goes on."""
        self.cut(loses_reply=False)

    # --- the broker's side -----------------------------------------------------------------------------------------

    @property
    def has_something(self) -> bool:
        """Whether `collect` may find something to do."""
        pipe = self.pipe
        return pipe is not None and (bool(pipe.sent) or pipe.is_closed or (bool(self._held) and not pipe.is_paused))

    def collect(self) -> None:
        """Take what the broker has to say, unless this is a slow reader."""
        pipe = self.pipe
        if pipe is None:
            return
        if self._held and not pipe.is_paused:
            self._feed_held()
        if self.pipe is not None and (pipe.is_closed or self._network.is_calm or not self.weather.reads_every_ms):
            self._take()

    def broker_died(self) -> None:
        """The process at the other end is gone. What has left it may still arrive."""
        if self.pipe is None:
            return
        if self._network.rng.random() < 0.3:
            self._down.clear()
        self._end_broker_side()

    def cut(self, *, loses_reply: bool) -> None:
        """The network breaks: mid-frame, or after the broker has got it all while its answers are lost (F28)."""
        if self.pipe is None:
            return
        rng = self._network.rng
        self._is_deaf = True
        if loses_reply or rng.random() < 0.3:
            self._down.clear()
        count = len(self._up) if loses_reply else rng.randint(0, len(self._up))
        for _ in range(count):
            self._arrive()
        if loses_reply:
            self._network.at(rng.randint(1, 40), "hang up", self._hang_up)
        else:
            self._hang_up()

    # --- inside ----------------------------------------------------------------------------------------------------

    def _delay_ms(self) -> int:
        return self._network.rng.randint(0, self.weather.delay_ms)

    def _pieces(self, data: bytes) -> list[bytes]:
        rng = self._network.rng
        if not self.weather.is_choppy or rng.random() < 0.5:
            return [data]
        if len(data) <= 40 and rng.random() < 0.06:
            return [data[at : at + 1] for at in range(len(data))]
        cuts = sorted({rng.randint(1, len(data)) for _ in range(rng.randint(1, 3))} | {len(data)})
        return [data[start:end] for start, end in zip([0, *cuts], cuts, strict=False)]

    def _arrive(self) -> None:
        if not self._up:
            return  # it was lost, or came earlier
        piece = self._up.popleft()
        pipe = self.pipe
        if pipe is None:
            return
        if self._held or (pipe.is_paused and self._network.rng.random() < 0.7):
            self._held.append(piece)
            return
        self._network.host.act("bytes", lambda engine: pipe.feed(piece))

    def _feed_held(self) -> None:
        data = b"".join(self._held)
        self._held.clear()
        pipe = self.pipe
        if pipe is not None:
            self._network.host.act("bytes", lambda engine: pipe.feed(data))

    def _look_later(self) -> None:
        def look() -> None:
            if self.pipe is not None:
                self._take()
                self._look_later()

        self._network.at(self.weather.reads_every_ms, "look", look)

    def _take(self) -> None:
        pipe = self.pipe
        assert pipe is not None
        taken: list[bytes] = []
        if pipe.sent:
            # Taking may let the broker go on with what waited: that is an act of its own.
            self._network.host.act("read", lambda engine: taken.append(pipe.take()))
        is_closed = pipe.is_closed
        if taken and taken[0] and not self._is_deaf:
            now_ms = self._network.now_ms()
            for piece in self._pieces(taken[0]):
                self._down.append((piece, now_ms))
                self._down_ms = max(self._down_ms, now_ms + self._delay_ms())
                self._network.at(self._down_ms - now_ms, "deliver", self._deliver)
        if is_closed and not pipe.sent and self.pipe is pipe:
            self._end_broker_side()

    def _deliver(self) -> None:
        if self._down and not self.is_over:
            data, left_ms = self._down.popleft()
            self._network.moved(data)
            self._peer.received(data, left_ms)

    def _hang_up(self) -> None:
        pipe = self.pipe
        if pipe is not None:
            self._end_broker_side()
            self._network.host.act("hung up", lambda engine: pipe.hang_up())

    def _end_broker_side(self) -> None:
        self.pipe = None
        self._up.clear()
        self._held.clear()
        self._network.forget(self)
        self._peer.let_go()
        now_ms = self._network.now_ms()
        self._down_ms = max(self._down_ms, now_ms) + self._delay_ms()
        self._network.at(self._down_ms - now_ms, "cut off", self._tell_client)

    def _tell_client(self) -> None:
        if not self.is_over:
            self.is_over = True
            self._down.clear()
            self._peer.cut_off()


class Network:
    """All connections to one broker."""

    def __init__(
        self, rng: Random, at: At, now_ms: Callable[[], int], host: Process, moved: Callable[[bytes], None]
    ) -> None:
        self.rng = rng
        self.at = at
        self.now_ms = now_ms
        self.host = host
        self.moved = moved  # told of what arrives, for the record
        self.links: dict[Link, None] = {}
        self.is_calm = False  # everybody reads at once

    def connect(self, peer: Peer, weather: Weather, host_name: str) -> Link | None:
        """A new connection; None if nobody is there."""
        made: list[Pipe] = []
        self.host.act("connect", lambda engine: made.append(engine.connect(host_name)))
        if not made or made[0].is_closed:
            return None
        link = Link(self, peer, made[0], weather)
        self.links[link] = None
        return link

    def forget(self, link: Link) -> None:
        """Its broker's side is over."""
        self.links.pop(link, None)

    def collect(self) -> None:
        """The broker has done something: see what it has to say."""
        talking = [link for link in self.links if link.has_something]
        for link in talking:
            link.collect()

    def broker_died(self) -> None:
        """All of them end."""
        for link in list(self.links):
            link.broker_died()
