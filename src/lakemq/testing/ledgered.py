"""What a broker put into its journal beside messages, to know what a start must find again.

Ack indexes and metadata are a fold over the journal. After a kill they are those of all that was written, after a power
loss those of some moment since the last sync, and a turn that was refused may be there all the same (its outcome is
unknown).
"""

from lakemq.cluster.metadata import Metadata
from lakemq.delivery.ack_index import AckRow

AckState = dict[tuple[int, int], int]  # (subscription, partition) → index
FoldState = tuple[AckState, Metadata]


class Ledgered:
    """Told of each change with the position where its record ends."""

    def __init__(self) -> None:
        self._rows: list[tuple[int, list[AckRow]]] = []  # behind what is durable
        self._metadata: list[tuple[int, Metadata]] = [(0, Metadata())]  # the first is durable
        self._refused: list[FoldState] = []  # what it would be with a turn that was refused, and may be there
        self._is_refused_last = False
        self.durable: AckState = {}

    def begin(self, acks: AckState, metadata: Metadata) -> None:
        """A start: all that was found is durable."""
        self.__init__()  # type: ignore[misc]
        self._metadata = [(0, metadata)]
        self.durable = acks

    def moved(self, end_position: int, rows: list[AckRow]) -> None:
        """Ack indexes were set."""
        self._rows.append((end_position, list(rows)))

    def changed(self, end_position: int, metadata: Metadata) -> None:
        """Topics or apps were changed."""
        self._metadata.append((end_position, metadata))

    def written(self) -> None:
        """A turn was written, over what a refused one may have left."""
        self._is_refused_last = False

    def refused(self, written_position: int) -> None:
        """A turn was not written: what is behind that position was taken back, and may be on the disk all the same."""
        self._refused += [self.state(end) for end in self._ends() if end > written_position]
        self._is_refused_last = True
        while self._rows and self._rows[-1][0] > written_position:
            self._rows.pop()
        while self._metadata[-1][0] > written_position:
            self._metadata.pop()

    def synced(self, position: int) -> None:
        """All before that position is durable."""
        while self._rows and self._rows[0][0] <= position:
            for subscription, partition, index in self._rows.pop(0)[1]:
                self.durable[subscription, partition] = index
        while len(self._metadata) > 1 and self._metadata[1][0] <= position:
            self._metadata.pop(0)
        if not self._is_refused_last:
            self._refused = []

    def states(self, written_position: int, *, is_power_lost: bool) -> list[FoldState]:
        """What may be found at the next start: one state after a kill, one of several after a power loss."""
        positions = [0, *(end for end in self._ends() if end <= written_position)]
        found = [self.state(end) for end in (positions if is_power_lost else positions[-1:])]
        return found + self._refused if is_power_lost or self._is_refused_last else found

    def _ends(self) -> list[int]:
        return sorted({end for end, _ in self._rows} | {end for end, _ in self._metadata[1:]})

    def state(self, position: int) -> FoldState:
        """With all that ends by that position."""
        acks = dict(self.durable)
        for end, rows in self._rows:
            if end <= position:
                acks.update({(subscription, partition): index for subscription, partition, index in rows})
        metadata = [self._metadata[0][1], *(one for end, one in self._metadata[1:] if end <= position)][-1]
        return acks, metadata
