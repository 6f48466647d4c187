"""Where a lake or a table lies: a directory on this machine's disks, or in an object store.

Paths inside are relative, with `/`, and taken as they are: nothing in them is percent-decoded.
On local disks what is written can be made to last through a power loss (`sync`). Object stores have no such call and
need none: what was put is kept. They have no locks either, see `lock.py`.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pa_fs
from deltalake.fs import DeltaStorageHandler

from lakemq.pipeline.lake.errors import PlaceNotSupportedError

# What deltalake opens without a file system of Hadoop's.
SCHEMES = ("s3", "s3a", "gs", "gcs", "az", "azure", "adl", "abfs", "abfss", "memory")
_HDFS = ("hdfs", "webhdfs", "viewfs")


@dataclass(frozen=True)
class Place:
    """A directory by its URI, with what the object store needs to know (`storage_options` of deltalake)."""

    uri: str  # an absolute path if local
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)  # may hold credentials

    @classmethod
    def of(cls, uri: str | os.PathLike[str], storage_options: Mapping[str, str] | None = None) -> "Place":
        """The place that a user named: a path, `file://` and a path, or the URI of an object store."""
        text = os.fspath(uri)
        if text.startswith("file://"):
            text = text.removeprefix("file://")
        scheme = text.partition("://")[0].lower() if "://" in text else ""
        if scheme and scheme not in SCHEMES:
            what = "HDFS is not supported" if scheme in _HDFS else f"{scheme}:// is not supported"
            raise PlaceNotSupportedError(f"a lake cannot be at {text}: {what}")
        return cls(text.rstrip("/") if "://" in text else os.path.abspath(text), dict(storage_options or {}))

    @property
    def is_local(self) -> bool:
        return "://" not in self.uri

    @cached_property
    def filesystem(self) -> Any:
        """pyarrow's file system, rooted here."""
        if self.is_local:
            return pa_fs.SubTreeFileSystem(self.uri, pa_fs.LocalFileSystem())
        return pa_fs.PyFileSystem(_ObjectStore(self.uri, dict(self.storage_options)))

    @property
    def delta_uri(self) -> str:
        """As deltalake takes it: percent-encoded, it decodes a plain path too."""
        return Path(self.uri).as_uri() if self.is_local else self.uri

    @property
    def spark_uri(self) -> str:
        """As Spark takes it: not percent-encoded, Hadoop's paths never are."""
        return f"file://{self.uri}" if self.is_local else self.uri

    def child(self, name: str) -> "Place":
        return Place(f"{self.uri}/{name}", self.storage_options)

    def path(self, relative: str) -> str:
        """For local calls only."""
        assert self.is_local
        return f"{self.uri}/{relative}" if relative else self.uri

    def exists(self, relative: str) -> bool:
        return bool(self.filesystem.get_file_info(relative).type != pa_fs.FileType.NotFound)

    def read(self, relative: str) -> bytes:
        with self.filesystem.open_input_stream(relative) as file:
            return bytes(file.read())

    def size(self, relative: str) -> int:
        return int(self.filesystem.get_file_info(relative).size)

    def make_directory(self, relative: str) -> None:
        if self.is_local:  # an object store has none
            os.makedirs(self.path(relative), exist_ok=True)

    def remove(self, relative: str) -> None:
        """Remove a file; one that is not there does no harm."""
        if self.exists(relative):
            self.filesystem.delete_file(relative)

    def sync(self, *relatives: str) -> None:
        """Return once these files, and the names of all directories on the way to them, survive a power loss."""
        if not self.is_local:
            return
        directories = set()
        for relative in relatives:
            _fsync(self.path(relative))
            while relative:
                relative = os.path.dirname(relative)
                directories.add(relative)
        for directory in sorted(directories, reverse=True):
            _fsync(self.path(directory))


def _fsync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class _ObjectStore(DeltaStorageHandler):
    # deltalake's handler, with a stream that takes what pyarrow writes: buffers, where it insists on bytes.
    def open_output_stream(self, path: str, metadata: dict[str, str] | None = None) -> Any:
        return pa.PythonFile(_BytesOnly(self._handler.open_output_stream(path, metadata)), mode="w")


class _BytesOnly:
    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.closed = False

    def write(self, data: Any) -> int:
        return int(self._stream.write(bytes(data)))

    def flush(self) -> None:
        self._stream.flush()

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._stream.close()

    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False
