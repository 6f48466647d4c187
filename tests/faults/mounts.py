"""Mounts that cannot be left behind: context managers take them down, and if this process dies, the kernel does.

The process moves into a mount namespace of its own first. What it mounts is seen by its children only, and goes with
the last of them; a loop device goes with its mount.
"""

import ctypes
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .tools import CannotRunError, need_root, need_tools

_CLONE_NEWNS = 0x00020000
_MS_REC = 0x4000
_MS_SLAVE = 1 << 19
_COMMAND_SECONDS_MAX = 60
_is_private = False


def need_mounts() -> None:
    """Move into a mount namespace of our own; CannotRunError where that is not allowed."""
    global _is_private
    need_root()
    need_tools("mount", "umount")
    if _is_private:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNS):
        raise CannotRunError(f"no mount namespace of our own: {os.strerror(ctypes.get_errno())}")
    # A slave, not private: what the machine unmounts elsewhere must not be held busy by our copy.
    if libc.mount(b"none", b"/", None, _MS_REC | _MS_SLAVE, None):
        raise CannotRunError(f"mounts cannot be kept apart: {os.strerror(ctypes.get_errno())}")
    _is_private = True


class ToolError(Exception):
    """A tool failed; its own words."""


def run(*command: str) -> None:
    """Run a tool to its end, or ToolError."""
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=_COMMAND_SECONDS_MAX
    )
    if done.returncode:
        raise ToolError(f"{' '.join(command)}: {(done.stderr or done.stdout).strip()}")


@contextmanager
def needed() -> Iterator[None]:
    """For a first try: what fails in here is what this machine cannot do."""
    try:
        yield
    except ToolError as error:
        raise CannotRunError(str(error)) from error


def mount(what: str, where: Path, *options: str) -> None:
    """Mount, or ToolError."""
    run("mount", *options, what, str(where))


def unmount(where: Path, seconds_max: float = 20) -> None:
    """Unmount, patiently: a process that was killed may take a moment to let go."""
    deadline = time.monotonic() + seconds_max
    while True:
        try:
            return run("umount", str(where))
        except ToolError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


@contextmanager
def tmpfs(where: Path, size_bytes: int) -> Iterator[Path]:
    """A file system in memory of that size."""
    need_mounts()
    where.mkdir(parents=True, exist_ok=True)
    with needed():
        mount("tmpfs", where, "-t", "tmpfs", "-o", f"size={size_bytes}")
    try:
        yield where
    finally:
        detach(where)


def detach(where: Path) -> None:
    """Take a mount down for good, if it is there; what is still open in it goes when it is closed."""
    if os.path.ismount(where):
        try:
            unmount(where, 2)
        except ToolError:
            run("umount", "--lazy", str(where))
