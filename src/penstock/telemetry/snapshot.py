"""Snapshot: the values of metrics at one moment, added up over processes and written for Prometheus."""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec

from penstock.telemetry.catalog import METRICS, MOST_QUEUES, OTHER, Metric

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Labels = tuple[str, ...]
Value = float | list[float]  # a histogram: how many in each bucket, the last without a bound, then the sum of all

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(list[tuple[str, Labels, Value]])


class Snapshot:
    """Values by metric and labels."""

    def __init__(self) -> None:
        """Start empty."""
        self.values: dict[str, dict[Labels, Value]] = {}

    def add(self, name: str, labels: Labels, value: Value) -> None:
        """Set a value, or join it with the existing one as the metric says."""
        series = self.values.setdefault(name, {})
        known = series.get(labels)
        if known is None:
            series[labels] = list(value) if isinstance(value, list) else value
        else:
            series[labels] = _joined(METRICS[name], known, value)

    def join(self, other: Snapshot) -> None:
        """Add the values of another process."""
        for name, series in other.values.items():
            for labels, value in series.items():
                self.add(name, labels, value)

    def totals(self) -> Snapshot:
        """The values that outlive their process: all but the gauges."""
        past = Snapshot()
        for name, series in self.values.items():
            if METRICS[name].kind != "gauge":
                past.values[name] = dict(series)
        return past

    def encode(self) -> bytes:
        """Encode it to send it to another process."""
        return _encoder.encode(
            [(name, labels, value) for name, series in self.values.items() for labels, value in series.items()]
        )

    @classmethod
    def decode(cls, encoded: bytes) -> Snapshot:
        """Decode what :meth:`encode` gave."""
        snapshot = cls()
        for name, labels, value in _decoder.decode(encoded):
            if name in METRICS:
                snapshot.add(name, labels, value)
        return snapshot

    def text(self) -> str:
        """The text format of Prometheus."""
        lines: list[str] = []
        for metric in METRICS.values():
            series = self.values.get(metric.name)
            if not series:
                continue
            lines += [f"# HELP {metric.name} {metric.meaning}", f"# TYPE {metric.name} {metric.kind}"]
            for labels, value in sorted(_bounded(series, metric).items()):
                lines += _lines(metric, labels, value)
        return "\n".join([*lines, ""])


class Limited:
    """The values that a label may have: the first ones, then ``other``."""

    def __init__(self, most: int = MOST_QUEUES) -> None:
        """None is known yet."""
        self._most = most
        self._known: set[str] = set()

    def __call__(self, value: str) -> str:
        """The value, or ``other`` if there are too many."""
        if value not in self._known and value != OTHER:
            if len(self._known) >= self._most:
                return OTHER
            self._known.add(value)
        return value


def bucket_counts(metric: str) -> list[float]:
    """An empty histogram."""
    return [0.0] * (len(METRICS[metric].bounds) + 2)


def _joined(metric: Metric, known: Value, value: Value) -> Value:
    if isinstance(known, list) and isinstance(value, list):
        return [left + other for left, other in zip(known, value, strict=True)]
    if isinstance(known, list) or isinstance(value, list):
        return known
    if metric.join == "sum":
        return known + value
    return max(known, value) if metric.join == "max" else min(known, value)


def _bounded(series: dict[Labels, Value], metric: Metric) -> dict[Labels, Value]:
    """Limit the union of several processes, too: each may have kept different names."""
    known = Limited()
    bounded = Snapshot()
    for labels, value in sorted(series.items()):
        first = known(labels[0]) if labels else ""
        bounded.add(metric.name, (first, *labels[1:]) if labels else (), value)
    return bounded.values[metric.name]


def _lines(metric: Metric, labels: Labels, value: Value) -> Iterable[str]:
    pairs = [f'{name}="{_escaped(text)}"' for name, text in zip(metric.labels, labels, strict=True)]
    if not isinstance(value, list):
        return [f"{metric.name}{_braces(pairs)} {_number(value)}"]
    *counts, total = value
    lines, seen = [], 0.0
    for bound, count in zip((*metric.bounds, math.inf), counts, strict=True):
        seen += count
        lines.append(f"{metric.name}_bucket{_braces([*pairs, _upper(bound)])} {_number(seen)}")
    lines.append(f"{metric.name}_sum{_braces(pairs)} {_number(total)}")
    lines.append(f"{metric.name}_count{_braces(pairs)} {_number(seen)}")
    return lines


def _upper(bound: float) -> str:
    return f'le="{"+Inf" if bound == math.inf else _number(bound)}"'


def _braces(pairs: list[str]) -> str:
    return f"{{{','.join(pairs)}}}" if pairs else ""


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(float(value))
