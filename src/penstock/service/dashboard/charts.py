"""Charts as plain SVG: axes begin at 0, lines stretch, text keeps its size. The numbers are computed here."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from penstock.service.dashboard.formatting import number

WIDTH = 600
TOP = 8  # pixels above the plot, so that the uppermost number is not cut


class Line(msgspec.Struct, frozen=True):
    """One series: its look, its path, and the path of the area below it if it has one."""

    look: str
    path: str
    area: str = ""


class Bar(msgspec.Struct, frozen=True):
    """One bar of a bar chart."""

    x: float
    width: float
    y: float
    height: float


class Tick(msgspec.Struct, frozen=True):
    """A line of the grid and its number."""

    y: float
    text: str


class Chart(msgspec.Struct, frozen=True):
    """Everything that the template needs."""

    height: int
    plot: int
    ticks: tuple[Tick, ...]
    lines: tuple[Line, ...]
    bars: tuple[Bar, ...]
    label: str
    description: str


def nice_top(highest: float) -> float:
    """The end of an axis: 1, 2 or 5 times a power of ten, at or above the highest value."""
    if highest <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(highest))
    return next(step * power for step in (1, 2, 3, 4, 5, 6, 8, 10) if step * power >= highest * 0.9999)


def line_chart(
    series: Sequence[Sequence[float | None]], *, height: int, label: str, description: str, is_time: bool = False
) -> Chart:
    """Up to three series over the same time; the first has an area. None is a gap. Times are given in seconds."""
    unit = ""
    if is_time:
        is_short = max((value for values in series for value in values if value is not None), default=0.0) < 1
        unit = " ms" if is_short else " s"
        scale = 1000 if is_short else 1
        series = [[None if value is None else value * scale for value in values] for values in series]
    highest = max((value for values in series for value in values if value is not None), default=0.0)
    top, plot = nice_top(highest), height - TOP - 20
    lines = []
    for place, values in enumerate(series):
        path = _path(values, top, plot)
        area = _area(values, top, plot) if place == 0 else ""
        lines.append(Line(f"l{place + 1}", path, area))
    return Chart(height, plot, _ticks(top, plot, unit), tuple(lines), (), label, description)


def bar_chart(values: Sequence[float], *, height: int, label: str, description: str) -> Chart:
    """One bar per minute."""
    top, plot = nice_top(max(values, default=0.0)), height - TOP - 12
    slot = WIDTH / max(len(values), 1)
    bars = tuple(
        Bar(round(place * slot + slot * 0.15, 1), round(slot * 0.7, 2), round(plot - value / top * plot, 1),
            round(value / top * plot, 1))
        for place, value in enumerate(values) if value
    )  # fmt: skip
    return Chart(height, plot, _ticks(top, plot, "", steps=2), (), bars, label, description)


def spark(values: Sequence[float]) -> tuple[str, str]:
    """The path of a line of 92 × 22 without axes, and of its area."""
    top = max(max(values, default=0.0), 1e-9)
    step = 92 / max(len(values) - 1, 1)
    points = [f"{place * step:.1f} {21 - value / top * 19.4:.1f}" for place, value in enumerate(values)]
    path = "M" + "L".join(points) if points else ""
    return path, f"{path}L92 21L0 21Z" if points else ""


def share(part: float, whole: float) -> str:
    """A share as a width."""
    return f"{min(100.0, max(0.0, 100.0 * part / whole)) if whole else 0:.1f}%"


def _ticks(top: float, plot: int, unit: str, steps: int = 4) -> tuple[Tick, ...]:
    steps = 2 if steps == 2 else next(count for count in (4, 3, 5, 2) if count == 2 or _is_round(top / count))
    return tuple(
        Tick(round(TOP + plot - place * plot / steps, 1), f"{_short(top * place / steps)}{unit}")
        for place in range(steps + 1)
    )


def _is_round(value: float) -> bool:
    power = 10.0 ** math.floor(math.log10(value) + 1e-9)
    return abs(value / power - round(value / power)) < 1e-6


def _short(value: float) -> str:
    if value >= 1_000_000:
        return f"{value / 1_000_000:g}M"
    return f"{value / 1000:g}k" if value >= 10_000 else number(round(value, 6))


def _points(values: Sequence[float | None], top: float, plot: int) -> list[list[tuple[float, float]]]:
    """The pieces between gaps."""
    step = WIDTH / max(len(values) - 1, 1)
    pieces: list[list[tuple[float, float]]] = [[]]
    for place, value in enumerate(values):
        if value is None:
            pieces.append([])
        else:
            pieces[-1].append((place * step, plot - min(value / top, 1.0) * plot))
    return [piece for piece in pieces if piece]


def _path(values: Sequence[float | None], top: float, plot: int) -> str:
    drawn = []
    for piece in _points(values, top, plot):
        points = piece if len(piece) > 1 else [piece[0], (piece[0][0] + 2, piece[0][1])]
        drawn.append("M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points))
    return "".join(drawn)


def _area(values: Sequence[float | None], top: float, plot: int) -> str:
    drawn = []
    for piece in _points(values, top, plot):
        points = "L".join(f"{x:.1f} {y:.1f}" for x, y in piece)
        drawn.append(f"M{points}L{piece[-1][0]:.1f} {plot}L{piece[0][0]:.1f} {plot}Z")
    return "".join(drawn)
