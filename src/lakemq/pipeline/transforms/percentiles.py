"""Percentiles of durations that have weights."""

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

SHARES = {"p50Ms": 0.50, "p95Ms": 0.95, "p99Ms": 0.99}


def with_percentiles(rows: DataFrame, by: Sequence[str]) -> DataFrame:
    """Of `ms`, each `weight` times, for each `by`: `messages`, `p50Ms`, `p95Ms`, `p99Ms`, `maxMs`.

    `approx_percentile` takes no weights, so that each run would have to be taken apart. `percentile` takes them and
    keeps one counter for each value: with three digits of a value there are some thousand at the most, and what comes
    out is off by half a percent at the most. Below a second, and for `maxMs`, nothing is rounded.
    """
    found = (
        rows.where(sf.col("ms").isNotNull())
        # Clocks of two machines differ a little: what took less than no time took none.
        .withColumn("ms", sf.greatest(sf.col("ms").cast("bigint"), sf.lit(0).cast("bigint")))
        .withColumn("rounded", _three_digits(sf.col("ms")))
        .groupBy(*by)
        .agg(
            sf.sum("weight").alias("messages"),
            sf.percentile("rounded", list(SHARES.values()), sf.col("weight")).alias("found"),
            sf.max("ms").alias("maxMs"),
        )
    )
    each = [sf.col("found")[place].alias(name) for place, name in enumerate(SHARES)]
    return found.select(*by, "messages", *each, "maxMs")


def _three_digits(ms: Column) -> Column:
    step = sf.pow(sf.lit(10.0), sf.floor(sf.log10(sf.greatest(ms, sf.lit(1)).cast("double"))) - 2)
    return sf.when(ms < 1000, ms).otherwise((sf.round(ms / step) * step).cast("bigint"))
