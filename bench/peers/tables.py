"""Results as text: a table for the terminal and the same in Markdown."""

from __future__ import annotations

from peers.records import OURS, Records
from peers.workloads import AIMS, WORKLOADS

SERVER_ROWS = (
    ("start", "start until the first answer, s"),
    ("memory-idle", "memory without work, MB"),
    ("memory-1000-topics", "memory with 1 000 topics, MB"),
    ("memory-backlog", "memory with 10 000 000 messages of 100 B, MB"),
    ("disk-100b", "bytes on disk for a message of 100 B"),
)


def number(value: float | None) -> str:
    if value is None:
        return "–"
    if value >= 1000:
        return f"{value:,.0f}".replace(",", " ")
    return f"{value:.3g}"


def cell(results: Records, name: str, peer: str, driver: str | None) -> str:
    """The median, and beside a peer's how LakeMQ stands to it."""
    value = results.median(name, peer, driver=driver)
    if value is None:
        return "–"
    mark = "*" if any(record.is_load_bound for record in results.of(name, peer, driver)) else ""
    if peer == OURS:
        return number(value) + mark
    ratio = results.ratio(name, peer, driver)
    return f"{number(value)}{mark} ({number(ratio)})"


def rows(results: Records, driver: str) -> list[list[str]]:
    """One line for each workload that was run with this driver."""
    names = {record.workload for record in results.records if record.driver == driver}
    wanted = [(workload.name, f"{workload.title}, {workload.unit}") for workload in WORKLOADS]
    listed = SERVER_ROWS if driver == "server" else wanted
    return [
        [title, *(cell(results, name, peer, driver) for peer in results.peers)]
        for name, title in listed
        if name in names
    ]


def aims(results: Records) -> list[list[str]]:
    titles = {workload.name: workload.title for workload in WORKLOADS} | dict(SERVER_ROWS)
    found = []
    for aim in AIMS:
        ratio = results.ratio(aim.workload, aim.peer, None if aim.workload.startswith("memory") else "load")
        if ratio is None:
            found.append([titles[aim.workload], aim.text, "–", "not measured"])
            continue
        is_met = ratio <= aim.bound if aim.is_cost else ratio >= aim.bound
        found.append([titles[aim.workload], aim.text, number(ratio), "met" if is_met else "**not met**"])
    return found


def growth(results: Records) -> list[list[str]]:
    """One line a curve and peer; the last column is its end over its beginning."""
    curves: dict[tuple[str, str], list[tuple[int, float, str]]] = {}
    for record in results.records:
        name, at, size = record.workload.partition("@")
        if at:
            curves.setdefault((name, record.peer), []).append((int(size), record.value, record.unit))
    return [
        [
            name.removeprefix("growth-"),
            peer,
            ", ".join(f"{size:,}: {number(value)}".replace(",", " ", size >= 1000) for size, value, _ in points),
            points[0][2],
            number(points[-1][1] / points[0][1]) if points[0][1] else "–",
        ]
        for (name, peer), points in curves.items()
    ]


def notes(results: Records) -> list[str]:
    """What a reader must know of single figures."""
    found: dict[str, None] = {}
    for record in results.records:
        if record.note:
            found[f"{record.workload}, {record.peer}: {record.note}"] = None
    return list(found)


def in_markdown(head: list[str], lines: list[list[str]]) -> str:
    return "\n".join(
        ["| " + " | ".join(head) + " |", "|" + "---|" * len(head), *("| " + " | ".join(line) + " |" for line in lines)]
    )


def in_columns(head: list[str], lines: list[list[str]]) -> str:
    widths = [max(len(line[n]) for line in [head, *lines]) for n in range(len(head))]
    return "\n".join(
        "  ".join(word.ljust(width) for word, width in zip(line, widths, strict=True)) for line in [head, *lines]
    )


def sections(results: Records) -> list[tuple[str, list[str], list[list[str]]]]:
    peers = list(results.peers)
    return [
        ("Brokers under the same load program", ["work", *peers], rows(results, "load")),
        ("With each one's own client or load tool", ["work", *peers], rows(results, "client")),
        ("From outside", ["what", *peers], rows(results, "server")),
        ("Aims", ["work", "aim", "found", ""], aims(results)),
        ("Growth", ["curve", "peer", "points", "unit", "last / first"], growth(results)),
    ]


EXPLAIN = (
    "Medians of all rounds; in brackets LakeMQ over the peer, as the median of the rounds' ratios (for times and "
    "memory less is better). * : the load program was at its limit in at least one round, so the server may be faster "
    "than told."
)


def markdown(results: Records) -> str:
    parts = ["# LakeMQ and its peers", "", EXPLAIN, ""]
    parts += [", ".join(f"{name} {value}" for name, value in results.machine.items()) + ".", ""]
    for title, head, lines in sections(results):
        if lines:
            parts += [f"## {title}", "", in_markdown(head, lines), ""]
    parts += ["## What each setting means", ""]
    for name, said in results.peers.items():
        parts += [f"* {name}: {said['title']}. cache: {said['cache']}; fsync: {said['fsync']}."]
    if found := notes(results):
        parts += ["", "## Notes on single figures", "", *(f"* {note}" for note in found)]
    return "\n".join(parts) + "\n"


def plain(results: Records) -> str:
    parts = []
    for title, head, lines in sections(results):
        if lines:
            parts += [title, "", in_columns(head, lines), ""]
    return "\n".join([*parts, EXPLAIN])
