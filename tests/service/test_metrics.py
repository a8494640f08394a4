"""The service's metrics: what its stores hold, in the names of the catalog, never more series than allowed."""

from __future__ import annotations

import time
from collections import defaultdict
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from penstock import QueueStore, Worker
from penstock.telemetry.catalog import METRICS, MOST_QUEUES, SERVICE, WORKER


def read(client: Any) -> dict[str, dict[tuple[str, ...], float]]:
    answer = client.get("/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    values: defaultdict[str, dict[tuple[str, ...], float]] = defaultdict(dict)
    for family in text_string_to_metric_families(answer.text):
        metric = METRICS.get(family.name) or METRICS[f"{family.name}_total"]
        assert metric.source != WORKER
        assert family.type == metric.kind
        for sample in family.samples:
            labels = {name: value for name, value in sample.labels.items() if name != "le"}
            assert tuple(labels) == metric.labels
            values[sample.name][tuple(sample.labels.values())] = sample.value
    return values


def test_what_the_stores_hold(client: Any, queues: QueueStore, logs: Any) -> None:
    queues.queue("q").put(1)
    queues.queue("q").put(2, delay="1h")
    queues.queue("q").lock(reason="moving")
    queues.queue("q").schedule("nightly", 1, every="1d")
    logs.create("clicks", 1)
    logs.log("clicks").append({"n": 1})
    logs.tailer("clicks", group="g").commit()
    queues.queue("served", int).handler(lambda number: None)
    worker = Worker(queues)
    worker.start()
    try:
        deadline = time.monotonic() + 30
        while not (values := read(client))["penstock_workers"]["alive",]:
            assert time.monotonic() < deadline, "the worker does not tell that it lives"
    finally:
        worker.stop()
    assert values["penstock_queue_entries"]["q", "ready"] == 1
    assert values["penstock_queue_entries"]["q", "delayed"] == 1
    assert values["penstock_queue_locks"]["q",] == 1
    assert values["penstock_queue_oldest_ready_seconds"]["q",] >= 0
    assert values["penstock_schedule_next_timestamp_seconds"]["nightly",] > queues.now() / 1e6
    assert values["penstock_workers"]["lost",] == 0
    assert values["penstock_put_total"]["q",] == 2
    assert values["penstock_store_seconds_count"]["put",] >= 2
    exported = {name for name in METRICS if name in values}
    always = {name for name, metric in METRICS.items() if metric.source == SERVICE}
    assert always - exported <= {"penstock_circuit_state", "penstock_log_lag"}, "nothing of these is there"


def test_queues_of_a_family_that_is_served_are_one_series(client: Any, queues: QueueStore) -> None:
    family = queues.family("customer.", int)
    family.handler(lambda number: None)
    for number in range(50):
        family.member(f"customer.{number}").put(number)
    queues.queue("customers", int).put(1)
    values = read(client)["penstock_queue_entries"]
    assert {queue for queue, _ in values} == {"customer.*", "customers"}
    assert values["customer.*", "ready"] == 50


def test_too_many_queues_are_added_up(client: Any, queues: QueueStore, caplog: Any) -> None:
    for number in range(MOST_QUEUES + 100):
        queues.queue(f"q{number:04}", int).put(number)
    values = read(client)["penstock_queue_entries"]
    assert len({queue for queue, _ in values}) == MOST_QUEUES + 1
    assert values["other", "ready"] == 100
    assert "adds up the others" in caplog.text
