"""The messages that are to be tried again, of all apps: a fold over SETTLE records.

A retry is a reference to its message, not a copy. Which of them are due or lent is not known here.
"""

from collections.abc import Container, Iterable

from lakemq.delivery.intervals import Undo
from lakemq.delivery.settlement import Retry, pack_entries, unpack_entries

_ID_BITS = 44
_ATTEMPT_BITS = 16  # of an attempt above that the low ones: enough to tell it from those around it


def attempt_number(retry_id: int, attempt: int) -> int:
    """The number that an attempt is lent and settled by, so that no word on it is taken for one on the next."""
    return (attempt % (1 << _ATTEMPT_BITS)) << _ID_BITS | retry_id


def retry_id_of(number: int) -> int:
    """Which retry such a number speaks of; 0, which none has, if it can be none."""
    return number % (1 << _ID_BITS) if 0 <= number < 1 << (_ID_BITS + _ATTEMPT_BITS) else 0


class Retries:
    """Rows by id. Ids rise and are never given twice."""

    def __init__(self) -> None:
        self._rows: dict[int, Retry] = {}
        self._ids: dict[int, dict[int, None]] = {}  # by subscription
        self.next_id = 1

    def __len__(self) -> int:
        return len(self._rows)

    def get(self, retry_id: int) -> Retry | None:
        """That one, if it is still to be tried."""
        return self._rows.get(retry_id)

    def of(self, subscription: int) -> list[Retry]:
        """All of one app on one topic, oldest first."""
        return [self._rows[retry_id] for retry_id in self._ids.get(subscription, ())]

    def count_of(self, subscription: int) -> int:
        """How many there are of one app on one topic."""
        return len(self._ids.get(subscription, ()))

    def rows(self) -> Iterable[Retry]:
        """All of them."""
        return self._rows.values()

    def put(self, row: Retry) -> Undo:
        """One more, or one with another due time."""
        before, next_id = self._rows.get(row.id), self.next_id
        self._rows[row.id] = row
        self._ids.setdefault(row.subscription, {})[row.id] = None
        self.next_id = max(next_id, row.id + 1)

        def undo() -> None:
            if before is not None:
                self._rows[row.id] = before
            else:
                self._drop(row)
            self.next_id = next_id

        return undo

    def remove(self, retry_id: int) -> Undo:
        """It is over; nothing happens if it was already."""
        row = self._rows.get(retry_id)
        if row is None:
            return lambda: None
        self._drop(row)
        return lambda: self._add(row)

    def move(self, old_position: int, index: int, position: int) -> None:
        """The message is elsewhere now."""
        for row in list(self._rows.values()):
            if row.position == old_position and row.message_index == index:
                self._rows[row.id] = row._replace(position=position)

    def pack(self, kept: Container[int]) -> bytes:
        """All rows; those of subscriptions that are gone are nobody's."""
        rows = [row for row in self._rows.values() if row.subscription in kept]
        return self.next_id.to_bytes(8, "big") + pack_entries(rows) if self.next_id > 1 else b""

    def restore(self, data: bytes) -> None:
        """Begin from what `pack` gave."""
        self._rows, self._ids, self.next_id = {}, {}, 1
        for row in unpack_entries(data[8:]):
            assert isinstance(row, Retry)
            self._add(row)
        if data:
            self.next_id = int.from_bytes(data[:8], "big")

    def _add(self, row: Retry) -> None:
        self._rows[row.id] = row
        self._ids.setdefault(row.subscription, {})[row.id] = None

    def _drop(self, row: Retry) -> None:
        del self._rows[row.id]
        ids = self._ids[row.subscription]
        del ids[row.id]
        if not ids:
            del self._ids[row.subscription]
