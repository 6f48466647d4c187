"""Planned failures of a simulated disk: which operation, which one of them, and with what error."""

from dataclasses import dataclass

CHANGES = ("write", "sync", "sync_dir", "sync_all", "create", "rename", "remove", "preallocate", "truncate")
OPERATIONS = (*CHANGES, "read", "open", "map")


@dataclass(slots=True)
class Fault:
    """The matching operations fail, `times` of them, once `after` more have passed."""

    operation: str
    error: OSError | MemoryError
    after: int = 0
    path_contains: str = ""
    times: int = 1
    wrote: int = 0  # what is done all the same: bytes of a write, data operations of a sync

    def __post_init__(self) -> None:
        if self.operation not in OPERATIONS:
            raise ValueError(f"no such operation: {self.operation!r}")

    def hits(self, operation: str, path: str) -> bool:
        """Whether this operation fails. Counts it if it matches, so ask once for each."""
        if operation != self.operation or self.path_contains not in path or not self.times:
            return False
        if self.after:
            self.after -= 1
            return False
        self.times -= 1
        return True
