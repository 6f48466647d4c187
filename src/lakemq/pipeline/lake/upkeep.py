"""What a running archive does for its lake between two batches, within a budget: small files made larger, and now and
then those removed that nobody needs.

Files are gathered by tiers: as many with about the same number of rows become one of the next tier, and then one of the
next. So each row is copied a few times in all, however many batches there are; and a topic's day has some dozens of
files, not thousands. What is left of a day when it is over is gathered once more.
"""

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime

from lakemq.errors import LakeMQError
from lakemq.pipeline.lake.layout import UPKEEP_FILE
from lakemq.pipeline.lake.maintenance import DATA_TABLES, VACUUM_HOURS, Compacted, merge, vacuum
from lakemq.pipeline.lake.store import Lake
from lakemq.pipeline.lake.table_view import ActiveFile, TableView

TARGET_BYTES = 128 << 20
_TIER_FILES = 16  # of a tier that become one; the next tier is that many times larger
_DAY_OVER_FILES = 4  # of a day that is over, and gets no more
_LOOK_EVERY = 4  # batches: none of them alone makes a tier full
_VACUUM_EVERY_MS = 24 * 3_600_000


@dataclass(frozen=True, slots=True)
class UpkeepPolicy:
    """How much an archive does for its lake; 0 for nothing of it."""

    bytes_per_batch: int = 32 << 20  # of files that are copied into larger ones; what is not used is saved up
    vacuum_hours: int = VACUUM_HOURS  # files that no version of the last hours names are removed, once a day


class Upkeep:
    """Called after each batch, in the archive's own process: it alone holds the lock."""

    def __init__(self, lake: Lake, policy: UpkeepPolicy, clock: Callable[[], float] = time.time) -> None:
        self._lake = lake
        self._policy = policy
        self._clock = clock
        self._credit = 0
        self._batches = 0
        self.error: LakeMQError | OSError | None = None  # the last one: it stops no batch

    def after_batch(self) -> list[Compacted]:
        """What a batch's share of the budget allows."""
        self._credit = min(self._credit + self._policy.bytes_per_batch, 2 * TARGET_BYTES)
        self._batches += 1
        return self._turn() if self._batches % _LOOK_EVERY == 0 else []

    def after_run(self) -> list[Compacted]:
        """The same once more for all the batches of a run that ends."""
        self._credit = max(self._credit, self._policy.bytes_per_batch)
        return self._turn()

    def _turn(self) -> list[Compacted]:
        done: list[Compacted] = []
        try:
            if self._policy.bytes_per_batch:
                done += self._compact()
            self._vacuum()
        except (LakeMQError, OSError) as error:  # a lake with many small files is a lake all the same
            self.error = error
        return done

    def _compact(self) -> Iterator[Compacted]:
        for name in DATA_TABLES:
            table = self._lake.table(name)
            for files in full_tiers(table.at(), self._today()):
                size = sum(file.size for file in files)
                if size <= self._credit:
                    self._credit -= size
                    yield merge(table, files)

    def _vacuum(self) -> None:
        if not self._policy.vacuum_hours:
            return
        now_ms = int(self._clock() * 1000)
        place = self._lake.place
        try:
            before_ms = int(json.loads(place.read(UPKEEP_FILE))["vacuumed_ms"])
        except (OSError, ValueError, KeyError, TypeError):  # never, or nobody knows
            before_ms = None
        if before_ms is not None and 0 <= now_ms - before_ms < _VACUUM_EVERY_MS:
            return
        with place.filesystem.open_output_stream(UPKEEP_FILE) as file:
            file.write(json.dumps({"vacuumed_ms": now_ms}).encode())
        if before_ms is not None:  # a lake's first day has nothing to remove
            vacuum(self._lake, retention_hours=self._policy.vacuum_hours)

    def _today(self) -> date:
        return datetime.fromtimestamp(self._clock(), UTC).date()


def full_tiers(view: TableView, today: date) -> Iterator[list[ActiveFile]]:
    """Files of one topic and day that should be one: a full tier, or what is left of a day that is over."""
    by_tier: dict[tuple[str, date, int], list[ActiveFile]] = {}
    for file in view.files():
        if file.topic is not None and file.dt is not None and file.size < TARGET_BYTES // 2:
            tier = -1 if file.dt < today else _tier(file.rows)
            by_tier.setdefault((file.topic, file.dt, tier), []).append(file)
    for (_, _, tier), files in sorted(by_tier.items(), key=lambda entry: entry[0]):
        least = _DAY_OVER_FILES if tier < 0 else _TIER_FILES
        gathered: list[ActiveFile] = []
        for file in files:
            gathered.append(file)
            if sum(one.size for one in gathered) >= TARGET_BYTES:
                yield gathered
                gathered = []
        if len(gathered) >= least:
            yield gathered


def _tier(rows: int) -> int:
    """By rows: bytes would not add up, for in a small file most of them are not rows."""
    tier = 0
    while rows >= _TIER_FILES ** (tier + 1):
        tier += 1
    return tier
