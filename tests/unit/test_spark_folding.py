"""Folding whole turns gives what the same turns give record by record: outputs, state, time, and what is told of it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import penstock
from penstock.log.record import Partition
from penstock.log.store import LogStore

pytest.importorskip("pyspark")

from penstock.spark.running import processor
from penstock.spark.running.folding import Folder, folder_for
from penstock.spark.running.sending import Load
from penstock.spark.running.tickets import Done, Errand, Job, done_of, pack
from penstock.spark.running.turn import Turn
from penstock.stream import (
    CONTINUE,
    Sliding,
    Topology,
    Tumbling,
    Windowed,
    running_count,
    running_max,
    running_min,
    running_sum,
    windowed_count,
    windowed_fold,
)
from penstock.stream.validate import ResolvedTopology

SECOND = 1_000_000
COUNT = 600


class Memory:
    """Spark's state store, as far as one task sees it."""

    def __init__(self) -> None:
        self.first: bytes | None = None
        self.buckets: dict[int, bytes] = {}

    def head(self) -> bytes | None:
        return self.first

    def put_head(self, blob: bytes) -> None:
        self.first = blob

    def bucket(self, number: int) -> bytes | None:
        return self.buckets.get(number)

    def put_bucket(self, number: int, blob: bytes) -> None:
        self.buckets[number] = blob

    def entries(self) -> list[Any]:
        """All that is kept, in order."""
        return sorted(one for blob in self.buckets.values() for one in msgspec.msgpack.decode(blob))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LogStore]:
    with penstock.open_logs(f"file://{tmp_path / 'logs'}?durability=fast") as found:
        yield found


def append(store: LogStore, type_: Any, values: list[Any], seed: int = 0) -> None:
    """Keys of all kinds, times that mostly go on and sometimes are late."""
    chance = random.Random(seed)
    store.create("in", 1)
    with store.appender("in", type_) as out:
        for rank, value in enumerate(values):
            at = (1_700_000_000 + rank // 20 - (chance.random() < 0.1) * chance.randrange(60)) * SECOND
            key = chance.choice([None, "", "a", "ä", *(f"k{number}" for number in range(20))])
            out.append(value, key=key, timestamp=at, headers={"n": str(rank)} if rank % 7 == 0 else None)
            if rank % 50 == 49:
                out.flush()


def topology(piece: Any, type_: Any) -> Topology:
    made = Topology("folds", partitions=1).stream("in", type_).stream("out", Windowed).stream("late", type_)
    return made.add(piece)


def turns(low: int = COUNT // 4) -> list[Errand]:
    """Several batches, an empty one, then the end."""
    found = []
    for number, (start, stop) in enumerate([(0, low), (low, low), (low, COUNT - 100), (COUNT - 100, COUNT)]):
        found.append(Errand(number, 1_800_000_000 * SECOND + number, Job(0, {"in": (start, stop)})))
    return [*found, Errand(9, 1_800_000_100 * SECOND, Job(0, {"in": (COUNT, COUNT)}), finish=True)]


def results(store: LogStore, worker: Any, errands: list[Errand], kept: Memory) -> list[Any]:
    """What each turn tells, and what it wrote, by committing it."""
    found = []
    for errand in errands:
        done: Done = worker.run(errand, kept)
        starts = {log: store.bounds_of(Partition(log, 0)).end for log in ("out", "late")}
        with store.transaction() as transaction:
            transaction.append_staged(*done.staged)
            transaction.commit()
        wrote = {
            log: [
                (one.payload, one.key, one.time_us, dict(one.headers))
                for batch in store.batches(Partition(log, 0), start)
                for one in batch.records()
            ]
            for log, start in starts.items()
        }
        done.staged = []
        found.append((msgspec.to_builtins(done), wrote, kept.entries()))
    return found


def folding(load: Load) -> Folder:
    found = folder_for(load.topology.nodes["fold"].computation)
    assert found is not None
    return found(load, 0)


PIECES = {
    "count": lambda: windowed_count("fold", "in", "out", Tumbling("5s"), late="late"),
    "long": lambda: windowed_count("fold", "in", "out", Tumbling("7300d")),
    "patient": lambda: windowed_count("fold", "in", "out", Tumbling("5s"), late="late", lateness="20s"),
    "sliding": lambda: windowed_count("fold", "in", "out", Sliding("6s", "2s"), late="late"),
    "uneven": lambda: windowed_count("fold", "in", "out", Sliding("5s", "2s"), late="late"),
    "gaps": lambda: windowed_count("fold", "in", "out", Sliding("1s", "3s"), late="late"),
    "sum": lambda: windowed_fold("fold", "in", "out", Tumbling("5s"), initial=0, fold=lambda a, b: a + b, late="late"),
    "list": lambda: windowed_fold("fold", "in", "out", Tumbling("5s"), initial=[], fold=lambda a, b: [*a, b]),
}


@pytest.mark.parametrize("kind", [int, bytes])
@pytest.mark.parametrize("piece", PIECES)
def test_equal(store: LogStore, piece: str, kind: type) -> None:
    if kind is bytes and piece in ("sum", "list"):
        kind = str  # results have to be JSON
    append(store, kind, [kind(str(rank).encode()) if kind is bytes else kind(rank) for rank in range(COUNT)])
    if kind is str and piece == "sum":
        made = windowed_fold("fold", "in", "out", Tumbling("5s"), initial="", fold=lambda a, b: a + b, late="late")
    else:
        made = PIECES[piece]()
    graph = topology(made, kind)
    ResolvedTopology(graph, store, create=True)
    load = Load("one", store.url, graph, "fold")
    folded = results(store, folding(load), turns(), Memory())
    single = results(store, Turn(load, 0), turns(), Memory())
    for ours, theirs in zip(folded, single, strict=True):
        assert ours == theirs
    assert sum(len(wrote["out"]) for _, wrote, _ in folded) > 20
    assert not folded[-1][2]


TOTALS = {
    "count": lambda: running_count("fold", "in", "out"),
    "sum": lambda: running_sum("fold", "in", "out", of=lambda value: len(str(value))),
    "min": lambda: running_min("fold", "in", "out", of=str),
    "max": lambda: running_max("fold", "in", "out", of=str),
}


@pytest.mark.parametrize("kind", [int, bytes])
@pytest.mark.parametrize("piece", TOTALS)
def test_totals(store: LogStore, piece: str, kind: type) -> None:
    """Each turn tells the totals of its keys once, with the time of the last record."""
    append(store, kind, [kind(str(rank).encode()) if kind is bytes else kind(rank) for rank in range(COUNT)])
    graph = Topology("folds", partitions=1).stream("in", kind).stream("out").stream("late").add(TOTALS[piece]())
    ResolvedTopology(graph, store, create=True)
    load = Load("one", store.url, graph, "fold")
    folded = results(store, folding(load), turns(), Memory())
    single = results(store, Turn(load, 0), turns(), Memory())
    for (ours, wrote, state), (theirs, written, kept) in zip(folded, single, strict=True):
        assert state == kept
        assert dict(rows_by_key(wrote["out"])) == dict(rows_by_key(written["out"]))
        assert ours["produced"] == len(wrote["out"]) == len(dict(rows_by_key(wrote["out"])))
        assert {**ours, "produced": 0} == {**theirs, "produced": 0}
    assert len(folded[0][1]["out"]) > 20


def rows_by_key(rows: list[Any]) -> list[tuple[str, Any]]:
    """No key and an empty one have the same total."""
    return [(row[1] or "", row) for row in rows]


def test_either_goes_on_where_the_other_was(store: LogStore) -> None:
    append(store, bytes, [b"x"] * COUNT)
    graph = topology(PIECES["count"](), bytes)
    ResolvedTopology(graph, store, create=True)
    load = Load("one", store.url, graph, "fold")
    first, second, third, *rest = turns()
    kept = Memory()
    found = results(store, folding(load), [first], kept)
    found += results(store, Turn(load, 0), [second, third], kept)
    found += results(store, folding(load), rest, kept)
    assert found == results(store, Turn(load, 0), turns(), Memory())


def test_a_fold_that_changes_what_it_is_given(store: LogStore) -> None:
    """A value that is in several windows is another one in each."""

    def share(held: dict[str, int] | None, value: dict[str, int]) -> dict[str, int]:
        if held is None:
            return value
        held["n"] += value["n"]
        return held

    store.create("in", 1)
    with store.appender("in", dict[str, int]) as out:
        for at in range(4):
            out.append({"n": 1}, key="k", timestamp=(100 + at) * SECOND)
    made = windowed_fold("fold", "in", "out", Sliding("10s", "5s"), initial=None, fold=share)
    graph = topology(made, dict[str, int])
    ResolvedTopology(graph, store, create=True)
    load = Load("one", store.url, graph, "fold")
    jobs = [Errand(1, store.now(), Job(0, {"in": (0, 4)}), finish=True)]
    folded = results(store, folding(load), jobs, Memory())
    assert folded == results(store, Turn(load, 0), jobs, Memory())
    told = [msgspec.json.decode(payload, type=Windowed).value for payload, *_ in folded[0][1]["out"]]
    assert told == [{"n": 4}, {"n": 4}]


def test_many_keys(store: LogStore) -> None:
    """So many that buckets grow."""
    store.create("in", 1)
    with store.appender("in", bytes) as out:
        out.append_many([b""] * 30_000, keys=[f"key-{number % 10_000}" for number in range(30_000)], timestamps=None)
    graph = topology(PIECES["long"](), bytes)
    ResolvedTopology(graph, store, create=True)
    load = Load("one", store.url, graph, "fold")
    jobs = [
        Errand(1, store.now(), Job(0, {"in": (0, 20_000)})), Errand(2, store.now(), Job(0, {"in": (20_000, 30_000)})),
        Errand(3, store.now(), Job(0, {"in": (30_000, 30_000)}), finish=True),
    ]  # fmt: skip
    folded = results(store, folding(load), jobs, Memory())
    told = [msgspec.json.decode(payload, type=Windowed).value for payload, *_ in folded[-1][1]["out"]]
    assert told == [3] * 10_000
    assert folded == results(store, Turn(load, 0), jobs, Memory())


def test_a_record_that_cannot_be_folded(store: LogStore) -> None:
    """It becomes a dead letter, all others count, and the next turn is folded again."""
    append(store, bytes, [b"no number" if rank == 77 else str(rank).encode() for rank in range(COUNT)])
    window = Tumbling("5s")
    piece = windowed_fold(
        "fold", "in", "out", window, initial=0, fold=lambda a, b: a + b, late="late", policy=CONTINUE
    )  # fmt: skip
    graph = topology(piece, int)
    ResolvedTopology(graph, store, create=True)
    load = Load("test_a_record", store.url, graph, "fold")
    kept = Memory()
    done = [done_of(processor.perform(load, pack(errand), kept)) for errand in turns()]
    assert [one.error for one in done] == [None] * 5
    assert [one.skipped for one in done] == [1, 0, 0, 0, 0]
    place = (load.url, "fold", 0)
    assert isinstance(processor._turns[place], Folder)
    with store.transaction() as transaction:
        transaction.append_staged(*(staged for one in done for staged in one.staged))
        transaction.commit()
    assert [one.payload for one in store.log("fold.dead", bytes).records(0)] == [b"no number"]
    values = [one.value.value for one in store.log("out", Windowed).records(0)]
    late = [one.value for one in store.log("late", int).records(0)]
    assert sum(values) + sum(late) == sum(range(COUNT)) - 77
    processor._turns.pop(place).abandon()
