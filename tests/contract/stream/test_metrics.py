"""What a runner says of itself is counted in the names of the catalogue: for Prometheus, and for probes."""

from __future__ import annotations

from typing import Any

import pytest
from tests.contract.stream.shorthand import Run, fill, numbers, wait_until
from tests.contract.stream.test_failing import QUICK, Fails, failing

from penstock.log.store import LogStore
from penstock.stream.computation import Policy
from penstock.stream.runner import Runner
from penstock.telemetry import streams
from penstock.telemetry.streams import StreamMetrics


def values_of(metrics: StreamMetrics) -> dict[tuple[str, ...], float]:
    """Values by name, without the prefix, and by the labels behind the topology."""
    return {
        (name.removeprefix("penstock_stream_"), *labels[1:]): value
        for name, series in metrics.snapshot().values.items()
        for labels, value in series.items()
        if isinstance(value, float | int)
    }


@pytest.fixture(autouse=True)
def _ask_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "FRESH", 0.0)


def counted(running: Runner, metrics: StreamMetrics, count: int) -> None:
    wait_until(lambda: running.metrics["records"] >= count and not running.store.lag("in", "fails").lag, "all records")
    values_of(metrics)


class TestStreamMetrics:
    """Counts, lag, watermark, dead letters and health of each computation."""

    def test_each_computation_is_counted(self, logs: LogStore, runner: Run) -> None:
        fill(logs, "in", [("k", number, number + 1) for number in range(10)])
        running = runner(failing(Fails(v0=99, v5=99), Policy(retry=QUICK, on_failure="continue")))
        metrics = StreamMetrics(running)
        running.start()
        counted(running, metrics, 8)
        wait_until(lambda: metrics.state().ready, "every computation to run")
        read = values_of(metrics)
        assert read["records_total", "fails"] == running.metrics["records"]
        assert read["produced_total", "fails"] == 16
        assert read["skipped_total", "fails"] == read["dead_letters", "fails"] == 2
        assert read["failures_total", "fails"] == running.metrics["failures"]
        assert read["checkpoints_total", "fails"] >= 1
        assert read["lag", "fails"] == 0
        assert read["instances", "fails", "running"] >= 1
        assert read["watermark_timestamp_seconds", "fails"] == pytest.approx(10e-6)
        assert metrics.state().live
        assert running.stop()
        assert not metrics.state().ready
        fill(logs, "in", [("k", 10, 11)])
        assert values_of(metrics)["lag", "fails"] == 1
        assert values_of(metrics)["records_total", "fails"] == read["records_total", "fails"], "the counts stay"

    def test_what_has_failed_for_good_is_not_live(self, logs: LogStore, runner: Run) -> None:
        fill(logs, "in", [("k", number, number + 1) for number in range(4)])
        running = runner(failing(Fails(v2=99)))
        metrics = StreamMetrics(running)
        running.start()
        wait_until(lambda: running.is_terminated, "the end")
        state = metrics.state()
        assert (state.live, state.ready) == (False, False)
        assert state.why == "fails has failed: RuntimeError: no 2 today"
        assert values_of(metrics)["instances", "fails", "failed"] == 1

    def test_every_name_is_in_the_catalogue_and_can_be_read(self, logs: LogStore, runner: Run) -> None:
        parser: Any = pytest.importorskip("prometheus_client.parser")
        fill(logs, "in", numbers(3))
        running = runner(failing(Fails()))
        metrics = StreamMetrics(running)
        running.start()
        counted(running, metrics, 3)
        names = {family.name for family in parser.text_string_to_metric_families(metrics.snapshot().text())}
        assert {"penstock_stream_records", "penstock_stream_lag", "penstock_stream_instances"} <= names
        labels = {labels[0] for series in metrics.snapshot().values.values() for labels in series}
        assert labels == {"failing"}
