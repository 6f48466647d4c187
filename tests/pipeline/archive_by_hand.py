"""The archive's work without Spark: what its tasks do and its driver commits, in this process."""

import json

from lakemq.pipeline.archive_plan import archived_topics, cluster_of
from lakemq.pipeline.archive_source import write_range
from lakemq.pipeline.door import door
from lakemq.pipeline.lake import DataFile, Lake, PartitionKey
from lakemq.pipeline.lake import Range as LakeRange
from lakemq.pipeline.options import Server
from lakemq.pipeline.planning import Range


def archive(url, path, *topics, app="spark"):
    """Copy topics, and the events, into the lake as far as they go now."""
    server = Server(url, app)
    lake = Lake.open(path, cluster_of(server)["cluster"], create=True)
    for topic in archived_topics(server, (*topics, "__events")):
        held = lake.snapshot().positions(topic.table)
        for partition, reach in door(server).ranges(topic.name).items():
            first = held.get(PartitionKey(topic.id, partition), 0)
            if first == reach.visible_index:
                continue
            one = Range(topic.name, partition, first, reach.visible_index, topic.id)
            row = write_range(server, str(path), one, first).to_pylist()[0]
            files = [DataFile.from_json(text) for text in json.loads(row["files"])]
            lake.commit(files, [], [LakeRange(topic.name, topic.id, partition, first, one.end, topic.table)])
    return lake
