"""What a sender gets back: where its messages are, or why they are not."""

from collections.abc import Sequence
from typing import NamedTuple

from lakemq.client.config import Acks
from lakemq.errors import LakeMQError


class Receipt(NamedTuple):
    """Where a message is. `offset` is None where it has none: acks "receive" or "none", still queued, or delayed."""

    topic: str
    partition: int | None
    offset: int | None
    acks: Acks
    uniq_id: str | None = None
    queued: bool = False  # in the outbox, and with the broker as soon as it can be reached

    @property
    def message_id(self) -> str | None:
        """What the message is known by everywhere: its uniq_id, else its place; None if neither is known."""
        if self.uniq_id is not None:
            return self.uniq_id
        return None if self.offset is None else place_id(self.topic, self.partition or 0, self.offset)


def place_id(topic: str, partition: int, offset: int) -> str:
    """The id of a message that was given none."""
    return f"{topic}/{partition}/{offset}"


Outcome = Receipt | LakeMQError


class SendReport:
    """What became of the messages of a send_many: one outcome per message, in their order."""

    def __init__(self, outcomes: Sequence[Outcome]) -> None:
        self.outcomes = list(outcomes)

    def __len__(self) -> int:
        return len(self.outcomes)

    def __repr__(self) -> str:
        return f"SendReport({len(self.ok)} ok, {len(self.failed)} failed)"

    @property
    def ok(self) -> list[Receipt]:
        """Those that the broker has."""
        return [outcome for outcome in self.outcomes if isinstance(outcome, Receipt)]

    @property
    def failed(self) -> list[tuple[int, LakeMQError]]:
        """The others: which message, counted from 0, and why."""
        return [(place, one) for place, one in enumerate(self.outcomes) if not isinstance(one, Receipt)]

    def raise_if_failed(self) -> None:
        """Raise the first error, if there is one, with the number of the others."""
        failed = self.failed
        if failed:
            place, error = failed[0]
            error.add_note(f"message {place} of {len(self.outcomes)}; {len(failed)} failed in all")
            raise error.with_traceback(None)
