"""Which of the messages received may be begun: so many at a time, and of one key one after the other.

Messages of one key keep their order; so do those without a key, as far as they are of one partition. While one of a
key is under way, those behind it wait, and others are looked for further on: within a bound, so that a key that is slow
does not have a whole topic wait in memory. Pure; those who call it take a lock, or are on one event loop.
"""

from collections import Counter, deque
from collections.abc import Hashable

from lakemq.client.delivery import Delivery
from lakemq.errors import LakeMQError

_AHEAD_PER_WORKER = 32


class KeyOrder:
    """The messages that one handler has in hand."""

    def __init__(self, concurrency: int, is_by_key: bool, bytes_max: int) -> None:
        self._concurrency = concurrency
        self._is_by_key = is_by_key and concurrency > 1  # one at a time is in order anyway
        self._count_max = concurrency * (_AHEAD_PER_WORKER if self._is_by_key else 1)
        self._bytes_max = bytes_max
        self._ready: deque[tuple[Hashable, Delivery]] = deque()
        self._behind: dict[Hashable, deque[Delivery]] = {}  # by key, all that wait for the one ahead of them
        self._under_way: dict[Delivery, Hashable] = {}
        self._count = 0
        self._bytes = 0
        self._held: Counter[int] = Counter()  # by the opened MESSAGE: messages of it in hand

    @property
    def room(self) -> int:
        """How many more may be received now."""
        return 0 if self._bytes >= self._bytes_max else self._count_max - self._count

    @property
    def under_way(self) -> list[Delivery]:
        """Those that were begun and are not done."""
        return list(self._under_way)

    def add(self, delivery: Delivery) -> None:
        """One was received; they are added in their order."""
        self._hold(delivery)
        key = self._key_of(delivery)
        behind = self._behind.get(key)
        if behind is None:
            self._behind[key] = deque()
            self._ready.append((key, delivery))
        else:
            behind.append(delivery)

    def begin(self) -> Delivery | None:
        """The next to be handled, if one may be; `done` must follow."""
        if not self._ready or len(self._under_way) >= self._concurrency:
            return None
        key, delivery = self._ready.popleft()
        self._under_way[delivery] = key
        return delivery

    def done(self, delivery: Delivery) -> None:
        """It was handled, well or not: the next of its key may be."""
        key = self._under_way.pop(delivery)
        self._let_go(delivery)
        behind = self._behind[key]
        if behind:
            self._ready.append((key, behind.popleft()))
        else:
            del self._behind[key]

    def _key_of(self, delivery: Delivery) -> Hashable:
        if not self._is_by_key:
            return object()
        try:
            key = delivery.key
        except LakeMQError:  # told when somebody looks at the message
            key = None
        return delivery.partition if key is None else key

    def _hold(self, delivery: Delivery) -> None:
        carried = delivery._carried
        self._count += 1
        self._held[id(carried)] += 1
        if self._held[id(carried)] == 1:
            self._bytes += len(carried.body)

    def _let_go(self, delivery: Delivery) -> None:
        carried = delivery._carried
        self._count -= 1
        self._held[id(carried)] -= 1
        if not self._held[id(carried)]:
            del self._held[id(carried)]
            self._bytes -= len(carried.body)
