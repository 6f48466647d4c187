"""The lake: tables of archived messages on Delta, without a jar and without Spark."""

from lakemq.pipeline.lake.data_files import DataFile, FilesWriter
from lakemq.pipeline.lake.erasing import Erased, ErasureReport, erase
from lakemq.pipeline.lake.errors import (
    ArchiveRunningError,
    DamagedLakeError,
    HalfArchivedError,
    LakeBusyError,
    LakeError,
    LakeFormatError,
    LakeNotFoundError,
    NotNextError,
    OtherClusterError,
    RetentionTooShortError,
    RowsMissingError,
    SchemaClashError,
)
from lakemq.pipeline.lake.layout import EVENTS, GAPS, MESSAGES, META
from lakemq.pipeline.lake.lock import ArchiveLock
from lakemq.pipeline.lake.maintenance import Compacted, Retired, Vacuumed, compact, retire, vacuum
from lakemq.pipeline.lake.ranges import Gap, PartitionKey, Range, Span
from lakemq.pipeline.lake.store import Committed, Healed, Lake, Snapshot
from lakemq.pipeline.lake.verifying import Problem, VerifyReport, verify

__all__ = [
    "EVENTS",
    "GAPS",
    "MESSAGES",
    "META",
    "ArchiveLock",
    "ArchiveRunningError",
    "Committed",
    "Compacted",
    "DamagedLakeError",
    "DataFile",
    "Erased",
    "ErasureReport",
    "FilesWriter",
    "Gap",
    "HalfArchivedError",
    "Healed",
    "Lake",
    "LakeBusyError",
    "LakeError",
    "LakeFormatError",
    "LakeNotFoundError",
    "NotNextError",
    "OtherClusterError",
    "PartitionKey",
    "Problem",
    "Range",
    "RetentionTooShortError",
    "Retired",
    "RowsMissingError",
    "SchemaClashError",
    "Snapshot",
    "Span",
    "Vacuumed",
    "VerifyReport",
    "compact",
    "erase",
    "retire",
    "vacuum",
    "verify",
]
