"""Ordinary programs under load, one process each, recorded call by call: producers, workers, units of work.

They live until a file called ``stop`` is in their folder, and take every failure of the store as what it is: they say
nothing is lost that was acknowledged, so they repeat a call whose outcome they do not know, with the same ids.
"""

import itertools
import os
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.crash.scenes import Stage

from penstock import Reaper, Reject, Retry, Worker
from penstock.errors import Conflict, LeaseLost, OutcomeUnknown, PenstockError, StoreFull, StoreUnavailable
from penstock.ids import new_id
from penstock.queue.protocol import NewEntry, Step

LEASE = "3s"
QUEUES = frozenset({"orders", "invoices", "raw", "cooked", "once", "line", "late"})
AWAY = (StoreUnavailable, OutcomeUnknown, StoreFull)


def going(folder: Path) -> bool:
    return not (folder / "stop").exists()


def stage_of(folder: Path, node: str) -> Stage:
    """The folder's store by its own clock; a server that is away right now is asked again."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return Stage(folder, fake=False, node=f"{node}{os.getpid()}")
        except PenstockError:
            if time.monotonic() > deadline or not going(folder):
                raise
            time.sleep(0.2)


def persistently(folder: Path, call: Callable[[], Any]) -> Any:
    """Repeat a call until the store answers. Returns None when the play is over before it does."""
    while going(folder):
        try:
            return call()
        except AWAY:
            time.sleep(0.05)
    return None


def produce(folder: Path, pause: float = 0.004, most_live: int | None = None) -> None:
    """Puts of every kind, one after the other; with ``most_live`` it waits while that many are live."""
    stage = stage_of(folder, "producer")
    queue = stage.queue
    queue_line = stage.store.queue("line", int, fifo=True)
    seed = random.Random(os.getpid())
    for number in itertools.count():
        if most_live is not None and number % 25 == 0:
            _await_room(folder, stage, most_live)
        if not going(folder):
            break
        id_ = new_id()
        match seed.randrange(8):
            case 0:
                persistently(folder, lambda id_=id_: queue("once").put(1, id=id_))
            case 1:
                persistently(folder, lambda id_=id_, key=f"u{number % 7}": _unique(queue("orders"), id_, key))
            case 2:
                put_many(folder, stage, "raw", seed.randrange(2, 30))
            case 3:
                persistently(folder, lambda id_=id_: queue_line.put(3, id=id_))
            case 4:
                persistently(folder, lambda id_=id_: queue("late").put(4, id=id_, delay="300ms"))
            case _:
                persistently(folder, lambda id_=id_: queue("orders").put(5, id=id_))
        time.sleep(pause)
    close(stage)


def _await_room(folder: Path, stage: Stage, most_live: int) -> None:
    """What a machine cannot handle in time is not piled up: the play is about a steady load."""
    while (persistently(folder, lambda: sum(counts.live for counts in stage.store.counts())) or 0) > most_live:
        time.sleep(0.2)


def _unique(queue: Any, id_: str, key: str) -> None:
    try:
        queue.put(2, id=id_, unique=key)
    except Conflict:
        return


def put_many(folder: Path, stage: Stage, queue: str, count: int) -> None:
    """All of them in one step: all or none, also when the step is sent again."""
    puts = tuple(NewEntry(new_id(), queue, b"7", "json", "int", repeat=True) for _ in range(count))
    persistently(folder, lambda: stage.store.driver.commit(Step(puts=puts, repeat=True)))


def work(folder: Path, concurrency: int = 4, keep_history: str | None = None, lease: str = LEASE) -> None:
    """A worker with handlers of every outcome."""
    stage = stage_of(folder, "worker")
    seed = random.Random(os.getpid())
    local = threading.local()

    def dice() -> float:
        local.seed = getattr(local, "seed", None) or random.Random(seed.random())
        return float(local.seed.random())

    def order(value: int, ctx: Any) -> None:
        if dice() < 0.1:
            raise RuntimeError("again")
        if dice() < 0.02:
            raise Reject("never")
        ctx.put(stage.queue("invoices"), value + 1000)
        ctx.put(stage.queue("invoices"), value + 2000)

    def quick(value: int, ctx: Any) -> None:
        return None

    def slow(value: int, ctx: Any) -> None:
        time.sleep(0.02 * dice())

    for_ever = Retry(attempts=None, delays=["50ms"])
    stage.store.queue("line", int, fifo=True)
    stage.handle("orders", order, retry=for_ever, concurrency=concurrency)
    stage.handle("invoices", quick, retry=for_ever, concurrency=concurrency)
    stage.handle("cooked", quick, retry=for_ever)
    stage.handle("line", quick, retry=for_ever)
    stage.handle("late", slow, retry=for_ever, concurrency=2)
    stage.handle("once", slow, retry=Retry(attempts=1))
    run_worker(stage, keep_history, lease)


def run_worker(stage: Stage, keep_history: str | None, lease: str, **options: Any) -> None:
    """Handle what has a handler until the play is over."""
    reaper = Reaper(stage.store, every="500ms", keep_history=keep_history)
    worker = Worker(stage.store, lease=lease, poll="200ms", reaper=reaper, **options)
    worker.start()
    while going(stage.folder):
        time.sleep(0.05)
    worker.stop(grace="5s")
    close(stage)


def cook(folder: Path, lease: str = LEASE) -> None:
    """Units of work: take some, put as many, commit; or leave it and roll back."""
    stage = stage_of(folder, "cook")
    seed = random.Random(os.getpid())
    while going(folder):
        try:
            with stage.store.unit(lease=lease) as unit:
                taken = unit.take(stage.queue("raw"), limit=seed.randrange(1, 12), attempts=None)
                for entry in taken:
                    unit.put(stage.queue("cooked"), entry.value)
                if seed.random() < 0.9:
                    unit.commit()
        except LeaseLost:
            continue
        except AWAY:
            time.sleep(0.1)
            continue
        if not taken:
            time.sleep(0.05)
    close(stage)


def close(stage: Stage) -> None:
    try:
        stage.store.close()
    except PenstockError:
        return
