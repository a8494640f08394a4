"""The same on Kafka: read, follow, write in one transaction, replay."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock import open_logs
from penstock.ids import new_id
from penstock.log.partitioner import crc32


def test_logs_on_kafka(spark: Any, servers: Callable[[str], Any], tmp_path: Path) -> None:
    url = f"{servers('kafka').url}/{new_id()}?durability=fast"
    with open_logs(url) as store:
        store.create("in", 2)
        store.create("even", 2)
        store.create("odd", 3)
        with store.appender("in", bytes) as out:
            out.append_many(
                [b"%d" % at for at in range(60)], keys=[f"k{at}" for at in range(60)], headers=[{"h": "ä"}] * 60
            )

        assert "all bytes pass through this process" in store.staged_commit()

        def numbers(log: str) -> list[int]:
            parts = store.partitions(log)
            return sorted(int(one.payload) for part in parts for one in store.log(log, bytes).records(part.index))

        rows = spark.read.format("penstock").options(url=url, log="in").load().collect()
        assert sorted(int(row.value) for row in rows) == list(range(60))
        assert all(bytes(row.headers["h"]).decode() == "ä" for row in rows)
        source = spark.readStream.format("penstock").options(url=url, log="in", limit=25).load()
        routed = source.selectExpr(
            "IF(CAST(CAST(value AS STRING) AS INT) % 2 = 0, 'even', 'odd') AS log", "key", "value", "headers"
        )
        for _ in range(2):
            writer = routed.writeStream.format("penstock").option("url", url)
            query = writer.option("checkpointLocation", str(tmp_path / "check")).trigger(availableNow=True).start()
            query.awaitTermination(60)
            assert (numbers("even"), numbers("odd")) == (list(range(0, 60, 2)), list(range(1, 60, 2)))
            for path in (tmp_path / "check" / "commits").glob("*2*"):
                path.unlink()
        record = next(iter(store.log("odd", bytes).records(0)))
        assert dict(record.headers) == {"h": "ä"}
        assert crc32(record.key or "", 3) == 0


def test_equal_to_spark_s_own_connector(spark: Any, servers: Callable[[str], Any], tmp_path: Path) -> None:
    """What ours writes, theirs reads, and the other way round: the same records, batch and stream."""
    if "spark-sql-kafka" not in spark.conf.get("spark.jars", ""):
        pytest.skip("Spark's Kafka connector is not in the cache: run tools/install_kafka.sh spark-kafka")
    server, prefix = servers("kafka"), new_id()
    url = f"{server.url}/{prefix}?durability=fast"

    def ours(log: str) -> list[Any]:
        rows = spark.read.format("penstock").options(url=url, log=log).load().orderBy("partition", "offset").collect()
        return [
            (f"{prefix}-{log}", row.partition, row.offset, row.time, row.key, row.value, dict(row.headers or {}))
            for row in rows
        ]

    def theirs(log: str) -> list[Any]:
        reader = spark.read.format("kafka").option("kafka.bootstrap.servers", server.bootstrap)
        reader = reader.options(subscribe=f"{prefix}-{log}", includeHeaders="true")
        # What was not committed is nobody's to see.
        rows = reader.option("kafka.isolation.level", "read_committed").load().orderBy("partition", "offset")
        return [
            (*row[:6], {one.key: one.value for one in row.headers or ()})
            for row in rows.select("topic", "partition", "offset", "timestamp", "key", "value", "headers").collect()
        ]

    with open_logs(url) as store:
        for log in ("in", "by_ours", "by_theirs"):
            store.create(log, 2)
        with store.appender("in", bytes) as out:
            out.append_many(
                [b"%d" % at for at in range(50)], keys=[f"k{at}" for at in range(50)], headers=[{"h": "ä"}] * 50
            )
    assert len(ours("in")) == 50
    assert ours("in") == theirs("in")
    follow = spark.readStream.format("kafka").option("kafka.bootstrap.servers", server.bootstrap)
    follow = follow.options(subscribe=f"{prefix}-in", startingOffsets="earliest").load().select("key", "value")
    into_ours = follow.writeStream.format("penstock").options(url=url, log="by_ours")
    source = spark.readStream.format("penstock").options(url=url, log="in").load().select("key", "value")
    into_theirs = source.writeStream.format("kafka").option("kafka.bootstrap.servers", server.bootstrap)
    for number, writer in enumerate((into_ours, into_theirs.option("topic", f"{prefix}-by_theirs"))):
        query = writer.option("checkpointLocation", str(tmp_path / f"check{number}")).trigger(availableNow=True).start()
        assert query.awaitTermination(60)
    wanted = sorted((row[4], row[5]) for row in ours("in"))
    for log in ("by_ours", "by_theirs"):
        assert ours(log) == theirs(log)
        assert sorted((row[4], row[5]) for row in ours(log)) == wanted
