"""A reader's positions in a small file: replaced as a whole, so that a crash leaves the old ones or the new ones."""

import json
import os
from pathlib import Path

from lakemq.client.durable_files import sync_directory
from lakemq.errors import BadParameterError


class PositionFile:
    """Where a reader of one topic got to."""

    def __init__(self, path: str | Path, topic: str) -> None:
        self._path = Path(path)
        self._topic = topic
        self._written: dict[int, int] | None = None

    def load(self) -> dict[int, int]:
        """By partition, the next offset to read; empty if nothing was saved."""
        try:
            data = json.loads(self._path.read_text())
            topic, positions = data["topic"], {int(p): int(offset) for p, offset in data["positions"].items()}
        except FileNotFoundError:
            return {}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise BadParameterError(f"{self._path} holds no positions: {error}") from None
        if topic != self._topic:
            raise BadParameterError(f"{self._path} holds positions of {topic!r}, not of {self._topic!r}")
        return positions

    def save(self, positions: dict[int, int]) -> None:
        """Replace what was saved, durably; nothing if it is the same."""
        if positions == self._written:
            return
        data = json.dumps({"topic": self._topic, "positions": {str(p): o for p, o in sorted(positions.items())}})
        temporary = self._path.with_name(self._path.name + ".tmp")
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, self._path)
        sync_directory(self._path.parent)
        self._written = dict(positions)
