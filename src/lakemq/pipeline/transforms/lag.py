"""How far groups were behind, over time."""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as sf

from lakemq.pipeline.transforms.runs import PARTITION, by_producer, end, happened, once, weight
from lakemq.pipeline.transforms.spans import slot

SETTLED = ("acked", "dead", "expired")


def lag_history(events: DataFrame, every: str = "1 minute", now: DataFrame | None = None) -> DataFrame:
    """What each group still had to do at the end of each span: `at`, `topic`, `topicId`, `group`, `produced`,
    `settled`, `lag`; the first two are running totals, the third is what is between them.

    Only messages whose producing is among these events count, so that the lag is too small, never negative, where the
    events do not begin with the topic. Each message is settled once for each group, at the first time. A span in which
    nothing was produced or settled has no row: the lag stayed as it was.

    `now` is the view `lake.lag`, which knows the lag of this moment. With it the history ends there, and is counted
    back from it: so it is right as far back as the events go, also where they do not begin with the topic, and groups
    of which there are no events have a row.
    """
    produced = events.where(happened("produced"))
    groups = events.where(~by_producer()).select("topic", "topicId", sf.col("app").alias("group")).distinct()
    owed = produced.join(sf.broadcast(groups), ["topic", "topicId"]).select(
        slot(every), "topic", "topicId", "group", weight().alias("produced"), sf.lit(0).cast("bigint").alias("settled")
    )
    done = once(_settled_of(events, produced), "group").select(
        slot(every), "topic", "topicId", "group", sf.lit(0).cast("bigint").alias("produced"), weight().alias("settled")
    )
    changes = (
        owed.unionByName(done)
        .groupBy("at", "topic", "topicId", "group")
        .agg(sf.sum("produced").alias("produced"), sf.sum("settled").alias("settled"))
    )
    if now is not None:
        return _counted_back(changes, now)
    return _totals(changes)


def _totals(changes: DataFrame) -> DataFrame:
    until = Window.partitionBy("topic", "topicId", "group").orderBy("at").rowsBetween(Window.unboundedPreceding, 0)
    return changes.select(
        *("at", "topic", "topicId", "group"),
        sf.sum("produced").over(until).alias("produced"),
        sf.sum("settled").over(until).alias("settled"),
    ).withColumn("lag", sf.col("produced") - sf.col("settled"))


def _counted_back(changes: DataFrame, now: DataFrame) -> DataFrame:
    """The totals, moved so that they end with the lag of now; topics that are gone stay as they were counted."""
    group = ["topic", "topicId", "group"]
    lags = now.groupBy(*group).agg(sf.sum("lag").alias("lagNow"))
    counted = changes.groupBy(*group).agg(sf.sum("produced").alias("ofAll"), sf.sum("settled").alias("doneOfAll"))
    known = sf.broadcast(lags.join(counted, group, "left").na.fill(0, ["ofAll", "doneOfAll"]))
    missing = sf.coalesce(sf.col("lagNow") - (sf.col("ofAll") - sf.col("doneOfAll")), sf.lit(0))
    before = (
        _totals(changes).join(known, group, "left").withColumn("lag", sf.greatest(sf.col("lag") + missing, sf.lit(0)))
    )
    end = known.select(
        sf.current_timestamp().alias("at"),
        *group,
        sf.col("ofAll").alias("produced"),
        sf.col("doneOfAll").alias("settled"),
        sf.col("lagNow").alias("lag"),
    )
    return before.select(*end.columns).unionByName(end)


def _settled_of(events: DataFrame, produced: DataFrame) -> DataFrame:
    """Runs of settled messages, without those from before the first that was produced."""
    known = produced.groupBy(*PARTITION).agg(sf.min("offset").alias("since"))
    offset = sf.greatest("offset", "since")
    return (
        events.where(sf.col("kind").isin(*SETTLED))
        .join(sf.broadcast(known), list(PARTITION))
        .where(end() > sf.col("since"))
        .select(
            sf.col("app").alias("group"),
            *PARTITION,
            offset.alias("offset"),
            (end() - offset).alias("count"),
            "timestamp",
        )
    )
