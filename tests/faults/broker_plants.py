"""Bugs to plant in a broker that a nursery forks: the kills must find each of them, or they prove nothing."""

from collections.abc import Callable
from typing import Any


def ack_before_write() -> None:
    """Answers leave before their records are written."""
    from lakemq.broker.ledger import Ledger
    from lakemq.broker.waiters import Waiters

    flush, written, turns = Ledger.flush, Waiters.written, [0]

    def flush_at_times(self: Any) -> None:
        turns[0] += 1
        if turns[0] % 10 == 0:
            flush(self)

    def all_written(self: Any, written_position: int, synced_position: int) -> Any:
        return written(self, 1 << 60, synced_position)

    Ledger.flush = flush_at_times  # type: ignore[method-assign]
    Waiters.written = all_written  # type: ignore[method-assign]


def ack_not_kept() -> None:
    """A consumer's ack is in force, and in no record."""
    from lakemq.broker.ledger import Ledger

    def settle(self: Any, entries: Any, now_ms: int) -> int:
        for entry in entries:
            self.state.settle(entry)
        return int(self.end_position)

    Ledger.settle = settle  # type: ignore[method-assign]


def ack_ahead() -> None:
    """An ack index goes one further than what was acked."""
    from lakemq.broker.ledger import Ledger
    from lakemq.delivery.settlement import Acked

    settle = Ledger.settle

    def settle_further(self: Any, entries: Any, now_ms: int) -> int:
        ahead = [one._replace(next_index=one.next_index + 1) if isinstance(one, Acked) else one for one in entries]
        return settle(self, ahead, now_ms)

    Ledger.settle = settle_further  # type: ignore[method-assign]


def uniq_id_forgotten() -> None:
    """A repeated send is stored again."""
    from lakemq.delivery.uniq import UniqIds

    UniqIds.find = lambda self, key, now_ms=0: None  # type: ignore[method-assign,assignment]


PLANTS: dict[str, Callable[[], None]] = {
    "ack-before-write": ack_before_write,
    "ack-not-kept": ack_not_kept,
    "ack-ahead": ack_ahead,
    "uniq-id-forgotten": uniq_id_forgotten,
}
