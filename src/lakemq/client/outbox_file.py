"""The file of an outbox: appended to and synced, replaced as a whole, and locked against other processes."""

import fcntl
import os
from pathlib import Path

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
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
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
                os.fdatasync(self._file)
        except OSError as error:
            os.ftruncate(self._file, end)
            raise OutboxFullError(f"{self._directory}: {error}") from None

    def replace(self, data: bytes) -> None:
        """Put these bytes in place of all."""
        temporary = self._directory / _TEMPORARY
        try:
            file = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            try:
                view = memoryview(data)
                while len(view):
                    view = view[os.write(file, view) :]
                os.fsync(file)
            except BaseException:
                os.close(file)
                raise
            os.rename(temporary, self._directory / _LOG)
        except OSError as error:
            raise OutboxFullError(f"{self._directory}: {error}") from None
        os.close(self._file)
        self._file = file
        self._sync_directory()

    def close(self) -> None:
        """Let others have it."""
        os.close(self._file)
        os.close(self._lock)

    def _begin(self) -> None:
        os.ftruncate(self._file, 0)
        os.write(self._file, MAGIC)
        os.fsync(self._file)
        self._sync_directory()

    def _locked(self) -> int:
        lock = os.open(self._directory / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            raise OutboxLockedError(f"{self._directory}") from None
        return lock

    def _sync_directory(self) -> None:
        directory = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
