"""Which transactions make up a batch of a query, decided once: the record that a batch which is run again finds.

Kept as messages of a topic, by name. A batch is decided when its record is on disk; only then its transactions are
committed, and that this was done is noted, too. Whoever finds a record commits those, however often, and no others.

Batches are numbered by a checkpoint, and each one begins at 0: so a name belongs to one checkpoint, by the id that
Spark keeps in it, and another one is refused unless it takes the name over. The order of the records decides whose a
name is, for all who read them: a decision of another checkpoint that stands behind a taking over is void.
"""

import time
from datetime import UTC, datetime
from typing import Any, NamedTuple

from lakemq.client.blocking import Client
from lakemq.pipeline.errors import PipelineError

SINK_TOPIC = "lakemq_sinks"
NO_CHECKPOINT = ""  # of a write outside of a stream, and of a replay
_LOOK_BACK = 20_000  # records; batches come one at a time for a query, so its last one is near the end

Batch = int | str


class NameTakenError(PipelineError):
    """A name is another checkpoint's."""

    cause = "The name of a query belongs to another checkpoint."
    fix = (
        "Start the query with the checkpoint it had, or give it another name; if that history is to end, "
        'take the name over with .option("takeOver", "true").'
    )


class Decision(NamedTuple):
    """What a batch is made of: topic, gtrid and bqual of each transaction."""

    transactions: list[list[str]]
    age_ms: int = 0
    is_done: bool = False  # all of them are committed


class _Owner(NamedTuple):
    checkpoint: str
    batch: Batch | None  # the last that was decided
    time_ms: int


class SinkLog:
    """The decisions of one checkpoint under one name."""

    def __init__(self, client: Client, query: str, checkpoint: str = NO_CHECKPOINT) -> None:
        self._client = client
        self._query = query
        self._checkpoint = checkpoint
        self._ends: dict[int, int] = {}  # of what was read, by partition
        self._owner: _Owner | None = None
        self._decisions: dict[tuple[str, Batch], Decision] = {}

    def decide(self, batch: Batch, transactions: list[list[str]]) -> Decision:
        """The transactions of that batch: those given, unless it was decided before."""
        self._catch_up(_LOOK_BACK)
        key = self._checkpoint, batch
        if key not in self._decisions:
            self._check_owner()
            self._note(batch, transactions=transactions)
            self._catch_up(_LOOK_BACK)
            if key not in self._decisions:  # somebody took the name over in this very moment
                self._check_owner()
        return self._decisions[key]

    def done(self, batch: Batch, checkpoint: str | None = None) -> None:
        """All transactions of that batch are committed."""
        self._note(batch, checkpoint, done=True)

    def all(self) -> dict[Batch, Decision]:
        """All decisions that are kept."""
        self._catch_up(None)
        return {batch: one for (checkpoint, batch), one in self._decisions.items() if checkpoint == self._checkpoint}

    def take_over(self) -> list[tuple[str, Batch, Decision]]:
        """Make the name this checkpoint's. What others had decided and not finished, with their checkpoints."""
        self._catch_up(_LOOK_BACK)
        if self._owner is not None and self._owner.checkpoint != self._checkpoint:
            self._note(None, takeOver=True)
            self._catch_up(_LOOK_BACK)
        return [
            (checkpoint, batch, one)
            for (checkpoint, batch), one in self._decisions.items()
            if checkpoint != self._checkpoint and not one.is_done
        ]

    def _check_owner(self) -> None:
        owner = self._owner
        if owner is None or owner.checkpoint == self._checkpoint:
            return
        when = datetime.fromtimestamp(owner.time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
        whose = "another checkpoint" if owner.checkpoint else "another checkpoint (a write outside of a stream)"
        raise NameTakenError(
            f"name {self._query!r} belongs to {whose}, which wrote batch {owner.batch} at {when} UTC; "
            "batches of this one would be taken for those",
            NameTakenError.fix,
        )

    def _note(self, batch: Batch | None, checkpoint: str | None = None, **more: Any) -> None:
        whose = self._checkpoint if checkpoint is None else checkpoint
        record = {"query": self._query, "checkpoint": whose, "batch": batch, **more}
        self._client.send(SINK_TOPIC, record, key=self._query, acks="flush")

    def _catch_up(self, back: int | None) -> None:
        """Take in what the log has more than when it was last read."""
        found: list[tuple[int, dict[str, Any]]] = []
        for partition, reach in self._client.ranges(SINK_TOPIC).items():
            first, end = reach.first_index, reach.visible_index
            start = self._ends.get(partition, first if back is None else max(first, end - back))
            if start >= end:
                continue
            self._ends[partition] = end
            with self._client.reader(SINK_TOPIC, start=start, stop="now", partitions=[partition]) as reader:
                for message in reader:
                    if message.offset >= end:
                        break
                    said: dict[str, Any] = message.json()
                    if said.get("query") == self._query:
                        found.append((message.stored_at, said))
        # One name is one key, so one partition, unless the topic has grown.
        for stored_ms, said in sorted(found, key=lambda one: one[0]):
            self._take(stored_ms, said)

    def _take(self, stored_ms: int, said: dict[str, Any]) -> None:
        checkpoint, batch = said.get("checkpoint", NO_CHECKPOINT), said["batch"]
        key = checkpoint, batch
        if said.get("done"):
            if key in self._decisions:
                self._decisions[key] = self._decisions[key]._replace(is_done=True)
            elif self._owner is None or self._owner.checkpoint == checkpoint:  # decided before the look back begins
                self._decisions[key] = Decision([], is_done=True)
                self._owner = _Owner(checkpoint, batch, stored_ms)
        elif said.get("takeOver"):
            self._owner = _Owner(checkpoint, None, stored_ms)
        elif self._owner is None or self._owner.checkpoint == checkpoint:
            age_ms = time.time_ns() // 1_000_000 - stored_ms
            self._decisions.setdefault(key, Decision(said["transactions"], age_ms))  # the first decision counts
            self._owner = _Owner(checkpoint, batch, stored_ms)
