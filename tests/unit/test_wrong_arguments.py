"""What a caller mixes up is told with a typed error that names the way out, and never taken as something else."""

import asyncio
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import QueueStore, aio
from penstock.errors import BadInput
from penstock.location import read_url
from penstock.stream import LocalRunner, ProcessRunner, Topology, map_values


@pytest.fixture
def store() -> Any:
    with penstock.open_queues("memory://") as made:
        yield made


@pytest.mark.parametrize("labels", ["a=b", ["a"], {"a": 1}])
def test_labels_that_are_none(store: QueueStore, labels: Any) -> None:
    for call in (store.queue("q").find, store.queue("q").dead, store.queue("q").history):
        with pytest.raises(BadInput, match="label"):
            call(labels=labels)


@pytest.mark.parametrize("values", ["abc", b"abc"])
def test_a_text_is_no_list_of_values(store: QueueStore, values: Any) -> None:
    with pytest.raises(BadInput, match="a single value") as caught:
        store.queue("q").put_many(values)
    assert "put()" in caught.value.hint
    assert store.queue("q").counts().live == 0


def test_a_result_is_no_id(store: QueueStore) -> None:
    result: Any = store.queue("q").put(1)
    queue = store.queue("q")
    calls: list[Callable[[], object]] = [
        lambda: queue.cancel(result), lambda: queue.replay(result), lambda: queue.get(result),
        lambda: queue.update(result, 2), lambda: queue.reschedule(result, delay="1s"), lambda: queue.history(id=result),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(BadInput, match=r"PutResult is not the type of an id.*put\(\.\.\.\)\.id"):
            call()


HALF = "\ud800"  # of a surrogate pair: no store can write it


@pytest.mark.parametrize(
    "call",
    [
        lambda store, queue: queue.put(1, after=1), lambda store, queue: queue.put(1, after=[HALF]),
        lambda store, queue: queue.put(1, batch=HALF), lambda store, queue: queue.put(1, batch=7),
        lambda store, queue: queue.put_many(None), lambda store, queue: queue.put_many([1], chunk=1 << 70),
        lambda store, queue: queue.get(HALF), lambda store, queue: queue.result([]),
        lambda store, queue: queue.result(HALF), lambda store, queue: queue.cancel(HALF),
        lambda store, queue: queue.cancel("x", force=1), lambda store, queue: queue.replay(HALF),
        lambda store, queue: queue.find(state=["held"]), lambda store, queue: queue.find(state="ended"),
        lambda store, queue: queue.find(after=1 << 70), lambda store, queue: queue.dead(after="x"),
        lambda store, queue: queue.history(after=None), lambda store, queue: queue.history(newest_first="x"),
        lambda store, queue: queue.unlock(holder=HALF), lambda store, queue: queue.unlock(holder=[]),
        lambda store, queue: store.counts(queue=7), lambda store, queue: store.counts(family=HALF),
        lambda store, queue: store.locks([]), lambda store, queue: store.remove_schedule({}),
        lambda store, queue: store.batch((queue, 1), inside=HALF),
        lambda store, queue: store.batch((queue, 1)).put_many(queue, 5),
        lambda store, queue: store.batch((queue, 1)).put_many(queue, "56"),
        lambda store, queue: store.unit().take(queue, limit=1 << 70),
        lambda store, queue: store.unit().take(queue, attempts="x"),
        lambda store, queue: penstock.Worker(store, queues=5),
    ],
)  # fmt: skip
def test_what_no_store_could_take(tmp_path: Path, call: Callable[[Any, Any], object]) -> None:
    with penstock.open_queues(f"sqlite:///{tmp_path}/q.db") as store:
        with pytest.raises(BadInput) as caught:
            call(store, store.queue("q", int))
        assert caught.value.hint
        assert store.queue("q").counts().live == 0


@pytest.mark.parametrize("options", [{"after": ["x"]}, {"batch": "x"}, {"dely": "1s"}])
def test_options_that_chains_and_batches_do_not_have(store: QueueStore, options: dict[str, Any]) -> None:
    queue = store.queue("q", int)
    with pytest.raises(BadInput, match=rf"chain\(\) has no option '{next(iter(options))}'"):
        store.chain((queue, 1), (queue, 2), **options)
    with pytest.raises(BadInput, match=rf"batch\(\) has no option '{next(iter(options))}'"):
        store.batch((queue, 1), **options)
    assert queue.counts().live == 0


def test_one_id_for_a_whole_chain(store: QueueStore) -> None:
    own: Any = {"id": "mine"}
    with pytest.raises(BadInput, match=r"chain\(\) has no option 'id'"):
        store.chain((store.queue("q", int), 1), (store.queue("q", int), 2), **own)


def test_a_label_of_the_caller_does_not_hide_a_member(store: QueueStore) -> None:
    pages, reports = store.queue("pages", int), store.queue("reports", str)
    with store.batch((reports, "all"), on="ended") as batch:
        batch.put(pages, 1, labels={"penstock.batch": "another"}, headers={"penstock.batch.on": "done"})
    (member,) = pages.find()
    assert (member.labels["penstock.batch"], member.headers["penstock.batch.on"]) == (batch.id, "ended")
    assert batch.cancel() == 2


def test_fifo_is_yes_or_no(store: QueueStore) -> None:
    yes: Any = "yes"
    with pytest.raises(BadInput, match="fifo='yes'"):
        store.queue("q", fifo=yes)


def test_a_set_inside_a_dict(store: QueueStore) -> None:
    with pytest.raises(penstock.errors.WrongType, match=r"would not come back the same.*declares it"):
        store.queue("q", dict).put({"a": {1, 2}})


def test_a_reset_without_partitions() -> None:
    offsets: Any = 0
    with penstock.open_logs("memory://") as logs, pytest.raises(BadInput, match="no partition"):
        logs.reset("g", offsets)


def test_an_async_worker_of_a_sync_store(store: Any) -> None:
    async def program() -> None:
        aio.Worker(store)

    with pytest.raises(BadInput, match=r"aio\.QueueStore\(store\)"):
        asyncio.run(program())


def test_a_cursor_is_no_connection(tmp_path: Path) -> None:
    with penstock.open_queues(f"sqlite:///{tmp_path}/shop.db") as store:
        mine = sqlite3.connect(tmp_path / "shop.db")
        with pytest.raises(BadInput, match="cursor"):
            store.queue("q").put(1, connection=mine.cursor())
        mine.close()


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("mysql://x@127.0.0.1:1/db?bla=1", "'bla'"),
        ("mysql://x@127.0.0.1:1/db?charst=1", "charset"),
        ("postgresql://x@127.0.0.1:1/db?sslmod=require", "sslmode"),
    ],
)
def test_an_option_that_no_driver_knows(url: str, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        penstock.open_queues(url)


@pytest.mark.parametrize(("text", "seconds"), [("2", 2.0), ("2s", 2.0), ("0.5", 0.5), ("500ms", 0.5), ("1 min", 60.0)])
def test_a_timeout_is_seconds_or_a_duration(text: str, seconds: float) -> None:
    assert read_url(f"redis://x?timeout={text}").seconds("timeout", 9.0) == seconds
    assert read_url("redis://x").seconds("timeout", 9.0) == 9.0


@pytest.mark.parametrize("text", ["", "0", "-1", "soon", "5x", "inf", "2d"])
def test_no_timeout(text: str) -> None:
    with pytest.raises(BadInput, match="is not a time"):
        read_url(f"redis://x?timeout={text}").seconds("timeout", 9.0)


def test_swapped_arguments_of_a_runner_and_a_unit() -> None:
    with penstock.open_logs("memory://") as logs, pytest.raises(BadInput, match="is not a topology"):
        LocalRunner(logs, Topology("t"))  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="is not a log store"):
        LocalRunner(Topology("t"), "file://logs")  # type: ignore[arg-type]
    with penstock.open_queues("memory://") as store, store.unit() as unit:
        with pytest.raises(BadInput, match="is not a queue"):
            unit.put("x", store.queue("jobs"))  # type: ignore[arg-type]
        unit.rollback()


TOPOLOGY = Topology("t").stream("in").stream("out").add(map_values("double", abs, "in", "out"))


@pytest.mark.parametrize(
    "options",
    [
        {"checkpoint_records": 0},
        {"checkpoint_records": -5},
        {"checkpoint_records": "many"},
        {"read": 0},
        {"read": True},
        {"checkpoint_every": "soon"},
        {"max_poll": "-1s"},
        {"restart_backoff": 5},
    ],
)
def test_a_runner_refuses_settings_that_it_could_not_work_with(options: dict[str, Any]) -> None:
    with penstock.open_logs("memory://") as logs, pytest.raises(BadInput, match=next(iter(options))):
        LocalRunner(TOPOLOGY, logs, **options)


def test_runners_say_what_they_take(tmp_path: Path) -> None:
    spark = pytest.importorskip("penstock.spark", reason="pyspark is not installed here")
    with penstock.open_logs(f"file://{tmp_path}/logs") as logs:
        swapped: Any = (logs, TOPOLOGY)
        for runner in (LocalRunner, spark.SparkRunner):
            with pytest.raises(BadInput, match=rf"not a topology. Write {runner.__name__}\(topology, store\)"):
                runner(*swapped)
            with pytest.raises(BadInput, match="not a log store"):
                runner(TOPOLOGY, str(tmp_path))
        with pytest.raises(BadInput, match="not a Spark session"):
            spark.SparkRunner(TOPOLOGY, logs, "local[2]")
        topology: Any = TOPOLOGY
        with pytest.raises(BadInput, match="the name of a topology"):
            ProcessRunner(topology, logs, logs.url)
        with pytest.raises(BadInput, match="a log store and its URL"):
            ProcessRunner("shop.flows:clicks", swapped[1], logs.url)
