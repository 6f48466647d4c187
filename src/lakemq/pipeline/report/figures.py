"""The few numbers at the head of a report. Needs no Spark."""

import html
from collections.abc import Mapping, Sequence

from lakemq.pipeline.report.series import Row
from lakemq.pipeline.transforms.wording import span_text


def figures(whole: Mapping[str, Sequence[Row]]) -> str:
    """Of frames all of whose rows are here; one that was cut would tell too little, and is not given."""
    found: list[tuple[str, str]] = []
    if "rates" in whole:
        found.append(("messages stored", f"{_sum(whole['rates'], 'messages'):,}"))
        found.append(("stored", bytes_text(_sum(whole["rates"], "bytes"))))
    slowest = max((row["p99Ms"] for row in whole.get("end_to_end_latency", ())), default=None)
    if slowest is not None:
        found.append(("99 % acked within, at worst", span_text(slowest)))
    if "lag_history" in whole:
        found.append(("lag at the end", f"{_lag_at_end(whole['lag_history']):,}"))
    if "retry_report" in whole:
        found.append(("messages retried", f"{_sum(whole['retry_report'], 'messages'):,}"))
    if "dead_letter_report" in whole:
        found.append(("dead letters", f"{_sum(whole['dead_letter_report'], 'messages'):,}"))
    tiles = (f"<div><b>{html.escape(value)}</b><span>{html.escape(name)}</span></div>" for name, value in found)
    return f'<div class="figures">{"".join(tiles)}</div>' if found else ""


def bytes_text(size: int) -> str:
    """Bytes in the unit that suits them, by thousands: 950 B, 1.2 MB."""
    value, unit = float(size), "B"
    for larger in ("kB", "MB", "GB", "TB", "PB"):
        if value < 999.5:
            break
        value, unit = value / 1000, larger
    return f"{value:.3g} {unit}" if value < 999.5 else f"{value:,.0f} {unit}"


def _sum(rows: Sequence[Row], name: str) -> int:
    return sum(row[name] or 0 for row in rows)


def _lag_at_end(rows: Sequence[Row]) -> int:
    last: dict[tuple[object, ...], Row] = {}
    newest: dict[object, int] = {}
    for row in sorted(rows, key=lambda row: row["at"]):
        last[(row["topic"], row["topicId"], row["group"])] = row
        newest[row["topic"]] = row["topicId"]  # an earlier topic of that name is gone, and its lag with it
    return sum(row["lag"] for row in last.values() if newest[row["topic"]] == row["topicId"])
