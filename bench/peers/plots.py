"""Results as pictures: one of all workloads, one of latencies, one of growth."""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt  # the backend is chosen first: there is no screen
from matplotlib.ticker import LogLocator, NullFormatter  # the same

from peers.records import OURS, Records  # the same
from peers.workloads import WORKLOADS  # the same

COLORS = {
    "lakemq": "#0b6e99",
    "kafka": "#4a4a4a",
    "rocketmq": "#d9730d",
    "nats": "#0f7b6c",
    "rabbitmq": "#ad1a72",
    "redis": "#e03e3e",
}


def draw(results: Records, directory: Path) -> list[Path]:
    directory.mkdir(parents=True, exist_ok=True)
    made = []
    for name, picture in (("rates", rates), ("latency", latencies), ("growth", growth)):
        if picture(results):
            path = directory / f"peers-{name}.png"
            plt.savefig(path, dpi=110, bbox_inches="tight")
            made.append(path)
        plt.close("all")
    return made


def rates(results: Records) -> bool:
    """How many times as fast LakeMQ is, workload by workload; right of 1 it is ahead."""
    peers = [peer for peer in results.peers if peer != OURS]
    wanted = [workload for workload in WORKLOADS if workload.unit != "us" and results.median(workload.name, OURS)]
    if not wanted or not peers:
        return False
    _, axes = plt.subplots(figsize=(9, 0.35 * len(wanted) * max(len(peers), 2) / 2 + 1.2))
    height = 0.8 / len(peers)
    for place, peer in enumerate(peers):
        ratios = [results.ratio(workload.name, peer, "load") for workload in wanted]
        y = [row + place * height for row, ratio in enumerate(ratios) if ratio]
        axes.barh(y, [ratio for ratio in ratios if ratio], height * 0.9, label=peer, color=COLORS.get(peer))
    axes.axvline(1, color="black", linewidth=1)
    axes.set_xscale("log")
    axes.set_yticks([row + 0.4 - height / 2 for row in range(len(wanted))], [workload.name for workload in wanted])
    axes.invert_yaxis()
    axes.set_xlabel("messages/s of LakeMQ over the peer's (log scale)")
    axes.legend(loc="lower right")
    axes.grid(axis="x", which="both", alpha=0.2)
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.margins(y=0.01)
    axes.set_title("LakeMQ against its peers: right of 1 it is faster")
    return True


def latencies(results: Records) -> bool:
    wanted = [workload for workload in WORKLOADS if workload.unit == "us" and results.median(workload.name, OURS)]
    if not wanted:
        return False
    figure, all_axes = plt.subplots(1, len(wanted), figsize=(4 * len(wanted), 3.5), squeeze=False, sharey=True)
    for axes, workload in zip(all_axes[0], wanted, strict=True):
        for peer in results.peers:
            found = [results.median(workload.name, peer, name, "load") for name in ("p50_us", "p99_us", "p999_us")]
            if all(found):
                values = [value / 1000 for value in found if value]
                axes.plot(["p50", "p99", "p99.9"], values, marker="o", label=peer, color=COLORS.get(peer))
        axes.set_yscale("log")
        axes.set_title(workload.name)
        axes.grid(which="both", alpha=0.2)
    all_axes[0][0].set_ylabel("ms from send to receipt")
    all_axes[0][-1].legend(loc="center left", bbox_to_anchor=(1.02, 0.5))
    figure.suptitle("End-to-end latency at a fixed rate")
    figure.tight_layout()
    return True


def growth(results: Records) -> bool:
    curves: dict[str, dict[str, list[tuple[int, float]]]] = {}
    units = {}
    for record in results.records:
        name, at, size = record.workload.partition("@")
        if at:
            curves.setdefault(name, {}).setdefault(record.peer, []).append((int(size), record.value))
            units[name] = record.unit
    if not curves:
        return False
    columns = 3
    lines = -(-len(curves) // columns)
    figure, all_axes = plt.subplots(lines, columns, figsize=(4.2 * columns, 3.2 * lines), squeeze=False)
    for axes in all_axes.flat[len(curves) :]:
        axes.set_visible(False)
    for axes, (name, peers) in zip(all_axes.flat, curves.items(), strict=False):
        for peer, points in peers.items():
            axes.plot(*zip(*points, strict=True), marker="o", label=peer, color=COLORS.get(peer))
        axes.set_xscale("log")
        axes.set_ylim(bottom=0)
        axes.set_title(name.removeprefix("growth-"))
        axes.set_ylabel(units[name])
        axes.grid(alpha=0.2)
    lines_of = {line.get_label(): line for axes in all_axes.flat for line in axes.get_lines()}
    figure.legend(lines_of.values(), lines_of.keys(), loc="center left", bbox_to_anchor=(1.0, 0.5))
    figure.suptitle("The same work with more around it")
    figure.tight_layout()
    return True
