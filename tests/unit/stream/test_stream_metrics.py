"""Counts of instances that begin again, and names of too many computations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.contract.stream.shorthand import fill, numbers, wait_until

import penstock
from penstock.stream.computation import computation
from penstock.stream.local.process_runner import ProcessRunner
from penstock.stream.runner import Status
from penstock.stream.topology import Topology
from penstock.telemetry import snapshot, streams
from penstock.telemetry.streams import StreamMetrics


class Told:
    """A runner that says what a test tells it to say."""

    def __init__(self, topology: Topology, store: Any) -> None:
        self.topology = topology
        self.store = store
        self.statuses: list[Status] = []

    def status(self) -> list[Status]:
        return self.statuses


@computation("one", inputs="in", outputs="out")
def copying(record: Any, ctx: Any) -> None:
    ctx.produce("out", record.value)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(streams, "FRESH", 0.0)
    with penstock.open_logs("memory://") as store:
        yield Told(Topology("copies").stream("in", int).stream("out", int).add(copying), store)


def records_of(metrics: StreamMetrics) -> Any:
    return metrics.snapshot().values["penstock_stream_records_total"]["copies", "one"]


def test_an_instance_that_began_again_goes_on_counting(told: Any) -> None:
    metrics = StreamMetrics(told)
    told.statuses = [Status("one", 0, records=10, process=0), Status("one", 0, records=5, process=1)]
    assert records_of(metrics) == 15
    told.statuses = [Status("one", 0, records=12, process=0)]  # a process is gone
    assert records_of(metrics) == 17
    told.statuses = [Status("one", 0, records=12, process=0), Status("one", 0, records=3, process=1)]  # and back
    assert records_of(metrics) == 20
    told.statuses[1].records = 4
    assert records_of(metrics) == 21


def test_a_runner_that_starts_is_live_and_not_ready(told: Any) -> None:
    state = StreamMetrics(told).state()
    assert (state.live, state.ready, state.why) == (True, False, "one does not run")


def test_the_watermark_waits_for_every_instance(told: Any) -> None:
    from datetime import UTC, datetime

    metrics = StreamMetrics(told)
    early, late = (datetime(2026, 1, 1, hour, tzinfo=UTC) for hour in (1, 2))
    told.statuses = [
        Status("one", 0, state="running", partitions=[0], watermark=late),
        Status("one", 1, state="running", partitions=[1]),
    ]
    assert "penstock_stream_watermark_timestamp_seconds" not in metrics.snapshot().values
    told.statuses[1].watermark = early
    [at] = metrics.snapshot().values["penstock_stream_watermark_timestamp_seconds"].values()
    assert at == early.timestamp()


def test_too_many_computations_are_added_up(told: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = snapshot.Limited
    monkeypatch.setattr(streams, "Limited", lambda: limit(1))
    told.topology = told.topology.stream("more", int).add(
        computation("other-one", inputs="out", outputs="more")(lambda record, ctx: None)
    )
    told.statuses = [Status("one", 0, records=1), Status("other-one", 0, records=2)]
    series = StreamMetrics(told).snapshot().values["penstock_stream_records_total"]
    assert series == {("copies", "one"): 1, ("copies", "other"): 2}


def test_processes_are_counted_by_their_parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "FRESH", 0.0)
    url = f"file://{tmp_path / 'logs'}?durability=fast"
    with penstock.open_logs(url) as store:
        fill(store, "in", numbers(200, keys=16), partitions=4)
        runner = ProcessRunner("tests.unit.stream.flows:sums", store, url, processes=2, checkpoint_records=20)
        metrics = StreamMetrics(runner)
        with runner:
            wait_until(lambda: metrics.state().ready, "every computation to run")
            wait_until(
                lambda: (
                    sum(metrics.snapshot().values["penstock_stream_lag"].values()) == 0  # type: ignore[arg-type]
                    and runner.metrics["records"] >= 200
                ),
                "all records",
            )
            counts = {
                labels[1]: count for labels, count in metrics.snapshot().values["penstock_stream_records_total"].items()
            }
        assert sum(counts.values()) == runner.metrics["records"]  # type: ignore[arg-type]
