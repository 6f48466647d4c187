"""One transaction as its producer knows it, and what may have become of its messages (I11)."""

from dataclasses import dataclass, field

from lakemq.testing.facts import Send, violate

COMMITTED, ROLLED_BACK = "committed", "rolled back"
OPPOSITE = {COMMITTED: ROLLED_BACK, ROLLED_BACK: COMMITTED}
NOT_FOUND, DECIDED_OTHERWISE = 138, 139


@dataclass(slots=True)
class Transacted:
    """Begun, perhaps decided."""

    number: int
    topic: str
    tx_id: str = ""
    own_id: str = ""
    sends: list[Send] = field(default_factory=list)
    asked: set[str] = field(default_factory=set)  # outcomes that were asked for
    told: str = ""  # the outcome, if somebody was told
    is_sure: bool = True  # that the broker remembers it: not once a clock was set

    def answered(self, outcome: str, code: int) -> None:
        """A decision was answered. The first stays: again it is the same answer, the opposite is refused."""
        if code == 0:
            if self.told == OPPOSITE[outcome]:
                violate("I11", f"{self} was {outcome}")
            self.told = outcome
        elif code == DECIDED_OTHERWISE:
            if self.told == outcome:
                violate("I11", f"{self} was not {outcome} a second time: code {code}")
            self.told = OPPOSITE[outcome]
        elif code == NOT_FOUND and self.told and self.is_sure:
            violate("I11", f"the outcome of {self} was forgotten: asked for {outcome}, code {code}")

    def check(self, present: set[int], *, may_be_retained: bool) -> None:
        """All of it is there, or nothing, as its producer was told."""
        sure = {one for send in self.sends if send.outcome == "ok" for carrier in send.carriers for one in carrier.ids}
        possible = {one for send in self.sends for carrier in send.carriers for one in carrier.ids}
        found = possible & present
        if (self.told == ROLLED_BACK or COMMITTED not in self.asked) and found:
            violate("I11", f"messages {found} of {self} are there")
        if may_be_retained:
            return
        missing = sure - present
        if missing and (found or self.told == COMMITTED):
            violate("I11", f"messages {found} of {self} are there, {missing} are not")
