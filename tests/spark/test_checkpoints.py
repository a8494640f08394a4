"""Checkpoints that meet another store than the one they are of, and logs that gain partitions under a query."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import NewPartitions
from tests.contract.queue.shorthand import end, put, take_one
from tests.spark.conftest import written

from penstock import LogStore, open_logs, open_queues
from penstock.errors import BadInput
from penstock.ids import new_id
from penstock.log.drivers.kafka.driver import KafkaDriver
from penstock.spark import explain


def append(store: LogStore, first: int, stop: int, **options: Any) -> None:
    with store.appender("in", bytes) as out:
        out.append_many([b"%d" % number for number in range(first, stop)], **options)


def numbers(store: LogStore, log: str = "out") -> list[int]:
    return sorted(int(one.payload) for one in written(store, log))


def refused(query: Any, words: str = "created again") -> None:
    ours = explain(query.exception())
    assert isinstance(ours, BadInput), query.exception()
    assert words in str(ours)
    assert "new checkpointLocation" in str(ours)
    assert "\n" not in str(ours)


@pytest.mark.parametrize("lost", ["fail", "skip"])
def test_a_log_made_anew_with_more_in_it(store: LogStore, follow: Any, drain: Any, lost: str) -> None:
    store.create("in", 2)
    store.create("out")
    append(store, 0, 10)
    drain(follow("in").select("value"), log="out")
    store.delete("in")
    store.create("in", 2)
    append(store, 100, 200)
    refused(drain(follow("in", lost=lost).select("value"), log="out"))
    assert numbers(store) == list(range(10))
    drain(follow("in", lost=lost).select("value"), "another", log="out")
    assert numbers(store) == [*range(10), *range(100, 200)]


def test_the_same_log_at_another_url(spark: Any, store: LogStore, follow: Any, drain: Any, tmp_path: Path) -> None:
    store.create("in")
    store.create("out")
    append(store, 0, 10)
    drain(follow("in").select("value"), log="out")
    other = f"file://{tmp_path}/other?durability=fast"
    with open_logs(other) as elsewhere:
        elsewhere.create("in")
        append(elsewhere, 0, 30)
        there = spark.readStream.format("penstock").options(url=other, log="in").load().select("value")
        refused(drain(there, log="out"), "the URL is another one")
    assert numbers(store) == list(range(10))


def test_under_a_running_query(spark: Any, store: LogStore, follow: Any, url: str, tmp_path: Path) -> None:
    """A query that runs has the old log open: it must not go on in the new one, nor wait forever."""
    store.create("in")
    store.create("out")
    append(store, 0, 10)
    writer = follow("in").select("value").writeStream.format("penstock").options(url=url, log="out")
    query = (
        writer.option("checkpointLocation", str(tmp_path / "check")).trigger(processingTime="100 milliseconds").start()
    )
    try:
        until(lambda: len(numbers(store)) == 10, query)
        with open_logs(url) as other:
            other.delete("in")
            other.create("in")
            append(other, 100, 200)
        deadline = time.monotonic() + 60
        while query.isActive and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not query.isActive
        # It may have looked in the moment between the two.
        assert any(words in str(explain(query.exception())) for words in ("created again", "no log 'in'"))
    finally:
        query.stop()
    assert numbers(store) == list(range(10))


def test_a_database_made_anew(spark: Any, tmp_path: Path) -> None:
    place = f"sqlite:///{tmp_path}/shop.db?durability=fast"

    def worked(count: int) -> None:
        with open_queues(place) as queues:
            for number in range(count):
                put(queues, "mails", number)
                end(queues, take_one(queues, "mails"))

    def run() -> Any:
        source = spark.readStream.format("penstock").options(url=place, kind="history").load()
        writer = source.select("seq").writeStream.format("parquet").option("path", str(tmp_path / "rows"))
        query = writer.option("checkpointLocation", str(tmp_path / "check")).trigger(availableNow=True).start()
        try:
            query.awaitTermination(60)
        except Exception:
            assert query.exception() is not None
        return query

    worked(5)
    run()
    worked(2)
    run()
    assert spark.read.parquet(str(tmp_path / "rows")).count() == 7
    for path in tmp_path.glob("shop.db*"):
        path.unlink()
    worked(14)
    refused(run())
    assert spark.read.parquet(str(tmp_path / "rows")).count() == 7


def until(happened: Callable[[], bool], query: Any) -> None:
    deadline = time.monotonic() + 60
    while not happened():
        assert query.isActive, explain(query.exception())
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.1)


@pytest.mark.faults
def test_kafka_topics_that_grow_or_are_made_anew(spark: Any, servers: Callable[[str], Any], tmp_path: Path) -> None:
    url = f"{servers('kafka').url}/{new_id()}?durability=fast"
    with open_logs(url) as store:
        assert isinstance(store.driver, KafkaDriver)
        store.create("in", 1)
        store.create("out")
        append(store, 0, 10)

        def start(**trigger: Any) -> Any:
            source = spark.readStream.format("penstock").options(url=url, log="in", start="latest").load()
            writer = source.select("value").writeStream.format("penstock").options(url=url, log="out")
            return writer.option("checkpointLocation", str(tmp_path / "check")).trigger(**trigger).start()

        query = start(processingTime="200 milliseconds")
        try:
            until(lambda: query.lastProgress is not None, query)
            append(store, 10, 20)
            until(lambda: numbers(store) == list(range(10, 20)), query)
            topic = store.driver.cluster.topic("in")
            for future in store.driver.cluster.admin.create_partitions([NewPartitions(topic, 3)]).values():
                future.result(30)
            with open_logs(url) as other:  # the first handle takes a moment to hear of it
                until(lambda: other.settings("in").partitions == 3, query)
                # What is there before the query has heard of the partitions is read too.
                append(other, 20, 30, partition=2)
                append(other, 30, 40, partition=1)
                append(other, 40, 50, partition=0)
                until(lambda: len(numbers(store)) >= 40, query)
        finally:
            query.stop()
        assert numbers(store) == list(range(10, 50))
        query = start(availableNow=True)
        query.awaitTermination(60)
        assert numbers(store) == list(range(10, 50))

        store.delete("in")
        store.create("in", 3)
        append(store, 100, 200, partition=0)
        query = start(availableNow=True)
        with pytest.raises(Exception):  # noqa: B017 - Spark's own; what is in it is looked at
            query.awaitTermination(60)
        refused(query)
        assert numbers(store) == list(range(10, 50))
