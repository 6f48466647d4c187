"""Disks for tests: the same test body runs on the real and on the simulated one."""

from lakemq.testing.disk import SimDisk
from lakemq.world.disk import RealDisk

DISKS = {"real": RealDisk, "sim": lambda root: SimDisk()}
"""How to get an empty disk of each kind, given an empty directory: parameters for a module's `disk` fixture."""


def put(disk, path, data, *, is_synced=True):
    """Write a whole file, durable with its name if synced."""
    file = disk.open(path, create=True)
    file.truncate(0)
    file.write_at(0, [data])
    if is_synced:
        file.sync()
        disk.sync_dir(path.rpartition("/")[0])
    file.close()


def get(disk, path):
    """All bytes of a file."""
    file = disk.open(path)
    try:
        return file.read_at(0, file.size())
    finally:
        file.close()


def dump(disk, directory=""):
    """Path → bytes of every file, path → None of every directory."""
    found = {}
    for name in disk.names(directory):
        path = f"{directory}/{name}" if directory else name
        if disk.is_dir(path):
            found[path] = None
            found |= dump(disk, path)
        else:
            found[path] = get(disk, path)
    return found
