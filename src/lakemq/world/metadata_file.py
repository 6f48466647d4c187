"""The metadata that several brokers of one machine share: one of them writes it, the others read it.

A file that is replaced whole, so nobody sees half of it. It is a copy: the journal of the first broker is the truth,
and each of the others keeps what it read in its own. Each reader says how far it is, so that the writer can wait.
"""

import os
from pathlib import Path


class MetadataFile:
    """One shared file, and beside it a small one for each reader."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "metadata.json"
        self._seen: tuple[int, int, int] | None = None

    def publish(self, packed: bytes) -> None:
        """Let the others see it."""
        _replace(self._path, packed)

    def read_if_new(self) -> bytes | None:
        """What the first broker says, if it has said something since the last call."""
        try:
            found = os.stat(self._path)
        except FileNotFoundError:
            return None
        mark = found.st_mtime_ns, found.st_size, found.st_ino
        if mark == self._seen:
            return None
        packed = self._path.read_bytes()
        self._seen = mark
        return packed

    def report(self, broker_id: int, version: int) -> None:
        """This reader has taken over that version."""
        _replace(self._path.with_name(f"metadata-seen-{broker_id}"), str(version).encode())

    def seen_by(self, broker_id: int) -> int:
        """The version that reader has taken over; -1 if it has said nothing."""
        try:
            return int(self._path.with_name(f"metadata-seen-{broker_id}").read_bytes() or b"-1")
        except (FileNotFoundError, ValueError):
            return -1


def _replace(path: Path, data: bytes) -> None:
    temporary = path.with_name(f"{path.name}.tmp-{os.getpid()}")
    temporary.write_bytes(data)
    temporary.replace(path)
