"""What each app costs the broker."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from lakemq.pipeline.transforms.runs import happened, weight


def app_cost(meta: DataFrame, events: DataFrame) -> DataFrame:
    """What each app sent, and what was delivered to it: `app`, `messages`, `bytes`, `deliveries`, `retries`.

    An app with groups has a row for each, under its full name; `retries` are those deliveries that were not the first.
    """
    sent = meta.groupBy("app").agg(sf.count(sf.lit(1)).alias("messages"), sf.sum("valueBytes").alias("bytes"))
    received = (
        events.where(happened("delivered"))
        .groupBy("app")
        .agg(
            sf.sum(weight()).alias("deliveries"),
            sf.sum(sf.when(sf.col("attempt") > 1, weight()).otherwise(0)).alias("retries"),
        )
    )
    counted = [
        sf.coalesce(name, sf.lit(0)).cast("bigint").alias(name)
        for name in ("messages", "bytes", "deliveries", "retries")
    ]
    return sent.join(received, "app", "full").select("app", *counted)
