"""Which transactions make up a batch of a query, decided once: the record that a batch which is run again finds.

Kept as messages of a topic, by query. A batch is decided when its record is on disk; only then its transactions are
committed, and that this was done is noted, too. Whoever finds a record commits those, however often, and no others.
"""

import time
from typing import Any, NamedTuple

from lakemq.client.blocking import Client

SINK_TOPIC = "lakemq_sinks"
_LOOK_BACK = 20_000  # records; batches come one at a time for a query, so its last one is near the end


class Decision(NamedTuple):
    """What a batch is made of: topic, gtrid and bqual of each transaction."""

    transactions: list[list[str]]
    age_ms: int = 0
    is_done: bool = False  # all of them are committed


class SinkLog:
    """The decisions of one query."""

    def __init__(self, client: Client, query: str) -> None:
        self._client = client
        self._query = query

    def decide(self, batch: int | str, transactions: list[list[str]]) -> Decision:
        """The transactions of that batch: those given, unless it was decided before."""
        found = self._read(_LOOK_BACK).get(batch)
        if found is not None:
            return found
        self._note(batch, transactions=transactions)
        return Decision(transactions)

    def done(self, batch: int | str) -> None:
        """All transactions of that batch are committed."""
        self._note(batch, done=True)

    def all(self) -> dict[int | str, Decision]:
        """All decisions of the query that are kept."""
        return self._read(None)

    def _note(self, batch: int | str, **more: Any) -> None:
        record = {"query": self._query, "batch": batch, **more}
        self._client.send(SINK_TOPIC, record, key=self._query, acks="flush")

    def _read(self, back: int | None) -> dict[int | str, Decision]:
        found: dict[int | str, Decision] = {}
        now_ms = time.time_ns() // 1_000_000
        for partition, reach in self._client.ranges(SINK_TOPIC).items():
            start = reach.first_index if back is None else max(reach.first_index, reach.visible_index - back)
            if start >= reach.visible_index:
                continue
            with self._client.reader(SINK_TOPIC, start=start, stop="now", partitions=[partition]) as reader:
                for message in reader:
                    said: dict[str, Any] = message.json()
                    if said.get("query") != self._query:
                        continue
                    batch = said["batch"]
                    if said.get("done"):
                        before = found.get(batch, Decision([]))
                        found[batch] = before._replace(is_done=True)
                    else:  # the first decision counts
                        found.setdefault(batch, Decision(said["transactions"], now_ms - message.stored_at))
        return found
