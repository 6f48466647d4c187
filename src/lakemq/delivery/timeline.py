"""Rows in the order in which they are due, at eight bytes each: a bucket per second, sorted when its turn comes.

A row is a due time and a position. Nothing is promised about what is in here beyond the order in which it comes out.
"""

from array import array
from bisect import bisect_left, insort
from heapq import heappop, heappush

from lakemq.delivery.delay_record import Row

_SECOND_BITS = 10  # a "second" has 1024 ms
_POSITION_BITS = 54  # 16 PB of journal: the rest of eight bytes is the millisecond within the second
_POSITION_MASK = (1 << _POSITION_BITS) - 1
_MILLISECOND_MASK = (1 << _SECOND_BITS) - 1


class Timeline:
    """Rows in, the first ones out. One second with very many rows costs one sort of them all."""

    __slots__ = ("_at", "_buckets", "_open", "_seconds", "count")

    def __init__(self) -> None:
        self._buckets: dict[int, array[int]] = {}
        self._seconds: list[int] = []  # a heap; may name seconds that have no bucket any more
        self._open: int | None = None  # the second whose bucket is sorted
        self._at = 0  # rows before it in that bucket are gone
        self.count = 0

    def insert(self, due_ms: int, position: int) -> None:
        """One row more."""
        assert 0 <= position <= _POSITION_MASK, "a journal of more than 16 PB"
        second = due_ms >> _SECOND_BITS
        key = (due_ms & _MILLISECOND_MASK) << _POSITION_BITS | position
        bucket = self._buckets.get(second)
        if bucket is None:
            self._buckets[second] = array("Q", (key,))
            heappush(self._seconds, second)
        elif second == self._open:
            insort(bucket, key, self._at)
        else:
            bucket.append(key)
        self.count += 1

    def remove(self, due_ms: int, position: int) -> bool:
        """Take one row out; False if it is not here."""
        second = due_ms >> _SECOND_BITS
        bucket = self._buckets.get(second)
        if bucket is None:
            return False
        key = (due_ms & _MILLISECOND_MASK) << _POSITION_BITS | position
        start = self._at if second == self._open else 0
        try:
            del bucket[bucket.index(key, start)]
        except ValueError:
            return False
        self.count -= 1
        if len(bucket) == start:
            self._drop(second)
        return True

    def take(self, until_ms: int, count: int) -> list[Row]:
        """The first rows, as many at the most, that are due by then: they are gone."""
        rows: list[Row] = []
        while len(rows) < count:
            second = self._open_first()
            if second is None or second << _SECOND_BITS > until_ms:
                break
            bucket = self._buckets[second]
            base_ms = second << _SECOND_BITS
            key_max = min(until_ms - base_ms + 1, 1 << _SECOND_BITS) << _POSITION_BITS
            end = min(self._at + count - len(rows), len(bucket))
            found = bucket[self._at : bisect_left(bucket, key_max, self._at, end)]
            if not found:
                break
            rows += [(base_ms + (key >> _POSITION_BITS), key & _POSITION_MASK) for key in found]
            self._at += len(found)
            if self._at == len(bucket):
                self._drop(second)
        self.count -= len(rows)
        return rows

    def first_due_ms(self) -> int | None:
        """When the first row is due; None if there is none."""
        second = self._open_first()
        if second is None:
            return None
        return (second << _SECOND_BITS) + (self._buckets[second][self._at] >> _POSITION_BITS)

    def _open_first(self) -> int | None:
        """The first second that has rows, its bucket sorted."""
        while self._seconds and self._seconds[0] not in self._buckets:
            heappop(self._seconds)
        if not self._seconds:
            return None
        second = self._seconds[0]
        if second != self._open:
            self._close()
            self._buckets[second] = array("Q", sorted(self._buckets[second]))
            self._open, self._at = second, 0
        return second

    def _close(self) -> None:
        """An earlier second comes first after all."""
        if self._open is not None:
            del self._buckets[self._open][: self._at]
            self._open, self._at = None, 0

    def _drop(self, second: int) -> None:
        del self._buckets[second]
        if second == self._open:
            self._open, self._at = None, 0
