"""What is due at which time. Pure: `run` is told the time, and whoever calls it asks `next_ms` when to call again."""

import heapq
from collections.abc import Callable

from lakemq.client.promise import Promise


class Timers:
    """Callbacks by due time; those of one millisecond in the order they were set."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._sleeping: dict[Promise[None], None] = {}
        self._count = 0

    @property
    def next_ms(self) -> int | None:
        """When the next is due."""
        return self._heap[0][0] if self._heap else None

    def at(self, due_ms: int, callback: Callable[[], None]) -> None:
        """Call that once `due_ms` has come. What is not wanted any more must find that out itself."""
        self._count += 1
        heapq.heappush(self._heap, (due_ms, self._count, callback))

    def sleep(self, due_ms: int) -> Promise[None]:
        """A promise that is kept at `due_ms`."""
        promise: Promise[None] = Promise()
        self._sleeping[promise] = None
        self.at(due_ms, lambda: self._wake(promise))
        return promise

    def clear(self, error: BaseException) -> None:
        """Nothing is due any more; those who sleep are told why."""
        self._heap.clear()
        sleeping, self._sleeping = self._sleeping, {}
        for promise in sleeping:
            promise.fail(error)

    def _wake(self, promise: Promise[None]) -> None:
        self._sleeping.pop(promise, None)
        promise.resolve(None)

    def run(self, now_ms: int) -> None:
        """Call what is due; what a callback sets for now or earlier waits for the next run."""
        last = self._count
        later = []
        while self._heap and self._heap[0][0] <= now_ms:
            entry = heapq.heappop(self._heap)
            if entry[1] > last:
                later.append(entry)
            else:
                entry[2]()
        for entry in later:
            heapq.heappush(self._heap, entry)
