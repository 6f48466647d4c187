"""Lines as a picture: SVG that stands inside a page, takes the page's colour and font, and holds no text of users.

Drawn with matplotlib's objects, without pyplot, which would keep figures and choose a window system.
"""

import io
import math
import re
from collections.abc import Callable, Sequence

import matplotlib
from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from lakemq.pipeline.report.series import Line, is_alone
from lakemq.pipeline.transforms.wording import span_text

COLOURS = ("#3b82f6", "#d97706", "#059669", "#8b5cf6", "#ef4444", "#0891b2")
OTHERS = "#8a8f98"
"""In the middle between black and white: seen on both."""

_INK = "#010203"  # no line has it: becomes the colour of the page's text
_NARROW_IN, _BROAD_IN = (3.7, 2.1), (7.6, 2.4)
_SPANS_MS = (1, 10, 100, 1000, 10_000, 60_000, 600_000, 3_600_000, 36_000_000, 86_400_000, 864_000_000)
_LOG_FROM = 30.0
"""How many times the smallest value the largest is when the scale becomes logarithmic."""

_ALONE_DAYS = 0.5 / 24

Draw = Callable[[Axes], None]


def count_chart(name: str, lines: Sequence[Line], colours: Sequence[str], *, is_narrow: bool = False) -> str:
    """Numbers of messages, from zero on."""

    def draw(axes: Axes) -> None:
        for one, colour in zip(lines, colours, strict=True):
            times = _days(one)
            axes.plot(times, one.values, color=colour, linewidth=1.6, marker=_marker(one), markersize=4)
            axes.fill_between(times, one.values, color=colour, alpha=0.10, linewidth=0)
        _count_axis(axes)

    return _figure(name, draw, is_narrow)


def step_chart(name: str, lines: Sequence[Line], colours: Sequence[str], *, is_narrow: bool = False) -> str:
    """Numbers that stay as they are until the next one."""

    def draw(axes: Axes) -> None:
        for one, colour in zip(lines, colours, strict=True):
            times = _days(one)
            axes.plot(times, one.values, color=colour, linewidth=1.6, drawstyle="steps-post", marker=_marker(one), ms=4)
            axes.fill_between(times, one.values, color=colour, alpha=0.10, linewidth=0, step="post")
        _count_axis(axes)

    return _figure(name, draw, is_narrow)


def span_chart(name: str, lines: Sequence[Line], colours: Sequence[str], *, is_narrow: bool = False) -> str:
    """Durations in milliseconds; logarithmic if they differ much. A value that is not a number is a hole."""

    def draw(axes: Axes) -> None:
        for one, colour in zip(lines, colours, strict=True):
            times = _days(one)
            axes.plot(times, one.values, color=colour, linewidth=1.6)
            alone = [place for place in range(len(one.values)) if is_alone(one.values, place)]
            axes.plot([times[at] for at in alone], [one.values[at] for at in alone], ".", color=colour, markersize=5)
        _span_axis(axes, [value for one in lines for value in one.values if not math.isnan(value)])

    return _figure(name, draw, is_narrow)


def _days(line: Line) -> list[float]:
    """Times as matplotlib counts them."""
    return [at.timestamp() / 86_400 for at in line.times]


def _marker(line: Line) -> str:
    return "o" if len(line.times) == 1 else ""


def _count_axis(axes: Axes) -> None:
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=4, integer=True, min_n_ticks=2))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: short_count(value)))


def _span_axis(axes: Axes, values: Sequence[float]) -> None:
    positive = [value for value in values if value > 0]
    if positive and max(positive) > _LOG_FROM * min(positive):
        axes.set_yscale("log", nonpositive="clip")
        low, high = min(positive) / 1.5, max(positive) * 1.5
        axes.set_ylim(low, high)
        axes.yaxis.set_major_locator(FixedLocator([one for one in _SPANS_MS if low <= one <= high]))
        axes.yaxis.set_minor_locator(NullLocator())
    else:
        axes.set_ylim(0, max(positive, default=1) * 1.15)
        axes.yaxis.set_major_locator(MaxNLocator(nbins=4, min_n_ticks=2))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: span_text(value)))


def short_count(value: float) -> str:
    """A number for an axis: 950, 1.5k, 20M."""
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def _figure(name: str, draw: Draw, is_narrow: bool) -> str:
    """Drawn once for phones and once for more room: the same picture made smaller could not be read."""
    narrow = _svg(f"{name}-narrow", draw, _NARROW_IN)
    if is_narrow:
        return f'<figure class="chart">{narrow}</figure>'
    broad = _svg(f"{name}-broad", draw, _BROAD_IN)
    return f'<figure class="chart broad">{broad}</figure><figure class="chart narrow">{narrow}</figure>'


def _svg(name: str, draw: Draw, size_in: tuple[float, float]) -> str:
    # The writer of SVG knows these two from nowhere else; what was set before is back afterwards.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure = Figure(figsize=size_in, layout="constrained")
        figure.patch.set_visible(False)
        axes = figure.add_subplot()
        draw(axes)
        _dress(axes)
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    return _inline(name, out.getvalue())


def _dress(axes: Axes) -> None:
    axes.patch.set_visible(False)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set(color=_INK, alpha=0.35)
    axes.grid(visible=True, axis="y", color=_INK, alpha=0.14, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(axis="both", colors=_INK, labelsize=9, length=0, pad=5)
    first, last = axes.dataLim.intervalx
    if first == last:  # one span alone: matplotlib would show years around it
        axes.set_xlim(first - _ALONE_DAYS, last + _ALONE_DAYS)
    # With three ticks at least there are spans, 2.5 to 3 hours among them, for which matplotlib has no interval.
    locator = AutoDateLocator(minticks=2, maxticks=6, tz="UTC")  # type: ignore[no-untyped-call]  # as matplotlib has it
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator, tz="UTC"))  # type: ignore[no-untyped-call]
    axes.xaxis.get_offset_text().set(color=_INK, fontsize=9)
    axes.margins(x=0.01)


def _inline(name: str, svg: str) -> str:
    """SVG to stand inside of HTML: names of parts that no other picture on the page has, and the page's own colour."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'\b(id="|url\(#|href="#)', rf"\g<1>{name}-", svg)
    return svg.replace(_INK, "currentColor").strip()
