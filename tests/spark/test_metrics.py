"""What streaming queries do is counted in the names of the catalog, and Prometheus can read it."""

import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock import LogStore
from penstock.spark.metrics import QueryMetrics
from penstock.telemetry.exposing import Exporter


@pytest.fixture
def metrics(spark: Any) -> Iterator[QueryMetrics]:
    listening = QueryMetrics(spark)
    yield listening
    listening.close()


def wait_for(condition: Callable[[], bool]) -> None:
    """Spark tells its listeners in its own time."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def value(metrics: QueryMetrics, name: str, *labels: str) -> Any:
    return metrics.snapshot().values.get(name, {}).get(labels)


def test_a_query_is_counted(spark: Any, store: LogStore, url: str, metrics: QueryMetrics, tmp_path: Path) -> None:
    store.create("clicks", 2)
    store.log("clicks").append_many([{"n": number} for number in range(50)], keys=[str(one) for one in range(50)])
    frame = spark.readStream.format("penstock").options(url=url, log="clicks", limit=20).load()
    clicks = frame.withWatermark("time", "1 minute")
    writer = clicks.writeStream.format("noop").queryName("clicks").option("checkpointLocation", str(tmp_path / "c"))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    wait_for(lambda: value(metrics, "penstock_spark_rows_total", "clicks") == 50)
    assert value(metrics, "penstock_spark_batches_total", "clicks") >= 3
    assert sum(value(metrics, "penstock_spark_batch_seconds", "clicks")[:-1]) >= 3
    wait_for(lambda: value(metrics, "penstock_spark_queries") == 0)
    assert value(metrics, "penstock_spark_behind", "clicks") == 0
    newest = max(record.time_us for record in store.log("clicks").records())
    assert value(metrics, "penstock_spark_watermark_timestamp_seconds", "clicks") == pytest.approx(
        newest / 1e6 - 60, abs=1
    )
    exporter = Exporter("127.0.0.1", 0, metrics)
    try:
        text = urllib.request.urlopen(f"{exporter.url}/metrics").read().decode()
    finally:
        exporter.close()
    assert 'penstock_spark_rows_total{query="clicks"} 50' in text
    assert 'penstock_spark_batch_seconds_bucket{query="clicks",le="+Inf"}' in text


def test_a_query_that_is_behind_and_one_that_fails(
    spark: Any, store: LogStore, url: str, metrics: QueryMetrics, tmp_path: Path
) -> None:
    store.create("slow", 1)
    store.log("slow").append_many([{"n": number} for number in range(30)])
    frame = spark.readStream.format("penstock").options(url=url, log="slow", limit=10).load()
    asked = frame.writeStream.queryName("slow").option("checkpointLocation", str(tmp_path / "s"))

    def stop_after_one(_: Any, number: int) -> None:
        if number:
            raise ValueError("not this one")

    query = asked.foreachBatch(stop_after_one).start()
    with pytest.raises(Exception, match="not this one"):
        query.awaitTermination()
    wait_for(lambda: value(metrics, "penstock_spark_queries") == 0)
    failures = metrics.snapshot().values["penstock_spark_failures_total"]
    assert [(labels[0], count) for labels, count in failures.items()] == [("slow", 1)]
    assert value(metrics, "penstock_spark_behind", "slow") == 20
