"""Which transactions make up a batch of a query, decided once: the record that a batch which is run again finds.

Kept as messages of a topic, by query. A batch is decided when its record is on disk; only then its transactions are
committed. Whoever finds the record commits those, however often, and no others.
"""

from typing import Any

from lakemq.client.blocking import Client

SINK_TOPIC = "lakemq_sinks"
_LOOK_BACK = 2000  # records; batches come one at a time for a query, so its last one is near the end


class SinkLog:
    """The decisions of one query."""

    def __init__(self, client: Client, query: str) -> None:
        self._client = client
        self._query = query

    def decide(self, batch: int | str, transactions: list[list[str]]) -> list[list[str]]:
        """The transactions of that batch: those given, unless it was decided before."""
        found = self._read(_LOOK_BACK).get(batch)
        if found is not None:
            return found
        record = {"query": self._query, "batch": batch, "transactions": transactions}
        self._client.send(SINK_TOPIC, record, key=self._query, acks="flush")
        return transactions

    def all(self) -> dict[int | str, list[list[str]]]:
        """All decisions of the query that are kept."""
        return self._read(None)

    def _read(self, back: int | None) -> dict[int | str, list[list[str]]]:
        found: dict[int | str, list[list[str]]] = {}
        for partition, reach in self._client.ranges(SINK_TOPIC).items():
            start = reach.first_index if back is None else max(reach.first_index, reach.visible_index - back)
            if start >= reach.visible_index:
                continue
            with self._client.reader(SINK_TOPIC, start=start, stop="now", partitions=[partition]) as reader:
                for message in reader:
                    said: dict[str, Any] = message.json()
                    if said.get("query") == self._query:
                        found.setdefault(said["batch"], said["transactions"])  # the first decision counts
        return found
