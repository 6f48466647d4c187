"""The whole page, from the lake's tables on."""

import re
from datetime import UTC, datetime

import pytest

from pipeline.report.html_page import Page

transforms = pytest.importorskip("lakemq.pipeline.transforms", reason="Spark needs pip install 'lakemq[spark]'")
pytest.importorskip("matplotlib", reason="plots need pip install 'lakemq[spark]'")
report = pytest.importorskip("lakemq.pipeline.report")
errors = pytest.importorskip("lakemq.pipeline.errors")

pytestmark = pytest.mark.spark

EVIL = "</td><script>alert('x')</script><img src=x onerror=alert(1)>"
MADE = datetime(2026, 3, 2, 9, 30, tzinfo=UTC)


def all_frames(meta, events):
    return {
        "rates": transforms.rates(meta),
        "end_to_end_latency": transforms.end_to_end_latency(events),
        "hop_latency": transforms.hop_latency(events),
        "lag_history": transforms.lag_history(events),
        "hot_keys": transforms.hot_keys(meta),
        "retry_report": transforms.retry_report(events),
        "dead_letter_report": transforms.dead_letter_report(events),
        "duplicates": transforms.duplicates(meta),
        "app_cost": transforms.app_cost(meta, events),
    }


def test_a_page_of_everything_is_whole_and_needs_nothing_else(meta, events, tmp_path):
    names = {"topic": "$or\\ders & <b>", "app": EVIL}
    messages = meta(*({"offset": n, "stored": n * 30, "key": EVIL, "bytes_": 1_234_567, **names} for n in range(4)))
    happened = events(
        {"kind": "produced", "count": 4, "elapsed": 5, **names},
        {"kind": "delivered", "count": 4, "when": 1, "elapsed": 1000, **names},
        {"kind": "acked", "count": 3, "when": 2, "elapsed": 1000, **names},
        {"kind": "failed", "offset": 3, "when": 2, "elapsed": 1000, "reason": EVIL, **names},
        {"kind": "dead", "offset": 3, "count": 1, "when": 90, "reason": EVIL, **names},
    )
    path = tmp_path / "report.html"
    path.write_text("an old page")
    assert report.write_report(str(path), all_frames(messages, happened), EVIL, made_at=MADE) == path
    assert [one.name for one in tmp_path.iterdir()] == ["report.html"]

    text = path.read_text(encoding="utf-8")
    page = Page(text)
    assert "script" not in page.tags
    assert "img" not in page.tags
    assert page.policy.startswith("default-src 'none'")
    assert all(value.startswith("#") for _, value in page.links), page.links
    assert all(target.startswith("#") for target in re.findall(r"url\(([^)]*)\)", text))
    assert "@import" not in text
    assert len(set(page.ids)) == len(page.ids), "two pictures share the name of a part"
    assert list(page.sections) == [
        *("Messages stored", "From sent to acked", "Hops", "Lag", "Hot keys", "Retries", "Dead letters"),
        *("Duplicates", "Cost of apps"),
    ]
    assert EVIL in page.sections["Hot keys"]
    assert "4,938,268" in page.sections["Hot keys"]
    assert "100.0 %" in page.sections["Hot keys"]
    assert f"1× {EVIL}" in page.sections["Retries"]
    assert EVIL in page.sections["Dead letters"]
    assert "2026-03-01 12:01:30" in page.sections["Dead letters"]
    assert "$or\\ders & <b>" in page.sections["Messages stored"]
    assert page.tags.count("svg") == 2 + 1 + 2 + 2
    assert "Made 2026-03-02 09:30 UTC" in text
    assert "<b>4.94 MB</b><span>stored</span>" in text
    assert "<b>0</b><span>lag at the end</span>" in text


def test_what_is_empty_says_so_and_what_is_not_given_is_left_out(meta, events, tmp_path):
    frames = all_frames(meta(), events())
    del frames["duplicates"]
    page = Page(report.write_report(tmp_path / "report.html", frames).read_text())
    assert "Duplicates" not in page.sections
    assert "No message was stored." in page.sections["Messages stored"]
    assert "There are no dead letters." in page.sections["Dead letters"]
    assert "svg" not in page.tags
    assert "table" not in page.tags


def test_only_so_many_rows_leave_spark_and_the_page_says_so(meta, tmp_path):
    rows = meta(*({"offset": n, "stored": 60 * n, "key": f"key {n}", "bytes_": 1000} for n in range(5)))
    frames = {"rates": transforms.rates(rows), "hot_keys": transforms.hot_keys(rows)}
    text = report.write_report(tmp_path / "cut.html", frames, rows_max=3, points_max=4).read_text()
    page = Page(text)
    assert "Only the first 3 rows are shown." in page.sections["Hot keys"]
    assert "key 2" in page.sections["Hot keys"]
    assert "key 3" not in page.sections["Hot keys"]
    assert "Only the latest 4 rows are shown." in page.sections["Messages stored"]
    assert "messages stored" not in text, "a sum of some rows is no sum"


def test_a_section_that_there_is_not_is_refused(tmp_path):
    with pytest.raises(errors.OptionError, match=r"no section 'hotkeys'\. Did you mean 'hot_keys'"):
        report.write_report(tmp_path / "report.html", {"hotkeys": None})
    assert list(tmp_path.iterdir()) == []
