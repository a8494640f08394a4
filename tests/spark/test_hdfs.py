"""On a real HDFS: the lake, checkpoints of streams, export and import."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tools.hdfs import Hdfs
from tools.servers import Missing

from penstock import LogStore, QueueStore, open_queues
from penstock.errors import CannotOpen, Conflict
from penstock.ids import new_nonce
from penstock.spark.lake import manifest
from penstock.spark.lake.export import export
from penstock.spark.lake.filesystem import FileSystem
from penstock.spark.lake.ingest import Import, run
from penstock.spark.lake.lake import Lake, Run
from penstock.spark.lake.pipeline import Pipeline, Sources
from penstock.testing import FakeClock


@pytest.fixture(scope="module")
def hdfs() -> Iterator[str]:
    """The address of an HDFS."""
    try:
        server = Hdfs()
    except Missing as missing:
        pytest.skip(f"HDFS is not installed here: {missing}")
    try:
        yield server.start().url
    finally:
        server.close()


@pytest.fixture
def place(hdfs: str) -> str:
    """A folder of one's own there."""
    return f"{hdfs}/{new_nonce()}"


def test_a_lake(spark: Any, place: str, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/shop.db?durability=fast"
    clock = FakeClock()

    def work(queues: QueueStore, count: int) -> None:
        orders = queues.queue("orders", int)
        for number in range(count):
            orders.put(number)
            with queues.unit() as unit:
                unit.take(orders)
                unit.commit()
            clock.advance("1s")

    with open_queues(url, clock=clock) as queues:
        pipeline = Pipeline(spark, f"{place}/lake", Sources(queues=(url,)))
        for new in (3, 0, 2):
            work(queues, new)
            assert set(pipeline.run().rows.values()) == {new}
    lake = Lake(spark, f"{place}/lake")
    assert lake.frame("history").count() == 5
    first, second = (Run(Lake(spark, f"{place}/lake")) for _ in range(2))
    for each in (first, second):
        each.sources["some"] = manifest.Position(after=1)
    first.commit()
    with pytest.raises(Conflict, match="nothing of this one counts"):
        second.commit()


def test_the_checkpoint_of_a_stream(store: LogStore, url: str, follow: Callable[..., Any], place: str) -> None:
    store.create("in", 2)
    store.create("out", 2)

    def drained() -> list[int]:
        writer = follow("in", limit=10).select("key", "value").writeStream.format("penstock")
        query = (
            writer.options(url=url, log="out", checkpointLocation=f"{place}/check").trigger(availableNow=True).start()
        )
        query.awaitTermination()
        return sorted(int(one.payload) for part in (0, 1) for one in store.log("out", bytes).records(part))

    for begin in (0, 25):
        with store.appender("in", bytes) as out:
            out.append_many([b"%d" % number for number in range(begin, begin + 25)])
        assert drained() == list(range(begin + 25))


def test_export_and_import(spark: Any, store: LogStore, url: str, tmp_path: Path, place: str) -> None:
    store.create("numbers", 2)
    store.create("again", 2)
    store.log("numbers").append_many([{"n": number} for number in range(20)])
    assert export(spark, url, "numbers", f"{place}/numbers", schema="n BIGINT").records == 20
    assert export(spark, url, "numbers", f"{place}/numbers", schema="n BIGINT").records == 0
    files = FileSystem(spark, f"{place}/lines")
    files.write_new("a.jsonl", b'{"id": "1"}\n{"id": "2"}\noops\n')
    order = Import(source=f"{place}/lines", url=url, target="log:again", key="id", state=tmp_path / "state")
    done = run(spark, order)
    assert (done.taken, done.rejected) == (2, 1)
    [line] = [line for path in done.aside.rglob("*.json") for line in path.read_text().splitlines()]
    assert json.loads(line)["file"] == f"{place}/lines/a.jsonl"
    files.write_new("b.jsonl", b'{"id": "3"}\n')
    assert run(spark, order).taken == 1
    with files.open("a.jsonl") as file:
        assert file.seek(-5, 2) == 24
        assert file.read() == b"oops\n"


def test_a_file_system_that_does_not_answer(spark: Any, tmp_path: Path, url: str, store: LogStore) -> None:
    store.create("rows", 1)
    conf = spark._jsc.hadoopConfiguration()
    conf.set("ipc.client.connect.max.retries", "0")
    order = Import(source="hdfs://127.0.0.1:1/rows", url=url, target="log:rows", state=tmp_path / "state")
    try:
        with pytest.raises(CannotOpen, match=r"hdfs://127\.0\.0\.1:1/rows cannot be read"):
            run(spark, order)
    finally:
        conf.unset("ipc.client.connect.max.retries")
    assert not (tmp_path / "state").exists()
