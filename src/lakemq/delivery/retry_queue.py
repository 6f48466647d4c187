"""The retries of one app on one topic by when they are due, and which of them are lent.

Pure and in memory only, made from the rows (`retries.py`) at a start: then nothing is lent.
"""

import heapq
from collections.abc import Iterable

from lakemq.delivery.settlement import Retry

_Lease = tuple[int, int]  # consumer, end (monotonic)


class RetryQueue:
    """Ids of retries; each is waiting, lent, held until something about it is written, or not here."""

    def __init__(self, rows: Iterable[Retry] = ()) -> None:
        self._due: dict[int, int] = {}  # those that wait, and until when (guarded wall time)
        self._heap: list[tuple[int, int]] = []  # (due, id); entries may be out of date
        self._lent: dict[int, _Lease] = {}
        self._held: dict[int, _Lease | None] = {}  # with the lease that it had, if its consumer is still there
        self._ends: list[tuple[int, int]] = []  # (end, id); entries may be out of date
        for row in rows:
            self.put(row.id, row.due_ms)

    @property
    def lent_count(self) -> int:
        """How many are out."""
        return len(self._lent)

    @property
    def held_count(self) -> int:
        """How many wait for something to be written."""
        return len(self._held)

    def put(self, retry_id: int, due_ms: int) -> None:
        """It waits until then; whoever had it has it no more."""
        self._lent.pop(retry_id, None)
        self._held.pop(retry_id, None)
        self._due[retry_id] = due_ms
        heapq.heappush(self._heap, (due_ms, retry_id))
        if len(self._heap) > 2 * len(self._due) + 64:
            self._heap = [(due, number) for number, due in self._due.items()]
            heapq.heapify(self._heap)

    def remove(self, retry_id: int) -> None:
        """It is over."""
        self._due.pop(retry_id, None)
        self._lent.pop(retry_id, None)
        self._held.pop(retry_id, None)

    def hold(self, retry_id: int) -> None:
        """What becomes of it is not written yet: until it is, nobody gets it, and nobody has it to decide on."""
        self._due.pop(retry_id, None)
        lease = self._lent.pop(retry_id, None)
        self._held.setdefault(retry_id, lease)  # if it was held before, that has the lease

    def give_back(self, retry_id: int, due_ms: int) -> None:
        """It was not written: whoever had it has it still; if nobody did, or they are gone, it waits until then."""
        if retry_id in self._lent:
            return  # it was held for several things, and is back already
        lease = self._held.get(retry_id)
        if lease is None:
            self.put(retry_id, due_ms)
        else:
            del self._held[retry_id]
            self.lend(retry_id, *lease)

    def next_due_ms(self) -> int | None:
        """When the first of those that wait is due."""
        while self._heap and self._due.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def take_due(self, now_ms: int) -> int | None:
        """One that is due, for the caller to lend."""
        due_ms = self.next_due_ms()
        if due_ms is None or due_ms > now_ms:
            return None
        retry_id = heapq.heappop(self._heap)[1]
        del self._due[retry_id]
        return retry_id

    def lend(self, retry_id: int, consumer: int, end_ms: int) -> None:
        """Give it to a consumer."""
        self._lent[retry_id] = consumer, end_ms
        heapq.heappush(self._ends, (end_ms, retry_id))

    def holder(self, retry_id: int) -> int | None:
        """Which consumer has it."""
        lent = self._lent.get(retry_id)
        return lent[0] if lent is not None else None

    def extend(self, consumer: int, end_ms: int) -> bool:
        """Move the end of all that a consumer has; False if that is nothing."""
        mine = [retry_id for retry_id, lent in self._lent.items() if lent[0] == consumer]
        for retry_id in mine:
            self.lend(retry_id, consumer, end_ms)
        return bool(mine)

    def release_all(self, consumer: int, now_ms: int) -> bool:
        """That consumer is gone: what it had is due at once, and what is held will not be its own again."""
        for retry_id, lease in self._held.items():
            if lease is not None and lease[0] == consumer:
                self._held[retry_id] = None
        mine = [retry_id for retry_id, lent in self._lent.items() if lent[0] == consumer]
        for retry_id in mine:
            self.put(retry_id, now_ms)
        return bool(mine)

    def take_expired(self, now_ms: int) -> list[int]:
        """Those whose lease has run out; the caller says what becomes of them."""
        expired = []
        while self._ends and self._ends[0][0] <= now_ms:
            _, retry_id = heapq.heappop(self._ends)
            lent = self._lent.get(retry_id)
            if lent is not None and lent[1] <= now_ms:
                del self._lent[retry_id]
                expired.append(retry_id)
        return expired
