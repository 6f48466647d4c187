"""Rows of `events` as runs: one row stands for `count` messages from `offset` on, to which the same happened.

What is asked of runs is answered with `count` as a weight where it can be; a run is taken apart only where two have to
be told from each other, and then no further than needed.
"""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sf

PARTITION = ("topic", "topicId", "partition")
"""A partition of one incarnation of a topic; with the offset, a place that only one message ever has."""

SLICE_BITS = 4
"""Runs that may overlap are met in slices of 16 offsets: short enough that few pairs are tried in vain where each run
is one message, long enough that a run of hundreds is a few dozen rows."""


def weight() -> Column:
    """How many messages a row stands for."""
    return sf.coalesce(sf.col("count"), sf.lit(1)).cast("bigint")


def end() -> Column:
    """The first offset after a run."""
    return sf.col("offset") + weight()


def happened(kind: str) -> Column:
    """Whether this is what a row tells of."""
    return sf.col("kind") == kind


def by_producer() -> Column:
    """Whether the row's app is who sent, and no group: its messages were stored, or refused."""
    return sf.col("kind").isin("produced", "refused")


def slices(runs: DataFrame) -> DataFrame:
    """Runs cut at multiples of 16: with `slice`, and `first` and `end` (not included) inside of it."""
    first_slice = sf.shiftright("offset", SLICE_BITS)
    last_slice = sf.shiftright(end() - 1, SLICE_BITS)
    return (
        runs.withColumn("slice", sf.explode(sf.sequence(first_slice, last_slice)))
        .withColumn("first", sf.greatest("offset", sf.shiftleft("slice", SLICE_BITS)))
        .withColumn("end", sf.least(end(), sf.shiftleft(sf.col("slice") + 1, SLICE_BITS)))
    )


def once(runs: DataFrame, *by: str) -> DataFrame:
    """Each message at the first of its times only: `by`, its partition, `offset`, `count`, `timestamp`.

    A message comes again when it was resent, or when a position was moved back. Runs that overlap no other of the same
    `by` stay whole; the others are taken apart.
    """
    ordered = Window.partitionBy(*by, *PARTITION).orderBy("offset", "end")
    end_before = sf.max("end").over(ordered.rowsBetween(Window.unboundedPreceding, -1))
    offset_after = sf.lead("offset").over(ordered)
    is_alone = (sf.coalesce(end_before, sf.col("offset")) <= sf.col("offset")) & (
        sf.coalesce(offset_after, sf.col("end")) >= sf.col("end")
    )
    offsets = sf.when(sf.col("isAlone"), sf.array("offset")).otherwise(sf.sequence("offset", sf.col("end") - 1))
    return (
        runs.withColumn("end", end())
        .withColumn("isAlone", is_alone)
        .select(
            *by,
            *PARTITION,
            sf.explode(offsets).alias("offset"),
            sf.when(sf.col("isAlone"), weight()).otherwise(sf.lit(1)).alias("count"),
            "timestamp",
        )
        .groupBy(*by, *PARTITION, "offset")
        .agg(sf.max("count").alias("count"), sf.min("timestamp").alias("timestamp"))
    )
