"""LakeMQ for Spark programs: `from lakemq import spark as lm`.

The source and sink need none of this: `spark.read.format("lakemq")` works in any session. Here are the jobs around
them: the archive, views over live and archived messages, bodies as columns, trace, replay and a session with good
settings.
"""

from typing import TYPE_CHECKING, Any

from lakemq.pipeline.options import Given, Server, read_server
from lakemq.pipeline.session import session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from lakemq.pipeline.archiving import ArchiveProgress
    from lakemq.pipeline.replaying import ReplayReport
    from lakemq.pipeline.views import Views

__all__ = ["archive", "decode_avro", "decode_json", "open_views", "register_views", "replay", "session", "trace"]


def _server(servers: str, app: str, token: str) -> Server:
    given = {"servers": servers, "app": app, "token": token}
    return read_server(Given({name: value for name, value in given.items() if value}))


def archive(
    spark: "SparkSession",
    lake: str,
    *,
    topics: tuple[str, ...] = (),
    servers: str = "",
    every: str = "",
    token: str = "",
    **settings: Any,
) -> "ArchiveProgress":
    """Copy archived topics (or those named) into the lake, once each: up to now, or with `every` until stopped."""
    from lakemq.pipeline.archiving import ARCHIVE_APP, Archive, ArchiveSettings

    server = _server(servers, ARCHIVE_APP, token)
    return Archive(spark, ArchiveSettings(server, lake, tuple(topics), every=every, **settings)).run()


def open_views(spark: "SparkSession", lake: str = "", *, servers: str = "", app: str = "", token: str = "") -> "Views":
    """Live and archived messages, events and delivery state as frames."""
    from lakemq.pipeline import views

    return views.open_views(spark, _server(servers, app, token), lake)


def register_views(
    spark: "SparkSession", lake: str = "", *, servers: str = "", app: str = "", token: str = ""
) -> list[str]:
    """Make the views `lake.<topic>`, `lake.messages`, `lake.events`, `lake.deliveries`, `lake.lag`; their names.

    The database is called `lake` in a session from `lakemq.spark.session()`, or in any session with
    `spark.sql.globalTempDatabase` set to it; elsewhere it is Spark's `global_temp`.
    """
    from lakemq.pipeline import views

    return views.register_views(spark, _server(servers, app, token), lake)


def decode_json(frame: "DataFrame", schema_ddl: str, column: str = "value") -> "DataFrame":
    """Bodies that are JSON objects, read: `body` with the schema's fields, `_corrupt` with text that does not fit."""
    from lakemq.pipeline import decoding

    return decoding.decode_json(frame, schema_ddl, column)


def decode_avro(frame: "DataFrame", schema_json: str, column: str = "value", framing: str = "none") -> "DataFrame":
    """Bodies that are Avro records, read: `body` with the schema's fields, `_corrupt` with why one cannot be read.

    `framing` is "none", "confluent" for five bytes before the record, or "file" for an Avro file of one record.
    """
    from lakemq.pipeline import decoding

    return decoding.decode_avro(frame, schema_json, column, framing)


def trace(
    spark: "SparkSession",
    lake: str = "",
    *,
    message_id: str | None = None,
    key: str | None = None,
    start: Any = None,
    end: Any = None,
    servers: str = "",
    app: str = "",
    token: str = "",
) -> "DataFrame":
    """What happened to a message, to those of a key, or to those of a span of time: one row per step, in order."""
    from lakemq.pipeline.tracing import TIMELINE_DDL, Search, trace_messages
    from lakemq.pipeline.transforms import timeline
    from lakemq.pipeline.transforms.spans import moment
    from lakemq.pipeline.transforms.trace import COLUMNS

    if message_id is None and key is None:
        found = open_views(spark, lake, servers=servers, app=app, token=token)
        return timeline(found.meta, found.events, start=start, end=end)
    first, last = (None if one is None else moment(one) for one in (start, end))
    traced = trace_messages(_server(servers, app, token), lake, Search(message_id, key, first, last))
    return spark.createDataFrame([tuple(row[name] for name in COLUMNS) for row in traced.rows], TIMELINE_DDL)


def replay(
    frame: "DataFrame",
    *,
    to: str,
    per_second: int = 0,
    dry_run: bool = True,
    id: str = "",
    servers: str = "",
    app: str = "",
    token: str = "",
) -> "ReplayReport":
    """Send rows of `lake.<topic>` again, once each; without `dry_run=False` only say what would be sent."""
    from lakemq.pipeline import replaying

    server = _server(servers, app, token)
    return replaying.replay(frame, server, to=to, per_second=per_second, dry_run=dry_run, id=id)
