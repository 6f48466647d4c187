"""The archive job: a stream from all archived topics into the lake, each message once.

How far it is stands in the lake, in the same commits as the files; Spark's checkpoint lasts for one run only and
decides nothing. After a commit has survived a power loss the broker is told, and may then drop what it keeps.
"""

import json
import shutil
import tempfile
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from lakemq.pipeline.archive_plan import archived_positions, archived_topics, as_archive, cluster_of
from lakemq.pipeline.door import door
from lakemq.pipeline.errors import PipelineError
from lakemq.pipeline.lake import DataFile, Gap, Lake, PartitionKey, Range
from lakemq.pipeline.lake.maintenance import Compacted
from lakemq.pipeline.lake.upkeep import Upkeep, UpkeepPolicy
from lakemq.pipeline.options import Server
from lakemq.pipeline.spark_errors import told

ARCHIVE_APP = "lakemq-archive"
GONE = "had left the broker before the archive came to it"
_LOOK_S = 1


@dataclass(frozen=True, slots=True)
class ArchiveSettings:
    """What an archive job is told."""

    server: Server
    lake: str
    topics: tuple[str, ...] = ()  # none: all that are marked as archived
    offsets_max: int = 1_000_000  # of one batch
    tasks_min: int | None = None
    every: str = ""  # "10 seconds"; empty: up to now, then end
    checkpoint: str = ""  # a directory for the run; a temporary one if none is given
    upkeep: UpkeepPolicy = field(default_factory=UpkeepPolicy)  # what is done for the lake between batches


@dataclass
class ArchiveProgress:
    """What a run has done so far."""

    batches: int = 0
    messages: int = 0
    events_offsets: int = 0
    missed: int = 0  # offsets that had left the broker
    bytes: int = 0
    compacted: int = 0  # files that became part of larger ones
    versions: dict[str, int] = field(default_factory=dict)


Told = Callable[[ArchiveProgress], None]
Step = Callable[[str], None]


def _nobody(_: Any) -> None:
    """Nobody is told."""


class Archive:
    """One run of the archive job."""

    def __init__(
        self,
        spark: SparkSession,
        settings: ArchiveSettings,
        told: Told = _nobody,
        at_step: Step = _nobody,
        stops: threading.Event | None = None,
    ) -> None:
        self._spark = spark
        self._settings = settings
        self._told = told
        self._at_step = at_step  # for tests: called where a crash must do no harm
        self._stops = stops or threading.Event()  # set: end after the batch under way
        self.progress = ArchiveProgress()

    def run(self) -> ArchiveProgress:
        """Archive up to now, or until stopped."""
        settings = self._settings
        with ExitStack() as stack:
            settings = self._settings = replace(settings, server=as_archive(settings.server, ARCHIVE_APP))
            cluster = cluster_of(settings.server)
            lake = Lake.open(settings.lake, cluster["cluster"], create=True)
            stack.enter_context(lake.lock())
            lake.heal()
            counts = {one["name"]: one["partitions"] for one in cluster["topics"]}
            topics = archived_topics(settings.server, settings.topics)
            missing = sorted(set(settings.topics) - {topic.name for topic in topics})
            if missing:
                raise PipelineError(f"there is no topic {missing[0]!r}", "See    lakemq topic ls")
            start = archived_positions(lake, topics, counts)
            self._acknowledge(lake)
            checkpoint = settings.checkpoint
            if not checkpoint:
                checkpoint = tempfile.mkdtemp(prefix="lakemq-archive-")
                stack.callback(shutil.rmtree, checkpoint, ignore_errors=True)
            self._upkeep = Upkeep(lake, settings.upkeep)
            self._stream(lake, start, checkpoint)
            self._count_compacted(self._upkeep.after_run())
        return self.progress

    def _stream(self, lake: Lake, start: dict[str, Any], checkpoint: str) -> None:
        settings = self._settings
        options = {
            "servers": settings.server.url,
            "app": settings.server.app,
            "token": settings.server.token,
            "view": "files",
            "lake": settings.lake,
            "startingOffsets": json.dumps(start),
            "subscribe": ",".join(settings.topics),
            "maxOffsetsPerTrigger": str(settings.offsets_max),
            "minPartitions": str(settings.tasks_min or self._spark.sparkContext.defaultParallelism),
        }
        source = self._spark.readStream.format("lakemq").options(**options).load()
        writer = source.writeStream.foreachBatch(lambda frame, _: self._take(lake, frame))
        writer = writer.option("checkpointLocation", checkpoint).queryName("lakemq archive")
        trigger = {"processingTime": settings.every} if settings.every else {"availableNow": True}
        query = writer.trigger(**trigger).start()
        try:
            while not query.awaitTermination(_LOOK_S):
                if self._stops.is_set() and not query.status["isTriggerActive"]:
                    break
        except StreamingQueryException as error:
            raise told(error) from None
        finally:
            query.stop()

    def _take(self, lake: Lake, frame: DataFrame) -> None:
        """Commit what the tasks have written."""
        self._at_step("written")
        rows = frame.collect()
        if not rows:
            return
        ranges, gaps, files = [], [], []
        for row in rows:
            some = [DataFile.from_json(text) for text in json.loads(row["files"])]
            table = "events" if row["topic"] == "__events" else "messages"
            ranges.append(Range(row["topic"], row["topicId"], row["partition"], row["first"], row["end"], table))
            if row["gapEnd"] > row["first"]:
                gaps.append(Gap(row["topic"], row["topicId"], row["partition"], row["first"], row["gapEnd"], GONE))
            files += some
        committed = lake.commit(files, gaps, ranges)
        self._at_step("committed")
        self._count(files, gaps, ranges, committed.versions)
        self._acknowledge(lake, ranges)
        self._at_step("told")
        self._count_compacted(self._upkeep.after_batch())
        self._at_step("kept up")

    def _count_compacted(self, done: list[Compacted]) -> None:
        self.progress.compacted += sum(one.files for one in done if one.version is not None)

    def _count(self, files: list[DataFile], gaps: list[Gap], ranges: list[Range], versions: dict[str, int]) -> None:
        progress = self.progress
        progress.batches += 1
        progress.messages += sum(file.rows for file in files if file.table == "messages")
        progress.events_offsets += sum(one.end - one.first for one in ranges if one.table == "events")
        progress.missed += sum(gap.end - gap.first for gap in gaps)
        progress.bytes += sum(file.size for file in files)
        progress.versions.update(versions)
        self._told(progress)

    def _acknowledge(self, lake: Lake, ranges: list[Range] | None = None) -> None:
        """Tell the broker how far the lake is, from the lake: it may drop what lies before."""
        settings = self._settings
        archived = {topic.id: topic for topic in archived_topics(settings.server)}
        positions: dict[str, dict[int, int]] = {}
        snapshot = lake.snapshot()
        for topic in archived.values():
            tables = ("events",) if topic.table == "events" else ("messages", "meta")
            for key in set(snapshot.positions(tables[0])):
                if key.topic_id != topic.id:
                    continue
                at = min(snapshot.positions(name).get(PartitionKey(*key), 0) for name in tables)
                positions.setdefault(topic.name, {})[key.partition] = at
        touched = None if ranges is None else {one.topic for one in ranges}
        for name, targets in positions.items():
            if touched is None or name in touched:
                door(settings.server).commit(name, targets, "")
