"""The report: one page that needs nothing else, with the charts a person would look at."""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any

from penstock.spark.lake.charts import bars, lines
from penstock.spark.lake.pipeline import tables

MOST_SERIES = 5
MOST_ERRORS = 10

Series = dict[str, list[tuple[float, float]]]


def write_report(lake: Path, target: Path) -> int:
    """Write the page; how many charts it has."""
    found = tables(lake)
    charts = [chart for chart in _charts(found) if chart]
    target.write_text(_page(lake, charts, _circuits(found)), encoding="utf-8")
    return len(charts)


def _charts(found: dict[str, Any]) -> list[str]:
    hours = found["hours"].to_pylist() if "hours" in found else []
    charts = []
    if hours:
        busiest = _busiest(hours)
        done = _per_queue(hours, busiest, "done")
        charts.append(lines("Entries done per hour", done, unit="entries"))
        for kind, title in (("waiting", "Waiting for a worker"), ("processing", "Time in the handler")):
            series: Series = {}
            for queue in busiest[:3]:
                for quantile in ("p50", "p95"):
                    series |= _per_queue(hours, [queue], f"{kind}_{quantile}", f"{queue} {quantile}")
            charts.append(lines(title, series, unit="seconds"))
        trouble: Series = {}
        for state in ("retried", "dead", "reaped", "expired"):
            sums: defaultdict[float, float] = defaultdict(float)
            for row in hours:
                sums[_moment(row["hour"])] += row.get(state) or 0
            if any(sums.values()):
                trouble[state] = sorted(sums.items())
        charts.append(lines("Attempts that did not succeed, per hour", trouble, unit="attempts") if trouble else "")
    if "errors" in found:
        counts: defaultdict[str, int] = defaultdict(int)
        for row in found["errors"].to_pylist():
            counts[f"{row['queue']}: {row['error']}"] += row["count"]
        top = sorted(counts.items(), key=lambda one: (-one[1], one[0]))[:MOST_ERRORS]
        charts.append(bars("Most frequent errors", top, unit="times") if top else "")
    if "lag" in found:
        lag: Series = defaultdict(list)
        for row in sorted(found["lag"].to_pylist(), key=lambda one: one["hour"]):
            lag[f"{row['log']} · {row['group']}"].append((_moment(row["hour"]), row["most"]))
        top_lag = dict(sorted(lag.items(), key=lambda one: -max(value for _, value in one[1]))[:MOST_SERIES])
        charts.append(lines("Records behind, at most per hour", top_lag, unit="records"))
    return charts


def _busiest(hours: list[dict[str, Any]]) -> list[str]:
    sums: defaultdict[str, int] = defaultdict(int)
    for row in hours:
        sums[row["queue"]] += row["attempts"]
    return sorted(sums, key=lambda queue: (-sums[queue], queue))[:MOST_SERIES]


def _per_queue(hours: list[dict[str, Any]], queues: list[str], column: str, name: str | None = None) -> Series:
    made: Series = {}
    for queue in queues:
        points = [(_moment(row["hour"]), row.get(column)) for row in hours if row["queue"] == queue]
        good = sorted((at, float(value)) for at, value in points if value is not None)
        if good:
            made[name or queue] = good
    return made


def _moment(hour: datetime) -> float:
    return (hour if hour.tzinfo else hour.replace(tzinfo=UTC)).timestamp()


def _circuits(found: dict[str, Any]) -> str:
    rows = found["circuits"].to_pylist() if "circuits" in found else []
    if not rows:
        return ""
    cells = "".join(
        f"<tr><td>{escape(row['circuit'])}</td><td>{_shown(row['since'])}</td><td>{_shown(row['until'])}</td>"
        f"<td class=number>{'' if row['seconds'] is None else format(row['seconds'], ',.0f')}</td>"
        f"<td>{escape(row['why'] or '')}</td></tr>"
        for row in sorted(rows, key=lambda one: one["since"], reverse=True)[:20]
    )
    head = "<tr><th>circuit</th><th>open since</th><th>until</th><th>seconds</th><th>why</th></tr>"
    return f"<section><h2>Circuits that were open</h2><table>{head}{cells}</table></section>"


def _shown(moment: datetime | None) -> str:
    return "still open" if moment is None else f"{moment:%Y-%m-%d %H:%M:%S}"


STYLE = """
:root { color-scheme: light dark; --ink: #1f2933; --soft: #667; --line: #d8dce2; --paper: #fff; --card: #f7f8fa }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8eaee; --soft: #99a; --line: #3a4048; --paper: #16181c; --card: #1e2126 } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 2rem auto;
  max-width: 1100px; padding: 0 1rem }
h1 { font-size: 1.5rem } h2 { font-size: 1.05rem; margin: 0 0 .5rem }
p { color: var(--soft) } main { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fit, minmax(460px, 1fr)) }
section { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 1rem; overflow-x: auto }
svg { width: 100%; height: auto } text { fill: var(--soft); font: 12px system-ui, sans-serif }
.axis { stroke: var(--line) } table { border-collapse: collapse; width: 100% }
th, td { text-align: left; border-bottom: 1px solid var(--line); padding: .25rem .5rem } .number { text-align: right }
"""


def _page(lake: Path, charts: list[str], more: str) -> str:
    made = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    sections = "".join(f"<section>{chart}</section>" for chart in charts)
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"<title>Penstock report</title><style>{STYLE}</style>"
        f"<h1>What the queues did</h1><p>Made {made} from {escape(lake.name)}. Times are UTC.</p>"
        f"<main>{sections}{more}</main></html>\n"
    )
