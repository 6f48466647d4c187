"""How far a stream is: offsets of partitions, and which topics they are of. Spark keeps it in a checkpoint. Pure.

A topic that is dropped and made anew has another id and counts from 0 again, so an offset alone does not say of which
one it is. On the outside it is JSON in the shape of Spark's Kafka source, with the id beside the partitions:
`{"orders": {"0": 17, "id": "…/5"}}`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lakemq.pipeline.positions import TOPIC_ID, Positions, to_json


@dataclass(frozen=True, slots=True)
class Standing:
    """Offsets and the ids of their topics; one without an id is of a checkpoint from before there were any."""

    positions: Positions
    ids: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, dict[str, Any]]:
        """As Spark keeps it."""
        found: dict[str, dict[str, Any]] = {topic: dict(parts) for topic, parts in to_json(self.positions).items()}
        for topic, parts in found.items():
            if topic in self.ids:
                parts[TOPIC_ID] = self.ids[topic]
        return found

    @classmethod
    def from_json(cls, value: Mapping[str, Mapping[str, Any]]) -> "Standing":
        """What `to_json` gave."""
        positions = {
            (topic, int(partition)): offset
            for topic, parts in value.items()
            for partition, offset in parts.items()
            if partition != TOPIC_ID
        }
        return cls(positions, {topic: parts[TOPIC_ID] for topic, parts in value.items() if TOPIC_ID in parts})

    @property
    def topics(self) -> list[str]:
        """Those it is about, sorted."""
        return sorted({topic for topic, _ in self.positions})

    def is_of(self, topic: str, id: str | None) -> bool:
        """Whether its offsets are of the topic with that id; None for one that is not there."""
        return id is not None and self.ids.get(topic, id) == id

    def lost(self, ids: Mapping[str, str]) -> list[str]:
        """Topics that are not there any more, or other ones under their names."""
        return [topic for topic in self.topics if not self.is_of(topic, ids.get(topic))]

    def without(self, topics: list[str]) -> "Standing":
        """The same, less those topics."""
        positions = {place: at for place, at in self.positions.items() if place[0] not in topics}
        return Standing(positions, {topic: id for topic, id in self.ids.items() if topic not in topics})

    def only(self, topics: list[str]) -> "Standing":
        """Those topics of it."""
        return self.without([topic for topic in self.topics if topic not in topics])

    def joined(self, other: "Standing") -> "Standing":
        """Both; where they speak of the same the other one counts."""
        return Standing({**self.positions, **other.positions}, {**self.ids, **other.ids})


def topic_number(id: str) -> int:
    """The number of a topic in its cluster, from its id."""
    return int(id.rpartition("/")[2])


def topic_id(cluster: str, number: int) -> str:
    """What tells a topic from all others, also from those of other data directories."""
    return f"{cluster}/{number}"
