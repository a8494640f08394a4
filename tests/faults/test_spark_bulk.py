"""Imports, the queue sink and the history pipeline on Spark, killed in the middle and run again: every row once."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.faults.spark_able import able

from penstock import Retry, Worker, open_logs, open_queues

__all__ = ["able"]
pytestmark = [pytest.mark.faults, pytest.mark.timeout(1000)]

HERE = Path(__file__).parent
PATIENCE = 300
FILES, ROWS = 130, 3  # three batches; the last row of every file is bad
GOOD = {f"{file}-{row}" for file in range(FILES) for row in range(ROWS - 1)}


def drive(
    folder: Path, how: str, *arguments: str, strike: str = "", until: Callable[[], bool] | None = None, **more: str
) -> tuple[int, str]:
    """Run a driver to its end, or to where it is killed: at a point, or when something has happened."""
    path = os.pathsep.join([str(HERE / "spark_site"), str(HERE.parents[1])])
    environment = {**os.environ, "PYTHONPATH": path, "PYSPARK_PYTHON": sys.executable, **more}
    if strike:
        environment["SPARK_STRIKE"] = f"{strike},{folder / 'book'}"
    script = (
        f"import os, runpy, sys; os.environ['SPARK_GROUP'] = str(os.getpid()); sys.argv = sys.argv[1:]; runpy.{how}"
    )
    command = [sys.executable, "-c", script, *arguments]
    said = folder / "said"
    with said.open("wb") as out:
        process = subprocess.Popen(command, env=environment, start_new_session=True, stdout=out, stderr=out, cwd=folder)
        try:
            if until is not None:
                end = time.monotonic() + PATIENCE
                while process.poll() is None and not until() and time.monotonic() < end:
                    time.sleep(0.002)
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
            return process.wait(PATIENCE), said.read_text(errors="replace")
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)  # its JVM too
                process.wait(10)


def penstock(folder: Path, *arguments: str, **more: Any) -> tuple[int, str]:
    return drive(folder, "run_module('penstock', run_name='__main__')", "penstock", *arguments, **more)


# --- import -------------------------------------------------------------------------------------------------


@pytest.fixture
def files(tmp_path: Path) -> Path:
    folder = tmp_path / "in"
    folder.mkdir()
    for file in range(FILES):
        lines = [json.dumps({"id": f"{file}-{row}"}) for row in range(ROWS - 1)]
        (folder / f"{file}.jsonl").write_text("\n".join([*lines, f"bad {file}"]) + "\n")
    return folder


def check_rejected(folder: Path) -> None:
    lines = [line for path in (folder / "state" / "rejected").rglob("*.json") for line in path.read_text().splitlines()]
    assert sorted(json.loads(line)["row"] for line in lines) == sorted(f"bad {file}" for file in range(FILES))


@pytest.mark.parametrize("point", ["spark.commit.before", "log.transaction.committed", "spark.commit.after"])
def test_an_import_into_a_log_is_killed(point: str, files: Path, tmp_path: Path) -> None:
    url = f"file://{tmp_path}/logs"
    with open_logs(url) as store:
        store.create("out", 2)
    asked = ("import", str(files), "--to", "log:out", "--key", "id", "--url", url, "--state", str(tmp_path / "state"))
    assert penstock(tmp_path, *asked, "--master", "local[2]", strike=f"{point},2")[0] == -9
    # On another number of cores: files are cut into tasks in another way.
    code, said = penstock(tmp_path, *asked, "--master", "local[1]")
    assert code == 1, said  # there are rejected rows
    assert f"with all earlier runs: {len(GOOD)} taken, {FILES} rejected" in said
    with open_logs(url) as store:
        found = [one.key for part in store.partitions("out") for one in store.log("out", bytes).records(part.index)]
    assert len(found) == len(GOOD)
    assert set(found) == GOOD
    check_rejected(tmp_path)


@pytest.mark.parametrize("key", [("--key", "id"), ()])
@pytest.mark.parametrize("point", ["spark.put.before", "spark.put.after"])
def test_an_import_into_a_queue_is_killed(point: str, key: tuple[str, ...], files: Path, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/q.db"
    with open_queues(url):
        pass
    asked = ("import", str(files), "--to", "queue:out", *key, "--url", url, "--state", str(tmp_path / "state"))
    assert penstock(tmp_path, *asked, "--master", "local[2]", strike=f"{point},3")[0] == -9
    code, said = penstock(tmp_path, *asked, "--master", "local[1]")
    assert code == 1, said
    assert f"{len(GOOD)} taken" in said
    with open_queues(url) as store:
        found = [one.value["id"] for one in store.queue("out", dict).find(limit=10_000)]
    assert len(found) == len(GOOD)
    assert set(found) == GOOD
    check_rejected(tmp_path)


# --- a stream into a queue ----------------------------------------------------------------------------------


COUNT = 200


@pytest.fixture
def stream(tmp_path: Path) -> dict[str, str]:
    url = f"file://{tmp_path}/logs"
    with open_logs(url) as store:
        store.create("in", 2)
        with store.appender("in", bytes) as out:
            out.append_many([b"%d" % (at % 50) for at in range(COUNT)], keys=[f"k{at}" for at in range(COUNT)])
    queues = f"sqlite:///{tmp_path}/q.db"
    with open_queues(queues):
        pass
    return {"url": url, "QUEUE_URL": queues}


def check_entries(stream: dict[str, str]) -> None:
    """Equal payloads are entries of their own: each of them is there, once."""
    with open_queues(stream["QUEUE_URL"]) as store:
        found = [one.value for one in store.queue("out", int).find(limit=10_000)]
    assert sorted(found) == sorted(at % 50 for at in range(COUNT))


def follow(stream: dict[str, str], folder: Path, *more: str, strike: str = "") -> int:
    how = "run_path(sys.argv[0], run_name='__main__')"
    arguments = (str(HERE / "spark_driver.py"), stream["url"], str(folder / "check"), "local[2,4]", *more)
    return drive(folder, how, *arguments, strike=strike, QUEUE_URL=stream["QUEUE_URL"])[0]


@pytest.mark.parametrize("point", ["spark.put.before,4", "put.inserted,4", "spark.put.after,4", "spark.put.after,10"])
def test_a_stream_into_a_queue_is_killed(point: str, stream: dict[str, str], tmp_path: Path) -> None:
    """Inside a put, between two, and after the last of all, where only the end of the batch is not yet written."""
    assert follow(stream, tmp_path, strike=point) == -9
    assert follow(stream, tmp_path) == 0
    check_entries(stream)


def test_a_batch_of_entries_ends_twice(stream: dict[str, str], tmp_path: Path) -> None:
    """A worker dies in a task, which is tried again; then the end of the last batch is lost, and it comes again."""
    assert follow(stream, tmp_path, "worker") == 0
    assert (tmp_path / "check-worker").exists()
    check_entries(stream)
    for path in (tmp_path / "check" / "commits").glob("*4*"):  # the last one, and its checksum
        path.unlink()
    assert follow(stream, tmp_path) == 0
    check_entries(stream)


# --- the history pipeline -----------------------------------------------------------------------------------


STAGES = ["_lock", *(f"data/{table}/*/*/*.parquet" for table in ("history", "hours", "errors")), "_manifests/*.json"]


@pytest.fixture(scope="module")
def worked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a history."""
    folder = tmp_path_factory.mktemp("shop")

    def handle(value: int, ctx: Any) -> None:
        if value % 7 == 0 and ctx.entry.attempt == 1:
            raise RuntimeError(f"no luck with {value % 3}")

    with open_queues(f"sqlite:///{folder}/shop.db?durability=fast") as store:
        for name in ("mails", "orders"):
            queue = store.queue(name, int)
            queue.add_handler(handle, retry=Retry(attempts=3, delays=["0s"]))
            queue.put_many(range(100))
        Worker(store).drain()
    return folder


def table_rows(lake: Path) -> dict[str, list[str]]:
    from penstock.spark.lake.reading import tables

    found = tables(lake)
    # The bytes of a sketch depend on the order in which it met its values.
    found["hours"] = found["hours"].drop_columns(["waiting", "processing"])
    return {name: sorted(map(repr, table.to_pylist())) for name, table in found.items()}


@pytest.fixture(scope="module")
def whole(worked: Path) -> dict[str, list[str]]:
    """The tables of a run that nobody broke off."""
    code, said = penstock(worked, "pipeline", "run", str(worked / "lake"), "--queues", f"sqlite:///{worked}/shop.db")
    assert code == 0, said
    return table_rows(worked / "lake")


@pytest.mark.parametrize("stage", STAGES)
def test_the_pipeline_is_killed(stage: str, whole: dict[str, list[str]], worked: Path, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    asked = ("pipeline", "run", str(lake), "--queues", f"sqlite:///{worked}/shop.db")
    code, said = penstock(tmp_path, *asked, until=lambda: next(lake.glob(stage), None) is not None)
    assert code == -9, said
    code, said = penstock(tmp_path, *asked)
    assert code == 0, said
    assert table_rows(lake) == whole
