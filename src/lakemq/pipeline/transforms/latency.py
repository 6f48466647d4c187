"""How long messages take: from end to end, and on each hop."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from lakemq.pipeline.transforms.percentiles import with_percentiles
from lakemq.pipeline.transforms.runs import PARTITION, happened, slices, weight
from lakemq.pipeline.transforms.spans import slot


def end_to_end_latency(events: DataFrame, every: str = "1 minute") -> DataFrame:
    """From sent to acked, by when it was acked: `at`, `topic`, `group`, `messages`, `p50Ms`, `p95Ms`, `p99Ms`, `maxMs`.

    Failed attempts and the waiting between them are part of it. A message whose producing is not among these events
    is left out.
    """
    sent_ms = sf.unix_millis("timestamp") - sf.col("elapsedMs")
    produced = slices(events.where(happened("produced"))).select(
        *PARTITION, "slice", sf.col("first").alias("sentFirst"), sf.col("end").alias("sentEnd"), sent_ms.alias("sentMs")
    )
    acked = slices(events.where(happened("acked"))).select(
        *PARTITION, "slice", "first", "end", sf.col("app").alias("group"), "timestamp"
    )
    shared = sf.least("end", "sentEnd") - sf.greatest("first", "sentFirst")
    met = acked.join(produced, [*PARTITION, "slice"]).where(shared > 0)
    taken = met.select(
        slot(every),
        "topic",
        "group",
        (sf.unix_millis("timestamp") - sf.col("sentMs")).alias("ms"),
        shared.alias("weight"),
    )
    return with_percentiles(taken, ["at", "topic", "group"])


def hop_latency(events: DataFrame, every: str = "1 minute") -> DataFrame:
    """Of each hop: `at`, `topic`, `app`, `hop`, `messages`, `p50Ms`, `p95Ms`, `p99Ms`, `maxMs`.

    `produce` is from sent to stored, and `app` the producer; `deliver` from stored to the first delivery, `process`
    from each delivery to its ack or failure, and `app` the group. Later deliveries are not in `deliver`: they wait
    because they have to.
    """
    is_first = sf.coalesce("attempt", sf.lit(1)) == 1
    hop = (
        sf.when(happened("produced"), "produce")
        .when(happened("delivered") & is_first, "deliver")
        .when(happened("acked") | happened("failed"), "process")
    )
    taken = events.select(
        slot(every), "topic", "app", hop.alias("hop"), sf.col("elapsedMs").alias("ms"), weight().alias("weight")
    )
    return with_percentiles(taken.where(sf.col("hop").isNotNull()), ["at", "topic", "app", "hop"])
