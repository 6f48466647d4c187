"""What a broker's journal adds up to, moment by moment, to know what a start must find again.

The state is a fold over the journal. What it was after each record is kept here until that record is durable: after a
kill a start finds the state of all that was written, after a power loss that of some moment since the last sync, and a
turn that was refused, or that the broker died in, may be there all the same (its outcome is unknown). Left out are the
ids of sent messages and the partitions with messages that expire: they may know too much after a refused turn, and do
no harm by it.
"""

from collections.abc import Mapping
from typing import Any

from lakemq.broker.ledger import State
from lakemq.delivery.delays import Delays
from lakemq.delivery.transactions import Transactions, _pack_open

AckState = dict[tuple[int, int], int]  # (subscription, partition) → index
Moment = dict[str, Any]  # what each part of the state was
_LEFT_OUT = ("uniq", "expiring")
_FINISHED_AT_A_START = "committed"  # a start stores the rest of what was committed


def moment_of(state: State) -> Moment:
    """The state as a value that can be compared: without the order in which things came to be, nor what is nobody's."""
    kept = {one.number for one in state.metadata.subscriptions.values()}
    retries, dead, setbacks = state.retries, state.dead_letters, state.setbacks
    found: Moment = {
        "metadata": state.metadata,
        "acks": {
            (number, partition): (place.index, tuple(place.beyond._bounds))
            for number, places in state.acks._places.items()
            if number in kept
            for partition, place in places.items()
            if place.index or place.beyond
        },
        "retries": {row.id: row for row in retries.rows() if row.subscription in kept},
        "next retry": retries.next_id,
        "dead": dict(dead._rows),
        "next dead": dead.next_id,
        "audit": tuple(dead.audit),
        "stuck": {key: dict(rows) for key, rows in setbacks._stuck.items() if key[0] in kept},
        "ended": {key: dict(rows) for key, rows in setbacks._ended.items() if key[0] in kept and rows},
        "delays": _delays(state.delays),
        **_transactions(state.transactions),
    }
    known = ("acks", "retries", "dead", "setbacks", "transactions", "delays", *_LEFT_OUT)
    found.update({name: part.pack(kept) for name, part in state._parts.items() if name not in known})
    return found


def _delays(part: Delays) -> dict[int, Any]:
    """What waits in each share: rows, and blocks with those of their rows that do not wait any more."""
    found = {}
    for number, share in enumerate(part.shares):
        blocks = {
            position: (block.first_due_ms, block.last, block.row_count, max(block.floor, share.watermark))
            for position, block in share.blocks.items()
            if block.last > max(block.floor, share.watermark)
        }
        rows = frozenset(share.unfiled())
        unfiled = set(share.positions)
        done = frozenset(
            (due_ms, position)
            for position, due_ms in share.done.items()
            if blocks and position not in unfiled and (due_ms, position) > share.watermark
        )
        if rows or blocks:
            found[number] = rows, blocks, done, share.pending
    return found


def _transactions(part: Transactions) -> Moment:
    return {
        "open": {tx_id: _pack_open(one) for tx_id, one in part.open.items()},
        "decided": dict(part._decided),
        _FINISHED_AT_A_START: {tx_id: tuple(missing) for tx_id, (_, missing) in part._committed.items()},
    }


def difference(found: Mapping[str, Any], wanted: Mapping[str, Any], *, is_start: bool) -> str:
    """In what they differ; empty if in nothing."""
    for name, value in wanted.items():
        other = found[name]
        if other == value or (is_start and name == _FINISHED_AT_A_START and set(other) <= set(value)):
            continue
        if name == "metadata":
            return f"metadata of version {other.version}, not {value.version}"
        if isinstance(value, dict):
            keys = [key for key in {**other, **value} if other.get(key) != value.get(key)]
            return f"{name}: " + "; ".join(f"{key} is {other.get(key)}, not {value.get(key)}" for key in keys[:3])
        return f"{name} is {other!r:.200}, not {value!r:.200}"
    return ""


class Ledgered:
    """Asked before each append and each flush what the state is by then."""

    def __init__(self) -> None:
        self._moments: list[tuple[int, Moment]] = []  # by the end of the last record; the first is durable
        self._refused: list[Moment] = []  # what it would be with a turn that was refused, and may be there
        self._is_refused_last = False

    def begin(self, end_position: int, state: State) -> None:
        """A start: all that was found is durable."""
        self._moments = [(end_position, moment_of(state))]
        self._refused = []
        self._is_refused_last = False

    def note(self, end_position: int, state: State) -> None:
        """All up to that position is in force."""
        if end_position > self._moments[-1][0]:
            self._moments.append((end_position, moment_of(state)))

    def written(self) -> None:
        """A turn was written, over what a refused one may have left."""
        self._is_refused_last = False

    def refused(self, written_position: int) -> Moment:
        """A turn was not written: what is behind that position was taken back, and may be on the disk all the same.

        Returns what the state must be again.
        """
        while len(self._moments) > 1 and self._moments[-1][0] > written_position:
            self._refused.append(self._moments.pop()[1])
        self._is_refused_last = True
        return self._moments[-1][1]

    def synced(self, position: int) -> None:
        """All before that position is durable."""
        while len(self._moments) > 1 and self._moments[1][0] <= position:
            self._moments.pop(0)
        if not self._is_refused_last:
            self._refused = []

    def states(self, written_position: int, *, is_power_lost: bool) -> list[Moment]:
        """What may be found at the next start: one state after a kill, one of several after a power loss."""
        found = [self._moments[0][1]]
        found += [moment for end, moment in self._moments[1:] if end <= written_position]
        if not is_power_lost:
            found = found[-1:]
        return found + self._refused if is_power_lost or self._is_refused_last else found

    @property
    def least_acks(self) -> AckState:
        """How far a power loss may take each ack index back: to what is durable, or to where a later seek put it."""
        if not self._moments:
            return {}
        found: AckState = {key: index for key, (index, _) in self._moments[0][1]["acks"].items()}
        for _, moment in self._moments[1:]:
            found = {key: min(index, moment["acks"].get(key, (0,))[0]) for key, index in found.items()}
        return found
