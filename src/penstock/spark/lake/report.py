"""The report: one self-contained page, with the most important figures at the top."""

from __future__ import annotations

from datetime import timedelta
from html import escape
from pathlib import Path

from penstock.clock import SystemClock, from_micros
from penstock.spark.lake import charts
from penstock.spark.lake.figures import FAILED, ReportFigures, Series, Total, figures_of, over_time, span_in_words
from penstock.spark.lake.reading import LakeReader

MOST_ERRORS = 10
MOST_CIRCUITS = 20


def write_report(lake: str | Path, target: Path) -> int:
    """Write the page. Returns how many charts it has."""
    reader = LakeReader(lake)
    figures = figures_of(reader)
    drawn = [(title, chart) for title, chart in _charts(figures) if chart]
    target.write_text(_page(reader.url, figures, drawn), encoding="utf-8")
    return len(drawn)


def _charts(figures: ReportFigures) -> list[tuple[str, str]]:
    width = figures.bin_seconds
    per = span_in_words(width)
    done = {name: over_time(bins, width, "done") for name, bins in figures.by_bin.items()}
    failed = {state: _all_families(figures, state) for state in FAILED if figures.total.counts[state]}
    waiting, processing = (_quantiles(figures, kind) for kind in ("waiting", "processing"))
    return [
        (title := f"Entries done {per}", charts.bars(title, done, unit="entries", width=width)),
        (title := "Waiting for a worker", charts.lines(title, waiting, unit="p95 in seconds")),
        (title := "Time in the handler", charts.lines(title, processing, unit="p95 in seconds")),
        (title := f"Attempts that failed {per}", charts.bars(title, failed, unit="attempts", width=width)),
        (title := "Records behind, at most per hour", charts.lines(title, figures.lag, unit="records")),
    ]


def _quantiles(figures: ReportFigures, kind: str) -> Series:
    """The 95th percentile of every family in every bin."""
    series = {
        name: [(at, value) for at, total in sorted(bins.items()) if (value := total.quantile(kind, 0.95)) is not None]
        for name, bins in figures.by_bin.items()
    }
    return {name: points for name, points in series.items() if points}


def _all_families(figures: ReportFigures, state: str) -> list[tuple[float, float]]:
    sums: dict[float, float] = {}
    for bins in figures.by_bin.values():
        for at, total in bins.items():
            if total.counts[state]:
                sums[at] = sums.get(at, 0.0) + total.counts[state]
    return sorted(sums.items())


# --- the page ------------------------------------------------------------------------------------------


def _page(lake: str, figures: ReportFigures, drawn: list[tuple[str, str]]) -> str:
    sections = "".join(f"<section><h2>{escape(title)}</h2>{chart}</section>" for title, chart in drawn)
    return (
        "<!doctype html><html lang=en><meta charset=utf-8>"
        "<meta name=viewport content='width=device-width, initial-scale=1'>"
        f"<title>Penstock report</title><style>{STYLE}</style>"
        f"<header><h1>What the queues did</h1><p>{_span(figures)}</p></header>"
        f"<main>{_totals(figures.total)}{_families(figures)}<div class=charts>{sections}</div>"
        f"{_errors(figures)}{_circuits(figures)}</main>"
        f"<footer><p>Written {from_micros(SystemClock().micros()):%Y-%m-%d %H:%M} UTC from the lake "
        f"{escape(lake.rpartition('/')[2])}. Times are UTC.</p></footer></html>\n"
    )


def _span(figures: ReportFigures) -> str:
    if figures.first is None or figures.last is None:
        return "No attempt has ended yet."
    same_day = figures.first.date() == figures.last.date()
    until = f"{figures.last:%H:%M:%S}" if same_day else f"{figures.last:%d %B %Y, %H:%M}"
    return f"{figures.first:%d %B %Y, %H:%M:%S} to {until} UTC"


def _totals(total: Total) -> str:
    if not total.attempts:
        return ""
    final = total.counts["done"] + total.counts["dead"] + total.counts["expired"]
    tiles = [
        ("done", f"{total.counts['done']:,}", "entries"),
        ("succeeded", f"{total.counts['done'] / final:.1%}" if final else "–", "of those that ended"),
        ("retried", f"{total.counts['retried'] + total.counts['reaped']:,}", "attempts"),
        ("dead", f"{total.counts['dead']:,}", "entries"),
        ("waited", _time(total.quantile("waiting", 0.95)), "p95"),
        ("took", _time(total.quantile("processing", 0.95)), "p95"),
    ]
    shown = "".join(
        f"<div class='tile{' bad' if name == 'dead' and total.counts['dead'] else ''}'>"
        f"<span>{name}</span><b>{value}</b><small>{unit}</small></div>"
        for name, value, unit in tiles
    )
    return f"<div class=tiles>{shown}</div>"


def _families(figures: ReportFigures) -> str:
    if not figures.families:
        return ""
    head = (
        "<tr><th>queues<th class=number>done<th class=number>failed attempts<th class=number>dead"
        "<th class=number>waited, p50<th class=number>p95<th class=number>took, p50<th class=number>p95</tr>"
    )
    rows = "".join(
        f"<tr><td>{escape(name)}<td class=number>{total.counts['done']:,}<td class=number>{total.failed:,}"
        f"<td class=number>{total.counts['dead']:,}"
        + "".join(
            f"<td class=number>{_time(total.quantile(kind, rank))}"
            for kind in ("waiting", "processing")
            for rank in (0.5, 0.95)
        )
        for name, total in figures.families.items()
    )
    return _table("By queue", head, rows)


def _errors(figures: ReportFigures) -> str:
    if not figures.errors:
        return ""
    most = figures.errors[0][2]
    rows = "".join(
        f"<tr><td class=number>{count:,}<td><meter max={most} value={count}></meter><td>{escape(queue)}"
        f"<td><code>{escape(error)}</code>"
        for queue, error, count in figures.errors[:MOST_ERRORS]
    )
    more = len(figures.errors) - MOST_ERRORS
    rest = f"<p>And {more:,} other errors.</p>" if more > 0 else ""
    head = "<tr><th class=number>times<th><th>queue<th>error</tr>"
    return _table("Most frequent errors", head, rows, rest)


def _circuits(figures: ReportFigures) -> str:
    if not figures.circuits:
        return ""
    latest = sorted(figures.circuits, key=lambda circuit: circuit["since"], reverse=True)[:MOST_CIRCUITS]
    rows = "".join(
        f"<tr><td>{escape(row['circuit'])}<td>{row['since']:%Y-%m-%d %H:%M:%S}"
        f"<td>{'still open' if row['until'] is None else format(row['until'], '%Y-%m-%d %H:%M:%S')}"
        f"<td class=number>{_time(row['seconds'])}<td>{escape(row['why'] or '')}"
        for row in latest
    )
    head = "<tr><th>circuit<th>open since<th>until<th class=number>for<th>why</tr>"
    return _table("Circuits that were open", head, rows)


def _table(title: str, head: str, rows: str, below: str = "") -> str:
    """A table; where it is wider than a phone, the keyboard scrolls it too."""
    return f"<section tabindex=0 aria-label='{title}'><h2>{title}</h2><table>{head}{rows}</table>{below}</section>"


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 60 else str(timedelta(seconds=round(seconds)))


STYLE = """
:root { color-scheme: light dark; --ink: #1f2933; --soft: #5b6472; --line: #d8dce2; --paper: #fff; --card: #f7f8fa;
  --bad: #b42318 }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8eaee; --soft: #9aa4b2; --line: #3a4048; --paper: #16181c; --card: #1e2126; --bad: #f97066 } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 2rem auto;
  max-width: 1180px; padding: 0 1rem }
h1 { font-size: 1.6rem; margin: 0 } h2 { font-size: 1.05rem; margin: 0 0 .5rem } p, small, th { color: var(--soft) }
header p { margin: .2rem 0 1.2rem } main { display: grid; gap: 1rem; grid-template-columns: minmax(0, 1fr) }
.charts { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 30rem), 1fr)) }
.tiles { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fit, minmax(9rem, 1fr)) }
.tile, section { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: .8rem 1rem }
.tile span, .tile small { display: block; color: var(--soft) } .tile b { font-size: 1.6rem; font-weight: 600 }
.tile.bad b { color: var(--bad) } section { overflow-x: auto } svg { width: 100%; height: auto }
svg text { font-family: system-ui, sans-serif !important }
table { border-collapse: collapse; width: 100% } th { font-weight: 500; text-align: left }
th, td { border-bottom: 1px solid var(--line); padding: .3rem .6rem; vertical-align: top }
tr:last-child td { border: 0 }
.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap }
code { overflow-wrap: anywhere }
meter { width: 6rem }
"""
