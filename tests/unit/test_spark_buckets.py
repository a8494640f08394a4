"""State in buckets, over a dict in place of Spark's state store, against plain dicts."""

import random
from typing import Any

import pytest

from penstock.errors import PenstockError
from penstock.spark.running import buckets as module
from penstock.spark.running.buckets import FIRST, FULL, StateBuckets
from penstock.stream.computation import Computation
from penstock.stream.engine.changelog import timer_changes
from penstock.stream.engine.state_store import Entry
from penstock.stream.engine.watermark import Watermark
from penstock.stream.state import List, Map, Value
from penstock.stream.timers import Timers


class Keeps(Computation):
    name, inputs = "keeps", "in"
    states = (Value("v", int, 0), List("l", int), Map("m", int))


class Older(Keeps):
    def upgrade(self, version: int, state: str, key: str, value: Any) -> Any:
        return None if state == "m" else value + 1000


class Store:
    """Counts what is asked."""

    def __init__(self) -> None:
        self.heads: bytes | None = None
        self.blobs: dict[int, bytes] = {}
        self.reads = 0
        self.writes = 0

    def head(self) -> bytes | None:
        return self.heads

    def put_head(self, blob: bytes) -> None:
        self.heads = blob

    def bucket(self, number: int) -> bytes | None:
        self.reads += 1
        return self.blobs.get(number)

    def put_bucket(self, number: int, blob: bytes) -> None:
        self.writes += 1
        self.blobs[number] = blob


class Worker:
    """One that has never seen the task before."""

    def __init__(self, store: Store, computation: Computation | None = None) -> None:
        self.computation = computation or Keeps()
        self.cells = {one.name: one.cell() for one in self.computation.states}
        self.timers = Timers()
        self.watermark = Watermark(("in",))
        self.buckets = StateBuckets(self.computation, self.cells, self.timers)
        self.buckets.open(store)
        self.buckets.restore(self.watermark)

    def at(self, key: str) -> dict[str, Any]:
        self.buckets.need([key])
        for cell in self.cells.values():
            cell.scope.key = key
        return self.cells

    def save(self) -> None:
        changed: list[Entry] = []
        for cell in self.cells.values():
            changed += cell.changes()
        changed += timer_changes(self.timers)
        self.buckets.note(changed)
        for cell in self.cells.values():
            cell.apply()
        self.timers.apply()
        self.buckets.save(self.watermark, {"in": 7})


def test_random_changes_over_many_workers() -> None:
    rng = random.Random(3)
    store = Store()
    held: dict[str, tuple[int, list[int], dict[str, int]]] = {}
    for _ in range(120):
        worker = Worker(store)
        for _ in range(rng.randint(1, 20)):
            key = f"k{rng.randrange(60)}"
            value, items, names = held.get(key, (0, [], {}))
            cells = worker.at(key)
            assert (cells["v"].get(), cells["l"].items(), dict(cells["m"].items())) == (value, items, names)
            number = rng.randrange(100)
            cells["v"].set(number)
            items = [*items, number] if rng.random() < 0.7 else items[: rng.randint(0, len(items))]
            cells["l"].replace(items)
            names = {**names, str(number % 5): number} if rng.random() < 0.7 else {}
            cells["m"].clear() if not names else cells["m"].set(str(number % 5), number)
            held[key] = (number, items, names)
        worker.save()


def test_only_what_is_needed_is_read_and_written() -> None:
    store = Store()
    worker = Worker(store)
    for number in range(200):
        worker.at(f"k{number}")["v"].set(number)
    worker.save()
    assert store.writes == FIRST
    store.reads = store.writes = 0
    worker = Worker(store)
    worker.at("k7")["v"].set(8)
    worker.save()
    assert store.reads <= 2, "the key's, and that of no key"
    assert store.writes == 1


def test_more_keys_more_buckets() -> None:
    store = Store()
    count = FULL * FIRST + 1
    for part in range(3):
        worker = Worker(store)
        for number in range(part, count, 3):
            worker.at(f"k{number}")["v"].set(number)
        worker.save()
    assert len(store.blobs) == FIRST * module.GROWTH
    worker = Worker(store)
    assert all(worker.at(f"k{number}")["v"].get() == number for number in range(0, count, 17))


def test_timers_are_found_without_reading_all() -> None:
    store = Store()
    worker = Worker(store)
    for number in range(100):
        worker.at(f"k{number}")["v"].set(1)
    worker.timers.set("event", "k50", "t", 777)
    worker.timers.set("processing", "k51", "t", 888)
    worker.save()
    store.reads = 0
    worker = Worker(store)
    assert (worker.buckets.next("event"), worker.buckets.next("processing")) == (777, 888)
    worker.buckets.need_timers("event", 776)
    assert store.reads == 0
    worker.buckets.need_timers("event", 777)
    assert store.reads == 1
    found = worker.timers.take("event", 777)
    assert found is not None
    assert found.key == "k50"
    worker.save()
    assert Worker(store).buckets.next("event") is None


def test_another_version_converts_everything_once() -> None:
    store = Store()
    worker = Worker(store)
    for number in range(50):
        worker.at(f"k{number}")["v"].set(number)
        worker.cells["m"].set("x", 1)
    worker.save()
    for _ in range(2):
        newer = Older()
        newer.version = 2
        worker = Worker(store, newer)
        assert worker.at("k3")["v"].get() == 1003
        assert dict(worker.cells["m"].items()) == {}
        worker.save()


def test_the_mark_tells_whether_a_worker_is_up_to_date() -> None:
    store = Store()
    worker, other = Worker(store), Worker(store)
    worker.save()
    assert worker.buckets.mark == StateBuckets.mark_of(store)
    other.buckets.open(store)
    other.save()
    assert worker.buckets.mark != StateBuckets.mark_of(store)


def test_a_change_without_a_look_is_an_error() -> None:
    store = Store()
    worker = Worker(store)
    worker.at("a")["v"].set(1)
    worker.save()
    worker = Worker(store)
    with pytest.raises(PenstockError):
        worker.buckets.note([Entry("v", "a", "", b"2")])
