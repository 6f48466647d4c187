"""A real file system in a file, whose power can be cut (LOOPFS).

The shutdown ioctl without a flush of the log drops all that is not yet on the device, as a power cut would: synced data
stays, dirty pages and the log's tail are gone. Works on ext4 and xfs.
"""

import ctypes
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

from .mounts import detach, mount, need_mounts, needed, run, unmount
from .tools import CannotRunError, need_tools

KINDS = ("ext4", "xfs")
_MAKE = {
    "ext4": ("mkfs.ext4", "-q", "-F", "-E", "nodiscard"),
    "xfs": ("mkfs.xfs", "-q", "-f", "-K"),
}
_IMAGE_BYTES = 512 << 20  # sparse; xfs wants 300 MB
_SHUTDOWN = 0x8004587D  # EXT4_IOC_SHUTDOWN and XFS_IOC_GOINGDOWN are the same number
_NO_LOG_FLUSH = 2
_SYNC_FILE_RANGE_WRITE = 2
_SYNC_FILE_RANGE_WAIT_AFTER = 4


class LoopFs:
    """One file system; `root` is where it is mounted."""

    def __init__(self, kind: str, image: Path, root: Path) -> None:
        self.kind = kind
        self.root = root
        self._image = image

    def mount(self) -> None:
        """Mount it; the log is replayed if it did not end in peace."""
        mount(str(self._image), self.root, "-t", self.kind, "-o", "loop")

    def write_by_page(self) -> None:
        """Let the device take one page at a time.

        A loop device calls a write well of which its file took only a part, so a larger one could get lost in silence,
        which no sync would ever tell. Holds until the next mount.
        """
        device = os.stat(self.root).st_dev
        path = f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/queue/max_sectors_kb"
        try:
            Path(path).write_text("4")
        except OSError as error:
            raise CannotRunError(f"requests cannot be made small: {error}") from error

    def unmount(self) -> None:
        """Unmount it. Nobody may have a file of it open."""
        unmount(self.root)

    def cut_power(self) -> None:
        """All that is not on the device is gone; every later call fails, until it is mounted again."""
        fd = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.ioctl(fd, _SHUTDOWN, _NO_LOG_FLUSH.to_bytes(4, "little"))
        finally:
            os.close(fd)

    def power_on(self) -> None:
        """After a cut: unmount what is dead and mount what is left."""
        self.unmount()
        self.mount()


@contextmanager
def loop_fs(kind: str, directory: Path, size_bytes: int = _IMAGE_BYTES, *make_options: str) -> Iterator[LoopFs]:
    """A new file system, mounted; its image is in `directory`. CannotRunError where that cannot be had."""
    need_mounts()
    need_tools(_MAKE[kind][0])
    if not os.path.exists("/dev/loop-control"):
        raise CannotRunError("this system has no loop devices")
    image, root = directory / f"{kind}.image", directory / kind
    with open(image, "wb") as file:
        file.truncate(size_bytes)
    root.mkdir(exist_ok=True)
    fs = LoopFs(kind, image, root)
    with needed():
        run(*_MAKE[kind], *make_options, str(image))
        fs.mount()
    try:
        yield fs
    finally:
        detach(root)
        image.unlink()


def write_back_some(root: Path, rng: Random) -> None:
    """Let some dirty pages reach the device, any of them: the kernel may do that at any time and in any order (F14)."""
    sync_file_range = ctypes.CDLL(None, use_errno=True).sync_file_range
    sync_file_range.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    paths = [path for path in root.rglob("*") if path.is_file()]
    for path in rng.sample(paths, min(len(paths), 8)):
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:  # gone in the meantime
            continue
        try:
            size = os.fstat(fd).st_size
            if rng.random() < 0.2:
                os.fsync(fd)  # its size and name too
            for _ in range(4):
                start = rng.randrange(size // 4096 + 1) * 4096
                length = rng.choice((4096, 16384, 1 << 20))
                sync_file_range(fd, start, length, _SYNC_FILE_RANGE_WRITE | _SYNC_FILE_RANGE_WAIT_AFTER)
        except OSError:
            continue
        finally:
            os.close(fd)
