"""From frames to a file."""

import difflib
import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from pyspark.sql import DataFrame

from lakemq.pipeline.errors import OptionError
from lakemq.pipeline.report.figures import figures
from lakemq.pipeline.report.page import Part, page
from lakemq.pipeline.report.sections import SECTIONS, Section
from lakemq.pipeline.report.series import Row

ROWS_MAX = 50
POINTS_MAX = 20_000


def write_report(
    path: str | os.PathLike[str],
    frames: Mapping[str, DataFrame],
    title: str = "LakeMQ report",
    *,
    about: str = "",
    rows_max: int = ROWS_MAX,
    points_max: int = POINTS_MAX,
    made_at: datetime | None = None,
) -> Path:
    """Write one HTML page that needs nothing else, and return where it is.

    A frame has the name of the function that made it: `rates`, `end_to_end_latency`, `hop_latency`, `lag_history`,
    `hot_keys`, `retry_report`, `dead_letter_report`, `duplicates`, `app_cost`. One that is not given is left out, one
    without rows says so. At most `rows_max` rows of a table and the latest `points_max` of a plot leave Spark, with one
    job for each frame. An old page is replaced in one step.
    """
    _check(frames)
    whole: dict[str, Sequence[Row]] = {}
    parts = []
    for section in SECTIONS:
        if section.frame not in frames:
            continue
        limit = points_max if section.is_over_time else rows_max
        rows: list[Row] = [row.asDict() for row in section.ordered(frames[section.frame]).limit(limit + 1).collect()]
        if len(rows) <= limit:
            whole[section.frame] = rows
        parts.append(Part(section.title, section.about, _body(section, rows, limit)))
    text = page(title, about, figures(whole), parts, made_at or datetime.now(UTC))
    return _replace(Path(path), text)


def _check(frames: Mapping[str, DataFrame]) -> None:
    known = [section.frame for section in SECTIONS]
    for name in frames:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"Did you mean {near[0]!r}?" if near else f"There are {', '.join(known)}"
            raise OptionError(f"A report has no section {name!r}", hint)


def _body(section: Section, rows: list[Row], limit: int) -> str:
    if not rows:
        return f'<p class="empty">{section.empty}</p>'
    body = section.show(rows[:limit])
    if len(rows) <= limit:
        return body
    return (
        f'{body}<p class="note">Only the {"latest" if section.is_over_time else "first"} {limit:,} rows are shown.</p>'
    )


def _replace(path: Path, text: str) -> Path:
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.unfinished")
    try:
        unfinished.write_text(text, encoding="utf-8", newline="\n")
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    return path
