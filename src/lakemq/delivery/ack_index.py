"""How far each app is in each partition: the next index it will be given, and what it has done with beyond that.

A fold over ACK records, which set an index (a start, a seek), and over the Acked entries of SETTLE records, which say
that messages are done with, in any order. The index moves over finished runs by itself. An index that was never set is
0: the app begins at the oldest message kept.
"""

import struct
from collections.abc import Container, Iterable, Iterator
from typing import NamedTuple

from lakemq.delivery.intervals import Intervals, Undo

_ROW = struct.Struct(">ihq")
_COUNT = struct.Struct(">I")
_RUN = struct.Struct(">ihqq")


class AckRow(NamedTuple):
    """One app's place in one partition, by the number of its subscription."""

    subscription: int
    partition: int
    ack_index: int


def pack_rows(rows: Iterable[AckRow]) -> bytes:
    """Rows as a record holds them."""
    return b"".join([_ROW.pack(*row) for row in rows])


def unpack_rows(payload: bytes | memoryview) -> Iterator[AckRow]:
    """What `pack_rows` gave."""
    return map(AckRow._make, _ROW.iter_unpack(payload))


class _Place:
    """One app in one partition."""

    __slots__ = ("beyond", "index")

    def __init__(self, index: int = 0) -> None:
        self.index = index
        self.beyond = Intervals()  # done with, above the index

    def advance(self, undo: Undo) -> Undo:
        """Move the index over the run that it has reached; that is taken back along with what made it so."""
        index, beyond = self.index, self.beyond
        run = beyond.first_run
        if run is None or run[0] > index:
            return undo
        self.index = run[1]
        undo_removal = beyond.remove(*run)

        def undo_all() -> None:
            undo_removal()
            self.index = index
            undo()

        return undo_all


_NOWHERE = _Place()


class AckIndexes:
    """The ack index of every subscription in every partition."""

    def __init__(self) -> None:
        self._places: dict[int, dict[int, _Place]] = {}

    def get(self, subscription: int, partition: int) -> int:
        """The next index that app will be given there."""
        return self._find(subscription, partition).index

    def beyond(self, subscription: int, partition: int) -> Intervals:
        """What it has done with above that index; not to be changed."""
        return self._find(subscription, partition).beyond

    def is_acked(self, subscription: int, partition: int, index: int) -> bool:
        """Whether it has done with that message."""
        place = self._find(subscription, partition)
        return index < place.index or index in place.beyond

    def apply(self, rows: Iterable[AckRow]) -> Undo:
        """Set indexes; what was done with beyond them is to be done again."""
        before: list[tuple[int, int, _Place]] = []
        for subscription, partition, index in rows:
            places = self._places.setdefault(subscription, {})
            before.append((subscription, partition, places.get(partition, _NOWHERE)))
            places[partition] = _Place(index)

        def undo() -> None:
            for subscription, partition, place in reversed(before):
                self._places[subscription][partition] = place if place is not _NOWHERE else _Place()

        return undo

    def settle(self, subscription: int, partition: int, first: int, after: int) -> Undo:
        """The messages from `first` up to `after` are done with."""
        places = self._places.setdefault(subscription, {})
        place = places.get(partition)
        if place is None:
            place = places[partition] = _Place()
        index, beyond = place.index, place.beyond
        if first <= index and not beyond:  # in order, as nearly always
            place.index = max(index, after)
            return lambda: setattr(place, "index", index)
        return place.advance(beyond.add(max(first, index), after))

    def settle_runs(self, subscription: int, partition: int, runs: list[tuple[int, int]]) -> Undo:
        """`settle` for many runs in order, taken back together."""
        places = self._places.setdefault(subscription, {})
        place = places.get(partition)
        if place is None:
            place = places[partition] = _Place()
        index = place.index
        if runs and runs[0][0] < index:
            runs = [(max(first, index), after) for first, after in runs if after > index]
        return place.advance(place.beyond.add_all(runs))

    def rows(self) -> list[AckRow]:
        """Every index."""
        return [
            AckRow(subscription, partition, place.index)
            for subscription, places in self._places.items()
            for partition, place in places.items()
        ]

    def pack(self, kept: Container[int]) -> bytes:
        """Of these subscriptions; others are gone, and their numbers never come again."""
        places = [
            (subscription, partition, place)
            for subscription, places in self._places.items()
            if subscription in kept
            for partition, place in places.items()
        ]
        if not places:
            return b""
        rows = pack_rows(AckRow(subscription, partition, place.index) for subscription, partition, place in places)
        runs = [
            _RUN.pack(subscription, partition, *run)
            for subscription, partition, place in places
            for run in place.beyond
        ]
        return _COUNT.pack(len(places)) + rows + b"".join(runs)

    def restore(self, data: bytes) -> None:
        """Begin from what `pack` gave."""
        self._places = {}
        if not data:
            return
        end = _COUNT.size + _COUNT.unpack_from(data)[0] * _ROW.size
        self.apply(unpack_rows(data[_COUNT.size : end]))
        for subscription, partition, first, after in _RUN.iter_unpack(data[end:]):
            self._places[subscription][partition].beyond.add(first, after)

    def _find(self, subscription: int, partition: int) -> _Place:
        places = self._places.get(subscription)
        return places.get(partition, _NOWHERE) if places is not None else _NOWHERE
