"""Writing to logs: routing, and one effect whatever is repeated."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark import TaskContext
from pyspark.sql import functions as f
from tests.spark.conftest import written

from penstock import LogStore
from penstock.errors import BadInput
from penstock.log.partitioner import PARTITIONERS
from penstock.spark import explain, plain_errors
from penstock.spark.datasource.query_identity import BATCH, QUERY

KEYS = ["", "a", "user-17", "käse", "𝄞 clef", "x" * 300]


def numbers(store: LogStore, log: str) -> list[int]:
    return sorted(int(one.payload) for one in written(store, log))


def filled(store: LogStore, count: int = 50) -> None:
    store.create("in", 2)
    store.create("out", 3)
    with store.appender("in", bytes) as out:
        out.append_many([b"%d" % at for at in range(count)], keys=[f"k{at}" for at in range(count)])


def save(frame: Any, url: str, **options: Any) -> None:
    frame.write.format("penstock").options(url=url, **options).mode("append").save()


@pytest.mark.parametrize("partitioner", list(PARTITIONERS))
def test_a_key_goes_where_the_appender_sends_it(spark: Any, store: LogStore, url: str, partitioner: str) -> None:
    store.create("ours", 7, partitioner=partitioner)
    store.create("spark", 7, partitioner=partitioner)
    with store.appender("ours", bytes) as out:
        out.append_many([key.encode() for key in KEYS], keys=KEYS)
    save(spark.createDataFrame([(key, key) for key in KEYS], "key STRING, value STRING").coalesce(1), url, log="spark")
    placed = {log: {(one.key, one.partition) for one in written(store, log)} for log in ("ours", "spark")}
    assert placed["ours"] == placed["spark"]


def test_columns_and_several_logs(spark: Any, store: LogStore, url: str) -> None:
    store.create("a", 2)
    store.create("b", 3)
    rows = spark.range(40).select(
        f.when(f.col("id") % 2 == 0, "a").otherwise("b").alias("log"),
        f.col("id").cast("string").alias("value"),
        f.when(f.col("id") < 30, f.concat(f.lit("k"), "id")).alias("key"),
        f.when(f.col("id") < 10, f.lit(1)).alias("partition"),
        f.timestamp_micros("id").alias("time"),
        f.when(f.col("id") < 5, f.create_map(f.lit("h"), f.col("id").cast("string"))).alias("headers"),
    )
    save(rows, url)
    assert numbers(store, "a") == list(range(0, 40, 2))
    assert numbers(store, "b") == list(range(1, 40, 2))
    for record in (*written(store, "a"), *written(store, "b")):
        number = int(record.payload)
        assert record.time_us == number
        assert record.key == (f"k{number}" if number < 30 else None)
        assert dict(record.headers) == ({"h": str(number)} if number < 5 else {})
        assert number >= 10 or record.partition == 1


def test_large_files_of_tasks_become_segments_in_the_order_of_the_rows(spark: Any, store: LogStore, url: str) -> None:
    store.create("big", 2)
    count = 40_000
    rows = spark.range(0, count, numPartitions=2).select(
        f.lpad(f.col("id").cast("string"), 150, " ").alias("value"), (f.col("id") % 2).cast("int").alias("partition")
    )
    assert "hard link" in store.staged_commit()
    for sequence in (0, 1, 1):
        save(rows, url, log="big", producer="nightly", sequence=sequence)
    expected = [number for number in range(count) if number % 2 == 0]
    assert [int(one.payload) for one in store.log("big", bytes).records(0)] == [*expected, *expected]
    root = Path(store.driver.root)  # type: ignore[attr-defined]
    assert [len(list(root.glob(f"logs/big/{part}/*.seg"))) for part in ("p-0000", "p-0001")] == [4, 4]
    assert {one.level for one in store.verify("big")} == {"good"}
    assert list((root / "staged").iterdir()) == []
    back = spark.read.format("penstock").options(url=url, log="big").load()
    assert back.where("partition = 1 AND offset >= 19990 AND offset < 20010").count() == 20


def test_spark_says_which_query_and_batch_a_task_is_of(follow: Any, drain: Any, store: LogStore) -> None:
    filled(store, 5)

    def tell(batches: Any) -> Any:
        import pyarrow as pa

        context = TaskContext.get()
        for _ in batches:
            text = f"{context.getLocalProperty(QUERY)} {context.getLocalProperty(BATCH)}"
            yield pa.RecordBatch.from_pydict({"value": [text]})

    query = drain(follow("in").select("value").mapInArrow(tell, "value STRING"), log="out")
    assert {one.payload.decode() for one in written(store, "out")} == {f"{query.id} 0"}


def test_a_replayed_batch_changes_nothing(store: LogStore, follow: Any, drain: Any, tmp_path: Path) -> None:
    filled(store)
    frame = follow("in", limit=20).select("key", "value")
    drain(frame, log="out")
    assert numbers(store, "out") == list(range(50))
    for path in (tmp_path / "check" / "commits").glob("*2*"):
        path.unlink()
    again = drain(frame, log="out")
    assert again.exception() is None
    assert [one["batchId"] for one in again.recentProgress] == [2]
    assert numbers(store, "out") == list(range(50))
    assert list((tmp_path / "logs" / "staged").iterdir()) == []
    # A new checkpoint is a new query: its batch 0 is another.
    shutil.rmtree(tmp_path / "check")
    drain(frame, log="out")
    assert len(numbers(store, "out")) == 100


def test_a_task_that_is_tried_again_writes_once(spark: Any, store: LogStore, url: str, tmp_path: Path) -> None:
    store.create("out", 3)

    def flaky(batches: Any) -> Any:
        yield from batches
        if TaskContext.get().attemptNumber() == 0:
            raise RuntimeError("not this time")

    rows = spark.range(100).select(f.col("id").cast("string").alias("value")).repartition(2)
    save(rows.mapInArrow(flaky, "value STRING"), url, log="out")
    assert numbers(store, "out") == list(range(100))
    assert list((tmp_path / "logs" / "staged").iterdir()) == []


def test_a_batch_that_fails_leaves_nothing(spark: Any, store: LogStore, url: str, tmp_path: Path) -> None:
    store.create("out", 3)

    def broken(batches: Any) -> Any:
        yield from batches
        if TaskContext.get().partitionId() == 1:
            raise RuntimeError("never")

    rows = spark.range(100).select(f.col("id").cast("string").alias("value")).repartition(2)
    with pytest.raises(Exception, match="never"):
        save(rows.mapInArrow(broken, "value STRING"), url, log="out")
    assert numbers(store, "out") == []
    assert list((tmp_path / "logs" / "staged").iterdir()) == []


def test_a_batch_may_be_made_repeatable(spark: Any, store: LogStore, url: str) -> None:
    store.create("out")
    rows = spark.range(10).select(f.col("id").cast("string").alias("value"))
    for sequence in (1, 1, 2):
        save(rows, url, log="out", producer="nightly", sequence=sequence)
    assert len(written(store, "out")) == 20
    save(rows, url, log="out")
    save(rows, url, log="out")
    assert len(written(store, "out")) == 40


@pytest.mark.parametrize(
    ("columns", "options", "words"),
    [
        ("'x' AS vlaue", {"log": "out"}, "no column value"),
        ("'x' AS value, 1 AS size", {"log": "out"}, "no column 'size'"),
        ("1 AS value", {"log": "out"}, "A log needs STRING or BINARY"),
        ("'x' AS value", {"log": "nope"}, "there is no log 'nope'"),
        ("'x' AS value", {}, "no target was named"),
        ("'x' AS value, 'nope' AS log", {}, "there is no log 'nope'"),
        ("'x' AS value, CAST(NULL AS STRING) AS log", {}, "its column log is null"),
        ("CAST(NULL AS STRING) AS value", {"log": "out"}, "has no value"),
        ("'x' AS value, 9 AS partition", {"log": "out"}, "no partition 9"),
        ("'x' AS value, -1 AS partition", {"log": "out"}, "no partition -1"),
        ("repeat('x', 9000000) AS value", {"log": "out"}, "over the limit"),
        ("'x' AS value", {"log": "out", "producer": "p"}, "producer and sequence"),
        ("'x' AS value, 'other' AS log", {"log": "out"}, "the option log=out and a column log both say where"),
        ("'x' AS value, map(1, 'a') AS headers", {"log": "out"}, "column headers is map<int,string>"),
        ("'x' AS value, map('a', 1) AS headers", {"log": "out"}, "column headers is map<string,int>"),
        ("'x' AS value, map('a', CAST(NULL AS STRING)) AS headers", {"log": "out"}, "header 'a' is null"),
        ("'x' AS value, repeat('k', 9000000) AS key", {"log": "out"}, "a record of 9,000,001 bytes is over the limit"),
        ("'x' AS value, map('a', repeat('h', 9000000)) AS headers", {"log": "out"}, "a record of 9,000,002 bytes"),
        ("repeat('x', 5000000) AS value, repeat('k', 5000000) AS key", {"log": "out"}, "a record of 10,000,000 bytes"),
        ("'x' AS value, timestamp_micros(9223372036854775807) AS time", {"log": "out"}, "is outside of the calendar"),
    ],
)
def test_bad_rows_are_one_line(
    spark: Any, store: LogStore, url: str, columns: str, options: dict[str, str], words: str
) -> None:
    store.create("out", 2)
    with pytest.raises(Exception) as caught, plain_errors():
        save(spark.sql(f"SELECT {columns}"), url, **options)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert written(store, "out") == []


def test_a_record_is_measured_by_itself(spark: Any, store: LogStore, url: str) -> None:
    """Long values and long keys in one batch, none of them together."""
    store.create("out", 2)
    sizes = "SELECT repeat('x', 5000000) AS value, 'k' AS key UNION ALL SELECT 'x', repeat('k', 5000000)"
    save(spark.sql(sizes).coalesce(1), url, log="out")
    assert sorted(len(one.payload) for one in written(store, "out")) == [1, 5_000_000]


def test_overwriting_is_refused(spark: Any, store: LogStore, url: str) -> None:
    store.create("out")
    with pytest.raises(Exception, match="overwrite") as caught:
        spark.sql("SELECT 'x' AS value").write.format("penstock").options(url=url, log="out").mode("overwrite").save()
    assert isinstance(explain(caught.value), BadInput)
