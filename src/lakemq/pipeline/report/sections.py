"""The parts of a report: which frame each shows, how many of its rows, and how."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from lakemq.pipeline.report import tables
from lakemq.pipeline.report.charts import COLOURS, OTHERS, count_chart, span_chart, step_chart
from lakemq.pipeline.report.series import Line, Row, by_label, filled, held, largest, line, total
from lakemq.pipeline.report.tables import Column, safe, table

PANELS_MAX = 4
PERCENTILES = {"p50Ms": "half within", "p95Ms": "95 % within", "p99Ms": "99 % within"}


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the page. `frame` is the name under which its DataFrame is given."""

    frame: str
    title: str
    about: str
    empty: str
    ordered: Callable[[DataFrame], DataFrame]  # the rows that matter first
    show: Callable[[Sequence[Row]], str]
    is_over_time: bool = False


def _rate(rows: Sequence[Row]) -> str:
    topics = by_label(rows, lambda row: str(row["topic"]))
    shown = largest(topics, "messages")
    lines = [line(label, topics[label], "messages") for label in shown]
    rest = [row for label, some in topics.items() if label not in shown for row in some]
    if rest:
        lines.append(total(f"{len(topics) - len(shown):,} more topics", rest, "messages"))
    colours = _colours(len(shown), bool(rest))
    return _legend(lines, colours) + count_chart("rate", filled(lines, 0.0), colours)


def _latency(rows: Sequence[Row]) -> str:
    ways = by_label(rows, lambda row: f"{row['topic']} → {row['group']}")
    panels = []
    for number, label in enumerate(largest(ways, "messages", PANELS_MAX)):
        lines = [line(name, ways[label], column) for column, name in PERCENTILES.items()]
        colours = COLOURS[0], COLOURS[1], COLOURS[4]
        chart = span_chart(f"latency{number}", filled(lines, math.nan), colours, is_narrow=True)
        panels.append(f"<div><h3>{safe(label)}</h3>{_legend(lines, colours)}{chart}</div>")
    return f'<div class="panels">{"".join(panels)}</div>' + _left_out(
        len(ways) - len(panels), "topics and groups with fewer messages"
    )


def _hops(rows: Sequence[Row]) -> str:
    ways = by_label(rows, lambda row: f"{row['hop']}: {row['topic']}, {row['app']}")
    shown = largest(ways, "messages")
    lines = [line(label, ways[label], "p95Ms") for label in shown]
    colours = _colours(len(shown), False)
    chart = span_chart("hops", filled(lines, math.nan), colours)
    return _legend(lines, colours) + chart + _left_out(len(ways) - len(shown), "hops with fewer messages")


def _lag(rows: Sequence[Row]) -> str:
    incarnations = by_label(rows, lambda row: f"{row['topic']} → {row['group']}\0{row['topicId']}")
    shown = largest(incarnations, "lag")
    lines = held([line(label.partition("\0")[0], incarnations[label], "lag") for label in shown])
    colours = _colours(len(shown), False)
    left_out = _left_out(len(incarnations) - len(shown), "topics and groups with less lag")
    return _legend(lines, colours) + step_chart("lag", lines, colours) + left_out


def _colours(count: int, has_others: bool) -> list[str]:
    return [*COLOURS[:count], *([OTHERS] if has_others else [])]


def _legend(lines: Sequence[Line], colours: Sequence[str]) -> str:
    keys = (
        f'<li><i style="background:{colour}"></i>{safe(one.label)}</li>'
        for one, colour in zip(lines, colours, strict=True)
    )
    return f'<ul class="legend">{"".join(keys)}</ul>'


def _left_out(count: int, what: str) -> str:
    return f'<p class="note">Not shown: {count:,} {what}.</p>' if count > 0 else ""


def _columns(*columns: Column) -> Callable[[Sequence[Row]], str]:
    return lambda rows: table(columns, rows)


def _latest(frame: DataFrame) -> DataFrame:
    return frame.orderBy(sf.desc("at"))


def _topics_over_time(frame: DataFrame) -> DataFrame:
    by_topic = frame.groupBy("at", "topic").agg(sf.sum("messages").alias("messages"), sf.sum("bytes").alias("bytes"))
    return _latest(by_topic)


SECTIONS = (
    Section(
        frame="rates",
        title="Messages stored",
        about="In each span of time, by topic.",
        empty="No message was stored.",
        ordered=_topics_over_time,
        show=_rate,
        is_over_time=True,
    ),
    Section(
        frame="end_to_end_latency",
        title="From sent to acked",
        about="How long messages took until a group was done with them, retries and their waiting included.",
        empty="No message was acked.",
        ordered=_latest,
        show=_latency,
        is_over_time=True,
    ),
    Section(
        frame="hop_latency",
        title="Hops",
        about="95 % took no longer: to be stored (produce), to be delivered first (deliver), in the handler (process).",
        empty="Nothing was produced, delivered or settled.",
        ordered=_latest,
        show=_hops,
        is_over_time=True,
    ),
    Section(
        frame="lag_history",
        title="Lag",
        about="Messages that a group had not settled yet.",
        empty="No group received anything.",
        ordered=_latest,
        show=_lag,
        is_over_time=True,
    ),
    Section(
        frame="hot_keys",
        title="Hot keys",
        about="The most frequent keys, and their share of their topic.",
        empty="No message has a key.",
        ordered=lambda frame: frame.orderBy(sf.desc("messages"), "topic", "key"),
        show=_columns(
            tables.text("key", "Key", is_long=True),
            tables.text("topic", "Topic"),
            tables.count("messages", "Messages"),
            tables.share("share", "Share"),
            tables.count("bytes", "Bytes"),
        ),
    ),
    Section(
        frame="retry_report",
        title="Retries",
        about="Messages that a group did not finish at the first attempt.",
        empty="Nothing failed and nothing was retried.",
        ordered=lambda frame: frame.orderBy(sf.desc("failures"), sf.desc("messages"), "topic", "group"),
        show=_columns(
            tables.text("group", "Group"),
            tables.text("topic", "Topic"),
            tables.count("messages", "Messages"),
            tables.count("retries", "Retries"),
            tables.count("failures", "Failures"),
            tables.count("attemptsMax", "Most attempts"),
            tables.reasons("reasons", "Reasons"),
        ),
    ),
    Section(
        frame="dead_letter_report",
        title="Dead letters",
        about="Messages that were given up, by reason.",
        empty="There are no dead letters.",
        ordered=lambda frame: frame.orderBy(sf.desc("messages"), "topic", "group", "reason"),
        show=_columns(
            tables.text("reason", "Reason", is_long=True),
            tables.text("group", "Group"),
            tables.text("topic", "Topic"),
            tables.count("messages", "Messages"),
            tables.count("attemptsMax", "Most attempts"),
            tables.time("firstAt", "First"),
            tables.time("lastAt", "Last"),
            tables.place("lastPartition", "lastOffset", "Last place"),
        ),
    ),
    Section(
        frame="duplicates",
        title="Duplicates",
        about="Messages of a topic with the same key and the same body, soon after each other.",
        empty="No message looks like another one.",
        ordered=lambda frame: frame.orderBy(sf.desc("copies"), sf.desc("lastAt"), "topic", "key"),
        show=_columns(
            tables.text("key", "Key", is_long=True),
            tables.text("topic", "Topic"),
            tables.count("copies", "Copies"),
            tables.time("firstAt", "First"),
            tables.place("firstPartition", "firstOffset", "First place"),
            tables.time("lastAt", "Last"),
            tables.place("lastPartition", "lastOffset", "Last place"),
        ),
    ),
    Section(
        frame="app_cost",
        title="Cost of apps",
        about="What each app sent, and what was delivered to it.",
        empty="No app sent or received anything.",
        ordered=lambda frame: frame.orderBy(sf.desc(sf.col("messages") + sf.col("deliveries")), "app"),
        show=_columns(
            tables.text("app", "App"),
            tables.count("messages", "Messages sent"),
            tables.count("bytes", "Bytes sent"),
            tables.count("deliveries", "Deliveries"),
            tables.count("retries", "Retries"),
        ),
    ),
)
