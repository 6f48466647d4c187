"""What we need of a Delta log and deltalake does not offer: all positions, entries that last, torn entries removed.

An entry is a file `<20 digits>.json` with one action a line; a checkpoint is the state at a version, as Parquet.
deltalake makes an entry appear whole (it links a finished file), but never syncs it: after a power loss the newest one
may be empty or cut. Nobody was told of it, since we tell only after `sync`, so it may go.
"""

import contextlib
import json
import re
from collections.abc import Iterable

import pyarrow as pa
import pyarrow.fs as pa_fs
import pyarrow.parquet as pq

from lakemq.pipeline.lake.errors import DamagedLakeError
from lakemq.pipeline.lake.place import Place

DIRECTORY = "_delta_log"
ACTION_COUNT = "lakemqActions"  # in an entry's commitInfo: how many actions follow
_HINT = f"{DIRECTORY}/_last_checkpoint"
_ENTRY = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(?:\..+)?\.parquet")


def entry_path(version: int) -> str:
    return f"{DIRECTORY}/{version:020d}.json"


class Transactions:
    """All `txn` actions of a table: application id → number. Remembers the newest it was asked for, and reads on."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._version = -1
        self._found: dict[str, int] = {}

    def at(self, version: int) -> dict[str, int]:
        """As they were at a version."""
        found = None
        if 0 <= self._version <= version:
            # Asked so long ago that the entries between are cleaned up: begin anew.
            with contextlib.suppress(FileNotFoundError):
                found = _followed(self._place, self._version, version, self._found)
        if found is None:
            base, known = _at_checkpoint(self._place, version)
            found = _followed(self._place, base, version, known)
        if version >= self._version:
            self._version, self._found = version, found
        return found


def _followed(place: Place, base: int, version: int, known: dict[str, int]) -> dict[str, int]:
    found = dict(known)
    for number in range(base + 1, version + 1):
        for line in place.read(entry_path(number)).splitlines():
            if b'"txn"' in line:
                action = json.loads(line).get("txn")
                if action is not None:
                    found[action["appId"]] = int(action["version"])
    return found


def sync(place: Place, versions: Iterable[int]) -> None:
    """Return once these entries survive a power loss. One that log clean-up has removed is in a checkpoint by now."""
    place.sync(*(path for path in map(entry_path, versions) if place.is_local and place.exists(path)))


def sync_checkpoint(place: Place, version: int) -> None:
    """The same for the checkpoint of a version, and the hint that points to it."""
    names = [name for name in _names(place) if name.startswith(f"{version:020d}.checkpoint")] if place.is_local else []
    if names:
        place.sync(*(f"{DIRECTORY}/{name}" for name in names), _HINT)


def sync_all(place: Place) -> None:
    """The same for all entries after the newest checkpoint: those of a process that was killed before it could."""
    if place.is_local and place.exists(DIRECTORY):
        names = _names(place)
        checkpoints = _versions(names, _CHECKPOINT)
        entries = [version for version in _versions(names, _ENTRY) if not checkpoints or version >= checkpoints[-1]]
        sync(place, entries)


def remove_torn(place: Place) -> list[str]:
    """Remove what a power loss left half written at the log's end; returns the names. Only under `RepairLock`."""
    if not place.is_local or not place.exists(DIRECTORY):
        return []
    removed = []
    names = _names(place)
    base = -1
    for name in sorted((name for name in names if _CHECKPOINT.fullmatch(name)), reverse=True):
        if _is_whole_checkpoint(place, name):
            base = int(name[:20])
            break
        removed.append(name)
    if place.exists(_HINT) and _hinted(place) not in _versions([*set(names) - set(removed)], _CHECKPOINT):
        removed.append(_HINT.removeprefix(f"{DIRECTORY}/"))  # a hint that leads nowhere keeps the table from opening
    versions = [version for version in _versions(names, _ENTRY) if version > base]
    torn = [version for version in versions if not _is_whole_entry(place, version)]
    if torn and torn != versions[-len(torn) :]:
        raise DamagedLakeError(f"{place.uri}/{entry_path(torn[0])} is damaged, and newer entries follow it")
    removed += [entry_path(version).removeprefix(f"{DIRECTORY}/") for version in reversed(torn)]
    for name in removed:
        place.remove(f"{DIRECTORY}/{name}")
    if removed:
        place.sync(DIRECTORY)
    return removed


def _at_checkpoint(place: Place, version: int) -> tuple[int, dict[str, int]]:
    """The newest checkpoint not after a version, and its transactions; -1 if there is none."""
    hinted = _hinted(place)
    single = f"{hinted:020d}.checkpoint.parquet"
    if 0 <= hinted <= version and place.exists(f"{DIRECTORY}/{single}"):
        return hinted, _checkpointed(place, [single])  # the usual way: no listing of a long log
    names = _names(place)
    fitting = [number for number in _versions(names, _CHECKPOINT) if number <= version]
    if not fitting:
        return -1, {}
    return fitting[-1], _checkpointed(place, [name for name in names if name.startswith(f"{fitting[-1]:020d}.check")])


def _hinted(place: Place) -> int:
    if not place.exists(_HINT):
        return -1
    try:
        return int(json.loads(place.read(_HINT))["version"])
    except (ValueError, KeyError, TypeError):  # only a hint
        return -1


def _checkpointed(place: Place, names: list[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for name in names:
        with pq.ParquetFile(place.filesystem.open_input_file(f"{DIRECTORY}/{name}")) as file:
            for row in file.read(columns=["txn"]).column("txn").drop_null().to_pylist():
                if row["appId"] is not None:
                    found[row["appId"]] = int(row["version"])
    return found


def _names(place: Place) -> list[str]:
    selector = pa_fs.FileSelector(DIRECTORY, allow_not_found=True)
    return [info.base_name for info in place.filesystem.get_file_info(selector)]


def _versions(names: list[str], pattern: re.Pattern[str]) -> list[int]:
    return sorted({int(found[1]) for found in map(pattern.fullmatch, names) if found})


def _is_whole_entry(place: Place, version: int) -> bool:
    try:
        actions = [json.loads(line) for line in place.read(entry_path(version)).splitlines() if line.strip()]
        promised = [action["commitInfo"].get(ACTION_COUNT) for action in actions if "commitInfo" in action]
        if promised and promised[0] is not None:  # ours: a cut between two lines shows too
            return int(promised[0]) == sum(1 for action in actions if action.keys() & {"add", "remove", "txn"})
    except (ValueError, TypeError, AttributeError):
        return False
    return bool(actions)


def _is_whole_checkpoint(place: Place, name: str) -> bool:
    try:
        with pq.ParquetFile(place.filesystem.open_input_file(f"{DIRECTORY}/{name}")) as file:
            file.read()
    except (pa.ArrowException, OSError, ValueError):
        return False
    return True
