"""Ordinary programs under load, one process each, recorded call by call: producers, workers, units of work.

They live until a file called ``stop`` is in their folder, and take every failure of the store as what it is: they say
nothing is lost that was acknowledged, so they repeat a call whose outcome they do not know, with the same ids.
"""

import itertools
import os
import random
import resource
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.crash.scenes import Stage

from penstock import Conflict, LeaseLost, Reaper, Reject, Retry, StoreFull, StoreUnavailable, Worker
from penstock.errors import OutcomeUnknown, PenstockError
from penstock.ids import new_id

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
    """Repeat a call until the store answers; None when the play is over before it does."""
    while going(folder):
        try:
            return call()
        except AWAY:
            time.sleep(0.05)
    return None


def produce(folder: Path, pause: float = 0.004) -> None:
    """Puts of every kind, one after the other."""
    stage = stage_of(folder, "producer")
    queue = stage.queue
    queue_line = stage.store.queue("line", int, fifo=True)
    seed = random.Random(os.getpid())
    for number in itertools.count():
        if not going(folder):
            break
        id_ = new_id()
        match seed.randrange(8):
            case 0:
                persistently(folder, lambda id_=id_: queue("once").put(1, id=id_))
            case 1:
                persistently(folder, lambda id_=id_, key=f"u{number % 7}": _unique(queue("orders"), id_, key))
            case 2:
                many = [new_id() for _ in range(seed.randrange(2, 30))]
                persistently(folder, lambda many=many: _put_many(stage, many))
            case 3:
                persistently(folder, lambda id_=id_: queue_line.put(3, id=id_))
            case 4:
                persistently(folder, lambda id_=id_: queue("late").put(4, id=id_, delay="300ms"))
            case _:
                persistently(folder, lambda id_=id_: queue("orders").put(5, id=id_))
        time.sleep(pause)
    _close(stage)


def _unique(queue: Any, id_: str, key: str) -> None:
    try:
        queue.put(2, id=id_, unique=key)
    except Conflict:
        return


def _put_many(stage: Stage, ids: list[str]) -> None:
    """All of them in one step: all or none, also when the step is sent again."""
    from penstock.queue.protocol import NewEntry, Step

    puts = tuple(NewEntry(id_, "raw", b"7", "json", "int", repeat=True) for id_ in ids)
    stage.store.driver.commit(Step(puts=puts, repeat=True))


def work(folder: Path, concurrency: int = 4) -> None:
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
    worker = Worker(
        stage.store, lease=LEASE, poll="200ms", reaper=Reaper(stage.store, every="500ms", keep_history=None)
    )
    worker.start()
    while going(folder):
        time.sleep(0.05)
    worker.stop(grace="5s")
    _close(stage)


def cook(folder: Path) -> None:
    """Units of work: take some, put as many, commit; or leave it and roll back."""
    stage = stage_of(folder, "cook")
    seed = random.Random(os.getpid())
    while going(folder):
        try:
            with stage.store.unit(lease=LEASE) as unit:
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
    _close(stage)


def measure(folder: Path) -> None:
    """A worker that writes down every second what it uses: what leaks shows in a long run."""
    path = folder / "usage"

    def note() -> None:
        with path.open("a") as out:
            while going(folder):
                handles = len(os.listdir("/proc/self/fd"))
                memory = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
                out.write(f"{memory} {handles} {threading.active_count()}\n")
                out.flush()
                time.sleep(1)

    threading.Thread(target=note, daemon=True).start()
    work(folder)


def _close(stage: Stage) -> None:
    try:
        stage.store.close()
    except PenstockError:
        return
