"""A crash at every disk operation of the moves of delivery: a retry, a dead letter, a delay, a commit (F46, F47).

    cd tests; python -m faults.delivery_crashes --states 20

Each move is begun on a copy of one disk and cut off before its first operation, its second, and so on, by a kill or by
a power loss that leaves one of its legal states. After a start each message must be in exactly one place: not done
with, to be tried again, dead, waiting, or handed out for good; nothing is early; and an outcome that was told stays.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from broker.fix_broker import BrokerLife, Peer, make_broker
from lakemq.storage.config import StorageConfig
from lakemq.testing.clock import SimClock
from lakemq.testing.crash import MODES
from lakemq.testing.disk import PowerLost
from lakemq.wire.consume import RETRY_PARTITION
from lakemq.wire.produce import ProduceMessageCommit, ProduceMessagePrepare, ProduceMessageRollback
from lakemq.wire.session import AddProducer

# So small that a move begins a segment now and then.
SMALLEST = StorageConfig(
    segment_bytes=16 << 10, record_bytes_max=8 << 10, checkpoint_bytes=2 << 10, unsynced_bytes_max=64 << 10
)
RESERVE_BYTES = 3500
AMPLE_BYTES = 9000  # no new segment is begun
PAUSE_MS = 300
POINTS_MAX = 400
Told = dict[str, Any]


def filled(room_bytes: int, *bodies: bytes, **policy: Any) -> BrokerLife:
    """A broker with these messages whose segment has only so much room, and an app with that policy."""
    life = make_broker(partitions=3, storage=SMALLEST)
    life.ask(
        "subscribe", topic="orders", app="shop", consumer={"retry_first_ms": PAUSE_MS, "retry_factor": 1, **policy}
    )
    life.ask("create_topic", name="filling", partitions=1)
    life.ask("subscribe", topic="filling", app="shop", producer={})
    peer = life.peer()
    if bodies:
        peer.produce(*bodies)
    while (left := SMALLEST.segment_bytes - life.journal.end_position) > room_bytes:
        if left > RESERVE_BYTES:
            peer.produce(bytes(min(900, max(left - room_bytes - 200, 1))), topic="filling")
        else:  # kept free for facts
            assert peer.seek(0) == 0
    life.sync()
    return life


def revived(life: BrokerLife) -> BrokerLife:
    """The same broker after a kill, on a copy of its disk."""
    twin = BrokerLife.__new__(BrokerLife)
    twin.disk, twin.config, twin.storage = life.disk.clone(), life.config, life.storage
    twin.clock = SimClock(life.clock.wall_ms(), life.clock.monotonic_ms())
    twin.start()
    return twin


class Move:
    """One kind of move: what is there before it, what it does, what must hold after a crash in it."""

    def begin(self, room_bytes: int) -> BrokerLife:
        """The broker before the move, with so much room in its segment."""
        raise NotImplementedError

    def act(self, life: BrokerLife, told: Told) -> None:
        """Do it; `told` gets what clients were told meanwhile."""
        raise NotImplementedError

    def check(self, life: BrokerLife, told: Told, by: str) -> None:
        """After a start."""
        raise NotImplementedError


def place_of(life: BrokerLife, index: int, partition: int = 0) -> Counter[str]:
    """Where a message of the app is; it must be in one place."""
    state = life.broker.ledger.state
    number = state.metadata.subscription("orders", "shop").number
    places: Counter[str] = Counter()
    if not state.acks.is_acked(number, partition, index):
        places["pending"] += 1
    places["retrying"] += sum((row.partition, row.message_index) == (partition, index) for row in state.retries.rows())
    places["dead"] += sum((row.partition, row.message_index) == (partition, index) for row in state.dead_letters.rows())
    return +places


def drained(life: BrokerLife) -> list[bytes]:
    """All that the app is given and acks until nothing is left; time passes meanwhile."""
    peer = life.peer().consumes()
    found: list[bytes] = []
    for _ in range(40):
        answer = peer.ask(peer.fetch_command(count=100))
        messages = peer.messages(answer)
        if messages:
            found += [one.body for one in messages]
            assert peer.ack([one.index for one in messages], partition=messages[0].partition) == 0
        else:
            life.pass_ms(PAUSE_MS // 4)
    return found


class RetryMove(Move):
    """Two messages fail and are tried again; one of them is then acked, the other fails once more."""

    policy: dict[str, Any] = {"retry_times": 16}  # noqa: RUF012  # never changed

    def begin(self, room_bytes: int) -> BrokerLife:
        return filled(room_bytes, b"first", b"second", **self.policy)

    def act(self, life: BrokerLife, told: Told) -> None:
        peer = life.peer().consumes()
        assert peer.fetch(count=2) == [b"first", b"second"]
        told["failed_ms"] = life.clock.wall_ms()
        assert peer.ack([0, 1], kind=2) == 0
        told["failed"] = True
        life.pass_ms(PAUSE_MS)
        ids = [one.index for one in peer.messages(peer.ask(peer.fetch_command(count=10)))]
        told["again_ms"] = life.clock.wall_ms()
        if ids:
            told["sent"] = {b"first"}
            assert peer.ack(ids[:1], partition=RETRY_PARTITION) == 0
            told["acked"] = {b"first"}
            assert peer.ack(ids[1:], partition=RETRY_PARTITION, kind=1) == 0
        life.sync()

    def check(self, life: BrokerLife, told: Told, by: str) -> None:
        for index, body in enumerate((b"first", b"second")):
            places = place_of(life, index)
            assert sum(places.values()) <= 1, f"message {index} is in two places: {places}"
            if not places:
                assert body in told.get("sent", ()), f"message {index} is lost"
            if by == "kill" and body in told.get("acked", ()):
                assert not places, f"message {index} was acked and is {places}"
        rows = list(life.broker.ledger.state.retries.rows())
        for row in rows:
            failed_ms = told["again_ms"] if row.attempts == 2 else told["failed_ms"]
            assert row.due_ms >= failed_ms + PAUSE_MS, f"{row} is early"
        if by == "kill" and told.get("failed") and "again_ms" not in told and life.clock.wall_ms() < rows[0].due_ms:
            assert life.peer().consumes().fetch() == [], "a retry is early"
        dead = {row.message_index for row in life.broker.ledger.state.dead_letters.rows()}
        found = set(drained(life)) | told.get("sent", set())
        wanted = {body for index, body in enumerate((b"first", b"second")) if index not in dead}
        assert wanted <= found, f"never came again: {wanted - found}"
        assert life.ack_index() == 2
        assert len(life.broker.ledger.state.retries) == 0


class DeadLetterMove(RetryMove):
    """The same, and the second failure is the last."""

    policy: dict[str, Any] = {"retry_times": 1}  # noqa: RUF012

    def check(self, life: BrokerLife, told: Told, by: str) -> None:
        letters = [row.message_index for row in life.broker.ledger.state.dead_letters.rows()]
        assert len(letters) == len(set(letters)), f"dead letters twice: {letters}"
        super().check(life, told, by)
        after = [row.message_index for row in life.broker.ledger.state.dead_letters.rows()]
        assert letters == after


class DelayMove(Move):
    """Messages of two partitions wait, and are released."""

    def begin(self, room_bytes: int) -> BrokerLife:
        return filled(room_bytes)

    def act(self, life: BrokerLife, told: Told) -> None:
        peer = life.peer()
        told["due_ms"] = life.clock.wall_ms() + PAUSE_MS
        attributes = {"DELIVER_AT": str(told["due_ms"])}
        for partition, body in enumerate((b"first", b"second", b"third")):
            told.setdefault("sent", []).append(body)
            assert peer.produce(body, partition=partition, attributes=attributes)[0] == 0
            told.setdefault("acked", []).append(body)
        for _ in range(5):
            life.pass_ms(PAUSE_MS // 3)
        life.sync()

    def check(self, life: BrokerLife, told: Told, by: str) -> None:
        sent, acked = told.get("sent", []), told.get("acked", [])
        stored = [body for partition in range(3) for body in life.stored(partition=partition)]
        waiting = life.broker.delaying.pending
        assert len(acked) <= len(stored) + waiting <= len(sent), (stored, waiting, told)
        if stored:
            assert life.clock.wall_ms() >= told["due_ms"], f"{stored} are early"
        while life.clock.wall_ms() + 20 < told.get("due_ms", 0):
            life.pass_ms(20)
            early = [body for partition in range(3) for body in life.stored(partition=partition)]
            assert not early, f"{early} are early"
        for _ in range(10):
            life.pass_ms(PAUSE_MS // 3)
        stored = [body for partition in range(3) for body in life.stored(partition=partition)]
        assert len(stored) == len(set(stored)), f"released twice: {stored}"
        assert set(acked) <= set(stored) <= set(sent), (stored, told)


class CommitMove(Move):
    """A transaction over three partitions is begun, filled, committed."""

    bodies = (b"first", b"second", b"third")

    def begin(self, room_bytes: int) -> BrokerLife:
        return filled(room_bytes)

    def act(self, life: BrokerLife, told: Told) -> None:
        peer = life.peer()
        assert peer.ask(AddProducer(("orders",), "shop")).status == 0
        told["tx_id"] = peer.ask(ProduceMessagePrepare("orders", "shop", 1, "own", 0)).body.tx_id
        for partition, body in enumerate(self.bodies):
            assert peer.produce(body + bytes(300), partition=partition, tx_id=told["tx_id"])[0] == 0
        told["asked"] = True
        assert peer.ask(ProduceMessageCommit("orders", "shop", told["tx_id"])).body.code == 0
        told["committed"] = True
        life.sync()

    def check(self, life: BrokerLife, told: Told, by: str) -> None:
        stored = self._stored(life)
        if told.get("committed"):
            assert stored == list(self.bodies), f"it was committed, and there is {stored}"
        assert stored in ([], list(self.bodies)), f"a part of a commit: {stored}"
        assert not stored or told.get("asked"), "nobody has committed it"
        if "tx_id" not in told:
            return
        peer = life.peer()
        assert peer.ask(AddProducer(("orders",), "shop")).status == 0
        if stored:
            assert self._decide(peer, ProduceMessageCommit, told) == 0
            assert self._decide(peer, ProduceMessageRollback, told) == 139
            assert self._stored(life) == stored, "committed twice"
            return
        assert self._decide(peer, ProduceMessageRollback, told) == 0
        assert self._decide(peer, ProduceMessageCommit, told) == 139
        life.kill()
        assert self._stored(life) == [], "rolled back, and there"

    def _decide(self, peer: Peer, kind: type, told: Told) -> int:
        answer = peer.ask(kind("orders", "shop", told["tx_id"]))
        return answer.status or answer.body.code

    def _stored(self, life: BrokerLife) -> list[bytes]:
        return [body.rstrip(b"\0") for partition in range(3) for body in life.stored(partition=partition)]


class RollbackMove(CommitMove):
    """The same, rolled back."""

    def act(self, life: BrokerLife, told: Told) -> None:
        peer = life.peer()
        assert peer.ask(AddProducer(("orders",), "shop")).status == 0
        told["tx_id"] = peer.ask(ProduceMessagePrepare("orders", "shop", 1, "own", 0)).body.tx_id
        for partition, body in enumerate(self.bodies):
            assert peer.produce(body + bytes(300), partition=partition, tx_id=told["tx_id"])[0] == 0
        assert self._decide(peer, ProduceMessageRollback, told) == 0
        life.sync()

    def check(self, life: BrokerLife, told: Told, by: str) -> None:
        assert self._stored(life) == [], "rolled back, and there"


MOVES: dict[str, Move] = {
    "retry": RetryMove(),
    "dead letter": DeadLetterMove(),
    "delay": DelayMove(),
    "commit": CommitMove(),
    "rollback": RollbackMove(),
}


def crash_states(move: Move, seeds: int, modes: tuple[str, ...] = MODES) -> Iterator[tuple[int, str]]:
    """Every place to crash at, with every way to do so: checked when it is returned."""
    for before in (move.begin(AMPLE_BYTES), begun_before_a_roll(move)):
        yield from _states_from(before, move, seeds, modes)


def begun_before_a_roll(move: Move) -> BrokerLife:
    """Where the move begins a new segment."""
    for room_bytes in range(2400, 300, -60):
        before = move.begin(room_bytes)
        life = revived(before)
        count = len(life.disk.names("journal"))
        move.act(life, {})
        if len(life.disk.names("journal")) > count:
            return before
    raise AssertionError("no move begins a segment")


def _states_from(before: BrokerLife, move: Move, seeds: int, modes: tuple[str, ...]) -> Iterator[tuple[int, str]]:
    for point in range(POINTS_MAX):
        is_cut = False
        for by in ("kill", *modes):
            for seed in range(seeds if by != "kill" else 1):
                life, told = revived(before), {}
                life.disk.crash_after = life.disk.crash_points + point
                try:
                    move.act(life, told)
                except PowerLost:
                    is_cut = True
                life.disk.crash_after = None
                if by == "kill":
                    life.disk.lose_process()
                else:
                    life.disk.lose_power(Random(seed * 1009 + point), mode=by)
                life.start()
                try:
                    move.check(life, told, by)
                except AssertionError as error:
                    error.add_note(f"crash before operation {point} by {by}, seed {seed}, told {told}")
                    raise
                yield point, by
        if not is_cut:
            return
    raise AssertionError(f"more than {POINTS_MAX} operations")


def crashes_at_each_write(name: str, seeds: int = 1) -> Callable[[], None]:
    """For planted bugs: the states of one move."""

    def crashes() -> None:
        for _ in crash_states(MOVES[name], seeds):
            pass

    return crashes


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--states", type=int, default=5, help="of each kind of power loss at each place")
    options = parser.parse_args()
    for name, move in MOVES.items():
        ways: Counter[str] = Counter()
        points = 0
        for point, by in crash_states(move, options.states):
            ways[by] += 1
            points = max(points, point)
        sys.stdout.write(f"{name}: {sum(ways.values())} states at {points} places, all right\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
