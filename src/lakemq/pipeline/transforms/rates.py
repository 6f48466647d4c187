"""How much comes in."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from lakemq.pipeline.transforms.spans import slot


def rates(meta: DataFrame, every: str = "1 minute") -> DataFrame:
    """Messages and bytes of each topic and producing app: `at`, `topic`, `app`, `messages`, `bytes`.

    A span in which nothing came has no row.
    """
    return (
        meta.select(slot(every), "topic", "app", "valueBytes")
        .groupBy("at", "topic", "app")
        .agg(
            sf.count(sf.lit(1)).alias("messages"),
            sf.coalesce(sf.sum("valueBytes"), sf.lit(0)).cast("bigint").alias("bytes"),
        )
    )
