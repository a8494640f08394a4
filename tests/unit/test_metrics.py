"""Metrics: what is counted is what the store's history says; names, labels and their number are bounded."""

import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

import penstock
from penstock import QueueStore, Reject, Retry, Snooze, Worker
from penstock.errors import StoreUnavailable
from penstock.telemetry.catalog import METRICS, MOST_ERRORS, MOST_QUEUES, OTHER
from penstock.telemetry.metrics import StoreMetrics, WorkerMetrics
from penstock.telemetry.snapshot import Snapshot, bucket_counts
from penstock.testing import FakeClock

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def store(clock: FakeClock) -> Iterator[QueueStore]:
    with penstock.open_queues("memory://", clock=clock) as opened:
        yield opened


def samples(snapshot: Snapshot) -> Samples:
    """What Prometheus' own parser reads."""
    read: Samples = {}
    for family in text_string_to_metric_families(snapshot.text()):
        for sample in family.samples:
            key = sample.name, tuple(sorted(sample.labels.items()))
            assert key not in read, f"{key} is told twice"
            read[key] = sample.value
    return read


def value(snapshot: Snapshot, name: str, **labels: str) -> float:
    return samples(snapshot).get((name, tuple(sorted(labels.items()))), 0.0)


def run_out(store: QueueStore, clock: FakeClock) -> None:
    """As if whoever holds the entries were gone."""
    store.driver.heartbeat.close()
    clock.advance("2m")
    store.driver.reap(node=store.node)


class TestCatalog:
    def test_names_follow_the_conventions(self) -> None:
        for name, metric in METRICS.items():
            assert re.fullmatch(r"penstock_[a-z_]+", name)
            assert name.endswith("_total") == (metric.kind == "counter"), name
            assert bool(metric.bounds) == (metric.kind == "histogram"), name
            assert list(metric.bounds) == sorted(set(metric.bounds))
            if metric.bounds or "seconds" in name:
                assert name.endswith("_seconds"), "base units only"
            assert metric.meaning.endswith(".")

    def test_no_label_can_name_a_single_entry(self) -> None:
        unbounded = {"id", "entry", "unique", "label", "owner", "worker", "message", "reason"}
        assert not unbounded & {label for metric in METRICS.values() for label in metric.labels}


class TestAttempts:
    def test_the_counts_are_those_of_the_history(self, store: QueueStore, clock: FakeClock) -> None:
        queue = store.queue("work", int)

        @queue.handler(retry=Retry(attempts=2, delays=["1s"]))
        def handle(number: int, ctx: Any) -> Any:
            if number % 5 == 1:
                raise ValueError(number)
            if number % 5 == 2:
                return Reject("no")
            if number % 5 == 3 and clock.micros() == begin:
                return Snooze("1s")
            return None

        begin = clock.micros()
        worker = Worker(store)
        metrics = WorkerMetrics(worker)
        queue.put_many(range(50))
        worker.drain()
        clock.advance("1s")
        worker.drain()
        rows = Counter(row.state for row in queue.history())
        assert rows == {"done": 30, "retried": 10, "dead": 20}
        snapshot = metrics.snapshot()
        for outcome in ("done", "retried", "dead"):
            assert value(snapshot, "penstock_attempts_total", queue="work", outcome=outcome) == rows[outcome]
        assert value(snapshot, "penstock_attempts_total", queue="work", outcome="snoozed") == 10
        assert value(snapshot, "penstock_failures_total", queue="work", error="ValueError") == 20
        assert value(snapshot, "penstock_failures_total", queue="work", error="rejected") == 10
        assert value(snapshot, "penstock_attempt_seconds_count", queue="work") == 70
        assert value(snapshot, "penstock_put_total", queue="work") == 50

    def test_waiting_is_measured_from_the_due_time_of_a_first_attempt(
        self, store: QueueStore, clock: FakeClock
    ) -> None:
        queue = store.queue("work", int)
        queue.handler(retry=Retry(attempts=3, delays=["1h"]))(lambda number: 1 // number)
        worker = Worker(store)
        metrics = WorkerMetrics(worker)
        queue.put(0, delay="10s")
        clock.advance("40s")
        worker.drain()
        clock.advance("2h")
        worker.drain()  # a second attempt is not a first start
        snapshot = metrics.snapshot()
        assert value(snapshot, "penstock_wait_seconds_count", queue="work") == 1
        assert value(snapshot, "penstock_wait_seconds_sum", queue="work") == pytest.approx(30, abs=0.5)
        assert value(snapshot, "penstock_wait_seconds_bucket", queue="work", le="15") == 0
        assert value(snapshot, "penstock_wait_seconds_bucket", queue="work", le="60") == 1

    def test_a_handler_that_runs_is_seen(self, store: QueueStore) -> None:
        queue = store.queue("work", int)
        running, go_on = threading.Event(), threading.Event()

        @queue.handler(concurrency=3)
        def handle(number: int) -> None:
            running.set()
            go_on.wait(20)

        worker = Worker(store)
        metrics = WorkerMetrics(worker)
        queue.put(1)
        worker.start()
        try:
            assert running.wait(20)
            first = metrics.snapshot()
            assert value(first, "penstock_running", queue="work") == 1
            assert value(first, "penstock_slots", queue="work") == 3
            longest = value(first, "penstock_longest_running_seconds", queue="work")
            assert value(metrics.snapshot(), "penstock_longest_running_seconds", queue="work") > longest > 0
        finally:
            go_on.set()
            worker.stop()

    @pytest.mark.parametrize("kind", ["async", "executor"])
    def test_how_long_it_runs_is_known_of_every_kind_of_handler(
        self, store: QueueStore, clock: FakeClock, kind: str
    ) -> None:
        import asyncio
        from concurrent.futures import ThreadPoolExecutor

        queue = store.queue("work", int)
        running, go_on = threading.Event(), threading.Event()

        async def handle_async(number: int) -> None:
            running.set()
            await asyncio.to_thread(go_on.wait, 20)

        def handle(number: int) -> None:
            running.set()
            go_on.wait(20)

        with ThreadPoolExecutor(1) as executor:
            if kind == "async":
                queue.handler(handle_async)
            else:
                queue.handler(executor=executor)(handle)
            worker = Worker(store)
            metrics = WorkerMetrics(worker)
            queue.put(1)
            worker.start()
            try:
                assert running.wait(20)
                clock.advance("7s")
                deadline = time.monotonic() + 20  # an executor says that it runs something a moment after it does
                while not (longest := value(metrics.snapshot(), "penstock_longest_running_seconds", queue="work")):
                    assert time.monotonic() < deadline
                assert longest == pytest.approx(7)
            finally:
                go_on.set()
                worker.stop()


class TestTrouble:
    def test_leases_that_ran_out(self, store: QueueStore, clock: FakeClock) -> None:
        metrics = StoreMetrics(store)
        queue = store.queue("work", int)
        queue.put_many([1, 2])
        with store.unit() as unit:
            unit.take(queue, 1)
            run_out(store, clock)
            with pytest.raises(penstock.errors.LeaseLost):
                unit.commit()
            snapshot = metrics.snapshot()
        assert value(snapshot, "penstock_reaped_total", queue="work") == 1
        assert value(snapshot, "penstock_attempts_total", queue="work", outcome="lost") == 1
        assert value(snapshot, "penstock_leases_lost_total", queue="work") == 1

    def test_the_last_lease_that_runs_out_makes_a_dead_letter(self, store: QueueStore, clock: FakeClock) -> None:
        metrics = StoreMetrics(store)
        queue = store.queue("work", int)
        queue.put(1)
        with store.unit() as unit:
            unit.take(queue, 1, attempts=1)
            run_out(store, clock)
            with pytest.raises(penstock.errors.LeaseLost):
                unit.commit()
        assert [row.state for row in queue.history()] == ["dead"]
        assert value(metrics.snapshot(), "penstock_attempts_total", queue="work", outcome="dead") == 1

    def test_errors_of_the_store_and_changes_of_circuits(self, store: QueueStore) -> None:
        metrics = StoreMetrics(store)
        tell = store.signals.tell
        tell("store_error", "", (), 0, step="round_trip", error=StoreUnavailable("away"))
        tell("circuit", "", (), 0, circuit="/crm", state="open")
        snapshot = metrics.snapshot()
        assert value(snapshot, "penstock_store_errors_total", operation="round_trip", error="StoreUnavailable") == 1
        assert value(snapshot, "penstock_circuit_changes_total", circuit="/crm", state="open") == 1

    def test_calls_to_the_store_are_timed_by_what_they_do(self, store: QueueStore) -> None:
        queue = store.queue("work", int)
        queue.handler(lambda number: None)
        metrics = WorkerMetrics(worker := Worker(store))
        queue.put(1)
        queue.put_many([1, 2])
        worker.drain()
        snapshot = metrics.snapshot()
        for operation in ("put", "claim", "settle"):
            assert value(snapshot, "penstock_store_seconds_count", operation=operation) >= 1

    def test_nobody_is_told_after_the_end(self, store: QueueStore) -> None:
        metrics = StoreMetrics(store)
        metrics.close()
        store.queue("work", int).put(1)
        assert value(metrics.snapshot(), "penstock_put_total", queue="work") == 0
        assert not store.signals.wants("put")


class TestBounds:
    def test_members_of_a_family_are_one_series(self, store: QueueStore) -> None:
        family = store.family("customer.", int)
        family.handler(lambda number: None)
        metrics = WorkerMetrics(worker := Worker(store))
        for number in range(2000):
            family.member(f"customer.{number}").put(number)
        worker.drain()
        text = metrics.snapshot().text()
        assert set(re.findall(r'queue="([^"]*)"', text)) == {"customer.*"}
        done = value(metrics.snapshot(), "penstock_attempts_total", queue="customer.*", outcome="done")
        assert done == value(metrics.snapshot(), "penstock_put_total", queue="customer.*") == 2000

    def test_too_many_queues_are_added_up(self, store: QueueStore) -> None:
        metrics = StoreMetrics(store)
        for number in range(MOST_QUEUES + 50):
            store.queue(f"q{number}", int).put(1)
        read = samples(metrics.snapshot())
        puts = {dict(labels)["queue"]: count for (name, labels), count in read.items() if name == "penstock_put_total"}
        assert len(puts) == MOST_QUEUES + 1
        assert puts[OTHER] == 50

    def test_too_many_classes_of_errors_are_added_up(self, store: QueueStore) -> None:
        queue = store.queue("work", int)

        @queue.handler(retry=Retry(attempts=1))
        def handle(number: int) -> None:
            raise type(f"Error{number}", (Exception,), {})("text: that differs")

        metrics = WorkerMetrics(worker := Worker(store))
        queue.put_many(range(MOST_ERRORS + 5))
        worker.drain()
        read = samples(metrics.snapshot())
        errors = {
            dict(labels)["error"]: count for (name, labels), count in read.items() if name == "penstock_failures_total"
        }
        assert len(errors) == MOST_ERRORS + 1
        assert errors[OTHER] == 5


class TestSnapshots:
    @pytest.fixture
    def snapshot(self) -> Snapshot:
        made = Snapshot()
        made.add("penstock_put_total", ("a",), 3)
        made.add("penstock_running", ("a",), 2)
        made.add("penstock_longest_running_seconds", ("a",), 5.5)
        made.add("penstock_last_round_trip_timestamp_seconds", (), 1000.0)
        made.add("penstock_attempt_seconds", ("a",), [1.0] * len(bucket_counts("penstock_attempt_seconds")))
        return made

    def test_several_processes_are_one(self, snapshot: Snapshot) -> None:
        other = Snapshot.decode(snapshot.encode())
        other.values["penstock_longest_running_seconds"]["a",] = 7.0
        other.values["penstock_last_round_trip_timestamp_seconds"][()] = 900.0
        snapshot.join(other)
        assert value(snapshot, "penstock_put_total", queue="a") == 6
        assert value(snapshot, "penstock_running", queue="a") == 4
        assert value(snapshot, "penstock_longest_running_seconds", queue="a") == 7
        assert value(snapshot, "penstock_last_round_trip_timestamp_seconds") == 900
        buckets = len(METRICS["penstock_attempt_seconds"].bounds) + 1
        assert value(snapshot, "penstock_attempt_seconds_count", queue="a") == 2 * buckets

    def test_a_sum_does_not_change_what_it_was_made_of(self, snapshot: Snapshot) -> None:
        total = Snapshot()
        for _ in range(3):
            total.join(snapshot)
        assert value(snapshot, "penstock_attempt_seconds_sum", queue="a") == 1

    def test_of_a_process_that_is_gone_the_counts_stay(self, snapshot: Snapshot) -> None:
        assert set(snapshot.totals().values) == {"penstock_put_total", "penstock_attempt_seconds"}

    @pytest.mark.parametrize("name", ['a"b', "a\\b", "a\nb", "ä", "}{"])
    def test_any_name_can_be_a_label(self, name: str) -> None:
        snapshot = Snapshot()
        snapshot.add("penstock_put_total", (name,), 1)
        assert value(snapshot, "penstock_put_total", queue=name) == 1

    def test_what_is_written_is_what_the_catalog_says(self, snapshot: Snapshot) -> None:
        for family in text_string_to_metric_families(snapshot.text()):
            metric = METRICS.get(family.name) or METRICS[f"{family.name}_total"]
            assert (family.type, family.documentation) == (metric.kind, metric.meaning)


def test_counting_from_many_threads_loses_nothing(store: QueueStore) -> None:
    metrics = StoreMetrics(store)
    calls: list[Callable[[], None]] = [lambda: [metrics._called("put", 0.001) for _ in range(2000)] and None] * 4
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert value(metrics.snapshot(), "penstock_store_seconds_count", operation="put") == 8000
