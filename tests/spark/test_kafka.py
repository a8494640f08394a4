"""The same on Kafka: read, follow, write in one transaction, replay."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

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
