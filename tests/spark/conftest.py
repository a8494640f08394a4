"""One Spark session for all tests of this folder; without Java they are skipped, visibly."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tools.kafka import jars
from tools.servers import Missing

from penstock import LogStore, Record, open_logs
from penstock.errors import CannotOpen


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whichever test comes first waits for the JVM, and maybe for a server too.

    A time limit that strikes inside a call to the JVM spoils the session for all tests that follow, so it is wide.
    """
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(600))


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    pytest.importorskip("pyspark", reason="pyspark is not installed here")
    from penstock import spark as penstock_spark

    try:
        penstock_spark.check_java()
    except CannotOpen as missing:
        pytest.skip(str(missing))
    # Workers import the tests' own types and sources.
    root = str(Path(__file__).parents[2])
    settings = {
        "spark.sql.shuffle.partitions": 2,
        "spark.executorEnv.PYTHONPATH": root,
        "spark.ui.showConsoleProgress": False,
        "spark.driver.memory": "1g",
        "spark.sql.streaming.noDataMicroBatches.enabled": False,
    }
    with contextlib.suppress(Missing):
        settings["spark.jars"] = ",".join(map(str, jars("spark-kafka").glob("*.jar")))
    assert root in sys.path
    session = penstock_spark.session("tests", master="local[2,3]", settings=settings)
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file://{tmp_path}/logs?durability=fast"


@pytest.fixture
def store(url: str) -> Iterator[LogStore]:
    with open_logs(url) as opened:
        yield opened


Frames = Callable[..., Any]


def written(store: LogStore, log: str) -> list[Record[Any]]:
    """All records of a log."""
    return [one for part in store.partitions(log) for one in store.log(log, bytes).records(part.index)]


@pytest.fixture
def read(spark: Any, url: str) -> Frames:
    """A batch read of a log."""

    def load(log: str, **options: Any) -> Any:
        return spark.read.format("penstock").options(url=url, log=log, **options).load()

    return load


@pytest.fixture
def follow(spark: Any, url: str) -> Frames:
    """A stream over a log."""

    def load(log: str, **options: Any) -> Any:
        return spark.readStream.format("penstock").options(url=url, log=log, **options).load()

    return load


@pytest.fixture
def drain(tmp_path: Path, url: str) -> Frames:
    """Run a stream into a sink until everything there is has been read; the query."""

    from pyspark.errors import StreamingQueryException

    def run(frame: Any, checkpoint: str = "check", **options: Any) -> Any:
        writer = frame.writeStream.format("penstock").options(**{"url": url, **options})
        query = writer.option("checkpointLocation", str(tmp_path / checkpoint)).trigger(availableNow=True).start()
        with contextlib.suppress(StreamingQueryException):  # the query has it
            query.awaitTermination(60)
        assert not query.isActive
        return query

    return run
