"""The messages that nobody tries again by itself: a fold over SETTLE records.

Each is a reference to its message, why it is here, and where it was meant to go. What an operator did with those that
are gone is remembered for a while: the audit.
"""

import json
from collections import deque
from collections.abc import Container, Iterable

from lakemq.delivery.intervals import Undo
from lakemq.delivery.settlement import Buried, DeadLetter, Edited, pack_entries, unpack_entries

AUDIT_COUNT_MAX = 1000


class DeadLetters:
    """Rows by id. Ids rise and are never given twice."""

    def __init__(self) -> None:
        self._rows: dict[int, DeadLetter] = {}
        self.audit: deque[Buried | Edited] = deque(maxlen=AUDIT_COUNT_MAX)
        self.next_id = 1

    def __len__(self) -> int:
        return len(self._rows)

    def get(self, dead_id: int) -> DeadLetter | None:
        """That one, if it is still here."""
        return self._rows.get(dead_id)

    def rows(self) -> Iterable[DeadLetter]:
        """All of them, oldest first."""
        return self._rows.values()

    def put(self, row: DeadLetter) -> Undo:
        """One more."""
        next_id = self.next_id
        self._rows[row.id] = row
        self.next_id = max(next_id, row.id + 1)

        def undo() -> None:
            del self._rows[row.id]
            self.next_id = next_id

        return undo

    def bury(self, said: Buried) -> Undo:
        """It is gone; nothing happens if it was already."""
        row = self._rows.pop(said.id, None)
        if row is None:
            return lambda: None
        undo_audit = self._note(said)

        def undo() -> None:
            undo_audit()
            self._rows[row.id] = row
            self._rows = dict(sorted(self._rows.items()))

        return undo

    def edit(self, said: Edited) -> Undo:
        """Its message is another one now."""
        row = self._rows.get(said.id)
        if row is None:
            return lambda: None
        undo_audit = self._note(said)
        self._rows[said.id] = row._replace(position=said.position)

        def undo() -> None:
            undo_audit()
            self._rows[row.id] = row

        return undo

    def move(self, old_position: int, index: int, position: int) -> None:
        """The message is elsewhere now."""
        for row in list(self._rows.values()):
            if row.position == old_position and row.message_index == index:
                self._rows[row.id] = row._replace(position=position)

    def pack(self, kept: Container[int]) -> bytes:
        """All rows: those whose subscription is gone, too, for an operator may want to see them."""
        if self.next_id == 1:
            return b""
        audit = json.dumps([[type(one).__name__, *one] for one in self.audit]).encode()
        head = self.next_id.to_bytes(8, "big") + len(audit).to_bytes(4, "big")
        return head + audit + pack_entries(self._rows.values())

    def restore(self, data: bytes) -> None:
        """Begin from what `pack` gave."""
        self._rows, self.next_id = {}, 1
        self.audit.clear()
        if not data:
            return
        self.next_id = int.from_bytes(data[:8], "big")
        end = 12 + int.from_bytes(data[8:12], "big")
        for kind, *fields in json.loads(data[12:end]):
            self.audit.append({"Buried": Buried, "Edited": Edited}[kind](*fields))
        for row in unpack_entries(data[end:]):
            assert isinstance(row, DeadLetter)
            self._rows[row.id] = row

    def _note(self, said: Buried | Edited) -> Undo:
        before = deque(self.audit, maxlen=AUDIT_COUNT_MAX)
        self.audit.append(said)
        return lambda: setattr(self, "audit", before)
