"""A broker's counters and gauges in Prometheus' text form.

Knows nothing of the broker: it gets a `Reading`, taken on the broker's own thread, and names what is in it. A series is
there as long as its topic, group or limit is; nothing is kept between two scrapes.
"""

import os
import platform
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from lakemq.version import VERSION

if TYPE_CHECKING:
    from prometheus_client import Metric

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

OneLabel = Mapping[str, int]
TwoLabels = Mapping[tuple[str, str], int]
ThreeLabels = Mapping[tuple[str, str, str], int]


class Histogram(NamedTuple):
    """How often something took how long: counts up to each bound, one more for what took longer."""

    bounds_ms: tuple[int, ...]
    counts: tuple[int, ...]
    sum_ms: int


@dataclass(frozen=True, slots=True)
class Reading:
    """What a broker had counted at one moment, copied, so that it may be read at leisure."""

    broker: int
    messages_in: OneLabel  # by topic
    bytes_in: OneLabel
    messages_out: TwoLabels  # by topic and group
    bytes_out: TwoLabels
    settled: ThreeLabels  # by topic, group and outcome
    requests: OneLabel  # by command
    errors: Mapping[int, int]  # by code
    capped: OneLabel  # by the limit that was reached
    syncs: Histogram
    synced_messages: int
    connections_opened: int
    bugs: int
    events_dropped: int
    connections: int
    parked_polls: int
    in_flight_bytes: int
    unsynced_bytes: int
    journal_bytes: int
    topics: int
    apps: int
    subscriptions: int
    partitions: int
    retries: int
    dead_letters: int
    delays: int
    transactions: int
    archive_lags: OneLabel  # by topic
    lateness: Histogram  # of delayed messages
    loop_lag_seconds: float


class Lag(NamedTuple):
    """What one group has still to receive of one topic."""

    topic: str
    group: str
    messages: int


def exposition(reading: Reading, lags: Iterable[Lag], data: Path) -> bytes:
    """All of it as a scrape wants it."""
    from prometheus_client import CollectorRegistry, generate_latest  # takes longer to load than to run

    class Collected:
        def collect(self) -> list["Metric"]:
            return [*_counters(reading), *_gauges(reading, data), _lags(lags), _archive_lags(reading)]

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Collected())
    return generate_latest(registry)


def _counters(reading: Reading) -> list["Metric"]:
    from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily

    def counter(name: str, text: str, labels: Sequence[str], values: Iterable[tuple[Sequence[str], int]]) -> "Metric":
        family = CounterMetricFamily(f"lakemq_{name}", text, labels=labels)
        for names, value in values:
            family.add_metric(names, value)
        return family

    def by_one(values: Mapping[str, int] | Mapping[int, int]) -> list[tuple[Sequence[str], int]]:
        return [([str(name)], value) for name, value in sorted(values.items())]

    def histogram(name: str, text: str, taken: Histogram) -> "Metric":
        counts = [sum(taken.counts[: place + 1]) for place in range(len(taken.counts))]
        buckets = [(str(bound / 1000), float(count)) for bound, count in zip(taken.bounds_ms, counts, strict=False)]
        return HistogramMetricFamily(
            f"lakemq_{name}", text, buckets=[*buckets, ("+Inf", float(counts[-1]))], sum_value=taken.sum_ms / 1000
        )

    return [
        counter("messages_in", "Messages taken from producers.", ["topic"], by_one(reading.messages_in)),
        counter("bytes_in", "Bytes of those messages.", ["topic"], by_one(reading.bytes_in)),
        counter("messages_out", "Messages handed out.", ["topic", "group"], sorted(reading.messages_out.items())),
        counter("bytes_out", "Bytes of those messages.", ["topic", "group"], sorted(reading.bytes_out.items())),
        counter("settled", "Messages done with.", ["topic", "group", "outcome"], sorted(reading.settled.items())),
        counter("requests", "Requests by command.", ["command"], by_one(reading.requests)),
        counter("errors", "Errors answered, by code; `lakemq errors` has them.", ["code"], by_one(reading.errors)),
        counter("capped", "How often a limit was reached.", ["limit"], by_one(reading.capped)),
        counter("synced_messages", "Messages that a sync has made durable.", [], [([], reading.synced_messages)]),
        counter("connections_opened", "Connections taken.", [], [([], reading.connections_opened)]),
        counter("bugs", "Requests that ran into a bug; the log has them.", [], [([], reading.bugs)]),
        counter(
            "events_dropped", "Events of archived topics that could not be written.", [], [([], reading.events_dropped)]
        ),
        histogram("sync_duration_seconds", "How long syncs of the journal took.", reading.syncs),
        histogram("delay_lateness_seconds", "How late delayed messages were released.", reading.lateness),
    ]


def _gauges(reading: Reading, data: Path) -> list["Metric"]:
    from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily

    build = {"version": VERSION, "python": platform.python_version(), "broker": str(reading.broker)}
    values: list[tuple[str, str, float]] = [
        ("connections", "Connections that are open.", reading.connections),
        ("parked_polls", "Fetches that wait for messages.", reading.parked_polls),
        ("in_flight_bytes", "Bytes of requests that wait for a sync.", reading.in_flight_bytes),
        ("unsynced_bytes", "Bytes of the journal that no sync covers yet.", reading.unsynced_bytes),
        ("journal_bytes", "Bytes that the journal keeps.", reading.journal_bytes),
        ("topics", "Topics.", reading.topics),
        ("partitions", "Partitions of all topics.", reading.partitions),
        ("apps", "Apps.", reading.apps),
        ("subscriptions", "Subscriptions.", reading.subscriptions),
        ("retries", "Messages that failed and wait to be tried again.", reading.retries),
        ("dead_letters", "Messages that wait for an operator.", reading.dead_letters),
        ("delays", "Messages that wait until they are due.", reading.delays),
        ("transactions", "Transactions that are open.", reading.transactions),
        ("event_loop_lag_seconds", "How late the broker's loop was, at the worst lately.", reading.loop_lag_seconds),
        ("disk_free_bytes", "Bytes free where the data are.", disk_free_bytes(data)),
        ("resident_memory_bytes", "Memory that the process uses.", _resident_bytes()),
    ]
    return [
        *(GaugeMetricFamily(f"lakemq_{name}", text, value=value) for name, text, value in values),
        InfoMetricFamily("lakemq_build", "Which program this is.", value=build),
    ]


def _lags(lags: Iterable[Lag]) -> "Metric":
    from prometheus_client.core import GaugeMetricFamily

    family = GaugeMetricFamily(
        "lakemq_group_lag_messages", "Messages that a group has still to receive.", labels=["topic", "group"]
    )
    for lag in sorted(lags):
        family.add_metric([lag.topic, lag.group], lag.messages)
    return family


def _archive_lags(reading: Reading) -> "Metric":
    from prometheus_client.core import GaugeMetricFamily

    text = "Messages of an archived topic that the archive does not have yet."
    family = GaugeMetricFamily("lakemq_archive_lag", text, labels=["topic"])
    for topic, messages in sorted(reading.archive_lags.items()):
        family.add_metric([topic], messages)
    return family


def disk_free_bytes(data: Path) -> int:
    """What is free where the data are; 0 if that cannot be told."""
    try:
        return shutil.disk_usage(data).free
    except OSError:
        return 0


def _resident_bytes() -> int:
    try:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * _PAGE_BYTES
    except (OSError, ValueError, IndexError):  # not Linux
        return 0
