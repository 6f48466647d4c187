"""Rows over time as lines: which are drawn, and what stands where there is no row. Needs no Spark."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

from lakemq.pipeline.transforms.wording import utc

LINES_MAX = 6
SLOTS_MAX = 5_000
"""Spans that are filled in; with more of them a hole is narrower than a pixel."""

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a chart: a value for each of its times."""

    label: str
    times: Sequence[datetime]
    values: Sequence[float]


def by_label(rows: Iterable[Row], label: Callable[[Row], str]) -> dict[str, list[Row]]:
    """The rows of each label in the order of time."""
    found: dict[str, list[Row]] = {}
    for row in sorted(rows, key=lambda row: row["at"]):
        found.setdefault(label(row), []).append(row)
    return found


def largest(lines: Mapping[str, Sequence[Row]], size: str, count: int = LINES_MAX) -> list[str]:
    """The labels with most of `size`, the largest first."""
    totals = {label: sum(row[size] or 0 for row in rows) for label, rows in lines.items()}
    return sorted(totals, key=lambda label: (-totals[label], label))[:count]


def line(label: str, rows: Sequence[Row], value: str) -> Line:
    """What the rows tell, and nothing between them."""
    return Line(label, [utc(row["at"]) for row in rows], [float(row[value]) for row in rows])


def total(label: str, rows: Iterable[Row], value: str) -> Line:
    """The sum of all rows of the same time."""
    sums: dict[datetime, float] = {}
    for row in rows:
        at = utc(row["at"])
        sums[at] = sums.get(at, 0.0) + float(row[value])
    times = sorted(sums)
    return Line(label, times, [sums[at] for at in times])


def filled(lines: Sequence[Line], missing: float) -> list[Line]:
    """Lines in which each span has a value: `missing` where there was no row, from the first of all to the last."""
    times = sorted({at for one in lines for at in one.times})
    step = min((after - before for before, after in pairwise(times)), default=timedelta(0))
    if not step or (times[-1] - times[0]) / step > SLOTS_MAX:
        return list(lines)
    slots = [times[0] + place * step for place in range(round((times[-1] - times[0]) / step) + 1)]
    # A span may be no multiple of another one where rows of different spans were mixed: what was told stays.
    slots = sorted({*slots, *times})
    result = []
    for one in lines:
        told = dict(zip(one.times, one.values, strict=True))
        result.append(Line(one.label, slots, [told.get(at, missing) for at in slots]))
    return result


def held(lines: Sequence[Line]) -> list[Line]:
    """Lines that go on with their last value to the end of the longest."""
    end = max((one.times[-1] for one in lines), default=None)
    return [
        one
        if end is None or one.times[-1] == end
        else Line(one.label, [*one.times, end], [*one.values, one.values[-1]])
        for one in lines
    ]


def is_alone(values: Sequence[float], place: int) -> bool:
    """Whether a value has no neighbour that a line could lead to."""
    around = (values[at] for at in (place - 1, place + 1) if 0 <= at < len(values))
    return not math.isnan(values[place]) and all(math.isnan(one) for one in around)
