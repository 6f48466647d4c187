"""Which partition a message goes to.

With a key, or where order matters: by the key's hash over all partitions of the topic, so that the same key goes to
the same partition whoever sends it and whoever leads. Without: at random by the brokers' weights, or in turn. A batch
of `send_soon` without keys goes to one partition as a whole: fewer and larger carriers.
"""

from bisect import bisect_right
from zlib import crc32

from lakemq.client.backoff import Random
from lakemq.client.config import Selector, SelectorName
from lakemq.client.router import Route
from lakemq.errors import BadParameterError, NoPartitionGroupError


def hash_partition(key: str, partitions: tuple[int, ...]) -> int:
    """The partition of a key: CRC-32 of its UTF-8 bytes, modulo the number of partitions."""
    return partitions[crc32(key.encode()) % len(partitions)]


class PartitionSelector:
    """The rule of one client, with what it must remember."""

    def __init__(self, rule: SelectorName | Selector | None, random: Random) -> None:
        if isinstance(rule, str) and rule not in ("weighted_random", "round_robin", "hash"):
            raise BadParameterError(f"selector={rule!r} is not weighted_random, round_robin, hash or a function")
        self._rule = rule
        self._random = random
        self._turns: dict[str, int] = {}

    def is_by_key(self, route: Route, key: str | None, is_ordered: bool) -> bool:
        """Whether the partition is the message's own and must stay the same when it is sent again."""
        return key is not None or is_ordered or route.is_ordered or self._rule == "hash"

    def select(self, route: Route, key: str | None, is_ordered: bool = False, uniq_id: str | None = None) -> int:
        """The partition to send to; NoPartitionGroupError if there is none.

        A message with an id and no key goes where its id says, as long as that partition can be written: only the
        broker that has the first copy knows the id, and a program that sends it again may be another process by then.
        """
        writable, bounds = route.candidates
        if not route.partitions or not writable:
            raise NoPartitionGroupError(f"no partition of {route.topic} has a leader")
        if callable(self._rule):
            chosen = self._rule(route.topic, key, writable)
            if chosen not in route.partitions:
                raise BadParameterError(f"the selector chose partition {chosen}, which {route.topic} does not have")
            return chosen
        if self.is_by_key(route, key, is_ordered):
            return hash_partition(key or "", route.partitions)
        if uniq_id is not None and len(route.brokers) > 1:
            wanted = hash_partition(uniq_id, route.partitions)
            if wanted in writable:
                return wanted
        if self._rule == "round_robin":
            turn = self._turns.get(route.topic, 0)
            self._turns[route.topic] = turn + 1
            return writable[turn % len(writable)]
        return writable[min(bisect_right(bounds, self._random()), len(writable) - 1)]
