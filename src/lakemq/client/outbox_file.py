"""The file of an outbox: appended to and synced, replaced as a whole, and locked against other processes."""

import os
from pathlib import Path

from lakemq.client import durable_files
from lakemq.client.errors import OutboxFullError, OutboxLockedError
from lakemq.client.outbox_log import MAGIC, OutboxLog

_LOG = "outbox.log"
_TEMPORARY = "outbox.tmp"
_LOCK = "lock"


class OutboxFile:
    """One outbox directory, in the hands of this process."""

    def __init__(self, directory: str | Path, bytes_max: int) -> None:
        self._directory = Path(directory)
        self._directory.mkdir(parents=True, exist_ok=True)
        self._lock = self._locked()
        try:
            path = self._directory / _LOG
            data = path.read_bytes() if path.exists() else b""
            self.log = OutboxLog.recover(data, bytes_max)
            self._file = durable_files.open_file(path)
            if len(data) < len(MAGIC):
                self._begin()
            elif self.log.file_bytes < len(data):  # a torn tail
                os.ftruncate(self._file, self.log.file_bytes)
                os.fsync(self._file)
            os.lseek(self._file, 0, os.SEEK_END)
        except BaseException:
            os.close(self._lock)
            raise
        self.cut_bytes = max(len(data) - self.log.file_bytes, 0)

    def append(self, data: bytes, is_synced: bool) -> None:
        """Add bytes at the end; OutboxFullError if the disk does not take them, and nothing of them is kept."""
        end = os.lseek(self._file, 0, os.SEEK_END)
        try:
            view = memoryview(data)
            while len(view):
                view = view[os.write(self._file, view) :]
            if is_synced:
                durable_files.sync_data(self._file)
        except OSError as error:
            os.ftruncate(self._file, end)
            raise OutboxFullError(f"{self._directory}: {error}") from None

    def replace(self, data: bytes) -> None:
        """Put these bytes in place of all."""
        temporary = self._directory / _TEMPORARY
        try:
            file = durable_files.open_file(temporary, is_emptied=True)
            try:
                view = memoryview(data)
                while len(view):
                    view = view[os.write(file, view) :]
                os.fsync(file)
            except BaseException:
                os.close(file)
                raise
            if os.name == "nt":  # there no open file can be renamed or replaced
                os.close(file)
                os.close(self._file)
            os.replace(temporary, self._directory / _LOG)
        except OSError as error:
            raise OutboxFullError(f"{self._directory}: {error}") from None
        if os.name == "nt":
            file = durable_files.open_file(self._directory / _LOG)
            os.lseek(file, 0, os.SEEK_END)
        else:
            os.close(self._file)
        self._file = file
        durable_files.sync_directory(self._directory)

    def close(self) -> None:
        """Let others have it."""
        os.close(self._file)
        os.close(self._lock)

    def _begin(self) -> None:
        os.ftruncate(self._file, 0)
        os.write(self._file, MAGIC)
        os.fsync(self._file)
        durable_files.sync_directory(self._directory)

    def _locked(self) -> int:
        try:
            return durable_files.lock(self._directory / _LOCK)
        except OSError:
            raise OutboxLockedError(f"{self._directory}") from None
