"""Charts as SVG text: lines over time, and bars; small enough to be read in the page's source."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

from penstock.clock import from_micros

WIDTH, HEIGHT = 640, 280
LEFT, RIGHT, TOP, BOTTOM = 56, 16, 12, 28
# Told apart also by those who do not see red and green alike.
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9")


def lines(title: str, series: Mapping[str, Sequence[tuple[float, float]]], *, unit: str) -> str:
    """One line per series of (seconds since 1970, value); a series of one point is a dot."""
    points = [point for one in series.values() for point in one]
    if not points:
        return ""
    first, last = min(at for at, _ in points), max(at for at, _ in points)
    top = _round_up(max(value for _, value in points))
    across, down = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def x(at: float) -> float:
        return LEFT + (across / 2 if last == first else (at - first) / (last - first) * across)

    def y(value: float) -> float:
        return TOP + down - value / top * down

    parts = [*_grid(top, y, unit)]
    for step in range(5 if last > first else 1):
        at = first + (last - first) * step / 4 if last > first else first
        anchor = "start" if step == 0 and last > first else "end" if step == 4 else "middle"
        parts.append(f"<text x='{x(at):.0f}' y='{HEIGHT - 8}' text-anchor='{anchor}'>{_time(at, last - first)}</text>")
    for colour, values in zip(_colours(len(series)), series.values(), strict=True):
        path = " ".join(f"{x(at):.1f},{y(value):.1f}" for at, value in values)
        parts.append(f"<polyline points='{path}' fill='none' stroke='{colour}' stroke-width='2'/>")
        at, value = values[-1]
        parts.append(f"<circle cx='{x(at):.1f}' cy='{y(value):.1f}' r='3' fill='{colour}'/>")
    return _figure(title, parts, HEIGHT) + _legend(list(series))


def bars(title: str, values: Sequence[tuple[str, float]], *, unit: str) -> str:
    """One bar per name, the longest first as they come."""
    if not values:
        return ""
    height, top = 26, max(value for _, value in values) or 1
    parts = []
    for number, (name, value) in enumerate(values):
        low = number * height * 1.6
        width = max(2.0, value / top * (WIDTH - 90))
        shown = name if len(name) <= 90 else name[:89] + "…"
        parts.append(f"<text x='0' y='{low + 12:.0f}'>{escape(shown)}<title>{escape(name)}</title></text>")
        parts.append(
            f"<rect x='0' y='{low + 17:.0f}' width='{width:.0f}' height='{height - 12}' rx='3' fill='{COLOURS[0]}'/>"
        )
        parts.append(f"<text x='{width + 6:.0f}' y='{low + 29:.0f}'>{value:,.0f} {escape(unit)}</text>")
    return _figure(title, parts, int(len(values) * height * 1.6) + 10)


def _figure(title: str, parts: list[str], height: int) -> str:
    inner = "".join(parts)
    label = escape(title, quote=True)
    return f"<h2>{escape(title)}</h2><svg viewBox='0 0 {WIDTH} {height}' role='img' aria-label='{label}'>{inner}</svg>"


def _grid(top: float, y: object, unit: str) -> list[str]:
    parts = []
    for step in range(5):
        value = top * step / 4
        level = y(value)  # type: ignore[operator]
        parts.append(f"<line class='axis' x1='{LEFT}' x2='{WIDTH - RIGHT}' y1='{level:.1f}' y2='{level:.1f}'/>")
        parts.append(f"<text x='{LEFT - 6}' y='{level + 4:.1f}' text-anchor='end'>{_number(value)}</text>")
    parts.append(f"<text x='{LEFT}' y='10'>{escape(unit)}</text>")
    return parts


def _legend(names: list[str]) -> str:
    items = "".join(
        f"<span style='margin-right:1em'><b style='color:{colour}'>●</b> {escape(name)}</span>"
        for colour, name in zip(_colours(len(names)), names, strict=True)
    )
    return f"<div>{items}</div>"


def _colours(number: int) -> list[str]:
    return [COLOURS[index % len(COLOURS)] for index in range(number)]


def _round_up(value: float) -> float:
    """The next of 1, 2 and 5 times a power of ten: an axis that people can read."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= value * 0.999)


def _number(value: float) -> str:
    if value >= 10_000:
        return f"{value / 1000:,.0f}k"
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.3g}"


def _time(at: float, span: float) -> str:
    moment = from_micros(int(at * 1_000_000))
    return f"{moment:%d %b}" if span > 3 * 86_400 else f"{moment:%d %b %H:%M}"
