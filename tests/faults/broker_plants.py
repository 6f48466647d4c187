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

    def move_acks(self: Any, rows: Any, now_ms: int) -> int:
        self.state.acks.apply(rows)
        return int(self.end_position)

    Ledger.move_acks = move_acks  # type: ignore[method-assign]


def ack_ahead() -> None:
    """An ack index goes one further than what was acked."""
    from lakemq.broker.ledger import Ledger

    move_acks = Ledger.move_acks

    def move_further(self: Any, rows: Any, now_ms: int) -> int:
        return move_acks(self, [row._replace(ack_index=row.ack_index + 1) for row in rows], now_ms)

    Ledger.move_acks = move_further  # type: ignore[method-assign]


def uniq_id_forgotten() -> None:
    """A repeated send is stored again."""
    from lakemq.delivery.uniq import UniqIds

    UniqIds.find = lambda self, key: None  # type: ignore[method-assign,assignment]


PLANTS: dict[str, Callable[[], None]] = {
    "ack-before-write": ack_before_write,
    "ack-not-kept": ack_not_kept,
    "ack-ahead": ack_ahead,
    "uniq-id-forgotten": uniq_id_forgotten,
}
