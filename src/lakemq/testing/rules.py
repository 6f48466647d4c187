"""What a consumer policy promises, worked out anew: pauses between attempts, order, which messages an app wants.

Not by the product's own code, so that an error in that one is seen.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from lakemq.policy import ConsumerPolicy

NEVER_MS = 1 << 60
SOON_MS = 86_400_000  # an EXPIRE further away than this is not reached
_LEVELS_S = (10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)

Attributes = Mapping[str, str]
FILTERS: dict[str, Callable[[Attributes], bool]] = {  # those that the simulation uses, and what they mean
    "": lambda said: True,
    "*": lambda said: True,
    "red": lambda said: said.get("TAGS") == "red",
    "red || blue": lambda said: said.get("TAGS") in ("red", "blue"),
    "size > 2": lambda said: int(said.get("size", "0")) > 2,
    "NOT (size = 1) AND TAGS <> 'blue'": lambda said: (
        "size" in said and said["size"] != "1" and "TAGS" in said and said["TAGS"] != "blue"
    ),
}


@dataclass(slots=True)
class Rules:
    """How one app is served on one topic."""

    policy: ConsumerPolicy = field(default_factory=ConsumerPolicy)
    is_topic_ordered: bool = False
    filters: set[str] = field(default_factory=set)  # all that were ever in force; none: no filter

    @property
    def keeps_order(self) -> bool:
        """Whether others wait for a message that failed."""
        return self.is_topic_ordered or self.policy.is_sequential

    @property
    def is_strict(self) -> bool:
        """Whether all of a partition comes in order."""
        return self.keeps_order and not self.policy.is_concurrent

    @property
    def is_keyed(self) -> bool:
        """Whether messages of one key come in order, several keys at a time."""
        return self.keeps_order and self.policy.is_concurrent

    @property
    def counts_leases(self) -> bool:
        """Whether a lease that runs out may be an attempt: of a retry always, of others by the policy."""
        return not self.keeps_order or (self.policy.is_retry and self.policy.error_times > 0)

    def pause_ms(self, failures: int) -> int:
        """How long the policy waits after so many failures."""
        policy = self.policy
        if policy.retry_schedule == "levels":
            pause_ms = 1000 * _LEVELS_S[min(failures, len(_LEVELS_S)) - 1]
        else:
            pause_ms = policy.retry_first_ms * policy.retry_factor ** (failures - 1)
        return min(pause_ms, policy.retry_delay_max_ms)

    @property
    def may_skip(self) -> bool:
        """Whether some messages may not be meant for this app."""
        return bool(self.filters - {"", "*"})

    def may_leave_out(self, attributes: Attributes) -> bool:
        """Whether a filter that was in force leaves that message out."""
        return any(not FILTERS[one](attributes) for one in self.filters)

    def must_leave_out(self, attributes: Attributes) -> bool:
        """Whether each filter that was in force does."""
        return bool(self.filters) and all(not FILTERS[one](attributes) for one in self.filters)
