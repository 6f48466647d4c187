"""What was measured: one record for each peer, workload and round; medians and ratios of them."""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

OURS = "lakemq"
# The load program had no time left while the server had some: the figure is the load program's, not the server's.
LOAD_BOUND_CORES = 0.93
OTHERS_MAX = 0.25  # cores that others used meanwhile; above it a record is marked


@dataclass(frozen=True)
class Record:
    """One measurement. `value` is what is compared; `note` says what is wrong with it, if something is."""

    workload: str
    peer: str
    round: int
    value: float
    unit: str
    driver: str = "load"  # load: load.c; client: the peer's own client or tool; server: looked at from outside
    p50_us: float = 0.0
    p99_us: float = 0.0
    p999_us: float = 0.0
    load_cpu: float = 0.0
    server_cpu: float = 0.0
    cpu_us: float = 0.0  # the server's, per message
    others: float = 0.0
    note: str = ""

    @property
    def is_load_bound(self) -> bool:
        cores = os.cpu_count() or 1
        return self.load_cpu >= LOAD_BOUND_CORES and self.server_cpu < (cores - 1) * LOAD_BOUND_CORES


@dataclass
class Records:
    """All of a run, and where it was made."""

    machine: dict[str, object] = field(default_factory=dict)
    peers: dict[str, dict[str, str]] = field(default_factory=dict)
    records: list[Record] = field(default_factory=list)

    def add(self, records: Iterable[Record]) -> None:
        self.records += records

    def of(self, workload: str, peer: str, driver: str | None = None) -> list[Record]:
        return [
            record
            for record in self.records
            if record.workload == workload and record.peer == peer and driver in (None, record.driver)
        ]

    def median(self, workload: str, peer: str, name: str = "value", driver: str | None = None) -> float | None:
        found = [getattr(record, name) for record in self.of(workload, peer, driver) if record.value]
        return statistics.median(found) if found else None

    def ratio(self, workload: str, peer: str, driver: str | None = None) -> float | None:
        """LakeMQ over the peer: the median of the rounds' ratios, so that a slow minute weighs on both."""
        ours = {record.round: record.value for record in self.of(workload, OURS, driver)}
        pairs = [
            ours[record.round] / record.value
            for record in self.of(workload, peer, driver)
            if record.value and ours.get(record.round)
        ]
        return statistics.median(pairs) if pairs else None

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        found = {"machine": self.machine, "peers": self.peers, "records": [asdict(record) for record in self.records]}
        path.write_text(json.dumps(found, indent=1) + "\n")

    @classmethod
    def read(cls, path: Path) -> Records:
        found = json.loads(path.read_text())
        return cls(found["machine"], found["peers"], [Record(**record) for record in found["records"]])


def machine() -> dict[str, object]:
    """What a reader needs to judge the figures."""
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.machine(),
    )
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cores": os.cpu_count(),
        "processor": model,
        "memory_gb": round(memory / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "load_average_before": os.getloadavg()[0],
        "when": time.strftime("%Y-%m-%d %H:%M", time.gmtime()),
    }
