"""What did not work at the first attempt, and what did not work at all."""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as sf

from lakemq.pipeline.transforms.runs import by_producer, end, happened, once, weight

REASONS_MAX = 20
"""A reason may have an id in it, so that no two are the same."""


def retry_report(events: DataFrame) -> DataFrame:
    """Of each topic and group with failures or retries: `topic`, `group`, `messages`, `retries`, `failures`,
    `attemptsMax`, `reasons`.

    `messages` were to be tried again, each counted once; `retries` are the deliveries after the first; `reasons` is an
    array of (reason, failures), the most frequent first, 20 at the most.
    """
    told = events.where(~by_producer()).withColumn("group", sf.col("app"))
    is_retry = happened("delivered") & (sf.col("attempt") > 1)
    retried = (
        once(told.where(is_retry | happened("retry")), "group")
        .groupBy("topic", "group")
        .agg(sf.sum("count").alias("again"))
    )
    counts = (
        told.groupBy("topic", "group")
        .agg(
            sf.sum(sf.when(is_retry, weight()).otherwise(0)).alias("retries"),
            sf.sum(sf.when(happened("failed"), weight()).otherwise(0)).alias("failures"),
            sf.max(sf.when(sf.col("kind").isin("delivered", "acked", "failed"), sf.col("attempt"))).alias(
                "attemptsMax"
            ),
        )
        .join(retried, ["topic", "group"], "left")
        .join(_reasons(told), ["topic", "group"], "left")
    )
    report = counts.select(
        *("topic", "group"),
        sf.coalesce("again", sf.lit(0)).cast("bigint").alias("messages"),
        *("retries", "failures", "attemptsMax"),
        sf.coalesce("reasons", sf.array().cast("array<struct<reason:string,failures:bigint>>")).alias("reasons"),
    )
    return report.where((sf.col("messages") > 0) | (sf.col("failures") > 0))


def _reasons(told: DataFrame) -> DataFrame:
    by_frequency = Window.partitionBy("topic", "group").orderBy(sf.desc("failures"), "reason")
    return (
        told.where(happened("failed"))
        .groupBy("topic", "group", "reason")
        .agg(sf.sum(weight()).alias("failures"))
        .withColumn("rank", sf.row_number().over(by_frequency))
        .where(sf.col("rank") <= REASONS_MAX)
        .groupBy("topic", "group")
        .agg(sf.array_sort(sf.collect_list(sf.struct("rank", "reason", "failures"))).alias("ranked"))
        .select(
            *("topic", "group"),
            sf.transform("ranked", lambda one: sf.struct(one["reason"], one["failures"])).alias("reasons"),
        )
    )


def dead_letter_report(events: DataFrame) -> DataFrame:
    """Why messages became dead letters: `topic`, `group`, `reason`, `messages`, `attemptsMax`, `firstAt`, `lastAt`,
    `lastPartition`, `lastOffset`.

    The last two say where the latest of them is, to look at it. One that was resent and died again counts again.
    """
    latest = sf.max(sf.struct("timestamp", "partition", (end() - 1).alias("offset")))
    return (
        events.where(happened("dead"))
        .groupBy("topic", sf.col("app").alias("group"), "reason")
        .agg(
            sf.sum(weight()).alias("messages"),
            sf.max("attempt").alias("attemptsMax"),
            sf.min("timestamp").alias("firstAt"),
            latest.alias("last"),
        )
        .select(
            *("topic", "group", "reason", "messages", "attemptsMax", "firstAt"),
            sf.col("last.timestamp").alias("lastAt"),
            sf.col("last.partition").alias("lastPartition"),
            sf.col("last.offset").alias("lastOffset"),
        )
    )
