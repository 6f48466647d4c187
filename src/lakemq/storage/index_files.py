"""Open index files, the longest unused closed first: many partitions, few descriptors."""

from collections import OrderedDict

from lakemq.storage.disk import OUT_OF_FILES, Disk, File


class IndexFileCache:
    """Opens index files on demand and keeps at most `open_files_max` of them open."""

    def __init__(self, disk: Disk, open_files_max: int = 256) -> None:
        self._disk = disk
        self._open_files_max = open_files_max
        self._open: OrderedDict[str, File] = OrderedDict()
        self._written: set[str] = set()

    def names(self, directory: str) -> list[str]:
        """What is in a directory."""
        return self._disk.names(directory)

    def make_dir(self, path: str) -> None:
        """Make a directory and those above it."""
        self._disk.make_dir(path)

    def open(self, path: str, *, create: bool = False) -> File:
        """An open file, which the cache closes when it likes: use it at once. To write, say `create`."""
        if create:
            self._written.add(path)
        file = self._open.get(path)
        if file is not None:
            self._open.move_to_end(path)
            return file
        while len(self._open) >= self._open_files_max:
            self._open.popitem(last=False)[1].close()
        try:
            file = self._disk.open(path, create=create)
        except OSError as error:
            if error.errno not in OUT_OF_FILES or not self._open:
                raise
            self.close()  # they can all be opened again (F26)
            file = self._disk.open(path, create=create)
        self._open[path] = file
        return file

    def take_written(self) -> set[str]:
        """The files written since this was asked last."""
        written, self._written = self._written, set()
        return written

    def remove(self, path: str) -> None:
        """Close and remove."""
        self._written.discard(path)
        file = self._open.pop(path, None)
        if file is not None:
            file.close()
        self._disk.remove(path)

    def close(self) -> None:
        """Close all."""
        for file in self._open.values():
            file.close()
        self._open.clear()
