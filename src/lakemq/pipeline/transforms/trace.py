"""All that happened to a message: sent, stored, and what each group did with it."""

from datetime import datetime, timedelta

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from lakemq.pipeline.tracing import ORDER
from lakemq.pipeline.transforms.runs import PARTITION
from lakemq.pipeline.transforms.runs import end as run_end
from lakemq.pipeline.transforms.spans import moment

COLUMNS = (
    *("messageId", "topic", "partition", "offset", "key", "tags", "at", "kind", "group", "client", "attempt"),
    *("elapsedMs", "sinceSentMs", "reason"),
)


def timeline(
    meta: DataFrame,
    events: DataFrame,
    message_id: str | None = None,
    key: str | None = None,
    start: datetime | str | None = None,
    end: datetime | str | None = None,
) -> DataFrame:
    """One row for each thing that happened to the messages that match, in order.

    `start` and `end` (not included) are about when a message was stored; what happened to it later is shown as well.
    `elapsedMs` is of that hop: from sent to stored, from stored to delivered, from delivered to acked or failed.
    A message of which there are no events has its rows `sent` and `stored` all the same. A send that was refused is one
    row, without an offset: it is found by its key, its id or its time.
    """
    wanted = _matching(meta, message_id, key, start, end).select(
        "messageId", *PARTITION, "offset", "key", "tags", sf.col("timestamp").alias("storedAt"), "sendTime"
    )
    each = (
        wanted.join(_of(wanted, _since(events, start)), [*PARTITION, "offset"], "left")
        .groupBy("messageId", *PARTITION, "offset", "key", "tags", "storedAt", "sendTime")
        .agg(sf.collect_list("event").alias("events"))
    )
    place = ("messageId", *PARTITION, "offset", "key", "tags", "storedAt", "sendTime")
    rows = each.select(*place, sf.inline(_all_that_happened())).where(sf.col("at").isNotNull())
    rows = rows.unionByName(_refused(events, message_id, key, start, end))
    ordered = rows.orderBy(
        *("storedAt", *PARTITION, "offset", "at"),
        sf.coalesce("attempt", sf.lit(0)),
        sf.coalesce(sf.array_position(sf.lit(list(ORDER)), sf.col("kind")), sf.lit(0)),
        "group",
    )
    since_sent = sf.unix_millis("at") - sf.unix_millis("sendTime")
    return ordered.withColumn("sinceSentMs", since_sent).select(*COLUMNS)


def _matching(
    meta: DataFrame, message_id: str | None, key: str | None, start: datetime | str | None, end: datetime | str | None
) -> DataFrame:
    found = meta
    if message_id is not None:
        found = found.where(sf.col("messageId") == message_id)
    if key is not None:
        found = found.where(sf.col("key") == key)
    if start is not None:
        found = _from_day(found, moment(start)).where(sf.col("timestamp") >= sf.lit(moment(start)))
    if end is not None:
        found = found.where(sf.col("timestamp") < sf.lit(moment(end)))
        if "dt" in found.columns:
            found = found.where(sf.col("dt") <= sf.lit(moment(end).date()))
    return found


def _refused(
    events: DataFrame, message_id: str | None, key: str | None, start: datetime | str | None, end: datetime | str | None
) -> DataFrame:
    """Sends that were not taken, as rows of a timeline: what is known of them is in their reason (`refusals.py`)."""

    def named(name: str) -> Column:
        found = sf.regexp_extract("reason", rf"\[{name}=([^\]]*)\]", 1)
        return sf.when(found != "", found)

    found = events.where(sf.col("kind") == "refused")
    found = found.withColumn("key", named("key")).withColumn("messageId", named("id"))
    sent_at = sf.timestamp_millis(sf.unix_millis("timestamp") - sf.coalesce("elapsedMs", sf.lit(0)))
    tags = sf.split(sf.coalesce(named("tags"), sf.lit("")), r"[\s|]+")
    return _matching(found, message_id, key, start, end).select(
        "messageId",
        *PARTITION,
        sf.lit(None).cast("bigint").alias("offset"),
        "key",
        sf.filter(tags, lambda one: one != "").alias("tags"),
        sf.col("timestamp").alias("storedAt"),
        sent_at.alias("sendTime"),
        sf.inline(sf.array(_row("timestamp", "kind", "app", "client", sf.lit(None), "elapsedMs", "reason"))),
    )


def _since(events: DataFrame, start: datetime | str | None) -> DataFrame:
    # Nothing happens to a message before it is stored; a day is left for clocks of brokers that differ.
    return events if start is None else _from_day(events, moment(start) - timedelta(days=1))


def _from_day(rows: DataFrame, at: datetime) -> DataFrame:
    return rows.where(sf.col("dt") >= sf.lit(at.date())) if "dt" in rows.columns else rows


def _of(wanted: DataFrame, events: DataFrame) -> DataFrame:
    """What happened at places between the least and the greatest wanted one of each partition, by place."""
    bounds = wanted.groupBy(*PARTITION).agg(sf.min("offset").alias("low"), sf.max("offset").alias("high"))
    offsets = sf.sequence(sf.greatest("offset", "low"), sf.least(run_end() - 1, sf.col("high")))
    return (
        events.join(sf.broadcast(bounds), list(PARTITION))
        .where((sf.col("offset") <= sf.col("high")) & (run_end() > sf.col("low")))
        .select(
            *PARTITION,
            sf.explode(offsets).alias("offset"),
            _row("timestamp", "kind", "app", "client", "attempt", "elapsedMs", "reason").alias("event"),
        )
    )


def _all_that_happened() -> Column:
    """What the message itself tells, then the events; that of producing gives only who did it."""
    sender = sf.get(sf.filter("events", lambda one: one["kind"] == "produced"), sf.lit(0))["client"]
    stored_ms = sf.unix_millis("storedAt") - sf.unix_millis("sendTime")
    none = sf.lit(None)
    told = sf.array(
        _row("sendTime", sf.lit("sent"), none, sender, none, none, none),
        _row("storedAt", sf.lit("stored"), none, sender, none, stored_ms, none),
    )
    return sf.concat(told, sf.filter("events", lambda one: one["kind"] != "produced"))


def _row(
    at: str, kind: Column | str, group: Column | str, client: Column | str, attempt: Column | str,
    elapsed: Column | str, reason: Column | str,
) -> Column:  # fmt: skip
    def typed(value: Column | str, kind: str) -> Column:
        return (sf.col(value) if isinstance(value, str) else value).cast(kind)

    return sf.struct(
        sf.col(at).alias("at"),
        typed(kind, "string").alias("kind"),
        typed(group, "string").alias("group"),
        typed(client, "string").alias("client"),
        typed(attempt, "int").alias("attempt"),
        typed(elapsed, "bigint").alias("elapsedMs"),
        typed(reason, "string").alias("reason"),
    )
