"""Lines, charts, tables and figures on rows that are written out; no Spark runs."""

import math
import xml.etree.ElementTree as ET
from datetime import UTC, datetime, timedelta

import pytest

pytest.importorskip("matplotlib", reason="plots need pip install 'lakemq[spark]'")
series = pytest.importorskip("lakemq.pipeline.report.series", reason="Spark needs pip install 'lakemq[spark]'")
charts = pytest.importorskip("lakemq.pipeline.report.charts")
figures = pytest.importorskip("lakemq.pipeline.report.figures")
sections = pytest.importorskip("lakemq.pipeline.report.sections")
tables = pytest.importorskip("lakemq.pipeline.report.tables")

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def minute(number):
    return NOON + timedelta(minutes=number)


def line(*points, label="x"):
    return series.Line(label, [minute(at) for at, _ in points], [float(value) for _, value in points])


def points(line):
    return [((at - NOON) / timedelta(minutes=1), value) for at, value in zip(line.times, line.values, strict=True)]


def test_spans_without_a_row_are_filled_from_the_first_of_all_to_the_last():
    one, other = series.filled([line((0, 5), (1, 6), (4, 7)), line((2, 9))], 0.0)
    assert points(one) == [(0, 5), (1, 6), (2, 0), (3, 0), (4, 7)]
    assert points(other) == [(0, 0), (1, 0), (2, 9), (3, 0), (4, 0)]


def test_too_many_spans_and_one_alone_stay_as_they_are():
    far = line((0, 1), (1, 1), (series.SLOTS_MAX + 2, 1))
    assert series.filled([far], 0.0) == [far]
    assert series.filled([line((3, 1))], 0.0) == [line((3, 1))]


def test_a_line_that_ends_early_is_held():
    short, long = series.held([line((0, 5), (1, 6)), line((3, 9))])
    assert points(short) == [(0, 5), (1, 6), (3, 6)]
    assert points(long) == [(3, 9)]


def test_the_largest_come_first_and_the_rest_is_summed():
    rows = [
        *({"at": minute(n), "topic": f"t{n}", "messages": 100 - n, "bytes": 1} for n in range(8)),
        {"at": minute(7), "topic": "t6", "messages": 2, "bytes": 1},
    ]
    labels = series.by_label(rows, lambda row: row["topic"])
    assert series.largest(labels, "messages", 2) == ["t0", "t1"]
    assert points(series.total("rest", labels["t6"] + labels["t7"], "messages")) == [(6, 94), (7, 95)]
    shown = next(one for one in sections.SECTIONS if one.frame == "rates").show(rows)
    assert "2 more topics" in shown
    assert "t6</li>" in shown
    assert "t5" not in shown


@pytest.mark.parametrize("draw", [charts.count_chart, charts.step_chart, charts.span_chart])
@pytest.mark.parametrize(
    "one",
    [line((0, 1)), line((0, 0), (1, 0)), line((0, 1), (1, 90_000)), line((0, 3), (1, math.nan), (2, 5), (3, math.nan))],
    ids=["one point", "zeros", "far apart", "with a hole"],
)
def test_a_chart_is_sound_xml_without_colours_of_its_own_for_text(draw, one):
    svg = draw("name", [one], charts.COLOURS[:1], is_narrow=True)
    root = ET.fromstring(svg)
    assert "currentColor" in svg
    assert charts._INK not in svg
    assert root.tag == "figure"
    assert "width" not in root[0].attrib
    assert draw("name", [one], charts.COLOURS[:1], is_narrow=True) == svg, "the same page twice differs"


def test_spans_far_apart_are_drawn_on_a_scale_that_shows_both():
    svg = charts.span_chart("name", [line((0, 2), (1, 90_000))], charts.COLOURS[:1])
    for text in ("10 ms", "100 ms", "1 s", "10 s", "1 min"):
        assert f">{text}</text>" in svg


@pytest.mark.parametrize(("value", "text"), [(0, "0"), (950, "950"), (1500, "1.5k"), (2e7, "20M"), (3e9, "3G")])
def test_numbers_of_an_axis_are_short(value, text):
    assert charts.short_count(value) == text


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (950, "950 B"), (999_600, "1 MB"), (1_234_567, "1.23 MB"), (10**19, "10,000 PB")]
)
def test_bytes_are_told_in_the_unit_that_suits_them(size, text):
    assert figures.bytes_text(size) == text


def test_the_lag_at_the_end_is_of_each_groups_last_row_and_of_topics_that_still_are():
    rows = [
        {"at": minute(0), "topic": "a", "topicId": 1, "group": "g", "lag": 1000},
        {"at": minute(1), "topic": "a", "topicId": 2, "group": "g", "lag": 5},
        {"at": minute(9), "topic": "a", "topicId": 2, "group": "g", "lag": 7},
        {"at": minute(3), "topic": "a", "topicId": 2, "group": "h", "lag": 20},
    ]
    assert "<b>27</b><span>lag at the end</span>" in figures.figures({"lag_history": rows})
    assert figures.figures({}) == ""


def test_text_of_users_is_escaped_cut_and_shown():
    assert tables.safe('<a href="x">') == "&lt;a href=&quot;x&quot;&gt;"
    assert tables.safe("a\u202eb\x00") == r"a\u202eb\x00"
    assert len(tables.safe("x" * 1000)) == tables.TEXT_MAX
    row = {"reasons": [{"reason": f"<{n}>", "failures": 1000 * n} for n in range(9, 0, -1)], "key": None, "share": 2}
    cell = tables.reasons("reasons", "").cell(row)
    assert "<b>9,000</b>&times; &lt;9&gt;" in cell
    assert "and 4 more" in cell
    assert tables.text("key", "").cell(row) == tables.NOTHING
    assert "100.0 %" in tables.share("share", "").cell(row)


@pytest.mark.parametrize("draw", [charts.count_chart, charts.step_chart, charts.span_chart])
def test_one_span_alone_has_an_axis_of_an_hour_and_not_of_years(draw):
    svg = draw("name", [line((0, 5))], charts.COLOURS[:1], is_narrow=True)
    year = line((0, 5)).times[0].year
    assert not any(str(other) in svg for other in (year - 2, year - 1, year + 1, year + 2))
    assert ":00" in svg or ":30" in svg


@pytest.mark.parametrize(
    "span_s", [0, 1, 59, 119, 150, 3599, 7199, 9300, 10_500, 86_399, 172_000, 250_000, 5e6, 6e7, 1e8]
)
def test_an_axis_fits_every_span(span_s):
    """Matplotlib warned of some, such as 2 hours and 35 minutes, and warnings are errors here."""
    first = datetime(2026, 11, 18, 15, 12, 7, tzinfo=UTC)
    shown = series.Line(
        "lag", [first, first + timedelta(seconds=span_s)][: 1 + bool(span_s)], [1.0, 2.0][: 1 + bool(span_s)]
    )
    assert "<svg" in charts.step_chart("lag", [shown], ["#123456"])
