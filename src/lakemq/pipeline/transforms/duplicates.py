"""Messages that look as if they had been sent twice."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from lakemq.pipeline.transforms.spans import span


def duplicates(messages: DataFrame, within: str = "10 minutes") -> DataFrame:
    """Messages of one topic with the same key and the same body, each stored `within` a span of the one before.

    `topic`, `key`, `crc`, `copies`, then of the first and of the last of them: `firstPartition`, `firstOffset`,
    `firstAt`, `lastPartition`, `lastOffset`, `lastAt`. Messages without a key are compared with each other. Bodies are
    the same when their CRCs are, so that rows of `meta` will do.
    """
    place = sf.struct("timestamp", "partition", "offset")
    found = (
        messages.where(sf.col("crc").isNotNull())
        .groupBy("topic", "topicId", "key", "crc", sf.session_window("timestamp", span(within)))
        .agg(sf.count(sf.lit(1)).alias("copies"), sf.min(place).alias("first"), sf.max(place).alias("last"))
        .where(sf.col("copies") > 1)
    )
    return found.select(
        *("topic", "key", "crc", "copies"),
        sf.col("first.partition").alias("firstPartition"),
        sf.col("first.offset").alias("firstOffset"),
        sf.col("first.timestamp").alias("firstAt"),
        sf.col("last.partition").alias("lastPartition"),
        sf.col("last.offset").alias("lastOffset"),
        sf.col("last.timestamp").alias("lastAt"),
    )
