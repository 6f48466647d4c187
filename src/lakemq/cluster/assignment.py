"""Who coordinates an app, and partitions of a topic spread over its members: evenly, and moved no more than needed.

A member that is not heard of for its session time-out is out. With more members than partitions the last to come stand
by with none.
"""

import zlib
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field

MEMBERS_MAX = 10_000  # of one app on one topic


def coordinator_of(app: str, brokers: Iterable[int]) -> int:
    """The broker that coordinates an app: the same for whoever knows the same brokers, in whatever order.

    Each broker has a number for each app, and the largest wins: one broker more or less moves its own share only.
    """
    return max(brokers, key=lambda broker: (zlib.crc32(b"%d/%s" % (broker, app.encode())), broker))


@dataclass(slots=True)
class Assignment:
    """The members of one app on one topic, in the order they came, and what each has."""

    _ends_ms: dict[Hashable, int] = field(default_factory=dict)
    _held: dict[Hashable, list[int]] = field(default_factory=dict)
    _partitions: tuple[int, ...] = ()

    @property
    def member_count(self) -> int:
        """How many there are."""
        return len(self._ends_ms)

    def has_room(self, member: Hashable, now_ms: int, count_max: int) -> bool:
        """Whether that member is in already, or can come in without there being too many."""
        if member in self._ends_ms or len(self._ends_ms) < count_max:
            return True
        return sum(end_ms > now_ms for end_ms in self._ends_ms.values()) < count_max

    def join(self, member: Hashable, partitions: Sequence[int], now_ms: int, session_ms: int) -> list[int]:
        """The member is here, and will be for `session_ms`: its partitions."""
        is_new = member not in self._ends_ms
        self._ends_ms[member] = now_ms + session_ms
        gone = [one for one, end_ms in self._ends_ms.items() if end_ms <= now_ms]
        for one in gone:
            del self._ends_ms[one]
        if is_new or gone or tuple(partitions) != self._partitions:
            self._partitions = tuple(partitions)
            self._spread()
        return sorted(self._held.get(member, ()))

    def leave(self, member: Hashable) -> None:
        """The member is gone."""
        if self._ends_ms.pop(member, None) is not None:
            self._spread()

    def _spread(self) -> None:
        members = list(self._ends_ms)
        if not members:
            self._held = {}
            return
        share, rest = divmod(len(self._partitions), len(members))
        wanted = {member: share + (place < rest) for place, member in enumerate(members)}
        free = dict.fromkeys(self._partitions)
        held: dict[Hashable, list[int]] = {}
        for member in members:  # what it has it keeps, up to its share
            kept = [one for one in self._held.get(member, ()) if one in free][: wanted[member]]
            held[member] = kept
            for one in kept:
                del free[one]
        left = iter(free)
        for member in members:
            held[member] += [next(left) for _ in range(wanted[member] - len(held[member]))]
        self._held = held
