"""The table of metrics says what the catalog in the code says."""

from __future__ import annotations

from tools import metrics_table

from penstock.telemetry.catalog import METRICS


def test_the_table_is_up_to_date() -> None:
    assert metrics_table.page() == metrics_table.PAGE.read_text(), "run: python -m tools.metrics_table"


def test_every_metric_is_in_it() -> None:
    text = metrics_table.PAGE.read_text()
    for name in METRICS:
        assert f"| `{name}` |" in text
