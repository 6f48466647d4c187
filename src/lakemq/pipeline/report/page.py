"""The page around the sections: one file that fetches nothing, runs nothing, and suits phones and the dark."""

import html
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from lakemq.pipeline.transforms.wording import printable
from lakemq.version import VERSION

# No script and nothing from elsewhere, even if something slipped through the escaping.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"

STYLE = """
:root { color-scheme: light dark; --page: #f6f7f9; --card: #fff; --ink: #1b2129; --soft: #5c6672; --edge: #e1e5ea;
  --bar: #3b82f6; }
@media (prefers-color-scheme: dark) {
  :root { --page: #0f1318; --card: #181d24; --ink: #e4e8ed; --soft: #9aa4b0; --edge: #2b323b; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "DejaVu Sans", sans-serif; }
main { max-width: 58rem; margin: 0 auto; padding: 1.5rem 1rem 3rem; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 0; }
h3 { font-size: .95rem; margin: 1.2rem 0 0; overflow-wrap: anywhere; }
.soft, .note, .about { color: var(--soft); margin: .15rem 0 0; }
.note { font-size: .85rem; margin-top: .6rem; }
.none { color: var(--soft); }
.empty { margin: .8rem 0 0; color: var(--soft); font-style: italic; }
.figures { display: flex; flex-wrap: wrap; gap: .75rem; margin: 1.25rem 0 0; }
.figures div, section { background: var(--card); border: 1px solid var(--edge); border-radius: .6rem; }
.figures div { flex: 1 1 7rem; padding: .7rem .9rem; }
.figures b { display: block; font-size: 1.35rem; font-variant-numeric: tabular-nums; }
.figures span { color: var(--soft); font-size: .85rem; }
section { padding: 1rem 1.1rem 1.1rem; margin-top: 1rem; }
.chart { margin: .5rem 0 0; }
.chart svg { display: block; width: 100%; height: auto; }
.chart.narrow { display: none; }
@media (max-width: 40rem) { .chart.broad { display: none; } .chart.narrow { display: block; } }
.panels { display: flex; flex-wrap: wrap; gap: 0 1.5rem; }
.panels div { flex: 1 1 20rem; min-width: 0; max-width: 26.5rem; }
.chart text { font-family: inherit !important; }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: .15rem 1rem; margin: .6rem 0 0; padding: 0;
  font-size: .85rem; }
.legend li { overflow-wrap: anywhere; }
.legend i { display: inline-block; width: .7rem; height: .7rem; border-radius: 50%; margin-right: .4rem; }
.wide { overflow-x: auto; margin-top: .7rem; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; }
th, td { text-align: left; vertical-align: top; padding: .4rem .9rem .4rem 0; border-bottom: 1px solid var(--edge); }
th { color: var(--soft); font-weight: 600; font-size: .8rem; vertical-align: bottom; }
th:last-child, td:last-child { padding-right: 0; }
tbody tr:last-child td { border-bottom: 0; }
td { overflow-wrap: anywhere; min-width: 5.6rem; max-width: 24rem; }
td.long { min-width: 12rem; }
td.n, time span { white-space: nowrap; font-variant-numeric: tabular-nums; }
td.n, th.n { text-align: right; min-width: 0; }
td ul { list-style: none; margin: 0; padding: 0; }
.bar + span { display: inline-block; min-width: 3.4rem; }
.bar { display: inline-block; width: 4rem; height: .55rem; border-radius: .3rem; margin-right: .6rem;
  background: linear-gradient(90deg, var(--bar) var(--part), var(--edge) var(--part)); }
footer { color: var(--soft); font-size: .85rem; margin-top: 1.2rem; }
@media print { body { background: none; } section { break-inside: avoid; } .wide { overflow: visible; } }
"""


class Part(NamedTuple):
    """A section that is ready: HTML but for its title."""

    title: str
    about: str
    body: str


def page(title: str, about: str, head: str, parts: Sequence[Part], made_at: datetime) -> str:
    """The whole page. `title` and `about` are text, `head` and the parts' bodies are HTML."""
    name = html.escape(printable(title))
    made = made_at.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="referrer" content="no-referrer">
<title>{name}</title>
<style>{STYLE}</style>
</head>
<body>
<main>
<h1>{name}</h1>
{f'<p class="soft">{html.escape(printable(about))}</p>' if about else ""}
{head}
{"".join(_section(part) for part in parts)}
<footer>Made {made} by LakeMQ {html.escape(VERSION)}. All times are UTC.</footer>
</main>
</body>
</html>
"""


def _section(part: Part) -> str:
    return f"""<section>
<h2>{html.escape(part.title)}</h2>
<p class="about">{html.escape(part.about)}</p>
{part.body}
</section>
"""
