"""Checkpoints of a running group: how far a start may trust the index files, written down in order (R4).

A ticket holds only what was synced before it was handed out, the snapshot of the fold too: it has no journal to sync.
"""

from lakemq.storage import files
from lakemq.storage.disk import Disk
from lakemq.storage.state_file import write_state
from lakemq.storage.tables import Checkpoint

# Up to so many files are synced one by one; more in one go, which also waits for whoever else writes to that disk.
_ONE_BY_ONE_MAX = 64


class CheckpointTicket:
    """One checkpoint to be made durable, off the loop."""

    __slots__ = ("_content", "_disk", "_sequence", "_written", "position")

    def __init__(self, disk: Disk, sequence: int, checkpoint: Checkpoint, written: set[str] | None) -> None:
        self.position = checkpoint.covered_position
        self._disk = disk
        self._sequence = sequence
        self._content = checkpoint.pack()
        self._written = written  # index files since the checkpoint before; None if that is not known

    def run(self) -> None:
        """Index files first, then the file that vouches for them."""
        if self._written is None or len(self._written) > _ONE_BY_ONE_MAX:
            self._disk.sync_all()
        else:
            self._sync(sorted(self._written))
        write_state(self._disk, files.CHECKPOINT, self._sequence, self._content)

    def _sync(self, paths: list[str]) -> None:
        directories: dict[str, None] = {}
        for path in paths:
            try:
                file = self._disk.open(path)
            except FileNotFoundError:
                continue  # made again or dropped meanwhile
            try:
                file.sync()
            finally:
                file.close()
            while path:  # its name, and those of directories that may be new
                path = path.rpartition("/")[0]
                directories[path] = None
        for directory in directories:
            self._disk.sync_dir(directory)


class Checkpoints:
    """Hands out one ticket at a time and remembers the last that was made durable."""

    def __init__(self, disk: Disk, sequence: int, position: int) -> None:
        self._disk = disk
        self._sequence = sequence
        self._ticket: CheckpointTicket | None = None
        self._has_failed = False  # then nobody knows any more which files are not synced
        self.position = position  # up to where the last durable one spares a start from reading

    @property
    def is_busy(self) -> bool:
        """Whether a ticket is out."""
        return self._ticket is not None

    def begin(self, checkpoint: Checkpoint, written: set[str]) -> CheckpointTicket:
        """A ticket for that checkpoint; `written` are the index files since the one before."""
        assert self._ticket is None, "one at a time"
        self._sequence += 1
        known = None if self._has_failed else written
        self._ticket = CheckpointTicket(self._disk, self._sequence, checkpoint, known)
        self._has_failed = True  # until it has not
        return self._ticket

    def end(self, ticket: CheckpointTicket, error: OSError | None) -> None:
        """The ticket was run; if it failed, the one before still holds."""
        assert ticket is self._ticket
        self._ticket = None
        if error is None:
            self._has_failed = False
            self.position = ticket.position
