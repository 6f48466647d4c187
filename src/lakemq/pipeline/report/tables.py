"""Rows as tables of a page. All that is not ours is escaped: keys and reasons are what users wrote."""

import html
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from lakemq.pipeline.transforms.wording import printable, utc

TEXT_MAX = 200
REASONS_SHOWN = 5
NUMBER, LONG = "n", "long"
NOTHING = '<span class="none">–</span>'

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: its heading, and the HTML of its cell."""

    heading: str
    cell: Callable[[Row], str]
    kind: str = ""  # how it is laid out: a number, long text, or neither


def safe(text: object) -> str:
    """Text for a page, whatever is in it; what is too long for a table is cut."""
    shown = printable(str(text))
    return html.escape(shown if len(shown) <= TEXT_MAX else shown[: TEXT_MAX - 1] + "…")


def text(name: str, heading: str, *, is_long: bool = False) -> Column:
    return Column(heading, lambda row: NOTHING if row[name] is None else safe(row[name]), LONG if is_long else "")


def count(name: str, heading: str) -> Column:
    return Column(heading, lambda row: NOTHING if row[name] is None else f"{row[name]:,}", NUMBER)


def share(name: str, heading: str) -> Column:
    """A part of a whole, with a bar."""

    def cell(row: Row) -> str:
        percent = 100 * min(max(float(row[name] or 0), 0.0), 1.0)
        return f'<span class="bar" style="--part:{percent:.1f}%"></span><span>{percent:.1f} %</span>'

    return Column(heading, cell, NUMBER)


def time(name: str, heading: str) -> Column:
    return Column(heading, lambda row: NOTHING if row[name] is None else _time(row[name]))


def place(partition: str, offset: str, heading: str) -> Column:
    """Where a message is: partition and offset."""
    return Column(heading, lambda row: f"{row[partition]}&thinsp;/&thinsp;{row[offset]:,}", NUMBER)


def reasons(name: str, heading: str) -> Column:
    """How often each, the most frequent ones."""

    def cell(row: Row) -> str:
        told = [
            f"<li><b>{one['failures']:,}</b>&times; {NOTHING if one['reason'] is None else safe(one['reason'])}</li>"
            for one in row[name][:REASONS_SHOWN]
        ]
        more = len(row[name]) - len(told)
        return f"<ul>{''.join(told)}{f'<li>and {more:,} more</li>' if more else ''}</ul>" if told else NOTHING

    return Column(heading, cell, LONG)


def _time(at: datetime) -> str:
    return f"<time><span>{utc(at):%Y-%m-%d}</span> <span>{utc(at):%H:%M:%S}</span></time>"


def table(columns: Sequence[Column], rows: Iterable[Row]) -> str:
    """A table that is moved sideways by itself where the page is narrow."""

    def line(tag: str, cells: Iterable[tuple[Column, str]]) -> str:
        inside = (
            f"<{tag} class={column.kind}>{cell}</{tag}>" if column.kind else f"<{tag}>{cell}</{tag}>"
            for column, cell in cells
        )
        return f"<tr>{''.join(inside)}</tr>"

    head = line("th", ((column, html.escape(column.heading)) for column in columns))
    body = "\n".join(line("td", ((column, column.cell(row)) for column in columns)) for row in rows)
    return f'<div class="wide"><table><thead>{head}</thead><tbody>\n{body}\n</tbody></table></div>'
