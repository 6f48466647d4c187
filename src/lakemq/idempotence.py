"""Handle a message once, although it may be delivered twice: remember it in the transaction that handles it.

`once` notes (group, topic, message id) down in the user's own database, inside the user's own transaction: what the
handler writes and that it was done are committed together, or neither is. Needs SQLAlchemy, the extra `sql`, which is
imported when the first of these is called.
"""

import hashlib
import time
from typing import TYPE_CHECKING, Any

from lakemq.client.duration import Duration, duration_ms

if TYPE_CHECKING:
    from sqlalchemy import Connection, MetaData, Table
    from sqlalchemy.orm import Session

    from lakemq.client.delivery import Delivery

TABLE = "lakemq_handled"
_TEXT_MAX = 255
_DIGEST = "sha256:"


def idempotence_table(metadata: "MetaData", name: str = TABLE) -> "Table":
    """The table that `once` needs, as part of the user's own schema."""
    from sqlalchemy import BigInteger, Column, String, Table

    return Table(
        name,
        metadata,
        Column("consumer_group", String(_TEXT_MAX), primary_key=True),
        Column("topic", String(_TEXT_MAX), primary_key=True),
        Column("message_id", String(_TEXT_MAX), primary_key=True),
        Column("handled_at", BigInteger, nullable=False, index=True),  # ms since 1970
    )


def once(transaction: "Connection | Session", delivery: "Delivery", *, table: str = TABLE) -> bool:
    """Whether this transaction is the first to handle the message; from then on it is, once it is committed.

    Another transaction that handles the same message waits here for the outcome of the first: False if that committed,
    True if it was rolled back. A message is known by its uniq_id, else by its topic, partition and offset.
    """
    row = {
        "consumer_group": _bounded(delivery.group),
        "topic": _bounded(delivery.topic),
        "message_id": _bounded(delivery.message_id),
        "handled_at": time.time_ns() // 1_000_000,
    }
    return bool(_insert(transaction, table, row))


def forget_older(transaction: "Connection | Session", age: Duration, *, table: str = TABLE) -> int:
    """Forget what was handled longer ago than that, and how many these were.

    Choose an age beyond which no message can come again: retries, dead letters that are resent, seeks.
    """
    from sqlalchemy import delete

    places = _place(table)
    oldest_ms = time.time_ns() // 1_000_000 - duration_ms(age)
    gone: Any = transaction.execute(delete(places).where(places.c.handled_at < oldest_ms))
    return int(gone.rowcount)


def _insert(transaction: Any, table: str, row: dict[str, Any]) -> int:
    """Rows added: 1, or 0 if there was one. Without an error that would spoil the transaction."""
    from sqlalchemy import insert
    from sqlalchemy.dialects import postgresql, sqlite
    from sqlalchemy.exc import IntegrityError

    place = _place(table)
    dialect = _dialect(transaction)
    if dialect == "postgresql":
        return int(transaction.execute(postgresql.insert(place).values(row).on_conflict_do_nothing()).rowcount)
    if dialect == "sqlite":
        return int(transaction.execute(sqlite.insert(place).values(row).on_conflict_do_nothing()).rowcount)
    if dialect in ("mysql", "mariadb"):
        return int(transaction.execute(insert(place).prefix_with("IGNORE").values(row)).rowcount)
    try:
        with transaction.begin_nested():
            transaction.execute(insert(place).values(row))
    except IntegrityError:
        return 0
    return 1


def _dialect(transaction: Any) -> str:
    bound = transaction.get_bind() if hasattr(transaction, "get_bind") else transaction
    return str(bound.dialect.name)


def _place(name: str) -> Any:
    from sqlalchemy import column, table

    return table(name, *map(column, ("consumer_group", "topic", "message_id", "handled_at")))


def _bounded(text: str) -> str:
    """What fits into a column, and is still the same for equal texts only."""
    return text if len(text) <= _TEXT_MAX else _DIGEST + hashlib.sha256(text.encode()).hexdigest()
