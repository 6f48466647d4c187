"""One SQL over everything: views in which the archive and what is only at the broker are one, with delivery state.

The seam: the table's version and the positions in it belong together, and the live part of each partition begins at
its position. So no message is there twice, and none is missing, however the archive moves on meanwhile. A view shows
the lake as it was when it was made; `register_views` again shows it as it is.
"""

import json
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lakemq.pipeline import schema
from lakemq.pipeline.archive_plan import ArchivedTopic, cluster_of, held_lake, seen_topics
from lakemq.pipeline.door import door
from lakemq.pipeline.events import EVENTS_TOPIC
from lakemq.pipeline.lake import EVENTS, MESSAGES, META, Lake, PartitionKey
from lakemq.pipeline.lake.store import Snapshot
from lakemq.pipeline.options import Server
from lakemq.pipeline.positions import TOPIC_ID
from lakemq.pipeline.reads import ddl
from lakemq.pipeline.standing import topic_id
from lakemq.pipeline.states import STATES_DDL, states_of
from lakemq.pipeline.transforms import deliveries

LAG_DDL = "topic string, partition int, group string, offset bigint, end bigint, lag bigint, topicId int"
VIEWS = ("messages", "meta", "events", "deliveries", "lag")  # beside one for each topic
_META = [field.name for field in schema.META if field.name not in ("dt", "valueBytes", "crc", "topicId")]
_EVENT_NAMES = [field.name for field in schema.EVENTS if field.name != "dt"]


@dataclass(frozen=True, slots=True)
class Views:
    """The frames behind the views, for programs."""

    messages: DataFrame
    meta: DataFrame
    events: DataFrame
    deliveries: DataFrame
    lag: DataFrame
    topics: dict[str, DataFrame]
    left_out: list[str] = field(default_factory=list)  # topics that the app may not read


class History:
    """Topics as one: archived rows at one version of the lake, then what the broker has from there on."""

    def __init__(self, spark: SparkSession, server: Server, lake: str) -> None:
        self._spark = spark
        self._server = server
        cluster = cluster_of(server)
        self._cluster: str = cluster["cluster"]
        seen = seen_topics(cluster)
        self._topics = {one.name: ArchivedTopic(one.name, one.number) for one in seen if one.is_readable}
        self._counts = {one.name: one.partitions for one in seen}
        self.left_out = sorted(one.name for one in seen if not one.is_readable)  # the app may not read them
        self._lake: Lake | None
        self._snapshot: Snapshot | None
        self._lake, self._snapshot = held_lake(lake, cluster["cluster"])

    @property
    def topics(self) -> list[str]:
        """Those that users see."""
        return sorted(name for name in self._topics if not name.startswith("__"))

    def messages(self, topic: str) -> DataFrame:
        """All messages of a topic, with their bodies."""
        live = self._live(topic, MESSAGES, schema.SOURCE.names).withColumn("_source", F.lit("live"))
        archived = self._archived(MESSAGES, topic, schema.SOURCE.names)
        return live if archived is None else archived.unionByName(live)

    def meta(self, topic: str) -> DataFrame:
        """The same without bodies and headers."""
        names = [*_META, "valueBytes", "crc"]
        live = self._live(topic, META, [*_META, "value"]).select(
            *_META,
            F.coalesce(F.length("value"), F.lit(0)).alias("valueBytes"),  # a tombstone has no value
            F.coalesce(F.crc32("value"), F.lit(0)).alias("crc"),
            F.lit("live").alias("_source"),
        )
        live = live.withColumn("topicId", F.lit(self._topics[topic].id))
        archived = self._archived(META, topic, [*names, "topicId"])
        return live if archived is None else archived.unionByName(live)

    def events(self) -> DataFrame:
        """What happened to messages of archived topics."""
        empty = self._spark.createDataFrame([], ddl(schema.EVENTS)).drop("dt")
        frames = [empty]
        if self._lake is not None and self._snapshot is not None:
            files = self._lake.files(EVENTS, version=self._snapshot.versions[EVENTS])
            if files:
                frames.append(self._parquet(EVENTS, files).select(*_EVENT_NAMES))
        if EVENTS_TOPIC in self._topics:
            start = json.dumps({EVENTS_TOPIC: self._positions(EVENTS_TOPIC, EVENTS)})
            source = self._source().option("view", "events").option("startingOffsets", start)
            frames.append(source.option("failOnDataLoss", "false").load())
        found = frames[0]
        for frame in frames[1:]:
            found = found.unionByName(frame)
        return found

    def states(self) -> DataFrame:
        """The delivery state now, as ranges."""
        rows = [
            row
            for topic in self.topics
            for row in states_of(topic, self._topics[topic].id, door(self._server).inspect("deliveries", topic))
        ]
        return self._spark.createDataFrame(rows, STATES_DDL)

    def lag(self) -> DataFrame:
        """How far each group is behind."""
        rows = []
        for topic in self.topics:
            for app in door(self._server).inspect("deliveries", topic)["apps"]:
                for one in app["partitions"]:
                    offset, end = max(one["ack_index"], one["first_index"]), one["visible_index"]
                    lag = max(end - offset, 0)
                    rows.append((topic, one["partition"], app["app"], offset, end, lag, self._topics[topic].id))
        return self._spark.createDataFrame(rows, LAG_DDL)

    def _source(self) -> Any:
        server = self._server
        reader = self._spark.read.format("lakemq").option("servers", server.url).option("app", server.app)
        return reader.option("token", server.token) if server.token else reader

    def _live(self, topic: str, table: str, names: list[str]) -> DataFrame:
        start = json.dumps({topic: self._positions(topic, table)})
        source = self._source().options(subscribe=topic, columns=",".join(names), startingOffsets=start)
        # A position that retention has passed is below what the broker has: the rest was never archived.
        frame: DataFrame = source.option("failOnDataLoss", "false").load()
        return frame

    def _positions(self, topic: str, table: str) -> dict[str, Any]:
        """Where the live part begins, and in which topic: one that is made anew later is not this view's."""
        held = {} if self._snapshot is None else self._snapshot.positions(table)
        number = self._topics[topic].id
        offsets = {str(p): held.get(PartitionKey(number, p), 0) for p in range(self._counts[topic])}
        return {**offsets, TOPIC_ID: topic_id(self._cluster, number)}

    def _archived(self, table: str, topic: str, names: list[str]) -> DataFrame | None:
        if self._lake is None or self._snapshot is None:
            return None
        files = self._lake.files(table, topic=topic, version=self._snapshot.versions[table])
        if not files:
            return None
        frame = self._parquet(table, files)
        return frame.select(*(F.col(name) for name in names), F.lit("archive").alias("_source"))

    def _parquet(self, table: str, files: list[str]) -> DataFrame:
        assert self._lake is not None
        columns = {MESSAGES: schema.MESSAGES, META: schema.META, EVENTS: schema.EVENTS}[table]
        reader = self._spark.read.schema(ddl(columns)).option("basePath", self._lake.base_uri(table))
        return reader.parquet(*files)


def open_views(spark: SparkSession, server: Server, lake: str = "") -> Views:
    """The frames behind the views."""
    history = History(spark, server, lake)
    topics = {topic: history.messages(topic) for topic in history.topics}
    metas = [history.meta(topic) for topic in history.topics]
    empty = spark.createDataFrame([], ddl(schema.SOURCE) + ", _source string")
    meta = _union(metas, spark.createDataFrame([], _meta_ddl()))
    return Views(
        messages=_union(list(topics.values()), empty),
        meta=meta,
        events=history.events(),
        deliveries=deliveries(meta, history.states()),
        lag=history.lag(),
        topics=topics,
        left_out=history.left_out,
    )


def register_views(spark: SparkSession, server: Server, lake: str = "") -> list[str]:
    """Make the views and tell their names: one for each topic, messages, meta, events, deliveries and lag."""
    views = open_views(spark, server, lake)
    frames = {**views.topics}
    frames.update(
        messages=views.messages, meta=views.meta, events=views.events, deliveries=views.deliveries, lag=views.lag
    )
    for name, frame in frames.items():
        frame.createOrReplaceGlobalTempView(f"`{name}`")  # names of topics may have dots and dashes
    database = spark.conf.get("spark.sql.globalTempDatabase", "global_temp")
    return [f"{database}.{name}" if name.isidentifier() else f"{database}.`{name}`" for name in frames]


def _union(frames: list[DataFrame], empty: DataFrame) -> DataFrame:
    found = empty
    for frame in frames:
        found = found.unionByName(frame)
    return found


def _meta_ddl() -> str:
    import pyarrow as pa

    columns = [schema.META.field(name) for name in (*_META, "valueBytes", "crc", "topicId")]
    return ddl(pa.schema(columns)) + ", _source string"
