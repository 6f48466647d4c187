"""Messages that keep their order are settled in order: which one would be overtaken, if some were settled now.

Where all of a partition is in order nothing may be settled behind a message that is not. Where order is by key, that
holds for the messages of one key, all of which are in one lease.
"""

from collections.abc import Collection, Iterable

from lakemq.delivery.intervals import Intervals
from lakemq.delivery.loans import ANY_KEY, Key, Lease


def overtaken(ack_index: int, beyond: Intervals, named: Iterable[int], settled: Collection[int]) -> int | None:
    """The unsettled message, not one of `named`, before the first of `settled` that has one before it.

    All below `ack_index` is settled, and what is `beyond` it. `named` are those that a request speaks of.
    """
    reached = beyond.gap_from(ack_index)[0]
    for number in sorted(named):
        if number == reached:
            reached = beyond.gap_from(number + 1)[0]
        elif number > reached and number in settled and number not in beyond:
            return reached
    return None


def overtaken_in_key(lease: Lease, named: Collection[int], settled: Collection[int]) -> int | None:
    """The same within one lease, by key. The keys of a batch's members are not known: it may have any."""
    waiting: dict[Key, int] = {}  # the first unsettled message of each key that nothing is said of
    for first, after, key in lease.keyed:
        for start, stop in lease.open.within(first, after):
            for index in range(start, stop):
                if index not in named:
                    waiting.setdefault(key, index)
                elif index in settled:
                    same = (waiting.get(key), waiting.get(ANY_KEY)) if key is not ANY_KEY else waiting.values()
                    before = min((one for one in same if one is not None), default=None)
                    if before is not None:
                        return before
    return None
