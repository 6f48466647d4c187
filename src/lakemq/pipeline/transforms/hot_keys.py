"""Which keys most messages have."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf


def hot_keys(meta: DataFrame, count: int = 20) -> DataFrame:
    """The most frequent keys first: `topic`, `key`, `messages`, `bytes`, `share`.

    `share` is of all messages of the topic, those without a key among them, from 0 to 1.
    """
    totals = meta.groupBy("topic").agg(sf.count(sf.lit(1)).alias("total"))
    return (
        meta.where(sf.col("key").isNotNull())
        .groupBy("topic", "key")
        .agg(
            sf.count(sf.lit(1)).alias("messages"),
            sf.coalesce(sf.sum("valueBytes"), sf.lit(0)).cast("bigint").alias("bytes"),
        )
        .orderBy(sf.desc("messages"), "topic", "key")
        .limit(count)
        .join(sf.broadcast(totals), "topic")
        .select("topic", "key", "messages", "bytes", (sf.col("messages") / sf.col("total")).alias("share"))
        .orderBy(sf.desc("messages"), "topic", "key")
    )
