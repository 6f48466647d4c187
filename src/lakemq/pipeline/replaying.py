"""Messages of the past sent again: chosen by SQL from archive and broker, once each, as fast as is allowed.

A replay has an id. What it takes is fixed when it begins: up to which offset of each partition. It goes in chunks of
offsets; each is a transaction that is decided for once (`sink_log.py`), so a replay that was killed and is started
again with its id goes on behind the last chunk that was decided.
"""

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

from lakemq.client.blocking import Client
from lakemq.client.outgoing import Message
from lakemq.pipeline.arrow import check_opened
from lakemq.pipeline.door import door
from lakemq.pipeline.errors import OptionError
from lakemq.pipeline.options import Server
from lakemq.pipeline.sink import commit_decided, prepare_messages
from lakemq.pipeline.sink_log import Decision, SinkLog

REPLAY_TOPIC, REPLAY_PARTITION, REPLAY_OFFSET, REPLAY_ID = "replayTopic", "replayPartition", "replayOffset", "replayId"
_CHUNK = 10_000  # offsets
_SAMPLES = 5
_BATCH = -1  # under this number the log has what the replay was begun with


@dataclass
class ReplayReport:
    """What a replay has done, or would do."""

    id: str
    to: str
    is_dry_run: bool
    messages: int = 0
    bytes: int = 0
    by_partition: dict[str, int] = field(default_factory=dict)
    samples: list[dict[str, Any]] = field(default_factory=list)
    sent: int = 0
    skipped: int = 0  # had been sent by an earlier run of the same id


Told = Callable[[ReplayReport], None]


def replay(
    frame: DataFrame,
    server: Server,
    *,
    to: str,
    per_second: int = 0,
    dry_run: bool = True,
    id: str = "",
    told: Told | None = None,
) -> ReplayReport:
    """Send the rows of a frame that has the columns of `lake.<topic>` to a topic; without `dry_run=False` only count.

    `id` names the replay: given again after a crash, it goes on. Each message has its old place as headers.
    """
    if not to:
        raise OptionError("it is not said where to send", "Give a topic with to=….")
    report = ReplayReport(id or uuid.uuid4().hex[:12], to, dry_run)
    _survey(frame, report)
    if dry_run:
        return report
    client = door(server).client
    log = SinkLog(client, f"replay/{report.id}")
    done = log.all()
    begun = done.get(_BATCH)
    plan = [[to, str(report.messages), str(_CHUNK)]]
    if begun is None:
        log.decide(_BATCH, plan)
    elif begun.transactions[0][0] != to:
        before = begun.transactions[0][0]
        raise OptionError(f"replay {report.id} was begun to topic {before}", "Use another id for another replay.")
    pace = _Pace(per_second)
    ordered = frame.orderBy("topic", "partition", "offset").toLocalIterator(prefetchPartitions=True)
    for (topic, partition, chunk), rows in groupby(ordered, key=_chunk_of):
        name = f"{topic}/{partition}/{chunk}"
        _send_chunk(client, log, report, name, list(rows), done, pace)
        if told is not None:
            told(report)
    return report


def _chunk_of(row: Row) -> tuple[str, int, int]:
    return row["topic"], row["partition"], row["offset"] // _CHUNK


def _send_chunk(
    client: Client,
    log: SinkLog,
    report: ReplayReport,
    name: str,
    rows: list[Row],
    done: dict[int | str, Decision],
    pace: "_Pace",
) -> None:
    chosen = done.get(name)
    if chosen is None:
        pace.wait(len(rows))
        messages = ((report.to, _message(row, report.id)) for row in rows)
        prepared = prepare_messages(client, messages, f"replay/{report.id}", name)
        chosen = log.decide(name, prepared.transactions)
        report.sent += len(rows)
    else:
        report.skipped += len(rows)
    commit_decided(client, log, chosen, name)


def _message(row: Row, id: str) -> Message:
    headers = dict(row["headers"] or {})
    check_opened(headers, f"{row['topic']}/{row['partition']}/{row['offset']}")
    headers.update(
        {
            REPLAY_ID: id,
            REPLAY_TOPIC: row["topic"],
            REPLAY_PARTITION: str(row["partition"]),
            REPLAY_OFFSET: str(row["offset"]),
        }
    )
    return Message(
        body=None if row["value"] is None else bytes(row["value"]),
        key=row["key"],
        tags=list(row["tags"]) or None,
        headers=headers,
        priority=row["priority"],
    )


def _survey(frame: DataFrame, report: ReplayReport) -> None:
    """How many there are, and a few to look at."""
    counts = frame.groupBy("topic", "partition").agg(
        F.count(F.lit(1)).alias("messages"), F.sum(F.length("value")).alias("bytes")
    )
    for row in counts.orderBy("topic", "partition").collect():
        report.by_partition[f"{row['topic']}/{row['partition']}"] = row["messages"]
        report.messages += row["messages"]
        report.bytes += row["bytes"] or 0
    for row in frame.orderBy("topic", "partition", "offset").limit(_SAMPLES).collect():
        text = bytes(row["value"] or b"")[:80].decode("utf-8", "replace")
        report.samples.append({"messageId": row["messageId"], "key": row["key"], "value": text})


class _Pace:
    """No more than so many in a second, on average."""

    def __init__(self, per_second: int) -> None:
        self._per_second = per_second
        self._began_s = time.monotonic()
        self._count = 0

    def wait(self, count: int) -> None:
        if self._per_second:
            due_s = self._began_s + self._count / self._per_second
            time.sleep(max(0.0, due_s - time.monotonic()))  # the rate that was asked for
        self._count += count
