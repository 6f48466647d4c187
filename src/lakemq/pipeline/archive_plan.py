"""What the archive is to fetch next: topics that are archived, how far the lake is, how far the broker. Driver side.

A partition is named by the id of its topic as well, so that a topic made anew under an old name begins at 0.
"""

from dataclasses import dataclass, replace
from typing import Any

from lakemq.pipeline.door import door
from lakemq.pipeline.events import EVENTS_TOPIC
from lakemq.pipeline.lake import EVENTS, MESSAGES, Lake, PartitionKey
from lakemq.pipeline.lake.errors import LakeNotFoundError
from lakemq.pipeline.lake.store import Snapshot
from lakemq.pipeline.options import Server

_ID_MARK = "#"


@dataclass(frozen=True, slots=True)
class ArchivedTopic:
    """A topic that the lake is to have."""

    name: str
    id: int

    @property
    def table(self) -> str:
        return EVENTS if self.name == EVENTS_TOPIC else MESSAGES

    @property
    def tag(self) -> str:
        """Its name in offsets that Spark keeps."""
        return f"{self.name}{_ID_MARK}{self.id}"


def read_tag(tag: str) -> ArchivedTopic:
    """What `tag` gave."""
    name, _, number = tag.rpartition(_ID_MARK)
    return ArchivedTopic(name, int(number))


def cluster_of(server: Server) -> dict[str, Any]:
    """The broker's own account of itself: cluster id and topics."""
    found: dict[str, Any] = door(server).inspect("cluster")
    return found


@dataclass(frozen=True, slots=True)
class Seen:
    """A topic as the app sees it that asks."""

    name: str
    number: int
    partitions: int
    is_readable: bool


def seen_topics(cluster: dict[str, Any]) -> list[Seen]:
    """All topics that the broker tells of; an app may know of some that it may not read."""
    return [
        Seen(one["name"], one["number"], one["partitions"], one.get("is_readable", True)) for one in cluster["topics"]
    ]


def held_lake(uri: str, cluster: str) -> tuple[Lake, Snapshot] | tuple[None, None]:
    """The lake as it is now; nothing if none was named or nothing was archived there: then all there is is live."""
    if not uri:
        return None, None
    try:
        lake = Lake.open(uri, cluster)
    except LakeNotFoundError:
        return None, None
    return lake, lake.snapshot()


def as_archive(server: Server, default: str) -> Server:
    """The archive's app as the broker is set (`archive.app`), if nobody has said as whom to archive.

    The broker keeps messages until that app has them, so an archive under another name would change nothing.
    """
    app = cluster_of(server).get("archive_app", default) if server.app == default else server.app
    return replace(server, app=app)


def archived_topics(server: Server, only: tuple[str, ...] = ()) -> list[ArchivedTopic]:
    """The topics that are marked as archived; with `only`, those named, marked or not."""
    topics = cluster_of(server)["topics"]
    wanted = [one for one in topics if (one["name"] in only if only else one["is_archived"])]
    return [ArchivedTopic(one["name"], one["number"]) for one in sorted(wanted, key=lambda one: one["name"])]


def archived_positions(lake: Lake, topics: list[ArchivedTopic], counts: dict[str, int]) -> dict[str, dict[str, int]]:
    """Where the archive goes on, in the shape of Spark's offsets; 0 where it has nothing."""
    spans = lake.snapshot()
    found: dict[str, dict[str, int]] = {}
    for topic in topics:
        positions = spans.positions(topic.table)
        found[topic.tag] = {
            str(p): positions.get(PartitionKey(topic.id, p), 0) for p in range(counts.get(topic.name, 1))
        }
    return found


def told_positions(server: Server) -> dict[PartitionKey, int]:
    """How far the broker was told that the lake is: it may have dropped what lies before."""
    found: dict[PartitionKey, int] = {}
    for topic in archived_topics(server):
        for partition, reach in door(server).ranges(topic.name).items():
            if reach.ack_index > 0:
                found[PartitionKey(topic.id, partition)] = reach.ack_index
    return found


def kept_positions(server: Server) -> dict[PartitionKey, int]:
    """From where on the broker still has each partition of an archived topic."""
    return {
        PartitionKey(topic.id, partition): reach.first_index
        for topic in archived_topics(server)
        for partition, reach in door(server).ranges(topic.name).items()
    }


def archived_status(lake: Lake, server: Server) -> list[dict[str, Any]]:
    """A row for each partition of an archived topic: how far the lake is, how far the broker."""
    snapshot = lake.snapshot()
    gaps: dict[PartitionKey, int] = {}
    for gap in lake.gaps():
        gaps[gap.key] = gaps.get(gap.key, 0) + gap.end - gap.first
    rows = []
    for topic in archived_topics(server):
        positions = snapshot.positions(topic.table)
        for partition, reach in door(server).ranges(topic.name).items():
            key = PartitionKey(topic.id, partition)
            archived = positions.get(key, 0)
            rows.append(
                {
                    "topic": topic.name,
                    "partition": partition,
                    "archived": archived,
                    "end": reach.visible_index,
                    "behind": max(reach.visible_index - archived, 0),
                    "missing": gaps.get(key, 0),
                }
            )
    return rows
