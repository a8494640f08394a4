"""Tasks of SparkRunner without Spark: the two paths come to the same, and any worker goes on where another one was."""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.unit.stream.stored import stored

import penstock
from penstock.log.protocol import Commit
from penstock.log.record import Partition
from penstock.log.store import LogStore

pytest.importorskip("pyspark")

from penstock.ids import new_id
from penstock.spark.runner import code_path, task
from penstock.spark.runner.appends import records_of
from penstock.spark.runner.code_path import PartitionTask
from penstock.spark.runner.commit import merged
from penstock.spark.runner.micro_batch import MicroBatch, StateVersion, TaskPlan, TaskResult, TaskTime, decoded_result
from penstock.spark.runner.shipping import TaskSpec
from penstock.stream import (
    CONTINUE,
    Computation,
    Session,
    Sliding,
    Topology,
    Tumbling,
    Value,
    Windowed,
    chain,
    computation,
    filter_values,
    internal_logs,
    map_values,
    running_count,
    running_fold,
    running_max,
    running_min,
    running_sum,
    windowed_count,
    windowed_fold,
    windowed_max,
    windowed_min,
    windowed_sum,
)
from penstock.stream.engine import blocks, changelog
from penstock.stream.engine.changelog import state_log
from penstock.stream.internal_logs import last_change, state_payloads
from penstock.stream.validate import ResolvedTopology

SECOND = 1_000_000
COUNT = 600
FOLDED = ["fold", "code", "fold", "fold", "code"]  # two of the batches have no records
Worker = Callable[[MicroBatch], TaskResult]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LogStore]:
    with penstock.open_logs(f"file://{tmp_path / 'logs'}?durability=fast") as opened:
        yield opened


def append(store: LogStore, payloads: list[bytes], seed: int = 0) -> None:
    """Keys of all kinds, times that mostly go on and sometimes are late."""
    chance = random.Random(seed)
    store.create("in", 1)
    with store.appender("in", bytes) as out:
        for rank, payload in enumerate(payloads):
            at = (1_700_000_000 + rank // 20 - (chance.random() < 0.1) * chance.randrange(60)) * SECOND
            key = chance.choice([None, "", "a", "ä", *(f"k{number}" for number in range(20))])
            out.append(payload, key=key, timestamp=at, headers={"n": str(rank)} if rank % 7 == 0 else None)
            if rank % 50 == 49:
                out.flush()


class Driver:
    """Commits what tasks make of batches, as the driver does, and says what came of it."""

    def __init__(self, store: LogStore, topology: Topology, outputs: tuple[str, ...] = ("out", "late")) -> None:
        ResolvedTopology(topology, store, create=True)
        self.store = store
        self.spec = TaskSpec("one", store.url, topology, "fold")
        self.outputs = outputs
        self.state = Partition(state_log("fold"), 0)
        self.versions = [StateVersion("", store.bounds_of(self.state).end)]
        self.time: TaskTime | None = None
        self.paths: list[str] = []

    def batch(self, number: int, start: int, stop: int, finish: bool | None = None) -> MicroBatch:
        plan = TaskPlan(0, {"in": (start, stop)}, time=self.time, versions=self.versions)
        return MicroBatch(1, number, 1_800_000_000 * SECOND + number, [plan], finish)

    def commit(self, result: TaskResult) -> Any:
        starts = {log: self.store.bounds_of(Partition(log, 0)).end for log in self.outputs}
        parts = merged([(Partition(part.log, part.partition), records_of(part)) for part in result.parts])
        done = self.store.transact(Commit(parts, [], result.staged))
        ends = done.offsets.get(self.state, ())
        end = ends[-1] + 1 if len(ends) else self.versions[-1].end
        self.versions = [*self.versions, StateVersion(result.id, end)]
        self.time = TaskTime(result.low, result.highs, result.heard)
        self.paths.append(result.path)
        wrote = {
            log: [
                (record.payload, record.key, record.time_us, dict(record.headers))
                for batch in self.store.batches(Partition(log, 0), start)
                for record in batch.records()
            ]
            for log, start in starts.items()
        }
        told = msgspec.structs.replace(
            result, id="", path="", parts=[], staged=[], state_needed_from=None
        )  # fmt: skip
        return msgspec.to_builtins(told), wrote, self.kept()

    def kept(self) -> dict[Any, Any]:
        """All that the state log comes to."""
        return stored(payload for _, payload in state_payloads(self.store, self.state)[0])

    def run(self, worker: Worker, low: int = COUNT // 4) -> list[Any]:
        """Several batches, an empty one, then the end."""
        ranges = [(0, low), (low, low), (low, COUNT - 100), (COUNT - 100, COUNT)]
        told = [self.commit(worker(self.batch(rank, *place))) for rank, place in enumerate(ranges)]
        return [*told, self.commit(worker(self.batch(9, COUNT, COUNT, finish=True)))]


def fresh_worker(spec: TaskSpec, *, folds: bool = True) -> Worker:
    """One that has never seen the task before; it stays."""
    held = PartitionTask(spec, 0)
    if not folds:
        held._fold_path = None

    def work(batch: MicroBatch) -> TaskResult:
        task = held.prepare(batch, batch.tasks[0])
        if not folds:
            task._fold = None  # nor what the engine folds between two checkpoints
        return held.run(batch, batch.tasks[0])

    return work


def topology(piece: Any, type_: Any, out_of_order: str = "0s") -> Topology:
    made = (
        Topology("folds", partitions=1)
        .stream("in", type_, out_of_order=out_of_order)
        .stream("out", Windowed)
        .stream("late", type_)
    )
    return made.add(piece)


def plus_one(held: Any, value: Any) -> Any:
    return held + value


def chained(last: Computation) -> Computation:
    return chain(
        "fold",
        map_values("scale", lambda value: value * 2 if isinstance(value, int | float) else value, "in", "a"),
        filter_values("keep", lambda value: str(value)[-1:] != "0", "a", "b"),
        last,
    )


PIECES = {
    "count": lambda: windowed_count("fold", "in", "out", Tumbling("5s"), late="late"),
    "long": lambda: windowed_count("fold", "in", "out", Tumbling("7300d")),
    "patient": lambda: windowed_count("fold", "in", "out", Tumbling("5s"), late="late"),
    "sliding": lambda: windowed_count("fold", "in", "out", Sliding("6s", "2s"), late="late"),
    "uneven": lambda: windowed_count("fold", "in", "out", Sliding("5s", "2s"), late="late"),
    "gaps": lambda: windowed_count("fold", "in", "out", Sliding("1s", "3s"), late="late"),
    "fold": lambda: windowed_fold("fold", "in", "out", Tumbling("5s"), initial=0, fold=plus_one, late="late"),
    "list": lambda: windowed_fold("fold", "in", "out", Tumbling("5s"), initial=[], fold=lambda a, b: [*a, b]),
    "sum": lambda: windowed_sum("fold", "in", "out", Tumbling("5s"), late="late"),
    "slid sum": lambda: windowed_sum("fold", "in", "out", Sliding("6s", "2s"), of=abs, late="late"),
    "shaped": lambda: windowed_sum(
        "fold",
        "in",
        "out",
        Tumbling("5s"),
        key=lambda window: window.start,
        result=lambda window: Windowed(window.key, window.start, window.end, -window.value),
    ),
    "min": lambda: windowed_min("fold", "in", "out", Tumbling("5s"), late="late"),
    "chained": lambda: chained(windowed_sum("last", "b", "out", Sliding("6s", "2s"), of=abs, late="late")),
    "chained count": lambda: chained(windowed_count("last", "b", "out", Tumbling("5s"), late="late")),
    "max": lambda: windowed_max("fold", "in", "out", Sliding("6s", "3s")),
}
# Numbers that a column of 64 bits holds, those that it does not, and those whose sum depends on the order.
NUMBERS: dict[str, Callable[[random.Random], Any]] = {
    "whole": lambda chance: chance.randrange(-1000, 1000),
    "large": lambda chance: chance.choice([1, -1]) * (1 << chance.randrange(55, 70)),
    "decimal": lambda chance: chance.choice([0.1, 1e16, -1e16, 3, 0.0, -0.0]),
}


@pytest.mark.parametrize("kind", NUMBERS)
@pytest.mark.parametrize("piece", PIECES)
def test_both_paths_come_to_the_same(tmp_path: Path, piece: str, kind: str) -> None:
    chance = random.Random(piece + kind)
    payloads = [msgspec.json.encode(NUMBERS[kind](chance)) for _ in range(COUNT)]
    results = []
    for folds in (True, False):
        with penstock.open_logs(f"file://{tmp_path / str(folds)}?durability=fast") as store:
            append(store, payloads)
            driver = Driver(store, topology(PIECES[piece](), Any, "20s" if piece == "patient" else "0s"))
            results.append(driver.run(fresh_worker(driver.spec, folds=folds)))
            assert driver.paths == (FOLDED if folds else ["code"] * 5)
    for folded, single in zip(*results, strict=True):
        assert folded == single
    assert sum(len(wrote["out"]) for _, wrote, _ in results[0]) > 20
    assert not results[0][-1][2], "every window has ended"


@pytest.mark.parametrize("piece", ["count", "long", "sliding", "uneven", "gaps", "plain sliding", "total"])
def test_records_that_are_only_counted(tmp_path: Path, piece: str) -> None:
    """Bytes, which nobody has to read but those who pass late ones on."""
    more = {
        "plain sliding": lambda: windowed_count("fold", "in", "out", Sliding("6s", "2s")),
        "total": lambda: running_count("fold", "in", "out"),
    }
    results = []
    for folds in (True, False):
        with penstock.open_logs(f"file://{tmp_path / str(folds)}?durability=fast") as store:
            append(store, [b"\xff" * (rank % 9) for rank in range(COUNT)])
            made = int if piece == "total" else Windowed
            graph = Topology("folds", partitions=1).stream("in", bytes).stream("out", made).stream("late", bytes)
            driver = Driver(store, graph.add({**PIECES, **more}[piece]()))
            results.append(driver.run(fresh_worker(driver.spec, folds=folds)))
            assert driver.paths == (FOLDED if folds else ["code"] * 5)
    if piece == "total":
        results = [[(kept, last_by_key(wrote["out"])) for _, wrote, kept in told] for told in results]
    assert results[0] == results[1]


@pytest.mark.parametrize("kind", NUMBERS)
@pytest.mark.parametrize("make", [windowed_count, windowed_sum, windowed_min], ids=["count", "sum", "min"])
def test_sessions_are_folded_by_the_engine(tmp_path: Path, make: Any, kind: str) -> None:
    chance = random.Random(f"{make.__name__}{kind}")
    payloads = [msgspec.json.encode(NUMBERS[kind](chance)) for _ in range(COUNT)]
    results = []
    for folds in (True, False):
        with penstock.open_logs(f"file://{tmp_path / str(folds)}?durability=fast") as store:
            append(store, payloads)
            driver = Driver(store, topology(make("fold", "in", "out", Session("1s"), late="late"), Any))
            results.append(driver.run(fresh_worker(driver.spec, folds=folds)))
    assert results[0] == results[1]
    assert sum(len(wrote["out"]) for _, wrote, _ in results[0]) > 20


@pytest.mark.parametrize(
    "make",
    [
        lambda approx: windowed_sum("fold", "in", "out", Tumbling("7300d"), approx=approx),
        lambda approx: running_sum("fold", "in", "out", approx=approx),
    ],
    ids=["windows", "totals"],
)
def test_sums_of_floats_are_near_each_other_where_they_may_be(tmp_path: Path, make: Any) -> None:
    chance = random.Random(1)
    payloads = [msgspec.json.encode(chance.random()) for _ in range(COUNT)]
    sums = []
    for approx in (True, False):
        with penstock.open_logs(f"file://{tmp_path / str(approx)}?durability=fast") as store:
            append(store, payloads)
            graph = Topology("folds", partitions=1).stream("in").stream("out").stream("late").add(make(approx))
            driver = Driver(store, graph)
            driver.run(fresh_worker(driver.spec))
            found = [msgspec.json.decode(record.payload) for record in store.log("out", bytes).records(0)]
            last = {record.key or "": value for record, value in zip(store.log("out").records(0), found, strict=True)}
            sums.append({key: value["value"] if isinstance(value, dict) else value for key, value in last.items()})
    assert sums[0] == pytest.approx(sums[1], rel=1e-12)
    assert sums[0].keys() == sums[1].keys()
    assert len(sums[0]) > 20


TOTALS = {
    "count": lambda: running_count("fold", "in", "out"),
    "sum": lambda: running_sum("fold", "in", "out"),
    "of": lambda: running_sum("fold", "in", "out", of=lambda value: len(str(value))),
    "min": lambda: running_min("fold", "in", "out"),
    "max": lambda: running_max("fold", "in", "out"),
    "texts": lambda: running_max("fold", "in", "out", of=str),
    "fold": lambda: running_fold("fold", "in", "out", initial=0, fold=plus_one),
    "chained": lambda: chained(running_sum("last", "b", "out")),
}


@pytest.mark.parametrize("kind", NUMBERS)
@pytest.mark.parametrize("piece", TOTALS)
def test_totals(tmp_path: Path, piece: str, kind: str) -> None:
    """Each batch tells the totals of its keys once, with the time of the last record."""
    chance = random.Random(piece + kind)
    payloads = [msgspec.json.encode(NUMBERS[kind](chance)) for _ in range(COUNT)]
    results = []
    for folds in (True, False):
        with penstock.open_logs(f"file://{tmp_path / str(folds)}?durability=fast") as store:
            append(store, payloads)
            graph = Topology("folds", partitions=1).stream("in").stream("out").stream("late").add(TOTALS[piece]())
            driver = Driver(store, graph)
            results.append(driver.run(fresh_worker(driver.spec, folds=folds)))
    for (folded, wrote, kept), (single, written, state) in zip(*results, strict=True):
        assert kept == state
        assert last_by_key(wrote["out"]) == last_by_key(written["out"])
        assert folded["produced"] == len(wrote["out"]) == len(last_by_key(wrote["out"]))
        assert {**folded, "produced": 0} == {**single, "produced": 0}
    assert len(results[0][0][1]["out"]) > 20


def last_by_key(rows: list[Any]) -> dict[str, Any]:
    """No key and an empty one have the same total."""
    return {row[1] or "": row for row in rows}


ODD = [b"{", b"", b"nul", b"[1]", b'"x"', b"1 2", b"\xff", b"1e400", b"NaN", b"true", b'{"a":1}', b"null"]


@pytest.mark.parametrize("seed", range(12))
def test_odd_payloads_come_to_the_same(tmp_path: Path, seed: int) -> None:
    """Records that cannot be read or folded are dead letters on either path, and all others count."""
    chance = random.Random(seed)
    pieces = [*PIECES.values()]
    payloads = [str(chance.randrange(1000)).encode() for _ in range(COUNT)]
    for _ in range(chance.randrange(1, 6)):
        payloads[chance.randrange(COUNT)] = chance.choice(ODD)
    results = []
    make = chance.choice(pieces)
    type_ = chance.choice([int, float, Any])
    for folds in (True, False):
        with penstock.open_logs(f"file://{tmp_path / str(folds)}?durability=fast") as store:
            append(store, payloads, seed)
            piece = make()
            piece.policy = CONTINUE
            driver = Driver(store, topology(piece, type_), ("out", "late", "fold.dead"))
            results.append(driver.run(fresh_worker(driver.spec, folds=folds)))
    assert results[0] == results[1]


def test_a_bad_record_takes_one_batch_off_the_fold_path(store: LogStore) -> None:
    append(store, [b"no number" if rank == 77 else b"1" for rank in range(COUNT)])
    piece = windowed_sum("fold", "in", "out", Tumbling("5s"), late="late", policy=CONTINUE)
    driver = Driver(store, topology(piece, int))
    told = driver.run(fresh_worker(driver.spec))
    assert driver.paths == ["code", "code", "fold", "fold", "code"], "as the next one, with records to fold"
    assert [one["skipped"] for one, _, _ in told] == [1, 0, 0, 0, 0]
    assert [record.payload for record in store.log("fold.dead", bytes).records(0)] == [b"no number"]


def test_a_fold_that_changes_what_it_is_given(tmp_path: Path) -> None:
    """A value that is in several windows is another one in each."""

    def share(held: dict[str, int] | None, value: dict[str, int]) -> dict[str, int]:
        if held is None:
            return value
        held["n"] += value["n"]
        return held

    results = []
    for folds in (True, False):
        with penstock.open_logs(f"file://{tmp_path / str(folds)}?durability=fast") as store:
            append(store, [b'{"n":1}'] * COUNT)
            made = windowed_fold("fold", "in", "out", Sliding("10s", "5s"), initial=None, fold=share)
            driver = Driver(store, topology(made, dict[str, int]))
            results.append(driver.run(fresh_worker(driver.spec, folds=folds)))
    assert results[0] == results[1]


class TestState:
    """Which worker does the next batch of a task makes no difference."""

    @staticmethod
    def topology() -> Topology:
        @computation("fold", inputs="in", outputs="out", states=[Value("n", int, 0)])
        def count(record: Any, ctx: Any) -> None:
            held = ctx.value("n")
            held.set(held.get() + 1)
            ctx.set_timer(record.time_us + 3 * SECOND, str(held.get() % 3))
            ctx.produce("out", [held.get(), record.value])

        @count.timer
        def ring(timer: Any, ctx: Any) -> None:
            ctx.produce("out", [timer.name, ctx.value("n").get()])

        return Topology("kept", partitions=1).stream("in", int).stream("out", list).stream("late").add(count)

    @pytest.mark.parametrize("seed", range(4))
    def test_workers_take_turns(self, tmp_path: Path, seed: int) -> None:
        """Some have seen other batches, some results are lost, and some workers are new."""
        payloads = [str(number).encode() for number in range(COUNT)]
        results = []
        for workers in (1, 3):
            with penstock.open_logs(f"file://{tmp_path / str(workers)}?durability=fast") as store:
                append(store, payloads)
                driver = Driver(store, self.topology())
                chance = random.Random(seed)
                pool = [fresh_worker(driver.spec) for _ in range(workers)]
                told = []
                for rank, start in enumerate(range(0, COUNT, 20)):
                    batch = driver.batch(rank, start, start + 20)
                    if workers > 1:
                        if chance.random() < 0.3:
                            chance.choice(pool)(batch)  # its result is lost
                        if chance.random() < 0.1:
                            pool[chance.randrange(workers)] = fresh_worker(driver.spec)
                    told.append(driver.commit(chance.choice(pool)(batch)))
                told.append(driver.commit(chance.choice(pool)(driver.batch(99, COUNT, COUNT, finish=True))))
                results.append(told)
        assert results[0] == results[1]

    @pytest.mark.parametrize("folds", [True, False], ids=["fold", "code"])
    @pytest.mark.parametrize(
        "piece", ["count", "sliding", "fold", "list", "total count", "total of", "total max", "total fold"]
    )
    def test_many_keys_go_from_worker_to_worker(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: str, folds: bool
    ) -> None:
        """As above, with the state log rewritten all the time."""
        monkeypatch.setattr(changelog, "SMALL", 10)
        monkeypatch.setattr(blocks, "KEYS", 20)
        monkeypatch.setattr(blocks, "AGAIN", 20)
        keys, count, size = 200, 4000, 200
        results = []
        for workers in (1, 3):
            with penstock.open_logs(f"file://{tmp_path / str(workers)}?durability=fast") as store:
                chance = random.Random(piece)
                store.create("in", 1)
                with store.appender("in", int) as out:
                    for rank in range(count):
                        at = (rank // 100 - (chance.random() < 0.1) * chance.randrange(20)) * SECOND
                        key = f"k{chance.randrange(keys)}"
                        out.append(rank, key=key, timestamp=1_700_000_000 * SECOND + at)
                made, is_total = piece.removeprefix("total "), piece.startswith("total")
                graph = Topology("folds", partitions=1).stream("in", int, out_of_order="2s").stream("late", int)
                graph.stream("out", Any if is_total else Windowed)
                driver = Driver(store, graph.add((TOTALS if is_total else PIECES)[made]()))
                pool = [fresh_worker(driver.spec, folds=folds) for _ in range(workers)]
                told, bases = [], set()
                for rank, start in enumerate(range(0, count, size)):
                    batch = driver.batch(rank, start, start + size)
                    if workers > 1 and chance.random() < 0.4:
                        chance.choice(pool)(batch)  # its result is lost
                    if workers > 1 and chance.random() < 0.2:
                        pool[chance.randrange(workers)] = fresh_worker(driver.spec, folds=folds)
                    told.append(driver.commit(chance.choice(pool)(batch)))
                    last = last_change(store, driver.state)
                    bases.add(0 if last is None else last.base)
                told.append(driver.commit(chance.choice(pool)(driver.batch(99, count, count, finish=True))))
                results.append(told)
                assert len(bases) > 3, "it was rewritten"
        assert results[0] == results[1]
        assert max(len(kept) for _, _, kept in results[0]) > keys - is_total
        assert sum(len(wrote["out"]) for _, wrote, _ in results[0]) > 5 * keys

    def test_the_state_log_is_bounded_whoever_writes_it(self, store: LogStore) -> None:
        """Each of two workers rewrites what it holds, and what was rewritten can go."""
        store.create("in", 1)
        with store.appender("in", int) as out:
            out.append_many(list(range(6000)), keys=[f"k{number % 50}" for number in range(6000)])
        driver = Driver(store, self.topology())
        pool = [fresh_worker(driver.spec) for _ in range(2)]
        cuts = []
        for rank, start in enumerate(range(0, 6000, 100)):
            result = pool[rank % 2](driver.batch(rank, start, start + 100))
            cuts.append(result.state_needed_from)
            driver.commit(result)
        needed_from = [cut for cut in cuts if cut is not None]
        assert needed_from == sorted(needed_from)
        assert needed_from[-1] > store.bounds_of(driver.state).end // 2

    def test_the_state_log_says_where_all_inputs_are(self, store: LogStore) -> None:
        """Whoever goes on looks at its last record only."""

        @computation("fold", inputs=("in", "other"), states=[Value("n", int, 0)])
        def count(record: Any, ctx: Any) -> None:
            ctx.value("n").set(ctx.value("n").get() + 1)

        for log in ("in", "other"):
            store.create(log, 1)
            store.log(log, int).append_many(range(10))
        driver = Driver(store, Topology("two", partitions=1).stream("in", int).stream("other", int).add(count), ())
        worker = fresh_worker(driver.spec)
        driver.commit(worker(driver.batch(1, 0, 10)))
        batch = driver.batch(2, 0, 0)
        batch.tasks[0].ranges, batch.tasks[0].positions = {"other": (0, 5)}, {"in": 10}
        driver.commit(worker(batch))
        last = last_change(store, driver.state)
        assert last is not None
        assert last.offsets == {"in": 10, "other": 5}

    def test_what_a_worker_holds(self, store: LogStore, monkeypatch: pytest.MonkeyPatch) -> None:
        """The state that is in memory is used; what does not hold any more is read again."""
        append(store, [b"1"] * COUNT)
        driver = Driver(store, self.topology())
        restored: list[str] = []
        restore_task = code_path.WorkerState._restored

        def counted(self: Any) -> Any:
            restored.append("restored")
            return restore_task(self)

        monkeypatch.setattr(code_path.WorkerState, "_restored", counted)
        monkeypatch.setattr(task, "unpacked", lambda spec: driver.spec)
        first = decoded_result(task.run_task(driver.spec, driver.batch(1, 0, 10), 0))
        driver.commit(first)
        driver.commit(decoded_result(task.run_task(driver.spec, driver.batch(2, 10, 20), 0)))
        assert restored == ["restored"]
        lost = driver.batch(3, 20, 30)
        task.run_task(driver.spec, lost, 0)
        driver.commit(decoded_result(task.run_task(driver.spec, lost, 0)))
        assert restored == ["restored"] * 2, "what was not committed is forgotten"
        task._held.pop((driver.spec.url, "fold", 0)).abandon()


def test_a_worker_keeps_a_task_without_state_too(store: LogStore) -> None:
    """init() is called once in a worker, and not with every batch."""
    begun: list[int] = []

    class Through(Computation):
        name, inputs, outputs = "fold", "in", "out"

        def init(self, ctx: Any) -> None:
            begun.append(ctx.partition)

        def process(self, record: Any, ctx: Any) -> None:
            ctx.produce("out", record)

    append(store, [b"1"] * 30)
    graph = Topology("through", partitions=1).stream("in").stream("out").add(Through)
    ResolvedTopology(graph, store, create=True)
    spec = TaskSpec(new_id(), store.url, graph, "fold")
    for number in range(3):
        plan = TaskPlan(0, {"in": (10 * number, 10 * number + 10)})
        result = decoded_result(task.run_task(spec, MicroBatch(1, number, 1, [plan]), 0))
        assert (result.records, result.positions) == (10, {"in": 10 * number + 10})
    assert begun == [0]
    task._held.pop((spec.url, "fold", 0)).abandon()


def test_a_worker_that_comes_back_to_a_cut_state_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others have written all of the state again since, and what it would have to read is deleted."""
    monkeypatch.setattr(internal_logs, "STATE_SEGMENT", 4096)
    monkeypatch.setattr(changelog, "SMALL", 10)
    with penstock.open_logs(f"file://{tmp_path}?durability=fast") as store:
        append(store, [b"1"] * COUNT)
        driver = Driver(store, Topology("t").stream("in").stream("out").stream("late").add(TOTALS["count"]()))
        early, busy = fresh_worker(driver.spec), fresh_worker(driver.spec)
        driver.commit(early(driver.batch(0, 0, 10)))
        held_from, size = driver.versions[-1].end, 20
        for number, start in enumerate(range(10, COUNT - size, size), 1):
            result = busy(driver.batch(number, start, start + size))
            driver.commit(result)
            if result.state_needed_from is not None:
                internal_logs.cut_state_log(store, driver.state, result.state_needed_from)
        assert store.bounds_of(driver.state).start > held_from
        _, _, kept = driver.commit(early(driver.batch(99, COUNT - size + 10, COUNT)))
        assert sum(int(value) for value, _ in kept.values()) == COUNT


def test_tasks_beyond_the_memory_read_their_state_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two tasks in one worker that may hold one entry: each drops the other, and says so."""
    monkeypatch.setattr(task, "_held", OrderedDict())  # nothing of other tests
    totals = []
    with ExitStack() as stores:
        drivers = []
        for name in ("one", "two"):
            store = stores.enter_context(penstock.open_logs(f"file://{tmp_path / name}?durability=fast"))
            append(store, [b"1"] * COUNT)
            graph = Topology("t").stream("in").stream("out").stream("late").add(TOTALS["count"]())
            drivers.append(Driver(store, graph))
            drivers[-1].spec.state_in_memory = 1
        for number, start in enumerate(range(0, COUNT, 200)):
            for driver in drivers:
                batch = driver.batch(number, start, start + 200)
                *_, kept = driver.commit(decoded_result(task.run_task(driver.spec, batch, 0)))
                totals.append(sum(int(value) for value, _ in kept.values()))
    assert totals == [200, 200, 400, 400, 600, 600]
    dropped = [record.message for record in caplog.records if "dropped from memory" in record.message]
    assert len(dropped) == 5, "all but the last task"
    assert "state_in_memory" in dropped[0]
