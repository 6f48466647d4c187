"""A member of an app that lets the coordinator share the partitions out: who that is it asks any broker.

Raw commands, as JoyQueue's clients send them: FIND_COORDINATOR, then FETCH_ASSIGNED_PARTITION again and again.
"""

from collections.abc import Callable, Sequence
from random import Random

from lakemq.client.address import Address
from lakemq.testing.clock import SimClock
from lakemq.testing.facts import violate
from lakemq.testing.net import At, Link, Network, Weather
from lakemq.wire.commands import Ack, Command, decode_response, encode_request
from lakemq.wire.coordinate import AssignmentWish, FetchAssignedPartition, FindCoordinator
from lakemq.wire.dialect import Form
from lakemq.wire.frame import FrameDecoder
from lakemq.wire.session import AddConnection, AddConsumer

_PAUSE_MS = 120


class _Line:
    """The member's end of one connection: an old one has nothing to say any more."""

    def __init__(self, member: "Member") -> None:
        self.link: Link | None = None
        self._member = member
        self._decoder = FrameDecoder()

    def received(self, data: bytes, left_ms: int) -> None:
        """Answers, each to whom it is for."""
        for frame in self._decoder.feed(data):
            if self._member.line is self:
                self._member.answered(bytearray(frame))

    def let_go(self) -> None:
        """The broker's side is over."""

    def cut_off(self) -> None:
        """The member learns of it."""
        if self._member.line is self:
            self._member.begin_again()


class Member:
    """Asks for its partitions until the run is over; `assigned` is the last answer."""

    def __init__(
        self,
        rng: Random,
        clock: SimClock,
        at: At,
        networks: dict[Address, Network],
        name: str,
        app: str,
        token: str,
        topic: str,
        form: Form,
        session_ms: int,
    ) -> None:
        self.name = name
        self.assigned: tuple[int, ...] = ()
        self.told_ms = -1
        self._rng = rng
        self._clock = clock
        self._at = at
        self._networks = networks
        self._app = app
        self._token = token
        self._topic = topic
        self._form = form
        self._session_ms = session_ms
        self.line: _Line | None = None
        self._next_id = 0
        self._then: dict[int, Callable[[int, Ack | None], None]] = {}

    def begin(self) -> None:
        """Ask any broker who the coordinator is."""
        self._reach(self._rng.choice(list(self._networks)), self._find)

    def check_alone(self, members: "Sequence[Member]", partitions: int) -> None:
        """I14: long after the last trouble every partition is assigned to one of the members."""
        shared = [partition for one in members for partition in one.assigned]
        if sorted(shared) != list(range(partitions)):
            told = {one.name: (one.assigned, one.told_ms) for one in members}
            violate("I14", f"{partitions} partitions were shared out as {told}")

    # --- the conversation ----------------------------------------------------------------------------------------

    def _find(self) -> None:
        self._ask(FindCoordinator((self._topic,), self._app), self._found)

    def _found(self, status: int, ack: Ack | None) -> None:
        found = ack.coordinators[0] if ack is not None and not status else None
        if found is None or found.code or found.id < 0:
            self.begin_again()
            return
        self._reach(Address(found.host, found.port), self._introduce)

    def _introduce(self) -> None:
        self._ask(AddConsumer((self._topic,), self._app), lambda status, ack: self._want())

    def _want(self) -> None:
        wish = AssignmentWish(self._topic, self._session_ms, False)
        self._ask(FetchAssignedPartition((wish,), self._app), self._given)

    def _given(self, status: int, ack: Ack | None) -> None:
        given = ack.topics[0] if ack is not None and not status else None
        if given is None or given.code:
            self.begin_again()
            return
        self.assigned, self.told_ms = tuple(given.partitions), self._clock.monotonic_ms()
        line = self.line
        self._at(_PAUSE_MS, "ask again", lambda: self._want() if self.line is line else None)

    def begin_again(self) -> None:
        """Over a new connection, a little later."""
        self._hang_up()
        self._at(self._rng.randint(20, _PAUSE_MS), "begin again", self.begin)

    # --- bytes ---------------------------------------------------------------------------------------------------

    def _reach(self, address: Address, then: Callable[[], None]) -> None:
        self._hang_up()
        network = self._networks.get(address)
        line = self.line = _Line(self)
        line.link = network.connect(line, Weather(), "10.0.0.8") if network is not None else None
        if line.link is None:
            self.begin_again()
            return
        hello = AddConnection(app=self._app, token=self._token, version="fleet", ip="10.0.0.8")
        self._ask(hello, lambda status, ack: self.begin_again() if status else then())

    def _ask(self, command: Command, then: Callable[[int, Ack | None], None]) -> None:
        line = self.line
        if line is None or line.link is None:
            return
        self._next_id += 1
        self._then[self._next_id] = then
        line.link.send(b"".join(encode_request(command, form=self._form, request_id=self._next_id, send_time_ms=0)))
        number = self._next_id
        self._at(2000, "patience", lambda: self.begin_again() if number in self._then else None)

    def _hang_up(self) -> None:
        line, self.line = self.line, None
        self._then.clear()
        if line is not None and line.link is not None:
            line.link.hang_up()

    def answered(self, frame: bytearray) -> None:
        """A whole answer."""
        header, ack = decode_response(frame, self._form.dialect)
        then = self._then.pop(header.request_id, None)
        if then is not None:
            then(header.status, ack)
