"""Charts as SVG for a page: drawn by matplotlib, which needs no browser, and stripped of what a page does not need.

The colours are distinct for colour-blind readers, and legible on light and dark backgrounds.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from datetime import UTC
from html import escape
from typing import Any

from penstock.clock import from_micros
from penstock.spark.lake.figures import Series

COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9")
INK = "#7a8494"
SIZE = (7.2, 2.9)  # inches, of 72 points each
_LOOK: Any = {
    "svg.fonttype": "none",  # text stays text: it can be searched, copied and read aloud
    "svg.hashsalt": "penstock",
    "font.size": 10, "text.color": INK, "axes.labelcolor": INK, "xtick.color": INK, "ytick.color": INK,
    "axes.edgecolor": INK, "axes.spines.top": False, "axes.spines.right": False, "axes.spines.left": False,
    "axes.grid": True, "axes.grid.axis": "y", "grid.color": INK, "grid.alpha": 0.25, "grid.linewidth": 0.7,
    "figure.facecolor": "none", "axes.facecolor": "none", "savefig.facecolor": "none",
    "axes.titlelocation": "left", "ytick.left": False,
}  # fmt: skip
# What an HTML page does not need: the document's head, its author, ids of parts (which would occur twice).
_HEAD = re.compile(r"^.*?(?=<svg)", re.DOTALL)
_ABOUT = re.compile(r"<metadata>.*?</metadata>", re.DOTALL)
_PARTS = re.compile(r' id="[A-Za-z0-9.]+_\d+"')
_SPACES = re.compile(r' xmlns(?::\w+)?="[^"]*"')


def lines(title: str, series: Series, *, unit: str) -> str:
    """One line per series over time; a series of one point is a dot."""
    return _drawn(title, series, unit, stacked=False)


def bars(title: str, series: Series, *, unit: str, width: int) -> str:
    """Bars over time, one series upon the other; a bar is ``width`` seconds wide."""
    return _drawn(title, series, unit, stacked=True, width=width)


def _drawn(
    title: str, series: Mapping[str, list[tuple[float, float]]], unit: str, *, stacked: bool, width: int = 0
) -> str:
    if not any(series.values()):
        return ""
    import matplotlib as mpl
    from matplotlib import dates
    from matplotlib.figure import Figure

    with mpl.rc_context(_LOOK):
        figure = Figure(figsize=SIZE, layout="constrained")
        axes: Any = figure.add_subplot()
        floor: dict[float, float] = {}
        for colour, (name, points) in zip(_colours(len(series)), series.items(), strict=True):
            times = [from_micros(int(at * 1e6)) for at, _ in points]
            values = [value for _, value in points]
            if stacked:
                below = [floor.get(at, 0.0) for at, _ in points]
                axes.bar(times, values, width / 86_400 * 0.9, below, align="edge", color=colour, label=name)
                floor |= {at: low + value for (at, value), low in zip(points, below, strict=True)}
            else:
                axes.plot(
                    times, values, color=colour, label=name, linewidth=1.6, marker="o" if len(points) < 3 else None
                )
        axes.set_ylim(bottom=0)
        axes.set_title(unit, fontsize=10)
        axes.yaxis.set_major_formatter(lambda value, _: _number(value))
        locator = dates.AutoDateLocator(tz=UTC, minticks=3, maxticks=7)  # type: ignore[no-untyped-call]
        axes.xaxis.set_major_locator(locator)
        axes.xaxis.set_major_formatter(dates.ConciseDateFormatter(locator, tz=UTC))  # type: ignore[no-untyped-call]
        if len(series) > 1:
            figure.legend(loc="outside lower left", ncols=3, frameon=False)
        target = io.StringIO()
        figure.savefig(target, format="svg", metadata={"Date": None, "Creator": None})
    label = escape(title, quote=True)
    return _bare(target.getvalue()).replace("<svg", f'<svg role="img" aria-label="{label}"', 1)


def _bare(svg: str) -> str:
    for pattern in (_HEAD, _ABOUT, _PARTS, _SPACES):
        svg = pattern.sub("", svg)
    return svg.replace("xlink:href", "href")


def _colours(number: int) -> list[str]:
    return [COLOURS[index % len(COLOURS)] for index in range(number)]


def _number(value: float) -> str:
    if value >= 10_000:
        return f"{value / 1000:,.0f}k"
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.3g}"
