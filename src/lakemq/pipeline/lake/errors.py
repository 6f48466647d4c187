"""What can be wrong with a lake: each error says why, and what to do next."""

from lakemq.errors import LakeMQError


class LakeError(LakeMQError):
    """The lake cannot be read or written as asked."""

    in_seed = False
    cause = "The lake cannot be read or written as asked."
    fix = "Read the detail; check the lake with    lakemq archive verify"


class LakeNotFoundError(LakeError):
    cause = "There is no lake at this place."
    fix = "Check the path for slips; the archive job makes a lake when it first runs."


class PlaceNotSupportedError(LakeError):
    """There is no code here for such a place."""

    cause = "A lake cannot be at a place of that kind."
    fix = "Name a directory that all hosts share, such as an NFS mount, or an object store: s3://, gs:// or az://."


class LakeFormatError(LakeError):
    cause = "The lake was made by a newer LakeMQ, or its mark is damaged."
    fix = "Upgrade LakeMQ here to the version that wrote it; an older one would spoil it."


class OtherClusterError(LakeError):
    cause = "The lake holds the messages of another cluster."
    fix = "Give each cluster a lake of its own: name another directory, or connect to the cluster that the lake is of."


class ArchiveRunningError(LakeError):
    cause = "Another archive job is at work on this lake."
    fix = "Leave it running, or stop it before you start another; its lock goes when its process ends."


class NotNextError(LakeError):
    """Offsets are missing between what is archived and what was offered; nothing was added."""

    cause = "The messages offered do not follow on those that are archived."
    fix = "Start the archive job again: it goes on from the positions that the lake holds."


class HalfArchivedError(NotNextError):
    """A part of the range is archived already; nothing was added."""

    cause = "A part of the messages offered is archived already, and a range is taken whole or not at all."


class RowsMissingError(LakeError):
    """The files do not hold what their range promises; nothing was added."""

    cause = "The files do not hold each message of their range once."
    fix = "Start the archive job again; if it comes back, the reader lost messages: report it."


class LakeBusyError(LakeError):
    retriable = True
    cause = "Others kept changing the table; nothing was added."
    fix = "Try again; let one compaction run at a time."


class DamagedLakeError(LakeError):
    cause = "Files of the lake are damaged in a way that a power loss does not explain."
    fix = "Restore the files that the detail names from a backup, then run    lakemq archive verify"


class SchemaClashError(LakeError):
    cause = "A column of the table has another type than this version of LakeMQ writes."
    fix = "Upgrade LakeMQ here, or archive into a new lake."


class RetentionTooShortError(LakeError):
    cause = "So short a retention removes files that readers and the archive job are still using."
    fix = "Ask for an hour or more; or, with readers and the archive job stopped, force it."
