"""How far each group is with each message."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf


def deliveries(meta: DataFrame, states: DataFrame) -> DataFrame:
    """The state of each message for each group that receives its topic, as the broker told it.

    `states` are ranges from `first` to `end`, which is not included: topic, partition, group, first, end, state,
    attempts, reason, due. With a column `topicId` they are not taken for those of an earlier topic of the same name.
    They are sent to all executors; each message is compared with the ranges of its partition only.
    """
    shared: list[str] = [name for name in ("topic", "topicId", "partition") if name in states.columns]
    ranges = states.select(*shared, "group", "first", "end", "state", "attempts", "reason", "due")
    return (
        meta.select("messageId", *shared, "offset", "key", "timestamp")
        .join(sf.broadcast(ranges), shared)
        .where((sf.col("offset") >= sf.col("first")) & (sf.col("offset") < sf.col("end")))
        .select(
            *("messageId", "topic", "partition", "offset", "key", "timestamp"),
            *("group", "state", "attempts", "reason", "due"),
        )
    )
