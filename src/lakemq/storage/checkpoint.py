"""Checkpoints of a running group: how far a start may trust the index files, written down in order (R4)."""

from lakemq.storage import files
from lakemq.storage.disk import Disk
from lakemq.storage.state_file import write_state
from lakemq.storage.tables import Checkpoint


class CheckpointTicket:
    """One checkpoint to be made durable, off the loop."""

    __slots__ = ("_content", "_disk", "_sequence", "position")

    def __init__(self, disk: Disk, sequence: int, checkpoint: Checkpoint) -> None:
        self.position = checkpoint.position
        self._disk = disk
        self._sequence = sequence
        self._content = checkpoint.pack()

    def run(self) -> None:
        """Index files first, then the file that vouches for them."""
        self._disk.sync_all()
        write_state(self._disk, files.CHECKPOINT, self._sequence, self._content)


class Checkpoints:
    """Hands out one ticket at a time and remembers the last that was made durable."""

    def __init__(self, disk: Disk, sequence: int, position: int) -> None:
        self._disk = disk
        self._sequence = sequence
        self._ticket: CheckpointTicket | None = None
        self.position = position  # of the last durable one

    @property
    def is_busy(self) -> bool:
        """Whether a ticket is out."""
        return self._ticket is not None

    def begin(self, checkpoint: Checkpoint) -> CheckpointTicket:
        """A ticket for that checkpoint."""
        assert self._ticket is None, "one at a time"
        self._sequence += 1
        self._ticket = CheckpointTicket(self._disk, self._sequence, checkpoint)
        return self._ticket

    def end(self, ticket: CheckpointTicket, error: OSError | None) -> None:
        """The ticket was run; if it failed, the one before still holds."""
        assert ticket is self._ticket
        self._ticket = None
        if error is None:
            self.position = ticket.position
