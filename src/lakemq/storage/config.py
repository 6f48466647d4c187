"""StorageConfig: the engine's sizes."""

from dataclasses import dataclass

from lakemq.storage.index import ENTRIES_PER_FILE
from lakemq.storage.sync_policy import ALWAYS, SyncPolicy

VISIBLE_AFTER = ("sync", "write")
DEV_SEGMENT_BYTES = 64 << 20  # where a broker is tried out, or lives inside a program: reserved as soon as it starts


@dataclass(frozen=True, slots=True)
class StorageConfig:
    """Larger means fewer files and pauses, and more memory or a longer recovery."""

    segment_bytes: int = 1 << 30  # one file of the journal; retention drops whole ones
    record_bytes_max: int = 16 << 20  # one request's messages of one partition
    entries_per_file: int = ENTRIES_PER_FILE  # of a partition's index
    checkpoint_bytes: int = 256 << 20  # at most about this much is read again after a crash
    unsynced_bytes_max: int = 64 << 20  # more is refused until a sync has caught up
    control_reserve_bytes: int = 1 << 20  # of each segment, that messages leave to facts; at most an eighth of it
    index_pending_bytes_max: int = 4 << 20  # index entries in memory before they go to files
    sync_policy: SyncPolicy = ALWAYS
    # Consumers see messages once they are synced, or sooner: once the system has them. Then a power cut may take back
    # what was read, and its index may name another message later.
    visible_after: str = "sync"
    open_segments_max: int = 64
    open_index_files_max: int = 256
    # Fetch from mapped files, without a copy. Only with the compiled twin: without it, a bad sector would end the
    # process instead of the fetch, and files are read instead.
    maps_segments: bool = True

    def __post_init__(self) -> None:
        if self.record_bytes_max > self.segment_bytes:
            raise ValueError(
                f"a record of {self.record_bytes_max} bytes does not fit a segment of {self.segment_bytes}"
            )
        if self.visible_after not in VISIBLE_AFTER:
            raise ValueError(f"visible_after is {self.visible_after!r}, not one of {', '.join(VISIBLE_AFTER)}")

    @property
    def reserve_bytes(self) -> int:
        """`control_reserve_bytes`, or less where segments are small."""
        return min(self.control_reserve_bytes, self.segment_bytes // 8)
