"""What lies where in a lake: the tables, their directories, and the mark that says whose lake it is.

_lakemq/format.json            the format's number and the cluster's id
_lakemq/archive.lock           held by the one archive job
_lakemq/upkeep.json            when it last removed files that nobody needs
messages/topic=…/dt=…/*.parquet    likewise `meta` and `events`; neither `topic` nor `dt` is in the files
gaps/*.parquet                 not partitioned
<table>/_delta_log/            Delta, reader version 1 and writer version 2
"""

import json
import os
import re
import uuid

import pyarrow as pa

from lakemq.pipeline import schema
from lakemq.pipeline.lake.errors import LakeError, LakeFormatError, LakeNotFoundError, OtherClusterError
from lakemq.pipeline.lake.place import Place

FORMAT = 1

MESSAGES = "messages"
META = "meta"
EVENTS = "events"
GAPS = "gaps"
SCHEMAS: dict[str, pa.Schema] = {
    MESSAGES: schema.MESSAGES,
    META: schema.META,
    EVENTS: schema.EVENTS,
    GAPS: schema.GAPS,
}
PARTITIONED_BY = ("topic", "dt")
# What one range of a topic fills, in the order in which it is committed.
TABLES_OF = {MESSAGES: (MESSAGES, META), EVENTS: (EVENTS,)}

FORMAT_FILE = "_lakemq/format.json"
LOCK_FILE = "_lakemq/archive.lock"
UPKEEP_FILE = "_lakemq/upkeep.json"
REPAIR_LOCK_FILE = "_lakemq/repair.lock"

_NAME_BYTES_MAX = 255  # of a directory, on all usual file systems
_ESCAPED = re.compile(r"[^A-Za-z0-9_.\-\u0080-\U0010ffff]")


def is_partitioned(table: str) -> bool:
    return table != GAPS


def columns_in_files(table: str) -> pa.Schema:
    """The columns that are inside a table's files: all but those that its directories say."""
    if not is_partitioned(table):
        return SCHEMAS[table]
    return pa.schema([field for field in SCHEMAS[table] if field.name not in PARTITIONED_BY])


def directory_of(topic: str, day: str) -> str:
    """A partition's directory as it is on disk: Hive's escapes, which Spark undoes one by one (so ASCII only)."""
    name = "topic=" + _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", topic)
    if len(name.encode()) > _NAME_BYTES_MAX:
        raise LakeError(
            f"topic {topic!r} cannot be archived: with % and / escaped its name is too long for a directory"
        )
    return f"{name}/dt={day}"


def claim(place: Place, cluster: str) -> None:
    """Make the place the cluster's lake, or check that it is."""
    if re.search("%[0-9A-Fa-f]{2}", place.uri):
        raise LakeError(f"a lake cannot be at {place.uri}: Delta's library would decode the % in its path")
    if not place.exists(FORMAT_FILE):
        _write_mark(place, {"format": FORMAT, "cluster": cluster})
    owner = check(place)
    if owner != cluster:
        raise OtherClusterError(f"{place.uri} is the lake of cluster {owner}, not of {cluster}")


def check(place: Place) -> str:
    """The id of the cluster whose lake it is; refuses what is no lake, or one that we would not understand."""
    if not place.exists(FORMAT_FILE):
        raise LakeNotFoundError(f"{place.uri} is not a lake: it has no {FORMAT_FILE}")
    try:
        mark = json.loads(place.read(FORMAT_FILE))
        number, cluster = int(mark["format"]), str(mark["cluster"])
    except (ValueError, KeyError, TypeError) as error:
        raise LakeFormatError(f"{place.uri}/{FORMAT_FILE} cannot be understood: {error}") from error
    if number > FORMAT:
        raise LakeFormatError(f"{place.uri} has format {number}; this LakeMQ knows formats up to {FORMAT}")
    return cluster


def _write_mark(place: Place, mark: dict[str, object]) -> None:
    data = (json.dumps(mark) + "\n").encode()
    place.make_directory("_lakemq")
    if not place.is_local:
        with place.filesystem.open_output_stream(FORMAT_FILE) as file:
            file.write(data)
        return
    draft = f"{FORMAT_FILE}.{uuid.uuid4().hex}"
    with open(place.path(draft), "xb") as file:
        file.write(data)
    place.sync(draft)
    try:
        os.link(place.path(draft), place.path(FORMAT_FILE))  # unlike a rename it cannot take another's place
    except FileExistsError:
        pass  # somebody else was first; `claim` checks whose it is
    finally:
        os.unlink(place.path(draft))
    place.sync(FORMAT_FILE)
    place.sync("")
