"""The columns: of the source, and of each table of the lake. What Spark, the lake and the decoders agree on.

The first six are those of Spark's Kafka source, in its order; `timestamp` is when the broker stored the message, so it
never goes back inside a partition. Times are UTC. In the lake all columns may be null: one that comes later is missing
from the files before.
"""

import pyarrow as pa

TIMESTAMP = pa.timestamp("us", tz="UTC")
HEADERS = pa.map_(pa.string(), pa.string())
TAGS = pa.list_(pa.field("element", pa.string()))

SOURCE = pa.schema(
    [
        ("key", pa.string()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", TIMESTAMP),
        ("sendTime", TIMESTAMP),
        ("headers", HEADERS),
        ("tags", TAGS),
        ("app", pa.string()),
        ("messageId", pa.string()),
        ("attempt", pa.int32()),
        ("priority", pa.int8()),
        ("flag", pa.int16()),
        ("term", pa.int32()),
    ]
)

# Columns that a read has only if it names them. Spark does not tell a Python source which ones a query needs, so each
# is paid for by every query: these three, together, were a fourteenth of a read of short messages.
ON_REQUEST = frozenset({"priority", "flag", "term"})

# What a broker gives: a key may be missing, and the value of a tombstone. Of the others Spark then need not ask whether
# they are there, which spares it about a fifth of its work on a row.
LIVE = pa.schema([field.with_nullable(field.name in ("key", "value")) for field in SOURCE])

# What the lake adds: `topicId` tells a topic from an earlier one of the same name, `crc` is the CRC-32 of the value.
LAKE_ONLY = [pa.field("topicId", pa.int32()), pa.field("crc", pa.int64())]
DAY = pa.field("dt", pa.date32())

MESSAGES = pa.schema([*SOURCE, *LAKE_ONLY, DAY])
META = pa.schema([f for f in MESSAGES if f.name not in ("value", "headers", "dt")]).append(
    pa.field("valueBytes", pa.int32())
)
META = META.append(DAY)

# One row for a run of messages of one partition to which the same happened at the same time: `offset` is the first.
EVENTS = pa.schema(
    [
        ("topic", pa.string()),
        ("topicId", pa.int32()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("count", pa.int32()),
        ("timestamp", TIMESTAMP),
        ("kind", pa.string()),
        ("app", pa.string()),
        ("client", pa.string()),
        ("attempt", pa.int32()),
        ("elapsedMs", pa.int32()),
        ("reason", pa.string()),
        ("eventPartition", pa.int32()),  # where the event itself is kept at the broker
        ("eventOffset", pa.int64()),
        ("dt", pa.date32()),
    ]
)

# A range that no longer was at the broker when the archive came to it.
GAPS = pa.schema(
    [
        ("topic", pa.string()),
        ("topicId", pa.int32()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("end", pa.int64()),
        ("reason", pa.string()),
        ("timestamp", TIMESTAMP),
    ]
)
